//! `ferrite serve`: export pools to clients on the network.
//!
//! Contents: the command line, and the life of a server. A [`Plan`] (`plan`), from the command line or from a file
//! (`config`), says what to serve; `check` inspects the pools of a plan, `standby` has this server's part in pools that
//! servers hand to each other, `notify` reports the server's state to systemd.
//!
//! The server stays in the foreground, as systemd likes it, and ends cleanly on a signal: clients keep their sessions,
//! and continue after a restart.

mod check;
mod config;
mod notify;
mod plan;
mod rdma;
mod reports;
mod standby;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use ferrite::MountOptions;
use ferrite::volume::{Address, Volume, VolumeError};
use ferrite_client::secure::{Encryption, is_loopback};
use ferrite_server::{ExportOptions, ExportQuota, FabricOptions, Server, ServerOptions};
use ferrite_vfs::FileSystem;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::served::Volumes;
use super::target::local_address;
use super::{FAILED, Failure, Outcome, USAGE, complain, opening, say};
use plan::{Export, Listen, Plan, Pool, Problem};
use reports::Reports;
use standby::Standby;

/// Export pools to clients on the network
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Clients reach an export by tcp://HOST:PORT/NAME, for example:
  ferrite serve /dev/shm/pool --listen tcp://127.0.0.1:7447
  ferrite mount tcp://127.0.0.1:7447 /mnt

Without a key, only clients on this host are admitted, so all addresses to listen on must be loopback addresses. With a key, \
both ends prove that they have it, and encrypt the connection:
  ferrite key data.key   # and copy it to the clients over a secure channel
  ferrite serve pool --listen tcp://0.0.0.0:7447 --name data --key data.key
  ferrite mount 'tcp://server:7447/data?key=data.key' /mnt

A configuration file can have several pools and exports; docs/serving.md describes it, and share/ferrite/server.toml is \
an example:
  ferrite serve --config /etc/ferrite/server.toml

With --rdma, programs write and read files without a call of the server's file system (`ferrite mr`); only files of \
pools in memory can be written that way.

A key authenticates a host, not a user. The server believes clients about users and groups, except that root is nobody.

Servers with the same pool in a database (docs/failover.md) stand by for each other: one owns the pool, and another takes \
it over when the owner ends or dies. Clients name them all:
  ferrite mount tcp://a,b,c/data /mnt

While the server is stopped, clients wait. Once it is restarted, they continue with their files open and their locks \
held, and each change happens once.

Exit codes: 0 ended by a signal, or --check found nothing; 1 a pool, key or directory is missing, damaged, or unsuitable; \
2 the command line or the configuration file is wrong.")]
pub(crate) struct Serve {
    /// Pool to export
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath, required_unless_present = "config")]
    pool: Option<Address>,
    /// Configuration file of pools and exports
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["pool", "listen", "name", "path", "read_only", "no_root_squash", "key", "encryption"])]
    #[arg(conflicts_with_all = ["threads", "lease", "busy_poll", "metrics", "console", "console_token"])]
    #[arg(conflicts_with_all = ["rdma", "rdma_unprotected", "advertise", "quota", "quota_inodes"])]
    config: Option<PathBuf>,
    /// Only check the file, its keys and its pools; prints nothing if all is well
    #[arg(long, requires = "config")]
    check: bool,
    /// Address to listen on; may be repeated
    #[arg(long, value_name = "tcp://HOST:PORT", default_value = plan::LISTEN)]
    listen: Vec<String>,
    /// Name of the export
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// Directory of the pool to export
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: String,
    /// Refuse changes
    #[arg(long)]
    read_only: bool,
    /// Let clients act as root; without it, their root is the user nobody
    #[arg(long)]
    no_root_squash: bool,
    /// Give the directory a quota: most bytes that clients may store, such as 10G (see `ferrite quota`)
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    quota: Option<u64>,
    /// The same for inodes: files, directories and links
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    quota_inodes: Option<u64>,
    /// Admit only clients with the key in this file (see `ferrite key`); may be repeated
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    key: Vec<PathBuf>,
    /// Clients with whom encryption is required, if there is a key
    #[arg(long, value_name = "WITH", value_enum, default_value_t = Insistence::Remote)]
    encryption: Insistence,
    /// Threads that serve connections
    #[arg(long, value_name = "N", default_value_t = plan::THREADS, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Seconds of silence after which the server releases a client's locks and open files
    #[arg(long, value_name = "SECONDS", default_value_t = plan::LEASE_SECONDS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,
    /// Poll for work for this many microseconds before sleeping, where that pays; 0: sleep at once; over fabrics at
    /// least 200
    #[arg(long, value_name = "MICROSECONDS", default_value_t = plan::BUSY_POLL_US)]
    busy_poll: u64,
    /// Where clients reach this server, for pools that servers hand to each other: the others tell it to clients
    /// [default: the first address to listen on]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Serve Prometheus metrics at this address, as /metrics; a port alone means 127.0.0.1. Everybody who can reach the
    /// address can read them
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Show administrators the server in a browser, at this address; a port alone means 127.0.0.1. Nothing can be
    /// changed there
    #[arg(long, value_name = "HOST:PORT")]
    console: Option<String>,
    /// File with the token that readers of the console must give; needed where other machines can reach it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, requires = "console")]
    console_token: Option<PathBuf>,
    /// Let clients write and read files by RDMA in software (RoCEv2) at this address [default: 127.0.0.1, port 4791]
    #[arg(long, value_name = "ADDRESS[:PORT]", num_args = 0..=1, default_missing_value = plan::RDMA, require_equals = true)]
    rdma: Option<String>,
    /// Allow --rdma at addresses that other machines can reach. RDMA is neither encrypted nor authenticated,
    /// even if the exports have keys: an attacker who can send packets in a client's name can write its files
    #[arg(long, requires = "rdma")]
    rdma_unprotected: bool,
}

/// [`Encryption`], as users say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Insistence {
    /// All clients
    Always,
    /// Clients on other hosts
    Remote,
    /// None: clients decide
    Offered,
}

impl From<Insistence> for Encryption {
    fn from(insistence: Insistence) -> Encryption {
        match insistence {
            Insistence::Always => Encryption::Always,
            Insistence::Remote => Encryption::Remote,
            Insistence::Offered => Encryption::Offered,
        }
    }
}

impl Serve {
    pub(crate) fn run(mut self) -> Outcome {
        let Some(file) = self.config.take() else {
            let plan = self
                .plan()
                .map_err(|problem| Failure::new(problem.code, problem.text))?;
            return serve(plan);
        };
        let (plan, mut problems) = config::read(&file)?;
        if self.check && problems.is_empty() {
            problems = check::problems(&plan);
        }
        if problems.is_empty() {
            return match self.check {
                true => Ok(0),
                false => serve(plan),
            };
        }
        for problem in &problems {
            complain(format_args!("ferrite: {}{problem}", file.display()));
        }
        Ok(problems.iter().map(|problem| problem.code).max().unwrap_or(FAILED))
    }

    /// The plan for the command line.
    fn plan(self) -> Result<Plan, Problem> {
        let keys = self.key.iter().map(|file| plan::key(file));
        let quota = ExportQuota {
            bytes: self.quota,
            inodes: self.quota_inodes,
        };
        let options = ExportOptions::new(self.name)
            .quota(quota)
            .path(self.path)
            .read_only(self.read_only)
            .root_squash(!self.no_root_squash)
            .keys(keys.collect::<Result<_, _>>()?)
            .encryption(self.encryption.into());
        let listen = self.listen.iter().map(|text| {
            Listen::parse(text).map_err(|why| Problem::new(USAGE, None, format!("--listen {text}: {why}")))
        });
        let pool = Pool {
            address: self.pool.unwrap_or_else(|| Address::of_pool("")),
            options: MountOptions::default().read_only(self.read_only),
            exports: vec![Export { options, line: None }],
            line: None,
        };
        let rdma = self.rdma.as_deref().map(|text| {
            let wrong = |why: String| Problem::new(USAGE, None, format!("--rdma={text}: {why}"));
            let address = plan::rdma_address(text).map_err(wrong)?;
            plan::check_rdma(address, self.rdma_unprotected)
                .map_err(|why| wrong(format!("{why}; --rdma-unprotected allows it")))?;
            Ok(address)
        });
        let plan = Plan {
            rdma: rdma.transpose()?.into_iter().collect(),
            listen: listen.collect::<Result<_, _>>()?,
            options: ServerOptions::default()
                .threads(usize::from(self.threads))
                .lease(Duration::from_secs(self.lease))
                .busy_poll(Duration::from_micros(self.busy_poll)),
            metrics: self.metrics,
            console: self.console,
            console_token: self.console_token,
            advertise: self.advertise,
            pools: vec![pool],
        };
        match plan.unreachable().into_iter().next() {
            Some(problem) => Err(Problem {
                text: format!(
                    "--listen {}; make a key with `ferrite key FILE` and give `--key FILE`, or listen on 127.0.0.1",
                    problem.text
                ),
                ..problem
            }),
            None => Ok(plan),
        }
    }
}

fn serve(plan: Plan) -> Outcome {
    let reports = Reports::listen(&plan)?;
    let listeners = plan.listen.iter().map(Listen::bind).collect::<Result<Vec<_>, _>>()?;
    let (addresses, mut fabric) = reached_at(&listeners, &plan.listen)?;
    // Before opening anything, so that a signal from now on ends it cleanly.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let reached_at = plan.advertise.unwrap_or_else(|| reached_at_by_default(&listeners));
    let measured = Volumes::default();
    let pools = Pools::open(plan.pools, &addresses, &reached_at, &measured)?;
    let (volumes, mut said) = (pools.volumes, pools.said);
    if let Some(fabric) = &mut fabric {
        fabric.busy_poll = fabric.busy_poll.max(plan.options.busy_poll);
    }
    let rdma = rdma::start(&plan.rdma)?;
    if let Some(rdma) = &rdma {
        let places = rdma.places();
        said.extend(places.iter().map(|place| format!("files by RDMA at UDP {place}")));
        for place in places.iter().filter(|place| !is_loopback(place.ip())) {
            complain(format_args!(
                "ferrite: RDMA at UDP {place} is neither encrypted nor authenticated: everybody who can send packets in \
                 a client's name can write its files"
            ));
        }
    }
    let options = plan.options.fabric(fabric).rdma(rdma);
    let movable = pools.standbys.iter().map(|(_, exports)| exports.clone()).collect();
    let served = Server::start_with_movable(listeners, pools.engines, movable, &options);
    let (mut server, movable) = served.map_err(|error| Failure::new(FAILED, error.to_string()))?;
    let standbys = pools.standbys.into_iter().zip(movable);
    let standbys = standbys.map(|((standby, _), movable)| standby.start(movable));
    let standbys: Vec<standby::Handle> = standbys.collect::<Result<_, _>>()?;
    let begun = standbys.iter().try_for_each(standby::Handle::wait_until_begun);
    if let Err(failure) = begun {
        end_standbys(standbys);
        return Err(failure);
    }
    let reports = reports.start(&server, measured)?;
    said.into_iter()
        .chain(reports.said())
        .for_each(|line| say(format_args!("{line}")));
    notify::tell("READY=1");
    let signal = signals.forever().next();
    notify::tell("STOPPING=1");
    tracing::info!(signal, sessions = server.sessions(), "received a signal to end");
    drop(reports);
    // First those for which others wait.
    let handed_over = end_standbys(standbys);
    server.stop();
    // First the pools: sessions keep their open files over the restart. All of them, even if one fails.
    let closed: Vec<_> = volumes.iter().map(|volume| volume.close()).collect();
    handed_over.into_iter().chain(closed).collect::<Result<(), _>>()?;
    drop(server);
    Ok(0)
}

/// Hands over the pools that other servers may have.
fn end_standbys(standbys: Vec<standby::Handle>) -> Vec<Result<(), VolumeError>> {
    standbys.iter().for_each(standby::Handle::ask_to_end);
    standbys.into_iter().map(standby::Handle::wait).collect()
}

/// The addresses of listening sockets, without the export, and the options of those over libfabric.
fn reached_at(listeners: &[TcpListener], listen: &[Listen]) -> Result<(Vec<String>, Option<FabricOptions>), Failure> {
    let mut addresses = Vec::new();
    let mut fabric: Option<FabricOptions> = None;
    for (listener, listen) in listeners.iter().zip(listen) {
        let scheme = if listen.fabric.is_some() { "fabric" } else { "tcp" };
        addresses.push(format!("{scheme}://{}", listener.local_addr()?));
        match (&mut fabric, &listen.fabric) {
            (Some(all), Some(other)) => all.providers.extend(other.providers.iter().cloned()),
            (all, other) => *all = all.take().or_else(|| other.clone()),
        }
    }
    Ok((addresses, fabric))
}

/// Where clients reach this server, as far as its first listening socket says.
fn reached_at_by_default(listeners: &[TcpListener]) -> String {
    let address = listeners.first().and_then(|listener| listener.local_addr().ok());
    match address {
        Some(address) if address.ip().is_unspecified() => {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("{host}:{}", address.port())
        }
        Some(address) => address.to_string(),
        None => String::new(),
    }
}

/// The pools of a server: those of this machine open, and its part in those that servers hand to each other.
struct Pools {
    volumes: Vec<Arc<dyn Volume>>,
    standbys: Vec<(Standby, Vec<ExportOptions>)>,
    /// Each engine, and what is exported of it.
    engines: Vec<(Arc<dyn FileSystem>, Vec<ExportOptions>)>,
    /// Lines for the user, printed once the server runs.
    said: Vec<String>,
}

impl Pools {
    fn open(planned: Vec<Pool>, addresses: &[String], reached_at: &str, measured: &Volumes) -> Result<Pools, Failure> {
        let mut pools = Pools {
            volumes: Vec::new(),
            standbys: Vec::new(),
            engines: Vec::new(),
            said: Vec::new(),
        };
        let shared = standby::Shared::new(measured);
        for pool in planned {
            let path = pool.address.path().display();
            let lines = pool.exports.iter().flat_map(|export| {
                let name = &export.options.name;
                addresses.iter().map(move |address| format!("{address}/{name}"))
            });
            let lines: Vec<String> = lines.map(|place| format!("serving {path} as {place}")).collect();
            match Standby::of(&pool, reached_at, lines.clone(), &shared)? {
                Some(standby) => {
                    let exports = pool.exports.into_iter().map(|export| export.options);
                    pools.standbys.push((standby, exports.collect()));
                }
                None => {
                    pools.open_own(pool, measured)?;
                    pools.said.extend(lines);
                }
            }
        }
        Ok(pools)
    }

    /// Opens a pool of this machine.
    fn open_own(&mut self, pool: Pool, measured: &Volumes) -> Result<(), Failure> {
        let path = pool.address.path().display();
        let volume = opening::volume(&pool.address, &pool.options.keep_orphans(true))?;
        for warning in volume.warnings() {
            complain(format_args!("ferrite: {path}: {warning}"));
        }
        let exports = pool.exports.into_iter().map(|export| {
            let is_read_only = export.options.read_only || volume.is_read_only();
            export.options.read_only(is_read_only)
        });
        let exports: Vec<ExportOptions> = exports.collect();
        for export in &exports {
            // If the directory is missing, use this text: the server's own names no directory.
            check::directory(&*volume.fs(), &export.path)
                .map_err(|why| Failure::new(FAILED, format!("{path}: {why}")))?;
        }
        self.engines.push((volume.fs(), exports));
        measured.add(&path.to_string(), &volume);
        self.volumes.push(volume);
        Ok(())
    }
}

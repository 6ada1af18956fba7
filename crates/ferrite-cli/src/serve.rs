//! `ferrite serve`: export a pool to clients on the network.
//!
//! It stays in the foreground, as systemd likes it, and ends cleanly on a signal: clients keep their sessions, and go
//! on when it is started again.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use ferrite::MountOptions;
use ferrite::volume::Address;
use ferrite_net::server::{ExportOptions, Server, ServerOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::metrics::Endpoint;
use super::target::local_address;
use super::{FAILED, Failure, Outcome, USAGE, complain, opening, say};

/// How long to wait for a port.
const PORT_FREED_WITHIN: Duration = Duration::from_secs(5);

/// Export a pool to clients on the network
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Clients reach it by tcp://HOST:PORT/NAME, for example:
  ferrite serve /dev/shm/pool --listen tcp://127.0.0.1:7447
  ferrite mount tcp://127.0.0.1:7447 /mnt

Without encryption and keys, which this version does not have, everybody who can reach the port can use the export as \
any user but root. So it listens on loopback addresses only; to reach it from another machine, forward the port \
through ssh(1).

When it is stopped or killed, clients wait, and go on when it is started again: with their files open, their locks \
held, and each change made once.")]
pub(crate) struct Serve {
    /// Pool to export
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Where to listen; may be repeated
    #[arg(long, value_name = "tcp://HOST:PORT", default_value = "tcp://127.0.0.1:7447")]
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
    /// Threads that serve connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Seconds without a sign of life after which a client's locks and open files are let go
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    lease: u64,
    /// Look for work for so many microseconds before sleeping: faster, at the price of a CPU
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    busy: u64,
    /// Show metrics to Prometheus there, at /metrics; a port alone is one of 127.0.0.1. Everybody who can reach it sees
    /// them
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
}

impl Serve {
    pub(crate) fn run(self) -> Outcome {
        let listeners = self
            .listen
            .iter()
            .map(|text| listen(text))
            .collect::<Result<Vec<_>, _>>()?;
        let metrics = self.metrics.as_deref().map(Endpoint::listen).transpose()?;
        let addresses: Vec<String> = listeners
            .iter()
            .map(|listener| {
                listener
                    .local_addr()
                    .map(|address| format!("tcp://{address}/{}", self.name))
            })
            .collect::<Result<_, _>>()?;
        // Before anything is opened, so that a signal that comes now still ends it cleanly.
        let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let options = MountOptions::default().read_only(self.read_only).keep_orphans(true);
        let volume = opening::volume(&self.pool, &options)?;
        for warning in volume.warnings() {
            complain(format_args!("ferrite: {}: {warning}", self.pool.path().display()));
        }
        let export = ExportOptions::new(self.name)
            .path(self.path.clone())
            .read_only(self.read_only || volume.is_read_only())
            .root_squash(!self.no_root_squash);
        let options = ServerOptions::default()
            .threads(usize::from(self.threads))
            .lease(Duration::from_secs(self.lease))
            .busy(Duration::from_micros(self.busy));
        let served = Server::start(listeners, vec![(volume.fs(), vec![export])], &options);
        let mut server = served.map_err(|error| {
            Failure::new(
                FAILED,
                format!("{}: {}: {error}", self.pool.path().display(), self.path),
            )
        })?;
        let metrics = metrics.map(|listener| Endpoint::start(listener, server.observer()));
        let metrics = metrics.transpose()?;
        for address in addresses {
            say(format_args!("serving {} as {address}", self.pool.path().display()));
        }
        if let Some(metrics) = &metrics {
            say(format_args!("metrics at http://{}/metrics", metrics.address));
        }
        let signal = signals.forever().next();
        tracing::info!(signal, sessions = server.sessions(), "received a signal to end");
        drop(metrics);
        server.stop();
        // First the pool: what sessions have open stays theirs over the restart.
        volume.close()?;
        drop(server);
        Ok(0)
    }
}

/// Listens at an address of the form `tcp://HOST:PORT`; port 0 means any that is free.
fn listen(text: &str) -> Result<TcpListener, Failure> {
    let usage = |why: String| Failure::new(USAGE, format!("--listen {text}: {why}"));
    let place = text
        .strip_prefix("tcp://")
        .ok_or_else(|| usage("an address to listen on begins with tcp://".into()))?;
    let addresses: Vec<_> = place
        .to_socket_addrs()
        .map_err(|error| usage(format!("{error}; an address is tcp://HOST:PORT")))?
        .collect();
    if let Some(open) = addresses.iter().find(|address| !address.ip().is_loopback()) {
        return Err(usage(format!(
            "{} can be reached from other machines, and this version has no keys and no encryption; listen on \
             127.0.0.1 and forward the port through ssh",
            open.ip()
        )));
    }
    let start = Instant::now();
    loop {
        match TcpListener::bind(&addresses[..]) {
            Ok(listener) => return Ok(listener),
            // A server that was killed leaves its port in use for a moment.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < PORT_FREED_WITHIN => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => {
                let remedy = match error.kind() {
                    io::ErrorKind::AddrInUse => "; is another server running?",
                    _ => "",
                };
                return Err(Failure::new(FAILED, format!("{text}: cannot listen: {error}{remedy}")));
            }
        }
    }
}

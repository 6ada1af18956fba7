//! `ferrite mount`: start a daemon that serves a pool, and return when the mount answers.
//!
//! The daemon is this program again, started with a hidden flag: it mounts, says `ready` on its standard output,
//! detaches from the terminal and serves. It reports whatever fails before that on the standard error that it shares
//! with us, and its exit code is ours.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use ferrite::volume::Address;
use ferrite_client::volume::RemoteAddress;

use super::control::Request;
use super::mount_options::parse;
use super::target::{Target, absolute, address, not_mounted, place};
use super::{FAILED, Failure, Outcome, USAGE, complain, daemon, mounts};

/// How long `nofail` waits for a server, with all that the address names.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// Mount a pool on a directory
#[derive(Debug, clap::Args)]
#[command(after_help = super::mount_options::help())]
pub(crate) struct Mount {
    /// Pool to mount
    #[arg(value_parser = address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Directory to mount it on
    dir: PathBuf,
    /// Mount options, separated by commas
    #[arg(short, value_delimiter = ',', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Append the log to this file [default: a daemon logs to syslog]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Tolerate options that are not known, as mount(8) asks for
    #[arg(short, hide = true)]
    sloppy: bool,
    /// Do everything but mount, as mount(8) asks for
    #[arg(short = 'N', hide = true)]
    fake: bool,
    /// Do not write /etc/mtab; nobody does any more
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    /// This is the daemon
    #[arg(long, hide = true)]
    daemon: bool,
}

impl Mount {
    /// `verbose` is the verbosity of the daemon's log.
    pub(crate) fn run(self, verbose: u8) -> Outcome {
        let options = parse(&self.options, self.sloppy)?;
        if self.fake {
            return Ok(0);
        }
        if options.remount {
            self.remount(options.engine.read_only)?;
            return Ok(0);
        }
        self.check_order()?;
        let address = options.with_key(&self.pool)?;
        if options.nofail
            && !self.daemon
            && let Some(why) = missing(&address)
        {
            complain(format_args!(
                "ferrite: {}: {why}, so it is not mounted (nofail)",
                self.pool
            ));
            return Ok(0);
        }
        if self.foreground || self.daemon {
            daemon::serve(
                &self.pool,
                &address,
                &self.dir,
                self.log.as_deref(),
                self.daemon,
                options,
            )
        } else {
            self.start_daemon(verbose)
        }
    }

    /// The two arguments are easily swapped.
    fn check_order(&self) -> Result<(), Failure> {
        let dir = self.dir.display();
        let is_address = Address::parse(&self.dir).is_ok_and(|dir| dir.is_remote() || dir.meant_server().is_some());
        let is_swapped = !self.pool.is_remote() && self.pool.path().is_dir() && (is_address || self.dir.is_file());
        match is_swapped {
            true => Err(Failure::new(
                USAGE,
                format!(
                    "{dir}: not a directory, and {pool} is one; the pool comes first: ferrite mount {dir} {pool}",
                    pool = self.pool.path().display()
                ),
            )),
            false => Ok(()),
        }
    }

    fn remount(&self, read_only: bool) -> Result<(), Failure> {
        let mount = mounts::on(&self.dir).ok_or_else(|| not_mounted(&self.dir))?;
        if !is_same(&place(&self.pool)?, &mount.pool) {
            return Err(Failure::new(
                FAILED,
                format!(
                    "{}: {} is mounted there, not {}",
                    self.dir.display(),
                    mount.pool.display(),
                    self.pool.path().display()
                ),
            ));
        }
        if !read_only && Target::new(&Address::of_pool(&self.dir)).ask(&Request::IsReadOnly)? == Some(true) {
            return Err(Failure::new(
                FAILED,
                format!(
                    "{}: the pool stays read-only until it is unmounted, because it was mounted with `ro`, is \
                    damaged or has failed (see `ferrite info`); unmount it and mount it again without `ro`",
                    self.dir.display()
                ),
            ));
        }
        Ok(ferrite_fuse::remount(&self.dir, read_only)?)
    }

    fn start_daemon(self, verbose: u8) -> Outcome {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("mount")
            .arg(with_scheme(&self.pool, &place(&self.pool)?))
            .arg(absolute(&self.dir)?)
            .arg("--daemon");
        if !self.options.is_empty() {
            command.arg("-o").arg(self.options.join(","));
        }
        if self.sloppy {
            command.arg("-s");
        }
        if let Some(log) = &self.log {
            command.arg("--log").arg(absolute(log)?);
        }
        command.args((0..verbose).map(|_| "-v"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut daemon = command.spawn()?;
        let mut line = String::new();
        if let Some(stdout) = daemon.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim() == "ready" {
            return Ok(0);
        }
        let status = daemon.wait()?;
        // It has printed the reason on the shared standard error.
        let code = status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .filter(|&code| code != 0);
        match code {
            Some(code) => Ok(code),
            None => Err(Failure::new(
                FAILED,
                format!("the daemon ended before the mount was ready ({status})"),
            )),
        }
    }
}

/// An address in the form that another process needs.
fn with_scheme(address: &Address, place: &Path) -> OsString {
    let mut text = OsString::new();
    // The address of a server is whole as it is; anything without a scheme is a pool.
    if !address.is_remote() && address.scheme() != Address::of_pool("").scheme() {
        text.push(address.scheme());
        text.push(":");
    }
    text.push(place);
    text
}

/// Why the pool is missing, if so. Blocks for a while if it is on a server.
fn missing(address: &Address) -> Option<String> {
    let path = address.path();
    if !address.is_remote() {
        let found = std::fs::metadata(path);
        let is_missing = found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        return is_missing.then(|| "does not exist".to_owned());
    }
    let servers = RemoteAddress::parse(&path.to_string_lossy()).ok()?.servers;
    let within = REACHED_WITHIN / servers.iter().len() as u32;
    let mut reasons = Vec::new();
    for server in servers.iter() {
        match unreachable(server, within) {
            None => return None,
            Some(why) => reasons.push(why),
        }
    }
    Some(match &reasons[..] {
        [why] => format!("the server cannot be reached ({why})"),
        reasons => format!("none of the servers can be reached ({})", reasons.join("; ")),
    })
}

/// Why a server cannot be reached, if so. Blocks up to `within` for each address of its name.
fn unreachable(server: &str, within: Duration) -> Option<String> {
    let addresses = match server.to_socket_addrs() {
        Err(error) => return Some(error.to_string()),
        Ok(addresses) => addresses,
    };
    let mut why = "its host has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, within) {
            Ok(_) => return None,
            Err(error) => why = error.to_string(),
        }
    }
    Some(why)
}

/// Whether two names mean one pool: they are equal, or lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    one == other || matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
}

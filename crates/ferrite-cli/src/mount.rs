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

use ferrite::AtimePolicy;
use ferrite::volume::Address;
use ferrite_net::volume::RemoteAddress;

use super::control::Request;
use super::mount_options::parse;
use super::target::{Target, absolute, address, not_mounted, place};
use super::{FAILED, Failure, Outcome, complain, daemon, mounts};

/// How long `nofail` waits for a server.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// Mount a pool on a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Options for -o:
  ro                   refuse changes; a crashed pool is recovered in memory, nothing is written
  remount,ro           refuse changes on an existing mount; remount,rw: allow them again
  noatime, strictatime never, or always, update access times [default: as relatime]; reads from
                       the kernel's cache never do
  nodiratime           do not update access times of directories
  allow_other          allow access by other users [default for root]
  nosuid, nodev        ignore setuid bits and device files [default unless root]
  noexec               do not execute programs
  durability=fsync     on a disk file: operations stay atomic and in order, and are durable after
                       an fsync of any file or directory, an unmount, or five seconds; a power loss
                       leaves a state of the whole file system from before it [default:
                       durability=strict, at once]
  durability=process   on a disk file: faster still, but survives only killed processes, not power
                       losses
  accept_power_loss    mount although the machine went down in that mode
  clean_low=N          fold page logs when less than N % of the space is free [default: 5]
  clean_high=N         until N % is free [default: 10]
  fold_reads=N         a read that walks N entries of a page's log folds it; 0: never [default: 4]
  cleaner=off          fold page logs only on writes and reads, and when space runs out
  logs=off             copy a page for every unaligned write instead of logging it
  locks=engine         the engine keeps locks, not the kernel: they hold against other users of the
                       engine, too; each lock and each close costs a request
  direct_io            the kernel keeps no data of files: long reads and writes take half the time,
                       and no memory for copies; repeated short reads take longer
  scrub=MIB            verify all checksums once a day, reading MIB MiB a second; findings go to
                       the log and to `ferrite info`
  log=FILE             as --log
  rings=on|off|auto    answer requests on the CPU where they are asked, over io_uring; auto: if the
                       kernel offers it, see `ferrite doctor`, and the pool is in memory [default:
                       auto, or what the environment's FERRITE_RINGS says]
  threads=N            serve requests with N threads [default: one per CPU]; with rings: those that
                       wait for a device or a server [default: 8, or one per CPU]
  trace=FILE           record which parts of which files are written (no names, no content);
                       replaces an existing trace
  nofail               a missing pool is not an error, nor is a server that cannot be reached
  key=FILE             of a server's export: its key, as in tcp://HOST:PORT/NAME?key=FILE
  encrypt=on|off|auto  encrypt what travels; auto: unless the server is on this host [default:
                       auto]. If the server insists, it is encrypted in any case
  cache=leased|off     of a server's export: keep attributes, names and data until the server takes
                       them back, which it does before it lets others change anything [default: off]

Also accepted, as /etc/fstab may have them: defaults, _netdev, noauto, user, owner, group, sync, dirsync, lazytime, \
discard, user_xattr, x-*

In /etc/fstab:
  /var/lib/data.pool      /data    ferrite  noatime  0 0
  tcp://server:7447/data  /shared  ferrite  _netdev,nofail,key=/etc/ferrite/data.key  0 0")]
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
        if options.engine.atime == AtimePolicy::Strict && !self.daemon {
            complain(
                "ferrite: strictatime: reads that the kernel serves from its cache do not update access times, as on \
                any FUSE mount",
            );
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
        // It has printed the reason on the standard error that we share.
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

/// An address as another process must be given it.
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

/// Why the pool is not there, if so. Blocks for a while if it is on a server.
fn missing(address: &Address) -> Option<String> {
    let path = address.path();
    if !address.is_remote() {
        let found = std::fs::metadata(path);
        let is_missing = found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        return is_missing.then(|| "does not exist".to_owned());
    }
    let host = RemoteAddress::parse(&path.to_string_lossy()).ok()?.host;
    let mut why = "its host has no address".to_owned();
    match host.to_socket_addrs() {
        Err(error) => why = error.to_string(),
        Ok(addresses) => {
            for address in addresses {
                match TcpStream::connect_timeout(&address, REACHED_WITHIN) {
                    Ok(_) => return None,
                    Err(error) => why = error.to_string(),
                }
            }
        }
    }
    Some(format!("the server cannot be reached ({why})"))
}

/// Whether two names are of one pool: they are equal, or lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    one == other || matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
}

//! `ferrite umount`: unmount, and wait until the daemon has closed the pool.
//!
//! Invariant: nothing here waits without a limit, nor long without naming the reason. The kernel may block in the
//! unmount for a server that is away, and then not even a signal ends the program that asked for it; so a separate
//! program asks.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ferrite::volume::Address;
use ferrite_pm::{Access, PmError, Region};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;

use super::mounts::MountPoint;
use super::target::address;
use super::{FAILED, Failure, Outcome, complain, control, mounts};

/// Time after which the command tells the user the reason of the wait.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// Time between two polls during a wait.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Unmount a directory and end its daemon
#[derive(Debug, clap::Args)]
pub(crate) struct Umount {
    /// Directory where a pool is mounted, or the pool
    #[arg(value_parser = address(), value_hint = clap::ValueHint::AnyPath)]
    dir: Address,
    /// Detach the directory now, and unmount when it is no longer in use
    #[arg(short, long)]
    lazy: bool,
    /// Disconnect programs that use the mount after three seconds, and abandon calls to an unreachable server
    #[arg(short, long, conflicts_with = "lazy")]
    force: bool,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// A wait with a limit, which is reported to the user.
struct Wait<'m> {
    mount: &'m MountPoint,
    start: Instant,
    limit: Duration,
    was_told: Cell<bool>,
    is_forced: bool,
}

impl Wait<'_> {
    /// The reason of the wait.
    fn what(&self) -> String {
        match Address::parse(&self.mount.pool) {
            Ok(address) if address.is_remote() => format!(
                "the server {} to take what is written out to it, and the daemon to end",
                self.mount.pool.display()
            ),
            _ => "the daemon to close the pool".to_owned(),
        }
    }

    /// Waits a moment; an error when the limit is reached.
    fn go_on(&self) -> Result<(), Failure> {
        let dir = self.mount.dir.display();
        let mend = match self.is_forced {
            true => "see the log of the daemon",
            false => "`ferrite umount --force` cuts off what uses the mount, and gives up what waits for a server",
        };
        if self.start.elapsed() >= self.limit {
            let seconds = self.limit.as_secs();
            return Err(Failure::new(
                FAILED,
                format!("{dir}: waited {seconds} s for {}; {mend}", self.what()),
            ));
        }
        if self.start.elapsed() >= TELL_AFTER && !self.was_told.replace(true) {
            complain(format_args!(
                "ferrite: {dir}: waiting for {}, {} s at most; {mend}",
                self.what(),
                self.limit.as_secs()
            ));
        }
        std::thread::sleep(POLL_EVERY);
        Ok(())
    }

    /// Runs a program to its end; whether it succeeded.
    fn run(&self, command: &mut Command) -> Result<bool, Failure> {
        let mut child = command.spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            self.go_on().inspect_err(|_| {
                // It may be in the kernel, and then ends when the kernel call does.
                let _ = child.kill();
            })?;
        }
    }

    /// Waits until a process has ended.
    fn end_of(&self, process: &OwnedFd) -> Result<(), Failure> {
        while !has_ended(process)? {
            self.go_on()?;
        }
        Ok(())
    }
}

impl Umount {
    pub(crate) fn run(self) -> Outcome {
        let mount = mounts::find(self.dir.path()).ok_or_else(|| {
            Failure::new(
                FAILED,
                format!("{}: no pool is mounted there", self.dir.path().display()),
            )
        })?;
        let wait = Wait {
            mount: &mount,
            start: Instant::now(),
            limit: Duration::from_secs(self.timeout),
            was_told: Cell::new(false),
            is_forced: self.force,
        };
        let daemon = control::daemon_of(&mount);
        let must_close = daemon.is_some() && !mount.is_read_only;
        match self.force {
            true => force(&mount, daemon.as_ref(), &wait)?,
            false => unmount(&mount, self.lazy, &wait)?,
        }
        if self.lazy {
            return Ok(0);
        }
        has_let_go(daemon, &mount.pool, &wait)?;
        if must_close && Address::of_pool(&mount.pool).is_left_open() {
            return Err(Failure::new(
                FAILED,
                format!(
                    "{}: unmounted, but its daemon could not close the pool: what was not durable yet may be lost; the \
                     log of the daemon says why, and the next mount replays what is there",
                    mount.dir.display()
                ),
            ));
        }
        Ok(0)
    }
}

fn unmount(mount: &MountPoint, is_lazy: bool, wait: &Wait<'_>) -> Result<(), Failure> {
    let (program, words, lazy) = match rustix::process::geteuid().is_root() {
        true => ("umount", &[][..], "-l"),
        false => ("fusermount3", &["-u"][..], "-z"),
    };
    let mut command = Command::new(program);
    command.args(words);
    if is_lazy {
        command.arg(lazy);
    }
    match wait.run(command.arg("--").arg(&mount.dir))? {
        true => Ok(()),
        false => Err(Failure::new(
            FAILED,
            format!("{}: could not be unmounted", mount.dir.display()),
        )),
    }
}

/// Makes the daemon end, as SIGTERM does, and then checks that the mount is gone.
fn force(mount: &MountPoint, daemon: Option<&OwnedFd>, wait: &Wait<'_>) -> Result<(), Failure> {
    if let Some(daemon) = daemon {
        match rustix::process::pidfd_send_signal(daemon, Signal::TERM) {
            // It has just ended.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => {
                let text = format!("{}: its daemon cannot be told to end: {error}", mount.dir.display());
                return Err(Failure::new(FAILED, text));
            }
        }
        wait.end_of(daemon)?;
    }
    let is_there = || mounts::with_path(&mount.dir).is_some_and(|there| there.device == mount.device);
    if !is_there() {
        return Ok(());
    }
    // It has no daemon any more.
    match rustix::process::geteuid().is_root() {
        true => match rustix::mount::unmount(&mount.dir, UnmountFlags::FORCE | UnmountFlags::DETACH) {
            Err(error) if is_there() => Err(Failure::new(FAILED, format!("{}: {error}", mount.dir.display()))),
            _ => Ok(()),
        },
        false => unmount(mount, true, wait),
    }
}

fn has_ended(process: &OwnedFd) -> rustix::io::Result<bool> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let process = process.as_fd();
    let ended = &mut [PollFd::new(&process, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| poll(ended, Some(&now)))? > 0)
}

/// Waits until the daemon, which marks the pool clean after the unmount, has closed the pool. It waits for the end of
/// the process, because a reader cannot see the lock of a daemon that only reads. If the daemon's process could not be
/// found, it checks the lock.
fn has_let_go(daemon: Option<OwnedFd>, pool: &Path, wait: &Wait<'_>) -> Result<(), Failure> {
    if let Some(daemon) = daemon {
        wait.end_of(&daemon)?;
    }
    while let Err(PmError::InUse { .. }) = Region::open(pool, Access::ReadOnlyPrivate) {
        wait.go_on()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    fn mount(pool: &str) -> MountPoint {
        MountPoint {
            pool: pool.into(),
            dir: "/mnt".into(),
            device: "0:1".into(),
            user: 0,
            is_read_only: false,
        }
    }

    fn wait(mount: &MountPoint, limit: Duration) -> Wait<'_> {
        Wait {
            mount,
            start: Instant::now(),
            limit,
            was_told: Cell::new(false),
            is_forced: false,
        }
    }

    #[test]
    fn the_end_of_a_daemon_is_waited_for_even_if_it_keeps_no_reader_out() {
        let mut daemon = Command::new("sleep").arg("0.5").spawn().unwrap();
        let handle = pidfd_open(Pid::from_child(&daemon), PidfdFlags::empty()).unwrap();
        let mount = mount("/no/such/pool");
        let long = wait(&mount, Duration::from_secs(30));
        // A pool that does not exist is not locked.
        assert!(has_let_go(Some(handle), &mount.pool, &long).is_ok());
        assert!(daemon.try_wait().unwrap().is_some(), "it runs still");
        assert!(has_let_go(None, &mount.pool, &long).is_ok());
    }

    #[test]
    fn a_wait_ends_with_a_message_that_names_its_cause() {
        let mount = mount("tcp://host:1/data");
        let short = wait(&mount, Duration::from_millis(20));
        let failure = short.run(Command::new("sleep").arg("1000")).unwrap_err();
        for part in ["/mnt", "tcp://host:1/data", "--force"] {
            assert!(failure.message.contains(part), "{}", failure.message);
        }
        let long = wait(&mount, Duration::from_secs(30));
        assert!(long.run(&mut Command::new("true")).unwrap() && !long.run(&mut Command::new("false")).unwrap());
    }
}

//! `ferrite umount`: unmount, and wait until the daemon has closed the pool.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ferrite::volume::Address;
use ferrite_pm::{Access, PmError, Region};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::opening::DAEMON_ENDS_WITHIN;
use super::target::address;
use super::{FAILED, Failure, Outcome, control, mounts};

/// Unmount a directory and end its daemon
#[derive(Debug, clap::Args)]
pub(crate) struct Umount {
    /// Directory where a pool is mounted, or the pool
    #[arg(value_parser = address(), value_hint = clap::ValueHint::AnyPath)]
    dir: Address,
    /// Detach the directory now, and unmount when it is no longer in use
    #[arg(short, long)]
    lazy: bool,
}

impl Umount {
    pub(crate) fn run(self) -> Outcome {
        let mount = mounts::find(self.dir.path()).ok_or_else(|| {
            Failure::new(
                FAILED,
                format!("{}: no pool is mounted there", self.dir.path().display()),
            )
        })?;
        let daemon = control::daemon_of(&mount);
        let must_close = daemon.is_some() && !mount.is_read_only;
        let mut command = if rustix::process::geteuid().is_root() {
            Command::new("umount")
        } else {
            let mut command = Command::new("fusermount3");
            command.arg("-u");
            command
        };
        if self.lazy {
            command.arg(if rustix::process::geteuid().is_root() {
                "-l"
            } else {
                "-z"
            });
        }
        let status = command.arg(&mount.dir).status()?;
        if !status.success() {
            return Err(Failure::new(
                FAILED,
                format!("{}: could not be unmounted", mount.dir.display()),
            ));
        }
        if self.lazy {
            return Ok(0);
        }
        if !has_let_go(daemon, &mount.pool)? {
            return Err(Failure::new(
                FAILED,
                format!("{}: unmounted, but its daemon is still running", mount.dir.display()),
            ));
        }
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

/// Waits until the daemon, which marks the pool clean after the unmount, has closed the pool; false if that takes too
/// long. It waits for the end of the process, because a reader cannot see the lock of a daemon that only reads. For a
/// daemon whose process could not be found, it checks the lock.
fn has_let_go(daemon: Option<OwnedFd>, pool: &Path) -> rustix::io::Result<bool> {
    if let Some(daemon) = daemon {
        let patience = Timespec {
            tv_sec: DAEMON_ENDS_WITHIN.as_secs() as i64,
            tv_nsec: 0,
        };
        let ended = &mut [PollFd::new(&daemon, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(ended, Some(&patience)))? == 0 {
            return Ok(false);
        }
    }
    let start = Instant::now();
    while start.elapsed() < DAEMON_ENDS_WITHIN {
        match Region::open(pool, Access::ReadOnlyPrivate) {
            Err(PmError::InUse { .. }) => std::thread::sleep(Duration::from_millis(5)),
            _ => return Ok(true),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn the_end_of_a_daemon_is_waited_for_even_if_it_keeps_no_reader_out() {
        let mut daemon = Command::new("sleep").arg("0.5").spawn().unwrap();
        let handle = pidfd_open(Pid::from_child(&daemon), PidfdFlags::empty()).unwrap();
        // A pool that does not exist is not locked.
        assert_eq!(has_let_go(Some(handle), Path::new("/no/such/pool")), Ok(true));
        assert!(daemon.try_wait().unwrap().is_some(), "it runs still");
        assert_eq!(has_let_go(None, Path::new("/no/such/pool")), Ok(true));
    }
}

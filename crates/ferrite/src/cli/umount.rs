//! `ferrite umount`: unmount, and wait until the daemon has let go of the pool.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ferrite_pm::{Access, Region};

use super::{FAILED, Failure, Outcome, mounts};

const DAEMON_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Unmount a directory and end its daemon
#[derive(Debug, clap::Args)]
pub(crate) struct Umount {
    /// Directory where a pool is mounted, or the pool
    dir: PathBuf,
    /// Let go of the name now, of the file system when nobody uses it any more
    #[arg(short, long)]
    lazy: bool,
}

impl Umount {
    pub(crate) fn run(self) -> Outcome {
        let mount = mounts::find(&self.dir)
            .ok_or_else(|| Failure::new(FAILED, format!("{}: no pool is mounted there", self.dir.display())))?;
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
        // The daemon marks the pool clean after the kernel let go; the pool's lock shows when it is done.
        let start = Instant::now();
        while start.elapsed() < DAEMON_ENDS_WITHIN {
            match Region::open(&mount.pool, Access::ReadOnlyPrivate) {
                Err(ferrite_pm::PmError::InUse { .. }) => std::thread::sleep(Duration::from_millis(5)),
                _ => return Ok(0),
            }
        }
        Err(Failure::new(
            FAILED,
            format!("{}: unmounted, but its daemon has not ended", mount.dir.display()),
        ))
    }
}

//! Opening a pool that a daemon may be about to close.
//!
//! A mount is gone from the kernel's list as soon as it is unmounted, but its daemon holds the pool for some moments
//! longer to mark it clean. A command that comes right after `umount` waits for that, instead of failing because the
//! pool is in use.

use std::path::Path;
use std::time::{Duration, Instant};

use ferrite_pm::{Access, PmError, Region};

use super::{FAILED, Failure, control, mounts};

/// How long to wait for a daemon without a mount.
pub(crate) const DAEMON_ENDS_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How many times in a row an owner must look like one that stays: a process that is being torn down looks like
/// anything for a moment.
const LOOKS: usize = 3;

/// Opens a pool, as [`Region::open`]; says where it is mounted if it is in use.
pub(crate) fn open(pool: &Path, access: Access) -> Result<Region, Failure> {
    let start = Instant::now();
    let mut times_owned = 0;
    loop {
        let error = match Region::open(pool, access) {
            Ok(region) => return Ok(region),
            Err(error) => error,
        };
        let PmError::InUse { by, process, .. } = &error else {
            return Err(error.into());
        };
        if let Some(mount) = mounts::find(pool) {
            let (pool, dir) = (pool.display(), mount.dir.display());
            let text = format!("{pool}: in use by {by}, mounted on {dir}; unmount it there first");
            return Err(Failure::new(FAILED, text));
        }
        times_owned = match process.is_some_and(is_ending_daemon) {
            true => 0,
            false => times_owned + 1,
        };
        if times_owned == LOOKS || start.elapsed() > DAEMON_ENDS_WITHIN {
            return Err(error.into());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether a process will release its pool soon: a mount's daemon without a mount. Either it was unmounted, or it is
/// not mounted yet, which the next look shows.
fn is_ending_daemon(process: u32) -> bool {
    let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    if words.is_empty() {
        // It is gone, or has released its memory, which comes before its locks.
        return true;
    }
    let mut words = words.split(|&byte| byte == 0);
    let program = words.next().and_then(|path| path.rsplit(|&byte| byte == b'/').next());
    program == Some(b"ferrite")
        && words.next() == Some(b"mount")
        // By any name that the pool has now; and it may be mounted where only the daemon sees it.
        && !mounts::seen_by(process).iter().any(|mount| control::process_of(mount) == Some(process))
}

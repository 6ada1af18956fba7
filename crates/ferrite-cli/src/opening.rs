//! Opening a pool that a daemon may be about to let go of.
//!
//! A mount is gone from the kernel's list as soon as it is unmounted, but its daemon, which was not asked, has the pool
//! for some moments more: it marks it clean. Whoever comes right behind `umount` waits for that, instead of being told
//! that the pool is in use.

use std::path::Path;
use std::time::{Duration, Instant};

use ferrite_pm::{Access, PmError, Region};

use super::{FAILED, Failure, control, mounts};

/// How long a daemon without a mount is waited for.
pub(crate) const DAEMON_ENDS_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often in a row an owner must look like one that stays: a process that is taken apart looks like anything for a
/// moment.
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

/// Whether a process lets go of its pool soon: a mount's daemon that has no mount, since it was unmounted or is not
/// there yet, which shows the next time.
fn is_ending_daemon(process: u32) -> bool {
    let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    if words.is_empty() {
        // It is gone, or has given up its memory, which comes before its locks.
        return true;
    }
    let mut words = words.split(|&byte| byte == 0);
    let program = words.next().and_then(|path| path.rsplit(|&byte| byte == b'/').next());
    program == Some(b"ferrite")
        && words.next() == Some(b"mount")
        // Whatever the pool is called now; and it may be mounted where only the daemon sees it.
        && !mounts::seen_by(process).iter().any(|mount| control::process_of(mount) == Some(process))
}

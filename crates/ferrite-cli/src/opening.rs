//! Opening a pool that a daemon may be about to close.
//!
//! The kernel's list drops a mount as soon as it is unmounted, but its daemon holds the pool for some moments longer to
//! mark it clean. A command right after `umount` waits for that, instead of failing because the pool is in use.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite::MountOptions;
use ferrite::volume::{Address, Volume, VolumeError, VolumeErrorKind};
use ferrite_pm::{Access, PmError, Region};

use super::{FAILED, Failure, about, control, mounts};

/// How long to wait for a daemon without a mount.
pub(crate) const DAEMON_ENDS_WITHIN: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(5);
/// How many times in a row an owner must look permanent: a process during its teardown may look like anything for a
/// moment.
const POLLS: usize = 3;

/// Why something cannot be opened.
struct Refusal {
    failure: Failure,
    /// The user that has it open, if that is the reason, with its process id if visible.
    in_use: Option<(String, Option<u32>)>,
}

impl From<PmError> for Refusal {
    fn from(error: PmError) -> Self {
        let in_use = match &error {
            PmError::InUse { by, process, .. } => Some((by.clone(), *process)),
            _ => None,
        };
        let failure = error.into();
        Refusal { failure, in_use }
    }
}

/// Opens a pool's medium, as [`Region::open`]; says where it is mounted if it is in use.
pub(crate) fn open(pool: &Path, access: Access) -> Result<Region, Failure> {
    retry_while_in_use(pool, || Ok(Region::open(pool, access)?))
}

/// Opens a volume, as [`Address::open`]; says where it is mounted if it is in use.
pub(crate) fn volume(address: &Address, options: &MountOptions) -> Result<Arc<dyn Volume>, Failure> {
    let refusal = |error: VolumeError| {
        let in_use = match error.kind() {
            VolumeErrorKind::InUse { by, process } => Some((by.clone(), *process)),
            _ => None,
        };
        let failure = match error.names_volume() {
            true => error.into(),
            false => about(address.path())(error),
        };
        Refusal { failure, in_use }
    };
    retry_while_in_use(address.path(), || address.open(options).map_err(refusal))
}

fn retry_while_in_use<T>(pool: &Path, mut open: impl FnMut() -> Result<T, Refusal>) -> Result<T, Failure> {
    let start = Instant::now();
    let mut times_owned = 0;
    loop {
        let Refusal { failure, in_use } = match open() {
            Ok(opened) => return Ok(opened),
            Err(refusal) => refusal,
        };
        let Some((by, process)) = in_use else {
            return Err(failure);
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
        if times_owned == POLLS || start.elapsed() > DAEMON_ENDS_WITHIN {
            return Err(failure);
        }
        std::thread::sleep(POLL_EVERY);
    }
}

/// Whether a process will release its pool soon: a mount's daemon without a mount. Either its mount is gone, or it is
/// not mounted yet, which the next poll shows.
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

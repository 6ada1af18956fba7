//! Memory of the daemon that the allocator would keep.
//!
//! Contents: a thread that returns it to the system after the kernel forgot many inodes. The allocator does not do so
//! on its own, because free memory lies between memory in use.

use std::sync::Arc;
use std::time::Duration;

use ferrite::volume::Volume;

use super::{FAILED, Failure};

/// Dropped inodes that justify a trim, a few MiB.
const DROPPED_MIN: u64 = 16_384;
/// The same once the kernel forgets no more: otherwise the rest since the last check would stay for good.
const DROPPED_REST_MIN: u64 = 1024;
const POLL_EVERY: Duration = Duration::from_secs(5);

/// Returns memory from time to time, until the process ends.
pub(crate) fn give_back(volume: Arc<dyn Volume>) -> Result<(), Failure> {
    let work = move || {
        let (mut returned, mut last) = (0, 0);
        loop {
            std::thread::sleep(POLL_EVERY);
            let dropped = volume.inodes_dropped();
            let least = match dropped == last {
                true => DROPPED_REST_MIN,
                false => DROPPED_MIN,
            };
            if dropped - returned >= least {
                returned = dropped;
                trim();
            }
            last = dropped;
        }
    };
    std::thread::Builder::new()
        .name("memory".into())
        .spawn(work)
        .map(drop)
        .map_err(|error| Failure::new(FAILED, format!("the thread that returns memory did not start: {error}")))
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: it takes the allocator's own locks, and gives back only pages on which nothing is allocated.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators work differently.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

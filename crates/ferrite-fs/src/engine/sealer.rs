//! The thread that seals files that a crash left bound.
//!
//! It starts with the mount, if there are any, waits until little else goes on, and ends when all are ordinary files
//! again or have got an adapter. It takes one file's lock at a time, for as long as reading the file takes.

use std::sync::Arc;
use std::time::Duration;

use ferrite_vfs::{FsError, SYSTEM};

use crate::background::{Background, Stop};
use crate::file::bind;
use crate::pool::core::Core;

/// Interval between checks: also how long after a start adapters have time to come back.
const TICK: Duration = Duration::from_millis(500);
/// Up to this many fences by others in a tick still count as idle.
const IDLE_FENCES: u64 = 8;

/// Starts the thread. It ends after the file in progress.
pub(super) fn start(core: Arc<Core>) -> std::io::Result<Background> {
    Background::start("ferrite-sealer", move |stop| run(&core, stop))
}

fn run(core: &Core, stop: &Stop) {
    let mut fences = core.region.counters().fences;
    loop {
        if stop.wait(TICK) {
            return;
        }
        let now = core.region.counters().fences;
        let is_idle = now - fences <= IDLE_FENCES;
        let left = core.bindings.left();
        if left.is_empty() && core.bindings.is_empty() {
            return;
        }
        if is_idle && !core.journal.is_frozen() {
            for ino in left {
                if stop.is_set() {
                    return;
                }
                match core.told(bind::seal(core, SYSTEM, &core.inodes.get(ino))) {
                    // It has an adapter again.
                    Ok(()) | Err(FsError::Busy) => {}
                    Err(error) => {
                        tracing::warn!(ino = ino.get(), %error, "a file stays bound until the next mount");
                        core.bindings.forget(ino);
                    }
                }
            }
        }
        fences = core.region.counters().fences;
    }
}

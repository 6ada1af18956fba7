//! The thread that folds logs when space is short or the pool is idle (HDPM §2.4, docs/design.md, "Data pages").
//!
//! It finds pages in the lists that writers keep in DRAM, never by a scan. While free space is above the watermarks
//! and operations are running, it does nothing. It takes no lock that a reader waits for; see [`super::fold`] for the
//! locks it takes.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::fold;
use crate::cache::logged::Cause;
use crate::pool::core::Core;

/// Interval between checks.
const TICK: Duration = Duration::from_millis(20);
/// The same while no page has a log.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// Up to this many fences by others in a tick still count as idle.
const IDLE_FENCES: u64 = 8;
/// Candidates sorted by length at a time.
const BATCH: usize = 8192;

/// Stops the thread when the pool is unmounted or the last handle dropped.
#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// The running cleaner; dropping it stops and joins the thread.
pub(crate) struct Cleaner {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Cleaner {
    /// Starts the thread.
    pub(crate) fn start(core: Arc<Core>) -> std::io::Result<Cleaner> {
        let stop = Arc::<Stop>::default();
        let shared = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("ferrite-cleaner".into())
            .spawn(move || run(&core, &shared))?;
        Ok(Cleaner {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the thread; waits for the fold in progress.
    pub(crate) fn stop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether less than this share of the blocks is free.
fn is_low(core: &Core, percent: u8) -> bool {
    let free = core.alloc.free() + core.journal.pending().blocks;
    free * 100 < core.superblock.blocks * u64::from(percent)
}

fn run(core: &Core, stop: &Stop) {
    let mut fences = 0;
    loop {
        let tick = if core.candidates.len() == 0 { IDLE_TICK } else { TICK };
        {
            let mut stopped = stop.stopped.lock();
            if !*stopped {
                stop.changed.wait_for(&mut stopped, tick);
            }
            if *stopped {
                return;
            }
        }
        if core.journal.is_frozen() {
            continue;
        }
        let now = core.region.counters().fences;
        let idle = now - fences <= IDLE_FENCES;
        let folded = match (is_low(core, core.options.clean_low_percent), idle) {
            (true, _) => {
                let mut enough = || *stop.stopped.lock() || !is_low(core, core.options.clean_high_percent.max(1));
                fold::fold_some(core, BATCH, Cause::LowSpace, &mut enough)
            }
            (false, true) => {
                // Our own folds fence once each, and reclaiming fences a few times.
                let mut own = core.region.counters().fences;
                let mut enough = || {
                    let now = core.region.counters().fences;
                    let others = now.saturating_sub(own).saturating_sub(2 * 32);
                    own = now;
                    *stop.stopped.lock() || others > IDLE_FENCES
                };
                fold::fold_some(core, BATCH, Cause::Idle, &mut enough)
            }
            (false, false) => Ok(0),
        };
        match folded {
            Ok(0) => {}
            Ok(_) => {
                // If the medium fails here, the next operation fails as well and reports it.
                let _ = core.reclaim();
                if core.candidates.len() == 0 {
                    core.log_space.empty_purses(&core.alloc);
                }
            }
            Err(error) => tracing::debug!(%error, "a fold failed"),
        }
        fences = core.region.counters().fences;
    }
}

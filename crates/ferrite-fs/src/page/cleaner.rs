//! The thread that merges logs when space is short or the pool is idle (HDPM §2.4, docs/design.md, "Data pages").
//!
//! It finds pages in the lists that writers keep in DRAM, never by a scan. While free space is above the watermarks
//! and operations are running, it does nothing. It takes no lock that a reader waits for; see [`super::merge`] for the
//! locks it takes.

use std::sync::Arc;
use std::time::Duration;

use super::merge;
use crate::background::{Background, Stop};
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

/// Starts the thread. It ends after the merge in progress.
pub(crate) fn start(core: Arc<Core>) -> std::io::Result<Background> {
    Background::start("ferrite-cleaner", move |stop| run(&core, stop))
}

/// Whether less than this share of the blocks is free.
fn is_low(core: &Core, percent: u8) -> bool {
    let free = core.alloc.free() + core.pending().blocks;
    free * 100 < core.superblock.blocks * u64::from(percent)
}

fn run(core: &Core, stop: &Stop) {
    let mut fences = 0;
    loop {
        let tick = if core.candidates.len() == 0 { IDLE_TICK } else { TICK };
        if stop.wait(tick) {
            return;
        }
        if core.journal.is_frozen() {
            continue;
        }
        let now = core.region.counters().fences;
        let idle = now - fences <= IDLE_FENCES;
        let merged = match (is_low(core, core.options.clean_low_percent), idle) {
            (true, _) => {
                let mut enough = || stop.is_set() || !is_low(core, core.options.clean_high_percent.max(1));
                merge::merge_some(core, BATCH, Cause::LowSpace, &mut enough)
            }
            (false, true) => {
                // Our own merges fence once each, and reclaiming fences a few times.
                let mut own = core.region.counters().fences;
                let mut enough = || {
                    let now = core.region.counters().fences;
                    let others = now.saturating_sub(own).saturating_sub(2 * 32);
                    own = now;
                    stop.is_set() || others > IDLE_FENCES
                };
                merge::merge_some(core, BATCH, Cause::Idle, &mut enough)
            }
            (false, false) => Ok(0),
        };
        match merged {
            Ok(0) => {}
            Ok(_) => {
                // If the medium fails here, the next operation fails as well and reports it.
                let _ = core.reclaim();
                if core.candidates.len() == 0 {
                    core.log_space.empty_purses(&core.alloc);
                }
            }
            Err(error) => tracing::debug!(%error, "a merge failed"),
        }
        fences = core.region.counters().fences;
    }
}

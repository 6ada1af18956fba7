//! Damage met and scrubs completed since the mount: for `ferrite info` and the log.
//!
//! Contents: [`RuntimeErrors`], one for each mounted pool. Damage that a mount finds is in [`super::quarantine`];
//! operations and scrubs note here the damage that they meet later. Noting takes a lock, so it is for errors only.
//!
//! Invariants:
//! * However often a program reads damaged data, neither memory nor the log fills up: a repeated finding is only
//!   counted, and logged again the second, fourth, eighth time and so on.
//! * Nothing here is on the medium; a mount begins with nothing.

use std::collections::VecDeque;

use ferrite_checks::ranked::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::lock_order;
use crate::options::{LastScrub, RuntimeFinding, ScrubReport};

/// Different findings kept; beyond that, the one met first is dropped.
const KEPT_MAX: usize = 100;

#[derive(Default)]
struct Kept {
    findings: VecDeque<RuntimeFinding>,
    total: u64,
    last_scrub: Option<LastScrub>,
}

/// Findings and scrubs since the mount.
#[derive(Default)]
pub(crate) struct RuntimeErrors {
    kept: Mutex<lock_order::RuntimeErrors, Kept>,
}

fn now_s() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}

impl RuntimeErrors {
    /// Notes damage that `by` met, and logs it.
    #[cold]
    pub(crate) fn find(&self, by: &str, what: &str) {
        let count = self.note(what);
        if count.is_power_of_two() {
            tracing::error!(what, count, "{by} met damage");
        }
    }

    /// Returns how often this has been met so far.
    fn note(&self, what: &str) -> u64 {
        let now_s = now_s();
        let mut kept = self.kept.lock();
        kept.total += 1;
        if let Some(finding) = kept.findings.iter_mut().find(|finding| finding.what == what) {
            finding.count += 1;
            finding.last_s = now_s;
            return finding.count;
        }
        if kept.findings.len() == KEPT_MAX {
            kept.findings.pop_front();
        }
        kept.findings.push_back(RuntimeFinding {
            what: what.into(),
            count: 1,
            first_s: now_s,
            last_s: now_s,
        });
        1
    }

    /// Notes a scrub that ran to completion.
    pub(crate) fn scrubbed(&self, report: &ScrubReport) {
        self.kept.lock().last_scrub = Some(LastScrub {
            ended_s: now_s(),
            inodes: report.inodes,
            pages: report.pages,
            bytes: report.bytes,
            findings: report.findings.len() as u64,
        });
    }

    /// The findings kept, oldest first, and how often damage was met in total.
    pub(crate) fn findings(&self) -> (Vec<RuntimeFinding>, u64) {
        let kept = self.kept.lock();
        (kept.findings.iter().cloned().collect(), kept.total)
    }

    pub(crate) fn last_scrub(&self) -> Option<LastScrub> {
        self.kept.lock().last_scrub.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_counted() {
        let runtime_errors = RuntimeErrors::default();
        for round in 0..3 {
            for n in 0..KEPT_MAX {
                assert_eq!(runtime_errors.note(&format!("block {n}")), round + 1);
            }
        }
        let (kept, total) = runtime_errors.findings();
        assert_eq!((kept.len(), total), (KEPT_MAX, 3 * KEPT_MAX as u64));
        assert_eq!((kept[0].what.as_str(), kept[0].count), ("block 0", 3));
        runtime_errors.note("one more");
        let (kept, total) = runtime_errors.findings();
        assert_eq!((kept.len(), total), (KEPT_MAX, 3 * KEPT_MAX as u64 + 1));
        assert_eq!(kept[0].what, "block 1", "the first is gone");
        assert_eq!(kept[KEPT_MAX - 1].what, "one more");
    }
}

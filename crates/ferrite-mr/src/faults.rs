//! Range faults: the pages of a file that have been requested, and the outcomes.
//!
//! Contents: a short list for each file. [`crate::memory`] defers packets and lets threads that may wait call the
//! engine.
//!
//! Invariants: each page has at most one request at a time. A failure is reported to the next packet that needs the
//! page, and forgotten soon: a later packet requests it again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferrite_roce::memory::Fault;
use ferrite_vfs::FsError;
use ferrite_vfs::regions::Access;

use crate::lock_order;
use crate::sync::{Mutex, lock};

/// Faults of one file under way.
const PENDING_MAX: usize = 64;
/// Remembered failures, and for how long.
const FAILED_MAX: usize = 64;
const FAILED_FOR: Duration = Duration::from_secs(2);
/// The first wait of a packet: about the duration of a fault. It doubles with each packet that still finds nothing.
const WAIT_NS: u64 = 20_000;
/// The longest.
const WAIT_NS_MAX: u64 = 2_000_000;

/// Pages of a file that a packet needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) access: Access,
}

impl Wanted {
    fn overlaps(&self, other: &Wanted) -> bool {
        self.first < other.end && other.first < self.end
    }

    /// Whether the pages for `other` come with it. Only the first page counts: the rest is requested in its turn.
    fn brings(&self, other: &Wanted) -> bool {
        (self.first..self.end).contains(&other.first) && (self.access == Access::Write || other.access == Access::Read)
    }
}

/// The reply to a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The receiver of this requests the pages now. The packet waits.
    Ask { wait_ns: u64 },
    /// Another thread has requested them.
    Wait { wait_ns: u64 },
    /// The request failed.
    Failed(Fault),
}

#[derive(Debug)]
struct Pending {
    wanted: Wanted,
    /// Packets that found it pending.
    asks: u32,
}

#[derive(Debug, Default)]
struct List {
    pending: Vec<Pending>,
    /// The engine was frozen at the last request.
    is_frozen: bool,
    failed: VecDeque<(Wanted, Fault, Instant)>,
}

/// The faults of a file.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    list: Mutex<lock_order::Faults, List>,
}

impl Faults {
    /// A packet needs pages that are not translated.
    pub(crate) fn want(&self, wanted: &Wanted) -> Answer {
        let mut list = lock(&self.list);
        if let Some(at) = list.failed.iter().position(|(failed, ..)| failed.brings(wanted))
            && let Some((_, fault, when)) = list.failed.remove(at)
            && when.elapsed() < FAILED_FOR
        {
            return Answer::Failed(fault);
        }
        if let Some(pending) = list.pending.iter_mut().find(|pending| pending.wanted.brings(wanted)) {
            pending.asks += 1;
            let wait_ns = (WAIT_NS << pending.asks.min(10)).min(WAIT_NS_MAX);
            return Answer::Wait { wait_ns };
        }
        if list.pending.len() >= PENDING_MAX {
            return Answer::Wait { wait_ns: WAIT_NS_MAX };
        }
        list.pending.push(Pending {
            wanted: *wanted,
            asks: 0,
        });
        Answer::Ask {
            wait_ns: if list.is_frozen { WAIT_NS_MAX } else { WAIT_NS },
        }
    }

    /// How many are under way.
    pub(crate) fn under_way(&self) -> u64 {
        lock(&self.list).pending.len() as u64
    }

    /// The engine has replied.
    pub(crate) fn done(&self, wanted: &Wanted, result: Result<(), FsError>) {
        let mut list = lock(&self.list);
        list.pending.retain(|pending| pending.wanted != *wanted);
        list.is_frozen = matches!(result, Err(FsError::Busy));
        match result {
            Ok(()) => list.failed.retain(|(failed, ..)| !failed.overlaps(wanted)),
            // This is no failure: the next packet requests it again.
            Err(FsError::Busy) => {}
            Err(error) => {
                if list.failed.len() == FAILED_MAX {
                    list.failed.pop_front();
                }
                list.failed.push_back((*wanted, fault_of(&error), Instant::now()));
            }
        }
    }
}

/// The fault that a queue pair gets for an error of the engine.
pub(crate) fn fault_of(error: &FsError) -> Fault {
    match error {
        FsError::Stale
        | FsError::AccessDenied
        | FsError::NotPermitted
        | FsError::ReadOnly
        | FsError::FileTooBig
        | FsError::Invalid(_) => Fault::Access,
        // The engine is frozen. A thread that waited would make all its queue pairs wait.
        FsError::Busy => Fault::NotReady { wait_ns: WAIT_NS_MAX },
        _ => Fault::Operational,
    }
}

#[cfg(test)]
mod tests {
    use ferrite_vfs::SpaceOf;

    use super::*;

    fn wanted(first: u32, end: u32, access: Access) -> Wanted {
        Wanted { first, end, access }
    }

    #[test]
    fn pages_are_asked_for_once_and_packets_wait_longer_each_time() {
        let faults = Faults::default();
        let all = wanted(10, 20, Access::Write);
        assert_eq!(faults.want(&all), Answer::Ask { wait_ns: WAIT_NS });
        let inner = wanted(15, 16, Access::Read);
        for times in 1..12 {
            let wait_ns = (WAIT_NS << times).min(WAIT_NS_MAX);
            assert_eq!(faults.want(&inner), Answer::Wait { wait_ns });
        }
        assert_eq!(
            faults.want(&wanted(20, 21, Access::Read)),
            Answer::Ask { wait_ns: WAIT_NS }
        );
        // Reading does not allocate pages for holes.
        assert_eq!(
            faults.want(&wanted(20, 21, Access::Write)),
            Answer::Ask { wait_ns: WAIT_NS }
        );
        faults.done(&all, Ok(()));
        assert_eq!(faults.want(&inner), Answer::Ask { wait_ns: WAIT_NS });
    }

    #[test]
    fn a_failure_is_told_once() {
        let faults = Faults::default();
        let some = wanted(1, 3, Access::Write);
        faults.want(&some);
        faults.done(&some, Err(FsError::NoSpace(SpaceOf::Blocks)));
        assert_eq!(
            faults.want(&wanted(2, 3, Access::Write)),
            Answer::Failed(Fault::Operational)
        );
        assert_eq!(faults.want(&some), Answer::Ask { wait_ns: WAIT_NS });
        faults.done(&some, Err(FsError::Stale));
        // Meanwhile it worked for another one.
        faults.want(&some);
        faults.done(&some, Err(FsError::Stale));
        faults.done(&some, Ok(()));
        assert_eq!(faults.want(&some), Answer::Ask { wait_ns: WAIT_NS });
    }

    #[test]
    fn an_engine_that_is_frozen_has_not_failed() {
        let faults = Faults::default();
        let some = wanted(1, 3, Access::Write);
        faults.want(&some);
        for _ in 0..5 {
            faults.done(&some, Err(FsError::Busy));
            assert_eq!(faults.want(&some), Answer::Ask { wait_ns: WAIT_NS_MAX });
        }
        faults.done(&some, Ok(()));
        assert_eq!(faults.want(&some), Answer::Ask { wait_ns: WAIT_NS });
    }

    #[test]
    fn what_is_under_way_has_a_bound() {
        let faults = Faults::default();
        for page in 0..PENDING_MAX as u32 {
            assert!(matches!(
                faults.want(&wanted(page, page + 1, Access::Read)),
                Answer::Ask { .. }
            ));
        }
        assert!(matches!(
            faults.want(&wanted(9999, 10_000, Access::Read)),
            Answer::Wait { .. }
        ));
    }
}

//! The time after a restart in which clients of before may come back.
//!
//! Contents: [`Grace`], which knows how long that is, and which sessions had locks and have not said which. As
//! long as there is one, requests of others for locks are put off.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::state::Heritage;

/// Work for when all locks of an earlier run have been claimed.
pub(super) type Deferred = Box<dyn FnOnce() + Send>;

struct Kept {
    ends: Instant,
    /// Nothing can be claimed any more, and others get their locks as soon as the pool knows.
    is_ending: bool,
    lockers: FxHashSet<u64>,
    deferred: Vec<Deferred>,
}

/// See the head of this module.
pub(super) struct Grace(Mutex<Option<Kept>>);

impl Grace {
    /// Begins, unless an earlier run left no sessions.
    pub(super) fn new(heritage: Heritage, lease: Duration) -> Grace {
        Grace(Mutex::new(heritage.has_sessions.then(|| Kept {
            ends: Instant::now() + lease,
            is_ending: false,
            lockers: heritage.lockers.into_iter().collect(),
            deferred: Vec::new(),
        })))
    }

    /// Whether sessions may still come back.
    pub(super) fn is_on(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Whether its time is over, though it has not been ended.
    pub(super) fn is_over(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|kept| Instant::now() >= kept.ends)
    }

    /// Whether locks of an earlier run may still be claimed.
    pub(super) fn awaits_locks(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|kept| !kept.lockers.is_empty())
    }

    /// Whether a session may claim the locks that it had.
    pub(super) fn takes_claims_of(&self, session: u64) -> bool {
        let kept = self.0.lock();
        kept.as_ref()
            .is_some_and(|kept| !kept.is_ending && kept.lockers.contains(&session))
    }

    /// Claims are refused from now on. Returns the sessions that had locks, and have not claimed them.
    pub(super) fn refuse_claims(&self) -> Vec<u64> {
        let Some(kept) = &mut *self.0.lock() else {
            return Vec::new();
        };
        kept.is_ending = true;
        kept.lockers.iter().copied().collect()
    }

    /// A session has claimed its locks, or will not. Returns what is to be done now, if it was the last.
    pub(super) fn locks_are_back(&self, session: u64) -> Vec<Deferred> {
        let mut kept = self.0.lock();
        let Some(kept) = &mut *kept else { return Vec::new() };
        match kept.lockers.remove(&session) && kept.lockers.is_empty() {
            true => std::mem::take(&mut kept.deferred),
            false => Vec::new(),
        }
    }

    /// Puts work off until all locks have been claimed; gives it back if they have.
    pub(super) fn put_off(&self, work: Deferred) -> Option<Deferred> {
        match &mut *self.0.lock() {
            Some(kept) if !kept.lockers.is_empty() => {
                kept.deferred.push(work);
                None
            }
            _ => Some(work),
        }
    }

    /// Ends it. Returns what is to be done now.
    pub(super) fn end(&self) -> Vec<Deferred> {
        self.0.lock().take().map(|kept| kept.deferred).unwrap_or_default()
    }
}

//! The grace period after a restart, in which earlier clients may come back.
//!
//! Contents: [`Grace`], which knows its length, and the sessions that had locks and have not reclaimed them. As long as
//! there is one, lock requests of other sessions are deferred.

use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use rustc_hash::FxHashSet;

use super::state::RecoveredState;
use crate::lock_order;

/// Work to run once all locks of an earlier run have been reclaimed.
pub(super) type Deferred = Box<dyn FnOnce() + Send>;

struct Kept {
    ends: Instant,
    /// Claims are refused, and other sessions get their locks as soon as the pool knows.
    is_ending: bool,
    lockers: FxHashSet<u64>,
    deferred: Vec<Deferred>,
}

/// See the head of this module.
pub(super) struct Grace(Mutex<lock_order::Grace, Option<Kept>>);

impl Grace {
    /// Begins the grace period, unless an earlier run left no sessions.
    pub(super) fn new(recovered: RecoveredState, lease: Duration) -> Grace {
        Grace(Mutex::new(recovered.has_sessions.then(|| Kept {
            ends: Instant::now() + lease,
            is_ending: false,
            lockers: recovered.lockers.into_iter().collect(),
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

    /// Whether locks of an earlier run may still be reclaimed.
    pub(super) fn awaits_locks(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|kept| !kept.lockers.is_empty())
    }

    /// Whether a session may claim its earlier locks.
    pub(super) fn takes_claims_of(&self, session: u64) -> bool {
        let kept = self.0.lock();
        kept.as_ref()
            .is_some_and(|kept| !kept.is_ending && kept.lockers.contains(&session))
    }

    /// Refuses claims from now on. Returns the sessions that had locks, and have not claimed them.
    pub(super) fn refuse_claims(&self) -> Vec<u64> {
        let Some(kept) = &mut *self.0.lock() else {
            return Vec::new();
        };
        kept.is_ending = true;
        kept.lockers.iter().copied().collect()
    }

    /// Notes that a session has claimed its locks, or will not. Returns the deferred work, if it was the last.
    pub(super) fn locks_are_back(&self, session: u64) -> Vec<Deferred> {
        let mut kept = self.0.lock();
        let Some(kept) = &mut *kept else { return Vec::new() };
        match kept.lockers.remove(&session) && kept.lockers.is_empty() {
            true => std::mem::take(&mut kept.deferred),
            false => Vec::new(),
        }
    }

    /// Defers work until all locks have been claimed; returns it if they have.
    pub(super) fn put_off(&self, work: Deferred) -> Option<Deferred> {
        match &mut *self.0.lock() {
            Some(kept) if !kept.lockers.is_empty() => {
                kept.deferred.push(work);
                None
            }
            _ => Some(work),
        }
    }

    /// Ends it. Returns the deferred work.
    pub(super) fn end(&self) -> Vec<Deferred> {
        self.0.lock().take().map(|kept| kept.deferred).unwrap_or_default()
    }
}

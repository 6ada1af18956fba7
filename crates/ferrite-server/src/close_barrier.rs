//! Work of other threads that must be done before something else happens.
//!
//! Contents: [`CloseBarrier`], which counts such work and waits for it. Each session has one for files being closed and
//! pins being released by workers: its later requests find this done, for a client that has closed a removed file may
//! count on its space. The server has one for sessions being ended: it stops after they are.
//!
//! Invariant of a session's: only work that entered the workers' queue later waits here, and the work it waits for does
//! not wait here; so a worker has that, or takes it first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use crate::lock_order;

#[derive(Default)]
struct State {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// The pending closes of a session, or of sessions.
#[derive(Default)]
pub(super) struct CloseBarrier {
    state: Mutex<lock_order::CloseBarrier, State>,
    changed: Condvar,
}

impl CloseBarrier {
    /// The last pending one.
    pub(super) fn latest(&self) -> Option<u64> {
        self.state.lock().under_way.last().copied()
    }

    /// Waits until this one, and all before it, are done.
    pub(super) fn wait_for(&self, latest: u64) {
        let mut state = self.state.lock();
        while state.under_way.first().is_some_and(|&first| first <= latest) {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until none is pending, for no longer than that. Returns how many are.
    pub(super) fn wait_for_all_until(&self, ends: Instant) -> usize {
        let mut state = self.state.lock();
        while !state.under_way.is_empty() && Instant::now() < ends {
            self.changed.wait_until(&mut state, ends);
        }
        state.under_way.len()
    }
}

/// A pending close, until it is dropped.
pub(super) struct PendingClose {
    of: Arc<CloseBarrier>,
    number: u64,
}

impl PendingClose {
    pub(super) fn begin(of: &Arc<CloseBarrier>) -> PendingClose {
        let mut state = of.state.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number);
        PendingClose {
            of: Arc::clone(of),
            number,
        }
    }
}

impl Drop for PendingClose {
    fn drop(&mut self) {
        self.of.state.lock().under_way.remove(&self.number);
        self.of.changed.notify_all();
    }
}

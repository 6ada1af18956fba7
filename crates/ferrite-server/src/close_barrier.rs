//! Files being closed and pins being released by workers: a session's later requests find this done. A client that has
//! closed a removed file may count on its space.
//!
//! Invariant: only work that entered the workers' queue later waits here, and the work it waits for does not wait here;
//! so a worker has that, or takes it first.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferrite_checks::ranked::{Condvar, Mutex};

use crate::lock_order;

#[derive(Default)]
struct State {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// The pending closes of a session.
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

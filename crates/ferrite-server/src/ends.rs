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

/// The pending ends of a session.
#[derive(Default)]
pub(super) struct Ends {
    state: Mutex<lock_order::Ends, State>,
    changed: Condvar,
}

impl Ends {
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

/// A pending end, until it is dropped.
pub(super) struct End {
    of: Arc<Ends>,
    number: u64,
}

impl End {
    pub(super) fn begin(of: &Arc<Ends>) -> End {
        let mut state = of.state.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number);
        End {
            of: Arc::clone(of),
            number,
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.of.state.lock().under_way.remove(&self.number);
        self.of.changed.notify_all();
    }
}

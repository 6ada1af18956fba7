//! The barrier that holds changes back while the media are copied.
//!
//! Invariant: a thread enters once; nested work does not enter again, unless it skips that when the barrier is shut.
//! While the barrier is shut, no thread is inside.

use std::sync::Arc;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use crate::lock_order;

#[derive(Default)]
struct State {
    inside: u64,
    is_shut: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<lock_order::FreezeBarrier, State>,
    changed: Condvar,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct FreezeBarrier(Arc<Shared>);

/// Proof of being inside, for a thread or for a transfer that it has begun.
pub(crate) struct Inside(Arc<Shared>);

impl FreezeBarrier {
    /// Enters; waits while the barrier is shut.
    pub(crate) fn enter(&self) -> Inside {
        let mut state = self.0.state.lock();
        while state.is_shut {
            self.0.changed.wait(&mut state);
        }
        state.inside += 1;
        Inside(Arc::clone(&self.0))
    }

    /// Enters, unless the barrier is shut.
    pub(crate) fn try_enter(&self) -> Option<Inside> {
        let mut state = self.0.state.lock();
        if state.is_shut {
            return None;
        }
        state.inside += 1;
        Some(Inside(Arc::clone(&self.0)))
    }

    /// Shuts the barrier, and waits until no thread is inside; `false` if it was shut already.
    pub(crate) fn shut(&self) -> bool {
        let mut state = self.0.state.lock();
        if state.is_shut {
            return false;
        }
        state.is_shut = true;
        while state.inside > 0 {
            self.0.changed.wait(&mut state);
        }
        true
    }

    pub(crate) fn open(&self) {
        self.0.state.lock().is_shut = false;
        self.0.changed.notify_all();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inside -= 1;
        if state.inside == 0 && state.is_shut {
            self.0.changed.notify_all();
        }
    }
}

//! The gate through which changes pass, so that they can be held back while the media are copied.
//!
//! Invariant: a thread enters once; nested work does not enter again, unless it skips that when the gate is shut. While
//! the gate is shut, no thread is inside.

use std::sync::Arc;

use ferrite_checks::ranked::{Condvar, Mutex};

use crate::lock_order;

#[derive(Default)]
struct State {
    inside: u64,
    is_shut: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<lock_order::Gate, State>,
    changed: Condvar,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Gate(Arc<Shared>);

/// Proof of being inside, for a thread or for a transfer that it has begun.
pub(crate) struct Inside(Arc<Shared>);

impl Gate {
    /// Enters; waits while the gate is shut.
    pub(crate) fn enter(&self) -> Inside {
        let mut state = self.0.state.lock();
        while state.is_shut {
            self.0.changed.wait(&mut state);
        }
        state.inside += 1;
        Inside(Arc::clone(&self.0))
    }

    /// Enters, unless the gate is shut.
    pub(crate) fn try_enter(&self) -> Option<Inside> {
        let mut state = self.0.state.lock();
        if state.is_shut {
            return None;
        }
        state.inside += 1;
        Some(Inside(Arc::clone(&self.0)))
    }

    /// Shuts the gate, and waits until no thread is inside; `false` if it was shut already.
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

//! The barrier that holds changes back while the media are copied, or a tree is cloned.
//!
//! Invariant: a thread enters once; nested work does not enter again, unless it skips that when the barrier is shut.
//! While the barrier is shut, no thread is inside. It is shut for one purpose at a time.

use std::sync::Arc;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use crate::lock_order;

#[derive(Default)]
struct State {
    inside: u64,
    /// Of those inside, how many may be there for long.
    copies: u64,
    /// Until it is opened.
    is_frozen: bool,
    /// For the thread that has [`Alone`].
    is_taken: bool,
}

impl State {
    fn is_shut(&self) -> bool {
        self.is_frozen || self.is_taken
    }
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

/// A thread inside may be there for long, until this is dropped: it is not shut as long as that lasts, so that others
/// do not wait as well.
pub(crate) struct Copying(Arc<Shared>);

/// Proof that no thread is inside; the barrier opens when it is dropped.
pub(crate) struct Alone(Arc<Shared>);

impl FreezeBarrier {
    /// Enters; waits while the barrier is shut.
    pub(crate) fn enter(&self) -> Inside {
        let mut state = self.0.state.lock();
        while state.is_shut() {
            self.0.changed.wait(&mut state);
        }
        state.inside += 1;
        Inside(Arc::clone(&self.0))
    }

    /// Enters, unless the barrier is shut.
    pub(crate) fn try_enter(&self) -> Option<Inside> {
        let mut state = self.0.state.lock();
        if state.is_shut() {
            return None;
        }
        state.inside += 1;
        Some(Inside(Arc::clone(&self.0)))
    }

    /// The caller, which is inside, may be there for long.
    pub(crate) fn copying(&self) -> Copying {
        self.0.state.lock().copies += 1;
        Copying(Arc::clone(&self.0))
    }

    /// Shuts the barrier, and waits until no thread is inside; `false` if it was shut already, until it is opened.
    pub(crate) fn shut(&self) -> bool {
        let mut state = self.0.state.lock();
        while state.is_taken || state.copies > 0 && !state.is_frozen {
            self.0.changed.wait(&mut state);
        }
        if state.is_frozen {
            return false;
        }
        state.is_frozen = true;
        while state.inside > 0 {
            self.0.changed.wait(&mut state);
        }
        true
    }

    /// Opens what [`Self::shut`] has shut.
    pub(crate) fn open(&self) {
        self.0.state.lock().is_frozen = false;
        self.0.changed.notify_all();
    }

    /// Shuts the barrier for the caller, which is not inside; waits until it is open, and no thread inside.
    pub(crate) fn shut_for_caller(&self) -> Alone {
        let mut state = self.0.state.lock();
        while state.is_shut() || state.copies > 0 {
            self.0.changed.wait(&mut state);
        }
        state.is_taken = true;
        while state.inside > 0 {
            self.0.changed.wait(&mut state);
        }
        Alone(Arc::clone(&self.0))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inside -= 1;
        if state.inside == 0 && state.is_shut() {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.copies -= 1;
        if state.copies == 0 {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.state.lock().is_taken = false;
        self.0.changed.notify_all();
    }
}

//! The thread of a mount that retries changes that failed a moment ago.
//!
//! Contents: [`Retries`]. It does not know what it retries; `space` does.
//!
//! Invariants: the thread sleeps while no retry is queued, and survives panics. Queued retries are dropped when the
//! mount ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use crate::lock_order;

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(2);

/// A retry.
type Retry = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: Vec<Retry>,
    is_over: bool,
}

/// Queued retries, and the thread.
#[derive(Default)]
pub(crate) struct Retries {
    state: Mutex<lock_order::Retries, State>,
    changed: Condvar,
}

impl Retries {
    /// A thread that a ring's thread started would stay on its CPU, so this one is started first.
    pub(crate) fn start() -> Arc<Retries> {
        let retries = Arc::new(Retries::default());
        let served = Arc::clone(&retries);
        let thread = std::thread::Builder::new().name("ferrite-space".to_owned());
        // Without it nothing is retried.
        retries.state.lock().is_over = thread.spawn(move || served.run()).is_err();
        retries
    }

    pub(crate) fn are_served(&self) -> bool {
        !self.state.lock().is_over
    }

    /// Calls `retry` a moment later.
    pub(crate) fn add(&self, retry: Retry) {
        let mut state = self.state.lock();
        if !state.is_over {
            state.waiting.push(retry);
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            while state.waiting.is_empty() && !state.is_over {
                self.changed.wait(&mut state);
            }
            if state.is_over {
                return;
            }
            drop(state);
            std::thread::sleep(PAUSE);
            let waiting = std::mem::take(&mut self.state.lock().waiting);
            for retry in waiting {
                // Without the thread the others would wait forever. A panic has reported its reason.
                let _ = catch_unwind(AssertUnwindSafe(retry));
            }
        }
    }

    /// The mount has ended: no caller waits for replies.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_one();
        drop(waiting);
    }
}

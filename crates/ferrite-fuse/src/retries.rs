//! The thread of a mount that does again what could not be done a moment ago.
//!
//! Contents: [`Retries`]. It knows nothing of what is done; `space` does.
//!
//! Invariants: the thread sleeps while nothing is to be done, and outlives what panics. What is left when the mount
//! goes is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// From a try to the next.
const PAUSE: Duration = Duration::from_millis(2);

/// Something that is done again.
type Retry = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: Vec<Retry>,
    is_over: bool,
}

/// What waits, and the thread.
#[derive(Default)]
pub(crate) struct Retries {
    state: Mutex<State>,
    changed: Condvar,
}

impl Retries {
    /// A thread that a ring's thread started would stay on its CPU, so it is there from the first.
    pub(crate) fn start() -> Arc<Retries> {
        let retries = Arc::new(Retries::default());
        let served = Arc::clone(&retries);
        let thread = std::thread::Builder::new().name("ferrite-space".to_owned());
        // Without it nothing is tried again.
        retries.state.lock().is_over = thread.spawn(move || served.run()).is_err();
        retries
    }

    pub(crate) fn are_served(&self) -> bool {
        !self.state.lock().is_over
    }

    /// Has `retry` called a moment later.
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
                // Without the thread the others would wait for good. Whoever panics has said why.
                let _ = catch_unwind(AssertUnwindSafe(retry));
            }
        }
    }

    /// The mount is gone: nobody waits for answers.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_one();
        drop(waiting);
    }
}

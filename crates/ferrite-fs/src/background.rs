//! Threads that work as long as a pool is mounted.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How the thread hears that it is to end.
#[derive(Default)]
pub(crate) struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sleeps, unless the thread is to end; true if it is.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.changed.wait_for(&mut stopped, time);
        }
        *stopped
    }

    /// Whether the thread is to end.
    pub(crate) fn is_set(&self) -> bool {
        *self.stopped.lock()
    }
}

/// A running thread; dropping it stops and joins the thread.
pub(crate) struct Background {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread that does `work`, which returns soon after it is told to.
    pub(crate) fn start(name: &str, work: impl FnOnce(&Stop) + Send + 'static) -> std::io::Result<Background> {
        let stop = Arc::<Stop>::default();
        let shared = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || work(&shared))?;
        Ok(Background {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn stop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

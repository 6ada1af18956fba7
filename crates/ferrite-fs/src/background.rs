//! Threads that work as long as a pool is mounted.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How the thread hears that it is to end, or that there is work.
#[derive(Default)]
pub(crate) struct Stop {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Default)]
struct Told {
    to_end: bool,
    of_work: bool,
}

impl Stop {
    /// Sleeps, unless the thread is to end; true if it is.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut told = self.told.lock();
        self.changed.wait_while_for(&mut told, |told| !told.to_end, time);
        told.to_end
    }

    /// Sleeps until there is work, told by [`Self::wake`] since the last call, or the thread is to end; true if it is.
    pub(crate) fn wait_for_work(&self) -> bool {
        let mut told = self.told.lock();
        while !told.to_end && !std::mem::take(&mut told.of_work) {
            self.changed.wait(&mut told);
        }
        told.to_end
    }

    /// Tells the thread that there is work.
    pub(crate) fn wake(&self) {
        self.told.lock().of_work = true;
        self.changed.notify_all();
    }

    /// Whether the thread is to end.
    pub(crate) fn is_set(&self) -> bool {
        self.told.lock().to_end
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

    /// What it is woken by.
    pub(crate) fn waker(&self) -> Arc<Stop> {
        Arc::clone(&self.stop)
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn stop(&mut self) {
        self.stop.told.lock().to_end = true;
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

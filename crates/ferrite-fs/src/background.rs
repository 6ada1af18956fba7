//! Threads that work as long as a pool is mounted.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use crate::lock_order;

/// Signals to the thread: to end, or that there is work.
#[derive(Default)]
pub(crate) struct Stop {
    told: Mutex<lock_order::Signal, Told>,
    changed: Condvar,
}

/// The reason for the end of a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The thread is to end.
    ToEnd,
    /// There is work.
    ForWork,
    /// The deadline.
    ByTime,
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

    /// Sleeps until there is work, signalled by [`Self::wake`] since the last call, or the thread is to end; true if it
    /// is.
    pub(crate) fn wait_for_work(&self) -> bool {
        let mut told = self.told.lock();
        while !told.to_end && !std::mem::take(&mut told.of_work) {
            self.changed.wait(&mut told);
        }
        told.to_end
    }

    /// The same, until `deadline` at the latest. Returns what ended the sleep.
    pub(crate) fn wait_for_work_until(&self, deadline: Instant) -> Woken {
        let mut told = self.told.lock();
        let is_idle = |told: &mut Told| !told.to_end && !told.of_work;
        self.changed
            .wait_while_for(&mut told, is_idle, deadline.saturating_duration_since(Instant::now()));
        match (told.to_end, std::mem::take(&mut told.of_work)) {
            (true, _) => Woken::ToEnd,
            (false, true) => Woken::ForWork,
            (false, false) => Woken::ByTime,
        }
    }

    /// Signals to the thread that there is work.
    pub(crate) fn wake(&self) {
        // A thread with a pending signal needs no second one.
        if !std::mem::replace(&mut self.told.lock().of_work, true) {
            self.changed.notify_all();
        }
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
    /// Starts a thread that does `work`, which returns soon after the signal to end.
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

    /// The handle that wakes it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal of work while the thread is awake is not lost, and is delivered once; a thread that is to end gets no
    /// other signal.
    #[test]
    fn a_sleep_ends_by_work_by_time_or_for_good() {
        let stop = Stop::default();
        let soon = || Instant::now() + Duration::from_millis(5);
        let late = || Instant::now() + Duration::from_secs(60);
        stop.wake();
        stop.wake();
        assert_eq!(stop.wait_for_work_until(late()), Woken::ForWork);
        assert_eq!(stop.wait_for_work_until(soon()), Woken::ByTime);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| stop.wait_for_work_until(late()));
            std::thread::sleep(Duration::from_millis(5));
            stop.wake();
            assert_eq!(sleeper.join().unwrap(), Woken::ForWork);
        });
        stop.wake();
        stop.told.lock().to_end = true;
        assert_eq!(stop.wait_for_work_until(late()), Woken::ToEnd);
    }
}

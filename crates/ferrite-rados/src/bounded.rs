//! Time limits for the calls of librados that have none.
//!
//! Contents: [`bounded`]. Such a call runs on a thread of its own, which a caller gives up on after the limit. The
//! thread ends when the monitors are back. It owns all that it uses.
//!
//! Invariant: at most [`THREADS_MAX`] such threads exist; beyond that, calls time out at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// More than a volume needs at once; each costs a stack.
const THREADS_MAX: usize = 16;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Gives a thread's place back when it ends.
struct Place;

impl Drop for Place {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The result of `call`, or `None` after `limit`.
pub(crate) fn bounded<T: Send + 'static>(limit: Duration, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let taken = THREADS.fetch_add(1, Ordering::Relaxed);
    let place = Place;
    if taken >= THREADS_MAX {
        return None;
    }
    let (sender, result) = channel();
    let started = thread::Builder::new().name("ferrite-rados".into()).spawn(move || {
        let _place = place;
        // Fails if nobody waits any more.
        let _ = sender.send(call());
    });
    started.ok()?;
    result.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_hangs_is_given_up_and_hanging_threads_are_few() {
        let day = Duration::from_secs(86400);
        assert_eq!(bounded(day, || 7), Some(7));
        let (release, hang) = channel::<()>();
        let hang = std::sync::Arc::new(std::sync::Mutex::new(hang));
        for _ in 0..THREADS_MAX {
            let hang = hang.clone();
            let call = move || hang.lock().map(|hang| hang.recv().is_ok()).is_ok();
            assert_eq!(bounded(Duration::from_millis(1), call), None);
        }
        assert_eq!(bounded(day, || 7), None, "there is no thread for it");
        drop(release);
        while THREADS.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        assert_eq!(bounded(day, || 7), Some(7));
    }
}

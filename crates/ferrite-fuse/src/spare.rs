//! Threads for the requests that would otherwise occupy the last thread that reads requests.
//!
//! Contents: [`Spare`]. A mount of a server has the configured number of readers, and one more. Each serves the request
//! that it has read, and may wait for the server while it does. Where all but one wait, the last one passes its request
//! on to a thread from here, and reads the next. So a request that need not wait for the server, such as `statfs`, gets
//! its reply also while many others wait.
//!
//! Invariants: a request is passed on once, and done once. There are at most [`THREADS_MAX`] threads; when all are
//! busy, requests queue, and [`Spare::is_full`] reports that. A thread without work ends after [`IDLE`].

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferrite_checks::condvar::Condvar;
use parking_lot::Mutex;

/// Threads at most.
const THREADS_MAX: usize = 256;
/// How long a thread waits for work.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// See the head of this module.
pub(crate) struct Spare {
    readers: usize,
    busy: AtomicUsize,
    shared: Arc<Shared>,
}

/// A reader is busy while this lives.
pub(crate) struct Busy<'s> {
    spare: &'s Spare,
    is_last: bool,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.spare.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Busy<'_> {
    /// Whether no other thread reads requests now.
    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }
}

impl Spare {
    /// For `readers` readers.
    pub(crate) fn new(readers: usize) -> Spare {
        Spare {
            readers,
            busy: AtomicUsize::new(0),
            shared: Arc::default(),
        }
    }

    /// Number of readers.
    pub(crate) fn readers(&self) -> usize {
        self.readers
    }

    /// A reader has read a request.
    pub(crate) fn enter(&self) -> Busy<'_> {
        let busy = self.busy.fetch_add(1, Ordering::Relaxed) + 1;
        Busy {
            spare: self,
            is_last: busy >= self.readers,
        }
    }

    /// Whether all threads are busy, and more work waits.
    pub(crate) fn is_full(&self) -> bool {
        let queue = self.shared.queue.lock();
        queue.threads >= THREADS_MAX && !queue.work.is_empty()
    }

    /// Runs `work` on a thread; on the caller's, if no thread is available.
    pub(crate) fn pass_on(&self, work: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.queue.lock();
        queue.work.push_back(Box::new(work));
        if queue.idle >= queue.work.len() || queue.threads >= THREADS_MAX {
            drop(queue);
            self.shared.changed.notify_one();
            return;
        }
        queue.threads += 1;
        drop(queue);
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("ferrite-spare".into());
        if thread.spawn(move || shared.run()).is_err() {
            let mut queue = self.shared.queue.lock();
            queue.threads -= 1;
            let left = if queue.threads == 0 {
                queue.work.pop_back()
            } else {
                None
            };
            drop(queue);
            left.into_iter().for_each(|work| work());
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(work) = queue.work.pop_front() {
                drop(queue);
                // Without a reply the caller would wait forever; a dropped reply counts as one. The panic was reported
                // when it happened.
                let _ = catch_unwind(AssertUnwindSafe(work));
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            let is_late = self.changed.wait_for(&mut queue, IDLE).timed_out();
            queue.idle -= 1;
            if is_late && queue.work.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn the_last_reader_is_known() {
        let spare = Spare::new(3);
        let busy: Vec<Busy<'_>> = (0..3).map(|_| spare.enter()).collect();
        assert_eq!(
            busy.iter().map(Busy::is_last).collect::<Vec<bool>>(),
            [false, false, true]
        );
        drop(busy);
        assert!(!spare.enter().is_last());
    }

    /// Each waits for the next one, so each needs a thread.
    #[test]
    fn what_waits_does_not_keep_the_others() {
        let spare = Spare::new(1);
        let (done, is_done) = channel();
        let mut next = None;
        for turn in 0..100 {
            let (go, may_go) = channel::<()>();
            let (before, done) = (next.replace(go), done.clone());
            spare.pass_on(move || {
                let _ = may_go.recv_timeout(SOON);
                before.into_iter().for_each(|go| go.send(()).unwrap());
                done.send(turn).unwrap();
            });
        }
        next.unwrap().send(()).unwrap();
        let mut turns: Vec<i32> = (0..100).map(|_| is_done.recv_timeout(SOON).unwrap()).collect();
        turns.sort_unstable();
        assert_eq!(turns, (0..100).collect::<Vec<i32>>());
        assert!(!spare.is_full());
    }

    #[test]
    fn with_all_threads_taken_work_queues_and_is_done() {
        let spare = Spare::new(1);
        let (done, is_done) = channel();
        let (go, may_go) = channel::<()>();
        let may_go = Arc::new(Mutex::new(may_go));
        for _ in 0..THREADS_MAX + 5 {
            let (may_go, done) = (Arc::clone(&may_go), done.clone());
            spare.pass_on(move || {
                let _ = may_go.lock().recv_timeout(SOON);
                done.send(()).unwrap();
            });
        }
        assert!(spare.is_full());
        drop(go);
        (0..THREADS_MAX + 5).for_each(|_| is_done.recv_timeout(SOON).unwrap());
        assert!(!spare.is_full());
    }
}

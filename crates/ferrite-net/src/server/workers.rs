//! Threads for what may wait for a device, so that the threads of the sockets do not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// Work that waits for a thread. With more, who brings work does it.
const QUEUE_MAX: usize = 4096;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A number of threads that do what they are given.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(super) fn start(count: usize) -> std::io::Result<Workers> {
        let shared = Arc::new(Shared::default());
        let mut workers = Workers {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        for index in 0..count.max(1) {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("ferrite-work-{index}"));
            workers.threads.push(thread.spawn(move || {
                while let Some(work) = shared.next() {
                    work();
                }
            })?);
        }
        Ok(workers)
    }

    /// Has `work` done, by a thread or, if there is too much to do, by the caller.
    pub(super) fn give(&self, work: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.queue.lock();
        if queue.work.len() >= QUEUE_MAX || queue.is_over {
            drop(queue);
            return work();
        }
        queue.work.push_back(Box::new(work));
        drop(queue);
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn next(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            if queue.is_over {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }
}

impl Drop for Workers {
    /// Waits until everything is done.
    fn drop(&mut self) {
        self.shared.queue.lock().is_over = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

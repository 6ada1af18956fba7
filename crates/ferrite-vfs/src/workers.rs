//! Threads for what may wait for a device, so that the threads of sockets and devices do not.
//!
//! Invariant: what was given is done, also when the last holder goes: dropping waits for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// Work that waits for a thread. With more, who brings work does it.
const QUEUE_MAX: usize = 4096;

/// Something to do.
pub type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// Threads that do something now.
    busy: usize,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// A thread has done what it did.
    idle: Condvar,
}

/// A number of threads that do what they are given.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts at least one thread.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(count: usize) -> std::io::Result<Workers> {
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
                    let busy = Busy(&shared);
                    work();
                    drop(busy);
                }
            })?);
        }
        Ok(workers)
    }

    /// Has `work` done, by a thread or, if there is too much to do, by the caller.
    pub fn give(&self, work: impl FnOnce() + Send + 'static) {
        if self.shared.queue.lock().work.len() >= QUEUE_MAX {
            return work();
        }
        self.add(work);
    }

    /// Waits until all that was given is done, and let go of; one of the threads itself does not wait.
    pub fn wait(&self) {
        let this = std::thread::current().id();
        if self.threads.iter().any(|thread| thread.thread().id() == this) {
            return;
        }
        let mut queue = self.shared.queue.lock();
        while queue.busy > 0 || !queue.work.is_empty() {
            self.shared.idle.wait(&mut queue);
        }
    }

    /// Has `work` done by a thread, however much there is to do: for who must not wait, and has a bound of its own.
    pub fn add(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.queue.lock().work.push_back(Box::new(work));
        self.shared.changed.notify_one();
    }
}

/// A thread does something; ends also if that panics.
struct Busy<'s>(&'s Shared);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().busy -= 1;
        self.0.idle.notify_all();
    }
}

impl Shared {
    fn next(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(work) = queue.work.pop_front() {
                queue.busy += 1;
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
            // The last to know of a server may be one of its own.
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            // A panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

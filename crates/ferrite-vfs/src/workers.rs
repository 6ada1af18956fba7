//! Threads for work that may wait for a device, so that the threads of sockets and devices do not.
//!
//! Invariant: all submitted work is done, also when the last [`Workers`] is dropped: the drop waits for it. So a thread
//! that must not wait has no `Arc` of it, which may become the last one, but a [`Queue`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use ferrite_checks::condvar::Condvar;
use parking_lot::Mutex;

/// Most work that waits for a thread. Beyond it, the caller does its work itself.
const QUEUE_MAX: usize = 4096;

/// A piece of work.
pub type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    work: VecDeque<Work>,
    /// Number of threads that work now.
    busy: usize,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Waiting>,
    changed: Condvar,
    /// A thread has finished its work.
    idle: Condvar,
}

/// A pool of threads that run submitted work.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts at least one thread.
    ///
    /// # Errors
    /// No thread can be started.
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

    /// Waits until all submitted work is done and dropped; called on one of the threads itself, it does not wait.
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

    /// Has `work` done by a thread, however much is queued: for callers that must not wait and bound their work
    /// themselves.
    pub fn add(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.add(Box::new(work));
    }

    /// Where to give these threads work without keeping them.
    pub fn queue(&self) -> Queue {
        Queue(Arc::clone(&self.shared))
    }
}

/// A handle of [`Workers`] that does not keep them: its drop never waits.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

impl Queue {
    /// [`Workers::add`]. The work has to keep the workers: without them it is not done.
    pub fn add(&self, work: impl FnOnce() + Send + 'static) {
        self.0.add(Box::new(work));
    }
}

/// Marks a thread as busy; ends also if its work panics.
struct Busy<'s>(&'s Shared);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().busy -= 1;
        self.0.idle.notify_all();
    }
}

impl Shared {
    fn add(&self, work: Work) {
        self.queue.lock().work.push_back(work);
        self.changed.notify_one();
    }

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
            // The last reference may be dropped on one of these threads.
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            // A panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

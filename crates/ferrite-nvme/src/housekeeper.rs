//! The housekeeper's queue: work that no caller waits for. `reclaim` does it.
//!
//! Invariant: nothing depends on when work is done. After a crash the next start finds the pending work in the records
//! of the metadata store.

use std::thread::JoinHandle;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;
use ferrite_vfs::Ino;

use crate::content_store::Place;
use crate::lock_order;

/// From this much work on, the housekeeper does not wait for more.
pub(crate) const MANY: usize = 256;

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) inodes: Vec<Ino>,
    pub(crate) places: Vec<Place>,
    pub(crate) orphans: Vec<Ino>,
    pub(crate) is_stopping: bool,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.inodes.len() + self.places.len() + self.orphans.len()
    }
}

/// Its list of work.
#[derive(Default)]
pub(crate) struct Housekeeper {
    pub(crate) queue: Mutex<lock_order::WorkQueue, Queue>,
    pub(crate) changed: Condvar,
    /// Held while inodes without a name are freed, so that a check knows when they are.
    pub(crate) freeing: Mutex<lock_order::FreeingOrphans, ()>,
    /// Held while nodes are stored, so that a thread that waits for it knows when they are.
    pub(crate) storing: Mutex<lock_order::StoringNodes, ()>,
    /// The same while blobs are deleted. Its holder waits for no inode, so any thread that needs space may take it.
    pub(crate) deleting: Mutex<lock_order::DeletingBlobs, ()>,
    pub(crate) thread: Mutex<lock_order::Thread, Option<JoinHandle<()>>>,
}

impl Housekeeper {
    /// Queues an unpinned inode whose node is behind. Never waits.
    pub(crate) fn store_later(&self, ino: Ino) {
        let mut queue = self.queue.lock();
        queue.inodes.push(ino);
        self.told(&queue);
    }

    /// Queues a blob that nothing names any more. Its record stands.
    pub(crate) fn delete_later(&self, place: Place) {
        let mut queue = self.queue.lock();
        queue.places.push(place);
        self.told(&queue);
    }

    /// Queues an unpinned inode without a name that could not be freed while changes were held back. Never waits.
    pub(crate) fn free_later(&self, ino: Ino) {
        let mut queue = self.queue.lock();
        queue.orphans.push(ino);
        self.told(&queue);
    }

    fn told(&self, queue: &Queue) {
        if queue.len() == 1 || queue.len() >= MANY {
            self.changed.notify_all();
        }
    }

    /// Whether blobs are queued for deletion.
    pub(crate) fn deletes(&self) -> bool {
        !self.queue.lock().places.is_empty()
    }

    /// Whether long work should end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.queue.lock().is_stopping
    }

    /// Stops the thread, and waits for its current work.
    pub(crate) fn end(&self) {
        self.queue.lock().is_stopping = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // Its panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

//! The housekeeper's list of work: what nobody waits for. `tidy` does it.
//!
//! Invariant: nothing depends on when work is done. What has not been done at a crash, the records of the metadata
//! store tell the next start.

use std::thread::JoinHandle;

use ferrite_vfs::Ino;
use parking_lot::{Condvar, Mutex};

use crate::blobs::Place;

/// Work that is not left waiting.
pub(crate) const MANY: usize = 256;

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) inodes: Vec<Ino>,
    pub(crate) places: Vec<Place>,
    pub(crate) is_ending: bool,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.inodes.len() + self.places.len()
    }
}

/// Its list of work.
#[derive(Default)]
pub(crate) struct Housekeeper {
    pub(crate) queue: Mutex<Queue>,
    pub(crate) changed: Condvar,
    /// Held while nodes are stored, so that who waits for it knows when they are.
    pub(crate) storing: Mutex<()>,
    /// The same while blobs are deleted. Who holds it waits for no inode, so whoever needs space may take it.
    pub(crate) deleting: Mutex<()>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

impl Housekeeper {
    /// An inode that was let go with a node that is behind. Waits for nobody.
    pub(crate) fn store_later(&self, ino: Ino) {
        let mut queue = self.queue.lock();
        queue.inodes.push(ino);
        self.told(&queue);
    }

    /// A blob that nothing names any more. Its record stands.
    pub(crate) fn delete_later(&self, place: Place) {
        let mut queue = self.queue.lock();
        queue.places.push(place);
        self.told(&queue);
    }

    fn told(&self, queue: &Queue) {
        if queue.len() == 1 || queue.len() >= MANY {
            self.changed.notify_all();
        }
    }

    /// Blobs that will be deleted.
    pub(crate) fn deletes(&self) -> bool {
        !self.queue.lock().places.is_empty()
    }

    /// Ends the thread, and waits for what it is doing.
    pub(crate) fn end(&self) {
        self.queue.lock().is_ending = true;
        self.changed.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of it was reported when it happened.
            let _ = thread.join();
        }
    }
}

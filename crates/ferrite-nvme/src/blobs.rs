//! Blobs that were made in advance, and what the data stores have together.
//!
//! Invariant: a blob that was made in advance has its record (`detached`), until a step names it or it is deleted.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrite_checks::ranked::Mutex;

use crate::content_store::{Blob, ContentStore, Place, Space};
use crate::lock_order;

/// A blob and its place.
pub(crate) type Made = (Place, Arc<dyn Blob>);

/// Blobs that were made in advance, by data store.
pub(crate) struct MadeBlobs(Vec<Mutex<lock_order::MadeBlobs, VecDeque<Made>>>);

impl MadeBlobs {
    pub(crate) fn new(stores: u16) -> MadeBlobs {
        MadeBlobs((0..stores).map(|_| Mutex::default()).collect())
    }

    /// One of them.
    pub(crate) fn take(&self, store: u16) -> Option<Made> {
        self.0.get(usize::from(store))?.lock().pop_front()
    }

    /// Adds some of a store.
    pub(crate) fn add(&self, store: u16, mut made: VecDeque<Made>) {
        if let Some(queue) = self.0.get(usize::from(store)) {
            queue.lock().append(&mut made);
        }
    }

    /// All of them.
    pub(crate) fn take_all(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for queue in &self.0 {
            places.extend(queue.lock().drain(..).map(|(place, _)| place));
        }
        places
    }
}

/// The space of each data store that is there.
fn spaces(content: &dyn ContentStore) -> impl Iterator<Item = Space> {
    (0..content.stores()).filter_map(|store| content.space(store).ok())
}

/// Space of all data stores together.
pub(crate) fn capacity(content: &dyn ContentStore) -> Space {
    spaces(content).fold(Space::default(), |sum, one| Space {
        bytes: sum.bytes + one.bytes,
        free_bytes: sum.free_bytes + one.free_bytes,
    })
}

/// Free bytes of the data store that has most of them.
pub(crate) fn space_in_one(content: &dyn ContentStore) -> u64 {
    spaces(content).map(|space| space.free_bytes).max().unwrap_or(0)
}

//! The data stores of a pool: where each blob is, and which blobs were made in advance.
//!
//! Invariant: a store keeps the number that it was given when it was added; a missing store leaves its number free.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ferrite_blob::{Blob, BlobId, BlobStore};
use ferrite_checks::ranked::Mutex;
use ferrite_vfs::{FsError, Result};

use crate::lock_order;

/// A blob: which store, which blob in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) store: u16,
    pub(crate) blob: BlobId,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blob {:x} of data store {}", self.blob.raw(), self.store)
    }
}

/// The data stores of a pool, in the order of their numbers. One that is missing or has failed is `None`: operations on
/// files in it fail, and no others.
pub(crate) struct Blobs {
    pub(crate) stores: Vec<Option<BlobStore>>,
    pub(crate) next: AtomicUsize,
    /// Blobs that were made in advance, by store.
    pub(crate) made: Vec<Mutex<lock_order::MadeBlobs, VecDeque<Blob>>>,
    /// Stores that have failed to take a new file. They get no more of them while others can.
    failing: Vec<AtomicBool>,
}

/// Space of all stores together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Capacity {
    pub(crate) bytes: u64,
    pub(crate) free_bytes: u64,
}

impl Blobs {
    pub(crate) fn new(stores: Vec<Option<BlobStore>>) -> Blobs {
        Blobs {
            made: stores.iter().map(|_| Mutex::default()).collect(),
            failing: stores.iter().map(|_| AtomicBool::new(false)).collect(),
            stores,
            next: AtomicUsize::new(0),
        }
    }

    /// A store that is there.
    pub(crate) fn store(&self, number: u16) -> Result<&BlobStore> {
        match self.stores.get(usize::from(number)) {
            Some(Some(store)) => Ok(store),
            Some(None) => Err(FsError::Io(format!("data store {number} is not available"))),
            None => Err(FsError::damaged(None, format!("there is no data store {number}"))),
        }
    }

    /// A store has failed to take a new file.
    pub(crate) fn note_failure(&self, number: u16, error: &FsError) {
        if let (FsError::Io(_), Some(failing)) = (error, self.failing.get(usize::from(number))) {
            failing.store(true, Ordering::Relaxed);
        }
    }

    /// All stores, from `first` on, with those that will probably fail last.
    pub(crate) fn turns(&self, first: usize) -> Vec<usize> {
        let count = self.stores.len();
        let mut turns: Vec<usize> = (0..count).map(|turn| (first + turn) % count).collect();
        turns.sort_by_key(|&number| {
            let is_running = self.stores[number].as_ref().is_some_and(BlobStore::is_running);
            !is_running || self.failing[number].load(Ordering::Relaxed)
        });
        turns
    }

    /// A blob by its place.
    pub(crate) fn blob(&self, place: Place) -> Result<Blob> {
        Ok(self.store(place.store)?.blob(place.blob)?)
    }

    /// Longest write that is one step on each store.
    pub(crate) fn atomic_bytes(&self) -> u64 {
        ferrite_blob::PAGE_BYTES as u64
    }

    /// Blobs that were made in advance and not used.
    pub(crate) fn take_made(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for (number, made) in self.made.iter().enumerate() {
            places.extend(made.lock().drain(..).map(|blob| place_of(number, &blob)));
        }
        places
    }

    /// Free bytes of the store that has most of them.
    pub(crate) fn space_in_one(&self) -> u64 {
        let free = self.stores.iter().flatten().map(|store| store.space().free_bytes);
        free.max().unwrap_or(0)
    }

    pub(crate) fn capacity(&self) -> Capacity {
        let mut capacity = Capacity::default();
        for store in self.stores.iter().flatten() {
            let space = store.space();
            capacity.bytes += space.clusters * ferrite_blob::CLUSTER_BYTES;
            capacity.free_bytes += space.free_bytes;
        }
        capacity
    }
}

/// The place of a blob of a store.
pub(crate) fn place_of(number: usize, blob: &Blob) -> Place {
    Place {
        store: number as u16,
        blob: blob.id(),
    }
}

/// Releases the part of a blob beyond the end of its file, where a change that failed may have left data: a file that
/// grows must not show it.
pub(crate) fn truncate_to(blob: &Blob, size: u64) -> ferrite_blob::Result<()> {
    match blob.valid_len() > size {
        true => blob.truncate(size, None),
        false => Ok(()),
    }
}

//! Ids of blobs, and of the owner that makes them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_blob::BlobId;

/// The owner of a pool, or of a part of one: each opening for changes has an epoch of its own, larger than those
/// before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guard {
    /// The part of a volume that has one owner at a time. 0 in a pool that has only one.
    pub shard: u64,
    /// The opening. Durable in the metadata store before any content store sees it.
    pub epoch: u64,
}

/// An id that no owner makes twice: the epoch is the owner's alone, and the number grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UniqueId {
    /// The owner's shard.
    pub shard: u64,
    /// The owner's epoch.
    pub epoch: u64,
    /// Which of its ids this is.
    pub number: u64,
}

/// Makes ids of one owner.
#[derive(Debug)]
pub struct UniqueIds {
    guard: Guard,
    next: AtomicU64,
}

impl UniqueIds {
    /// For an owner that has made none.
    pub fn new(guard: Guard) -> UniqueIds {
        UniqueIds {
            guard,
            next: AtomicU64::new(0),
        }
    }

    /// The next id.
    pub fn take(&self) -> UniqueId {
        UniqueId {
            shard: self.guard.shard,
            epoch: self.guard.epoch,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl UniqueIds {
    /// Places for so many blobs of a data store, with the next ids.
    pub(super) fn places(&self, store: u16, count: usize) -> Vec<Place> {
        let place = |_| Place {
            store,
            name: BlobName::Unique(self.take()),
        };
        (0..count).map(place).collect()
    }
}

/// Which blob of its data store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlobName {
    /// The id that a local store gave it.
    Local(BlobId),
    /// The id that the engine gave it.
    Unique(UniqueId),
}

/// A blob: which data store, which blob in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The number of the data store.
    pub store: u16,
    /// The blob.
    pub name: BlobName,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            BlobName::Local(id) => write!(f, "blob {:x}", id.raw())?,
            BlobName::Unique(id) => write!(f, "blob {}.{}.{}", id.shard, id.epoch, id.number)?,
        }
        write!(f, " of data store {}", self.store)
    }
}

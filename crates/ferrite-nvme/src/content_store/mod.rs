//! Where the content of files lives: the traits between the engine and its content stores.
//!
//! Contents: [`ContentStore`], a pool's content as a whole; [`Blob`], the content of one file; the ids of blobs
//! (`place`); errors (`error`); the stores, `local` (blob stores on devices), `rados` (objects in a Ceph cluster, with
//! the cargo feature `rados`), `slices` (S3, with the cargo feature `s3`) and `memory` (objects in memory, as a remote
//! store would have them).
//!
//! The engine keeps in the metadata store all it knows about blobs: which node has which (`N`), which belong to none
//! (`X`), whose tail may be ahead of its node (`D`). A content store allocates, reads and writes; it keeps no record of
//! files. Devices that are added, damage that is found and mended, and registered buffers concern local stores only.
//!
//! # Tails
//!
//! A blob has a *tail*: some bytes (size and times of its file) that the engine passes along with a change. The tail
//! becomes durable with the change, in one step: a store never has the tail of a change without all of its data. It may
//! have some of the data of a longer change without its tail.
//!
//! # Fencing
//!
//! The engine opens a pool for changes under a [`Guard`], and announces it once, by [`ContentStore::take_over`], after
//! the metadata store has made its epoch durable. From then on no call of an earlier owner has any effect, not even one
//! that is under way: a change carries its owner's guard, and the store refuses it with [`Error::Fenced`]. A store that
//! only one process can open at a time (a device under a lock) needs no more than that lock.
//!
//! # Unknown outcomes
//!
//! After [`Error::Unknown`] a change may have been made, be made later, or never. Later calls of the same owner that
//! concern the same blob come after it: it is made before their effect, or never.
//!
//! *Architecture invariant:* the engine outside `local`, `pool`, `salvage`, `volume` and `transfer` does not depend on
//! where content lives. Nothing here knows files or names.

mod error;
pub(crate) mod local;
mod memory;
mod place;
#[cfg(feature = "rados")]
mod rados;
#[cfg(feature = "s3")]
pub(crate) mod slices;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ferrite_vfs::buffers::Pool;
use ferrite_vfs::{Backlog, Durability, SyncMode};

pub use error::{Error, Result};
pub use ferrite_blob::DataDamage;
pub use local::LocalContent;
pub use memory::{Effect, Kind, MemoryContent, MemoryServer, Operation};
pub use place::{BlobName, Guard, Place, UniqueId, UniqueIds};
#[cfg(feature = "rados")]
pub use rados::{ClusterState, Contents, PoolState, RadosContent, RadosOptions, RadosView, examine};
#[cfg(feature = "s3")]
pub use slices::{
    ChangeLog, Comparison, Reopen, SlicesContent, SlicesOptions, SlicesParts, SlicesUsage, SlicesView, StagedElsewhere,
};

/// The guarantees of a content store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest write of existing bytes that is old or new as a whole after a failure, together with its tail.
    pub atomic_write_bytes: u64,
    /// The unit in which long blobs get space and have holes.
    pub block_bytes: u64,
    /// The failures that a durable change survives.
    pub durability: Durability,
    /// Changes are durable when their call returns; otherwise, when a later [`Blob::sync`] returns.
    pub is_durable_at_once: bool,
    /// The places that [`Blob::sync`] waits for.
    pub sync_mode: SyncMode,
    /// Content can be overwritten in place while others read the blob ([`Blob::overwrite_at`]).
    pub overwrites_in_place: bool,
    /// Reserving space costs less than writing it; otherwise the engine reserves none that no caller asks for.
    pub has_reservations: bool,
    /// A blob can get the content of another one of its store without moving it ([`Blob::share_from`]).
    pub shares_content: bool,
    /// Its blobs have the ids that the engine makes ([`BlobName::Unique`]); otherwise, ids that the store gives.
    pub has_unique_ids: bool,
}

/// The capacity of a data store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// All bytes.
    pub bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
}

/// The space of a pool of Ceph, as counted some seconds ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RadosUsage {
    /// Objects in all namespaces.
    pub objects: u64,
    /// Their bytes, not those of replicas.
    pub bytes: u64,
    /// Bytes that can still be written, as far as the cluster knows.
    pub free_bytes: u64,
}

/// The content of one data store, as a check sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// Its blobs. `None`: it cannot list them, and a check opens those that nodes name.
    pub blobs: Option<Vec<Place>>,
    /// Blobs that name what belongs to another.
    pub tangled: Vec<Place>,
    /// Blobs of which only an older state is left.
    pub older: Vec<Place>,
    /// Damage of the store that [`ContentStore::mend`] mends, one line each.
    pub damage: Vec<String>,
}

/// A pool's content. It consists of data stores, each with a number: the devices of a local one, usually one elsewhere.
/// Any number of threads may use it. Calls may block, except where they say otherwise.
pub trait ContentStore: Send + Sync {
    /// Its guarantees. They do not change.
    fn limits(&self) -> Limits;

    /// Fences every earlier owner of the guard's shard. All changes are made under this guard from now on; no change
    /// precedes it. Called once.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a later owner has taken over; errors of the store. The pool is not opened then.
    fn take_over(&self, guard: Guard) -> Result<()>;

    /// Whether the owner still has the content, as far as the store knows. Does not block. The engine asks after a
    /// failure.
    ///
    /// # Errors
    /// [`Error::Fenced`], forever, after one change was refused with it.
    fn health(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a blob may be [`Blob::is_staged_elsewhere`]. Does not block.
    fn may_be_staged_elsewhere(&self) -> bool {
        false
    }

    /// Changes that have not reached the place where content stays, if that is elsewhere. Does not block for long.
    fn backlog(&self) -> Option<Backlog> {
        None
    }

    /// How many data stores there are, present or not. Does not change.
    fn stores(&self) -> u16;

    /// The space of a data store, as last known. Does not block for long.
    ///
    /// # Errors
    /// [`Error::Failed`] if the data store is not available, [`Error::Damaged`] if no data store has this number.
    fn space(&self, store: u16) -> Result<Space>;

    /// All data stores, in the order in which the next new blob should try them.
    fn turns(&self) -> Vec<u16>;

    /// Whether a data store takes new blobs, and is not known to fail.
    fn takes_new(&self, _store: u16) -> bool {
        true
    }

    /// A data store has failed to take a new file: it comes last among [`Self::turns`].
    fn note_failure(&self, _store: u16) {}

    /// A data store gets no more blobs, as long as the pool is open.
    fn drain(&self, _store: u16) {}

    /// Places for up to `count` new blobs, at least one. Nothing else ever gets one of them. A store with ids of its
    /// own takes none of `ids`.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; errors of the store.
    fn reserve(&self, store: u16, count: usize, ids: &UniqueIds) -> Result<Vec<Place>>;

    /// Gives back places of which no blob was made.
    fn give_back(&self, _places: &[Place]) {}

    /// Makes an empty blob in a reserved place. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotFound`] if the place was not reserved; [`Error::NoSpace`]; errors of the store.
    fn create(&self, place: Place) -> Result<Arc<dyn Blob>>;

    /// A blob.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Damaged`]; errors of the store.
    fn open(&self, place: Place) -> Result<Arc<dyn Blob>>;

    /// Deletes a blob. Durable when it returns. A failure may leave the blob without some of its data.
    ///
    /// # Errors
    /// [`Error::NotFound`]; errors of the store.
    fn delete(&self, place: Place) -> Result<()>;

    /// Its blobs, and the damage it knows of. Of a store that several owners share: the blobs of this owner's shard.
    ///
    /// # Errors
    /// As [`Self::space`]; errors of the store.
    fn survey(&self, store: u16) -> Result<Survey>;

    /// Whether a data store has checksums of data that the engine should verify ([`Blob::damaged`]).
    fn has_checksums(&self, _store: u16) -> bool {
        false
    }

    /// Whether only an older state of a blob is left.
    fn is_older(&self, _place: Place) -> bool {
        false
    }

    /// Accepts the older state of a blob if only that is left, and returns whether it was so. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the store.
    fn accept_older(&self, _place: Place) -> Result<bool> {
        Ok(false)
    }

    /// Gives a blob copies of what it shares with another. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the store.
    fn untangle(&self, _place: Place) -> Result<()> {
        Ok(())
    }

    /// Mends the damage of a data store that [`Self::survey`] lists. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the store.
    fn mend(&self, _store: u16) -> Result<()> {
        Ok(())
    }

    /// Prepares for submitted transfers of buffers of this pool. It only makes them cheaper.
    fn know_buffers(&self, _pool: &Pool) {}

    /// Returns when all earlier changes are durable.
    ///
    /// # Errors
    /// Errors of the store.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Ends its use: all changes are durable. No other call is running, and none follows. A data store that fails to
    /// close does not keep the others open.
    ///
    /// # Errors
    /// Errors of the store.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Where the bytes of a blob are that has a bucket behind memory and a log. Each byte is in one of the first three.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Placement {
    /// In the bucket.
    pub stored_bytes: u64,
    /// In memory, on their way to the bucket. A log may have them as well.
    pub memory_bytes: u64,
    /// In the log alone, on their way to the bucket.
    pub log_bytes: u64,
    /// Of those in the bucket, those in memory as well.
    pub cached_bytes: u64,
    /// Of those in the bucket, those on a disk of this machine as well.
    pub disk_cached_bytes: u64,
}

/// The content of one file: bytes, holes, and a tail. Bytes that were never written read as zeros. After it was deleted
/// every call returns [`Error::NotFound`]. Handles that were opened separately are the same blob.
///
/// Any number of threads may read; a thread that changes it has the file exclusively, except in
/// [`Self::overwrite_at`]. Errors of every change, unless it says more: [`Error::Fenced`], [`Error::Unknown`],
/// [`Error::NotFound`], [`Error::Damaged`], [`Error::Failed`]. After all but the first the change may be there in part.
pub trait Blob: Send + Sync + fmt::Debug {
    /// Where its bytes are, if they may be in several kinds of places.
    fn placement(&self) -> Option<Placement> {
        None
    }

    /// The blob of a local store, for transfers that are submitted to its device.
    fn local(&self) -> Option<&ferrite_blob::Blob> {
        None
    }

    /// The tail that was set last. Empty if none was.
    ///
    /// # Errors
    /// [`Error::NotFound`]; errors of the store.
    fn tail(&self) -> Result<Vec<u8>>;

    /// The space it takes, as last known. Does not block for long.
    fn allocated_bytes(&self) -> u64;

    /// Bytes from here on were never written, and read as zeros. After a change that failed it counts the bytes that
    /// may be there, or may come. Does not block for long.
    fn valid_len(&self) -> u64;

    /// The first byte from `offset` on that is not in a hole.
    ///
    /// # Errors
    /// Errors of the store.
    fn next_data(&self, offset: u64) -> Result<Option<u64>>;

    /// The first byte from `offset` on in a hole.
    ///
    /// # Errors
    /// Errors of the store.
    fn next_hole(&self, offset: u64) -> Result<u64>;

    /// Fills `into` with the bytes at `offset`. It sees a concurrent overwrite whole or not at all.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Damaged`] and [`Error::Failed`]: nothing wrong was returned; [`Error::Unknown`] if
    /// the store did not answer.
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()>;

    /// Writes `data` at `offset`, and then the tail, if any. Bytes between the old end and `offset` become zeros.
    /// Durable as [`Limits::is_durable_at_once`] says. Up to [`Limits::atomic_write_bytes`] are old or new together
    /// with the tail.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing has changed; those of every change.
    fn write_at(&self, data: &[u8], offset: u64, tail: Option<&[u8]>) -> Result<()>;

    /// [`Self::write_at`] without a tail, if all these bytes are there and can be overwritten while others use the
    /// blob; otherwise it does nothing and returns `false`. Calls `begins` once no other thread transfers these bytes,
    /// and before it changes any.
    ///
    /// # Errors
    /// Those of every change.
    fn overwrite_at(&self, _data: &[u8], _offset: u64, _begins: &mut dyn FnMut()) -> Result<bool> {
        Ok(false)
    }

    /// Has this blob, which was just made and is empty, consist of the bytes before `end` of another blob of the store,
    /// which does not change meanwhile. Moves none of them. `false`: it cannot, and is empty still; stores without
    /// [`Limits::shares_content`] never can. After an error it has to be deleted.
    ///
    /// # Errors
    /// Those of every change.
    fn share_from(&self, _from: &dyn Blob, _end: u64) -> Result<bool> {
        Ok(false)
    }

    /// Itself, for a store that knows its own blobs.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Sets the tail.
    ///
    /// # Errors
    /// Those of every change.
    fn set_tail(&self, tail: &[u8]) -> Result<()>;

    /// Makes sure that writes of these bytes need no further space, if need be by writing zeros where no bytes are.
    /// Existing content stays.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing has changed; those of every change.
    fn reserve(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()>;

    /// Releases everything from `len` on.
    ///
    /// # Errors
    /// Those of every change.
    fn truncate(&self, len: u64, tail: Option<&[u8]>) -> Result<()>;

    /// Zeros these bytes, and releases their space where it can.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing has changed; those of every change.
    fn punch(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()>;

    /// Zeros these bytes, and reserves their space as [`Self::reserve`] does.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing has changed; those of every change.
    fn zero(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()>;

    /// Returns when all earlier changes of the blob are durable.
    ///
    /// # Errors
    /// Those of every change.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Whether all earlier changes of the blob are durable. Does not wait for another machine. Asked of stores alone
    /// that are not durable at once.
    fn is_synced(&self) -> bool {
        false
    }

    /// Whether changes of it are durable elsewhere, and not to be seen here: it is older than it was said to be.
    fn is_staged_elsewhere(&self) -> bool {
        false
    }

    /// Reads a part of the blob, at most a cluster, and returns its damage, as far as the store's checksums detect it.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    fn damaged(&self, _offset: u64, _len: u64) -> Result<DataDamage> {
        Ok(DataDamage::default())
    }

    /// Accepts these bytes, whatever the store holds there. Durable when it returns.
    ///
    /// # Errors
    /// Those of every change.
    fn accept(&self, _bytes: Range<u64>) -> Result<()> {
        Ok(())
    }
}

/// Releases the part of a blob beyond the end of its file, where a change that failed may have left data: a file that
/// grows must not show it.
pub(crate) fn truncate_to(blob: &dyn Blob, size: u64) -> Result<()> {
    match blob.valid_len() > size {
        true => blob.truncate(size, None),
        false => Ok(()),
    }
}

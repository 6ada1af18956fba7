//! Content in S3: files are immutable slices, and rows of the metadata store say which bytes lie in which.
//!
//! Contents: [`SlicesContent`], one owner's client, with [`SlicesOptions`]; `store`, what all blobs share; `handles`,
//! which blobs are in use; `blob`, the content of one file in use, with what is known of it (`state`) and its reads
//! (`reading`), in whatever `order`; `publication`, by which changes of a blob become durable; `change`, the changes,
//! and their records in a log (`logged`, with `log_state`), which rows know by marks (`mark`); `buffer`, bytes that
//! have yet to become a slice; `upload`, slices on their way (`unstored`), which wait in memory or, by `spill`, in the
//! log (`in_log`); `ids`, the ids of slices; `rows`, the keys and transactions; `keeper`, the thread that publishes
//! what waits for long, writes blocks anew and has dead objects deleted (`collection`); `comparison`, of the bucket
//! with the rows.
//!
//! # Order of a change
//!
//! A change is made in memory: bytes go to buffers of one block each, holes and truncations to the blob's map. A
//! buffer becomes a slice when it is full, when memory is short, or when the blob is published; its id is staged in
//! the rows first, then its object is sent. A publication waits until the objects of all slices that the map names
//! have arrived, and is then one transaction: the chunks that have changed, the blob's row with the tail, and the
//! states of slices; or several, chunk by chunk, the tail with the last, if it is too large for a database. So rows
//! never name a slice whose object is not there; a crash leaves objects that are staged, which the next owner makes
//! dead; and a blob is after a crash as some publication left it, with the tail of that moment.
//!
//! # Fencing
//!
//! The metadata store refuses transactions of earlier owners, and ids contain the epoch: an object that an earlier
//! owner sends late is one that nothing names. It is dead, and goes after [`SlicesOptions::grace`], when it can no
//! longer be on its way. [`ContentStore::take_over`] has nothing else to do.
//!
//! # Deletion
//!
//! A slice without a name is dead from then on for [`SlicesOptions::keep`]: readers that know an older map, and
//! metadata that is restored from a backup, still find its object. Then the object goes, and after it the row.
//!
//! # Failures
//!
//! An object that could not be stored is sent again and again; its bytes wait in memory, or in
//! the log, where readers find them. A publication gives up after [`SlicesOptions::publish_timeout`], or at once if the
//! service refuses, and says why; nothing is lost, and the next one tries again. Writers wait, before they change
//! anything, while [`SlicesOptions::buffer_bytes`] are in memory that have not been stored, or while the log is full.
//!
//! *Architecture invariant:* only this folder, and `s3`, know ferrite-slices.

mod blob;
mod blob_row;
mod buffer;
mod calls;
mod change;
mod collection;
mod comparison;
mod far;
mod handles;
mod ids;
mod in_log;
mod keeper;
mod log_state;
mod logged;
mod mark;
pub(crate) mod names;
mod order;
mod publication;
mod reading;
mod rejoin;
mod rows;
mod share;
mod spill;
mod state;
mod store;
mod unstored;
mod upload;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrite_meta::MetaStore;
use ferrite_slices::{Bucket, Codec, DiskCache};
use ferrite_vfs::{Backlog, Durability, SyncMode};

pub use self::comparison::Comparison;
pub use self::far::Reopen;
pub use self::log_state::ChangeLog;
pub use self::logged::StagedElsewhere;
pub use self::store::SlicesUsage;

use self::blob::{SharedBlob, SlicesBlob};
use self::keeper::Keeper;
use self::store::{Store, id_of};
use super::{Blob, ContentStore, Error, Guard, Limits, Place, Result, Space, Survey, UniqueIds};

/// The locks of this folder. No lock of the engine is taken under them. Transactions on rows are begun under some of
/// them, and lock keys of rows alone.
mod lock_order {
    ferrite_checks::ranks! {
        "ferrite-nvme content in S3":
        /// Blobs that are being loaded.
        Loading = 10;
        /// One publication of a blob at a time.
        Publishing = 20;
        /// Changes of a blob, one after another, and the moment that a publication is of.
        Changing = 30;
        /// The mark of a blob.
        Marking = 35;
        /// The ids of slices.
        Ids = 40;
        /// One thread has slices leave memory.
        Spilling = 45;
        /// The known state of a blob.
        BlobState = 50;
        /// Blobs with changes that are not durable.
        Unpublished = 60;
        /// Blobs that have handles.
        Blobs = 70;
        /// Bytes that have no object yet.
        Buffered = 80;
        /// The work of the keeper.
        Keeper = 90;
        /// A trial to open the second device of the log.
        Trial = 100;
        /// How the last trial ended.
        Said = 110;
    }
}

/// The row of a blob as it is when others may name its slices. `None`: it says so, or cannot be read.
pub(crate) fn shared_row(row: &[u8]) -> Option<Vec<u8>> {
    blob_row::BlobRow::shared(row)
}

/// How long S3 is said to be: files share no space with others there.
const CAPACITY_BYTES: u64 = 1 << 50;
/// The unit in which holes are reported.
const UNIT_BYTES: u64 = 4096;

/// The part of the names of a pool's objects before the ids of slices.
pub(crate) fn folder(pool: [u8; 16]) -> String {
    format!("{SLICES}/{:032x}", u128::from_be_bytes(pool))
}

/// The folder of all slices.
pub(crate) const SLICES: &str = "slices";

/// How content in S3 is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlicesOptions {
    /// Memory for clean slices.
    pub cache_bytes: u64,
    /// Memory for bytes that have not been stored yet.
    pub buffer_bytes: u64,
    /// For how long the objects of dead slices are kept.
    pub keep: Duration,
    /// For how long, besides, those of slices that may still be on their way.
    pub grace: Duration,
    /// After what time changes are published that nobody has asked for.
    pub publish_after: Duration,
    /// For how long a publication waits for objects that fail to be stored.
    pub publish_timeout: Duration,
}

impl Default for SlicesOptions {
    fn default() -> SlicesOptions {
        SlicesOptions {
            cache_bytes: 256 << 20,
            buffer_bytes: 128 << 20,
            keep: Duration::from_secs(7 * 24 * 3600),
            grace: Duration::from_secs(600),
            publish_after: Duration::from_secs(5),
            publish_timeout: Duration::from_secs(90),
        }
    }
}

/// The things of this machine that content in S3 may have.
#[derive(Default)]
pub struct SlicesParts {
    /// How objects are made and read.
    pub codec: Codec,
    /// The log of changes.
    pub log: Option<ChangeLog>,
    /// Objects that were read lately.
    pub disk: Option<DiskCache>,
}

/// One owner's client of the content of a pool in a bucket.
pub struct SlicesContent {
    store: Arc<Store>,
    keeper: Keeper,
}

impl SlicesContent {
    /// A client that has taken nothing over. `meta` is the metadata store of the pool with this id.
    ///
    /// # Errors
    /// [`Error::Failed`]: the machine has no thread for it.
    pub fn new(
        bucket: Bucket,
        meta: Arc<dyn MetaStore>,
        pool: [u8; 16],
        options: SlicesOptions,
    ) -> Result<SlicesContent> {
        SlicesContent::with(bucket, meta, pool, options, SlicesParts::default())
    }

    /// The same with a form of objects, a log of changes, and a disk for clean slices.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(
        bucket: Bucket,
        meta: Arc<dyn MetaStore>,
        pool: [u8; 16],
        options: SlicesOptions,
        parts: SlicesParts,
    ) -> Result<SlicesContent> {
        let keeper = Keeper::default();
        let store = Store::new(bucket, meta, pool, (options, parts), keeper.calls());
        keeper.start(&store)?;
        Ok(SlicesContent { store, keeper })
    }

    /// A view of it, for those who show it.
    pub fn view(&self) -> SlicesView {
        SlicesView(Arc::clone(&self.store))
    }
}

/// Content in S3, for those who show it.
#[derive(Clone)]
pub struct SlicesView(Arc<Store>);

impl SlicesView {
    /// Its bytes, and the requests so far.
    pub fn usage(&self) -> SlicesUsage {
        self.0.usage()
    }

    /// Why content could not be stored lately, if it could not.
    pub fn failure(&self) -> Option<String> {
        self.0.failure()
    }

    /// Compares the bucket with the rows. Files may be in use.
    ///
    /// # Errors
    /// Errors of the bucket and of the metadata store.
    pub fn compare(&self, repair: bool) -> Result<Comparison> {
        comparison::compare(&self.0, repair)
    }

    /// How many rows are wrong about the names of slices; mends them if it `repair`s, while nobody else changes them.
    ///
    /// # Errors
    /// Errors of the metadata store.
    pub fn count_names(&self, repair: bool) -> Result<u64> {
        comparison::count_names(&self.0, repair)
    }

    /// The id of its log, if it has one.
    pub fn log_id(&self) -> Option<[u8; 16]> {
        self.0.log.as_deref().map(|log| log.wal.id())
    }

    /// The blobs with changes in logs other than this one.
    ///
    /// # Errors
    /// Errors of the metadata store.
    pub fn staged_elsewhere(&self, log: Option<[u8; 16]>) -> Result<Vec<StagedElsewhere>> {
        logged::staged_elsewhere(&self.0, log)
    }

    /// Gives changes of a blob up that are in another log: it is as it was before, and can be changed. The record of
    /// them goes in one step with its next changes, when these are published.
    ///
    /// # Errors
    /// [`Error::NotFound`]; errors of the metadata store.
    pub fn give_up(&self, place: Place) -> Result<Arc<dyn Blob>> {
        Ok(Arc::new(SlicesBlob(logged::give_up(&self.0, place)?)))
    }

    /// Removes all records that are left of changes in other logs.
    ///
    /// # Errors
    /// Errors of the metadata store.
    pub fn forget_staged(&self) -> Result<()> {
        logged::forget_marks(&self.0)
    }
}

impl Drop for SlicesContent {
    /// Ends it as a crash would, unless it was closed.
    fn drop(&mut self) {
        self.keeper.end(false);
        self.store.abandon();
    }
}

impl ContentStore for SlicesContent {
    fn limits(&self) -> Limits {
        Limits {
            // A publication of a few chunks is one transaction.
            atomic_write_bytes: 64 << 20,
            block_bytes: UNIT_BYTES,
            durability: Durability::Power,
            is_durable_at_once: false,
            sync_mode: self
                .store
                .log
                .as_deref()
                .map_or(SyncMode::Through, ChangeLog::sync_mode),
            overwrites_in_place: false,
            has_reservations: false,
            shares_content: true,
            has_unique_ids: true,
        }
    }

    fn backlog(&self) -> Option<Backlog> {
        let usage = self.store.usage();
        Some(Backlog {
            bytes: usage.buffered_bytes + usage.spilled_bytes,
            oldest: usage.oldest_change,
            is_failing: usage.is_failing,
            is_log_passed: usage.is_log_passed,
        })
    }

    fn take_over(&self, guard: Guard) -> Result<()> {
        self.store.is_replaying.store(true, Ordering::Release);
        self.store.take_over(guard)?;
        self.store.rows.note_opening(true);
        let begun = logged::begin(&self.store, guard.epoch);
        let replayed = begun.and_then(|()| logged::replay(&self.store));
        self.store.rows.note_opening(false);
        replayed?;
        self.store.is_replaying.store(false, Ordering::Release);
        Ok(())
    }

    fn health(&self) -> Result<()> {
        self.store.rows.health()
    }

    fn may_be_staged_elsewhere(&self) -> bool {
        self.store.has_lost.load(Ordering::Relaxed)
    }

    fn stores(&self) -> u16 {
        1
    }

    fn space(&self, store: u16) -> Result<Space> {
        check_store(store)?;
        let used = self
            .store
            .live_bytes()
            .saturating_add_signed(handles::unpublished_bytes(&self.store));
        Ok(Space {
            bytes: CAPACITY_BYTES,
            free_bytes: CAPACITY_BYTES.saturating_sub(used),
        })
    }

    fn turns(&self) -> Vec<u16> {
        vec![0]
    }

    fn reserve(&self, store: u16, count: usize, ids: &UniqueIds) -> Result<Vec<Place>> {
        check_store(store)?;
        Ok(ids.places(store, count))
    }

    fn create(&self, place: Place) -> Result<Arc<dyn Blob>> {
        id_of(place)?;
        self.store.check_changes()?;
        self.store.rows.create(place)?;
        let blob = handles::add(&self.store, SharedBlob::empty(&self.store, place));
        Ok(Arc::new(SlicesBlob(blob)))
    }

    fn open(&self, place: Place) -> Result<Arc<dyn Blob>> {
        Ok(Arc::new(SlicesBlob(handles::open(&self.store, place)?)))
    }

    fn delete(&self, place: Place) -> Result<()> {
        self.store.check_changes()?;
        match handles::open(&self.store, place) {
            Ok(blob) => blob.delete(),
            Err(Error::Damaged(what)) => {
                tracing::warn!(%place, what, "a blob is removed whose rows cannot be read");
                self.store.rows.remove_unreadable(place)
            }
            Err(error) => Err(error),
        }
    }

    fn survey(&self, store: u16) -> Result<Survey> {
        check_store(store)?;
        self.store.survey()
    }

    fn has_checksums(&self, _store: u16) -> bool {
        true
    }

    fn mend(&self, store: u16) -> Result<()> {
        check_store(store)?;
        self.store.check_changes()?;
        self.store.rows.remove_unreadable_chunks().map(drop)
    }

    fn sync(&self) -> Result<()> {
        handles::publish_all(&self.store)
    }

    fn close(&self) -> Result<()> {
        let published = handles::publish_all(&self.store);
        self.keeper.end(true);
        published?;
        logged::trim(&self.store);
        if self.store.check_changes().is_ok()
            && let Err(error) = collection::collect_at_end(&self.store)
        {
            tracing::debug!(%error, "objects of dead slices stay for now");
        }
        self.store.end()
    }
}

fn check_store(store: u16) -> Result<()> {
    match store {
        0 => Ok(()),
        _ => Err(Error::Damaged(format!("there is no data store {store}"))),
    }
}

//! The things that all blobs of a pool share: the bucket and its cache, the rows, the blobs in use, and the bytes that
//! wait.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;
use ferrite_meta::MetaStore;
use ferrite_slices::{Bucket, DiskCache, Error as BucketError, Requests, SliceCache, SliceId, SliceMap, SliceObjects};
use ferrite_wal::Usage as LogUsage;

use super::calls::{AnyBlob, Calls};
use super::ids::SliceIds;
use super::log_state::ChangeLog;
use super::rows::Rows;
use super::{SlicesOptions, SlicesParts, lock_order};
use crate::content_store::{BlobName, Error, Guard, Place, Result, Survey, UniqueId};

/// Locks for loading, by the number of the blob.
pub(super) const LOADERS: u64 = 16;
/// How long a writer waits at a time for memory.
const MOMENT: Duration = Duration::from_millis(100);

/// The bytes of content in S3, and the work since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlicesUsage {
    /// Bytes of files.
    pub live_bytes: u64,
    /// Bytes in memory that have no object.
    pub buffered_bytes: u64,
    /// Bytes in the log, and not in memory, that have no object.
    pub spilled_bytes: u64,
    /// The age of the oldest change that is not durable.
    pub oldest_change: Duration,
    /// The last object could not be stored.
    pub is_failing: bool,
    /// Clean bytes in memory.
    pub cached_bytes: u64,
    /// Clean bytes on a disk of this machine.
    pub disk_cached_bytes: u64,
    /// Slices that readers found there.
    pub disk_hits: u64,
    /// Slices that readers found in memory.
    pub cache_hits: u64,
    /// Slices that they did not find there.
    pub cache_misses: u64,
    /// Blocks that were written anew, because their slices were many or mostly dead.
    pub rewritten_blocks: u64,
    /// Objects of dead slices that were deleted.
    pub deleted_slices: u64,
    /// Requests.
    pub requests: Requests,
    /// The log of changes, if there is one.
    pub log: Option<LogUsage>,
    /// Changes should be appended to it, and are not: a device of it is away or has failed.
    pub is_log_passed: bool,
}

/// The blob's id.
pub(super) fn id_of(place: Place) -> Result<UniqueId> {
    match (place.store, place.name) {
        (0, BlobName::Unique(id)) => Ok(id),
        _ => Err(Error::Damaged(format!("{place} cannot be in S3"))),
    }
}

pub(super) fn of_bucket(error: BucketError) -> Error {
    match error {
        BucketError::Damaged(what) => Error::Damaged(what),
        other => Error::Failed(other.to_string()),
    }
}

/// A blob with changes that are not durable.
pub(super) struct Waiting {
    pub(super) blob: Arc<AnyBlob>,
    pub(super) since: Instant,
}

pub(super) struct Store {
    pub(super) rows: Rows,
    pub(super) bucket: Bucket,
    pub(super) objects: SliceObjects,
    pub(super) cache: SliceCache,
    pub(super) ids: SliceIds,
    pub(super) options: SlicesOptions,
    pub(super) log: Option<Box<ChangeLog>>,
    /// Changes of the log are made again: nothing is published.
    pub(super) is_replaying: AtomicBool,
    /// Other logs may have changes.
    pub(super) has_lost: AtomicBool,
    /// The part of all names of objects before the ids of slices.
    pub(super) folder: String,
    pub(super) keeper: Calls,
    guard: OnceLock<Guard>,
    pub(super) loading: [Mutex<lock_order::Loading, ()>; LOADERS as usize],
    pub(super) blobs: Mutex<lock_order::Blobs, HashMap<UniqueId, Weak<AnyBlob>>>,
    pub(super) unpublished: Mutex<lock_order::Unpublished, HashMap<UniqueId, Waiting>>,
    buffered: Mutex<lock_order::Buffered, Buffered>,
    has_room: Condvar,
    /// Bytes that the log alone has.
    spilled: AtomicI64,
    pub(super) spilling: Mutex<lock_order::Spilling, ()>,
    live_bytes: AtomicI64,
    /// The same, as a reader saw it.
    looked_at: OnceLock<u64>,
    pub(super) rewritten_blocks: AtomicU64,
    pub(super) deleted_slices: AtomicU64,
    /// Objects that have arrived.
    stored: AtomicU64,
    is_over: AtomicBool,
}

/// Bytes in memory that have no object, and why the last one could not be stored.
#[derive(Default)]
struct Buffered {
    bytes: u64,
    failure: Option<BucketError>,
}

impl Buffered {
    /// Whether there is no room for so many bytes more. Alone, anything fits.
    fn is_short(&self, most: u64, more: u64) -> bool {
        self.bytes > 0 && self.bytes + more > most
    }
}

impl Store {
    pub(super) fn new(
        bucket: Bucket,
        meta: Arc<dyn MetaStore>,
        pool: [u8; 16],
        (options, parts): (SlicesOptions, SlicesParts),
        keeper: Calls,
    ) -> Arc<Store> {
        let folder = super::folder(pool);
        let objects = SliceObjects::new(bucket.clone(), &folder, parts.codec, parts.disk);
        Arc::new(Store {
            rows: Rows::new(meta),
            cache: SliceCache::new(objects.clone(), options.cache_bytes),
            objects,
            bucket,
            ids: SliceIds::default(),
            options,
            log: parts.log.map(Box::new),
            is_replaying: AtomicBool::new(false),
            has_lost: AtomicBool::new(true),
            folder,
            keeper,
            guard: OnceLock::new(),
            loading: Default::default(),
            blobs: Mutex::default(),
            unpublished: Mutex::default(),
            buffered: Mutex::default(),
            has_room: Condvar::new(),
            spilled: AtomicI64::new(0),
            spilling: Mutex::default(),
            live_bytes: AtomicI64::new(0),
            looked_at: OnceLock::new(),
            rewritten_blocks: AtomicU64::new(0),
            deleted_slices: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        })
    }

    pub(super) fn take_over(&self, guard: Guard) -> Result<()> {
        let in_use = || Error::Failed("this client has taken over before; connect another".into());
        if self.guard.get().is_some() {
            return Err(in_use());
        }
        let buried = self.rows.bury_staged(guard.epoch, self.time_of_death(true))?;
        if buried > 0 {
            tracing::info!(slices = buried, "slices that an earlier owner had staged go later");
        }
        self.live_bytes.store(self.rows.take_usage()? as i64, Ordering::Relaxed);
        self.ids.begin(guard.epoch);
        self.guard.set(guard).map_err(|_| in_use())
    }

    /// Refuses changes of a client that has not taken over, or has ended.
    pub(super) fn check_changes(&self) -> Result<()> {
        self.rows.health()?;
        match self.guard.get() {
            Some(_) if !self.is_over() => Ok(()),
            _ => Err(Error::Failed("the content is not open for changes".into())),
        }
    }

    pub(super) fn epoch(&self) -> Option<u64> {
        self.guard.get().map(|guard| guard.epoch)
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Ids for slices, which are staged.
    ///
    /// # Errors
    /// Never that there is no space: buffers have changed already.
    pub(super) fn take_ids(&self, count: usize) -> Result<Vec<SliceId>> {
        self.ids.take(&self.rows, count).map_err(|error| match error {
            Error::NoSpace => {
                Error::Failed("the store of metadata is full; delete something, or give it more space".into())
            }
            other => other,
        })
    }

    /// Seconds since 1970.
    pub(super) fn now() -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap_or_default().as_secs()
    }

    /// When the object of a slice that dies now may go. `is_fresh`: it may still be on its way.
    pub(super) fn time_of_death(&self, is_fresh: bool) -> u64 {
        let grace = if is_fresh { self.options.grace } else { Duration::ZERO };
        Store::now() + (self.options.keep + grace).as_secs()
    }

    /// The last handle of a blob is gone.
    pub(super) fn forget(&self, id: UniqueId) {
        let mut blobs = self.blobs.lock();
        if blobs.get(&id).is_some_and(|blob| blob.strong_count() == 0) {
            blobs.remove(&id);
        }
    }

    /// A blob has changes: it stays in memory until they are published. The caller has the blob's state locked.
    pub(super) fn note_changes(&self, id: UniqueId, blob: &Arc<impl Any + Send + Sync>) {
        if self.is_over() {
            return;
        }
        self.unpublished.lock().entry(id).or_insert_with(|| Waiting {
            blob: Arc::clone(blob) as Arc<AnyBlob>,
            since: Instant::now(),
        });
    }

    /// A blob has none any more.
    ///
    /// Returns what kept it in memory. The caller has the blob's state locked, and drops it without locks.
    #[must_use]
    pub(super) fn note_published(&self, id: UniqueId) -> Option<Arc<AnyBlob>> {
        self.unpublished.lock().remove(&id).map(|waiting| waiting.blob)
    }

    /// A blob has others, which came while earlier ones were published.
    pub(super) fn note_left(&self, id: UniqueId) {
        if let Some(waiting) = self.unpublished.lock().get_mut(&id) {
            waiting.since = Instant::now();
        }
    }

    /// Counts bytes that have no object yet, and those that have got one.
    pub(super) fn count_buffered(&self, more: u64, less: u64) {
        if more == less {
            return;
        }
        let mut buffered = self.buffered.lock();
        buffered.bytes = (buffered.bytes + more).saturating_sub(less);
        drop(buffered);
        if less > more {
            self.has_room.notify_all();
        }
    }

    /// Counts bytes that the log alone has.
    pub(super) fn count_spilled(&self, more: i64) {
        self.spilled.fetch_add(more, Ordering::Relaxed);
    }

    /// An object was stored, or was not.
    pub(super) fn note_outcome(&self, failure: Option<&BucketError>) {
        if failure.is_none() {
            self.stored.fetch_add(1, Ordering::Relaxed);
        }
        let mut buffered = self.buffered.lock();
        if let (Some(error), None) = (failure, &buffered.failure) {
            tracing::warn!(%error, "content could not be stored; it waits, and is sent again");
        }
        buffered.failure = failure.cloned();
    }

    /// Why the last object could not be stored, if it could not.
    pub(super) fn failure(&self) -> Option<String> {
        self.buffered.lock().failure.as_ref().map(ToString::to_string)
    }

    /// Whether there is hardly memory for so many bytes more.
    pub(super) fn is_nearly_short_of(&self, more: u64) -> bool {
        let most = self.options.buffer_bytes;
        self.buffered.lock().is_short(most - most / 8, more)
    }

    pub(super) fn is_short_of_memory(&self) -> bool {
        self.buffered.lock().is_short(self.options.buffer_bytes, 0)
    }

    /// Waits until there is memory for so many bytes more, which the log may make.
    ///
    /// # Errors
    /// [`Error::Failed`]: objects have not been stored for long.
    pub(super) fn wait_for_room(self: &Arc<Self>, more: u64) -> Result<()> {
        let is_short = || self.buffered.lock().is_short(self.options.buffer_bytes, more);
        if is_short() {
            self.spill(more);
        }
        self.wait_while(more, is_short)
    }

    /// The same, for a caller who has no lock: buffers become slices, which the log may have.
    ///
    /// # Errors
    /// The same.
    pub(super) fn make_room(self: &Arc<Self>, more: u64) -> Result<()> {
        let is_short = || self.buffered.lock().is_short(self.options.buffer_bytes, more);
        if self.log.is_some() && is_short() {
            self.spill(more);
            if is_short() {
                self.seal_buffers();
            }
        }
        self.wait_for_room(more)
    }

    /// Waits until something is so no more, while blobs are published, for somebody who wants so many bytes of memory.
    ///
    /// # Errors
    /// [`Error::Failed`]: objects have not been stored for long.
    pub(super) fn wait_while(self: &Arc<Self>, more: u64, is_so: impl Fn() -> bool) -> Result<()> {
        let mut stored = self.stored();
        let mut until = Instant::now() + self.options.publish_timeout;
        while is_so() {
            if self.stored() != stored {
                (stored, until) = (self.stored(), Instant::now() + self.options.publish_timeout);
            }
            if Instant::now() > until || self.is_over() {
                let failure = self.buffered.lock().failure.clone();
                return Err(self.not_stored(failure.as_ref()));
            }
            // Buffers of blobs that nobody changes become slices.
            self.keeper.call();
            self.has_room.wait_for(&mut self.buffered.lock(), MOMENT);
            if self.spill(more) {
                until = Instant::now() + self.options.publish_timeout;
            }
        }
        Ok(())
    }

    /// After what time changes are published that nobody has asked for: not as late as with a log, while that is not
    /// used.
    pub(super) fn publish_after(&self) -> Duration {
        let most = match self.log.as_deref().is_some_and(ChangeLog::is_incomplete) {
            true => SlicesOptions::default().publish_after,
            false => Duration::MAX,
        };
        self.options.publish_after.min(most)
    }

    /// The log has more space than before.
    pub(super) fn note_log_space(&self) {
        self.has_room.notify_all();
    }

    /// How many objects have arrived.
    pub(super) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Why content is not stored yet.
    pub(super) fn not_stored(&self, failure: Option<&BucketError>) -> Error {
        let slow = || format!("{}: it takes content too slowly", self.bucket.place());
        Error::Failed(failure.map_or_else(slow, ToString::to_string))
    }

    /// The bytes of files have become more, or fewer.
    pub(super) fn count_live(&self, before: u64, after: u64) {
        self.live_bytes
            .fetch_add(after as i64 - before as i64, Ordering::Relaxed);
    }

    /// The bytes of files that rows name.
    pub(super) fn live_bytes(&self) -> u64 {
        match self.guard.get() {
            Some(_) => self.live_bytes.load(Ordering::Relaxed).max(0) as u64,
            // Somebody else may change it; a reader has it as of its first look.
            None => *self.looked_at.get_or_init(|| self.rows.usage().unwrap_or(0)),
        }
    }

    pub(super) fn usage(&self) -> SlicesUsage {
        let (cache_hits, cache_misses) = self.cache.hits_and_misses();
        let oldest = self
            .unpublished
            .lock()
            .values()
            .map(|waiting| waiting.since.elapsed())
            .max();
        let (buffered_bytes, is_failing) = {
            let buffered = self.buffered.lock();
            (buffered.bytes, buffered.failure.is_some())
        };
        SlicesUsage {
            live_bytes: self.live_bytes(),
            buffered_bytes,
            spilled_bytes: self.spilled.load(Ordering::Relaxed).max(0) as u64,
            oldest_change: oldest.unwrap_or_default(),
            is_failing,
            cached_bytes: self.cache.bytes(),
            disk_cached_bytes: self.objects.disk().map_or(0, DiskCache::bytes),
            disk_hits: self.objects.disk().map_or(0, DiskCache::hits),
            cache_hits,
            cache_misses,
            rewritten_blocks: self.rewritten_blocks.load(Ordering::Relaxed),
            deleted_slices: self.deleted_slices.load(Ordering::Relaxed),
            requests: self.bucket.requests(),
            log: self.log.as_deref().map(|log| log.wal.usage()),
            is_log_passed: self.log.as_deref().is_some_and(ChangeLog::is_incomplete),
        }
    }

    pub(super) fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        let mut blobs = Vec::new();
        self.rows.each_blob_row(|at, value| match at {
            Some((place, None)) => blobs.push(place),
            Some((place, Some(chunk))) => {
                if SliceMap::default().add_chunk(chunk, value).is_none() {
                    survey
                        .damage
                        .push(format!("the row of chunk {chunk} of {place} cannot be read"));
                }
            }
            None => survey.damage.push("a row of a blob has a key that cannot be".into()),
        })?;
        survey.blobs = Some(blobs);
        Ok(survey)
    }

    /// Ends it: nothing is left to be published.
    pub(super) fn end(&self) -> Result<()> {
        if self.guard.get().is_some() && !self.is_over.swap(true, Ordering::AcqRel) {
            self.ids.end(&self.rows)?;
            self.rows
                .keep_usage(self.live_bytes.load(Ordering::Relaxed).max(0) as u64)?;
        }
        Ok(())
    }

    /// Ends it as it is.
    pub(super) fn abandon(&self) {
        self.is_over.store(true, Ordering::Release);
        self.has_room.notify_all();
        let gone = std::mem::take(&mut *self.unpublished.lock());
        drop(gone);
    }
}

//! The store on RocksDB.
//!
//! Invariants: no type of RocksDB is public; errors become [`Error`] here and nowhere else. A commit is refused before
//! it has any effect if the place is nearly full, since RocksDB takes no more changes once it has run out of space.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::rocksdb::{Db, DbError, Place, Salvage};
use ferrite_vfs::volume::human_bytes;
use parking_lot::Mutex;

use crate::backend::{BlobError, BlobFiles, Blobs};
use crate::close_mark;
use crate::error::{Error, Result};
use crate::shelf::Shelf;
use crate::store::{Lock, MetaStore, Statistics, Transaction, Visit};

/// Where a store's files lie.
#[derive(Clone)]
#[non_exhaustive]
pub enum Backend {
    /// In a directory of the machine, which is made if it is missing.
    Directory(PathBuf),
    /// On a dedicated device, which no other store uses.
    Blobs(Arc<dyn Blobs>),
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Directory(path) => path.display().fmt(f),
            Backend::Blobs(_) => f.write_str("the device of blobs"),
        }
    }
}

/// Where free space is measured.
pub(crate) enum Space {
    Directory(PathBuf),
    Blobs(BlobFiles),
}

impl Space {
    /// Bytes of the whole place, and those that may still be written.
    fn bytes(&self) -> Result<(u64, u64)> {
        match self {
            Space::Directory(path) => {
                let found = rustix::fs::statvfs(path);
                let found = found.map_err(|error| Error::Io(format!("{}: {error}", path.display())))?;
                let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
                Ok((bytes(found.f_blocks), bytes(found.f_bavail)))
            }
            Space::Blobs(files) => files.space_bytes().map_err(unreadable),
        }
    }
}

/// A write buffer has at most this part of the place.
const BUFFERS_PER_PLACE: u64 = 256;
/// RocksDB's minimum.
const WRITE_BUFFER_BYTES_MIN: usize = 64 << 10;
/// The reserve is at most this part of the place: enough for the merges of tables that RocksDB may have to do.
const RESERVES_PER_PLACE: u64 = 4;
/// There is space to spare if this many times the reserve is free.
const SPARE_PER_RESERVE: u64 = 2;
/// Merges leave this part of the reserve: admitted commits still need it for their log and tables.
const MERGES_LEAVE_PER_RESERVE: u64 = 4;
/// With so many unmerged tables, RocksDB makes writers wait for a merge, however long.
const UNMERGED_TABLES_MAX: u32 = 36;
/// With so many, and no space to merge them, changes are refused. Those already admitted fill less than the difference.
const UNMERGED_TABLES_FULL: u64 = 24;
/// RocksDB merges from this number on, and an opening leaves fewer.
const UNMERGED_TABLES_LEFT: u64 = 4;
/// A full store is merged before it refuses, if so many transactions have deleted something since.
const DELETED_MIN: u64 = 64;
/// It is merged as a whole before it refuses for lack of space, if so many pairs have been deleted since, and this part
/// of all: RocksDB may have no merge due that would drop them.
const DELETED_PAIRS_MIN: u64 = 256;
const PAIRS_PER_DELETED: u64 = 64;
/// How long a writer waits for that, and how often it checks.
const MERGE_MAX: Duration = Duration::from_secs(5);
const MERGE_POLL: Duration = Duration::from_millis(5);
/// After a merge that lacked space, writers wait for no other merge for so long.
const NO_MERGE_FOR: Duration = Duration::from_secs(5);
/// How long files may stay after a merge has replaced them.
const FILES_GO_WITHIN: Duration = Duration::from_millis(250);

/// Options of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Create a missing store. Otherwise that is [`Error::Missing`].
    pub create: bool,
    /// Read only: nothing at the place is written, and every commit is refused. The log is read into memory. The caller
    /// ensures that no process changes the store meanwhile.
    pub read_only: bool,
    /// Memory for cached blocks of tables, uncompressed.
    pub block_cache_bytes: usize,
    /// Memory for the surrounding file content, in blocks of 256 KiB. For a backend on blobs; the kernel has its own
    /// cache.
    pub file_cache_bytes: usize,
    /// Changes are collected up to this size in memory, and in the log, which recovery replays after a crash. Less on a
    /// small device: at most a 256th of it.
    pub write_buffer_bytes: usize,
    /// Threads that work in the background.
    pub background_jobs: u32,
    /// Scans within a prefix of this length are answered from memory, if they have no pairs. 0 disables that.
    pub prefix_len_bytes: u32,
    /// How long a transaction waits for a lock.
    pub lock_timeout: Duration,
    /// Commits are durable when they return. Otherwise they are after the next [`MetaStore::sync`], or after a while.
    pub sync: bool,
    /// Commits are refused when less than this is free, or than a quarter of the place, if that is less. Transactions
    /// that delete may use the last half. RocksDB's merges use this space: 64 write buffers.
    pub reserve_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create: false,
            read_only: false,
            block_cache_bytes: 64 << 20,
            file_cache_bytes: 64 << 20,
            write_buffer_bytes: 32 << 20,
            background_jobs: 2,
            prefix_len_bytes: 0,
            lock_timeout: Duration::from_secs(5),
            sync: true,
            reserve_bytes: 2 << 30,
        }
    }
}

/// A store on RocksDB.
pub struct RocksStore {
    db: Db,
    is_read_only: bool,
    is_ended: bool,
    /// The place of its close mark.
    shelf: Option<Shelf>,
    space: Space,
    reserve_bytes: u64,
    /// Transactions that deleted something since a merge was started for them.
    deleted: AtomicU64,
    /// Pairs that were deleted since the whole store was merged for them.
    deleted_pairs: AtomicU64,
    /// When a wait for merges last ended for lack of space.
    merging: Mutex<Option<Instant>>,
}

pub(crate) fn refused(error: DbError) -> Error {
    match error {
        DbError::TimedOut(_) => Error::Busy,
        DbError::Deadlock(_) => Error::Deadlock,
        DbError::Corruption(_) | DbError::NotFound(_) => Error::Corruption(error.to_string()),
        DbError::Invalid(_) | DbError::NotSupported(_) => Error::Invalid(error.to_string()),
        DbError::InUse(_) => Error::InUse(error.to_string()),
        // Also one for lack of space: except in a merge, RocksDB stops.
        _ => Error::Io(error.to_string()),
    }
}

pub(crate) fn unreadable(error: BlobError) -> Error {
    match error {
        BlobError::Corruption(text) => Error::Corruption(text),
        BlobError::NoSpace => Error::NoSpace(error.to_string()),
        error => Error::Io(error.to_string()),
    }
}

impl RocksStore {
    /// Opens the store at a place, which is locked until it is closed. Reads the log, if the store was not closed.
    ///
    /// # Errors
    /// [`Error::Missing`] if the place has none, and none was to be created; [`Error::InUse`]; [`Error::Corruption`].
    pub fn open(backend: Backend, options: &Options) -> Result<RocksStore> {
        let missing = |backend: &Backend| Error::Missing(backend.to_string());
        let (place, space) = match &backend {
            Backend::Directory(path) => {
                if (!options.create || options.read_only) && !path.join("CURRENT").exists() {
                    return Err(missing(&backend));
                }
                (Place::Directory(path.clone()), Space::Directory(path.clone()))
            }
            Backend::Blobs(blobs) => {
                let files = match options.read_only {
                    true => BlobFiles::inspect(Arc::clone(blobs), options.file_cache_bytes),
                    false => BlobFiles::open(Arc::clone(blobs), options.file_cache_bytes, options.create),
                };
                let files = files.map_err(|error| match error {
                    BlobError::NotFound => missing(&backend),
                    error => unreadable(error),
                })?;
                (Place::Files(Arc::new(files.clone())), Space::Blobs(files))
            }
        };
        if let Space::Directory(path) = &space
            && !options.read_only
        {
            std::fs::create_dir_all(path).map_err(|error| Error::Io(format!("{}: {error}", path.display())))?;
        }
        let shelf = match &space {
            Space::Directory(path) => Shelf::Directory(path.clone()),
            Space::Blobs(files) => Shelf::Blobs(files.clone()),
        };
        close_mark::check(&shelf)?;
        if !options.read_only {
            close_mark::remove(&shelf)?;
        }
        RocksStore::start(&place, space, Some(shelf), options)
    }

    /// Opens the database at a place. With a `shelf`, its close leaves a mark there.
    pub(crate) fn start(place: &Place, space: Space, shelf: Option<Shelf>, options: &Options) -> Result<RocksStore> {
        let (size, _) = space.bytes()?;
        let reserve_bytes = options.reserve_bytes.min(size / RESERVES_PER_PLACE);
        let buffer = usize::try_from(size / BUFFERS_PER_PLACE).unwrap_or(usize::MAX);
        let wanted = crate::rocksdb::Options {
            create: options.create && !options.read_only,
            read_only: options.read_only,
            block_cache_bytes: options.block_cache_bytes,
            merges_leave_bytes: reserve_bytes / MERGES_LEAVE_PER_RESERVE,
            write_buffer_bytes: options.write_buffer_bytes.min(buffer).max(WRITE_BUFFER_BYTES_MIN),
            background_jobs: options.background_jobs,
            unmerged_tables_max: UNMERGED_TABLES_MAX,
            prefix_len_bytes: options.prefix_len_bytes,
            lock_timeout: options.lock_timeout,
            sync: options.sync,
            salvage: Salvage::No,
        };
        let db = Db::open(place, &wanted).map_err(refused)?;
        let store = RocksStore {
            db,
            is_read_only: options.read_only,
            is_ended: false,
            shelf,
            space,
            reserve_bytes,
            deleted: AtomicU64::new(0),
            deleted_pairs: AtomicU64::new(0),
            merging: Mutex::default(),
        };
        if !options.read_only {
            store.merge_what_openings_left();
        }
        Ok(store)
    }

    /// An opening makes a table of the log that the last session left. Sessions that are too short for RocksDB's merges
    /// would pile tables up, so the opening that finds enough of them for a merge waits for it, as long as a writer
    /// would.
    fn merge_what_openings_left(&self) {
        let (until, mut idle_since) = (Instant::now() + MERGE_MAX, Instant::now());
        let lacked_before = self.db.merges_lack_space();
        loop {
            let counted = self.db.statistics();
            let is_idle = counted.merges == 0 && idle_since.elapsed() > FILES_GO_WITHIN;
            let is_over = Instant::now() >= until || self.db.merges_lack_space() > lacked_before;
            if counted.unmerged_tables < UNMERGED_TABLES_LEFT || is_idle || is_over {
                return;
            }
            if counted.merges > 0 {
                idle_since = Instant::now();
            }
            std::thread::sleep(MERGE_POLL);
        }
    }

    /// Makes all commits durable, ends the store's threads, and releases the place.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    /// Closes the database, and then leaves the close mark beside it, unless something has failed: then the next
    /// opening treats it as crashed. Has no effect the second time.
    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_ended, true) {
            return Ok(());
        }
        let has_failed = self.db.fatal().is_some();
        self.db.end().map_err(refused)?;
        if !self.is_read_only
            && !has_failed
            && let Some(shelf) = &self.shelf
            && let Err(error) = close_mark::write(shelf)
        {
            tracing::warn!(%error, "the store of metadata could not be marked as closed");
        }
        Ok(())
    }

    /// Merges everything stored, dropping overwritten and deleted pairs. Blocks for as long as that takes.
    pub fn compact(&self) -> Result<()> {
        self.db.flush().and_then(|()| self.db.compact()).map_err(refused)
    }

    /// Waits for merges that are due and may give space back. If something was deleted, it makes them due: RocksDB
    /// would run them at some later time, and no caller could write until then. A transaction that deletes is not
    /// refused while there is anything to merge, nor another one while much of what is stored was deleted.
    fn reclaim(&self, least: u64, deletes: bool) -> Result<()> {
        let mut lacked_space = self.merging.lock();
        let mut has_merged = false;
        let has_deleted = self.deleted.load(Ordering::Relaxed) > 0;
        let lacked_lately = lacked_space.is_some_and(|when| when.elapsed() < NO_MERGE_FOR);
        if self.deleted.load(Ordering::Relaxed) >= DELETED_MIN && !self.would_wait() {
            self.deleted.store(0, Ordering::Relaxed);
            self.db.flush().map_err(refused)?;
            has_merged = true;
        } else if lacked_lately && !(deletes && has_deleted) {
            return Ok(());
        }
        self.wait_for_merges(least, has_merged)?;
        let is_short = || Ok::<_, Error>(self.would_wait() || self.space.bytes()?.1 < least);
        let merges_all = match deletes {
            true => has_deleted || !lacked_lately,
            false => self.has_much_deleted() && !self.would_wait(),
        };
        if merges_all && is_short()? {
            self.deleted.store(0, Ordering::Relaxed);
            self.deleted_pairs.store(0, Ordering::Relaxed);
            match self.db.compact() {
                // There is no space for a full merge either; the caller is refused.
                Err(DbError::NoSpace(_)) => {}
                merged => merged.map_err(refused)?,
            }
            self.wait_for_merges(least, true)?;
        }
        let is_still_short = self.lacks_space() || deletes && is_short()?;
        *lacked_space = is_still_short.then(Instant::now);
        Ok(())
    }

    /// Whether merging the whole store is worth while for what was deleted.
    fn has_much_deleted(&self) -> bool {
        let least = DELETED_PAIRS_MIN.max(self.db.statistics().keys_estimated / PAIRS_PER_DELETED);
        self.deleted_pairs.load(Ordering::Relaxed) >= least
    }

    /// Waits while merges are under way, and for the files that they have replaced to go, which they do a moment later.
    fn wait_for_merges(&self, least: u64, mut has_merged: bool) -> Result<()> {
        let (until, mut idle_since) = (Instant::now() + MERGE_MAX, Instant::now());
        let lacked_before = self.db.merges_lack_space();
        loop {
            let lacked = self.db.merges_lack_space();
            let is_enough = lacked == 0 && self.space.bytes()?.1 >= least;
            if is_enough || lacked > lacked_before || Instant::now() >= until {
                break;
            } else if self.db.statistics().merges > 0 {
                (has_merged, idle_since) = (true, Instant::now());
            } else if !has_merged || idle_since.elapsed() > FILES_GO_WITHIN {
                break;
            }
            std::thread::sleep(MERGE_POLL);
        }
        Ok(())
    }

    /// Whether more changes would soon make writers wait for a merge that lacks space: for ever.
    fn would_wait(&self) -> bool {
        self.db.merges_lack_space() > 0 && self.db.statistics().unmerged_tables >= UNMERGED_TABLES_FULL
    }

    /// Whether merges are due that lack space.
    fn lacks_space(&self) -> bool {
        self.db.merges_lack_space() > 0 && self.db.statistics().merges > 0
    }

    /// Refuses a change for which space may be lacking.
    fn admit(&self, deletes: bool) -> Result<()> {
        let least = if deletes {
            self.reserve_bytes / 2
        } else {
            self.reserve_bytes
        };
        if least == 0 {
            return Ok(());
        }
        // Merges that lack space need more of it with each new table.
        let lacks_space = || if deletes { self.would_wait() } else { self.lacks_space() };
        let (_, mut free) = self.space.bytes()?;
        if free < least || lacks_space() {
            self.reclaim(least, deletes)?;
            (_, free) = self.space.bytes()?;
        }
        if lacks_space() {
            return Err(Error::NoSpace(format!(
                "{} are free, too few to merge tables",
                human_bytes(free)
            )));
        }
        if free < least {
            return Err(Error::NoSpace(format!(
                "{} are free, {} are kept back",
                human_bytes(free),
                human_bytes(least)
            )));
        }
        Ok(())
    }
}

impl Drop for RocksStore {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "the store of metadata did not close well");
        }
    }
}

/// Adapts a visitor to one that returns whether it wants more.
fn wanting(visit: Visit<'_>) -> impl FnMut(&[u8], &[u8]) -> bool {
    |key, value| visit(key, value) == ControlFlow::Continue(())
}

impl MetaStore for RocksStore {
    fn close(self: Box<Self>) -> Result<()> {
        RocksStore::close(*self)
    }

    fn begin(&self) -> Box<dyn Transaction + '_> {
        Box::new(Txn {
            store: self,
            txn: self.db.begin(),
            puts: false,
            deletes: 0,
            is_admitted: false,
        })
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.db.get(key).map_err(refused)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        self.db.scan(from, to, &mut wanting(visit)).map_err(refused)
    }

    fn sync(&self) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        self.db.sync().map_err(refused)
    }

    fn health(&self) -> Result<()> {
        self.db.fatal().map_or(Ok(()), |text| Err(Error::Io(text)))
    }

    fn has_space_to_spare(&self) -> bool {
        let least = self.reserve_bytes.saturating_mul(SPARE_PER_RESERVE);
        least == 0 || self.space.bytes().is_ok_and(|(_, free)| free >= least)
    }

    fn statistics(&self) -> Statistics {
        let counted = self.db.statistics();
        let (file_cache_hits, file_cache_misses) = match &self.space {
            Space::Directory(_) => (0, 0),
            Space::Blobs(files) => files.cache_counts(),
        };
        Statistics {
            keys_estimated: counted.keys_estimated,
            stored_bytes: counted.table_bytes,
            memory_bytes: counted.memory_table_bytes + counted.block_cache_bytes,
            cache_hits: counted.block_cache_hits,
            cache_misses: counted.block_cache_misses,
            file_cache_hits,
            file_cache_misses,
            log_bytes: counted.log_bytes,
            log_syncs: counted.log_syncs,
            stall_us: counted.stall_us,
            ..Statistics::default()
        }
    }
}

struct Txn<'s> {
    store: &'s RocksStore,
    /// `None` in a read-only store.
    txn: Option<crate::rocksdb::Txn<'s>>,
    /// Whether it put anything, even if that was undone.
    puts: bool,
    /// How many pairs it deletes.
    deletes: u64,
    is_admitted: bool,
}

impl<'s> Txn<'s> {
    fn changing(&mut self) -> Result<&mut crate::rocksdb::Txn<'s>> {
        let refused = || Error::Invalid("the store is open for looking only".into());
        self.txn.as_mut().ok_or_else(refused)
    }
}

impl Transaction for Txn<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match &self.txn {
            Some(txn) => txn.get(key).map_err(refused),
            None => self.store.get(key),
        }
    }

    fn get_for_update(&mut self, key: &[u8], lock: Lock) -> Result<Option<Vec<u8>>> {
        let is_exclusive = lock == Lock::Exclusive;
        self.changing()?.get_for_update(key, is_exclusive).map_err(refused)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.puts = true;
        self.changing()?.put(key, value).map_err(refused)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.deletes += 1;
        self.changing()?.delete(key).map_err(refused)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<()> {
        match &self.txn {
            Some(txn) => txn.scan(from, to, &mut wanting(visit)).map_err(refused),
            None => self.store.scan(from, to, visit),
        }
    }

    fn savepoint(&mut self) {
        if let Some(txn) = &mut self.txn {
            txn.savepoint();
        }
    }

    fn rollback_to_savepoint(&mut self) -> Result<()> {
        self.changing()?.rollback_to_savepoint().map_err(|error| match error {
            DbError::NotFound(_) => Error::Invalid("a rollback, but there is no savepoint".into()),
            error => refused(error),
        })
    }

    fn admit(&mut self) -> Result<()> {
        self.store.admit(self.deletes > 0)?;
        self.is_admitted = true;
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<()> {
        if !self.is_admitted && (self.puts || self.deletes > 0) {
            self.store.admit(self.deletes > 0)?;
        }
        if let Some(txn) = self.txn {
            txn.commit().map_err(refused)?;
        }
        if self.deletes > 0 {
            self.store.deleted.fetch_add(1, Ordering::Relaxed);
            self.store.deleted_pairs.fetch_add(self.deletes, Ordering::Relaxed);
        }
        Ok(())
    }
}

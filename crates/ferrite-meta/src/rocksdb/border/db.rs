//! The safe interface of a transactional database.
//!
//! Invariants: a [`Txn`] borrows its [`Db`], so none is left when the database closes; everything that the C++ side was
//! given (the files, the receiver of notices) is dropped after that. One thread at a time uses a transaction: it is
//! neither `Send` nor `Sync`.

use std::ffi::c_void;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use ferrite_cxx::{Bytes, Failure, Kind, Sink, guarded};
use parking_lot::Mutex;
use thiserror::Error;

use super::env::{self, Root};

use super::ffi::{self, Database, Statistics, Transaction};
use crate::rocksdb::files::Files;

/// Errors of RocksDB. The text names the file if one is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(crate) enum DbError {
    /// An expected file is missing.
    #[error("RocksDB: {0}")]
    NotFound(String),
    /// RocksDB's data differs from what it wrote.
    #[error("RocksDB: {0}")]
    Corruption(String),
    /// Not supported with these options, or on these files.
    #[error("RocksDB: {0}")]
    NotSupported(String),
    /// An argument is invalid; also, a missing database was not to be created.
    #[error("RocksDB: {0}")]
    Invalid(String),
    /// The files refused. Once that has happened to a write, RocksDB takes no more until it is opened again.
    #[error("RocksDB: {0}")]
    Io(String),
    /// There was no space left for a write. RocksDB takes no more until it is opened again.
    #[error("RocksDB: {0}")]
    NoSpace(String),
    /// Another transaction kept a lock for too long.
    #[error("RocksDB: {0}")]
    TimedOut(String),
    /// Transactions wait for each other.
    #[error("RocksDB: {0}")]
    Deadlock(String),
    /// The database is open already, here or in another process.
    #[error("RocksDB: {0}")]
    InUse(String),
}

/// Where a database lies.
#[derive(Clone)]
pub(crate) enum Place {
    /// In a directory of this machine, made if it is missing.
    Directory(PathBuf),
    /// In files behind the [`Files`] trait.
    Files(Arc<dyn Files>),
}

/// The directory of a database that has its files for itself.
const ALONE: &[u8] = b"/db";

/// Options of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// Create a missing database. Otherwise that is an error.
    pub(crate) create: bool,
    /// Memory for cached blocks, filters and indexes of tables.
    pub(crate) block_cache_bytes: usize,
    /// Changes are collected up to this size in memory (and in the log) before they become a table. Merged tables have
    /// this size too, and the first level four times as much: merging needs space for up to 16 of them.
    pub(crate) write_buffer_bytes: usize,
    /// Merges leave this much space free: the log and new tables need it, without which the database stops.
    pub(crate) merges_leave_bytes: u64,
    /// Threads that write and merge tables.
    pub(crate) background_jobs: u32,
    /// With so many unmerged tables, writers wait for a merge: for ever, if merges lack space.
    pub(crate) unmerged_tables_max: u32,
    /// Length of the prefixes in filters: a scan within one consults them first. 0 disables them.
    pub(crate) prefix_len_bytes: u32,
    /// How long a transaction waits for a lock.
    pub(crate) lock_timeout: Duration,
    /// A commit is durable when it returns. Otherwise it is after the next [`Db::sync`].
    pub(crate) sync: bool,
    /// Read only: the log is read into memory, no file is made, changed or locked, and there are no transactions. The
    /// caller ensures that no process changes the database meanwhile.
    pub(crate) read_only: bool,
    /// Open it to read as much as possible, however damaged it is.
    pub(crate) salvage: Salvage,
}

/// How much is done to read a damaged database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Salvage {
    /// Nothing: damage is an error.
    No,
    /// [`Db::salvage`] skips unreadable records and blocks.
    Read,
    /// The same, after RocksDB has rebuilt the list of its tables, from those that it finds. It changes the files.
    Rebuild,
}

/// Receives RocksDB's notices.
#[derive(Default)]
struct Told {
    /// The first reason why it takes no more writes.
    fatal: Mutex<Option<String>>,
}

/// An open database. Any number of threads may use it at once. [`Self::close`] reports errors; dropping it does not.
pub(crate) struct Db {
    database: NonNull<Database>,
    closed: bool,
    /// The C++ side has the addresses of both.
    told: Box<Told>,
    _root: Option<Box<Root>>,
}

// SAFETY: RocksDB lets any thread use, and close, a database that another one opened; the root and `told` are `Send`
// and `Sync`.
unsafe impl Send for Db {}
// SAFETY: RocksDB guards a database's state itself; the files below are shared as `Sync` allows.
unsafe impl Sync for Db {}

/// The assumption behind the two `unsafe impl` above.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Root>();
    shared::<Told>();
};

impl Db {
    /// Opens a database.
    ///
    /// # Errors
    /// [`DbError::Invalid`] if the database is missing and was not to be created, [`DbError::InUse`] if it is open
    /// already.
    pub(crate) fn open(place: &Place, options: &Options) -> Result<Db, DbError> {
        let (root, path) = match place {
            Place::Directory(path) => (None, path.as_os_str().as_bytes()),
            Place::Files(files) => (Some(Box::new(Root(Arc::clone(files)))), ALONE),
        };
        let told = Box::<Told>::default();
        let wanted = ffi::OpenOptions {
            block_cache_bytes: options.block_cache_bytes as u64,
            write_buffer_bytes: options.write_buffer_bytes as u64,
            lock_timeout_ms: u64::try_from(options.lock_timeout.as_millis())
                .unwrap_or(u64::MAX)
                .clamp(1, i64::MAX as u64 / 1000),
            merges_leave_bytes: options.merges_leave_bytes,
            background_jobs: options.background_jobs.clamp(1, 64),
            unmerged_tables_max: options.unmerged_tables_max.clamp(1, 1 << 20),
            prefix_len_bytes: options.prefix_len_bytes,
            create_if_missing: options.create,
            sync: options.sync,
            read_only: options.read_only,
            salvage: match options.salvage {
                Salvage::No => 0,
                Salvage::Read => 1,
                Salvage::Rebuild => 2,
            },
        };
        let mut failure = Failure::none();
        // SAFETY: the operations are static; root and `told` are boxed and live as long as `Db`, which closes the
        // database before it drops them, or, if this fails, until the end of this function; the rest is borrowed for
        // the call.
        let database = unsafe {
            ffi::ferrite_rocksdb_open(
                if root.is_some() { &env::OPS } else { std::ptr::null() },
                root.as_ref()
                    .map_or(std::ptr::null(), |root| (&raw const **root).cast()),
                Bytes::of(path),
                &wanted,
                hear,
                (&raw const *told).cast(),
                &mut failure,
            )
        };
        checked(&failure)?;
        let database = NonNull::new(database).ok_or_else(|| DbError::Io("no database came of opening one".into()))?;
        Ok(Db {
            database,
            closed: false,
            told,
            _root: root,
        })
    }

    /// Begins a transaction; `None` if the database was opened with [`Options::read_only`].
    pub(crate) fn begin(&self) -> Option<Txn<'_>> {
        // SAFETY: the database is open.
        let transaction = unsafe { ffi::ferrite_rocksdb_begin(self.database.as_ptr()) };
        // RocksDB's `new` does not return without memory.
        let transaction = NonNull::new(transaction)?;
        Some(Txn { db: self, transaction })
    }

    /// The value of a key, as last committed.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DbError> {
        value_by(|sink, context, failure| {
            // SAFETY: the database is open; the sink gets its context during the call only, from this thread.
            unsafe { ffi::ferrite_rocksdb_get(self.database.as_ptr(), Bytes::of(key), sink, context, failure) }
        })
    }

    /// Passes `each` the pairs of `from..to` in order, until it returns false. All are from one snapshot; `each` may
    /// use the database.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), DbError> {
        visit(each, |sink, context, failure| {
            let (from, to) = (Bytes::of(from), Bytes::of(to));
            // SAFETY: as in `get`.
            unsafe { ffi::ferrite_rocksdb_scan(self.database.as_ptr(), from, to, sink, context, failure) }
        })
    }

    /// Passes `each` all readable pairs, in any order, some maybe twice, until it returns false. Returns the number of
    /// ranges of keys that are partly unreadable.
    pub(crate) fn salvage(&self, each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> u64 {
        let mut gaps = 0;
        let visited = visit(each, |sink, context, _| {
            // SAFETY: as in `get`.
            gaps = unsafe { ffi::ferrite_rocksdb_salvage(self.database.as_ptr(), sink, context) };
        });
        debug_assert!(visited.is_ok(), "it says what it cannot read by the number alone");
        gaps
    }

    /// Returns when all earlier commits are durable.
    pub(crate) fn sync(&self) -> Result<(), DbError> {
        self.call(ffi::ferrite_rocksdb_sync)
    }

    /// Makes tables of all data that is only in memory and in the log.
    pub(crate) fn flush(&self) -> Result<(), DbError> {
        self.call(ffi::ferrite_rocksdb_flush)
    }

    /// Merges all tables. Blocks for as long as that takes.
    pub(crate) fn compact(&self) -> Result<(), DbError> {
        self.call(ffi::ferrite_rocksdb_compact)
    }

    /// Writes a copy, as of now, which opens as a database, to a place that does not exist yet: a directory's path, or
    /// a name behind the [`Files`] trait. Nothing else renames a directory.
    #[cfg(test)]
    pub(crate) fn checkpoint(&self, path: &[u8]) -> Result<(), DbError> {
        let mut failure = Failure::none();
        // SAFETY: the database is open.
        unsafe { ffi::ferrite_rocksdb_checkpoint(self.database.as_ptr(), Bytes::of(path), &mut failure) };
        checked(&failure)
    }

    /// Its counters.
    pub(crate) fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        // SAFETY: the database is open.
        unsafe { ffi::ferrite_rocksdb_statistics(self.database.as_ptr(), &mut statistics) };
        statistics
    }

    /// Merges that ended for lack of space since the last one that did not; those of unmerged tables, since the last of
    /// these. RocksDB tries again each second.
    pub(crate) fn merges_lack_space(&self) -> u64 {
        // SAFETY: the database is open.
        unsafe { ffi::ferrite_rocksdb_merges_lack_space(self.database.as_ptr()) }
    }

    /// Why RocksDB takes no more writes, if so. One of its own threads may have found out.
    pub(crate) fn fatal(&self) -> Option<String> {
        self.told.fatal.lock().clone()
    }

    /// Makes the log durable and ends all threads.
    pub(crate) fn close(mut self) -> Result<(), DbError> {
        self.end()
    }

    /// Closes the database, the first time. Nothing but this and the fields' own drop may follow.
    pub(crate) fn end(&mut self) -> Result<(), DbError> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let mut failure = Failure::none();
        // SAFETY: opened by `open`, closed here alone, once; no transaction is left, for it would borrow `self`, and
        // the callers, `close` and `drop`, use it no more; the root and `told` are dropped after this.
        unsafe { ffi::ferrite_rocksdb_close(self.database.as_ptr(), &mut failure) };
        checked(&failure)
    }

    fn call(&self, call: unsafe extern "C" fn(*mut Database, *mut Failure)) -> Result<(), DbError> {
        let mut failure = Failure::none();
        // SAFETY: the database is open.
        unsafe { call(self.database.as_ptr(), &mut failure) };
        checked(&failure)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "a database did not close well");
        }
    }
}

/// A transaction. It has a lock on each key that it changed or got for update, until it ends. Dropping it undoes it.
pub(crate) struct Txn<'db> {
    db: &'db Db,
    transaction: NonNull<Transaction>,
}

impl Txn<'_> {
    /// The value of a key: this transaction's, or else as last committed. Takes no lock.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DbError> {
        value_by(|sink, context, failure| {
            // SAFETY: the transaction has not ended; the sink gets its context during the call only, from this thread.
            unsafe { ffi::ferrite_rocksdb_txn_get(self.transaction.as_ptr(), Bytes::of(key), sink, context, failure) }
        })
    }

    /// Locks a key, and gets its value. Blocks while others have it locked.
    pub(crate) fn get_for_update(&mut self, key: &[u8], exclusive: bool) -> Result<Option<Vec<u8>>, DbError> {
        let (txn, key) = (self.transaction.as_ptr(), Bytes::of(key));
        value_by(|sink, context, failure| {
            // SAFETY: as in `get`.
            unsafe { ffi::ferrite_rocksdb_txn_get_for_update(txn, key, exclusive, sink, context, failure) }
        })
    }

    /// Locks a key exclusively, and sets its value.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DbError> {
        let mut failure = Failure::none();
        let (key, value) = (Bytes::of(key), Bytes::of(value));
        // SAFETY: the transaction has not ended.
        unsafe { ffi::ferrite_rocksdb_txn_put(self.transaction.as_ptr(), key, value, &mut failure) };
        checked(&failure)
    }

    /// Locks a key exclusively, and removes it.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<(), DbError> {
        let mut failure = Failure::none();
        // SAFETY: the transaction has not ended.
        unsafe { ffi::ferrite_rocksdb_txn_delete(self.transaction.as_ptr(), Bytes::of(key), &mut failure) };
        checked(&failure)
    }

    /// As [`Db::scan`], with this transaction's own changes.
    pub(crate) fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), DbError> {
        let (db, txn) = (self.db.database.as_ptr(), self.transaction.as_ptr());
        visit(each, |sink, context, failure| {
            let (from, to) = (Bytes::of(from), Bytes::of(to));
            // SAFETY: as in `get`; `each` cannot change the transaction meanwhile, which is borrowed.
            unsafe { ffi::ferrite_rocksdb_txn_scan(db, txn, from, to, sink, context, failure) }
        })
    }

    /// Sets a savepoint.
    pub(crate) fn savepoint(&mut self) {
        // SAFETY: the transaction has not ended.
        unsafe { ffi::ferrite_rocksdb_txn_savepoint(self.transaction.as_ptr()) };
    }

    /// Undoes all changes since the last savepoint, and forgets it.
    pub(crate) fn rollback_to_savepoint(&mut self) -> Result<(), DbError> {
        let mut failure = Failure::none();
        // SAFETY: the transaction has not ended.
        unsafe { ffi::ferrite_rocksdb_txn_rollback_to_savepoint(self.transaction.as_ptr(), &mut failure) };
        checked(&failure)
    }

    /// Makes the changes visible, all at once, and durable, if the database has [`Options::sync`].
    ///
    /// # Errors
    /// After one, it is unknown whether the changes will be there when the database is opened again.
    pub(crate) fn commit(self) -> Result<(), DbError> {
        let mut failure = Failure::none();
        // SAFETY: the transaction has not ended; `drop` ends it.
        unsafe { ffi::ferrite_rocksdb_txn_commit(self.transaction.as_ptr(), &mut failure) };
        checked(&failure)
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        // SAFETY: begun by `begin`, ended here alone, while the database is open.
        unsafe { ffi::ferrite_rocksdb_end(self.transaction.as_ptr()) };
    }
}

/// Has the C++ side pass pieces to `each`, as [`ferrite_cxx::visit`] does.
fn visit(
    each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    call: impl FnOnce(Sink, *mut c_void, &mut Failure),
) -> Result<(), DbError> {
    checked(&ferrite_cxx::visit(each, call))
}

/// A value that the C++ side passes, if it finds one.
fn value_by(call: impl FnOnce(Sink, *mut c_void, &mut Failure)) -> Result<Option<Vec<u8>>, DbError> {
    let mut value = None;
    let found = visit(
        &mut |bytes, _| {
            value = Some(bytes.to_vec());
            true
        },
        call,
    );
    match found {
        Ok(()) => Ok(value),
        Err(DbError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

extern "C" fn hear(told: *const c_void, fatal: bool, text: Bytes) {
    // SAFETY: `open` passed its box, which outlives the database; the text is borrowed for this call.
    let (told, text) = unsafe { (&*told.cast::<Told>(), text.slice()) };
    guarded(&mut Failure::none(), (), || {
        let text = String::from_utf8_lossy(text);
        if fatal {
            tracing::error!("RocksDB takes no more writes: {text}");
            told.fatal.lock().get_or_insert_with(|| text.into_owned());
        } else {
            tracing::warn!("RocksDB: {text}");
        }
        Ok(())
    });
}

fn checked(failure: &Failure) -> Result<(), DbError> {
    let text = || failure.text();
    Err(match failure.kind {
        Kind::NONE => return Ok(()),
        Kind::NOT_FOUND => DbError::NotFound(text()),
        Kind::CORRUPTION => DbError::Corruption(text()),
        Kind::NOT_SUPPORTED => DbError::NotSupported(text()),
        Kind::INVALID => DbError::Invalid(text()),
        Kind::NO_SPACE => DbError::NoSpace(text()),
        Kind::TIMED_OUT => DbError::TimedOut(text()),
        Kind::DEADLOCK => DbError::Deadlock(text()),
        Kind::IN_USE => DbError::InUse(text()),
        _ => DbError::Io(text()),
    })
}

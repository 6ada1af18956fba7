//! LevelDB on Ferrite, in one process: a widely used key-value store whose files lie in a pool, without a kernel in
//! between.
//!
//! | module | what lives there |
//! | --- | --- |
//! | `lib` | [`Db`], the safe interface |
//! | `env` | LevelDB's files over [`Vfs`] |
//! | `ffi` | the interface of Rust and C++ |
//! | `shim.cc` | the C++ side: an `Env` that calls `env`, and a database as functions |
//!
//! LevelDB's log gets a record with each write, while its tables are written once and read at random. So the lab uses
//! it to measure the effect of a mapping on an application.
//!
//! *Architecture invariant:* `unsafe` is for the language border and nowhere else; nothing unwinds across it.
//!
//! *Architecture invariant:* only the lab uses this crate, and only with the cargo feature `leveldb`: it needs a C++
//! compiler and LevelDB, which users of the file system may lack.

mod env;
mod ffi;

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use ferrite_cxx::{Bytes, Failure, Kind, Sink};
use ferrite_vfs::Vfs;
use thiserror::Error;

use env::Root;
use ffi::Database;

/// Why LevelDB refused. The text names the file if any.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DbError {
    /// A required file is missing.
    #[error("LevelDB: {0}")]
    NotFound(String),
    /// LevelDB read other bytes than it wrote.
    #[error("LevelDB: {0}")]
    Corruption(String),
    /// Not supported with these options, or on this file system.
    #[error("LevelDB: {0}")]
    NotSupported(String),
    /// An argument is invalid.
    #[error("LevelDB: {0}")]
    Invalid(String),
    /// The file system refused: full, damaged, read-only, locked. Once compaction has failed, or a synchronous write,
    /// LevelDB takes no more writes until the database is reopened.
    #[error("LevelDB: {0}")]
    Io(String),
}

/// Options of a database. The defaults are LevelDB's, except for compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A table that has grown to this size is closed, and another one started.
    pub max_file_size_bytes: usize,
    /// Writes are collected up to this size in memory (and in the log) before they become a table.
    pub write_buffer_bytes: usize,
    /// Memory for cached blocks of tables.
    pub block_cache_bytes: usize,
    /// Compress tables (snappy).
    pub compress: bool,
    /// Each write ends with an `fsync` of the log. Without it, a write is as durable as the file system makes a
    /// completed write.
    pub sync: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_file_size_bytes: 2 << 20,
            write_buffer_bytes: 4 << 20,
            block_cache_bytes: 8 << 20,
            compress: false,
            sync: false,
        }
    }
}

/// An open database. Any number of threads may use it at once; dropping it closes it.
pub struct Db {
    database: NonNull<Database>,
    /// The C++ side has its address.
    _root: Arc<Root>,
}

// SAFETY: LevelDB lets any thread use, and close, a database that another one opened; the root is `Send` and `Sync`.
unsafe impl Send for Db {}
// SAFETY: LevelDB guards a database's state itself ("safe for concurrent access from multiple threads"); the files
// below meet LevelDB's requirements on any `Env`.
unsafe impl Sync for Db {}

/// The premise of the two `unsafe impl` above.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Root>();
};

impl Db {
    /// Opens the database in directory `path`, or creates one; the parent directory must exist.
    ///
    /// # Errors
    /// [`DbError::Io`] if it is open already, or if the file system refuses.
    pub fn open(vfs: &Vfs, path: &str, options: &Options) -> Result<Db, DbError> {
        let root = Arc::new(Root(vfs.clone()));
        let wanted = ffi::OpenOptions {
            max_file_size_bytes: options.max_file_size_bytes as u64,
            write_buffer_bytes: options.write_buffer_bytes as u64,
            block_cache_bytes: options.block_cache_bytes as u64,
            compress: options.compress,
            sync: options.sync,
        };
        let mut failure = Failure::none();
        // SAFETY: the operations are static; the root lives as long as `Db`, which closes the database before it drops
        // the root, or, if this fails, until the end of this function; the rest is borrowed for the call.
        let database = unsafe {
            ffi::ferrite_leveldb_open(
                &env::OPS,
                Arc::as_ptr(&root).cast(),
                Bytes::of(path.as_bytes()),
                &wanted,
                &mut failure,
            )
        };
        told(&failure)?;
        let database = NonNull::new(database).ok_or_else(|| DbError::Io(format!("{path}: no database came of it")))?;
        Ok(Db { database, _root: root })
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DbError> {
        let mut value = None;
        let found = self.visit(key, ffi::ferrite_leveldb_get, &mut |bytes, _| {
            value = Some(bytes.to_vec());
            true
        });
        match found {
            Ok(()) => Ok(value),
            Err(DbError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets a key's value. Durable when it returns if the file system makes completed writes durable, or with
    /// [`Options::sync`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), DbError> {
        let mut failure = Failure::none();
        // SAFETY: the database is open; key and value are borrowed for the call.
        unsafe {
            ffi::ferrite_leveldb_put(self.database.as_ptr(), Bytes::of(key), Bytes::of(value), &mut failure);
        }
        told(&failure)
    }

    /// Removes a key, if it is there. As durable as [`Self::put`].
    pub fn delete(&self, key: &[u8]) -> Result<(), DbError> {
        let mut failure = Failure::none();
        // SAFETY: the database is open; the key is borrowed for the call.
        unsafe { ffi::ferrite_leveldb_delete(self.database.as_ptr(), Bytes::of(key), &mut failure) };
        told(&failure)
    }

    /// Passes `each` up to `limit` pairs in the order of their keys, from the first at or after `from`. Returns their
    /// number. All are from one snapshot; `each` may use the database.
    pub fn scan(&self, from: &[u8], limit: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, DbError> {
        let mut count = 0;
        if limit == 0 {
            return Ok(0);
        }
        self.visit(from, ffi::ferrite_leveldb_scan, &mut |key, value| {
            each(key, value);
            count += 1;
            count < limit
        })?;
        Ok(count)
    }

    /// Compacts all pairs into as few tables as possible, without overwritten and removed ones. Blocks for as long as
    /// that takes.
    pub fn compact(&self) -> Result<(), DbError> {
        let mut failure = Failure::none();
        // SAFETY: the database is open.
        unsafe { ffi::ferrite_leveldb_compact(self.database.as_ptr(), &mut failure) };
        told(&failure)
    }

    /// Waits until LevelDB's thread has no work left for this database. Does not end while others write.
    pub fn settle(&self) {
        // SAFETY: the database is open.
        unsafe { ffi::ferrite_leveldb_settle(self.database.as_ptr()) };
    }

    /// Has the C++ side pass pieces to `each`, until that returns false. A panic of `each` resumes in the caller.
    fn visit(
        &self,
        key: &[u8],
        call: unsafe extern "C" fn(*mut Database, Bytes, Sink, *mut c_void, *mut Failure),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), DbError> {
        let failure = ferrite_cxx::visit(each, |sink, context, failure| {
            // SAFETY: the database is open; the sink gets its context during the call only, from this thread.
            unsafe { call(self.database.as_ptr(), Bytes::of(key), sink, context, failure) }
        });
        told(&failure)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed only here; the root is dropped after this.
        unsafe { ffi::ferrite_leveldb_close(self.database.as_ptr()) };
    }
}

fn told(failure: &Failure) -> Result<(), DbError> {
    let text = failure.text();
    Err(match failure.kind {
        Kind::NONE => return Ok(()),
        Kind::NOT_FOUND => DbError::NotFound(text),
        Kind::CORRUPTION => DbError::Corruption(text),
        Kind::NOT_SUPPORTED => DbError::NotSupported(text),
        Kind::INVALID => DbError::Invalid(text),
        _ => DbError::Io(text),
    })
}

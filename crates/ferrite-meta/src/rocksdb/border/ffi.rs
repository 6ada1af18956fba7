//! The interface of the Rust and C++ sides, as in `shim.h`, in the same order. [`ferrite_cxx`] has the types and the
//! invariants that it shares with other borders. Used by `db` and `env` only.

use std::ffi::c_void;

use ferrite_cxx::{Bytes, Failure, Sink};

/// Receives RocksDB's notices. Any thread.
pub(super) type Notice = extern "C" fn(context: *const c_void, fatal: bool, text: Bytes);

type Root = *const c_void;

/// Files, as `env` implements them.
#[repr(C)]
pub(super) struct FileOps {
    pub(super) open_reader: extern "C" fn(Root, Bytes, bool, *mut Failure) -> *mut c_void,
    pub(super) read_at: extern "C" fn(*const c_void, u64, *mut u8, usize, *mut Failure) -> usize,
    pub(super) close_reader: extern "C" fn(*mut c_void),
    pub(super) open_writer: extern "C" fn(Root, Bytes, bool, *mut Failure) -> *mut c_void,
    pub(super) append: extern "C" fn(*const c_void, Bytes, *mut Failure),
    pub(super) sync: extern "C" fn(*const c_void, *mut Failure),
    pub(super) truncate: extern "C" fn(*const c_void, u64, *mut Failure),
    pub(super) written_bytes: extern "C" fn(*const c_void) -> u64,
    pub(super) close_writer: extern "C" fn(*mut c_void, *mut Failure),
    pub(super) exists: extern "C" fn(Root, Bytes, *mut Failure) -> bool,
    pub(super) size_bytes: extern "C" fn(Root, Bytes, *mut Failure) -> u64,
    pub(super) free_bytes: extern "C" fn(Root, *mut Failure) -> u64,
    pub(super) list: extern "C" fn(Root, Bytes, Sink, *mut c_void, *mut Failure),
    pub(super) remove: extern "C" fn(Root, Bytes, *mut Failure),
    pub(super) rename: extern "C" fn(Root, Bytes, Bytes, *mut Failure),
    pub(super) lock: extern "C" fn(Root, Bytes, *mut Failure) -> *mut c_void,
    pub(super) unlock: extern "C" fn(*mut c_void),
}

/// Options of a database.
#[repr(C)]
pub(super) struct OpenOptions {
    pub(super) block_cache_bytes: u64,
    pub(super) write_buffer_bytes: u64,
    pub(super) lock_timeout_ms: u64,
    pub(super) merges_leave_bytes: u64,
    pub(super) background_jobs: u32,
    pub(super) unmerged_tables_max: u32,
    pub(super) prefix_len_bytes: u32,
    pub(super) create_if_missing: bool,
    pub(super) sync: bool,
    pub(super) read_only: bool,
    pub(super) salvage: u32,
}

/// Counters of a database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Statistics {
    /// Keys, estimated.
    pub(crate) keys_estimated: u64,
    /// Bytes in tables.
    pub(crate) table_bytes: u64,
    /// Bytes of memory for what is not in tables yet.
    pub(crate) memory_table_bytes: u64,
    /// Bytes that the cache of blocks holds now.
    pub(crate) block_cache_bytes: u64,
    /// Blocks that were found in the cache, since the database was opened.
    pub(crate) block_cache_hits: u64,
    /// Blocks that were not.
    pub(crate) block_cache_misses: u64,
    /// Bytes written to the log since the database was opened.
    pub(crate) log_bytes: u64,
    /// Syncs of the log. Fewer than commits, if threads commit at the same time.
    pub(crate) log_syncs: u64,
    /// Merges of tables that are running or due.
    pub(crate) merges: u64,
    /// Tables that were never merged; see [`crate::rocksdb::Options::unmerged_tables_max`].
    pub(crate) unmerged_tables: u64,
    /// Microseconds in which writers had to wait for tables to be merged.
    pub(crate) stall_us: u64,
}

/// A database of the C++ side.
#[repr(C)]
pub(super) struct Database {
    _private: [u8; 0],
}

/// A transaction of the C++ side.
#[repr(C)]
pub(super) struct Transaction {
    _private: [u8; 0],
}

unsafe extern "C" {
    pub(super) fn ferrite_rocksdb_open(
        ops: *const FileOps,
        root: *const c_void,
        path: Bytes,
        options: *const OpenOptions,
        notice: Notice,
        context: *const c_void,
        failure: *mut Failure,
    ) -> *mut Database;
    pub(super) fn ferrite_rocksdb_close(database: *mut Database, failure: *mut Failure);
    pub(super) fn ferrite_rocksdb_get(
        database: *mut Database,
        key: Bytes,
        sink: Sink,
        context: *mut c_void,
        failure: *mut Failure,
    );
    pub(super) fn ferrite_rocksdb_scan(
        database: *mut Database,
        from: Bytes,
        to: Bytes,
        sink: Sink,
        context: *mut c_void,
        failure: *mut Failure,
    );
    pub(super) fn ferrite_rocksdb_salvage(database: *mut Database, sink: Sink, context: *mut c_void) -> u64;
    pub(super) fn ferrite_rocksdb_sync(database: *mut Database, failure: *mut Failure);
    pub(super) fn ferrite_rocksdb_flush(database: *mut Database, failure: *mut Failure);
    pub(super) fn ferrite_rocksdb_compact(database: *mut Database, failure: *mut Failure);
    #[cfg(test)]
    pub(super) fn ferrite_rocksdb_checkpoint(database: *mut Database, path: Bytes, failure: *mut Failure);
    pub(super) fn ferrite_rocksdb_merges_lack_space(database: *const Database) -> u64;
    pub(super) fn ferrite_rocksdb_statistics(database: *mut Database, statistics: *mut Statistics);
    pub(super) fn ferrite_rocksdb_begin(database: *mut Database) -> *mut Transaction;
    pub(super) fn ferrite_rocksdb_end(transaction: *mut Transaction);
    pub(super) fn ferrite_rocksdb_txn_get(
        transaction: *mut Transaction,
        key: Bytes,
        sink: Sink,
        context: *mut c_void,
        failure: *mut Failure,
    );
    pub(super) fn ferrite_rocksdb_txn_get_for_update(
        transaction: *mut Transaction,
        key: Bytes,
        exclusive: bool,
        sink: Sink,
        context: *mut c_void,
        failure: *mut Failure,
    );
    pub(super) fn ferrite_rocksdb_txn_put(
        transaction: *mut Transaction,
        key: Bytes,
        value: Bytes,
        failure: *mut Failure,
    );
    pub(super) fn ferrite_rocksdb_txn_delete(transaction: *mut Transaction, key: Bytes, failure: *mut Failure);
    pub(super) fn ferrite_rocksdb_txn_scan(
        database: *mut Database,
        transaction: *mut Transaction,
        from: Bytes,
        to: Bytes,
        sink: Sink,
        context: *mut c_void,
        failure: *mut Failure,
    );
    pub(super) fn ferrite_rocksdb_txn_savepoint(transaction: *mut Transaction);
    pub(super) fn ferrite_rocksdb_txn_rollback_to_savepoint(transaction: *mut Transaction, failure: *mut Failure);
    pub(super) fn ferrite_rocksdb_txn_commit(transaction: *mut Transaction, failure: *mut Failure);
}

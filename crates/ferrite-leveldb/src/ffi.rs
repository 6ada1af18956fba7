//! The interface of the Rust and C++ sides, as in `shim.h`, in the same order. [`ferrite_cxx`] has the types and the
//! invariants that it shares with other borders. Used by `lib` and `env` only.

use std::ffi::c_void;

use ferrite_cxx::{Bytes, Failure, Sink};

type ChangePath = extern "C" fn(root: *const c_void, path: Bytes, failure: *mut Failure);
type Close = extern "C" fn(file: *mut c_void);
type OfWriter = extern "C" fn(writer: *mut c_void, failure: *mut Failure);

/// The file system, as `env` implements it.
#[repr(C)]
pub(crate) struct FileOps {
    pub(crate) open_reader: extern "C" fn(*const c_void, Bytes, *mut Failure) -> *mut c_void,
    pub(crate) read_at: extern "C" fn(*const c_void, u64, *mut u8, usize, *mut Failure) -> usize,
    pub(crate) close_reader: Close,
    pub(crate) open_writer: extern "C" fn(*const c_void, Bytes, bool, *mut Failure) -> *mut c_void,
    pub(crate) append: extern "C" fn(*mut c_void, Bytes, *mut Failure),
    pub(crate) flush: OfWriter,
    pub(crate) sync: OfWriter,
    pub(crate) close_writer: OfWriter,
    pub(crate) size_bytes: extern "C" fn(*const c_void, Bytes, *mut Failure) -> u64,
    pub(crate) list: extern "C" fn(*const c_void, Bytes, Sink, *mut c_void, *mut Failure),
    pub(crate) make_dir: ChangePath,
    pub(crate) remove_dir: ChangePath,
    pub(crate) remove_file: ChangePath,
    pub(crate) rename: extern "C" fn(*const c_void, Bytes, Bytes, *mut Failure),
    pub(crate) lock: extern "C" fn(*const c_void, Bytes, *mut Failure) -> *mut c_void,
    pub(crate) unlock: Close,
}

/// Options of a database.
#[repr(C)]
pub(crate) struct OpenOptions {
    pub(crate) max_file_size_bytes: u64,
    pub(crate) write_buffer_bytes: u64,
    pub(crate) block_cache_bytes: u64,
    pub(crate) compress: bool,
    pub(crate) sync: bool,
}

/// A database of the C++ side.
#[repr(C)]
pub(crate) struct Database {
    _private: [u8; 0],
}

unsafe extern "C" {
    pub(crate) fn ferrite_leveldb_open(
        ops: *const FileOps,
        root: *const c_void,
        path: Bytes,
        options: *const OpenOptions,
        failure: *mut Failure,
    ) -> *mut Database;
    pub(crate) fn ferrite_leveldb_close(database: *mut Database);
    pub(crate) fn ferrite_leveldb_put(database: *mut Database, key: Bytes, value: Bytes, failure: *mut Failure);
    pub(crate) fn ferrite_leveldb_delete(database: *mut Database, key: Bytes, failure: *mut Failure);
    pub(crate) fn ferrite_leveldb_get(
        database: *mut Database,
        key: Bytes,
        sink: Sink,
        context: *mut c_void,
        failure: *mut Failure,
    );
    pub(crate) fn ferrite_leveldb_scan(
        database: *mut Database,
        from: Bytes,
        sink: Sink,
        context: *mut c_void,
        failure: *mut Failure,
    );
    pub(crate) fn ferrite_leveldb_compact(database: *mut Database, failure: *mut Failure);
    pub(crate) fn ferrite_leveldb_settle(database: *mut Database);
}

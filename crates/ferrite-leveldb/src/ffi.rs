//! The interface of the Rust and C++ sides, as in `shim.h`, in the same order.
//!
//! Invariants: all of it is plain data; the caller provides the [`Failure`], with kind [`Kind::NONE`]; the target of a
//! [`Bytes`] is borrowed for the length of the call; no panic or exception unwinds from one side into the other
//! ([`guarded`]). Used by `db` and `env` only.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Kinds of failure, those of `leveldb::Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Kind(pub(crate) i32);

impl Kind {
    pub(crate) const NONE: Kind = Kind(0);
    pub(crate) const NOT_FOUND: Kind = Kind(1);
    pub(crate) const CORRUPTION: Kind = Kind(2);
    pub(crate) const NOT_SUPPORTED: Kind = Kind(3);
    pub(crate) const INVALID: Kind = Kind(4);
    pub(crate) const IO: Kind = Kind(5);
}

const TEXT_BYTES: usize = 248;

/// Why something failed.
#[repr(C)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    len_bytes: u32,
    text: [u8; TEXT_BYTES],
}

impl Failure {
    /// Nothing failed.
    pub(crate) fn none() -> Failure {
        Failure {
            kind: Kind::NONE,
            len_bytes: 0,
            text: [0; TEXT_BYTES],
        }
    }

    /// Text beyond the field's length is cut off.
    pub(crate) fn set(&mut self, kind: Kind, text: &str) {
        let len = text.len().min(TEXT_BYTES);
        self.kind = kind;
        self.len_bytes = len as u32;
        self.text[..len].copy_from_slice(&text.as_bytes()[..len]);
    }

    /// Its text.
    pub(crate) fn text(&self) -> String {
        let len = (self.len_bytes as usize).min(TEXT_BYTES);
        String::from_utf8_lossy(&self.text[..len]).into_owned()
    }
}

/// Borrowed for the length of a call.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Bytes {
    data: *const u8,
    len_bytes: usize,
}

impl Bytes {
    pub(crate) fn of(slice: &[u8]) -> Bytes {
        Bytes {
            data: slice.as_ptr(),
            len_bytes: slice.len(),
        }
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// `self` came from the C++ side in this call, and the result is not used after it.
    pub(crate) unsafe fn slice<'a>(self) -> &'a [u8] {
        if self.len_bytes == 0 {
            // The C++ side may pass no address for an empty slice.
            return &[];
        }
        // SAFETY: the C++ side passes the address of that many bytes, which it does not modify during the call.
        unsafe { std::slice::from_raw_parts(self.data, self.len_bytes) }
    }
}

/// Receives data piece by piece; returns false for no more.
pub(crate) type Sink = extern "C" fn(context: *mut c_void, first: Bytes, second: Bytes) -> bool;

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

/// Runs `work` for the C++ side. An error or a panic becomes a failure and the value `otherwise`.
pub(crate) fn guarded<T>(failure: &mut Failure, otherwise: T, work: impl FnOnce() -> Result<T, (Kind, String)>) -> T {
    // A panic is a bug in the file system, but it does not poison the locks. It leaves the same state as in any thread
    // of a program that links the library, and LevelDB gets an error for the operation.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => done,
        Ok(Err((kind, text))) => {
            failure.set(kind, &text);
            otherwise
        }
        Err(_) => {
            failure.set(
                Kind::IO,
                "a mistake of the file system (it panicked; its message is on standard error)",
            );
            otherwise
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_as_a_failure() {
        let mut failure = Failure::none();
        let result = guarded(&mut failure, 7, || panic!("wanted by this test"));
        assert_eq!((result, failure.kind), (7, Kind::IO));
        assert!(failure.text().contains("panicked"));
    }

    #[test]
    fn long_texts_are_truncated() {
        let mut failure = Failure::none();
        failure.set(Kind::INVALID, &"é".repeat(TEXT_BYTES));
        assert_eq!(failure.kind, Kind::INVALID);
        assert!(failure.text().starts_with("éé"));
    }
}

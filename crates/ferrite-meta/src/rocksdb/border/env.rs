//! RocksDB's files: the functions that the C++ side calls, over [`Files`].
//!
//! Invariants: pointers passed out are boxes of a [`Reader`], a [`Writer`] or a [`Held`], and come back as the same
//! type, the last time to be closed; the root is a [`Root`] that the database keeps. Used by `db` only.

use std::ffi::c_void;
use std::sync::Arc;

use ferrite_cxx::{Bytes, Failure, Kind, Sink, boxed, close, guarded, unboxed};

use super::ffi::FileOps;
use crate::rocksdb::files::{FileError, Files, Reader, Writer};

/// The files of a database.
pub(super) struct Root(pub(super) Arc<dyn Files>);

pub(super) static OPS: FileOps = FileOps {
    open_reader,
    read_at,
    close_reader,
    open_writer,
    append,
    sync,
    truncate,
    written_bytes,
    close_writer,
    exists,
    size_bytes,
    free_bytes,
    list,
    remove,
    rename,
    lock,
    unlock,
};

type AnyReader = Box<dyn Reader>;
type AnyWriter = Box<dyn Writer>;

/// A lock that is held.
struct Held {
    files: Arc<dyn Files>,
    name: Vec<u8>,
}

fn refused(error: FileError) -> (Kind, String) {
    let kind = match error {
        FileError::NotFound => Kind::NOT_FOUND,
        FileError::NoSpace(_) => Kind::NO_SPACE,
        FileError::Corruption(_) => Kind::CORRUPTION,
        FileError::Locked(_) => Kind::IN_USE,
        FileError::Io(_) => Kind::IO,
    };
    (kind, error.to_string())
}

/// Runs `work` on the files for the C++ side.
fn on_files<T>(
    root: *const c_void,
    failure: *mut Failure,
    otherwise: T,
    work: impl FnOnce(&Arc<dyn Files>) -> Result<T, FileError>,
) -> T {
    // SAFETY: the C++ side passes the root that `Db::open` gave it, which lives as long as the database; the failure is
    // one of its locals during this call.
    let (root, failure) = unsafe { (&*root.cast::<Root>(), &mut *failure) };
    guarded(failure, otherwise, || work(&root.0).map_err(refused))
}

/// Runs `work` on the files and a name for the C++ side.
fn at_name<T>(
    root: *const c_void,
    name: Bytes,
    failure: *mut Failure,
    otherwise: T,
    work: impl FnOnce(&Arc<dyn Files>, &[u8]) -> Result<T, FileError>,
) -> T {
    // SAFETY: borrowed from the C++ side for this call.
    let name = unsafe { name.slice() };
    on_files(root, failure, otherwise, |files| work(files, name))
}

/// Runs `work` on an open writer for the C++ side.
fn on_writer(writer: *const c_void, failure: *mut Failure, work: impl FnOnce(&AnyWriter) -> Result<(), FileError>) {
    // SAFETY: the C++ side passes what `open_writer` gave it and has not closed it; a writer may be shared by threads.
    // The failure is one of its locals.
    let (writer, failure) = unsafe { (&*writer.cast::<AnyWriter>(), &mut *failure) };
    guarded(failure, (), || work(writer).map_err(refused));
}

extern "C" fn open_reader(root: *const c_void, name: Bytes, in_order: bool, failure: *mut Failure) -> *mut c_void {
    at_name(root, name, failure, std::ptr::null_mut(), |files, name| {
        files.open(name, in_order).map(boxed::<AnyReader>)
    })
}

extern "C" fn read_at(reader: *const c_void, offset: u64, into: *mut u8, len: usize, failure: *mut Failure) -> usize {
    // SAFETY: the C++ side passes what `open_reader` gave it and has not closed it, a local failure, and a buffer of
    // `len` bytes that is its own. The buffer need not be initialised, so it is, before it becomes a slice.
    let (reader, into, failure) = unsafe {
        into.write_bytes(0, len);
        (
            &*reader.cast::<AnyReader>(),
            std::slice::from_raw_parts_mut(into, len),
            &mut *failure,
        )
    };
    guarded(failure, 0, || reader.read_at(offset, into).map_err(refused))
}

extern "C" fn close_reader(reader: *mut c_void) {
    // SAFETY: `open_reader` gave it, and the C++ side closes it once.
    unsafe { close::<AnyReader>(reader) };
}

extern "C" fn open_writer(root: *const c_void, name: Bytes, keep: bool, failure: *mut Failure) -> *mut c_void {
    at_name(root, name, failure, std::ptr::null_mut(), |files, name| {
        let writer = if keep { files.append(name) } else { files.create(name) };
        writer.map(boxed::<AnyWriter>)
    })
}

extern "C" fn append(writer: *const c_void, data: Bytes, failure: *mut Failure) {
    // SAFETY: borrowed from the C++ side for this call.
    let data = unsafe { data.slice() };
    on_writer(writer, failure, |writer| writer.append(data));
}

extern "C" fn sync(writer: *const c_void, failure: *mut Failure) {
    on_writer(writer, failure, |writer| writer.sync());
}

extern "C" fn truncate(writer: *const c_void, len_bytes: u64, failure: *mut Failure) {
    on_writer(writer, failure, |writer| writer.truncate(len_bytes));
}

extern "C" fn written_bytes(writer: *const c_void) -> u64 {
    // SAFETY: the C++ side passes what `open_writer` gave it and has not closed it.
    let writer = unsafe { &*writer.cast::<AnyWriter>() };
    guarded(&mut Failure::none(), 0, || Ok(writer.size_bytes()))
}

extern "C" fn close_writer(writer: *mut c_void, failure: *mut Failure) {
    on_writer(writer, failure, |writer| writer.close());
    // SAFETY: `open_writer` gave it, and the C++ side closes it once.
    unsafe { close::<AnyWriter>(writer) };
}

extern "C" fn exists(root: *const c_void, name: Bytes, failure: *mut Failure) -> bool {
    at_name(root, name, failure, false, |files, name| files.exists(name))
}

extern "C" fn size_bytes(root: *const c_void, name: Bytes, failure: *mut Failure) -> u64 {
    at_name(root, name, failure, 0, |files, name| files.size_bytes(name))
}

extern "C" fn free_bytes(root: *const c_void, failure: *mut Failure) -> u64 {
    on_files(root, failure, 0, |files| files.free_bytes())
}

extern "C" fn list(root: *const c_void, name: Bytes, sink: Sink, context: *mut c_void, failure: *mut Failure) {
    at_name(root, name, failure, (), |files, name| {
        for part in files.list(name)? {
            // SAFETY: the C++ side passed the sink with its context for this call; the part lives until it returns.
            if !unsafe { sink(context, Bytes::of(&part), Bytes::of(&[])) } {
                break;
            }
        }
        Ok(())
    });
}

extern "C" fn remove(root: *const c_void, name: Bytes, failure: *mut Failure) {
    at_name(root, name, failure, (), |files, name| files.remove(name));
}

extern "C" fn rename(root: *const c_void, from: Bytes, to: Bytes, failure: *mut Failure) {
    // SAFETY: borrowed from the C++ side for this call.
    let to = unsafe { to.slice() };
    at_name(root, from, failure, (), |files, from| files.rename(from, to));
}

extern "C" fn lock(root: *const c_void, name: Bytes, failure: *mut Failure) -> *mut c_void {
    at_name(root, name, failure, std::ptr::null_mut(), |files, name| {
        files.lock(name)?;
        Ok(boxed(Held {
            files: Arc::clone(files),
            name: name.to_vec(),
        }))
    })
}

extern "C" fn unlock(lock: *mut c_void) {
    // SAFETY: `lock` gave it, and the C++ side gives it back once.
    let held = unsafe { unboxed::<Held>(lock) };
    guarded(&mut Failure::none(), (), || {
        held.files.unlock(&held.name);
        Ok(())
    });
}

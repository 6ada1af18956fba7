//! LevelDB's files: the calls of the C++ side, over [`Vfs`].
//!
//! Invariants: pointers passed out are boxes of [`Reader`], [`Writer`] and [`Lock`], and come back as the same type,
//! the last time to be closed; the root is a [`Root`] that the database keeps. A writer buffers up to 64 KiB, like
//! LevelDB's own; after [`flush`] all of it is in the file (and durable, if the file system is).

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Arc;

use ferrite_cxx::{Bytes, Failure, Kind, Sink, boxed, close, guarded, unboxed};
use ferrite_vfs::{FileSystem, FsError, Ino, OpenFile, OpenFlags, RenameMode, SYSTEM, SpaceOf, Vfs};
use parking_lot::Mutex;

use crate::ffi::FileOps;

/// Size of a writer's buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// Open databases of this process, by their lock files: address of the file system, inode.
static LOCKED: Mutex<BTreeSet<(usize, Ino)>> = Mutex::new(BTreeSet::new());

/// The file system of a database.
pub(crate) struct Root(pub(crate) Vfs);

pub(crate) static OPS: FileOps = FileOps {
    open_reader,
    read_at,
    close_reader,
    open_writer,
    append,
    flush,
    sync,
    close_writer,
    size_bytes,
    list,
    make_dir,
    remove_dir,
    remove_file,
    rename,
    lock,
    unlock,
};

struct Reader(Arc<dyn OpenFile>);

struct Writer {
    file: Arc<dyn OpenFile>,
    buffer: Vec<u8>,
}

/// A held lock. It keeps the file open and the file system alive, so that neither number nor address can be reused.
struct Lock {
    _file: Arc<dyn OpenFile>,
    _fs: Arc<dyn FileSystem>,
    key: (usize, Ino),
}

fn refused(error: FsError) -> (Kind, String) {
    let kind = match error {
        FsError::NotFound => Kind::NOT_FOUND,
        FsError::NotSupported(_) => Kind::NOT_SUPPORTED,
        FsError::Invalid(_) | FsError::NameTooLong => Kind::INVALID,
        _ => Kind::IO,
    };
    (kind, error.to_string())
}

impl Writer {
    fn write(&mut self, mut data: &[u8]) -> Result<(), FsError> {
        while !data.is_empty() {
            let count = self.file.append(SYSTEM, data)?.len_bytes;
            if count == 0 {
                return Err(FsError::NoSpace(SpaceOf::Blocks));
            }
            data = &data[count.min(data.len())..];
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), FsError> {
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.write(&buffer);
        // Data that could not be written is lost, as with LevelDB's own files: it starts another log.
        self.buffer = buffer;
        self.buffer.clear();
        result
    }

    fn append(&mut self, data: &[u8]) -> Result<(), FsError> {
        if self.buffer.len() + data.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if data.len() > BUFFER_BYTES {
            return self.write(data);
        }
        self.buffer.extend_from_slice(data);
        Ok(())
    }
}

/// Runs `work` on the file system and a path for the C++ side.
fn at_path<T>(
    root: *const c_void,
    path: Bytes,
    failure: *mut Failure,
    otherwise: T,
    work: impl FnOnce(&Vfs, &[u8]) -> Result<T, (Kind, String)>,
) -> T {
    // SAFETY: the C++ side passes the root that it got from `Db::open`, which lives as long as the database; the
    // failure is one of its locals during this call; the path is borrowed for the call.
    let (root, path, failure) = unsafe { (&*root.cast::<Root>(), path.slice(), &mut *failure) };
    guarded(failure, otherwise, || work(&root.0, path))
}

/// Runs `work` on an open writer for the C++ side.
fn on_writer(writer: *mut c_void, failure: *mut Failure, work: impl FnOnce(&mut Writer) -> Result<(), FsError>) {
    // SAFETY: the C++ side passes a pointer that it got from `open_writer` and has not closed; LevelDB uses a writer
    // from one thread at a time. The failure is one of its locals.
    let (writer, failure) = unsafe { (&mut *writer.cast::<Writer>(), &mut *failure) };
    guarded(failure, (), || work(writer).map_err(refused));
}

extern "C" fn open_reader(root: *const c_void, path: Bytes, failure: *mut Failure) -> *mut c_void {
    at_path(root, path, failure, std::ptr::null_mut(), |vfs, path| {
        let flags = OpenFlags {
            read: true,
            ..OpenFlags::default()
        };
        Ok(boxed(Reader(vfs.open(path, &flags).map_err(refused)?)))
    })
}

extern "C" fn read_at(reader: *const c_void, offset: u64, into: *mut u8, len: usize, failure: *mut Failure) -> usize {
    // SAFETY: the C++ side passes a pointer that it got from `open_reader` and has not closed, a local failure, and its
    // own buffer of `len` bytes. The buffer may be uninitialised, so it is initialised before it becomes a slice.
    let (reader, into, failure) = unsafe {
        into.write_bytes(0, len);
        (
            &*reader.cast::<Reader>(),
            std::slice::from_raw_parts_mut(into, len),
            &mut *failure,
        )
    };
    guarded(failure, 0, || reader.0.read_at(SYSTEM, offset, into).map_err(refused))
}

extern "C" fn close_reader(reader: *mut c_void) {
    // SAFETY: it came from `open_reader`, and the C++ side closes it once.
    unsafe { close::<Reader>(reader) };
}

extern "C" fn open_writer(root: *const c_void, path: Bytes, keep: bool, failure: *mut Failure) -> *mut c_void {
    at_path(root, path, failure, std::ptr::null_mut(), |vfs, path| {
        let flags = OpenFlags {
            write: true,
            create: true,
            truncate: !keep,
            mode: 0o644,
            ..OpenFlags::default()
        };
        Ok(boxed(Writer {
            file: vfs.open(path, &flags).map_err(refused)?,
            buffer: Vec::with_capacity(BUFFER_BYTES),
        }))
    })
}

extern "C" fn append(writer: *mut c_void, data: Bytes, failure: *mut Failure) {
    // SAFETY: borrowed from the C++ side for this call.
    let data = unsafe { data.slice() };
    on_writer(writer, failure, |writer| writer.append(data));
}

extern "C" fn flush(writer: *mut c_void, failure: *mut Failure) {
    on_writer(writer, failure, Writer::flush);
}

extern "C" fn sync(writer: *mut c_void, failure: *mut Failure) {
    on_writer(writer, failure, |writer| {
        writer.flush()?;
        writer.file.fsync(SYSTEM)
    });
}

extern "C" fn close_writer(writer: *mut c_void, failure: *mut Failure) {
    on_writer(writer, failure, Writer::flush);
    // SAFETY: it came from `open_writer`, and the C++ side closes it once.
    unsafe { close::<Writer>(writer) };
}

extern "C" fn size_bytes(root: *const c_void, path: Bytes, failure: *mut Failure) -> u64 {
    at_path(root, path, failure, 0, |vfs, path| {
        Ok(vfs.stat(path, true).map_err(refused)?.size)
    })
}

extern "C" fn list(root: *const c_void, path: Bytes, sink: Sink, context: *mut c_void, failure: *mut Failure) {
    at_path(root, path, failure, (), |vfs, path| {
        vfs.readdir(path, 0, &mut |entry| {
            // SAFETY: the C++ side passed the sink with its context for this call; the name lives until it returns.
            unsafe { sink(context, Bytes::of(entry.name), Bytes::of(&[])) }
        })
        .map_err(refused)
    });
}

extern "C" fn make_dir(root: *const c_void, path: Bytes, failure: *mut Failure) {
    at_path(root, path, failure, (), |vfs, path| {
        vfs.mkdir(path, 0o755).map(drop).map_err(refused)
    });
}

extern "C" fn remove_dir(root: *const c_void, path: Bytes, failure: *mut Failure) {
    at_path(root, path, failure, (), |vfs, path| vfs.rmdir(path).map_err(refused));
}

extern "C" fn remove_file(root: *const c_void, path: Bytes, failure: *mut Failure) {
    at_path(root, path, failure, (), |vfs, path| vfs.unlink(path).map_err(refused));
}

extern "C" fn rename(root: *const c_void, from: Bytes, to: Bytes, failure: *mut Failure) {
    // SAFETY: borrowed from the C++ side for this call.
    let to = unsafe { to.slice() };
    at_path(root, from, failure, (), |vfs, from| {
        vfs.rename(from, to, RenameMode::Replace).map_err(refused)
    });
}

extern "C" fn lock(root: *const c_void, path: Bytes, failure: *mut Failure) -> *mut c_void {
    at_path(root, path, failure, std::ptr::null_mut(), |vfs, path| {
        let flags = OpenFlags {
            write: true,
            create: true,
            mode: 0o644,
            ..OpenFlags::default()
        };
        let file = vfs.open(path, &flags).map_err(refused)?;
        let fs = Arc::clone(vfs.fs());
        let key = (Arc::as_ptr(&fs).cast::<()>() as usize, file.ino());
        if !LOCKED.lock().insert(key) {
            let cause = "this process has the database open already; close that one first, or share it between threads";
            return Err((Kind::IO, cause.into()));
        }
        Ok(boxed(Lock {
            _file: file,
            _fs: fs,
            key,
        }))
    })
}

extern "C" fn unlock(lock: *mut c_void) {
    // SAFETY: it came from `lock`, and the C++ side gives it back once.
    let lock = unsafe { unboxed::<Lock>(lock) };
    guarded(&mut Failure::none(), (), || {
        LOCKED.lock().remove(&lock.key);
        drop(lock);
        Ok(())
    });
}

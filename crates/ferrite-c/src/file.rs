//! Open files: transfers, sizes, space and locks.

use std::ffi::{c_char, c_int, c_void};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Bound;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use ferrite::{FallocateMode, File, LockKind, OpenOptions, Wait};

use crate::border::{self, bytes, bytes_mut, gathered, scattered, text};
use crate::failure::{Failure, call, given};
use crate::volume::Volume;

/// An open file.
pub struct OpenFile {
    pub(crate) file: File,
    path: PathBuf,
}

impl OpenFile {
    /// The result of a transfer that the library reports as [`std::io`] does.
    fn done<T>(&self, action: &str, result: io::Result<T>) -> Result<T, Failure> {
        result.map_err(|error| Failure::of_transfer(action, &self.path, &error))
    }
}

/// A count for C.
fn count(len: usize) -> libc::ssize_t {
    libc::ssize_t::try_from(len).unwrap_or(libc::ssize_t::MAX)
}

pub(crate) fn offset(offset: i64) -> Result<u64, Failure> {
    u64::try_from(offset).map_err(|_| Failure::new(libc::EINVAL, format!("the offset {offset} is negative")))
}

/// Memory for a vector's bytes as one piece.
fn memory(len: usize) -> Result<Vec<u8>, Failure> {
    let mut all = Vec::new();
    all.try_reserve_exact(len)
        .map_err(|_| Failure::new(libc::ENOMEM, format!("not enough memory for {len} bytes")))?;
    all.resize(len, 0);
    Ok(all)
}

/// Opens a file. `flags` are those of open(2): an access mode, `O_CREAT`, `O_EXCL`, `O_TRUNC`, `O_APPEND`,
/// `O_NOFOLLOW`, `O_NOATIME`, `O_SYNC` and `O_DSYNC`; others are refused. With `O_TMPFILE`, `path` is a directory, and
/// the file has no name until `ferrite_link_file` gives it one. `mode` is that of a new file; there is no umask.
///
/// Returns a file to be closed by `ferrite_close_file`, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_open_file(
    volume: Option<&Volume>,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> Option<Box<OpenFile>> {
    call(None, || {
        let (volume, path) = (given(volume)?, text(path, "the path")?);
        let mut options = OpenOptions::new();
        let is_nameless = flags & libc::O_TMPFILE == libc::O_TMPFILE;
        let access = flags & libc::O_ACCMODE;
        options
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .truncate(flags & libc::O_TRUNC != 0)
            .append(flags & libc::O_APPEND != 0)
            .mode(mode);
        match flags & (libc::O_CREAT | libc::O_EXCL) {
            _ if is_nameless => &mut options,
            both if both == libc::O_CREAT | libc::O_EXCL => options.create_new(true),
            one => options.create(one == libc::O_CREAT),
        };
        let set = libc::O_ACCMODE | libc::O_TRUNC | libc::O_APPEND;
        let of_names = if is_nameless { 0 } else { libc::O_CREAT | libc::O_EXCL };
        options.custom_flags(flags & !(set | of_names));
        Ok(Some(Box::new(OpenFile {
            file: options.open(&volume.0, path)?,
            path: path.into(),
        })))
    })
}

/// Gives an open file a name: its first, if it was opened with `O_TMPFILE`, or a further one.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_link_file(file: Option<&OpenFile>, path: *const c_char) -> c_int {
    call(-1, || {
        let path = text(path, "the path")?;
        given(file)?.file.link(path)?;
        Ok(0)
    })
}

/// Closes a file, and releases its locks. NULL is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_close_file(file: Option<Box<OpenFile>>) -> c_int {
    call(-1, || {
        drop(file);
        Ok(0)
    })
}

/// Reads at the file's position, and moves it. Returns the bytes read; 0 at the end of the file.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_read(file: Option<&OpenFile>, buffer: *mut c_void, len: usize) -> libc::ssize_t {
    call(-1, || {
        let buffer = bytes_mut(buffer, len, "the buffer")?;
        let of = given(file)?;
        Ok(count(of.done("read", (&of.file).read(buffer))?))
    })
}

/// Writes at the file's position, or at its end with `O_APPEND`, and moves it. Returns the bytes written; fewer than
/// `len` only if space is short.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_write(file: Option<&OpenFile>, data: *const c_void, len: usize) -> libc::ssize_t {
    call(-1, || {
        let data = bytes(data, len, "the data")?;
        let of = given(file)?;
        Ok(count(of.done("write", (&of.file).write(data))?))
    })
}

/// Reads at an offset.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_pread(file: Option<&OpenFile>, buffer: *mut c_void, len: usize, at: i64) -> libc::ssize_t {
    call(-1, || {
        let buffer = bytes_mut(buffer, len, "the buffer")?;
        let of = given(file)?;
        Ok(count(of.done("read", of.file.read_at(buffer, offset(at)?))?))
    })
}

/// Writes at an offset, all or nothing: a crash leaves the old bytes or the new ones.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_pwrite(file: Option<&OpenFile>, data: *const c_void, len: usize, at: i64) -> libc::ssize_t {
    call(-1, || {
        let data = bytes(data, len, "the data")?;
        let of = given(file)?;
        Ok(count(of.done("write", of.file.write_at(data, offset(at)?))?))
    })
}

/// Reads at an offset into the parts of a vector, as one read.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_preadv(
    file: Option<&OpenFile>,
    vector: *const libc::iovec,
    parts: c_int,
    at: i64,
) -> libc::ssize_t {
    call(-1, || {
        let (parts, len) = scattered(vector, parts)?;
        let mut all = memory(len)?;
        let of = given(file)?;
        let found = of.done("read", of.file.read_at(&mut all, offset(at)?))?;
        let mut rest = &all[..found];
        for part in parts {
            let (here, behind) = rest.split_at(part.len().min(rest.len()));
            part[..here.len()].copy_from_slice(here);
            rest = behind;
        }
        Ok(count(found))
    })
}

/// Writes the parts of a vector at an offset, as one write.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_pwritev(
    file: Option<&OpenFile>,
    vector: *const libc::iovec,
    parts: c_int,
    at: i64,
) -> libc::ssize_t {
    call(-1, || {
        let (parts, len) = gathered(vector, parts)?;
        let mut all = memory(len)?;
        let mut done = 0;
        for part in parts {
            all[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
        let of = given(file)?;
        Ok(count(of.done("write", of.file.write_at(&all, offset(at)?))?))
    })
}

/// Writes at the end of the file, all or nothing, beside other appends. `at` is NULL, or gets the offset of the data.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_append(file: Option<&OpenFile>, data: *const c_void, len: usize, at: *mut u64) -> c_int {
    call(-1, || {
        let data = bytes(data, len, "the data")?;
        border::store(at, given(file)?.file.append(data)?);
        Ok(0)
    })
}

/// Moves the file's position: `SEEK_SET`, `SEEK_CUR`, `SEEK_END`, `SEEK_DATA` or `SEEK_HOLE`. Returns the new one.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_seek(file: Option<&OpenFile>, by: i64, whence: c_int) -> i64 {
    call(-1, || {
        let of = given(file)?;
        let mut file = &of.file;
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(offset(by)?),
            libc::SEEK_CUR => SeekFrom::Current(by),
            libc::SEEK_END => SeekFrom::End(by),
            libc::SEEK_DATA => SeekFrom::Start(file.seek_data(offset(by)?)?),
            libc::SEEK_HOLE => SeekFrom::Start(file.seek_hole(offset(by)?)?),
            _ => return Err(Failure::new(libc::EINVAL, format!("no whence {whence}"))),
        };
        Ok(i64::try_from(of.done("seek in", file.seek(to))?).unwrap_or(i64::MAX))
    })
}

/// Sets the size of a file.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_ftruncate(file: Option<&OpenFile>, size: i64) -> c_int {
    call(-1, || {
        given(file)?.file.set_len(offset(size)?)?;
        Ok(0)
    })
}

/// Changes the space of a range, as fallocate(2) with the flags 0, `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` (with
/// `FALLOC_FL_KEEP_SIZE`) and `FALLOC_FL_ZERO_RANGE`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_fallocate(file: Option<&OpenFile>, flags: c_int, at: i64, len: i64) -> c_int {
    call(-1, || {
        let keep_size = flags & libc::FALLOC_FL_KEEP_SIZE != 0;
        let mode = match flags & !libc::FALLOC_FL_KEEP_SIZE {
            0 => FallocateMode::Allocate { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => FallocateMode::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange { keep_size },
            _ => {
                return Err(Failure::new(
                    libc::EOPNOTSUPP,
                    format!("no flags {flags:#x} of fallocate"),
                ));
            }
        };
        given(file)?.file.allocate(mode, offset(at)?, offset(len)?)?;
        Ok(0)
    })
}

/// Makes all completed operations on a file durable. With `durability=strict` they are already.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_fsync(file: Option<&OpenFile>) -> c_int {
    call(-1, || {
        given(file)?.file.sync_all()?;
        Ok(0)
    })
}

/// Locks a file as a whole, as flock(2): `LOCK_SH`, `LOCK_EX` or `LOCK_UN`, with `LOCK_NB` to fail with `EWOULDBLOCK`
/// instead of waiting. The lock belongs to this open file.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_flock(file: Option<&OpenFile>, operation: c_int) -> c_int {
    call(-1, || {
        let file = &given(file)?.file;
        let wait = if operation & libc::LOCK_NB == 0 {
            Wait::Forever
        } else {
            Wait::No
        };
        match operation & !libc::LOCK_NB {
            libc::LOCK_SH => file.lock_with(LockKind::Shared, wait)?,
            libc::LOCK_EX => file.lock_with(LockKind::Exclusive, wait)?,
            libc::LOCK_UN => file.unlock()?,
            _ => return Err(Failure::new(libc::EINVAL, format!("no operation {operation} of flock"))),
        }
        Ok(0)
    })
}

/// Locks a range of a file, of `len` bytes from `at`, or to its end if `len` is 0: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
/// The lock belongs to this open file, and conflicts with those of other open files and programs. Waits up to
/// `timeout_ms` milliseconds, without end if that is negative; then fails with `EWOULDBLOCK`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_lock_range(
    file: Option<&OpenFile>,
    kind: c_int,
    at: i64,
    len: i64,
    timeout_ms: i64,
) -> c_int {
    call(-1, || {
        let file = &given(file)?.file;
        let (start, len) = (offset(at)?, offset(len)?);
        let end = match len {
            0 => Bound::Unbounded,
            len => Bound::Excluded(start.saturating_add(len)),
        };
        let range = (Bound::Included(start), end);
        let wait = match u64::try_from(timeout_ms) {
            Ok(0) => Wait::No,
            Ok(ms) => Wait::AtMost(Duration::from_millis(ms)),
            Err(_) => Wait::Forever,
        };
        match kind {
            libc::F_RDLCK => file.lock_range(range, LockKind::Shared, wait)?,
            libc::F_WRLCK => file.lock_range(range, LockKind::Exclusive, wait)?,
            libc::F_UNLCK => file.unlock_range(range)?,
            _ => return Err(Failure::new(libc::EINVAL, format!("no kind {kind} of lock"))),
        }
        Ok(0)
    })
}

//! [`File`]: an open file, like that of `std::fs`. Its locks are in [`crate::locks`].
//!
//! Invariant: clones of one file are one open file. They share one position and one owner of locks, and dropping the
//! last one closes the file ([`Open`]).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::Permissions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use ferrite_vfs::locks::{LockOwner, Unlock};
use ferrite_vfs::{
    BadArgument, Ctx, FallocateMode, FsError, OpenFile, OpenFlags, SetAttr, SpaceOf, Target, Vfs, Written, XattrMode,
    copy_data, copy_range,
};
use parking_lot::Mutex;

use crate::attributes::{action::*, os_strings};
use crate::error::{Cause, Error, Result};
use crate::fork_guard::ForkGuard;
use crate::fs::{Fs, Parts};
use crate::metadata::{FileTimes, Metadata, mode_request, owner_request};

pub(crate) const READ: &str = "read";
pub(crate) const WRITE: &str = "write";
const SEEK: &str = "seek in";

/// An open file with a position. Writes are atomic and durable when they return; there is nothing to flush.
///
/// Calls that use the position lock it while they run, so threads that share a file run one after another; the calls of
/// [`FileExt`] do not use it. Errors of [`Read`], [`Write`], [`Seek`] and [`FileExt`] have the error number of the
/// operation (`EBADF` if the file is not open for it).
pub struct File {
    open: ForkGuard<Arc<Open>>,
}

/// State shared by all clones of a file.
pub(crate) struct Open {
    pub(crate) fs: Arc<Parts>,
    pub(crate) file: Arc<dyn OpenFile>,
    /// In the form for messages.
    path: PathBuf,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    append: bool,
    position: Mutex<u64>,
    /// The owner of its locks, once it has requested one.
    pub(crate) lock_owner: OnceLock<LockOwner>,
}

impl Drop for Open {
    fn drop(&mut self) {
        // Before the file is closed: its number could be another file's then.
        // If the engine is out of reach, there is nothing left to release.
        let _ = self.release(Unlock::All);
    }
}

impl Open {
    /// The context of its user.
    pub(crate) fn ctx(&self) -> &Ctx {
        self.fs.vfs.ctx()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl File {
    pub(crate) fn open(fs: &Fs, path: &Path, flags: &OpenFlags, append: bool) -> Result<File> {
        let file = fs.run("open", path, |vfs, path| vfs.open(path, flags))?;
        Ok(File::of(fs, file, path, flags, append))
    }

    /// A new file without a name in the directory at `dir`; `is_final`: it never gets one.
    pub(crate) fn nameless(fs: &Fs, dir: &Path, flags: &OpenFlags, append: bool, is_final: bool) -> Result<File> {
        let file = fs.run("create a file in", dir, |vfs, dir| {
            vfs.create_nameless(dir, flags, is_final)
        })?;
        Ok(File::of(fs, file, dir, flags, append))
    }

    fn of(fs: &Fs, file: Arc<dyn OpenFile>, path: &Path, flags: &OpenFlags, append: bool) -> File {
        let open = fs.parts().map(|parts| {
            Arc::new(Open {
                fs: Arc::clone(parts),
                file,
                path: fs.prefix().join(path),
                readable: flags.read,
                writable: flags.write,
                append,
                position: Mutex::new(0),
                lock_owner: OnceLock::new(),
            })
        });
        File { open }
    }

    /// Gives the file a name: a file of [`Fs::tempfile_in`] its first, any other one more. In one step, durable when it
    /// returns; so others see the file with all that has been written, or not at all.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken, `ENOENT` if the file has lost its last name, `EXDEV` if the directory counts for
    /// another quota.
    pub fn link(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.run("link", |open| {
            open.fs.vfs.link_open(open.file.ino(), path.as_os_str().as_bytes())
        })
        .map(drop)
        .map_err(|error| error.with_new_path(path.to_path_buf()))
    }

    pub(crate) fn error(&self, action: &'static str, cause: impl Into<Cause>) -> Error {
        Error::new(action, &*self.open.peek().path, cause)
    }

    /// Calls `f` with the file. `action` describes the operation in errors.
    pub(crate) fn run<T>(&self, action: &'static str, f: impl FnOnce(&Open) -> ferrite_vfs::Result<T>) -> Result<T> {
        let run = || -> Result<T, Cause> { Ok(f(self.open.get()?)?) };
        run().map_err(|cause| self.error(action, cause))
    }

    /// The open file, for callers that keep it beyond an operation.
    pub(crate) fn open_file(&self, action: &'static str) -> Result<&Arc<Open>> {
        self.open.get().map_err(|forked| self.error(action, forked))
    }

    /// Whether transfers of a [`crate::Queue`] are made within the call that submits them, as on memory; so there is
    /// nothing to gain by submitting them.
    pub fn transfers_at_once(&self) -> bool {
        !self.open.peek().fs.vfs.fs().limits().submits
    }

    fn run_on_inode<T>(
        &self,
        action: &'static str,
        f: impl FnOnce(&Vfs, Target<'_>) -> ferrite_vfs::Result<T>,
    ) -> Result<T> {
        self.run(action, |open| f(&open.fs.vfs, Target::Open(open.file.ino())))
    }

    /// Calls `f` with the position, which stays locked.
    fn at_position<T>(
        &self,
        action: &'static str,
        f: impl FnOnce(&Open, &mut u64) -> ferrite_vfs::Result<T>,
    ) -> Result<T> {
        self.run(action, |open| f(open, &mut open.position.lock()))
    }

    /// Another handle of the same open file. Both share the position and the locks, which are held until all handles
    /// are dropped.
    pub fn try_clone(&self) -> Result<File> {
        self.run("duplicate the handle of", |_| Ok(()))?;
        Ok(File {
            open: self.open.clone(),
        })
    }

    /// Attributes of the file.
    pub fn metadata(&self) -> Result<Metadata> {
        self.run(STAT, |open| open.file.getattr(open.ctx())).map(Metadata)
    }

    /// Sets the length of the file; extends it by a hole.
    ///
    /// # Errors
    /// `EINVAL` for a handle that is not open for writing, as with `ftruncate(2)`.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.run(SET_LEN, |open| {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            open.file.setattr(open.ctx(), &set).map(drop)
        })
    }

    /// Appends atomically; returns where the data went. The position stays.
    ///
    /// # Errors
    /// `ENOSPC`, also if the data is longer than an atomic write and only a part fits; that part is then written.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.run("append to", |open| match open.file.append(open.ctx(), data)? {
            written if written.len_bytes == data.len() => Ok(written.offset),
            _ => Err(FsError::NoSpace(SpaceOf::Blocks)),
        })
    }

    /// Reserves, punches or zeroes a range.
    ///
    /// # Errors
    /// `EBADF` for a handle that is not open for writing.
    pub fn allocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.run("allocate a range of", |open| {
            open.file.fallocate(open.ctx(), mode, offset, len)
        })
    }

    /// Makes `len` bytes of `source` from `source_offset` on the content of this file from `offset` on, as far as the
    /// source goes; returns how much that was. Files of one file system share blocks where it can do that, so that
    /// neither time nor space is needed (docs/semantics.md, `copy_file_range`); else data is copied. Several atomic
    /// steps, each durable; an error after the first one ends the copy there. Blocks. The positions stay.
    ///
    /// # Errors `EBADF` for a source that is not open for reading, or a file that is not open for writing; `EINVAL` for
    /// ranges of one file that overlap.
    pub fn copy_range(&self, source: &File, source_offset: u64, offset: u64, len: u64) -> Result<u64> {
        let from = source.open_file("copy from")?;
        self.run("copy to", |open| {
            if !from.readable {
                return Err(FsError::BadHandle);
            }
            let (source, file) = ((&*from.file, source_offset), (&*open.file, offset));
            match Arc::ptr_eq(from.fs.vfs.fs(), open.fs.vfs.fs()) {
                true => copy_range(open.ctx(), source, file, len),
                false => copy_data(open.ctx(), source, file, len),
            }
        })
    }

    /// Returns an error if the medium failed; otherwise everything is durable already.
    pub fn sync_all(&self) -> Result<()> {
        self.run("sync", |open| open.file.fsync(open.ctx()))
    }

    /// As [`Self::sync_all`].
    pub fn sync_data(&self) -> Result<()> {
        self.sync_all()
    }

    /// The first offset at or after `offset` that holds data. The position stays, unlike that of `lseek(2)`.
    ///
    /// # Errors
    /// `ENXIO` where no data follows.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.run(SEEK, |open| open.file.seek_data(open.ctx(), offset))
    }

    /// The first offset at or after `offset` in a hole; the end of the file counts as one. The position stays.
    ///
    /// # Errors
    /// `ENXIO` at and after the end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.run(SEEK, |open| open.file.seek_hole(open.ctx(), offset))
    }

    fn change(&self, action: &'static str, set: &SetAttr) -> Result<()> {
        self.run_on_inode(action, |vfs, file| vfs.setattr_of(file, set))
            .map(drop)
    }

    /// Sets the permission bits (`07777`). Open handles keep their access.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        self.change(SET_MODE, &mode_request(mode))
    }

    /// As [`Self::set_mode`], with the standard library's type.
    pub fn set_permissions(&self, permissions: Permissions) -> Result<()> {
        self.set_mode(permissions.mode())
    }

    /// Sets owner and group; `None` leaves the value as it is. Clears setuid and setgid.
    pub fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(SET_OWNER, &owner_request(uid, gid))
    }

    /// Sets access and modification time atomically. As with `futimens(2)`, the user must own the file; how it was
    /// opened does not matter.
    pub fn set_times(&self, times: FileTimes) -> Result<()> {
        self.change(SET_TIMES, &times.request())
    }

    /// Sets the modification time.
    pub fn set_modified(&self, time: SystemTime) -> Result<()> {
        self.set_times(FileTimes::new().set_modified(time))
    }

    /// As [`Fs::get_xattr`].
    pub fn get_xattr(&self, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.run_on_inode(GET_XATTR, |vfs, file| vfs.getxattr_of(file, name.as_ref().as_bytes()))
    }

    /// As [`Fs::set_xattr`].
    pub fn set_xattr(&self, name: impl AsRef<OsStr>, value: impl AsRef<[u8]>, mode: XattrMode) -> Result<()> {
        self.run_on_inode(SET_XATTR, |vfs, file| {
            vfs.setxattr_of(file, name.as_ref().as_bytes(), value.as_ref(), mode)
        })
    }

    /// As [`Fs::list_xattrs`].
    pub fn list_xattrs(&self) -> Result<Vec<OsString>> {
        self.run_on_inode(LIST_XATTRS, |vfs, file| vfs.listxattr_of(file))
            .map(os_strings)
    }

    /// As [`Fs::remove_xattr`].
    pub fn remove_xattr(&self, name: impl AsRef<OsStr>) -> Result<()> {
        self.run_on_inode(REMOVE_XATTR, |vfs, file| {
            vfs.removexattr_of(file, name.as_ref().as_bytes())
        })
    }

    /// Reads at `offset`; fewer bytes only at the end.
    pub(crate) fn read_from(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.run(READ, |open| open.file.read_at(open.ctx(), offset, buf))
    }

    fn write_to(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.run(WRITE, |open| open.file.write_at(open.ctx(), offset, data))
    }

    /// All bytes from the start on.
    pub(crate) fn read_whole(&self) -> Result<Vec<u8>> {
        let grow = |content: &mut Vec<u8>, len_bytes: u64| -> Result<()> {
            let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
            if content.try_reserve_exact(len.saturating_sub(content.len())).is_err() {
                return Err(self.error(READ, Cause::NoMemory { len_bytes }));
            }
            content.resize(len, 0);
            Ok(())
        };
        let mut content = Vec::new();
        // One byte more shows the end, unless the file grows meanwhile.
        grow(&mut content, self.metadata()?.len().saturating_add(1))?;
        let mut len = 0;
        loop {
            len += self.read_from(len as u64, &mut content[len..])?;
            if len < content.len() {
                content.truncate(len);
                return Ok(content);
            }
            grow(&mut content, len as u64 * 2)?;
        }
    }

    /// Writes all of `data` at `offset`, in as many steps as it takes.
    pub(crate) fn write_whole(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            match self.write_to(offset + done as u64, &data[done..])? {
                0 => return Err(self.error(WRITE, FsError::NoSpace(SpaceOf::Blocks))),
                count => done += count,
            }
        }
        Ok(())
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.at_position(READ, |open, position| {
            let count = open.file.read_at(open.ctx(), *position, buf)?;
            *position += count as u64;
            Ok(count)
        })?)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(self.at_position(WRITE, |open, position| {
            let written = if open.append {
                open.file.append(open.ctx(), data)?
            } else {
                Written::new(*position, open.file.write_at(open.ctx(), *position, data)?)
            };
            *position = written.end();
            Ok(written.len_bytes)
        })?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        Ok(self.at_position(SEEK, |open, position| {
            let (base, delta) = match to {
                SeekFrom::Start(offset) => (offset, 0),
                SeekFrom::Current(delta) => (*position, delta),
                SeekFrom::End(delta) => (open.file.getattr(open.ctx())?.size, delta),
            };
            let target = base.checked_add_signed(delta);
            *position = target.ok_or(FsError::Invalid(BadArgument::BeforeStart))?;
            Ok(*position)
        })?)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.read_from(offset, buf)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        Ok(self.write_to(offset, data)?)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.peek();
        f.debug_struct("File")
            .field("path", &open.path)
            .field("read", &open.readable)
            .field("write", &open.writable)
            .finish_non_exhaustive()
    }
}

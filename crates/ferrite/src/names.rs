//! What [`Fs`] does with names, as the functions of `std::fs`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite_vfs::{BadArgument, FsError, NewNode, RenameMode, Vfs};

use crate::dir::Dir;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::fs::{Fs, bytes};
use crate::listing::ReadDir;
use crate::open::OpenOptions;
use crate::tree;

/// Permission bits of new directories.
const DIR_MODE: u32 = 0o755;

/// Bytes that a copy moves at a time.
const COPY_BYTES: usize = 1 << 20;

impl Fs {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES`, `EISDIR` and others, as [`OpenOptions::open`].
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing; makes it, or cuts it to nothing.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]; `ENOSPC` when no inode or name is left.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(self, path)
    }

    /// Opens a directory, which must be readable: a [`Dir`] stays the same one, whatever becomes of its name.
    ///
    /// # Errors
    /// `ENOTDIR`, and those of a walk along the path.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        Dir::open(self, path.as_ref())
    }

    /// A file's whole content. A write meanwhile may show in a part of it, for each step of the reading is atomic by
    /// itself.
    ///
    /// # Errors
    /// As [`Self::open_file`]; `ENOMEM` for a file that no memory can hold; `EIO` for damaged data.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open_file(path)?.read_whole()
    }

    /// A file's whole content as text.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Cause::NotUtf8`].
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        String::from_utf8(self.read(path)?)
            .map_err(|error| Error::new("read", self.prefix().join(path), Cause::NotUtf8(error.utf8_error())))
    }

    /// Writes a whole file, made or cut before; two steps, each atomic.
    ///
    /// # Errors
    /// As [`Self::create_file`]; `ENOSPC` in the second step leaves the file empty, or a part of long content in it.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(path)?.write_whole(content.as_ref(), 0)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken; `ENOENT` if the directory above is missing.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with(path, DIR_MODE)
    }

    /// Makes a directory with these permission bits (`01777`) [those of [`Self::create_dir`]: 0755].
    pub fn create_dir_with(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.run("make the directory", path.as_ref(), |vfs, path| vfs.mkdir(path, mode))
            .map(drop)
    }

    /// Makes a directory and those above it that are missing; a step for each.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match self.create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
                    return Err(error);
                };
                self.create_dir_all(parent)?;
                self.create_dir(path)
            }
            Err(_) if self.metadata(path).is_ok_and(|found| found.is_dir()) => Ok(()),
            other => other,
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOTEMPTY`, `ENOTDIR`; `EBUSY` for the root.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run("remove the directory", path.as_ref(), Vfs::rmdir)
    }

    /// Removes a directory and all below it. Symbolic links are removed, never followed, also one that takes the place
    /// of a directory meanwhile; only those in front of the last component of `path` lead on.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match self.parts().get() {
            Ok(parts) => tree::remove(&parts.vfs, path).map_err(|failed| (failed.path, Cause::from(failed.error))),
            Err(forked) => Err((path.to_path_buf(), forked.into())),
        }
        .map_err(|(at, cause)| Error::new("remove", self.prefix().join(at), cause))
    }

    /// Removes a name that is no directory's. The file stays as long as it has other names or is open.
    ///
    /// # Errors
    /// `EISDIR` for a directory; `EPERM` in a sticky directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run("remove", path.as_ref(), Vfs::unlink)
    }

    /// Renames, replacing what has the new name; atomic, also in a crash.
    ///
    /// # Errors
    /// `EINVAL` for a directory that would go below itself; `EISDIR`, `ENOTDIR` and `ENOTEMPTY` for what cannot be
    /// replaced.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames without replacing, or swaps two names.
    ///
    /// # Errors
    /// As [`Self::rename`]; `EEXIST` if nothing may be replaced, `ENOENT` if there is nothing to swap with.
    pub fn rename_with(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> Result<()> {
        let to = to.as_ref();
        self.run("rename", from.as_ref(), |vfs, from| vfs.rename(from, bytes(to), mode))
            .map_err(|error| error.with_new_path(self.prefix().join(to)))
    }

    /// Gives a file another name. A symbolic link gets one itself.
    ///
    /// # Errors
    /// `EPERM` for a directory; `EEXIST` if the name is taken; `EMLINK` for more names than a file may have.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let link = link.as_ref();
        self.run("link", original.as_ref(), |vfs, original| {
            vfs.link(original, bytes(link))
        })
        .map(drop)
        .map_err(|error| error.with_new_path(self.prefix().join(link)))
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken; `ENOENT` for an empty target.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        self.run("make the symbolic link", link.as_ref(), |vfs, link| {
            vfs.symlink(bytes(target.as_ref()), link)
        })
        .map(drop)
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// `EINVAL` for anything else.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.run("read the link", path.as_ref(), Vfs::readlink)
            .map(|target| OsString::from_vec(target).into())
    }

    /// Makes a named pipe, a socket's name, a device file or an empty file. Devices are root's; there is nothing here
    /// that could open one. `rdev` is what `makedev(3)` makes of major and minor number.
    ///
    /// # Errors
    /// `EINVAL` for a directory or a symbolic link, which have calls of their own; `EPERM` for a device that is not
    /// root's.
    pub fn mknod(&self, path: impl AsRef<Path>, node: &NewNode) -> Result<()> {
        self.run("make", path.as_ref(), |vfs, path| vfs.mknod(path, node))
            .map(drop)
    }

    /// Copies a file's content and permission bits; returns its length. Many steps, each atomic: the copy is there from
    /// the first on.
    ///
    /// # Errors
    /// `EINVAL` for a copy of a file onto itself, which would be cut.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open_file(from)?;
        let found = source.metadata()?;
        // Never open to more users than the original is, and without setuid before it is whole.
        let target = OpenOptions::new()
            .write(true)
            .create(true)
            .mode(found.mode() & 0o777)
            .open(self, to)?;
        if target.metadata()?.ino() == found.ino() {
            let cause = FsError::Invalid(BadArgument::SameFile);
            return Err(Error::new("copy", self.prefix().join(from), cause).with_new_path(self.prefix().join(to)));
        }
        target.set_len(0)?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut offset = 0;
        loop {
            match source.read_from(offset, &mut buffer)? {
                0 => break,
                count => {
                    target.write_whole(&buffer[..count], offset)?;
                    offset += count as u64;
                }
            }
        }
        target.set_mode(found.mode())?;
        Ok(offset)
    }

    /// Lists a directory. Entries that exist throughout come exactly once.
    ///
    /// # Errors
    /// `ENOTDIR`; `EACCES` if it may not be read.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let dir = self.hand_out("list", path, |vfs, path| vfs.open_dir(path).map(Arc::new))?;
        ReadDir::new(dir, self.prefix(), path)
    }
}

//! Operations of [`Fs`] on names, like the functions of `std::fs`.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite_vfs::{BadArgument, FileKind, FsError, NewNode, OpenFlags, RenameMode, Vfs};

use crate::dir::Dir;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::fs::{Fs, bytes};
use crate::listing::ReadDir;
use crate::open::OpenOptions;
use crate::tree;

/// Permission bits of new directories.
const DIR_MODE: u32 = 0o755;

/// The directory of snapshots.
const SNAPSHOTS: &str = ".snapshots";

impl Fs {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES`, `EISDIR` and others, as [`OpenOptions::open`].
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing; creates it, or truncates it.
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

    /// Opens a directory, which must be readable. A [`Dir`] stays the same directory if it is renamed.
    ///
    /// # Errors
    /// `ENOTDIR`, and those of path resolution.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        Dir::open(self, path.as_ref(), true)
    }

    /// As [`Self::open_dir`], but a symbolic link as the last component of the path is not followed.
    ///
    /// # Errors
    /// `ENOTDIR` also for a symbolic link.
    pub fn open_dir_nofollow(&self, path: impl AsRef<Path>) -> Result<Dir> {
        Dir::open(self, path.as_ref(), false)
    }

    /// The whole content of a file. Each read step is atomic, but a concurrent write may be visible in only a part of
    /// the result.
    ///
    /// # Errors
    /// As [`Self::open_file`]; `ENOMEM` for a file that does not fit in memory; `EIO` for damaged data.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.open_file(path)?.read_whole()
    }

    /// The whole content of a file as text.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Cause::NotUtf8`].
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        String::from_utf8(self.read(path)?)
            .map_err(|error| Error::new("read", self.prefix().join(path), Cause::NotUtf8(error.utf8_error())))
    }

    /// Creates or truncates a file, then writes the whole content; two steps, each atomic.
    ///
    /// # Errors
    /// As [`Self::create_file`]; `ENOSPC` in the second step leaves the file empty, or with a part of long content.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(path)?.write_whole(content.as_ref(), 0)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken; `ENOENT` if the parent directory is missing.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with(path, DIR_MODE)
    }

    /// Creates a directory with these permission bits (`01777`); [`Self::create_dir`] uses 0755.
    pub fn create_dir_with(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.run("create the directory", path.as_ref(), |vfs, path| vfs.mkdir(path, mode))
            .map(drop)
    }

    /// Creates a directory and all missing parents, one atomic step each.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match self.create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
                    return Err(error);
                };
                self.create_dir_all(parent)?;
                self.create_dir(path).or_else(|error| self.must_be_dir(path, error))
            }
            Err(error) => self.must_be_dir(path, error),
            Ok(()) => Ok(()),
        }
    }

    /// Succeeds if another thread or an earlier call has created the directory; fails with `error` otherwise.
    fn must_be_dir(&self, path: &Path, error: Error) -> Result<()> {
        match self.metadata(path) {
            Ok(found) if found.is_dir() => Ok(()),
            _ => Err(error),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOTEMPTY`, `ENOTDIR`; `EBUSY` for the root.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run("remove the directory", path.as_ref(), Vfs::rmdir)
    }

    /// Removes a directory and everything below it. Symbolic links are removed, never followed, even if one replaces a
    /// directory during the call; only those before the last component of `path` are followed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match self.parts().get() {
            Ok(parts) => tree::remove(&parts.vfs, path).map_err(|failed| (failed.path, Cause::from(failed.error))),
            Err(forked) => Err((path.to_path_buf(), forked.into())),
        }
        .map_err(|(at, cause)| Error::new("remove", self.prefix().join(at), cause))
    }

    /// Removes a name of a file. The file exists as long as it has other names or is open.
    ///
    /// # Errors
    /// `EISDIR` for a directory; `EPERM` in a sticky directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run("remove", path.as_ref(), Vfs::unlink)
    }

    /// Renames, replacing an existing target; atomic, also in a crash.
    ///
    /// # Errors
    /// `EINVAL` if a directory would be moved below itself; `EISDIR`, `ENOTDIR` and `ENOTEMPTY` if the target cannot be
    /// replaced.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames without replacing, or exchanges two names.
    ///
    /// # Errors
    /// As [`Self::rename`]; `EEXIST` if nothing may be replaced, `ENOENT` if there is nothing to exchange with.
    pub fn rename_with(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> Result<()> {
        let to = to.as_ref();
        self.run("rename", from.as_ref(), |vfs, from| vfs.rename(from, bytes(to), mode))
            .map_err(|error| error.with_new_path(self.prefix().join(to)))
    }

    /// Creates a file without a name in a directory, and opens it for reading and writing (`O_TMPFILE`). Nobody else
    /// can open it, and it goes when it is closed, or with the process, unless [`File::link`] gives it a name.
    ///
    /// # Errors
    /// `EACCES` without the permission to make names in the directory; `ENOSPC`.
    ///
    /// ```
    /// # fn run() -> ferrite::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("data.pool");
    /// # let fs = ferrite::Fs::create(&path, 64 << 20)?;
    /// let file = fs.tempfile_in("/")?;
    /// file.append(b"all of it, or no file at all")?;
    /// file.link("/report")?;
    /// # fs.close()
    /// # }
    /// # fn main() { run().unwrap() }
    /// ```
    pub fn tempfile_in(&self, dir: impl AsRef<Path>) -> Result<File> {
        let flags = OpenFlags {
            read: true,
            write: true,
            mode: 0o600,
            ..OpenFlags::default()
        };
        File::nameless(self, dir.as_ref(), &flags, false, false)
    }

    /// Creates a hard link. A symbolic link is not followed.
    ///
    /// # Errors
    /// `EPERM` for a directory; `EEXIST` if the name is taken; `EMLINK` if the file has the maximum number of links.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let link = link.as_ref();
        self.run("link", original.as_ref(), |vfs, original| {
            vfs.link(original, bytes(link))
        })
        .map(drop)
        .map_err(|error| error.with_new_path(self.prefix().join(link)))
    }

    /// Clones a directory with everything below it, or anything else that has a name, to a new name: one state of it,
    /// in one atomic step, which shares blocks instead of copying. Owners, modes, extended attributes and times are
    /// those of the original, except the time of the last change of attributes. Other changes of the volume wait
    /// meanwhile: some microseconds for each file. Blocks; durable when it returns.
    ///
    /// # Errors `EEXIST` if the name is taken; `EPERM` if the user is not root and owns not all of it; `EOPNOTSUPP`
    /// from an engine that shares no blocks; `ENOSPC` if the pool has no inodes, names or entries of the mapping for
    /// it.
    pub fn clone_tree(&self, original: impl AsRef<Path>, clone: impl AsRef<Path>) -> Result<()> {
        let clone = clone.as_ref();
        self.run("clone", original.as_ref(), |vfs, original| {
            vfs.clone_tree(original, bytes(clone))
        })
        .map(drop)
        .map_err(|error| error.with_new_path(self.prefix().join(clone)))
    }

    /// Clones a regular file: as [`Self::clone_tree`].
    ///
    /// # Errors
    /// `EISDIR` or `EINVAL` for anything else, and those of [`Self::clone_tree`].
    pub fn clone_file(&self, original: impl AsRef<Path>, clone: impl AsRef<Path>) -> Result<()> {
        let original = original.as_ref();
        self.run("clone", original, |vfs, path| match vfs.stat(path, false)?.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid(BadArgument::NodeKind)),
        })?;
        self.clone_tree(original, clone)
    }

    /// Takes a snapshot of a directory: `DIR/.snapshots/NAME` holds all of it as it is now, and nothing there changes.
    /// Snapshots of the directory, and of those below it, are not in it. Other changes of the volume wait meanwhile:
    /// some microseconds for each file. Blocks; durable when it returns.
    ///
    /// # Errors
    /// `EEXIST` if there is one of that name; `EPERM` if the user is not root and owns not all of the directory;
    /// `EROFS` in a snapshot; `EOPNOTSUPP` from an engine that shares no blocks; `ENOSPC` as [`Self::clone_tree`].
    pub fn create_snapshot(&self, dir: impl AsRef<Path>, name: impl AsRef<Path>) -> Result<()> {
        let snapshots = dir.as_ref().join(SNAPSHOTS);
        let is_new = match self.create_dir(&snapshots) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            made => made.map(|()| true)?,
        };
        let taken = self.create_dir(snapshots.join(name));
        if taken.is_err() && is_new {
            // There were none before either.
            let _ = self.remove_dir(&snapshots);
        }
        taken
    }

    /// The names of a directory's snapshots, in order.
    ///
    /// # Errors
    /// `ENOENT` if the directory is missing, and those of listing a directory.
    pub fn snapshots(&self, dir: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.metadata(&dir)?;
        let listing = match self.read_dir(dir.as_ref().join(SNAPSHOTS)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing?,
        };
        let mut names = Vec::new();
        for entry in listing {
            names.push(entry?.file_name());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Deletes a snapshot, and gives back what only it holds. Blocks for as long as that takes.
    ///
    /// # Errors
    /// `ENOENT` if no snapshot has that name; `EACCES` or `EPERM` if the user does not own the directory.
    pub fn delete_snapshot(&self, dir: impl AsRef<Path>, name: impl AsRef<Path>) -> Result<()> {
        let snapshots = dir.as_ref().join(SNAPSHOTS);
        self.remove_dir(snapshots.join(name))?;
        // With the last one, so that an empty directory can be removed as any other.
        let _ = self.remove_dir(&snapshots);
        Ok(())
    }

    /// Creates a symbolic link to `target`.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken; `ENOENT` for an empty target.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        self.run("create the symbolic link", link.as_ref(), |vfs, link| {
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

    /// Creates a named pipe, a socket, a device file or an empty file. Only root may create devices; this library
    /// cannot open them. `rdev` is encoded as by `makedev(3)`.
    ///
    /// # Errors
    /// `EINVAL` for a directory or a symbolic link, which have separate calls; `EPERM` for a device if the user is not
    /// root.
    pub fn mknod(&self, path: impl AsRef<Path>, node: &NewNode) -> Result<()> {
        self.run("make", path.as_ref(), |vfs, path| vfs.mknod(path, node))
            .map(drop)
    }

    /// Copies the content and permission bits of a file; returns its length. The copy shares content where the engine
    /// can do that ([`File::copy_range`]). Consists of several atomic steps: the copy exists from the first one on.
    ///
    /// # Errors
    /// `EINVAL` for a copy of a file onto itself, which would truncate it.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open_file(from)?;
        let found = source.metadata()?;
        // Never open to more users than the original, and without setuid before it is whole.
        let target = OpenOptions::new()
            .write(true)
            .create(true)
            .mode(found.permissions().mode() & 0o777)
            .open(self, to)?;
        if target.metadata()?.ino() == found.ino() {
            let cause = FsError::Invalid(BadArgument::SameFile);
            return Err(Error::new("copy", self.prefix().join(from), cause).with_new_path(self.prefix().join(to)));
        }
        target.set_len(0)?;
        let mut offset = 0;
        loop {
            // Again at the end: the source may have become longer.
            match target.copy_range(&source, offset, offset, u64::MAX - offset)? {
                0 => break,
                count => offset += count,
            }
        }
        target.set_permissions(found.permissions())?;
        Ok(offset)
    }

    /// Lists a directory. Entries that exist throughout are returned exactly once.
    ///
    /// # Errors
    /// `ENOTDIR`; `EACCES` if the user may not read it.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        self.list(path.as_ref(), false)
    }

    /// As [`Self::read_dir`], with the attributes of each entry: one request for many, if the pool is on a server.
    ///
    /// # Errors
    /// As [`Self::read_dir`].
    pub fn read_dir_with_metadata(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        self.list(path.as_ref(), true)
    }

    fn list(&self, path: &Path, with_metadata: bool) -> Result<ReadDir> {
        let dir = self.hand_out("list", path, |vfs, path| vfs.open_dir(path).map(Arc::new))?;
        let here = self.at_dir(dir.peek(), path);
        ReadDir::new(dir, here, path, with_metadata)
    }
}

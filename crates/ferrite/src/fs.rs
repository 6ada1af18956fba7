//! [`Fs`]: a pool as a whole. Operations on names are in [`crate::names`], on attributes in [`crate::attributes`].

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ferrite_pm::fork::Origin;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::volume::{Volume, VolumeError, VolumeErrorKind};
use ferrite_vfs::{Cred, FileSystem, StatFs, Vfs};

use crate::error::{Cause, Error, Result};
use crate::fork_guard::ForkGuard;
use crate::info::{self, PoolInfo};
use crate::options::VolumeOptions;
use crate::pool::{self, MkfsOptions, MountOptions};
use crate::volume::Address;

pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

const CREATE: &str = "create the pool";
const OPEN: &str = "open the pool";
const OPEN_VOLUME: &str = "open the volume";

/// A file system: a pool opened by this process, or one in memory. Cheap to clone; clones share one file system. A
/// forked child cannot use it.
///
/// Relative paths start at the root of the file system; those of a [`Dir`](crate::Dir) start at the directory.
/// Permission bits are used as given: there is no umask.
///
/// Every call is atomic, also in a crash, and durable when it returns, unless its description says otherwise. A call
/// that fails has changed nothing; its [`Error`] has the error number of the Linux system call that does the same.
/// Calls may block on the medium and on other operations on the same inode. Only [`File::lock`](crate::File::lock) and
/// the other lock calls wait for other users of a file.
#[derive(Clone)]
pub struct Fs {
    parts: ForkGuard<Arc<Parts>>,
}

/// State shared by all handles of one file system.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) vfs: Vfs,
    /// `None` for a file system that this library did not open from a volume.
    volume: Option<Arc<dyn Volume>>,
    /// Path of the pool; empty for other engines.
    pool: Arc<Path>,
    /// The path of the directory where relative paths start, at its opening, for messages; empty for the root.
    prefix: Arc<Path>,
}

impl Fs {
    /// Creates a pool of `size_bytes` in a new file, or on a device, and opens it. Blocks; all space is allocated at
    /// once. An existing file is refused unless it is empty or only has reserved space that was never written. If the
    /// call fails, it leaves no new file.
    pub fn create(pool: impl AsRef<Path>, size_bytes: u64) -> Result<Fs> {
        Fs::create_with(pool, size_bytes, &MkfsOptions::default())
    }

    /// As [`Self::create`], with options for the mapping and everything else that is fixed when a pool is created.
    ///
    /// # Errors
    /// `InvalidInput` for options that cannot be met, `StorageFull` where there is no space, `AlreadyExists` for a file
    /// that is not empty.
    pub fn create_with(pool: impl AsRef<Path>, size_bytes: u64, options: &MkfsOptions) -> Result<Fs> {
        let pool = pool.as_ref();
        Fs::of_volume(CREATE, pool, || pool::create(pool, size_bytes, options))
    }

    /// Opens a pool, and recovers it first if it was not closed. Blocks.
    pub fn open(pool: impl AsRef<Path>) -> Result<Fs> {
        Fs::open_with(pool, &MountOptions::default())
    }

    /// Opens a pool with options. With read-only access, a pool that was not closed is recovered in memory, and nothing
    /// is written.
    ///
    /// # Errors
    /// `ResourceBusy` for a pool that this or another process has open, `InvalidData` for a file that is not a pool, or
    /// a damaged pool.
    pub fn open_with(pool: impl AsRef<Path>, options: &MountOptions) -> Result<Fs> {
        let pool = pool.as_ref();
        Fs::of_volume(OPEN, pool, || Address::of_pool(pool).open(options))
    }

    /// Opens the volume at an address: `pm:PATH`, or a path alone, see [`Address`]. Otherwise as [`Self::open`].
    ///
    /// ```
    /// # fn run() -> ferrite::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("data.pool");
    /// # ferrite::Fs::create(&path, 64 << 20)?.close()?;
    /// let fs = ferrite::Fs::open_volume(format!("pm:{}", path.display()))?;
    /// # fs.close()
    /// # }
    /// # fn main() { run().unwrap() }
    /// ```
    pub fn open_volume(address: impl AsRef<OsStr>) -> Result<Fs> {
        Fs::open_volume_with(address, VolumeOptions::default())
    }

    /// As [`Self::open_volume`], with options: [`VolumeOptions`] for any volume, [`MountOptions`] for a pool,
    /// `ClientOptions` for the export of a server.
    ///
    /// # Errors
    /// Those of [`Self::open_with`], `InvalidInput` for an address without meaning, and `Unsupported` for one that
    /// needs an engine that this build lacks. `InvalidInput` also for an option without meaning for the address, such
    /// as one of pools for the export of a server; the error names the option, the address and the mend.
    pub fn open_volume_with(address: impl AsRef<OsStr>, options: impl Into<VolumeOptions>) -> Result<Fs> {
        let address = address.as_ref();
        let options = options.into();
        let found =
            Address::parse(address).map_err(|error| Error::new(OPEN_VOLUME, address, VolumeError::from(error)))?;
        Fs::of_volume(OPEN, found.path(), || found.open(options))
    }

    fn of_volume(
        action: &'static str,
        pool: &Path,
        open: impl FnOnce() -> Result<Arc<dyn Volume>, VolumeError>,
    ) -> Result<Fs> {
        let origin = Origin::here().map_err(|error| {
            let errno = error.raw_os_error();
            let error = VolumeError::new(VolumeErrorKind::Medium, error).with_errno(errno);
            Error::new("watch for forks of the process that opens", pool, error)
        })?;
        let volume = open().map_err(|error| Error::new(action, pool, error))?;
        let vfs = Vfs::new(volume.fs(), Cred::root());
        let parts = Parts {
            vfs,
            volume: Some(volume),
            pool: pool.into(),
            prefix: Path::new("").into(),
        };
        Ok(Fs {
            parts: ForkGuard::new(Arc::new(parts), Some(origin)),
        })
    }

    /// A file system in ordinary memory, freed when the last clone is dropped. A forked child gets a separate copy.
    pub fn memory() -> Fs {
        Fs::over(Arc::new(MemFs::new()))
    }

    /// Any engine, with the interface of this crate. Whether a forked child may use it depends on the engine. Locks on
    /// files are the engine's, so two calls with the same one share them.
    ///
    /// The trait of engines is [`ferrite_vfs::FileSystem`], in a crate of its own. It may change with any version of
    /// that crate, which is not part of what this crate keeps stable.
    pub fn over(fs: Arc<dyn FileSystem>) -> Fs {
        let parts = Parts {
            vfs: Vfs::new(fs, Cred::root()),
            volume: None,
            pool: Path::new("").into(),
            prefix: Path::new("").into(),
        };
        Fs {
            parts: ForkGuard::new(Arc::new(parts), None),
        }
    }

    /// The same file system, used as another user. A newly opened pool is used as root.
    pub fn as_user(&self, cred: Cred) -> Fs {
        let parts = self.parts.map(|parts| {
            Arc::new(Parts {
                vfs: parts.vfs.as_user(cred),
                ..Parts::clone(parts)
            })
        });
        Fs { parts }
    }

    /// The same file system with relative paths that start at `dir`, opened as `path`. The caller keeps `dir` open.
    pub(crate) fn at_dir(&self, dir: &ferrite_vfs::Dir, path: &Path) -> Fs {
        let parts = self.parts.map(|parts| {
            Arc::new(Parts {
                vfs: parts.vfs.at(dir.ino()),
                prefix: parts.prefix.join(path).into(),
                ..Parts::clone(parts)
            })
        });
        Fs { parts }
    }

    /// Closes the pool cleanly; later calls on any clone fail. Without it nothing is lost, but the next open replays
    /// the journal.
    pub fn close(self) -> Result<()> {
        let close = || -> Result<(), Cause> {
            match &self.parts.get()?.volume {
                Some(volume) => Ok(volume.close()?),
                None => Ok(()),
            }
        };
        close().map_err(|cause| Error::new("close the pool", &*self.parts.peek().pool, cause))
    }

    /// Layout and state of the pool; `None` for other engines, and in a forked child.
    pub fn info(&self) -> Option<PoolInfo> {
        info::of(&**self.parts.get().ok()?.volume.as_ref()?)
    }

    /// Total and free space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.run("get the space of", Path::new("/"), |vfs, _| vfs.statfs())
    }

    /// The path of the directory where relative paths start, when it was opened.
    pub(crate) fn prefix(&self) -> &Path {
        &self.parts.peek().prefix
    }

    pub(crate) fn parts(&self) -> &ForkGuard<Arc<Parts>> {
        &self.parts
    }

    /// A handle with the same owner as this file system, created from it.
    pub(crate) fn hand_out<T: Clone>(
        &self,
        action: &'static str,
        path: &Path,
        f: impl FnOnce(&Vfs, &[u8]) -> ferrite_vfs::Result<T>,
    ) -> Result<ForkGuard<T>> {
        let handle = self.run(action, path, f)?;
        Ok(self.parts.map(|_| handle))
    }

    /// Calls `f` with `path`. `action` describes the operation in errors.
    pub(crate) fn run<T>(
        &self,
        action: &'static str,
        path: &Path,
        f: impl FnOnce(&Vfs, &[u8]) -> ferrite_vfs::Result<T>,
    ) -> Result<T> {
        let run = || -> Result<T, Cause> { Ok(f(&self.parts.get()?.vfs, bytes(path))?) };
        run().map_err(|cause| Error::new(action, self.prefix().join(path), cause))
    }
}

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs")
            .field("pool", &self.parts.peek().pool)
            .finish_non_exhaustive()
    }
}

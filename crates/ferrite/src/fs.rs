//! [`Fs`]: names and attributes, as the functions of `std::fs`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrite_fs::{Engine, EngineError, MkfsOptions, MountOptions, PoolInfo};
use ferrite_pm::fork::Origin;
use ferrite_pm::{Access, PmError, Region};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Attr, Cred, Dir, FileKind, FileSystem, FsError, RenameMode, SetAttr, StatFs, Vfs};

use crate::file::{File, OpenOptions};
use crate::own::Own;
use crate::tree;

/// Permission bits of new directories.
const DIR_MODE: u32 = 0o755;

/// An error of an operation on `path`.
pub(crate) fn error_at(path: &Path) -> impl Fn(FsError) -> io::Error + '_ {
    move |error| {
        let kind = io::Error::from_raw_os_error(error.errno()).kind();
        io::Error::new(
            kind,
            At {
                path: path.to_path_buf(),
                error,
            },
        )
    }
}

/// What went wrong, and with which path.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}", path = path.display())]
struct At {
    path: PathBuf,
    #[source]
    error: FsError,
}

fn pool_error(error: impl Into<EngineError>) -> io::Error {
    let error = error.into();
    let kind = match &error {
        EngineError::Medium(PmError::InUse { .. }) => io::ErrorKind::ResourceBusy,
        EngineError::Medium(PmError::Io { source, .. }) => source.kind(),
        EngineError::Options(_) => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

fn holds_nothing(pool: &Path) -> bool {
    std::fs::File::open(pool).is_ok_and(|file| ferrite_pm::blank::holds_nothing(&file))
}

pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// A file system: a pool in this process, or memory. Cheap to clone; all clones are one. A forked child cannot use it.
#[derive(Clone)]
pub struct Fs {
    parts: Own<Parts>,
}

#[derive(Clone)]
struct Parts {
    vfs: Vfs,
    engine: Option<Engine>,
}

impl Fs {
    /// Makes a pool of `size_bytes` in a new file, or on a device, and opens it. Blocking; the space is allocated at once.
    /// An existing file is refused unless nothing was ever written to it: it is empty, or space was reserved for it. On an
    /// error no file is left behind that was not there.
    pub fn create(pool: impl AsRef<Path>, size_bytes: u64) -> io::Result<Fs> {
        let pool = pool.as_ref();
        let is_taken = |found: &std::fs::Metadata| found.is_file() && !holds_nothing(pool);
        if std::fs::metadata(pool).is_ok_and(|found| is_taken(&found)) {
            let text = format!("{}: is not empty; open it, or remove it first", pool.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let region = ferrite_fs::create(pool, size_bytes, &MkfsOptions::default()).map_err(pool_error)?;
        Fs::mount(region, &MountOptions::default())
    }

    /// Opens a pool; recovers it first if it was not closed. Blocking.
    pub fn open(pool: impl AsRef<Path>) -> io::Result<Fs> {
        Fs::open_with(pool, &MountOptions::default())
    }

    /// Opens a pool with options. Read-only, a pool that was not closed is recovered in memory and not written.
    pub fn open_with(pool: impl AsRef<Path>, options: &MountOptions) -> io::Result<Fs> {
        let access = if options.read_only {
            Access::ReadOnlyPrivate
        } else {
            Access::ReadWrite
        };
        Fs::mount(Region::open(pool.as_ref(), access).map_err(pool_error)?, options)
    }

    fn mount(region: Region, options: &MountOptions) -> io::Result<Fs> {
        let origin = Origin::here()?;
        let engine = Engine::mount(region, options).map_err(pool_error)?;
        let vfs = Vfs::new(Arc::new(engine.clone()), Cred::root());
        let engine = Some(engine);
        Ok(Fs {
            parts: Own::new(Parts { vfs, engine }, Some(origin)),
        })
    }

    /// A file system in ordinary memory that goes when its last clone does. A forked child has a copy of its own.
    pub fn memory() -> Fs {
        Fs::over(Arc::new(MemFs::new()))
    }

    /// Any engine, with the interface of this crate. Whether a forked child may use it is the engine's matter.
    pub fn over(fs: Arc<dyn FileSystem>) -> Fs {
        let vfs = Vfs::new(fs, Cred::root());
        Fs {
            parts: Own::new(Parts { vfs, engine: None }, None),
        }
    }

    /// The same file system as another user sees it. A pool's opener is root.
    pub fn as_user(&self, cred: Cred) -> Fs {
        let parts = self.parts.map(|parts| Parts {
            vfs: parts.vfs.as_user(cred),
            engine: parts.engine.clone(),
        });
        Fs { parts }
    }

    /// Closes the pool in order; later calls on any clone fail. Without it nothing is lost, but the next open replays.
    pub fn close(self) -> io::Result<()> {
        match &self.parts.get()?.engine {
            Some(engine) => engine.unmount().map_err(pool_error),
            None => Ok(()),
        }
    }

    /// What the pool is made of; `None` for other engines, and in a forked child.
    pub fn info(&self) -> Option<PoolInfo> {
        self.parts.get().ok()?.engine.as_ref().map(Engine::info)
    }

    /// A handle that belongs to whom this file system belongs to, made with it.
    pub(crate) fn hand_out<T: Clone>(
        &self,
        path: &Path,
        f: impl FnOnce(&Vfs, &[u8]) -> ferrite_vfs::Result<T>,
    ) -> io::Result<Own<T>> {
        let handle = self.at(path, f)?;
        Ok(self.parts.map(|_| handle))
    }

    pub(crate) fn at<T>(&self, path: &Path, f: impl FnOnce(&Vfs, &[u8]) -> ferrite_vfs::Result<T>) -> io::Result<T> {
        f(&self.parts.get()?.vfs, bytes(path)).map_err(error_at(path))
    }

    /// The same for what reaches beyond `path`, and says where it failed.
    fn all_at(&self, path: &Path, f: impl FnOnce(&Vfs, &Path) -> Result<(), tree::Failed>) -> io::Result<()> {
        f(&self.parts.get()?.vfs, path).map_err(|failed| error_at(&failed.path)(failed.error))
    }

    /// Opens a file for reading.
    pub fn open_file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing; makes it, or cuts it to nothing.
    pub fn create_file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(self, path)
    }

    /// A file's whole content.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        io::Read::read_to_end(&mut self.open_file(path)?, &mut content)?;
        Ok(content)
    }

    /// A file's whole content as text.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> io::Result<String> {
        String::from_utf8(self.read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Writes a whole file, made or cut before; two steps, each atomic.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
        io::Write::write_all(&mut self.create_file(path)?, content.as_ref())
    }

    /// Attributes; of what a link points to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.at(path.as_ref(), |vfs, path| vfs.stat(path, true)).map(Metadata)
    }

    /// Attributes; of the link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.at(path.as_ref(), |vfs, path| vfs.stat(path, false)).map(Metadata)
    }

    /// Whether something is there.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.metadata(path).is_ok()
    }

    /// Makes a directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.at(path.as_ref(), |vfs, path| vfs.mkdir(path, DIR_MODE)).map(drop)
    }

    /// Makes a directory and those above it that are missing.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
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
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.at(path.as_ref(), Vfs::rmdir)
    }

    /// Removes a directory and all below it. Symbolic links are removed, never followed, also one that takes the place of
    /// a directory meanwhile; only those in front of the last component of `path` lead on.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.all_at(path.as_ref(), tree::remove)
    }

    /// Removes a name that is no directory's.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.at(path.as_ref(), Vfs::unlink)
    }

    /// Renames, replacing what has the new name; atomic, also in a crash.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames without replacing, or swaps two names.
    pub fn rename_with(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> io::Result<()> {
        self.at(from.as_ref(), |vfs, from| vfs.rename(from, bytes(to.as_ref()), mode))
    }

    /// Gives a file another name.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        self.at(link.as_ref(), |vfs, link| vfs.link(bytes(original.as_ref()), link))
            .map(drop)
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        self.at(link.as_ref(), |vfs, link| vfs.symlink(bytes(target.as_ref()), link))
            .map(drop)
    }

    /// Where a symbolic link points.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        self.at(path.as_ref(), Vfs::readlink)
            .map(|target| OsString::from_vec(target).into())
    }

    /// Sets the permission bits.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let set = SetAttr {
            mode: Some(mode & 0o7777),
            ..SetAttr::default()
        };
        self.at(path.as_ref(), |vfs, path| vfs.setattr(path, &set, true))
            .map(drop)
    }

    /// Sets owner and group.
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        self.at(path.as_ref(), |vfs, path| vfs.setattr(path, &set, true))
            .map(drop)
    }

    /// Copies a file's content and permission bits; returns its length.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
        let mode = self.metadata(&from)?.mode();
        let count = io::copy(&mut self.open_file(&from)?, &mut self.create_file(&to)?)?;
        self.set_mode(to, mode)?;
        Ok(count)
    }

    /// Lists a directory. Entries that exist throughout come exactly once.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
        let path = path.as_ref();
        // Whatever is wrong with the path shows here, not at the first entry.
        let mut listing = ReadDir {
            dir: self.hand_out(path, |vfs, path| vfs.open_dir(path).map(Arc::new))?,
            path: path.to_path_buf(),
            cookie: 0,
            batch: Vec::new().into_iter(),
            done: false,
        };
        listing.batch = listing.fetch()?.into_iter();
        Ok(listing)
    }

    /// Space and inodes.
    pub fn statfs(&self) -> io::Result<StatFs> {
        self.at(Path::new("/"), |vfs, _| vfs.statfs())
    }
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

impl Metadata {
    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.0.kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.kind == FileKind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind == FileKind::File
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Permission bits.
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// Last change of the content.
    pub fn modified(&self) -> SystemTime {
        let ns = self.0.mtime.0;
        match u64::try_from(ns) {
            Ok(after) => UNIX_EPOCH + Duration::from_nanos(after),
            Err(_) => UNIX_EPOCH - Duration::from_nanos(ns.unsigned_abs()),
        }
    }

    /// All attributes.
    pub fn attr(&self) -> &Attr {
        &self.0
    }
}

/// One entry of a directory.
#[derive(Debug, Clone)]
pub struct DirEntry {
    dir: PathBuf,
    name: OsString,
    kind: FileKind,
    next: u64,
}

impl DirEntry {
    /// Its name.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Its kind.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
}

/// Iterates over a directory, fetching a batch at a time. It is the directory that had the path when the listing began,
/// whatever has it now; [`DirEntry::path`] goes by the path of then.
pub struct ReadDir {
    dir: Own<Arc<Dir>>,
    path: PathBuf,
    cookie: u64,
    batch: std::vec::IntoIter<DirEntry>,
    done: bool,
}

const BATCH: usize = 256;

impl ReadDir {
    fn fetch(&self) -> io::Result<Vec<DirEntry>> {
        let mut batch = Vec::new();
        let listed = self.dir.get()?.readdir(self.cookie, &mut |entry| {
            batch.push(DirEntry {
                dir: self.path.clone(),
                name: OsString::from_vec(entry.name.to_vec()),
                kind: entry.kind,
                next: entry.next_cookie,
            });
            batch.len() < BATCH
        });
        listed.map_err(error_at(&self.path)).map(|()| batch)
    }
}

impl Iterator for ReadDir {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.batch.next() {
            self.cookie = entry.next;
            return Some(Ok(entry));
        }
        if self.done {
            return None;
        }
        match self.fetch() {
            Ok(batch) => {
                self.done = batch.is_empty();
                self.batch = batch.into_iter();
                if self.done { None } else { self.next() }
            }
            Err(error) => {
                self.done = true;
                Some(Err(error))
            }
        }
    }
}

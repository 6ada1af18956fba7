//! [`ReadDir`] and [`DirEntry`]: a directory's entries, fetched a batch at a time.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite_vfs::{FileKind, FsError, posix};

use crate::attributes::action::STAT;
use crate::error::{Cause, Error, Result};
use crate::fork_guard::ForkGuard;
use crate::fs::Fs;
use crate::metadata::{FileType, Metadata};

/// The directory that is listed.
struct Listed {
    handle: ForkGuard<Arc<ferrite_vfs::Dir>>,
    /// The file system with relative paths that start here.
    fs: Fs,
    /// Its path in the form the caller gave.
    path: PathBuf,
}

/// One entry of a directory. [`DirEntryExt`] has its inode number. It keeps the directory open.
#[derive(Clone)]
pub struct DirEntry {
    dir: Arc<Listed>,
    name: OsString,
    kind: FileKind,
    ino: u64,
    next: u64,
    /// As the listing found it, if it lists attributes.
    attributes: Option<Result<Metadata, FsError>>,
}

impl DirEntry {
    /// Its name.
    pub fn file_name(&self) -> OsString {
        self.name.clone()
    }

    /// Its path: that of the listed directory, as given, joined with its name. It is valid for the [`Fs`] or
    /// [`Dir`](crate::Dir) that returned the listing.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    /// Its type. Costs nothing: listings have it.
    ///
    /// # Errors
    /// None so far. The form is that of the standard library.
    pub fn file_type(&self) -> Result<FileType> {
        Ok(FileType(self.kind))
    }

    /// Its attributes; of a symbolic link, its own. Those of the time of the listing, from
    /// [`Fs::read_dir_with_metadata`]; otherwise this asks the file system for them, one call for each entry.
    ///
    /// # Errors
    /// `ENOENT` for an entry that has been removed, `EIO` for a damaged one.
    pub fn metadata(&self) -> Result<Metadata> {
        match &self.attributes {
            Some(Ok(metadata)) => Ok(*metadata),
            Some(Err(error)) => Err(Error::new(STAT, self.dir.fs.prefix().join(&self.name), error.clone())),
            None => self.dir.fs.symlink_metadata(&self.name),
        }
    }
}

impl DirEntryExt for DirEntry {
    fn ino(&self) -> u64 {
        self.ino
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}

/// Iterates over a directory, fetching a batch at a time. The listing stays with the directory that had the path when
/// it began, even if that is renamed; [`DirEntry::path`] uses the original path.
pub struct ReadDir {
    dir: Arc<Listed>,
    with_metadata: bool,
    cookie: u64,
    batch: std::vec::IntoIter<DirEntry>,
    done: bool,
}

const BATCH: usize = 256;

impl ReadDir {
    /// Lists the directory `handle`, where `fs` starts, opened as `path`.
    pub(crate) fn new(
        handle: ForkGuard<Arc<ferrite_vfs::Dir>>,
        fs: Fs,
        path: &Path,
        with_metadata: bool,
    ) -> Result<ReadDir> {
        // Check the path here, so that errors in it do not wait for the first entry.
        let path = path.to_path_buf();
        let mut listing = ReadDir {
            dir: Arc::new(Listed { handle, fs, path }),
            with_metadata,
            cookie: 0,
            batch: Vec::new().into_iter(),
            done: false,
        };
        listing.batch = listing.fetch()?.into_iter();
        Ok(listing)
    }

    fn fetch(&self) -> Result<Vec<DirEntry>> {
        let fetch = || -> Result<Vec<DirEntry>, Cause> {
            let (mut batch, mut bad) = (Vec::new(), None);
            let mut take = |entry: &ferrite_vfs::DirEntry<'_>, attributes| {
                // Users join it to paths.
                if let Err(error) = posix::check_name(entry.name) {
                    bad = Some(error);
                    return false;
                }
                batch.push(DirEntry {
                    dir: Arc::clone(&self.dir),
                    name: OsString::from_vec(entry.name.to_vec()),
                    kind: entry.kind,
                    ino: entry.ino,
                    next: entry.next_cookie,
                    attributes,
                });
                batch.len() < BATCH
            };
            let dir = self.dir.handle.get()?;
            match self.with_metadata {
                true => dir.readdir_plus(self.cookie, &mut |entry, attr| take(entry, Some(attr.map(Metadata))))?,
                false => dir.readdir(self.cookie, &mut |entry| take(entry, None))?,
            }
            match bad {
                Some(error) => Err(error.into()),
                None => Ok(batch),
            }
        };
        fetch().map_err(|cause| Error::new("list", self.dir.fs.prefix(), cause))
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

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

impl fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadDir")
            .field("path", &self.dir.fs.prefix())
            .finish_non_exhaustive()
    }
}

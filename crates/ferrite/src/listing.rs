//! [`ReadDir`] and [`DirEntry`]: a directory's entries, fetched a batch at a time.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite_vfs::{FileKind, posix};

use crate::error::{Cause, Error, Result};
use crate::metadata::Metadata;
use crate::own::Own;

/// One entry of a directory.
#[derive(Debug, Clone)]
pub struct DirEntry {
    dir: Arc<Path>,
    name: OsString,
    kind: FileKind,
    ino: u64,
    next: u64,
    metadata: Option<Metadata>,
}

impl DirEntry {
    /// Its name.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// Its path: that of the listed directory, as given, joined with its name. It is valid for the [`Fs`](crate::Fs) or
    /// [`Dir`](crate::Dir) that returned the listing.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Its kind.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Its inode number.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// Its attributes, if they were listed and available; of a symbolic link, its own. See
    /// [`Fs::read_dir_with_metadata`](crate::Fs::read_dir_with_metadata).
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }
}

/// Iterates over a directory, fetching a batch at a time. The listing stays with the directory that had the path when
/// it began, even if that is renamed; [`DirEntry::path`] uses the original path.
pub struct ReadDir {
    dir: Own<Arc<ferrite_vfs::Dir>>,
    /// In the form the caller gave.
    path: Arc<Path>,
    /// In the form for messages.
    full: Arc<Path>,
    with_metadata: bool,
    cookie: u64,
    batch: std::vec::IntoIter<DirEntry>,
    done: bool,
}

const BATCH: usize = 256;

impl ReadDir {
    /// Lists `dir`, opened as `path` from the directory that has the path `prefix`.
    pub(crate) fn new(
        dir: Own<Arc<ferrite_vfs::Dir>>,
        prefix: &Path,
        path: &Path,
        with_metadata: bool,
    ) -> Result<ReadDir> {
        // Check the path here, so that errors in it do not wait for the first entry.
        let mut listing = ReadDir {
            dir,
            path: path.into(),
            full: prefix.join(path).into(),
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
            let mut take = |entry: &ferrite_vfs::DirEntry<'_>, metadata| {
                // Users join it to paths.
                if let Err(error) = posix::check_name(entry.name) {
                    bad = Some(error);
                    return false;
                }
                batch.push(DirEntry {
                    dir: Arc::clone(&self.path),
                    name: OsString::from_vec(entry.name.to_vec()),
                    kind: entry.kind,
                    ino: entry.ino,
                    next: entry.next_cookie,
                    metadata,
                });
                batch.len() < BATCH
            };
            let dir = self.dir.get()?;
            match self.with_metadata {
                true => dir.readdir_plus(self.cookie, &mut |entry, attr| take(entry, attr.ok().map(Metadata)))?,
                false => dir.readdir(self.cookie, &mut |entry| take(entry, None))?,
            }
            match bad {
                Some(error) => Err(error.into()),
                None => Ok(batch),
            }
        };
        fetch().map_err(|cause| Error::new("list", &*self.full, cause))
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
            .field("path", &self.full)
            .finish_non_exhaustive()
    }
}

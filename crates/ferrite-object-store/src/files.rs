//! [`Files`]: the file system behind a store, with blocking calls.
//!
//! Contents: where objects and temporary files are; opening and reading objects; their metadata and entity tags.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ferrite::{File, Fs, Metadata, OpenOptions};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, Result};

use crate::failure;

/// The directory, at the root of a store, of files that are not objects yet, and of the file for locks. No object can
/// be in it.
pub const RESERVED: &str = ".ferrite-object-store";

/// A file system, and where in it the objects are.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) fs: Fs,
    pub(crate) root: PathBuf,
    next: AtomicU64,
}

impl Files {
    pub(crate) fn new(fs: Fs, root: PathBuf) -> Files {
        // Other processes may use the same file system.
        let first = RandomState::new().build_hasher().finish();
        Files {
            fs,
            root,
            next: AtomicU64::new(first),
        }
    }

    /// The file of an object.
    pub(crate) fn file(&self, location: &Path) -> Result<PathBuf> {
        match location.parts().next() {
            None => Err(failure::generic(
                "the root of the store is not an object; give a location",
            )),
            Some(first) if first.as_ref() == RESERVED => Err(Error::NotSupported {
                source: format!("{location}: `{RESERVED}` belongs to the store; give another location").into(),
            }),
            Some(_) => Ok(self.root.join(location.as_ref())),
        }
    }

    /// The directory of a prefix.
    pub(crate) fn dir(&self, prefix: &Path) -> PathBuf {
        self.root.join(prefix.as_ref())
    }

    /// The directory of temporary files.
    pub(crate) fn reserved(&self) -> PathBuf {
        self.root.join(RESERVED)
    }

    /// A name that no other temporary file has.
    pub(crate) fn fresh_name(&self) -> String {
        format!("{:016x}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Opens an object for reading.
    pub(crate) fn open(&self, location: &Path) -> Result<(File, Metadata)> {
        let found = |error| failure::of_present(location, error);
        let file = OpenOptions::new()
            .read(true)
            .no_follow(true)
            .open(&self.fs, self.file(location)?)
            .map_err(found)?;
        let metadata = file.metadata().map_err(found)?;
        Ok((file, metadata))
    }

    /// The metadata of the file at a location, which must be an object.
    pub(crate) fn find(&self, location: &Path) -> Result<Metadata> {
        let found = self.fs.symlink_metadata(self.file(location)?);
        let found = found.map_err(|error| failure::of_present(location, error))?;
        match found.is_file() {
            true => Ok(found),
            false => Err(failure::absent(location, "it is not a regular file")),
        }
    }
}

/// The entity tag of a file. A new file differs in its number or its generation, a change of a file in its time.
pub(crate) fn e_tag(found: &Metadata) -> String {
    format!(
        "{:x}-{:x}-{:x}.{:x}-{:x}",
        found.ino(),
        found.generation(),
        found.mtime(),
        found.mtime_nsec(),
        found.len()
    )
}

/// The metadata of an object.
pub(crate) fn meta(location: Path, found: &Metadata) -> Result<ObjectMeta> {
    Ok(ObjectMeta {
        last_modified: found.modified().map_err(failure::generic)?.into(),
        size: found.len(),
        e_tag: Some(e_tag(found)),
        version: None,
        location,
    })
}

/// Reads `range` of an object, all of it.
pub(crate) fn read(location: &Path, file: &File, range: std::ops::Range<u64>) -> Result<Bytes> {
    let len = usize::try_from(range.end.saturating_sub(range.start)).map_err(failure::generic)?;
    let mut content = Vec::new();
    content.try_reserve_exact(len).map_err(failure::generic)?;
    content.resize(len, 0);
    match file.read_exact_at(&mut content, range.start) {
        Ok(()) => Ok(content.into()),
        Err(error) => Err(failure::generic(format!("{location}: {error}"))),
    }
}

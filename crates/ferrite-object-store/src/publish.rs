//! The steps that change which objects there are.
//!
//! Contents: [`Temporary`], a file that is not an object yet; publishing, renaming and removing.
//!
//! Invariant: each step holds the locks of the locations that it changes, taken in the order of their numbers.

use std::collections::BTreeSet;
use std::hash::Hasher;
use std::io::ErrorKind;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use ferrite::{File, LockKind, OpenOptions, RenameMode, Wait};
use object_store::path::Path;
use object_store::{Error, PutMode, Result};

use crate::failure;
use crate::files::{Files, e_tag};

/// How often a directory may vanish between its creation and its use: each time, a removal of another object was just
/// then removing empty directories.
const ATTEMPTS: usize = 100;

/// The file, in the reserved directory, whose ranges stand for locations.
const LOCKS: &str = "locks";

/// A file that becomes an object, or is removed when this is dropped. Blocks then.
#[derive(Debug)]
pub(crate) struct Temporary {
    files: Arc<Files>,
    path: PathBuf,
    is_published: bool,
}

impl Temporary {
    /// Creates one, under a name that is free.
    pub(crate) fn create(files: &Arc<Files>) -> Result<(Temporary, File)> {
        Temporary::create_as(files, &files.fresh_name())
    }

    /// Creates one with this name.
    pub(crate) fn create_as(files: &Arc<Files>, name: &str) -> Result<(Temporary, File)> {
        let path = files.reserved().join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = files
            .with_parents(&path, || options.open(&files.fs, &path))
            .map_err(failure::generic)?;
        Ok((Temporary::of(files, path), file))
    }

    /// One that exists.
    pub(crate) fn of(files: &Arc<Files>, path: PathBuf) -> Temporary {
        Temporary {
            files: Arc::clone(files),
            path,
            is_published: false,
        }
    }

    /// Keeps the file beyond this value.
    pub(crate) fn keep(mut self) {
        self.is_published = true;
    }

    /// Makes it the object at a location. Atomic, and durable when this returns.
    ///
    /// # Errors
    /// `AlreadyExists` and `Precondition`, depending on the mode. After an error of the medium or the server the object
    /// may be there.
    pub(crate) fn publish(&mut self, location: &Path, mode: &PutMode) -> Result<()> {
        let files = &self.files;
        let to = files.file(location)?;
        let locks = files.lock(&[location])?;
        let how = match mode {
            PutMode::Overwrite => RenameMode::Replace,
            PutMode::Create => RenameMode::NoReplace,
            PutMode::Update(version) => {
                files.must_be(location, version.e_tag.as_deref())?;
                RenameMode::Replace
            }
        };
        files
            .with_parents(&to, || files.fs.rename_with(&self.path, &to, how))
            .map_err(|error| failure::of(location, error))?;
        self.is_published = true;
        settle(&locks, location)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_published {
            // If this fails, `FerriteStore::remove_uploads` finds it later.
            let _ = self.files.fs.remove_file(&self.path);
        }
    }
}

impl Files {
    /// Locks locations until the result is dropped. Blocks while another user of the store changes one of them.
    fn lock(&self, locations: &[&Path]) -> Result<File> {
        let path = self.reserved().join(LOCKS);
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        let file = self
            .with_parents(&path, || options.open(&self.fs, &path))
            .map_err(failure::generic)?;
        let numbers: BTreeSet<u64> = locations.iter().map(|location| number(location)).collect();
        for number in numbers {
            file.lock_range(number..=number, LockKind::Exclusive, Wait::Forever)
                .map_err(failure::generic)?;
        }
        Ok(file)
    }

    /// Refuses to go on unless the object has this entity tag.
    fn must_be(&self, location: &Path, wanted: Option<&str>) -> Result<()> {
        let wanted =
            wanted.ok_or_else(|| failure::generic("an update needs the e_tag of the object that it replaces"))?;
        let unmet = |source: Box<dyn std::error::Error + Send + Sync>| Error::Precondition {
            path: location.to_string(),
            source,
        };
        match self.find(location) {
            Ok(found) if e_tag(&found) == wanted => Ok(()),
            Ok(found) => Err(unmet(format!("it is {}, not {wanted}", e_tag(&found)).into())),
            Err(Error::NotFound { source, .. }) => Err(unmet(source)),
            Err(error) => Err(error),
        }
    }

    /// Calls `f`, which makes an entry at `path`, and creates the directories above it if they are missing.
    fn with_parents<T>(&self, path: &FilePath, f: impl Fn() -> ferrite::Result<T>) -> ferrite::Result<T> {
        let Some(parent) = path.parent() else { return f() };
        for _ in 0..ATTEMPTS {
            match f() {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => return other,
            }
            match self.fs.create_dir_all(parent) {
                // A directory that another user of the store created is gone again.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {}
                other => other?,
            }
        }
        f()
    }

    /// Removes the directories above `path` that are empty, up to the root of the store.
    fn remove_empty_parents(&self, path: &FilePath) {
        let above = path.ancestors().skip(1);
        for dir in above.take_while(|dir| *dir != self.root && dir.starts_with(&self.root)) {
            // It is not empty, or another user of the store was faster.
            if self.fs.remove_dir(dir).is_err() {
                return;
            }
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&self, location: &Path) -> Result<()> {
        let path = self.file(location)?;
        let locks = self.lock(&[location])?;
        self.find(location)?;
        self.fs
            .remove_file(&path)
            .map_err(|error| failure::of_present(location, error))?;
        self.remove_empty_parents(&path);
        settle(&locks, location)
    }

    /// Gives an object another location. Atomic, and durable when this returns.
    pub(crate) fn rename(&self, from: &Path, to: &Path, how: RenameMode) -> Result<()> {
        let (source, target) = (self.file(from)?, self.file(to)?);
        let locks = self.lock(&[from, to])?;
        self.find(from)?;
        self.with_parents(&target, || self.fs.rename_with(&source, &target, how))
            .map_err(|error| failure::of(to, error))?;
        self.remove_empty_parents(&source);
        settle(&locks, to)
    }
}

/// Makes a change durable, and what it refers to. A sync of any file covers all that was done before; where operations
/// are durable when they return, it does nothing.
fn settle(any: &File, location: &Path) -> Result<()> {
    any.sync_all().map_err(|error| failure::of(location, error))
}

/// The byte of the file of locks that stands for a location. Every process computes the same one; two locations that
/// share a byte wait for each other, and no more.
fn number(location: &Path) -> u64 {
    // Offsets of files end at 2^63.
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    hasher.write(location.as_ref().as_bytes());
    hasher.finish() >> 2
}

/// The hash of Fowler, Noll and Vo (1a), which is the same in every build.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

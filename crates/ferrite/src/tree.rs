//! Removing a directory and everything below it.
//!
//! Invariant: everything that is removed is below the directory that was found first. Each step starts at an open
//! directory, so concurrent renames and symbolic links cannot lead out of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

use ferrite_vfs::{Dir, FileKind, FsError, Result, Vfs, posix};

use crate::fs::bytes;

/// Entries that are listed at a time.
const BATCH: usize = 256;

/// The error, and where it occurred.
pub(crate) struct Failed {
    pub(crate) path: PathBuf,
    pub(crate) error: FsError,
}

struct Entry {
    name: Vec<u8>,
    kind: FileKind,
    next: u64,
}

/// A directory on the way down.
struct Level {
    dir: Dir,
    /// Its name in the level above.
    name: Vec<u8>,
    cookie: u64,
    batch: IntoIter<Entry>,
}

impl Level {
    fn new(dir: Dir, name: Vec<u8>) -> Level {
        Level {
            dir,
            name,
            cookie: 0,
            batch: Vec::new().into_iter(),
        }
    }

    fn advance(&mut self) -> Result<Option<Entry>> {
        if self.batch.as_slice().is_empty() {
            let (mut batch, mut checked) = (Vec::new(), Ok(()));
            self.dir.readdir(self.cookie, &mut |entry| {
                // The name becomes a path from here, whose target is removed.
                checked = posix::check_name(entry.name);
                if checked.is_err() {
                    return false;
                }
                batch.push(Entry {
                    name: entry.name.to_vec(),
                    kind: entry.kind,
                    next: entry.next_cookie,
                });
                batch.len() < BATCH
            })?;
            checked?;
            self.batch = batch.into_iter();
        }
        let entry = self.batch.next();
        self.cookie = entry.as_ref().map_or(self.cookie, |entry| entry.next);
        Ok(entry)
    }
}

/// Removes `path`: a directory, after everything below it, or a symbolic link.
pub(crate) fn remove(vfs: &Vfs, path: &Path) -> std::result::Result<(), Failed> {
    let mut below = Vec::new();
    remove_in(vfs, bytes(path), &mut below).map_err(|error| Failed {
        path: below
            .into_iter()
            .fold(path.to_path_buf(), |path, name| path.join(OsString::from_vec(name))),
        error,
    })
}

/// `at`: names from the top to the failed entry.
fn remove_in(vfs: &Vfs, path: &[u8], at: &mut Vec<Vec<u8>>) -> Result<()> {
    let top = match vfs.open_dir_itself(path) {
        Err(FsError::NotDirectory) if vfs.stat(path, false)?.kind == FileKind::Symlink => return vfs.unlink(path),
        other => other?,
    };
    let mut levels = vec![Level::new(top, Vec::new())];
    while let Some(level) = levels.last_mut() {
        let here = vfs.at(level.dir.ino());
        if let Some(entry) = level.advance()? {
            at.push(entry.name.clone());
            match remove_entry(&here, &entry)? {
                Some(dir) => levels.push(Level::new(dir, entry.name)),
                None => drop(at.pop()),
            }
            continue;
        }
        let name = std::mem::take(&mut level.name);
        levels.pop();
        match levels.last() {
            Some(above) => {
                is_gone(vfs.at(above.dir.ino()).rmdir(&name))?;
                at.pop();
            }
            None => vfs.rmdir(path)?,
        }
    }
    Ok(())
}

/// Removes an entry of the directory where `here` starts; opens a directory instead.
fn remove_entry(here: &Vfs, entry: &Entry) -> Result<Option<Dir>> {
    if entry.kind == FileKind::Directory {
        match here.open_dir_itself(&entry.name) {
            Ok(dir) => return Ok(Some(dir)),
            // Another file has its name by now.
            Err(FsError::NotDirectory) => {}
            Err(error) => return is_gone(Err(error)).map(|()| None),
        }
    }
    is_gone(here.unlink(&entry.name)).map(|()| None)
}

/// An entry that was removed concurrently counts as removed.
fn is_gone(result: Result<()>) -> Result<()> {
    match result {
        Err(FsError::NotFound) => Ok(()),
        other => other,
    }
}

//! The few files beside RocksDB's that a store reads and writes, in a directory of the machine or on blobs.
//!
//! Invariants: a file that [`Shelf::put`] or [`Shelf::remove`] has changed is durable on return, in its old or its new
//! state. The database is closed meanwhile. Used by `close_mark` and `log_check`.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::rocksdb::{FileError, Files, Reader};

use crate::backend::BlobFiles;
use crate::error::{Error, Result};

/// Where RocksDB's files lie on blobs.
const ON_BLOBS: &str = "/db";

/// The files of a store.
#[derive(Clone)]
pub(crate) enum Shelf {
    Directory(PathBuf),
    Blobs(BlobFiles),
}

/// A file of the machine.
struct Plain(File);

impl Reader for Plain {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::result::Result<usize, FileError> {
        let mut done = 0;
        while done < into.len() {
            match self.0.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(FileError::Io(error.to_string())),
            }
        }
        Ok(done)
    }
}

fn of_file(name: &str, error: FileError) -> Error {
    match error {
        FileError::Corruption(text) => Error::Corruption(format!("{name}: {text}")),
        error => Error::Io(format!("{name}: {error}")),
    }
}

fn on_blobs(name: &str) -> Vec<u8> {
    format!("{ON_BLOBS}/{name}").into_bytes()
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

impl Shelf {
    /// Names of all files.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = match self {
            Shelf::Directory(path) => {
                let about = |error: std::io::Error| Error::Io(format!("{}: {error}", path.display()));
                let entries = match std::fs::read_dir(path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                    entries => entries.map_err(about)?,
                };
                let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
                names.collect::<std::io::Result<_>>().map_err(about)?
            }
            Shelf::Blobs(files) => {
                let names = files
                    .list(ON_BLOBS.as_bytes())
                    .map_err(|error| of_file(ON_BLOBS, error))?;
                names
                    .iter()
                    .map(|name| String::from_utf8_lossy(name).into_owned())
                    .collect()
            }
        };
        names.sort_unstable();
        Ok(names)
    }

    /// Length of a file; `None` if it does not exist.
    pub(crate) fn size_bytes(&self, name: &str) -> Result<Option<u64>> {
        match self {
            Shelf::Directory(path) => match std::fs::metadata(path.join(name)) {
                Ok(found) => Ok(Some(found.len())),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Error::Io(format!("{name}: {error}"))),
            },
            Shelf::Blobs(files) => match files.size_bytes(&on_blobs(name)) {
                Ok(size) => Ok(Some(size)),
                Err(FileError::NotFound) => Ok(None),
                Err(error) => Err(of_file(name, error)),
            },
        }
    }

    /// Opens a file for reading from front to back; `None` if it does not exist.
    pub(crate) fn open(&self, name: &str) -> Result<Option<Box<dyn Reader>>> {
        match self {
            Shelf::Directory(path) => match File::open(path.join(name)) {
                Ok(file) => Ok(Some(Box::new(Plain(file)))),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Error::Io(format!("{name}: {error}"))),
            },
            Shelf::Blobs(files) => match files.open(&on_blobs(name), true) {
                Ok(file) => Ok(Some(file)),
                Err(FileError::NotFound) => Ok(None),
                Err(error) => Err(of_file(name, error)),
            },
        }
    }

    /// All of a file of at most `bytes_max`; `None` if it does not exist.
    pub(crate) fn read(&self, name: &str, bytes_max: usize) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open(name)? else {
            return Ok(None);
        };
        let mut bytes = vec![0; bytes_max];
        let len = file.read_at(0, &mut bytes).map_err(|error| of_file(name, error))?;
        bytes.truncate(len);
        Ok(Some(bytes))
    }

    /// Makes a small file, replacing one of the same name. A crash leaves none, a part of it, or all.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self {
            Shelf::Directory(path) => {
                let write = || {
                    let mut file = File::create(path.join(name))?;
                    file.write_all(bytes)?;
                    file.sync_all()?;
                    sync_directory(path)
                };
                write().map_err(|error| Error::Io(format!("{}: {error}", path.join(name).display())))
            }
            Shelf::Blobs(files) => {
                let write = || {
                    let file = files.create(&on_blobs(name))?;
                    file.append(bytes)?;
                    file.close()?;
                    files.write_names_twice()
                };
                write().map_err(|error| of_file(name, error))
            }
        }
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        match self {
            Shelf::Directory(path) => {
                let removed = match std::fs::remove_file(path.join(name)) {
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                    removed => removed.and_then(|()| sync_directory(path)),
                };
                removed.map_err(|error| Error::Io(format!("{}: {error}", path.join(name).display())))
            }
            Shelf::Blobs(files) => match files.remove(&on_blobs(name)) {
                Err(FileError::NotFound) => Ok(()),
                removed => removed.map_err(|error| of_file(name, error)),
            },
        }
    }
}

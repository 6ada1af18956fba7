//! The file system that RocksDB needs, as a trait.
//!
//! Invariants that every implementation keeps, and RocksDB relies on:
//!
//! * A name is bytes, with `/` between its parts. There are no directories except as common prefixes of names.
//! * Making, renaming and removing a file is atomic and durable on return, in the order of the calls.
//! * A file is appended to by one [`Writer`]; written bytes never change.
//! * Appended bytes are durable after [`Writer::sync`], not before. After a crash a file holds at least the synced
//!   bytes, and of later ones a part, from the front, or nothing.
//! * A log (a name that ends in `.log`) that was not closed may come back with zeros behind its content: RocksDB skips
//!   them, and so its size need not be written at each sync. All other files keep their size to the byte.
//!
//! Any thread may use a file system, a reader and a writer, also several at once.

use thiserror::Error;

/// Errors of a file system for RocksDB.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(crate) enum FileError {
    /// The file does not exist.
    #[error("no such file")]
    NotFound,
    /// It lacks space for that.
    #[error("no space left: {0}")]
    NoSpace(String),
    /// The data read differs from the data written.
    #[error("damaged: {0}")]
    Corruption(String),
    /// Another user has it locked.
    #[error("locked: {0}")]
    Locked(String),
    /// The device refused.
    #[error("{0}")]
    Io(String),
}

/// A file system for one database.
pub(crate) trait Files: Send + Sync {
    /// Opens a file for reading: `in_order` from front to back, once, otherwise anywhere, often.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if it does not exist.
    fn open(&self, name: &[u8], in_order: bool) -> Result<Box<dyn Reader>, FileError>;

    /// Makes an empty file, replacing one of the same name.
    fn create(&self, name: &[u8]) -> Result<Box<dyn Writer>, FileError>;

    /// Opens a file to append to it; creates it if it does not exist.
    fn append(&self, name: &[u8]) -> Result<Box<dyn Writer>, FileError>;

    /// Whether there is a file of this name, or files below it.
    fn exists(&self, name: &[u8]) -> Result<bool, FileError>;

    /// Bytes in a file, with those that are not durable yet.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if it does not exist.
    fn size_bytes(&self, name: &[u8]) -> Result<u64, FileError>;

    /// Approximate number of bytes that may still be written.
    fn free_bytes(&self) -> Result<u64, FileError>;

    /// The parts that follow `dir` and a slash in the names of files, each once.
    fn list(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>, FileError>;

    /// Removes a file. Open readers may continue.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if it does not exist.
    fn remove(&self, name: &[u8]) -> Result<(), FileError>;

    /// Renames a file, replacing one that has the new name, or all files below `from`, if it is a directory.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if neither exists.
    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), FileError>;

    /// Locks a name, until [`Self::unlock`].
    ///
    /// # Errors
    /// [`FileError::Locked`] if it is.
    fn lock(&self, name: &[u8]) -> Result<(), FileError>;

    /// Releases the lock of [`Self::lock`].
    fn unlock(&self, name: &[u8]);
}

/// A file that is open for reading.
pub(crate) trait Reader: Send + Sync {
    /// Fills `into` from `offset` on, as far as the file goes, and returns the number of bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, FileError>;
}

/// A file that is open for appending.
pub(crate) trait Writer: Send + Sync {
    /// Appends all of `data`.
    fn append(&self, data: &[u8]) -> Result<(), FileError>;

    /// Returns when all earlier appends are durable.
    fn sync(&self) -> Result<(), FileError>;

    /// Cuts the file off, if it is longer.
    fn truncate(&self, len_bytes: u64) -> Result<(), FileError>;

    /// Bytes in it, with those that are not durable yet.
    fn size_bytes(&self) -> u64;

    /// Passes all appended bytes to the device, with the file's size. The last call, made once.
    fn close(&self) -> Result<(), FileError>;
}

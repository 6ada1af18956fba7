//! What RocksDB needs of a file system, as a trait.
//!
//! Invariants that every implementation keeps, and RocksDB relies on:
//!
//! * A name is bytes, with `/` between its parts. There are no directories but what names have in common.
//! * Making, renaming and removing a file is atomic and durable on return, in the order of the calls.
//! * A file is appended to by one [`Writer`]; it is never changed where it was written.
//! * What was appended is durable after [`Writer::sync`], not before. After a crash a file holds at least what was
//!   synced, and of what came later a part, from the front, or nothing.
//! * A log (a name that ends in `.log`) that was not closed may come back with zeros behind its content: RocksDB skips
//!   them, and so its size need not be written at each sync. All other files keep their size to the byte.
//!
//! Any thread may use a file system, a reader and a writer, also several at once.

use thiserror::Error;

/// Why a file system of ours refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is no such file.
    #[error("no such file")]
    NotFound,
    /// It has no room left for that.
    #[error("no space left: {0}")]
    NoSpace(String),
    /// What it read is not what it wrote.
    #[error("damaged: {0}")]
    Corruption(String),
    /// Somebody has it locked.
    #[error("locked: {0}")]
    Locked(String),
    /// The device refused.
    #[error("{0}")]
    Io(String),
}

/// A file system for one database.
pub trait Files: Send + Sync {
    /// Opens a file for reading: `in_order` from front to back, once, or else anywhere, often.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if there is none.
    fn open(&self, name: &[u8], in_order: bool) -> Result<Box<dyn Reader>, FileError>;

    /// Makes an empty file, in the place of one that has the name.
    fn create(&self, name: &[u8]) -> Result<Box<dyn Writer>, FileError>;

    /// Opens a file to append to it; makes it if there is none.
    fn append(&self, name: &[u8]) -> Result<Box<dyn Writer>, FileError>;

    /// Whether there is a file of this name, or files below it.
    fn exists(&self, name: &[u8]) -> Result<bool, FileError>;

    /// Bytes in a file, with those that are not durable yet.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if there is none.
    fn size_bytes(&self, name: &[u8]) -> Result<u64, FileError>;

    /// Bytes that may still be written, about.
    fn free_bytes(&self) -> Result<u64, FileError>;

    /// The parts that follow `dir` and a slash in the names of files, each once.
    fn list(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>, FileError>;

    /// Removes a file. Who has it open for reading may go on.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if there is none.
    fn remove(&self, name: &[u8]) -> Result<(), FileError>;

    /// Renames a file, replacing one that has the new name, or all files below `from`, if it is a directory.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if there is neither.
    fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), FileError>;

    /// Locks a name, until [`Self::unlock`].
    ///
    /// # Errors
    /// [`FileError::Locked`] if it is.
    fn lock(&self, name: &[u8]) -> Result<(), FileError>;

    /// Ends what [`Self::lock`] began.
    fn unlock(&self, name: &[u8]);
}

/// A file that is open for reading.
pub trait Reader: Send + Sync {
    /// Fills `into` from `offset` on, as far as the file goes, and returns the number of bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, FileError>;
}

/// A file that is open for appending.
pub trait Writer: Send + Sync {
    /// Appends all of `data`.
    fn append(&self, data: &[u8]) -> Result<(), FileError>;

    /// Returns when all that was appended before is durable.
    fn sync(&self) -> Result<(), FileError>;

    /// Cuts the file off, if it is longer.
    fn truncate(&self, len_bytes: u64) -> Result<(), FileError>;

    /// Bytes in it, with those that are not durable yet.
    fn size_bytes(&self) -> u64;

    /// Passes all that was appended to the device, with the file's size. Called once, as the last.
    fn close(&self) -> Result<(), FileError>;
}

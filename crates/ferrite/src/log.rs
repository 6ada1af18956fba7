//! [`Fs::open_log`]: append-only logs in files of any volume, with the interface of libpmemlog.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ferrite::log::LogOptions;
//!
//! let fs = ferrite::Fs::memory();
//! let log = fs.open_log("/log", &LogOptions::default().create(true))?;
//! log.append(b"durable, and whole after a crash")?;
//! let mut text = Vec::new();
//! log.walk(0, |bytes| {
//!     text.extend_from_slice(bytes);
//!     true
//! })?;
//! assert_eq!(text, b"durable, and whole after a crash");
//! # Ok(())
//! # }
//! ```

use std::path::Path;

use ferrite_vfs::{FallocateMode, Limits};

pub use ferrite_log::{Error, Log, LogOptions, Result, Store, Walked};

use crate::file::File;
use crate::fs::Fs;
use crate::open::OpenOptions;

/// A file that holds a log.
pub struct LogFile {
    file: File,
    limits: Limits,
}

fn failed(error: crate::Error) -> Error {
    Error::Store(Box::new(error))
}

impl Fs {
    /// Opens the log in a file, for appending too; with [`LogOptions::create`] it creates a missing one.
    ///
    /// # Errors
    /// Those of opening the file; `NotALog` if it holds something else.
    pub fn open_log(&self, path: impl AsRef<Path>, options: &LogOptions) -> Result<Log<LogFile>> {
        Log::open(LogFile::open(self, path, options.create)?, options)
    }

    /// Opens the log in a file for walking only.
    ///
    /// # Errors
    /// As [`Self::open_log`].
    pub fn walk_log(&self, path: impl AsRef<Path>) -> Result<Log<LogFile>> {
        Log::open(LogFile::open_to_walk(self, path)?, &LogOptions::default())
    }
}

impl LogFile {
    /// Opens a file for a log, and creates it if requested.
    ///
    /// # Errors
    /// Those of opening a file.
    pub fn open(fs: &Fs, path: impl AsRef<Path>, create: bool) -> Result<LogFile> {
        let mut options = OpenOptions::new();
        LogFile::of(options.read(true).write(true).create(create).open(fs, path))
    }

    /// Opens a file for walking only.
    ///
    /// # Errors
    /// Those of opening a file.
    pub fn open_to_walk(fs: &Fs, path: impl AsRef<Path>) -> Result<LogFile> {
        LogFile::of(OpenOptions::new().read(true).open(fs, path))
    }

    fn of(opened: crate::Result<File>) -> Result<LogFile> {
        let file = opened.map_err(failed)?;
        let limits = file
            .run("ask about", |open| Ok(open.fs.vfs.fs().limits()))
            .map_err(failed)?;
        Ok(LogFile { file, limits })
    }

    fn sync(&self) -> Result<()> {
        // Its present value: a server may be replaced by one that promises less.
        let limits = self.file.run("ask about", |open| Ok(open.fs.vfs.fs().limits()));
        match limits.map_err(failed)?.is_durable_at_once() {
            true => Ok(()),
            false => self.file.sync_all().map_err(failed),
        }
    }
}

impl Store for LogFile {
    fn size(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(failed)?.len())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let count = self.file.read_from(offset + done as u64, &mut into[done..]);
            match count.map_err(failed)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn append(&self, data: &[u8]) -> Result<()> {
        self.file.append(data).map_err(failed)?;
        self.sync()
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<()> {
        self.file.write_whole(&word.to_le_bytes(), offset).map_err(failed)?;
        self.sync()
    }

    fn free(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let freed = self.file.allocate(FallocateMode::PunchHole, offset, len_bytes);
        freed.map_err(failed)?;
        // This also makes durable the unsynced stores of an earlier rewind.
        self.sync()
    }

    fn append_bytes_max(&self) -> u64 {
        self.limits.whole_write_bytes
    }

    fn file_bytes_max(&self) -> u64 {
        self.limits.file_bytes_max
    }
}

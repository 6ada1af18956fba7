//! The requirements of a log on a file, and their implementation for an engine's file.

use std::sync::Arc;

use ferrite_vfs::{Ctx, FallocateMode, FileSystem, FsError, Ino, OpenFile, OpenMode, Position, SpaceOf};

use crate::error::{Error, Result};

/// A file that holds a log. Calls block.
pub trait Store: Send + Sync {
    /// The file's size, including everything that others have appended before.
    ///
    /// # Errors
    /// If the size cannot be determined.
    fn size(&self) -> Result<u64>;

    /// Reads at `offset`; fills `into` only in part at the end.
    ///
    /// # Errors
    /// The errors of the file.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Appends at the end, wherever concurrent appends move it. When it returns, the bytes are there together, and
    /// durable. They may be there twice, and after an error too, whole or in part.
    ///
    /// # Errors
    /// The errors of the file.
    fn append(&self, data: &[u8]) -> Result<()>;

    /// Stores an aligned word of 8 bytes, durably. A crash leaves the old one or the new one.
    ///
    /// # Errors
    /// The errors of the file.
    fn store_word(&self, offset: u64, word: u64) -> Result<()>;

    /// Frees a range, whose bytes then read as zeros; the size stays.
    ///
    /// # Errors
    /// The errors of the file.
    fn free(&self, offset: u64, len_bytes: u64) -> Result<()>;

    /// The longest append that other readers see whole.
    fn append_bytes_max(&self) -> u64;

    /// The longest file.
    fn file_bytes_max(&self) -> u64;
}

macro_rules! pass_on {
    ($($pointer:ident)*) => {$(
impl<S: Store + ?Sized> Store for $pointer<S> {
    fn size(&self) -> Result<u64> {
        (**self).size()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        (**self).read(offset, into)
    }

    fn append(&self, data: &[u8]) -> Result<()> {
        (**self).append(data)
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<()> {
        (**self).store_word(offset, word)
    }

    fn free(&self, offset: u64, len_bytes: u64) -> Result<()> {
        (**self).free(offset, len_bytes)
    }

    fn append_bytes_max(&self) -> u64 {
        (**self).append_bytes_max()
    }

    fn file_bytes_max(&self) -> u64 {
        (**self).file_bytes_max()
    }
}
    )*};
}

pass_on!(Box Arc);

/// An open file of any engine, as one caller sees it.
pub struct FileStore {
    file: Arc<dyn OpenFile>,
    ctx: Ctx,
    syncs: bool,
    append_bytes_max: u64,
    file_bytes_max: u64,
}

impl FileStore {
    /// Opens a file for a log, for writing or only for walking.
    ///
    /// # Errors
    /// The errors of opening it.
    pub fn open(fs: &dyn FileSystem, ctx: &Ctx, ino: Ino, writable: bool) -> Result<FileStore> {
        let mode = match writable {
            true => OpenMode::read_write(),
            false => OpenMode::read_only(),
        };
        let file = fs.open(ctx, ino, mode)?;
        Ok(FileStore::over(fs, ctx, file))
    }

    /// The same with a file that is open already.
    pub fn over(fs: &dyn FileSystem, ctx: &Ctx, file: Arc<dyn OpenFile>) -> FileStore {
        let limits = fs.limits();
        FileStore {
            file,
            ctx: ctx.clone(),
            syncs: !limits.is_durable_at_once(),
            append_bytes_max: limits.whole_write_bytes,
            file_bytes_max: limits.file_bytes_max,
        }
    }

    fn write(&self, position: Position, data: &[u8]) -> Result<()> {
        let written = self.file.write(&self.ctx, position.into(), data)?;
        if written.len_bytes < data.len() {
            return Err(FsError::NoSpace(SpaceOf::Blocks).into());
        }
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        if self.syncs {
            self.file.fsync(&self.ctx)?;
        }
        Ok(())
    }
}

impl Store for FileStore {
    fn size(&self) -> Result<u64> {
        Ok(self.file.getattr(&self.ctx)?.size)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&self.ctx, offset + done as u64, &mut into[done..])? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn append(&self, data: &[u8]) -> Result<()> {
        self.write(Position::End, data)
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<()> {
        self.write(Position::At(offset), &word.to_le_bytes())
    }

    fn free(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let freed = self
            .file
            .fallocate(&self.ctx, FallocateMode::PunchHole, offset, len_bytes);
        freed.map_err(Error::from)?;
        // This also makes durable the unsynced stores of an earlier rewind.
        self.sync()
    }

    fn append_bytes_max(&self) -> u64 {
        self.append_bytes_max
    }

    fn file_bytes_max(&self) -> u64 {
        self.file_bytes_max
    }
}

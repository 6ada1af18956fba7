//! [`OpenFile`] for the engine: checks the mode in which the handle was opened, then delegates.

use std::sync::Arc;

use ferrite_map::TransCache;
use ferrite_vfs::{Attr, FallocateMode, FileSystem, FsError, Ino, OpenFile, OpenMode, Result};

use super::handle::Engine;
use crate::cache::inodes::InodeMem;
use crate::file::read::Reader;
use crate::file::reserve;
use crate::file::write::{self, Position};
use crate::pool::core::Core;
use crate::tree::remove;

/// An open file of the engine.
pub(crate) struct PmFile {
    engine: Engine,
    inode: Arc<InodeMem>,
    mode: OpenMode,
    cache: TransCache,
}

impl PmFile {
    /// A handle on `inode`, which was already pinned for it.
    pub(crate) fn new(engine: Engine, inode: Arc<InodeMem>, mode: OpenMode) -> Self {
        PmFile {
            engine,
            inode,
            mode,
            cache: TransCache::default(),
        }
    }

    fn core(&self) -> &Core {
        self.engine.core()
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            core: self.core(),
            inode: &self.inode,
            cache: &self.cache,
            no_atime: self.mode.no_atime,
        }
    }

    fn check_open(&self, allowed: bool) -> Result<()> {
        if allowed { Ok(()) } else { Err(FsError::BadHandle) }
    }

    fn write(&self, position: Position, data: &[u8]) -> Result<(u64, usize)> {
        self.check_open(self.mode.write)?;
        if data.is_empty() {
            return Ok((self.getattr()?.size, 0));
        }
        let core = self.core();
        core.told(write::write(core, &self.inode, position, data, self.mode))
    }
}

impl OpenFile for PmFile {
    fn ino(&self) -> Ino {
        u64::from(self.inode.ino)
    }

    fn getattr(&self) -> Result<Attr> {
        self.core()
            .reading(|core| core.attr(self.inode.ino, &core.snapshot(&self.inode)?))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check_open(self.mode.read)?;
        self.reader().read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.write(Position::At(offset), data).map(|(_, count)| count)
    }

    fn append(&self, data: &[u8]) -> Result<(u64, usize)> {
        self.write(Position::End, data)
    }

    fn fallocate(&self, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.check_open(self.mode.write)?;
        let core = self.core();
        core.told(reserve::fallocate(core, &self.inode, mode, (offset, len), self.mode))
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.reader().find_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.reader().find_hole(offset)
    }

    fn fsync(&self) -> Result<()> {
        self.engine.sync()
    }
}

impl Drop for PmFile {
    fn drop(&mut self) {
        remove::unpin(self.engine.core(), &self.inode, 1);
    }
}

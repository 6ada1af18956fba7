//! [`OpenFile`] for the engine: checks the mode in which the handle was opened, then delegates.

use std::sync::Arc;

use ferrite_buffers::borrowed::Borrowed;
use ferrite_map::TransCache;
use ferrite_vfs::{
    Attr, BadArgument, CloneRange, Ctx, FallocateMode, FileSystem, FsError, Ino, OpenFile, OpenMode, Result, SetAttr,
    WriteMode, Written,
};

use super::handle::Engine;
use crate::cache::inodes::InodeMem;
use crate::file::read::Reader;
use crate::file::{bound, clone, reserve, write};
use crate::pool::core::Core;
use crate::tree::attr::{self, Through};
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

    fn reader(&self, ctx: &Ctx) -> Reader<'_> {
        Reader {
            core: self.core(),
            inode: &self.inode,
            cache: &self.cache,
            no_atime: self.mode.no_atime || ctx.no_atime,
        }
    }

    fn check_open(&self, allowed: bool) -> Result<()> {
        if allowed { Ok(()) } else { Err(FsError::BadHandle) }
    }
}

impl OpenFile for PmFile {
    fn ino(&self) -> Ino {
        u64::from(self.inode.ino)
    }

    fn getattr(&self, _: &Ctx) -> Result<Attr> {
        self.core().reading(|core| {
            bound::settle_times(core, &self.inode);
            core.current_attr(&self.inode)
        })
    }

    fn setattr(&self, ctx: &Ctx, set: &SetAttr) -> Result<Attr> {
        if set.size.is_some() && !self.mode.write {
            return Err(FsError::Invalid(BadArgument::NotWritable));
        }
        let core = self.core();
        let ino = u64::from(self.inode.ino);
        let change = || core.told(attr::setattr(core, ctx, ino, set, Through::Handle));
        self.engine.dedup(ctx, change)
    }

    fn read_at(&self, ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check_open(self.mode.read)?;
        self.reader(ctx).read_at(offset, buf)
    }

    fn read_versioned(&self, ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<(usize, Option<u64>)> {
        self.check_open(self.mode.read)?;
        self.reader(ctx).read_versioned(offset, buf)
    }

    fn read_borrowed(
        &self,
        ctx: &Ctx,
        offset: u64,
        len_bytes: usize,
        take: &mut dyn FnMut(&Borrowed, u64),
    ) -> Result<bool> {
        self.check_open(self.mode.read)?;
        self.reader(ctx).read_borrowed(offset, len_bytes, take)
    }

    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        self.check_open(self.mode.write)?;
        if data.is_empty() {
            return Ok(Written::new(self.getattr(ctx)?.size, 0));
        }
        let core = self.core();
        self.engine
            .dedup(ctx, || core.told(write::write(core, ctx, &self.inode, mode, data)))
    }

    fn fallocate(&self, ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.check_open(self.mode.write)?;
        let core = self.core();
        let change = || core.told(reserve::fallocate(core, ctx, &self.inode, mode, offset, len));
        self.engine.dedup(ctx, change)
    }

    fn clone_range(&self, ctx: &Ctx, range: &CloneRange) -> Result<Written> {
        self.check_open(self.mode.write)?;
        let core = self.core();
        self.engine
            .dedup(ctx, || core.told(clone::clone_range(core, ctx, &self.inode, range)))
    }

    fn seek_data(&self, ctx: &Ctx, offset: u64) -> Result<u64> {
        self.reader(ctx).find_data(offset)
    }

    fn seek_hole(&self, ctx: &Ctx, offset: u64) -> Result<u64> {
        self.reader(ctx).find_hole(offset)
    }

    fn fsync(&self, ctx: &Ctx) -> Result<()> {
        self.engine.sync(ctx)
    }
}

impl Drop for PmFile {
    fn drop(&mut self) {
        remove::unpin(self.engine.core(), &self.inode, 1);
    }
}

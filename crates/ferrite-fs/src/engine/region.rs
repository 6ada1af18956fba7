//! [`Regions`] for the engine: files as memory regions.
//!
//! Contents: binding through an [`Engine`], and [`PmRegion`], a bound file for its adapter. Stores, loads and
//! fences go to the medium from here. The rest delegates to [`crate::file`].
//!
//! A region does not keep the pool mounted: it ends with the last handle of the pool, see [`deregister::all`].

use std::sync::{Arc, PoisonError};

use ferrite_map::{BlockNo, PageRange};
use ferrite_vfs::regions::{Access, Adapter, Binding, BoundFile, REGION_PAGE_BYTES, Region, Regions};
use ferrite_vfs::{Attr, BadArgument, Ctx, FsError, Ino, Result};

use super::deregister;
use super::handle::Engine;
use crate::cache::bindings::Attached;
use crate::cache::inodes::InodeMem;
use crate::file::{bind, bound, region, write};
use crate::pool::core::Core;

impl Regions for Engine {
    fn bind(&self, ctx: &Ctx, ino: Ino, how: Binding, adapter: Arc<dyn Adapter>) -> Result<Arc<dyn Region>> {
        self.watch_bindings();
        let core = self.shared_core();
        // It gives the file blocks of its own.
        let _shared = core.changes.read().unwrap_or_else(PoisonError::into_inner);
        let mem = core.inode(ino)?;
        let file = core.told(bind::bind(core, ctx, &mem, how, &adapter))?;
        let core = Arc::clone(core);
        Ok(Arc::new(PmRegion { core, mem, file }))
    }

    fn bound(&self) -> Vec<BoundFile> {
        let bindings = &self.core().bindings;
        let attached = bindings.attached().into_iter().map(|file| BoundFile {
            ino: u64::from(file.ino),
            is_attached: true,
            runs: file.tell().runs,
        });
        let is_bound = |&ino: &ferrite_map::Inum| {
            let inode = self.core().load(ino);
            inode.in_use() && inode.is_bound()
        };
        let left = bindings.left().into_iter().filter(is_bound).map(|ino| BoundFile {
            ino: u64::from(ino),
            is_attached: false,
            runs: 0,
        });
        let mut all: Vec<_> = attached.chain(left).collect();
        all.sort_unstable_by_key(|file| file.ino);
        all
    }

    fn finalize(&self, ctx: &Ctx, ino: Ino) -> Result<()> {
        let core = self.core();
        let _shared = core.changes.read().unwrap_or_else(PoisonError::into_inner);
        core.told(bind::finalize(core, ctx, &core.inode(ino)?))
    }
}

/// A bound file, for its adapter.
struct PmRegion {
    core: Arc<Core>,
    mem: Arc<InodeMem>,
    file: Arc<Attached>,
}

impl PmRegion {
    /// Where bytes of a page lie. `None` if the page holds no data, or if they leave it: the adapter is buggy, and
    /// every later fence fails.
    #[inline]
    fn place(&self, page: u32, within: u32, len: usize) -> Option<u64> {
        let superblock = &self.core.superblock;
        let fits = u64::from(within) + len as u64 <= REGION_PAGE_BYTES;
        if !fits || !superblock.is_data_block(BlockNo::new(page)) {
            self.file.note_misuse(page);
            return None;
        }
        Some(superblock.block_offset(BlockNo::new(page)) + u64::from(within))
    }

    /// Changes 8 bytes in one step.
    fn update(&self, page: u32, within: u32, mut change: impl FnMut(u64) -> Option<u64>) -> u64 {
        let Some(offset) = self.place(page, within, 8).filter(|offset| offset.is_multiple_of(8)) else {
            self.file.note_misuse(page);
            return 0;
        };
        let region = &self.core.region;
        let found = region.update(offset, |word| change(u64::from_le(word)).map(u64::to_le));
        region.write_back(offset, 8);
        self.file.note_store();
        u64::from_le(found)
    }

    /// Makes a call that changes the file, unless the pool is frozen, or about to be.
    fn change<T>(&self, call: impl FnOnce(&Core) -> Result<T>) -> Result<T> {
        let core = &self.core;
        let entered = core.bindings.enter().filter(|_| !core.journal.is_frozen());
        let _entered = entered.ok_or(FsError::Busy)?;
        core.told(call(core))
    }

    fn pages(first: u32, pages: u32) -> PageRange {
        PageRange::new(u64::from(first), u64::from(first) + u64::from(pages))
    }
}

impl Region for PmRegion {
    fn ino(&self) -> Ino {
        u64::from(self.mem.ino)
    }

    fn attr(&self) -> Result<Attr> {
        if self.file.has_ended() {
            return Err(FsError::Stale);
        }
        bound::settle_times(&self.core, &self.mem);
        self.core.reading(|core| core.current_attr(&self.mem))
    }

    fn store(&self, page: u32, within: u32, data: &[u8]) {
        if !self.file.how.writable {
            return self.file.note_misuse(page);
        }
        if let Some(offset) = self.place(page, within, data.len()) {
            self.core.region.stream(offset, data);
            // After the bytes: a thread that sets the times before this sets them again at the next request.
            self.file.note_store();
        }
    }

    fn load(&self, page: u32, within: u32, into: &mut [u8]) {
        match self.place(page, within, into.len()) {
            Some(offset) => self.core.region.read(offset, into),
            None => into.fill(0),
        }
    }

    fn fetch_add(&self, page: u32, within: u32, add: u64) -> u64 {
        self.update(page, within, |found| Some(found.wrapping_add(add)))
    }

    fn compare_swap(&self, page: u32, within: u32, compare: u64, swap: u64) -> u64 {
        self.update(page, within, |found| (found == compare).then_some(swap))
    }

    fn fence(&self) -> Result<()> {
        let core = &self.core;
        core.region.fence().map_err(|error| core.fail(&error))?;
        match core.failed.get() {
            Some(why) => Err(FsError::Io(why.clone())),
            None if self.file.is_misused() => Err(FsError::Invalid(BadArgument::RegionPage)),
            None => Ok(()),
        }
    }

    fn fault(&self, first: u32, pages: u32, access: Access) -> Result<()> {
        let pages = PmRegion::pages(first, pages);
        let core = &self.core;
        core.told(region::fault(core, &self.mem, &self.file, pages, access))
    }

    fn append(&self, parts: &[&[u8]]) -> Result<u64> {
        self.change(|core| region::append(core, &self.mem, &self.file, parts))
    }

    fn reserve(&self, len_bytes: u64) -> Result<u64> {
        self.change(|core| region::reserve(core, &self.mem, &self.file, len_bytes))
    }

    fn extend(&self, from: u64, to: u64) -> Result<u64> {
        self.change(|core| region::extend(core, &self.mem, &self.file, from, to))
    }

    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.file.has_ended() {
            return Err(FsError::Stale);
        }
        if !self.file.how.writable {
            return Err(FsError::BadHandle);
        }
        self.change(|core| write::overwrite(core, &self.mem, offset, data))
    }

    fn unbind(&self) -> Result<()> {
        let core = &self.core;
        deregister::one(core, &self.mem, &self.file)
    }
}

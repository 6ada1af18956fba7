//! Data of regular files: the open handle, and reading.
//!
//! What lives here: [`PmFile`]. Reading takes no lock in the usual case: it copies, then checks by the inode's
//! version that no writer was at work; after a few failures it takes the shared lock (DESIGN §5). Blocks freed
//! meanwhile may be reused under a reader's hands; the version tells it then that its copy is void.

pub(crate) mod cut;
mod reserve;
mod seek;
mod write;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_map::{PageWord, TransCache};
use ferrite_vfs::{Attr, FallocateMode, FsError, Ino, OpenFile, OpenMode, Result, posix};

use crate::core::Core;
use crate::engine::Engine;
use crate::icache::InodeMem;
use crate::inode::{INLINE_BYTES, Inode};
use crate::layout::BLOCK_BYTES;
use crate::ops;
use crate::options::AtimePolicy;
use crate::pagelog::{self, fold::Cause};
use crate::sums;
use write::Position;

pub(crate) use write::ATOMIC_BYTES;

const OPTIMISTIC_TRIES: usize = 3;
/// Pages looked up at a time.
const BATCH: usize = 32;
/// Pages that one read folds at most.
const FOLDS_PER_READ: usize = 16;

/// Pages whose logs a read found long, to be folded once it is over.
#[derive(Default)]
struct LongLogs {
    pages: [u32; FOLDS_PER_READ],
    len: usize,
}

impl LongLogs {
    fn note(&mut self, core: &Core, lblk: u32, walked: usize) {
        let threshold = core.options.fold_read_entries as usize;
        if threshold > 0 && walked >= threshold && self.len < FOLDS_PER_READ && !core.is_read_only() {
            self.pages[self.len] = lblk;
            self.len += 1;
        }
    }
}

/// An open file of the engine.
pub(crate) struct PmFile {
    engine: Engine,
    inode: Arc<InodeMem>,
    mode: OpenMode,
    cache: TransCache,
}

impl PmFile {
    /// A handle on `inode`, which was pinned for it.
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

    /// Runs `read` until it saw one state of the file.
    fn consistent<T>(&self, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        self.consistent_at(|_| read())
    }

    /// The same for who wants to know the version that is validated afterwards, none if the shared lock is held.
    fn consistent_at<T>(&self, mut read: impl FnMut(Option<u64>) -> Result<T>) -> Result<T> {
        for _ in 0..OPTIMISTIC_TRIES {
            if let Some(version) = self.inode.begin_read() {
                let result = read(Some(version));
                if self.inode.end_read(version) {
                    return result;
                }
            }
        }
        let _lock = self.inode.read();
        read(None)
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
        core.told(write::write(core, &self.inode, position, data, self.mode.kill_priv))
    }

    fn read_once(&self, offset: u64, buf: &mut [u8], long: &mut LongLogs) -> Result<(usize, bool)> {
        let core = self.core();
        let inode = core.load_hot(self.inode.ino);
        let size = inode.size();
        let count = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..count];
        if inode.is_inline() {
            let content = core.load(self.inode.ino).inline_bytes();
            let from = (offset as usize).min(INLINE_BYTES);
            let available = (INLINE_BYTES - from).min(count);
            buf[..available].copy_from_slice(&content[from..from + available]);
        } else {
            self.read_pages(core, offset, buf, long)?;
        }
        let due = core.options.atime != AtimePolicy::Never
            && !self.mode.no_atime
            && (core.options.atime == AtimePolicy::Strict
                || posix::relatime_due(inode.atime(), inode.mtime(), inode.ctime(), Core::now()));
        Ok((count, due))
    }

    fn read_pages(&self, core: &Core, offset: u64, mut buf: &mut [u8], long: &mut LongLogs) -> Result<()> {
        long.len = 0;
        let mut words = [PageWord::HOLE; BATCH];
        let mut at = offset;
        let is_harmed = core.damage.touches_data();
        while !buf.is_empty() {
            let span = (at % BLOCK_BYTES) as usize + buf.len();
            let pages = span.div_ceil(BLOCK_BYTES as usize).min(BATCH);
            core.map.get_many(
                self.inode.ino,
                (at / BLOCK_BYTES) as u32,
                &mut words[..pages],
                &self.cache,
            );
            for (lblk, &word) in (at / BLOCK_BYTES..).zip(&words[..pages]) {
                let within = at % BLOCK_BYTES;
                let len = buf.len().min((BLOCK_BYTES - within) as usize);
                let (part, rest) = buf.split_at_mut(len);
                let page = (self.inode.ino, lblk as u32);
                if is_harmed {
                    core.damage.check_page(page, word.is_hole())?;
                }
                if word.is_hole() || word.is_unwritten() {
                    part.fill(0);
                } else if pagelog::has_log(word) {
                    let walked = pagelog::scan::read(core, page, word, within as usize, part)?;
                    long.note(core, page.1, walked);
                } else {
                    sums::read_block(core, page, word, within as usize, part)?;
                }
                at += len as u64;
                buf = rest;
            }
        }
        Ok(())
    }
}

impl Core {
    /// The inode's first cache line, all that reading data needs; the other words are zero.
    fn load_hot(&self, ino: u32) -> Inode {
        let mut inode = Inode::empty();
        let stored = self.region.words(self.superblock.inode_offset(ino), 8);
        for (word, stored) in inode.words.iter_mut().zip(stored) {
            *word = stored.load(Ordering::Acquire);
        }
        inode
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
        let core = self.core();
        core.map.prefetch(self.inode.ino, (offset / BLOCK_BYTES) as u32, false);
        core.check_readable()?;
        let mut long = LongLogs::default();
        let read = self.consistent(|| self.read_once(offset, buf, &mut long));
        // A fault on the medium while copying gave zeros and poisoned the pool: do not hand them out.
        core.check_readable()?;
        let (count, atime_due) = core.told(read)?;
        if atime_due {
            ops::touch_atime(core, &self.inode);
        }
        if long.len > 0 {
            // The read has its answer; that a fold found no space, say, is no reason to fail it.
            let _ = pagelog::fold::fold_all(core, &self.inode, &long.pages[..long.len], Cause::Read);
        }
        Ok(count)
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
        core.told(reserve::fallocate(
            core,
            &self.inode,
            mode,
            (offset, len),
            self.mode.kill_priv,
        ))
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.find_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.find_hole(offset)
    }

    fn fsync(&self) -> Result<()> {
        ferrite_vfs::FileSystem::sync(&self.engine)
    }
}

impl Drop for PmFile {
    fn drop(&mut self) {
        ops::unpin(self.engine.core(), &self.inode, 1);
    }
}

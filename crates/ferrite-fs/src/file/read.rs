//! Reading.
//!
//! Contents: [`Reader`]. Reading usually takes no lock: it copies, then checks the inode's version to see that
//! no writer was active; after a few failures it takes the shared lock. Blocks freed meanwhile may be reused during
//! the read; the changed version then shows that the copy is invalid.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_map::{Inum, Lblk, PageId, PageWord, TransCache};
use ferrite_pm::LINE_BYTES;
use ferrite_pm::profile::{self, ProfileSpan};
use ferrite_vfs::{Result, posix};

use super::atime::touch_atime;
use crate::cache::inodes::InodeMem;
use crate::cache::logged::Cause;
use crate::format::inode::{INLINE_BYTES, Inode};
use crate::format::layout::BLOCK_BYTES;
use crate::options::AtimePolicy;
use crate::page::block;
use crate::page::merge::merge_all;
use crate::page::scan;
use crate::pool::core::Core;

const OPTIMISTIC_TRIES: usize = 3;
/// Pages looked up at a time.
pub(super) const BATCH: usize = 32;
/// Lines of the next page that are loaded while one is copied: a third of the time of a long read from scattered pages.
const PREFETCHED_LINES: u64 = 8;
/// Most pages that one read merges.
const MERGES_PER_READ: usize = 16;

/// Pages whose logs a read found to be long, to be merged after the read.
struct LongLogs {
    pages: [Lblk; MERGES_PER_READ],
    len: usize,
}

impl LongLogs {
    fn none() -> LongLogs {
        LongLogs {
            pages: [Lblk::FIRST; MERGES_PER_READ],
            len: 0,
        }
    }

    fn note(&mut self, core: &Core, lblk: Lblk, walked: usize) {
        let threshold = core.options.merge_read_entries as usize;
        if threshold > 0 && walked >= threshold && self.len < MERGES_PER_READ && !core.is_read_only() {
            self.pages[self.len] = lblk;
            self.len += 1;
        }
    }
}

/// The result of a read.
struct Found {
    count: usize,
    /// The access time is to be set.
    is_atime_due: bool,
    is_bound: bool,
}

/// The state for reading a file: its inode, which is pinned, and the translations that its handle caches.
pub(crate) struct Reader<'f> {
    pub(crate) core: &'f Core,
    pub(crate) inode: &'f Arc<InodeMem>,
    pub(crate) cache: &'f TransCache,
    /// Access times are not updated.
    pub(crate) no_atime: bool,
}

impl Reader<'_> {
    /// Reads at `offset`; fewer bytes only at the end of the file. Merges logs that it found to be long, after the data
    /// is complete.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_versioned(offset, buf).map(|(count, _)| count)
    }

    /// The same, and the inode's version, unless only the lock kept it from changing, or others may change the content.
    pub(crate) fn read_versioned(&self, offset: u64, buf: &mut [u8]) -> Result<(usize, Option<u64>)> {
        let core = self.core;
        core.map
            .prefetch(PageId::new(self.inode.ino, Lblk::at(offset / BLOCK_BYTES)), false);
        core.check_readable()?;
        let mut long = LongLogs::none();
        let mut version = None;
        let read = self.consistent_at(|seen| {
            version = seen;
            self.read_once(offset, buf, &mut long)
        });
        // A fault on the medium during the copy gave zeros and poisoned the pool: do not return them.
        core.check_readable()?;
        let Found {
            count,
            is_atime_due,
            is_bound,
        } = core.told(read)?;
        if is_bound {
            // Adapters change the content, and leave the version unchanged.
            version = None;
        }
        if is_atime_due {
            touch_atime(core, self.inode);
        }
        if long.len > 0 {
            // The read has its data; a failed merge, for example for lack of space, is no reason to fail it.
            let _ = merge_all(core, self.inode, &long.pages[..long.len], Cause::Read);
        }
        Ok((count, version))
    }

    /// Runs `read` until it saw one consistent state of the file. It gets the version that is validated afterwards,
    /// `None` if the shared lock is held.
    pub(super) fn consistent_at<T>(&self, mut read: impl FnMut(Option<u64>) -> Result<T>) -> Result<T> {
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

    fn read_once(&self, offset: u64, buf: &mut [u8], long: &mut LongLogs) -> Result<Found> {
        let core = self.core;
        let inode = profile::within(ProfileSpan::Lookup, || load_hot(core, self.inode.ino));
        let size = inode.size();
        let count = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..count];
        if inode.is_inline() {
            let content = core.load(self.inode.ino).inline_bytes();
            let from = (offset as usize).min(INLINE_BYTES);
            let available = (INLINE_BYTES - from).min(count);
            buf[..available].copy_from_slice(&content[from..from + available]);
        } else {
            self.read_pages(core, offset, buf, (inode.is_bound(), long))?;
        }
        Ok(Found {
            count,
            is_atime_due: is_atime_due(core, &inode, self.no_atime),
            is_bound: inode.is_bound(),
        })
    }

    fn read_pages(
        &self,
        core: &Core,
        offset: u64,
        mut buf: &mut [u8],
        (is_bound, long): (bool, &mut LongLogs),
    ) -> Result<()> {
        long.len = 0;
        let mut words = [PageWord::HOLE; BATCH];
        let mut at = offset;
        let is_harmed = core.quarantine.touches_data();
        while !buf.is_empty() {
            let span = (at % BLOCK_BYTES) as usize + buf.len();
            let pages = span.div_ceil(BLOCK_BYTES as usize).min(BATCH);
            profile::within(ProfileSpan::Lookup, || {
                core.map.get_many(
                    PageId::new(self.inode.ino, Lblk::at(at / BLOCK_BYTES)),
                    &mut words[..pages],
                    self.cache,
                );
            });
            for (index, &word) in words[..pages].iter().enumerate() {
                if let Some(&next) = words[..pages].get(index + 1) {
                    prefetch_start(core, next);
                }
                let (lblk, within) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
                let len = buf.len().min((BLOCK_BYTES - within) as usize);
                let (part, rest) = buf.split_at_mut(len);
                let page = PageId::new(self.inode.ino, Lblk::at(lblk));
                if is_harmed {
                    core.quarantine.check_page(page, word.is_hole())?;
                }
                if word.is_hole() || word.is_unwritten() {
                    part.fill(0);
                } else if word.has_log() {
                    let walked = scan::read(core, page, word, within as usize, part)?;
                    long.note(core, page.lblk, walked);
                } else if is_bound {
                    block::read_bound(core, page, word, within as usize, part)?;
                } else {
                    block::read_block(core, page, word, within as usize, part)?;
                }
                at += len as u64;
                buf = rest;
            }
        }
        Ok(())
    }
}

/// Whether a read sets the access time.
pub(super) fn is_atime_due(core: &Core, inode: &Inode, no_atime: bool) -> bool {
    core.options.atime != AtimePolicy::Never
        && !no_atime
        && (core.options.atime == AtimePolicy::Strict
            || posix::relatime_due(inode.atime(), inode.mtime(), inode.ctime(), Core::now()))
}

/// Starts loading the first lines of a page: its translation is as cold as they are, and the hardware's own prefetching
/// ends with each page and begins slowly. Pages that follow each other in the pool gain nothing from it, and lose
/// nothing.
#[inline]
pub(super) fn prefetch_start(core: &Core, word: PageWord) {
    if !word.is_hole() && core.superblock.is_data_block(core.superblock.page(word)) {
        let offset = core.superblock.block_offset(core.superblock.page(word));
        (0..PREFETCHED_LINES).for_each(|line| core.region.prefetch(offset + line * LINE_BYTES));
    }
}

/// The inode's first cache line, which is all that reading data needs; the other words are zero.
pub(super) fn load_hot(core: &Core, ino: Inum) -> Inode {
    let mut inode = Inode::empty();
    let stored = core.region.words(core.superblock.inode_offset(ino), 8);
    for (word, stored) in inode.words.iter_mut().zip(stored) {
        *word = stored.load(Ordering::Acquire);
    }
    inode
}

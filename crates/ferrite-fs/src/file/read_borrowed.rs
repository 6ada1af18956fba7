//! Zero-copy reads: pages that the network sends from where they lie.
//!
//! Contents: [`Reader::read_borrowed`]. Unlike other reads it holds the inode's shared lock: data sent to the network
//! cannot be recalled, so a page must not be freed and become another file's before it has been sent.
//!
//! The lock is enough: only holders of the inode's exclusive lock free a page, merges included. Pages whose content is
//! not in one place (inline, or with a log) or must be verified are not borrowed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ferrite_buffers::borrowed::{Borrowed, Words};
use ferrite_map::{Lblk, PageId, PageWord};
use ferrite_pm::Region;
use ferrite_vfs::Result;

use super::read::{BATCH, Reader, is_atime_due, load_hot, prefetch_start};
use crate::format::layout::BLOCK_BYTES;

struct Pages(Arc<Region>);

impl Words for Pages {
    fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        self.0.words(offset, count)
    }
}

impl Reader<'_> {
    /// See [`ferrite_vfs::OpenFile::read_borrowed`]. Borrows nothing while another thread has the inode's exclusive
    /// lock, nor if its access time is to be set.
    pub(crate) fn read_borrowed(
        &self,
        offset: u64,
        len_bytes: usize,
        take: &mut dyn FnMut(&Borrowed, u64),
    ) -> Result<bool> {
        let core = self.core;
        core.check_readable()?;
        let must_verify = core.superblock.has_data_checksums();
        if must_verify || core.quarantine.touches_data() || !offset.is_multiple_of(8) {
            return Ok(false);
        }
        let Some(_lock) = self.inode.try_read() else {
            return Ok(false);
        };
        let (Some(version), Some(borrowed)) = (self.inode.begin_read(), self.places(offset, len_bytes)) else {
            return Ok(false);
        };
        core.check_readable()?;
        take(&borrowed, version);
        // A fault on the medium meanwhile gave zeros, and poisoned the pool.
        core.check_readable()?;
        Ok(true)
    }

    fn places(&self, offset: u64, len_bytes: usize) -> Option<Borrowed> {
        let core = self.core;
        let inode = load_hot(core, self.inode.ino);
        // Adapters may change pages of a bound file.
        if inode.is_inline() || inode.is_bound() || is_atime_due(core, &inode, self.no_atime) {
            return None;
        }
        let mut borrowed = Borrowed::new(Arc::new(Pages(Arc::clone(&core.region))));
        let end = inode.size().min(offset.saturating_add(len_bytes as u64));
        let mut words = [PageWord::HOLE; BATCH];
        let mut at = offset;
        while at < end {
            let pages = end.div_ceil(BLOCK_BYTES) - at / BLOCK_BYTES;
            let words = &mut words[..pages.min(BATCH as u64) as usize];
            let first = PageId::new(self.inode.ino, Lblk::at(at / BLOCK_BYTES));
            core.map.get_many(first, words, self.cache);
            // All of them at once: the system's copy would begin each page with a miss.
            words.iter().for_each(|&word| prefetch_start(core, word));
            for &word in words.iter() {
                let within = at % BLOCK_BYTES;
                let len = (BLOCK_BYTES - within).min(end - at);
                if word.is_hole() || word.is_unwritten() {
                    borrowed.push_zeros(len as usize);
                } else if word.has_log() || !core.superblock.is_data_block(core.superblock.page(word)) {
                    // An invalid word is an error, if reading finds the same.
                    return None;
                } else {
                    borrowed.push(
                        core.superblock.block_offset(core.superblock.page(word)) + within,
                        len as usize,
                    );
                }
                at += len;
            }
        }
        Some(borrowed)
    }
}

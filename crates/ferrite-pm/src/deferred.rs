//! Deferred write-back: a pool in an ordinary file whose operations are durable after a sync, not before.
//!
//! Contents: [`Deferred`], which records the pages of a private view that differ from the file. [`crate::Region`] has
//! such a view in the mode [`crate::Durability::OnSync`].
//!
//! In this mode the kernel writes the file's pages to the disk at any time and in any order. So a word must not get
//! into the file before the record that sets it is durable. The view is a private mapping: stores to it stay in memory
//! until the engine writes them to the file.
//!
//! Streams go to the file at once, and show in the view, because a private page is the file's own until the first store
//! to it. After that the page is a copy, and streams must go there as well.
//!
//! Invariants:
//!
//! * A page is noted before the first store to it. A stream writes the file first and reads the notes afterwards, with
//!   a full barrier between. So either it finds the page noted and stores the bytes there too, or the page is copied
//!   after the file had them.
//! * Copies are dropped only while no thread stores to any.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::RwLock;

use crate::zeroed::zeroed;

/// Pages of a view: those of the kernel.
const PAGE_BYTES: u64 = 4096;
const BITS: u64 = 64;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Deferred {
    /// A bit for each page that is a copy.
    copied: Box<[AtomicU64]>,
    /// Held shared by threads that store to copies.
    storing: RwLock<()>,
}

impl Deferred {
    /// For a view of `len_bytes` that has not been stored to.
    pub(crate) fn new(len_bytes: u64) -> Deferred {
        let words = len_bytes.div_ceil(PAGE_BYTES).div_ceil(BITS);
        Deferred {
            copied: zeroed(words as usize),
            storing: RwLock::new(()),
        }
    }

    /// Runs `set`, which stores to `len` bytes at `offset`.
    #[inline]
    pub(crate) fn store(&self, offset: u64, len: u64, set: impl FnOnce()) {
        let _not_dropped = self.storing.read();
        for page in pages(offset, len) {
            let (word, bit) = self.bit(page);
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::SeqCst);
            }
        }
        set();
    }

    /// After `len` bytes at `offset` were written to the file: runs `set` with the parts, as start and end, whose pages
    /// are copies by now.
    pub(crate) fn store_to_copies(&self, offset: u64, len: u64, mut set: impl FnMut(u64, u64)) {
        fence(Ordering::SeqCst);
        let _not_dropped = self.storing.read();
        for page in pages(offset, len) {
            let (word, bit) = self.bit(page);
            if word.load(Ordering::SeqCst) & bit != 0 {
                set(
                    (page * PAGE_BYTES).max(offset),
                    ((page + 1) * PAGE_BYTES).min(offset + len),
                );
            }
        }
    }

    /// Forgets the copies whose pages `keep` does not name; the rest equal the file. `drop` gets start and length of
    /// each run.
    pub(crate) fn drop_copies(&self, keep: &dyn Fn(u64) -> bool, mut drop: impl FnMut(u64, u64)) {
        let _alone = self.storing.write();
        let mut run = 0..0;
        for (index, word) in self.copied.iter().enumerate() {
            let mut left = word.load(Ordering::Relaxed);
            while left != 0 {
                let page = index as u64 * BITS + u64::from(left.trailing_zeros());
                left &= left - 1;
                if keep(page) {
                    continue;
                }
                word.fetch_and(!(1 << (page % BITS)), Ordering::SeqCst);
                if run.end != page && !run.is_empty() {
                    drop(run.start * PAGE_BYTES, (run.end - run.start) * PAGE_BYTES);
                }
                if run.end != page {
                    run.start = page;
                }
                run.end = page + 1;
            }
        }
        if !run.is_empty() {
            drop(run.start * PAGE_BYTES, (run.end - run.start) * PAGE_BYTES);
        }
    }

    /// Memory that the copies take, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.copied.iter().map(ones).sum::<u64>() * PAGE_BYTES + self.copied.len() as u64 * 8
    }

    fn bit(&self, page: u64) -> (&AtomicU64, u64) {
        (&self.copied[(page / BITS) as usize], 1 << (page % BITS))
    }
}

fn pages(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_noted_pages_and_no_others_are_copies() {
        let deferred = Deferred::new(64 * PAGE_BYTES * 2 + 1);
        let parts = |offset, len| {
            let mut parts = Vec::new();
            deferred.store_to_copies(offset, len, |start, end| parts.push((start, end)));
            parts
        };
        assert_eq!(parts(0, 128 * PAGE_BYTES), []);
        deferred.store(4096 - 8, 16, || {});
        deferred.store(127 * PAGE_BYTES, 8, || {});
        assert_eq!(parts(100, 5000), [(100, 4096), (4096, 5100)]);
        assert_eq!(parts(8192, 4096), []);
        assert_eq!(
            parts(126 * PAGE_BYTES, 3 * PAGE_BYTES),
            [(127 * PAGE_BYTES, 128 * PAGE_BYTES)]
        );
        assert_eq!(deferred.dram_bytes(), 3 * PAGE_BYTES + 3 * 8);
        deferred.store(PAGE_BYTES * 63, PAGE_BYTES * 3, || {});
        let mut dropped = Vec::new();
        deferred.drop_copies(&|page| page == 1, |start, len| dropped.push((start / 4096, len / 4096)));
        assert_eq!(dropped, [(0, 1), (63, 3), (127, 1)]);
        assert_eq!(parts(0, 128 * PAGE_BYTES), [(4096, 8192)]);
    }
}

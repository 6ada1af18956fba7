//! Stores that are held back: a pool in an ordinary file whose operations are durable after a sync, not before.
//!
//! What lives here: [`Held`], which of a private view's pages differ from the file. [`crate::Region`] has such a view
//! in the mode [`crate::Durability::OnSync`].
//!
//! In this mode the kernel writes what is in the file to the disk at any time and in any order. So a word must not get
//! there before the record that sets it is durable. The view is a private mapping: what is stored in it stays in
//! memory, until somebody writes it to the file. What is streamed goes to the file at once, and shows in the view,
//! because a private page is the file's own until the first store to it. After that the page is a copy, and what is
//! streamed must go there as well.
//!
//! Invariant: a page is noted before the first store to it. Who streams writes the file first and looks afterwards, with
//! a full barrier between. So either the page is found noted and gets the bytes, or it is copied after they were in the
//! file.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Pages of a view: those of the kernel.
const PAGE_BYTES: u64 = 4096;
const BITS: u64 = 64;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Held {
    /// A bit for each page.
    copied: Box<[AtomicU64]>,
}

impl Held {
    /// For a view of `len_bytes` that has not been stored to.
    pub(crate) fn new(len_bytes: u64) -> Held {
        let words = len_bytes.div_ceil(PAGE_BYTES).div_ceil(BITS);
        Held {
            copied: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Before a store to `len` bytes at `offset`.
    #[inline]
    pub(crate) fn note(&self, offset: u64, len: u64) {
        for page in pages(offset, len) {
            let (word, bit) = (&self.copied[(page / BITS) as usize], 1 << (page % BITS));
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::SeqCst);
            }
        }
    }

    /// After `len` bytes at `offset` were written to the file: the parts, as start and end, whose pages are copies by
    /// now.
    pub(crate) fn copies(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        fence(Ordering::SeqCst);
        pages(offset, len).filter_map(move |page| {
            let is_copy = self.copied[(page / BITS) as usize].load(Ordering::SeqCst) >> (page % BITS) & 1 != 0;
            let start = (page * PAGE_BYTES).max(offset);
            let end = ((page + 1) * PAGE_BYTES).min(offset + len);
            is_copy.then_some((start, end))
        })
    }

    /// Memory that the copies take, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.copied.iter().map(ones).sum::<u64>() * PAGE_BYTES + self.copied.len() as u64 * 8
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
        let held = Held::new(64 * PAGE_BYTES * 2 + 1);
        let parts = |offset, len| held.copies(offset, len).collect::<Vec<_>>();
        assert_eq!(parts(0, 128 * PAGE_BYTES), []);
        held.note(4096 - 8, 16);
        held.note(127 * PAGE_BYTES, 8);
        assert_eq!(parts(100, 5000), [(100, 4096), (4096, 5100)]);
        assert_eq!(parts(8192, 4096), []);
        assert_eq!(
            parts(126 * PAGE_BYTES, 3 * PAGE_BYTES),
            [(127 * PAGE_BYTES, 128 * PAGE_BYTES)]
        );
        assert_eq!(held.dram_bytes(), 3 * PAGE_BYTES + 3 * 8);
    }
}

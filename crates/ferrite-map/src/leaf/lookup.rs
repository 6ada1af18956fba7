//! Lookups: one line for a chunk at home, and prefetching for a sequential reader.
//!
//! Contents: finding a chunk's line, and reading words by hint or by hash. For [`super::Leaf`] alone. Nothing
//! here writes.

use std::sync::atomic::Ordering;

use ferrite_pm::{LINE_BYTES, WrittenEntries};

use super::{CHUNK, Leaf};
use crate::load::Table;
use crate::{Inum, Lblk, PageWord, TransCache};

/// Chunks prefetched for a sequential reader.
const AHEAD: u32 = 4;
/// The last chunk of the largest file.
const LAST_CHUNK: u32 = u32::MAX / CHUNK;

/// Hints are `chunk << 32 | line + 1`, by `chunk % 8`.
impl TransCache {
    /// Where `chunk` was seen.
    #[inline]
    fn line(&self, chunk: u32) -> Option<u64> {
        let hint = self.hints[chunk as usize % 8].load(Ordering::Relaxed);
        (hint >> 32 == u64::from(chunk) && hint as u32 != 0).then(|| u64::from(hint as u32) - 1)
    }

    #[inline]
    fn put_line(&self, chunk: u32, line: u64) {
        self.hints[chunk as usize % 8].store(u64::from(chunk) << 32 | (line + 1), Ordering::Relaxed);
    }
}

impl Leaf {
    pub(super) fn table(&self) -> Table<'_> {
        Table::of(&self.region, self.header_offset(0), LINE_BYTES)
    }

    /// The first `lines` lines, except those in parts of a sparse pool where nothing was ever stored.
    pub(super) fn written_lines(&self, lines: u64) -> WrittenEntries<'_> {
        self.region.written_entries(self.header_offset(0), 0..lines, LINE_BYTES)
    }

    /// Line of `key`, with headers as `header` returns them.
    #[inline]
    pub(super) fn find_with(&self, key: u64, header: impl Fn(u64) -> u64) -> Option<u64> {
        let home = self.home(key);
        let next = self.wrap(home + 1);
        let at_home = header(home);
        // Most chunks lie at home, and most others in the next line, which will have arrived by the time it is needed.
        self.region.prefetch(self.header_offset(next));
        if at_home == key {
            return Some(home);
        }
        self.bounds.prefetch(home as usize);
        if header(next) == key {
            return Some(next);
        }
        (2..=self.bounds.lines_to_probe(home as usize, self.geometry.slots))
            .map(|distance| self.wrap(home + distance))
            .find(|&line| header(line) == key)
    }

    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<u64> {
        self.find_with(key, |line| self.region.load(self.header_offset(line)))
    }

    #[inline]
    fn prefetch_chunk(&self, ino: Inum, chunk: u32) {
        let home = self.home(u64::from(ino) << 32 | u64::from(chunk));
        self.region.prefetch(self.header_offset(home));
        self.region.prefetch(self.header_offset(self.wrap(home + 1)));
    }

    /// The words of a chunk's pages from its page `from` on, if the hint is right.
    #[inline]
    pub(super) fn get_hinted(
        &self,
        ino: Inum,
        chunk: u32,
        from: u32,
        words: &mut [PageWord],
        cache: &TransCache,
    ) -> bool {
        let Some(line) = cache.line(chunk).filter(|&line| line < self.geometry.slots) else {
            return false;
        };
        let stored = self.region.words(self.header_offset(line), 8);
        self.move_lock.steady(|| {
            // The cache may be shared and the chunk have moved: the header decides.
            let is_here = stored[0].load(Ordering::Relaxed) == u64::from(ino) << 32 | u64::from(chunk);
            for (word, stored) in words.iter_mut().zip(&stored[1 + from as usize..]) {
                *word = PageWord(stored.load(Ordering::Relaxed));
            }
            is_here
        })
    }

    /// The words of a chunk's pages from its page `from` on; leaves a hint.
    fn get_chunk(&self, ino: Inum, chunk: u32, from: u32, words: &mut [PageWord], cache: &TransCache) {
        self.move_lock.steady(|| {
            let Some(line) = self.find(u64::from(ino) << 32 | u64::from(chunk)) else {
                words.fill(PageWord::HOLE);
                return;
            };
            cache.put_line(chunk, line);
            let stored = self.region.words(self.word_offset(line, Lblk::new(from)), words.len());
            for (word, stored) in words.iter_mut().zip(stored) {
                *word = PageWord(stored.load(Ordering::Relaxed));
            }
        });
    }

    /// [`FileMap::get_many`] without the help of hints.
    pub(super) fn get_chunks(&self, ino: Inum, lblk: Lblk, out: &mut [PageWord], cache: &TransCache) {
        let Some(last) = (out.len() as u32)
            .checked_sub(1)
            .map(|last| lblk.get().saturating_add(last) / CHUNK)
        else {
            return;
        };
        let first = lblk.get() / CHUNK;
        // A call that continues where the last one ended, or in the next chunk, is a sequential read: the following
        // chunks are prefetched, once per chunk.
        let is_known = |chunk: Option<u32>| chunk.is_some_and(|chunk| cache.line(chunk).is_some());
        let goes_on = is_known(Some(first)) || is_known(first.checked_sub(1));
        let wanted = if goes_on { LAST_CHUNK } else { last };
        if !goes_on {
            (first + 1..=last.min(first + AHEAD)).for_each(|chunk| self.prefetch_chunk(ino, chunk));
        }
        let mut rest = out;
        for chunk in first..=last {
            let from = if chunk == first { lblk.get() % CHUNK } else { 0 };
            let count = ((CHUNK - from) as usize).min(rest.len());
            let (words, behind) = std::mem::take(&mut rest).split_at_mut(count);
            if !self.get_hinted(ino, chunk, from, words, cache) {
                if chunk + AHEAD <= wanted {
                    self.prefetch_chunk(ino, chunk + AHEAD);
                }
                self.get_chunk(ino, chunk, from, words, cache);
            }
            rest = behind;
        }
    }
}

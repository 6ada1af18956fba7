//! A free map in DRAM: one bit per item, set while the item is in use or claimed.
//!
//! Claims are single atomic operations (docs/design.md, "File mapping"): if two threads claim the same bit, exactly one
//! gets it.

use ferrite_pm::{line_trace, prefetch_to_store};

use crate::sync::{AtomicU64, Ordering, zeroed};

const WORD_BITS: u64 = 64;

/// An atomic bitmap of fixed length.
#[derive(Debug)]
pub struct AtomicBitmap {
    words: Box<[AtomicU64]>,
    /// Bits that are never free, in every word; not stored there, so that a word that was never touched is zero and
    /// takes no memory.
    pattern: u64,
    len: u64,
}

impl AtomicBitmap {
    /// `len` bits, all free.
    pub fn new(len: u64) -> Self {
        Self::with_pattern(len, 0)
    }

    /// `len` bits. Bits set in `pattern`, which repeats every eight bits, are never free.
    pub fn with_pattern(len: u64, pattern: u8) -> Self {
        let bitmap = AtomicBitmap {
            words: zeroed(len.div_ceil(WORD_BITS) as usize),
            pattern: u64::from_ne_bytes([pattern; 8]),
            len,
        };
        // The bits after the last are never free, so word-wise scans need no special case.
        if !len.is_multiple_of(WORD_BITS) {
            bitmap.words[(len / WORD_BITS) as usize].fetch_or(u64::MAX << (len % WORD_BITS), Ordering::Relaxed);
        }
        bitmap
    }

    fn word(&self, index: u64) -> (&AtomicU64, u64) {
        assert!(index < self.len, "bit {index} of {}", self.len);
        (&self.words[(index / WORD_BITS) as usize], 1 << (index % WORD_BITS))
    }

    /// Number of bits.
    #[allow(clippy::len_without_is_empty, reason = "a free map of nothing is not made")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether bit `index` is set.
    #[inline]
    pub fn is_set(&self, index: u64) -> bool {
        let (word, bit) = self.word(index);
        (word.load(Ordering::Acquire) | self.pattern) & bit != 0
    }

    /// Sets bit `index`; true if it was free and now belongs to the caller. Sequentially consistent, as
    /// [`crate::bounds`] requires.
    #[inline]
    pub fn claim(&self, index: u64) -> bool {
        let (word, bit) = self.word(index);
        line_trace::line("free maps", word);
        (word.fetch_or(bit, Ordering::SeqCst) | self.pattern) & bit == 0
    }

    /// Sets bit `index`, whether or not it was set before.
    pub fn set(&self, index: u64) {
        self.claim(index);
    }

    /// Prefetches the line of bit `index` for a change.
    pub fn prefetch(&self, index: u64) {
        prefetch_to_store(std::ptr::from_ref(self.word(index).0));
    }

    /// Clears bit `index`; true if it was set.
    pub fn release(&self, index: u64) -> bool {
        let (word, bit) = self.word(index);
        line_trace::line("free maps", word);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Clears those of `bits` in the word of 64 bits that has bit `index`, in one step; returns which of them were set.
    pub fn release_of_word(&self, index: u64, bits: u64) -> u64 {
        let (word, _) = self.word(index);
        line_trace::line("free maps", word);
        word.fetch_and(!bits, Ordering::AcqRel) & bits
    }

    /// The eight bits of group `group`, lowest first; set bits are in use. Sequentially consistent, as claims are.
    #[inline]
    pub fn octet(&self, group: u64) -> u8 {
        let index = group * 8;
        let word = self.words[(index / WORD_BITS) as usize].load(Ordering::SeqCst) | self.pattern;
        (word >> (index % WORD_BITS)) as u8
    }

    /// Claims the first free bit at or after `cursor`, wrapping once; `None` if all are set.
    pub fn claim_from(&self, cursor: u64) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let start = cursor % self.len;
        let first = (start / WORD_BITS) as usize;
        let count = self.words.len();
        // The first word is visited twice: first from the cursor on, and last for the bits before it.
        for step in 0..=count {
            let at = (first + step) % count;
            let behind = if step == 0 { (1 << (start % WORD_BITS)) - 1 } else { 0 };
            let hidden = behind | self.pattern;
            let word = &self.words[at];
            let mut seen = word.load(Ordering::Acquire);
            while seen | hidden != u64::MAX {
                let bit = (seen | hidden).trailing_ones();
                line_trace::line("free maps", word);
                let before = word.fetch_or(1 << bit, Ordering::AcqRel);
                if before >> bit & 1 == 0 {
                    return Some(at as u64 * WORD_BITS + u64::from(bit));
                }
                seen = before;
            }
        }
        None
    }

    /// Start of a stretch of 64 clear bits. Examines `tries` stretches from `cursor` on, wrapping around. A hint: other
    /// threads may be claiming them.
    pub fn find_stretch(&self, cursor: u64, tries: u64) -> Option<u64> {
        let count = self.words.len() as u64;
        let first = cursor.div_ceil(WORD_BITS);
        (first..first + tries.min(count))
            .map(|at| at % count.max(1))
            .find(|&at| self.words[at as usize].load(Ordering::Relaxed) | self.pattern == 0)
            .map(|at| at * WORD_BITS)
    }

    /// Number of set bits. Exact only while no other thread changes the map.
    pub fn count_used(&self) -> u64 {
        let ones: u64 = self
            .words
            .iter()
            .map(|word| u64::from((word.load(Ordering::Relaxed) | self.pattern).count_ones()))
            .sum();
        ones - (self.words.len() as u64 * WORD_BITS - self.len)
    }

    /// DRAM used, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn next_fit_finds_every_bit_once_wherever_it_starts() {
        for len in [1, 63, 64, 65, 200] {
            for start in [0, 1, 63, 64, 150, 1000] {
                let bitmap = AtomicBitmap::new(len);
                let found: BTreeSet<u64> = std::iter::from_fn(|| bitmap.claim_from(start)).collect();
                assert_eq!(found, (0..len).collect(), "length {len}, start {start}");
                assert_eq!(bitmap.count_used(), len);
            }
        }
    }

    #[test]
    fn bits_of_a_word_are_cleared_at_once_and_those_that_were_clear_are_told() {
        let bitmap = AtomicBitmap::new(200);
        assert!([64, 66, 127, 128].into_iter().all(|index| bitmap.claim(index)));
        assert_eq!(bitmap.release_of_word(70, 0b111), 0b101);
        assert_eq!(bitmap.release_of_word(64, u64::MAX), 1 << 63);
        assert_eq!(bitmap.count_used(), 1);
        assert!(bitmap.is_set(128));
    }

    #[test]
    fn threads_never_claim_the_same_bit() {
        let bitmap = AtomicBitmap::new(10_000);
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let claim = |start: u64| {
                let bitmap = &bitmap;
                move || std::iter::from_fn(|| bitmap.claim_from(start)).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(claim(n * 100))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert_eq!(all, (0..10_000).collect::<Vec<_>>());
    }
}

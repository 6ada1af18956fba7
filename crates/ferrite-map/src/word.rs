//! Page words: the 64 bits that a mapping stores for a page.
//!
//! Contents: [`PageWord`], and [`WordLayout`], which says where a pool divides its words.
//!
//! A word has the number of the page's block in its low bits, and the place of the newest entry of the page's log, in
//! units of logs, in the others. How many bits each gets is the pool's choice: a larger pool has more blocks, and more
//! units.
//!
//! Invariants: the number of a block has at most 32 bits. No unit in the upper half of a word is 0 or all ones, because
//! the first and the last block of a pool hold no logs, and either has more units than the low half has bits to spare
//! ([`WordLayout::fits`]). So the upper half alone tells whether a page has a log, in every pool.

use crate::BlockNo;

/// The word of a mapped page; see `docs/format.md`.
///
/// Its *page* is the number of the block that holds the page, 0 without one (then only a log, or nothing yet). Its
/// *log* is the unit of the newest log entry; 0 means no log, and all ones a page that is reserved and reads as zeros.
/// A word of 0 means "not mapped".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PageWord(pub u64);

impl PageWord {
    /// Not mapped: a hole.
    pub const HOLE: PageWord = PageWord(0);

    /// A page in `block`, without a log.
    #[inline]
    pub fn of_block(block: BlockNo) -> Self {
        PageWord(u64::from(block))
    }

    #[inline]
    fn upper_half(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether nothing is mapped.
    #[inline]
    pub fn is_hole(self) -> bool {
        self.0 == 0
    }

    /// Whether the page is reserved (`fallocate`) and reads as zeros.
    #[inline]
    pub fn is_unwritten(self) -> bool {
        self.upper_half() == u32::MAX
    }

    /// Whether the page has a log.
    #[inline]
    pub fn has_log(self) -> bool {
        !matches!(self.upper_half(), 0 | u32::MAX)
    }

    /// Whether the word is only a block's number: the page has no log, and is not just reserved.
    #[inline]
    pub fn is_plain(self) -> bool {
        self.upper_half() == 0
    }

    /// The same with the block that is `pages` blocks after this one's. A damaged word may become any other.
    #[inline]
    pub fn plus(self, pages: u64) -> Self {
        PageWord(self.0.wrapping_add(pages))
    }
}

/// Where the words of a pool are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WordLayout {
    page_bits: u32,
}

impl WordLayout {
    /// In the middle: pools up to 256 GiB, with units of 64 bytes.
    pub const HALVES: WordLayout = WordLayout { page_bits: 32 };
    /// Fewest bits of a page: fewer would leave too few units in the first and in the last block.
    pub const PAGE_BITS_MIN: u32 = 29;

    /// With `page_bits` bits for the page; `None` if that is too few or too many.
    pub const fn new(page_bits: u32) -> Option<Self> {
        match page_bits {
            Self::PAGE_BITS_MIN..=32 => Some(WordLayout { page_bits }),
            _ => None,
        }
    }

    /// Bits of a page.
    pub const fn page_bits(self) -> u32 {
        self.page_bits
    }

    /// Whether words can name `blocks` blocks of a pool and as many times `block_units` units.
    pub const fn fits(self, blocks: u64, block_units: u64) -> bool {
        let spare = 32 - self.page_bits;
        blocks <= 1 << self.page_bits
            && block_units >= 1 << spare
            && blocks as u128 * block_units as u128 <= 1 << (64 - self.page_bits)
    }

    /// The block of a page (0: none).
    #[inline]
    pub fn page(self, word: PageWord) -> BlockNo {
        let low = word.0 as u32;
        // Bits of a damaged plain word that no block's number has are kept, so that it names no block.
        BlockNo::new(match word.is_plain() {
            true => low,
            false => low & u32::MAX >> (32 - self.page_bits),
        })
    }

    /// The unit of the newest entry of a page's log; of a word that has one.
    #[inline]
    pub fn log(self, word: PageWord) -> u64 {
        word.0 >> self.page_bits
    }

    /// A page in `block` whose newest log entry is at unit `log`.
    #[inline]
    pub fn logged(self, block: BlockNo, log: u64) -> PageWord {
        let word = PageWord(u64::from(block) | log << self.page_bits);
        debug_assert!(word.has_log() && self.log(word) == log, "unit {log}");
        word
    }

    /// A page in `block` (0: none) that is reserved but not written yet.
    #[inline]
    pub fn unwritten(self, block: BlockNo) -> PageWord {
        PageWord(u64::from(block) | u64::MAX << self.page_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_pool_can_be_named() {
        for (page_bits, unit_bytes) in [(32, 64), (31, 64), (29, 64), (30, 256), (31, 1024)] {
            let layout = WordLayout::new(page_bits).unwrap();
            let block_units = 4096 / unit_bytes;
            let units = 1u128 << (64 - page_bits);
            let blocks = (units / u128::from(block_units)).min(1 << page_bits) as u64;
            assert!(layout.fits(blocks, block_units));
            assert!(!layout.fits(blocks + 1, block_units));
            let last_block = BlockNo::new((blocks - 1).min(u64::from(u32::MAX)) as u32);
            assert_eq!(layout.page(PageWord::of_block(last_block)), last_block);
            // The first and the last block hold no logs.
            for unit in [block_units, blocks * block_units - block_units - 1] {
                for block in [BlockNo::NONE, last_block] {
                    let word = layout.logged(block, unit);
                    assert_eq!((layout.page(word), layout.log(word)), (block, unit));
                    assert!(word.has_log() && !word.is_plain() && !word.is_unwritten() && !word.is_hole());
                }
            }
            let unwritten = layout.unwritten(last_block);
            assert_eq!(layout.page(unwritten), last_block);
            assert!(unwritten.is_unwritten() && !unwritten.has_log() && !unwritten.is_plain());
        }
        assert_eq!((WordLayout::new(28), WordLayout::new(33)), (None, None));
    }

    /// A flipped bit between the number of a block and the upper half must not turn one block into another.
    #[test]
    fn a_plain_word_with_too_large_a_number_names_no_block() {
        let layout = WordLayout::new(30).unwrap();
        assert_eq!(layout.page(PageWord(1 << 31 | 5)).get(), 1 << 31 | 5);
    }
}

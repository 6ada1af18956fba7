//! Places in page logs: the unit in which the log parts of page words count.
//!
//! The unit is the pool's choice: 64 bytes, or more where a word could not number them all ([`UnitSize::for_pool`]). A
//! unit's number is its offset in the pool divided by its size. Unit 0 is in the superblock, so where units are stored,
//! 0 means none.

use ferrite_map::{BLOCK_BYTES, BlockNo, Resource, WordLayout};

/// Most units of a block: those of 64 bytes.
pub(crate) const BLOCK_UNITS_MAX: u32 = 64;
const SHIFT_MIN: u32 = 6;
/// The largest units of logs: with fewer than four in a block, there would be no space for a segment.
const SHIFT_MAX: u32 = 10;
const BLOCK_SHIFT: u32 = BLOCK_BYTES.trailing_zeros();

/// The size of a pool's units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitSize {
    /// Binary logarithm of its bytes.
    shift: u32,
}

impl UnitSize {
    /// 64 bytes: pools up to 2 TiB.
    pub const SMALLEST: UnitSize = UnitSize { shift: SHIFT_MIN };

    /// A whole block: too large for logs, so pages of such a pool have none.
    const NO_LOGS: UnitSize = UnitSize { shift: BLOCK_SHIFT };

    /// All sizes, the smallest first.
    fn all() -> impl Iterator<Item = UnitSize> {
        (SHIFT_MIN..=SHIFT_MAX)
            .map(|shift| UnitSize { shift })
            .chain([Self::NO_LOGS])
    }

    /// Of that many bytes; `None` if units cannot have that size.
    pub fn of_bytes(bytes: u32) -> Option<UnitSize> {
        Self::all().find(|size| size.bytes() == u64::from(bytes))
    }

    /// Whether a block can hold a segment of a log.
    #[inline]
    pub fn allows_logs(self) -> bool {
        self != Self::NO_LOGS
    }

    /// The smallest units with which words can number all blocks and all units of a pool, and where its words are then
    /// divided. `None` if the pool is too large for any.
    pub fn for_pool(size_bytes: u64) -> Option<(UnitSize, WordLayout)> {
        let blocks = size_bytes / BLOCK_BYTES;
        // In the middle, if possible.
        let layouts = || (WordLayout::PAGE_BITS_MIN..=32).rev().filter_map(WordLayout::new);
        Self::all().find_map(|size| {
            let words = layouts().find(|words| words.fits(blocks, u64::from(size.block_units())));
            words.map(|words| (size, words))
        })
    }

    /// Where words are divided in a pool with units of this size that were asked for: as far down as possible. `None`
    /// if words could not number them all.
    pub(crate) fn words_for(self, pool_bytes: u64) -> Option<WordLayout> {
        let blocks = pool_bytes / BLOCK_BYTES;
        (WordLayout::PAGE_BITS_MIN..=32)
            .filter_map(WordLayout::new)
            .find(|words| words.fits(blocks, u64::from(self.block_units())))
    }

    /// Bytes of a unit.
    #[inline]
    pub fn bytes(self) -> u64 {
        1 << self.shift
    }

    /// Units of a block.
    #[inline]
    pub fn block_units(self) -> u32 {
        1 << (BLOCK_SHIFT - self.shift)
    }

    /// Bytes of `units` units, at most a block's.
    #[inline]
    pub(crate) fn bytes_of(self, units: u32) -> usize {
        (units as usize) << self.shift
    }

    /// Units that hold `bytes`.
    #[inline]
    pub(crate) fn units_of(self, bytes: usize) -> u32 {
        bytes.div_ceil(1 << self.shift) as u32
    }
}

/// A unit of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Unit {
    number: u64,
    size: UnitSize,
}

impl Unit {
    /// The unit of that number.
    #[inline]
    pub(crate) fn new(number: u64, size: UnitSize) -> Unit {
        Unit { number, size }
    }

    /// The first unit of a block.
    #[inline]
    pub(crate) fn first_of(block: BlockNo, size: UnitSize) -> Unit {
        let number = u64::from(block) << (BLOCK_SHIFT - size.shift);
        Unit { number, size }
    }

    /// Its number.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.number
    }

    /// The size of the pool's units.
    #[inline]
    pub(crate) fn size(self) -> UnitSize {
        self.size
    }

    /// The segment whose header it is, as a resource that an operation claims or frees.
    pub(crate) fn segment(self) -> Resource {
        Resource::LogSegment(self.block(), self.index() as u8)
    }

    /// Its offset in the pool.
    #[inline]
    pub(crate) fn offset(self) -> u64 {
        self.number << self.size.shift
    }

    /// Offset of the next unit.
    #[inline]
    pub(crate) fn end(self) -> u64 {
        (self.number + 1) << self.size.shift
    }

    /// The block that contains it. A damaged number may be that of no block.
    #[inline]
    pub(crate) fn block(self) -> BlockNo {
        let block = self.number >> (BLOCK_SHIFT - self.size.shift);
        u32::try_from(block).map_or(BlockNo::NONE, BlockNo::new)
    }

    /// Its index in the block.
    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.number as u32 & (self.size.block_units() - 1)
    }

    /// The unit that is the given number of units after this one.
    #[inline]
    pub(crate) fn plus(self, units: u32) -> Unit {
        let number = self.number + u64::from(units);
        Unit { number, ..self }
    }

    /// The unit that is the given number of units before this one.
    #[inline]
    pub(crate) fn minus(self, units: u32) -> Unit {
        let number = self.number - u64::from(units);
        Unit { number, ..self }
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.number.fmt(f)
    }
}

/// A segment of a page log: 4, 8, 16, 32 or 64 units of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Segment {
    /// Its first unit, which is its header.
    pub(crate) header: Unit,
    /// Its number of units, including the header.
    pub(crate) units: u32,
}

impl Segment {
    /// One bit for each of its units, by their index in the block.
    pub(crate) fn bits(self) -> u64 {
        (u64::MAX >> (u64::BITS - self.units)) << self.header.index()
    }

    /// Whether it is aligned as its size requires.
    pub(crate) fn is_aligned(self) -> bool {
        self.header.index().is_multiple_of(self.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_grow_with_the_pool_and_words_number_them() {
        const TIB: u64 = 1 << 40;
        let cases = [
            (4 << 20, 64, 32),
            (256 << 30, 64, 32),
            ((256 << 30) + BLOCK_BYTES, 64, 31),
            (TIB, 64, 30),
            (2 * TIB, 64, 29),
            (2 * TIB + BLOCK_BYTES, 256, 30),
            (4 * TIB, 256, 30),
            (4 * TIB + BLOCK_BYTES, 1024, 31),
            (8 * TIB, 1024, 31),
            (8 * TIB + BLOCK_BYTES, 4096, 32),
            (16 * TIB, 4096, 32),
        ];
        for (size_bytes, unit_bytes, page_bits) in cases {
            let (size, words) = UnitSize::for_pool(size_bytes).unwrap();
            assert_eq!(
                (size.bytes(), words.page_bits()),
                (unit_bytes, page_bits),
                "{size_bytes}"
            );
        }
        assert_eq!(UnitSize::for_pool(16 * TIB + BLOCK_BYTES), None);
    }

    #[test]
    fn a_unit_finds_its_block_at_the_end_of_the_largest_pool() {
        for bytes in [64, 128, 256, 512, 1024] {
            let size = UnitSize::of_bytes(bytes).unwrap();
            let block = BlockNo::new(u32::MAX - 1);
            let unit = Unit::first_of(block, size).plus(size.block_units() - 1);
            assert_eq!((unit.block(), unit.index()), (block, size.block_units() - 1));
            assert_eq!(unit.end(), (u64::from(block) + 1) * BLOCK_BYTES);
            assert_eq!(unit.plus(1).block(), BlockNo::new(u32::MAX));
            assert_eq!(unit.minus(size.block_units() - 1), Unit::first_of(block, size));
        }
        assert_eq!(UnitSize::of_bytes(2048), None);
        assert_eq!(UnitSize::of_bytes(96), None);
    }
}

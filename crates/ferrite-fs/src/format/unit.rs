//! Places in page logs: the unit in which the log halves of page words count.
//!
//! A unit's number is its offset in the pool divided by 64 bytes. Unit 0 is in the superblock, so where units are
//! stored, 0 means none.

use ferrite_map::{BlockNo, PageWord, Resource, UnitNo};

use crate::format::layout::BLOCK_BYTES;

/// Bytes of a unit.
pub(crate) const UNIT_BYTES: u64 = 64;
/// Units of a block.
pub(crate) const BLOCK_UNITS: u32 = (BLOCK_BYTES / UNIT_BYTES) as u32;

/// A unit of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Unit(pub(crate) u32);

impl Unit {
    /// The newest entry of a page's log, from its page word.
    #[inline]
    pub(crate) fn newest_of(word: PageWord) -> Unit {
        Unit(word.log())
    }

    /// The first unit of a block.
    pub(crate) fn first_of(block: BlockNo) -> Unit {
        Unit(block.get() * BLOCK_UNITS)
    }

    /// The header of a segment that is claimed or freed.
    pub(crate) fn of_segment(header: UnitNo) -> Unit {
        Unit(header.get())
    }

    /// The segment whose header it is, as a resource that an operation claims or frees.
    pub(crate) fn segment(self) -> Resource {
        Resource::LogSegment(UnitNo::new(self.0))
    }

    /// Its offset in the pool.
    #[inline]
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.0) * UNIT_BYTES
    }

    /// Offset of the next unit.
    #[inline]
    pub(crate) fn end(self) -> u64 {
        self.offset() + UNIT_BYTES
    }

    /// The block that contains it.
    #[inline]
    pub(crate) fn block(self) -> BlockNo {
        BlockNo::new(self.0 / BLOCK_UNITS)
    }

    /// Its index in the block.
    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0 % BLOCK_UNITS
    }

    /// The unit that is the given number of units after this one.
    #[inline]
    pub(crate) fn plus(self, units: u32) -> Unit {
        Unit(self.0 + units)
    }

    /// The unit that is the given number of units before this one.
    #[inline]
    pub(crate) fn minus(self, units: u32) -> Unit {
        Unit(self.0 - units)
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
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
        self.header.0.is_multiple_of(self.units)
    }
}

//! Space for page logs: segments of 256 bytes to 4 KiB, cut out of blocks, so that a write of eight bytes does not
//! cost a page.
//!
//! Contents: [`LogSpace`]. A block is cut into segments of one size. The medium does not record which blocks are cut
//! up; mount derives it from the page words and headers. Claims are volatile, like all claims (docs/design.md, "Crash
//! atomicity").
//!
//! Invariants: a segment is in use, or in a purse, or its bit in its slab is clear. A block without a used segment
//! returns to the free map. Each thread takes segments from its own purse, which it fills with a slab's worth at a
//! time, so threads seldom compete.

use crossbeam_utils::CachePadded;
use ferrite_checks::ranked::Mutex;
use ferrite_map::BlockNo;
use ferrite_pm::line_trace;
use rustc_hash::FxHashMap;

use crate::format::unit::{Segment, Unit, UnitSize};
use crate::lock_order;
use crate::space::blocks::{BlockAlloc, Class};
use crate::thread::thread_number;

/// Sizes of segments, in units; a block of large units holds only segments of the smaller sizes.
pub(crate) const SEGMENT_UNITS: [u32; 5] = [4, 8, 16, 32, 64];
const SIZES: usize = SEGMENT_UNITS.len();
const PURSES: usize = 16;

/// Why a segment is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentWrong {
    /// Its block holds something else.
    Block,
    /// It is misplaced, overlaps another segment, or differs in size from the block's other segments.
    Overlaps,
}

struct Slab {
    size: u8,
    /// One bit per segment.
    used: u64,
    /// The segments among them that are freed and wait for the checkpoint.
    waiting: u64,
}

impl Slab {
    fn new(size: usize) -> Slab {
        Slab {
            size: size as u8,
            used: 0,
            waiting: 0,
        }
    }

    fn full(unit_size: UnitSize, size: usize) -> u64 {
        u64::MAX >> (64 - unit_size.block_units() / SEGMENT_UNITS[size])
    }

    /// The bit of the segment whose header is at `unit`.
    fn bit(&self, unit: Unit) -> u64 {
        1 << (unit.index() / SEGMENT_UNITS[usize::from(self.size)])
    }
}

#[derive(Default)]
struct Shared {
    slabs: FxHashMap<BlockNo, Slab>,
    /// Blocks with a free segment, by size; some may be stale or listed twice.
    partial: [Vec<BlockNo>; SIZES],
    used_units: u64,
}

impl Shared {
    /// Segments of a block have one size and start at multiples of it. `is_free` is called for a block that has none
    /// yet.
    fn fits(&self, is_free: impl FnOnce(BlockNo) -> bool, segment: Segment) -> Result<(), SegmentWrong> {
        let Segment { header, units } = segment;
        let bit = 1 << (header.index() / units);
        let overlaps = !segment.is_aligned()
            || match self.slabs.get(&header.block()) {
                Some(slab) => usize::from(slab.size) != size_index(units) || slab.used & bit != 0,
                None if !is_free(header.block()) => return Err(SegmentWrong::Block),
                None => false,
            };
        match overlaps {
            true => Err(SegmentWrong::Overlaps),
            false => Ok(()),
        }
    }
}

type Purse = [Vec<Unit>; SIZES];

/// The space that segments take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogUsage {
    /// Blocks that hold any.
    pub(crate) blocks: u64,
    /// Bytes of those in use or in purses.
    pub(crate) used_bytes: u64,
}

/// The log space of a mounted pool.
pub(crate) struct LogSpace {
    unit_size: UnitSize,
    shared: Mutex<lock_order::LogSlabs, Shared>,
    purses: Box<[CachePadded<Mutex<lock_order::LogPurse, Purse>>]>,
}

fn size_index(units: u32) -> usize {
    SEGMENT_UNITS
        .iter()
        .position(|&have| have >= units)
        .expect("no entry is longer than the largest segment")
}

impl LogSpace {
    pub(crate) fn new(unit_size: UnitSize) -> Self {
        LogSpace {
            unit_size,
            shared: Mutex::default(),
            purses: (0..PURSES).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Claims a segment of at least `units`. `None` if there is no block for it that ordinary use may have; then the
    /// caller copies the page instead.
    pub(crate) fn alloc(&self, blocks: &BlockAlloc, units: u32) -> Option<Segment> {
        let size = size_index(units);
        let purse = &self.purses[thread_number() as usize % PURSES];
        line_trace::line("log purses", purse);
        let mut purse = purse.lock();
        if purse[size].is_empty() {
            self.refill(blocks, size, &mut purse[size])?;
        }
        purse[size].pop().map(|header| Segment {
            header,
            units: SEGMENT_UNITS[size],
        })
    }

    /// All free segments of one slab.
    fn refill(&self, blocks: &BlockAlloc, size: usize, into: &mut Vec<Unit>) -> Option<()> {
        line_trace::line("log slabs", &self.shared);
        let mut shared = self.shared.lock();
        let shared = &mut *shared;
        let full = Slab::full(self.unit_size, size);
        let partial = loop {
            let Some(block) = shared.partial[size].pop() else {
                break None;
            };
            match shared.slabs.get(&block) {
                Some(slab) if usize::from(slab.size) == size && slab.used != full => break Some(block),
                _ => {}
            }
        };
        let block = match partial {
            Some(block) => block,
            None => {
                let (block, _) = blocks.claim_any(Class::Ordinary)?;
                shared.slabs.insert(block, Slab::new(size));
                block
            }
        };
        let slab = shared.slabs.get_mut(&block)?;
        let units = SEGMENT_UNITS[size];
        // Highest first, so that the lowest is popped first.
        for index in (0..self.unit_size.block_units() / units).rev() {
            if slab.used >> index & 1 == 0 {
                into.push(Unit::first_of(block, self.unit_size).plus(index * units));
                shared.used_units += u64::from(units);
            }
        }
        slab.used = full;
        Some(())
    }

    /// Releases the segment whose header is at `unit`; false if it was not in use.
    pub(crate) fn release(&self, blocks: &BlockAlloc, unit: Unit) -> bool {
        line_trace::line("log slabs", &self.shared);
        Self::release_in(&mut self.shared.lock(), blocks, unit)
    }

    fn release_in(shared: &mut Shared, blocks: &BlockAlloc, unit: Unit) -> bool {
        let block = unit.block();
        let Some(slab) = shared.slabs.get_mut(&block) else {
            return false;
        };
        let (size, bit) = (usize::from(slab.size), slab.bit(unit));
        if slab.used & bit == 0 {
            return false;
        }
        let was_full = slab.used == Slab::full(unit.size(), size);
        slab.used &= !bit;
        slab.waiting &= !bit;
        shared.used_units -= u64::from(SEGMENT_UNITS[size]);
        if slab.used == 0 {
            shared.slabs.remove(&block);
            return blocks.release(block);
        }
        if was_full {
            shared.partial[size].push(block);
        }
        true
    }

    /// Returns the segments in purses, because space is short.
    pub(crate) fn empty_purses(&self, blocks: &BlockAlloc) {
        for purse in &self.purses {
            let mut units = Vec::new();
            purse.lock().iter_mut().for_each(|list| units.append(list));
            let mut shared = self.shared.lock();
            // The segments in a purse are used by that purse only.
            for unit in units {
                Self::release_in(&mut shared, blocks, unit);
            }
        }
    }

    /// Notes that these segments are about to wait for the checkpoint, or (`waits` false) that they will not wait after
    /// all. Must be called before the record that frees them is committed: afterwards they may be released, and claimed
    /// again, at any time.
    pub(crate) fn set_waiting(&self, units: impl Iterator<Item = Unit>, waits: bool) {
        line_trace::line("log slabs", &self.shared);
        let mut shared = self.shared.lock();
        for unit in units {
            let Some(slab) = shared.slabs.get_mut(&unit.block()) else {
                continue;
            };
            let bit = slab.bit(unit);
            if waits {
                slab.waiting |= slab.used & bit;
            } else {
                slab.waiting &= !bit;
            }
        }
    }

    /// Blocks that come back as soon as the checkpoint has advanced and the purses are emptied: none of their segments
    /// is otherwise in use. Changes made during the call are not taken into account.
    pub(crate) fn returning(&self) -> u64 {
        let mut idle: FxHashMap<BlockNo, u64> = FxHashMap::default();
        // One lock at a time: threads lock their purse first, then the shared state.
        let purses: Vec<Unit> = self
            .purses
            .iter()
            .flat_map(|purse| purse.lock().iter().flatten().copied().collect::<Vec<_>>())
            .collect();
        let shared = self.shared.lock();
        for unit in purses {
            let block = unit.block();
            if let Some(slab) = shared.slabs.get(&block) {
                *idle.entry(block).or_default() |= slab.bit(unit);
            }
        }
        let is_idle = |(block, slab): &(&BlockNo, &Slab)| {
            slab.used & !(slab.waiting | idle.get(*block).copied().unwrap_or(0)) == 0
        };
        shared.slabs.iter().filter(is_idle).count() as u64
    }

    /// Notes a segment found in use, at mount or by a check. `claim` notes an owner of a block; it returns false if the
    /// block cannot have one.
    pub(crate) fn set_used(&self, claim: impl FnOnce(BlockNo) -> bool, segment: Segment) -> Result<(), SegmentWrong> {
        let mut shared = self.shared.lock();
        shared.fits(claim, segment)?;
        let slab = shared.slabs.entry(segment.header.block());
        let slab = slab.or_insert_with(|| Slab::new(size_index(segment.units)));
        slab.used |= 1 << (segment.header.index() / segment.units);
        shared.used_units += u64::from(segment.units);
        Ok(())
    }

    /// Whether [`Self::set_used`] would note a segment.
    pub(crate) fn fits(&self, is_free: impl FnOnce(BlockNo) -> bool, segment: Segment) -> Result<(), SegmentWrong> {
        self.shared.lock().fits(is_free, segment)
    }

    /// Called after the last [`Self::set_used`].
    pub(crate) fn open(&self) {
        let mut shared = self.shared.lock();
        let Shared { slabs, partial, .. } = &mut *shared;
        for (&block, slab) in slabs.iter() {
            let size = usize::from(slab.size);
            if slab.used != Slab::full(self.unit_size, size) {
                partial[size].push(block);
            }
        }
    }

    /// The space that segments take.
    pub(crate) fn usage(&self) -> LogUsage {
        let shared = self.shared.lock();
        LogUsage {
            blocks: shared.slabs.len() as u64,
            used_bytes: shared.used_units * self.unit_size.bytes(),
        }
    }

    /// DRAM used, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let shared = self.shared.lock();
        let lists: usize = shared.partial.iter().map(|list| list.capacity() * 4).sum();
        (shared.slabs.capacity() * (size_of::<(u32, Slab)>() + 1) + lists) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::Superblock;
    use crate::options::MkfsOptions;

    #[test]
    fn segments_come_back_and_empty_blocks_go_home() {
        let superblock = Superblock::plan(16 << 20, &MkfsOptions::default(), 1, 0).unwrap();
        let blocks = BlockAlloc::new(&superblock);
        blocks.open();
        let free = blocks.free();
        let space = LogSpace::new(superblock.unit_size);
        let mut taken: Vec<_> = (0..1000).map(|n| space.alloc(&blocks, n % 64 + 1).unwrap()).collect();
        for (n, segment) in taken.iter().enumerate() {
            assert!(segment.units > n as u32 % 64 && segment.is_aligned());
        }
        taken.sort_unstable();
        assert!(
            taken
                .windows(2)
                .all(|two| two[0].header.plus(two[0].units) <= two[1].header),
            "two segments overlap"
        );
        assert!(taken.iter().all(|segment| space.release(&blocks, segment.header)));
        assert!(!space.release(&blocks, taken[0].header), "it was given back before");
        space.empty_purses(&blocks);
        assert_eq!((space.usage(), blocks.free()), (LogUsage::default(), free));
    }

    #[test]
    fn mount_finds_overlaps() {
        let superblock = Superblock::plan(16 << 20, &MkfsOptions::default(), 1, 0).unwrap();
        let blocks = BlockAlloc::new(&superblock);
        let first = Unit::first_of(BlockNo::new(superblock.first_block as u32), superblock.unit_size);
        let segment = |units_behind, units| Segment {
            header: first.plus(units_behind),
            units,
        };
        let space = LogSpace::new(superblock.unit_size);
        assert!(space.set_used(|block| blocks.set_used(block), segment(0, 4)).is_ok());
        assert!(space.set_used(|block| blocks.set_used(block), segment(4, 4)).is_ok());
        assert!(
            space.set_used(|block| blocks.set_used(block), segment(4, 4)).is_err(),
            "twice"
        );
        assert!(
            space.set_used(|block| blocks.set_used(block), segment(8, 8)).is_err(),
            "another size in the same block"
        );
        assert!(blocks.set_used(BlockNo::new(superblock.first_block as u32 + 1)));
        assert!(
            space.set_used(|block| blocks.set_used(block), segment(64, 4)).is_err(),
            "a page's block"
        );
    }
}

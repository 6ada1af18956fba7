//! Shared blocks: how many pages each block has, and which blocks may have several (docs/design.md, "Clones").
//!
//! Contents: [`Shares`]. The pages of files may name the same block. The mapping alone says which; mount reads it in
//! any case, so the counts are kept in DRAM, and only for blocks that are shared. The medium has a *mark* for each data
//! block, a bit that says that several pages may name it. So two pages with one block are damage, unless a record has
//! said otherwise.
//!
//! Invariants:
//! * A record that makes a page name a block of another page marks the block. Marks of blocks that are no longer shared
//!   stay until the next mount ([`Shares::unmark_unshared`]); they are harmless.
//! * The count of a block is at least the number of pages that name it, less one. It rises before the record that adds
//!   a page can be seen, and falls when the checkpoint has passed the record that took one: as long as a replay may
//!   bring a page back, it counts. So the last page's block is free when it would be without clones.
//! * A block that is shared is never written: all writers of pages write to blocks of their own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::{Mutex, MutexGuard};
use ferrite_map::{BlockNo, StoredWord};
use ferrite_pm::{Region, zeroed};

use crate::format::layout::Superblock;
use crate::lock_order;

/// Blocks whose counts are allocated together, when the first of them is shared.
const CHUNK_BLOCKS: u64 = 16 << 10;

/// The counts of shared blocks, and their marks.
pub(crate) struct Shares {
    region: Arc<Region>,
    superblock: Superblock,
    /// How many pages name each block, besides the first.
    further: Box<[OnceLock<Box<[AtomicU32]>>]>,
    /// The sum of all counts.
    total: AtomicU64,
    /// Number of the last record that has set marks: marks of different files share words.
    marking: Mutex<lock_order::Marking, u64>,
}

impl Shares {
    /// Without any counts.
    pub(crate) fn new(region: Arc<Region>, superblock: &Superblock) -> Self {
        let chunks = superblock.blocks.div_ceil(CHUNK_BLOCKS);
        Shares {
            region,
            superblock: superblock.clone(),
            further: (0..chunks).map(|_| OnceLock::new()).collect(),
            total: AtomicU64::new(0),
            marking: Mutex::new(0),
        }
    }

    fn place(&self, block: BlockNo) -> Option<(usize, usize)> {
        let index = u64::from(block).checked_sub(self.superblock.first_block)?;
        let is_block = index < self.superblock.blocks;
        is_block.then_some(((index / CHUNK_BLOCKS) as usize, (index % CHUNK_BLOCKS) as usize))
    }

    fn count(&self, block: BlockNo) -> Option<&AtomicU32> {
        let (chunk, index) = self.place(block)?;
        self.further[chunk].get().map(|counts| &counts[index])
    }

    /// Whether any block is shared.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.total.load(Ordering::Relaxed) > 0
    }

    /// How many pages name blocks of other pages.
    pub(crate) fn pages(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Whether another page names this block, or did until a record that may still be replayed. A caller that has
    /// locked a file whose page names the block may rely on a `false`.
    #[inline]
    pub(crate) fn is_shared(&self, block: BlockNo) -> bool {
        self.further(block) > 0
    }

    /// How many pages name a block, besides one.
    #[inline]
    pub(crate) fn further(&self, block: BlockNo) -> u32 {
        match self.any() {
            true => self.count(block).map_or(0, |count| count.load(Ordering::Relaxed)),
            false => 0,
        }
    }

    /// Counts one more page of a data block.
    pub(crate) fn add(&self, block: BlockNo) {
        let Some((chunk, index)) = self.place(block) else {
            return;
        };
        let counts = self.further[chunk].get_or_init(|| zeroed(CHUNK_BLOCKS as usize));
        counts[index].fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one page of a block less. False if that was the last one: then the block is free.
    #[inline]
    pub(crate) fn drop_one(&self, block: BlockNo) -> bool {
        self.any() && self.drop_found(block)
    }

    #[cold]
    fn drop_found(&self, block: BlockNo) -> bool {
        let Some(count) = self.count(block) else {
            return false;
        };
        let less = |pages: u32| pages.checked_sub(1);
        let had_others = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if had_others {
            self.total.fetch_sub(1, Ordering::Relaxed);
        }
        had_others
    }

    /// Prepares to mark blocks by one record; the caller gathers its transaction, and holds this until it has
    /// committed.
    pub(crate) fn marks(&self) -> Marks<'_> {
        Marks {
            shares: self,
            last_seq: self.marking.lock(),
        }
    }

    /// Clears the marks of blocks that are not shared. For a mount that has counted all pages, before anything changes.
    ///
    /// Crash argument: no record that a recovery would replay sets marks any more. A mark that is cleared, or was to be
    /// cleared and is still there, makes no difference to sound pools.
    pub(crate) fn unmark_unshared(&self) {
        let Some(table) = self.superblock.marks() else {
            return;
        };
        for index in self.region.written_entries(table.offset, 0..table.words, 8) {
            let offset = table.offset + index * 8;
            let found = self.region.load(offset);
            if found == 0 {
                continue;
            }
            let is_shared = |bit: &u64| {
                let block = self.superblock.first_block + index * 64 + bit;
                self.is_shared(BlockNo::new(block as u32))
            };
            let marks = (0..64).filter(|bit| found >> bit & 1 == 1).filter(is_shared);
            let kept = marks.fold(0, |kept, bit| kept | 1 << bit);
            if kept != found {
                self.region.store(offset, kept);
                self.region.write_back(offset, 8);
            }
        }
    }

    /// DRAM used, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let chunks = self.further.iter().filter(|chunk| chunk.get().is_some()).count() as u64;
        self.further.len() as u64 * size_of::<OnceLock<Box<[AtomicU32]>>>() as u64
            + chunks * CHUNK_BLOCKS * size_of::<AtomicU32>() as u64
    }
}

/// The right to set marks: records that set them get numbers in the order in which they commit.
pub(crate) struct Marks<'s> {
    shares: &'s Shares,
    last_seq: MutexGuard<'s, u64>,
}

impl Marks<'_> {
    /// The number that the record must exceed.
    pub(crate) fn last_seq(&self) -> u64 {
        *self.last_seq
    }

    /// The words that mark these blocks, as the record has to set them.
    pub(crate) fn words(&self, blocks: &[BlockNo]) -> Vec<StoredWord> {
        if is_seeded(Bug::ShareUnmarked) {
            return Vec::new();
        }
        let mut marks: Vec<(u64, u64)> = Vec::with_capacity(blocks.len());
        marks.extend(blocks.iter().filter_map(|&block| self.shares.superblock.mark(block)));
        marks.sort_unstable();
        let words = marks.chunk_by(|(offset, _), (next, _)| offset == next).map(|marks| {
            let offset = marks[0].0;
            let stored = self.shares.region.load(offset);
            let value = marks.iter().fold(stored, |value, (_, bit)| value | bit);
            (stored, StoredWord { offset, value })
        });
        words
            .filter(|(stored, word)| *stored != word.value)
            .map(|(_, word)| word)
            .collect()
    }

    /// The record was committed with this number.
    pub(crate) fn committed(mut self, seq: u64) {
        *self.last_seq = seq;
    }
}

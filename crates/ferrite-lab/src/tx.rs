//! A transaction of the lab: the cost of a change with a journal, and nothing else.
//!
//! Contents: [`LabTx`] and the [`Lane`] it works in. A commit streams new nodes, if any, and fences, streams a redo
//! record and fences, sets the words in place, writes their lines back and fences again; so a change pays for two
//! fences, as a change in the paper's test bed pays for its undo log and its write-back. [`Durable`] says which of
//! these a commit omits.
//!
//! Invariants: a lane has one transaction at a time. Dropping a transaction releases its claims; freed blocks are
//! reused only after the words are set. The move lock, if the mapping has one, is held from the first call until after
//! the commit.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ferrite_map::move_lock::SharedMoveLock;
use ferrite_map::{BlockNo, FreshNodes, Geometry, MapError, MapTx, Measured, Resource, SetLines, StoredWord};
use ferrite_pm::{DirtyLines, LINE_BYTES, Region};
use parking_lot::MutexGuard;
use rustc_hash::FxHashMap;

use crate::alloc::{BLOCK_BYTES, Blocks};

/// Up to this many words are searched one by one; more get an index.
const SHORT: usize = 24;

/// The durability that a commit pays for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// Nothing: a pool is being filled.
    Not,
    /// Its record, and now and then some lines of earlier ones, by the same fence: Ferrite's journal.
    WithRecord,
    /// Its record and its words in place: the papers' test bed.
    InPlace,
}

/// The objects of a transaction.
pub(crate) struct Parts {
    pub(crate) region: Arc<Region>,
    pub(crate) map: Box<dyn Measured>,
    pub(crate) blocks: Box<dyn Blocks>,
    pub(crate) geometry: Geometry,
}

impl Parts {
    pub(crate) fn release(&self, resource: Resource) {
        match resource {
            Resource::Block(block) => self.blocks.free(self.geometry.index_of(block)),
            Resource::MapSlot(slot) => {
                self.map.release(slot);
            }
            // A mapping has no others.
            _ => {}
        }
    }
}

/// Buffers of one thread, and its ring on the medium.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    ring_offset: u64,
    ring_bytes: u64,
    /// Position of the next record in the ring.
    at: u64,
    words: Vec<StoredWord>,
    index: FxHashMap<u64, u64>,
    record: Vec<u8>,
    claimed: Vec<Resource>,
    freed: Vec<Resource>,
    fresh: FreshNodes,
    set_lines: SetLines,
    dirty: DirtyLines,
}

/// See the module's head.
pub(crate) struct LabTx<'p> {
    pool: &'p Parts,
    lane: MutexGuard<'p, Lane>,
    shared: Option<SharedMoveLock<'p>>,
}

impl<'p> LabTx<'p> {
    /// In `lane`, with the shared lock unless the caller holds the move lock exclusively.
    pub(crate) fn new(pool: &'p Parts, lane: MutexGuard<'p, Lane>, shared: Option<SharedMoveLock<'p>>) -> Self {
        LabTx { pool, lane, shared }
    }

    /// Sets the words and releases the freed blocks.
    pub(crate) fn commit(mut self, durable: Durable) -> Result<(), MapError> {
        let lane = &mut *self.lane;
        let region = &self.pool.region;
        let failed = |error: ferrite_pm::PmError| MapError::Damaged(error.to_string());
        if lane.fresh.stream(region) && durable != Durable::Not {
            region.fence().map_err(failed)?;
        }
        if durable != Durable::Not && !lane.words.is_empty() {
            lane.write_record(region);
            lane.dirty.write_some(region);
            region.fence().map_err(failed)?;
        }
        for &StoredWord { offset, value } in &lane.words {
            region.store(offset, value);
        }
        match durable {
            Durable::Not => {}
            Durable::WithRecord => {
                for &StoredWord { offset, .. } in &lane.words {
                    lane.dirty.add(offset, 8);
                }
            }
            Durable::InPlace => {
                let mut last = u64::MAX;
                for &StoredWord { offset, .. } in &lane.words {
                    if offset / LINE_BYTES != last {
                        last = offset / LINE_BYTES;
                        region.write_back(offset, 8);
                    }
                }
                region.fence().map_err(failed)?;
            }
        }
        lane.claimed.clear();
        lane.forget_words();
        while let Some(resource) = self.lane.freed.pop() {
            self.pool.release(resource);
        }
        self.shared = None;
        Ok(())
    }

    /// Records a block that was taken, by its index, and returns its number.
    fn take(&mut self, index: Option<u64>) -> Result<BlockNo, MapError> {
        let block = self
            .pool
            .geometry
            .first_block
            .plus(index.ok_or(MapError::NoBlock)? as u32);
        self.lane.claimed.push(Resource::Block(block));
        Ok(block)
    }
}

impl Lane {
    /// With its ring there.
    pub(crate) fn new(ring_offset: u64, ring_bytes: u64) -> Self {
        Lane {
            ring_offset,
            ring_bytes,
            ..Lane::default()
        }
    }

    fn forget_words(&mut self) {
        self.words.clear();
        self.index.clear();
        self.fresh.clear();
        self.set_lines = SetLines::default();
    }

    /// Streams the words with their count and checksum into the ring.
    fn write_record(&mut self, region: &ferrite_pm::Region) {
        self.record.clear();
        let count = self.words.len() as u64;
        let sum = self.words.iter().fold(count, |sum, &StoredWord { offset, value }| {
            (sum ^ offset)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
                .wrapping_add(value)
        });
        for word in [count, sum]
            .into_iter()
            .chain(self.words.iter().flat_map(|word| [word.offset, word.value]))
        {
            self.record.extend_from_slice(&word.to_le_bytes());
        }
        // A record begins on a line of its own, as in the engine.
        self.record
            .resize(self.record.len().next_multiple_of(LINE_BYTES as usize), 0);
        let mut rest = &self.record[..];
        while !rest.is_empty() {
            let part = rest.len().min((self.ring_bytes - self.at) as usize);
            region.stream(self.ring_offset + self.at, &rest[..part]);
            self.at = (self.at + part as u64) % self.ring_bytes;
            rest = &rest[part..];
        }
    }
}

impl Drop for LabTx<'_> {
    fn drop(&mut self) {
        // Empty after a commit.
        while let Some(resource) = self.lane.claimed.pop() {
            self.pool.release(resource);
        }
        self.lane.freed.clear();
        self.lane.forget_words();
    }
}

impl MapTx for LabTx<'_> {
    fn set_word(&mut self, offset: u64, value: u64) {
        let lane = &mut *self.lane;
        if lane.fresh.set_word(offset, value) {
            return;
        }
        lane.set_lines.note(offset);
        if lane.words.len() == SHORT {
            let words = lane.words.iter();
            lane.index.extend(words.map(|word| (word.offset, word.value)));
        }
        if lane.words.len() >= SHORT {
            lane.index.insert(offset, value);
        }
        lane.words.push(StoredWord { offset, value });
    }

    fn word(&self, offset: u64) -> u64 {
        let lane = &*self.lane;
        let set = if lane.words.len() > SHORT {
            lane.index.get(&offset).copied()
        } else {
            let last = lane.words.iter().rev().find(|word| word.offset == offset);
            last.map(|word| word.value)
        };
        set.or_else(|| lane.fresh.word(offset))
            .unwrap_or_else(|| self.pool.region.load(offset))
    }

    fn stored(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        let unset = !self.lane.set_lines.may_have(offset, count as u64 * 8) && self.lane.fresh.word(offset).is_none();
        unset.then(|| self.pool.region.words(offset, count))
    }

    fn fresh_block(&mut self) -> Result<BlockNo, MapError> {
        let block = self.alloc_block()?;
        self.lane.fresh.add(u64::from(block) * BLOCK_BYTES);
        Ok(block)
    }

    fn claim_block(&mut self, block: BlockNo) -> bool {
        let index = block.get().checked_sub(self.pool.geometry.first_block.get());
        let claimed = index.is_some_and(|index| self.pool.blocks.claim(u64::from(index)));
        if claimed {
            self.lane.claimed.push(Resource::Block(block));
        }
        claimed
    }

    fn alloc_block(&mut self) -> Result<BlockNo, MapError> {
        self.take(self.pool.blocks.take())
    }

    fn alloc_run(&mut self) -> Result<BlockNo, MapError> {
        self.take(self.pool.blocks.take_run())
    }

    fn claimed(&mut self, resource: Resource) {
        self.lane.claimed.push(resource);
    }

    fn freed(&mut self, resource: Resource) {
        self.lane.freed.push(resource);
    }
}

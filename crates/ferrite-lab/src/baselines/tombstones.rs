//! HashFS as published: a slot for each block, linear probing, and a tombstone where a page was removed.
//!
//! It shows the problem that Ferrite's HashFS avoids: a miss ends only at a slot that never held a page, and those run
//! out. Lines lie as in Ferrite's: eight keys, then their words.
//!
//! Invariant: a lookup ends at a slot that is empty *and* not claimed, because any insert past a claimed slot has
//! passed it. So releasing a claim leaves a tombstone too.

use std::sync::Arc;

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{
    BlockNo, Broken, FileMap, Geometry, Inum, Lblk, MapEntry, MapError, MapTx, Measured, PageId, PageWord, Resource,
    SlotNo, Slots, TransCache,
};
use ferrite_pm::{LINE_BYTES, Region};

use super::{hash, key_of, place};

const BUCKET_SLOTS: u64 = 8;
const BUCKET_BYTES: u64 = 128;
const EMPTY: u64 = 0;
const TOMBSTONE: u64 = u64::MAX;

/// See the module's head.
pub(crate) struct Tombstones {
    region: Arc<Region>,
    geometry: Geometry,
    buckets: u64,
    claimed: AtomicBitmap,
}

impl Tombstones {
    pub(crate) fn slots_for(blocks: u32) -> u64 {
        u64::from(blocks).next_multiple_of(BUCKET_SLOTS).max(BUCKET_SLOTS)
    }

    pub(crate) fn area_bytes(slots: u64) -> u64 {
        slots / BUCKET_SLOTS * BUCKET_BYTES
    }

    pub(crate) fn new(region: Arc<Region>, geometry: Geometry) -> Self {
        Tombstones {
            region,
            geometry,
            buckets: geometry.slots / BUCKET_SLOTS,
            claimed: AtomicBitmap::new(geometry.slots),
        }
    }

    fn key_offset(&self, slot: u64) -> u64 {
        self.geometry.area_offset + slot / BUCKET_SLOTS * BUCKET_BYTES + slot % BUCKET_SLOTS * 8
    }

    fn word_offset(&self, slot: u64) -> u64 {
        self.key_offset(slot) + LINE_BYTES
    }

    fn home(&self, key: u64) -> u64 {
        place(hash(key, self.geometry.seed), self.buckets)
    }

    /// Slot of `key`, and the number of buckets visited.
    #[inline]
    fn find(&self, key: u64, load: impl Fn(u64) -> u64) -> (Option<u64>, u64) {
        let home = self.home(key);
        for distance in 0..self.buckets {
            let bucket = (home + distance) % self.buckets;
            let mut ends = false;
            for slot in bucket * BUCKET_SLOTS..(bucket + 1) * BUCKET_SLOTS {
                let found = load(self.key_offset(slot));
                if found == key {
                    return (Some(slot), distance + 1);
                }
                ends |= found == EMPTY && !self.claimed.is_set(slot);
            }
            if ends {
                return (None, distance + 1);
            }
        }
        (None, self.buckets)
    }

    fn find_stored(&self, ino: Inum, lblk: Lblk) -> Option<u64> {
        self.find(key_of(ino, lblk), |offset| self.region.load(offset)).0
    }

    /// First free slot from the page's home on.
    fn free_slot(&self, key: u64, claim: bool) -> Option<u64> {
        let home = self.home(key);
        for distance in 0..self.buckets {
            let bucket = (home + distance) % self.buckets;
            let mut taken = self.claimed.octet(bucket);
            while taken != u8::MAX {
                let slot = bucket * BUCKET_SLOTS + u64::from(taken.trailing_ones());
                if !claim || self.claimed.claim(slot) {
                    return Some(slot);
                }
                taken = self.claimed.octet(bucket);
            }
        }
        None
    }

    fn entry(&self, slot: u64) -> Option<MapEntry> {
        let key = self.region.load(self.key_offset(slot));
        (key != EMPTY && key != TOMBSTONE).then(|| MapEntry {
            ino: Inum::new((key >> 32) as u32),
            lblk: Lblk::new(key as u32),
            word: PageWord(self.region.load(self.word_offset(slot))),
            slot: SlotNo::at(slot),
        })
    }
}

impl FileMap for Tombstones {
    fn name(&self) -> &'static str {
        "hashfs-tombstones"
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        let slot = self.find_stored(ino, lblk);
        slot.map_or(PageWord::HOLE, |slot| {
            PageWord(self.region.load(self.word_offset(slot)))
        })
    }

    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], _cache: &TransCache) {
        for (lblk, word) in lblk.onwards().zip(out) {
            *word = self.get(PageId::new(ino, lblk));
        }
    }

    fn prefetch(&self, PageId { ino, lblk }: PageId, _to_store: bool) {
        let slot = self.home(key_of(ino, lblk)) * BUCKET_SLOTS;
        self.region.prefetch(self.key_offset(slot));
    }

    fn alloc_page(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<BlockNo, MapError> {
        let slot = self.free_slot(key_of(ino, lblk), false);
        let own = slot.filter(|&slot| slot < u64::from(self.geometry.blocks));
        match own.map(|slot| self.geometry.first_block.plus(slot as u32)) {
            Some(block) if tx.claim_block(block) => Ok(block),
            _ => tx.alloc_block(),
        }
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let key = key_of(ino, lblk);
        let slot = self.free_slot(key, true).ok_or(MapError::TableFull)?;
        tx.claimed(Resource::MapSlot(SlotNo::at(slot)));
        tx.set_word(self.word_offset(slot), word.0);
        tx.set_word(self.key_offset(slot), key);
        Ok(())
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let (slot, _) = self.find(key_of(ino, lblk), |offset| tx.word(offset));
        let slot = slot.ok_or_else(|| MapError::Damaged(format!("page {lblk} of inode {ino} vanished")))?;
        tx.set_word(self.word_offset(slot), word.0);
        Ok(())
    }

    fn swing(&self, PageId { ino, lblk }: PageId, old: PageWord, new: PageWord) -> Option<u64> {
        let offset = self.word_offset(self.find_stored(ino, lblk)?);
        (self.region.load(offset) == old.0).then(|| {
            self.region.store(offset, new.0);
            offset
        })
    }

    fn remove(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<PageWord, MapError> {
        let (Some(slot), _) = self.find(key_of(ino, lblk), |offset| tx.word(offset)) else {
            return Ok(PageWord::HOLE);
        };
        let word = PageWord(tx.word(self.word_offset(slot)));
        tx.set_word(self.key_offset(slot), TOMBSTONE);
        tx.freed(Resource::MapSlot(SlotNo::at(slot)));
        Ok(word)
    }

    fn release(&self, slot: SlotNo) -> bool {
        let offset = self.key_offset(u64::from(slot));
        if self.region.load(offset) == EMPTY {
            self.region.store(offset, TOMBSTONE);
        }
        self.claimed.release(u64::from(slot))
    }

    fn load(&self, _threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        for entry in (0..self.geometry.slots).filter_map(|slot| self.entry(slot)) {
            self.claimed.set(u64::from(entry.slot));
            visit(entry);
        }
        Ok(())
    }

    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let _ = (0..self.geometry.slots).filter_map(|slot| self.entry(slot)).all(visit);
    }

    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) {
        self.for_each(&mut |entry| {
            let wanted = entry.ino == ino && entry.lblk >= first && u64::from(entry.lblk) < end;
            !wanted || visit(entry)
        });
    }

    fn slots(&self) -> Slots {
        Slots {
            total: self.claimed.len(),
            free: self.claimed.len() - self.claimed.count_used(),
        }
    }

    fn check(&self, visit: &mut dyn FnMut(MapEntry), _node: &mut dyn FnMut(BlockNo), _broken: &mut dyn FnMut(Broken)) {
        self.for_each(&mut |entry| {
            visit(entry);
            true
        });
    }

    fn dram_bytes(&self) -> u64 {
        self.claimed.dram_bytes()
    }
}

impl Measured for Tombstones {
    fn lines_touched(&self, PageId { ino, lblk }: PageId) -> u64 {
        let (slot, buckets) = self.find(key_of(ino, lblk), |offset| self.region.load(offset));
        buckets + u64::from(slot.is_some())
    }
}

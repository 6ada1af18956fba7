//! Level hashing, unmodified (HashFS §4.9): two levels of buckets, two hashes, resized by a level when full.
//!
//! Nothing here is adapted to a file system: no vectors, no cached translations, no size known in advance. A bucket is
//! a line of four keys and their words. Level *k* has `base << k` buckets; the header names the two in use.
//!
//! A page may lie in two buckets of the upper level, or in the two below them. When all four are full, one page moves
//! to its other bucket of the same level; if none can move, the next level comes into use, and the pages of the lowest
//! move there.
//!
//! Invariants: moves happen in [`FileMap::make_space`], with the move lock held exclusively. A slot whose key is set is
//! claimed.

use std::sync::Arc;

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::move_lock::MoveLock;
use ferrite_map::{
    BlockNo, Broken, FileMap, Geometry, Inum, Lblk, MapEntry, MapError, MapTx, Measured, PageId, PageWord, Resource,
    SlotNo, Slots, TransCache,
};
use ferrite_pm::Region;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::{hash, key_of, place};

const BUCKET_SLOTS: u64 = 4;
const BUCKET_BYTES: u64 = 64;
/// Levels with space; the first two hold about a tenth of a full pool's pages.
const LEVELS: u64 = 7;
/// Buckets of all levels, divided by those of the first.
const BASES: u64 = (1 << LEVELS) - 1;
/// Blocks for each bucket of the first level.
const BLOCKS_PER_BASE: u64 = 128;

/// See the module's head.
pub(crate) struct LevelHash {
    region: Arc<Region>,
    geometry: Geometry,
    /// Buckets of level 0.
    base: u64,
    claimed: AtomicBitmap,
    move_lock: MoveLock,
    /// The last key that found no slot.
    pending: Mutex<Option<u64>>,
    /// Keys for which a page was moved since the last resize.
    helped: Mutex<FxHashSet<u64>>,
}

/// The two buckets of a key in a level, by their first slots.
type Pair = [u64; 2];

impl LevelHash {
    pub(crate) fn slots_for(blocks: u32) -> u64 {
        u64::from(blocks).div_ceil(BLOCKS_PER_BASE).max(2) * BASES * BUCKET_SLOTS
    }

    pub(crate) fn area_bytes(slots: u64) -> u64 {
        BUCKET_BYTES + slots / BUCKET_SLOTS * BUCKET_BYTES
    }

    pub(crate) fn new(region: Arc<Region>, geometry: Geometry) -> Self {
        LevelHash {
            region,
            geometry,
            base: geometry.slots / BUCKET_SLOTS / BASES,
            claimed: AtomicBitmap::new(geometry.slots),
            move_lock: MoveLock::default(),
            pending: Mutex::new(None),
            helped: Mutex::default(),
        }
    }

    fn key_offset(&self, slot: u64) -> u64 {
        self.geometry.area_offset + BUCKET_BYTES + slot / BUCKET_SLOTS * BUCKET_BYTES + slot % BUCKET_SLOTS * 8
    }

    fn word_offset(&self, slot: u64) -> u64 {
        self.key_offset(slot) + BUCKET_SLOTS * 8
    }

    /// The lower of the two levels in use.
    fn bottom(&self, load: &impl Fn(u64) -> u64) -> u64 {
        load(self.geometry.area_offset).min(LEVELS - 2)
    }

    fn pair(&self, key: u64, level: u64) -> Pair {
        let (before, count) = (self.base * ((1 << level) - 1), self.base << level);
        let seed = self.geometry.seed;
        [seed, !seed].map(|seed| (before + place(hash(key, seed), count)) * BUCKET_SLOTS)
    }

    fn find(&self, key: u64, load: impl Fn(u64) -> u64) -> (Option<u64>, u64) {
        let bottom = self.bottom(&load);
        let mut lines = 1;
        for level in [bottom + 1, bottom] {
            for bucket in self.pair(key, level) {
                lines += 1;
                let found = (bucket..bucket + BUCKET_SLOTS).find(|&slot| load(self.key_offset(slot)) == key);
                if found.is_some() {
                    return (found, lines);
                }
            }
        }
        (None, lines)
    }

    fn find_stored(&self, ino: Inum, lblk: Lblk) -> (Option<u64>, u64) {
        self.move_lock
            .steady(|| self.find(key_of(ino, lblk), |offset| self.region.load(offset)))
    }

    fn free_in(&self, bucket: u64) -> u32 {
        (bucket..bucket + BUCKET_SLOTS)
            .filter(|&slot| !self.claimed.is_set(slot))
            .count() as u32
    }

    fn claim_in(&self, bucket: u64) -> Option<u64> {
        (bucket..bucket + BUCKET_SLOTS).find(|&slot| !self.claimed.is_set(slot) && self.claimed.claim(slot))
    }

    /// Claims a slot in a pair, in the emptier bucket.
    fn claim_of(&self, [first, second]: Pair) -> Option<u64> {
        let (first, second) = if self.free_in(second) > self.free_in(first) {
            (second, first)
        } else {
            (first, second)
        };
        self.claim_in(first).or_else(|| self.claim_in(second))
    }

    fn put(&self, tx: &mut dyn MapTx, slot: u64, key: u64, word: u64) {
        tx.claimed(Resource::MapSlot(SlotNo::at(slot)));
        tx.set_word(self.word_offset(slot), word);
        tx.set_word(self.key_offset(slot), key);
    }

    fn clear(&self, tx: &mut dyn MapTx, slot: u64) {
        tx.set_word(self.key_offset(slot), 0);
        tx.freed(Resource::MapSlot(SlotNo::at(slot)));
    }

    /// Moves one page out of a bucket of `key` to the page's other bucket of the same level.
    fn displace(&self, tx: &mut dyn MapTx, key: u64) -> bool {
        let bottom = self.bottom(&|offset| tx.word(offset));
        for level in [bottom + 1, bottom] {
            for bucket in self.pair(key, level) {
                for slot in bucket..bucket + BUCKET_SLOTS {
                    let resident = tx.word(self.key_offset(slot));
                    if resident == 0 {
                        continue;
                    }
                    let other = self.pair(resident, level).into_iter().find(|&other| other != bucket);
                    if let Some(free) = other.and_then(|other| self.claim_in(other)) {
                        let word = tx.word(self.word_offset(slot));
                        self.put(tx, free, resident, word);
                        self.clear(tx, slot);
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Takes the next level into use; false if no level is left.
    fn resize(&self, tx: &mut dyn MapTx) -> bool {
        let bottom = self.bottom(&|offset| tx.word(offset));
        let new = bottom + 2;
        if new >= LEVELS {
            return false;
        }
        let first = self.base * ((1 << bottom) - 1) * BUCKET_SLOTS;
        for slot in first..first + (self.base << bottom) * BUCKET_SLOTS {
            let key = tx.word(self.key_offset(slot));
            if key == 0 {
                continue;
            }
            // Four times as many buckets as before: that both are full does not happen in practice; the caller would
            // abort.
            let Some(free) = self.claim_of(self.pair(key, new)) else {
                return false;
            };
            let word = tx.word(self.word_offset(slot));
            self.put(tx, free, key, word);
            self.clear(tx, slot);
        }
        tx.set_word(self.geometry.area_offset, bottom + 1);
        true
    }

    fn entry(&self, slot: u64) -> Option<MapEntry> {
        let key = self.region.load(self.key_offset(slot));
        (key != 0).then(|| MapEntry {
            ino: Inum::new((key >> 32) as u32),
            lblk: Lblk::new(key as u32),
            word: PageWord(self.region.load(self.word_offset(slot))),
            slot: SlotNo::at(slot),
        })
    }
}

impl FileMap for LevelHash {
    fn name(&self) -> &'static str {
        "level"
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        self.move_lock.steady(|| {
            let slot = self.find(key_of(ino, lblk), |offset| self.region.load(offset)).0;
            slot.map_or(PageWord::HOLE, |slot| {
                PageWord(self.region.load(self.word_offset(slot)))
            })
        })
    }

    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], _cache: &TransCache) {
        for (lblk, word) in lblk.onwards().zip(out) {
            *word = self.get(PageId::new(ino, lblk));
        }
    }

    fn prefetch(&self, PageId { ino, lblk }: PageId, _to_store: bool) {
        let bottom = self.bottom(&|offset| self.region.load(offset));
        self.region
            .prefetch(self.key_offset(self.pair(key_of(ino, lblk), bottom + 1)[0]));
    }

    fn alloc_page(&self, tx: &mut dyn MapTx, _page: PageId) -> Result<BlockNo, MapError> {
        tx.alloc_block()
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let key = key_of(ino, lblk);
        let bottom = self.bottom(&|offset| tx.word(offset));
        let slot = [bottom + 1, bottom]
            .into_iter()
            .find_map(|level| self.claim_of(self.pair(key, level)));
        match slot {
            Some(slot) => {
                self.put(tx, slot, key, word.0);
                Ok(())
            }
            None => {
                *self.pending.lock() = Some(key);
                Err(MapError::TableFull)
            }
        }
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let (slot, _) = self.find(key_of(ino, lblk), |offset| tx.word(offset));
        let slot = slot.ok_or_else(|| MapError::Damaged(format!("page {lblk} of inode {ino} vanished")))?;
        tx.set_word(self.word_offset(slot), word.0);
        Ok(())
    }

    fn swing(&self, PageId { ino, lblk }: PageId, old: PageWord, new: PageWord) -> Option<u64> {
        let offset = self.word_offset(self.find_stored(ino, lblk).0?);
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
        self.clear(tx, slot);
        Ok(word)
    }

    fn release(&self, slot: SlotNo) -> bool {
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

    fn move_lock(&self) -> Option<&MoveLock> {
        Some(&self.move_lock)
    }

    fn make_space(&self, tx: &mut dyn MapTx) -> Result<bool, MapError> {
        let Some(key) = self.pending.lock().take() else {
            return Ok(false);
        };
        // Two pages of one transaction could otherwise displace each other forever.
        let helped = !self.helped.lock().insert(key);
        if !helped && self.displace(tx, key) {
            return Ok(true);
        }
        self.helped.lock().clear();
        Ok(self.resize(tx))
    }

    fn dram_bytes(&self) -> u64 {
        self.claimed.dram_bytes()
    }
}

impl Measured for LevelHash {
    fn lines_touched(&self, PageId { ino, lblk }: PageId) -> u64 {
        self.find_stored(ino, lblk).1
    }
}

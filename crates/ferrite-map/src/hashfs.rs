//! HashFS: one global open-addressing table that maps and allocates with one hash (HashFS §3.2.2).
//!
//! Buckets of 128 bytes: a line of eight keys, and next to it the line of their page words. Slot *i* **is** data block
//! *i*: a new page gets the block of the slot its key hashes to, if that is free. A quarter more slots than blocks
//! keeps a full pool's table at a load of 0.8 (docs/design.md, "File mapping"); the last fifth of the slots owns no
//! block.
//!
//! Choices that the paper leaves open:
//! * Slots are claimed by one atomic operation on a DRAM bitmap; a key reaches the table only by a committed record.
//! * Linear probing goes bucket by bucket, stops at the home's bound ([`Bounds`]), and wraps; so it always ends.
//! * A delete clears key and word. There are no tombstones, and no entry ever moves, so records may name words.
//!
//! * A slot that was freed waits for the journal's checkpoint, so a page that is mapped and unmapped repeatedly finds
//!   its own old slots in its way. An insert that had to pass many of them requests a move of the checkpoint
//!   ([`FileMap::wants_reclaim`]), and none goes farther than [`HashFs::DISTANCE_MAX`]: past that the table counts as
//!   full until those slots are free again ([`Geometry::keys_in_reach`]).
//!
//! Invariants: a key in the table lies within its home's bound, and in reach. A slot whose key is set is claimed. A
//! lookup may race with changes of *other* inodes' keys only: words are atomic, so it sees each key whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrite_pm::{LINE_BYTES, Region, line_trace};

use crate::bitmap::AtomicBitmap;
use crate::bounds::Bounds;
use crate::load::{self, Table};
use crate::simd::{self, Level};
use crate::{
    Affected, BlockNo, Broken, FileMap, Geometry, HashedKeys, Inum, Lblk, MapEntry, MapError, MapTx, Measured, PageId,
    PageWord, Resource, SlotNo, SlotOffsets, Slots, StoredWord, TransCache,
};

const BUCKET_SLOTS: u64 = 8;
const BUCKET_BYTES: u64 = 128;
/// Blocks hashed as one vector.
const VECTOR: usize = 8;
/// Buckets that a thread takes at a time when loading.
const LOAD_CHUNK: u64 = 4096;
/// Distance from home, in buckets, from which a new key requests the slots that wait for the checkpoint. In a pool that
/// has long been full, one key of 100,000 lies this far from home without waiting slots.
const LONG_WAY: u64 = 24;

/// The table of a mounted pool.
pub struct HashFs {
    region: Arc<Region>,
    geometry: Geometry,
    buckets: u64,
    level: Level,
    used: AtomicBitmap,
    bounds: Bounds,
    /// See [`FileMap::wants_reclaim`].
    wants_reclaim: AtomicBool,
}

/// A free slot of the table.
struct FreeSlot {
    slot: u64,
    /// Its distance from home, in buckets.
    distance: u64,
}

impl HashFs {
    /// Distance from home, in buckets, beyond which no insert goes, if keys are to stay in reach; so a key there was
    /// damaged.
    ///
    /// The limit costs no space: each slot in use belongs to a block, so the table is never fuller than four fifths
    /// once the checkpoint has moved. In a table that was this full for a hundred turnovers, the farthest of 25,000
    /// pages lies 21 buckets from home, and each two buckets farther there are a third as many.
    pub const DISTANCE_MAX: u64 = 128;

    /// Slots for the given number of data blocks: 1.25 per block.
    pub fn slots_for(blocks: u32) -> u64 {
        (u64::from(blocks) * 5)
            .div_ceil(4)
            .next_multiple_of(BUCKET_SLOTS)
            .max(BUCKET_SLOTS)
    }

    /// Bytes of a table of `slots` slots.
    pub fn area_bytes(slots: u64) -> u64 {
        slots / BUCKET_SLOTS * BUCKET_BYTES
    }

    /// For the table at `geometry`, whose slots are a multiple of 8; [`FileMap::load`] must follow before changes.
    pub fn new(region: Arc<Region>, geometry: Geometry) -> Self {
        let buckets = geometry.slots / BUCKET_SLOTS;
        HashFs {
            region,
            geometry,
            buckets,
            level: Level::detect(),
            used: AtomicBitmap::new(geometry.slots),
            bounds: Bounds::new(buckets as usize),
            wants_reclaim: AtomicBool::new(false),
        }
    }

    /// Uses another instruction set than the best; for tests. Panics if the CPU does not have it.
    pub fn with_level(mut self, level: Level) -> Self {
        // This makes the calls in `simd` sound: no level is ever used that was not detected.
        assert!(Level::available().contains(&level), "this CPU has no {level:?}");
        self.level = level;
        self
    }

    #[inline]
    fn bucket_offset(&self, bucket: u64) -> u64 {
        self.geometry.area_offset + bucket * BUCKET_BYTES
    }

    fn key_offset(&self, slot: u64) -> u64 {
        self.bucket_offset(slot / BUCKET_SLOTS) + slot % BUCKET_SLOTS * 8
    }

    fn word_offset(&self, slot: u64) -> u64 {
        self.key_offset(slot) + LINE_BYTES
    }

    #[inline]
    fn word(&self, slot: u64) -> PageWord {
        PageWord(self.region.load(self.word_offset(slot)))
    }

    #[inline]
    fn home(&self, key: u64) -> u64 {
        simd::home(key, self.geometry.seed, self.buckets)
    }

    fn keys(&self, bucket: u64) -> &[AtomicU64] {
        self.region.words(self.bucket_offset(bucket), BUCKET_SLOTS as usize)
    }

    #[inline]
    fn wrap(&self, bucket: u64) -> u64 {
        if bucket >= self.buckets {
            bucket - self.buckets
        } else {
            bucket
        }
    }

    /// Slot of `key`, whose home is `home`.
    #[inline]
    fn find_from(&self, key: u64, home: u64) -> Option<u64> {
        // A caller that finds a key wants its word, which lies in the next line.
        self.region.prefetch(self.bucket_offset(home) + LINE_BYTES);
        let found = simd::matches(self.level, self.keys(home), key);
        if found != 0 {
            return Some(home * BUCKET_SLOTS + u64::from(found.trailing_zeros()));
        }
        // The bound is read only now: most keys lie at home, and its line is one more cache miss. Together with the
        // bound, the bucket that it most likely leads to is fetched, and so on from bucket to bucket, so that misses
        // overlap.
        self.prefetch_bucket(self.wrap(home + 1));
        for distance in 1..=self.bounds.lines_to_probe(home as usize, self.buckets) {
            let bucket = self.wrap(home + distance);
            self.prefetch_bucket(self.wrap(bucket + 1));
            let found = simd::matches(self.level, self.keys(bucket), key);
            if found != 0 {
                return Some(bucket * BUCKET_SLOTS + u64::from(found.trailing_zeros()));
            }
        }
        None
    }

    #[inline]
    fn prefetch_bucket(&self, bucket: u64) {
        self.region.prefetch(self.bucket_offset(bucket));
        self.region.prefetch(self.bucket_offset(bucket) + LINE_BYTES);
    }

    fn find(&self, ino: Inum, lblk: Lblk) -> Option<u64> {
        let key = PageId::new(ino, lblk).key();
        self.find_from(key, self.home(key))
    }

    /// First free slot from `home` on, in reach. With `claim` it belongs to the caller.
    fn free_slot(&self, home: u64, claim: bool) -> Option<FreeSlot> {
        let reach = match self.geometry.keys_in_reach {
            true => self.buckets.min(Self::DISTANCE_MAX + 1),
            false => self.buckets,
        };
        for distance in 0..reach {
            let bucket = self.wrap(home + distance);
            let mut taken = self.used.octet(bucket);
            while taken != u8::MAX {
                let slot = bucket * BUCKET_SLOTS + u64::from(taken.trailing_ones());
                if !claim || self.used.claim(slot) {
                    return Some(FreeSlot { slot, distance });
                }
                taken = self.used.octet(bucket);
            }
        }
        None
    }

    /// Lowers the bound of one of the homes whose key may have been in the released slot. Over time each slot serves
    /// one home, and each home is served by the slots after it.
    fn lower_a_bound(&self, slot: u64) {
        let distance = slot % BUCKET_SLOTS + 1;
        let home = self.wrap(slot / BUCKET_SLOTS + self.buckets - distance % self.buckets);
        self.bounds.lower(home as usize, |bound| {
            let is_needed = |distance: &u64| {
                let bucket = self.wrap(home + distance);
                let claimed = self.used.octet(bucket);
                self.keys(bucket).iter().enumerate().any(|(index, key)| {
                    let key = key.load(Ordering::SeqCst);
                    claimed >> index & 1 == 1 && (key == 0 || self.home(key) == home)
                })
            };
            (1..=bound.min(self.buckets - 1)).rev().find(is_needed).unwrap_or(0)
        });
    }

    /// Whether some slot of a home bucket, which is full, is claimed and holds no key: most likely it waits for the
    /// checkpoint.
    fn has_waiting_slot(&self, home: u64) -> bool {
        let keys = self.keys(home);
        keys.iter().any(|key| key.load(Ordering::Relaxed) == 0)
    }

    /// The block that slot `slot` owns.
    pub fn own_block(&self, slot: u64) -> Option<BlockNo> {
        (slot < u64::from(self.geometry.blocks)).then(|| self.geometry.first_block.plus(slot as u32))
    }

    fn entry(&self, slot: u64) -> Option<MapEntry> {
        let key = self.region.load(self.key_offset(slot));
        let PageId { ino, lblk } = PageId::of_key(key);
        (key != 0).then(|| MapEntry {
            ino,
            lblk,
            word: self.word(slot),
            slot: SlotNo::at(slot),
        })
    }

    /// The slots, except in parts of a sparse pool where nothing was ever stored.
    fn written_slots(&self) -> impl Iterator<Item = u64> + use<'_> {
        self.region
            .written_entries(self.geometry.area_offset, 0..self.buckets, BUCKET_BYTES)
            .flat_map(|bucket| bucket * BUCKET_SLOTS..(bucket + 1) * BUCKET_SLOTS)
    }

    fn load_bucket(&self, bucket: u64, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        let mut result = Ok(());
        for (index, key) in self.keys(bucket).iter().enumerate() {
            let key = key.load(Ordering::Relaxed);
            if key == 0 {
                continue;
            }
            let slot = bucket * BUCKET_SLOTS + index as u64;
            self.used.set(slot);
            let home = self.home(key);
            self.bounds
                .raise(home as usize, self.wrap(bucket + self.buckets - home));
            let (PageId { ino, lblk }, word) = (PageId::of_key(key), self.word(slot));
            let page = self.geometry.page(word);
            if ino == Inum::NONE || !self.geometry.is_data_block(page) {
                let what = format!("slot {slot} maps page {lblk} of inode {ino} to block {page}, which holds no data");
                result = Err(MapError::Damaged(what));
                continue;
            }
            visit(MapEntry {
                ino,
                lblk,
                word,
                slot: SlotNo::at(slot),
            });
        }
        result
    }

    /// Resolves `count` blocks (up to eight) from `lblk` on, loading all their home lines at once.
    #[inline]
    fn find_vector(&self, ino: Inum, lblk: Lblk, count: usize, mut found: impl FnMut(usize, Option<u64>)) {
        let key = PageId::new(ino, lblk).key();
        if count == 1 {
            return found(0, self.find_from(key, self.home(key)));
        }
        let homes = simd::homes(self.level, key, self.geometry.seed, self.buckets);
        for &home in &homes[..count] {
            self.prefetch_bucket(home);
        }
        for (index, &home) in homes[..count].iter().enumerate() {
            found(index, self.find_from(key + index as u64, home));
        }
    }

    /// The words of `out.len()` pages, if hints lead to all of them.
    #[inline]
    fn get_hinted(&self, ino: Inum, lblk: Lblk, out: &mut [PageWord], cache: &TransCache) -> bool {
        for (lblk, word) in lblk.onwards().zip(out) {
            match cache.slot(lblk) {
                // The cache may be shared and the page long gone: the key decides.
                Some(slot)
                    if slot < self.geometry.slots
                        && self.region.load(self.key_offset(slot)) == PageId::new(ino, lblk).key() =>
                {
                    *word = self.word(slot);
                }
                _ => return false,
            }
        }
        true
    }

    /// Number of buckets that a lookup of this page reads, for benchmarks.
    pub fn probe_lines(&self, ino: Inum, lblk: Lblk) -> u64 {
        let home = self.home(PageId::new(ino, lblk).key());
        match self.find(ino, lblk) {
            Some(slot) => self.wrap(slot / BUCKET_SLOTS + self.buckets - home) + 1,
            None => self.bounds.lines_to_probe(home as usize, self.buckets) + 1,
        }
    }

    /// A probe touches about as much memory as a scan of eight slots.
    fn pages_worth_a_walk(&self) -> u64 {
        self.geometry.slots / 8
    }
}

impl TransCache {
    /// Where `lblk` was seen.
    #[inline]
    fn slot(&self, lblk: Lblk) -> Option<u64> {
        let hint = self.hints[lblk.index() % 8].load(Ordering::Relaxed);
        (hint >> 32 == u64::from(lblk) && hint as u32 != 0).then(|| u64::from(hint as u32) - 1)
    }

    #[inline]
    fn put(&self, lblk: Lblk, slot: Option<u64>) {
        let hint = slot.map_or(0, |slot| u64::from(lblk) << 32 | (slot + 1));
        line_trace::line("handles", &self.hints[lblk.index() % 8]);
        self.hints[lblk.index() % 8].store(hint, Ordering::Relaxed);
    }
}

impl FileMap for HashFs {
    fn name(&self) -> &'static str {
        "hashfs"
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        self.find(ino, lblk).map_or(PageWord::HOLE, |slot| self.word(slot))
    }

    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], cache: &TransCache) {
        debug_assert!(
            u64::from(lblk) + out.len() as u64 <= 1 << 32,
            "{} pages from {lblk} on",
            out.len()
        );
        // The last page of each call leaves a hint; a call for the next page is a sequential read. Only then are the
        // following pages worth their cache misses, which overlap with ours.
        let in_order = lblk
            .checked_previous()
            .is_some_and(|before| cache.slot(before).is_some());
        for (first, chunk) in (lblk.get()..=u32::MAX)
            .step_by(VECTOR)
            .map(Lblk::new)
            .zip(out.chunks_mut(VECTOR))
        {
            let wanted = chunk.len();
            if wanted < VECTOR && self.get_hinted(ino, first, chunk, cache) {
                continue;
            }
            let count = if in_order {
                VECTOR.min((u32::MAX - first.get()) as usize + 1)
            } else {
                wanted
            };
            self.find_vector(ino, first, count, |index, slot| {
                if let Some(word) = chunk.get_mut(index) {
                    *word = slot.map_or(PageWord::HOLE, |slot| self.word(slot));
                }
                if index + 1 >= wanted {
                    cache.put(first.plus(index as u32), slot);
                }
            });
        }
    }

    fn prefetch(&self, PageId { ino, lblk }: PageId, to_store: bool) {
        let home = self.home(PageId::new(ino, lblk).key());
        let offset = self.bucket_offset(home);
        self.region.prefetch(offset);
        // In a full table every fourth key lies there, and otherwise a lookup would wait for two more lines after this
        // one.
        self.prefetch_bucket(self.wrap(home + 1));
        if to_store {
            self.region.prefetch_to_store(offset + LINE_BYTES);
        } else {
            self.region.prefetch(offset + LINE_BYTES);
        }
    }

    fn alloc_page(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<BlockNo, MapError> {
        let key = PageId::new(ino, lblk).key();
        let home = self.home(key);
        // Prefetches in parallel the lines that inserting the page will touch.
        self.used.prefetch(home * BUCKET_SLOTS);
        self.bounds.prefetch(home as usize);
        self.region.prefetch_to_store(self.bucket_offset(home));
        self.region.prefetch_to_store(self.bucket_offset(home) + LINE_BYTES);
        // A page that is away swings home; a new one takes the block of the slot it is about to claim.
        let slot = self
            .find_from(key, home)
            .or_else(|| self.free_slot(home, false).map(|free| free.slot));
        match slot.and_then(|slot| self.own_block(slot)) {
            Some(block) if tx.claim_block(block) => Ok(block),
            _ => tx.alloc_block(),
        }
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let key = PageId::new(ino, lblk).key();
        let home = self.home(key);
        let FreeSlot { slot, distance } = self.free_slot(home, true).ok_or(MapError::TableFull)?;
        tx.claimed(Resource::MapSlot(SlotNo::at(slot)));
        if distance >= LONG_WAY && self.has_waiting_slot(home) {
            self.wants_reclaim.store(true, Ordering::Relaxed);
        }
        // Before the key can become visible, so that no lookup stops short of it.
        self.bounds.raise(home as usize, distance);
        tx.set_word(self.word_offset(slot), word.0);
        tx.set_word(self.key_offset(slot), key);
        Ok(())
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let slot = self
            .find(ino, lblk)
            .ok_or_else(|| MapError::Damaged(format!("page {lblk} of inode {ino} vanished from the table")))?;
        tx.set_word(self.word_offset(slot), word.0);
        Ok(())
    }

    fn swing(&self, PageId { ino, lblk }: PageId, old: PageWord, new: PageWord) -> Option<u64> {
        let slot = self.find(ino, lblk).filter(|&slot| self.word(slot) == old)?;
        let offset = self.word_offset(slot);
        self.region.store(offset, new.0);
        Some(offset)
    }

    fn remove(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<PageWord, MapError> {
        let Some(slot) = self.find(ino, lblk) else {
            return Ok(PageWord::HOLE);
        };
        let word = self.word(slot);
        tx.set_word(self.key_offset(slot), 0);
        tx.set_word(self.word_offset(slot), 0);
        tx.freed(Resource::MapSlot(SlotNo::at(slot)));
        Ok(word)
    }

    fn release(&self, slot: SlotNo) -> bool {
        let was_set = self.used.release(u64::from(slot));
        if was_set {
            self.lower_a_bound(u64::from(slot));
        }
        was_set
    }

    fn load(&self, threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        let table = Table::of(&self.region, self.geometry.area_offset, BUCKET_BYTES);
        load::each_written(threads, table, self.buckets, LOAD_CHUNK, |bucket| {
            self.load_bucket(bucket, visit)
        })
    }

    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let _ = self.written_slots().filter_map(|slot| self.entry(slot)).all(visit);
    }

    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let (first, end) = (u64::from(first), end.min(1 << 32));
        if end.saturating_sub(first) <= self.pages_worth_a_walk() {
            for at in (first..end).step_by(VECTOR) {
                let mut slots = [None; VECTOR];
                let count = VECTOR.min((end - at) as usize);
                self.find_vector(ino, Lblk::new(at as u32), count, |index, slot| slots[index] = slot);
                for entry in slots.into_iter().flatten().filter_map(|slot| self.entry(slot)) {
                    // A lookup without the lock may see a slot change hands. The inode's version shows that to the
                    // caller, but not here.
                    if entry.ino == ino && !visit(entry) {
                        return;
                    }
                }
            }
            return;
        }
        self.for_each(&mut |entry| {
            let wanted = entry.ino == ino && u64::from(entry.lblk) >= first && u64::from(entry.lblk) < end;
            !wanted || visit(entry)
        });
    }

    fn walk_worth(&self) -> Option<u64> {
        Some(self.pages_worth_a_walk())
    }

    fn check(&self, visit: &mut dyn FnMut(MapEntry), _node: &mut dyn FnMut(BlockNo), broken: &mut dyn FnMut(Broken)) {
        for slot in self.written_slots() {
            let Some(entry) = self.entry(slot) else { continue };
            let MapEntry { ino, lblk, word, .. } = entry;
            let page = self.geometry.page(word);
            if ino == Inum::NONE || ino.get() >= self.geometry.inodes || !self.geometry.is_data_block(page) {
                broken(Broken {
                    affected: Affected::Nothing,
                    what: format!("slot {slot} maps page {lblk} of inode {ino} to block {page}"),
                    repair: vec![
                        StoredWord::new(self.key_offset(slot), 0),
                        StoredWord::new(self.word_offset(slot), 0),
                    ],
                });
            } else {
                visit(entry);
            }
        }
    }

    fn wants_reclaim(&self) -> bool {
        self.wants_reclaim.load(Ordering::Relaxed) && self.wants_reclaim.swap(false, Ordering::Relaxed)
    }

    fn hashed_keys(&self) -> Option<&dyn HashedKeys> {
        Some(self)
    }

    fn slots(&self) -> Slots {
        Slots {
            total: self.used.len(),
            free: self.used.len() - self.used.count_used(),
        }
    }

    fn dram_bytes(&self) -> u64 {
        self.used.dram_bytes() + self.bounds.dram_bytes()
    }
}

impl HashedKeys for HashFs {
    fn at_home(&self, entry: &MapEntry) -> bool {
        self.own_block(u64::from(entry.slot)) == Some(self.geometry.page(entry.word))
    }

    fn is_out_of_reach(&self, page: PageId, slot: SlotNo) -> bool {
        self.geometry.keys_in_reach && self.distance(page, slot) > Self::DISTANCE_MAX
    }

    fn slot_of(&self, PageId { ino, lblk }: PageId) -> Option<SlotNo> {
        self.find(ino, lblk).map(SlotNo::at)
    }

    fn distance(&self, PageId { ino, lblk }: PageId, slot: SlotNo) -> u64 {
        let home = self.home(PageId::new(ino, lblk).key());
        self.wrap(u64::from(slot) / BUCKET_SLOTS + self.buckets - home)
    }

    fn offsets(&self, slot: SlotNo) -> SlotOffsets {
        SlotOffsets {
            key: self.key_offset(u64::from(slot)),
            word: self.word_offset(u64::from(slot)),
        }
    }

    fn key(&self, PageId { ino, lblk }: PageId) -> u64 {
        PageId::new(ino, lblk).key()
    }
}

impl Measured for HashFs {
    fn lines_touched(&self, PageId { ino, lblk }: PageId) -> u64 {
        let home = self.home(PageId::new(ino, lblk).key());
        match self.find(ino, lblk) {
            // Key lines, the word's line, and the bound if the key is not at home.
            Some(slot) => {
                let distance = self.wrap(slot / BUCKET_SLOTS + self.buckets - home);
                distance + 2 + u64::from(distance > 0)
            }
            None => self.bounds.lines_to_probe(home as usize, self.buckets) + 2,
        }
    }
}
#[cfg(test)]
mod tests;

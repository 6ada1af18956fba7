//! Cuckoo: one global table in which each page has two homes and entries know the runs they are in (HashFS §3.2.1).
//!
//! Contents: [`Cuckoo`], its layout on the medium, lookups and changes. Runs are in `runs`, the moves that free slots
//! in `moves`, the check in `check`.
//!
//! A bucket is two cache lines: five keys, five page words, five ranges, a spare word. Three of five hits read one line
//! of their bucket, the others two; only lookups of several pages read ranges.
//!
//! A page lies in one of the two buckets that its key hashes to, so a lookup reads two lines, fetched in parallel,
//! whatever the load. A quarter more slots than blocks keeps a full pool's table at a load of 0.8 (docs/design.md,
//! "File mapping").
//!
//! Choices that the paper leaves open:
//! * Slots are claimed by one atomic operation on a DRAM bitmap. An entry reaches the table only by a committed record,
//!   which sets word and range before the key.
//! * A new page takes the emptier of its homes. If both are full, the insert fails and leaves a wish. Entries are then
//!   moved in a separate transaction while no other transaction holds the move lock. So inserts of different files
//!   share no lock, and no record can hit an entry that has moved.
//! * Lookups take no lock: they retry if something moved meanwhile.
//!
//! Invariants: a slot whose key is set is claimed, and a free slot's key is 0. A key lies in one of its two homes,
//! exactly once. The invariants of ranges are in `runs`. A lookup may race with changes of *other* inodes' entries:
//! each word of an entry is atomic, and while an inode is at rest only a move changes its entries.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_pm::{LINE_BYTES, Region, WrittenEntries};

use crate::bitmap::AtomicBitmap;
use crate::load::{self, Table};
use crate::move_lock::MoveLock;
use crate::simd::{self, Level};
use crate::{
    BlockNo, Broken, FileMap, Geometry, Inum, Lblk, MapEntry, MapError, MapTx, Measured, PageId, PageRange, PageWord,
    Resource, SlotNo, Slots, TransCache,
};

mod check;
mod moves;
mod runs;

use moves::Moves;
use runs::{Range, Run, View};

/// Entries of a bucket.
const BUCKET_SLOTS: u64 = 5;
const BUCKET_BYTES: u64 = 128;
const LINE_WORDS: usize = 8;
/// Where words and ranges begin in a bucket.
const WORDS_AT: u64 = BUCKET_SLOTS * 8;
const RANGES_AT: u64 = 2 * WORDS_AT;
/// Slots are numbered eight per bucket, so that a bucket's bits in the free map are one byte.
const NUMBERS: u64 = 8;
/// The numbers of a bucket that are not slots.
const NO_SLOTS: u8 = u8::MAX << BUCKET_SLOTS;
/// Pages hashed as one vector.
const VECTOR: usize = 8;
/// Distance, in pages, between the page being read and those whose lines are prefetched for a sequential reader.
const AHEAD: u64 = 4;
/// Buckets that a thread takes at a time when loading.
const LOAD_CHUNK: u64 = 4096;
/// Pages that a walk by pages resolves at a time.
const WALK: usize = 64;
/// Makes the second hash differ from the first.
const SECOND: u64 = 0x5851_f42d_4c95_7f2d;
/// The hints of a translation cache: the slot of the head of the run read last, plus 1, and the page that a sequential
/// reader wants next.
const HINT_RUN: usize = 0;
const HINT_NEXT: usize = 1;
/// In place of a head: the pages read last belonged to no run.
const NO_RUN: u64 = u64::MAX;

/// The table of a mounted pool.
pub struct Cuckoo {
    region: Arc<Region>,
    geometry: Geometry,
    buckets: u64,
    level: Level,
    used: AtomicBitmap,
    move_lock: MoveLock,
    moves: Moves,
}

/// The buckets in which a key may lie. They are equal only in a table of one bucket.
type Homes = [u64; 2];

/// The seed of the second hash.
#[inline]
fn second_seed(seed: u64) -> u64 {
    seed.wrapping_mul(SECOND) ^ SECOND
}

impl Cuckoo {
    /// Slots for the given number of data blocks: 1.25 per block, in whole buckets.
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

    /// The first seed from `wanted` on that is good for both hashes. A hash mixes `key ^ seed`, so the keys *k* and
    /// `k ^ seed ^ second_seed(seed)` swap their homes.
    ///
    /// If both are keys of the pool, the two of them share two homes instead of using four, as do all such pairs, and a
    /// table at a load of 0.6 refuses inserts. With seed 1 the two are neighbours in a file. Keys that differ in their
    /// top bit cannot both be in a pool of fewer than 2^31 inodes.
    pub fn good_seed(wanted: u64) -> u64 {
        let mut seed = wanted;
        while (seed ^ second_seed(seed)) >> 63 == 0 {
            seed = seed.wrapping_add(1);
        }
        seed
    }

    /// For the table at `geometry`, whose slots are a multiple of 5; [`FileMap::load`] must follow before changes.
    pub fn new(region: Arc<Region>, geometry: Geometry) -> Self {
        let buckets = geometry.slots / BUCKET_SLOTS;
        Cuckoo {
            region,
            geometry,
            buckets,
            level: Level::detect(),
            used: AtomicBitmap::with_pattern(buckets * NUMBERS, NO_SLOTS),
            move_lock: MoveLock::default(),
            moves: Moves::default(),
        }
    }

    #[inline]
    fn bucket_offset(&self, bucket: u64) -> u64 {
        self.geometry.area_offset + bucket * BUCKET_BYTES
    }

    #[inline]
    fn key_offset(&self, slot: u64) -> u64 {
        self.bucket_offset(slot / NUMBERS) + slot % NUMBERS * 8
    }

    #[inline]
    fn word_offset(&self, slot: u64) -> u64 {
        self.key_offset(slot) + WORDS_AT
    }

    #[inline]
    fn range_offset(&self, slot: u64) -> u64 {
        self.key_offset(slot) + RANGES_AT
    }

    #[inline]
    fn key(&self, slot: u64) -> u64 {
        self.region.load(self.key_offset(slot))
    }

    #[inline]
    fn word(&self, slot: u64) -> PageWord {
        PageWord(self.region.load(self.word_offset(slot)))
    }

    fn slots_of(bucket: u64) -> impl Iterator<Item = u64> {
        (0..BUCKET_SLOTS).map(move |index| bucket * NUMBERS + index)
    }

    #[inline]
    fn apart(&self, first: u64, second: u64) -> Homes {
        if first != second {
            [first, second]
        } else if first + 1 < self.buckets {
            [first, first + 1]
        } else {
            [first, 0]
        }
    }

    #[inline]
    fn homes(&self, key: u64) -> Homes {
        let seed = self.geometry.seed;
        let first = simd::home(key, seed, self.buckets);
        let second = simd::home(key, second_seed(seed), self.buckets);
        self.apart(first, second)
    }

    /// Homes of eight consecutive keys.
    #[inline]
    fn homes_of_eight(&self, key: u64) -> [Homes; VECTOR] {
        let seed = self.geometry.seed;
        let first = simd::homes(self.level, key, seed, self.buckets);
        let second = simd::homes(self.level, key, second_seed(seed), self.buckets);
        std::array::from_fn(|index| self.apart(first[index], second[index]))
    }

    #[inline]
    fn prefetch_homes(&self, homes: Homes) {
        homes
            .iter()
            .for_each(|&bucket| self.region.prefetch(self.bucket_offset(bucket)));
    }

    #[inline]
    fn prefetch_to_store(&self, bucket: u64) {
        let offset = self.bucket_offset(bucket);
        self.region.prefetch_to_store(offset);
        self.region.prefetch_to_store(offset + LINE_BYTES);
    }

    /// The first line of a bucket: its keys, and words that are not keys.
    #[inline]
    fn keys(&self, bucket: u64) -> &[AtomicU64] {
        self.region.words(self.bucket_offset(bucket), LINE_WORDS)
    }

    /// Slot of `key`, as stored. Waits for the second home only if it must: when both are cold, one of them arrives
    /// sooner than both.
    #[inline]
    fn find_at(&self, key: u64, homes: Homes) -> Option<u64> {
        homes.into_iter().find_map(|bucket| {
            let found = simd::matches(self.level, self.keys(bucket), key) & !NO_SLOTS;
            (found != 0).then(|| bucket * NUMBERS + u64::from(found.trailing_zeros()))
        })
    }

    /// The same as one of several lookups: loads both homes before the first branch. Which home has the key is
    /// unpredictable, and a misprediction would delay the lookups that follow.
    #[inline]
    fn find_among(&self, key: u64, homes: Homes) -> Option<u64> {
        let lines = homes.map(|bucket| self.keys(bucket));
        let found = simd::matches_pair(self.level, lines, key) & !u16::from_le_bytes([NO_SLOTS; 2]);
        if found == 0 {
            return None;
        }
        let at = u64::from(found.trailing_zeros());
        Some(homes[usize::from(at >= NUMBERS)] * NUMBERS + at % NUMBERS)
    }

    #[inline]
    fn find(&self, key: u64) -> Option<u64> {
        let homes = self.homes(key);
        self.prefetch_homes(homes);
        self.find_at(key, homes)
    }

    /// Slot of `key`, as `tx` leaves it.
    fn find_in(&self, tx: &dyn MapTx, key: u64) -> Option<u64> {
        let homes = self.homes(key);
        self.prefetch_homes(homes);
        homes.into_iter().flat_map(Self::slots_of).find(|&slot| {
            let stored = self.key(slot);
            // Entries that the transaction has inserted lie in slots that are claimed but still empty.
            let may_be = stored == key || (stored == 0 && self.used.is_set(slot));
            may_be && tx.word(self.key_offset(slot)) == key
        })
    }

    /// Claims a slot in the emptier one of `homes`.
    fn claim_slot(&self, homes: Homes) -> Option<u64> {
        loop {
            let taken = homes.map(|bucket| self.used.octet(bucket));
            let emptier = usize::from(taken[1].count_ones() < taken[0].count_ones());
            if taken[emptier] == u8::MAX {
                return None;
            }
            let slot = homes[emptier] * NUMBERS + u64::from(taken[emptier].trailing_ones());
            if self.used.claim(slot) {
                return Some(slot);
            }
        }
    }

    fn mapped_slot(&self, tx: &dyn MapTx, ino: Inum, lblk: Lblk) -> Result<u64, MapError> {
        self.find_in(tx, PageId::new(ino, lblk).key())
            .ok_or_else(|| MapError::Damaged(format!("page {lblk} of inode {ino} vanished from the table")))
    }

    fn entry(&self, slot: u64) -> Option<MapEntry> {
        let key = self.key(slot);
        let PageId { ino, lblk } = PageId::of_key(key);
        (key != 0).then(|| MapEntry {
            ino,
            lblk,
            word: self.word(slot),
            slot: SlotNo::at(slot),
        })
    }

    /// The buckets, except in parts of a sparse pool where nothing was ever stored.
    fn written_buckets(&self) -> WrittenEntries<'_> {
        self.region
            .written_entries(self.geometry.area_offset, 0..self.buckets, BUCKET_BYTES)
    }

    /// The entries of a bucket. Call only while nothing moves.
    fn entries(&self, bucket: u64) -> impl Iterator<Item = MapEntry> + use<> {
        let entries = self.move_lock.steady(|| {
            std::array::from_fn::<_, { BUCKET_SLOTS as usize }, _>(|at| self.entry(bucket * NUMBERS + at as u64))
        });
        entries.into_iter().flatten()
    }

    /// The defect of the entry at `slot`, if any, examined alone.
    fn fault_of(&self, entry: &MapEntry) -> Option<String> {
        let MapEntry { ino, lblk, word, slot } = *entry;
        let page = self.geometry.page(word);
        if ino == Inum::NONE || ino.get() >= self.geometry.inodes || !self.geometry.is_data_block(page) {
            return Some(format!("slot {slot} maps page {lblk} of inode {ino} to block {page}"));
        }
        let is_home = self
            .homes(PageId::new(ino, lblk).key())
            .contains(&(u64::from(slot) / NUMBERS));
        (!is_home).then(|| format!("slot {slot} has page {lblk} of inode {ino}, which has other homes"))
    }

    fn load_bucket(&self, bucket: u64, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        let mut result = Ok(());
        for entry in Self::slots_of(bucket).filter_map(|slot| self.entry(slot)) {
            self.used.set(u64::from(entry.slot));
            match self.fault_of(&entry) {
                Some(what) => result = Err(MapError::Damaged(what)),
                None => {
                    visit(entry);
                    // A head determines where all pages of its run lie, so one wrong word or range would be many wrong
                    // pages.
                    if let Some(what) = check::fault_of_range(self, &entry) {
                        result = Err(MapError::Damaged(what));
                    }
                }
            }
        }
        result
    }

    /// Resolves `count` pages from `lblk` on, all of them below 2^32. Calls `found` with each page's word and the slot
    /// it came from. Searches for the run of the first page if there are more pages, or if `wants_run`. `is_lone` says
    /// whether the first page is likely to be in no run. Returns the last run found, and whether the last page was in
    /// none.
    #[inline]
    fn resolve(
        &self,
        PageId { ino, lblk }: PageId,
        count: usize,
        wants_run: bool,
        mut is_lone: bool,
        mut found: impl FnMut(usize, Option<u64>, PageWord),
    ) -> (Option<Run>, bool) {
        let (mut index, mut run) = (0, None);
        while index < count {
            // Neighbours of a page without a run are likely to have none either: their lines are fetched all at once.
            let in_vector = is_lone && index + 1 < count;
            let mut slot = None;
            let mut tell = |index: usize, found_at: Option<u64>| {
                slot = found_at;
                found(index, slot, slot.map_or(PageWord::HOLE, |slot| self.word(slot)));
            };
            let key = PageId::new(ino, lblk.plus(index as u32)).key();
            if in_vector {
                let homes = self.homes_of_eight(key);
                let homes = &homes[..VECTOR.min(count - index)];
                homes.iter().for_each(|&homes| self.prefetch_homes(homes));
                for (ahead, &homes) in homes.iter().enumerate() {
                    tell(index + ahead, self.find_among(key + ahead as u64, homes));
                }
                index += homes.len();
            } else {
                let homes = self.homes(key);
                self.prefetch_homes(homes);
                tell(index, self.find_at(key, homes));
                index += 1;
            }
            let page = lblk.plus((index - 1) as u32);
            is_lone = true;
            let Some(slot) = slot.filter(|_| index < count || wants_run) else {
                continue;
            };
            // Elsewhere, a page whose run's head lies before it was resolved together with that head.
            let met = View::stored(self).run_of(PageId::new(ino, page), slot, index == 1 || in_vector);
            let Some(met) = met else { continue };
            is_lone = false;
            let told = met.behind(page).min((count - index) as u64) as usize;
            for next in 0..told {
                found(index + next, Some(slot), met.word(page.plus(1 + next as u32)));
            }
            index += told;
            run = Some(met);
        }
        (run, is_lone)
    }

    /// The run of page `lblk`, if the head that the cache remembers leads it.
    #[inline]
    fn hinted_run(&self, ino: Inum, lblk: Lblk, cache: &TransCache) -> Option<Run> {
        let slot = cache.hints[HINT_RUN].load(Ordering::Relaxed).checked_sub(1)?;
        if slot >= self.buckets * NUMBERS || slot % NUMBERS >= BUCKET_SLOTS {
            return None;
        }
        // The cache may be shared and the run long gone: the entry decides.
        let key = self.key(slot);
        let page = PageId::of_key(key);
        let head = View::stored(self).run_from(slot, page.lblk);
        head.filter(|run| page.ino == ino && run.contains(lblk))
    }

    /// For ranges that are shorter than the table.
    fn walk_pages(&self, ino: Inum, range: PageRange, visit: &mut dyn FnMut(MapEntry) -> bool) {
        for at in (range.first..range.end).step_by(WALK) {
            let count = WALK.min((range.end - at) as usize);
            let mut pages = [None; WALK];
            self.move_lock.steady(|| {
                self.resolve(
                    PageId::new(ino, Lblk::new(at as u32)),
                    count,
                    false,
                    false,
                    |index, slot, word| {
                        pages[index] = slot.map(|slot| (slot, word));
                    },
                );
            });
            for (index, page) in pages[..count].iter().enumerate() {
                let entry = page.map(|(slot, word)| MapEntry {
                    ino,
                    lblk: Lblk::new(at as u32).plus(index as u32),
                    word,
                    slot: SlotNo::at(slot),
                });
                if entry.is_some_and(|entry| !visit(entry)) {
                    return;
                }
            }
        }
    }

    /// For ranges that are longer than the table. Entries that move meanwhile may be missed or visited twice.
    fn walk_table(&self, ino: Inum, range: PageRange, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let wanted = |entry: &MapEntry| entry.ino == ino && range.contains(u64::from(entry.lblk));
        let moves = || self.move_lock.steady(|| self.moves.count());
        let before = moves();
        let mut seen = Vec::new();
        for bucket in self.written_buckets() {
            for entry in self.entries(bucket).filter(wanted) {
                if self.moves.count() != before {
                    return self.walk_rest(&wanted, seen, visit);
                }
                seen.push(entry.lblk);
                if !visit(entry) {
                    return;
                }
            }
        }
        if moves() != before {
            self.walk_rest(&wanted, seen, visit);
        }
    }

    /// Restarts a walk during which entries moved, with moves kept out.
    #[cold]
    fn walk_rest(&self, wanted: &dyn Fn(&MapEntry) -> bool, seen: Vec<Lblk>, visit: &mut dyn FnMut(MapEntry) -> bool) {
        // Nothing moves while this thread holds the lock, so a thread that gets here holds none.
        let shared = self.move_lock.lock_shared();
        let seen: HashSet<Lblk> = seen.into_iter().collect();
        let rest: Vec<MapEntry> = self
            .written_buckets()
            .flat_map(|bucket| self.entries(bucket))
            .filter(|entry| wanted(entry) && !seen.contains(&entry.lblk))
            .collect();
        drop(shared);
        let _ = rest.into_iter().all(visit);
    }

    /// A probe touches about as much memory as a scan of eight slots.
    fn pages_worth_a_walk(&self) -> u64 {
        self.geometry.slots / 8
    }
}

impl FileMap for Cuckoo {
    fn name(&self) -> &'static str {
        "cuckoo"
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        let key = PageId::new(ino, lblk).key();
        let homes = self.homes(key);
        self.prefetch_homes(homes);
        self.move_lock
            .steady(|| self.find_at(key, homes).map_or(PageWord::HOLE, |slot| self.word(slot)))
    }

    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], cache: &TransCache) {
        let next = u64::from(lblk) + out.len() as u64;
        debug_assert!(next <= 1 << 32, "{} pages from {lblk} on", out.len());
        let in_order = cache.hints[HINT_NEXT].load(Ordering::Relaxed) == u64::from(lblk);
        let was_lone = cache.hints[HINT_RUN].load(Ordering::Relaxed) == NO_RUN;
        // Where there was no run, one page of eight is checked for starting one.
        let wants_run = in_order && (!was_lone || lblk.get().is_multiple_of(VECTOR as u32));
        // The result fits in registers; a whole run would be passed on the stack and stall there.
        let (hint, is_lone) = self.move_lock.steady(|| {
            let mut told = 0;
            if let Some(run) = self.hinted_run(ino, lblk, cache) {
                told = (run.behind(lblk) as usize + 1).min(out.len());
                for (page, word) in lblk.onwards().zip(&mut out[..told]) {
                    *word = run.word(page);
                }
            }
            if told == out.len() {
                return (0, false);
            }
            let rest = &mut out[told..];
            let at = PageId::new(ino, lblk.plus(told as u32));
            let (run, is_lone) = self.resolve(at, rest.len(), wants_run, was_lone, |index, _, word| rest[index] = word);
            let hint = match run {
                Some(run) => run.head() + 1,
                None if is_lone && (out.len() > 1 || wants_run) => NO_RUN,
                None => 0,
            };
            (hint, is_lone)
        });
        if hint != 0 {
            note(cache, HINT_RUN, hint);
        }
        note(cache, HINT_NEXT, next);
        if in_order && is_lone && out.len() < VECTOR {
            for page in next + AHEAD..(next + AHEAD + out.len() as u64).min(1 << 32) {
                self.prefetch_homes(self.homes(PageId::new(ino, Lblk::new(page as u32)).key()));
            }
        }
    }

    fn prefetch(&self, PageId { ino, lblk }: PageId, to_store: bool) {
        for bucket in self.homes(PageId::new(ino, lblk).key()) {
            if to_store {
                self.prefetch_to_store(bucket);
            } else {
                self.region.prefetch(self.bucket_offset(bucket));
            }
        }
    }

    fn alloc_page(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<BlockNo, MapError> {
        // Prefetches the lines that inserting the page will touch, during the search for a block.
        for bucket in self.homes(PageId::new(ino, lblk).key()) {
            self.used.prefetch(bucket * NUMBERS);
            self.prefetch_to_store(bucket);
        }
        // The block after that of the previous page makes a run.
        let behind = lblk
            .checked_previous()
            .and_then(|before| self.find_in(tx, PageId::new(ino, before).key()))
            .map(|slot| self.geometry.page(PageWord(tx.word(self.word_offset(slot)))))
            .and_then(|block| block.checked_next());
        match behind {
            Some(block) if tx.claim_block(block) => Ok(block),
            _ => tx.alloc_block(),
        }
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let key = PageId::new(ino, lblk).key();
        let Some(slot) = self.claim_slot(self.homes(key)) else {
            self.moves.wish(moves::wish_for(self, tx, key));
            return Err(MapError::TableFull);
        };
        tx.claimed(Resource::MapSlot(SlotNo::at(slot)));
        let range = runs::join(self, tx, PageId::new(ino, lblk), word);
        tx.set_word(self.word_offset(slot), word.0);
        runs::set_range(self, tx, slot, range);
        tx.set_word(self.key_offset(slot), key);
        Ok(())
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let slot = self.mapped_slot(tx, ino, lblk)?;
        runs::split(self, tx, PageId::new(ino, lblk), slot);
        let range = runs::join(self, tx, PageId::new(ino, lblk), word);
        tx.set_word(self.word_offset(slot), word.0);
        runs::set_range(self, tx, slot, range);
        Ok(())
    }

    /// Refuses while entries are being moved, because the page may be one of them. Refuses pages of runs too, because
    /// other entries give their words.
    fn swing(&self, PageId { ino, lblk }: PageId, old: PageWord, new: PageWord) -> Option<u64> {
        let _shared = self.move_lock.try_lock_shared()?;
        let slot = self
            .find(PageId::new(ino, lblk).key())
            .filter(|&slot| self.word(slot) == old)?;
        if old.is_plain() && View::stored(self).run_of(PageId::new(ino, lblk), slot, true).is_some() {
            return None;
        }
        let offset = self.word_offset(slot);
        self.region.store(offset, new.0);
        Some(offset)
    }

    fn remove(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<PageWord, MapError> {
        let Some(slot) = self.find_in(tx, PageId::new(ino, lblk).key()) else {
            return Ok(PageWord::HOLE);
        };
        let word = PageWord(tx.word(self.word_offset(slot)));
        runs::split(self, tx, PageId::new(ino, lblk), slot);
        tx.set_word(self.key_offset(slot), 0);
        tx.set_word(self.word_offset(slot), 0);
        runs::set_range(self, tx, slot, Range::LONE);
        tx.freed(Resource::MapSlot(SlotNo::at(slot)));
        Ok(word)
    }

    fn release(&self, slot: SlotNo) -> bool {
        self.used.release(u64::from(slot))
    }

    fn load(&self, threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        let table = Table::of(&self.region, self.geometry.area_offset, BUCKET_BYTES);
        load::each_written(threads, table, self.buckets, LOAD_CHUNK, |bucket| {
            self.load_bucket(bucket, visit)
        })
    }

    /// Entries that move meanwhile may be missed or visited twice.
    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let _ = self
            .written_buckets()
            .flat_map(|bucket| self.entries(bucket))
            .all(visit);
    }

    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let range = PageRange::new(u64::from(first), end.min(1 << 32));
        if range.pages() <= self.pages_worth_a_walk() {
            self.walk_pages(ino, range, visit);
        } else {
            self.walk_table(ino, range, visit);
        }
    }

    fn for_runs(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry, u64) -> bool) {
        let range = PageRange::new(u64::from(first), end.min(1 << 32));
        match range.pages() <= self.pages_worth_a_walk() * runs::STEPS_SAVED {
            true => runs::walk(self, ino, range, visit),
            false => self.walk_table(ino, range, &mut |entry| visit(entry, 1)),
        }
    }

    fn walk_worth(&self) -> Option<u64> {
        Some(self.pages_worth_a_walk())
    }

    fn slots(&self) -> Slots {
        Slots {
            total: self.geometry.slots,
            free: self.used.len() - self.used.count_used(),
        }
    }

    fn check(&self, visit: &mut dyn FnMut(MapEntry), _node: &mut dyn FnMut(BlockNo), broken: &mut dyn FnMut(Broken)) {
        check::check(self, visit, broken);
    }

    fn move_lock(&self) -> Option<&MoveLock> {
        Some(&self.move_lock)
    }

    fn make_space(&self, tx: &mut dyn MapTx) -> Result<bool, MapError> {
        Ok(moves::make_space(self, tx))
    }

    fn dram_bytes(&self) -> u64 {
        self.used.dram_bytes() + self.moves.dram_bytes()
    }
}

impl Measured for Cuckoo {
    fn lines_touched(&self, PageId { ino, lblk }: PageId) -> u64 {
        let [first, second] = self.homes(PageId::new(ino, lblk).key());
        let keys = 1 + u64::from(first != second);
        let slot = self.move_lock.steady(|| self.find(PageId::new(ino, lblk).key()));
        // Some words lie in the line of their keys.
        let is_behind = |slot: u64| self.word_offset(slot) % BUCKET_BYTES >= LINE_BYTES;
        keys + u64::from(slot.is_some_and(is_behind))
    }
}

/// Leaves a hint only if it is new: the cache may be shared.
#[inline]
fn note(cache: &TransCache, index: usize, hint: u64) {
    if cache.hints[index].load(Ordering::Relaxed) != hint {
        cache.hints[index].store(hint, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;

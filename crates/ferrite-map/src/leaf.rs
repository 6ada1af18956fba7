//! Leaf: a global clustered page table, our own design (docs/design.md, "File mapping"). One cache line maps seven
//! consecutive pages of a file.
//!
//! A line is {inode, chunk; seven page words}; a chunk is seven consecutive pages. Lines are found by hash and linear
//! probing, so a hit costs one line, and the next six pages in order cost no further line. Entries only point, so
//! blocks lie where the allocator finds runs, and entries may move.
//!
//! The table grows line by line (linear hashing) within the area set aside at mkfs. The area has a line for each block,
//! even with one page per chunk, so data never fills it.
//!
//! Why it is correct:
//! * Of the area's lines the first N are *active*: homes of keys. N is stored twice, each time next to its complement.
//!   A split adds line N as a home and moves there what the hash now sends there, a few lines at a time, all in one
//!   record, with the move lock held exclusively. So no transaction holds a place across a split, and records before
//!   and after it name the places valid at their time.
//! * Lines are claimed in a DRAM bitmap; a header reaches the table only by a committed record. A free line is all
//!   zeros, so the first page of a chunk sets two words; the change that unmaps the last one clears the header.
//! * A lookup stops at its home's bound ([`Bounds`]). While N can grow, nothing lies more than [`REACH`] lines after
//!   its home, so lines from N + [`REACH`] on are free.
//! * Lookups retry when entries moved meanwhile ([`MoveLock::steady`]); all they touch lies within the area.

mod lookup;
mod runs;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use ferrite_pm::{LINE_BYTES, Region};

use crate::bitmap::AtomicBitmap;
use crate::bounds::Bounds;
use crate::load;
use crate::move_lock::MoveLock;
use crate::{
    Affected, BlockNo, Broken, FileMap, Geometry, Inum, Lblk, MapEntry, MapError, MapTx, Measured, PageId, PageRange,
    PageWord, Resource, SlotNo, Slots, StoredWord, TransCache,
};

/// Pages of a chunk.
const CHUNK: u32 = 7;
/// The first block of the area holds N, twice, on lines of their own.
const CONTROL_BYTES: u64 = 4096;
const ACTIVE_COPIES: [u64; 2] = [0, LINE_BYTES];
/// Active lines of a new table.
const ACTIVE_MIN: u64 = 4;
/// Distance from home, in lines, within which a chunk may lie while the table can grow.
const REACH: u64 = 254;
/// Distance from home, in lines, from which a new chunk requests the lines that wait for the checkpoint. Without
/// waiting lines none lies this far while the table can grow: the load stays below a third.
const LONG_WAY: u64 = 64;
/// Lines split in one record.
const BATCH: u64 = 32;
/// Lines that a thread takes at a time when loading.
const LOAD_CHUNK: u64 = 8192;
const SHARDS: usize = 16;
/// Claims in a shard between two checks of the load.
const LOOK_EVERY: i64 = 16;
/// Tries of a table scan before it makes moves wait.
const SCANS: usize = 2;

/// The table of a mounted pool. Fields that every lookup reads come first, in one line.
#[repr(C, align(128))]
pub struct Leaf {
    region: Arc<Region>,
    geometry: Geometry,
    /// The count of moves when N was read, and N.
    active: AtomicU64,
    move_lock: MoveLock,
    bounds: Bounds,
    used: AtomicBitmap,
    /// Lines claimed minus lines released, by shard.
    claims: Box<[CachePadded<AtomicI64>]>,
    /// Asks for splits, because of the load, or because a chunk found no line within reach.
    wants_space: AtomicBool,
    /// See [`FileMap::wants_reclaim`]. Without it a file that comes and goes would make the table grow, although its
    /// lines are about to be free.
    wants_reclaim: AtomicBool,
}

fn key_of(ino: Inum, lblk: Lblk) -> u64 {
    u64::from(ino) << 32 | u64::from(lblk.get() / CHUNK)
}

fn hash(key: u64, seed: u64) -> u64 {
    let mixed = (key ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed >> 32
}

/// Home among `active` lines. Hashes address twice the largest power of two in `active`; a line that does not exist yet
/// is replaced by the line it will be split from.
fn home_of(hash: u64, active: u64) -> u64 {
    let half = 1 << active.ilog2();
    let line = hash & (2 * half - 1);
    if line < active { line } else { line & (half - 1) }
}

fn encode_active(active: u64) -> u64 {
    active | (!active & 0xffff_ffff) << 32
}

fn decode_active(word: u64) -> Option<u64> {
    let active = word & 0xffff_ffff;
    // A new pool's area is zeros.
    match word {
        0 => Some(ACTIVE_MIN),
        _ => (word >> 32 == !active & 0xffff_ffff).then_some(active),
    }
}

impl Leaf {
    /// Lines for the given number of data blocks: a quarter more than blocks, in case every page has a chunk to itself.
    pub fn slots_for(blocks: u32) -> u64 {
        (u64::from(blocks) * 5).div_ceil(4).max(ACTIVE_MIN)
    }

    /// Bytes of an area of `slots` lines.
    pub fn area_bytes(slots: u64) -> u64 {
        CONTROL_BYTES + slots * LINE_BYTES
    }

    /// For the table at `geometry`; [`FileMap::load`] must follow before changes.
    pub fn new(region: Arc<Region>, geometry: Geometry) -> Self {
        Leaf {
            used: AtomicBitmap::new(geometry.slots),
            claims: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            bounds: Bounds::new(geometry.slots as usize),
            move_lock: MoveLock::default(),
            active: AtomicU64::new(u64::MAX),
            wants_space: AtomicBool::new(false),
            wants_reclaim: AtomicBool::new(false),
            region,
            geometry,
        }
    }

    fn header_offset(&self, line: u64) -> u64 {
        self.geometry.area_offset + CONTROL_BYTES + line * LINE_BYTES
    }

    fn word_offset(&self, line: u64, lblk: Lblk) -> u64 {
        self.header_offset(line) + 8 + u64::from(lblk.get() % CHUNK) * 8
    }

    fn active_offset(&self, copy: u64) -> u64 {
        self.geometry.area_offset + copy
    }

    /// N as stored. It only grows, so if both copies are plausible the greater one is right: a new table has zeros, and
    /// damage may leave zeros.
    fn stored_active(&self) -> Option<u64> {
        ACTIVE_COPIES
            .iter()
            .filter_map(|&copy| decode_active(self.region.load(self.active_offset(copy))))
            .filter(|active| (ACTIVE_MIN..=self.geometry.slots).contains(active))
            .max()
    }

    /// N, read again if entries have moved since.
    #[inline]
    fn active(&self) -> u64 {
        let moves = self.move_lock.moves() & 0xffff_ffff;
        let known = self.active.load(Ordering::Relaxed);
        if known >> 32 == moves {
            return known & 0xffff_ffff;
        }
        let active = self.stored_active().unwrap_or(ACTIVE_MIN);
        if moves.is_multiple_of(2) {
            self.active.store(moves << 32 | active, Ordering::Relaxed);
        }
        active
    }

    #[inline]
    fn wrap(&self, line: u64) -> u64 {
        if line >= self.geometry.slots {
            line - self.geometry.slots
        } else {
            line
        }
    }

    /// Distance from `home` to `line`, in lines.
    fn distance(&self, home: u64, line: u64) -> u64 {
        self.wrap(line + self.geometry.slots - home)
    }

    #[inline]
    fn home(&self, key: u64) -> u64 {
        home_of(hash(key, self.geometry.seed), self.active())
    }

    /// The line that a transaction leaves `key` in.
    fn find_in(&self, tx: &dyn MapTx, key: u64) -> Option<u64> {
        self.find_with(key, |line| tx.word(self.header_offset(line)))
    }

    fn look_up(&self, ino: Inum, lblk: Lblk) -> PageWord {
        self.find(key_of(ino, lblk)).map_or(PageWord::HOLE, |line| {
            PageWord(self.region.load(self.word_offset(line, lblk)))
        })
    }

    /// The word that a transaction leaves the page.
    fn word_in(&self, tx: &dyn MapTx, ino: Inum, lblk: Lblk) -> PageWord {
        self.find_in(tx, key_of(ino, lblk))
            .map_or(PageWord::HOLE, |line| PageWord(tx.word(self.word_offset(line, lblk))))
    }

    /// How far from its home a chunk may lie.
    fn reach(&self, active: u64) -> u64 {
        let farthest = self.geometry.slots - 1;
        if active < self.geometry.slots {
            REACH.min(farthest)
        } else {
            farthest
        }
    }

    /// Lines within reach of `home` that are free at the moment.
    fn free_lines(&self, home: u64, active: u64) -> impl Iterator<Item = u64> {
        (0..=self.reach(active))
            .map(move |distance| self.wrap(home + distance))
            .filter(|&line| !self.used.is_set(line))
    }

    /// Claims the first free line from `home` on.
    fn claim_line(&self, home: u64, active: u64) -> Option<u64> {
        let line = self.free_lines(home, active).find(|&line| self.used.claim(line))?;
        self.count(1);
        // Before the header can become visible, so that no lookup stops short of it.
        self.bounds.raise(home as usize, self.distance(home, line));
        Some(line)
    }

    fn count(&self, lines: i64) {
        thread_local!(static SHARD: usize = {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            NEXT.fetch_add(1, Ordering::Relaxed) as usize % SHARDS
        });
        let before = SHARD.with(|&shard| self.claims[shard].fetch_add(lines, Ordering::Relaxed));
        if lines > 0 && before % LOOK_EVERY == 0 && self.is_crowded(self.active()) {
            self.wants_space.store(true, Ordering::Relaxed);
        }
    }

    fn lines_used(&self) -> u64 {
        let sum: i64 = self.claims.iter().map(|shard| shard.load(Ordering::Relaxed)).sum();
        sum.max(0) as u64
    }

    /// At a load of 0.3 most chunks lie at home, and the others next to it. (Lines that are yet to be split in a round
    /// are up to twice as full as the others, so the mean has to be low.)
    fn is_crowded(&self, active: u64) -> bool {
        active < self.geometry.slots && self.lines_used() * 10 > active * 3
    }

    /// Number of lines that may be in use.
    fn lines_in_reach(&self, active: u64) -> u64 {
        if active < self.geometry.slots {
            (active + REACH + 1).min(self.geometry.slots)
        } else {
            active
        }
    }

    /// Sets `key` and `words` at the first free line from its home on.
    fn move_to(&self, tx: &mut dyn MapTx, from: u64, home: u64, active: u64) -> Result<(), MapError> {
        let to = self.claim_line(home, active).ok_or(MapError::TableFull)?;
        tx.claimed(Resource::MapSlot(SlotNo::at(to)));
        for at in (0..LINE_BYTES).step_by(8) {
            let value = tx.word(self.header_offset(from) + at);
            if value != 0 {
                tx.set_word(self.header_offset(to) + at, value);
                tx.set_word(self.header_offset(from) + at, 0);
            }
        }
        tx.freed(Resource::MapSlot(SlotNo::at(from)));
        Ok(())
    }

    /// Makes line `active` a home. Does nothing if too few lines within its reach are free: each move of a record takes
    /// another line, because the one it leaves is free only after the checkpoint has moved. Chunks that already lie
    /// within that reach can stay where they are.
    fn split(&self, tx: &mut dyn MapTx, active: u64) -> Result<(), MapError> {
        let home = active - (1 << active.ilog2());
        let (mut must_move, mut may_stay) = (Vec::new(), Vec::new());
        for distance in 0..=self.bounds.lines_to_probe(home as usize, self.geometry.slots) {
            let line = self.wrap(home + distance);
            // Not the stored key: an earlier split of this record may have filled the line.
            let key = tx.word(self.header_offset(line));
            if key == 0 {
                continue;
            }
            let hash = hash(key, self.geometry.seed);
            if home_of(hash, active) == home && home_of(hash, active + 1) == active {
                let is_within = self.distance(active, line) <= self.reach(active + 1);
                if is_within { &mut may_stay } else { &mut must_move }.push(line);
            }
        }
        let moving = must_move.len() + may_stay.len();
        let free = self.free_lines(active, active + 1).take(moving).count();
        if free < must_move.len() {
            return Err(MapError::TableFull);
        }
        for (index, line) in must_move.into_iter().chain(may_stay).enumerate() {
            if index < free {
                self.move_to(tx, line, active, active + 1)?;
            } else {
                self.bounds.raise(active as usize, self.distance(active, line));
            }
        }
        Ok(())
    }

    /// A probe costs a cache miss; a scan's lines are prefetched.
    fn pages_worth_a_walk(&self) -> u64 {
        (self.lines_in_reach(self.active()) / 4 + 1) * u64::from(CHUNK)
    }

    fn entries(&self, line: u64, key: u64, visit: &mut dyn FnMut(MapEntry) -> bool) -> bool {
        let (ino, first) = (Inum::new((key >> 32) as u32), u64::from(key as u32) * u64::from(CHUNK));
        (first..first + u64::from(CHUNK))
            .take_while(|&lblk| lblk <= u64::from(u32::MAX))
            .all(|lblk| {
                let lblk = Lblk::new(lblk as u32);
                let word = PageWord(self.region.load(self.word_offset(line, lblk)));
                let slot = SlotNo::new((line * 8) as u32 + lblk.get() % CHUNK);
                word.is_hole() || visit(MapEntry { ino, lblk, word, slot })
            })
    }

    /// The defect of a line whose header is `key`, and which of its eight words to clear.
    fn fault(&self, line: u64, key: u64, active: u64) -> Option<(String, std::ops::Range<u64>)> {
        let (ino, chunk) = ((key >> 32) as u32, key as u32);
        let words = self.region.words(self.header_offset(line) + 8, CHUNK as usize);
        let word = |index: usize| PageWord(words[index].load(Ordering::Relaxed));
        let mapped = || (0..CHUNK as usize).filter(move |&index| !word(index).is_hole());
        let whole = 0..8;
        if key == 0 {
            return mapped()
                .next()
                .map(|_| (format!("line {line} has words but no key"), whole));
        }
        let first = u64::from(chunk) * u64::from(CHUNK);
        let at = format!("line {line} (inode {ino}, pages from {first} on)");
        let distance = self.distance(home_of(hash(key, self.geometry.seed), active), line);
        let last = first + mapped().last().unwrap_or(0) as u64;
        if ino == 0 || ino >= self.geometry.inodes || last > u64::from(u32::MAX) {
            return Some((format!("{at}: no such pages"), whole));
        }
        if active < self.geometry.slots && distance > REACH {
            return Some((format!("{at}: {distance} lines from where it belongs"), whole));
        }
        if mapped().next().is_none() {
            return Some((format!("{at}: maps nothing"), whole));
        }
        let page = |index| self.geometry.page(word(index));
        let index = mapped().find(|&index| !self.geometry.is_data_block(page(index)))?;
        let what = format!("{at}: names block {}, which holds no data", page(index));
        let is_last = mapped().count() == 1;
        let cleared = if is_last {
            whole
        } else {
            index as u64 + 1..index as u64 + 2
        };
        Some((what, cleared))
    }

    fn load_line(&self, line: u64, active: u64, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        let key = self.region.load(self.header_offset(line));
        if let Some((fault, _)) = self.fault(line, key, active) {
            return Err(MapError::Damaged(fault));
        }
        if key != 0 {
            self.used.set(line);
            let home = home_of(hash(key, self.geometry.seed), active);
            self.bounds.raise(home as usize, self.distance(home, line));
            self.entries(line, key, &mut |entry| {
                visit(entry);
                true
            });
        }
        Ok(())
    }

    /// The N that most lines agree with, used if both copies are damaged. The last line in use lies just after N.
    fn guessed_active(&self) -> u64 {
        let key = |line: u64| self.region.load(self.header_offset(line));
        let last = (0..self.geometry.slots).rev().find(|&line| key(line) != 0).unwrap_or(0);
        let first = last.saturating_sub(REACH).max(ACTIVE_MIN);
        // A third of the lines are used, so a long free stretch after N is unlikely.
        let end = (last + REACH).min(self.geometry.slots).max(first);
        let home = |key: u64, active: u64| home_of(hash(key, self.geometry.seed), active);
        // As N grows, homes only move up. So most lines, whose homes are the same for the first and the last N, show
        // nothing.
        struct Line {
            number: u64,
            key: u64,
        }
        let lines: Vec<Line> = (0..=last)
            .map(|number| Line {
                number,
                key: key(number),
            })
            .filter(|line| line.key != 0 && home(line.key, first) != home(line.key, end))
            .collect();
        let near = |active: u64| {
            let is_near = |line: &&Line| self.distance(home(line.key, active), line.number) < 16;
            lines.iter().filter(is_near).count()
        };
        (first..=end).max_by_key(|&active| near(active)).unwrap_or(ACTIVE_MIN)
    }
}

impl FileMap for Leaf {
    fn name(&self) -> &'static str {
        "leaf"
    }

    fn get(&self, PageId { ino, lblk }: PageId) -> PageWord {
        self.move_lock.steady(|| self.look_up(ino, lblk))
    }

    #[inline]
    fn get_many(&self, PageId { ino, lblk }: PageId, out: &mut [PageWord], cache: &TransCache) {
        let (chunk, from) = (lblk.get() / CHUNK, lblk.get() % CHUNK);
        let is_within = out.len() <= (CHUNK - from) as usize;
        if !(is_within && self.get_hinted(ino, chunk, from, out, cache)) {
            self.get_chunks(ino, lblk, out, cache);
        }
    }

    fn prefetch(&self, PageId { ino, lblk }: PageId, to_store: bool) {
        let offset = self.header_offset(self.home(key_of(ino, lblk)));
        if to_store {
            self.region.prefetch_to_store(offset);
        } else {
            self.region.prefetch(offset);
        }
    }

    fn alloc_page(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<BlockNo, MapError> {
        let neighbour =
            |lblk: Option<Lblk>| lblk.map_or(BlockNo::NONE, |lblk| self.geometry.page(self.word_in(tx, ino, lblk)));
        let (before, behind) = (neighbour(lblk.checked_previous()), neighbour(lblk.checked_next()));
        // Where the run would continue. A page overwritten twice returns to its old block.
        for block in [before.checked_next(), behind.checked_previous()].into_iter().flatten() {
            if self.geometry.is_data_block(block) && tx.claim_block(block) {
                return Ok(block);
            }
        }
        if self.word_in(tx, ino, lblk).is_hole() {
            tx.alloc_run()
        } else {
            tx.alloc_block()
        }
    }

    fn insert(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let key = key_of(ino, lblk);
        if let Some(line) = self.find_in(tx, key) {
            tx.set_word(self.word_offset(line, lblk), word.0);
            return Ok(());
        }
        let active = self.active();
        let home = home_of(hash(key, self.geometry.seed), active);
        let Some(line) = self.claim_line(home, active) else {
            self.wants_space.store(active < self.geometry.slots, Ordering::Relaxed);
            return Err(MapError::TableFull);
        };
        tx.claimed(Resource::MapSlot(SlotNo::at(line)));
        if self.distance(home, line) >= LONG_WAY && active < self.geometry.slots {
            self.wants_reclaim.store(true, Ordering::Relaxed);
        }
        tx.set_word(self.word_offset(line, lblk), word.0);
        tx.set_word(self.header_offset(line), key);
        Ok(())
    }

    fn replace(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId, word: PageWord) -> Result<(), MapError> {
        let line = self.find_in(tx, key_of(ino, lblk));
        let line =
            line.ok_or_else(|| MapError::Damaged(format!("page {lblk} of inode {ino} vanished from the table")))?;
        tx.set_word(self.word_offset(line, lblk), word.0);
        Ok(())
    }

    fn swing(&self, PageId { ino, lblk }: PageId, old: PageWord, new: PageWord) -> Option<u64> {
        let offset = self.word_offset(self.find(key_of(ino, lblk))?, lblk);
        if self.region.load(offset) != old.0 {
            return None;
        }
        self.region.store(offset, new.0);
        Some(offset)
    }

    fn remove(&self, tx: &mut dyn MapTx, PageId { ino, lblk }: PageId) -> Result<PageWord, MapError> {
        let Some(line) = self.find_in(tx, key_of(ino, lblk)) else {
            return Ok(PageWord::HOLE);
        };
        let offset = self.word_offset(line, lblk);
        let word = PageWord(tx.word(offset));
        if word.is_hole() {
            return Ok(word);
        }
        tx.set_word(offset, 0);
        if (0..CHUNK).all(|index| tx.word(self.word_offset(line, Lblk::new(index))) == 0) {
            tx.set_word(self.header_offset(line), 0);
            tx.freed(Resource::MapSlot(SlotNo::at(line)));
        }
        Ok(word)
    }

    fn release(&self, slot: SlotNo) -> bool {
        let was_set = self.used.release(u64::from(slot));
        if was_set {
            self.count(-1);
        }
        was_set
    }

    fn load(&self, threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError> {
        let active = self
            .stored_active()
            .ok_or_else(|| MapError::Damaged("the number of active lines".into()))?;
        let lines = self.lines_in_reach(active);
        let loaded = load::each_written(threads, self.table(), lines, LOAD_CHUNK, |line| {
            self.load_line(line, active, visit)
        });
        self.claims[0].store(self.used.count_used() as i64, Ordering::Relaxed);
        self.wants_space.store(self.is_crowded(active), Ordering::Relaxed);
        loaded
    }

    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let _ = self.written_lines(self.lines_in_reach(self.active())).all(|line| {
            let key = self.region.load(self.header_offset(line));
            key == 0 || self.entries(line, key, visit)
        });
    }

    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool) {
        let (first, end) = (u64::from(first), end.min(1 << 32));
        let mut within = |entry: MapEntry| {
            let wanted = entry.ino == ino && (first..end).contains(&u64::from(entry.lblk));
            !wanted || visit(entry)
        };
        if first < end && end - first <= self.pages_worth_a_walk() {
            let step = CHUNK as usize;
            for lblk in (first / u64::from(CHUNK) * u64::from(CHUNK)..end).step_by(step) {
                let key = key_of(ino, Lblk::new(lblk as u32));
                // A lookup without the lock may see a line change hands. The inode's version shows that to the caller,
                // but not here.
                let found = self.move_lock.steady(|| {
                    let mut found = Vec::new();
                    if let Some(line) = self.find(key) {
                        self.entries(line, key, &mut |entry| {
                            found.push(entry);
                            true
                        });
                    }
                    found
                });
                if !found.into_iter().all(&mut within) {
                    return;
                }
            }
            return;
        }
        // A page in mid-move must not be missed: freeing a file frees what this finds.
        let found = self.move_lock.steady_for(SCANS, || {
            let mut found = Vec::new();
            for line in self.written_lines(self.lines_in_reach(self.active())) {
                let key = self.region.load(self.header_offset(line));
                if key != 0 && key >> 32 == u64::from(ino) {
                    self.entries(line, key, &mut |entry| {
                        found.push(entry);
                        true
                    });
                }
            }
            found
        });
        let _ = found.into_iter().all(within);
    }

    fn for_runs(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry, u64) -> bool) {
        runs::walk(self, ino, PageRange::new(u64::from(first), end.min(1 << 32)), visit);
    }

    fn walk_worth(&self) -> Option<u64> {
        Some(self.pages_worth_a_walk())
    }

    fn slots(&self) -> Slots {
        Slots {
            total: self.used.len(),
            free: self.used.len() - self.used.count_used(),
        }
    }

    fn check(&self, visit: &mut dyn FnMut(MapEntry), _node: &mut dyn FnMut(BlockNo), broken: &mut dyn FnMut(Broken)) {
        let active = self.stored_active().unwrap_or_else(|| self.guessed_active());
        for copy in ACTIVE_COPIES {
            let (offset, right) = (self.active_offset(copy), encode_active(active));
            if decode_active(self.region.load(offset)) != Some(active) {
                broken(Broken {
                    affected: Affected::Nothing,
                    what: format!("the number of active lines is damaged; it is {active}"),
                    repair: vec![StoredWord::new(offset, right)],
                });
            }
        }
        let mut seen = HashMap::new();
        for line in self.written_lines(self.geometry.slots) {
            let key = self.region.load(self.header_offset(line));
            let (what, cleared) = match self.fault(line, key, active) {
                Some(fault) => fault,
                None if key == 0 => continue,
                None => match seen.insert(key, line) {
                    Some(other) => (format!("line {line} maps what line {other} maps"), 0..8),
                    None => {
                        self.entries(line, key, &mut |entry| {
                            visit(entry);
                            true
                        });
                        continue;
                    }
                },
            };
            let offset = self.header_offset(line);
            broken(Broken {
                affected: Affected::Nothing,
                what,
                repair: cleared.map(|word| StoredWord::new(offset + word * 8, 0)).collect(),
            });
        }
    }

    fn move_lock(&self) -> Option<&MoveLock> {
        Some(&self.move_lock)
    }

    fn wants_space(&self) -> bool {
        self.wants_space.load(Ordering::Relaxed)
    }

    fn wants_reclaim(&self) -> bool {
        self.wants_reclaim.load(Ordering::Relaxed) && self.wants_reclaim.swap(false, Ordering::Relaxed)
    }

    fn make_space(&self, tx: &mut dyn MapTx) -> Result<bool, MapError> {
        let first = self.active();
        let mut active = first;
        // Any split sooner or later helps a chunk that found nothing within reach: the load falls.
        while active < self.geometry.slots && active - first < BATCH && (self.wants_space() || self.is_crowded(active))
        {
            match self.split(tx, active) {
                // The splits before this one are worth their record, and free lines.
                Err(MapError::TableFull) if active != first => break,
                done => done?,
            }
            active += 1;
            if !self.is_crowded(active) && active - first >= BATCH / 2 {
                break;
            }
        }
        self.wants_space.store(self.is_crowded(active), Ordering::Relaxed);
        for copy in ACTIVE_COPIES {
            if active != first {
                tx.set_word(self.active_offset(copy), encode_active(active));
            }
        }
        Ok(active != first)
    }

    fn dram_bytes(&self) -> u64 {
        self.used.dram_bytes() + self.bounds.dram_bytes()
    }
}

impl Measured for Leaf {
    fn lines_touched(&self, PageId { ino, lblk }: PageId) -> u64 {
        let key = key_of(ino, lblk);
        let home = self.home(key);
        let distance = match self.find(key) {
            Some(line) => self.distance(home, line),
            // The next line is read before the bound.
            None => self.bounds.lines_to_probe(home as usize, self.geometry.slots).max(1),
        };
        // The bound is read unless the chunk lies at home or next to it.
        distance + 1 + u64::from(self.find(key).is_none() || distance > 1)
    }
}

#[cfg(test)]
mod tests;

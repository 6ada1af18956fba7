//! The name table: one global hash table from (directory, name) to the place of the entry (docs/design.md, "Names and
//! inodes").
//!
//! Contents: [`NameTable`]. A slot is one word that points to a directory entry and keeps 23 bits of the name's
//! hash. The entry itself holds the name, so a lookup is one probe and one comparison.
//!
//! Invariants: a slot is set and cleared in the same record as the entry it points to. A key's distance from its home
//! line never exceeds the line's bound. Slots are claimed in the DRAM map. A cleared slot returns to that map once the
//! record that clears it is durable, and the record that sets it again has a higher sequence number.
//!
//! ```text
//! bits 0..32   block of the entry      bits 32..41   its offset there, in units of 8 bytes
//! bits 41..64  top bits of the hash; they also give the home line, so loading needs no names
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::bounds::Bounds;
use ferrite_map::load::Table;
use ferrite_map::{BlockNo, Inum, MapTx, NameSlotNo, Resource, StoredWord};
use ferrite_pm::{LINE_BYTES, Region, line_trace};
use ferrite_vfs::{FileKind, FsError, Result, SpaceOf};

use crate::format::dentry;
use crate::format::layout::{BLOCK_BYTES, NAME_LINE_SLOTS, NAME_TAG_BITS, Superblock};

/// Entries of the table of freeing records. Slots that share an entry only get a sequence number larger than
/// necessary.
const SEQ_SHARDS: usize = 1024;
/// Lines, counted from its home line, within which repair considers a name to be in place.
const REPAIR_LINES: u64 = 64;
/// Lines whose entries mount examines together.
const GROUP_LINES: u64 = 64;
/// How many entries ahead mount prefetches: enough to cover the latency of the medium.
const LOOK_AHEAD: usize = 16;
/// Most entries are no longer than this.
const USUAL_ENTRY_BYTES: u64 = 40;
const TAG_SHIFT: u32 = 41;
/// The table's view of the transaction that changes it.
pub(crate) trait NameTx: MapTx {
    /// The record must be ordered after the one with this sequence number.
    fn comes_after(&mut self, seq: u64);
}

/// A name that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// The entry's inode.
    pub(crate) ino: Inum,
    /// Its kind.
    pub(crate) kind: FileKind,
    /// Pool offset of the entry.
    pub(crate) entry_offset: u64,
    /// Slot of the name table.
    pub(crate) slot: NameSlotNo,
}

/// A used slot, as stored on the medium.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) number: NameSlotNo,
    /// Pool offset of the entry it points to; `None` if that is outside the data blocks.
    pub(crate) target: Option<u64>,
    tag: u64,
}

impl Slot {
    /// The block of that entry.
    pub(crate) fn block(&self) -> Option<BlockNo> {
        self.target.map(BlockNo::of_offset)
    }
}

/// A name in a directory, hashed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key<'n> {
    /// The directory.
    pub(crate) parent: Inum,
    /// The name.
    pub(crate) name: &'n [u8],
    tag: u64,
}

/// Numbers of slots.
pub(crate) struct NameSlots {
    pub(crate) total: u64,
    /// Used or pending.
    pub(crate) used: u64,
}

/// The table of a mounted pool.
pub(crate) struct NameTable {
    region: Arc<Region>,
    offset: u64,
    lines: u64,
    seed: u64,
    first_block: u64,
    end_block: u64,
    inodes: u64,
    used: AtomicBitmap,
    bounds: Bounds,
    /// Newest record that cleared one of the slots that share this entry; indexed by slot.
    freed_seq: Box<[AtomicU64]>,
}

impl NameTable {
    pub(crate) fn new(region: Arc<Region>, superblock: &Superblock) -> Self {
        let lines = superblock.name_slots / NAME_LINE_SLOTS;
        NameTable {
            region,
            offset: superblock.name_offset,
            lines,
            seed: superblock.seed,
            first_block: superblock.first_block,
            end_block: superblock.first_block + superblock.blocks,
            inodes: superblock.inodes,
            used: AtomicBitmap::new(lines * NAME_LINE_SLOTS),
            bounds: Bounds::new(lines as usize),
            freed_seq: (0..SEQ_SHARDS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn home(&self, tag: u64) -> u64 {
        (tag * self.lines) >> NAME_TAG_BITS
    }

    /// Pool offset of the entry that a slot's word points to, if that is possible.
    fn target(&self, word: u64) -> Option<u64> {
        let block = word & u64::from(u32::MAX);
        let within = (word >> 32 & 0x1ff) * 8;
        (self.first_block..self.end_block)
            .contains(&block)
            .then_some(block * BLOCK_BYTES + within)
    }

    /// Reads the whole table: which slots are used, and how far keys are from home. Called once, at mount.
    pub(crate) fn load(&self) {
        for line in self.region.written_entries(self.offset, 0..self.lines, LINE_BYTES) {
            let words = self.region.words(self.offset + line * 64, NAME_LINE_SLOTS as usize);
            for (index, word) in words.iter().enumerate() {
                let word = word.load(Ordering::Relaxed);
                if word != 0 {
                    self.used.set(line * NAME_LINE_SLOTS + index as u64);
                    let home = self.home(word >> TAG_SHIFT);
                    self.bounds
                        .raise(home as usize, (line + self.lines - home) % self.lines);
                }
            }
        }
    }

    /// The search key for `name` in directory `parent`. Starts loading its home line.
    pub(crate) fn key<'n>(&self, parent: Inum, name: &'n [u8]) -> Key<'n> {
        let tag = hash(self.seed, parent, name) >> TAG_SHIFT;
        self.region.prefetch(self.offset + self.home(tag) * 64);
        Key { parent, name, tag }
    }

    /// Finds the entry of `key`; the caller holds the directory's lock.
    pub(crate) fn find(&self, key: &Key<'_>) -> Result<Option<Found>> {
        let &Key { parent, name, tag } = key;
        let home = self.home(tag);
        let mut line = home;
        for _ in 0..=self.bounds.lines_to_probe(home as usize, self.lines) {
            let words = self.region.words(self.offset + line * 64, NAME_LINE_SLOTS as usize);
            for (index, word) in words.iter().enumerate() {
                let word = word.load(Ordering::Acquire);
                if word == 0 || word >> TAG_SHIFT != tag {
                    continue;
                }
                let Some(entry_offset) = self.target(word) else {
                    continue;
                };
                if let Some((ino, kind)) = dentry::read_if(&self.region, entry_offset, parent, name)? {
                    if u64::from(ino) >= self.inodes {
                        let what =
                            format!("directory entry at offset {entry_offset}: names inode {ino}, which cannot exist");
                        return Err(FsError::damaged(None, what));
                    }
                    let slot = NameSlotNo::at(line * NAME_LINE_SLOTS + index as u64);
                    return Ok(Some(Found {
                        ino,
                        kind,
                        entry_offset,
                        slot,
                    }));
                }
            }
            line = if line + 1 == self.lines { 0 } else { line + 1 };
        }
        Ok(None)
    }

    /// Adds a name that points to `entry_offset`.
    pub(crate) fn insert(&self, tx: &mut impl NameTx, key: &Key<'_>, entry_offset: u64) -> Result<()> {
        let tag = key.tag;
        let home = self.home(tag);
        for distance in 0..self.lines {
            let line = (home + distance) % self.lines;
            for index in 0..NAME_LINE_SLOTS {
                let slot = line * NAME_LINE_SLOTS + index;
                if !self.used.is_set(slot) && self.used.claim(slot) {
                    tx.claimed(Resource::NameSlot(NameSlotNo::at(slot)));
                    if !is_seeded(Bug::NameSlotUnordered) {
                        tx.comes_after(self.freed_seq[slot as usize % SEQ_SHARDS].load(Ordering::Relaxed));
                    }
                    // Before the word can become visible, so that no lookup stops too early to find it.
                    self.bounds.raise(home as usize, distance);
                    tx.set_word(self.offset + slot * 8, word_for(entry_offset, tag));
                    return Ok(());
                }
            }
        }
        Err(FsError::NoSpace(SpaceOf::Names))
    }

    /// Removes the name in `slot`.
    pub(crate) fn clear(&self, tx: &mut impl NameTx, slot: NameSlotNo) {
        tx.set_word(self.offset + u64::from(slot) * 8, 0);
        tx.freed(Resource::NameSlot(slot));
    }

    /// Notes that record `seq` cleared `slot`; before the slot is returned.
    pub(crate) fn note_freed(&self, slot: NameSlotNo, seq: u64) {
        let freed = &self.freed_seq[slot.index() % SEQ_SHARDS];
        line_trace::line("names freed", freed);
        freed.fetch_max(seq, Ordering::Relaxed);
    }

    /// Returns a slot to the free map; false if it was not in use.
    pub(crate) fn release(&self, slot: NameSlotNo) -> bool {
        self.used.release(u64::from(slot))
    }

    /// How many slots there are.
    pub(crate) fn counts(&self) -> NameSlots {
        NameSlots {
            total: self.used.len(),
            used: self.used.count_used(),
        }
    }

    /// DRAM used, in bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        self.used.dram_bytes() + self.bounds.dram_bytes() + (SEQ_SHARDS * size_of::<AtomicU64>()) as u64
    }

    /// For repair: the words that the table must hold so that exactly these names (directory, name, place of the entry)
    /// are found, where they differ from the stored ones. Slots that are right stay where they are. Fails if the table
    /// is full.
    pub(crate) fn rebuilt<'n>(
        &self,
        wanted: impl Iterator<Item = (Inum, std::borrow::Cow<'n, [u8]>, u64)>,
    ) -> Option<Vec<StoredWord>> {
        struct Missing {
            first: u64,
            word: u64,
        }
        let slots = self.lines * NAME_LINE_SLOTS;
        let place = |slot: u64| self.offset + slot * 8;
        let stored = |slot: u64| self.region.load(place(slot));
        let mut kept = vec![false; slots as usize];
        let mut missing = Vec::new();
        for (dir, name, offset) in wanted {
            let tag = hash(self.seed, dir, &name) >> TAG_SHIFT;
            let word = word_for(offset, tag);
            let first = self.home(tag) * NAME_LINE_SLOTS;
            let mut near = (0..(REPAIR_LINES * NAME_LINE_SLOTS).min(slots)).map(|step| (first + step) % slots);
            match near.find(|&slot| stored(slot) == word && !kept[slot as usize]) {
                Some(slot) => kept[slot as usize] = true,
                None => missing.push(Missing { first, word }),
            }
        }
        let mut changes: Vec<StoredWord> = (0..slots)
            .filter(|&slot| stored(slot) != 0 && !kept[slot as usize])
            .map(|slot| StoredWord::new(place(slot), 0))
            .collect();
        for Missing { first, word } in missing {
            let slot = (0..slots)
                .map(|step| (first + step) % slots)
                .find(|&slot| !kept[slot as usize])?;
            kept[slot as usize] = true;
            changes.retain(|cleared| cleared.offset != place(slot));
            changes.push(StoredWord::new(place(slot), word));
        }
        Some(changes)
    }

    /// For a pool that grows: the words of `larger`, another table of the same pool that is empty, with all names of
    /// this one. False if there is no space.
    pub(crate) fn rehash_into(&self, larger: &NameTable, put: &mut dyn FnMut(StoredWord)) -> bool {
        let used = self
            .region
            .written_entries(self.offset, 0..self.lines, LINE_BYTES)
            .flat_map(|line| self.used_in(line..line + 1));
        for (_, word) in used {
            let home = larger.home(word >> TAG_SHIFT) * NAME_LINE_SLOTS;
            let slots = larger.lines * NAME_LINE_SLOTS;
            let mut free = (0..slots).map(|step| (home + step) % slots);
            let Some(slot) = free.find(|&slot| larger.used.claim(slot)) else {
                return false;
            };
            put(StoredWord::new(larger.offset + slot * 8, word));
        }
        true
    }

    /// Visits every used slot with the pool offset that its word points to (`None` if outside the data blocks). For
    /// fsck.
    pub(crate) fn for_each(&self, visit: &mut dyn FnMut(NameSlotNo, Option<u64>)) {
        self.region
            .written_entries(self.offset, 0..self.lines, LINE_BYTES)
            .flat_map(|line| self.used_in(line..line + 1))
            .for_each(|(slot, word)| visit(slot, self.target(word)));
    }

    /// Used slots of the given lines, with their words.
    fn used_in(&self, lines: Range<u64>) -> impl Iterator<Item = (NameSlotNo, u64)> {
        (lines.start * NAME_LINE_SLOTS..lines.end * NAME_LINE_SLOTS)
            .map(|slot| (NameSlotNo::at(slot), self.region.load(self.offset + slot * 8)))
            .filter(|&(_, word)| word != 0)
    }

    /// The table on the medium, in units of `groups` groups.
    pub(crate) fn table_of_groups(&self, groups: u64) -> Table<'_> {
        Table::of(&self.region, self.offset, groups * GROUP_LINES * LINE_BYTES)
    }

    /// The groups for [`Self::each_of_group`], except those in parts of a sparse pool where nothing was ever stored.
    pub(crate) fn written_groups(&self) -> impl Iterator<Item = u64> + use<'_> {
        self.region
            .written_entries(self.offset, 0..self.groups(), GROUP_LINES * LINE_BYTES)
    }

    /// How many groups there are for [`Self::each_of_group`].
    pub(crate) fn groups(&self) -> u64 {
        self.lines.div_ceil(GROUP_LINES)
    }

    /// Visits every used slot of a group. For mount, which examines all entries in any order: they are prefetched
    /// before they are visited.
    pub(crate) fn each_of_group(&self, group: u64, mut visit: impl FnMut(Slot)) {
        let first = group * GROUP_LINES;
        let slots: Vec<Slot> = self
            .used_in(first..(first + GROUP_LINES).min(self.lines))
            .map(|(number, word)| Slot {
                number,
                target: self.target(word),
                tag: word >> TAG_SHIFT,
            })
            .collect();
        for (index, &slot) in slots.iter().enumerate() {
            let ahead = if index == 0 {
                1..LOOK_AHEAD
            } else {
                LOOK_AHEAD..LOOK_AHEAD + 1
            };
            for &Slot { target, .. } in ahead.filter_map(|step| slots.get(index + step)) {
                let Some(offset) = target else { continue };
                self.region.prefetch(offset);
                // The entry may reach into the next line; and the header of its block is read to find the directory.
                self.region.prefetch(offset + USUAL_ENTRY_BYTES);
                self.region.prefetch(offset / BLOCK_BYTES * BLOCK_BYTES);
            }
            visit(slot);
        }
    }

    /// Whether a slot may lead to an entry of this directory and name.
    pub(crate) fn fits(&self, slot: &Slot, parent: Inum, name: &[u8]) -> bool {
        slot.tag == hash(self.seed, parent, name) >> TAG_SHIFT
    }
}

fn word_for(entry_offset: u64, tag: u64) -> u64 {
    (entry_offset / BLOCK_BYTES) | ((entry_offset % BLOCK_BYTES / 8) << 32) | (tag << TAG_SHIFT)
}

/// Hash of a name in its directory: multiply and fold, eight bytes per step.
fn hash(seed: u64, parent: Inum, name: &[u8]) -> u64 {
    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    }
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = fold(
        seed ^ K,
        u64::from(parent) << 8 ^ name.len() as u64 ^ 0xd1b5_4a32_d192_ed03,
    );
    for chunk in name.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = fold(state ^ u64::from_le_bytes(word), K) ^ state.rotate_left(29);
    }
    fold(state ^ seed, 0xa076_1d64_78bd_642f)
}

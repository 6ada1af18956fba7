//! The name table checked against the directories: each used slot is followed to its entry, and the entry to its inode.
//!
//! Contents: [`Tables::judge_names`], which runs once inodes and mapping are loaded. Entries do not lie in the
//! order of their slots, so they are prefetched, on several threads. Besides the tables it needs 4 bytes an inode and a
//! bit a block while it runs.
//!
//! Invariants: an entry counts as found for the directory whose block it is in. A directory for which fewer or more are
//! found than it counts has names that lookups miss, whichever slots are to blame. An inode that has a name is never
//! marked free in DRAM, whatever its own words contain.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{BlockNo, Inum, load};
use ferrite_pm::zeroed;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{LOAD_THREADS, Tables};
use crate::audit::rules::names as rules;
use crate::audit::wrong::{SlotWrong, Wrong};
use crate::format::dentry;
use crate::health::quarantine::Quarantine;
use crate::space::names::Slot;

/// Groups of slots that a thread takes at a time: a millisecond's work, so that less work than that does not wait for a
/// thread to start.
const CHUNK_GROUPS: u64 = 64;

/// Entries found in one chunk, by directory. Each thread counts separately: with an atomic operation an entry, each
/// would wait for the last.
type Found = FxHashMap<Inum, u32>;

struct Judge<'t, 'm, 'd> {
    tables: &'t Tables<'m>,
    /// Entries found, by directory.
    found: Box<[AtomicU32]>,
    /// Blocks known to be mapped as their header says.
    sound_blocks: AtomicBitmap,
    /// Blocks whose damaged header was reported.
    told_blocks: Mutex<FxHashSet<BlockNo>>,
    quarantine: Mutex<&'d mut Quarantine>,
}

impl Tables<'_> {
    /// Follows all names; `dirs` are the sound directories with the entries that each counts.
    pub(super) fn judge_names(&self, dirs: &[(Inum, u32)], quarantine: &mut Quarantine) {
        let judge = Judge {
            tables: self,
            found: zeroed(self.superblock.inodes as usize),
            sound_blocks: AtomicBitmap::new(self.superblock.blocks),
            told_blocks: Mutex::default(),
            quarantine: Mutex::new(quarantine),
        };
        let groups = self.names.groups();
        let table = self.names.table_of_groups(CHUNK_GROUPS);
        let Ok(()) = load::each_written(LOAD_THREADS, table, groups.div_ceil(CHUNK_GROUPS), 1, |chunk| {
            judge.chunk(chunk * CHUNK_GROUPS..groups.min((chunk + 1) * CHUNK_GROUPS));
            Ok::<(), Infallible>(())
        });
        for &(dir, counted) in dirs {
            let led = judge.found[dir.index()].load(Ordering::Relaxed);
            if let Some(wrong) = rules::count(dir, counted, led) {
                judge.quarantine(&wrong);
            }
        }
    }
}

impl Judge<'_, '_, '_> {
    fn chunk(&self, groups: Range<u64>) {
        let mut found = Found::default();
        for group in groups {
            self.tables.names.each_of_group(group, |slot| {
                if let Err(what) = self.follow(&slot, &mut found) {
                    let number = slot.number;
                    self.quarantine(&Wrong::Slot { number, what });
                }
            });
        }
        for (dir, entries) in found {
            if let Some(total) = self.found.get(dir.index()) {
                total.fetch_add(entries, Ordering::Relaxed);
            }
        }
    }

    fn quarantine(&self, wrong: &Wrong) {
        self.tables.quarantine(wrong, &mut self.quarantine.lock());
    }

    /// Checks what a slot leads to; an error means that the slot leads to the wrong place. Other damage is quarantined.
    fn follow(&self, slot: &Slot, found: &mut Found) -> Result<(), SlotWrong> {
        let tables = self.tables;
        let led = rules::follow(tables.view(), tables.names, slot, |block| self.owner(block))?;
        let dir = led.dir;
        *found.entry(dir).or_default() += 1;
        let entry = match led.entry {
            Ok(entry) => entry,
            Err(wrong) => {
                self.quarantine(&wrong);
                return Ok(());
            }
        };
        if !led.has_header
            && let Some(block) = slot.block()
            && self.told_blocks.lock().insert(block)
        {
            self.quarantine(&Wrong::NamedBlock { dir, block });
        }
        let ino = entry.ino;
        if !tables.view().is_ino(ino) {
            return Err(SlotWrong::NoInode { ino });
        }
        if !tables.inode_map.is_set(u64::from(ino)) {
            self.keep_named(ino, dir);
        }
        Ok(())
    }

    /// The rule's result, which is computed once per block.
    fn owner(&self, block: BlockNo) -> Result<Option<Inum>, SlotWrong> {
        let superblock = self.tables.superblock;
        let index = u64::from(block) - superblock.first_block;
        if self.sound_blocks.is_set(index) {
            let offset = superblock.block_offset(block);
            return Ok(Some(dentry::header_dir(self.tables.region, offset)));
        }
        let owner = rules::owner(self.tables.view(), block)?;
        if owner.is_some() {
            self.sound_blocks.set(index);
        }
        Ok(owner)
    }

    /// An inode that looks free or never used, and has a name: it was wiped. No other inode gets its number or the
    /// blocks it may have owned.
    fn keep_named(&self, ino: Inum, dir: Inum) {
        if self.tables.inode_map.claim(u64::from(ino)) {
            self.quarantine(&Wrong::NamedAndFree { ino, dir });
        }
    }
}

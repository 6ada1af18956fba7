//! The name table held against the directories: each used slot is followed to its entry, and the entry to its inode.
//!
//! What lives here: [`Tables::judge_names`], which runs once inodes and mapping are loaded. Entries lie in no order
//! behind the slots, so they are loaded ahead, on several threads. What it needs besides the tables is 4 bytes an inode
//! and a bit a block, until it is done.
//!
//! Invariants: an entry counts as found for the directory whose block it is in. A directory of which fewer or more are
//! found than it counts has names that lookups miss, whichever slots are to blame. An inode that has a name is never
//! free in the books, whatever its own words say.

use ferrite_map::PageId;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_vfs::FsError;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{LOAD_THREADS, Tables};
use crate::format::dentry::{self, FIRST_ENTRY};
use crate::format::layout::BLOCK_BYTES;
use crate::health::damage::Damage;
use crate::space::names::Slot;

/// Groups of slots that a thread takes at a time: a millisecond's work, so that what is less does not wait for a thread
/// to start.
const CHUNK_GROUPS: u64 = 64;

/// Entries found in one chunk, by directory. Threads count on their own: an atomic operation an entry would have each
/// wait for the last.
type Found = FxHashMap<u32, u32>;

struct Judge<'t, 'm, 'd> {
    tables: &'t Tables<'m>,
    /// Entries found, by directory.
    found: Vec<AtomicU32>,
    /// Blocks known to be mapped as what their header says.
    sound_blocks: AtomicBitmap,
    /// Blocks whose damaged header was told.
    told_blocks: Mutex<FxHashSet<u32>>,
    damage: Mutex<&'d mut Damage>,
}

impl Tables<'_> {
    /// Follows all names; `dirs` are the sound directories with the entries that each counts.
    pub(super) fn judge_names(&self, dirs: &[(u32, u32)], damage: &mut Damage) {
        let judge = Judge {
            tables: self,
            found: (0..self.superblock.inodes).map(|_| AtomicU32::new(0)).collect(),
            sound_blocks: AtomicBitmap::new(self.superblock.blocks),
            told_blocks: Mutex::default(),
            damage: Mutex::new(damage),
        };
        let groups = self.names.groups();
        let Ok(()) = ferrite_map::load::each(LOAD_THREADS, groups.div_ceil(CHUNK_GROUPS), 1, |chunk| {
            judge.chunk(chunk * CHUNK_GROUPS..groups.min((chunk + 1) * CHUNK_GROUPS));
            Ok::<(), Infallible>(())
        });
        for &(dir, counted) in dirs {
            let found = judge.found[dir as usize].load(Ordering::Relaxed);
            if found != counted {
                let mut damage = judge.damage.lock();
                damage.lose_names(dir);
                damage.stop(format!(
                    "directory {dir}: counts {counted} entries, names lead to {found}"
                ));
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
                    self.damage.lock().stop(format!("name slot {}: {what}", slot.number));
                }
            });
        }
        for (dir, entries) in found {
            if let Some(total) = self.found.get(dir as usize) {
                total.fetch_add(entries, Ordering::Relaxed);
            }
        }
    }

    /// Looks at what a slot leads to; the error says that it is not where the slot should lead. What else is damaged is
    /// noted.
    fn follow(&self, slot: &Slot, found: &mut Found) -> Result<(), String> {
        let Some(offset) = slot.target else {
            return Err("points outside the data blocks".into());
        };
        let block = (offset / BLOCK_BYTES) as u32;
        if offset % BLOCK_BYTES < FIRST_ENTRY {
            return Err(format!("points to the header of block {block}"));
        }
        let region = self.tables.region;
        let owner = self.owner(block)?;
        // Without a header it is the entry that says whose it is.
        let dir = owner.unwrap_or_else(|| region.load(offset + 8) as u32);
        let entry = match (dentry::read(region, offset, dir), owner) {
            (Ok(entry), _) => entry,
            (Err(error), Some(dir)) if self.may_start_at(offset) => {
                // The slot is right, so it is known what is damaged: a name of this directory.
                let mut damage = self.damage.lock();
                damage.note(format!("directory {dir}: {}", text(error)));
                damage.lose_names(dir);
                *found.entry(dir).or_default() += 1;
                return Ok(());
            }
            (Err(error), _) => return Err(text(error)),
        };
        if !self.tables.names.fits(slot, dir, entry.name()) {
            return Err(format!("is not the one of the entry it points to, at offset {offset}"));
        }
        *found.entry(dir).or_default() += 1;
        if owner.is_none() && self.told_blocks.lock().insert(block) {
            let what = format!("directory {dir}: block {block} has a damaged header");
            self.damage.lock().note(what);
        }
        if u64::from(entry.ino) >= self.tables.superblock.inodes {
            return Err(format!("leads to inode {}, which cannot be", entry.ino));
        }
        if !self.tables.inode_map.is_set(u64::from(entry.ino)) {
            self.keep_named(entry.ino, dir);
        }
        Ok(())
    }

    /// Whether an entry that is in use begins at `offset` of a directory's block, as far as the block can be parsed.
    fn may_start_at(&self, offset: u64) -> bool {
        let mut at = offset / BLOCK_BYTES * BLOCK_BYTES + FIRST_ENTRY;
        while at < offset {
            match dentry::head(self.tables.region, at) {
                Ok(head) => at += head.len_bytes,
                Err(_) => return true,
            }
        }
        at == offset && dentry::head(self.tables.region, at).map_or(true, |head| head.ino != 0)
    }

    /// The directory that `block` is a block of; `None` if its header is damaged, an error if it is somebody else's.
    fn owner(&self, block: u32) -> Result<Option<u32>, String> {
        let superblock = self.tables.superblock;
        let (offset, index) = (
            superblock.block_offset(block),
            u64::from(block) - superblock.first_block,
        );
        if self.sound_blocks.is_set(index) {
            return Ok(Some(dentry::header_dir(self.tables.region, offset)));
        }
        let Ok((dir, lblk)) = dentry::read_block_header(self.tables.region, offset) else {
            return Ok(None);
        };
        // What a block held stays in it when it is freed.
        if self.tables.map.get(PageId::new(dir, lblk)).page() != block {
            return Err(format!("points into block {block}, which is no directory's"));
        }
        self.sound_blocks.set(index);
        Ok(Some(dir))
    }

    /// An inode that looks free or never used, and has a name: it was wiped. Its number is not given to another, and
    /// neither is what it may have owned.
    fn keep_named(&self, ino: u32, dir: u32) {
        if self.tables.inode_map.claim(u64::from(ino)) {
            let mut damage = self.damage.lock();
            damage.spoil_inode(ino, "has a name, but looks free");
            damage.stop(format!("inode {ino}: looks free, but has a name in directory {dir}"));
        }
    }
}

fn text(error: FsError) -> String {
    match error {
        FsError::Damaged(damage) => damage.to_string(),
        FsError::Io(what) => what,
        other => other.to_string(),
    }
}

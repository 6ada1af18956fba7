//! Repair: the changes that make a damaged pool sound again without losing anything that can be saved.
//!
//! Contents: [`repair`] and its state ([`Repair`]); its phases by file: [`inodes`]; the [`mapping`] and the
//! [`hashed_keys`] of HashFS; [`logs`]; [`blocks`]; directories and their entries ([`dirs`]); names, link counts and
//! `lost+found` ([`links`]). It works on the raw tables in a private mapping and ends with a list of words
//! ([`Rewrite`]); `rewrite.rs` stores them in the pool.
//!
//! Invariants: only structures that fail their checks are dropped; content that may be wrong never stays where a
//! program would take it for right, it goes to `lost+found` as `damaged-INODE`. A pool that comes out of [`repair`] has
//! been checked like any other, so a second repair finds nothing.

mod blocks;
mod dirs;
mod hashed_keys;
mod inodes;
mod links;
mod logs;
mod mapping;

use std::sync::Arc;

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{BlockNo, FileMap, Inum, Lblk, MapError, MapTx, PageId, PageWord, Resource, SlotNo, StoredWord};
use ferrite_pm::Region;
use ferrite_vfs::FileKind;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::audit::boot::{StaleBoot, stale_boot};
use crate::audit::fsck::{self, Progress};
use crate::audit::owner::{MAYBE_COPIED, may_be_live_copy};
use crate::audit::rewrite::{self, Rewrite};
use crate::audit::rules::{View, outcomes as outcome_rules, pages, superblock as superblock_rules};
use crate::audit::wrong::{BlockWrong, Wrong};
use crate::error::EngineError;
use crate::format::inode::{INODE_WORDS, Inode};
use crate::format::layout::{
    BLOCK_BYTES, CONTROL_BOOT, CONTROL_CHECKPOINT, CONTROL_OWNER, CONTROL_REPAIR, CONTROL_STATE, STATE_CLEAN,
    Superblock, decode_checkpoint,
};
use crate::format::outcome::ENTRY_BYTES;
use crate::journal::replay::{self, Ended, Losses};
use crate::options::{FsckOptions, Mended, RepairReport};

/// Most passes of a repair if something is left; one is enough unless its own changes meet damage.
const ROUNDS: usize = 3;
/// Moves of the mapping's entries that one change may need.
const MOVES_MAX: usize = 64;
/// Checks of the mapping; each may uncover damage that the last one's repair exposed.
const CURES_MAX: usize = 20;

/// The state of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Sound,
    /// Its checksum is wrong, or its content makes no sense.
    Damaged,
}

/// A mapped block of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DirBlock {
    dir: Inum,
    lblk: Lblk,
    block: BlockNo,
}

/// An entry that names an inode.
#[derive(Debug, Clone, Copy)]
struct Named {
    dir: Inum,
    ino: Inum,
    /// Pool offset.
    at: u64,
    kind: FileKind,
}

/// A phase: its name, and its function.
type Phase = (&'static str, fn(&mut Repair));

struct Repair {
    region: Arc<Region>,
    superblock: Superblock,
    map: Arc<dyn FileMap>,
    /// Blocks that have an owner.
    owned: AtomicBitmap,
    state: Vec<State>,
    /// Pages mapped, by inode, and the end of the last.
    pages: Vec<u32>,
    end: Vec<u64>,
    /// Where names lead, by block.
    pointed: FxHashMap<BlockNo, Vec<u64>>,
    /// Blocks of logs and attributes, collected when a free block is first needed: they get owners after the mapping.
    beside: Option<FxHashSet<BlockNo>>,
    dir_blocks: Vec<DirBlock>,
    entries: Vec<Named>,
    /// Inodes whose content may be wrong.
    spoiled: FxHashSet<Inum>,
    lost_found: Option<Inum>,
    /// Data is compared with its checksums.
    reads_data: bool,
    touched: FxHashMap<u64, u64>,
    report: RepairReport,
}

/// Works out how to repair the pool in `region`, a private mapping, which is changed in the process. `progress` gets
/// phase, done, total. Fails only if there is no pool, or part of it cannot be read: then its content is unknown.
pub fn repair(region: Region, progress: Progress<'_>) -> Result<(RepairReport, Rewrite), EngineError> {
    repair_with(region, FsckOptions::default(), progress)
}

/// As [`repair`], with options.
pub fn repair_with(
    region: Region,
    options: FsckOptions,
    progress: Progress<'_>,
) -> Result<(RepairReport, Rewrite), EngineError> {
    let superblock = Superblock::find(&region)?;
    if superblock.unknown_ro_compat() != 0 {
        return Err(EngineError::ReadOnlyFeatures(superblock.unknown_ro_compat()));
    }
    let basis = rewrite::basis(&region);
    let mut report = RepairReport::default();
    let checkpoint = mend_journal(&region, &superblock, &mut report);
    let clear_boot = mend_boot(&region, &mut report);
    let clear_owner = mend_owner(&region, &mut report);
    let replayed = replay::replay(&region, &superblock, Losses::Accept, Ended::of(&region));
    region.check()?;
    let replayed = replayed?;
    report.mended.extend(replayed.lost.into_iter().map(|what| Mended {
        phase: "journal",
        what,
        action: "given up: the records that are left were replayed",
        loss: true,
    }));
    let region = Arc::new(region);
    let (mut report, touched) = repair_until_sound(&region, &superblock, options, report, progress);
    // Bytes that cannot be read look like zeros, which a repair would make permanent.
    region.check()?;
    report.after.replayed_records = replayed.records;
    report.findings = report.mended.iter().map(Mended::finding).collect();
    let mut words: Vec<StoredWord> = touched
        .into_iter()
        .map(|(offset, before)| (before, StoredWord::new(offset, region.load(offset))))
        .filter(|&(before, now)| before != now.value)
        .map(|(_, now)| now)
        .collect();
    words.sort_unstable();
    let rewrite = Rewrite {
        words,
        checkpoint,
        clear_boot,
        clear_owner,
        basis,
    };
    Ok((report, rewrite))
}

/// Drops a rewrite that cannot be finished, and a checkpoint that cannot be read. Returns the checkpoint to store
/// instead.
fn mend_journal(region: &Region, superblock: &Superblock, report: &mut RepairReport) -> Option<u64> {
    if let Err(error) = rewrite::finish(region, superblock) {
        report.mended.push(Mended {
            phase: "journal",
            what: error.cause(),
            action: "given up",
            loss: true,
        });
        region.store(CONTROL_REPAIR, 0);
    }
    if decode_checkpoint(region.load(CONTROL_CHECKPOINT)).is_some() {
        return None;
    }
    let checkpoint = replay::checkpoint_above_all(region, superblock);
    report.mended.push(Mended {
        phase: "journal",
        what: "the checkpoint is damaged".into(),
        action: "no record is replayed, since stale ones cannot be told",
        // After a clean unmount there was nothing to replay.
        loss: region.load(CONTROL_STATE) != STATE_CLEAN,
    });
    region.store(CONTROL_CHECKPOINT, checkpoint);
    Some(checkpoint)
}

/// Clears the mark of a boot that is over, if there is one.
fn mend_boot(region: &Region, report: &mut RepairReport) -> bool {
    let Some(stale) = stale_boot(region) else {
        return false;
    };
    let power_lost = stale == StaleBoot::PowerLost;
    report.mended.push(Mended {
        phase: "control",
        what: stale.what().into(),
        action: match power_lost {
            true => "accepted: the pool is what the medium has of it",
            false => "taken for clean",
        },
        loss: power_lost,
    });
    region.store(CONTROL_BOOT, 0);
    true
}

/// Clears the mark of another file's owner, if there is one.
fn mend_owner(region: &Region, report: &mut RepairReport) -> bool {
    let maybe_copied = may_be_live_copy(region);
    if maybe_copied {
        report.mended.push(Mended {
            phase: "control",
            what: MAYBE_COPIED.into(),
            action: "accepted: the pool is what was copied of it",
            loss: true,
        });
        region.store(CONTROL_OWNER, 0);
    }
    maybe_copied
}

/// Repairs and checks until a check finds nothing, or [`ROUNDS`] are over. Returns also the original value of each
/// changed word.
fn repair_until_sound(
    region: &Arc<Region>,
    superblock: &Superblock,
    options: FsckOptions,
    mut report: RepairReport,
    progress: Progress<'_>,
) -> (RepairReport, FxHashMap<u64, u64>) {
    let mut touched = FxHashMap::default();
    for round in 0..ROUNDS {
        let mut repair = Repair::new(Arc::clone(region), superblock.clone(), report, touched);
        repair.reads_data = options.data;
        repair.superblocks();
        repair.run(progress);
        (report, touched) = (repair.report, repair.touched);
        let copies = superblock_rules::copies(region, superblock);
        let findings = copies.iter().map(Wrong::finding).collect();
        report.after = fsck::check(Arc::clone(region), superblock.clone(), options, findings, progress);
        if report.after.findings.is_empty() || round + 1 == ROUNDS {
            break;
        }
    }
    (report, touched)
}

impl Repair {
    fn new(region: Arc<Region>, superblock: Superblock, report: RepairReport, touched: FxHashMap<u64, u64>) -> Self {
        let inodes = superblock.inodes as usize;
        Repair {
            map: superblock
                .mapping
                .open(Arc::clone(&region), superblock.map_geometry())
                .into(),
            owned: AtomicBitmap::new(superblock.blocks),
            state: vec![State::Free; inodes],
            pages: vec![0; inodes],
            end: vec![0; inodes],
            pointed: FxHashMap::default(),
            beside: None,
            dir_blocks: Vec::new(),
            entries: Vec::new(),
            spoiled: FxHashSet::default(),
            lost_found: None,
            reads_data: false,
            region,
            superblock,
            touched,
            report,
        }
    }

    fn run(&mut self, progress: Progress<'_>) {
        let phases: [Phase; 13] = [
            ("inodes", Repair::inodes),
            ("wiped inodes", Repair::wiped_inodes),
            ("mapping", Repair::mapping),
            ("logs", Repair::logs),
            ("attributes", Repair::attributes),
            ("blocks", Repair::blocks),
            ("directories", Repair::directories),
            ("rebuilding", Repair::rebuild),
            ("data", Repair::data),
            ("entries", Repair::entries),
            ("connecting", Repair::connect),
            ("counts", Repair::counts),
            ("outcomes", Repair::outcomes),
        ];
        let total = phases.len() as u64 + 1;
        for (done, (name, phase)) in phases.into_iter().enumerate() {
            progress(name, done as u64, total);
            phase(self);
        }
        progress("names", total - 1, total);
        self.names();
    }

    /// Records a change that was made.
    fn mended(&mut self, phase: &'static str, what: impl ToString, action: &'static str, loss: bool) {
        self.report.mended.push(Mended {
            phase,
            what: what.to_string(),
            action,
            loss,
        });
    }

    /// Stores a word, and remembers its original value.
    fn set(&mut self, offset: u64, value: u64) {
        let before = self.region.load(offset);
        if before != value {
            self.touched.entry(offset).or_insert(before);
            self.region.store(offset, value);
        }
    }

    /// Forgets damaged outcomes: a change that is repeated with such a token is made again.
    fn outcomes(&mut self) {
        let region = Arc::clone(&self.region);
        let superblock = self.superblock.clone();
        for wrong in outcome_rules::damaged(&region, &superblock) {
            if let Wrong::Outcome { slot } = wrong {
                let first = superblock.dedup_slot_offset(slot);
                (0..ENTRY_BYTES / 8).for_each(|word| self.set(first + word * 8, 0));
                self.mended("outcomes", wrong, "forgotten", true);
            }
        }
    }

    fn view(&self) -> View<'_> {
        View {
            region: &self.region,
            superblock: &self.superblock,
            map: &*self.map,
        }
    }

    fn load(&self, ino: Inum) -> Inode {
        self.view().inode(ino)
    }

    fn put(&mut self, ino: Inum, inode: &mut Inode) {
        inode.set_crc(inode.checksum(ino));
        let offset = self.superblock.inode_offset(ino);
        for index in 0..INODE_WORDS {
            self.set(offset + index as u64 * 8, inode.words[index]);
        }
    }

    /// Turns an inode into a free one.
    fn clear_inode(&mut self, ino: Inum) {
        let mut empty = self.load(ino).reborn();
        self.put(ino, &mut empty);
        self.state[ino.index()] = State::Free;
    }

    fn is_ino(&self, ino: Inum) -> bool {
        self.view().is_ino(ino)
    }

    /// Whether an inode exists, sound or to be rebuilt: a wiped one counts, if something refers to it.
    fn has(&self, ino: Inum) -> bool {
        self.is_ino(ino) && self.state[ino.index()] != State::Free
    }

    /// Records an owner of `block`; fails if the block cannot have it.
    fn own(&self, block: BlockNo) -> Result<(), BlockWrong> {
        self.view().own(block, |block| self.claim(block))
    }

    fn claim(&self, block: BlockNo) -> bool {
        self.owned.claim(u64::from(block) - self.superblock.first_block)
    }

    fn take_block(&self) -> Option<BlockNo> {
        let index = self.owned.claim_from(0)?;
        Some(BlockNo::new((self.superblock.first_block + index) as u32))
    }

    /// Stores what a slot of HashFS maps, or nothing.
    fn set_slot(&mut self, slot: SlotNo, page: Option<(PageId, PageWord)>) {
        let Some(keys) = self.map.hashed_keys() else {
            return;
        };
        let offsets = keys.offsets(slot);
        let (key, word) = page.map_or((0, 0), |(page, word)| (keys.key(page), word.0));
        self.set(offsets.key, key);
        self.set(offsets.word, word);
    }

    /// Maps a page to another word, maps it newly, or unmaps it; returns whether there was space for that. The mapping
    /// is sound by now.
    fn set_page(&mut self, ino: Inum, lblk: Lblk, word: Option<PageWord>) -> Result<(), MapError> {
        let map = Arc::clone(&self.map);
        let is_mapped = !map.get(PageId::new(ino, lblk)).is_hole();
        let change = |repair: &mut Repair| {
            let mut tx = RepairTx { repair };
            match word {
                Some(word) if is_mapped => map.replace(&mut tx, PageId::new(ino, lblk), word),
                Some(word) => map.insert(&mut tx, PageId::new(ino, lblk), word),
                None => map.remove(&mut tx, PageId::new(ino, lblk)).map(|_| ()),
            }
        };
        let mut tries = 0;
        loop {
            match change(self) {
                Err(MapError::TableFull) if tries < MOVES_MAX && map.make_space(&mut RepairTx { repair: self })? => {
                    tries += 1;
                    self.reload_map();
                }
                other => return other,
            }
        }
    }

    /// Reloads the mapping's DRAM state, after its words have changed.
    fn reload_map(&mut self) {
        let map = self
            .superblock
            .mapping
            .open(Arc::clone(&self.region), self.superblock.map_geometry());
        self.map = map.into();
        // Parts that cannot be loaded are gone by now.
        let _ = self.map.load(2, &|_| {});
    }

    /// Unmaps all pages of an inode.
    fn unmap_all(&mut self, ino: Inum) {
        let mut pages = Vec::new();
        self.map.for_each(&mut |entry| {
            if entry.ino == ino {
                // Other pages may have the block.
                let is_own = !pages::may_share(self.view(), &entry);
                pages.push((entry.lblk, self.superblock.page(entry.word), is_own));
            }
            true
        });
        // In order, so that no structure needs more space in between.
        pages.sort_unstable();
        for (lblk, block, is_own) in pages {
            let _ = self.set_page(ino, lblk, None);
            if is_own && self.superblock.is_data_block(block) {
                // Not owned yet while the mapping is being checked; released twice by two pages of one block.
                self.owned.release(u64::from(block) - self.superblock.first_block);
            }
        }
        self.pages[ino.index()] = 0;
        self.dir_blocks.retain(|found| found.dir != ino);
        self.reload_map();
    }

    /// Makes both copies of the superblock match the better one.
    fn superblocks(&mut self) {
        let copies = superblock_rules::copies(&self.region, &self.superblock);
        if copies.is_empty() {
            return;
        }
        let bytes = self.superblock.encode();
        for start in [0, self.superblock.second_copy_offset()] {
            for at in (0..BLOCK_BYTES as usize).step_by(8) {
                let word = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
                self.set(start + at as u64, word);
            }
        }
        for wrong in copies {
            self.mended(wrong.phase(), wrong, "written anew from the other", false);
        }
    }
}

/// Changes of the mapping, carried out at once.
struct RepairTx<'r> {
    repair: &'r mut Repair,
}

impl MapTx for RepairTx<'_> {
    fn set_word(&mut self, offset: u64, value: u64) {
        self.repair.set(offset, value);
    }

    fn word(&self, offset: u64) -> u64 {
        self.repair.region.load(offset)
    }

    fn fresh_block(&mut self) -> Result<BlockNo, MapError> {
        let block = self.alloc_block()?;
        let offset = self.repair.superblock.block_offset(block);
        for at in (offset..offset + BLOCK_BYTES).step_by(8) {
            self.repair.set(at, 0);
        }
        Ok(block)
    }

    fn claim_block(&mut self, block: BlockNo) -> bool {
        self.repair.own(block).is_ok()
    }

    /// Pages, logs and attributes own their blocks even before they are claimed, and the targets of names may still be
    /// restored.
    fn alloc_block(&mut self) -> Result<BlockNo, MapError> {
        let mut named: FxHashSet<BlockNo> = self.repair.pointed.keys().copied().collect();
        self.repair.map.for_each(&mut |entry| {
            named.insert(self.repair.superblock.page(entry.word));
            true
        });
        if self.repair.beside.is_none() {
            self.repair.beside = Some(self.repair.blocks_beside_pages());
        }
        named.extend(self.repair.beside.iter().flatten());
        let mut passed = Vec::new();
        let found = loop {
            match self.repair.take_block() {
                Some(block) if named.contains(&block) => passed.push(block),
                other => break other,
            }
        };
        for block in passed {
            self.repair
                .owned
                .release(u64::from(block) - self.repair.superblock.first_block);
        }
        found.ok_or(MapError::NoBlock)
    }

    fn claimed(&mut self, _resource: Resource) {}

    fn freed(&mut self, resource: Resource) {
        match resource {
            Resource::Block(block) => {
                self.repair
                    .owned
                    .release(u64::from(block) - self.repair.superblock.first_block);
            }
            Resource::MapSlot(slot) => {
                self.repair.map.release(slot);
            }
            Resource::Inode(_) | Resource::NameSlot(_) | Resource::LogSegment(..) => {}
        }
    }
}

#[cfg(test)]
mod tests;

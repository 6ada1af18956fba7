//! Repair: what is to be changed in a damaged pool so that it is sound again, and nothing that can be saved is lost.
//!
//! What lives here: [`repair`] and the books it keeps ([`Repair`]); its phases by file: inodes, mapping, logs and blocks
//! ([`tables`]), directories and their entries ([`dirs`]), names, link counts and `lost+found` ([`links`]). It works on the raw tables in
//! a private mapping and ends with a list of words ([`Mend`]); `mend.rs` carries it out.
//!
//! Invariants: only what no check vouches for is thrown away; content that may be wrong is never left where a program would take it for
//! right, it goes to `lost+found` as `damaged-INODE`. A pool that comes out of [`repair`] has been checked like any other, so
//! a second repair finds nothing.

mod dirs;
mod links;
mod tables;

use std::sync::Arc;

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::hashfs::HashFs;
use ferrite_map::{FileMap, PageWord};
use ferrite_pm::Region;
use ferrite_vfs::FileKind;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::EngineError;
use crate::fsck::{self, Progress};
use crate::inode::{INODE_WORDS, Inode};
use crate::journal::replay;
use crate::layout::{BLOCK_BYTES, CONTROL_MARK, CONTROL_REPAIR, CONTROL_STATE, STATE_CLEAN, Superblock, decode_mark};
use crate::mend::{self, Mend};
use crate::options::{Mended, RepairReport};

/// Repairs are repeated so often if something is left; one is enough unless its own changes meet damage.
const ROUNDS: usize = 3;

/// What is known of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Sound,
    /// Its checksum is wrong, or it makes no sense.
    Damaged,
}

/// A mapped block of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DirBlock {
    dir: u32,
    lblk: u32,
    block: u32,
}

/// An entry that names an inode.
#[derive(Debug, Clone, Copy)]
struct Named {
    dir: u32,
    ino: u32,
    /// Pool offset.
    at: u64,
    kind: FileKind,
}

/// A phase: its name, and what it does.
type Phase = (&'static str, fn(&mut Repair));

struct Repair {
    region: Arc<Region>,
    superblock: Superblock,
    map: HashFs,
    /// Blocks that have an owner.
    owned: AtomicBitmap,
    state: Vec<State>,
    /// Pages mapped, by inode, and the end of the last.
    pages: Vec<u32>,
    end: Vec<u64>,
    dir_blocks: Vec<DirBlock>,
    entries: Vec<Named>,
    /// Inodes whose content may be wrong.
    spoiled: FxHashSet<u32>,
    lost_found: Option<u32>,
    touched: FxHashMap<u64, u64>,
    report: RepairReport,
}

/// Says what is to be done to repair the pool in `region`, a private mapping, which is changed on the way. `progress` gets phase,
/// done, total. Fails only if there is no pool.
pub fn repair(region: Region, progress: Progress<'_>) -> Result<(RepairReport, Mend), EngineError> {
    let superblock = Superblock::find(&region)?;
    let basis = mend::basis(&region);
    let mut report = RepairReport::default();
    let mut touched = FxHashMap::default();
    if let Err(error) = mend::finish(&region, &superblock) {
        report.mended.push(Mended {
            phase: "journal",
            what: error.to_string(),
            action: "given up",
            loss: true,
        });
        region.store(CONTROL_REPAIR, 0);
    }
    let mut mark = None;
    if decode_mark(region.load(CONTROL_MARK)).is_none() {
        mark = Some(replay::mark_above_all(&region, &superblock));
        report.mended.push(Mended {
            phase: "journal",
            what: "the low-water mark is damaged".into(),
            action: "no record is replayed, since stale ones cannot be told",
            // After a clean unmount there was nothing to replay.
            loss: region.load(CONTROL_STATE) != STATE_CLEAN,
        });
        region.store(CONTROL_MARK, mark.unwrap_or_default());
    }
    let replayed_records = replay::replay(&region, &superblock)?.records;
    let region = Arc::new(region);
    for round in 0..ROUNDS {
        let mut repair = Repair::new(Arc::clone(&region), superblock.clone(), report, touched);
        repair.superblocks();
        repair.run(progress);
        (report, touched) = (repair.report, repair.touched);
        let mut findings = Vec::new();
        fsck::check_superblocks(&region, &superblock, &mut findings);
        report.after = fsck::check(Arc::clone(&region), superblock.clone(), findings, progress);
        if report.after.findings.is_empty() || round + 1 == ROUNDS {
            break;
        }
    }
    report.after.replayed_records = replayed_records;
    let mut words: Vec<(u64, u64)> = touched
        .into_iter()
        .map(|(offset, before)| (offset, before, region.load(offset)))
        .filter(|&(_, before, now)| before != now)
        .map(|(offset, _, now)| (offset, now))
        .collect();
    words.sort_unstable();
    Ok((report, Mend { words, mark, basis }))
}

impl Repair {
    fn new(region: Arc<Region>, superblock: Superblock, report: RepairReport, touched: FxHashMap<u64, u64>) -> Self {
        let inodes = superblock.inodes as usize;
        Repair {
            map: HashFs::new(Arc::clone(&region), superblock.map_geometry()),
            owned: AtomicBitmap::new(superblock.blocks),
            state: vec![State::Free; inodes],
            pages: vec![0; inodes],
            end: vec![0; inodes],
            dir_blocks: Vec::new(),
            entries: Vec::new(),
            spoiled: FxHashSet::default(),
            lost_found: None,
            region,
            superblock,
            touched,
            report,
        }
    }

    fn run(&mut self, progress: Progress<'_>) {
        let phases: [Phase; 10] = [
            ("inodes", Repair::inodes),
            ("mapping", Repair::mapping),
            ("logs", Repair::logs),
            ("attributes", Repair::attributes),
            ("blocks", Repair::blocks),
            ("directories", Repair::directories),
            ("rebuilding", Repair::rebuild),
            ("entries", Repair::entries),
            ("connecting", Repair::connect),
            ("counts", Repair::counts),
        ];
        let total = phases.len() as u64 + 1;
        for (done, (name, phase)) in phases.into_iter().enumerate() {
            progress(name, done as u64, total);
            phase(self);
        }
        progress("names", total - 1, total);
        self.names();
    }

    /// Notes something that is done.
    fn mended(&mut self, phase: &'static str, what: String, action: &'static str, loss: bool) {
        self.report.mended.push(Mended {
            phase,
            what,
            action,
            loss,
        });
    }

    /// Stores a word, and remembers what was there at first.
    fn set(&mut self, offset: u64, value: u64) {
        let before = self.region.load(offset);
        if before != value {
            self.touched.entry(offset).or_insert(before);
            self.region.store(offset, value);
        }
    }

    fn load(&self, ino: u32) -> Inode {
        Inode::load(&self.region, self.superblock.inode_offset(ino))
    }

    fn put(&mut self, ino: u32, inode: &mut Inode) {
        inode.set_crc(inode.checksum(ino));
        let offset = self.superblock.inode_offset(ino);
        for index in 0..INODE_WORDS {
            self.set(offset + index as u64 * 8, inode.words[index]);
        }
    }

    /// Turns an inode into a free one.
    fn clear_inode(&mut self, ino: u32) {
        let mut empty = self.load(ino).reborn();
        self.put(ino, &mut empty);
        self.state[ino as usize] = State::Free;
    }

    fn is_ino(&self, ino: u32) -> bool {
        ino != 0 && u64::from(ino) < self.superblock.inodes
    }

    /// Notes an owner of `block`; false if it is no data block, or has one.
    fn own(&self, block: u32) -> bool {
        self.superblock.is_data_block(block) && self.owned.claim(u64::from(block) - self.superblock.first_block)
    }

    fn take_block(&self) -> Option<u32> {
        let index = self.owned.claim_from(0)?;
        Some((self.superblock.first_block + index) as u32)
    }

    /// Stores what a slot of the mapping maps, or nothing.
    fn set_slot(&mut self, slot: u64, page: Option<(u32, u32, PageWord)>) {
        let (key_offset, word_offset) = self.map.offsets(slot);
        let (key, word) = page.map_or((0, 0), |(ino, lblk, word)| (HashFs::key(ino, lblk), word.0));
        self.set(key_offset, key);
        self.set(word_offset, word);
    }

    /// The mapping's books, after its slots have changed.
    fn reload_map(&mut self) {
        self.map = HashFs::new(Arc::clone(&self.region), self.superblock.map_geometry());
        // What cannot be loaded is gone by now.
        let _ = self.map.load(2, &|_| {});
    }

    /// Unmaps all pages of an inode.
    fn unmap_all(&mut self, ino: u32) {
        let mut slots = Vec::new();
        self.map.for_each(&mut |entry| {
            if entry.ino == ino {
                slots.push((entry.slot, entry.word.page()));
            }
            true
        });
        for (slot, block) in slots {
            self.set_slot(u64::from(slot), None);
            if self.superblock.is_data_block(block) {
                // Not owned yet while the mapping is looked through; released twice by two pages of one block.
                self.owned.release(u64::from(block) - self.superblock.first_block);
            }
        }
        self.pages[ino as usize] = 0;
        self.dir_blocks.retain(|found| found.dir != ino);
        self.reload_map();
    }

    /// Makes both copies of the superblock what the better one is.
    fn superblocks(&mut self) {
        let mut findings = Vec::new();
        fsck::check_superblocks(&self.region, &self.superblock, &mut findings);
        if findings.is_empty() {
            return;
        }
        let bytes = self.superblock.encode();
        for start in [0, self.superblock.second_copy_offset()] {
            for at in (0..BLOCK_BYTES as usize).step_by(8) {
                let word = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
                self.set(start + at as u64, word);
            }
        }
        for finding in findings {
            self.mended(finding.phase, finding.what, "written anew from the other", false);
        }
    }
}

#[cfg(test)]
mod tests;

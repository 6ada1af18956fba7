//! From the tables of a pool to the tables in DRAM: the existing inodes, and the owner of each block. Contradictions
//! become [`Quarantine`].
//!
//! Contents: [`Tables`], which mount makes once the journal is replayed. Everything is read once: inodes and
//! names on one thread, the mapping on others, then page logs. Each structure is checked against another:
//! * inodes against their checksums, and the pages each counts, and its size, against those that the mapping has for
//!   it;
//! * pages against where the mapping has them: the place of a key, the words of data checksums;
//! * blocks against each other: each has one owner, unless it is marked as shared and its owners are pages;
//! * every entry of every log against its checksum;
//! * every slot of the name table against the entry it leads to, that against its inode, and the entries found against
//!   those that their directory counts (`names.rs`).
//!
//! Invariants: nothing here writes. After damage whose blocks are not all known the pool stays unchanged
//! ([`Quarantine::stop`]); damage recorded without that leaves every block with its owner.

mod names;
mod quarantine;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{Affected, BlockNo, Broken, FileMap, Inum, Lblk, MapEntry, MapError, PageId};
use ferrite_pm::{Region, zeroed};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::audit::rules::logs::Met;
use crate::audit::rules::{self, View, logs, pages};
use crate::audit::wrong::{BlockWrong, PageWrong, Wrong};
use crate::cache::logged::Candidates;
use crate::error::EngineError;
use crate::format::data_sum;
use crate::format::inode::{INODE_WORDS, Inode, W_INLINE};
use crate::format::layout::Superblock;
use crate::format::page_buffer::PageBuffer;
use crate::health::quarantine::Quarantine;
use crate::space::blocks::BlockAlloc;
use crate::space::names::NameTable;
use crate::space::segments::LogSpace;
use crate::space::shares::Shares;

/// Threads that read the tables.
const LOAD_THREADS: usize = 2;
/// Tables of smaller pools are read before a thread has started.
const SMALL_POOL_BLOCKS: u64 = 16 << 10;
/// Instead of a number of pages: the inode cannot be read.
const UNKNOWN: u32 = u32::MAX;
/// A key at least this many HashFS buckets from its home is checked a second time; in a sound pool one in ten thousand
/// is.
const ASTRAY_DISTANCE: u64 = 16;
/// Most pages that are checked a second time; with more the pool is ruined, which shows elsewhere.
const AFFECTED_MAX: usize = 1 << 16;

/// The tables of a pool, and the DRAM tables to be filled from them.
pub(crate) struct Tables<'m> {
    pub(crate) region: &'m Region,
    pub(crate) superblock: &'m Superblock,
    pub(crate) alloc: &'m BlockAlloc,
    pub(crate) shares: &'m Shares,
    pub(crate) inode_map: &'m AtomicBitmap,
    pub(crate) map: &'m dyn FileMap,
    pub(crate) names: &'m NameTable,
    pub(crate) log_space: &'m LogSpace,
    pub(crate) candidates: &'m Candidates,
}

/// The content of the inode table.
struct Inodes {
    /// Pages that each inode counts.
    counted: Vec<u32>,
    /// Upper limit of where the written pages of each inode end.
    ends: Vec<u32>,
    /// Blocks of extended attributes, by inode.
    xattr_blocks: Vec<(Inum, BlockNo)>,
    /// Inodes whose content cannot be trusted.
    unsound: Vec<Wrong>,
    /// Sound directories, and the entries that each counts.
    dirs: Vec<(Inum, u32)>,
}

/// The content of the mapping.
struct Mapped {
    /// Pages of each inode.
    pages: Box<[AtomicU32]>,
    /// The end of the last written one.
    ends: Box<[AtomicU32]>,
    /// Pages that may be in the wrong place.
    affected: Mutex<Vec<MapEntry>>,
    /// Pages of inodes that cannot exist.
    strange: AtomicU64,
    logged: Mutex<Vec<MapEntry>>,
    /// Blocks with two owners.
    conflicts: Mutex<FxHashSet<BlockNo>>,
}

impl Tables<'_> {
    /// Reads everything, and reports what is wrong. Fails only if a thread does, or the medium.
    pub(crate) fn load(&self) -> Result<Quarantine, EngineError> {
        let counters = || zeroed(self.superblock.inodes as usize);
        let mapped = Mapped {
            pages: counters(),
            ends: counters(),
            affected: Mutex::default(),
            strange: AtomicU64::new(0),
            logged: Mutex::default(),
            conflicts: Mutex::default(),
        };
        let (loaded, inodes) = self.read(&mapped)?;
        // First, so that no false damage is reported.
        self.region.check()?;
        let mut quarantine = Quarantine::default();
        // The pages of a damaged inode are still in the mapping, and its number is not given to another.
        inodes
            .unsound
            .iter()
            .for_each(|wrong| self.quarantine(wrong, &mut quarantine));
        match loaded {
            Ok(()) => self.map.for_each_node(&mut |node, _| self.own(node, &mapped)),
            Err(error) => self.judge_mapping(&error, &mapped, &mut quarantine),
        }
        self.judge_counts(&inodes, &mapped, &mut quarantine);
        self.judge_affected(&mapped, &mut quarantine);
        self.load_logs(&mapped, &mut quarantine);
        // After the logs, whose entries have checksums: the block that a damaged inode names for its attributes may
        // belong to anything.
        self.judge_attributes(&inodes, &mapped, &mut quarantine);
        self.judge_conflicts(&mapped, &mut quarantine);
        self.judge_names(&inodes.dirs, &mut quarantine);
        Ok(quarantine)
    }

    fn read(&self, mapped: &Mapped) -> Result<(Result<(), MapError>, Inodes), EngineError> {
        let hashfs = self.map.hashed_keys();
        let visit = |entry: MapEntry| {
            match (mapped.pages.get(entry.ino.index()), mapped.ends.get(entry.ino.index())) {
                (Some(counted), Some(ends)) => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let end = entry.lblk.get().saturating_add(1);
                    // Mostly read, so that two threads at one file do not contend for it.
                    if pages::is_within_end(&entry) && ends.load(Ordering::Relaxed) < end {
                        ends.fetch_max(end, Ordering::Relaxed);
                    }
                }
                _ => {
                    mapped.strange.fetch_add(1, Ordering::Relaxed);
                }
            }
            let distance = hashfs.map_or(0, |map| map.distance(PageId::new(entry.ino, entry.lblk), entry.slot));
            if distance >= ASTRAY_DISTANCE || data_sum::misplaced(self.region, self.superblock, &entry).is_some() {
                let mut affected = mapped.affected.lock();
                if affected.len() < AFFECTED_MAX {
                    affected.push(entry);
                }
            }
            let block = self.superblock.page(entry.word);
            if block != BlockNo::NONE && !self.alloc.set_used(block) {
                // Only pages have been seen so far, so the other owner is one, too.
                match pages::may_share(self.view(), &entry) {
                    true => self.shares.add(block),
                    false => drop(mapped.conflicts.lock().insert(block)),
                }
            }
            if entry.word.has_log() {
                mapped.logged.lock().push(entry);
            }
        };
        let inodes = || {
            self.names.load();
            self.scan_inodes()
        };
        if self.superblock.blocks < SMALL_POOL_BLOCKS {
            return Ok((self.map.load(1, &visit), inodes()));
        }
        std::thread::scope(|scope| {
            let inodes = scope.spawn(inodes);
            let loaded = self.map.load(LOAD_THREADS, &visit);
            let inodes = inodes.join();
            inodes
                .map(|inodes| (loaded, inodes))
                .map_err(|_| EngineError::Damaged("the inode table could not be read".into()))
        })
    }

    /// Records an owner of `block`.
    fn own(&self, block: BlockNo, mapped: &Mapped) {
        if !self.alloc.set_used(block) {
            mapped.conflicts.lock().insert(block);
        }
    }

    fn view(&self) -> View<'_> {
        View {
            region: self.region,
            superblock: self.superblock,
            map: self.map,
        }
    }

    fn inode(&self, ino: Inum) -> Inode {
        self.view().inode(ino)
    }

    fn scan_inodes(&self) -> Inodes {
        let mut inodes = Inodes {
            counted: vec![0; self.superblock.inodes as usize],
            ends: vec![0; self.superblock.inodes as usize],
            xattr_blocks: Vec::new(),
            unsound: Vec::new(),
            dirs: Vec::new(),
        };
        self.inode_map.set(0);
        for ino in self.superblock.inums(self.region) {
            // Most free inodes were never in use; for the others, not even the word that marks them free is trusted.
            let words = self.region.words(self.superblock.inode_offset(ino), INODE_WORDS);
            if words[..W_INLINE].iter().all(|word| word.load(Ordering::Relaxed) == 0) {
                continue;
            }
            let inode = self.inode(ino);
            let wrong = rules::inodes::of_itself(ino, &inode);
            let is_sound = wrong.is_none();
            if let Some(wrong) = wrong {
                inodes.unsound.push(wrong);
                inodes.counted[ino.index()] = UNKNOWN;
            }
            if is_sound && !inode.in_use() {
                continue;
            }
            self.inode_map.set(u64::from(ino));
            if inode.xattr_block() != BlockNo::NONE {
                inodes.xattr_blocks.push((ino, inode.xattr_block()));
            }
            if is_sound {
                inodes.counted[ino.index()] = inode.blocks();
                inodes.ends[ino.index()] = inode.written_end().min(u64::from(u32::MAX)) as u32;
                if inode.is_dir() {
                    inodes.dirs.push((ino, inode.entries()));
                }
            }
        }
        inodes
    }

    /// Has the structure report its own damage. Any inode with a damaged part may have lost anything.
    fn judge_mapping(&self, error: &MapError, mapped: &Mapped, quarantine: &mut Quarantine) {
        let (mut nodes, mut pages, mut found) = (Vec::new(), 0, Vec::new());
        self.map
            .check(&mut |_| pages += 1, &mut |node| nodes.push(node), &mut |broken| {
                found.push(broken);
            });
        if found.is_empty() {
            quarantine.stop(error.to_string());
        }
        let why = "its part of the mapping is damaged";
        for Broken { affected, what, .. } in found {
            match affected {
                Affected::Nothing => {}
                Affected::Inode(ino) => quarantine.spoil_inode(ino, why),
                Affected::Pages(ino, first, count) => {
                    first
                        .onwards()
                        .take(count as usize)
                        .for_each(|lblk| self.spoil(PageId::new(ino, lblk), why, quarantine));
                }
            }
            quarantine.stop(Wrong::Structure { what }.told());
        }
        quarantine.break_mapping(pages);
        nodes.into_iter().for_each(|node| self.own(node, mapped));
    }

    fn judge_counts(&self, inodes: &Inodes, mapped: &Mapped, quarantine: &mut Quarantine) {
        let is_known = |ino: Inum| inodes.counted[ino.index()] != UNKNOWN;
        for (ino, (&counted, pages)) in (0..).map(Inum::new).zip(inodes.counted.iter().zip(&*mapped.pages)) {
            if is_known(ino)
                && let Some(wrong) = rules::inodes::count(ino, counted, pages.load(Ordering::Relaxed))
            {
                self.quarantine(&wrong, quarantine);
            }
        }
        for (ino, (&end, found)) in (0..).map(Inum::new).zip(inodes.ends.iter().zip(&*mapped.ends)) {
            let Some(last) = found.load(Ordering::Relaxed).checked_sub(1).map(Lblk::new) else {
                continue;
            };
            if is_known(ino) && pages::is_behind(last, u64::from(end)) {
                self.quarantine(&Wrong::LastBehindEnd { ino, lblk: last }, quarantine);
            }
        }
        match mapped.strange.load(Ordering::Relaxed) {
            0 => {}
            count => self.quarantine(&Wrong::PagesOfNobody { count }, quarantine),
        }
    }

    /// The block that a damaged inode names is not given to others. If the inode names a block other than its own,
    /// nothing leads to its own block, and no repair would find it.
    fn judge_attributes(&self, inodes: &Inodes, mapped: &Mapped, quarantine: &mut Quarantine) {
        for &(ino, block) in &inodes.xattr_blocks {
            let claim = |block| self.alloc.set_used(block);
            let Err(wrong) = rules::inodes::attribute_blocks(self.view(), ino, block, claim) else {
                continue;
            };
            if inodes.counted[ino.index()] == UNKNOWN {
                continue;
            }
            if let Wrong::AttributeBlock {
                block,
                what: BlockWrong::Taken,
                ..
            } = wrong
            {
                mapped.conflicts.lock().insert(block);
            }
            self.quarantine(&wrong, quarantine);
        }
    }

    /// Counts up the segments of the pages that have logs, and lists those pages for the cleaner.
    fn load_logs(&self, mapped: &Mapped, quarantine: &mut Quarantine) {
        let mut buffer = PageBuffer::take();
        for page in std::mem::take(&mut *mapped.logged.lock()) {
            let mut taken = None;
            let walked = logs::walk(self.view(), &page, &mut buffer, &mut |met| {
                let Met::Segment(segment) = met else { return };
                let own = segment.own(self.view(), self.log_space, |block| self.alloc.set_used(block));
                if let Err(what) = own {
                    mapped.conflicts.lock().insert(segment.block());
                    taken.get_or_insert(what);
                }
            });
            match walked.err().or(taken) {
                Some(what) => {
                    self.candidates.leave_out();
                    self.quarantine(&Wrong::Log { page, what }, quarantine);
                }
                None => self.candidates.put_back(PageId::new(page.ino, page.lblk)),
            }
        }
        self.log_space.open();
    }

    /// Of two owners of a block one has the wrong content in it; which one cannot be known.
    fn judge_conflicts(&self, mapped: &Mapped, quarantine: &mut Quarantine) {
        let conflicts = mapped.conflicts.lock();
        if conflicts.is_empty() {
            return;
        }
        let mut pages = Vec::new();
        self.map.check(
            &mut |entry| {
                if conflicts.contains(&self.superblock.page(entry.word)) {
                    pages.push(entry);
                }
            },
            &mut |_| {},
            &mut |_| {},
        );
        let mut blocks: Vec<BlockNo> = conflicts.iter().copied().collect();
        blocks.sort_unstable();
        for block in blocks {
            self.quarantine(&Wrong::TwoOwners { block }, quarantine);
        }
        for at in pages {
            let why = PageWrong::Block(self.superblock.page(at.word), BlockWrong::Taken).reason();
            self.spoil(PageId::new(at.ino, at.lblk), &why, quarantine);
        }
    }

    /// Pages that are mapped as others than they were written as, which leave holes where they belong: keys of HashFS
    /// that do not fit where they lie, or that are there twice; and blocks whose checksums identify another page.
    fn judge_affected(&self, mapped: &Mapped, quarantine: &mut Quarantine) {
        for &at in mapped.affected.lock().iter() {
            if let Some(what) = pages::place(self.view(), &at) {
                self.quarantine(&Wrong::Page { at, what }, quarantine);
            }
        }
    }
}

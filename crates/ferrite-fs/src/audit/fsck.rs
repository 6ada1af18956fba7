//! Checking a whole pool: every structure against every other. Changes nothing; [`crate::audit::repair`] does.
//!
//! Contents: [`fsck`] and its phases. It works on the raw tables, not on a mounted engine, so that it can check
//! pools that no longer mount. The journal is replayed first, into the caller's (private) mapping.
//!
//! Legal after a crash, and so not reported: inodes without names, and intents; the next mount completes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{BlockNo, FileMap, Inum, Lblk, MapEntry, PageId};
use ferrite_pm::{Region, zeroed};
use parking_lot::Mutex;

use crate::audit::boot::stale_boot;
use crate::audit::owner::{MAYBE_COPIED, may_be_live_copy};
use crate::audit::rewrite;
use crate::audit::rules::dirs::Header;
use crate::audit::rules::logs::Met;
use crate::audit::rules::{View, dirs, inodes, links, logs, names, outcomes, pages, quotas, superblock};
use crate::audit::wrong::{BlockWrong, EntryWrong, PageWrong, Wrong};
use crate::error::EngineError;
use crate::format::dentry::Entry;
use crate::format::inode::{Inode, ROOT};
use crate::format::layout::{BLOCK_BYTES, Superblock};
use crate::journal::replay::{self, Ended, Losses};
use crate::options::{Finding, FsckOptions, FsckReport};
use crate::space::names::NameTable;
use crate::space::segments::LogSpace;

/// Findings kept; a ruined pool would otherwise fill the memory with them.
const FINDINGS_MAX: usize = 1000;

/// Pages of data between two reports of progress.
const DATA_STEP: u64 = 4096;

pub(crate) type Progress<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

struct Check {
    region: Arc<Region>,
    superblock: Superblock,
    map: Box<dyn FileMap>,
    names: NameTable,
    /// Blocks for which an owner was seen.
    owned: AtomicBitmap,
    /// Per inode: pages mapped, names found, and directories found in it.
    pages: Box<[AtomicU32]>,
    links: Box<[AtomicU32]>,
    subdirs: Box<[AtomicU32]>,
    /// Name slots by which an entry is found.
    found_slots: AtomicBitmap,
    /// Pages that have logs.
    logged: Mutex<Vec<MapEntry>>,
    /// Blocks of directories: directory, logical block, block. Sorted before they are used.
    dir_blocks: Mutex<Vec<(Inum, Lblk, BlockNo)>>,
    findings: Mutex<Vec<Finding>>,
    /// Findings were dropped.
    more: AtomicBool,
}

/// Checks the pool in `region`, which should be a private mapping: the journal's records are applied to it. `progress`
/// gets phase, done, total. Fails only if there is no pool to check, or part of it cannot be read; damage goes to the
/// report.
pub fn fsck(region: Region, progress: Progress<'_>) -> Result<FsckReport, EngineError> {
    fsck_with(region, FsckOptions::default(), progress)
}

/// As [`fsck`], with options.
pub fn fsck_with(region: Region, options: FsckOptions, progress: Progress<'_>) -> Result<FsckReport, EngineError> {
    let superblock = Superblock::find(&region)?;
    let copies = superblock::copies(&region, &superblock);
    let mut findings: Vec<Finding> = copies.iter().map(Wrong::finding).collect();
    if let Some(stale) = stale_boot(&region) {
        findings.push(Finding {
            phase: "control",
            what: stale.what().into(),
        });
    }
    if may_be_live_copy(&region) {
        findings.push(Finding {
            phase: "control",
            what: MAYBE_COPIED.into(),
        });
    }
    if let Err(error) = rewrite::finish(&region, &superblock) {
        findings.push(Finding {
            phase: "journal",
            what: error.cause(),
        });
    }
    let replayed_records = match replay::replay(&region, &superblock, Losses::Keep, Ended::of(&region)) {
        Ok(replayed) => {
            let lost = replayed.lost.into_iter();
            findings.extend(lost.map(|what| Finding { phase: "journal", what }));
            replayed.records
        }
        Err(error) => {
            findings.push(Finding {
                phase: "journal",
                what: error.cause(),
            });
            0
        }
    };
    let region = Arc::new(region);
    let mut report = check(Arc::clone(&region), superblock, options, findings, progress);
    // Bytes that cannot be read look like zeros: findings in such a pool are meaningless.
    region.check()?;
    report.replayed_records = replayed_records;
    Ok(report)
}

/// Checks a pool whose journal was replayed. `findings` are those so far.
pub(crate) fn check(
    region: Arc<Region>,
    superblock: Superblock,
    options: FsckOptions,
    findings: Vec<Finding>,
    progress: Progress<'_>,
) -> FsckReport {
    let counters = || zeroed(superblock.inodes as usize);
    let check = Check {
        map: superblock.mapping.open(Arc::clone(&region), superblock.map_geometry()),
        names: NameTable::new(Arc::clone(&region), &superblock),
        owned: AtomicBitmap::new(superblock.blocks),
        found_slots: AtomicBitmap::new(superblock.name_slots),
        pages: counters(),
        links: counters(),
        subdirs: counters(),
        logged: Mutex::default(),
        dir_blocks: Mutex::default(),
        findings: Mutex::new(findings),
        more: AtomicBool::new(false),
        region,
        superblock,
    };
    let mut report = FsckReport::default();
    progress("mapping", 0, check.superblock.map_slots);
    report.pages = check.mapping();
    check.names.load();
    check.inodes(&mut report, progress);
    check.directories(&mut report, progress);
    check.name_table(report.entries);
    check.link_counts(progress);
    outcomes::damaged(&check.region, &check.superblock).for_each(|wrong| check.find(&wrong));
    if options.data {
        check.data(report.pages, progress);
    }
    report.blocks = check.owned.count_used();
    report.findings = check.findings.into_inner();
    report.more = check.more.into_inner();
    report
}

impl Check {
    fn view(&self) -> View<'_> {
        View {
            region: &self.region,
            superblock: &self.superblock,
            map: self.map.as_ref(),
        }
    }

    fn find(&self, wrong: &Wrong) {
        let mut findings = self.findings.lock();
        if findings.len() < FINDINGS_MAX {
            findings.push(wrong.finding());
        } else {
            self.more.store(true, Ordering::Relaxed);
        }
    }

    fn load(&self, ino: Inum) -> Inode {
        Inode::load(&self.region, self.superblock.inode_offset(ino))
    }

    fn is_ino(&self, ino: Inum) -> bool {
        ino != Inum::NONE && u64::from(ino) < self.superblock.inodes
    }

    /// Records an owner of `block`; fails if the block cannot have it.
    fn own(&self, block: BlockNo) -> Result<(), BlockWrong> {
        self.view().own(block, |block| self.claim(block))
    }

    fn claim(&self, block: BlockNo) -> bool {
        self.owned.claim(u64::from(block) - self.superblock.first_block)
    }

    fn mapping(&self) -> u64 {
        let pages = AtomicU64::new(0);
        let visit = |at: MapEntry| {
            pages.fetch_add(1, Ordering::Relaxed);
            let MapEntry { ino, lblk, word, .. } = at;
            let inode = match pages::owner(self.view(), &at) {
                Ok(inode) => inode,
                Err(what) => return self.find(&Wrong::Page { at, what }),
            };
            self.pages[ino.index()].fetch_add(1, Ordering::Relaxed);
            if word.has_log() {
                self.logged.lock().push(at);
            }
            if inode.is_dir() {
                self.dir_blocks.lock().push((ino, lblk, self.superblock.page(word)));
            }
            if inodes::of_itself(ino, &inode).is_none()
                && let Some(wrong) = pages::end(&at, &inode)
            {
                self.find(&wrong);
            }
            let block = self.superblock.page(word);
            if let Err(what) = self.own(block)
                && !(what == BlockWrong::Taken && inode.is_file() && pages::may_share(self.view(), &at))
            {
                let what = PageWrong::Block(block, what);
                self.find(&Wrong::Page { at, what });
            }
        };
        if self.map.hashed_keys().is_some() {
            // Loading it reads everything, on two threads.
            if let Err(error) = self.map.load(2, &visit) {
                self.find(&Wrong::Structure {
                    what: error.to_string(),
                });
            }
        } else if !self.structure(&visit) {
            // A damaged structure may claim to map any number of pages.
            self.logs();
            return pages.into_inner();
        }
        self.logs();
        // The bounds are known only now, so lookups can be tried only now.
        self.map.for_each(&mut |at| {
            if let Some(what) = pages::place(self.view(), &at) {
                self.find(&Wrong::Page { at, what });
            }
            true
        });
        pages.into_inner()
    }

    /// A structure with its own check, in blocks that must have no other owner. Returns whether it is whole.
    fn structure(&self, visit: &dyn Fn(MapEntry)) -> bool {
        let (mut nodes, mut is_whole) = (Vec::new(), true);
        self.map
            .check(&mut |entry| visit(entry), &mut |node| nodes.push(node), &mut |broken| {
                self.find(&Wrong::Structure { what: broken.what });
                is_whole = false;
            });
        for node in nodes {
            if let Err(what) = self.own(node) {
                self.find(&Wrong::NodeBlock { block: node, what });
            }
        }
        if let Err(error) = self.map.load(2, &|_| {}) {
            self.find(&Wrong::Structure {
                what: error.to_string(),
            });
            is_whole = false;
        }
        if !is_whole {
            return false;
        }
        self.map.for_each_node(&mut |node, ino| {
            if self.view().in_use(ino).is_none() {
                self.find(&Wrong::NodeOfNobody { block: node, ino });
            }
        });
        true
    }

    /// Page logs: chains, lengths, checksums of all entries, links forward, and owners of segments.
    fn logs(&self) {
        let space = LogSpace::new(self.superblock.unit_size);
        let mut buffer = [0; BLOCK_BYTES as usize];
        for page in std::mem::take(&mut *self.logged.lock()) {
            let wrong = |what| self.find(&Wrong::Log { page, what });
            let walked = logs::walk(self.view(), &page, &mut buffer, &mut |met| {
                if let Met::Segment(segment) = met {
                    let own = segment.own(self.view(), &space, |block| self.claim(block));
                    [segment.link(), own]
                        .into_iter()
                        .filter_map(Result::err)
                        .for_each(wrong);
                }
            });
            let _ = walked.map_err(wrong);
            let _ = logs::is_allowed(self.view(), &page).map_err(wrong);
        }
    }

    fn inodes(&self, report: &mut FsckReport, progress: Progress<'_>) {
        for ino in self.superblock.inums(&self.region) {
            if ino.get() % 65536 == 1 {
                progress("inodes", u64::from(ino), self.superblock.inodes);
            }
            let inode = self.load(ino);
            if let Some(wrong) = inodes::of_itself(ino, &inode) {
                self.find(&wrong);
            } else if inode.in_use() {
                report.inodes += 1;
                report.orphans += u64::from(inode.nlink() == 0);
                self.inode(ino, &inode);
            }
        }
        let root = self.load(ROOT);
        if root.is_dir()
            && let Some(wrong) = inodes::root_parent(&root)
        {
            self.find(&wrong);
        }
    }

    fn inode(&self, ino: Inum, inode: &Inode) {
        let mapped = self.pages[ino.index()].load(Ordering::Relaxed);
        let wrong = [
            inodes::count(ino, inode.blocks(), mapped),
            inodes::kind_of_content(self.view(), ino, inode, mapped),
            inodes::bound(ino, inode),
        ];
        wrong.iter().flatten().for_each(|wrong| self.find(wrong));
        let block = inode.xattr_block();
        if block != BlockNo::NONE {
            let own = inodes::attribute_blocks(self.view(), ino, block, |block| self.claim(block));
            if let Err(wrong) = own.and_then(|()| inodes::attributes(self.view(), ino, block)) {
                self.find(&wrong);
            }
        }
    }

    fn directories(&self, report: &mut FsckReport, progress: Progress<'_>) {
        let mut blocks = std::mem::take(&mut *self.dir_blocks.lock());
        blocks.sort_unstable();
        for ino in self.superblock.inums(&self.region) {
            if ino.get() % 65536 == 1 {
                progress("directories", u64::from(ino), self.superblock.inodes);
            }
            let inode = self.load(ino);
            if inode.is_dir() && inodes::of_itself(ino, &inode).is_none() {
                let first = blocks.partition_point(|&(dir, _, _)| dir < ino);
                let own = blocks[first..].iter().take_while(|&&(dir, _, _)| dir == ino);
                let entries = self.directory(ino, own.map(|&(_, lblk, block)| (lblk, block)));
                report.entries += u64::from(entries);
                if let Some(wrong) = dirs::count(ino, inode.entries(), entries) {
                    self.find(&wrong);
                }
            }
        }
    }

    fn directory(&self, dir: Inum, blocks: impl Iterator<Item = (Lblk, BlockNo)>) -> u32 {
        let mut entries = 0;
        for (lblk, block) in blocks {
            if !self.superblock.is_data_block(block) {
                continue;
            }
            let offset = self.superblock.block_offset(block);
            let header = dirs::header(self.view(), offset, PageId::new(dir, lblk));
            if header != Header::Right {
                self.find(&Wrong::DirHeader { dir, lblk });
            }
            if header == Header::Others {
                continue;
            }
            let walked = dirs::entries(self.view(), dir, offset, &mut |at, entry| {
                entries += 1;
                match entry {
                    Ok(entry) => self.entry(dir, at, &entry),
                    Err(wrong) => self.find(&wrong),
                }
            });
            if let Err(wrong) = walked {
                self.find(&wrong);
            }
        }
        entries
    }

    fn entry(&self, dir: Inum, at: u64, entry: &Entry) {
        let wrong = |what| self.find(&Wrong::entry(dir, entry.name(), what));
        match names::is_found(&self.names, dir, entry, at) {
            Ok(slot) => self.found_slots.set(u64::from(slot)),
            Err(what) => wrong(what),
        }
        let child = match dirs::target(self.view(), entry) {
            Ok(child) => child,
            Err(what) => return wrong(what),
        };
        let _ = dirs::kind(dir, (entry.ino, entry.kind), &child).map_err(wrong);
        if child.is_dir() {
            if child.parent() != dir {
                let parent = child.parent();
                wrong(EntryWrong::Parent { parent });
            }
            let _ = quotas::counts(self.view(), &self.load(dir), (entry.ino, &child)).map_err(wrong);
            self.subdirs[dir.index()].fetch_add(1, Ordering::Relaxed);
        }
        self.links[entry.ino.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Follows the slots by which no entry was found, to report their defects. Defects of their entries were already
    /// reported.
    fn name_table(&self, entries: u64) {
        let mut slots = 0u64;
        for group in self.names.written_groups() {
            self.names.each_of_group(group, |slot| {
                slots += 1;
                if self.found_slots.is_set(u64::from(slot.number)) {
                    return;
                }
                let led = names::follow(self.view(), &self.names, &slot, |block| {
                    names::owner(self.view(), block)
                });
                if let Err(what) = led {
                    let number = slot.number;
                    self.find(&Wrong::Slot { number, what });
                }
            });
        }
        if slots != entries {
            self.find(&Wrong::SlotCount { slots, entries });
        }
    }

    fn link_counts(&self, progress: Progress<'_>) {
        let mut known = vec![None; self.superblock.inodes as usize];
        for ino in self.superblock.inums(&self.region) {
            if ino.get() % 65536 == 1 {
                progress("links", u64::from(ino), self.superblock.inodes);
            }
            let inode = self.load(ino);
            if !inode.in_use() || inodes::of_itself(ino, &inode).is_some() {
                continue;
            }
            let found = |counters: &[AtomicU32]| counters[ino.index()].load(Ordering::Relaxed);
            let expected = links::expected(ino, &inode, found(&self.links), found(&self.subdirs));
            if let Some(wrong) = links::count(ino, &inode, expected) {
                self.find(&wrong);
            }
            if inode.is_dir() && expected > 0 && !self.reaches_root(ino, &mut known) {
                self.find(&Wrong::Unreachable { dir: ino });
            }
        }
    }

    /// Compares the pages of sound files and links with their checksums.
    fn data(&self, pages: u64, progress: Progress<'_>) {
        let mut done = 0;
        self.map.for_each(&mut |entry| {
            if done % DATA_STEP == 0 {
                progress("data", done, pages);
            }
            done += 1;
            if let Some((wrong, _)) = pages::data(self.view(), &entry) {
                self.find(&wrong);
            }
            true
        });
    }

    /// Whether a directory's parents lead to the root. The result holds for all directories on the way, and is kept in
    /// `known`, so that no path is climbed twice, however deep the tree is.
    fn reaches_root(&self, ino: Inum, known: &mut [Option<bool>]) -> bool {
        let (mut at, mut way) = (ino, Vec::new());
        let reaches = loop {
            if at == ROOT {
                break true;
            }
            if !self.is_ino(at) {
                break false;
            }
            if let Some(reaches) = known[at.index()] {
                break reaches;
            }
            let inode = self.load(at);
            if !inode.is_dir() {
                break false;
            }
            // A directory met again on the same path is in a cycle.
            known[at.index()] = Some(false);
            way.push(at);
            at = inode.parent();
        };
        way.into_iter().for_each(|dir| known[dir.index()] = Some(reaches));
        reaches
    }
}

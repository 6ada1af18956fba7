//! Checking a whole pool: every structure against every other. Changes nothing; [`crate::audit::repair`] does.
//!
//! What lives here: [`fsck`] and its phases. It works on the raw tables, not on a mounted engine, so that it can
//! look at pools that no longer mount. The journal is replayed first, into the caller's (private) mapping.
//!
//! Legal after a crash, and so no finding: inodes without names and intents; the next mount finishes them.

use crate::audit::boot::stale_boot;
use crate::audit::owner::{MAYBE_COPIED, may_be_live_copy};
use crate::format::log_entry::has_log;
use crate::page::scan;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{FileMap, MapEntry, PageId};
use ferrite_pm::Region;
use ferrite_vfs::{FileKind, ROOT_INO};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::audit::mend;
use crate::error::EngineError;
use crate::format::data_sum;
use crate::format::dentry::{self, FIRST_ENTRY};
use crate::format::inode::{INLINE_BYTES, Inode};
use crate::format::layout::lblks;
use crate::format::layout::{BLOCK_BYTES, MAX_FILE_BYTES, Superblock};
use crate::format::xattr;
use crate::journal::replay::{self, Losses};
use crate::options::{Finding, FsckOptions, FsckReport};
use crate::space::names::NameTable;

/// Findings kept; a ruined pool would otherwise fill the memory with them.
const FINDINGS_MAX: usize = 1000;

/// Pages of data after which progress is told.
const DATA_STEP: u64 = 4096;

pub(crate) type Progress<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

struct Check {
    region: Arc<Region>,
    superblock: Superblock,
    map: Box<dyn FileMap>,
    names: NameTable,
    /// Blocks seen to have an owner.
    owned: AtomicBitmap,
    /// Per inode: pages mapped, and names found (for directories: subdirectories).
    pages: Vec<AtomicU32>,
    links: Vec<AtomicU32>,
    /// Pages that have logs.
    logged: Mutex<Vec<MapEntry>>,
    /// Blocks of directories: directory, logical block, block. Sorted before they are used.
    dir_blocks: Mutex<Vec<(u32, u32, u32)>>,
    findings: Mutex<Vec<Finding>>,
    /// There were more than are kept.
    more: AtomicBool,
}

/// Checks the pool in `region`, which should be a private mapping: the journal's records are applied to it. `progress`
/// gets phase, done, total. Fails only if there is no pool to check, or part of it cannot be read; damage goes to the
/// report.
pub fn fsck(region: Region, progress: Progress<'_>) -> Result<FsckReport, EngineError> {
    fsck_with(region, FsckOptions::default(), progress)
}

/// As [`fsck`], with choices.
pub fn fsck_with(region: Region, options: FsckOptions, progress: Progress<'_>) -> Result<FsckReport, EngineError> {
    let superblock = Superblock::find(&region)?;
    let mut findings = superblock_findings(&region, &superblock);
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
    if let Err(error) = mend::finish(&region, &superblock) {
        findings.push(Finding {
            phase: "journal",
            what: error.cause(),
        });
    }
    let replayed_records = match replay::replay(&region, &superblock, Losses::Keep) {
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
    // What cannot be read looks like zeros: nothing that was found in such a pool means anything.
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
    let counters = || (0..superblock.inodes).map(|_| AtomicU32::new(0)).collect();
    let check = Check {
        map: superblock.mapping.open(Arc::clone(&region), superblock.map_geometry()),
        names: NameTable::new(Arc::clone(&region), &superblock),
        owned: AtomicBitmap::new(superblock.blocks),
        pages: counters(),
        links: counters(),
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
    if options.data {
        check.data(report.pages, progress);
    }
    report.blocks = check.owned.count_used();
    report.findings = check.findings.into_inner();
    report.more = check.more.into_inner();
    report
}

/// What is wrong with the copies of the superblock.
pub(crate) fn superblock_findings(region: &Region, superblock: &Superblock) -> Vec<Finding> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    let mut findings = Vec::new();
    for (name, offset) in [("first", 0), ("second", superblock.second_copy_offset())] {
        region.read(offset, &mut block);
        let wrong = match Superblock::decode(&block) {
            Ok(found) if found == *superblock => continue,
            Ok(_) => format!("the {name} copy differs"),
            Err(error) => format!("the {name} copy: {}", error.cause()),
        };
        findings.push(Finding {
            phase: "superblock",
            what: wrong,
        });
    }
    findings
}

impl Check {
    fn find(&self, phase: &'static str, what: String) {
        let mut findings = self.findings.lock();
        if findings.len() < FINDINGS_MAX {
            findings.push(Finding { phase, what });
        } else {
            self.more.store(true, Ordering::Relaxed);
        }
    }

    fn load(&self, ino: u32) -> Inode {
        Inode::load(&self.region, self.superblock.inode_offset(ino))
    }

    fn is_ino(&self, ino: u32) -> bool {
        ino != 0 && u64::from(ino) < self.superblock.inodes
    }

    /// Notes an owner of `block`; says what is wrong with that.
    fn own(&self, block: u32) -> Option<&'static str> {
        if !self.superblock.is_data_block(block) {
            return Some("which is no data block");
        }
        (!self.owned.claim(u64::from(block) - self.superblock.first_block))
            .then_some("which belongs to another as well")
    }

    fn mapping(&self) -> u64 {
        let pages = AtomicU64::new(0);
        let visit = |entry: MapEntry| {
            pages.fetch_add(1, Ordering::Relaxed);
            let MapEntry { ino, lblk, word, slot } = entry;
            let at = format!("mapping slot {slot} (inode {ino}, page {lblk})");
            let inode = self.is_ino(ino).then(|| self.load(ino)).filter(Inode::in_use);
            let Some(inode) = inode else {
                self.find("mapping", format!("{at}: the inode is free"));
                return;
            };
            self.pages[ino as usize].fetch_add(1, Ordering::Relaxed);
            if has_log(word) {
                self.logged.lock().push(entry);
            }
            if inode.is_dir() {
                self.dir_blocks.lock().push((ino, lblk, word.page()));
            } else if !word.is_unwritten() && u64::from(lblk) >= inode.written_end() && inode.is_sound(ino) {
                self.find("mapping", format!("{at}: lies behind the end of the file"));
            }
            if let Some(wrong) = self.own(word.page()) {
                self.find("mapping", format!("{at}: names block {}, {wrong}", word.page()));
            }
        };
        if self.map.hashed_keys().is_some() {
            // Its loading looks at everything, on two threads.
            if let Err(error) = self.map.load(2, &visit) {
                self.find("mapping", error.to_string());
            }
        } else if !self.structure(&visit) {
            // What is broken may claim to map any number of pages.
            self.logs();
            return pages.into_inner();
        }
        self.logs();
        // Only now are the bounds known, so only now can lookups be tried.
        self.map.for_each(&mut |entry| {
            self.place(&entry);
            true
        });
        pages.into_inner()
    }

    /// Whether a page lies where lookups find it, and is the one that it is mapped as, as far as that can be told.
    fn place(&self, entry: &MapEntry) {
        let &MapEntry { ino, lblk, word, slot } = entry;
        let wrong = |what: &str| {
            self.find(
                "mapping",
                format!("mapping slot {slot}: page {lblk} of inode {ino} {what}"),
            );
        };
        if self.map.get(PageId::new(ino, lblk)) != word {
            wrong("is mapped twice");
        }
        let hashfs = self.map.hashed_keys();
        if hashfs.is_some_and(|map| map.is_out_of_reach(PageId::new(ino, lblk), u64::from(slot))) {
            wrong("cannot be there");
        }
        if let Some(other) = data_sum::misplaced(&self.region, &self.superblock, entry)
            && self.map.get(PageId::new(ino, other)).is_hole()
            && self.is_ino(ino)
            && !self.load(ino).is_dir()
        {
            wrong(&format!("is what was written as page {other}"));
        }
    }

    /// A structure that has a check of its own, and lies in blocks that are nobody else's. Says if it is whole.
    fn structure(&self, visit: &dyn Fn(MapEntry)) -> bool {
        let (mut nodes, mut is_whole) = (Vec::new(), true);
        self.map
            .check(&mut |entry| visit(entry), &mut |node| nodes.push(node), &mut |broken| {
                self.find("mapping", broken.what);
                is_whole = false;
            });
        for node in nodes {
            if let Some(wrong) = self.own(node) {
                self.find(
                    "mapping",
                    format!("a node of the mapping lies in block {node}, {wrong}"),
                );
            }
        }
        if let Err(error) = self.map.load(2, &|_| {}) {
            self.find("mapping", error.to_string());
            is_whole = false;
        }
        if !is_whole {
            return false;
        }
        self.map.for_each_node(&mut |node, ino| {
            if !self.is_ino(ino) || !self.load(ino).in_use() {
                self.find(
                    "mapping",
                    format!("a node in block {node} belongs to inode {ino}, which is free"),
                );
            }
        });
        true
    }

    /// Page logs: chains, lengths, checksums of all entries, links forward, and who owns what.
    fn logs(&self) {
        let logged = std::mem::take(&mut *self.logged.lock());
        // Units of log blocks in use, one bit each.
        let mut slabs: FxHashMap<u32, u64> = FxHashMap::default();
        for entry in logged {
            let page = PageId::new(entry.ino, entry.lblk);
            let at = format!("log of page {} of inode {}", entry.lblk, entry.ino);
            let mut newer = 0;
            let mut buffer = [0; BLOCK_BYTES as usize];
            let walked = scan::entries((&self.region, &self.superblock), page, entry.word, &mut |found| {
                found.read(&self.region, &mut buffer)?;
                if !found.trailer.is_first() {
                    return Ok(true);
                }
                let segment = found.segment();
                let unit = segment.header;
                let next = self.region.load(unit.offset());
                if next != newer {
                    self.find(
                        "logs",
                        format!("{at}: segment {unit} is followed by {newer}, but names {next}"),
                    );
                }
                newer = u64::from(unit.0);
                let block = unit.block();
                if !slabs.contains_key(&block)
                    && let Some(wrong) = self.own(block)
                {
                    self.find("logs", format!("{at}: segment {unit} lies in block {block}, {wrong}"));
                }
                let used = slabs.entry(block).or_default();
                if *used & segment.bits() != 0 {
                    self.find("logs", format!("{at}: segment {unit} overlaps another"));
                }
                *used |= segment.bits();
                Ok(true)
            });
            if let Err(error) = walked {
                self.find("logs", error.to_string());
            }
        }
    }

    fn inodes(&self, report: &mut FsckReport, progress: Progress<'_>) {
        for ino in 1..self.superblock.inodes as u32 {
            if ino % 65536 == 1 {
                progress("inodes", u64::from(ino), self.superblock.inodes);
            }
            let inode = self.load(ino);
            if !inode.is_sound(ino) {
                self.find("inodes", format!("inode {ino}: wrong checksum"));
            } else if inode.in_use() {
                report.inodes += 1;
                report.orphans += u64::from(inode.nlink() == 0);
                self.inode(ino, &inode);
            }
        }
        let root = self.load(ROOT_INO as u32);
        if !root.is_dir() || u64::from(root.parent()) != ROOT_INO {
            self.find(
                "inodes",
                "inode 1: the root is no directory, or not its own parent".into(),
            );
        }
    }

    fn inode(&self, ino: u32, inode: &Inode) {
        let wrong = |what: String| self.find("inodes", format!("inode {ino}: {what}"));
        let Some(kind) = inode.kind() else {
            return wrong(format!("impossible mode {:o}", inode.mode_bits()));
        };
        let pages = self.pages[ino as usize].load(Ordering::Relaxed);
        if pages != inode.blocks() {
            wrong(format!("counts {} pages, {pages} are mapped", inode.blocks()));
        }
        if inode.size() > MAX_FILE_BYTES {
            wrong(format!("impossible size {}", inode.size()));
        }
        if inode.is_inline() && (pages > 0 || inode.size() > INLINE_BYTES as u64) {
            wrong(format!(
                "has its content inside, but {pages} pages and {} bytes",
                inode.size()
            ));
        }
        // One without a name is being freed, and its page goes first.
        if kind == FileKind::Symlink
            && inode.nlink() > 0
            && !inode.is_inline()
            && self.map.get(PageId::new(ino, 0)).is_hole()
        {
            wrong("symbolic link without a target".into());
        }
        if matches!(
            kind,
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice
        ) && pages > 0
        {
            wrong(format!("special file with {pages} pages"));
        }
        let block = inode.xattr_block();
        if block != 0 {
            if let Some(problem) = self.own(block) {
                wrong(format!("extended attributes in block {block}, {problem}"));
            } else if !xattr::is_sound(&self.region, &self.superblock, ino, block) {
                wrong(format!("damaged extended attributes in block {block}"));
            }
        }
    }

    fn directories(&self, report: &mut FsckReport, progress: Progress<'_>) {
        let mut blocks = std::mem::take(&mut *self.dir_blocks.lock());
        blocks.sort_unstable();
        for ino in 1..self.superblock.inodes as u32 {
            if ino % 65536 == 1 {
                progress("directories", u64::from(ino), self.superblock.inodes);
            }
            let inode = self.load(ino);
            if inode.is_dir() && inode.is_sound(ino) {
                let first = blocks.partition_point(|&(dir, _, _)| dir < ino);
                let own = blocks[first..].iter().take_while(|&&(dir, _, _)| dir == ino);
                let entries = self.directory(ino, &inode, own.map(|&(_, lblk, block)| (lblk, block)));
                report.entries += u64::from(entries);
                if entries != inode.entries() {
                    let what = format!("directory {ino}: counts {} entries, {entries} found", inode.entries());
                    self.find("directories", what);
                }
            }
        }
    }

    fn directory(&self, dir: u32, inode: &Inode, blocks: impl Iterator<Item = (u32, u32)>) -> u32 {
        let mut entries = 0;
        let end = lblks(inode.size());
        for (lblk, block) in blocks {
            if u64::from(lblk) >= end {
                self.find(
                    "directories",
                    format!("directory {dir}: block {lblk} lies behind its end"),
                );
            }
            if !self.superblock.is_data_block(block) {
                continue;
            }
            let offset = self.superblock.block_offset(block);
            if dentry::read_block_header(&self.region, offset).ok() != Some((dir, lblk)) {
                let what = format!("directory {dir}: block {lblk} has another's header, or a damaged one");
                self.find("directories", what);
                continue;
            }
            if let Err(error) = self.block(dir, offset, &mut entries) {
                self.find("directories", format!("directory {dir}: {error}"));
            }
        }
        entries
    }

    fn block(&self, dir: u32, offset: u64, entries: &mut u32) -> ferrite_vfs::Result<()> {
        let mut within = FIRST_ENTRY;
        while within < BLOCK_BYTES {
            let at = offset + within;
            let head = dentry::head(&self.region, at)?;
            if head.ino != 0 {
                *entries += 1;
                let entry = dentry::read(&self.region, at, dir)?;
                self.entry(dir, at, &entry);
            }
            within += head.len_bytes;
        }
        Ok(())
    }

    fn entry(&self, dir: u32, at: u64, entry: &dentry::Entry) {
        let name = String::from_utf8_lossy(entry.name());
        let wrong = |what: &str| self.find("directories", format!("entry {name:?} of directory {dir}: {what}"));
        if !self.is_ino(entry.ino) || !self.load(entry.ino).in_use() {
            return wrong(&format!("names inode {}, which is free", entry.ino));
        }
        let child = self.load(entry.ino);
        if child.kind() != Some(entry.kind) {
            wrong("its kind is not the inode's");
        }
        match self.names.find(&self.names.key(dir, entry.name())) {
            Ok(Some(found)) if found.entry_offset == at => {}
            Ok(Some(_)) => wrong("the name stands twice"),
            _ => wrong("missing in the name table, so no lookup finds it"),
        }
        if child.is_dir() {
            if child.parent() != dir {
                wrong(&format!("the directory's parent is inode {}", child.parent()));
            }
            self.links[dir as usize].fetch_add(1, Ordering::Relaxed);
        }
        self.links[entry.ino as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn name_table(&self, entries: u64) {
        let mut slots = 0u64;
        self.names.for_each(&mut |slot, target| {
            slots += 1;
            let Some(offset) = target else {
                return self.find("names", format!("name slot {slot} points outside the data blocks"));
            };
            match dentry::head(&self.region, offset) {
                Ok(head) if head.ino != 0 => {}
                _ => self.find("names", format!("name slot {slot} points to no entry")),
            }
        });
        if slots != entries {
            self.find("names", format!("{slots} name slots for {entries} entries"));
        }
    }

    fn link_counts(&self, progress: Progress<'_>) {
        let mut known = vec![None; self.superblock.inodes as usize];
        for ino in 1..self.superblock.inodes as u32 {
            if ino % 65536 == 1 {
                progress("links", u64::from(ino), self.superblock.inodes);
            }
            let inode = self.load(ino);
            if !inode.in_use() || !inode.is_sound(ino) {
                continue;
            }
            let found = self.links[ino as usize].load(Ordering::Relaxed);
            // A directory's own name counts once, and stands for `.` as well; the root has none but counts as if.
            let is_root = u64::from(ino) == ROOT_INO;
            let expected = match inode.is_dir() {
                true if is_root => found + 2,
                true if found == 0 => 0,
                true => found + 1,
                false => found,
            };
            if inode.nlink() != expected {
                self.find(
                    "links",
                    format!("inode {ino}: link count {}, {expected} found", inode.nlink()),
                );
            }
            if inode.is_dir() && !is_root && expected > 0 && !self.reaches_root(ino, &mut known) {
                self.find("links", format!("directory {ino} cannot be reached from the root"));
            }
        }
    }

    /// The pages of sound files and links against their checksums.
    fn data(&self, pages: u64, progress: Progress<'_>) {
        let mut done = 0;
        self.map.for_each(&mut |entry| {
            if done % DATA_STEP == 0 {
                progress("data", done, pages);
            }
            done += 1;
            let is_data = self.is_ino(entry.ino) && {
                let inode = self.load(entry.ino);
                inode.in_use() && inode.is_sound(entry.ino) && !inode.is_dir()
            };
            if is_data && let Some((error, _)) = data_sum::wrong_word(&self.region, &self.superblock, &entry) {
                self.find("data", error.to_string());
            }
            true
        });
    }

    /// Whether a directory's parents lead to the root. What is found holds for all on the way, and is kept in `known`,
    /// so that no way is climbed twice, however deep the tree is.
    fn reaches_root(&self, ino: u32, known: &mut [Option<bool>]) -> bool {
        let (mut at, mut way) = (ino, Vec::new());
        let reaches = loop {
            if u64::from(at) == ROOT_INO {
                break true;
            }
            if !self.is_ino(at) {
                break false;
            }
            if let Some(reaches) = known[at as usize] {
                break reaches;
            }
            let inode = self.load(at);
            if !inode.is_dir() {
                break false;
            }
            // Who is met again on the same way is in a circle.
            known[at as usize] = Some(false);
            way.push(at);
            at = inode.parent();
        };
        way.into_iter().for_each(|dir| known[dir as usize] = Some(reaches));
        reaches
    }
}

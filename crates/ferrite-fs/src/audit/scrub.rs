//! Scrubbing: reading everything that carries a checksum while the pool is in use, so that damage is found before the
//! data is needed.
//!
//! Contents: [`scrub`]. It holds one inode's shared lock at a time, and reads no faster than its limit. Writers
//! wait for it as they wait for a reader; in a large file, no longer than a few of its pages take. It changes nothing:
//! `fsck --repair` does, on a pool that is not mounted.

use std::time::{Duration, Instant};

use ferrite_map::{BlockNo, Inum, Lblk, MapEntry, PageId, PageWord, SlotNo};
use ferrite_vfs::{FsError, Result};

use crate::audit::fsck::Progress;
use crate::audit::rules::dirs::Header;
use crate::audit::rules::logs::Met;
use crate::audit::rules::{View, dirs, inodes, logs, names, superblock};
use crate::audit::wrong::Wrong;
use crate::cache::inodes::InodeMem;
use crate::file::truncate::mapped_pages;
use crate::format::data_sum;
use crate::format::inode::Inode;
use crate::format::layout::{BLOCK_BYTES, INODE_BYTES};
use crate::format::page_buffer::PageBuffer;
use crate::options::ScrubReport;
use crate::page::block;
use crate::pool::core::Core;
use crate::tree::dir::mapped_lblks;

/// Pages checked under one hold of a file's lock.
const PAGES_AT_ONCE: usize = 256;
/// Findings kept.
const FINDINGS_MAX: usize = 1000;

struct Scrub<'e> {
    core: &'e Core,
    progress: Progress<'e>,
    /// Inodes that were checked completely.
    inodes_done: u64,
    report: ScrubReport,
    started: Instant,
    bytes_per_second: Option<u64>,
}

/// Checks superblocks, inodes, directories, extended attributes and page logs of a mounted pool, and file data where it
/// carries checksums. `bytes_per_second` limits the rate, unless it is 0. Blocks until it is done.
pub(crate) fn scrub<'e>(core: &'e Core, bytes_per_second: Option<u64>, progress: Progress<'e>) -> Result<ScrubReport> {
    core.check_readable()?;
    let mut scrub = Scrub {
        core,
        progress,
        inodes_done: 0,
        report: ScrubReport::default(),
        started: Instant::now(),
        bytes_per_second: bytes_per_second.filter(|&limit| limit > 0),
    };
    // Reported when the mount found it.
    scrub.report.findings.extend_from_slice(core.quarantine.findings());
    scrub.superblocks();
    for ino in core.superblock.inums(&core.region) {
        if core.inode_map.is_set(u64::from(ino)) {
            scrub.inode(ino);
            core.check_readable()?;
            scrub.inodes_done = u64::from(ino);
            scrub.pace();
        }
    }
    core.runtime_errors.scrubbed(&scrub.report);
    Ok(scrub.report)
}

/// Damage in the words of an operation that meets it, so that both count as one.
fn text(error: FsError) -> String {
    match error {
        FsError::Damaged(damage) => damage.to_string(),
        FsError::Io(what) => what,
        other => other.to_string(),
    }
}

impl<'e> Scrub<'e> {
    fn view(&self) -> View<'e> {
        View {
            region: &self.core.region,
            superblock: &self.core.superblock,
            map: self.core.map.as_ref(),
        }
    }

    /// Returns whether it is a new finding that is kept.
    fn find(&mut self, what: String) -> bool {
        self.core.runtime_errors.find("a scrub", &what);
        // The mount may have reported it.
        if self.report.findings.contains(&what) {
            return false;
        }
        let has_space = self.report.findings.len() < FINDINGS_MAX;
        match has_space {
            true => self.report.findings.push(what),
            false => self.report.more = true,
        }
        has_space
    }

    /// Waits until the bytes read are within the limit.
    fn pace(&mut self) {
        self.tell();
        if let Some(limit) = self.bytes_per_second {
            let due = Duration::from_secs_f64(self.report.bytes as f64 / limit as f64);
            std::thread::sleep(due.saturating_sub(self.started.elapsed()));
        }
    }

    /// Reports progress: by bytes where all data is read, since one file may be most of it, else by inodes.
    fn tell(&mut self) {
        let superblock = &self.core.superblock;
        let (done, total) = match superblock.has_data_checksums() {
            true => (
                self.report.bytes,
                (superblock.blocks - self.core.alloc.free().min(superblock.blocks)) * BLOCK_BYTES,
            ),
            false => (self.inodes_done, superblock.inodes),
        };
        (self.progress)("scrubbing", done.min(total), total);
    }

    fn superblocks(&mut self) {
        self.report.bytes += 2 * BLOCK_BYTES;
        for wrong in superblock::copies(&self.core.region, &self.core.superblock) {
            self.find(wrong.told());
        }
    }

    fn inode(&mut self, ino: Inum) {
        let mem = self.core.inodes.get(ino);
        let pages = self.all_but_pages(ino, &mem);
        for chunk in pages.chunks(PAGES_AT_ONCE) {
            let lock = mem.read();
            if mem.is_dead() {
                return;
            }
            let is_bound = self.core.load(ino).is_bound();
            for &lblk in chunk {
                self.page(PageId::new(ino, lblk), is_bound);
            }
            drop(lock);
            self.pace();
        }
    }

    /// Checks an inode; returns the pages that remain to be checked.
    fn all_but_pages(&mut self, ino: Inum, mem: &InodeMem) -> Vec<Lblk> {
        let _lock = mem.read();
        let inode = self.core.load(ino);
        self.report.bytes += INODE_BYTES;
        if let Some(wrong) = inodes::of_itself(ino, &inode) {
            self.find(wrong.to_string());
            return Vec::new();
        }
        if mem.is_dead() || !inode.in_use() || self.core.quarantine.check_inode(ino).is_err() {
            return Vec::new();
        }
        self.report.inodes += 1;
        let block = inode.xattr_block();
        if block != BlockNo::NONE {
            self.report.bytes += BLOCK_BYTES;
            // The mount has checked whether anything else names it.
            let own = inodes::attribute_blocks(self.view(), ino, block, |_| true);
            if let Err(wrong) = own.and_then(|()| inodes::attributes(self.view(), ino, block)) {
                self.find(wrong.to_string());
            }
        }
        if inode.is_dir() {
            self.directory(ino, &inode);
            Vec::new()
        } else if inode.blocks() == 0 {
            Vec::new()
        } else if self.core.superblock.has_data_checksums() {
            mapped_pages(self.core, mem, &inode, 0)
        } else {
            let mut pages = mapped_pages(self.core, mem, &inode, 0);
            pages.retain(|&lblk| self.core.map.get(PageId::new(ino, lblk)).has_log());
            pages
        }
    }

    fn directory(&mut self, dir: Inum, inode: &Inode) {
        for lblk in mapped_lblks(self.core, dir, inode, 0) {
            let lblk = lblk as u32;
            let word = self.core.map.get(PageId::new(dir, Lblk::new(lblk)));
            if word == PageWord::HOLE {
                continue;
            }
            self.report.bytes += BLOCK_BYTES;
            self.block(dir, Lblk::new(lblk), word);
        }
    }

    fn block(&mut self, dir: Inum, lblk: Lblk, word: PageWord) {
        let (view, table) = (self.view(), &self.core.names);
        if view.own(self.core.superblock.page(word), |_| true).is_err() {
            self.find(text(data_sum::no_data(
                PageId::new(dir, lblk),
                self.core.superblock.page(word),
            )));
            return;
        }
        let offset = self.core.superblock.block_offset(self.core.superblock.page(word));
        let header = dirs::header(view, offset, PageId::new(dir, lblk));
        if header != Header::Right {
            self.find(Wrong::DirHeader { dir, lblk }.to_string());
        }
        if header == Header::Others {
            return;
        }
        let walked = dirs::entries(view, dir, offset, &mut |at, entry| {
            self.report.entries += 1;
            let found = entry.and_then(|entry| {
                let wrong = |what| Wrong::entry(dir, entry.name(), what);
                names::is_found(table, dir, &entry, at).map_err(wrong)
            });
            if let Err(wrong) = found {
                self.find(wrong.to_string());
            }
        });
        if let Err(wrong) = walked {
            self.find(wrong.to_string());
        }
    }

    /// Checks a page's log, and its block if data carries checksums. The page may have changed since it was listed.
    fn page(&mut self, page: PageId, is_bound: bool) {
        let core = self.core;
        let word = core.map.get(page);
        if word.is_hole() || word.is_unwritten() {
            return;
        }
        let mut buffer = PageBuffer::take();
        if word.has_log() {
            let at = MapEntry {
                ino: page.ino,
                lblk: page.lblk,
                word,
                slot: SlotNo::new(0),
            };
            let mut links = Vec::new();
            let walked = logs::walk(self.view(), &at, &mut buffer, &mut |met| match met {
                Met::Entry { bytes } => {
                    self.report.log_entries += 1;
                    self.report.bytes += bytes;
                }
                // The mount has checked what else lies there.
                Met::Segment(segment) => links.extend(segment.link().err()),
            });
            for what in links.into_iter().chain(walked.err()) {
                self.find(Wrong::Log { page: at, what }.to_string());
            }
        }
        if core.superblock.has_data_checksums() {
            self.report.pages += 1;
            self.report.bytes += BLOCK_BYTES;
            let read = match is_bound {
                true => block::read_bound(core, page, word, 0, &mut buffer[..]),
                false => block::read_block(core, page, word, 0, &mut buffer[..]),
            };
            if let Err(error) = read
                && self.find(text(error))
            {
                self.report.data_findings += 1;
            }
        }
    }
}

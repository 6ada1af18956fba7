//! Seeking data and holes (`lseek` with `SEEK_DATA` and `SEEK_HOLE`).
//!
//! No lock is held across a long search: it runs in steps, each of which sees one consistent state of the file, as a
//! read does. The search does not notice changes before the place it has reached, so its result was right when it
//! searched there.
//!
//! If the mapping cannot list a file's pages, holes are skipped with the help of the inode's
//! [`crate::cache::mapped_ranges::MappedRanges`]. If that knows too little of a file, all of its pages are found once,
//! and the summary learns them: without the lock unless writers are faster, and only if the version is unchanged.

use ferrite_map::{Lblk, PageId, PageRange, PageWord};
use ferrite_vfs::{FsError, Result};

use super::read::{BATCH, Reader};
use super::truncate;
use crate::cache::inodes::InodeMem;
use crate::format::inode::Inode;
use crate::format::layout::{BLOCK_BYTES, lblks};
use crate::pool::core::Core;

/// Pages examined in one step.
const STEP_PAGES: u64 = 1024;
/// Pages examined without a result before a walk for all pages of the file is considered.
const WALK_PAGES: u64 = 4096;

/// Result of a step.
enum Step {
    /// The logical block that was searched for.
    Found(u64),
    /// Nothing before this one; continue here.
    On(u64),
    /// Nothing.
    End,
}

fn holds_data(word: PageWord) -> bool {
    !word.is_hole() && !word.is_unwritten()
}

impl Reader<'_> {
    /// The first offset from `offset` on that has data.
    pub(crate) fn find_data(&self, offset: u64) -> Result<u64> {
        self.seek(
            offset,
            |_| Ok(offset),
            |inode, at, looked, version| {
                let end = lblks(inode.size());
                match self.core.map.walk_worth() {
                    Some(worth) if looked >= WALK_PAGES && self.inode.mapped_ranges.covered(at, end, worth) > worth => {
                        self.find_data_by_walk(inode, PageRange::new(at, end), worth, version)
                    }
                    Some(_) => self.look_for_data(at, end),
                    None => self.list_data(at, end),
                }
            },
            |_, found| found.ok_or(FsError::NoSuchAddress),
        )
    }

    /// The first offset from `offset` on that is in a hole, at the latest the end of the file.
    pub(crate) fn find_hole(&self, offset: u64) -> Result<u64> {
        self.seek(
            offset,
            |inode| Ok(inode.size()),
            |inode, at, _, _| self.look(at, lblks(inode.size()), |word| !holds_data(word)),
            |inode, found| Ok(found.unwrap_or(inode.size()).min(inode.size())),
        )
    }

    /// Searches in steps from `offset` on. `step` gets the inode, where to continue, how many pages were examined, and
    /// the version to be validated, `None` if the lock is held.
    fn seek(
        &self,
        offset: u64,
        inline: impl Fn(&Inode) -> Result<u64>,
        step: impl Fn(&Inode, u64, u64, Option<u64>) -> Step,
        answer: impl Fn(&Inode, Option<u64>) -> Result<u64>,
    ) -> Result<u64> {
        self.core.reading(|core| {
            let first = offset / BLOCK_BYTES;
            let mut at = first;
            let mut looked = 0;
            loop {
                let next = self.consistent_at(|version| {
                    let inode = core.load_live(self.inode)?;
                    core.quarantine.check_holes(self.inode.ino)?;
                    if offset >= inode.size() {
                        return Err(FsError::NoSuchAddress);
                    }
                    if inode.is_inline() {
                        return inline(&inode).map(Ok);
                    }
                    match step(&inode, at, looked, version) {
                        Step::Found(lblk) => answer(&inode, Some(offset.max(lblk * BLOCK_BYTES))).map(Ok),
                        Step::End => answer(&inode, None).map(Ok),
                        Step::On(next) => Ok(Err(next)),
                    }
                })?;
                match next {
                    Ok(found) => return Ok(found),
                    Err(next) => at = next,
                }
                looked += STEP_PAGES;
            }
        })
    }

    /// Examines pages one after the other.
    fn look(&self, first: u64, end: u64, is_wanted: impl Fn(PageWord) -> bool) -> Step {
        let mut words = [PageWord::HOLE; BATCH];
        let stop = first.saturating_add(STEP_PAGES).min(end);
        for at in (first..stop).step_by(BATCH) {
            let words = &mut words[..(stop - at).min(BATCH as u64) as usize];
            self.core
                .map
                .get_many(PageId::new(self.inode.ino, Lblk::at(at)), words, self.cache);
            if let Some(index) = words.iter().position(|&word| is_wanted(word)) {
                return Step::Found(at + index as u64);
            }
        }
        if stop < end { Step::On(stop) } else { Step::End }
    }

    /// Examines pages where there may be any.
    fn look_for_data(&self, mut at: u64, end: u64) -> Step {
        let mut left = STEP_PAGES;
        while let Some(PageRange { first, end: stop }) = self.inode.mapped_ranges.next_run(at, end) {
            if left == 0 {
                return Step::On(at);
            }
            at = stop.min(first + left);
            left = left.saturating_sub((at - first).max(BATCH as u64));
            if let Step::Found(found) = self.look(first, at, holds_data) {
                return Step::Found(found);
            }
        }
        Step::End
    }

    /// Asks a mapping that can list pages in order.
    fn list_data(&self, at: u64, end: u64) -> Step {
        let mut left = STEP_PAGES;
        let mut next = Step::End;
        self.core
            .map
            .for_range(self.inode.ino, Lblk::at(at), end, &mut |entry| {
                let lblk = u64::from(entry.lblk);
                left -= 1;
                if holds_data(entry.word) {
                    next = Step::Found(lblk);
                } else if left == 0 {
                    next = Step::On(lblk + 1);
                }
                matches!(next, Step::End)
            });
        next
    }

    /// Finds all pages of the file, for this search and for later ones.
    fn find_data_by_walk(&self, inode: &Inode, range: PageRange, worth: u64, version: Option<u64>) -> Step {
        let core = self.core;
        let pages = truncate::found_pages(core, self.inode.ino, inode, worth);
        learn(core, self.inode, &pages, version);
        let mut behind = pages.into_iter().filter(|&lblk| range.contains(u64::from(lblk)));
        match behind.find(|&lblk| holds_data(core.map.get(PageId::new(self.inode.ino, lblk)))) {
            Some(lblk) => Step::Found(u64::from(lblk)),
            None => Step::End,
        }
    }
}

/// Lets the inode's mapped ranges learn all its pages, if the list is still right and stays so while the summary learns
/// it.
fn learn(core: &Core, mem: &InodeMem, pages: &[Lblk], version: Option<u64>) {
    match version {
        None => mem
            .mapped_ranges
            .learn(PageRange::ALL, pages, &core.mapped_ranges_budget),
        Some(version) => {
            if let Some(_lock) = mem.try_read()
                && mem.end_read(version)
            {
                mem.mapped_ranges
                    .learn(PageRange::ALL, pages, &core.mapped_ranges_budget);
            }
        }
    }
}

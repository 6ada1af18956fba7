//! The damage that a mount found, and its quarantine: the structures it affects, and whether the pool may still be
//! changed. They are in DRAM and repair nothing.
//!
//! Contents: [`Quarantine`], which `audit/load/quarantine.rs` fills and every operation consults before it replies.
//! Damage does not keep a pool from being mounted, as long as its root directory can be read: access to damaged
//! structures fails with `EIO`, everything else works.
//!
//! Invariants:
//! * While it is unknown which blocks a damaged structure owns, nothing is changed: blocks that look free may belong
//!   to it.
//! * No operation returns data that may be wrong. Access to a damaged inode or page, or to an apparent hole in a file
//!   that has lost pages, fails with an error that names it.
//! * Nothing is added once operations run, so the checks take no lock.

use std::sync::Arc;

use ferrite_map::{Inum, PageId};
use ferrite_vfs::{FsError, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::format::data_sum;

/// Findings reported, and different reasons kept. Without a limit, a ruined pool would fill the memory and the log.
const FINDINGS_MAX: usize = 1000;
/// The reason used for all damage beyond the limit.
const MUCH_ELSE: &str = "damaged, like much else";
/// The remedy.
const REMEDY: &str = "run `ferrite fsck --repair`";

/// The damage that a mount found, and what it affects.
#[derive(Default)]
pub(crate) struct Quarantine {
    findings: Vec<String>,
    stops_changes: bool,
    /// The mapping is so broken that a walk of all of it may fail.
    mapping: bool,
    /// Pages in the mapping when it was loaded, if it could be loaded.
    pages: u64,
    /// Directories whose names may be missing in the table.
    names: FxHashSet<Inum>,
    /// Inodes of which nothing can be trusted.
    inodes: FxHashMap<Inum, Arc<str>>,
    /// Files that have lost pages.
    holes: FxHashMap<Inum, Arc<str>>,
    /// Pages whose content, or whose log, differs from what was written.
    damaged_pages: FxHashMap<PageId, Arc<str>>,
    /// The reasons above, each stored once, so that thousands of pages share one.
    reasons: FxHashSet<Arc<str>>,
}

impl Quarantine {
    /// Notes damage that leaves no doubt about which structure owns which blocks.
    pub(crate) fn note(&mut self, what: String) {
        match self.findings.len() {
            0..FINDINGS_MAX => {
                tracing::error!(%what, "the pool is damaged");
                self.findings.push(what);
            }
            FINDINGS_MAX => {
                tracing::error!("more damage was found than is listed; {REMEDY}");
                self.findings.push("more was found than is listed".into());
            }
            _ => {}
        }
    }

    /// Notes damage after which blocks that look free may be in use.
    pub(crate) fn stop(&mut self, what: String) {
        self.stops_changes = true;
        self.note(what);
    }

    /// The structure of the mapping is broken; `pages` could be read.
    pub(crate) fn break_mapping(&mut self, pages: u64) {
        (self.mapping, self.pages) = (true, pages);
    }

    /// Lookups may miss names of directory `dir`.
    pub(crate) fn lose_names(&mut self, dir: Inum) {
        self.names.insert(dir);
    }

    /// Nothing about `ino` may be returned.
    pub(crate) fn spoil_inode(&mut self, ino: Inum, why: &str) {
        let why = self.reason(why);
        self.inodes.entry(ino).or_insert(why);
    }

    /// Holes of file `ino` may have been pages.
    pub(crate) fn spoil_holes(&mut self, ino: Inum, why: &str) {
        let why = self.reason(why);
        self.holes.entry(ino).or_insert(why);
    }

    /// A page of a file must not be returned.
    pub(crate) fn spoil_page(&mut self, page: PageId, why: &str) {
        let why = self.reason(why);
        self.damaged_pages.entry(page).or_insert(why);
    }

    /// The single copy of a reason.
    fn reason(&mut self, why: &str) -> Arc<str> {
        let is_full = self.reasons.len() >= FINDINGS_MAX;
        let why = match is_full && !self.reasons.contains(why) {
            true => MUCH_ELSE,
            false => why,
        };
        if let Some(known) = self.reasons.get(why) {
            return Arc::clone(known);
        }
        let reason: Arc<str> = why.into();
        self.reasons.insert(Arc::clone(&reason));
        reason
    }

    /// The findings, one line each.
    pub(crate) fn findings(&self) -> &[String] {
        &self.findings
    }

    pub(crate) fn stops_changes(&self) -> bool {
        self.stops_changes
    }

    /// Pages counted at mount, if the mapping must not be walked any more.
    pub(crate) fn pages_counted(&self) -> Option<u64> {
        self.mapping.then_some(self.pages)
    }

    /// Whether a name that is not found in `dir` may exist nevertheless.
    pub(crate) fn loses_names(&self, dir: Inum) -> bool {
        !self.names.is_empty() && self.names.contains(&dir)
    }

    /// Whether reads have to check anything.
    pub(crate) fn touches_data(&self) -> bool {
        !self.damaged_pages.is_empty() || !self.holes.is_empty()
    }

    /// Refuses access to a damaged inode.
    pub(crate) fn check_inode(&self, ino: Inum) -> Result<()> {
        match self.inodes.get(&ino) {
            Some(why) => Err(FsError::damaged(u64::from(ino), format!("{why}; {REMEDY}"))),
            None => Ok(()),
        }
    }

    /// Refuses to treat an unmapped page as a hole, in a file that has lost pages.
    pub(crate) fn check_holes(&self, ino: Inum) -> Result<()> {
        match self.holes.get(&ino) {
            Some(why) => Err(FsError::damaged(u64::from(ino), format!("{why}; {REMEDY}"))),
            None => Ok(()),
        }
    }

    /// Refuses a file that has a damaged page.
    pub(crate) fn check_pages(&self, ino: Inum) -> Result<()> {
        match self.damaged_pages.iter().find(|(page, _)| page.ino == ino) {
            Some((&page, why)) => Err(data_sum::damaged(page, format!("{why}; {REMEDY}"))),
            None => Ok(()),
        }
    }

    /// Refuses a damaged page, or a hole that may have been a page.
    pub(crate) fn check_page(&self, page: PageId, is_hole: bool) -> Result<()> {
        let why = self.damaged_pages.get(&page);
        match why.or_else(|| self.holes.get(&page.ino).filter(|_| is_hole)) {
            Some(why) => Err(data_sum::damaged(page, format!("{why}; {REMEDY}"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_damaged_is_refused() {
        let mut quarantine = Quarantine::default();
        quarantine.note("something".into());
        assert!(!quarantine.stops_changes() && !quarantine.touches_data());
        quarantine.stop("something else".into());
        assert!(quarantine.stops_changes() && quarantine.findings().len() == 2);
        quarantine.spoil_inode(Inum::new(5), "lost");
        quarantine.spoil_holes(Inum::new(6), "counts 3 pages, 2 are mapped");
        quarantine.spoil_page(PageId::from_raw(7, 2), "damaged log");
        let text = |result: Result<()>| result.unwrap_err().to_string();
        assert!(text(quarantine.check_inode(Inum::new(5))).contains("inode 5: lost"));
        assert!(
            quarantine.check_inode(Inum::new(6)).is_ok()
                && quarantine.check_holes(Inum::new(5)).is_ok()
                && quarantine.check_holes(Inum::new(6)).is_err()
        );
        assert!(text(quarantine.check_page(PageId::from_raw(6, 1), true)).contains("inode 6, bytes 4096 to 8191"));
        assert!(
            quarantine.check_page(PageId::from_raw(6, 1), false).is_ok(),
            "a page that is there"
        );
        assert!(
            text(quarantine.check_page(PageId::from_raw(7, 2), false))
                .contains("inode 7, bytes 8192 to 12287: damaged log")
        );
        assert!(quarantine.check_page(PageId::from_raw(7, 1), true).is_ok());
        assert!(text(quarantine.check_pages(Inum::new(7))).contains("inode 7, bytes 8192 to 12287: damaged log"));
        assert!(quarantine.check_pages(Inum::new(6)).is_ok());
    }
    #[test]
    fn a_ruined_pool_fills_neither_memory_nor_log() {
        let mut quarantine = Quarantine::default();
        for ino in 0..3 * FINDINGS_MAX as u32 {
            quarantine.note(format!("inode {ino}"));
            quarantine.spoil_inode(Inum::new(ino), &format!("reason {ino}"));
            quarantine.spoil_page(PageId::from_raw(ino, 0), "its log is damaged");
        }
        assert_eq!(quarantine.findings().len(), FINDINGS_MAX + 1);
        assert!(quarantine.findings()[FINDINGS_MAX].contains("more"));
        assert!(
            quarantine.reasons.len() <= FINDINGS_MAX + 2,
            "{} reasons",
            quarantine.reasons.len()
        );
        let text = |ino| quarantine.check_inode(ino).unwrap_err().to_string();
        assert!(
            text(Inum::new(5)).contains("inode 5: reason 5"),
            "{}",
            text(Inum::new(5))
        );
        assert!(
            text(Inum::new(2999)).contains("inode 2999: damaged"),
            "{}",
            text(Inum::new(2999))
        );
        let shared = &quarantine.damaged_pages;
        assert!(
            Arc::ptr_eq(&shared[&PageId::from_raw(1, 0)], &shared[&PageId::from_raw(2999, 0)]),
            "one reason is kept once"
        );
    }
}

//! Damage that a mount found: what it is, whom it concerns, and whether the pool may still be changed.
//!
//! What lives here: [`Damage`], filled by `load.rs` and asked by whoever is about to answer. Damage does not keep a pool from being
//! mounted, as long as its root directory can be read: whatever is damaged answers `EIO`, everything else works.
//!
//! Invariants:
//! * While it is not known which blocks something damaged owns, nothing is changed: what looks free may be its.
//! * What may be wrong is never answered. An inode, a page, or what looks like a hole of a file that has lost pages, is an error
//!   that names it.
//! * Nothing is added once operations run, so asking takes no lock.

use ferrite_vfs::{FsError, Result};
use rustc_hash::FxHashMap;

use crate::sums;

/// Findings kept; a ruined pool would otherwise fill the memory with them.
const FINDINGS_MAX: usize = 1000;
/// What helps.
const MEND: &str = "run `ferrite fsck --repair`";

/// What a mount found.
#[derive(Default)]
pub(crate) struct Damage {
    findings: Vec<String>,
    stops_changes: bool,
    /// The mapping is broken in ways that walks of all of it need not survive.
    mapping: bool,
    /// Pages that the mapping had when it was loaded, if it is.
    pages: u64,
    /// Names may be missing in the table.
    names: bool,
    /// Of these nothing can be believed.
    inodes: FxHashMap<u32, String>,
    /// These have lost pages.
    holes: FxHashMap<u32, String>,
    /// These, or their logs, are not what was written.
    damaged_pages: FxHashMap<(u32, u32), String>,
}

impl Damage {
    /// Notes damage that leaves no doubt about who owns what.
    pub(crate) fn note(&mut self, what: String) {
        tracing::error!(%what, "the pool is damaged");
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what);
        }
    }

    /// Notes damage after which blocks that look free may be somebody's.
    pub(crate) fn stop(&mut self, what: String) {
        self.stops_changes = true;
        self.note(what);
    }

    /// The structure of the mapping is broken; `pages` could be read.
    pub(crate) fn break_mapping(&mut self, pages: u64) {
        (self.mapping, self.pages) = (true, pages);
    }

    /// Lookups may miss names.
    pub(crate) fn lose_names(&mut self) {
        self.names = true;
    }

    /// Nothing of `ino` is to be answered.
    pub(crate) fn spoil_inode(&mut self, ino: u32, why: &str) {
        self.inodes.entry(ino).or_insert_with(|| why.into());
    }

    /// Holes of file `ino` may have been pages.
    pub(crate) fn spoil_holes(&mut self, ino: u32, why: &str) {
        self.holes.entry(ino).or_insert_with(|| why.into());
    }

    /// A page of a file is not to be answered.
    pub(crate) fn spoil_page(&mut self, page: (u32, u32), why: &str) {
        self.damaged_pages.entry(page).or_insert_with(|| why.into());
    }

    /// What is wrong, a line each.
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

    /// Whether a name that is not found may be there all the same.
    pub(crate) fn loses_names(&self) -> bool {
        self.names
    }

    /// Whether reads have anything to ask about.
    pub(crate) fn touches_data(&self) -> bool {
        !self.damaged_pages.is_empty() || !self.holes.is_empty()
    }

    /// Refuses what a damaged inode would answer.
    pub(crate) fn check_inode(&self, ino: u32) -> Result<()> {
        match self.inodes.get(&ino) {
            Some(why) => Err(FsError::Io(format!("inode {ino}: {why}; {MEND}"))),
            None => Ok(()),
        }
    }

    /// Refuses to take what is not mapped for a hole, in a file that has lost pages.
    pub(crate) fn check_holes(&self, ino: u32) -> Result<()> {
        match self.holes.get(&ino) {
            Some(why) => Err(FsError::Io(format!("inode {ino}: {why}; {MEND}"))),
            None => Ok(()),
        }
    }

    /// Refuses a damaged page, or a hole that may have been one.
    pub(crate) fn check_page(&self, page: (u32, u32), is_hole: bool) -> Result<()> {
        let why = self.damaged_pages.get(&page);
        match why.or_else(|| self.holes.get(&page.0).filter(|_| is_hole)) {
            Some(why) => Err(FsError::Io(format!("{}: {why}; {MEND}", sums::place(page)))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_damaged_is_refused() {
        let mut damage = Damage::default();
        damage.note("something".into());
        assert!(!damage.stops_changes() && !damage.touches_data());
        damage.stop("something else".into());
        assert!(damage.stops_changes() && damage.findings().len() == 2);
        damage.spoil_inode(5, "lost");
        damage.spoil_holes(6, "counts 3 pages, 2 are mapped");
        damage.spoil_page((7, 2), "damaged log");
        let text = |result: Result<()>| result.unwrap_err().to_string();
        assert!(text(damage.check_inode(5)).contains("inode 5: lost"));
        assert!(damage.check_inode(6).is_ok() && damage.check_holes(5).is_ok() && damage.check_holes(6).is_err());
        assert!(text(damage.check_page((6, 1), true)).contains("inode 6, bytes 4096 to 8191"));
        assert!(damage.check_page((6, 1), false).is_ok(), "a page that is there");
        assert!(text(damage.check_page((7, 2), false)).contains("inode 7, bytes 8192 to 12287: damaged log"));
        assert!(damage.check_page((7, 1), true).is_ok());
    }
}

//! Translation: where the pages of a file lie in memory.
//!
//! Contents: [`Translations`], what is known of one file, and the [`Guard`] under which packets use it; [`Run`],
//! consecutive pages of memory; [`RangeMtt`], the table, and [`RangeCache`], which each thread keeps before the tables
//! of all its files. [`sets`] is the store behind a cache.
//!
//! Page and length are 32 bits each, as in FileMR: a file of 16 TiB with pages of 4 KiB.
//!
//! Invariants:
//!
//! * Packets touch pages under a guard only; code that moves pages has the same lock exclusively.
//! * [`Translations::epoch`] moves when a known page changes its place: translations that threads remember from before
//!   are void.

mod range_cache;
mod range_mtt;
mod sets;

use std::ops::Deref;
use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_roce::memory::Fault;
use ferrite_vfs::regions::{PageRun, Region};

use crate::sync::{AtomicU64, Ordering, ReadGuard};

pub use self::range_cache::RangeCache;
pub use self::range_mtt::RangeMtt;
pub use self::sets::{Counters, ENTRIES, Removed, SETS, Sets, WAYS, hash_of};

/// A run would go beyond the last page number, or has no pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a run of {pages} pages does not fit at page {at}")]
pub struct OutOfRange {
    /// Where it would begin.
    pub at: u32,
    /// Its length.
    pub pages: u32,
}

/// Consecutive pages of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first page of memory.
    pub page: u32,
    /// How many.
    pub pages: u32,
}

/// A run, and the page of the file at which its content begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placed {
    /// The first page of the file.
    pub at: u32,
    /// The pages of memory.
    pub run: Run,
}

impl Placed {
    /// A run that begins at page `at` of the file.
    ///
    /// # Errors
    /// If it has no pages, or goes beyond the last number of file or memory.
    pub fn new(at: u32, run: Run) -> Result<Placed, OutOfRange> {
        let Run { page, pages } = run;
        for at in [at, page] {
            if pages == 0 || at.checked_add(pages).is_none() {
                return Err(OutOfRange { at, pages });
            }
        }
        Ok(Placed { at, run })
    }

    /// The page of the file behind it.
    pub fn end(&self) -> u32 {
        self.at + self.run.pages
    }

    /// Whether it has this page of the file.
    pub fn contains(&self, page: u32) -> bool {
        (self.at..self.end()).contains(&page)
    }

    /// Whether it has one of the pages from `at` up to `end`.
    pub fn overlaps(&self, at: u32, end: u32) -> bool {
        self.at < end && at < self.end()
    }

    /// The part from page `page` of the file on, which it contains.
    pub fn from(&self, page: u32) -> Placed {
        let skipped = page - self.at;
        Placed {
            at: page,
            run: Run {
                page: self.run.page + skipped,
                pages: self.run.pages - skipped,
            },
        }
    }

    /// The part before page `page` of the file, which is behind its first.
    pub(crate) fn up_to(&self, page: u32) -> Placed {
        Placed {
            at: self.at,
            run: Run {
                page: self.run.page,
                pages: page.min(self.end()) - self.at,
            },
        }
    }
}

/// Where a page lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a run of memory pages.
    Run(Placed),
    /// In a run of holes, which read as zeros.
    Hole(Placed),
    /// Not known: must be requested.
    Unknown,
}

/// The known places of a file's pages: the state that guards protect.
#[derive(Default)]
pub(crate) struct Translations {
    pub(crate) pages: RangeMtt,
    /// Holes, as runs that lie where they are in the file: neighbours then become one.
    pub(crate) holes: RangeMtt,
    /// Grows beside guards: bytes behind the old end have their place before.
    pub(crate) size: AtomicU64,
    pub(crate) epoch: u64,
    pub(crate) region: Option<Arc<dyn Region>>,
    pub(crate) has_ended: bool,
}

impl Translations {
    /// Where page `page` of the file lies.
    pub(crate) fn place(&self, page: u32) -> Place {
        if let Some(found) = self.pages.lookup(page) {
            return Place::Run(found);
        }
        match self.holes.lookup(page) {
            Some(found) => Place::Hole(found),
            None => Place::Unknown,
        }
    }

    /// Whether `len_bytes` bytes at `at` are in the file.
    pub(crate) fn has(&self, at: u64, len_bytes: u64) -> bool {
        at.checked_add(len_bytes)
            .is_some_and(|end| end <= self.size.load(Ordering::SeqCst))
    }

    /// Moves when earlier translations become void.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether exactly this is known of these pages.
    pub(crate) fn knows(&self, run: &PageRun) -> bool {
        let (known, page) = match run.page {
            Some(page) => (self.pages.lookup(run.at), page),
            None => (self.holes.lookup(run.at), run.at),
        };
        known.is_some_and(|known| {
            let rest = known.from(run.at).run;
            rest.page == page && rest.pages >= run.pages
        })
    }

    /// The first unknown page from `page` on.
    pub(crate) fn next_unknown(&self, mut page: u32) -> u32 {
        while let Place::Run(known) | Place::Hole(known) = self.place(page) {
            page = known.end();
        }
        page
    }

    /// Forgets where these pages lie.
    pub(crate) fn forget(&mut self, first: u32, end: u32) {
        let count = end.saturating_sub(first);
        if self.pages.remove(first, count) > 0 && !is_seeded(Bug::StaleTranslation) {
            self.epoch += 1;
        }
        self.holes.remove(first, count);
    }
}

/// The right to touch pages, for the copy of one packet.
pub(crate) struct Guard<'f> {
    translations: ReadGuard<'f, Translations>,
}

impl<'f> Guard<'f> {
    /// The caller has checked, under this lock, that the key is not revoked.
    pub(crate) fn new(translations: ReadGuard<'f, Translations>) -> Guard<'f> {
        Guard { translations }
    }

    /// The pages themselves.
    ///
    /// # Errors
    /// `Access` if the file has none (any more).
    pub(crate) fn region(&self) -> Result<&dyn Region, Fault> {
        self.translations.region.as_deref().ok_or(Fault::Access)
    }

    /// The same, to call the engine after the guard.
    ///
    /// # Errors
    /// As [`Self::region`].
    pub(crate) fn into_region(self) -> Result<Arc<dyn Region>, Fault> {
        self.translations.region.clone().ok_or(Fault::Access)
    }
}

impl Deref for Guard<'_> {
    type Target = Translations;

    fn deref(&self) -> &Translations {
        &self.translations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_do_not_overlap() {
        let placed = Placed::new(10, Run { page: 1, pages: 5 }).unwrap();
        let overlaps = [(9, 10), (9, 11), (14, 15), (15, 16), (0, 99)].map(|(at, end)| placed.overlaps(at, end));
        assert_eq!(overlaps, [false, true, true, false, true]);
        assert_eq!(
            [9, 10, 14, 15].map(|page| placed.contains(page)),
            [false, true, true, false]
        );
        assert_eq!(
            (placed.up_to(12).run.pages, placed.from(12).run),
            (2, Run { page: 3, pages: 3 })
        );
    }
}

//! The table of a region by pages: an array with an entry for each page of the file, as adapters have it.
//!
//! It costs four bytes a page, and a call that registers a file takes as long as the file has pages.

use crate::run::{OutOfRange, Placed, Run};

/// No page. It is no number that a run can have, since runs end before it.
const ABSENT: u32 = u32::MAX;

/// A table of pages.
#[derive(Debug, Clone, Default)]
pub struct PageMtt {
    pages: Vec<u32>,
}

impl PageMtt {
    /// An empty table.
    pub fn new() -> PageMtt {
        PageMtt::default()
    }

    /// Puts `run` at page `at` of the file, page by page, in place of what was there. Gives how many pages that were.
    ///
    /// # Errors
    /// As [`crate::RangeMtt::insert`].
    pub fn insert(&mut self, at: u32, run: Run) -> Result<u32, OutOfRange> {
        let new = Placed::new(at, run)?;
        let (first, end) = (at as usize, new.end() as usize);
        if self.pages.len() < first {
            self.pages.resize(first, ABSENT);
        }
        let known = self.pages.len().min(end);
        let mut pages = run.page..run.page + run.pages;
        let mut replaced = 0;
        for (place, page) in self.pages[first..known].iter_mut().zip(&mut pages) {
            replaced += u32::from(*place != ABSENT);
            *place = page;
        }
        self.pages.extend(pages);
        Ok(replaced)
    }

    /// Removes `pages` pages from page `at` of the file on. Gives how many there were.
    pub fn remove(&mut self, at: u32, pages: u32) -> u32 {
        let len = self.pages.len();
        let end = (at.saturating_add(pages) as usize).min(len);
        let places = &mut self.pages[(at as usize).min(end)..end];
        let removed = places.iter().filter(|page| **page != ABSENT).count();
        places.fill(ABSENT);
        if end == len {
            let kept = self.pages.iter().rposition(|page| *page != ABSENT);
            self.pages.truncate(kept.map_or(0, |last| last + 1));
        }
        removed as u32
    }

    /// The page of memory that page `page` of the file is in.
    pub fn lookup(&self, page: u32) -> Option<u32> {
        self.pages.get(page as usize).copied().filter(|page| *page != ABSENT)
    }

    /// Entries, of pages that are not there too: what an adapter has to keep.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

//! The table of a region by pages: an array with an entry for each page of the file, as in adapters.
//!
//! It costs four bytes per page, and registering a file takes time proportional to its pages.

use ferrite_mr::{OutOfRange, Placed, Run};

/// No page. No run can have this number, since runs end before it.
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

    /// Puts `run` at page `at` of the file, page by page, replacing earlier pages. Returns how many it replaced.
    ///
    /// # Errors
    /// As [`ferrite_mr::RangeMtt::insert`].
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

    /// Removes `pages` pages from page `at` of the file on. Returns how many existed.
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

    /// The page of memory of page `page` of the file.
    pub fn lookup(&self, page: u32) -> Option<u32> {
        self.pages.get(page as usize).copied().filter(|page| *page != ABSENT)
    }

    /// Entries, including absent pages: all that an adapter has to keep.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

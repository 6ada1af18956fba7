//! Two methods to translate pages of files, which know no files: FileMR's by ranges, and the usual one of adapters.
//!
//! Contents: the trait [`Translation`]; [`Ranges`], the product's [`RangeMtt`] (a tree of runs for each file) behind a
//! [`RangeCache`]; [`Pages`], a [`PageMtt`] (an array of pages) behind a [`PageCache`]; and [`compare`], which measures
//! one against the other. Both caches have 4096 entries, four to a set, and serve all regions.

pub mod compare;
mod page_cache;
mod page_mtt;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use ferrite_mr::{Counters, OutOfRange, RangeCache, RangeMtt, Run};

pub use self::page_cache::PageCache;
pub use self::page_mtt::PageMtt;

/// Identifies a region, as an RDMA key does.
pub type RegionId = u32;

/// Translates pages of files to pages of memory.
pub trait Translation {
    /// Puts `run` at page `at` of a region, replacing earlier pages. The region need not exist yet.
    ///
    /// # Errors
    /// If the run has no pages or goes beyond the last page; nothing has changed then.
    fn insert(&mut self, region: RegionId, at: u32, run: Run) -> Result<(), OutOfRange>;

    /// Removes `pages` pages from page `at` on; no lookup finds them any more. Returns how many existed.
    fn remove(&mut self, region: RegionId, at: u32, pages: u32) -> u32;

    /// Removes a region.
    fn remove_region(&mut self, region: RegionId);

    /// The pages of memory from page `at` of the file on, as far as one lookup finds them: at least one.
    fn translate(&mut self, region: RegionId, at: u32) -> Option<Run>;

    /// Entries of all tables: all that an adapter loads and keeps.
    fn entries(&self) -> usize;

    /// The cache's counters.
    fn counters(&self) -> Counters;
}

/// By ranges, as in FileMR.
#[derive(Debug, Default)]
pub struct Ranges {
    tables: HashMap<RegionId, RangeMtt>,
    cache: RangeCache,
}

/// By pages, as in adapters.
#[derive(Debug, Default)]
pub struct Pages {
    tables: HashMap<RegionId, PageMtt>,
    cache: PageCache,
}

impl Translation for Ranges {
    fn insert(&mut self, region: RegionId, at: u32, run: Run) -> Result<(), OutOfRange> {
        // The cache knows only pages that a table had.
        if self.tables.entry(region).or_default().insert(at, run)? > 0 {
            self.cache.invalidate(region, at, at + run.pages);
        }
        Ok(())
    }

    fn remove(&mut self, region: RegionId, at: u32, pages: u32) -> u32 {
        self.cache.invalidate(region, at, at.saturating_add(pages));
        self.tables.get_mut(&region).map_or(0, |table| table.remove(at, pages))
    }

    fn remove_region(&mut self, region: RegionId) {
        self.tables.remove(&region);
        self.cache.invalidate(region, 0, u32::MAX);
    }

    fn translate(&mut self, region: RegionId, at: u32) -> Option<Run> {
        let found = match self.cache.lookup(region, at) {
            Some(found) => found,
            None => {
                let found = self.tables.get(&region)?.lookup(at)?;
                self.cache.fill(region, found);
                found
            }
        };
        Some(found.from(at).run)
    }

    fn entries(&self) -> usize {
        self.tables.values().map(RangeMtt::len).sum()
    }

    fn counters(&self) -> Counters {
        self.cache.counters()
    }
}

impl Translation for Pages {
    fn insert(&mut self, region: RegionId, at: u32, run: Run) -> Result<(), OutOfRange> {
        // The cache knows only pages that a table had.
        if self.tables.entry(region).or_default().insert(at, run)? > 0 {
            self.cache.invalidate(region, at, at + run.pages);
        }
        Ok(())
    }

    fn remove(&mut self, region: RegionId, at: u32, pages: u32) -> u32 {
        self.cache.invalidate(region, at, at.saturating_add(pages));
        self.tables.get_mut(&region).map_or(0, |table| table.remove(at, pages))
    }

    fn remove_region(&mut self, region: RegionId) {
        self.tables.remove(&region);
        self.cache.invalidate(region, 0, u32::MAX);
    }

    fn translate(&mut self, region: RegionId, at: u32) -> Option<Run> {
        let page = match self.cache.lookup(region, at) {
            Some(page) => page,
            None => {
                let page = self.tables.get(&region)?.lookup(at)?;
                self.cache.fill(region, at, page);
                page
            }
        };
        Some(Run { page, pages: 1 })
    }

    fn entries(&self) -> usize {
        self.tables.values().map(PageMtt::len).sum()
    }

    fn counters(&self) -> Counters {
        self.cache.counters()
    }
}

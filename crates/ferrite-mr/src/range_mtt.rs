//! The table of a region by ranges: a B-tree of runs, by the page of the file where each begins.
//!
//! Invariants: runs do not overlap and have at least one page. Two that follow each other in file and memory are one.

use std::collections::BTreeMap;

use crate::run::{OutOfRange, Placed, Run};

/// A table of runs.
#[derive(Debug, Clone, Default)]
pub struct RangeMtt {
    runs: BTreeMap<u32, Run>,
}

impl RangeMtt {
    /// An empty table.
    pub fn new() -> RangeMtt {
        RangeMtt::default()
    }

    /// Puts `run` at page `at` of the file, in place of what was there. Gives how many pages that were.
    ///
    /// # Errors
    /// If the run has no pages or goes beyond the last page; nothing has changed then.
    pub fn insert(&mut self, at: u32, run: Run) -> Result<u32, OutOfRange> {
        let mut new = Placed::new(at, run)?;
        let replaced = self.remove(at, run.pages);
        if let Some(left) = self.before(at)
            && left.end() == at
            && left.run.page + left.run.pages == run.page
        {
            self.runs.remove(&left.at);
            new.at = left.at;
            new.run.page = left.run.page;
            new.run.pages += left.run.pages;
        }
        if let Some(right) = self.runs.get(&new.end()).copied()
            && new.run.page + new.run.pages == right.page
        {
            self.runs.remove(&new.end());
            new.run.pages += right.pages;
        }
        self.runs.insert(new.at, new.run);
        Ok(replaced)
    }

    /// Removes `pages` pages from page `at` of the file on. Those that are not there do not matter; gives how many
    /// there were.
    pub fn remove(&mut self, at: u32, pages: u32) -> u32 {
        let end = at.saturating_add(pages);
        let first = self.before(at).filter(|run| run.end() > at).map_or(at, |run| run.at);
        let touched: Vec<Placed> = self.between(first, end).collect();
        let mut removed = 0;
        for old in touched {
            self.runs.remove(&old.at);
            removed += old.run.pages;
            let left = (old.at < at).then(|| old.up_to(at));
            let right = (old.end() > end).then(|| old.from(end));
            for kept in left.into_iter().chain(right) {
                self.runs.insert(kept.at, kept.run);
                removed -= kept.run.pages;
            }
        }
        removed
    }

    /// The run that has page `page` of the file.
    pub fn lookup(&self, page: u32) -> Option<Placed> {
        let (&at, &run) = self.runs.range(..=page).next_back()?;
        Some(Placed { at, run }).filter(|found| found.contains(page))
    }

    /// All runs, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = Placed> {
        self.runs.iter().map(|(&at, &run)| Placed { at, run })
    }

    /// How many runs there are: what an adapter has to be told.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The last run that begins before page `at`.
    fn before(&self, at: u32) -> Option<Placed> {
        let (&at, &run) = self.runs.range(..at).next_back()?;
        Some(Placed { at, run })
    }

    /// Runs that begin from `first` up to `end`.
    fn between(&self, first: u32, end: u32) -> impl Iterator<Item = Placed> {
        let range = first..end.max(first);
        self.runs.range(range).map(|(&at, &run)| Placed { at, run })
    }
}

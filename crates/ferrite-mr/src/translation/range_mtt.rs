//! The table of a region by ranges: a B-tree of runs, by the page of the file where each begins.
//!
//! Its leaves are wide: [`LEAF_RUNS`] runs, whose starting pages come first, side by side. A lookup in a table larger
//! than the CPU caches waits for memory at each level, and the cache lines of a leaf's starts arrive together. The
//! level above the leaves is small and stays in the caches: a 64th of all runs.
//!
//! Invariants: runs do not overlap and have at least one page. Two that follow each other in file and memory are one.
//! No leaf is empty, and the start of its first run is its key.

use std::collections::BTreeMap;

use super::{OutOfRange, Placed, Run};

/// Runs of a leaf, at most.
const LEAF_RUNS: usize = 64;
/// A leaf that has shrunk absorbs the next one if both have so many together.
const MERGED_RUNS: usize = LEAF_RUNS / 2;

/// Consecutive runs.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
struct Leaf {
    /// Behind the last, all ones.
    starts: [u32; LEAF_RUNS],
    runs: [Run; LEAF_RUNS],
    len: usize,
}

impl Leaf {
    fn new() -> Box<Leaf> {
        Box::new(Leaf {
            starts: [u32::MAX; LEAF_RUNS],
            runs: [Run { page: 0, pages: 0 }; LEAF_RUNS],
            len: 0,
        })
    }

    /// How many of its runs begin at `page` or before.
    #[inline]
    fn count_to(&self, page: u32) -> usize {
        // All of them, since a mispredicted branch costs more than the rest.
        let count: usize = self.starts.iter().map(|&start| usize::from(start <= page)).sum();
        count.min(self.len)
    }

    fn get(&self, index: usize) -> Placed {
        Placed {
            at: self.starts[index],
            run: self.runs[index],
        }
    }

    fn each(&self) -> impl Iterator<Item = Placed> + '_ {
        (0..self.len).map(|index| self.get(index))
    }

    /// Puts a run before the one at `index`. There must be space.
    fn insert(&mut self, index: usize, placed: Placed) {
        self.starts.copy_within(index..self.len, index + 1);
        self.runs.copy_within(index..self.len, index + 1);
        self.starts[index] = placed.at;
        self.runs[index] = placed.run;
        self.len += 1;
    }
}

/// A table of runs.
#[derive(Debug, Clone, Default)]
pub struct RangeMtt {
    leaves: BTreeMap<u32, Box<Leaf>>,
    len: usize,
}

impl RangeMtt {
    /// An empty table.
    pub fn new() -> RangeMtt {
        RangeMtt::default()
    }

    /// Puts `run` at page `at` of the file, replacing earlier pages. Returns how many it replaced.
    ///
    /// # Errors
    /// If the run has no pages or goes beyond the last page; nothing has changed then.
    pub fn insert(&mut self, at: u32, run: Run) -> Result<u32, OutOfRange> {
        let mut new = Placed::new(at, run)?;
        let replaced = self.remove(at, run.pages);
        if let Some(right) = self.lookup(new.end())
            && right.at == new.end()
            && new.run.page + new.run.pages == right.run.page
        {
            self.take(right.at, right.end());
            new.run.pages += right.run.pages;
        }
        if !self.grow(new) {
            self.add(new);
        }
        Ok(replaced)
    }

    /// Removes `pages` pages from page `at` of the file on. Absent ones do not matter; returns how many existed.
    pub fn remove(&mut self, at: u32, pages: u32) -> u32 {
        let end = at.saturating_add(pages);
        // Usually none exist.
        let is_any = end > at && self.last_to(end - 1).is_some_and(|last| last.end() > at);
        if is_any { self.take(at, end) } else { 0 }
    }

    /// The run that has page `page` of the file.
    #[inline]
    pub fn lookup(&self, page: u32) -> Option<Placed> {
        self.last_to(page).filter(|found| found.contains(page))
    }

    /// All runs, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = Placed> {
        self.leaves.values().flat_map(|leaf| leaf.each())
    }

    /// How many runs it has: the number that an adapter must load.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no runs.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The last run that begins at `page` or before.
    #[inline]
    fn last_to(&self, page: u32) -> Option<Placed> {
        let (_, leaf) = self.leaves.range(..=page).next_back()?;
        Some(leaf.get(leaf.count_to(page).checked_sub(1)?))
    }

    /// Adds a run to an empty place.
    fn add(&mut self, new: Placed) {
        self.len += 1;
        let Some((_, leaf)) = self.leaves.range_mut(..=new.at).next_back() else {
            // Before all others, so the leaf it belongs to gets another key.
            let first = self.leaves.pop_first().map(|(_, leaf)| leaf);
            let runs: Vec<Placed> = std::iter::once(new)
                .chain(first.iter().flat_map(|leaf| leaf.each()))
                .collect();
            return self.put(&runs);
        };
        let index = leaf.count_to(new.at);
        if leaf.len < LEAF_RUNS {
            leaf.insert(index, new);
        } else if index == LEAF_RUNS {
            // A caller that adds runs in order fills leaf by leaf.
            self.put(&[new]);
        } else {
            let name = leaf.starts[0];
            let mut runs: Vec<Placed> = leaf.each().collect();
            runs.insert(index, new);
            self.leaves.remove(&name);
            self.put(&runs);
        }
    }

    /// Puts runs, which are counted already, into new leaves.
    fn put(&mut self, runs: &[Placed]) {
        let leaves = runs.len().div_ceil(LEAF_RUNS).max(1);
        for part in runs.chunks(runs.len().div_ceil(leaves).max(1)) {
            let mut leaf = Leaf::new();
            part.iter().for_each(|&placed| leaf.insert(leaf.len, placed));
            self.leaves.insert(part[0].at, leaf);
        }
    }

    /// Extends the run before `new` by it, if it follows in memory as well.
    fn grow(&mut self, new: Placed) -> bool {
        let Some((_, leaf)) = self.leaves.range_mut(..new.at).next_back() else {
            return false;
        };
        let Some(index) = leaf.count_to(new.at).checked_sub(1) else {
            return false;
        };
        let left = leaf.get(index);
        let follows = left.end() == new.at && left.run.page + left.run.pages == new.run.page;
        if follows {
            leaf.runs[index].pages += new.run.pages;
        }
        follows
    }

    /// Removes the pages from `at` up to `end`. Returns how many existed.
    fn take(&mut self, at: u32, end: u32) -> u32 {
        let first = self.leaves.range(..=at).next_back();
        let first = first.map_or(at, |(&name, _)| name);
        let names: Vec<u32> = self.leaves.range(first..end).map(|(&name, _)| name).collect();
        let (mut kept, mut removed) = (Vec::new(), 0);
        for old in names
            .iter()
            .filter_map(|name| self.leaves.remove(name))
            .flat_map(|leaf| (0..leaf.len).map(move |index| leaf.get(index)))
        {
            self.len -= 1;
            if !old.overlaps(at, end) {
                kept.push(old);
                continue;
            }
            let left = (old.at < at).then(|| old.up_to(at));
            let right = (old.end() > end).then(|| old.from(end));
            let parts = left.into_iter().chain(right);
            removed += old.run.pages - parts.clone().map(|part| part.run.pages).sum::<u32>();
            kept.extend(parts);
        }
        if let Some(last) = kept.last()
            && let Some((&name, next)) = self.leaves.range(last.at..).next()
            && kept.len() + next.len <= MERGED_RUNS
        {
            kept.extend(next.each());
            self.len -= next.len;
            self.leaves.remove(&name);
        }
        self.len += kept.len();
        self.put(&kept);
        removed
    }
}

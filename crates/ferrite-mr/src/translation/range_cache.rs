//! The cache of ranges: an entry for each run, however long.
//!
//! A cache of pages finds the set of a page by its number. A run has many pages, so which set holds it? FileMR does not
//! say. Here runs are placed by size: a run of up to 2^c pages (c as small as possible) is in the set of the block of
//! 2^c pages in which it begins.
//!
//! A page is then in a run that begins in its own block of that size or in the one before, so a lookup checks two sets
//! for each present size, which an adapter does in parallel. A run takes one entry.
//!
//! Invariant: entries of a region may overlap, when a run grew after it was cached, and then they agree.

use super::Placed;
use super::sets::{Counters, ENTRIES, SETS, Sets, hash_of};

/// Sizes of runs: the exponents 0 to 32.
const CLASSES: usize = 33;

#[derive(Debug, Clone, Copy)]
struct Entry {
    region: u32,
    class: u8,
    placed: Placed,
}

/// A cache of runs.
#[derive(Debug, Clone)]
pub struct RangeCache {
    sets: Sets<Entry>,
    /// Entries of each size.
    of_class: [usize; CLASSES],
    counters: Counters,
}

impl Default for RangeCache {
    fn default() -> RangeCache {
        RangeCache::new()
    }
}

/// The smallest exponent whose power is at least `pages`, which is not 0.
fn class_of(pages: u32) -> u8 {
    (u32::BITS - (pages - 1).leading_zeros()) as u8
}

fn block_of(page: u32, class: u8) -> u64 {
    u64::from(page) >> class
}

fn set_of(region: u32, class: u8, block: u64) -> usize {
    hash_of(hash_of(u64::from(region) << 6 | u64::from(class)) as u64 ^ block << 24 ^ block) % SETS
}

impl RangeCache {
    /// An empty cache.
    pub fn new() -> RangeCache {
        RangeCache {
            sets: Sets::new(),
            of_class: [0; CLASSES],
            counters: Counters::default(),
        }
    }

    /// The run with page `page` of the file, if cached. Counts a hit or a miss.
    pub fn lookup(&mut self, region: u32, page: u32) -> Option<Placed> {
        for class in (0..CLASSES as u8).rev() {
            if self.of_class[usize::from(class)] == 0 {
                continue;
            }
            let block = block_of(page, class);
            let is_it = |entry: &Entry| entry.region == region && entry.class == class && entry.placed.contains(page);
            // A run of one page reaches no other block.
            let before = block.checked_sub(1).filter(|_| class > 0);
            for block in [Some(block), before].into_iter().flatten() {
                if let Some(found) = self.sets.find(set_of(region, class, block), is_it) {
                    self.counters.hits += 1;
                    return Some(found.placed);
                }
            }
        }
        self.counters.misses += 1;
        None
    }

    /// Keeps a run that a lookup missed. One without pages is not kept.
    pub fn fill(&mut self, region: u32, placed: Placed) {
        if placed.run.pages == 0 {
            return;
        }
        let class = class_of(placed.run.pages);
        let set = set_of(region, class, block_of(placed.at, class));
        self.of_class[usize::from(class)] += 1;
        let entry = Entry { region, class, placed };
        if let Some(gone) = self.sets.insert(set, entry) {
            self.of_class[usize::from(gone.class)] -= 1;
            self.counters.evictions += 1;
        }
    }

    /// Forgets runs that have a page from `at` up to `end` of a region; whole runs, the rest is looked up again. Checks
    /// every entry.
    pub fn invalidate(&mut self, region: u32, at: u32, end: u32) {
        let is_it = |entry: &Entry| entry.region == region && entry.placed.overlaps(at, end);
        for set in 0..SETS {
            for gone in self.sets.remove(set, is_it) {
                self.of_class[usize::from(gone.class)] -= 1;
                self.counters.invalidated += 1;
            }
        }
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The most runs it holds.
    pub fn capacity(&self) -> usize {
        ENTRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        let classes = [1, 2, 3, 4, 5, 1 << 31, u32::MAX].map(class_of);
        assert_eq!(classes, [0, 1, 2, 2, 3, 31, 32]);
    }
}

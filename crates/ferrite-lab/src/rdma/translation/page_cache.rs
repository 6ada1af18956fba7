//! The cache of pages, as in adapters: an entry for each page of a file.

use ferrite_mr::{Counters, ENTRIES, SETS, Sets, hash_of};

#[derive(Debug, Clone, Copy)]
struct Entry {
    region: u32,
    /// Of the file.
    at: u32,
    /// Of memory.
    page: u32,
}

/// A cache of pages.
#[derive(Debug, Clone)]
pub struct PageCache {
    sets: Sets<Entry>,
    counters: Counters,
}

impl Default for PageCache {
    fn default() -> PageCache {
        PageCache::new()
    }
}

/// Consecutive pages go to consecutive sets; regions begin at different ones.
fn set_of(region: u32, at: u32) -> usize {
    hash_of(u64::from(region)).wrapping_add(at as usize) % SETS
}

impl PageCache {
    /// An empty cache.
    pub fn new() -> PageCache {
        PageCache {
            sets: Sets::new(),
            counters: Counters::default(),
        }
    }

    /// The page of memory of page `at`, if cached. Counts a hit or a miss.
    pub fn lookup(&mut self, region: u32, at: u32) -> Option<u32> {
        let is_it = |entry: &Entry| entry.region == region && entry.at == at;
        let found = self.sets.find(set_of(region, at), is_it);
        match found {
            Some(_) => self.counters.hits += 1,
            None => self.counters.misses += 1,
        }
        found.map(|entry| entry.page)
    }

    /// Keeps a page that a lookup missed.
    pub fn fill(&mut self, region: u32, at: u32, page: u32) {
        let gone = self.sets.insert(set_of(region, at), Entry { region, at, page });
        self.counters.evictions += u64::from(gone.is_some());
    }

    /// Forgets pages from `at` up to `end` of a region.
    pub fn invalidate(&mut self, region: u32, at: u32, end: u32) {
        let is_it = |entry: &Entry| entry.region == region && (at..end).contains(&entry.at);
        let count = (end.saturating_sub(at) as usize).min(SETS);
        for number in 0..count {
            let set = set_of(region, at).wrapping_add(number) % SETS;
            self.counters.invalidated += self.sets.remove(set, is_it).count() as u64;
        }
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The most pages it holds.
    pub fn capacity(&self) -> usize {
        ENTRIES
    }
}

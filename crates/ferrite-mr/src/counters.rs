//! Counters of a cache.

/// Counts of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups that found their page.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Entries evicted for others.
    pub evictions: u64,
    /// Entries removed with their pages.
    pub invalidated: u64,
}

impl Counters {
    /// Hits among all lookups; 0 without lookups.
    pub fn hit_rate(&self) -> f64 {
        let lookups = self.hits + self.misses;
        if lookups == 0 {
            return 0.0;
        }
        self.hits as f64 / lookups as f64
    }
}

//! What a cache has done.

/// Counts of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups that found their page.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// Entries that were removed because their pages were.
    pub invalidated: u64,
}

impl Counters {
    /// Hits among all lookups; 0 if there were none.
    pub fn hit_rate(&self) -> f64 {
        let lookups = self.hits + self.misses;
        if lookups == 0 {
            return 0.0;
        }
        self.hits as f64 / lookups as f64
    }
}

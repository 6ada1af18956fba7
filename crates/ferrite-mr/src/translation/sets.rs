//! A set-associative store: the basis of a cache of translations.
//!
//! Contents: [`Sets`], and [`Counters`], which a cache keeps of its lookups.
//!
//! Invariant: a set holds up to [`WAYS`] entries, the most recently used one first. A full set evicts its last.

/// Entries of a cache, as in FileMR's evaluation.
pub const ENTRIES: usize = 4_096;
/// Entries of a set.
pub const WAYS: usize = 4;
/// Sets of a cache.
pub const SETS: usize = ENTRIES / WAYS;

/// Entries that were removed from a set.
pub type Removed<T> = std::iter::Flatten<std::array::IntoIter<Option<T>, WAYS>>;

/// Sets of entries.
#[derive(Debug, Clone)]
pub struct Sets<T> {
    sets: Vec<[Option<T>; WAYS]>,
}

impl<T: Copy> Default for Sets<T> {
    fn default() -> Sets<T> {
        Sets::new()
    }
}

impl<T: Copy> Sets<T> {
    /// Empty sets.
    pub fn new() -> Sets<T> {
        Sets {
            sets: vec![[None; WAYS]; SETS],
        }
    }

    /// The entry of set `set` that satisfies `is_it`, which becomes the most recently used one.
    pub fn find(&mut self, set: usize, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let ways = &mut self.sets[set % SETS];
        let way = ways.iter().position(|entry| entry.as_ref().is_some_and(&is_it))?;
        ways[..=way].rotate_right(1);
        ways[0]
    }

    /// Puts `entry` into set `set`, as the most recently used one. Returns the evicted one.
    pub fn insert(&mut self, set: usize, entry: T) -> Option<T> {
        let ways = &mut self.sets[set % SETS];
        let free = ways.iter().position(Option::is_none).unwrap_or(WAYS - 1);
        ways[..=free].rotate_right(1);
        ways[0].replace(entry)
    }

    /// Removes from set `set` the entries that satisfy `is_it`. Returns them.
    pub fn remove(&mut self, set: usize, is_it: impl Fn(&T) -> bool) -> Removed<T> {
        let mut removed = [None; WAYS];
        for (entry, place) in self.sets[set % SETS].iter_mut().zip(&mut removed) {
            if entry.as_ref().is_some_and(&is_it) {
                *place = entry.take();
            }
        }
        removed.into_iter().flatten()
    }
}

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

/// A hash that spreads over all sets.
pub fn hash_of(value: u64) -> usize {
    let mixed = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut sets = Sets::new();
        for entry in 0..4 {
            assert_eq!(sets.insert(7, entry), None);
        }
        assert_eq!(sets.find(7, |entry| *entry == 0), Some(0));
        assert_eq!(sets.insert(7, 4), Some(1));
        assert_eq!(sets.find(7, |entry| *entry == 1), None);
        assert_eq!(sets.remove(7, |entry| entry % 2 == 0).collect::<Vec<_>>(), [4, 0, 2]);
        assert_eq!(sets.insert(7, 5), None);
        assert_eq!(sets.find(7, |entry| *entry == 3), Some(3));
        assert_eq!(sets.find(8, |_| true), None);
    }

    #[test]
    fn numbers_are_spread_over_all_sets() {
        let mut counts = vec![0; SETS];
        for value in 0..SETS as u64 * 64 {
            counts[hash_of(value << 9) % SETS] += 1;
        }
        assert!(counts.iter().all(|count| (16..=160).contains(count)), "{counts:?}");
    }
}

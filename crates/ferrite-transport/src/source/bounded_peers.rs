//! State of peers that have proved nothing yet, with bounds that a flood meets before other peers do.

use std::collections::{BTreeMap, HashMap};

use super::Source;

/// Keeps at most `of_all` entries, and `of_source` of one source. One more evicts the oldest: of its own source if that
/// has too many, else of the source that has most. So a source that floods takes its own places only.
#[derive(Debug)]
pub struct BoundedPeers<T> {
    of_all: usize,
    of_source: usize,
    /// By number, and so by age.
    by_id: BTreeMap<u64, (Source, T)>,
    by_source: HashMap<Source, usize>,
}

impl<T> BoundedPeers<T> {
    /// An empty set with these bounds.
    pub fn new(of_all: usize, of_source: usize) -> BoundedPeers<T> {
        BoundedPeers {
            of_all,
            of_source,
            by_id: BTreeMap::new(),
            by_source: HashMap::new(),
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Inserts an entry, under a number larger than all before. Returns the entry that it evicts.
    pub fn insert(&mut self, number: u64, source: Source, one: T) -> Option<T> {
        self.by_id.insert(number, (source, one));
        let of_source = self.by_source.entry(source).or_default();
        *of_source += 1;
        match *of_source > self.of_source {
            true => self.remove_oldest_of(source),
            false if self.by_id.len() > self.of_all => self.remove_of_largest(),
            false => None,
        }
    }

    /// The entry with this number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.by_id.get_mut(&number).map(|(_, one)| one)
    }

    /// Removes the entry with this number.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let (source, one) = self.by_id.remove(&number)?;
        if let Some(count) = self.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
        Some(one)
    }

    /// The oldest entry.
    pub fn oldest(&self) -> Option<(u64, &T)> {
        self.by_id.first_key_value().map(|(&number, (_, one))| (number, one))
    }

    /// Makes space: removes the oldest entry of the source that has most.
    pub fn remove_of_largest(&mut self) -> Option<T> {
        let largest = self.by_source.iter().max_by_key(|(_, count)| **count);
        let largest = largest.map(|(source, _)| *source)?;
        self.remove_oldest_of(largest)
    }

    fn remove_oldest_of(&mut self, source: Source) -> Option<T> {
        let oldest = self.by_id.iter().find(|(_, (of, _))| *of == source);
        let oldest = oldest.map(|(number, _)| *number)?;
        self.remove(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(host: u8) -> Source {
        Source::of(std::net::IpAddr::from([192, 0, 2, host]))
    }

    #[test]
    fn a_flood_meets_its_own_bound_first() {
        let mut peers = BoundedPeers::new(100, 30);
        let mut next = 0;
        let mut add = |peers: &mut BoundedPeers<u64>, host: u8, count: u64| {
            let numbers = next..next + count;
            next += count;
            numbers
                .filter_map(|number| peers.insert(number, source(host), number))
                .collect::<Vec<u64>>()
        };
        assert_eq!(add(&mut peers, 1, 1), []);
        assert_eq!(add(&mut peers, 2, 35), [1, 2, 3, 4, 5], "its own, the oldest first");
        // Several sources together meet the bound of all, and the largest lose entries.
        for host in 3..9 {
            add(&mut peers, host, 30);
        }
        assert_eq!((peers.len(), peers.by_source.values().sum()), (100, 100));
        assert_eq!(peers.oldest(), Some((0, &0)), "the one that is alone stays");
        assert!(peers.remove_of_largest().is_some_and(|gone| gone != 0));
        while let Some((oldest, _)) = peers.oldest() {
            assert_eq!(peers.remove(oldest), Some(oldest));
        }
        assert!(peers.is_empty() && peers.by_source.is_empty() && peers.remove_of_largest().is_none());
        assert_eq!(peers.remove(7), None);
    }
}

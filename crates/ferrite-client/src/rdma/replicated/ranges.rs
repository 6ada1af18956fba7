//! Sets of byte ranges.

use rangemap::RangeSet;

/// Bytes of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ranges(RangeSet<u64>);

impl Ranges {
    /// Everything that a file can hold.
    pub(super) fn everything() -> Ranges {
        let mut all = Ranges::default();
        all.add(0, u64::MAX);
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, from: u64, to: u64) {
        if from < to {
            self.0.insert(from..to);
        }
    }

    pub(super) fn add_all(&mut self, other: &Ranges) {
        self.0.extend(other.0.iter().cloned());
    }

    pub(super) fn remove(&mut self, from: u64, to: u64) {
        if from < to {
            self.0.remove(from..to);
        }
    }

    pub(super) fn overlaps(&self, from: u64, to: u64) -> bool {
        self.0.overlaps(&(from..to))
    }

    /// The first range, up to `most` bytes of it.
    pub(super) fn first(&self, most: u64) -> Option<(u64, u64)> {
        let range = self.0.first()?;
        Some((range.start, range.end.min(range.start.saturating_add(most))))
    }

    /// How many of these bytes a file of this size has.
    pub(super) fn len_within(&self, size: u64) -> u64 {
        let within = self
            .0
            .iter()
            .map(|range| range.end.min(size).saturating_sub(range.start));
        within.sum()
    }
}

#[cfg(test)]
mod tests {
    use ferrite_testkit::rng::Rng;

    use super::*;

    #[test]
    fn ranges_are_a_set_of_bytes() {
        for seed in 1..60 {
            let mut random = Rng::new(seed);
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 64]);
            for _ in 0..200 {
                let from = random.below(64);
                let to = from + random.below(65 - from);
                let adds = random.chance(50);
                match adds {
                    true => ranges.add(from, to),
                    false => ranges.remove(from, to),
                }
                bytes[from as usize..to as usize].fill(adds);
                for (at, is_in) in bytes.iter().enumerate() {
                    assert_eq!(
                        ranges.overlaps(at as u64, at as u64 + 1),
                        *is_in,
                        "seed {seed}: {ranges:?}, {at}"
                    );
                }
                let count = bytes.iter().filter(|is_in| **is_in).count();
                assert_eq!(ranges.len_within(64), count as u64);
                assert_eq!(ranges.is_empty(), count == 0);
            }
        }
        let mut all = Ranges::everything();
        all.remove(5, u64::MAX);
        assert_eq!((all.first(3), all.len_within(4)), (Some((0, 3)), 4));
        let mut other = Ranges::default();
        other.add(5, 7);
        other.add_all(&all);
        assert_eq!(other.first(100), Some((0, 7)));
    }
}

//! Sets of byte ranges.
//!
//! Invariant: the ranges are in order, not empty, and neither overlap nor touch.

/// Bytes of a file, as half-open ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Everything that a file can hold.
    pub(super) fn everything() -> Ranges {
        Ranges(vec![(0, u64::MAX)])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self.0.partition_point(|(_, end)| *end < from);
        let behind = self.0.partition_point(|(start, _)| *start <= to);
        let merged = self.0[first..behind]
            .iter()
            .fold((from, to), |(from, to), (start, end)| (from.min(*start), to.max(*end)));
        self.0.splice(first..behind, [merged]);
    }

    pub(super) fn add_all(&mut self, other: &Ranges) {
        other.0.iter().for_each(|(from, to)| self.add(*from, *to));
    }

    pub(super) fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self.0.partition_point(|(_, end)| *end <= from);
        let behind = self.0.partition_point(|(start, _)| *start < to).max(first);
        let parts = self.0[first..behind]
            .iter()
            .flat_map(|(start, end)| [(*start, from.min(*end)), (to.max(*start), *end)])
            .filter(|(start, end)| start < end);
        let parts: Vec<(u64, u64)> = parts.collect();
        self.0.splice(first..behind, parts);
    }

    pub(super) fn overlaps(&self, from: u64, to: u64) -> bool {
        let first = self.0.partition_point(|(_, end)| *end <= from);
        self.0.get(first).is_some_and(|(start, _)| *start < to)
    }

    /// The first range, up to `most` bytes of it.
    pub(super) fn first(&self, most: u64) -> Option<(u64, u64)> {
        let (from, to) = *self.0.first()?;
        Some((from, to.min(from.saturating_add(most))))
    }

    /// How many of these bytes a file of this size has.
    pub(super) fn len_within(&self, size: u64) -> u64 {
        let within = self.0.iter().map(|(from, to)| to.min(&size).saturating_sub(*from));
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
                assert!(ranges.0.iter().all(|(from, to)| from < to), "seed {seed}: {ranges:?}");
                assert!(
                    ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0),
                    "seed {seed}: {ranges:?}"
                );
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

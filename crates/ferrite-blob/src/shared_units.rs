//! How many blobs name which units, of those that several blobs share.
//!
//! Invariant: a unit is here if two or more blobs name it, with their number.

use std::ops::Range;

use rangemap::RangeMap;

/// How many blobs name each unit, of those that more than one names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SharedUnits(RangeMap<u32, u32>);

/// The part of a range that lies in another.
pub(crate) fn within(range: &Range<u32>, outer: &Range<u32>) -> Range<u32> {
    range.start.max(outer.start)..range.end.min(outer.end)
}

impl SharedUnits {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether several blobs name a part of a range.
    pub(crate) fn has_any(&self, range: &Range<u32>) -> bool {
        !range.is_empty() && self.0.overlaps(range)
    }

    /// The parts of a range that several blobs name, and how many do.
    pub(crate) fn of(&self, range: &Range<u32>) -> Vec<(Range<u32>, u32)> {
        let found = self.0.overlapping(range.clone());
        found.map(|(part, &names)| (within(part, range), names)).collect()
    }

    /// One more blob names these, which at least one names.
    pub(crate) fn add_name(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let named = self.of(&range);
        self.0.insert(range, 2);
        for (part, names) in named {
            self.0.insert(part, names + 1);
        }
    }

    /// One blob fewer names these. Returns those that none names any more.
    pub(crate) fn drop_name(&mut self, range: Range<u32>) -> Vec<Range<u32>> {
        if range.is_empty() {
            return Vec::new();
        }
        if self.is_empty() {
            return vec![range];
        }
        let named = self.of(&range);
        let alone = self.0.gaps(&range).collect();
        for (part, names) in named {
            match names {
                0..=2 => self.0.remove(part),
                names => self.0.insert(part, names - 1),
            }
        }
        alone
    }

    /// By how many units more blobs name than there are.
    pub(crate) fn surplus(&self) -> u64 {
        let all = self.0.iter();
        all.map(|(part, &names)| u64::from(part.end - part.start) * u64::from(names - 1))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names counted by ranges are those counted one by one, and what no blob names comes back once.
    #[test]
    fn names_of_ranges_are_names_of_units() {
        let mut shared = SharedUnits::default();
        let mut names = [0_u32; 64];
        let mut state = 11_u64;
        for step in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let first = (state >> 40) as usize % names.len();
            let end = (first + 1 + (state >> 50) as usize % 9).min(names.len());
            if names[first..end].contains(&0) {
                // Blobs without a group take and give units elsewhere.
                names[first..end].fill(1);
                shared = SharedUnits::default();
                for (unit, &count) in names.iter().enumerate() {
                    (1..count).for_each(|_| shared.add_name(unit as u32..unit as u32 + 1));
                }
                continue;
            }
            let range = first as u32..end as u32;
            if state >> 33 & 1 == 0 {
                shared.add_name(range);
                names[first..end].iter_mut().for_each(|count| *count += 1);
            } else {
                let alone: Vec<u32> = shared.drop_name(range).into_iter().flatten().collect();
                let last = (first as u32..end as u32).filter(|&unit| names[unit as usize] == 1);
                assert_eq!(alone, last.collect::<Vec<_>>(), "step {step}");
                names[first..end].iter_mut().for_each(|count| *count -= 1);
            }
            let surplus: u32 = names.iter().map(|count| count.saturating_sub(1)).sum();
            assert_eq!(shared.surplus(), u64::from(surplus), "step {step}");
            let of: Vec<u32> = shared.of(&(0..64)).into_iter().flat_map(|(part, _)| part).collect();
            let several = (0..64_u32).filter(|&unit| names[unit as usize] > 1);
            assert_eq!(of, several.collect::<Vec<_>>(), "step {step}");
        }
        assert!(!shared.is_empty());
    }
}

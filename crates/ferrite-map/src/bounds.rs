//! How far from their home line keys of a table may lie: what makes deletes without tombstones possible (DESIGN §3).
//!
//! One byte a home line, in DRAM, rebuilt when the table is read at mount. A lookup stops at the bound, a
//! delete simply clears its slot. A bound that is too large costs time, one too small would lose keys; so a bound only grows
//! while the pool is mounted, and grows before the key that needs it can be seen. (Lowering it online would need to
//! know that no insert of that home is under way; mounting does it for free.)

use std::sync::atomic::{AtomicU8, Ordering};

/// Means: anywhere in the table.
const FULL: u8 = u8::MAX;

/// Bounds of all home lines of one table.
#[derive(Debug)]
pub struct Bounds {
    bytes: Box<[AtomicU8]>,
}

impl Bounds {
    /// For a table of `lines` lines without keys.
    pub fn new(lines: usize) -> Self {
        Bounds {
            bytes: (0..lines).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// Makes sure that lookups of `home` reach `distance` lines behind it.
    #[inline]
    pub fn raise(&self, home: usize, distance_lines: u64) {
        let needed = distance_lines.min(u64::from(FULL)) as u8;
        let bound = &self.bytes[home];
        // Reading first keeps the line shared in the common case.
        if bound.load(Ordering::Relaxed) < needed {
            bound.fetch_max(needed, Ordering::AcqRel);
        }
    }

    /// Lines behind `home` that a lookup must look at, in a table of `lines` lines.
    #[inline]
    pub fn lines_to_probe(&self, home: usize, lines: u64) -> u64 {
        match self.bytes[home].load(Ordering::Acquire) {
            FULL => lines - 1,
            bound => u64::from(bound).min(lines - 1),
        }
    }

    /// DRAM used, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_never_falls_and_saturates_at_the_whole_table() {
        let bounds = Bounds::new(1000);
        for (raised, expected) in [(0, 0), (3, 3), (2, 3), (254, 254), (255, 999), (700, 999), (1, 999)] {
            bounds.raise(7, raised);
            assert_eq!(bounds.lines_to_probe(7, 1000), expected, "raised to {raised}");
        }
        assert_eq!(bounds.lines_to_probe(8, 1000), 0);
        // A table smaller than its bound is seen once, not twice.
        bounds.raise(1, 200);
        assert_eq!(bounds.lines_to_probe(1, 100), 99);
    }
}

//! Pieces of slices: all of a slice, or one of its parts; and the bytes that were found of a slice.

use std::ops::Range;

use bytes::Bytes;

use crate::slice::{PART_BYTES, SliceId};

/// A thing that caches hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Piece {
    Whole(SliceId),
    Part(SliceId, u32),
}

/// The parts that have these bytes of a slice.
pub(crate) fn parts_with(bytes: &Range<u32>) -> Range<u32> {
    bytes.start / PART_BYTES..bytes.end.div_ceil(PART_BYTES)
}

/// The bytes that were found of a slice: at least those that were wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// All of it.
    Whole(Bytes),
    /// Parts that follow each other: the number of the first one, and their bytes.
    Parts(u32, Vec<Bytes>),
}

impl Found {
    /// Copies bytes of the slice, from `at` on. `false`: it is shorter.
    pub fn copy(&self, at: u32, mut into: &mut [u8]) -> bool {
        let (mut at, parts) = match self {
            Found::Whole(slice) => (Some(at as usize), std::slice::from_ref(slice)),
            Found::Parts(first, parts) => (
                (at as usize).checked_sub((first * PART_BYTES) as usize),
                parts.as_slice(),
            ),
        };
        for part in parts {
            let Some(from) = at else { return false };
            at = from.checked_sub(part.len()).or(Some(0));
            let Some(here) = part.get(from..) else { continue };
            let (now, later) = into.split_at_mut(here.len().min(into.len()));
            now.copy_from_slice(&here[..now.len()]);
            into = later;
        }
        into.is_empty()
    }

    /// These parts of it, of which it has all.
    pub(crate) fn take(&self, parts: &Range<u32>) -> Option<&[Bytes]> {
        match self {
            Found::Whole(_) => None,
            Found::Parts(first, found) => {
                let at = |part: u32| part.checked_sub(*first).map(|at| at as usize);
                found.get(at(parts.start)?..at(parts.end)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrite_testkit::rng::{Rng, pattern};

    use super::*;

    /// Protects readers: they get the bytes at their places, or hear that there are not so many.
    #[test]
    fn bytes_are_copied_from_wherever_they_are() {
        let slice = pattern(3, 5 * PART_BYTES as usize + 1000);
        let parts: Vec<Bytes> = slice.chunks(PART_BYTES as usize).map(Bytes::copy_from_slice).collect();
        let mut rng = Rng::new(9);
        for _ in 0..500 {
            let at = rng.below(slice.len() as u64) as usize;
            let len = rng.below((slice.len() - at + 1) as u64) as usize;
            let first = rng.below(at as u64 / u64::from(PART_BYTES) + 1) as usize;
            let mut into = vec![0; len];
            for found in [
                Found::Whole(Bytes::copy_from_slice(&slice)),
                Found::Parts(first as u32, parts[first..].to_vec()),
            ] {
                into.fill(0);
                assert!(
                    found.copy(at as u32, &mut into) && into == slice[at..at + len],
                    "{at} {len} {first}"
                );
                let mut longer = vec![0; slice.len() - at + 1];
                assert!(!found.copy(at as u32, &mut longer), "{at} {len} {first}");
            }
            let later = Found::Parts(3, parts[3..].to_vec());
            assert!(at >= 3 * PART_BYTES as usize || !later.copy(at as u32, &mut [0; 1]));
        }
    }
}

//! The bytes of one block that have yet to become a slice.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_slices::BLOCK_BYTES;
use rangemap::RangeMap;

use super::in_log::{InLog, Origin};

/// The unit of memory.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = BLOCK_BYTES as usize / PIECE_BYTES;
/// Records of a log that a buffer remembers. One of more and smaller writes is copied to leave memory.
const ORIGINS_MAX: usize = 1024;

/// Bytes of a block. Invariants: ranges are sorted, none is empty, and none touches the next one; every piece that a
/// range touches has memory; the bytes of an origin are those of its record.
#[derive(Debug)]
pub(super) struct Buffer {
    pieces: [Option<Box<[u8]>>; PIECES],
    ranges: Vec<Range<usize>>,
    origins: RangeMap<usize, Origin>,
    /// It had too many.
    has_lost_origins: bool,
}

/// A buffer that became a slice: its bytes, and where they are in the log, if all of them are.
pub(super) struct Sealed {
    pub(super) slice: Bytes,
    pub(super) in_log: Option<InLog>,
}

/// The parts of a range, by piece: which piece, and from where to where in it.
fn by_piece(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + Clone {
    (range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES)).map(move |piece| {
        let begins = piece * PIECE_BYTES;
        let (from, to) = (range.start.max(begins), range.end.min(begins + PIECE_BYTES));
        (piece, from - begins..to - begins)
    })
}

impl Buffer {
    pub(super) fn new() -> Buffer {
        Buffer {
            pieces: [const { None }; PIECES],
            ranges: Vec::new(),
            origins: RangeMap::new(),
            has_lost_origins: false,
        }
    }

    /// How many bytes it has.
    pub(super) fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    /// How much memory it takes.
    pub(super) fn memory(&self) -> u64 {
        (self.pieces.iter().flatten().count() * PIECE_BYTES) as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.ranges
            .first()
            .is_some_and(|range| range.len() as u64 == BLOCK_BYTES)
    }

    /// Its ranges, in order.
    pub(super) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Writes at an offset in the block bytes that no log has.
    pub(super) fn write(&mut self, at: usize, data: &[u8]) {
        self.write_from(at, data, None);
    }

    /// Writes at an offset in the block. A log may have the bytes: with the record, where this begins in the block.
    pub(super) fn write_from(&mut self, at: usize, data: &[u8], origin: Option<Origin>) {
        if data.is_empty() {
            return;
        }
        let mut range = at..at + data.len();
        match origin.filter(|_| !self.has_lost_origins) {
            Some(origin) => self.origins.insert(range.clone(), origin),
            None => self.origins.remove(range.clone()),
        }
        if self.origins.len() > ORIGINS_MAX {
            self.has_lost_origins = true;
            self.origins.clear();
        }
        let mut left = data;
        for (piece, within) in by_piece(range.clone()) {
            let (part, rest) = left.split_at(within.len());
            let memory = self.pieces[piece].get_or_insert_with(|| vec![0; PIECE_BYTES].into_boxed_slice());
            memory[within].copy_from_slice(part);
            left = rest;
        }
        let first = self.ranges.partition_point(|one| one.end < range.start);
        let last = self.ranges.partition_point(|one| one.start <= range.end);
        if first < last {
            range = range.start.min(self.ranges[first].start)..range.end.max(self.ranges[last - 1].end);
        }
        self.ranges.splice(first..last, [range]);
    }

    /// Forgets some bytes.
    pub(super) fn remove(&mut self, gone: Range<usize>) {
        if gone.is_empty() {
            return;
        }
        self.origins.remove(gone.clone());
        let mut left = Vec::with_capacity(self.ranges.len() + 1);
        for range in self.ranges.drain(..) {
            let parts = [
                range.start..range.end.min(gone.start),
                range.start.max(gone.end)..range.end,
            ];
            left.extend(parts.into_iter().filter(|part| part.start < part.end));
        }
        self.ranges = left;
        for (piece, memory) in self.pieces.iter_mut().enumerate() {
            let begins = piece * PIECE_BYTES;
            let is_used = |range: &Range<usize>| range.start < begins + PIECE_BYTES && range.end > begins;
            if memory.is_some() && !self.ranges.iter().any(is_used) {
                *memory = None;
            }
        }
    }

    /// Its bytes as a slice.
    pub(super) fn seal(&self) -> Sealed {
        let mut slice = BytesMut::with_capacity(self.len() as usize);
        self.bytes().for_each(|part| slice.extend_from_slice(part));
        let mut in_log = InLog::default();
        for range in &self.ranges {
            for (bytes, origin) in self.origins.overlapping(range) {
                let bytes = bytes.start.max(range.start)..bytes.end.min(range.end);
                in_log.add(&bytes, *origin);
            }
        }
        let has_all = in_log.len() == slice.len() || is_seeded(Bug::SpilledUnlogged);
        let has_all = has_all && in_log.is_short_for(slice.len());
        Sealed {
            slice: slice.freeze(),
            in_log: Some(in_log).filter(|_| has_all),
        }
    }

    /// All its bytes, in order.
    pub(super) fn bytes(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.parts_in(0..BLOCK_BYTES as usize).map(|(_, bytes)| bytes)
    }

    /// The parts of it in a range, in order.
    pub(super) fn parts_in(&self, within: Range<usize>) -> impl Iterator<Item = (usize, &[u8])> + Clone {
        let cut = move |range: &Range<usize>| range.start.max(within.start)..range.end.min(within.end);
        let parts = self.ranges.iter().map(cut).filter(|part| part.start < part.end);
        parts.flat_map(by_piece).filter_map(|(piece, range)| {
            let memory = self.pieces[piece].as_ref()?;
            Some((piece * PIECE_BYTES + range.start, &memory[range]))
        })
    }
}

#[cfg(test)]
mod tests {
    use ferrite_testkit::rng::Rng;

    use super::*;

    #[test]
    fn random_writes_and_removals_match_a_model() {
        const UNIT: usize = 4000;
        const LEN: usize = 200;
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut buffer, mut model) = (Buffer::new(), vec![None; LEN]);
            for step in 0..60_u8 {
                let at = rng.below(LEN as u64) as usize;
                let len = rng.below(40).min((LEN - at) as u64) as usize;
                if rng.below(4) == 0 {
                    buffer.remove(at * UNIT..(at + len) * UNIT);
                    model[at..at + len].fill(None);
                } else {
                    buffer.write(at * UNIT, &vec![step; len * UNIT]);
                    model[at..at + len].fill(Some(step));
                }
                let mut seen = vec![None; LEN * UNIT];
                for (at, bytes) in buffer.parts_in(0..BLOCK_BYTES as usize) {
                    bytes.iter().zip(at..).for_each(|(&byte, at)| seen[at] = Some(byte));
                }
                let seen = seen.chunks(UNIT).map(|unit| {
                    assert!(unit.iter().all(|byte| *byte == unit[0]), "seed {seed}, step {step}");
                    unit[0]
                });
                assert_eq!(seen.collect::<Vec<_>>(), model, "seed {seed}, step {step}");
                assert_eq!(buffer.len() as usize, model.iter().flatten().count() * UNIT);
                assert_eq!(buffer.bytes().map(<[u8]>::len).sum::<usize>() as u64, buffer.len());
                assert!(buffer.memory() >= buffer.len() && buffer.memory() <= (LEN * UNIT + PIECE_BYTES) as u64);
                let in_order = buffer.ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
                assert!(
                    in_order && !buffer.ranges.iter().any(Range::is_empty),
                    "{:?}",
                    buffer.ranges
                );
                let cut: usize = buffer
                    .parts_in(50 * UNIT..90 * UNIT)
                    .map(|(_, bytes)| bytes.len())
                    .sum();
                assert_eq!(cut, model[50..90].iter().flatten().count() * UNIT);
            }
            buffer.remove(0..BLOCK_BYTES as usize);
            assert_eq!(buffer.memory(), 0);
        }
    }
}

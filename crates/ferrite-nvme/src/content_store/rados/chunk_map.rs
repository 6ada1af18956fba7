//! The map of a blob: which of its chunks may exist, and which are reserved. It is an xattr of the blob's first object.
//!
//! Contents: [`ChunkMap`], and [`Runs`] of chunks.
//!
//! Ceph cannot list objects by the beginning of their names, so the map tells which objects a deletion, a truncation or
//! a search for data has to ask for.
//!
//! Invariant: a map names more chunks rather than fewer. It has at most [`RUNS_MAX`] runs of each kind; beyond that,
//! the two with the smallest gap between them become one.

use std::ops::Range;

/// Runs of a kind; each takes 16 bytes.
const RUNS_MAX: usize = 128;
/// The version of the encoding.
const VERSION: u8 = 1;
/// How many chunks a map is ahead of a file that grows: at most as many as the file has.
const AHEAD_MAX: u64 = 256;
/// Lengths of chunks, as powers of two: 4 KiB to 32 MiB, so that one operation can write a chunk and xattrs.
const CHUNK_BITS: Range<u32> = 12..26;

/// Ranges of chunks, in order, with gaps between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Runs(Vec<Range<u64>>);

/// The chunks of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChunkMap {
    /// The length of a chunk, which is a power of two.
    pub(super) chunk_bytes: u64,
    /// Chunks that may exist.
    pub(super) present: Runs,
    /// Chunks that a program has reserved.
    pub(super) reserved: Runs,
    /// The end of what is reserved, in bytes.
    pub(super) reserved_len: u64,
}

impl Runs {
    pub(super) fn insert(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        let first = self.0.partition_point(|run| run.end < new.start);
        let last = self.0.partition_point(|run| run.start <= new.end);
        let start = self.0.get(first).map_or(new.start, |run| run.start.min(new.start));
        let end = match last > first {
            true => self.0[last - 1].end.max(new.end),
            false => new.end,
        };
        // None of them overlaps it if `last` is `first`.
        let start = if last > first { start } else { new.start };
        self.0.splice(first..last.max(first), std::iter::once(start..end));
        self.bound();
    }

    pub(super) fn remove(&mut self, old: Range<u64>) {
        if old.is_empty() {
            return;
        }
        let parts = self.0.iter().flat_map(|run| {
            let before = run.start..run.end.min(old.start);
            let behind = run.start.max(old.end)..run.end;
            [before, behind]
        });
        self.0 = parts.filter(|part| part.start < part.end).collect();
        self.bound();
    }

    fn bound(&mut self) {
        while self.0.len() > RUNS_MAX {
            let gaps = self.0.windows(2).map(|pair| pair[1].start - pair[0].end);
            let smallest = gaps.enumerate().min_by_key(|&(_, gap)| gap);
            let at = smallest.map_or(0, |(at, _)| at);
            self.0[at].end = self.0[at + 1].end;
            self.0.remove(at + 1);
        }
    }

    pub(super) fn contains(&self, chunks: &Range<u64>) -> bool {
        let holds = |run: &Range<u64>| run.start <= chunks.start && chunks.end <= run.end;
        chunks.is_empty() || self.0.iter().any(holds)
    }

    /// Its parts within `chunks`.
    pub(super) fn within(&self, chunks: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let parts = self.0.iter();
        let parts = parts.map(|run| run.start.max(chunks.start)..run.end.min(chunks.end));
        parts.filter(|part| part.start < part.end)
    }

    /// Its chunks within `chunks`, the last one first.
    pub(super) fn backwards(&self, chunks: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let parts: Vec<Range<u64>> = self.within(chunks).collect();
        parts.into_iter().rev().flat_map(|part| part.rev())
    }

    /// The end of the last run.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |run| run.end)
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend((self.0.len() as u32).to_le_bytes());
        for run in &self.0 {
            into.extend(run.start.to_le_bytes());
            into.extend(run.end.to_le_bytes());
        }
    }

    fn decode(from: &mut &[u8]) -> Option<Runs> {
        let count = u32::from_le_bytes(take(from)?) as usize;
        if count > RUNS_MAX {
            return None;
        }
        let mut runs = Runs::default();
        for _ in 0..count {
            let run = number(from)?..number(from)?;
            if run.is_empty() || !runs.0.is_empty() && run.start <= runs.end() {
                return None;
            }
            runs.0.push(run);
        }
        Some(runs)
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*head)
}

fn number(from: &mut &[u8]) -> Option<u64> {
    take(from).map(u64::from_le_bytes)
}

impl ChunkMap {
    pub(super) fn new(chunk_bytes: u64) -> ChunkMap {
        ChunkMap {
            chunk_bytes,
            present: Runs::default(),
            reserved: Runs::default(),
            reserved_len: 0,
        }
    }

    /// Whether chunks may have this length.
    pub(super) fn is_length(chunk_bytes: u64) -> bool {
        chunk_bytes.is_power_of_two() && CHUNK_BITS.contains(&chunk_bytes.ilog2())
    }

    /// The chunks that some bytes are in.
    pub(super) fn chunks(&self, bytes: &Range<u64>) -> Range<u64> {
        match bytes.is_empty() {
            true => 0..0,
            false => bytes.start / self.chunk_bytes..bytes.end.div_ceil(self.chunk_bytes),
        }
    }

    /// The chunks that have no byte outside of some bytes, if the blob ends at `end`.
    pub(super) fn whole_chunks(&self, bytes: &Range<u64>, end: u64) -> Range<u64> {
        let first = bytes.start.div_ceil(self.chunk_bytes);
        let behind = match bytes.end >= end && !bytes.is_empty() {
            true => u64::MAX / self.chunk_bytes,
            false => bytes.end / self.chunk_bytes,
        };
        first..behind.max(first)
    }

    /// The parts of some bytes: the chunk, and from where to where in it.
    pub(super) fn pieces(&self, bytes: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let (chunk_bytes, bytes) = (self.chunk_bytes, bytes.clone());
        self.chunks(&bytes).map(move |chunk| {
            let begins = chunk * chunk_bytes;
            let to = bytes.end.min(begins.saturating_add(chunk_bytes)) - begins;
            (chunk, bytes.start.max(begins) - begins..to)
        })
    }

    /// Names chunks about to be written, and some more of a blob that grows at its end: then most writes change no map.
    pub(super) fn grow(&mut self, chunks: Range<u64>) {
        let end = self.present.end();
        let grows = chunks.end > end && chunks.start <= end && end > 0;
        self.present.insert(chunks.clone());
        if grows {
            let last = self.present.0.last().map_or(0, |run| run.end - run.start);
            self.present.insert(chunks.end..chunks.end + last.min(AHEAD_MAX));
        }
    }

    /// The space of a blob whose bytes end at `valid_len`. Each chunk counts as a whole, but the last.
    pub(super) fn allocated_bytes(&self, valid_len: u64) -> u64 {
        let bytes = |runs: &Runs, end: u64| -> u64 {
            let lengths = runs.0.iter().map(|run| {
                let (from, to) = (
                    run.start.saturating_mul(self.chunk_bytes),
                    run.end.saturating_mul(self.chunk_bytes),
                );
                to.min(end).saturating_sub(from)
            });
            lengths.sum()
        };
        match self.reserved_len {
            0 => bytes(&self.present, valid_len),
            reserved_len => {
                let mut all = self.present.clone();
                self.reserved.0.iter().for_each(|run| all.insert(run.clone()));
                bytes(&all, valid_len.max(reserved_len))
            }
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.chunk_bytes.ilog2() as u8];
        bytes.extend(self.reserved_len.to_le_bytes());
        self.present.encode(&mut bytes);
        self.reserved.encode(&mut bytes);
        bytes
    }

    /// `None` if it cannot be right.
    pub(super) fn decode(mut from: &[u8]) -> Option<ChunkMap> {
        let [version, bits] = take(&mut from)?;
        if version != VERSION || !CHUNK_BITS.contains(&u32::from(bits)) {
            return None;
        }
        let map = ChunkMap {
            chunk_bytes: 1 << bits,
            reserved_len: number(&mut from)?,
            present: Runs::decode(&mut from)?,
            reserved: Runs::decode(&mut from)?,
        };
        // Chunk numbers times their length must not overflow.
        let ends_in_time = map.present.end().max(map.reserved.end()) <= u64::MAX >> bits;
        (from.is_empty() && ends_in_time).then_some(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs<const N: usize>(of: [(u64, u64); N]) -> Runs {
        Runs(of.map(|(start, end)| start..end).into())
    }

    #[test]
    fn runs_are_those_of_a_set() {
        let mut set = [false; 40];
        let mut found = Runs::default();
        let mut state = 7u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (start, len, inserts) = (state >> 33 & 31, state >> 40 & 7, state >> 50 & 1 == 0);
            let range = start..start + len;
            range.clone().for_each(|at| set[at as usize] = inserts);
            match inserts {
                true => found.insert(range),
                false => found.remove(range),
            }
            let of_runs: Vec<u64> = found.0.iter().flat_map(|run| run.clone()).collect();
            let of_set: Vec<u64> = (0..40).filter(|&at| set[at as usize]).collect();
            assert_eq!(of_runs, of_set);
            assert!(found.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{found:?}");
        }
    }

    #[test]
    fn a_map_is_bounded_and_names_too_many_chunks_rather_than_too_few() {
        let mut map = ChunkMap::new(4096);
        (0..1000).for_each(|at| map.present.insert(at * 10..at * 10 + 1));
        assert_eq!(map.present.0.len(), RUNS_MAX);
        (0..1000).for_each(|at| assert!(map.present.contains(&(at * 10..at * 10 + 1))));
        assert_eq!(ChunkMap::decode(&map.encode()), Some(map.clone()));
        let bytes = map.encode();
        (0..bytes.len()).for_each(|len| assert_eq!(ChunkMap::decode(&bytes[..len]), None));
        for (at, byte) in [(0, 2), (1, 40), (10, 200), (18, 255)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert_eq!(ChunkMap::decode(&wrong), None, "{at}");
        }
    }

    #[test]
    fn growth_is_ahead_and_islands_are_exact() {
        let mut map = ChunkMap::new(4096);
        map.grow(0..1);
        assert_eq!(map.present, runs([(0, 1)]));
        map.grow(1..2);
        assert_eq!(map.present, runs([(0, 4)]));
        map.grow(1000..1001);
        assert_eq!(map.present, runs([(0, 4), (1000, 1001)]));
        assert_eq!(map.allocated_bytes(1000 * 4096 + 7), 4 * 4096 + 7);
        assert_eq!(map.whole_chunks(&(4096..4096 * 3 + 5), 4096 * 9), 1..3);
        assert_eq!(map.whole_chunks(&(4096..4096 * 3 + 5), 4096 * 3 + 2).start, 1);
        assert!(map.whole_chunks(&(4096..4096 * 3 + 5), 4096 * 3 + 2).contains(&1000));
        assert!(map.whole_chunks(&(1..4095), 4096).is_empty() && map.whole_chunks(&(0..0), 0).is_empty());
    }
}

//! Which bytes of a file lie in which slices.
//!
//! A file is a row of blocks; a slice has bytes of one block, and its extents never leave it. Chunks are groups of
//! blocks, whose extents are encoded together: a chunk is the unit in which the map is stored.
//!
//! Invariants: extents do not overlap, and none is empty; `live` has exactly the slices that extents name, with the sum
//! of their lengths; `bytes` is the sum over all.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::slice::{BLOCK_BYTES, SliceId};

/// The length of a chunk.
pub const CHUNK_BYTES: u64 = 64 << 20;
/// The version of an encoded chunk.
const VERSION: u8 = 1;
/// The length of an encoded extent.
const EXTENT_BYTES: usize = 32;

/// Bytes of a file in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// How many bytes.
    pub len: u32,
    /// The slice.
    pub slice: SliceId,
    /// Where they begin in the slice.
    pub at: u32,
    /// The length of the slice.
    pub slice_len: u32,
}

impl Extent {
    /// The part from `from` on, at most `len` bytes.
    fn part(self, from: u64, len: u64) -> Extent {
        Extent {
            len: len as u32,
            at: self.at + from as u32,
            ..self
        }
    }
}

/// The extents of a block, for deciding whether to write it anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockUse {
    /// Its extents.
    pub extents: usize,
    /// Its slices.
    pub slices: usize,
    /// Its runs of bytes without a hole: the fewest extents that it can have.
    pub runs: usize,
    /// Their bytes.
    pub live_bytes: u64,
    /// The bytes of the slices that they name.
    pub stored_bytes: u64,
}

/// The map of a file.
#[derive(Debug, Clone, Default)]
pub struct SliceMap {
    extents: BTreeMap<u64, Extent>,
    live: HashMap<SliceId, Live>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Live {
    bytes: u64,
    slice_len: u32,
}

/// Slices that no extent names any more, with their lengths.
pub type Unnamed = Vec<(SliceId, u32)>;

impl SliceMap {
    /// The sum of the lengths of all extents.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The slices that extents name, with their lengths.
    pub fn slices(&self) -> impl Iterator<Item = (SliceId, u32)> {
        self.live.iter().map(|(&id, live)| (id, live.slice_len))
    }

    /// Whether an extent names a slice.
    pub fn names(&self, slice: SliceId) -> bool {
        self.live.contains_key(&slice)
    }

    /// The end of the last extent.
    pub fn end(&self) -> u64 {
        let last = self.extents.last_key_value();
        last.map_or(0, |(start, extent)| start + u64::from(extent.len))
    }

    /// Has an extent lie at `offset`, over what is there. Returns the slices that nothing names any more. The caller
    /// keeps it within one block.
    pub fn cover(&mut self, offset: u64, extent: Extent) -> Unnamed {
        let range = offset..offset + u64::from(extent.len);
        debug_assert!(
            extent.len > 0 && range.start / BLOCK_BYTES == (range.end - 1) / BLOCK_BYTES,
            "{range:?}"
        );
        let mut unnamed = self.remove(range);
        self.insert(offset, extent);
        unnamed.retain(|(slice, _)| *slice != extent.slice);
        unnamed
    }

    fn insert(&mut self, offset: u64, extent: Extent) {
        let live = self.live.entry(extent.slice).or_insert(Live {
            bytes: 0,
            slice_len: extent.slice_len,
        });
        live.bytes += u64::from(extent.len);
        self.bytes += u64::from(extent.len);
        self.extents.insert(offset, extent);
    }

    /// Makes a hole. Returns the slices that nothing names any more.
    pub fn remove(&mut self, range: Range<u64>) -> Unnamed {
        let mut unnamed = Vec::new();
        let before = self.extents.range(..range.start).next_back();
        let from = before
            .filter(|(start, extent)| *start + u64::from(extent.len) > range.start)
            .map_or(range.start, |(&start, _)| start);
        let starts: Vec<u64> = self
            .extents
            .range(from..range.end.max(from))
            .map(|(&start, _)| start)
            .collect();
        for start in starts {
            let Some(extent) = self.extents.remove(&start) else {
                continue;
            };
            let end = start + u64::from(extent.len);
            let (from, to) = (start.max(range.start), end.min(range.end));
            if start < from {
                self.extents.insert(start, extent.part(0, from - start));
            }
            if to < end {
                self.extents.insert(to, extent.part(to - start, end - to));
            }
            self.bytes -= to - from;
            if let Some(live) = self.live.get_mut(&extent.slice) {
                live.bytes -= to - from;
                if live.bytes == 0 {
                    self.live.remove(&extent.slice);
                    unnamed.push((extent.slice, extent.slice_len));
                }
            }
        }
        unnamed
    }

    /// The extents in a range, cut to it, by their offsets.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Extent)> {
        let before = self.extents.range(..range.start).next_back();
        let after = self.extents.range(range.start..range.end.max(range.start));
        before.into_iter().chain(after).filter_map(move |(&start, extent)| {
            let (from, to) = (start.max(range.start), (start + u64::from(extent.len)).min(range.end));
            (from < to).then(|| (from, extent.part(from - start, to - from)))
        })
    }

    /// The extents of a block.
    pub fn block_use(&self, block: u64) -> BlockUse {
        let mut found = BlockUse::default();
        let mut slices: Vec<(SliceId, u32)> = Vec::new();
        let mut run_until = None;
        for (start, extent) in self.pieces(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES) {
            found.extents += 1;
            found.runs += usize::from(run_until != Some(start));
            run_until = Some(start + u64::from(extent.len));
            found.live_bytes += u64::from(extent.len);
            slices.push((extent.slice, extent.slice_len));
        }
        slices.sort_unstable();
        slices.dedup();
        found.slices = slices.len();
        found.stored_bytes = slices.iter().map(|&(_, len)| u64::from(len)).sum();
        found
    }

    /// The chunks with extents in a range.
    pub fn chunks(&self, range: Range<u64>) -> Vec<u64> {
        let mut chunks: Vec<u64> = self.pieces(range).map(|(start, _)| start / CHUNK_BYTES).collect();
        chunks.dedup();
        chunks
    }

    /// A chunk as it is stored. `None`: it has no extent.
    pub fn encode_chunk(&self, chunk: u64) -> Option<Vec<u8>> {
        let begins = chunk * CHUNK_BYTES;
        let mut encoded = vec![VERSION];
        for (start, extent) in self.extents.range(begins..begins + CHUNK_BYTES) {
            encoded.extend_from_slice(&((start - begins) as u32).to_le_bytes());
            encoded.extend_from_slice(&extent.len.to_le_bytes());
            encoded.extend_from_slice(&extent.slice.epoch.to_le_bytes());
            encoded.extend_from_slice(&extent.slice.number.to_le_bytes());
            encoded.extend_from_slice(&extent.at.to_le_bytes());
            encoded.extend_from_slice(&extent.slice_len.to_le_bytes());
        }
        (encoded.len() > 1).then_some(encoded)
    }

    /// Adds a chunk that [`Self::encode_chunk`] encoded, which the map has not. `None`: it cannot be right, and a part
    /// of it may have been added.
    pub fn add_chunk(&mut self, chunk: u64, encoded: &[u8]) -> Option<()> {
        let begins = chunk.checked_mul(CHUNK_BYTES)?;
        begins.checked_add(CHUNK_BYTES)?;
        let (&version, extents) = encoded.split_first()?;
        let (extents, rest) = extents.as_chunks::<EXTENT_BYTES>();
        if version != VERSION || !rest.is_empty() {
            return None;
        }
        let mut free_from = 0;
        for encoded in extents {
            let (start, extent) = decode_extent(encoded)?;
            let end = start.checked_add(extent.len)?;
            let is_within = u64::from(end) <= CHUNK_BYTES
                && extent.len > 0
                && u64::from(start) / BLOCK_BYTES == u64::from(end - 1) / BLOCK_BYTES
                && extent.at.checked_add(extent.len)? <= extent.slice_len
                && u64::from(extent.slice_len) <= BLOCK_BYTES;
            if start < free_from || !is_within {
                return None;
            }
            free_from = end;
            self.insert(begins + u64::from(start), extent);
        }
        Some(())
    }

    /// The first byte from `offset` on that is in an extent.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        self.pieces(offset..u64::MAX).next().map(|(start, _)| start)
    }

    /// The first byte from `offset` on that is in none.
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut at = offset;
        for (start, extent) in self.pieces(offset..u64::MAX) {
            if start > at {
                break;
            }
            at = start + u64::from(extent.len);
        }
        at
    }
}

fn decode_extent(encoded: &[u8; EXTENT_BYTES]) -> Option<(u32, Extent)> {
    let short = |at: usize| Some(u32::from_le_bytes(encoded.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(encoded.get(at..at + 8)?.try_into().ok()?));
    let slice = SliceId {
        epoch: long(8)?,
        number: long(16)?,
    };
    let extent = Extent {
        len: short(4)?,
        slice,
        at: short(24)?,
        slice_len: short(28)?,
    };
    Some((short(0)?, extent))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ferrite_testkit::rng::Rng;

    use super::*;

    /// Two chunks, seen in units of 64 KiB.
    const UNIT: u64 = 64 << 10;
    const UNITS: u64 = 2 * CHUNK_BYTES / UNIT;

    /// Which unit of which slice each unit of the file has.
    type Model = Vec<Option<(SliceId, u64)>>;

    fn check(map: &SliceMap, model: &Model, gone: &HashSet<SliceId>, what: &str) {
        let mut seen: Model = vec![None; UNITS as usize];
        for (start, extent) in map.pieces(0..u64::MAX) {
            for unit in 0..u64::from(extent.len) / UNIT {
                seen[(start / UNIT + unit) as usize] = Some((extent.slice, u64::from(extent.at) / UNIT + unit));
            }
        }
        assert!(seen == *model, "{what}");
        let named: HashSet<SliceId> = model.iter().flatten().map(|(slice, _)| *slice).collect();
        assert_eq!(map.slices().map(|(id, _)| id).collect::<HashSet<_>>(), named, "{what}");
        assert!(gone.is_disjoint(&named), "{what}");
        assert_eq!(map.bytes(), model.iter().flatten().count() as u64 * UNIT, "{what}");
        let mut again = SliceMap::default();
        for chunk in 0..2 {
            if let Some(encoded) = map.encode_chunk(chunk) {
                again.add_chunk(chunk, &encoded).unwrap();
            }
        }
        assert_eq!(again.extents, map.extents, "{what}");
        for at in 0..UNITS {
            let next = |is_data: bool| (at..UNITS).find(|&unit| model[unit as usize].is_some() == is_data);
            assert_eq!(map.next_data(at * UNIT), next(true).map(|unit| unit * UNIT), "{what}");
            assert_eq!(map.next_hole(at * UNIT), next(false).unwrap_or(UNITS) * UNIT, "{what}");
        }
    }

    /// Later slices over earlier ones, and holes, against a model; every slice that goes is reported once.
    #[test]
    fn random_changes_match_a_model() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut map, mut model): (SliceMap, Model) = (SliceMap::default(), vec![None; UNITS as usize]);
            let mut gone = HashSet::new();
            for number in 0..60 {
                let what = format!("seed {seed}, step {number}");
                let start = rng.below(UNITS);
                let in_block = BLOCK_BYTES / UNIT;
                let unnamed = if rng.below(4) == 0 {
                    let end = (start + 1 + rng.below(100)).min(UNITS);
                    model[start as usize..end as usize].fill(None);
                    map.remove(start * UNIT..end * UNIT)
                } else {
                    let end = (start + 1 + rng.below(in_block)).min((start / in_block + 1) * in_block);
                    let (slice, at) = (SliceId { epoch: 1, number }, rng.below(3));
                    for unit in start..end {
                        model[unit as usize] = Some((slice, at + unit - start));
                    }
                    let extent = Extent {
                        len: ((end - start) * UNIT) as u32,
                        slice,
                        at: (at * UNIT) as u32,
                        slice_len: ((at + end - start).min(in_block) * UNIT) as u32,
                    };
                    match at + end - start <= in_block {
                        true => map.cover(start * UNIT, extent),
                        false => {
                            model[start as usize..end as usize].fill(None);
                            map.remove(start * UNIT..end * UNIT)
                        }
                    }
                };
                for (slice, _) in unnamed {
                    assert!(gone.insert(slice), "{what}: reported twice");
                }
                check(&map, &model, &gone, &what);
            }
        }
    }

    /// Protects against rows that somebody changed: none is taken for a map that it cannot be.
    #[test]
    fn chunks_that_cannot_be_are_refused() {
        let slice = SliceId { epoch: 1, number: 2 };
        let extent = |len, at, slice_len| Extent {
            len,
            slice,
            at,
            slice_len,
        };
        let mut map = SliceMap::default();
        map.cover(0, extent(100, 0, 100));
        map.cover(200, extent(50, 10, 60));
        let good = map.encode_chunk(0).unwrap();
        assert!(SliceMap::default().add_chunk(0, &good).is_some());
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            bad
        };
        for bad in [
            Vec::new(),
            good[..good.len() - 1].to_vec(),
            with(0, &[9]),
            with(5, &0_u32.to_le_bytes()),
            with(5, &300_u32.to_le_bytes()),
            with(5, &u32::MAX.to_le_bytes()),
            with(25, &u32::MAX.to_le_bytes()),
            with(29, &1_u32.to_le_bytes()),
            with(29, &u32::MAX.to_le_bytes()),
            with(1, &(BLOCK_BYTES as u32 - 1).to_le_bytes()),
        ] {
            assert!(SliceMap::default().add_chunk(0, &bad).is_none(), "{bad:?}");
        }
        assert!(SliceMap::default().add_chunk(u64::MAX, &good).is_none());
    }

    #[test]
    fn a_block_knows_its_use() {
        let mut map = SliceMap::default();
        let extent = |number, len, at| Extent {
            len,
            slice: SliceId { epoch: 1, number },
            at,
            slice_len: 1000,
        };
        map.cover(BLOCK_BYTES, extent(1, 1000, 0));
        map.cover(BLOCK_BYTES + 100, extent(2, 10, 5));
        let expected = BlockUse {
            extents: 3,
            slices: 2,
            runs: 1,
            live_bytes: 1000,
            stored_bytes: 2000,
        };
        assert_eq!(map.block_use(1), expected);
        assert_eq!(map.block_use(0), BlockUse::default());
        assert_eq!(map.chunks(0..u64::MAX), [0]);
    }
}

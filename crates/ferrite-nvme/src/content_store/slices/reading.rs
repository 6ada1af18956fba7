//! Reads of a blob: from slices on their way, in memory or in the log, from the cache and the bucket, and from the
//! buffers over them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use ferrite_slices::{BLOCK_BYTES, Extent, Found, Readahead, SliceId, Started};

use super::blob::SharedBlob;
use super::state::by_block;
use super::store::of_bucket;
use super::unstored::{Spilled, Unstored};
use crate::content_store::{Error, Result};

/// Slices that are fetched at once, for one read.
const FETCHED_AT_ONCE: usize = 16;

/// Where the bytes of a part of a read come from.
enum Source {
    Here(Found),
    Log(Arc<Spilled>),
    Bucket,
}

fn is_shorter(extent: &Extent) -> Error {
    Error::Damaged(format!("slice {} is shorter than its file's map says", extent.slice))
}

/// Where the bytes of an extent are in its slice.
pub(super) fn within(extent: &Extent) -> Range<u32> {
    extent.at..extent.at.saturating_add(extent.len)
}

/// For each slice the bytes from its first extent to its last one, so that one request brings them.
pub(super) fn hulls_of<'e>(extents: impl Iterator<Item = &'e Extent>) -> HashMap<SliceId, Range<u32>> {
    let mut hulls: HashMap<SliceId, Range<u32>> = HashMap::new();
    for extent in extents {
        let bytes = within(extent);
        let hull = hulls.entry(extent.slice).or_insert_with(|| bytes.clone());
        *hull = hull.start.min(bytes.start)..hull.end.max(bytes.end);
    }
    hulls
}

/// The bytes of an extent. Two rows may name one slice, and lie about its length.
pub(super) fn copy_of(found: &Found, extent: &Extent) -> Result<Vec<u8>> {
    let mut bytes = vec![0; extent.len as usize];
    match found.copy(extent.at, &mut bytes) {
        true => Ok(bytes),
        false => Err(is_shorter(extent)),
    }
}

/// A part of a read: where it begins in the blob, and where its bytes are.
type Part = (u64, Extent, Source);

/// Bytes of a buffer: where they begin, and the bytes.
type Over = (u64, Vec<u8>);

/// All that a read consists of.
struct Plan {
    parts: Vec<Part>,
    /// Comes over them.
    over: Vec<Over>,
    /// How the reader is served, if it reads in order.
    order: Option<Readahead>,
    /// Extents to fetch for reads that will come.
    ahead: Vec<Extent>,
}

impl SharedBlob {
    /// The sources of a read, with the parts that they fill, and the bytes of buffers, which come over them.
    fn plan(&self, bytes: &Range<u64>) -> Result<Plan> {
        let cache = &self.store.cache;
        let mut state = self.state.lock();
        if state.is_deleted {
            return Err(Error::NotFound);
        }
        state.log.check_read(bytes)?;
        let noted = state
            .order
            .note(bytes, |reader, is_new| cache.readahead(reader, is_new));
        let source = |(start, extent): (u64, Extent)| {
            let id = extent.slice;
            let source = match state.uploads.get(&id).map(|upload| &upload.bytes) {
                Some(Unstored::Memory { slice, .. }) => Source::Here(Found::Whole(slice.clone())),
                Some(Unstored::Log(spilled)) => match cache.get(id) {
                    Some(slice) => Source::Here(Found::Whole(slice)),
                    None => Source::Log(Arc::clone(spilled)),
                },
                None => cache.find(id, within(&extent)).map_or(Source::Bucket, Source::Here),
            };
            (start, extent, source)
        };
        let parts = state.map.pieces(bytes.clone()).map(source).collect();
        let mut over = Vec::new();
        for (block, within) in by_block(bytes.clone()) {
            if let Some(buffer) = state.buffers.get(&block) {
                let parts = buffer.parts_in(within);
                over.extend(parts.map(|(at, bytes)| (block * BLOCK_BYTES + at as u64, bytes.to_vec())));
            }
        }
        let ends = bytes.end >= state.map.end().max(state.row.valid_len);
        if let Some(reader) = noted.reader.filter(|_| ends) {
            cache.forget_reader(reader);
        }
        let unit_bytes = noted.order.map_or(BLOCK_BYTES, |order| order.unit_bytes);
        let mut seen = HashSet::new();
        let ahead = noted.ahead.into_iter().flat_map(|range| state.map.pieces(range));
        let ahead = ahead
            .map(|(_, extent)| extent)
            .filter(|extent| !state.uploads.contains_key(&extent.slice))
            // One request for all extents that it brings.
            .filter(|extent| {
                let (first, last) = (u64::from(extent.at), u64::from(extent.at + extent.len - 1));
                let units = first / unit_bytes..last / unit_bytes + 1;
                units.filter(|unit| seen.insert((extent.slice, *unit))).count() > 0
            })
            .take(FETCHED_AT_ONCE)
            .collect();
        Ok(Plan {
            parts,
            over,
            order: noted.order,
            ahead,
        })
    }

    /// Reads, and fetches ahead.
    pub(super) fn read(&self, into: &mut [u8], bytes: &Range<u64>) -> Result<()> {
        let plan = self.plan(bytes)?;
        let cache = &self.store.cache;
        let found: u64 = plan.parts.iter().map(|(_, extent, _)| u64::from(extent.len)).sum();
        if found < bytes.end - bytes.start {
            into.fill(0);
        }
        let mut ahead = Some(plan.ahead);
        let mut start_ahead = || {
            for extent in ahead.take().into_iter().flatten() {
                cache.start_ahead(extent.slice, extent.slice_len, &within(&extent), plan.order);
            }
        };
        for some in plan.parts.chunks(FETCHED_AT_ONCE) {
            let wanted = some.iter().filter(|(_, _, source)| matches!(source, Source::Bucket));
            let hulls = hulls_of(wanted.map(|(_, extent, _)| extent));
            let start = |(_, extent, source): &Part| {
                let hull = hulls.get(&extent.slice).filter(|_| matches!(source, Source::Bucket))?;
                Some(cache.start(extent.slice, extent.slice_len, hull, plan.order))
            };
            let fetched: Vec<Option<Started<Found>>> = some.iter().map(start).collect();
            // Behind the requests that this read waits for.
            start_ahead();
            for ((start, extent, source), fetched) in some.iter().zip(fetched) {
                let found = match (source, fetched) {
                    (Source::Here(found), _) => found.clone(),
                    (Source::Log(spilled), _) => self.read_log(extent.slice, spilled)?,
                    (Source::Bucket, Some(fetched)) => fetched.wait().map_err(of_bucket)?,
                    (Source::Bucket, None) => continue,
                };
                let at = (start - bytes.start) as usize;
                if !found.copy(extent.at, &mut into[at..at + extent.len as usize]) {
                    return Err(is_shorter(extent));
                }
                cache.finish(extent.slice, extent.slice_len, within(extent), &found);
            }
        }
        start_ahead();
        for (start, part) in plan.over {
            let at = (start - bytes.start) as usize;
            into[at..at + part.len()].copy_from_slice(&part);
        }
        Ok(())
    }

    fn read_log(&self, id: SliceId, spilled: &Spilled) -> Result<Found> {
        if let Some(slice) = self.store.cache.get(id) {
            return Ok(Found::Whole(slice));
        }
        let slice = self.store.read_spilled(spilled)?;
        self.store.cache.arrive(id, slice.clone());
        Ok(Found::Whole(slice))
    }
}

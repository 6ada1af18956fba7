//! Reads of a blob: from slices on their way, in memory or in the log, from the cache and the bucket, and from the
//! buffers over them.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ferrite_slices::{BLOCK_BYTES, Extent, SliceId, Started};

use super::blob::SharedBlob;
use super::state::by_block;
use super::store::of_bucket;
use super::unstored::{Spilled, Unstored};
use crate::content_store::{Error, Result};

/// Slices that are fetched at once, for one read.
const FETCHED_AT_ONCE: usize = 16;

/// Where the bytes of a part of a read come from.
enum Source {
    Here(Bytes),
    Log(Arc<Spilled>),
    Bucket(SliceId, u32),
}

/// The bytes of an extent in its slice. Two rows may name one slice, and lie about its length.
pub(super) fn part_of<'s>(slice: &'s [u8], extent: &Extent) -> Result<&'s [u8]> {
    let from = extent.at as usize;
    let part = slice.get(from..from + extent.len as usize);
    part.ok_or_else(|| Error::Damaged(format!("slice {} is shorter than its file's map says", extent.slice)))
}

/// A part of a read: where it begins in the blob, and where its bytes are.
type Part = (u64, Extent, Source);

/// Bytes of a buffer: where they begin, and the bytes.
type Over = (u64, Vec<u8>);

impl SharedBlob {
    /// The sources of a read, with the parts that they fill; and the bytes of buffers, which come over them.
    fn sources(&self, bytes: &Range<u64>) -> Result<(Vec<Part>, Vec<Over>)> {
        let state = self.state.lock();
        if state.is_deleted {
            return Err(Error::NotFound);
        }
        state.log.check_read(bytes)?;
        let source = |(start, extent): (u64, Extent)| {
            let id = extent.slice;
            let source = match state.uploads.get(&id).map(|upload| &upload.bytes) {
                Some(Unstored::Memory { slice, .. }) => Source::Here(slice.clone()),
                Some(Unstored::Log(spilled)) => {
                    let cached = self.store.cache.get(id);
                    cached.map_or_else(|| Source::Log(Arc::clone(spilled)), Source::Here)
                }
                None => {
                    let cached = self.store.cache.get(id);
                    cached.map_or(Source::Bucket(id, extent.slice_len), Source::Here)
                }
            };
            (start, extent, source)
        };
        let sources = state.map.pieces(bytes.clone()).map(source).collect();
        let mut over = Vec::new();
        for (block, within) in by_block(bytes.clone()) {
            if let Some(buffer) = state.buffers.get(&block) {
                let parts = buffer.parts_in(within);
                over.extend(parts.map(|(at, bytes)| (block * BLOCK_BYTES + at as u64, bytes.to_vec())));
            }
        }
        Ok((sources, over))
    }

    /// Reads, and fetches ahead.
    pub(super) fn read(&self, into: &mut [u8], bytes: &Range<u64>) -> Result<()> {
        let (sources, over) = self.sources(bytes)?;
        let found: u64 = sources.iter().map(|(_, extent, _)| u64::from(extent.len)).sum();
        if found < bytes.end - bytes.start {
            into.fill(0);
        }
        let mut copy = |start: u64, extent: &Extent, slice: &[u8]| {
            let at = (start - bytes.start) as usize;
            let part = part_of(slice, extent)?;
            into[at..at + part.len()].copy_from_slice(part);
            if extent.at + extent.len == extent.slice_len {
                self.store.cache.finish(extent.slice);
            }
            Ok::<(), Error>(())
        };
        for some in sources.chunks(FETCHED_AT_ONCE) {
            let fetched: Vec<Option<Started<Bytes>>> = some
                .iter()
                .map(|(_, _, source)| match source {
                    Source::Here(_) | Source::Log(_) => None,
                    Source::Bucket(slice, len) => Some(self.store.cache.start(*slice, *len)),
                })
                .collect();
            for ((start, extent, source), fetched) in some.iter().zip(fetched) {
                match (source, fetched) {
                    (Source::Here(slice), _) => copy(*start, extent, slice)?,
                    (Source::Log(spilled), _) => {
                        let slice = match self.store.cache.get(extent.slice) {
                            Some(slice) => slice,
                            None => {
                                let slice = self.store.read_spilled(spilled)?;
                                self.store.cache.arrive(extent.slice, slice.clone());
                                slice
                            }
                        };
                        copy(*start, extent, &slice)?;
                    }
                    (Source::Bucket(..), Some(fetched)) => copy(*start, extent, &fetched.wait().map_err(of_bucket)?)?,
                    (Source::Bucket(..), None) => {}
                }
            }
        }
        for (start, part) in over {
            let at = (start - bytes.start) as usize;
            into[at..at + part.len()].copy_from_slice(&part);
        }
        self.fetch_ahead(bytes);
        Ok(())
    }

    /// Fetches ahead for readers in order.
    fn fetch_ahead(&self, bytes: &Range<u64>) {
        let mut state = self.state.lock();
        let ranges = state.order.note(bytes, self.store.cache.ahead_bytes());
        let mut seen = HashSet::new();
        let wanted: Vec<(SliceId, u32)> = ranges
            .into_iter()
            .flat_map(|range| state.map.pieces(range))
            .map(|(_, extent)| (extent.slice, extent.slice_len))
            .filter(|(slice, _)| !state.uploads.contains_key(slice) && seen.insert(*slice))
            .take(FETCHED_AT_ONCE)
            .collect();
        drop(state);
        for (slice, len) in wanted {
            if !self.store.cache.contains(slice) {
                self.store.cache.start_ahead(slice, len);
            }
        }
    }
}

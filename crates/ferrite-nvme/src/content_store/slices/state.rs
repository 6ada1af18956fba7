//! The known state of a blob in use.
//!
//! Invariants: readers see the map, with the buffers over it; `unpublished` has all that differs between the
//! rows and the map. Changes are made by `blob`, under its lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::time::Instant;

use ferrite_slices::{BLOCK_BYTES, CHUNK_BYTES, Error as BucketError, Extent, SliceId, SliceMap, Unnamed};
use ferrite_wal::Position;

use super::UNIT_BYTES;
use super::blob_row::{BlobRow, RESERVED_MAX};
use super::buffer::{Buffer, Sealed};
use super::log_state::LogState;
use super::order::Order;
use super::unstored::Upload;
use crate::content_store::{Error, Result};

/// Ranges of a buffer that are stored as they are.
const RANGES_MAX: usize = 64;
/// Slices that come and go between two publications, at most, where a writer can wait.
const SLICES_MAX: usize = 1000;
/// The same where a log has them: they may be published in several steps.
const LOGGED_SLICES_MAX: usize = 16_000;

/// The known state of a blob.
#[derive(Default)]
pub(super) struct State {
    pub(super) map: SliceMap,
    pub(super) buffers: BTreeMap<u64, Buffer>,
    pub(super) uploads: HashMap<SliceId, Upload>,
    /// How many of its objects have arrived.
    pub(super) arrived: u64,
    pub(super) row: BlobRow,
    pub(super) unpublished: Unpublished,
    /// The bytes that its rows name.
    pub(super) published_bytes: u64,
    pub(super) is_deleted: bool,
    /// Its deletion has begun, and has failed: rows may be gone, and come back by no publication.
    pub(super) is_doomed: bool,
    /// A publication is under way: what it took from `unpublished` is not durable yet.
    pub(super) is_publishing: bool,
    /// The blob is about to be deleted: nobody need wait for its objects.
    pub(super) is_unwanted: bool,
    pub(super) order: Order,
    pub(super) log: LogState,
    /// Rows may name other slices than the map: an attempt to share them, or to delete the blob, has failed.
    pub(super) is_row_unsure: bool,
    /// The slice that was verified last, when, and whether it is as it was stored.
    pub(super) verified: Option<(SliceId, Instant, bool)>,
}

/// Changes that rows do not have yet.
#[derive(Default)]
pub(super) struct Unpublished {
    pub(super) chunks: BTreeSet<u64>,
    /// Blocks that have changed, for whoever writes them anew.
    pub(super) blocks: BTreeSet<u64>,
    /// Slices that are staged, each with the chunk that it is of.
    pub(super) fresh: Vec<(SliceId, u64)>,
    /// Slices that nothing names any more, each with the chunk that it was of.
    pub(super) unnamed: Vec<(SliceId, u64)>,
    pub(super) row: bool,
}

impl Unpublished {
    /// Slices that nothing names any more, since something at this offset covers them or is gone.
    fn add_unnamed(&mut self, unnamed: Unnamed, chunk_of: impl Fn(SliceId) -> u64) {
        let with_chunk = |(id, _): (SliceId, u32)| (id, chunk_of(id));
        self.unnamed.extend(unnamed.into_iter().map(with_chunk));
    }

    /// Whether it should become durable before there is more: a publication is one transaction then, or the log is
    /// longer than it should be.
    pub(super) fn is_large(&self, is_logged: bool) -> bool {
        let most = if is_logged { LOGGED_SLICES_MAX } else { SLICES_MAX };
        self.fresh.len() + self.unnamed.len() > most
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.row && self.chunks.is_empty() && self.fresh.is_empty() && self.unnamed.is_empty()
    }
}

/// The part of a range in each block: the block, and from where to where in it.
pub(super) fn by_block(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)).map(move |block| {
        let begins = block * BLOCK_BYTES;
        let (from, to) = (range.start.max(begins), range.end.min(begins + BLOCK_BYTES));
        (block, (from - begins) as usize..(to - begins) as usize)
    })
}

impl State {
    /// Refuses a change of a blob that is gone, or that has changes which are not to be had.
    pub(super) fn check_change(&self) -> Result<()> {
        match self.is_gone() {
            true => Err(Error::NotFound),
            false => self.log.check_change(),
        }
    }

    /// Whether it is deleted, or is to be.
    pub(super) fn is_gone(&self) -> bool {
        self.is_deleted || self.is_doomed
    }

    /// Whether all of its slices on their way cannot be read any more.
    pub(super) fn is_stuck(&self) -> bool {
        let is_unreadable = |upload: &Upload| matches!(upload.error, Some(BucketError::Damaged(_)));
        !self.uploads.is_empty() && self.uploads.values().all(is_unreadable)
    }

    /// The position from which on the log has to be kept.
    pub(super) fn kept_from(&self) -> Option<Position> {
        let of_uploads = self.uploads.values().filter_map(Upload::kept_from);
        self.log.kept_from().into_iter().chain(of_uploads).min()
    }

    /// Whether the rows have all of it.
    pub(super) fn is_published(&self) -> bool {
        self.unpublished.is_empty() && self.buffers.is_empty() && !self.is_publishing
    }

    /// Releases everything from `len` on. Returns how many bytes the buffers lost.
    pub(super) fn truncate(&mut self, len: u64) -> u64 {
        self.row.valid_len = self.row.valid_len.min(len);
        let of_buffers = self
            .buffers
            .keys()
            .next_back()
            .map_or(0, |last| (last + 1) * BLOCK_BYTES);
        let reserved = self.row.reserved.last().map_or(0, |last| last.end);
        let end = self.map.end().max(of_buffers).max(reserved);
        match len < end {
            true => self.remove(len..end),
            false => 0,
        }
    }

    pub(super) fn reserve(&mut self, bytes: Range<u64>) {
        let units = bytes.start / UNIT_BYTES * UNIT_BYTES..bytes.end.next_multiple_of(UNIT_BYTES);
        if !bytes.is_empty() && self.row.reserved.len() < RESERVED_MAX {
            self.row.reserved.insert(units);
        }
    }

    /// Makes a hole, in buffers and in the map. Returns how many bytes the buffers lost.
    pub(super) fn remove(&mut self, gone: Range<u64>) -> u64 {
        let mut lost = 0;
        let units = gone.start.next_multiple_of(UNIT_BYTES)..gone.end / UNIT_BYTES * UNIT_BYTES;
        if units.start < units.end && self.row.reserved.len() < RESERVED_MAX {
            self.row.reserved.remove(units);
        }
        let blocks: Vec<u64> = self
            .buffers
            .range(gone.start / BLOCK_BYTES..gone.end.div_ceil(BLOCK_BYTES))
            .map(|(&block, _)| block)
            .collect();
        for block in blocks {
            let begins = block * BLOCK_BYTES;
            let within = gone.start.saturating_sub(begins)..(gone.end - begins).min(BLOCK_BYTES);
            if let Some(buffer) = self.buffers.get_mut(&block) {
                let before = buffer.memory();
                buffer.remove(within.start as usize..within.end as usize);
                lost += before - buffer.memory();
                if buffer.is_empty() {
                    self.buffers.remove(&block);
                }
            }
        }
        self.unpublished.chunks.extend(self.map.chunks(gone.clone()));
        let ends = [gone.start, gone.end - 1].map(|at| at / BLOCK_BYTES);
        self.unpublished.blocks.extend(ends);
        // A slice is of one block, so of one chunk.
        let chunks: HashMap<SliceId, u64> = self
            .map
            .pieces(gone.clone())
            .map(|(start, extent)| (extent.slice, start / CHUNK_BYTES))
            .collect();
        let unnamed = self.map.remove(gone);
        self.unpublished
            .add_unnamed(unnamed, |id| chunks.get(&id).copied().unwrap_or(0));
        lost
    }

    /// Fills holes between the ranges of a buffer with zeros, up to whole units, where it has many: a row has a place
    /// for each extent.
    fn widen(&self, block: u64, buffer: &mut Buffer) {
        let begins = block * BLOCK_BYTES;
        if buffer.ranges().len() <= RANGES_MAX {
            return;
        }
        let ranges = buffer.ranges().to_vec();
        let ends = ranges
            .iter()
            .skip(1)
            .map(|next| next.start)
            .chain([BLOCK_BYTES as usize]);
        for (range, next) in ranges.iter().zip(ends) {
            let unit_end = range.end.next_multiple_of(UNIT_BYTES as usize).min(next);
            let valid_end = self.row.valid_len.saturating_sub(begins) as usize;
            let gap = range.end..unit_end.min(valid_end);
            let is_hole = self
                .map
                .pieces(begins + gap.start as u64..begins + gap.end as u64)
                .next()
                .is_none();
            if !gap.is_empty() && is_hole {
                buffer.write(gap.start, &vec![0; gap.len()]);
            }
        }
    }

    /// Has a buffer become a slice, which is an upload then.
    pub(super) fn seal(&mut self, block: u64, buffer: &mut Buffer, id: SliceId) -> Sealed {
        self.widen(block, buffer);
        let sealed = buffer.seal();
        let chunk = block * BLOCK_BYTES / CHUNK_BYTES;
        let mut at = 0;
        for range in buffer.ranges() {
            let extent = Extent {
                len: range.len() as u32,
                slice: id,
                at,
                slice_len: sealed.slice.len() as u32,
            };
            let unnamed = self.map.cover(block * BLOCK_BYTES + range.start as u64, extent);
            self.unpublished.add_unnamed(unnamed, |_| chunk);
            at += extent.len;
        }
        self.unpublished.chunks.insert(chunk);
        self.unpublished.blocks.insert(block);
        self.unpublished.fresh.push((id, chunk));
        sealed
    }

    /// The first byte of data from `offset` on.
    pub(super) fn first_data(&self, offset: u64) -> Option<u64> {
        let in_buffers = self.buffers.range(offset / BLOCK_BYTES..).find_map(|(block, buffer)| {
            let begins = block * BLOCK_BYTES;
            let from = offset.saturating_sub(begins) as usize;
            let first = buffer.parts_in(from..BLOCK_BYTES as usize).next();
            first.map(|(at, _)| begins + at as u64)
        });
        in_buffers.into_iter().chain(self.map.next_data(offset)).min()
    }

    /// The end of the data that is at `at`.
    pub(super) fn end_of_data(&self, mut at: u64) -> u64 {
        loop {
            let begun = at;
            at = self.map.next_hole(at);
            if let Some(buffer) = self.buffers.get(&(at / BLOCK_BYTES)) {
                let within = (at % BLOCK_BYTES) as usize;
                let part = buffer.parts_in(within..BLOCK_BYTES as usize).next();
                at += part
                    .filter(|(start, _)| *start == within)
                    .map_or(0, |(_, bytes)| bytes.len() as u64);
            }
            if at == begun {
                return at;
            }
        }
    }

    pub(super) fn buffered(&self) -> u64 {
        self.buffers.values().map(Buffer::len).sum()
    }

    pub(super) fn memory(&self) -> u64 {
        self.buffers.values().map(Buffer::memory).sum()
    }
}

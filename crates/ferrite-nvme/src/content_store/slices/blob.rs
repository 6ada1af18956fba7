//! The content of one file in use.
//!
//! Contents: [`SlicesBlob`], a handle; [`SharedBlob`], which all handles of a blob share.
//!
//! Invariants:
//! * Readers see the map, with the buffers over it. Slices that have no object yet are in `uploads`.
//! * `unpublished` has all that differs between the rows and the map: so rows are behind it, never ahead.
//! * All changes, and the moment that a publication is of, are under `changing`.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;
use ferrite_slices::{BLOCK_BYTES, Error as BucketError, Extent, SliceMap};
use ferrite_wal::Position;

use super::blob_row::BlobRow;
use super::buffer::Buffer;
use super::change::{Change, InCall, WHOLE};
use super::in_log::Origin;
use super::log_state::LogState;
use super::mark::Mark;
use super::state::{State, Unpublished, by_block};
use super::store::{Store, id_of, of_bucket};
use super::unstored::Unstored;
use super::{CAPACITY_BYTES, UNIT_BYTES, lock_order};
use crate::content_store::{Blob, DataDamage, Error, Place, Placement, Result, UniqueId};

/// Bytes of a write that are one record of a log, a part of a block.
const RECORD_BYTES_MAX: u64 = BLOCK_BYTES / 4;
/// Longer writes are made in parts, and pass a log by.
pub(super) const LONG_BYTES: u64 = 64 << 20;
const LAST: InCall = InCall {
    is_first: false,
    is_last: true,
};
/// How long a slice that was verified counts as that.
const VERIFIED_FOR: Duration = Duration::from_secs(10);
/// Attempts of a read that meets slices which are gone meanwhile.
const READS_MAX: usize = 3;

/// A blob, as long as any handle of it exists or it has changes that are not durable.
pub(super) struct SharedBlob {
    pub(super) store: Arc<Store>,
    pub(super) place: Place,
    pub(super) id: UniqueId,
    pub(super) publishing: Mutex<lock_order::Publishing, ()>,
    pub(super) changing: Mutex<lock_order::Changing, ()>,
    /// The mark, and what a log has of the blob, become durable one after the other.
    pub(super) marking: Mutex<lock_order::Marking, ()>,
    pub(super) state: Mutex<lock_order::BlobState, State>,
    /// An object has arrived, or has not.
    pub(super) heard: Condvar,
}

/// A handle of a blob.
pub(super) struct SlicesBlob(pub(super) Arc<SharedBlob>);

impl fmt::Debug for SlicesBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SlicesBlob").field(&self.0.place).finish()
    }
}

impl Drop for SharedBlob {
    fn drop(&mut self) {
        self.store.forget(self.id);
    }
}

/// A range of a blob.
fn range(offset: u64, len: u64) -> Result<Range<u64>> {
    let end = offset.checked_add(len).filter(|&end| end <= i64::MAX as u64);
    end.map(|end| offset..end).ok_or(Error::NoSpace)
}

/// A range that is not longer than a blob can be.
fn existing_range(offset: u64, len: u64) -> Result<Range<u64>> {
    match len > CAPACITY_BYTES {
        true => Err(Error::NoSpace),
        false => range(offset, len),
    }
}

/// Parts of a write that are records of a log: none crosses the border of a block.
struct Parts<'d> {
    left: &'d [u8],
    offset: u64,
}

impl<'d> Iterator for Parts<'d> {
    type Item = (u64, &'d [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let most = (RECORD_BYTES_MAX - self.offset % RECORD_BYTES_MAX) as usize;
        let (bytes, left) = self.left.split_at(self.left.len().min(most));
        let offset = self.offset;
        (self.left, self.offset) = (left, offset + bytes.len() as u64);
        (!bytes.is_empty()).then_some((offset, bytes))
    }
}

impl SharedBlob {
    /// A blob that was just made.
    pub(super) fn empty(store: &Arc<Store>, place: Place) -> (UniqueId, SharedBlob) {
        SharedBlob::loaded(store, place, (BlobRow::default(), SliceMap::default()), None)
    }

    /// A blob with these rows.
    pub(super) fn loaded(
        store: &Arc<Store>,
        place: Place,
        (mut row, map): (BlobRow, SliceMap),
        mark: Option<Mark>,
    ) -> (UniqueId, SharedBlob) {
        // A publication in several steps that was cut off has left bytes behind the end.
        row.valid_len = row.valid_len.max(map.end());
        // The caller has checked it.
        let id = id_of(place).unwrap_or(UniqueId {
            shard: 0,
            epoch: 0,
            number: 0,
        });
        let blob = SharedBlob {
            store: Arc::clone(store),
            place,
            id,
            publishing: Mutex::default(),
            changing: Mutex::default(),
            marking: Mutex::default(),
            state: Mutex::new(State {
                published_bytes: map.bytes(),
                map,
                row,
                log: LogState::loaded(mark, store.log.as_deref()),
                ..State::default()
            }),
            heard: Condvar::new(),
        };
        (id, blob)
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.state.lock().is_deleted
    }

    fn existing(&self) -> Result<()> {
        match self.is_deleted() {
            true => Err(Error::NotFound),
            false => Ok(()),
        }
    }

    /// Makes a change in memory, and sets the tail with it. One change after another; the caller waits for no object.
    fn change(self: &Arc<Self>, change: &Change<'_>, tail: Option<&[u8]>) -> Result<()> {
        self.store.check_changes()?;
        let _changing = self.changing.lock();
        self.make_room(0);
        let mut state = self.state.lock();
        state.check_change()?;
        self.store.note_changes(self.id, self);
        state.unpublished.row = true;
        let changes = [*change, tail.map_or(Change::End, Change::Tail)];
        self.log(&mut state, &changes, WHOLE);
        let lost = changes.iter().map(|change| state.apply(change)).sum();
        drop(state);
        self.store.count_buffered(0, lost);
        Ok(())
    }

    /// Has all buffers become slices, whose objects are sent. The caller has `changing`.
    pub(super) fn seal_all(self: &Arc<Self>) -> Result<()> {
        let count = self.state.lock().buffers.len();
        if count == 0 {
            return Ok(());
        }
        // This waits for the metadata store; the buffers stay as they are meanwhile.
        let ids = self.store.take_ids(count)?;
        let mut state = self.state.lock();
        let memory = state.memory();
        let mut buffers = std::mem::take(&mut state.buffers);
        for ((block, buffer), &id) in buffers.iter_mut().zip(&ids) {
            let sealed = state.seal(*block, buffer, id);
            self.add_upload(&mut state, id, sealed);
        }
        drop(state);
        drop(buffers);
        ids.into_iter().for_each(|id| self.send_object(id));
        self.store.count_buffered(0, memory);
        Ok(())
    }

    /// The same of one buffer.
    fn seal_block(self: &Arc<Self>, block: u64) -> Result<()> {
        let ids = self.store.take_ids(1)?;
        let mut state = self.state.lock();
        let sealed = state.buffers.remove(&block).zip(ids.first().copied());
        let sealed = sealed.map(|(mut buffer, id)| {
            let memory = buffer.memory();
            let sealed = state.seal(block, &mut buffer, id);
            self.add_upload(&mut state, id, sealed);
            (id, memory)
        });
        drop(state);
        if let Some((id, memory)) = sealed {
            self.send_object(id);
            self.store.count_buffered(0, memory);
        }
        Ok(())
    }

    /// Writes to the log, and to buffers. The caller has `changing`. A block that is full becomes a slice.
    ///
    /// A long write passes the log by: it waits for the bucket anyway, and would be in it in parts.
    fn write(self: &Arc<Self>, data: &[u8], offset: u64, is_long: bool) -> Result<()> {
        if is_long {
            self.pass_log(&mut self.state.lock());
        }
        for (at, data) in (Parts { left: data, offset }) {
            let place = InCall {
                is_first: at == offset,
                is_last: false,
            };
            let change = Change::Write { offset: at, data };
            self.make_room(data.len());
            let mut state = self.state.lock();
            // The blob is known to have changes before the log has one: its head stays before it.
            self.store.note_changes(self.id, self);
            state.unpublished.row = true;
            let record = self.log(&mut state, &[change], place);
            drop(state);
            self.write_logged(data, at, (record, is_long))?;
        }
        Ok(())
    }

    /// Writes to buffers what the log has, if it has it: in this record.
    pub(super) fn write_logged(
        self: &Arc<Self>,
        data: &[u8],
        offset: u64,
        (record, is_long): (Option<Position>, bool),
    ) -> Result<()> {
        let mut left = data;
        for (block, within) in by_block(offset..offset + data.len() as u64) {
            let (part, rest) = left.split_at(within.len());
            left = rest;
            let mut state = self.state.lock();
            let buffer = state.buffers.entry(block).or_insert_with(Buffer::new);
            let before = buffer.memory();
            // A record has bytes of one block, or is of a part that begins elsewhere.
            let begins = offset.checked_sub(block * BLOCK_BYTES);
            let origin = record.zip(begins).map(|(record, begins)| Origin {
                record,
                begins: begins as usize,
            });
            buffer.write_from(within.start, part, origin);
            let (after, is_full) = (buffer.memory(), buffer.is_full());
            let end = block * BLOCK_BYTES + within.end as u64;
            state.row.valid_len = state.row.valid_len.max(end);
            state.unpublished.row = true;
            self.store.note_changes(self.id, self);
            drop(state);
            self.store.count_buffered(after, before);
            if is_full {
                self.seal_block(block)?;
            }
            if is_long && self.store.is_short_of_memory() {
                self.seal_all()?;
                self.store.wait_for_room(0)?;
            }
        }
        Ok(())
    }

    /// Deletes the blob: its slices are dead, and its rows are gone.
    ///
    /// A crash in between leaves rows of some chunks: the engine's record stands, and the next deletion continues.
    pub(super) fn delete(self: &Arc<Self>) -> Result<()> {
        self.state.lock().is_unwanted = true;
        self.heard.notify_all();
        let _publishing = self.publishing.lock();
        let _changing = self.changing.lock();
        {
            let mut state = self.state.lock();
            state.is_unwanted = false;
            if state.is_deleted {
                return Err(Error::NotFound);
            }
            state.is_deleted = true;
        }
        // No mark is stored behind the deletion's back.
        let _marking = self.marking.lock();
        let done = self.remove_rows();
        let mut state = self.state.lock();
        let memory = state.memory();
        // Nobody needs its changes any more, whether all of its rows are gone or not: neither memory nor the log has
        // them until somebody deletes it again.
        state.buffers.clear();
        state.unpublished = Unpublished::default();
        state.log = LogState::default();
        match &done {
            Ok(()) => {
                self.store.count_live(state.published_bytes, 0);
                state.map = SliceMap::default();
                (state.row, state.published_bytes) = (BlobRow::default(), 0);
            }
            Err(_) => (state.is_deleted, state.is_doomed, state.is_row_unsure) = (false, true, true),
        }
        let gone = self.store.note_published(self.id);
        drop(state);
        self.store.count_buffered(0, memory);
        drop(gone);
        done
    }
}

impl Blob for SlicesBlob {
    fn placement(&self) -> Option<Placement> {
        let (store, state) = (&self.0.store, self.0.state.lock());
        let mut found = Placement {
            memory_bytes: state.buffered(),
            ..Placement::default()
        };
        for (_, extent) in state.map.pieces(0..u64::MAX) {
            let (id, bytes) = (extent.slice, u64::from(extent.len));
            match state.uploads.get(&id).map(|upload| &upload.bytes) {
                Some(Unstored::Memory { .. }) => found.memory_bytes += bytes,
                Some(Unstored::Log(_)) => found.log_bytes += bytes,
                None => {
                    found.stored_bytes += bytes;
                    let counted = |is_there: bool| if is_there { bytes } else { 0 };
                    found.cached_bytes += counted(store.cache.contains(id));
                    found.disk_cached_bytes += counted(store.objects.disk().is_some_and(|disk| disk.contains(id)));
                }
            }
        }
        Some(found)
    }

    fn tail(&self) -> Result<Vec<u8>> {
        let state = self.0.state.lock();
        match state.is_deleted {
            true => Err(Error::NotFound),
            false => Ok(state.row.tail.clone()),
        }
    }

    fn allocated_bytes(&self) -> u64 {
        let state = self.0.state.lock();
        // Bytes that overwrite others count twice until they are a slice.
        let data = state.map.bytes() + state.buffered();
        let without_data = |range: &Range<u64>| {
            let within: u64 = state
                .map
                .pieces(range.clone())
                .map(|(_, extent)| u64::from(extent.len))
                .sum();
            range.end - range.start - within
        };
        data + state.row.reserved.iter().map(without_data).sum::<u64>()
    }

    fn valid_len(&self) -> u64 {
        let state = self.0.state.lock();
        state.row.valid_len.max(state.log.lost_until())
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.0.existing()?;
        let state = self.0.state.lock();
        state.log.check_from(offset)?;
        let found = state.first_data(offset);
        Ok(found.map(|at| (at / UNIT_BYTES * UNIT_BYTES).max(offset)))
    }

    /// A unit with any byte of data behind `offset` is data from there on.
    fn next_hole(&self, offset: u64) -> Result<u64> {
        self.0.existing()?;
        let state = self.0.state.lock();
        state.log.check_from(offset)?;
        let mut at = offset;
        while let Some(data) = state.first_data(at)
            && data < (at / UNIT_BYTES + 1) * UNIT_BYTES
        {
            at = state.end_of_data(data).next_multiple_of(UNIT_BYTES);
        }
        Ok(at)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let bytes = range(offset, into.len() as u64)?;
        for _ in 1..READS_MAX {
            match self.0.read(into, &bytes) {
                // A block that was written anew meanwhile has other slices.
                Err(Error::Damaged(what)) => tracing::debug!(what, "bytes are read again"),
                done => return done,
            }
        }
        self.0.read(into, &bytes)
    }

    fn write_at(&self, data: &[u8], offset: u64, tail: Option<&[u8]>) -> Result<()> {
        let bytes = range(offset, data.len() as u64)?;
        let blob = &self.0;
        if data.is_empty() {
            return blob.change(&Change::Extend { end: bytes.end }, tail);
        }
        blob.store.check_changes()?;
        // A write that fits waits for memory before it has any lock, and before it has changed anything.
        let is_long = data.len() as u64 > LONG_BYTES.min(blob.store.options.buffer_bytes / 2);
        if !is_long {
            blob.store.make_room(data.len() as u64)?;
        }
        let passes_log = !is_long && !blob.wait_for_log(data.len() as u64)?;
        let changing = blob.changing.lock();
        {
            let mut state = blob.state.lock();
            state.check_change()?;
            if passes_log {
                blob.pass_log(&mut state);
            }
        }
        let written = blob.write(data, offset, is_long);
        let mut state = blob.state.lock();
        if let Err(error) = written {
            // A part was written, which only a publication has.
            blob.pass_log(&mut state);
            return Err(error);
        }
        let last = tail.map_or(Change::End, Change::Tail);
        blob.store.note_changes(blob.id, blob);
        state.unpublished.row = true;
        blob.log(&mut state, &[last], LAST);
        state.apply(&last);
        let is_logged = !state.log.is_unlogged() && state.log.needed().is_some();
        let is_large = state.unpublished.is_large(is_logged);
        drop(state);
        drop(changing);
        if is_large && is_logged {
            // It is durable when somebody asks for it; the bucket may be away.
            blob.store.keeper.call();
        } else if is_large && let Err(error) = blob.publish() {
            tracing::debug!(place = %blob.place, %error, "changes are published later");
        }
        Ok(())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn share_from(&self, from: &dyn Blob, end: u64) -> Result<bool> {
        let blob = &self.0;
        let from = from.as_any().and_then(<dyn Any>::downcast_ref::<SlicesBlob>);
        let Some(SlicesBlob(from)) = from else { return Ok(false) };
        if !blob.share_from(from)? {
            return Ok(false);
        }
        if self.valid_len() > end {
            blob.change(&Change::Truncate { len: end }, None)?;
        }
        Ok(true)
    }

    fn set_tail(&self, tail: &[u8]) -> Result<()> {
        self.0.change(&Change::End, Some(tail))
    }

    /// There is always space; it only counts as taken.
    fn reserve(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        existing_range(offset, len)?;
        self.0.change(&Change::Reserve { offset, len }, tail)
    }

    fn truncate(&self, len: u64, tail: Option<&[u8]>) -> Result<()> {
        self.0.change(&Change::Truncate { len }, tail)
    }

    fn punch(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        self.0.change(&Change::Punch { offset, len }, tail)
    }

    fn zero(&self, offset: u64, len: u64, tail: Option<&[u8]>) -> Result<()> {
        existing_range(offset, len)?;
        self.0.change(&Change::Zero { offset, len }, tail)
    }

    fn sync(&self) -> Result<()> {
        match self.0.sync_in_log()? {
            true => Ok(()),
            false => self.0.publish(),
        }
    }

    fn is_synced(&self) -> bool {
        let state = self.0.state.lock();
        state.is_published() || self.0.is_synced_in_log(&state)
    }

    fn is_staged_elsewhere(&self) -> bool {
        self.0.state.lock().log.is_lost()
    }

    /// The content of damaged slices is given up: their bytes become a hole.
    fn accept(&self, bytes: Range<u64>) -> Result<()> {
        let (offset, len) = (bytes.start, bytes.end.saturating_sub(bytes.start));
        self.0.change(&Change::GiveUp { offset, len }, None)?;
        self.0.publish()
    }

    fn damaged(&self, offset: u64, len: u64) -> Result<DataDamage> {
        self.0.existing()?;
        let bytes = range(offset, len)?;
        let mut found = DataDamage::default();
        let pieces: Vec<(u64, Extent)> = {
            let state = self.0.state.lock();
            let is_stored = |piece: &(u64, Extent)| !state.uploads.contains_key(&piece.1.slice);
            state.map.pieces(bytes).filter(is_stored).collect()
        };
        for (start, extent) in pieces {
            let named_at = |state: &State| state.map.pieces(start..start + 1).next().map(|(_, now)| now.slice);
            // A slice is looked at in parts, one right after the other; the next scrub reads it again.
            let is_recent = |at: &Instant| at.elapsed() < VERIFIED_FOR;
            let known = self.0.state.lock().verified;
            let known = known.filter(|(slice, at, _)| *slice == extent.slice && is_recent(at));
            let is_good = match known {
                Some((_, _, is_good)) => is_good,
                None => match self.0.store.cache.verify(extent.slice, extent.slice_len).wait() {
                    Ok(_) => true,
                    Err(BucketError::Damaged(_)) => false,
                    Err(error) => return Err(of_bucket(error)),
                },
            };
            let mut state = self.0.state.lock();
            let at = known.map_or_else(Instant::now, |(_, at, _)| at);
            state.verified = Some((extent.slice, at, is_good));
            // It may have been written anew meanwhile.
            if !is_good && named_at(&state) == Some(extent.slice) {
                found.wrong.push(start..start + u64::from(extent.len));
            }
        }
        Ok(found)
    }
}

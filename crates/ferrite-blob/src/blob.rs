//! Reading and writing blobs.
//!
//! A byte is *old* if it lies below the blob's valid length in a cluster that the blob had before; any other byte reads
//! as zero, whatever the device holds. A write of old bytes is a write in place, and may tear between pages; a write of
//! other bytes is invisible until the metadata, written after it, makes it visible.
//!
//! Invariants: reads and plain overwrites share the blob's lock, and change no metadata; everything else holds it
//! exclusively. Sharing transfers take turns where they overlap ([`crate::ranges`]), so a read sees each write whole or
//! not at all. Pages that are written in part keep their other old bytes; bytes behind the valid length become zeros.

use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};

use crate::core::{Before, Core, Inner, State};
use crate::device::Op;
use crate::format::{BlobId, METADATA_BYTES_MAX, Overflow};
use crate::page::{Pages, Piece, Source, fresh_piece, is_aligned};
use crate::ring::Torn;
use crate::{CLUSTER_BYTES, Error, PAGE_BYTES, Result};

pub(crate) const PAGE: u64 = PAGE_BYTES as u64;
/// Writes of more pieces than this become durable by one flush instead of one durable write each.
const DURABLE_PIECES_MAX: usize = 4;

/// Units that a change has given a blob: the first of them in the blob, on the device, how many.
pub(crate) type Added = (u32, u32, u32);

/// Takes units out of a blob that stay taken.
fn forget(state: &mut State, added: &[Added]) {
    for &(logical, _, count) in added {
        state.remove(logical, logical + count);
    }
}

/// A blob. Cheap to clone; clones are the same blob. After it was deleted every call returns [`Error::NotFound`].
#[derive(Clone)]
pub struct Blob {
    pub(crate) core: Arc<Core>,
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Blob").field(&self.inner.id).finish()
    }
}

impl Blob {
    /// Its number.
    pub fn id(&self) -> BlobId {
        self.inner.id
    }

    /// The metadata that [`Self::set_metadata`], or a write, set last.
    pub fn metadata(&self) -> Vec<u8> {
        self.inner.state.read().metadata.clone()
    }

    /// The space it takes.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.state.read().units() * self.core.layout.unit_bytes()
    }

    /// Bytes from here on were never written, and read as zeros.
    pub fn valid_len(&self) -> u64 {
        self.inner.state.read().valid_len
    }

    /// The first byte from `offset` on in a cluster, or a part of one, that the blob has.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let state = self.inner.state.read();
        let unit_bytes = self.core.layout.unit_bytes();
        let unit = u32::try_from(offset / unit_bytes).ok()?;
        if state.piece(unit).is_some() {
            return Some(offset);
        }
        let (&first, _) = state.pieces.range(unit..).next()?;
        Some(u64::from(first) * unit_bytes)
    }

    /// The first byte from `offset` on for which the blob has no space.
    pub fn next_hole(&self, offset: u64) -> u64 {
        let state = self.inner.state.read();
        let unit_bytes = self.core.layout.unit_bytes();
        let mut at = offset;
        while let Some((_, count)) = u32::try_from(at / unit_bytes).ok().and_then(|at| state.piece(at)) {
            at = (at / unit_bytes + u64::from(count)) * unit_bytes;
        }
        at
    }

    pub(crate) fn alive(&self, state: &State) -> Result<()> {
        match state.is_live {
            true => Ok(()),
            false => Err(Error::NotFound),
        }
    }

    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was deleted; errors of the device.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let state = self.inner.state.read();
        self.alive(&state)?;
        let _turn = self.inner.ranges.wait_for(pages_of(offset, buf.len()), false);
        let have = state.valid_len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (buf, behind) = buf.split_at_mut(have);
        behind.fill(0);
        self.read_old(&state, buf, offset)
    }

    /// Reads bytes below the valid length: aligned parts go straight to the caller's buffer, others through pages of
    /// the store.
    pub(crate) fn read_old(&self, state: &State, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut own: Vec<(u64, Pages, usize, &mut [u8])> = Vec::new();
        let mut batch: Vec<Op<'_>> = Vec::new();
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let into = (at % PAGE) as usize;
            let Some((target, pages)) = self.core.page_at(state, at / PAGE) else {
                let hole = (self.core.hole_end(state, at) - at).min(rest.len() as u64) as usize;
                let (zeros, behind) = rest.split_at_mut(hole);
                zeros.fill(0);
                (at, rest) = (at + hole as u64, behind);
                continue;
            };
            let run = (pages * PAGE - into as u64).min(rest.len() as u64) as usize;
            let whole = run / PAGE_BYTES * PAGE_BYTES;
            let is_direct = into == 0 && whole > 0 && is_aligned(&rest[..whole]);
            let count = if is_direct { whole } else { run };
            let (part, behind) = rest.split_at_mut(count);
            if is_direct {
                batch.push(Op::Read {
                    offset: target * PAGE,
                    into: part,
                });
            } else {
                own.push((target, Pages::zeroed((into + count).div_ceil(PAGE_BYTES)), into, part));
            }
            (at, rest) = (at + count as u64, behind);
        }
        for (target, pages, _, _) in &mut own {
            batch.push(Op::Read {
                offset: *target * PAGE,
                into: pages.bytes_mut(),
            });
        }
        if !batch.is_empty() {
            self.core.device.run(&mut batch)?;
        }
        drop(batch);
        for (_, pages, into, part) in own {
            part.copy_from_slice(&pages.bytes()[into..into + part.len()]);
        }
        Ok(())
    }

    /// Writes `data` at `offset`, and then `metadata`, if any. Durable when it returns. A crash leaves each page that
    /// existed before old or new; new pages and bytes are there only with the metadata. Up to
    /// [`crate::BlobStore::atomic_write_bytes`] are old or new together, with the metadata.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing has changed; [`Error::Damaged`] where two blobs claim one place; errors of the
    /// device, after which the data may be there in part.
    pub fn write_at(&self, data: &[u8], offset: u64, metadata: Option<&[u8]>) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(Error::NoSpace)?;
        if metadata.is_none() && self.overwrite_at(data, offset, || {})? {
            return Ok(());
        }
        let mut state = self.changeable(metadata)?;
        // Zeros go from the old end up to there, too.
        let first = offset.min(state.valid_len);
        self.check_tangle(&state, first, end)?;
        match self.core.is_shared(&state, first, end) {
            true => self.write_shared(&mut state, data, offset, metadata),
            false => self.write_range(&mut state, data, offset, metadata),
        }
    }

    /// [`Self::write_at`] of bytes in holes, behind the end, and in units that no other blob names.
    pub(crate) fn write_range(
        &self,
        state: &mut State,
        data: &[u8],
        offset: u64,
        metadata: Option<&[u8]>,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let added = self.fill_holes(state, offset, end)?;
        let valid_len = state.valid_len.max(end);
        if is_seeded(Bug::BlobMetadataFirst) {
            let mut early = std::mem::replace(&mut state.valid_len, valid_len);
            self.store(state, metadata, true)?;
            std::mem::swap(&mut early, &mut state.valid_len);
        }
        if data.len() <= PAGE_BYTES && offset < state.valid_len {
            return self.write_both(state, &added, data, offset, metadata);
        }
        let overflow = match self.write_new(state, &added, data, offset) {
            Ok(overflow) => overflow,
            Err(error) => {
                self.undo_fill(state, &added);
                return Err(error);
            }
        };
        match metadata.is_none() && added.is_empty() && valid_len == state.valid_len {
            true => Ok(()),
            false => self.store_with(state, &added, valid_len, metadata, overflow),
        }
    }

    /// [`Self::write_at`] without metadata, if all these bytes are old; otherwise it does nothing and returns `false`.
    /// Those that another blob shares are not overwritten either. Calls `begins` once no one else transfers these
    /// pages, and before it changes any.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Damaged`] where two blobs claim one place; errors of the device, after which pages
    /// are old or new.
    pub fn overwrite_at(&self, data: &[u8], offset: u64, begins: impl FnOnce()) -> Result<bool> {
        let end = offset.checked_add(data.len() as u64).ok_or(Error::NoSpace)?;
        let state = self.inner.state.read();
        self.alive(&state)?;
        if end > state.valid_len || !self.core.has_all(&state, offset, end) || self.core.is_shared(&state, offset, end)
        {
            return Ok(false);
        }
        self.core.check_running()?;
        self.check_tangle(&state, offset, end)?;
        let _turn = self.inner.ranges.wait_for(pages_of(offset, data.len()), true);
        begins();
        self.overwrite(&state, data, offset)?;
        Ok(true)
    }

    /// A small write, with metadata, some of whose bytes are old: both are old or new after a crash. The pages go to
    /// the ring first; the metadata then makes that entry valid.
    fn write_both(
        &self,
        state: &mut State,
        added: &[Added],
        data: &[u8],
        offset: u64,
        metadata: Option<&[u8]>,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let valid_len = state.valid_len.max(end);
        let targets = self.targets(state, offset, end)?;
        let pages = self
            .zero_added(state, added, 0..0, valid_len)
            .and_then(|pieces| self.put_fresh(&pieces))
            .and_then(|()| self.patched(state, &targets, data, offset))
            .and_then(|pages| match added.is_empty() {
                true => Ok((pages, None)),
                false => Ok((pages, Some(self.core.store_pieces(state)?))),
            });
        let (pages, overflow) = match pages {
            Ok(ready) => ready,
            Err(error) => {
                self.undo_fill(state, added);
                return Err(error);
            }
        };
        let torn = Torn {
            id: self.inner.id,
            generation: state.generation + 1,
            targets: &targets,
            data: pages.bytes(),
        };
        // If the entry is there although the device reports failure, the next change would make it valid.
        let prepared = match self.core.ring.prepare(&*self.core.device, &self.core.layout, &torn) {
            Ok(prepared) => prepared,
            Err(error) => {
                forget(state, added);
                return Err(self.core.stop(error));
            }
        };
        self.store_with(state, added, valid_len, metadata, overflow)?;
        // Its page may be torn, and the entry is valid only as long as the blob does not change.
        let applied = self.core.ring.apply(&*self.core.device, prepared);
        applied.map_err(|error| {
            forget(state, added);
            self.core.stop(error)
        })
    }

    /// Places on the device of all pages of a range that has no holes.
    pub(crate) fn targets(&self, state: &State, offset: u64, end: u64) -> Result<Vec<u64>> {
        let pages = offset / PAGE..end.div_ceil(PAGE);
        let place = |page| self.core.page_at(state, page).map(|(target, _)| target);
        let targets: Option<Vec<u64>> = pages.map(place).collect();
        targets.ok_or_else(|| Error::Damaged(format!("blob {:x} has a hole where it had none", self.inner.id.raw())))
    }

    /// Stores metadata. Durable when it returns, old or new after a crash.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was deleted; errors of the device, after which the store stops.
    pub fn set_metadata(&self, metadata: &[u8]) -> Result<()> {
        let mut state = self.changeable(Some(metadata))?;
        self.store(&mut state, Some(metadata), false)
    }

    /// Makes sure that writes of these bytes need no further space; what other blobs share is copied for that. Existing
    /// content stays. One step, as a crash sees it; durable when it returns.
    ///
    /// # Errors
    /// [`Error::NoSpace`], and nothing has changed; errors of the device.
    pub fn reserve(&self, offset: u64, len: u64, metadata: Option<&[u8]>) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Error::NoSpace)?;
        let mut state = self.changeable(metadata)?;
        self.check_tangle(&state, 0, 0)?;
        if self.core.is_shared(&state, offset, end) {
            self.check_tangle(&state, offset, end)?;
            self.unshare(&mut state, offset..end)?;
        }
        let added = self.fill_holes(&mut state, offset, end)?;
        let valid = state.valid_len;
        let zeroed = self
            .zero_added(&state, &added, 0..0, valid)
            .and_then(|pieces| self.put_fresh(&pieces))
            .and_then(|()| self.pieces_if(&state, !added.is_empty()));
        match zeroed {
            Ok(overflow) => self.store_with(&mut state, &added, valid, metadata, overflow),
            Err(error) => {
                self.undo_fill(&mut state, &added);
                Err(error)
            }
        }
    }

    /// Releases everything from `len` on. One step, as a crash sees it; durable when it returns.
    ///
    /// # Errors
    /// Errors of the device, after which the store stops.
    pub fn truncate(&self, len: u64, metadata: Option<&[u8]>) -> Result<()> {
        let mut state = self.changeable(metadata)?;
        let before = state.before();
        let first = u32::try_from(self.core.layout.given_up_to(len)).unwrap_or(u32::MAX);
        let freed = state.remove(first, u32::MAX);
        state.valid_len = state.valid_len.min(len);
        self.release(&mut state, before, metadata, &freed)
    }

    /// The state, locked for a change.
    pub(crate) fn changeable(
        &self,
        metadata: Option<&[u8]>,
    ) -> Result<ferrite_checks::ranked::RwLockWriteGuard<'_, State>> {
        if metadata.is_some_and(|metadata| metadata.len() > METADATA_BYTES_MAX) {
            return Err(Error::Refused(format!(
                "metadata of a blob has at most {METADATA_BYTES_MAX} bytes"
            )));
        }
        let state = self.inner.state.write();
        self.alive(&state)?;
        self.core.check_running()?;
        Ok(state)
    }

    fn store(&self, state: &mut State, metadata: Option<&[u8]>, is_moved: bool) -> Result<()> {
        if let Some(metadata) = metadata {
            state.metadata = metadata.to_vec();
        }
        self.core.store(self.inner.id, state, is_moved)
    }

    /// Stores a change that has `added` units, with a valid length, and with the given metadata and overflow pages or
    /// the blob's present ones. If it fails the store has stopped: readers see the blob as it was, and the units stay
    /// taken, because the device may name them.
    pub(crate) fn store_with(
        &self,
        state: &mut State,
        added: &[Added],
        valid_len: u64,
        metadata: Option<&[u8]>,
        overflow: Option<Vec<Overflow>>,
    ) -> Result<()> {
        let old_len = std::mem::replace(&mut state.valid_len, valid_len);
        let old = metadata.map(|metadata| std::mem::replace(&mut state.metadata, metadata.to_vec()));
        let stored = self.core.store_head(self.inner.id, state, overflow);
        if stored.is_err() {
            state.valid_len = old_len;
            state.metadata = old.unwrap_or_else(|| std::mem::take(&mut state.metadata));
            forget(state, added);
        }
        stored
    }

    /// Stores metadata that no longer names these units; when that is durable, they are free. A change that cannot be
    /// stored has not happened.
    fn release(&self, state: &mut State, before: Before, metadata: Option<&[u8]>, freed: &[(u32, u32)]) -> Result<()> {
        let stored = self.store(state, metadata, !freed.is_empty());
        match stored {
            Ok(()) => self.core.give_units(freed),
            Err(_) => state.restore(before),
        }
        stored
    }

    /// Gives the blob all units of a range that it lacks, and behind its first cluster whole clusters.
    pub(crate) fn fill_holes(&self, state: &mut State, offset: u64, end: u64) -> Result<Vec<Added>> {
        let layout = &self.core.layout;
        let first = u32::try_from(layout.given_from(offset)).map_err(|_| Error::NoSpace)?;
        let last = u32::try_from(layout.given_up_to(end)).map_err(|_| Error::NoSpace)?;
        let mut holes: Vec<(u32, u32)> = Vec::new();
        let mut at = first;
        while at < last {
            match state.piece(at) {
                Some((_, count)) => at += count,
                None => {
                    let next = state.pieces.range(at..last).next().map_or(last, |(&first, _)| first);
                    holes.push((at, next - at));
                    at = next;
                }
            }
        }
        let parts = in_clusters(&holes, layout.units_per_cluster());
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let goal = first
            .checked_sub(1)
            .and_then(|before| state.piece(before))
            .map(|(place, _)| place + 1);
        let counts: Vec<u32> = parts.iter().map(|(_, count)| *count).collect();
        let taken = self.core.take_units(goal, &counts)?;
        let mut added = Vec::new();
        for ((mut logical, _), pieces) in parts.into_iter().zip(taken) {
            for (place, count) in pieces {
                added.push((logical, place, count));
                state.add(logical, place, count);
                logical += count;
            }
        }
        Ok(added)
    }

    /// Undoes [`Self::fill_holes`].
    pub(crate) fn undo_fill(&self, state: &mut State, added: &[Added]) {
        for &(logical, _, count) in added {
            let freed = state.remove(logical, logical + count);
            self.core.give_units(&freed);
        }
    }

    /// Writes data, some bytes of which may not be old, and zeros the bytes that become valid beside them. Old bytes
    /// come last: steps that may lack space are done by then. Returns the overflow pages of a blob that got units.
    fn write_new(&self, state: &State, added: &[Added], data: &[u8], offset: u64) -> Result<Option<Vec<Overflow>>> {
        let end = offset + data.len() as u64;
        let valid = state.valid_len;
        let is_new = |page: u64| page * PAGE >= valid || self.is_added(added, page * PAGE);
        let mut fresh = Vec::new();
        let mut old: Vec<(u64, &[u8])> = Vec::new();
        let mut at = offset;
        while at < end {
            let page = at / PAGE;
            let kind = is_new(page);
            let Some((target, run)) = self.core.page_at(state, page) else {
                return Err(Error::Damaged(format!(
                    "blob {:x} lacks a cluster it was given",
                    self.inner.id.raw()
                )));
            };
            let mut pages = 1;
            while pages < run && (page + pages) * PAGE < end && is_new(page + pages) == kind {
                pages += 1;
            }
            let stop = ((page + pages) * PAGE).min(end);
            let part = &data[(at - offset) as usize..(stop - offset) as usize];
            match kind {
                true => fresh.push(fresh_piece(target, at % PAGE, part, pages as usize)),
                false => old.push((at, part)),
            }
            at = stop;
        }
        fresh.extend(self.zero_added(state, added, offset / PAGE..end.div_ceil(PAGE), valid.max(end))?);
        self.put_fresh(&fresh)?;
        // Bytes between the old end and the new bytes become zero.
        if offset > valid && !is_seeded(Bug::BlobStaleBytes) {
            self.zero_gap(state, added, valid, offset)?;
        }
        let overflow = match added.is_empty() {
            true => None,
            false => Some(self.core.store_pieces(state)?),
        };
        let written = old
            .into_iter()
            .try_for_each(|(at, part)| self.overwrite(state, part, at));
        self.or_give_overflow(overflow, written)
    }

    /// Zeros for all pages of new clusters up to `valid_len` that are not among `written`.
    pub(crate) fn zero_added(
        &self,
        state: &State,
        added: &[Added],
        written: std::ops::Range<u64>,
        valid_len: u64,
    ) -> Result<Vec<Piece<'static>>> {
        let mut pieces = Vec::new();
        if is_seeded(Bug::BlobStaleBytes) {
            return Ok(pieces);
        }
        let (unit_pages, per) = (
            u64::from(self.core.layout.unit_pages),
            self.core.layout.units_per_cluster(),
        );
        for &(logical, _, count) in added {
            for (from, count) in in_clusters(&[(logical, count)], per)
                .iter()
                .flat_map(|part| each_cluster(*part, per))
            {
                let first = u64::from(from) * unit_pages;
                let last = first + u64::from(count) * unit_pages;
                let last = last.min(valid_len.div_ceil(PAGE)).max(first);
                let ranges = [
                    (first, last.min(written.start.max(first))),
                    (first.max(written.end.min(last)), last),
                ];
                // Without anything written, the whole cluster is the first range.
                let ranges = match written.is_empty() {
                    true => [(first, last), (last, last)],
                    false => ranges,
                };
                for (from, to) in ranges {
                    if from >= to {
                        continue;
                    }
                    let Some((target, _)) = self.core.page_at(state, from) else {
                        continue;
                    };
                    pieces.push(Piece {
                        target,
                        data: Source::Own(Pages::zeroed((to - from) as usize)),
                    });
                }
            }
        }
        Ok(pieces)
    }

    /// Whether a byte lies in one of these pieces.
    pub(crate) fn is_added(&self, added: &[Added], byte: u64) -> bool {
        let unit = byte / self.core.layout.unit_bytes();
        added
            .iter()
            .any(|&(at, _, count)| (at.into()..u64::from(at) + u64::from(count)).contains(&unit))
    }

    /// Zeros the bytes from the old end up to where a write begins, in clusters that the blob had before.
    fn zero_gap(&self, state: &State, added: &[Added], valid: u64, offset: u64) -> Result<()> {
        let mut fresh = Vec::new();
        let mut at = valid;
        // The rest of the page with the old end keeps its old content: bytes behind the end are blanked when it is
        // written in part.
        let page_end = valid.next_multiple_of(PAGE).min(offset);
        if at < page_end && self.core.has_all(state, at, page_end) && !self.is_added(added, at) {
            self.overwrite(state, &vec![0; (page_end - at) as usize], at)?;
        }
        at = page_end;
        // The page in which the write begins is blanked by the write itself.
        let last = offset / PAGE * PAGE;
        while at < last {
            at = match self.core.page_at(state, at / PAGE) {
                Some((target, run)) if !self.is_added(added, at) => {
                    let stop = (at + run * PAGE)
                        .min((at / CLUSTER_BYTES + 1) * CLUSTER_BYTES)
                        .min(last);
                    fresh.push(Piece {
                        target,
                        data: Source::Own(Pages::zeroed(((stop - at) / PAGE) as usize)),
                    });
                    stop
                }
                Some(_) => self.core.unit_end(at),
                None => self.core.hole_end(state, at),
            };
        }
        self.put_fresh(&fresh)
    }

    /// Writes pages that no metadata names yet. Durable when it returns.
    pub(crate) fn put_fresh(&self, pieces: &[Piece<'_>]) -> Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        let flushes = pieces.len() > DURABLE_PIECES_MAX;
        let mut batch: Vec<Op<'_>> = pieces
            .iter()
            .map(|piece| Op::Write {
                offset: piece.target * PAGE,
                from: piece.data.bytes(),
                durable: !flushes,
            })
            .collect();
        self.core.device.run(&mut batch)?;
        match flushes {
            true => self.core.device.run(&mut [Op::Flush]),
            false => Ok(()),
        }
    }
}

/// Ranges of units, cut into parts that are whole clusters, or lie within one.
pub(crate) fn in_clusters(ranges: &[(u32, u32)], per_cluster: u32) -> Vec<(u32, u32)> {
    let mut parts = Vec::new();
    for &(first, count) in ranges {
        let (mut at, end) = (first, first + count);
        while at < end {
            let stop = match at.is_multiple_of(per_cluster) && end - at >= per_cluster {
                true => end - (end - at) % per_cluster,
                false => (at / per_cluster + 1).saturating_mul(per_cluster).min(end),
            };
            parts.push((at, stop - at));
            at = stop;
        }
    }
    parts
}

/// The clusters of such a part, or the part.
fn each_cluster((first, count): (u32, u32), per_cluster: u32) -> impl Iterator<Item = (u32, u32)> {
    let step = per_cluster.min(count.max(1));
    (first..first + count).step_by(step as usize).map(move |at| (at, step))
}

/// All pages with some of these bytes.
pub(crate) fn pages_of(offset: u64, len: usize) -> std::ops::Range<u64> {
    offset / PAGE..offset.saturating_add(len as u64).div_ceil(PAGE)
}

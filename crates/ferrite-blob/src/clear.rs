//! Zeroing a range of a blob, with its space or without.
//!
//! Invariant: steps that may lack space (units, overflow pages for more pieces) come before the first byte changes in
//! place. So after [`Error::NoSpace`] and [`Error::TooManyPieces`] nothing has changed; an error of the device may
//! leave some pages zeroed, as it may leave some pages of a write in place new.

use std::ops::Range;

use crate::blob::{Added, Blob, PAGE};
use crate::core::State;
use crate::format::Overflow;
use crate::page::Pages;
use crate::{CLUSTER_BYTES, Error, PAGE_BYTES, Result};

impl Blob {
    /// Zeros these bytes, and releases the clusters, and in the blob's first cluster the parts, that are zeros then.
    /// Durable when it returns; a crash in between leaves some of them zeroed.
    ///
    /// # Errors
    /// [`Error::TooManyPieces`], and nothing has changed; [`Error::NoSpace`], where other blobs share what would be
    /// zeroed in place; errors of the device, after which pages are old or zeros.
    pub fn punch(&self, offset: u64, len: u64, metadata: Option<&[u8]>) -> Result<()> {
        let mut state = self.changeable(metadata)?;
        let end = offset.saturating_add(len);
        let valid = state.valid_len;
        self.check_tangle(&state, offset, end.min(valid))?;
        let layout = &self.core.layout;
        let from = layout.given_up_to(offset);
        // Bytes of the last unit behind the valid length are zero anyway.
        let to = match end >= valid {
            true => layout.given_from(end).max(layout.given_up_to(valid)),
            false => layout.given_from(end),
        };
        let to = to.max(from);
        let bytes = |unit: u64| unit.saturating_mul(layout.unit_bytes());
        // Only what is zeroed in place, not what is released.
        self.unshare(&mut state, offset..end.min(bytes(from)).min(valid))?;
        self.unshare(&mut state, offset.max(bytes(to))..end.min(valid))?;
        let edges = [(offset, end.min(bytes(from))), (offset.max(bytes(to)), end)];
        let clamp = |unit: u64| u32::try_from(unit).unwrap_or(u32::MAX);
        let before = state.before();
        let freed = state.remove(clamp(from), clamp(to));
        let zeroed = self.pieces_if(&state, !freed.is_empty()).and_then(|overflow| {
            let mut edges = edges.into_iter();
            let zeroed = edges.try_for_each(|(start, stop)| self.zero_old(&state, &[], start, stop.min(valid)));
            self.or_give_overflow(overflow, zeroed)
        });
        let stored = zeroed.and_then(|overflow| self.store_with(&mut state, &[], valid, metadata, overflow));
        match stored {
            Ok(()) => self.core.give_units(&freed),
            Err(_) => state.restore(before),
        }
        stored
    }

    /// Zeros these bytes, and makes sure that writes of them need no further space. Durable when it returns; a crash in
    /// between leaves some of them zeroed.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooManyPieces`], and nothing has changed; errors of the device, after which pages
    /// are old or zeros.
    pub fn zero(&self, offset: u64, len: u64, metadata: Option<&[u8]>) -> Result<()> {
        let end = offset.checked_add(len).ok_or(Error::NoSpace)?;
        let mut state = self.changeable(metadata)?;
        let valid = state.valid_len;
        self.check_tangle(&state, offset, end.min(valid))?;
        // Shared units that are zeroed as a whole are not copied before.
        let unit_bytes = self.core.layout.unit_bytes();
        let from = offset.checked_next_multiple_of(unit_bytes).unwrap_or(end);
        let to = end / unit_bytes * unit_bytes;
        self.unshare(&mut state, offset..from.min(end))?;
        self.unshare(&mut state, to.max(offset)..end)?;
        let before = state.before();
        let freed = self.core.take_shared(&mut state, &self.core.units_of(&(from..to)));
        let zeroed = self.zero_own(&mut state, offset..end, metadata);
        match zeroed {
            Ok(()) => self.core.give_units(&freed),
            Err(_) if !freed.is_empty() => state.restore(before),
            Err(_) => {}
        }
        zeroed
    }

    /// [`Self::zero`] of holes and of units that no other blob names.
    fn zero_own(&self, state: &mut State, bytes: Range<u64>, metadata: Option<&[u8]>) -> Result<()> {
        let (offset, end, valid) = (bytes.start, bytes.end, state.valid_len);
        let added = self.fill_holes(state, offset, end)?;
        let fresh = self.zero_added(state, &added, 0..0, valid);
        let zeroed = fresh
            .and_then(|pieces| self.put_fresh(&pieces))
            .and_then(|()| self.pieces_if(state, !added.is_empty()))
            .and_then(|overflow| {
                let zeroed = self.zero_old(state, &added, offset, end.min(valid));
                self.or_give_overflow(overflow, zeroed)
            });
        match zeroed {
            Ok(None) if metadata.is_none() => Ok(()),
            Ok(overflow) => self.store_with(state, &added, valid, metadata, overflow),
            Err(error) => {
                self.undo_fill(state, &added);
                Err(error)
            }
        }
    }

    /// The overflow pages of a blob, if its pieces have changed.
    pub(crate) fn pieces_if(&self, state: &State, has_changed: bool) -> Result<Option<Vec<Overflow>>> {
        match has_changed {
            true => self.core.store_pieces(state).map(Some),
            false => Ok(None),
        }
    }

    /// The overflow pages for a change whose last step but one was `done`; if that failed, they are free again.
    pub(crate) fn or_give_overflow(
        &self,
        overflow: Option<Vec<Overflow>>,
        done: Result<()>,
    ) -> Result<Option<Vec<Overflow>>> {
        if done.is_err() {
            self.core.give_overflow(overflow.as_deref().unwrap_or_default());
        }
        done.map(|()| overflow)
    }

    /// Zeros old bytes in place, except for holes and units that were `added` just now.
    fn zero_old(&self, state: &State, added: &[Added], from: u64, to: u64) -> Result<()> {
        let zeros = Pages::zeroed(((to.saturating_sub(from)).min(CLUSTER_BYTES) as usize).div_ceil(PAGE_BYTES));
        let mut at = from;
        while at < to {
            let stop = match self.core.page_at(state, at / PAGE) {
                None => self.core.hole_end(state, at).min(to),
                Some(_) if self.is_added(added, at) => self.core.unit_end(at).min(to),
                Some((_, run)) => {
                    let stop = (at / PAGE + run).saturating_mul(PAGE).min(to);
                    let stop = stop.min((at / CLUSTER_BYTES + 1) * CLUSTER_BYTES);
                    self.overwrite(state, &zeros.bytes()[..(stop - at) as usize], at)?;
                    stop
                }
            };
            at = stop;
        }
        Ok(())
    }
}

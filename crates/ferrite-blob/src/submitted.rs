//! Reading and overwriting without waiting: for callers with many transfers under way on few threads.
//!
//! A transfer can be submitted if it only has to wait for the device. Otherwise the caller has a thread that may wait
//! do it ([`Blob::read_at`], [`Blob::write_at`]).
//!
//! Invariants: a transfer under way shares the blob's lock, so its bytes stay where they are; and it has a turn
//! ([`crate::ranges`]). Both end before its completion is called, so that the completion finds the state that was
//! reported to it.

use std::sync::Arc;

use ferrite_buffers::Buffer;
use parking_lot::{ArcRwLockReadGuard, RawRwLock};

use crate::blob::{Blob, PAGE, pages_of};
use crate::core::{Core, State};
use crate::device::{Part, Submitting, Transfer};
use crate::ranges::Turn;
use crate::{PAGE_BYTES, Result};

type Shared = ArcRwLockReadGuard<RawRwLock, State>;

/// A transfer that may begin: no other thread truncates the blob or transfers the same pages until it has ended, or
/// this is dropped.
pub struct Ready<'b> {
    core: &'b Arc<Core>,
    device: &'b dyn Submitting,
    state: Shared,
    turn: Turn,
    parts: Vec<Part>,
    writes: bool,
    /// Where it ends in the buffer, and from where on there are zeros.
    len: usize,
    have: usize,
}

impl Blob {
    /// Prepares [`Self::read_at`] into a buffer, as long as it is. Zeros the holes. `None` if it would have to wait, or
    /// `offset` does not lie at the beginning of a page.
    pub fn ready_to_read(&self, buffer: &mut Buffer, offset: u64) -> Option<Ready<'_>> {
        let device = self.core.device.submitting()?;
        let state = self.inner.state.try_read_arc()?;
        let len = buffer.len();
        if !state.is_live || !offset.is_multiple_of(PAGE) {
            return None;
        }
        let turn = self.inner.ranges.try_take(pages_of(offset, len), false)?;
        let have = state.valid_len.saturating_sub(offset).min(len as u64) as usize;
        let mut parts = Vec::new();
        let mut at = 0;
        while at < have {
            let begins = offset + at as u64;
            match self.core.page_at(&state, begins / PAGE) {
                Some((target, pages)) => {
                    let run = (pages * PAGE).min((have - at).next_multiple_of(PAGE_BYTES) as u64) as usize;
                    parts.push(Part {
                        offset: target * PAGE,
                        bytes: at..at + run,
                    });
                    at += run;
                }
                None => {
                    let hole = ((self.core.hole_end(&state, begins) - begins).min((have - at) as u64)) as usize;
                    buffer[at..at + hole].fill(0);
                    at += hole;
                }
            }
        }
        Some(Ready {
            core: &self.core,
            device,
            state,
            turn,
            parts,
            writes: false,
            len,
            have,
        })
    }

    /// Prepares [`Self::write_at`] of `len` bytes without metadata. `None` if it would have to wait, or would do more
    /// than overwrite whole pages.
    pub fn ready_to_write(&self, offset: u64, len: usize) -> Option<Ready<'_>> {
        let device = self.core.device.submitting()?;
        let state = self.inner.state.try_read_arc()?;
        let end = offset.checked_add(len as u64)?;
        let is_there = state.is_live && end <= state.valid_len && self.core.has_all(&state, offset, end);
        let is_whole = offset.is_multiple_of(PAGE) && end.is_multiple_of(PAGE) && self.core.device.writes_whole_pages();
        let is_refused = self.core.check_running().is_err()
            || self.check_tangle(&state, offset, end).is_err()
            || self.core.is_shared(&state, offset, end);
        if !is_there || !is_whole || is_refused {
            return None;
        }
        let turn = self.inner.ranges.try_take(pages_of(offset, len), true)?;
        let mut parts = Vec::new();
        let mut at = 0;
        while at < len {
            let (target, pages) = self.core.page_at(&state, (offset + at as u64) / PAGE)?;
            let run = (pages * PAGE).min((len - at) as u64);
            if self.core.ring.holds_any(target..target + run / PAGE) {
                return None;
            }
            parts.push(Part {
                offset: target * PAGE,
                bytes: at..at + run as usize,
            });
            at += run as usize;
        }
        Some(Ready {
            core: &self.core,
            device,
            state,
            turn,
            parts,
            writes: true,
            len,
            have: len,
        })
    }
}

impl Ready<'_> {
    /// Begins it, with a buffer as long as the one it was prepared for, and returns before it has ended. The data
    /// written is durable when `done` is called, which must not block.
    pub fn begin(self, buffer: Buffer, done: impl FnOnce(Buffer, Result<()>) + Send + 'static) {
        let Ready {
            core,
            device,
            state,
            turn,
            parts,
            writes,
            len,
            have,
        } = self;
        assert_eq!(buffer.len(), len, "another buffer than it was prepared for");
        // The store's device lives as long as it may be used.
        let core = Arc::clone(core);
        let ended = move |mut buffer: Buffer, result| {
            buffer[have..].fill(0);
            drop((turn, state, core));
            done(buffer, result);
        };
        match parts.is_empty() {
            true => ended(buffer, Ok(())),
            false => device.submit(Transfer {
                buffer,
                writes,
                parts,
                done: Box::new(ended),
            }),
        }
    }
}

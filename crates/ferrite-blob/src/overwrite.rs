//! Writing old bytes in place: past the ring, or through it where a page or two must not tear.
//!
//! Invariant: the caller holds the blob exclusively, or a turn of the pages ([`crate::ranges`]), so no other thread
//! writes them.

use crate::blob::{Blob, PAGE};
use crate::core::State;
use crate::device::Op;
use crate::page::{Pages, is_aligned};
use crate::ring::Torn;
use crate::{PAGE_BYTES, Result};

impl Blob {
    /// Writes old bytes in place; bytes behind the valid length in the same pages become zeros. Durable when it
    /// returns.
    pub(crate) fn overwrite(&self, state: &State, data: &[u8], offset: u64) -> Result<()> {
        let end = offset + data.len() as u64;
        let targets = self.targets(state, offset, end)?;
        if targets.is_empty() {
            return Ok(());
        }
        let is_whole = offset.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        let patched;
        let bytes = if is_whole {
            data
        } else {
            patched = self.patched(state, &targets, data, offset)?;
            patched.bytes()
        };
        let is_small = data.len() <= PAGE_BYTES && targets.len() == 2;
        if is_small || !self.core.device.writes_whole_pages() {
            for (targets, data) in targets.chunks(2).zip(bytes.chunks(2 * PAGE_BYTES)) {
                self.write_through_ring(state, targets, data)?;
            }
            return Ok(());
        }
        let mut from = 0;
        for (at, target) in targets.iter().enumerate() {
            if self.core.ring.holds(*target) {
                self.write_in_runs(&targets[from..at], &bytes[from * PAGE_BYTES..at * PAGE_BYTES])?;
                let page = &bytes[at * PAGE_BYTES..(at + 1) * PAGE_BYTES];
                self.write_through_ring(state, &targets[at..=at], page)?;
                from = at + 1;
            }
        }
        self.write_in_runs(&targets[from..], &bytes[from * PAGE_BYTES..])
    }

    fn write_through_ring(&self, state: &State, targets: &[u64], data: &[u8]) -> Result<()> {
        let torn = Torn {
            id: self.inner.id,
            generation: state.generation,
            targets,
            data,
        };
        let written = self.core.ring.write(&*self.core.device, &self.core.layout, &torn);
        // A page may be torn, and its entry is valid only as long as the blob does not change.
        written.map_err(|error| self.core.stop(error))
    }

    /// Whole pages with the data in them; only the first and the last have to be read.
    pub(crate) fn patched(&self, state: &State, targets: &[u64], data: &[u8], offset: u64) -> Result<Pages> {
        let mut pages = Pages::zeroed(targets.len());
        let into = (offset % PAGE) as usize;
        let end = into + data.len();
        let count = targets.len();
        let mut wanted = Vec::new();
        if into > 0 || (count == 1 && !end.is_multiple_of(PAGE_BYTES)) {
            wanted.push(0);
        }
        if count > 1 && !end.is_multiple_of(PAGE_BYTES) {
            wanted.push(count - 1);
        }
        for index in wanted {
            let begins = (offset / PAGE + index as u64) * PAGE;
            let old = state.valid_len.saturating_sub(begins).min(PAGE) as usize;
            if old == 0 {
                // Its content does not belong to this blob.
                continue;
            }
            let page = &mut pages.bytes_mut()[index * PAGE_BYTES..(index + 1) * PAGE_BYTES];
            self.core.device.run(&mut [Op::Read {
                offset: targets[index] * PAGE,
                into: page,
            }])?;
            page[old..].fill(0);
        }
        pages.bytes_mut()[into..end].copy_from_slice(data);
        Ok(pages)
    }

    /// Writes pages, consecutive ones together.
    fn write_in_runs(&self, targets: &[u64], bytes: &[u8]) -> Result<()> {
        if targets.is_empty() {
            return Ok(());
        }
        let own;
        let bytes = if is_aligned(bytes) {
            bytes
        } else {
            let mut pages = Pages::zeroed(targets.len());
            pages.bytes_mut().copy_from_slice(bytes);
            own = pages;
            own.bytes()
        };
        let mut batch = Vec::new();
        let mut at = 0;
        while at < targets.len() {
            let mut to = at + 1;
            while to < targets.len() && targets[to] == targets[to - 1] + 1 {
                to += 1;
            }
            batch.push(Op::Write {
                offset: targets[at] * PAGE,
                from: &bytes[at * PAGE_BYTES..to * PAGE_BYTES],
                durable: true,
            });
            at = to;
        }
        self.core.device.run(&mut batch)
    }
}

//! A copy of a blob that moves no bytes: its chunks name the slices of the other one.
//!
//! Invariants: `from` is published, and does not change meanwhile; `to` was just made, is empty, and only the caller
//! knows it. Memory says that slices are shared before any row does.
//!
//! # Crashes
//!
//! Transactions of some chunks each, with the numbers of their slices and both rows. A crash in between leaves a blob
//! that its owner deletes, as any that was made for a file which does not name it; so does a failure, after which the
//! deletion reads the rows anew.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_slices::{CHUNK_BYTES, SliceId};

use super::blob::SharedBlob;
use super::blob_row::BlobRow;
use super::names::ChunkRow;
use super::publication::{STEP_BYTES_MAX, STEP_ROWS_MAX};
use super::state::State;
use crate::content_store::{Error, Result};

/// How long the bucket may store nothing of a blob before its bytes are copied instead, as far as they can be read.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(5);

/// Chunks that one transaction shares.
#[derive(Default)]
struct Step {
    chunks: Vec<ChunkRow>,
    slices: Vec<SliceId>,
    bytes: usize,
}

impl Step {
    fn rows(&self) -> usize {
        self.chunks.len() + self.slices.len()
    }
}

/// All chunks of a map. `None`: one has more slices than a transaction; it is about to be written anew.
fn steps(state: &State) -> Option<Vec<Step>> {
    let (mut steps, mut step) = (Vec::new(), Step::default());
    for chunk in state.map.chunks(0..u64::MAX) {
        let row = state.map.encode_chunk(chunk);
        let within = chunk * CHUNK_BYTES..(chunk + 1) * CHUNK_BYTES;
        let slices: HashSet<SliceId> = state.map.pieces(within).map(|(_, extent)| extent.slice).collect();
        if slices.len() > STEP_ROWS_MAX / 2 {
            return None;
        }
        let bytes = row.as_ref().map_or(0, Vec::len);
        let is_full = step.rows() + slices.len() > STEP_ROWS_MAX / 2 || step.bytes + bytes > STEP_BYTES_MAX;
        if is_full && !step.chunks.is_empty() {
            steps.push(std::mem::take(&mut step));
        }
        step.bytes += bytes;
        step.chunks.push((chunk, row));
        step.slices.extend(slices);
    }
    steps.push(step);
    Some(steps)
}

impl SharedBlob {
    /// Has this blob consist of the bytes of another one. `false`: it cannot, and is as it was. Waits for the bucket
    /// while that stores what `from` has in it. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the rows. The blob has to be deleted then.
    pub(super) fn share_from(self: &Arc<Self>, from: &Arc<SharedBlob>) -> Result<bool> {
        let wait = PUBLISHED_WITHIN.min(self.store.options.publish_timeout);
        if let Err(error) = from.publish_until(Instant::now() + wait) {
            tracing::debug!(place = %from.place, %error, "it is copied, since it cannot be published");
            return Ok(false);
        }
        self.store.check_changes()?;
        let is_new = self.is_new();
        // The keeper may write its blocks anew, and publish that.
        let _publishing = from.publishing.lock();
        let _changing = from.changing.lock();
        let (steps, map, row) = {
            let mut of = from.state.lock();
            of.check_change()?;
            let is_sent = of.uploads.keys().all(|&id| !of.map.names(id));
            match steps(&of).filter(|_| is_new && is_sent && of.is_published()) {
                Some(steps) => {
                    of.row.shares = true;
                    (steps, of.map.clone(), of.row.clone())
                }
                None => return Ok(false),
            }
        };
        self.state.lock().is_row_unsure = true;
        let own = BlobRow {
            shares: true,
            valid_len: 0,
            ..BlobRow::default()
        };
        let places = (from.place, self.place);
        let last = BlobRow {
            valid_len: row.valid_len,
            ..own.clone()
        };
        let count = steps.len();
        for (index, step) in steps.into_iter().enumerate() {
            let own = if index + 1 == count { &last } else { &own };
            self.store.rows.share(places, (&row, own), &step.chunks, &step.slices)?;
        }
        let mut state = self.state.lock();
        let bytes = map.bytes();
        (state.map, state.row, state.published_bytes) = (map, last, bytes);
        state.is_row_unsure = false;
        drop(state);
        self.store.count_live(0, bytes);
        Ok(true)
    }

    /// Whether nothing was ever done with it.
    fn is_new(&self) -> bool {
        let state = self.state.lock();
        let has_rows = state.map.bytes() > 0 || state.row != BlobRow::default();
        !has_rows && state.is_published() && !state.is_deleted
    }

    /// Reads the rows of a blob anew whose sharing or deletion has failed, before it is deleted.
    pub(super) fn reload(&self) -> Result<()> {
        if !self.state.lock().is_row_unsure {
            return Ok(());
        }
        let (row, map) = self.store.rows.load(self.place)?;
        let mut state = self.state.lock();
        if state.unpublished.is_empty() && state.buffers.is_empty() {
            self.store.count_live(state.published_bytes, map.bytes());
            (state.published_bytes, state.map, state.row) = (map.bytes(), map, row);
            state.is_row_unsure = false;
            return Ok(());
        }
        Err(Error::Failed(format!("{} was changed while it was shared", self.place)))
    }
}

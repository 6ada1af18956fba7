//! Content that waits for the bucket in the log instead of memory.
//!
//! The log has every change of a blob, and so the bytes of a slice that is made of them: a slice in the log alone is a
//! list of the records that it came from. One of very many writes, or of writes that passed the log, is copied to it.
//! So memory bounds what waits for the bucket only where there is no log.
//!
//! Invariants:
//! * The log is kept from the first record of every slice that waits there (`State::kept_from`), as long as anybody
//!   waits for it.
//! * A slice leaves memory only if the log has all of its bytes, and with a checksum of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_slices::SliceId;

use super::blob::SharedBlob;
use super::change::{Change, HEADER_BYTES, WHOLE};
use super::handles;
use super::in_log::{InLog, Origin};
use super::log_state::ChangeLog;
use super::store::Store;
use super::unstored::{Spilled, Unstored};
use crate::content_store::{Error, Result};

/// The part of `buffer_bytes` that is freed at once.
const FREED_AT_ONCE: u64 = 4;
/// How long a thread waits for another one that does the same.
const TURN_MAX: Duration = Duration::from_millis(100);
/// How long it waits for others that change a blob, to have what they wrote be slices.
const CHANGE_MAX: Duration = Duration::from_millis(2);
/// The bytes of a slice in one record.
const COPY_BYTES_MAX: usize = 1 << 20;

impl Store {
    /// Has slices leave memory that the log has, until there is room for so many bytes more, and for others. Returns
    /// whether any did.
    pub(super) fn spill(self: &Arc<Self>, more: u64) -> bool {
        let log = self.log.as_deref().filter(|log| log.wal.failure().is_none());
        let Some(log) = log.filter(|_| self.is_nearly_short_of(more)) else {
            return false;
        };
        // One thread is enough, and others find what it has done.
        let Some(_spilling) = self.spilling.try_lock_for(TURN_MAX) else {
            return false;
        };
        if !self.is_nearly_short_of(more) {
            return true;
        }
        let all = more.max(self.options.buffer_bytes / FREED_AT_ONCE);
        let mut wanted = all;
        let blobs = handles::unpublished(self, Duration::ZERO);
        for is_copied in [false, true] {
            for blob in &blobs {
                for (id, slice, in_log) in blob.in_memory() {
                    if wanted == 0 {
                        return true;
                    }
                    let is_gone = match in_log {
                        Some(in_log) => blob.spill(log, id, &slice, in_log),
                        None => is_copied && blob.copy_to_log(log, id, &slice),
                    };
                    wanted -= if is_gone { wanted.min(slice.len() as u64) } else { 0 };
                }
            }
        }
        wanted < all
    }

    /// Has buffers become slices, which may leave memory. The caller has no lock.
    pub(super) fn seal_buffers(self: &Arc<Self>) {
        for blob in handles::unpublished(self, Duration::ZERO) {
            // A failure shows in the publication.
            let _ = blob.send_within(CHANGE_MAX);
        }
    }

    /// The bytes of a slice in the log, verified.
    ///
    /// # Errors
    /// Errors of the log's device, or damage; the slice may be gone, if nobody waits for it any more.
    pub(super) fn read_spilled(&self, spilled: &Spilled) -> Result<Bytes> {
        let log = self.log.as_deref().ok_or(Error::NotFound)?;
        let at = |what: &str| {
            let mend = "the file has lost it; its earlier content is in the bucket";
            Error::Damaged(format!("{}: {what}; {mend}", log.name))
        };
        let mut slice = vec![0; spilled.in_log.len()];
        let mut left = &mut slice[..];
        for (len, record, skip) in spilled.in_log.parts() {
            let (part, rest) = left.split_at_mut(len);
            let is_kept = log.wal.read(record, HEADER_BYTES + skip, part);
            match is_kept.map_err(|error| Error::Failed(error.to_string()))? {
                true => left = rest,
                false => return Err(at("content that was staged in the log is not there any more")),
            }
        }
        match crc32c::crc32c(&slice) == spilled.crc || is_seeded(Bug::SpilledUnverified) {
            true => Ok(slice.into()),
            false => Err(at("content that was staged in the log has changed")),
        }
    }
}

impl SharedBlob {
    /// Slices in memory, with their places in the log: the youngest first, which are sent last.
    fn in_memory(&self) -> Vec<(SliceId, Bytes, Option<Arc<InLog>>)> {
        let state = self.state.lock();
        let mut found: Vec<_> = state
            .uploads
            .iter()
            .filter_map(|(&id, upload)| match &upload.bytes {
                Unstored::Memory { slice, in_log, .. } => Some((id, slice.clone(), in_log.clone())),
                Unstored::Log(_) => None,
            })
            .collect();
        drop(state);
        found.sort_by_key(|(id, ..)| std::cmp::Reverse(*id));
        found
    }

    /// Has a slice leave memory that the log has. Returns whether it did.
    fn spill(&self, log: &ChangeLog, id: SliceId, slice: &Bytes, in_log: Arc<InLog>) -> bool {
        // A failure shows where something is appended.
        if log.wal.sync().is_err() {
            return false;
        }
        let spilled = Arc::new(Spilled::new(&self.store, slice, in_log));
        let mut state = self.state.lock();
        match state.uploads.get_mut(&id).map(|upload| &mut upload.bytes) {
            Some(bytes @ Unstored::Memory { .. }) => {
                *bytes = Unstored::Log(spilled);
                true
            }
            // Its object has arrived, or another thread was faster.
            _ => false,
        }
    }

    /// Copies a slice to the log, and has it leave memory once the log surely has it. Returns whether it did.
    ///
    /// The log is kept from the copy on from the moment at which the state says where it is, which is not unlocked in
    /// between; whoever frees space of the log looks at the state after it has looked at the log's end.
    fn copy_to_log(&self, log: &ChangeLog, id: SliceId, slice: &Bytes) -> bool {
        let usage = log.wal.usage();
        if !log.is_used() || usage.used_bytes + 2 * slice.len() as u64 > usage.bytes / 2 {
            return false;
        }
        let mut copy = InLog::default();
        let mut state = self.state.lock();
        let bytes = state.uploads.get_mut(&id).map(|upload| &mut upload.bytes);
        let Some(Unstored::Memory { in_log, .. }) = bytes.filter(|bytes| bytes.is_in_memory_alone()) else {
            return false;
        };
        for part in slice.chunks(COPY_BYTES_MAX) {
            let (header, data) = Change::Copy(part).encode(self.id, WHOLE);
            let Ok(record) = log.wal.append(&[&header, data]) else {
                return false;
            };
            copy.add(&(0..part.len()), Origin { record, begins: 0 });
        }
        let copy = Arc::new(copy);
        *in_log = Some(Arc::clone(&copy));
        drop(state);
        self.spill(log, id, slice, copy)
    }
}

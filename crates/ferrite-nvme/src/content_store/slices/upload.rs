//! Slices on their way to the bucket.
//!
//! Invariant: until its object has arrived, the bytes of a slice are in memory or in the log, and [`State::uploads`]
//! says where.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use ferrite_slices::{Error as BucketError, SliceId};

use super::blob::SharedBlob;
use super::buffer::Sealed;
use super::state::State;
use super::unstored::{Counted, Unstored, Upload};

impl SharedBlob {
    /// Has a buffer that became a slice be an upload. The caller has the state locked, and calls [`Self::send_object`]
    /// then.
    pub(super) fn add_upload(&self, state: &mut State, id: SliceId, sealed: Sealed) {
        let bytes = Unstored::Memory {
            _counted: Counted::new(&self.store, sealed.slice.len() as u64),
            slice: sealed.slice,
            in_log: sealed.in_log.map(Arc::new),
        };
        let (failures, error) = (0, None);
        state.uploads.insert(id, Upload { bytes, failures, error });
    }

    pub(super) fn send_object(self: &Arc<Self>, id: SliceId) {
        let (blob, hearing): (Weak<SharedBlob>, Weak<SharedBlob>) = (Arc::downgrade(self), Arc::downgrade(self));
        let slice = move || match blob.upgrade() {
            Some(blob) => blob.unstored(id),
            // Nobody waits for it: its row says that it was staged.
            None => Ok(None),
        };
        let heard = move |outcome| hearing.upgrade().is_some_and(|blob| blob.hear(id, outcome));
        self.store.objects.keep_storing(id, slice, heard);
    }

    /// The bytes of a slice that has no object, wherever they are. `None`: nobody waits for it any more.
    fn unstored(&self, id: SliceId) -> ferrite_slices::Result<Option<Bytes>> {
        let spilled = match self.state.lock().uploads.get(&id).map(|upload| &upload.bytes) {
            None => return Ok(None),
            Some(Unstored::Memory { slice, .. }) => return Ok(Some(slice.clone())),
            Some(Unstored::Log(spilled)) => Arc::clone(spilled),
        };
        match self.store.read_spilled(&spilled) {
            Ok(slice) => Ok(Some(slice)),
            Err(error) => {
                let mut state = self.state.lock();
                // The log is kept for all that a publication will name.
                if !state.is_publishing && !state.map.names(id) {
                    state.uploads.remove(&id);
                }
                match state.uploads.contains_key(&id) {
                    true => Err(BucketError::Damaged(error.to_string())),
                    false => Ok(None),
                }
            }
        }
    }

    /// An attempt to store an object has ended. Returns whether to try again if it failed.
    fn hear(&self, id: SliceId, outcome: ferrite_slices::Result<()>) -> bool {
        // Bytes that cannot be read from the log are no failure of the bucket.
        if !matches!(outcome, Err(BucketError::Damaged(_))) {
            self.store.note_outcome(outcome.as_ref().err());
        }
        let mut state = self.state.lock();
        let stored = match outcome {
            // It counts no more as soon as anybody can see that it has arrived.
            Ok(()) => {
                state.arrived += 1;
                match state.uploads.remove(&id).map(|upload| upload.bytes) {
                    Some(Unstored::Memory { slice, .. }) => Some(slice),
                    _ => None,
                }
            }
            Err(error) => {
                if let Some(upload) = state.uploads.get_mut(&id) {
                    upload.failures += 1;
                    upload.error = Some(error);
                }
                None
            }
        };
        drop(state);
        self.heard.notify_all();
        if let Some(slice) = stored {
            self.store.cache.insert(id, slice);
        }
        self.store.check_changes().is_ok()
    }
}

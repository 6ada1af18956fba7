//! Blobs that no node names: new ones, and those of removed files.
//!
//! Blobs go round robin over the stores (RUFS, section 2.5). A blob that no node names yet, or no longer, has a record
//! in the metadata store (RUFS, figure 5): the record is there before anything can go wrong with the blob, and goes in
//! the step that makes a node name it. Blobs are made in advance, some at a time, so that a file that gets one waits
//! for one transaction and not for three writes.
//!
//! Invariant: a blob has either a record or a node that names it, never both, never neither.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ferrite_blob::{Blob, BlobId};
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_vfs::{FsError, Result, SpaceOf};

use crate::blobs::{Place, place_of};
use crate::core::Core;
use crate::format::key;

/// How many blobs are made at once.
const MADE_AT_ONCE: usize = 16;

impl Core {
    /// A blob that only its record names, in a store with space for `wanted_bytes` if one exists. The step that names
    /// it removes the record.
    pub(crate) fn take_blob(&self, wanted_bytes: u64) -> Result<(Place, Blob)> {
        let first = self.blobs.next.fetch_add(1, Ordering::Relaxed);
        let mut refused = FsError::NoSpace(SpaceOf::Blocks);
        let has_space = |&number: &usize| {
            let store = self.blobs.stores[number].as_ref();
            store.is_some_and(|store| store.space().free_bytes >= wanted_bytes)
        };
        // Another store, if this one is full or fails.
        for number in self.blobs.turns(first).into_iter().filter(has_space) {
            let made = &self.blobs.made[number];
            if let Some(blob) = made.lock().pop_front() {
                return Ok((place_of(number, &blob), blob));
            }
            match self.make_blobs(number) {
                Ok(Some(blob)) => return Ok((place_of(number, &blob), blob)),
                Ok(None) => {}
                Err(error) => {
                    self.blobs.note_failure(number as u16, &error);
                    refused = error;
                }
            }
        }
        Err(refused)
    }

    fn make_blobs(&self, number: usize) -> Result<Option<Blob>> {
        let Some(store) = &self.blobs.stores[number] else {
            return Ok(None);
        };
        let ids = store.reserve_some(MADE_AT_ONCE)?;
        // First the records, then the blobs: a crash in between leaves records of blobs that were never made.
        if let Err(error) = self.record_detached(number as u16, &ids) {
            store.give_back(&ids);
            return Err(error);
        }
        let mut made = VecDeque::new();
        let mut failed = Ok(());
        for (index, &id) in ids.iter().enumerate() {
            match store.create(id, &[]) {
                Ok(blob) => made.push_back(blob),
                Err(error) => {
                    // This blob is known only to have failed. The next start looks at it.
                    store.give_back(&ids[index + 1..]);
                    failed = Err(error.into());
                    break;
                }
            }
        }
        let one = made.pop_front();
        self.blobs.made[number].lock().append(&mut made);
        match one {
            None => failed.map(|()| None),
            some => Ok(some),
        }
    }

    /// Stores the records of blobs that are about to be made.
    fn record_detached(&self, store: u16, ids: &[BlobId]) -> Result<()> {
        let mut step = self.own_step()?;
        for &blob in ids {
            if !is_seeded(Bug::NoRecordOfNewBlobs) {
                step.txn.put(&key::detached(Place { store, blob }), b"")?;
            }
        }
        step.commit(|| ferrite_vfs::Outcome::Done)
    }

    /// Deletes blobs whose records stand, and then the records. A blob that is already missing was deleted before a
    /// crash.
    pub(crate) fn delete_blobs(&self, places: &[Place]) -> Result<()> {
        let mut step = self.own_step()?;
        for &place in places {
            let deleted = self
                .blobs
                .store(place.store)
                .and_then(|store| match store.delete(place.blob) {
                    Err(error) if !error.is_not_found() => Err(error.into()),
                    _ => Ok(()),
                });
            match deleted {
                Ok(()) => step.txn.delete(&key::detached(place))?,
                Err(error) => tracing::warn!(%place, %error, "a blob that nothing names is deleted at the next start"),
            }
        }
        step.commit(|| ferrite_vfs::Outcome::Done)
    }

    /// Does something that takes space. If none is left, it first deletes what was removed before, and tries once more.
    pub(crate) fn with_map_space<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(FsError::NoSpace(SpaceOf::Blocks)) => {
                // If the housekeeper is already deleting them, this waits for it.
                self.delete_removed()?;
                work()
            }
            other => other,
        }
    }
}

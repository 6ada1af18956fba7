//! Blobs that no node names: new ones, and those of removed files.
//!
//! A blob that no node names yet, or no longer, has a record in the metadata store (RUFS, figure 5): the record is
//! there before anything can go wrong with the blob, and goes in the step that makes a node name it. Blobs are made in
//! advance, some at a time, so that a file that gets one waits for one transaction and not for three writes.
//!
//! Invariant: a blob has either a record or a node that names it, never both, never neither.

use std::collections::VecDeque;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_vfs::{FsError, Result, SpaceOf};

use crate::blobs::Made;
use crate::content_store::Place;
use crate::core::Core;
use crate::format::key;
use crate::housekeeper::MANY;

/// How many blobs are made at once.
const MADE_AT_ONCE: usize = 16;

impl Core {
    /// A blob that only its record names, in a data store with space for `wanted_bytes` if one exists. The step that
    /// names it removes the record.
    pub(crate) fn take_blob(&self, wanted_bytes: u64) -> Result<Made> {
        let mut refused = FsError::NoSpace(SpaceOf::Blocks);
        let has_space = |&store: &u16| {
            let space = self.content.space(store);
            space.is_ok_and(|space| space.free_bytes >= wanted_bytes)
        };
        // Another data store, if this one is full or fails.
        for store in self.content.turns().into_iter().filter(has_space) {
            match self.take_blob_in(store) {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => {}
                Err(error) => {
                    self.note_failure(store, &error);
                    refused = error;
                }
            }
        }
        Err(refused)
    }

    /// The same in this data store, whatever space it has.
    pub(crate) fn take_blob_in(&self, store: u16) -> Result<Option<Made>> {
        match self.made_blobs.take(store) {
            None => self.make_blobs(store),
            made => Ok(made),
        }
    }

    /// A data store has failed to take a new file.
    pub(crate) fn note_failure(&self, store: u16, error: &FsError) {
        if matches!(error, FsError::Io(_)) {
            self.content.note_failure(store);
        }
    }

    fn make_blobs(&self, store: u16) -> Result<Option<Made>> {
        let places = self.content.reserve(store, MADE_AT_ONCE, &self.blob_ids)?;
        // First the records, then the blobs: a crash in between leaves records of blobs that were never made.
        if let Err(error) = self.record_detached(&places) {
            self.content.give_back(&places);
            return Err(error);
        }
        let mut made = VecDeque::new();
        let mut failed = Ok(());
        for (index, &place) in places.iter().enumerate() {
            match self.content.create(place) {
                Ok(blob) => made.push_back((place, blob)),
                Err(error) => {
                    // This blob is known only to have failed. The next start looks at it.
                    self.content.give_back(&places[index + 1..]);
                    failed = Err(error.into());
                    break;
                }
            }
        }
        let one = made.pop_front();
        self.made_blobs.add(store, made);
        match one {
            None => failed.map(|()| None),
            some => Ok(some),
        }
    }

    /// Stores the records of blobs that are about to be made.
    fn record_detached(&self, places: &[Place]) -> Result<()> {
        let mut step = self.own_step()?;
        for &place in places {
            if !is_seeded(Bug::NoRecordOfNewBlobs) {
                step.txn.put(&key::detached(place), b"")?;
            }
        }
        step.commit(|| ferrite_vfs::Outcome::Done)
    }

    /// Deletes blobs whose records stand, and then the records, by steps that any store takes. A blob that is already
    /// missing was deleted before a crash.
    pub(crate) fn delete_blobs(&self, places: &[Place]) -> Result<()> {
        places
            .chunks(MANY)
            .try_for_each(|places| self.delete_some_blobs(places))
    }

    fn delete_some_blobs(&self, places: &[Place]) -> Result<()> {
        let mut step = self.own_step()?;
        for &place in places {
            match self.content.delete(place) {
                Ok(()) => step.txn.delete(&key::detached(place))?,
                Err(error) if error.is_not_found() => step.txn.delete(&key::detached(place))?,
                Err(error) => {
                    tracing::warn!(%place, %error, "a blob that nothing names is deleted at the next start");
                    self.check_owned();
                }
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

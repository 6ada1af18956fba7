//! Moving all content off a data store, so that its device can leave the pool.
//!
//! Crash argument: a file gets a copy of its content on another store as it does before a first change
//! ([`crate::sharing`]): the step that makes its node name the copy comes once that is durable, and records the old
//! blob as detached. Until then only the record of a detached blob tells of the copy. So a crash on the way leaves
//! every file whole on one store or the other, and the work can be done again. When nothing is left there, the pool's
//! record lists the store as removed, and from then on no opening uses it; the pool's file changes last.
//!
//! Files that share a blob share its copy; blobs that share a part of their space get copies of their own. Space that
//! was reserved and never written is not reserved there.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ferrite_meta::Lock;
use ferrite_vfs::{FsError, Ino, Outcome, Result, SpaceOf};

use crate::content_store::{Blob, Place};
use crate::core::Core;
use crate::data::{self, Shows};
use crate::format::key;
use crate::format::node::{Content, Node};
use crate::format::tail::Tail;
use crate::inode_ref::InodeRef;
use crate::sharing::{copy, decode_sharers, encode_sharers};
use crate::table::State;

/// How often what waits to be freed is tried: some of it may be damaged.
const TRIES_TO_FREE: usize = 8;

/// The copy of a blob.
struct Copied {
    place: Place,
    blob: Arc<dyn Blob>,
}

/// A file with content in the store.
struct Resident {
    ino: Ino,
    place: Place,
    bytes: u64,
}

impl Core {
    /// Moves all content of a data store to the others, and returns how many files that were. The store gets no content
    /// until the pool is opened again. Nothing else uses the engine. `show` gets the bytes moved so far and in all.
    ///
    /// # Errors
    /// `NoSpace` before anything is moved, if the others have not enough; `Damaged`, which names the file, if content
    /// cannot be read; errors of the stores. Files that were moved stay where they are then.
    pub(crate) fn evacuate(self: &Arc<Core>, store: u16, show: Shows<'_>) -> Result<u64> {
        self.content.drain(store);
        self.free_all_waiting();
        self.reclaim()?;
        self.delete_blobs(&self.made_blobs.take_all())?;
        let residents = self.residents(store)?;
        // Files that share a blob share its copy.
        let blobs: HashMap<Place, u64> = residents.iter().map(|file| (file.place, file.bytes)).collect();
        let total: u64 = blobs.values().sum();
        self.check_space_beside(store, total)?;
        let mut copies: HashMap<Place, Copied> = HashMap::new();
        let mut moved = 0;
        show(0, total);
        for file in &residents {
            let is_first = !copies.contains_key(&file.place);
            self.evacuate_file(file, &mut copies)?;
            moved += if is_first { file.bytes } else { 0 };
            show(moved, total);
        }
        self.free_all_waiting();
        self.reclaim()?;
        self.check_empty(store)?;
        self.note_removed(store)?;
        Ok(residents.len() as u64)
    }

    /// Frees what has no name: its content need not move.
    fn free_all_waiting(self: &Arc<Core>) {
        for _ in 0..TRIES_TO_FREE {
            self.free_waiting();
            if self.housekeeper.queue.lock().orphans.is_empty() {
                return;
            }
        }
    }

    /// That the store has nothing that anything could still need.
    fn check_empty(&self, store: u16) -> Result<()> {
        let blobs = self.content.survey(store)?.blobs;
        let has_blobs = blobs.is_none_or(|blobs| !blobs.is_empty());
        match self.residents(store)?.is_empty() && !self.has_detached(store)? && !has_blobs {
            true => Ok(()),
            false => {
                let text = "it has content that no file names, or that could not be deleted; `ferrite fsck` says more";
                Err(FsError::Io(text.into()))
            }
        }
    }

    /// Has no later opening use the store, whatever the pool's file says.
    fn note_removed(&self, store: u16) -> Result<()> {
        let mut pool = self.pool.lock();
        let mut record = pool.clone();
        record.removed.push(store);
        self.put_pool(&record)?;
        *pool = record;
        Ok(())
    }

    fn residents(&self, store: u16) -> Result<Vec<Resident>> {
        let (mut residents, mut is_readable) = (Vec::new(), true);
        self.each(b'N', |key, value| {
            let (Some(ino), Some(node)) = (key::ino_of(key), Node::decode(value)) else {
                is_readable = false;
                return;
            };
            if let Content::Blob(place) = node.content
                && place.store == store
            {
                residents.push(Resident {
                    ino,
                    place,
                    bytes: node.allocated_bytes,
                });
            }
        })?;
        match is_readable {
            true => Ok(residents),
            false => Err(FsError::damaged(None, "a node cannot be read; mend the pool first")),
        }
    }

    fn has_detached(&self, store: u16) -> Result<bool> {
        let mut has = false;
        self.each(b'X', |key, _| {
            has |= key::place_of(key).is_none_or(|place| place.store == store)
        })?;
        Ok(has)
    }

    fn check_space_beside(&self, store: u16, bytes: u64) -> Result<()> {
        let others = (0..self.content.stores()).filter(|&other| other != store);
        let free: u64 = others
            .filter_map(|other| self.content.space(other).ok())
            .map(|space| space.free_bytes)
            .sum();
        match free >= bytes {
            true => Ok(()),
            false => Err(FsError::NoSpace(SpaceOf::Blocks)),
        }
    }

    fn evacuate_file(self: &Arc<Core>, file: &Resident, copies: &mut HashMap<Place, Copied>) -> Result<()> {
        let pinned = match self.pin(file.ino) {
            // It was removed since it was listed.
            Err(FsError::Stale) => return Ok(()),
            other => other?,
        };
        let mut state = match pinned.write() {
            Err(FsError::Stale) => return Ok(()),
            other => other?,
        };
        if state.node.content != Content::Blob(file.place) {
            return Ok(());
        }
        self.store_node(&pinned, &mut state)?;
        if let Some(copied) = copies.get(&file.place) {
            let (place, blob) = (copied.place, Arc::clone(&copied.blob));
            return self.name_copy(&pinned, &mut state, (place, blob), false);
        }
        let (place, blob) = self.take_blob(state.node.allocated_bytes)?;
        let moved = self
            .copy_whole(&pinned, &state, &*blob)
            .and_then(|()| self.name_copy(&pinned, &mut state, (place, Arc::clone(&blob)), true));
        if let Err(error) = moved {
            // Its record stands.
            self.note_failure(place.store, &error);
            self.housekeeper.delete_later(place);
            return Err(error);
        }
        if state.node.marks.is_shared {
            copies.insert(file.place, Copied { place, blob });
        }
        Ok(())
    }

    /// Copies all that a file's blob has to one that has just been made. Durable when it returns.
    fn copy_whole(&self, pinned: &InodeRef, state: &State, to: &dyn Blob) -> Result<()> {
        let (ino, from) = (pinned.ino, self.blob_of(pinned.ino, state)?);
        let end = from.valid_len();
        copy(&**from, to, end).map_err(|error| data::unreadable(ino, &**from, 0..end, error))?;
        to.set_tail(&Tail::of(ino, &state.node).encode())?;
        Ok(to.sync()?)
    }

    /// Makes a file name the copy of its blob, in one step. `is_new`: no file does yet.
    fn name_copy(
        &self,
        pinned: &InodeRef,
        state: &mut State,
        (place, blob): (Place, Arc<dyn Blob>),
        is_new: bool,
    ) -> Result<()> {
        let mut step = self.own_step()?;
        let freed = self.drop_blob(&mut step, pinned.ino, &state.node)?;
        if is_new {
            step.txn.delete(&key::detached(place))?;
        }
        if state.node.marks.is_shared {
            let value = step.txn.get_for_update(&key::sharers(place), Lock::Exclusive)?;
            let others = value.and_then(|value| decode_sharers(&value)).unwrap_or(0);
            step.txn.put(&key::sharers(place), &encode_sharers(others + 1))?;
        }
        let mut node = state.node.clone();
        node.content = Content::Blob(place);
        node.allocated_bytes = blob.allocated_bytes();
        step.put_node(pinned.ino, &node)?;
        step.commit(|| Outcome::Done)?;
        state.blob = OnceLock::from(blob);
        pinned.adopt(state, node);
        freed.into_iter().for_each(|place| self.housekeeper.delete_later(place));
        Ok(())
    }
}

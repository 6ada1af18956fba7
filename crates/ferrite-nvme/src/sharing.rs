//! Blobs that several nodes name.
//!
//! A clone names the blobs of its originals, and so does a copy of a whole file. Each of these nodes says that its blob
//! is shared, and a record (`R`) has their number. Such a blob never changes, neither its bytes nor its tail, which may
//! be another file's. Before a file changes, it gets a blob of its own ([`Core::own_blob`]): the same one if no other
//! node names it any more, or else a copy. On devices and in S3 a copy moves no content: the two blobs share space,
//! until one of them changes it.
//!
//! Invariants: the number is that of the nodes that name the blob, which changes with them, in one step. A shared blob
//! has this record and none that it is detached; the step that removes its last node exchanges one for the other. The
//! number only grows while a thread has one of these inodes exclusively, or keeps all changes out. A step that locks
//! several of these records locks them in the order of their keys, after its names.

use std::sync::{Arc, OnceLock};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_meta::Lock;
use ferrite_vfs::{FsError, Ino, Outcome, Result};

use crate::blobs::Made;
use crate::content_store::{self, Blob, Place};
use crate::core::{Core, Step};
use crate::data;
use crate::format::key;
use crate::format::node::{Content, Node};
use crate::format::tail::Tail;
use crate::inode_ref::InodeRef;
use crate::table::State;

/// Bytes copied at a time.
const COPY_BYTES: u64 = 1 << 20;

/// A number of nodes, as the record has it.
pub(crate) fn encode_sharers(count: u64) -> [u8; 8] {
    count.to_le_bytes()
}

/// `None`: the record is damaged.
pub(crate) fn decode_sharers(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

/// Copies the content before `end` to an empty blob. Holes stay holes.
pub(crate) fn copy(from: &dyn Blob, to: &dyn Blob, end: u64) -> content_store::Result<()> {
    let end = end.min(from.valid_len());
    let mut buffer = vec![0; end.min(COPY_BYTES) as usize];
    let mut at = 0;
    while let Some(data) = from.next_data(at)?.filter(|&data| data < end) {
        let hole = from.next_hole(data)?.min(end);
        let part = &mut buffer[..(hole - data).min(COPY_BYTES) as usize];
        from.read_at(part, data)?;
        to.write_at(part, data, None)?;
        at = data + part.len() as u64;
    }
    Ok(())
}

impl Core {
    /// How many nodes name a blob that this inode shares. Locks the record.
    fn sharers(&self, step: &mut Step<'_>, ino: Ino, place: Place) -> Result<u64> {
        let value = step.txn.get_for_update(&key::sharers(place), Lock::Exclusive)?;
        let count = value
            .and_then(|value| decode_sharers(&value))
            .filter(|&count| count > 0);
        count.ok_or_else(|| FsError::damaged(ino, format!("the number of files with its {place} cannot be read")))
    }

    /// Puts into the step that one more node names the blob of this one, which says from then on that it is shared.
    pub(crate) fn share(&self, step: &mut Step<'_>, ino: Ino, node: &Node, place: Place) -> Result<()> {
        let sharers = match node.marks.is_shared {
            true => self.sharers(step, ino, place)?,
            false => 1,
        };
        if is_seeded(Bug::CloneUncounted) && node.marks.is_shared {
            return Ok(());
        }
        Ok(step.txn.put(&key::sharers(place), &encode_sharers(sharers + 1))?)
    }

    /// Puts into the step that a node no longer names its blob. Returns the blob if no other node does: it is detached
    /// then, and to be deleted after the step.
    pub(crate) fn drop_blob(&self, step: &mut Step<'_>, ino: Ino, node: &Node) -> Result<Option<Place>> {
        let Content::Blob(place) = node.content else {
            return Ok(None);
        };
        if node.marks.is_shared {
            let others = self.sharers(step, ino, place)? - 1;
            if others > 0 {
                step.txn.put(&key::sharers(place), &encode_sharers(others))?;
                return Ok(None);
            }
            step.txn.delete(&key::sharers(place))?;
        }
        if !is_seeded(Bug::NoDetachedRecord) {
            step.txn.put(&key::detached(place), b"")?;
        }
        Ok(Some(place))
    }

    /// Locks the records of these blobs for a step that drops several, as other steps do at the same time.
    pub(crate) fn lock_sharers(&self, step: &mut Step<'_>, places: impl Iterator<Item = Place>) -> Result<()> {
        let mut keys: Vec<Vec<u8>> = places.map(key::sharers).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            step.txn.get_for_update(&key, Lock::Exclusive)?;
        }
        Ok(())
    }

    /// Gives a file whose blob is shared one of its own, before its content changes. The caller has the file
    /// exclusively. A failure leaves it as it was.
    ///
    /// Crash argument: the step that gives the file the copy comes after that is durable; before, only the record of a
    /// detached blob tells of it. A blob that no other file shares any more gets the tail of its file before the step,
    /// while nothing relies on its tail yet.
    pub(crate) fn own_blob(&self, pinned: &InodeRef, state: &mut State) -> Result<()> {
        let Content::Blob(place) = state.node.content else {
            return Ok(());
        };
        if !state.node.marks.is_shared || is_seeded(Bug::SharedBlobInPlace) {
            return Ok(());
        }
        let ino = pinned.ino;
        let mut step = self.own_step()?;
        let mut node = pinned.present(state);
        node.marks.is_shared = false;
        if self.sharers(&mut step, ino, place)? == 1 {
            let blob = Arc::clone(self.blob_of(ino, state)?);
            blob.set_tail(&Tail::of(ino, &node).encode())?;
            blob.sync()?;
            step.txn.delete(&key::sharers(place))?;
            step.put_node(ino, &node)?;
            step.commit(|| Outcome::Done)?;
            pinned.adopt(state, node);
            return Ok(());
        }
        // Others use the record while this copies.
        drop(step);
        let _copying = self.freeze_barrier.copying();
        let (own, blob) = self.copy_of(ino, state, place)?;
        match self.give_copy(pinned, state, node, (own, &*blob)) {
            Ok(freed) => {
                state.blob = OnceLock::from(blob);
                freed.into_iter().for_each(|place| self.housekeeper.delete_later(place));
                Ok(())
            }
            Err(error) => Err(self.give_up_blob(own, error)),
        }
    }

    /// A new blob with the content of a file, which `place` has: in the same data store, if content need not move
    /// there, and otherwise in one with space for a copy. Only its record names it.
    fn copy_of(&self, ino: Ino, state: &State, place: Place) -> Result<Made> {
        let (shared, end) = (Arc::clone(self.blob_of(ino, state)?), state.node.size);
        if self.content.limits().shares_content
            && self.content.takes_new(place.store)
            && let Some(made) = self.copy_in(place.store, &*shared, end)
        {
            return Ok(made);
        }
        let made = self.take_blob(state.node.allocated_bytes)?;
        match copy(&*shared, &*made.1, end) {
            Ok(()) => Ok(made),
            Err(error) => Err(self.give_up_blob(made.0, data::unreadable(ino, &*shared, 0..end, error))),
        }
    }

    /// A new blob that shares its content with one of this data store. `None`: it has to be copied.
    fn copy_in(&self, store: u16, shared: &dyn Blob, end: u64) -> Option<Made> {
        let made = match self.take_blob_in(store) {
            Ok(made) => made?,
            Err(error) => {
                self.note_failure(store, &error);
                return None;
            }
        };
        match made.1.share_from(shared, end) {
            Ok(true) => return Some(made),
            Ok(false) => self.housekeeper.delete_later(made.0),
            Err(error) => drop(self.give_up_blob(made.0, error.into())),
        }
        None
    }

    /// A blob that was to be a copy did not become one. Its record stands.
    fn give_up_blob(&self, place: Place, error: FsError) -> FsError {
        self.note_failure(place.store, &error);
        self.housekeeper.delete_later(place);
        error
    }

    /// Makes `node` name a copy of the blob of its file that has just been made; returns the old one if no node names
    /// it any more.
    fn give_copy(
        &self,
        pinned: &InodeRef,
        state: &mut State,
        mut node: Node,
        (own, blob): (Place, &dyn Blob),
    ) -> Result<Option<Place>> {
        let ino = pinned.ino;
        blob.set_tail(&Tail::of(ino, &node).encode())?;
        blob.sync()?;
        let mut step = self.own_step()?;
        let freed = self.drop_blob(&mut step, ino, &state.node)?;
        node.content = Content::Blob(own);
        node.allocated_bytes = blob.allocated_bytes();
        step.put_node(ino, &node)?;
        step.txn.delete(&key::detached(own))?;
        step.commit(|| Outcome::Done)?;
        pinned.adopt(state, node);
        Ok(freed)
    }
}

//! Names: the edges of the tree.
//!
//! Contents: how names are found, listed, locked and placed. `make` creates names, `remove` removes them, and `rename`
//! does both; `clone` makes clones of trees and snapshots, `clear` removes trees without a name, and `quota` sets
//! quotas of trees, `user_quota` those of users.
//!
//! A name's place in its directory is a hash of 62 bits, which is also its cookie in listings. Two names with the same
//! hash would share a cookie, and a listing could not stop between them. So the second one takes the next hash of its
//! name, and the place remembers that there is more (RUFS has no answer to that: its listings hold an iterator).
//!
//! Invariants: an operation that looks whether a name is taken, to change that, has locked its place in the
//! transaction. A name lies at the first of its places that was free when it was made; every place before is marked.

mod clear;
mod clone;
mod held;
mod make;
mod quota;
mod remove;
mod rename;
mod user_quota;

pub(crate) use make::New;

use std::hash::Hasher;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use ferrite_meta::{Lock, Transaction};
use ferrite_vfs::{FsError, Ino, Result, Timestamp, posix};
use siphasher::sip::SipHasher13;

use crate::core::{Core, Step, TIME_STEP};
use crate::format::key;
use crate::format::node::Edge;
use crate::inode_ref::InodeRef;
use crate::table::{Inode, State};

/// Places of one name. That a pool needs the second is unlikely; the third, absurd.
const PLACES_MAX: u64 = 64;

/// Names that a walk of a tree reads at once.
const NAMES_WALKED_AT_ONCE: usize = 64;

/// A name that is locked, and what it leads to.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Where it is, or would be.
    pub(crate) cookie: u64,
    /// Which of its places that is.
    attempt: u64,
    pub(crate) found: Option<Edge>,
}

/// The place of a name in its directory.
pub(crate) fn cookie_of(hash_key: &[u8; 16], hash_bits: u32, name: &[u8], attempt: u64) -> u64 {
    let mut hasher = SipHasher13::new_with_key(hash_key);
    hasher.write_u64(attempt);
    hasher.write(name);
    // Listings begin at 0.
    (hasher.finish() >> (64 - hash_bits)).max(1)
}

/// A name as a listing found it.
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) cookie: u64,
    pub(crate) edge: Edge,
}

impl Core {
    /// The names of a directory that come after a cookie, up to `most`; fewer if there are no more, or if the next one
    /// cannot be read, which the `bool` says.
    pub(crate) fn names_after(&self, dir: Ino, cookie: u64, most: usize) -> Result<(Vec<Listed>, bool)> {
        let mut listed = Vec::new();
        let mut is_damaged = false;
        let Some(next) = cookie.checked_add(1) else {
            return Ok((listed, false));
        };
        let (from, to) = key::edges_from(dir, next);
        self.meta.scan(&from, &to, &mut |key, value| {
            match (key::parts_of_edge(key), Edge::decode(value)) {
                (Some((_, cookie, name)), Some(edge)) => listed.push(Listed {
                    name: name.to_vec(),
                    cookie,
                    edge,
                }),
                _ => is_damaged = true,
            }
            match listed.len() < most && !is_damaged {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok((listed, is_damaged))
    }

    /// The same for work on a tree, which cannot leave out a name.
    fn readable_names(&self, dir: Ino, cookie: u64, most: usize) -> Result<Vec<Listed>> {
        match self.names_after(dir, cookie, most)? {
            (listed, false) => Ok(listed),
            (_, true) => Err(unreadable_entry(dir)),
        }
    }

    /// Calls `visit` with the names of a directory, and then of those that it adds to the list, some at a time. Changes
    /// are made meanwhile, or not, as the caller has it.
    ///
    /// # Errors
    /// `Damaged` if a directory contains itself, or an entry cannot be read; those of `visit`.
    fn walk_below(&self, top: Ino, mut visit: impl FnMut(Ino, &[Listed], &mut Vec<Ino>) -> Result<()>) -> Result<()> {
        let (mut dirs, mut walked) = (vec![top], 0);
        while let Some(dir) = dirs.pop() {
            walked += 1;
            if walked > self.inodes.load(Ordering::Relaxed).saturating_mul(2) {
                return Err(FsError::damaged(dir, "the directory contains itself"));
            }
            let mut cookie = 0;
            loop {
                let entries = self.readable_names(dir, cookie, NAMES_WALKED_AT_ONCE)?;
                let Some(last) = entries.last() else { break };
                cookie = last.cookie;
                visit(dir, &entries, &mut dirs)?;
            }
        }
        Ok(())
    }

    /// The nth place of a name.
    fn cookie(&self, name: &[u8], attempt: u64) -> u64 {
        cookie_of(&self.hash_key, self.hash_bits, name, attempt)
    }

    /// Whether a name may lie at this place.
    pub(crate) fn is_place_of(&self, name: &[u8], cookie: u64) -> bool {
        (0..PLACES_MAX).any(|attempt| self.cookie(name, attempt) == cookie)
    }

    fn decode_edge(&self, parent: Ino, value: &[u8]) -> Result<Edge> {
        Edge::decode(value).ok_or_else(|| unreadable_entry(parent))
    }

    /// The current target of a name.
    pub(crate) fn find(&self, parent: Ino, name: &[u8]) -> Result<Option<Edge>> {
        posix::check_name(name)?;
        for attempt in 0..PLACES_MAX {
            let cookie = self.cookie(name, attempt);
            if let Some(value) = self.meta.get(&key::edge(parent, cookie, name))? {
                return self.decode_edge(parent, &value).map(Some);
            }
            if self.meta.get(&key::place_in(parent, cookie))?.is_none() {
                break;
            }
        }
        Ok(None)
    }

    /// Locks a name until the step ends, and finds what it leads to.
    pub(crate) fn lock_name(&self, step: &mut Step<'_>, parent: Ino, name: &[u8]) -> Result<Slot> {
        self.lock_from(step, parent, name, 0)
    }

    fn lock_from(&self, step: &mut Step<'_>, parent: Ino, name: &[u8], first: u64) -> Result<Slot> {
        for attempt in first..PLACES_MAX {
            let cookie = self.cookie(name, attempt);
            let place = key::place_in(parent, cookie);
            let is_marked = step.txn.get_for_update(&place, Lock::Exclusive)?.is_some();
            let found = match step.txn.get(&key::edge(parent, cookie, name))? {
                Some(value) => Some(self.decode_edge(parent, &value)?),
                None => None,
            };
            if found.is_some() || !is_marked {
                return Ok(Slot { cookie, attempt, found });
            }
        }
        Err(FsError::NoSpace(ferrite_vfs::SpaceOf::Names))
    }

    /// Makes a locked name lead to an inode.
    pub(crate) fn put_edge(
        &self,
        step: &mut Step<'_>,
        parent: Ino,
        name: &[u8],
        slot: Slot,
        edge: &Edge,
    ) -> Result<()> {
        let mut slot = slot;
        while slot.found.is_none() && self.is_taken(&*step.txn, parent, slot.cookie)? {
            step.txn.put(&key::place_in(parent, slot.cookie), b"+")?;
            slot = self.lock_from(step, parent, name, slot.attempt + 1)?;
        }
        step.txn.put(&key::edge(parent, slot.cookie, name), &edge.encode())?;
        Ok(())
    }

    /// Whether any name lies at a place.
    fn is_taken(&self, txn: &dyn Transaction, parent: Ino, cookie: u64) -> Result<bool> {
        let (from, to) = (key::edge(parent, cookie, b""), key::edge(parent, cookie + 1, b""));
        let mut is_taken = false;
        txn.scan(&from, &to, &mut |_, _| {
            is_taken = true;
            ControlFlow::Break(())
        })?;
        Ok(is_taken)
    }

    /// Removes a name that was found.
    fn delete_edge(&self, step: &mut Step<'_>, parent: Ino, name: &[u8], slot: &Slot) -> Result<()> {
        step.txn.delete(&key::edge(parent, slot.cookie, name))?;
        Ok(())
    }

    /// Whether a directory, which the caller holds exclusively, has no names.
    fn is_empty(&self, dir: Ino) -> Result<bool> {
        let (from, to) = key::edges_from(dir, 0);
        let mut is_empty = true;
        self.meta.scan(&from, &to, &mut |_, _| {
            is_empty = false;
            ControlFlow::Break(())
        })?;
        Ok(is_empty)
    }
}

/// The effect of a change of names on the times of its directory: stored by the step if they moved far enough, in
/// memory when the step has been committed.
pub(crate) struct Touch {
    now: Timestamp,
    change: u64,
    is_stored: bool,
}

impl Core {
    /// Prepares the change of a directory whose state the caller holds at least shared. `nlink` is the new number of
    /// links, which only an exclusive holder may change.
    pub(crate) fn touch(&self, step: &mut Step<'_>, dir: &Inode, state: &State, nlink: Option<u32>) -> Result<Touch> {
        step.guard(dir.ino, &state.node);
        let step_ns = TIME_STEP.as_nanos() as u64;
        let (now, change, is_stored) = dir.with_live(|live| {
            // Both under this lock, so that a later change never has an earlier time.
            let (now, change) = (self.now(), self.next_change());
            let is_due = nlink.is_some() || now.0.abs_diff(live.stored.0) > step_ns;
            if is_due {
                // Other steps need not store the same. If this step fails, the next one that is due stores it.
                live.stored = now;
            }
            (now, change, is_due)
        });
        if is_stored {
            let mut node = dir.present(state);
            node.nlink = nlink.unwrap_or(node.nlink);
            (node.mtime, node.ctime, node.change) = (now, now, change);
            step.put_node(dir.ino, &node)?;
        }
        Ok(Touch { now, change, is_stored })
    }
}

impl Touch {
    /// The step has been committed.
    pub(crate) fn done(self, dir: &Inode) {
        dir.with_live(|live| {
            // The latest change sets the time; a time that a program set may be later.
            if self.change > live.change {
                (live.mtime, live.ctime, live.change) = (self.now, self.now, self.change);
            }
            live.is_dirty |= !self.is_stored;
        });
    }
}

impl Core {
    /// The directory an operation names.
    pub(crate) fn dir(self: &std::sync::Arc<Core>, ino: Ino) -> Result<InodeRef> {
        self.check_open()?;
        self.pin(ino).map_err(|error| match error {
            FsError::Stale => FsError::NotFound,
            other => other,
        })
    }
}

/// Its state must be that of a directory in which names can be looked up.
pub(crate) fn is_dir(state: &State) -> Result<()> {
    match state.node.is_dir() {
        true => Ok(()),
        false => Err(FsError::NotDirectory),
    }
}

/// The same, for a directory to which names can be added.
pub(crate) fn is_live_dir(state: &State) -> Result<()> {
    is_dir(state)?;
    match state.node.nlink > 0 {
        true => Ok(()),
        false => Err(FsError::NotFound),
    }
}

pub(crate) fn unreadable_entry(dir: Ino) -> FsError {
    FsError::damaged(dir, "one of its entries cannot be read")
}

/// An inode that a name led to and that is gone: the name is gone, too.
pub(crate) fn missing(error: FsError) -> FsError {
    match error {
        FsError::Stale => FsError::NotFound,
        other => other,
    }
}

//! Trees without a name: a removed snapshot, and a clone that is not complete or was given up. The directory at the top
//! is an orphan whose node says that it has entries all the same; whoever frees it removes those first.
//!
//! Crash argument: the record of the orphan stands until all below is gone, and each step removes entries together with
//! the inodes that they lead to; so a start that finds the record removes the rest. Nothing leads into the tree any
//! more, but others may have parts of it pinned or open: those become orphans of their own.

use std::collections::HashSet;
use std::sync::Arc;

use ferrite_vfs::{FsError, Ino, Outcome, ROOT_INO, Result, Timestamp};

use super::Listed;
use super::remove::Lost;
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::Content;
use crate::inode_ref::InodeRef;
use crate::table::{Inode, State};

/// A directory on the way down, and where its listing continues.
struct Level {
    dir: Ino,
    cookie: u64,
}

/// Entries that one step removes.
const ENTRIES_AT_ONCE: usize = 64;

impl Core {
    /// Puts the removal of a snapshot's name into the step; all of it goes when its last pin does. The caller holds it
    /// exclusively.
    pub(super) fn lose_tree(&self, step: &mut Step<'_>, top: &Inode, state: &State, now: Timestamp) -> Result<Lost> {
        let mut node = top.present(state);
        node.nlink = 0;
        (node.ctime, node.change) = (now, self.next_change());
        node.parent = ROOT_INO;
        node.marks.is_orphan_tree = true;
        step.txn.put(&key::orphan(top.ino), b"")?;
        step.put_node(top.ino, &node)?;
        Ok(Lost::Stays(node))
    }

    /// Removes all entries below an orphan. False if changes are being held back: then the rest waits. Blocks on the
    /// locks of the inodes.
    ///
    /// # Errors
    /// `Damaged` if an entry leads nowhere, or the tree has a circle; errors of the stores.
    pub(super) fn clear_tree(self: &Arc<Core>, top: Ino) -> Result<bool> {
        let mut on_way = HashSet::from([top]);
        let mut way = vec![Level { dir: top, cookie: 0 }];
        while let Some(level) = way.last_mut() {
            if self.housekeeper.is_stopping() {
                return Ok(false);
            }
            // Others that keep changes out do not wait for the whole tree.
            let Some(_inside) = self.freeze_barrier.try_enter() else {
                return Ok(false);
            };
            let entries = self.readable_names(level.dir, level.cookie, ENTRIES_AT_ONCE)?;
            if entries.is_empty() {
                on_way.remove(&level.dir);
                way.pop();
                continue;
            }
            let cleared = self.clear_some(level.dir, &entries)?;
            if cleared > 0 {
                level.cookie = entries[cleared - 1].cookie;
                continue;
            }
            let dir = entries[0].edge.ino;
            if !on_way.insert(dir) {
                return Err(FsError::damaged(dir, "the directory contains itself"));
            }
            way.push(Level { dir, cookie: 0 });
        }
        Ok(true)
    }

    /// Removes the first of the entries, up to a directory that has entries itself; returns how many.
    fn clear_some(self: &Arc<Core>, dir: Ino, entries: &[Listed]) -> Result<usize> {
        let mut removable: Vec<(&Listed, InodeRef)> = Vec::new();
        for entry in entries {
            let ino = entry.edge.ino;
            let pinned = self.pin(ino).map_err(|error| self.dangling(dir, ino, error))?;
            let is_full = pinned.read()?.node.is_dir() && !self.is_empty(ino)?;
            // Each file is locked once; another name of it comes later.
            if is_full || removable.iter().any(|(_, other)| other.ino == ino) {
                break;
            }
            removable.push((entry, pinned));
        }
        let count = removable.len();
        // The order of their locks.
        removable.sort_by_key(|(_, pinned)| pinned.ino);
        if count > 0 {
            self.clear_entries(dir, &removable)?;
        }
        Ok(count)
    }

    fn clear_entries(self: &Arc<Core>, dir: Ino, removable: &[(&Listed, InodeRef)]) -> Result<()> {
        let mut states = Vec::new();
        for (_, inode) in removable {
            states.push(inode.write().map_err(|error| self.dangling(dir, inode.ino, error))?);
        }
        let mut step = self.own_step()?;
        let shared = states.iter().filter(|state| state.node.marks.is_shared);
        let places = shared.filter_map(|state| match state.node.content {
            Content::Blob(place) => Some(place),
            _ => None,
        });
        self.lock_sharers(&mut step, places)?;
        let now = self.now();
        let mut fates = Vec::new();
        for ((entry, inode), state) in removable.iter().zip(&states) {
            step.txn.delete(&key::edge(dir, entry.cookie, &entry.name))?;
            if state.node.is_dir() {
                self.delete_places(&mut step, inode.ino)?;
            }
            fates.push(self.lose_name(&mut step, inode, state, now)?);
        }
        step.commit(|| Outcome::Done)?;
        for (((_, inode), state), fate) in removable.iter().zip(&mut states).zip(fates) {
            self.lost_name(inode, state, fate);
        }
        Ok(())
    }
}

//! Removing names, and with the last one the inode.
//!
//! An inode that no other caller has open or pinned goes in the step that removes its last name. Any other stays as an
//! orphan, with a record, until its last pin is released or until the next start. Its blob becomes detached in the same
//! step (RUFS, figure 5b): it is deleted afterwards, by the housekeeper or by the next start.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_vfs::{Ctx, FsError, Ino, Outcome, Result, Timestamp, posix};

use super::{Slot, is_dir, missing};
use crate::content_store::Place;
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::Node;
use crate::inode_ref::InodeRef;
use crate::quotas::owners_of;
use crate::table::{Inode, State, Turn};

/// The fate, in memory, of an inode that loses a name, once the step is committed.
pub(super) enum Lost {
    /// It has other names, or a caller has it open.
    Stays(Node),
    /// It is gone, and with it this blob.
    Goes(Option<Place>),
}

impl Core {
    /// Puts the loss of a name into the step. The caller holds the inode exclusively.
    pub(super) fn lose_name(&self, step: &mut Step<'_>, inode: &Inode, state: &State, now: Timestamp) -> Result<Lost> {
        step.guard(inode.ino, &state.node);
        if state.node.nlink > 1 {
            self.settle(state)?;
        }
        let mut node = inode.present(state);
        node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 };
        (node.ctime, node.change) = (now, self.next_change());
        if node.nlink == 0 && !inode.has_others() {
            let freed = self.put_gone(step, inode.ino, &node, state.is_ahead)?;
            return Ok(Lost::Goes(freed));
        }
        if node.nlink == 0 && !is_seeded(Bug::NoOrphanRecord) {
            step.txn.put(&key::orphan(inode.ino), b"")?;
        }
        step.put_node(inode.ino, &node)?;
        Ok(Lost::Stays(node))
    }

    /// Puts the removal of an inode into the step; returns the blob that goes with it.
    fn put_gone(&self, step: &mut Step<'_>, ino: Ino, node: &Node, is_ahead: bool) -> Result<Option<Place>> {
        let is_counted = node.has_xattrs && self.quotas.counts(owners_of(node));
        step.count_gone(ino, node, self.xattr_bytes(ino, is_counted)?)?;
        step.txn.delete(&key::node(ino))?;
        if node.has_own_quota(ino) {
            step.txn.delete(&key::quota(ino))?;
        }
        self.drop_small(step, ino, &node.content)?;
        if node.has_xattrs {
            step.txn.delete(&key::xattrs(ino))?;
        }
        if is_ahead {
            step.txn.delete(&key::ahead(ino))?;
        }
        let freed = self.drop_blob(step, ino, node)?;
        if let Some(place) = freed.filter(|_| is_seeded(Bug::DeletedFirst)) {
            self.content.delete(place)?;
        }
        Ok(freed)
    }

    /// The step of [`Self::lose_name`] has been committed.
    pub(super) fn lost_name(&self, inode: &Inode, state: &mut State, lost: Lost) {
        self.names_lost.fetch_add(1, Ordering::AcqRel);
        match lost {
            Lost::Stays(node) => inode.adopt(state, node),
            Lost::Goes(freed) => self.gone(state, freed),
        }
    }

    fn gone(&self, state: &mut State, freed: Option<Place>) {
        state.is_gone = true;
        self.inodes.fetch_sub(1, Ordering::Relaxed);
        self.count_small(Some(&state.node.content), None);
        if let Some(place) = freed {
            self.housekeeper.delete_later(place);
        }
    }

    /// Frees an inode that has no name and is no longer open; one at the top of a tree with all that is below. The
    /// caller has its only pin. False if it is to be tried again: another thread had it pinned, or changes are held
    /// back.
    pub(crate) fn free(self: &Arc<Core>, inode: &Inode) -> Result<bool> {
        let is_tree = inode.read().is_ok_and(|state| state.node.marks.is_orphan_tree);
        if is_tree && !self.clear_tree(inode.ino)? {
            return Ok(false);
        }
        let Ok(mut state) = inode.write() else {
            return Ok(true);
        };
        // Another caller may have opened it by its number meanwhile.
        if state.node.nlink > 0 || inode.has_others() {
            return Ok(state.node.nlink > 0);
        }
        let mut step = self.own_step()?;
        step.txn.delete(&key::orphan(inode.ino))?;
        if is_tree {
            self.delete_places(&mut step, inode.ino)?;
        }
        // Also without such a record in memory: it may have been read anew.
        let freed = self.put_gone(&mut step, inode.ino, &state.node, true)?;
        step.commit(|| Outcome::Done)?;
        self.gone(&mut state, freed);
        Ok(true)
    }

    /// The target of a locked name, if the caller may remove it.
    fn removable(self: &Arc<Core>, ctx: &Ctx, dir: &InodeRef, dir_state: &State, slot: &Slot) -> Result<InodeRef> {
        if ctx.check {
            posix::may_search(&self.guarded(ctx, dir, dir_state)?, &ctx.cred)?;
        }
        let edge = slot.found.ok_or(FsError::NotFound)?;
        self.pin(edge.ino)
            .map_err(|error| self.dangling(dir.ino, edge.ino, error))
    }

    /// A locked name leads to an inode that exists; otherwise the metadata is damaged.
    pub(super) fn dangling(&self, dir: Ino, ino: Ino, error: FsError) -> FsError {
        match error {
            FsError::Stale => FsError::damaged(dir, format!("one of its names leads to inode {ino}, which is missing")),
            other => other,
        }
    }

    /// Removes a name that is not a directory.
    pub(crate) fn unlink(self: &Arc<Core>, ctx: &Ctx, mut step: Step<'_>, parent: Ino, name: &[u8]) -> Result<()> {
        posix::check_name(name)?;
        self.settle_name(parent, name, true)?;
        let dir = self.dir(parent)?;
        let dir_state = dir.read_dir(Turn::First).map_err(missing)?;
        is_dir(&dir_state)?;
        let slot = self.lock_name(&mut step, parent, name)?;
        let file = self.removable(ctx, &dir, &dir_state, &slot)?;
        let mut state = file.write().map_err(|error| self.dangling(parent, file.ino, error))?;
        if ctx.check {
            let guarded = self.guarded(ctx, &dir, &dir_state)?;
            posix::may_delete(&guarded, &self.attr(&file, &state), &ctx.cred)?;
        }
        if state.node.is_dir() {
            return Err(FsError::IsDirectory);
        }
        let now = self.now();
        self.delete_edge(&mut step, parent, name, &slot)?;
        let touch = self.touch(&mut step, &dir, &dir_state, None)?;
        let lost = self.lose_name(&mut step, &file, &state, now)?;
        step.commit(|| Outcome::Done)?;
        touch.done(&dir);
        self.lost_name(&file, &mut state, lost);
        Ok(())
    }

    /// Removes an empty directory, or a snapshot. Returns a removed snapshot: all of it goes when its last pin does,
    /// and the caller drops this one when it holds nothing else.
    pub(crate) fn rmdir(
        self: &Arc<Core>,
        ctx: &Ctx,
        mut step: Step<'_>,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<InodeRef>> {
        posix::check_name(name)?;
        let dir = self.dir(parent)?;
        let mut dir_state = dir.write_dir(Turn::First).map_err(missing)?;
        is_dir(&dir_state)?;
        let slot = self.lock_name(&mut step, parent, name)?;
        let victim = self.removable(ctx, &dir, &dir_state, &slot)?;
        let mut state = victim
            .write()
            .map_err(|error| self.dangling(parent, victim.ino, error))?;
        if ctx.check {
            let guarded = self.guarded(ctx, &dir, &dir_state)?;
            posix::may_delete(&guarded, &self.attr(&victim, &state), &ctx.cred)?;
        }
        if !state.node.is_dir() {
            return Err(FsError::NotDirectory);
        }
        let is_snapshot = dir_state.node.marks.holds_snapshots;
        match is_snapshot {
            true => self.check_owner_of_snapshots(ctx, &dir_state)?,
            false if !self.is_empty(victim.ino)? => return Err(FsError::NotEmpty),
            false => {}
        }
        if is_snapshot || state.node.marks.holds_snapshots {
            step.may_change_snapshots();
        }
        let now = self.now();
        let nlink = dir_state.node.nlink - 1;
        self.delete_edge(&mut step, parent, name, &slot)?;
        let touch = self.touch(&mut step, &dir, &dir_state, Some(nlink))?;
        let lost = match is_snapshot {
            true => self.lose_tree(&mut step, &victim, &state, now)?,
            false => {
                self.delete_places(&mut step, victim.ino)?;
                self.lose_name(&mut step, &victim, &state, now)?
            }
        };
        step.commit(|| Outcome::Done)?;
        touch.done(&dir);
        dir_state.node.nlink = nlink;
        self.lost_name(&victim, &mut state, lost);
        drop(state);
        Ok(is_snapshot.then_some(victim))
    }

    /// The owner of a directory removes its snapshots, besides root: at once, with what others have in them.
    fn check_owner_of_snapshots(self: &Arc<Core>, ctx: &Ctx, snapshots: &State) -> Result<()> {
        if !ctx.check || ctx.cred.is_root() {
            return Ok(());
        }
        // Without its lock, which comes before those that the caller holds.
        let value = self.meta.get(&key::node(snapshots.node.parent))?;
        let owner = value.and_then(|value| Node::decode(&value)).map(|node| node.uid);
        match owner == Some(ctx.cred.uid) {
            true => Ok(()),
            false => Err(FsError::NotPermitted),
        }
    }

    /// Removes the places that collisions have left in a directory that is being removed.
    pub(super) fn delete_places(&self, step: &mut Step<'_>, dir: Ino) -> Result<()> {
        let (from, to) = key::places_of(dir);
        let mut marks = Vec::new();
        self.meta.scan(&from, &to, &mut |key, _| {
            marks.push(key.to_vec());
            std::ops::ControlFlow::Continue(())
        })?;
        for mark in marks {
            step.txn.delete(&mark)?;
        }
        Ok(())
    }
}

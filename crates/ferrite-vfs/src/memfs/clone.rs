//! Clones of trees and snapshots, by copying everything.

use std::collections::BTreeMap;

use super::state::{Node, State};
use crate::{Ctx, FileKind, FsError, Ino, InodeFlags, LINK_MAX, NameChange, Result, Timestamp, posix};

/// A clone, or a snapshot in its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum As {
    Clone,
    Snapshot,
}

/// A clone keeps the owner and the mode, which only the owner and root may give; and only root may make devices.
fn check_owner(ctx: &Ctx, node: &Node) -> Result<()> {
    match ctx.check && !ctx.cred.is_root() && node.attr.uid != ctx.cred.uid {
        true => Err(FsError::NotPermitted),
        false if ctx.check => posix::may_mknod(node.attr.kind, &ctx.cred),
        false => Ok(()),
    }
}

impl State {
    /// Takes a snapshot of the directory that a directory of snapshots is in.
    pub(super) fn take_snapshot(&mut self, ctx: &Ctx, snapshots: Ino, name: &[u8]) -> Result<Ino> {
        let source = self.node(snapshots)?.parent;
        self.clone_to(ctx, source, (snapshots, name), As::Snapshot)
    }

    /// Clones an inode and everything below it to a new name.
    pub(super) fn clone_to(&mut self, ctx: &Ctx, ino: Ino, (parent, name): (Ino, &[u8]), as_what: As) -> Result<Ino> {
        posix::check_name(name)?;
        let node = self.node(ino).map_err(|_| FsError::NotFound)?;
        let (kind, nlink) = (node.attr.kind, node.attr.nlink);
        check_owner(ctx, node)?;
        let dir = match nlink {
            0 => return Err(FsError::NotFound),
            _ => self.live_dir(parent)?,
        };
        let taken = dir.entries.contains_key(name);
        if ctx.check {
            posix::may_create(&dir.guarded(&ctx.cred)?, &ctx.cred, taken)?;
            posix::may_mknod(kind, &ctx.cred)?;
        }
        match () {
            () if taken => return Err(FsError::Exists),
            () if as_what == As::Clone => dir.may_change_names(NameChange::Adds)?,
            () => {}
        }
        if kind == FileKind::Directory && dir.attr.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let now = self.now();
        let made = self.clone_tree(ctx, ino, now, as_what)?;
        self.enter(parent, name, made, now)?;
        Ok(made)
    }

    /// The same; the clone has no name yet. On an error nothing has changed.
    fn clone_tree(&mut self, ctx: &Ctx, ino: Ino, now: Timestamp, as_what: As) -> Result<Ino> {
        let mut clones = BTreeMap::new();
        self.collect(ctx, ino, &mut clones)?;
        for (&ino, &clone) in &clones {
            let original = self.node(ino)?.clone();
            let mut node = cloned(ctx, &original, clone, &clones, now);
            node.in_snapshot = as_what == As::Snapshot;
            self.nodes.insert(clone, node);
        }
        self.next_ino += clones.len() as u64;
        // Each file has as many names as lead to it within the clone.
        let names: Vec<Ino> = clones
            .values()
            .flat_map(|clone| self.nodes[clone].entries.values())
            .map(|&(ino, _)| ino)
            .collect();
        for name in names {
            let node = self.node(name)?;
            node.attr.nlink += u32::from(!node.is_dir());
        }
        let top = clones[&ino];
        let node = self.node(top)?;
        node.attr.nlink = if node.is_dir() { node.attr.nlink } else { 1 };
        Ok(top)
    }

    /// Numbers for the clones of an inode and of everything below it.
    fn collect(&mut self, ctx: &Ctx, ino: Ino, clones: &mut BTreeMap<Ino, Ino>) -> Result<()> {
        let number = self.next_ino + clones.len() as u64;
        let node = self.node(ino)?;
        check_owner(ctx, node)?;
        clones.entry(ino).or_insert(number);
        let below: Vec<Ino> = node.entries.values().map(|&(ino, _)| ino).collect();
        for ino in below {
            if !self.node(ino)?.holds_snapshots {
                self.collect(ctx, ino, clones)?;
            }
        }
        Ok(())
    }

    /// Removes a tree whose name is gone. Files that are open stay until they are closed.
    pub(super) fn drop_tree(&mut self, top: Ino, now: Timestamp) -> Result<()> {
        let entries = std::mem::take(&mut self.node(top)?.entries);
        self.node(top)?.listing.clear();
        for (ino, _) in entries.into_values() {
            match self.node(ino)?.is_dir() {
                true => self.drop_tree(ino, now)?,
                false => self.drop_link(ino, now)?,
            }
        }
        self.drop_link(top, now)
    }
}

/// The clone of one inode. A file has no names yet.
fn cloned(ctx: &Ctx, original: &Node, ino: Ino, clones: &BTreeMap<Ino, Ino>, now: Timestamp) -> Node {
    let mut node = original.clone();
    node.xattrs.retain(|name, _| !posix::is_own_xattr(name));
    if ctx.check && !ctx.cred.is_root() {
        // As with other files that a user makes.
        node.xattrs
            .retain(|name, _| name != posix::CAPABILITY && posix::sees_xattr(&ctx.cred, name));
        if !node.is_dir() && !ctx.cred.in_group(node.attr.gid) {
            node.attr.mode &= !posix::S_ISGID;
        }
    }
    node.attr.ino = ino;
    node.attr.generation = 1;
    node.attr.ctime = now;
    node.attr.btime = now;
    node.attr.change = 1;
    node.pins = 0;
    node.flags = InodeFlags::NONE;
    // Pages that are only reserved are holes in the clone.
    node.content.drop_reserved();
    if let Some(&parent) = clones.get(&node.parent) {
        node.parent = parent;
    }
    let left_out: Vec<Vec<u8>> = node
        .entries
        .iter()
        .filter(|(_, (ino, _))| !clones.contains_key(ino))
        .map(|(name, _)| name.clone())
        .collect();
    for name in left_out {
        if let Some((_, cookie)) = node.entries.remove(&name) {
            node.listing.remove(&cookie);
            node.attr.nlink -= 1;
        }
    }
    for (ino, _) in node.entries.values_mut() {
        *ino = clones[ino];
    }
    node.holds_snapshots = false;
    if !node.is_dir() {
        node.attr.nlink = 0;
    }
    node
}

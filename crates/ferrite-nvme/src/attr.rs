//! Attributes and extended attributes.
//!
//! A directory's mode and owner stand in its edge, too, so a change of them locks the name first; a file's stand in its
//! node alone. A new size is part of the same transaction; what a shorter file leaves behind in its blob is cut off
//! afterwards, and by the next start if there is a crash in between: until then no byte of it can be read, since every
//! read ends at the size.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrite_vfs::posix::{self, Access};
use ferrite_vfs::{
    Attr, BadArgument, Ctx, FileKind, FsError, Ino, InodeFlags, Outcome, ROOT_INO, Result, SetAttr, SetTime, SpaceOf,
    UserQuotas, XATTR_NAME_MAX, XATTR_SIZE_MAX, XattrMode, acl,
};

use crate::FILE_BYTES_MAX;
use crate::blobs::space_in_one;
use crate::content::Change;
use crate::content_store::{self, Blob, Place, truncate_to};
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::{Content, Edge, Node};
use crate::format::tail::Tail;
use crate::inode_ref::InodeRef;
use crate::names::missing;
use crate::quotas::owners_of;
use crate::rights::{AclEdit, Left, Wanted};
use crate::table::{State, Turn};

/// How often a change of a directory looks for its name again, because it was renamed meanwhile.
const RACES_MAX: usize = 64;

/// A file that grows by at most this part of the free space, without a write, gets its space at once.
const PREALLOCATED_SHARE: u64 = 8;

/// Preallocates space for a blob, if there is enough.
fn preallocate(blob: &dyn Blob, from: u64, to: u64) -> content_store::Result<()> {
    match blob.reserve(from, to - from, None) {
        Err(content_store::Error::NoSpace) => Ok(()),
        other => other,
    }
}

/// The work that a new size leaves for after its commit.
#[derive(Default)]
struct Resized {
    /// The file no longer has its blob.
    is_emptied: bool,
    /// That blob, if no other file has it.
    freed: Option<Place>,
    /// The blob that is longer than the file.
    truncated: Option<Arc<dyn Blob>>,
}

impl Core {
    /// Whether a file that is extended this much gets its space at once (RUFS, section 2.4), given this much free space
    /// in one store, since a blob lies in one. A file that is meant to be sparse is long compared with the free space.
    fn preallocates(&self, bytes: u64, free_bytes: u64) -> bool {
        self.content_limits.has_reservations && bytes <= free_bytes / PREALLOCATED_SHARE
    }

    /// The node after a change of attributes that the rules allow.
    fn changed(
        &self,
        ctx: &Ctx,
        pinned: &InodeRef,
        state: &mut State,
        wanted: &Wanted<'_>,
    ) -> Result<(Node, SetAttr, Left)> {
        let mut set = wanted.set;
        posix::check_owner(&set)?;
        if ctx.check {
            let guarded = self.guarded(ctx, pinned, state)?;
            set = posix::may_setattr(&guarded, &ctx.cred, &set, wanted.opened)?;
            if let Some(acl) = &wanted.acl {
                posix::may_xattr(&guarded, &ctx.cred, acl.name, Access::WRITE)?;
            }
        }
        if set.size != Some(0) {
            self.settle(state)?;
        }
        let mut node = pinned.present(state);
        let now = self.now();
        if let Some(size) = set.size {
            match node.kind {
                FileKind::File if size > FILE_BYTES_MAX => return Err(FsError::FileTooBig),
                FileKind::File => {}
                FileKind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid(BadArgument::NoSize)),
            }
            node.size = size;
            node.mtime = now;
        }
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let old_gid = node.gid;
        node.mode = set.mode.unwrap_or(node.mode) & 0o7777;
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        node.atime = set.atime.map_or(node.atime, time);
        node.mtime = set.mtime.map_or(node.mtime, time);
        if set.kill_priv {
            node.mode = posix::kill_priv_by(&ctx.cred, node.kind, node.mode, old_gid);
        }
        let left = self.follow(ctx, pinned.ino, state, &mut node, &set, wanted.acl.as_ref())?;
        // The directory of snapshots follows its parent to another owner.
        let is_free = state.node.marks.holds_snapshots && wanted.acl.is_none();
        if state.node.is_kept_as_is() && !is_free {
            return Err(FsError::ReadOnly);
        }
        match wanted.acl {
            Some(_) => node.flags.check_change()?,
            None => node.flags.check_set(&set)?,
        }
        if set != SetAttr::default() || wanted.acl.is_some() {
            (node.ctime, node.change) = (now, self.next_change());
        }
        Ok((node, set, left))
    }

    /// Changes attributes.
    pub(crate) fn setattr(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        pinned: &InodeRef,
        wanted: &Wanted<'_>,
        outcome: impl FnOnce(Attr) -> Outcome,
    ) -> Result<Attr> {
        let is_dir = pinned.read()?.node.is_dir();
        if is_dir && pinned.ino != ROOT_INO {
            return self.setattr_dir(ctx, step, pinned, wanted, outcome);
        }
        let mut state = pinned.write()?;
        self.setattr_file(ctx, step, pinned, &mut state, wanted, outcome)
    }

    /// The same, for an inode that no edge repeats and whose state the caller has exclusively.
    pub(crate) fn setattr_file(
        &self,
        ctx: &Ctx,
        mut step: Step<'_>,
        pinned: &InodeRef,
        state: &mut State,
        wanted: &Wanted<'_>,
        outcome: impl FnOnce(Attr) -> Outcome,
    ) -> Result<Attr> {
        let (mut node, set, left) = self.changed(ctx, pinned, state, wanted)?;
        let old_size = state.node.size;
        let owners = step.count_attributes(pinned.ino, &state.node, &node)?;
        if set.size.is_some_and(|size| size > 0 && size != old_size) {
            self.own_blob(pinned, state)?;
            node.content.clone_from(&state.node.content);
            node.marks = state.node.marks;
            node.allocated_bytes = state.node.allocated_bytes;
        }
        let grows_to = set.size.filter(|&size| size > old_size);
        if let (Content::Inline(_) | Content::Beside(_), Some(size)) = (&node.content, grows_to)
            && !self.is_small(size)
            && self.preallocates(size, space_in_one(&*self.content))
        {
            let attr = node.attr(pinned.ino);
            let change = Change {
                node,
                left,
                takes_rights: false,
                is_in_place: false,
                wanted_bytes: size,
                owners,
            };
            let outcome = || outcome(Attr { change: 0, ..attr });
            self.move_out(step, pinned, state, change, outcome, |blob| preallocate(blob, 0, size))?;
            return Ok(self.attr(pinned, state));
        }
        if let (Content::Blob(place), Some(size)) = (&node.content, grows_to)
            && self.preallocates(size - old_size, self.content.space(place.store)?.free_bytes)
        {
            // A crash before the new size is stored leaves the blob space that no reader sees; a refusal must not.
            step.admit()?;
            let blob = self.blob_of(pinned.ino, state)?;
            truncate_to(&**blob, old_size)?;
            preallocate(&**blob, old_size, size)?;
        }
        // Its flags let it, as was checked.
        step.ignore_flags();
        let resized = match set.size {
            Some(size) => self.resize(&mut step, pinned, state, &mut node, size)?,
            None => Resized::default(),
        };
        left.put_for(&mut step, pinned.ino, (owners, state.node.has_xattrs))?;
        step.put_node(pinned.ino, &node)?;
        let attr = node.attr(pinned.ino);
        step.commit(|| outcome(Attr { change: 0, ..attr }))?;
        self.after_resize(pinned.ino, state, &node, resized);
        self.count_small(Some(&state.node.content), Some(&node.content));
        pinned.adopt(state, node);
        Ok(self.attr(pinned, state))
    }

    /// Gives the content its new size, in `node` and in the transaction, as far as that may come before the commit.
    fn resize(
        &self,
        step: &mut Step<'_>,
        pinned: &InodeRef,
        state: &State,
        node: &mut Node,
        size: u64,
    ) -> Result<Resized> {
        let old_size = state.node.size;
        let mut resized = Resized::default();
        match &mut node.content {
            Content::Inline(bytes) => bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX)),
            Content::Beside(beside) if size < beside.len_bytes.into() => {
                let mut bytes = match size {
                    0 => Vec::new(),
                    _ => self.small(pinned.ino, &state.node)?.into_owned(),
                };
                bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX));
                node.content = self.put_small(step, pinned.ino, &state.node.content, bytes)?;
            }
            Content::Beside(_) => {}
            // The usual reason to empty a file is to write new content.
            Content::Blob(_) if size == 0 => {
                resized.is_emptied = true;
                resized.freed = self.drop_blob(step, pinned.ino, &state.node)?;
                node.marks.is_shared = false;
                if state.is_ahead {
                    step.txn.delete(&key::ahead(pinned.ino))?;
                }
                node.content = Content::Inline(Vec::new());
                node.allocated_bytes = 0;
            }
            Content::Blob(_) if size < old_size => {
                resized.truncated = Some(Arc::clone(self.blob_of(pinned.ino, state)?));
                // The next start checks whether it was truncated.
                step.txn.put(&key::ahead(pinned.ino), b"")?;
            }
            Content::Blob(_) if size > old_size => {
                let blob = self.blob_of(pinned.ino, state)?;
                truncate_to(&**blob, old_size)?;
                // A change that failed may have left something there, which must not show, also after a crash.
                if !self.content_limits.is_durable_at_once {
                    blob.sync()?;
                }
            }
            Content::Blob(_) => {}
        }
        Ok(resized)
    }

    /// Frees what the committed size gives up. A crash before it is harmless: the next start finds the keys `detached`
    /// and `ahead`.
    fn after_resize(&self, ino: Ino, state: &mut State, node: &Node, resized: Resized) {
        if resized.is_emptied {
            state.blob = std::sync::OnceLock::new();
            state.is_ahead = false;
        }
        if let Some(place) = resized.freed {
            self.housekeeper.delete_later(place);
        }
        if let Some(blob) = resized.truncated {
            state.is_ahead = true;
            let tail = Tail::of(ino, node);
            if let Err(error) = blob.truncate(node.size, Some(&tail.encode())) {
                // The change is complete as far as any caller can see; the rest is truncated before the file grows
                // again.
                tracing::warn!(ino, %error, "a blob could not be truncated");
                self.check_owned();
            }
        }
    }

    fn setattr_dir(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        pinned: &InodeRef,
        wanted: &Wanted<'_>,
        outcome: impl FnOnce(Attr) -> Outcome,
    ) -> Result<Attr> {
        let mut step = step;
        for _ in 0..RACES_MAX {
            let (parent, name) = {
                let state = pinned.read()?;
                let Content::Inline(name) = &state.node.content else {
                    return Err(FsError::damaged(
                        pinned.ino,
                        "a directory whose name is not in its node",
                    ));
                };
                (state.node.parent, name.clone())
            };
            // A directory that was removed has no edge any more.
            let dir = match self.pin(parent) {
                Err(FsError::Stale) => None,
                other => Some(other?),
            };
            let dir_state = dir.as_ref().map(|dir| dir.read_dir(Turn::First)).and_then(Result::ok);
            let slot = match &dir_state {
                Some(_) => Some(self.lock_name(&mut step, parent, &name)?),
                None => None,
            };
            let mut state = pinned.write()?;
            let is_here = slot
                .as_ref()
                .is_some_and(|slot| slot.found.is_some_and(|edge| edge.ino == pinned.ino));
            if !is_here && state.node.nlink > 0 {
                drop(state);
                step = self.step_of(ctx);
                continue;
            }
            let (node, _, left) = self.changed(ctx, pinned, &mut state, wanted)?;
            if node.marks.holds_snapshots {
                step.may_change_snapshots();
            }
            step.ignore_flags();
            let owners = step.count_attributes(pinned.ino, &state.node, &node)?;
            left.put_for(&mut step, pinned.ino, (owners, state.node.has_xattrs))?;
            step.put_node(pinned.ino, &node)?;
            if let Some(slot) = slot.filter(|_| is_here) {
                self.put_edge(&mut step, parent, &name, slot, &Edge::to(pinned.ino, &node))?;
            }
            let attr = node.attr(pinned.ino);
            step.commit(|| outcome(Attr { change: 0, ..attr }))?;
            pinned.adopt(&mut state, node);
            return Ok(self.attr(pinned, &state));
        }
        Err(FsError::Busy)
    }

    pub(crate) fn getxattr(self: &Arc<Core>, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let pinned = self.pin(ino)?;
        let state = pinned.read()?;
        if ctx.check {
            posix::may_xattr(&self.guarded(ctx, &pinned, &state)?, &ctx.cred, name, Access::READ)?;
        }
        self.xattrs(ino, &state.node)?.remove(name).ok_or(FsError::NoAttribute)
    }

    pub(crate) fn listxattr(self: &Arc<Core>, ctx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let pinned = self.pin(ino)?;
        let state = pinned.read()?;
        let mut names: Vec<_> = self.xattrs(ino, &state.node)?.into_keys().collect();
        names.retain(|name| !UserQuotas::is_kept_in(name) && (!ctx.check || posix::sees_xattr(&ctx.cred, name)));
        Ok(names)
    }

    pub(crate) fn setxattr(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
    ) -> Result<()> {
        check_xattr_name(name)?;
        if acl::is_acl(name) {
            return self.change_acl(
                ctx,
                step,
                ino,
                AclEdit {
                    name,
                    value: Some(value),
                    mode,
                },
            );
        }
        self.change_xattrs(ctx, step, ino, name, |xattrs| {
            if value.len() > XATTR_SIZE_MAX {
                return Err(FsError::ValueTooLong);
            }
            match (mode, xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(FsError::Exists),
                (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
                _ => {}
            }
            xattrs.insert(name.to_vec(), value.to_vec());
            match posix::xattrs_fit(xattrs.iter().map(|(name, value)| (&name[..], &value[..]))) {
                true => Ok(()),
                false => Err(FsError::NoSpace(SpaceOf::Attributes)),
            }
        })
    }

    pub(crate) fn removexattr(self: &Arc<Core>, ctx: &Ctx, step: Step<'_>, ino: Ino, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        if acl::is_acl(name) {
            let mode = XattrMode::Replace;
            return self.change_acl(
                ctx,
                step,
                ino,
                AclEdit {
                    name,
                    value: None,
                    mode,
                },
            );
        }
        self.change_xattrs(ctx, step, ino, name, |xattrs| {
            xattrs.remove(name).map(drop).ok_or(FsError::NoAttribute)
        })
    }

    /// Changes an access control list, and the mode with it.
    fn change_acl(self: &Arc<Core>, ctx: &Ctx, step: Step<'_>, ino: Ino, acl: AclEdit<'_>) -> Result<()> {
        let wanted = Wanted {
            acl: Some(acl),
            ..Wanted::of(&SetAttr::default(), false)
        };
        let pinned = self.pin(ino)?;
        self.setattr(ctx, step, &pinned, &wanted, |_| Outcome::Done).map(drop)
    }

    /// Edits all extended attributes of an inode, because of one of them.
    pub(crate) fn change_xattrs(
        self: &Arc<Core>,
        ctx: &Ctx,
        mut step: Step<'_>,
        ino: Ino,
        name: &[u8],
        change: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>) -> Result<()>,
    ) -> Result<()> {
        let pinned = self.pin(ino)?;
        let mut state = pinned.write()?;
        if ctx.check {
            posix::may_xattr(&self.guarded(ctx, &pinned, &state)?, &ctx.cred, name, Access::WRITE)?;
        }
        let mut xattrs = self.xattrs(ino, &state.node)?;
        change(&mut xattrs)?;
        self.settle(&state)?;
        let mut node = pinned.present(&state);
        node.has_xattrs = !xattrs.is_empty();
        if posix::is_own_xattr(name) {
            step.may_change_snapshots();
            step.ignore_flags();
            // Clients that fill a quota must not keep their service from this.
            step.is_limited = false;
        } else {
            (node.ctime, node.change) = (self.now(), self.next_change());
        }
        self.put_xattrs(&mut step, ino, (owners_of(&node), state.node.has_xattrs), &xattrs)?;
        step.put_node(ino, &node)?;
        step.commit(|| Outcome::Done)?;
        state.lacks_capability = false;
        pinned.adopt(&mut state, node);
        Ok(())
    }

    /// Sets the flags of an inode, for a caller who may.
    pub(crate) fn set_flags(
        self: &Arc<Core>,
        ctx: &Ctx,
        mut step: Step<'_>,
        ino: Ino,
        flags: InodeFlags,
    ) -> Result<()> {
        let pinned = self.pin(ino)?;
        let mut state = pinned.write()?;
        flags.check_kind(state.node.kind)?;
        if ctx.check {
            state.node.flags.may_become(flags, &ctx.cred, state.node.uid)?;
        }
        if state.is_ahead {
            // The node that is stored below says what the blob knows.
            self.store_node(&pinned, &mut state)?;
        }
        let mut node = pinned.present(&state);
        node.flags = flags;
        (node.ctime, node.change) = (self.now(), self.next_change());
        step.ignore_flags();
        step.put_node(ino, &node)?;
        step.commit(|| Outcome::Done)?;
        pinned.adopt(&mut state, node);
        Ok(())
    }

    pub(crate) fn readlink(self: &Arc<Core>, ino: Ino) -> Result<Vec<u8>> {
        let pinned = self.pin(ino)?;
        let state = pinned.read()?;
        match (&state.node.kind, &state.node.content) {
            (FileKind::Symlink, Content::Inline(target)) => Ok(target.clone()),
            (FileKind::Symlink, _) => Err(FsError::damaged(ino, "a link whose target is not in its node")),
            _ => Err(FsError::Invalid(BadArgument::NotLink)),
        }
    }

    /// The directory that holds a directory.
    pub(crate) fn parent(self: &Arc<Core>, ctx: &Ctx, dir: Ino) -> Result<Ino> {
        let pinned = self.dir(dir)?;
        let state = pinned.read().map_err(missing)?;
        crate::names::is_dir(&state)?;
        if ctx.check {
            posix::may_search(&self.guarded(ctx, &pinned, &state)?, &ctx.cred)?;
        }
        Ok(state.node.parent)
    }
}

impl Tail {
    /// Size and times of a node, for its blob.
    pub(crate) fn of(ino: Ino, node: &Node) -> Tail {
        Tail {
            ino,
            size: node.size,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
            change: node.change,
        }
    }

    /// Moves a node to where its blob is ahead.
    pub(crate) fn update(&self, node: &mut Node) {
        node.size = self.size;
        node.atime = self.atime;
        node.mtime = self.mtime;
        node.ctime = self.ctime;
        node.change = self.change;
    }
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(FsError::Invalid(BadArgument::EmptyAttributeName)),
        // Quotas that are changed by them would count wrong.
        1..=XATTR_NAME_MAX if UserQuotas::is_kept_in(name) => Err(FsError::NotPermitted),
        1..=XATTR_NAME_MAX => Ok(()),
        _ => Err(FsError::Range),
    }
}

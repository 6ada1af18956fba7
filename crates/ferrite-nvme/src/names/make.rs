//! Finding and making: lookups, new inodes, further names.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_vfs::{
    Attr, Ctx, FileKind, FsError, Ino, InodeFlags, LINK_MAX, NO_NAME, NewFile, OpenMode, Opened, Outcome, ROOT_INO,
    Result, SNAPSHOTS_NAME, SYSTEM, SetAttr, acl, posix,
};

use super::{is_dir, is_live_dir, missing};
use crate::content::NvmeFile;
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::{Content, Edge, Marks, Node};
use crate::inode_ref::InodeRef;
use crate::quotas::{Account, Owners, owners_of};
use crate::rights::{Wanted, Xattrs};
use crate::table::{State, Turn};

/// How often a lookup starts over because the inode it found was removed meanwhile.
const RACES_MAX: usize = 64;
/// How often it does so before it keeps others off the name.
const RACES_UNLOCKED: usize = 8;

/// A new inode.
pub(crate) struct New<'n> {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) rdev: u32,
    /// Target of a link.
    pub(crate) target: &'n [u8],
}

impl New<'_> {
    pub(crate) fn of(kind: FileKind, mode: u32) -> Self {
        New {
            kind,
            mode,
            rdev: 0,
            target: b"",
        }
    }
}

/// Makes a new directory the one of the snapshots of its parent. It belongs to the owner of that, who alone may take
/// snapshots, besides root.
fn hold_snapshots(ctx: &Ctx, parent: &Attr, node: &mut Node) -> Result<()> {
    if ctx.check && !ctx.cred.is_root() && ctx.cred.uid != parent.uid {
        return Err(FsError::NotPermitted);
    }
    (node.uid, node.gid) = (parent.uid, parent.gid);
    node.marks.holds_snapshots = true;
    Ok(())
}

impl Core {
    /// Attributes for a caller, which gets a pin if it asks for one.
    pub(crate) fn give(&self, ctx: &Ctx, pinned: InodeRef, attr: Attr) -> Attr {
        if ctx.pins && attr.ino != ROOT_INO {
            pinned.leave();
        }
        attr
    }

    pub(crate) fn lookup(self: &Arc<Core>, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr> {
        posix::check_name(name)?;
        let dir = self.dir(parent)?;
        for race in 0..RACES_MAX {
            {
                let state = dir.read().map_err(missing)?;
                is_dir(&state)?;
                if ctx.check {
                    posix::may_search(&self.guarded(ctx, &dir, &state)?, &ctx.cred)?;
                }
            }
            // Others that replace the name all the time would win each race against a caller that is rarely scheduled.
            let mut step = (race >= RACES_UNLOCKED && !self.is_read_only).then(|| self.step_of(SYSTEM));
            if let Some(step) = &mut step {
                self.lock_name(step, parent, name)?;
            }
            let is_still = step.is_some() || self.is_read_only;
            match self.look(parent, name)? {
                Ok((pinned, attr)) => return Ok(self.give(ctx, pinned, attr)),
                Err(edge) if is_still => return Err(self.dangling(parent, edge.ino, FsError::Stale)),
                Err(_) => {}
            }
        }
        Err(FsError::Busy)
    }

    /// One try of a lookup: the inode and its attributes while the name led there, or the name's target if something
    /// was removed meanwhile.
    fn look(self: &Arc<Core>, parent: Ino, name: &[u8]) -> Result<std::result::Result<(InodeRef, Attr), Edge>> {
        let lost_before = self.names_lost.load(Ordering::Acquire);
        let edge = self.find(parent, name)?.ok_or(FsError::NotFound)?;
        let found = self.pin(edge.ino).and_then(|pinned| {
            let state = pinned.read()?;
            let attr = self.attr(&pinned, &state);
            // An operation that removes a name holds the inode exclusively: if none was removed meanwhile, or the
            // name is still there now, name and attributes come from one moment.
            let is_same = self.names_lost.load(Ordering::Acquire) == lost_before
                || self.find(parent, name)?.is_some_and(|now| now.ino == edge.ino);
            drop(state);
            match is_same {
                true => Ok((pinned, attr)),
                false => Err(FsError::Stale),
            }
        });
        match found {
            Err(FsError::Stale) => Ok(Err(edge)),
            other => other.map(Ok),
        }
    }

    /// Creates an inode with a name. A token keeps `outcome` of its attributes.
    pub(crate) fn make(
        self: &Arc<Core>,
        ctx: &Ctx,
        mut step: Step<'_>,
        parent: Ino,
        name: &[u8],
        new: &New<'_>,
        outcome: impl FnOnce(Attr) -> Outcome,
    ) -> Result<(InodeRef, Attr)> {
        posix::check_name(name)?;
        let dir = self.dir(parent)?;
        let makes_dir = new.kind == FileKind::Directory;
        // A directory's number of links changes with its subdirectories.
        if makes_dir {
            let mut state = dir.write_dir(Turn::First).map_err(missing)?;
            let made = self.make_in(ctx, &mut step, &dir, &state, name, new)?;
            let nlink = state.node.nlink + 1;
            let made = self.finish(step, &dir, &state, made, Some(nlink), outcome)?;
            state.node.nlink = nlink;
            Ok(made)
        } else {
            let state = dir.read_dir(Turn::First).map_err(missing)?;
            let made = self.make_in(ctx, &mut step, &dir, &state, name, new)?;
            self.finish(step, &dir, &state, made, None, outcome)
        }
    }

    fn make_in(
        &self,
        ctx: &Ctx,
        step: &mut Step<'_>,
        dir: &InodeRef,
        state: &State,
        name: &[u8],
        new: &New<'_>,
    ) -> Result<(Ino, Node)> {
        is_live_dir(state)?;
        let slot = self.lock_name(step, dir.ino, name)?;
        step.adds_to(dir.ino);
        let attr = self.attr(dir, state);
        let is_taken = slot.found.is_some();
        if ctx.check {
            posix::may_create(&self.guarded(ctx, dir, state)?, &ctx.cred, is_taken)?;
            posix::may_mknod(new.kind, &ctx.cred)?;
        }
        if is_taken {
            return Err(FsError::Exists);
        }
        let is_dir = new.kind == FileKind::Directory;
        if is_dir && attr.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let inline = if is_dir { name } else { new.target };
        let content = Content::Inline(inline.to_vec());
        let holds_snapshots = is_dir && name == SNAPSHOTS_NAME;
        let (ino, node) = self.new_with_lists(ctx, step, (dir, state), (new, holds_snapshots), content)?;
        self.put_edge(step, dir.ino, name, slot, &Edge::to(ino, &node))?;
        Ok((ino, node))
    }

    /// An inode that the caller creates in the directory of `dir`, counted by a quota.
    pub(super) fn new_node(
        &self,
        ctx: &Ctx,
        (dir, quota): (&Attr, Ino),
        new: &New<'_>,
        content: Content,
    ) -> Result<(Ino, Node)> {
        let is_dir = new.kind == FileKind::Directory;
        let posix::Inherited { gid, mode } = posix::inherit(dir, &ctx.cred, new.mode, is_dir);
        let now = self.now();
        let ino = self.next_ino()?;
        let node = Node {
            kind: new.kind,
            mode,
            nlink: if is_dir { 2 } else { 1 },
            uid: ctx.cred.uid,
            gid,
            rdev: new.rdev,
            size: new.target.len() as u64,
            allocated_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: self.next_change(),
            parent: dir.ino,
            has_xattrs: false,
            is_nameless: false,
            marks: Marks::default(),
            quota,
            flags: InodeFlags::NONE,
            content,
        };
        Ok((ino, node))
    }

    /// An inode with the access control lists that it inherits from a directory, in `step`, which does not put the
    /// inode itself.
    fn new_with_lists(
        &self,
        ctx: &Ctx,
        step: &mut Step<'_>,
        (dir, state): (&InodeRef, &State),
        (new, holds_snapshots): (&New<'_>, bool),
        content: Content,
    ) -> Result<(Ino, Node)> {
        let default = self.xattrs(dir.ino, &state.node)?.remove(acl::DEFAULT);
        let lists = acl::inherit(default.as_deref(), new.kind, new.mode, ctx.umask)?;
        let new = &New {
            mode: lists.mode,
            ..*new
        };
        let quota = state.node.inherited_quota();
        let attr = self.attr(dir, state);
        let (ino, mut node) = self.new_node(ctx, (&attr, quota), new, content)?;
        if holds_snapshots {
            hold_snapshots(ctx, &attr, &mut node)?;
        }
        let xattrs: Xattrs = lists.attributes().collect();
        if !xattrs.is_empty() {
            self.put_xattrs(step, ino, (owners_of(&node), false), &xattrs)?;
            node.has_xattrs = true;
        }
        Ok((ino, node))
    }

    /// Creates a file without a name in a directory, which stays as it is: an orphan from its first step on.
    fn make_nameless(
        self: &Arc<Core>,
        ctx: &Ctx,
        mut step: Step<'_>,
        parent: Ino,
        new: &NewFile,
        outcome: impl FnOnce(Attr) -> Outcome,
    ) -> Result<(InodeRef, Attr)> {
        let dir = self.dir(parent)?;
        let state = dir.read_dir(Turn::First).map_err(missing)?;
        is_live_dir(&state)?;
        if ctx.check {
            posix::may_create(&self.guarded(ctx, &dir, &state)?, &ctx.cred, false)?;
        }
        step.adds_to(dir.ino);
        step.guard(dir.ino, &state.node);
        let of = New::of(FileKind::File, new.mode);
        let empty = Content::Inline(Vec::new());
        let (ino, mut node) = self.new_with_lists(ctx, &mut step, (&dir, &state), (&of, false), empty)?;
        node.nlink = 0;
        node.is_nameless = !new.exclusive;
        step.txn.put(&key::orphan(ino), b"")?;
        self.commit_new(step, (ino, node), outcome)
    }

    fn finish(
        self: &Arc<Core>,
        mut step: Step<'_>,
        dir: &InodeRef,
        state: &State,
        made: (Ino, Node),
        nlink: Option<u32>,
        outcome: impl FnOnce(Attr) -> Outcome,
    ) -> Result<(InodeRef, Attr)> {
        let touch = self.touch(&mut step, dir, state, nlink)?;
        let made = self.commit_new(step, made, outcome)?;
        touch.done(dir);
        Ok(made)
    }

    /// Commits a step that makes an inode.
    fn commit_new(
        self: &Arc<Core>,
        mut step: Step<'_>,
        (ino, node): (Ino, Node),
        outcome: impl FnOnce(Attr) -> Outcome,
    ) -> Result<(InodeRef, Attr)> {
        step.count_new(ino, &node)?;
        // Other threads see the name as soon as it is there, maybe before the commit has returned. They wait here, and
        // change the inode that this thread still uses.
        let made = self.entry(ino);
        let mut made_state = made.state.write_ordered(ino);
        // A new inode may be one that callers do not change from then on.
        step.txn.put(&key::node(ino), &node.encode())?;
        let attr = node.attr(ino);
        step.commit(|| outcome(Attr { change: 0, ..attr }))?;
        made.init(&mut made_state, node, false);
        drop(made_state);
        self.inodes.fetch_add(1, Ordering::Relaxed);
        Ok((made, attr))
    }

    /// Gives an inode another name, or its first.
    pub(crate) fn link(
        self: &Arc<Core>,
        ctx: &Ctx,
        mut step: Step<'_>,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<(InodeRef, Attr)> {
        posix::check_name(name)?;
        self.settle_inode(ino, false)?;
        let file = self.pin(ino).map_err(missing)?;
        let dir = self.dir(parent)?;
        let dir_state = dir.read_dir(Turn::First).map_err(missing)?;
        is_live_dir(&dir_state)?;
        let slot = self.lock_name(&mut step, parent, name)?;
        step.adds_to(parent);
        let is_taken = slot.found.is_some();
        if ctx.check {
            posix::may_create(&self.guarded(ctx, &dir, &dir_state)?, &ctx.cred, is_taken)?;
        }
        // The directory itself cannot be locked a second time.
        if ino == parent {
            return Err(FsError::NotPermitted);
        }
        let mut state = file.write().map_err(missing)?;
        match () {
            () if state.node.is_dir() => return Err(FsError::NotPermitted),
            () if state.node.nlink == 0 && !state.node.is_nameless => return Err(FsError::NotFound),
            () if is_taken => return Err(FsError::Exists),
            () if state.node.nlink >= LINK_MAX => return Err(FsError::TooManyLinks),
            () => {}
        }
        let quota = dir_state.node.inherited_quota();
        // One without a name was made before the quota was set, or another's has ended.
        let has_ended = state.node.quota != 0 && self.quotas.find(Account::Tree(state.node.quota)).is_none();
        let may_move = state.node.nlink == 0 || has_ended;
        if state.node.quota != quota && !may_move {
            return Err(FsError::CrossDevice);
        }
        let now = self.now();
        self.put_edge(&mut step, parent, name, slot, &Edge::to(ino, &state.node))?;
        let touch = self.touch(&mut step, &dir, &dir_state, None)?;
        self.settle(&state)?;
        let mut node = file.present(&state);
        if node.nlink == 0 {
            step.txn.delete(&key::orphan(ino))?;
        }
        if node.quota != quota {
            let owners = Owners {
                tree: quota,
                ..owners_of(&node)
            };
            step.count_move(ino, &node, owners)?;
            node.quota = quota;
        }
        node.nlink += 1;
        node.is_nameless = false;
        (node.ctime, node.change) = (now, self.next_change());
        step.put_node(ino, &node)?;
        let attr = node.attr(ino);
        step.commit(|| Outcome::Attr(Attr { change: 0, ..attr }))?;
        touch.done(&dir);
        file.adopt(&mut state, node);
        drop(state);
        Ok((file, attr))
    }

    /// Opens the inode of a number.
    pub(crate) fn open_in(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Option<Step<'_>>,
        pinned: &InodeRef,
        mode: OpenMode,
        outcome: impl FnOnce(Attr) -> Outcome,
    ) -> Result<Attr> {
        let check = |state: &State| {
            if state.node.is_dir() {
                return Err(FsError::IsDirectory);
            }
            // Before the permissions, as in Linux.
            let is_kept = self.is_read_only || state.node.marks.in_snapshot;
            if state.node.kind == FileKind::File && mode.changes() {
                if is_kept {
                    return Err(FsError::ReadOnly);
                }
                state.node.flags.check_open(mode.write, mode.truncate)?;
            }
            if ctx.check {
                posix::may_open(&self.guarded(ctx, pinned, state)?, &ctx.cred, mode)?;
            }
            match state.node.kind {
                FileKind::File if mode.read && !mode.truncate => self.check_emptiness(pinned.ino, state),
                FileKind::File => Ok(()),
                _ => Err(FsError::NoSuchAddress),
            }
        };
        let Some(step) = step.filter(|_| mode.truncate || ctx.token.is_some()) else {
            let state = pinned.read()?;
            check(&state)?;
            return Ok(self.attr(pinned, &state));
        };
        let mut state = pinned.write()?;
        check(&state)?;
        if !mode.truncate {
            let attr = self.attr(pinned, &state);
            step.commit(|| outcome(attr))?;
            return Ok(attr);
        }
        let set = SetAttr {
            size: Some(0),
            kill_priv: ctx.kills_priv(),
            ..SetAttr::default()
        };
        self.setattr_file(
            &Ctx::trusted(ctx.cred.clone()),
            step,
            pinned,
            &mut state,
            &Wanted::of(&set, true),
            outcome,
        )
    }

    /// Creates a regular file and opens it, or opens the one that is there.
    pub(crate) fn create(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        parent: Ino,
        name: &[u8],
        new: &NewFile,
    ) -> Result<Opened> {
        let opened = |attr: Attr, created| Outcome::Opened {
            attr: Attr { change: 0, ..attr },
            created,
        };
        if name == NO_NAME {
            let (pinned, attr) = self.make_nameless(ctx, step, parent, new, |attr| opened(attr, true))?;
            return Ok(self.opened(ctx, pinned, attr, new.open, true));
        }
        // A caller that loses a race against another creator opens the file of the winner.
        self.may_search(ctx, parent)?;
        let mut step = Some(step);
        for _ in 0..RACES_MAX {
            // A caller that must not open an existing file finds it under the name's lock, and need not look before.
            let found = match new.exclusive {
                true => None,
                false => self.find(parent, name)?,
            };
            let Some(edge) = found else {
                let node = New::of(FileKind::File, new.mode);
                let Some(own) = step.take() else { break };
                match self.make(ctx, own, parent, name, &node, |attr| opened(attr, true)) {
                    Ok((pinned, attr)) => return Ok(self.opened(ctx, pinned, attr, new.open, true)),
                    Err(FsError::Exists) if !new.exclusive => {
                        step = Some(self.step_of(ctx));
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            };
            if edge.kind == FileKind::Symlink {
                return Err(FsError::Loop);
            }
            let pinned = match self.pin(edge.ino) {
                Err(FsError::Stale) => continue,
                other => other?,
            };
            let own = step.take().unwrap_or_else(|| self.step_of(ctx));
            match self.open_in(ctx, Some(own), &pinned, new.open, |attr| opened(attr, false)) {
                Ok(attr) => return Ok(self.opened(ctx, pinned, attr, new.open, false)),
                Err(FsError::Stale) => step = Some(self.step_of(ctx)),
                Err(error) => return Err(error),
            }
        }
        Err(FsError::Busy)
    }

    /// The same where nothing can be created: opens the file that is there.
    pub(crate) fn open_existing(
        self: &Arc<Core>,
        ctx: &Ctx,
        parent: Ino,
        name: &[u8],
        new: &NewFile,
    ) -> Result<Opened> {
        self.may_search(ctx, parent)?;
        let edge = self.find(parent, name)?.ok_or(FsError::ReadOnly)?;
        if new.exclusive {
            return Err(FsError::Exists);
        }
        if edge.kind == FileKind::Symlink {
            return Err(FsError::Loop);
        }
        let pinned = self.pin(edge.ino)?;
        let attr = self.open_in(ctx, None, &pinned, new.open, |_| Outcome::Done)?;
        Ok(self.opened(ctx, pinned, attr, new.open, false))
    }

    fn may_search(self: &Arc<Core>, ctx: &Ctx, parent: Ino) -> Result<()> {
        let dir = self.dir(parent)?;
        let state = dir.read().map_err(missing)?;
        is_live_dir(&state)?;
        match ctx.check {
            true => posix::may_search(&self.guarded(ctx, &dir, &state)?, &ctx.cred),
            false => Ok(()),
        }
    }

    /// Hands an open file to the caller of [`Self::create`].
    fn opened(&self, ctx: &Ctx, pinned: InodeRef, attr: Attr, mode: OpenMode, created: bool) -> Opened {
        let file = NvmeFile::new(pinned.clone(), mode);
        Opened {
            attr: self.give(ctx, pinned, attr),
            file: Arc::new(file),
            created,
        }
    }

    /// Opens by number.
    pub(crate) fn open(self: &Arc<Core>, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<(NvmeFile, Attr)> {
        let pinned = self.pin(ino)?;
        let attr = match mode.truncate {
            false => self.open_in(ctx, None, &pinned, mode, |_| Outcome::Done)?,
            true => {
                let step = self.step_of(ctx);
                self.open_in(ctx, Some(step), &pinned, mode, |attr| Outcome::Opened {
                    attr: Attr { change: 0, ..attr },
                    created: false,
                })?
            }
        };
        Ok((NvmeFile::new(pinned, mode), attr))
    }

    /// Opens again the file that a token opened before.
    pub(crate) fn open_again(self: &Arc<Core>, ctx: &Ctx, mode: OpenMode, outcome: Outcome) -> Result<Opened> {
        let Outcome::Opened { attr, created } = outcome else {
            return Err(FsError::Superseded);
        };
        let pinned = self.pin(attr.ino)?;
        let mode = OpenMode {
            truncate: false,
            ..mode
        };
        self.open_in(SYSTEM, None, &pinned, mode, |_| Outcome::Done)?;
        let file = NvmeFile::new(pinned.clone(), mode);
        let attr = self.give(ctx, pinned, attr);
        Ok(Opened {
            attr,
            file: Arc::new(file),
            created,
        })
    }
}

//! The reference engine's inodes, and all changes to them under its one lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::MAX_FILE_BYTES;
use super::data::{Content, PAGE_BYTES};
use crate::acl;
use crate::posix::Guarded;
use crate::{
    Attr, BadArgument, Cred, Ctx, DirEntry, FileKind, FsError, Ino, InodeFlags, LINK_MAX, NO_NAME, NameChange,
    ROOT_INO, RenameMode, Result, SNAPSHOTS_NAME, SetAttr, SetTime, Timestamp, posix,
};

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) content: Content,
    pub(super) target: Vec<u8>,
    /// Entries by name: inode and place in the listing.
    pub(super) entries: BTreeMap<Vec<u8>, (Ino, u64)>,
    /// Names by their place in the listing.
    pub(super) listing: BTreeMap<u64, Vec<u8>>,
    pub(super) next_cookie: u64,
    pub(super) parent: Ino,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) pins: u64,
    /// Its entries are snapshots of its parent.
    pub(super) holds_snapshots: bool,
    /// A part of a snapshot.
    pub(super) in_snapshot: bool,
    /// It never had a name, and may get one.
    pub(super) is_nameless: bool,
    pub(super) flags: InodeFlags,
}

/// Where the time comes from.
#[derive(Clone)]
pub(super) struct Clock(pub(super) Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) nodes: BTreeMap<Ino, Node>,
    pub(super) next_ino: Ino,
    pub(super) source: Clock,
    /// The last time returned; times never go back.
    pub(super) clock: Timestamp,
}

impl Node {
    pub(super) fn new(ino: Ino, parent: Ino, kind: FileKind, now: Timestamp) -> Node {
        let attr = Attr {
            ino,
            generation: 1,
            kind,
            mode: 0,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: 1,
        };
        Node {
            attr,
            content: Content::default(),
            target: Vec::new(),
            entries: BTreeMap::new(),
            listing: BTreeMap::new(),
            next_cookie: 1,
            parent,
            xattrs: BTreeMap::new(),
            pins: 0,
            holds_snapshots: false,
            in_snapshot: false,
            is_nameless: false,
            flags: InodeFlags::NONE,
        }
    }

    /// Whether callers may change it, as far as snapshots are concerned. An inode without names goes away.
    pub(super) fn is_outside_snapshots(&self) -> Result<()> {
        match self.is_read_only() && self.attr.nlink > 0 {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Whether callers may change it.
    pub(super) fn may_change(&self) -> Result<()> {
        self.is_outside_snapshots()?;
        self.flags.check_change()
    }

    /// Whether callers may change the names in it.
    pub(super) fn may_change_names(&self, change: NameChange) -> Result<()> {
        self.is_outside_snapshots()?;
        self.flags.check_names(change)
    }

    /// Sets the flags, for a caller who may.
    pub(super) fn set_flags(&mut self, ctx: &Ctx, flags: InodeFlags, now: Timestamp) -> Result<()> {
        flags.check_kind(self.attr.kind)?;
        if ctx.check {
            self.flags.may_become(flags, &ctx.cred, self.attr.uid)?;
        }
        self.is_outside_snapshots()?;
        self.flags = flags;
        self.touch(now);
        Ok(())
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.holds_snapshots || self.in_snapshot
    }

    pub(super) fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    /// As `cred` is checked against it.
    pub(super) fn guarded(&self, cred: &Cred) -> Result<Guarded> {
        Guarded::of(self.attr, cred, || Ok(self.xattrs.get(acl::ACCESS).cloned()))
    }

    /// Sets or removes an access control list.
    pub(super) fn set_acl(&mut self, cred: &Cred, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let Attr { kind, mode, gid, .. } = self.attr;
        let change = acl::set((kind, mode, gid), cred, name, value)?;
        self.attr.mode = change.mode;
        match change.value {
            Some(value) => self.xattrs.insert(name.to_vec(), value),
            None => self.xattrs.remove(name),
        };
        Ok(())
    }

    pub(super) fn attr(&self) -> Attr {
        Attr {
            blocks: self.content.pages() * (PAGE_BYTES / 512),
            ..self.attr
        }
    }

    /// The inode has changed.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.attr.ctime = now;
        self.attr.change += 1;
    }

    /// The content has changed.
    pub(super) fn changed(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.touch(now);
    }

    /// Its content or owner has changed.
    pub(super) fn take_capability(&mut self) {
        if self.attr.kind != FileKind::Directory {
            self.xattrs.remove(posix::CAPABILITY);
        }
    }

    /// `gid` is the group it has, or had before the change that clears setuid and setgid.
    pub(super) fn kill_priv(&mut self, cred: &Cred, gid: u32) {
        let attr = &mut self.attr;
        attr.mode = posix::kill_priv_by(cred, attr.kind, attr.mode, gid);
    }
}

impl State {
    pub(super) fn now(&mut self) -> Timestamp {
        self.clock = self.clock.max((self.source.0)());
        self.clock
    }

    pub(super) fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::Stale)
    }

    /// A directory in which names can be looked up.
    pub(super) fn dir(&mut self, ino: Ino) -> Result<&mut Node> {
        let node = self.node(ino).map_err(|_| FsError::NotFound)?;
        if node.is_dir() {
            Ok(node)
        } else {
            Err(FsError::NotDirectory)
        }
    }

    /// A directory to which names can be added.
    pub(super) fn live_dir(&mut self, ino: Ino) -> Result<&mut Node> {
        let node = self.dir(ino)?;
        if node.attr.nlink > 0 {
            Ok(node)
        } else {
            Err(FsError::NotFound)
        }
    }

    /// Whether callers may change the names in a directory.
    pub(super) fn may_change_names(&mut self, dir: Ino, change: NameChange) -> Result<()> {
        self.node(dir)?.may_change_names(change)
    }

    pub(super) fn find(&mut self, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        posix::check_name(name)?;
        let dir = self.dir(dir)?;
        if ctx.check {
            posix::may_search(&dir.guarded(&ctx.cred)?, &ctx.cred)?;
        }
        Ok(dir.entries.get(name).map(|&(ino, _)| ino))
    }

    /// The inode that a name leads to, if the caller may remove it.
    pub(super) fn find_removable(&mut self, ctx: &Ctx, dir: Ino, name: &[u8]) -> Result<Ino> {
        let ino = self.find(ctx, dir, name)?.ok_or(FsError::NotFound)?;
        if ctx.check {
            let victim = self.node(ino)?.attr;
            posix::may_delete(&self.node(dir)?.guarded(&ctx.cred)?, &victim, &ctx.cred)?;
        }
        Ok(ino)
    }

    /// Attributes for a caller, pinned if it asks for that.
    pub(super) fn give(&mut self, ctx: &Ctx, ino: Ino) -> Result<Attr> {
        let node = self.node(ino)?;
        node.pins += u64::from(ctx.pins && ino != ROOT_INO);
        Ok(node.attr())
    }

    pub(super) fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Timestamp) -> Result<()> {
        let is_dir = self.node(ino)?.is_dir();
        let parent = self.node(dir)?;
        parent.entries.insert(name.to_vec(), (ino, parent.next_cookie));
        parent.listing.insert(parent.next_cookie, name.to_vec());
        parent.next_cookie += 1;
        parent.attr.nlink += u32::from(is_dir);
        parent.changed(now);
        if is_dir {
            self.node(ino)?.parent = dir;
        }
        Ok(())
    }

    pub(super) fn leave(&mut self, dir: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let parent = self.node(dir)?;
        let (ino, cookie) = parent.entries.remove(name).ok_or(FsError::NotFound)?;
        parent.listing.remove(&cookie);
        let is_dir = self.node(ino)?.is_dir();
        let parent = self.node(dir)?;
        parent.attr.nlink -= u32::from(is_dir);
        parent.changed(now);
        Ok(())
    }

    /// Removes one name of an inode, and with the last name the inode.
    pub(super) fn drop_link(&mut self, ino: Ino, now: Timestamp) -> Result<()> {
        let node = self.node(ino)?;
        node.attr.nlink = if node.is_dir() { 0 } else { node.attr.nlink - 1 };
        node.touch(now);
        self.free_if_unused(ino);
        Ok(())
    }

    pub(super) fn free_if_unused(&mut self, ino: Ino) {
        if self
            .nodes
            .get(&ino)
            .is_some_and(|node| node.attr.nlink == 0 && node.pins == 0)
        {
            self.nodes.remove(&ino);
        }
    }

    pub(super) fn is_below(&self, dir: Ino, ancestor: Ino) -> bool {
        let mut at = dir;
        loop {
            if at == ancestor {
                return true;
            }
            match self.nodes.get(&at) {
                Some(node) if at != ROOT_INO => at = node.parent,
                _ => return false,
            }
        }
    }

    pub(super) fn make(&mut self, ctx: &Ctx, parent: Ino, name: &[u8], kind: FileKind, mode: u32) -> Result<&mut Node> {
        posix::check_name(name)?;
        self.make_in(ctx, parent, name, kind, mode)
    }

    /// A new inode in a directory; with [`NO_NAME`], one without links.
    pub(super) fn make_in(
        &mut self,
        ctx: &Ctx,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u32,
    ) -> Result<&mut Node> {
        let cred = &ctx.cred;
        let dir = self.live_dir(parent)?;
        let is_dir = kind == FileKind::Directory;
        let taken = dir.entries.contains_key(name);
        if ctx.check {
            posix::may_create(&dir.guarded(cred)?, cred, taken)?;
            posix::may_mknod(kind, cred)?;
        }
        if taken {
            return Err(FsError::Exists);
        }
        if is_dir && dir.attr.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let default = dir.xattrs.get(acl::DEFAULT).map(Vec::as_slice);
        let lists = acl::inherit(default, kind, mode, ctx.umask)?;
        let posix::Inherited { gid, mode } = posix::inherit(&dir.attr, cred, lists.mode, is_dir);
        let owner = (dir.attr.uid, dir.attr.gid);
        let holds_snapshots = is_dir && name == SNAPSHOTS_NAME;
        if holds_snapshots && ctx.check && !cred.is_root() && cred.uid != owner.0 {
            return Err(FsError::NotPermitted);
        }
        dir.may_change_names(NameChange::Adds)?;
        let now = self.now();
        let ino = self.next_ino;
        self.next_ino += 1;
        let mut node = Node::new(ino, parent, kind, now);
        node.attr.mode = mode;
        (node.attr.uid, node.attr.gid) = match holds_snapshots {
            true => owner,
            false => (cred.uid, gid),
        };
        node.holds_snapshots = holds_snapshots;
        node.xattrs.extend(lists.attributes());
        if name == NO_NAME {
            node.attr.nlink = 0;
            self.nodes.insert(ino, node);
            return self.node(ino);
        }
        self.nodes.insert(ino, node);
        self.enter(parent, name, ino, now)?;
        self.node(ino)
    }

    pub(super) fn check_rename(&mut self, from: (Ino, Ino), to: (Ino, Option<Ino>), mode: RenameMode) -> Result<bool> {
        let ((from_dir, source), (to_dir, target)) = (from, to);
        match (mode, target) {
            (mode, Some(_)) if mode.refuses_target() => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (_, Some(target)) if target == source => return Ok(false),
            _ => {}
        }
        let below = FsError::Invalid(BadArgument::BelowItself);
        let source_is_dir = self.node(source)?.is_dir();
        if source_is_dir && self.is_below(to_dir, source) {
            return Err(below);
        }
        let mut target_is_dir = false;
        if let Some(target) = target {
            let node = self.node(target)?;
            target_is_dir = node.is_dir();
            let empty = node.entries.is_empty();
            match mode {
                RenameMode::Exchange if target_is_dir && self.is_below(from_dir, target) => return Err(below),
                RenameMode::Exchange => {}
                _ if source_is_dir && !target_is_dir => return Err(FsError::NotDirectory),
                _ if !source_is_dir && target_is_dir => return Err(FsError::IsDirectory),
                _ if !empty => return Err(FsError::NotEmpty),
                _ => {}
            }
        }
        let full = |state: &mut State, dir: Ino| Ok(state.node(dir)?.attr.nlink >= LINK_MAX);
        let crosses = from_dir != to_dir;
        if crosses && source_is_dir && !target_is_dir && full(self, to_dir)? {
            return Err(FsError::TooManyLinks);
        }
        let back = mode == RenameMode::Exchange && target_is_dir && !source_is_dir;
        if crosses && back && full(self, from_dir)? {
            return Err(FsError::TooManyLinks);
        }
        Ok(true)
    }
}

impl State {
    /// Lists a directory but for its directory of snapshots; see [`FileSystem::readdir_plus`].
    pub(super) fn list(
        &mut self,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Attr) -> bool,
    ) -> Result<()> {
        self.dir(dir)?;
        let node = self.nodes.get(&dir).ok_or(FsError::Stale)?;
        for (&next_cookie, name) in node.listing.range(cookie.saturating_add(1)..) {
            let Some(&(ino, _)) = node.entries.get(name) else {
                continue;
            };
            let node = self.nodes.get(&ino).ok_or(FsError::Stale)?;
            if node.holds_snapshots && name == SNAPSHOTS_NAME {
                continue;
            }
            let attr = node.attr();
            let kind = attr.kind;
            let entry = DirEntry {
                ino,
                kind,
                name,
                next_cookie,
            };
            if !sink(&entry, attr) {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn setattr(&mut self, ctx: &Ctx, ino: Ino, set: &SetAttr, opened_for_writing: bool) -> Result<Attr> {
        posix::check_owner(set)?;
        let now = self.now();
        let node = self.node(ino)?;
        let set = match ctx.check {
            true => posix::may_setattr(&node.guarded(&ctx.cred)?, &ctx.cred, set, opened_for_writing)?,
            false => *set,
        };
        if let Some(size) = set.size {
            match node.attr.kind {
                FileKind::File if size > MAX_FILE_BYTES => return Err(FsError::FileTooBig),
                FileKind::File => {}
                FileKind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid(BadArgument::NoSize)),
            }
        }
        if !node.holds_snapshots {
            node.is_outside_snapshots()?;
        }
        node.flags.check_set(&set)?;
        if let Some(size) = set.size {
            node.content.truncate(size);
            node.attr.size = size;
            node.attr.mtime = now;
        }
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let old_gid = node.attr.gid;
        let attr = &mut node.attr;
        attr.mode = set.mode.unwrap_or(attr.mode) & 0o7777;
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        if let Some(mode) = set.mode
            && let Some(list) = node.xattrs.get_mut(acl::ACCESS)
        {
            acl::chmod(list, mode)?;
        }
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        if set.kill_priv {
            node.kill_priv(&ctx.cred, old_gid);
        }
        if posix::takes_capability(&set) {
            node.take_capability();
        }
        if set != SetAttr::default() {
            node.touch(now);
        }
        Ok(node.attr())
    }
}

//! The reference engine: a file system in ordinary memory, as simple as the rules allow.
//!
//! Contents: [`MemFs`]. The tests compare every other engine with it, so it is written to be obviously right,
//! not fast: one lock around everything, ordered maps, no tricks. `ferrite::Fs::memory` returns it to programs that
//! want a scratch file system without a pool. Content is in `data`.
//!
//! Invariants: an inode lives as long as it has a name, a pin or an open file. A directory's entries are kept in the
//! order of creation, by a counter that never decreases; that counter is the listing's cookie.

mod clone;
mod data;
mod dedup;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};

use crate::acl;
use crate::locks::{LockDone, LockOwner, LockRequest, LockTable, LockTicket, RecordLock, Unlock};
use crate::posix::Access;
use crate::{
    Attr, BadArgument, Ctx, DirEntry, Durability, FLAGS_XATTR, FileKind, FileSystem, FsError, Ino, InodeFlags,
    LINK_MAX, Limits, NO_NAME, NameChange, NewFile, NewNode, OpenFile, OpenMode, Opened, Outcome, PATH_MAX, ROOT_INO,
    RenameMode, Result, SNAPSHOT_XATTR, SYSTEM, SetAttr, StatFs, Timestamp, Unsupported, XATTR_NAME_MAX,
    XATTR_SIZE_MAX, XattrMode, posix,
};
use clone::As;
use data::{MemFile, PAGE_BYTES};
use state::{Clock, Node, State};

/// Largest file, in bytes; that of the PM engine.
pub const MAX_FILE_BYTES: u64 = 1 << 44;
/// Space for extended attributes of one inode: the sum of 4 + name + value over all.
const INODES: u64 = 1 << 20;
/// Also the most that one `fallocate` may ask for: a reserved page takes memory here.
const BLOCKS: u64 = 1 << 28;

/// A file system in memory. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct MemFs {
    state: Arc<Mutex<State>>,
    /// Outcomes of changes with tokens, by slot.
    kept: Arc<Mutex<BTreeMap<u32, (u64, Outcome)>>>,
    locks: Arc<LockTable>,
}

impl Default for MemFs {
    fn default() -> Self {
        MemFs::new()
    }
}

impl MemFs {
    fn open_in(&self, state: &mut State, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let node = state.node(ino)?;
        if node.attr.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        if node.attr.kind == FileKind::File && mode.changes() {
            if node.is_read_only() {
                return Err(FsError::ReadOnly);
            }
            node.flags.check_open(mode.write, mode.truncate)?;
        }
        if ctx.check {
            posix::may_open(&node.guarded(&ctx.cred)?, &ctx.cred, mode)?;
        }
        if node.attr.kind != FileKind::File {
            return Err(FsError::NoSuchAddress);
        }
        if mode.truncate {
            let set = SetAttr {
                size: Some(0),
                kill_priv: ctx.kills_priv(),
                ..SetAttr::default()
            };
            state.setattr(&Ctx::trusted(ctx.cred.clone()), ino, &set, true)?;
        }
        state.node(ino)?.pins += 1;
        Ok(Arc::new(MemFile::new(self.clone(), ino, mode)))
    }

    /// An empty file system whose root belongs to root, with mode 755.
    pub fn new() -> MemFs {
        MemFs::with_clock(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Timestamp::new(since.as_secs() as i64, since.subsec_nanos())
        })
    }

    /// Like [`Self::new`], with another clock. If the clock goes back, the file system's time stands still until it has
    /// caught up. The clock is read under the lock, so it must not call into this file system.
    pub fn with_clock(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> MemFs {
        let mut state = State {
            nodes: BTreeMap::new(),
            next_ino: ROOT_INO + 1,
            source: Clock(Arc::new(clock)),
            clock: Timestamp(0),
        };
        let now = state.now();
        let mut root = Node::new(ROOT_INO, ROOT_INO, FileKind::Directory, now);
        root.attr.mode = 0o755;
        state.nodes.insert(ROOT_INO, root);
        MemFs {
            state: Arc::new(Mutex::new(state)),
            kept: Arc::default(),
            locks: Arc::default(),
        }
    }

    /// An independent copy of the current state, without locks on files.
    pub fn snapshot(&self) -> MemFs {
        MemFs {
            state: Arc::new(Mutex::new(self.state().clone())),
            kept: Arc::new(Mutex::new(self.kept.lock().clone())),
            locks: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl FileSystem for MemFs {
    fn limits(&self) -> Limits {
        let mut limits = Limits::local(u64::MAX, MAX_FILE_BYTES, Durability::None);
        limits.dedup_slots = dedup::SLOTS;
        limits
    }

    fn statfs(&self, _: &Ctx) -> Result<StatFs> {
        let state = self.state();
        let used: u64 = state.nodes.values().map(|node| node.content.pages()).sum();
        Ok(StatFs {
            block_bytes: PAGE_BYTES as u32,
            blocks: BLOCKS,
            blocks_free: BLOCKS.saturating_sub(used),
            blocks_available: BLOCKS.saturating_sub(used),
            inodes: INODES,
            inodes_free: INODES.saturating_sub(state.nodes.len() as u64),
            fsid: 0,
        })
    }

    fn lookup(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut state = self.state();
        let ino = state.find(ctx, parent, name)?.ok_or(FsError::NotFound)?;
        state.give(ctx, ino)
    }

    fn parent(&self, ctx: &Ctx, dir: Ino) -> Result<Ino> {
        let mut state = self.state();
        let dir = state.dir(dir)?;
        if ctx.check {
            posix::may_search(&dir.guarded(&ctx.cred)?, &ctx.cred)?;
        }
        Ok(dir.parent)
    }

    fn getattr(&self, _: &Ctx, ino: Ino) -> Result<Attr> {
        Ok(self.state().node(ino)?.attr())
    }

    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.dedup_attr(ctx, || self.state().setattr(ctx, ino, set, false))
    }

    fn pin(&self, _: &Ctx, ino: Ino, generation: u32) -> Result<()> {
        let mut state = self.state();
        let node = state.node(ino)?;
        if node.attr.generation != generation {
            return Err(FsError::Stale);
        }
        node.pins += 1;
        Ok(())
    }

    fn unpin(&self, _: &Ctx, ino: Ino, count: u64) {
        let mut state = self.state();
        if let Ok(node) = state.node(ino) {
            node.pins = node.pins.saturating_sub(count);
        }
        state.free_if_unused(ino);
    }

    fn readlink(&self, _: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let mut state = self.state();
        let node = state.node(ino)?;
        match node.attr.kind {
            FileKind::Symlink => Ok(node.target.clone()),
            _ => Err(FsError::Invalid(BadArgument::NotLink)),
        }
    }

    fn mknod(&self, ctx: &Ctx, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.dedup_attr(ctx, || {
            if matches!(node.kind, FileKind::Directory | FileKind::Symlink) {
                return Err(FsError::Invalid(BadArgument::NodeKind));
            }
            let mut state = self.state();
            let made = state.make(ctx, parent, name, node.kind, node.mode)?;
            made.attr.rdev = node.rdev;
            let ino = made.attr.ino;
            state.give(ctx, ino)
        })
    }

    fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        self.dedup_attr(ctx, || {
            let mut state = self.state();
            let ino = match state.node(parent).is_ok_and(|dir| dir.holds_snapshots) {
                true => state.take_snapshot(ctx, parent, name)?,
                false => state.make(ctx, parent, name, FileKind::Directory, mode)?.attr.ino,
            };
            state.give(ctx, ino)
        })
    }

    fn symlink(&self, ctx: &Ctx, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.dedup_attr(ctx, || {
            if target.is_empty() {
                return Err(FsError::Invalid(BadArgument::EmptyTarget));
            }
            if target.len() >= PATH_MAX {
                return Err(FsError::NameTooLong);
            }
            let mut state = self.state();
            let made = state.make(ctx, parent, name, FileKind::Symlink, 0o777)?;
            made.target = target.to_vec();
            made.attr.size = target.len() as u64;
            let ino = made.attr.ino;
            state.give(ctx, ino)
        })
    }

    fn link(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.dedup_attr(ctx, || {
            posix::check_name(name)?;
            let mut state = self.state();
            let now = state.now();
            let node = state.node(ino).map_err(|_| FsError::NotFound)?;
            let (kind, nlink, is_nameless) = (node.attr.kind, node.attr.nlink, node.is_nameless);
            let dir = state.live_dir(parent)?;
            let taken = dir.entries.contains_key(name);
            if ctx.check {
                posix::may_create(&dir.guarded(&ctx.cred)?, &ctx.cred, taken)?;
            }
            match () {
                () if kind == FileKind::Directory => return Err(FsError::NotPermitted),
                () if nlink == 0 && !is_nameless => return Err(FsError::NotFound),
                () if taken => return Err(FsError::Exists),
                () if nlink >= LINK_MAX => return Err(FsError::TooManyLinks),
                () => {}
            }
            state.may_change_names(parent, NameChange::Adds)?;
            state.node(ino)?.may_change()?;
            state.enter(parent, name, ino, now)?;
            let node = state.node(ino)?;
            node.attr.nlink += 1;
            node.is_nameless = false;
            node.touch(now);
            state.give(ctx, ino)
        })
    }

    fn clone_tree(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.dedup_attr(ctx, || {
            let mut state = self.state();
            let made = state.clone_to(ctx, ino, (parent, name), As::Clone)?;
            state.give(ctx, made)
        })
    }

    fn unlink(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        self.dedup_done(ctx, || {
            let mut state = self.state();
            let ino = state.find_removable(ctx, parent, name)?;
            if state.node(ino)?.is_dir() {
                return Err(FsError::IsDirectory);
            }
            state.may_change_names(parent, NameChange::Removes)?;
            state.node(ino)?.may_change()?;
            let now = state.now();
            state.leave(parent, name, now)?;
            state.drop_link(ino, now)
        })
    }

    fn rmdir(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        self.dedup_done(ctx, || {
            let mut state = self.state();
            let ino = state.find_removable(ctx, parent, name)?;
            let node = state.node(ino)?;
            if !node.is_dir() {
                return Err(FsError::NotDirectory);
            }
            let (is_empty, held_snapshots) = (node.entries.is_empty(), node.holds_snapshots);
            let Node {
                holds_snapshots: is_snapshot,
                parent: of,
                ..
            } = *state.node(parent)?;
            let is_owned = ctx.cred.is_root() || state.node(of)?.attr.uid == ctx.cred.uid;
            match () {
                () if is_snapshot && ctx.check && !is_owned => return Err(FsError::NotPermitted),
                () if is_snapshot => {}
                () if !is_empty => return Err(FsError::NotEmpty),
                () if held_snapshots => state.may_change_names(parent, NameChange::Removes)?,
                () => {
                    state.may_change_names(parent, NameChange::Removes)?;
                    state.node(ino)?.may_change()?;
                }
            }
            let now = state.now();
            state.leave(parent, name, now)?;
            match is_snapshot {
                true => state.drop_tree(ino, now),
                false => state.drop_link(ino, now),
            }
        })
    }

    fn takes_snapshots(&self, dir: Ino) -> bool {
        self.state().node(dir).is_ok_and(|dir| dir.holds_snapshots)
    }

    fn rename(
        &self,
        ctx: &Ctx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.dedup_done(ctx, || {
            posix::check_name(new_name)?;
            let mut state = self.state();
            let source = state.find(ctx, parent, name)?.ok_or(FsError::NotFound)?;
            let target = state.find(ctx, new_parent, new_name)?;
            state.live_dir(parent)?;
            state.live_dir(new_parent)?;
            match (mode, target) {
                (mode, Some(_)) if mode.refuses_target() => return Err(FsError::Exists),
                (RenameMode::Exchange, None) => return Err(FsError::NotFound),
                (_, Some(target)) if target == source => return Ok(()),
                _ => {}
            }
            if ctx.check {
                let guarded = |state: &mut State, ino: Ino| state.node(ino)?.guarded(&ctx.cred);
                let (from, to) = (guarded(&mut state, parent)?, guarded(&mut state, new_parent)?);
                let moved = guarded(&mut state, source)?;
                let victim = target.map(|ino| guarded(&mut state, ino)).transpose()?;
                let from = posix::RenameSide {
                    dir: &from,
                    entry: Some(&moved),
                };
                let to = posix::RenameSide {
                    dir: &to,
                    entry: victim.as_ref(),
                };
                posix::may_rename(from, to, &ctx.cred, mode)?;
            }
            if !state.check_rename((parent, source), (new_parent, target), mode)? {
                return Ok(());
            }
            let replaces = target.is_some() || parent == new_parent;
            state.may_change_names(parent, NameChange::Removes)?;
            state.may_change_names(new_parent, NameChange::when(replaces))?;
            for ino in [Some(source), target].into_iter().flatten() {
                state.node(ino)?.may_change()?;
            }
            let now = state.now();
            state.leave(parent, name, now)?;
            if let Some(target) = target {
                state.leave(new_parent, new_name, now)?;
                if mode == RenameMode::Exchange {
                    state.enter(parent, name, target, now)?;
                    state.node(target)?.touch(now);
                } else {
                    state.drop_link(target, now)?;
                }
            }
            state.enter(new_parent, new_name, source, now)?;
            state.node(source)?.touch(now);
            if mode.leaves_whiteout() {
                // The caller may rename, and needs no right to make devices. A whiteout inherits no list.
                let ctx = Ctx::trusted(ctx.cred.clone());
                let whiteout = state.make(&ctx, parent, name, FileKind::CharDevice, 0)?;
                whiteout.xattrs.clear();
            }
            Ok(())
        })
    }

    fn readdir(&self, _: &Ctx, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.state().list(dir, cookie, &mut |entry, _| sink(entry))
    }

    fn readdir_plus(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()> {
        let mut accepted = Vec::new();
        let mut state = self.state();
        state.list(dir, cookie, &mut |entry, attr| {
            let goes_on = sink(entry, Ok(attr));
            accepted.extend(goes_on.then_some(entry.ino));
            goes_on
        })?;
        for ino in accepted {
            state.give(ctx, ino)?;
        }
        Ok(())
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        if !mode.truncate {
            return self.open_in(&mut self.state(), ctx, ino, mode);
        }
        let unpinned = Ctx {
            pins: false,
            ..ctx.clone()
        };
        let change = || {
            let mut state = self.state();
            let file = self.open_in(&mut state, ctx, ino, mode)?;
            let attr = state.node(ino)?.attr();
            Ok(Opened {
                attr,
                file,
                created: false,
            })
        };
        Ok(self.dedup_open(&unpinned, mode, change)?.file)
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        self.dedup_open(ctx, new.open, || {
            let mut state = self.state();
            state.live_dir(parent)?;
            let found = match name {
                NO_NAME => None,
                name => state.find(ctx, parent, name)?,
            };
            let (ino, file, created) = match found {
                Some(_) if new.exclusive => return Err(FsError::Exists),
                Some(ino) if state.node(ino)?.attr.kind == FileKind::Symlink => return Err(FsError::Loop),
                Some(ino) => (ino, self.open_in(&mut state, ctx, ino, new.open)?, false),
                None => {
                    let node = state.make_in(ctx, parent, name, FileKind::File, new.mode)?;
                    node.is_nameless = name == NO_NAME && !new.exclusive;
                    let ino = node.attr.ino;
                    (ino, self.open_in(&mut state, SYSTEM, ino, new.open)?, true)
                }
            };
            let attr = state.give(ctx, ino)?;
            Ok(Opened { attr, file, created })
        })
    }

    fn getxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let mut state = self.state();
        let node = state.node(ino)?;
        match name {
            FLAGS_XATTR => return Ok(node.flags.to_string().into_bytes()),
            SNAPSHOT_XATTR => return Err(FsError::NotSupported(Unsupported::AttributeNamespace)),
            _ => {}
        }
        if ctx.check {
            posix::may_xattr(&node.guarded(&ctx.cred)?, &ctx.cred, name, Access::READ)?;
        }
        node.xattrs.get(name).cloned().ok_or(FsError::NoAttribute)
    }

    fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.dedup_done(ctx, || {
            check_xattr_name(name)?;
            let mut state = self.state();
            let now = state.now();
            let node = state.node(ino)?;
            if name == FLAGS_XATTR {
                return node.set_flags(ctx, InodeFlags::parse(value)?, now);
            }
            if ctx.check {
                posix::may_xattr(&node.guarded(&ctx.cred)?, &ctx.cred, name, Access::WRITE)?;
            }
            if value.len() > XATTR_SIZE_MAX {
                return Err(FsError::ValueTooLong);
            }
            match (mode, node.xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(FsError::Exists),
                (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
                _ => {}
            }
            let others = node.xattrs.iter().filter(|(other, _)| *other != name);
            let all = others
                .map(|(name, value)| (&name[..], &value[..]))
                .chain([(name, value)]);
            if !posix::xattrs_fit(all) {
                return Err(FsError::NoSpace(crate::SpaceOf::Attributes));
            }
            if acl::is_acl(name) {
                let mut changed = node.clone();
                changed.set_acl(&ctx.cred, name, Some(value))?;
                node.may_change()?;
                *node = changed;
            } else {
                if !posix::is_own_xattr(name) {
                    node.may_change()?;
                }
                node.xattrs.insert(name.to_vec(), value.to_vec());
            }
            if !posix::is_own_xattr(name) {
                node.touch(now);
            }
            Ok(())
        })
    }

    fn listxattr(&self, ctx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names: Vec<_> = self.state().node(ino)?.xattrs.keys().cloned().collect();
        names.retain(|name| !ctx.check || posix::sees_xattr(&ctx.cred, name));
        Ok(names)
    }

    fn removexattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        self.dedup_done(ctx, || {
            check_xattr_name(name)?;
            let mut state = self.state();
            let now = state.now();
            let node = state.node(ino)?;
            if name == FLAGS_XATTR {
                return node.set_flags(ctx, InodeFlags::NONE, now);
            }
            if ctx.check {
                posix::may_xattr(&node.guarded(&ctx.cred)?, &ctx.cred, name, Access::WRITE)?;
            }
            if !node.xattrs.contains_key(name) {
                return Err(FsError::NoAttribute);
            }
            if !posix::is_own_xattr(name) {
                node.may_change()?;
            }
            node.xattrs.remove(name);
            node.touch(now);
            Ok(())
        })
    }

    fn sync(&self, _: &Ctx) -> Result<()> {
        Ok(())
    }

    fn lock(&self, ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool, done: LockDone) -> Option<LockTicket> {
        self.locks.lock(ctx, ino, request, may_wait, done)
    }

    fn unlock(&self, ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> Result<()> {
        self.locks.unlock(ctx, ino, owner, what)
    }

    fn conflicting_lock(&self, ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Result<Option<RecordLock>> {
        Ok(self.locks.conflict(ctx, ino, lock))
    }

    fn cancel_lock(&self, ctx: &Ctx, ticket: LockTicket) {
        self.locks.cancel(ctx, ticket);
    }

    fn release_client(&self, ctx: &Ctx) {
        self.locks.release_client(ctx);
    }
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(FsError::Invalid(BadArgument::EmptyAttributeName)),
        1..=XATTR_NAME_MAX => Ok(()),
        _ => Err(FsError::Range),
    }
}

//! The reference engine: a file system in ordinary memory, as simple as the rules allow.
//!
//! What lives here: [`MemFs`]. The tests compare every other engine with it, so it is written to be obviously right,
//! not fast: one lock around everything, ordered maps, no tricks. `ferrite::Fs::memory` returns it to programs that
//! want a scratch file system without a pool. Content is in `data`.
//!
//! Invariants: an inode lives as long as it has a name, a pin or an open file. A directory's entries are kept in the
//! order of creation, by a counter that never decreases; that counter is the listing's cookie.

mod data;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    Attr, BadArgument, Cred, DirEntry, FileKind, FileSystem, FsError, Ino, LINK_MAX, NewNode, OpenFile, OpenMode,
    PATH_MAX, ROOT_INO, RenameMode, Result, SetAttr, SetTime, StatFs, Timestamp, XATTR_NAME_MAX, XATTR_SIZE_MAX,
    XattrMode, posix,
};
use data::{Content, MemFile, PAGE_BYTES};

/// Largest file, in bytes; that of the PM engine.
pub const MAX_FILE_BYTES: u64 = 1 << 44;
/// Space for extended attributes of one inode: the sum of 4 + name + value over all.
const XATTR_SPACE_BYTES: usize = 4064;
const INODES: u64 = 1 << 20;
/// Also the most that one `fallocate` may ask for: a reserved page takes memory here.
const BLOCKS: u64 = 1 << 28;

#[derive(Debug, Clone)]
struct Node {
    attr: Attr,
    content: Content,
    target: Vec<u8>,
    /// Entries by name: inode and place in the listing.
    entries: BTreeMap<Vec<u8>, (Ino, u64)>,
    /// Names by their place in the listing.
    listing: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
    parent: Ino,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pins: u64,
}

/// Where the time comes from.
#[derive(Clone)]
struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[derive(Debug, Clone)]
struct State {
    nodes: BTreeMap<Ino, Node>,
    next_ino: Ino,
    source: Clock,
    /// The last time returned; times never go back.
    clock: Timestamp,
}

/// A file system in memory. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct MemFs {
    state: Arc<Mutex<State>>,
}

impl Default for MemFs {
    fn default() -> Self {
        MemFs::new()
    }
}

impl Node {
    fn new(ino: Ino, parent: Ino, kind: FileKind, now: Timestamp) -> Node {
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
        }
    }

    fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    fn attr(&self) -> Attr {
        Attr {
            blocks: self.content.pages() * (PAGE_BYTES / 512),
            ..self.attr
        }
    }

    fn changed(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.attr.ctime = now;
    }
}

impl State {
    fn now(&mut self) -> Timestamp {
        self.clock = self.clock.max((self.source.0)());
        self.clock
    }

    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::Stale)
    }

    /// A directory in which names can be looked up.
    fn dir(&mut self, ino: Ino) -> Result<&mut Node> {
        let node = self.node(ino).map_err(|_| FsError::NotFound)?;
        if node.is_dir() {
            Ok(node)
        } else {
            Err(FsError::NotDirectory)
        }
    }

    /// A directory to which names can be added.
    fn live_dir(&mut self, ino: Ino) -> Result<&mut Node> {
        let node = self.dir(ino)?;
        if node.attr.nlink > 0 {
            Ok(node)
        } else {
            Err(FsError::NotFound)
        }
    }

    fn find(&mut self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        posix::check_name(name)?;
        Ok(self.dir(dir)?.entries.get(name).map(|&(ino, _)| ino))
    }

    fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Timestamp) -> Result<()> {
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

    fn leave(&mut self, dir: Ino, name: &[u8], now: Timestamp) -> Result<()> {
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
    fn drop_link(&mut self, ino: Ino, now: Timestamp) -> Result<()> {
        let node = self.node(ino)?;
        node.attr.nlink = if node.is_dir() { 0 } else { node.attr.nlink - 1 };
        node.attr.ctime = now;
        self.free_if_unused(ino);
        Ok(())
    }

    fn free_if_unused(&mut self, ino: Ino) {
        if self
            .nodes
            .get(&ino)
            .is_some_and(|node| node.attr.nlink == 0 && node.pins == 0)
        {
            self.nodes.remove(&ino);
        }
    }

    fn is_below(&self, dir: Ino, ancestor: Ino) -> bool {
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

    fn create(&mut self, cred: &Cred, parent: Ino, name: &[u8], kind: FileKind, mode: u32) -> Result<&mut Node> {
        posix::check_name(name)?;
        let dir = self.live_dir(parent)?;
        let is_dir = kind == FileKind::Directory;
        if dir.entries.contains_key(name) {
            return Err(FsError::Exists);
        }
        if is_dir && dir.attr.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let (gid, mode) = posix::inherit(&dir.attr, cred, mode, is_dir);
        let now = self.now();
        let ino = self.next_ino;
        self.next_ino += 1;
        let mut node = Node::new(ino, parent, kind, now);
        node.attr.mode = mode;
        node.attr.uid = cred.uid;
        node.attr.gid = gid;
        self.nodes.insert(ino, node);
        self.enter(parent, name, ino, now)?;
        self.node(ino)
    }

    fn check_rename(&mut self, from: (Ino, Ino), to: (Ino, Option<Ino>), mode: RenameMode) -> Result<bool> {
        let ((from_dir, source), (to_dir, target)) = (from, to);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
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

impl MemFs {
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
        }
    }

    /// An independent copy of the present state.
    pub fn snapshot(&self) -> MemFs {
        MemFs {
            state: Arc::new(Mutex::new(self.lock().clone())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl FileSystem for MemFs {
    fn statfs(&self) -> Result<StatFs> {
        let state = self.lock();
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

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let mut state = self.lock();
        let ino = state.find(parent, name)?.ok_or(FsError::NotFound)?;
        Ok(state.node(ino)?.attr())
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        Ok(self.lock().dir(dir)?.parent)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.lock().node(ino)?.attr())
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut state = self.lock();
        let now = state.now();
        let node = state.node(ino)?;
        if let Some(size) = set.size {
            match node.attr.kind {
                FileKind::File if size > MAX_FILE_BYTES => return Err(FsError::FileTooBig),
                FileKind::File => {}
                FileKind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid(BadArgument::NoSize)),
            }
            node.content.cut(size);
            node.attr.size = size;
            node.attr.mtime = now;
        }
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let attr = &mut node.attr;
        attr.mode = set.mode.unwrap_or(attr.mode) & 0o7777;
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.mode = set.killed(attr.kind, attr.mode);
        if *set != SetAttr::default() {
            attr.ctime = now;
        }
        Ok(node.attr())
    }

    fn pin(&self, ino: Ino, generation: u32) -> Result<()> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        if node.attr.generation != generation {
            return Err(FsError::Stale);
        }
        node.pins += 1;
        Ok(())
    }

    fn unpin(&self, ino: Ino, count: u64) {
        let mut state = self.lock();
        if let Ok(node) = state.node(ino) {
            node.pins = node.pins.saturating_sub(count);
        }
        state.free_if_unused(ino);
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        match node.attr.kind {
            FileKind::Symlink => Ok(node.target.clone()),
            _ => Err(FsError::Invalid(BadArgument::NotLink)),
        }
    }

    fn mknod(&self, cred: &Cred, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        if matches!(node.kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid(BadArgument::NodeKind));
        }
        let mut state = self.lock();
        let made = state.create(cred, parent, name, node.kind, node.mode)?;
        made.attr.rdev = node.rdev;
        Ok(made.attr())
    }

    fn mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        Ok(self
            .lock()
            .create(cred, parent, name, FileKind::Directory, mode)?
            .attr())
    }

    fn symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(FsError::Invalid(BadArgument::EmptyTarget));
        }
        if target.len() >= PATH_MAX {
            return Err(FsError::NameTooLong);
        }
        let mut state = self.lock();
        let made = state.create(cred, parent, name, FileKind::Symlink, 0o777)?;
        made.target = target.to_vec();
        made.attr.size = target.len() as u64;
        Ok(made.attr())
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        posix::check_name(name)?;
        let mut state = self.lock();
        let now = state.now();
        let node = state.node(ino).map_err(|_| FsError::NotFound)?;
        let (kind, nlink) = (node.attr.kind, node.attr.nlink);
        let taken = state.live_dir(parent)?.entries.contains_key(name);
        match () {
            () if kind == FileKind::Directory => return Err(FsError::NotPermitted),
            () if nlink == 0 => return Err(FsError::NotFound),
            () if taken => return Err(FsError::Exists),
            () if nlink >= LINK_MAX => return Err(FsError::TooManyLinks),
            () => {}
        }
        state.enter(parent, name, ino, now)?;
        let node = state.node(ino)?;
        node.attr.nlink += 1;
        node.attr.ctime = now;
        Ok(node.attr())
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let ino = state.find(parent, name)?.ok_or(FsError::NotFound)?;
        if state.node(ino)?.is_dir() {
            return Err(FsError::IsDirectory);
        }
        let now = state.now();
        state.leave(parent, name, now)?;
        state.drop_link(ino, now)
    }

    fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let ino = state.find(parent, name)?.ok_or(FsError::NotFound)?;
        let node = state.node(ino)?;
        if !node.is_dir() {
            return Err(FsError::NotDirectory);
        }
        if !node.entries.is_empty() {
            return Err(FsError::NotEmpty);
        }
        let now = state.now();
        state.leave(parent, name, now)?;
        state.drop_link(ino, now)
    }

    fn rename(&self, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> {
        posix::check_name(new_name)?;
        let mut state = self.lock();
        let source = state.find(parent, name)?.ok_or(FsError::NotFound)?;
        let target = state.find(new_parent, new_name)?;
        state.live_dir(parent)?;
        state.live_dir(new_parent)?;
        if !state.check_rename((parent, source), (new_parent, target), mode)? {
            return Ok(());
        }
        let now = state.now();
        state.leave(parent, name, now)?;
        if let Some(target) = target {
            state.leave(new_parent, new_name, now)?;
            if mode == RenameMode::Exchange {
                state.enter(parent, name, target, now)?;
                state.node(target)?.attr.ctime = now;
            } else {
                state.drop_link(target, now)?;
            }
        }
        state.enter(new_parent, new_name, source, now)?;
        state.node(source)?.attr.ctime = now;
        Ok(())
    }

    fn readdir(&self, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let mut state = self.lock();
        state.dir(dir)?;
        let node = state.nodes.get(&dir).ok_or(FsError::Stale)?;
        for (&next_cookie, name) in node.listing.range(cookie.saturating_add(1)..) {
            let Some(&(ino, _)) = node.entries.get(name) else {
                continue;
            };
            let kind = state.nodes.get(&ino).ok_or(FsError::Stale)?.attr.kind;
            if !sink(&DirEntry {
                ino,
                kind,
                name,
                next_cookie,
            }) {
                break;
            }
        }
        Ok(())
    }

    fn open(&self, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let mut state = self.lock();
        let node = state.node(ino)?;
        match node.attr.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::NoSuchAddress),
        }
        node.pins += 1;
        drop(state);
        Ok(Arc::new(MemFile::new(self.clone(), ino, mode)))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        self.lock()
            .node(ino)?
            .xattrs
            .get(name)
            .cloned()
            .ok_or(FsError::NoAttribute)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_xattr_name(name)?;
        if value.len() > XATTR_SIZE_MAX || 4 + name.len() + value.len() > XATTR_SPACE_BYTES {
            return Err(FsError::ValueTooLong);
        }
        let mut state = self.lock();
        let now = state.now();
        let node = state.node(ino)?;
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(FsError::Exists),
            (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        let others = node.xattrs.iter().filter(|(other, _)| *other != name);
        let used: usize = others.map(|(name, value)| 4 + name.len() + value.len()).sum();
        if used + 4 + name.len() + value.len() > XATTR_SPACE_BYTES {
            return Err(FsError::NoSpace(crate::SpaceOf::Attributes));
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.attr.ctime = now;
        Ok(())
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.lock().node(ino)?.xattrs.keys().cloned().collect())
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        let mut state = self.lock();
        let now = state.now();
        let node = state.node(ino)?;
        node.xattrs.remove(name).ok_or(FsError::NoAttribute)?;
        node.attr.ctime = now;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(FsError::Invalid(BadArgument::EmptyAttributeName)),
        1..=XATTR_NAME_MAX => Ok(()),
        _ => Err(FsError::Range),
    }
}

//! The calls of the trait, sent as requests.

use std::sync::Arc;

use ferrite_vfs::locks::{LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::{
    Attr, CacheLeases, Ctx, DirEntry, FileSystem, FsError, Ino, Limits, NO_NAME, NewFile, NewNode, OpenFile, OpenFlags,
    OpenMode, Opened, RenameMode, Result, SetAttr, Start, StatFs, XattrMode, posix,
};

use super::cache::{Cache, Changed, Requester};
use super::file::RemoteFile;
use super::link::Link;
use super::message::Reply;
use super::protocol::Repeats;
use super::reclaim_state::OpenedAs;
use super::unsynced::Epoch;
use super::untrusted::{FileMac, LinkTarget, XattrNames, XattrValue};
use super::{Client, limits, locks};
use ferrite_proto::{FsRequest, Node, NodeAttr, OpenedFile, Request, masked_mode};

impl Client {
    pub(super) fn node(&self, ino: Ino) -> Result<Node> {
        self.link.session.reclaim_state.node(ino)
    }

    pub(super) fn ask<'r>(&self, ctx: &Ctx, request: impl Into<Request<'r>>) -> Result<Reply> {
        self.link.call(ctx, &request.into(), Repeats::Yes, &[], &mut [])
    }

    fn change(&self, ctx: &Ctx, request: FsRequest<'_>) -> Result<Reply> {
        let changed = changed(&request);
        self.link.change(ctx, &request.into(), changed, &[])
    }

    /// The cached result for a name, for a caller that does or does not want it pinned.
    fn known(&self, ctx: &Ctx, parent: Node, name: &[u8]) -> Option<Result<Attr>> {
        let cache = self.link.leases.cache.as_ref()?;
        let (node, attr) = match cache.name(parent, name, &self.requester(ctx))? {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        if ctx.pins && node.ino != ferrite_vfs::ROOT_INO {
            // Only the server gives the first pin.
            self.link
                .session
                .reclaim_state
                .pin_again(node.ino, node.generation)?
                .ok()?;
        } else {
            self.link.session.reclaim_state.learn_node(node);
        }
        Some(Ok(attr))
    }

    fn requester(&self, ctx: &Ctx) -> Requester {
        let head = super::head(ctx, &self.link.groups);
        Requester {
            caller: head.caller,
            check: head.check,
        }
    }

    fn node_attr(&self, reply: &Reply) -> Result<Attr> {
        let node_attr: NodeAttr = reply.result()?;
        self.link.session.reclaim_state.learn(&node_attr);
        Ok(node_attr.attr)
    }

    fn opened(&self, reply: &Reply, mode: OpenMode, number: u64) -> Result<Opened> {
        let opened: OpenedFile = reply.result()?;
        self.link.session.reclaim_state.learn(&opened.node_attr);
        let file = self.record_open(opened.node_attr.node(), mode, opened.mac, number);
        Ok(Opened {
            attr: opened.node_attr.attr,
            file,
            created: opened.created,
        })
    }

    /// The flags with which a read-only client opens a file that should be created if it is missing: it opens an
    /// existing file, and creates none.
    fn without_creation(&self, ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<OpenFlags> {
        if !flags.create || !self.link.options.read_only {
            return Ok(*flags);
        }
        let unpinned = Ctx {
            pins: false,
            ..ctx.clone()
        };
        match self.resolve(&unpinned, start, path, !flags.exclusive && !flags.no_follow) {
            Ok(_) if flags.exclusive => Err(FsError::Exists),
            Ok(_) => Ok(OpenFlags {
                create: false,
                ..*flags
            }),
            Err(FsError::NotFound) => Err(FsError::ReadOnly),
            Err(error) => Err(error),
        }
    }

    fn record_open(&self, node: Node, mode: OpenMode, mac: u64, number: u64) -> Arc<dyn OpenFile> {
        let opened = OpenedAs {
            node,
            mode,
            mac,
            is_stale: false,
        };
        self.link.session.reclaim_state.opened(number, opened);
        Arc::new(RemoteFile {
            link: Arc::clone(&self.link),
            node,
            number,
            may_read: mode.read,
            reconnects: self.link.reconnects(),
        })
    }
}

/// The flags with which a path is opened as by [`FileSystem::create`].
fn of_creation(new: &NewFile) -> OpenFlags {
    OpenFlags {
        read: new.open.read,
        write: new.open.write,
        create: true,
        exclusive: new.exclusive,
        truncate: new.open.truncate,
        no_follow: true,
        no_atime: new.open.no_atime,
        mode: new.mode,
    }
}

/// The cached inodes that a change touches. Only the server knows which inode a name stands for.
fn changed(request: &FsRequest<'_>) -> Changed {
    match request {
        FsRequest::Setattr { node, .. }
        | FsRequest::Setxattr { node, .. }
        | FsRequest::Removexattr { node, .. }
        | FsRequest::Open { node, .. } => Changed::One(node.ino),
        FsRequest::Mknod { parent, .. } | FsRequest::Mkdir { parent, .. } | FsRequest::Symlink { parent, .. } => {
            Changed::One(parent.ino)
        }
        FsRequest::Create { parent, new, .. } if !new.open.truncate => Changed::One(parent.ino),
        _ => Changed::Everything,
    }
}

impl Link {
    /// Counts a change that the server has answered.
    pub(super) fn note_unsynced(&self, is_change: bool, reply: &Reply, epoch: Epoch) {
        if is_change && reply.is_ok() && !self.promises().is_durable_at_once {
            self.session.unsynced.changed(epoch);
        }
    }
}

impl FileSystem for Client {
    fn limits(&self) -> Limits {
        limits(&self.link)
    }

    fn cache_leases(&self) -> Option<&dyn CacheLeases> {
        self.link.leases.cache.is_some().then_some(self as _)
    }

    fn statfs(&self, ctx: &Ctx) -> Result<StatFs> {
        self.ask(ctx, FsRequest::Statfs {})?.result()
    }

    fn lookup(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr> {
        let parent = self.node(parent)?;
        if let Some(known) = self.known(ctx, parent, name) {
            return known;
        }
        let start = self.link.leases.cache.as_ref().map(Cache::ask);
        let reply = self.ask(ctx, FsRequest::Lookup { parent, name })?;
        if let (Some(cache), Some(start), true) = (&self.link.leases.cache, start, reply.is_leased()) {
            let node_attr = reply.result::<NodeAttr>().ok();
            cache.keep_name(&start, parent, name, self.requester(ctx), node_attr.as_ref());
        }
        self.node_attr(&reply)
    }

    fn parent(&self, ctx: &Ctx, dir: Ino) -> Result<Ino> {
        let dir = self.node(dir)?;
        let node: Node = self.ask(ctx, FsRequest::Parent { dir })?.result()?;
        self.link.session.reclaim_state.learn_node(node);
        Ok(node.ino)
    }

    fn getattr(&self, ctx: &Ctx, ino: Ino) -> Result<Attr> {
        let node = self.node(ino)?;
        let ask = || self.ask(ctx, FsRequest::Getattr { node });
        self.link.attr(node, ask)
    }

    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let node = self.node(ino)?;
        self.change(ctx, FsRequest::Setattr { node, set: *set })?.result()
    }

    fn pin(&self, ctx: &Ctx, ino: Ino, generation: u32) -> Result<()> {
        if ino == ferrite_vfs::ROOT_INO {
            return Ok(());
        }
        if let Some(pinned) = self.link.session.reclaim_state.pin_again(ino, generation) {
            return pinned;
        }
        let node = self.node(ino)?;
        if node.generation != generation {
            return Err(FsError::Stale);
        }
        self.ask(ctx, FsRequest::Pin { node })?.result::<()>()?;
        self.link.session.reclaim_state.pinned(node);
        Ok(())
    }

    fn unpin(&self, _: &Ctx, ino: Ino, count: u64) {
        match self.link.session.reclaim_state.unpin(ino, count) {
            None | Some(0) => {}
            Some(granted) => self.link.post(FsRequest::Release {
                pins: vec![(ino, granted)],
            }),
        }
    }

    fn readlink(&self, ctx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let reply = self.ask(ctx, FsRequest::Readlink { node })?;
        self.link.was_read(ino);
        reply.result().map(|LinkTarget(target)| target.to_vec())
    }

    fn mknod(&self, ctx: &Ctx, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let parent = self.node(parent)?;
        self.node_attr(&self.change(
            ctx,
            FsRequest::Mknod {
                parent,
                name,
                new: NewNode {
                    mode: masked_mode(node.mode, ctx.umask),
                    ..*node
                },
            },
        )?)
    }

    fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let parent = self.node(parent)?;
        let mode = masked_mode(mode, ctx.umask);
        self.node_attr(&self.change(ctx, FsRequest::Mkdir { parent, name, mode })?)
    }

    fn symlink(&self, ctx: &Ctx, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let parent = self.node(parent)?;
        self.node_attr(&self.change(ctx, FsRequest::Symlink { parent, name, target })?)
    }

    fn link(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let (node, parent) = (self.node(ino)?, self.node(parent)?);
        self.node_attr(&self.change(ctx, FsRequest::Link { node, parent, name })?)
    }

    fn clone_tree(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let (node, parent) = (self.node(ino)?, self.node(parent)?);
        self.node_attr(&self.change(ctx, FsRequest::CloneTree { node, parent, name })?)
    }

    fn unlink(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.node(parent)?;
        self.change(ctx, FsRequest::Unlink { parent, name })?.result()
    }

    fn rmdir(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        let parent = self.node(parent)?;
        self.change(ctx, FsRequest::Rmdir { parent, name })?.result()
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
        let request = FsRequest::Rename {
            parent: self.node(parent)?,
            name,
            new_parent: self.node(new_parent)?,
            new_name,
            mode,
        };
        self.change(ctx, request)?.result()
    }

    fn readdir(&self, ctx: &Ctx, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        self.list(ctx, dir, cookie, false, &mut |entry, _| sink(entry))
    }

    fn readdir_plus(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()> {
        self.list(ctx, dir, cookie, true, sink)
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let node = self.node(ino)?;
        let file = self.link.fresh_id();
        let request = FsRequest::Open { node, mode, file };
        let reply = match request.is_change() {
            true => self.change(ctx, request)?,
            false => self.ask(ctx, request)?,
        };
        let FileMac(mac) = reply.result()?;
        Ok(self.record_open(node, mode, mac, file))
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        if self.link.options.read_only {
            if name == NO_NAME {
                return Err(FsError::ReadOnly);
            }
            posix::check_name(name)?;
            let start = Start {
                root: parent,
                base: parent,
            };
            return self.open_path(ctx, &start, name, &of_creation(new));
        }
        let file = self.link.fresh_id();
        let request = FsRequest::Create {
            parent: self.node(parent)?,
            name,
            new: NewFile {
                mode: masked_mode(new.mode, ctx.umask),
                ..*new
            },
            file,
        };
        self.opened(&self.change(ctx, request)?, new.open, file)
    }

    fn resolve(&self, ctx: &Ctx, start: &Start, path: &[u8], follow: bool) -> Result<Attr> {
        let request = FsRequest::Resolve {
            root: self.node(start.root)?,
            base: self.node(start.base)?,
            path,
            follow,
        };
        self.node_attr(&self.ask(ctx, request)?)
    }

    fn open_path(&self, ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<Opened> {
        let file = self.link.fresh_id();
        let flags = &self.without_creation(ctx, start, path, flags)?;
        let request = FsRequest::OpenPath {
            root: self.node(start.root)?,
            base: self.node(start.base)?,
            path,
            flags: *flags,
            file,
        };
        let reply = match request.is_change() {
            true => self.change(ctx, request)?,
            false => self.ask(ctx, request)?,
        };
        self.opened(&reply, flags.open_mode(), file)
    }

    fn getxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let reply = self.ask(ctx, FsRequest::Getxattr { node, name })?;
        reply.result().map(|XattrValue(value)| value.to_vec())
    }

    fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let node = self.node(ino)?;
        let request = FsRequest::Setxattr {
            node,
            name,
            value,
            mode,
        };
        self.change(ctx, request)?.result()
    }

    fn listxattr(&self, ctx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let node = self.node(ino)?;
        let reply = self.ask(ctx, FsRequest::Listxattr { node })?;
        let XattrNames(names) = reply.result()?;
        Ok(names.into_iter().map(<[u8]>::to_vec).collect())
    }

    fn removexattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let node = self.node(ino)?;
        self.change(ctx, FsRequest::Removexattr { node, name })?.result()
    }

    fn sync(&self, ctx: &Ctx) -> Result<()> {
        let sync = || self.ask(ctx, FsRequest::Sync {})?.result();
        self.link.session.unsynced.sync(sync)
    }

    /// Asks the server only if it may lose what it has answered.
    fn sync_names(&self, ctx: &Ctx) -> Result<()> {
        // It may have promised less before.
        match self.link.promises().is_durable_at_once && self.link.session.unsynced.is_settled() {
            true => Ok(()),
            false => self.sync(ctx),
        }
    }

    fn lock(&self, ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool, done: LockDone) -> Option<LockTicket> {
        locks::lock(&self.link, ctx, ino, request, may_wait, done)
    }

    fn unlock(&self, ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> Result<()> {
        locks::unlock(&self.link, ctx, ino, owner, what)
    }

    fn conflicting_lock(&self, ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Result<Option<RecordLock>> {
        locks::conflicting(&self.link, ctx, ino, lock)
    }

    fn cancel_lock(&self, _: &Ctx, ticket: LockTicket) {
        locks::cancel(&self.link, ticket);
    }

    fn release_client(&self, ctx: &Ctx) {
        locks::release_client(&self.link, ctx);
    }
}

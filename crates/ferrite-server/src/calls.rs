//! Replies to calls of the engine's traits.
//!
//! Contents: [`RequestHandler`], and the calls of the file system; below it, those of open files (`file`) and listings
//! (`listing`). Each call has a method that returns its result, and [`super::reply`] encodes that.
//!
//! Invariant: every inode that a request names is held during the call of the engine ([`Session::hold`]), so that it
//! cannot become another file meanwhile.

mod file;
mod listing;

use std::sync::Arc;

use ferrite_buffers::Pool;
use ferrite_transport::send_queue::SendQueue;
use ferrite_vfs::{
    Attr, Ctx, FileSystem, FsError, Ino, NewFile, NewNode, OpenFile, OpenFlags, OpenMode, Opened, ROOT_INO, RenameMode,
    Result, SYSTEM, SetAttr, Start, Unsynced, XattrMode, posix, walk,
};

use super::reply::{Bytes, Names, Reply, put, put_reply};
use super::session::Session;
use super::state::HIDDEN_PREFIX;
use ferrite_proto::{FsRequest, Head, Node, NodeAttr, OpenedFile, unmasked_mode};

/// A request in execution.
pub(super) struct RequestHandler<'s> {
    session: &'s Arc<Session>,
    id: u64,
    ctx: Ctx,
    pool: &'s Pool,
    is_repeated_release: bool,
    /// The client has left the check to its kernel.
    is_kernels: bool,
}

impl<'s> RequestHandler<'s> {
    /// Prepares the reply. Refuses a token that does not belong to the session.
    pub(super) fn new(session: &'s Arc<Session>, head: Head, pool: &'s Pool) -> Result<Self> {
        let mut ctx = session.export.ctx(head.caller, head.check, head.pins);
        ctx.token = session.token(head.id, head.token)?;
        let is_repeated_release = session.repeats(head.id, head.settled_below);
        Ok(RequestHandler {
            session,
            is_repeated_release,
            is_kernels: !head.check,
            id: head.id,
            ctx,
            pool,
        })
    }

    /// Answers a call of the file system.
    pub(super) fn reply(&self, request: FsRequest<'_>, out: &mut SendQueue) {
        let id = self.id;
        if let Err(error) = self.permit(request.is_change() || request.opens_for_writing()) {
            return put::<()>(out, id, Err(error));
        }
        match request {
            FsRequest::Statfs {} => put(out, id, self.fs().statfs(&self.ctx)),
            FsRequest::Lookup { parent, name } => put_reply(out, id, self.lookup(parent, name)),
            FsRequest::Parent { dir } => put(out, id, self.parent(dir)),
            FsRequest::Getattr { node } => put_reply(out, id, self.getattr(node)),
            FsRequest::Setattr { node, set } => put(out, id, self.setattr(node, &set)),
            FsRequest::Pin { node } => put(out, id, self.pin(node)),
            FsRequest::Release { pins } => put(out, id, self.release(&pins)),
            FsRequest::Readlink { node } => put(out, id, self.readlink(node)),
            FsRequest::Mknod { parent, name, new } => put(out, id, self.mknod(parent, name, &new)),
            FsRequest::Mkdir { parent, name, mode } => put(out, id, self.mkdir(parent, name, mode)),
            FsRequest::Symlink { parent, name, target } => put(out, id, self.symlink(parent, name, target)),
            FsRequest::Link { node, parent, name } => put(out, id, self.link(node, parent, name)),
            FsRequest::CloneTree { node, parent, name } => put(out, id, self.clone_tree(node, parent, name)),
            FsRequest::Unlink { parent, name } => put(out, id, self.unlink(parent, name)),
            FsRequest::Rmdir { parent, name } => put(out, id, self.rmdir(parent, name)),
            FsRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => put(out, id, self.rename((parent, name), (new_parent, new_name), mode)),
            FsRequest::Readdir {
                dir,
                cookie,
                with_attributes,
                reply_bytes,
            } => self.readdir((dir, cookie), with_attributes, reply_bytes as usize, out),
            FsRequest::Open { node, mode, file } => put(out, id, self.open(node, mode, file)),
            FsRequest::Create {
                parent,
                name,
                new,
                file,
            } => put(out, id, self.create(parent, name, &new, file)),
            FsRequest::Resolve {
                root,
                base,
                path,
                follow,
            } => put(out, id, self.resolve((root, base), path, follow)),
            FsRequest::OpenPath {
                root,
                base,
                path,
                flags,
                file,
            } => put(out, id, self.open_path((root, base), path, &flags, file)),
            FsRequest::Getxattr { node, name } => put(out, id, self.getxattr(node, name)),
            FsRequest::Setxattr {
                node,
                name,
                value,
                mode,
            } => put(out, id, self.setxattr(node, (name, value), mode)),
            FsRequest::Listxattr { node } => put(out, id, self.listxattr(node)),
            FsRequest::Removexattr { node, name } => put(out, id, self.removexattr(node, name)),
            FsRequest::Sync {} => put(out, id, self.fs().sync(&self.ctx)),
            FsRequest::Reopen { node, mode, mac, file } => put(out, id, self.reopen(node, mode, mac, file)),
        }
    }

    fn fs(&self) -> &dyn FileSystem {
        self.session.export.fs()
    }

    /// Refuses changes on a read-only export.
    fn permit(&self, changes: bool) -> Result<()> {
        match changes && self.session.export.options.read_only {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    fn reported(&self, attr: Attr) -> NodeAttr {
        let export = &self.session.export;
        // The engine does not pin its root. The export's root is pinned as long as the server runs.
        let has_pin = self.ctx.pins && attr.ino != ROOT_INO;
        let is_pinned = has_pin && attr.ino != export.root() && self.session.grant(self.id, attr.ino);
        if has_pin && attr.ino == export.root() {
            export.fs().unpin(SYSTEM, attr.ino, 1);
        }
        NodeAttr {
            attr: export.shown_attr(attr),
            mac: export.node(attr.ino, attr.generation).mac,
            is_pinned,
        }
    }

    /// Whether a change of content that has been made would end with this process: then it is not answered before it is
    /// durable, for clients come back to the next process, and do not know what it lacks. A change with a token is
    /// durable together with its outcome.
    fn leaves_unsynced(&self) -> bool {
        self.ctx.token.is_none() && self.session.export.store.limits.unsynced == Unsynced::Content
    }

    /// [`Self::leaves_unsynced`], after a change of this file.
    fn settle(&self, file: &dyn OpenFile) -> Result<()> {
        match self.leaves_unsynced() {
            true => file.fsync(SYSTEM),
            false => Ok(()),
        }
    }

    /// Keeps an open file, and describes it.
    fn opened(&self, opened: Opened, mode: OpenMode, number: u64) -> Result<OpenedFile> {
        let attr = opened.attr;
        let node_attr = self.reported(attr);
        let settled = match mode.truncate {
            true => self.settle(&*opened.file),
            false => Ok(()),
        };
        // A failure gives the pin back.
        if let Err(error) = settled.and_then(|()| self.session.keep_file(number, opened.file, mode)) {
            self.session.undo(self.id);
            return Err(error);
        }
        Ok(OpenedFile {
            node_attr,
            created: opened.created,
            mac: self.file_mac(attr.ino, attr.generation, mode),
        })
    }

    fn file_mac(&self, ino: Ino, generation: u32, mode: OpenMode) -> u64 {
        let export = &self.session.export;
        export.authenticator.file(export.shown(ino), generation, mode)
    }

    /// Attributes, as clients see them.
    fn shown(&self, attr: Attr) -> Attr {
        self.session.export.shown_attr(attr)
    }

    /// The reply with attributes. An inode without names is freed without another change, so nobody may cache anything
    /// of it.
    fn attr_reply(&self, attr: Result<Attr>, is_leased: bool) -> Reply<Attr> {
        Reply {
            is_leased: is_leased && attr.as_ref().is_ok_and(|attr| attr.nlink > 0),
            result: attr.map(|attr| self.shown(attr)),
        }
    }

    fn lookup(&self, parent: Node, name: &[u8]) -> Reply<NodeAttr> {
        let mut is_leased = false;
        let result = self.find(parent, name, &mut is_leased);
        Reply { result, is_leased }
    }

    /// Sets `is_leased` if the session has leases on the directory, and on the inode found.
    fn find(&self, parent: Node, name: &[u8], is_leased: &mut bool) -> Result<NodeAttr> {
        let (session, fs) = (self.session, self.fs());
        let dir = session.hold(parent)?;
        let has_lease = session.lease(dir.ino);
        let attr = match fs.lookup(&self.ctx, dir.ino, name) {
            Ok(attr) => attr,
            Err(error) => {
                *is_leased = has_lease && matches!(error, FsError::NotFound);
                return Err(error);
            }
        };
        let mut reported = self.reported(attr);
        // The attributes are older than the lease on them.
        if has_lease
            && session.lease(attr.ino)
            && let Ok(again) = fs.getattr(SYSTEM, attr.ino)
            && again.generation == attr.generation
            && again.nlink > 0
        {
            *is_leased = true;
            reported.attr = self.shown(again);
        }
        Ok(reported)
    }

    fn parent(&self, dir: Node) -> Result<Node> {
        let export = &self.session.export;
        let held = self.session.hold(dir)?;
        if held.ino == export.root() {
            return Ok(export.root_node());
        }
        let parent = export.fs().parent(&self.ctx, held.ino)?;
        let node = export.node(parent, export.fs().getattr(SYSTEM, parent)?.generation);
        // It may have been moved out of the export since this directory was checked.
        self.session.hold(node)?;
        Ok(node)
    }

    fn getattr(&self, node: Node) -> Reply<Attr> {
        let held = self.session.hold(node);
        // The lease comes first: attributes older than it could be cached although they have changed.
        let is_leased = held.as_ref().is_ok_and(|node| self.session.lease(node.ino));
        let attr = held.and_then(|node| self.fs().getattr(&self.ctx, node.ino));
        self.attr_reply(attr, is_leased)
    }

    fn setattr(&self, node: Node, set: &SetAttr) -> Result<Attr> {
        let node = self.session.hold(node)?;
        let attr = self.fs().setattr(&self.ctx, node.ino, set)?;
        if set.size.is_some() && self.leaves_unsynced() {
            self.fs().open(SYSTEM, node.ino, OpenMode::read_only())?.fsync(SYSTEM)?;
        }
        Ok(self.shown(attr))
    }

    fn pin(&self, node: Node) -> Result<()> {
        let export = &self.session.export;
        let held = self.session.hold(node)?;
        if held.ino == export.root() {
            return Ok(());
        }
        export.fs().pin(SYSTEM, held.ino, node.generation)?;
        self.session.claim(self.id, held.ino)
    }

    fn release(&self, pins: &[(Ino, u64)]) -> Result<()> {
        if !self.is_repeated_release {
            self.session.release(self.id, pins);
        }
        Ok(())
    }

    fn readlink(&self, node: Node) -> Result<Bytes> {
        let node = self.session.hold(node)?;
        self.fs().readlink(&self.ctx, node.ino).map(Bytes)
    }

    /// The context of a call that makes an inode.
    fn masking(&self, umask: u32) -> Ctx {
        Ctx {
            umask,
            ..self.ctx.clone()
        }
    }

    fn mknod(&self, parent: Node, name: &[u8], new: &NewNode) -> Result<NodeAttr> {
        let parent = self.session.hold(parent)?;
        let (mode, umask) = unmasked_mode(new.mode);
        let new = NewNode { mode, ..*new };
        let attr = self.fs().mknod(&self.masking(umask), parent.ino, name, &new)?;
        Ok(self.reported(attr))
    }

    fn mkdir(&self, parent: Node, name: &[u8], mode: u32) -> Result<NodeAttr> {
        let parent = self.session.hold(parent)?;
        let export = &self.session.export;
        if parent.ino == export.root() && self.fs().takes_snapshots(parent.ino) {
            // A snapshot would show what is outside of the export.
            return Err(FsError::AccessDenied);
        }
        let (mode, umask) = unmasked_mode(mode);
        let attr = self.fs().mkdir(&self.masking(umask), parent.ino, name, mode)?;
        Ok(self.reported(attr))
    }

    fn symlink(&self, parent: Node, name: &[u8], target: &[u8]) -> Result<NodeAttr> {
        let parent = self.session.hold(parent)?;
        let attr = self.fs().symlink(&self.ctx, parent.ino, name, target)?;
        Ok(self.reported(attr))
    }

    fn link(&self, node: Node, parent: Node, name: &[u8]) -> Result<NodeAttr> {
        let (node, parent) = (self.session.hold(node)?, self.session.hold(parent)?);
        let attr = self.fs().link(&self.ctx, node.ino, parent.ino, name)?;
        Ok(self.reported(attr))
    }

    fn clone_tree(&self, node: Node, parent: Node, name: &[u8]) -> Result<NodeAttr> {
        let (node, parent) = (self.session.hold(node)?, self.session.hold(parent)?);
        let attr = self.fs().clone_tree(&self.ctx, node.ino, parent.ino, name)?;
        Ok(self.reported(attr))
    }

    fn unlink(&self, parent: Node, name: &[u8]) -> Result<()> {
        let parent = self.session.hold(parent)?;
        self.fs().unlink(&self.ctx, parent.ino, name)
    }

    fn rmdir(&self, parent: Node, name: &[u8]) -> Result<()> {
        let parent = self.session.hold(parent)?;
        self.fs().rmdir(&self.ctx, parent.ino, name)
    }

    fn rename(
        &self,
        (parent, name): (Node, &[u8]),
        (new_parent, new_name): (Node, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let (old, new) = (self.session.hold(parent)?, self.session.hold(new_parent)?);
        self.fs().rename(&self.ctx, old.ino, name, new.ino, new_name, mode)?;
        let borders = &self.session.export.store.borders;
        borders.renamed(self.fs(), old.ino, new.ino);
        Ok(())
    }

    fn open(&self, node: Node, mode: OpenMode, number: u64) -> Result<u64> {
        let held = self.session.hold(node)?;
        let fs = self.fs();
        let file = match fs.open(&self.ctx, held.ino, mode) {
            Err(FsError::AccessDenied) if mode == OpenMode::read_only() && self.may_run(held.ino)? => {
                let unchecked = Ctx {
                    check: false,
                    ..self.ctx.clone()
                };
                fs.open(&unchecked, held.ino, mode)?
            }
            opened => opened?,
        };
        if mode.truncate {
            self.settle(&*file)?;
        }
        self.session.keep_file(number, file, mode)?;
        Ok(self.file_mac(held.ino, node.generation, mode))
    }

    /// Whether the caller may execute a file. A kernel reads a program for a caller that may only execute it, and does
    /// not say so.
    fn may_run(&self, ino: Ino) -> Result<bool> {
        let cred = &self.ctx.cred;
        let guarded = walk::guarded(self.fs(), self.fs().getattr(SYSTEM, ino)?, cred)?;
        Ok(self.is_kernels && posix::may_access(&guarded, cred, posix::Access::EXEC).is_ok())
    }

    /// Reopens a file. The client opened it before the restart of the server, and may have lost the permission, or the
    /// name, since.
    fn reopen(&self, node: Node, mode: OpenMode, mac: u64, number: u64) -> Result<()> {
        let held = self.session.hold(node)?;
        if self.file_mac(held.ino, node.generation, mode) != mac {
            return Err(FsError::Stale);
        }
        let mode = OpenMode {
            truncate: false,
            ..mode
        };
        let file = self.fs().open(SYSTEM, held.ino, mode)?;
        self.session.keep_file(number, file, mode)
    }

    fn create(&self, parent: Node, name: &[u8], new: &NewFile, number: u64) -> Result<OpenedFile> {
        self.session.has_space_for_file()?;
        let parent = self.session.hold(parent)?;
        let (mode, umask) = unmasked_mode(new.mode);
        let new = &NewFile { mode, ..*new };
        let opened = self.fs().create(&self.masking(umask), parent.ino, name, new)?;
        self.opened(opened, new.open, number)
    }

    fn resolve(&self, (root, base): (Node, Node), path: &[u8], follow: bool) -> Result<NodeAttr> {
        let (root, base) = (self.session.hold(root)?, self.session.hold(base)?);
        let start = Start {
            root: root.ino,
            base: base.ino,
        };
        // The client's root lies within the export, or its MAC would be wrong.
        let attr = self.fs().resolve(&self.ctx, &start, path, follow)?;
        Ok(self.reported(attr))
    }

    fn open_path(&self, (root, base): (Node, Node), path: &[u8], flags: &OpenFlags, number: u64) -> Result<OpenedFile> {
        self.session.has_space_for_file()?;
        let (root, base) = (self.session.hold(root)?, self.session.hold(base)?);
        let start = Start {
            root: root.ino,
            base: base.ino,
        };
        let opened = self.fs().open_path(&self.ctx, &start, path, flags)?;
        self.opened(opened, flags.open_mode(), number)
    }

    fn getxattr(&self, node: Node, name: &[u8]) -> Result<Bytes> {
        let node = self.session.hold(node)?;
        match name.starts_with(HIDDEN_PREFIX) {
            true => Err(FsError::NoAttribute),
            false => self.fs().getxattr(&self.ctx, node.ino, name).map(Bytes),
        }
    }

    fn setxattr(&self, node: Node, (name, value): (&[u8], &[u8]), mode: XattrMode) -> Result<()> {
        let node = self.session.hold(node)?;
        not_hidden(name)?;
        self.fs().setxattr(&self.ctx, node.ino, name, value, mode)
    }

    fn listxattr(&self, node: Node) -> Result<Names> {
        let node = self.session.hold(node)?;
        let mut names = self.fs().listxattr(&self.ctx, node.ino)?;
        names.retain(|name| !name.starts_with(HIDDEN_PREFIX));
        Ok(Names(names))
    }

    fn removexattr(&self, node: Node, name: &[u8]) -> Result<()> {
        let node = self.session.hold(node)?;
        not_hidden(name)?;
        self.fs().removexattr(&self.ctx, node.ino, name)
    }
}

/// Refuses to change an attribute that belongs to the server.
fn not_hidden(name: &[u8]) -> Result<()> {
    match name.starts_with(HIDDEN_PREFIX) {
        true => Err(FsError::NotPermitted),
        false => Ok(()),
    }
}

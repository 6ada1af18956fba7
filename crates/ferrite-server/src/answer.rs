//! Answers to a session's requests: each is a call of the engine.
//!
//! Invariant: every inode that a request names is held during the call of the engine ([`Session::hold`]), so that it
//! cannot become another file meanwhile.

use std::sync::Arc;

use ferrite_buffers::Pool;
use ferrite_buffers::lent::Lent;
use ferrite_fabric::frame::{BODY_BYTES_MAX, DATA_BYTES_MAX, INLINE_BYTES_MAX};
use ferrite_fabric::outbox::{Frame, Outbox};
use ferrite_fabric::reactor::Served;
use ferrite_vfs::{
    Attr, BadArgument, Ctx, DirEntry, FsError, Ino, OpenFile, OpenMode, Opened, ROOT_INO, Result, SYSTEM, Start, posix,
};

use super::meter;
use super::session::Session;
use super::state::HIDDEN_PREFIX;
use ferrite_proto::{
    AnswerHead, ENTRY_FOLLOWS, Entry, EntryTold, Head, LISTING_BYTES_MAX, LISTING_ENDS, LISTING_GOES_ON, Node,
    OpenedFile, Piece, Request, Told, Wire,
};

/// The longest entry, with a margin.
const ENTRY_BYTES_MAX: usize = 1600;
const _: () = assert!(LISTING_BYTES_MAX + ENTRY_BYTES_MAX < BODY_BYTES_MAX);

/// Appends the answer to the request `id`.
pub(super) fn put<T: for<'m> Wire<'m>>(out: &mut Outbox, id: u64, result: Result<T>) {
    put_leased(out, id, result, false);
}

/// The same for an answer on which the session has a lease.
fn put_leased<T: for<'m> Wire<'m>>(out: &mut Outbox, id: u64, result: Result<T>, is_leased: bool) {
    let mut frame = out.frame();
    let head = AnswerHead {
        id,
        is_ok: result.is_ok(),
        is_leased,
    };
    head.put(frame.body());
    match result {
        Ok(value) => value.put(frame.body()),
        Err(error) => {
            meter::note_failure();
            error.put(frame.body());
        }
    }
    frame.finish();
}

/// The same for bytes.
fn put_bytes(out: &mut Outbox, id: u64, result: Result<Vec<u8>>) {
    match result {
        Ok(bytes) => {
            let mut frame = out.frame();
            AnswerHead::ok(id).put(frame.body());
            (&bytes[..]).put(frame.body());
            frame.finish();
        }
        Err(error) => put::<()>(out, id, Err(error)),
    }
}

/// A request in execution.
pub(super) struct Answering<'s> {
    pub(super) session: &'s Arc<Session>,
    pub(super) id: u64,
    pub(super) ctx: Ctx,
    pub(super) pool: &'s Pool,
    is_repeated_release: bool,
    /// The client has left the check to its kernel.
    is_kernels: bool,
}

impl<'s> Answering<'s> {
    /// Prepares the answer. Refuses a token that does not belong to the session.
    pub(super) fn new(session: &'s Arc<Session>, head: Head, pool: &'s Pool) -> Result<Self> {
        let mut ctx = session.export.ctx(head.caller, head.check, head.pins);
        ctx.once = session.token(head.id, head.once)?;
        let is_repeated_release = session.repeats(head.id, head.settled_below);
        Ok(Answering {
            session,
            is_repeated_release,
            is_kernels: !head.check,
            id: head.id,
            ctx,
            pool,
        })
    }

    fn told(&self, attr: Attr) -> Told {
        let export = &self.session.export;
        // The engine does not pin its root. The export's root is pinned as long as the server runs.
        let has_pin = self.ctx.pins && attr.ino != ROOT_INO;
        let is_pinned = has_pin && attr.ino != export.root() && self.session.grant(self.id, attr.ino);
        if has_pin && attr.ino == export.root() {
            export.fs().unpin(SYSTEM, attr.ino, 1);
        }
        Told {
            attr: export.shown_attr(attr),
            seal: export.node(attr.ino, attr.generation).seal,
            is_pinned,
        }
    }

    fn named(&self, result: Result<Attr>) -> Result<Told> {
        result.map(|attr| self.told(attr))
    }

    fn start(&self, root: Ino, base: Ino) -> Start {
        // The client's root lies within the export, or its seal would be wrong.
        Start { root, base }
    }

    fn opened(&self, opened: Opened, mode: OpenMode, number: u64) -> Result<OpenedFile> {
        let attr = opened.attr;
        let told = self.told(attr);
        if let Err(error) = self.session.keep_file(number, opened.file, mode) {
            self.session.undo(self.id);
            return Err(error);
        }
        Ok(OpenedFile {
            told,
            created: opened.created,
            seal: self.file_seal(attr.ino, attr.generation, mode),
        })
    }

    fn file_seal(&self, ino: Ino, generation: u32, mode: OpenMode) -> u64 {
        let export = &self.session.export;
        export.sealer.file(export.shown(ino), generation, mode)
    }

    fn file(&self, number: u64) -> Result<Arc<dyn OpenFile>> {
        self.session.file(number)
    }

    /// Attributes of an open file, as clients see them.
    fn shown(&self, result: Result<Attr>) -> Result<Attr> {
        result.map(|attr| self.session.export.shown_attr(attr))
    }

    /// Refuses changes on a read-only export.
    fn permit(&self, request: &Request<'_>) -> Result<()> {
        let changes = request.is_change() || request.opens_for_writing();
        match changes && self.session.export.options.read_only {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Answers everything except locks, and requests about the session itself.
    pub(super) fn answer(&self, request: Request<'_>, data: &[u8], out: &mut Outbox) -> Served {
        let id = self.id;
        if let Err(error) = self.permit(&request) {
            put::<()>(out, id, Err(error));
            return Served::Yes;
        }
        let (session, ctx) = (self.session, &self.ctx);
        let fs = session.export.fs();
        match request {
            Request::Statfs {} => put(out, id, fs.statfs(ctx)),
            Request::Lookup { parent, name } => {
                let mut is_leased = false;
                let found = session
                    .hold(parent)
                    .and_then(|parent| self.lookup(parent.ino, name, &mut is_leased));
                put_leased(out, id, found, is_leased);
            }
            Request::Parent { dir } => put(out, id, self.parent(dir)),
            Request::Getattr { node } => {
                let held = session.hold(node);
                let is_leased = held.as_ref().is_ok_and(|node| session.lease(node.ino));
                let attr = held.and_then(|node| self.shown(fs.getattr(ctx, node.ino)));
                self.put_attr(out, attr, is_leased);
            }
            Request::Setattr { node, set } => {
                let held = session.hold(node);
                put(
                    out,
                    id,
                    held.and_then(|node| self.shown(fs.setattr(ctx, node.ino, &set))),
                );
            }
            Request::Pin { node } => put(out, id, self.pin(node)),
            Request::Release { pins } => {
                if !self.is_repeated_release {
                    session.release(id, &pins);
                }
                put(out, id, Ok(()));
            }
            Request::Readlink { node } => {
                let held = session.hold(node);
                put_bytes(out, id, held.and_then(|node| fs.readlink(ctx, node.ino)));
            }
            Request::Mknod { parent, name, new } => {
                let held = session.hold(parent);
                put(
                    out,
                    id,
                    held.and_then(|parent| self.named(fs.mknod(ctx, parent.ino, name, &new))),
                );
            }
            Request::Mkdir { parent, name, mode } => {
                let held = session.hold(parent);
                put(
                    out,
                    id,
                    held.and_then(|parent| self.named(fs.mkdir(ctx, parent.ino, name, mode))),
                );
            }
            Request::Symlink { parent, name, target } => {
                let held = session.hold(parent);
                let link = held.and_then(|parent| self.named(fs.symlink(ctx, parent.ino, name, target)));
                put(out, id, link);
            }
            Request::Link { node, parent, name } => {
                let held = session.hold(node).and_then(|node| Ok((node, session.hold(parent)?)));
                let link = held.and_then(|(node, parent)| self.named(fs.link(ctx, node.ino, parent.ino, name)));
                put(out, id, link);
            }
            Request::Unlink { parent, name } => {
                let held = session.hold(parent);
                put(out, id, held.and_then(|parent| fs.unlink(ctx, parent.ino, name)));
            }
            Request::Rmdir { parent, name } => {
                let held = session.hold(parent);
                put(out, id, held.and_then(|parent| fs.rmdir(ctx, parent.ino, name)));
            }
            Request::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => {
                let held = session
                    .hold(parent)
                    .and_then(|old| Ok((old, session.hold(new_parent)?)));
                let renamed = held.and_then(|(old, new)| {
                    fs.rename(ctx, old.ino, name, new.ino, new_name, mode)?;
                    session.export.store.borders.renamed(fs, old.ino, new.ino);
                    Ok(())
                });
                put(out, id, renamed);
            }
            Request::Readdir {
                dir,
                cookie,
                with_attributes,
                room_bytes,
            } => self.list((dir, cookie), with_attributes, room_bytes as usize, out),
            Request::Open { node, mode, file } => put(out, id, self.open(node, mode, file)),
            Request::Create {
                parent,
                name,
                new,
                file,
            } => {
                let held = session.has_room_for_file().and_then(|()| session.hold(parent));
                let opened = held.and_then(|parent| fs.create(ctx, parent.ino, name, &new));
                put(out, id, opened.and_then(|opened| self.opened(opened, new.open, file)));
            }
            Request::Resolve {
                root,
                base,
                path,
                follow,
            } => {
                let held = session.hold(root).and_then(|root| Ok((root, session.hold(base)?)));
                let found =
                    held.and_then(|(root, base)| fs.resolve(ctx, &self.start(root.ino, base.ino), path, follow));
                put(out, id, self.named(found));
            }
            Request::OpenPath {
                root,
                base,
                path,
                flags,
                file,
            } => {
                let room = session.has_room_for_file();
                let held = room.and_then(|()| Ok((session.hold(root)?, session.hold(base)?)));
                let opened = held.and_then(|(root, base)| {
                    let opened = fs.open_path(ctx, &self.start(root.ino, base.ino), path, &flags)?;
                    self.opened(opened, flags.open_mode(), file)
                });
                put(out, id, opened);
            }
            Request::Getxattr { node, name } => {
                let held = session.hold(node);
                let value = held.and_then(|node| match name.starts_with(HIDDEN_PREFIX) {
                    true => Err(FsError::NoAttribute),
                    false => fs.getxattr(ctx, node.ino, name),
                });
                put_bytes(out, id, value);
            }
            Request::Setxattr {
                node,
                name,
                value,
                mode,
            } => {
                let held = session.hold(node);
                let set = held.and_then(|node| {
                    self.not_hidden(name)?;
                    fs.setxattr(ctx, node.ino, name, value, mode)
                });
                put(out, id, set);
            }
            Request::Listxattr { node } => {
                let held = session.hold(node);
                let names = held.and_then(|node| fs.listxattr(ctx, node.ino));
                match names {
                    Ok(names) => {
                        let shown = names.iter().filter(|name| !name.starts_with(HIDDEN_PREFIX));
                        let shown: Vec<&[u8]> = shown.map(Vec::as_slice).collect();
                        let mut frame = out.frame();
                        AnswerHead::ok(id).put(frame.body());
                        shown.put(frame.body());
                        frame.finish();
                    }
                    Err(error) => put::<()>(out, id, Err(error)),
                }
            }
            Request::Removexattr { node, name } => {
                let held = session.hold(node);
                let removed = held.and_then(|node| {
                    self.not_hidden(name)?;
                    fs.removexattr(ctx, node.ino, name)
                });
                put(out, id, removed);
            }
            Request::Sync {} => put(out, id, fs.sync(ctx)),
            Request::FileGetattr { file } => {
                let file = self.file(file);
                let is_leased = file.as_ref().is_ok_and(|file| session.lease(file.ino()));
                self.put_attr(out, self.shown(file.and_then(|file| file.getattr(ctx))), is_leased);
            }
            Request::FileSetattr { file, set } => {
                put(
                    out,
                    id,
                    self.shown(self.file(file).and_then(|file| file.setattr(ctx, &set))),
                );
            }
            Request::Read {
                file,
                offset,
                len_bytes,
            } => return self.read(file, offset, len_bytes as usize, out),
            Request::ReadPiece {
                file,
                offset,
                len_bytes,
            } => return self.read_piece(file, offset, len_bytes as usize, out),
            Request::Write { file, mode } => {
                let written = self.file(file).and_then(|file| file.write(ctx, mode, data));
                put(
                    out,
                    id,
                    written.map(|written| (written.offset, written.len_bytes as u64)),
                );
            }
            Request::Fallocate {
                file,
                mode,
                offset,
                len_bytes,
            } => {
                let done = self
                    .file(file)
                    .and_then(|file| file.fallocate(ctx, mode, offset, len_bytes));
                put(out, id, done);
            }
            Request::SeekData { file, offset } => {
                put(out, id, self.file(file).and_then(|file| file.seek_data(ctx, offset)));
            }
            Request::SeekHole { file, offset } => {
                put(out, id, self.file(file).and_then(|file| file.seek_hole(ctx, offset)));
            }
            Request::Fsync { file } => put(out, id, self.file(file).and_then(|file| file.fsync(ctx))),
            Request::Close { files } => {
                session.close_files(&files);
                put(out, id, Ok(()));
            }
            Request::Reopen { node, mode, seal, file } => put(out, id, self.reopen(node, mode, seal, file)),
            Request::Hello { .. }
            | Request::Ping {}
            | Request::Slots { .. }
            | Request::Activity {}
            | Request::Leases { .. }
            | Request::Recalled { .. }
            | Request::Goodbye {}
            | Request::Reclaimed {}
            | Request::ReclaimSlots { .. }
            | Request::Abandon { .. }
            | Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::ConflictingLock { .. }
            | Request::CancelLock { .. }
            | Request::ReleaseClient { .. }
            | Request::Rdma {}
            | Request::OpenQueuePair { .. }
            | Request::CloseQueuePair { .. }
            | Request::Bind { .. }
            | Request::ReleaseKey { .. }
            | Request::Unbind { .. }
            | Request::RdmaActivity {} => {
                put::<()>(
                    out,
                    id,
                    Err(FsError::Io("the server mistook a request for another".into())),
                );
            }
        }
        Served::Yes
    }

    /// Sets `is_leased` if the session has leases on the directory, and on the inode found.
    fn lookup(&self, dir: Ino, name: &[u8], is_leased: &mut bool) -> Result<Told> {
        let (session, fs) = (self.session, self.session.export.fs());
        let has_lease = session.lease(dir);
        let found = fs.lookup(&self.ctx, dir, name);
        let attr = match found {
            Ok(attr) => attr,
            Err(error) => {
                *is_leased = has_lease && matches!(error, FsError::NotFound);
                return Err(error);
            }
        };
        let mut told = self.told(attr);
        // The attributes are older than the lease on them.
        if has_lease
            && session.lease(attr.ino)
            && let Ok(again) = fs.getattr(SYSTEM, attr.ino)
            && again.generation == attr.generation
            && again.nlink > 0
        {
            *is_leased = true;
            told.attr = session.export.shown_attr(again);
        }
        Ok(told)
    }

    /// An inode without names is freed without another change, so nobody may cache anything of it.
    fn put_attr(&self, out: &mut Outbox, attr: Result<Attr>, is_leased: bool) {
        let is_leased = is_leased && attr.as_ref().is_ok_and(|attr| attr.nlink > 0);
        put_leased(out, self.id, attr, is_leased);
    }

    fn not_hidden(&self, name: &[u8]) -> Result<()> {
        match name.starts_with(HIDDEN_PREFIX) {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
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

    fn pin(&self, node: Node) -> Result<()> {
        let export = &self.session.export;
        let held = self.session.hold(node)?;
        if held.ino == export.root() {
            return Ok(());
        }
        export.fs().pin(SYSTEM, held.ino, node.generation)?;
        self.session.claim(self.id, held.ino)
    }

    fn open(&self, node: Node, mode: OpenMode, number: u64) -> Result<u64> {
        let held = self.session.hold(node)?;
        let fs = self.session.export.fs();
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
        self.session.keep_file(number, file, mode)?;
        Ok(self.file_seal(held.ino, node.generation, mode))
    }

    /// Whether the caller may execute a file. A kernel reads a program for a caller that may only execute it, and does
    /// not say so.
    fn may_run(&self, ino: Ino) -> Result<bool> {
        let attr = self.session.export.fs().getattr(SYSTEM, ino)?;
        Ok(self.is_kernels && posix::may_access(&attr, &self.ctx.cred, posix::Access::EXEC).is_ok())
    }

    /// Reopens a file. The client opened it before the restart of the server, and may have lost the permission, or the
    /// name, since.
    fn reopen(&self, node: Node, mode: OpenMode, seal: u64, number: u64) -> Result<()> {
        let held = self.session.hold(node)?;
        if self.file_seal(held.ino, node.generation, mode) != seal {
            return Err(FsError::Stale);
        }
        let mode = OpenMode {
            truncate: false,
            ..mode
        };
        let file = self.session.export.fs().open(SYSTEM, held.ino, mode)?;
        self.session.keep_file(number, file, mode)
    }

    /// Has no effect without a buffer.
    fn read(&self, number: u64, offset: u64, len: usize, out: &mut Outbox) -> Served {
        let id = self.id;
        let file = match self.file(number) {
            _ if len > DATA_BYTES_MAX => Err(FsError::Invalid(BadArgument::NoLength)),
            file => file,
        };
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                put::<()>(out, id, Err(error));
                return Served::Yes;
            }
        };
        if len <= INLINE_BYTES_MAX {
            let is_leased = self.session.lease(file.ino());
            let mut frame = out.frame();
            AnswerHead {
                is_leased,
                ..AnswerHead::ok(id)
            }
            .put(frame.body());
            let read = frame.try_finish_with(len, |room| file.read_at(&self.ctx, offset, room));
            if let Err(error) = read {
                put::<()>(out, id, Err(error));
            }
            return Served::Yes;
        }
        let Some(mut buffer) = self.pool.take(len) else {
            return Served::Starved;
        };
        let is_leased = self.session.lease(file.ino());
        match file.read_at(&self.ctx, offset, &mut buffer) {
            Ok(count) => {
                buffer.set_len(count);
                let mut frame = out.frame();
                AnswerHead {
                    is_leased,
                    ..AnswerHead::ok(id)
                }
                .put(frame.body());
                frame.finish_from(buffer);
            }
            Err(error) => put::<()>(out, id, Err(error)),
        }
        Served::Yes
    }

    /// Reads a part of a longer read that the client splits. Parts of one version are of one state.
    fn read_piece(&self, number: u64, offset: u64, len: usize, out: &mut Outbox) -> Served {
        if len > DATA_BYTES_MAX {
            put::<()>(out, self.id, Err(FsError::Invalid(BadArgument::NoLength)));
            return Served::Yes;
        }
        let id = self.id;
        let head = |frame: &mut Frame<'_>, version: Option<u64>| {
            AnswerHead::ok(id).put(frame.body());
            Piece { version }.put(frame.body());
        };
        let file = match self.file(number) {
            Ok(file) => file,
            Err(error) => {
                put::<()>(out, id, Err(error));
                return Served::Yes;
            }
        };
        let Some(mut buffer) = self.pool.take(len) else {
            return Served::Starved;
        };
        if out.may_lend() {
            let mut rest = Some(buffer);
            let mut take = |lent: &Lent, version| {
                if let Some(rest) = rest.take() {
                    let mut frame = out.frame();
                    head(&mut frame, Some(version));
                    frame.finish_lent(lent, rest);
                }
            };
            let lent = file.lend(&self.ctx, offset, len, &mut take);
            match (lent, rest) {
                (Ok(_), None) => return Served::Yes,
                // The answer has begun, and lacks data that it announces: it must not arrive.
                (Err(error), None) => {
                    tracing::error!("a read from pages that were lent failed: {error}");
                    if let Some(link) = &*self.session.recipient.link.lock() {
                        link.close();
                    }
                    return Served::Yes;
                }
                (_, Some(unused)) => buffer = unused,
            }
        }
        match file.read_versioned(&self.ctx, offset, &mut buffer) {
            Ok((count, version)) => {
                buffer.set_len(count);
                let mut frame = out.frame();
                head(&mut frame, version);
                frame.finish_from(buffer);
            }
            Err(error) => put::<()>(out, id, Err(error)),
        }
        Served::Yes
    }

    /// Whether the caller may also use the entries of a directory that it lists; an error if it may not even list it.
    /// Engines leave that check to the opener of a directory. A client opens none here, and is not trusted if root is
    /// squashed: it lets its own root list everything.
    fn may_list(&self, dir: Ino) -> Result<bool> {
        let export = &self.session.export;
        if !export.options.root_squash {
            return Ok(true);
        }
        let (cred, attr) = (&self.ctx.cred, export.fs().getattr(SYSTEM, dir)?);
        posix::may_access(&attr, cred, posix::Access::READ)?;
        Ok(posix::may_access(&attr, cred, posix::Access::EXEC).is_ok())
    }

    /// Lists at least one entry, if the directory has one. A caller without search permission gets names alone.
    fn list(&self, (dir, cookie): (Node, u64), with_attributes: bool, room_bytes: usize, out: &mut Outbox) {
        let id = self.id;
        let export = &self.session.export;
        let held = self.session.hold(dir);
        let (dir, may_search) = match held.and_then(|dir| self.may_list(dir.ino).map(|may| (dir, may))) {
            Ok(found) => found,
            Err(error) => return put::<()>(out, id, Err(error)),
        };
        let mut frame = out.frame();
        AnswerHead::ok(id).put(frame.body());
        let room_bytes = frame.body_bytes() + room_bytes.min(LISTING_BYTES_MAX);
        let (mut ending, mut has_entry) = (LISTING_ENDS, false);
        // A client that wants no attributes still wants handles of the entries, but no pins.
        let mut ctx = self.ctx.clone();
        ctx.pins &= with_attributes && may_search;
        let mut append = |entry: &DirEntry<'_>, attr: Result<Attr>| {
            if std::mem::replace(&mut has_entry, true) && frame.body_bytes() > room_bytes {
                ending = LISTING_GOES_ON;
                return false;
            }
            let entry = Entry {
                ino: export.shown(entry.ino),
                kind: entry.kind,
                next_cookie: entry.next_cookie,
                name: entry.name,
                told: match attr {
                    _ if !may_search => EntryTold::Nothing(FsError::AccessDenied),
                    Ok(attr) if with_attributes => EntryTold::Attributes(self.told(attr)),
                    Ok(attr) => EntryTold::Node(export.node(attr.ino, attr.generation)),
                    Err(error) => EntryTold::Nothing(error),
                },
            };
            ENTRY_FOLLOWS.put(frame.body());
            entry.put(frame.body());
            true
        };
        let listed = export.fs().readdir_plus(&ctx, dir.ino, cookie, &mut append);
        match listed {
            Ok(()) => {
                ending.put(frame.body());
                frame.finish();
            }
            Err(error) => {
                drop(frame);
                // Entries before the error are discarded.
                self.session.undo(id);
                put::<()>(out, id, Err(error));
            }
        }
    }
}

//! The passage of each call of the two traits across the network.
//!
//! Invariant: only this module says, call by call, which calls may be executed twice.

use std::sync::Arc;
use std::time::Duration;

use ferrite_vfs::locks::{LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::{
    Attr, CloneRange, Ctx, DirEntry, FallocateMode, FileKind, FileSystem, Ino, Limits, NewFile, NewNode, OpenFile,
    OpenFlags, OpenMode, Opened, ROOT_INO, RenameMode, Result, SetAttr, Start, StatFs, WriteMode, Written, XattrMode,
};

use super::parcel::Parcel;
use super::wire::Network;
use super::{Remote, Served};

/// How long a cache may use a reply: other clients may use the same service.
const VALIDITY: Duration = Duration::from_millis(1);

/// Whether a change may be sent again, because the engine executes it once however often it comes.
fn has_token(ctx: &Ctx) -> bool {
    ctx.token.is_some()
}

/// An open file behind a network. Dropping it closes the engine's file.
struct RemoteFile {
    network: Arc<Network>,
    ino: Ino,
    /// None only while it is dropped.
    file: Option<Arc<dyn OpenFile>>,
}

impl RemoteFile {
    fn file(&self) -> &dyn OpenFile {
        &**self.file.as_ref().expect("open until it is dropped")
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        let file = self.file.take();
        self.network.post("file.close", || drop(file));
    }
}

impl<E: Served> Remote<E> {
    fn below(&self) -> &dyn FileSystem {
        self.engine.engine()
    }

    fn open_file(&self, file: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(RemoteFile {
            network: Arc::clone(&self.network),
            ino: file.ino(),
            file: Some(file),
        })
    }

    fn opened(&self, opened: Opened) -> Opened {
        Opened {
            file: self.open_file(opened.file),
            ..opened
        }
    }

    /// Drops the pin of a lost reply, or of an entry that arrived unwanted. That is not a call: a service knows what a
    /// client has acknowledged.
    fn let_go(&self, ctx: &Ctx, attr: &Attr) {
        if ctx.pins && attr.ino != ROOT_INO {
            self.below().unpin(ctx, attr.ino, 1);
        }
    }

    /// Gathers a listing, reply by reply, and passes it to `take` until that returns false. `ask` requests entries from
    /// a cookie on; entries that were gathered but not taken go to `leave`.
    fn listing<T>(
        &self,
        method: &'static str,
        mut cookie: u64,
        ask: impl Fn(u64, &mut dyn FnMut(&DirEntry<'_>, T) -> bool) -> Result<()>,
        mut take: impl FnMut(&Entry, T) -> bool,
        leave: impl Fn(T),
    ) -> Result<()> {
        let most = self.network.entries_max();
        let leave_all = |gathered: Vec<(Entry, T)>| gathered.into_iter().for_each(|(_, rest)| leave(rest));
        loop {
            let gather = || {
                let mut gathered = Vec::new();
                let mut full = false;
                ask(cookie, &mut |entry, rest| {
                    full = gathered.len() == most;
                    if !full {
                        gathered.push((Entry::new(entry), rest));
                    }
                    !full
                })
                .map(|()| (gathered, full))
            };
            let (gathered, full) = self
                .network
                .call(method, true, gather, |(gathered, _)| leave_all(gathered))?;
            let mut gathered = gathered.into_iter();
            while let Some((entry, rest)) = gathered.next() {
                cookie = entry.next_cookie;
                if !take(&entry, rest) {
                    leave_all(gathered.collect());
                    return Ok(());
                }
            }
            if !full {
                return Ok(());
            }
        }
    }
}

/// An entry of a listing on its way.
struct Entry {
    ino: Ino,
    kind: FileKind,
    name: Vec<u8>,
    next_cookie: u64,
}

impl Entry {
    fn new(entry: &DirEntry<'_>) -> Entry {
        Entry {
            ino: entry.ino,
            kind: entry.kind,
            name: entry.name.to_vec(),
            next_cookie: entry.next_cookie,
        }
    }

    fn shown(&self) -> DirEntry<'_> {
        DirEntry {
            ino: self.ino,
            kind: self.kind,
            name: &self.name,
            next_cookie: self.next_cookie,
        }
    }
}

/// Methods of an engine whose arguments are copied and whose reply is a value. Each is a `read`, which may be executed
/// twice, or a `change`; the reply of a `named` one holds a pin if the context asks for that.
macro_rules! calls {
    ($($kind:ident $name:ident($($arg:ident: $parcel:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, ctx: &Ctx, $($arg: <$parcel as Parcel>::Argument<'_>),*) -> Result<$answer> {
            let ctx = &<Ctx as Parcel>::pack(ctx);
            $(let $arg = <$parcel as Parcel>::pack($arg);)*
            self.network.call(
                stringify!($name),
                calls!(@repeats $kind, ctx),
                || self.below().$name(ctx, $($arg.unpack()),*),
                |_answer| calls!(@leave $kind, self, ctx, _answer),
            )
        })*
    };
    (@repeats read, $ctx:ident) => { true };
    (@repeats named_read, $ctx:ident) => { true };
    (@repeats $change:ident, $ctx:ident) => { has_token($ctx) };
    (@leave named_read, $self:ident, $ctx:ident, $answer:ident) => { $self.let_go($ctx, &$answer) };
    (@leave named_change, $self:ident, $ctx:ident, $answer:ident) => { $self.let_go($ctx, &$answer) };
    (@leave $other:ident, $self:ident, $ctx:ident, $answer:ident) => { () };
}

impl<E: Served> FileSystem for Remote<E> {
    fn limits(&self) -> Limits {
        let mut limits = self.below().limits();
        limits.may_block = true;
        limits.validity = VALIDITY;
        limits
    }

    calls! {
        read statfs() -> StatFs;
        named_read lookup(parent: Ino, name: Vec<u8>) -> Attr;
        read parent(dir: Ino) -> Ino;
        read getattr(ino: Ino) -> Attr;
        change setattr(ino: Ino, set: SetAttr) -> Attr;
        change pin(ino: Ino, generation: u32) -> ();
        read readlink(ino: Ino) -> Vec<u8>;
        named_change mknod(parent: Ino, name: Vec<u8>, node: NewNode) -> Attr;
        named_change mkdir(parent: Ino, name: Vec<u8>, mode: u32) -> Attr;
        named_change symlink(parent: Ino, name: Vec<u8>, target: Vec<u8>) -> Attr;
        named_change link(ino: Ino, parent: Ino, name: Vec<u8>) -> Attr;
        named_change clone_tree(ino: Ino, parent: Ino, name: Vec<u8>) -> Attr;
        change unlink(parent: Ino, name: Vec<u8>) -> ();
        change rmdir(parent: Ino, name: Vec<u8>) -> ();
        change rename(parent: Ino, name: Vec<u8>, new_parent: Ino, new_name: Vec<u8>, mode: RenameMode) -> ();
        named_read resolve(start: Start, path: Vec<u8>, follow: bool) -> Attr;
        read getxattr(ino: Ino, name: Vec<u8>) -> Vec<u8>;
        change setxattr(ino: Ino, name: Vec<u8>, value: Vec<u8>, mode: XattrMode) -> ();
        read listxattr(ino: Ino) -> Vec<Vec<u8>>;
        change removexattr(ino: Ino, name: Vec<u8>) -> ();
        read sync() -> ();
        change drop_orphans() -> ();
        change unlock(ino: Ino, owner: LockOwner, what: Unlock) -> ();
        read conflicting_lock(ino: Ino, lock: RecordLock) -> Option<RecordLock>;
    }

    /// The request always arrives, and so does its outcome, from whichever thread settles it.
    fn lock(&self, ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool, done: LockDone) -> Option<LockTicket> {
        let (ctx, request) = (ctx.clone(), *request);
        self.network
            .post("lock", || self.below().lock(&ctx, ino, &request, may_wait, done))
    }

    fn cancel_lock(&self, ctx: &Ctx, ticket: LockTicket) {
        let ctx = ctx.clone();
        self.network
            .post("cancel_lock", || self.below().cancel_lock(&ctx, ticket));
    }

    fn release_client(&self, ctx: &Ctx) {
        let ctx = ctx.clone();
        self.network
            .post("release_client", || self.below().release_client(&ctx));
    }

    fn unpin(&self, ctx: &Ctx, ino: Ino, count: u64) {
        let ctx = ctx.clone();
        self.network.post("unpin", || self.below().unpin(&ctx, ino, count));
    }

    fn forget(&self, ctx: &Ctx, ino: Ino, count: u64) {
        let ctx = ctx.clone();
        self.network.post("forget", || self.below().forget(&ctx, ino, count));
    }

    fn readdir(&self, ctx: &Ctx, dir: Ino, cookie: u64, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let ctx = &ctx.clone();
        self.listing(
            "readdir",
            cookie,
            |cookie, gather| self.below().readdir(ctx, dir, cookie, &mut |entry| gather(entry, ())),
            |entry, ()| sink(&entry.shown()),
            |()| {},
        )
    }

    fn readdir_plus(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()> {
        let ctx = &ctx.clone();
        let leave = |attr: Result<Attr>| attr.iter().for_each(|attr| self.let_go(ctx, attr));
        self.listing(
            "readdir_plus",
            cookie,
            |cookie, gather| self.below().readdir_plus(ctx, dir, cookie, gather),
            |entry, attr| {
                let taken = sink(&entry.shown(), attr.clone());
                if !taken {
                    leave(attr);
                }
                taken
            },
            leave,
        )
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let ctx = &ctx.clone();
        let repeats = !mode.truncate || has_token(ctx);
        let file = self
            .network
            .call("open", repeats, || self.below().open(ctx, ino, mode), drop)?;
        Ok(self.open_file(file))
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        let (ctx, name, new) = (&ctx.clone(), name.to_vec(), *new);
        let ask = || self.below().create(ctx, parent, &name, &new);
        let leave = |opened: Opened| self.let_go(ctx, &opened.attr);
        self.network
            .call("create", has_token(ctx), ask, leave)
            .map(|opened| self.opened(opened))
    }

    fn open_path(&self, ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<Opened> {
        let (ctx, start, path, flags) = (&ctx.clone(), *start, path.to_vec(), *flags);
        let repeats = !(flags.create || flags.truncate) || has_token(ctx);
        let ask = || self.below().open_path(ctx, &start, &path, &flags);
        let leave = |opened: Opened| self.let_go(ctx, &opened.attr);
        self.network
            .call("open_path", repeats, ask, leave)
            .map(|opened| self.opened(opened))
    }
}

/// Methods of an open file; like `calls`.
macro_rules! file_calls {
    ($($kind:ident $name:ident($($arg:ident: $parcel:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, ctx: &Ctx, $($arg: <$parcel as Parcel>::Argument<'_>),*) -> Result<$answer> {
            let ctx = &<Ctx as Parcel>::pack(ctx);
            $(let $arg = <$parcel as Parcel>::pack($arg);)*
            self.network.call(
                concat!("file.", stringify!($name)),
                calls!(@repeats $kind, ctx),
                || self.file().$name(ctx, $($arg.unpack()),*),
                drop,
            )
        })*
    };
}

impl OpenFile for RemoteFile {
    fn ino(&self) -> Ino {
        self.ino
    }

    file_calls! {
        read getattr() -> Attr;
        change setattr(set: SetAttr) -> Attr;
        change write(mode: WriteMode, data: Vec<u8>) -> Written;
        change fallocate(mode: FallocateMode, offset: u64, len: u64) -> ();
        change clone_range(range: CloneRange) -> Written;
        read seek_data(offset: u64) -> u64;
        read seek_hole(offset: u64) -> u64;
        read fsync() -> ();
    }

    fn read_at(&self, ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let ctx = &ctx.clone();
        let len = buf.len();
        let ask = || {
            let mut content = vec![0; len];
            let count = self.file().read_at(ctx, offset, &mut content)?;
            content.truncate(count);
            Ok(content)
        };
        let content = self.network.call("file.read_at", true, ask, drop)?;
        buf[..content.len()].copy_from_slice(&content);
        Ok(content.len())
    }
}

//! Engines on top of engines: a [`Layer`] overrides some calls and passes all others to the engine below.
//!
//! Contents: the two traits with which a layer is written. Each of their methods has the name and the contract
//! of the one in [`FileSystem`] or [`OpenFile`], and calls the engine below unless the layer replaces it. Every type
//! with a [`Layer`] is an engine.

use std::sync::Arc;

use crate::locks::{LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use crate::regions::Regions;
use crate::{
    Attr, Backlog, CloneRange, Ctx, DirEntry, FallocateMode, FileSystem, Ino, Limits, NewFile, NewNode, OpenFile,
    OpenFileId, OpenFlags, OpenMode, Opened, RenameMode, Result, SetAttr, Start, StatFs, WriteMode, Written, XattrMode,
};

/// A listing's receiver, see [`FileSystem::readdir`].
type Sink<'s> = &'s mut dyn FnMut(&DirEntry<'_>) -> bool;
/// The same with attributes, see [`FileSystem::readdir_plus`].
type PlusSink<'s> = &'s mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool;

/// The trait `$layer` with a default for each method of `$trait`, and `$trait` for all types that have it. Methods
/// marked `!` are not passed on: the layer implements them or they are absent.
macro_rules! layer {
    (
        $(#[$doc:meta])* $layer:ident over $trait:ident;
        $(! $own:ident() -> $what:ty;)*
        $($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*
    ) => {
        $(#[$doc])*
        pub trait $layer: Send + Sync {
            /// The engine or file below.
            fn below(&self) -> &dyn $trait;
            $(
                #[doc = concat!("See [`", stringify!($trait), "::", stringify!($own), "`]. Not what is below has.")]
                fn $own(&self) -> $what {
                    None
                }
            )*
            $(
                #[doc = concat!("See [`", stringify!($trait), "::", stringify!($name), "`].")]
                fn $name(&self, $($arg: $type),*) -> $result {
                    self.below().$name($($arg),*)
                }
            )*
        }

        impl<L: $layer> $trait for L {
            $(fn $own(&self) -> $what {
                $layer::$own(self)
            })*

            $(fn $name(&self, $($arg: $type),*) -> $result {
                $layer::$name(self, $($arg),*)
            })*
        }
    };
}

layer! {
    /// An engine on top of another. Its files are no memory regions unless it implements them: adapters would bypass
    /// the layer.
    Layer over FileSystem;
    ! regions() -> Option<&dyn Regions>;
    limits() -> Limits;
    backlog() -> Option<Backlog>;
    statfs(ctx: &Ctx) -> Result<StatFs>;
    lookup(ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<Attr>;
    parent(ctx: &Ctx, dir: Ino) -> Result<Ino>;
    getattr(ctx: &Ctx, ino: Ino) -> Result<Attr>;
    setattr(ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr>;
    pin(ctx: &Ctx, ino: Ino, generation: u32) -> Result<()>;
    unpin(ctx: &Ctx, ino: Ino, count: u64) -> ();
    forget(ctx: &Ctx, ino: Ino, count: u64) -> ();
    readlink(ctx: &Ctx, ino: Ino) -> Result<Vec<u8>>;
    mknod(ctx: &Ctx, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr>;
    mkdir(ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Result<Attr>;
    symlink(ctx: &Ctx, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;
    link(ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
    clone_tree(ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
    unlink(ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()>;
    rmdir(ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()>;
    takes_snapshots(dir: Ino) -> bool;
    rename(ctx: &Ctx, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
    readdir(ctx: &Ctx, dir: Ino, cookie: u64, sink: Sink<'_>) -> Result<()>;
    readdir_plus(ctx: &Ctx, dir: Ino, cookie: u64, sink: PlusSink<'_>) -> Result<()>;
    open(ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>>;
    create(ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened>;
    resolve(ctx: &Ctx, start: &Start, path: &[u8], follow: bool) -> Result<Attr>;
    open_path(ctx: &Ctx, start: &Start, path: &[u8], flags: &OpenFlags) -> Result<Opened>;
    getxattr(ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    setxattr(ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    listxattr(ctx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>>;
    removexattr(ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()>;
    drop_orphans(ctx: &Ctx) -> Result<()>;
    unnamed_files() -> Option<u64>;
    know_buffers(pool: &ferrite_buffers::Pool) -> ();
    sync(ctx: &Ctx) -> Result<()>;
    sync_names(ctx: &Ctx) -> Result<()>;
    lock(ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool, done: LockDone) -> Option<LockTicket>;
    unlock(ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> Result<()>;
    conflicting_lock(ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Result<Option<RecordLock>>;
    cancel_lock(ctx: &Ctx, ticket: LockTicket) -> ();
    release_client(ctx: &Ctx) -> ();
}

layer! {
    /// An open file on top of another. Submitted requests run through the layer's own reads and writes.
    FileLayer over OpenFile;
    ino() -> Ino;
    id() -> OpenFileId;
    getattr(ctx: &Ctx) -> Result<Attr>;
    setattr(ctx: &Ctx, set: &SetAttr) -> Result<Attr>;
    read_at(ctx: &Ctx, offset: u64, buf: &mut [u8]) -> Result<usize>;
    write(ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written>;
    fallocate(ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
    clone_range(ctx: &Ctx, range: &CloneRange) -> Result<Written>;
    seek_data(ctx: &Ctx, offset: u64) -> Result<u64>;
    seek_hole(ctx: &Ctx, offset: u64) -> Result<u64>;
    fsync(ctx: &Ctx) -> Result<()>;
}

/// A shared engine as an engine, for layers that own the engine below.
pub struct Shared(pub Arc<dyn FileSystem>);

impl Layer for Shared {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }
}

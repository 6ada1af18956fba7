//! Files as memory regions: an optional capability of engines whose pages lie in memory (FileMR: Yang, Izraelevitz,
//! Swanson, NSDI 2020).
//!
//! Contents: the interface between engine and adapter. An *adapter* (in software, or hardware behind a driver) lets
//! others read, write and append to a file while programs keep using it. It caches where the file's pages lie, and
//! copies to them without a call to the file system. The engine moves pages, and notifies the adapter.
//!
//! Three rules make that safe:
//!
//! * The adapter touches a page only under a *guard* of its own: it translates, copies, makes durable, releases. It
//!   never calls the engine while it holds one, except for the calls of [`Region`] marked "for guards".
//! * [`Adapter::revoke`] returns when no guard covers the range any more, and none can before a [`Adapter::publish`].
//!   Engines revoke before they change pages, and publish when the change is committed or aborted.
//! * On a translation miss, the adapter calls [`Region::fault`].
//!
//! So a write in place is never lost to a local write that copies the page, and never reaches a page that became
//! another file's.

use std::sync::Arc;

use crate::{Attr, Ctx, Ino, Result};

/// Bytes of a page of regions.
pub const REGION_PAGE_BYTES: u64 = 4096;

/// How a file is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Binding {
    /// Others may write, append and reserve; else they may only read.
    pub writable: bool,
    /// First move the file's pages so that they follow each other, as far as space allows: fewer entries for the
    /// adapter. Takes time in proportion to the file.
    pub defragment: bool,
    /// Publish all runs before the call returns, for an adapter that cannot ask for them later. Takes time in
    /// proportion to the part of the mapping that the engine must read.
    pub whole: bool,
}

/// Pages of a file that follow each other in the engine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRun {
    /// The first page of the file.
    pub at: u32,
    /// Its location: a page of the engine's memory. `None`: holes, which read as zeros; a write needs a
    /// [`Region::fault`] first.
    pub page: Option<u32>,
    /// How many, at least one.
    pub pages: u32,
}

/// The access that a range fault prepares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reading: holes stay holes.
    Read,
    /// Writing: holes get pages.
    Write,
}

/// A file that is bound, or was when the engine ended and has not been finalized since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundFile {
    /// Its inode.
    pub ino: Ino,
    /// Whether an adapter has it now.
    pub is_attached: bool,
    /// Number of runs of its pages, as far as they were published when it was bound. 0: not counted.
    pub runs: u64,
}

/// The capability.
pub trait Regions: Send + Sync {
    /// Binds a regular file and returns its region, for the adapter. Before this returns, the engine reports the file's
    /// size to `adapter` and publishes its runs: all of them, or those of its first pages if the engine would have to
    /// read much and [`Binding::whole`] is not set. The adapter asks for the rest with [`Region::fault`]. The file is
    /// pinned until [`Region::unbind`], also without a name. The binding is durable when this returns.
    ///
    /// With [`Ctx::check`] the caller needs to be allowed to read, and to write if the binding is writable.
    ///
    /// Blocks on the inode's lock, and for as long as moving pages takes if `how` requests it.
    ///
    /// # Errors
    /// `Busy` if an adapter has it; `IsDirectory` or `Invalid` if it is not a regular file; `NotSupported` if the
    /// binding is writable and the medium cannot do that safely; `NoSpace`.
    fn bind(&self, ctx: &Ctx, ino: Ino, how: Binding, adapter: Arc<dyn Adapter>) -> Result<Arc<dyn Region>>;

    /// All bound files.
    fn bound(&self) -> Vec<BoundFile>;

    /// Makes a bound file without an adapter an ordinary one again, durably: checksums are computed anew. No effect on
    /// others. Takes time in proportion to the file. Engines do this in the background some time after a start.
    ///
    /// # Errors
    /// `Busy` if an adapter has it.
    fn finalize(&self, ctx: &Ctx, ino: Ino) -> Result<()>;
}

/// A bound file, for its adapter.
///
/// Pages of the engine's memory are those that [`Adapter::publish`] named. Only the holder of a guard may use them.
pub trait Region: Send + Sync {
    /// Its inode.
    fn ino(&self) -> Ino;

    /// Its attributes. Times and [`Attr::change`] have moved if the adapter has written since the last call.
    fn attr(&self) -> Result<Attr>;

    /// For guards: copies `data` into a page, by aligned words where it covers them. Durable after [`Self::fence`].
    /// `within` plus the length is at most [`REGION_PAGE_BYTES`].
    fn store(&self, page: u32, within: u32, data: &[u8]);

    /// For guards: copies from a page.
    fn load(&self, page: u32, within: u32, into: &mut [u8]);

    /// For guards: adds to the 8 little-endian bytes at `within`, a multiple of 8, in one step, and returns the old
    /// value. Durable after [`Self::fence`].
    fn fetch_add(&self, page: u32, within: u32, add: u64) -> u64;

    /// For guards: stores `swap` there if the bytes are `compare`, and returns the old value. As [`Self::fetch_add`].
    fn compare_swap(&self, page: u32, within: u32, compare: u64, swap: u64) -> u64;

    /// For guards: this thread's stores are durable when it returns.
    ///
    /// # Errors
    /// If the medium failed; also if an earlier load met the failure, so the loaded bytes must not be used.
    fn fence(&self) -> Result<()>;

    /// Publishes to the adapter where `pages` pages from page `first` on lie. For writing, holes get zeroed pages, in
    /// durable steps. Pages at or beyond the end of the file are left out. Blocks on the inode's lock.
    ///
    /// # Errors
    /// `NoSpace`, a medium that failed, `Stale` after an unbind; `Busy` while the engine is frozen: retry.
    fn fault(&self, first: u32, pages: u32, access: Access) -> Result<()>;

    /// Appends each of `parts` whole, in order and without gaps, in one durable step; returns where the first begins.
    /// Blocks on the inode's lock.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooBig`, `Stale`, a medium that failed; `Busy` while the engine is frozen: retry. On an error,
    /// nothing was appended.
    fn append(&self, parts: &[&[u8]]) -> Result<u64>;

    /// Moves the end by `len_bytes`, durably, and returns where it was. The new bytes read as zeros.
    ///
    /// # Errors
    /// As [`Self::append`].
    fn reserve(&self, len_bytes: u64) -> Result<u64>;

    /// Moves the end from `from` to `to`, durably, and returns where it was: if that is not `from`, nothing changed.
    /// The new bytes read as zeros. A writer beyond the end does this first: done twice, or by two at once, it makes
    /// the file no longer than asked.
    ///
    /// # Errors
    /// As [`Self::append`]; `Invalid` if `to` is before `from`.
    fn extend(&self, from: u64, to: u64) -> Result<u64>;

    /// Writes as a local caller does: one atomic and durable step, up to [`crate::Limits::atomic_write_bytes`]. It does
    /// not grow the file.
    ///
    /// # Errors
    /// `Invalid` if it would; as [`Self::append`].
    fn write_atomic(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Ends the binding, durably: revokes all, notifies the adapter, and computes checksums anew. Later calls fail with
    /// `Stale`; calls for guards are forbidden. No effect if it has ended.
    ///
    /// # Errors
    /// A medium that failed, or `Busy` while the engine is frozen; the binding has ended nevertheless, and the engine
    /// finalizes the file later, in the background as [`Regions::finalize`] does, or after the next start.
    fn unbind(&self) -> Result<()>;
}

/// Caches where the pages of a bound file lie. The engine calls it under the file's lock, so it must not call the
/// engine, and must wait for nothing but guards.
pub trait Adapter: Send + Sync {
    /// Forgets where pages `first` up to `end` lie, and returns when no guard covers one of them.
    fn revoke(&self, first: u32, end: u32);

    /// Replaces the known locations of these pages.
    fn publish(&self, runs: &[PageRun]);

    /// The file's size is this now. Called before pages beyond a new end are revoked, and after pages up to it exist.
    fn resize(&self, size: u64);

    /// Permissions or owner have changed. From now on the adapter must refuse clients that may no longer use the file.
    fn attributes_changed(&self, attr: &Attr);

    /// The binding has ended: everything was revoked. The engine makes no further calls.
    fn unbound(&self);
}

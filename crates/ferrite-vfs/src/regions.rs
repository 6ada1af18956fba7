//! Files as memory regions: an optional capability of engines whose pages lie in memory (FileMR: Yang, Izraelevitz,
//! Swanson, NSDI 2020).
//!
//! Contents: what engine and adapter know of each other. An *adapter* (in software, or hardware behind a driver)
//! lets others read, write and append to a file while programs go on using it. It keeps where the file's pages lie, and
//! copies to them without a call to the file system. The engine moves pages, and says so.
//!
//! Three rules make that safe:
//!
//! * The adapter touches a page only under a *guard* of its own: it translates, copies, makes durable, releases. It
//!   never calls the engine while it holds one, except for the calls of [`Region`] that say that they are for guards.
//! * [`Adapter::revoke`] returns when no guard covers the range any more, and none can before a [`Adapter::publish`].
//!   Engines revoke before they change, and publish when the change is committed or given up.
//! * What the adapter does not find translated it asks for with [`Region::fault`].
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
    pub arrange: bool,
    /// Publish all runs before the call returns, for an adapter that cannot ask for them later. Takes time in
    /// proportion to what the engine has to look at.
    pub whole: bool,
}

/// Pages of a file that follow each other in the engine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRun {
    /// The first page of the file.
    pub at: u32,
    /// Where it lies: a page of the engine's memory. `None`: holes, which read as zeros; a write needs a
    /// [`Region::fault`] first.
    pub page: Option<u32>,
    /// How many, at least one.
    pub pages: u32,
}

/// What a range fault wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reading: holes stay holes.
    Read,
    /// Writing: holes get pages.
    Write,
}

/// A file that is bound, or was when the engine ended and has not been sealed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundFile {
    /// Which.
    pub ino: Ino,
    /// Whether an adapter has it now.
    pub is_attached: bool,
    /// Runs that its pages lie in, as far as they were published when it was bound. 0: not counted.
    pub runs: u64,
}

/// The capability.
pub trait Regions: Send + Sync {
    /// Binds a regular file and gives what an adapter needs of it. Before this returns, the file's size was told to
    /// `adapter`, and its runs were published: all of them, or those of its first pages if the engine would have to
    /// look at much and [`Binding::whole`] does not ask for it. The adapter asks for the rest with [`Region::fault`].
    /// The file is pinned until [`Region::unbind`], also without a name. That it is bound is durable when this returns.
    ///
    /// With [`Ctx::check`] the caller needs to be allowed to read, and to write if the binding is writable.
    ///
    /// Blocks on the inode's lock, and for as long as moving pages takes if `how` asks for it.
    ///
    /// # Errors
    /// `Busy` if an adapter has it; `IsDirectory` or `Invalid` if it is not a regular file; `NotSupported` if it shall
    /// be writable and the medium cannot do that safely; `NoSpace`.
    fn bind(&self, ctx: &Ctx, ino: Ino, how: Binding, adapter: Arc<dyn Adapter>) -> Result<Arc<dyn Region>>;

    /// All bound files.
    fn bound(&self) -> Vec<BoundFile>;

    /// Makes a bound file without an adapter an ordinary one again, durably: checksums are computed anew. No effect on
    /// others. Takes time in proportion to the file. Engines do this by themselves some time after a start.
    ///
    /// # Errors
    /// `Busy` if an adapter has it.
    fn seal(&self, ctx: &Ctx, ino: Ino) -> Result<()>;
}

/// A bound file, for its adapter.
///
/// Pages of the engine's memory are what [`Adapter::publish`] named. Only who has a guard may use them.
pub trait Region: Send + Sync {
    /// Which file.
    fn ino(&self) -> Ino;

    /// Its attributes. Times and [`Attr::change`] have moved if the adapter has written since this was last asked.
    fn attr(&self) -> Result<Attr>;

    /// For guards: copies `data` into a page, by aligned words where it covers them. Durable after [`Self::fence`].
    /// `within` plus the length is at most [`REGION_PAGE_BYTES`].
    fn store(&self, page: u32, within: u32, data: &[u8]);

    /// For guards: copies from a page.
    fn load(&self, page: u32, within: u32, into: &mut [u8]);

    /// For guards: adds to the 8 little-endian bytes at `within`, a multiple of 8, in one step, and gives what was
    /// there. Durable after [`Self::fence`].
    fn fetch_add(&self, page: u32, within: u32, add: u64) -> u64;

    /// For guards: puts `swap` there if the bytes are `compare`, and gives what was there. As [`Self::fetch_add`].
    fn compare_swap(&self, page: u32, within: u32, compare: u64, swap: u64) -> u64;

    /// For guards: what this thread has stored is durable when it returns.
    ///
    /// # Errors
    /// If the medium failed; also if a load before it met that, so what was loaded must not be used.
    fn fence(&self) -> Result<()>;

    /// Publishes to the adapter where `pages` pages from page `first` on lie. For writing, holes get zeroed pages, in
    /// durable steps. Pages at or behind the end of the file are left out. Blocks on the inode's lock.
    ///
    /// # Errors
    /// `NoSpace`, a medium that failed, `Stale` after an unbind; `Busy` while the engine is frozen: to be asked again.
    fn fault(&self, first: u32, pages: u32, access: Access) -> Result<()>;

    /// Appends each of `parts` whole, in their order, one behind the other, in one durable step; gives where the first
    /// begins. Blocks on the inode's lock.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooBig`, `Stale`, a medium that failed; `Busy` while the engine is frozen, to be asked again.
    /// Nothing was appended then.
    fn append(&self, parts: &[&[u8]]) -> Result<u64>;

    /// Moves the end by `len_bytes`, durably, and gives where it was. What is between reads as zeros.
    ///
    /// # Errors
    /// As [`Self::append`].
    fn reserve(&self, len_bytes: u64) -> Result<u64>;

    /// Moves the end from `from` to `to`, durably, and gives where it was: nothing has happened if that is not `from`.
    /// What is between reads as zeros. Who writes behind the end does this first: done twice, or by two at once, it
    /// makes the file no longer than asked.
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

    /// Ends the binding, durably: revokes all, tells the adapter, and computes checksums anew. Later calls fail with
    /// `Stale`; those for guards must not be made. No effect if it has ended.
    ///
    /// # Errors
    /// A medium that failed, or `Busy` while changes are held back; the binding has ended nevertheless, and the file is
    /// sealed later: by the engine itself, as [`Regions::seal`] does, or after the next start.
    fn unbind(&self) -> Result<()>;
}

/// Who keeps where the pages of a bound file lie. The engine calls it under the file's lock, so it must not call the
/// engine, and must wait for nothing but guards.
pub trait Adapter: Send + Sync {
    /// Forgets where pages `first` up to `end` lie, and returns when no guard covers one of them.
    fn revoke(&self, first: u32, end: u32);

    /// Where pages lie, in place of what was known of them.
    fn publish(&self, runs: &[PageRun]);

    /// The file's size is this now. Told before pages behind a new end are revoked, and after pages up to it exist.
    fn resize(&self, size: u64);

    /// Permissions or owner have changed. Who may not use the file any more is to be refused from now on.
    fn attributes_changed(&self, attr: &Attr);

    /// The binding has ended: everything was revoked. Nothing is called any more.
    fn unbound(&self);
}

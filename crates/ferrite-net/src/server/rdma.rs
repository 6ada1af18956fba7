//! What a server wants of an RDMA adapter.
//!
//! The server knows who may have which file; the adapter knows what keys mean, and how datagrams come and go. So a
//! server without an adapter, and a build without one, differ in an option only.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ferrite_vfs::regions::Binding;
use ferrite_vfs::{Ctx, FileSystem, Ino, Result};

use crate::wire::{BoundTold, GrantedKey, QueuePairTold, RdmaCounters};

/// Who wants a key, and for what.
#[derive(Clone, Copy)]
pub struct KeyWanted<'a> {
    /// The key is for queue pairs of this session.
    pub session: u64,
    /// The engine that has the file.
    pub fs: &'a Arc<dyn FileSystem>,
    /// As whom. The engine checks what he may do.
    pub ctx: &'a Ctx,
    /// The file.
    pub ino: Ino,
    /// How it is to be bound, if it is not yet.
    pub binding: Binding,
    /// Each WRITE is one step.
    pub atomic: bool,
}

/// Keys for files: of an adapter, and of what stands behind it. All calls may block for as long as a guard is held, or
/// an inode locked.
pub trait Keys: Send + Sync {
    /// Takes a key back: when this returns, nothing is done with it any more.
    fn release(&self, session: u64, key: u32);

    /// Takes all keys of a session back; an adapter also closes its queue pairs.
    fn end_session(&self, session: u64);

    /// Takes all keys of a file back, and makes it an ordinary file again.
    ///
    /// # Errors
    /// As [`ferrite_vfs::regions::Region::unbind`].
    fn unbind(&self, fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<()>;

    /// Bound files of an engine.
    fn files(&self, fs: &Arc<dyn FileSystem>) -> Vec<BoundTold>;
}

/// An adapter. Calls may block as those of [`Keys`].
pub trait Rdma: Keys {
    /// Where it listens.
    fn places(&self) -> Vec<SocketAddr>;

    /// Opens a queue pair of a session, for the client's end. Keys of the session are valid on it.
    ///
    /// # Errors
    /// If there are too many, or no way to the client.
    fn open(&self, session: u64, client: &QueuePairTold) -> Result<QueuePairTold>;

    /// Closes a queue pair: when this returns, it does nothing any more.
    fn close(&self, session: u64, qpn: u32);

    /// Binds a file, if it is not bound yet, and gives a key.
    ///
    /// # Errors
    /// As [`ferrite_vfs::regions::Regions::bind`]; `NotSupported` if the engine has no regions.
    fn bind(&self, wanted: &KeyWanted<'_>) -> Result<GrantedKey>;

    /// What it has done.
    fn counters(&self) -> RdmaCounters;
}

impl fmt::Debug for dyn Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma")
            .field("places", &self.places())
            .finish_non_exhaustive()
    }
}

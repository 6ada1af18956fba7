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

/// An adapter. All calls may block for as long as a guard is held, or an inode locked.
pub trait Rdma: Send + Sync {
    /// Where it listens.
    fn places(&self) -> Vec<SocketAddr>;

    /// Opens a queue pair of a session, for the client's end. Keys of the session are valid on it.
    ///
    /// # Errors
    /// If there are too many, or no way to the client.
    fn open(&self, session: u64, client: &QueuePairTold) -> Result<QueuePairTold>;

    /// Closes a queue pair: when this returns, it does nothing any more.
    fn close(&self, session: u64, qpn: u32);

    /// Binds a file, if it is not bound yet, and gives a key for queue pairs of the session. The engine checks what
    /// `ctx` may do. `atomic`: each WRITE is one step.
    ///
    /// # Errors
    /// As [`ferrite_vfs::regions::Regions::bind`]; `NotSupported` if the engine has no regions.
    fn bind(
        &self,
        session: u64,
        fs: &Arc<dyn FileSystem>,
        ctx: &Ctx,
        ino: Ino,
        binding: Binding,
        atomic: bool,
    ) -> Result<GrantedKey>;

    /// Takes a key back: when this returns, nothing is done with it any more.
    fn release(&self, session: u64, key: u32);

    /// Takes all keys of a session back, and closes its queue pairs.
    fn end_session(&self, session: u64);

    /// Takes all keys of a file back, and makes it an ordinary file again.
    ///
    /// # Errors
    /// As [`ferrite_vfs::regions::Region::unbind`].
    fn unbind(&self, fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<()>;

    /// Bound files of an engine.
    fn files(&self, fs: &Arc<dyn FileSystem>) -> Vec<BoundTold>;

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

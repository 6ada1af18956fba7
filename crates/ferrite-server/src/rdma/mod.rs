//! The server's interface to an RDMA adapter.
//!
//! The server knows the rights to files; the adapter knows the meaning of keys, and moves datagrams. So a server
//! without an adapter, and a build without one, differ in an option only.
//!
//! Contents: the traits [`Rdma`] and [`Keys`]; with the cargo feature `rdma`, the adapter of the program ([`Adapter`]),
//! which combines queue pairs (`ferrite_rnic`) and keys of files ([`Files`]), and [`BoundFiles`], those of engines that
//! have regions.

#[cfg(feature = "rdma")]
mod adapter;
#[cfg(feature = "rdma")]
mod files;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ferrite_vfs::regions::Binding;
use ferrite_vfs::{Ctx, FileSystem, Ino, Result};

use ferrite_proto::{BoundFileInfo, GrantedKey, QueuePairInfo, RdmaCounters};

#[cfg(feature = "rdma")]
pub use adapter::{Adapter, Files, Key};
#[cfg(feature = "rdma")]
pub use files::BoundFiles;

/// A request for a key.
#[derive(Clone, Copy)]
pub struct KeyWanted<'a> {
    /// The key is for queue pairs of this session.
    pub session: u64,
    /// The engine that has the file.
    pub fs: &'a Arc<dyn FileSystem>,
    /// The context of the caller. The engine checks its rights.
    pub ctx: &'a Ctx,
    /// The file.
    pub ino: Ino,
    /// How to bind it, if it is not bound yet.
    pub binding: Binding,
    /// Each WRITE is one step.
    pub atomic: bool,
}

/// Keys for files: of an adapter, and of the files behind it. All calls may block for as long as a guard is held, or an
/// inode locked.
pub trait Keys: Send + Sync {
    /// Revokes a key: when this returns, nothing uses it any more.
    fn release(&self, session: u64, key: u32);

    /// Revokes all keys of a session; an adapter also closes its queue pairs.
    fn end_session(&self, session: u64);

    /// Revokes all keys of a file, and makes it an ordinary file again.
    ///
    /// # Errors
    /// As [`ferrite_vfs::regions::Region::unbind`].
    fn unbind(&self, fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<()>;

    /// Bound files of an engine.
    fn files(&self, fs: &Arc<dyn FileSystem>) -> Vec<BoundFileInfo>;
}

/// An adapter. Calls may block as those of [`Keys`].
pub trait Rdma: Keys {
    /// Where it listens.
    fn places(&self) -> Vec<SocketAddr>;

    /// Opens a queue pair of a session, for the client's end. Keys of the session are valid on it.
    ///
    /// # Errors
    /// If there are too many, or no way to the client.
    fn open(&self, session: u64, client: &QueuePairInfo) -> Result<QueuePairInfo>;

    /// Closes a queue pair: when this returns, it is inactive.
    fn close(&self, session: u64, qpn: u32);

    /// Binds a file, if it is not bound yet, and gives a key.
    ///
    /// # Errors
    /// As [`ferrite_vfs::regions::Regions::bind`]; `NotSupported` if the engine has no regions.
    fn bind(&self, wanted: &KeyWanted<'_>) -> Result<GrantedKey>;

    /// Its counters.
    fn counters(&self) -> RdmaCounters;
}

impl fmt::Debug for dyn Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma")
            .field("places", &self.places())
            .finish_non_exhaustive()
    }
}

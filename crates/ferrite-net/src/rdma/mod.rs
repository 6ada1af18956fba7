//! RDMA at both ends: the adapter of a server, and files that a client writes and reads by one-sided verbs.
//!
//! Contents: [`Adapter`], which combines queue pairs ([`ferrite_rnic`]) and keys of files ([`Files`]) for a server;
//! [`BoundFiles`], those of engines that have regions; [`RemoteFile`], which uses them, or the server's ordinary
//! requests without them; [`ReplicatedFile`], several of these as one.
//!
//! Built with the cargo feature `rdma` only; servers and clients without it report that they have no RDMA.

mod adapter;
mod files;
mod remote;
mod replicated;

pub use adapter::{Adapter, Files, Key};
pub use ferrite_rnic::Error as VerbError;
pub use files::BoundFiles;
pub use remote::{How, RemoteError, RemoteFile, RemoteOptions, Traffic};
pub use replicated::{
    Acknowledge, CopyStatus, Extent, Held, Outcome, ReplicatedError, ReplicatedFile, ReplicatedOptions, Resynced,
    Source, Standing,
};

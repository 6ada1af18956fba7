//! Files that a client writes and reads by one-sided verbs.
//!
//! Contents: [`RemoteFile`], which uses queue pairs and keys of files, or the server's ordinary requests without them;
//! [`ReplicatedFile`], several of these as one.
//!
//! Built with the cargo feature `rdma` only; a client without it has no use for the keys of a server.

mod lock_order;
mod remote;
mod replicated;

pub use ferrite_rnic::Error as VerbError;
pub use remote::{How, RemoteError, RemoteFile, RemoteOptions, Traffic};
pub use replicated::{
    Acknowledge, Extent, Held, Outcome, ReplicaStatus, ReplicatedError, ReplicatedFile, ReplicatedOptions, Resynced,
    Source, Standing,
};

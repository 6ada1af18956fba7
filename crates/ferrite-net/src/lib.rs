//! Ferrite over the network: a server for any engine, and a client that is an engine.
//!
//! Contents: the messages ([`wire`]); the server ([`server`]); the client ([`client`]), a [`ferrite_vfs::FileSystem`]
//! like any other, so that mount, library and program use it unknowingly; an export as a volume that they open
//! ([`volume`]). The design is that of RUFS, section 2.3.2 (handles and their state) and 2.3.3 (messages and bulk
//! data), with sessions as in NFSv4.1 and tokens ([`ferrite_vfs::once`]) that make a change happen once though its
//! answer is lost.
//!
//! With the feature `rdma`, files can be written and read by one-sided verbs ([`rdma`]).
//!
//! Messages travel by `ferrite-fabric`. This crate names no engine.
#![forbid(unsafe_code)]

pub mod client;
#[cfg(feature = "rdma")]
pub mod rdma;
pub mod server;
pub mod volume;
pub mod wire;

pub use ferrite_fabric::secure;

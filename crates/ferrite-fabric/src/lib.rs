//! Messages between hosts: a body of a few bytes to some KiB, and bulk data beside it.
//!
//! What lives here: the frames in which messages travel over a stream ([`frame`]); keys, the handshake that opens a
//! connection, and encryption ([`secure`]); the client's end of a connection ([`connection`]), and waiting for its end
//! ([`watch`]); the server's end, many connections served by few threads ([`reactor`]), and what it writes to
//! ([`outbox`]). What messages mean is none of this crate's business: `ferrite-net` says that.
//!
//! Invariant: nothing that a peer sends makes this crate allocate more than one frame's worth of memory, or panic.
#![forbid(unsafe_code)]

pub mod connection;
mod error;
pub mod frame;
mod link;
pub mod outbox;
pub mod reactor;
pub mod secure;
pub mod watch;

pub use error::{FabricError, HandshakeError};

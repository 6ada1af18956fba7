//! Messages between hosts: a body of a few bytes to some KiB, and bulk data beside it.
//!
//! Contents: the frames in which messages travel over a stream ([`frame`]); keys, the handshake that opens a
//! connection, and encryption ([`secure`]); the client's end of a connection ([`connection`]), and waiting for its end
//! ([`watch`]); the server's end, many connections served by few threads ([`reactor`]), its send queue
//! ([`send_queue`]), and where its peers come from ([`source`]). With the feature `fabric` connections move to
//! libfabric, where both ends can. The meaning of messages is not this crate's concern: `ferrite-proto` defines it.
//!
//! Invariant: nothing that a peer sends makes this crate allocate more than one frame's worth of memory, or panic.
#![deny(unsafe_code)]

#[cfg(all(test, feature = "fabric"))]
mod adversarial;
pub mod busy_poll;
pub mod connection;
mod error;
#[cfg(feature = "fabric")]
mod fabric;
pub mod frame;
mod link;
mod lock_order;
#[cfg(feature = "fabric")]
mod ofi;
#[cfg(feature = "fabric")]
pub mod raw_ping_pong;
pub mod reactor;
mod receiver;
pub mod secure;
pub mod send_queue;
mod socket;
pub mod source;
#[cfg(feature = "fabric")]
mod stale_segments;
pub mod watch;

pub use error::{FabricError, HandshakeError, Trouble};
#[cfg(feature = "fabric")]
pub use ofi::{Provider, library_version};
#[cfg(feature = "fabric")]
pub use stale_segments::dead_endpoints;

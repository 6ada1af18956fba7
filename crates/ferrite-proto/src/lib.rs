//! The wire format: the messages between client and server, byte by byte. `docs/wire.md` describes it.
//!
//! Contents: the encoding of values (`codec`) and of the trait's types (`types`); the requests (`request`) and
//! their replies (`message`; `activity`, a server's report of its activity; `rdma`, the messages about RDMA).
//!
//! Invariant: numbers of operations, errors and values never change their meaning. A change of an existing message
//! needs a new [`VERSION`].
//!
//! Client and server use it, and it knows neither of them: bytes in, values out, and the reverse.
#![forbid(unsafe_code)]

mod activity;
pub mod codec;
mod message;
mod rdma;
mod request;
mod types;

pub use activity::*;
pub use codec::{Encode, Malformed, Reader, Wire};
pub use message::*;
pub use rdma::*;
pub use request::*;

/// The version of the protocol that this program speaks.
pub const VERSION: u16 = 7;
/// The first bytes of a client's first message.
pub const MAGIC: [u8; 8] = *b"FERRITE\n";

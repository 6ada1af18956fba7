//! What goes wrong between hosts.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Why a message could not be moved.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The address leads nowhere.
    #[error("cannot reach {address}: {source}; is the server running, and does a firewall let the port through?")]
    Unreachable {
        /// Host and port.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The address is none.
    #[error("`{address}` is no address: {source}; an address is HOST:PORT")]
    BadAddress {
        /// What was given.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The peer closed the connection.
    #[error("the connection was closed by the other side")]
    Closed,
    /// The peer takes nothing.
    #[error("the other side took no data for {0:?}")]
    Stuck(Duration),
    /// The peer announced a frame that no peer of ours sends.
    #[error(
        "the other side sent a frame of {body_bytes} + {data_bytes} bytes, which is too long; is it a Ferrite server?"
    )]
    TooLong {
        /// Of the body.
        body_bytes: usize,
        /// Of the data.
        data_bytes: usize,
    },
    /// The peer sent something that is no message.
    #[error("the other side does not speak our protocol; is it a Ferrite server?")]
    Foreign,
    /// Anything else.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

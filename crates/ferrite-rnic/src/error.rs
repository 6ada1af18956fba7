//! Errors of an adapter, with cause and remedy.

use std::io;
use std::net::SocketAddr;

use ferrite_roce::requester::{Failure, PostError};

/// Why an adapter does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is unavailable.
    #[error("cannot listen for RDMA on UDP {address}: {source}{}", mend(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refuses a thread, or the means to wake one.
    #[error("cannot start a thread for RDMA: {0}")]
    Thread(#[source] io::Error),
    /// No address to listen on was given.
    #[error("no address to listen on for RDMA was given")]
    NoAddress,
}

impl StartError {
    /// Whether another process uses an address.
    pub fn is_in_use(&self) -> bool {
        matches!(self, StartError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program has the port (a kernel with rdma_rxe has 4791): end it, or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has the address",
        _ => "",
    }
}

/// Why a verb, or a connection, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket failed.
    #[error("cannot reach {peer} by UDP: {source}; is there a route, and is RDMA allowed on it?")]
    Socket {
        /// The peer.
        peer: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// No process listens there.
    #[error("nobody listens on UDP {peer}: the server has ended, or was started again without RDMA")]
    Refused {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer does not respond.
    #[error("no reply from UDP {peer}: the server is gone, or a firewall drops UDP; open a new queue pair")]
    NoAnswer {
        /// The peer.
        peer: SocketAddr,
    },
    /// The key does not allow it.
    #[error("remote access error: the key is unknown or was revoked, or does not allow this; bind the file again")]
    Access,
    /// The server was not ready for too long.
    #[error("the server was not ready for too long; it may be out of space, or moves the file")]
    NotReady,
    /// The server failed.
    #[error("remote operational error: the medium failed or is full; the server's log says more")]
    Operational,
    /// One end breaks the protocol.
    #[error("the request or its answer breaks the protocol ({0}); are both ends of the same version?")]
    Protocol(Failure),
    /// The queue pair ended before this was done; it is unknown whether it was.
    #[error("the queue pair ended before this was acknowledged; open a new one")]
    Ended,
    /// It took too long.
    #[error("not finished in time; the network may be overloaded")]
    Deadline,
    /// Too much work was posted before this.
    #[error("too much work is waiting for the queue pair")]
    Full,
    /// Longer than the longest message.
    #[error("longer than a message may be")]
    TooLong,
    /// No queue pair is available.
    #[error("the adapter has no queue pair left, or has ended")]
    NoQueuePair,
}

impl Error {
    /// Whether a new queue pair helps: the request itself was valid.
    pub fn is_of_connection(&self) -> bool {
        !matches!(
            self,
            Error::Access | Error::Operational | Error::Protocol(_) | Error::Full | Error::TooLong
        )
    }

    /// Why work of a queue pair with this peer failed.
    pub(crate) fn of(failure: Failure, peer: SocketAddr) -> Error {
        match failure {
            Failure::RetryExceeded => Error::NoAnswer { peer },
            Failure::RnrRetryExceeded => Error::NotReady,
            Failure::Access => Error::Access,
            Failure::Operational => Error::Operational,
            Failure::InvalidRequest | Failure::BadResponse => Error::Protocol(failure),
            Failure::Flushed => Error::Ended,
        }
    }

    /// Why work was not accepted.
    pub(crate) fn of_post(error: PostError) -> Error {
        match error {
            PostError::TooLong => Error::TooLong,
            PostError::Full => Error::Full,
            PostError::Broken => Error::Ended,
        }
    }
}

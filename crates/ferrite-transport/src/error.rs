//! Errors of communication between hosts.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::secure::KeyId;

/// Why a server and a client could not connect.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The server does not know the key.
    #[error(
        "the server does not accept this key ({key}): none of its exports has it. Give the key of the export, or none \
         if the export has none"
    )]
    KeyRefused {
        /// Name of the key.
        key: KeyId,
    },
    /// The server admits no client without a key.
    #[error("the server lets nobody in without a key; give that of the export: `tcp://HOST:PORT/EXPORT?key=FILE`")]
    KeyWanted,
    /// The server has not shown that it has the key.
    #[error(
        "what answers has not proved that it has the key {key}, so nothing was sent to it; is it the right server, and \
         does anybody in between change what is sent?"
    )]
    Unproved {
        /// Name of the key.
        key: KeyId,
    },
    /// The server speaks another version of the handshake.
    #[error(
        "the server speaks version {theirs} of the handshake, this client version {ours}; bring both to the same \
         version of Ferrite"
    )]
    OtherVersion {
        /// Version of the server.
        theirs: u8,
        /// Version of this client.
        ours: u8,
    },
    /// The server has reached its limit of connections.
    #[error("the server has as many connections as it takes; try again later")]
    Full,
    /// The peer is not a Ferrite server.
    #[error("what answers there is no Ferrite server, or one of another version")]
    Foreign,
    /// The peer closed the connection too early.
    #[error("the connection was closed before anything was said; is it a Ferrite server of the same version?")]
    Closed,
    /// Nothing, or not enough, arrived in time.
    #[error("the server has not answered within {0:.1?}")]
    Silent(Duration),
    /// Encryption was requested, but is impossible without a key.
    #[error("encryption needs a key: `tcp://HOST:PORT/EXPORT?key=FILE&encrypt=on`")]
    NothingToEncryptWith,
    /// Anything else.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// Why a message could not be transferred.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The address leads nowhere.
    #[error("cannot reach {address}: {source}; is the server running, and does a firewall let the port through?")]
    Unreachable {
        /// Host and port.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The address is malformed.
    #[error("`{address}` is no address: {source}; an address is HOST:PORT")]
    BadAddress {
        /// The address as given.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server and the client could not connect.
    #[error("{address}: {why}")]
    Handshake {
        /// Host and port.
        address: String,
        /// The reason.
        why: HandshakeError,
    },
    /// The peer closed the connection.
    #[error("the connection was closed by the other side")]
    Closed,
    /// The peer takes nothing.
    #[error("the other side took no data for {} s", .0.as_secs_f64())]
    Stuck(Duration),
    /// The peer announced a frame longer than any valid one.
    #[error(
        "the other side sent a frame of {body_bytes} + {data_bytes} bytes, which is too long; is it a Ferrite server?"
    )]
    TooLong {
        /// Of the body.
        body_bytes: usize,
        /// Of the data.
        data_bytes: usize,
    },
    /// The peer sent something that is not a message.
    #[error("the other side does not speak our protocol; is it a Ferrite server?")]
    Foreign,
    /// libfabric, or the requested provider of it, failed.
    #[error("fabric provider `{provider}`: {step} failed: {text}; {trouble}")]
    Provider {
        /// Its name in addresses.
        provider: &'static str,
        /// The operation that failed.
        step: String,
        /// libfabric's message.
        text: String,
        /// The likely cause, and its remedy.
        trouble: Trouble,
    },
    /// The server supports TCP alone, or not this provider.
    #[error(
        "{address} does not serve fabric://: {why}; start it with `ferrite serve --listen fabric://…`, or use tcp:// \
         instead"
    )]
    NoFabric {
        /// Host and port.
        address: String,
        /// The server's reason.
        why: String,
    },
    /// Text that names no provider.
    #[error("`{0}` is no provider: there are auto, shm (one host), verbs (RDMA) and tcp (for tests)")]
    UnknownProvider(String),
    /// The program was built without the feature `fabric`.
    #[error("this build has no fabric://; build it with the cargo feature `fabric`, or use tcp:// instead")]
    NotBuilt,
    /// Anything else.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// The usual cause of a provider's error, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// The provider is absent, or has no device.
    Absent(&'static str),
    /// Locking more memory would exceed the limit.
    Memlock,
    /// The peer is unreachable.
    Unreachable,
    /// The adapter's queues are too short.
    Queues,
    /// Something else.
    Other,
}

impl Trouble {
    #[cfg(feature = "fabric")]
    pub(crate) fn of(provider: &'static str, step: &str, errno: i32) -> Trouble {
        use rustix::io::Errno;
        match Errno::from_raw_os_error(errno) {
            _ if step == "finding the provider" => Trouble::Absent(provider),
            Errno::NOMEM | Errno::PERM | Errno::AGAIN if step == "registering memory" => Trouble::Memlock,
            Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NOENT | Errno::ADDRNOTAVAIL | Errno::TIMEDOUT => {
                Trouble::Unreachable
            }
            Errno::INVAL | Errno::NOMEM if provider == "verbs" && step == "enabling the endpoint" => Trouble::Queues,
            _ => Trouble::Other,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Absent("verbs") => f.write_str(
                "there is no RDMA adapter with this address that is up, or libibverbs lacks its driver (apt-get install \
                 ibverbs-providers); `ibv_devices` and `ferrite doctor` tell more. Between processes of one host \
                 use ?provider=shm",
            ),
            Trouble::Absent("shm") => f.write_str(
                "shared memory needs a /dev/shm that can be written and is not full; `ferrite doctor` tells more",
            ),
            Trouble::Absent(_) => f.write_str("`fi_info -l` lists the providers there are; `ferrite doctor` tells more"),
            Trouble::Memlock => f.write_str(
                "an adapter locks the memory it works with: raise the limit (`ulimit -l unlimited`, LimitMEMLOCK=infinity \
                 of a systemd unit)",
            ),
            Trouble::Unreachable => f.write_str(
                "is the other side's process alive and, for shm, on this host and in the same container; for others, \
                 does a firewall let the provider's ports through?",
            ),
            Trouble::Queues => f.write_str(
                "the adapter's queues are too short for as many peers as libfabric plans for: set FI_UNIVERSE_SIZE=64 \
                 in the environment (RDMA in software, rdma_rxe, needs it)",
            ),
            Trouble::Other => f.write_str("`FI_LOG_LEVEL=warn` has libfabric say more; tcp:// needs none of this"),
        }
    }
}

//! The setup of an adapter, and the interface between it and its program.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferrite_roce::wire::aeth::Nak;
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::Ids;
use ferrite_roce::wire::{Psn, Qpn};

/// Options of an adapter.
#[derive(Debug, Clone)]
pub struct Options {
    /// The addresses it listens on. An unspecified address is all of its family; a port of 0 any.
    pub listen: Vec<SocketAddr>,
    /// Threads; at least one.
    pub threads: usize,
    /// How long a thread polls for datagrams before it sleeps, where that pays; see [`ferrite_transport::busy_poll`].
    pub busy_poll: Duration,
    /// Queue pairs at a time.
    pub queue_pairs_max: usize,
    /// The port that clients of rdma_cm request; without one they are refused.
    pub service_port: Option<u16>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: Vec::new(),
            threads: 1,
            busy_poll: ferrite_transport::busy_poll::BUSY_POLL,
            queue_pairs_max: 4_096,
            service_port: None,
        }
    }
}

/// A peer that wants a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Destination of responses.
    pub address: SocketAddr,
    /// Its queue pair.
    pub qpn: Qpn,
    /// Number of its first packet.
    pub psn: Psn,
    /// The largest payload that it takes.
    pub mtu: Mtu,
    /// The identifications that its IPv4 packets may have: `Zero` if it is an [`crate::Initiator`].
    pub ids: Ids,
    /// The local address that it knows; otherwise that of the route to it.
    pub local: Option<IpAddr>,
}

/// A queue pair of this adapter, for its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePair {
    /// Destination of its packets.
    pub address: SocketAddr,
    /// Its number.
    pub qpn: Qpn,
    /// Number of its first packet.
    pub psn: Psn,
    /// The payload of full packets, for both ends.
    pub mtu: Mtu,
}

/// Why a queue pair ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The peer was refused: a key that does not allow the request, memory that failed, a breach of the protocol.
    Refused(Nak),
    /// The peer ended it, by rdma_cm.
    Closed,
    /// The peer did not respond, or not as it should: to rdma_cm, or to a request.
    Lost,
}

/// A client of rdma_cm that wants a queue pair.
#[derive(Debug)]
pub struct ConnectRequest<'a> {
    /// Sender of these datagrams.
    pub peer: IpAddr,
    /// The local address that it sent them to.
    pub local: IpAddr,
    /// The queue pair that it gets if it is accepted.
    pub qpn: Qpn,
    /// Private data of its program.
    pub private: &'a [u8],
}

/// The program behind an adapter. The adapter's threads call it, and wait for it: it must not call the adapter.
pub trait Service: Send + Sync {
    /// Decides about a client of rdma_cm, and returns private data for it: up to 196 bytes, the rest is cut.
    ///
    /// # Errors
    /// Private data for a refused client, up to 148 bytes.
    fn accept(&self, request: &ConnectRequest<'_>) -> Result<Vec<u8>, Vec<u8>>;

    /// A queue pair ended other than by [`crate::Rnic::close`]. Called once.
    fn ended(&self, qpn: Qpn, end: End);
}

/// Refuses clients of rdma_cm, and ignores ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoService;

impl Service for NoService {
    fn accept(&self, _request: &ConnectRequest<'_>) -> Result<Vec<u8>, Vec<u8>> {
        Err(Vec::new())
    }

    fn ended(&self, _qpn: Qpn, _end: End) {}
}

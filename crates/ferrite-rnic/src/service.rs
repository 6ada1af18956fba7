//! How an adapter is set up, and what it and its program know of each other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferrite_roce::wire::aeth::Nak;
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::Ids;
use ferrite_roce::wire::{Psn, Qpn};

/// How an adapter works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens. An unspecified address is all of its family; a port of 0 any.
    pub listen: Vec<SocketAddr>,
    /// Threads; at least one.
    pub threads: usize,
    /// How long a thread looks for datagrams before it sleeps, where that pays; see [`ferrite_fabric::spin`].
    pub spin: Duration,
    /// Queue pairs at a time.
    pub queue_pairs_max: usize,
    /// The port that rdma_cm's clients ask for; without one they are refused.
    pub service_port: Option<u16>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: Vec::new(),
            threads: 1,
            spin: ferrite_fabric::spin::SPIN,
            queue_pairs_max: 4_096,
            service_port: None,
        }
    }
}

/// Who wants a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Where answers go.
    pub address: SocketAddr,
    /// Its queue pair.
    pub qpn: Qpn,
    /// Number of its first packet.
    pub psn: Psn,
    /// The largest payload that it takes.
    pub mtu: Mtu,
    /// Which identifications its IPv4 packets may have: `Zero` if it is an [`crate::Initiator`].
    pub ids: Ids,
    /// Our address that it knows; else that of the route to it.
    pub local: Option<IpAddr>,
}

/// A queue pair of ours, for its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePair {
    /// Where its packets go.
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
    /// The peer was refused: a key that does not allow what it asked for, memory that failed, a breach of the protocol.
    Refused(Nak),
    /// The peer ended it, by rdma_cm.
    Closed,
    /// The peer did not answer, or not as it should: to rdma_cm, or to what it was asked for.
    Lost,
}

/// A client of rdma_cm that wants a queue pair.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Whose datagrams these are.
    pub peer: IpAddr,
    /// Our address that it sent them to.
    pub local: IpAddr,
    /// The queue pair that it gets if it is accepted.
    pub qpn: Qpn,
    /// What its program says.
    pub private: &'a [u8],
}

/// The program behind an adapter. It is called by the adapter's threads, which wait for it: it must not call the
/// adapter.
pub trait Service: Send + Sync {
    /// Decides about a client of rdma_cm, and gives private data for it: up to 196 bytes, the rest is cut.
    ///
    /// # Errors
    /// What a client that is refused is told, up to 148 bytes.
    fn accept(&self, asked: &Asked<'_>) -> Result<Vec<u8>, Vec<u8>>;

    /// A queue pair ended, otherwise than by [`crate::Rnic::close`]. Told once.
    fn ended(&self, qpn: Qpn, end: End);
}

/// Refuses clients of rdma_cm, and hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoService;

impl Service for NoService {
    fn accept(&self, _asked: &Asked<'_>) -> Result<Vec<u8>, Vec<u8>> {
        Err(Vec::new())
    }

    fn ended(&self, _qpn: Qpn, _end: End) {}
}

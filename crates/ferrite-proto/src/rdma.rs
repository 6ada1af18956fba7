//! Messages about RDMA: its addresses, queue pairs, keys of files. Traffic by RDMA itself is outside this protocol;
//! docs/roce.md has it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::codec::{Encode, Malformed, Reader, Wire};
use crate::fields;

/// A destination of UDP datagrams. IPv4 addresses are mapped into IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UdpPlace(pub SocketAddr);

impl Encode for UdpPlace {
    fn put(&self, out: &mut Vec<u8>) {
        let ip = match self.0.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        ip.octets().put(out);
        self.0.port().put(out);
    }
}

impl Wire<'_> for UdpPlace {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let ip = Ipv6Addr::from(from.get::<[u8; 16]>()?);
        // Not `to_canonical`, which also recognizes `::1` and leaves it.
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        Ok(UdpPlace(SocketAddr::new(ip, from.get()?)))
    }
}

/// One end of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairInfo {
    /// Where its packets go.
    pub place: UdpPlace,
    /// Its number.
    pub qpn: u32,
    /// The number of its first packet.
    pub psn: u32,
    /// The path MTU: 128 bytes times two to the power of this, 1 to 5.
    pub mtu: u8,
}

fields!(QueuePairInfo { place, qpn, psn, mtu });

/// Length of a pass.
pub const PASS_BYTES: usize = 16;

/// A key of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantedKey {
    /// The key, for queue pairs of this session.
    pub key: u32,
    /// The file's size when the key was given.
    pub size: u64,
    /// The address of a WRITE that appends.
    pub append_at: u64,
    /// The address of a FETCH_ADD that reserves, and of a COMPARE_SWAP that moves the end.
    pub reserve_at: u64,
    /// The longest WRITE, if each is to be one step.
    pub atomic_bytes_max: u64,
    /// Private data that a client of rdma_cm presents to get a queue pair of this session.
    pub pass: [u8; PASS_BYTES],
}

fields!(GrantedKey {
    key,
    size,
    append_at,
    reserve_at,
    atomic_bytes_max,
    pass
});

/// A bound file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BoundFileInfo {
    /// Its inode.
    pub ino: u64,
    /// Its size.
    pub size: u64,
    /// Keys have been given for it; else it was bound when the server ended, and will soon become an ordinary file.
    pub is_attached: bool,
    /// It can be written by RDMA.
    pub writable: bool,
    /// Valid keys.
    pub keys: u32,
    /// Runs of pages that hold it.
    pub entries: u64,
    /// Requested translations.
    pub lookups: u64,
    /// Those that the cache had.
    pub hits: u64,
}

fields!(BoundFileInfo {
    ino,
    size,
    is_attached,
    writable,
    keys,
    entries,
    lookups,
    hits
});

/// Counters of a server's adapter, for all exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RdmaCounters {
    /// Existing queue pairs.
    pub queue_pairs: u64,
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Requests executed, packet by packet.
    pub executed: u64,
    /// Repeated requests.
    pub duplicates: u64,
    /// Deferred requests.
    pub not_ready: u64,
    /// Datagrams that reached no queue pair.
    pub dropped: u64,
}

fields!(RdmaCounters {
    queue_pairs,
    received,
    sent,
    executed,
    duplicates,
    not_ready,
    dropped
});

/// The reply to [`RdmaRequest::RdmaActivity`](super::RdmaRequest::RdmaActivity).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RdmaActivity {
    /// Where it listens.
    pub places: Vec<UdpPlace>,
    /// Its counters.
    pub counters: RdmaCounters,
    /// Bound files of the export.
    pub files: Vec<BoundFileInfo>,
}

fields!(RdmaActivity {
    places,
    counters,
    files
});

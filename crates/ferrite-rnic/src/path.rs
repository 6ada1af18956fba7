//! The local address that leads to a peer, and the largest packets on the way.
//!
//! The kernel's routes know both: a connected UDP socket sends nothing, and exposes them.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use ferrite_roce::wire::cm::Mtu;

use crate::batch;

/// Headers around a payload: UDP, BTH, the longest of the others (RETH and immediate data), ICRC; without IP.
const HEADER_BYTES: u32 = 8 + 12 + 20 + 4;

/// A route to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The local address on it.
    pub local: IpAddr,
    /// The largest payload that fits.
    pub mtu: Mtu,
}

/// The route to a peer, from the kernel's routing table.
///
/// # Errors
/// If no route exists.
pub fn to(peer: SocketAddr) -> io::Result<Path> {
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    // Any port will do, except 0, which is no port.
    let there = match peer.port() {
        0 => SocketAddr::new(peer.ip(), 9),
        _ => peer,
    };
    socket.connect(there)?;
    let bytes = batch::path_bytes(socket.as_fd(), peer.is_ipv4())?;
    Ok(Path {
        local: socket.local_addr()?.ip(),
        mtu: largest_within(bytes, peer.is_ipv4()),
    })
}

/// The largest payload for packets of `packet_bytes`.
fn largest_within(packet_bytes: u32, is_ipv4: bool) -> Mtu {
    let ip_bytes = if is_ipv4 { 20 } else { 40 };
    let space = packet_bytes.saturating_sub(ip_bytes + HEADER_BYTES) as usize;
    let fitting = Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= space);
    fitting.unwrap_or(Mtu::B256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_fit_into_what_interfaces_carry() {
        for (bytes, mtu) in [
            (65_536, Mtu::B4096),
            (9_000, Mtu::B4096),
            (1_500, Mtu::B1024),
            (0, Mtu::B256),
        ] {
            assert_eq!(largest_within(bytes, true), mtu, "{bytes}");
            assert_eq!(largest_within(bytes, false), mtu, "{bytes}");
        }
        assert_eq!(largest_within(4096 + 64, true), Mtu::B4096);
        assert_eq!(largest_within(4096 + 63, true), Mtu::B2048);
        assert_eq!(largest_within(4096 + 83, false), Mtu::B2048);
    }

    #[test]
    fn loopback_leads_to_itself() {
        for peer in ["127.0.0.1:0", "[::1]:4791"] {
            let peer: SocketAddr = peer.parse().unwrap();
            let path = to(peer).unwrap();
            assert_eq!((path.local, path.mtu), (peer.ip(), Mtu::B4096));
        }
    }
}

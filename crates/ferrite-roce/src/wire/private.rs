//! The header that rdma_cm puts before the private data of a REQ: 36 bytes that name the IP addresses of a connection.
//!
//! Version (upper half of byte 0: 0), version of IP (upper half of byte 1), source port (2 bytes), source and
//! destination (16 bytes each; of IPv4 the last four). The destination's port is in the service identifier.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Error, be16, chunk, first, put};

/// Length of the header.
pub const BYTES: usize = 36;
/// Service identifiers of TCP-like connections: this, plus the port.
pub const SERVICE_TCP: u64 = 0x0106_0000;

/// The service identifier of a port.
pub fn service_of_port(port: u16) -> u64 {
    SERVICE_TCP | u64::from(port)
}

/// A view over the header.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'p>(&'p [u8; BYTES]);

impl<'p> Packet<'p> {
    /// A view over the first bytes.
    ///
    /// # Errors
    /// `Truncated`.
    pub fn new_checked(bytes: &'p [u8]) -> Result<Packet<'p>, Error> {
        first(bytes).map(Packet)
    }
}

/// The value of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// The port of the active side.
    pub source_port: u16,
    /// The active side.
    pub source: IpAddr,
    /// The passive side; of the same family.
    pub destination: IpAddr,
}

impl Repr {
    /// The value of a view.
    ///
    /// # Errors
    /// `Version`: of the header or of IP.
    pub fn parse(packet: &Packet<'_>) -> Result<Repr, Error> {
        let bytes = packet.0;
        if bytes[0] >> 4 != 0 {
            return Err(Error::Version(bytes[0] >> 4));
        }
        let address = |at: usize| match bytes[1] >> 4 {
            4 => Ok(IpAddr::V4(Ipv4Addr::from(chunk::<4>(bytes, at + 12)))),
            6 => Ok(IpAddr::V6(Ipv6Addr::from(chunk::<16>(bytes, at)))),
            other => Err(Error::Version(other)),
        };
        Ok(Repr {
            source_port: be16(bytes, 2),
            source: address(4)?,
            destination: address(20)?,
        })
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; BYTES]) {
        bytes.fill(0);
        bytes[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        put(bytes, 2, self.source_port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => put(bytes, at + 12, address.octets()),
                IpAddr::V6(address) => put(bytes, at, address.octets()),
            }
        }
    }
}

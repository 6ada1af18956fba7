//! The invariant CRC: the last four bytes of each packet, little-endian.
//!
//! CRC-32 over eight bytes of ones, the IP header, the UDP header and the packet. Fields that routers change count as
//! ones: type of service, time to live and checksum of IPv4; traffic class, flow label and hop limit of IPv6; the UDP
//! checksum; byte 4 of the base header.
//!
//! # The identification of IPv4
//!
//! The ICRC covers it, and a UDP socket does not show it. This sender uses 0 (a socket that forbids fragments does);
//! others count. CRCs are linear: two packets that differ in these 16 bits alone have CRCs that differ by a linear
//! function of the difference.
//!
//! So of the 2³² differences between a packet's CRC and that for identification 0, exactly 2¹⁶ have a packet behind
//! them, and [`Ids::Any`] accepts those. That leaves a check of 16 bits on IPv4; a user that needs all 32 takes IPv6,
//! or [`Ids::Zero`] if both ends run this code.
//!
//! The CRC's register after a byte is the register before, plus the byte, times x⁸ modulo the polynomial. A difference
//! d of the 16 bits therefore becomes d·x^(8n) when the CRC is done, n counting the bytes from the identification to
//! the end. Dividing by x^(8n) brings it back: if the upper 16 bits are zero then, the lower ones are the difference.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use crc_fast::{CrcAlgorithm, Digest};

use super::bth;

/// Length of the ICRC.
pub const BYTES: usize = 4;

/// The CRC's polynomial, its bits reversed as the register has them.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// 1 as a polynomial: the highest bit is the coefficient of x⁰.
const ONE: u32 = 1 << 31;
/// Longest packet whose division is prepared: a path MTU of 4096, all headers.
const PREPARED_BYTES: usize = 4096 + 128;
/// From the identification of IPv4 to the base header.
const FROM_ID_BYTES: usize = 24;

/// The source and destination of a packet. Both addresses must be of the same family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
}

/// Which identifications an IPv4 packet may have had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Ids {
    /// Zero alone: senders that run this code.
    Zero,
    /// Any; see the head of this module for what that costs.
    #[default]
    Any,
}

/// Appends the ICRC to `packet`, for an IPv4 header with identification 0 that forbids fragments.
pub fn append(flow: &Flow, packet: &mut Vec<u8>) {
    let crc = compute(flow, packet);
    packet.extend(crc.to_le_bytes());
}

/// Whether the last four bytes of `datagram` are the ICRC of the others.
pub fn verify(flow: &Flow, datagram: &[u8], ids: Ids) -> bool {
    let Some((packet, sent)) = datagram.split_last_chunk::<BYTES>() else {
        return false;
    };
    if packet.len() < bth::BYTES || flow.source.is_ipv4() != flow.destination.is_ipv4() {
        return false;
    }
    let difference = u32::from_le_bytes(*sent) ^ compute(flow, packet);
    difference == 0 || (ids == Ids::Any && flow.source.is_ipv4() && is_of_an_id(difference, packet.len()))
}

/// Whether a packet with some identification has a CRC that differs by this from that with identification 0.
fn is_of_an_id(difference: u32, packet_bytes: usize) -> bool {
    static PREPARED: OnceLock<Vec<u32>> = OnceLock::new();
    // Packets are a multiple of four bytes long; no caller passes another length.
    if !packet_bytes.is_multiple_of(4) || packet_bytes > PREPARED_BYTES {
        return false;
    }
    let prepared = PREPARED.get_or_init(|| {
        let per_word = divided_by_x(ONE, 32);
        let start = divided_by_x(ONE, 8 * FROM_ID_BYTES);
        std::iter::successors(Some(start), |&last| Some(times(last, per_word)))
            .take(PREPARED_BYTES / 4 + 1)
            .collect()
    });
    times(difference, prepared[packet_bytes / 4]) <= u32::from(u16::MAX)
}

/// `value` divided `count` times by x.
fn divided_by_x(value: u32, count: usize) -> u32 {
    (0..count).fold(value, |value, _| {
        if value & ONE == 0 {
            value << 1
        } else {
            (value ^ POLYNOMIAL) << 1 | 1
        }
    })
}

/// The product modulo the polynomial.
fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        if a >> bit & 1 == 1 {
            product ^= b;
        }
        b = b >> 1 ^ (if b & 1 == 1 { POLYNOMIAL } else { 0 });
    }
    product
}

/// The CRC of `packet` behind the headers of `flow`; of IPv4 with identification 0.
fn compute(flow: &Flow, packet: &[u8]) -> u32 {
    let mut head = [0xff; 8 + 40 + 8 + bth::BYTES];
    let mut len = 8;
    let mut put = |bytes: &[u8]| {
        head[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    let udp_bytes = (8 + packet.len() + BYTES) as u16;
    match (flow.source.ip(), flow.destination.ip()) {
        (IpAddr::V6(source), destination) => {
            let to = match destination {
                IpAddr::V6(to) => to,
                IpAddr::V4(to) => to.to_ipv6_mapped(),
            };
            put_ipv6(&mut put, udp_bytes, source, to);
        }
        (IpAddr::V4(source), destination) => {
            let to = match destination {
                IpAddr::V4(to) => to,
                // `verify` refuses such a flow; a packet sent with it is never accepted.
                IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
            };
            put_ipv4(&mut put, udp_bytes, source, to);
        }
    }
    put(&flow.source.port().to_be_bytes());
    put(&flow.destination.port().to_be_bytes());
    put(&udp_bytes.to_be_bytes());
    put(&[0xff, 0xff]);
    let (bth, rest) = packet.split_at(bth::BYTES.min(packet.len()));
    put(bth);
    if bth.len() > 4 {
        head[len - bth.len() + 4] = 0xff;
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
    digest.update(&head[..len]);
    digest.update(rest);
    digest.finalize() as u32
}

fn put_ipv4(put: &mut impl FnMut(&[u8]), udp_bytes: u16, source: Ipv4Addr, destination: Ipv4Addr) {
    put(&[0x45, 0xff]);
    put(&udp_bytes.wrapping_add(20).to_be_bytes());
    // Identification 0, no fragments.
    put(&[0, 0, 0x40, 0]);
    put(&[0xff, 17, 0xff, 0xff]);
    put(&source.octets());
    put(&destination.octets());
}

fn put_ipv6(put: &mut impl FnMut(&[u8]), udp_bytes: u16, source: Ipv6Addr, destination: Ipv6Addr) {
    put(&[0x6f, 0xff, 0xff, 0xff]);
    put(&udp_bytes.to_be_bytes());
    put(&[17, 0xff]);
    put(&source.octets());
    put(&destination.octets());
}

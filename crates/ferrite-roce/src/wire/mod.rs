//! The bytes of RoCEv2: one file per header, each with a `Packet`, a checked view over bytes, and a `Repr`, its value.
//!
//! Contents: stateless code only. `Repr::parse` and `Repr::emit` are inverses; reserved bits are sent as zeros and
//! ignored. Numbers are big-endian, except for the ICRC.
//!
//! Invariant: a view exists only over enough bytes, so that its accessors cannot fail and nothing here panics on any
//! input. Any code may call it.

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod cm;
pub mod deth;
pub mod icrc;
pub mod immediate;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod private;
pub mod psn;
pub mod reth;

pub use opcode::Opcode;
pub use psn::Psn;

/// The UDP port of RoCEv2.
pub const UDP_PORT: u16 = 4791;
/// The partition that all members are in.
pub const DEFAULT_PARTITION: u16 = 0xffff;

/// The number of a queue pair: 24 bits.
pub type Qpn = u32;

/// The bits of a [`Qpn`].
pub const QPN_MASK: Qpn = 0xff_ffff;
/// The queue pair for connection management.
pub const QPN_MANAGEMENT: Qpn = 1;

/// Why bytes are no valid packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the headers have.
    #[error("the packet is truncated")]
    Truncated,
    /// The length is not a multiple of four, or smaller than its padding.
    #[error("the packet's length and padding do not agree")]
    Length,
    /// An unsupported opcode.
    #[error("opcode {0:#04x} is not known")]
    Opcode(u8),
    /// An unsupported version of the transport, of management datagrams or of the private data.
    #[error("version {0} is not known")]
    Version(u8),
    /// A code with a reserved meaning.
    #[error("code {0} is reserved")]
    Reserved(u8),
    /// A management datagram that is not about connections.
    #[error("management class {0:#04x} is not that of connections")]
    Class(u8),
}

/// The first `N` bytes.
pub(crate) fn first<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Error> {
    bytes.first_chunk().ok_or(Error::Truncated)
}

/// `N` bytes from `at` on; callers have checked that they exist.
pub(crate) fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut chunk = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        chunk.copy_from_slice(found);
    }
    chunk
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(chunk(bytes, at))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(chunk(bytes, at))
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(chunk(bytes, at))
}

/// The 24 bits from `at` on.
pub(crate) fn be24(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = chunk(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

/// Stores `value` from `at` on.
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..at + N) {
        place.copy_from_slice(&value);
    }
}

/// Stores the low 24 bits of `value` from `at` on.
pub(crate) fn put24(bytes: &mut [u8], at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(bytes, at, [a, b, c]);
}

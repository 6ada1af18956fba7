//! The headers of atomic operations, and of their responses.
//!
//! A request has the address (8 bytes), the key (4), the value to swap in or add (8), the value to compare with (8). A
//! response has, behind its acknowledgement, the previous 8 bytes.

use super::{Error, be32, be64, first, put};

/// Length of the header of a request.
pub const BYTES: usize = 28;
/// Length of the header of a response.
pub const ACK_BYTES: usize = 8;

/// A view over the header of a request.
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

    /// The remote address.
    pub fn address(&self) -> u64 {
        be64(self.0, 0)
    }

    /// The remote key.
    pub fn key(&self) -> u32 {
        be32(self.0, 8)
    }

    /// The value to swap in, or to add.
    pub fn swap_or_add(&self) -> u64 {
        be64(self.0, 12)
    }

    /// The value to compare with.
    pub fn compare(&self) -> u64 {
        be64(self.0, 20)
    }
}

/// The value of the header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repr {
    /// The remote address.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// The value to swap in, or to add.
    pub swap_or_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

impl Repr {
    /// The value of a view.
    pub fn parse(packet: &Packet<'_>) -> Repr {
        Repr {
            address: packet.address(),
            key: packet.key(),
            swap_or_add: packet.swap_or_add(),
            compare: packet.compare(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; BYTES]) {
        put(bytes, 0, self.address.to_be_bytes());
        put(bytes, 8, self.key.to_be_bytes());
        put(bytes, 12, self.swap_or_add.to_be_bytes());
        put(bytes, 20, self.compare.to_be_bytes());
    }
}

/// A view over the header of a response.
#[derive(Debug, Clone, Copy)]
pub struct AckPacket<'p>(&'p [u8; ACK_BYTES]);

impl<'p> AckPacket<'p> {
    /// A view over the first bytes.
    ///
    /// # Errors
    /// `Truncated`.
    pub fn new_checked(bytes: &'p [u8]) -> Result<AckPacket<'p>, Error> {
        first(bytes).map(AckPacket)
    }

    /// The previous value.
    pub fn original(&self) -> u64 {
        be64(self.0, 0)
    }
}

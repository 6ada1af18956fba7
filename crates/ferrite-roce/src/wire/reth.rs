//! The RDMA header of WRITE and READ: address (8 bytes), key (4), length (4).
//!
//! The address is the offset in a file; two addresses have a special meaning, see `memory`.

use super::{Error, be32, be64, first, put};

/// Length of the header.
pub const BYTES: usize = 16;

/// A view over an RDMA header.
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

    /// Length of the whole message.
    pub fn len_bytes(&self) -> u32 {
        be32(self.0, 12)
    }
}

/// The value of an RDMA header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repr {
    /// The remote address.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// Length of the whole message.
    pub len_bytes: u32,
}

impl Repr {
    /// The value of a view.
    pub fn parse(packet: &Packet<'_>) -> Repr {
        Repr {
            address: packet.address(),
            key: packet.key(),
            len_bytes: packet.len_bytes(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; BYTES]) {
        put(bytes, 0, self.address.to_be_bytes());
        put(bytes, 8, self.key.to_be_bytes());
        put(bytes, 12, self.len_bytes.to_be_bytes());
    }
}

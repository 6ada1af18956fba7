//! The header of datagrams: a key of the receiving queue (4 bytes), a reserved byte, the sender's queue pair (3 bytes).

use super::{Error, Qpn, be24, be32, first, put, put24};

/// Length of the header.
pub const BYTES: usize = 8;
/// The key of the queue for connection management.
pub const QKEY_MANAGEMENT: u32 = 0x8001_0000;

/// A view over the header of a datagram.
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

    /// The key of the receiving queue.
    pub fn queue_key(&self) -> u32 {
        be32(self.0, 0)
    }

    /// The sender's queue pair.
    pub fn source(&self) -> Qpn {
        be24(self.0, 5)
    }
}

/// The value of the header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repr {
    /// The key of the receiving queue.
    pub queue_key: u32,
    /// The sender's queue pair.
    pub source: Qpn,
}

impl Repr {
    /// The value of a view.
    pub fn parse(packet: &Packet<'_>) -> Repr {
        Repr {
            queue_key: packet.queue_key(),
            source: packet.source(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; BYTES]) {
        put(bytes, 0, self.queue_key.to_be_bytes());
        bytes[4] = 0;
        put24(bytes, 5, self.source);
    }
}

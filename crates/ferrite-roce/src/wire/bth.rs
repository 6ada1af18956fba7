//! The base transport header: 12 bytes that each packet begins with.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | opcode |
//! | 1 | solicited event (bit 7), migration state (6), padding (5, 4), version (3 to 0), which is 0 |
//! | 2, 3 | partition key |
//! | 4 | FECN (bit 7), BECN (6), reserved; not covered by the ICRC |
//! | 5 to 7 | destination queue pair |
//! | 8 | acknowledgement request (bit 7), reserved |
//! | 9 to 11 | packet sequence number |

use super::{DEFAULT_PARTITION, Error, Opcode, Psn, Qpn, be16, be24, first, put, put24};

/// Length of the header.
pub const BYTES: usize = 12;

/// A view over a base header.
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

    /// The number of the opcode, which may be unknown.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Bytes of padding behind the payload: 0 to 3.
    pub fn pad_bytes(&self) -> u8 {
        self.0[1] >> 4 & 3
    }

    /// The version of the header.
    pub fn version(&self) -> u8 {
        self.0[1] & 0xf
    }

    /// The partition.
    pub fn partition(&self) -> u16 {
        be16(self.0, 2)
    }

    /// The destination queue pair.
    pub fn destination(&self) -> Qpn {
        be24(self.0, 5)
    }

    /// Whether the sender wants an acknowledgement.
    pub fn ack_request(&self) -> bool {
        self.0[8] & 0x80 != 0
    }

    /// The packet's number.
    pub fn psn(&self) -> Psn {
        Psn::new(be24(self.0, 9))
    }
}

/// The value of a base header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// The kind of packet.
    pub opcode: Opcode,
    /// The receiver of the message shall wake.
    pub solicited: bool,
    /// The path is as it was agreed. Senders set it.
    pub migrated: bool,
    /// Bytes of padding behind the payload: 0 to 3.
    pub pad_bytes: u8,
    /// The partition.
    pub partition: u16,
    /// A switch on the way was congested.
    pub fecn: bool,
    /// A packet the other way met congestion.
    pub becn: bool,
    /// The destination queue pair.
    pub destination: Qpn,
    /// The sender wants an acknowledgement.
    pub ack_request: bool,
    /// The packet's number.
    pub psn: Psn,
}

impl Repr {
    /// A header with nothing unusual.
    pub fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Repr {
        Repr {
            opcode,
            solicited: false,
            migrated: true,
            pad_bytes: 0,
            partition: DEFAULT_PARTITION,
            fecn: false,
            becn: false,
            destination,
            ack_request: false,
            psn,
        }
    }

    /// The value of a view.
    ///
    /// # Errors
    /// `Opcode`, `Version`.
    pub fn parse(packet: &Packet<'_>) -> Result<Repr, Error> {
        if packet.version() != 0 {
            return Err(Error::Version(packet.version()));
        }
        Ok(Repr {
            opcode: Opcode::from_number(packet.opcode())?,
            solicited: packet.0[1] & 0x80 != 0,
            migrated: packet.0[1] & 0x40 != 0,
            pad_bytes: packet.pad_bytes(),
            partition: packet.partition(),
            fecn: packet.0[4] & 0x80 != 0,
            becn: packet.0[4] & 0x40 != 0,
            destination: packet.destination(),
            ack_request: packet.ack_request(),
            psn: packet.psn(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; BYTES]) {
        let bit = |set: bool, shift: u8| u8::from(set) << shift;
        bytes[0] = self.opcode.number();
        bytes[1] = bit(self.solicited, 7) | bit(self.migrated, 6) | (self.pad_bytes & 3) << 4;
        put(bytes, 2, self.partition.to_be_bytes());
        bytes[4] = bit(self.fecn, 7) | bit(self.becn, 6);
        put24(bytes, 5, self.destination);
        bytes[8] = bit(self.ack_request, 7);
        put24(bytes, 9, self.psn.value());
    }
}

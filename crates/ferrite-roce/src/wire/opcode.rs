//! The kind of a packet: the first byte of its base header, and which headers follow.
//!
//! Reliable connections (RC), and the unreliable datagram (UD) that carries management datagrams.

use super::{Error, aeth, atomic, deth, immediate, reth};

/// Defines the opcodes with their numbers.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The kind of a packet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode { $($(#[$doc])* $name = $number,)* }

        impl Opcode {
            /// All of them.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            /// The opcode with this number.
            ///
            /// # Errors
            /// `Opcode` if the number is unknown, or unsupported here.
            pub fn from_number(number: u8) -> Result<Opcode, Error> {
                match number {
                    $($number => Ok(Opcode::$name),)*
                    other => Err(Error::Opcode(other)),
                }
            }
        }
    };
}

opcodes! {
    /// The first packet of a longer SEND.
    SendFirst = 0x00,
    /// One between first and last.
    SendMiddle = 0x01,
    /// The last of several.
    SendLast = 0x02,
    /// The last of several, with immediate data.
    SendLastImmediate = 0x03,
    /// A SEND of one packet.
    SendOnly = 0x04,
    /// A SEND of one packet, with immediate data.
    SendOnlyImmediate = 0x05,
    /// The first packet of a longer WRITE.
    WriteFirst = 0x06,
    /// One between first and last.
    WriteMiddle = 0x07,
    /// The last of several.
    WriteLast = 0x08,
    /// The last of several, with immediate data.
    WriteLastImmediate = 0x09,
    /// A WRITE of one packet.
    WriteOnly = 0x0a,
    /// A WRITE of one packet, with immediate data.
    WriteOnlyImmediate = 0x0b,
    /// Requests bytes; takes as many sequence numbers as the response has packets.
    ReadRequest = 0x0c,
    /// The first packet of a longer response.
    ReadResponseFirst = 0x0d,
    /// One between first and last.
    ReadResponseMiddle = 0x0e,
    /// The last of several.
    ReadResponseLast = 0x0f,
    /// A response of one packet.
    ReadResponseOnly = 0x10,
    /// ACK or NAK.
    Acknowledge = 0x11,
    /// The response to an atomic operation.
    AtomicAcknowledge = 0x12,
    /// Compares 8 bytes and swaps them.
    CompareSwap = 0x13,
    /// Adds to 8 bytes.
    FetchAdd = 0x14,
    /// The last of several; makes a key invalid.
    SendLastInvalidate = 0x16,
    /// A SEND of one packet; makes a key invalid.
    SendOnlyInvalidate = 0x17,
    /// A datagram.
    DatagramSendOnly = 0x64,
}

/// Where in its message a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Place {
    /// Whether a message begins here.
    pub fn is_start(self) -> bool {
        matches!(self, Place::First | Place::Only)
    }

    /// Whether a message ends here.
    pub fn is_end(self) -> bool {
        matches!(self, Place::Last | Place::Only)
    }
}

impl Opcode {
    /// The number on the wire.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Where in its message a packet with this opcode is.
    pub fn place(self) -> Place {
        use Opcode::*;
        match self {
            SendFirst | WriteFirst | ReadResponseFirst => Place::First,
            SendMiddle | WriteMiddle | ReadResponseMiddle => Place::Middle,
            SendLast | SendLastImmediate | SendLastInvalidate => Place::Last,
            WriteLast | WriteLastImmediate | ReadResponseLast => Place::Last,
            _ => Place::Only,
        }
    }

    /// A part of a SEND.
    pub fn is_send(self) -> bool {
        use Opcode::*;
        self.number() <= SendOnlyImmediate.number() || matches!(self, SendLastInvalidate | SendOnlyInvalidate)
    }

    /// A part of a WRITE.
    pub fn is_write(self) -> bool {
        (Opcode::WriteFirst.number()..=Opcode::WriteOnlyImmediate.number()).contains(&self.number())
    }

    /// A part of the response to a READ.
    pub fn is_read_response(self) -> bool {
        (Opcode::ReadResponseFirst.number()..=Opcode::ReadResponseOnly.number()).contains(&self.number())
    }

    /// Whether a responder sends it; all others go to a responder.
    pub fn is_answer(self) -> bool {
        self.is_read_response() || matches!(self, Opcode::Acknowledge | Opcode::AtomicAcknowledge)
    }

    /// COMPARE_SWAP or FETCH_ADD.
    pub fn is_atomic(self) -> bool {
        matches!(self, Opcode::CompareSwap | Opcode::FetchAdd)
    }

    /// Whether an address and a key follow.
    pub fn has_reth(self) -> bool {
        use Opcode::*;
        matches!(self, WriteFirst | WriteOnly | WriteOnlyImmediate | ReadRequest)
    }

    /// Whether an acknowledgement follows.
    pub fn has_aeth(self) -> bool {
        self.is_answer() && self != Opcode::ReadResponseMiddle
    }

    /// Whether immediate data follow.
    pub fn has_immediate(self) -> bool {
        use Opcode::*;
        matches!(
            self,
            SendLastImmediate | SendOnlyImmediate | WriteLastImmediate | WriteOnlyImmediate
        )
    }

    /// Whether a key to make invalid follows.
    pub fn has_invalidate(self) -> bool {
        matches!(self, Opcode::SendLastInvalidate | Opcode::SendOnlyInvalidate)
    }

    /// Whether the header of datagrams follows.
    pub fn has_deth(self) -> bool {
        self == Opcode::DatagramSendOnly
    }

    /// Whether bytes may follow the headers.
    pub fn has_payload(self) -> bool {
        self.is_send() || self.is_write() || self.is_read_response() || self.has_deth()
    }

    /// Length of the headers behind the base header.
    pub fn extended_bytes(self) -> usize {
        let lengths = [
            (self.has_deth(), deth::BYTES),
            (self.has_reth(), reth::BYTES),
            (self.is_atomic(), atomic::BYTES),
            (self.has_aeth(), aeth::BYTES),
            (self == Opcode::AtomicAcknowledge, atomic::ACK_BYTES),
            (self.has_immediate() || self.has_invalidate(), immediate::BYTES),
        ];
        lengths.iter().filter(|(has, _)| *has).map(|(_, bytes)| bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_opcodes_are_one_to_one() {
        for number in 0..=u8::MAX {
            match Opcode::from_number(number) {
                Ok(opcode) => assert_eq!(opcode.number(), number),
                Err(error) => assert_eq!(error, Error::Opcode(number)),
            }
        }
        assert_eq!(Opcode::ALL.len(), 24);
    }

    /// The lengths that the standard's table of opcodes gives.
    #[test]
    fn headers_have_the_lengths_of_the_standard() {
        let lengths = [
            (Opcode::SendOnly, 0),
            (Opcode::SendOnlyImmediate, 4),
            (Opcode::SendLastInvalidate, 4),
            (Opcode::WriteFirst, 16),
            (Opcode::WriteMiddle, 0),
            (Opcode::WriteLastImmediate, 4),
            (Opcode::WriteOnlyImmediate, 20),
            (Opcode::ReadRequest, 16),
            (Opcode::ReadResponseMiddle, 0),
            (Opcode::ReadResponseLast, 4),
            (Opcode::Acknowledge, 4),
            (Opcode::AtomicAcknowledge, 12),
            (Opcode::CompareSwap, 28),
            (Opcode::FetchAdd, 28),
            (Opcode::DatagramSendOnly, 8),
        ];
        for (opcode, bytes) in lengths {
            assert_eq!(opcode.extended_bytes(), bytes, "{opcode:?}");
        }
    }
}

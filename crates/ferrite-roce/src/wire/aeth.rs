//! The acknowledgement header: a syndrome (1 byte), and how many messages were finished (3 bytes).
//!
//! Bits 6 and 5 of the syndrome give its kind: ACK (00) with credits, RNR NAK (01) with a time, NAK (11) with a code.

use super::{Error, be24, first, put24};

/// Length of the header.
pub const BYTES: usize = 4;
/// The number of messages wraps here.
pub const MSN_MASK: u32 = 0xff_ffff;
/// The credits of a responder that counts none: the sender has no limit.
pub const CREDITS_NOT_COUNTED: u8 = 0x1f;

/// Times of RNR NAKs in microseconds, by code.
const RNR_US: [u64; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120, 7_680,
    10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
];

/// How long the sender shall wait before it sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The code's low five bits.
    pub fn from_code(code: u8) -> RnrTimer {
        RnrTimer(code & 0x1f)
    }

    /// The shortest time that is not below `wait_ns`; at most 655 ms.
    pub fn at_least(wait_ns: u64) -> RnrTimer {
        // Code 0 is the longest.
        let found = (1..32).find(|&code| RNR_US[usize::from(code)] * 1_000 >= wait_ns);
        RnrTimer(found.unwrap_or(0))
    }

    /// The five bits on the wire.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The time.
    pub fn wait_ns(self) -> u64 {
        RNR_US[usize::from(self.0)] * 1_000
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Nak {
    /// A packet is missing; the sender goes back to the one with this packet's number.
    Sequence,
    /// The request breaks the protocol.
    InvalidRequest,
    /// The key does not allow it.
    Access,
    /// The responder failed.
    Operational,
}

/// The meaning of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to this packet is done. The code of the credits, 5 bits.
    Ack {
        /// How many SENDs may follow, as a code; [`CREDITS_NOT_COUNTED`] for any number.
        credits: u8,
    },
    /// Not ready now; everything before this packet is done.
    RnrNak(RnrTimer),
    /// Refused; everything before this packet is done.
    Nak(Nak),
}

impl Syndrome {
    /// An ACK of a responder that counts no credits.
    pub const ACK: Syndrome = Syndrome::Ack {
        credits: CREDITS_NOT_COUNTED,
    };

    /// The meaning of a byte.
    ///
    /// # Errors
    /// `Reserved`.
    pub fn from_byte(byte: u8) -> Result<Syndrome, Error> {
        let code = byte & 0x1f;
        match (byte >> 5, code) {
            (0, credits) => Ok(Syndrome::Ack { credits }),
            (1, code) => Ok(Syndrome::RnrNak(RnrTimer::from_code(code))),
            (3, 0) => Ok(Syndrome::Nak(Nak::Sequence)),
            (3, 1) => Ok(Syndrome::Nak(Nak::InvalidRequest)),
            (3, 2) => Ok(Syndrome::Nak(Nak::Access)),
            (3, 3) => Ok(Syndrome::Nak(Nak::Operational)),
            _ => Err(Error::Reserved(byte)),
        }
    }

    /// The byte on the wire.
    pub fn byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak(timer) => 1 << 5 | timer.code(),
            Syndrome::Nak(Nak::Sequence) => 0x60,
            Syndrome::Nak(Nak::InvalidRequest) => 0x61,
            Syndrome::Nak(Nak::Access) => 0x62,
            Syndrome::Nak(Nak::Operational) => 0x63,
        }
    }
}

/// A view over an acknowledgement header.
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

    /// The syndrome, as a byte.
    pub fn syndrome(&self) -> u8 {
        self.0[0]
    }

    /// How many messages were finished, modulo 2²⁴.
    pub fn msn(&self) -> u32 {
        be24(self.0, 1)
    }
}

/// The value of an acknowledgement header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// The syndrome.
    pub syndrome: Syndrome,
    /// How many messages were finished, modulo 2²⁴.
    pub msn: u32,
}

impl Repr {
    /// The value of a view.
    ///
    /// # Errors
    /// `Reserved`.
    pub fn parse(packet: &Packet<'_>) -> Result<Repr, Error> {
        Ok(Repr {
            syndrome: Syndrome::from_byte(packet.syndrome())?,
            msn: packet.msn(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; BYTES]) {
        bytes[0] = self.syndrome.byte();
        put24(bytes, 1, self.msn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_are_one_to_one() {
        let known = (0..=u8::MAX).filter(|&byte| match Syndrome::from_byte(byte) {
            Ok(syndrome) => {
                assert_eq!(syndrome.byte(), byte);
                true
            }
            Err(error) => {
                assert_eq!(error, Error::Reserved(byte));
                false
            }
        });
        assert_eq!(known.count(), 32 + 32 + 4);
    }

    #[test]
    fn the_shortest_time_that_is_long_enough_is_taken() {
        assert_eq!(RnrTimer::at_least(0).wait_ns(), 10_000);
        assert_eq!(RnrTimer::at_least(10_000).code(), 1);
        assert_eq!(RnrTimer::at_least(10_001).code(), 2);
        assert_eq!(RnrTimer::at_least(491_520_000).code(), 31);
        assert_eq!(RnrTimer::at_least(491_520_001).code(), 0);
        assert_eq!(RnrTimer::at_least(u64::MAX).wait_ns(), 655_360_000);
    }
}

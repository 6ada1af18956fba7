//! A whole packet: base header, the headers of its opcode, payload, padding: the content of a UDP datagram before its
//! ICRC.
//!
//! Invariants: a view has all headers of its opcode and a payload that is not longer than the bytes; only an opcode
//! that carries a payload has one. Headers, payload and padding together are a multiple of four bytes.

use super::{Error, Opcode, Psn, Qpn, aeth, atomic, bth, deth, icrc, immediate, reth};

/// A view over a packet.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'p> {
    bytes: &'p [u8],
    bth: bth::Repr,
}

impl<'p> Packet<'p> {
    /// A view over all of `datagram`, which ends with an ICRC. The ICRC is not verified.
    ///
    /// # Errors
    /// Each of [`Error`]'s but `Class`.
    pub fn new_checked(datagram: &'p [u8]) -> Result<Packet<'p>, Error> {
        let bytes = datagram.len().checked_sub(icrc::BYTES).ok_or(Error::Truncated)?;
        Packet::without_icrc(&datagram[..bytes])
    }

    /// A view over all of `bytes`, which have no ICRC.
    ///
    /// # Errors
    /// As [`Packet::new_checked`].
    pub fn without_icrc(bytes: &'p [u8]) -> Result<Packet<'p>, Error> {
        let bth = bth::Repr::parse(&bth::Packet::new_checked(bytes)?)?;
        let headers = bth::BYTES + bth.opcode.extended_bytes();
        let rest = bytes.len().checked_sub(headers).ok_or(Error::Truncated)?;
        let pad = usize::from(bth.pad_bytes);
        if !rest.is_multiple_of(4) || rest < pad || (rest > 0 && !bth.opcode.has_payload()) {
            return Err(Error::Length);
        }
        Ok(Packet { bytes, bth })
    }

    /// The base header.
    pub fn bth(&self) -> &bth::Repr {
        &self.bth
    }

    /// The bytes without headers and padding.
    pub fn payload(&self) -> &'p [u8] {
        let start = bth::BYTES + self.bth.opcode.extended_bytes();
        let end = self.bytes.len() - usize::from(self.bth.pad_bytes);
        &self.bytes[start..end]
    }

    /// The bytes behind the base header.
    fn extended(&self) -> &'p [u8] {
        &self.bytes[bth::BYTES..]
    }
}

/// The headers between base header and payload. An opcode has some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers {
    /// Of a datagram.
    pub deth: Option<deth::Repr>,
    /// Of WRITE and READ.
    pub reth: Option<reth::Repr>,
    /// Of atomic operations.
    pub atomic: Option<atomic::Repr>,
    /// Of answers.
    pub aeth: Option<aeth::Repr>,
    /// The value before an atomic operation.
    pub original: Option<u64>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// A key to invalidate.
    pub invalidate: Option<u32>,
}

/// The value of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr<'p> {
    /// The base header. Its padding follows from the payload.
    pub bth: bth::Repr,
    /// Those of its opcode.
    pub headers: Headers,
    /// The bytes.
    pub payload: &'p [u8],
}

impl<'p> Repr<'p> {
    /// A packet without payload, whose headers are to be set.
    pub fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Repr<'p> {
        Repr {
            bth: bth::Repr::new(opcode, destination, psn),
            headers: Headers::default(),
            payload: &[],
        }
    }

    /// The value of a view.
    ///
    /// # Errors
    /// `Reserved`: an acknowledgement with an unknown code.
    pub fn parse(packet: &Packet<'p>) -> Result<Repr<'p>, Error> {
        let opcode = packet.bth.opcode;
        let mut rest = packet.extended();
        let mut headers = Headers::default();
        if opcode.has_deth() {
            headers.deth = Some(deth::Repr::parse(&deth::Packet::new_checked(rest)?));
            rest = &rest[deth::BYTES..];
        }
        if opcode.has_reth() {
            headers.reth = Some(reth::Repr::parse(&reth::Packet::new_checked(rest)?));
            rest = &rest[reth::BYTES..];
        }
        if opcode.is_atomic() {
            headers.atomic = Some(atomic::Repr::parse(&atomic::Packet::new_checked(rest)?));
            rest = &rest[atomic::BYTES..];
        }
        if opcode.has_aeth() {
            headers.aeth = Some(aeth::Repr::parse(&aeth::Packet::new_checked(rest)?)?);
            rest = &rest[aeth::BYTES..];
        }
        if opcode == Opcode::AtomicAcknowledge {
            headers.original = Some(atomic::AckPacket::new_checked(rest)?.original());
        }
        if opcode.has_immediate() {
            headers.immediate = Some(immediate::Packet::new_checked(rest)?.value());
        }
        if opcode.has_invalidate() {
            headers.invalidate = Some(immediate::Packet::new_checked(rest)?.value());
        }
        Ok(Repr {
            bth: packet.bth,
            headers,
            payload: packet.payload(),
        })
    }

    /// Length of the packet without ICRC.
    pub fn len_bytes(&self) -> usize {
        bth::BYTES + self.bth.opcode.extended_bytes() + self.payload.len().next_multiple_of(4)
    }

    /// Appends the packet without ICRC. The opcode determines the headers: others are left out, missing ones are zeros,
    /// which as an acknowledgement is an ACK.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let opcode = self.bth.opcode;
        let end = out.len() + self.len_bytes();
        let pad_bytes = (self.payload.len().next_multiple_of(4) - self.payload.len()) as u8;
        let mut bytes = [0; bth::BYTES];
        bth::Repr { pad_bytes, ..self.bth }.emit(&mut bytes);
        out.extend(bytes);
        if opcode.has_deth() {
            let mut bytes = [0; deth::BYTES];
            self.headers.deth.unwrap_or_default().emit(&mut bytes);
            out.extend(bytes);
        }
        if opcode.has_reth() {
            let mut bytes = [0; reth::BYTES];
            self.headers.reth.unwrap_or_default().emit(&mut bytes);
            out.extend(bytes);
        }
        if opcode.is_atomic() {
            let mut bytes = [0; atomic::BYTES];
            self.headers.atomic.unwrap_or_default().emit(&mut bytes);
            out.extend(bytes);
        }
        if opcode.has_aeth() {
            let mut bytes = [0; aeth::BYTES];
            if let Some(aeth) = self.headers.aeth {
                aeth.emit(&mut bytes);
            }
            out.extend(bytes);
        }
        if opcode == Opcode::AtomicAcknowledge {
            out.extend(self.headers.original.unwrap_or_default().to_be_bytes());
        }
        if opcode.has_immediate() {
            out.extend(self.headers.immediate.unwrap_or_default().to_be_bytes());
        }
        if opcode.has_invalidate() {
            out.extend(self.headers.invalidate.unwrap_or_default().to_be_bytes());
        }
        out.extend_from_slice(self.payload);
        out.resize(end, 0);
    }
}

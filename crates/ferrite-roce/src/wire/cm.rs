//! The messages that make and end connections: REQ, MRA, REJ, REP, RTU, DREQ, DREP (the standard's chapter 12, tables
//! "Message Contents").
//!
//! A message is the content of a management datagram ([`mad`]). Fields that only InfiniBand has (local
//! identifiers, alternate paths, end-to-end contexts) are sent as zeros or as Linux sends them over Ethernet.

use super::{Error, Psn, Qpn, be16, be24, be32, be64, chunk, mad, put, put24};

/// Private data of a REQ; the first bytes are the header of [`super::private`].
pub const REQ_PRIVATE_BYTES: usize = 92;
/// Private data of a REP.
pub const REP_PRIVATE_BYTES: usize = 196;
/// Private data of a REJ.
pub const REJ_PRIVATE_BYTES: usize = 148;

/// Numbers of the messages.
mod attribute {
    pub(super) const REQ: u16 = 0x10;
    pub(super) const MRA: u16 = 0x11;
    pub(super) const REJ: u16 = 0x12;
    pub(super) const REP: u16 = 0x13;
    pub(super) const RTU: u16 = 0x14;
    pub(super) const DREQ: u16 = 0x15;
    pub(super) const DREP: u16 = 0x16;
}

/// The reason for a refusal: the codes that are distinguished here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u16);

impl Reason {
    /// No resources for more.
    pub const NO_RESOURCES: Reason = Reason(3);
    /// No reply in time.
    pub const TIMEOUT: Reason = Reason(4);
    /// The message names an unknown connection.
    pub const INVALID_CONNECTION: Reason = Reason(6);
    /// No program listens there.
    pub const INVALID_SERVICE: Reason = Reason(8);
    /// Not a reliable connection.
    pub const INVALID_TRANSPORT: Reason = Reason(9);
    /// The path MTU is unsupported.
    pub const INVALID_MTU: Reason = Reason(26);
    /// The program refuses.
    pub const BY_PROGRAM: Reason = Reason(28);
}

/// Size of the largest payload of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes: the largest that fits into Ethernet's 1500.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes: the largest that fits into 9000.
    B4096 = 5,
}

impl Mtu {
    /// All of them.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// The one with this code.
    pub fn from_code(code: u8) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The code on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Bytes of payload.
    pub fn bytes(self) -> usize {
        128 << self.code()
    }
}

/// Asks for a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Req {
    /// The sender's name for the connection.
    pub local: u32,
    /// The requested service.
    pub service: u64,
    /// The sender's adapter.
    pub guid: u64,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// READs and atomics that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender has under way at a time.
    pub initiator_depth: u8,
    /// Code of the time that the receiver may take for a reply: 4.096 µs · 2^code.
    pub remote_timeout: u8,
    /// Kind of service: 0 is the reliable connection.
    pub transport: u8,
    /// Whether the sender counts credits.
    pub flow_control: bool,
    /// Number at which the receiver's packets shall begin.
    pub psn: Psn,
    /// Code of the time that the sender takes for a reply.
    pub local_timeout: u8,
    /// How often the receiver's requester resends: 3 bits.
    pub retry_count: u8,
    /// The partition.
    pub partition: u16,
    /// Code of the path MTU: 4 bits.
    pub mtu: u8,
    /// How often after an RNR NAK: 3 bits, 7 for ever.
    pub rnr_retry_count: u8,
    /// How often this message is sent: 4 bits.
    pub cm_retries: u8,
    /// The sender's address.
    pub local_gid: [u8; 16],
    /// The receiver's address.
    pub remote_gid: [u8; 16],
    /// Hops that packets may take.
    pub hop_limit: u8,
    /// Code of the time after which a packet counts as lost: 5 bits.
    pub ack_timeout: u8,
    /// Private data of the programs.
    pub private: [u8; REQ_PRIVATE_BYTES],
}

/// Accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local: u32,
    /// The receiver's.
    pub remote: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// Number at which the receiver's packets shall begin.
    pub psn: Psn,
    /// READs and atomics that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender has under way at a time.
    pub initiator_depth: u8,
    /// Code of the time that an acknowledgement takes at most: 5 bits.
    pub ack_delay: u8,
    /// Whether the sender counts credits.
    pub flow_control: bool,
    /// How often after an RNR NAK: 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's adapter.
    pub guid: u64,
    /// Private data of the programs.
    pub private: [u8; REP_PRIVATE_BYTES],
}

/// Refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rej {
    /// The sender's name for the connection, 0 if it has none.
    pub local: u32,
    /// The receiver's.
    pub remote: u32,
    /// The refused message: 0 a REQ, 1 a REP, 2 any other.
    pub refused: u8,
    /// Why.
    pub reason: Reason,
    /// The sender's adapter, with [`Reason::TIMEOUT`]: it identifies a receiver whose name is unknown.
    pub guid: Option<u64>,
    /// Private data of the programs.
    pub private: [u8; REJ_PRIVATE_BYTES],
}

/// Both names of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// The sender's.
    pub local: u32,
    /// The receiver's.
    pub remote: u32,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repr {
    /// Asks for a connection.
    Req(Box<Req>),
    /// "I need longer": the reply comes later.
    Mra {
        /// Of which connection.
        names: Names,
        /// To which message: 0 a REQ, 1 a REP.
        answered: u8,
        /// Code of how much longer: 4.096 µs · 2^code.
        timeout: u8,
    },
    /// Refuses.
    Rej(Box<Rej>),
    /// Accepts.
    Rep(Box<Rep>),
    /// "Ready to use": the third of three.
    Rtu(Names),
    /// Ends a connection.
    Dreq {
        /// Which.
        names: Names,
        /// The receiver's queue pair.
        remote_qpn: Qpn,
    },
    /// It has ended.
    Drep(Names),
}

/// A byte's bits from `first` on (0 is the highest), `width` of them.
fn bits(byte: u8, first: u32, width: u32) -> u8 {
    byte << first >> (8 - width)
}

/// `value` at the place of [`bits`].
fn placed(value: u8, first: u32, width: u32) -> u8 {
    value << (8 - width) >> first
}

impl Repr {
    /// Which message it is.
    fn attribute(&self) -> u16 {
        match self {
            Repr::Req(_) => attribute::REQ,
            Repr::Mra { .. } => attribute::MRA,
            Repr::Rej(_) => attribute::REJ,
            Repr::Rep(_) => attribute::REP,
            Repr::Rtu(_) => attribute::RTU,
            Repr::Dreq { .. } => attribute::DREQ,
            Repr::Drep(_) => attribute::DREP,
        }
    }

    /// The message in a management datagram, and its transaction.
    ///
    /// # Errors
    /// Those of [`mad::Repr::parse`]; `Reserved` if the attribute is not one of these messages.
    pub fn parse(packet: &mad::Packet<'_>) -> Result<(u64, Repr), Error> {
        let head = mad::Repr::parse(packet)?;
        let bytes = packet.content();
        let names = Names {
            local: be32(bytes, 0),
            remote: be32(bytes, 4),
        };
        let message = match head.attribute {
            attribute::REQ => Repr::Req(Box::new(Req::parse(bytes))),
            attribute::MRA => Repr::Mra {
                names,
                answered: bits(bytes[8], 0, 2),
                timeout: bits(bytes[9], 0, 5),
            },
            attribute::REJ => Repr::Rej(Box::new(Rej {
                local: names.local,
                remote: names.remote,
                refused: bits(bytes[8], 0, 2),
                reason: Reason(be16(bytes, 10)),
                guid: (bits(bytes[9], 0, 7) == 8).then(|| be64(bytes, 12)),
                private: chunk(bytes, 84),
            })),
            attribute::REP => Repr::Rep(Box::new(Rep::parse(bytes))),
            attribute::RTU => Repr::Rtu(names),
            attribute::DREQ => Repr::Dreq {
                names,
                remote_qpn: be24(bytes, 8),
            },
            attribute::DREP => Repr::Drep(names),
            other => return Err(Error::Reserved(other as u8)),
        };
        Ok((head.transaction, message))
    }

    /// Writes a management datagram.
    pub fn emit(&self, transaction: u64) -> [u8; mad::BYTES] {
        let mut datagram = [0; mad::BYTES];
        let head = mad::Repr {
            attribute: self.attribute(),
            transaction,
        };
        head.emit(&mut datagram);
        let bytes = &mut datagram[mad::HEADER_BYTES..];
        match self {
            Repr::Req(req) => req.emit(bytes),
            Repr::Rep(rep) => rep.emit(bytes),
            Repr::Rej(rej) => {
                put(bytes, 0, rej.local.to_be_bytes());
                put(bytes, 4, rej.remote.to_be_bytes());
                bytes[8] = placed(rej.refused, 0, 2);
                put(bytes, 10, rej.reason.0.to_be_bytes());
                if let Some(guid) = rej.guid {
                    bytes[9] = placed(8, 0, 7);
                    put(bytes, 12, guid.to_be_bytes());
                }
                put(bytes, 84, rej.private);
            }
            Repr::Mra { names, .. } | Repr::Dreq { names, .. } | Repr::Rtu(names) | Repr::Drep(names) => {
                put(bytes, 0, names.local.to_be_bytes());
                put(bytes, 4, names.remote.to_be_bytes());
            }
        }
        match self {
            Repr::Mra { answered, timeout, .. } => {
                bytes[8] = placed(*answered, 0, 2);
                bytes[9] = placed(*timeout, 0, 5);
            }
            Repr::Dreq { remote_qpn, .. } => put24(bytes, 8, *remote_qpn),
            _ => {}
        }
        datagram
    }
}

impl Req {
    fn parse(bytes: &[u8]) -> Req {
        Req {
            local: be32(bytes, 0),
            service: be64(bytes, 8),
            guid: be64(bytes, 16),
            qpn: be24(bytes, 32),
            responder_resources: bytes[35],
            initiator_depth: bytes[39],
            remote_timeout: bits(bytes[43], 0, 5),
            transport: bits(bytes[43], 5, 2),
            flow_control: bits(bytes[43], 7, 1) == 1,
            psn: Psn::new(be24(bytes, 44)),
            local_timeout: bits(bytes[47], 0, 5),
            retry_count: bits(bytes[47], 5, 3),
            partition: be16(bytes, 48),
            mtu: bits(bytes[50], 0, 4),
            rnr_retry_count: bits(bytes[50], 5, 3),
            cm_retries: bits(bytes[51], 0, 4),
            local_gid: chunk(bytes, 56),
            remote_gid: chunk(bytes, 72),
            hop_limit: bytes[93],
            ack_timeout: bits(bytes[95], 0, 5),
            private: chunk(bytes, 140),
        }
    }

    fn emit(&self, bytes: &mut [u8]) {
        put(bytes, 0, self.local.to_be_bytes());
        put(bytes, 8, self.service.to_be_bytes());
        put(bytes, 16, self.guid.to_be_bytes());
        put24(bytes, 32, self.qpn);
        bytes[35] = self.responder_resources;
        bytes[39] = self.initiator_depth;
        bytes[43] = placed(self.remote_timeout, 0, 5)
            | placed(self.transport, 5, 2)
            | placed(u8::from(self.flow_control), 7, 1);
        put24(bytes, 44, self.psn.value());
        bytes[47] = placed(self.local_timeout, 0, 5) | placed(self.retry_count, 5, 3);
        put(bytes, 48, self.partition.to_be_bytes());
        bytes[50] = placed(self.mtu, 0, 4) | placed(self.rnr_retry_count, 5, 3);
        bytes[51] = placed(self.cm_retries, 0, 4);
        // Linux's value for absent local identifiers.
        put(bytes, 52, [0xff; 4]);
        put(bytes, 56, self.local_gid);
        put(bytes, 72, self.remote_gid);
        bytes[93] = self.hop_limit;
        bytes[95] = placed(self.ack_timeout, 0, 5);
        put(bytes, 140, self.private);
    }
}

impl Rep {
    fn parse(bytes: &[u8]) -> Rep {
        Rep {
            local: be32(bytes, 0),
            remote: be32(bytes, 4),
            qpn: be24(bytes, 12),
            psn: Psn::new(be24(bytes, 20)),
            responder_resources: bytes[24],
            initiator_depth: bytes[25],
            ack_delay: bits(bytes[26], 0, 5),
            flow_control: bits(bytes[26], 7, 1) == 1,
            rnr_retry_count: bits(bytes[27], 0, 3),
            guid: be64(bytes, 28),
            private: chunk(bytes, 36),
        }
    }

    fn emit(&self, bytes: &mut [u8]) {
        put(bytes, 0, self.local.to_be_bytes());
        put(bytes, 4, self.remote.to_be_bytes());
        put24(bytes, 12, self.qpn);
        put24(bytes, 20, self.psn.value());
        bytes[24] = self.responder_resources;
        bytes[25] = self.initiator_depth;
        bytes[26] = placed(self.ack_delay, 0, 5) | placed(u8::from(self.flow_control), 7, 1);
        bytes[27] = placed(self.rnr_retry_count, 0, 3);
        put(bytes, 28, self.guid.to_be_bytes());
        put(bytes, 36, self.private);
    }
}

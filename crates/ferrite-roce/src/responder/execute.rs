//! Execution of a request in its turn.
//!
//! Invariants: lengths are checked against the path MTU and the announced length before memory is called. State changes
//! after memory's call succeeded, so that a deferred request finds everything as it was.

use crate::memory::{Delivery, Memory, Message, Part, Received};
use crate::wire::aeth::{Nak, Syndrome};
use crate::wire::opcode::Place;
use crate::wire::packet::Repr;
use crate::wire::{Opcode, aeth};

use super::resource::{Operation, Resource};
use super::responses::{Answer, Stream};
use super::{INVALID, Refusal, Responder};

/// The longest message of the protocol.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 1 << 31;
/// The most packets of a message: far from half of all sequence numbers.
pub(crate) const MESSAGE_PACKETS_MAX: u32 = 1 << 22;

/// How many packets `len_bytes` take.
pub(crate) fn packets_of(len_bytes: u32, mtu_bytes: usize) -> u32 {
    len_bytes.div_ceil(mtu_bytes as u32).max(1)
}

/// An incomplete message.
#[derive(Debug)]
pub(super) enum Incoming {
    Write {
        message: Message,
        arrived: u32,
        /// The bytes that have arrived, if it is assembled.
        whole: Option<Vec<u8>>,
    },
    Send(Vec<u8>),
}

impl Responder {
    /// Executes a request whose turn it is.
    pub(super) fn execute(&mut self, packet: &Repr<'_>, memory: &mut impl Memory) -> Result<(), Refusal> {
        let opcode = packet.bth.opcode;
        let continues = match &self.incoming {
            None => false,
            Some(Incoming::Write { .. }) if opcode.is_write() => true,
            Some(Incoming::Send(_)) if opcode.is_send() => true,
            Some(_) => return Err(INVALID),
        };
        if continues == opcode.place().is_start() {
            return Err(INVALID);
        }
        match opcode {
            Opcode::ReadRequest => self.read(packet, memory),
            Opcode::CompareSwap | Opcode::FetchAdd => self.atomic(packet, memory),
            _ if opcode.is_write() => self.write(packet, memory),
            _ if opcode.is_send() => self.send(packet, memory),
            _ => Err(INVALID),
        }
    }

    /// The length that the payload of a packet must have, `remaining` bytes of its message being left.
    fn check_payload(&self, packet: &Repr<'_>, remaining: u32) -> Result<(), Refusal> {
        let mtu = self.config.mtu.bytes();
        let right = match packet.bth.opcode.place() {
            Place::First | Place::Middle => mtu,
            Place::Last | Place::Only => remaining as usize,
        };
        let fits = match packet.bth.opcode.place() {
            Place::First | Place::Middle => remaining as usize > mtu,
            Place::Last | Place::Only => remaining as usize <= mtu,
        };
        if fits && packet.payload.len() == right {
            Ok(())
        } else {
            Err(INVALID)
        }
    }

    /// A WRITE or READ as its first packet announces it.
    fn announced(&self, packet: &Repr<'_>) -> Result<Message, Refusal> {
        let reth = packet.headers.reth.ok_or(INVALID)?;
        let packets = packets_of(reth.len_bytes, self.config.mtu.bytes());
        if reth.len_bytes > MESSAGE_BYTES_MAX || packets > MESSAGE_PACKETS_MAX {
            return Err(INVALID);
        }
        if reth.address.checked_add(u64::from(reth.len_bytes)).is_none() {
            return Err(Refusal::Never(Nak::Access));
        }
        Ok(Message {
            qpn: self.config.qpn,
            number: self.messages,
            key: reth.key,
            at: reth.address,
            len_bytes: reth.len_bytes,
        })
    }

    fn write(&mut self, packet: &Repr<'_>, memory: &mut impl Memory) -> Result<(), Refusal> {
        let (message, arrived, mut whole, is_new) = match self.incoming.take() {
            Some(Incoming::Write {
                message,
                arrived,
                whole,
            }) => (message, arrived, whole, false),
            _ => {
                let message = self.announced(packet)?;
                self.check_payload(packet, message.len_bytes)?;
                (message, 0, self.begin(&message, memory)?, true)
            }
        };
        let delivered = self
            .check_payload(packet, message.len_bytes - arrived)
            .and_then(|()| deliver(packet, memory, &message, arrived, &mut whole));
        match delivered {
            Ok(()) if packet.bth.opcode.place().is_end() => {}
            Ok(()) => {
                let arrived = arrived + packet.payload.len() as u32;
                self.incoming = Some(Incoming::Write {
                    message,
                    arrived,
                    whole,
                });
            }
            Err(refusal) if is_new => {
                if message.len_bytes > 0 {
                    memory.abandon(&message, 0);
                }
                return Err(refusal);
            }
            Err(refusal) => {
                // The packet is resent, or the message is abandoned.
                self.incoming = Some(Incoming::Write {
                    message,
                    arrived,
                    whole,
                });
                return Err(refusal);
            }
        }
        self.done(packet);
        Ok(())
    }

    /// Begins a WRITE: returns the buffer in which it is assembled, if it is.
    fn begin(&mut self, message: &Message, memory: &mut impl Memory) -> Result<Option<Vec<u8>>, Refusal> {
        self.messages += 1;
        if message.len_bytes == 0 {
            return Ok(None);
        }
        match memory.begin(message)? {
            Delivery::Parts => Ok(None),
            Delivery::Whole if message.len_bytes <= self.config.whole_bytes_max => Ok(Some(Vec::new())),
            Delivery::Whole => {
                memory.abandon(message, 0);
                Err(INVALID)
            }
        }
    }

    fn send(&mut self, packet: &Repr<'_>, memory: &mut impl Memory) -> Result<(), Refusal> {
        let place = packet.bth.opcode.place();
        let mtu = self.config.mtu.bytes();
        let is_right = match place {
            Place::First | Place::Middle => packet.payload.len() == mtu,
            Place::Last => (1..=mtu).contains(&packet.payload.len()),
            Place::Only => packet.payload.len() <= mtu,
        };
        let mut data = match self.incoming.take() {
            Some(Incoming::Send(data)) => data,
            _ => Vec::new(),
        };
        let len = data.len();
        if !is_right || len + packet.payload.len() > self.config.receive_bytes_max as usize {
            return Err(INVALID);
        }
        data.extend_from_slice(packet.payload);
        if !place.is_end() {
            self.incoming = Some(Incoming::Send(data));
        } else {
            let received = Received {
                data: &data,
                immediate: packet.headers.immediate,
                invalidate: packet.headers.invalidate,
            };
            if let Err(fault) = memory.receive(self.config.qpn, &received) {
                if place == Place::Last {
                    data.truncate(len);
                    self.incoming = Some(Incoming::Send(data));
                }
                return Err(fault.into());
            }
        }
        self.done(packet);
        Ok(())
    }

    fn read(&mut self, packet: &Repr<'_>, memory: &mut impl Memory) -> Result<(), Refusal> {
        let message = self.announced(packet)?;
        self.check_resources()?;
        if message.len_bytes > 0 {
            memory.may_read(&message)?;
        }
        self.messages += 1;
        let resource = Resource {
            first: packet.bth.psn,
            packets: packets_of(message.len_bytes, self.config.mtu.bytes()),
            operation: Operation::Read(message),
        };
        self.remember(resource);
        self.answers.push_back(Answer::Read(Stream {
            first: resource.first,
            psn: resource.first,
            message,
            offset: 0,
            end: message.len_bytes,
            has_begun: false,
        }));
        Ok(())
    }

    fn atomic(&mut self, packet: &Repr<'_>, memory: &mut impl Memory) -> Result<(), Refusal> {
        let request = packet.headers.atomic.ok_or(INVALID)?;
        self.check_resources()?;
        if !request.address.is_multiple_of(8) {
            return Err(INVALID);
        }
        if request.address.checked_add(8).is_none() {
            return Err(Refusal::Never(Nak::Access));
        }
        let (qpn, key, at) = (self.config.qpn, request.key, request.address);
        let original = match packet.bth.opcode {
            Opcode::FetchAdd => memory.fetch_add(qpn, key, at, request.swap_or_add)?,
            _ => memory.compare_swap(qpn, key, at, request.compare, request.swap_or_add)?,
        };
        self.remember(Resource {
            first: packet.bth.psn,
            packets: 1,
            operation: Operation::Atomic {
                opcode: packet.bth.opcode,
                request,
                original,
            },
        });
        self.answers.push_back(Answer::Atomic {
            psn: packet.bth.psn,
            original,
        });
        Ok(())
    }

    fn check_resources(&self) -> Result<(), Refusal> {
        if self.config.resources == 0 {
            return Err(INVALID);
        }
        Ok(())
    }

    /// Remembers an operation in place of the oldest. The peer has agreed to have no more under way than are
    /// remembered, so it has the response to that one; if not, it loses it.
    fn remember(&mut self, resource: Resource) {
        if self.resources.len() == usize::from(self.config.resources)
            && let Some(oldest) = self.resources.pop_front()
        {
            self.answers.retain(|answer| answer.operation() != Some(oldest.first));
        }
        self.resources.push_back(resource);
        self.expected = resource.first.plus(resource.packets);
        self.msn = (self.msn + 1) & aeth::MSN_MASK;
    }

    /// A packet of a WRITE or SEND has been executed.
    fn done(&mut self, packet: &Repr<'_>) {
        self.expected = self.expected.plus(1);
        if packet.bth.opcode.place().is_end() {
            self.msn = (self.msn + 1) & aeth::MSN_MASK;
        }
        if packet.bth.ack_request {
            self.acknowledge(packet.bth.psn, Syndrome::ACK);
        }
    }
}

/// Passes a packet of a WRITE to memory, or adds it to the others of its message.
fn deliver(
    packet: &Repr<'_>,
    memory: &mut impl Memory,
    message: &Message,
    arrived: u32,
    whole: &mut Option<Vec<u8>>,
) -> Result<(), Refusal> {
    let is_last = packet.bth.opcode.place().is_end();
    let immediate = packet.headers.immediate;
    let Some(whole) = whole else {
        // A WRITE of nothing needs no key: programs send it to probe the other end.
        if message.len_bytes > 0 || immediate.is_some() {
            let part = Part {
                offset_bytes: arrived,
                data: packet.payload,
                is_last,
                immediate,
            };
            memory.write(message, &part)?;
        }
        return Ok(());
    };
    whole.extend_from_slice(packet.payload);
    if is_last && let Err(fault) = memory.write_whole(message, whole, immediate) {
        whole.truncate(arrived as usize);
        return Err(fault.into());
    }
    Ok(())
}

//! A responder's output: acknowledgements, responses to atomics, and READs, whose packets are read from memory when the
//! caller polls, which is how the caller paces them.
//!
//! Invariant: the order is that of the requests. Consecutive acknowledgements become one.

use crate::memory::{Memory, Message};
use crate::wire::aeth::{self, Nak, RnrTimer, Syndrome};
use crate::wire::packet::Repr;
use crate::wire::{Opcode, Psn};

use super::resource::Operation;
use super::{Refusal, Responder};

/// Queued acknowledgements at most; more are dropped, as if the network had lost them.
const ANSWERS_MAX: usize = 1_024;

/// The rest of a READ response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    /// Identifies the operation.
    pub(super) first: Psn,
    /// Of the next packet.
    pub(super) psn: Psn,
    pub(super) message: Message,
    pub(super) offset: u32,
    pub(super) end: u32,
    /// Whether its first packet has left.
    pub(super) has_begun: bool,
}

#[derive(Debug)]
pub(super) enum Answer {
    Acknowledge { psn: Psn, syndrome: Syndrome },
    Atomic { psn: Psn, original: u64 },
    Read(Stream),
}

impl Answer {
    /// The remembered operation that this responds to.
    pub(super) fn operation(&self) -> Option<Psn> {
        match self {
            Answer::Acknowledge { .. } => None,
            Answer::Atomic { psn, .. } => Some(*psn),
            Answer::Read(stream) => Some(stream.first),
        }
    }
}

impl Responder {
    /// Queues an ACK or NAK.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        if let Some(Answer::Acknowledge {
            psn: last_psn,
            syndrome: last_syndrome,
        }) = self.answers.back_mut()
            && *last_syndrome == syndrome
        {
            if psn.since(*last_psn) > 0 {
                *last_psn = psn;
            }
        } else if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(Answer::Acknowledge { psn, syndrome });
        }
    }

    /// Responds again to an executed request.
    pub(super) fn answer_again(&mut self, packet: &Repr<'_>) {
        let psn = packet.bth.psn;
        let opcode = packet.bth.opcode;
        if opcode.is_write() || opcode.is_send() {
            // Its own number, not the last one: that may belong to an operation whose response was lost.
            self.acknowledge(psn, Syndrome::ACK);
            return;
        }
        // The newest with it: numbers recur, and an earlier one may still be remembered.
        let mut newest_first = self.resources.iter().rev();
        let resource = newest_first.find(|one| psn.is_within(one.first, one.packets));
        let answer = resource.and_then(|resource| match resource.operation {
            Operation::Atomic {
                opcode: executed,
                request,
                original,
            } => {
                let is_same = executed == opcode && packet.headers.atomic == Some(request);
                is_same.then_some(Answer::Atomic { psn, original })
            }
            // The rest of a READ, from a lost packet on.
            Operation::Read(message) => {
                let reth = packet.headers.reth?;
                let skipped = psn.since(resource.first) as u64 * self.config.mtu.bytes() as u64;
                let offset = reth.address.checked_sub(message.at)?;
                let end = offset.checked_add(u64::from(reth.len_bytes))?;
                let is_part = reth.key == message.key && offset == skipped && end <= u64::from(message.len_bytes);
                is_part.then_some(Answer::Read(Stream {
                    first: resource.first,
                    psn,
                    message,
                    offset: offset as u32,
                    end: end as u32,
                    has_begun: false,
                }))
            }
        });
        let Some(answer) = answer else {
            self.counters.dropped += 1;
            return;
        };
        // Replaces the queued one: behind the responses to later requests it would look lost.
        match self
            .answers
            .iter_mut()
            .find(|waiting| waiting.operation() == answer.operation())
        {
            Some(waiting) => *waiting = answer,
            None => self.answers.push_back(answer),
        }
    }

    /// Whether a packet is ready to be sent.
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Appends the next packet, without ICRC; false if none is ready. Blocks as long as `memory` does.
    pub fn poll(&mut self, memory: &mut impl Memory, out: &mut Vec<u8>) -> bool {
        match self.answers.pop_front() {
            None => return false,
            Some(Answer::Acknowledge { psn, syndrome }) => self.emit_acknowledgement(psn, syndrome, out),
            Some(Answer::Atomic { psn, original }) => {
                let mut packet = self.answer(Opcode::AtomicAcknowledge, psn, Syndrome::ACK);
                packet.headers.original = Some(original);
                packet.emit(out);
            }
            Some(Answer::Read(stream)) => self.emit_read(stream, memory, out),
        }
        true
    }

    fn answer(&self, opcode: Opcode, psn: Psn, syndrome: Syndrome) -> Repr<'static> {
        let mut packet = Repr::new(opcode, self.config.peer, psn);
        packet.headers.aeth = Some(aeth::Repr {
            syndrome,
            msn: self.msn,
        });
        packet
    }

    fn emit_acknowledgement(&self, psn: Psn, syndrome: Syndrome, out: &mut Vec<u8>) {
        self.answer(Opcode::Acknowledge, psn, syndrome).emit(out);
    }

    fn emit_read(&mut self, mut stream: Stream, memory: &mut impl Memory, out: &mut Vec<u8>) {
        let mtu = self.config.mtu.bytes();
        let len = (stream.end - stream.offset).min(mtu as u32);
        let is_last = stream.offset + len == stream.end;
        let mut data = [0; 4096];
        let data = &mut data[..len as usize];
        if len > 0
            && let Err(fault) = memory.read(&stream.message, stream.offset, data)
        {
            match Refusal::from(fault) {
                Refusal::Later { wait_ns } => {
                    self.counters.not_ready += 1;
                    self.emit_acknowledgement(stream.psn, Syndrome::RnrNak(RnrTimer::at_least(wait_ns)), out);
                }
                Refusal::Never(nak) => self.break_in_read(stream.psn, nak, memory, out),
            }
            return;
        }
        let opcode = match (stream.has_begun, is_last) {
            (false, false) => Opcode::ReadResponseFirst,
            (true, false) => Opcode::ReadResponseMiddle,
            (true, true) => Opcode::ReadResponseLast,
            (false, true) => Opcode::ReadResponseOnly,
        };
        let mut packet = self.answer(opcode, stream.psn, Syndrome::ACK);
        packet.payload = data;
        packet.emit(out);
        if !is_last {
            stream.has_begun = true;
            stream.offset += len;
            stream.psn = stream.psn.plus(1);
            self.answers.push_front(Answer::Read(stream));
        }
    }

    /// Memory that was readable no longer is.
    fn break_in_read(&mut self, psn: Psn, nak: Nak, memory: &mut impl Memory, out: &mut Vec<u8>) {
        self.give_up(memory);
        self.answers.clear();
        self.broken = Some((psn, nak));
        self.emit_acknowledgement(psn, Syndrome::Nak(nak), out);
    }
}

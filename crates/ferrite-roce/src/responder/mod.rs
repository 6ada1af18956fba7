//! The responder of one queue pair: requests go in, each is executed once, responses come out.
//!
//! Contents: the order of packets (this file), the effect of a request (`execute`), responses queued for sending
//! (`answers`), operations that may be requested again (`resource`).
//!
//! Invariants:
//!
//! * A request is executed in the order of sequence numbers, once. A duplicate is acknowledged again (WRITE, SEND),
//!   answered from memory of the result (atomics), or read again (READ).
//! * **An acknowledgement is queued after the memory's call has returned**, so everything it covers is durable.
//! * The sender gets one NAK for a gap.
//! * After a NAK that is not about order nothing more is executed. The NAK is repeated for every later packet, since it
//!   may have been lost.
//! * Responses leave in the order of their requests. The number of remembered operations is bounded.

mod execute;
mod resource;
mod responses;

use std::collections::VecDeque;

use crate::memory::{Fault, Memory};
use crate::wire::aeth::{Nak, RnrTimer, Syndrome};
use crate::wire::cm::Mtu;
use crate::wire::packet::Repr;
use crate::wire::{Psn, Qpn};

use execute::Incoming;
pub(crate) use execute::{MESSAGE_BYTES_MAX, MESSAGE_PACKETS_MAX, packets_of};
use resource::Resource;
use responses::Answer;

/// Configuration of a responder.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its own queue pair.
    pub qpn: Qpn,
    /// The requester's queue pair.
    pub peer: Qpn,
    /// The path MTU.
    pub mtu: Mtu,
    /// The first number expected.
    pub psn: Psn,
    /// READs and atomics that are remembered, which limits how many the peer may have under way. 0 refuses them.
    pub resources: u8,
    /// The longest SEND.
    pub receive_bytes_max: u32,
    /// The longest WRITE that is assembled.
    pub whole_bytes_max: u32,
}

impl Config {
    /// A responder with default limits.
    pub fn new(qpn: Qpn, peer: Qpn, mtu: Mtu, psn: Psn) -> Config {
        Config {
            qpn,
            peer,
            mtu,
            psn,
            resources: 16,
            receive_bytes_max: 64 << 10,
            whole_bytes_max: 16 << 20,
        }
    }
}

/// Counters of a responder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets executed.
    pub executed: u64,
    /// Duplicate packets.
    pub duplicates: u64,
    /// Packets that came too early.
    pub out_of_order: u64,
    /// Requests that were deferred.
    pub not_ready: u64,
    /// Packets without a response: their operation is forgotten, or the queue pair is broken.
    pub dropped: u64,
}

/// Why a request is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Later { wait_ns: u64 },
    Never(Nak),
}

/// A request that breaks the protocol.
const INVALID: Refusal = Refusal::Never(Nak::InvalidRequest);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        match fault {
            Fault::NotReady { wait_ns } => Refusal::Later { wait_ns },
            Fault::Access => Refusal::Never(Nak::Access),
            Fault::Operational => Refusal::Never(Nak::Operational),
        }
    }
}

/// The responder of one queue pair.
#[derive(Debug)]
pub struct Responder {
    config: Config,
    expected: Psn,
    /// Messages finished.
    msn: u32,
    /// The sender knows that it must go back.
    told_of_gap: bool,
    /// The NAK that ended it, and the number of its packet.
    broken: Option<(Psn, Nak)>,
    incoming: Option<Incoming>,
    resources: VecDeque<Resource>,
    answers: VecDeque<Answer>,
    messages: u64,
    counters: Counters,
}

impl Responder {
    /// A responder that expects its first packet.
    pub fn new(config: Config) -> Responder {
        Responder {
            expected: config.psn,
            config,
            msn: 0,
            told_of_gap: false,
            broken: None,
            incoming: None,
            resources: VecDeque::new(),
            answers: VecDeque::new(),
            messages: 0,
            counters: Counters::default(),
        }
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The NAK that ended it, if any.
    pub fn broken(&self) -> Option<Nak> {
        self.broken.map(|(_, nak)| nak)
    }

    /// Handles a request. Blocks as long as `memory` does.
    pub fn handle(&mut self, packet: &Repr<'_>, memory: &mut impl Memory) {
        let psn = packet.bth.psn;
        if let Some((at, nak)) = self.broken {
            self.counters.dropped += 1;
            self.acknowledge(at, Syndrome::Nak(nak));
            return;
        }
        match psn.since(self.expected) {
            0 => {}
            1.. => {
                self.counters.out_of_order += 1;
                if !self.told_of_gap {
                    self.told_of_gap = true;
                    self.acknowledge(self.expected, Syndrome::Nak(Nak::Sequence));
                }
                return;
            }
            _ => {
                self.counters.duplicates += 1;
                self.answer_again(packet);
                return;
            }
        }
        self.told_of_gap = false;
        match self.execute(packet, memory) {
            Ok(()) => self.counters.executed += 1,
            Err(Refusal::Later { wait_ns }) => {
                self.counters.not_ready += 1;
                // Later packets are out of order and will be resent anyway.
                self.told_of_gap = true;
                self.acknowledge(psn, Syndrome::RnrNak(RnrTimer::at_least(wait_ns)));
            }
            Err(Refusal::Never(nak)) => {
                self.give_up(memory);
                self.broken = Some((psn, nak));
                self.acknowledge(psn, Syndrome::Nak(nak));
            }
        }
    }

    /// Ends it: the memory learns of a message that will not be finished. Call it when the queue pair is removed.
    pub fn give_up(&mut self, memory: &mut impl Memory) {
        if let Some(Incoming::Write { message, arrived, .. }) = self.incoming.take() {
            memory.abandon(&message, arrived);
        }
    }
}

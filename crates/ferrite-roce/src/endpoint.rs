//! Many queue pairs of one host: dispatch of datagrams, turns for sending, and timers.
//!
//! Contents: the table of queue pairs and the checks that come before any of them. One thread owns an endpoint; several
//! endpoints share a host by having different queue pair numbers.
//!
//! Invariants:
//!
//! * A datagram reaches a queue pair only if it is a packet with a correct ICRC, of this partition, between the two
//!   addresses that the queue pair connects. Everything else is dropped and counted, without an answer.
//! * A number is not reused before all others were: late packets of a dead queue pair reach none.
//! * If either half of a queue pair breaks, the whole does: only the NAK that broke it is still sent, and nothing is
//!   executed.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use rustc_hash::FxHashMap;

use crate::memory::Memory;
use crate::requester::{Completion, PostError, Request, Requester};
use crate::responder::Responder;
use crate::wire::icrc::{self, Flow, Ids};
use crate::wire::packet::{Packet, Repr};
use crate::wire::{DEFAULT_PARTITION, Error, Opcode, Psn, QPN_MANAGEMENT, QPN_MASK, Qpn, UDP_PORT, deth, mad};
use crate::{requester, responder};

/// Queue pair numbers begin here.
const QPN_FIRST: Qpn = 16;
/// Management datagrams queued for sending.
const MANAGEMENT_MAX: usize = 1_024;

/// A queue pair to be added.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The local address.
    pub local: SocketAddr,
    /// The destination of responses and requests. Packets of a peer at [`UDP_PORT`] come from any port, as adapters
    /// send them; those of another port come from there.
    pub peer: SocketAddr,
    /// The identifications that the peer's IPv4 packets may have.
    pub ids: Ids,
    /// Configuration of its requester.
    pub requester: requester::Config,
    /// Configuration of its responder.
    pub responder: responder::Config,
}

/// Another queue pair has this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("queue pair {0} exists")]
pub struct InUse(pub Qpn);

/// Why a datagram was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Dropped {
    /// Not a packet.
    #[error("not a packet: {0}")]
    Malformed(Error),
    /// Changed on its way, or not meant for this address.
    #[error("wrong ICRC")]
    Icrc,
    /// Of another partition.
    #[error("another partition")]
    Partition,
    /// No such queue pair, or no longer.
    #[error("no such queue pair")]
    UnknownQueuePair,
    /// From or to an address that the queue pair does not connect.
    #[error("another address than that of the peer")]
    ForeignAddress,
    /// A datagram for a connection, a request for the queue pair of management, or one with a wrong key.
    #[error("not for this kind of queue pair")]
    WrongService,
    /// The queue pair is broken.
    #[error("the queue pair is broken")]
    Dead,
}

/// Counters of dropped packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that reached a queue pair.
    pub taken: u64,
    /// See [`Dropped::Malformed`].
    pub malformed: u64,
    /// See [`Dropped::Icrc`].
    pub icrc: u64,
    /// See [`Dropped::Partition`].
    pub partition: u64,
    /// See [`Dropped::UnknownQueuePair`].
    pub unknown: u64,
    /// See [`Dropped::ForeignAddress`].
    pub foreign: u64,
    /// See [`Dropped::WrongService`].
    pub wrong_service: u64,
    /// See [`Dropped::Dead`].
    pub dead: u64,
}

/// A classified datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken<'d> {
    /// A request to this queue pair.
    Request(Qpn),
    /// A response to this queue pair. It may have completions.
    Answer(Qpn),
    /// A management datagram, about connections.
    Management {
        /// Its bytes, [`mad::BYTES`] of them.
        datagram: &'d [u8],
    },
}

#[derive(Debug)]
struct QueuePair {
    local: SocketAddr,
    peer: SocketAddr,
    ids: Ids,
    requester: Requester,
    responder: Responder,
    /// Whether it is queued as one that may have something to send.
    is_queued: bool,
    /// Its entry among the timers.
    timer_ns: Option<u64>,
    /// Whose turn it is: both halves alternate.
    requester_is_next: bool,
}

impl QueuePair {
    fn may_send(&self) -> bool {
        self.responder.has_answers() || self.requester.has_requests()
    }
}

/// Many queue pairs.
#[derive(Debug)]
pub struct Endpoint {
    ids: Ids,
    /// The endpoint chooses the keys, so no peer can provoke collisions.
    table: FxHashMap<Qpn, QueuePair>,
    next_qpn: Qpn,
    ready: VecDeque<Qpn>,
    timers: BTreeSet<(u64, Qpn)>,
    management: VecDeque<(Flow, [u8; mad::BYTES])>,
    management_psn: Psn,
    counters: Counters,
}

impl Endpoint {
    /// An endpoint without queue pairs. `ids` is for packets outside of queue pairs: management. `seed` determines the
    /// first number: a different one after each start keeps out packets from before the start.
    pub fn new(ids: Ids, seed: u32) -> Endpoint {
        Endpoint {
            ids,
            table: FxHashMap::default(),
            next_qpn: (seed & QPN_MASK).max(QPN_FIRST),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            management: VecDeque::new(),
            management_psn: Psn::default(),
            counters: Counters::default(),
        }
    }

    /// Counters of dropped packets.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A number that no queue pair has, and that has not been used for long.
    pub fn allocate(&mut self) -> Qpn {
        loop {
            let qpn = self.next_qpn;
            self.next_qpn = if qpn == QPN_MASK { QPN_FIRST } else { qpn + 1 };
            if !self.table.contains_key(&qpn) {
                return qpn;
            }
        }
    }

    /// Adds a queue pair under the number in its responder's configuration, which [`Endpoint::allocate`] gave.
    ///
    /// # Errors
    /// If the number is in use; nothing has changed then.
    pub fn connect(&mut self, connection: Connection) -> Result<(), InUse> {
        let qpn = connection.responder.qpn;
        if self.table.contains_key(&qpn) {
            return Err(InUse(qpn));
        }
        let pair = QueuePair {
            local: connection.local,
            peer: connection.peer,
            ids: connection.ids,
            requester: Requester::new(connection.requester),
            responder: Responder::new(connection.responder),
            is_queued: false,
            timer_ns: None,
            requester_is_next: false,
        };
        self.table.insert(qpn, pair);
        Ok(())
    }

    /// Removes a queue pair: unfinished work completes as flushed, and memory learns of a message that will not be
    /// completed. Returns all its completions, none if the queue pair does not exist.
    pub fn remove(&mut self, qpn: Qpn, memory: &mut impl Memory) -> Vec<Completion> {
        let Some(mut pair) = self.table.remove(&qpn) else {
            return Vec::new();
        };
        if let Some(timer_ns) = pair.timer_ns {
            self.timers.remove(&(timer_ns, qpn));
        }
        pair.responder.give_up(memory);
        pair.requester.close();
        std::iter::from_fn(|| pair.requester.poll_completion()).collect()
    }

    /// The halves of a queue pair, for inspection.
    pub fn get(&self, qpn: Qpn) -> Option<(&Requester, &Responder)> {
        self.table.get(&qpn).map(|pair| (&pair.requester, &pair.responder))
    }

    /// The other end of a queue pair.
    pub fn peer(&self, qpn: Qpn) -> Option<SocketAddr> {
        self.table.get(&qpn).map(|pair| pair.peer)
    }

    /// Sets how often a queue pair resends packets without progress, from now on. No effect if it does not exist.
    pub fn set_retry_count(&mut self, qpn: Qpn, retry_count: u32) {
        if let Some(pair) = self.table.get_mut(&qpn) {
            pair.requester.set_retry_count(retry_count);
        }
    }

    /// The numbers of all queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> {
        self.table.keys().copied()
    }

    /// Whether [`Endpoint::post`] would accept this.
    ///
    /// # Errors
    /// As there.
    pub fn may_post(&self, qpn: Qpn, request: &Request) -> Result<(), PostError> {
        let pair = self.table.get(&qpn).ok_or(PostError::Broken)?;
        pair.requester.may_post(request)
    }

    /// Accepts work for a queue pair.
    ///
    /// # Errors
    /// As [`Requester::post`]; `Broken` also if the queue pair does not exist.
    pub fn post(&mut self, qpn: Qpn, id: u64, request: Request) -> Result<(), PostError> {
        let pair = self.table.get_mut(&qpn).ok_or(PostError::Broken)?;
        pair.requester.post(id, request)?;
        self.touched(qpn);
        Ok(())
    }

    /// The next finished work of a queue pair.
    pub fn poll_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.table.get_mut(&qpn)?.requester.poll_completion()
    }

    /// Processes a datagram from a UDP socket. Blocks as long as `memory` does.
    ///
    /// # Errors
    /// Why it was dropped.
    pub fn receive<'d>(
        &mut self,
        now_ns: u64,
        flow: &Flow,
        datagram: &'d [u8],
        memory: &mut impl Memory,
    ) -> Result<Taken<'d>, Dropped> {
        let taken = self.take(now_ns, flow, datagram, memory);
        let counter = match taken {
            Ok(_) => &mut self.counters.taken,
            Err(Dropped::Malformed(_)) => &mut self.counters.malformed,
            Err(Dropped::Icrc) => &mut self.counters.icrc,
            Err(Dropped::Partition) => &mut self.counters.partition,
            Err(Dropped::UnknownQueuePair) => &mut self.counters.unknown,
            Err(Dropped::ForeignAddress) => &mut self.counters.foreign,
            Err(Dropped::WrongService) => &mut self.counters.wrong_service,
            Err(Dropped::Dead) => &mut self.counters.dead,
        };
        *counter += 1;
        taken
    }

    fn take<'d>(
        &mut self,
        now_ns: u64,
        flow: &Flow,
        datagram: &'d [u8],
        memory: &mut impl Memory,
    ) -> Result<Taken<'d>, Dropped> {
        let view = Packet::new_checked(datagram).map_err(Dropped::Malformed)?;
        let packet = Repr::parse(&view).map_err(Dropped::Malformed)?;
        let ids = self
            .table
            .get(&packet.bth.destination)
            .map_or(self.ids, |pair| pair.ids);
        if !icrc::verify(flow, datagram, ids) {
            return Err(Dropped::Icrc);
        }
        // The highest bit distinguishes full members from limited ones.
        if (packet.bth.partition ^ DEFAULT_PARTITION) & 0x7fff != 0 {
            return Err(Dropped::Partition);
        }
        let qpn = packet.bth.destination;
        if qpn == QPN_MANAGEMENT {
            return take_management(&packet);
        }
        let pair = self.table.get_mut(&qpn).ok_or(Dropped::UnknownQueuePair)?;
        let is_from_peer = flow.source.ip() == pair.peer.ip()
            && (pair.peer.port() == UDP_PORT || flow.source.port() == pair.peer.port());
        if !is_from_peer || flow.destination.ip() != pair.local.ip() {
            return Err(Dropped::ForeignAddress);
        }
        if packet.bth.opcode.has_deth() {
            return Err(Dropped::WrongService);
        }
        if pair.requester.is_broken() && pair.responder.broken().is_none() {
            return Err(Dropped::Dead);
        }
        let taken = if packet.bth.opcode.is_answer() {
            pair.requester.handle(&packet, now_ns);
            if pair.requester.is_broken() {
                pair.responder.give_up(memory);
            }
            Taken::Answer(qpn)
        } else {
            pair.responder.handle(&packet, memory);
            Taken::Request(qpn)
        };
        self.touched(qpn);
        Ok(taken)
    }

    /// Queues a management datagram. If too many are queued it is dropped, as the network may drop any.
    pub fn send_management(&mut self, local: SocketAddr, peer: IpAddr, datagram: [u8; mad::BYTES]) {
        if self.management.len() < MANAGEMENT_MAX {
            self.management
                .push_back((flow_to(local, SocketAddr::new(peer, UDP_PORT)), datagram));
        }
    }

    /// Puts the next datagram to send into `out`, and returns its flow. Queue pairs take turns, packet by packet.
    /// Blocks as long as `memory` does.
    pub fn poll_transmit(&mut self, now_ns: u64, memory: &mut impl Memory, out: &mut Vec<u8>) -> Option<Flow> {
        out.clear();
        if let Some((flow, datagram)) = self.management.pop_front() {
            emit_management(self.management_psn, &datagram, out);
            self.management_psn = self.management_psn.plus(1);
            icrc::append(&flow, out);
            return Some(flow);
        }
        while let Some(qpn) = self.ready.pop_front() {
            let Some(pair) = self.table.get_mut(&qpn) else {
                continue;
            };
            pair.is_queued = false;
            let mut has_sent = false;
            for is_turn in [true, false] {
                has_sent = has_sent
                    || if pair.requester_is_next == is_turn {
                        pair.requester.poll(now_ns, out)
                    } else {
                        pair.responder.poll(memory, out)
                    };
            }
            pair.requester_is_next = !pair.requester_is_next;
            let flow = flow_to(pair.local, pair.peer);
            self.touched(qpn);
            if has_sent {
                icrc::append(&flow, out);
                return Some(flow);
            }
        }
        None
    }

    /// When to call [`Endpoint::handle_timeout`].
    pub fn poll_timeout_ns(&self) -> Option<u64> {
        self.timers.first().map(|(at_ns, _)| *at_ns)
    }

    /// Time has passed. Afterwards there may be completions, and more to send.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(&(at_ns, qpn)) = self.timers.first()
            && at_ns <= now_ns
        {
            self.timers.pop_first();
            if let Some(pair) = self.table.get_mut(&qpn) {
                pair.timer_ns = None;
                pair.requester.handle_timeout(now_ns);
            }
            self.touched(qpn);
        }
    }

    /// A queue pair has changed.
    fn touched(&mut self, qpn: Qpn) {
        let Some(pair) = self.table.get_mut(&qpn) else {
            return;
        };
        if pair.responder.broken().is_some() && !pair.requester.is_broken() {
            pair.requester.close();
        }
        if !pair.is_queued && pair.may_send() {
            pair.is_queued = true;
            self.ready.push_back(qpn);
        }
        let timer_ns = pair.requester.poll_timeout_ns();
        if timer_ns != pair.timer_ns {
            if let Some(old_ns) = pair.timer_ns {
                self.timers.remove(&(old_ns, qpn));
            }
            if let Some(new_ns) = timer_ns {
                self.timers.insert((new_ns, qpn));
            }
            pair.timer_ns = timer_ns;
        }
    }
}

fn flow_to(local: SocketAddr, peer: SocketAddr) -> Flow {
    Flow {
        source: local,
        destination: peer,
    }
}

fn take_management<'d>(packet: &Repr<'d>) -> Result<Taken<'d>, Dropped> {
    match packet.headers.deth {
        Some(deth) if deth.queue_key == deth::QKEY_MANAGEMENT && packet.payload.len() == mad::BYTES => {
            Ok(Taken::Management {
                datagram: packet.payload,
            })
        }
        _ => Err(Dropped::WrongService),
    }
}

fn emit_management(psn: Psn, datagram: &[u8; mad::BYTES], out: &mut Vec<u8>) {
    let mut packet = Repr::new(Opcode::DatagramSendOnly, QPN_MANAGEMENT, psn);
    packet.headers.deth = Some(deth::Repr {
        queue_key: deth::QKEY_MANAGEMENT,
        source: QPN_MANAGEMENT,
    });
    packet.payload = datagram;
    packet.emit(out);
}

//! The requester of one queue pair: work goes in, requests come out, responses go in, completions come out.
//!
//! Contents: queued work, and when packets are sent (this file), responses (`complete`).
//!
//! Invariants:
//!
//! * Work completes in the order in which it was posted, each once, also when the queue pair breaks.
//! * `oldest <= next <= sent`: packets before `oldest` are acknowledged, those before `sent` have left at least once,
//!   and `next` leaves next. Going back sets `next` to `oldest`. The first work in the queue holds `oldest`.
//! * Posted work covers less than a quarter of all sequence numbers, so distances are never ambiguous.

mod complete;

use std::collections::VecDeque;

use crate::responder::{MESSAGE_BYTES_MAX, MESSAGE_PACKETS_MAX, packets_of};
use crate::wire::cm::Mtu;
use crate::wire::packet::Repr;
use crate::wire::{Opcode, Psn, Qpn, atomic, reth};

/// An RNR retry count without a limit.
pub const RNR_RETRY_FOR_EVER: u32 = 7;

/// Configuration of a requester.
#[derive(Debug, Clone)]
pub struct Config {
    /// The responder's queue pair.
    pub peer: Qpn,
    /// The path MTU.
    pub mtu: Mtu,
    /// The first number.
    pub psn: Psn,
    /// READs and atomics under way at a time; at least 1.
    pub depth: u8,
    /// Packets under way at a time; at least 1.
    pub window_packets: u32,
    /// The time without progress after which packets are resent.
    pub timeout_ns: u64,
    /// How often in a row that may happen.
    pub retry_count: u32,
    /// How many RNR NAKs in a row are accepted; [`RNR_RETRY_FOR_EVER`] for any number.
    pub rnr_retry_count: u32,
}

impl Config {
    /// A requester with default limits.
    pub fn new(peer: Qpn, mtu: Mtu, psn: Psn) -> Config {
        Config {
            peer,
            mtu,
            psn,
            depth: 16,
            window_packets: 128,
            timeout_ns: 67_000_000,
            retry_count: 7,
            rnr_retry_count: RNR_RETRY_FOR_EVER,
        }
    }
}

/// A work request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Writes bytes.
    Write {
        /// The remote key.
        key: u32,
        /// The remote address.
        at: u64,
        /// The bytes; may be empty.
        data: Vec<u8>,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// Reads bytes.
    Read {
        /// The remote key.
        key: u32,
        /// The remote address.
        at: u64,
        /// How many; may be 0.
        len_bytes: u32,
    },
    /// Adds to 8 bytes.
    FetchAdd {
        /// The remote key.
        key: u32,
        /// The remote address.
        at: u64,
        /// The addend.
        add: u64,
    },
    /// Swaps 8 bytes if they have the expected value.
    CompareSwap {
        /// The remote key.
        key: u32,
        /// The remote address.
        at: u64,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Sends a message.
    Send {
        /// The bytes; may be empty.
        data: Vec<u8>,
        /// Immediate data.
        immediate: Option<u32>,
        /// A key to invalidate; not together with immediate data.
        invalidate: Option<u32>,
    },
}

impl Request {
    /// Whether its response is more than an acknowledgement.
    fn wants_answer(&self) -> bool {
        !matches!(self, Request::Write { .. } | Request::Send { .. })
    }

    fn len_bytes(&self) -> usize {
        match self {
            Request::Write { data, .. } | Request::Send { data, .. } => data.len(),
            Request::Read { len_bytes, .. } => *len_bytes as usize,
            Request::FetchAdd { .. } | Request::CompareSwap { .. } => 0,
        }
    }
}

/// Why work is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// Longer than the longest message.
    #[error("the message is too long")]
    TooLong,
    /// Too much is queued; take completions first.
    #[error("too much work is waiting")]
    Full,
    /// Nothing can be sent any more.
    #[error("the queue pair is broken")]
    Broken,
}

/// Why work failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// No response.
    #[error("no answer")]
    RetryExceeded,
    /// The other end was not ready too often.
    #[error("the other end was not ready")]
    RnrRetryExceeded,
    /// The other end reports that the request breaks the protocol.
    #[error("invalid request")]
    InvalidRequest,
    /// The key does not allow it.
    #[error("remote access error")]
    Access,
    /// The other end failed.
    #[error("remote operational error")]
    Operational,
    /// The response does not fit the request.
    #[error("an answer that does not fit")]
    BadResponse,
    /// Earlier work failed, or the queue pair was closed. It is unknown whether this was done.
    #[error("not carried out: the queue pair ended")]
    Flushed,
}

/// The result of finished work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The bytes that were read.
    Read(Vec<u8>),
    /// The previous value.
    Atomic(u64),
}

/// Finished work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The name it was posted with.
    pub id: u64,
    /// Its outcome.
    pub result: Result<Outcome, Failure>,
}

/// Counters of a requester.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub sent: u64,
    /// Of these, packets that had been sent before.
    pub sent_again: u64,
    /// Times without progress.
    pub timeouts: u64,
    /// RNR NAKs.
    pub not_ready: u64,
    /// Unexpected responses.
    pub ignored: u64,
}

/// Work and its packets.
#[derive(Debug)]
struct Work {
    id: u64,
    request: Request,
    first: Psn,
    packets: u32,
    /// The part of a READ that has arrived.
    got: Vec<u8>,
}

impl Work {
    fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }
}

/// The requester of one queue pair.
#[derive(Debug)]
pub struct Requester {
    config: Config,
    queue: VecDeque<Work>,
    /// The index in the queue of the work with `next`.
    cursor: usize,
    oldest: Psn,
    next: Psn,
    sent: Psn,
    /// The first number of the next work to be posted.
    end: Psn,
    deadline_ns: Option<u64>,
    /// The other end is not ready until then.
    waits_until_ns: Option<u64>,
    retries: u32,
    rnr_retries: u32,
    /// The last `oldest` for which a NAK, or a response to something later, made it go back.
    went_back_for: Option<Psn>,
    is_broken: bool,
    completions: VecDeque<Completion>,
    counters: Counters,
}

impl Requester {
    /// A requester with nothing to do.
    pub fn new(config: Config) -> Requester {
        let psn = config.psn;
        Requester {
            config,
            queue: VecDeque::new(),
            cursor: 0,
            oldest: psn,
            next: psn,
            sent: psn,
            end: psn,
            deadline_ns: None,
            waits_until_ns: None,
            retries: 0,
            rnr_retries: 0,
            went_back_for: None,
            is_broken: false,
            completions: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sets [`Config::retry_count`] from now on.
    pub fn set_retry_count(&mut self, retry_count: u32) {
        self.config.retry_count = retry_count;
    }

    /// Whether work failed; nothing more is sent then.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Work that is not finished.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Accepts work, with an id for its completion. It is done after earlier work, but READs may see the effect of
    /// later WRITEs.
    ///
    /// # Errors
    /// See [`PostError`]; the work was not accepted.
    pub fn post(&mut self, id: u64, request: Request) -> Result<(), PostError> {
        let packets = self.packets_for(&request)?;
        self.queue.push_back(Work {
            id,
            request,
            first: self.end,
            packets,
            got: Vec::new(),
        });
        self.end = self.end.plus(packets);
        Ok(())
    }

    /// Whether [`Requester::post`] would accept this.
    ///
    /// # Errors
    /// As there.
    pub fn may_post(&self, request: &Request) -> Result<(), PostError> {
        self.packets_for(request).map(drop)
    }

    /// How many sequence numbers it needs, if so many are left.
    fn packets_for(&self, request: &Request) -> Result<u32, PostError> {
        if self.is_broken {
            return Err(PostError::Broken);
        }
        let len = u32::try_from(request.len_bytes()).map_err(|_| PostError::TooLong)?;
        let packets = packets_of(len, self.config.mtu.bytes());
        if len > MESSAGE_BYTES_MAX || packets > MESSAGE_PACKETS_MAX {
            return Err(PostError::TooLong);
        }
        let waiting = self.end.since(self.oldest) as u32;
        if waiting + packets > MESSAGE_PACKETS_MAX {
            return Err(PostError::Full);
        }
        Ok(packets)
    }

    /// The next finished work.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// When to call [`Requester::handle_timeout`].
    pub fn poll_timeout_ns(&self) -> Option<u64> {
        self.waits_until_ns.or(self.deadline_ns)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if let Some(until_ns) = self.waits_until_ns {
            if now_ns >= until_ns {
                self.waits_until_ns = None;
            }
        } else if self.deadline_ns.is_some_and(|deadline_ns| now_ns >= deadline_ns) {
            self.counters.timeouts += 1;
            self.went_back_for = None;
            if self.retries >= self.config.retry_count {
                self.fail(self.oldest, Failure::RetryExceeded);
                return;
            }
            self.retries += 1;
            self.go_back();
        }
    }

    /// Resends everything that is not acknowledged.
    fn go_back(&mut self) {
        self.next = self.oldest;
        self.cursor = 0;
        self.deadline_ns = None;
    }

    /// Whether a packet may leave now.
    pub fn has_requests(&self) -> bool {
        let Some(work) = self.queue.get(self.cursor) else {
            return false;
        };
        let is_within = self.next.is_within(self.oldest, self.config.window_packets.max(1));
        // A READ may hold back later work, but is not held back by its own length.
        let under_way = || {
            self.queue
                .iter()
                .take(self.cursor)
                .filter(|work| work.request.wants_answer())
        };
        let has_space = !work.request.wants_answer() || under_way().count() < usize::from(self.config.depth.max(1));
        !self.is_broken && self.waits_until_ns.is_none() && is_within && has_space
    }

    /// Appends the next packet, without ICRC; false if none may leave now.
    pub fn poll(&mut self, now_ns: u64, out: &mut Vec<u8>) -> bool {
        if !self.has_requests() {
            return false;
        }
        let Some(work) = self.queue.get(self.cursor) else {
            return false;
        };
        let index = self.next.since(work.first) as u32;
        let after = if work.request.wants_answer() {
            work.end()
        } else {
            self.next.plus(1)
        };
        let mut packet = packet_of(work, index, &self.config);
        packet.bth.psn = self.next;
        // Also in the middle of a long message, or the window would never move.
        let quarter = (self.config.window_packets / 4).max(1);
        packet.bth.ack_request = packet.bth.opcode.place().is_end() || (index + 1).is_multiple_of(quarter);
        packet.emit(out);
        self.counters.sent += 1;
        self.counters.sent_again += u64::from(self.sent.since(self.next) > 0);
        if after == work.end() {
            self.cursor += 1;
        }
        self.next = after;
        if self.next.since(self.sent) > 0 {
            self.sent = self.next;
        }
        if self.deadline_ns.is_none() {
            self.deadline_ns = Some(now_ns.saturating_add(self.config.timeout_ns));
        }
        true
    }

    /// Ends it: all work completes with [`Failure::Flushed`].
    pub fn close(&mut self) {
        self.fail(self.end, Failure::Flushed);
    }
}

/// The packet of `work` with this index, or for a READ the request for everything from it on.
fn packet_of<'w>(work: &'w Work, index: u32, config: &Config) -> Repr<'w> {
    let start = index as usize * config.mtu.bytes();
    let mut packet = Repr::new(Opcode::ReadRequest, config.peer, work.first);
    let atomic = |key: u32, at: u64, swap_or_add: u64, compare: u64| {
        Some(atomic::Repr {
            address: at,
            key,
            swap_or_add,
            compare,
        })
    };
    match &work.request {
        Request::Read { key, at, len_bytes } => {
            packet.headers.reth = Some(reth::Repr {
                address: at.wrapping_add(start as u64),
                key: *key,
                len_bytes: *len_bytes - start as u32,
            });
        }
        Request::FetchAdd { key, at, add } => {
            packet.bth.opcode = Opcode::FetchAdd;
            packet.headers.atomic = atomic(*key, *at, *add, 0);
        }
        Request::CompareSwap { key, at, compare, swap } => {
            packet.bth.opcode = Opcode::CompareSwap;
            packet.headers.atomic = atomic(*key, *at, *swap, *compare);
        }
        Request::Write {
            key,
            at,
            data,
            immediate,
        } => {
            let end = data.len().min(start + config.mtu.bytes());
            packet.payload = &data[start..end];
            packet.bth.opcode = write_opcode(index == 0, end == data.len(), immediate.is_some());
            packet.headers.immediate = *immediate;
            packet.headers.reth = Some(reth::Repr {
                address: *at,
                key: *key,
                len_bytes: data.len() as u32,
            });
        }
        Request::Send {
            data,
            immediate,
            invalidate,
        } => {
            let end = data.len().min(start + config.mtu.bytes());
            packet.payload = &data[start..end];
            packet.headers.immediate = *immediate;
            packet.headers.invalidate = *invalidate;
            packet.bth.opcode = send_opcode(index == 0, end == data.len(), immediate.is_some(), invalidate.is_some());
        }
    }
    packet
}

/// The opcode of a WRITE's packet, by its place in the message.
fn write_opcode(is_first: bool, is_last: bool, has_immediate: bool) -> Opcode {
    match (is_first, is_last, has_immediate) {
        (true, false, _) => Opcode::WriteFirst,
        (false, false, _) => Opcode::WriteMiddle,
        (false, true, false) => Opcode::WriteLast,
        (false, true, true) => Opcode::WriteLastImmediate,
        (true, true, false) => Opcode::WriteOnly,
        (true, true, true) => Opcode::WriteOnlyImmediate,
    }
}

/// The opcode of a SEND's packet, by its place in the message. A message has one extension, and immediate data counts.
fn send_opcode(is_first: bool, is_last: bool, has_immediate: bool, invalidates: bool) -> Opcode {
    match (is_first, is_last) {
        (true, false) => Opcode::SendFirst,
        (false, false) => Opcode::SendMiddle,
        (false, true) if has_immediate => Opcode::SendLastImmediate,
        (false, true) if invalidates => Opcode::SendLastInvalidate,
        (false, true) => Opcode::SendLast,
        (true, true) if has_immediate => Opcode::SendOnlyImmediate,
        (true, true) if invalidates => Opcode::SendOnlyInvalidate,
        (true, true) => Opcode::SendOnly,
    }
}

//! Responses as a requester handles them: progress, a reason to go back, or the end.
//!
//! Invariants: a response counts only for a packet that has left and is not acknowledged. Only their own responses
//! finish READs and atomics: an acknowledgement of something later means that these were lost.

use crate::wire::aeth::{Nak, Syndrome};
use crate::wire::packet::Repr;
use crate::wire::{Opcode, Psn};

use super::{Completion, Failure, Outcome, RNR_RETRY_FOR_EVER, Request, Requester, Work};

impl Requester {
    /// Handles a response.
    pub fn handle(&mut self, packet: &Repr<'_>, now_ns: u64) {
        let psn = packet.bth.psn;
        let under_way = u32::try_from(self.sent.since(self.oldest)).unwrap_or(0);
        if self.is_broken || !psn.is_within(self.oldest, under_way) {
            self.counters.ignored += 1;
            return;
        }
        let syndrome = packet.headers.aeth.map(|aeth| aeth.syndrome);
        match (packet.bth.opcode, syndrome) {
            (Opcode::Acknowledge, Some(Syndrome::Ack { .. })) => {
                if !self.acknowledged_before(psn.plus(1), now_ns) {
                    self.go_back_once();
                }
            }
            (Opcode::Acknowledge, Some(Syndrome::RnrNak(timer))) => {
                self.acknowledged_before(psn, now_ns);
                self.put_off(now_ns.saturating_add(timer.wait_ns()));
            }
            (Opcode::Acknowledge, Some(Syndrome::Nak(nak))) => {
                self.acknowledged_before(psn, now_ns);
                match nak {
                    Nak::Sequence => self.go_back_once(),
                    Nak::InvalidRequest => self.fail(psn, Failure::InvalidRequest),
                    Nak::Access => self.fail(psn, Failure::Access),
                    Nak::Operational => self.fail(psn, Failure::Operational),
                }
            }
            (Opcode::AtomicAcknowledge, Some(Syndrome::Ack { .. })) => self.answered(packet, now_ns),
            (opcode, None | Some(Syndrome::Ack { .. })) if opcode.is_read_response() => self.answered(packet, now_ns),
            _ => self.counters.ignored += 1,
        }
    }

    /// Everything before `end` was done. False if the response to a READ or an atomic is missing before that.
    fn acknowledged_before(&mut self, end: Psn, now_ns: u64) -> bool {
        while end.since(self.oldest) > 0 {
            match self.queue.front() {
                Some(work) if !work.request.wants_answer() => {
                    let is_finished = end.since(work.end()) >= 0;
                    let reached = if is_finished { work.end() } else { end };
                    self.progress(reached, now_ns);
                    if is_finished {
                        self.finish(Ok(Outcome::Done));
                    }
                }
                _ => return false,
            }
        }
        true
    }

    /// The response to a READ or an atomic.
    fn answered(&mut self, packet: &Repr<'_>, now_ns: u64) {
        let psn = packet.bth.psn;
        if !self.acknowledged_before(psn, now_ns) {
            self.go_back_once();
            return;
        }
        let mtu = self.config.mtu.bytes();
        let opcode = packet.bth.opcode;
        let Some(Work {
            request, first, got, ..
        }) = self.queue.front_mut()
        else {
            return;
        };
        let done = match (request, packet.headers.original) {
            (Request::Read { len_bytes, .. }, None) => {
                let start = psn.since(*first) as usize * mtu;
                let left = (*len_bytes as usize).saturating_sub(start);
                let is_last = left <= mtu;
                if packet.payload.len() != left.min(mtu) || opcode.place().is_end() != is_last {
                    self.fail(psn, Failure::BadResponse);
                    return;
                }
                got.extend_from_slice(packet.payload);
                is_last.then(|| Outcome::Read(std::mem::take(got)))
            }
            (Request::FetchAdd { .. } | Request::CompareSwap { .. }, Some(original)) => Some(Outcome::Atomic(original)),
            _ => {
                self.counters.ignored += 1;
                return;
            }
        };
        self.progress(psn.plus(1), now_ns);
        if let Some(outcome) = done {
            self.finish(Ok(outcome));
        }
    }

    /// Packets before `reached` are acknowledged.
    fn progress(&mut self, reached: Psn, now_ns: u64) {
        self.oldest = reached;
        self.retries = 0;
        self.rnr_retries = 0;
        // Acknowledged by an earlier copy, while it waits to be resent.
        if reached.since(self.next) > 0 {
            self.next = reached;
            self.cursor = 0;
        }
        self.deadline_ns = (self.next != reached).then(|| now_ns.saturating_add(self.config.timeout_ns));
    }

    /// The first work is finished.
    fn finish(&mut self, result: Result<Outcome, Failure>) {
        if let Some(work) = self.queue.pop_front() {
            self.cursor = self.cursor.saturating_sub(1);
            self.completions.push_back(Completion { id: work.id, result });
        }
    }

    /// A packet is missing. Each packet behind it causes a NAK; the missing one is resent once, and later by the timer.
    fn go_back_once(&mut self) {
        if self.went_back_for != Some(self.oldest) {
            self.went_back_for = Some(self.oldest);
            self.go_back();
        }
    }

    /// The other end is not ready.
    fn put_off(&mut self, until_ns: u64) {
        self.counters.not_ready += 1;
        let has_limit = self.config.rnr_retry_count != RNR_RETRY_FOR_EVER;
        if has_limit && self.rnr_retries >= self.config.rnr_retry_count {
            self.fail(self.oldest, Failure::RnrRetryExceeded);
            return;
        }
        self.rnr_retries += 1;
        // It responds, so earlier losses were not in a row.
        self.retries = 0;
        self.go_back();
        self.went_back_for = None;
        self.waits_until_ns = Some(until_ns);
    }

    /// The work with packet `psn` failed. All others end with it.
    pub(super) fn fail(&mut self, psn: Psn, failure: Failure) {
        self.is_broken = true;
        self.deadline_ns = None;
        self.waits_until_ns = None;
        while let Some(work) = self.queue.front() {
            let is_it = psn.is_within(work.first, work.packets);
            self.finish(Err(if is_it { failure } else { Failure::Flushed }));
        }
    }
}

//! Reads and writes whose callers do not wait: one thread can have many in flight.
//!
//! Contents: [`DeferredSends`], where they wait until they may be sent. The client sends them as long as the total
//! length of the expected replies is small, and, if they are changes, as slots are free.
//!
//! Invariant: the receiving thread may also be the one that sends these, when a completion makes a new request. So the
//! server's replies meanwhile must fit its queue ([`FLIGHT_BYTES_MAX`] is below its limit), or each end would wait for
//! the other to receive.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ferrite_buffers::Buffer;
use ferrite_checks::ranked::Mutex;
use ferrite_vfs::FsError;

use super::requests::Then;
use crate::lock_order;
use ferrite_proto::{Head, Request};

/// Longest transfer of this kind; longer ones are made as calls.
pub(super) const TRANSFER_BYTES_MAX: usize = 128 << 10;
/// Most data of replies in flight.
const FLIGHT_BYTES_MAX: usize = 512 << 10;

/// A read or write that is not sent yet.
pub(super) struct DeferredSend {
    pub(super) head: Head,
    pub(super) request: Request<'static>,
    pub(super) buffer: Buffer,
    pub(super) deadline: Option<Instant>,
    pub(super) then: Then,
}

impl DeferredSend {
    /// Whether it needs a token.
    pub(super) fn is_change(&self) -> bool {
        self.request.is_change()
    }

    /// How much data its reply has.
    fn expected_bytes(&self) -> usize {
        if self.is_change() { 0 } else { self.buffer.len() }
    }

    /// Fails it without sending it.
    pub(super) fn fail(self, error: FsError) {
        (self.then)(Err(error), Some(self.buffer));
    }
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<DeferredSend>,
    flight_bytes: usize,
}

/// See the head of this module.
#[derive(Default)]
pub(super) struct DeferredSends {
    waiting: Mutex<lock_order::Submitted, Waiting>,
    count: AtomicUsize,
}

impl DeferredSends {
    pub(super) fn push(&self, unsent: DeferredSend) {
        self.waiting.lock().queue.push_back(unsent);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether any are deferred.
    pub(super) fn has_some(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The first, if it may be sent: there is space for its reply, and `prepare` succeeds. The caller later calls
    /// [`Self::landed`] with its buffer's length, unless it is a change.
    pub(super) fn pop<T>(&self, prepare: impl FnOnce(&DeferredSend) -> Option<T>) -> Option<(DeferredSend, T)> {
        let mut waiting = self.waiting.lock();
        let first = waiting.queue.front()?;
        let flight_bytes = waiting.flight_bytes + first.expected_bytes();
        if flight_bytes > FLIGHT_BYTES_MAX {
            return None;
        }
        let prepared = prepare(first)?;
        let first = waiting.queue.pop_front()?;
        waiting.flight_bytes = flight_bytes;
        self.count.fetch_sub(1, Ordering::AcqRel);
        Some((first, prepared))
    }

    /// Notes that a reply has come.
    pub(super) fn landed(&self, len_bytes: usize) {
        self.waiting.lock().flight_bytes -= len_bytes;
    }

    /// Takes those that have waited too long by `now`, or all.
    pub(super) fn take(&self, now: Option<Instant>) -> Vec<DeferredSend> {
        let mut waiting = self.waiting.lock();
        let is_late =
            |unsent: &DeferredSend| now.is_none_or(|now| unsent.deadline.is_some_and(|deadline| now >= deadline));
        let (late, rest): (Vec<DeferredSend>, Vec<DeferredSend>) = waiting.queue.drain(..).partition(is_late);
        waiting.queue.extend(rest);
        self.count.fetch_sub(late.len(), Ordering::AcqRel);
        late
    }
}

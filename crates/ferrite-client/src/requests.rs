//! Requests in flight, as threads share them.
//!
//! Contents: [`Requests`], which numbers requests, guards the table of those in flight, and delivers each reply to its
//! recipient: a waiting thread, a completion, or none.
//!
//! Invariants: request numbers are never reused, so that no reply is taken for another's. A completion is called
//! exactly once, by a thread that does not hold the receiver: it may make calls of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ferrite_buffers::Buffer;
use ferrite_checks::ranked::Mutex;
use ferrite_transport::FabricError;
use ferrite_transport::connection::Receiver;
use ferrite_vfs::{DedupToken, FsError, Result};

use super::message::{Reply, State, Waiter, encode};
use super::own_head;
use super::protocol::{self, Expired, InFlight, Recipient, Repeated, Repetition};
use super::slots::Slots;
use crate::lock_order;
use ferrite_proto::{Head, Request, SessionRequest};

/// The callback for a reply, and for the buffer that went with the request.
pub(super) type Then = Box<dyn FnOnce(Result<Reply>, Option<Buffer>) + Send>;

/// The callback of a request that no thread waits for, and the request's buffer.
pub(super) struct Callback {
    /// Data that goes with the request, or space for that of the reply.
    pub(super) buffer: Option<Buffer>,
    pub(super) buffer_is_sent: bool,
    pub(super) then: Then,
}

impl Recipient for Callback {
    fn data(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) if self.buffer_is_sent => buffer,
            _ => &[],
        }
    }
}

/// A request whose reply goes to a completion.
pub(super) type Deferred = protocol::Deferred<Callback>;

/// A request in flight.
pub(super) type Pending = protocol::Pending<Arc<Waiter>, Callback>;

/// A completion to call.
pub(super) struct Completion {
    callback: Callback,
    result: Result<Reply>,
    /// The token, which is free now.
    pub(super) token: Option<DedupToken>,
}

impl Completion {
    /// The completion that delivers `result`.
    fn of(deferred: Deferred, result: Result<Reply>) -> Completion {
        Completion {
            callback: deferred.recipient,
            result,
            token: deferred.token,
        }
    }

    /// How much data the reply to a submitted read may have had.
    pub(super) fn expected_bytes(&self) -> Option<usize> {
        let buffer = self.callback.buffer.as_ref().filter(|_| !self.callback.buffer_is_sent);
        buffer.map(|buffer| buffer.len())
    }

    pub(super) fn call(self) {
        (self.callback.then)(self.result, self.callback.buffer);
    }
}

/// See the head of this module.
pub(super) struct Requests {
    all: Mutex<lock_order::Requests, InFlight<Arc<Waiter>, Callback>>,
    next_id: AtomicU64,
    /// How many are for completions.
    deferred: AtomicU64,
    /// Completions to call.
    completed: Mutex<lock_order::Completed, Vec<Completion>>,
}

impl Default for Requests {
    fn default() -> Self {
        Requests {
            all: Mutex::default(),
            next_id: AtomicU64::new(1),
            deferred: AtomicU64::new(0),
            completed: Mutex::default(),
        }
    }
}

impl Requests {
    /// The next number of a request, or of a file.
    pub(super) fn ids(&self) -> &AtomicU64 {
        &self.next_id
    }

    pub(super) fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Numbers a request and registers it as in flight.
    pub(super) fn enter(&self, head: &mut Head, pending: impl FnOnce(&Head) -> Pending) {
        // Under the lock: a number that is not registered yet would pass for settled.
        let mut all = self.all.lock();
        self.number(&all, head);
        all.insert(head.id, pending(head));
    }

    fn number(&self, all: &InFlight<Arc<Waiter>, Callback>, head: &mut Head) {
        head.id = self.fresh_id();
        head.settled_below = all.settled_below(head.id);
    }

    /// The head of a ping, which no thread waits for and which reports the settled numbers.
    pub(super) fn ping(&self) -> Head {
        let mut head = own_head(0);
        self.number(&self.all.lock(), &mut head);
        head
    }

    /// As [`Self::enter`], for a request with a completion. True if there was none before.
    pub(super) fn enter_deferred(&self, head: &mut Head, deferred: impl FnOnce(&Head) -> Deferred) -> bool {
        let is_first = self.deferred.fetch_add(1, Ordering::AcqRel) == 0;
        self.enter(head, |head| Pending::Deferred(Box::new(deferred(head))));
        is_first
    }

    /// Registers a request that cancels a wait for a lock. False if that wait is over.
    pub(super) fn enter_cancel(&self, head: &mut Head, of: u64, body: impl FnOnce(&Head) -> Vec<u8>) -> bool {
        let mut all = self.all.lock();
        self.number(&all, head);
        all.insert_cancel(head.id, of, body(head))
    }

    /// Unregisters a request whose thread has stopped waiting.
    pub(super) fn leave(&self, number: u64) {
        self.all.lock().remove(number);
    }

    /// Whether completions wait for replies.
    pub(super) fn awaits_deferred(&self) -> bool {
        self.deferred.load(Ordering::Acquire) > 0
    }

    /// Takes the data of a reply off the connection and delivers both. True if it is for a completion, which
    /// [`Self::completed`] has then.
    pub(super) fn deliver(
        &self,
        mut reply: Reply,
        receiver: &mut Receiver,
        data_bytes: usize,
    ) -> std::result::Result<bool, FabricError> {
        // Its own statement, so that the lock is free again.
        let pending = self.all.lock().answered(reply.id());
        match pending {
            Some(Pending::Thread(waiter)) => {
                reply.keep_data(receiver, data_bytes)?;
                waiter.set(State::Replied(reply));
            }
            Some(Pending::Deferred(mut deferred)) => {
                let recipient = &mut deferred.recipient;
                if let Some(buffer) = &mut recipient.buffer
                    && !recipient.buffer_is_sent
                    && let Err(error) = reply.take_data(receiver, data_bytes, buffer)
                {
                    // It is sent again.
                    self.all.lock().insert(reply.id(), Pending::Deferred(deferred));
                    return Err(error);
                }
                self.is_done(Completion::of(*deferred, Ok(reply)));
                return Ok(true);
            }
            Some(Pending::Posted(_) | Pending::Cancels(..)) | None => {}
        }
        Ok(false)
    }

    fn is_done(&self, completion: Completion) {
        self.deferred.fetch_sub(1, Ordering::AcqRel);
        self.completed.lock().push(completion);
    }

    /// Takes the completions to call.
    pub(super) fn completed(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.completed.lock())
    }

    /// Fails the requests with completions whose deadline is past, and those whose token `slots` no longer has. Returns
    /// the requests by which the server abandons the former. They are registered, so the caller holds the lock of the
    /// state machine, and sends them if there is a connection.
    pub(super) fn expire(&self, now: Instant, slots: Option<&Slots>) -> Vec<Repetition> {
        let abandon = |all: &InFlight<Arc<Waiter>, Callback>, request| {
            let mut head = own_head(0);
            self.number(all, &mut head);
            let body = encode(&head, &Request::from(SessionRequest::Abandon { request, file: 0 }));
            (head.id, body)
        };
        let expired = self.all.lock().expire(now, slots, abandon);
        let mut abandons = Vec::new();
        for Expired {
            deferred,
            error,
            abandon,
        } in expired
        {
            abandons.extend(abandon);
            self.is_done(Completion::of(*deferred, Err(error)));
        }
        abandons
    }

    /// Makes all waiting threads retry, or learn that the client is closed.
    pub(super) fn break_off(&self) {
        for (_, waiter) in self.all.lock().waiters() {
            waiter.break_off();
        }
    }

    /// Fails all.
    pub(super) fn fail(&self) {
        let all = self.all.lock().take_all();
        for pending in all {
            match pending {
                Pending::Thread(waiter) => waiter.set(State::Broken),
                Pending::Posted(_) | Pending::Cancels(..) => {}
                Pending::Deferred(deferred) => {
                    self.is_done(Completion::of(*deferred, Err(FsError::Disconnected)));
                }
            }
        }
    }

    /// Makes another waiting thread receive than the one that waits for the reply `but`. False if none waits.
    pub(super) fn call_another(&self, but: u64) -> bool {
        let all = self.all.lock();
        all.waiters().any(|(number, waiter)| number != but && waiter.call())
    }

    /// The requests that a new connection repeats, and has not yet.
    pub(super) fn to_repeat(&self, repeated: &mut Repeated) -> Vec<Repetition> {
        self.all.lock().to_repeat(repeated)
    }
}

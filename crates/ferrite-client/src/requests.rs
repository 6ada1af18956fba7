//! Requests in flight, and the waiters for their replies.
//!
//! Contents: [`Requests`], which numbers requests, remembers them until they are answered, and delivers each reply to
//! its recipient: a waiting thread, a completion, or none.
//!
//! Invariants: request numbers are never reused, so that no reply is taken for another's. A completion is called
//! exactly once, by a thread that does not hold the receiver: it may make calls of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ferrite_buffers::Buffer;
use ferrite_checks::ranked::Mutex;
use ferrite_transport::FabricError;
use ferrite_transport::connection::Receiver;
use ferrite_vfs::{DedupToken, FsError, Result};

use super::message::{Reply, State, Waiter};
use super::own_head;
use crate::lock_order;
use ferrite_proto::Head;

/// The callback for a reply, and for the buffer that went with the request.
pub(super) type Then = Box<dyn FnOnce(Result<Reply>, Option<Buffer>) + Send>;

/// A request whose reply goes to a completion.
pub(super) struct Deferred {
    pub(super) body: Vec<u8>,
    /// Data that goes with the request, or space for that of the reply.
    pub(super) buffer: Option<Buffer>,
    pub(super) buffer_is_sent: bool,
    /// The token, if it is a change.
    pub(super) token: Option<DedupToken>,
    /// It fails without a reply by then.
    pub(super) deadline: Option<Instant>,
    pub(super) then: Then,
}

impl Deferred {
    /// The data that the request carries.
    pub(super) fn data(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) if self.buffer_is_sent => buffer,
            _ => &[],
        }
    }

    /// The completion that delivers `result`.
    fn with(self, result: Result<Reply>) -> Completion {
        Completion {
            then: self.then,
            result,
            buffer: self.buffer,
            buffer_was_sent: self.buffer_is_sent,
            token: self.token,
        }
    }
}

/// A completion to call.
pub(super) struct Completion {
    then: Then,
    result: Result<Reply>,
    buffer: Option<Buffer>,
    buffer_was_sent: bool,
    /// The token, which is free now.
    pub(super) token: Option<DedupToken>,
}

impl Completion {
    /// How much data the reply to a submitted read may have had.
    pub(super) fn expected_bytes(&self) -> Option<usize> {
        let buffer = self.buffer.as_ref().filter(|_| !self.buffer_was_sent);
        buffer.map(|buffer| buffer.len())
    }

    pub(super) fn call(self) {
        (self.then)(self.result, self.buffer);
    }
}

pub(super) enum Pending {
    Thread(Arc<Waiter>),
    /// No thread waits, but it must arrive.
    Posted(Vec<u8>),
    /// Its reply may come at any time.
    Deferred(Box<Deferred>),
    /// Cancels another request, for a lock. It is sent again as long as that one is in flight: a server that has
    /// answered this one may be gone before it has answered the other, and the next server knows nothing of either.
    Cancels(u64, Vec<u8>),
}

impl Pending {
    /// Whether its effects are remembered until it is settled. A lock may be waited for without limit: repeating the
    /// request has no effect. Nor has repeating reads, writes or a cancellation.
    fn is_counted(&self) -> bool {
        !matches!(self, Pending::Deferred(..) | Pending::Cancels(..))
    }

    /// Its size in memory, if no thread waits for it.
    fn posted_bytes(&self) -> usize {
        match self {
            Pending::Posted(body) => body.len() + POSTED_BYTES,
            _ => 0,
        }
    }
}

/// Memory for requests without a waiter, at most: a server that answers none of them must not exhaust it. Beyond that
/// the oldest are forgotten; their session ends, and with it everything that they would have ended.
const POSTED_BYTES_MAX: usize = 64 << 20;
/// The approximate size of one without its body.
const POSTED_BYTES: usize = 160;

/// All requests, and which of them count: there may be thousands that do not.
#[derive(Default)]
struct All {
    by_id: BTreeMap<u64, Pending>,
    counted: BTreeSet<u64>,
    /// Memory of those without a waiter.
    posted_bytes: usize,
}

impl All {
    fn insert(&mut self, number: u64, pending: Pending) {
        if pending.is_counted() {
            self.counted.insert(number);
        }
        self.posted_bytes += pending.posted_bytes();
        self.by_id.insert(number, pending);
        while self.posted_bytes > POSTED_BYTES_MAX {
            let is_posted = |(&number, pending): (&u64, &Pending)| (pending.posted_bytes() > 0).then_some(number);
            let Some(oldest) = self.by_id.iter().find_map(is_posted) else {
                break;
            };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Pending> {
        self.counted.remove(&number);
        let removed = self.by_id.remove(&number)?;
        self.posted_bytes -= removed.posted_bytes();
        Some(removed)
    }
}

/// See the head of this module.
pub(super) struct Requests {
    all: Mutex<lock_order::Requests, All>,
    next_id: AtomicU64,
    /// How many are for completions.
    deferred: AtomicU64,
    /// How many cancel other requests.
    cancels: AtomicU64,
    /// Completions to call.
    completed: Mutex<lock_order::Completed, Vec<Completion>>,
}

impl Default for Requests {
    fn default() -> Self {
        Requests {
            all: Mutex::default(),
            next_id: AtomicU64::new(1),
            deferred: AtomicU64::new(0),
            cancels: AtomicU64::new(0),
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
        head.id = self.fresh_id();
        head.settled_below = all.counted.first().copied().unwrap_or(head.id);
        all.insert(head.id, pending(head));
    }

    /// The head of a ping, which no thread waits for and which reports the settled numbers.
    pub(super) fn ping(&self) -> Head {
        let all = self.all.lock();
        let id = self.fresh_id();
        Head {
            settled_below: all.counted.first().copied().unwrap_or(id),
            ..own_head(id)
        }
    }

    /// As [`Self::enter`], for a request with a completion. True if there was none before.
    pub(super) fn enter_deferred(&self, head: &mut Head, deferred: impl FnOnce(&Head) -> Deferred) -> bool {
        let is_first = self.deferred.fetch_add(1, Ordering::AcqRel) == 0;
        self.enter(head, |head| Pending::Deferred(Box::new(deferred(head))));
        is_first
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
        match self.settle(reply.id()) {
            Some(Pending::Thread(waiter)) => {
                reply.keep_data(receiver, data_bytes)?;
                waiter.set(State::Replied(reply));
            }
            Some(Pending::Deferred(mut deferred)) => {
                if let Some(buffer) = &mut deferred.buffer
                    && !deferred.buffer_is_sent
                    && let Err(error) = reply.take_data(receiver, data_bytes, buffer)
                {
                    // It is sent again.
                    self.all.lock().insert(reply.id(), Pending::Deferred(deferred));
                    return Err(error);
                }
                self.is_done(deferred.with(Ok(reply)));
                return Ok(true);
            }
            Some(Pending::Posted(_) | Pending::Cancels(..)) | None => {}
        }
        Ok(false)
    }

    /// Settles an answered request, and returns its waiter, if any.
    fn settle(&self, number: u64) -> Option<Pending> {
        let mut all = self.all.lock();
        let pending = match all.by_id.get(&number) {
            // The waiting thread removes itself.
            Some(Pending::Thread(waiter)) => Some(Pending::Thread(Arc::clone(waiter))),
            Some(Pending::Posted(_) | Pending::Deferred(_)) => all.remove(number),
            // If absent, its thread has given up.
            Some(Pending::Cancels(..)) | None => None,
        };
        self.end_cancels(&mut all);
        pending
    }

    /// Forgets cancellations of requests that have ended.
    fn end_cancels(&self, all: &mut All) {
        if self.cancels.load(Ordering::Acquire) == 0 {
            return;
        }
        let ended: Vec<u64> = all
            .by_id
            .iter()
            .filter_map(|(&number, pending)| match pending {
                Pending::Cancels(of, _) if !all.by_id.contains_key(of) => Some(number),
                _ => None,
            })
            .collect();
        self.cancels.fetch_sub(ended.len() as u64, Ordering::AcqRel);
        ended.into_iter().for_each(|number| drop(all.remove(number)));
    }

    /// Registers a request that cancels a wait for a lock. False if that wait is over.
    pub(super) fn enter_cancel(&self, head: &mut Head, of: u64, body: impl FnOnce(&Head) -> Vec<u8>) -> bool {
        self.cancels.fetch_add(1, Ordering::AcqRel);
        self.enter(head, |head| Pending::Cancels(of, body(head)));
        let mut all = self.all.lock();
        self.end_cancels(&mut all);
        all.by_id.contains_key(&head.id)
    }

    fn is_done(&self, completion: Completion) {
        self.deferred.fetch_sub(1, Ordering::AcqRel);
        self.completed.lock().push(completion);
    }

    /// Takes the completions to call.
    pub(super) fn completed(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.completed.lock())
    }

    /// Fails the requests with completions whose deadline is past, and those whose token `is_void`; returns the numbers
    /// of the former.
    pub(super) fn expire(&self, now: Instant, is_void: impl Fn(DedupToken) -> bool) -> Vec<u64> {
        let mut late = Vec::new();
        let mut all = self.all.lock();
        let ended: Vec<(u64, FsError)> = all
            .by_id
            .iter()
            .filter_map(|(&number, pending)| match pending {
                Pending::Deferred(deferred) if deferred.deadline.is_some_and(|deadline| now >= deadline) => {
                    late.push(number);
                    Some((number, FsError::TimedOut))
                }
                Pending::Deferred(deferred) if deferred.token.is_some_and(&is_void) => {
                    Some((number, FsError::Disconnected))
                }
                _ => None,
            })
            .collect();
        for (number, error) in ended {
            if let Some(Pending::Deferred(deferred)) = all.remove(number) {
                self.is_done(deferred.with(Err(error)));
            }
        }
        late
    }

    /// Makes all waiting threads retry, or learn that the client is closed.
    pub(super) fn break_off(&self) {
        for pending in self.all.lock().by_id.values() {
            if let Pending::Thread(waiter) = pending {
                waiter.break_off();
            }
        }
    }

    /// Fails all.
    pub(super) fn fail(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        for pending in all.by_id.into_values() {
            match pending {
                Pending::Thread(waiter) => waiter.set(State::Broken),
                Pending::Posted(_) | Pending::Cancels(..) => {}
                Pending::Deferred(deferred) => self.is_done(deferred.with(Err(FsError::Disconnected))),
            }
        }
    }

    /// Makes another waiting thread receive than the one that waits for the reply `but`. False if none waits.
    pub(super) fn call_another(&self, but: u64) -> bool {
        let all = self.all.lock();
        all.by_id.iter().any(|(&number, pending)| match pending {
            Pending::Thread(waiter) => number != but && waiter.call(),
            _ => false,
        })
    }

    /// The requests that must arrive with numbers from `from` on, with bodies and data.
    pub(super) fn outstanding(&self, from: u64) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let all = self.all.lock();
        let open = all.by_id.range(from..).filter_map(|(&number, pending)| match pending {
            Pending::Posted(body) | Pending::Cancels(_, body) => Some((number, body.clone(), Vec::new())),
            Pending::Deferred(deferred) => Some((number, deferred.body.clone(), deferred.data().to_vec())),
            Pending::Thread(_) => None,
        });
        open.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_head;

    fn bodies(requests: &Requests) -> Vec<Vec<u8>> {
        requests.outstanding(0).into_iter().map(|(_, body, _)| body).collect()
    }

    /// A server that never answers requests without a waiter costs a bounded amount of memory.
    #[test]
    fn what_is_posted_is_forgotten_in_the_end() {
        let requests = Requests::default();
        let body = vec![0; 1 << 20];
        for _ in 0..100 {
            requests.enter(&mut own_head(0), |_| Pending::Posted(body.clone()));
        }
        assert!(
            (50..64).contains(&bodies(&requests).len()),
            "{}",
            bodies(&requests).len()
        );
        let numbers: Vec<u64> = requests.outstanding(0).into_iter().map(|(number, ..)| number).collect();
        assert_eq!(numbers.last(), Some(&100), "the latest stay");
        numbers.into_iter().for_each(|number| drop(requests.settle(number)));
        assert_eq!(requests.all.lock().posted_bytes, 0);
    }

    /// The server has received a cancellation, and is killed before it reports how the wait ended. Its successor gets
    /// the request for the lock again, and must learn that it is cancelled, or the canceller waits as long as the lock
    /// is another's.
    #[test]
    fn the_end_of_a_wait_is_said_again_with_the_wait() {
        let requests = Requests::default();
        let mut head = own_head(0);
        requests.enter_deferred(&mut head, |_| Deferred {
            body: b"lock".to_vec(),
            buffer: None,
            buffer_is_sent: false,
            token: None,
            deadline: None,
            then: Box::new(|_, _| {}),
        });
        let (lock, mut head) = (head.id, own_head(0));
        assert!(requests.enter_cancel(&mut head, lock, |_| b"cancel".to_vec()));
        assert!(requests.settle(head.id).is_none(), "nobody waits for this");
        assert_eq!(bodies(&requests), [b"lock".to_vec(), b"cancel".to_vec()]);
        assert!(matches!(requests.settle(lock), Some(Pending::Deferred(_))));
        assert!(bodies(&requests).is_empty(), "nothing is left to end");
        let mut late = own_head(0);
        assert!(!requests.enter_cancel(&mut late, lock, |_| b"cancel".to_vec()));
        assert!(bodies(&requests).is_empty());
    }
}

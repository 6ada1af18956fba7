//! Requests under way: who waits for which answer.
//!
//! Contents: [`Requests`], which numbers requests, remembers them until they are answered, and gives each answer
//! to whoever wants it: a thread that waits, a completion, or nobody.
//!
//! Invariants: the number of a request is never used again, so that an answer is never taken for another's. A
//! completion is called exactly once, by a thread that does not hold the receiver: it may make calls of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ferrite_buffers::Buffer;
use ferrite_fabric::FabricError;
use ferrite_fabric::connection::Receiver;
use ferrite_vfs::{FsError, Once, Result};
use parking_lot::Mutex;

use super::message::{Answer, State, Waiter};
use super::own_head;
use crate::wire::Head;

/// What to call with an answer, and with the buffer that went with the request.
pub(super) type Then = Box<dyn FnOnce(Result<Answer>, Option<Buffer>) + Send>;

/// A request whose answer a completion gets.
pub(super) struct Later {
    pub(super) body: Vec<u8>,
    /// Data that goes with the request, or room for that of the answer.
    pub(super) buffer: Option<Buffer>,
    pub(super) buffer_is_sent: bool,
    /// The token, if it is a change.
    pub(super) once: Option<Once>,
    /// It fails if there is no answer by then.
    pub(super) deadline: Option<Instant>,
    pub(super) then: Then,
}

impl Later {
    /// The data that goes with it.
    pub(super) fn data(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) if self.buffer_is_sent => buffer,
            _ => &[],
        }
    }

    /// To be told of `result`.
    fn with(self, result: Result<Answer>) -> Completion {
        Completion {
            then: self.then,
            result,
            buffer: self.buffer,
            buffer_was_sent: self.buffer_is_sent,
            once: self.once,
        }
    }
}

/// A completion that is to be called.
pub(super) struct Completion {
    then: Then,
    result: Result<Answer>,
    buffer: Option<Buffer>,
    buffer_was_sent: bool,
    /// The token, which is done with.
    pub(super) once: Option<Once>,
}

impl Completion {
    /// How much data the answer to a submitted read may have had.
    pub(super) fn expected_bytes(&self) -> Option<usize> {
        let room = self.buffer.as_ref().filter(|_| !self.buffer_was_sent);
        room.map(|buffer| buffer.len())
    }

    pub(super) fn call(self) {
        (self.then)(self.result, self.buffer);
    }
}

pub(super) enum Pending {
    Thread(Arc<Waiter>),
    /// Nobody waits, but it must arrive.
    Posted(Vec<u8>),
    /// It is answered whenever it is.
    Later(Box<Later>),
    /// Ends the wait of another, for a lock. It is sent again as long as that is: a server that has answered this one
    /// may be gone before it has told of the other's end, and the next server knows nothing of either.
    Cancels(u64, Vec<u8>),
}

impl Pending {
    /// Whether its effects are remembered until it is settled. A lock may be waited for as long as it likes: that it is
    /// asked for again has none. Nor have reads and writes, or the end of a wait.
    fn is_counted(&self) -> bool {
        !matches!(self, Pending::Later(..) | Pending::Cancels(..))
    }

    /// What it takes, if nobody waits for it.
    fn posted_bytes(&self) -> usize {
        match self {
            Pending::Posted(body) => body.len() + POSTED_BYTES,
            _ => 0,
        }
    }
}

/// What requests take that nobody waits for, at most: a server that answers none of them must not fill the memory. Then
/// the oldest are forgotten; their session ends with all that they would have ended.
const POSTED_BYTES_MAX: usize = 64 << 20;
/// What one takes beside its body, about.
const POSTED_BYTES: usize = 160;

/// All requests, and which of them count: there may be thousands of others.
#[derive(Default)]
struct All {
    by_number: BTreeMap<u64, Pending>,
    counted: BTreeSet<u64>,
    /// What those take that nobody waits for.
    posted_bytes: usize,
}

impl All {
    fn insert(&mut self, number: u64, pending: Pending) {
        if pending.is_counted() {
            self.counted.insert(number);
        }
        self.posted_bytes += pending.posted_bytes();
        self.by_number.insert(number, pending);
        while self.posted_bytes > POSTED_BYTES_MAX {
            let is_posted = |(&number, pending): (&u64, &Pending)| (pending.posted_bytes() > 0).then_some(number);
            let Some(oldest) = self.by_number.iter().find_map(is_posted) else {
                break;
            };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Pending> {
        self.counted.remove(&number);
        let removed = self.by_number.remove(&number)?;
        self.posted_bytes -= removed.posted_bytes();
        Some(removed)
    }
}

/// See the head of this module.
pub(super) struct Requests {
    all: Mutex<All>,
    next_number: AtomicU64,
    /// How many are for completions.
    later: AtomicU64,
    /// How many end the waits of others.
    cancels: AtomicU64,
    /// Completions to call.
    completed: Mutex<Vec<Completion>>,
}

impl Default for Requests {
    fn default() -> Self {
        Requests {
            all: Mutex::default(),
            next_number: AtomicU64::new(1),
            later: AtomicU64::new(0),
            cancels: AtomicU64::new(0),
            completed: Mutex::default(),
        }
    }
}

impl Requests {
    /// The next number of a request, or of a file.
    pub(super) fn numbers(&self) -> &AtomicU64 {
        &self.next_number
    }

    pub(super) fn fresh_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives a request its number, and notes that it is under way.
    pub(super) fn enter(&self, head: &mut Head, pending: impl FnOnce(&Head) -> Pending) {
        // Under the lock: a number that is not noted yet would pass for settled.
        let mut all = self.all.lock();
        head.id = self.fresh_number();
        head.settled_below = all.counted.first().copied().unwrap_or(head.id);
        all.insert(head.id, pending(head));
    }

    /// The head of a sign of life, which nobody waits for and which says what is settled.
    pub(super) fn ping(&self) -> Head {
        let all = self.all.lock();
        let id = self.fresh_number();
        Head {
            settled_below: all.counted.first().copied().unwrap_or(id),
            ..own_head(id)
        }
    }

    /// As [`Self::enter`], for one that is for a completion. True if there was none before.
    pub(super) fn enter_later(&self, head: &mut Head, later: impl FnOnce(&Head) -> Later) -> bool {
        let is_first = self.later.fetch_add(1, Ordering::AcqRel) == 0;
        self.enter(head, |head| Pending::Later(Box::new(later(head))));
        is_first
    }

    /// Who waited for it does not any more.
    pub(super) fn leave(&self, number: u64) {
        self.all.lock().remove(number);
    }

    /// Whether completions wait for answers.
    pub(super) fn await_later(&self) -> bool {
        self.later.load(Ordering::Acquire) > 0
    }

    /// Takes the data of an answer off the connection and gives both to whoever waits. True if it is for a completion,
    /// which [`Self::completed`] has then.
    pub(super) fn deliver(
        &self,
        mut answer: Answer,
        receiver: &mut Receiver,
        data_bytes: usize,
    ) -> std::result::Result<bool, FabricError> {
        match self.settle(answer.id()) {
            Some(Pending::Thread(waiter)) => {
                answer.keep_data(receiver, data_bytes)?;
                waiter.set(State::Answered(answer));
            }
            Some(Pending::Later(mut later)) => {
                if let Some(buffer) = &mut later.buffer
                    && !later.buffer_is_sent
                    && let Err(error) = answer.take_data(receiver, data_bytes, buffer)
                {
                    // It is sent again.
                    self.all.lock().insert(answer.id(), Pending::Later(later));
                    return Err(error);
                }
                self.is_done(later.with(Ok(answer)));
                return Ok(true);
            }
            Some(Pending::Posted(_) | Pending::Cancels(..)) | None => {}
        }
        Ok(false)
    }

    /// An answer to this request has come: who waits for it, if anybody does.
    fn settle(&self, number: u64) -> Option<Pending> {
        let mut all = self.all.lock();
        let pending = match all.by_number.get(&number) {
            // It removes itself.
            Some(Pending::Thread(waiter)) => Some(Pending::Thread(Arc::clone(waiter))),
            Some(Pending::Posted(_) | Pending::Later(_)) => all.remove(number),
            // Without any, who asked has given up.
            Some(Pending::Cancels(..)) | None => None,
        };
        self.end_cancels(&mut all);
        pending
    }

    /// Forgets those that would end what has ended.
    fn end_cancels(&self, all: &mut All) {
        if self.cancels.load(Ordering::Acquire) == 0 {
            return;
        }
        let ended: Vec<u64> = all
            .by_number
            .iter()
            .filter_map(|(&number, pending)| match pending {
                Pending::Cancels(of, _) if !all.by_number.contains_key(of) => Some(number),
                _ => None,
            })
            .collect();
        self.cancels.fetch_sub(ended.len() as u64, Ordering::AcqRel);
        ended.into_iter().for_each(|number| drop(all.remove(number)));
    }

    /// Notes a request that ends the wait of another for a lock. False if that waits no more.
    pub(super) fn enter_cancel(&self, head: &mut Head, of: u64, body: impl FnOnce(&Head) -> Vec<u8>) -> bool {
        self.cancels.fetch_add(1, Ordering::AcqRel);
        self.enter(head, |head| Pending::Cancels(of, body(head)));
        let mut all = self.all.lock();
        self.end_cancels(&mut all);
        all.by_number.contains_key(&head.id)
    }

    fn is_done(&self, completion: Completion) {
        self.later.fetch_sub(1, Ordering::AcqRel);
        self.completed.lock().push(completion);
    }

    /// Takes the completions that are to be called.
    pub(super) fn completed(&self) -> Vec<Completion> {
        std::mem::take(&mut *self.completed.lock())
    }

    /// Fails those for completions whose time is over, and those whose token `is_void`; returns the numbers of the
    /// former.
    pub(super) fn expire(&self, now: Instant, is_void: impl Fn(Once) -> bool) -> Vec<u64> {
        let mut late = Vec::new();
        let mut all = self.all.lock();
        let ended: Vec<(u64, FsError)> = all
            .by_number
            .iter()
            .filter_map(|(&number, pending)| match pending {
                Pending::Later(later) if later.deadline.is_some_and(|deadline| now >= deadline) => {
                    late.push(number);
                    Some((number, FsError::TimedOut))
                }
                Pending::Later(later) if later.once.is_some_and(&is_void) => Some((number, FsError::Disconnected)),
                _ => None,
            })
            .collect();
        for (number, error) in ended {
            if let Some(Pending::Later(later)) = all.remove(number) {
                self.is_done(later.with(Err(error)));
            }
        }
        late
    }

    /// All who wait try again, or learn that it is over.
    pub(super) fn break_off(&self) {
        for pending in self.all.lock().by_number.values() {
            if let Pending::Thread(waiter) = pending {
                waiter.break_off();
            }
        }
    }

    /// Fails all.
    pub(super) fn fail(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        for pending in all.by_number.into_values() {
            match pending {
                Pending::Thread(waiter) => waiter.set(State::Broken),
                Pending::Posted(_) | Pending::Cancels(..) => {}
                Pending::Later(later) => self.is_done(later.with(Err(FsError::Disconnected))),
            }
        }
    }

    /// Has another thread receive than the one that waits for the answer `but`. False if none waits.
    pub(super) fn call_another(&self, but: u64) -> bool {
        let all = self.all.lock();
        all.by_number.iter().any(|(&number, pending)| match pending {
            Pending::Thread(waiter) => number != but && waiter.call(),
            _ => false,
        })
    }

    /// What must arrive and has numbers from `from` on, with bodies and data.
    pub(super) fn unanswered(&self, from: u64) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let all = self.all.lock();
        let open = all
            .by_number
            .range(from..)
            .filter_map(|(&number, pending)| match pending {
                Pending::Posted(body) | Pending::Cancels(_, body) => Some((number, body.clone(), Vec::new())),
                Pending::Later(later) => Some((number, later.body.clone(), later.data().to_vec())),
                Pending::Thread(_) => None,
            });
        open.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::own_head;

    fn bodies(requests: &Requests) -> Vec<Vec<u8>> {
        requests.unanswered(0).into_iter().map(|(_, body, _)| body).collect()
    }

    /// A server that answers nothing that nobody waits for costs a bounded amount of memory.
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
        let numbers: Vec<u64> = requests.unanswered(0).into_iter().map(|(number, ..)| number).collect();
        assert_eq!(numbers.last(), Some(&100), "the latest stay");
        numbers.into_iter().for_each(|number| drop(requests.settle(number)));
        assert_eq!(requests.all.lock().posted_bytes, 0);
    }

    /// The server has taken the end of a wait, and is killed before it says how the wait ended. Its successor is asked
    /// for the lock again, and must learn that nobody wants it any more, or who gave up waits as long as the lock is
    /// another's.
    #[test]
    fn the_end_of_a_wait_is_said_again_with_the_wait() {
        let requests = Requests::default();
        let mut head = own_head(0);
        requests.enter_later(&mut head, |_| Later {
            body: b"lock".to_vec(),
            buffer: None,
            buffer_is_sent: false,
            once: None,
            deadline: None,
            then: Box::new(|_, _| {}),
        });
        let (lock, mut head) = (head.id, own_head(0));
        assert!(requests.enter_cancel(&mut head, lock, |_| b"cancel".to_vec()));
        assert!(requests.settle(head.id).is_none(), "nobody waits for this");
        assert_eq!(bodies(&requests), [b"lock".to_vec(), b"cancel".to_vec()]);
        assert!(matches!(requests.settle(lock), Some(Pending::Later(_))));
        assert!(bodies(&requests).is_empty(), "nothing is left to end");
        let mut late = own_head(0);
        assert!(!requests.enter_cancel(&mut late, lock, |_| b"cancel".to_vec()));
        assert!(bodies(&requests).is_empty());
    }
}

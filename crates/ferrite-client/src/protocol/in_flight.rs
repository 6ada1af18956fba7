//! The requests in flight, and which of them the next connection repeats.
//!
//! Contents: [`InFlight`], the table of requests by number.
//!
//! Invariants: each request leaves the table once, so that none is answered twice. A request that no thread waits for
//! stays until it is answered, its deadline passes, or its token's session is over, and is repeated on each connection
//! until then, in order. Once its deadline has passed, the server learns of that. A request that a thread waits for is
//! repeated by that thread ([`super::call`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ferrite_vfs::{DedupToken, FsError};

use super::call::Tokens;

/// Memory for requests without a waiter, at most: a server that answers none of them must not exhaust it. Beyond that
/// the oldest are forgotten; their session ends, and with it everything that they would have ended.
pub(crate) const POSTED_BYTES_MAX: usize = 64 << 20;
/// The approximate size of one without its body.
const POSTED_BYTES: usize = 160;

/// The recipient of a reply that may come at any time.
pub(crate) trait Recipient {
    /// The data that goes with the request.
    fn data(&self) -> &[u8];
}

/// A request whose reply goes to a recipient `R`.
#[derive(Debug)]
pub(crate) struct Deferred<R> {
    pub(crate) body: Vec<u8>,
    /// The token, if it is a change.
    pub(crate) token: Option<DedupToken>,
    /// It fails without a reply by then.
    pub(crate) deadline: Option<Instant>,
    pub(crate) recipient: R,
}

/// A request in flight. `W` is a waiting thread.
#[derive(Debug)]
pub(crate) enum Pending<W, R> {
    Thread(W),
    /// No thread waits, but it must arrive.
    Posted(Vec<u8>),
    /// Its reply may come at any time.
    Deferred(Box<Deferred<R>>),
    /// Cancels another request, for a lock. It is sent again as long as that one is in flight: a server that has
    /// answered this one may be gone before it has answered the other, and the next server knows nothing of either.
    Cancels(u64, Vec<u8>),
}

impl<W, R> Pending<W, R> {
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

/// A request with a recipient that fails.
#[derive(Debug)]
pub(crate) struct Expired<R> {
    pub(crate) deferred: Box<Deferred<R>>,
    pub(crate) error: FsError,
    /// The registered request by which the server abandons it.
    pub(crate) abandon: Option<Repetition>,
}

/// A request to send once more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repetition {
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// How far a new connection has come with the requests that it repeats.
#[derive(Debug, Default)]
pub(crate) struct Repeated {
    below: u64,
}

/// See the head of this module. There may be thousands of requests that do not count.
#[derive(Debug)]
pub(crate) struct InFlight<W, R> {
    by_id: BTreeMap<u64, Pending<W, R>>,
    counted: BTreeSet<u64>,
    /// Memory of those without a waiter.
    posted_bytes: usize,
    /// How many cancel other requests.
    cancels: usize,
}

impl<W, R> Default for InFlight<W, R> {
    fn default() -> Self {
        InFlight {
            by_id: BTreeMap::new(),
            counted: BTreeSet::new(),
            posted_bytes: 0,
            cancels: 0,
        }
    }
}

impl<W, R> InFlight<W, R> {
    /// The number below which all requests are settled, if `next_id` is the next request.
    pub(crate) fn settled_below(&self, next_id: u64) -> u64 {
        self.counted.first().copied().unwrap_or(next_id)
    }

    /// Registers a request.
    pub(crate) fn insert(&mut self, id: u64, pending: Pending<W, R>) {
        if pending.is_counted() {
            self.counted.insert(id);
        }
        self.posted_bytes += pending.posted_bytes();
        self.cancels += usize::from(matches!(pending, Pending::Cancels(..)));
        self.by_id.insert(id, pending);
        while self.posted_bytes > POSTED_BYTES_MAX {
            let is_posted = |(&id, pending): (&u64, &Pending<W, R>)| (pending.posted_bytes() > 0).then_some(id);
            let Some(oldest) = self.by_id.iter().find_map(is_posted) else {
                break;
            };
            self.remove(oldest);
        }
    }

    /// Registers a request that cancels a wait for a lock. False if that wait is over.
    pub(crate) fn insert_cancel(&mut self, id: u64, of: u64, body: Vec<u8>) -> bool {
        self.insert(id, Pending::Cancels(of, body));
        self.end_cancels();
        self.by_id.contains_key(&id)
    }

    /// Removes a request: its thread has stopped waiting.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Pending<W, R>> {
        self.counted.remove(&id);
        let removed = self.by_id.remove(&id)?;
        self.posted_bytes -= removed.posted_bytes();
        self.cancels -= usize::from(matches!(removed, Pending::Cancels(..)));
        Some(removed)
    }

    /// A request is answered. Returns who gets the reply, if anything does: a thread removes its request itself, and if
    /// the request is absent, its thread has given up.
    pub(crate) fn answered(&mut self, id: u64) -> Option<Pending<W, R>>
    where
        W: Clone,
    {
        let pending = match self.by_id.get(&id) {
            Some(Pending::Thread(waiter)) => Some(Pending::Thread(waiter.clone())),
            Some(Pending::Posted(_) | Pending::Deferred(_)) => self.remove(id),
            Some(Pending::Cancels(..)) | None => None,
        };
        self.end_cancels();
        pending
    }

    /// Forgets cancellations of requests that have ended.
    fn end_cancels(&mut self) {
        if self.cancels == 0 {
            return;
        }
        let is_over = |(&id, pending): (&u64, &Pending<W, R>)| match pending {
            Pending::Cancels(of, _) if !self.by_id.contains_key(of) => Some(id),
            _ => None,
        };
        let ended: Vec<u64> = self.by_id.iter().filter_map(is_over).collect();
        ended.into_iter().for_each(|id| drop(self.remove(id)));
    }

    /// Removes the requests with recipients that fail: those whose deadline is past, and those whose session is over,
    /// because they may have taken effect. The server has to abandon the former, which it may have received over an
    /// earlier connection. So for each of them this registers a request that says so, as `abandon` numbers and encodes
    /// it: a new connection sends it with all others. The driver sends it over an established one.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        tokens: Option<&impl Tokens>,
        mut abandon: impl FnMut(&Self, u64) -> (u64, Vec<u8>),
    ) -> Vec<Expired<R>> {
        let error_of = |(&id, pending): (&u64, &Pending<W, R>)| match pending {
            Pending::Deferred(deferred) if deferred.deadline.is_some_and(|deadline| now >= deadline) => {
                Some((id, FsError::TimedOut))
            }
            Pending::Deferred(deferred) => {
                let (token, tokens) = deferred.token.zip(tokens)?;
                (!tokens.has(token)).then_some((id, FsError::Disconnected))
            }
            _ => None,
        };
        let ended: Vec<(u64, FsError)> = self.by_id.iter().filter_map(error_of).collect();
        let mut expired = Vec::new();
        for (id, error) in ended {
            let Some(Pending::Deferred(deferred)) = self.remove(id) else {
                continue;
            };
            let abandon = (error == FsError::TimedOut).then(|| {
                let (id, body) = abandon(self, id);
                self.insert(id, Pending::Posted(body.clone()));
                let data = Vec::new();
                Repetition { id, body, data }
            });
            expired.push(Expired {
                deferred,
                error,
                abandon,
            });
        }
        expired
    }

    /// The requests that a new connection repeats, and has not yet. None are left if this is empty.
    pub(crate) fn to_repeat(&self, repeated: &mut Repeated) -> Vec<Repetition>
    where
        R: Recipient,
    {
        let open = self.by_id.range(repeated.below..).filter_map(|(&id, pending)| {
            let (body, data) = match pending {
                Pending::Posted(body) | Pending::Cancels(_, body) => (body, &[][..]),
                Pending::Deferred(deferred) => (&deferred.body, deferred.recipient.data()),
                Pending::Thread(_) => return None,
            };
            let (body, data) = (body.clone(), data.to_vec());
            Some(Repetition { id, body, data })
        });
        let open: Vec<Repetition> = open.collect();
        if let Some(last) = open.last() {
            repeated.below = last.id + 1;
        }
        open
    }

    /// The waiting threads, by the numbers of their requests.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = (u64, &W)> {
        self.by_id.iter().filter_map(|(&id, pending)| match pending {
            Pending::Thread(waiter) => Some((id, waiter)),
            _ => None,
        })
    }

    /// Removes all: the client is closed.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Pending<W, R>> + use<W, R> {
        std::mem::take(self).by_id.into_values()
    }
}

//! The locks of one file, and the requests that wait for them.
//!
//! Invariants: either one owner holds an exclusive `flock` lock or any number hold shared ones. Each request that waits
//! is in `waiting`, and in the set of its kind.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::intervals::Intervals;
use super::ranges::{Holder, RangeSet};
use super::{ByteRange, LockKind, LockOwner, LockRequest, LockTicket};
use crate::ClientId;

/// The outcome of an attempt.
#[derive(PartialEq, Eq)]
pub(super) enum Attempt {
    Granted {
        /// Part of the owner's lock became weaker, so others may get theirs.
        weaker: bool,
    },
    Conflict,
}

#[derive(Debug, Default)]
pub(super) struct FileLocks {
    flocks: BTreeMap<Holder, LockKind>,
    /// Whether the one holder's lock is exclusive.
    is_exclusive: bool,
    pub(super) ranges: RangeSet,
    /// All requests, by their owner.
    waiting: BTreeSet<(Holder, LockTicket)>,
    flocks_shared: BTreeSet<LockTicket>,
    flocks_exclusive: BTreeSet<LockTicket>,
    records: Intervals<LockTicket>,
}

/// All requests of these owners.
fn of(first: Holder, last: Holder) -> std::ops::RangeInclusive<(Holder, LockTicket)> {
    (first, LockTicket(0))..=(last, LockTicket(u64::MAX))
}

fn owners(client: ClientId) -> (Holder, Holder) {
    ((client, LockOwner(0)), (client, LockOwner(u64::MAX)))
}

impl FileLocks {
    /// Whether it has neither locks nor requests that wait.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.flocks.is_empty() && self.ranges.is_empty()
    }

    /// Number of locks that are held.
    pub(super) fn held(&self) -> usize {
        self.flocks.len() + self.ranges.len()
    }

    /// Number of requests that wait.
    pub(super) fn waiters(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a client has a lock or request here.
    pub(super) fn has_client(&self, client: ClientId) -> bool {
        let (first, last) = owners(client);
        self.flocks.range(first..=last).next().is_some()
            || self.ranges.has_client(client)
            || self.waiting.range(of(first, last)).next().is_some()
    }

    /// The requests of a client that wait.
    pub(super) fn tickets_of(&self, client: ClientId) -> Vec<LockTicket> {
        let (first, last) = owners(client);
        self.waiting.range(of(first, last)).map(|&(_, ticket)| ticket).collect()
    }

    pub(super) fn has_flock(&self, owner: Holder) -> bool {
        self.flocks.contains_key(&owner)
    }

    fn flock_is_free(&self, owner: Holder, kind: LockKind) -> bool {
        match kind {
            LockKind::Exclusive => self.flocks.len() == usize::from(self.has_flock(owner)),
            LockKind::Shared => !self.is_exclusive || self.has_flock(owner),
        }
    }

    /// False if there was none.
    pub(super) fn drop_flock(&mut self, owner: Holder) -> bool {
        let was_deferred = self.flocks.remove(&owner).is_some();
        self.is_exclusive &= !was_deferred;
        was_deferred
    }

    /// Drops the `flock` locks of a client's owners; returns how many there were.
    pub(super) fn drop_flocks(&mut self, client: ClientId) -> usize {
        let (first, last) = owners(client);
        let gone: Vec<Holder> = self.flocks.range(first..=last).map(|(&holder, _)| holder).collect();
        gone.into_iter().filter(|&holder| self.drop_flock(holder)).count()
    }

    /// Grants a `flock` request if nothing conflicts with it.
    pub(super) fn try_flock(&mut self, owner: Holder, kind: LockKind) -> Attempt {
        if !self.flock_is_free(owner, kind) {
            return Attempt::Conflict;
        }
        let before = self.flocks.insert(owner, kind);
        self.is_exclusive = kind == LockKind::Exclusive;
        Attempt::Granted {
            weaker: before == Some(LockKind::Exclusive) && kind == LockKind::Shared,
        }
    }

    /// The oldest `flock` request that can be granted now; `is_flock` selects these requests.
    pub(super) fn next_flock(&self, is_flock: impl Fn(LockTicket) -> bool) -> Option<LockTicket> {
        let (shared, exclusive) = (self.flocks_shared.first(), self.flocks_exclusive.first());
        let Some((&holder, _)) = self.flocks.first_key_value() else {
            return shared.into_iter().chain(exclusive).min().copied();
        };
        // A request of the only holder: a conversion.
        let own = (self.flocks.len() == 1)
            .then(|| self.waiting.range(of(holder, holder)))
            .into_iter()
            .flatten()
            .map(|(_, ticket)| ticket)
            .find(|&&ticket| is_flock(ticket));
        match self.is_exclusive {
            true => own.copied(),
            false => shared.into_iter().chain(own).min().copied(),
        }
    }

    /// The requests for records that `range` may have kept waiting, in order.
    pub(super) fn records_over(&self, range: &ByteRange) -> BTreeSet<LockTicket> {
        let mut found = BTreeSet::new();
        let _ = self.records.visit(range, |_, ticket| {
            found.insert(ticket);
            ControlFlow::<()>::Continue(())
        });
        found
    }

    pub(super) fn add_waiting(&mut self, holder: Holder, ticket: LockTicket, request: &LockRequest) {
        self.waiting.insert((holder, ticket));
        match request {
            LockRequest::Flock(_, kind) => {
                self.flocks_of(*kind).insert(ticket);
            }
            LockRequest::Record(lock) => self.records.insert(lock.range, ticket),
        }
    }

    pub(super) fn remove_waiting(&mut self, holder: Holder, ticket: LockTicket, request: &LockRequest) {
        self.waiting.remove(&(holder, ticket));
        match request {
            LockRequest::Flock(_, kind) => {
                self.flocks_of(*kind).remove(&ticket);
            }
            LockRequest::Record(lock) => self.records.remove(lock.range.start, ticket),
        }
    }

    fn flocks_of(&mut self, kind: LockKind) -> &mut BTreeSet<LockTicket> {
        match kind {
            LockKind::Shared => &mut self.flocks_shared,
            LockKind::Exclusive => &mut self.flocks_exclusive,
        }
    }
}

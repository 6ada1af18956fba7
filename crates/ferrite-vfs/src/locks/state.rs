//! The state of a [`super::LockTable`], under its mutex: all files with locks, and all requests that wait.
//!
//! Invariants: see [`super::table`]. A client is in `clients` with every file on which it holds a lock or waits for
//! one, and with no other. Each request that waits is in `waiting`, in `waiting_of`, and with its file.
//!
//! A grant, a refusal and a request that waits cost a visit of the overlapping locks; a release costs these, and an
//! attempt for each overlapping request. Anything beyond that (chains of requests that unblock each other, cycles) has
//! a budget of [`WORK_MAX`] or [`SEARCH_MAX`] for the whole call.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use super::file::{Attempt, FileLocks};
use super::ranges::{Holder, RangeSet};
use super::settled::Settled;
use super::{
    ByteRange, FILE_LOCKS_MAX, FILE_WAITING_MAX, LockDone, LockRequest, LockTicket, RECORD_LOCKS_MAX, RecordLock,
    WAITING_MAX,
};
use crate::{ClientId, FsError, Ino, Result, SpaceOf};

/// The budget of one call for requests that may be granted now, in visits of a lock: several milliseconds. One attempt
/// for each request on a file fits. A call needs more only where each granted request unblocks others, again and again;
/// requests it does not reach are refused.
const WORK_MAX: usize = 1 << 19;
/// The cost of an attempt besides the locks that it visits.
const ATTEMPT: usize = 32;
/// The cost of finding a request.
const FIND: usize = 8;
const _: () = assert!(FILE_WAITING_MAX * (ATTEMPT + FIND) < WORK_MAX);
/// The same for a deadlock search. A cycle not found within it is not refused, as in Linux, which gives up much
/// earlier.
const SEARCH_MAX: usize = 1 << 15;

/// The budget of one call.
pub(super) struct Work(usize);

impl Work {
    pub(super) fn new() -> Work {
        Work(WORK_MAX)
    }

    fn spend(&mut self, units: usize) {
        self.0 = self.0.saturating_sub(units);
    }

    fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) files: HashMap<Ino, FileLocks>,
    /// By ticket, which is the order of arrival.
    pub(super) waiting: BTreeMap<LockTicket, Waiting>,
    waiting_of: HashMap<Holder, BTreeSet<LockTicket>>,
    clients: HashMap<ClientId, BTreeSet<Ino>>,
    next_ticket: u64,
    /// Locks that are held.
    pub(super) held: usize,
}

/// A request that waits.
pub(super) struct Waiting {
    pub(super) ino: Ino,
    pub(super) holder: Holder,
    pub(super) request: LockRequest,
    pub(super) done: LockDone,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {} for {:?}", self.request, self.ino, self.holder)
    }
}

/// A lock that may have become free.
pub(super) enum Freed {
    Flock,
    Range(ByteRange),
}

impl Freed {
    /// The lock that a grant of this request frees, if it makes one weaker.
    pub(super) fn by(request: &LockRequest) -> Freed {
        match request {
            LockRequest::Flock(..) => Freed::Flock,
            LockRequest::Record(lock) => Freed::Range(lock.range),
        }
    }
}

impl State {
    pub(super) fn is_empty(&self) -> bool {
        let has_none = self.waiting.is_empty() && self.waiting_of.is_empty() && self.held == 0;
        has_none && self.files.is_empty() && self.clients.is_empty()
    }

    fn file(&mut self, ino: Ino) -> &mut FileLocks {
        self.files.entry(ino).or_default()
    }

    /// Forgets that a client has locks on a file once it has none, and forgets a file without locks or requests.
    pub(super) fn prune(&mut self, client: ClientId, ino: Ino) {
        let file = self.files.get(&ino);
        if !file.is_some_and(|file| file.has_client(client))
            && let Some(files) = self.clients.get_mut(&client)
        {
            files.remove(&ino);
            if files.is_empty() {
                self.clients.remove(&client);
            }
        }
        if self.files.get(&ino).is_some_and(FileLocks::is_empty) {
            self.files.remove(&ino);
        }
    }

    fn full<T>() -> Result<T> {
        Err(FsError::NoSpace(SpaceOf::RecordLocks))
    }

    /// Whether there is space for the two locks that one request may add: itself and the part it splits off an older
    /// one.
    fn check_held(&self, ino: Ino) -> Result<()> {
        let of_file = self.files.get(&ino).map_or(0, FileLocks::held);
        match self.held + 2 > RECORD_LOCKS_MAX || of_file + 2 > FILE_LOCKS_MAX {
            true => State::full(),
            false => Ok(()),
        }
    }

    /// Grants `request` if nothing conflicts with it.
    pub(super) fn try_grant(
        &mut self,
        (ino, holder): (Ino, Holder),
        request: &LockRequest,
        work: &mut Work,
    ) -> Result<Attempt> {
        work.spend(ATTEMPT);
        let attempt = match request {
            LockRequest::Flock(_, kind) => {
                let had_it = self.files.get(&ino).is_some_and(|file| file.has_flock(holder));
                if !had_it {
                    self.check_held(ino)?;
                }
                let attempt = self.file(ino).try_flock(holder, *kind);
                self.held += usize::from(!had_it && attempt != Attempt::Conflict);
                attempt
            }
            LockRequest::Record(lock) => {
                if self.file(ino).ranges.conflicts(holder, lock, &mut work.0) {
                    return Ok(Attempt::Conflict);
                }
                self.check_held(ino)?;
                let weaker = self.change_ranges(ino, |ranges| ranges.set(holder, lock));
                Attempt::Granted { weaker }
            }
        };
        if attempt != Attempt::Conflict {
            self.clients.entry(holder.0).or_default().insert(ino);
        }
        Ok(attempt)
    }

    /// Changes the ranges of a file and updates the count.
    fn change_ranges<T>(&mut self, ino: Ino, change: impl FnOnce(&mut RangeSet) -> T) -> T {
        let ranges = &mut self.files.entry(ino).or_default().ranges;
        let before = ranges.len();
        let result = change(ranges);
        self.held = self.held + ranges.len() - before;
        result
    }

    /// Releases a `flock` lock. False if there was none.
    pub(super) fn drop_flock(&mut self, ino: Ino, holder: Holder) -> bool {
        let was_deferred = self.files.get_mut(&ino).is_some_and(|file| file.drop_flock(holder));
        self.held -= usize::from(was_deferred);
        was_deferred
    }

    /// Releases record locks in a range. False if there were none.
    ///
    /// # Errors
    /// `NoSpace` if that would leave two parts of one lock, and there are too many locks; then nothing is released.
    pub(super) fn clear(&mut self, ino: Ino, holder: Holder, range: ByteRange) -> Result<bool> {
        let splits = |file: &FileLocks| file.ranges.splits(holder, range);
        if self.files.get(&ino).is_some_and(splits) {
            self.check_held(ino)?;
        }
        Ok(self.change_ranges(ino, |ranges| ranges.clear(holder, range)))
    }

    fn blockers(&self, waiting: (Ino, Holder), lock: &RecordLock, work: &mut Work, found: &mut Vec<Holder>) {
        if let Some(file) = self.files.get(&waiting.0) {
            file.ranges.blockers(waiting.1, lock, &mut work.0, found);
        }
    }

    /// The owners for whom those in `pending` wait, along some chain, and these themselves. The search follows the
    /// locks held now, so no edge is ever stale. Threads of one owner count as one: the owner counts as stuck if one of
    /// its threads is.
    fn reached(&self, mut pending: Vec<Holder>, work: &mut Work) -> HashSet<Holder> {
        let mut seen = HashSet::new();
        while let Some(owner) = pending.pop() {
            if work.is_spent() {
                break;
            }
            work.spend(FIND);
            if !seen.insert(owner) {
                continue;
            }
            for ticket in self.waiting_of.get(&owner).into_iter().flatten() {
                work.spend(FIND);
                if let Some(waiting) = self.waiting.get(ticket)
                    && let LockRequest::Record(wanted) = &waiting.request
                {
                    self.blockers((waiting.ino, owner), wanted, work, &mut pending);
                }
            }
        }
        seen
    }

    /// Whether waiting for `lock` could never end: the owners it conflicts with are themselves waiting, along some
    /// chain, for its owner.
    fn would_deadlock(&self, ino: Ino, holder: Holder, lock: &RecordLock, work: &mut Work) -> bool {
        let mut blockers = Vec::new();
        self.blockers((ino, holder), lock, work, &mut blockers);
        self.reached(blockers, work).contains(&holder)
    }

    fn take(&mut self, ticket: LockTicket) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        let (holder, ino) = (waiting.holder, waiting.ino);
        self.file(ino).remove_waiting(holder, ticket, &waiting.request);
        if let Some(tickets) = self.waiting_of.get_mut(&holder) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.waiting_of.remove(&holder);
            }
        }
        Some(waiting)
    }

    pub(super) fn settle(&mut self, ticket: LockTicket, outcome: Result<()>, settled: &mut Settled) {
        if let Some(waiting) = self.take(ticket) {
            let is_granted = outcome.is_ok();
            settled.push(waiting.done, outcome);
            if !is_granted {
                self.prune(waiting.holder.0, waiting.ino);
            }
        }
    }

    /// Grants the requests that a release on a file unblocks, in order.
    pub(super) fn advance(&mut self, ino: Ino, freed: Freed, work: &mut Work, settled: &mut Settled) {
        match freed {
            Freed::Flock => self.advance_flocks(ino, work, settled),
            Freed::Range(range) => self.advance_records(ino, range, work, settled),
        }
    }

    fn advance_flocks(&mut self, ino: Ino, work: &mut Work, settled: &mut Settled) {
        let is_flock = |waiting: &Waiting| matches!(waiting.request, LockRequest::Flock(..));
        while let Some(file) = self.files.get(&ino)
            && let Some(ticket) = file.next_flock(|ticket| self.waiting.get(&ticket).is_some_and(is_flock))
            && let Some(&Waiting { holder, request, .. }) = self.waiting.get(&ticket)
        {
            match self.try_grant((ino, holder), &request, work) {
                Ok(Attempt::Granted { .. }) => self.settle(ticket, Ok(()), settled),
                Ok(Attempt::Conflict) => return,
                Err(error) => self.settle(ticket, Err(error), settled),
            }
        }
    }

    /// The requests for records on a file that `range` may have kept waiting.
    fn over(&self, ino: Ino, range: &ByteRange, work: &mut Work) -> BTreeSet<LockTicket> {
        let tickets = self.files.get(&ino).map(|file| file.records_over(range));
        let tickets = tickets.unwrap_or_default();
        work.spend(FIND * tickets.len());
        tickets
    }

    fn advance_records(&mut self, ino: Ino, range: ByteRange, work: &mut Work, settled: &mut Settled) {
        let mut tickets = self.over(ino, &range, work);
        while let Some(ticket) = tickets.pop_first() {
            let Some(&Waiting { holder, request, .. }) = self.waiting.get(&ticket) else {
                continue;
            };
            if work.is_spent() {
                self.settle(ticket, State::full(), settled);
                continue;
            }
            match self.try_grant((ino, holder), &request, work) {
                Ok(Attempt::Granted { weaker }) => {
                    self.settle(ticket, Ok(()), settled);
                    self.refuse_stuck(ino, holder, &request, work, settled);
                    if weaker && let LockRequest::Record(lock) = &request {
                        tickets.append(&mut self.over(ino, &lock.range, work));
                    }
                }
                Ok(Attempt::Conflict) => {}
                Err(error) => self.settle(ticket, Err(error), settled),
            }
        }
    }

    /// Refuses the requests that a lock just granted to `holder` makes wait for themselves, the oldest of each cycle on
    /// this file first. Such a cycle needs an owner that waits elsewhere meanwhile, with another thread.
    pub(super) fn refuse_stuck(
        &mut self,
        ino: Ino,
        holder: Holder,
        granted: &LockRequest,
        work: &mut Work,
        settled: &mut Settled,
    ) {
        let LockRequest::Record(lock) = granted else { return };
        while let Some(own) = self.waiting_of.get(&holder)
            && !work.is_spent()
        {
            let waits_for = self.reached(vec![holder], work);
            let is_stuck = |waiting: &Waiting| match &waiting.request {
                LockRequest::Record(wanted) => {
                    let conflicts = waiting.holder != holder && wanted.kind.conflicts(lock.kind);
                    conflicts && waits_for.contains(&waiting.holder)
                }
                LockRequest::Flock(..) => false,
            };
            let tickets = self.over(ino, &lock.range, work);
            let stuck = |ticket: &LockTicket| self.waiting.get(ticket).is_some_and(is_stuck);
            let Some(stuck) = tickets.into_iter().find(stuck) else {
                return;
            };
            let is_in_ring = |waiting: &Waiting, work: &mut Work| match &waiting.request {
                LockRequest::Record(wanted) if waiting.ino == ino => self.would_deadlock(ino, holder, wanted, work),
                _ => false,
            };
            let older = own.range(..stuck).copied().find(|ticket| {
                let waiting = self.waiting.get(ticket);
                waiting.is_some_and(|waiting| is_in_ring(waiting, work))
            });
            self.settle(older.unwrap_or(stuck), Err(FsError::Deadlock), settled);
        }
    }

    /// Whether `request` may wait.
    pub(super) fn check_wait(&self, ino: Ino, holder: Holder, request: &LockRequest) -> Result<()> {
        let of_file = self.files.get(&ino).map_or(0, FileLocks::waiters);
        if self.waiting.len() >= WAITING_MAX || of_file >= FILE_WAITING_MAX {
            return State::full();
        }
        match request {
            LockRequest::Record(lock) if self.would_deadlock(ino, holder, lock, &mut Work(SEARCH_MAX)) => {
                Err(FsError::Deadlock)
            }
            _ => Ok(()),
        }
    }

    /// Queues a request.
    pub(super) fn enqueue(&mut self, waiting: Waiting, work: &mut Work, settled: &mut Settled) -> LockTicket {
        let ticket = LockTicket(self.next_ticket);
        self.next_ticket += 1;
        let Waiting {
            ino, holder, request, ..
        } = waiting;
        self.waiting.insert(ticket, waiting);
        self.waiting_of.entry(holder).or_default().insert(ticket);
        self.clients.entry(holder.0).or_default().insert(ino);
        self.file(ino).add_waiting(holder, ticket, &request);
        if matches!(request, LockRequest::Flock(..)) && self.drop_flock(ino, holder) {
            self.advance(ino, Freed::Flock, work, settled);
        }
        ticket
    }

    /// A file on which a client has a lock or request.
    pub(super) fn file_of(&self, client: ClientId) -> Option<Ino> {
        self.clients.get(&client)?.first().copied()
    }

    /// Ends the locks and requests of a client on one file.
    pub(super) fn release(&mut self, client: ClientId, ino: Ino, settled: &mut Settled) {
        let mut work = Work::new();
        let tickets = self
            .files
            .get(&ino)
            .map_or_else(Vec::new, |file| file.tickets_of(client));
        for ticket in tickets {
            self.settle(ticket, Err(FsError::Disconnected), settled);
        }
        let dropped = self.files.get_mut(&ino).map_or(0, |file| file.drop_flocks(client));
        self.held -= dropped;
        let ranges = self.change_ranges(ino, |ranges| ranges.clear_client(client));
        if dropped > 0 {
            self.advance(ino, Freed::Flock, &mut work, settled);
        }
        if let Some(range) = hull(&ranges) {
            self.advance(ino, Freed::Range(range), &mut work, settled);
        }
        self.prune(client, ino);
    }
}

/// The range from the first byte of all to the last.
fn hull(ranges: &[ByteRange]) -> Option<ByteRange> {
    let start = ranges.iter().map(|range| range.start).min()?;
    let end = ranges.iter().map(|range| range.end).max()?;
    Some(ByteRange { start, end })
}

//! [`LockTable`]: the locks of one file system, and the requests that wait for them.
//!
//! Invariants: `flock` locks and record locks do not see each other (as on Linux). Two owners never hold conflicting
//! locks at once. A file without locks or waiting requests takes no space. A request that fails has changed nothing
//! (except for a `flock` conversion that had to wait). After each change, no request waits that could be granted, and
//! no ring of requests waits for itself.
//!
//! One mutex guards the table. It is held for a few map operations, never while a completion runs; reads and writes of
//! data do not take it. Requests that wait are tried in the order in which they came. A new request does not queue
//! behind them: what can be granted at once is.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use parking_lot::Mutex;

use super::ranges::{Holder, RangeSet};
use super::{ByteRange, LockDone, LockKind, LockOwner, LockRequest, LockTicket, RECORD_LOCKS_MAX, RecordLock, Unlock};
use crate::{Ctx, FsError, Ino, Result, SpaceOf};

/// The advisory locks of one file system.
#[derive(Debug, Default)]
pub struct LockTable {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<Ino, FileLocks>,
    /// By ticket, which is the order in which they came.
    waiting: BTreeMap<LockTicket, Waiting>,
    next_ticket: u64,
    records: usize,
}

#[derive(Debug, Default)]
struct FileLocks {
    flocks: Vec<(Holder, LockKind)>,
    ranges: RangeSet,
    /// In order.
    waiting: Vec<LockTicket>,
}

/// A request that waits.
struct Waiting {
    ino: Ino,
    holder: Holder,
    request: LockRequest,
    done: LockDone,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {} for {:?}", self.request, self.ino, self.holder)
    }
}

/// What became of an attempt.
#[derive(PartialEq, Eq)]
enum Attempt {
    Granted {
        /// Part of what the owner held became weaker, so others may get theirs.
        weaker: bool,
    },
    Conflict,
}

/// A completion and what it is called with.
type Outcome = (LockDone, Result<()>);

/// Requests that are settled and whose completions have not been called.
#[derive(Default)]
#[must_use]
struct Settled(Vec<Outcome>);

thread_local! {
    /// Settled by the completion that runs on this thread, if one does.
    static NEXT: RefCell<Option<VecDeque<Outcome>>> = const { RefCell::new(None) };
}

impl Settled {
    /// Calls the completions; the table must be unlocked. Within a completion it leaves them to the caller of that one,
    /// so that a long row of requests, each granted by the one before, needs no deep stack.
    fn call(self) {
        /// Ends the row even if a completion panics.
        struct Row;
        impl Drop for Row {
            fn drop(&mut self) {
                NEXT.set(None);
            }
        }
        if self.0.is_empty() {
            return;
        }
        let nested = NEXT.with_borrow_mut(|next| match next {
            Some(row) => {
                row.extend(self.0);
                true
            }
            None => {
                *next = Some(self.0.into());
                false
            }
        });
        if nested {
            return;
        }
        let _row = Row;
        while let Some((done, outcome)) = NEXT.with_borrow_mut(|next| next.as_mut().and_then(VecDeque::pop_front)) {
            done(outcome);
        }
    }
}

impl FileLocks {
    fn flock_is_free(&self, owner: Holder, kind: LockKind) -> bool {
        self.flocks
            .iter()
            .all(|&(holder, held)| holder == owner || !kind.conflicts(held))
    }

    fn drop_flock(&mut self, owner: Holder) {
        self.flocks.retain(|&(holder, _)| holder != owner);
    }

    /// Grants a `flock` request if nothing conflicts with it.
    fn try_flock(&mut self, owner: Holder, kind: LockKind) -> Attempt {
        if !self.flock_is_free(owner, kind) {
            return Attempt::Conflict;
        }
        let mut weaker = false;
        match self.flocks.iter_mut().find(|(holder, _)| *holder == owner) {
            Some((_, held)) => {
                weaker = *held == LockKind::Exclusive && kind == LockKind::Shared;
                *held = kind;
            }
            None => self.flocks.push((owner, kind)),
        }
        Attempt::Granted { weaker }
    }
}

impl State {
    fn file(&mut self, ino: Ino) -> &mut FileLocks {
        self.files.entry(ino).or_default()
    }

    /// Forgets a file without locks and waiting requests.
    fn tidy(&mut self, ino: Ino) {
        if let Some(file) = self.files.get(&ino)
            && file.waiting.is_empty()
            && file.flocks.is_empty()
            && file.ranges.is_empty()
        {
            self.files.remove(&ino);
        }
    }

    /// Whether there is room for what one request may add: two record locks (itself, and what it splits off an older
    /// one), or its waiting.
    fn check_room(&self) -> Result<()> {
        match self.records + self.waiting.len() + 2 > RECORD_LOCKS_MAX {
            true => Err(FsError::NoSpace(SpaceOf::RecordLocks)),
            false => Ok(()),
        }
    }

    /// Grants `request` if nothing conflicts with it.
    fn try_grant(&mut self, ino: Ino, holder: Holder, request: &LockRequest) -> Result<Attempt> {
        match request {
            LockRequest::Flock(_, kind) => Ok(self.file(ino).try_flock(holder, *kind)),
            LockRequest::Record(lock) => {
                if self.file(ino).ranges.conflict(holder, lock).is_some() {
                    return Ok(Attempt::Conflict);
                }
                self.check_room()?;
                let weaker = self.change_ranges(ino, |ranges| ranges.set(holder, lock));
                Ok(Attempt::Granted { weaker })
            }
        }
    }

    /// Changes the ranges of a file and updates the count.
    fn change_ranges<T>(&mut self, ino: Ino, change: impl FnOnce(&mut RangeSet) -> T) -> T {
        let file = self.files.entry(ino).or_default();
        let before = file.ranges.len();
        let result = change(&mut file.ranges);
        self.records = self.records + file.ranges.len() - before;
        result
    }

    /// Whether waiting for `lock` could never end: the owners it conflicts with are themselves waiting, along some
    /// chain, for its owner. Chains are followed through the locks held now, so no edge is ever out of date. Threads of
    /// one owner count as one: the owner counts as stuck if one of its threads is.
    fn would_deadlock(&self, ino: Ino, holder: Holder, lock: &RecordLock) -> bool {
        let mut seen = Vec::new();
        let mut pending = self.blockers(ino, holder, lock);
        while let Some(blocker) = pending.pop() {
            if blocker == holder {
                return true;
            }
            if seen.contains(&blocker) {
                continue;
            }
            seen.push(blocker);
            for waiting in self.waiting.values() {
                if let LockRequest::Record(wanted) = &waiting.request
                    && waiting.holder == blocker
                {
                    pending.extend(self.blockers(waiting.ino, blocker, wanted));
                }
            }
        }
        false
    }

    fn blockers(&self, ino: Ino, holder: Holder, lock: &RecordLock) -> Vec<Holder> {
        self.files
            .get(&ino)
            .map_or_else(Vec::new, |file| file.ranges.blockers(holder, lock))
    }

    fn take(&mut self, ticket: LockTicket) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        self.file(waiting.ino).waiting.retain(|&other| other != ticket);
        Some(waiting)
    }

    fn settle(&mut self, ticket: LockTicket, outcome: Result<()>, settled: &mut Settled) {
        if let Some(waiting) = self.take(ticket) {
            settled.0.push((waiting.done, outcome));
        }
    }

    /// Grants what a release on a file makes possible, in order.
    fn advance(&mut self, ino: Ino, settled: &mut Settled) {
        let mut again = true;
        while again {
            again = false;
            let tickets = self.files.get(&ino).map_or_else(Vec::new, |file| file.waiting.clone());
            for ticket in tickets {
                let Some(&Waiting { holder, request, .. }) = self.waiting.get(&ticket) else {
                    continue;
                };
                match self.try_grant(ino, holder, &request) {
                    Ok(Attempt::Granted { weaker }) => {
                        self.settle(ticket, Ok(()), settled);
                        self.refuse_stuck(ino, holder, settled);
                        again |= weaker;
                    }
                    Ok(Attempt::Conflict) => {}
                    Err(error) => self.settle(ticket, Err(error), settled),
                }
            }
        }
        self.tidy(ino);
    }

    /// Refuses the requests on a file that a lock just granted to `holder` makes wait for themselves. That takes an
    /// owner that waits elsewhere meanwhile, with another thread.
    fn refuse_stuck(&mut self, ino: Ino, holder: Holder, settled: &mut Settled) {
        if !self.waiting.values().any(|waiting| waiting.holder == holder) {
            return;
        }
        let tickets = self.files.get(&ino).map_or_else(Vec::new, |file| file.waiting.clone());
        for ticket in tickets {
            if let Some(waiting) = self.waiting.get(&ticket)
                && let LockRequest::Record(lock) = &waiting.request
                && self.would_deadlock(ino, waiting.holder, lock)
            {
                self.settle(ticket, Err(FsError::Deadlock), settled);
            }
        }
    }

    /// Whether `request` may wait.
    fn check_wait(&self, ino: Ino, holder: Holder, request: &LockRequest) -> Result<()> {
        if let LockRequest::Record(lock) = request
            && self.would_deadlock(ino, holder, lock)
        {
            return Err(FsError::Deadlock);
        }
        self.check_room()
    }

    /// Has a request wait.
    fn enqueue(&mut self, waiting: Waiting, settled: &mut Settled) -> LockTicket {
        let ticket = LockTicket(self.next_ticket);
        self.next_ticket += 1;
        let Waiting {
            ino, holder, request, ..
        } = waiting;
        self.waiting.insert(ticket, waiting);
        let file = self.file(ino);
        file.waiting.push(ticket);
        if matches!(request, LockRequest::Flock(..)) {
            file.drop_flock(holder);
            self.advance(ino, settled);
        }
        ticket
    }
}

impl LockTable {
    /// A table without locks.
    pub fn new() -> LockTable {
        LockTable::default()
    }

    /// See [`crate::FileSystem::lock`].
    pub fn lock(
        &self,
        ctx: &Ctx,
        ino: Ino,
        request: &LockRequest,
        may_wait: bool,
        done: LockDone,
    ) -> Option<LockTicket> {
        let holder = (ctx.client, request.owner());
        let mut settled = Settled::default();
        let mut state = self.state.lock();
        let outcome = match state.try_grant(ino, holder, request) {
            Ok(Attempt::Granted { weaker }) => {
                state.refuse_stuck(ino, holder, &mut settled);
                if weaker {
                    state.advance(ino, &mut settled);
                }
                Some(Ok(()))
            }
            Ok(Attempt::Conflict) if may_wait => state.check_wait(ino, holder, request).err().map(Err),
            Ok(Attempt::Conflict) => Some(Err(FsError::WouldBlock)),
            Err(error) => Some(Err(error)),
        };
        let ticket = match outcome {
            Some(outcome) => {
                state.tidy(ino);
                drop(state);
                done(outcome);
                None
            }
            None => {
                let request = *request;
                let waiting = Waiting {
                    ino,
                    holder,
                    request,
                    done,
                };
                let ticket = state.enqueue(waiting, &mut settled);
                drop(state);
                Some(ticket)
            }
        };
        settled.call();
        ticket
    }

    /// See [`crate::FileSystem::unlock`].
    pub fn unlock(&self, ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) {
        let holder = (ctx.client, owner);
        let mut settled = Settled::default();
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&ino) else {
            return;
        };
        if matches!(what, Unlock::Flock | Unlock::All) {
            file.drop_flock(holder);
        }
        match what {
            Unlock::Flock => {}
            Unlock::Range(range) => state.change_ranges(ino, |ranges| ranges.clear(holder, range)),
            Unlock::All => state.change_ranges(ino, |ranges| ranges.clear(holder, ByteRange::ALL)),
        }
        state.advance(ino, &mut settled);
        drop(state);
        settled.call();
    }

    /// See [`crate::FileSystem::conflicting_lock`].
    pub fn conflict(&self, ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Option<RecordLock> {
        let holder = (ctx.client, lock.owner);
        self.state.lock().files.get(&ino)?.ranges.conflict(holder, lock)
    }

    /// See [`crate::FileSystem::cancel_lock`].
    pub fn cancel(&self, ctx: &Ctx, ticket: LockTicket) {
        let mut settled = Settled::default();
        let mut state = self.state.lock();
        let waiting = state.waiting.get(&ticket);
        if let Some(ino) = waiting.filter(|it| it.holder.0 == ctx.client).map(|it| it.ino) {
            state.settle(ticket, Err(FsError::Interrupted), &mut settled);
            state.tidy(ino);
        }
        drop(state);
        settled.call();
    }

    /// See [`crate::FileSystem::release_client`].
    pub fn release_client(&self, ctx: &Ctx) {
        let client = ctx.client;
        let mut settled = Settled::default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let waiting = state.waiting.iter().filter(|(_, waiting)| waiting.holder.0 == client);
        let gone: Vec<LockTicket> = waiting.map(|(&ticket, _)| ticket).collect();
        for ticket in gone {
            state.settle(ticket, Err(FsError::Disconnected), &mut settled);
        }
        let files: Vec<Ino> = state.files.keys().copied().collect();
        for ino in files {
            state.file(ino).flocks.retain(|&((holder, _), _)| holder != client);
            state.change_ranges(ino, |ranges| ranges.clear_client(client));
            state.advance(ino, &mut settled);
        }
        drop(guard);
        settled.call();
    }

    /// All record locks on a file, by client, owner and start.
    pub fn records(&self, ino: Ino) -> Vec<RecordLock> {
        let state = self.state.lock();
        state
            .files
            .get(&ino)
            .map_or_else(Vec::new, |file| file.ranges.iter().map(|(_, lock)| lock).collect())
    }

    /// Number of requests that wait for locks on a file.
    pub fn waiters(&self, ino: Ino) -> usize {
        self.state.lock().files.get(&ino).map_or(0, |file| file.waiting.len())
    }

    /// Whether it holds nothing: no locks, no requests, and no memory for any.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.files.is_empty() && state.waiting.is_empty() && state.records == 0
    }
}

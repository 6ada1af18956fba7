//! [`LockTable`]: the locks of one file system, and the requests that wait for them.
//!
//! Invariants: `flock` locks and record locks do not see each other (as on Linux). Two owners never hold conflicting
//! locks at once. A file without locks or waiting requests takes no space. A request that fails has changed nothing
//! (except for a `flock` conversion that had to wait). After each change, no request waits that could be granted, and
//! no requests wait in a cycle that a bounded search can find.
//!
//! One mutex guards the table ([`super::state`]). It is held for a bounded number of map operations that depends on the
//! overlapping locks; never while a completion runs. Reads and writes of data do not take it. Waiting requests are
//! tried in order of arrival. A new request does not queue behind them: it is granted at once if possible.

use parking_lot::Mutex;

use super::file::{Attempt, FileLocks};
use super::settled::Settled;
use super::state::{Freed, State, Waiting, Work};
use super::{ByteRange, LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use crate::{Ctx, FsError, Ino, Result};

/// The advisory locks of one file system.
#[derive(Debug, Default)]
pub struct LockTable {
    state: Mutex<State>,
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
        let (mut settled, mut work) = (Settled::default(), Work::new());
        let mut state = self.state.lock();
        let outcome = match state.try_grant((ino, holder), request, &mut work) {
            Ok(Attempt::Granted { weaker }) => {
                state.refuse_stuck(ino, holder, request, &mut work, &mut settled);
                if weaker {
                    state.advance(ino, Freed::by(request), &mut work, &mut settled);
                }
                Some(Ok(()))
            }
            Ok(Attempt::Conflict) if may_wait => state.check_wait(ino, holder, request).err().map(Err),
            Ok(Attempt::Conflict) => Some(Err(FsError::WouldBlock)),
            Err(error) => Some(Err(error)),
        };
        let ticket = match outcome {
            Some(outcome) => {
                state.prune(holder.0, ino);
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
                let ticket = state.enqueue(waiting, &mut work, &mut settled);
                drop(state);
                Some(ticket)
            }
        };
        settled.call();
        ticket
    }

    /// See [`crate::FileSystem::unlock`].
    ///
    /// # Errors
    /// `NoSpace` if releasing the middle of a lock leaves two, and there are too many locks.
    pub fn unlock(&self, ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> Result<()> {
        let holder = (ctx.client, owner);
        let (mut settled, mut work) = (Settled::default(), Work::new());
        let mut state = self.state.lock();
        if !state.files.contains_key(&ino) {
            return Ok(());
        }
        let range = match what {
            Unlock::Flock => None,
            Unlock::Range(range) => Some(range),
            Unlock::All => Some(ByteRange::ALL),
        };
        if let Some(range) = range
            && state.clear(ino, holder, range)?
        {
            state.advance(ino, Freed::Range(range), &mut work, &mut settled);
        }
        if matches!(what, Unlock::Flock | Unlock::All) && state.drop_flock(ino, holder) {
            state.advance(ino, Freed::Flock, &mut work, &mut settled);
        }
        state.prune(holder.0, ino);
        drop(state);
        settled.call();
        Ok(())
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
        if state.waiting.get(&ticket).is_some_and(|it| it.holder.0 == ctx.client) {
            state.settle(ticket, Err(FsError::Interrupted), &mut settled);
        }
        drop(state);
        settled.call();
    }

    /// See [`crate::FileSystem::release_client`]. Works file by file: other callers get the mutex in between.
    pub fn release_client(&self, ctx: &Ctx) {
        loop {
            let mut settled = Settled::default();
            let mut state = self.state.lock();
            let Some(ino) = state.file_of(ctx.client) else { return };
            state.release(ctx.client, ino, &mut settled);
            drop(state);
            settled.call();
        }
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
        self.state.lock().files.get(&ino).map_or(0, FileLocks::waiters)
    }

    /// Whether it holds nothing: no locks, no requests, and no memory for any.
    pub fn is_empty(&self) -> bool {
        self.state.lock().is_empty()
    }
}

//! Advisory locks: `flock` on open files and POSIX record locks on byte ranges.
//!
//! What lives here: [`LockTable`], which a front end keeps next to an engine if no kernel keeps one for it, as the
//! library does for the threads of a process. (On a mount, the kernel's own table serves.) Locks live in DRAM and end
//! with the process. The ranges of one file are in `ranges`.
//!
//! Invariants: `flock` locks and record locks do not see each other (as on Linux). Two owners never hold conflicting
//! locks at once. A file without locks or waiters takes no space. A request that fails has changed nothing (except for
//! a `flock` conversion that had time to wait).
//!
//! Contract: locks are keyed by inode number, so an owner keeps the file open or pinned for as long as it holds locks,
//! and releases them before it closes or unpins the file; otherwise the number could come to mean another file.
//!
//! One mutex guards the table. It is held for a few map operations, never while a request waits for a lock; reads and
//! writes of data do not take it. Which waiter gets a lock first after a release is unspecified.

mod ranges;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

pub use ranges::ByteRange;
use ranges::RangeSet;

use crate::{FsError, Ino, Result, SpaceOf};

/// Most record locks a table holds, so that no client can fill the memory with them.
pub const RECORD_LOCKS_MAX: usize = 1 << 20;

/// Who holds a lock: an open file (`flock`, open-file-description locks) or a process (`fcntl`). The caller chooses the
/// numbers, or takes them from [`LockTable::new_owner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

/// What a lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Others may hold shared locks too (`F_RDLCK`, `LOCK_SH`).
    Shared,
    /// Nobody else may hold any (`F_WRLCK`, `LOCK_EX`).
    Exclusive,
}

impl LockKind {
    fn conflicts(self, other: LockKind) -> bool {
        self == LockKind::Exclusive || other == LockKind::Exclusive
    }
}

/// What to do when a lock cannot be granted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Fail with `WouldBlock`.
    No,
    /// Wait until it can be.
    Forever,
    /// Wait this long, then fail with `WouldBlock`.
    AtMost(Duration),
}

/// A record lock, held or requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLock {
    /// Its owner.
    pub owner: LockOwner,
    /// The process that `F_GETLK` names; the table does not use it.
    pub pid: u32,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// The bytes it covers.
    pub range: ByteRange,
}

/// The advisory locks of one file system.
#[derive(Debug, Default)]
pub struct LockTable {
    state: Mutex<State>,
    next_owner: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<Ino, FileLocks>,
    waiting: Vec<Waiting>,
    next_ticket: u64,
    records: usize,
}

#[derive(Debug, Default)]
struct FileLocks {
    flocks: Vec<(LockOwner, LockKind)>,
    ranges: RangeSet,
    /// Notified whenever a lock here was released or became weaker.
    released: Arc<Condvar>,
    waiters: usize,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    ticket: u64,
    ino: Ino,
    request: Request,
    /// Its owner is gone: the request ends with `BadHandle`.
    cancelled: bool,
}

#[derive(Debug, Clone, Copy)]
enum Request {
    Flock(LockOwner, LockKind),
    Record(RecordLock),
}

impl Request {
    fn owner(&self) -> LockOwner {
        match self {
            Request::Flock(owner, _) => *owner,
            Request::Record(lock) => lock.owner,
        }
    }
}

impl FileLocks {
    fn flock_is_free(&self, owner: LockOwner, kind: LockKind) -> bool {
        self.flocks
            .iter()
            .all(|&(holder, held)| holder == owner || !kind.conflicts(held))
    }

    fn drop_flock(&mut self, owner: LockOwner) -> bool {
        let before = self.flocks.len();
        self.flocks.retain(|&(holder, _)| holder != owner);
        self.flocks.len() < before
    }
}

impl State {
    fn file(&mut self, ino: Ino) -> &mut FileLocks {
        self.files.entry(ino).or_default()
    }

    /// Forgets a file without locks and waiters.
    fn tidy(&mut self, ino: Ino) {
        if let Some(file) = self.files.get(&ino)
            && file.waiters == 0
            && file.flocks.is_empty()
            && file.ranges.is_empty()
        {
            self.files.remove(&ino);
        }
    }

    /// Grants `request` if nothing conflicts with it.
    fn try_grant(&mut self, ino: Ino, request: &Request) -> Result<bool> {
        match *request {
            Request::Flock(owner, kind) => {
                let file = self.file(ino);
                if !file.flock_is_free(owner, kind) {
                    return Ok(false);
                }
                let held = file.flocks.iter().position(|&(holder, _)| holder == owner);
                match held.map(|index| &mut file.flocks[index].1) {
                    Some(held) => {
                        // A reader may be waiting for a lock that became weaker.
                        let weaker = *held == LockKind::Exclusive && kind == LockKind::Shared;
                        *held = kind;
                        if weaker {
                            file.released.notify_all();
                        }
                    }
                    None => file.flocks.push((owner, kind)),
                }
                Ok(true)
            }
            Request::Record(lock) => {
                if self.file(ino).ranges.conflict(&lock).is_some() {
                    return Ok(false);
                }
                // One request adds at most two: itself, and what it splits off an older one.
                if self.records + 2 > RECORD_LOCKS_MAX {
                    return Err(FsError::NoSpace(SpaceOf::RecordLocks));
                }
                self.change_ranges(ino, |ranges| ranges.set(&lock));
                Ok(true)
            }
        }
    }

    /// Changes the ranges of a file and updates the count. `change` returns whether a lock was released or became
    /// weaker.
    fn change_ranges(&mut self, ino: Ino, change: impl FnOnce(&mut RangeSet) -> bool) {
        let file = self.files.entry(ino).or_default();
        let before = file.ranges.len();
        if change(&mut file.ranges) {
            file.released.notify_all();
        }
        self.records = self.records + file.ranges.len() - before;
        self.tidy(ino);
    }

    /// Whether waiting for `request` could never end: the owners it conflicts with are themselves waiting, along some
    /// chain, for its owner. Chains are followed through the locks held now, so no edge is ever out of date. Threads of
    /// one owner count as one: the owner counts as stuck if one of its threads is.
    fn would_deadlock(&self, ino: Ino, request: &RecordLock) -> bool {
        let mut seen = Vec::new();
        let mut pending = self.blockers(ino, request);
        while let Some(owner) = pending.pop() {
            if owner == request.owner {
                return true;
            }
            if seen.contains(&owner) {
                continue;
            }
            seen.push(owner);
            for waiting in &self.waiting {
                if let Request::Record(wanted) = &waiting.request
                    && wanted.owner == owner
                    && !waiting.cancelled
                {
                    pending.extend(self.blockers(waiting.ino, wanted));
                }
            }
        }
        false
    }

    fn blockers(&self, ino: Ino, request: &RecordLock) -> Vec<LockOwner> {
        self.files
            .get(&ino)
            .map_or_else(Vec::new, |file| file.ranges.blockers(request))
    }
}

impl LockTable {
    /// A table without locks.
    pub fn new() -> LockTable {
        LockTable::default()
    }

    /// An owner that was never returned before. The numbers count up from 1, so a front end uses either these or its
    /// own.
    pub fn new_owner(&self) -> LockOwner {
        LockOwner(self.next_owner.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Locks a whole file for `owner`, an open file, like `flock(2)`. A lock that it already has is converted. Blocks
    /// according to `wait`.
    ///
    /// A conversion that has to wait releases the old lock first, as Linux does; otherwise two readers that both want
    /// to write would wait for each other forever. A conversion that may not wait, and fails, keeps the old lock.
    ///
    /// # Errors
    /// `WouldBlock` when others hold it and the time is up; the old lock is gone then if there was time to wait.
    /// `BadHandle` when [`Self::release_owner`] was called meanwhile.
    pub fn flock(&self, ino: Ino, owner: LockOwner, kind: LockKind, wait: Wait) -> Result<()> {
        self.acquire(ino, Request::Flock(owner, kind), wait)
    }

    /// Releases the `flock` lock of `owner`, if it has one.
    pub fn funlock(&self, ino: Ino, owner: LockOwner) {
        let mut state = self.state.lock();
        if let Some(file) = state.files.get_mut(&ino) {
            if file.drop_flock(owner) {
                file.released.notify_all();
            }
            state.tidy(ino);
        }
    }

    /// Locks a range like `fcntl(F_SETLK)` and `F_SETLKW`: what the owner already holds there is replaced in one step,
    /// and neighbours of the same kind are merged. Blocks according to `wait`; meanwhile the owner keeps what it has.
    ///
    /// # Errors
    /// `WouldBlock` when others hold part of it and the time is up. `Deadlock` when those others wait for this owner.
    /// `NoSpace` with [`RECORD_LOCKS_MAX`] locks in the table. `BadHandle` when [`Self::release_owner`] was called
    /// meanwhile.
    pub fn lock(&self, ino: Ino, lock: &RecordLock, wait: Wait) -> Result<()> {
        self.acquire(ino, Request::Record(*lock), wait)
    }

    /// Unlocks a range for `owner`, which may split a lock in two. Never fails, whatever is locked there.
    pub fn unlock(&self, ino: Ino, owner: LockOwner, range: ByteRange) {
        let mut state = self.state.lock();
        if state.files.contains_key(&ino) {
            state.change_ranges(ino, |ranges| ranges.clear(owner, range));
        }
    }

    /// A lock that conflicts with `lock`, as `fcntl(F_GETLK)`; if there are several, one that starts first.
    pub fn conflict(&self, ino: Ino, lock: &RecordLock) -> Option<RecordLock> {
        self.state.lock().files.get(&ino)?.ranges.conflict(lock)
    }

    /// All record locks on a file, by owner and start.
    pub fn records(&self, ino: Ino) -> Vec<RecordLock> {
        let state = self.state.lock();
        state
            .files
            .get(&ino)
            .map_or_else(Vec::new, |file| file.ranges.iter().collect())
    }

    /// Number of requests that wait for locks on a file.
    pub fn waiters(&self, ino: Ino) -> usize {
        self.state.lock().files.get(&ino).map_or(0, |file| file.waiters)
    }

    /// Releases all locks of `owner` on one file: what closing any of a process's handles does to its record locks, and
    /// closing an open file to its `flock`.
    pub fn release_file(&self, ino: Ino, owner: LockOwner) {
        self.funlock(ino, owner);
        self.unlock(ino, owner, ByteRange::ALL);
    }

    /// Releases all locks of `owner`, and ends its waiting requests with `BadHandle`: its process or connection is
    /// gone. Visits every locked file.
    pub fn release_owner(&self, owner: LockOwner) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for waiting in &mut state.waiting {
            if waiting.request.owner() == owner {
                waiting.cancelled = true;
                if let Some(file) = state.files.get(&waiting.ino) {
                    file.released.notify_all();
                }
            }
        }
        let files: Vec<Ino> = state.files.keys().copied().collect();
        for ino in files {
            let file = state.file(ino);
            if file.drop_flock(owner) {
                file.released.notify_all();
            }
            state.change_ranges(ino, |ranges| ranges.clear(owner, ByteRange::ALL));
        }
    }

    fn acquire(&self, ino: Ino, request: Request, wait: Wait) -> Result<()> {
        let mut state = self.state.lock();
        let granted = state.try_grant(ino, &request);
        let result = match granted {
            Ok(false) if wait != Wait::No => wait_for(&mut state, ino, request, wait),
            Ok(false) => Err(FsError::WouldBlock),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        state.tidy(ino);
        result
    }
}

/// Waits until `request` is granted, its time is up, its owner is gone, or waiting would deadlock.
fn wait_for(state: &mut MutexGuard<'_, State>, ino: Ino, request: Request, wait: Wait) -> Result<()> {
    let deadline = match wait {
        // A time too long to represent means forever.
        Wait::AtMost(time) => Instant::now().checked_add(time),
        Wait::No | Wait::Forever => None,
    };
    if let Request::Record(lock) = &request
        && state.would_deadlock(ino, lock)
    {
        return Err(FsError::Deadlock);
    }
    let ticket = state.next_ticket;
    state.next_ticket += 1;
    state.waiting.push(Waiting {
        ticket,
        ino,
        request,
        cancelled: false,
    });
    let file = state.file(ino);
    file.waiters += 1;
    let released = Arc::clone(&file.released);
    if let Request::Flock(owner, _) = request
        && file.drop_flock(owner)
    {
        released.notify_all();
    }
    let result = loop {
        let timed_out = match deadline {
            Some(deadline) => released.wait_until(state, deadline).timed_out(),
            None => {
                released.wait(state);
                false
            }
        };
        let place = state.waiting.iter().position(|waiting| waiting.ticket == ticket);
        if place.is_none_or(|place| state.waiting[place].cancelled) {
            break Err(FsError::BadHandle);
        }
        match state.try_grant(ino, &request) {
            Ok(true) => break Ok(()),
            Ok(false) if timed_out => break Err(FsError::WouldBlock),
            Ok(false) => {}
            Err(error) => break Err(error),
        }
        // Another owner got the lock, and may be waiting for this one.
        if let Request::Record(lock) = &request
            && state.would_deadlock(ino, lock)
        {
            break Err(FsError::Deadlock);
        }
    };
    state.waiting.retain(|waiting| waiting.ticket != ticket);
    state.file(ino).waiters -= 1;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server runs for months; files without locks must not pile up in its table, however their locks ended.
    #[test]
    fn a_table_without_locks_holds_nothing() {
        let table = LockTable::new();
        let (a, b) = (table.new_owner(), table.new_owner());
        let record = |owner, len_bytes| RecordLock {
            owner,
            pid: 1,
            kind: LockKind::Exclusive,
            range: ByteRange::new(0, len_bytes).unwrap(),
        };
        table.flock(1, a, LockKind::Exclusive, Wait::No).unwrap();
        table.flock(1, b, LockKind::Shared, Wait::No).unwrap_err();
        table
            .flock(1, b, LockKind::Shared, Wait::AtMost(Duration::from_millis(1)))
            .unwrap_err();
        table.funlock(1, a);
        table.lock(2, &record(a, 100), Wait::No).unwrap();
        table.lock(2, &record(b, 1), Wait::No).unwrap_err();
        table.unlock(2, a, ByteRange::new(10, 10).unwrap());
        table.unlock(2, a, ByteRange::ALL);
        table.lock(3, &record(a, 0), Wait::No).unwrap();
        table.flock(3, a, LockKind::Shared, Wait::No).unwrap();
        table.release_file(3, a);
        table.lock(4, &record(b, 0), Wait::No).unwrap();
        table.flock(5, b, LockKind::Shared, Wait::No).unwrap();
        table.release_owner(b);
        table.unlock(6, a, ByteRange::ALL);
        assert_eq!(table.conflict(7, &record(a, 1)), None);
        let state = table.state.lock();
        assert!(state.files.is_empty(), "left: {:?}", state.files);
        assert!(state.waiting.is_empty());
        assert_eq!(state.records, 0);
    }
}

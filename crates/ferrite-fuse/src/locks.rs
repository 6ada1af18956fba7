//! Locks (`fcntl`, `flock`) that the engine keeps, for a mount whose files other mounts lock too.
//!
//! Contents: [`Locks`], a mount's record of its locks, and of the requests that wait for one.
//!
//! Invariants:
//! * A request that waits occupies no thread of the mount: its reply is in the completion.
//! * The kernel reports at each close whose locks end (`flush`), but not for open-file-description locks, whose owner
//!   is the open file. So the owners that locked through a handle are remembered until they flush it or it is released:
//!   by then every process has closed it, and the remaining owners are open files.
//!
//! A caller that waits must be killable. The kernel requests that by `INTERRUPT`, once for each request, when the
//! caller has a signal to handle ([`Locks::interrupt`]). It may arrive before the thread that read the request is here.
//!
//! A `flock` belongs to the handle: the kernel's number for its owner may be the next open file's before the handle is
//! released.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::locks::{ByteRange, LockDone, LockKind, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::{BadArgument, ClientId, Cred, Ctx, FileSystem, FsError, Ino, Result, Waits};

use crate::interrupts;
use crate::lock_order;

/// How many interrupts of unknown requests are remembered: more than there are threads between reading a request and
/// having it wait.
const EARLY_MAX: usize = 4096;
/// How long a server may take to learn that locks have ended.
const RELEASE_WITHIN: Duration = Duration::from_millis(500);
/// Last byte of a range without an end, in a request.
const LAST_BYTE: u64 = i64::MAX as u64;

/// A lock in the form of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wire {
    pub(crate) start: u64,
    /// The last byte.
    pub(crate) last: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    pub(crate) pid: u32,
}

impl Wire {
    fn range(&self) -> Result<ByteRange> {
        const WRONG: FsError = FsError::Invalid(BadArgument::LockRange);
        let len_bytes = match self.last {
            LAST_BYTE => 0,
            last => last.checked_sub(self.start).ok_or(WRONG)?.checked_add(1).ok_or(WRONG)?,
        };
        ByteRange::new(self.start, len_bytes)
    }

    /// The requested lock; `None` to unlock.
    fn record(&self, owner: u64) -> Result<Option<RecordLock>> {
        let kind = match self.kind {
            libc::F_RDLCK => LockKind::Shared,
            libc::F_WRLCK => LockKind::Exclusive,
            libc::F_UNLCK => return Ok(None),
            _ => return Err(FsError::Invalid(BadArgument::LockRange)),
        };
        Ok(Some(RecordLock {
            owner: LockOwner(owner),
            pid: self.pid,
            kind,
            range: self.range()?,
        }))
    }

    fn of(lock: &RecordLock) -> Wire {
        let (start, len_bytes) = (lock.range.start(), lock.range.len_bytes());
        Wire {
            start,
            last: match len_bytes {
                0 => LAST_BYTE,
                len_bytes => start + len_bytes - 1,
            },
            kind: match lock.kind {
                LockKind::Shared => libc::F_RDLCK,
                LockKind::Exclusive => libc::F_WRLCK,
            },
            pid: lock.pid,
        }
    }
}

/// The caller that requests a lock.
#[derive(Clone, Copy)]
pub(crate) struct Requester {
    /// Its thread.
    pub(crate) thread: u32,
    /// Its request, which no other ever has the number of.
    pub(crate) unique: u64,
    pub(crate) may_wait: bool,
    /// Whether it called `flock`.
    pub(crate) is_flock: bool,
}

/// The requests that wait, by number, and the latest interrupts of requests that do not.
#[derive(Default)]
struct Waiting {
    tickets: HashMap<u64, LockTicket>,
    early: VecDeque<u64>,
}

/// The locks of one mount.
pub(crate) struct Locks {
    fs: Arc<dyn FileSystem>,
    ctx: Ctx,
    /// The owners that have locked through a handle, and not flushed it since.
    owners: Mutex<lock_order::LockOwners, HashMap<u64, BTreeSet<u64>>>,
    /// Handles through which a caller has called `flock`.
    flocked: Mutex<lock_order::Flocked, HashSet<u64>>,
    waiting: Arc<Mutex<lock_order::Waiting, Waiting>>,
}

impl Locks {
    pub(crate) fn new(fs: Arc<dyn FileSystem>) -> Arc<Locks> {
        Arc::new(Locks {
            fs,
            ctx: Ctx::trusted(Cred::root()).of_client(ClientId::fresh()),
            owners: Mutex::default(),
            flocked: Mutex::default(),
            waiting: Arc::default(),
        })
    }

    /// A conflicting lock; `F_UNLCK` without a conflict.
    pub(crate) fn get(&self, ctx: &Ctx, ino: Ino, owner: u64, lock: Wire) -> Result<Wire> {
        let free = Wire {
            kind: libc::F_UNLCK,
            ..lock
        };
        let Some(wanted) = lock.record(owner)? else {
            return Ok(free);
        };
        let ctx = self.ctx.clone().waiting(ctx.waits);
        let found = self.fs.conflicting_lock(&ctx, ino, &wanted)?;
        Ok(found.map_or(free, |found| Wire::of(&found)))
    }

    /// Locks or unlocks through handle `fh`, for a caller that sleeps until the reply. `done` may come later if it is
    /// ready to wait.
    pub(crate) fn set(&self, (ino, fh): (Ino, u64), owner: u64, lock: Wire, requester: Requester, done: LockDone) {
        let wanted = match lock.record(owner) {
            Ok(wanted) => wanted,
            Err(error) => return done(Err(error)),
        };
        let Some(wanted) = wanted else {
            let ctx = self.ctx.clone().waiting(interrupts::waits(requester.thread));
            let unlocked = match requester.is_flock {
                true => self.fs.unlock(&ctx, ino, LockOwner(fh), Unlock::Flock),
                false => lock
                    .range()
                    .and_then(|range| self.fs.unlock(&ctx, ino, LockOwner(owner), Unlock::Range(range))),
            };
            return done(unlocked);
        };
        // Before it is granted, so that no release comes between.
        let request = match requester.is_flock {
            true => {
                self.flocked.lock().insert(fh);
                LockRequest::Flock(LockOwner(fh), wanted.kind)
            }
            false => {
                self.owners.lock().entry(fh).or_default().insert(owner);
                LockRequest::Record(wanted)
            }
        };
        let settled = Arc::new(AtomicBool::new(false));
        let (mark, waiting, unique) = (Arc::clone(&settled), Arc::clone(&self.waiting), requester.unique);
        let done: LockDone = Box::new(move |outcome| {
            let mut waiting = waiting.lock();
            mark.store(true, Ordering::Relaxed);
            waiting.tickets.remove(&unique);
            drop(waiting);
            done(outcome);
        });
        if let Some(ticket) = self.fs.lock(&self.ctx, ino, &request, requester.may_wait, done) {
            self.wait(unique, ticket, &settled);
        }
    }

    /// A request waits, unless it has been answered by now, or was interrupted before.
    fn wait(&self, unique: u64, ticket: LockTicket, settled: &AtomicBool) {
        let mut waiting = self.waiting.lock();
        if settled.load(Ordering::Relaxed) {
            return;
        }
        if !waiting.early.contains(&unique) {
            waiting.tickets.insert(unique, ticket);
            return;
        }
        drop(waiting);
        self.fs.cancel_lock(&self.ctx, ticket);
    }

    /// The caller of a request has a signal to handle. If the request waits for a lock, it is refused (`EINTR`).
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut waiting = self.waiting.lock();
        let Some(ticket) = waiting.tickets.remove(&unique) else {
            if waiting.early.len() == EARLY_MAX {
                waiting.early.pop_front();
            }
            return waiting.early.push_back(unique);
        };
        drop(waiting);
        self.fs.cancel_lock(&self.ctx, ticket);
    }

    /// An owner has closed one of its descriptors: all its locks on the file end, as POSIX requires. They end even if
    /// the caller gives up, or exits.
    pub(crate) fn flush(&self, ctx: &Ctx, ino: Ino, fh: u64, owner: u64) -> Result<()> {
        let mut owners = self.owners.lock();
        if let Some(of_handle) = owners.get_mut(&fh) {
            of_handle.remove(&owner);
            if of_handle.is_empty() {
                owners.remove(&fh);
            }
        }
        drop(owners);
        let ctx = self.ctx.clone().waiting(ctx.waits);
        self.fs
            .unlock(&ctx, ino, LockOwner(owner), Unlock::Range(ByteRange::ALL))
    }

    /// No process has the handle any more. Its file must still be open.
    pub(crate) fn release(&self, ino: Ino, fh: u64) {
        // No caller waits for it, and a server that is away learns of it later.
        let ctx = self.ctx.clone().waiting(Waits::within(RELEASE_WITHIN));
        if self.flocked.lock().remove(&fh) {
            let _ = self.fs.unlock(&ctx, ino, LockOwner(fh), Unlock::Flock);
        }
        let left = self.owners.lock().remove(&fh);
        for owner in left.into_iter().flatten() {
            // An engine out of reach has none to release.
            let _ = self
                .fs
                .unlock(&ctx, ino, LockOwner(owner), Unlock::Range(ByteRange::ALL));
        }
    }

    /// The mount has ended.
    pub(crate) fn end(&self) {
        let ctx = self.ctx.clone().waiting(Waits::within(RELEASE_WITHIN));
        self.fs.release_client(&ctx);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use ferrite_vfs::memfs::MemFs;
    use ferrite_vfs::{FileKind, NewNode, ROOT_INO, SYSTEM};

    use super::*;

    #[test]
    fn ranges_and_kinds_go_there_and_back() {
        for (start, last) in [(0, LAST_BYTE), (5, LAST_BYTE), (5, 5), (0, LAST_BYTE - 1)] {
            for kind in [libc::F_RDLCK, libc::F_WRLCK] {
                let pid = 9;
                let wire = Wire { start, last, kind, pid };
                let back = Wire::of(&wire.record(3).unwrap().unwrap());
                assert_eq!((back.start, back.last, back.kind, back.pid), (start, last, kind, pid));
            }
        }
        let wire = |start, last, kind| Wire {
            start,
            last,
            kind,
            pid: 1,
        };
        assert!(wire(5, 4, libc::F_RDLCK).record(1).is_err());
        assert!(wire(0, u64::MAX, libc::F_RDLCK).record(1).is_err());
        assert!(wire(0, 1, 77).record(1).is_err());
        assert_eq!(wire(0, 1, libc::F_UNLCK).record(1), Ok(None));
    }

    const FILE: NewNode = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };

    /// A file with a lock of another owner, and a request for one that waits. Returns what it waits with.
    fn waiter(locks: &Locks, ino: Ino, unique: u64) -> mpsc::Receiver<Result<()>> {
        let (send, outcome) = mpsc::channel();
        let requester = Requester {
            thread: 1,
            unique,
            may_wait: true,
            is_flock: false,
        };
        let wanted = Wire {
            start: 0,
            last: LAST_BYTE,
            kind: libc::F_WRLCK,
            pid: 1,
        };
        locks.set(
            (ino, unique),
            unique,
            wanted,
            requester,
            Box::new(move |done| send.send(done).unwrap()),
        );
        outcome
    }

    #[test]
    fn an_interrupt_ends_the_wait_also_if_it_comes_first() {
        let fs = Arc::new(MemFs::new());
        let ino = fs.mknod(SYSTEM, ROOT_INO, b"f", &FILE).unwrap().ino;
        let locks = Locks::new(fs);
        assert_eq!(waiter(&locks, ino, 1).try_recv(), Ok(Ok(())));
        let (second, third) = (waiter(&locks, ino, 2), waiter(&locks, ino, 3));
        assert!(second.try_recv().is_err() && third.try_recv().is_err());
        locks.interrupt(2);
        assert_eq!(second.try_recv(), Ok(Err(FsError::Interrupted)));
        assert!(third.try_recv().is_err());
        // One that has ended, one that is no lock, and one that is about to come.
        [2, 77, 4].into_iter().for_each(|unique| locks.interrupt(unique));
        assert_eq!(waiter(&locks, ino, 4).try_recv(), Ok(Err(FsError::Interrupted)));
        locks.release(ino, 1);
        assert_eq!(third.try_recv(), Ok(Ok(())));
        let waiting = locks.waiting.lock();
        assert_eq!((waiting.tickets.len(), waiting.early.len()), (0, 3));
    }

    #[test]
    fn early_interrupts_are_bounded() {
        let locks = Locks::new(Arc::new(MemFs::new()));
        (0..2 * EARLY_MAX as u64).for_each(|unique| locks.interrupt(unique));
        assert_eq!(locks.waiting.lock().early.len(), EARLY_MAX);
    }
}

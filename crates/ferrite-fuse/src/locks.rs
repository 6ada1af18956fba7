//! Locks (`fcntl`, `flock`) that the engine keeps, for a mount whose files other mounts lock too.
//!
//! Contents: [`Locks`], a mount's record of its locks; the watch over waiting callers.
//!
//! Invariants:
//! * A request that waits occupies no thread of the mount: its reply is in the completion.
//! * The kernel reports at each close whose locks end (`flush`), but not for open-file-description locks, whose owner
//!   is the open file. So the owners that locked through a handle are remembered until they flush it or it is released:
//!   by then every process has closed it, and the remaining owners are open files.
//!
//! A caller that waits must be killable. The kernel requests that by `INTERRUPT`, which fuser 0.18 does not pass on,
//! and from then on waits for the reply whatever happens. So the mount itself checks, as long as a request waits,
//! whether its thread has a signal to handle, and replies `EINTR` then.
//!
//! A `flock` comes as the same request as a record lock on the whole file, and the two must not see each other. A ring
//! has the flag that distinguishes them. fuser 0.18 drops it, but the caller sleeps in that system call ([`is_flock`]),
//! and the kernel never says beforehand which transport a request will take.
//!
//! A mount that may not inspect every process leaves `flock` to the kernel ([`sees_callers`]); one that may, refuses
//! requests that it cannot classify. A `flock` belongs to the handle: the kernel's number for its owner may be the next
//! open file's before the handle is released.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::locks::{ByteRange, LockDone, LockKind, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::{BadArgument, ClientId, Cred, Ctx, FileSystem, FsError, Ino, Result, Waits};

use crate::interrupts;
use crate::lock_order;

/// Time between two checks of the signals of waiting callers.
const WATCH_EVERY: Duration = Duration::from_millis(20);
/// How often, and for how long, to check whether a caller sleeps.
const ASLEEP_EVERY: Duration = Duration::from_micros(20);
const ASLEEP_WITHIN: Duration = Duration::from_secs(5);
/// How long a server may take to learn that locks have ended.
const RELEASE_WITHIN: Duration = Duration::from_millis(500);
/// The capability to inspect every process.
const CAP_SYS_PTRACE: u32 = 19;
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

    /// Whether it covers the whole file, as every `flock` does.
    fn is_whole(&self) -> bool {
        (self.start, self.last) == (0, LAST_BYTE)
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
    /// Its thread, which sleeps in the kernel until the reply.
    pub(crate) thread: u32,
    pub(crate) may_wait: bool,
    /// Whether it called `flock`, if the request shows that.
    pub(crate) is_flock: Option<bool>,
}

/// A waiting caller.
struct Waiter {
    /// Its thread, which sleeps in the kernel until the reply: the number stays its own.
    thread: u32,
    ticket: LockTicket,
    settled: Arc<AtomicBool>,
    /// The last check found a signal.
    signalled: bool,
}

#[derive(Default)]
struct Watch {
    waiters: Vec<Waiter>,
    /// Whether the watching thread runs.
    runs: bool,
}

/// The locks of one mount.
pub(crate) struct Locks {
    fs: Arc<dyn FileSystem>,
    ctx: Ctx,
    /// The owners that have locked through a handle, and not flushed it since.
    owners: Mutex<lock_order::LockOwners, HashMap<u64, BTreeSet<u64>>>,
    /// Handles through which a caller has called `flock`.
    flocked: Mutex<lock_order::Flocked, HashSet<u64>>,
    keeps_flock: bool,
    watch: Mutex<lock_order::Watch, Watch>,
}

impl Locks {
    pub(crate) fn new(fs: Arc<dyn FileSystem>) -> Arc<Locks> {
        Arc::new(Locks {
            fs,
            ctx: Ctx::trusted(Cred::root()).of_client(ClientId::fresh()),
            owners: Mutex::default(),
            flocked: Mutex::default(),
            keeps_flock: sees_callers(),
            watch: Mutex::default(),
        })
    }

    /// Whether the kernel should pass on `flock`, too.
    pub(crate) fn keep_flock(&self) -> bool {
        self.keeps_flock
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

    /// Locks or unlocks through handle `fh`, for a thread that sleeps until the reply. `done` may come later if it is
    /// ready to wait.
    pub(crate) fn set(
        self: &Arc<Self>,
        (ino, fh): (Ino, u64),
        owner: u64,
        lock: Wire,
        requester: Requester,
        done: LockDone,
    ) {
        let Requester { thread, may_wait, .. } = requester;
        let is_flock = match requester.is_flock {
            None if self.keeps_flock && lock.is_whole() => is_flock(thread),
            None => Some(false),
            response => response,
        };
        let request = match (lock.record(owner), is_flock) {
            (Ok(Some(wanted)), Some(true)) => LockRequest::Flock(LockOwner(fh), wanted.kind),
            (Ok(Some(wanted)), Some(false)) => LockRequest::Record(wanted),
            (Ok(Some(_)), None) => {
                let unseen = format!("/proc does not tell whether thread {thread} called flock or fcntl");
                return done(Err(FsError::Io(unseen)));
            }
            // A caller that is no longer visible gives back every lock it may have meant.
            (Ok(None), _) => {
                let ctx = self.ctx.clone().waiting(interrupts::waits(thread));
                let flock = || match is_flock {
                    Some(false) => Ok(()),
                    _ => self.fs.unlock(&ctx, ino, LockOwner(fh), Unlock::Flock),
                };
                let record = || match is_flock {
                    Some(true) => Ok(()),
                    _ => {
                        let unlock = |range| self.fs.unlock(&ctx, ino, LockOwner(owner), Unlock::Range(range));
                        lock.range().and_then(unlock)
                    }
                };
                return done(flock().and_then(|()| record()));
            }
            (Err(error), _) => return done(Err(error)),
        };
        // Before it is granted, so that no release comes between.
        match request {
            LockRequest::Flock(..) => drop(self.flocked.lock().insert(fh)),
            LockRequest::Record(_) => drop(self.owners.lock().entry(fh).or_default().insert(owner)),
        }
        let settled = Arc::new(AtomicBool::new(false));
        let mark = Arc::clone(&settled);
        let done: LockDone = Box::new(move |outcome| {
            mark.store(true, Ordering::Relaxed);
            done(outcome);
        });
        if let Some(ticket) = self.fs.lock(&self.ctx, ino, &request, may_wait, done) {
            self.watch(Waiter {
                thread,
                ticket,
                settled,
                signalled: false,
            });
        }
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

    fn watch(self: &Arc<Self>, waiter: Waiter) {
        let mut watch = self.watch.lock();
        watch.waiters.push(waiter);
        if watch.runs {
            return;
        }
        let locks = Arc::clone(self);
        let thread = std::thread::Builder::new().name("ferrite-waiters".into());
        // Without the thread they wait until they are granted, and the next waiting caller tries again.
        watch.runs = thread.spawn(move || while locks.look() {}).is_ok();
    }

    /// Ends the requests whose callers have a signal to handle. False when no caller waits any more.
    fn look(&self) -> bool {
        std::thread::sleep(WATCH_EVERY);
        let mut watch = self.watch.lock();
        watch.waiters.retain(|waiter| !waiter.settled.load(Ordering::Relaxed));
        if watch.waiters.is_empty() {
            watch.runs = false;
            return false;
        }
        let mut gone = Vec::new();
        for waiter in &mut watch.waiters {
            let signals = std::fs::read_to_string(format!("/proc/{}/status", waiter.thread)).unwrap_or_default();
            let there = pending(&signals);
            // Twice: a signal to the process may be for another thread, which takes it soon. An `EINTR` without a
            // signal would reach the program as an errno that no program knows.
            if there && waiter.signalled {
                gone.push(waiter.ticket);
            }
            waiter.signalled = there;
        }
        drop(watch);
        for ticket in gone {
            self.fs.cancel_lock(&self.ctx, ticket);
        }
        true
    }
}

/// Whether this process may see in which system call any process of this machine is: of other users, too, and those
/// that hide it. Otherwise some would be visible and others not, and their locks would not see each other.
fn sees_callers() -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let capabilities = read("/proc/self/status");
    let is_first_namespace = read("/proc/self/uid_map")
        .split_whitespace()
        .eq(["0", "0", "4294967295"]);
    // Yama's highest setting forbids it for all.
    let is_forbidden = read("/proc/sys/kernel/yama/ptrace_scope").trim() == "3";
    is_first_namespace && !is_forbidden && may_look(&capabilities)
}

fn may_look(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> CAP_SYS_PTRACE & 1 == 1)
}

/// Whether a thread that sleeps until the reply has called `flock`. `None` if that is not visible.
fn is_flock(thread: u32) -> Option<bool> {
    let began = Instant::now();
    while began.elapsed() < ASLEEP_WITHIN {
        match std::fs::read_to_string(format!("/proc/{thread}/syscall")) {
            // It has sent its request, and is about to sleep.
            Ok(text) if text.starts_with("running") => std::thread::sleep(ASLEEP_EVERY),
            Ok(text) => return calls_flock(&text),
            Err(_) => return None,
        }
    }
    None
}

/// Whether the system call in `/proc` is `flock`, of a program of any ABI that this machine runs. Only `flock` and
/// `fcntl` request locks, so their numbers on 32 and 64 bits cannot be confused.
fn calls_flock(text: &str) -> Option<bool> {
    const OF_32_BITS: i64 = 143;
    // x86-64 with pointers of 32 bits.
    const X32: i64 = 1 << 30;
    let number: i64 = text.split_whitespace().next()?.parse().ok()?;
    (number >= 0).then(|| [libc::SYS_flock, OF_32_BITS].contains(&(number & !X32)))
}

/// Whether a thread has a signal to handle, by its status in `/proc`. The kernel queues no ignored signal.
fn pending(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
    };
    match (mask("SigPnd:"), mask("ShdPnd:"), mask("SigBlk:")) {
        (Some(own), Some(shared), Some(blocked)) => (own | shared) & !blocked != 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_sleeping_flock_is_told_from_everything_else() {
        let path = std::env::temp_dir().join(format!("ferrite-flock-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        file.lock().unwrap();
        let other = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (send, thread) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32)
                .unwrap();
            other.lock()
        });
        let thread = thread.recv().unwrap();
        // It may sleep elsewhere on its way there.
        let start = std::time::Instant::now();
        while is_flock(thread) != Some(true) {
            assert!(start.elapsed() < Duration::from_secs(20), "it waits for its lock");
        }
        drop(file);
        waits.join().unwrap().unwrap();
        assert_eq!(is_flock(0), None, "nobody");
        assert_eq!([calls_flock("-1 0x7ffe 0x7f2b\n"), calls_flock("")], [None, None]);
        assert_eq!(calls_flock(&format!("{} 0x3 0x6\n", libc::SYS_fcntl)), Some(false));
    }

    #[test]
    fn only_who_may_look_at_all_looks() {
        assert!(may_look("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(may_look("CapEff:\t0000000000080000\n"));
        assert!(!may_look("CapEff:\t0000000000000000\n") && !may_look("CapPrm:\t000001ffffffffff\n"));
    }

    #[test]
    fn blocked_signals_are_not_to_be_handled() {
        let status =
            |own, shared, blocked| format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n");
        assert!(pending(&status("0000000000000100", "0", "0")));
        assert!(pending(&status("0", "0000000000000002", "0000000000000001")));
        assert!(!pending(&status("0", "0000000000000002", "0000000000000002")));
        assert!(!pending(&status("0", "0", "0")));
        assert!(!pending(""));
    }
}

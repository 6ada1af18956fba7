//! Advisory locks: `flock` on open files and POSIX record locks on byte ranges.
//!
//! Contents: the types of the lock calls of [`crate::FileSystem`]; [`LockTable`] (`table`), with which an engine
//! implements them; blocking waits, [`wait_for`] (`blocking`), for callers with a thread to park. Below the table are
//! its `state`, the locks of one `file`, its `ranges` with an index of `intervals`, and completions to call
//! (`settled`). Locks live in DRAM and end with the process.
//!
//! A request that has to wait parks no thread but leaves a completion: [`LockDone`]. It is called exactly once,
//! whatever happens, with no lock of the table held, on the thread whose call settled the request. It must not block
//! and must not panic. It may make lock calls; completions that those settle run after it has returned.
//!
//! Contract: locks are keyed by inode number, so an owner keeps the file open or pinned for as long as it holds locks
//! or waits for them, and releases them before it closes or unpins the file; otherwise the number could come to mean
//! another file.

mod blocking;
mod file;
mod intervals;
mod ranges;
mod settled;
mod state;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use blocking::wait_for;
pub use ranges::ByteRange;
pub use table::LockTable;

use crate::Result;

/// Most locks that a table holds, so that no client can fill the memory with them.
pub const RECORD_LOCKS_MAX: usize = 1 << 20;
/// Most locks on one file: the cost of a call depends on them.
pub const FILE_LOCKS_MAX: usize = 1 << 14;
/// Most waiting requests in a table.
pub const WAITING_MAX: usize = 1 << 16;
/// Most waiting requests on one file. Also bounds the cost of a release.
pub const FILE_WAITING_MAX: usize = 1 << 13;

/// The holder of a lock: an open file (`flock`, open-file-description locks) or a process (`fcntl`). Each client
/// assigns its own numbers: owners of two clients are never the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

impl LockOwner {
    /// An owner that nothing else in this process has. The numbers count up from 1, so a client uses either these or
    /// its own.
    pub fn fresh() -> LockOwner {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LockOwner(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The mode of a lock: which other locks it excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Others may hold shared locks too (`F_RDLCK`, `LOCK_SH`).
    Shared,
    /// No other owner may hold any (`F_WRLCK`, `LOCK_EX`).
    Exclusive,
}

impl LockKind {
    fn conflicts(self, other: LockKind) -> bool {
        self == LockKind::Exclusive || other == LockKind::Exclusive
    }
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

/// A requested lock, see [`crate::FileSystem::lock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockRequest {
    /// The whole file, for an open file, like `flock(2)`. A lock that the owner already has is converted.
    ///
    /// A conversion that has to wait releases the old lock first, as Linux does; otherwise two readers that both want
    /// to write would wait for each other forever. A conversion that may not wait, and fails, keeps the old lock.
    Flock(LockOwner, LockKind),
    /// A range, like `fcntl(F_SETLK)` and `F_SETLKW`: it replaces the owner's locks there in one step, and neighbours
    /// of the same kind are merged. While it waits, the owner keeps its locks.
    Record(RecordLock),
}

impl LockRequest {
    fn owner(&self) -> LockOwner {
        match self {
            LockRequest::Flock(owner, _) => *owner,
            LockRequest::Record(lock) => lock.owner,
        }
    }
}

/// The locks to release, see [`crate::FileSystem::unlock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlock {
    /// The `flock` lock.
    Flock,
    /// Record locks in a range, which may split one in two.
    Range(ByteRange),
    /// Both, entirely, as a close does.
    All,
}

/// The completion of a request, called exactly once with the outcome. See the rules in [`crate::locks`].
pub type LockDone = Box<dyn FnOnce(Result<()>) + Send>;

/// A waiting request, for [`crate::FileSystem::cancel_lock`]. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockTicket(pub u64);

/// The behaviour when a lock cannot be granted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Fail with `WouldBlock`.
    No,
    /// Wait until it can be.
    Forever,
    /// Wait this long, then fail with `WouldBlock`.
    AtMost(Duration),
}

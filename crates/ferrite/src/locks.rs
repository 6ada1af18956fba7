//! Advisory locks of [`File`]s: on whole files as `flock(2)`, and on ranges as open-file-description locks of
//! `fcntl(2)`.
//!
//! Contents: the blocking form of the engine's lock calls ([`ferrite_vfs::locks`]). The owner of a lock is an
//! open file, which is what clones of a [`File`] share; it releases its locks when it is closed.

use std::ops::{Bound, RangeBounds};

use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, LockRequest, RecordLock, Unlock, Wait};
use ferrite_vfs::{BadArgument, FsError};

use crate::error::Result;
use crate::file::{File, Open};

const LOCK: &str = "lock";
const LOCK_RANGE: &str = "lock a range of";

impl Open {
    fn owner(&self) -> LockOwner {
        *self.lock_owner.get_or_init(LockOwner::fresh)
    }

    fn acquire(&self, request: &LockRequest, wait: Wait) -> ferrite_vfs::Result<()> {
        self.fs.vfs.lock(self.file.ino(), request, wait)
    }

    /// Releases locks, if it ever had any.
    pub(crate) fn release(&self, what: Unlock) -> ferrite_vfs::Result<()> {
        match self.lock_owner.get() {
            Some(&owner) => self.fs.vfs.fs().unlock(self.ctx(), self.file.ino(), owner, what),
            None => Ok(()),
        }
    }

    fn record(&self, kind: LockKind, range: ByteRange) -> RecordLock {
        RecordLock {
            owner: self.owner(),
            pid: std::process::id(),
            kind,
            range,
        }
    }
}

/// The range in the table's form.
fn byte_range(range: impl RangeBounds<u64>) -> ferrite_vfs::Result<ByteRange> {
    const EMPTY: FsError = FsError::Invalid(BadArgument::EmptyLock);
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.checked_add(1).ok_or(EMPTY)?,
        Bound::Unbounded => 0,
    };
    let len_bytes = match range.end_bound() {
        Bound::Unbounded => return ByteRange::new(start, 0),
        Bound::Included(&last) => last.checked_sub(start).and_then(|len_bytes| len_bytes.checked_add(1)),
        Bound::Excluded(&end) => end.checked_sub(start),
    };
    // For a `ByteRange`, length 0 means everything from the start on.
    ByteRange::new(start, len_bytes.filter(|&len_bytes| len_bytes > 0).ok_or(EMPTY)?)
}

/// Locks are advisory: they only affect others that use locks. They hold between the open files of one engine,
/// whichever [`Fs`](crate::Fs) opened them, end when the file is closed, and are not stored in the pool. Locks on
/// ranges and locks on whole files do not conflict. A forked child can neither use nor release them.
impl File {
    /// Locks the file exclusively. Blocks while another open file has it locked. An existing lock is converted; if that
    /// has to wait, the old lock is released first.
    ///
    /// Two threads that wait for each other's locks on whole files deadlock.
    pub fn lock(&self) -> Result<()> {
        self.lock_with(LockKind::Exclusive, Wait::Forever)
    }

    /// As [`Self::lock`], but shared: others may hold shared locks at the same time.
    pub fn lock_shared(&self) -> Result<()> {
        self.lock_with(LockKind::Shared, Wait::Forever)
    }

    /// As [`Self::lock`], but never blocks; on failure an existing lock is kept.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if another open file has it locked.
    pub fn try_lock(&self) -> Result<()> {
        self.lock_with(LockKind::Exclusive, Wait::No)
    }

    /// As [`Self::lock_shared`], but never blocks; on failure an existing lock is kept.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if another open file has it locked exclusively.
    pub fn try_lock_shared(&self) -> Result<()> {
        self.lock_with(LockKind::Shared, Wait::No)
    }

    /// Locks the whole file; `wait` says how long to wait for it.
    ///
    /// # Errors
    /// `EWOULDBLOCK` when the time is up. An existing lock is then lost, unless `wait` is [`Wait::No`]. Of a server's
    /// files, `EACCES` for a shared lock without the right to read the file, or an exclusive one without the right to
    /// write it, and `EROFS` for an exclusive one on a read-only export.
    pub fn lock_with(&self, kind: LockKind, wait: Wait) -> Result<()> {
        self.run(LOCK, |open| open.acquire(&LockRequest::Flock(open.owner(), kind), wait))
    }

    /// Releases the lock on the whole file, if it has one.
    pub fn unlock(&self) -> Result<()> {
        self.run("unlock", |open| open.release(Unlock::Flock))
    }

    /// Locks a range of bytes, which may be past the end of the file: `0..8`, or `..` for all bytes, however far the
    /// file grows. Existing locks of this open file in the range are replaced in the same step. Blocks as `wait` says.
    ///
    /// # Errors
    /// `EBADF` for a shared lock on a file that is not open for reading, or an exclusive one on one not open for
    /// writing. `EWOULDBLOCK` when others have part of it locked and the time is up. `EDEADLK` when those others wait
    /// for this open file. `EINVAL` for an empty range. `ENOSPC` with more locks than the table holds
    /// ([`RECORD_LOCKS_MAX`](ferrite_vfs::locks::RECORD_LOCKS_MAX)).
    pub fn lock_range(&self, range: impl RangeBounds<u64>, kind: LockKind, wait: Wait) -> Result<()> {
        self.run(LOCK_RANGE, |open| {
            let allowed = match kind {
                LockKind::Shared => open.readable,
                LockKind::Exclusive => open.writable,
            };
            if !allowed {
                return Err(FsError::BadHandle);
            }
            let lock = open.record(kind, byte_range(range)?);
            open.acquire(&LockRequest::Record(lock), wait)
        })
    }

    /// Releases the locks that this open file has on a range.
    ///
    /// # Errors
    /// `EINVAL` for an empty range.
    pub fn unlock_range(&self, range: impl RangeBounds<u64>) -> Result<()> {
        self.run("unlock a range of", |open| {
            open.release(Unlock::Range(byte_range(range)?))
        })
    }

    /// A lock of another open file that conflicts with one of this kind on this range; of several, the one that starts
    /// first.
    ///
    /// # Errors
    /// `EINVAL` for an empty range.
    pub fn conflicting_lock(&self, range: impl RangeBounds<u64>, kind: LockKind) -> Result<Option<RecordLock>> {
        self.run("get the locks of", |open| {
            let lock = open.record(kind, byte_range(range)?);
            open.fs.vfs.fs().conflicting_lock(open.ctx(), open.file.ino(), &lock)
        })
    }
}

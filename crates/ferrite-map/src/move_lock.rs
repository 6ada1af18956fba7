//! The move lock of a structure that moves entries: transactions hold it shared, a move exclusively
//! (docs/crash-consistency.md, "entries that move").
//!
//! Contents: [`MoveLock`]. The structure owns it, the engine takes it.
//!
//! A record names words by their places. If an entry moved between a transaction's lookup and its commit, the record
//! would hit another entry. So transactions hold the move lock shared until their words are set, and a move, which is a
//! record like any other, holds it exclusively. Lookups hold nothing: they read the count of moves before and after,
//! and retry if it changed.
//!
//! Invariant: the count of moves is odd exactly while the move lock is held exclusively.

use crate::sync::{AtomicU64, Ordering, ReadGuard, SharedLock, WriteGuard, fence, spin_loop};

/// Tries of a lookup before it waits for the move in progress.
const TRIES: usize = 100;

/// See the module's head. Shared by many threads without a line that all of them write.
#[derive(Debug, Default)]
#[repr(C)]
pub struct MoveLock {
    /// First, so that a structure can place it next to the words that its lookups read.
    moves: AtomicU64,
    lock: SharedLock<()>,
}

/// The shared lock of a transaction.
#[derive(Debug)]
pub struct SharedMoveLock<'g> {
    _guard: ReadGuard<'g, ()>,
}

/// The right to move.
#[derive(Debug)]
pub struct Moving<'g> {
    move_lock: &'g MoveLock,
    _guard: WriteGuard<'g, ()>,
}

impl MoveLock {
    /// Waits for a move in progress. One thread must not take it twice: a move may wait in between.
    pub fn lock_shared(&self) -> SharedMoveLock<'_> {
        let guard = self.lock.read();
        SharedMoveLock {
            // A panic elsewhere leaves nothing half done under the lock: words change only by records.
            _guard: guard.unwrap_or_else(std::sync::PoisonError::into_inner),
        }
    }

    /// The shared lock if no move is in progress or waiting. Never waits, so a thread that already has it may call it.
    pub fn try_lock_shared(&self) -> Option<SharedMoveLock<'_>> {
        use std::sync::TryLockError;
        let guard = match self.lock.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(SharedMoveLock { _guard: guard })
    }

    /// Waits for all transactions in progress, and keeps others out until the result is dropped.
    pub fn lock_exclusive(&self) -> Moving<'_> {
        let guard = self.lock.write();
        self.moves.fetch_add(1, Ordering::AcqRel);
        Moving {
            move_lock: self,
            _guard: guard.unwrap_or_else(std::sync::PoisonError::into_inner),
        }
    }

    /// Twice the number of moves so far, plus one while a move is in progress.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// The result of `look` while nothing moves. `look` may be called several times, and may see entries in mid-move.
    #[inline]
    pub fn steady<T>(&self, look: impl FnMut() -> T) -> T {
        self.steady_for(TRIES, look)
    }

    /// The same with a limit of tries; the last one makes moves wait. At least one try is made without waiting, so a
    /// thread that holds the lock never waits here.
    #[inline]
    pub fn steady_for<T>(&self, tries: usize, mut look: impl FnMut() -> T) -> T {
        for _ in 0..tries {
            let before = self.moves.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let found = look();
                fence(Ordering::Acquire);
                if self.moves.load(Ordering::Relaxed) == before {
                    return found;
                }
            }
            spin_loop();
        }
        let _shared = self.lock_shared();
        look()
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.move_lock.moves.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Lookups never see a move half done, and end while moves continue.
    #[test]
    fn a_steady_look_sees_no_move_half_done() {
        let move_lock = MoveLock::default();
        let (left, right) = (AtomicU64::new(1), AtomicU64::new(0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let moving = move_lock.lock_exclusive();
                    let value = left.swap(0, Ordering::Relaxed);
                    left.store(right.swap(value, Ordering::Relaxed), Ordering::Relaxed);
                    drop(moving);
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let sum = move_lock.steady(|| left.load(Ordering::Relaxed) + right.load(Ordering::Relaxed));
                assert_eq!(sum, 1);
            }
        });
    }

    /// A thread that only tries is refused while a move is in progress, and delays no other thread.
    #[test]
    fn a_try_never_waits() {
        let move_lock = MoveLock::default();
        let moving = move_lock.lock_exclusive();
        assert!(move_lock.try_lock_shared().is_none());
        drop(moving);
        let _shared = move_lock.lock_shared();
        assert!(move_lock.try_lock_shared().is_some());
    }
}

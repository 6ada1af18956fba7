//! The gate of a structure that moves entries: transactions pass it together, a move has it alone
//! (docs/crash-consistency.md, "entries that move").
//!
//! What lives here: [`Gate`]. The structure owns it, the engine takes it.
//!
//! A record names words by where they are. If an entry moved between a transaction's look at it and its commit, the
//! record would hit a stranger; so transactions hold the gate shared until their words are set, and a move, which is a
//! record like any other, holds it exclusively. Lookups hold nothing: they look at the count of moves before and after,
//! and look again if it changed.
//!
//! Invariant: the count of moves is odd exactly while somebody has the gate alone.

use crate::sync::{AtomicU64, Ordering, ReadGuard, SharedLock, WriteGuard, fence, spin_loop};

/// Tries of a lookup before it waits for the move in progress.
const TRIES: usize = 100;

/// See the module's head. Shared by many threads without a line that all of them write.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Gate {
    /// First, so that a structure can have it beside what its lookups read.
    moves: AtomicU64,
    lock: SharedLock<()>,
}

/// Passage of a transaction.
#[derive(Debug)]
pub struct Passage<'g> {
    _guard: ReadGuard<'g, ()>,
}

/// The right to move.
#[derive(Debug)]
pub struct Moving<'g> {
    gate: &'g Gate,
    _guard: WriteGuard<'g, ()>,
}

impl Gate {
    /// Waits for a move in progress. Not to be taken twice by one thread: a move may wait in between.
    pub fn pass(&self) -> Passage<'_> {
        let guard = self.lock.read();
        Passage {
            // A panic elsewhere leaves nothing half done behind the gate: words change only by records.
            _guard: guard.unwrap_or_else(std::sync::PoisonError::into_inner),
        }
    }

    /// A passage if nobody moves or waits to. Never waits, so it does no harm to a thread that has a passage already.
    pub fn try_pass(&self) -> Option<Passage<'_>> {
        use std::sync::TryLockError;
        let guard = match self.lock.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Passage { _guard: guard })
    }

    /// Waits for all transactions under way, and keeps others out until it is dropped.
    pub fn close(&self) -> Moving<'_> {
        let guard = self.lock.write();
        self.moves.fetch_add(1, Ordering::AcqRel);
        Moving {
            gate: self,
            _guard: guard.unwrap_or_else(std::sync::PoisonError::into_inner),
        }
    }

    /// Moves so far, twice, and one more while one is in progress.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// What `look` finds while nothing moves. It may be called several times, and meet entries on their way.
    #[inline]
    pub fn steady<T>(&self, look: impl FnMut() -> T) -> T {
        self.steady_for(TRIES, look)
    }

    /// The same with a number of tries, after which moves wait for the last one. At least one try is made without
    /// waiting, so whoever has passed already never waits here.
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
        let _passage = self.pass();
        look()
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.gate.moves.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Lookups never see a move half done, and end while moves go on.
    #[test]
    fn a_steady_look_sees_no_move_half_done() {
        let gate = Gate::default();
        let (left, right) = (AtomicU64::new(1), AtomicU64::new(0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let moving = gate.close();
                    let value = left.swap(0, Ordering::Relaxed);
                    left.store(right.swap(value, Ordering::Relaxed), Ordering::Relaxed);
                    drop(moving);
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let sum = gate.steady(|| left.load(Ordering::Relaxed) + right.load(Ordering::Relaxed));
                assert_eq!(sum, 1);
            }
        });
    }

    /// Who only tries is refused while somebody moves, and hinders nobody's passage.
    #[test]
    fn a_try_never_waits() {
        let gate = Gate::default();
        let moving = gate.close();
        assert!(gate.try_pass().is_none());
        drop(moving);
        let _passage = gate.pass();
        assert!(gate.try_pass().is_some());
    }
}

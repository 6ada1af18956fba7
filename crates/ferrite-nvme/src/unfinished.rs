//! The inodes of a clone that is being made: nodes that are in the store, and that no thread may use yet, because they
//! change there without an entry in the table.
//!
//! Invariant: while a clone is made, no other inodes are, so all from its first number on belong to it.

use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_vfs::{FsError, Ino, Result};

/// See the head of this module.
pub(crate) struct Unfinished {
    /// Odd while a clone is made.
    turns: AtomicU64,
    /// Its first number.
    from: AtomicU64,
}

/// A clone is being made, until this is dropped.
pub(crate) struct Making<'u>(&'u Unfinished);

impl Unfinished {
    pub(crate) fn new() -> Unfinished {
        Unfinished {
            turns: AtomicU64::new(0),
            from: AtomicU64::new(0),
        }
    }

    /// Begins to make a clone whose numbers begin here; one at a time.
    pub(crate) fn begin(&self, from: Ino) -> Making<'_> {
        self.from.store(from, Ordering::Release);
        self.turns.fetch_add(1, Ordering::AcqRel);
        Making(self)
    }

    /// Reads a node that is not one of an unfinished clone.
    ///
    /// # Errors
    /// `Stale` if it is; those of `read`.
    pub(crate) fn read<T>(&self, ino: Ino, mut read: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            let turn = self.turns.load(Ordering::Acquire);
            if turn % 2 == 1 && ino >= self.from.load(Ordering::Acquire) {
                return Err(FsError::Stale);
            }
            let found = read();
            // A clone that was made meanwhile may have had it in an earlier state.
            if self.turns.load(Ordering::Acquire) == turn {
                return found;
            }
        }
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.turns.fetch_add(1, Ordering::AcqRel);
    }
}

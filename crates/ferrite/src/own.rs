//! [`Own`]: what only the process that opened a pool may use, or drop.
//!
//! Invariant: after a `fork` nothing of a pool is touched through the child's handles. It has the mapping, and nothing
//! of what makes using it safe: the locks are copies, the threads are gone, and so what is dropped there must not even
//! be closed.

use std::io;

use ferrite_pm::fork::Origin;

/// A handle, or handles, of a pool. `T` is cheap to clone, and its clones keep alive what it stands for.
pub(crate) struct Own<T: Clone> {
    value: T,
    /// `None` for what a child may have, since it gets a copy of its own.
    origin: Option<Origin>,
}

/// What a forked child is told.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pool was opened before this process was forked, and belongs to the process that opened it; leave it to that one, open it after \
     the fork, or share it through a mount"
)]
pub(crate) struct Forked;

impl From<Forked> for io::Error {
    fn from(forked: Forked) -> Self {
        io::Error::new(io::ErrorKind::ResourceBusy, forked)
    }
}

impl<T: Clone> Own<T> {
    /// What belongs to the process `origin`, or to everybody.
    pub(crate) fn new(value: T, origin: Option<Origin>) -> Own<T> {
        Own { value, origin }
    }

    fn is_ours(&self) -> bool {
        self.origin.is_none_or(Origin::is_here)
    }

    /// The handle, if this is the process that may use it.
    pub(crate) fn get(&self) -> Result<&T, Forked> {
        if self.is_ours() { Ok(&self.value) } else { Err(Forked) }
    }

    /// Another handle of the same owner, made of this one. `f` must not use the pool.
    pub(crate) fn map<U: Clone>(&self, f: impl FnOnce(&T) -> U) -> Own<U> {
        Own::new(f(&self.value), self.origin)
    }
}

impl<T: Clone> Clone for Own<T> {
    fn clone(&self) -> Self {
        self.map(T::clone)
    }
}

impl<T: Clone> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            // One clone more that nobody drops: the last one is never dropped, so nothing is closed or unpinned.
            std::mem::forget(self.value.clone());
        }
    }
}

//! [`Own`]: what only the process that opened a pool may use, or drop.
//!
//! Invariant: after a `fork` nothing of a pool is touched through the child's handles. It has the mapping, and nothing
//! of what makes using it safe: the locks are copies, the threads are gone, and so what is dropped there must not even
//! be closed. Every handle of this crate is an `Own`, or holds one and nothing else of the pool.

use ferrite_pm::fork::Origin;

/// A handle, or handles, of a pool. `T` is cheap to clone, and its clones keep alive what it stands for.
pub(crate) struct Own<T: Clone> {
    value: T,
    /// `None` for what a child may have, since it gets a copy of its own.
    origin: Option<Origin>,
}

/// This process is a child of the one that may use it.
#[derive(Debug)]
pub(crate) struct Forked;

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

    /// The handle, whichever process this is, to read what is plain memory in it, such as a path. The caller must not
    /// use the pool, and must not drop a clone of what it gets.
    pub(crate) fn peek(&self) -> &T {
        &self.value
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

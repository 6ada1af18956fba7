//! [`ForkGuard`]: handles that only the process that opened a pool may use or drop.
//!
//! Invariant: after a `fork` the child does not touch the pool through its handles. It has the mapping, but its locks
//! are copies and the threads are gone, so using the pool, or even closing it, would be unsafe. Every handle of this
//! crate is a `ForkGuard`, or holds one and nothing else of the pool.

use ferrite_pm::fork::Origin;

/// One or more handles of a pool. `T` is cheap to clone, and its clones keep the underlying object alive.
pub(crate) struct ForkGuard<T: Clone> {
    value: T,
    /// `None` for memory that a child may use, because it gets a separate copy.
    origin: Option<Origin>,
}

/// This process is a forked child, which may not use the handle.
#[derive(Debug)]
pub(crate) struct Forked;

impl<T: Clone> ForkGuard<T> {
    /// A handle that belongs to the process `origin`, or to any process.
    pub(crate) fn new(value: T, origin: Option<Origin>) -> ForkGuard<T> {
        ForkGuard { value, origin }
    }

    fn is_ours(&self) -> bool {
        self.origin.is_none_or(Origin::is_here)
    }

    /// The handle, if this process may use it.
    pub(crate) fn get(&self) -> Result<&T, Forked> {
        if self.is_ours() { Ok(&self.value) } else { Err(Forked) }
    }

    /// The handle in any process, to read plain memory in it, such as a path. The caller must not use the pool, and
    /// must not drop a clone of the result.
    pub(crate) fn peek(&self) -> &T {
        &self.value
    }

    /// Another handle with the same owner, derived from this one. `f` must not use the pool.
    pub(crate) fn map<U: Clone>(&self, f: impl FnOnce(&T) -> U) -> ForkGuard<U> {
        ForkGuard::new(f(&self.value), self.origin)
    }
}

impl<T: Clone> Clone for ForkGuard<T> {
    fn clone(&self) -> Self {
        self.map(T::clone)
    }
}

impl<T: Clone> Drop for ForkGuard<T> {
    fn drop(&mut self) {
        if !self.is_ours() {
            // One more clone, which is leaked: so the last one is never dropped, and nothing is closed or unpinned.
            std::mem::forget(self.value.clone());
        }
    }
}

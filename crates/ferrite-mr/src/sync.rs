//! Locks and atomics of the code under model checking: the real ones or, with the feature `shuttle`, those of a
//! scheduler that tries interleavings.
//!
//! Contents: names. [`crate::file`], [`crate::faults`] and [`crate::appends`] take them from here, so that the
//! models in `models.rs` run the same code as the server. The feature is for these models alone.
//!
//! No lock here is poisoned for good: the protected state is consistent between any two statements.

use std::sync::PoisonError;

pub(crate) use std::sync::atomic::Ordering;

#[cfg(not(feature = "shuttle"))]
pub(crate) use self::machine::*;
#[cfg(feature = "shuttle")]
pub(crate) use self::model::*;

#[cfg(not(feature = "shuttle"))]
mod machine {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

    pub(crate) use crossbeam_utils::sync::{
        ShardedLock as SharedLock, ShardedLockReadGuard as ReadGuard, ShardedLockWriteGuard as WriteGuard,
    };
}

#[cfg(feature = "shuttle")]
mod model {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64};
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use shuttle::sync::{
        RwLock as SharedLock, RwLockReadGuard as ReadGuard, RwLockWriteGuard as WriteGuard,
    };
}

/// Takes a lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock shared.
pub(crate) fn shared<T>(lock: &SharedLock<T>) -> ReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock exclusively.
pub(crate) fn alone<T>(lock: &SharedLock<T>) -> WriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

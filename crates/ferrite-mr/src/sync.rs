//! Locks and atomics of the code under model checking: the real ones or, with the feature `shuttle`, those of a
//! scheduler that tries interleavings.
//!
//! Contents: names. The modules take them from here, so that the models in `models.rs` run the same code as the
//! server. The feature is for these models alone.
//!
//! Each lock has a rank of [`crate::lock_order`]. The scheduler runs all of its threads on one, so it checks none.
//!
//! No lock here is poisoned for good: the protected state is consistent between any two statements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use ferrite_checks::ranked::Rank;

pub(crate) use std::sync::atomic::Ordering;

#[cfg(not(feature = "shuttle"))]
pub(crate) use self::machine::{AtomicBool, AtomicU64, Condvar};
#[cfg(feature = "shuttle")]
pub(crate) use self::model::{AtomicBool, AtomicU64, Condvar};

#[cfg(not(feature = "shuttle"))]
use self::machine as used;
#[cfg(feature = "shuttle")]
use self::model as used;

#[cfg(not(feature = "shuttle"))]
mod machine {
    pub(super) use std::sync::{Mutex, MutexGuard};

    pub(crate) use std::sync::Condvar;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

    pub(super) use crossbeam_utils::sync::{
        ShardedLock as SharedLock, ShardedLockReadGuard as ReadGuard, ShardedLockWriteGuard as WriteGuard,
    };
    pub(super) use ferrite_checks::ranked::held::Held;

    pub(super) fn held<R: ferrite_checks::ranked::Rank>() -> Held {
        Held::wait::<R>(None)
    }
}

#[cfg(feature = "shuttle")]
mod model {
    pub(super) use shuttle::sync::{Mutex, MutexGuard};

    pub(crate) use shuttle::sync::Condvar;
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64};

    pub(super) use shuttle::sync::{
        RwLock as SharedLock, RwLockReadGuard as ReadGuard, RwLockWriteGuard as WriteGuard,
    };

    pub(super) struct Held;

    pub(super) fn held<R>() -> Held {
        Held
    }
}

/// An exclusive lock of rank `R`.
pub(crate) struct Mutex<R, T> {
    rank: PhantomData<fn() -> R>,
    inner: used::Mutex<T>,
}

impl<R, T> Mutex<R, T> {
    /// An unlocked one.
    pub(crate) fn new(value: T) -> Self {
        Mutex {
            rank: PhantomData,
            inner: used::Mutex::new(value),
        }
    }
}

impl<R, T: Default> Default for Mutex<R, T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<R, T: fmt::Debug> fmt::Debug for Mutex<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A lock of rank `R` that is mostly shared.
pub(crate) struct SharedLock<R, T> {
    rank: PhantomData<fn() -> R>,
    inner: used::SharedLock<T>,
}

impl<R, T> SharedLock<R, T> {
    /// An unlocked one.
    pub(crate) fn new(value: T) -> Self {
        SharedLock {
            rank: PhantomData,
            inner: used::SharedLock::new(value),
        }
    }
}

/// A lock that is held; dropping it unlocks.
pub(crate) struct Guarded<G> {
    inner: G,
    _held: used::Held,
}

/// A [`Mutex`] that is held.
pub(crate) type MutexGuard<'a, T> = Guarded<used::MutexGuard<'a, T>>;
/// A [`SharedLock`] that is held, with others.
pub(crate) type ReadGuard<'a, T> = Guarded<used::ReadGuard<'a, T>>;
/// A [`SharedLock`] that is held alone.
pub(crate) type WriteGuard<'a, T> = Guarded<used::WriteGuard<'a, T>>;

impl<G: Deref> Deref for Guarded<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guarded<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

/// Takes a lock.
pub(crate) fn lock<R: Rank, T>(mutex: &Mutex<R, T>) -> MutexGuard<'_, T> {
    let _held = used::held::<R>();
    let inner = mutex.inner.lock().unwrap_or_else(PoisonError::into_inner);
    Guarded { inner, _held }
}

/// Waits for a notification.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    let Guarded { inner, _held } = guard;
    let inner = condvar.wait(inner).unwrap_or_else(PoisonError::into_inner);
    Guarded { inner, _held }
}

/// Takes a lock shared.
pub(crate) fn shared<R: Rank, T>(lock: &SharedLock<R, T>) -> ReadGuard<'_, T> {
    let _held = used::held::<R>();
    let inner = lock.inner.read().unwrap_or_else(PoisonError::into_inner);
    Guarded { inner, _held }
}

/// Takes a lock exclusively.
pub(crate) fn alone<R: Rank, T>(lock: &SharedLock<R, T>) -> WriteGuard<'_, T> {
    let _held = used::held::<R>();
    let inner = lock.inner.write().unwrap_or_else(PoisonError::into_inner);
    Guarded { inner, _held }
}

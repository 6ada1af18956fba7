//! Exclusive locks with ranks.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::Rank;
use super::held::Held;
use crate::condvar::Unlock;

/// A `parking_lot::Mutex` of rank `R`.
pub struct Mutex<R, T: ?Sized> {
    _rank: PhantomData<fn() -> R>,
    inner: parking_lot::Mutex<T>,
}

/// The lock; dropping it unlocks.
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    inner: parking_lot::MutexGuard<'a, T>,
    _held: Held,
}

impl<R: Rank, T> Mutex<R, T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Mutex {
            _rank: PhantomData,
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// The value, of a lock that nobody shares any more.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<R: Rank, T: ?Sized> Mutex<R, T> {
    /// Waits for the lock. Panics in debug builds if the thread holds one that comes later.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let _held = Held::wait::<R>(None);
        let inner = self.inner.lock();
        MutexGuard { inner, _held }
    }

    /// The same for one of several locks of this rank, which a thread takes in ascending order of `key`.
    #[inline]
    #[track_caller]
    pub fn lock_ordered(&self, key: u64) -> MutexGuard<'_, T> {
        let _held = Held::wait::<R>(Some(key));
        let inner = self.inner.lock();
        MutexGuard { inner, _held }
    }

    /// The lock, if no thread has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        let _held = Held::tried::<R>(None);
        Some(MutexGuard { inner, _held })
    }

    /// Waits for the lock, for `time` at most. Panics in debug builds as [`Self::lock`].
    #[inline]
    #[track_caller]
    pub fn try_lock_for(&self, time: Duration) -> Option<MutexGuard<'_, T>> {
        let _held = Held::wait::<R>(None);
        let inner = self.inner.try_lock_for(time)?;
        Some(MutexGuard { inner, _held })
    }

    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<R: Rank, T: Default> Default for Mutex<R, T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<R, T: ?Sized + fmt::Debug> fmt::Debug for Mutex<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Unlocks, and hands the lock to the thread that has waited longest.
    pub fn unlock_fair(this: Self) {
        parking_lot::MutexGuard::unlock_fair(this.inner);
    }
}

/// The lock keeps its place among the thread's locks meanwhile.
impl<T: ?Sized> Unlock for MutexGuard<'_, T> {
    fn unlocked<R>(&mut self, act: impl FnOnce() -> R) -> R {
        self.inner.unlocked(act)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

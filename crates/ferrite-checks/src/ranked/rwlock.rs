//! Shared and exclusive locks with ranks.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{ArcRwLockReadGuard, RawRwLock};

use super::Rank;
use super::held::Held;

/// A `parking_lot::RwLock` of rank `R`.
pub struct RwLock<R, T: ?Sized> {
    _rank: PhantomData<fn() -> R>,
    inner: parking_lot::RwLock<T>,
}

impl<R: Rank, T> RwLock<R, T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        RwLock {
            _rank: PhantomData,
            inner: parking_lot::RwLock::new(value),
        }
    }
}

impl<R: Rank, T: ?Sized> RwLock<R, T> {
    /// Waits for the shared lock. Panics in debug builds if the thread holds one that comes later; also this one, even
    /// shared: a writer may be waiting between the two.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let _held = Held::wait::<R>(None);
        let inner = self.inner.read();
        RwLockReadGuard { inner, _held }
    }

    /// The same for one of several locks of this rank, which a thread takes in ascending order of `key`.
    #[inline]
    #[track_caller]
    pub fn read_ordered(&self, key: u64) -> RwLockReadGuard<'_, T> {
        let _held = Held::wait::<R>(Some(key));
        let inner = self.inner.read();
        RwLockReadGuard { inner, _held }
    }

    /// The shared lock, if no thread has the exclusive one or waits for it. `key` as in [`Self::read_ordered`].
    #[inline]
    pub fn try_read(&self, key: Option<u64>) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        let _held = Held::tried::<R>(key);
        Some(RwLockReadGuard { inner, _held })
    }

    /// Waits for the exclusive lock. Panics in debug builds if the thread holds one that comes later.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let _held = Held::wait::<R>(None);
        let inner = self.inner.write();
        RwLockWriteGuard { inner, _held }
    }

    /// The same for one of several locks of this rank, which a thread takes in ascending order of `key`.
    #[inline]
    #[track_caller]
    pub fn write_ordered(&self, key: u64) -> RwLockWriteGuard<'_, T> {
        let _held = Held::wait::<R>(Some(key));
        let inner = self.inner.write();
        RwLockWriteGuard { inner, _held }
    }

    /// [`Self::read_ordered`] with the rank `A` instead: for a lock whose place in the order depends on what the caller
    /// needs it for, such as a directory that is the parent in one operation and the child in another.
    #[inline]
    #[track_caller]
    pub fn read_as<A: Rank>(&self, key: u64) -> RwLockReadGuard<'_, T> {
        let _held = Held::wait::<A>(Some(key));
        let inner = self.inner.read();
        RwLockReadGuard { inner, _held }
    }

    /// [`Self::write_ordered`] with the rank `A` instead, see [`Self::read_as`].
    #[inline]
    #[track_caller]
    pub fn write_as<A: Rank>(&self, key: u64) -> RwLockWriteGuard<'_, T> {
        let _held = Held::wait::<A>(Some(key));
        let inner = self.inner.write();
        RwLockWriteGuard { inner, _held }
    }

    /// The exclusive lock, if no thread has any. `key` as in [`Self::write_ordered`].
    #[inline]
    pub fn try_write(&self, key: Option<u64>) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        let _held = Held::tried::<R>(key);
        Some(RwLockWriteGuard { inner, _held })
    }

    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<R: Rank, T: Default> Default for RwLock<R, T> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<R, T: ?Sized + fmt::Debug> fmt::Debug for RwLock<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A [`RwLock`] whose shared lock may outlive the call that took it, and end on another thread.
pub struct ArcRwLock<R, T> {
    _rank: PhantomData<fn() -> R>,
    inner: Arc<parking_lot::RwLock<T>>,
}

impl<R: Rank, T> ArcRwLock<R, T> {
    /// An unlocked one.
    pub fn new(value: T) -> Self {
        ArcRwLock {
            _rank: PhantomData,
            inner: Arc::new(parking_lot::RwLock::new(value)),
        }
    }

    /// As [`RwLock::read`].
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let _held = Held::wait::<R>(None);
        let inner = self.inner.read();
        RwLockReadGuard { inner, _held }
    }

    /// As [`RwLock::write`].
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let _held = Held::wait::<R>(None);
        let inner = self.inner.write();
        RwLockWriteGuard { inner, _held }
    }

    /// The shared lock, if no thread has the exclusive one or waits for it. It is on no thread's stack, since any
    /// thread may drop it; while it is held for an event, its holder must not wait for a lock that the event needs.
    #[inline]
    pub fn try_read_arc(&self) -> Option<ArcRwLockReadGuard<RawRwLock, T>> {
        self.inner.try_read_arc()
    }
}

/// Guards differ only in the plain guard that they wrap, and in whether they lend the value for changes.
macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident $(, $mut:ident)?;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub struct $name<'a, T: ?Sized> {
                inner: parking_lot::$name<'a, T>,
                _held: Held,
            }

            impl<T: ?Sized> Deref for $name<'_, T> {
                type Target = T;

                #[inline]
                fn deref(&self) -> &T {
                    &self.inner
                }
            }

            $(
                impl<T: ?Sized> DerefMut for $name<'_, T> {
                    #[inline]
                    fn deref_mut(&$mut self) -> &mut T {
                        &mut self.inner
                    }
                }
            )?

            impl<T: ?Sized + fmt::Debug> fmt::Debug for $name<'_, T> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.inner.fmt(f)
                }
            }
        )*
    };
}

guards! {
    /// The shared lock; dropping it unlocks.
    RwLockReadGuard;
    /// The exclusive lock; dropping it unlocks.
    RwLockWriteGuard, mut;
    /// The shared lock, with a part of the value.
    MappedRwLockReadGuard;
    /// The exclusive lock, with a part of the value.
    MappedRwLockWriteGuard, mut;
}

impl<'a, T> RwLockReadGuard<'a, T> {
    /// The lock with the part that `map` chooses, if it chooses one; otherwise the lock as it was.
    pub fn try_map<U>(
        this: Self,
        map: impl FnOnce(&T) -> Option<&U>,
    ) -> Result<MappedRwLockReadGuard<'a, U>, RwLockReadGuard<'a, T>> {
        let RwLockReadGuard { inner, _held } = this;
        match parking_lot::RwLockReadGuard::try_map(inner, map) {
            Ok(inner) => Ok(MappedRwLockReadGuard { inner, _held }),
            Err(inner) => Err(RwLockReadGuard { inner, _held }),
        }
    }
}

impl<'a, T> RwLockWriteGuard<'a, T> {
    /// The lock with the part that `map` chooses, if it chooses one; otherwise the lock as it was.
    pub fn try_map<U>(
        this: Self,
        map: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Result<MappedRwLockWriteGuard<'a, U>, RwLockWriteGuard<'a, T>> {
        let RwLockWriteGuard { inner, _held } = this;
        match parking_lot::RwLockWriteGuard::try_map(inner, map) {
            Ok(inner) => Ok(MappedRwLockWriteGuard { inner, _held }),
            Err(inner) => Err(RwLockWriteGuard { inner, _held }),
        }
    }
}

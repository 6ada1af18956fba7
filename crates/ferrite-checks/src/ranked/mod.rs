//! Locks with ranks: a debug build panics when a thread takes two of them in an order that could deadlock.
//!
//! Contents: [`Rank`] and [`ranks!`](crate::ranks), which a crate uses to list its locks in one place; [`Mutex`]
//! and [`RwLock`], which have the interface of `parking_lot`; [`held`], the stack of a thread.
//!
//! Invariants:
//! * A thread waits for a lock only if its rank is above the rank of every lock of the same order that the thread
//!   holds. Locks of one rank may be held together if they are taken with ascending keys
//!   ([`Mutex::lock_ordered`]). A `try_` call never waits, so it is exempt; but what it took counts from then on.
//! * Orders of different crates are independent: a crate calls into the crates below it with its locks held, and a
//!   thread never holds locks of two crates in both sequences.
//! * A rank is a type, so a lock has no field for it. In release builds the locks and guards are as large as those of
//!   `parking_lot`, and each call is the plain one.
//! * A guard stays on the thread that took it.

pub mod held;
mod mutex;
mod rwlock;
#[cfg(test)]
mod tests;

pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{ArcRwLock, MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The place of a lock in the order of its crate. [`ranks!`](crate::ranks) implements it.
pub trait Rank {
    /// The crate, or the part of one, whose locks are ordered among each other.
    const ORDER: &'static str;
    /// Locks of a higher level are taken later.
    const LEVEL: u32;
    /// The name of the lock, for the message of a panic.
    const NAME: &'static str;
}

/// Lists the locks of an order, first to last. Each is a type that implements [`Rank`](crate::ranked::Rank).
///
/// ```
/// ferrite_checks::ranks! {
///     "an example":
///     /// Taken first.
///     Directory = 10;
///     /// Taken under a directory.
///     File = 20;
/// }
/// let file = ferrite_checks::ranked::Mutex::<File, u32>::new(5);
/// assert_eq!(*file.lock(), 5);
/// ```
#[macro_export]
macro_rules! ranks {
    ($order:literal: $($(#[$why:meta])* $name:ident = $level:literal;)*) => {
        $(
            $(#[$why])*
            pub(crate) enum $name {}

            impl $crate::ranked::Rank for $name {
                const ORDER: &'static str = $order;
                const LEVEL: u32 = $level;
                const NAME: &'static str = stringify!($name);
            }
        )*
    };
}

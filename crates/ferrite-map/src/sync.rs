//! Atomics and the shared lock of the structures that the models run: the real ones or, with the feature `shuttle`,
//! those of a scheduler that tries interleavings.
//!
//! Contents: names. [`crate::move_lock`], [`crate::bounds`], [`crate::bitmap`] and [`crate::TransCache`] take them
//! from here, so that the models in `models.rs` and `radix/cursor/models.rs` run the same code as the engine. The
//! feature is for these models alone: shuttle's atomics do not work outside a model.

pub(crate) use std::sync::atomic::Ordering;

#[cfg(not(feature = "shuttle"))]
pub(crate) use self::machine::*;
#[cfg(feature = "shuttle")]
pub(crate) use self::model::*;

#[cfg(not(feature = "shuttle"))]
mod machine {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, fence};

    pub(crate) use crossbeam_utils::sync::{
        ShardedLock as SharedLock, ShardedLockReadGuard as ReadGuard, ShardedLockWriteGuard as WriteGuard,
    };
    pub(crate) use ferrite_pm::zeroed;
}

#[cfg(feature = "shuttle")]
mod model {
    pub(crate) use shuttle::hint::spin_loop;
    pub(crate) use shuttle::sync::atomic::{AtomicU8, AtomicU64, fence};
    pub(crate) use shuttle::sync::{
        RwLock as SharedLock, RwLockReadGuard as ReadGuard, RwLockWriteGuard as WriteGuard,
    };

    /// Zeros of a table.
    pub(crate) fn zeroed<T: Default>(len: usize) -> Box<[T]> {
        std::iter::repeat_with(T::default).take(len).collect()
    }
}

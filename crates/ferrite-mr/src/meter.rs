//! Counts of the work of queue pairs with a file, kept by each thread for itself.
//!
//! Invariant: one thread adds to a [`Meter`], so adding is a load and a store. Others may read it at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares the counters, and how they are read and added.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a thread.
        #[derive(Debug, Default)]
        pub(crate) struct Meter {
            $(pub(crate) $name: Count,)*
        }

        /// Counts of the work of queue pairs with a file.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Meter {
            /// The present counts.
            pub(crate) fn read(&self) -> Counts {
                Counts { $($name: self.$name.0.load(Relaxed),)* }
            }
        }

        impl std::ops::AddAssign for Counts {
            fn add_assign(&mut self, other: Counts) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Packets read.
    packets_read,
    /// Bytes read.
    bytes_read,
    /// Packets written in place.
    packets_written,
    /// Bytes written in place.
    bytes_written,
    /// FETCH_ADDs and COMPARE_SWAPs.
    atomics,
    /// Appends.
    appends,
    /// Bytes appended.
    bytes_appended,
    /// Reservations.
    reservations,
    /// WRITEs of atomic mode.
    atomic_writes,
    /// Packets that were deferred, because a page was not translated, or the engine is frozen.
    faults,
    /// Packets that were deferred, because too many messages are being assembled.
    put_off,
    /// Packets refused: past the end, or not allowed.
    refused,
    /// Packets that the medium failed.
    failed,
    /// Translations found in the cache.
    cache_hits,
    /// Translations not found in it.
    cache_misses,
}

impl Counts {
    /// Hits among all translations; 0 without translations.
    pub fn hit_rate(&self) -> f64 {
        let lookups = self.cache_hits + self.cache_misses;
        if lookups == 0 {
            return 0.0;
        }
        self.cache_hits as f64 / lookups as f64
    }
}

/// A counter of one thread.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }
}

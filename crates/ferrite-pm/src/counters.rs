//! Counts of the costs of persistence: fences, lines, bytes. Unlike times, they are repeatable.
//!
//! Invariant: exact, without a lock-prefixed instruction for up to 64 threads at a time: each has its own shard, which
//! only it writes; a thread that ends leaves its shard to the next. More threads share one shard and add atomically.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::line_trace;

const OWN_SHARDS: usize = 64;

/// Totals since the region was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Store fences (on an ordinary file: syncs requested).
    pub fences: u64,
    /// Cache lines written back.
    pub lines_written_back: u64,
    /// Bytes stored past the cache.
    pub bytes_streamed: u64,
    /// Syncs of an ordinary file that were issued; concurrent requests share one.
    pub file_syncs: u64,
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            fences: self.fences - earlier.fences,
            lines_written_back: self.lines_written_back - earlier.lines_written_back,
            bytes_streamed: self.bytes_streamed - earlier.bytes_streamed,
            file_syncs: self.file_syncs - earlier.file_syncs,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Count {
    Fences,
    Lines,
    Bytes,
    Syncs,
}

#[derive(Default)]
struct Shard([AtomicU64; 4]);

pub(crate) struct ShardedCounters {
    shards: Box<[CachePadded<Shard>]>,
}

/// Shards that no living thread has.
static FREE_SHARDS: Mutex<Option<Vec<usize>>> = Mutex::new(None);

/// A thread's shard; released when the thread ends. The lock orders all its stores before those of the next owner.
struct Lease(usize);

impl Lease {
    fn new() -> Lease {
        let mut free = FREE_SHARDS.lock().unwrap_or_else(PoisonError::into_inner);
        Lease(
            free.get_or_insert_with(|| (0..OWN_SHARDS).rev().collect())
                .pop()
                .unwrap_or(OWN_SHARDS),
        )
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.0 < OWN_SHARDS {
            let mut free = FREE_SHARDS.lock().unwrap_or_else(PoisonError::into_inner);
            free.get_or_insert_default().push(self.0);
        }
    }
}

#[inline]
fn shard() -> usize {
    thread_local!(static LEASE: Lease = Lease::new());
    // While a thread's locals are being dropped it has no shard any more.
    LEASE.try_with(|lease| lease.0).unwrap_or(OWN_SHARDS)
}

impl ShardedCounters {
    pub(crate) fn new() -> Self {
        ShardedCounters {
            shards: (0..=OWN_SHARDS).map(|_| CachePadded::default()).collect(),
        }
    }

    #[inline]
    pub(crate) fn add(&self, what: Count, amount: u64) {
        let shard = shard();
        let count = &self.shards[shard].0[what as usize];
        line_trace::line("counters", count);
        if shard < OWN_SHARDS {
            // No other thread writes this shard, so a load and a store lose nothing.
            count.store(count.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
        } else {
            count.fetch_add(amount, Ordering::Relaxed);
        }
    }

    pub(crate) fn total(&self) -> Counters {
        let sum = |what: Count| {
            self.shards
                .iter()
                .map(|shard| shard.0[what as usize].load(Ordering::Relaxed))
                .sum()
        };
        Counters {
            fences: sum(Count::Fences),
            lines_written_back: sum(Count::Lines),
            bytes_streamed: sum(Count::Bytes),
            file_syncs: sum(Count::Syncs),
        }
    }
}

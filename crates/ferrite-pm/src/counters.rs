//! Counts of what persistence costs: fences, lines, bytes. They do not wobble as times do.
//!
//! Invariant: exact, without a lock-prefixed instruction on the path of the first 64 threads: each has a slot of
//! its own, which only it writes. Later threads share one slot and add atomically.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

const OWN_SLOTS: usize = 64;

/// Totals since the region was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Store fences (on an ordinary file: syncs asked for).
    pub fences: u64,
    /// Cache lines written back.
    pub lines_written_back: u64,
    /// Bytes stored past the cache.
    pub bytes_streamed: u64,
    /// Words stored through the cache.
    pub words_stored: u64,
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            fences: self.fences - earlier.fences,
            lines_written_back: self.lines_written_back - earlier.lines_written_back,
            bytes_streamed: self.bytes_streamed - earlier.bytes_streamed,
            words_stored: self.words_stored - earlier.words_stored,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Count {
    Fences,
    Lines,
    Bytes,
    Words,
}

#[derive(Default)]
struct Slot([AtomicU64; 4]);

pub(crate) struct CounterSlots {
    slots: Box<[CachePadded<Slot>]>,
}

/// A number no other thread of the process has had.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) as usize);
        }
        number.get()
    })
}

impl CounterSlots {
    pub(crate) fn new() -> Self {
        CounterSlots { slots: (0..=OWN_SLOTS).map(|_| CachePadded::default()).collect() }
    }

    #[inline]
    pub(crate) fn add(&self, what: Count, amount: u64) {
        let thread = thread_number();
        let count = &self.slots[thread.min(OWN_SLOTS)].0[what as usize];
        if thread < OWN_SLOTS {
            // Ours alone, so a load and a store lose nothing.
            count.store(count.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
        } else {
            count.fetch_add(amount, Ordering::Relaxed);
        }
    }

    pub(crate) fn total(&self) -> Counters {
        let sum = |what: Count| self.slots.iter().map(|slot| slot.0[what as usize].load(Ordering::Relaxed)).sum();
        Counters {
            fences: sum(Count::Fences),
            lines_written_back: sum(Count::Lines),
            bytes_streamed: sum(Count::Bytes),
            words_stored: sum(Count::Words),
        }
    }
}

//! A small number for each thread, which picks its ring, its purses, its cursors and its counters.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number no other live thread has, unless [`number_thread`] gave it one; small, so that it can pick rings and
/// counters.
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NUMBER.with(|number| {
        if number.get() == u64::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

thread_local!(static NUMBER: Cell<u64> = const { Cell::new(u64::MAX) });

/// Gives this thread a number. For tests that must be the same each time: a thread's number picks its ring, its purses
/// and its cursors. Two threads of one number share these, which is slower and otherwise right.
pub fn number_thread(number: u64) {
    NUMBER.set(number);
}

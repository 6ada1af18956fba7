//! The number that selects a thread's ring, purses and cursors: that of [`ferrite_pm::thread_number`], unless a test
//! has set another.

use std::cell::Cell;

thread_local!(static NUMBER: Cell<u64> = const { Cell::new(u64::MAX) });

/// A number no other thread has, unless [`number_thread`] set it.
pub(crate) fn thread_number() -> u64 {
    if NUMBER.get() == u64::MAX {
        NUMBER.set(ferrite_pm::thread_number() as u64);
    }
    NUMBER.get()
}

/// Gives this thread a number. For tests that must be reproducible: a thread's number selects its ring, its purses and
/// its cursors. Two threads with the same number share these, which is slower but correct. The recorder of
/// `ferrite-pm` still distinguishes them.
pub fn number_thread(number: u64) {
    NUMBER.set(number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_may_number_a_thread_and_the_media_still_know_it() {
        let known = ferrite_pm::thread_number();
        assert_eq!(thread_number(), known as u64);
        number_thread(known as u64 + 7);
        assert_eq!(
            (thread_number(), ferrite_pm::thread_number()),
            (known as u64 + 7, known)
        );
    }
}

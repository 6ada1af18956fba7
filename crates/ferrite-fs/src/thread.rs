//! The number by which a thread picks its ring, its purses and its cursors: that of [`ferrite_pm::thread_number`],
//! unless a test gave it another.

use std::cell::Cell;

thread_local!(static NUMBER: Cell<u64> = const { Cell::new(u64::MAX) });

/// A number no other thread has, unless [`number_thread`] gave it one.
pub(crate) fn thread_number() -> u64 {
    if NUMBER.get() == u64::MAX {
        NUMBER.set(ferrite_pm::thread_number() as u64);
    }
    NUMBER.get()
}

/// Gives this thread a number. For tests that must be the same each time: a thread's number picks its ring, its purses
/// and its cursors. Two threads of one number share these, which is slower and otherwise right. The recorder of
/// `ferrite-pm` tells them apart all the same.
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

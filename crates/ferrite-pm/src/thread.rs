//! Which thread this is, as a small number. The recorder distinguishes threads by it, and layers above choose a
//! thread's resources by it.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number no other thread of the process has or had; the first caller gets 0. It never changes: it decides whose
/// fence makes a store durable.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_number_and_shares_it_with_none() {
        let mine = thread_number();
        let another = std::thread::spawn(|| (thread_number(), thread_number()));
        let (first, second) = another.join().unwrap();
        assert_eq!((first, mine), (second, thread_number()));
        assert_ne!(first, mine);
    }
}

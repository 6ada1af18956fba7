//! The locks that a thread holds, in debug builds.
//!
//! Contents: [`Held`], the proof that a lock is on the thread's stack. The locks of this module use it; so may a crate
//! that wraps locks of another kind.

use std::marker::PhantomData;

use super::Rank;

/// A lock on the stack of the thread that holds it; dropping this takes it off. Nothing in release builds.
#[derive(Debug)]
pub struct Held {
    #[cfg(debug_assertions)]
    number: u64,
    /// The stack is the thread's own.
    _stays: PhantomData<*const ()>,
}

impl Held {
    /// Call it before waiting for a lock. Panics in debug builds if the thread holds a lock of the same order that
    /// comes later, or one of the same rank whose key is not below `key`.
    #[inline]
    #[track_caller]
    pub fn wait<R: Rank>(key: Option<u64>) -> Held {
        #[cfg(debug_assertions)]
        stack::check(&stack::Entry::of::<R>(key));
        Held::tried::<R>(key)
    }

    /// Call it after a lock was taken without waiting.
    #[inline]
    pub fn tried<R: Rank>(key: Option<u64>) -> Held {
        #[cfg(not(debug_assertions))]
        let _ = key;
        Held {
            #[cfg(debug_assertions)]
            number: stack::push(stack::Entry::of::<R>(key)),
            _stays: PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        stack::pop(self.number);
    }
}

#[cfg(debug_assertions)]
mod stack {
    use std::cell::{Cell, RefCell};

    use super::Rank;

    thread_local! {
        static STACK: RefCell<Vec<(u64, Entry)>> = const { RefCell::new(Vec::new()) };
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) struct Entry {
        order: &'static str,
        level: u32,
        name: &'static str,
        key: Option<u64>,
    }

    impl Entry {
        pub(super) fn of<R: Rank>(key: Option<u64>) -> Entry {
            Entry {
                order: R::ORDER,
                level: R::LEVEL,
                name: R::NAME,
                key,
            }
        }

        /// Whether a thread that holds this lock may wait for `next`.
        fn precedes(&self, next: &Entry) -> bool {
            let ascends = matches!((self.key, next.key), (Some(held), Some(next)) if held < next);
            self.order != next.order || self.level < next.level || self.level == next.level && ascends
        }

        fn text(&self) -> String {
            let key = self.key.map(|key| format!(", key {key}")).unwrap_or_default();
            format!("{} (rank {}{key})", self.name, self.level)
        }
    }

    /// Panics unless every lock that the thread holds precedes `next`.
    #[track_caller]
    pub(super) fn check(next: &Entry) {
        let wrong = STACK.try_with(|stack| {
            let stack = stack.borrow();
            let held = stack.iter().map(|(_, held)| held);
            held.filter(|held| !held.precedes(next)).map(Entry::text).next_back()
        });
        // A second panic would end the process before the first is reported.
        if let Ok(Some(held)) = wrong
            && !std::thread::panicking()
        {
            panic!(
                "lock order of {}: a thread that holds {held} must not wait for {}",
                next.order,
                next.text()
            );
        }
    }

    /// Returns the number that takes the entry off. Destructors of a thread's variables may run after the stack is
    /// gone; such locks are not checked.
    pub(super) fn push(entry: Entry) -> u64 {
        let number = NUMBER.try_with(|number| number.replace(number.get() + 1)).unwrap_or(0);
        let _ = STACK.try_with(|stack| stack.borrow_mut().push((number, entry)));
        number
    }

    /// Guards may be dropped in any order.
    pub(super) fn pop(number: u64) {
        let _ = STACK.try_with(|stack| {
            let mut stack = stack.borrow_mut();
            if let Some(at) = stack.iter().rposition(|&(held, _)| held == number) {
                stack.remove(at);
            }
        });
    }
}

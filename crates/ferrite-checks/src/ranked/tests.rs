//! Orders that must panic, and orders that must not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::{Mutex, RwLock, RwLockReadGuard};
use crate::condvar::Condvar;

crate::ranks! {
    "a test":
    /// Taken first.
    First = 1;
    /// Taken under the first; several by key.
    Second = 2;
}

mod another {
    crate::ranks! {
        "another test":
        /// Of an order of its own.
        Alone = 1;
    }
}

/// The message of the panic of `act`, if there is one. Release builds do not check.
#[cfg(debug_assertions)]
fn panic_of(act: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(act)).err()?;
    Some(*panic.downcast::<String>().unwrap())
}

#[cfg(debug_assertions)]
fn assert_panics(act: impl FnOnce(), words: &[&str]) {
    let message = panic_of(act).expect("this order could deadlock");
    for word in words {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
#[cfg(debug_assertions)]
fn an_order_that_could_deadlock_panics_and_names_both_locks() {
    let first = Mutex::<First, u32>::new(1);
    let second = RwLock::<Second, u32>::new(2);
    let later = second.read();
    let out_of_order = || drop(first.lock());
    assert_panics(out_of_order, &["a test", "First (rank 1)", "Second (rank 2)"]);
    drop(later);
    // The failed attempt has left nothing behind.
    let earlier = first.lock();
    drop(second.write());
    drop(earlier);
}

#[test]
#[cfg(debug_assertions)]
fn locks_of_one_rank_need_ascending_keys() {
    let [low, high, other] = [(); 3].map(|()| RwLock::<Second, u32>::default());
    let ascending = (low.write_ordered(1), high.read_ordered(2));
    assert_panics(|| drop(other.write()), &["Second (rank 2, key 2)"]);
    drop(ascending);
    let later = high.write_ordered(2);
    assert_panics(|| drop(low.read_ordered(1)), &["Second (rank 2, key 1)", "key 2"]);
    assert_panics(|| drop(other.write_ordered(2)), &["key 2"]);
    drop(later);
    // A writer that came between two shared locks would wait for the one and stop the other.
    let shared = low.read();
    assert_panics(|| drop(low.read()), &["Second"]);
    drop(shared);
}

#[test]
#[cfg(debug_assertions)]
fn attempts_may_be_out_of_order_and_count_afterwards() {
    let first = Mutex::<First, u32>::new(1);
    let second = Mutex::<Second, u32>::new(2);
    let later = second.lock();
    let tried = first.try_lock().expect("nobody has it");
    drop(later);
    // Guards need not be dropped in the reverse order.
    let again = second.lock();
    drop(tried);
    assert_panics(|| drop(first.lock()), &["First", "Second"]);
    drop(again);
    let keyed = RwLock::<Second, u32>::default();
    let other = RwLock::<Second, u32>::default();
    let tried = keyed.try_write(Some(5)).expect("nobody has it");
    drop(other.read_ordered(6));
    assert_panics(|| drop(other.read_ordered(4)), &["key 4", "key 5"]);
    drop(tried);
    assert!(keyed.try_read(None).is_some());
}

#[test]
#[cfg(debug_assertions)]
fn a_part_of_a_value_keeps_its_lock_on_the_stack() {
    let second = RwLock::<Second, Option<u32>>::new(Some(2));
    let first = Mutex::<First, ()>::default();
    let part = RwLockReadGuard::try_map(second.read(), Option::as_ref).expect("there is a value");
    assert_eq!(*part, 2);
    assert_panics(|| drop(first.lock()), &["First", "Second"]);
    drop(part);
    drop(first.lock());
    let whole = RwLockReadGuard::try_map(second.read(), |_| None::<&u32>).expect_err("no part was chosen");
    assert_panics(|| drop(first.lock()), &["First", "Second"]);
    drop(whole);
    drop(first.lock());
}

#[test]
#[cfg(debug_assertions)]
fn a_lock_may_be_taken_with_another_rank() {
    let parent = RwLock::<Second, u32>::default();
    let child = RwLock::<Second, u32>::default();
    let first = Mutex::<First, ()>::default();
    let used = parent.read_as::<First>(9);
    drop(child.write_ordered(1));
    assert_panics(|| drop(first.lock()), &["First (rank 1)", "First (rank 1, key 9)"]);
    drop(used);
    let used = child.write_ordered(1);
    assert_panics(|| drop(parent.write_as::<First>(9)), &["First", "Second"]);
    drop(used);
}

#[test]
fn other_threads_and_other_crates_have_orders_of_their_own() {
    let first = Mutex::<First, u32>::new(1);
    let second = Mutex::<Second, u32>::new(2);
    let alone = Mutex::<another::Alone, u32>::new(3);
    let later = (second.lock(), alone.lock());
    std::thread::scope(|scope| {
        scope.spawn(|| drop(first.lock()));
    });
    drop(later);
    let _alone = alone.lock();
    let _first = first.lock();
}

#[test]
fn a_wait_gives_up_the_lock_and_takes_it_again() {
    let flag = Mutex::<First, bool>::new(false);
    let changed = Condvar::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *flag.lock() = true;
            changed.notify_all();
        });
        let mut set = flag.lock();
        while !*set {
            changed.wait(&mut set);
        }
    });
    let mut set = flag.lock();
    assert!(changed.wait_for(&mut set, Duration::from_millis(1)).timed_out());
    assert!(*set);
}

/// A lock costs what it costs in `parking_lot`; so does a guard where nothing is checked.
#[test]
fn ranks_take_no_memory() {
    assert_eq!(size_of::<Mutex<First, u64>>(), size_of::<parking_lot::Mutex<u64>>());
    assert_eq!(size_of::<RwLock<First, u64>>(), size_of::<parking_lot::RwLock<u64>>());
    #[cfg(not(debug_assertions))]
    assert_eq!(
        size_of::<super::MutexGuard<'_, u64>>(),
        size_of::<parking_lot::MutexGuard<'_, u64>>()
    );
}

//! A condition to wait for under a lock, which works in a forked child as well.
//!
//! Contents: [`Condvar`], with the interface of the one of `parking_lot`; [`Unlock`], the guards that it takes.
//!
//! `parking_lot` lists waiting threads in a table of the process, in memory of their own. A child of `fork` has the
//! table but not the threads: a new thread of the child may get the same memory, enter itself twice, and make a circle
//! of the list, in which the next thread that wakes others turns for ever. Threads that serve an open pool wait in
//! conditions most of the time, so a child could not have opened a pool of its own. The state of a wait is two words
//! of the condition here; in a child they may count threads that it does not have, which costs system calls only.
//!
//! Invariants:
//! * A waiter counts itself, and reads the sequence number, before it unlocks. A thread that changes what the lock
//!   guards and then notifies either sees the waiter, or the waiter sees the change.
//! * The kernel compares the sequence number before it lets a thread sleep, so a notification between the unlocking
//!   and the sleep is not lost.

use std::ops::DerefMut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// The guard of a lock that can be given up for a while.
pub trait Unlock: DerefMut {
    /// Unlocks, calls `act`, and locks again.
    fn unlocked<R>(&mut self, act: impl FnOnce() -> R) -> R;
}

impl<T: ?Sized> Unlock for parking_lot::MutexGuard<'_, T> {
    fn unlocked<R>(&mut self, act: impl FnOnce() -> R) -> R {
        parking_lot::MutexGuard::unlocked(self, act)
    }
}

/// Whether a wait ended because its time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult {
    timed_out: bool,
}

impl WaitTimeoutResult {
    /// True if no notification ended the wait.
    pub fn timed_out(self) -> bool {
        self.timed_out
    }
}

/// A condition. A thread may wake without a notification, so it looks for itself what is true.
#[derive(Debug, Default)]
pub struct Condvar {
    sequence: AtomicU32,
    waiters: AtomicU32,
}

impl Condvar {
    /// One that no thread waits for.
    pub const fn new() -> Condvar {
        Condvar {
            sequence: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
        }
    }

    /// Wakes one thread, if one waits.
    #[inline]
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all that wait.
    #[inline]
    pub fn notify_all(&self) {
        self.notify(i32::MAX.unsigned_abs());
    }

    #[inline]
    fn notify(&self, threads: u32) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // It fails for wrong arguments alone.
            let _ = futex::wake(&self.sequence, futex::Flags::PRIVATE, threads);
        }
    }

    /// Unlocks, waits for a notification, and locks again.
    pub fn wait(&self, guard: &mut impl Unlock) {
        self.wait_at_most(guard, None);
    }

    /// The same, for `time` at most.
    pub fn wait_for(&self, guard: &mut impl Unlock, time: Duration) -> WaitTimeoutResult {
        self.wait_at_most(guard, Some(time))
    }

    /// The same, until `deadline` at the latest.
    pub fn wait_until(&self, guard: &mut impl Unlock, deadline: Instant) -> WaitTimeoutResult {
        self.wait_at_most(guard, Some(deadline.saturating_duration_since(Instant::now())))
    }

    /// Waits as long as `condition` holds.
    pub fn wait_while<G: Unlock>(&self, guard: &mut G, mut condition: impl FnMut(&mut G::Target) -> bool) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// The same, for `time` at most.
    pub fn wait_while_for<G: Unlock>(
        &self,
        guard: &mut G,
        mut condition: impl FnMut(&mut G::Target) -> bool,
        time: Duration,
    ) -> WaitTimeoutResult {
        // A time without an end, such as `Duration::MAX`.
        let Some(deadline) = Instant::now().checked_add(time) else {
            self.wait_while(guard, condition);
            return WaitTimeoutResult { timed_out: false };
        };
        while condition(guard) {
            if self.wait_until(guard, deadline).timed_out() {
                return WaitTimeoutResult {
                    timed_out: condition(guard),
                };
            }
        }
        WaitTimeoutResult { timed_out: false }
    }

    fn wait_at_most(&self, guard: &mut impl Unlock, time: Option<Duration>) -> WaitTimeoutResult {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let seen = self.sequence.load(Ordering::SeqCst);
        // One that the kernel cannot represent is without an end.
        let time = time.and_then(|time| futex::Timespec::try_from(time).ok());
        let slept = guard.unlocked(|| {
            let slept = futex::wait(&self.sequence, futex::Flags::PRIVATE, seen, time.as_ref());
            self.waiters.fetch_sub(1, Ordering::SeqCst);
            slept
        });
        WaitTimeoutResult {
            timed_out: slept == Err(rustix::io::Errno::TIMEDOUT),
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn each_notification_finds_its_waiter() {
        let (turn, changed) = (Mutex::new(0_u32), Condvar::new());
        std::thread::scope(|scope| {
            for player in 0..4 {
                let (turn, changed) = (&turn, &changed);
                scope.spawn(move || {
                    for round in 0..500 {
                        let mut at = turn.lock();
                        changed.wait_while(&mut at, |at| *at != 4 * round + player);
                        *at += 1;
                        changed.notify_all();
                    }
                });
            }
        });
        assert_eq!(turn.into_inner(), 2000);
    }

    #[test]
    fn one_notification_wakes_one_after_the_other() {
        let (state, changed) = (Mutex::new((0, 0)), Condvar::new());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut guard = state.lock();
                    guard.0 += 1;
                    changed.wait(&mut guard);
                    guard.1 += 1;
                });
            }
            let until = |is_so: &dyn Fn(&(u32, u32)) -> bool| {
                while !is_so(&state.lock()) {
                    std::thread::yield_now();
                }
            };
            until(&|(waiting, _)| *waiting == 3);
            for woken in 1..=3 {
                changed.notify_one();
                until(&|(_, ended)| *ended >= woken);
            }
        });
        assert_eq!(changed.waiters.into_inner(), 0);
    }

    #[test]
    fn a_wait_ends_with_its_time() {
        let (nothing, never) = (Mutex::new(()), Condvar::new());
        let mut guard = nothing.lock();
        let began = Instant::now();
        assert!(never.wait_for(&mut guard, Duration::from_millis(20)).timed_out());
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert!(never.wait_until(&mut guard, began).timed_out(), "a time that is over");
        let over = never.wait_while_for(&mut guard, |()| true, Duration::from_millis(1));
        assert!(over.timed_out());
        assert!(!never.wait_while_for(&mut guard, |()| false, Duration::MAX).timed_out());
    }

    #[test]
    fn a_time_without_an_end_is_waited_for() {
        let (done, changed) = (Mutex::new(false), Condvar::new());
        std::thread::scope(|scope| {
            let mut is_done = done.lock();
            scope.spawn(|| {
                *done.lock() = true;
                changed.notify_one();
            });
            while !*is_done {
                assert!(!changed.wait_for(&mut is_done, Duration::MAX).timed_out());
            }
        });
    }
}

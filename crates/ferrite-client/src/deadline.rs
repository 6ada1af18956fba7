//! How long a call waits for a server that is unreachable, or does not answer.
//!
//! Contents: [`Deadline`], which every wait of a call checks.
//!
//! Invariant: a call checks whether its caller gives up only while it waits, a few times a second. So a call that is
//! answered at once costs nothing here, not even a clock read.

use std::cell::Cell;
use std::time::{Duration, Instant};

use ferrite_vfs::{FsError, Result, WaitingCaller, Waits};

/// Time between two checks of a caller.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// See the head of this module.
pub(super) struct Deadline {
    deadline: Option<Instant>,
    caller: Option<WaitingCaller>,
    /// The caller has a limit of its own, or may give up.
    is_short: bool,
    /// When the caller was last checked; first, when its call began to wait.
    checked: Cell<Option<Instant>>,
    /// The result of the last check.
    gave_up: Cell<bool>,
}

impl Deadline {
    /// The limit of a call whose caller may have a limit of its own.
    pub(super) fn of(timeout: Option<Duration>, waits: &Waits) -> Deadline {
        let within = match (timeout, waits.within) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Deadline {
            caller: waits.caller,
            is_short: waits.caller.is_some() || waits.within.is_some(),
            ..Deadline::until(within.map(|within| Instant::now() + within))
        }
    }

    pub(super) fn until(deadline: Option<Instant>) -> Deadline {
        Deadline {
            deadline,
            caller: None,
            is_short: false,
            checked: Cell::new(None),
            gave_up: Cell::new(false),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the calling thread must not start long work that cannot be interrupted.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// The remaining limit, for a nested call.
    pub(super) fn rest(&self) -> Waits {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        Waits {
            within: self.deadline.map(left),
            caller: self.caller,
        }
    }

    /// Returns an error if the call must not wait any longer.
    pub(super) fn check(&self) -> Result<()> {
        if self.deadline.is_none() && self.caller.is_none() {
            return Ok(());
        }
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(FsError::TimedOut);
        }
        let Some(caller) = self.caller else { return Ok(()) };
        match self.checked.get() {
            Some(checked) if now < checked + CHECK_EVERY => return Ok(()),
            Some(_) => {
                let gives_up = (caller.gives_up)(caller.id);
                // Twice: the signal may be meant for another thread of the caller's process, which takes it soon.
                if self.gave_up.replace(gives_up) && gives_up {
                    return Err(FsError::Interrupted);
                }
            }
            None => {}
        }
        self.checked.set(Some(now));
        Ok(())
    }

    /// When a wait has to end to run [`Self::check`].
    pub(super) fn next_check(&self) -> Option<Instant> {
        let check_at = self.caller.map(|_| Instant::now() + CHECK_EVERY);
        match (self.deadline, check_at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_shorter_limit_counts() {
        let (short, long) = (Duration::ZERO, Duration::from_secs(1000));
        for (timeout, within) in [
            (Some(short), Some(long)),
            (Some(long), Some(short)),
            (None, Some(short)),
        ] {
            let limit = Deadline::of(timeout, &Waits { within, caller: None });
            assert_eq!(limit.check(), Err(FsError::TimedOut));
        }
        assert_eq!(Deadline::of(Some(long), &Waits::FOREVER).check(), Ok(()));
        assert!(Deadline::of(None, &Waits::FOREVER).next_check().is_none());
    }

    #[test]
    fn a_caller_is_checked_twice_and_not_at_once() {
        static CHECKS: AtomicU32 = AtomicU32::new(0);
        let caller = WaitingCaller {
            id: 7,
            gives_up: |id| {
                CHECKS.fetch_add(1, Ordering::Relaxed);
                id == 7
            },
        };
        let waits = Waits {
            within: None,
            caller: Some(caller),
        };
        let limit = Deadline::of(None, &waits);
        assert!(limit.check().is_ok() && CHECKS.load(Ordering::Relaxed) == 0);
        let start = Instant::now();
        while limit.check().is_ok() {
            assert!(start.elapsed() < Duration::from_secs(20));
            let wake = limit.next_check().unwrap();
            std::thread::sleep(wake.saturating_duration_since(Instant::now()));
        }
        assert_eq!(CHECKS.load(Ordering::Relaxed), 2);
        assert!(start.elapsed() >= 2 * CHECK_EVERY);
        assert_eq!(
            limit.check(),
            Err(FsError::Interrupted),
            "a call that gave up continues"
        );
    }
}

//! How long a call waits for a server that is unreachable, or does not answer.
//!
//! Contents: [`CallLimit`], which every wait of a call checks.
//!
//! Invariant: a call checks whether its caller gives up only while it waits, a few times a second.

use std::cell::Cell;
use std::time::{Duration, Instant};

use ferrite_vfs::{FsError, Result, WaitingCaller, Waits};

/// Time between two checks of a caller.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(100);

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct CallLimit {
    deadline: Option<Instant>,
    caller: Option<WaitingCaller>,
    /// The caller has a limit of its own, or may give up.
    is_short: bool,
    /// When the caller was last checked; first, when its call began to wait.
    checked: Cell<Option<Instant>>,
    /// The result of the last check.
    gave_up: Cell<bool>,
}

impl CallLimit {
    /// The limit of a call whose caller may have a limit of its own. `now` is read only if there is a limit.
    pub(crate) fn of(timeout: Option<Duration>, waits: &Waits, now: impl FnOnce() -> Instant) -> CallLimit {
        let within = match (timeout, waits.within) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        CallLimit {
            caller: waits.caller,
            is_short: waits.caller.is_some() || waits.within.is_some(),
            ..CallLimit::until(within.map(|within| now() + within))
        }
    }

    /// The limit of the client's own calls.
    pub(crate) fn until(deadline: Option<Instant>) -> CallLimit {
        CallLimit {
            deadline,
            caller: None,
            is_short: false,
            checked: Cell::new(None),
            gave_up: Cell::new(false),
        }
    }

    /// When the call ends.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the calling thread must not start long work that cannot be interrupted.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Whether the call waits as long as it takes: [`Self::check`] finds nothing, whatever the time is.
    pub(crate) fn is_endless(&self) -> bool {
        self.deadline.is_none() && self.caller.is_none()
    }

    /// The remaining limit, for a nested call. `now` is read only if there is a limit.
    pub(crate) fn rest(&self, now: impl FnOnce() -> Instant) -> Waits {
        Waits {
            within: self.deadline.map(|deadline| deadline.saturating_duration_since(now())),
            caller: self.caller,
        }
    }

    /// Returns an error if the call must not wait any longer.
    pub(crate) fn check(&self, now: Instant) -> Result<()> {
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

    /// When a wait has to end to run [`Self::check`]. `now` is read only if the caller may give up.
    pub(crate) fn next_check(&self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        let check_at = self.caller.map(|_| now() + CHECK_EVERY);
        match (self.deadline, check_at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

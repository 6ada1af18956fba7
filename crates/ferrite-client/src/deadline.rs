//! The limit of a call, with the clock.
//!
//! Contents: [`Deadline`], which reads the clock for a [`CallLimit`].
//!
//! Invariant: a call that is answered at once, or has no limit, costs nothing here, not even a clock read.

use std::time::{Duration, Instant};

use ferrite_vfs::{Result, Waits};

use super::protocol::CallLimit;

/// See the head of this module.
pub(super) struct Deadline(CallLimit);

impl Deadline {
    /// The limit of a call whose caller may have a limit of its own.
    pub(super) fn of(timeout: Option<Duration>, waits: &Waits) -> Deadline {
        Deadline(CallLimit::of(timeout, waits, Instant::now))
    }

    pub(super) fn until(deadline: Option<Instant>) -> Deadline {
        Deadline(CallLimit::until(deadline))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    /// Whether the calling thread must not start long work that cannot be interrupted.
    pub(super) fn is_short(&self) -> bool {
        self.0.is_short()
    }

    /// The remaining limit, for a nested call.
    pub(super) fn rest(&self) -> Waits {
        self.0.rest(Instant::now)
    }

    /// Returns an error if the call must not wait any longer.
    pub(super) fn check(&self) -> Result<()> {
        match self.0.is_endless() {
            true => Ok(()),
            false => self.0.check(Instant::now()),
        }
    }

    /// When a wait has to end to run [`Self::check`].
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.0.next_check(Instant::now)
    }
}

//! Until when an owner may answer, by its own clock.
//!
//! The database counts a tenure from the moment at which it handles a renewal; the owner counts from the moment before
//! it sent that renewal, and stops earlier by a margin. So the owner's end comes first, as long as the two clocks
//! differ by less than the margin over one lease. A process that was stopped, or a machine that was suspended, finds
//! its lease ended as soon as it continues: the clock counts suspended time, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::Mutex;

use crate::error::{Error, Result};
use crate::lock_order;

/// A clock that never goes back: time since any fixed moment.
pub type MonotonicClock = Box<dyn Fn() -> Duration + Send + Sync>;

/// Time since the machine started, suspended time included.
pub(super) fn boot_clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.max(0) as u64, now.tv_nsec as u32)
}

/// Until when an owner may answer whose `take` or `renew`, begun at `sent`, has succeeded. Both are times of its own
/// clock. See [`OwnedOptions`](super::OwnedOptions) for `ttl` and `margin`.
pub fn answers_until(sent: Duration, ttl: Duration, margin: Duration) -> Duration {
    (sent + ttl).saturating_sub(margin)
}

/// See the head of this module.
pub(super) struct Lease {
    clock: MonotonicClock,
    ttl: Duration,
    margin: Duration,
    until_ns: AtomicU64,
    /// Why the last renewal failed.
    trouble: Mutex<lock_order::Failure, Option<String>>,
}

impl Lease {
    /// Ended, until a renewal succeeds.
    pub(super) fn new(clock: MonotonicClock, ttl: Duration, margin: Duration) -> Lease {
        Lease {
            clock,
            ttl,
            margin,
            until_ns: AtomicU64::new(0),
            trouble: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        (self.clock)()
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// A renewal that began at `sent` has succeeded.
    pub(super) fn prolong(&self, sent: Duration) {
        let until = answers_until(sent, self.ttl, self.margin);
        self.until_ns.fetch_max(until.as_nanos() as u64, Ordering::AcqRel);
        *self.trouble.lock() = None;
    }

    pub(super) fn failed(&self, why: &Error) {
        *self.trouble.lock() = Some(why.to_string());
    }

    /// Ends it: the shard is given up.
    pub(super) fn end(&self) {
        self.until_ns.store(0, Ordering::Release);
    }

    pub(super) fn left(&self) -> Duration {
        let until = Duration::from_nanos(self.until_ns.load(Ordering::Acquire));
        until.saturating_sub(self.now())
    }

    /// Whether an answer may be given now. To be called after what the answer is made of was read.
    pub(super) fn check(&self) -> Result<()> {
        if !self.left().is_zero() || is_seeded(Bug::ReadAfterLease) {
            return Ok(());
        }
        let why = self.trouble.lock().clone();
        Err(Error::Expired(why.unwrap_or_else(|| {
            "the process or the machine was stopped for too long".into()
        })))
    }
}

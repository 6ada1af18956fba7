//! Blocking waits for a lock, for callers that have a thread to park.

use std::sync::Arc;
use std::time::Instant;

use ferrite_checks::condvar::Condvar;
use parking_lot::Mutex;

use super::{LockDone, LockTicket, Wait};
use crate::{FsError, Result};

/// The place where a completion leaves the outcome.
#[derive(Default)]
struct Slot {
    outcome: Mutex<Option<Result<()>>>,
    there: Condvar,
}

/// Blocks on a lock request as `wait` says: `start` makes it, with a flag whether it may wait; `cancel` ends it. Must
/// not be called from a completion.
///
/// # Errors
/// Those of the request; `WouldBlock` also when the time is up.
pub fn wait_for(
    wait: Wait,
    start: impl FnOnce(bool, LockDone) -> Option<LockTicket>,
    cancel: impl FnOnce(LockTicket),
) -> Result<()> {
    let deadline = match wait {
        // A time too long to represent means forever.
        Wait::AtMost(time) => Instant::now().checked_add(time),
        Wait::No | Wait::Forever => None,
    };
    let slot = Arc::new(Slot::default());
    let theirs = Arc::clone(&slot);
    let done: LockDone = Box::new(move |outcome| {
        *theirs.outcome.lock() = Some(outcome);
        theirs.there.notify_one();
    });
    let ticket = start(wait != Wait::No, done);
    let mut outcome = slot.outcome.lock();
    if let (Some(ticket), Some(deadline)) = (ticket, deadline) {
        while outcome.is_none() && !slot.there.wait_until(&mut outcome, deadline).timed_out() {}
        if outcome.is_none() {
            drop(outcome);
            cancel(ticket);
            outcome = slot.outcome.lock();
            slot.there.wait_while(&mut outcome, |outcome| outcome.is_none());
            return match outcome.take() {
                // Granted at the last moment.
                Some(Ok(())) => Ok(()),
                Some(Err(error)) if error != FsError::Interrupted => Err(error),
                _ => Err(FsError::WouldBlock),
            };
        }
    }
    slot.there.wait_while(&mut outcome, |outcome| outcome.is_none());
    outcome.take().unwrap_or(Err(FsError::Interrupted))
}

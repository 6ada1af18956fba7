//! The rate at which a client reconnects.
//!
//! A server that accepts each connection and then breaks it, maliciously or by a fault, would otherwise keep both hosts
//! busy with nothing else: a waiting call reconnects at once.
//!
//! Contents: [`Backoff`]. Invariant: a connection that has lasted for [`APART`] is followed by the next without
//! delay.

use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;

use crate::lock_order;

/// The interval between the beginnings of attempts.
const APART: Duration = Duration::from_millis(20);

/// See the head of this module.
#[derive(Default)]
pub(super) struct Backoff(Mutex<lock_order::Backoff, Option<Instant>>);

impl Backoff {
    /// Waits until it is time for the next attempt, which begins when this returns.
    pub(super) fn wait(&self) {
        let mut last = self.0.lock();
        if let Some(last) = *last {
            std::thread::sleep(APART.saturating_sub(last.elapsed()));
        }
        *last = Some(Instant::now());
    }
}

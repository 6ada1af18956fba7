//! The times of attempts to connect.
//!
//! A series of attempts ends with a connection, or when its thread gives up. The delays within a series double, and
//! clients that have lost the same server are staggered. Series have a distance of their own: a server that accepts
//! each connection and then breaks it, maliciously or by a fault, would otherwise keep both hosts busy with nothing
//! else, since a waiting call reconnects at once.
//!
//! Contents: [`Backoff`]. Invariant: a connection that has lasted for [`LONGEST`] is followed by the next without
//! delay; [`APART`] is enough unless its server did not own the volume.

use std::time::{Duration, Instant};

/// The interval between the beginnings of series.
const APART: Duration = Duration::from_millis(20);
/// The delay after the first attempt of a series.
const FIRST: Duration = Duration::from_millis(5);
/// The longest delay.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);

/// A client's place among all that have lost the same server: each waits between half a delay and a whole one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stagger(u32);

impl Stagger {
    /// How many places there are.
    const PLACES: u32 = 512;

    /// The place that belongs to a number, of which any differs from client to client.
    pub(crate) const fn of(number: u32) -> Stagger {
        Stagger(number % Stagger::PLACES)
    }

    fn of_delay(self, delay: Duration) -> Duration {
        delay * (Stagger::PLACES + self.0) / (2 * Stagger::PLACES)
    }
}

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// When the last series began.
    began: Option<Instant>,
    /// The interval to the beginning of the next.
    apart: Duration,
    /// The delay after the next failure, before it is staggered.
    delay: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            began: None,
            apart: APART,
            delay: FIRST,
        }
    }
}

impl Backoff {
    /// Begins a series, and returns when its first attempt may begin.
    pub(crate) fn begin(&mut self, now: Instant) -> Instant {
        let at = self.began.map_or(now, |began| now.max(began + self.apart));
        self.began = Some(at);
        self.delay = FIRST;
        at
    }

    /// A connection ended. The interval between series doubles while servers that do not own the volume welcome the
    /// client: the owner may be seconds away.
    pub(crate) fn ended(&mut self, is_disowned: bool) {
        self.apart = match is_disowned {
            true => (self.apart * 2).min(LONGEST),
            false => APART,
        };
    }

    /// Whether no attempt of the series has failed.
    pub(crate) fn is_first(&self) -> bool {
        self.delay == FIRST
    }

    /// The delay after the next failure, at most.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    /// Notes that an attempt, or a round of them, has failed, and returns when the next may begin: later than `from`.
    pub(crate) fn failed(&mut self, from: Instant, stagger: Stagger) -> Instant {
        let at = from + stagger.of_delay(self.delay);
        self.delay = (self.delay * 2).min(LONGEST);
        at
    }
}

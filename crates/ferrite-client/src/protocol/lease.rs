//! When a client pings its server, and when it counts the server as gone.
//!
//! Contents: [`Lease`], which a server promises with each connection: it keeps the session of a silent client for so
//! long, and answers a ping before that.

use std::time::Duration;

/// The longest time between two turns of the watcher.
const TICK_MAX: Duration = Duration::from_secs(10);
/// The shortest, so that a lease of nothing does not keep a processor busy.
const TICK_MIN: Duration = Duration::from_millis(10);
/// A server that is silent for longer is gone, whatever lease it has promised.
const LEASE_MAX: Duration = Duration::from_secs(3600);

/// How long a silent session lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lease(Duration);

/// A connection as its silence shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// The server was heard lately.
    Heard,
    /// It has been silent long enough for a ping, which also keeps the session.
    Silent,
    /// It has not even answered pings: it is gone, or its host is.
    Gone,
}

impl Lease {
    /// The lease that a server promises.
    pub(crate) fn promised(lease_ms: u32) -> Lease {
        Lease(Duration::from_millis(u64::from(lease_ms)).min(LEASE_MAX))
    }

    /// The same, for a client that has another server to go to when this one is silent for `most`.
    pub(crate) fn at_most(self, most: Duration) -> Lease {
        Lease(self.0.min(most))
    }

    /// The time between two turns of the watcher: a few within a lease.
    pub(crate) fn tick(self) -> Duration {
        (self.0 / 4).clamp(TICK_MIN, TICK_MAX)
    }

    /// The state of a connection on which nothing has arrived for `silence`.
    pub(crate) fn health(self, silence: Duration) -> Health {
        match silence {
            _ if silence > self.0.max(self.tick() * 2) => Health::Gone,
            _ if silence >= self.tick() => Health::Silent,
            _ => Health::Heard,
        }
    }
}

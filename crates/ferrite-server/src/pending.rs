//! Connections that have not selected a session yet.
//!
//! Contents: [`PendingConnections`]. There are at most [`PENDING_MAX`], and of one source [`OF_SOURCE_MAX`]; one more
//! closes the oldest. So sessions and pending connections together bound the connections of a source: one that opens
//! connections without setting up a session closes its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use ferrite_transport::reactor::Link;
use ferrite_transport::source::{BoundedPeers, Source};

use crate::lock_order;

/// Most of them.
const PENDING_MAX: usize = 4096;
/// Most of one source.
const OF_SOURCE_MAX: usize = 256;

/// See the head of this module.
pub(super) struct PendingConnections {
    next: AtomicU64,
    /// Each with its arrival time.
    kept: Mutex<lock_order::PendingConnections, BoundedPeers<(Link, Instant)>>,
}

impl PendingConnections {
    pub(super) fn new() -> PendingConnections {
        PendingConnections {
            next: AtomicU64::new(0),
            kept: Mutex::new(BoundedPeers::new(PENDING_MAX, OF_SOURCE_MAX)),
        }
    }

    /// Adds a connection. Returns its number.
    pub(super) fn come(&self, link: Link, source: Source) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let gone = self.kept.lock().insert(number, source, (link, Instant::now()));
        if let Some((link, _)) = gone {
            link.close();
        }
        number
    }

    /// Removes a connection that has set up a session, or is gone.
    pub(super) fn leave(&self, number: u64) {
        self.kept.lock().remove(number);
    }

    /// Closes connections older than this.
    pub(super) fn close_older(&self, than: Duration) {
        loop {
            let mut kept = self.kept.lock();
            let late = kept.oldest().filter(|(_, (_, since))| since.elapsed() > than);
            let Some((number, _)) = late else { return };
            let link = kept.remove(number).map(|(link, _)| link);
            drop(kept);
            if let Some(link) = link {
                link.close();
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.kept.lock().len()
    }
}

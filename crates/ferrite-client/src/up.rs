//! A connection that works, or did.
//!
//! Contents: [`Up`], the driver's handle of one. Its threads share it by reference, and each compares by identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use ferrite_transport::connection::{Connection, Receiver};

use super::batching::SendBatching;
use crate::lock_order;

/// See the head of this module.
pub(super) struct Up {
    /// The server's.
    pub(super) address: Arc<str>,
    pub(super) connection: Connection,
    pub(super) receiver: Mutex<lock_order::Receiver, Receiver>,
    pub(super) outgoing: SendBatching,
    is_broken: AtomicBool,
    since: Instant,
    /// When something was last received, in nanoseconds after `since`.
    heard_ns: AtomicU64,
    /// When it was last pinged, likewise.
    pinged_ns: AtomicU64,
}

impl PartialEq for Up {
    fn eq(&self, other: &Up) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Up {
    /// A connection whose server has just been heard.
    pub(super) fn new(address: Arc<str>, connection: Connection, receiver: Receiver) -> Up {
        Up {
            address,
            connection,
            receiver: Mutex::new(receiver),
            outgoing: SendBatching::default(),
            is_broken: AtomicBool::new(false),
            since: Instant::now(),
            heard_ns: AtomicU64::new(0),
            pinged_ns: AtomicU64::new(0),
        }
    }

    /// Notes that something was received.
    pub(super) fn note_heard(&self) {
        self.heard_ns
            .store(self.since.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// For how long nothing has been received.
    pub(super) fn silence(&self) -> Duration {
        let heard = Duration::from_nanos(self.heard_ns.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(heard)
    }

    /// Whether a ping was sent within the last `tick`. If not, the caller sends one.
    pub(super) fn is_pinged(&self, tick: Duration) -> bool {
        let now_ns = self.since.elapsed().as_nanos() as u64;
        let pinged_ns = self.pinged_ns.load(Ordering::Relaxed);
        if pinged_ns > 0 && u128::from(now_ns - pinged_ns.min(now_ns)) < tick.as_nanos() {
            return true;
        }
        self.pinged_ns.store(now_ns, Ordering::Relaxed);
        false
    }

    /// Whether it broke: its replies do not come any more.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Closes it: all threads that use it find it broken.
    pub(super) fn close_broken(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.connection.close();
    }
}

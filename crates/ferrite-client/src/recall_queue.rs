//! The queue of recalls to the party that relies on the client's replies.
//!
//! Contents: [`RecallQueue`]. The thread at its other end is `leased`'s.
//!
//! Invariant: the client gives no lease before it passes recalls on.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::Ino;

use crate::lock_order;

/// Recalls in the queue at a time. A server sends one with each change that waits for it, so that so many are a flood.
pub(super) const RECALLS_MAX: usize = 16 << 10;

/// A recall from the server.
pub(super) struct Recall {
    pub(super) number: u64,
    pub(super) ino: Ino,
}

/// The queue of recalls to the party that relies on the client's replies.
#[derive(Default)]
pub(super) struct RecallQueue {
    is_on: AtomicBool,
    recalls: Mutex<lock_order::PassedOn, Option<SyncSender<Recall>>>,
}

impl RecallQueue {
    /// Whether the client may give leases.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Passes recalls on from now on, to the receiver that `start` gets. Only the first call counts.
    pub(super) fn begin(&self, start: impl FnOnce(Receiver<Recall>) -> io::Result<()>) -> io::Result<()> {
        let mut passed_on = self.recalls.lock();
        if self.is_on() {
            return Ok(());
        }
        let (sender, recalls) = sync_channel(RECALLS_MAX);
        start(recalls)?;
        *passed_on = Some(sender);
        self.is_on.store(true, Ordering::Release);
        Ok(())
    }

    /// False if no party relies on anything, so that the recall can be answered. `None` if too many wait.
    pub(super) fn pass_on(&self, recall: Recall) -> Option<bool> {
        let recalls = self.recalls.lock();
        match recalls.as_ref().map(|recalls| recalls.try_send(recall)) {
            Some(Ok(())) => Some(true),
            Some(Err(TrySendError::Full(_))) => None,
            Some(Err(TrySendError::Disconnected(_))) | None => Some(false),
        }
    }

    /// Notes that the client is closed.
    pub(super) fn end(&self) {
        *self.recalls.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_recalls_is_noticed() {
        let (way, mut kept) = (RecallQueue::default(), None);
        way.begin(|recalls| {
            kept = Some(recalls);
            Ok(())
        })
        .unwrap();
        let recall = |number| Recall { number, ino: number };
        for number in 0..RECALLS_MAX as u64 {
            assert_eq!(way.pass_on(recall(number)), Some(true));
        }
        assert_eq!(way.pass_on(recall(0)), None, "nobody takes any");
        drop(kept);
        assert_eq!(way.pass_on(recall(0)), Some(false), "nobody relies on anything");
    }
}

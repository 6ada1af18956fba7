//! The way of recalls to who relies on what the client has told.
//!
//! What lives here: [`TakingBack`]. The thread at its other end is `leased`'s.
//!
//! Invariant: nothing is vouched for before recalls are passed on.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use ferrite_vfs::Ino;
use parking_lot::Mutex;

/// What the server has asked for.
pub(super) struct Recall {
    pub(super) number: u64,
    pub(super) ino: Ino,
}

/// The way of recalls to who relies on what was told.
#[derive(Default)]
pub(super) struct TakingBack {
    is_on: AtomicBool,
    recalls: Mutex<Option<Sender<Recall>>>,
}

impl TakingBack {
    /// Whether anything may be vouched for.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Passes recalls on from now on, to who is started with them. Only the first call counts.
    pub(super) fn begin(&self, start: impl FnOnce(Receiver<Recall>) -> io::Result<()>) -> io::Result<()> {
        let mut passed_on = self.recalls.lock();
        if self.is_on() {
            return Ok(());
        }
        let (sender, recalls) = channel();
        start(recalls)?;
        *passed_on = Some(sender);
        self.is_on.store(true, Ordering::Release);
        Ok(())
    }

    /// False if nobody relies on anything, so that the recall can be answered.
    pub(super) fn pass_on(&self, recall: Recall) -> bool {
        let recalls = self.recalls.lock();
        recalls.as_ref().is_some_and(|recalls| recalls.send(recall).is_ok())
    }

    /// The client is closed.
    pub(super) fn end(&self) {
        *self.recalls.lock() = None;
    }
}

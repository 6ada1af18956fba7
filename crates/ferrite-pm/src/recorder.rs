//! Records stores, write-backs and fences, so that tests can build the images that a crash could leave.
//!
//! Attached to a [`crate::Region`] before the engine gets it. The log has the true order of events: each takes effect
//! and is logged under one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::crash::{Event, Log};
use crate::error::PmError;
use crate::image::Image;
use crate::thread::thread_number;

/// Logs events of one region.
pub struct Recorder {
    initial: Image,
    events: Mutex<Vec<(usize, Event)>>,
    /// Fences that still work; see [`Recorder::fail_fences_after`].
    fences_left: AtomicU64,
}

impl Recorder {
    /// For a region whose current, durable content is `initial`.
    pub fn new(initial: impl Into<Image>) -> Arc<Self> {
        Arc::new(Recorder {
            initial: initial.into(),
            events: Mutex::default(),
            fences_left: AtomicU64::new(u64::MAX),
        })
    }

    /// Records `tag`, which the log returns later.
    pub fn mark(&self, tag: u64) {
        self.record(|| Event::Mark(tag));
    }

    /// Everything recorded so far.
    pub fn log(&self) -> Log {
        Log::new(self.initial.clone(), self.events.lock().clone())
    }

    /// Lets the given number of further fences work; all later ones fail, like syncs of a failing medium.
    pub fn fail_fences_after(&self, count: u64) {
        self.fences_left.store(count, Ordering::SeqCst);
    }

    /// Logs a fence, or fails it.
    pub(crate) fn fence(&self) -> Result<(), PmError> {
        self.fence_as(Event::Fence)
    }

    /// The same for a sync, which counts as a fence.
    pub(crate) fn sync(&self) -> Result<(), PmError> {
        self.fence_as(Event::Sync)
    }

    fn fence_as(&self, event: Event) -> Result<(), PmError> {
        let left = self
            .fences_left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
                0 => None,
                u64::MAX => Some(left),
                left => Some(left - 1),
            });
        if left.is_err() {
            return Err(PmError::Poisoned("a fence failed because a test asked for it".into()));
        }
        self.record(|| event);
        Ok(())
    }

    /// Logs the event of `effect`. The lock is held over both, so that the log has the order of the effects.
    pub(crate) fn record(&self, effect: impl FnOnce() -> Event) {
        let mut events = self.events.lock();
        let event = effect();
        events.push((thread_number(), event));
    }
}

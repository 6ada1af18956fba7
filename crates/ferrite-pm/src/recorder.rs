//! Records what is stored, written back and fenced, so that tests can build what a crash could leave.
//!
//! Attached to a [`crate::Region`] before the engine gets it. The order of events is the one that really took place:
//! each takes effect and is logged under one lock.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::crash::Log;

/// One recorded step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Words stored through the cache from `offset` on: durable only when written back and fenced.
    Store {
        /// Pool offset, 8-aligned.
        offset: u64,
        /// Values.
        words: Vec<u64>,
    },
    /// Words stored past the cache: durable when this thread fences.
    Stream {
        /// Pool offset, 8-aligned.
        offset: u64,
        /// Values.
        words: Vec<u64>,
    },
    /// A cache line was written back: what it holds is durable when this thread fences.
    WriteBack {
        /// Offset of the line.
        line: u64,
    },
    /// A fence.
    Fence,
    /// The test noted something: that an operation returned, for instance.
    Mark(u64),
}

/// Logs events of one region.
pub struct Recorder {
    initial: Vec<u8>,
    events: Mutex<Vec<(usize, Event)>>,
}

impl Recorder {
    /// For a region that holds `initial` now, durably.
    pub fn new(initial: Vec<u8>) -> Arc<Self> {
        Arc::new(Recorder {
            initial,
            events: Mutex::default(),
        })
    }

    /// Notes `tag`: what [`Log::marks_before`] returns later.
    pub fn mark(&self, tag: u64) {
        self.record(|| Event::Mark(tag));
    }

    /// All that was recorded so far.
    pub fn log(&self) -> Log {
        Log::new(self.initial.clone(), self.events.lock().clone())
    }

    /// Logs what `effect` does. The lock is held over both, so that the log has the order of the effects.
    pub(crate) fn record(&self, effect: impl FnOnce() -> Event) {
        let mut events = self.events.lock();
        let event = effect();
        events.push((crate::counters::thread_number(), event));
    }
}

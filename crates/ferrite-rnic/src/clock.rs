//! Time for the state machines: nanoseconds since some moment.

use std::time::Instant;

/// A clock of one thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Instant::now())
    }

    /// Nanoseconds since it began; never 0, which stands for no time.
    pub(crate) fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64 + 1
    }
}

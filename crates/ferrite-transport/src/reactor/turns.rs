//! How long the threads of a server work between two waits for their sockets.
//!
//! [`Turns`] has the measurements of all threads; with a [`Clock`] a thread measures itself. While one connection has a
//! turn, the other connections of its thread are not read.
//!
//! A measurement costs one clock read for each turn. Only turns of [`LONG`] or more touch shared counters.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// A turn should not take as long.
pub const LONG: Duration = Duration::from_millis(10);
/// A turn this long is worth a warning.
const WARN: Duration = Duration::from_millis(100);

/// A turn ends after so long, even if more has come; the rest is served after the others' turns. By the coarse clock,
/// which moves every 4 ms and is cheap to read.
const TURN_TIME: Duration = Duration::from_millis(5);

/// Of one thread; times in nanoseconds.
#[derive(Debug, Default)]
struct Thread {
    /// Since when it works, 0 while it waits.
    since: AtomicU64,
    /// The longest time at work that has ended since the last call of [`Turns::busy_for`].
    recent: AtomicU64,
    longest: AtomicU64,
    long: AtomicU64,
}

/// The turns of all threads of a server.
#[derive(Debug, Default)]
pub struct Turns {
    threads: Mutex<Vec<Arc<Thread>>>,
}

/// Turns since a server was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TurnCounts {
    /// The longest turn.
    pub longest: Duration,
    /// Turns that took [`LONG`] or more.
    pub long: u64,
}

/// Never 0.
fn stamp(at: Instant) -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    at.saturating_duration_since(*BEGAN.get_or_init(Instant::now))
        .as_nanos() as u64
        + 1
}

impl Turns {
    /// The counts so far.
    pub fn counts(&self) -> TurnCounts {
        let threads = self.threads.lock();
        let longest = threads.iter().map(|of| of.longest.load(Ordering::Relaxed)).max();
        TurnCounts {
            longest: Duration::from_nanos(longest.unwrap_or(0)),
            long: threads.iter().map(|of| of.long.load(Ordering::Relaxed)).sum(),
        }
    }

    /// For how long a thread has not looked at its sockets, at most, since the last call.
    pub fn busy_for(&self) -> Duration {
        let now = stamp(Instant::now());
        let busy = |of: &Arc<Thread>| {
            let since = of.since.load(Ordering::Acquire);
            let current = if since == 0 { 0 } else { now.saturating_sub(since) };
            current.max(of.recent.swap(0, Ordering::Relaxed))
        };
        Duration::from_nanos(self.threads.lock().iter().map(busy).max().unwrap_or(0))
    }

    /// The clock of a new thread.
    pub(super) fn clock(&self) -> Clock {
        let of = Arc::new(Thread::default());
        self.threads.lock().push(Arc::clone(&of));
        let now = Instant::now();
        Clock {
            of,
            began: now,
            last: now,
            longest: LONG,
        }
    }
}

/// See the head of this module.
pub(super) struct Clock {
    of: Arc<Thread>,
    /// When the thread woke up.
    began: Instant,
    /// When the last turn ended.
    last: Instant,
    longest: Duration,
}

impl Clock {
    /// Notes that the thread woke up.
    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
        self.last = self.began;
        self.of.since.store(stamp(self.began), Ordering::Release);
    }

    /// Notes the end of a turn: that of the connection with this number, if it belongs to one.
    pub(super) fn turn(&mut self, connection: Option<u64>) {
        let now = Instant::now();
        let took = now - self.last;
        self.last = now;
        if took < LONG {
            return;
        }
        self.of.long.fetch_add(1, Ordering::Relaxed);
        if took >= self.longest {
            self.longest = took;
            self.of.longest.store(took.as_nanos() as u64, Ordering::Relaxed);
        }
        if took >= WARN {
            let of = connection.map_or("no connection".into(), |number| format!("connection {number}"));
            let took_ms = took.as_millis();
            tracing::warn!("a turn of {of} took {took_ms} ms; the other connections of this thread waited");
        }
    }

    /// Notes that the thread is about to wait.
    pub(super) fn end(&mut self) {
        let took = self.last - self.began;
        if took >= LONG {
            self.of.recent.fetch_max(took.as_nanos() as u64, Ordering::Relaxed);
        }
        self.of.since.store(0, Ordering::Release);
    }
}

/// The time at which a turn must end.
pub(super) struct TurnEnd(Duration);

impl TurnEnd {
    fn now() -> Duration {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    /// For a turn that begins now.
    pub(super) fn new() -> TurnEnd {
        TurnEnd(TurnEnd::now() + TURN_TIME)
    }

    pub(super) fn has_come(&self) -> bool {
        TurnEnd::now() >= self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_turns_are_counted_and_short_ones_are_not() {
        let turns = Turns::default();
        let (mut one, mut other) = (turns.clock(), turns.clock());
        one.begin();
        one.turn(None);
        one.end();
        assert_eq!(turns.counts(), TurnCounts::default());
        assert_eq!(turns.busy_for(), Duration::ZERO);
        other.begin();
        std::thread::sleep(2 * LONG);
        assert!(turns.busy_for() >= 2 * LONG, "while it is at work");
        other.turn(Some(1));
        other.turn(Some(2));
        let counts = turns.counts();
        assert!(counts.longest >= 2 * LONG);
        assert_eq!(counts.long, 1);
        other.end();
        assert!(turns.busy_for() >= 2 * LONG, "once, when it has ended");
        assert_eq!(turns.busy_for(), Duration::ZERO);
    }
}

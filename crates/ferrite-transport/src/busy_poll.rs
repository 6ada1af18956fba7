//! Polling for a while before sleeping, where that pays.
//!
//! Contents: [`BusyPoll`], for threads that wait for a socket: the threads of a server, the receiver of a client, and
//! the adapter of `ferrite-rnic` at both ends. Waking a thread on another core takes longer than most requests, so a
//! thread that sleeps for each reply waits mostly for its wake-up. But polling takes a core from others, and is in vain
//! if the awaited event comes from a thread that needs this very core.
//!
//! So the time to poll depends on the results before. After a sleep that was short enough, the next poll is longer; a
//! long one ends polling, so that an idle thread sleeps. Between two polls the thread yields the core, and if another
//! thread takes it, the next waits do not poll; their number grows while that recurs.

use std::time::{Duration, Instant};

/// How long a thread that waits for a socket polls before it sleeps, at most, by default.
pub const BUSY_POLL: Duration = Duration::from_micros(200);
/// The first time to poll.
const FIRST: Duration = Duration::from_micros(10);
/// If yielding the core takes longer, another thread took it. In vain it takes a few tenths of a microsecond.
const TAKEN: Duration = Duration::from_micros(2);
/// How many waits do not poll after that: at first, because it may have been an interrupt, and at most.
const RESTS: (u32, u32) = (1, 1024);

/// The clock, and the way to yield the core to others. A test has its own: on a busy machine no duration is certain.
pub trait Core {
    /// The current time.
    fn now(&self) -> Instant;
    /// Yields the core.
    fn offer(&self);
}

/// The machine's.
#[derive(Debug, Default)]
pub struct Machine;

impl Core for Machine {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn offer(&self) {
        std::thread::yield_now();
    }
}

/// How long to poll before sleeping.
#[derive(Debug)]
pub struct BusyPoll<C = Machine> {
    core: C,
    most: Duration,
    window: Duration,
    /// How many more waits do not poll.
    rests: u32,
    next_rests: u32,
}

impl BusyPoll {
    /// A value that polls for `most` at most; zero: not at all.
    pub fn new(most: Duration) -> BusyPoll {
        BusyPoll::on(Machine, most)
    }
}

impl<C: Core> BusyPoll<C> {
    fn on(core: C, most: Duration) -> BusyPoll<C> {
        BusyPoll {
            core,
            most,
            window: Duration::ZERO,
            rests: 0,
            next_rests: RESTS.0,
        }
    }

    /// Polls until something is found, or it is time to sleep. `sleep` also tells whether it ended because something
    /// came.
    pub fn wait<T>(&mut self, poll_once: impl FnMut() -> Option<T>, sleep: impl FnOnce() -> (T, bool)) -> T {
        if self.rests > 0 || self.most.is_zero() {
            self.rests = self.rests.saturating_sub(1);
            return sleep().0;
        }
        if let Some(found) = self.poll(poll_once) {
            return found;
        }
        let began = self.core.now();
        let (found, has_come) = sleep();
        self.slept(match has_come {
            true => self.core.now() - began,
            false => Duration::MAX,
        });
        found
    }

    fn poll<T>(&mut self, mut poll_once: impl FnMut() -> Option<T>) -> Option<T> {
        if self.window.is_zero() {
            return None;
        }
        let began = self.core.now();
        let mut last = began;
        loop {
            if let Some(found) = poll_once() {
                self.next_rests = RESTS.0;
                return Some(found);
            }
            if last - began >= self.window {
                return None;
            }
            let offered = self.core.now();
            self.core.offer();
            last = self.core.now();
            if last - offered >= TAKEN {
                self.rest();
                return poll_once();
            }
        }
    }

    /// Another thread wants the core.
    fn rest(&mut self) {
        self.rests = self.next_rests;
        self.next_rests = (self.next_rests * 2).min(RESTS.1);
    }

    /// Something came after a sleep of this length.
    fn slept(&mut self, slept: Duration) {
        self.window = match slept < self.most {
            true => (self.window * 2).clamp(FIRST.min(self.most), self.most),
            false => Duration::ZERO,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MOST: Duration = Duration::from_micros(100);

    /// A core on which time passes when a thread yields it, and while one sleeps.
    struct Model {
        now: Cell<Instant>,
        offer: Cell<Duration>,
    }

    impl Model {
        fn pass(&self, time: Duration) {
            self.now.set(self.now.get() + time);
        }
    }

    impl Core for &Model {
        fn now(&self) -> Instant {
            self.now.get()
        }

        fn offer(&self) {
            self.pass(self.offer.get());
        }
    }

    fn model() -> Model {
        Model {
            now: Cell::new(Instant::now()),
            offer: Cell::new(Duration::from_nanos(300)),
        }
    }

    /// How often it polls before it sleeps, in a wait that then takes so long.
    fn polls(busy_poll: &mut BusyPoll<&Model>, slept: Duration) -> usize {
        let mut count = 0;
        let core = busy_poll.core;
        busy_poll.wait(
            || {
                count += 1;
                None
            },
            || {
                core.pass(slept);
                ((), true)
            },
        );
        count
    }

    #[test]
    fn who_is_idle_sleeps_at_once() {
        let core = model();
        let mut busy_poll = BusyPoll::on(&core, MOST);
        assert_eq!(
            polls(&mut busy_poll, Duration::from_micros(50)),
            0,
            "nothing is known yet"
        );
        assert!(polls(&mut busy_poll, Duration::from_secs(1)) > 0);
        assert_eq!(polls(&mut busy_poll, Duration::ZERO), 0);
        assert!(polls(&mut busy_poll, Duration::ZERO) > 0);
        busy_poll.wait(|| None, || ((), false));
        assert_eq!(polls(&mut busy_poll, Duration::ZERO), 0, "nothing came at all");
    }

    #[test]
    fn short_sleeps_lengthen_the_poll_up_to_its_limit() {
        let core = model();
        let mut busy_poll = BusyPoll::on(&core, MOST);
        let mut windows = Vec::new();
        for _ in 0..6 {
            let began = core.now.get();
            polls(&mut busy_poll, Duration::ZERO);
            windows.push((core.now.get() - began).as_nanos().div_ceil(1_000));
        }
        assert_eq!(windows, [0, 11, 21, 41, 81, 101], "at most one poll past the window");
        let mut never = BusyPoll::on(&core, Duration::ZERO);
        assert_eq!(polls(&mut never, Duration::ZERO) + polls(&mut never, Duration::ZERO), 0);
    }

    #[test]
    fn who_shares_a_core_rests_ever_longer() {
        let core = model();
        let free = core.offer.get();
        let mut busy_poll = BusyPoll::on(&core, MOST);
        polls(&mut busy_poll, Duration::ZERO);
        for rests in [1, 2, 4, 8] {
            core.offer.set(TAKEN);
            assert_eq!(
                polls(&mut busy_poll, Duration::ZERO),
                2,
                "once more after its core was taken"
            );
            core.offer.set(free);
            for _ in 0..rests {
                assert_eq!(polls(&mut busy_poll, Duration::ZERO), 0, "it rests {rests} times");
            }
            assert!(polls(&mut busy_poll, Duration::ZERO) > 2, "and not longer");
        }
        assert_eq!(busy_poll.poll(|| Some(1)), Some(1));
        core.offer.set(TAKEN);
        polls(&mut busy_poll, Duration::ZERO);
        core.offer.set(free);
        assert_eq!(polls(&mut busy_poll, Duration::ZERO), 0);
        assert!(polls(&mut busy_poll, Duration::ZERO) > 0, "polling pays again");
    }
}

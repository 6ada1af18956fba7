//! Looking for something again and again before sleeping, where that pays.
//!
//! Contents: [`Spin`], for whoever waits for a socket: the threads of a server, the receiver of a client, and
//! the adapter of `ferrite-rnic` at both ends.
//! Waking a thread on another core takes longer than most requests, so who sleeps for each answer waits mostly for
//! that. But looking takes a core from others, and is in vain if what is waited for comes from somebody who needs this
//! very core.
//!
//! So how long is looked depends on what came of it before. After a sleep that was short enough, the next look is
//! longer; after a long one there is none, so that who is idle sleeps. Between two looks the core is offered to others,
//! and if somebody takes it, there is no looking for a number of times, which grows while that goes on.

use std::time::{Duration, Instant};

/// How long at most who waits for a socket looks before it sleeps, unless told otherwise.
pub const SPIN: Duration = Duration::from_micros(200);
/// How long is looked first.
const FIRST: Duration = Duration::from_micros(10);
/// If offering the core takes longer, somebody took it. In vain it takes a few tenths of a microsecond.
const TAKEN: Duration = Duration::from_micros(2);
/// How many times there is no looking after that: at first, which may have been an interrupt, and at most.
const RESTS: (u32, u32) = (1, 1024);

/// What time it is, and the way to offer the core to others. A test has one of its own: nothing is certain about how
/// long something takes on a busy machine.
pub trait Core {
    /// What time it is.
    fn now(&self) -> Instant;
    /// Offers the core.
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

/// How long to look before sleeping.
#[derive(Debug)]
pub struct Spin<C = Machine> {
    core: C,
    most: Duration,
    window: Duration,
    /// So many times there is no looking.
    rests: u32,
    next_rests: u32,
}

impl Spin {
    /// One that looks for `most` at most; zero: not at all.
    pub fn new(most: Duration) -> Spin {
        Spin::on(Machine, most)
    }
}

impl<C: Core> Spin<C> {
    fn on(core: C, most: Duration) -> Spin<C> {
        Spin {
            core,
            most,
            window: Duration::ZERO,
            rests: 0,
            next_rests: RESTS.0,
        }
    }

    /// Looks until something is found, or it is time to sleep. `sleep` also tells whether it ended because something
    /// came.
    pub fn wait<T>(&mut self, look: impl FnMut() -> Option<T>, sleep: impl FnOnce() -> (T, bool)) -> T {
        if self.rests > 0 || self.most.is_zero() {
            self.rests = self.rests.saturating_sub(1);
            return sleep().0;
        }
        if let Some(found) = self.look(look) {
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

    fn look<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if self.window.is_zero() {
            return None;
        }
        let began = self.core.now();
        let mut last = began;
        loop {
            if let Some(found) = look() {
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
                return look();
            }
        }
    }

    /// The core is wanted by somebody else.
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

    /// A core on which time passes when it is offered, and while somebody sleeps.
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

    /// How often it looks before it sleeps, in a wait that then takes so long.
    fn looks(spin: &mut Spin<&Model>, slept: Duration) -> usize {
        let mut count = 0;
        let core = spin.core;
        spin.wait(
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
        let mut spin = Spin::on(&core, MOST);
        assert_eq!(looks(&mut spin, Duration::from_micros(50)), 0, "nothing is known yet");
        assert!(looks(&mut spin, Duration::from_secs(1)) > 0);
        assert_eq!(looks(&mut spin, Duration::ZERO), 0);
        assert!(looks(&mut spin, Duration::ZERO) > 0);
        spin.wait(|| None, || ((), false));
        assert_eq!(looks(&mut spin, Duration::ZERO), 0, "nothing came at all");
    }

    #[test]
    fn short_sleeps_lengthen_the_look_up_to_its_limit() {
        let core = model();
        let mut spin = Spin::on(&core, MOST);
        let mut windows = Vec::new();
        for _ in 0..6 {
            let began = core.now.get();
            looks(&mut spin, Duration::ZERO);
            windows.push((core.now.get() - began).as_nanos().div_ceil(1_000));
        }
        assert_eq!(windows, [0, 11, 21, 41, 81, 101], "at most one look past the window");
        let mut never = Spin::on(&core, Duration::ZERO);
        assert_eq!(looks(&mut never, Duration::ZERO) + looks(&mut never, Duration::ZERO), 0);
    }

    #[test]
    fn who_shares_a_core_rests_ever_longer() {
        let core = model();
        let free = core.offer.get();
        let mut spin = Spin::on(&core, MOST);
        looks(&mut spin, Duration::ZERO);
        for rests in [1, 2, 4, 8] {
            core.offer.set(TAKEN);
            assert_eq!(
                looks(&mut spin, Duration::ZERO),
                2,
                "once more after its core was taken"
            );
            core.offer.set(free);
            for _ in 0..rests {
                assert_eq!(looks(&mut spin, Duration::ZERO), 0, "it rests {rests} times");
            }
            assert!(looks(&mut spin, Duration::ZERO) > 2, "and not longer");
        }
        assert_eq!(spin.look(|| Some(1)), Some(1));
        core.offer.set(TAKEN);
        looks(&mut spin, Duration::ZERO);
        core.offer.set(free);
        assert_eq!(looks(&mut spin, Duration::ZERO), 0);
        assert!(looks(&mut spin, Duration::ZERO) > 0, "looking pays again");
    }
}

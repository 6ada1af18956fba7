//! The time that an operation spends, by stage, on the calling thread.
//!
//! Contents: the probes, which all crates of the engine set ([`enter`], [`within`], [`turn_to`]), and the
//! evaluation ([`begin`], [`end`], [`calibrate`]), which only measurements call.
//!
//! Without the feature `stages` the probes are empty and cost nothing; only a profiling build of the program has them.
//! With it, each border between two stages reads the time-stamp counter once. Its cost is measured and subtracted, half
//! on either side of the border.
//!
//! Invariant: from [`begin`] to [`end`] every tick belongs to exactly one stage. A stage that is entered within another
//! interrupts it.
//!
//! A border waits for loads, so that a miss is charged to the stage that has it, but not for stores: a stream drains
//! while other stages run. A store fence itself does not wait either; a later instruction does, the first locked one at
//! the latest. [`drained`] makes the stage of the fence include the wait. So less overlaps with probes than without:
//! the stages add up to somewhat more than the whole.

/// The stages of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Everything else: checks, the clock, calls.
    Rest,
    /// Finding inode, name and page, and the words that name them.
    Lookup,
    /// Taking locks: of inodes, of a ring, of the move lock.
    Lock,
    /// Claiming free space: blocks, log segments, inodes.
    Claim,
    /// Copying data out of the pool.
    Copy,
    /// Streaming data past the cache.
    Stream,
    /// Checksums of data, of log entries and of inodes.
    Checksum,
    /// Gathering, checksumming and streaming the record.
    Record,
    /// The fence: waits for streams.
    Fence,
    /// Storing words where they belong, and writing lines back.
    Words,
    /// Bookkeeping in DRAM: dirty lines, live records, freed space, numbers.
    Books,
}

impl Stage {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Stage; 11] = [
        Stage::Lookup,
        Stage::Lock,
        Stage::Claim,
        Stage::Copy,
        Stage::Stream,
        Stage::Checksum,
        Stage::Record,
        Stage::Fence,
        Stage::Words,
        Stage::Books,
        Stage::Rest,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Rest => "rest",
            Stage::Lookup => "lookup",
            Stage::Lock => "lock",
            Stage::Claim => "claim",
            Stage::Copy => "copy",
            Stage::Stream => "stream",
            Stage::Checksum => "checksum",
            Stage::Record => "record",
            Stage::Fence => "fence",
            Stage::Words => "words",
            Stage::Books => "books",
        }
    }
}

/// Whether the probes are there.
pub const IS_BUILT_IN: bool = cfg!(feature = "stages");

/// The time of a thread between [`begin`] and [`end`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Profile {
    ticks: [u64; Stage::ALL.len()],
    visits: [u64; Stage::ALL.len()],
    borders: [u64; Stage::ALL.len()],
    /// Ticks from [`begin`] to [`end`].
    pub whole_ticks: u64,
}

impl Profile {
    /// Ticks in a stage, probes included.
    pub fn ticks(&self, stage: Stage) -> u64 {
        self.ticks[stage as usize]
    }

    /// How often it was entered.
    pub fn visits(&self, stage: Stage) -> u64 {
        self.visits[stage as usize]
    }

    /// Ends of its stretches: half of them began one, half ended one.
    pub fn borders(&self, stage: Stage) -> u64 {
        self.borders[stage as usize]
    }

    /// Nanoseconds in a stage, without the probes: each end of a stretch costs it half a border.
    pub fn ns(&self, stage: Stage, clock: Clock) -> f64 {
        let probes = self.borders(stage) as f64 * clock.border_ticks / 2.0;
        (self.ticks(stage) as f64 - probes) * clock.ns_per_tick
    }
}

/// The calibration of the counter and the probes, from [`calibrate`].
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Length of a tick.
    pub ns_per_tick: f64,
    /// The cost of a border between two stages.
    pub border_ticks: f64,
}

#[cfg(feature = "stages")]
pub use probes::{Within, begin, calibrate, drained, end, enter, enter_unless_in, turn_to};

#[cfg(not(feature = "stages"))]
mod probes {
    use super::{Clock, Profile, Stage};

    /// Nothing.
    #[derive(Debug)]
    pub struct Within;

    /// Nothing, see the module's head.
    #[inline(always)]
    pub fn enter(_: Stage) -> Within {
        Within
    }

    /// Nothing.
    #[inline(always)]
    pub fn enter_unless_in(_: Stage, _: Stage) -> Within {
        Within
    }

    /// Nothing.
    #[inline(always)]
    pub fn turn_to(_: Stage) {}

    /// Nothing.
    #[inline(always)]
    pub fn drained() {}

    /// Nothing.
    pub fn begin() {}

    /// An empty profile.
    pub fn end() -> Profile {
        Profile::default()
    }

    /// An empty calibration.
    pub fn calibrate() -> Clock {
        Clock {
            ns_per_tick: 0.0,
            border_ticks: 0.0,
        }
    }
}

#[cfg(not(feature = "stages"))]
pub use probes::{Within, begin, calibrate, drained, end, enter, enter_unless_in, turn_to};

/// Runs `work` as part of a stage.
#[inline(always)]
pub fn within<T>(stage: Stage, work: impl FnOnce() -> T) -> T {
    let _stage = enter(stage);
    work()
}

#[cfg(feature = "stages")]
mod probes {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use super::{Clock, Profile, Stage};
    use crate::cpu::{drain, ticks};

    /// How long the calibration reads the clock.
    const LOOK: Duration = Duration::from_millis(20);
    /// Borders of one round of the calibration, of which the cheapest round counts: others were interrupted.
    const BORDERS: u64 = 20_000;
    const ROUNDS: usize = 15;

    /// A thread's account.
    struct Account {
        is_open: Cell<bool>,
        stage: Cell<Stage>,
        since: Cell<u64>,
        start: Cell<u64>,
        ticks: [Cell<u64>; Stage::ALL.len()],
        visits: [Cell<u64>; Stage::ALL.len()],
        borders: [Cell<u64>; Stage::ALL.len()],
    }

    thread_local! {
        static ACCOUNT: Account = const {
            Account {
                is_open: Cell::new(false),
                stage: Cell::new(Stage::Rest),
                since: Cell::new(0),
                start: Cell::new(0),
                ticks: [const { Cell::new(0) }; Stage::ALL.len()],
                visits: [const { Cell::new(0) }; Stage::ALL.len()],
                borders: [const { Cell::new(0) }; Stage::ALL.len()],
            }
        };
    }

    fn add(count: &Cell<u64>, amount: u64) {
        count.set(count.get() + amount);
    }

    impl Account {
        /// Charges the time since the last border to the current stage, which it returns, and continues with `stage`.
        #[inline]
        fn change(&self, stage: Stage) -> Stage {
            let before = self.stage.replace(stage);
            add(&self.borders[before as usize], 1);
            add(&self.borders[stage as usize], 1);
            let now = ticks();
            add(&self.ticks[before as usize], now - self.since.replace(now));
            before
        }
    }

    /// Ends a stage when dropped.
    #[derive(Debug)]
    pub struct Within(Option<Stage>);

    impl Drop for Within {
        #[inline]
        fn drop(&mut self) {
            if let Some(before) = self.0 {
                ACCOUNT.with(|account| account.change(before));
            }
        }
    }

    /// Begins a stage, which ends when the returned value is dropped; then the current one continues.
    #[inline]
    pub fn enter(stage: Stage) -> Within {
        ACCOUNT.with(|account| {
            Within(account.is_open.get().then(|| {
                add(&account.visits[stage as usize], 1);
                account.change(stage)
            }))
        })
    }

    /// The same, unless the current stage is `outer`, which then continues.
    #[inline]
    pub fn enter_unless_in(outer: Stage, stage: Stage) -> Within {
        match ACCOUNT.with(|account| account.stage.get() == outer) {
            true => Within(None),
            false => enter(stage),
        }
    }

    /// Continues with another stage, until the one around it ends.
    #[inline]
    pub fn turn_to(stage: Stage) {
        ACCOUNT.with(|account| {
            if account.is_open.get() {
                add(&account.visits[stage as usize], 1);
                account.change(stage);
            }
        });
    }

    /// Waits for this thread's stores, if its account is open: otherwise a later stage would.
    #[inline]
    pub fn drained() {
        if ACCOUNT.with(|account| account.is_open.get()) {
            drain();
        }
    }

    /// Opens this thread's account, in the stage [`Stage::Rest`].
    pub fn begin() {
        ACCOUNT.with(|account| {
            for counts in [&account.ticks, &account.visits, &account.borders] {
                counts.iter().for_each(|count| count.set(0));
            }
            account.stage.set(Stage::Rest);
            account.is_open.set(true);
            let now = ticks();
            account.since.set(now);
            account.start.set(now);
        });
    }

    /// Closes it, and returns its content.
    pub fn end() -> Profile {
        ACCOUNT.with(|account| {
            let now = ticks();
            add(&account.ticks[account.stage.get() as usize], now - account.since.get());
            account.is_open.set(false);
            Profile {
                ticks: account.ticks.each_ref().map(Cell::get),
                visits: account.visits.each_ref().map(Cell::get),
                borders: account.borders.each_ref().map(Cell::get),
                whole_ticks: now - account.start.get(),
            }
        })
    }

    /// Measures the length of a tick, and the cost of a border. Takes some hundredths of a second.
    pub fn calibrate() -> Clock {
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < LOOK {}
        let ns_per_tick = start.elapsed().as_nanos() as f64 / (ticks() - first) as f64;
        let round = || {
            begin();
            for _ in 0..BORDERS / 2 {
                let _stage = enter(std::hint::black_box(Stage::Books));
            }
            end().whole_ticks as f64 / BORDERS as f64
        };
        let border_ticks = (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
        Clock {
            ns_per_tick,
            border_ticks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time outside of every stage is rest; a stage that interrupts another is not part of it.
    #[test]
    #[cfg(feature = "stages")]
    fn every_tick_belongs_to_one_stage() {
        let spin = || (0..2000u64).fold(1u64, |a, b| std::hint::black_box(a.wrapping_mul(31) + b % 2));
        begin();
        spin();
        within(Stage::Lookup, || {
            spin();
            within(Stage::Claim, spin);
            turn_to(Stage::Books);
            spin();
        });
        spin();
        let profile = end();
        let sum: u64 = Stage::ALL.iter().map(|&stage| profile.ticks(stage)).sum();
        assert_eq!(sum, profile.whole_ticks);
        for stage in [Stage::Rest, Stage::Lookup, Stage::Claim, Stage::Books] {
            assert!(profile.ticks(stage) > 1000, "{stage:?} has {}", profile.ticks(stage));
        }
        let visits = [Stage::Lookup, Stage::Claim, Stage::Books, Stage::Fence].map(|stage| profile.visits(stage));
        assert_eq!(visits, [1, 1, 1, 0]);
        // In and out of each, but for the stage that another took the place of.
        let borders = [Stage::Rest, Stage::Lookup, Stage::Claim, Stage::Books].map(|stage| profile.borders(stage));
        assert_eq!(borders, [2, 4, 2, 2]);
        assert_eq!(profile.ticks(Stage::Fence), 0);
    }

    #[test]
    #[cfg(feature = "stages")]
    fn a_closed_account_takes_nothing_and_other_threads_have_their_own() {
        within(Stage::Lock, || {});
        begin();
        std::thread::spawn(|| within(Stage::Fence, || {}))
            .join()
            .expect("it does not panic");
        let profile = end();
        within(Stage::Lock, || {});
        assert_eq!([Stage::Fence, Stage::Lock].map(|stage| profile.visits(stage)), [0, 0]);
    }

    #[test]
    #[cfg(feature = "stages")]
    fn a_border_costs_some_nanoseconds() {
        let clock = calibrate();
        let border_ns = clock.border_ticks * clock.ns_per_tick;
        assert!((1.0..1000.0).contains(&border_ns), "{border_ns} ns");
    }

    #[test]
    #[cfg(not(feature = "stages"))]
    fn without_the_feature_a_probe_is_nothing() {
        assert_eq!(size_of::<Within>(), 0);
        assert!(!std::mem::needs_drop::<Within>());
        begin();
        within(Stage::Fence, || {});
        assert_eq!(end(), Profile::default());
    }

    #[test]
    fn each_stage_is_shown_once() {
        let mut names: Vec<_> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Stage::ALL.len());
        assert_eq!(Stage::ALL.last(), Some(&Stage::Rest));
    }
}

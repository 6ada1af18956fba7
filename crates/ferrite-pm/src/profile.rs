//! The time that an operation spends, by span, on the calling thread.
//!
//! Contents: the probes, which all crates of the engine set ([`enter`], [`within`], [`turn_to`]), and the
//! evaluation ([`begin`], [`end`], [`calibrate`]), which only measurements call.
//!
//! Without the feature `spans` the probes are empty and cost nothing; only a profiling build of the program has them.
//! With it, each border between two spans reads the time-stamp counter once. Its cost is measured and subtracted, half
//! on either side of the border.
//!
//! Invariant: from [`begin`] to [`end`] every tick belongs to exactly one span. A span that is entered within another
//! interrupts it.
//!
//! A border waits for loads, so that a miss is charged to the span that has it, but not for stores: a stream drains
//! while other spans run. A store fence itself does not wait either; a later instruction does, the first locked one at
//! the latest. [`drained`] makes the span of the fence include the wait. So less overlaps with probes than without:
//! the spans add up to somewhat more than the whole.

/// The spans of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileSpan {
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

impl ProfileSpan {
    /// All of them, in the order in which they are shown.
    pub const ALL: [ProfileSpan; 11] = [
        ProfileSpan::Lookup,
        ProfileSpan::Lock,
        ProfileSpan::Claim,
        ProfileSpan::Copy,
        ProfileSpan::Stream,
        ProfileSpan::Checksum,
        ProfileSpan::Record,
        ProfileSpan::Fence,
        ProfileSpan::Words,
        ProfileSpan::Books,
        ProfileSpan::Rest,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ProfileSpan::Rest => "rest",
            ProfileSpan::Lookup => "lookup",
            ProfileSpan::Lock => "lock",
            ProfileSpan::Claim => "claim",
            ProfileSpan::Copy => "copy",
            ProfileSpan::Stream => "stream",
            ProfileSpan::Checksum => "checksum",
            ProfileSpan::Record => "record",
            ProfileSpan::Fence => "fence",
            ProfileSpan::Words => "words",
            ProfileSpan::Books => "books",
        }
    }
}

/// Whether the probes are there.
pub const IS_BUILT_IN: bool = cfg!(feature = "spans");

/// The time of a thread between [`begin`] and [`end`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Profile {
    ticks: [u64; ProfileSpan::ALL.len()],
    visits: [u64; ProfileSpan::ALL.len()],
    borders: [u64; ProfileSpan::ALL.len()],
    /// Ticks from [`begin`] to [`end`].
    pub whole_ticks: u64,
}

impl Profile {
    /// Ticks in a span, probes included.
    pub fn ticks(&self, span: ProfileSpan) -> u64 {
        self.ticks[span as usize]
    }

    /// How often it was entered.
    pub fn visits(&self, span: ProfileSpan) -> u64 {
        self.visits[span as usize]
    }

    /// Ends of its stretches: half of them began one, half ended one.
    pub fn borders(&self, span: ProfileSpan) -> u64 {
        self.borders[span as usize]
    }

    /// Nanoseconds in a span, without the probes: each end of a stretch costs it half a border.
    pub fn ns(&self, span: ProfileSpan, clock: Clock) -> f64 {
        let probes = self.borders(span) as f64 * clock.border_ticks / 2.0;
        (self.ticks(span) as f64 - probes) * clock.ns_per_tick
    }
}

/// The calibration of the counter and the probes, from [`calibrate`].
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Length of a tick.
    pub ns_per_tick: f64,
    /// The cost of a border between two spans.
    pub border_ticks: f64,
}

#[cfg(feature = "spans")]
pub use probes::{Within, begin, calibrate, drained, end, enter, enter_unless_in, turn_to};

#[cfg(not(feature = "spans"))]
mod probes {
    use super::{Clock, Profile, ProfileSpan};

    /// Nothing.
    #[derive(Debug)]
    pub struct Within;

    /// Nothing, see the module's head.
    #[inline(always)]
    pub fn enter(_: ProfileSpan) -> Within {
        Within
    }

    /// Nothing.
    #[inline(always)]
    pub fn enter_unless_in(_: ProfileSpan, _: ProfileSpan) -> Within {
        Within
    }

    /// Nothing.
    #[inline(always)]
    pub fn turn_to(_: ProfileSpan) {}

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

#[cfg(not(feature = "spans"))]
pub use probes::{Within, begin, calibrate, drained, end, enter, enter_unless_in, turn_to};

/// Runs `work` as part of a span.
#[inline(always)]
pub fn within<T>(span: ProfileSpan, work: impl FnOnce() -> T) -> T {
    let _span = enter(span);
    work()
}

#[cfg(feature = "spans")]
mod probes {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use super::{Clock, Profile, ProfileSpan};
    use crate::cpu::{drain, ticks};

    /// How long the calibration reads the clock.
    const LOOK: Duration = Duration::from_millis(20);
    /// Borders of one round of the calibration, of which the cheapest round counts: others were interrupted.
    const BORDERS: u64 = 20_000;
    const ROUNDS: usize = 15;

    /// A thread's account.
    struct Account {
        is_open: Cell<bool>,
        span: Cell<ProfileSpan>,
        since: Cell<u64>,
        start: Cell<u64>,
        ticks: [Cell<u64>; ProfileSpan::ALL.len()],
        visits: [Cell<u64>; ProfileSpan::ALL.len()],
        borders: [Cell<u64>; ProfileSpan::ALL.len()],
    }

    thread_local! {
        static ACCOUNT: Account = const {
            Account {
                is_open: Cell::new(false),
                span: Cell::new(ProfileSpan::Rest),
                since: Cell::new(0),
                start: Cell::new(0),
                ticks: [const { Cell::new(0) }; ProfileSpan::ALL.len()],
                visits: [const { Cell::new(0) }; ProfileSpan::ALL.len()],
                borders: [const { Cell::new(0) }; ProfileSpan::ALL.len()],
            }
        };
    }

    fn add(count: &Cell<u64>, amount: u64) {
        count.set(count.get() + amount);
    }

    impl Account {
        /// Charges the time since the last border to the current span, which it returns, and continues with `span`.
        #[inline]
        fn change(&self, span: ProfileSpan) -> ProfileSpan {
            let before = self.span.replace(span);
            add(&self.borders[before as usize], 1);
            add(&self.borders[span as usize], 1);
            let now = ticks();
            add(&self.ticks[before as usize], now - self.since.replace(now));
            before
        }
    }

    /// Ends a span when dropped.
    #[derive(Debug)]
    pub struct Within(Option<ProfileSpan>);

    impl Drop for Within {
        #[inline]
        fn drop(&mut self) {
            if let Some(before) = self.0 {
                ACCOUNT.with(|account| account.change(before));
            }
        }
    }

    /// Begins a span, which ends when the returned value is dropped; then the current one continues.
    #[inline]
    pub fn enter(span: ProfileSpan) -> Within {
        ACCOUNT.with(|account| {
            Within(account.is_open.get().then(|| {
                add(&account.visits[span as usize], 1);
                account.change(span)
            }))
        })
    }

    /// The same, unless the current span is `outer`, which then continues.
    #[inline]
    pub fn enter_unless_in(outer: ProfileSpan, span: ProfileSpan) -> Within {
        match ACCOUNT.with(|account| account.span.get() == outer) {
            true => Within(None),
            false => enter(span),
        }
    }

    /// Continues with another span, until the one around it ends.
    #[inline]
    pub fn turn_to(span: ProfileSpan) {
        ACCOUNT.with(|account| {
            if account.is_open.get() {
                add(&account.visits[span as usize], 1);
                account.change(span);
            }
        });
    }

    /// Waits for this thread's stores, if its account is open: otherwise a later span would.
    #[inline]
    pub fn drained() {
        if ACCOUNT.with(|account| account.is_open.get()) {
            drain();
        }
    }

    /// Opens this thread's account, in the span [`ProfileSpan::Rest`].
    pub fn begin() {
        ACCOUNT.with(|account| {
            for counts in [&account.ticks, &account.visits, &account.borders] {
                counts.iter().for_each(|count| count.set(0));
            }
            account.span.set(ProfileSpan::Rest);
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
            add(&account.ticks[account.span.get() as usize], now - account.since.get());
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
                let _span = enter(std::hint::black_box(ProfileSpan::Books));
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

    #[test]
    #[cfg(not(feature = "spans"))]
    fn without_the_feature_a_probe_is_nothing() {
        assert_eq!(size_of::<Within>(), 0);
        assert!(!std::mem::needs_drop::<Within>());
        begin();
        within(ProfileSpan::Fence, || {});
        assert_eq!(end(), Profile::default());
    }

    #[test]
    fn each_span_is_shown_once() {
        let mut names: Vec<_> = ProfileSpan::ALL.iter().map(|span| span.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ProfileSpan::ALL.len());
        assert_eq!(ProfileSpan::ALL.last(), Some(&ProfileSpan::Rest));
    }
}

//! Busy polling: a reader that has served a request looks for the next one for a moment, before it sleeps.
//!
//! A program that makes one call after another sleeps while each is served, and so would the reader in between. To
//! wake a thread on a sleeping CPU takes longer than to serve most requests, in a virtual machine several times as
//! long: with polling an archive is unpacked in 0.7 of the time.
//!
//! Contents: [`BusyPoll`], shared by the readers of a mount; [`Pace`], of one reader. Up to [`LEADERS_MAX`] readers
//! lead: they poll, and serve what they find. The others keep out of the kernel's queue meanwhile, since the kernel
//! wakes one that waits there for each request, also if a leader is about to take it.
//!
//! Decisions, with reasons:
//! * There are two leaders, because the CPU of the caller sleeps with it, and is slow to wake as well. One of the two
//!   is mostly there.
//! * A leader calls for help if requests wait each time it has served one. The others also look by themselves, every
//!   [`LOOK_EVERY`]: the leaders may be held up.
//! * It does not lead during a request that may take long.
//! * Polling that finds nothing again and again pauses, for longer each time, and so does polling of a thread that lost
//!   its CPU. All polling stops while other threads want all CPUs ([`Load`]).
//! * An engine that may wait for a device or a network is not polled for: its requests take longer than a wake-up.
//!
//! Invariant: while a request waits, a reader is on its way to it: one that polls, one in the kernel's queue, or one
//! that will look within [`LOOK_EVERY`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use parking_lot::Mutex;

use crate::load::Load;

/// Readers that poll at a time.
const LEADERS_MAX: usize = 2;
/// How long a leader looks for a request: longer than programs take between two calls, if they do little else, and
/// about what waking a thread costs.
const WINDOW: Duration = Duration::from_micros(50);
/// A look takes about 1 µs. After one this long, the thread had lost its CPU to another.
const PREEMPTED_AFTER: Duration = Duration::from_micros(500);
/// How often readers that do not lead look for requests.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// After so many looks without a request they sleep in the kernel's queue: the leaders may do so by now, too.
const LOOKS_MAX: u32 = 16;
/// So many requests in a row that waited call for help.
const BACKLOG: u32 = 4;
/// After each window without a request, up to so many in a row, a reader serves twice as many requests before it polls
/// again.
const FAILURES_MAX: u32 = 8;
/// Fewer such windows than these have no consequence.
const FAILURES_FREE: u32 = 2;

/// See the head of this module.
pub(crate) struct BusyPoll {
    is_on: bool,
    leaders: AtomicUsize,
    load: Load,
    /// Readers that wait for the leaders to end, or to call.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

/// The polling of one reader, and how it has paid.
#[derive(Default)]
pub(crate) struct Pace {
    leads: bool,
    failures: u32,
    /// Requests to serve before it polls again.
    pause: u32,
    /// Requests in a row that waited already.
    backlog: u32,
}

impl Pace {
    /// Polling has not paid so many times in a row.
    fn fail(&mut self, failures: u32) {
        self.failures = failures.min(FAILURES_MAX);
        self.pause = (1 << self.failures) >> FAILURES_FREE;
    }

    /// Looks for a request for a while.
    fn poll(&mut self, is_pending: impl Fn() -> bool) -> bool {
        if is_pending() {
            self.backlog += 1;
            self.failures = 0;
            return true;
        }
        self.backlog = 0;
        let began = Instant::now();
        let mut last = began;
        loop {
            let is_found = is_pending();
            let now = Instant::now();
            if now - last > PREEMPTED_AFTER {
                self.fail(FAILURES_MAX);
                return is_found;
            }
            if is_found {
                self.failures = 0;
                return true;
            }
            if now - began > WINDOW {
                self.fail(self.failures + 1);
                return false;
            }
            last = now;
        }
    }
}

impl BusyPoll {
    /// Polling for a mount, if `is_on` and there is a CPU for it besides that of the caller.
    pub(crate) fn new(is_on: bool) -> BusyPoll {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        BusyPoll {
            is_on: is_on && cpus > 1,
            leaders: AtomicUsize::new(0),
            load: Load::new(cpus),
            waiting: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::default(),
        }
    }

    /// Returns when the reader should read: because a request is there, or to wait for one in the kernel's queue.
    pub(crate) fn wait(&self, pace: &mut Pace, is_pending: impl Fn() -> bool) {
        if !self.is_on {
            return;
        }
        let pauses = pace.pause > 0;
        pace.pause = pace.pause.saturating_sub(1);
        for _ in 0..LOOKS_MAX {
            if pace.leads || !pauses && self.lead(pace) {
                if !pace.poll(&is_pending) || pace.pause > 0 || self.is_loaded() {
                    self.stop(pace);
                } else if pace.backlog >= BACKLOG {
                    pace.backlog = 0;
                    self.call();
                }
                return;
            }
            if !self.is_led() || is_pending() {
                return;
            }
            let mut lock = self.lock.lock();
            self.waiting.fetch_add(1, Ordering::SeqCst);
            // A leader ends before it looks whether any wait.
            if self.is_led() {
                self.changed.wait_for(&mut lock, LOOK_EVERY);
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            drop(lock);
            if is_pending() {
                return;
            }
        }
    }

    fn lead(&self, pace: &mut Pace) -> bool {
        if self.is_loaded() {
            return false;
        }
        let more = |leaders| (leaders < LEADERS_MAX).then_some(leaders + 1);
        let counted = self.leaders.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        pace.leads = counted.is_ok();
        pace.leads
    }

    fn is_led(&self) -> bool {
        self.leaders.load(Ordering::SeqCst) > 0
    }

    fn is_loaded(&self) -> bool {
        self.load.is_high(self.leaders.load(Ordering::SeqCst))
    }

    /// The reader leads no longer, if it did: it is about to wait in the kernel's queue, to serve a request that may
    /// take long, or to end.
    pub(crate) fn stop(&self, pace: &mut Pace) {
        if std::mem::take(&mut pace.leads) {
            let others = self.leaders.fetch_sub(1, Ordering::SeqCst) - 1;
            if others == 0 && self.waiting.load(Ordering::SeqCst) > 0 {
                let _lock = self.lock.lock();
                self.changed.notify_all();
            }
        }
    }

    /// Has another reader look for requests.
    fn call(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let _lock = self.lock.lock();
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    use super::*;

    /// Whatever else runs here.
    fn on() -> BusyPoll {
        BusyPoll {
            is_on: true,
            load: Load::new(usize::MAX >> 32),
            ..BusyPoll::new(true)
        }
    }

    #[test]
    fn readers_lead_while_polling_pays() {
        let polling = on();
        let (mut first, mut third) = (Pace::default(), Pace::default());
        let looks = Cell::new(0);
        polling.wait(&mut first, || looks.replace(looks.get() + 1) > 3);
        // Unless this machine is busy.
        if first.leads {
            assert_eq!((first.pause, first.backlog), (0, 0));
            let mut second = Pace::default();
            polling.wait(&mut second, || true);
            polling.wait(&mut third, || true);
            assert!(second.leads && !third.leads, "two lead");
            polling.stop(&mut second);
        }
        while first.pause == 0 {
            polling.wait(&mut first, || false);
            assert!(!first.leads, "no request came");
        }
        assert!(!polling.is_led());
        let pause = first.pause;
        polling.wait(&mut first, || panic!("it waits in the kernel's queue"));
        assert_eq!(first.pause, pause - 1);
    }

    #[test]
    fn what_does_not_pay_pauses_longer_and_longer() {
        let polling = on();
        let mut pace = Pace::default();
        let mut pauses = Vec::new();
        while pauses.len() < 12 {
            polling.wait(&mut pace, || false);
            pauses.push(pace.pause);
            pace.pause = 0;
        }
        assert!(pauses.is_sorted() && pauses.last() == Some(&64), "{pauses:?}");
        pace.poll(|| true);
        assert_eq!((pace.failures, pace.backlog), (0, 1));
    }

    #[test]
    fn the_others_wait_until_it_leads_no_longer_or_requests_wait() {
        for is_called in [false, true] {
            let polling = Arc::new(on());
            let mut leaders = [Pace::default(), Pace::default()];
            assert!(leaders.iter_mut().all(|leader| polling.lead(leader)));
            let (send, returned) = channel();
            let pending = Arc::new(AtomicBool::new(false));
            let other = {
                let (polling, pending) = (Arc::clone(&polling), Arc::clone(&pending));
                std::thread::spawn(move || {
                    polling.wait(&mut Pace::default(), || pending.load(Ordering::SeqCst));
                    send.send(()).unwrap();
                })
            };
            assert!(returned.recv_timeout(Duration::from_millis(5)).is_err(), "it waits");
            match is_called {
                // Also without a call: the leader may be held up.
                true => pending.store(true, Ordering::SeqCst),
                false => leaders.iter_mut().for_each(|leader| polling.stop(leader)),
            }
            returned.recv_timeout(Duration::from_secs(20)).unwrap();
            other.join().unwrap();
        }
    }

    /// The leaders may have lost the last request to another reader, and sleep in the kernel's queue as well.
    #[test]
    fn nobody_looks_for_ever() {
        let polling = on();
        let mut leaders = [Pace::default(), Pace::default()];
        assert!(leaders.iter_mut().all(|leader| polling.lead(leader)));
        let looks = Cell::new(0);
        polling.wait(&mut Pace::default(), || {
            looks.set(looks.get() + 1);
            false
        });
        assert_eq!(looks.get(), 2 * LOOKS_MAX);
    }

    #[test]
    fn with_polling_off_all_read_at_once() {
        let polling = BusyPoll::new(false);
        let mut pace = Pace::default();
        polling.wait(&mut pace, || panic!("it looks"));
        polling.stop(&mut pace);
        assert!(!pace.leads);
    }
}

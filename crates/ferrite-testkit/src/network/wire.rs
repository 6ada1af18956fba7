//! The network itself: what happens to a request and to its answer on their way.
//!
//! Invariant: what is drawn depends on the seed and on the order in which calls arrive, so calls of one thread meet the
//! same fate in each run with the same seed.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Duration;

use ferrite_vfs::{FsError, Result};

use crate::rng::Rng;

/// Longest time that a request or an answer is held until others overtake it.
const HELD_MAX: Duration = Duration::from_micros(300);
/// After as many calls of one thread there is nobody who could overtake it.
const ALONE_CALLS: usize = 32;
/// How often a call is sent before the caller is told that it failed.
const TRIES_MAX: usize = 20;

/// How bad a network is. Percentages are those of calls.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// What is random is drawn from this.
    pub seed: u64,
    /// Requests and answers that are delayed.
    pub delayed_percent: u64,
    /// Longest delay.
    pub delay_max: Duration,
    /// Requests and answers that are held until calls of other threads have overtaken them.
    pub overtaken_percent: u64,
    /// Calls whose request is lost, so that nothing happens.
    pub request_lost_percent: u64,
    /// Calls whose answer is lost, so that the caller does not know what happened.
    pub answer_lost_percent: u64,
    /// Calls that are executed twice, if they may be.
    pub doubled_percent: u64,
    /// A call that may be executed twice is sent again when no answer comes, so its caller sees no failure.
    pub resends: bool,
    /// Loses requests and answers of changes, too. Their callers see `TimedOut` or `Disconnected`.
    pub loses_changes: bool,
    /// Most entries of a listing in one answer, at least one. A longer listing takes several calls.
    pub entries_max: usize,
}

impl Conditions {
    /// A network that does nothing but count.
    pub const fn calm() -> Conditions {
        Conditions {
            seed: 0,
            delayed_percent: 0,
            delay_max: Duration::ZERO,
            overtaken_percent: 0,
            request_lost_percent: 0,
            answer_lost_percent: 0,
            doubled_percent: 0,
            resends: true,
            loses_changes: false,
            entries_max: 4096,
        }
    }

    /// A network that does everything a caller need not notice: delays, overtaking, and losses that are made good.
    pub const fn rough(seed: u64) -> Conditions {
        Conditions {
            seed,
            delayed_percent: 1,
            delay_max: Duration::from_micros(200),
            overtaken_percent: 5,
            request_lost_percent: 3,
            answer_lost_percent: 3,
            doubled_percent: 3,
            entries_max: 64,
            ..Conditions::calm()
        }
    }
}

/// What becomes of a call.
enum Fate {
    Answered,
    Doubled,
    RequestLost(FsError),
    AnswerLost(FsError),
}

struct State {
    conditions: Conditions,
    rng: Rng,
    calls: BTreeMap<&'static str, usize>,
    resent: usize,
    /// Tickets of what is held until it is overtaken.
    held: Vec<u64>,
    next_ticket: u64,
    /// Who called last, and how often in a row.
    last: Option<ThreadId>,
    in_a_row: usize,
}

/// A network that does not exist. See the head of this module.
pub struct Network {
    state: Mutex<State>,
    overtaken: Condvar,
}

impl Network {
    pub(super) fn new(conditions: Conditions) -> Network {
        Network {
            state: Mutex::new(State {
                conditions,
                rng: Rng::new(conditions.seed),
                calls: BTreeMap::new(),
                resent: 0,
                held: Vec::new(),
                next_ticket: 0,
                last: None,
                in_a_row: 0,
            }),
            overtaken: Condvar::new(),
        }
    }

    /// From now on the network is like this.
    pub fn set_conditions(&self, conditions: Conditions) {
        let mut state = self.lock();
        state.rng = Rng::new(conditions.seed);
        state.conditions = conditions;
    }

    /// How often each method was called since this was asked last. What was sent again counts once. A method of an open
    /// file is `file.NAME`; `file.close` is the drop of its last clone. Nobody waits for that, nor for `unpin` and
    /// `forget`.
    pub fn take_calls(&self) -> BTreeMap<&'static str, usize> {
        std::mem::take(&mut self.lock().calls)
    }

    /// How often a request was sent again, or executed twice.
    pub fn resent(&self) -> usize {
        self.lock().resent
    }

    pub(super) fn entries_max(&self) -> usize {
        self.lock().conditions.entries_max.max(1)
    }

    /// Makes a call. `repeats` says that it may be executed more than once; `drop_answer` undoes what the engine keeps
    /// for whoever has an answer that does not arrive.
    pub(super) fn call<T>(
        &self,
        method: &'static str,
        repeats: bool,
        ask: impl Fn() -> Result<T>,
        drop_answer: impl Fn(T),
    ) -> Result<T> {
        self.count(method);
        let mut tries = 0;
        loop {
            tries += 1;
            let fate = self.fate(repeats);
            self.travel();
            let lost = match fate {
                Fate::Answered => None,
                Fate::Doubled => {
                    self.again();
                    ask().into_iter().for_each(&drop_answer);
                    None
                }
                Fate::RequestLost(error) => Some(error),
                Fate::AnswerLost(error) => {
                    ask().into_iter().for_each(&drop_answer);
                    Some(error)
                }
            };
            let Some(error) = lost else {
                let answer = ask();
                self.travel();
                return answer;
            };
            if !repeats || !self.lock().conditions.resends || tries == TRIES_MAX {
                return Err(error);
            }
            self.again();
        }
    }

    /// Makes a call that nobody waits for. It always arrives: a service drops what a client that is gone held.
    pub(super) fn post<T>(&self, method: &'static str, tell: impl FnOnce() -> T) -> T {
        self.count(method);
        self.travel();
        tell()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    fn count(&self, method: &'static str) {
        *self.lock().calls.entry(method).or_default() += 1;
    }

    fn again(&self) {
        self.lock().resent += 1;
    }

    fn fate(&self, repeats: bool) -> Fate {
        let mut state = self.lock();
        let conditions = state.conditions;
        if !repeats && !conditions.loses_changes {
            return Fate::Answered;
        }
        let error = match state.rng.chance(50) {
            true => FsError::TimedOut,
            false => FsError::Disconnected,
        };
        match () {
            () if state.rng.chance(conditions.request_lost_percent) => Fate::RequestLost(error),
            () if state.rng.chance(conditions.answer_lost_percent) => Fate::AnswerLost(error),
            () if repeats && state.rng.chance(conditions.doubled_percent) => Fate::Doubled,
            () => Fate::Answered,
        }
    }

    /// One way of a request or an answer.
    fn travel(&self) {
        let mut state = self.lock();
        let me = std::thread::current().id();
        state.in_a_row = if state.last == Some(me) { state.in_a_row + 1 } else { 0 };
        state.last = Some(me);
        // Who is overtaken by this one may go on, and who that is does not depend on who waits longest.
        if !state.held.is_empty() && state.rng.chance(50) {
            let count = state.held.len() as u64;
            let at = state.rng.below(count) as usize;
            state.held.swap_remove(at);
            self.overtaken.notify_all();
        }
        let conditions = state.conditions;
        if state.in_a_row < ALONE_CALLS && state.rng.chance(conditions.overtaken_percent) {
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.held.push(ticket);
            let waits = |state: &mut State| state.held.contains(&ticket);
            let woken = self.overtaken.wait_timeout_while(state, HELD_MAX, waits);
            state = woken.expect("nothing panics under this lock").0;
            state.held.retain(|&held| held != ticket);
        }
        let delayed = state.rng.chance(conditions.delayed_percent);
        let delay_us = match delayed {
            true => state.rng.below(1 + conditions.delay_max.as_micros() as u64),
            false => 0,
        };
        drop(state);
        match (delayed, delay_us) {
            (false, _) => {}
            (true, 0..50) => std::thread::yield_now(),
            (true, _) => std::thread::sleep(Duration::from_micros(delay_us)),
        }
    }
}

//! The network itself: the fate of a request and of its reply in transit.
//!
//! Invariant: all draws depend on the seed and on the order in which calls arrive, so calls of one thread meet the same
//! fate in each run with the same seed.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Duration;

use ferrite_vfs::{FsError, Result};

use crate::rng::Rng;

/// Longest time for which a request or a reply is held until others overtake it.
const HELD_MAX: Duration = Duration::from_micros(300);
/// After this many calls of one thread in a row, no other thread could overtake it.
const ALONE_CALLS: usize = 32;
/// Number of attempts before a call fails.
const TRIES_MAX: usize = 20;

/// The faults of a network. Percentages are those of calls.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// Seed of all random draws.
    pub seed: u64,
    /// Requests and replies that are delayed.
    pub delayed_percent: u64,
    /// Longest delay.
    pub delay_max: Duration,
    /// Requests and replies that are held until calls of other threads have overtaken them.
    pub overtaken_percent: u64,
    /// Calls whose request is lost, so that nothing happens.
    pub request_lost_percent: u64,
    /// Calls whose reply is lost, so that the caller does not know what happened.
    pub answer_lost_percent: u64,
    /// Calls that are executed twice, if they may be.
    pub doubled_percent: u64,
    /// The client resends a call that may be executed twice when no reply comes, so the caller sees no failure.
    pub resends: bool,
    /// Loses requests and replies of changes, too. Their callers see `TimedOut` or `Disconnected`.
    pub loses_changes: bool,
    /// Most entries of a listing in one reply, at least one. A longer listing takes several calls.
    pub entries_max: usize,
}

impl Conditions {
    /// A network that only counts.
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

    /// A network with all the faults that a caller need not notice: delays, overtaking, and losses made good by
    /// resending.
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

/// The fate of a call.
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
    /// Tickets of messages held until others overtake them.
    held: Vec<u64>,
    next_ticket: u64,
    /// The thread of the last call, and the number of its calls in a row.
    last: Option<ThreadId>,
    in_a_row: usize,
}

/// An imaginary network. See the head of this module.
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

    /// Changes the conditions from now on.
    pub fn set_conditions(&self, conditions: Conditions) {
        let mut state = self.lock();
        state.rng = Rng::new(conditions.seed);
        state.conditions = conditions;
    }

    /// Calls of each method since the last call of this. A resent call counts once. A method of an open file is
    /// `file.NAME`; `file.close` is the drop of its last clone. No caller waits for that, nor for `unpin` and `forget`.
    pub fn take_calls(&self) -> BTreeMap<&'static str, usize> {
        std::mem::take(&mut self.lock().calls)
    }

    /// Number of requests that were resent, or executed twice.
    pub fn resent(&self) -> usize {
        self.lock().resent
    }

    pub(super) fn entries_max(&self) -> usize {
        self.lock().conditions.entries_max.max(1)
    }

    /// Makes a call. `repeats` says that it may be executed more than once; `drop_answer` undoes the state that the
    /// engine keeps for a client whose reply is lost.
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

    /// Makes a call that no caller waits for. It always arrives: a service drops the state of a client that is gone.
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

    /// The passage of a request or a reply, one way.
    fn travel(&self) {
        let mut state = self.lock();
        let me = std::thread::current().id();
        state.in_a_row = if state.last == Some(me) { state.in_a_row + 1 } else { 0 };
        state.last = Some(me);
        // This call overtakes a held one, which may continue; the choice does not depend on which one waits longest.
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

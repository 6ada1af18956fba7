//! Clients that do not answer recalls, and how long they get no leases.
//!
//! Contents: [`Unresponsive`], a part of the table of leases. A client whose recall expired has delayed a change for as
//! long as a lease lasts. It gets no lease for a while, which doubles each time, so that a client which only reads, and
//! never answers, cannot delay others repeatedly.
//!
//! Invariants:
//! * A session that ends leaves its penalty to those that begin on the same export: a client cannot shed it by a new
//!   session. Other clients there, which have sessions already, lose nothing.
//! * If [`GUILTY_MAX`] sessions of an export have to wait at the same time, no session on it gets a lease for a while,
//!   which doubles as well: else a client with many sessions would always have one to spare. From then on one is
//!   enough.
//! * At most [`SESSIONS_MAX`] sessions are known, and two penalties an export.
//! * A wait is at most [`WAIT_MAX`]; a client that answered recalls for that long afterwards begins anew.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// A recall sent so shortly before the end of the lease does not count: an honest client may be that slow.
pub(super) const REPLY_MIN: Duration = Duration::from_millis(50);
/// The first wait, in terms of a lease.
const FIRST_TERMS: u32 = 2;
/// The longest.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Sessions whose penalties are known.
const SESSIONS_MAX: usize = 4096;
/// Sessions of an export that wait at the same time, at most.
const GUILTY_MAX: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Penalty {
    until: Instant,
    wait: Duration,
}

impl Penalty {
    /// The penalty after `last`.
    fn next(last: Option<Penalty>, term: Duration, now: Instant) -> Penalty {
        let wait = match last {
            Some(last) if last.until + WAIT_MAX > now => last.wait * 2,
            _ => term * FIRST_TERMS,
        };
        let wait = wait.min(WAIT_MAX);
        Penalty {
            until: now + wait,
            wait,
        }
    }

    fn is_known(&self, now: Instant) -> bool {
        self.until + WAIT_MAX > now
    }
}

/// See the head of this module.
#[derive(Default)]
pub(super) struct Unresponsive {
    sessions: FxHashMap<u64, (usize, Penalty)>,
    /// The penalties that new sessions on an export inherit.
    inherited: FxHashMap<usize, Penalty>,
    /// Exports on which no session gets leases.
    closed: FxHashMap<usize, Penalty>,
}

impl Unresponsive {
    /// Notes that a recall to a session expired.
    pub(super) fn note(&mut self, session: u64, export: usize, term: Duration, now: Instant) {
        let last = self.sessions.get(&session).map(|(_, penalty)| *penalty);
        // Several that expired at the same time count as one.
        if last.is_some_and(|last| last.until > now) {
            return;
        }
        self.sweep(now);
        let penalty = Penalty::next(last, term, now);
        match self.sessions.len() < SESSIONS_MAX || last.is_some() {
            true => drop(self.sessions.insert(session, (export, penalty))),
            false => self.leave(export, penalty),
        }
        let waits = |(of, penalty): &&(usize, Penalty)| *of == export && penalty.until > now;
        let closed = self.closed.get(&export).copied();
        if closed.is_some() || self.sessions.values().filter(waits).count() >= GUILTY_MAX {
            self.closed.insert(export, Penalty::next(closed, term, now));
        }
    }

    /// Whether a session gets leases.
    pub(super) fn may_have(&self, session: u64, export: usize, now: Instant) -> bool {
        // The common case: no penalties at all.
        let is_over = |penalty: &Penalty| penalty.until <= now;
        (self.sessions.is_empty() || self.sessions.get(&session).is_none_or(|(_, penalty)| is_over(penalty)))
            && (self.closed.is_empty() || self.closed.get(&export).is_none_or(is_over))
    }

    /// Notes that a session asks for leases, perhaps not for the first time.
    pub(super) fn begins(&mut self, session: u64, export: usize, now: Instant) {
        if let Some(&penalty) = self.inherited.get(&export)
            && penalty.is_known(now)
            && self.sessions.len() < SESSIONS_MAX
        {
            self.sessions.entry(session).or_insert((export, penalty));
        }
    }

    /// Notes that a session has ended.
    pub(super) fn ends(&mut self, session: u64) {
        if let Some((export, penalty)) = self.sessions.remove(&session) {
            self.leave(export, penalty);
        }
    }

    fn leave(&mut self, export: usize, penalty: Penalty) {
        let left = self.inherited.entry(export).or_insert(penalty);
        left.until = left.until.max(penalty.until);
        left.wait = left.wait.max(penalty.wait);
    }

    fn sweep(&mut self, now: Instant) {
        self.sessions.retain(|_, (_, penalty)| penalty.is_known(now));
        self.inherited.retain(|_, penalty| penalty.is_known(now));
        self.closed.retain(|_, penalty| penalty.is_known(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(5);

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_good_behaviour() {
        let (mut table, mut now) = (Unresponsive::default(), Instant::now());
        for wait in [10, 20, 40, 80, 160, 320, 600, 600] {
            assert!(table.may_have(1, 7, now));
            table.note(1, 7, TERM, now);
            table.note(1, 7, TERM, now + Duration::from_secs(1));
            let last = now + Duration::from_secs(wait) - Duration::from_millis(1);
            assert!(!table.may_have(1, 7, now) && !table.may_have(1, 7, last), "{wait}");
            assert!(table.may_have(2, 7, now), "another session");
            now += Duration::from_secs(wait);
        }
        now += WAIT_MAX;
        table.note(1, 7, TERM, now);
        assert!(table.may_have(1, 7, now + 2 * TERM));
    }

    #[test]
    fn a_session_leaves_its_penalty_to_those_that_begin_on_its_export() {
        let (mut table, now) = (Unresponsive::default(), Instant::now());
        table.note(1, 7, TERM, now);
        table.begins(2, 7, now);
        assert!(table.may_have(2, 7, now), "the first still has it itself");
        table.ends(1);
        table.begins(3, 7, now);
        table.begins(4, 8, now);
        assert!(table.may_have(2, 7, now) && !table.may_have(3, 7, now) && table.may_have(4, 8, now));
        // The same client in yet another session: the wait grows with each.
        let later = now + 2 * TERM;
        assert!(table.may_have(3, 7, later));
        table.begins(5, 7, later);
        assert!(table.may_have(5, 7, later), "that of the first is over");
        for session in [3, 5] {
            table.note(session, 7, TERM, later);
            assert!(!table.may_have(session, 7, later + 3 * TERM));
        }
    }

    #[test]
    fn many_sessions_of_an_export_are_not_better_than_one() {
        let (mut table, now) = (Unresponsive::default(), Instant::now());
        for session in 0..GUILTY_MAX as u64 {
            assert!(table.may_have(99, 7, now) && table.may_have(session, 7, now));
            table.note(session, 7, TERM, now);
        }
        assert!(
            !table.may_have(99, 7, now) && table.may_have(99, 8, now),
            "another export"
        );
        let later = now + 2 * TERM;
        assert!(table.may_have(99, 7, later));
        table.note(50, 7, TERM, later);
        assert!(!table.may_have(99, 7, later + 3 * TERM) && table.may_have(99, 7, later + 4 * TERM));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let (mut table, now) = (Unresponsive::default(), Instant::now());
        for session in 0..SESSIONS_MAX as u64 + 100 {
            table.note(session, 7, TERM, now);
        }
        assert_eq!(
            (table.sessions.len(), table.inherited.len(), table.closed.len()),
            (SESSIONS_MAX, 1, 1)
        );
        table.note(1_000_000, 8, TERM, now + 4 * WAIT_MAX);
        assert_eq!(
            (table.sessions.len(), table.inherited.len(), table.closed.len()),
            (1, 0, 0)
        );
    }
}

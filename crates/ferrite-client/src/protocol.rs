//! The client's half of the protocol, as a state machine without sockets, clocks, threads and locks.
//!
//! Its inputs are events, each with the time of it: a caller needs the connection, an attempt has failed, a server has
//! answered the handshake, the connection broke, the client is closed. Its outputs are the next steps, as return
//! values. The driver ([`super::link`] and the modules named there) owns sockets, threads and the clock, and does what
//! the machine says. So the tests run it in virtual time, as quinn-proto's do.
//!
//! Contents: [`Protocol`], the life of session and connection. Its parts lie where the driver needs them, so that they
//! share no lock: [`InFlight`], the requests in flight; [`Call`], a request whose caller waits, on that caller's stack,
//! with its [`CallLimit`]; [`SlotTable`], the tokens of the session; [`Lease`], when to ping, and when the server is
//! gone.
//!
//! Invariants: one thread at a time connects. A closed client stays closed. The session of the last welcome is the one
//! to resume. The address of the next attempt is chosen in [`Servers`] alone.

mod backoff;
mod call;
mod call_limit;
mod in_flight;
mod lease;
mod servers;
mod slot_table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_proto::{Promises, ResumeToken, SessionState, Welcome};
use ferrite_vfs::FsError;

use backoff::Backoff;
use servers::{Servers, Step};

use crate::addresses::Addresses;

pub(crate) use backoff::Stagger;
pub(crate) use call::{Call, Next, Repeats, Tokens};
pub(crate) use call_limit::CallLimit;
pub(crate) use in_flight::{Deferred, Expired, InFlight, Pending, Recipient, Repeated, Repetition};
pub(crate) use lease::{Health, Lease};
pub(crate) use servers::Loss;
pub(crate) use slot_table::SlotTable;

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// An attempt to connect for the first time has this long at least, so that the causes of failures are the servers'.
const LEAST_OF_FIRST: Duration = Duration::from_millis(100);
/// How long opening a TCP connection may take if there are other servers: a machine that is down does not answer.
const CONNECT_OF_MANY: Duration = Duration::from_secs(1);
/// How long a server may be silent if there are others. It is less than the time after which a standby takes over.
const SILENCE_OF_MANY: Duration = Duration::from_secs(6);

/// The session of the last welcome.
#[derive(Debug, Clone, Copy)]
struct Session {
    resume_token: ResumeToken,
    promises: Promises,
    lease: Lease,
}

/// The state of the connection. `C` is the driver's handle of one.
#[derive(Debug)]
enum Phase<C> {
    /// No thread connects.
    Down,
    /// A thread connects.
    Connecting,
    Up(C),
    /// The client is closed.
    Over,
}

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct Protocol<C> {
    servers: Servers,
    phase: Phase<C>,
    session: Option<Session>,
    backoff: Backoff,
    /// How often the server has refused to continue the session, and the last reason.
    refusals: (u64, Option<FsError>),
    /// How many connections there have been.
    connections: u64,
}

/// A caller that needs the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeker {
    refusals_before: u64,
    may_connect: bool,
}

/// The next step of a caller that needs the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seek<C> {
    Found(C),
    /// The call ends.
    Fail(FsError),
    /// The caller connects, for all: [`Protocol::begin_attempts`].
    Connect,
    /// It waits until something changes. If no thread connects, the watcher has to.
    Wait {
        wakes_watcher: bool,
    },
}

/// An attempt to connect, and to begin or to resume a session.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) address: Arc<str>,
    /// How long opening the TCP connection may take.
    pub(crate) connect: Duration,
    /// The session to resume.
    pub(crate) resume_token: Option<ResumeToken>,
    /// How long it may take.
    pub(crate) limit: Duration,
    /// Whether it is the first of its series.
    pub(crate) is_first: bool,
}

/// The client's part in bringing a session to the state that it relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restoration {
    /// The server has kept everything.
    Nothing,
    /// It reclaims slots, open files, locks and pins.
    Reclaim,
    /// It begins without slots, and reclaims open files and pins. Locks are lost.
    BeginAnew {
        /// An older session has ended.
        had_session: bool,
    },
}

impl Attempt {
    /// The consequence of the state in which the server has the session.
    pub(crate) fn restoration(&self, state: SessionState) -> Restoration {
        match state {
            SessionState::Alive => Restoration::Nothing,
            SessionState::ToReclaim => Restoration::Reclaim,
            SessionState::New => Restoration::BeginAnew {
                had_session: self.resume_token.is_some(),
            },
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server refuses the client.
    Refused(FsError),
    /// The server does not own the volume now. It names the owner, or nothing.
    NotOwner(String),
    /// The peer has proved nothing, so the error may be transient.
    Transient,
}

/// The next step after an attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    RetryAt(Instant),
    /// The caller that connects gives up. Others may connect now.
    GiveUp(FsError),
}

/// The next step of the watcher.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn<C> {
    /// It ends.
    End,
    /// It makes the connection, or waits so long for another thread to do so; if neither works it rests.
    Connect { within: Duration, rest: Duration },
    /// It looks after this connection.
    Watch(C, Lease),
}

impl<C: Clone + PartialEq> Protocol<C> {
    /// A client that connects for the first time: [`Self::first_attempt`].
    pub(crate) fn new(addresses: Addresses, now: Instant) -> Protocol<C> {
        Protocol {
            servers: Servers::new(addresses, now),
            phase: Phase::Connecting,
            session: None,
            backoff: Backoff::default(),
            refusals: (0, None),
            connections: 0,
        }
    }

    /// The next attempt to connect for the first time, in what is left of the time for that: each server that is still
    /// to be tried gets the same part. [`Self::first_failed`] follows if it fails.
    pub(crate) fn first_attempt(&self, left: Duration) -> Attempt {
        self.attempt_within(left / self.servers.remaining())
    }

    fn attempt_within(&self, limit: Duration) -> Attempt {
        Attempt {
            address: self.servers.address(),
            connect: match self.servers.is_alone() {
                true => limit,
                false => limit.min(CONNECT_OF_MANY),
            },
            resume_token: self.session.map(|session| session.resume_token),
            limit,
            is_first: self.backoff.is_first(),
        }
    }

    /// An attempt to connect for the first time has failed. Returns when the next may begin; `None` if the client is to
    /// be dropped: each server was tried and no owner can be expected, or the time is over.
    pub(crate) fn first_failed(
        &mut self,
        failure: &Failure,
        deadline: Instant,
        now: Instant,
        stagger: Stagger,
    ) -> Option<Instant> {
        let at = match self.servers.failed(failure, now) {
            Step::Continue => now,
            Step::NewRound { has_standby: true } => self.next_round(now, stagger),
            Step::NewRound { has_standby: false } | Step::Refused(_) => return None,
        };
        self.servers.attempt_begins(at);
        (at + LEAST_OF_FIRST < deadline).then_some(at)
    }

    /// When a round of attempts may follow the one that has just ended.
    fn next_round(&mut self, now: Instant, stagger: Stagger) -> Instant {
        match self.servers.is_alone() {
            true => self.backoff.failed(now, stagger),
            // Attempts may have taken a while, and the owner is to be found soon.
            false => self.backoff.failed(self.servers.round_began(), stagger).max(now),
        }
    }

    /// Whether the client may connect to this server.
    pub(crate) fn has_server(&self, address: &str) -> bool {
        self.servers.has(address)
    }

    /// A caller begins to seek the connection, and makes it if it must, unless it may give up while that takes long.
    pub(crate) fn seeker(&self, may_connect: bool) -> Seeker {
        Seeker {
            refusals_before: self.refusals.0,
            may_connect,
        }
    }

    /// A caller seeks the connection.
    pub(crate) fn seek(&mut self, seeker: &Seeker) -> Seek<C> {
        match &self.phase {
            Phase::Over => Seek::Fail(FsError::Disconnected),
            Phase::Up(connection) => Seek::Found(connection.clone()),
            _ if self.refusals.0 != seeker.refusals_before => {
                Seek::Fail(self.refusals.1.clone().unwrap_or(FsError::Disconnected))
            }
            Phase::Connecting => Seek::Wait { wakes_watcher: false },
            Phase::Down if !seeker.may_connect => Seek::Wait { wakes_watcher: true },
            Phase::Down => {
                self.phase = Phase::Connecting;
                Seek::Connect
            }
        }
    }

    /// A thread begins a series of attempts. Returns when the first may begin.
    pub(crate) fn begin_attempts(&mut self, now: Instant) -> Instant {
        let at = self.backoff.begin(now);
        self.servers.attempt_begins(at);
        at
    }

    /// The next attempt of the series; `None` if the client is closed.
    pub(crate) fn attempt(&self) -> Option<Attempt> {
        (!self.is_over()).then(|| self.attempt_within(ATTEMPT))
    }

    /// An attempt has failed. The deadline is that of the caller that connects.
    pub(crate) fn attempt_failed(
        &mut self,
        failure: Failure,
        deadline: Option<Instant>,
        now: Instant,
        stagger: Stagger,
    ) -> AfterFailure {
        let step = self.servers.failed(&failure, now);
        if let Step::Refused(why) = step {
            return self.give_up(why);
        }
        if self.is_over() {
            return AfterFailure::GiveUp(FsError::Disconnected);
        }
        let at_latest = match step {
            Step::Continue => now,
            _ => now + self.backoff.delay(),
        };
        if deadline.is_some_and(|deadline| at_latest >= deadline) {
            return self.give_up(FsError::TimedOut);
        }
        let at = match step {
            Step::Continue => now,
            _ => self.next_round(now, stagger),
        };
        self.servers.attempt_begins(at);
        AfterFailure::RetryAt(at)
    }

    /// The connecting thread stops. A refusal concerns all that wait; a caller's limit only that caller.
    fn give_up(&mut self, why: FsError) -> AfterFailure {
        if !matches!(why, FsError::TimedOut | FsError::Disconnected) {
            self.refusals = (self.refusals.0 + 1, Some(why.clone()));
        }
        if !self.is_over() {
            self.phase = Phase::Down;
        }
        AfterFailure::GiveUp(why)
    }

    /// The server has answered the handshake, and the session is restored. No caller uses the connection before
    /// [`Self::established`].
    pub(crate) fn welcomed(&mut self, welcome: &Welcome) {
        let lease = Lease::promised(welcome.lease_ms);
        self.session = Some(Session {
            resume_token: welcome.resume_token,
            promises: welcome.promises,
            lease: match self.servers.is_alone() {
                true => lease,
                false => lease.at_most(SILENCE_OF_MANY),
            },
        });
    }

    /// Everything in flight that no thread waits for was sent again: callers may use the connection, unless the client
    /// was closed meanwhile.
    pub(crate) fn established(&mut self, connection: C) {
        self.connections += 1;
        self.servers.worked();
        if !self.is_over() {
            self.phase = Phase::Up(connection);
        }
    }

    /// A connection has ended. True if it was the current one.
    pub(crate) fn lost(&mut self, connection: &C, loss: &Loss) -> bool {
        let is_current = self.connection() == Some(connection);
        if is_current {
            self.phase = Phase::Down;
            self.servers.lost(loss);
            self.backoff.ended(matches!(loss, Loss::NotOwner(_)));
        }
        is_current
    }

    /// The client is closed. Returns the connection, on which the driver says goodbye.
    pub(crate) fn close(&mut self) -> Option<C> {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// The watcher begins a turn.
    pub(crate) fn turn(&self) -> Turn<C> {
        match &self.phase {
            Phase::Over => Turn::End,
            Phase::Up(connection) => Turn::Watch(connection.clone(), self.lease()),
            Phase::Down | Phase::Connecting => Turn::Connect {
                within: ATTEMPT,
                // A server that refuses does so at once.
                rest: backoff::LONGEST,
            },
        }
    }

    /// The connection, while callers may use it.
    pub(crate) fn connection(&self) -> Option<&C> {
        match &self.phase {
            Phase::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// Whether the client is closed.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// The server's promises; `None` before the first connection.
    pub(crate) fn promises(&self) -> Option<Promises> {
        self.session.map(|session| session.promises)
    }

    /// The number of the session; 0 before the first connection.
    pub(crate) fn session(&self) -> u64 {
        self.session.map_or(0, |session| session.resume_token.session)
    }

    /// The lease of the session.
    pub(crate) fn lease(&self) -> Lease {
        self.session.map(|session| session.lease).unwrap_or_default()
    }

    /// How often the client reconnected.
    pub(crate) fn reconnects(&self) -> u64 {
        self.connections.saturating_sub(1)
    }
}

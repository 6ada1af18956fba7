//! A server in virtual time, for [`super::random`].
//!
//! Contents: [`Server`], with a session that can end, be kept, or have to be reclaimed, and a wire that loses the
//! replies on it when it breaks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferrite_proto::SessionState;
use ferrite_testkit::rng::Rng;
use ferrite_vfs::{DedupToken, FsError, SessionsOf};

use super::{Attempt, Failure};

/// A request on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) connection: u64,
    pub(super) id: u64,
    pub(super) token: Option<DedupToken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Well,
    /// It takes requests, and answers nothing.
    Silent,
    Unreachable,
    Refusing,
}

/// The servers of a volume that has several.
pub(super) const SERVERS: [&str; 3] = ["one:1", "two:2", "three:3"];

/// The other end: the owner of the volume, and, at the other addresses, its standbys.
pub(super) struct Server {
    pub(super) mode: Mode,
    /// Which of [`SERVERS`] is the owner, if there are several.
    pub(super) owner: Option<usize>,
    pub(super) has_slots: bool,
    pub(super) session: u64,
    /// The client has to reclaim its session.
    pub(super) has_restarted: bool,
    pub(super) number: u64,
    pub(super) slots: Vec<u32>,
    pub(super) done: BTreeSet<(u32, u64)>,
    /// How often each request happened.
    pub(super) executed: BTreeMap<u64, u32>,
    pub(super) connection: u64,
    pub(super) is_open: bool,
    pub(super) requests: VecDeque<Message>,
    /// Numbers of requests that are answered, and whether they happened.
    pub(super) replies: VecDeque<(u64, bool)>,
}

impl Server {
    /// A server that knows no client.
    pub(super) fn new(has_slots: bool) -> Server {
        Server {
            mode: Mode::Well,
            owner: None,
            has_slots,
            session: 0,
            has_restarted: false,
            number: 0,
            slots: Vec::new(),
            done: BTreeSet::new(),
            executed: BTreeMap::new(),
            connection: 0,
            is_open: false,
            requests: VecDeque::new(),
            replies: VecDeque::new(),
        }
    }

    /// The wire breaks. The replies on it are lost; a request on it may still arrive.
    pub(super) fn disconnect(&mut self) {
        self.is_open = false;
        self.replies.clear();
    }

    /// The session ends, and with it the requests of its connections.
    pub(super) fn end_session(&mut self) {
        self.session = 0;
        self.requests.clear();
        self.disconnect();
    }

    /// Executes a request that has arrived.
    pub(super) fn execute(&mut self) {
        let Some(Message { connection, id, token }) = self.requests.pop_front() else {
            return;
        };
        let is_valid = token.is_none_or(|token| self.slots.contains(&token.slot) && token.seq >> 32 == self.number);
        let is_new = token.is_none_or(|token| !self.done.contains(&(token.slot, token.seq)));
        if is_valid && is_new {
            *self.executed.entry(id).or_default() += 1;
            self.done.extend(token.map(|token| (token.slot, token.seq)));
        }
        if self.is_open && connection == self.connection {
            self.replies.push_back((id, is_valid));
        }
    }

    /// Answers a handshake: the state of the session.
    pub(super) fn handshake(&mut self, attempt: &Attempt, rng: &mut Rng) -> Result<SessionState, Failure> {
        if let Some(owner) = self.owner.filter(|&owner| *attempt.address != *SERVERS[owner]) {
            // A standby may be down, wrong about the owner, or malicious.
            let named = *rng.pick(&[
                SERVERS[owner],
                SERVERS[owner],
                SERVERS[0],
                SERVERS[1],
                "",
                "elsewhere:4",
            ]);
            return Err(match rng.chance(70) {
                true => Failure::NotOwner(named.to_owned()),
                false => Failure::Transient,
            });
        }
        match self.mode {
            Mode::Well => {}
            Mode::Refusing if rng.chance(50) => {
                return Err(Failure::Refused(FsError::TooManySessions(SessionsOf::Export)));
            }
            Mode::Refusing => return Err(Failure::Refused(FsError::AccessDenied)),
            Mode::Silent | Mode::Unreachable => return Err(Failure::Transient),
        }
        self.connection += 1;
        self.is_open = true;
        self.replies.clear();
        let continues = attempt.resume_token.is_some_and(|token| token.session == self.session);
        if continues {
            return Ok(match std::mem::take(&mut self.has_restarted) {
                true => SessionState::ToReclaim,
                false => SessionState::Alive,
            });
        }
        self.requests.clear();
        self.has_restarted = false;
        self.session = rng.next_u64() | 1;
        self.number += 1;
        self.slots = if self.has_slots { vec![1, 2, 3] } else { Vec::new() };
        Ok(SessionState::New)
    }
}

//! The servers of an export, and which of them the next attempt to connect goes to.
//!
//! Attempts come in rounds. In a round each server gets one attempt at most, so that servers which name each other as
//! the owner cost no more than any other failure: the back-off lies between rounds. A round begins with the server that
//! worked last, and after that with the one that a server named as the owner. A server that does not answer costs time;
//! it rests for some rounds, because meanwhile another may become the owner.
//!
//! Contents: [`Servers`]. Invariant: an attempt goes to an address of the list that the client was given.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_vfs::FsError;

use super::Failure;
use crate::addresses::Addresses;

/// An attempt that lasts for longer and fails shows a server that does not answer.
const SLOW: Duration = Duration::from_millis(500);
/// A server that did not answer rests for so many times as long as the attempt took, so that such servers cost a fifth
/// of the time at most.
const RESTS: u32 = 4;
/// The rest of a server that has become silent on a connection; and the longest rest.
const SILENT_RESTS: Duration = Duration::from_secs(4);
const REST_MAX: Duration = Duration::from_secs(20);

/// The answer of a server in this round.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// It refuses the client for good.
    Refused(FsError),
    /// It does not own the volume; the owner is another server of the list, if it knows.
    NotOwner(Option<usize>),
    /// Nothing that lasts.
    Nothing,
}

/// The next step after a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The next server of the round is due at once.
    Continue,
    /// The round is over.
    NewRound {
        /// A server said that it does not own the volume, so that one will soon.
        has_standby: bool,
    },
    /// All servers refuse the client.
    Refused(FsError),
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It broke.
    Broken,
    /// The server has been silent for too long.
    Silent,
    /// The server no longer owns the volume. It may name the owner.
    NotOwner(String),
}

#[derive(Debug, Clone, Default)]
struct Server {
    verdict: Option<Verdict>,
    /// No attempt goes to it before, if another server is left.
    rests_until: Option<Instant>,
    /// It has become silent, and rests from the next attempt on.
    is_silent: bool,
}

/// See the head of this module.
#[derive(Debug)]
pub(super) struct Servers {
    addresses: Addresses,
    /// As many as there are addresses.
    servers: Vec<Server>,
    /// The server of the next attempt, or of the connection.
    next: usize,
    /// The owner as a server of this round has named it.
    named: Option<usize>,
    /// The last connection ended because the server did not own the volume.
    is_disowned: bool,
    round_began: Instant,
    attempt_began: Instant,
}

impl Servers {
    /// Servers of which none was tried.
    pub(super) fn new(addresses: Addresses, now: Instant) -> Servers {
        let servers = vec![Server::default(); addresses.iter().len()];
        Servers {
            addresses,
            servers,
            next: 0,
            named: None,
            is_disowned: false,
            round_began: now,
            attempt_began: now,
        }
    }

    /// The address of the next attempt.
    pub(super) fn address(&self) -> Arc<str> {
        let mut addresses = self.addresses.iter();
        Arc::clone(addresses.nth(self.next).expect("`next` is within the list"))
    }

    /// Whether the list has this server.
    pub(super) fn has(&self, address: &str) -> bool {
        self.addresses.find(address).is_some()
    }

    /// Whether there is only one.
    pub(super) fn is_alone(&self) -> bool {
        self.servers.len() == 1
    }

    /// How many attempts this round may still have, with the next.
    pub(super) fn remaining(&self) -> u32 {
        let untried = self.servers.iter().filter(|server| server.verdict.is_none()).count();
        untried.max(1) as u32
    }

    /// When the round began.
    pub(super) fn round_began(&self) -> Instant {
        self.round_began
    }

    /// The next attempt begins at this time. The attempts of a series after the first have no event of their own.
    pub(super) fn attempt_begins(&mut self, at: Instant) {
        self.attempt_began = at;
        if self.servers.iter().all(|server| server.verdict.is_none()) {
            self.round_began = at;
        }
        for server in &mut self.servers {
            if std::mem::take(&mut server.is_silent) {
                server.rests_until = Some(at + SILENT_RESTS);
            }
        }
    }

    /// The attempt has failed. Chooses the server of the next.
    pub(super) fn failed(&mut self, failure: &Failure, now: Instant) -> Step {
        let verdict = match failure {
            Failure::Refused(FsError::TooManySessions(_)) => Verdict::Nothing,
            Failure::Refused(why) => Verdict::Refused(why.clone()),
            Failure::NotOwner(address) => {
                let named = self.addresses.find(address);
                self.named = named.or(self.named);
                Verdict::NotOwner(named)
            }
            Failure::Transient => {
                let lasted = now.saturating_duration_since(self.attempt_began);
                if lasted >= SLOW {
                    self.servers[self.next].rests_until = Some(now + (lasted * RESTS).min(REST_MAX));
                }
                Verdict::Nothing
            }
        };
        self.servers[self.next].verdict = Some(verdict);
        let is_due = |index: &usize| {
            let server = &self.servers[*index];
            server.verdict.is_none() && server.rests_until.is_none_or(|until| until <= now)
        };
        let after = self.next + 1..self.next + self.servers.len();
        let in_order = after.map(|index| index % self.servers.len());
        if let Some(index) = self.named.into_iter().chain(in_order).find(is_due) {
            self.next = index;
            return Step::Continue;
        }
        self.end_round(now)
    }

    fn end_round(&mut self, now: Instant) -> Step {
        let refusal = self.refusal();
        let has_standby = self
            .servers
            .iter()
            .any(|it| matches!(it.verdict, Some(Verdict::NotOwner(_))));
        self.servers.iter_mut().for_each(|server| server.verdict = None);
        let rests_until = |index: usize| self.servers[index].rests_until.filter(|&until| until > now);
        let in_order = (self.next + 1..=self.next + self.servers.len()).map(|index| index % self.servers.len());
        let candidates = self.named.take().into_iter().chain(in_order);
        // If all rest, the one that rests for the shortest time.
        self.next = candidates.min_by_key(|&index| rests_until(index)).unwrap_or(self.next);
        match refusal {
            Some(why) => Step::Refused(why),
            None => Step::NewRound { has_standby },
        }
    }

    /// The reason of a server that refused the client, if no other can be the owner: each refused as well, or named one
    /// that did.
    fn refusal(&self) -> Option<FsError> {
        let refused = |server: &Server| match &server.verdict {
            Some(Verdict::Refused(why)) => Some(why.clone()),
            _ => None,
        };
        let is_out = |server: &Server| match server.verdict {
            Some(Verdict::NotOwner(Some(named))) => refused(&self.servers[named]).is_some(),
            _ => refused(server).is_some(),
        };
        let are_all_out = self.servers.iter().all(is_out);
        self.servers.iter().find_map(refused).filter(|_| are_all_out)
    }

    /// The server of the attempt has taken the client. The next round begins with it.
    pub(super) fn worked(&mut self) {
        self.servers[self.next] = Server::default();
        self.servers.iter_mut().for_each(|server| server.verdict = None);
        self.named = None;
    }

    /// Its connection has ended.
    pub(super) fn lost(&mut self, loss: &Loss) {
        let another = (self.next + 1) % self.servers.len();
        let was_disowned = std::mem::replace(&mut self.is_disowned, matches!(loss, Loss::NotOwner(_)));
        match loss {
            Loss::Broken => {}
            // Its machine may be dead, and an attempt would take long.
            Loss::Silent => {
                self.servers[self.next].is_silent = another != self.next;
                self.next = another;
            }
            // Servers that welcome the client and then name each other must not keep it from the owner.
            Loss::NotOwner(_) if was_disowned => self.next = another,
            Loss::NotOwner(address) => {
                let named = self.addresses.find(address).filter(|&named| named != self.next);
                self.next = named.unwrap_or(another);
            }
        }
    }
}

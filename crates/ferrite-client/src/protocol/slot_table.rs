//! The slots of a session, from which changes get their tokens: one change at a time uses each.
//!
//! Contents: [`SlotTable`].
//!
//! Invariant: the numbers of one slot ascend, and lie above those of its previous holder. The number that the server
//! gives out with slots ensures that: it is their upper half.

use std::time::{Duration, Instant};

use ferrite_vfs::{DedupToken, Result};

use super::call::Tokens;

/// The client asks a server that had no slots to spare, or refused the request, again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The slots that the server has given.
#[derive(Debug, Default)]
struct Kept {
    session: u64,
    /// The upper half of tokens' numbers. Never 0.
    number: u64,
    /// All slots of the session; unknown before the first change.
    all: Option<Vec<u32>>,
    /// When the client asked for them.
    requested: Option<Instant>,
    /// When one was last used, or the server confirmed them.
    used: Option<Instant>,
    /// Not in use, each with the number of its last change.
    free: Vec<(u32, u32)>,
}

/// See the head of this module.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    kept: Kept,
    /// How long slots may lie unused before the client asks the server whether the session still has them.
    valid_for: Option<Duration>,
    /// A request for slots is in flight whose reply no thread waits for.
    is_asking: bool,
    /// When such a request was refused.
    refused: Option<Instant>,
}

impl Tokens for SlotTable {
    fn has(&self, token: DedupToken) -> bool {
        let all = self.kept.all.as_deref().unwrap_or_default();
        self.kept.number == token.seq >> 32 && all.contains(&token.slot)
    }

    fn has_any(&self) -> bool {
        self.kept.all.as_ref().is_some_and(|all| !all.is_empty())
    }
}

impl SlotTable {
    /// Forgets all slots: a session begins, and has none yet.
    pub(crate) fn begin(&mut self, session: u64) {
        self.refused = None;
        self.kept = Kept {
            session,
            ..Kept::default()
        };
    }

    /// Sets the lease: the server revokes slots that lie unused for that long.
    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.valid_for = Some(lease / 2);
    }

    /// Whether slots lie unused for so long that the server may have revoked them.
    fn are_doubtful(&self, now: Instant) -> bool {
        let unused = self.kept.used.map(|used| now.saturating_duration_since(used));
        self.valid_for
            .zip(unused)
            .is_some_and(|(valid_for, unused)| unused >= valid_for)
    }

    /// Whether to ask the server for slots: the client has not asked yet, or got none then, or they may have been
    /// revoked.
    pub(crate) fn are_wanted(&self, now: Instant) -> bool {
        let is_late = |since| now.saturating_duration_since(since) >= ASK_AGAIN;
        if self.refused.is_some_and(|refused| !is_late(refused)) {
            return false;
        }
        match (&self.kept.all, self.kept.requested) {
            (Some(all), Some(requested)) if all.is_empty() => is_late(requested),
            (Some(_), Some(_)) => self.are_doubtful(now),
            _ => true,
        }
    }

    /// Begins to ask the server for slots, in a request whose reply no thread waits for. False if none are wanted, or
    /// such a request is in flight, on whatever connection: it is repeated until it is answered.
    pub(crate) fn begin_asking(&mut self, now: Instant) -> bool {
        let begins = !self.is_asking && self.are_wanted(now);
        self.is_asking |= begins;
        begins
    }

    /// The request that [`Self::begin_asking`] began, in this session, has ended. If another session has begun
    /// meanwhile, the client has to ask again. True if its slots are not those that it had.
    pub(crate) fn asked(&mut self, session: u64, given: Result<(u64, Vec<u32>)>, now: Instant) -> bool {
        self.is_asking = false;
        self.refused = given.is_err().then_some(now);
        given.is_ok_and(|(number, slots)| self.fill(session, number, slots, now))
    }

    /// Sets the slots of the session. True if they are not those that it had.
    pub(crate) fn fill(&mut self, session: u64, number: u64, slots: Vec<u32>, now: Instant) -> bool {
        let kept = &mut self.kept;
        if kept.session != session {
            return false;
        }
        kept.used = Some(now);
        if kept.number == number && kept.all.as_ref().is_some_and(|all| !all.is_empty()) {
            return false;
        }
        kept.number = number;
        kept.free = slots.iter().rev().map(|&slot| (slot, 0)).collect();
        kept.all = Some(slots);
        kept.requested = Some(now);
        true
    }

    /// Notes the slots that the server confirmed after a restart. Tokens of other slots are void.
    pub(crate) fn reclaimed(&mut self, number: u64, slots: Vec<u32>, now: Instant) {
        let kept = &mut self.kept;
        if kept.number == number {
            kept.free.retain(|(slot, _)| slots.contains(slot));
            kept.all = Some(slots);
            kept.used = Some(now);
        } else {
            self.begin(self.kept.session);
        }
    }

    /// A token of a free slot, unless the slots may have been revoked. [`Self::free`] frees it.
    pub(crate) fn try_take(&mut self, now: Instant) -> Option<DedupToken> {
        match self.are_doubtful(now) {
            true => None,
            false => self.take(now),
        }
    }

    /// The same from slots that the server has just confirmed.
    pub(crate) fn take(&mut self, now: Instant) -> Option<DedupToken> {
        let kept = &mut self.kept;
        let (slot, last) = kept.free.pop()?;
        kept.used = Some(now);
        let seq = kept.number << 32 | u64::from(last + 1);
        Some(DedupToken { slot, seq })
    }

    /// Notes that the change with this token is done. True if its slot is free now.
    pub(crate) fn free(&mut self, token: DedupToken) -> bool {
        let last = token.seq as u32;
        // Once its numbers are used up, a slot is retired; that takes years.
        let is_free = self.has(token) && last < u32::MAX;
        if is_free {
            self.kept.free.push((token.slot, last));
        }
        is_free
    }

    /// How many slots are not in use.
    #[cfg(test)]
    pub(crate) fn free_count(&self) -> usize {
        self.kept.free.len()
    }
}

//! A session's slots of tokens: it gets them once, and loses unused ones.
//!
//! Invariant: the server revokes slots only if the session's client has confirmed the reply to its last change
//! ([`Kept::is_settled`]). So no token of theirs comes again, and a change that comes with one later was never made.

use ferrite_vfs::{DedupToken, FsError, Result, Unsupported};

use super::{Kept, Session};

impl Session {
    /// The slots, and the number that their tokens carry. A session without slots gets up to `count`.
    pub(crate) fn slots(&self, count: usize) -> (u64, Vec<u32>) {
        let _turn = self.getting_slots.lock();
        {
            let mut kept = self.kept.lock();
            if kept.is_over || !kept.slots.is_empty() {
                kept.changed_ms = self.last_seen_ms();
                return (kept.number, kept.slots.clone());
            }
        }
        let (state, fs) = (&self.export.store.state, self.export.fs());
        let (number, taken) = state.take_slots(fs, self.resume_token.session, self.account, count);
        let mut kept = self.kept.lock();
        if kept.is_over {
            drop(kept);
            state.free_slots(fs, &[number]);
            return (0, Vec::new());
        }
        kept.number = number;
        kept.slots.clone_from(&taken);
        kept.changed_ms = self.last_seen_ms();
        (number, taken)
    }

    /// The token of the change `request`, if the session may use it.
    pub(crate) fn token(&self, request: u64, token: Option<DedupToken>) -> Result<Option<DedupToken>> {
        let Some(token) = token else {
            return Ok(None);
        };
        let mut kept = self.kept.lock();
        if token.seq >> 32 != kept.number || !kept.slots.contains(&token.slot) {
            return Err(FsError::NotSupported(Unsupported::DedupSlot));
        }
        kept.last_change = kept.last_change.max(request);
        kept.changed_ms = self.last_seen_ms();
        Ok(Some(token))
    }

    /// The client has the replies to all requests below this number.
    pub(crate) fn settled(&self, below: u64) {
        let mut kept = self.kept.lock();
        kept.settled_below = kept.settled_below.max(below);
    }

    /// Revokes the slots, if the session has made no change for so long, and none can come again. Returns the number of
    /// their tokens; the caller makes the pool forget them.
    pub(crate) fn take_idle_slots(&self, now_ms: u64, idle_ms: u64) -> Option<u64> {
        let mut kept = self.kept.lock();
        let is_idle = now_ms.saturating_sub(kept.changed_ms) >= idle_ms;
        if kept.slots.is_empty() || kept.is_reclaiming || !is_idle || !kept.is_settled() {
            return None;
        }
        kept.slots = Vec::new();
        Some(std::mem::take(&mut kept.number))
    }

    /// The slots of the session in an earlier run, and the number of its tokens; empty if it had none. `request` asks
    /// for them.
    pub(crate) fn reclaim_slots(&self, request: u64) -> (u64, Vec<u32>) {
        let _turn = self.getting_slots.lock();
        {
            let kept = self.kept.lock();
            if kept.is_over || !kept.is_reclaiming || !kept.slots.is_empty() {
                // Requested before, on a connection that broke.
                return (kept.number, kept.slots.clone());
            }
        }
        let (number, slots) = self
            .export
            .store
            .state
            .claim_slots(self.resume_token.session, self.account);
        let mut kept = self.kept.lock();
        kept.number = number;
        kept.slots.clone_from(&slots);
        kept.changed_ms = self.last_seen_ms();
        // Changes of the earlier run, which have smaller numbers, may come again.
        kept.last_change = request;
        (number, slots)
    }
}

impl Kept {
    /// Whether the client has the replies to all changes with tokens that have come.
    fn is_settled(&self) -> bool {
        self.last_change < self.settled_below || self.last_change == 0
    }
}

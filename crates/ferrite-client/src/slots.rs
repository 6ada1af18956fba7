//! Slots of tokens: one change at a time uses each.
//!
//! Invariant: the numbers of one slot ascend, and lie above those of its previous holder. The number that the server
//! gives out with slots ensures that: it is their upper half.

use std::time::{Duration, Instant};

use ferrite_checks::ranked::{Condvar, Mutex};
use ferrite_vfs::{DedupToken, Result};

use super::deadline::Deadline;
use crate::lock_order;

/// The client asks a server that had no slots to spare again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(5);

#[derive(Default)]
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

/// The slots of a session.
#[derive(Default)]
pub(super) struct Slots {
    kept: Mutex<lock_order::Slots, Kept>,
    /// How long slots may lie unused before the client asks the server whether the session still has them.
    valid_for: Mutex<lock_order::Trusted, Option<Duration>>,
    freed: Condvar,
}

/// A slot in use. Dropping it frees the slot.
pub(super) struct Slot<'s> {
    slots: &'s Slots,
    pub(super) token: DedupToken,
}

impl Slots {
    /// Forgets all slots: a session begins, and has none yet.
    pub(super) fn begin(&self, session: u64) {
        let mut kept = self.kept.lock();
        *kept = Kept {
            session,
            ..Kept::default()
        };
        self.freed.notify_all();
    }

    /// Sets the lease: the server revokes slots that lie unused for that long.
    pub(super) fn set_lease(&self, lease: Duration) {
        *self.valid_for.lock() = Some(lease / 2);
    }

    /// Whether slots lie unused for so long that the server may have revoked them.
    fn are_doubtful(&self, kept: &Kept) -> bool {
        let valid_for = *self.valid_for.lock();
        let unused = kept.used.map(|used| used.elapsed());
        valid_for
            .zip(unused)
            .is_some_and(|(valid_for, unused)| unused >= valid_for)
    }

    /// Whether to ask the server for slots: the client has not asked yet, or got none then, or they may have been
    /// revoked.
    pub(super) fn are_wanted(&self) -> bool {
        let kept = self.kept.lock();
        match (&kept.all, kept.requested) {
            (Some(all), Some(requested)) if all.is_empty() => requested.elapsed() >= ASK_AGAIN,
            (Some(_), Some(_)) => self.are_doubtful(&kept),
            _ => true,
        }
    }

    /// Sets the slots of the session.
    pub(super) fn fill(&self, session: u64, number: u64, slots: Vec<u32>) {
        let mut kept = self.kept.lock();
        if kept.session != session {
            return;
        }
        kept.used = Some(Instant::now());
        let has_these = kept.number == number && kept.all.as_ref().is_some_and(|all| !all.is_empty());
        if !has_these {
            kept.number = number;
            kept.free = slots.iter().rev().map(|&slot| (slot, 0)).collect();
            kept.all = Some(slots);
            kept.requested = Some(Instant::now());
            self.freed.notify_all();
        }
    }

    /// Notes the slots that the server confirmed after a restart. Tokens of other slots are void.
    pub(super) fn reclaimed(&self, number: u64, slots: Vec<u32>) {
        let mut kept = self.kept.lock();
        if kept.number == number {
            kept.free.retain(|(slot, _)| slots.contains(slot));
            kept.all = Some(slots);
            kept.used = Some(Instant::now());
        } else {
            *kept = Kept {
                session: kept.session,
                ..Kept::default()
            };
        }
        self.freed.notify_all();
    }

    /// Whether the session has any.
    pub(super) fn has_any(&self) -> bool {
        self.kept.lock().all.as_ref().is_some_and(|all| !all.is_empty())
    }

    /// Whether a token belongs to a slot that the session has.
    pub(super) fn has(&self, token: DedupToken) -> bool {
        let kept = self.kept.lock();
        let all = kept.all.as_deref().unwrap_or_default();
        kept.number == token.seq >> 32 && all.contains(&token.slot)
    }

    /// Whether a change may be sent with this slot, or without any.
    pub(super) fn is_current(&self, slot: Option<&Slot<'_>>) -> bool {
        match slot {
            Some(slot) => self.has(slot.token),
            None => !self.has_any(),
        }
    }

    /// A token of a free slot, if any. [`Self::free`] frees it.
    pub(super) fn try_take(&self) -> Option<DedupToken> {
        let mut kept = self.kept.lock();
        if self.are_doubtful(&kept) {
            return None;
        }
        let (slot, last) = kept.free.pop()?;
        kept.used = Some(Instant::now());
        let seq = kept.number << 32 | u64::from(last + 1);
        Some(DedupToken { slot, seq })
    }

    /// Notes that the change with this token is done.
    pub(super) fn free(&self, token: DedupToken) {
        let mut kept = self.kept.lock();
        let last = token.seq as u32;
        // Once its numbers are used up, a slot is retired; that takes years.
        let is_mine = kept.all.as_ref().is_some_and(|all| all.contains(&token.slot));
        if is_mine && kept.number == token.seq >> 32 && last < u32::MAX {
            kept.free.push((token.slot, last));
            self.freed.notify_one();
        }
    }

    /// A free slot; waits for one. `None` if the session has none at all, or they are unknown.
    pub(super) fn take(&self, limit: &Deadline) -> Result<Option<Slot<'_>>> {
        let mut kept = self.kept.lock();
        loop {
            if kept.all.as_ref().is_none_or(Vec::is_empty) {
                return Ok(None);
            }
            if let Some((slot, last)) = kept.free.pop() {
                kept.used = Some(Instant::now());
                let seq = kept.number << 32 | u64::from(last + 1);
                return Ok(Some(Slot {
                    slots: self,
                    token: DedupToken { slot, seq },
                }));
            }
            match limit.next_check() {
                None => self.freed.wait(&mut kept),
                Some(at) => drop(self.freed.wait_until(&mut kept, at)),
            }
            limit.check()?;
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.slots.free(self.token);
    }
}

#[cfg(test)]
mod tests {
    use ferrite_vfs::FsError;

    use super::*;

    fn take(slots: &Slots) -> Option<Slot<'_>> {
        slots.take(&Deadline::until(None)).unwrap()
    }

    #[test]
    fn numbers_ascend_within_a_slot_and_from_session_to_session() {
        let slots = Slots::default();
        slots.begin(3);
        assert!(take(&slots).is_none(), "none are known");
        slots.fill(3, 3, vec![8]);
        let mut last = 0;
        for _ in 0..3 {
            let slot = take(&slots).unwrap();
            assert!(slot.token.slot == 8 && slot.token.seq > last);
            last = slot.token.seq;
        }
        let old = take(&slots).unwrap();
        slots.begin(4);
        assert!(!slots.has(old.token), "it was of a session that is over");
        slots.fill(3, 5, vec![1]);
        slots.fill(4, 6, vec![8]);
        drop(old);
        let new = take(&slots).unwrap();
        assert!(new.token.slot == 8 && new.token.seq > last + 1);
        drop(new);
        assert!(slots.has_any() && take(&slots).is_some());
    }

    #[test]
    fn what_the_server_does_not_give_back_is_void() {
        let slots = Slots::default();
        slots.begin(1);
        slots.fill(1, 3, vec![5, 6]);
        let (one, other) = (take(&slots).unwrap(), take(&slots).unwrap());
        slots.reclaimed(3, vec![6]);
        assert!(!slots.has(one.token) && slots.has(other.token));
        drop((one, other));
        assert_eq!(slots.kept.lock().free.len(), 1);
        slots.reclaimed(0, vec![]);
        assert!(!slots.has_any() && slots.are_wanted() && take(&slots).is_none());
        slots.fill(1, 0, vec![]);
        assert!(!slots.are_wanted(), "there were none a moment ago");
    }

    #[test]
    fn who_has_a_deadline_waits_no_longer() {
        let slots = Slots::default();
        slots.begin(1);
        slots.fill(1, 1, vec![0]);
        let _one = take(&slots);
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(matches!(
            slots.take(&Deadline::until(Some(deadline))),
            Err(FsError::TimedOut)
        ));
    }

    #[test]
    fn who_finds_no_slot_waits_for_one() {
        let slots = Slots::default();
        slots.begin(1);
        slots.fill(1, 1, vec![0, 1]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..200).for_each(|_| drop(take(&slots).unwrap())));
            }
        });
        assert_eq!(slots.kept.lock().free.len(), 2);
    }

    /// The server gives slots that lie unused for a lease to other sessions.
    #[test]
    fn slots_that_lay_unused_are_asked_for_before_they_are_used() {
        let slots = Slots::default();
        let (at_once, never) = (Duration::ZERO, Duration::from_secs(3600));
        slots.begin(1);
        slots.fill(1, 3, vec![0]);
        slots.set_lease(never);
        let first = slots.try_take().unwrap();
        slots.free(first);
        slots.set_lease(at_once);
        assert!(slots.are_wanted() && slots.try_take().is_none() && slots.has_any());
        // The session still has them: numbers continue.
        slots.fill(1, 3, vec![0]);
        slots.set_lease(never);
        assert!(!slots.are_wanted());
        let second = slots.try_take().unwrap();
        assert_eq!((second.slot, second.seq), (0, first.seq + 1));
        slots.free(second);
        // It has others.
        slots.fill(1, 9, vec![5]);
        assert!(!slots.has(second));
        let third = slots.try_take().unwrap();
        assert_eq!((third.slot, third.seq), (5, 9 << 32 | 1));
        slots.free(second);
        assert!(slots.try_take().is_none(), "what was another's number is not free here");
        slots.fill(1, 0, vec![]);
        assert!(!slots.has_any() && !slots.are_wanted(), "there were none a moment ago");
    }
}

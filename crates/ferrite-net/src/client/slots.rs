//! Slots of tokens: each is used by one change at a time.
//!
//! Invariant: the numbers of one slot ascend, and lie above those of whoever had the slot before, which the number that
//! the server gives out with slots sees to: it is their upper half.

use ferrite_vfs::Once;
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Kept {
    session: u64,
    /// The upper half of tokens' numbers. None is 0.
    number: u64,
    /// All that the session has; unknown before the first change.
    all: Option<Vec<u32>>,
    /// Not in use, each with the number of its last change.
    free: Vec<(u32, u32)>,
}

/// The slots of a session.
#[derive(Default)]
pub(super) struct Slots {
    kept: Mutex<Kept>,
    freed: Condvar,
}

/// A slot in use. Dropping it makes it free.
pub(super) struct Slot<'s> {
    slots: &'s Slots,
    pub(super) once: Once,
}

impl Slots {
    /// A session has begun, which has no slots yet.
    pub(super) fn begin(&self, session: u64) {
        let mut kept = self.kept.lock();
        *kept = Kept {
            session,
            ..Kept::default()
        };
        self.freed.notify_all();
    }

    /// Whether the session's slots are not known.
    pub(super) fn are_unknown(&self) -> bool {
        self.kept.lock().all.is_none()
    }

    /// The session has these.
    pub(super) fn fill(&self, session: u64, number: u64, slots: Vec<u32>) {
        let mut kept = self.kept.lock();
        if kept.session == session && kept.all.is_none() {
            kept.number = number;
            kept.free = slots.iter().rev().map(|&slot| (slot, 0)).collect();
            kept.all = Some(slots);
            self.freed.notify_all();
        }
    }

    /// All slots of the session, and the number of its tokens.
    pub(super) fn all(&self) -> (u64, Vec<u32>) {
        let kept = self.kept.lock();
        (kept.number, kept.all.clone().unwrap_or_default())
    }

    /// Whether a token is of a slot that the session has.
    pub(super) fn has(&self, once: Once) -> bool {
        self.kept.lock().number == once.seq >> 32
    }

    /// A free slot; waits for one. `None` if the session has none at all, or they are unknown.
    pub(super) fn take(&self) -> Option<Slot<'_>> {
        let mut kept = self.kept.lock();
        loop {
            if kept.all.as_ref().is_none_or(Vec::is_empty) {
                return None;
            }
            if let Some((slot, last)) = kept.free.pop() {
                let seq = kept.number << 32 | u64::from(last + 1);
                return Some(Slot {
                    slots: self,
                    once: Once { slot, seq },
                });
            }
            self.freed.wait(&mut kept);
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut kept = self.slots.kept.lock();
        let last = self.once.seq as u32;
        // With its numbers used up a slot is not used any more; that takes years.
        if kept.number == self.once.seq >> 32 && last < u32::MAX {
            kept.free.push((self.once.slot, last));
            self.slots.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_within_a_slot_and_from_session_to_session() {
        let slots = Slots::default();
        slots.begin(3);
        assert!(slots.take().is_none(), "none are known");
        slots.fill(3, 3, vec![8]);
        let mut last = 0;
        for _ in 0..3 {
            let slot = slots.take().unwrap();
            assert!(slot.once.slot == 8 && slot.once.seq > last);
            last = slot.once.seq;
        }
        let old = slots.take().unwrap();
        slots.begin(4);
        assert!(!slots.has(old.once), "it was of a session that is over");
        slots.fill(3, 5, vec![1]);
        slots.fill(4, 6, vec![8]);
        drop(old);
        let new = slots.take().unwrap();
        assert!(new.once.slot == 8 && new.once.seq > last + 1);
        drop(new);
        assert_eq!(slots.all(), (6, vec![8]));
    }

    #[test]
    fn who_finds_no_slot_waits_for_one() {
        let slots = Slots::default();
        slots.begin(1);
        slots.fill(1, 1, vec![0, 1]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..200).for_each(|_| drop(slots.take().unwrap())));
            }
        });
        assert_eq!(slots.kept.lock().free.len(), 2);
    }
}

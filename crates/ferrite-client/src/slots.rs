//! Slots of tokens, as threads share them.
//!
//! Contents: [`Slots`], which guards the session's [`SlotTable`], and in which threads wait for a slot.

use std::time::{Duration, Instant};

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;
use ferrite_vfs::{DedupToken, Result};

use super::deadline::Deadline;
use super::protocol::{SlotTable, Tokens};
use crate::lock_order;

/// The slots of a session.
#[derive(Default)]
pub(super) struct Slots {
    table: Mutex<lock_order::Slots, SlotTable>,
    freed: Condvar,
}

/// A slot in use. Dropping it frees the slot.
pub(super) struct Slot<'s> {
    slots: &'s Slots,
    pub(super) token: DedupToken,
}

impl Tokens for Slots {
    fn has(&self, token: DedupToken) -> bool {
        self.table.lock().has(token)
    }

    fn has_any(&self) -> bool {
        self.table.lock().has_any()
    }
}

impl Slots {
    /// Forgets all slots: a session begins, and has none yet.
    pub(super) fn begin(&self, session: u64) {
        self.table.lock().begin(session);
        self.freed.notify_all();
    }

    /// Sets the lease: the server revokes slots that lie unused for that long.
    pub(super) fn set_lease(&self, lease: Duration) {
        self.table.lock().set_lease(lease);
    }

    /// Whether to ask the server for slots.
    pub(super) fn are_wanted(&self) -> bool {
        self.table.lock().are_wanted(Instant::now())
    }

    /// Begins to ask for slots that no thread waits for. False if there is no need to, or a reply is to come already.
    /// [`Self::asked`] ends it.
    pub(super) fn begin_asking(&self) -> bool {
        self.table.lock().begin_asking(Instant::now())
    }

    /// The request that [`Self::begin_asking`] began, in this session, has ended.
    pub(super) fn asked(&self, session: u64, given: Result<(u64, Vec<u32>)>) {
        if self.table.lock().asked(session, given, Instant::now()) {
            self.freed.notify_all();
        }
    }

    /// Sets the slots of the session.
    pub(super) fn fill(&self, session: u64, number: u64, slots: Vec<u32>) {
        if self.table.lock().fill(session, number, slots, Instant::now()) {
            self.freed.notify_all();
        }
    }

    /// Notes the slots that the server confirmed after a restart. Tokens of other slots are void.
    pub(super) fn reclaimed(&self, number: u64, slots: Vec<u32>) {
        self.table.lock().reclaimed(number, slots, Instant::now());
        self.freed.notify_all();
    }

    /// A token of a free slot, if any. [`Self::free`] frees it.
    pub(super) fn try_take(&self) -> Option<DedupToken> {
        self.table.lock().try_take(Instant::now())
    }

    /// Notes that the change with this token is done.
    pub(super) fn free(&self, token: DedupToken) {
        if self.table.lock().free(token) {
            self.freed.notify_one();
        }
    }

    /// A free slot; waits for one. `None` if the session has none at all, or they are unknown.
    pub(super) fn take(&self, limit: &Deadline) -> Result<Option<Slot<'_>>> {
        let mut table = self.table.lock();
        loop {
            if !table.has_any() {
                return Ok(None);
            }
            if let Some(token) = table.take(Instant::now()) {
                return Ok(Some(Slot { slots: self, token }));
            }
            match limit.next_check() {
                None => self.freed.wait(&mut table),
                Some(at) => drop(self.freed.wait_until(&mut table, at)),
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
        assert_eq!(slots.table.lock().free_count(), 2);
    }
}

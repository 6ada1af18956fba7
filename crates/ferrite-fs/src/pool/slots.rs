//! The locks of the slots of tokens ([`ferrite_vfs::dedup`]).

use ferrite_checks::ranked::{Mutex, MutexGuard};
use ferrite_vfs::DedupToken;

use crate::lock_order;

/// The locks of the slots, each held while a change with a token of the slot is in progress. A repetition that
/// overtakes its original waits.
pub(crate) struct Slots(Box<[Mutex<lock_order::TokenSlot, ()>]>);

impl Slots {
    /// All free.
    pub(crate) fn new(count: u64) -> Self {
        Slots((0..count).map(|_| Mutex::new(())).collect())
    }

    /// Waits for the slot of a token; `None` if there is no such slot.
    pub(crate) fn lock(&self, token: DedupToken) -> Option<MutexGuard<'_, ()>> {
        self.0.get(token.slot as usize).map(Mutex::lock)
    }
}

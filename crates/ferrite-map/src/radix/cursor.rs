//! The cursor of the radix trees: a leaf that sequential reads return to, kept in an open file's [`TransCache`].
//!
//! Contents: the meaning of its hints for [`Radix`](super::Radix), the only user, whose module states when a lookup may
//! trust a cursor.
//!
//! Invariant: a remembered leaf is found whole or not at all, even if any number of threads share the cache.

use super::LEVEL_BITS;
use crate::sync::{Ordering, fence};
use crate::{BlockNo, Inum, Lblk, TransCache};

#[cfg(all(test, feature = "shuttle"))]
mod models;

/// The hints: a sequence number, odd while a thread writes; `ino << 32 | leaf`; `lblk / 512`; epoch. After them the
/// leaf walked to last, `ino << 32 | lblk / 512`.
impl TransCache {
    /// The leaf that had page `lblk`, if it was found in this epoch.
    pub(super) fn leaf(&self, ino: Inum, lblk: Lblk, epoch: u64) -> Option<BlockNo> {
        let [sequence, place, number, found] = self.hints.first_chunk()?;
        let before = sequence.load(Ordering::Acquire);
        let place = place.load(Ordering::Relaxed);
        let number = number.load(Ordering::Relaxed);
        let found = found.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = before % 2 == 0 && sequence.load(Ordering::Relaxed) == before;
        let is_it = place >> 32 == u64::from(ino) && number == u64::from(lblk.get() >> LEVEL_BITS) && found == epoch;
        (is_whole && is_it && place as u32 != 0).then_some(BlockNo::new(place as u32))
    }

    /// Whether the walk before this one went to the same leaf. Only then is it worth a cursor: one that is rewritten by
    /// each of many random reads costs more than it saves.
    pub(super) fn walks_again(&self, ino: Inum, lblk: Lblk) -> bool {
        let walked = &self.hints[4];
        let leaf = u64::from(ino) << 32 | u64::from(lblk.get() >> LEVEL_BITS);
        let is_same = walked.load(Ordering::Relaxed) == leaf;
        if !is_same {
            walked.store(leaf, Ordering::Relaxed);
        }
        is_same
    }

    /// Remembers a leaf; does nothing if another thread is writing.
    pub(super) fn put_leaf(&self, ino: Inum, lblk: Lblk, leaf: BlockNo, epoch: u64) {
        let [sequence, place, number, found, ..] = &self.hints;
        let before = sequence.load(Ordering::Relaxed);
        let is_mine = before % 2 == 0
            && sequence
                .compare_exchange(before, before + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if is_mine {
            fence(Ordering::Release);
            place.store(u64::from(ino) << 32 | u64::from(leaf), Ordering::Relaxed);
            number.store(u64::from(lblk.get() >> LEVEL_BITS), Ordering::Relaxed);
            found.store(epoch, Ordering::Relaxed);
            sequence.store(before + 2, Ordering::Release);
        }
    }
}

//! Blobs that name units which another blob names, too: only damage creates them.
//!
//! Of two that claim a unit, the one whose slot was read first has it. It is unknown whose content is there, so the
//! other gets a copy, and is reported by name; the user of the blobs then decides what it is worth.
//!
//! Invariants: a unit that two blobs claim is never reallocated until one of them has released it durably; and nothing
//! is written to it, by neither blob nor from the ring. The reported blob takes no writes at all meanwhile.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::blob::Blob;
use crate::core::{Core, Free, State};
use crate::device::Op;
use crate::format::{BlobId, RingEntry};
use crate::page::Pages;
use crate::store::BlobStore;
use crate::{Error, PAGE_BYTES, Result};

impl BlobStore {
    /// Blobs that name clusters, or parts of them, which another blob has, or which do not exist.
    pub fn tangled(&self) -> Vec<BlobId> {
        let free = self.core.free.lock();
        let id = |&slot: &u32| BlobId::of(slot, free.incarnations[slot as usize]);
        free.tangled.keys().map(id).collect()
    }

    /// Gives one of them copies of what it shares; units that do not exist become holes. Durable when it returns.
    /// Nothing else is changed: the user of the others has to learn of it first.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; errors of the device; no such blob.
    pub fn untangle(&self, id: BlobId) -> Result<()> {
        self.blob(id)?.untangle()
    }
}

impl Blob {
    /// Refuses writes to these bytes, if the blob names another's units, or another names some of the units of these
    /// bytes.
    pub(crate) fn check_tangle(&self, state: &State, from: u64, to: u64) -> Result<()> {
        if self.core.tangles.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let (id, free) = (self.inner.id, self.core.free.lock());
        let refused = |what: &str| {
            let text = format!("blob {:x} {what}; it can be written after a repair", id.raw());
            Err(Error::Damaged(text))
        };
        if free.tangled.contains_key(&id.slot()) {
            return refused("names clusters that are another's, or none");
        }
        let unit_bytes = self.core.layout.unit_bytes();
        let (mut at, end) = (from / unit_bytes, to.div_ceil(unit_bytes));
        while at < end {
            let place = u32::try_from(at).ok().and_then(|at| state.piece(at));
            let Some((physical, count)) = place else {
                match self.core.hole_end(state, at.saturating_mul(unit_bytes)) {
                    u64::MAX => break,
                    hole_end => at = hole_end / unit_bytes,
                }
                continue;
            };
            let count = u64::from(count).min(end - at);
            let mut claimed = free.tangled.values();
            if claimed.any(|claimed| claimed.range(physical..physical + count as u32).next().is_some()) {
                return refused("has clusters there that another blob names, too");
            }
            at += count;
        }
        Ok(())
    }

    fn untangle(&self) -> Result<()> {
        let mut state = self.inner.state.write();
        self.alive(&state)?;
        self.core.check_running()?;
        let slot = self.inner.id.slot();
        let claimed = self.core.free.lock().tangled.get(&slot).cloned().unwrap_or_default();
        let before = state.before();
        let mut taken = Vec::new();
        let moved = self.core.move_out(&mut state, &claimed, &mut taken);
        let stored = moved.and_then(|()| self.core.store(self.inner.id, &mut state, true));
        if let Err(error) = stored {
            state.restore(before);
            self.core.give_units(&taken);
            return Err(error);
        }
        self.core.end_tangle(&mut self.core.free.lock(), slot);
        drop(state);
        self.core.forget_tangle(slot);
        Ok(())
    }
}

impl Core {
    /// Whether an entry of the ring concerns a blob that names another's units, or concerns such a unit.
    pub(crate) fn meets_tangle(&self, entry: &RingEntry) -> bool {
        let free = self.free.lock();
        let is_claimed = |&target: &u64| {
            let into = target.checked_sub(self.layout.cluster(0));
            let unit = into.and_then(|into| u32::try_from(into / u64::from(self.layout.unit_pages)).ok());
            unit.is_some_and(|unit| free.tangled.values().any(|claimed| claimed.contains(&unit)))
        };
        free.tangled.contains_key(&entry.id.slot()) || entry.targets.iter().any(is_claimed)
    }

    /// The blob in a slot names nothing of another's any more; returns whether it did.
    pub(crate) fn end_tangle(&self, free: &mut Free, slot: u32) -> bool {
        let was_tangled = free.tangled.remove(&slot).is_some();
        self.tangles.store(free.tangled.len(), Ordering::Release);
        was_tangled
    }

    /// The damage is mended. The caller has no blob locked.
    pub(crate) fn forget_tangle(&self, slot: u32) {
        let mut damage = self.damage.lock();
        damage.retain(|damage| damage.slot != slot || !damage.is_tangle);
    }

    /// Replaces another's units by copies.
    fn move_out(&self, state: &mut State, claimed: &BTreeSet<u32>, taken: &mut Vec<(u32, u32)>) -> Result<()> {
        let units = u64::from(self.layout.clusters) * u64::from(self.layout.units_per_cluster());
        let mut goal = None;
        for (logical, (physical, count)) in state.pieces.clone() {
            for into in 0..count {
                let (at, from) = (logical.saturating_add(into), u64::from(physical) + u64::from(into));
                if from >= units {
                    state.remove(at, logical.saturating_add(count));
                    break;
                }
                let from = from as u32;
                if !claimed.contains(&from) {
                    continue;
                }
                let pieces = self.take_units(goal, &[1])?.concat();
                let Some(&(to, _)) = pieces.first() else { continue };
                taken.extend(pieces);
                goal = Some(to + 1);
                self.copy_unit(from, to)?;
                state.remove(at, at + 1);
                state.add(at, to, 1);
            }
        }
        Ok(())
    }

    /// Durable when it returns. Data whose checksum is wrong is copied as it is.
    fn copy_unit(&self, from: u32, to: u32) -> Result<()> {
        let mut pages = Pages::zeroed(self.layout.unit_pages as usize);
        self.metadata().run(&mut [Op::Read {
            offset: self.layout.unit(from) * PAGE_BYTES as u64,
            into: pages.bytes_mut(),
        }])?;
        self.device.run(&mut [Op::Write {
            offset: self.layout.unit(to) * PAGE_BYTES as u64,
            from: pages.bytes(),
            durable: true,
        }])
    }
}

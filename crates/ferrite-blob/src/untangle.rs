//! Blobs that name units which another blob names, too: only damage makes them.
//!
//! Of two that claim a unit, the one whose slot was read first has it. Nobody knows whose content is there, so the
//! other gets a copy, and is told of by name; whoever uses blobs then decides what it is worth.
//!
//! Invariant: a unit that two blobs claim is never given away, until one of them has let go of it durably.

use std::collections::BTreeSet;

use crate::blob::Blob;
use crate::core::{Core, State};
use crate::device::Op;
use crate::format::BlobId;
use crate::page::Pages;
use crate::store::BlobStore;
use crate::{PAGE_BYTES, Result};

impl BlobStore {
    /// Blobs that name clusters, or parts of them, which another blob has, or which do not exist.
    pub fn tangled(&self) -> Vec<BlobId> {
        let free = self.core.free.lock();
        let id = |&slot: &u32| BlobId::of(slot, free.incarnations[slot as usize]);
        free.tangled.keys().map(id).collect()
    }

    /// Gives one of them copies of what it shares; what does not exist becomes a hole. Durable when it returns. Nothing
    /// else is changed: who uses the others has to learn of it first.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; of the device; if there is no such blob.
    pub fn untangle(&self, id: BlobId) -> Result<()> {
        self.blob(id)?.untangle()
    }
}

impl Blob {
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
        self.core.free.lock().tangled.remove(&slot);
        drop(state);
        self.core.forget_tangle(slot);
        Ok(())
    }
}

impl Core {
    /// The damage is mended. The caller has locked no blob.
    pub(crate) fn forget_tangle(&self, slot: u32) {
        let mut damage = self.damage.lock();
        damage.retain(|damage| damage.slot != slot || !damage.is_tangle);
    }

    /// Puts copies in the place of units that are another's.
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

    /// Durable when it returns. What is wrong by its checksum is copied as it is.
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

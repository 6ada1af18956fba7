//! The proof that a close leaves of its slots: the newer page of each is there.
//!
//! Of a slot's two pages the one with the larger generation is right. After a crash, an unreadable page may be a torn
//! write, and then the other page is right. After a close it cannot be: if it was the newer page, the other one holds
//! an older state of the blob.
//!
//! So the superblock of a closed store has a digest of the generations of all slots. An opening computes it again from
//! what it finds. If the two differ, the digest also says which slots have lost their newer page, as a slot's
//! generations follow each other, and few are damaged at a time.
//!
//! Where no slot can be named, the store reports that some are older, until a repair.
//!
//! A blob with only an older state left is not readable: its bytes would read as zeros, or as what another blob wrote
//! there. Its metadata says so from the next opening for changes on ([`crate::format::Head::is_older`]), so that a
//! crash does not hide it. [`BlobStore::accept_older`] makes it a normal blob again.
//!
//! Invariants: `Free::digest` is the sum over all slots of [`of`] their newest generation, as it is on the device.

use std::collections::BTreeSet;

use crate::core::{Core, Damage, NO_SLOT};
use crate::digest::of;
use crate::format::{BlobId, Superblock};
use crate::store::BlobStore;
use crate::{Error, Result};

/// Damaged slots among which the search looks for those that have lost their newer page: it tries their subsets.
const SUSPECTS_MAX: usize = 16;

/// The result of a scan of the slots, as far as a digest covers it.
#[derive(Default)]
pub(crate) struct Found {
    /// The newest generation of each slot that can be read; 0: none.
    pub(crate) generations: Vec<u64>,
    /// Slots with one unreadable page, whose other page is readable or blank.
    pub(crate) suspects: Vec<u32>,
    /// Whether a slot has two unreadable pages.
    pub(crate) is_one_lost: bool,
}

/// The verdict of a digest on slots.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Slots whose newer page is lost.
    pub(crate) older: BTreeSet<u32>,
    /// Some slots are older, but cannot be named.
    pub(crate) is_unknown: bool,
}

impl Found {
    /// The digest of the pages found.
    pub(crate) fn digest(&self) -> u32 {
        let slots = (0..).zip(&self.generations);
        slots.fold(0, |sum, (slot, &generation)| sum.wrapping_add(of(slot, generation)))
    }

    fn generation(&self, slot: u32) -> u64 {
        self.generations.get(slot as usize).copied().unwrap_or(0)
    }

    /// The change of the digest if a slot has lost its newer page.
    fn step(&self, slot: u32) -> u32 {
        let generation = self.generation(slot);
        of(slot, generation + 1).wrapping_sub(of(slot, generation))
    }

    /// Compares the pages found with the digest of the close.
    pub(crate) fn judge(&self, recorded: u32) -> Verdict {
        let missing = recorded.wrapping_sub(self.digest());
        if missing == 0 {
            return Verdict::default();
        }
        if self.is_one_lost || self.suspects.len() > SUSPECTS_MAX {
            // It is unknown which of them it was, and none may pass for what it is not.
            let older = self.suspects.iter().copied().collect();
            return Verdict {
                older,
                is_unknown: self.suspects.is_empty() && !self.is_one_lost,
            };
        }
        let sum_of = |subset: u32| {
            let chosen = self.suspects.iter().enumerate().filter(|(at, _)| subset >> at & 1 == 1);
            chosen.fold(0_u32, |sum, (_, &slot)| sum.wrapping_add(self.step(slot)))
        };
        let subsets = (1..1_u32 << self.suspects.len()).filter(|&subset| sum_of(subset) == missing);
        if let Some(subset) = subsets.min_by_key(|subset| subset.count_ones()) {
            let chosen = self.suspects.iter().enumerate().filter(|(at, _)| subset >> at & 1 == 1);
            return Verdict {
                older: chosen.map(|(_, &slot)| slot).collect(),
                is_unknown: false,
            };
        }
        // A page that is whole and old, or blank: the device has lost a write.
        let mut slots = (0..self.generations.len() as u32).filter(|&slot| self.step(slot) == missing);
        match (slots.next(), slots.next(), self.suspects.is_empty()) {
            (Some(slot), None, true) => Verdict {
                older: [slot].into(),
                is_unknown: false,
            },
            _ => Verdict {
                older: self.suspects.iter().copied().collect(),
                is_unknown: self.suspects.is_empty(),
            },
        }
    }
}

impl BlobStore {
    /// Blobs with only an older state left: later writes are lost with a page of metadata. They cannot be read or
    /// written.
    pub fn older(&self) -> Vec<BlobId> {
        let free = self.core.free.lock();
        let live = free.older.iter().filter(|&&slot| free.live.is_used(slot));
        live.map(|&slot| BlobId::of(slot, free.incarnations[slot as usize]))
            .collect()
    }

    /// Accepts the older state of such a blob. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NotFound`]; errors of the device.
    pub fn accept_older(&self, id: BlobId) -> Result<()> {
        self.core.check_running()?;
        let slot = id.slot();
        {
            let mut free = self.core.free.lock();
            if free.incarnations.get(slot as usize).copied() != Some(id.incarnation()) || !free.older.remove(&slot) {
                return Err(Error::NotFound);
            }
        }
        let inner = self.core.load(id)?;
        let mut state = inner.state.write();
        // Both pages: neither may count as an older one again.
        for _ in 0..2 {
            self.core.store(id, &mut state, false)?;
        }
        drop(state);
        self.core.damage.lock().retain(|damage| damage.slot != slot);
        Ok(())
    }
}

impl Core {
    /// The blob in a slot has an older state only.
    pub(crate) fn refuse_older(&self, id: BlobId) -> Result<()> {
        match self.free.lock().older.contains(&id.slot()) {
            true => Err(Error::Damaged(format!(
                "the newer of two states of the metadata of blob {:x} is lost; `ferrite fsck --repair` keeps what the \
                 older one has in lost+found",
                id.raw()
            ))),
            false => Ok(()),
        }
    }

    /// Reads all metadata, and notes what is damaged: by the digest of the close, if there was one, and of the
    /// superblock's `copies`. Returns slots with pages that a crash may have torn.
    pub(crate) fn judge(&self, closed: Option<u32>, copies: Option<String>) -> Result<Vec<u32>> {
        let (mut damage, found) = self.scan(closed.is_some())?;
        let verdict = closed.map(|closed| found.judge(closed));
        if let Some(verdict) = &verdict {
            self.note(&found, verdict, &mut damage);
        }
        let mut superblock = self.superblock.lock();
        let about_none = |what: String, is_mendable| Damage {
            slot: NO_SLOT,
            what,
            is_mendable,
            is_tangle: false,
        };
        superblock.has_older |= verdict.as_ref().is_some_and(|verdict| verdict.is_unknown);
        if superblock.has_older {
            damage.push(about_none(UNKNOWN.into(), true));
        }
        drop(superblock);
        damage.extend(copies.map(|what| about_none(what, false)));
        *self.damage.lock() = damage;
        // If a digest has cleared them, a repair writes the damaged page.
        Ok(if closed.is_some() { Vec::new() } else { found.suspects })
    }

    /// Accepts that some metadata is older.
    pub(crate) fn accept_all(&self) -> Result<()> {
        let mut superblock = self.superblock.lock();
        let next = Superblock {
            has_older: false,
            generation: superblock.generation + 1,
            ..superblock.clone()
        };
        self.put_superblock(&next).map_err(|error| self.stop(error))?;
        *superblock = next;
        Ok(())
    }

    /// Notes the verdict of a digest, as damage.
    fn note(&self, found: &Found, verdict: &Verdict, damage: &mut Vec<Damage>) {
        let mut free = self.free.lock();
        let lost = |slot, what, is_mendable| Damage {
            slot,
            what,
            is_mendable,
            is_tangle: false,
        };
        for &slot in &verdict.older {
            match free.live.is_used(slot) {
                true => {
                    free.older.insert(slot);
                    damage.push(lost(slot, older_in_words(slot), false));
                }
                false => {
                    // Its number is unknown, so it is not allocated again.
                    free.slots.set(slot);
                    damage.push(lost(slot, format!("slot {slot}: its newer metadata is lost"), true));
                }
            }
        }
        for &slot in found.suspects.iter().filter(|slot| !verdict.older.contains(slot)) {
            let what = format!("slot {slot}: the older of its two pages is damaged; nothing is lost yet");
            damage.push(lost(slot, what, true));
        }
    }

    /// Makes pages of slots whole that a crash has torn, so that the next opening after a close finds none; and marks
    /// those that are older as such. Each is one write, of the page that cannot be read.
    pub(crate) fn settle(&self, torn: &[u32]) -> Result<()> {
        let older: Vec<u32> = self.free.lock().older.iter().copied().collect();
        for (slot, is_older) in torn
            .iter()
            .map(|&slot| (slot, false))
            .chain(older.into_iter().map(|slot| (slot, true)))
        {
            let Some(head) = self.read_head(slot)? else { continue };
            if head.is_older {
                continue;
            }
            let next = crate::format::Head {
                generation: head.generation + 1,
                is_older,
                ..head.clone()
            };
            self.put_head(&next)?;
            self.free.lock().moved(slot, head.generation, next.generation);
        }
        Ok(())
    }
}

/// The message about a store in which some metadata is older.
pub(crate) const UNKNOWN: &str = "the metadata of some blobs is older than when the store was closed: the device has lost \
                                  writes, and nothing tells which; files may end earlier, or have come back";

pub(crate) fn older_in_words(slot: u32) -> String {
    format!("slot {slot}: the newer of its two pages is lost, and the other has an older state of its blob")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(generations: &[u64], suspects: &[u32]) -> Found {
        Found {
            generations: generations.to_vec(),
            suspects: suspects.to_vec(),
            is_one_lost: false,
        }
    }

    #[test]
    fn the_digest_names_the_slots_that_are_older() {
        let closed = found(&[3, 0, 8, 1, 700, 2], &[]).digest();
        let judge = |generations: &[u64], suspects: &[u32]| found(generations, suspects).judge(closed);
        let older = |slots: &[u32]| Verdict {
            older: slots.iter().copied().collect(),
            is_unknown: false,
        };
        assert_eq!(judge(&[3, 0, 8, 1, 700, 2], &[]), older(&[]));
        assert_eq!(
            judge(&[3, 0, 8, 1, 700, 2], &[0, 4]),
            older(&[]),
            "the older pages are damaged"
        );
        assert_eq!(judge(&[2, 0, 8, 1, 700, 2], &[0, 4]), older(&[0]));
        assert_eq!(judge(&[2, 0, 7, 1, 699, 2], &[0, 1, 2, 4]), older(&[0, 2, 4]));
        assert_eq!(judge(&[3, 0, 8, 0, 700, 2], &[]), older(&[3]), "a blank page");
        assert_eq!(judge(&[3, 0, 8, 1, 699, 2], &[]), older(&[4]), "a write that was lost");
        let two = judge(&[2, 0, 8, 1, 699, 2], &[]);
        assert!(two.is_unknown && two.older.is_empty());
    }
}

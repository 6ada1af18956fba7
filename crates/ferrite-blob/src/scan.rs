//! Reading all slots, when a store is opened: free space and damage.
//!
//! Invariants: a blob that may be in an older state claims its units last, as they may belong to another by then. Only
//! `store` uses this, before it hands out the store.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::core::{Core, Damage, Free, newer};
use crate::format::{Extent, Head};
use crate::page::Pages;
use crate::proof::{self, Found};
use crate::{Error, PAGE_BYTES, Result};

/// Slots per read.
const SLOTS_AT_ONCE: u32 = 128;
/// Fills a page that the device cannot read: no metadata begins like this.
const UNREADABLE: u8 = 0xff;

#[derive(Default)]
struct Scan {
    keeps: bool,
    damage: Vec<Damage>,
    found: Found,
}

impl Scan {
    /// The newer of a slot's pages, which counts for the digest.
    fn generations(&mut self, slot: u32, pair: &[u8], free: &mut Free) -> Option<Head> {
        let head = newer(pair, slot);
        let generation = head.as_ref().map_or(0, |head| head.generation);
        free.moved(slot, 0, generation);
        if self.keeps {
            self.found.generations[slot as usize] = generation;
        }
        let is_wrong = |page: &&[u8]| is_damaged(page);
        match (pair.chunks(PAGE_BYTES).filter(is_wrong).count(), &head) {
            (0, _) => {}
            (2, None) => self.found.is_one_lost = true,
            _ => self.found.suspects.push(slot),
        }
        head
    }
}

impl Core {
    /// Both pages of some slots. Pages that the device cannot read are damaged, and read as no metadata.
    fn read_slots(&self, first: u32, count: usize, damage: &mut Vec<Damage>) -> Result<Pages> {
        let page = self.slot_page(first, 0);
        if let Ok(pages) = self.read_pages(page, count * 2) {
            return Ok(pages);
        }
        let mut pages = Pages::zeroed(count * 2);
        let mut unreadable = Vec::new();
        for (at, into) in pages.bytes_mut().chunks_mut(PAGE_BYTES).enumerate() {
            match self.read_pages(page + at as u64, 1) {
                Ok(one) => into.copy_from_slice(one.bytes()),
                Err(error) => {
                    into.fill(UNREADABLE);
                    let slot = first + at as u32 / 2;
                    let damage = Damage {
                        slot,
                        what: format!("slot {slot}: one of its pages cannot be read: {error}"),
                        is_mendable: true,
                        is_tangle: false,
                    };
                    unreadable.push((error, damage));
                }
            }
        }
        // If none is readable, it is not the slots: the device fails.
        if unreadable.len() == count * 2
            && let Some((error, _)) = unreadable.pop()
        {
            return Err(error);
        }
        damage.extend(unreadable.into_iter().map(|(_, damage)| damage));
        Ok(pages)
    }

    /// Reads all metadata; returns the damage, and, if that is to be `kept`, the generation of each slot.
    pub(crate) fn scan(&self, kept: bool) -> Result<(Vec<Damage>, Found)> {
        let slots = self.superblock.lock().slots_used;
        let mut scan = Scan {
            keeps: kept,
            ..Scan::default()
        };
        let mut free = self.free.lock();
        free.incarnations.resize(slots as usize, 0);
        if kept {
            scan.found.generations.resize(slots as usize, 0);
        }
        // Slots with maybe only the older page left: their units may belong to another blob by now, which then claims
        // them first.
        let mut older = Vec::new();
        let mut first = 0;
        while first < slots {
            let count = SLOTS_AT_ONCE.min(slots - first).min(self.slots_in_row(first));
            let pages = self.read_slots(first, count as usize, &mut scan.damage)?;
            for (slot, pair) in (first..).zip(pages.bytes().chunks(2 * PAGE_BYTES)) {
                match may_be_older(pair) {
                    true => older.push((slot, pair.to_vec())),
                    false => self.scan_slot(slot, pair, &mut free, &mut scan)?,
                }
            }
            first += count;
        }
        for (slot, pair) in older {
            self.scan_slot(slot, &pair, &mut free, &mut scan)?;
        }
        self.tangles.store(free.tangled.len(), Ordering::Release);
        Ok((scan.damage, scan.found))
    }

    /// Claims the units that a slot's two pages name.
    fn scan_slot(&self, slot: u32, pair: &[u8], free: &mut Free, scan: &mut Scan) -> Result<()> {
        let head = scan.generations(slot, pair, free);
        let damage = &mut scan.damage;
        let mut found = |is_mendable: bool, what: String| {
            damage.push(Damage {
                slot,
                what,
                is_mendable,
                is_tangle: false,
            });
        };
        for other in pair.chunks(PAGE_BYTES).filter_map(Head::decode) {
            if other.id.slot() != slot {
                let id = other.id.raw();
                found(true, format!("slot {slot} holds the metadata of blob {id:x}"));
            }
        }
        let Some(head) = head else {
            // A blob whose first page was torn never existed; a later one would have left the other page.
            if pair.chunks(PAGE_BYTES).all(|page| page.iter().any(|&byte| byte != 0)) {
                found(true, format!("slot {slot}: its metadata cannot be read"));
                // Its number is unknown, so it is not allocated again.
                free.slots.set(slot);
            }
            return Ok(());
        };
        free.incarnations[slot as usize] = head.id.incarnation();
        if !head.is_live {
            return Ok(());
        }
        free.slots.set(slot);
        free.live.set(slot);
        if head.is_older {
            free.older.insert(slot);
            found(false, proof::older_in_words(slot));
        }
        for overflow in &head.overflow {
            if !free.overflow.set(overflow.page) {
                let id = head.id.raw();
                found(false, format!("blob {id:x} shares an overflow page with another"));
            }
        }
        let extents = match self.read_extents(&head) {
            Ok(extents) => extents,
            Err(error @ Error::Damaged(_)) => {
                found(false, error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        Self::claim(&head, extents, free, damage);
        Ok(())
    }

    /// Claims the units that a blob names, and notes those that another has already, or that do not exist.
    fn claim(head: &Head, extents: Vec<Extent>, free: &mut Free, damage: &mut Vec<Damage>) {
        let (slot, id) = (head.id.slot(), head.id.raw());
        let mut claimed = None;
        for extent in extents {
            if !free.units.are_free(extent.physical, extent.count) {
                let used = free.units.used_among(extent.physical, extent.count);
                claimed.get_or_insert_with(BTreeSet::new).extend(used);
            }
            free.units.claim(extent.physical, extent.count);
        }
        if let Some(claimed) = claimed {
            free.tangled.insert(slot, claimed);
            damage.push(Damage {
                slot,
                what: format!("blob {id:x} names clusters that are another's, or none"),
                is_mendable: false,
                is_tangle: true,
            });
        }
    }
}

/// Whether a page of a slot holds something that cannot be read.
fn is_damaged(page: &[u8]) -> bool {
    Head::decode(page).is_none() && page.iter().any(|&byte| byte != 0)
}

/// Whether one of a slot's pages is unreadable (a newer state or a torn write), or says that a newer state was lost.
fn may_be_older(pair: &[u8]) -> bool {
    let is_older = |page: &[u8]| Head::decode(page).is_some_and(|head| head.is_older);
    pair.chunks(PAGE_BYTES).any(|page| is_damaged(page) || is_older(page))
}

//! Reading all slots, when a store is opened: free space and damage.
//!
//! Units that two blobs of a group name are shared, and counted here; any other unit has one owner.
//!
//! Invariants: a blob that may be in an older state claims its units last, as they may belong to another by then. Only
//! `store` uses this, before it hands out the store.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use rangemap::RangeMap;

use crate::core::{Core, Damage, Free, newer};
use crate::format::{Extent, Head};
use crate::page::Pages;
use crate::proof::{self, Found};
use crate::shared_units::within;
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
    /// The groups of the blobs that have claimed units so far.
    groups: RangeMap<u32, u32>,
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
        scan.claim(&head, &extents, free);
        Ok(())
    }
}

impl Scan {
    /// Claims the units that a blob names, and notes those that another one has which is not of its group, or that do
    /// not exist.
    fn claim(&mut self, head: &Head, extents: &[Extent], free: &mut Free) {
        let mut claimed: Option<BTreeSet<u32>> = None;
        // A blob does not share with itself.
        let mut own = Vec::new();
        let there = 0..free.units.count();
        for extent in extents {
            let all = extent.physical..extent.physical.saturating_add(extent.count);
            let shared = self.of_group(head.group, &within(&all, &there));
            for part in outside(&all, &shared) {
                let count = part.end - part.start;
                let used = match free.units.are_free(part.start, count) && part.end < u32::MAX {
                    true => Vec::new(),
                    false => {
                        let used = free.units.used_among(part.start, count);
                        claimed.get_or_insert_default().extend(used.iter().copied());
                        used
                    }
                };
                free.units.claim(part.start, count);
                let used: Vec<Range<u32>> = used.into_iter().map(|unit| unit..unit + 1).collect();
                own.extend(outside(&within(&part, &there), &used));
            }
            shared.into_iter().for_each(|part| free.shared.add_name(part));
        }
        if head.group != 0 {
            own.into_iter().for_each(|part| self.groups.insert(part, head.group));
        }
        if let Some(claimed) = claimed {
            let (slot, id) = (head.id.slot(), head.id.raw());
            free.tangled.insert(slot, claimed);
            self.damage.push(Damage {
                slot,
                what: format!("blob {id:x} names clusters that are another's, or none"),
                is_mendable: false,
                is_tangle: true,
            });
        }
    }

    /// The parts of a range that blobs of a group have claimed.
    fn of_group(&self, group: u32, range: &Range<u32>) -> Vec<Range<u32>> {
        if group == 0 || range.is_empty() {
            return Vec::new();
        }
        let found = self.groups.overlapping(range.clone()).filter(|(_, of)| **of == group);
        found.map(|(part, _)| within(part, range)).collect()
    }
}

/// A range without these parts of it, which are in order.
fn outside(range: &Range<u32>, parts: &[Range<u32>]) -> Vec<Range<u32>> {
    let mut left = Vec::new();
    let mut at = range.start;
    for part in parts {
        left.push(at..part.start);
        at = part.end;
    }
    left.push(at..range.end);
    left.retain(|part| !part.is_empty());
    left
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

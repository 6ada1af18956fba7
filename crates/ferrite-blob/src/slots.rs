//! The places of slots: in front of the clusters, and, if blobs share clusters, in clusters that were taken for more.
//!
//! Small blobs are many, and each has a slot of two pages. Space for the largest possible number would be a sixth of
//! the device, so a store begins with about one per cluster and takes clusters for more when it needs them, or parts of
//! them when no whole one is free. It keeps them.
//!
//! The superblock has space for some hundred areas. So a new one is as long as possible and lies where most is free,
//! and units right behind the last area extend it.
//!
//! Invariants: an area of slots is zeros on the device before the superblock names it. Slots are metadata: reads and
//! writes of them bypass the checksums of data, also in pages that those would cover.

use ferrite_checks::fault_injection::{Bug, is_seeded};

use crate::core::Core;
use crate::device::{Device, Op};
use crate::format::{AREAS_MAX, Areas, Superblock};
use crate::page::Pages;
use crate::{CLUSTER_PAGES, Error, PAGE_BYTES, Result};

/// Each new area is this part of all earlier slots, so that there are never many areas; and at most this part of the
/// free space, so that something is left for the blobs.
const GROWTH: u32 = 8;
/// And at most so many clusters, or the part below, because a caller that makes a blob then waits for all of them.
const AREA_CLUSTERS_MAX: u32 = 1024;
/// With 250 areas of this part of all clusters, each unit of the device has a slot.
const AREA_PART_MAX: u32 = 512;
/// Clusters zeroed at once.
const ZEROED_AT_ONCE: usize = 8;

impl Core {
    /// The device for metadata.
    pub(crate) fn metadata(&self) -> &dyn Device {
        match &self.sums {
            Some(sums) => sums.below(),
            None => &*self.device,
        }
    }

    /// All slots.
    pub(crate) fn slot_count(&self) -> u32 {
        self.layout
            .slots
            .saturating_add(self.layout.in_areas(&self.areas.read()))
    }

    /// Bytes of the units that hold slots.
    pub(crate) fn slot_bytes(&self) -> u64 {
        let areas = self.areas.read();
        areas
            .iter()
            .map(|&(_, units)| u64::from(units) * self.layout.unit_bytes())
            .sum()
    }

    /// The page of a slot; for a missing slot, one behind the device's end.
    pub(crate) fn slot_page(&self, slot: u32, side: u64) -> u64 {
        let Some(mut into) = slot.checked_sub(self.layout.slots) else {
            return self.layout.slot(slot, side);
        };
        for &(first, units) in &*self.areas.read() {
            let slots = units.saturating_mul(self.layout.slots_a_unit());
            if into < slots {
                return self.layout.unit(first) + u64::from(into) * 2 + side;
            }
            into -= slots;
        }
        self.layout.pages
    }

    /// How many slots lie in a row from this one on, at least one.
    pub(crate) fn slots_in_row(&self, slot: u32) -> u32 {
        let Some(mut into) = slot.checked_sub(self.layout.slots) else {
            return self.layout.slots - slot;
        };
        for &(_, units) in &*self.areas.read() {
            let slots = units.saturating_mul(self.layout.slots_a_unit());
            if into < slots {
                return slots - into;
            }
            into -= slots;
        }
        1
    }

    /// Takes space for more slots than these, unless another thread has done so; `false`: none is left. Durable when it
    /// returns. Only callers that need slots wait for it.
    ///
    /// # Errors
    /// Errors of the device; if it was the superblock, the store stops.
    pub(crate) fn add_slots(&self, slots: u32) -> Result<bool> {
        let _growing = self.growing.lock();
        if self.slot_count() > slots {
            return Ok(true);
        }
        let Some((first, units)) = self.take_for_slots() else {
            return Ok(false);
        };
        if !is_seeded(Bug::BlobSlotsLate)
            && let Err(error) = self.zero_units(first, units)
        {
            self.free.lock().units.give(first, units);
            return Err(error);
        }
        let mut superblock = self.superblock.lock();
        let mut more = Superblock {
            generation: superblock.generation + 1,
            ..superblock.clone()
        };
        match more.areas.last_mut() {
            Some(last) if last.0 + last.1 == first => last.1 += units,
            _ => more.areas.push((first, units)),
        }
        self.put_superblock(&more).map_err(|error| self.stop(error))?;
        if is_seeded(Bug::BlobSlotsLate) {
            self.zero_units(first, units)?;
        }
        *self.areas.write() = more.areas.clone();
        *superblock = more;
        drop(superblock);
        let count = self.slot_count();
        let mut free = self.free.lock();
        free.slots.grow(count);
        free.live.grow(count);
        Ok(true)
    }

    /// Takes consecutive units that nothing names yet.
    fn take_for_slots(&self) -> Option<(u32, u32)> {
        let per = self.layout.units_per_cluster();
        if per == 1 {
            return None;
        }
        let (end, is_full) = {
            let areas: &Areas = &self.areas.read();
            let end = areas.last().map_or(0, |(first, units)| first + units);
            (end, areas.len() >= AREAS_MAX)
        };
        let most = AREA_CLUSTERS_MAX.max(self.layout.clusters / AREA_PART_MAX);
        let wanted = self.slot_count() / GROWTH / (per * self.layout.slots_a_unit());
        let mut free = self.free.lock();
        let units = match free.units.free_clusters() {
            0 => u64::from(per).min(free.units.free() / u64::from(GROWTH)) as u32,
            clusters => wanted.clamp(1, most).min(clusters.div_ceil(GROWTH)) * per,
        };
        free.units.take_for_slots(end, units.max(1), is_full)
    }

    fn zero_units(&self, first: u32, units: u32) -> Result<()> {
        let zeros = Pages::zeroed(CLUSTER_PAGES as usize);
        let (mut at, end) = (self.layout.unit(first), self.layout.unit(first + units));
        while at < end {
            let mut batch = Vec::new();
            while at < end && batch.len() < ZEROED_AT_ONCE {
                let pages = CLUSTER_PAGES.min(end - at);
                batch.push(Op::Write {
                    offset: at * PAGE_BYTES as u64,
                    from: &zeros.bytes()[..pages as usize * PAGE_BYTES],
                    durable: false,
                });
                at += pages;
            }
            self.metadata().run(&mut batch)?;
        }
        self.metadata().run(&mut [Op::Flush])
    }

    /// Claims the units that hold slots.
    ///
    /// # Errors
    /// They do not exist, or are named twice.
    pub(crate) fn claim_areas(&self) -> Result<()> {
        let mut free = self.free.lock();
        for &(first, units) in &*self.areas.read() {
            if !free.units.claim(first, units) {
                return Err(Error::Damaged(
                    "the superblock names clusters of slots that cannot be".into(),
                ));
            }
        }
        Ok(())
    }
}

//! Where slots are: in front of the clusters, and, where blobs share clusters, in clusters that were taken for more.
//!
//! Small blobs are many, and each has a slot of two pages. Room for all that could ever be would be a sixth of the
//! device, so a store begins with about one a cluster and takes clusters for more when it needs them. It keeps them.
//!
//! Invariants: an area of slots is zeros on the device before the superblock names it. Slots are metadata: they are
//! read and written past the checksums of data, also where those of these pages would be.

use crate::core::{Core, Free};
use crate::device::{Device, Op};
use crate::format::{AREAS_MAX, SLOTS_A_CLUSTER, Superblock, in_areas};
use crate::page::Pages;
use crate::planted::{Planted, is_planted};
use crate::{CLUSTER_BYTES, CLUSTER_PAGES, Error, PAGE_BYTES, Result};

/// Each new area has this part of all slots before, so that there are never many areas.
const GROWTH: u32 = 8;
/// And at most so many clusters.
const AREA_CLUSTERS_MAX: u32 = 1024;

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
        self.layout.slots.saturating_add(in_areas(&self.areas.read()))
    }

    /// Bytes of the clusters that slots are in.
    pub(crate) fn slot_bytes(&self) -> u64 {
        let areas = self.areas.read();
        areas
            .iter()
            .map(|&(_, clusters)| u64::from(clusters) * CLUSTER_BYTES)
            .sum()
    }

    /// The page of a slot; one behind the device's end, if there is no such slot.
    pub(crate) fn slot_page(&self, slot: u32, side: u64) -> u64 {
        let Some(mut into) = slot.checked_sub(self.layout.slots) else {
            return self.layout.slot(slot, side);
        };
        for &(first, clusters) in &*self.areas.read() {
            let slots = clusters * SLOTS_A_CLUSTER;
            if into < slots {
                return self.layout.cluster(first) + u64::from(into) * 2 + side;
            }
            into -= slots;
        }
        self.layout.pages
    }

    /// How many slots lie in a row from this one on.
    pub(crate) fn slots_in_row(&self, slot: u32) -> u32 {
        match slot.checked_sub(self.layout.slots) {
            None => self.layout.slots - slot,
            Some(into) => SLOTS_A_CLUSTER - into % SLOTS_A_CLUSTER,
        }
    }

    /// Takes clusters for more slots, if there can be more. Durable when it returns.
    ///
    /// # Errors
    /// Of the device; if it was the superblock, the store stops.
    pub(crate) fn add_slots(&self, free: &mut Free) -> Result<()> {
        let areas = self.areas.read().clone();
        let is_full = areas.len() >= AREAS_MAX || free.units.free_clusters() == 0;
        if u64::from(self.layout.unit_pages) == CLUSTER_PAGES || is_full {
            return Ok(());
        }
        let wanted = (self.slot_count() / GROWTH / SLOTS_A_CLUSTER).clamp(1, AREA_CLUSTERS_MAX);
        let Some((first, clusters)) = free.units.take_whole(wanted) else {
            return Ok(());
        };
        let zeroed = match is_planted(Planted::SlotsLate) {
            true => Ok(()),
            false => self.zero_clusters(first, clusters),
        };
        if let Err(error) = zeroed {
            let per = self.layout.units_per_cluster();
            free.units.give(first * per, clusters * per);
            return Err(error);
        }
        let mut superblock = self.superblock.lock();
        let mut more = Superblock {
            generation: superblock.generation + 1,
            ..superblock.clone()
        };
        more.areas.push((first, clusters));
        self.put_superblock(&more).map_err(|error| self.stop(error))?;
        if is_planted(Planted::SlotsLate) {
            self.zero_clusters(first, clusters)?;
        }
        *self.areas.write() = more.areas.clone();
        *superblock = more;
        let count = self.slot_count();
        free.slots.grow(count);
        free.live.grow(count);
        Ok(())
    }

    fn zero_clusters(&self, first: u32, clusters: u32) -> Result<()> {
        let zeros = Pages::zeroed(CLUSTER_PAGES as usize);
        for cluster in first..first + clusters {
            self.metadata().run(&mut [Op::Write {
                offset: self.layout.cluster(cluster) * PAGE_BYTES as u64,
                from: zeros.bytes(),
                durable: false,
            }])?;
        }
        self.metadata().run(&mut [Op::Flush])
    }

    /// Claims the clusters that slots are in.
    ///
    /// # Errors
    /// They do not exist, or twice.
    pub(crate) fn claim_areas(&self) -> Result<()> {
        let per = self.layout.units_per_cluster();
        let mut free = self.free.lock();
        for &(first, clusters) in &*self.areas.read() {
            let units = (first.checked_mul(per), clusters.checked_mul(per));
            let is_sane = matches!(units, (Some(first), Some(count)) if free.units.claim(first, count));
            if !is_sane {
                return Err(Error::Damaged(
                    "the superblock names clusters of slots that cannot be".into(),
                ));
            }
        }
        Ok(())
    }
}

//! The parts of a device, for tools and tests that look at writes from outside.
//!
//! Contents: [`Area`], and [`FormatOptions::area`], which says what is where on a device.

use crate::PAGE_BYTES;
use crate::format::Layout;
use crate::store::FormatOptions;

/// A part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// A superblock.
    Superblock,
    /// Slots: the metadata of blobs.
    Slots,
    /// Metadata that does not fit a slot.
    Overflow,
    /// The ring of pages that are about to be written in place.
    Ring,
    /// Checksums of data.
    Sums,
    /// Clusters: data, and slots that were added later.
    Clusters,
}

impl FormatOptions {
    /// The area of a byte, on a device of `device_bytes` that was formatted with these options. `None` if such a device
    /// is too small for a store, or has nothing there.
    pub fn area(&self, device_bytes: u64, offset: u64) -> Option<Area> {
        let pages = device_bytes / PAGE_BYTES as u64;
        let layout = Layout::of(pages, self.checksums, self.shares_clusters)?;
        let page = offset / PAGE_BYTES as u64;
        let begins = [
            (layout.cluster(layout.clusters), Area::Superblock),
            (layout.cluster(0), Area::Clusters),
            (layout.sums(), Area::Sums),
            (layout.ring(0), Area::Ring),
            (layout.overflow(0), Area::Overflow),
            (layout.slot(0, 0), Area::Slots),
            (0, Area::Superblock),
        ];
        let (_, area) = begins.into_iter().find(|&(first, _)| first <= page)?;
        (page < pages).then_some(area)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other() {
        let options = FormatOptions {
            store: [1; 16],
            pool: [2; 16],
            index: 0,
            checksums: true,
            shares_clusters: false,
        };
        let device_bytes = 64 << 20;
        let areas = (0..device_bytes)
            .step_by(PAGE_BYTES)
            .map(|at| options.area(device_bytes, at).unwrap());
        let mut found: Vec<Area> = areas.collect();
        found.dedup();
        let all = [
            Area::Superblock,
            Area::Slots,
            Area::Overflow,
            Area::Ring,
            Area::Sums,
            Area::Clusters,
            Area::Superblock,
        ];
        assert_eq!(found, all);
        assert_eq!(options.area(device_bytes, device_bytes), None);
        assert_eq!(options.area(4096, 0), None);
    }
}

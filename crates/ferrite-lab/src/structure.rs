//! Structures that the lab measures: every mapping that `ferrite-map` lists, and the lab's baselines.

use std::sync::Arc;

use ferrite_map::{Geometry, Mapping, Measured};
use ferrite_pm::Region;

use crate::baselines::{extents::ExtentTree, level::LevelHash, tombstones::Tombstones};

/// A mapping structure of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Structure {
    /// A mapping with which a pool can be made.
    Product(Mapping),
    /// HashFS as published: tombstones, as many slots as blocks.
    Tombstones,
    /// Level hashing, unmodified.
    Level,
    /// Extent tree through a page cache with one lock: Strata's default.
    PageCached,
    /// The same tree, changed in place.
    InPlace,
}

/// The chooser of a page's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The hash: the layout score does not apply.
    ByHash,
    /// Ferrite's free map, with contiguous claims.
    FreeMap,
    /// The papers' allocator.
    Papers,
}

impl Structure {
    /// Structures in the paper's figures, and ours: all mappings of a pool, and a tree in place if none of these is
    /// one.
    pub(crate) fn contenders() -> Vec<Structure> {
        let mut all: Vec<Structure> = Mapping::ALL.iter().copied().map(Structure::Product).collect();
        if !all.iter().any(|one| one.name() == "extent") {
            all.push(Structure::InPlace);
        }
        all
    }

    /// All.
    pub(crate) fn all() -> Vec<Structure> {
        let mut all: Vec<Structure> = Mapping::ALL.iter().copied().map(Structure::Product).collect();
        all.extend([
            Structure::Tombstones,
            Structure::Level,
            Structure::PageCached,
            Structure::InPlace,
        ]);
        all
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Structure::Product(mapping) => mapping.name(),
            Structure::Tombstones => "hashfs-tombstones",
            Structure::Level => "level",
            Structure::PageCached => "extent-page-cached",
            Structure::InPlace => "extent-in-place",
        }
    }

    pub(crate) fn placement(self) -> Placement {
        match self.name() {
            "hashfs" | "hashfs-tombstones" => Placement::ByHash,
            "leaf" => Placement::FreeMap,
            _ => Placement::Papers,
        }
    }

    pub(crate) fn slots_for(self, blocks: u32, inodes: u32) -> u64 {
        match self {
            Structure::Product(mapping) => mapping.slots_for(blocks, inodes),
            Structure::Tombstones => Tombstones::slots_for(blocks),
            Structure::Level => LevelHash::slots_for(blocks),
            Structure::PageCached | Structure::InPlace => u64::from(inodes),
        }
    }

    pub(crate) fn area_bytes(self, slots: u64) -> u64 {
        match self {
            Structure::Product(mapping) => mapping.area_bytes(slots),
            Structure::Tombstones => Tombstones::area_bytes(slots),
            Structure::Level => LevelHash::area_bytes(slots),
            Structure::PageCached | Structure::InPlace => slots * 8,
        }
    }

    pub(crate) fn open(self, region: Arc<Region>, geometry: Geometry) -> Box<dyn Measured> {
        match self {
            Structure::Product(mapping) => mapping.open_measured(region, geometry),
            Structure::Tombstones => Box::new(Tombstones::new(region, geometry)),
            Structure::Level => Box::new(LevelHash::new(region, geometry)),
            Structure::PageCached => Box::new(ExtentTree::new(region, geometry, true)),
            Structure::InPlace => Box::new(ExtentTree::new(region, geometry, false)),
        }
    }
}

//! The structures a pool can be made with: names, numbers on the medium, sizes, and how to open one.
//!
//! Contents: [`Mapping`], the only place that lists them all. A new structure is added here.

use std::sync::Arc;

use ferrite_pm::Region;
use serde::{Deserialize, Serialize};

use crate::cuckoo::Cuckoo;
use crate::extent::ExtentTree;
use crate::hashfs::HashFs;
use crate::leaf::Leaf;
use crate::radix::Radix;
use crate::{FileMap, Geometry, Measured};

/// The mapping structures. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Mapping {
    /// One global open-addressing table, slot = block (HashFS §3.2.2).
    #[default]
    Hashfs = 0,
    /// One global cuckoo table whose entries know their runs (HashFS §3.2.1).
    Cuckoo = 1,
    /// One radix tree per file (HashFS §3.1).
    Radix = 2,
    /// One B+-tree of extents per file, updated in place (HashFS §3.1).
    Extent = 3,
    /// One global table of lines of seven pages each (docs/design.md, "File mapping").
    Leaf = 4,
}

impl Mapping {
    /// All of them, in the order of their numbers.
    pub const ALL: &[Mapping] = &[
        Mapping::Hashfs,
        Mapping::Cuckoo,
        Mapping::Radix,
        Mapping::Extent,
        Mapping::Leaf,
    ];

    /// Name as `mkfs --mapping` knows it.
    pub fn name(self) -> &'static str {
        match self {
            Mapping::Hashfs => "hashfs",
            Mapping::Cuckoo => "cuckoo",
            Mapping::Radix => "radix",
            Mapping::Extent => "extent",
            Mapping::Leaf => "leaf",
        }
    }

    /// The structure of that name.
    pub fn from_name(name: &str) -> Option<Mapping> {
        Self::ALL.iter().copied().find(|mapping| mapping.name() == name)
    }

    /// The structure of that number.
    pub fn from_number(number: u32) -> Option<Mapping> {
        Self::ALL.iter().copied().find(|&mapping| mapping as u32 == number)
    }

    /// Entries of its area in a pool with the given numbers of data blocks and inodes.
    pub fn slots_for(self, blocks: u32, inodes: u32) -> u64 {
        match self {
            Mapping::Hashfs => HashFs::slots_for(blocks),
            Mapping::Cuckoo => Cuckoo::slots_for(blocks),
            Mapping::Radix => Radix::slots_for(inodes),
            Mapping::Extent => ExtentTree::slots_for(inodes),
            Mapping::Leaf => Leaf::slots_for(blocks),
        }
    }

    /// Most data blocks that it can map: the numbers of its entries have 32 bits.
    pub fn blocks_max(self) -> u64 {
        match self {
            Mapping::Hashfs | Mapping::Leaf => u64::from(u32::MAX) / 5 * 4,
            // Of eight numbers, a bucket uses five.
            Mapping::Cuckoo => u64::from(u32::MAX) / 2,
            Mapping::Radix | Mapping::Extent => u64::from(u32::MAX),
        }
    }

    /// Bytes of an area of `slots` entries.
    pub fn area_bytes(self, slots: u64) -> u64 {
        match self {
            Mapping::Hashfs => HashFs::area_bytes(slots),
            Mapping::Cuckoo => Cuckoo::area_bytes(slots),
            Mapping::Radix => Radix::area_bytes(slots),
            Mapping::Extent => ExtentTree::area_bytes(slots),
            Mapping::Leaf => Leaf::area_bytes(slots),
        }
    }

    /// The hash seed of a new pool: `wanted`, which was drawn or requested, or one near it if it is unsuitable.
    pub fn seed_for(self, wanted: u64) -> u64 {
        match self {
            Mapping::Cuckoo => Cuckoo::good_seed(wanted),
            Mapping::Hashfs | Mapping::Radix | Mapping::Extent | Mapping::Leaf => wanted,
        }
    }

    /// The structure in `region`; [`FileMap::load`] must follow before changes.
    pub fn open(self, region: Arc<Region>, geometry: Geometry) -> Box<dyn FileMap> {
        self.open_measured(region, geometry)
    }

    /// The same for benchmarks.
    pub fn open_measured(self, region: Arc<Region>, geometry: Geometry) -> Box<dyn Measured> {
        match self {
            Mapping::Hashfs => Box::new(HashFs::new(region, geometry)),
            Mapping::Cuckoo => Box::new(Cuckoo::new(region, geometry)),
            Mapping::Radix => Box::new(Radix::new(region, geometry)),
            Mapping::Extent => Box::new(ExtentTree::new(region, geometry)),
            Mapping::Leaf => Box::new(Leaf::new(region, geometry)),
        }
    }
}

impl std::fmt::Display for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

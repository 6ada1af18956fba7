//! The format on the device, byte by byte; `docs/format-blob.md` has the same as tables.
//!
//! ```text
//! page 0             superblock
//! then               slots: two pages each, written in turn
//! then               overflow pages, for blobs in many pieces
//! then               the ring: four pages each
//! then, at a         clusters
//! multiple of 1 MiB
//! last page          superblock again
//! ```
//!
//! Invariants: numbers are little-endian. Each page of metadata carries a CRC-32C of itself with that field zero, or,
//! for overflow pages, has it in the page that names it. Undecodable pages are reported as such, never a panic.

mod ring_entry;

pub(crate) use ring_entry::{RingEntry, hash_of};

use crate::page::Pages;
use crate::{CLUSTER_BYTES, CLUSTER_PAGES, Error, PAGE_BYTES, Result, SHARED_UNIT_PAGES};

/// Version of everything on the device, without checksums of data.
const VERSION: u32 = 1;
/// The version with checksums: programs that know the first only would not maintain them.
const VERSION_WITH_SUMS: u32 = 2;
/// The version in which blobs share clusters, with checksums or without.
const VERSION_WITH_UNITS: u32 = 3;
/// The version with more areas of slots than that allows, or some in parts of clusters. A store moves to it when it
/// needs such an area.
const VERSION_WITH_PARTS: u32 = 4;
/// The version in which blobs have groups, and those of a group share units. A store moves to it when the first do.
const VERSION_WITH_GROUPS: u32 = 5;
/// First bytes of a superblock.
pub(crate) const MAGIC: [u8; 8] = *b"FerrBlob";
/// Flags of a superblock.
const HAS_DIGEST: u8 = 1;
const HAS_OLDER: u8 = 2;
/// The flag of a blob's own page.
const IS_OLDER: u32 = 1;
const HEAD_MAGIC: u32 = u32::from_le_bytes(*b"BlHd");

/// Longest metadata that a blob carries for its user.
pub const METADATA_BYTES_MAX: usize = 256;
/// Pieces that a blob's own page names.
pub(crate) const HEAD_EXTENTS: usize = 273;
/// Pieces that an overflow page names.
pub(crate) const OVERFLOW_EXTENTS: usize = PAGE_BYTES / EXTENT_BYTES;
/// Overflow pages of a blob.
pub(crate) const OVERFLOW_MAX: usize = 64;
/// Pages of an entry of the ring: its description, then up to two pages of data, and one for alignment.
pub(crate) const RING_PAGES: u64 = 4;
/// Entries of the ring.
pub(crate) const RING_ENTRIES: u64 = 64;
const EXTENT_BYTES: usize = 12;
const METADATA_AT: usize = 48;
const OVERFLOW_AT: usize = METADATA_AT + METADATA_BYTES_MAX;
const EXTENTS_AT: usize = OVERFLOW_AT + OVERFLOW_MAX * 8;
const GROUP_AT: usize = EXTENTS_AT + HEAD_EXTENTS * EXTENT_BYTES;
const CRC_AT: usize = 8;
const SUM_BYTES: usize = 8;
/// Areas of slots among the clusters.
pub(crate) const AREAS_MAX: usize = (PAGE_BYTES - AREAS_AT - 4) / 8;
/// The same in version 3.
const AREAS_OF_CLUSTERS_MAX: usize = 256;
const AREAS_AT: usize = 96;
/// Checksums that fit a page.
pub(crate) const SUMS_PER_PAGE: u64 = (PAGE_BYTES / SUM_BYTES) as u64;

/// Units with slots: the first, and how many.
pub(crate) type Areas = Vec<(u32, u32)>;

/// Number of a blob: its slot, and which blob of that slot it is. Never allocated twice in the life of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobId(u64);

impl BlobId {
    /// From [`Self::raw`].
    pub fn from_raw(raw: u64) -> BlobId {
        BlobId(raw)
    }

    /// As a number.
    pub fn raw(self) -> u64 {
        self.0
    }

    pub(crate) fn of(slot: u32, incarnation: u32) -> BlobId {
        BlobId(u64::from(incarnation) << 32 | u64::from(slot))
    }

    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn incarnation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Where things are, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) pages: u64,
    pub(crate) slots: u32,
    pub(crate) overflow_pages: u32,
    /// Pages of checksums of data; 0: none.
    pub(crate) sum_pages: u32,
    pub(crate) clusters: u32,
    /// Pages of a unit, in which pieces of blobs are counted: a cluster, or a part of one.
    pub(crate) unit_pages: u32,
}

impl Layout {
    /// The layout of a device of some pages, with checksums of data or without, in which blobs share clusters or do
    /// not. `None` if it is too small for a single cluster.
    pub(crate) fn of(pages: u64, has_sums: bool, shares: bool) -> Option<Layout> {
        // Units of larger devices would exceed the range of numbers.
        let shares = shares && pages / u64::from(SHARED_UNIT_PAGES) < u64::from(u32::MAX);
        // Each cluster brings one slot and a quarter, of two pages each, a quarter of an overflow page, and half a
        // page of checksums. Where blobs share clusters, there are more slots in clusters.
        let beside = if has_sums { 13 } else { 11 };
        let clusters = pages.checked_sub(CLUSTER_PAGES)? * 4 / (CLUSTER_PAGES * 4 + beside);
        let clusters = clusters.min(u64::from(u32::MAX) / 2);
        let mut layout = Layout {
            pages,
            slots: clusters as u32 + clusters as u32 / 4 + 64,
            overflow_pages: clusters as u32 / 4 + 64,
            sum_pages: if has_sums { clusters.div_ceil(2) as u32 } else { 0 },
            clusters: clusters as u32,
            unit_pages: if shares {
                SHARED_UNIT_PAGES
            } else {
                CLUSTER_PAGES as u32
            },
        };
        while layout.clusters > 0 && layout.cluster(layout.clusters) >= pages {
            layout.clusters -= 1;
        }
        (layout.clusters > 0).then_some(layout)
    }

    pub(crate) fn slot(&self, slot: u32, side: u64) -> u64 {
        1 + u64::from(slot) * 2 + side
    }

    pub(crate) fn overflow(&self, page: u32) -> u64 {
        self.slot(self.slots, 0) + u64::from(page)
    }

    pub(crate) fn ring(&self, entry: u64) -> u64 {
        self.overflow(self.overflow_pages) + entry * RING_PAGES
    }

    /// The first page of checksums.
    pub(crate) fn sums(&self) -> u64 {
        self.ring(RING_ENTRIES)
    }

    pub(crate) fn cluster(&self, cluster: u32) -> u64 {
        (self.sums() + u64::from(self.sum_pages)).next_multiple_of(CLUSTER_PAGES) + u64::from(cluster) * CLUSTER_PAGES
    }

    /// The first page of a unit.
    pub(crate) fn unit(&self, unit: u32) -> u64 {
        self.cluster(0) + u64::from(unit) * u64::from(self.unit_pages)
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        u64::from(self.unit_pages) * PAGE_BYTES as u64
    }

    /// Slots of a unit.
    pub(crate) fn slots_a_unit(&self) -> u32 {
        self.unit_pages / 2
    }

    /// Slots in all these areas.
    pub(crate) fn in_areas(&self, areas: &Areas) -> u32 {
        let slots = |&(_, units): &(u32, u32)| units.saturating_mul(self.slots_a_unit());
        areas.iter().map(slots).fold(0, u32::saturating_add)
    }

    pub(crate) fn units_per_cluster(&self) -> u32 {
        CLUSTER_PAGES as u32 / self.unit_pages
    }

    /// The first unit of a blob that is allocated together with that of a byte: behind its first cluster a blob has
    /// whole clusters.
    pub(crate) fn given_from(&self, byte: u64) -> u64 {
        match byte < CLUSTER_BYTES {
            true => byte / self.unit_bytes(),
            false => byte / CLUSTER_BYTES * u64::from(self.units_per_cluster()),
        }
    }

    /// The first unit that a blob does not need if it ends with this byte.
    pub(crate) fn given_up_to(&self, byte: u64) -> u64 {
        match byte <= CLUSTER_BYTES {
            true => byte.div_ceil(self.unit_bytes()),
            false => byte.div_ceil(CLUSTER_BYTES) * u64::from(self.units_per_cluster()),
        }
    }
}

fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&page[at..at + 4]);
    u32::from_le_bytes(bytes)
}

pub(crate) fn u64_at(page: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn put_checksum(page: &mut [u8]) {
    put(page, CRC_AT, &[0; 4]);
    let crc = crc32c::crc32c(page);
    put(page, CRC_AT, &crc.to_le_bytes());
}

fn has_checksum(page: &[u8]) -> bool {
    let mut crc = crc32c::crc32c(&page[..CRC_AT]);
    crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &page[CRC_AT + 4..]) == u32_at(page, CRC_AT)
}

/// The superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) store: [u8; 16],
    pub(crate) pool: [u8; 16],
    /// Which store of the pool it is.
    pub(crate) index: u16,
    pub(crate) layout: Layout,
    /// The newer of the two is right.
    pub(crate) generation: u64,
    /// Slots from here on were never used.
    pub(crate) slots_used: u32,
    pub(crate) is_clean: bool,
    /// If it was closed: a digest of the generations of all slots (`proof`). Earlier programs write none.
    pub(crate) digest: Option<u32>,
    /// The metadata of some blobs is known to be older than it was, and it is unknown which.
    pub(crate) has_older: bool,
    /// Units with more slots.
    pub(crate) areas: Areas,
    /// Blobs may share units.
    pub(crate) has_shared: bool,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Pages {
        let mut pages = Pages::zeroed(1);
        let page = pages.bytes_mut();
        put(page, 0, &MAGIC);
        let has_units = u64::from(self.layout.unit_pages) < CLUSTER_PAGES;
        let per = self.layout.units_per_cluster();
        let is_whole = |&(first, count): &(u32, u32)| first.is_multiple_of(per) && count.is_multiple_of(per);
        let has_parts = self.has_shared || self.areas.len() > AREAS_OF_CLUSTERS_MAX || !self.areas.iter().all(is_whole);
        let version = match self.layout.sum_pages {
            _ if self.has_shared => VERSION_WITH_GROUPS,
            _ if has_units && has_parts => VERSION_WITH_PARTS,
            _ if has_units => VERSION_WITH_UNITS,
            0 => VERSION,
            _ => VERSION_WITH_SUMS,
        };
        put(page, 12, &version.to_le_bytes());
        put(page, 16, &self.store);
        put(page, 32, &self.pool);
        put(page, 48, &self.index.to_le_bytes());
        put(page, 50, &[u8::from(self.is_clean)]);
        let flags = u8::from(self.digest.is_some()) * HAS_DIGEST + u8::from(self.has_older) * HAS_OLDER;
        put(page, 51, &[flags]);
        put(page, 52, &self.digest.unwrap_or(0).to_le_bytes());
        put(page, 56, &self.layout.pages.to_le_bytes());
        put(page, 64, &self.layout.slots.to_le_bytes());
        put(page, 68, &self.layout.overflow_pages.to_le_bytes());
        put(page, 72, &self.layout.clusters.to_le_bytes());
        put(page, 76, &self.slots_used.to_le_bytes());
        put(page, 80, &self.generation.to_le_bytes());
        put(page, 88, &self.layout.sum_pages.to_le_bytes());
        if has_units || self.has_shared {
            put(page, 92, &self.layout.unit_pages.to_le_bytes());
            put(page, AREAS_AT, &(self.areas.len() as u32).to_le_bytes());
            let counted_in = if has_parts { 1 } else { per };
            for (at, (first, count)) in (AREAS_AT + 4..PAGE_BYTES).step_by(8).zip(&self.areas) {
                put(page, at, &(first / counted_in).to_le_bytes());
                put(page, at + 4, &(count / counted_in).to_le_bytes());
            }
        }
        put_checksum(page);
        pages
    }

    /// `None`: this is no superblock, or a damaged one.
    ///
    /// # Errors
    /// The superblock is of another version.
    pub(crate) fn decode(page: &[u8]) -> Result<Option<Superblock>> {
        if page[..8] != MAGIC || !has_checksum(page) {
            return Ok(None);
        }
        let version = u32_at(page, 12);
        let unit_pages = match version {
            VERSION_WITH_UNITS..=VERSION_WITH_GROUPS => u32_at(page, 92),
            _ => CLUSTER_PAGES as u32,
        };
        let is_known = matches!(version, VERSION..=VERSION_WITH_GROUPS);
        if !is_known {
            return Err(Error::Refused(format!(
                "its format has version {version}, this program knows those up to {VERSION_WITH_GROUPS}; use a program \
                 of that version"
            )));
        }
        // A cluster has 64 units at most.
        if unit_pages < SHARED_UNIT_PAGES || !unit_pages.is_power_of_two() || u64::from(unit_pages) > CLUSTER_PAGES {
            return Err(Error::Refused(format!(
                "its units have {unit_pages} pages, which no program of Ferrite wrote"
            )));
        }
        let (mut store, mut pool) = ([0; 16], [0; 16]);
        store.copy_from_slice(&page[16..32]);
        pool.copy_from_slice(&page[32..48]);
        let layout = Layout {
            pages: u64_at(page, 56),
            slots: u32_at(page, 64),
            overflow_pages: u32_at(page, 68),
            sum_pages: u32_at(page, 88),
            clusters: u32_at(page, 72),
            unit_pages,
        };
        let (count, counted_in) = match version {
            VERSION_WITH_PARTS | VERSION_WITH_GROUPS => (u32_at(page, AREAS_AT) as usize, 1),
            VERSION_WITH_UNITS => (u32_at(page, AREAS_AT) as usize, layout.units_per_cluster()),
            _ => (0, 1),
        };
        if count > AREAS_MAX {
            return Err(Error::Refused(format!(
                "it has {count} areas of slots, which no program of Ferrite wrote"
            )));
        }
        let area = |at| (u32_at(page, at), u32_at(page, at + 4));
        // An area too large to be counted in units does not exist, and is refused when it is claimed.
        let areas: Areas = (AREAS_AT + 4..)
            .step_by(8)
            .take(count)
            .map(area)
            .map(|(first, count)| (first.saturating_mul(counted_in), count.saturating_mul(counted_in)))
            .collect();
        Ok(Some(Superblock {
            store,
            pool,
            index: u16_at(page, 48),
            is_clean: page[50] == 1,
            digest: (page[51] & HAS_DIGEST != 0).then(|| u32_at(page, 52)),
            has_older: page[51] & HAS_OLDER != 0,
            slots_used: u32_at(page, 76).min(layout.slots.saturating_add(layout.in_areas(&areas))),
            generation: u64_at(page, 80),
            layout,
            areas,
            has_shared: version == VERSION_WITH_GROUPS,
        }))
    }
}

/// The known content of a page: the checksum of one of two contents, or of none, if it was never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sum {
    new: u32,
    old: u32,
}

impl Sum {
    /// Entry `index` of a page of checksums.
    pub(crate) fn of(page: &[u8], index: usize) -> Sum {
        let at = index * SUM_BYTES;
        Sum {
            new: u32_at(page, at),
            old: u32_at(page, at + 4),
        }
    }

    pub(crate) fn put(self, page: &mut [u8], index: usize) {
        let at = index * SUM_BYTES;
        put(page, at, &self.new.to_le_bytes());
        put(page, at + 4, &self.old.to_le_bytes());
    }

    /// The page has this content.
    pub(crate) fn only(crc: u32) -> Sum {
        Sum { new: crc, old: crc }
    }

    pub(crate) fn is_only(self, crc: u32) -> bool {
        self == Sum::only(crc)
    }

    /// Whether the page has a single possible content.
    pub(crate) fn is_known(self) -> bool {
        self.new == self.old
    }

    /// Whether it was written last.
    pub(crate) fn is_latest(self, crc: u32) -> bool {
        self.new == crc
    }

    pub(crate) fn fits(self, crc: u32) -> bool {
        self.new == crc || self.old == crc
    }

    /// The sum of an unknown page, after the page was read, if it can be. A content that fits neither is damaged, and
    /// stays so until it is written.
    pub(crate) fn known(self, found: Option<u32>) -> Sum {
        Sum::only(found.filter(|&crc| self.fits(crc)).unwrap_or(self.new))
    }

    /// The present sum, or this content. A page that was never written has nothing to lose.
    pub(crate) fn or(self, crc: u32) -> Sum {
        Sum {
            new: crc,
            old: if self.new == 0 { crc } else { self.new },
        }
    }
}

/// A piece of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First unit in the blob.
    pub(crate) logical: u32,
    /// First unit on the device.
    pub(crate) physical: u32,
    pub(crate) count: u32,
}

impl Extent {
    fn encode(&self) -> [u8; EXTENT_BYTES] {
        let mut bytes = [0; EXTENT_BYTES];
        put(&mut bytes, 0, &self.logical.to_le_bytes());
        put(&mut bytes, 4, &self.physical.to_le_bytes());
        put(&mut bytes, 8, &self.count.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Extent {
        Extent {
            logical: u32_at(bytes, 0),
            physical: u32_at(bytes, 4),
            count: u32_at(bytes, 8),
        }
    }
}

/// An overflow page as its blob names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overflow {
    pub(crate) page: u32,
    pub(crate) crc: u32,
}

/// A blob's own page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: BlobId,
    /// Of the two pages of a slot, the one with the larger generation is right. Its lowest bit says which page it is.
    pub(crate) generation: u64,
    /// Else it was deleted.
    pub(crate) is_live: bool,
    /// A newer state is known to be lost (`proof`).
    pub(crate) is_older: bool,
    /// Bytes behind it read as zeros, whatever the clusters contain.
    pub(crate) valid_len: u64,
    /// Blobs of a group share units; 0: none.
    pub(crate) group: u32,
    pub(crate) metadata: Vec<u8>,
    /// All of its pieces, also those in overflow pages.
    pub(crate) extent_count: u32,
    pub(crate) overflow: Vec<Overflow>,
    /// The pieces in this page.
    pub(crate) extents: Vec<Extent>,
}

impl Head {
    pub(crate) fn encode(&self) -> Pages {
        let mut pages = Pages::zeroed(1);
        let page = pages.bytes_mut();
        put(page, 0, &HEAD_MAGIC.to_le_bytes());
        put(page, 4, &(u32::from(self.is_older) * IS_OLDER).to_le_bytes());
        put(page, 12, &u32::from(self.is_live).to_le_bytes());
        put(page, 16, &self.id.raw().to_le_bytes());
        put(page, 24, &self.generation.to_le_bytes());
        put(page, 32, &self.valid_len.to_le_bytes());
        put(page, 40, &self.extent_count.to_le_bytes());
        put(page, 44, &(self.overflow.len() as u16).to_le_bytes());
        put(page, 46, &(self.metadata.len() as u16).to_le_bytes());
        put(page, METADATA_AT, &self.metadata);
        for (at, overflow) in (OVERFLOW_AT..).step_by(8).zip(&self.overflow) {
            put(page, at, &overflow.page.to_le_bytes());
            put(page, at + 4, &overflow.crc.to_le_bytes());
        }
        for (at, extent) in (EXTENTS_AT..).step_by(EXTENT_BYTES).zip(&self.extents) {
            put(page, at, &extent.encode());
        }
        put(page, GROUP_AT, &self.group.to_le_bytes());
        put_checksum(page);
        pages
    }

    /// `None`: it was never written, or is damaged.
    pub(crate) fn decode(page: &[u8]) -> Option<Head> {
        if u32_at(page, 0) != HEAD_MAGIC || !has_checksum(page) {
            return None;
        }
        let extent_count = u32_at(page, 40);
        let overflow_count = usize::from(u16_at(page, 44));
        let metadata_len = usize::from(u16_at(page, 46));
        let in_overflow = (extent_count as usize).saturating_sub(HEAD_EXTENTS);
        let is_sane = metadata_len <= METADATA_BYTES_MAX
            && overflow_count <= OVERFLOW_MAX
            && overflow_count == in_overflow.div_ceil(OVERFLOW_EXTENTS);
        is_sane.then(|| Head {
            id: BlobId(u64_at(page, 16)),
            generation: u64_at(page, 24),
            is_live: u32_at(page, 12) == 1,
            is_older: u32_at(page, 4) & IS_OLDER != 0,
            valid_len: u64_at(page, 32),
            group: u32_at(page, GROUP_AT),
            metadata: page[METADATA_AT..METADATA_AT + metadata_len].to_vec(),
            extent_count,
            overflow: (0..overflow_count)
                .map(|index| Overflow {
                    page: u32_at(page, OVERFLOW_AT + index * 8),
                    crc: u32_at(page, OVERFLOW_AT + index * 8 + 4),
                })
                .collect(),
            extents: extents(&page[EXTENTS_AT..], (extent_count as usize).min(HEAD_EXTENTS)),
        })
    }
}

fn extents(bytes: &[u8], count: usize) -> Vec<Extent> {
    bytes
        .chunks_exact(EXTENT_BYTES)
        .take(count)
        .map(Extent::decode)
        .collect()
}

/// An overflow page, and its checksum.
pub(crate) fn encode_overflow(extents: &[Extent]) -> (Pages, u32) {
    let mut pages = Pages::zeroed(1);
    for (at, extent) in (0..).step_by(EXTENT_BYTES).zip(extents) {
        put(pages.bytes_mut(), at, &extent.encode());
    }
    let crc = crc32c::crc32c(pages.bytes());
    (pages, crc)
}

/// The first `count` pieces of an overflow page. `None`: it is damaged.
pub(crate) fn decode_overflow(page: &[u8], crc: u32, count: usize) -> Option<Vec<Extent>> {
    (crc32c::crc32c(page) == crc).then(|| extents(page, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_fits_its_device_and_wastes_little() {
        assert_eq!(Layout::of(100, false, true), None);
        for mib in [4_u64, 5, 13, 64, 100, 1000, 100_000, 4_000_000] {
            let pages = mib * CLUSTER_PAGES;
            for (has_sums, shares) in [(false, false), (true, false), (false, true), (true, true)] {
                let layout = Layout::of(pages, has_sums, shares).unwrap_or_else(|| panic!("{mib} MiB"));
                assert!(layout.cluster(layout.clusters) < pages, "{mib} MiB: {layout:?}");
                assert!(
                    u64::from(layout.clusters) + 3 >= mib - mib / 50,
                    "{mib} MiB: {layout:?}"
                );
                let pages = u64::from(layout.clusters) * CLUSTER_PAGES;
                assert_eq!(u64::from(layout.sum_pages) * SUMS_PER_PAGE >= pages, has_sums);
            }
        }
    }

    #[test]
    fn what_was_encoded_is_decoded_and_any_changed_byte_is_damage() {
        let superblock = Superblock {
            store: [1; 16],
            pool: [2; 16],
            index: 3,
            layout: Layout::of(100_000, true, true).unwrap(),
            generation: 9,
            slots_used: 77,
            is_clean: true,
            digest: Some(0x1234_5678),
            has_older: true,
            areas: vec![(3 * 64, 4 * 64), (9 * 64, 64)],
            has_shared: false,
        };
        let of_units = Superblock {
            areas: (0..AREAS_MAX as u32).map(|area| (area * 7, 2)).collect(),
            ..superblock.clone()
        };
        let version = |superblock: &Superblock| u32_at(superblock.encode().bytes(), 12);
        assert_eq!((version(&superblock), version(&of_units)), (3, 4));
        for (has_sums, shares) in [(false, false), (true, false), (true, true)] {
            let shared = Superblock {
                layout: Layout::of(100_000, has_sums, shares).unwrap(),
                has_shared: true,
                ..of_units.clone()
            };
            assert_eq!(version(&shared), 5);
            assert_eq!(Superblock::decode(shared.encode().bytes()), Ok(Some(shared)));
        }
        assert_eq!(Superblock::decode(of_units.encode().bytes()), Ok(Some(of_units)));
        let extent = Extent {
            logical: 5,
            physical: 6,
            count: 7,
        };
        let head = Head {
            id: BlobId::of(3, 4),
            generation: 8,
            is_live: true,
            is_older: true,
            valid_len: 12345,
            group: 99,
            metadata: vec![9; 48],
            extent_count: HEAD_EXTENTS as u32 + 1,
            overflow: vec![Overflow { page: 1, crc: 2 }],
            extents: vec![extent; HEAD_EXTENTS],
        };
        let (mut one, mut other) = (superblock.encode(), head.encode());
        assert_eq!(Superblock::decode(one.bytes()), Ok(Some(superblock)));
        assert_eq!(Head::decode(other.bytes()), Some(head));
        for at in (0..PAGE_BYTES).step_by(7) {
            one.bytes_mut()[at] ^= 1;
            other.bytes_mut()[at] ^= 1;
            assert_eq!(Superblock::decode(one.bytes()), Ok(None), "{at}");
            assert_eq!(Head::decode(other.bytes()), None, "{at}");
            one.bytes_mut()[at] ^= 1;
            other.bytes_mut()[at] ^= 1;
        }
    }
}

//! Where everything goes: the layout of a new pool, and of one that grows.
//!
//! Contents: [`Superblock::plan`] (mkfs's decisions) and [`Superblock::grown`]. Nothing here reads or writes a pool.
//!
//! A new pool has its tables before its data blocks. When it grows, its data blocks, journal and outcomes stay where
//! they are, and the other tables, which must be larger, are laid out anew at its end, in the space that is added. So
//! everything that the old superblock leads to stays as it is until the new superblock is written.

use ferrite_map::WordLayout;
use ferrite_vfs::volume::human_bytes;

use crate::error::EngineError;
use crate::format::layout::{
    BLOCK_BYTES, DEFAULT_WORDS, FEATURE_DATA_CHECKSUM, FEATURE_GROWN, FEATURE_KEYS_IN_REACH, FEATURE_OUTCOMES,
    FEATURE_SHARED_BLOCKS, FEATURE_WORD_LAYOUT, FORMAT_VERSION, INODE_BYTES, MAX_INODES, MAX_NAMES,
    MAX_PAGES_PER_BLOCK, MAX_POOL_BYTES, MIN_POOL_BYTES, NEW_INCOMPAT, SUM_BYTES, Superblock,
};
use crate::format::outcome::ENTRY_BYTES;
use crate::format::unit::UnitSize;
use crate::options::{Mapping, MkfsOptions};

/// From this size on, there is an inode for each 64 KiB instead of 16 KiB.
const LARGE_POOL_BYTES: u64 = 1 << 40;

/// Read-only-compatible features of a new pool.
fn features_of(options: &MkfsOptions) -> u64 {
    let mut features = FEATURE_SHARED_BLOCKS;
    if options.data_checksum {
        features |= FEATURE_DATA_CHECKSUM;
    }
    if options.mapping == Mapping::Hashfs {
        features |= FEATURE_KEYS_IN_REACH;
    }
    features
}

/// The fixed counts of a new pool; each is given by an option or follows from the size.
struct Counts {
    rings: u32,
    ring_bytes: u64,
    /// Number 0, which is not used, included.
    inodes: u64,
    name_slots: u64,
}

impl Counts {
    fn choose(size_bytes: u64, options: &MkfsOptions) -> Result<Self, EngineError> {
        let refuse = |text: String| Err(EngineError::Options(text));
        let rings = options.rings.unwrap_or(match size_bytes >> 20 {
            0..16 => 4,
            16..256 => 8,
            _ => 16,
        });
        if !(1..=256).contains(&rings) {
            return refuse(format!("{rings} journal rings: choose 1 to 256"));
        }
        let inodes = options.inodes.unwrap_or(inodes_for(size_bytes));
        if !(15..MAX_INODES).contains(&inodes) {
            return refuse(format!("{inodes} inodes: choose 15 to {}", MAX_INODES - 1));
        }
        let inodes = (inodes + 1).next_multiple_of(BLOCK_BYTES / INODE_BYTES);
        let names = options.names.unwrap_or(inodes.saturating_mul(2).min(MAX_NAMES));
        if !(16..=MAX_NAMES).contains(&names) {
            return refuse(format!("{names} names: choose 16 to {MAX_NAMES}"));
        }
        Ok(Self {
            rings,
            ring_bytes: ring_bytes(size_bytes, options),
            inodes,
            name_slots: names.next_multiple_of(BLOCK_BYTES / 8),
        })
    }
}

/// Names are limited, and without names inodes are of no use: a pool of many terabytes has one for larger files.
fn inodes_for(size_bytes: u64) -> u64 {
    let bytes_each = match size_bytes < LARGE_POOL_BYTES {
        true => 16 << 10,
        false => 64 << 10,
    };
    (size_bytes / bytes_each).min(MAX_NAMES / 2)
}

/// A ring must hold two of the largest records (a 2 MiB write, about 28 KiB), so 64 KiB is the minimum. With larger
/// rings, retiring is rarer and fewer operations have to wait for it.
fn ring_bytes(size_bytes: u64, options: &MkfsOptions) -> u64 {
    let is_hashfs = options.mapping == Mapping::Hashfs;
    match size_bytes >> 20 {
        // Records are larger with data checksums, and with the other mappings: a cuckoo entry is three words that
        // are not adjacent, and trees split nodes.
        0..256 if options.data_checksum && !is_hashfs => 256 << 10,
        0..256 if options.data_checksum || !is_hashfs => 128 << 10,
        0..256 => 64 << 10,
        256..1024 => 256 << 10,
        _ => 1 << 20,
    }
}

/// The units of logs, and where words are divided.
fn word_layout(size_bytes: u64, options: &MkfsOptions) -> Result<(UnitSize, WordLayout), EngineError> {
    let refuse = |text: String| Err(EngineError::Options(text));
    let (smallest, words) = UnitSize::for_pool(size_bytes).expect("the size was checked");
    let Some(bytes) = options.log_unit_bytes else {
        return Ok((smallest, words));
    };
    let Some(size) = UnitSize::of_bytes(bytes) else {
        return refuse(format!(
            "units of {bytes} bytes: choose 64, 128, 256, 512, 1024 or 4096"
        ));
    };
    match size.words_for(size_bytes) {
        Some(words) => Ok((size, words)),
        None => refuse(format!(
            "units of {bytes} bytes are too small for a pool of {}; leave out --log-unit, or choose at least {}",
            human_bytes(size_bytes),
            smallest.bytes()
        )),
    }
}

/// Checks the size of a pool; the error names one that works.
fn check_size(size_bytes: u64, options: &MkfsOptions) -> Result<(), EngineError> {
    let refuse = |text: String| Err(EngineError::Options(text));
    if options.block_bytes.is_some_and(|bytes| u64::from(bytes) != BLOCK_BYTES) {
        return refuse("block size: only 4096 is supported; leave out --block-size".into());
    }
    if options.sparse && options.write_zeros {
        return refuse(
            "--sparse and --write-zeros exclude each other: the one writes nothing, the other all space".into(),
        );
    }
    if size_bytes < MIN_POOL_BYTES {
        return refuse(format!(
            "a pool of {} is too small for its journal and tables; give it at least {} MiB",
            human_bytes(size_bytes),
            MIN_POOL_BYTES >> 20
        ));
    }
    if size_bytes > MAX_POOL_BYTES {
        return refuse(format!(
            "a pool of {} is larger than format {FORMAT_VERSION} can address; give it at most {} TiB",
            human_bytes(size_bytes),
            MAX_POOL_BYTES >> 40
        ));
    }
    Ok(())
}

fn check_mapping(per_block: &PerBlock, blocks: u64, size_bytes: u64) -> Result<(), EngineError> {
    let (mapping, pages) = (per_block.mapping, per_block.pages_per_block);
    match blocks * pages <= mapping.blocks_max() {
        true => Ok(()),
        false => Err(EngineError::Options(format!(
            "a pool of {} with {pages} pages for each block is too large for the mapping {mapping}, which numbers {} \
             pages; give it less, or make one with --mapping extent",
            human_bytes(size_bytes),
            mapping.blocks_max()
        ))),
    }
}

/// The number of pages for each block that a new pool's mapping has entries for.
fn pages_per_block(options: &MkfsOptions) -> Result<u64, EngineError> {
    let pages = u64::from(options.pages_per_block.unwrap_or(1));
    match (1..=MAX_PAGES_PER_BLOCK).contains(&pages) {
        true => Ok(pages),
        false => Err(EngineError::Options(format!(
            "entries for {pages} pages a block: choose 1 to {MAX_PAGES_PER_BLOCK}"
        ))),
    }
}

/// Enough blocks for a 2 MiB overwrite and those it leaves pending, but never more than a twentieth.
fn reserve_for(blocks: u64) -> u64 {
    (blocks / 64).clamp(640, 4096).min(blocks / 20)
}

/// The largest number for which `fits` holds; it holds for all smaller ones, too, and for none above `most`.
fn largest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut largest, mut too_many) = (0, most + 1);
    while largest + 1 < too_many {
        let middle = largest.midpoint(too_many);
        if fits(middle) {
            largest = middle;
        } else {
            too_many = middle;
        }
    }
    largest
}

/// The tables that have a share for each data block.
struct PerBlock {
    mapping: Mapping,
    inodes: u64,
    data_checksum: bool,
    has_marks: bool,
    pages_per_block: u64,
}

impl PerBlock {
    /// Those of a new pool.
    fn of_new(options: &MkfsOptions, inodes: u64) -> Result<Self, EngineError> {
        Ok(PerBlock {
            mapping: options.mapping,
            inodes,
            data_checksum: options.data_checksum,
            has_marks: true,
            pages_per_block: pages_per_block(options)?,
        })
    }

    fn map_slots(&self, blocks: u64) -> u64 {
        // Too many to be numbered are refused when the number of blocks is known.
        let pages = u32::try_from(blocks * self.pages_per_block).unwrap_or(u32::MAX);
        self.mapping.slots_for(pages, self.inodes as u32)
    }

    fn map_bytes(&self, blocks: u64) -> u64 {
        let slots = self.map_slots(blocks);
        self.mapping.area_bytes(slots).next_multiple_of(BLOCK_BYTES)
    }

    fn sum_bytes(&self, blocks: u64) -> u64 {
        match self.data_checksum {
            true => (blocks * SUM_BYTES).next_multiple_of(BLOCK_BYTES),
            false => 0,
        }
    }

    fn mark_bytes(&self, blocks: u64) -> u64 {
        match self.has_marks {
            true => (blocks.div_ceil(64) * 8).next_multiple_of(BLOCK_BYTES),
            false => 0,
        }
    }

    /// Bytes of all of them.
    fn bytes(&self, blocks: u64) -> u64 {
        self.map_bytes(blocks) + self.sum_bytes(blocks) + self.mark_bytes(blocks)
    }

    /// As many blocks as fit together with their per_block.
    fn blocks_in(&self, space: u64) -> u64 {
        largest(space / BLOCK_BYTES, |blocks| {
            self.bytes(blocks) + blocks * BLOCK_BYTES <= space
        })
    }
}

impl Superblock {
    /// Decides the layout of a new pool of `size_bytes`. Errors name the option and a value that works.
    pub fn plan(size_bytes: u64, options: &MkfsOptions, uuid: u128, created_ns: i64) -> Result<Self, EngineError> {
        check_size(size_bytes, options)?;
        let size_bytes = size_bytes / BLOCK_BYTES * BLOCK_BYTES;
        let Counts {
            rings,
            ring_bytes,
            inodes,
            name_slots,
        } = Counts::choose(size_bytes, options)?;
        let (unit_size, words) = word_layout(size_bytes, options)?;
        let journal_offset = 2 * BLOCK_BYTES;
        let inode_offset = journal_offset + u64::from(rings) * ring_bytes;
        let name_offset = inode_offset + inodes * INODE_BYTES;
        let map_offset = name_offset + name_slots * 8;
        // Whole blocks of entries: a slot for each 256 KiB, 4096 at most.
        let dedup_slots = (size_bytes >> 18).min(4096) * ENTRY_BYTES / BLOCK_BYTES * BLOCK_BYTES / ENTRY_BYTES;
        let dedup_bytes = dedup_slots * ENTRY_BYTES;
        let space = (size_bytes - BLOCK_BYTES).saturating_sub(map_offset + dedup_bytes);
        let per_block = PerBlock::of_new(options, inodes)?;
        let blocks = per_block.blocks_in(space);
        check_mapping(&per_block, blocks, size_bytes)?;
        if blocks < 128 {
            return Err(EngineError::Options(format!(
                "{inodes} inodes, {name_slots} names and {rings} rings leave {blocks} data blocks in {size_bytes} \
                 bytes; ask for fewer of them or a larger --size"
            )));
        }
        let map_end = map_offset + per_block.map_bytes(blocks);
        let dedup_offset = map_offset + per_block.bytes(blocks);
        let superblock = Superblock {
            version: FORMAT_VERSION,
            uuid,
            seed: options
                .mapping
                .seed_for(options.seed.unwrap_or((uuid >> 64) as u64 ^ uuid as u64)),
            size_bytes,
            features_compat: if dedup_slots > 0 { FEATURE_OUTCOMES } else { 0 },
            features_ro_compat: features_of(options),
            features_incompat: match (unit_size, words) == DEFAULT_WORDS {
                true => NEW_INCOMPAT,
                false => NEW_INCOMPAT | FEATURE_WORD_LAYOUT,
            },
            mapping: options.mapping,
            rings,
            ring_bytes,
            journal_offset,
            inode_offset,
            inodes,
            name_offset,
            name_slots,
            map_offset,
            map_slots: per_block.map_slots(blocks),
            first_block: (dedup_offset + dedup_bytes) / BLOCK_BYTES,
            blocks,
            reserve_blocks: reserve_for(blocks),
            created_ns,
            sum_offset: if options.data_checksum { map_end } else { 0 },
            dedup_offset: if dedup_slots > 0 { dedup_offset } else { 0 },
            dedup_slots,
            mark_offset: map_end + per_block.sum_bytes(blocks),
            words,
            unit_size,
        };
        superblock.validate(size_bytes)?;
        Ok(superblock)
    }

    /// The layout of the same pool with `size_bytes`. Inodes and names grow with it.
    pub(crate) fn grown(&self, size_bytes: u64) -> Result<Superblock, EngineError> {
        let refuse = |text: String| Err(EngineError::Options(text));
        let size_bytes = size_bytes / BLOCK_BYTES * BLOCK_BYTES;
        self.check_growth(size_bytes)?;
        let scaled = |count: u64| (u128::from(count) * u128::from(size_bytes) / u128::from(self.size_bytes)) as u64;
        let inodes = scaled(self.inodes).min(MAX_INODES);
        let inodes = inodes.max(self.inodes).next_multiple_of(BLOCK_BYTES / INODE_BYTES);
        let names = scaled(self.name_slots).clamp(self.name_slots, MAX_NAMES.max(self.name_slots));
        let name_slots = names.next_multiple_of(BLOCK_BYTES / 8);
        let fixed_bytes = inodes * INODE_BYTES + name_slots * 8;
        let per_block = PerBlock {
            mapping: self.mapping,
            inodes,
            data_checksum: self.has_data_checksums(),
            has_marks: self.has_shared_blocks(),
            pages_per_block: self.pages_per_block().unwrap_or(1),
        };
        let first = self.first_block * BLOCK_BYTES;
        let space = (size_bytes - BLOCK_BYTES).saturating_sub(first + fixed_bytes);
        let blocks = per_block.blocks_in(space);
        let inode_offset = first + blocks * BLOCK_BYTES;
        if inode_offset < self.size_bytes {
            let missing_bytes = self.size_bytes - inode_offset;
            return refuse(format!(
                "{} leave no space for larger tables, which must lie behind the old end of the pool; give it at least \
                 {}",
                human_bytes(size_bytes),
                human_bytes(size_bytes + missing_bytes * 2)
            ));
        }
        check_mapping(&per_block, blocks, size_bytes)?;
        let map_offset = inode_offset + fixed_bytes;
        let map_end = map_offset + per_block.map_bytes(blocks);
        let grown = Superblock {
            size_bytes,
            features_incompat: self.features_incompat | FEATURE_GROWN,
            inode_offset,
            inodes,
            name_offset: inode_offset + inodes * INODE_BYTES,
            name_slots,
            map_offset,
            map_slots: per_block.map_slots(blocks),
            blocks,
            reserve_blocks: reserve_for(blocks),
            sum_offset: match self.has_data_checksums() {
                true => map_end,
                false => 0,
            },
            mark_offset: match self.has_shared_blocks() {
                true => map_end + per_block.sum_bytes(blocks),
                false => 0,
            },
            ..self.clone()
        };
        grown.validate(size_bytes)?;
        Ok(grown)
    }

    fn check_growth(&self, size_bytes: u64) -> Result<(), EngineError> {
        let refuse = |text: String| Err(EngineError::Options(text));
        let (has, wanted) = (human_bytes(self.size_bytes), human_bytes(size_bytes));
        if size_bytes < self.size_bytes {
            return refuse(format!(
                "a pool cannot become smaller: it has {has}, and {wanted} are asked for; copy its files to a new pool"
            ));
        }
        if size_bytes == self.size_bytes {
            return refuse(format!("the pool already has {has}"));
        }
        if size_bytes > MAX_POOL_BYTES {
            return refuse(format!(
                "{wanted} are more than format {FORMAT_VERSION} can address; give it at most {} TiB",
                MAX_POOL_BYTES >> 40
            ));
        }
        let units = u64::from(self.unit_size.block_units());
        if !self.words.fits(size_bytes / BLOCK_BYTES, units) {
            let most = (MIN_POOL_BYTES.trailing_zeros()..=MAX_POOL_BYTES.trailing_zeros())
                .map(|shift| 1u64 << shift)
                .rfind(|&bytes| self.words.fits(bytes / BLOCK_BYTES, units));
            return refuse(format!(
                "the pool's page words number blocks and log units of at most {}; copy its files to a pool made with \
                 that size, or with --log-unit 64, which can grow to 2 TiB",
                human_bytes(most.unwrap_or(self.size_bytes))
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_grows_keeps_the_pages_a_block() {
        for &mapping in Mapping::ALL {
            let options = MkfsOptions::default().mapping(mapping).pages_per_block(5);
            let superblock = Superblock::plan(64 << 20, &options, 1, 0).unwrap();
            let larger = superblock.grown(200 << 20).unwrap();
            let is_tree = matches!(mapping, Mapping::Radix | Mapping::Extent);
            let pages = Some(if is_tree { 1 } else { 5 });
            assert_eq!((superblock.pages_per_block(), larger.pages_per_block()), (pages, pages));
        }
        for refused in [0, 65] {
            let options = MkfsOptions::default().pages_per_block(refused);
            assert!(Superblock::plan(64 << 20, &options, 1, 0).is_err());
        }
    }
}

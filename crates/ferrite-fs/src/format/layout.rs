//! The format on the medium: where everything is stored, and the superblock. `docs/format.md` describes it in prose.
//!
//! Contents: [`Superblock`] with its encoding and checks, and the offsets derived from it. Everything is little-endian.
//! `plan.rs` decides about layouts. Nothing here writes; see `mkfs.rs`.
//!
//! Invariant: every offset or count taken from a superblock has passed [`Superblock::validate`], which proves that
//! every area is inside the pool and that no two overlap. Later code does not check again.

pub use ferrite_map::{BLOCK_BYTES, BlockNo, Inum};
use ferrite_map::{Geometry, PageWord, WordLayout};
pub use ferrite_pm::LINE_BYTES;
use ferrite_pm::Region;

use crate::error::EngineError;
use crate::format::checksum::{Check, crc32c};
use crate::format::outcome::ENTRY_BYTES;
use crate::format::unit::Unit;
pub use crate::format::unit::UnitSize;
use crate::options::Mapping;

/// Slots in a line of the name table.
pub(crate) const NAME_LINE_SLOTS: u64 = 8;
/// Bits of a name's hash that are stored in its slot.
pub(crate) const NAME_TAG_BITS: u32 = 23;
/// Most names a table may have: with more home lines than tags can distinguish, names would pile up.
pub(crate) const MAX_NAMES: u64 = NAME_LINE_SLOTS << NAME_TAG_BITS;
/// End of the range of all logical blocks.
pub(crate) const LBLK_END: u64 = 1 << 32;

/// Number of logical blocks that hold `bytes`.
pub(crate) fn lblks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// Size of a data block's checksum.
pub const SUM_BYTES: u64 = 8;
/// Size of an inode.
pub const INODE_BYTES: u64 = 256;
/// First eight bytes of a superblock.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FERRITE\x1a");
/// Format this program writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Smallest pool: in anything smaller, the rings and tables leave too little space.
pub const MIN_POOL_BYTES: u64 = 4 << 20;
/// Largest pool: the number of a block has 32 bits. Some mappings allow less, see [`Mapping::blocks_max`].
pub const MAX_POOL_BYTES: u64 = 16 << 40;
/// Largest file: logical blocks are counted in 32 bits.
pub const MAX_FILE_BYTES: u64 = 1 << 44;
/// Most pages for each block that the table of a mapping may be made for.
pub const MAX_PAGES_PER_BLOCK: u64 = 64;
/// Most inodes: an inode number has 32 bits, and 0 means none.
pub const MAX_INODES: u64 = u32::MAX as u64 - 1;

/// Offset of the control block: the words of a pool that change as a whole.
pub const CONTROL_OFFSET: u64 = BLOCK_BYTES;
/// Checkpoint of the journal, its low-water mark: records up to this sequence number are never replayed.
pub const CONTROL_CHECKPOINT: u64 = CONTROL_OFFSET;
const CHECKPOINT_CRC_SHIFT: u32 = 48;
/// Largest sequence number a checkpoint can hold.
pub(crate) const SEQ_MAX: u64 = (1 << CHECKPOINT_CRC_SHIFT) - 1;
/// [`STATE_CLEAN`] or [`STATE_IN_USE`].
pub const CONTROL_STATE: u64 = CONTROL_OFFSET + 64;
/// Number of mounts so far.
pub const CONTROL_MOUNTS: u64 = CONTROL_OFFSET + 72;
/// Hashed boot id of the machine that uses the pool with process durability; 0 if none does.
pub const CONTROL_BOOT: u64 = CONTROL_OFFSET + 80;
/// While a pool is in use: an identifier of the file that holds it (upper half) and the number of mounts (lower half),
/// so that a copy taken meanwhile can be recognised; otherwise 0. It counts only together with the number of mounts
/// that it names, because programs that do not know it leave it unchanged.
pub const CONTROL_OWNER: u64 = CONTROL_OFFSET + 88;
/// [`DEFERRED_UNTIL_SYNC`] or [`DEFERRED_STRICTLY`] if the pool was last changed with deferred write-back, else 0:
/// recovery then truncates the rest of the journal to a prefix.
pub const CONTROL_DEFERRED: u64 = CONTROL_OFFSET + 192;
/// Only callers of fsync waited for a sync (`durability=fsync`).
pub const DEFERRED_UNTIL_SYNC: u64 = 1;
/// Each operation waited for one (`durability=strict`).
pub const DEFERRED_STRICTLY: u64 = 2;
/// Not 0 once a directory had a quota: mount then counts what quotas count.
pub const CONTROL_QUOTAS: u64 = CONTROL_OFFSET + 200;
/// While a repair is being applied: number of words in the journal area | their checksum << 32; otherwise 0. See
/// [`crate::audit::rewrite`].
pub const CONTROL_REPAIR: u64 = CONTROL_OFFSET + 128;
/// Unmounted cleanly.
pub const STATE_CLEAN: u64 = 0x4e41_454c_4331;
/// Mounted, or crashed.
pub const STATE_IN_USE: u64 = 0x4553_555f_4e49;

/// Read-only-compatible feature: file data carries checksums, in a table with one word per data block. See
/// `format/data_sum.rs`.
pub const FEATURE_DATA_CHECKSUM: u64 = 1;
/// Read-only-compatible feature: keys of HashFS are within reach of their homes, so a key that is not was damaged.
/// Programs that do not know the feature may put keys anywhere, so they must not write.
pub const FEATURE_KEYS_IN_REACH: u64 = 2;
/// Read-only-compatible feature: pages of files may share blocks, and a table has a bit for each block that several may
/// name. A program that does not know the feature would take them for damage, or free them while they are needed.
pub const FEATURE_SHARED_BLOCKS: u64 = 4;
/// Compatible feature: a table of the outcomes of changes with tokens, see `format/outcome.rs`. A program that does not
/// know it takes no tokens, and leaves the table alone.
pub const FEATURE_OUTCOMES: u64 = 1;
/// Incompatible feature: each journal record names the previous one in its ring. A program that does not know the
/// feature would not recognise these records, and would lose them.
pub const FEATURE_LINKED_RECORDS: u64 = 1;
/// Incompatible feature: records validate themselves and data by sums that nothing else uses, see `format/checksum.rs`.
/// A program that does not know the feature would take each record for torn.
pub const FEATURE_CHECKS_APART: u64 = 2;
/// Incompatible feature: the superblock says where page words are divided, and how large the units of logs are.
/// Without it words are divided in the middle, and units have 64 bytes.
pub const FEATURE_WORD_LAYOUT: u64 = 4;
/// Incompatible feature: the pool has grown, and its tables lie after its data blocks, in space that was added. A
/// program that does not know it expects all tables before the data.
pub const FEATURE_GROWN: u64 = 8;
/// Incompatible features of each new pool.
pub(super) const NEW_INCOMPAT: u64 = FEATURE_LINKED_RECORDS | FEATURE_CHECKS_APART;
/// Incompatible features that this program knows.
const KNOWN_INCOMPAT: u64 = NEW_INCOMPAT | FEATURE_WORD_LAYOUT | FEATURE_GROWN;
/// Read-only-compatible features that this program knows.
const KNOWN_RO_COMPAT: u64 = FEATURE_DATA_CHECKSUM | FEATURE_KEYS_IN_REACH | FEATURE_SHARED_BLOCKS;

const CRC_OFFSET: usize = 4088;

/// Units and words of pools that need no others.
pub(super) const DEFAULT_WORDS: (UnitSize, WordLayout) = (UnitSize::SMALLEST, WordLayout::HALVES);

/// The table of the marks of shared blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MarkTable {
    pub(crate) offset: u64,
    pub(crate) words: u64,
}

/// Content of the first and the last block of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Format version.
    pub version: u32,
    /// Identity.
    pub uuid: u128,
    /// Seed of all hashes and checksums of this pool.
    pub seed: u64,
    /// Pool size in bytes.
    pub size_bytes: u64,
    /// Features an older program may ignore.
    pub features_compat: u64,
    /// Features an older program may ignore if it only reads.
    pub features_ro_compat: u64,
    /// Features an older program must refuse.
    pub features_incompat: u64,
    /// Mapping structure.
    pub mapping: Mapping,
    /// Journal rings.
    pub rings: u32,
    /// Bytes of each ring.
    pub ring_bytes: u64,
    /// Offset of the first ring.
    pub journal_offset: u64,
    /// Offset of the inode table.
    pub inode_offset: u64,
    /// Entries of the inode table; number 0 is not used.
    pub inodes: u64,
    /// Offset of the name table.
    pub name_offset: u64,
    /// Entries of the name table.
    pub name_slots: u64,
    /// Offset of the mapping table.
    pub map_offset: u64,
    /// Entries of the mapping table.
    pub map_slots: u64,
    /// Number of the first data block.
    pub first_block: u64,
    /// Data blocks.
    pub blocks: u64,
    /// Data blocks kept back for deletes, shrinks and overwrites.
    pub reserve_blocks: u64,
    /// When the pool was made, in nanoseconds since the epoch.
    pub created_ns: i64,
    /// Offset of the table of data checksums; 0 without [`FEATURE_DATA_CHECKSUM`].
    pub sum_offset: u64,
    /// Offset of the table of outcomes; 0 without [`FEATURE_OUTCOMES`].
    pub dedup_offset: u64,
    /// Its entries.
    pub dedup_slots: u64,
    /// Offset of the marks of shared blocks; 0 without [`FEATURE_SHARED_BLOCKS`].
    pub mark_offset: u64,
    /// Where page words are divided.
    pub words: WordLayout,
    /// Size of the units of page logs.
    pub unit_size: UnitSize,
}

/// Encodes the checkpoint: a sequence number and, in the upper 16 bits, its checksum. A checkpoint that is too low
/// would cause stale records to be replayed, so it must not be trusted without a check.
pub fn encode_checkpoint(seq: u64) -> u64 {
    let crc = crc32c(&seq.to_le_bytes());
    seq | u64::from(crc as u16 ^ (crc >> 16) as u16) << CHECKPOINT_CRC_SHIFT
}

/// Reads a stored checkpoint; `None` if it is damaged.
pub fn decode_checkpoint(word: u64) -> Option<u64> {
    let seq = word & SEQ_MAX;
    (encode_checkpoint(seq) == word).then_some(seq)
}

impl Superblock {
    /// Proves that the areas are in order, disjoint and inside `available_bytes`.
    pub fn validate(&self, available_bytes: u64) -> Result<(), EngineError> {
        let damaged = |what: &str| Err(EngineError::Damaged(format!("superblock: {what}")));
        if self.size_bytes > available_bytes {
            return Err(EngineError::Truncated {
                expected_bytes: self.size_bytes,
                found_bytes: available_bytes,
            });
        }
        if !(MIN_POOL_BYTES..=MAX_POOL_BYTES).contains(&self.size_bytes) || !self.size_bytes.is_multiple_of(BLOCK_BYTES)
        {
            return damaged("impossible pool size");
        }
        if self.rings == 0
            || self.rings > 256
            || !(64 << 10..=1 << 30).contains(&self.ring_bytes)
            || !self.ring_bytes.is_multiple_of(BLOCK_BYTES)
        {
            return damaged("impossible journal geometry");
        }
        if self.inodes < 16
            || self.inodes > MAX_INODES + 16
            || self.name_slots < 16
            || self.name_slots > MAX_NAMES + BLOCK_BYTES
        {
            return damaged("impossible table sizes");
        }
        if self.blocks == 0 || self.blocks > MAX_POOL_BYTES / BLOCK_BYTES || self.reserve_blocks > self.blocks {
            return damaged("impossible block counts");
        }
        if self.blocks > self.mapping.blocks_max() {
            return damaged("more blocks than its mapping can number");
        }
        if self.pages_per_block().is_none() {
            return damaged("the mapping table does not fit the number of blocks");
        }
        if !self
            .words
            .fits(self.size_bytes / BLOCK_BYTES, u64::from(self.unit_size.block_units()))
        {
            return damaged("page words that cannot number all blocks and all units of logs");
        }
        if self.has_data_checksums() != (self.sum_offset != 0) {
            return damaged("a table of data checksums without the feature, or the feature without a table");
        }
        if self.has_outcomes() != (self.dedup_offset != 0) || self.has_outcomes() != (self.dedup_slots != 0) {
            return damaged("a table of outcomes without the feature, or the feature without a table");
        }
        if self.has_shared_blocks() != (self.mark_offset != 0) {
            return damaged("a table of shared blocks without the feature, or the feature without a table");
        }
        self.check_areas()
    }

    /// How many pages for each block the table of the mapping is for; `None` for a table of another size.
    pub(crate) fn pages_per_block(&self) -> Option<u64> {
        let most = match self.has_shared_blocks() {
            true => MAX_PAGES_PER_BLOCK,
            false => 1,
        };
        (1..=most).find(|pages| {
            let pages = self.blocks.checked_mul(*pages);
            let pages = pages.filter(|&pages| pages <= self.mapping.blocks_max());
            pages.is_some_and(|pages| self.mapping.slots_for(pages as u32, self.inodes as u32) == self.map_slots)
        })
    }

    /// Whether its tables lie after the data blocks.
    fn has_grown(&self) -> bool {
        self.features_incompat & FEATURE_GROWN != 0
    }

    fn has_outcomes(&self) -> bool {
        self.features_compat & FEATURE_OUTCOMES != 0
    }

    /// Proves that the areas follow each other, are aligned, and end before the second superblock.
    fn check_areas(&self) -> Result<(), EngineError> {
        let damaged = |what: &str| Err(EngineError::Damaged(format!("superblock: {what}")));
        let outcomes = match self.has_outcomes() {
            true => (self.dedup_offset, self.dedup_slots.checked_mul(ENTRY_BYTES)),
            false => (self.first_block.saturating_mul(BLOCK_BYTES), Some(0)),
        };
        let journal = (self.journal_offset, u64::from(self.rings).checked_mul(self.ring_bytes));
        let inodes = (self.inode_offset, self.inodes.checked_mul(INODE_BYTES));
        let names = (self.name_offset, self.name_slots.checked_mul(8));
        let map = (self.map_offset, Some(self.mapping.area_bytes(self.map_slots)));
        let data = (
            self.first_block.saturating_mul(BLOCK_BYTES),
            self.blocks.checked_mul(BLOCK_BYTES),
        );
        let sums = self
            .has_data_checksums()
            .then(|| (self.sum_offset, self.blocks.checked_mul(SUM_BYTES)));
        let marks = self.marks().map(|marks| (marks.offset, Some(marks.words * 8)));
        let tables = [inodes, names, map].into_iter().chain(sums).chain(marks);
        let areas: Vec<_> = match self.has_grown() {
            false => std::iter::once(journal).chain(tables).chain([outcomes, data]).collect(),
            true => [journal, outcomes, data].into_iter().chain(tables).collect(),
        };
        let mut end = 2 * BLOCK_BYTES;
        for (offset, len) in areas {
            let Some(next) = len.and_then(|len| offset.checked_add(len)) else {
                return damaged("an area overflows");
            };
            if offset < end || offset % BLOCK_BYTES != 0 {
                return damaged("areas overlap or are misaligned");
            }
            end = next;
        }
        if end > self.size_bytes - BLOCK_BYTES {
            return damaged("the areas do not fit the pool");
        }
        Ok(())
    }

    /// The block as it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0u8; BLOCK_BYTES as usize];
        let mut put = |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
        put(0, &MAGIC.to_le_bytes());
        put(8, &self.version.to_le_bytes());
        put(12, &(BLOCK_BYTES as u32).to_le_bytes());
        put(16, &self.uuid.to_le_bytes());
        put(72, &(self.mapping as u32).to_le_bytes());
        put(76, &self.rings.to_le_bytes());
        for (offset, value) in self.words() {
            put(offset, &value.to_le_bytes());
        }
        let crc = crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Page bits of a word and bytes of a unit, as they are stored.
    fn stored_word_layout(&self) -> u64 {
        match self.features_incompat & FEATURE_WORD_LAYOUT != 0 {
            true => u64::from(self.words.page_bits()) | self.unit_size.bytes() << 32,
            false => 0,
        }
    }

    fn words(&self) -> [(usize, u64); 22] {
        [
            (32, self.seed),
            (40, self.size_bytes),
            (48, self.features_compat),
            (56, self.features_ro_compat),
            (64, self.features_incompat),
            (80, self.ring_bytes),
            (88, self.journal_offset),
            (96, self.inode_offset),
            (104, self.inodes),
            (112, self.name_offset),
            (120, self.name_slots),
            (128, self.map_offset),
            (136, self.map_slots),
            (144, self.first_block),
            (152, self.blocks),
            (160, self.reserve_blocks),
            (168, self.created_ns as u64),
            (176, self.sum_offset),
            (184, self.dedup_offset),
            (192, self.dedup_slots),
            (200, self.stored_word_layout()),
            (208, self.mark_offset),
        ]
    }

    /// Reads a stored block. The error distinguishes a foreign, a newer and a damaged one.
    pub fn decode(bytes: &[u8]) -> Result<Self, EngineError> {
        let word = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"));
        let half = |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"));
        if word(0) != MAGIC {
            return Err(EngineError::Foreign("it has no Ferrite signature".into()));
        }
        if half(CRC_OFFSET) != crc32c(&bytes[..CRC_OFFSET]) {
            return Err(EngineError::Damaged("wrong superblock checksum".into()));
        }
        if half(8) > FORMAT_VERSION {
            return Err(EngineError::NewerVersion {
                found: half(8),
                supported: FORMAT_VERSION,
            });
        }
        if word(64) & !KNOWN_INCOMPAT != 0 {
            return Err(EngineError::UnknownFeatures(word(64) & !KNOWN_INCOMPAT));
        }
        if u64::from(half(12)) != BLOCK_BYTES {
            return Err(EngineError::Damaged("superblock: unknown block size".into()));
        }
        let (unit_size, words) = match word(64) & FEATURE_WORD_LAYOUT != 0 {
            true => UnitSize::of_bytes(half(204))
                .zip(WordLayout::new(half(200)))
                .ok_or_else(|| EngineError::Damaged("superblock: impossible page words".into()))?,
            false => DEFAULT_WORDS,
        };
        let mapping = Mapping::from_number(half(72));
        let mapping = mapping.ok_or_else(|| EngineError::Damaged("superblock: unknown mapping".into()))?;
        Ok(Superblock {
            version: half(8),
            uuid: u128::from_le_bytes(bytes[16..32].try_into().expect("sixteen bytes")),
            seed: word(32),
            size_bytes: word(40),
            features_compat: word(48),
            features_ro_compat: word(56),
            features_incompat: word(64),
            mapping,
            rings: half(76),
            ring_bytes: word(80),
            journal_offset: word(88),
            inode_offset: word(96),
            inodes: word(104),
            name_offset: word(112),
            name_slots: word(120),
            map_offset: word(128),
            map_slots: word(136),
            first_block: word(144),
            blocks: word(152),
            reserve_blocks: word(160),
            created_ns: word(168) as i64,
            sum_offset: word(176),
            dedup_offset: word(184),
            dedup_slots: word(192),
            mark_offset: match word(56) & FEATURE_SHARED_BLOCKS {
                0 => 0,
                _ => word(208),
            },
            words,
            unit_size,
        })
    }

    /// Finds the superblock of `region`: the first block, or else the copy in the last one.
    pub fn find(region: &Region) -> Result<Self, EngineError> {
        if region.len() < 2 * BLOCK_BYTES {
            return Err(EngineError::Foreign(format!("it has only {} bytes", region.len())));
        }
        let first = match Self::copy_at(region, 0) {
            Err(error @ (EngineError::Foreign(_) | EngineError::Damaged(_))) => error,
            // A newer program may checksum its superblock elsewhere, so its version is not verified.
            found_or_refused => return found_or_refused,
        };
        match Self::copy_at(region, region.len() / BLOCK_BYTES * BLOCK_BYTES - BLOCK_BYTES) {
            Ok(superblock) => {
                tracing::warn!(first = first.cause(), "using the second superblock");
                Ok(superblock)
            }
            // There is no sign that there ever was a pool.
            Err(EngineError::Foreign(_)) if matches!(first, EngineError::Foreign(_)) => Err(first),
            Err(second @ (EngineError::Foreign(_) | EngineError::Damaged(_))) => Err(EngineError::NoSuperblock {
                first: first.cause(),
                second: second.cause(),
            }),
            Err(refused) => Err(refused),
        }
    }

    /// The copy at `offset`, if it is valid.
    fn copy_at(region: &Region, offset: u64) -> Result<Self, EngineError> {
        let mut block = vec![0u8; BLOCK_BYTES as usize];
        region.read(offset, &mut block);
        // Bytes that cannot be read look like zeros, and so like no pool.
        region.check()?;
        let superblock = Self::decode(&block)?;
        superblock.validate(region.len())?;
        Ok(superblock)
    }

    /// Offset of the second copy.
    pub fn second_copy_offset(&self) -> u64 {
        self.size_bytes - BLOCK_BYTES
    }

    /// Offset of ring `ring`.
    pub fn ring_offset(&self, ring: u32) -> u64 {
        self.journal_offset + u64::from(ring) * self.ring_bytes
    }

    /// Every inode number of the pool.
    pub(crate) fn all_inums(&self) -> impl Iterator<Item = Inum> + use<> {
        (1..self.inodes as u32).map(Inum::new)
    }

    /// Every inode number of the pool, except those whose inodes lie in blank parts of it. Nothing creates inodes
    /// meanwhile.
    pub(crate) fn inums<'r>(&self, region: &'r Region) -> impl Iterator<Item = Inum> + use<'r> {
        region
            .written_entries(self.inode_offset, 1..self.inodes, INODE_BYTES)
            .map(|ino| Inum::new(ino as u32))
    }

    /// Offset of inode `ino`.
    pub fn inode_offset(&self, ino: Inum) -> u64 {
        debug_assert!(u64::from(ino) < self.inodes);
        self.inode_offset + u64::from(ino) * INODE_BYTES
    }

    /// Offset of block `block`, which is a data block's number.
    pub fn block_offset(&self, block: BlockNo) -> u64 {
        u64::from(block) * BLOCK_BYTES
    }

    /// Whether file data carries checksums.
    pub fn has_data_checksums(&self) -> bool {
        self.features_ro_compat & FEATURE_DATA_CHECKSUM != 0
    }

    /// Read-only-compatible features that this program does not know: it must not write to such a pool.
    pub fn unknown_ro_compat(&self) -> u64 {
        self.features_ro_compat & !KNOWN_RO_COMPAT
    }

    /// Offset of the checksum word of data block `block`; `None` if data carries no checksums.
    pub fn sum_word_offset(&self, block: BlockNo) -> Option<u64> {
        self.has_data_checksums()
            .then(|| self.sum_offset + (u64::from(block) - self.first_block) * SUM_BYTES)
    }

    /// Whether pages may share blocks.
    pub fn has_shared_blocks(&self) -> bool {
        self.features_ro_compat & FEATURE_SHARED_BLOCKS != 0
    }

    /// The table of marks, if pages may share blocks.
    pub(crate) fn marks(&self) -> Option<MarkTable> {
        self.has_shared_blocks().then_some(MarkTable {
            offset: self.mark_offset,
            words: self.blocks.div_ceil(64),
        })
    }

    /// Where the mark of a block is: the offset of its word, and its bit. `None` if the block is no data block, or
    /// cannot be shared.
    pub(crate) fn mark(&self, block: BlockNo) -> Option<(u64, u64)> {
        let table = self.marks().filter(|_| self.is_data_block(block))?;
        let index = u64::from(block) - self.first_block;
        Some((table.offset + index / 64 * 8, 1 << (index % 64)))
    }

    /// Offset of the outcome of slot `slot`, which is one of the table's.
    pub(crate) fn dedup_slot_offset(&self, slot: u32) -> u64 {
        debug_assert!(u64::from(slot) < self.dedup_slots);
        self.dedup_offset + u64::from(slot) * ENTRY_BYTES
    }

    /// Whether `block` is a data block's number.
    pub fn is_data_block(&self, block: BlockNo) -> bool {
        (self.first_block..self.first_block + self.blocks).contains(&u64::from(block))
    }

    /// Whether a record may set the words of a range: not those of the superblocks, of the control block, or of the
    /// journal.
    pub(crate) fn may_be_set(&self, offset: u64, len: u64) -> bool {
        let journal_end = self.ring_offset(self.rings);
        offset.is_multiple_of(8)
            && offset >= journal_end
            && offset
                .checked_add(len)
                .is_some_and(|end| end <= self.second_copy_offset())
    }

    /// Whether each journal record names the previous one.
    pub(crate) fn has_linked_records(&self) -> bool {
        self.features_incompat & FEATURE_LINKED_RECORDS != 0
    }

    /// How records validate bytes that a crash may tear.
    pub(crate) fn record_check(&self) -> Check {
        match self.features_incompat & FEATURE_CHECKS_APART != 0 {
            true => Check::Apart,
            false => Check::Crc32c,
        }
    }

    /// Place and size of the mapping structure.
    pub fn map_geometry(&self) -> Geometry {
        Geometry {
            area_offset: self.map_offset,
            slots: self.map_slots,
            first_block: BlockNo::new(self.first_block as u32),
            blocks: self.blocks as u32,
            inodes: self.inodes as u32,
            seed: self.seed,
            keys_in_reach: self.features_ro_compat & FEATURE_KEYS_IN_REACH != 0,
            words: self.words,
        }
    }

    /// The block of a page.
    #[inline]
    pub(crate) fn page(&self, word: PageWord) -> BlockNo {
        self.words.page(word)
    }

    /// The newest entry of a page's log, from the word of a page that has one.
    #[inline]
    pub(crate) fn newest_unit(&self, word: PageWord) -> Unit {
        Unit::new(self.words.log(word), self.unit_size)
    }

    /// The word of a page in `block` whose newest log entry is at `unit`.
    #[inline]
    pub(crate) fn logged(&self, block: BlockNo, unit: Unit) -> PageWord {
        self.words.logged(block, unit.number())
    }

    /// The word of a page in `block` (0: none) that is reserved but not written yet.
    #[inline]
    pub(crate) fn unwritten(&self, block: BlockNo) -> PageWord {
        self.words.unwritten(block)
    }

    /// The same word for a page that moves to `block`.
    pub(crate) fn moved(&self, word: PageWord, block: BlockNo) -> PageWord {
        PageWord(word.0 ^ u64::from(self.page(word)) ^ u64::from(block))
    }
}

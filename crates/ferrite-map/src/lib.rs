//! File mapping: from (inode, logical block) to a *page word*, by one of several structures.
//!
//! Contents: the [`FileMap`] trait, its requirements on the engine ([`MapTx`]), the atomic free map ([`bitmap`]),
//! displacement bounds ([`bounds`]), the move lock for structures that move entries ([`move_lock`]), the structures
//! that [`Mapping`] lists ([`hashfs`], [`cuckoo`], [`radix`], [`extent`], [`leaf`]), and helpers for implementers of
//! [`MapTx`] ([`FreshNodes`], [`SetLines`]).
//!
//! *Architecture invariant:* nothing here knows the engine (`ferrite-fs`); the engine implements [`MapTx`].
//!
//! *Architecture invariant:* structures on the medium change only through [`MapTx::set_word`], that is, by applying a
//! committed journal record that sets words or links new nodes, and by [`FileMap::swing`], for changes that preserve
//! the content. Lookups never write.
#![deny(unsafe_code)]

pub mod bitmap;
pub mod bounds;
pub mod cuckoo;
pub mod extent;
mod fresh;
mod gather;
mod geometry;
pub mod hashfs;
pub mod leaf;
pub mod load;
mod mapping;
#[cfg(all(test, feature = "shuttle"))]
mod models;
pub mod move_lock;
mod numbers;
pub mod radix;
#[allow(unsafe_code)]
pub mod simd;
mod sync;
#[cfg(test)]
mod testing;
mod word;

pub use fresh::{FreshNodes, SetLines};
pub use geometry::Geometry;
pub use mapping::Mapping;
pub use numbers::{BLOCK_BYTES, BlockNo, Inum, Lblk, NameSlotNo, PageId, PageRange, SlotNo};
pub use word::{PageWord, WordLayout};

use std::sync::atomic::AtomicU64;

use thiserror::Error;

use move_lock::MoveLock;

/// A resource other than words that an operation claims or frees. A claimed one returns to its free map when the
/// operation is abandoned, a freed one once no replay can name it any more. Resources released together are released in
/// the order of this list: a structure may have to forget a node before its block can be used for anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// An entry of the mapping structure, by its index there, or any other number that the structure wants passed to
    /// [`FileMap::release`].
    MapSlot(SlotNo),
    /// A data block, by block number.
    Block(BlockNo),
    /// An inode number.
    Inode(Inum),
    /// An entry of the name table.
    NameSlot(NameSlotNo),
    /// A segment of page logs, by its block, and the index of its first unit there. Not by the number of that unit,
    /// with which each resource would take twice the space.
    LogSegment(BlockNo, u8),
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Resource::MapSlot(slot) => write!(f, "entry {slot} of the mapping"),
            Resource::Block(block) => write!(f, "block {block}"),
            Resource::Inode(ino) => write!(f, "inode {ino}"),
            Resource::NameSlot(slot) => write!(f, "entry {slot} of the name table"),
            Resource::LogSegment(block, index) => write!(f, "the log segment at unit {index} of block {block}"),
        }
    }
}

/// A word of the pool with its current or future value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredWord {
    /// Pool offset, a multiple of 8.
    pub offset: u64,
    /// Its value.
    pub value: u64,
}

impl StoredWord {
    /// `value` at pool offset `offset`.
    #[inline]
    pub const fn new(offset: u64, value: u64) -> Self {
        StoredWord { offset, value }
    }
}

/// The services of a transaction to a mapping structure.
pub trait MapTx {
    /// Sets the 8-byte word at pool offset `offset` (8-aligned) when the transaction commits.
    fn set_word(&mut self, offset: u64, value: u64);
    /// The word at `offset` as this transaction leaves it: the last value given to [`Self::set_word`], or else the
    /// stored one.
    fn word(&self, offset: u64) -> u64;
    /// The stored words from `offset` on, if this transaction is known to have set none of them: then many can be read
    /// at a time.
    fn stored(&self, _offset: u64, _count: usize) -> Option<&[AtomicU64]> {
        None
    }
    /// Claims any free block for a node of the structure. It holds zeros and the words that [`Self::set_word`] sets in
    /// it from now on; all of that is durable before the record is. The block is released if the transaction aborts.
    fn fresh_block(&mut self) -> Result<BlockNo, MapError>;
    /// Claims block `block` if it is a free data block.
    fn claim_block(&mut self, block: BlockNo) -> bool;
    /// Claims any free block.
    fn alloc_block(&mut self) -> Result<BlockNo, MapError>;
    /// Claims a free block followed by many free ones, if such a stretch exists, else any.
    fn alloc_run(&mut self) -> Result<BlockNo, MapError> {
        self.alloc_block()
    }
    /// Notes that this transaction claimed `resource` (released if it aborts).
    fn claimed(&mut self, resource: Resource);
    /// Notes that this transaction frees `resource` (reusable only when no replay can name it any more).
    fn freed(&mut self, resource: Resource);
}

/// Why a mapping operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MapError {
    /// No entry of the structure is free (after reclamation the engine may retry).
    #[error("mapping table full")]
    TableFull,
    /// No block is free.
    #[error("no free block")]
    NoBlock,
    /// A key or word on the medium is senseless; the text names it.
    #[error("damaged mapping: {0}")]
    Damaged(String),
}

/// A mapped page as iteration shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEntry {
    /// Inode number.
    pub ino: Inum,
    /// Logical block in the file.
    pub lblk: Lblk,
    /// Its word.
    pub word: PageWord,
    /// Where the structure keeps it (for diagnosis only).
    pub slot: SlotNo,
}

impl MapEntry {
    /// The page without its word and slot.
    #[inline]
    pub fn page(&self) -> PageId {
        PageId::new(self.ino, self.lblk)
    }
}

/// Which pages lookups may find in the wrong place because of something broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affected {
    /// None for sure.
    Nothing,
    /// All pages of an inode.
    Inode(Inum),
    /// Some pages of an inode: its number, the first page, and the count.
    Pages(Inum, Lblk, u32),
}

/// A fault in a structure, see [`FileMap::check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The pages it affects, if that is certain: an entry of a table names its owner, and the name may be damaged.
    pub affected: Affected,
    /// A description of the fault, and its place.
    pub what: String,
    /// Words to store, which remove the fault with all pages that only it led to.
    pub repair: Vec<StoredWord>,
}

/// Number of a structure's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// All of them.
    pub total: u64,
    /// Those neither reserved nor in use.
    pub free: u64,
}

impl Slots {
    /// Of a structure whose number of entries only blocks limit.
    pub const UNLIMITED: Slots = Slots { total: 0, free: 0 };
}

/// A mapping structure. Callers hold the inode's lock: shared or validated by a version for lookups,
/// exclusive for changes; changes of *different* inodes run concurrently.
///
/// A lookup whose version is checked afterwards may race with changes of its own inode and with the reuse of freed
/// space. Then it may return anything, but must end, and must not read outside the pool: it checks each word before
/// following it.
///
/// A structure that moves entries of other inodes has a [`MoveLock`]. The engine holds it shared from before the first
/// call of a transaction to after its commit, and exclusively around [`Self::make_space`] and its commit.
pub trait FileMap: Send + Sync {
    /// Name as `mkfs --mapping` knows it.
    fn name(&self) -> &'static str;

    /// The word of one page ([`PageWord::HOLE`] if unmapped).
    fn get(&self, page: PageId) -> PageWord;

    /// The words of `out.len()` pages from `page` on. Vectorised where the machine allows; unused lanes of the vector
    /// prefetch the following pages and leave hints in `cache`.
    fn get_many(&self, page: PageId, out: &mut [PageWord], cache: &TransCache);

    /// Prefetches the lines that [`Self::get`] of this page will touch; its word for storing, if `to_store`.
    fn prefetch(&self, page: PageId, to_store: bool);

    /// Claims a free block for `page`: the one the structure prefers (HashFS: the block of the page's slot, or of the
    /// slot an insert would take) or any other.
    fn alloc_page(&self, tx: &mut dyn MapTx, page: PageId) -> Result<BlockNo, MapError>;

    /// Maps a page that is not mapped. [`MapError::TableFull`] may go away after [`Self::make_space`].
    fn insert(&self, tx: &mut dyn MapTx, page: PageId, word: PageWord) -> Result<(), MapError>;

    /// Replaces the word of a mapped page, but not of one that this transaction inserts. The caller frees the old
    /// word's block and log.
    fn replace(&self, tx: &mut dyn MapTx, page: PageId, word: PageWord) -> Result<(), MapError>;

    /// Stores the word of a page in place, if it still is `old`, and returns the offset to be written back. For changes
    /// that need no record; the caller holds the inode's lock exclusively.
    fn swing(&self, page: PageId, old: PageWord, new: PageWord) -> Option<u64>;

    /// Unmaps a page and returns its old word (`HOLE` if it was not mapped).
    fn remove(&self, tx: &mut dyn MapTx, page: PageId) -> Result<PageWord, MapError>;

    /// Returns a freed or abandoned entry to the free map. The engine calls it when that is safe, and before blocks
    /// that were freed with the entry are returned. False if it was free already: then the engine's accounting is
    /// wrong.
    fn release(&self, slot: SlotNo) -> bool;

    /// Rebuilds the DRAM state by reading the whole structure, calling `visit` for every mapped page, from up to
    /// `threads` threads at once. Called once at mount, after the journal was replayed.
    fn load(&self, threads: usize, visit: &(dyn Fn(MapEntry) + Sync)) -> Result<(), MapError>;

    /// Calls `visit` for every mapped page of the pool until it returns false.
    fn for_each(&self, visit: &mut dyn FnMut(MapEntry) -> bool);

    /// Calls `visit` for the mapped pages of `ino` with `first <= lblk < end`, until it returns false. A structure that
    /// can list them does so in order, at a cost proportional to the pages mapped there. One that cannot walks either
    /// the range or the table, whichever is shorter, in no particular order: see [`Self::walk_worth`].
    fn for_range(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry) -> bool);

    /// The same by runs, that is, consecutive pages in consecutive blocks: `visit` gets the first page, and the number
    /// of pages. All have the log of the first. Structures that know runs take one step per run. Others report
    /// each page; any structure may. A structure that cannot list a file's pages may look up more of them than
    /// [`Self::walk_worth`]: for ranges of which much is mapped.
    fn for_runs(&self, ino: Inum, first: Lblk, end: u64, visit: &mut dyn FnMut(MapEntry, u64) -> bool) {
        self.for_range(ino, first, end, &mut |entry| visit(entry, 1));
    }

    /// For a structure that cannot list a file's pages: the longest range whose pages [`Self::for_range`] looks up one
    /// by one. A longer range costs a walk of all entries of the pool, however few pages are mapped in it. May change
    /// as the structure grows.
    fn walk_worth(&self) -> Option<u64> {
        None
    }

    /// Number of entries; [`Slots::UNLIMITED`] where only blocks limit it.
    fn slots(&self) -> Slots;

    /// Reads everything without trusting anything: calls `visit` for each page, `node` for each data block that the
    /// structure itself lies in, and `broken` for each fault. Pages that only something broken leads to are not
    /// visited. Needs no [`Self::load`]. For structures that lie in nodes, a node that is reached twice is broken the
    /// second time.
    fn check(&self, visit: &mut dyn FnMut(MapEntry), node: &mut dyn FnMut(BlockNo), broken: &mut dyn FnMut(Broken));

    /// Calls `visit` for each data block that the structure itself lies in, with the inode it belongs to. After
    /// [`Self::load`].
    fn for_each_node(&self, _visit: &mut dyn FnMut(BlockNo, Inum)) {}

    /// The move lock of a structure that moves entries of other inodes; it keeps transactions and moves apart.
    fn move_lock(&self) -> Option<&MoveLock> {
        None
    }

    /// Whether [`Self::make_space`] has work that keeps the structure fast. Cheap; queried after commits.
    fn wants_space(&self) -> bool {
        false
    }

    /// Whether so many entries wait for the journal's checkpoint in one place that moving the checkpoint is worth it:
    /// lookups have to skip them. Returns true once. Cheap; queried after operations that may map pages.
    fn wants_reclaim(&self) -> bool {
        false
    }

    /// Moves entries so that the insert that failed with [`MapError::TableFull`] last, or the next one, finds a slot;
    /// in a separate transaction. False if there is nothing to move. Repeated calls end.
    fn make_space(&self, _tx: &mut dyn MapTx) -> Result<bool, MapError> {
        Ok(false)
    }

    /// The places of keys, for structures where keys lie by their hash.
    fn hashed_keys(&self) -> Option<&dyn HashedKeys> {
        None
    }

    /// DRAM the structure uses, in bytes.
    fn dram_bytes(&self) -> u64;
}

/// Where the two words of a slot are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotOffsets {
    /// Pool offset of its key.
    pub key: u64,
    /// Pool offset of its page word.
    pub word: u64,
}

/// Queries about keys that a hash places: how far from home a key lies, and the place of a damaged one.
pub trait HashedKeys: Sync {
    /// Whether the page of `entry` lies in the block of its own slot.
    fn at_home(&self, entry: &MapEntry) -> bool;
    /// Whether a key found in `slot` for this page cannot have been put there, and so was damaged.
    fn is_out_of_reach(&self, page: PageId, slot: SlotNo) -> bool;
    /// Slot of a page, as a lookup finds it.
    fn slot_of(&self, page: PageId) -> Option<SlotNo>;
    /// Number of buckets from the page's home to `slot`.
    fn distance(&self, page: PageId, slot: SlotNo) -> u64;
    /// Where a slot's key and word are, for repair.
    fn offsets(&self, slot: SlotNo) -> SlotOffsets;
    /// The stored key of a page.
    fn key(&self, page: PageId) -> u64;
}

/// Queries for benchmarks only.
pub trait Measured: FileMap {
    /// Cache lines of the structure that [`FileMap::get`] of this page reads, DRAM included.
    fn lines_touched(&self, page: PageId) -> u64;
}

/// The 8-entry translation cache of one open file (HashFS §3.2): where in the structure recently resolved or prefetched
/// pages are kept. Hints only: always verified against the medium. Safe to share.
#[derive(Debug, Default)]
pub struct TransCache {
    /// Each structure defines their contents; all 0 means empty. HashFS: `lblk << 32 | slot + 1` by `lblk % 8`.
    pub(crate) hints: [sync::AtomicU64; 8],
}

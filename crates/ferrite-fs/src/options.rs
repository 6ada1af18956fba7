//! What a caller may choose at mkfs, mount and fsck, and what the engine reports about a pool.
//!
//! Choices grow: outside this crate they start from the default and go on with a setter for each that differs. A setter
//! that takes `impl Into<Option<_>>` takes the value itself, or `None` for the default.

pub use ferrite_map::Mapping;
use serde::{Deserialize, Serialize};

/// Choices fixed when a pool is made.
///
/// ```
/// use ferrite_fs::{Mapping, MkfsOptions};
///
/// let options = MkfsOptions::default().mapping(Mapping::Radix).seed(1);
/// assert_eq!((options.mapping, options.seed, options.inodes), (Mapping::Radix, Some(1), None));
/// ```
///
/// A new choice breaks no caller, since nobody outside can list them all:
///
/// ```compile_fail,E0639
/// let options = ferrite_fs::MkfsOptions { seed: Some(1), ..Default::default() };
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MkfsOptions {
    /// Mapping structure.
    pub mapping: Mapping,
    /// Number of inodes; default one for every 16 KiB.
    pub inodes: Option<u64>,
    /// Number of names; default two an inode.
    pub names: Option<u64>,
    /// Journal rings; default 16, fewer on small pools.
    pub rings: Option<u32>,
    /// Block size; only 4096 so far.
    pub block_bytes: Option<u32>,
    /// Seed of the pool's hashes and its identity; default random. Tests fix it.
    pub seed: Option<u64>,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// File data carries checksums, which every read verifies.
    pub data_checksum: bool,
}

impl MkfsOptions {
    /// The structure that finds the pages of files.
    #[must_use]
    pub fn mapping(mut self, mapping: Mapping) -> MkfsOptions {
        self.mapping = mapping;
        self
    }

    /// How many inodes; by default one for every 16 KiB of the pool.
    #[must_use]
    pub fn inodes(mut self, inodes: impl Into<Option<u64>>) -> MkfsOptions {
        self.inodes = inodes.into();
        self
    }

    /// How many names; by default two an inode.
    #[must_use]
    pub fn names(mut self, names: impl Into<Option<u64>>) -> MkfsOptions {
        self.names = names.into();
        self
    }

    /// How many journal rings; by default 16, fewer on small pools.
    #[must_use]
    pub fn rings(mut self, rings: impl Into<Option<u32>>) -> MkfsOptions {
        self.rings = rings.into();
        self
    }

    /// Size of a block in bytes; mkfs refuses any but 4096 so far.
    #[must_use]
    pub fn block_bytes(mut self, block_bytes: impl Into<Option<u32>>) -> MkfsOptions {
        self.block_bytes = block_bytes.into();
        self
    }

    /// What the pool's hashes and its identity are made from; by default random. The same seed makes the same pool.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Option<u64>>) -> MkfsOptions {
        self.seed = seed.into();
        self
    }

    /// User and group that own the root directory; by default 0 and 0.
    #[must_use]
    pub fn root_owner(mut self, uid: u32, gid: u32) -> MkfsOptions {
        self.root_owner = (uid, gid);
        self
    }

    /// Whether data of files carries checksums, which every read verifies; by default it does not.
    #[must_use]
    pub fn data_checksum(mut self, data_checksum: bool) -> MkfsOptions {
        self.data_checksum = data_checksum;
        self
    }
}

/// When reads move the access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimePolicy {
    /// When it is older than the last change, or than a day.
    #[default]
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

/// Choices of one mount.
///
/// ```
/// use ferrite_fs::{AtimePolicy, MountOptions};
///
/// let options = MountOptions::default().read_only(true).atime(AtimePolicy::Never);
/// assert!(options.read_only && options.cleaner);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct MountOptions {
    /// Refuse changes. A crashed pool is replayed into a private mapping; nothing is written.
    pub read_only: bool,
    /// Access times.
    pub atime: AtimePolicy,
    /// Listings move access times of directories, as far as `atime` lets them.
    pub dir_atime: bool,
    /// On an ordinary file only: survive a killed process, not a power loss (docs/design.md, "Crash atomicity", mode
    /// `process`).
    pub process_durability: bool,
    /// Mount although the machine went down while the pool was in use in that mode.
    pub accept_power_loss: bool,
    /// Fold page logs in the background, when space is short or the pool idle.
    pub cleaner: bool,
    /// The cleaner starts when less than this share of the blocks is free, in percent…
    pub clean_low_percent: u8,
    /// …and goes on until this share is.
    pub clean_high_percent: u8,
    /// A read that walked at least this many entries of a page's log folds the page; 0: never.
    pub fold_read_entries: u32,
    /// No page logs: every unaligned write copies its page, as NOVA does. For comparison.
    pub cow_only: bool,
    /// See [`MountOptions::forward_scan`].
    pub(crate) forward_scan: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            atime: AtimePolicy::default(),
            dir_atime: true,
            process_durability: false,
            accept_power_loss: false,
            cleaner: true,
            clean_low_percent: 5,
            clean_high_percent: 10,
            fold_read_entries: 4,
            cow_only: false,
            forward_scan: false,
        }
    }
}

impl MountOptions {
    /// Whether changes are refused and nothing is written; by default they are not.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> MountOptions {
        self.read_only = read_only;
        self
    }

    /// When reads move access times; by default [`AtimePolicy::Relative`].
    #[must_use]
    pub fn atime(mut self, atime: AtimePolicy) -> MountOptions {
        self.atime = atime;
        self
    }

    /// Whether listings move access times of directories, as far as `atime` lets them; by default they do.
    #[must_use]
    pub fn dir_atime(mut self, dir_atime: bool) -> MountOptions {
        self.dir_atime = dir_atime;
        self
    }

    /// Whether an ordinary file need survive a killed process only, not a power loss; by default both.
    #[must_use]
    pub fn process_durability(mut self, process_durability: bool) -> MountOptions {
        self.process_durability = process_durability;
        self
    }

    /// Whether to mount although the machine went down while the pool was in use with `process_durability`, so that its
    /// data may be torn; by default such a mount is refused.
    #[must_use]
    pub fn accept_power_loss(mut self, accept_power_loss: bool) -> MountOptions {
        self.accept_power_loss = accept_power_loss;
        self
    }

    /// Whether a thread folds page logs in the background; by default one does.
    #[must_use]
    pub fn cleaner(mut self, cleaner: bool) -> MountOptions {
        self.cleaner = cleaner;
        self
    }

    /// Below which share of free blocks the cleaner starts, in percent; by default 5.
    #[must_use]
    pub fn clean_low_percent(mut self, clean_low_percent: u8) -> MountOptions {
        self.clean_low_percent = clean_low_percent;
        self
    }

    /// Up to which share of free blocks it goes on, in percent; by default 10.
    #[must_use]
    pub fn clean_high_percent(mut self, clean_high_percent: u8) -> MountOptions {
        self.clean_high_percent = clean_high_percent;
        self
    }

    /// After how many entries of a page's log a read folds the page; 0 for never, by default 4.
    #[must_use]
    pub fn fold_read_entries(mut self, fold_read_entries: u32) -> MountOptions {
        self.fold_read_entries = fold_read_entries;
        self
    }

    /// Whether every unaligned write copies its page, without page logs; by default it does not.
    #[must_use]
    pub fn cow_only(mut self, cow_only: bool) -> MountOptions {
        self.cow_only = cow_only;
        self
    }

    /// Reads logs from the oldest entry on, which is slower and finds the same. No choice of a user's: `ferrite bench`
    /// and the lab measure the paper's comparison with it, and a test of the checksums reads both ways.
    #[doc(hidden)]
    #[must_use]
    pub fn forward_scan(mut self, forward_scan: bool) -> MountOptions {
        self.forward_scan = forward_scan;
        self
    }
}

/// Folds since the mount, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldCounts {
    /// A write merged: the log was long, or the page complete.
    pub write: u64,
    /// A read had walked too far.
    pub read: u64,
    /// Space was short.
    pub low_space: u64,
    /// Nothing else went on.
    pub idle: u64,
}

/// Where a pool's DRAM goes, in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DramUse {
    /// Free map of the blocks.
    pub block_map: u64,
    /// Mapping structure: free map of its slots and displacement bounds.
    pub mapping: u64,
    /// Free map of the inodes.
    pub inode_map: u64,
    /// Free map and bounds of the name table.
    pub name_map: u64,
    /// Inodes known to the kernel, open, or kept: how many.
    pub cached_inodes: u64,
    /// Bytes per cached inode.
    pub bytes_per_cached_inode: u64,
    /// Tables in which they are found.
    pub inode_tables: u64,
    /// Journal bookkeeping, all rings.
    pub journal: u64,
    /// Slabs of page logs, and the list of pages that have logs.
    pub page_logs: u64,
    /// Lists of where sparse files have pages, of mappings that cannot tell.
    #[serde(default)]
    pub page_lists: u64,
    /// Sum of all.
    pub total: u64,
}

/// Everything `ferrite info` shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolInfo {
    /// Identity, as 32 hexadecimal digits.
    pub uuid: String,
    /// Version of the format.
    pub format_version: u32,
    /// What the pool lies on, and what survives there.
    pub medium: String,
    /// In words: when an operation that returned is safe from what.
    pub durability: String,
    /// Mapping structure.
    pub mapping: Mapping,
    /// Whether file data carries checksums.
    #[serde(default)]
    pub data_checksum: bool,
    /// Pool size in bytes.
    pub size_bytes: u64,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Data blocks, in all.
    pub blocks: u64,
    /// Data blocks free now.
    pub blocks_free: u64,
    /// Free blocks kept back for deletes, shrinks and overwrites.
    pub blocks_reserved: u64,
    /// Blocks freed by operations that a crash could still replay.
    pub blocks_pending: u64,
    /// Inodes in all and free.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Inodes in use that have no name: removed files that somebody has open, or is removing.
    #[serde(default)]
    pub orphans: u64,
    /// Names in all.
    pub names: u64,
    /// Free names.
    pub names_free: u64,
    /// Slots of the mapping structure.
    pub map_slots: u64,
    /// Free slots.
    pub map_slots_free: u64,
    /// Mapped pages.
    pub pages: u64,
    /// Pages that have a log.
    pub logged_pages: u64,
    /// Bytes of the logs' segments, those that threads hold ready included.
    pub log_bytes: u64,
    /// Blocks these lie in.
    pub log_blocks: u64,
    /// Blocks of pages and logs, over blocks of pages.
    pub space_amplification: f64,
    /// Logs merged into their pages since the mount: by writes, reads, for want of space, and in idle times.
    pub folds: FoldCounts,
    /// Pages that lie in the block of their own slot (HashFS), in percent.
    pub pages_at_home_percent: f64,
    /// Journal rings and bytes of each.
    pub rings: u32,
    /// Bytes of each ring.
    pub ring_bytes: u64,
    /// Whether the pool was unmounted cleanly before this look at it.
    pub was_clean: bool,
    /// The mount found it marked as in use in another file: it may be a copy that was taken while the original was
    /// mounted.
    #[serde(default)]
    pub may_be_live_copy: bool,
    /// Changes are held back, so that the pool can be copied.
    #[serde(default)]
    pub frozen: bool,
    /// Journal records that this mount replayed.
    pub replayed_records: u64,
    /// Mounts so far.
    pub mounts: u64,
    /// Whether the engine has turned read-only after an error, and which.
    pub failed: Option<String>,
    /// What the mount found damaged, a line each.
    #[serde(default)]
    pub damage: Vec<String>,
    /// Whether changes are refused, because it is not known what the damaged parts own.
    #[serde(default)]
    pub damage_stops_changes: bool,
    /// Damage that operations and scrubs met since the mount, the oldest first; the last hundred different ones.
    #[serde(default)]
    pub runtime_findings: Vec<RuntimeFinding>,
    /// How often they met any.
    #[serde(default)]
    pub runtime_findings_total: u64,
    /// The last scrub since the mount that came to its end.
    #[serde(default)]
    pub last_scrub: Option<LastScrub>,
    /// DRAM shares.
    pub dram: DramUse,
    /// Persistence counters of this process since the mount: fences.
    pub fences: u64,
    /// Cache lines written back.
    pub lines_written_back: u64,
    /// Bytes stored past the cache.
    pub bytes_streamed: u64,
    /// Syncs of an ordinary file asked for.
    #[serde(default)]
    pub file_syncs: u64,
}

/// Damage that was met while a pool was mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeFinding {
    /// What is wrong, with the names and numbers it concerns.
    pub what: String,
    /// How often it was met.
    pub count: u64,
    /// When first, in seconds since 1970.
    pub first_s: i64,
    /// When last, in seconds since 1970.
    pub last_s: i64,
}

/// A scrub that came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastScrub {
    /// When, in seconds since 1970.
    pub ended_s: i64,
    /// Inodes in use.
    pub inodes: u64,
    /// Pages of data whose checksums were verified.
    pub pages: u64,
    /// Bytes looked at.
    pub bytes: u64,
    /// How much was wrong.
    pub findings: u64,
}

/// A mapped page of a file, as `ferrite dump` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageDump {
    /// Its number in the file.
    pub page: u32,
    /// Its block.
    pub block: u32,
    /// Reserved: reads as zeros.
    pub unwritten: bool,
    /// Its word as it is stored.
    pub word: u64,
    /// The entries of its log, newest first.
    pub entries: Vec<EntryDump>,
}

/// An entry of a page log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryDump {
    /// Where it ends: pool offset of its trailer's 64 bytes, over 64.
    pub unit: u32,
    /// Where in the page its data goes.
    pub offset: u16,
    /// How much.
    pub len_bytes: u16,
    /// Its range reads as zeros.
    pub zeros: bool,
    /// Unit of the header of its segment.
    pub segment: u32,
}

/// Choices of a check or repair.
///
/// ```
/// assert!(ferrite_fs::FsckOptions::default().data(true).data);
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct FsckOptions {
    /// Read all data of files as well, where it carries checksums.
    pub data: bool,
}

impl FsckOptions {
    /// Whether to read all data of files as well, where it carries checksums; by default not.
    #[must_use]
    pub fn data(mut self, data: bool) -> FsckOptions {
        self.data = data;
        self
    }
}

/// One thing fsck found wrong.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Phase that found it.
    pub phase: &'static str,
    /// What is wrong, with the names and numbers it concerns.
    pub what: String,
}

/// What fsck saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FsckReport {
    /// What is wrong; empty on a sound pool.
    pub findings: Vec<Finding>,
    /// More is wrong than the findings tell, of which only so many are kept.
    pub more: bool,
    /// Inodes in use.
    pub inodes: u64,
    /// Those of them that have no name: somebody had them open, or was removing them. The next mount frees them.
    pub orphans: u64,
    /// Directory entries.
    pub entries: u64,
    /// Mapped pages.
    pub pages: u64,
    /// Blocks in use.
    pub blocks: u64,
    /// Records that had to be replayed first (into a private mapping).
    pub replayed_records: u64,
}

/// One thing that a repair does.
#[derive(Debug, Clone, Serialize)]
pub struct Mended {
    /// Phase that found it.
    pub phase: &'static str,
    /// What is wrong, with the names and numbers it concerns.
    pub what: String,
    /// What is done about it.
    pub action: &'static str,
    /// Content or names are lost, or may be wrong; false if everything is as it was before the damage.
    pub loss: bool,
}

impl Mended {
    /// What was wrong, without what is done about it.
    pub(crate) fn finding(&self) -> Finding {
        Finding {
            phase: self.phase,
            what: self.what.clone(),
        }
    }
}

/// What a repair comes to.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RepairReport {
    /// What was wrong before, in the order of `mended`; empty if the pool was sound.
    pub findings: Vec<Finding>,
    /// Everything that is done, in order.
    pub mended: Vec<Mended>,
    /// Inodes whose content may be wrong, as they are called in `lost+found`.
    pub quarantined: Vec<String>,
    /// The pool as it is afterwards; findings that are left could not be repaired.
    pub after: FsckReport,
}

/// What a scrub saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// What is wrong.
    pub findings: Vec<String>,
    /// More is wrong than the findings tell, of which only so many are kept.
    #[serde(default)]
    pub more: bool,
    /// Inodes in use.
    pub inodes: u64,
    /// Directory entries.
    pub entries: u64,
    /// Entries of page logs.
    pub log_entries: u64,
    /// How many of the findings are damaged data of files, which a repair of structures does not mend.
    #[serde(default)]
    pub data_findings: u64,
    /// Pages of data whose checksums were verified; 0 where data carries none.
    #[serde(default)]
    pub pages: u64,
    /// Bytes looked at.
    pub bytes: u64,
}

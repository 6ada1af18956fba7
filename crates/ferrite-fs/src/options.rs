//! The options of mkfs, mount and fsck, and the engine's reports about a pool.
//!
//! The sets of options grow. Outside this crate, a caller starts from the default and calls a setter for each option
//! that differs. A setter that takes `impl Into<Option<_>>` takes the value itself, or `None` for the default.

pub use ferrite_map::Mapping;
use ferrite_pm::Durability;
pub use ferrite_vfs::volume::ScrubReport;
pub use ferrite_vfs::{QuotaUse, UserQuota};
use serde::{Deserialize, Serialize};

/// The owner of a file; by default the root user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Choices fixed when a pool is made.
///
/// ```
/// use ferrite_fs::{Mapping, MkfsOptions};
///
/// let options = MkfsOptions::default().mapping(Mapping::Radix).seed(1);
/// assert_eq!((options.mapping, options.seed, options.inodes), (Mapping::Radix, Some(1), None));
/// ```
///
/// A new option breaks no caller, since no code outside the crate can list them all:
///
/// ```compile_fail,E0639
/// let options = ferrite_fs::MkfsOptions { seed: Some(1), ..Default::default() };
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MkfsOptions {
    /// Mapping structure.
    pub mapping: Mapping,
    /// Number of inodes; by default one for every 16 KiB, in pools of 1 TiB and more one for every 64 KiB.
    pub inodes: Option<u64>,
    /// Number of names; by default two per inode.
    pub names: Option<u64>,
    /// Number of journal rings; by default 16, fewer on small pools.
    pub rings: Option<u32>,
    /// Block size in bytes; only 4096 so far.
    pub block_bytes: Option<u32>,
    /// Seed of the pool's hashes and its identity; by default random. Tests set it.
    pub seed: Option<u64>,
    /// The owner of the root directory.
    pub root_owner: Owner,
    /// File data carries checksums, which every read verifies.
    pub data_checksum: bool,
    /// All space is written, and not only allocated.
    pub write_zeros: bool,
    /// No space is allocated beforehand.
    pub sparse: bool,
    /// Size of the units of page logs; by default as small as the pool's size allows.
    pub log_unit_bytes: Option<u32>,
    /// How many pages for each block the mapping has entries for; by default 1.
    pub pages_per_block: Option<u32>,
}

impl MkfsOptions {
    /// The structure that finds the pages of files.
    #[must_use]
    pub fn mapping(mut self, mapping: Mapping) -> MkfsOptions {
        self.mapping = mapping;
        self
    }

    /// How many inodes; by default one for every 16 KiB of the pool, in pools of 1 TiB and more for every 64 KiB.
    #[must_use]
    pub fn inodes(mut self, inodes: impl Into<Option<u64>>) -> MkfsOptions {
        self.inodes = inodes.into();
        self
    }

    /// How many names; by default two per inode.
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

    /// Size of a block in bytes; mkfs refuses all but 4096 so far.
    #[must_use]
    pub fn block_bytes(mut self, block_bytes: impl Into<Option<u32>>) -> MkfsOptions {
        self.block_bytes = block_bytes.into();
        self
    }

    /// Source of the pool's hashes and its identity; by default random. The same seed makes the same pool.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Option<u64>>) -> MkfsOptions {
        self.seed = seed.into();
        self
    }

    /// User and group that own the root directory; by default 0 and 0.
    #[must_use]
    pub fn root_owner(mut self, uid: u32, gid: u32) -> MkfsOptions {
        self.root_owner = Owner { uid, gid };
        self
    }

    /// Whether file data carries checksums, which every read verifies; by default it does not.
    #[must_use]
    pub fn data_checksum(mut self, data_checksum: bool) -> MkfsOptions {
        self.data_checksum = data_checksum;
        self
    }

    /// Whether zeros are written to all space, and not only to tables. On a disk file, the first write to each block
    /// pays for its file system's allocation work, and waits for that if it is durable; this option does it beforehand.
    /// Takes as long as writing the file.
    #[must_use]
    pub fn write_zeros(mut self, write_zeros: bool) -> MkfsOptions {
        self.write_zeros = write_zeros;
        self
    }

    /// Whether a file gets its space only where it is written to; by default all of it is allocated. When its file
    /// system is full, the pool fails as a broken medium does, and not with "no space left".
    #[must_use]
    pub fn sparse(mut self, sparse: bool) -> MkfsOptions {
        self.sparse = sparse;
        self
    }

    /// Size in bytes of the units of page logs: 64, 128, 256, 512, 1024, or 4096 for a pool without logs. By default
    /// the smallest with which a page's word can number all units: 64 up to 2 TiB, 256 up to 4 TiB, 1024 up to 8 TiB,
    /// and no logs above that.
    #[must_use]
    pub fn log_unit_bytes(mut self, log_unit_bytes: impl Into<Option<u32>>) -> MkfsOptions {
        self.log_unit_bytes = log_unit_bytes.into();
        self
    }

    /// How many pages for each block the mapping has entries for, 1 (the default) to 64: clones need entries, but no
    /// blocks. No effect on `radix` and `extent`, whose entries take blocks.
    #[must_use]
    pub fn pages_per_block(mut self, pages_per_block: impl Into<Option<u32>>) -> MkfsOptions {
        self.pages_per_block = pages_per_block.into();
        self
    }
}

/// When reads update the access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimePolicy {
    /// If it is older than the last change, or than a day.
    #[default]
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

/// Choices of one mount. Those that only servers, benchmarks and the papers' comparisons need are not in the
/// documentation.
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
    /// Refuse changes. If the pool crashed, its journal is replayed into a private mapping; nothing is written.
    pub read_only: bool,
    /// When reads update access times.
    pub atime: AtimePolicy,
    /// Listings update access times of directories, as far as `atime` allows.
    pub dir_atime: bool,
    /// When operations on an ordinary file are durable (docs/design.md, "Media"); elsewhere they are when they return.
    pub durability: Durability,
    /// Mount even if the machine went down while the pool was in use with [`Durability::Process`].
    pub accept_power_loss: bool,
    /// Merge page logs into their pages in the background, when space is short or the pool is idle.
    pub cleaner: bool,
    /// The cleaner starts when less than this percentage of the blocks is free…
    pub clean_low_percent: u8,
    /// …and continues until this percentage is free.
    pub clean_high_percent: u8,
    /// A read that walked at least this many entries of a page's log merges the page; 0 means never.
    #[doc(hidden)]
    pub merge_read_entries: u32,
    /// No page logs: every unaligned write copies its page, as NOVA does. For comparison.
    #[doc(hidden)]
    pub cow_only: bool,
    /// Files that had lost their last name but were open when the pool was last used stay until
    /// [`ferrite_vfs::FileSystem::drop_orphans`], so that a server's clients find them again. For servers.
    #[doc(hidden)]
    pub keep_orphans: bool,
    /// See [`MountOptions::forward_scan`].
    pub(crate) forward_scan: bool,
    /// See [`MountOptions::inspect`].
    pub(crate) is_look: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            atime: AtimePolicy::default(),
            dir_atime: true,
            durability: Durability::Strict,
            accept_power_loss: false,
            cleaner: true,
            clean_low_percent: 5,
            clean_high_percent: 10,
            merge_read_entries: 4,
            cow_only: false,
            keep_orphans: false,
            forward_scan: false,
            is_look: false,
        }
    }
}

impl MountOptions {
    /// Whether files without names stay until [`ferrite_vfs::FileSystem::drop_orphans`]; by default a mount frees them.
    #[doc(hidden)]
    #[must_use]
    pub fn keep_orphans(mut self, keep: bool) -> MountOptions {
        self.keep_orphans = keep;
        self
    }

    /// The names of the options that differ from the default. An inspection ([`Self::inspect`]) counts as read-only.
    #[doc(hidden)]
    pub fn given(&self) -> Vec<&'static str> {
        let MountOptions {
            read_only,
            atime,
            dir_atime,
            durability,
            accept_power_loss,
            cleaner,
            clean_low_percent,
            clean_high_percent,
            merge_read_entries,
            cow_only,
            keep_orphans,
            forward_scan,
            is_look,
        } = *self;
        let default = MountOptions::default();
        let all = [
            ("read_only", read_only != default.read_only),
            ("atime", atime != default.atime),
            ("dir_atime", dir_atime != default.dir_atime),
            ("durability", durability != default.durability),
            (
                "accept_power_loss",
                accept_power_loss != default.accept_power_loss && !is_look,
            ),
            ("cleaner", cleaner != default.cleaner),
            ("clean_low_percent", clean_low_percent != default.clean_low_percent),
            ("clean_high_percent", clean_high_percent != default.clean_high_percent),
            ("merge_read_entries", merge_read_entries != default.merge_read_entries),
            ("cow_only", cow_only != default.cow_only),
            ("keep_orphans", keep_orphans != default.keep_orphans),
            ("forward_scan", forward_scan != default.forward_scan),
        ];
        let given = all.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(name, _)| name).collect()
    }

    /// Inspects a pool in any state: read-only, after a power loss too, and not counted in [`PoolInfo::mounts`].
    #[must_use]
    pub fn inspect() -> MountOptions {
        MountOptions {
            read_only: true,
            accept_power_loss: true,
            is_look: true,
            ..MountOptions::default()
        }
    }

    /// Whether to refuse changes and write nothing; by default changes are allowed.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> MountOptions {
        self.read_only = read_only;
        self
    }

    /// When reads update access times; by default [`AtimePolicy::Relative`].
    #[must_use]
    pub fn atime(mut self, atime: AtimePolicy) -> MountOptions {
        self.atime = atime;
        self
    }

    /// Whether listings update access times of directories, as far as `atime` allows; by default they do.
    #[must_use]
    pub fn dir_atime(mut self, dir_atime: bool) -> MountOptions {
        self.dir_atime = dir_atime;
        self
    }

    /// Whether operations on an ordinary file need only survive a killed process, not a power loss; by default both.
    #[must_use]
    pub fn process_durability(self, process_durability: bool) -> MountOptions {
        self.durability(match process_durability {
            true => Durability::Process,
            false => Durability::Strict,
        })
    }

    /// When operations on an ordinary file are durable. By default when they return; with [`Durability::OnSync`] at the
    /// next `fsync`, `sync` or unmount, and at most five seconds later. A crash then leaves a prefix of the operations.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> MountOptions {
        self.durability = durability;
        self
    }

    /// Whether to mount even if the machine went down while the pool was in use with `process_durability`, so that its
    /// data may be torn; by default such a mount is refused.
    #[must_use]
    pub fn accept_power_loss(mut self, accept_power_loss: bool) -> MountOptions {
        self.accept_power_loss = accept_power_loss;
        self
    }

    /// Whether a thread merges page logs in the background; by default it does.
    #[must_use]
    pub fn cleaner(mut self, cleaner: bool) -> MountOptions {
        self.cleaner = cleaner;
        self
    }

    /// The cleaner starts below this percentage of free blocks; by default 5.
    #[must_use]
    pub fn clean_low_percent(mut self, clean_low_percent: u8) -> MountOptions {
        self.clean_low_percent = clean_low_percent;
        self
    }

    /// The cleaner continues up to this percentage of free blocks; by default 10.
    #[must_use]
    pub fn clean_high_percent(mut self, clean_high_percent: u8) -> MountOptions {
        self.clean_high_percent = clean_high_percent;
        self
    }

    /// A read that walked this many entries of a page's log merges the page; 0 means never, by default 4.
    #[doc(hidden)]
    #[must_use]
    pub fn merge_read_entries(mut self, merge_read_entries: u32) -> MountOptions {
        self.merge_read_entries = merge_read_entries;
        self
    }

    /// Whether every unaligned write copies its page, without page logs; by default it does not.
    #[doc(hidden)]
    #[must_use]
    pub fn cow_only(mut self, cow_only: bool) -> MountOptions {
        self.cow_only = cow_only;
        self
    }

    /// Reads logs from the oldest entry on, which is slower and gives the same result. Not meant for users: `ferrite
    /// bench` and the lab measure the paper's comparison with it, and a test of the checksums reads both ways.
    #[doc(hidden)]
    #[must_use]
    pub fn forward_scan(mut self, forward_scan: bool) -> MountOptions {
        self.forward_scan = forward_scan;
        self
    }
}

/// Merges since the mount, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeCounts {
    /// By writes, because the log was long or the page complete.
    pub write: u64,
    /// By reads that walked too many entries.
    pub read: u64,
    /// Because space was short.
    pub low_space: u64,
    /// Because the pool was idle.
    pub idle: u64,
}

/// A pool's use of DRAM, in bytes.
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
    /// Number of inodes in the cache: known to the kernel, open, or kept for a while.
    pub cached_inodes: u64,
    /// Bytes per cached inode.
    pub bytes_per_cached_inode: u64,
    /// Tables that find the cached inodes.
    pub inode_tables: u64,
    /// Journal bookkeeping, all rings.
    pub journal: u64,
    /// Slabs of page logs, and the list of pages that have logs.
    pub page_logs: u64,
    /// Lists of where sparse files have pages, for mappings that cannot list a file's pages.
    #[serde(default)]
    pub page_lists: u64,
    /// With `durability=fsync`: pages of the pool that were changed in memory.
    #[serde(default)]
    #[serde(alias = "held_pages")]
    pub deferred_pages: u64,
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
    /// The medium of the pool, and the failures that its data survives there.
    pub medium: String,
    /// In words: which failures a completed operation survives.
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
    /// Data blocks in total.
    pub blocks: u64,
    /// Data blocks free now.
    pub blocks_free: u64,
    /// Free blocks reserved for deletes, shrinks and overwrites.
    pub blocks_reserved: u64,
    /// Blocks freed by operations that a crash could still replay.
    pub blocks_pending: u64,
    /// Blocks saved by clones: pages that have the block of another page.
    #[serde(default)]
    pub blocks_saved: u64,
    /// Inodes in total.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Inodes in use that have no name: removed files that a program has open, or that are being removed.
    #[serde(default)]
    pub orphans: u64,
    /// Quotas of directory trees, by inode; the first thousand.
    #[serde(default)]
    pub quotas: Vec<QuotaUse>,
    /// Quotas of users, by number; the first thousand.
    #[serde(default)]
    pub user_quotas: Vec<UserQuota>,
    /// Names in total.
    pub names: u64,
    /// Free names.
    pub names_free: u64,
    /// Total slots of the mapping structure.
    pub map_slots: u64,
    /// Free slots.
    pub map_slots_free: u64,
    /// Mapped pages.
    pub pages: u64,
    /// Pages that have a log.
    pub logged_pages: u64,
    /// Size of the units of page logs; that of a block if pages have none.
    #[serde(default)]
    pub log_unit_bytes: u64,
    /// Bytes of the logs' segments, including those that threads hold ready.
    pub log_bytes: u64,
    /// Blocks that contain those segments.
    pub log_blocks: u64,
    /// Blocks of pages and logs, divided by blocks of pages.
    pub space_amplification: f64,
    /// Logs merged into their pages since the mount: by writes, by reads, for lack of space, and in idle times.
    #[serde(alias = "folds")]
    pub merges: MergeCounts,
    /// Pages that are in the block of their own slot (HashFS), in percent.
    pub pages_at_home_percent: f64,
    /// Number of journal rings.
    pub rings: u32,
    /// Bytes of each ring.
    pub ring_bytes: u64,
    /// The pool was only opened to look at it: this is no mount.
    #[serde(default)]
    pub is_look: bool,
    /// Whether the pool had been unmounted cleanly before.
    pub was_clean: bool,
    /// The mount found the pool marked as in use in another file: it may be a copy that was taken while the original
    /// was mounted.
    #[serde(default)]
    pub may_be_live_copy: bool,
    /// The pool is frozen, so that it can be copied.
    #[serde(default)]
    pub frozen: bool,
    /// Journal records replayed by this mount.
    pub replayed_records: u64,
    /// Number of mounts so far.
    pub mounts: u64,
    /// The error after which the engine turned read-only, if it did.
    pub failed: Option<String>,
    /// Damage that the mount found, one line each.
    #[serde(default)]
    pub damage: Vec<String>,
    /// Changes are refused, because it is unknown which blocks the damaged structures own.
    #[serde(default)]
    pub damage_stops_changes: bool,
    /// Damage met by operations and scrubs since the mount, oldest first; the last hundred different findings.
    #[serde(default)]
    pub runtime_findings: Vec<RuntimeFinding>,
    /// How often damage was met in total.
    #[serde(default)]
    pub runtime_findings_total: u64,
    /// The last scrub since the mount that ran to completion.
    #[serde(default)]
    pub last_scrub: Option<LastScrub>,
    /// Use of DRAM.
    pub dram: DramUse,
    /// Fences of this process since the mount.
    pub fences: u64,
    /// Cache lines written back.
    pub lines_written_back: u64,
    /// Bytes stored past the cache.
    pub bytes_streamed: u64,
    /// Syncs of an ordinary file that were requested.
    #[serde(default)]
    pub file_syncs: u64,
}

/// Damage met while the pool was mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeFinding {
    /// The damage, with the names and numbers that it concerns.
    pub what: String,
    /// How often it was met.
    pub count: u64,
    /// When first, in seconds since 1970.
    pub first_s: i64,
    /// When last, in seconds since 1970.
    pub last_s: i64,
}

/// A scrub that ran to completion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastScrub {
    /// When it ended, in seconds since 1970.
    pub ended_s: i64,
    /// Inodes in use.
    pub inodes: u64,
    /// Pages of data whose checksums were verified.
    pub pages: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Number of findings.
    pub findings: u64,
}

/// A mapped page of a file, as `ferrite dump` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageDump {
    /// Its number in the file.
    pub page: u32,
    /// Its block.
    pub block: u32,
    /// Reserved: the page reads as zeros.
    pub unwritten: bool,
    /// Its page word, as stored.
    pub word: u64,
    /// The entries of its log, newest first.
    pub entries: Vec<EntryDump>,
}

/// An entry of a page log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryDump {
    /// The unit that holds its trailer: its pool offset, divided by the size of the pool's units.
    pub unit: u64,
    /// Offset in the page of its data.
    pub offset: u16,
    /// Length of its range.
    pub len_bytes: u16,
    /// Its range reads as zeros.
    pub zeros: bool,
    /// Unit of the header of its segment.
    pub segment: u64,
}

/// Options of a check or repair.
///
/// ```
/// assert!(ferrite_fs::FsckOptions::default().data(true).data);
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct FsckOptions {
    /// Also read all file data, where it carries checksums.
    pub data: bool,
}

impl FsckOptions {
    /// Whether to read all file data as well, where it carries checksums; by default not.
    #[must_use]
    pub fn data(mut self, data: bool) -> FsckOptions {
        self.data = data;
        self
    }
}

/// One fsck finding.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Phase that found it.
    pub phase: &'static str,
    /// The damage, with the names and numbers that it concerns.
    pub what: String,
}

/// Result of a check.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FsckReport {
    /// The findings; empty on a sound pool.
    pub findings: Vec<Finding>,
    /// There was more damage than `findings` lists, which holds a limited number.
    pub more: bool,
    /// Inodes in use.
    pub inodes: u64,
    /// Those of them that have no name: a program had them open, or was removing them. The next mount frees them.
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

/// One step of a repair.
#[derive(Debug, Clone, Serialize)]
pub struct Mended {
    /// Phase that found it.
    pub phase: &'static str,
    /// The damage, with the names and numbers that it concerns.
    pub what: String,
    /// The repair's action.
    pub action: &'static str,
    /// Content or names are lost, or may be wrong; false if the state before the damage is restored.
    pub loss: bool,
}

impl Mended {
    /// The finding, without the action.
    pub(crate) fn finding(&self) -> Finding {
        Finding {
            phase: self.phase,
            what: self.what.clone(),
        }
    }
}

/// Result of a repair.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RepairReport {
    /// The damage before, in the order of `mended`; empty if the pool was sound.
    pub findings: Vec<Finding>,
    /// All steps of the repair, in order.
    pub mended: Vec<Mended>,
    /// Names in `lost+found` of inodes whose content may be wrong.
    pub quarantined: Vec<String>,
    /// The state of the pool afterwards; findings that remain could not be repaired.
    pub after: FsckReport,
}

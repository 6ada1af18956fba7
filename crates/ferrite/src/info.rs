//! [`PoolInfo`]: layout and state of a pool, in plain numbers.
//!
//! Invariant: these types belong to the library, whatever the engine's own report becomes. They have no methods, and
//! only gain fields.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrite_fs::Engine;
use ferrite_vfs::volume::Volume;

use crate::pool::Mapping;

/// Layout and state of a pool, as [`Fs::info`](crate::Fs::info) reports them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PoolInfo {
    /// Identity, as 32 hexadecimal digits.
    pub uuid: String,
    /// Version of the format.
    pub format_version: u32,
    /// The medium of the pool, and the failures that its data survives there.
    pub medium: String,
    /// In words: which failures a completed operation survives.
    pub durability: String,
    /// The structure that finds the pages of files.
    pub mapping: Mapping,
    /// Whether file data carries checksums.
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
    /// Inodes in total.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Inodes in use that have no name: removed files that a program has open, or that are being removed.
    pub orphans: u64,
    /// Names in total.
    pub names: u64,
    /// Free names.
    pub names_free: u64,
    /// Entries that the mapping has space for.
    pub map_entries: u64,
    /// How many of them are free.
    pub map_entries_free: u64,
    /// Mapped pages.
    pub pages: u64,
    /// Pages that have a log.
    pub logged_pages: u64,
    /// Bytes of the logs' segments, including those that threads hold ready.
    pub log_bytes: u64,
    /// Blocks that contain those segments.
    pub log_blocks: u64,
    /// Blocks of pages and logs, divided by blocks of pages.
    pub space_amplification: f64,
    /// Page logs merged into their pages since the pool was opened.
    pub log_merges: LogMerges,
    /// Number of journal rings.
    pub rings: u32,
    /// Bytes of each ring.
    pub ring_bytes: u64,
    /// Whether the pool had been closed cleanly before.
    pub was_clean: bool,
    /// The pool was found marked as in use in another file: it may be a copy that was taken while the original was in
    /// use.
    pub may_be_live_copy: bool,
    /// The pool is frozen, so that it can be copied.
    pub frozen: bool,
    /// Journal records replayed when the pool was opened.
    pub replayed_records: u64,
    /// How often the pool has been opened so far.
    pub mounts: u64,
    /// The error after which the engine turned read-only, if it did.
    pub failed: Option<String>,
    /// Damage found when the pool was opened, one line each.
    pub damage: Vec<String>,
    /// Changes are refused, because it is unknown which blocks the damaged structures own.
    pub damage_stops_changes: bool,
    /// Damage met since, oldest first; the last hundred different findings.
    pub runtime_findings: Vec<RuntimeFinding>,
    /// How often damage was met in total.
    pub runtime_findings_total: u64,
    /// The last scrub that ran to completion since the pool was opened.
    pub last_scrub: Option<LastScrub>,
    /// Use of DRAM.
    pub dram: DramUse,
    /// Fences of this process since the pool was opened.
    pub fences: u64,
    /// Cache lines written back.
    pub lines_written_back: u64,
    /// Bytes stored past the cache.
    pub bytes_streamed: u64,
    /// Syncs of an ordinary file that were requested.
    pub file_syncs: u64,
}

/// Page logs merged into their pages, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogMerges {
    /// By writes, because the log was long or the page complete.
    pub writes: u64,
    /// By reads that had to walk too many entries.
    pub reads: u64,
    /// Because space was short.
    pub low_space: u64,
    /// Because the pool was idle.
    pub idle: u64,
}

/// A pool's use of DRAM, in bytes unless a field says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DramUse {
    /// Free map of the blocks.
    pub block_map: u64,
    /// The mapping's free map and bounds.
    pub mapping: u64,
    /// Free map of the inodes.
    pub inode_map: u64,
    /// Free map and bounds of the table of names.
    pub name_map: u64,
    /// Number of inodes in the cache.
    pub cached_inodes: u64,
    /// Bytes per cached inode.
    pub bytes_per_cached_inode: u64,
    /// Tables that find the cached inodes.
    pub inode_tables: u64,
    /// Journal bookkeeping, all rings.
    pub journal: u64,
    /// Page logs, and the list of pages that have logs.
    pub page_logs: u64,
    /// Lists of where sparse files have pages, for mappings that cannot list a file's pages.
    pub page_lists: u64,
    /// With `durability=fsync`: pages of the pool that were changed in memory and are not in the file yet.
    pub unsynced_pages: u64,
    /// Sum of all.
    pub total: u64,
}

/// Damage met while a pool was open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeFinding {
    /// The damage, with the names and numbers that it concerns.
    pub what: String,
    /// How often it was met.
    pub count: u64,
    /// When first, to the second.
    pub first: SystemTime,
    /// When last, to the second.
    pub last: SystemTime,
}

/// A scrub that ran to completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastScrub {
    /// When it ended, to the second.
    pub ended: SystemTime,
    /// Inodes in use.
    pub inodes: u64,
    /// Pages of data whose checksums were verified.
    pub pages: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Number of findings.
    pub findings: u64,
}

/// Layout and state of the pool behind `volume`, if it is one.
pub(crate) fn of(volume: &dyn Volume) -> Option<PoolInfo> {
    let found = volume.as_any().downcast_ref().map(Engine::info)?;
    Some(PoolInfo {
        uuid: found.uuid,
        format_version: found.format_version,
        medium: found.medium,
        durability: found.durability,
        mapping: found.mapping,
        data_checksum: found.data_checksum,
        size_bytes: found.size_bytes,
        block_bytes: found.block_bytes,
        blocks: found.blocks,
        blocks_free: found.blocks_free,
        blocks_reserved: found.blocks_reserved,
        blocks_pending: found.blocks_pending,
        inodes: found.inodes,
        inodes_free: found.inodes_free,
        orphans: found.orphans,
        names: found.names,
        names_free: found.names_free,
        map_entries: found.map_slots,
        map_entries_free: found.map_slots_free,
        pages: found.pages,
        logged_pages: found.logged_pages,
        log_bytes: found.log_bytes,
        log_blocks: found.log_blocks,
        space_amplification: found.space_amplification,
        log_merges: log_merges(found.merges),
        rings: found.rings,
        ring_bytes: found.ring_bytes,
        was_clean: found.was_clean,
        may_be_live_copy: found.may_be_live_copy,
        frozen: found.frozen,
        replayed_records: found.replayed_records,
        mounts: found.mounts,
        failed: found.failed,
        damage: found.damage,
        damage_stops_changes: found.damage_stops_changes,
        runtime_findings: found.runtime_findings.into_iter().map(runtime_finding).collect(),
        runtime_findings_total: found.runtime_findings_total,
        last_scrub: found.last_scrub.map(last_scrub),
        dram: dram_use(&found.dram),
        fences: found.fences,
        lines_written_back: found.lines_written_back,
        bytes_streamed: found.bytes_streamed,
        file_syncs: found.file_syncs,
    })
}

fn log_merges(merges: ferrite_fs::MergeCounts) -> LogMerges {
    LogMerges {
        writes: merges.write,
        reads: merges.read,
        low_space: merges.low_space,
        idle: merges.idle,
    }
}

fn dram_use(found: &ferrite_fs::DramUse) -> DramUse {
    DramUse {
        block_map: found.block_map,
        mapping: found.mapping,
        inode_map: found.inode_map,
        name_map: found.name_map,
        cached_inodes: found.cached_inodes,
        bytes_per_cached_inode: found.bytes_per_cached_inode,
        inode_tables: found.inode_tables,
        journal: found.journal,
        page_logs: found.page_logs,
        page_lists: found.page_lists,
        unsynced_pages: found.deferred_pages,
        total: found.total,
    }
}

fn runtime_finding(found: ferrite_fs::RuntimeFinding) -> RuntimeFinding {
    RuntimeFinding {
        what: found.what,
        count: found.count,
        first: at(found.first_s),
        last: at(found.last_s),
    }
}

fn last_scrub(found: ferrite_fs::LastScrub) -> LastScrub {
    LastScrub {
        ended: at(found.ended_s),
        inodes: found.inodes,
        pages: found.pages,
        bytes: found.bytes,
        findings: found.findings,
    }
}

/// A time in seconds since 1970.
fn at(seconds: i64) -> SystemTime {
    let after = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    UNIX_EPOCH.checked_add(after).unwrap_or(UNIX_EPOCH)
}

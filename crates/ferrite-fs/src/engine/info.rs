//! The data of `ferrite info` for a mounted pool.

use ferrite_map::Inum;
use ferrite_pm::{Durability, Medium};
use ferrite_vfs::QUOTAS_LISTED_MAX;

use crate::audit::boot::{StaleBoot, stale_boot};
use crate::cache::inodes::Usage;
use crate::cache::logged::Cause;
use crate::format::layout::{BLOCK_BYTES, CONTROL_BOOT, CONTROL_DEFERRED, DEFERRED_UNTIL_SYNC};
use crate::options::{DramUse, MergeCounts, PoolInfo};
use crate::pool::core::Core;

/// Gathers everything; reads the mapping table once.
pub(crate) fn collect(core: &Core) -> PoolInfo {
    let superblock = &core.superblock;
    let Pages { pages, at_home, logged } = Pages::count(core);
    let (pending, blocks_free) = core.journal.while_settled(|| {
        let pending = core.pending();
        (pending, core.alloc.free() + pending.blocks)
    });
    let log = core.log_space.usage();
    let names = core.names.counts();
    let slots = core.map.slots();
    let medium = core.region.medium();
    let counters = core.region.counters();
    let (runtime_findings, runtime_findings_total) = core.runtime_errors.findings();
    PoolInfo {
        uuid: format!("{:032x}", superblock.uuid),
        format_version: superblock.version,
        medium: medium.describe().to_string(),
        durability: durability(core, medium),
        mapping: superblock.mapping,
        data_checksum: superblock.has_data_checksums(),
        size_bytes: superblock.size_bytes,
        block_bytes: BLOCK_BYTES as u32,
        blocks: superblock.blocks,
        blocks_free,
        blocks_reserved: superblock.reserve_blocks,
        blocks_pending: pending.blocks,
        blocks_saved: core.shares.pages().saturating_sub(pending.shared_pages),
        inodes: superblock.inodes - 1,
        inodes_free: core.inode_map.len() - core.inode_map.count_used(),
        orphans: orphans(core),
        quotas: core.quotas.list(|id| u64::from(id.ino())),
        user_quotas: core.quotas.users(0).into_iter().take(QUOTAS_LISTED_MAX).collect(),
        names: names.total,
        names_free: names.total - names.used,
        map_slots: slots.total,
        // Trees report freed space as entries, but have no fixed number of entries.
        map_slots_free: (slots.free + pending.map_slots).min(slots.total),
        pages,
        logged_pages: logged,
        log_unit_bytes: superblock.unit_size.bytes(),
        log_bytes: log.used_bytes,
        log_blocks: log.blocks,
        space_amplification: (pages + log.blocks) as f64 / pages.max(1) as f64,
        merges: merges(core),
        pages_at_home_percent: match pages {
            0 => 100.0,
            pages => at_home as f64 * 100.0 / pages as f64,
        },
        rings: superblock.rings,
        ring_bytes: superblock.ring_bytes,
        was_clean: core.history.was_clean,
        may_be_live_copy: core.history.maybe_copied,
        frozen: core.journal.is_frozen(),
        replayed_records: core.history.replayed_records,
        mounts: core.history.mounts,
        is_look: core.options.is_look,
        failed: core.failure(),
        damage: core.quarantine.findings().to_vec(),
        damage_stops_changes: core.quarantine.stops_changes(),
        runtime_findings,
        runtime_findings_total,
        last_scrub: core.runtime_errors.last_scrub(),
        dram: dram(core),
        fences: counters.fences,
        lines_written_back: counters.lines_written_back,
        bytes_streamed: counters.bytes_streamed,
        file_syncs: counters.file_syncs,
    }
}

fn merges(core: &Core) -> MergeCounts {
    MergeCounts {
        write: core.merges.of(Cause::Write),
        read: core.merges.of(Cause::Read),
        low_space: core.merges.of(Cause::LowSpace),
        idle: core.merges.of(Cause::Idle),
    }
}

/// Totals of the mapping's entries.
#[derive(Default)]
struct Pages {
    pages: u64,
    at_home: u64,
    logged: u64,
}

impl Pages {
    /// Reads the mapping table, unless damage has it counted in another way.
    fn count(core: &Core) -> Self {
        let mut counts = Self::default();
        match core.quarantine.pages_counted() {
            Some(counted) => counts.pages = counted,
            None => core.map.for_each(&mut |entry| {
                counts.pages += 1;
                counts.logged += u64::from(entry.word.has_log());
                counts.at_home += u64::from(core.map.hashed_keys().is_some_and(|map| map.at_home(&entry)));
                true
            }),
        }
        counts
    }
}

/// Counted one by one, without locks: exact only while nothing is removed.
fn orphans(core: &Core) -> u64 {
    let in_use = core
        .superblock
        .inums(&core.region)
        .filter(|&ino| core.inode_map.is_set(u64::from(ino)));
    let is_orphan = |&ino: &Inum| {
        let inode = core.load(ino);
        inode.in_use() && inode.nlink() == 0
    };
    in_use.filter(is_orphan).count() as u64
}

/// The durability of a mounted pool. For a pool that is only examined, it is that of its last use, and nothing is
/// claimed if a mount would refuse the pool.
fn durability(core: &Core, medium: Medium) -> String {
    if let Some(why) = core.region.why_not_durable() {
        return format!("none, so a mount refuses the pool: {why}");
    }
    if stale_boot(&core.region) == Some(StaleBoot::PowerLost) {
        return format!(
            "not certain, so a mount refuses the pool: {}",
            StaleBoot::PowerLost.what()
        );
    }
    let was_process = core.options.read_only && core.region.load(CONTROL_BOOT) != 0;
    let was_deferred = core.options.read_only && core.region.load(CONTROL_DEFERRED) == DEFERRED_UNTIL_SYNC;
    if (core.region.defers_write_back() && !core.syncs_commits) || was_deferred {
        return "an operation that returned survives a killed process; a power loss only after fsync, unmount, or five \
                seconds, and then with all that was done before it (durability=fsync)"
            .into();
    }
    if (core.options.durability == Durability::Process && medium == Medium::File) || was_process {
        return "an operation that returned survives a killed process, not a power loss (durability=process)".into();
    }
    format!("an operation that returned survives {}", medium.survives())
}

fn dram(core: &Core) -> DramUse {
    let (block_map, mapping) = (
        core.alloc.dram_bytes() + core.shares.dram_bytes(),
        core.map.dram_bytes(),
    );
    let (inode_map, name_map) = (core.inode_map.dram_bytes(), core.names.dram_bytes());
    let inodes = core.inodes.usage();
    let journal = core.journal.dram_bytes();
    let page_logs = core.log_space.dram_bytes() + core.candidates.dram_bytes();
    let page_lists = core.mapped_ranges_budget.dram_bytes();
    let deferred_pages = core.region.deferred_bytes();
    DramUse {
        block_map,
        mapping,
        inode_map,
        name_map,
        cached_inodes: inodes.entries,
        bytes_per_cached_inode: Usage::ENTRY_BYTES,
        inode_tables: inodes.tables_bytes,
        journal,
        page_logs,
        page_lists,
        deferred_pages,
        total: block_map
            + mapping
            + inode_map
            + name_map
            + inodes.bytes()
            + journal
            + page_logs
            + page_lists
            + deferred_pages,
    }
}

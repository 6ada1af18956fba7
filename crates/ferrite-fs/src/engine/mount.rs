//! Mounting: from the bytes of a pool to a [`Core`] (docs/design.md, "Crash atomicity", recovery).
//!
//! Order: superblock, journal replay, then the free maps from the tables ([`crate::audit::load`]), then the operations
//! that a crash interrupted: inodes without names, intents. Recovery changes the medium only by replaying records and
//! by committing new ones, so a crash during recovery is handled like any other crash.
//!
//! Damage keeps a pool from being mounted only if it affects structures that all files need: superblocks, the journal's
//! checkpoint, the root directory. Otherwise [`crate::health::quarantine`] records the affected files, and the pool may
//! be read-only until it is repaired.
//!
//! A read-only mount works on a private mapping: replay writes to it, the pool does not change, and interrupted
//! operations stay incomplete.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::ShardedLock;
use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_checks::ranked::Mutex;
use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{FileMap, Inum};
use ferrite_pm::{Access, Durability, Medium, PmError, Region};
use ferrite_vfs::{FileKind, FsError};

use crate::audit::boot::StaleBoot;
use crate::audit::boot::boot_id;
use crate::audit::boot::stale_boot;
use crate::audit::load::Tables;
use crate::audit::owner::{MAYBE_COPIED, may_be_live_copy, owner_mark};
use crate::audit::rewrite;
use crate::audit::rules::superblock::copies;
use crate::cache::bindings::Bindings;
use crate::cache::inodes::InodeCache;
use crate::cache::logged::{Candidates, Merges};
use crate::cache::mapped_ranges::Budget;
use crate::error::EngineError;
use crate::file::{bound, truncate};
use crate::format::inode::{Inode, ROOT};
use crate::format::layout::{
    CONTROL_BOOT, CONTROL_DEFERRED, CONTROL_MOUNTS, CONTROL_OWNER, CONTROL_STATE, DEFERRED_STRICTLY,
    DEFERRED_UNTIL_SYNC, STATE_CLEAN, STATE_IN_USE, Superblock,
};
use crate::health::quarantine::Quarantine;
use crate::health::runtime_errors::RuntimeErrors;
use crate::journal::replay::{Ended, Losses};
use crate::journal::{Journal, replay};
use crate::options::MountOptions;
use crate::pool::core::{Core, History};
use crate::pool::slots::Slots;
use crate::space::blocks::BlockAlloc;
use crate::space::names::NameTable;
use crate::space::quotas::Quotas;
use crate::space::segments::LogSpace;
use crate::space::shares::Shares;
use crate::tree::{quota_counts, remove};

/// Prefix of findings about lost records.
const JOURNAL: &str = "journal: ";

/// The state of the pool's last use on the medium, and this use's number.
struct LastUse {
    /// The boot id with which this mount marks the pool; 0 except in `process` mode.
    boot: u64,
    losses: Losses,
    ended: Ended,
    maybe_copied: bool,
    mounts: u64,
}

/// The DRAM state that a mount builds from the tables on the medium.
struct Loaded {
    alloc: BlockAlloc,
    shares: Shares,
    inode_map: AtomicBitmap,
    map: Box<dyn FileMap>,
    names: NameTable,
    log_space: LogSpace,
    candidates: Candidates,
    quarantine: Quarantine,
}

/// Opens the pool; afterwards [`finish_interrupted`] must run before the pool is used.
pub(crate) fn mount(mut region: Region, options: &MountOptions) -> Result<Core, EngineError> {
    let mut options = *options;
    options.read_only |= region.access() == Access::ReadOnlyPrivate;
    let superblock = Superblock::find(&region)?;
    if !options.read_only && superblock.unknown_ro_compat() != 0 {
        return Err(EngineError::ReadOnlyFeatures(superblock.unknown_ro_compat()));
    }
    let last_use = take_possession(&mut region, &options)?;
    // Here and below: bytes that cannot be read look like zeros, and are reported like any other damage.
    let recovered = rewrite::finish(&region, &superblock)
        .and_then(|()| replay::replay(&region, &superblock, last_use.losses, last_use.ended));
    region.check()?;
    let replayed = recovered?;
    // As long as records are kept that cannot all be replayed, the next to open the pool must understand them alike.
    let keeps_records = last_use.losses == Losses::Keep && !replayed.lost.is_empty();
    if !options.read_only && !keeps_records {
        hold_stores(&mut region, &superblock, &options)?;
    }
    let region = Arc::new(region);
    let loaded = Loaded::read(&region, &superblock, &replayed.lost, &last_use)?;
    let history = History {
        was_clean: last_use.ended == Ended::Cleanly,
        replayed_records: replayed.records,
        mounts: match options.is_look {
            true => last_use.mounts.wrapping_sub(1),
            false => last_use.mounts,
        },
        boot: last_use.boot,
        maybe_copied: last_use.maybe_copied,
    };
    Ok(core(
        region,
        superblock,
        options,
        loaded,
        (history, replayed.checkpoint),
    ))
}

/// Learns how the last use ended, and marks the pool as in use unless the mount is read-only. A crash in here leaves
/// the pool as it was or marked as in use, which only makes the next mount search for records.
fn take_possession(region: &mut Region, options: &MountOptions) -> Result<LastUse, EngineError> {
    let boot = check_boot(region, options)?;
    // If the kernel decided which pages were written back, records may be missing that survived the death of their
    // process; the user has accepted that.
    let losses = match stale_boot(region) {
        Some(StaleBoot::PowerLost) => Losses::Accept,
        _ => Losses::Keep,
    };
    let ended = Ended::of(region);
    let maybe_copied = may_be_live_copy(region);
    if maybe_copied {
        tracing::warn!("{MAYBE_COPIED}");
    }
    let mounts = region.load(CONTROL_MOUNTS).wrapping_add(1);
    if !options.read_only {
        if region.load(CONTROL_BOOT) != 0 {
            // Syncs the pages that a killed process left to the kernel, before clearing the word that would reveal a
            // power loss.
            region.sync()?;
        }
        // Before anything else changes, so that a pool in use is never marked clean.
        mark_in_use(region, mounts, boot)?;
    }
    if boot != 0 {
        // Not before the fence above, so that the boot id is durable before anything that a power loss may take.
        region.set_durability(Durability::Process)?;
    }
    Ok(LastUse {
        boot,
        losses,
        ended,
        maybe_copied,
        mounts,
    })
}

impl Loaded {
    /// Reads the tables after replay; `lost` are findings about records that could not be replayed.
    fn read(
        region: &Arc<Region>,
        superblock: &Superblock,
        lost: &[String],
        last_use: &LastUse,
    ) -> Result<Self, EngineError> {
        let mut loaded = Self {
            alloc: BlockAlloc::new(superblock),
            shares: Shares::new(Arc::clone(region), superblock),
            inode_map: AtomicBitmap::new(superblock.inodes),
            map: superblock.mapping.open(Arc::clone(region), superblock.map_geometry()),
            names: NameTable::new(Arc::clone(region), superblock),
            log_space: LogSpace::new(superblock.unit_size),
            candidates: Candidates::new(),
            quarantine: Quarantine::default(),
        };
        let tables = Tables {
            region,
            superblock,
            alloc: &loaded.alloc,
            shares: &loaded.shares,
            inode_map: &loaded.inode_map,
            map: loaded.map.as_ref(),
            names: &loaded.names,
            log_space: &loaded.log_space,
            candidates: &loaded.candidates,
        };
        let quarantine = tables.load();
        region.check()?;
        loaded.quarantine = quarantine?;
        for wrong in copies(region, superblock) {
            loaded.quarantine.note(wrong.told());
        }
        for what in lost {
            let what = format!("{JOURNAL}{what}");
            match last_use.losses {
                // Blocks that look free may belong to an operation that is lost.
                Losses::Keep => loaded.quarantine.stop(what),
                Losses::Accept => loaded.quarantine.note(what),
            }
        }
        check_root(region, superblock, &loaded.quarantine).map_err(|error| match error {
            EngineError::Damaged(what) if last_use.maybe_copied => {
                EngineError::Damaged(format!("{what}; {MAYBE_COPIED}"))
            }
            error => error,
        })?;
        loaded.alloc.open();
        Ok(loaded)
    }
}

/// Puts the parts together; `mark` is the journal's after replay.
fn core(
    region: Arc<Region>,
    superblock: Superblock,
    options: MountOptions,
    loaded: Loaded,
    (history, checkpoint): (History, u64),
) -> Core {
    let cursors = u64::from(superblock.rings);
    Core {
        journal: Journal::new(Arc::clone(&region), &superblock, checkpoint),
        inodes: InodeCache::new(checkpoint),
        mapped_ranges_budget: Budget::new(superblock.size_bytes),
        keeps_mapped_ranges: loaded.map.walk_worth().is_some(),
        inode_cursors: (0..cursors)
            .map(|n| CachePadded::new(AtomicU64::new(superblock.inodes * n / cursors)))
            .collect(),
        // On an ordinary file a sync costs far more than a checksum; in memory two fences cost less.
        syncs_commits: region.defers_write_back() && options.durability == Durability::Strict,
        data_in_checksum: region.medium() == Medium::File || region.defers_write_back(),
        changes: ShardedLock::default(),
        rename: Mutex::new(()),
        failed: OnceLock::new(),
        closed: AtomicBool::new(false),
        map_moves: AtomicU64::new(0),
        history,
        slots: Slots::new(superblock.dedup_slots),
        bindings: Bindings::default(),
        unnamed: CachePadded::default(),
        flusher: OnceLock::new(),
        kept_orphans: Mutex::default(),
        region,
        superblock,
        options,
        alloc: loaded.alloc,
        shares: loaded.shares,
        quotas: Quotas::default(),
        walks_snapshots: AtomicBool::new(false),
        map: loaded.map,
        names: loaded.names,
        inode_map: loaded.inode_map,
        log_space: loaded.log_space,
        candidates: loaded.candidates,
        merges: Merges::default(),
        slabs_left: AtomicU64::new(0),
        quarantine: loaded.quarantine,
        runtime_errors: RuntimeErrors::default(),
    }
}

/// Marks the pool on the medium as in use, by which boot and in which file. Durable when it returns.
pub(crate) fn mark_in_use(region: &Region, mounts: u64, boot: u64) -> Result<(), PmError> {
    for (offset, value) in [
        (CONTROL_STATE, STATE_IN_USE),
        (CONTROL_MOUNTS, mounts),
        (CONTROL_BOOT, boot),
        (CONTROL_OWNER, owner_mark(region, mounts)),
    ] {
        region.store(offset, value);
        region.write_back(offset, 8);
    }
    region.sync()
}

/// Marks the pool as not in use, once everything else is durable. Durable when it returns.
pub(crate) fn mark_clean(region: &Region) -> Result<(), PmError> {
    for (offset, value) in [(CONTROL_BOOT, 0), (CONTROL_OWNER, 0), (CONTROL_STATE, STATE_CLEAN)] {
        region.store(offset, value);
        region.write_back(offset, 8);
    }
    region.sync()
}

/// Sets, durably and before anything is committed, how recovery is to interpret the journal from here on, and begins to
/// defer write-back if the options say so.
fn hold_stores(region: &mut Region, superblock: &Superblock, options: &MountOptions) -> Result<(), EngineError> {
    let (is_file, has_links) = (region.medium() == Medium::File, superblock.has_linked_records());
    let deferred = match options.durability {
        Durability::OnSync if is_file || region.medium() == Medium::Anonymous => DEFERRED_UNTIL_SYNC,
        // Each commit syncs then. In older pools it does so with words in place.
        Durability::Strict if is_file && has_links => DEFERRED_STRICTLY,
        _ => 0,
    };
    if deferred == DEFERRED_UNTIL_SYNC && !has_links {
        return Err(EngineError::Options(
            "durability=fsync needs a pool whose records name each other, and this one is older; copy its files to a \
             new pool, or use durability=strict"
                .into(),
        ));
    }
    if region.load(CONTROL_DEFERRED) != deferred {
        region.store(CONTROL_DEFERRED, deferred);
        region.write_back(CONTROL_DEFERRED, 8);
        region.sync()?;
    }
    if deferred != 0 {
        region.set_durability(Durability::OnSync)?;
    }
    Ok(())
}

/// Without a root directory nothing can be found, so there is nothing to mount.
fn check_root(region: &Region, superblock: &Superblock, quarantine: &Quarantine) -> Result<(), EngineError> {
    let root = Inode::load(region, superblock.inode_offset(ROOT));
    if root.kind() != Some(FileKind::Directory) || !root.is_sound(ROOT) {
        let what = "the root directory's inode is damaged".to_string();
        let cause = quarantine
            .findings()
            .iter()
            .find(|finding| finding.starts_with(JOURNAL));
        return Err(EngineError::Damaged(match cause {
            Some(cause) => format!("{what}; {cause}"),
            None => what,
        }));
    }
    quarantine.check_inode(ROOT).map_err(|error| {
        let first = quarantine.findings().first().cloned();
        EngineError::Damaged(format!(
            "the root directory: {}",
            first.unwrap_or_else(|| error.to_string())
        ))
    })
}

/// Refuses a pool that was hit by a power loss; returns the boot id to mark the pool with, 0 except in `process` mode.
fn check_boot(region: &Region, options: &MountOptions) -> Result<u64, EngineError> {
    let this_boot = boot_id();
    let mark = region.load(CONTROL_BOOT);
    if mark != 0 && mark != this_boot && !options.accept_power_loss {
        return Err(EngineError::PowerLost);
    }
    let process = options.durability == Durability::Process && region.medium() == Medium::File;
    Ok(if process { this_boot } else { 0 })
}

/// Frees inodes that have no name, and carries out intents, as the interrupted operations would have done. Operations
/// that damage keeps unfinished wait for a repair. Then counts for quotas.
pub(crate) fn finish_interrupted(core: &mut Core) -> Result<(), EngineError> {
    finish_operations(core)?;
    quota_counts::load(core);
    Ok(())
}

fn finish_operations(core: &mut Core) -> Result<(), EngineError> {
    if core.is_read_only() {
        let bound = core.superblock.inums(&core.region).filter(|&ino| {
            let inode = core.load(ino);
            inode.in_use() && inode.is_bound()
        });
        bound.for_each(|ino| core.bindings.note_left(ino));
        return Ok(());
    }
    core.shares.unmark_unshared();
    let stop = |error: FsError| EngineError::Damaged(error.to_string());
    for ino in core.superblock.inums(&core.region) {
        if !core.inode_map.is_set(u64::from(ino)) {
            continue;
        }
        match finish_inode(core, ino) {
            Err(error @ (FsError::Damaged(_) | FsError::Io(_) | FsError::NoSpace(_)))
                if core.failed.get().is_none() =>
            {
                core.quarantine
                    .stop(format!("inode {ino} cannot be freed or truncated: {error}"));
                return Ok(());
            }
            other => other.map_err(stop)?,
        }
    }
    core.reclaim().map_err(stop)
}

fn finish_inode(core: &Core, ino: Inum) -> ferrite_vfs::Result<()> {
    let stored = core.load(ino);
    // A damaged inode is left alone; it has been reported.
    let is_done = stored.nlink() > 0 && stored.truncate_end() == 0 && !stored.is_bound();
    if !stored.in_use() || is_done || !stored.is_sound(ino) {
        return Ok(());
    }
    let mem = core.inodes.get(ino);
    if stored.is_bound() && (stored.nlink() > 0 || core.options.keep_orphans) {
        core.bindings.note_left(ino);
        if !is_seeded(Bug::TailKept) {
            bound::zero_tail(core, &mem, &stored)?;
        }
        if stored.nlink() > 0 && stored.truncate_end() == 0 {
            return Ok(());
        }
    }
    if stored.nlink() == 0 {
        if core.options.keep_orphans {
            core.kept_orphans.lock().push(ino);
            core.note_unnamed();
            return Ok(());
        }
        if is_seeded(Bug::OrphansForgotten) {
            return Ok(());
        }
        remove::free_orphan(core, &mem)
    } else {
        let _lock = mem.write();
        let mut inode = stored;
        truncate::resume(core, &mem, &mut inode)
    }
}

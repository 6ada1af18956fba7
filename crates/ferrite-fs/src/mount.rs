//! Mounting: from the bytes of a pool to a [`Core`] (DESIGN §5, recovery).
//!
//! Order: superblock, journal replay, then the free maps from the tables (inodes on one thread, mapping on the
//! others), then the work a crash interrupted: inodes without names, intents. Recovery changes the medium only by
//! replaying records and by committing new ones, so a crash in it is one more crash to recover from.
//!
//! A read-only mount works on a private mapping: replay writes to it, the pool does not change, and what a crash
//! interrupted stays as it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{FileMap, MapEntry};
use ferrite_pm::{Access, Durability, Medium, Region};
use ferrite_vfs::{FileKind, ROOT_INO};
use parking_lot::Mutex;

use crate::alloc::BlockAlloc;
use crate::checksum::{crc32c, crc32c_append};
use crate::core::{Core, History};
use crate::error::EngineError;
use crate::file::cut;
use crate::icache::InodeCache;
use crate::inode::Inode;
use crate::journal::{Journal, replay};
use crate::layout::{CONTROL_BOOT, CONTROL_MOUNTS, CONTROL_STATE, STATE_CLEAN, STATE_IN_USE, Superblock};
use crate::mend;
use crate::names::NameTable;
use crate::ops;
use crate::options::MountOptions;
use crate::pagelog::fold::{Candidates, Folds};
use crate::pagelog::{self, space::LogSpace};
use crate::planted::{Flaw, planted};
use crate::sums;

/// Threads that read the tables.
const LOAD_THREADS: usize = 2;
/// Tables of smaller pools are read before a thread has started.
const SMALL_POOL_BLOCKS: u64 = 16 << 10;

/// What the tables hold besides what is in use.
#[derive(Default)]
struct Scan {
    xattr_blocks: Vec<(u32, u32)>,
    /// Pages that have logs.
    logged: Vec<MapEntry>,
}

/// Opens the pool; afterwards [`finish_interrupted`] must run before anybody else uses it.
pub(crate) fn mount(mut region: Region, options: &MountOptions) -> Result<Core, EngineError> {
    let mut options = *options;
    options.read_only |= region.access() == Access::ReadOnlyPrivate;
    let superblock = Superblock::find(&region)?;
    if !options.read_only && superblock.unknown_ro_compat() != 0 {
        return Err(EngineError::ReadOnlyFeatures(superblock.unknown_ro_compat()));
    }
    let boot = check_boot(&mut region, &options)?;
    let was_clean = region.load(CONTROL_STATE) == STATE_CLEAN;
    let mounts = region.load(CONTROL_MOUNTS).wrapping_add(1);
    if !options.read_only {
        // Before anything else changes, so that a pool in use never says it is clean.
        for (offset, value) in [
            (CONTROL_STATE, STATE_IN_USE),
            (CONTROL_MOUNTS, mounts),
            (CONTROL_BOOT, boot),
        ] {
            region.store(offset, value);
            region.write_back(offset, 8);
        }
        region.fence()?;
    }
    mend::finish(&region, &superblock)?;
    let replayed = replay::replay(&region, &superblock)?;
    let region = Arc::new(region);
    let alloc = BlockAlloc::new(&superblock);
    let inode_map = AtomicBitmap::new(superblock.inodes);
    let map = superblock.mapping.open(Arc::clone(&region), superblock.map_geometry());
    let names = NameTable::new(Arc::clone(&region), &superblock);
    let scan = load(&region, &superblock, &alloc, &inode_map, map.as_ref(), &names)?;
    for &(ino, block) in &scan.xattr_blocks {
        if !superblock.is_data_block(block) || !alloc.set_used(block) {
            return Err(EngineError::Damaged(format!(
                "inode {ino}: its extended attributes lie in block {block}, which is no data block or another's"
            )));
        }
    }
    let root = Inode::load(&region, superblock.inode_offset(ROOT_INO as u32));
    if root.kind() != Some(FileKind::Directory) || !root.is_sound(ROOT_INO as u32) {
        return Err(EngineError::Damaged("the root directory's inode is damaged".into()));
    }
    let cursors = u64::from(superblock.rings);
    let core = Core {
        journal: Journal::new(Arc::clone(&region), &superblock, replayed.mark),
        inodes: InodeCache::new(replayed.mark),
        inode_cursors: (0..cursors)
            .map(|n| CachePadded::new(AtomicU64::new(superblock.inodes * n / cursors)))
            .collect(),
        // On an ordinary file a sync costs far more than a checksum; on memory two fences cost less.
        data_in_checksum: region.medium() == Medium::File,
        rename: Mutex::new(()),
        failed: OnceLock::new(),
        closed: AtomicBool::new(false),
        history: History {
            was_clean,
            replayed_records: replayed.records,
            mounts,
        },
        region,
        superblock,
        options,
        alloc,
        map,
        names,
        inode_map,
        log_space: LogSpace::new(),
        candidates: Candidates::new(),
        folds: Folds::default(),
    };
    load_logs(&core, &scan.logged)?;
    core.alloc.open();
    Ok(core)
}

/// Counts up the segments of the pages that have logs, and lists those pages for the cleaner.
fn load_logs(core: &Core, logged: &[MapEntry]) -> Result<(), EngineError> {
    for entry in logged {
        let page = (entry.ino, entry.lblk);
        let damaged = |what: String| EngineError::Damaged(format!("{}: {what}", sums::place(page)));
        let mut wrong = None;
        pagelog::scan::entries(core.media(), page, entry.word, &mut |found| {
            if found.trailer.is_first() {
                let unit = found.header_unit();
                if let Err(what) = core
                    .log_space
                    .set_used(&core.alloc, unit, found.trailer.segment_units())
                {
                    wrong.get_or_insert(format!("its log has a segment at unit {unit}, {what}"));
                }
            }
            Ok(true)
        })
        .map_err(|error| EngineError::Damaged(error.to_string()))?;
        if let Some(wrong) = wrong {
            return Err(damaged(wrong));
        }
        core.candidates.add(page);
    }
    core.log_space.open();
    Ok(())
}

/// Applies the durability mode; returns the mark that says who uses the pool in `process` mode.
fn check_boot(region: &mut Region, options: &MountOptions) -> Result<u64, EngineError> {
    let this_boot = boot_id();
    let mark = region.load(CONTROL_BOOT);
    if mark != 0 && mark != this_boot && !options.accept_power_loss {
        return Err(EngineError::PowerLost);
    }
    let process = options.process_durability && region.medium() == Medium::File;
    region.set_durability(if process {
        Durability::Process
    } else {
        Durability::Strict
    });
    Ok(if process { this_boot } else { 0 })
}

/// A number that differs from boot to boot, never 0.
fn boot_id() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u64::from(crc32c(&id)) << 32 | u64::from(crc32c_append(0x5eed, &id)) | 1
}

fn load(
    region: &Region,
    superblock: &Superblock,
    alloc: &BlockAlloc,
    inode_map: &AtomicBitmap,
    map: &dyn FileMap,
    names: &NameTable,
) -> Result<Scan, EngineError> {
    let twice = AtomicU64::new(0);
    let logged = Mutex::new(Vec::new());
    let visit = |entry: MapEntry| {
        let page = entry.word.page();
        if page != 0 && !alloc.set_used(page) {
            twice.store(u64::from(page), Ordering::Relaxed);
        }
        if pagelog::has_log(entry.word) {
            logged.lock().push(entry);
        }
    };
    let inodes = || {
        names.load();
        scan_inodes(region, superblock, inode_map)
    };
    let (mapped, scan) = if superblock.blocks < SMALL_POOL_BLOCKS {
        (map.load(1, &visit), inodes())
    } else {
        std::thread::scope(|scope| {
            let inodes = scope.spawn(inodes);
            let mapped = map.load(LOAD_THREADS, &visit);
            let scan = inodes.join();
            scan.map(|scan| (mapped, scan))
                .map_err(|_| EngineError::Damaged("the inode table could not be read".into()))
        })?
    };
    mapped.map_err(EngineError::from)?;
    map.for_each_node(&mut |block, _| {
        if !alloc.set_used(block) {
            twice.store(u64::from(block), Ordering::Relaxed);
        }
    });
    match twice.into_inner() {
        0 => Ok(Scan {
            logged: logged.into_inner(),
            ..scan
        }),
        block => Err(EngineError::Damaged(format!("block {block} has two owners"))),
    }
}

fn scan_inodes(region: &Region, superblock: &Superblock, inode_map: &AtomicBitmap) -> Scan {
    let mut scan = Scan::default();
    inode_map.set(0);
    for ino in 1..superblock.inodes as u32 {
        // One word decides for the many that are free.
        let offset = superblock.inode_offset(ino);
        if region.load(offset + 40) as u32 == 0 {
            continue;
        }
        inode_map.set(u64::from(ino));
        let inode = Inode::load(region, offset);
        if inode.xattr_block() != 0 {
            scan.xattr_blocks.push((ino, inode.xattr_block()));
        }
    }
    scan
}

/// Frees inodes that have no name, and carries out intents, as the operations that a crash interrupted would have.
pub(crate) fn finish_interrupted(core: &Core) -> Result<(), EngineError> {
    if core.options.read_only {
        return Ok(());
    }
    let stop = |error: ferrite_vfs::FsError| EngineError::Damaged(error.to_string());
    for ino in 1..core.superblock.inodes as u32 {
        if !core.inode_map.is_set(u64::from(ino)) {
            continue;
        }
        let stored = core.load(ino);
        if !stored.in_use() || (stored.nlink() > 0 && stored.cut_end() == 0) {
            continue;
        }
        if !stored.is_sound(ino) {
            return Err(EngineError::Damaged(format!("inode {ino}: wrong checksum")));
        }
        let mem = core.inodes.get(ino);
        if stored.nlink() == 0 {
            if planted(Flaw::OrphansForgotten) {
                continue;
            }
            ops::free_orphan(core, &mem).map_err(stop)?;
        } else {
            let _lock = mem.write();
            let mut inode = stored;
            cut::finish(core, &mem, &mut inode).map_err(stop)?;
        }
    }
    core.reclaim().map_err(stop)
}

//! Floor 6, retries of operations that find no space: they reclaim space that others have freed, merge logs, have the
//! mapping move its entries, and retry.
//!
//! Contents: [`with_space`] and [`with_map_space`], which run an operation again as long as that may help. An
//! operation is a closure that begins and commits its own transaction, so that each try starts from scratch.

use std::sync::atomic::Ordering;

use ferrite_map::MapError;
use ferrite_vfs::{FsError, Result, SpaceOf};

use crate::cache::logged::Cause;
use crate::format::layout::BLOCK_BYTES;
use crate::page::merge::merge_some;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::Tx;

/// Most pages whose logs an operation merges when it finds no space.
const MERGES_FOR_SPACE: usize = 8192;
/// Pages merged before it checks whether that was enough, and sorts logs by length again.
const MERGES_AT_A_TIME: usize = 1024;
/// Rounds of reclaiming and retrying before an operation fails for lack of space.
pub(crate) const SPACE_TRIES: usize = 3;
/// Most moves of the mapping's entries that one operation waits for.
const MOVES_MAX: usize = 64;

/// How many blocks an operation may lack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// With fewer, it is certain to fail.
    pub(crate) least: u64,
    /// More would not help it.
    pub(crate) most: u64,
}

impl Need {
    /// A page, a directory block, some nodes of a tree.
    pub(crate) const FEW: Need = Need { least: 0, most: 8 };

    /// The need of a write of `len_bytes`.
    pub(crate) fn pages(len_bytes: usize) -> Need {
        Need {
            least: 0,
            most: len_bytes as u64 / BLOCK_BYTES + Need::FEW.most,
        }
    }
}

/// Runs `operation`. If it runs out of a resource that earlier operations have freed, or that logs hold, reclaims that
/// and retries. So `ENOSPC` means that the pool is really full (docs/design.md, "Crash atomicity").
///
/// The remedy depends on the missing resource, since each has a cost for other operations: blocks and entries of the
/// mapping come back with the checkpoint, merges free only blocks, and inodes, names and space for attributes never
/// wait.
pub(crate) fn with_space<T>(core: &Core, need: Need, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = 0;
    loop {
        match with_map_space(core, &mut operation) {
            Err(FsError::NoSpace(of)) if tries < SPACE_TRIES => {
                let is_worth_a_try = match of {
                    SpaceOf::Blocks if is_hopeless(core, need) => false,
                    SpaceOf::MapEntries if tries == 0 => reclaim_waiting(core, of).map(|()| true)?,
                    SpaceOf::Blocks => {
                        reclaim_waiting(core, of)?;
                        if tries > 0 {
                            merge_for(core, need)?;
                        }
                        // Others may have taken the free blocks, and freed as many since.
                        true
                    }
                    SpaceOf::MapEntries
                    | SpaceOf::Inodes
                    | SpaceOf::Names
                    | SpaceOf::Attributes
                    | SpaceOf::RecordLocks => false,
                };
                if !is_worth_a_try {
                    return Err(FsError::NoSpace(of));
                }
                tries += 1;
            }
            other => return other,
        }
    }
}

/// Whether even everything that can be reclaimed would not be enough.
fn is_hopeless(core: &Core, need: Need) -> bool {
    let in_logs = || core.log_space.usage().blocks;
    let left = || core.alloc.free() + core.pending().blocks + in_logs();
    need.least > 0 && need.least > core.journal.while_settled(left)
}

/// Makes resources that wait for the checkpoint available again. If nothing that waits would help, the checkpoint
/// stays: moving it writes back the lines of all threads. Waits for a thread that is just releasing resources.
fn reclaim_waiting(core: &Core, of: SpaceOf) -> Result<()> {
    let pending = core.pending();
    let blocks = pending.blocks + core.log_space.returning();
    let helps = match of {
        SpaceOf::MapEntries => pending.map_slots > 0,
        // When the pages that shared their blocks are gone, the last ones have them alone.
        _ => pending.shared_pages > 0 || blocks > 0 && core.alloc.is_helped_by(blocks),
    };
    if helps { core.reclaim() } else { core.relieve() }
}

/// Merges logs until there are as many blocks as `need` says, or merging gives no more.
fn merge_for(core: &Core, need: Need) -> Result<()> {
    core.log_space.empty_purses(&core.alloc);
    let available = core.alloc.available();
    let slabs = core.log_space.usage().blocks;
    // A block comes back only when all of its segments do, so a merge need not free one. If all merges freed nothing,
    // the next ones will not either, until logs have taken more.
    let left = core.slabs_left.fetch_min(slabs, Ordering::Relaxed).min(slabs);
    if available >= need.most || slabs <= left {
        return Ok(());
    }
    let mut enough = || {
        let reclaimed = core.reclaim();
        core.log_space.empty_purses(&core.alloc);
        reclaimed.is_err() || core.alloc.available() >= need.most
    };
    for _ in 0..MERGES_FOR_SPACE / MERGES_AT_A_TIME {
        // A merge that fails now is no reason to fail.
        let merged = merge_some(core, MERGES_AT_A_TIME, Cause::LowSpace, &mut enough).unwrap_or(0);
        if enough() || merged == 0 {
            break;
        }
    }
    core.check_writable()?;
    if core.alloc.available() < need.most {
        core.slabs_left.store(core.log_space.usage().blocks, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs `operation`. If the mapping has no entry within reach, has it move some, and retries. The caller may hold locks
/// of inodes, but no transaction.
pub(crate) fn with_map_space<T>(core: &Core, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    let mut moves = 0;
    loop {
        let before = core.map_moves.load(Ordering::Relaxed);
        // Another thread's moves help as much as ours, and may leave us nothing to do.
        let have_moved = || Ok(make_space(core)? || core.map_moves.load(Ordering::Relaxed) != before);
        match operation() {
            Err(FsError::NoSpace(SpaceOf::MapEntries)) if moves < MOVES_MAX && have_moved()? => {
                // The places that the move left are free once the checkpoint has passed it.
                core.reclaim()?;
                moves += 1;
            }
            other => {
                if other.is_ok() && core.map.wants_space() {
                    // The operation is complete, whatever the outcome of this. It is not left to the end of an
                    // operation of many records, because a table that grows must do so before it is full.
                    let _ = make_space(core);
                } else if other.is_ok() && core.map.wants_reclaim() {
                    // The same holds for this.
                    let _ = core.reclaim();
                }
                return other;
            }
        }
    }
}

/// Moves entries of the mapping, as far as it requests that; true if it moved any. Waits for running transactions to
/// end. A crash leaves each move whole or not done at all, like any record.
fn make_space(core: &Core) -> Result<bool> {
    let Some(move_lock) = core.map.move_lock() else {
        return Ok(false);
    };
    let mut moved = false;
    for _ in 0..MOVES_MAX {
        let moving = move_lock.lock_exclusive();
        let mut tx = Tx::moving(core, &moving);
        match core.map.make_space(&mut tx) {
            Ok(true) => tx.commit_move()?,
            Ok(false) => break,
            // Moves need free places, and many threads' moves may have left most of them to the checkpoint.
            Err(MapError::TableFull) if core.pending().map_slots > 0 => {
                drop((tx, moving));
                core.reclaim()?;
                continue;
            }
            // If this has no effect, the operation itself reports the lack of space.
            Err(MapError::NoBlock | MapError::TableFull) => break,
            Err(error) => return Err(map_error(error)),
        }
        moved = true;
        core.map_moves.fetch_add(1, Ordering::Relaxed);
        if !core.map.wants_space() {
            break;
        }
        // Places that a move left count as used until the checkpoint has passed: without this, the table would keep
        // growing.
        drop(moving);
        core.reclaim()?;
    }
    Ok(moved)
}

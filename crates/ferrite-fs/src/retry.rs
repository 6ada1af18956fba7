//! Floor 6, what an operation does that finds no room: gets back what others have freed, folds logs, has the mapping
//! move its entries, and tries again.
//!
//! What lives here: [`with_space`] and [`with_room`], which run an operation as often as that is of use. An operation
//! is a closure that begins and commits its own transaction, so that each try starts from nothing.

use std::sync::atomic::Ordering;

use ferrite_map::MapError;
use ferrite_vfs::{FsError, Result, SpaceOf};

use crate::cache::logged::Cause;
use crate::format::layout::BLOCK_BYTES;
use crate::page::fold::fold_some;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::Tx;

/// Pages whose logs an operation folds at most when it finds no space.
const FOLDS_FOR_SPACE: usize = 8192;
/// The same before it looks whether that was enough, and sorts logs by length again.
const FOLDS_AT_A_TIME: usize = 1024;
/// Reclaim-and-retry rounds before space is said to be out.
pub(crate) const SPACE_TRIES: usize = 3;
/// Moves of the mapping's entries that one operation waits for.
const MOVES_MAX: usize = 64;

/// Blocks that an operation may be out of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// With fewer it is certain to fail.
    pub(crate) least: u64,
    /// More are of no use to it.
    pub(crate) most: u64,
}

impl Need {
    /// A page, a directory's block, some nodes of a tree.
    pub(crate) const FEW: Need = Need { least: 0, most: 8 };

    /// What writing so many bytes may take.
    pub(crate) fn pages(len_bytes: usize) -> Need {
        Need {
            least: 0,
            most: len_bytes as u64 / BLOCK_BYTES + Need::FEW.most,
        }
    }
}

/// Runs `operation`; if it runs out of something that earlier operations have freed, or that logs hold, gets that and
/// tries again. So `ENOSPC` comes only when there really is none (docs/design.md, "Crash atomicity"). What it is out of
/// decides what is done, since all of it costs others something: blocks and entries of the mapping come back with the
/// mark, folds give blocks only, and inodes, names and room for attributes never wait.
pub(crate) fn with_space<T>(core: &Core, need: Need, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = 0;
    loop {
        match with_room(core, &mut operation) {
            Err(FsError::NoSpace(of)) if tries < SPACE_TRIES => {
                let is_worth_a_try = match of {
                    SpaceOf::Blocks if is_hopeless(core, need) => false,
                    SpaceOf::MapEntries if tries == 0 => reclaim_waiting(core, of).map(|()| true)?,
                    SpaceOf::Blocks => {
                        reclaim_waiting(core, of)?;
                        if tries > 0 {
                            fold_for(core, need)?;
                        }
                        // Others may have got what there was, and given back as much since.
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

/// Whether nothing that could be had would be enough.
fn is_hopeless(core: &Core, need: Need) -> bool {
    let (slabs, _) = core.log_space.usage();
    need.least > 0 && need.least > core.alloc.free() + core.journal.pending().blocks + slabs
}

/// Hands out again what waits for the mark. If nothing does that would help, the mark stays: moving it has all
/// threads' lines written back. Whoever is about to hand something out is waited for.
fn reclaim_waiting(core: &Core, of: SpaceOf) -> Result<()> {
    let pending = core.journal.pending();
    let blocks = pending.blocks + core.log_space.returning();
    let helps = match of {
        SpaceOf::MapEntries => pending.map_slots > 0,
        _ => blocks > 0 && core.alloc.is_helped_by(blocks),
    };
    if helps { core.reclaim() } else { core.relieve() }
}

/// Folds logs until there are as many blocks as `need` says, or no more can be had that way.
fn fold_for(core: &Core, need: Need) -> Result<()> {
    core.log_space.empty_purses(&core.alloc);
    let available = core.alloc.available();
    let (slabs, _) = core.log_space.usage();
    // A block comes back when all of its segments do, so a fold is no promise of one. Where all folds came to
    // nothing, the next ones will, until logs have taken more.
    let left = core.slabs_left.fetch_min(slabs, Ordering::Relaxed).min(slabs);
    if available >= need.most || slabs <= left {
        return Ok(());
    }
    let mut enough = || {
        let reclaimed = core.reclaim();
        core.log_space.empty_purses(&core.alloc);
        reclaimed.is_err() || core.alloc.available() >= need.most
    };
    for _ in 0..FOLDS_FOR_SPACE / FOLDS_AT_A_TIME {
        // What cannot be folded now is no reason to fail.
        let folded = fold_some(core, FOLDS_AT_A_TIME, Cause::LowSpace, &mut enough).unwrap_or(0);
        if enough() || folded == 0 {
            break;
        }
    }
    core.check_writable()?;
    if core.alloc.available() < need.most {
        core.slabs_left.store(core.log_space.usage().0, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs `operation`; if the mapping has no entry in reach, has it move some, and tries again. The caller may hold locks
/// of inodes, but has no transaction.
pub(crate) fn with_room<T>(core: &Core, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
    let mut moves = 0;
    loop {
        match operation() {
            Err(FsError::NoSpace(SpaceOf::MapEntries)) if moves < MOVES_MAX && make_room(core)? => {
                // What the move left is free once the mark has passed it.
                core.reclaim()?;
                moves += 1;
            }
            other => {
                if other.is_ok() && core.map.wants_room() {
                    // What was done is done, whatever becomes of this. Not left to the end of an operation of many
                    // records: a table that is to grow must do so before it is full.
                    let _ = make_room(core);
                } else if other.is_ok() && core.map.wants_reclaim() {
                    // The same goes for this.
                    let _ = core.reclaim();
                }
                return other;
            }
        }
    }
}

/// Moves entries of the mapping, as far as it wants that; true if it moved any. Waits for the transactions under way. A
/// crash in between finds each move whole or not at all, as any record.
fn make_room(core: &Core) -> Result<bool> {
    let Some(gate) = core.map.gate() else {
        return Ok(false);
    };
    let mut moved = false;
    for _ in 0..MOVES_MAX {
        let moving = gate.close();
        let mut tx = Tx::moving(core, &moving);
        match core.map.make_room(&mut tx) {
            Ok(true) => tx.commit_move()?,
            Ok(false) => break,
            // It is the operation that says so, if it comes to nothing.
            Err(MapError::NoBlock | MapError::TableFull) => break,
            Err(error) => return Err(map_error(error)),
        }
        moved = true;
        core.map_moves.fetch_add(1, Ordering::Relaxed);
        if !core.map.wants_room() {
            break;
        }
        // What was left counts as used until the mark has passed: the table would grow and grow.
        drop(moving);
        core.reclaim()?;
    }
    Ok(moved)
}

//! The engine's state and the services its operations share.
//!
//! What lives here: [`Core`]: region, journal, free maps, tables, cache; finding and locking inodes; the clock;
//! stopping after an error. Operations live in `ops/`, `file/`; mounting in `mount.rs`.
//!
//! Lock order: the rename lock, then inodes in ascending number, then one shard of the cache or one journal ring
//! (never two of these at once). The journal's `advance` takes rings only.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{FileMap, MapError, Resource};
use ferrite_pm::{PmError, Region};
use ferrite_vfs::{Attr, FsError, Ino, Result, SpaceOf, Timestamp};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::alloc::BlockAlloc;
use crate::damage::Damage;
use crate::events::Events;
use crate::icache::{Exclusive, InodeCache, InodeMem};
use crate::inode::Inode;
use crate::journal::{Journal, thread_number};
use crate::layout::{BLOCK_BYTES, LINE_BYTES, Superblock};
use crate::names::NameTable;
use crate::options::MountOptions;
use crate::pagelog::fold::{Candidates, Cause, Folds, fold_some};
use crate::pagelog::space::LogSpace;
use crate::spread::Budget;
use crate::tx::Tx;

/// Optimistic reads of an inode before the shared lock is taken.
const OPTIMISTIC_TRIES: usize = 3;
/// Pages whose logs an operation folds at most when it finds no space.
const FOLDS_FOR_SPACE: usize = 8192;
/// The same before it looks whether that was enough, and sorts logs by length again.
const FOLDS_AT_A_TIME: usize = 1024;
/// Resources by which giving many back looks ahead.
const LOOK_AHEAD: usize = 12;
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

/// What recovery and earlier mounts left to report.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct History {
    pub(crate) was_clean: bool,
    pub(crate) replayed_records: u64,
    pub(crate) mounts: u64,
}

/// A mounted pool.
pub(crate) struct Core {
    pub(crate) region: Arc<Region>,
    pub(crate) superblock: Superblock,
    pub(crate) options: MountOptions,
    pub(crate) journal: Journal,
    pub(crate) alloc: BlockAlloc,
    pub(crate) map: Box<dyn FileMap>,
    pub(crate) names: NameTable,
    pub(crate) log_space: LogSpace,
    pub(crate) candidates: Candidates,
    pub(crate) folds: Folds,
    /// Blocks that logs were left with when folding came to less than an operation needed. Fewer if some have gone
    /// since.
    pub(crate) slabs_left: AtomicU64,
    pub(crate) inode_map: AtomicBitmap,
    pub(crate) inode_cursors: Box<[CachePadded<AtomicU64>]>,
    pub(crate) inodes: InodeCache,
    /// The mapping cannot list a file's pages, so it is kept in DRAM where they may be, see [`crate::spread`].
    pub(crate) keeps_spreads: bool,
    /// DRAM for that.
    pub(crate) spreads: Arc<Budget>,
    /// Held by renames that move a directory: only they change who is whose ancestor.
    pub(crate) rename: Mutex<()>,
    /// Records vouch for the data they make reachable (one fence), instead of following it (two).
    pub(crate) data_in_checksum: bool,
    /// What the mount found.
    pub(crate) damage: Damage,
    /// What was met since.
    pub(crate) events: Events,
    pub(crate) failed: OnceLock<String>,
    pub(crate) closed: AtomicBool,
    /// Records by which the mapping moved entries, since the mount.
    pub(crate) map_moves: AtomicU64,
    pub(crate) history: History,
}

/// An operation's view of a map error.
pub(crate) fn map_error(error: MapError) -> FsError {
    match error {
        MapError::NoBlock => FsError::NoSpace(SpaceOf::Blocks),
        MapError::TableFull => FsError::NoSpace(SpaceOf::MapEntries),
        other => FsError::Io(other.to_string()),
    }
}

impl Core {
    /// The time operations stamp inodes with: the kernel's coarse clock, as kernel file systems do. `mkfs` takes it from here
    /// as well: a finer clock is ahead of it, and the root would be changed before it was made.
    pub(crate) fn now() -> Timestamp {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Timestamp::new(now.tv_sec, now.tv_nsec as u32)
    }

    /// What walks of page logs need.
    pub(crate) fn media(&self) -> (&Region, &Superblock) {
        (&self.region, &self.superblock)
    }

    /// Refuses what cannot be answered truthfully any more.
    pub(crate) fn check_readable(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(FsError::Io("the pool is unmounted".into()));
        }
        self.region.check().map_err(|error| self.fail(&error))
    }

    /// Refuses changes to a pool that is read-only, or became so. Whoever meets the failure of the medium is told of it, whoever comes later
    /// that the pool is read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.failed.get().is_some() && !self.closed.load(Ordering::Relaxed) {
            return Err(FsError::ReadOnly);
        }
        self.check_readable()?;
        if self.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        Ok(())
    }

    /// Whether operations fail because the pool is closed or turned read-only, whatever they meet.
    pub(crate) fn has_ended(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.failed.get().is_some()
    }

    /// Why changes were stopped for good, if they were. A fault on the medium counts from the moment it happened, noticed or not.
    pub(crate) fn failure(&self) -> Option<String> {
        if let Err(error) = self.region.check() {
            self.fail(&error);
        }
        self.failed.get().cloned()
    }

    /// Whether the mount allows no change: it was asked for that, or what it found leaves no safe one.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only || self.damage.stops_changes()
    }

    /// Stops all changes for good: after `error` nobody knows what is durable.
    #[cold]
    pub(crate) fn fail(&self, error: &PmError) -> FsError {
        self.stop_changes(error.to_string())
    }

    /// Stops all changes for good, for the reason `text`.
    pub(crate) fn stop_changes(&self, text: String) -> FsError {
        if self.failed.set(text.clone()).is_ok() {
            tracing::error!(error = %text, "the pool turned read-only");
        }
        FsError::Io(text)
    }

    /// Retires the journal's records and hands out again what they freed.
    pub(crate) fn reclaim(&self) -> Result<()> {
        self.journal
            .advance(&mut |freed| self.release_all(freed))
            .map_err(|error| self.fail(&error))
    }

    /// Makes room in this thread's ring, and hands out again what its records freed.
    pub(crate) fn relieve(&self) -> Result<()> {
        self.journal
            .relieve(&mut |freed| self.release_all(freed))
            .map_err(|error| self.fail(&error))
    }

    /// Gives many resources back. In order, and with a look ahead: most lines of the free maps are in other cores' caches.
    pub(crate) fn release_all(&self, mut freed: Vec<Resource>) {
        freed.sort_unstable();
        for (index, &resource) in freed.iter().enumerate() {
            if let Some(Resource::Block(ahead)) = freed.get(index + LOOK_AHEAD) {
                self.alloc.prefetch(*ahead);
            }
            self.release(resource);
        }
    }

    /// Gives a resource back to its free map. One that is free already may be somebody else's in a moment, so nothing
    /// may be changed any more; whoever gives it back goes on with what else it has.
    pub(crate) fn release(&self, resource: Resource) {
        let was_used = match resource {
            Resource::Block(block) => self.alloc.release(block),
            Resource::MapSlot(slot) => self.map.release(slot),
            Resource::Inode(ino) => {
                let was_used = self.inode_map.release(u64::from(ino));
                // What was used last is in the cache still, so it is used next.
                self.inode_cursor().fetch_min(u64::from(ino), Ordering::Relaxed);
                was_used
            }
            Resource::NameSlot(slot) => self.names.release(slot),
            Resource::LogSegment(unit) => self.log_space.release(&self.alloc, unit),
        };
        if !was_used {
            self.stop_changes(format!("{resource:?} was freed twice"));
        }
    }

    fn inode_cursor(&self) -> &AtomicU64 {
        &self.inode_cursors[thread_number() as usize % self.inode_cursors.len()]
    }

    /// Claims a free inode number.
    pub(crate) fn claim_inode(&self) -> Option<u32> {
        let cursor = self.inode_cursor();
        let ino = self.inode_map.claim_from(cursor.load(Ordering::Relaxed))?;
        cursor.store(ino + 1, Ordering::Relaxed);
        Some(ino as u32)
    }

    /// Starts loading the inode that [`Self::claim_inode`] will most likely give this thread.
    pub(crate) fn prefetch_free_inode(&self) {
        let ino = self.inode_cursor().load(Ordering::Relaxed);
        if ino < self.superblock.inodes {
            let offset = self.superblock.inode_offset(ino as u32);
            self.region.prefetch(offset);
            self.region.prefetch(offset + LINE_BYTES);
        }
    }

    /// Runs `operation`; if it runs out of something that earlier operations have freed, or that logs hold, gets that
    /// and tries again. So `ENOSPC` comes only when there really is none (DESIGN §5). What it is out of decides what is
    /// done, since all of it costs others something: blocks and entries of the mapping come back with the mark, folds
    /// give blocks only, and inodes, names and room for attributes never wait.
    pub(crate) fn with_space<T>(&self, need: Need, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        let mut tries = 0;
        loop {
            match self.with_room(&mut operation) {
                Err(FsError::NoSpace(of)) if tries < SPACE_TRIES => {
                    let is_worth_a_try = match of {
                        SpaceOf::Blocks if self.is_hopeless(need) => false,
                        SpaceOf::MapEntries if tries == 0 => self.reclaim_waiting(of).map(|()| true)?,
                        SpaceOf::Blocks => {
                            self.reclaim_waiting(of)?;
                            if tries > 0 {
                                self.fold_for(need)?;
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
    fn is_hopeless(&self, need: Need) -> bool {
        let (slabs, _) = self.log_space.usage();
        need.least > 0 && need.least > self.alloc.free() + self.journal.pending().blocks + slabs
    }

    /// Hands out again what waits for the mark. If nothing does that would help, the mark stays: moving it has all
    /// threads' lines written back. Whoever is about to hand something out is waited for.
    fn reclaim_waiting(&self, of: SpaceOf) -> Result<()> {
        let pending = self.journal.pending();
        let blocks = pending.blocks + self.log_space.returning();
        let helps = match of {
            SpaceOf::MapEntries => pending.map_slots > 0,
            _ => blocks > 0 && self.alloc.is_helped_by(blocks),
        };
        if helps { self.reclaim() } else { self.relieve() }
    }

    /// Folds logs until there are as many blocks as `need` says, or no more can be had that way.
    fn fold_for(&self, need: Need) -> Result<()> {
        self.log_space.empty_purses(&self.alloc);
        let available = self.alloc.available();
        let (slabs, _) = self.log_space.usage();
        // A block comes back when all of its segments do, so a fold is no promise of one. Where all folds came to
        // nothing, the next ones will, until logs have taken more.
        let left = self.slabs_left.fetch_min(slabs, Ordering::Relaxed).min(slabs);
        if available >= need.most || slabs <= left {
            return Ok(());
        }
        let mut enough = || {
            let reclaimed = self.reclaim();
            self.log_space.empty_purses(&self.alloc);
            reclaimed.is_err() || self.alloc.available() >= need.most
        };
        for _ in 0..FOLDS_FOR_SPACE / FOLDS_AT_A_TIME {
            // What cannot be folded now is no reason to fail.
            let folded = fold_some(self, FOLDS_AT_A_TIME, Cause::LowSpace, &mut enough).unwrap_or(0);
            if enough() || folded == 0 {
                break;
            }
        }
        self.check_writable()?;
        if self.alloc.available() < need.most {
            self.slabs_left.store(self.log_space.usage().0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Runs `operation`; if the mapping has no entry in reach, has it move some, and tries again. The caller may hold locks of inodes,
    /// but has no transaction.
    pub(crate) fn with_room<T>(&self, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        let mut moves = 0;
        loop {
            match operation() {
                Err(FsError::NoSpace(SpaceOf::MapEntries)) if moves < MOVES_MAX && self.make_room()? => {
                    // What the move left is free once the mark has passed it.
                    self.reclaim()?;
                    moves += 1;
                }
                other => {
                    if other.is_ok() && self.map.wants_room() {
                        // What was done is done, whatever becomes of this. Not left to the end of an operation of many records: a table that
                        // is to grow must do so before it is full.
                        let _ = self.make_room();
                    } else if other.is_ok() && self.map.wants_reclaim() {
                        // The same goes for this.
                        let _ = self.reclaim();
                    }
                    return other;
                }
            }
        }
    }

    /// Moves entries of the mapping, as far as it wants that; true if it moved any. Waits for the transactions under way. A crash in
    /// between finds each move whole or not at all, as any record.
    fn make_room(&self) -> Result<bool> {
        let Some(gate) = self.map.gate() else {
            return Ok(false);
        };
        let mut moved = false;
        for _ in 0..MOVES_MAX {
            let moving = gate.close();
            let mut tx = Tx::moving(self, &moving);
            match self.map.make_room(&mut tx) {
                Ok(true) => tx.commit_move()?,
                Ok(false) => break,
                // It is the operation that says so, if it comes to nothing.
                Err(MapError::NoBlock | MapError::TableFull) => break,
                Err(error) => return Err(map_error(error)),
            }
            moved = true;
            self.map_moves.fetch_add(1, Ordering::Relaxed);
            if !self.map.wants_room() {
                break;
            }
            // What was left counts as used until the mark has passed: the table would grow and grow.
            drop(moving);
            self.reclaim()?;
        }
        Ok(moved)
    }

    /// The number of an inode of this pool.
    pub(crate) fn number(&self, ino: Ino) -> Result<u32> {
        u32::try_from(ino)
            .ok()
            .filter(|&n| n != 0 && u64::from(n) < self.superblock.inodes)
            .ok_or(FsError::Stale)
    }

    /// The cache entry of `ino`.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<InodeMem>> {
        Ok(self.inodes.get(self.number(ino)?))
    }

    /// Reads an inode; the caller holds its lock, or validates.
    pub(crate) fn load(&self, ino: u32) -> Inode {
        Inode::load(&self.region, self.superblock.inode_offset(ino))
    }

    /// Reads an inode under its lock and checks that it is in use and sound.
    pub(crate) fn load_live(&self, inode: &InodeMem) -> Result<Inode> {
        let loaded = self.load(inode.ino);
        if !inode.is_verified() {
            if !loaded.is_sound(inode.ino) {
                return Err(FsError::Io(format!(
                    "inode {}: wrong checksum; run `ferrite fsck`",
                    inode.ino
                )));
            }
            if !loaded.is_plausible(&self.superblock) {
                return Err(FsError::Io(format!(
                    "inode {}: impossible size or counts; run `ferrite fsck`",
                    inode.ino
                )));
            }
            self.damage.check_inode(inode.ino)?;
            inode.set_verified();
        }
        if inode.is_dead() || !loaded.in_use() {
            return Err(FsError::Stale);
        }
        Ok(loaded)
    }

    /// Reads an inode as one state, without the lock if no writer is at it.
    pub(crate) fn snapshot(&self, inode: &InodeMem) -> Result<Inode> {
        for _ in 0..OPTIMISTIC_TRIES {
            if let Some(version) = inode.begin_read() {
                let loaded = self.load_live(inode);
                if inode.end_read(version) {
                    return loaded;
                }
            }
        }
        let _lock = inode.read();
        self.load_live(inode)
    }

    /// Locks directory `dir` shared and hands its inode to `f`; `NotFound` if it was removed.
    pub(crate) fn with_dir<T>(&self, dir: Ino, f: impl FnOnce(u32, &Inode) -> Result<T>) -> Result<T> {
        let inode = self.inode(dir)?;
        let _lock = inode.read();
        let loaded = self.load_live(&inode)?;
        if !loaded.is_dir() {
            return Err(FsError::NotDirectory);
        }
        f(inode.ino, &loaded)
    }

    /// Attributes of an inode.
    pub(crate) fn attr(&self, ino: u32, inode: &Inode) -> Result<Attr> {
        inode
            .attr(ino)
            .ok_or_else(|| FsError::Io(format!("inode {ino}: impossible mode {:o}", inode.mode_bits())))
    }
}

/// Exclusive locks on several inodes, taken in ascending order of number.
pub(crate) struct LockSet<'a> {
    held: Vec<Exclusive<'a>>,
}

impl<'a> LockSet<'a> {
    /// Locks all of `inodes`; duplicates count once.
    pub(crate) fn lock(inodes: &[&'a Arc<InodeMem>]) -> LockSet<'a> {
        let mut sorted = inodes.to_vec();
        sorted.sort_unstable_by_key(|inode| inode.ino);
        sorted.dedup_by_key(|inode| inode.ino);
        LockSet {
            held: sorted.into_iter().map(InodeMem::write).collect(),
        }
    }

    /// The hints of `ino`, which is among the locked.
    pub(crate) fn hints(&mut self, ino: u32) -> &mut crate::icache::DirHints {
        let held = self.held.iter_mut().find(|held| held.inode.ino == ino);
        &mut held.expect("only locked inodes are asked for").hints
    }
}

//! The engine's state, and the services that its operations share.
//!
//! Contents: [`Core`]: region, journal, free maps, tables, cache; finding and locking inodes; the clock;
//! stopping after an error. Operations are in the layers above.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::ShardedLock;
use ferrite_checks::ranked::Mutex;
use ferrite_map::bitmap::AtomicBitmap;
use ferrite_map::{BlockNo, FileMap, Inum, MapError, Resource};
use ferrite_pm::profile::{self, ProfileSpan};
use ferrite_pm::{Medium, PmError, Region, line_trace};
use ferrite_vfs::{Attr, FsError, Ino, Result, SpaceOf, Timestamp};
use rustc_hash::FxHashMap;
use rustix::time::{ClockId, clock_gettime};

use crate::background::Stop;
use crate::cache::bindings::Bindings;
use crate::cache::inodes::{InodeCache, InodeMem};
use crate::cache::logged::{Candidates, Merges};
use crate::cache::mapped_ranges::Budget;
use crate::format::inode::Inode;
use crate::format::layout::{LINE_BYTES, Superblock};
use crate::format::unit::Unit;
use crate::health::quarantine::Quarantine;
use crate::health::runtime_errors::RuntimeErrors;
use crate::journal::{Journal, Pending};
use crate::lock_order;
use crate::options::{Mapping, MountOptions};
use crate::pool::slots::Slots;
use crate::space::blocks::BlockAlloc;
use crate::space::names::NameTable;
use crate::space::quotas::Quotas;
use crate::space::segments::LogSpace;
use crate::space::shares::Shares;
use crate::thread::thread_number;

/// Optimistic reads of an inode before the shared lock is taken.
const OPTIMISTIC_TRIES: usize = 3;
/// The reports of recovery and of earlier mounts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct History {
    pub(crate) was_clean: bool,
    pub(crate) replayed_records: u64,
    pub(crate) mounts: u64,
    /// The boot id stored in the pool while it is in use.
    pub(crate) boot: u64,
    /// The pool was marked as in use in another file.
    pub(crate) maybe_copied: bool,
}

/// A mounted pool.
pub(crate) struct Core {
    pub(crate) region: Arc<Region>,
    pub(crate) superblock: Superblock,
    pub(crate) options: MountOptions,
    pub(crate) journal: Journal,
    pub(crate) alloc: BlockAlloc,
    pub(crate) shares: Shares,
    pub(crate) quotas: Quotas,
    /// Whether a walk of snapshots is in progress.
    pub(crate) walks_snapshots: AtomicBool,
    pub(crate) map: Box<dyn FileMap>,
    pub(crate) names: NameTable,
    pub(crate) log_space: LogSpace,
    pub(crate) candidates: Candidates,
    pub(crate) merges: Merges,
    /// Blocks that logs still held when merging freed less than an operation needed; fewer if some have been freed
    /// since.
    pub(crate) slabs_left: AtomicU64,
    pub(crate) inode_map: AtomicBitmap,
    pub(crate) inode_cursors: Box<[CachePadded<AtomicU64>]>,
    pub(crate) inodes: InodeCache,
    /// The mapping cannot list a file's pages, so DRAM records where they may be, see [`crate::cache::mapped_ranges`].
    pub(crate) keeps_mapped_ranges: bool,
    /// DRAM for that.
    pub(crate) mapped_ranges_budget: Arc<Budget>,
    /// Held shared by each change that a caller makes, before all other locks but that of a token's slot, and
    /// exclusively while a tree is cloned. Upkeep, calls of adapters, and attributes in which a service keeps its state
    /// do without it.
    pub(crate) changes: ShardedLock<()>,
    /// Held by renames that move a directory: only these change which directory is an ancestor of which.
    pub(crate) rename: Mutex<lock_order::Rename, ()>,
    /// Write-back is deferred, and each commit waits for a sync, which it shares with others.
    pub(crate) syncs_commits: bool,
    /// Records carry the checksums of the data that they make reachable (one fence), instead of following it (two).
    pub(crate) data_in_checksum: bool,
    /// Damage that the mount found.
    pub(crate) quarantine: Quarantine,
    /// Damage met since.
    pub(crate) runtime_errors: RuntimeErrors,
    pub(crate) failed: OnceLock<String>,
    pub(crate) closed: AtomicBool,
    /// Records by which the mapping moved entries, since the mount.
    pub(crate) map_moves: AtomicU64,
    pub(crate) history: History,
    /// The slots of tokens.
    pub(crate) slots: Slots,
    /// Bound files.
    pub(crate) bindings: Bindings,
    /// Inodes without names that are open or pinned.
    pub(crate) unnamed: CachePadded<AtomicU64>,
    /// Wakes the thread that syncs, if it runs.
    pub(crate) flusher: OnceLock<Arc<Stop>>,
    /// Inodes without names that the mount options keep.
    pub(crate) kept_orphans: Mutex<lock_order::KeptOrphans, Vec<Inum>>,
}

/// A map error as an operation reports it.
pub(crate) fn map_error(error: MapError) -> FsError {
    match error {
        MapError::NoBlock => FsError::NoSpace(SpaceOf::Blocks),
        MapError::TableFull => FsError::NoSpace(SpaceOf::MapEntries),
        other => FsError::damaged(None, other.to_string()),
    }
}

impl Core {
    /// The time with which operations stamp inodes: the kernel's coarse clock, as kernel file systems use. `mkfs`
    /// takes it from here as well: a finer clock is ahead of it, and the root would be changed before it was made.
    pub(crate) fn now() -> Timestamp {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Timestamp::new(now.tv_sec, now.tv_nsec as u32)
    }

    /// The parameters of walks of page logs.
    pub(crate) fn media(&self) -> (&Region, &Superblock) {
        (&self.region, &self.superblock)
    }

    /// Whether others may write to the pages of bound files: a fence is enough to make a word durable, and a word never
    /// survives in part.
    pub(crate) fn may_change_in_place(&self) -> bool {
        self.region.medium() != Medium::File && !self.region.defers_write_back()
    }

    /// Refuses if reads can no longer be trusted.
    pub(crate) fn check_readable(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(FsError::Io("the pool is unmounted".into()));
        }
        self.region.check().map_err(|error| self.fail(&error))
    }

    /// Refuses changes to a pool that is, or has become, read-only. The operation that meets the failure of the medium
    /// reports the failure; later ones report that the pool is read-only.
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

    /// Whether operations fail because the pool is closed or has become read-only, whatever else they meet.
    pub(crate) fn has_ended(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.failed.get().is_some()
    }

    /// Runs a reading operation, and returns its result unless a fault on the medium may have falsified it: lost pages
    /// read as zeros.
    pub(crate) fn reading<T>(&self, read: impl FnOnce(&Core) -> Result<T>) -> Result<T> {
        self.check_readable()?;
        let answer = read(self);
        self.check_readable()?;
        self.told(answer)
    }

    /// Returns the result of an operation; if that is damage, notes it.
    #[inline]
    pub(crate) fn told<T>(&self, answer: Result<T>) -> Result<T> {
        if let Err(FsError::Damaged(damage)) = &answer
            && !self.has_ended()
        {
            self.runtime_errors.find("an operation", &damage.to_string());
        }
        answer
    }

    /// Why changes were permanently stopped, if they were. A fault on the medium counts from the moment it happened,
    /// noticed or not.
    pub(crate) fn failure(&self) -> Option<String> {
        if let Err(error) = self.region.check() {
            self.fail(&error);
        }
        self.failed.get().cloned()
    }

    /// Whether the mount allows no change: because its options forbid it, or because of damage it found.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only || self.quarantine.stops_changes()
    }

    /// Stops all changes permanently: after `error` it is unknown what is durable.
    #[cold]
    pub(crate) fn fail(&self, error: &PmError) -> FsError {
        self.stop_changes(error.to_string())
    }

    /// Stops all changes permanently, for the reason `text`.
    pub(crate) fn stop_changes(&self, text: String) -> FsError {
        if self.failed.set(text.clone()).is_ok() {
            tracing::error!(error = %text, "the pool turned read-only");
        }
        FsError::Io(text)
    }

    /// Retires the journal's records, and makes the space they freed available again.
    pub(crate) fn reclaim(&self) -> Result<()> {
        self.journal
            .advance(&mut |freed| self.release_all(freed))
            .map_err(|error| self.fail(&error))
    }

    /// Sets the thread that [`Self::make_space`] wakes from now on.
    pub(crate) fn has_flusher(&self, waker: Arc<Stop>) {
        let _ = self.flusher.set(waker);
    }

    /// Makes space in this thread's ring: through the thread that syncs, if it runs. Until that is done, the other half
    /// of the ring is left.
    pub(crate) fn make_space(&self) -> Result<()> {
        match self.flusher.get() {
            None => self.relieve(),
            Some(flusher) => {
                flusher.wake();
                Ok(())
            }
        }
    }

    /// Makes space in this thread's ring, and makes the space that its records freed available again.
    pub(crate) fn relieve(&self) -> Result<()> {
        self.journal
            .relieve(&mut |freed| self.release_all(freed))
            .map_err(|error| self.fail(&error))
    }

    /// Whether the mapping has entries for so many pages without blocks of their own. Those with blocks come first: a
    /// table keeps entries for all blocks, and a tenth of them free, so that lookups stay short. Otherwise pages could
    /// not be written while blocks are free.
    pub(crate) fn has_entries_to_share(&self, pages: u64) -> bool {
        if matches!(self.superblock.mapping, Mapping::Radix | Mapping::Extent) {
            return true;
        }
        let (slots, blocks) = (self.superblock.map_slots, self.superblock.blocks);
        if self.shares.pages() + pages <= (slots - blocks) / 2 {
            return true;
        }
        // An entry of this structure may have several pages.
        let free = || self.map.slots().free;
        self.superblock.mapping == Mapping::Leaf && free() >= self.alloc.free() + pages + slots / 10
    }

    /// Resources that were freed but are not reusable yet. Blocks that other pages name are not among them.
    pub(crate) fn pending(&self) -> Pending {
        let mut dropped: FxHashMap<BlockNo, u32> = FxHashMap::default();
        let mut pending = self.journal.pending(&mut |block| {
            let further = self.shares.further(block);
            // A block of several pages, all of which may be gone.
            further == 0 || {
                let dropped = dropped.entry(block).or_default();
                *dropped += 1;
                *dropped > further
            }
        });
        pending.shared_pages = dropped
            .iter()
            .map(|(&block, &count)| count.min(self.shares.further(block)))
            .map(u64::from)
            .sum();
        pending
    }

    /// Releases many resources, in order and with prefetching: most lines of the free maps are in other cores' caches.
    pub(crate) fn release_all(&self, mut freed: Vec<Resource>) {
        // Mostly blocks, which plain numbers sort in a third of the time.
        let mut blocks = Vec::with_capacity(freed.len());
        freed.retain(|resource| match *resource {
            Resource::Block(block) => {
                blocks.push(block);
                false
            }
            _ => true,
        });
        if self.shares.any() {
            blocks.retain(|&block| !self.shares.drop_one(block));
        }
        blocks.sort_unstable();
        freed.sort_unstable();
        let before_blocks = freed.partition_point(|&resource| resource < Resource::Block(BlockNo::NONE));
        let (before, after) = freed.split_at(before_blocks);
        before.iter().for_each(|&resource| self.release(resource));
        self.alloc
            .release_sorted(&blocks, &mut |block| self.freed_twice(Resource::Block(block)));
        after.iter().for_each(|&resource| self.release(resource));
    }

    /// Returns a resource to its free map. If it is already free, it may be claimed by another operation at any
    /// moment, so all changes are stopped. The caller continues with its other resources.
    pub(crate) fn release(&self, resource: Resource) {
        let was_used = match resource {
            Resource::Block(block) => self.shares.drop_one(block) || self.alloc.release(block),
            Resource::MapSlot(slot) => self.map.release(slot),
            Resource::Inode(ino) => {
                let was_used = self.inode_map.release(u64::from(ino));
                // The number used last is still in the cache, so it is reused next.
                line_trace::line("cursors", self.inode_cursor());
                self.inode_cursor().fetch_min(u64::from(ino), Ordering::Relaxed);
                was_used
            }
            Resource::NameSlot(slot) => self.names.release(slot),
            Resource::LogSegment(block, index) => {
                let header = Unit::first_of(block, self.superblock.unit_size).plus(u32::from(index));
                self.log_space.release(&self.alloc, header)
            }
        };
        if !was_used {
            self.freed_twice(resource);
        }
    }

    #[cold]
    fn freed_twice(&self, resource: Resource) {
        self.stop_changes(format!("{resource} was freed twice"));
    }

    fn inode_cursor(&self) -> &AtomicU64 {
        &self.inode_cursors[thread_number() as usize % self.inode_cursors.len()]
    }

    /// An inode has lost its last name, but is not freed by the same record.
    pub(crate) fn note_unnamed(&self) {
        line_trace::line("unnamed", &*self.unnamed);
        self.unnamed.fetch_add(1, Ordering::Relaxed);
    }

    /// An inode without a name was freed: one that was noted, or one that the mount found.
    pub(crate) fn unnamed_freed(&self) {
        line_trace::line("unnamed", &*self.unnamed);
        let less = |unnamed: u64| Some(unnamed.saturating_sub(1));
        let _ = self.unnamed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn unnamed(&self) -> u64 {
        self.unnamed.load(Ordering::Relaxed)
    }

    /// Claims a free inode number.
    pub(crate) fn claim_inode(&self) -> Option<Inum> {
        let cursor = self.inode_cursor();
        let ino = self.inode_map.claim_from(cursor.load(Ordering::Relaxed))?;
        line_trace::line("cursors", cursor);
        cursor.store(ino + 1, Ordering::Relaxed);
        Some(Inum::new(ino as u32))
    }

    /// Starts loading the inode that [`Self::claim_inode`] will most likely give this thread.
    pub(crate) fn prefetch_free_inode(&self) {
        self.prefetch_inode(Inum::new(self.inode_cursor().load(Ordering::Relaxed) as u32));
    }

    /// Starts loading an inode, if the number is one.
    pub(crate) fn prefetch_inode(&self, ino: Inum) {
        if u64::from(ino) < self.superblock.inodes {
            let offset = self.superblock.inode_offset(ino);
            self.region.prefetch(offset);
            self.region.prefetch(offset + LINE_BYTES);
        }
    }

    /// `ino` as an inode number of this pool, if it is in range.
    pub(crate) fn number(&self, ino: Ino) -> Result<Inum> {
        u32::try_from(ino)
            .ok()
            .filter(|&n| n != 0 && u64::from(n) < self.superblock.inodes)
            .map(Inum::new)
            .ok_or(FsError::Stale)
    }

    /// The cache entry of `ino`.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<InodeMem>> {
        let _span = profile::enter(ProfileSpan::Lookup);
        Ok(self.inodes.get(self.number(ino)?))
    }

    /// Reads an inode; the caller holds its lock, or validates.
    pub(crate) fn load(&self, ino: Inum) -> Inode {
        Inode::load(&self.region, self.superblock.inode_offset(ino))
    }

    /// Reads an inode under its lock and checks that it is in use and sound.
    pub(crate) fn load_live(&self, inode: &InodeMem) -> Result<Inode> {
        let _span = profile::enter(ProfileSpan::Lookup);
        let loaded = self.load(inode.ino);
        if !inode.is_verified() {
            if !loaded.is_sound(inode.ino) {
                let what = "wrong checksum; run `ferrite fsck`";
                return Err(FsError::damaged(u64::from(inode.ino), what));
            }
            if !loaded.is_plausible(&self.superblock) {
                let what = "impossible size or counts; run `ferrite fsck`";
                return Err(FsError::damaged(u64::from(inode.ino), what));
            }
            self.quarantine.check_inode(inode.ino)?;
            inode.set_verified();
        }
        if inode.is_dead() || !loaded.in_use() {
            return Err(FsError::Stale);
        }
        Ok(loaded)
    }

    /// Reads one consistent state of an inode, without the lock if no writer is active.
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

    /// Locks directory `dir` shared and passes its inode to `f`; `NotFound` if it was removed.
    pub(crate) fn with_dir<T>(&self, dir: Ino, f: impl FnOnce(Inum, &Inode) -> Result<T>) -> Result<T> {
        let inode = self.inode(dir)?;
        let _lock = inode.read();
        let loaded = self.load_live(&inode)?;
        if !loaded.is_dir() {
            return Err(FsError::NotDirectory);
        }
        f(inode.ino, &loaded)
    }

    /// Current attributes of an inode, with the number of the record that last changed it.
    pub(crate) fn current_attr(&self, inode: &InodeMem) -> Result<Attr> {
        for _ in 0..OPTIMISTIC_TRIES {
            if let Some(version) = inode.begin_read() {
                let loaded = self.load_live(inode);
                // A change sets it before its version ends, so it belongs to the words.
                let change = inode.change();
                if inode.end_read(version) {
                    return self.attr_with(inode.ino, &loaded?, change);
                }
            }
        }
        let _lock = inode.read();
        self.locked_attr(inode, &self.load_live(inode)?)
    }

    /// The same of an inode whose lock is held, and whose words are those of `loaded`.
    pub(crate) fn locked_attr(&self, inode: &InodeMem, loaded: &Inode) -> Result<Attr> {
        self.attr_with(inode.ino, loaded, inode.change())
    }

    /// Attributes of an inode, for checks: without the number of its last change.
    pub(crate) fn attr(&self, ino: Inum, inode: &Inode) -> Result<Attr> {
        self.attr_with(ino, inode, 0)
    }

    #[inline]
    fn attr_with(&self, ino: Inum, inode: &Inode, change: u64) -> Result<Attr> {
        let damaged = || FsError::damaged(u64::from(ino), format!("impossible mode {:o}", inode.mode_bits()));
        inode.attr(ino, change).ok_or_else(damaged)
    }
}

//! Inodes in DRAM: the locks, versions and counts of those in use now or shortly before.
//!
//! Contents: [`InodeMem`], and the sharded [`InodeCache`] that finds it by number. The content of an inode
//! stays on the medium; nothing here is ever written there.
//!
//! Invariants:
//! * While an [`InodeMem`] is held, every lookup of its number returns the same one.
//! * `last_seq` is at least the sequence number of every record that changed the inode: it orders records of different
//!   rings. When an entry is dropped, its `last_seq` goes into a floor for all later entries.
//! * `version` is odd exactly while a holder of the exclusive lock may be changing the inode's words or mapping.
//!
//! How entries are dropped. If a caller says that an inode will not be needed soon ([`InodeCache::release`]: the
//! kernel forgot it), its entry is dropped at once. Other unused entries stay for a while, since a walk along a path
//! pins and unpins each directory on its way.
//!
//! Each shard counts its *news*: entries that were created, or whose last pin was dropped, since the last sweep, each
//! counted once. When the news number at least [`NEWS_MIN`] and half the entries, the shard is swept. Of the unused
//! entries, the sweep drops all that were not news, and of the others all but [`KEEP_FILES`] and [`KEEP_DIRS`].
//!
//! So a sweep examines three entries for each piece of news that it waited for, and unpinning an entry that is already
//! news costs one check of a flag.
//!
//! Unused entries number fewer than `IDLE_MAX` plus one for each entry in use: after a sweep a shard has at most
//! `NEWS_MIN` of them, and with `u` in use and `i` not, it is swept before `i - NEWS_MIN` exceeds both `NEWS_MIN` and
//! `(u + i) / 2`. A count lost in a race with a sweep delays the next sweep by one.

use std::cell::OnceCell;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use ferrite_checks::fault_injection::{self, Bug, is_seeded};
use ferrite_checks::ranked::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use ferrite_map::{Inum, Lblk};
use ferrite_pm::line_trace;
use ferrite_pm::profile::{self, ProfileSpan};

use crossbeam_utils::CachePadded;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::mapped_ranges::MappedRanges;
use crate::lock_order;

/// With seeded bugs there are few shards, and they keep hardly anything, so that even the small pools on which tests
/// search for the bugs trigger sweeps.
const SHARDS: usize = if fault_injection::IS_COMPILED { 2 } else { 64 };
/// Unused entries that a sweep of a shard leaves.
const KEEP_FILES: usize = if fault_injection::IS_COMPILED { 0 } else { 64 };
/// The same for directories whose lock protects something: rebuilding that state means reading all of their blocks.
const KEEP_DIRS: usize = if fault_injection::IS_COMPILED { 0 } else { 64 };
/// A shard with less news is not swept.
const NEWS_MIN: usize = KEEP_FILES + KEEP_DIRS;
/// Tables smaller than this are not worth shrinking.
const TABLE_MIN: usize = 4;
/// Most unused entries, beyond as many as are in use.
#[cfg(test)]
const IDLE_MAX: u64 = 2 * (NEWS_MIN * SHARDS) as u64;

#[derive(Default)]
struct Table {
    inodes: FxHashMap<Inum, Arc<InodeMem>>,
    /// Entries dropped.
    dropped: u64,
}

impl Table {
    /// Drops unused entries, except the few that may stay; returns the newest `last_seq` of the dropped ones.
    fn sweep(&mut self) -> u64 {
        let (mut floor, before) = (0, self.inodes.len());
        let (mut files, mut dirs) = (KEEP_FILES, KEEP_DIRS);
        self.inodes.retain(|_, inode| {
            let was_news = inode.is_news();
            if was_news {
                inode.news.store(false, Ordering::Relaxed);
            }
            // Cheap checks first: most entries of a long table are in use, and keeping one is never wrong.
            if inode.pins.load(Ordering::Relaxed) > 0 || Arc::strong_count(inode) > 1 {
                return true;
            }
            let Some(unused) = unused(inode) else { return true };
            let places = match unused.lock.get_mut() {
                Some(_) => &mut dirs,
                None => &mut files,
            };
            if was_news && *places > 0 {
                *places -= 1;
                return true;
            }
            floor = floor.max(*unused.last_seq.get_mut());
            false
        });
        self.dropped += (before - self.inodes.len()) as u64;
        self.shrink();
        floor
    }

    /// The amount of news after which a sweep is worth it.
    fn news_max(&self) -> u32 {
        (self.inodes.len() / 2).max(NEWS_MIN) as u32
    }

    /// Shrinks the table if most of it is empty.
    fn shrink(&mut self) {
        let len = self.inodes.len().max(TABLE_MIN);
        if self.inodes.capacity() / 4 > len {
            self.inodes.shrink_to(len * 2);
        }
    }

    /// An entry without other holders, for reusing number `ino`, and whether the table has grown by one.
    fn fresh(&mut self, ino: Inum, seq_floor: u64) -> (Arc<InodeMem>, bool) {
        let mut made = InodeMem::new(ino, seq_floor, MappedRanges::nowhere());
        made.dead = AtomicBool::new(true);
        let mut is_more = true;
        if let Some(found) = self.inodes.get_mut(&ino) {
            is_more = false;
            made.news = AtomicBool::new(found.is_news());
            // This is the number of the record that freed the inode, or of a later one: the inode number was freed
            // after that record was noted here, and only then could we claim it.
            if !is_seeded(Bug::InodeUnordered) {
                made.last_seq = AtomicU64::new(seq_floor.max(found.last_seq()));
                made.change = AtomicU64::new(made.last_seq());
            }
            if let Some(unheld) = Arc::get_mut(found) {
                *unheld = made;
                return (Arc::clone(found), is_more);
            }
            // A holder had looked up a number that was free. It will notice, because it checks the inode's words before
            // it relies on this entry.
            found.set_dead();
        }
        let made = Arc::new(made);
        self.inodes.insert(ino, Arc::clone(&made));
        (made, is_more)
    }
}

/// An entry of a table without holders or pins. The caller has the table's lock.
///
/// While we hold the shard, no thread can clone an entry that only the table refers to. `get_mut` acquires what the
/// last other holder released when it dropped the entry, so the pins and the sequence number that it set are visible
/// here. Reading the reference count alone would not guarantee that.
fn unused(inode: &mut Arc<InodeMem>) -> Option<&mut InodeMem> {
    Arc::get_mut(inode).filter(|unheld| unheld.pins() == 0)
}

/// A part of the cache.
#[derive(Default)]
struct Shard {
    table: Mutex<lock_order::CacheShard, Table>,
    /// News since the last sweep.
    news: AtomicU32,
    /// The shard is swept when there is more than this. Changed under the table's lock.
    news_max: AtomicU32,
}

impl Shard {
    /// Counts a known entry as news; it must not be news already.
    fn count(&self, inode: &InodeMem) {
        inode.news.store(true, Ordering::Relaxed);
        self.news.fetch_add(1, Ordering::Relaxed);
    }

    fn is_due(&self) -> bool {
        self.news.load(Ordering::Relaxed) > self.news_max.load(Ordering::Relaxed)
    }
}

/// State under a directory's lock besides its content: where the next entry may go.
///
/// Most inodes have none, so it is boxed; the first change of the directory creates the box.
#[derive(Debug, Default)]
pub(crate) struct DirHints {
    /// Logical blocks below this were searched. Those that had space are in `free_list`, or have since turned out too
    /// small for a name.
    pub(crate) searched: u64,
    /// Logical blocks in which space was found or an entry was removed.
    pub(crate) free_list: FreeList,
    /// Offset in the directory of a free entry that the last insert left behind.
    pub(crate) tail: Option<u64>,
}

/// Most blocks with space that are remembered for a directory.
const FREE_LIST_MAX: usize = 1024;

/// Blocks of a directory without duplicates, the most recently noted on top.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    list: Vec<Lblk>,
    listed: FxHashSet<Lblk>,
}

impl FreeList {
    /// The block on top.
    pub(crate) fn last(&self) -> Option<Lblk> {
        self.list.last().copied()
    }

    /// Removes the block on top.
    pub(crate) fn pop(&mut self) {
        if let Some(lblk) = self.list.pop() {
            self.listed.remove(&lblk);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= FREE_LIST_MAX
    }
}

impl DirHints {
    /// Notes that block `lblk` may have space. If the list is full, the next search will find the block again.
    pub(crate) fn note_free(&mut self, lblk: Lblk) {
        if self.free_list.last() == Some(lblk) || self.free_list.listed.contains(&lblk) {
            return;
        }
        if self.free_list.is_full() {
            self.searched = self.searched.min(u64::from(lblk));
            return;
        }
        self.free_list.list.push(lblk);
        self.free_list.listed.insert(lblk);
    }
}

/// The state under an inode's lock.
type Hints = Option<Box<DirHints>>;

/// One inode in use. There may be millions, so it is small: it shares cache lines with its neighbours in memory, and
/// fields that are seldom written come last.
#[repr(C)]
pub(crate) struct InodeMem {
    lock: RwLock<lock_order::Inode, Hints>,
    version: AtomicU64,
    /// Pins of front ends and open handles.
    pins: AtomicU64,
    last_seq: AtomicU64,
    /// Newest record that changed what callers see, see [`ferrite_vfs::Attr::change`].
    change: AtomicU64,
    /// Its number.
    pub(crate) ino: Inum,
    /// Its checksum was verified, or computed by us, since it came into DRAM.
    verified: AtomicBool,
    /// Freed: a thread that gets the lock after this is set must act as if it had not found the inode.
    dead: AtomicBool,
    /// Counted as news of the shard.
    news: AtomicBool,
    /// Its extended attributes were read, and there is no capability among them.
    lacks_capability: AtomicBool,
    /// Where it may have pages.
    pub(crate) mapped_ranges: MappedRanges,
}

impl InodeMem {
    fn new(ino: Inum, last_seq: u64, mapped_ranges: MappedRanges) -> Self {
        InodeMem {
            lock: RwLock::default(),
            version: AtomicU64::new(0),
            pins: AtomicU64::new(0),
            last_seq: AtomicU64::new(last_seq),
            // Unknown, but no newer.
            change: AtomicU64::new(last_seq),
            ino,
            verified: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            news: AtomicBool::new(true),
            lacks_capability: AtomicBool::new(false),
            mapped_ranges,
        }
    }

    /// Shared lock: content and names cannot change.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Hints> {
        line_trace::line("inodes", &self.version);
        self.lock.read_ordered(u64::from(self.ino))
    }

    /// Whether the checksum need not be verified again: the words have been under our control since the last time.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    pub(crate) fn set_verified(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    /// Shared lock, if no thread has the exclusive one or waits for it.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, Hints>> {
        self.lock.try_read(Some(u64::from(self.ino)))
    }

    /// Exclusive lock, if no thread has any lock.
    pub(crate) fn try_write(self: &Arc<Self>) -> Option<Exclusive<'_>> {
        let hints = self.lock.try_write(Some(u64::from(self.ino)))?;
        Some(Exclusive { hints, inode: self })
    }

    /// Exclusive lock.
    pub(crate) fn write(self: &Arc<Self>) -> Exclusive<'_> {
        let _span = profile::enter(ProfileSpan::Lock);
        line_trace::line("inodes", &self.version);
        Exclusive {
            hints: self.lock.write_ordered(u64::from(self.ino)),
            inode: self,
        }
    }

    /// Starts an optimistic read; `None` while a change is in progress.
    pub(crate) fn begin_read(&self) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        version.is_multiple_of(2).then_some(version)
    }

    /// Whether everything read since [`Self::begin_read`] belongs to one state.
    pub(crate) fn end_read(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }

    /// Announces that words are about to change. The caller holds the lock exclusively, or no other thread knows the
    /// inode yet. Ends when the [`Exclusive`] guard is dropped.
    pub(crate) fn begin_change(&self) {
        let version = self.version.load(Ordering::Relaxed);
        if version.is_multiple_of(2) {
            self.version.store(version + 1, Ordering::Relaxed);
            fence(Ordering::Release);
        }
    }

    fn end_change(&self) {
        let version = self.version.load(Ordering::Relaxed);
        if version % 2 == 1 {
            self.version.store(version + 1, Ordering::Release);
        }
    }

    /// Newest record that changed the inode; read under its lock.
    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq.load(Ordering::Relaxed)
    }

    /// Notes a record that changes nothing that counts as a change: an access time, or where content is. The caller
    /// holds the exclusive lock.
    pub(crate) fn set_last_seq(&self, seq: u64) {
        self.last_seq.store(seq, Ordering::Relaxed);
    }

    /// Newest record that changed content or attributes; at most [`Self::last_seq`].
    pub(crate) fn change(&self) -> u64 {
        self.change.load(Ordering::Relaxed)
    }

    /// Notes a record that is a change; the caller holds the exclusive lock.
    pub(crate) fn set_changed(&self, seq: u64) {
        self.set_last_seq(seq);
        self.change.store(seq, Ordering::Relaxed);
    }

    pub(crate) fn pins(&self) -> u64 {
        self.pins.load(Ordering::Acquire)
    }

    /// Adds pins; the caller holds the lock and has seen the inode alive.
    pub(crate) fn pin(&self, count: u64) {
        line_trace::line("inodes", &self.pins);
        self.pins.fetch_add(count, Ordering::AcqRel);
    }

    /// Removes pins; true if none is left. If there are fewer than `count`, removes all.
    pub(crate) fn unpin(&self, count: u64) -> bool {
        let mut left = 0;
        let _ = self.pins.fetch_update(Ordering::AcqRel, Ordering::Acquire, |pins| {
            left = pins.saturating_sub(count);
            Some(left)
        });
        left == 0
    }

    /// Whether it is known that no capability is among its extended attributes; the caller holds the lock.
    pub(crate) fn lacks_capability(&self) -> bool {
        self.lacks_capability.load(Ordering::Relaxed)
    }

    /// The caller holds the exclusive lock.
    pub(crate) fn set_lacks_capability(&self, lacks: bool) {
        self.lacks_capability.store(lacks, Ordering::Relaxed);
    }

    fn is_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Marks it freed, or not created after all; the caller holds the exclusive lock.
    pub(crate) fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Marks it created; the caller holds the exclusive lock and has not committed the record yet.
    pub(crate) fn set_alive(&self) {
        self.set_verified();
        self.dead.store(false, Ordering::Release);
    }
}

/// The exclusive lock of an inode. Dropping it ends the change that [`InodeMem::begin_change`] announced.
pub(crate) struct Exclusive<'a> {
    hints: RwLockWriteGuard<'a, Hints>,
    pub(crate) inode: &'a Arc<InodeMem>,
}

impl Exclusive<'_> {
    /// The hints of a directory.
    pub(crate) fn hints(&mut self) -> &mut DirHints {
        self.hints.get_or_insert_default()
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // Before the lock is released: fields are dropped after this.
        self.inode.end_change();
    }
}

/// Finds inodes in use by number.
pub(crate) struct InodeCache {
    shards: Box<[CachePadded<Shard>]>,
    /// At least the `last_seq` of every entry that was dropped. Raised and read under the lock of a shard, and a
    /// number is always in the same shard. So creating an entry again sees what was noted when it was dropped, even
    /// with relaxed accesses.
    seq_floor: AtomicU64,
}

impl InodeCache {
    pub(crate) fn new(seq_floor: u64) -> Self {
        let cache = InodeCache {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            seq_floor: AtomicU64::new(seq_floor),
        };
        for shard in &cache.shards {
            shard.news_max.store(NEWS_MIN as u32, Ordering::Relaxed);
        }
        cache
    }

    /// The caller locks it.
    fn shard(&self, ino: Inum) -> &Shard {
        let shard = &self.shards[ino.index() % SHARDS];
        line_trace::line("inode cache", shard);
        shard
    }

    /// Raises the floor to the `last_seq` of entries dropped from `_table`, which stays locked from before they are
    /// dropped until this returns.
    fn raise_floor(&self, _table: &mut MutexGuard<'_, Table>, last_seq: u64) {
        if !is_seeded(Bug::SweepForgetsFloor) && last_seq > self.seq_floor.load(Ordering::Relaxed) {
            self.seq_floor.fetch_max(last_seq, Ordering::Relaxed);
        }
    }

    /// Sweeps the shard that owns this table, if there is enough news.
    fn sweep_if_due(&self, shard: &Shard, table: &mut MutexGuard<'_, Table>) {
        if !shard.is_due() {
            return;
        }
        let floor = table.sweep();
        self.raise_floor(table, floor);
        shard.news.store(0, Ordering::Relaxed);
        shard.news_max.store(table.news_max(), Ordering::Relaxed);
    }

    /// The entry of `ino`, created if absent. An entry does not mean that the inode is in use.
    pub(crate) fn get(&self, ino: Inum) -> Arc<InodeMem> {
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        if let Some(found) = table.inodes.get(&ino) {
            return Arc::clone(found);
        }
        self.sweep_if_due(shard, &mut table);
        let seq_floor = self.seq_floor.load(Ordering::Relaxed);
        let made = Arc::new(InodeMem::new(ino, seq_floor, MappedRanges::everywhere()));
        table.inodes.insert(ino, Arc::clone(&made));
        shard.news.fetch_add(1, Ordering::Relaxed);
        made
    }

    /// Whether a change of `ino` may be in progress. Does not wait for it.
    pub(crate) fn is_changing(&self, ino: Inum) -> bool {
        let table = self.shard(ino).table.lock();
        table.inodes.get(&ino).is_some_and(|inode| inode.try_read().is_none())
    }

    /// Stores in `place` the entry of a number just claimed for a new file, locked and dead until
    /// [`InodeMem::set_alive`]. The entry of the file that had the number before is reused if it has no holder;
    /// otherwise its holders keep it, permanently dead.
    ///
    /// Never waits for the lock, so the caller may hold any other inode's.
    pub(crate) fn fresh<'a>(&self, ino: Inum, place: &'a OnceCell<Arc<InodeMem>>) -> Exclusive<'a> {
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        let entry = place.get_or_init(|| {
            self.sweep_if_due(shard, &mut table);
            let (entry, is_more) = table.fresh(ino, self.seq_floor.load(Ordering::Relaxed));
            shard.news.fetch_add(u32::from(is_more), Ordering::Relaxed);
            entry
        });
        // No other thread has the entry, and none can get it while we hold the shard.
        entry.try_write().expect("a fresh entry is unlocked")
    }

    /// Notes that the last pin of `inode` was dropped. The inode may be needed again. The caller holds no lock of the
    /// cache.
    pub(crate) fn unpinned(&self, inode: &InodeMem) {
        if inode.is_news() {
            return;
        }
        let shard = self.shard(inode.ino);
        shard.count(inode);
        if shard.is_due() {
            self.sweep_if_due(shard, &mut shard.table.lock());
        }
    }

    /// Drops the entry `inode`, which will not be needed soon, unless it has other holders or pins.
    pub(crate) fn release(&self, inode: Arc<InodeMem>) {
        let ino = inode.ino;
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        // Under the lock, so that if two threads release the inode, the second one drops it.
        drop(inode);
        let Entry::Occupied(mut entry) = table.inodes.entry(ino) else {
            return;
        };
        let Some(unused) = unused(entry.get_mut()) else {
            // Its holder may drop it without notice.
            if !entry.get().is_news() {
                shard.count(entry.get());
            }
            return;
        };
        let last_seq = *unused.last_seq.get_mut();
        entry.remove();
        table.dropped += 1;
        self.raise_floor(&mut table, last_seq);
        table.shrink();
        shard.news_max.store(
            table.news_max().min(shard.news_max.load(Ordering::Relaxed)),
            Ordering::Relaxed,
        );
    }

    /// Memory of the cache, and how many entries it has dropped.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for shard in &self.shards {
            let table = shard.table.lock();
            // Seven of eight places of a table are used, and each has one byte besides its content.
            let places = (table.inodes.capacity() * 8).div_ceil(7);
            usage.entries += table.inodes.len() as u64;
            usage.tables_bytes += (places * (size_of::<(Inum, Arc<InodeMem>)>() + 1)) as u64;
            usage.dropped += table.dropped;
        }
        usage
    }
}

/// See [`InodeCache::usage`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Entries now.
    pub(crate) entries: u64,
    /// DRAM of the tables that lead to them.
    pub(crate) tables_bytes: u64,
    /// Entries dropped since the mount.
    pub(crate) dropped: u64,
}

impl Usage {
    /// DRAM of an entry including the allocator's overhead, without the state under a directory's lock and without
    /// lists of pages.
    pub(crate) const ENTRY_BYTES: u64 = {
        /// The allocator's overhead, and the multiple it rounds up to.
        const CHUNK_HEAD: usize = 8;
        const CHUNK_STEP: usize = 16;
        let counted = 2 * size_of::<usize>() + size_of::<InodeMem>();
        (counted + CHUNK_HEAD).next_multiple_of(CHUNK_STEP) as u64
    };

    /// Total DRAM.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries * Self::ENTRY_BYTES + self.tables_bytes
    }
}

#[cfg(test)]
mod tests;

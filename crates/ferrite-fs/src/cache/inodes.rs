//! Inodes in DRAM: the locks, versions and counts of those that are in use now, or were a moment ago.
//!
//! What lives here: [`InodeMem`] and the sharded [`InodeCache`] that finds it by number. The content of an inode
//! stays on the medium; nothing here is ever written there.
//!
//! Invariants:
//! * While anybody holds an [`InodeMem`], every other finder of that number gets the same one.
//! * `last_seq` is at least the sequence number of every record that changed the inode: it orders records of
//!   different rings. When an entry is dropped its `last_seq` is remembered in a floor for all later ones.
//! * `version` is odd exactly while a holder of the exclusive lock may be changing the inode's words or mapping.
//!
//! How entries go. Who says that an inode will not be asked for soon ([`InodeCache::release`]: the kernel forgot it)
//! has its entry dropped at once. What is let go otherwise stays for a while, since a walk along a path pins and unpins
//! each directory on its way. Each shard counts its *news*: entries that were made, or whose last pin went, since it
//! was swept, each of them once. When there are half as many as entries, and [`NEWS_MIN`], it is swept: of the entries
//! that nobody uses, those that were no news go, and of the others all but [`KEEP_FILES`] and [`KEEP_DIRS`].
//!
//! So a sweep looks at three entries for each piece of news that it waited for, letting go again what is news already
//! costs one look at a flag, and unused entries are fewer than `IDLE_MAX` and one for each in use: after a sweep a
//! shard has at most `NEWS_MIN` of them, and with `u` in use and `i` not it is swept before `i - NEWS_MIN` exceeds both
//! `NEWS_MIN` and `(u + i) / 2`. A count that is lost in a race with a sweep makes the next one later by that one.

use std::cell::OnceCell;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::spread::Spread;

use crate::planted::{Flaw, planted};

/// Where mistakes are planted there are few shards, and they keep hardly anything: so the small pools on which these
/// are looked for sweep, too.
const SHARDS: usize = if cfg!(feature = "planted") { 2 } else { 64 };
/// Entries a sweep of a shard leaves although nobody uses them.
const KEEP_FILES: usize = if cfg!(feature = "planted") { 0 } else { 64 };
/// The same of directories whose lock protects something: to learn that again costs a look at all of their blocks.
const KEEP_DIRS: usize = if cfg!(feature = "planted") { 0 } else { 64 };
/// News without which a shard is not swept.
const NEWS_MIN: usize = KEEP_FILES + KEEP_DIRS;
/// Entries of a table that is not worth giving memory back for.
const TABLE_MIN: usize = 4;
/// Most entries that nobody uses, beside as many as are in use.
#[cfg(test)]
const IDLE_MAX: u64 = 2 * (NEWS_MIN * SHARDS) as u64;

#[derive(Default)]
struct Table {
    inodes: FxHashMap<u32, Arc<InodeMem>>,
    /// Entries that went.
    dropped: u64,
}

impl Table {
    /// Drops what nobody uses, but for the few that may stay; returns the newest `last_seq` of what went.
    fn sweep(&mut self) -> u64 {
        let (mut floor, before) = (0, self.inodes.len());
        let (mut files, mut dirs) = (KEEP_FILES, KEEP_DIRS);
        self.inodes.retain(|_, inode| {
            let was_news = inode.is_news();
            if was_news {
                inode.news.store(false, Ordering::Relaxed);
            }
            // Plain looks first: most entries of a long table are in use, and to keep one is never wrong.
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

    /// News that a sweep of so many entries is worth.
    fn news_max(&self) -> u32 {
        (self.inodes.len() / 2).max(NEWS_MIN) as u32
    }

    /// Gives memory of the table back when most of it is empty.
    fn shrink(&mut self) {
        let len = self.inodes.len().max(TABLE_MIN);
        if self.inodes.capacity() / 4 > len {
            self.inodes.shrink_to(len * 2);
        }
    }

    /// An entry that nobody else holds, for a new life of number `ino`, and whether there is one more now.
    fn fresh(&mut self, ino: u32, seq_floor: u64) -> (Arc<InodeMem>, bool) {
        let mut made = InodeMem::new(ino, seq_floor, Spread::nowhere());
        made.dead = AtomicBool::new(true);
        let mut is_more = true;
        if let Some(found) = self.inodes.get_mut(&ino) {
            is_more = false;
            made.news = AtomicBool::new(found.is_news());
            // Of the record that freed the number, or a later one: whoever freed it gave the number back after that,
            // and we have it from there.
            if !planted(Flaw::InodeUnordered) {
                made.last_seq = AtomicU64::new(seq_floor.max(found.last_seq()));
            }
            if let Some(unheld) = Arc::get_mut(found) {
                *unheld = made;
                return (Arc::clone(found), is_more);
            }
            // Somebody asked for a number that was free, and finds so: it looks at the words before it looks at this.
            found.set_dead();
        }
        let made = Arc::new(made);
        self.inodes.insert(ino, Arc::clone(&made));
        (made, is_more)
    }
}

/// An entry of a table that nobody holds and nobody has pinned. The caller has the table's lock.
///
/// Nobody can clone an entry of ours alone while we hold the shard. `get_mut` acquires what its last other holder
/// released when it dropped it, so the pins and the number that this one has set are seen here; to look at the count
/// alone would not do that.
fn unused(inode: &mut Arc<InodeMem>) -> Option<&mut InodeMem> {
    Arc::get_mut(inode).filter(|unheld| unheld.pins() == 0)
}

/// A part of the cache.
#[derive(Default)]
struct Shard {
    table: Mutex<Table>,
    /// News since the last sweep.
    news: AtomicU32,
    /// It is swept when there is more than that. Changed under the table's lock.
    news_max: AtomicU32,
}

impl Shard {
    /// Counts a known entry as news; it is none yet.
    fn count(&self, inode: &InodeMem) {
        inode.news.store(true, Ordering::Relaxed);
        self.news.fetch_add(1, Ordering::Relaxed);
    }

    fn is_due(&self) -> bool {
        self.news.load(Ordering::Relaxed) > self.news_max.load(Ordering::Relaxed)
    }
}

/// What a directory's lock protects besides its content: where the next entry may go.
///
/// Most inodes have none, so it is in a box: which is made by the first change of the directory.
#[derive(Debug, Default)]
pub(crate) struct DirHints {
    /// Logical blocks below this were searched, and those that had space are among the roomy ones, or were too small
    /// for a name since.
    pub(crate) searched: u64,
    /// Logical blocks in which space was seen or an entry was removed.
    pub(crate) roomy: Roomy,
    /// Offset in the directory of a free entry that the last insert left behind.
    pub(crate) tail: Option<u64>,
}

/// Most blocks with room that a directory remembers.
const ROOMY_MAX: usize = 1024;

/// Blocks of a directory, each once, the one noted last on top.
#[derive(Debug, Default)]
pub(crate) struct Roomy {
    list: Vec<u32>,
    listed: FxHashSet<u32>,
}

impl Roomy {
    /// The block on top.
    pub(crate) fn last(&self) -> Option<u32> {
        self.list.last().copied()
    }

    /// Takes the block on top away.
    pub(crate) fn pop(&mut self) {
        if let Some(lblk) = self.list.pop() {
            self.listed.remove(&lblk);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= ROOMY_MAX
    }
}

impl DirHints {
    /// Notes that block `lblk` may have room. If too many have, it is found again by the next search.
    pub(crate) fn note_roomy(&mut self, lblk: u32) {
        if self.roomy.last() == Some(lblk) || self.roomy.listed.contains(&lblk) {
            return;
        }
        if self.roomy.is_full() {
            self.searched = self.searched.min(u64::from(lblk));
            return;
        }
        self.roomy.list.push(lblk);
        self.roomy.listed.insert(lblk);
    }
}

/// What an inode's lock protects.
type Hints = Option<Box<DirHints>>;

/// One inode in use. There may be millions, so it is small: it shares cache lines with what was allocated beside it,
/// and what is seldom written comes last.
#[repr(C)]
pub(crate) struct InodeMem {
    lock: RwLock<Hints>,
    version: AtomicU64,
    /// Pins of front ends and open handles.
    pins: AtomicU64,
    last_seq: AtomicU64,
    /// Its number.
    pub(crate) ino: u32,
    /// Its checksum was found right, or was made by us, since it came into DRAM.
    verified: AtomicBool,
    /// Freed: whoever gets the lock after this is set must act as if it had not found the inode.
    dead: AtomicBool,
    /// Counted among the shard's news.
    news: AtomicBool,
    /// Where it may have pages.
    pub(crate) spread: Spread,
}

impl InodeMem {
    fn new(ino: u32, last_seq: u64, spread: Spread) -> Self {
        InodeMem {
            lock: RwLock::default(),
            version: AtomicU64::new(0),
            pins: AtomicU64::new(0),
            last_seq: AtomicU64::new(last_seq),
            ino,
            verified: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            news: AtomicBool::new(true),
            spread,
        }
    }

    /// Shared lock: content and names cannot change.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Hints> {
        self.lock.read()
    }

    /// Whether the checksum needs no look any more: the words have been under our control since the last.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    pub(crate) fn set_verified(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    /// Shared lock, if nobody has the exclusive one or waits for it.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, Hints>> {
        self.lock.try_read()
    }

    /// Exclusive lock, if nobody has any lock.
    pub(crate) fn try_write(self: &Arc<Self>) -> Option<Exclusive<'_>> {
        self.lock.try_write().map(|hints| Exclusive { hints, inode: self })
    }

    /// Exclusive lock.
    pub(crate) fn write(self: &Arc<Self>) -> Exclusive<'_> {
        Exclusive {
            hints: self.lock.write(),
            inode: self,
        }
    }

    /// Starts an optimistic read; `None` while a change is going on.
    pub(crate) fn begin_read(&self) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        version.is_multiple_of(2).then_some(version)
    }

    /// Whether everything read since [`Self::begin_read`] belongs to one state.
    pub(crate) fn end_read(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }

    /// Announces that words are about to change; the caller holds the lock exclusively, or nobody else knows
    /// the inode yet. Ends when the [`Exclusive`] guard is dropped.
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

    /// Notes a record; under the exclusive lock.
    pub(crate) fn set_last_seq(&self, seq: u64) {
        self.last_seq.store(seq, Ordering::Relaxed);
    }

    pub(crate) fn pins(&self) -> u64 {
        self.pins.load(Ordering::Acquire)
    }

    /// Adds pins; the caller holds the lock and has seen the inode alive.
    pub(crate) fn pin(&self, count: u64) {
        self.pins.fetch_add(count, Ordering::AcqRel);
    }

    /// Takes pins back; true if none is left. More than were given count as all.
    pub(crate) fn unpin(&self, count: u64) -> bool {
        let mut left = 0;
        let _ = self.pins.fetch_update(Ordering::AcqRel, Ordering::Acquire, |pins| {
            left = pins.saturating_sub(count);
            Some(left)
        });
        left == 0
    }

    fn is_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Marks it freed, or not made after all; under the exclusive lock.
    pub(crate) fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Marks it made; under the exclusive lock, before its record is committed.
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
    /// At least the `last_seq` of every entry that was dropped. Raised and read under the lock of a shard, and a number
    /// is always in the same shard: so whoever makes an entry again sees what was noted when it was dropped, with
    /// relaxed accesses, too.
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

    fn shard(&self, ino: u32) -> &Shard {
        &self.shards[ino as usize % SHARDS]
    }

    /// Notes the `last_seq` of what is dropped from `_table`, which is locked from before it goes until this is done.
    fn raise_floor(&self, _table: &mut MutexGuard<'_, Table>, last_seq: u64) {
        if !planted(Flaw::SweepForgetsFloor) && last_seq > self.seq_floor.load(Ordering::Relaxed) {
            self.seq_floor.fetch_max(last_seq, Ordering::Relaxed);
        }
    }

    /// Sweeps the shard whose table this is, if there is news enough.
    fn sweep_if_due(&self, shard: &Shard, table: &mut MutexGuard<'_, Table>) {
        if !shard.is_due() {
            return;
        }
        let floor = table.sweep();
        self.raise_floor(table, floor);
        shard.news.store(0, Ordering::Relaxed);
        shard.news_max.store(table.news_max(), Ordering::Relaxed);
    }

    /// The entry of `ino`, made if there is none. Says nothing about whether the inode is in use.
    pub(crate) fn get(&self, ino: u32) -> Arc<InodeMem> {
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        if let Some(found) = table.inodes.get(&ino) {
            return Arc::clone(found);
        }
        self.sweep_if_due(shard, &mut table);
        let seq_floor = self.seq_floor.load(Ordering::Relaxed);
        let made = Arc::new(InodeMem::new(ino, seq_floor, Spread::everywhere()));
        table.inodes.insert(ino, Arc::clone(&made));
        shard.news.fetch_add(1, Ordering::Relaxed);
        made
    }

    /// Puts the entry of a number just claimed for a new file in `place`, locked and dead until
    /// [`InodeMem::set_alive`]. The entry of the file that had the number before serves again if nobody holds it; a
    /// holder keeps it, dead for good.
    ///
    /// Never waits for the lock, so the caller may hold any other inode's.
    pub(crate) fn fresh<'a>(&self, ino: u32, place: &'a OnceCell<Arc<InodeMem>>) -> Exclusive<'a> {
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        let entry = place.get_or_init(|| {
            self.sweep_if_due(shard, &mut table);
            let (entry, is_more) = table.fresh(ino, self.seq_floor.load(Ordering::Relaxed));
            shard.news.fetch_add(u32::from(is_more), Ordering::Relaxed);
            entry
        });
        // Nobody else has the entry, and nobody can get it while we hold the shard.
        entry.try_write().expect("a fresh entry is unlocked")
    }

    /// Takes note that the last pin of `inode` went; it may be asked for again. The caller holds no lock of the cache.
    pub(crate) fn let_go(&self, inode: &InodeMem) {
        if inode.is_news() {
            return;
        }
        let shard = self.shard(inode.ino);
        shard.count(inode);
        if shard.is_due() {
            self.sweep_if_due(shard, &mut shard.table.lock());
        }
    }

    /// Drops the entry `inode`, which will not be asked for soon, unless somebody else holds it or has pinned it.
    pub(crate) fn release(&self, inode: Arc<InodeMem>) {
        let ino = inode.ino;
        let shard = self.shard(ino);
        let mut table = shard.table.lock();
        // Under the lock, so that of two who release it the second drops it.
        drop(inode);
        let Entry::Occupied(mut entry) = table.inodes.entry(ino) else {
            return;
        };
        let Some(unused) = unused(entry.get_mut()) else {
            // Its holder may let go of it without a word.
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

    /// What the cache takes, and has dropped.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for shard in &self.shards {
            let table = shard.table.lock();
            // Of a table's places seven of eight are used, and each has a byte beside its content.
            let places = (table.inodes.capacity() * 8).div_ceil(7);
            usage.entries += table.inodes.len() as u64;
            usage.tables_bytes += (places * (size_of::<(u32, Arc<InodeMem>)>() + 1)) as u64;
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
    /// Entries that went, since the mount.
    pub(crate) dropped: u64,
}

impl Usage {
    /// DRAM of an entry with the allocator's share, without what the lock of a directory protects and without lists of
    /// pages.
    pub(crate) const ENTRY_BYTES: u64 = {
        /// What the allocator adds, and rounds up to.
        const CHUNK_HEAD: usize = 8;
        const CHUNK_STEP: usize = 16;
        let counted = 2 * size_of::<usize>() + size_of::<InodeMem>();
        (counted + CHUNK_HEAD).next_multiple_of(CHUNK_STEP) as u64
    };

    /// DRAM of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries * Self::ENTRY_BYTES + self.tables_bytes
    }
}

#[cfg(test)]
mod tests;

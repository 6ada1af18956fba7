//! Inodes in DRAM: the locks, versions and counts of those that are in use now.
//!
//! What lives here: [`InodeMem`] and the sharded [`InodeCache`] that finds it by number. The content of an inode
//! stays on the medium; nothing here is ever written there.
//!
//! Invariants:
//! * While anybody holds an [`InodeMem`], every other finder of that number gets the same one.
//! * `last_seq` is at least the sequence number of every record that changed the inode: it orders records of
//!   different rings. When an entry is dropped its `last_seq` is remembered in a floor for all later ones.
//! * `version` is odd exactly while a holder of the exclusive lock may be changing the inode's words or mapping.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::spread::Spread;

use crate::planted::{Flaw, planted};

/// Where mistakes are planted there are few shards, and they keep hardly anything: so the small pools on which these
/// are looked for sweep, too.
const SHARDS: usize = if cfg!(feature = "planted") { 2 } else { 64 };
/// Entries a shard keeps although nobody uses them.
const KEEP_PER_SHARD: usize = if cfg!(feature = "planted") { 1 } else { 256 };

#[derive(Default)]
struct Shard {
    inodes: FxHashMap<u32, Arc<InodeMem>>,
    /// Look for unused entries when there are this many; doubles with what is in use, so that a sweep is paid for
    /// by as many inserts.
    sweep_at: usize,
}

impl Shard {
    /// Drops what nobody uses; returns the newest `last_seq` of that.
    fn sweep(&mut self) -> u64 {
        let mut floor = 0;
        self.inodes.retain(|_, inode| {
            // Nobody can clone an entry of ours alone while we hold the shard. `get_mut` acquires what its last other
            // holder released when it dropped it, so the pins and the number that this one has set are seen here; to
            // look at the count alone would not do that.
            let Some(unheld) = Arc::get_mut(inode) else { return true };
            let keep = *unheld.pins.get_mut() > 0;
            if !keep {
                floor = floor.max(*unheld.last_seq.get_mut());
            }
            keep
        });
        floor
    }

    /// An entry that nobody else holds, for a new life of number `ino`.
    fn fresh(&mut self, ino: u32, seq_floor: u64) -> Arc<InodeMem> {
        let mut made = InodeMem::new(ino, seq_floor, Spread::nowhere());
        made.dead = AtomicBool::new(true);
        if let Some(found) = self.inodes.get_mut(&ino) {
            // Of the record that freed the number, or a later one: whoever freed it gave the number back after that,
            // and we have it from there.
            if !planted(Flaw::InodeUnordered) {
                made.last_seq = AtomicU64::new(seq_floor.max(found.last_seq()));
            }
            if let Some(unheld) = Arc::get_mut(found) {
                *unheld = made;
                return Arc::clone(found);
            }
            // Somebody asked for a number that was free, and finds so: it looks at the words before it looks at this.
            found.set_dead();
        }
        let made = Arc::new(made);
        self.inodes.insert(ino, Arc::clone(&made));
        made
    }
}

/// What a directory's lock protects besides its content: where the next entry may go.
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

/// One inode in use.
#[repr(align(64))]
pub(crate) struct InodeMem {
    /// Its number.
    pub(crate) ino: u32,
    version: AtomicU64,
    last_seq: AtomicU64,
    /// Pins of front ends and open handles.
    pins: AtomicU64,
    /// Its checksum was found right, or was made by us, since it came into DRAM.
    verified: AtomicBool,
    /// Freed: whoever gets the lock after this is set must act as if it had not found the inode.
    dead: AtomicBool,
    /// Where it may have pages.
    pub(crate) spread: Spread,
    lock: RwLock<DirHints>,
}

impl InodeMem {
    fn new(ino: u32, last_seq: u64, spread: Spread) -> Self {
        InodeMem {
            ino,
            version: AtomicU64::new(0),
            last_seq: AtomicU64::new(last_seq),
            pins: AtomicU64::new(0),
            verified: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            spread,
            lock: RwLock::default(),
        }
    }

    /// Shared lock: content and names cannot change.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, DirHints> {
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
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, DirHints>> {
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
    pub(crate) hints: RwLockWriteGuard<'a, DirHints>,
    pub(crate) inode: &'a Arc<InodeMem>,
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // Before the lock is released: fields are dropped after this.
        self.inode.end_change();
    }
}

/// Finds inodes in use by number.
pub(crate) struct InodeCache {
    shards: Box<[Mutex<Shard>]>,
    /// At least the `last_seq` of every entry that was dropped. Raised and read under the lock of a shard, and a number
    /// is always in the same shard: so whoever makes an entry again sees what was noted when it was dropped, with
    /// relaxed accesses, too.
    seq_floor: AtomicU64,
}

impl InodeCache {
    pub(crate) fn new(seq_floor: u64) -> Self {
        InodeCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            seq_floor: AtomicU64::new(seq_floor),
        }
    }

    fn shard(&self, ino: u32) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// The entry of `ino`, made if there is none. Says nothing about whether the inode is in use.
    pub(crate) fn get(&self, ino: u32) -> Arc<InodeMem> {
        let mut shard = self.shard(ino).lock();
        if let Some(found) = shard.inodes.get(&ino) {
            return Arc::clone(found);
        }
        if shard.inodes.len() >= shard.sweep_at.max(KEEP_PER_SHARD) {
            let floor = shard.sweep();
            if !planted(Flaw::SweepForgetsFloor) {
                self.seq_floor.fetch_max(floor, Ordering::Relaxed);
            }
            shard.sweep_at = shard.inodes.len() * 2;
        }
        let seq_floor = self.seq_floor.load(Ordering::Relaxed);
        let made = Arc::new(InodeMem::new(ino, seq_floor, Spread::everywhere()));
        shard.inodes.insert(ino, Arc::clone(&made));
        made
    }

    /// Puts the entry of a number just claimed for a new file in `place`, locked and dead until [`InodeMem::set_alive`]. The
    /// entry of the file that had the number before serves again if nobody holds it; a holder keeps it, dead for good.
    ///
    /// Never waits for the lock, so the caller may hold any other inode's.
    pub(crate) fn fresh<'a>(&self, ino: u32, place: &'a OnceCell<Arc<InodeMem>>) -> Exclusive<'a> {
        let mut shard = self.shard(ino).lock();
        let entry = place.get_or_init(|| shard.fresh(ino, self.seq_floor.load(Ordering::Relaxed)));
        // Nobody else has the entry, and nobody can get it while we hold the shard.
        entry.try_write().expect("a fresh entry is unlocked")
    }

    /// Entries now.
    pub(crate) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().inodes.len() as u64).sum()
    }

    /// DRAM an entry takes, with its share of the table.
    pub(crate) fn bytes_per_entry() -> u64 {
        (size_of::<InodeMem>() + 2 * size_of::<usize>() + 2 * size_of::<(u32, Arc<InodeMem>)>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of one shard.
    fn number(n: u32) -> u32 {
        1 + n * SHARDS as u32
    }

    /// Enough other entries that the shard is swept.
    fn crowd(cache: &InodeCache) {
        (0..2 * KEEP_PER_SHARD as u32 + 2).for_each(|n| drop(cache.get(number(100 + n))));
    }

    #[test]
    fn an_entry_that_was_swept_comes_back_with_its_newest_number() {
        let cache = InodeCache::new(5);
        cache.get(number(0)).set_last_seq(77);
        crowd(&cache);
        assert!(cache.len() <= 2 * KEEP_PER_SHARD as u64 + 2, "nothing was swept");
        assert!(
            cache.get(number(0)).last_seq() >= 77,
            "its next record would come before its last"
        );
        assert_eq!(InodeCache::new(5).get(number(0)).last_seq(), 5);
    }

    #[test]
    fn what_is_held_or_pinned_is_not_swept() {
        let cache = InodeCache::new(0);
        let held = cache.get(number(0));
        cache.get(number(1)).pin(1);
        crowd(&cache);
        assert!(Arc::ptr_eq(&held, &cache.get(number(0))), "two entries for one inode");
        assert_eq!(cache.get(number(1)).pins(), 1);
        cache.get(number(1)).unpin(1);
        drop(held);
    }

    #[test]
    fn a_number_that_is_used_again_keeps_the_newest_of_its_former_life() {
        let cache = InodeCache::new(5);
        cache.get(7).set_last_seq(40);
        // Nobody holds the entry, which serves again; then somebody does, and keeps it.
        let first = OnceCell::new();
        assert_eq!(cache.fresh(7, &first).inode.last_seq(), 40);
        first.get().unwrap().set_last_seq(41);
        let second = OnceCell::new();
        assert_eq!(cache.fresh(7, &second).inode.last_seq(), 41);
        assert!(!Arc::ptr_eq(first.get().unwrap(), second.get().unwrap()));
    }

    /// A holder notes a number and a pin, and lets go; whoever sweeps then sees both.
    #[test]
    fn a_sweep_sees_what_the_last_holder_did() {
        for round in 0..200 {
            let cache = InodeCache::new(0);
            let mem = cache.get(number(0));
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    mem.set_last_seq(100 + round);
                    mem.pin(round % 2);
                });
                scope.spawn(|| crowd(&cache));
            });
            crowd(&cache);
            let found = cache.get(number(0));
            assert!(found.last_seq() >= 100 + round, "round {round}");
            assert_eq!(found.pins(), round % 2, "round {round}");
        }
    }
}

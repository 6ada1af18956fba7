//! Entries keep their state when they come back, stay while they are used, and are dropped when they are not.

use super::*;

/// Numbers of one shard.
fn number(n: u32) -> Inum {
    Inum::new(1 + n * SHARDS as u32)
}

/// Enough other entries that the shard is swept twice: news of the first sweep is not news at the second.
fn crowd(cache: &InodeCache) {
    (0..4 * NEWS_MIN as u32 + 4).for_each(|n| drop(cache.get(number(100 + n))));
}

fn len(cache: &InodeCache) -> u64 {
    cache.usage().entries
}

#[test]
fn an_entry_that_was_swept_comes_back_with_its_newest_number() {
    let cache = InodeCache::new(5);
    cache.get(number(0)).set_last_seq(77);
    cache.get(number(0)).set_verified();
    crowd(&cache);
    assert!(!cache.get(number(0)).is_verified(), "it was not swept");
    assert!(
        cache.get(number(0)).last_seq() >= 77,
        "its next record would come before its last"
    );
    assert_eq!(InodeCache::new(5).get(number(0)).last_seq(), 5);
}

#[test]
fn an_entry_that_was_released_comes_back_with_its_newest_number() {
    let cache = InodeCache::new(5);
    let (mine, other) = (cache.get(number(0)), cache.get(number(0)));
    mine.set_last_seq(77);
    cache.release(mine);
    assert_eq!(len(&cache), 1, "somebody holds it");
    other.pin(1);
    cache.release(other);
    assert_eq!(len(&cache), 1, "it is pinned");
    let pinned = cache.get(number(0));
    pinned.unpin(1);
    cache.release(pinned);
    assert_eq!(len(&cache), 0);
    assert!(cache.get(number(0)).last_seq() >= 77);
}

/// Unpinned entries are dropped, even if no new ones come; entries that are used again and again stay.
#[test]
fn unused_entries_stay_within_their_bound() {
    const MANY: u32 = 100_000;
    let cache = InodeCache::new(0);
    let pinned = |ino| {
        let inode = cache.get(ino);
        inode.pin(1);
        inode
    };
    let unpin = |inode: Arc<InodeMem>| {
        inode.unpin(1);
        cache.unpinned(&inode);
    };
    let mut open: Vec<_> = (1..MANY).map(Inum::new).map(pinned).collect();
    assert_eq!(len(&cache), u64::from(MANY) - 1, "what is pinned is not swept");
    let full_bytes = cache.usage().bytes();
    while let Some(inode) = open.pop() {
        unpin(inode);
        let in_use = open.len() as u64;
        if in_use.is_multiple_of(1000) {
            assert!(len(&cache) <= 2 * in_use + IDLE_MAX + SHARDS as u64, "{in_use} in use");
        }
    }
    let bytes = cache.usage().bytes();
    assert!(bytes < full_bytes / 3, "{bytes} of {full_bytes} bytes are kept");
    // Also when entries come and go, one after the other.
    (1..MANY).for_each(|ino| unpin(pinned(Inum::new(ino))));
    (1..MANY).for_each(|ino| drop(cache.fresh(Inum::new(ino), &OnceCell::new())));
    assert!(len(&cache) <= IDLE_MAX + SHARDS as u64);
}

#[test]
fn a_directory_in_use_keeps_what_was_learnt_of_it() {
    if KEEP_DIRS == 0 {
        return;
    }
    let cache = InodeCache::new(0);
    cache.get(number(0)).write().hints().searched = 9;
    for n in 0..20 * NEWS_MIN as u32 {
        let passed = cache.get(number(0));
        passed.pin(1);
        passed.unpin(1);
        cache.unpinned(&passed);
        drop(passed);
        drop(cache.get(number(100 + n)));
    }
    assert_eq!(cache.get(number(0)).write().hints().searched, 9);
}

/// Checks the manual's figure for the memory of a known inode.
#[test]
fn an_entry_is_small() {
    const MANY: u32 = 200_000;
    let cache = InodeCache::new(0);
    (1..=MANY).for_each(|ino| cache.get(Inum::new(ino)).pin(1));
    let usage = cache.usage();
    assert_eq!((usage.entries, usage.dropped), (u64::from(MANY), 0));
    assert!(
        usage.bytes() <= 136 * u64::from(MANY),
        "{} bytes each",
        usage.bytes() / u64::from(MANY)
    );
}

#[test]
fn what_is_held_or_pinned_is_not_swept() {
    let cache = InodeCache::new(0);
    let held = cache.get(number(0));
    cache.get(number(1)).pin(1);
    cache.unpinned(&held);
    crowd(&cache);
    assert!(Arc::ptr_eq(&held, &cache.get(number(0))), "two entries for one inode");
    assert_eq!(cache.get(number(1)).pins(), 1);
    cache.get(number(1)).unpin(1);
    drop(held);
}

#[test]
fn a_number_that_is_used_again_keeps_the_newest_of_its_former_life() {
    let cache = InodeCache::new(5);
    cache.get(Inum::new(7)).set_last_seq(40);
    // The entry has no holder, so it is reused; then it has one, which keeps it.
    let first = OnceCell::new();
    assert_eq!(cache.fresh(Inum::new(7), &first).inode.last_seq(), 40);
    first.get().unwrap().set_last_seq(41);
    let second = OnceCell::new();
    assert_eq!(cache.fresh(Inum::new(7), &second).inode.last_seq(), 41);
    assert!(!Arc::ptr_eq(first.get().unwrap(), second.get().unwrap()));
}

/// A holder notes a sequence number and a pin, and drops the entry; a sweep afterwards sees both.
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

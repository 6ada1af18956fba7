//! Tests specific to the cuckoo table: moves and their order, walks and swings meanwhile, damage. Runs have a separate
//! file.

use crate::testing::{WORDS, log_of, page_of, word_of};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use super::moves::Wish;
use super::*;
use crate::testing::{self, Bed, Rng, Subject, for_seeds};
use crate::{Mapping, PageId, StoredWord};

mod runs;

impl Subject for Cuckoo {
    const MAPPING: Mapping = Mapping::Cuckoo;

    fn mount(region: Arc<Region>, geometry: Geometry) -> Self {
        Cuckoo::new(region, geometry)
    }
}

testing::mapping_tests!(Cuckoo);
testing::moves::moving_tests!(Cuckoo);

/// The faults that a check finds.
fn faults(map: &Cuckoo) -> Vec<Broken> {
    let mut faults = Vec::new();
    map.check(&mut |_| {}, &mut |_| {}, &mut |broken| faults.push(broken));
    faults
}

fn slot_of(map: &Cuckoo, ino: u32, lblk: u32) -> u64 {
    map.find(PageId::from_raw(ino, lblk).key()).expect("mapped")
}

/// A word that no run can have.
fn lone_word(bed: &Bed<Cuckoo>, tag: u32) -> PageWord {
    word_of(bed.geometry.first_block, tag | 1)
}

/// With moves a table holds far more than the 0.8 that a full pool needs. Whole files in order, as in real pools.
#[test]
fn moves_fill_the_table_to_95_percent() {
    for_seeds(2, |seed| {
        let bed = Bed::<Cuckoo>::new(20_000, seed);
        let page = |n: u64| (1 + (n / 500) as u32, (n % 500) as u32);
        let (mut pages, mut moves_at_80) = (0, 0);
        loop {
            let (ino, lblk) = page(pages);
            match bed.insert_word(ino, lblk, lone_word(&bed, lblk)) {
                Ok(()) => pages += 1,
                Err(error) => break assert_eq!(error, MapError::TableFull),
            }
            if pages * 5 == bed.map.geometry.slots * 4 {
                moves_at_80 = bed.map.moves.count();
            }
        }
        let load = |pages: u64| pages as f64 / bed.map.geometry.slots as f64;
        println!(
            "load {:.4} reached by {} moves, {moves_at_80} of them up to 0.8",
            load(pages),
            bed.map.moves.count()
        );
        assert!(moves_at_80 < pages / 50, "{moves_at_80} moves up to a load of 0.8");
        assert!(load(pages) >= 0.95, "full at {}", load(pages));
        assert_eq!(faults(&bed.map), []);
        let (map, found) = bed.remounted();
        assert_eq!(found.expect("sound").len() as u64, pages);
        assert_eq!(map.slots(), bed.map.slots());
        for n in 0..pages {
            let (ino, lblk) = page(n);
            assert_eq!(map.get(PageId::from_raw(ino, lblk)), lone_word(&bed, lblk));
        }
    });
}

/// The homes of a pool's keys are not the swapped homes of other keys, whatever the requested seed. With seed 1,
/// `key ^ 1` has them, and half of the pairs of buckets get twice the pages.
#[test]
fn no_seed_lets_two_pages_share_both_homes() {
    let pairs = |seed: u64| {
        let geometry = Geometry {
            area_offset: 0,
            slots: Cuckoo::slots_for(40_000),
            first_block: BlockNo::new(1),
            blocks: 40_000,
            inodes: 1000,
            seed,
            keys_in_reach: true,
            words: WORDS,
        };
        let region = Region::anonymous(Cuckoo::area_bytes(geometry.slots)).expect("memory");
        let map = Cuckoo::new(Arc::new(region), geometry);
        let keys = (1..500).flat_map(|ino| (0..60).map(move |lblk| PageId::from_raw(ino, lblk).key()));
        let homes: HashSet<Homes> = keys
            .map(|key| {
                let mut homes = map.homes(key);
                homes.sort_unstable();
                homes
            })
            .collect();
        homes.len()
    };
    let all = 499 * 60;
    assert!(pairs(1) < all * 6 / 10, "seed 1 is the example");
    for wanted in (0..40).chain([u64::MAX, 1 << 63, 12_345]) {
        let seed = Mapping::Cuckoo.seed_for(wanted);
        let found = pairs(seed);
        assert!(
            found > all * 99 / 100,
            "seed {wanted}, taken as {seed}: {found} pairs for {all} pages"
        );
    }
}

/// Entries of files at rest are found, whole and once, by pages, by walks and through hints, and can be swung, while
/// other files make them move.
#[test]
fn moves_hide_nothing_from_readers() {
    for_seeds(3, |seed| {
        const RESTING: u32 = 700;
        const LOGGED: u32 = 701;
        let bed = &Bed::<Cuckoo>::new(2000, seed);
        let resting: Vec<PageWord> = (0..600).map(|lblk| bed.insert(RESTING, lblk).expect("space")).collect();
        for lblk in 0..50 {
            bed.insert_word(LOGGED, lblk, lone_word(bed, lblk)).expect("space");
        }
        let done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cache = TransCache::default();
                let mut rng = Rng::new(seed);
                while !done.load(Ordering::Relaxed) {
                    let first = rng.below(580) as usize;
                    let mut words = [PageWord::HOLE; 20];
                    bed.map
                        .get_many(PageId::from_raw(RESTING, first as u32), &mut words, &cache);
                    assert_eq!(words, resting[first..first + 20]);
                    assert_eq!(bed.map.get(PageId::from_raw(RESTING, first as u32)), resting[first]);
                    assert!(bed.map.get(PageId::from_raw(RESTING, 600 + first as u32)).is_hole());
                }
            });
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for end in [u64::from(u32::MAX), 200] {
                        let mut seen = BTreeMap::new();
                        bed.map.for_range(Inum::new(RESTING), Lblk::FIRST, end, &mut |entry| {
                            assert_eq!(seen.insert(entry.lblk, entry.word), None, "{entry:?} again");
                            true
                        });
                        let expected = resting.iter().take(end as usize).copied().enumerate();
                        assert!(
                            seen.into_iter()
                                .eq(expected.map(|(at, word)| (Lblk::new(at as u32), word)))
                        );
                    }
                }
            });
            scope.spawn(|| {
                let mut words: Vec<PageWord> = (0..50).map(|lblk| lone_word(bed, lblk)).collect();
                let mut rng = Rng::new(!seed);
                while !done.load(Ordering::Relaxed) {
                    let lblk = rng.below(50) as u32;
                    let old = words[lblk as usize];
                    assert_eq!(bed.map.get(PageId::from_raw(LOGGED, lblk)), old);
                    let new = lone_word(bed, log_of(old) + 2);
                    if bed.map.swing(PageId::from_raw(LOGGED, lblk), old, new).is_some() {
                        words[lblk as usize] = new;
                    }
                }
            });
            let mut rng = Rng::new(seed ^ 1);
            let slots = bed.geometry.slots;
            let mut pages: Vec<u32> = Vec::new();
            let mut next = 0;
            for _ in 0..5_000 {
                if bed.map.slots().free * 25 > slots {
                    // Once the last slots are taken, one key may find no slot while the next finds one.
                    if bed.insert_word(1, next, lone_word(bed, next)).is_ok() {
                        pages.push(next);
                    }
                    next += 1;
                } else {
                    let victim = rng.below(pages.len() as u64) as usize;
                    let lblk = pages.swap_remove(victim);
                    assert_eq!(bed.remove(1, lblk, false), lone_word(bed, lblk));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        println!("{} moves", bed.map.moves.count());
        assert!(bed.map.moves.count() > 500);
        assert_eq!(faults(&bed.map), []);
    });
}

/// Fills a table backwards, so that all pages after the next one are mapped, until page `n` of inode 1 has full homes.
/// The wishes are forgotten.
fn fill_until_full(bed: &Bed<Cuckoo>) -> u32 {
    for lblk in (0..=u32::MAX).rev() {
        let mut tx = bed.tx();
        if bed
            .map
            .insert(&mut tx, PageId::from_raw(1, lblk), lone_word(bed, lblk))
            .is_err()
        {
            drop(tx);
            bed.map.moves.wishes().clear();
            return lblk;
        }
        tx.commit(&bed.region);
    }
    unreachable!("never full")
}

/// A chain of moves is one record that sets each entry's word and range before its key, and clears the last key first.
#[test]
fn a_chain_of_moves_is_one_record() {
    let mut longest = 0;
    for seed in 0..200 {
        let bed = Bed::<Cuckoo>::new(60, seed);
        let lblk = fill_until_full(&bed);
        let mut tx = bed.tx();
        assert_eq!(
            bed.map
                .insert(&mut tx, PageId::from_raw(1, lblk), lone_word(&bed, lblk)),
            Err(MapError::TableFull)
        );
        drop(tx);
        let mut tx = bed.tx();
        let Ok(true) = bed.map.make_space(&mut tx) else {
            continue;
        };
        let words = tx.words.clone();
        let moved = words.len() / 3 - 1;
        longest = longest.max(moved);
        for entry in words[..moved * 3].chunks(3) {
            assert_eq!(entry[0].offset, entry[2].offset + WORDS_AT);
            assert_eq!(entry[1].offset, entry[2].offset + RANGES_AT);
            assert_ne!(entry[2].value, 0);
        }
        let key_offset = words[moved * 3].offset;
        assert_eq!(
            words[moved * 3..],
            [0, WORDS_AT, RANGES_AT].map(|at| StoredWord::new(key_offset + at, 0))
        );
        let (&[Resource::MapSlot(claimed)], &[Resource::MapSlot(freed)]) = (&tx.claimed[..], &tx.freed[..]) else {
            panic!("{:?} {:?}", tx.claimed, tx.freed)
        };
        assert_eq!(bed.map.key_offset(u64::from(freed)), key_offset);
        assert_eq!(bed.map.word_offset(u64::from(claimed)), words[0].offset);
        assert!(
            bed.map.used.is_set(u64::from(freed)),
            "free before the record is durable"
        );
        tx.commit(&bed.region);
        bed.insert_word(1, lblk, lone_word(&bed, lblk))
            .expect("there is space now");
        assert_eq!(faults(&bed.map), []);
        for lblk in lblk..=u32::MAX {
            assert_eq!(bed.map.get(PageId::from_raw(1, lblk)), lone_word(&bed, lblk));
        }
    }
    println!("longest chain: {longest}");
    assert!(longest >= 2, "no chain of two moves in 200 tables");
}

/// A write of many pages fails for few of them, even if one page of eleven finds its homes full.
#[test]
fn space_is_made_for_the_pages_that_follow() {
    let bed = Bed::<Cuckoo>::new(20_000, 4);
    let target = bed.geometry.slots * 4 / 5;
    let write = |first: u32, count: u32| {
        let mut failures = 0;
        loop {
            let mut tx = bed.tx();
            let done = (first..first + count).try_for_each(|lblk| {
                bed.map
                    .insert(&mut tx, PageId::from_raw(2, lblk), lone_word(&bed, lblk))
            });
            match done {
                Ok(()) => {
                    tx.commit(&bed.region);
                    return failures;
                }
                Err(error) => assert_eq!(error, MapError::TableFull),
            }
            drop(tx);
            failures += 1;
            assert!(bed.make_space(), "full at {:?}", bed.map.slots());
        }
    };
    for first in (0..target as u32 - 512).step_by(256) {
        write(first, 256);
    }
    let failures = write(1 << 20, 512);
    println!("512 pages at a load of 0.8: {failures} failures");
    assert!(failures <= 12, "{failures} failures");
    assert_eq!(faults(&bed.map), []);
}

/// An aborted move leaves everything in place, and its slot free.
#[test]
fn an_aborted_move_changes_nothing() {
    let bed = Bed::<Cuckoo>::new(2000, 9);
    let lblk = fill_until_full(&bed);
    let free = bed.map.slots();
    let key = PageId::from_raw(1, lblk).key();
    bed.map.moves.wish(Wish { key, first: key });
    let mut tx = bed.tx();
    assert_eq!(bed.map.make_space(&mut tx), Ok(true));
    assert!(!tx.words.is_empty());
    drop(tx);
    assert_eq!(bed.map.slots(), free);
    assert_eq!(faults(&bed.map), []);
}

/// A slot that was freed but is not reusable yet needs no move: the engine reclaims before it retries.
#[test]
fn a_slot_on_its_way_back_is_space() {
    let bed = Bed::<Cuckoo>::new(2000, 7);
    let lblk = fill_until_full(&bed);
    let key = PageId::from_raw(1, lblk).key();
    let victim = bed.map.entry(bed.map.homes(key)[1] * NUMBERS).expect("full");
    let mut removal = bed.tx();
    bed.map
        .remove(&mut removal, PageId::new(victim.ino, victim.lblk))
        .expect("removing needs no space");
    for &StoredWord { offset, value } in &removal.words {
        bed.region.store(offset, value);
    }
    let mut tx = bed.tx();
    assert_eq!(
        bed.map.insert(&mut tx, PageId::from_raw(1, lblk), lone_word(&bed, 1)),
        Err(MapError::TableFull)
    );
    drop(tx);
    let mut tx = bed.tx();
    assert_eq!(bed.map.make_space(&mut tx), Ok(true));
    assert_eq!(tx.words, []);
    assert_eq!(bed.map.make_space(&mut tx), Ok(false), "a wish is fulfilled once");
    drop(tx);
    removal.commit(&bed.region);
    bed.insert_word(1, lblk, lone_word(&bed, 1)).expect("its slot is back");
}

/// Each insert that fails gets one wish fulfilled, whichever call fulfils which wish. Without wishes nothing moves.
#[test]
fn every_failed_insert_gets_one_wish_fulfilled() {
    let bed = Bed::<Cuckoo>::new(2000, 8);
    assert!(!bed.make_space());
    let lblk = fill_until_full(&bed);
    for _ in 0..3 {
        let mut tx = bed.tx();
        assert!(
            bed.map
                .insert(&mut tx, PageId::from_raw(1, lblk), lone_word(&bed, 1))
                .is_err()
        );
    }
    for _ in 0..3 {
        assert!(bed.make_space());
    }
    assert!(!bed.make_space());
    // Without calls of `make_space` the list of wishes stays bounded.
    for _ in 0..1000 {
        let key = PageId::from_raw(1, lblk).key();
        bed.map.moves.wish(Wish { key, first: key });
    }
    let mut fulfilled = 0;
    while bed.make_space() {
        fulfilled += 1;
        assert!(fulfilled < 1000, "making space never ends");
    }
}

/// Replay and racing readers rely on this: when a key is visible, its word is too.
#[test]
fn words_are_set_before_keys_and_keys_cleared_before_words() {
    let bed = Bed::<Cuckoo>::new(100, 3);
    let before = lone_word(&bed, 5);
    let mut tx = bed.tx();
    bed.map.insert(&mut tx, PageId::from_raw(5, 6), before).expect("space");
    let &[word, key] = &tx.words[..] else {
        panic!("{:?}", tx.words)
    };
    assert_eq!(
        (word.value, word.offset, key.value),
        (before.0, key.offset + WORDS_AT, PageId::from_raw(5, 6).key())
    );
    tx.commit(&bed.region);
    let mut tx = bed.tx();
    assert_eq!(bed.map.remove(&mut tx, PageId::from_raw(5, 6)), Ok(before));
    assert_eq!(
        tx.words,
        [StoredWord::new(key.offset, 0), StoredWord::new(word.offset, 0)]
    );
    tx.commit(&bed.region);
    assert_eq!(bed.map.slots().total, bed.map.slots().free);
}

/// Two lines of keys for any lookup, and a third for two words of five.
#[test]
fn lookups_touch_two_or_three_lines() {
    let bed = Bed::<Cuckoo>::new(4000, 3);
    for n in 0..4000 {
        bed.insert(1 + n / 100, n % 100).expect("space");
    }
    let lines: Vec<u64> = (0..4000)
        .map(|n| bed.map.lines_touched(PageId::from_raw(1 + n / 100, n % 100)))
        .collect();
    assert!(lines.iter().all(|lines| (2..=3).contains(lines)));
    let mean = lines.iter().sum::<u64>() as f64 / 4000.0;
    println!("{mean:.2} lines a hit at a load of 0.8");
    assert!(mean < 2.5);
    assert_eq!(bed.map.lines_touched(PageId::from_raw(1, 100)), 2);
}

/// Vectors hash like single keys, and the two homes of a key differ.
#[test]
fn vectors_hash_alike() {
    for blocks in [1, 5, 9, 1000] {
        let bed = Bed::<Cuckoo>::new(blocks, 3);
        for level in Level::available() {
            let mut map = bed.remounted().0;
            map.level = level;
            for lblk in (0..4000).step_by(VECTOR) {
                let homes = map.homes_of_eight(PageId::from_raw(3, lblk).key());
                for (index, homes) in homes.into_iter().enumerate() {
                    assert_eq!(
                        homes,
                        map.homes(PageId::from_raw(3, lblk + index as u32).key()),
                        "{level:?}"
                    );
                    assert!(homes.iter().all(|&home| home < map.buckets));
                    assert_eq!(homes[0] == homes[1], map.buckets == 1);
                }
            }
        }
    }
}

/// A word is swung if it is what the caller expects, and never while entries move.
#[test]
fn swings_stay_clear_of_moves_and_runs() {
    let bed = Bed::<Cuckoo>::new(100, 3);
    let old = lone_word(&bed, 5);
    let new = PageWord::of_block(page_of(old).plus(7));
    bed.insert_word(1, 1, old).expect("space");
    assert_eq!(bed.map.swing(PageId::from_raw(1, 1), new, old), None);
    assert_eq!(bed.map.swing(PageId::from_raw(1, 2), old, new), None);
    let moving = bed.map.move_lock.lock_exclusive();
    assert_eq!(bed.map.swing(PageId::from_raw(1, 1), old, new), None);
    drop(moving);
    let offset = bed
        .map
        .swing(PageId::from_raw(1, 1), old, new)
        .expect("nothing is in the way");
    assert_eq!(offset, bed.map.word_offset(slot_of(&bed.map, 1, 1)));
    assert_eq!(bed.map.get(PageId::from_raw(1, 1)), new);
    let next = PageWord::of_block(page_of(new).plus(1));
    bed.insert_word(1, 2, next).expect("space");
    for (lblk, word) in [(1, new), (2, next)] {
        assert_eq!(
            bed.map.swing(PageId::from_raw(1, lblk), word, old),
            None,
            "page {lblk} is in a run"
        );
    }
}

/// Senseless keys and words, keys away from home and twins are reported and repaired; the sound rest is still shown.
#[test]
fn damage_is_named_and_repaired() {
    for hit in 0..6 {
        let bed = Bed::<Cuckoo>::new(100, 3);
        let sound = bed.insert(1, 1).expect("space");
        let good = lone_word(&bed, 3);
        let (key, word) = match hit {
            0 => (PageId::from_raw(0, 12).key(), good),
            1 => (PageId::from_raw(testing::INODES, 12).key(), good),
            2 => (PageId::from_raw(3, 4).key(), PageWord::of_block(BlockNo::new(u32::MAX))),
            3 => (PageId::from_raw(3, 4).key(), PageWord::of_block(BlockNo::new(1))),
            4 => (PageId::from_raw(3, 4).key(), good),
            _ => (PageId::from_raw(1, 1).key(), good),
        };
        let homes = bed.map.homes(key);
        let is_twin = hit == 5;
        let bucket = match hit {
            4 => (0..bed.map.buckets)
                .find(|bucket| !homes.contains(bucket))
                .expect("more buckets"),
            5 => homes[0].max(homes[1]),
            _ => homes[0],
        };
        let slot = bucket * NUMBERS + BUCKET_SLOTS - 1;
        assert_eq!(bed.map.key(slot), 0);
        bed.region.store(bed.map.word_offset(slot), word.0);
        bed.region.store(bed.map.key_offset(slot), key);
        let broken = faults(&bed.map);
        assert_eq!(broken.len(), 1, "{broken:?}");
        assert!(broken[0].what.contains(&format!("slot {slot} ")), "{broken:?}");
        if !is_twin {
            let (map, found) = bed.remounted();
            assert!(matches!(found, Err(MapError::Damaged(_))), "hit {hit}");
            assert_eq!(map.get(PageId::from_raw(1, 1)), sound);
        }
        for &StoredWord { offset, value } in &broken[0].repair {
            bed.region.store(offset, value);
        }
        assert_eq!(faults(&bed.map), []);
        let (map, found) = bed.remounted();
        assert_eq!(found.expect("repaired").len(), 1);
        assert_eq!(map.get(PageId::from_raw(1, 1)), sound);
    }
}

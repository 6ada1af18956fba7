//! Runs: they are used, every change leaves them true, and false ranges are found.

use super::*;
use crate::cuckoo::runs::MAX_RUN;
use crate::testing::{WORDS, page_of, word_of};
use crate::{PageId, StoredWord};

const INO: u32 = 1;

fn range_of(bed: &Bed<Cuckoo>, lblk: u32) -> Range {
    View::stored(&bed.map).range(slot_of(&bed.map, INO, lblk))
}

/// A file of `pages` pages in consecutive blocks.
fn straight_file(pages: u32) -> Bed<Cuckoo> {
    let bed = Bed::<Cuckoo>::new(2000, 5);
    let mut tx = bed.tx();
    for lblk in 0..pages {
        let block = bed.map.alloc_page(&mut tx, PageId::from_raw(INO, lblk)).expect("space");
        bed.map
            .insert(&mut tx, PageId::from_raw(INO, lblk), PageWord::of_block(block))
            .expect("space");
    }
    tx.commit(&bed.region);
    bed
}

fn replace(bed: &Bed<Cuckoo>, lblk: u32, word: PageWord) {
    let mut tx = bed.tx();
    bed.map
        .replace(&mut tx, PageId::from_raw(INO, lblk), word)
        .expect("mapped");
    tx.commit(&bed.region);
}

fn get_many(bed: &Bed<Cuckoo>, lblk: u32, count: usize, cache: &TransCache) -> Vec<PageWord> {
    let mut words = vec![PageWord(u64::MAX); count];
    bed.map.get_many(PageId::from_raw(INO, lblk), &mut words, cache);
    words
}

/// Compares all lookups of several pages with single ones, and checks the invariants of ranges.
fn assert_true_runs(bed: &Bed<Cuckoo>, pages: u32) {
    assert_eq!(faults(&bed.map), []);
    let single: Vec<PageWord> = (0..pages)
        .map(|lblk| bed.map.get(PageId::from_raw(INO, lblk)))
        .collect();
    for first in 0..pages {
        // As for a file that was just opened, and as for one that had no runs so far.
        for hint in [0, NO_RUN] {
            let cache = TransCache::default();
            cache.hints[HINT_RUN].store(hint, Ordering::Relaxed);
            let words = get_many(bed, first, (pages - first) as usize, &cache);
            assert_eq!(words, single[first as usize..], "from page {first} on");
        }
    }
}

/// Hides the words of followers from lookups of several pages: they must come from the head.
fn told_by_heads(bed: &Bed<Cuckoo>, first: u32, count: u32) -> Vec<u32> {
    let slots: Vec<u64> = (first..first + count)
        .map(|lblk| slot_of(&bed.map, INO, lblk))
        .collect();
    let before: Vec<PageWord> = slots.iter().map(|&slot| bed.map.word(slot)).collect();
    let mut told = Vec::new();
    for (at, &slot) in slots.iter().enumerate().skip(1) {
        bed.region.store(bed.map.word_offset(slot), lone_word(bed, 9).0);
        let words = get_many(bed, first, count as usize, &TransCache::default());
        if words == before {
            told.push(first + at as u32);
        }
        bed.region.store(bed.map.word_offset(slot), before[at].0);
    }
    told
}

/// One entry resolves all pages of a run, from its head on or from the middle.
#[test]
fn a_run_is_told_by_its_head() {
    let bed = straight_file(100);
    assert_eq!(range_of(&bed, 0), Range::head(99));
    assert!((1..100).all(|lblk| range_of(&bed, lblk) == Range::follower(lblk)));
    assert_eq!(told_by_heads(&bed, 0, 100), (1..100).collect::<Vec<_>>());
    assert_eq!(told_by_heads(&bed, 40, 30), (41..70).collect::<Vec<_>>());
    assert_true_runs(&bed, 103);
    // Its entries swap places with those of other files: ranges name pages, not slots.
    let places = |map: &Cuckoo| (0..100).map(|lblk| slot_of(map, INO, lblk)).collect::<Vec<_>>();
    let before = places(&bed.map);
    for lblk in 0..bed.map.slots().total as u32 {
        if bed.insert_word(2, lblk, lone_word(&bed, 1)).is_err() {
            break;
        }
    }
    assert_ne!(places(&bed.map), before, "nothing moved");
    assert_eq!(told_by_heads(&bed, 0, 100), (1..100).collect::<Vec<_>>());
    assert_true_runs(&bed, 103);
}

#[test]
fn a_run_has_an_end() {
    let bed = straight_file(3 * MAX_RUN + 5);
    for start in [0, MAX_RUN, 2 * MAX_RUN] {
        assert_eq!(range_of(&bed, start), Range::head(MAX_RUN - 1));
        assert_eq!(range_of(&bed, start + MAX_RUN - 1), Range::follower(MAX_RUN - 1));
    }
    assert_eq!(range_of(&bed, 3 * MAX_RUN), Range::head(4));
    assert_eq!(faults(&bed.map), []);
    let pages = 3 * MAX_RUN as usize + 5;
    for first in [0, 1, 511, 512, 513, 700] {
        let words = get_many(&bed, first, pages - first as usize, &TransCache::default());
        assert!(
            words
                .iter()
                .zip(first..)
                .all(|(&word, lblk)| word == bed.map.get(PageId::from_raw(INO, lblk)))
        );
    }
}

/// A new block in the middle ends the run there. The pages after it are looked up one by one until they are written
/// again.
#[test]
fn a_write_in_the_middle_ends_the_run() {
    let bed = straight_file(20);
    let mut tx = bed.tx();
    let block = bed.map.alloc_page(&mut tx, PageId::from_raw(INO, 8)).expect("space");
    bed.map
        .replace(&mut tx, PageId::from_raw(INO, 8), PageWord::of_block(block))
        .expect("mapped");
    assert!(tx.words.len() <= 3, "{:?}", tx.words);
    tx.commit(&bed.region);
    assert_eq!(range_of(&bed, 0), Range::head(7));
    assert_eq!(range_of(&bed, 8), Range::LONE);
    assert_eq!(range_of(&bed, 9), Range::follower(9), "stale");
    assert_eq!(told_by_heads(&bed, 0, 20), (1..8).collect::<Vec<_>>());
    assert_eq!(told_by_heads(&bed, 8, 12), []);
    assert_true_runs(&bed, 20);
    // Writing the following pages in order makes a run of them.
    let mut tx = bed.tx();
    for lblk in 9..20 {
        let block = bed.map.alloc_page(&mut tx, PageId::from_raw(INO, lblk)).expect("space");
        bed.map
            .replace(&mut tx, PageId::from_raw(INO, lblk), PageWord::of_block(block))
            .expect("mapped");
    }
    tx.commit(&bed.region);
    assert_eq!(range_of(&bed, 8), Range::head(11));
    assert_eq!(told_by_heads(&bed, 8, 12), (9..20).collect::<Vec<_>>());
    assert_true_runs(&bed, 20);
}

/// A run that grows up to pages with stale back indexes does not absorb them.
#[test]
fn stale_followers_stay_out_until_they_are_written() {
    let bed = straight_file(10);
    let old: Vec<PageWord> = (0..10).map(|lblk| bed.map.get(PageId::from_raw(INO, lblk))).collect();
    replace(&bed, 4, lone_word(&bed, 1));
    assert_eq!(range_of(&bed, 0), Range::head(3));
    // Page 4 returns to its old block, as a merge or a copy may do: pages 5 to 9 would fit.
    replace(&bed, 4, old[4]);
    assert_eq!(range_of(&bed, 0), Range::head(4));
    assert_true_runs(&bed, 10);
    // A stale page changes: the head must not change.
    replace(&bed, 7, lone_word(&bed, 1));
    assert_eq!(range_of(&bed, 0), Range::head(4));
    assert_true_runs(&bed, 10);
    // A stale page becomes the head of another run, and the old head grows up to it.
    replace(&bed, 7, old[7]);
    assert_eq!(
        (range_of(&bed, 6), range_of(&bed, 7)),
        (Range::head(1), Range::follower(1))
    );
    replace(&bed, 5, old[5]);
    assert_eq!(range_of(&bed, 0), Range::head(5));
    assert_eq!(range_of(&bed, 6), Range::head(1));
    assert_true_runs(&bed, 10);
    for lblk in 6..10 {
        replace(&bed, lblk, old[lblk as usize]);
    }
    assert_eq!(range_of(&bed, 0), Range::head(9));
    assert_eq!(told_by_heads(&bed, 0, 10), (1..10).collect::<Vec<_>>());
}

#[test]
fn a_page_with_a_log_is_in_no_run() {
    for lblk in [0, 1, 5, 9] {
        let bed = straight_file(10);
        let old = bed.map.get(PageId::from_raw(INO, lblk));
        let logged = word_of(page_of(old), 17);
        replace(&bed, lblk, logged);
        assert_eq!(range_of(&bed, lblk), Range::LONE);
        assert_true_runs(&bed, 10);
        // It is merged into another block, in place, and then a record restores the first block.
        let merged = PageWord::of_block(page_of(old).plus(50));
        bed.map
            .swing(PageId::from_raw(INO, lblk), logged, merged)
            .expect("in no run");
        assert_true_runs(&bed, 10);
        replace(&bed, lblk, old);
        assert_true_runs(&bed, 10);
    }
    let bed = Bed::<Cuckoo>::new(100, 5);
    for lblk in 0..10 {
        let word = WORDS.unwritten(bed.geometry.first_block.plus(lblk));
        bed.insert_word(INO, lblk, word).expect("space");
    }
    assert!((0..10).all(|lblk| range_of(&bed, lblk) == Range::LONE));
    assert_true_runs(&bed, 12);
}

#[test]
fn removed_pages_leave_their_runs() {
    for lblk in [0, 1, 5, 9] {
        let bed = straight_file(10);
        bed.remove(INO, lblk, true);
        assert_true_runs(&bed, 12);
        // Its block was free again, so the page gets it back; if there is a page before it, it joins that run.
        bed.insert(INO, lblk).expect("space");
        assert_true_runs(&bed, 12);
        if lblk > 0 {
            assert_eq!(range_of(&bed, 0), Range::head(lblk));
        }
    }
}

/// Random changes of one small file in few blocks, so that runs form, break and meet; several pages in one transaction.
#[test]
fn runs_stay_true_whatever_changes() {
    for_seeds(30, |seed| {
        const PAGES: u32 = 40;
        let mut rng = Rng::new(seed);
        let bed = Bed::<Cuckoo>::new(120, rng.next_u64());
        let cache = TransCache::default();
        for _ in 0..300 {
            let mut tx = bed.tx();
            let first = rng.below(u64::from(PAGES)) as u32;
            let shift = rng.below(30) as u32;
            for lblk in first..(first + 1 + rng.below(12) as u32).min(PAGES) {
                let is_mapped = bed.map.find_in(&tx, PageId::from_raw(INO, lblk).key()).is_some();
                // Blocks do not matter here, so pages may share them.
                let log = if rng.below(8) == 0 { 5 } else { 0 };
                let word = word_of(bed.geometry.first_block.plus(shift + lblk), log);
                match (is_mapped, rng.below(6)) {
                    (true, 0) => drop(bed.map.remove(&mut tx, PageId::from_raw(INO, lblk))),
                    (true, _) => bed
                        .map
                        .replace(&mut tx, PageId::from_raw(INO, lblk), word)
                        .expect("mapped"),
                    (false, 0) => {}
                    (false, _) => bed
                        .map
                        .insert(&mut tx, PageId::from_raw(INO, lblk), word)
                        .expect("space"),
                }
            }
            if rng.below(6) == 0 {
                continue;
            }
            tx.commit(&bed.region);
            let lblk = rng.below(u64::from(PAGES)) as u32;
            let word = bed.map.get(PageId::from_raw(INO, lblk));
            if rng.below(4) == 0 && !word.is_plain() {
                let merged = PageWord::of_block(bed.geometry.first_block.plus(rng.below(80) as u32));
                assert!(bed.map.swing(PageId::from_raw(INO, lblk), word, merged).is_some());
            }
            assert_true_runs(&bed, PAGES + 2);
            // And through hints that are as old as the file.
            let mut at = rng.below(u64::from(PAGES)) as u32;
            let step = 1 + rng.below(5) as u32;
            while at < PAGES {
                let words = get_many(&bed, at, step as usize, &cache);
                let single: Vec<_> = (at..at + step)
                    .map(|lblk| bed.map.get(PageId::from_raw(INO, lblk)))
                    .collect();
                assert_eq!(words, single);
                at += step;
            }
        }
    });
}

/// A sequential reader looks for a run's head once, and a hint outlives neither the run nor the file.
#[test]
fn reads_in_order_remember_the_run() {
    let bed = straight_file(50);
    for len in [1, 2, 7] {
        let cache = TransCache::default();
        let head = slot_of(&bed.map, INO, 0);
        for at in (3..45).step_by(len) {
            let words = get_many(&bed, at, len, &cache);
            assert!(
                words
                    .iter()
                    .zip(at..)
                    .all(|(&word, lblk)| word == bed.map.get(PageId::from_raw(INO, lblk)))
            );
        }
        assert_eq!(cache.hints[HINT_RUN].load(Ordering::Relaxed), head + 1);
        let slot = slot_of(&bed.map, INO, 30);
        let word = bed.map.word(slot);
        bed.region.store(bed.map.word_offset(slot), lone_word(&bed, 9).0);
        assert_eq!(get_many(&bed, 30, 1, &cache), [word], "not told by the hint");
        bed.region.store(bed.map.word_offset(slot), word.0);
    }
    let cache = TransCache::default();
    get_many(&bed, 0, 10, &cache);
    replace(&bed, 5, lone_word(&bed, 1));
    for lblk in 0..50 {
        assert_eq!(
            get_many(&bed, lblk, 1, &cache),
            [bed.map.get(PageId::from_raw(INO, lblk))]
        );
    }
    bed.remove(INO, 0, false);
    for lblk in 0..50 {
        assert_eq!(
            get_many(&bed, lblk, 1, &cache),
            [bed.map.get(PageId::from_raw(INO, lblk))]
        );
    }
    // Hints of another pool, or of none.
    for hint in [0, 6, 7, 8, u64::MAX, bed.map.buckets * NUMBERS + 1] {
        cache.hints[HINT_RUN].store(hint, Ordering::Relaxed);
        assert_eq!(get_many(&bed, 20, 1, &cache), [bed.map.get(PageId::from_raw(INO, 20))]);
    }
}

/// Where there were no runs, pages are looked up in parallel; a new run is noticed nevertheless.
#[test]
fn a_reader_in_pieces_notices_a_run() {
    let bed = straight_file(40);
    let hint = |cache: &TransCache| cache.hints[HINT_RUN].load(Ordering::Relaxed);
    let straight: Vec<PageWord> = (0..40).map(|lblk| bed.map.get(PageId::from_raw(INO, lblk))).collect();
    for lblk in 0..40 {
        replace(&bed, lblk, lone_word(&bed, 39 - lblk));
    }
    for len in [1, 2, 8] {
        let cache = TransCache::default();
        for at in (0..40).step_by(len) {
            get_many(&bed, at, len, &cache);
        }
        assert_eq!(hint(&cache), NO_RUN, "reads of {len}");
        for lblk in 0..40 {
            replace(&bed, lblk, straight[lblk as usize]);
        }
        for at in (0..40).step_by(len) {
            assert_eq!(
                get_many(&bed, at, len, &cache),
                straight[at as usize..at as usize + len]
            );
        }
        assert_eq!(hint(&cache), slot_of(&bed.map, INO, 0) + 1, "reads of {len}");
        for lblk in 0..40 {
            replace(&bed, lblk, lone_word(&bed, 39 - lblk));
        }
    }
}

type Hit<'h> = &'h dyn Fn(&Bed<Cuckoo>);

/// False ranges are found, and repaired by an empty range; the pages stay.
#[test]
fn ranges_that_lie_are_found_and_repaired() {
    let set_range = |bed: &Bed<Cuckoo>, lblk: u32, range: Range| {
        let offset = bed.map.range_offset(slot_of(&bed.map, INO, lblk));
        bed.region.store(offset, range.0);
    };
    let set_word = |bed: &Bed<Cuckoo>, lblk: u32, word: PageWord| {
        let offset = bed.map.word_offset(slot_of(&bed.map, INO, lblk));
        bed.region.store(offset, word.0);
    };
    // The page whose range is found to be false, and the damage done.
    let hits: [(u32, Hit<'_>); 9] = [
        (0, &|bed| set_range(bed, 0, Range::head(10))),
        (0, &|bed| set_range(bed, 0, Range::head(MAX_RUN))),
        (0, &|bed| set_range(bed, 0, Range::head(u32::MAX))),
        (0, &|bed| set_word(bed, 4, lone_word(bed, 7))),
        (0, &|bed| set_word(bed, 0, lone_word(bed, 7))),
        (0, &|bed| set_range(bed, 4, Range::LONE)),
        (0, &|bed| set_range(bed, 4, Range::follower(3))),
        (4, &|bed| set_range(bed, 4, Range(4 << 32 | 2))),
        (4, &|bed| set_range(bed, 4, Range::follower(5))),
    ];
    for (number, (lblk, hit)) in hits.into_iter().enumerate() {
        let bed = straight_file(10);
        hit(&bed);
        let slot = slot_of(&bed.map, INO, lblk);
        let broken = faults(&bed.map);
        assert!(
            broken
                .iter()
                .any(|broken| broken.what.starts_with(&format!("slot {slot}, "))),
            "hit {number}: {broken:?}"
        );
        let mut rounds = 0;
        loop {
            let repairs: Vec<_> = faults(&bed.map).into_iter().flat_map(|broken| broken.repair).collect();
            if repairs.is_empty() {
                break;
            }
            repairs
                .iter()
                .for_each(|&StoredWord { offset, value }| bed.region.store(offset, value));
            rounds += 1;
            assert!(rounds < 5, "hit {number} is never repaired");
        }
        assert_true_runs(&bed, 12);
        assert!((0..10).all(|lblk| !bed.map.get(PageId::from_raw(INO, lblk)).is_hole()));
    }
}

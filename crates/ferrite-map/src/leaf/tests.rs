//! Tests specific to leaf: growth line by line, lookups while entries move, runs.

use super::*;
use crate::testing::{self, Bed, Rng, Subject, for_seeds};
use crate::testing::{page_of, word_of};
use crate::{Mapping, PageId};

impl Subject for Leaf {
    const MAPPING: Mapping = Mapping::Leaf;

    fn mount(region: Arc<Region>, geometry: Geometry) -> Self {
        Leaf::new(region, geometry)
    }
}

testing::mapping_tests!(Leaf);
testing::moves::moving_tests!(Leaf);

fn word(bed: &Bed<Leaf>, lblk: u32) -> PageWord {
    word_of(bed.geometry.first_block, lblk | 1)
}

/// A table that one transaction filled far beyond its few lines still grows: chunks that find no line stay in place,
/// the others go home.
#[test]
fn a_table_filled_at_once_grows() {
    for pages in [60, 123, 200, 254] {
        let bed = Bed::<Leaf>::new(900, u64::from(pages));
        let word = |n: u32| PageWord::of_block(bed.geometry.first_block.plus(n));
        let mut tx = bed.tx();
        for n in 0..pages {
            bed.map
                .insert(&mut tx, PageId::from_raw(1, n * CHUNK), word(n))
                .expect("within reach");
        }
        tx.commit(&bed.region);
        assert!(bed.map.wants_space());
        assert!(bed.make_space(), "{pages} lines do not split");
        assert!(
            !bed.map.wants_space(),
            "{pages} lines: only {} are active",
            bed.map.active()
        );
        let (map, found) = bed.remounted();
        assert_eq!(found.expect("sound").len(), pages as usize);
        for n in 0..pages {
            assert_eq!(
                (
                    bed.map.get(PageId::from_raw(1, n * CHUNK)),
                    map.get(PageId::from_raw(1, n * CHUNK))
                ),
                (word(n), word(n))
            );
        }
    }
}

/// Each key has one home, and one more active line changes only the homes of keys of one line, to that new line.
#[test]
fn a_split_changes_the_homes_of_one_line() {
    let mut rng = Rng::new(1);
    for _ in 0..20_000 {
        let active = ACTIVE_MIN + rng.below(5000);
        let hash = rng.next_u64() >> 32;
        let (before, after) = (home_of(hash, active), home_of(hash, active + 1));
        assert!(before < active);
        if before != after {
            assert_eq!(after, active);
            assert_eq!(before, active - (1 << active.ilog2()));
        }
    }
}

/// As many pages as there are blocks always find a line, even if each is alone in its chunk, and the table is not
/// larger than necessary.
#[test]
fn pages_that_lie_alone_never_fill_the_table() {
    for_seeds(2, |seed| {
        let bed = Bed::<Leaf>::new(5000, seed);
        let mut largest = 0;
        for n in 0..5000u32 {
            bed.insert_word(1 + n % 50, n * CHUNK, word(&bed, n)).expect("space");
            largest = largest.max(bed.map.active());
            assert!(bed.map.active() <= (u64::from(n) * 10 / 3 + 4 + 2 * BATCH).min(bed.geometry.slots));
        }
        assert_eq!(largest, bed.map.active());
        for n in 0..5000u32 {
            assert_eq!(bed.map.get(PageId::from_raw(1 + n % 50, n * CHUNK)), word(&bed, n));
        }
        let (_, found) = bed.remounted();
        assert_eq!(found.expect("sound").len(), 5000);
    });
}

/// Readers always find pages that no writer touches, while writers make the table grow from its smallest size.
#[test]
fn readers_find_resting_pages_while_lines_are_split() {
    for_seeds(6, |seed| {
        let bed = &Bed::<Leaf>::new(4000, seed);
        for lblk in 0..70 {
            bed.insert_word(9, lblk * 5, word(bed, lblk)).expect("space");
        }
        let done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let cache = TransCache::default();
                    let mut words = [PageWord::HOLE; 5];
                    while !done.load(Ordering::Relaxed) {
                        for lblk in 0..70 {
                            assert_eq!(bed.map.get(PageId::from_raw(9, lblk * 5)), word(bed, lblk));
                            bed.map.get_many(PageId::from_raw(9, lblk * 5), &mut words, &cache);
                            assert_eq!(words[0], word(bed, lblk));
                            assert!(words[1..].iter().all(|word| word.is_hole()));
                        }
                        let mut pages = 0;
                        bed.map.for_range(Inum::new(9), Lblk::FIRST, 1 << 32, &mut |_| {
                            pages += 1;
                            true
                        });
                        assert_eq!(pages, 70);
                    }
                });
            }
            let writers: Vec<_> = (1..3u32)
                .map(|ino| {
                    scope.spawn(move || {
                        (0..1500).for_each(|n| bed.insert_word(ino, n * 8, word(bed, n)).expect("space"))
                    })
                })
                .collect();
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok));
        });
        assert!(bed.map.active() > 2000);
    });
}

/// Lookups stay short however often chunks come and go.
#[test]
fn probes_stay_short_after_a_hundred_turnovers() {
    for_seeds(1, |seed| {
        let mut rng = Rng::new(seed);
        let bed = Bed::<Leaf>::new(8000, rng.next_u64());
        let mut pages: Vec<(u32, u32)> = (0..6400u32).map(|n| (1 + n / 500, n % 500)).collect();
        for &(ino, lblk) in &pages {
            bed.insert_word(ino, lblk, word(&bed, lblk)).expect("space");
        }
        let mean = |pages: &mut dyn Iterator<Item = (u32, u32)>| {
            let lines: Vec<u64> = pages
                .map(|(ino, lblk)| bed.map.lines_touched(PageId::from_raw(ino, lblk)))
                .collect();
            lines.iter().sum::<u64>() as f64 / lines.len() as f64
        };
        let absent = |n: u32| (4000, n * CHUNK);
        println!(
            "fresh: hits {:.2}, misses {:.2}",
            mean(&mut pages.iter().copied()),
            mean(&mut (0..5000).map(absent))
        );
        for _ in 0..6400 * 100 / 7 {
            // Whole chunks, so that lines come free.
            let ino = 1 + rng.below(13) as u32;
            let first = rng.below(500 / 7) as u32 * CHUNK;
            let mine: Vec<usize> = (0..pages.len())
                .step_by(1)
                .filter(|&at| pages[at].0 == ino && pages[at].1 / CHUNK == first / CHUNK)
                .collect();
            let file = 100 + rng.below(1000) as u32;
            for at in mine {
                let (ino, lblk) = pages[at];
                bed.remove(ino, lblk, false);
                let is_taken = |file: &u32| !bed.map.get(PageId::from_raw(*file, lblk)).is_hole();
                let next = (file..).find(|file| !is_taken(file)).expect("a file without the page");
                bed.insert_word(next, lblk, word(&bed, lblk)).expect("space");
                pages[at] = (next, lblk);
            }
        }
        let hits = mean(&mut pages.iter().copied());
        let misses = mean(&mut (0..5000).map(absent));
        println!("after: hits {hits:.2}, misses {misses:.2}");
        assert!(hits < 3.0, "hits take {hits:.2} lines");
        assert!(misses < 8.0, "misses take {misses:.2} lines");
    });
}

/// A file written in order lies in consecutive blocks, and a page overwritten twice is in its old block again.
#[test]
fn blocks_follow_each_other() {
    let bed = Bed::<Leaf>::new(600, 1);
    let words: Vec<PageWord> = (0..500).map(|lblk| bed.insert(3, lblk).expect("space")).collect();
    assert!(
        words
            .windows(2)
            .all(|pair| page_of(pair[1]) == page_of(pair[0]).plus(1))
    );
    for _ in 0..2 {
        let mut tx = bed.tx();
        let old = bed.map.get(PageId::from_raw(3, 77));
        let new = PageWord::of_block(bed.map.alloc_page(&mut tx, PageId::from_raw(3, 77)).expect("space"));
        bed.map
            .replace(&mut tx, PageId::from_raw(3, 77), new)
            .expect("it is mapped");
        tx.freed(Resource::Block(page_of(old)));
        tx.commit(&bed.region);
        assert_ne!(new, old);
    }
    assert_eq!(bed.map.get(PageId::from_raw(3, 77)), words[77]);
}

/// N damaged in one copy, in the other, in both.
#[test]
fn the_number_of_active_lines_survives_damage() {
    let bed = Bed::<Leaf>::new(3000, 5);
    for n in 0..900u32 {
        bed.insert_word(1 + n % 9, n * 3, word(&bed, n)).expect("space");
    }
    let active = bed.map.active();
    for hit in [&ACTIVE_COPIES[..1], &ACTIVE_COPIES[1..], &ACTIVE_COPIES[..]] {
        for &copy in hit {
            bed.region.store(bed.map.active_offset(copy), 0xdead_beef);
        }
        let mut repairs = Vec::new();
        bed.map
            .check(&mut |_| {}, &mut |_| {}, &mut |broken| repairs.extend(broken.repair));
        repairs
            .iter()
            .for_each(|&StoredWord { offset, value }| bed.region.store(offset, value));
        // A neighbouring number is just as good if no chunk distinguishes them.
        assert!(bed.map.stored_active().is_some_and(|found| found.abs_diff(active) < 4));
        let (map, found) = bed.remounted();
        assert_eq!(found.expect("repaired").len(), 900);
        assert!((0..900).all(|n| map.get(PageId::from_raw(1 + n % 9, n * 3)) == word(&bed, n)));
    }
}

/// A walk of a short range looks lines up one by one; each chunk is seen whole, although its line may be released in
/// between.
#[test]
fn short_walks_miss_nothing_while_lines_are_split() {
    for_seeds(8, |seed| {
        let bed = &Bed::<Leaf>::new(4000, seed);
        for lblk in 0..70 {
            bed.insert_word(9, lblk * 5, word(bed, lblk)).expect("space");
        }
        let done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let mut pages = 0;
                    bed.map.for_range(Inum::new(9), Lblk::FIRST, 350, &mut |_| {
                        pages += 1;
                        true
                    });
                    assert_eq!(pages, 70);
                }
            });
            for n in 0..3000u32 {
                bed.insert_word(1, n * 8, word(bed, n)).expect("space");
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

//! Both methods of translation against a naive map, and against each other.
//!
//! Guarantees under test: a lookup returns the result of the last change, through cache and table; removed pages are
//! not found; a table of pages agrees with a map; a cache of pages misses each page once, if it is large enough.

use std::collections::{BTreeMap, HashMap};

use ferrite_measure::Rng;
use ferrite_mr::{ENTRIES, OutOfRange, Run, WAYS};

use super::{PageCache, PageMtt, Pages, Ranges, Translation};

/// Pages of the files.
const PAGES: u64 = 3_000;

fn some_range(random: &mut Rng) -> (u32, u32) {
    let longest = *random.pick(&[1, 4, 60, 1_000]);
    let at = random.below(PAGES);
    let pages = 1 + random.below(longest.min(PAGES - at));
    (at as u32, pages as u32)
}

#[test]
fn a_table_of_pages_agrees_with_a_map() {
    for seed in 0..20 {
        let random = &mut Rng::new(seed);
        let mut pages = PageMtt::new();
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        for _ in 0..400 {
            let (at, len) = some_range(random);
            if random.chance(60) {
                let page = random.below(1 << 20) as u32;
                let known = model.range(at..at + len).count() as u32;
                assert_eq!(pages.insert(at, Run { page, pages: len }), Ok(known));
                model.extend((at..at + len).zip(page..));
            } else {
                let before = model.len();
                model.retain(|page, _| !(at..at + len).contains(page));
                assert_eq!(pages.remove(at, len) as usize, before - model.len());
            }
            let end = model.last_key_value().map_or(0, |(last, _)| *last as usize + 1);
            assert_eq!(pages.len(), end, "seed {seed}");
        }
        for page in 0..PAGES as u32 + 10 {
            let expected = model.get(&page).copied();
            assert_eq!(pages.lookup(page), expected, "page {page}, seed {seed}");
        }
    }
}

/// Changes and lookups of several regions, with the caches between.
#[test]
fn caches_never_give_what_was_removed() {
    fn run(seed: u64, translation: &mut impl Translation) {
        let random = &mut Rng::new(seed);
        let mut model: HashMap<(u32, u32), u32> = HashMap::new();
        let mut found = 0;
        for _ in 0..600 {
            let region = random.below(3) as u32;
            let (at, len) = some_range(random);
            match random.below(10) {
                0..4 => {
                    let page = random.below(1 << 20) as u32;
                    translation.insert(region, at, Run { page, pages: len }).unwrap();
                    model.extend((at..at + len).map(|at| (region, at)).zip(page..));
                }
                4..7 => {
                    let before = model.len();
                    model.retain(|(of, page), _| *of != region || !(at..at + len).contains(page));
                    assert_eq!(translation.remove(region, at, len) as usize, before - model.len());
                }
                7 if random.chance(10) => {
                    translation.remove_region(region);
                    model.retain(|(of, _), _| *of != region);
                }
                _ => {}
            }
            for _ in 0..60 {
                let (region, at) = (random.below(3) as u32, random.below(PAGES) as u32);
                let expected = model.get(&(region, at)).copied();
                let run = translation.translate(region, at);
                assert_eq!(run.map(|run| run.page), expected, "region {region}, page {at}");
                // Everything that it returns exists.
                if let Some(run) = run {
                    found += 1;
                    let last = run.pages - 1;
                    assert_eq!(model.get(&(region, at + last)), Some(&(run.page + last)));
                }
            }
        }
        let counters = translation.counters();
        assert_eq!(counters.hits + counters.misses, 600 * 60);
        assert!(
            counters.hits > 500 && counters.invalidated > 100 && found > 3_000,
            "{counters:?}, {found}"
        );
    }
    for seed in 0..10 {
        run(seed, &mut Ranges::default());
        run(seed, &mut Pages::default());
    }
}

#[test]
fn a_cache_of_pages_that_is_large_enough_misses_once() {
    let mut pages = PageCache::new();
    for round in 0..3u32 {
        for at in 0..ENTRIES as u32 {
            match pages.lookup(9, at) {
                Some(page) => assert_eq!((page, round > 0), (at + 7, true)),
                None => pages.fill(9, at, at + 7),
            }
        }
    }
    assert_eq!(pages.counters().misses as usize, ENTRIES);
    assert_eq!(pages.counters().evictions, 0);
    // One more for the same set evicts the oldest of that set.
    pages.fill(9, ENTRIES as u32, 1);
    assert_eq!(pages.counters().evictions, 1);
    assert_eq!(pages.lookup(9, 0), None);
    assert_eq!(
        pages.lookup(9, (ENTRIES / WAYS) as u32),
        Some((ENTRIES / WAYS) as u32 + 7)
    );
}

/// More regions than sets, so that many share one.
#[test]
fn the_same_page_of_another_region_is_another() {
    let mut pages = PageCache::new();
    for region in 0..3_000 {
        assert_eq!(pages.lookup(region, 5), None, "region {region}");
        pages.fill(region, 5, region + 1);
        assert_eq!(pages.lookup(region, 5), Some(region + 1));
    }
}

/// The purpose of FileMR: a large file in few runs fits the cache of ranges and not that of pages.
#[test]
fn few_long_runs_hit_and_many_pages_miss() {
    let random = &mut Rng::new(4);
    let (mut ranges, mut pages) = (Ranges::default(), Pages::default());
    // 16 GiB in runs of 64 MiB, not adjacent.
    let (runs, run_pages) = (256u32, 16_384u32);
    for number in 0..runs {
        let run = Run {
            page: number * 20_000,
            pages: run_pages,
        };
        ranges.insert(1, number * run_pages, run).unwrap();
        pages.insert(1, number * run_pages, run).unwrap();
    }
    assert_eq!((ranges.entries(), pages.entries()), (256, 256 * 16_384));
    for _ in 0..100_000 {
        let at = random.below(u64::from(runs * run_pages)) as u32;
        let (run, page) = (ranges.translate(1, at).unwrap(), pages.translate(1, at).unwrap());
        assert_eq!((run.page, page.pages), (page.page, 1));
    }
    assert_eq!(ranges.counters().misses, 256);
    assert!(ranges.counters().hit_rate() > 0.99);
    assert!(pages.counters().hit_rate() < 0.01, "{:?}", pages.counters());
}

#[test]
fn runs_that_do_not_fit_are_refused() {
    let (mut ranges, mut pages) = (Ranges::default(), Pages::default());
    for (at, page, len) in [(0, 0, 0), (u32::MAX, 0, 1), (0, u32::MAX, 1), (5, 6, u32::MAX - 4)] {
        let refused = ranges.insert(1, at, Run { page, pages: len });
        assert!(
            matches!(refused, Err(OutOfRange { pages, .. }) if pages == len),
            "{at} {page} {len}"
        );
        assert_eq!(pages.insert(1, at, Run { page, pages: len }), refused);
    }
    assert_eq!((ranges.entries(), pages.entries()), (0, 0));
    assert_eq!(
        ranges.remove(1, u32::MAX, u32::MAX) + pages.remove(1, u32::MAX, u32::MAX),
        0
    );
    // The largest possible run.
    let run = Run {
        page: 0,
        pages: u32::MAX,
    };
    ranges.insert(1, 0, run).unwrap();
    assert_eq!(
        ranges.translate(1, u32::MAX - 1),
        Some(Run {
            page: u32::MAX - 1,
            pages: 1
        })
    );
    assert_eq!(ranges.translate(1, u32::MAX), None);
    assert_eq!(ranges.remove(1, 10, 5), 5);
    assert_eq!(ranges.entries(), 2);
    assert_eq!(ranges.translate(1, 9), Some(Run { page: 9, pages: 1 }));
    assert_eq!(ranges.translate(1, 12), None);
}

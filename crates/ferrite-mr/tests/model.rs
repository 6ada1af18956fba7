//! Tables and the cache of ranges against a naive map.
//!
//! Guarantees under test: a lookup returns the result of the last change; removed pages are not found; tables keep
//! their shape; a cache that is large enough misses each entry once. The lab tests both together, beside pages.

use std::collections::BTreeMap;

use ferrite_mr::{OutOfRange, Placed, RangeCache, RangeMtt, Run};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;

fn with_seeds(count: u64, test: impl Fn(u64)) {
    let soak = if std::env::var_os("FERRITE_SOAK").is_some() {
        50
    } else {
        1
    };
    let seeds = match seed_from_env() {
        Some(seed) => seed..seed + 1,
        None => 0..count * soak,
    };
    for seed in seeds {
        println!("FERRITE_SEED={seed}");
        test(seed);
    }
}

/// Pages of the files.
const PAGES: u64 = 3_000;

fn some_range(random: &mut Rng) -> (u32, u32) {
    let longest = *random.pick(&[1, 4, 60, 1_000]);
    let at = random.below(PAGES);
    let pages = 1 + random.below(longest.min(PAGES - at));
    (at as u32, pages as u32)
}

/// Runs of a table: no overlap, and no two neighbours that should be one.
fn check_shape(table: &RangeMtt) {
    let runs: Vec<_> = table.iter().collect();
    for pair in runs.windows(2) {
        let (left, right) = (pair[0], pair[1]);
        assert!(left.run.pages > 0 && left.end() <= right.at, "{left:?} and {right:?}");
        let follows = left.end() == right.at && left.run.page + left.run.pages == right.run.page;
        assert!(!follows, "{left:?} and {right:?} are one");
    }
    assert_eq!(table.len(), runs.len());
}

#[test]
fn tables_agree_with_a_map() {
    with_seeds(20, |seed| {
        let random = &mut Rng::new(seed);
        let mut ranges = RangeMtt::new();
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        for _ in 0..400 {
            let (at, len) = some_range(random);
            if random.chance(60) {
                // Often one that follows its neighbour in memory.
                let page = if random.chance(50) {
                    100_000 + at
                } else {
                    random.below(1 << 20) as u32
                };
                let run = Run { page, pages: len };
                let known = model.range(at..at + len).count() as u32;
                assert_eq!(ranges.insert(at, run), Ok(known));
                model.extend((at..at + len).zip(page..));
            } else {
                let before = model.len();
                model.retain(|page, _| !(at..at + len).contains(page));
                let removed = (before - model.len()) as u32;
                assert_eq!(ranges.remove(at, len), removed);
            }
            check_shape(&ranges);
            let total: u32 = ranges.iter().map(|placed| placed.run.pages).sum();
            assert_eq!(total as usize, model.len());
        }
        for page in 0..PAGES as u32 + 10 {
            let found = ranges.lookup(page).map(|placed| placed.run.page + (page - placed.at));
            assert_eq!(found, model.get(&page).copied(), "page {page}");
        }
        // As few runs as possible.
        let follows = |(page, to): (&u32, &u32)| {
            page.checked_sub(1).and_then(|page| model.get(&page)) == Some(&to.wrapping_sub(1))
        };
        let fewest = model.iter().filter(|pair| !follows(*pair)).count();
        assert_eq!(ranges.len(), fewest);
    });
}

/// Tables of many short runs, filled and emptied again.
#[test]
fn large_tables_agree_with_a_map() {
    const LARGE: u64 = 10_000;
    with_seeds(5, |seed| {
        let random = &mut Rng::new(seed);
        let (mut table, mut model) = (RangeMtt::new(), BTreeMap::new());
        let mut longest = 0;
        for step in 0..20_000 {
            let is_filled = step / 5_000 % 2 == 0;
            let most = if random.chance(1) { LARGE / 4 } else { 3 };
            let len = 1 + random.below(most);
            let at = random.below(LARGE - len) as u32;
            let len = len.min(if is_filled { 3 } else { LARGE }) as u32;
            if random.chance(if is_filled { 80 } else { 20 }) {
                let page = if random.chance(20) {
                    at
                } else {
                    random.below(1 << 20) as u32
                };
                let known = model.range(at..at + len).count() as u32;
                assert_eq!(table.insert(at, Run { page, pages: len }), Ok(known));
                model.extend((at..at + len).zip(page..));
            } else {
                let before = model.len();
                model.retain(|page, _| !(at..at + len).contains(page));
                assert_eq!(table.remove(at, len) as usize, before - model.len());
            }
            longest = longest.max(table.len());
            if step % 500 == 0 {
                check_shape(&table);
                let pages = table.iter().flat_map(|placed| {
                    let pages = placed.run.pages;
                    (placed.at..placed.end()).zip(placed.run.page..placed.run.page + pages)
                });
                assert!(pages.eq(model.iter().map(|(&at, &page)| (at, page))), "step {step}");
                for page in 0..LARGE as u32 + 10 {
                    let found = table.lookup(page).map(|placed| placed.run.page + (page - placed.at));
                    assert_eq!(found, model.get(&page).copied(), "page {page}, step {step}");
                }
            }
        }
        assert!(longest > 1_000, "{longest} runs are few");
        table.remove(0, u32::MAX);
        assert!(table.is_empty() && table.iter().next().is_none());
    });
}

/// A run is one entry, whichever of its pages is looked up.
#[test]
fn a_cache_that_is_large_enough_misses_once() {
    let mut ranges = RangeCache::new();
    let table = {
        let mut table = RangeMtt::new();
        for (number, pages) in [1, 2, 3, 1_000, 1 << 20, 77, 1 << 30].into_iter().enumerate() {
            // They do not follow each other in memory.
            let at = table.iter().last().map_or(5, |last| last.end());
            let page = number as u32 * 3 + 1;
            table.insert(at, Run { page, pages }).unwrap();
        }
        table
    };
    let random = &mut Rng::new(3);
    let end = u64::from(table.iter().last().unwrap().end());
    let placed: Vec<_> = table.iter().collect();
    for _ in 0..10_000 {
        let one = random.pick(&placed);
        let at = one.at + random.below(u64::from(one.run.pages)) as u32;
        if let Some(found) = ranges.lookup(1, at) {
            assert_eq!(found, *one);
        } else {
            ranges.fill(1, table.lookup(at).unwrap());
        }
    }
    assert_eq!(ranges.counters().misses, placed.len() as u64);
    assert_eq!(ranges.lookup(2, 5), None);
    assert_eq!(ranges.lookup(1, end as u32), None);
    assert_eq!(ranges.lookup(1, 4), None);
}

/// More regions than sets, so that many share one.
#[test]
fn the_same_page_of_another_region_is_another() {
    let mut ranges = RangeCache::new();
    for region in 0..3_000 {
        assert_eq!(ranges.lookup(region, 5), None, "region {region}");
        let run = Run { page: region, pages: 1 };
        ranges.fill(region, Placed { at: 5, run });
        assert_eq!(ranges.lookup(region, 5).unwrap().run.page, region);
    }
}

#[test]
fn runs_that_do_not_fit_are_refused() {
    let mut ranges = RangeMtt::new();
    for (at, page, len) in [(0, 0, 0), (u32::MAX, 0, 1), (0, u32::MAX, 1), (5, 6, u32::MAX - 4)] {
        let refused = ranges.insert(at, Run { page, pages: len });
        assert!(
            matches!(refused, Err(OutOfRange { pages, .. }) if pages == len),
            "{at} {page} {len}"
        );
    }
    assert!(ranges.is_empty());
    assert_eq!(ranges.remove(u32::MAX, u32::MAX), 0);
}

//! `leaf` against HashFS in one file that fills a pool: cold lookups at random, and lookups in order.
//!
//! Contents: [`lookup_rows`], with the required ratios: medians of those of several pairs of pools. The mappings take
//! turns, so that other load of the machine affects both. In order, the calls are as long as reads are: a page, or 128
//! KiB; the file is read from its beginning to its end, so each page's entry was last touched a whole file ago, or,
//! cold, flushed before the pass.

use std::hint::black_box;

use ferrite_map::{Mapping, PageId, PageWord, TransCache};

use crate::churn::{ChurnPlan, MappingRow};
use crate::error::LabError;
use crate::measure::{Cold, FILE, random_pages, time};
use crate::pool::{Pool, PoolPlan};
use crate::structure::Structure;
use ferrite_measure::{mean, median};

/// How full the pools are.
const FILLS: [u32; 2] = [80, 95];
/// Ours first.
const PAIR: [Mapping; 2] = [Mapping::Leaf, Mapping::Hashfs];
/// Cold lookups at random before those that count.
const UNCOUNTED: usize = 10;
/// Cold lookups for each of the plan's rounds.
const COLD_PER_ROUND: u32 = 20;
/// Cold, at random: no slower.
const COLD_RATIO: f64 = 1.0;
/// In order: three times as fast.
const IN_ORDER_RATIO: f64 = 1.0 / 3.0;
/// Lookups in order: row, pages of a call, whether the structure is evicted before each pass.
const IN_ORDER: [(&str, u32, bool); 4] = [
    ("sequential_4k", 1, false),
    ("sequential_128k", 32, false),
    ("cold_sequential_4k", 1, true),
    ("cold_sequential_128k", 32, true),
];

/// Nanoseconds of both sides, and the ratios: one per pair of pools for cold pages, one per pass in order.
#[derive(Debug, Default)]
struct Took {
    sides: [Vec<f64>; 2],
    ratios: Vec<f64>,
}

/// The costs of `leaf` and HashFS, at 80 and 95 % full. Reports the beginning of each step to `step`.
pub fn lookup_rows(plan: &ChurnPlan, step: &mut dyn FnMut(&str)) -> Result<Vec<MappingRow>, LabError> {
    let mut rows = Vec::new();
    for fill_percent in FILLS {
        let mut random = Took::default();
        let mut ordered = IN_ORDER.map(|_| Took::default());
        let mut lines_average = None;
        for number in 1..=plan.pools {
            step(&format!("leaf against hashfs at {fill_percent} %, pools {number}"));
            let pools = [
                filled(PAIR[0], plan, fill_percent)?,
                filled(PAIR[1], plan, fill_percent)?,
            ];
            cold_random(&pools, plan, &mut random)?;
            lines_average = Some(lines(&pools[0], plan));
            for ((_, pages, is_cold), took) in IN_ORDER.into_iter().zip(&mut ordered) {
                in_order(&pools, plan, (pages, is_cold), took);
            }
        }
        let row = |name, required: f64, took: &Took| MappingRow {
            ratio: median(&took.ratios),
            required_ratio: Some(required),
            median_ns: Some(median(&took.sides[0])),
            against_median_ns: Some(median(&took.sides[1])),
            average_ns: Some(mean(&took.sides[0])),
            ..MappingRow::new(name, PAIR[0].name(), PAIR[1].name(), fill_percent)
        };
        rows.push(MappingRow {
            lines_average,
            ..row("cold_random", COLD_RATIO, &random)
        });
        rows.extend(
            IN_ORDER
                .iter()
                .zip(&ordered)
                .map(|((name, ..), took)| row(name, IN_ORDER_RATIO, took)),
        );
    }
    Ok(rows)
}

/// A pool that the file fills.
pub(crate) fn filled(mapping: Mapping, plan: &ChurnPlan, fill_percent: u32) -> Result<Pool, LabError> {
    let blocks = u64::from(plan.file_pages) * 100 / u64::from(fill_percent);
    let pool = Pool::new(
        Structure::Product(mapping),
        PoolPlan {
            blocks: blocks as u32 + 1,
            score: 1.0,
            lanes: 1,
            seed: plan.seed,
        },
    )?;
    pool.fill(FILE, 0, plan.file_pages, |_| true)?;
    Ok(pool)
}

fn cold_random(pools: &[Pool; 2], plan: &ChurnPlan, took: &mut Took) -> Result<(), LabError> {
    let mut cold = [
        Cold::new(Structure::Product(PAIR[0]))?,
        Cold::new(Structure::Product(PAIR[1]))?,
    ];
    let mut sides = [Vec::new(), Vec::new()];
    let count = UNCOUNTED + (rounds(plan) * COLD_PER_ROUND) as usize;
    for (number, lblk) in random_pages(plan.file_pages, plan.seed)
        .into_iter()
        .take(count)
        .enumerate()
    {
        // The sides take turns at going first.
        for side in [number % 2, 1 - number % 2] {
            let ns = cold[side].look(&pools[side], PageId::from_raw(FILE, lblk), 1);
            if number >= UNCOUNTED {
                sides[side].push(ns);
            }
        }
    }
    took.ratios.push(median(&sides[0]) / median(&sides[1]));
    for (all, more) in took.sides.iter_mut().zip(sides) {
        all.extend(more);
    }
    Ok(())
}

/// Rounds on each pair of pools.
pub(crate) fn rounds(plan: &ChurnPlan) -> u32 {
    plan.rounds.div_ceil(plan.pools.max(1))
}

/// Lines of a lookup, on average.
fn lines(pool: &Pool, plan: &ChurnPlan) -> f64 {
    let pages = random_pages(plan.file_pages, plan.seed);
    let lines: Vec<f64> = pages
        .iter()
        .take(plan.lookups as usize)
        .map(|&lblk| pool.map.lines_touched(PageId::from_raw(FILE, lblk)) as f64)
        .collect();
    mean(&lines)
}

/// The whole file in order, by calls of `pages` pages, evicted before if `is_cold`: nanoseconds a page in each pass.
fn in_order(pools: &[Pool; 2], plan: &ChurnPlan, (pages, is_cold): (u32, bool), took: &mut Took) {
    let mut words = vec![PageWord::HOLE; pages as usize];
    for round in 0..=rounds(plan) {
        let mut pass = |pool: &Pool| {
            if is_cold {
                pool.evict();
            }
            let cache = TransCache::default();
            let taken = time(|| {
                for lblk in (0..plan.file_pages).step_by(pages as usize) {
                    pool.map.get_many(PageId::from_raw(FILE, lblk), &mut words, &cache);
                    black_box(&words);
                }
            });
            taken / f64::from(plan.file_pages)
        };
        let ns = [pass(&pools[0]), pass(&pools[1])];
        // The first round warms both up.
        if round > 0 {
            took.ratios.push(ns[0] / ns[1]);
            took.sides[0].push(ns[0]);
            took.sides[1].push(ns[1]);
        }
    }
}

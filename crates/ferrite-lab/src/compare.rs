//! `leaf` against HashFS in one file that fills a pool: cold lookups at random, and lookups in order.
//!
//! What lives here: [`lookup_rows`], with what is required of the ratios. Both mappings are asked in turns, so that what else
//! the machine does hits both. In order, the calls are as long as reads are: a page, or 128 KiB; the file is read from its
//! beginning to its end, so each page's entry was last touched a whole file ago, or, cold, flushed before the pass.

use std::hint::black_box;

use ferrite_map::{Mapping, PageWord, TransCache};

use crate::churn::{ChurnPlan, MappingRow, mean, median, ratio};
use crate::error::LabError;
use crate::measure::{Cold, FILE, random_pages, time};
use crate::pool::{Pool, PoolPlan};
use crate::structure::Structure;

/// How full the pools are.
const FILLS: [u32; 2] = [80, 95];
/// Ours first.
const PAIR: [Mapping; 2] = [Mapping::Leaf, Mapping::Hashfs];
/// Cold lookups at random that go before those that count.
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

/// What `leaf` and HashFS take, at 80 and 95 % full. `step` is told what begins.
pub fn lookup_rows(plan: &ChurnPlan, step: &mut dyn FnMut(&str)) -> Result<Vec<MappingRow>, LabError> {
    let mut rows = Vec::new();
    for fill_percent in FILLS {
        step(&format!("leaf against hashfs at {fill_percent} %"));
        let pools = [
            filled(PAIR[0], plan, fill_percent)?,
            filled(PAIR[1], plan, fill_percent)?,
        ];
        let row = |name, required: f64, [ours, theirs]: &[Vec<f64>; 2], ratio: f64| MappingRow {
            ratio,
            required_ratio: Some(required),
            median_ns: Some(median(ours)),
            against_median_ns: Some(median(theirs)),
            average_ns: Some(mean(ours)),
            ..MappingRow::new(name, PAIR[0].name(), PAIR[1].name(), fill_percent)
        };
        let cold = cold_random(&pools, plan)?;
        let medians = median(&cold[0]) / median(&cold[1]);
        rows.push(MappingRow {
            lines_average: Some(lines(&pools[0], plan)),
            ..row("cold_random", COLD_RATIO, &cold, medians)
        });
        for (name, pages, is_cold) in IN_ORDER {
            let took = in_order(&pools, plan, pages, is_cold);
            rows.push(row(name, IN_ORDER_RATIO, &took, ratio(&took[0], &took[1])));
        }
    }
    Ok(rows)
}

/// A pool that the file fills.
fn filled(mapping: Mapping, plan: &ChurnPlan, fill_percent: u32) -> Result<Pool, LabError> {
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

fn cold_random(pools: &[Pool; 2], plan: &ChurnPlan) -> Result<[Vec<f64>; 2], LabError> {
    let mut cold = [
        Cold::new(Structure::Product(PAIR[0]))?,
        Cold::new(Structure::Product(PAIR[1]))?,
    ];
    let mut took = [Vec::new(), Vec::new()];
    let count = UNCOUNTED + (plan.rounds * COLD_PER_ROUND) as usize;
    for (number, lblk) in random_pages(plan.file_pages, plan.seed)
        .into_iter()
        .take(count)
        .enumerate()
    {
        // Each goes first every other time.
        for side in [number % 2, 1 - number % 2] {
            took[side].push(cold[side].look(&pools[side], FILE, lblk, 1));
        }
    }
    Ok(took.map(|mut all| all.split_off(UNCOUNTED)))
}

/// Lines of a lookup, on average.
fn lines(pool: &Pool, plan: &ChurnPlan) -> f64 {
    let pages = random_pages(plan.file_pages, plan.seed);
    let lines: Vec<f64> = pages
        .iter()
        .take(plan.lookups as usize)
        .map(|&lblk| pool.map.lines_touched(FILE, lblk) as f64)
        .collect();
    mean(&lines)
}

/// The whole file in order, by calls of so many pages: nanoseconds a page in each round.
fn in_order(pools: &[Pool; 2], plan: &ChurnPlan, pages: u32, is_cold: bool) -> [Vec<f64>; 2] {
    let mut took = [Vec::new(), Vec::new()];
    let mut words = vec![PageWord::HOLE; pages as usize];
    for round in 0..=plan.rounds {
        for (pool, took) in pools.iter().zip(&mut took) {
            if is_cold {
                pool.evict();
            }
            let cache = TransCache::default();
            let taken = time(|| {
                for lblk in (0..plan.file_pages).step_by(pages as usize) {
                    pool.map.get_many(FILE, lblk, &mut words, &cache);
                    black_box(&words);
                }
            });
            // The first round warms both up.
            if round > 0 {
                took.push(taken / f64::from(plan.file_pages));
            }
        }
    }
    took
}

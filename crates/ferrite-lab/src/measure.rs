//! Timing of operations: cold, hot, and relative to the clock's own cost.
//!
//! *Cold*: before each single operation the structure (its area, its nodes, the allocator's bitmap) is flushed from all
//! caches line by line, and a buffer larger than the private caches is read, so that data in DRAM is at best in the
//! shared cache. Then the same operation runs on a small twin of the pool, so that code and stack are warm: only the
//! structure is left to miss.
//!
//! *Hot*: many operations in batches; a sample is a batch's mean.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use ferrite_map::{PageId, TransCache};

use crate::error::LabError;
use crate::pool::{Pool, PoolPlan};
use crate::structure::Structure;
use ferrite_measure::{Rng, median};

/// Twice the private caches of known CPUs, and more pages than their TLBs hold.
const WALK_BYTES: usize = 8 << 20;
/// Cold lookups before those that count: page tables and predictors settle.
const UNCOUNTED: u32 = 10;
/// Pages of the twin's file.
const TWIN_PAGES: u32 = 256;
/// Operations of a hot batch.
const BATCH: u32 = 500;
/// The file that experiments read, and the twin's.
pub(crate) const FILE: u32 = 1;
/// A file that is touched to move cursors elsewhere.
pub(crate) const DECOY: u32 = 2;
/// A file that is appended to.
pub(crate) const GROWING: u32 = 3;
/// A file with holes that are filled.
pub(crate) const SPARSE: u32 = 4;

/// Nanoseconds of two clock reads.
pub(crate) fn clock_ns() -> f64 {
    static COST: OnceLock<f64> = OnceLock::new();
    *COST.get_or_init(|| {
        let costs: Vec<f64> = (0..2001)
            .map(|_| {
                let start = Instant::now();
                start.elapsed().as_nanos() as f64
            })
            .collect();
        median(&costs)
    })
}

/// Nanoseconds of `work`.
#[inline]
pub(crate) fn time(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    let elapsed = start.elapsed().as_nanos() as f64;
    (elapsed - clock_ns()).max(1.0)
}

/// The requirements of cold operations besides the pool.
pub(crate) struct Cold {
    twin: Pool,
    twin_next: u32,
    walk: Vec<u64>,
    /// Whether this CPU can evict lines.
    pub(crate) evicts: bool,
}

impl Cold {
    pub(crate) fn new(structure: Structure) -> Result<Cold, LabError> {
        Cold::with_walk(structure, WALK_BYTES)
    }

    /// One that only flushes: the structure has left the caches, but not the path to it, above all page tables. A miss
    /// then takes less than half as long.
    pub(crate) fn only_flushing(structure: Structure) -> Result<Cold, LabError> {
        Cold::with_walk(structure, 0)
    }

    fn with_walk(structure: Structure, walk_bytes: usize) -> Result<Cold, LabError> {
        clock_ns();
        let plan = PoolPlan {
            blocks: 4 * TWIN_PAGES,
            score: 1.0,
            lanes: 1,
            seed: 5,
        };
        let twin = Pool::new(structure, plan)?;
        twin.fill(FILE, 0, TWIN_PAGES, |_| true)?;
        Ok(Cold {
            twin,
            twin_next: 0,
            walk: vec![1; walk_bytes / 8],
            evicts: true,
        })
    }

    fn reset(&mut self, pool: &Pool) {
        pool.map.get(PageId::from_raw(DECOY, 0));
        self.evicts &= pool.evict();
        if self.walk.is_empty() {
            pool.recall_translations();
            return;
        }
        let sum: u64 = self.walk.iter().step_by(8).sum();
        black_box(sum);
    }

    /// A lookup of `count` pages, cold, in nanoseconds.
    pub(crate) fn look(&mut self, pool: &Pool, page: PageId, count: usize) -> f64 {
        let mut words = vec![ferrite_map::PageWord::HOLE; count];
        self.reset_to_look(pool, count);
        let cache = TransCache::default();
        let taken = time(|| pool.map.get_many(page, &mut words, &cache));
        black_box(&words);
        taken
    }

    /// Runs a cold lookup of a page through the caller's closure.
    pub(crate) fn around_look<T>(
        &mut self,
        pool: &Pool,
        page: PageId,
        around: impl FnOnce(&mut dyn FnMut()) -> T,
    ) -> T {
        let mut word = [ferrite_map::PageWord::HOLE];
        self.reset_to_look(pool, word.len());
        let cache = TransCache::default();
        let result = around(&mut || pool.map.get_many(page, &mut word, &cache));
        black_box(&word);
        result
    }

    /// Makes everything cold that a lookup of `count` pages needs, except code and stack.
    fn reset_to_look(&mut self, pool: &Pool, count: usize) {
        let mut rehearsed = vec![ferrite_map::PageWord::HOLE; count.min(TWIN_PAGES as usize)];
        self.reset(pool);
        // Twice, so that branch predictors and lines of code have settled.
        for _ in 0..2 {
            let cache = TransCache::default();
            black_box(time(|| {
                self.twin
                    .map
                    .get_many(PageId::from_raw(FILE, 0), &mut rehearsed, &cache)
            }));
        }
    }

    /// Lookups of single pages at these places, cold, in nanoseconds; `extra` is added to each.
    pub(crate) fn looks(
        &mut self,
        pool: &Pool,
        pages: impl Iterator<Item = PageId> + Clone,
        extra: impl Fn(PageId) -> f64,
    ) -> Vec<f64> {
        for page in pages.clone().take(UNCOUNTED as usize) {
            self.look(pool, page, 1);
        }
        pages.map(|page| self.look(pool, page, 1) + extra(page)).collect()
    }

    /// A mapping of `count` new pages, allocation and journal included, cold, in nanoseconds.
    pub(crate) fn insert(&mut self, pool: &Pool, ino: u32, lblk: u32, count: u32) -> Result<f64, LabError> {
        self.reset(pool);
        for _ in 0..2 {
            self.rehearse_insert(count.min(TWIN_PAGES / 2))?;
        }
        let mut result = Ok(());
        let taken = time(|| result = pool.insert(0, ino, lblk, count));
        result.map(|()| taken)
    }

    fn rehearse_insert(&mut self, count: u32) -> Result<(), LabError> {
        if self.twin_next + count > TWIN_PAGES {
            self.twin.remove(0, GROWING, 0, self.twin_next)?;
            self.twin_next = 0;
        }
        let mut result = Ok(());
        black_box(time(|| {
            result = self.twin.insert(0, GROWING, self.twin_next, count);
        }));
        self.twin_next += count;
        result
    }
}

/// Repeated lookups of single pages, as batches' means in nanoseconds.
pub(crate) fn hot_looks(pool: &Pool, ino: u32, operations: u32, mut page: impl FnMut(u32) -> u32) -> Vec<f64> {
    let cache = TransCache::default();
    let batches = (operations / BATCH).max(2);
    // One batch runs first, unmeasured: it brings the file's structure into the caches.
    let mut number = 0;
    (0..=batches)
        .map(|_| {
            let pages: Vec<u32> = (0..BATCH)
                .map(|_| {
                    number += 1;
                    page(number)
                })
                .collect();
            time(|| {
                for &lblk in &pages {
                    black_box(pool.look(PageId::from_raw(ino, lblk), &cache));
                }
            }) / f64::from(BATCH)
        })
        .skip(1)
        .collect()
}

/// Insertions of single pages, one transaction each, as batches' means in nanoseconds.
pub(crate) fn hot_inserts(
    pool: &Pool,
    ino: u32,
    operations: u32,
    mut page: impl FnMut(u32) -> u32,
) -> Result<Vec<f64>, LabError> {
    // An insert costs ten lookups.
    let batch = BATCH / 10;
    let batches = (operations / 10 / batch).max(2);
    let mut samples = Vec::new();
    let mut number = 0;
    for _ in 0..=batches {
        let mut result = Ok(());
        let taken = time(|| {
            for _ in 0..batch {
                number += 1;
                if result.is_ok() {
                    result = pool.insert(0, ino, page(number), 1);
                }
            }
        });
        result?;
        samples.push(taken / f64::from(batch));
    }
    samples.remove(0);
    Ok(samples)
}

/// Number of pages [`hot_inserts`] maps for this many operations.
pub(crate) fn hot_insert_pages(operations: u32) -> u32 {
    let batch = BATCH / 10;
    ((operations / 10 / batch).max(2) + 1) * batch + 1
}

/// The most operations for which [`hot_inserts`] maps no more than this many pages, at least three batches.
pub(crate) fn inserts_within(pages: u32) -> u32 {
    let batch = BATCH / 10;
    (pages / batch - 1) * batch * 10
}

/// Different pages below `pages`, in random order.
pub(crate) fn random_pages(pages: u32, seed: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..pages).collect();
    Rng::new(seed).shuffle(&mut all);
    all
}

//! Our mappings beside the papers' own published code for the same work, alone, on a machine of this kind.
//!
//! Contents: [`published_rows`], and the papers' figures as constants. One file in its own pool, mapped page by
//! page in order, each page a durable transaction as Ferrite's journal makes it, with one fence; then lookups of single
//! pages, and of eight. Everything is one thread on DRAM, in pages of 2 MiB where the system provides them.
//!
//! The papers' code does not run here, so the machine may be another one today: the rows include a dependent miss
//! beside the one measured then, and a miss after a flush. Those two rows are not comparisons but the scale of all
//! others. A miss after a flush took there what it takes here if nothing but the flush is done, so *cold* means that
//! here; elsewhere in the lab it means more.
//!
//! Tables have as many blocks as the plan says, and other files' pages fill them first, so that the file's keys are the
//! ones that were crowded out. HashFS gets one slot for each block here, as in the papers' code, not 1.25 as in a pool:
//! so 95 % of the blocks are 95 % of the table.
//!
//! Trees get a pool that the file fills up to [`FILL_PERCENT`]; Ferrite's free map, which is cut into chunks,
//! determines the lengths of its runs.
//!
//! Invariant: a page in a lookup is mapped, one that counts as absent is not; both are verified before a row counts.

use std::hint::black_box;

use ferrite_map::{Mapping, PageId, PageWord, TransCache};
use ferrite_pm::{LINE_BYTES, Region};

use crate::churn::{ChurnPlan, MappingRow};
use crate::error::LabError;
use crate::measure::{Cold, FILE, hot_insert_pages, hot_inserts, hot_looks, inserts_within, random_pages, time};
use crate::pool::{INODES, Pool, PoolPlan, Special};
use crate::structure::Structure;
use ferrite_measure::{Rng, mean, median};

/// Fill of a pool where the papers' figures do not state one.
const FILL_PERCENT: u32 = 80;
/// Pages of each file that fills up a table.
const FILLER_PAGES: u32 = 1024;
/// Pages that are looked up repeatedly.
const AGAIN_PAGES: u32 = 64;
/// Pages of one lookup by vector.
const VECTOR_PAGES: u32 = 8;
/// Lookups of several pages in a batch.
const VECTOR_BATCH: u32 = 64;
/// Bytes walked for the dependent miss, for each page of the file: 256 MiB for one of 1 GiB.
const CHASE_BYTES_PER_PAGE: u64 = 1024;
/// Loads of a batch of dependent ones.
const CHASE_BATCH: u32 = 1000;
const CHASE_BATCHES: u32 = 100;
/// Cold lookups for each of the plan's. In a full table a page lies anywhere from no to a hundred buckets from home,
/// and half of them within three: the median of few says as little as one.
const COLD_TIMES: u32 = 5;
/// The first of the other files.
const FIRST_FILLER: u32 = 16;
/// Nanoseconds of a dependent miss to DRAM in the run of the papers' code.
const PUBLISHED_MISS_NS: f64 = 163.0;
/// And of a miss to a flushed line: the lower end.
const PUBLISHED_FLUSHED_MISS_NS: f64 = 138.0;
/// No slower.
const REQUIRED_RATIO: f64 = 1.0;
/// The reference of all rows.
const AGAINST: &str = "published";

/// The operations, in the order of [`Peer::ns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The next page of the file gets a block, durably.
    Insert,
    /// Lookups in the file's first pages, which stay in the nearest cache.
    Again,
    /// Lookups from the file's first page to its last.
    Sequential,
    /// Lookups anywhere in the file.
    Random,
    /// Lookups past its end.
    Absent,
    /// One lookup after a flush of everything.
    Cold,
    /// Lookups of eight pages in a row, anywhere in the file; time per page.
    Vector,
}

const KINDS: [Kind; 7] = [
    Kind::Insert,
    Kind::Again,
    Kind::Sequential,
    Kind::Random,
    Kind::Absent,
    Kind::Cold,
    Kind::Vector,
];

/// Names of the rows; the first seven in the order of the kinds.
pub const PUBLISHED_ROWS: &[&str] = &[
    "published_insert",
    "published_again_64",
    "published_sequential",
    "published_random",
    "published_absent",
    "published_cold",
    "published_vector_8",
    MISS,
    FLUSHED_MISS,
];

const MISS: &str = "published_miss";
const FLUSHED_MISS: &str = "published_miss_flushed";

/// The papers' code for one structure, and its counterpart here.
struct Peer {
    structure: Structure,
    /// Share of the blocks that hold pages.
    fill_percent: u32,
    /// Length of the runs in which the free map deals out blocks; not for HashFS, which uses no free map.
    run_blocks: u64,
    /// Whether ours must not be slower in inserts: see `docs/mappings.md`, "Against the papers' own code".
    inserts_required: bool,
    /// The same in lookups.
    lookups_required: bool,
    /// Nanoseconds of the papers' published code, which ran alone on a machine of this kind: 1 GiB in a table of 4 Mi
    /// blocks, one thread, DRAM, pages of 2 MiB. The lower end of a range.
    ns: [Option<f64>; KINDS.len()],
}

const CONTIGUOUS: u64 = u64::MAX;

const fn peer(structure: Structure, fill_percent: u32, run_blocks: u64, ns: [f64; 6], vector_ns: Option<f64>) -> Peer {
    let [insert, again, sequential, random, absent, cold] = ns;
    Peer {
        structure,
        fill_percent,
        run_blocks,
        // Their HashFS sets one word, in place, and fences once; their other structures log and fence twice.
        inserts_required: !matches!(structure, HASHFS),
        lookups_required: true,
        ns: [
            Some(insert),
            Some(again),
            Some(sequential),
            Some(random),
            Some(absent),
            Some(cold),
            vector_ns,
        ],
    }
}

const HASHFS: Structure = Structure::Product(Mapping::Hashfs);
const CUCKOO: Structure = Structure::Product(Mapping::Cuckoo);
const EXTENT: Structure = Structure::Product(Mapping::Extent);
const HASHFS_80_NS: [f64; 6] = [240.0, 72.0, 217.0, 220.0, 213.0, 384.0];
const HASHFS_80_VECTOR_NS: f64 = 219.0;
const CUCKOO_NS: [f64; 6] = [676.0, 20.0, 197.0, 195.0, 217.0, 483.0];
const CUCKOO_VECTOR_NS: f64 = 55.0;

const PEERS: [Peer; 11] = [
    peer(
        HASHFS,
        50,
        CONTIGUOUS,
        [214.0, 31.0, 183.0, 162.0, 136.0, 336.0],
        Some(82.0),
    ),
    peer(HASHFS, 80, CONTIGUOUS, HASHFS_80_NS, Some(HASHFS_80_VECTOR_NS)),
    peer(
        HASHFS,
        95,
        CONTIGUOUS,
        [816.0, 506.0, 661.0, 667.0, 1371.0, 502.0],
        Some(1497.0),
    ),
    peer(CUCKOO, FILL_PERCENT, CONTIGUOUS, CUCKOO_NS, Some(CUCKOO_VECTOR_NS)),
    peer(CUCKOO, FILL_PERCENT, 1, CUCKOO_NS, Some(CUCKOO_VECTOR_NS)),
    peer(
        EXTENT,
        FILL_PERCENT,
        CONTIGUOUS,
        [792.0, 45.0, 17.0, 48.0, 27.0, 308.0],
        None,
    ),
    peer(EXTENT, FILL_PERCENT, 8, [777.0, 116.0, 31.0, 176.0, 88.0, 1428.0], None),
    peer(
        EXTENT,
        FILL_PERCENT,
        1,
        [915.0, 123.0, 126.0, 252.0, 77.0, 1662.0],
        None,
    ),
    peer(
        Structure::Product(Mapping::Radix),
        FILL_PERCENT,
        CONTIGUOUS,
        [462.0, 27.0, 28.0, 43.0, 24.0, 552.0],
        None,
    ),
    // One of our baselines, measured to show whether it is a fair one.
    Peer {
        inserts_required: false,
        lookups_required: false,
        ..peer(
            Structure::Level,
            0,
            CONTIGUOUS,
            [527.0, 84.0, 116.0, 125.0, 151.0, 406.0],
            None,
        )
    },
    // The papers have none; beside their HashFS.
    Peer {
        inserts_required: false,
        lookups_required: false,
        ..peer(
            Structure::Product(Mapping::Leaf),
            FILL_PERCENT,
            CONTIGUOUS,
            HASHFS_80_NS,
            Some(HASHFS_80_VECTOR_NS),
        )
    },
];

/// All structures compared with the papers' code, and the cost of a miss today. `step` is called when each begins.
pub fn published_rows(plan: &ChurnPlan, step: &mut dyn FnMut(&str)) -> Result<Vec<MappingRow>, LabError> {
    step("a dependent miss");
    let mut rows = miss_rows(plan)?;
    for peer in &PEERS {
        let structure = peer.structure.name();
        step(&format!(
            "{structure} at {} % beside the papers' code",
            peer.fill_percent
        ));
        let mut alone = Alone::new(peer, plan)?;
        for ((kind, name), theirs) in KINDS.into_iter().zip(PUBLISHED_ROWS.iter().copied()).zip(peer.ns) {
            let Some(theirs) = theirs else { continue };
            let samples = alone.measure(kind, plan)?;
            let required = match kind {
                Kind::Insert => peer.inserts_required,
                _ => peer.lookups_required,
            };
            let ours = median(&samples);
            rows.push(MappingRow {
                ratio: ours / theirs,
                required_ratio: required.then_some(REQUIRED_RATIO),
                median_ns: Some(ours),
                against_median_ns: Some(theirs),
                average_ns: Some(mean(&samples)),
                run_blocks: Some(alone.mean_run),
                ..MappingRow::new(name, structure, AGAINST, alone.fill_percent)
            });
        }
    }
    Ok(rows)
}

/// A structure with one file in it, and a table's other files.
struct Alone {
    pool: Pool,
    cold: Cold,
    structure: Structure,
    file_pages: u32,
    fill_percent: u32,
    /// Length of the file's runs of consecutive blocks, once it is written.
    mean_run: f64,
    seed: u64,
}

impl Alone {
    /// Filled, except for the file.
    fn new(peer: &Peer, plan: &ChurnPlan) -> Result<Alone, LabError> {
        let (structure, file_pages) = (peer.structure, plan.file_pages);
        let in_nodes = matches!(structure, EXTENT | Structure::Product(Mapping::Radix));
        let table_blocks = plan.published_blocks;
        let usable = if in_nodes {
            (u64::from(file_pages) * 100 / u64::from(peer.fill_percent)) as u32 + 1
        } else {
            table_blocks
        };
        // The block after each run has no owner.
        let between = u64::from(usable).div_ceil(peer.run_blocks);
        let slots = match structure {
            HASHFS => u64::from(table_blocks),
            _ => structure.slots_for(usable, INODES),
        };
        let pool = Pool::special(
            structure,
            PoolPlan {
                blocks: usable + between as u32,
                score: 1.0,
                lanes: 1,
                seed: plan.seed,
            },
            Special {
                slots: Some(slots),
                chunk_blocks: Some(peer.run_blocks),
                no_data: !in_nodes,
                one_fence: true,
            },
        )?;
        let mut rest = (u64::from(usable) * u64::from(peer.fill_percent) / 100) as u32;
        rest = rest.saturating_sub(file_pages);
        let mapped = u64::from(rest) + u64::from(file_pages);
        let mut ino = FIRST_FILLER;
        while rest > 0 {
            let pages = rest.min(FILLER_PAGES);
            pool.fill(ino, 0, pages, |_| true)?;
            rest -= pages;
            ino += 1;
        }
        Ok(Alone {
            pool,
            cold: Cold::only_flushing(structure)?,
            structure,
            file_pages,
            fill_percent: (mapped * 100).div_ceil(u64::from(usable)) as u32,
            mean_run: 0.0,
            seed: plan.seed,
        })
    }

    /// Maps the file's pages in order: nanoseconds a page, in batches.
    fn write_file(&mut self) -> Result<Vec<f64>, LabError> {
        let pages = self.file_pages;
        let operations = inserts_within(pages);
        let samples = hot_inserts(&self.pool, FILE, operations, |number| number - 1)?;
        let written = hot_insert_pages(operations) - 1;
        self.pool.fill(FILE, written, pages, |_| true)?;
        let is_there = |lblk| !self.pool.map.get(PageId::from_raw(FILE, lblk)).is_hole();
        if let Some(lblk) = (0..pages).find(|&lblk| !is_there(lblk)) {
            return Err(self.wrong(lblk, "is not mapped"));
        }
        if let Some(lblk) = (pages..3 * pages).find(|&lblk| is_there(lblk)) {
            return Err(self.wrong(lblk, "is mapped"));
        }
        let breaks = (1.0 - self.pool.layout_score(FILE, pages)) * f64::from(pages - 1);
        self.mean_run = f64::from(pages) / (breaks + 1.0);
        Ok(samples)
    }

    fn wrong(&self, lblk: u32, what: &str) -> LabError {
        LabError::Wrong(format!("{}: page {lblk} of the file {what}", self.structure.name()))
    }

    /// One kind of work, the insert first: nanoseconds a page, in batches or, cold, each.
    fn measure(&mut self, kind: Kind, plan: &ChurnPlan) -> Result<Vec<f64>, LabError> {
        let pages = self.file_pages;
        let mut rng = Rng::new(self.seed ^ kind as u64);
        let mut any = |bound: u32| rng.below(u64::from(bound)) as u32;
        let operations = plan.rounds * plan.lookups * 10;
        let hot = |operations, page: &mut dyn FnMut(u32) -> u32| hot_looks(&self.pool, FILE, operations, page);
        Ok(match kind {
            Kind::Insert => self.write_file()?,
            Kind::Again => hot(operations, &mut |number| number % AGAIN_PAGES),
            Kind::Sequential => hot(pages, &mut |number| (number - 1) % pages),
            Kind::Random => hot(operations, &mut |_| any(pages)),
            Kind::Absent => hot(operations, &mut |_| 2 * pages + any(pages)),
            Kind::Cold => {
                let places = random_pages(pages, self.seed)
                    .into_iter()
                    .map(|lblk| PageId::from_raw(FILE, lblk));
                let count = (COLD_TIMES * plan.rounds * plan.cold) as usize;
                self.cold.looks(&self.pool, places.take(count), |_| 0.0)
            }
            Kind::Vector => {
                let cache = TransCache::default();
                let mut words = [PageWord::HOLE; VECTOR_PAGES as usize];
                (0..operations / VECTOR_BATCH / VECTOR_PAGES)
                    .map(|_| {
                        let places: Vec<u32> = (0..VECTOR_BATCH)
                            .map(|_| any(pages / VECTOR_PAGES) * VECTOR_PAGES)
                            .collect();
                        let taken = time(|| {
                            for &lblk in &places {
                                self.pool.map.get_many(PageId::from_raw(FILE, lblk), &mut words, &cache);
                                black_box(&words);
                            }
                        });
                        taken / f64::from(VECTOR_BATCH * VECTOR_PAGES)
                    })
                    .collect()
            }
        })
    }
}

/// The difference between this machine and the one of the papers' code: a walk in which each load names the place of
/// the next, and loads of flushed lines.
fn miss_rows(plan: &ChurnPlan) -> Result<Vec<MappingRow>, LabError> {
    let region = Region::anonymous(u64::from(plan.file_pages) * CHASE_BYTES_PER_PAGE)?;
    let lines = random_pages((region.len() / LINE_BYTES) as u32, plan.seed);
    let places = lines.iter().map(|&line| u64::from(line) * LINE_BYTES);
    for (at, next) in places.clone().zip(places.clone().skip(1).chain(places.clone().take(1))) {
        region.store(at, next);
    }
    let mut at = 0;
    let chased: Vec<f64> = (0..CHASE_BATCHES)
        .map(|_| {
            time(|| {
                for _ in 0..CHASE_BATCH {
                    at = region.load(at);
                }
                black_box(at);
            }) / f64::from(CHASE_BATCH)
        })
        .collect();
    let flushed: Vec<f64> = places
        .take(CHASE_BATCHES as usize)
        .map(|at| {
            // To cache the translation of its page.
            black_box(region.load(at));
            region.evict(at, LINE_BYTES);
            time(|| {
                black_box(region.load(at));
            })
        })
        .collect();
    let row = |name, samples: &[f64], theirs: f64| MappingRow {
        ratio: median(samples) / theirs,
        median_ns: Some(median(samples)),
        against_median_ns: Some(theirs),
        average_ns: Some(mean(samples)),
        ..MappingRow::new(name, "none", AGAINST, 0)
    };
    Ok(vec![
        row(MISS, &chased, PUBLISHED_MISS_NS),
        row(FLUSHED_MISS, &flushed, PUBLISHED_FLUSHED_MISS_NS),
    ])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_row_is_there_once_with_numbers() {
        let mut steps = 0;
        let rows = published_rows(&ChurnPlan::tiny(), &mut |_| steps += 1).expect("it runs");
        assert_eq!(steps, 1 + PEERS.len());
        let figures = PEERS.iter().flat_map(|peer| peer.ns).flatten().count();
        assert_eq!(rows.len(), 2 + figures);
        let mut seen = HashSet::new();
        for row in &rows {
            assert!(PUBLISHED_ROWS.contains(&row.name), "{row:?}");
            // Runs of different lengths make different rows.
            let run = row.run_blocks.map(|blocks| blocks.round() as u64);
            assert!(seen.insert((row.name, row.structure, row.fill_percent, run)), "{row:?}");
            assert!(row.ratio.is_finite() && row.ratio > 0.0, "{row:?}");
            assert!(row.against_median_ns.is_some_and(|ns| ns > 0.0), "{row:?}");
        }
        for name in PUBLISHED_ROWS {
            assert!(rows.iter().any(|row| row.name == *name), "no row {name}");
        }
        // Tables are as full as the papers' were.
        let fills: HashSet<u32> = rows.iter().map(|row| row.fill_percent).collect();
        assert!([50, 80, 95].iter().all(|fill| fills.contains(fill)), "{fills:?}");
    }

    /// An insert returns with the durability of Ferrite's journal: the record, by one fence. New nodes have their own.
    #[test]
    fn an_insert_pays_one_fence() {
        let plan = ChurnPlan::tiny();
        for peer in &PEERS {
            let mut alone = Alone::new(peer, &plan).expect("a pool");
            let before = alone.pool.region.counters();
            alone.write_file().expect("space");
            let paid = alone.pool.region.counters() - before;
            let inserts = u64::from(hot_insert_pages(inserts_within(plan.file_pages)) - 1);
            let most = inserts + inserts / 20 + 2;
            let name = peer.structure.name();
            assert!(
                (inserts..=most).contains(&paid.fences),
                "{name}: {} for {inserts}",
                paid.fences
            );
        }
    }

    /// The layout of the file matches the row. Nodes split a run where they take the block after it.
    #[test]
    fn files_have_the_runs_they_claim() {
        let plan = ChurnPlan::tiny();
        for peer in &PEERS {
            let name = peer.structure.name();
            let mut alone = Alone::new(peer, &plan).expect("a pool");
            alone.write_file().expect("space");
            let run = alone.mean_run;
            let wanted = match (name, peer.run_blocks) {
                ("hashfs", _) => 1.0..2.0,
                (_, 1) => 1.0..1.001,
                (_, 8) => 7.8..8.1,
                // A radix tree takes a node for every 512 pages.
                ("radix", _) => 256.0..513.0,
                // An insert that must wait for space releases its block; the next one takes the block after it.
                ("level", _) => 64.0..5000.0,
                _ => 1024.0..5000.0,
            };
            assert!(wanted.contains(&run), "{name}, runs of {}: {run}", peer.run_blocks);
        }
    }

    /// 95 % full refers to the table: it has no slots beyond the blocks, unlike a pool.
    #[test]
    fn hashfs_has_a_slot_a_block() {
        let plan = ChurnPlan::tiny();
        let mut alone = Alone::new(&PEERS[2], &plan).expect("a pool");
        alone.write_file().expect("space");
        let slots = alone.pool.map.slots();
        assert_eq!(slots.total, u64::from(plan.published_blocks));
        assert_eq!((slots.total - slots.free) * 100 / slots.total, 94);
    }
}

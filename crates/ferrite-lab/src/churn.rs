//! Aged mappings: the cost of lookups and inserts after much of the pool was unmapped and mapped again.
//!
//! Contents: [`Aged`], a mapping on a pool that is kept equally full while its pages change, and its costs then
//! ([`churn_rows`]); [`ChurnPlan`] and [`MappingRow`], which `compare`, `published` and `runs` share. For `ferrite
//! bench mapping`.
//!
//! Files are 500 pages long and written in order. Half of the pages are removed one by one, anywhere, which leaves
//! holes and thins files out; the other half with whole files. Every structure gets the same operations.
//!
//! All structures are measured in turn, round by round, so that other load on the machine affects all of them; a ratio
//! is the median of the rounds' ratios. Lines come from [`ferrite_map::Measured`].
//!
//! Invariant: the number of mapped pages is the same before and after each churn and each measurement.

use std::hint::black_box;
use std::sync::atomic::AtomicU64;

use ferrite_map::{BlockNo, MapError, MapTx, Mapping, PageId, PageWord, Resource, TransCache};
use ferrite_pm::LINE_BYTES;
use serde::Serialize;

use crate::error::LabError;
use crate::measure::{Cold, time};
use crate::pool::{INODES, Pool, PoolPlan, page_of};
use crate::structure::Structure;
use crate::tx::LabTx;
use ferrite_measure::{Rng, mean, median, p99};

/// Pages of a file.
const FILE_PAGES: u32 = 500;
/// Pages unmapped in one transaction.
const BATCH_PAGES: usize = 64;
/// Attempts to find a hole in a file before the search continues past its end.
const HOLE_TRIES: u32 = 16;
/// The structure that all are compared with.
const PEER: Mapping = Mapping::Hashfs;

/// How much `ferrite-lab bench mapping` does.
#[derive(Debug, Clone)]
pub struct ChurnPlan {
    /// Data blocks of the pools that age.
    pub pool_blocks: u32,
    /// How full they are kept, in percent of the data blocks.
    pub fills: Vec<u32>,
    /// Amounts of churn after which they are measured, as multiples of the data blocks; ascending.
    pub churns: Vec<u32>,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Lookups of a round.
    pub lookups: u32,
    /// Inserts of a round.
    pub inserts: u32,
    /// Cold operations of each kind in a round.
    pub cold: u32,
    /// Pages of the file in which `leaf` is compared with HashFS.
    pub file_pages: u32,
    /// Repetitions, each on fresh pools: the placement of memory matters more than chance does.
    pub pools: u32,
    /// Blocks of the tables in which mappings are compared with the papers' own code; the file has `file_pages`.
    pub published_blocks: u32,
    /// Bytes of the pool on which runs are counted.
    pub runs_pool_bytes: u64,
    /// Times that half of that pool's files are deleted and others written.
    pub turnovers: u32,
    /// Seed of everything random.
    pub seed: u64,
}

impl ChurnPlan {
    /// The sizes of the requirements; about two minutes.
    pub fn whole() -> ChurnPlan {
        ChurnPlan {
            pool_blocks: 1 << 14,
            fills: vec![50, 80, 95],
            churns: vec![5, 100],
            rounds: 20,
            lookups: 500,
            inserts: 50,
            cold: 3,
            file_pages: 1 << 18,
            pools: 5,
            published_blocks: 1 << 22,
            runs_pool_bytes: 1 << 30,
            turnovers: 6,
            seed: 0x00fe_2217_e1ab,
        }
    }

    /// A quick look, not a measurement.
    pub fn quick() -> ChurnPlan {
        ChurnPlan {
            pool_blocks: 1 << 13,
            rounds: 7,
            file_pages: 1 << 16,
            pools: 3,
            published_blocks: 1 << 20,
            runs_pool_bytes: 256 << 20,
            turnovers: 4,
            ..ChurnPlan::whole()
        }
    }

    /// The smallest possible run; for tests. Its times mean nothing, its lines do.
    pub fn tiny() -> ChurnPlan {
        ChurnPlan {
            pool_blocks: 1 << 12,
            rounds: 2,
            inserts: 20,
            cold: 1,
            file_pages: 1 << 12,
            pools: 2,
            published_blocks: 1 << 14,
            runs_pool_bytes: 64 << 20,
            turnovers: 2,
            ..ChurnPlan::quick()
        }
    }
}

/// One line of the result. Omits columns that do not apply to it.
#[derive(Debug, Clone, Serialize)]
pub struct MappingRow {
    /// Always "mapping".
    pub group: &'static str,
    /// Name of the measurement.
    pub name: &'static str,
    /// The structure.
    pub structure: &'static str,
    /// The structure it is compared with.
    pub against: &'static str,
    /// Ours divided by theirs: below 1 is better.
    pub ratio: f64,
    /// The required ratio, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_ratio: Option<f64>,
    /// Nanoseconds of an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_ns: Option<f64>,
    /// The same of the other side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_median_ns: Option<f64>,
    /// Mean of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_ns: Option<f64>,
    /// 99 of 100 are faster; each timed alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
    /// With the structure evicted from the caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_median_ns: Option<f64>,
    /// The same divided by theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_ratio: Option<f64>,
    /// Cache lines of the structure that an operation touches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_average: Option<f64>,
    /// 99 of 100 touch no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines_p99: Option<u64>,
    /// Length of a run of consecutive blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_blocks: Option<f64>,
    /// Share of the data blocks that hold pages.
    pub fill_percent: u32,
    /// Pages that were unmapped and mapped again, in times the data blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub churn: Option<u32>,
}

impl MappingRow {
    /// Without any of the optional numbers.
    pub(crate) fn new(name: &'static str, structure: &'static str, against: &'static str, fill_percent: u32) -> Self {
        MappingRow {
            group: "mapping",
            name,
            structure,
            against,
            ratio: f64::NAN,
            required_ratio: None,
            median_ns: None,
            against_median_ns: None,
            average_ns: None,
            p99_ns: None,
            cold_median_ns: None,
            cold_ratio: None,
            lines_average: None,
            lines_p99: None,
            run_blocks: None,
            fill_percent,
            churn: None,
        }
    }
}

/// The operations on an aged mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A lookup of a page that is mapped.
    Hit,
    /// A lookup of an unmapped page: half of them holes, half past a file's end.
    Miss,
    /// Gives the next page of a file a block, in its own transaction with two fences.
    Insert,
}

const KINDS: [(Kind, &str); 3] = [(Kind::Hit, "hit"), (Kind::Miss, "miss"), (Kind::Insert, "insert")];

struct File {
    ino: u32,
    pages: Vec<u32>,
}

/// The position of a page in the list of files.
struct Place {
    /// Index of the file.
    file: usize,
    /// Index of the page in it.
    page: usize,
}

/// See the module's head.
struct Aged {
    pool: Pool,
    cold: Cold,
    rng: Rng,
    /// Complete files, or the rest of them.
    files: Vec<File>,
    growing: File,
    last_ino: u32,
    /// Pages that were removed one by one, and with whole files.
    single: u64,
    whole: u64,
}

impl Aged {
    fn new(structure: Structure, plan: &ChurnPlan, fill_percent: u32) -> Result<Aged, LabError> {
        let pool = Pool::new(
            structure,
            PoolPlan {
                blocks: plan.pool_blocks,
                score: 1.0,
                lanes: 1,
                seed: plan.seed,
            },
        )?;
        let mut aged = Aged {
            pool,
            cold: Cold::new(structure)?,
            rng: Rng::new(plan.seed ^ u64::from(fill_percent)),
            files: Vec::new(),
            growing: File {
                ino: 1,
                pages: Vec::new(),
            },
            last_ino: 1,
            single: 0,
            whole: 0,
        };
        let wanted = u64::from(plan.pool_blocks) * u64::from(fill_percent) / 100;
        for _ in 0..wanted {
            aged.map_next()?;
        }
        Ok(aged)
    }

    /// The page to map next.
    fn next_page(&self) -> PageId {
        PageId::from_raw(self.growing.ino, self.growing.pages.len() as u32)
    }

    /// Records that the next page was mapped.
    fn grown(&mut self) {
        self.growing.pages.push(self.growing.pages.len() as u32);
        if self.growing.pages.len() < FILE_PAGES as usize {
            return;
        }
        loop {
            self.last_ino = self.last_ino % (INODES - 1) + 1;
            if self.last_ino != self.growing.ino && self.files.iter().all(|file| file.ino != self.last_ino) {
                break;
            }
        }
        let fresh = File {
            ino: self.last_ino,
            pages: Vec::new(),
        };
        self.files.push(std::mem::replace(&mut self.growing, fresh));
    }

    fn map_next(&mut self) -> Result<(), LabError> {
        let next = self.next_page();
        self.pool
            .unpaid(|| self.pool.insert(0, next.ino.get(), next.lblk.get(), 1))?;
        self.grown();
        Ok(())
    }

    /// Some mapped page of a complete file, each with the same chance.
    fn any_page(&mut self) -> Place {
        loop {
            let file = self.rng.below(self.files.len() as u64) as usize;
            let page = self.rng.below(u64::from(FILE_PAGES)) as usize;
            if page < self.files[file].pages.len() {
                return Place { file, page };
            }
        }
    }

    fn unmap_one(&mut self) -> Result<(), LabError> {
        let Place { file: at, page } = self.any_page();
        let file = &mut self.files[at];
        let (ino, lblk) = (file.ino, file.pages.swap_remove(page));
        if file.pages.is_empty() {
            self.files.swap_remove(at);
        }
        let removed = self.pool.unpaid(|| self.pool.remove(0, ino, lblk, 1))?;
        self.all_there(removed, 1, ino)
    }

    /// Unmaps a file and returns the number of its pages.
    fn unmap_file(&mut self) -> Result<u64, LabError> {
        let at = self.rng.below(self.files.len() as u64) as usize;
        let file = self.files.swap_remove(at);
        let pool = &self.pool;
        let mut removed = 0;
        for pages in file.pages.chunks(BATCH_PAGES) {
            removed += pool.unpaid(|| {
                pool.change(0, |tx| {
                    let mut removed = 0;
                    for &lblk in pages {
                        let word = pool.map.remove(tx, PageId::from_raw(file.ino, lblk))?;
                        if !word.is_hole() {
                            tx.freed(Resource::Block(page_of(word)));
                            removed += 1;
                        }
                    }
                    Ok(removed)
                })
            })?;
        }
        let count = file.pages.len();
        self.all_there(removed, count, file.ino)?;
        Ok(count as u64)
    }

    fn all_there(&self, removed: u32, expected: usize, ino: u32) -> Result<(), LabError> {
        if removed as usize == expected {
            return Ok(());
        }
        let name = self.pool.structure.name();
        Err(LabError::Wrong(format!(
            "{name}: {removed} of {expected} pages of inode {ino} were still mapped"
        )))
    }

    /// Unmaps and maps pages until their number since the pool was filled is `pages`.
    fn churn_to(&mut self, pages: u64) -> Result<(), LabError> {
        while self.single + self.whole < pages {
            let mut count = 1;
            // The last files must stay: single pages are taken from them.
            if self.whole <= self.single && self.files.len() > 2 {
                count = self.unmap_file()?;
                self.whole += count;
            } else {
                self.unmap_one()?;
                self.single += 1;
            }
            for _ in 0..count {
                self.map_next()?;
            }
        }
        Ok(())
    }

    fn hit(&mut self) -> PageId {
        let Place { file, page } = self.any_page();
        PageId::from_raw(self.files[file].ino, self.files[file].pages[page])
    }

    fn miss(&mut self) -> PageId {
        let file = self.rng.below(self.files.len() as u64) as usize;
        let ino = self.files[file].ino;
        let tries = if self.rng.below(2) == 0 { HOLE_TRIES } else { 0 };
        for _ in 0..tries {
            let page = PageId::from_raw(ino, self.rng.below(u64::from(FILE_PAGES)) as u32);
            if self.pool.map.get(page).is_hole() {
                return page;
            }
        }
        PageId::from_raw(ino, FILE_PAGES + self.rng.below(u64::from(FILE_PAGES)) as u32)
    }

    fn some(&mut self, kind: Kind, count: u32) -> Vec<PageId> {
        let one = if kind == Kind::Hit { Aged::hit } else { Aged::miss };
        (0..count).map(|_| one(self)).collect()
    }

    /// One round of lookups.
    fn look(&mut self, kind: Kind, plan: &ChurnPlan, costs: &mut Costs) -> Result<(), LabError> {
        let cache = TransCache::default();
        let pages = self.some(kind, plan.lookups);
        let pool = &self.pool;
        for &page in &pages {
            if pool.look(page, &cache).is_hole() != (kind == Kind::Miss) {
                let name = pool.structure.name();
                return Err(LabError::Wrong(format!("{name}: {page}: {kind:?} expected")));
            }
            costs.lines.push(pool.map.lines_touched(page));
        }
        let batch = time(|| {
            for &page in &pages {
                black_box(pool.look(page, &cache));
            }
        });
        costs.rounds.push(batch / f64::from(plan.lookups));
        for &page in &pages {
            costs.singles.push(time(|| {
                black_box(pool.look(page, &cache));
            }));
        }
        for page in self.some(kind, plan.cold) {
            costs.cold.push(self.cold.look(&self.pool, page, 1));
        }
        Ok(())
    }

    /// One round of inserts. A page is removed before each.
    fn insert(&mut self, plan: &ChurnPlan, costs: &mut Costs) -> Result<(), LabError> {
        let mut total = 0.0;
        for _ in 0..plan.inserts {
            self.unmap_one()?;
            let next = self.next_page();
            let mut result = Ok(());
            let taken = time(|| result = self.pool.insert(0, next.ino.get(), next.lblk.get(), 1));
            result?;
            self.grown();
            costs.singles.push(taken);
            total += taken;
        }
        costs.rounds.push(total / f64::from(plan.inserts));
        for _ in 0..plan.inserts {
            self.unmap_one()?;
            let lines = self.count_insert()?;
            costs.lines.push(lines);
        }
        for _ in 0..plan.cold {
            self.unmap_one()?;
            let next = self.next_page();
            let taken = self.cold.insert(&self.pool, next.ino.get(), next.lblk.get(), 1)?;
            costs.cold.push(taken);
            self.grown();
        }
        Ok(())
    }

    /// Maps the next page; counts the lines of the miss that shows that it is unmapped, and the lines that are set. A
    /// line that is read and set counts twice; free maps in DRAM and the zeros of a new node do not count.
    fn count_insert(&mut self) -> Result<u64, LabError> {
        let page = self.next_page();
        let pool = &self.pool;
        let missed = pool.map.lines_touched(page);
        let set = pool.unpaid(|| {
            pool.change(0, |tx| {
                let mut counting = Counting { tx, lines: Vec::new() };
                let block = pool.map.alloc_page(&mut counting, page)?;
                pool.map.insert(&mut counting, page, PageWord::of_block(block))?;
                Ok(counting.lines.len())
            })
        })?;
        self.grown();
        Ok(missed + set as u64)
    }
}

/// A transaction that counts the lines of the words it sets.
struct Counting<'t, 'p> {
    tx: &'t mut LabTx<'p>,
    lines: Vec<u64>,
}

impl MapTx for Counting<'_, '_> {
    fn set_word(&mut self, offset: u64, value: u64) {
        let line = offset / LINE_BYTES;
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
        self.tx.set_word(offset, value);
    }

    fn word(&self, offset: u64) -> u64 {
        self.tx.word(offset)
    }

    fn stored(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        self.tx.stored(offset, count)
    }

    fn fresh_block(&mut self) -> Result<BlockNo, MapError> {
        self.tx.fresh_block()
    }

    fn claim_block(&mut self, block: BlockNo) -> bool {
        self.tx.claim_block(block)
    }

    fn alloc_block(&mut self) -> Result<BlockNo, MapError> {
        self.tx.alloc_block()
    }

    fn alloc_run(&mut self) -> Result<BlockNo, MapError> {
        self.tx.alloc_run()
    }

    fn claimed(&mut self, resource: Resource) {
        self.tx.claimed(resource);
    }

    fn freed(&mut self, resource: Resource) {
        self.tx.freed(resource);
    }
}

/// The costs of one kind of operation on one structure.
#[derive(Debug, Default)]
struct Costs {
    /// Mean of each round, hot.
    rounds: Vec<f64>,
    /// Each operation timed alone, hot.
    singles: Vec<f64>,
    cold: Vec<f64>,
    lines: Vec<u64>,
}

/// The median of the rounds' ratios.
fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

/// Lookups and inserts of every mapping at one of the plan's fills, after each of its churns. `step` is called when
/// each begins.
pub fn churn_rows(
    plan: &ChurnPlan,
    fill_percent: u32,
    step: &mut dyn FnMut(&str),
) -> Result<Vec<MappingRow>, LabError> {
    let mut all = Vec::new();
    for &mapping in Mapping::ALL {
        all.push(Aged::new(Structure::Product(mapping), plan, fill_percent)?);
    }
    let peer = Mapping::ALL.iter().position(|&mapping| mapping == PEER).unwrap_or(0);
    let mut rows = Vec::new();
    for &churn in &plan.churns {
        for aged in &mut all {
            step(&format!(
                "{} at {fill_percent} %, {churn}x churn",
                aged.pool.structure.name()
            ));
            aged.churn_to(u64::from(churn) * u64::from(plan.pool_blocks))?;
        }
        step(&format!("all at {fill_percent} %, after {churn}x churn"));
        for (kind, name) in KINDS {
            let mut costs: Vec<Costs> = all.iter().map(|_| Costs::default()).collect();
            for _ in 0..plan.rounds {
                for (aged, costs) in all.iter_mut().zip(&mut costs) {
                    match kind {
                        Kind::Hit | Kind::Miss => aged.look(kind, plan, costs)?,
                        Kind::Insert => aged.insert(plan, costs)?,
                    }
                }
            }
            let theirs = (median(&costs[peer].rounds), median(&costs[peer].cold));
            let their_rounds = costs[peer].rounds.clone();
            for (aged, costs) in all.iter().zip(&mut costs) {
                let cold_median = median(&costs.cold);
                let lines = costs.lines.iter().sum::<u64>() as f64 / costs.lines.len() as f64;
                rows.push(MappingRow {
                    ratio: ratio(&costs.rounds, &their_rounds),
                    median_ns: Some(median(&costs.rounds)),
                    against_median_ns: Some(theirs.0),
                    average_ns: Some(mean(&costs.rounds)),
                    p99_ns: p99(&mut costs.singles, f64::total_cmp),
                    cold_median_ns: Some(cold_median),
                    cold_ratio: Some(cold_median / theirs.1),
                    lines_average: Some(lines),
                    lines_p99: p99(&mut costs.lines, u64::cmp),
                    churn: Some(churn),
                    ..MappingRow::new(name, aged.pool.structure.name(), PEER.name(), fill_percent)
                });
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;

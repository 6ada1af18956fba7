//! YCSB on LevelDB on the engine: a pool and a database for each mapping, loaded, then queried.
//!
//! Invariant: all mappings get the same operations in the same order (of one thread; several interleave freely), round
//! by round in turns, and LevelDB's own thread is idle when a round begins.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ferrite_fs::{MkfsOptions, MountOptions};
use ferrite_leveldb::{Db, Options};
use ferrite_map::Mapping;
use ferrite_vfs::{Cred, Vfs};
use parking_lot::Mutex;

use super::keys::{Chooser, fnv};
use super::{Operation, PANEL, PAPER_PAIRS, WORKLOADS, Workload};
use crate::data::FigureData;
use crate::data::point;
use crate::engine::engine_in_memory;
use crate::error::LabError;
use crate::figures::bars;
use crate::plan::Plan;
use crate::progress::Progress;
use ferrite_measure::Rng;

/// With the key, 1 KiB a pair.
const VALUE_BYTES: usize = 1000;
const KEY_BYTES: usize = 24;
/// LevelDB's cache of blocks is 8 MiB by default; with fewer pairs it is smaller in proportion, so that reads go to
/// files.
const PAPER_CACHE_BYTES: u64 = 8 << 20;
/// The paper's.
const MAX_FILE_BYTES: usize = 128 << 20;
/// Pairs of a scan, at most.
const SCAN_PAIRS_MAX: u64 = 100;
/// A pool's size in units of its data: LevelDB writes new tables before it removes the old ones.
const SPACE_FACTOR: u64 = 3;
/// Space of a pool beyond that, for tables, rings and LevelDB's log.
const POOL_BYTES_MIN: u64 = 96 << 20;

/// A database on a pool with one mapping.
struct Store {
    name: &'static str,
    db: Db,
    /// Pairs so far; all of them can be read.
    pairs: AtomicU64,
    /// Held while a pair is added, so that `pairs` grows in order. LevelDB takes one write at a time anyway.
    adding: Mutex<()>,
}

fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"user00000000000000000000";
    // Hashed, the default of YCSB: the order of insertion is not that of the keys.
    let mut rest = fnv(number);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

impl Workload {
    fn draw(&self, rng: &mut Rng) -> Operation {
        let mut left = rng.below(100);
        for &(percent, operation) in self.mix {
            if left < percent {
                return operation;
            }
            left -= percent;
        }
        Operation::Read
    }

    /// The percentage of this operation.
    fn percent(&self, operation: Operation) -> u64 {
        let parts = self.mix.iter().filter(|(_, part)| *part == operation);
        parts.map(|(percent, _)| percent).sum()
    }
}

/// Fills a pair's value: its number, then random bytes.
fn stamp(value: &mut [u8; VALUE_BYTES], number: u64, rng: &mut Rng) {
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&rng.next_u64().to_le_bytes());
}

fn noise(rng: &mut Rng) -> [u8; VALUE_BYTES] {
    std::array::from_fn(|_| rng.next_u64() as u8)
}

/// Bytes of a pool that the given number of pairs may occupy.
fn pool_bytes(pairs: u64) -> u64 {
    (pairs * (KEY_BYTES + VALUE_BYTES) as u64 * SPACE_FACTOR + POOL_BYTES_MIN).next_multiple_of(2 << 20)
}

/// Pairs that the workloads are expected to add.
fn pairs_to_come(plan: &Plan) -> u64 {
    let percent: u64 = WORKLOADS
        .iter()
        .map(|workload| workload.percent(Operation::Insert))
        .sum();
    u64::from(plan.ycsb_operations) * u64::from(plan.ycsb_rounds + 1) * percent / 100
}

/// The plan's number of pairs, or as many as fit in memory for pools of all mappings.
fn pairs_that_fit(plan: &Plan) -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available_kib = meminfo.lines().find_map(|line| {
        let rest = line.strip_prefix("MemAvailable:")?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    // A fifth is left for everything else.
    let each_bytes = available_kib.map_or(u64::MAX, |kib| kib * 1024 / 5 * 4) / Mapping::ALL.len() as u64;
    let fit =
        each_bytes.saturating_sub(pool_bytes(pairs_to_come(plan))) / ((KEY_BYTES + VALUE_BYTES) as u64 * SPACE_FACTOR);
    u64::from(plan.ycsb_pairs).min(fit).max(2)
}

impl Store {
    fn new(mapping: Mapping, pairs: u64, plan: &Plan) -> Result<Store, LabError> {
        let mkfs = MkfsOptions::default().mapping(mapping).seed(plan.seed);
        let engine = engine_in_memory(pool_bytes(pairs + pairs_to_come(plan)), &mkfs, &MountOptions::default())?;
        let vfs = Vfs::new(std::sync::Arc::new(engine), Cred::root());
        let options = Options {
            max_file_size_bytes: MAX_FILE_BYTES,
            block_cache_bytes: cache_bytes(pairs) as usize,
            ..Options::default()
        };
        Ok(Store {
            name: mapping.name(),
            db: Db::open(&vfs, "/ycsb", &options)?,
            pairs: AtomicU64::new(0),
            adding: Mutex::new(()),
        })
    }

    fn load(&self, pairs: u64, seed: u64) -> Result<(), LabError> {
        let mut rng = Rng::new(seed);
        let mut value = noise(&mut rng);
        for _ in 0..pairs {
            self.add(&mut value, &mut rng)?;
        }
        Ok(())
    }

    fn add(&self, value: &mut [u8; VALUE_BYTES], rng: &mut Rng) -> Result<(), LabError> {
        let _turn = self.adding.lock();
        let number = self.pairs.load(Ordering::Acquire);
        stamp(value, number, rng);
        self.db.put(&key(number), value)?;
        self.pairs.store(number + 1, Ordering::Release);
        Ok(())
    }

    fn read(&self, number: u64) -> Result<(), LabError> {
        let value = self.db.get(&key(number))?;
        if value.is_some_and(|value| value.len() == VALUE_BYTES && value[..8] == number.to_le_bytes()) {
            return Ok(());
        }
        Err(LabError::Wrong(format!(
            "{}: pair {number} is missing or another's",
            self.name
        )))
    }

    fn scan(&self, number: u64, limit: u64) -> Result<(), LabError> {
        let mut good = true;
        let count = self.db.scan(&key(number), limit as usize, &mut |_, value| {
            good &= value.len() == VALUE_BYTES
        })?;
        // The first pair exists; fewer may follow it.
        if good && count > 0 {
            return Ok(());
        }
        Err(LabError::Wrong(format!(
            "{}: a scan from pair {number} lost pairs",
            self.name
        )))
    }

    /// The work of one thread in a round.
    fn operate(&self, workload: &Workload, operations: u32, span: u64, mut rng: Rng) -> Result<(), LabError> {
        let mut value = noise(&mut rng);
        let mut chooser = match workload.latest {
            true => Chooser::latest(self.pairs.load(Ordering::Acquire)),
            false => Chooser::scrambled(span),
        };
        for _ in 0..operations {
            let operation = workload.draw(&mut rng);
            if operation == Operation::Insert {
                self.add(&mut value, &mut rng)?;
                continue;
            }
            let number = chooser.next(&mut rng, self.pairs.load(Ordering::Acquire));
            if matches!(operation, Operation::Read | Operation::Change) {
                self.read(number)?;
            }
            if matches!(operation, Operation::Update | Operation::Change) {
                stamp(&mut value, number, &mut rng);
                self.db.put(&key(number), &value)?;
            }
            if operation == Operation::Scan {
                self.scan(number, 1 + rng.below(SCAN_PAIRS_MAX))?;
            }
        }
        Ok(())
    }

    /// Thousands of operations a second, of all threads together.
    fn rate(&self, workload: &Workload, threads: u32, operations: u32, span: u64, seed: u64) -> Result<f64, LabError> {
        let each = operations.div_ceil(threads);
        let barrier = &Barrier::new(threads as usize);
        let results: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn(move || {
                        let rng = Rng::new(seed ^ u64::from(thread) << 32);
                        barrier.wait();
                        let start = Instant::now();
                        self.operate(workload, each, span, rng)
                            .map(|()| (start, Instant::now()))
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join()).collect()
        });
        let mut times = Vec::new();
        for result in results {
            times.push(result.map_err(|_| LabError::Wrong("a thread of the workload panicked".into()))??);
        }
        // From the start of the first thread to the end of the last. The clock of a thread that only waits for them may
        // be late.
        let start = times.iter().map(|&(start, _)| start).min();
        let end = times.iter().map(|&(_, end)| end).max();
        let seconds = start
            .zip(end)
            .map_or(f64::NAN, |(start, end)| end.duration_since(start).as_secs_f64());
        self.db.settle();
        Ok(f64::from(each * threads) / seconds / 1000.0)
    }
}

fn cache_bytes(pairs: u64) -> u64 {
    (PAPER_CACHE_BYTES * pairs / PAPER_PAIRS).max(64 << 10)
}

pub(super) fn run(plan: &Plan, progress: &mut dyn Progress, threads: u32) -> Result<FigureData, LabError> {
    let mut panel = bars(PANEL, "workload", "throughput", "kops/s", false);
    let pairs = pairs_that_fit(plan);
    let mut stores = Vec::new();
    for &mapping in Mapping::ALL {
        progress.step(&format!("{mapping}: {pairs} pairs go in"));
        let store = Store::new(mapping, pairs, plan)?;
        store.load(pairs, plan.seed)?;
        stores.push(store);
    }
    // The same number again, as YCSB counts.
    let span = pairs + 2 * pairs_to_come(plan);
    for (x, workload) in WORKLOADS.iter().enumerate() {
        // All begin with the same tables: the number of tables that a read visits would matter more than the mapping.
        for store in &stores {
            progress.step(&format!("workload {}: {} is compacted", workload.label, store.name));
            store.db.compact()?;
            store.db.settle();
        }
        let mut rates = vec![Vec::new(); stores.len()];
        for round in 0..=plan.ycsb_rounds {
            progress.step(&format!(
                "workload {}, round {round} of {}",
                workload.label, plan.rounds
            ));
            let seed = plan.seed ^ fnv(u64::from(round) << 8 | x as u64);
            for turn in 0..stores.len() {
                // Each round begins with another one.
                let at = (turn + round as usize) % stores.len();
                let rate = stores[at].rate(workload, threads, plan.ycsb_operations, span, seed)?;
                // The first one warms up.
                if round > 0 {
                    rates[at].push(rate);
                }
            }
        }
        for (store, rates) in stores.iter().zip(&mut rates) {
            panel.push(store.name, point(x as f64, workload.label, rates));
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    Ok(FigureData {
        panels: vec![panel],
        notes: vec![
            format!(
                "LevelDB in this process, its files on the engine through the library, without a kernel between. \
                 {pairs} pairs of 1 KiB \
                 (paper 1,600,000), {} operations a round (paper 100,000 in all), {threads} threads on {cores} cores; \
                 tables of 128 MiB \
                 as in the paper, no compression, a block cache of {} KiB (LevelDB's 8 MiB in proportion to the \
                 pairs).",
                plan.ycsb_operations,
                cache_bytes(pairs) >> 10
            ),
            "Each database is loaded once, goes through the workloads A to F, and is compacted before each; between \
             rounds LevelDB's own \
             thread is waited for, so that what it merges behind a round counts for nothing. Popular pairs are YCSB's \
             (zipfian 0.99, scrambled; in D the newest); scans have 1 to 100 pairs."
                .into(),
            "The paper's baseline, Strata's extent tree behind a page cache, is a bare structure here (figures 11 and \
             12), and no engine \
             runs on it: what HashFS gains over it is not measured. leaf is ours, the paper does not have it."
                .into(),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_and_of_one_length() {
        let keys: std::collections::BTreeSet<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(
            keys.iter()
                .all(|key| key.starts_with(b"user") && key[4..].iter().all(u8::is_ascii_digit))
        );
    }

    /// Several threads add and read: every counted pair can be read.
    #[test]
    fn pairs_that_are_counted_can_be_read() {
        let plan = Plan::tiny();
        let store = Store::new(Mapping::default(), 500, &plan).unwrap();
        store.load(500, 1).unwrap();
        let workload = WORKLOADS.iter().find(|workload| workload.latest).unwrap();
        store.rate(workload, 4, 4000, 2000, 1).unwrap();
        let pairs = store.pairs.load(Ordering::Acquire);
        assert!((500 + 100..500 + 400).contains(&pairs), "{pairs}");
        assert!(store.read(pairs).is_err(), "a pair that nobody added");
    }

    /// The full plan is for larger machines than most; a smaller one gets fewer pairs, not an error after minutes.
    #[test]
    fn pairs_are_as_many_as_memory_holds() {
        assert_eq!(pairs_that_fit(&Plan::tiny()), 2000);
        let plan = Plan {
            ycsb_pairs: u32::MAX,
            ..Plan::tiny()
        };
        let pairs = pairs_that_fit(&plan);
        let pools = pool_bytes(pairs + pairs_to_come(&plan)) * Mapping::ALL.len() as u64;
        // No test machine has more.
        assert!(pools < 10 << 40, "{pairs} pairs take {pools} bytes");
    }

    #[test]
    fn operations_come_as_the_mix_says() {
        let mut rng = Rng::new(9);
        for workload in WORKLOADS {
            assert_eq!(
                workload.mix.iter().map(|(percent, _)| percent).sum::<u64>(),
                100,
                "{}",
                workload.label
            );
            let drawn: Vec<_> = (0..20_000).map(|_| workload.draw(&mut rng)).collect();
            for &(percent, operation) in workload.mix {
                let seen = drawn.iter().filter(|&&one| one == operation).count() as f64 / 200.0;
                assert!(
                    (seen - percent as f64).abs() < 2.0,
                    "{}: {operation:?} {seen} %",
                    workload.label
                );
            }
        }
    }
}

//! Workloads, crash points, images, verdicts: the whole search, on several threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_pm::Choice;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::Variant;
use crate::allowed::Allowed;
use crate::choices::choices;
use crate::record::{Recorded, record};
use crate::source::Name;
use crate::verify::verify;

/// The effort of a search.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Approximate number of images tried per crash point.
    pub per_point: usize,
    /// One image in this many has its recovery crashed as well; 0: none.
    pub recrash_every: u64,
    /// Images tried per crash point of a recovery.
    pub per_recovery_point: usize,
    /// Seed of all samples.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Effort {
            per_point: 24,
            recrash_every: 40,
            per_recovery_point: 6,
            seed: 1,
        }
    }
}

/// A violation, and how to reproduce it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Kind of pool.
    pub variant: Variant,
    /// Workload.
    pub name: Name,
    /// Crash point and choice, unless the workload failed without a crash.
    pub place: Option<(usize, Choice)>,
    /// The violation, as text.
    pub what: String,
    /// The image, if any.
    pub image: Option<Vec<u8>>,
}

/// The results of a search.
#[derive(Debug, Default)]
pub struct Report {
    /// Workloads run.
    pub workloads: u64,
    /// Crash points.
    pub points: u64,
    /// Images tried, those of crashed recoveries included.
    pub tried: u64,
    /// Distinct images among them.
    pub distinct: u64,
    /// Recoveries that were crashed.
    pub recrashed: u64,
    /// Changes with tokens resent to recovered pools.
    pub resent: u64,
    /// Records by which a mapping moved entries, in all workloads; a crash point lies before the fence of each.
    pub moves: u64,
    /// Time taken.
    pub elapsed: Duration,
    /// The first violation.
    pub failure: Option<Failure>,
}

const SHARDS: usize = 64;
/// Recoveries are crashed this many times as often if a page write is in progress.
const PAGES_MORE_OFTEN: u64 = 5;

/// A search in progress; threads share it.
pub struct Search {
    effort: Effort,
    variant: Variant,
    seen: Box<[Mutex<FxHashSet<u64>>]>,
    workloads: AtomicU64,
    points: AtomicU64,
    tried: AtomicU64,
    distinct: AtomicU64,
    recrashed: AtomicU64,
    resent: AtomicU64,
    moves: AtomicU64,
    stop: AtomicBool,
}

/// Why a workload's search ended early.
type Found = (Option<(usize, Choice)>, String, Option<Vec<u8>>);

impl Search {
    /// A search without results.
    pub fn new(variant: impl Into<Variant>, effort: Effort) -> Self {
        Search {
            effort,
            variant: variant.into(),
            seen: (0..SHARDS).map(|_| Mutex::default()).collect(),
            workloads: AtomicU64::new(0),
            points: AtomicU64::new(0),
            tried: AtomicU64::new(0),
            distinct: AtomicU64::new(0),
            recrashed: AtomicU64::new(0),
            resent: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Different images so far.
    pub fn distinct(&self) -> u64 {
        self.distinct.load(Ordering::Relaxed)
    }

    /// Moves of map entries so far.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    fn count(&self, fingerprint: u64) {
        self.tried.fetch_add(1, Ordering::Relaxed);
        if self.seen[fingerprint as usize % SHARDS].lock().insert(fingerprint) {
            self.distinct.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Searches one workload.
    ///
    /// # Errors
    /// The violation.
    pub fn workload(&self, name: &Name) -> Result<(), Box<Failure>> {
        self.workloads.fetch_add(1, Ordering::Relaxed);
        let workload = name.workload();
        let found = match guarded(|| record(self.variant, &workload)) {
            Ok(recorded) => {
                self.moves.fetch_add(recorded.moves, Ordering::Relaxed);
                self.recorded(&recorded)
            }
            Err(what) => Err((None, what, None)),
        };
        found.map_err(|(place, what, image)| {
            Box::new(Failure {
                variant: self.variant,
                name: name.clone(),
                place,
                what,
                image,
            })
        })
    }

    fn recorded(&self, recorded: &Recorded) -> Result<(), Found> {
        // Check an image again if it recurs after another operation has returned.
        let mut here = FxHashSet::default();
        let mut cursor = recorded.log.cursor();
        loop {
            self.points.fetch_add(1, Ordering::Relaxed);
            let point = cursor.point();
            let marks = cursor.marks().to_vec();
            let allowed = Allowed::after(recorded, &marks);
            let seed = self.effort.seed ^ (point as u64) << 20;
            for choice in choices(cursor.lines_in_flight(), self.effort.per_point, seed) {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let fingerprint = cursor.fingerprint(choice);
                if !here.insert((fingerprint, marks.len())) {
                    continue;
                }
                self.count(fingerprint);
                let nth = self.tried.load(Ordering::Relaxed);
                let every = match allowed.is_of_page() {
                    // The remains of a page write after a crash affect later operations, after the recovery.
                    true => self.effort.recrash_every.div_ceil(PAGES_MORE_OFTEN),
                    false => self.effort.recrash_every,
                };
                let recrash = (every > 0 && nth.is_multiple_of(every)).then_some(self.effort.per_recovery_point);
                cursor.with_image(choice, |image| {
                    match guarded(|| verify(image, &allowed, &recorded.mount, fingerprint, recrash)) {
                        Ok(verified) => {
                            self.recrashed
                                .fetch_add(u64::from(recrash.is_some()), Ordering::Relaxed);
                            self.resent.fetch_add(verified.resent, Ordering::Relaxed);
                            verified
                                .recovered
                                .into_iter()
                                .for_each(|fingerprint| self.count(fingerprint));
                            Ok(())
                        }
                        Err(what) => Err((Some((point, choice)), what, Some(image.to_vec()))),
                    }
                })?;
            }
            if !cursor.advance() {
                return Ok(());
            }
        }
    }

    /// Searches `names` on `threads` threads until they end, one fails, or `enough` returns true.
    pub fn run(
        &self,
        names: impl Iterator<Item = Name> + Send,
        threads: usize,
        enough: &(dyn Fn(&Search) -> bool + Sync),
    ) -> Report {
        let started = Instant::now();
        let names = Mutex::new(names);
        let failure = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    while !self.stop.load(Ordering::Relaxed) && !enough(self) {
                        let Some(name) = names.lock().next() else { return };
                        if let Err(found) = self.workload(&name) {
                            self.stop.store(true, Ordering::Relaxed);
                            failure.lock().get_or_insert(*found);
                        }
                    }
                });
            }
        });
        self.stop.store(false, Ordering::Relaxed);
        Report {
            workloads: self.workloads.load(Ordering::Relaxed),
            points: self.points.load(Ordering::Relaxed),
            tried: self.tried.load(Ordering::Relaxed),
            distinct: self.distinct(),
            recrashed: self.recrashed.load(Ordering::Relaxed),
            resent: self.resent.load(Ordering::Relaxed),
            moves: self.moves(),
            elapsed: started.elapsed(),
            failure: failure.into_inner(),
        }
    }
}

/// A panic of the engine is a violation like any other.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no text");
        Err(format!("the engine panicked: {text}"))
    })
}

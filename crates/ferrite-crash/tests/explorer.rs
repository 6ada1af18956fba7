//! No crash loses a change that returned, or leaves half of one that had not: tens of thousands of images in `make
//! test`, a million in `make soak`. Nor does one make a resent change happen twice.
//!
//! `FERRITE_SEED` replays the samples; a failure prints the command that reproduces it.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrite_crash::explore::{Effort, Failure, Search};
use ferrite_crash::{MAPPINGS, Mapping, Variant, plan, shrink};

const MINUTE: Duration = Duration::from_secs(60);

fn seed() -> u64 {
    ferrite_testkit::seed_from_env().unwrap_or(1)
}

/// A search of many minutes prints its progress each minute, so that an interrupted one has reported something.
struct Pace {
    what: String,
    next: Mutex<Instant>,
}

impl Pace {
    fn new(what: impl Debug) -> Self {
        Pace {
            what: format!("{what:?}"),
            next: Mutex::new(Instant::now() + MINUTE),
        }
    }

    /// Whether `search` has seen `wanted` different images.
    fn met(&self, search: &Search, wanted: u64) -> bool {
        let distinct = search.distinct();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() >= *next {
            println!("{}: {distinct} of {wanted} different images so far", self.what);
            *next += MINUTE;
        }
        distinct >= wanted
    }
}

/// Panics with the shortest workload that still fails, if one did.
fn nothing_failed(failure: Option<Failure>, effort: &Effort) {
    if let Some(failure) = failure {
        let failure = shrink::shrink(failure, *effort, Duration::from_secs(120));
        panic!("{}", failure.report(effort, &std::env::temp_dir()));
    }
}

#[test]
fn no_crash_breaks_a_promise() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    // Five minutes, were it alone on our machines: its plan keeps `make test` short, and machines may be slow and have
    // other load.
    let limit = Duration::from_secs(if soak { 180 * 60 } else { 20 * 60 });
    let effort = Effort {
        seed: seed(),
        per_point: if soak { 48 } else { 6 },
        ..Effort::default()
    };
    let started = Instant::now();
    for &mapping in MAPPINGS {
        let search = Search::new(mapping, effort);
        let is_default = mapping == Mapping::default();
        // A million in all; those that are not the default differ in one structure only.
        let wanted = match (soak, is_default) {
            (true, true) => 400_000,
            (true, false) => 150_000,
            (false, true) => 20_000,
            (false, false) => 4_000,
        };
        let pace = Pace::new(mapping);
        let enough = |search: &Search| pace.met(search, wanted);
        let report = match (soak, is_default) {
            (true, _) => search.run(plan::endless(effort.seed), 2, &enough),
            (false, true) => search.run(plan::quick(effort.seed), 2, &|_| false),
            (false, false) => search.run(plan::chances(effort.seed), 2, &enough),
        };
        println!(
            "{mapping:?}, FERRITE_SEED={}: {} different images of {} tried, {} workloads, {} crash points, {} \
             recoveries crashed again, {} changes sent again, {} moves of map entries, {:.1} s",
            effort.seed,
            report.distinct,
            report.tried,
            report.workloads,
            report.points,
            report.recrashed,
            report.resent,
            report.moves,
            report.elapsed.as_secs_f64()
        );
        nothing_failed(report.failure, &effort);
        assert!(report.distinct >= wanted, "only {} different images", report.distinct);
        assert!(report.resent >= 500, "only {} changes sent again", report.resent);
        if matches!(mapping, Mapping::Cuckoo | Mapping::Leaf) {
            assert!(
                report.moves > 0,
                "{mapping:?} moved no entry, so no crash could meet that"
            );
        }
        assert!(started.elapsed() < limit, "took {:?}", started.elapsed());
    }
}

/// Sizes that units of page logs may have, each for the mapping of that number: pools with them have words that are
/// divided elsewhere than in the middle.
const LOG_UNITS_BYTES: [u32; Mapping::ALL.len()] = [64, 128, 256, 512, 1024];

/// The same with data checksums and the log units of larger pools, in less depth: the difference is one more word for
/// each page that is written, and where words are divided.
#[test]
fn no_crash_parts_data_from_its_checksum() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let effort = Effort {
        seed: seed(),
        per_point: 12,
        ..Effort::default()
    };
    for &mapping in MAPPINGS {
        let variant = Variant {
            omission: None,
            mapping,
            data_checksum: true,
            log_unit_bytes: Some(LOG_UNITS_BYTES[mapping as usize]),
            deferred: false,
        };
        let wanted = match (soak, mapping == Mapping::default()) {
            (true, _) => 20_000,
            (false, true) => 6_000,
            (false, false) => 1_500,
        };
        let search = Search::new(variant, effort);
        let pace = Pace::new(variant);
        let report = search.run(plan::chances(effort.seed), 2, &|search| pace.met(search, wanted));
        println!(
            "{variant:?}, FERRITE_SEED={}: {} different images, {} workloads, {:.1} s",
            effort.seed,
            report.distinct,
            report.workloads,
            report.elapsed.as_secs_f64()
        );
        nothing_failed(report.failure, &effort);
    }
}

/// With durability only after a sync, a crash leaves a prefix of the changes, including everything synced.
#[test]
fn a_crash_leaves_a_prefix_with_deferred_write_back() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let effort = Effort {
        seed: seed(),
        per_point: if soak { 48 } else { 12 },
        ..Effort::default()
    };
    for &mapping in MAPPINGS {
        let variant = Variant {
            omission: None,
            mapping,
            data_checksum: soak && mapping == Mapping::default(),
            log_unit_bytes: None,
            deferred: true,
        };
        let wanted = match (soak, mapping == Mapping::default()) {
            (true, _) => 50_000,
            (false, true) => 4_000,
            (false, false) => 1_500,
        };
        let search = Search::new(variant, effort);
        let pace = Pace::new(variant);
        let report = search.run(plan::deferred(effort.seed), 2, &|search| pace.met(search, wanted));
        println!(
            "{variant:?}, FERRITE_SEED={}: {} different images, {} workloads, {:.1} s",
            effort.seed,
            report.distinct,
            report.workloads,
            report.elapsed.as_secs_f64()
        );
        nothing_failed(report.failure, &effort);
    }
}

/// For a mapping that moves entries, the search crashes moves: in the workloads made for that, each such mapping moves
/// some, at least one record per crash point.
#[test]
fn no_crash_parts_a_move_from_its_entries() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let effort = Effort {
        seed: seed(),
        per_point: if soak { 48 } else { 6 },
        ..Effort::default()
    };
    for mapping in [Mapping::Cuckoo, Mapping::Leaf] {
        let search = Search::new(mapping, effort);
        let (images, moves) = if soak { (50_000, 20) } else { (1_500, 6) };
        let names = plan::crowds(effort.seed).take(if soak { 1000 } else { 20 });
        let pace = Pace::new(format_args!("moves of {mapping:?}"));
        let report = search.run(names, 2, &|search| pace.met(search, images) && search.moves() >= moves);
        println!(
            "{mapping:?}, FERRITE_SEED={}: {} different images, {} workloads, {} moves, {:.1} s",
            effort.seed,
            report.distinct,
            report.workloads,
            report.moves,
            report.elapsed.as_secs_f64()
        );
        nothing_failed(report.failure, &effort);
        assert!(
            report.moves >= moves,
            "{mapping:?} moved entries only {} times",
            report.moves
        );
    }
}

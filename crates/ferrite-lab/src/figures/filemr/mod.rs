//! The experiments of FileMR (Yang, Izraelevitz, Swanson, NSDI 2020), section "Evaluation": registration,
//! fragmentation, the cache of translations, remote files, remote logs.
//!
//! Contents: the five figures, their names, and the verdicts. `run` measures; it exists only with the cargo feature
//! `rdma`.
//!
//! The paper's adapter is in software too (Soft-RoCE), with modelled caches, as here. Its kernel finds and pins each
//! page, which takes 5 us; here only tables are filled. So the numbers of entries, the hit rates of caches, and the
//! time added to a datagram transfer; the cost of pinning does not.

use super::{Figure, Judge, panel_of};
use crate::data::{FigureData, Panel, Verdict};
use crate::error::LabError;
use crate::plan::Plan;
use crate::progress::Progress;

#[cfg(feature = "rdma")]
mod run;

const PAGES_4K: &str = "pages of 4 KiB";
const PAGES_2M: &str = "pages of 2 MiB";
const RANGES: &str = "ranges";
const DEFRAGMENTED: &str = "ranges, pages moved together";
const BOUND: &str = "a file bound by the engine";
const TIME_PANEL: &str = "Time to register";
const ENTRIES_PANEL: &str = "Entries";
const HITS_PANEL: &str = "Hits of a cache of 4096 entries";
const LATENCY_PANEL: &str = "A write of 1 KiB at a random place";
const PARTS_PANEL: &str = "Where the time of FileMR's goes";
const LOG_PANEL: &str = "An entry of 64 bytes is logged";
const FILEMR: &str = "FileMR";
const REQUESTS: &str = "by requests";
const LOCAL: &str = "local";
const RAW: &str = "raw UDP";
/// The one place of panels that compare contenders at one thing.
const ONE: &str = "median";
/// Programs that leave fragments, as their labels.
const PROGRAMS: [&str; 4] = ["fileserver", "varmail", "redis", "sqlite"];
/// Large files, as their labels.
const LARGE: [&str; 2] = ["large file, young pool", "large file, aged pool"];
/// Parts of a remote write, as their labels.
#[cfg(feature = "rdma")]
const PARTS: [&str; 5] = [
    "wire",
    "translation",
    "copy",
    "write-back and fence",
    "packet and answer",
];
const SIZES: [u64; 7] = [4 << 10, 64 << 10, 2 << 20, 64 << 20, 512 << 20, 2 << 30, 8 << 30];

pub(super) const REGISTRATION: Figure = Figure {
    id: "filemr-registration",
    title: "Registering allocated regions: pages against ranges",
    claim: "A region of 64 GB takes 30 s to register by pages of 4 KiB, 20 s by pages of 2 MiB and 67 ms by ranges, \
    three orders of magnitude less; small files are one or two ranges.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| SIZES.len() as u64,
    run: |plan, progress| run("filemr-registration", plan, progress),
    check: check_registration,
};

pub(super) const FRAGMENTATION: Figure = Figure {
    id: "filemr-fragmentation",
    title: "Registering the files that programs leave behind",
    claim: "Of the entries and the time that pages of 4 KiB take, ranges take 0.5 % and 6.8 % for a file server, 97 % \
    and 80 % for a mail server, 2 % of both for Redis, and as little for SQLite.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| PROGRAMS.len() as u64,
    run: |plan, progress| run("filemr-fragmentation", plan, progress),
    check: check_fragmentation,
};

pub(super) const HITS: Figure = Figure {
    id: "filemr-hits",
    title: "Hits of the cache of translations: pages against ranges",
    claim: "A cache of ranges knows 3.8 to 340 times as many accesses as one of pages, and nearly all of those to \
    large allocated files.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| (LARGE.len() + PROGRAMS.len()) as u64,
    run: |plan, progress| run("filemr-hits", plan, progress),
    check: check_hits,
};

pub(super) const LATENCY: Figure = Figure {
    id: "filemr-latency",
    title: "Remote writes of 1 KiB, and what they are made of",
    claim: "A remote write to a file takes less by FileMR than by any way that asks a server, and storing 4 KiB \
    durably takes 1.5 us of it.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 2,
    run: |plan, progress| run("filemr-latency", plan, progress),
    check: check_latency,
};

pub(super) const LOG: Figure = Figure {
    id: "filemr-log",
    title: "Remote logs: appends of 64 bytes",
    claim: "Logging 64 bytes takes 5.5 us locally, 53 % more by FileMR's append, and 192 % more by an RPC over RDMA, \
    the wire not counted.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| 1,
    run: |plan, progress| run("filemr-log", plan, progress),
    check: check_log,
};

/// The feature that a build lacks to run a figure of FileMR.
pub(super) fn lacking(id: &str) -> Option<&'static str> {
    let figures = [REGISTRATION, FRAGMENTATION, HITS, LATENCY, LOG];
    let needs_rdma = figures.iter().any(|figure| figure.id == id);
    (needs_rdma && cfg!(not(feature = "rdma")))
        .then_some("this build has no RDMA; make one that has: cargo build --release -p ferrite-lab --features rdma")
}

#[cfg(feature = "rdma")]
fn run(id: &str, plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    match id {
        "filemr-registration" => run::registration(plan, progress),
        "filemr-fragmentation" => run::fragmentation(plan, progress),
        "filemr-hits" => run::hits(plan, progress),
        "filemr-latency" => run::latency(plan, progress),
        "filemr-log" => run::log(plan, progress),
        _ => Err(LabError::UnknownFigure(id.into())),
    }
}

#[cfg(not(feature = "rdma"))]
fn run(id: &str, _plan: &Plan, _progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    Err(LabError::NotInThisBuild {
        figure: id.into(),
        mend: lacking(id).unwrap_or_default(),
    })
}

/// The label of the last point of a contender.
fn last_of(panel: &Panel, name: &str) -> String {
    let series = panel.series.iter().find(|series| series.name == name);
    let point = series.and_then(|series| series.points.last());
    point.map(|point| point.label.clone()).unwrap_or_default()
}

fn first_of(panel: &Panel, name: &str) -> String {
    let series = panel.series.iter().find(|series| series.name == name);
    let point = series.and_then(|series| series.points.first());
    point.map(|point| point.label.clone()).unwrap_or_default()
}

fn check_registration(data: &FigureData) -> Verdict {
    let (mut judge, time, entries) = (
        Judge::default(),
        panel_of(data, TIME_PANEL),
        panel_of(data, ENTRIES_PANEL),
    );
    let (first, last) = (first_of(&time, RANGES), last_of(&time, RANGES));
    judge.at_least(&time, &last, PAGES_4K, RANGES, 300.0);
    judge.at_least(&time, &last, PAGES_2M, RANGES, 2.0);
    judge.grows(&time, PAGES_4K, &first, &last, 1000.0);
    judge.flat(&time, RANGES, &first, &last, 3.0);
    judge.flat(&entries, RANGES, &first, &last, 2.0);
    let (first, last) = (first_of(&time, BOUND), last_of(&time, BOUND));
    judge.flat(&time, BOUND, &first, &last, 10.0);
    judge.verdict(
        "only tables are filled here. An adapter finds and pins each page, which takes some thousand times as long as \
         to note it; that makes the paper's pages of 4 KiB so slow, and those of 2 MiB nearly as slow.",
    )
}

fn check_fragmentation(data: &FigureData) -> Verdict {
    let (mut judge, time, entries) = (
        Judge::default(),
        panel_of(data, TIME_PANEL),
        panel_of(data, ENTRIES_PANEL),
    );
    let wanted = [(100.0, 14.0), (1.03, 1.25), (50.0, 50.0), (10.0, 10.0)];
    for (label, (less, faster)) in PROGRAMS.into_iter().zip(wanted) {
        judge.at_least(&entries, label, PAGES_4K, RANGES, less);
        judge.at_least(&time, label, PAGES_4K, RANGES, faster);
        judge.at_least(&entries, label, PAGES_4K, DEFRAGMENTED, less);
    }
    judge.verdict(
        "the mixes' files are small, 32 pages of a file server's on average, and have at least one range each. The \
         pages of a file that grows by small appends do not follow each other here until they are moved together. To \
         note a range in a tree takes longer than to note a page in an array; an adapter that pins pages hides that.",
    )
}

fn check_hits(data: &FigureData) -> Verdict {
    let (mut judge, hits) = (Judge::default(), panel_of(data, HITS_PANEL));
    for label in LARGE {
        judge.at_least(&hits, label, RANGES, PAGES_4K, 3.8);
    }
    for label in PROGRAMS {
        judge.at_least(&hits, label, RANGES, PAGES_4K, 1.0);
    }
    match hits.value(RANGES, LARGE[0]) {
        Some(percent) => judge.claim(
            percent >= 99.0,
            format!("{}: {RANGES} {percent:.2} % (wanted: at least 99)", LARGE[0]),
        ),
        None => judge.missing(&format!("{RANGES} ({})", LARGE[0])),
    }
    judge.verdict(
        "a file in a pool whose free space is in pieces has more runs than the cache has entries; and what programs \
         access again soon, or have little of, a cache of pages knows as well.",
    )
}

fn check_latency(data: &FigureData) -> Verdict {
    let (mut judge, all, parts) = (
        Judge::default(),
        panel_of(data, LATENCY_PANEL),
        panel_of(data, PARTS_PANEL),
    );
    judge.at_least(&all, ONE, REQUESTS, FILEMR, 1.0);
    let stored = ["copy", "write-back and fence"].map(|part| parts.value(FILEMR, part));
    match stored {
        [Some(copy), Some(fence)] => judge.claim(
            copy + fence <= 1.5,
            format!(
                "1 KiB is stored durably in {:.2} us (wanted: at most 1.5)",
                copy + fence
            ),
        ),
        _ => judge.missing("what storing takes"),
    }
    match (all.value(FILEMR, ONE), all.value(RAW, ONE)) {
        (Some(ours), Some(raw)) => judge.claim(
            ours - raw <= 1.5,
            format!(
                "FileMR adds {:.2} us to a raw datagram (wanted: at most 1.5)",
                ours - raw
            ),
        ),
        _ => judge.missing("what FileMR adds to a datagram"),
    }
    judge.verdict(
        "both ends share two cores with everything else that runs, and a thread that is put off shows as time.",
    )
}

fn check_log(data: &FigureData) -> Verdict {
    let (mut judge, panel) = (Judge::default(), panel_of(data, LOG_PANEL));
    judge.at_least(&panel, ONE, REQUESTS, FILEMR, 2.0);
    let times = [FILEMR, LOCAL, RAW].map(|name| panel.value(name, ONE));
    match times {
        [Some(ours), Some(local), Some(raw)] => judge.claim(
            ours - raw <= local * 1.53,
            format!(
                "without the wire FileMR takes {:.2} us, the local append {local:.2} us (wanted: at most 53 % more)",
                ours - raw
            ),
        ),
        _ => judge.missing("FileMR against the local append"),
    }
    judge.verdict(
        "a local append takes a tenth of the paper's 5.5 us, so what packets, keys and acknowledgements cost weighs \
         ten times as much; and an append is assembled before the engine is called, which is one copy more.",
    )
}

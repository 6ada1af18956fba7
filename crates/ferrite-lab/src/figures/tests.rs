//! Verdicts follow from the numbers, and from nothing else.

use super::*;
use crate::data::{Point, Series};
use crate::traces::{Kind, STORED};

fn panel(title: &str, values: &[(&str, &[(&str, f64)])]) -> Panel {
    let mut panel = bars(title, "x", "time", "ns", false);
    for (name, points) in values {
        let points = points.iter().enumerate().map(|(index, &(label, median))| Point {
            x: index as f64,
            label: label.into(),
            median,
            low: median * 0.95,
            high: median * 1.05,
            samples: 9,
            values: Vec::new(),
        });
        panel.series.push(Series {
            name: name.to_string(),
            points: points.collect(),
        });
    }
    panel
}

fn outcome(id: &str, panels: Vec<Panel>) -> Outcome {
    let figure = FIGURES.iter().find(|figure| figure.id == id).expect("it is listed");
    let data = FigureData {
        panels,
        notes: Vec::new(),
    };
    let verdict = (figure.check)(&data);
    assert!(!verdict.reasons.is_empty());
    verdict.outcome
}

#[test]
fn figures_have_ids_of_their_own_and_say_what_the_paper_claims() {
    let ids: std::collections::BTreeSet<_> = FIGURES.iter().map(|figure| figure.id).collect();
    assert_eq!(ids.len(), FIGURES.len());
    for figure in FIGURES {
        assert!(figure.claim.ends_with('.'), "{}", figure.id);
    }
}

#[test]
fn a_figure_without_data_is_not_reproduced() {
    for figure in FIGURES {
        assert_eq!(outcome(figure.id, Vec::new()), Outcome::Not, "{}", figure.id);
    }
}

#[test]
fn the_page_cache_verdict_follows_its_numbers() {
    const TITLE: &str = "Single-page operations, many of them";
    let with = |cached: [f64; 3]| {
        let labels = ["random lookup", "sequential lookup", "append"];
        let cached: Vec<_> = labels.into_iter().zip(cached).collect();
        let in_place: Vec<_> = labels.into_iter().zip([100.0; 3]).collect();
        let values: [(&str, &[(&str, f64)]); 2] = [("extent-page-cached", &cached), ("extent-in-place", &in_place)];
        outcome("hashfs-11", vec![panel(TITLE, &values)])
    };
    assert_eq!(with([120.0, 110.0, 150.0]), Outcome::Reproduced);
    assert_eq!(with([120.0, 90.0, 150.0]), Outcome::Partly);
    assert_eq!(with([80.0, 90.0, 50.0]), Outcome::Not);
}

#[test]
fn what_the_intervals_leave_open_is_no_reproduction_and_no_refutation() {
    let with = |logs: f64| {
        let panel = panel(
            "Throughput",
            &[
                ("page logs", &[("1", logs)]),
                ("copy-on-write (as NOVA)", &[("1", 100.0)]),
            ],
        );
        outcome("hdpm-8", vec![panel])
    };
    assert_eq!(with(150.0), Outcome::Reproduced);
    assert_eq!(with(50.0), Outcome::Not);
    assert_eq!(with(99.0), Outcome::Partly);
}

/// Throughput of YCSB: HashFS 100 everywhere, the others in units of that.
fn ycsb(cuckoo: f64, radix: f64, extent: f64, extent_in_c_and_f: f64) -> Outcome {
    let labels = ["A", "B", "C", "D", "E", "F"];
    let all = |value: f64| labels.map(|label| (label, value));
    let mut extents = all(extent);
    extents[2].1 = extent_in_c_and_f;
    extents[5].1 = extent_in_c_and_f;
    let (cuckoo, radix) = (all(cuckoo), all(radix));
    let values: [(&str, &[(&str, f64)]); 4] = [
        ("hashfs", &all(100.0)),
        ("cuckoo", &cuckoo),
        ("radix", &radix),
        ("extent", &extents),
    ];
    let outcomes = ["hashfs-13", "hashfs-14"].map(|id| outcome(id, vec![panel("Throughput", &values)]));
    assert_eq!(outcomes[0], outcomes[1]);
    outcomes[0]
}

#[test]
fn the_ycsb_verdict_follows_its_numbers() {
    // As in the paper.
    assert_eq!(ycsb(97.0, 97.0, 96.0, 87.0), Outcome::Reproduced);
    // The extent tree keeps up.
    assert_eq!(ycsb(97.0, 97.0, 97.0, 98.0), Outcome::Partly);
    // Another one is far ahead.
    assert_eq!(ycsb(97.0, 130.0, 97.0, 87.0), Outcome::Partly);
    // HashFS is the slowest by far.
    assert_eq!(ycsb(150.0, 150.0, 150.0, 150.0), Outcome::Not);
}

/// The verdict depends on the shares of partial updates, and on the cost of copies.
#[test]
fn the_verdict_on_update_sizes_follows_its_numbers() {
    let with = |applications: f64, embedded: f64, server: f64, database: f64, copies: f64| {
        let mut panels = [
            "Updates of at most so many bytes of a page",
            "Updates of part of a page",
            "Bytes to the medium for each byte written",
        ]
        .map(|title| panel(title, &[]));
        for stored in STORED {
            let mut put = |panel: usize, label: &str, value: f64| {
                panels[panel].push(stored.name, crate::data::point(0.0, label, &mut [value]));
            };
            let share = match stored.kind {
                Kind::Application => applications,
                Kind::Embedded => embedded,
                Kind::PageStore => server,
            };
            put(0, "< 4 KiB", share);
            put(1, "files that were there", database);
            put(2, "page logs", 2.0);
            put(2, "copy-on-write", copies);
        }
        outcome("hdpm-2", panels.into())
    };
    assert_eq!(with(50.0, 12.0, 1.0, 0.0, 4.0), Outcome::Reproduced);
    assert_eq!(
        with(20.0, 12.0, 1.0, 0.0, 4.0),
        Outcome::Partly,
        "applications write whole pages"
    );
    assert_eq!(with(50.0, 2.0, 1.0, 0.0, 4.0), Outcome::Partly, "embedded databases do");
    assert_eq!(with(50.0, 12.0, 20.0, 0.0, 4.0), Outcome::Partly, "the server does not");
    assert_eq!(
        with(50.0, 12.0, 1.0, 50.0, 4.0),
        Outcome::Partly,
        "nor does a database's own file"
    );
    assert_eq!(with(50.0, 12.0, 1.0, 0.0, 1.0), Outcome::Partly, "copies cost nothing");
    assert_eq!(with(20.0, 2.0, 20.0, 50.0, 4.0), Outcome::Not);
}

/// Figures of the network: verdicts distinguish bars that are too low or too high from others.
#[test]
fn the_verdicts_on_the_network_follow_their_numbers() {
    let latency = |nfs: f64, ext4: f64| {
        let sides: [(&str, &[(&str, f64)]); 5] = [
            ("ferrite over TCP", &[("read", 20.0), ("write", 20.0)]),
            ("NFS + ext4", &[("read", nfs), ("write", nfs)]),
            ("ferrite's engine alone", &[("read", 1.0), ("write", 2.0)]),
            ("ext4, O_DIRECT", &[("read", ext4), ("write", ext4)]),
            ("ext4, O_SYNC", &[("write", 5.0 * ext4)]),
        ];
        outcome("rufs-11", vec![panel("4 KiB at random places, one at a time", &sides)])
    };
    assert_eq!(latency(80.0, 10.0), Outcome::Reproduced);
    assert_eq!(latency(30.0, 10.0), Outcome::Partly, "NFS keeps up");
    assert_eq!(latency(80.0, 3.0), Outcome::Partly, "ext4 alone keeps up");
    assert_eq!(latency(10.0, 0.5), Outcome::Not);

    let small = |first: f64, deepest: f64, nfs: f64| {
        let sides: [(&str, &[(&str, f64)]); 2] = [
            ("ferrite over TCP", &[("1", first), ("16", deepest)]),
            ("NFS + ext4", &[("1", nfs), ("16", nfs)]),
        ];
        let panels = ["4 KiB random reads", "4 KiB random writes"].map(|title| panel(title, &sides));
        outcome("rufs-12", panels.into())
    };
    assert_eq!(small(100.0, 500.0, 50.0), Outcome::Reproduced);
    assert_eq!(
        small(100.0, 500.0, 100.0),
        Outcome::Partly,
        "writes are not eight times those of NFS"
    );
    assert_eq!(small(500.0, 500.0, 400.0), Outcome::Not);

    let large = |remote: f64, nfs: f64, engine: f64| {
        let sides = [
            ("ferrite over TCP", remote),
            ("NFS + ext4", nfs),
            ("ferrite's engine alone", engine),
        ]
        .map(|(name, value)| (name, [("read", value), ("write", value)]));
        let mut values: Vec<(&str, &[(&str, f64)])> =
            sides.iter().map(|(name, points)| (*name, points.as_slice())).collect();
        values.push(("ext4, O_DIRECT", &[("read", 2000.0), ("write", 2000.0)]));
        outcome("rufs-13", vec![panel("4 MiB in order", &values)])
    };
    assert_eq!(large(2900.0, 1000.0, 3000.0), Outcome::Reproduced);
    assert_eq!(large(2000.0, 1000.0, 3000.0), Outcome::Partly, "the network limits it");
    assert_eq!(large(1000.0, 1000.0, 1500.0), Outcome::Not);

    let labels = [
        "D-creat", "D-stat", "D-remove", "F-creat", "F-stat", "F-read", "F-remove",
    ];
    let metadata = |directories: f64, others: f64| {
        let ours = labels.map(|label| (label, 10.0));
        let mut theirs = labels.map(|label| (label, others));
        theirs[0].1 = directories;
        let sides: [(&str, &[(&str, f64)]); 2] = [("ferrite over TCP", &ours), ("NFS + ext4", &theirs)];
        outcome("rufs-9", vec![panel("Metadata operations, one at a time", &sides)])
    };
    assert_eq!(metadata(200.0, 20.0), Outcome::Reproduced);
    assert_eq!(
        metadata(50.0, 20.0),
        Outcome::Partly,
        "directories are made less than ten times as fast"
    );
    assert_eq!(metadata(200.0, 12.0), Outcome::Partly, "stat gains too little");
    assert_eq!(metadata(9.0, 9.0), Outcome::Not);

    let labels = ["4 KiB", "64 KiB", "256 KiB", "1024 KiB", "4096 KiB"];
    let registered = |first: f64, last: f64, reads: f64| {
        let token = labels.map(|label| (label, 0.1));
        let mut each = labels.map(|label| (label, first));
        each[4].1 = last;
        let (reused, mapped) = (labels.map(|label| (label, 100.0)), labels.map(|label| (label, reads)));
        let names = [
            "from the pool (reuse-bulk)",
            "mapped, pinned and unmapped each time (register-bulk)",
        ];
        let alone: [(&str, &[(&str, f64)]); 2] = [(names[0], &token), (names[1], &each)];
        let over: [(&str, &[(&str, f64)]); 2] = [(names[0], &reused), (names[1], &mapped)];
        let panels = vec![
            panel("A buffer alone", &alone),
            panel("Reads over the network into it", &over),
        ];
        outcome("rufs-7", panels)
    };
    assert_eq!(registered(2.0, 500.0, 150.0), Outcome::Reproduced);
    assert_eq!(registered(2.0, 500.0, 101.0), Outcome::Partly, "nobody notices");
    assert_eq!(registered(2.0, 2.0, 150.0), Outcome::Partly, "it does not grow");
    assert_eq!(registered(0.1, 0.1, 100.0), Outcome::Not);
}

/// Figures of the NVMe engine alone, also in builds without it: a stored result is judged anywhere.
#[test]
fn the_verdicts_on_the_server_alone_follow_their_numbers() {
    let homes = |fs_sync: f64, blobs_sync: f64, stat: f64| {
        let with = |value: f64, stat: f64| {
            [
                ("D-creat", value),
                ("D-remove", value),
                ("F-creat", value),
                ("F-remove", value),
                ("D-stat", stat),
                ("F-stat", stat),
            ]
        };
        let all = [
            with(fs_sync, stat),
            with(100.0, 500.0),
            with(blobs_sync, stat),
            with(100.0, 500.0),
        ];
        let names = [
            "directory of ext4, each commit synchronous",
            "directory of ext4, commits in groups",
            "blob store, each commit synchronous",
            "blob store, commits in groups",
        ];
        let sides: Vec<(&str, &[(&str, f64)])> = names
            .iter()
            .zip(&all)
            .map(|(name, points)| (*name, points.as_slice()))
            .collect();
        outcome("rufs-10", vec![panel("Metadata operations, one at a time", &sides)])
    };
    assert_eq!(homes(2.0, 70.0, 500.0), Outcome::Reproduced);
    assert_eq!(homes(50.0, 70.0, 500.0), Outcome::Partly, "ext4 commits cheaply");
    assert_eq!(
        homes(2.0, 20.0, 500.0),
        Outcome::Partly,
        "the blob store loses too much"
    );
    assert_eq!(homes(2.0, 70.0, 100.0), Outcome::Partly, "stat waits for commits");
    assert_eq!(
        homes(100.0, 50.0, 100.0),
        Outcome::Partly,
        "only the blob store loses anything"
    );

    let alone = |id: &str, title: &str, ours: f64, direct: f64, sync: f64| {
        let labels = ["read", "write"];
        let all = [ours, direct, sync].map(|value| labels.map(|label| (label, value)));
        let sides: [(&str, &[(&str, f64)]); 3] = [
            ("ferrite's NVMe engine", &all[0]),
            ("ext4, O_DIRECT", &all[1]),
            ("ext4, O_SYNC", &all[2][1..]),
        ];
        outcome(id, vec![panel(title, &sides)])
    };
    let latency = |ours, direct, sync| {
        let title = "4 KiB at random places, one at a time";
        alone("rufs-11-server", title, ours, direct, sync)
    };
    assert_eq!(latency(10.0, 60.0, 600.0), Outcome::Reproduced);
    assert_eq!(latency(10.0, 20.0, 600.0), Outcome::Partly, "ext4 reads nearly as fast");
    assert_eq!(latency(10.0, 9.0, 90.0), Outcome::Not);
    let large = |ours, direct| alone("rufs-13-server", "4 MiB in order", ours, direct, 100.0);
    assert_eq!(large(1200.0, 1000.0), Outcome::Reproduced);
    assert_eq!(large(900.0, 1000.0), Outcome::Partly, "ext4 is faster");
    assert_eq!(
        large(1500.0, 1000.0),
        Outcome::Partly,
        "ext4 is slower than the paper's"
    );

    let labels = ["1", "4", "8", "16"];
    let small = |direct: f64, sync: f64| {
        let all = [100.0, direct, sync].map(|value| labels.map(|label| (label, value)));
        let sides: [(&str, &[(&str, f64)]); 3] = [
            ("ferrite's NVMe engine, submitted", &all[0]),
            ("ext4, O_DIRECT", &all[1]),
            ("ext4, O_SYNC", &all[2]),
        ];
        let panels = ["4 KiB random reads", "4 KiB random writes"].map(|title| panel(title, &sides));
        outcome("rufs-12-server", panels.into())
    };
    assert_eq!(small(95.0, 10.0), Outcome::Reproduced);
    assert_eq!(small(95.0, 50.0), Outcome::Partly, "O_SYNC keeps up");
    assert_eq!(small(120.0, 50.0), Outcome::Not);

    let devices = |six: f64| {
        let points = [("1", 10.0), ("6", six)];
        let sides: [(&str, &[(&str, f64)]); 2] = [("read", &points), ("write", &points)];
        let panels = ["4 KiB at random places", "4 MiB in order"].map(|title| panel(title, &sides));
        outcome("rufs-14", panels.into())
    };
    assert_eq!(devices(40.0), Outcome::Reproduced);
    assert_eq!(devices(30.0), Outcome::Not, "six devices are as three");
}

/// The results in docs/lab.
fn published() -> Vec<crate::FigureResult> {
    let text = std::fs::read_to_string("../../docs/lab/results.json").expect("it is kept there");
    crate::from_json(&text).expect("results")
}

/// Whether a verdict says that a claim does not hold, and whether it says why.
fn failed_and_explained(verdict: &Verdict) -> (bool, bool) {
    let has = |begin: &str| verdict.reasons.iter().any(|reason| reason.starts_with(begin));
    (has("Does not hold: "), has(LIKELY_REASON))
}

#[test]
fn the_published_verdicts_are_those_of_their_data_and_say_why() {
    let results = published();
    assert!(!results.is_empty());
    let mut again = results.clone();
    crate::judge_again(&mut again);
    for (result, again) in results.iter().zip(&again) {
        let id = &result.info.id;
        let (failed, explained) = failed_and_explained(&result.verdict);
        assert!(!failed || explained, "{id}: {:?}", result.verdict);
        assert!(
            result.verdict == again.verdict,
            "{id}: judged by an older build; `ferrite-lab report --out docs/lab` judges again"
        );
    }
}

/// The table of docs/lab matches the results beside it.
#[test]
fn the_published_table_is_that_of_the_results() {
    let text = std::fs::read_to_string("../../docs/lab/README.md").expect("it is kept there");
    let rows: Vec<String> = published()
        .iter()
        .map(|result| {
            let reasons = &result.verdict.reasons;
            let count = |begin: &str| reasons.iter().filter(|reason| reason.starts_with(begin)).count();
            format!(
                "| {} | {} | {} | {} | {} | {} |",
                result.info.id,
                result.info.title,
                result.verdict.outcome.words(),
                count("Holds: "),
                count("Does not hold: "),
                count("Open, ")
            )
        })
        .collect();
    let shown: Vec<&str> = text
        .lines()
        .filter(|line| {
            ["hashfs-", "hdpm-", "rufs-", "filemr-"]
                .iter()
                .any(|paper| line.starts_with(&format!("| {paper}")))
        })
        .collect();
    assert_eq!(shown, rows, "the table should be\n{}", rows.join("\n"));
}

/// Real data, changed in every direction until claims break: every figure then has a reason.
#[test]
fn whatever_does_not_hold_has_a_likely_reason() {
    for result in published() {
        let figure = FIGURES
            .iter()
            .find(|figure| figure.id == result.info.id)
            .expect("listed");
        let mut broke = false;
        let places: Vec<(usize, usize)> = (0..result.data.panels.len())
            .flat_map(|panel| (0..result.data.panels[panel].series.len()).map(move |series| (panel, series)))
            .collect();
        for &(panel, series) in &places {
            for factor in [0.01, 100.0] {
                for last_only in [false, true] {
                    let mut data = result.data.clone();
                    let points = &mut data.panels[panel].series[series].points;
                    let from = if last_only { points.len() - 1 } else { 0 };
                    for point in &mut points[from..] {
                        point.median *= factor;
                        point.low *= factor;
                        point.high *= factor;
                    }
                    let (failed, explained) = failed_and_explained(&(figure.check)(&data));
                    assert!(!failed || explained, "{}", figure.id);
                    broke |= failed;
                }
            }
        }
        assert!(broke, "{}: nothing breaks it", figure.id);
    }
}

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

/// The shares of partial updates decide, and what copies cost.
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

/// What docs/lab shows.
fn published() -> Vec<crate::FigureResult> {
    let text = std::fs::read_to_string("../../docs/lab/results.json").expect("it is kept there");
    crate::from_json(&text).expect("results")
}

/// Whether a verdict says that something does not hold, and whether it says why.
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
            "{id}: judged by an older build; `ferrite lab report --out docs/lab` judges again"
        );
    }
}

/// The table of docs/lab is that of the results beside it.
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
        .filter(|line| line.starts_with("| hashfs") || line.starts_with("| hdpm"))
        .collect();
    assert_eq!(shown, rows, "the table should be\n{}", rows.join("\n"));
}

/// Real data, bent in every direction until claims break: no figure then stays without a reason.
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

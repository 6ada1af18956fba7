//! The lab's public face: every figure runs, results survive JSON, and the report shows them. Numbers of the tiny plan
//! mean nothing.

use ferrite_lab::{FigureInfo, LabError, Plan, Progress, Silent};

/// Counts the reports.
#[derive(Default)]
struct Counting {
    announced: u64,
    seen: u64,
    figures: u64,
}

impl Progress for Counting {
    fn begin(&mut self, _figure: &FigureInfo, steps: u64) {
        self.announced += steps;
    }

    fn step(&mut self, _what: &str) {
        self.seen += 1;
    }

    fn end(&mut self) {
        self.figures += 1;
    }
}

/// The figures that this build can run.
fn here() -> impl Iterator<Item = FigureInfo> {
    ferrite_lab::list()
        .into_iter()
        .filter(|figure| ferrite_lab::lacks(&figure.id).is_none())
}

#[test]
fn two_figures_run_and_are_reported() {
    let mut progress = Counting::default();
    let results = ferrite_lab::run(&["hashfs-5", "hdpm-9"], &Plan::tiny(), &mut progress).expect("they run");
    assert_eq!((progress.figures, progress.announced), (2, progress.seen));
    let json = ferrite_lab::to_json(&results).expect("plain data");
    let back = ferrite_lab::from_json(&json).expect("what was just written");
    assert!(back == results, "results changed on their way through JSON");
    let page = ferrite_lab::report(&results);
    for result in &results {
        assert!(page.contains(&result.info.id), "{}", result.info.id);
        assert!(page.contains(result.verdict.outcome.words()));
        assert!(!result.verdict.reasons.is_empty());
        for panel in &result.data.panels {
            assert!(panel.series.iter().any(|series| series.name == "hashfs") || result.info.id != "hashfs-5");
        }
    }
    assert_eq!(page.matches("<svg").count(), 2);
    // Self-contained: the page loads nothing.
    assert!(!page.contains("src=") && !page.contains("href="));
}

#[test]
fn every_figure_runs() {
    for figure in here() {
        let mut progress = Counting::default();
        let results = ferrite_lab::run(&[&figure.id], &Plan::tiny(), &mut progress)
            .unwrap_or_else(|error| panic!("{}: {error}", figure.id));
        assert_eq!(progress.announced, progress.seen, "{}: steps", figure.id);
        let panels = results.iter().flat_map(|result| &result.data.panels);
        let points = panels.flat_map(|panel| {
            let points = panel.series.iter().flat_map(|series| &series.points);
            points.map(|point| (panel.unit.as_str(), point))
        });
        for (unit, point) in points {
            // A program may have no small updates, and a cache may know none of its accesses; all other measurements
            // take some time.
            let none = ["% of updates", "% of accesses"].contains(&unit) && point.median == 0.0;
            assert!(
                point.median.is_finite() && (point.median > 0.0 || none),
                "{}: {point:?}",
                figure.id
            );
            assert!(
                point.low <= point.median && point.median <= point.high,
                "{}: {point:?}",
                figure.id
            );
            assert!(point.samples > 0);
        }
    }
}

/// A slower medium shows in the figures that declare it, and in no other.
#[test]
fn the_media_model_adds_to_cold_operations_and_each_figure_says_whether() {
    let plan = Plan {
        media_extra_ns: 1e6,
        ..Plan::tiny()
    };
    for (id, applied) in [
        ("hashfs-6", true),
        ("hashfs-9", true),
        ("hashfs-8", false),
        ("hashfs-11", false),
    ] {
        let results = ferrite_lab::run(&[id], &plan, &mut Silent).expect("it runs");
        let data = &results[0].data;
        let said = if applied {
            "media model on: 1000000 ns"
        } else {
            "media model not applied in this figure"
        };
        assert!(data.notes[0].contains(said), "{id}: {}", data.notes[0]);
        let panels = data.panels.iter().filter(|panel| panel.unit == "ns");
        for point in panels.flat_map(|panel| &panel.series).flat_map(|series| &series.points) {
            assert_eq!(point.median >= 1e6, applied, "{id}: {point:?}");
        }
    }
}

/// A figure that is run again replaces its earlier result; the others stay.
#[test]
fn results_of_two_runs_merge_by_figure() {
    let run = |ids: &[&str], seed| {
        let plan = Plan { seed, ..Plan::tiny() };
        ferrite_lab::run(ids, &plan, &mut Silent).expect("they run")
    };
    let (first, second) = (run(&["hdpm-9", "hashfs-11"], 1), run(&["hashfs-11"], 2));
    let merged = ferrite_lab::merge(first, second);
    let seen: Vec<_> = merged
        .iter()
        .map(|result| (result.info.id.as_str(), result.plan.seed))
        .collect();
    assert_eq!(seen, [("hashfs-11", 2), ("hdpm-9", 1)]);
}

#[test]
fn unknown_figures_are_refused_before_anything_runs() {
    let result = ferrite_lab::run(&["hashfs-5", "hashfs-99"], &Plan::tiny(), &mut Silent);
    assert!(matches!(result, Err(LabError::UnknownFigure(id)) if id == "hashfs-99"));
}

/// A listed figure that cannot run here says so at once, and how to get it; the others still run.
#[test]
fn figures_that_this_build_lacks_are_refused_with_the_mend() {
    let ycsb = ["hashfs-13", "hashfs-14"];
    let nvme = [
        "rufs-10",
        "rufs-11-server",
        "rufs-12-server",
        "rufs-13-server",
        "rufs-14",
    ];
    let filemr = [
        "filemr-registration",
        "filemr-fragmentation",
        "filemr-hits",
        "filemr-latency",
        "filemr-log",
    ];
    for figure in ferrite_lab::list() {
        let id = figure.id.as_str();
        let lacks_leveldb = ycsb.contains(&id) && cfg!(not(feature = "leveldb"));
        let lacks_nvme = nvme.contains(&id) && cfg!(not(feature = "nvme"));
        let lacks_rdma = filemr.contains(&id) && cfg!(not(feature = "rdma"));
        let is_lacking = lacks_leveldb || lacks_nvme || lacks_rdma;
        assert_eq!(ferrite_lab::lacks(id).is_some(), is_lacking, "{id}");
    }
    let lacked = |ids: &[&'static str], flag: &'static str| ids.iter().map(|&id| (id, flag)).collect::<Vec<_>>();
    let mut refusals = Vec::new();
    if cfg!(not(feature = "leveldb")) {
        refusals.extend(lacked(&ycsb, "--features leveldb"));
    }
    if cfg!(not(feature = "nvme")) {
        refusals.extend(lacked(&nvme, "--features nvme"));
    }
    if cfg!(not(feature = "rdma")) {
        refusals.extend(lacked(&filemr, "--features rdma"));
    }
    for (id, flag) in refusals {
        let mut progress = Counting::default();
        let refused = ferrite_lab::run(&["hashfs-5", id], &Plan::tiny(), &mut progress);
        let Err(LabError::NotInThisBuild { figure, mend }) = refused else {
            panic!("{id} ran without what it needs");
        };
        assert!(figure == id && mend.contains(flag), "{figure}: {mend}");
        assert_eq!(progress.figures, 0);
    }
}

/// The promise of `ferrite-lab run all --quick`. Meant for a release build on a machine with little other load: `cargo
/// test --release -p ferrite-lab --test quick -- --ignored`, which `make soak` does. Leaves `report.html` and
/// `results.json` in the directory that `FERRITE_LAB_OUT` names.
#[test]
#[ignore = "minutes long; wants a release build"]
fn the_quick_plan_takes_less_than_ten_minutes() {
    let start = std::time::Instant::now();
    let mut results = Vec::new();
    for figure in here() {
        let more = ferrite_lab::run(&[&figure.id], &Plan::quick(), &mut Silent)
            .unwrap_or_else(|error| panic!("{}: {error}", figure.id));
        for result in &more {
            println!(
                "{} {:.1} s {}",
                figure.id,
                result.seconds,
                result.verdict.outcome.words()
            );
        }
        results.extend(more);
    }
    let seconds = start.elapsed().as_secs_f64();
    if let Some(dir) = std::env::var_os("FERRITE_LAB_OUT").map(std::path::PathBuf::from) {
        std::fs::create_dir_all(&dir).expect("a directory for the report");
        std::fs::write(dir.join("report.html"), ferrite_lab::report(&results)).expect("space for the report");
        let json = ferrite_lab::to_json(&results).expect("plain data");
        std::fs::write(dir.join("results.json"), json).expect("space for the results");
    }
    assert!(seconds < 600.0, "{seconds:.0} s");
}

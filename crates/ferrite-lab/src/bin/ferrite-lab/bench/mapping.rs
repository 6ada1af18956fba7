//! The mappings alone, without the engine: after churn, `leaf` against HashFS, all against the papers' own code, and
//! the lengths of runs. The lab measures.

use ferrite_lab::{ChurnPlan, MappingRow, PUBLISHED_ROWS, churn_rows, lookup_rows, published_rows, run_rows};

use super::{Output, say, say_json};
use crate::Failure;

/// Rows after churn, of lookups, and of runs; `--only` skips parts without the requested row.
const CHURN: &[&str] = &["hit", "miss", "insert"];
const LOOKUPS: &[&str] = &[
    "cold_random",
    "sequential_4k",
    "sequential_128k",
    "cold_sequential_4k",
    "cold_sequential_128k",
];
const RUNS: &[&str] = &["run_length"];
/// With this name, all rows beside the papers' own code.
const PUBLISHED: &str = "published";

/// Names of the rows.
pub(crate) fn names() -> Vec<&'static str> {
    [CHURN, LOOKUPS, RUNS, &[super::misses::NAME, PUBLISHED], PUBLISHED_ROWS].concat()
}

/// Runs the group.
pub(crate) fn run(quick: bool, out: &mut Output) -> Result<(), Failure> {
    let plan = if quick { ChurnPlan::quick() } else { ChurnPlan::whole() };
    let silent = &mut |_: &str| {};
    let wants = |out: &Output, part: &[&str]| part.iter().any(|name| out.wants(name));
    if wants(out, CHURN) {
        for &fill_percent in &plan.fills {
            print(&churn_rows(&plan, fill_percent, silent)?, out)?;
        }
    }
    if wants(out, LOOKUPS) {
        print(&lookup_rows(&plan, silent)?, out)?;
    }
    if wants(out, RUNS) {
        print(&run_rows(&plan, silent)?, out)?;
    }
    if out.wants(PUBLISHED) || wants(out, PUBLISHED_ROWS) {
        print(&published_rows(&plan, silent)?, out)?;
    }
    Ok(())
}

fn print(rows: &[MappingRow], out: &mut Output) -> Result<(), Failure> {
    for row in rows {
        let in_wanted_part = PUBLISHED_ROWS.contains(&row.name) && out.wants(PUBLISHED);
        if !in_wanted_part && !out.wants(row.name) {
            continue;
        }
        if out.json {
            say_json(row)?;
            continue;
        }
        out.head(format!(
            "{:<20} {:<8} {:<10} {:>5} {:>6} {:>7} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>7} {:>6}  {}",
            "benchmark",
            "mapping",
            "against",
            "fill",
            "churn",
            "ratio",
            "required",
            "ns",
            "their ns",
            "average",
            "p99 ns",
            "cold ns",
            "cold ratio",
            "lines",
            "p99",
            "run"
        ));
        let number = |value: Option<f64>, digits: usize| value.map_or("-".into(), |value| format!("{value:.digits$}"));
        say(format!(
            "{:<20} {:<8} {:<10} {:>3} % {:>6} {:>7.2} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>7} {:>6}  {}",
            row.name,
            row.structure,
            row.against,
            row.fill_percent,
            row.churn.map_or("-".into(), |churn| format!("{churn}x")),
            row.ratio,
            number(row.required_ratio, 2),
            number(row.median_ns, 1),
            number(row.against_median_ns, 1),
            number(row.average_ns, 1),
            number(row.p99_ns, 0),
            number(row.cold_median_ns, 0),
            number(row.cold_ratio, 2),
            number(row.lines_average, 2),
            row.lines_p99.map_or("-".into(), |lines| lines.to_string()),
            row.run_blocks
                .map_or("-".into(), |blocks| format!("{blocks:.1} blocks")),
        ));
    }
    Ok(())
}

//! The entry points of the lab: the list of figures, their runs, and results as JSON.

use std::time::Instant;

use crate::data::{FigureData, FigureInfo, FigureResult, Machine};
use crate::error::LabError;
use crate::figures::{FIGURES, lacking};
use crate::plan::Plan;
use crate::progress::Progress;

/// All figures, in the papers' order.
pub fn list() -> Vec<FigureInfo> {
    FIGURES.iter().map(|figure| figure.info()).collect()
}

/// The feature that this build lacks to run the figure of that id, and the remedy.
pub fn lacks(id: &str) -> Option<&'static str> {
    lacking(id)
}

/// Runs figures by id; `all` stands for each figure that this build can run ([`lacks`]). Takes minutes, memory for the
/// largest pool, and as many threads as the plan says.
pub fn run(ids: &[&str], plan: &Plan, progress: &mut dyn Progress) -> Result<Vec<FigureResult>, LabError> {
    let mut chosen = Vec::new();
    for &id in ids {
        let all = FIGURES.iter().filter(|figure| lacking(figure.id).is_none());
        match FIGURES.iter().find(|figure| figure.id == id) {
            _ if id == "all" => chosen.extend(all),
            Some(figure) => match lacking(id) {
                None => chosen.push(figure),
                Some(mend) => {
                    return Err(LabError::NotInThisBuild {
                        figure: id.to_string(),
                        mend,
                    });
                }
            },
            None => return Err(LabError::UnknownFigure(id.to_string())),
        }
    }
    // Before the minutes of work, not after.
    for path in &plan.traces {
        crate::traces::read(path)?;
    }
    let machine = machine();
    let mut results = Vec::new();
    for figure in chosen {
        let info = figure.info();
        let runs = if figure.on_fresh_pools { plan.pools.max(1) } else { 1 };
        progress.begin(&info, (figure.steps)(plan) * u64::from(runs));
        let start = Instant::now();
        let mut data = FigureData::default();
        for run in 0..runs {
            let seeded = Plan {
                seed: plan.seed.wrapping_add(u64::from(run)),
                ..plan.clone()
            };
            data.merge((figure.run)(&seeded, progress)?);
        }
        data.settle();
        progress.end();
        data.notes.insert(0, plan.scale(figure.applies_media));
        results.push(FigureResult {
            verdict: (figure.check)(&data),
            info,
            plan: plan.clone(),
            machine: machine.clone(),
            seconds: start.elapsed().as_secs_f64(),
            data,
        });
    }
    Ok(results)
}

/// Judges results again from their data, by the rules of this build.
pub fn judge_again(results: &mut [FigureResult]) {
    for result in results {
        if let Some(figure) = FIGURES.iter().find(|figure| figure.id == result.info.id) {
            result.verdict = (figure.check)(&result.data);
        }
    }
}

/// Merges the results of two runs: for a figure in both, the newer counts. In the papers' order; figures that this
/// build does not know come last.
pub fn merge(earlier: Vec<FigureResult>, newer: Vec<FigureResult>) -> Vec<FigureResult> {
    let is_newer = |result: &FigureResult| newer.iter().any(|one| one.info.id == result.info.id);
    let mut all: Vec<FigureResult> = earlier.into_iter().filter(|result| !is_newer(result)).collect();
    all.extend(newer);
    let place = |result: &FigureResult| FIGURES.iter().position(|figure| figure.id == result.info.id);
    all.sort_by_key(|result| place(result).unwrap_or(usize::MAX));
    all
}

/// Results as JSON text.
pub fn to_json(results: &[FigureResult]) -> Result<String, LabError> {
    Ok(serde_json::to_string_pretty(results)?)
}

/// Results from JSON text.
pub fn from_json(text: &str) -> Result<Vec<FigureResult>, LabError> {
    Ok(serde_json::from_str(text)?)
}

fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let counters = match crate::misses::uncounted() {
        None => "read around cold lookups (figure 5)".to_string(),
        Some(why) => format!("not available: {why}"),
    };
    Machine {
        cpu: model.map_or_else(|| "unknown".into(), |(_, name)| name.trim().to_string()),
        cores: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
        counters,
    }
}

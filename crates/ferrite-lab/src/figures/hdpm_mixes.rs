//! HDPM figures 7 and 8: webproxy and varmail with a growing number of threads, page logs on and off.

use std::time::Duration;

use ferrite_fs::{MkfsOptions, MountOptions};

use super::{Figure, Judge, overlap, panel_of};
use crate::data::point;
use crate::data::{FigureData, Panel};
use crate::error::LabError;
use crate::mixes::{Mix, Whole, fill, rate};
use crate::plan::Plan;
use crate::progress::Progress;

const PANEL: &str = "Throughput";
/// HDPM, as the engine implements it.
const LOGS: &str = "page logs";
/// The engine without them: copy-on-write of whole pages, as NOVA.
const COPIES: &str = "copy-on-write (as NOVA)";

pub(crate) const WEBPROXY: Figure = Figure {
    id: "hdpm-7",
    title: "Webproxy with more and more threads, page logs on and off",
    claim: "Webproxy reads most of the time: HDPM, NOVA and ext4-DAX are close to each other.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |plan| plan.threads.len() as u64,
    run: |plan, progress| run(plan, progress, Mix::Webproxy),
    check: |data| {
        let mut judge = Judge::default();
        each_thread_count(data, &mut judge, |judge, threads, ratio, overlaps| {
            let holds = (0.85..=1.18).contains(&ratio);
            let what = format!("{threads} threads: logs {ratio:.2} times copies (wanted: 0.85 to 1.18)");
            if holds || !overlaps {
                judge.claim(holds, what);
            } else {
                judge.open(&what);
            }
        });
        judge.verdict(
            "rounds on few cores scatter by more than the few unaligned writes of this mix make of a difference.",
        )
    },
};

pub(crate) const VARMAIL: Figure = Figure {
    id: "hdpm-8",
    title: "Varmail with more and more threads, page logs on and off",
    claim: "Varmail writes unaligned and synchronously: HDPM is best, by 33 % over NOVA with 10 threads, where the \
    medium's bandwidth ends.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |plan| plan.threads.len() as u64,
    run: |plan, progress| run(plan, progress, Mix::Varmail),
    check: |data| {
        let mut judge = Judge::default();
        each_thread_count(data, &mut judge, |judge, threads, ratio, overlaps| {
            let what = format!("{threads} threads: logs {ratio:.2} times copies (wanted: more than 1)");
            if overlaps {
                judge.open(&what);
            } else {
                judge.claim(ratio > 1.0, what);
            }
        });
        judge.verdict(
            "DRAM's write bandwidth is many times Optane's, so what is saved in writing shows less than in the paper; \
             and of an addition of \
             16 KiB only the page at the old end is unaligned.",
        )
    },
};

fn run(plan: &Plan, progress: &mut dyn Progress, mix: Mix) -> Result<FigureData, LabError> {
    let mut panel = Panel {
        title: PANEL.into(),
        x_label: "threads".into(),
        y_label: "throughput".into(),
        unit: "turns/s".into(),
        log_y: false,
        lines: true,
        series: Vec::new(),
    };
    for &threads in &plan.threads {
        progress.step(&format!("{threads} threads"));
        let count = threads as usize;
        let side = |cow_only: bool| -> Result<Whole, LabError> {
            let mount = MountOptions::default().cow_only(cow_only);
            let mkfs = MkfsOptions::default().seed(plan.seed);
            let store = Whole::new(&mkfs, &mount, mix, count, plan.mix_files)?;
            fill(&store, mix, count, plan.mix_files)?;
            Ok(store)
        };
        let sides = [(LOGS, side(false)?), (COPIES, side(true)?)];
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..=plan.rounds {
            for ((_, store), rates) in sides.iter().zip(&mut rates) {
                let length = Duration::from_millis(plan.round_ms);
                let rate = rate(store, mix, count, plan.mix_files, length, plan.seed ^ u64::from(round))?;
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        for ((name, _), rates) in sides.iter().zip(&mut rates) {
            panel.push(name, point(f64::from(threads), threads.to_string(), rates));
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    Ok(FigureData {
        panels: vec![panel],
        notes: vec![format!(
            "{cores} cores. Files of each thread: {}; the paper has 100,000. NOVA is stood in for by the same engine \
             without page logs; \
             ext4-DAX and ext4 with a data journal need a medium this machine has not.",
            plan.mix_files
        )],
    })
}

fn each_thread_count(data: &FigureData, judge: &mut Judge, mut judged: impl FnMut(&mut Judge, &str, f64, bool)) {
    let panel = panel_of(data, PANEL);
    let labels: Vec<String> = panel
        .series
        .first()
        .map(|series| series.points.iter().map(|point| point.label.clone()).collect())
        .unwrap_or_default();
    if labels.is_empty() {
        judge.missing("everything");
    }
    for label in labels {
        match (panel.value(LOGS, &label), panel.value(COPIES, &label)) {
            (Some(logs), Some(copies)) => judged(judge, &label, logs / copies, overlap(&panel, LOGS, COPIES, &label)),
            _ => judge.missing(&label),
        }
    }
}

//! HashFS figure 10: threads that read and then append to one file.

use std::sync::Barrier;

use ferrite_map::{PageId, TransCache};
use parking_lot::RwLock;

use super::{Figure, Judge, extent_of, panel_of};
use crate::data::point;
use crate::data::{FigureData, Panel, Verdict};
use crate::error::LabError;
use crate::measure::{FILE, clock_ns, time};
use crate::plan::Plan;
use crate::pool::{Pool, PoolPlan};
use crate::progress::Progress;
use crate::structure::Structure;
use ferrite_measure::{Rng, median};

const READS: &str = "Lookups";
const INSERTS: &str = "Appends";

pub(crate) const FIGURE: Figure = Figure {
    id: "hashfs-10",
    title: "Concurrency: threads read and append to one file",
    claim: "With eight times the threads, mapping takes at most 13 % longer, and the ranking of the structures does \
    not change.",
    on_fresh_pools: true,
    applies_media: false,
    steps: |plan| (Structure::contenders().len() * plan.threads.len()) as u64,
    run,
    check,
};

fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panels = [READS, INSERTS].map(|title| Panel {
        title: title.into(),
        x_label: "threads".into(),
        y_label: "time of mapping per page".into(),
        unit: "ns".into(),
        log_y: true,
        lines: true,
        series: Vec::new(),
    });
    clock_ns();
    for structure in Structure::contenders() {
        for &threads in &plan.threads {
            let name = structure.name();
            progress.step(&format!("{name}, {threads} threads"));
            let turns = (plan.hot_operations / 4 / threads / plan.rounds).max(20);
            let pages = plan.file_pages / 4;
            let pool = Pool::new(
                structure,
                PoolPlan {
                    blocks: (pages + turns * threads * (plan.rounds + 1)) * 5 / 4 + 128,
                    score: plan.layout_score,
                    lanes: threads as usize,
                    seed: plan.seed,
                },
            )?;
            pool.fill(FILE, 0, pages, |_| true)?;
            let (mut reads, mut inserts) = (Vec::new(), Vec::new());
            for round in 0..=plan.rounds {
                let first = pages + round * threads * turns;
                let (round_reads, round_inserts) = together(&pool, threads, turns, first)?;
                // The first one warms up.
                if round > 0 {
                    reads.push(median(&round_reads));
                    inserts.push(median(&round_inserts));
                }
            }
            let (x, label) = (f64::from(threads), threads.to_string());
            panels[0].push(name, point(x, label.clone(), &mut reads));
            panels[1].push(name, point(x, label, &mut inserts));
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    Ok(FigureData {
        panels: panels.into(),
        notes: vec![format!(
            "{cores} cores: with more threads than that, threads take turns, and what is shown is not contention \
             alone. The file has one \
             read-write lock, as in the paper; waiting for it is not counted, waiting inside the mapping is. A sample \
             is the median of a round."
        )],
    })
}

/// Times of lookups and appends of all threads.
fn together(pool: &Pool, threads: u32, turns: u32, pages: u32) -> Result<(Vec<f64>, Vec<f64>), LabError> {
    let end = &RwLock::new(pages);
    let barrier = &Barrier::new(threads as usize);
    let work = move |thread: u32| -> Result<(Vec<f64>, Vec<f64>), LabError> {
        let cache = TransCache::default();
        let mut rng = Rng::new(u64::from(thread));
        let (mut reads, mut inserts) = (Vec::new(), Vec::new());
        barrier.wait();
        for _ in 0..turns {
            {
                let end = end.read();
                let lblk = rng.below(u64::from(*end)) as u32;
                reads.push(time(|| {
                    std::hint::black_box(pool.look(PageId::from_raw(FILE, lblk), &cache));
                }));
            }
            let mut end = end.write();
            let mut result = Ok(());
            inserts.push(time(|| result = pool.insert(thread as usize, FILE, *end, 1)));
            result?;
            *end += 1;
        }
        Ok((reads, inserts))
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        workers.into_iter().map(|worker| worker.join()).collect()
    });
    let (mut reads, mut inserts) = (Vec::new(), Vec::new());
    for result in results {
        let (more_reads, more_inserts) =
            result.map_err(|_| LabError::Wrong("a thread of the experiment panicked".into()))??;
        reads.extend(more_reads);
        inserts.extend(more_inserts);
    }
    Ok((reads, inserts))
}

fn check(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    for title in [READS, INSERTS] {
        let panel = panel_of(data, title);
        let labels: Vec<String> = panel
            .series
            .first()
            .map(|series| series.points.iter().map(|point| point.label.clone()).collect())
            .unwrap_or_default();
        let (Some(first), Some(last)) = (labels.first(), labels.last()) else {
            judge.missing(title);
            continue;
        };
        for series in &panel.series {
            // Half as much again is what two shared cores can distinguish from noise.
            judge.flat(&panel, &series.name, first, last, 1.5);
        }
        // A structure that is a tenth faster alone must not be slower together; a smaller difference gives no rank.
        let value = |name: &str, label: &str| panel.value(name, label).unwrap_or(f64::NAN);
        let names = || panel.series.iter().map(|series| series.name.as_str());
        let turned: Vec<String> = names()
            .flat_map(|fast| names().map(move |slow| (fast, slow)))
            .filter(|(fast, slow)| {
                value(fast, first) * 1.1 < value(slow, first) && value(fast, last) > value(slow, last)
            })
            .map(|(fast, slow)| format!("{slow} overtakes {fast}"))
            .collect();
        let change = if turned.is_empty() {
            "does not change".to_string()
        } else {
            turned.join(", ")
        };
        judge.claim(
            turned.is_empty(),
            format!("{title}: from {first} to {last} threads the ranking {change}"),
        );
    }
    let panel = panel_of(data, READS);
    for name in ["cuckoo", "radix", extent_of(&panel)] {
        if panel.series.iter().all(|series| series.name != name) {
            judge.missing(name);
        }
    }
    judge.verdict(
        "more threads than cores take turns (the notes say how many cores there are), and each finds in its core's \
         caches what others left \
         there. A lookup that hits takes some 50 ns, so a line that misses doubles it, and structures that lie within \
         some ten ns of \
         each other change places; appends take ten times as long and show it less.",
    )
}

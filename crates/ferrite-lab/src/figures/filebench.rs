//! HashFS figure 12: fileserver and webproxy, end to end with each mapping, and on the mapping alone with all
//! baselines.

use std::time::Duration;

use ferrite_fs::{MkfsOptions, MountOptions};
use ferrite_map::Mapping;

use super::{Figure, Judge, bars, overlap, panel_of};
use crate::data::point;
use crate::data::{FigureData, Panel, Verdict};
use crate::error::LabError;
use crate::mixes::{MapOnly, Mix, Store, Whole, fill, rate};
use crate::plan::Plan;
use crate::pool::{INODES, Pool, PoolPlan};
use crate::progress::Progress;
use crate::structure::Structure;

const WHOLE: &str = "Whole engine";
const ALONE: &str = "Mapping alone (replay)";
const MIXES: [(Mix, &str); 2] = [(Mix::Fileserver, "fileserver"), (Mix::Webproxy, "webproxy")];
/// Reason why the paper's effect may not show here.
const LIKELY: &str = "alone, all but hashfs (with tombstones or without) and leaf ask the papers' allocator, which \
fences its bitmap for each \
    block that it gives or takes back: that sets the pace of level hashing, cuckoo and all trees, and little is left \
    between them. The \
    page-cached tree gains nothing on a medium as fast as its copies, which are made anew after each change, under a \
    lock (figure 11); and \
    a file of 32 pages has one node, in either tree. On the engine, webproxy makes and removes a file in each turn, \
    and cuckoo, which \
    writes most words for that, has no disk or system call to hide them; one thread's rounds scatter by up to a tenth.";
/// Strata's default, the paper's point of comparison.
const BASELINE: &str = "extent-page-cached";

pub(crate) const FIGURE: Figure = Figure {
    id: "hashfs-12",
    title: "Filebench: fileserver and webproxy, with level hashing",
    claim: "In fileserver HashFS is 26 % above Strata's page-cached extent tree and the radix tree 10 % below it; in \
    webproxy all are \
            within 2 %. Level hashing is below HashFS in all cases, and below the baseline in fileserver.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| ((Mapping::ALL.len() + Structure::all().len()) * MIXES.len()) as u64,
    run,
    check,
};

fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let panel = |title: &str| bars(title, "mix", "throughput", "turns/s", false);
    let (mut whole, mut alone) = (panel(WHOLE), panel(ALONE));
    let files = plan.mix_files;
    for (index, (mix, label)) in MIXES.into_iter().enumerate() {
        let mut stores: Vec<(&str, Whole)> = Vec::new();
        for &mapping in Mapping::ALL {
            progress.step(&format!("{label} on the engine, {mapping}"));
            let mkfs = MkfsOptions::default().mapping(mapping).seed(plan.seed);
            let store = Whole::new(&mkfs, &MountOptions::default(), mix, 1, files)?;
            fill(&store, mix, 1, files)?;
            stores.push((mapping.name(), store));
        }
        let contenders: Vec<(&str, &dyn Store)> = stores
            .iter()
            .map(|(name, store)| (*name, store as &dyn Store))
            .collect();
        rounds(plan, mix, (index, label), &contenders, &mut whole)?;
        drop(stores);
        let mut stores: Vec<(&str, MapOnly)> = Vec::new();
        for structure in Structure::all() {
            progress.step(&format!("{label} on the mapping alone, {}", structure.name()));
            let pool = Pool::new(
                structure,
                PoolPlan {
                    blocks: MapOnly::blocks_for(mix, 1, files),
                    score: plan.layout_score,
                    lanes: 1,
                    seed: plan.seed,
                },
            )?;
            let store = MapOnly::new(pool, 1, files.min(INODES / 2));
            fill(&store, mix, 1, files)?;
            stores.push((structure.name(), store));
        }
        let contenders: Vec<(&str, &dyn Store)> = stores
            .iter()
            .map(|(name, store)| (*name, store as &dyn Store))
            .collect();
        rounds(plan, mix, (index, label), &contenders, &mut alone)?;
    }
    Ok(FigureData {
        panels: vec![whole, alone],
        notes: vec![
            "One thread. The engine knows no baseline, so level hashing and the page-cached tree appear where the \
             mapping alone replays \
             the mix: its share of the work, without names and data, one transaction for each file made, grown or \
             removed."
                .into(),
            format!("{files} files; the paper has 10,000 and 100,000."),
        ],
    })
}

/// Rounds are interleaved, so that other load on the machine affects all equally.
fn rounds(
    plan: &Plan,
    mix: Mix,
    (x, label): (usize, &str),
    contenders: &[(&str, &dyn Store)],
    panel: &mut Panel,
) -> Result<(), LabError> {
    let mut rates = vec![Vec::new(); contenders.len()];
    for round in 0..=plan.rounds {
        for ((_, store), rates) in contenders.iter().zip(&mut rates) {
            let length = Duration::from_millis(plan.round_ms);
            let rate = rate(*store, mix, 1, plan.mix_files, length, plan.seed ^ u64::from(round))?;
            // The first one warms up.
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    for ((name, _), rates) in contenders.iter().zip(&mut rates) {
        panel.push(name, point(x as f64, label, rates));
    }
    Ok(())
}

fn check(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    let (whole, alone) = (panel_of(data, WHOLE), panel_of(data, ALONE));
    // A higher rate is better, so the slower one comes second.
    judge.at_least(&alone, "fileserver", "hashfs", BASELINE, 1.1);
    for label in ["fileserver", "webproxy"] {
        judge.at_least(&alone, label, "hashfs", "level", 1.0);
    }
    judge.at_least(&alone, "fileserver", BASELINE, "level", 1.0);
    judge.at_least(&alone, "fileserver", BASELINE, "radix", 1.0);
    for name in ["cuckoo", "radix", "extent", "leaf"] {
        match (whole.value(name, "webproxy"), whole.value("hashfs", "webproxy")) {
            (Some(other), Some(hashfs)) => {
                let what = format!(
                    "webproxy on the engine: {name} {other:.0} turns/s, hashfs {hashfs:.0} (wanted: within 10 %)"
                );
                if overlap(&whole, name, "hashfs", "webproxy") {
                    judge.open(&what);
                } else {
                    judge.claim((other / hashfs - 1.0).abs() < 0.1, what);
                }
            }
            _ => judge.missing(&format!("{name} on the engine")),
        }
    }
    judge.verdict(LIKELY)
}

//! HashFS figure 11: an extent tree behind a page cache, and in place.

use super::{Figure, Judge, bars, panel_of};
use crate::data::point;
use crate::data::{FigureData, Verdict};
use crate::error::LabError;
use crate::measure::{FILE, GROWING, hot_insert_pages, hot_inserts, hot_looks, random_pages};
use crate::plan::Plan;
use crate::pool::{Pool, PoolPlan};
use crate::progress::Progress;
use crate::structure::Structure;

const PANEL: &str = "Single-page operations, many of them";
const READ: &str = "random lookup";
const READ_IN_ORDER: &str = "sequential lookup";
const INSERT: &str = "append";

pub(crate) const FIGURE: Figure = Figure {
    id: "hashfs-11",
    title: "Page cache: Strata's extent tree in DRAM pages against the same tree in place",
    claim: "Even after a million operations the page cache's overhead is not paid back in reads; inserts are slower, \
    too.",
    on_fresh_pools: true,
    applies_media: false,
    steps: |_| contenders().len() as u64,
    run,
    check,
};

fn contenders() -> Vec<Structure> {
    let mut all = vec![Structure::PageCached, Structure::InPlace];
    all.extend(Structure::contenders().into_iter().filter(|one| one.name() == "extent"));
    all
}

fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panel = bars(PANEL, "operation", "time per page", "ns", true);
    // The paper does a million.
    let operations = plan.hot_operations * 10;
    for structure in contenders() {
        let name = structure.name();
        progress.step(name);
        let pool = Pool::new(
            structure,
            PoolPlan {
                blocks: (plan.file_pages + hot_insert_pages(operations)) * 5 / 4 + 128,
                score: plan.layout_score,
                lanes: 1,
                seed: plan.seed,
            },
        )?;
        pool.fill(FILE, 0, plan.file_pages, |_| true)?;
        let shuffled = random_pages(plan.file_pages, plan.seed);
        let at_random = &mut hot_looks(&pool, FILE, operations, |n| shuffled[(n % plan.file_pages) as usize]);
        let in_order = &mut hot_looks(&pool, FILE, operations, |n| n % plan.file_pages);
        let inserts = &mut hot_inserts(&pool, GROWING, operations, |n| n)?;
        panel.push(name, point(0.0, READ, at_random));
        panel.push(name, point(1.0, READ_IN_ORDER, in_order));
        panel.push(name, point(2.0, INSERT, inserts));
    }
    Ok(FigureData {
        panels: vec![panel],
        notes: vec![
            "extent-page-cached and extent-in-place are one tree of the lab's, with and without the cache: nodes \
             copied to heap pages, a \
             global list and lock, changes written to the medium and the copy refreshed. Neither has a cursor."
                .into(),
        ],
    })
}

fn check(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    let panel = panel_of(data, PANEL);
    for label in [READ, READ_IN_ORDER, INSERT] {
        judge.at_least(&panel, label, "extent-page-cached", "extent-in-place", 1.0);
    }
    judge.verdict(
        "both are one tree whose nodes fit the caches; what the page cache adds, a list and a lock that nobody else \
         asks for, is some tens of \
         nanoseconds, which other work on the machine can hide.",
    )
}

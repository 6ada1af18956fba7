//! HashFS figures 6 and 7: fragmentation and file size, cold.

use ferrite_map::PageId;

use super::locality::missed;
use super::{Figure, Judge, bars, extent_of, panel_of};
use crate::data::point;
use crate::data::{FigureData, Panel, Verdict};
use crate::error::LabError;
use crate::measure::{Cold, DECOY, FILE, GROWING, random_pages};
use crate::plan::Plan;
use crate::pool::{Pool, PoolPlan};
use crate::progress::Progress;
use crate::structure::Structure;

const IN_ORDER: &str = "Cold sequential lookups";
const AT_RANDOM: &str = "Cold random lookups";
const INSERTS: &str = "Cold appends";

const SCORES: [(f64, &str); 3] = [(1.0, "1.0"), (0.85, "0.85"), (0.7, "0.7")];
const SIZES: [&str; 3] = ["small", "medium", "large"];

pub(crate) const FRAGMENTATION: Figure = Figure {
    id: "hashfs-6",
    title: "Fragmentation: layout scores 1.0, 0.85 and 0.7",
    claim: "Only the extent tree's lookups suffer from fragmentation; inserts get slower for all that use the block \
    allocator, \
            HashFS is not affected at all.",
    on_fresh_pools: true,
    applies_media: true,
    steps: |_| (Structure::contenders().len() * SCORES.len()) as u64,
    run: run_fragmentation,
    check: check_fragmentation,
};

pub(crate) const FILE_SIZE: Figure = Figure {
    id: "hashfs-7",
    title: "File size: 4 KiB, 4 MiB, and the largest file",
    claim: "Trees get slower with the size of the file (random lookups by 34 %, sequential ones by less than 10 %), \
    hash tables do not.",
    on_fresh_pools: true,
    applies_media: true,
    steps: |_| (Structure::contenders().len() * SIZES.len()) as u64,
    run: run_file_size,
    check: check_file_size,
};

/// One place on the x axis.
struct Place<'a> {
    x: f64,
    label: &'a str,
    pages: u32,
    /// Pages that the pool has space for.
    pool_pages: u32,
    score: f64,
}

fn panels(x_label: &str) -> [Panel; 3] {
    [IN_ORDER, AT_RANDOM, INSERTS].map(|title| bars(title, x_label, "time per page", "ns", false))
}

fn measure(plan: &Plan, structure: Structure, place: &Place<'_>, panels: &mut [Panel; 3]) -> Result<f64, LabError> {
    let samples = plan.cold_samples;
    let pool = Pool::new(
        structure,
        PoolPlan {
            blocks: place.pool_pages + 4 * samples + 64,
            score: place.score,
            lanes: 1,
            seed: plan.seed,
        },
    )?;
    pool.fill(FILE, 0, place.pages, |_| true)?;
    pool.fill(DECOY, 0, 8, |_| true)?;
    let mut cold = Cold::new(structure)?;
    let extra = |page| missed(plan, &pool, page);
    let mut in_order = cold.looks(
        &pool,
        (0..samples).map(|n| PageId::from_raw(FILE, n % place.pages)),
        extra,
    );
    let shuffled = random_pages(place.pages, plan.seed);
    let chosen = shuffled.iter().cycle().take(samples as usize);
    let mut at_random = cold.looks(&pool, chosen.map(|&lblk| PageId::from_raw(FILE, lblk)), extra);
    // Appends to the file itself, whose structure has the size in question; to many copies if it is small.
    let mut inserts = Vec::new();
    for n in 0..samples {
        let (ino, lblk) = if place.pages <= samples {
            (GROWING + n, 0)
        } else {
            (FILE, place.pages + n)
        };
        if place.pages <= samples {
            pool.fill(ino, 0, place.pages, |_| true)?;
        }
        let lblk = lblk.max(place.pages);
        inserts.push(cold.insert(&pool, ino, lblk, 1)? + missed(plan, &pool, PageId::from_raw(ino, lblk)));
    }
    let name = structure.name();
    panels[0].push(name, point(place.x, place.label, &mut in_order));
    panels[1].push(name, point(place.x, place.label, &mut at_random));
    panels[2].push(name, point(place.x, place.label, &mut inserts));
    Ok(pool.layout_score(FILE, place.pages.min(20_000)))
}

fn run_fragmentation(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panels = panels("layout score");
    let mut notes = Vec::new();
    for structure in Structure::contenders() {
        let mut seen = Vec::new();
        for (index, (score, label)) in SCORES.into_iter().enumerate() {
            progress.step(&format!("{} {label}", structure.name()));
            let place = Place {
                x: index as f64,
                label,
                pages: plan.file_pages,
                pool_pages: plan.file_pages * 2,
                score,
            };
            seen.push(format!("{:.2}", measure(plan, structure, &place, &mut panels)?));
        }
        notes.push(format!(
            "{}: layout scores of the file as measured {}",
            structure.name(),
            seen.join(", ")
        ));
    }
    notes.push("Where the hash places pages (hashfs) the score does not apply.".into());
    Ok(FigureData {
        panels: panels.into(),
        notes,
    })
}

fn check_fragmentation(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    let reads = panel_of(data, AT_RANDOM);
    judge.grows(&reads, extent_of(&reads), "1.0", "0.7", 1.2);
    for name in ["hashfs", "cuckoo", "radix"] {
        judge.flat(&reads, name, "1.0", "0.7", 1.25);
    }
    let inserts = panel_of(data, INSERTS);
    judge.flat(&inserts, "hashfs", "1.0", "0.7", 1.25);
    judge.grows(&inserts, extent_of(&reads), "1.0", "0.7", 1.05);
    judge.verdict(
        "where a pool's memory happens to lie moves cold operations by more than chance does, and a few pools do not \
         average that out; and the \
         misses that fragmentation adds are misses of DRAM, two to three times cheaper than the paper's.",
    )
}

fn run_file_size(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panels = panels("file");
    let pages = [1, plan.file_pages.min(1024), plan.large_file_pages];
    for structure in Structure::contenders() {
        for (index, (label, pages)) in SIZES.into_iter().zip(pages).enumerate() {
            progress.step(&format!("{} {label}", structure.name()));
            let place = Place {
                x: index as f64,
                label,
                pages,
                // One size for all, so that only the file differs.
                pool_pages: plan.large_file_pages * 5 / 4,
                score: plan.layout_score,
            };
            measure(plan, structure, &place, &mut panels)?;
        }
    }
    let kib = |pages: u32| u64::from(pages) * 4;
    Ok(FigureData {
        panels: panels.into(),
        notes: vec![format!(
            "small: {} KiB, medium: {} KiB, large: {} KiB; the tables have the size of the pool in each case",
            kib(pages[0]),
            kib(pages[1]),
            kib(pages[2])
        )],
    })
}

fn check_file_size(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    let reads = panel_of(data, AT_RANDOM);
    for name in [extent_of(&reads), "radix"] {
        judge.grows(&reads, name, "small", "large", 1.3);
    }
    for name in ["hashfs", "cuckoo"] {
        judge.flat(&reads, name, "medium", "large", 1.3);
    }
    judge.verdict(
        "where a pool's memory happens to lie moves cold operations by more than chance does, and a few pools do not \
         average that out; a \
         level more is one miss more, which on DRAM costs little, and the upper levels of a small tree are few lines.",
    )
}

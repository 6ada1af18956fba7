//! HashFS figure 8: I/O sizes. The share of an I/O's time spent on mapping, for one page, 16 and 256.

use std::hint::black_box;

use ferrite_map::{PageId, PageWord, TransCache};

use super::{Figure, Judge, bars, extent_of, panel_of};
use crate::alloc::BLOCK_BYTES;
use crate::data::point;
use crate::data::{FigureData, Verdict};
use crate::error::LabError;
use crate::measure::{Cold, DECOY, FILE, GROWING, time};
use crate::plan::Plan;
use crate::pool::{Pool, PoolPlan, page_of};
use crate::progress::Progress;
use crate::structure::Structure;
use ferrite_measure::Rng;

const IN_ORDER: &str = "Sequential reads";
const AT_RANDOM: &str = "Random reads";
const APPENDS: &str = "Appends";
const PER_PAGE: &str = "Mapping alone, random reads";
const SIZES: [(u32, &str); 3] = [(1, "4 KiB"), (16, "64 KiB"), (256, "1 MiB")];

pub(crate) const FIGURE: Figure = Figure {
    id: "hashfs-8",
    title: "I/O size: mapping's share of the I/O path for 4 KiB, 64 KiB and 1 MiB",
    claim: "The larger the I/O, the smaller mapping's share and the distance between trees and tables. At 1 MiB the \
    radix tree is best \
            for reads (3 % of the path); HashFS stays fastest for inserts.",
    on_fresh_pools: true,
    applies_media: false,
    steps: |_| (Structure::contenders().len() * SIZES.len()) as u64,
    run,
    check,
};

fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panels = [IN_ORDER, AT_RANDOM, APPENDS]
        .map(|title| bars(title, "I/O size", "mapping's share of the time", "%", false))
        .to_vec();
    panels.push(bars(PER_PAGE, "I/O size", "time per page", "ns", true));
    let samples = (plan.cold_samples / 2).max(3);
    for structure in Structure::contenders() {
        let pages = plan.file_pages.max(1024);
        let appended = samples * SIZES.iter().map(|(count, _)| count).sum::<u32>();
        let pool = Pool::new(
            structure,
            PoolPlan {
                blocks: pages * 5 / 4 + appended + 128,
                score: plan.layout_score,
                lanes: 1,
                seed: plan.seed,
            },
        )?;
        pool.fill(FILE, 0, pages, |_| true)?;
        pool.fill(DECOY, 0, 8, |_| true)?;
        let mut path = Path {
            cold: Cold::new(structure)?,
            pool: &pool,
            buffer: vec![0; (SIZES[2].0 as usize) * BLOCK_BYTES as usize],
        };
        let mut rng = Rng::new(plan.seed);
        let mut end = 0;
        for (index, (count, label)) in SIZES.into_iter().enumerate() {
            progress.step(&format!("{} {label}", structure.name()));
            let slots = u64::from(pages / count);
            let mut in_order = Vec::new();
            let (mut at_random, mut alone, mut appends) = (Vec::new(), Vec::new(), Vec::new());
            for n in 0..u64::from(samples) {
                let (map, data) = path.read((n % slots) as u32 * count, count);
                in_order.push(map * 100.0 / (map + data));
                let (map, data) = path.read(rng.below(slots) as u32 * count, count);
                at_random.push(map * 100.0 / (map + data));
                alone.push(map / f64::from(count));
                let (map, data) = path.append(end, count)?;
                end += count;
                appends.push(map * 100.0 / (map + data));
            }
            let all = [&mut in_order, &mut at_random, &mut appends, &mut alone];
            for (panel, samples) in panels.iter_mut().zip(all) {
                panel.push(structure.name(), point(index as f64, label, samples));
            }
        }
    }
    Ok(FigureData {
        panels,
        notes: vec![
            "Structure and data are cold. The rest of the path is copying the data from or to the medium (with its \
             fence); \
             locks, system calls and attributes are left out, so shares are upper bounds."
                .into(),
        ],
    })
}

/// An I/O path of mapping and copying.
struct Path<'p> {
    cold: Cold,
    pool: &'p Pool,
    buffer: Vec<u8>,
}

impl Path<'_> {
    /// Times of mapping and of copying.
    fn read(&mut self, lblk: u32, count: u32) -> (f64, f64) {
        let mut words = vec![PageWord::HOLE; count as usize];
        self.pool
            .map
            .get_many(PageId::from_raw(FILE, lblk), &mut words, &TransCache::default());
        for word in &words {
            self.pool
                .region
                .evict(u64::from(page_of(*word)) * BLOCK_BYTES, BLOCK_BYTES);
        }
        let map = self.cold.look(self.pool, PageId::from_raw(FILE, lblk), count as usize);
        let data = time(|| {
            for (word, part) in words.iter().zip(self.buffer.chunks_mut(BLOCK_BYTES as usize)) {
                self.pool.region.read(u64::from(page_of(*word)) * BLOCK_BYTES, part);
            }
        });
        black_box(&self.buffer);
        (map, data)
    }

    fn append(&mut self, lblk: u32, count: u32) -> Result<(f64, f64), LabError> {
        let map = self.cold.insert(self.pool, GROWING, lblk, count)?;
        let words: Vec<PageWord> = (lblk..lblk + count)
            .map(|lblk| self.pool.map.get(PageId::from_raw(GROWING, lblk)))
            .collect();
        let region = &self.pool.region;
        let mut fenced = Ok(());
        let data = time(|| {
            for (word, part) in words.iter().zip(self.buffer.chunks(BLOCK_BYTES as usize)) {
                region.stream(u64::from(page_of(*word)) * BLOCK_BYTES, part);
            }
            fenced = region.fence();
        });
        fenced?;
        Ok((map, data))
    }
}

fn check(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    let reads = panel_of(data, AT_RANDOM);
    let alone = panel_of(data, PER_PAGE);
    let extent = extent_of(&reads);
    for name in [extent, "radix", "cuckoo", "hashfs"] {
        match (reads.value(name, "4 KiB"), reads.value(name, "1 MiB")) {
            (Some(small), Some(large)) => judge.claim(
                large <= small / 2.0,
                format!(
                    "{name}: share of a random read {small:.0} % at 4 KiB, {large:.1} % at 1 MiB (wanted: at most half)"
                ),
            ),
            _ => judge.missing(name),
        }
    }
    for other in ["hashfs", "cuckoo", extent] {
        judge.at_least(&alone, "1 MiB", other, "radix", 1.0);
    }
    let appends = panel_of(data, APPENDS);
    for other in ["cuckoo", "radix", extent] {
        judge.at_least(&appends, "4 KiB", other, "hashfs", 1.0);
    }
    judge.verdict(
        "shares are of a path that is mapping and copying only, on a medium as fast as DRAM: whatever moves the \
         copy's time moves every \
         share, and half as many samples as in the other figures are taken.",
    )
}

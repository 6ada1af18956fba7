//! Two threads on two files: what the second thread gains, beside what it gains two threads of bare durable stores.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_fs::MountOptions;
use ferrite_pm::Region;
use ferrite_vfs::{FileSystem, OpenMode};

use super::core::{FILL_PERCENT, pool};
use super::random::page;
use super::{Circumstances, Effort, Output, Row, median};
use crate::Failure;

/// How long each side runs in a round.
const SLICE: Duration = Duration::from_millis(200);

/// Operations a second of `threads` threads that do `work(thread, number)` at once.
pub(crate) fn rate(threads: usize, work: &(dyn Fn(usize, u64) -> bool + Sync)) -> f64 {
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, total) = (&stop, &total);
            scope.spawn(move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) && work(thread, number) {
                    number += 1;
                }
                total.fetch_add(number, Ordering::Relaxed);
            });
        }
        std::thread::sleep(SLICE);
        stop.store(true, Ordering::Relaxed);
    });
    total.into_inner() as f64 / start.elapsed().as_secs_f64()
}

/// What is measured here.
pub(crate) const NAME: &str = "overwrite_4k_2_threads";

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let bytes = effort.file_bytes / 2;
    let (engine, made) = pool(bytes, 2, &MountOptions::default())?;
    let files: Vec<_> = made
        .iter()
        .map(|&ino| engine.open(ino, OpenMode::read_write()))
        .collect::<Result<_, _>>()?;
    let floors = [Region::anonymous(bytes)?, Region::anonymous(bytes)?];
    floors.iter().for_each(|floor| floor.stream_zero(0, bytes));
    let block = [7; 4096];
    let ours = |thread: usize, n: u64| files[thread].write_at(page(n, bytes), &block).is_ok();
    let theirs = |thread: usize, n: u64| {
        floors[thread].stream(page(n, bytes), &block);
        floors[thread].fence().is_ok()
    };
    let (mut gains, mut ours_ns, mut theirs_ns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let (ours_1, theirs_1) = (rate(1, &ours), rate(1, &theirs));
        let (ours_2, theirs_2) = (rate(2, &ours), rate(2, &theirs));
        // As times: what two threads take of what one takes, over the same of the floor.
        gains.push((ours_1 / ours_2) / (theirs_1 / theirs_2));
        ours_ns.push(1e9 / ours_2);
        theirs_ns.push(1e9 / theirs_2);
    }
    out.row(&Row {
        group: "threads",
        name: NAME,
        against: "gain of the floor",
        ratio: median(&mut gains),
        median_ns: median(&mut ours_ns),
        against_median_ns: median(&mut theirs_ns),
        fences: 0.0,
        lines_written_back: 0.0,
        bytes_streamed: 0.0,
        medium_bytes_per_byte: None,
        contents: None,
        circumstances: Circumstances {
            page_bytes: 2 << 20,
            fill_percent: FILL_PERCENT,
            cache: "larger than the caches",
            threads: 2,
            placement: "any".into(),
        },
    })
}

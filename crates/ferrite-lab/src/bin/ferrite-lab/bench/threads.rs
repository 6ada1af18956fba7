//! Two threads on two files: the gain from the second thread, compared with two threads of raw durable stores.

use std::time::Duration;

use ferrite_fs::MountOptions;
use ferrite_measure::{median, turns_per_second};
use ferrite_pm::Region;
use ferrite_vfs::{FileSystem, OpenMode, SYSTEM};

use super::operations::{FILL_PERCENT, pool};
use super::{Circumstances, Effort, Output, Row, page, whole};
use crate::Failure;

/// How long each side runs in a round.
pub(crate) const SLICE: Duration = Duration::from_millis(200);

/// Name of the row.
pub(crate) const NAME: &str = "overwrite_4k_2_threads";

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let bytes = effort.file_bytes / 2;
    let (engine, made) = pool(bytes, 2, &MountOptions::default())?;
    let files: Vec<_> = made
        .iter()
        .map(|&ino| engine.open(SYSTEM, ino, OpenMode::read_write()))
        .collect::<Result<_, _>>()?;
    let floors = [Region::anonymous(bytes)?, Region::anonymous(bytes)?];
    floors.iter().for_each(|floor| floor.stream_zero(0, bytes));
    let block = [7; 4096];
    // Each thread goes through the numbers of its own file.
    let numbers = || {
        let mut next = 0..;
        move || page(next.next().unwrap_or(0), bytes)
    };
    let ours = |thread: usize| {
        let (file, mut at) = (&files[thread], numbers());
        move || whole(file.write_at(SYSTEM, at(), &block)?, block.len())
    };
    let theirs = |thread: usize| {
        let (floor, mut at) = (&floors[thread], numbers());
        move || {
            floor.stream(at(), &block);
            Ok::<(), Failure>(floor.fence()?)
        }
    };
    let (mut gains, mut ours_ns, mut theirs_ns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let (ours_1, theirs_1) = (turns_per_second(1, SLICE, ours)?, turns_per_second(1, SLICE, theirs)?);
        let (ours_2, theirs_2) = (turns_per_second(2, SLICE, ours)?, turns_per_second(2, SLICE, theirs)?);
        // As times: the time of two threads relative to one, over the same of the floor.
        gains.push((ours_1 / ours_2) / (theirs_1 / theirs_2));
        ours_ns.push(1e9 / ours_2);
        theirs_ns.push(1e9 / theirs_2);
    }
    out.row(&Row {
        group: "threads",
        name: NAME,
        against: "gain of the floor",
        ratio: median(&gains),
        median_ns: median(&ours_ns),
        against_median_ns: median(&theirs_ns),
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

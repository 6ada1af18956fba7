//! RUFS figure 7: buffers registered once, against registration for each use.
//!
//! Registration needs an adapter, and this machine has none. Its parts are available without one: after a thread has
//! mapped the pages, the kernel finds and pins them (`mlock`), and later unpins them.

use std::hint::black_box;

use ferrite_buffers::{BUFFER_BYTES_MAX, Pool};
use memmap2::MmapMut;

use super::{Remote, contest, count, network_note, timed, transfer};
use crate::data::{FigureData, Panel, Verdict};
use crate::error::LabError;
use crate::figures::hdpm_data::size_label;
use crate::figures::{Figure, Judge, bars, panel_of};
use crate::peers::FILE_BYTES;
use crate::plan::Plan;
use crate::progress::Progress;

const PREPARE_PANEL: &str = "A buffer alone";
const READ_PANEL: &str = "Reads over the network into it";
const REUSED: &str = "from the pool (reuse-bulk)";
const EACH_TIME: &str = "mapped, pinned and unmapped each time (register-bulk)";
const SIZES: [usize; 5] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

pub(crate) const FIGURE: Figure = Figure {
    id: "rufs-7",
    title: "Buffers registered once against each time",
    claim: "Registering a buffer of one byte takes about 60 us, twice for each transfer, and more for a longer one; \
    with a pool that is registered once every transfer is faster.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |_| SIZES.len() as u64,
    run,
    check,
};

/// Memory in the state that a device needs: present, and resident. Returns whether it is pinned.
fn mapped(len: usize) -> Result<(MmapMut, bool), LabError> {
    let mut map = MmapMut::map_anon(len)?;
    // If the limit on locked memory is lower, the pages are touched and may be swapped.
    let is_pinned = map.lock().is_ok();
    if !is_pinned {
        map.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    }
    Ok((map, is_pinned))
}

fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panels = [PREPARE_PANEL, READ_PANEL].map(|title| Panel {
        lines: true,
        ..bars(title, "size", "latency", "us", true)
    });
    let remote = Remote::new()?;
    let [file, _] = remote.files()?;
    let none = || LabError::Wrong("the pool has no buffer left".into());
    let pool = Pool::new(BUFFER_BYTES_MAX).ok_or_else(none)?;
    // The pool's pages are present, like those of a registered area.
    pool.take(BUFFER_BYTES_MAX).ok_or_else(none)?.fill(1);
    let mut is_pinned = true;
    for (index, len) in SIZES.into_iter().enumerate() {
        let label = size_label(len);
        progress.step(&label);
        let place = |number: u64| number * len as u64 % FILE_BYTES;
        let count = count(plan, 1 + (len >> 16) as u32);
        let from = |round: u64| round * count;
        let mut take = |round| {
            timed(from(round), count, &mut |_| {
                drop(black_box(pool.take(len).ok_or_else(none)?));
                Ok(())
            })
            .map(Some)
        };
        let mut map = |round| {
            timed(from(round), count, &mut |_| {
                let (map, pinned) = mapped(len)?;
                is_pinned &= pinned;
                drop(black_box(map));
                Ok(())
            })
            .map(Some)
        };
        let sides: [super::Contender<'_>; 2] = [(REUSED, &mut take), (EACH_TIME, &mut map)];
        contest(&mut panels[0], index as f64, &label, plan, &mut { sides })?;
        let mut take = |round| {
            timed(from(round), count, &mut |number| {
                let mut buffer = pool.take(len).ok_or_else(none)?;
                transfer(&*file, false, place(number), &mut buffer)
            })
            .map(Some)
        };
        let mut map = |round| {
            timed(from(round), count, &mut |number| {
                transfer(&*file, false, place(number), &mut mapped(len)?.0)
            })
            .map(Some)
        };
        let sides: [super::Contender<'_>; 2] = [(REUSED, &mut take), (EACH_TIME, &mut map)];
        contest(&mut panels[1], index as f64, &label, plan, &mut { sides })?;
    }
    let pins = match is_pinned {
        true => "pinned with mlock, as a registration pins it",
        false => "touched, since the limit on locked memory (ulimit -l) is too low to pin it",
    };
    Ok(FigureData {
        panels: panels.into(),
        notes: vec![
            network_note(),
            format!(
                "No adapter registers anything here. What stands for it is what it is made of without one: memory is \
                 mapped, {pins}, and unmapped. An adapter's own tables come on top. One end does so; the paper's two."
            ),
        ],
    })
}

fn check(data: &FigureData) -> Verdict {
    let (alone, reads) = (panel_of(data, PREPARE_PANEL), panel_of(data, READ_PANEL));
    let mut judge = Judge::default();
    let label = |index: usize| size_label(SIZES[index]);
    let last = SIZES.len() - 1;
    for index in 0..=last {
        judge.at_least(&alone, &label(index), EACH_TIME, REUSED, 10.0);
    }
    judge.grows(&alone, EACH_TIME, &label(0), &label(last), 10.0);
    for index in 0..=last {
        judge.at_least(&reads, &label(index), EACH_TIME, REUSED, 1.1);
    }
    judge.verdict(
        "a message over the kernel's TCP takes some ten times as long as over InfiniBand, and pinning without an \
         adapter takes less than registering: with 4 KiB the one hides the other.",
    )
}

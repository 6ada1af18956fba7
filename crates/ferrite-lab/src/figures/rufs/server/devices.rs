//! Measures figure 14: the NVMe engine on one to six devices, each slowed to a stated latency and parallelism.
//!
//! Otherwise all devices would be the same memory, and two cores as busy with one as with six.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrite_blob::device::{Device, Memory, Op, Slow};
use ferrite_meta::MemoryStore;

use super::test_bed::{Ours, Server, Side, format};
use super::transfers::spread;
use super::{COUNTS, SMALL_PANEL};
use crate::data::{FigureData, Panel, point};
use crate::error::LabError;
use crate::figures::bars;
use crate::figures::rufs::{LARGE_BYTES, LARGE_PANEL, SMALL_BYTES, kind};
use crate::peers::page;
use crate::plan::Plan;
use crate::progress::Progress;

const DEVICE_BYTES: u64 = 512 << 20;
/// Operations that a device has under way.
const PARALLELISM: usize = 2;

/// Transfers of one length.
struct Load {
    len: usize,
    file_bytes: u64,
    /// Latency of an operation on a device.
    latency: Duration,
    /// Each has its own thread. At least as many as six devices can serve at once.
    files: u64,
    /// Transfers of each thread in a round.
    times: u64,
}

const SMALL: Load = Load {
    len: SMALL_BYTES,
    file_bytes: 4 << 20,
    latency: Duration::from_millis(2),
    files: 24,
    times: 4,
};
const LARGE: Load = Load {
    len: LARGE_BYTES,
    file_bytes: 8 << 20,
    latency: Duration::from_millis(30),
    files: 12,
    times: 1,
};

/// A device that is slow only during measurements.
struct Measured {
    memory: Arc<Memory>,
    slow: Slow<Arc<Memory>>,
    is_slow: Arc<AtomicBool>,
}

impl Device for Measured {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    fn writes_whole_pages(&self) -> bool {
        self.memory.writes_whole_pages()
    }

    fn run(&self, batch: &mut [Op<'_>]) -> ferrite_blob::Result<()> {
        match self.is_slow.load(Ordering::Relaxed) {
            true => self.slow.run(batch),
            false => self.memory.run(batch),
        }
    }
}

pub(super) fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panels = [SMALL_PANEL, LARGE_PANEL].map(|title| Panel {
        lines: true,
        ..bars(title, "devices for data", "throughput", "MB/s", false)
    });
    // A stated latency varies less than a machine does.
    let rounds = u64::from(plan.rounds.div_ceil(3));
    for (panel, load) in panels.iter_mut().zip([SMALL, LARGE]) {
        let len = load.len;
        for devices in COUNTS {
            let label = devices.to_string();
            progress.step(&format!("{} KiB, {label} devices", len / 1024));
            let is_slow = Arc::new(AtomicBool::new(false));
            let device = |index| {
                let memory = Arc::new(Memory::new(DEVICE_BYTES));
                format(&memory, index as usize)?;
                Ok(Box::new(Measured {
                    slow: Slow::new(Arc::clone(&memory), load.latency, PARALLELISM),
                    memory,
                    is_slow: Arc::clone(&is_slow),
                }) as Box<dyn Device>)
            };
            let devices_slowed: Result<_, LabError> = (0..devices).map(device).collect();
            let server = Server::new(Box::new(MemoryStore::new()), devices_slowed?)?;
            // The same number on each device.
            let files = load.files - load.files % devices;
            let mut sides = (0..files)
                .map(|number| {
                    let file = server.file(&number.to_string(), load.file_bytes)?;
                    Ok(Box::new(Ours::new(&file, len)?) as Box<dyn Side>)
                })
                .collect::<Result<Vec<_>, LabError>>()?;
            let count = files * load.times;
            is_slow.store(true, Ordering::Relaxed);
            for is_write in [false, true] {
                let mut samples = Vec::new();
                for round in 0..rounds {
                    let transfer = |side: &mut dyn Side, number: u64| {
                        let place = match len {
                            SMALL_BYTES => page(number, load.file_bytes),
                            _ => number / files * len as u64 % load.file_bytes,
                        };
                        side.transfer(is_write, place, len)
                    };
                    let us = spread(&mut sides, round * count, count, &transfer)?;
                    samples.push(len as f64 / us);
                }
                panel.push(kind(is_write), point(devices as f64, &label, &mut samples));
            }
            is_slow.store(false, Ordering::Relaxed);
        }
    }
    Ok(FigureData {
        panels: panels.into(),
        notes: vec![
            format!(
                "A device is memory, slowed to {} ms an operation for 4 KiB and {} ms one for 4 MiB, with \
                 {PARALLELISM} under way at most; a write may also be one of a blob's metadata. Metadata of files are \
                 in memory: reads and writes do not need them.",
                SMALL.latency.as_millis(),
                LARGE.latency.as_millis()
            ),
            format!(
                "{} threads (4 KiB) or {} (4 MiB) have a file each, and the files lie on the devices in turn; with \
                 five devices they are fewer, so that each device has as many. The engine's callers wait for devices \
                 themselves, where the paper's has a reactor for each.",
                SMALL.files, LARGE.files
            ),
        ],
    })
}

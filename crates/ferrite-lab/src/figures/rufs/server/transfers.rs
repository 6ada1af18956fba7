//! Measures figures 11 to 13 for the server alone: reads and writes of the NVMe engine, of ext4, and of a device.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use ferrite_buffers::Buffer;
use ferrite_vfs::{OpenFile, Position, SYSTEM, Written};
use rustix::fs::OFlags;

use super::test_bed::{Ours, Server, Side, TestBed};
use super::{DEPTHS, RAW, SERVER, SUBMITTED};
use crate::data::{FigureData, Panel};
use crate::error::LabError;
use crate::figures::bars;
use crate::figures::rufs::{
    Contender, EXT4_DIRECT, EXT4_SYNC, LARGE_BYTES, LARGE_PANEL, LATENCY_PANEL, Local, READ_PANEL, SMALL_BYTES,
    WRITE_PANEL, buffer, contest, count, kind,
};
use crate::peers::{FILE_BYTES, page};
use crate::plan::Plan;
use crate::progress::Progress;

/// A contender, once for each transfer that may be under way.
type Sides = (&'static str, Vec<Box<dyn Side>>);

/// The objects of reads and writes.
struct Contest {
    // In this order: the engine's file, the engine, its devices.
    file: Arc<dyn OpenFile>,
    _server: Server,
    ext4: Option<PathBuf>,
    raw: PathBuf,
    test_bed: TestBed,
}

impl Contest {
    /// All of them filled.
    fn new() -> Result<Contest, LabError> {
        let mut test_bed = TestBed::new()?;
        let server = test_bed.engine("pool", None, true)?;
        let file = server.file("data", FILE_BYTES)?;
        let ext4 = test_bed.ext4().map(|root| root.join("data"));
        if let Some(path) = &ext4 {
            fill(path)?;
        }
        let raw = test_bed.disk("raw", FILE_BYTES)?;
        fill(&raw)?;
        Ok(Contest {
            file,
            _server: server,
            ext4,
            raw,
            test_bed,
        })
    }

    /// All contenders for reads or writes of at most `len` bytes.
    fn sides(&self, is_write: bool, depth: u64, len: usize) -> Result<Vec<Sides>, LabError> {
        let ours: Result<_, LabError> = (0..depth)
            .map(|_| Ok(Box::new(Ours::new(&self.file, len)?) as Box<dyn Side>))
            .collect();
        let durable = OFlags::DIRECT | OFlags::DSYNC;
        let mut sides = vec![(SERVER, ours?), (RAW, opened(&self.raw, durable, depth, len)?)];
        if let Some(path) = &self.ext4 {
            sides.push((EXT4_DIRECT, opened(path, OFlags::DIRECT, depth, len)?));
            // The flag makes no difference for reads, which would come from the kernel's cache.
            if is_write {
                sides.push((EXT4_SYNC, opened(path, OFlags::SYNC, depth, len)?));
            }
        }
        Ok(sides)
    }

    /// Microseconds of each of `count` transfers of 4 KiB, `depth` of them under way; each completion begins the next.
    fn submitted(&self, is_write: bool, depth: u64, from: u64, count: u64) -> Result<f64, LabError> {
        let (sender, ends) = channel();
        let run = Arc::new(Submitted {
            file: Arc::clone(&self.file),
            is_write,
            next: AtomicU64::new(from),
            end: from + count,
            ends: sender,
        });
        let buffers: Vec<Buffer> = (0..depth).map(|_| buffer(SMALL_BYTES)).collect::<Result<_, _>>()?;
        let start = Instant::now();
        buffers.into_iter().for_each(|buffer| go_on(&run, buffer));
        for _ in 0..depth {
            let end = ends
                .recv()
                .map_err(|_| LabError::Wrong("a transfer never ended".into()))?;
            end.map_err(|error| LabError::Wrong(format!("a transfer: {error}")))?;
        }
        Ok(start.elapsed().as_nanos() as f64 / count as f64 / 1000.0)
    }

    /// Measures reads or writes of one length; `value` turns an operation's microseconds into the plotted value.
    fn measure(
        &self,
        plan: &Plan,
        panel: &mut Panel,
        (index, label): (f64, &str),
        (is_write, depth, len): (bool, u64, usize),
        value: &dyn Fn(f64) -> f64,
    ) -> Result<(), LabError> {
        let count = count(plan, if len == SMALL_BYTES { 1 } else { 50 }).next_multiple_of(depth);
        let place = |number: u64| match len {
            SMALL_BYTES => page(number, FILE_BYTES),
            _ => number * len as u64 % FILE_BYTES,
        };
        let mut sides = self.sides(is_write, depth, len)?;
        let mut works: Vec<_> = sides
            .iter_mut()
            .map(|(name, sides)| {
                let work = move |round: u64| {
                    let transfer = |side: &mut dyn Side, number| side.transfer(is_write, place(number), len);
                    let us = spread(sides, round * count, count, &transfer)?;
                    Ok::<_, LabError>(Some(value(us)))
                };
                (*name, work)
            })
            .collect();
        let mut contenders: Vec<Contender<'_>> = works
            .iter_mut()
            .map(|(name, work)| (*name, work as &mut dyn FnMut(u64) -> Result<Option<f64>, LabError>))
            .collect();
        let mut submitted = |round: u64| {
            let us = self.submitted(is_write, depth, round * count, count)?;
            Ok(Some(value(us)))
        };
        if panel.lines {
            contenders.push((SUBMITTED, &mut submitted));
        }
        contest(panel, index, label, plan, &mut contenders)
    }

    /// Reads and writes of one length, one at a time.
    fn each_alone(
        &self,
        plan: &Plan,
        progress: &mut dyn Progress,
        mut panel: Panel,
        len: usize,
        value: &dyn Fn(f64) -> f64,
    ) -> Result<FigureData, LabError> {
        for (index, is_write) in [false, true].into_iter().enumerate() {
            progress.step(kind(is_write));
            let place = (index as f64, kind(is_write));
            self.measure(plan, &mut panel, place, (is_write, 1, len), value)?;
        }
        Ok(FigureData {
            panels: vec![panel],
            notes: self.notes(),
        })
    }

    fn notes(&self) -> Vec<String> {
        let contenders = "\"The device alone\" is read and written with O_DIRECT and O_DSYNC. Metadata are in RocksDB \
             on a blob store of another device.";
        vec![self.test_bed.note(), contenders.into()]
    }
}

/// Transfers of one file, some of which are always under way.
struct Submitted {
    file: Arc<dyn OpenFile>,
    is_write: bool,
    next: AtomicU64,
    end: u64,
    ends: Sender<ferrite_vfs::Result<()>>,
}

/// Begins the next transfer, if any is left.
fn go_on(run: &Arc<Submitted>, buffer: Buffer) {
    let number = run.next.fetch_add(1, Ordering::Relaxed);
    if number >= run.end {
        // The receiver may have given up after another transfer failed.
        let _ = run.ends.send(Ok(()));
        return;
    }
    let again = Arc::clone(run);
    let ended = move |buffer: Buffer, result: ferrite_vfs::Result<usize>| match result {
        Ok(_) => go_on(&again, buffer),
        Err(error) => drop(again.ends.send(Err(error))),
    };
    let offset = page(number, FILE_BYTES);
    match run.is_write {
        false => run.file.submit_read(SYSTEM, offset, buffer, Box::new(ended)),
        true => {
            let ended =
                move |buffer, written: ferrite_vfs::Result<Written>| ended(buffer, written.map(|done| done.len_bytes));
            run.file
                .submit_write(SYSTEM, Position::At(offset).into(), buffer, Box::new(ended));
        }
    }
}

/// Fills a file or device.
fn fill(path: &Path) -> Result<(), LabError> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let chunk = vec![7; LARGE_BYTES];
    for _ in (0..FILE_BYTES).step_by(LARGE_BYTES) {
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}

/// Opens it once for each transfer that may be under way.
fn opened(path: &Path, flags: OFlags, depth: u64, len: usize) -> Result<Vec<Box<dyn Side>>, LabError> {
    let open = |_| {
        let local = match Local::open(path, flags, len) {
            // Files in memory may not support direct transfers, and need none.
            Err(LabError::System(error)) if error.kind() == ErrorKind::InvalidInput => {
                Local::open(path, flags.difference(OFlags::DIRECT), len)?
            }
            other => other?,
        };
        Ok(Box::new(local) as Box<dyn Side>)
    };
    (0..depth).map(open).collect()
}

/// Microseconds of each of `count` transfers; each side makes its share, all at once.
pub(super) fn spread(
    sides: &mut [Box<dyn Side>],
    from: u64,
    count: u64,
    transfer: &(dyn Fn(&mut dyn Side, u64) -> Result<(), LabError> + Sync),
) -> Result<f64, LabError> {
    let step = sides.len();
    let share = |side: &mut dyn Side, first: u64| {
        (from + first..from + count)
            .step_by(step)
            .try_for_each(|number| transfer(side, number))
    };
    let start = match sides {
        [side] => {
            let start = Instant::now();
            share(&mut **side, 0)?;
            start
        }
        _ => {
            // The start of the threads is not measured.
            let barrier = Barrier::new(step + 1);
            std::thread::scope(|scope| {
                let works: Vec<_> = sides
                    .iter_mut()
                    .zip(0..)
                    .map(|(side, first)| {
                        let (barrier, share) = (&barrier, &share);
                        scope.spawn(move || {
                            barrier.wait();
                            share(&mut **side, first)
                        })
                    })
                    .collect();
                barrier.wait();
                let start = Instant::now();
                for work in works {
                    work.join()
                        .map_err(|_| LabError::Wrong("a thread that transfers has panicked".into()))??;
                }
                Ok::<_, LabError>(start)
            })?
        }
    };
    Ok(start.elapsed().as_nanos() as f64 / count as f64 / 1000.0)
}

pub(super) fn run_latency(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let panel = bars(LATENCY_PANEL, "operation", "latency", "us", true);
    Contest::new()?.each_alone(plan, progress, panel, SMALL_BYTES, &|us| us)
}

pub(super) fn run_large(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let panel = bars(LARGE_PANEL, "operation", "throughput", "MB/s", false);
    Contest::new()?.each_alone(plan, progress, panel, LARGE_BYTES, &|us| LARGE_BYTES as f64 / us)
}

pub(super) fn run_small(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let all = Contest::new()?;
    let mut panels = [READ_PANEL, WRITE_PANEL].map(|title| Panel {
        lines: true,
        ..bars(title, "requests under way", "throughput", "MB/s", false)
    });
    for (panel, is_write) in panels.iter_mut().zip([false, true]) {
        for depth in DEPTHS {
            let label = depth.to_string();
            progress.step(&format!("{}, {label} under way", kind(is_write)));
            let value = |us: f64| SMALL_BYTES as f64 / us;
            let what = (is_write, depth, SMALL_BYTES);
            all.measure(plan, panel, (depth as f64, &label), what, &value)?;
        }
    }
    let mut notes = all.notes();
    notes.push(
        "Each request under way is a thread that waits for it, for every contender alike; the file is one. \"Submitted\" \
         are requests of one thread that waits for none of them: each begins the next when it ends."
            .into(),
    );
    Ok(FigureData {
        panels: panels.into(),
        notes,
    })
}

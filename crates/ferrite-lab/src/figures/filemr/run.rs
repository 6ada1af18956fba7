//! The measurements.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use ferrite_fs::Mapping;
use ferrite_measure::mix;
use ferrite_mr::Run;
use ferrite_roce::memory::{Memory, Message};
use ferrite_vfs::regions::{Adapter, PageRun};
use ferrite_vfs::{Attr, FileSystem, ROOT_INO, SYSTEM};

use super::{
    BOUND, DEFRAGMENTED, ENTRIES_PANEL, FILEMR, HITS_PANEL, LARGE, LATENCY_PANEL, LOCAL, LOG_PANEL, ONE, PAGES_2M,
    PAGES_4K, PARTS, PARTS_PANEL, PROGRAMS, RANGES, RAW, REQUESTS, SIZES, TIME_PANEL,
};
use crate::data::{FigureData, Panel, point};
use crate::error::LabError;
use crate::figures::bars;
use crate::mixes::Mix;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::rdma::translation::compare;
use crate::rdma::{RawWrites, Served, Service, layout, raw_round_trip_ns, workloads};

const PAGE_BYTES: u64 = 4096;
const HUGE_PAGE_BYTES: u64 = 2 << 20;
const WRITE_BYTES: usize = 1024;
/// Repetitions between two clock reads of an operation that is too short for a clock.
const BATCH: usize = 64;
/// Files of a mix, for each file that the plan has for other figures: too many for a cache of pages.
const MIX_FILES: u32 = 4;

fn size_label(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

fn out_of_range(error: ferrite_mr::OutOfRange) -> LabError {
    LabError::Wrong(error.to_string())
}

/// The longest file that the engine binds for a plan.
fn bound_bytes_max(plan: &Plan) -> u64 {
    u64::from(plan.large_file_pages) * PAGE_BYTES * if plan.name == "full" { 2 } else { 1 }
}

pub(super) fn registration(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut time = Panel {
        lines: true,
        ..bars(TIME_PANEL, "size", "time", "us", true)
    };
    let mut entries = Panel {
        lines: true,
        ..bars(ENTRIES_PANEL, "size", "entries", "entries", true)
    };
    let longest = bound_bytes_max(plan);
    // A removed file may wait for the checkpoint.
    let engine = layout::sparse_engine(longest * 2 + (256 << 20), Mapping::Extent)?;
    for (index, bytes) in SIZES.into_iter().enumerate() {
        let (x, label) = (index as f64, size_label(bytes));
        progress.step(&label);
        for (name, page_bytes) in [(PAGES_4K, PAGE_BYTES), (PAGES_2M, HUGE_PAGE_BYTES)] {
            let pages = bytes.div_ceil(page_bytes) as u32;
            let file = [vec![Run { page: 0, pages }]];
            let mut samples = Vec::new();
            let mut of_ranges = Vec::new();
            for _ in 0..=plan.rounds {
                let both = compare::registration(&file).map_err(out_of_range)?;
                samples.push(both.pages.took.as_nanos() as f64 / 1e3);
                of_ranges.push(both.ranges.took.as_nanos() as f64 / 1e3);
            }
            time.push(name, point(x, label.clone(), &mut samples[1..]));
            entries.push(name, point(x, label.clone(), &mut [f64::from(pages)]));
            if page_bytes == PAGE_BYTES {
                time.push(RANGES, point(x, label.clone(), &mut of_ranges[1..]));
                entries.push(RANGES, point(x, label.clone(), &mut [1.0]));
            }
        }
        if bytes <= longest {
            let name = index.to_string();
            let ino = layout::written(&engine, &name, bytes)?;
            let mut samples = Vec::new();
            for _ in 0..=plan.rounds {
                samples.push(layout::bind(&engine, ino, layout::WHOLE)?.took.as_nanos() as f64 / 1e3);
            }
            time.push(BOUND, point(x, label, &mut samples[1..]));
            engine.unlink(SYSTEM, ROOT_INO, name.as_bytes())?;
        }
    }
    Ok(FigureData {
        panels: vec![time, entries],
        notes: vec![
            "Tables in memory are filled, with the region in one piece. Nothing is pinned: the pages of a pool in \
             memory stay where they are."
                .into(),
            format!(
                "{BOUND}: a written file of the engine (mapping extent) is bound and its runs are told, with the \
                 durable record that says so; up to {}.",
                size_label(longest)
            ),
        ],
    })
}

fn programs(plan: &Plan) -> [Box<dyn Fn() -> Result<workloads::Workload, LabError>>; 4] {
    let (files, accesses, seed) = (plan.mix_files * MIX_FILES, plan.hot_operations, plan.seed);
    let log_bytes = u64::from(plan.file_pages) * PAGE_BYTES / 16;
    [
        Box::new(move || workloads::mix(Mix::Fileserver, files, accesses, seed)),
        Box::new(move || workloads::mix(Mix::Varmail, files, accesses, seed)),
        Box::new(move || workloads::redis(log_bytes, seed)),
        Box::new(workloads::sqlite),
    ]
}

pub(super) fn fragmentation(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut time = bars(TIME_PANEL, "program", "time", "us", true);
    let mut entries = bars(ENTRIES_PANEL, "program", "entries", "entries", true);
    let mut notes = Vec::new();
    for (index, (label, program)) in PROGRAMS.into_iter().zip(programs(plan)).enumerate() {
        progress.step(label);
        let work = program()?;
        let x = index as f64;
        let (mut ranges, mut pages) = (Vec::new(), Vec::new());
        for _ in 0..=plan.rounds {
            let both = compare::registration(&work.files).map_err(out_of_range)?;
            ranges.push(both.ranges.took.as_nanos() as f64 / 1e3);
            pages.push(both.pages.took.as_nanos() as f64 / 1e3);
        }
        time.push(RANGES, point(x, label, &mut ranges[1..]));
        time.push(PAGES_4K, point(x, label, &mut pages[1..]));
        let both = compare::registration(&work.files).map_err(out_of_range)?;
        let defragmented = compare::registration(&work.defragmented).map_err(out_of_range)?;
        entries.push(RANGES, point(x, label, &mut [both.ranges.entries as f64]));
        entries.push(DEFRAGMENTED, point(x, label, &mut [defragmented.ranges.entries as f64]));
        entries.push(PAGES_4K, point(x, label, &mut [both.pages.entries as f64]));
        notes.push(format!("{label}: {} files.", work.files.len()));
    }
    notes.push(format!(
        "The files are bound on the mapping extent when the program is done; {DEFRAGMENTED}: bound with the wish that \
         their pages be moved together first, which the paper's file system does not offer."
    ));
    Ok(FigureData {
        panels: vec![time, entries],
        notes,
    })
}

pub(super) fn hits(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panel = bars(HITS_PANEL, "program", "hits", "% of accesses", false);
    let bytes = u64::from(plan.file_pages) * PAGE_BYTES / if plan.name == "full" { 1 } else { 4 };
    let mut notes = vec![format!("The large files have {}.", size_label(bytes))];
    for (index, label) in LARGE.into_iter().chain(PROGRAMS).enumerate() {
        progress.step(label);
        let work = match index {
            0 | 1 => workloads::large(bytes, index == 1, plan.hot_operations, plan.seed)?,
            _ => programs(plan)[index - LARGE.len()]()?,
        };
        let both = compare::replay(&work.files, &work.accesses).map_err(out_of_range)?;
        for (name, of) in [(RANGES, both.ranges), (PAGES_4K, both.pages)] {
            let percent = 100.0 * of.counters.hit_rate();
            panel.push(name, point(index as f64, label, &mut [percent]));
        }
        let runs: usize = work.files.iter().map(Vec::len).sum();
        notes.push(format!(
            "{label}: {} accesses to {} files in {runs} runs.",
            work.accesses.len(),
            work.files.len()
        ));
    }
    notes.push("Caches are empty at first, and have 4096 entries in sets of four.".into());
    Ok(FigureData {
        panels: vec![panel],
        notes,
    })
}

/// An adapter that never gets a request: measuring an engine's calls for guards requires one.
struct Silent;

impl Adapter for Silent {
    fn revoke(&self, _first: u32, _end: u32) {}

    fn publish(&self, _runs: &[PageRun]) {}

    fn resize(&self, _size: u64) {}

    fn attributes_changed(&self, _attr: &Attr) {}

    fn unbound(&self) {}
}

/// Nanoseconds of each call, for `count` of them.
fn each_ns(count: usize, mut call: impl FnMut(u64) -> Result<(), LabError>) -> Result<f64, LabError> {
    let began = Instant::now();
    for number in 0..count as u64 {
        call(number)?;
    }
    Ok(began.elapsed().as_nanos() as f64 / count as f64)
}

pub(super) fn latency(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut all = bars(LATENCY_PANEL, "", "latency", "us", false);
    let mut parts = bars(PARTS_PANEL, "part", "time", "us", false);
    let file_bytes = u64::from(plan.file_pages) * PAGE_BYTES / 4;
    let count = (plan.hot_operations / 50).max(20) as usize;
    let mut samples: [Vec<f64>; 4] = Default::default();
    let mut of_parts: [Vec<f64>; PARTS.len()] = Default::default();
    progress.step("packets");
    let served = Served::new(Mapping::default(), file_bytes)?;
    let pieces = Pieces::new(&served)?;
    let mut raw = RawWrites::new(&served)?;
    for round in 0..=plan.rounds {
        let ours = raw.median_ns(WRITE_BYTES, count)? / 1e3;
        let raw = raw_round_trip_ns(WRITE_BYTES, count)? / 1e3;
        let [translation, copy, fence] = pieces.measure(count)?.map(|ns| ns / 1e3);
        if round == 0 {
            continue;
        }
        samples[0].push(ours);
        samples[3].push(raw);
        let rest = (ours - raw - translation - copy - fence).max(0.001);
        for (part, value) in of_parts.iter_mut().zip([raw, translation, copy, fence, rest]) {
            part.push(value);
        }
    }
    drop(raw);
    drop(served);
    progress.step("requests");
    let service = Service::new(Mapping::default(), 2 * file_bytes + (64 << 20))?;
    let [remote, requests] = service.remote("remote", file_bytes / 2)?;
    let local = service.local("local", file_bytes / 2)?;
    let data = [4; WRITE_BYTES];
    let place = |number: u64| mix(number) % (file_bytes / 2 / WRITE_BYTES as u64) * WRITE_BYTES as u64;
    let failed = |error: ferrite_client::rdma::RemoteError| LabError::Rdma(error.to_string());
    for round in 0..=plan.rounds {
        let by_request = each_ns(count, |number| requests.write(place(number), &data).map_err(failed))? / 1e3;
        let here = each_ns(count, |number| {
            local.write_at(SYSTEM, place(number), &data).map(drop)?;
            Ok(())
        })? / 1e3;
        if round > 0 {
            samples[1].push(by_request);
            samples[2].push(here);
        }
    }
    for file in [remote, requests] {
        file.close().map_err(failed)?;
    }
    for (name, samples) in [FILEMR, REQUESTS, LOCAL, RAW].into_iter().zip(&mut samples) {
        all.push(name, point(0.0, ONE, samples));
    }
    for (index, (label, samples)) in PARTS.into_iter().zip(&mut of_parts).enumerate() {
        parts.push(FILEMR, point(index as f64, label, samples));
    }
    Ok(FigureData {
        panels: vec![all, parts],
        notes: vec![
            format!(
                "{FILEMR}: packets made beforehand, to a bound file of the engine behind the adapter, until the \
                 acknowledgement; {RAW}: datagrams as long, which nobody looks at. Both ends look without sleeping."
            ),
            format!(
                "{REQUESTS}: the same write through the server over TCP, to a bound file; {LOCAL}: the engine's write, \
                 atomic and by copy."
            ),
            "The paper's peers (LITE, Mojim, Orion) are not here; what they have in common is that a server is asked."
                .into(),
            "Parts are measured alone and at the same places: the wire is the raw datagram, \"packet and answer\" \
             what is left of the whole. The copy goes past the caches, so that what is left to write back is its end."
                .into(),
        ],
    })
}

/// The parts of a remote write, each called on its own.
struct Pieces {
    memory: parking_lot::Mutex<ferrite_mr::FileMemory>,
    requested: Message,
    region: Arc<dyn ferrite_vfs::regions::Region>,
    runs: Vec<PageRun>,
    file_bytes: u64,
}

impl Pieces {
    /// The translation uses the served file; the rest uses another one, which has the same length and layout in the
    /// same pool.
    fn new(served: &Served) -> Result<Pieces, LabError> {
        let engine = served.engine();
        let file_bytes = served.file_bytes() / 8;
        let ino = layout::written(engine, "pieces", file_bytes)?;
        let runs = layout::bind(engine, ino, layout::WHOLE)?.runs;
        let regions = engine
            .regions()
            .ok_or_else(|| LabError::Wrong("an engine without regions".into()))?;
        let region = regions.bind(SYSTEM, ino, layout::WHOLE, Arc::new(Silent))?;
        let (memory, qpn) = served.memory();
        Ok(Pieces {
            memory: parking_lot::Mutex::new(memory),
            requested: Message {
                qpn,
                number: 0,
                key: served.key(),
                at: 0,
                len_bytes: WRITE_BYTES as u32,
            },
            region,
            runs,
            file_bytes,
        })
    }

    /// Nanoseconds of key, guard and translation; of the copy; of the fence after it.
    fn measure(&self, count: usize) -> Result<[f64; 3], LabError> {
        let mut memory = self.memory.lock();
        let places = self.file_bytes / WRITE_BYTES as u64;
        let translation = each_ns(count * BATCH, |number| {
            let at = mix(number) % places * WRITE_BYTES as u64;
            // A READ's check is all of a packet but the copy and the fence.
            let allowed = memory.may_read(&Message { at, ..self.requested });
            allowed.map_err(|fault| LabError::Rdma(fault.to_string()))
        })?;
        let data = [8; WRITE_BYTES];
        let pages: Vec<(u32, u32)> = (0..count as u64)
            .filter_map(|number| {
                let at = mix(number) % places * WRITE_BYTES as u64;
                let page = (at / PAGE_BYTES) as u32;
                let run = self.runs[..self.runs.partition_point(|run| run.at <= page)].last()?;
                Some((run.page? + (page - run.at), (at % PAGE_BYTES) as u32))
            })
            .collect();
        if pages.is_empty() {
            return Err(LabError::Wrong("the file that is copied to has no pages".into()));
        }
        let place = |number: u64| pages[number as usize % pages.len()];
        let copy = each_ns(count, |number| {
            let (page, within) = place(number);
            self.region.store(page, within, black_box(&data));
            Ok(())
        })?;
        self.region.fence()?;
        let both = each_ns(count, |number| {
            let (page, within) = place(number);
            self.region.store(page, within, black_box(&data));
            Ok(self.region.fence()?)
        })?;
        Ok([translation, copy, (both - copy).max(1.0)])
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        // The pool is dropped with the figure.
        let _ = self.region.unbind();
    }
}

pub(super) fn log(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut panel = bars(LOG_PANEL, "", "latency", "us", false);
    progress.step(ONE);
    let service = Service::new(Mapping::default(), 256 << 20)?;
    let [verbs, requests] = service.remote("remote", PAGE_BYTES)?;
    let local = service.local("local", PAGE_BYTES)?;
    let count = (plan.hot_operations / 50).max(20) as usize;
    let entry = [2; 64];
    let failed = |error: ferrite_client::rdma::RemoteError| LabError::Rdma(error.to_string());
    let mut samples: [Vec<f64>; 4] = Default::default();
    for round in 0..=plan.rounds {
        let times = [
            each_ns(count, |_| verbs.append(&entry).map_err(failed))?,
            each_ns(count, |_| requests.append(&entry).map_err(failed))?,
            each_ns(count, |_| {
                local.append(SYSTEM, &entry).map(drop)?;
                Ok(())
            })?,
            raw_round_trip_ns(entry.len(), count)?,
        ];
        if round > 0 {
            samples
                .iter_mut()
                .zip(times)
                .for_each(|(samples, ns)| samples.push(ns / 1e3));
        }
    }
    for file in [verbs, requests] {
        file.close().map_err(failed)?;
    }
    for (name, samples) in [FILEMR, REQUESTS, LOCAL, RAW].into_iter().zip(&mut samples) {
        panel.push(name, point(0.0, ONE, samples));
    }
    Ok(FigureData {
        panels: vec![panel],
        notes: vec![
            format!(
                "{FILEMR}: an append by verbs, by the client library; {REQUESTS}: the same through the server over \
                 TCP; both to one file. {LOCAL}: the engine's append. Each is durable when it returns."
            ),
            format!("{RAW}: a datagram as long and an answer, between two that look without sleeping: the wire."),
        ],
    })
}

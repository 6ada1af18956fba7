//! Files as memory regions: the cost of the adapter in software, its tables and a bound file.
//!
//! Tables of ranges compare with tables of pages, in memory alone. Packets compare with datagrams that no program
//! inspects, and appends by verbs with appends by requests. Where a goal is a time, the peer is that time. The key
//! always gives access to a file of an engine in memory.

use std::hint::black_box;

use ferrite_fs::Mapping;
use ferrite_lab::rdma::translation::compare;
use ferrite_lab::rdma::{RawWrites, Served, Service, layout, raw_round_trip_ns, workloads};
use ferrite_measure::median;
use ferrite_mr::Run;
use ferrite_vfs::regions::Binding;

use super::contest::{Contest, timed};
use super::{Circumstances, Effort, Output, Row};
use crate::{FAILED, Failure};
use ferrite_vfs::volume::human_bytes as human;

const REGISTER: &str = "mr_register";
const HIT_RATE: &str = "mr_hit_rate";
const WRITE: &str = "mr_write_1k";
const APPEND: &str = "mr_append_64b";
const WRITE_PAGES: &str = "mr_write_4k";
const BIND: &str = "mr_bind";
const PUBLISH: &str = "mr_publish";
/// Names of the rows.
pub(crate) const NAMES: &[&str] = &[REGISTER, HIT_RATE, WRITE, APPEND, WRITE_PAGES, BIND, PUBLISH];

const PAGE_BYTES: u64 = 4096;
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Most time that a WRITE of 1 KiB may take beyond the raw round trip.
const ADDED_NS: f64 = 1_500.0;
/// Most time of the answering core per page: 150,000 pages a second.
const PAGE_NS: f64 = 1e9 / 150_000.0;
/// Most time to bind a file, and the increase for each run.
const BIND_NS: (f64, f64) = (1e6, 1e3);

/// Runs the group.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    let is_quick = effort.file_bytes < 1 << 30;
    let bench = Bench { effort, is_quick };
    if out.wants(REGISTER) {
        bench.registration(out)?;
    }
    if out.wants(HIT_RATE) {
        bench.hit_rates(out)?;
    }
    if out.wants(WRITE) || out.wants(WRITE_PAGES) {
        bench.packets(out)?;
    }
    if out.wants(APPEND) {
        bench.appends(out)?;
    }
    if out.wants(BIND) || out.wants(PUBLISH) {
        Mapping::ALL
            .iter()
            .try_for_each(|&mapping| bench.binding(mapping, out))?;
    }
    Ok(())
}

struct Bench {
    effort: Effort,
    is_quick: bool,
}

impl Bench {
    fn contest(&self, name: &'static str, against: &'static str, contents: String) -> Contest {
        Contest {
            group: "mr",
            name,
            against,
            rounds: self.effort.rounds,
            contents: Some(contents),
            circumstances: Circumstances {
                page_bytes: PAGE_BYTES,
                fill_percent: 50,
                cache: "larger than the caches",
                threads: 1,
                placement: "any".into(),
            },
        }
    }

    /// A contiguous file, as one range and as pages of two sizes.
    fn registration(&self, out: &mut Output) -> Result<(), Failure> {
        let file_bytes: u64 = if self.is_quick { 1 << 30 } else { 4 << 30 };
        for (against, page_bytes, goal) in [
            ("pages of 4 KiB", PAGE_BYTES, "at most 0.0033"),
            ("pages of 2 MiB", HUGE_PAGE_BYTES, "none"),
        ] {
            let pages = (file_bytes / page_bytes) as u32;
            let file = [vec![Run { page: 0, pages }]];
            let both = || compare::registration(&file).map_err(|error| Failure::new(FAILED, error.to_string()));
            let entries = both()?;
            let contents = format!(
                "goal {goal}; {}, {} and {} entries",
                human(file_bytes),
                entries.ranges.entries,
                entries.pages.entries
            );
            let ours = &mut || Ok(both()?.ranges.took.as_nanos() as f64);
            let theirs = &mut || Ok(both()?.pages.took.as_nanos() as f64);
            self.contest(REGISTER, against, contents).run(ours, theirs, out)?;
        }
        Ok(())
    }

    /// Large files: the ratio is that of misses not made, so below 1 is better as everywhere.
    fn hit_rates(&self, out: &mut Output) -> Result<(), Failure> {
        let file_bytes = self.effort.file_bytes.max(128 << 20);
        let accesses = self.effort.operations as u32 * 10;
        for (against, is_aged) in [("page cache, young pool", false), ("page cache, aged pool", true)] {
            let work = workloads::large(file_bytes, is_aged, accesses, 1)?;
            let replay = || {
                let both = compare::replay(&work.files, &work.accesses);
                both.map_err(|error| Failure::new(FAILED, error.to_string()))
            };
            let (mut our_ns, mut their_ns) = (Vec::new(), Vec::new());
            for _ in 0..self.effort.rounds {
                let both = replay()?;
                let ns = |of: &compare::Replay| of.took.as_nanos() as f64 / f64::from(accesses);
                our_ns.push(ns(&both.ranges));
                their_ns.push(ns(&both.pages));
            }
            let both = replay()?;
            let [ours, theirs] = [both.ranges, both.pages].map(|of| of.counters.hit_rate());
            let contents = format!(
                "goal at most 0.26; the ratio is their hits to ours: {:.2} and {:.2} % of random pages of {} in {} \
                 runs",
                100.0 * theirs,
                100.0 * ours,
                human(file_bytes),
                work.files.iter().map(Vec::len).sum::<usize>()
            );
            let row = self.contest(HIT_RATE, against, contents);
            out.row(&Row {
                ratio: theirs / ours,
                ..row.row(median(&our_ns), median(&their_ns))
            })?;
        }
        Ok(())
    }

    /// WRITEs to a bound file.
    fn packets(&self, out: &mut Output) -> Result<(), Failure> {
        let served = Served::new(super::options().mapping, self.effort.file_bytes)?;
        let count = self.effort.operations / 4;
        if out.wants(WRITE) {
            let mut raw = RawWrites::new(&served)?;
            let mut added = Vec::new();
            let (mut our_ns, mut their_ns) = (Vec::new(), Vec::new());
            for round in 0..=self.effort.rounds {
                let (ours, theirs) = (raw.median_ns(1024, count)?, raw_round_trip_ns(1024, count)?);
                if round > 0 {
                    our_ns.push(ours);
                    their_ns.push(theirs);
                    added.push(ours - theirs);
                }
            }
            let contents = format!(
                "goal: adds at most 1500 ns; adds {:.0} ns to a round trip of as many bytes",
                median(&added)
            );
            let row = self.contest(WRITE, "raw UDP", contents);
            out.row(&row.row(median(&our_ns), median(&their_ns)))?;
            let contents = "goal at most 1; what the responder adds".to_owned();
            let row = self.contest(WRITE, "1.5 us", contents);
            out.row(&row.row(median(&added).max(1.0), ADDED_NS))?;
        }
        if out.wants(WRITE_PAGES) {
            let mut initiator = served.initiator()?;
            let count = self.effort.operations as u64 * 4;
            let mut rates = Vec::new();
            for round in 0..=self.effort.rounds {
                let ns = timed(count, || Ok(served.write_pages(&mut initiator, count)?))?;
                if round > 0 {
                    rates.push(ns);
                }
            }
            let ns = median(&rates);
            let contents = format!(
                "goal at most 1; {:.0} writes a second, 64 under way, one core answers",
                1e9 / ns
            );
            let row = self.contest(WRITE_PAGES, "150,000 a second", contents);
            out.row(&row.row(ns, PAGE_NS))?;
        }
        Ok(())
    }

    /// Small appends to a file of a server.
    fn appends(&self, out: &mut Output) -> Result<(), Failure> {
        let service = Service::new(super::options().mapping, 256 << 20)?;
        let [verbs, requests] = service.remote("log", PAGE_BYTES)?;
        let count = (self.effort.operations / 4) as u64;
        let remote = |error: ferrite_client::rdma::RemoteError| Failure::new(FAILED, error.to_string());
        let entry = [6; 64];
        let ours = &mut || {
            timed(count, || {
                (0..count).try_for_each(|_| verbs.append(&entry).map_err(remote))
            })
        };
        let theirs = &mut || {
            timed(count, || {
                (0..count).try_for_each(|_| requests.append(&entry).map_err(remote))
            })
        };
        let contents = "goal at most 0.5; to the same file of a server over loopback".to_owned();
        self.contest(APPEND, "append by request", contents)
            .run(ours, theirs, out)?;
        for file in [verbs, requests] {
            file.close().map_err(remote)?;
        }
        Ok(())
    }

    /// A file of few runs: the time limit does not depend on its length.
    fn binding(&self, mapping: Mapping, out: &mut Output) -> Result<(), Failure> {
        let (written, reserved) = match self.is_quick {
            true => (32 << 20, 32 << 20),
            false if memory_available() > 12 << 30 => (8 << 30, 1 << 30),
            false => (1 << 30, 1 << 30),
        };
        let engine = layout::sparse_engine(written + written / 16 + reserved + (256 << 20), mapping)?;
        for (what, bytes, ino) in [
            ("written", written, layout::written(&engine, "written", written)?),
            ("reserved", reserved, layout::reserved(&engine, "reserved", reserved)?),
        ] {
            for (name, whole, goal) in [(BIND, false, "at most 1"), (PUBLISH, true, "none")] {
                if !out.wants(name) {
                    continue;
                }
                let mut times = Vec::new();
                let mut runs = 0;
                for _ in 0..self.effort.rounds {
                    let bound = layout::bind(&engine, ino, Binding { whole, ..layout::WHOLE })?;
                    runs = black_box(bound.runs.len());
                    times.push(bound.took.as_nanos() as f64);
                }
                let contents = format!("goal {goal}; {mapping}, {} {what}, {runs} runs told", human(bytes));
                let row = self.contest(name, "1 ms + 1 us a run", contents);
                out.row(&row.row(median(&times), BIND_NS.0 + BIND_NS.1 * runs as f64))?;
            }
        }
        Ok(())
    }
}

/// Bytes of memory available without swapping; 0 if the system does not say.
fn memory_available() -> u64 {
    let said = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = said.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

//! `ferrite-lab bench core --explain`: where single operations spend their time, by span.
//!
//! The engine has probes only if the program was built with the feature `spans`; [`ferrite_pm::profile`] says what they
//! measure. Each operation is measured with and without probes in turn, which shows their cost: `sum` is the total of
//! the spans without the probes' own cost, `whole` is the same operation without probes.

use std::cell::Cell;
use std::sync::Arc;

use ferrite_fs::{Engine, MountOptions};
use ferrite_lab::{FILE_NODE, new_file};
use ferrite_measure::median;
use ferrite_pm::Counters;
use ferrite_pm::profile::{self, Clock, Profile, ProfileSpan};
use ferrite_vfs::{FileSystem, OpenFile, OpenMode, ROOT_INO, SYSTEM};

use super::hdpm::scatter;
use super::operations::{FILL_PERCENT, pool};
use super::{Effort, Output, Work, page, say, say_json, time, whole};
use crate::{Failure, USAGE};

/// Names of the operations.
const NAMES: [&str; 6] = [
    "overwrite_4k",
    "read_4k",
    "overwrite_8b",
    "read_4k_logged",
    "append_64b",
    "create",
];

/// One span of an operation.
#[derive(Debug, serde::Serialize)]
struct Part {
    span: &'static str,
    ns: f64,
    /// How often it is entered.
    visits: f64,
}

/// The spans of one operation; times and counts are per operation.
#[derive(Debug, serde::Serialize)]
struct Explained {
    group: &'static str,
    name: &'static str,
    spans: Vec<Part>,
    /// Sum of the spans.
    sum_ns: f64,
    /// Without probes, in the same run.
    whole_ns: f64,
    /// With probes, nothing subtracted.
    probed_ns: f64,
    /// Cost of one border between two spans, and the borders of an operation.
    border_ns: f64,
    borders: f64,
    fences: f64,
    lines_written_back: f64,
    bytes_streamed: f64,
    page_bytes: u64,
    fill_percent: u32,
}

struct Bench<'a> {
    engine: &'a Engine,
    effort: Effort,
    clock: Clock,
    out: &'a mut Output,
}

/// Runs it.
pub(crate) fn run(effort: Effort, out: &mut Output) -> Result<(), Failure> {
    if !profile::IS_BUILT_IN {
        let text = "this program has no probes in its engine; build it with `--features spans`, as `make explain` does";
        return Err(Failure::new(USAGE, text));
    }
    if let Some(only) = out.only.as_deref().filter(|only| !NAMES.contains(only)) {
        let text = format!("--only {only}: not explained; there are {}", NAMES.join(", "));
        return Err(Failure::new(USAGE, text));
    }
    let bytes = effort.file_bytes;
    let options = MountOptions::default().cleaner(false).merge_read_entries(0);
    let (engine, made) = pool(bytes, 1, &options)?;
    let mode = OpenMode {
        no_atime: true,
        ..OpenMode::read_write()
    };
    let file = engine.open(SYSTEM, made[0], mode)?;
    let mut bench = Bench {
        engine: &engine,
        effort,
        clock: profile::calibrate(),
        out,
    };
    let block = [7; 4096];
    bench.explain("overwrite_4k", &mut |n| {
        whole(file.write_at(SYSTEM, page(n, bytes), &block)?, 4096)
    })?;
    let mut buffer = [0; 4096];
    bench.explain("read_4k", &mut |n| {
        whole(file.read_at(SYSTEM, page(n, bytes), &mut buffer)?, 4096)
    })?;
    bench.explain("overwrite_8b", &mut |n| {
        whole(file.write_at(SYSTEM, page(n, bytes) + 1000, &block[..8])?, 8)
    })?;
    engine.clean(usize::MAX)?;
    scatter(&file, bytes)?;
    bench.explain("read_4k_logged", &mut |n| {
        whole(file.read_at(SYSTEM, n * 4096 % bytes, &mut buffer)?, 4096)
    })?;
    engine.clean(usize::MAX)?;
    bench.appends(&block[..64])?;
    engine.clean(usize::MAX)?;
    bench.creates()
}

impl Bench<'_> {
    /// A file for each half of a round, so that files keep one size.
    fn appends(&mut self, data: &[u8]) -> Result<(), Failure> {
        let engine = self.engine.clone();
        let (operations, mut number) = (self.effort.operations as u64, 0);
        let mut file: Option<Arc<dyn OpenFile>> = None;
        self.explain("append_64b", &mut |n| {
            if n.is_multiple_of(operations) || file.is_none() {
                file = None;
                let _ = engine.unlink(SYSTEM, ROOT_INO, format!("append-{number}").as_bytes());
                number += 1;
                let ino = new_file(&engine, ROOT_INO, &format!("append-{number}"))?;
                file = Some(engine.open(SYSTEM, ino, OpenMode::read_write())?);
            }
            let written = file
                .as_ref()
                .map_or(Ok(0), |file| file.append(SYSTEM, data).map(|done| done.len_bytes));
            whole(written?, data.len())
        })
    }

    /// Files of a round are removed before the next, unmeasured.
    fn creates(&mut self) -> Result<(), Failure> {
        let engine = self.engine.clone();
        let dir = engine.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755)?.ino;
        let made = Cell::new(0u64);
        let name = |n: u64| format!("new{n}");
        let effort = self.effort;
        // As many as a directory of some blocks holds.
        self.effort.operations = effort.operations.min(4000);
        let result = self.explain_with(
            "create",
            &mut || (0..made.replace(0)).try_for_each(|n| Ok(engine.unlink(SYSTEM, dir, name(n).as_bytes())?)),
            &mut |_| {
                let n = made.replace(made.get() + 1);
                Ok(engine.mknod(SYSTEM, dir, name(n).as_bytes(), &FILE_NODE).map(drop)?)
            },
        );
        self.effort = effort;
        result
    }

    fn explain(&mut self, name: &'static str, work: Work<'_>) -> Result<(), Failure> {
        self.explain_with(name, &mut || Ok(()), work)
    }

    /// Measures without and with probes, in turn; `prepare` comes before each and does not count.
    fn explain_with(
        &mut self,
        name: &'static str,
        prepare: &mut dyn FnMut() -> Result<(), Failure>,
        work: Work<'_>,
    ) -> Result<(), Failure> {
        if self.out.only.as_deref().is_some_and(|only| only != name) {
            return Ok(());
        }
        let operations = self.effort.operations as u64;
        let (mut plain, mut probed) = (Vec::new(), Vec::new());
        let mut profiles: Vec<Profile> = Vec::new();
        let mut counts = Counters::default();
        // The first round is a warm-up and does not count.
        for round in 0..=self.effort.rounds as u64 {
            let first = 2 * round * operations;
            prepare()?;
            let plain_ns = time(work, first..first + operations)?;
            prepare()?;
            let before = self.engine.counters();
            profile::begin();
            let probed_ns = time(work, first + operations..first + 2 * operations);
            let profile = profile::end();
            if round > 0 {
                plain.push(plain_ns);
                probed.push(probed_ns?);
                profiles.push(profile);
                counts = self.engine.counters() - before;
            }
        }
        let each = |count: u64| count as f64 / operations as f64;
        let of = |what: &dyn Fn(&Profile) -> f64| median(&profiles.iter().map(what).collect::<Vec<_>>());
        let spans: Vec<Part> = ProfileSpan::ALL
            .iter()
            .map(|&span| Part {
                span: span.name(),
                ns: of(&|profile| profile.ns(span, self.clock) / operations as f64),
                visits: of(&|profile| each(profile.visits(span))),
            })
            .filter(|part| part.visits > 0.0 || part.span == ProfileSpan::Rest.name())
            .collect();
        let borders = of(&|profile| {
            ProfileSpan::ALL
                .iter()
                .map(|&span| each(profile.borders(span)))
                .sum::<f64>()
                / 2.0
        });
        let explained = Explained {
            group: "core",
            name,
            sum_ns: spans.iter().map(|part| part.ns).sum(),
            spans,
            whole_ns: median(&plain),
            probed_ns: median(&probed),
            border_ns: self.clock.border_ticks * self.clock.ns_per_tick,
            borders,
            fences: each(counts.fences),
            lines_written_back: each(counts.lines_written_back),
            bytes_streamed: each(counts.bytes_streamed),
            page_bytes: 2 << 20,
            fill_percent: FILL_PERCENT,
        };
        explained.print(self.out)
    }
}

impl Explained {
    fn print(&self, out: &mut Output) -> Result<(), Failure> {
        if out.json {
            return say_json(self);
        }
        say(format!("{}: {:.0} ns", self.name, self.whole_ns));
        for part in &self.spans {
            let share = part.ns / self.sum_ns * 100.0;
            say(format!(
                "  {:<10} {:>7.1} ns {:>5.1} %  entered {:.2} times",
                part.span, part.ns, share, part.visits
            ));
        }
        say(format!(
            "  {:<10} {:>7.1} ns, {:.2} of the whole; {:.0} ns with {:.1} probes of {:.1} ns each",
            "sum",
            self.sum_ns,
            self.sum_ns / self.whole_ns,
            self.probed_ns,
            self.borders,
            self.border_ns,
        ));
        say(format!(
            "  {:.2} fences, {:.2} lines written back, {:.0} bytes streamed",
            self.fences, self.lines_written_back, self.bytes_streamed
        ));
        Ok(())
    }
}

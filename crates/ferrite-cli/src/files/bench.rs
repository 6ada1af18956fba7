//! `ferrite bench`: measures a directory, of a mount, of any other file system, or in a volume that is not mounted.
//!
//! Contents: the command, and its operations, one caller at a time. Each operation is timed from its call to its
//! return, so a rate is what one thread sees, and the percentiles are those of single calls.
//!
//! Invariant: everything is in one directory of its own, which is removed at the end, also after an error or a signal.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use ferrite_measure::Rng;

use super::content::Watch;
use super::folder::Folder;
use super::place::{Open, Place, Result, Why};
use super::{OPERANDS, Operand, Volumes};
use crate::progress::Bytes;
use crate::{FAILED, Failure, Outcome, USAGE, complain, say, say_json, size};

/// Bytes of a call that reads or writes in order.
const LARGE_BYTES: usize = 1 << 20;
/// Bytes of a call at a random place, and of a small file.
const SMALL_BYTES: usize = 4096;

/// The longest large file: above it, the times of the calls would fill the memory.
const SIZE_MAX: u64 = 1 << 44;

/// Measure a directory: how fast one program reads, writes, and handles small files there
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("\
Examples:
  ferrite bench /mnt                        # a directory of any file system
  ferrite bench tcp://HOST:7447:/           # an export, without a mount
  ferrite bench pm:/dev/shm/pool:/ --json   # a pool in this process

The command makes a directory `.ferrite-bench-…` there, works in it with one thread, and removes it. On a mount, the \
kernel's cache affects the result. Rates are those of one caller; p50, p99 and max are times of single calls.
"))]
pub(crate) struct Bench {
    /// The directory
    #[arg(value_name = "DIR|VOLUME:/PATH", value_parser = Operand::parser(), long_help = OPERANDS)]
    place: Operand,
    /// Size of the large file
    #[arg(long, default_value = "256M", value_parser = large_size)]
    size: u64,
    /// Number of small files
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Show no progress bar
    #[arg(short, long)]
    quiet: bool,
}

fn large_size(text: &str) -> Result<u64, String> {
    match size::parse(text) {
        Ok(bytes) if bytes > SIZE_MAX => Err(format!("choose at most {}", size::human(SIZE_MAX))),
        Ok(bytes) if bytes >= LARGE_BYTES as u64 => Ok(bytes / LARGE_BYTES as u64 * LARGE_BYTES as u64),
        Ok(_) => Err("choose 1M or more".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// One operation's result.
#[derive(Debug, serde::Serialize)]
struct Row {
    name: &'static str,
    operations: usize,
    bytes_per_operation: usize,
    operations_per_second: f64,
    bytes_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Row {
    fn of(name: &'static str, bytes_per_operation: usize, mut times: Vec<Duration>) -> Row {
        times.sort_unstable();
        let rate = times.len() as f64 / times.iter().sum::<Duration>().as_secs_f64().max(1e-9);
        let at = |share: f64| {
            let rank = (times.len() as f64 * share).ceil() as usize;
            let time = times.get(rank.saturating_sub(1).min(times.len() - 1));
            time.map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        Row {
            name,
            operations: times.len(),
            bytes_per_operation,
            operations_per_second: rate,
            bytes_per_second: rate * bytes_per_operation as f64,
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
        }
    }

    fn line(&self) -> String {
        let rate = match self.bytes_per_operation {
            LARGE_BYTES => format!("{}/s", size::human(self.bytes_per_second as u64)),
            _ => format!("{:.0} ops/s", self.operations_per_second),
        };
        let Row {
            name,
            p50_us,
            p99_us,
            max_us,
            ..
        } = self;
        format!("{name:<22} {rate:>14} {p50_us:>10.1} {p99_us:>10.1} {max_us:>10.1}")
    }
}

/// A place of its own, in which the operations run.
struct Run<'b> {
    command: &'b Bench,
    folder: Folder,
    watch: Watch,
    /// Small files made, and removed again, in order.
    made: Cell<u64>,
    removed: Cell<u64>,
}

impl Bench {
    pub(crate) fn run(self) -> Outcome {
        let watch = Watch::until_signal(Bytes::new(self.quiet))?;
        let mut volumes = Volumes::to_change();
        let Some(place) = Place::of(&self.place, &mut volumes)? else {
            return Err(Failure::new(USAGE, "choose a directory, not standard input"));
        };
        let measured = self.measure(&place, watch);
        volumes.close()?;
        measured
            .map(|()| 0)
            .map_err(|why| Failure::new(FAILED, place.message(&why)))
    }

    fn measure(&self, place: &Place, watch: Watch) -> Result<()> {
        let base = Folder::open(place)?;
        let name = OsString::from(format!(".ferrite-bench-{}", std::process::id()));
        let run = Run {
            command: self,
            folder: base.make_dir(&name, 0o700)?,
            watch,
            made: Cell::new(0),
            removed: Cell::new(0),
        };
        let measured = run.all();
        let removed = run.clear().and_then(|()| base.remove_dir(&name));
        if let (Err(_), Err(why)) = (&measured, &removed) {
            complain(format_args!(
                "ferrite: {}",
                place
                    .join(&name)
                    .message(&Why::new(format!("not removed: {}", why.text)))
            ));
        }
        measured.and(removed)
    }
}

impl Run<'_> {
    fn all(&self) -> Result<()> {
        let total = 2 * self.command.size + 4 * u64::from(self.command.files) * SMALL_BYTES as u64;
        self.watch.bar.expect(total);
        if !self.command.json {
            let columns = format!(
                "{:<22} {:>14} {:>10} {:>10} {:>10}",
                "", "rate", "p50 us", "p99 us", "max us"
            );
            self.watch.bar.suspend(|| say(columns));
        }
        self.large_file()?;
        self.small_files()
    }

    /// Times `operations` calls of `call`, each of which moves so many bytes, and prints the row.
    fn time(
        &self,
        name: &'static str,
        operations: u64,
        bytes: usize,
        mut call: impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let mut times = Vec::new();
        for n in 0..operations {
            self.watch.check()?;
            let start = Instant::now();
            call(n)?;
            times.push(start.elapsed());
            self.watch.bar.advance(bytes as u64);
        }
        let row = Row::of(name, bytes, times);
        let mut printed = Ok(());
        self.watch.bar.suspend(|| {
            if self.command.json {
                printed = say_json(&row);
            } else {
                say(row.line());
            }
        });
        printed.map_err(|failure| Why::new(failure.text()))
    }

    fn large_file(&self) -> Result<()> {
        let name = OsStr::new("large");
        let file = self.folder.create_new(name, 0o600)?;
        let data: Vec<u8> = (0..LARGE_BYTES).map(|at| (at % 251) as u8).collect();
        let (large, last) = (
            self.command.size / LARGE_BYTES as u64,
            self.command.size - LARGE_BYTES as u64,
        );
        // The last call also makes all of it durable, so that nothing is left to write when the rate is known.
        self.time("write, 1 MiB, fsync", large, LARGE_BYTES, |n| {
            let offset = n * LARGE_BYTES as u64;
            file.write_all_at(&data, offset)?;
            if offset == last { file.sync() } else { Ok(()) }
        })?;
        let found = self.folder.look(name)?;
        let reader = self.folder.open_file(name, &found)?;
        let mut buffer = vec![0; LARGE_BYTES];
        self.time("read, 1 MiB", large, LARGE_BYTES, |n| {
            read_whole(&reader, &mut buffer, n * LARGE_BYTES as u64)
        })?;
        let files = u64::from(self.command.files);
        let pages = random_pages(files, self.command.size / SMALL_BYTES as u64);
        self.time("read, 4 KiB, random", files, SMALL_BYTES, |n| {
            read_whole(&reader, &mut buffer[..SMALL_BYTES], pages[n as usize])
        })?;
        self.time("write, 4 KiB, random", files, SMALL_BYTES, |n| {
            file.write_all_at(&data[..SMALL_BYTES], pages[n as usize])
        })?;
        let end = self.command.size;
        self.time("append, 4 KiB, fsync", files, SMALL_BYTES, |n| {
            file.write_all_at(&data[..SMALL_BYTES], end + n * SMALL_BYTES as u64)?;
            file.sync()
        })
    }

    fn small_files(&self) -> Result<()> {
        let files = u64::from(self.command.files);
        let data = [7; SMALL_BYTES];
        self.time("create, 4 KiB", files, SMALL_BYTES, |n| {
            // Counted first: a call that fails may have made it.
            self.made.set(n + 1);
            self.folder.create_new(&small(n), 0o600)?.write_all_at(&data, 0)
        })?;
        self.time("stat", files, 0, |n| self.folder.look(&small(n)).map(drop))?;
        self.time("remove", files, 0, |n| {
            self.folder.remove_file(&small(n))?;
            self.removed.set(n + 1);
            Ok(())
        })
    }

    /// Removes what is there, whatever has been done.
    fn clear(&self) -> Result<()> {
        let names = (self.removed.get()..self.made.get()).map(small);
        for name in names.chain([OsString::from("large")]) {
            match self.folder.remove_file(&name) {
                Err(why) if !why.is(rustix::io::Errno::NOENT) => return Err(why),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Offsets of so many pages that nobody can predict, the same in every run.
fn random_pages(count: u64, pages: u64) -> Vec<u64> {
    let mut random = Rng::new(1);
    (0..count).map(|_| random.below(pages) * SMALL_BYTES as u64).collect()
}

fn small(n: u64) -> OsString {
    OsString::from(format!("small-{n}"))
}

fn read_whole(file: &Open, buffer: &mut [u8], offset: u64) -> Result<()> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64)? {
            0 => return Err(Why::new("it became shorter while it was measured")),
            count => read += count,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let row = Row::of("x", SMALL_BYTES, times);
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 1e-6;
        assert!(
            near(row.p50_us, 100.0) && near(row.p99_us, 198.0) && near(row.max_us, 200.0),
            "{row:?}"
        );
        assert!(near(row.operations_per_second, 1e6 / 100.5), "{row:?}");
        let one = Row::of("x", 0, vec![Duration::from_micros(3)]);
        assert!(near(one.p50_us, 3.0) && near(one.p99_us, 3.0), "{one:?}");
    }
}

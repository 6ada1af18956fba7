//! `ferrite-crash`: searches for crashes that lose something, and replays its findings.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use ferrite_crash::explore::{Effort, Report, Search};
use ferrite_crash::source::Name;
use ferrite_crash::{MAPPINGS, Mapping, Variant, allowed, choices, plan, record, shrink, verify};
use indicatif::{ProgressBar, ProgressStyle};

/// Builds what a medium may hold after a crash, and tries the engine on it.
///
/// Exit codes: 0 nothing wrong, 1 a violation was found, 2 wrong arguments.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Search until the given number of different images were tried, or the time is over
    Explore {
        /// Different images to try
        #[arg(long, default_value_t = 100_000)]
        images: u64,
        /// Stop after this many minutes
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Approximate number of images tried per crash point
        #[arg(long, default_value_t = Effort::default().per_point)]
        per_point: usize,
        /// Threads
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Seed of the random workloads and of the samples
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        pools: Pools,
        /// Directory for the image of a violation and its report
        #[arg(long, value_name = "DIR", default_value = ".")]
        keep: PathBuf,
    },
    /// Try one workload again, or one image of it, or an image from a file
    Replay {
        /// Its name, as printed by the search
        #[arg(required_unless_present = "image")]
        name: Option<Name>,
        /// An image that a search kept, or any other pool: check it, mount it, use it, crash its recovery. Its
        /// history is unknown, so its content is not checked. The file is only read
        #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "point", "choice", "keep"])]
        #[arg(conflicts_with_all = ["mapping", "data_checksum", "log_unit_bytes", "deferred"])]
        image: Option<PathBuf>,
        /// The seed of the search
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Only this crash point…
        #[arg(long, requires = "choice")]
        point: Option<usize>,
        /// …and only this choice of lines
        #[arg(long, requires = "point", value_parser = choices::parse)]
        choice: Option<ferrite_pm::Choice>,
        /// Write that image to a file
        #[arg(long, requires = "point")]
        keep: Option<PathBuf>,
        #[command(flatten)]
        pools: Pools,
    },
}

/// The kinds of pools to try.
#[derive(clap::Args)]
struct Pools {
    /// Only this mapping
    #[arg(long, value_parser = mapping)]
    mapping: Option<Mapping>,
    /// Pools whose data carries checksums
    #[arg(long)]
    data_checksum: bool,
    /// Pools whose page logs have units of this many bytes, as larger pools have
    #[arg(long)]
    log_unit_bytes: Option<u32>,
    /// Pools whose operations are durable after a sync, as with durability=fsync
    #[arg(long)]
    deferred: bool,
}

fn mapping(name: &str) -> Result<Mapping, String> {
    Mapping::from_name(name).ok_or_else(|| format!("no mapping is called {name}"))
}

fn mappings(only: Option<Mapping>) -> impl Iterator<Item = Mapping> {
    MAPPINGS
        .iter()
        .copied()
        .filter(move |&mapping| only.is_none_or(|only| only == mapping))
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Explore {
            images,
            minutes,
            per_point,
            threads,
            seed,
            pools,
            keep,
        } => {
            let effort = Effort {
                per_point,
                seed,
                ..Effort::default()
            };
            explore(
                variants(&pools),
                effort,
                images,
                Duration::from_secs(60 * minutes),
                threads,
                &keep,
            )
        }
        Command::Replay {
            name,
            image,
            seed,
            point,
            choice,
            keep,
            pools,
        } => {
            let done = match (image, name) {
                (Some(image), _) => replay_image(&image, seed),
                (None, Some(name)) => replay(variants(&pools), &name, seed, point.zip(choice), keep)
                    .map(|()| format!("nothing wrong with {name}")),
                (None, None) => Err("name a workload, or an image by --image FILE".into()),
            };
            match done {
                Ok(text) => {
                    println!("{text}");
                    ExitCode::SUCCESS
                }
                Err(what) => {
                    eprintln!("{what}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// The violation of an image alone, or else its contents.
fn replay_image(path: &Path, seed: u64) -> Result<String, String> {
    let image = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let tree = verify::verify_alone(&image.into(), seed).map_err(|what| format!("{}: {what}", path.display()))?;
    let mut text = String::new();
    for (name, node) in &tree {
        text += &format!("{} {:?}\n", name.escape_ascii(), node.attr);
    }
    Ok(text + "nothing wrong with the image; whether this is what it must hold is for the reader to say")
}

fn variants(pools: &Pools) -> impl Iterator<Item = Variant> {
    let &Pools {
        data_checksum,
        log_unit_bytes,
        deferred,
        ..
    } = pools;
    mappings(pools.mapping).map(move |mapping| Variant {
        omission: None,
        mapping,
        data_checksum,
        log_unit_bytes,
        deferred,
    })
}

fn explore(
    variants: impl Iterator<Item = Variant>,
    effort: Effort,
    images: u64,
    limit: Duration,
    threads: usize,
    keep: &Path,
) -> ExitCode {
    let started = Instant::now();
    for variant in variants {
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} images, {per_sec}, {eta} left");
        let bar = ProgressBar::new(images).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let search = Search::new(variant, effort);
        let report = search.run(plan::endless(effort.seed), threads, &|search| {
            bar.set_position(search.distinct());
            search.distinct() >= images || started.elapsed() > limit
        });
        bar.finish_and_clear();
        println!("{variant:?}: {}", tell(&report));
        if let Some(failure) = report.failure {
            let failure = shrink::shrink(failure, effort, Duration::from_secs(120));
            eprintln!("{}", failure.report(&effort, keep));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn tell(report: &Report) -> String {
    format!(
        "{} different images of {} tried, {} workloads, {} crash points, {} recoveries crashed again, {} changes sent \
         again, {} moves of map entries, {:.0} s",
        report.distinct,
        report.tried,
        report.workloads,
        report.points,
        report.recrashed,
        report.resent,
        report.moves,
        report.elapsed.as_secs_f64()
    )
}

fn replay(
    variants: impl Iterator<Item = Variant>,
    name: &Name,
    seed: u64,
    place: Option<(usize, ferrite_pm::Choice)>,
    keep: Option<PathBuf>,
) -> Result<(), String> {
    for variant in variants {
        let Some((point, choice)) = place else {
            let effort = Effort {
                seed,
                recrash_every: 1,
                ..Effort::default()
            };
            Search::new(variant, effort)
                .workload(name)
                .map_err(|failure| failure.tell(&effort))?;
            continue;
        };
        let recorded = record::record(variant, &name.workload())?;
        let mut cursor = recorded.log.cursor();
        while cursor.point() < point {
            if !cursor.advance() {
                return Err(format!("{name} has only {} crash points", recorded.log.crash_points()));
            }
        }
        let marks = cursor.marks().to_vec();
        let allowed = allowed::Allowed::after(&recorded, &marks);
        let draw = cursor.fingerprint(choice);
        cursor.with_image(choice, |image| {
            if let Some(path) = &keep {
                std::fs::write(path, &image[..]).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            verify::verify(image, &allowed, &recorded.mount, draw, Some(16)).map(drop)
        })?;
    }
    Ok(())
}

//! `ferrite-lab bench`: the cost of operations, always beside a peer measured in the same run.
//!
//! Contents: the groups (one file each), and how two things are compared ([`Duel`]): in turn, round by round, so
//! that other load on the machine affects both; the ratio is the median of the rounds' ratios. Counts come from the
//! engine.

#[cfg(feature = "nvme")]
mod cluster;
mod contest;
mod disk;
mod explain;
mod hdpm;
mod mapping;
mod misses;
mod mixes;
mod mount;
#[cfg(feature = "rdma")]
mod mr;
mod net;
#[cfg(feature = "nvme")]
mod nvme;
mod operations;
mod recovery;
mod threads;

use std::sync::OnceLock;
use std::time::Instant;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ferrite_fs::{Mapping, MkfsOptions};
use ferrite_measure::{median, mix};
use ferrite_pm::Counters;
use ferrite_vfs::volume::human_bytes;

use crate::{FAILED, Failure, Outcome, USAGE, complain, say, say_json};

/// Measure what operations cost, compared with peers on the same machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Groups:
  core      the engine in this process, one thread: against raw durable stores, and tmpfs
  threads   two threads on two files: against two threads of raw durable stores
  hdpm      unaligned writes and later reads: against the same engine without page logs
  mixes     varmail and webproxy, one and two threads: against tmpfs, and no page logs
  mapping   lookups and inserts of every mapping after churn: against HashFS; leaf against
            HashFS; run lengths; against the papers' own code (--only published)
  recovery  a mount after a crash and a full fsck, by number of files: against 1 s and 10 s per
            million
  mount     a mount: against libfuse's passthrough_ll over tmpfs (needs root, gcc, libfuse3-dev)
  disk      a pool on a disk file, mounted, durable at fsync and at once: against the file system of
            that file (needs root; sqlite3)
  net       a remote client over loopback: against messages of the same lengths with nothing behind;
            against nfs-ganesha over ext4 (needs root, nfs-ganesha-vfs, libnfs-dev, rpcbind, gcc)
  nvme      a pool on devices: against io_uring, transactions of RocksDB, and ext4 (root, for loop
            devices; else in files)
  cluster   a pool with its metadata in a temporary PostgreSQL: against the same engine over RocksDB
            (needs postgresql-15)

A ratio is Ferrite's time divided by the peer's: below 1 is faster. Times vary with the load of the machine; ratios and \
counts vary much less.")]
pub(crate) struct Bench {
    /// Group to run [default: all]
    #[arg(value_parser = PossibleValuesParser::new(groups().map(|(group, _)| group)))]
    group: Option<String>,
    /// Run only the benchmark with this name
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Mapping of the pools; docs/mappings.md compares them
    #[arg(long, default_value_t = Mapping::default(), value_parser = mapping_parser())]
    mapping: Mapping,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Smaller files and fewer rounds: a quick look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Tell what single operations spend their time on, by span (group `core`, in a program built with `spans`)
    #[arg(long, conflicts_with = "echo")]
    explain: bool,
    /// Be the peer of the group `net`
    #[arg(long, hide = true)]
    echo: bool,
}

fn mapping_parser() -> impl TypedValueParser<Value = Mapping> {
    PossibleValuesParser::new(Mapping::ALL.iter().map(|mapping| mapping.name()))
        .map(|name| Mapping::from_name(&name).unwrap_or_default())
}

/// All groups, and the names of their rows.
fn groups() -> [(&'static str, Vec<&'static str>); 12] {
    [
        ("core", operations::NAMES.to_vec()),
        ("threads", vec![threads::NAME]),
        ("hdpm", hdpm::names()),
        ("mixes", mixes::names()),
        ("mapping", mapping::names()),
        ("recovery", recovery::names()),
        ("mount", mount::NAMES.to_vec()),
        ("disk", disk::NAMES.to_vec()),
        ("net", net::NAMES.to_vec()),
        #[cfg(feature = "nvme")]
        ("nvme", nvme::NAMES.to_vec()),
        #[cfg(not(feature = "nvme"))]
        ("nvme", Vec::new()),
        #[cfg(feature = "nvme")]
        ("cluster", cluster::names()),
        #[cfg(not(feature = "nvme"))]
        ("cluster", Vec::new()),
        #[cfg(feature = "rdma")]
        ("mr", mr::NAMES.to_vec()),
        #[cfg(not(feature = "rdma"))]
        ("mr", Vec::new()),
    ]
}

static MAPPING: OnceLock<Mapping> = OnceLock::new();

/// Options of every pool that a benchmark makes.
fn options() -> MkfsOptions {
    MkfsOptions::default().mapping(MAPPING.get().copied().unwrap_or_default())
}

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Size of the file that is read and written.
    pub(crate) file_bytes: u64,
    /// Rounds of each duel.
    pub(crate) rounds: usize,
    /// Operations of a round.
    pub(crate) operations: usize,
}

/// Circumstances of a measurement, printed with it.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Circumstances {
    /// Page size of the mapping of pool and floor.
    pub(crate) page_bytes: u64,
    /// How full the pool is.
    pub(crate) fill_percent: u32,
    /// State of the caches.
    pub(crate) cache: &'static str,
    /// Threads that work.
    pub(crate) threads: u32,
    /// Which cores they may use.
    pub(crate) placement: String,
}

/// One line of the result.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Row {
    group: &'static str,
    name: &'static str,
    against: &'static str,
    /// Our time divided by theirs.
    ratio: f64,
    median_ns: f64,
    against_median_ns: f64,
    /// Per operation of Ferrite.
    fences: f64,
    lines_written_back: f64,
    bytes_streamed: f64,
    /// Bytes written to the medium for each byte of the user: ours and theirs, where both are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    medium_bytes_per_byte: Option<[f64; 2]>,
    /// Content of the pool, unless that is one file.
    #[serde(skip_serializing_if = "Option::is_none")]
    contents: Option<String>,
    #[serde(flatten)]
    circumstances: Circumstances,
}

impl Bench {
    pub(crate) fn run(self) -> Outcome {
        if self.echo {
            return net::pingpong::echo();
        }
        // Set once: a process runs one command.
        let _ = MAPPING.set(self.mapping);
        let effort = if self.quick {
            Effort {
                file_bytes: 64 << 20,
                rounds: 5,
                operations: 4_000,
            }
        } else {
            Effort {
                file_bytes: 1 << 30,
                rounds: 15,
                operations: 20_000,
            }
        };
        let mut out = Output {
            json: self.json,
            headed: None,
            only: self.only.clone(),
        };
        if self.explain {
            if self.group.as_deref() != Some("core") {
                return Err(Failure::new(
                    USAGE,
                    "--explain is of the group core: `ferrite-lab bench core --explain`",
                ));
            }
            explain::run(effort, &mut out)?;
            return Ok(0);
        }
        for group in self.wanted()? {
            self.run_group(group, effort, &mut out)?;
        }
        Ok(0)
    }

    fn run_group(&self, group: &str, effort: Effort, out: &mut Output) -> Result<(), Failure> {
        match group {
            "core" => operations::run(effort, out),
            "threads" => threads::run(effort, out),
            "hdpm" => hdpm::run(effort, out),
            "mixes" => mixes::run(effort, out),
            "mapping" => {
                mapping::run(self.quick, out)?;
                misses::run(self.quick, out)
            }
            "recovery" => recovery::run(effort, out),
            "mount" => self.if_possible(group, mount::run(effort, out)),
            "disk" => self.if_possible(group, disk::run(effort, out)),
            "net" => net::run(effort, out),
            #[cfg(feature = "nvme")]
            "nvme" => nvme::run(effort, out),
            #[cfg(feature = "nvme")]
            "cluster" => self.if_possible(group, cluster::run(effort, out)),
            #[cfg(not(feature = "nvme"))]
            "nvme" | "cluster" => self.without("pools on devices", "nvme"),
            #[cfg(feature = "rdma")]
            "mr" => mr::run(effort, out),
            #[cfg(not(feature = "rdma"))]
            "mr" => self.without("RDMA", "rdma"),
            _ => Ok(()),
        }
    }

    /// A group that this build lacks.
    #[cfg(not(all(feature = "nvme", feature = "rdma")))]
    fn without(&self, what: &str, feature: &str) -> Result<(), Failure> {
        match self.group {
            Some(_) => {
                let text = format!("this program was built without {what}; build it with `--features {feature}`");
                Err(Failure::new(USAGE, text))
            }
            None => Ok(()),
        }
    }

    /// A group that the user names must run; in a run of all groups it may be out of reach.
    fn if_possible(&self, group: &str, ran: Result<(), Failure>) -> Result<(), Failure> {
        match ran {
            Err(failure) if self.group.is_none() => {
                complain(format_args!("ferrite: {group} group left out: {}", failure.message));
                Ok(())
            }
            ran => ran,
        }
    }

    /// Groups that have something to do.
    fn wanted(&self) -> Result<Vec<&'static str>, Failure> {
        let requested: Vec<_> = groups()
            .into_iter()
            .filter(|(group, _)| self.group.as_deref().is_none_or(|one| one == *group))
            .collect();
        let wanted: Vec<_> = requested
            .iter()
            .filter(|(_, names)| self.only.as_deref().is_none_or(|only| names.contains(&only)))
            .map(|(group, _)| *group)
            .collect();
        if !wanted.is_empty() {
            return Ok(wanted);
        }
        let known: Vec<_> = requested
            .iter()
            .map(|(group, names)| format!("{group}: {}", names.join(", ")))
            .collect();
        Err(Failure::new(
            USAGE,
            format!(
                "--only {}: no such benchmark; there are\n  {}",
                self.only.as_deref().unwrap_or_default(),
                known.join("\n  ")
            ),
        ))
    }
}

/// Prints rows as they come.
pub(crate) struct Output {
    json: bool,
    /// The head that was last printed.
    headed: Option<String>,
    only: Option<String>,
}

impl Output {
    fn wants(&self, name: &str) -> bool {
        debug_assert!(
            groups().iter().any(|(_, names)| names.contains(&name)),
            "{name} is not in the list"
        );
        self.only.as_deref().is_none_or(|only| only == name)
    }

    /// Prints the line above rows of a kind, once.
    fn head(&mut self, head: String) {
        if self.headed.as_ref() != Some(&head) {
            say(&head);
            self.headed = Some(head);
        }
    }

    fn row(&mut self, row: &Row) -> Result<(), Failure> {
        if self.json {
            return say_json(row);
        }
        self.head(format!(
            "{:<24} {:<20} {:>7} {:>10} {:>10} {:>7} {:>7} {:>9}  {}",
            "benchmark",
            "against",
            "ratio",
            "ns",
            "their ns",
            "fences",
            "lines",
            "streamed",
            "page, fill, cache, threads, cores"
        ));
        let c = &row.circumstances;
        let amplification = row.medium_bytes_per_byte.map_or_else(String::new, |[ours, theirs]| {
            format!("; {ours:.1} and {theirs:.1} bytes written a byte")
        });
        let contents = row
            .contents
            .as_ref()
            .map_or_else(String::new, |text| format!("; {text}"));
        say(format!(
            "{:<24} {:<20} {:>7.2} {:>10.0} {:>10.0} {:>7.2} {:>7.2} {:>9.0}  {}, {} %, {}, {}, \
             {}{amplification}{contents}",
            row.name,
            row.against,
            row.ratio,
            row.median_ns,
            row.against_median_ns,
            row.fences,
            row.lines_written_back,
            row.bytes_streamed,
            human_bytes(c.page_bytes),
            c.fill_percent,
            c.cache,
            c.threads,
            c.placement
        ));
        Ok(())
    }
}

/// One side of a comparison: does operation number `n`.
pub(crate) type Work<'a> = &'a mut dyn FnMut(u64) -> Result<(), Failure>;

/// Compares two pieces of work, in turn.
pub(crate) struct Duel<'a> {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) against: &'static str,
    pub(crate) rounds: usize,
    pub(crate) operations: usize,
    pub(crate) circumstances: Circumstances,
    /// Counters of the engine, if it is in this process.
    pub(crate) counters: &'a dyn Fn() -> Counters,
    /// Bytes an operation writes for the user, and the counters of the other side, if that is an engine too.
    pub(crate) amplification: Option<(usize, &'a dyn Fn() -> Counters)>,
}

impl Duel<'_> {
    /// Runs it and prints the row.
    pub(crate) fn run(&self, ours: Work<'_>, theirs: Work<'_>, out: &mut Output) -> Result<(), Failure> {
        if !out.wants(self.name) {
            return Ok(());
        }
        let (mut our_ns, mut their_ns, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut counts, mut their_counts) = (Counters::default(), Counters::default());
        let their_counters = || {
            self.amplification
                .map_or_else(Counters::default, |(_, counters)| counters())
        };
        let mut next = 0;
        // The first round is a warm-up and does not count.
        for round in 0..=self.rounds {
            let numbers = next..next + self.operations as u64;
            next = numbers.end;
            let before = (self.counters)();
            let ours = time(ours, numbers.clone())?;
            let after = (self.counters)() - before;
            let before = their_counters();
            let theirs = time(theirs, numbers)?;
            let their_after = their_counters() - before;
            if round > 0 {
                our_ns.push(ours);
                their_ns.push(theirs);
                ratios.push(ours / theirs);
                (counts, their_counts) = (after, their_after);
            }
        }
        let per_operation = |count: u64| count as f64 / self.operations as f64;
        out.row(&Row {
            group: self.group,
            name: self.name,
            against: self.against,
            ratio: median(&ratios),
            median_ns: median(&our_ns),
            against_median_ns: median(&their_ns),
            fences: per_operation(counts.fences),
            lines_written_back: per_operation(counts.lines_written_back),
            bytes_streamed: per_operation(counts.bytes_streamed),
            contents: None,
            medium_bytes_per_byte: self.amplification.map(|(len, _)| {
                [counts, their_counts].map(|c| per_operation(c.bytes_streamed + c.lines_written_back * 64) / len as f64)
            }),
            circumstances: self.circumstances.clone(),
        })
    }
}

/// Nanoseconds per operation.
fn time(work: Work<'_>, numbers: std::ops::Range<u64>) -> Result<f64, Failure> {
    let count = numbers.end - numbers.start;
    let start = Instant::now();
    for number in numbers {
        work(number)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / count as f64)
}

/// Offset of a random page of a file.
pub(crate) fn page(number: u64, file_bytes: u64) -> u64 {
    mix(number) % (file_bytes / 4096) * 4096
}

/// A short count of bytes read or written makes the benchmark fail.
pub(crate) fn whole(count: usize, expected: usize) -> Result<(), Failure> {
    if count == expected {
        Ok(())
    } else {
        Err(Failure::new(FAILED, format!("{count} of {expected} bytes")))
    }
}

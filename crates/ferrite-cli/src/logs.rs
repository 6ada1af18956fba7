//! `ferrite log`: append-only logs in files of volumes, as libpmemlog has them.
//!
//! Contents: the commands. They use a file of a pool on this machine through its engine; one of a server by verbs if
//! possible; several as replicas of one.

use std::io::{BufRead, Read};
use std::path::Path;

use clap::{Args, Subcommand};
use ferrite_log::{Log, LogOptions, Store};
use serde::Serialize;

use crate::files::{OPERANDS, Operand, Volumes};
use crate::size;
use crate::{FAILED, Failure, Outcome, USAGE, complain, output, say, say_json};

/// Append to logs in files, and print them
#[derive(Debug, Args)]
#[command(after_help = OPERANDS, after_long_help = format!("{OPERANDS}

Several files of servers are replicas of one log: an append succeeds if more than half of them store it.

Examples:
  date | ferrite log append pm:/dev/shm/pool:/log
  ferrite log walk pm:/dev/shm/pool:/log
  date | ferrite log append tcp://one:/log tcp://two:/log tcp://three:/log

Appended data is durable when the command ends, and complete after a crash. docs/log.md has the format."))]
pub(crate) struct Logs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Append standard input as one entry, and create the log if it is missing
    Append(Append),
    /// Print the entries of a log
    Walk(Walk),
    /// Print the size and the capacity of a log
    Tell(Tell),
    /// Empty a log
    Rewind(Rewind),
}

#[derive(Debug, Args)]
struct Place {
    /// The file; several files of servers are replicas
    #[arg(value_name = "FILE", required = true, value_parser = Operand::parser_in_volume())]
    files: Vec<Operand>,
    /// Print JSON; with `walk`, on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Append {
    #[command(flatten)]
    place: Place,
    /// Append each line as a separate entry
    #[arg(long)]
    lines: bool,
    /// Capacity of a new log in bytes [default: that of the file]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    capacity: Option<u64>,
}

#[derive(Debug, Args)]
struct Walk {
    #[command(flatten)]
    place: Place,
    /// Print one entry per line, as a JSON string; invalid UTF-8 is shown as U+FFFD
    #[arg(long)]
    appends: bool,
}

#[derive(Debug, Args)]
struct Tell {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Rewind {
    #[command(flatten)]
    place: Place,
}

#[derive(Serialize)]
struct AppendReport {
    appends: u64,
    bytes: u64,
    used: u64,
}

#[derive(Serialize)]
struct WalkReport {
    appends: u64,
    bytes: u64,
    duplicates: u64,
    skipped_bytes: u64,
    cut_short: bool,
}

#[derive(Serialize)]
struct TellReport {
    used: u64,
    capacity: u64,
}

type AnyLog = Log<Box<dyn Store>>;

/// Resources to close afterwards.
enum Held {
    Volumes(Volumes),
    #[cfg(feature = "rdma")]
    Nothing,
    #[cfg(feature = "rdma")]
    Replicas(std::sync::Arc<ferrite_client::rdma::ReplicatedFile>),
}

impl Place {
    /// Opens the log, and runs an action on it.
    fn with<T>(
        &self,
        options: &LogOptions,
        writable: bool,
        work: impl FnOnce(&AnyLog) -> Result<T, Failure>,
    ) -> Result<(T, u8), Failure> {
        let (store, held) = self.store(writable, options.create)?;
        let log = Log::open(store, options).map_err(|error| self.failed(&error))?;
        let done = work(&log);
        drop(log);
        let code = match held {
            Held::Volumes(volumes) => {
                volumes.close()?;
                0
            }
            #[cfg(feature = "rdma")]
            Held::Nothing => 0,
            #[cfg(feature = "rdma")]
            Held::Replicas(file) => crate::replicas::close(file)?,
        };
        Ok((done?, code))
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Failure {
        match &self.files[..] {
            [Operand::There { path, .. }] => Failure::new(FAILED, error.to_string()).of(path),
            _ => Failure::new(FAILED, error.to_string()),
        }
    }

    #[cfg(feature = "rdma")]
    fn store(&self, writable: bool, makes: bool) -> Result<(Box<dyn Store>, Held), Failure> {
        use ferrite_client::rdma::{Acknowledge, RemoteFile, RemoteOptions};
        use ferrite_client::volume::RemoteVolume;

        use crate::replicas;

        let options = RemoteOptions::default().writable(writable);
        match &self.files[..] {
            [Operand::There { address, path, .. }] if address.is_remote() => {
                let text = address.path().to_string_lossy();
                let client = RemoteVolume::open(&text, &ferrite_client::ClientOptions::default())?.client();
                let ino = replicas::find(&client, path, makes).map_err(|error| self.failed(&error))?;
                let timeout = options.timeout;
                let file = RemoteFile::open(&client, &replicas::context(), ino, options);
                let file = file.map_err(|error| self.failed(&error))?;
                Ok((Box::new(ferrite_log::RemoteStore::new(file, timeout)), Held::Nothing))
            }
            [_] => self.store_here(writable, makes),
            files => {
                let file = replicas::open(files, &options, Acknowledge::Quorum)?;
                let file = std::sync::Arc::new(file);
                Ok((Box::new(std::sync::Arc::clone(&file)), Held::Replicas(file)))
            }
        }
    }

    #[cfg(not(feature = "rdma"))]
    fn store(&self, writable: bool, makes: bool) -> Result<(Box<dyn Store>, Held), Failure> {
        self.store_here(writable, makes)
    }

    /// A file by the calls of its engine.
    fn store_here(&self, writable: bool, makes: bool) -> Result<(Box<dyn Store>, Held), Failure> {
        let [Operand::There { address, path, .. }] = &self.files[..] else {
            return Err(Failure::new(USAGE, "several files of one log are files of servers"));
        };
        let mut volumes = match writable {
            true => Volumes::to_change(),
            false => Volumes::to_read(),
        };
        let opened = volumes.open(address)?;
        let path = Path::new("/").join(path);
        let log = match writable {
            true => ferrite::log::LogFile::open(opened.fs(), &path, makes),
            false => ferrite::log::LogFile::open_to_walk(opened.fs(), &path),
        };
        let store = log.map_err(|error| self.failed(&error))?;
        Ok((Box::new(store), Held::Volumes(volumes)))
    }
}

impl Logs {
    pub(crate) fn run(self) -> Outcome {
        match self.command {
            Command::Append(command) => command.run(),
            Command::Walk(command) => command.run(),
            Command::Tell(command) => command.run(),
            Command::Rewind(command) => command.run(),
        }
    }
}

impl Append {
    fn run(self) -> Outcome {
        let options = LogOptions::default()
            .create(true)
            .capacity(self.capacity.unwrap_or_default());
        let (report, code) = self.place.with(&options, true, |log| {
            let (mut appends, mut bytes) = (0, 0);
            let mut append = |data: &[u8]| -> Result<(), Failure> {
                log.append(data).map_err(|error| self.place.failed(&error))?;
                appends += u64::from(!data.is_empty());
                bytes += data.len() as u64;
                Ok(())
            };
            // Refuse an input that is too long before reading all of it into memory.
            let most = log.append_bytes_max();
            let mut input = std::io::stdin().lock();
            let mut data = Vec::new();
            if self.lines {
                while (&mut input).take(most + 1).read_until(b'\n', &mut data)? > 0 {
                    append(&data)?;
                    data.clear();
                }
            } else {
                input.take(most + 1).read_to_end(&mut data)?;
                append(&data)?;
            }
            let used = log.tell()?;
            Ok(AppendReport { appends, bytes, used })
        })?;
        if self.place.json {
            say_json(&report)?;
        }
        Ok(code)
    }
}

impl Walk {
    fn run(self) -> Outcome {
        let (walked, _) = self.place.with(&LogOptions::default(), false, |log| {
            let walked = match self.appends {
                true => log.walk_appends(|data| {
                    let line = serde_json::to_string(&String::from_utf8_lossy(data));
                    line.is_ok_and(|line| output::write(line.as_bytes()) && output::write(b"\n"))
                }),
                false => log.walk_appends(output::write),
            };
            walked.map_err(|error| self.place.failed(&error))
        })?;
        let report = WalkReport {
            appends: walked.appends,
            bytes: walked.bytes,
            duplicates: walked.duplicates,
            skipped_bytes: walked.skipped_bytes,
            cut_short: walked.is_cut_short,
        };
        if self.place.json {
            complain(serde_json::to_string(&report)?);
        } else if walked.skipped_bytes > 0 {
            complain(format_args!(
                "ferrite: {} bytes between appends are of none: left by one that did not return, or damaged",
                walked.skipped_bytes
            ));
        }
        if walked.is_cut_short {
            complain("ferrite: the log was rewound meanwhile; what was printed was in it before");
            return Ok(FAILED);
        }
        Ok(0)
    }
}

impl Tell {
    fn run(self) -> Outcome {
        let (report, _) = self.place.with(&LogOptions::default(), false, |log| {
            let used = log.tell().map_err(|error| self.place.failed(&error))?;
            let capacity = log.nbyte();
            Ok(TellReport { used, capacity })
        })?;
        match self.place.json {
            true => say_json(&report)?,
            false => say(format_args!(
                "{} of {}",
                size::human(report.used),
                size::human(report.capacity)
            )),
        }
        Ok(0)
    }
}

impl Rewind {
    fn run(self) -> Outcome {
        let ((), code) = self.place.with(&LogOptions::default(), true, |log| {
            log.rewind().map_err(|error| self.place.failed(&error))
        })?;
        Ok(code)
    }
}

//! The command line: commands, arguments and exit codes.
//!
//! Contents: the commands (one file each), how arguments become one ([`Command`]), exit codes. Raw arguments are
//! checked before anything is done. Standard output carries results, standard error says what went wrong.
#![deny(unsafe_code)]

mod bucket_metrics;
mod console;
mod contents;
mod control;
mod copy;
mod daemon;
mod dead_mounts;
mod demo;
mod df;
mod doctor;
mod dump;
mod endpoint;
mod exporter;
mod failover;
mod files;
mod flush;
mod freeze;
mod freeze_guard;
mod fsck;
mod info;
mod key;
mod log;
mod logs;
mod manual;
#[allow(unsafe_code)]
mod memory;
#[cfg(feature = "nvme")]
mod metadata;
mod metric_family;
mod metrics;
mod mkfs;
mod mount;
mod mount_options;
mod mounts;
#[cfg(feature = "rdma")]
mod mr;
#[cfg(feature = "nvme")]
mod nvme;
mod open_files;
mod opening;
mod output;
mod owned_metrics;
mod pages;
mod printable;
mod progress;
#[cfg(feature = "rdma")]
mod replicas;
mod resize;
mod scrub;
mod serve;
mod served;
mod signals;
mod size;
mod support_bundle;
mod target;
mod top;
mod trace_file;
mod umount;
mod users;
mod volume_metrics;
mod warm;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{CommandFactory, Parser, Subcommand};

pub(crate) use output::{complain, say, say_json};

/// The version, and the commit if the build knew it (`FERRITE_COMMIT`), as that of `make build` does.
pub(crate) fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let version = env!("CARGO_PKG_VERSION");
        match option_env!("FERRITE_COMMIT").filter(|commit| !commit.is_empty()) {
            Some(commit) => format!("{version} ({commit})"),
            None => version.to_owned(),
        }
    })
}

/// A failure: a text for the user, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

/// Result of a command: the exit code.
pub(crate) type Outcome = Result<u8, Failure>;

/// Something failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            code,
        }
    }

    /// The same with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Failure { code, ..self }
    }

    /// The text for the user.
    pub(crate) fn text(&self) -> &str {
        &self.message
    }

    /// Adds the path that it concerns.
    pub(crate) fn of(mut self, path: &Path) -> Self {
        self.message = format!("{}: {}", path.display(), self.message);
        self
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(FAILED, error.to_string())
    }
}

/// Adds the path that an error concerns.
pub(crate) fn about<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> Failure + '_ {
    move |error| Failure::new(FAILED, format!("{}: {error}", path.display()))
}

const AFTER_HELP: &str = "\
Examples:
  ferrite mkfs /dev/shm/pool --size 1G      # make a pool in DRAM
  ferrite mount /dev/shm/pool /mnt          # mount it; returns when it is ready
  ferrite df                                # free space of all mounted pools
  ferrite umount /mnt                       # writes are durable already
  ferrite serve /dev/shm/pool               # export it
  ferrite mount tcp://127.0.0.1:7447 /mnt   # mount the export
  ferrite ls tcp://127.0.0.1:7447:/         # without a mount; also cp, cat, rm
  ferrite demo                              # see it work

A pool is named by its path, or by its address, pm:PATH; the export of a server by tcp://HOST:PORT/NAME, and by \
tcp://HOST:PORT/NAME?key=FILE if it has a key. nvme:POOL.toml is a pool on the devices that the file names. Schemes of \
engines that this build lacks (nvme:, fabric:) are refused by name. \
Any other name with a colon is a path; write ./pm:x for a file named pm:x.

Exit codes: 0 success, 1 failure, 2 wrong usage; `fsck` uses those of fsck(8).";

/// A file system for storage as fast as memory.
#[derive(Debug, Parser)]
#[command(name = "ferrite", version = version(), after_help = AFTER_HELP, max_term_width = 100)]
struct Arguments {
    /// Print more details to standard error (repeat for even more)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a pool: an empty file system in a file or on a DAX device
    Mkfs(mkfs::Mkfs),
    /// Make a pool larger, while it is not mounted
    Resize(resize::Resize),
    /// Mount a pool on a directory
    Mount(mount::Mount),
    /// Export pools to clients on the network
    Serve(serve::Serve),
    /// Hand a pool from the server that owns it to another
    Failover(failover::Failover),
    /// Show the activity of a server: requests, clients and latencies
    Top(top::Top),
    /// Make a key for exports of a server
    Key(key::MakeKey),
    /// Unmount a directory and end its daemon
    Umount(umount::Umount),
    /// Show the layout, state and activity of a pool
    Info(info::Info),
    /// Show a file's pages, page words and log entries
    Dump(dump::Dump),
    #[cfg(feature = "nvme")]
    DumpMeta(metadata::DumpMeta),
    #[cfg(feature = "nvme")]
    RestoreMeta(metadata::RestoreMeta),
    /// Verify all checksums of a pool, also while it is mounted
    Scrub(scrub::Scrub),
    /// Copy a pool, also while it is mounted
    Copy(copy::Copy),
    /// Copy files to and from volumes that are not mounted
    Cp(files::Cp),
    /// List directories of volumes that are not mounted
    Ls(files::Ls),
    /// Print files of volumes that are not mounted
    Cat(files::Cat),
    /// Show the attributes of files in volumes that are not mounted
    Stat(files::Stat),
    /// Remove files and directories of volumes that are not mounted
    Rm(files::Rm),
    /// Make directories in volumes that are not mounted
    Mkdir(files::Mkdir),
    /// Rename files and directories within a volume that is not mounted
    Mv(files::Mv),
    Clone(files::Clone),
    Snapshot(files::Snapshot),
    Quota(files::Quota),
    Send(files::Send),
    Receive(files::Receive),
    /// Write and read files of a server by RDMA, without calls of its file system
    #[cfg(feature = "rdma")]
    Mr(mr::Mr),
    Log(logs::Logs),
    /// Store everything that a mount has staged, and wait until it is there
    Flush(flush::Flush),
    Warm(warm::Warm),
    /// Block changes on a mount, so that its pool can be copied or a snapshot taken
    Freeze(freeze::Freeze),
    /// Allow changes on a frozen mount again
    Thaw(freeze::Thaw),
    /// Report the mounted pools of this machine to Prometheus
    Exporter(exporter::Exporter),
    /// Show free space and inodes
    Df(df::Df),
    /// Check a pool, and repair it on request
    Fsck(fsck::Fsck),
    /// Check what this machine supports, and say how to get what is missing
    Doctor(doctor::Doctor),
    Bench(files::Bench),
    /// Collect what a bug report needs, without secrets
    SupportBundle(support_bundle::SupportBundle),
    /// See Ferrite at work: a pool, a mount, real programs
    Demo(demo::Demo),
    /// Write man pages and shell completions into a directory
    Manual(manual::Manual),
}

/// Runs the command that the arguments name.
fn main() -> ExitCode {
    let words = by_helper_name(std::env::args_os().collect());
    let wrong_usage = code_of_wrong_usage(&words);
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let _ = error.print();
            return ExitCode::from(wrong_usage);
        }
        // Help or the version was requested.
        Err(error) => {
            output::printed(error.print());
            return end(0, FAILED);
        }
    };
    let cannot = match arguments.command {
        Command::Fsck(_) => fsck::CANNOT_CHECK,
        _ => FAILED,
    };
    log::start(arguments.verbose);
    open_files::raise_limit();
    let code = run(arguments).unwrap_or_else(|failure| {
        complain(format_args!("ferrite: {}", failure.message));
        failure.code
    });
    end(code, cannot)
}

/// Ends a command that would exit with `code`, or with `cannot` if only its output failed.
fn end(code: u8, cannot: u8) -> ExitCode {
    let Some(lost) = output::lost() else {
        return ExitCode::from(code);
    };
    complain(format_args!("ferrite: {lost}"));
    ExitCode::from(if code == 0 { cannot } else { code })
}

fn run(arguments: Arguments) -> Outcome {
    match arguments.command {
        Command::Mkfs(command) => command.run(),
        Command::Resize(command) => command.run(),
        Command::Mount(command) => command.run(arguments.verbose),
        Command::Serve(command) => command.run(),
        Command::Failover(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Key(command) => command.run(),
        Command::Umount(command) => command.run(),
        Command::Info(command) => command.run(),
        Command::Dump(command) => command.run(),
        #[cfg(feature = "nvme")]
        Command::DumpMeta(command) => command.run(),
        #[cfg(feature = "nvme")]
        Command::RestoreMeta(command) => command.run(),
        Command::Scrub(command) => command.run(),
        Command::Copy(command) => command.run(),
        Command::Cp(command) => command.run(),
        Command::Ls(command) => command.run(),
        Command::Cat(command) => command.run(),
        Command::Stat(command) => command.run(),
        Command::Rm(command) => command.run(),
        Command::Mkdir(command) => command.run(),
        Command::Mv(command) => command.run(),
        Command::Clone(command) => command.run(),
        Command::Snapshot(command) => command.run(),
        Command::Quota(command) => command.run(),
        Command::Send(command) => command.run(),
        Command::Receive(command) => command.run(),
        #[cfg(feature = "rdma")]
        Command::Mr(command) => command.run(),
        Command::Log(command) => command.run(),
        Command::Warm(command) => command.run(),
        Command::Flush(command) => command.run(),
        Command::Freeze(command) => command.run(),
        Command::Thaw(command) => command.run(),
        Command::Exporter(command) => command.run(),
        Command::SupportBundle(command) => command.run(),
        Command::Df(command) => command.run(),
        Command::Fsck(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Demo(command) => command.run(),
        Command::Manual(command) => command.run(Arguments::command()),
    }
}

/// The exit code for a wrong command line. From fsck(8), callers take 2 as a request to restart the machine.
fn code_of_wrong_usage(words: &[OsString]) -> u8 {
    let command = words
        .iter()
        .skip(1)
        .find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    match command {
        Some(command) if command == "fsck" => fsck::WRONG_USAGE,
        _ => USAGE,
    }
}

/// `mkfs.ferrite POOL` and the other helpers, as mount(8), fsck(8) and mkfs(8) call them, become `ferrite mkfs POOL`.
fn by_helper_name(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments
        .first()
        .map(Path::new)
        .and_then(Path::file_name)
        .and_then(|name| name.to_str());
    let command = match name {
        Some("mkfs.ferrite") => "mkfs",
        Some("mount.ferrite" | "mount.fuse.ferrite") => "mount",
        Some("fsck.ferrite") => "fsck",
        _ => return arguments,
    };
    // The name as well: usage lines show it, and must show commands that exist.
    arguments.splice(..1, ["ferrite".into(), command.into()]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn helpers_are_recognised_by_their_names() {
        let run = |words: &[&str]| by_helper_name(words.iter().map(OsString::from).collect());
        assert_eq!(run(&["/sbin/mount.ferrite", "pool", "dir"])[1], "mount");
        assert_eq!(run(&["mkfs.ferrite", "pool"]), ["ferrite", "mkfs", "pool"]);
        assert_eq!(code_of_wrong_usage(&run(&["/sbin/fsck.ferrite", "--what"])), 16);
        assert_eq!(code_of_wrong_usage(&run(&["ferrite", "-v", "fsck", "--what"])), 16);
        assert_eq!(code_of_wrong_usage(&run(&["ferrite", "scrub", "fsck"])), 2);
        assert_eq!(run(&["/usr/bin/ferrite", "df"]), ["/usr/bin/ferrite", "df"]);
    }
}

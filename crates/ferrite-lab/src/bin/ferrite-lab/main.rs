//! The program of the lab: the papers' experiments, and benchmarks of the engines beside their peers.
//!
//! Contents: the commands (`experiments`, `bench`), exit codes, and the program `ferrite` that some benchmarks run.
//! Standard output carries results, standard error reports errors.
#![deny(unsafe_code)]

mod bench;
mod experiments;

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand};

/// An error, as text for the user, and the exit code.
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
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(FAILED, error.to_string())
    }
}

/// Adds the path an error is about.
pub(crate) fn about<E: Display>(path: &Path) -> impl FnOnce(E) -> Failure + '_ {
    move |error| Failure::new(FAILED, format!("{}: {error}", path.display()))
}

/// Why results did not reach standard output. A reader that has gone is no reason.
static LOST: OnceLock<String> = OnceLock::new();

/// Prints a line to standard output.
pub(crate) fn say(line: impl Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error.to_string());
    }
}

/// Prints a value as one line of JSON.
pub(crate) fn say_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    say(serde_json::to_string(value)?);
    Ok(())
}

/// Prints a line to standard error.
pub(crate) fn complain(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The program `ferrite` that mounts and serves for benchmarks: the one that `FERRITE_BIN` names, or else the one
/// beside this program.
pub(crate) fn ferrite() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os("FERRITE_BIN") {
        return Ok(named.into());
    }
    let beside = std::env::current_exe()?.with_file_name("ferrite");
    match beside.exists() {
        true => Ok(beside),
        false => Err(Failure::new(
            FAILED,
            format!(
                "{}: not found; build the package ferrite-cli, or name a program in FERRITE_BIN",
                beside.display()
            ),
        )),
    }
}

/// The laboratory of Ferrite: experiments of the papers that it builds on, and benchmarks.
#[derive(Debug, Parser)]
#[command(
    name = "ferrite-lab",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 success, whatever the verdicts; 1 failure; 2 wrong usage."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Experiments(experiments::Action),
    Bench(bench::Bench),
}

/// Runs the command with which the process was started.
fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        Command::Experiments(action) => action.run(),
        Command::Bench(command) => command.run(),
    };
    let code = ended.unwrap_or_else(|failure| {
        complain(format_args!("ferrite-lab: {}", failure.message));
        failure.code
    });
    let Some(why) = LOST.get() else {
        return ExitCode::from(code);
    };
    complain(format_args!(
        "ferrite-lab: standard output: {why}; the output is incomplete"
    ));
    ExitCode::from(code.max(FAILED))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}

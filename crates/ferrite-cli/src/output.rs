//! What commands write: results to standard output, words about what happens to standard error.
//!
//! Invariant: a stream that is closed (`| head`) or full changes nothing of what a command does, nor of its exit code;
//! there is only less to read. That results were lost, though the reader was still there, is told at the end ([`lost`])
//! and makes a command fail that had not.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use super::Failure;

/// Set once nothing goes to standard output any more.
static STOPPED: OnceLock<()> = OnceLock::new();
/// Why, in words, unless the reader just went away.
static LOST: OnceLock<String> = OnceLock::new();

/// Takes note of how it went to print something to standard output.
pub(crate) fn printed(result: std::io::Result<()>) {
    let Err(error) = result else { return };
    let _ = STOPPED.set(());
    if error.kind() != ErrorKind::BrokenPipe {
        let _ = LOST.set(error.to_string());
    }
}

/// Prints a line to standard output.
pub(crate) fn say(line: impl Display) {
    if STOPPED.get().is_none() {
        printed(writeln!(std::io::stdout(), "{line}"));
    }
}

/// Prints a value as one line of JSON.
pub(crate) fn say_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    say(serde_json::to_string(value)?);
    Ok(())
}

/// Prints a line to standard error. There is nobody to tell if that fails.
pub(crate) fn complain(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// What became of results that somebody waits for, if they could not be written.
pub(crate) fn lost() -> Option<String> {
    if STOPPED.get().is_none() {
        printed(std::io::stdout().flush());
    }
    LOST.get()
        .map(|why| format!("standard output: {why}; the output is incomplete"))
}

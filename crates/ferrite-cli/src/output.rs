//! Output of commands: results to standard output, messages to standard error.
//!
//! Invariant: a stream that is closed (`| head`) or full changes nothing about the work of a command, nor about its
//! exit code; only less output appears. If results were lost although the reader was still there, the command reports
//! that at the end ([`lost`]), and fails even if it had succeeded.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

use super::Failure;
use super::printable::{harmless, harmless_json};

/// Set once nothing more goes to standard output.
static STOPPED: OnceLock<()> = OnceLock::new();
/// The reason, as text, unless the reader just disconnected.
static LOST: OnceLock<String> = OnceLock::new();

/// Records the result of printing something to standard output.
pub(crate) fn printed(result: std::io::Result<()>) {
    let Err(error) = result else { return };
    let _ = STOPPED.set(());
    if error.kind() != ErrorKind::BrokenPipe {
        let _ = LOST.set(error.to_string());
    }
}

/// Prints a line to standard output; a line for a terminal cannot control it.
pub(crate) fn say(line: impl Display) {
    if STOPPED.get().is_none() {
        let mut stdout = std::io::stdout();
        printed(match stdout.is_terminal() {
            true => writeln!(stdout, "{}", harmless(&line.to_string())),
            false => writeln!(stdout, "{line}"),
        });
    }
}

/// Writes bytes to standard output; false once nothing more goes there.
pub(crate) fn write(bytes: &[u8]) -> bool {
    if STOPPED.get().is_none() {
        printed(std::io::stdout().write_all(bytes));
    }
    goes_on()
}

/// Whether standard output still has a reader.
pub(crate) fn goes_on() -> bool {
    STOPPED.get().is_none()
}

/// Prints a value as one line of JSON.
pub(crate) fn say_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    say(harmless_json(serde_json::to_string(value)?));
    Ok(())
}

/// Prints a line to standard error, without characters that control a terminal: it may name files, and quote a server.
/// A failure to print cannot be reported.
pub(crate) fn complain(line: impl Display) {
    let line = line.to_string();
    super::log::remember(&line);
    let _ = writeln!(std::io::stderr(), "{}", harmless(&line));
}

/// Why expected results could not be written, if so.
pub(crate) fn lost() -> Option<String> {
    if STOPPED.get().is_none() {
        printed(std::io::stdout().flush());
    }
    LOST.get()
        .map(|why| format!("standard output: {why}; the output is incomplete"))
}

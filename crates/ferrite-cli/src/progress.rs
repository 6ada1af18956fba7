//! Progress of a long command: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error if that is a terminal, for phases that report progress.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// `quiet`: shows nothing, even on a terminal.
    pub(crate) fn new(quiet: bool) -> Bar {
        let bar = if std::io::stderr().is_terminal() && !quiet {
            ProgressBar::new(1)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{msg:<12} {bar:40} {percent:>3} %") {
            bar.set_style(style);
        }
        Bar(bar)
    }

    /// Shows the progress of a phase.
    pub(crate) fn show(&self, phase: &'static str, done: u64, total: u64) {
        self.0.set_message(phase);
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

/// Bytes copied so far, on standard error if that is a terminal.
pub(crate) struct Bytes(ProgressBar);

impl Bytes {
    /// `quiet`: shows nothing, even on a terminal.
    pub(crate) fn new(quiet: bool) -> Bytes {
        let bar = if std::io::stderr().is_terminal() && !quiet {
            ProgressBar::new(0)
        } else {
            ProgressBar::hidden()
        };
        let template = "{bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Bytes(bar)
    }

    /// Adds a further file of this many bytes to the total.
    pub(crate) fn expect(&self, bytes: u64) {
        self.0.inc_length(bytes);
    }

    /// Adds to the bytes copied.
    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Runs `f` while the bar is hidden.
    pub(crate) fn suspend(&self, f: impl FnOnce()) {
        self.0.suspend(f);
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

//! Progress of a long command: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error if that is a terminal, for phases that report progress.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// `quiet`: nothing is shown on a terminal, either.
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

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

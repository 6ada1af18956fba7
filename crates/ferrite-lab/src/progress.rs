//! Progress reports of a run.

use crate::data::FigureInfo;

/// Receives the progress of a run. Called from one thread.
pub trait Progress {
    /// A figure begins; it has the given number of steps.
    fn begin(&mut self, figure: &FigureInfo, steps: u64);
    /// A step begins.
    fn step(&mut self, what: &str);
    /// The figure is done.
    fn end(&mut self);
}

/// Discards all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _figure: &FigureInfo, _steps: u64) {}
    fn step(&mut self, _what: &str) {}
    fn end(&mut self) {}
}

//! Who is told how far a run is.

use crate::data::FigureInfo;

/// Who is told how far a run is. Called from one thread.
pub trait Progress {
    /// A figure begins; it has so many steps.
    fn begin(&mut self, figure: &FigureInfo, steps: u64);
    /// A step begins.
    fn step(&mut self, what: &str);
    /// The figure is done.
    fn end(&mut self);
}

/// Nobody is told.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _figure: &FigureInfo, _steps: u64) {}
    fn step(&mut self, _what: &str) {}
    fn end(&mut self) {}
}

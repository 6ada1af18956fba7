//! The report: placeholder until the plots are drawn.
use crate::data::FigureResult;

/// The results as text.
pub fn report(results: &[FigureResult]) -> String {
    format!("{results:?}")
}

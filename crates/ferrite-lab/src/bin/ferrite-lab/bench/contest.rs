//! A comparison of two sides that each measure themselves, in turn.

use std::time::Instant;

use ferrite_measure::median;

use super::{Circumstances, Output, Row};
use crate::Failure;

/// Nanoseconds for each of `count` operations.
pub(crate) fn timed(count: u64, work: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64 / count as f64)
}

/// See the module's head.
pub(crate) struct Contest {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) against: &'static str,
    pub(crate) rounds: usize,
    /// Further measured values, or the data that they were measured on.
    pub(crate) contents: Option<String>,
    pub(crate) circumstances: Circumstances,
}

/// Does a round's work, and returns the nanoseconds per operation.
pub(crate) type Side<'s> = &'s mut dyn FnMut() -> Result<f64, Failure>;

impl Contest {
    /// Runs it and prints the row.
    pub(crate) fn run(&self, ours: Side<'_>, theirs: Side<'_>, out: &mut Output) -> Result<(), Failure> {
        if !out.wants(self.name) {
            return Ok(());
        }
        let (mut our_ns, mut their_ns, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        // The first round is a warm-up and does not count.
        for round in 0..=self.rounds {
            let (ours, theirs) = (ours()?, theirs()?);
            if round > 0 {
                our_ns.push(ours);
                their_ns.push(theirs);
                ratios.push(ours / theirs);
            }
        }
        out.row(&Row {
            ratio: median(&ratios),
            ..self.row(median(&our_ns), median(&their_ns))
        })
    }

    /// The row for two times in nanoseconds that were measured elsewhere.
    pub(crate) fn row(&self, ours_ns: f64, theirs_ns: f64) -> Row {
        Row {
            group: self.group,
            name: self.name,
            against: self.against,
            ratio: ours_ns / theirs_ns,
            median_ns: ours_ns,
            against_median_ns: theirs_ns,
            fences: 0.0,
            lines_written_back: 0.0,
            bytes_streamed: 0.0,
            medium_bytes_per_byte: None,
            contents: self.contents.clone(),
            circumstances: self.circumstances.clone(),
        }
    }
}

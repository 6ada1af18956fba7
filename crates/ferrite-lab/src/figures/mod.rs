//! The figures, one file for each or for a family.
//!
//! Contents: [`Figure`], the list of them, and the common parts of their verdicts. A figure runs, and then judges its
//! own data; the verdict reads nothing but the data, so that a stored result can be judged again.

use crate::data::{FigureData, FigureInfo, Outcome, Panel, Verdict};
use crate::error::LabError;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::number;

mod concurrency;
mod filebench;
mod filemr;
mod fill;
mod hdpm_data;
mod hdpm_mixes;
mod io_size;
mod locality;
mod page_cache;
mod page_updates;
mod rufs;
mod scaling;
mod ycsb;

/// An experiment.
pub(crate) struct Figure {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) claim: &'static str,
    /// Whether it is run several times, each on pools of its own.
    pub(crate) on_fresh_pools: bool,
    /// Whether [`Plan::media_extra_ns`] is added to its measurements: in figures with cold operations of one page,
    /// whose missed lines can be counted.
    pub(crate) applies_media: bool,
    /// Number of steps that a run reports.
    pub(crate) steps: fn(&Plan) -> u64,
    pub(crate) run: fn(&Plan, &mut dyn Progress) -> Result<FigureData, LabError>,
    pub(crate) check: fn(&FigureData) -> Verdict,
}

impl Figure {
    pub(crate) fn info(&self) -> FigureInfo {
        FigureInfo {
            id: self.id.into(),
            title: self.title.into(),
            claim: self.claim.into(),
        }
    }
}

/// All, in the papers' order.
pub(crate) const FIGURES: &[Figure] = &[
    locality::FIGURE,
    scaling::FRAGMENTATION,
    scaling::FILE_SIZE,
    io_size::FIGURE,
    fill::FIGURE,
    concurrency::FIGURE,
    page_cache::FIGURE,
    filebench::FIGURE,
    ycsb::FOUR_THREADS,
    ycsb::ONE_THREAD,
    page_updates::FIGURE,
    hdpm_data::WRITES,
    hdpm_data::READS,
    hdpm_mixes::WEBPROXY,
    hdpm_mixes::VARMAIL,
    hdpm_data::SCANS,
    rufs::REGISTERED,
    rufs::METADATA,
    rufs::BACKENDS,
    rufs::LATENCY,
    rufs::SERVER_LATENCY,
    rufs::SMALL,
    rufs::SERVER_SMALL,
    rufs::LARGE,
    rufs::SERVER_LARGE,
    rufs::DEVICES,
    filemr::REGISTRATION,
    filemr::FRAGMENTATION,
    filemr::HITS,
    filemr::LATENCY,
    filemr::LOG,
];

/// The feature that this build lacks to run a figure, with the remedy; `None` for most.
pub(crate) fn lacking(id: &str) -> Option<&'static str> {
    ycsb::lacking(id)
        .or_else(|| rufs::lacking(id))
        .or_else(|| filemr::lacking(id))
}

/// A panel of bars without values yet.
fn bars(title: &str, x_label: &str, y_label: &str, unit: &str, log_y: bool) -> Panel {
    Panel {
        title: title.into(),
        x_label: x_label.into(),
        y_label: y_label.into(),
        unit: unit.into(),
        log_y,
        lines: false,
        series: Vec::new(),
    }
}

/// The extent tree that was measured: the product's, else the lab's in place.
fn extent_of(panel: &Panel) -> &'static str {
    if panel.series.iter().any(|series| series.name == "extent") {
        "extent"
    } else {
        "extent-in-place"
    }
}

/// Begins the remark that explains why a claim does not hold.
const LIKELY_REASON: &str = "Likely reason: ";

/// Collects the claims that hold and those that do not, with the numbers.
#[derive(Default)]
struct Judge {
    held: u32,
    failed: u32,
    missing: u32,
    open: u32,
    reasons: Vec<String>,
}

impl Judge {
    /// Records a part of the claim.
    fn claim(&mut self, holds: bool, what: String) {
        if holds {
            self.held += 1;
            self.reasons.push(format!("Holds: {what}."));
        } else {
            self.failed += 1;
            self.reasons.push(format!("Does not hold: {what}."));
        }
    }

    /// Records that a part could not be examined.
    fn missing(&mut self, what: &str) {
        self.missing += 1;
        self.reasons.push(format!("Not measured: {what}."));
    }

    /// Records a part of the claim that the intervals leave open.
    fn open(&mut self, what: &str) {
        self.open += 1;
        self.reasons.push(format!("Open, the intervals overlap: {what}."));
    }

    /// Records an explanation, which does not count.
    fn remark(&mut self, what: impl Into<String>) {
        self.reasons.push(what.into());
    }

    /// Checks that one contender takes at least `times` as long as another. Works for all values where less is better.
    fn at_least(&mut self, panel: &Panel, label: &str, slower: &str, faster: &str, times: f64) {
        let (Some(slow), Some(fast)) = (panel.value(slower, label), panel.value(faster, label)) else {
            return self.missing(&format!("{slower} against {faster} ({}, {label})", panel.title));
        };
        let unit = &panel.unit;
        self.claim(
            slow >= fast * times,
            format!(
                "{}, {label}: {slower} {} {unit}, {faster} {} {unit}, {:.2} times as much (wanted: at least {times})",
                panel.title,
                number(slow),
                number(fast),
                slow / fast
            ),
        );
    }

    /// Checks that a value at one label is at most a given multiple of that at another.
    fn flat(&mut self, panel: &Panel, name: &str, from: &str, to: &str, times: f64) {
        let (Some(first), Some(last)) = (panel.value(name, from), panel.value(name, to)) else {
            return self.missing(&format!("{name} ({}, {from} to {to})", panel.title));
        };
        let unit = &panel.unit;
        let growth = last / first;
        self.claim(
            growth <= times,
            format!(
                "{}: {name} from {} {unit} ({from}) to {} {unit} ({to}), {growth:.2} times (wanted: at most {times})",
                panel.title,
                number(first),
                number(last),
            ),
        );
    }

    /// Checks that a value grows by more than a factor.
    fn grows(&mut self, panel: &Panel, name: &str, from: &str, to: &str, times: f64) {
        let (Some(first), Some(last)) = (panel.value(name, from), panel.value(name, to)) else {
            return self.missing(&format!("{name} ({}, {from} to {to})", panel.title));
        };
        let unit = &panel.unit;
        self.claim(
            last >= first * times,
            format!(
                "{}: {name} from {} {unit} ({from}) to {} {unit} ({to}), {:.2} times (wanted: at least {times})",
                panel.title,
                number(first),
                number(last),
                last / first
            ),
        );
    }

    /// The verdict. `likely` says why this machine may not show the paper's effect: a sentence or more, for a verdict
    /// with a failed or open claim. A figure cannot be judged without one.
    fn verdict(mut self, likely: &str) -> Verdict {
        if self.failed + self.open > 0 {
            self.remark(format!("{LIKELY_REASON}{likely}"));
        }
        let outcome = match (self.held, self.failed, self.missing) {
            _ if self.held == 0 && self.open == 0 => Outcome::Not,
            (_, 0, 0) if self.open == 0 => Outcome::Reproduced,
            _ => Outcome::Partly,
        };
        Verdict {
            outcome,
            reasons: self.reasons,
        }
    }
}

/// Whether the intervals of two contenders overlap at a place.
fn overlap(panel: &Panel, one: &str, other: &str, label: &str) -> bool {
    let interval = |name: &str| {
        let series = panel.series.iter().find(|series| series.name == name)?;
        let point = series.points.iter().find(|point| point.label == label)?;
        Some((point.low, point.high))
    };
    match (interval(one), interval(other)) {
        (Some(one), Some(other)) => one.0 <= other.1 && other.0 <= one.1,
        _ => false,
    }
}

/// The panel of that title, or an empty one whose values are all missing.
fn panel_of(data: &FigureData, title: &str) -> Panel {
    data.panel(title)
        .cloned()
        .unwrap_or_else(|| bars(title, "", "", "", false))
}

#[cfg(test)]
mod tests;

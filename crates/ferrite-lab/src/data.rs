//! Data of an experiment: points with intervals, in series, in panels; and the verdict.
//!
//! All of it is plain data that can be converted to JSON and back.

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use ferrite_measure::median_with_interval;

/// A figure that the lab can run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FigureInfo {
    /// Its name on the command line.
    pub id: String,
    /// Its subject.
    pub title: String,
    /// The paper's claim about it.
    pub claim: String,
}

/// A measured value with its 95 % interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its place on the x axis.
    pub x: f64,
    /// The label of that place.
    pub label: String,
    /// Median of the samples.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of samples.
    pub samples: u64,
    /// The samples themselves, while a figure runs: another run on fresh pools adds its own. Empty in results.
    #[serde(skip)]
    pub(crate) values: Vec<f64>,
}

/// The point at place `x`, called `label`, of these samples.
pub(crate) fn point(x: f64, label: impl Into<String>, samples: &mut [f64]) -> Point {
    let (median, low, high) = median_with_interval(samples);
    Point {
        x,
        label: label.into(),
        median,
        low,
        high,
        samples: samples.len() as u64,
        values: samples.to_vec(),
    }
}

/// The points of one contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the contender.
    pub name: String,
    /// In the order of the x axis.
    pub points: Vec<Point>,
}

/// One plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// The operation that is plotted.
    pub title: String,
    /// Label of the x axis.
    pub x_label: String,
    /// Label of the y axis, without the unit.
    pub y_label: String,
    /// Unit of the values.
    pub unit: String,
    /// Whether the y axis is logarithmic.
    pub log_y: bool,
    /// Whether points are joined to lines; else they are bars.
    pub lines: bool,
    /// The contenders.
    pub series: Vec<Series>,
}

impl Panel {
    /// Median of a contender at the place of that label.
    pub fn value(&self, name: &str, label: &str) -> Option<f64> {
        let series = self.series.iter().find(|series| series.name == name)?;
        let point = series.points.iter().find(|point| point.label == label)?;
        Some(point.median).filter(|median| median.is_finite())
    }

    /// Adds a point's samples to those at the same place, if any.
    fn merge(&mut self, name: &str, mut point: Point) {
        let series = self.series.iter_mut().find(|series| series.name == name);
        match series.and_then(|series| series.points.iter_mut().find(|known| known.x == point.x)) {
            Some(known) => {
                known.values.append(&mut point.values);
                let mut values = std::mem::take(&mut known.values);
                *known = self::point(known.x, std::mem::take(&mut known.label), &mut values);
            }
            None => self.push(name, point),
        }
    }

    /// Adds a point to a contender's series.
    pub fn push(&mut self, name: &str, point: Point) {
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => self.series.push(Series {
                name: name.to_string(),
                points: vec![point],
            }),
        }
    }
}

/// All that a figure's run measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FigureData {
    /// The plots.
    pub panels: Vec<Panel>,
    /// Remarks that readers need to interpret them.
    pub notes: Vec<String>,
}

impl FigureData {
    /// Merges the measurements of another run of the same figure.
    pub(crate) fn merge(&mut self, other: FigureData) {
        for panel in other.panels {
            let Some(known) = self.panels.iter_mut().find(|known| known.title == panel.title) else {
                self.panels.push(panel);
                continue;
            };
            for series in panel.series {
                for point in series.points {
                    known.merge(&series.name, point);
                }
            }
        }
        self.notes = other.notes;
    }

    /// Drops the samples; points keep the values computed from them.
    pub(crate) fn settle(&mut self) {
        let series = self.panels.iter_mut().flat_map(|panel| &mut panel.series);
        series
            .flat_map(|series| &mut series.points)
            .for_each(|point| point.values = Vec::new());
    }

    /// The panel of that title.
    pub fn panel(&self, title: &str) -> Option<&Panel> {
        self.panels.iter().find(|panel| panel.title == title)
    }

    /// Median of a contender in a panel at a label.
    pub fn value(&self, panel: &str, name: &str, label: &str) -> Option<f64> {
        self.panel(panel)?.value(name, label)
    }
}

/// Whether the paper's claim holds here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It does.
    Reproduced,
    /// Some of it does.
    Partly,
    /// It does not.
    Not,
}

impl Outcome {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Outcome::Reproduced => "reproduced",
            Outcome::Partly => "partly reproduced",
            Outcome::Not => "not reproduced",
        }
    }
}

/// An outcome and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The outcome.
    pub outcome: Outcome,
    /// The reasons, with the numbers, one sentence each.
    pub reasons: Vec<String>,
}

/// The machine it was measured on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU as the kernel calls it.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// Whether cache misses can be counted.
    pub counters: String,
}

/// A figure's run from beginning to end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigureResult {
    /// The figure.
    pub info: FigureInfo,
    /// The plan of the run.
    pub plan: Plan,
    /// The machine of the run.
    pub machine: Machine,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// The measurements.
    pub data: FigureData,
    /// The verdict on them.
    pub verdict: Verdict,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(samples: &mut [f64]) -> FigureData {
        let series = Series {
            name: "one".into(),
            points: vec![point(0.0, "here", samples)],
        };
        let panel = Panel {
            title: "t".into(),
            x_label: String::new(),
            y_label: String::new(),
            unit: String::new(),
            log_y: false,
            lines: false,
            series: vec![series],
        };
        FigureData {
            panels: vec![panel],
            notes: Vec::new(),
        }
    }

    /// Several runs count as one: the median is that of all their samples.
    #[test]
    fn runs_merge_into_the_median_of_all_samples() {
        let mut all = FigureData::default();
        all.merge(data(&mut [1.0, 2.0, 3.0]));
        all.merge(data(&mut [10.0, 11.0]));
        all.settle();
        let point = &all.panels[0].series[0].points[0];
        assert_eq!(
            (point.median, point.low, point.high, point.samples),
            (3.0, 1.0, 11.0, 5)
        );
        assert!(point.values.is_empty());
        assert_eq!(all.value("t", "one", "here"), Some(3.0));
    }
}

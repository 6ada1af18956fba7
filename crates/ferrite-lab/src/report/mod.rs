//! The report: one page of HTML that loads nothing, with a plot, the paper's claim, the measured values and the verdict
//! for each figure.
//!
//! Contents: the page; [`plot`] draws. The raw data is in the page too, as JSON, so that it can be judged again.

mod plot;

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::data::{FigureResult, Outcome, Panel};

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#1c1c1c;background:#fff}\
h1{margin-bottom:.2em}h2{margin-top:2.5em;border-top:1px solid #ccc;padding-top:1em}\
svg{width:100%;height:auto}\
table{border-collapse:collapse;font-size:14px;margin:.5em 0}th,td{border:1px solid #ccc;padding:.2em \
.6em;text-align:right}\
th:first-child,td:first-child{text-align:left}caption{text-align:left;font-weight:600;padding:.4em 0}\
.claim{border-left:4px solid #888;padding-left:.8em;margin-left:0}\
.verdict{display:inline-block;padding:.1em .6em;border-radius:.3em;color:#fff;font-weight:600}\
.reproduced{background:#1a7f37}.partly{background:#9a6700}.not{background:#b3261e}\
.notes{color:#555;font-size:14px}.range{color:#777}";

/// The page for these results.
pub fn report(results: &[FigureResult]) -> String {
    let mut page = String::new();
    page.push_str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Ferrite lab</title><style>");
    page.push_str(STYLE);
    page.push_str("</style></head><body>\n<h1>Ferrite lab: the papers' experiments, measured here</h1>\n");
    head(&mut page, results);
    for result in results {
        figure(&mut page, result);
        if results.first().is_some_and(|first| first.machine != result.machine) {
            elsewhere(&mut page, result);
        }
    }
    raw(&mut page, results);
    page.push_str("</body></html>\n");
    page
}

fn add(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = page.write_fmt(text);
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Reproduced => "reproduced",
        Outcome::Partly => "partly",
        Outcome::Not => "not",
    }
}

fn head(page: &mut String, results: &[FigureResult]) {
    let Some(first) = results.first() else {
        page.push_str("<p>No figure was run.</p>\n");
        return;
    };
    let machine = &first.machine;
    let seconds: f64 = results.iter().map(|result| result.seconds).sum();
    // Figures may come from several runs; those that differ from the first say so themselves.
    let plans: BTreeSet<&str> = results.iter().map(|result| result.plan.name.as_str()).collect();
    let plans: Vec<&str> = plans.into_iter().collect();
    add(
        page,
        format_args!(
            "<p>Measured on {} with {} cores, Linux {}; memory without a name (DRAM) stands in for persistent memory. \
             Plan <b>{}</b>, {:.0} \
             s. Hardware cache-miss counters: {}; that cold is cold is shown by its ratio to hot.</p>\n<p>Values are \
             medians; bars and numbers \
             in brackets are 95 % intervals of the median by order statistics. Machines with other work on them \
             wobble: look at \
             ratios and at the intervals, not at single nanoseconds.</p>\n",
            escaped(&machine.cpu),
            machine.cores,
            escaped(&machine.kernel),
            escaped(&plans.join(", ")),
            seconds,
            escaped(&machine.counters),
        ),
    );
    page.push_str("<table><caption>Verdicts</caption><tr><th>figure</th><th>what</th><th>verdict</th></tr>\n");
    for result in results {
        add(
            page,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td><span class=\"verdict {}\">{}</span></td></tr>\n",
                escaped(&result.info.id),
                escaped(&result.info.title),
                class(result.verdict.outcome),
                result.verdict.outcome.words(),
            ),
        );
    }
    page.push_str("</table>\n");
}

fn figure(page: &mut String, result: &FigureResult) {
    let info = &result.info;
    add(
        page,
        format_args!(
            "<h2 id=\"{id}\">{id}: {title}</h2>\n<blockquote class=\"claim\"><b>The paper:</b> \
             {claim}</blockquote>\n<p><span class=\"verdict \
             {class}\">{words}</span> ({seconds:.1} s)</p>\n<ul>\n",
            id = escaped(&info.id),
            title = escaped(&info.title),
            claim = escaped(&info.claim),
            class = class(result.verdict.outcome),
            words = result.verdict.outcome.words(),
            seconds = result.seconds,
        ),
    );
    for reason in &result.verdict.reasons {
        add(page, format_args!("<li>{}</li>\n", escaped(reason)));
    }
    page.push_str("</ul>\n");
    match plot::svg(&result.data.panels) {
        Ok(svg) => page.push_str(&svg),
        Err(error) => add(
            page,
            format_args!("<p>The plot could not be drawn: {}</p>", escaped(&error)),
        ),
    }
    page.push_str("<details><summary>Measured values</summary>\n");
    for panel in &result.data.panels {
        table(page, panel);
    }
    page.push_str("</details>\n<ul class=\"notes\">\n");
    for note in &result.data.notes {
        add(page, format_args!("<li>{}</li>\n", escaped(note)));
    }
    page.push_str("</ul>\n");
}

/// The machine of a figure, if it differs from the page's head.
fn elsewhere(page: &mut String, result: &FigureResult) {
    let machine = &result.machine;
    add(
        page,
        format_args!(
            "<p class=\"notes\">This figure was measured on {} with {} cores, Linux {}; hardware cache-miss counters: \
             {}.</p>\n",
            escaped(&machine.cpu),
            machine.cores,
            escaped(&machine.kernel),
            escaped(&machine.counters),
        ),
    );
}

/// A value with its significant digits.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

fn table(page: &mut String, panel: &Panel) {
    add(
        page,
        format_args!(
            "<table><caption>{} ({}, {})</caption><tr><th></th>",
            escaped(&panel.title),
            escaped(&panel.y_label),
            escaped(&panel.unit)
        ),
    );
    let labels = panel
        .series
        .first()
        .map(|series| series.points.as_slice())
        .unwrap_or_default();
    for point in labels {
        add(page, format_args!("<th>{}</th>", escaped(&point.label)));
    }
    page.push_str("</tr>\n");
    for series in &panel.series {
        add(page, format_args!("<tr><td>{}</td>", escaped(&series.name)));
        for point in &series.points {
            add(
                page,
                format_args!(
                    "<td title=\"{} samples\">{} <span class=\"range\">[{}, {}]</span></td>",
                    point.samples,
                    number(point.median),
                    number(point.low),
                    number(point.high)
                ),
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

/// The data itself, for readers who want to use the numbers.
fn raw(page: &mut String, results: &[FigureResult]) {
    if let Ok(json) = serde_json::to_string(results) {
        page.push_str("<script type=\"application/json\" id=\"results\">");
        // Nothing in it may close the element.
        page.push_str(&json.replace('<', "\\u003c"));
        page.push_str("</script>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{FigureData, FigureInfo, Machine, Point, Series, Verdict};
    use crate::plan::Plan;

    fn result(name: &str) -> FigureResult {
        let point = |x: f64, median: f64| Point {
            x,
            label: format!("<{x}>"),
            median,
            low: median * 0.9,
            high: median * 1.1,
            samples: 3,
            values: Vec::new(),
        };
        let panel = |log_y: bool, lines: bool| Panel {
            title: "a < b & c".into(),
            x_label: "x".into(),
            y_label: "time".into(),
            unit: "ns".into(),
            log_y,
            lines,
            series: vec![Series {
                name: name.into(),
                points: vec![point(0.0, 10.0), point(1.0, 2000.0)],
            }],
        };
        FigureResult {
            info: FigureInfo {
                id: "x-1".into(),
                title: "title".into(),
                claim: "</script>".into(),
            },
            plan: Plan::tiny(),
            machine: Machine {
                cpu: "cpu".into(),
                cores: 1,
                kernel: "k".into(),
                counters: "none".into(),
            },
            seconds: 1.0,
            data: FigureData {
                panels: vec![panel(true, false), panel(false, true), panel(false, false)],
                notes: vec!["a note".into()],
            },
            verdict: Verdict {
                outcome: Outcome::Partly,
                reasons: vec!["because".into()],
            },
        }
    }

    /// With any name, the page stays well-formed, and its data can be read back.
    #[test]
    fn the_page_is_well_formed_and_gives_its_data_away() {
        let results = vec![result("<odd> & \"name\"")];
        let page = report(&results);
        assert_eq!(page.matches("<svg").count(), 1);
        assert!(!page.contains("<odd>"));
        let (_, rest) = page.split_once("id=\"results\">").expect("the data");
        let (json, _) = rest.split_once("</script>").expect("its end");
        let back: Vec<FigureResult> = serde_json::from_str(json).expect("JSON");
        assert_eq!(back, results);
    }

    #[test]
    fn a_figure_from_another_machine_says_so() {
        let mut other = result("x");
        other.machine.cpu = "another cpu".into();
        other.plan.name = "full".into();
        let page = report(&[result("x"), other]);
        assert_eq!(page.matches("measured on another cpu").count(), 1);
        assert!(page.contains("<b>full, tiny</b>"));
        assert!(!report(&[result("x")]).contains("This figure was measured on"));
    }

    #[test]
    fn nothing_and_nonsense_are_drawn_without_a_panic() {
        assert!(report(&[]).contains("No figure"));
        let mut odd = result("x");
        odd.data.panels[0].series[0].points[0].median = f64::NAN;
        odd.data.panels[1].series.clear();
        odd.data.panels[2].series[0].points[0].low = 0.0;
        assert!(report(&[odd]).contains("x-1"));
    }
}

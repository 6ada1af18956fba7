//! `ferrite-lab list`, `run` and `report`: the papers' experiments, run here, with a report.
//!
//! Contents: the commands, and how results of several runs are kept together in one directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use ferrite_lab::{FigureInfo, FigureResult, Plan, Progress};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{FAILED, Failure, Outcome, USAGE, about, complain, say, say_json};

/// Default directory of the results.
const DIRECTORY: &str = "ferrite-lab";
/// File with the data in that directory.
const RESULTS: &str = "results.json";

const EXAMPLES: &str = "\
Examples:
  ferrite-lab list                          all figures
  ferrite-lab run hashfs-5 hdpm-9 --quick   two figures
  ferrite-lab run all --quick               all figures, in minutes; results go to ferrite-lab/
  ferrite-lab run hdpm-2 --trace my.trace   what your programs write (recorded with
                                            `ferrite mount -o trace=FILE`)
  ferrite-lab report --out ferrite-lab      judge stored results again and rewrite the report

`run` keeps the results of other figures in results.json, and replaces those of the figures it runs.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// List the figures and what the papers claim
    List {
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Run figures, then write report.html and results.json; results of other figures are kept
    #[command(after_help = EXAMPLES)]
    Run {
        /// Figures by id, or `all`
        #[arg(required = true)]
        figures: Vec<String>,
        /// Smaller sizes: all figures in less than 10 minutes on two cores
        #[arg(long)]
        quick: bool,
        /// Nanoseconds to add for each cache line that a cold operation misses, to model a slower medium (hashfs-5, 6,
        /// 7, 9; the other figures report that it is not applied)
        #[arg(long, default_value_t = 0.0, value_name = "NS")]
        media_ns: f64,
        /// Seed of all random numbers
        #[arg(long)]
        seed: Option<u64>,
        /// An additional trace for figure hdpm-2; may be given more than once
        #[arg(long = "trace", value_name = "FILE")]
        traces: Vec<PathBuf>,
        /// Directory for report and data
        #[arg(long, default_value = DIRECTORY)]
        out: PathBuf,
        /// Also print the results as JSON, one object per line
        #[arg(long)]
        json: bool,
    },
    /// Judge results.json again with this build, and write report.html from it
    Report {
        /// Directory of results.json and report.html
        #[arg(long, default_value = DIRECTORY)]
        out: PathBuf,
    },
}

/// A bar for the figure that is running.
struct Bar(ProgressBar);

impl Progress for Bar {
    fn begin(&mut self, figure: &FigureInfo, steps: u64) {
        let style = ProgressStyle::with_template("{prefix:10} {bar:30} {pos}/{len} {wide_msg}");
        self.0 = ProgressBar::new(steps).with_prefix(figure.id.clone());
        self.0.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    }

    fn step(&mut self, what: &str) {
        self.0.set_message(what.to_string());
        self.0.inc(1);
    }

    fn end(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Action {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Action::List { json } => list(json),
            Action::Run {
                figures,
                quick,
                media_ns,
                seed,
                traces,
                out,
                json,
            } => {
                let mut plan = if quick { Plan::quick() } else { Plan::full() };
                if !(0.0..1e6).contains(&media_ns) {
                    return Err(Failure::new(USAGE, "--media-ns: choose 0 to 1000000"));
                }
                plan.media_extra_ns = media_ns;
                plan.seed = seed.unwrap_or(plan.seed);
                if !traces.is_empty() && !figures.iter().any(|id| id == "hdpm-2" || id == "all") {
                    return Err(Failure::new(
                        USAGE,
                        "--trace: only figure hdpm-2 uses traces; name it as well",
                    ));
                }
                plan.traces = traces;
                run(&figures, &plan, &out, json)
            }
            Action::Report { out } => report(&out),
        }
    }
}

fn list(json: bool) -> Outcome {
    for figure in ferrite_lab::list() {
        if json {
            say_json(&figure)?;
        } else {
            say(format_args!(
                "{:10} {}\n           {}",
                figure.id, figure.title, figure.claim
            ));
            if let Some(mend) = ferrite_lab::lacks(&figure.id) {
                say(format_args!("           Not here: {mend}"));
            }
        }
    }
    Ok(0)
}

fn run(figures: &[String], plan: &Plan, out: &Path, json: bool) -> Outcome {
    let ids: Vec<&str> = figures.iter().map(String::as_str).collect();
    if let Some(unknown) = unknown(&ids) {
        let known: Vec<_> = ferrite_lab::list().into_iter().map(|figure| figure.id).collect();
        let known = known.join(", ");
        return Err(Failure::new(
            USAGE,
            format!("{unknown}: no such figure; there are {known}, and all"),
        ));
    }
    let lacking = ferrite_lab::list()
        .into_iter()
        .filter_map(|figure| Some((ferrite_lab::lacks(&figure.id)?, figure.id)));
    for (mend, id) in lacking {
        if ids.contains(&id.as_str()) {
            return Err(Failure::new(USAGE, format!("{id}: {mend}")));
        }
        if ids.contains(&"all") {
            complain(format_args!("{id} is left out: {mend}"));
        }
    }
    // Before the minutes of work, not after.
    std::fs::create_dir_all(out).map_err(about(out))?;
    let earlier = earlier(out)?;
    let results = ferrite_lab::run(&ids, plan, &mut Bar(ProgressBar::hidden()))?;
    for result in &results {
        if json {
            say_json(result)?;
        } else {
            tell(result);
        }
    }
    let ran = results.len();
    let all = ferrite_lab::merge(earlier, results);
    if all.len() > ran {
        complain(format_args!(
            "kept of earlier runs in {}: {} figures ({} ran now)",
            out.join(RESULTS).display(),
            all.len() - ran,
            ran
        ));
    }
    write_all(&all, out)
}

/// Results of earlier runs in the directory; empty if no file exists.
fn earlier(out: &Path) -> Result<Vec<FigureResult>, Failure> {
    let data = out.join(RESULTS);
    let mend = "move it away or choose another --out";
    match std::fs::read_to_string(&data) {
        Ok(text) => ferrite_lab::from_json(&text)
            .map_err(|error| Failure::new(FAILED, format!("{}: {error}; {mend}", data.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Failure::new(FAILED, format!("{}: {error}; {mend}", data.display()))),
    }
}

fn unknown<'a>(ids: &[&'a str]) -> Option<&'a str> {
    let known = ferrite_lab::list();
    ids.iter()
        .copied()
        .find(|&id| id != "all" && known.iter().all(|figure| figure.id != id))
}

fn tell(result: &FigureResult) {
    let FigureResult {
        info, verdict, seconds, ..
    } = result;
    say(format_args!(
        "{:10} {}: {} ({seconds:.0} s)",
        info.id,
        info.title,
        verdict.outcome.words()
    ));
    for reason in &verdict.reasons {
        say(format_args!("           {reason}"));
    }
}

fn report(out: &Path) -> Outcome {
    let data = out.join(RESULTS);
    let text = std::fs::read_to_string(&data).map_err(about(&data))?;
    let mut results = ferrite_lab::from_json(&text).map_err(about(&data))?;
    ferrite_lab::judge_again(&mut results);
    write_all(&results, out)
}

/// Writes data and page.
fn write_all(results: &[FigureResult], out: &Path) -> Outcome {
    let data = out.join(RESULTS);
    std::fs::write(&data, ferrite_lab::to_json(results)?).map_err(about(&data))?;
    let page = out.join("report.html");
    std::fs::write(&page, ferrite_lab::report(results)).map_err(about(&page))?;
    // A program may read standard output.
    complain(format_args!("report: {}", page.display()));
    Ok(0)
}

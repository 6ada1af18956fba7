//! `ferrite fsck`: check a pool and say what is wrong with it.

use std::io::IsTerminal;
use std::path::PathBuf;

use ferrite_pm::{Access, PmError, Region};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Failure, Outcome, mounts, say, say_json};

/// All is well.
const CLEAN: u8 = 0;
/// Errors were found, and left as they are.
const ERRORS_LEFT: u8 = 4;
/// The check could not be made.
const CANNOT_CHECK: u8 = 8;

/// Check a pool; changes nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The pool must not be mounted. The journal of a crashed pool is replayed into a private copy first, as a mount would do
in place.

Exit codes: 0 sound, 4 errors found and left, 8 could not check, 2 wrong usage.")]
pub(crate) struct Fsck {
    /// Pool to check
    pool: PathBuf,
    /// Change nothing (the only mode so far)
    #[arg(short = 'n')]
    no_changes: bool,
    /// Check only, whatever fsck(8) asks for at boot
    #[arg(short, hide = true)]
    all: bool,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Fsck {
    pub(crate) fn run(self) -> Outcome {
        let cannot = |error: &dyn std::fmt::Display| Failure::new(CANNOT_CHECK, error.to_string());
        let region = match Region::open(&self.pool, Access::ReadOnlyPrivate) {
            Ok(region) => region,
            Err(PmError::InUse { by, .. }) => {
                let at =
                    mounts::find(&self.pool).map_or(String::new(), |m| format!(", mounted on {}", m.dir.display()));
                let text = format!(
                    "{}: in use by {by}{at}; unmount it before the check",
                    self.pool.display()
                );
                return Err(Failure::new(CANNOT_CHECK, text));
            }
            Err(error) => return Err(cannot(&error)),
        };
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(1)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{msg:<12} {bar:40} {percent:>3} %") {
            bar.set_style(style);
        }
        let report = ferrite_fs::fsck(region, &mut |phase, done, total| {
            bar.set_message(phase);
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let report = report.map_err(|error| cannot(&format!("{}: {error}", self.pool.display())))?;
        if self.json {
            say_json(&report)?;
        } else {
            for finding in &report.findings {
                say(format!("{}: {}", finding.phase, finding.what));
            }
            let state = match report.findings.len() {
                0 => "sound".to_string(),
                1 => "1 error".to_string(),
                n => format!("{n} errors"),
            };
            say(format!(
                "{}: {state}; {} inodes, {} names, {} pages, {} blocks in use, {} records replayed",
                self.pool.display(),
                report.inodes,
                report.entries,
                report.pages,
                report.blocks,
                report.replayed_records
            ));
        }
        Ok(if report.findings.is_empty() { CLEAN } else { ERRORS_LEFT })
    }
}

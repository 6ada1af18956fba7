//! `ferrite fsck`: check a pool, report what is wrong with it, and repair it on request.

use std::path::Path;

use ferrite::volume::Address;
use ferrite_fs::rewrite::Rewrite;
use ferrite_fs::{FsckOptions, FsckReport, RepairReport};
use ferrite_pm::{Access, Region};

use super::progress::Bar;
use super::target::local_address;
use super::{Failure, Outcome, mounts, opening, say, say_json};

/// All is well.
const CLEAN: u8 = 0;
/// Errors were found and repaired.
const REPAIRED: u8 = 1;
/// Errors were found, and left as they are.
const ERRORS_LEFT: u8 = 4;
/// The check could not be carried out.
pub(crate) const CANNOT_CHECK: u8 = 8;
/// The command line is wrong.
pub(crate) const WRONG_USAGE: u8 = 16;

/// Check a pool, and repair it on request
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The pool must not be mounted. By default nothing is changed: the journal of a crashed pool is replayed into a private \
copy.

A repair keeps everything that is confirmed by a checksum or by two structures that agree. Files that have lost their \
names go to lost+found as #INODE. Files whose content may be wrong go there as damaged-INODE, so that no program mistakes \
them for intact. A crash during a repair does no harm: the next mount or fsck completes it.

Exit codes: 0 sound, 1 errors found and repaired, 4 errors left, 8 could not check, 16 wrong usage.")]
pub(crate) struct Fsck {
    /// Pool to check, or a directory where its mount died
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Repair everything that can be repaired
    #[arg(long, visible_short_alias = 'y', conflicts_with_all = ["no_changes", "preen"])]
    repair: bool,
    /// Repair only if the repair loses nothing (for use at boot); otherwise report what it would do
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "no_changes")]
    preen: bool,
    /// Change nothing (the default)
    #[arg(short = 'n')]
    no_changes: bool,
    /// Also verify file data, in pools made with `mkfs --data-checksum`; takes as long as reading the whole pool
    #[arg(long)]
    data: bool,
    /// Content in S3: give up changes that are staged on a device which is lost, so that their files can be used again
    /// as they were before
    #[arg(long, conflicts_with_all = ["no_changes", "preen"])]
    forget_staged: bool,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    /// Do nothing and report success if the pool is mounted
    #[arg(short = 'M')]
    skip_mounted: bool,
    /// Check although the pool seems sound; that is always done
    #[arg(short = 'f', hide = true)]
    force: bool,
    /// Say more; the report is whole anyway
    #[arg(short = 'V', hide = true)]
    wordy: bool,
    /// Show how far it is, which is done on a terminal
    #[arg(short = 'C', hide = true, value_name = "FD", allow_negative_numbers = true)]
    progress: Option<i32>,
    /// Say how long it took, as fsck(8) does itself
    #[arg(short = 'r', hide = true)]
    statistics: bool,
    /// Show no title; fsck.ferrite has no title
    #[arg(short = 'T', hide = true)]
    no_title: bool,
}

/// The number of errors; beyond a limit they are not counted.
fn count(report: &FsckReport) -> String {
    let more = if report.more { "more than " } else { "" };
    format!("{more}{}", report.findings.len())
}

impl Fsck {
    pub(crate) fn run(mut self) -> Outcome {
        if let Some(mount) = mounts::find(self.pool()) {
            // Opening the pool reports a daemon that has it.
            self.pool = self.pool.at(&mount.pool);
            if self.skip_mounted {
                return Ok(CLEAN);
            }
        } else if self.pool().is_dir() {
            return Err(self.cannot(&"no pool is mounted there; give the path of the pool"));
        }
        #[cfg(feature = "nvme")]
        if self.pool.scheme() == "nvme" {
            let checking = super::nvme::Checking {
                path: self.pool.path(),
                repair: self.repair,
                preen: self.preen,
                data: self.data,
                forget_staged: self.forget_staged,
                json: self.json,
            };
            return checking.run().map_err(|failure| failure.with_code(CANNOT_CHECK));
        }
        if self.forget_staged {
            let text = "--forget-staged is for pools whose content is in S3";
            return Err(Failure::new(WRONG_USAGE, text.to_owned()));
        }
        match self.repair || self.preen {
            true => self.mend(),
            false => self.check(),
        }
    }

    fn pool(&self) -> &Path {
        self.pool.path()
    }

    fn cannot(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::new(CANNOT_CHECK, format!("{}: {error}", self.pool().display()))
    }

    fn open(&self, access: Access) -> Result<Region, Failure> {
        opening::open(self.pool(), access).map_err(|failure| failure.with_code(CANNOT_CHECK))
    }

    fn options(&self) -> FsckOptions {
        FsckOptions::default().data(self.data)
    }

    fn check(&self) -> Outcome {
        let bar = Bar::new(false);
        let report = ferrite_fs::fsck_with(
            self.open(Access::ReadOnlyPrivate)?,
            self.options(),
            &mut |phase, done, total| bar.show(phase, done, total),
        );
        drop(bar);
        let report = report.map_err(|error| self.cannot(&error))?;
        if self.json {
            say_json(&report)?;
        } else {
            for finding in &report.findings {
                say(format!("{}: {}", finding.phase, finding.what));
            }
            // Without the option a repair would miss what this check found.
            let repair = match self.data {
                true => "ferrite fsck --repair --data",
                false => "ferrite fsck --repair",
            };
            let state = match report.findings.len() {
                0 => "sound".to_string(),
                1 => format!("1 error; `{repair}` repairs it"),
                _ => format!("{} errors; `{repair}` repairs them", count(&report)),
            };
            self.say_state(&state, &report);
        }
        Ok(if report.findings.is_empty() { CLEAN } else { ERRORS_LEFT })
    }

    fn say_state(&self, state: &str, report: &FsckReport) {
        let orphans = match report.orphans {
            0 => String::new(),
            count => format!(" ({count} without a name, which the next mount frees)"),
        };
        say(format!(
            "{}: {state}; {} inodes{orphans}, {} names, {} pages, {} blocks in use, {} records replayed",
            self.pool().display(),
            report.inodes,
            report.entries,
            report.pages,
            report.blocks,
            report.replayed_records
        ));
    }

    fn mend(&self) -> Outcome {
        let bar = Bar::new(false);
        // Plan the repair on a private copy, and only then carry it out.
        let planned = ferrite_fs::repair_with(
            self.open(Access::ReadOnlyPrivate)?,
            self.options(),
            &mut |phase, done, total| bar.show(phase, done, total),
        );
        drop(bar);
        let (report, rewrite) = planned.map_err(|error| self.cannot(&error))?;
        let loses = report.mended.iter().any(|mended| mended.loss);
        let refused = !self.repair && loses;
        if !refused && !report.mended.is_empty() {
            self.carry_out(&rewrite)?;
        }
        let code = match (refused, report.mended.is_empty(), report.after.findings.is_empty()) {
            (true, _, _) | (_, _, false) => ERRORS_LEFT,
            (_, true, true) => CLEAN,
            (_, false, true) => REPAIRED,
        };
        if self.json {
            say_json(&report)?;
        } else {
            self.tell(&report, refused);
        }
        Ok(code)
    }

    fn carry_out(&self, rewrite: &Rewrite) -> Result<(), Failure> {
        let region = self.open(Access::ReadWrite)?;
        rewrite.apply(&region).map_err(|error| self.cannot(&error))
    }

    fn tell(&self, report: &RepairReport, refused: bool) {
        for mended in &report.mended {
            let action = match refused {
                true => format!("would be {}", mended.action),
                false => mended.action.to_string(),
            };
            say(format!("{}: {}: {action}", mended.phase, mended.what));
        }
        for name in &report.quarantined {
            say(format!("quarantined: lost+found/{name}"));
        }
        for finding in &report.after.findings {
            say(format!("LEFT: {}: {}", finding.phase, finding.what));
        }
        let state = match (refused, report.mended.len(), report.after.findings.len()) {
            (true, n, _) => {
                format!("{n} errors, nothing changed: a repair would lose something; run with --repair to accept that")
            }
            (_, n, left) if left > 0 => format!("{n} repairs, {} errors LEFT", count(&report.after)),
            (_, 0, _) => "sound".to_string(),
            (_, n, _) => format!("sound after {n} repairs"),
        };
        self.say_state(&state, &report.after);
    }
}

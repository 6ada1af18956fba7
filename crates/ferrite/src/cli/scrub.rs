//! `ferrite scrub`: look for damage in a pool, mounted or not.

use std::path::PathBuf;

use ferrite_fs::{Engine, MountOptions, ScrubReport};
use ferrite_pm::{Access, Region};

use super::{Failure, Outcome, about, control, mounts, say, say_json};

/// All checksums are right.
const SOUND: u8 = 0;
/// Damage was found.
const DAMAGED: u8 = 4;

/// Look for damage: verify all checksums, also while the pool is mounted
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Superblocks, inodes, directories, extended attributes and page logs carry checksums; file data does in pools made with \
`mkfs --data-checksum`. Nothing is changed: unmount a pool with damaged structures and run `ferrite fsck --repair`; write damaged data \
anew, restore the file from a copy, or have `ferrite fsck --repair --data` put it aside as it is.

Exit codes: 0 sound, 1 could not look, 4 damage was found, 2 wrong usage.")]
pub(crate) struct Scrub {
    /// Pool, or a directory where one is mounted
    pool: PathBuf,
    /// Read at most so many MiB a second
    #[arg(long, value_name = "MIB")]
    limit: Option<u64>,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Scrub {
    pub(crate) fn run(self) -> Outcome {
        let pool = mounts::find(&self.pool).map_or_else(|| self.pool.clone(), |mount| mount.pool);
        let limit = self.limit.map(|mib| mib << 20);
        let request = format!("scrub {}", limit.unwrap_or(0));
        let report: ScrubReport = match control::ask_patiently(&pool, &request)? {
            Some(report) => report,
            None => {
                let region = Region::open(&pool, Access::ReadOnlyPrivate)?;
                let options = MountOptions {
                    read_only: true,
                    accept_power_loss: true,
                    ..MountOptions::default()
                };
                Engine::mount(region, &options).map_err(about(&pool))?.scrub(limit)?
            }
        };
        if self.json {
            say_json(&report)?;
        } else {
            report.findings.iter().for_each(say);
            say(format!(
                "{}: {}; {} inodes, {} names, {} log entries, {} looked at",
                pool.display(),
                match report.findings.len() {
                    0 => "sound".to_string(),
                    n if report.more => format!("more than {n} damaged: {}", mend(&report)),
                    n => format!("{n} damaged: {}", mend(&report)),
                },
                report.inodes,
                report.entries,
                report.log_entries,
                match report.pages {
                    0 => format!("{} KiB", report.bytes >> 10),
                    pages => format!("{pages} pages of data, {} KiB", report.bytes >> 10),
                }
            ));
        }
        Ok(if report.findings.is_empty() { SOUND } else { DAMAGED })
    }
}

/// What to do about damage.
fn mend(report: &ScrubReport) -> &'static str {
    match (
        report.data_findings,
        report.findings.len() as u64 - report.data_findings,
    ) {
        (0, _) => "unmount the pool and run `ferrite fsck --repair`",
        (_, 0) => "restore these files from a copy, or have `ferrite fsck --repair --data` put them aside",
        _ => "unmount the pool and run `ferrite fsck --repair`; files with damaged data are to be restored from a copy",
    }
}

/// The daemon's side: `limit` is bytes a second, 0 for none.
pub(crate) fn report(engine: &Engine, limit: &str) -> Result<ScrubReport, Failure> {
    let limit: u64 = limit
        .parse()
        .map_err(|_| Failure::new(super::FAILED, format!("`{limit}` is no number of bytes")))?;
    Ok(engine.scrub((limit > 0).then_some(limit))?)
}

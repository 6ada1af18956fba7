//! `ferrite scrub`: look for damage in a pool, mounted or not.

use ferrite::volume::{Address, ScrubReport};

use super::control::Request;
use super::progress::Bar;
use super::target::{Target, local_address};
use super::{Outcome, say, say_json};

/// All checksums are right.
const SOUND: u8 = 0;
/// The greatest limit that can be requested, in MiB a second.
pub(crate) const MIB_MAX: u64 = 1_000_000;
/// Damage was found.
const DAMAGED: u8 = 4;

/// Verify all checksums of a pool, also while it is mounted
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Superblocks, inodes, directories, extended attributes and page logs carry checksums; file data does in pools made with \
`mkfs --data-checksum`. Nothing is changed. If structures are damaged, unmount the pool and run `ferrite fsck --repair`. \
If file data is damaged, rewrite it, restore the file from a backup, or let `ferrite fsck --repair --data` move the file \
to lost+found as it is.

Exit codes: 0 sound, 1 could not verify, 4 damage was found, 2 wrong usage.")]
pub(crate) struct Scrub {
    /// Pool, or a directory where one is mounted
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
    /// Read at most this many MiB a second; 0: no limit
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=MIB_MAX))]
    limit: u64,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
}

/// `mib` MiB in bytes; at most [`MIB_MAX`].
pub(crate) fn bytes(mib: u64) -> u64 {
    mib.min(MIB_MAX) << 20
}

impl Scrub {
    pub(crate) fn run(self) -> Outcome {
        let target = Target::new(&self.pool);
        let limit = bytes(self.limit);
        let bar = Bar::new(self.json);
        let mut show = |done, total| bar.show("scrubbing", done, total);
        let report: ScrubReport = match target.ask_telling(&Request::ScrubTelling(limit), &mut show)? {
            Some(report) => report,
            None => target
                .inspect()?
                .scrub(Some(limit), &mut |_, done, total| show(done, total))?,
        };
        drop(bar);
        if self.json {
            say_json(&report)?;
        } else {
            report.findings.iter().for_each(say);
            say(format!(
                "{}: {}; {} inodes, {} names, {} log entries, {} verified",
                target.pool().display(),
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

/// The remedy for the damage.
fn mend(report: &ScrubReport) -> &'static str {
    match (
        report.data_findings,
        report.findings.len() as u64 - report.data_findings,
    ) {
        (0, _) => "unmount the pool and run `ferrite fsck --repair`",
        (_, 0) => "restore these files from a backup, or let `ferrite fsck --repair --data` move them to lost+found",
        _ => "unmount the pool and run `ferrite fsck --repair`; restore files with damaged data from a backup",
    }
}

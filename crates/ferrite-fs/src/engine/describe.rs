//! A pool's reports in words, as `ferrite info` and `ferrite dump` show them.

use std::time::{Duration, SystemTime};

use ferrite_vfs::volume::{InfoLine, human_bytes as human};

use crate::audit::owner::MAYBE_COPIED;
use crate::options::{Mapping, PageDump, PoolInfo};

/// Findings of damage that are shown; `ferrite fsck` shows all.
const FINDINGS_SHOWN: usize = 10;

/// The lines of a report, as they are added.
#[derive(Default)]
struct Report(Vec<InfoLine>);

impl Report {
    fn line(&mut self, name: &str, value: String) {
        let name = name.to_owned();
        self.0.push(InfoLine { name, value });
    }
}

/// The lines of `ferrite info` on a pool.
pub(crate) fn info_lines(info: &PoolInfo) -> Vec<InfoLine> {
    let mut report = Report::default();
    add_space(&mut report, info);
    add_content(&mut report, info);
    add_journal(&mut report, info);
    add_damage(&mut report, info);
    add_states(&mut report, info);
    add_runtime_findings(&mut report, info);
    report.line("last scrub", last_scrub(info));
    report.line("memory", memory(info));
    report.line("persistence", persistence(info));
    report.0
}

/// The pool as a whole, and how much of it is free.
fn add_space(report: &mut Report, info: &PoolInfo) {
    let blocks = |count: u64| human(count * u64::from(info.block_bytes));
    report.line("uuid", format!("{}, format {}", info.uuid, info.format_version));
    report.line("medium", info.medium.clone());
    report.line("durability", info.durability.clone());
    let size = human(info.size_bytes);
    report.line(
        "size",
        format!("{size}, {} blocks of {} bytes", info.blocks, info.block_bytes),
    );
    report.line(
        "free",
        format!(
            "{}; {} of it reserved for deletes and overwrites, {} waiting for the journal",
            blocks(info.blocks_free),
            blocks(info.blocks_reserved),
            blocks(info.blocks_pending)
        ),
    );
    report.line("inodes", inodes(info));
    report.line("names", format!("{} of {} free", info.names_free, info.names));
}

/// How pages are found and stored.
fn add_content(report: &mut Report, info: &PoolInfo) {
    report.line("mapping", mapping(info));
    let checksums = match info.data_checksum {
        true => "yes: every read verifies them",
        false => "no",
    };
    report.line("data checksums", checksums.into());
    report.line("pages", pages(info));
    report.line(
        "clones",
        format!("{} saved", human(info.blocks_saved * u64::from(info.block_bytes))),
    );
    report.line(
        "page logs",
        format!(
            "{} pages have one, {} in {} blocks, units of {} bytes; {:.2} blocks per page; merges: {} by writes, {} by \
             reads, {} for space, {} idle",
            info.logged_pages,
            human(info.log_bytes),
            info.log_blocks,
            info.log_unit_bytes,
            info.space_amplification,
            info.merges.write,
            info.merges.read,
            info.merges.low_space,
            info.merges.idle
        ),
    );
}

fn add_journal(report: &mut Report, info: &PoolInfo) {
    let ring = human(info.ring_bytes);
    report.line("journal", format!("{} rings of {ring}", info.rings));
    let replayed = info.replayed_records;
    let history = match (info.is_look, info.mounts, info.was_clean) {
        (true, 0, _) => "0".into(),
        (true, mounts, true) => format!("{mounts}; the last one ended cleanly"),
        (true, mounts, false) => {
            format!("{mounts}; the last one ended in a crash, or has not ended; {replayed} records to replay")
        }
        (false, 0 | 1, _) => "1, this one".into(),
        (false, mounts, true) => format!("{mounts} with this one; the one before ended cleanly"),
        (false, mounts, false) => {
            format!("{mounts} with this one; the one before ended in a crash, {replayed} records replayed")
        }
    };
    report.line("mounts", history);
}

/// Damage that was found when the pool was opened.
fn add_damage(report: &mut Report, info: &PoolInfo) {
    if info.damage.is_empty() {
        return;
    }
    let state = match info.damage_stops_changes {
        true => "read-only until it is repaired",
        false => "what is damaged cannot be read, everything else works",
    };
    let count = info.damage.len();
    report.line(
        "DAMAGED",
        format!("{count} found; {state}; unmount it and run `ferrite fsck --repair`"),
    );
    for finding in info.damage.iter().take(FINDINGS_SHOWN) {
        report.line("", finding.clone());
    }
}

/// States that an administrator has to know of.
fn add_states(report: &mut Report, info: &PoolInfo) {
    if info.may_be_live_copy {
        report.line("COPIED", MAYBE_COPIED.into());
    }
    if info.frozen {
        report.line("FROZEN", "changes wait until `ferrite thaw`".into());
    }
    if let Some(failure) = &info.failed {
        report.line("READ-ONLY", failure.clone());
    }
}

/// Damage that operations have met since the mount; the newest findings, which matter most.
fn add_runtime_findings(report: &mut Report, info: &PoolInfo) {
    if info.runtime_findings.is_empty() {
        return;
    }
    let total = info.runtime_findings_total;
    report.line(
        "FOUND SINCE",
        format!("damage was found {total} times since the mount:"),
    );
    for finding in info.runtime_findings.iter().rev().take(FINDINGS_SHOWN) {
        let (what, count, last) = (&finding.what, finding.count, ago(finding.last_s));
        report.line("", format!("{what} ({count} times, last {last} ago)"));
    }
}

fn memory(info: &PoolInfo) -> String {
    let dram = &info.dram;
    format!(
        "{}: blocks {}, mapping {}, inodes {}, names {}, journal {}, page logs {}, page lists {}, deferred pages {}, {} \
         known inodes of {} bytes and {} of tables",
        human(dram.total),
        human(dram.block_map),
        human(dram.mapping),
        human(dram.inode_map),
        human(dram.name_map),
        human(dram.journal),
        human(dram.page_logs),
        human(dram.page_lists),
        human(dram.deferred_pages),
        dram.cached_inodes,
        dram.bytes_per_cached_inode,
        human(dram.inode_tables)
    )
}

fn persistence(info: &PoolInfo) -> String {
    format!(
        "{} fences, {} lines written back, {} streamed, {} syncs of the file, since the mount",
        info.fences,
        info.lines_written_back,
        human(info.bytes_streamed),
        info.file_syncs
    )
}

fn inodes(info: &PoolInfo) -> String {
    let free = format!("{} of {} free", info.inodes_free, info.inodes);
    match info.orphans {
        0 => free,
        orphans => format!("{free}; {orphans} without a name, open or about to be freed"),
    }
}

/// Trees have no slots that could run out.
fn mapping(info: &PoolInfo) -> String {
    match info.map_slots {
        0 => info.mapping.name().into(),
        slots => format!("{}, {} of {slots} slots free", info.mapping.name(), info.map_slots_free),
    }
}

/// Only HashFS has a home for each page; if there is damage, pages are counted in another way that does not record
/// where they are.
fn pages(info: &PoolInfo) -> String {
    match info.mapping == Mapping::Hashfs && info.pages > 0 && info.damage.is_empty() {
        true => format!("{}, {:.1} % of them at home", info.pages, info.pages_at_home_percent),
        false => info.pages.to_string(),
    }
}

fn last_scrub(info: &PoolInfo) -> String {
    match &info.last_scrub {
        None => "none since the mount".into(),
        Some(scrub) => format!(
            "{} ago: {} inodes, {} pages of data, {} verified, {} damaged",
            ago(scrub.ended_s),
            scrub.inodes,
            scrub.pages,
            human(scrub.bytes),
            scrub.findings
        ),
    }
}

/// Time since then, in the largest unit that fits; zero if the clock was set back.
fn ago(seconds_since_1970: i64) -> String {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds_since_1970.max(0) as u64);
    match then.elapsed().unwrap_or_default().as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// The lines of `ferrite dump` on a page.
pub(crate) fn page_lines(page: &PageDump) -> Vec<String> {
    let state = match (page.unwritten, page.entries.len()) {
        (true, _) => "reserved".to_owned(),
        (false, 0) => "no log".to_owned(),
        (false, 1) => "1 log entry".to_owned(),
        (false, count) => format!("{count} log entries"),
    };
    let mut lines = vec![format!(
        "page {:<8} word {:016x}  block {:<9} {state}",
        page.page, page.word, page.block
    )];
    lines.extend(page.entries.iter().map(|entry| {
        let what = if entry.zeros { "zeros" } else { "bytes" };
        format!(
            "    unit {:<11} segment {:<11} {:>4} {what} at {}",
            entry.unit, entry.segment, entry.len_bytes, entry.offset
        )
    }));
    lines
}

//! A pool's reports in words, as `ferrite info` and `ferrite dump` show them.

use std::time::{Duration, SystemTime};

use ferrite_vfs::volume::{InfoLine, human_bytes as human};

use crate::audit::owner::MAYBE_COPIED;
use crate::options::{Mapping, PageDump, PoolInfo};

/// Findings of damage that are shown; `ferrite fsck` shows all.
const FINDINGS_SHOWN: usize = 10;

/// What `ferrite info` shows of a pool, line by line.
pub(crate) fn info_lines(info: &PoolInfo) -> Vec<InfoLine> {
    let mut lines = Vec::new();
    let blocks = |count: u64| human(count * u64::from(info.block_bytes));
    let mut line = |name: &str, value: String| {
        let name = name.to_owned();
        lines.push(InfoLine { name, value });
    };
    line("uuid", format!("{}, format {}", info.uuid, info.format_version));
    line("medium", info.medium.clone());
    line("durability", info.durability.clone());
    line(
        "size",
        format!(
            "{}, {} blocks of {} bytes",
            human(info.size_bytes),
            info.blocks,
            info.block_bytes
        ),
    );
    line(
        "free",
        format!(
            "{}; {} of it reserved for deletes and overwrites, {} waiting for the journal",
            blocks(info.blocks_free),
            blocks(info.blocks_reserved),
            blocks(info.blocks_pending)
        ),
    );
    line("inodes", inodes(info));
    line("names", format!("{} of {} free", info.names_free, info.names));
    line("mapping", mapping(info));
    line(
        "data checksums",
        match info.data_checksum {
            true => "yes: every read verifies them".into(),
            false => "no".into(),
        },
    );
    line("pages", pages(info));
    line(
        "page logs",
        format!(
            "{} pages have one, {} in {} blocks; {:.2} blocks per page; folds: {} by writes, {} by reads, {} for \
             space, {} idle",
            info.logged_pages,
            human(info.log_bytes),
            info.log_blocks,
            info.space_amplification,
            info.folds.write,
            info.folds.read,
            info.folds.low_space,
            info.folds.idle
        ),
    );
    line("journal", format!("{} rings of {}", info.rings, human(info.ring_bytes)));
    line(
        "mounts",
        format!(
            "{}; the last one ended {}, {} records replayed",
            info.mounts,
            if info.was_clean {
                "cleanly"
            } else {
                "in a crash (or has not ended)"
            },
            info.replayed_records
        ),
    );
    if !info.damage.is_empty() {
        let state = match info.damage_stops_changes {
            true => "read-only until it is repaired",
            false => "what is damaged cannot be read, everything else works",
        };
        let count = info.damage.len();
        line(
            "DAMAGED",
            format!("{count} found; {state}; unmount it and run `ferrite fsck --repair`"),
        );
        for finding in info.damage.iter().take(FINDINGS_SHOWN) {
            line("", finding.clone());
        }
    }
    if info.may_be_live_copy {
        line("COPIED", MAYBE_COPIED.into());
    }
    if info.frozen {
        line("FROZEN", "changes wait until `ferrite thaw`".into());
    }
    if let Some(failure) = &info.failed {
        line("READ-ONLY", failure.clone());
    }
    if !info.runtime_findings.is_empty() {
        line(
            "FOUND SINCE",
            format!(
                "damage was found {} times since the mount:",
                info.runtime_findings_total
            ),
        );
        // The newest ones matter most.
        for finding in info.runtime_findings.iter().rev().take(FINDINGS_SHOWN) {
            line(
                "",
                format!(
                    "{} ({} times, last {} ago)",
                    finding.what,
                    finding.count,
                    ago(finding.last_s)
                ),
            );
        }
    }
    line("last scrub", last_scrub(info));
    line(
        "memory",
        format!(
            "{}: blocks {}, mapping {}, inodes {}, names {}, journal {}, page logs {}, page lists {}, held pages {}, {} \
             known inodes of {} bytes and {} of tables",
            human(info.dram.total),
            human(info.dram.block_map),
            human(info.dram.mapping),
            human(info.dram.inode_map),
            human(info.dram.name_map),
            human(info.dram.journal),
            human(info.dram.page_logs),
            human(info.dram.page_lists),
            human(info.dram.held_pages),
            info.dram.cached_inodes,
            info.dram.bytes_per_cached_inode,
            human(info.dram.inode_tables)
        ),
    );
    line(
        "persistence",
        format!(
            "{} fences, {} lines written back, {} streamed, {} syncs of the file, since the mount",
            info.fences,
            info.lines_written_back,
            human(info.bytes_streamed),
            info.file_syncs
        ),
    );
    lines
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

/// What `ferrite dump` shows of a page, line by line.
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

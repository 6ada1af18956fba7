//! The owner of a pool whose metadata is in a database, and how that goes: for `info`, in words and for programs.
//!
//! Invariant: it tells nothing secret: names and addresses of servers, numbers, times. Used by `volume`.

use ferrite_meta::{OwnedStatus, ShardStatus, Statistics};
use ferrite_vfs::volume::{InfoLine, human_bytes};
use serde_json::json;

use crate::info::line;

/// An owner, for messages.
pub(crate) fn owner_in_words(shard: &ShardStatus) -> String {
    match &shard.owner {
        Some(owner) if owner.address.is_empty() => owner.name.clone(),
        Some(owner) => format!("{} ({})", owner.name, owner.address),
        None => "no server".into(),
    }
}

/// The lines; none for a pool that has its metadata elsewhere.
pub(crate) fn lines(statistics: &Statistics) -> Vec<InfoLine> {
    let Some(shard) = &statistics.shard else {
        return Vec::new();
    };
    let owner = match shard.is_owned() {
        true => format!(
            "{}, epoch {}, for {:.1} s more unless it renews that",
            owner_in_words(shard),
            shard.epoch,
            shard.lease_left.as_secs_f64()
        ),
        false => format!("none; {} openings so far", shard.epoch),
    };
    let batches = match &statistics.owned {
        Some(owned) => format!(
            "{}; {} since it was opened, {:.1} commits in each, {:.2} ms on average, {:.1} ms at most",
            shard.seq,
            owned.batches,
            part(owned.commits, owned.batches),
            part(owned.commit_us, owned.batches) / 1e3,
            owned.commit_us_max as f64 / 1e3
        ),
        None => shard.seq.to_string(),
    };
    let mut lines = vec![line("owner", owner), line("batches", batches)];
    if let Some(owned) = &statistics.owned {
        let cache = format!(
            "{} of {}, {} hits, {} misses",
            human_bytes(owned.cache_bytes),
            human_bytes(owned.cache_bytes_max),
            owned.hits,
            owned.misses
        );
        lines.push(line("metadata cache", cache));
        lines.push(line("renewals failed", owned.renewals_failed.to_string()));
    }
    lines
}

fn part(sum: u64, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}

/// The same for programs; null for a pool that has its metadata elsewhere.
pub(crate) fn json(statistics: &Statistics) -> serde_json::Value {
    let Some(shard) = &statistics.shard else {
        return serde_json::Value::Null;
    };
    let owner = shard.owner.as_ref();
    json!({
        "owner": owner.map(|owner| owner.name.as_str()),
        "address": owner.map(|owner| owner.address.as_str()),
        "is_owned": shard.is_owned(),
        "epoch": shard.epoch,
        "batch": shard.seq,
        "lease_left_ms": shard.lease_left.as_millis() as u64,
        "here": statistics.owned.as_ref().map(here),
    })
}

/// The work of this process as the owner.
fn here(owned: &OwnedStatus) -> serde_json::Value {
    json!({
        "batches": owned.batches,
        "commits": owned.commits,
        "commit_us": owned.commit_us,
        "commit_us_max": owned.commit_us_max,
        "renewals_failed": owned.renewals_failed,
        "cache_bytes": owned.cache_bytes,
        "cache_bytes_max": owned.cache_bytes_max,
        "cache_hits": owned.hits,
        "cache_misses": owned.misses,
    })
}

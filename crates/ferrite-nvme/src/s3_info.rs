//! Content in S3, as `ferrite info` and the metrics show it.

use ferrite_vfs::volume::{InfoLine, human_bytes};
use ferrite_wal::Usage;

use crate::config::{Compression, TierMode};
use crate::content_store::SlicesUsage;
use crate::info::line;
use crate::pool::Parts;

/// Its bytes and requests, if a pool has it.
pub(crate) fn usage(parts: &Parts) -> Option<SlicesUsage> {
    let mut usage = parts.s3.as_ref()?.usage();
    let tier = parts.config.tier.as_ref();
    // No device that is here has the log.
    usage.is_log_passed |=
        usage.log.is_none() && !parts.fs.0.is_read_only && tier.is_some_and(|tier| tier.mode() != TierMode::Through);
    Some(usage)
}

/// Content in S3 for programs; appends its lines.
pub(crate) fn info_of_s3(parts: &Parts, lines: &mut Vec<InfoLine>) -> Option<serde_json::Value> {
    let (content, s3) = (parts.s3.as_ref()?, parts.config.s3()?);
    let usage = usage(parts)?;
    let requests = usage.requests;
    let is_encrypted = s3.encryption_key.is_some();
    let form = match (s3.compression, is_encrypted) {
        (Compression::None, false) => "",
        (Compression::None, true) => ", encrypted",
        (Compression::Zstd, false) => ", compressed",
        (Compression::Zstd, true) => ", compressed and encrypted",
    };
    lines.push(line("content", format!("{}{form}", s3.address)));
    let held = format!(
        "{} of files, {} not stored yet, {} in memory",
        human_bytes(usage.live_bytes),
        human_bytes(usage.buffered_bytes + usage.spilled_bytes),
        human_bytes(usage.cached_bytes)
    );
    lines.push(line("S3 holds", held));
    let done = format!(
        "{} stored with {}, {} read with {}, {} failed",
        requests.puts,
        human_bytes(requests.sent_bytes),
        requests.gets,
        human_bytes(requests.received_bytes),
        requests.failures
    );
    lines.push(line("objects", done));
    let failure = content.damage();
    if let Some(why) = &failure {
        lines.push(line("not stored because", why.clone()));
    }
    if let Some(dir) = &s3.disk_cache {
        let (used, most) = (human_bytes(usage.disk_cached_bytes), human_bytes(s3.disk_cache_size));
        let text = format!("{}: {used} of {most}, {} slices read", dir.display(), usage.disk_hits);
        lines.push(line("disk cache", text));
    }
    let tier = info_of_tier(parts, &usage, lines);
    Some(serde_json::json!({
        "address": s3.address,
        "compression": s3.compression,
        "encrypted": is_encrypted,
        "live_bytes": usage.live_bytes,
        "buffered_bytes": usage.buffered_bytes,
        "spilled_bytes": usage.spilled_bytes,
        "oldest_s": usage.oldest_change.as_secs(),
        "cached_bytes": usage.cached_bytes,
        "disk_cached_bytes": usage.disk_cached_bytes,
        "disk_hits": usage.disk_hits,
        "cache_hits": usage.cache_hits,
        "cache_misses": usage.cache_misses,
        "rewritten_blocks": usage.rewritten_blocks,
        "deleted_slices": usage.deleted_slices,
        "puts": requests.puts,
        "gets": requests.gets,
        "hedges": requests.hedges,
        "deletes": requests.deletes,
        "lists": requests.lists,
        "failed_requests": requests.failures,
        "sent_bytes": requests.sent_bytes,
        "received_bytes": requests.received_bytes,
        "failure": failure,
        "tier": tier,
    }))
}

/// The log in front of a bucket for programs; appends its line.
fn info_of_tier(parts: &Parts, usage: &SlicesUsage, lines: &mut Vec<InfoLine>) -> Option<serde_json::Value> {
    let tier = parts.config.tier.as_ref()?;
    let log = usage.log.or_else(|| usage.is_log_passed.then(Usage::default))?;
    let (mode, keeps) = match tier.mode() {
        TierMode::Through => ("through", "fsync waits for the bucket"),
        TierMode::Back => (
            "back",
            "fsync waits for this device, whose loss is the loss of what is staged",
        ),
        TierMode::Mirror => ("mirror", "fsync waits for both devices"),
    };
    let keeps = match usage.is_log_passed {
        true => "NOT USED: a device is away or has failed, and fsync waits for the bucket",
        false => keeps,
    };
    let devices: Vec<String> = tier.devices().map(|device| device.display().to_string()).collect();
    let device = devices.join(" and ");
    let text = format!(
        "{device}, mode {mode}: {} of {} staged, the oldest for {} s; {keeps}",
        human_bytes(log.used_bytes),
        human_bytes(log.bytes),
        usage.oldest_change.as_secs()
    );
    lines.push(line("tier", text));
    Some(serde_json::json!({
        "device": tier.device,
        "mirror": tier.mirror,
        "is_passed": usage.is_log_passed,
        "mode": mode,
        "age_s": tier.age_s,
        "capacity_bytes": log.bytes,
        "staged_bytes": log.used_bytes,
        "oldest_s": usage.oldest_change.as_secs(),
        "groups": log.groups,
        "records": log.records,
    }))
}

//! Metrics of pools whose content is in S3: requests, what is stored, and what is not stored yet.
//!
//! Contents: [`add`], which `metrics` calls. Invariant: a pool is labelled with the path of its file, and nothing
//! secret is among the metrics. The families exist on every server, without values where no pool is in S3.

use ferrite::volume::Volume;
use prometheus::proto::{MetricFamily, MetricType};

use super::metric_family::Family;
use super::served::Named;

/// The report of one pool.
#[derive(Default)]
struct InBucket {
    live_bytes: u64,
    unstored_bytes: u64,
    staged_bytes: u64,
    log_bytes: u64,
    is_log_passed: bool,
    oldest_s: f64,
    is_failing: bool,
    puts: u64,
    gets: u64,
    hedges: u64,
    failed: u64,
    sent_bytes: u64,
    received_bytes: u64,
    hits: u64,
    misses: u64,
    disk_bytes: u64,
    disk_hits: u64,
}

#[cfg(feature = "nvme")]
fn in_bucket(volume: &dyn Volume) -> Option<InBucket> {
    let volume = volume.as_any().downcast_ref::<ferrite_nvme::NvmeVolume>()?;
    let usage = volume.s3_usage()?;
    let requests = usage.requests;
    Some(InBucket {
        live_bytes: usage.live_bytes,
        unstored_bytes: usage.buffered_bytes + usage.spilled_bytes,
        staged_bytes: usage.log.map_or(0, |log| log.used_bytes),
        log_bytes: usage.log.map_or(0, |log| log.bytes),
        is_log_passed: usage.is_log_passed,
        oldest_s: usage.oldest_change.as_secs_f64(),
        is_failing: usage.is_failing,
        puts: requests.puts,
        gets: requests.gets,
        hedges: requests.hedges,
        failed: requests.failures,
        sent_bytes: requests.sent_bytes,
        received_bytes: requests.received_bytes,
        hits: usage.cache_hits,
        misses: usage.cache_misses,
        disk_bytes: usage.disk_cached_bytes,
        disk_hits: usage.disk_hits,
    })
}

#[cfg(not(feature = "nvme"))]
fn in_bucket(_: &dyn Volume) -> Option<InBucket> {
    None
}

/// A family: its name, kind, help and value.
type Kind = (&'static str, MetricType, &'static str, fn(&InBucket) -> f64);

const KINDS: [Kind; 17] = [
    (
        "ferrite_s3_live_bytes",
        MetricType::GAUGE,
        "Bytes of files in the bucket.",
        |of| of.live_bytes as f64,
    ),
    (
        "ferrite_s3_unstored_bytes",
        MetricType::GAUGE,
        "Bytes that the bucket does not have yet.",
        |of| of.unstored_bytes as f64,
    ),
    (
        "ferrite_s3_staged_bytes",
        MetricType::GAUGE,
        "Bytes of the log in front of the bucket that are in use.",
        |of| of.staged_bytes as f64,
    ),
    (
        "ferrite_s3_log_bytes",
        MetricType::GAUGE,
        "The size of this log; 0 without one.",
        |of| of.log_bytes as f64,
    ),
    (
        "ferrite_s3_log_passed",
        MetricType::GAUGE,
        "1 if fsync waits for the bucket, because a device of this log is away or has failed.",
        |of| f64::from(u8::from(of.is_log_passed)),
    ),
    (
        "ferrite_s3_oldest_change_seconds",
        MetricType::GAUGE,
        "The age of the oldest change that the bucket does not have.",
        |of| of.oldest_s,
    ),
    (
        "ferrite_s3_failing",
        MetricType::GAUGE,
        "1 if the last object could not be stored.",
        |of| f64::from(u8::from(of.is_failing)),
    ),
    (
        "ferrite_s3_puts_total",
        MetricType::COUNTER,
        "Objects that this server sent.",
        |of| of.puts as f64,
    ),
    (
        "ferrite_s3_gets_total",
        MetricType::COUNTER,
        "Objects that this server read.",
        |of| of.gets as f64,
    ),
    (
        "ferrite_s3_hedged_reads_total",
        MetricType::COUNTER,
        "Reads that were sent a second time, because the first took unusually long.",
        |of| of.hedges as f64,
    ),
    (
        "ferrite_s3_failed_requests_total",
        MetricType::COUNTER,
        "Requests that failed, with all their repetitions.",
        |of| of.failed as f64,
    ),
    (
        "ferrite_s3_sent_bytes_total",
        MetricType::COUNTER,
        "Bytes of objects that this server sent.",
        |of| of.sent_bytes as f64,
    ),
    (
        "ferrite_s3_received_bytes_total",
        MetricType::COUNTER,
        "Bytes of objects that this server read.",
        |of| of.received_bytes as f64,
    ),
    (
        "ferrite_s3_cache_hits_total",
        MetricType::COUNTER,
        "Slices that readers found in memory.",
        |of| of.hits as f64,
    ),
    (
        "ferrite_s3_cache_misses_total",
        MetricType::COUNTER,
        "Slices that readers did not find in memory.",
        |of| of.misses as f64,
    ),
    (
        "ferrite_s3_disk_cached_bytes",
        MetricType::GAUGE,
        "Bytes of this machine's disk that clean slices take.",
        |of| of.disk_bytes as f64,
    ),
    (
        "ferrite_s3_disk_hits_total",
        MetricType::COUNTER,
        "Slices that were read from this disk.",
        |of| of.disk_hits as f64,
    ),
];

/// Adds the families.
pub(crate) fn add(families: &mut Vec<MetricFamily>, volumes: &[Named]) {
    let pools: Vec<(&str, InBucket)> = volumes
        .iter()
        .filter_map(|(path, volume)| Some((path.as_str(), in_bucket(&**volume)?)))
        .collect();
    for (name, kind, help, value) in KINDS {
        let mut family = Family::new(families, name, kind, help);
        for (path, pool) in &pools {
            family.value(&[("pool", path)], value(pool));
        }
    }
}

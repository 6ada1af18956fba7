//! Metrics of the pools that a server owns in a database: leases, batches, the cache of metadata.
//!
//! Contents: [`add`], which `metrics` calls. Invariant: a pool is labelled with the path of its file, and nothing
//! secret is among the metrics. The families exist on every server, without values where no pool is in a database.

use ferrite::volume::Volume;
use prometheus::proto::{MetricFamily, MetricType};

use super::metric_family::Family;
use super::served::Named;

/// The report of one pool.
struct Owned {
    pool: String,
    epoch: u64,
    batch: u64,
    lease_left_s: f64,
    batches: u64,
    commits: u64,
    commit_s: f64,
    commit_max_s: f64,
    renewals_failed: u64,
    cache_bytes: u64,
    cache_limit_bytes: u64,
    hits: u64,
    misses: u64,
}

#[cfg(feature = "nvme")]
fn owned(path: &str, volume: &dyn Volume) -> Option<Owned> {
    let volume = volume.as_any().downcast_ref::<ferrite_nvme::NvmeVolume>()?;
    let statistics = volume.metadata_statistics();
    let (shard, owned) = (statistics.shard?, statistics.owned?);
    Some(Owned {
        pool: path.to_owned(),
        epoch: shard.epoch,
        batch: shard.seq,
        lease_left_s: shard.lease_left.as_secs_f64(),
        batches: owned.batches,
        commits: owned.commits,
        commit_s: owned.commit_us as f64 / 1e6,
        commit_max_s: owned.commit_us_max as f64 / 1e6,
        renewals_failed: owned.renewals_failed,
        cache_bytes: owned.cache_bytes,
        cache_limit_bytes: owned.cache_bytes_max,
        hits: owned.hits,
        misses: owned.misses,
    })
}

#[cfg(not(feature = "nvme"))]
fn owned(_: &str, _: &dyn Volume) -> Option<Owned> {
    None
}

/// A family: its name, kind, help and value.
type Kind = (&'static str, MetricType, &'static str, fn(&Owned) -> f64);

const KINDS: [Kind; 12] = [
    (
        "ferrite_metadata_epoch",
        MetricType::GAUGE,
        "How often a server has taken a pool in a database; grows with each takeover.",
        |of| of.epoch as f64,
    ),
    (
        "ferrite_metadata_batch_number",
        MetricType::GAUGE,
        "The number of the last batch of changes in the database.",
        |of| of.batch as f64,
    ),
    (
        "ferrite_metadata_lease_left_seconds",
        MetricType::GAUGE,
        "For how long this server may answer unless it renews its lease; 0 once another server may take over.",
        |of| of.lease_left_s,
    ),
    (
        "ferrite_metadata_batches_total",
        MetricType::COUNTER,
        "Batches of changes that this server sent.",
        |of| of.batches as f64,
    ),
    (
        "ferrite_metadata_commits_total",
        MetricType::COUNTER,
        "Commits that these batches had.",
        |of| of.commits as f64,
    ),
    (
        "ferrite_metadata_commit_seconds_total",
        MetricType::COUNTER,
        "Time that batches took.",
        |of| of.commit_s,
    ),
    (
        "ferrite_metadata_longest_commit_seconds",
        MetricType::GAUGE,
        "The longest time that a batch took, since the pool was opened.",
        |of| of.commit_max_s,
    ),
    (
        "ferrite_metadata_renewals_failed_total",
        MetricType::COUNTER,
        "Renewals of the lease that failed.",
        |of| of.renewals_failed as f64,
    ),
    (
        "ferrite_metadata_cache_bytes",
        MetricType::GAUGE,
        "Memory that the cache of metadata takes.",
        |of| of.cache_bytes as f64,
    ),
    (
        "ferrite_metadata_cache_limit_bytes",
        MetricType::GAUGE,
        "Memory that the cache of metadata may take.",
        |of| of.cache_limit_bytes as f64,
    ),
    (
        "ferrite_metadata_cache_hits_total",
        MetricType::COUNTER,
        "Reads of metadata that the cache answered.",
        |of| of.hits as f64,
    ),
    (
        "ferrite_metadata_cache_misses_total",
        MetricType::COUNTER,
        "Reads of metadata that the database answered.",
        |of| of.misses as f64,
    ),
];

/// Adds the families.
pub(crate) fn add(families: &mut Vec<MetricFamily>, volumes: &[Named]) {
    let pools: Vec<Owned> = volumes
        .iter()
        .filter_map(|(path, volume)| owned(path, &**volume))
        .collect();
    for (name, kind, help, value) in KINDS {
        let mut family = Family::new(families, name, kind, help);
        for pool in &pools {
            family.value(&[("pool", &pool.pool)], value(pool));
        }
    }
}

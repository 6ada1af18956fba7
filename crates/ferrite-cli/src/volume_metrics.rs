//! Metrics of pools: space, health, the last scrub, logs and memory; and requests of mounts.
//!
//! Contents: [`Report`], what is known of one pool; [`add`], the families. `serve --metrics` reports the pools that it
//! serves, `ferrite exporter` those that are mounted. The families exist everywhere, without values where nobody knows
//! them.
//!
//! Names and units follow the conventions of Prometheus: base units, `_total` on counters. A pool is labelled with its
//! path, and with the directory it is mounted on, if it is.

use std::path::Path;

use ferrite::volume::{Volume, VolumeInfo};
use ferrite_vfs::SYSTEM;
use prometheus::proto::{MetricFamily, MetricType};
use serde_json::Value;

use super::control::MountRequests;
use super::metric_family::Family;
use super::printable::printable;

/// One pool. A field is `None` if nobody knows it.
#[derive(Default)]
pub(crate) struct Report {
    pool: String,
    /// The mount; empty for a served pool.
    dir: String,
    /// Whether its daemon answered; `None` for a served pool.
    pub(crate) is_up: Option<bool>,
    pub(crate) is_read_only: Option<bool>,
    pub(crate) space: Option<Space>,
    pub(crate) damage: Option<u64>,
    has_failed: Option<bool>,
    findings: Option<u64>,
    /// The engine's own report, for programs.
    engine: Value,
    /// Of a mount.
    requests: Vec<MountRequests>,
}

/// Its space and inodes.
#[derive(serde::Serialize)]
pub(crate) struct Space {
    capacity_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    inodes: u64,
    inodes_free: u64,
}

impl Report {
    /// A pool that this process serves. Nothing is counted, but asking for its space may wait for a device.
    pub(crate) fn of_served(pool: &str, volume: &dyn Volume) -> Report {
        let space = volume.fs().statfs(SYSTEM).ok().map(|stat| {
            let bytes = |blocks: u64| blocks.saturating_mul(u64::from(stat.block_bytes));
            Space {
                capacity_bytes: bytes(stat.blocks),
                used_bytes: bytes(stat.blocks.saturating_sub(stat.blocks_free)),
                available_bytes: bytes(stat.blocks_available),
                inodes: stat.inodes,
                inodes_free: stat.inodes_free,
            }
        });
        Report {
            pool: pool.to_owned(),
            is_read_only: Some(volume.is_read_only()),
            space,
            damage: Some(volume.damage().len() as u64),
            ..Report::default()
        }
    }

    /// A mounted pool, of which nothing is known yet.
    pub(crate) fn of_mount(pool: &Path, dir: &Path) -> Report {
        Report {
            pool: printable(pool),
            dir: printable(dir),
            ..Report::default()
        }
    }

    /// Takes over what the daemon of a mounted pool says.
    pub(crate) fn learn(&mut self, info: &VolumeInfo, requests: Vec<MountRequests>) {
        self.requests = requests;
        self.space = Some(Space {
            capacity_bytes: info.capacity_bytes,
            used_bytes: info.used_bytes,
            available_bytes: info.available_bytes,
            inodes: info.inodes,
            inodes_free: info.inodes_free,
        });
        self.damage = Some(info.damage.len() as u64);
        self.has_failed = Some(info.failed.is_some());
        self.findings = Some(info.findings_since_open);
        self.engine = serde_json::from_str(&info.json).unwrap_or_default();
    }

    /// A number of the engine's report, under a JSON pointer.
    fn number(&self, pointer: &str) -> Option<f64> {
        match self.engine.pointer(pointer)? {
            Value::Bool(is_so) => Some(f64::from(u8::from(*is_so))),
            value => value.as_f64(),
        }
    }
}

fn flag(is_so: Option<bool>) -> Option<f64> {
    is_so.map(|is_so| f64::from(u8::from(is_so)))
}

/// A family: its name, kind, help and value.
type Kind = (&'static str, MetricType, &'static str, fn(&Report) -> Option<f64>);

const KINDS: [Kind; 10] = [
    (
        "ferrite_pool_up",
        MetricType::GAUGE,
        "Whether the daemon of a mount answered.",
        |of| flag(of.is_up),
    ),
    (
        "ferrite_pool_read_only",
        MetricType::GAUGE,
        "Whether a pool refuses changes, for whatever reason.",
        |of| flag(of.is_read_only),
    ),
    (
        "ferrite_pool_failed",
        MetricType::GAUGE,
        "Whether a pool refuses changes because its medium failed.",
        |of| flag(of.has_failed),
    ),
    (
        "ferrite_pool_capacity_bytes",
        MetricType::GAUGE,
        "Space for files.",
        |of| Some(of.space.as_ref()?.capacity_bytes as f64),
    ),
    ("ferrite_pool_used_bytes", MetricType::GAUGE, "Space in use.", |of| {
        Some(of.space.as_ref()?.used_bytes as f64)
    }),
    (
        "ferrite_pool_available_bytes",
        MetricType::GAUGE,
        "Space that new files may use; less than what is free, if the engine keeps a reserve.",
        |of| Some(of.space.as_ref()?.available_bytes as f64),
    ),
    ("ferrite_pool_inodes", MetricType::GAUGE, "Inodes in total.", |of| {
        Some(of.space.as_ref()?.inodes as f64)
    }),
    ("ferrite_pool_inodes_free", MetricType::GAUGE, "Free inodes.", |of| {
        Some(of.space.as_ref()?.inodes_free as f64)
    }),
    (
        "ferrite_pool_damage",
        MetricType::GAUGE,
        "Damaged structures that were found when the pool was opened.",
        |of| Some(of.damage? as f64),
    ),
    (
        "ferrite_pool_findings_total",
        MetricType::COUNTER,
        "How often damage was met since the pool was opened.",
        |of| Some(of.findings? as f64),
    ),
];

/// A family of what an engine reports itself: its name, kind and help, and the JSON pointer to its value.
type OfEngine = (&'static str, MetricType, &'static str, &'static str);

const OF_ENGINES: [OfEngine; 9] = [
    (
        "ferrite_pool_last_scrub_timestamp_seconds",
        MetricType::GAUGE,
        "When the last scrub since the pool was opened ran to its end.",
        "/last_scrub/ended_s",
    ),
    (
        "ferrite_pool_last_scrub_findings",
        MetricType::GAUGE,
        "Damage that this scrub found.",
        "/last_scrub/findings",
    ),
    (
        "ferrite_pool_frozen",
        MetricType::GAUGE,
        "Whether changes are held back so that the pool can be copied.",
        "/frozen",
    ),
    (
        "ferrite_pool_orphans",
        MetricType::GAUGE,
        "Inodes in use that have no name.",
        "/orphans",
    ),
    (
        "ferrite_pool_page_log_bytes",
        MetricType::GAUGE,
        "Bytes of page logs.",
        "/log_bytes",
    ),
    (
        "ferrite_pool_space_amplification_ratio",
        MetricType::GAUGE,
        "Blocks of pages and logs, divided by blocks of pages.",
        "/space_amplification",
    ),
    (
        "ferrite_pool_memory_bytes",
        MetricType::GAUGE,
        "Memory that the engine takes for a pool.",
        "/dram/total",
    ),
    (
        "ferrite_pool_fences_total",
        MetricType::COUNTER,
        "Fences since the pool was opened.",
        "/fences",
    ),
    (
        "ferrite_pool_file_syncs_total",
        MetricType::COUNTER,
        "Syncs of a file that programs asked for.",
        "/file_syncs",
    ),
];

/// Adds the families.
pub(crate) fn add(families: &mut Vec<MetricFamily>, reports: &[Report]) {
    let mut show = |name, kind, help, value: &dyn Fn(&Report) -> Option<f64>| {
        let mut family = Family::new(families, name, kind, help);
        for report in reports {
            let labels = [("pool", &*report.pool), ("dir", &*report.dir)];
            // Prometheus takes an empty label as absent.
            let labels = if report.dir.is_empty() {
                &labels[..1]
            } else {
                &labels[..]
            };
            if let Some(value) = value(report) {
                family.value(labels, value);
            }
        }
    };
    for (name, kind, help, value) in KINDS {
        show(name, kind, help, &value);
    }
    for (name, kind, help, pointer) in OF_ENGINES {
        show(name, kind, help, &|report| report.number(pointer));
    }
    add_quotas(families, reports);
    add_requests(families, reports);
}

/// A family of quotas: its name, its help, and the member of the engine's report.
const OF_QUOTAS: [(&str, &str, &str); 4] = [
    (
        "ferrite_quota_used_bytes",
        "Space that a tree with a quota uses, of the directory with this inode, or a user with a quota.",
        "used_bytes",
    ),
    (
        "ferrite_quota_limit_bytes",
        "Space that it may use; without a value, there is no limit.",
        "limit_bytes",
    ),
    ("ferrite_quota_used_inodes", "Inodes that it uses.", "used_inodes"),
    (
        "ferrite_quota_limit_inodes",
        "Inodes that it may use; without a value, there is no limit.",
        "limit_inodes",
    ),
];

/// Adds those of quotas, as far as engines list them.
fn add_quotas(families: &mut Vec<MetricFamily>, reports: &[Report]) {
    for (name, help, member) in OF_QUOTAS {
        let mut family = Family::new(families, name, MetricType::GAUGE, help);
        for report in reports {
            for (list, label) in [("quotas", "inode"), ("user_quotas", "uid")] {
                for quota in report.engine[list].as_array().into_iter().flatten() {
                    let number = quota[label].to_string();
                    let value = quota[member].as_f64().unwrap_or_default();
                    if value > 0.0 || !member.starts_with("limit") {
                        let labels = [("pool", &*report.pool), ("dir", &*report.dir), (label, &*number)];
                        family.value(&labels, value);
                    }
                }
            }
        }
    }
}

/// Adds those of requests, which only mounts have: a server counts its own.
fn add_requests(families: &mut Vec<MetricFamily>, reports: &[Report]) {
    let all = || {
        reports
            .iter()
            .flat_map(|of| of.requests.iter().map(move |kind| (of, kind)))
    };
    let mut errors = Family::new(
        families,
        "ferrite_mount_errors_total",
        MetricType::COUNTER,
        "Requests of the kernel to a mount that were answered with an error.",
    );
    for (of, kind) in all() {
        let labels = [("pool", &*of.pool), ("dir", &*of.dir), ("operation", &*kind.operation)];
        errors.value(&labels, kind.errors as f64);
    }
    drop(errors);
    let mut times = Family::new(
        families,
        "ferrite_mount_request_seconds",
        MetricType::HISTOGRAM,
        "How long the daemon of a mount took for a request of the kernel; waiting for locks and space is left out.",
    );
    for (of, kind) in all() {
        let labels = [("pool", &*of.pool), ("dir", &*of.dir), ("operation", &*kind.operation)];
        times.latency(&labels, &kind.latency, kind.busy_ns);
    }
}

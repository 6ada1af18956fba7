//! The state of a server, as the console shows it, in JSON: [`text`].
//!
//! Counters are totals; the page makes rates of two looks. The busiest [`CLIENTS_MAX`] clients of an export are named.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use ferrite_proto::{Activity, Counted, Request, SHORTEST_LOG2};
use ferrite_server::Metrics;
use serde::Serialize;

use crate::log;
use crate::printable::printable;
use crate::served::Volumes;
use crate::volume_metrics::Report;

const CLIENTS_MAX: usize = 50;

#[derive(Serialize)]
struct Status {
    version: &'static str,
    uptime_ms: u64,
    connections: u64,
    longest_turn_ms: f64,
    /// The time in nanoseconds that no request of class 0 took, as a power of two; each further class takes twice that.
    shortest_log2: u32,
    pools: Vec<Pool>,
    exports: Vec<Export>,
    errors: Vec<String>,
}

#[derive(Serialize)]
struct Pool {
    path: String,
    #[serde(flatten)]
    space: Option<crate::volume_metrics::Space>,
    read_only: bool,
    damage: u64,
}

#[derive(Serialize)]
struct Export {
    name: String,
    sessions: u64,
    sessions_begun: u64,
    sessions_expired: u64,
    in_grace: bool,
    operations: Vec<Operation>,
    clients: Vec<Client>,
}

#[derive(Serialize)]
struct Operation {
    name: &'static str,
    #[serde(flatten)]
    counts: Counts,
    /// How many requests took how long.
    latency: Vec<u64>,
}

#[derive(Serialize)]
struct Client {
    session: u64,
    address: String,
    connected: bool,
    idle_ms: u64,
    files: u64,
    pinned: u64,
    waiting: u64,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Serialize)]
struct Counts {
    requests: u64,
    errors: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Counts {
    fn of(counted: &Counted) -> Counts {
        Counts {
            requests: counted.requests,
            errors: counted.errors,
            received_bytes: counted.received_bytes,
            sent_bytes: counted.sent_bytes,
        }
    }
}

/// See the head of this module.
pub(super) fn text(metrics: &Metrics, volumes: &Volumes) -> String {
    let volumes = volumes.now();
    let pools = volumes.iter().map(|(path, volume)| {
        let report = Report::of_served(path, &**volume);
        Pool {
            path: printable(path),
            read_only: report.is_read_only == Some(true),
            damage: report.damage.unwrap_or_default(),
            space: report.space,
        }
    });
    let status = Status {
        version: crate::version(),
        uptime_ms: u64::try_from(metrics.uptime.as_millis()).unwrap_or(u64::MAX),
        connections: metrics.connections,
        longest_turn_ms: metrics.turns.longest.as_secs_f64() * 1e3,
        shortest_log2: SHORTEST_LOG2,
        pools: pools.collect(),
        exports: metrics
            .exports
            .iter()
            .map(|(name, activity)| export(name, activity))
            .collect(),
        errors: log::recent(),
    };
    serde_json::to_string(&status).expect("numbers and text can be written")
}

fn export(name: &str, activity: &Activity) -> Export {
    let operations = activity.operations.iter().map(|operation| Operation {
        name: Request::name_of(operation.number).unwrap_or("unknown"),
        counts: Counts::of(&operation.counted),
        latency: operation.latency.clone(),
    });
    let clients = activity.clients.iter().take(CLIENTS_MAX).map(|client| Client {
        session: client.session,
        address: printable(OsStr::from_bytes(&client.address)),
        connected: client.is_connected,
        idle_ms: client.idle_ms,
        files: client.files,
        pinned: client.pinned,
        waiting: client.waiting,
        counts: Counts::of(&client.total()),
    });
    Export {
        name: printable(name),
        sessions: activity.sessions,
        sessions_begun: activity.sessions_begun,
        sessions_expired: activity.sessions_expired,
        in_grace: activity.is_in_grace,
        operations: operations.collect(),
        clients: clients.collect(),
    }
}

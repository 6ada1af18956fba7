//! `serve --metrics`: the activity of a server, for Prometheus.
//!
//! Contents: [`source`], the text for an endpoint; [`encoded`], families as text, for `exporter`, too. Threads of their
//! own serve the clients of the server meanwhile.

use std::time::{SystemTime, UNIX_EPOCH};

use ferrite_proto::{BoundFileInfo, Counted, OperationActivity, RdmaCounters, Request};
use ferrite_server::{Metrics, Observer};
use prometheus::TextEncoder;
use prometheus::proto::{MetricFamily, MetricType};

use super::endpoint::Source;
use super::metric_family::Family;
use super::served::Volumes;
use super::volume_metrics::{self, Report};

/// The report of a server, as long as it runs.
pub(crate) fn source(observer: Observer, volumes: Volumes) -> Source {
    let began = SystemTime::now();
    Box::new(move || Some(text(&observer.look()?, &volumes, began)))
}

/// The text for Prometheus.
fn text(metrics: &Metrics, volumes: &Volumes, began: SystemTime) -> String {
    let mut families = Vec::new();
    let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
    let one =
        |families: &mut Vec<_>, name, kind, help, value| Family::new(families, name, kind, help).value(&[], value);
    one(
        &mut families,
        "ferrite_server_start_time_seconds",
        MetricType::GAUGE,
        "When the server was started; changes are restarts.",
        began.as_secs_f64(),
    );
    for (name, help, value) in [
        ("ferrite_connections", "Connections of sessions.", metrics.connections),
        (
            "ferrite_connections_without_session",
            "Connections that have not said yet what they are for.",
            metrics.pending_connections,
        ),
        (
            "ferrite_buffers_bytes",
            "Memory for data on its way.",
            metrics.buffers_bytes,
        ),
        (
            "ferrite_buffers_used_bytes",
            "How much of the memory for data on its way is in use.",
            metrics.buffers_used_bytes,
        ),
    ] {
        one(&mut families, name, MetricType::GAUGE, help, value as f64);
    }
    one(
        &mut families,
        "ferrite_longest_turn_seconds",
        MetricType::GAUGE,
        "The longest time that a turn of one connection kept a thread from the others, since the start.",
        metrics.turns.longest.as_secs_f64(),
    );
    one(
        &mut families,
        "ferrite_long_turns_total",
        MetricType::COUNTER,
        "Turns of a connection that took 10 ms or more.",
        metrics.turns.long as f64,
    );
    exports(&mut families, metrics);
    let name = "ferrite_sessions_refused_total";
    let help = "Clients that were refused because there were too many sessions.";
    let mut refused = Family::new(&mut families, name, MetricType::COUNTER, help);
    for (export, count) in &metrics.sessions_refused {
        refused.value(&[("export", export)], *count as f64);
    }
    drop(refused);
    clients(&mut families, metrics);
    operations(&mut families, metrics);
    rdma(&mut families, metrics);
    let volumes = volumes.now();
    super::owned_metrics::add(&mut families, &volumes);
    super::bucket_metrics::add(&mut families, &volumes);
    let reports: Vec<Report> = volumes
        .iter()
        .map(|(path, volume)| Report::of_served(path, &**volume))
        .collect();
    volume_metrics::add(&mut families, &reports);
    encoded(families)
}

/// The families as text. Those without values are named, so that a reader learns that they exist; the library refuses
/// to encode them.
pub(crate) fn encoded(families: Vec<MetricFamily>) -> String {
    let (empty, full): (Vec<_>, Vec<_>) = families.into_iter().partition(|of| of.get_metric().is_empty());
    let text = TextEncoder::new().encode_to_string(&full);
    let mut text = text.expect("every family has a name and values");
    for family in empty {
        let kind = match family.get_field_type() {
            MetricType::COUNTER => "counter",
            MetricType::HISTOGRAM => "histogram",
            _ => "gauge",
        };
        let (name, help) = (family.name(), family.help());
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }
    text
}

/// For a server without RDMA the families are empty.
fn rdma(families: &mut Vec<MetricFamily>, metrics: &Metrics) {
    type Value = fn(&RdmaCounters) -> u64;
    let kinds: [(&str, MetricType, &str, Value); 7] = [
        ("ferrite_rdma_queue_pairs", MetricType::GAUGE, "Queue pairs.", |of| {
            of.queue_pairs
        }),
        (
            "ferrite_rdma_received_packets_total",
            MetricType::COUNTER,
            "Datagrams received.",
            |of| of.received,
        ),
        (
            "ferrite_rdma_sent_packets_total",
            MetricType::COUNTER,
            "Datagrams sent.",
            |of| of.sent,
        ),
        (
            "ferrite_rdma_executed_packets_total",
            MetricType::COUNTER,
            "Packets of requests that were carried out.",
            |of| of.executed,
        ),
        (
            "ferrite_rdma_repeated_packets_total",
            MetricType::COUNTER,
            "Packets of requests that came again: clients tried again.",
            |of| of.duplicates,
        ),
        (
            "ferrite_rdma_put_off_packets_total",
            MetricType::COUNTER,
            "Packets of requests that were put off with an RNR NAK.",
            |of| of.not_ready,
        ),
        (
            "ferrite_rdma_dropped_packets_total",
            MetricType::COUNTER,
            "Datagrams that reached no queue pair.",
            |of| of.dropped,
        ),
    ];
    for (name, kind, help, value) in kinds {
        let mut family = Family::new(families, name, kind, help);
        metrics.rdma.iter().for_each(|of| family.value(&[], value(of) as f64));
    }
    let mut family = Family::new(
        families,
        "ferrite_rdma_bound_files",
        MetricType::GAUGE,
        "Files that are memory regions.",
    );
    for (export, files) in &metrics.bound {
        family.value(&[("export", export)], files.len() as f64);
    }
    drop(family);
    bound_files(families, metrics);
}

fn bound_files(families: &mut Vec<MetricFamily>, metrics: &Metrics) {
    type Value = fn(&BoundFileInfo) -> u64;
    let kinds: [(&str, MetricType, &str, Value); 4] = [
        (
            "ferrite_rdma_file_keys",
            MetricType::GAUGE,
            "Keys of a bound file.",
            |of| u64::from(of.keys),
        ),
        (
            "ferrite_rdma_file_ranges",
            MetricType::GAUGE,
            "Runs of pages that a bound file lies in.",
            |of| of.entries,
        ),
        (
            "ferrite_rdma_file_translations_total",
            MetricType::COUNTER,
            "Translations of pages of a bound file.",
            |of| of.lookups,
        ),
        (
            "ferrite_rdma_file_translation_hits_total",
            MetricType::COUNTER,
            "Those that a cache of ranges knew.",
            |of| of.hits,
        ),
    ];
    for (name, kind, help, value) in kinds {
        let mut family = Family::new(families, name, kind, help);
        for (export, files) in &metrics.bound {
            for file in files {
                let inode = file.ino.to_string();
                family.value(&[("export", export), ("inode", &inode)], value(file) as f64);
            }
        }
    }
}

fn exports(families: &mut Vec<MetricFamily>, metrics: &Metrics) {
    type Value = fn(&ferrite_proto::Activity) -> u64;
    let kinds: [(&str, MetricType, &str, Value); 5] = [
        ("ferrite_sessions", MetricType::GAUGE, "Sessions of clients.", |of| {
            of.sessions
        }),
        (
            "ferrite_sessions_begun_total",
            MetricType::COUNTER,
            "Sessions that began.",
            |of| of.sessions_begun,
        ),
        (
            "ferrite_sessions_reclaimed_total",
            MetricType::COUNTER,
            "Sessions that came back after a restart of the server.",
            |of| of.sessions_reclaimed,
        ),
        (
            "ferrite_sessions_expired_total",
            MetricType::COUNTER,
            "Sessions that ended because nothing was heard of their clients.",
            |of| of.sessions_expired,
        ),
        (
            "ferrite_in_grace",
            MetricType::GAUGE,
            "1 while locks are given only to those who had them before a restart.",
            |of| u64::from(of.is_in_grace),
        ),
    ];
    for (name, kind, help, value) in kinds {
        let mut family = Family::new(families, name, kind, help);
        for (export, activity) in &metrics.exports {
            family.value(&[("export", export)], value(activity) as f64);
        }
    }
}

fn clients(families: &mut Vec<MetricFamily>, metrics: &Metrics) {
    type Value = fn(&ferrite_proto::ClientActivity) -> u64;
    let kinds: [(&str, MetricType, &str, Value); 9] = [
        (
            "ferrite_client_open_files",
            MetricType::GAUGE,
            "Files that a client has open.",
            |of| of.files,
        ),
        (
            "ferrite_client_pinned_inodes",
            MetricType::GAUGE,
            "Inodes that are kept for a client.",
            |of| of.pinned,
        ),
        (
            "ferrite_client_waiting_locks",
            MetricType::GAUGE,
            "Requests of a client for locks that wait.",
            |of| of.waiting,
        ),
        (
            "ferrite_client_connected",
            MetricType::GAUGE,
            "Whether a client has a connection.",
            |of| u64::from(of.is_connected),
        ),
        (
            "ferrite_client_connections_total",
            MetricType::COUNTER,
            "Connections that a client made.",
            |of| of.connections,
        ),
        (
            "ferrite_client_requests_total",
            MetricType::COUNTER,
            "Requests of a client that were answered.",
            |of| of.total().requests,
        ),
        (
            "ferrite_client_errors_total",
            MetricType::COUNTER,
            "Requests of a client that were answered with an error.",
            |of| of.total().errors,
        ),
        (
            "ferrite_client_received_bytes_total",
            MetricType::COUNTER,
            "Bytes received of a client.",
            |of| of.total().received_bytes,
        ),
        (
            "ferrite_client_sent_bytes_total",
            MetricType::COUNTER,
            "Bytes sent to a client.",
            |of| of.total().sent_bytes,
        ),
    ];
    for (name, kind, help, value) in kinds {
        let mut family = Family::new(families, name, kind, help);
        for (export, activity) in &metrics.exports {
            for client in &activity.clients {
                let session = client.session.to_string();
                let address = String::from_utf8_lossy(&client.address);
                let labels = [("export", &**export), ("session", &*session), ("client", &*address)];
                family.value(&labels, value(client) as f64);
            }
        }
    }
}

fn operations(families: &mut Vec<MetricFamily>, metrics: &Metrics) {
    let all = || {
        metrics.exports.iter().flat_map(|(export, activity)| {
            let named = |operation| (&**export, operation_name(operation), operation);
            activity.operations.iter().map(named)
        })
    };
    type Value = fn(&Counted) -> u64;
    let kinds: [(&str, &str, Value); 4] = [
        ("ferrite_requests_total", "Requests that were answered.", |of| {
            of.requests
        }),
        (
            "ferrite_errors_total",
            "Requests that were answered with an error.",
            |of| of.errors,
        ),
        (
            "ferrite_received_bytes_total",
            "Bytes of requests with their data.",
            |of| of.received_bytes,
        ),
        ("ferrite_sent_bytes_total", "Bytes of answers with their data.", |of| {
            of.sent_bytes
        }),
    ];
    for (name, help, value) in kinds {
        let mut family = Family::new(families, name, MetricType::COUNTER, help);
        for (export, name, operation) in all() {
            family.value(
                &[("export", export), ("operation", name)],
                value(&operation.counted) as f64,
            );
        }
    }
    let mut family = Family::new(
        families,
        "ferrite_request_seconds",
        MetricType::HISTOGRAM,
        "From when a request was received to when its answer was ready to be sent.",
    );
    for (export, name, operation) in all() {
        let labels = [("export", export), ("operation", name)];
        family.latency(&labels, &operation.latency, operation.counted.busy_ns);
    }
}

/// The name of an operation, as its request is called.
fn operation_name(operation: &OperationActivity) -> &'static str {
    Request::name_of(operation.number).unwrap_or("unknown")
}

//! `ferrite top`: the load of a server's export, by client, and its latencies; as the server reports them to its
//! clients.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use ferrite::MountOptions;
use ferrite::volume::Address;
use ferrite_client::volume::RemoteVolume;
use ferrite_proto::{Activity, BacklogActivity, Counted, OperationActivity, Request, SHORTEST_LOG2, TenureActivity};

use super::printable::printable;
use super::target::address;
use super::{Failure, Outcome, USAGE, opening, output, say_json, size};

/// Show the activity of a server: requests, clients and latencies
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shows one export and its 32 busiest clients. Rates refer to the time since the last report; the first report, and \
--once, cover everything since the server started. To record a longer history, use `ferrite serve --metrics`.

Press Ctrl-C to stop.")]
pub(crate) struct Top {
    /// Address of the export
    #[arg(value_name = "tcp://HOST:PORT/EXPORT", value_parser = address())]
    export: Address,
    /// Print one report
    #[arg(long)]
    once: bool,
    /// Seconds between reports
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Print one line of JSON per report, with totals
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// Requests of one kind.
#[derive(serde::Serialize)]
struct Row {
    operation: &'static str,
    requests: u64,
    errors: u64,
    received_bytes: u64,
    sent_bytes: u64,
    mean_us: f64,
    /// Half of the requests, and 99 of 100, took no longer; rounded up to a power of two.
    #[serde(skip_serializing_if = "Option::is_none")]
    median_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_us: Option<f64>,
}

/// One client.
#[derive(serde::Serialize)]
struct Client {
    session: u64,
    address: String,
    connected: bool,
    connections: u64,
    idle_ms: u64,
    files: u64,
    pinned: u64,
    waiting: u64,
    operations: Vec<Row>,
}

/// One sample.
#[derive(serde::Serialize)]
struct Sample {
    uptime_ms: u64,
    sessions: u64,
    sessions_begun: u64,
    sessions_reclaimed: u64,
    sessions_expired: u64,
    in_grace: bool,
    operations: Vec<Row>,
    clients: Vec<Client>,
    /// The server's ownership of a volume that servers hand to each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenure: Option<Tenure>,
    /// Changes that have not reached the place where content stays, if that is elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    backlog: Option<Backlog>,
}

/// Changes on their way to a bucket.
#[derive(serde::Serialize)]
struct Backlog {
    bytes: u64,
    oldest_ms: u64,
    failing: bool,
    log_passed: bool,
}

impl Backlog {
    fn of(backlog: &BacklogActivity) -> Backlog {
        Backlog {
            bytes: backlog.bytes,
            oldest_ms: backlog.oldest_ms,
            failing: backlog.is_failing,
            log_passed: backlog.is_log_passed,
        }
    }

    /// A line of the table.
    fn line(&self) -> String {
        let mut line = match self.bytes {
            0 => "bucket: has everything".to_owned(),
            bytes => format!(
                "bucket: {} not there yet, the oldest for {:.1} s",
                size::human(bytes),
                self.oldest_ms as f64 / 1e3
            ),
        };
        if self.failing {
            line.push_str("; it refuses content, or does not answer");
        }
        if self.log_passed {
            line.push_str("; fsync waits for it, since the log or its mirror is away");
        }
        line
    }
}

/// The work of a volume's owner since it took the volume.
#[derive(serde::Serialize)]
struct Tenure {
    epoch: u64,
    lease_left_ms: u64,
    renewals_failed: u64,
    last_batch: u64,
    batches: u64,
    commits: u64,
    batch_mean_us: f64,
    batch_max_us: u64,
}

impl Tenure {
    fn of(tenure: &TenureActivity) -> Tenure {
        Tenure {
            epoch: tenure.epoch,
            lease_left_ms: tenure.left_ms,
            renewals_failed: tenure.renewals_failed,
            last_batch: tenure.last_batch,
            batches: tenure.batches,
            commits: tenure.commits,
            batch_mean_us: tenure.commit_us as f64 / tenure.batches.max(1) as f64,
            batch_max_us: tenure.commit_us_max,
        }
    }

    /// A line of the table.
    fn line(&self) -> String {
        format!(
            "owner: epoch {}, lease {:.1} s, {} renewals failed; batch {}: {:.1} commits in one, {:.0} us (slowest {} us)",
            self.epoch,
            self.lease_left_ms as f64 / 1e3,
            self.renewals_failed,
            self.last_batch,
            self.commits as f64 / self.batches.max(1) as f64,
            self.batch_mean_us,
            self.batch_max_us,
        )
    }
}

impl Row {
    fn new(number: u16, counted: &Counted) -> Row {
        Row {
            operation: Request::name_of(number).unwrap_or("unknown"),
            requests: counted.requests,
            errors: counted.errors,
            received_bytes: counted.received_bytes,
            sent_bytes: counted.sent_bytes,
            mean_us: counted.busy_ns as f64 / counted.requests.max(1) as f64 / 1e3,
            median_us: None,
            p99_us: None,
        }
    }

    fn of(operation: &OperationActivity) -> Row {
        Row {
            median_us: quantile(&operation.latency, 0.5),
            p99_us: quantile(&operation.latency, 0.99),
            ..Row::new(operation.number, &operation.counted)
        }
    }
}

/// The latency that this part of the requests did not exceed, in microseconds.
fn quantile(latency: &[u64], part: f64) -> Option<f64> {
    // The numbers are the server's.
    let all = latency.iter().fold(0u64, |all, count| all.saturating_add(*count));
    let wanted = (all as f64 * part).ceil() as u64;
    let mut below = 0u64;
    let class = latency.iter().position(|count| {
        below = below.saturating_add(*count);
        below >= wanted && wanted > 0
    })?;
    let bound_ns = 1u64.checked_shl(class as u32 + SHORTEST_LOG2)?;
    Some(bound_ns as f64 / 1e3)
}

fn sample(activity: &Activity) -> Sample {
    Sample {
        uptime_ms: activity.uptime_ms,
        sessions: activity.sessions,
        sessions_begun: activity.sessions_begun,
        sessions_reclaimed: activity.sessions_reclaimed,
        sessions_expired: activity.sessions_expired,
        in_grace: activity.is_in_grace,
        operations: activity.operations.iter().map(Row::of).collect(),
        clients: activity
            .clients
            .iter()
            .map(|client| Client {
                session: client.session,
                address: printable(OsStr::from_bytes(&client.address)),
                connected: client.is_connected,
                connections: client.connections,
                idle_ms: client.idle_ms,
                files: client.files,
                pinned: client.pinned,
                waiting: client.waiting,
                operations: client
                    .operations
                    .iter()
                    .map(|(number, counted)| Row::new(*number, counted))
                    .collect(),
            })
            .collect(),
        tenure: activity.tenure.as_ref().map(Tenure::of),
        backlog: activity.backlog.as_ref().map(Backlog::of),
    }
}

/// The activity between two samples. A restarted server has begun again at zero.
fn since(before: &Activity, now: &Activity) -> Activity {
    if now.uptime_ms < before.uptime_ms {
        return now.clone();
    }
    let less = |now: Counted, before: Counted| Counted {
        requests: now.requests.saturating_sub(before.requests),
        errors: now.errors.saturating_sub(before.errors),
        received_bytes: now.received_bytes.saturating_sub(before.received_bytes),
        sent_bytes: now.sent_bytes.saturating_sub(before.sent_bytes),
        busy_ns: now.busy_ns.saturating_sub(before.busy_ns),
    };
    let mut between = now.clone();
    if let (Some(now), Some(before)) = (&mut between.tenure, &before.tenure)
        && now.epoch == before.epoch
    {
        now.batches = now.batches.saturating_sub(before.batches);
        now.commits = now.commits.saturating_sub(before.commits);
        now.commit_us = now.commit_us.saturating_sub(before.commit_us);
    }
    let earlier: BTreeMap<u16, &OperationActivity> = before
        .operations
        .iter()
        .map(|operation| (operation.number, operation))
        .collect();
    for operation in &mut between.operations {
        let Some(earlier) = earlier.get(&operation.number) else {
            continue;
        };
        operation.counted = less(operation.counted, earlier.counted);
        let classes = operation.latency.iter_mut().zip(&earlier.latency);
        classes.for_each(|(now, before)| *now = now.saturating_sub(*before));
    }
    between.operations.retain(|operation| operation.counted.requests > 0);
    let earlier: BTreeMap<(u64, u16), Counted> = before
        .clients
        .iter()
        .flat_map(|client| {
            let session = client.session;
            client
                .operations
                .iter()
                .map(move |&(number, counted)| ((session, number), counted))
        })
        .collect();
    for client in &mut between.clients {
        for (number, counted) in &mut client.operations {
            let before = earlier.get(&(client.session, *number)).copied().unwrap_or_default();
            *counted = less(*counted, before);
        }
        client.operations.retain(|(_, counted)| counted.requests > 0);
    }
    between
        .clients
        .sort_by_key(|client| std::cmp::Reverse(client.total().requests));
    between
}

/// The lines above the table.
fn head(export: &str, now: &Activity, part: &Activity) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{export}: up {:.0} s, {} sessions ({} begun, {} back after a restart, {} expired){}",
        now.uptime_ms as f64 / 1e3,
        now.sessions,
        now.sessions_begun,
        now.sessions_reclaimed,
        now.sessions_expired,
        if now.is_in_grace { ", in grace" } else { "" }
    );
    if let Some(tenure) = &part.tenure {
        let _ = writeln!(text, "{}", Tenure::of(tenure).line());
    }
    if let Some(backlog) = &now.backlog {
        let _ = writeln!(text, "{}", Backlog::of(backlog).line());
    }
    text
}

/// A sample as a table; `seconds` is the time that the numbers cover.
fn table(export: &str, now: &Activity, part: &Activity, seconds: f64) -> String {
    let mut text = head(export, now, part);
    let rate = |count: u64| count as f64 / seconds.max(0.001);
    let mib = |bytes: u64| rate(bytes) / f64::from(1 << 20);
    let _ = writeln!(
        text,
        "\n{:<16} {:>10} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9}",
        "operation", "1/s", "errors", "MiB/s in", "MiB/s out", "mean us", "half <", "99 % <"
    );
    for operation in &part.operations {
        let row = Row::of(operation);
        let _ = writeln!(
            text,
            "{:<16} {:>10.1} {:>8} {:>10.2} {:>10.2} {:>9.1} {:>9.0} {:>9.0}",
            row.operation,
            rate(row.requests),
            row.errors,
            mib(row.received_bytes),
            mib(row.sent_bytes),
            row.mean_us,
            row.median_us.unwrap_or(0.0),
            row.p99_us.unwrap_or(0.0),
        );
    }
    let _ = writeln!(
        text,
        "\n{:<24} {:>8} {:>10} {:>8} {:>10} {:>10} {:>6} {:>7} {:>8}  busiest with",
        "client", "session", "1/s", "errors", "MiB/s in", "MiB/s out", "files", "pinned", "idle ms"
    );
    for client in &part.clients {
        let total = client.total();
        let mut busiest = client.operations.clone();
        busiest.sort_by_key(|(_, counted)| std::cmp::Reverse(counted.requests));
        let busiest: Vec<&str> = busiest
            .iter()
            .take(3)
            .filter_map(|(number, _)| Request::name_of(*number))
            .collect();
        let address = printable(OsStr::from_bytes(&client.address));
        let _ = writeln!(
            text,
            "{:<24} {:>8} {:>10.1} {:>8} {:>10.2} {:>10.2} {:>6} {:>7} {:>8}  {}",
            if client.is_connected { &*address } else { "(gone)" },
            client.session,
            rate(total.requests),
            total.errors,
            mib(total.received_bytes),
            mib(total.sent_bytes),
            client.files,
            client.pinned,
            client.idle_ms,
            busiest.join(" ")
        );
    }
    text
}

impl Top {
    pub(crate) fn run(self) -> Outcome {
        let export = self.export.path().display().to_string();
        if !self.export.is_remote() {
            return Err(Failure::new(
                USAGE,
                format!("{export}: is no server's; `ferrite info` shows what a pool and its mount do"),
            ));
        }
        let volume = opening::volume(&self.export, &MountOptions::default())?;
        let Some(remote) = volume.as_any().downcast_ref::<RemoteVolume>() else {
            return Err(Failure::new(USAGE, format!("{export}: is no server's")));
        };
        let mut before: Option<(Activity, Instant)> = None;
        loop {
            let now = remote.server_activity()?;
            let at = Instant::now();
            if self.json {
                say_json(&sample(&now))?;
            } else {
                let (part, seconds) = match &before {
                    Some((before, since_when)) => (since(before, &now), at.duration_since(*since_when).as_secs_f64()),
                    None => (now.clone(), now.uptime_ms as f64 / 1e3),
                };
                let table = table(&export, &now, &part, seconds);
                // A terminal is cleared; elsewhere samples follow each other.
                let clear = match std::io::stdout().is_terminal() && !self.once {
                    true => "\x1b[2J\x1b[H",
                    false => "",
                };
                output::write(format!("{clear}{table}").as_bytes());
            }
            // Otherwise a pipe would get it late; a failure to write shows at the end.
            let _ = std::io::stdout().flush();
            if self.once || !output::goes_on() {
                break;
            }
            before = Some((now, at));
            std::thread::sleep(Duration::from_secs_f64(self.interval));
        }
        volume.close()?;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_ends_of_their_classes() {
        let mut latency = vec![0; 26];
        assert_eq!(quantile(&latency, 0.5), None);
        latency[3] = 98;
        latency[7] = 2;
        assert_eq!(quantile(&latency, 0.5), Some(8.192));
        assert_eq!(quantile(&latency, 0.98), Some(8.192));
        assert_eq!(quantile(&latency, 0.99), Some(131.072));
    }

    #[test]
    fn rates_are_of_what_happened_since() {
        let counted = |requests| Counted {
            requests,
            ..Counted::default()
        };
        let activity = |uptime_ms, reads: u64, writes: u64| Activity {
            uptime_ms,
            operations: vec![
                OperationActivity {
                    number: 42,
                    counted: counted(reads),
                    latency: vec![reads],
                },
                OperationActivity {
                    number: 43,
                    counted: counted(writes),
                    latency: vec![writes],
                },
            ],
            ..Activity::default()
        };
        let (first, second) = (activity(10, 5, 7), activity(20, 8, 7));
        let between = since(&first, &second);
        assert_eq!(between.operations.len(), 1, "no writes since");
        assert_eq!(
            (between.operations[0].counted.requests, between.operations[0].latency[0]),
            (3, 3)
        );
        // Restarted.
        assert_eq!(since(&second, &first), first);
    }

    /// Protects readers of the line: it says how much, for how long, and why.
    #[test]
    fn a_backlog_is_told_in_a_line() {
        let mut backlog = Backlog::of(&BacklogActivity::default());
        assert_eq!(backlog.line(), "bucket: has everything");
        (backlog.bytes, backlog.oldest_ms) = (3 << 20, 1500);
        assert_eq!(backlog.line(), "bucket: 3.0 MiB not there yet, the oldest for 1.5 s");
        (backlog.failing, backlog.log_passed) = (true, true);
        let line = backlog.line();
        assert!(line.contains("refuses content") && line.contains("is away"), "{line}");
    }
}

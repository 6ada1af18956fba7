//! `ferrite exporter`: the mounted pools of this machine, for Prometheus.
//!
//! One process asks the daemons of all mounts, by the sockets that `ferrite info` uses. So a mount needs no port of its
//! own, and a scrape costs it no more than one `ferrite info`.
//!
//! Invariant: a daemon that does not answer costs a scrape [`ANSWER_WAIT`] at most, however often one comes: it is not
//! asked again while a question to it is under way. At most [`ASKED_MAX`] questions are.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrite::volume::VolumeInfo;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::control::{self, MountRequests, Request};
use super::endpoint::{self, Endpoint};
use super::mounts::{self, MountPoint};
use super::volume_metrics::{self, Report};
use super::{Outcome, complain, metrics, output, say};

/// How long a scrape waits for all answers.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// Questions under way, at most; a machine with more mounts gets the rest in the next scrape.
const ASKED_MAX: usize = 64;

/// Report the mounted pools of this machine to Prometheus
///
/// Servers report themselves: ferrite serve --metrics.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ferrite exporter
  ferrite exporter --once > /var/lib/prometheus/node-exporter/ferrite.prom

It sees the mounts of its own user; run it as root to see all.")]
pub(crate) struct Exporter {
    /// Where to answer: a port of 127.0.0.1, or HOST:PORT
    #[arg(long, value_name = "PORT", default_value = "9447")]
    listen: String,
    /// Print the metrics and end, for the textfile collector of the node exporter
    #[arg(long)]
    once: bool,
}

impl Exporter {
    pub(crate) fn run(self) -> Outcome {
        let asked = Asked::default();
        if self.once {
            output::write(asked.text().as_bytes());
            return Ok(0);
        }
        let listener = Endpoint::listen("--listen", &self.listen)?;
        let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
        let endpoint = Endpoint::start(listener, endpoint::metrics(Box::new(move || Some(asked.text()))))?;
        say(format_args!("metrics at http://{}/metrics", endpoint.address));
        signals.forever().next();
        Ok(0)
    }
}

/// All that a daemon answers.
type Answer = (VolumeInfo, Vec<MountRequests>);

/// The devices of mounts whose daemons are being asked.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<BTreeSet<String>>>);

/// A question under way; dropping it ends it.
struct Question {
    asked: Asked,
    device: String,
}

impl Drop for Question {
    fn drop(&mut self) {
        let mut asked = self.asked.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.remove(&self.device);
    }
}

impl Asked {
    fn question(&self, device: &str) -> Option<Question> {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = asked.len() < ASKED_MAX && asked.insert(device.to_owned());
        is_new.then(|| Question {
            asked: self.clone(),
            device: device.to_owned(),
        })
    }

    /// The metrics of all mounts.
    fn text(&self) -> String {
        let until = Instant::now() + ANSWER_WAIT;
        let mounts = mounts::reachable(mounts::all());
        let answers: Vec<_> = mounts.iter().map(|mount| self.ask(mount)).collect();
        let reports: Vec<Report> = mounts
            .iter()
            .zip(answers)
            .map(|(mount, answer)| {
                let left = until.saturating_duration_since(Instant::now());
                report(mount, answer.and_then(|answer| answer.recv_timeout(left).ok()))
            })
            .collect();
        let mut families = Vec::new();
        volume_metrics::add(&mut families, &reports);
        metrics::encoded(families)
    }

    /// Asks a mount's daemon, from a thread of its own: even connecting may block if the daemon was stopped.
    fn ask(&self, mount: &MountPoint) -> Option<Receiver<Answer>> {
        let question = self.question(&mount.device)?;
        let (sender, answer) = channel();
        let mount = mount.clone();
        let ask = move || {
            let info: Option<VolumeInfo> = asked(&mount, &Request::Info);
            // A daemon of an earlier version has none.
            let requests = info.as_ref().and_then(|_| asked(&mount, &Request::Requests));
            drop(question);
            if let Some(info) = info {
                // The scrape may have ended without it.
                let _ = sender.send((info, requests.unwrap_or_default()));
            }
        };
        match std::thread::Builder::new().name("ferrite-ask".into()).spawn(ask) {
            Ok(_) => Some(answer),
            Err(error) => {
                complain(format_args!("ferrite: cannot ask a daemon: {error}"));
                None
            }
        }
    }
}

/// One answer of a daemon.
fn asked<T: serde::de::DeserializeOwned>(mount: &MountPoint, request: &Request) -> Option<T> {
    let stream = control::connect_to_mount(mount)?;
    control::ask(stream, request, Some(ANSWER_WAIT)).ok()
}

fn report(mount: &MountPoint, answer: Option<Answer>) -> Report {
    let mut report = Report::of_mount(&mount.pool, &mount.dir);
    let info = answer.as_ref().map(|(info, _)| info);
    report.is_up = Some(info.is_some());
    report.is_read_only = Some(mount.is_read_only || info.is_some_and(|info| info.failed.is_some()));
    if let Some((info, requests)) = answer {
        report.learn(&info, requests);
    }
    report
}

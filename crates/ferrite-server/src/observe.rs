//! A server's reports of itself: to clients, of their export; to its administrator, of everything.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::export::Export;
use super::front::Front;
use super::meter::Metrics;
use super::session::Session;
use super::verbs::Verbs;
use super::{Inner, Server};
use ferrite_proto::{
    Activity, BacklogActivity, BoundFileInfo, ClientActivity, Counted, LATENCY_CLASSES, OPCODES_MAX, TenureActivity,
};
use ferrite_vfs::Backlog;
use ferrite_vfs::volume::TenureReport;

/// Most clients in a report to a client.
const CLIENTS_MAX: usize = 32;
/// Maximum length of a reply: all kinds of requests, by as many clients, and all latencies.
const REPLY_BYTES_MAX: usize = CLIENTS_MAX * (160 + OPCODES_MAX * (2 + size_of::<Counted>()))
    + OPCODES_MAX * (6 + size_of::<Counted>() + 8 * LATENCY_CLASSES)
    + 128;
const _: () = assert!(REPLY_BYTES_MAX < ferrite_transport::frame::BODY_BYTES_MAX);

/// Reports a server's activity, as long as the server exists.
#[derive(Clone)]
pub struct Observer(Weak<Front>);

impl Observer {
    /// Its activity now, with all clients; `None` once the server is gone.
    pub fn look(&self) -> Option<Metrics> {
        Some(self.0.upgrade()?.metrics())
    }
}

fn tenure_of(report: &TenureReport) -> TenureActivity {
    let number = |time: u128| u64::try_from(time).unwrap_or(u64::MAX);
    TenureActivity {
        epoch: report.epoch,
        left_ms: number(report.left.as_millis()),
        renewals_failed: report.renewals_failed,
        last_batch: report.last_batch,
        batches: report.batches,
        commits: report.commits,
        commit_us: number(report.commit_time.as_micros()),
        commit_us_max: number(report.commit_time_max.as_micros()),
    }
}

fn backlog_of(backlog: &Backlog) -> BacklogActivity {
    BacklogActivity {
        bytes: backlog.bytes,
        oldest_ms: u64::try_from(backlog.oldest.as_millis()).unwrap_or(u64::MAX),
        is_failing: backlog.is_failing,
        is_log_passed: backlog.is_log_passed,
    }
}

impl Server {
    /// An observer of this server.
    pub fn observer(&self) -> Observer {
        Observer(Arc::downgrade(&self.front))
    }
}

impl Inner {
    /// The activity of an export, by client, as clients see it.
    pub(super) fn activity(&self, export: &Arc<Export>) -> Activity {
        let mut activity = self.activity_of_all(export);
        activity.clients.truncate(CLIENTS_MAX);
        activity
    }

    /// The same with all clients.
    fn activity_of_all(&self, export: &Arc<Export>) -> Activity {
        let now_ms = self.now_ms();
        let mut operations = Vec::new();
        let counted: Vec<(Arc<Session>, Vec<_>)> = {
            // A session that ends leaves this list and its counters to the export in one step.
            let sessions = self.sessions.lock();
            export.past.add_to(&mut operations);
            sessions
                .values()
                .filter(|session| Arc::ptr_eq(&session.export, export))
                .map(|session| (Arc::clone(session), session.meter.add_to(&mut operations)))
                .collect()
        };
        let mut clients: Vec<ClientActivity> = counted
            .into_iter()
            .map(|(session, operations)| ClientActivity {
                operations,
                ..session.client_activity(now_ms)
            })
            .collect();
        clients.sort_by_cached_key(|client| (std::cmp::Reverse(client.total().requests), client.session));
        Activity {
            uptime_ms: now_ms,
            sessions: clients.len() as u64,
            sessions_begun: export.comings.begun.load(Ordering::Relaxed),
            sessions_reclaimed: export.comings.reclaimed.load(Ordering::Relaxed),
            sessions_expired: export.comings.expired.load(Ordering::Relaxed),
            is_in_grace: self.grace(&export.store).is_on(),
            operations,
            clients,
            tenure: self.ownership.as_ref().map(|ownership| tenure_of(&ownership.report())),
            backlog: export.store.fs.backlog().as_ref().map(backlog_of),
        }
    }

    fn bound_files(&self) -> Vec<(String, Vec<BoundFileInfo>)> {
        let Some(verbs) = &self.verbs else {
            return Vec::new();
        };
        let of = |export: &Arc<Export>| (export.options.name.clone(), verbs.activity(export).files);
        self.exports.iter().map(of).collect()
    }
}

impl Front {
    /// All engines that are served now.
    pub(super) fn engines(&self) -> Vec<Arc<Inner>> {
        let here = self.places.iter().filter_map(|place| place.here());
        std::iter::once(Arc::clone(&self.home)).chain(here).collect()
    }

    /// See [`Observer::look`].
    fn metrics(&self) -> Metrics {
        let (engines, common) = (self.engines(), &self.common);
        let all: Vec<(&Arc<Inner>, &Arc<Export>)> = engines
            .iter()
            .flat_map(|inner| inner.exports.iter().map(move |export| (inner, export)))
            .collect();
        let activity = |&(inner, export): &(&Arc<Inner>, &Arc<Export>)| {
            (export.options.name.clone(), inner.activity_of_all(export))
        };
        let exports: Vec<(String, Activity)> = all.iter().map(activity).collect();
        let refused = |(_, export): &(&Arc<Inner>, &Arc<Export>)| {
            let refused = export.attendance.refused.load(Ordering::Relaxed);
            (export.options.name.clone(), refused)
        };
        let clients = exports.iter().flat_map(|(_, activity)| &activity.clients);
        Metrics {
            uptime: self.home.began.elapsed(),
            connections: clients.filter(|client| client.is_connected).count() as u64,
            pending_connections: common.pending_connections.len() as u64,
            buffers_bytes: common.pool.len_bytes() as u64,
            buffers_used_bytes: (common.pool.len_bytes() - common.pool.free_bytes()) as u64,
            turns: common.turns.counts(),
            rdma: self.home.verbs.as_ref().map(Verbs::counters),
            bound: engines.iter().flat_map(|inner| inner.bound_files()).collect(),
            sessions_refused: all.iter().map(refused).collect(),
            exports,
        }
    }
}

//! A server's report of its activity: the reply to [`SessionRequest::Activity`](super::SessionRequest::Activity).

use super::fields;

pub use ferrite_vfs::latency::{LATENCY_CLASSES, SHORTEST_LOG2};

// Both ends know them, so they belong to the format.
const _: () = assert!(LATENCY_CLASSES == 26 && SHORTEST_LOG2 == 10);

/// Operations on an export since the server began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Activity {
    /// How long the server has been running.
    pub uptime_ms: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Sessions that began.
    pub sessions_begun: u64,
    /// Sessions of earlier runs of the server that came back.
    pub sessions_reclaimed: u64,
    /// Sessions that ended because their clients were silent.
    pub sessions_expired: u64,
    /// The server gives locks only to sessions that had them before its restart.
    pub is_in_grace: bool,
    /// By kind of request, without kinds that no client used.
    pub operations: Vec<OperationActivity>,
    /// The current clients, the busiest first; not all of them if there are many.
    pub clients: Vec<ClientActivity>,
    /// The server's ownership of the volume, if servers hand the volume to each other.
    pub tenure: Option<TenureActivity>,
    /// Changes of the export's volume that have not reached the place where content stays, if that is elsewhere.
    pub backlog: Option<BacklogActivity>,
}

fields!(Activity {
    uptime_ms,
    sessions,
    sessions_begun,
    sessions_reclaimed,
    sessions_expired,
    is_in_grace,
    operations,
    clients,
    tenure,
    backlog
});

/// Changes on their way, as [`ferrite_vfs::Backlog`] has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BacklogActivity {
    /// Their bytes.
    pub bytes: u64,
    /// The age of the oldest one.
    pub oldest_ms: u64,
    /// The place that they are for refuses them, or does not answer.
    pub is_failing: bool,
    /// There is a log, and it gets no changes.
    pub is_log_passed: bool,
}

fields!(BacklogActivity {
    bytes,
    oldest_ms,
    is_failing,
    is_log_passed
});

/// The work of a volume's owner since it took the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenureActivity {
    /// The number of the tenure.
    pub epoch: u64,
    /// For how long the owner may still answer, unless it renews its lease.
    pub left_ms: u64,
    /// Renewals of the lease that failed.
    pub renewals_failed: u64,
    /// The number of the volume's last batch of changes.
    pub last_batch: u64,
    /// Batches sent to the database.
    pub batches: u64,
    /// Commits in these batches.
    pub commits: u64,
    /// The time that batches took, in all.
    pub commit_us: u64,
    /// The time that the slowest batch took.
    pub commit_us_max: u64,
}

fields!(TenureActivity {
    epoch,
    left_ms,
    renewals_failed,
    last_batch,
    batches,
    commits,
    commit_us,
    commit_us_max
});

/// Count and cost of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Requests that were answered. A request for a lock counts when it comes.
    pub requests: u64,
    /// Those answered with an error.
    pub errors: u64,
    /// Length of the requests with their data.
    pub received_bytes: u64,
    /// Length of the replies with their data.
    pub sent_bytes: u64,
    /// From the arrival of a request until its reply was ready to be sent.
    pub busy_ns: u64,
}

fields!(Counted {
    requests,
    errors,
    received_bytes,
    sent_bytes,
    busy_ns
});

impl std::ops::AddAssign for Counted {
    fn add_assign(&mut self, other: Counted) {
        // The numbers may be another host's.
        self.requests = self.requests.saturating_add(other.requests);
        self.errors = self.errors.saturating_add(other.errors);
        self.received_bytes = self.received_bytes.saturating_add(other.received_bytes);
        self.sent_bytes = self.sent_bytes.saturating_add(other.sent_bytes);
        self.busy_ns = self.busy_ns.saturating_add(other.busy_ns);
    }
}

/// Requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OperationActivity {
    /// The number of the request, see [`Request::name_of`](super::Request::name_of).
    pub number: u16,
    /// All of them.
    pub counted: Counted,
    /// How many took how long: one number for each of [`LATENCY_CLASSES`].
    pub latency: Vec<u64>,
}

fields!(OperationActivity {
    number,
    counted,
    latency
});

/// The activity and state of one client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientActivity {
    /// Its session.
    pub session: u64,
    /// The address that it last connected from, as text.
    pub address: Vec<u8>,
    /// It has a connection.
    pub is_connected: bool,
    /// Connections it made.
    pub connections: u64,
    /// How long it has been silent.
    pub idle_ms: u64,
    /// Its open files.
    pub files: u64,
    /// Inodes pinned for it.
    pub pinned: u64,
    /// Its waiting requests for locks.
    pub waiting: u64,
    /// By the number of the request, without those that it did not use.
    pub operations: Vec<(u16, Counted)>,
}

fields!(ClientActivity {
    session,
    address,
    is_connected,
    connections,
    idle_ms,
    files,
    pinned,
    waiting,
    operations
});

impl ClientActivity {
    /// All requests together.
    pub fn total(&self) -> Counted {
        let mut total = Counted::default();
        self.operations.iter().for_each(|&(_, counted)| total += counted);
        total
    }
}

//! The space of the cluster, as last known.
//!
//! Contents: [`SpaceCount`]. Ceph counts some seconds behind, so this owner's own changes since then are added.
//!
//! Invariant: [`SpaceCount::get`] waits for nothing but a lock; one thread at a time asks the cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use ferrite_checks::ranked::Mutex;
use ferrite_rados::{Client, Pool};

use super::lock_order;
use crate::content_store::{RadosUsage, Space};

/// The age from which on the cluster is asked again.
const FRESH: Duration = Duration::from_secs(5);
/// The space of a cluster without statistics, for which it needs a manager: writes must find out themselves.
const UNKNOWN_BYTES: u64 = 1 << 50;

/// Space and the changes since it was counted.
pub(super) struct SpaceCount {
    client: Client,
    pool: Pool,
    /// Bytes that this owner's blobs have gained since it connected.
    gained: AtomicI64,
    known: Mutex<lock_order::KnownSpace, Known>,
    is_asking: AtomicBool,
}

struct Known {
    space: Space,
    /// `None`: the cluster has not counted it.
    usage: Option<RadosUsage>,
    /// `gained` at that time.
    gained: i64,
    since: Instant,
}

impl SpaceCount {
    /// Asks the cluster. Blocks up to the timeout for monitors.
    pub(super) fn new(client: &Client, pool: &Pool) -> Arc<SpaceCount> {
        let count = SpaceCount {
            client: client.clone(),
            pool: pool.clone(),
            gained: AtomicI64::new(0),
            known: Mutex::new(Known {
                space: unknown(),
                usage: None,
                gained: 0,
                since: Instant::now(),
            }),
            is_asking: AtomicBool::new(false),
        };
        count.ask();
        Arc::new(count)
    }

    /// A blob takes other space than before.
    pub(super) fn changed(&self, before: u64, after: u64) {
        let gained = i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX);
        self.gained.fetch_add(gained, Ordering::Relaxed);
    }

    /// The space, as last known.
    pub(super) fn get(self: &Arc<Self>) -> Space {
        let known = self.known.lock();
        let gained = self.gained.load(Ordering::Relaxed) - known.gained;
        let bytes = known.space.bytes;
        let free_bytes = match u64::try_from(gained) {
            Ok(taken) => known.space.free_bytes.saturating_sub(taken),
            Err(_) => known.space.free_bytes.saturating_add(gained.unsigned_abs()).min(bytes),
        };
        if known.since.elapsed() > FRESH && !self.is_asking.swap(true, Ordering::Relaxed) {
            let count = Arc::clone(self);
            let started = std::thread::Builder::new().name("ferrite-space".into()).spawn(move || {
                count.ask();
                count.is_asking.store(false, Ordering::Relaxed);
            });
            if started.is_err() {
                self.is_asking.store(false, Ordering::Relaxed);
            }
        }
        Space { bytes, free_bytes }
    }

    /// The cluster's count, as of the last [`Self::get`] or so.
    pub(super) fn usage(self: &Arc<Self>) -> Option<RadosUsage> {
        self.get();
        self.known.lock().usage
    }

    /// Keeps what was known if the cluster does not answer.
    fn ask(&self) {
        let gained = self.gained.load(Ordering::Relaxed);
        let answer = self
            .client
            .space()
            .and_then(|cluster| Ok((cluster, self.pool.usage()?)));
        let mut known = self.known.lock();
        known.since = Instant::now();
        match answer {
            Ok((cluster, _)) if cluster.bytes == 0 => {}
            Ok((cluster, usage)) => {
                // As many replicas as the pool's objects have now.
                let replicas = usage.copies.div_ceil(usage.objects.max(1)).max(1);
                let free_bytes = cluster.free_bytes / replicas;
                known.space = Space {
                    bytes: free_bytes.saturating_add(usage.bytes),
                    free_bytes,
                };
                known.usage = Some(RadosUsage {
                    objects: usage.objects,
                    bytes: usage.bytes,
                    free_bytes,
                });
                known.gained = gained;
            }
            Err(error) => tracing::debug!(%error, "the cluster did not tell its space"),
        }
    }
}

fn unknown() -> Space {
    Space {
        bytes: UNKNOWN_BYTES,
        free_bytes: UNKNOWN_BYTES,
    }
}

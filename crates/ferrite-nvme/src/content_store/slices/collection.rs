//! The deletion of objects whose slices are dead, and then of their rows.
//!
//! Invariant: a row goes after its object. A crash, or a request that is given up, leaves rows of objects that are
//! gone; they go the next time, since a service takes the deletion of what is not there for done.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_slices::{SliceId, Started};

use super::store::{Store, of_bucket};
use crate::content_store::Result;

/// How often it looks for dead slices.
const PERIOD: Duration = Duration::from_secs(20);
/// Objects that are deleted by one request.
const DELETED_AT_ONCE: usize = 1000;
/// An orderly end waits so long for deletions: the next owner can make them as well.
const END_MAX: Duration = Duration::from_secs(10);

/// Dead slices, and the request that deletes their objects.
struct Request {
    slices: Vec<(SliceId, u64)>,
    started: Started<()>,
}

impl Request {
    /// Begins the next one, if there are slices whose time has come.
    fn begin(store: &Store) -> Result<Option<Request>> {
        let now = match is_seeded(Bug::CollectBeforeTime) {
            true => u64::MAX,
            false => Store::now(),
        };
        let slices = store.rows.due(now, DELETED_AT_ONCE)?;
        if slices.is_empty() {
            return Ok(None);
        }
        store.check_changes()?;
        let names = slices.iter().map(|&(id, _)| store.objects.name(id)).collect();
        let started = store.bucket.start_delete(names);
        Ok(Some(Request { slices, started }))
    }

    /// Forgets the slices of a request that has succeeded.
    fn finish(store: &Store, slices: &[(SliceId, u64)]) -> Result<()> {
        slices.iter().for_each(|&(id, _)| store.objects.forget(id));
        store.rows.forget_dead(slices)?;
        let deleted = slices.len() as u64;
        store.deleted_slices.fetch_add(deleted, Ordering::Relaxed);
        Ok(())
    }
}

/// The deletions of a thread that has other work, too.
pub(super) struct Collection {
    request: Option<Request>,
    looked: Instant,
}

impl Collection {
    /// None under way.
    pub(super) fn new() -> Collection {
        Collection {
            request: None,
            looked: Instant::now(),
        }
    }

    /// Sees what has become of the last request, and begins the next one when it is time. Waits for no service.
    pub(super) fn advance(&mut self, store: &Store) -> Result<()> {
        let mut is_time = self.looked.elapsed() > PERIOD.min(store.options.keep + Duration::from_secs(1));
        if let Some(request) = self.request.take() {
            let Some(done) = request.started.ended() else {
                self.request = Some(request);
                return Ok(());
            };
            done.map_err(of_bucket)?;
            Request::finish(store, &request.slices)?;
            is_time |= request.slices.len() == DELETED_AT_ONCE;
        }
        if is_time {
            self.looked = Instant::now();
            self.request = Request::begin(store)?;
        }
        Ok(())
    }
}

/// Deletes what can be deleted, before an orderly end.
pub(super) fn collect_at_end(store: &Store) -> Result<()> {
    let until = Instant::now() + END_MAX;
    while Instant::now() < until
        && let Some(request) = Request::begin(store)?
    {
        let left = until.saturating_duration_since(Instant::now());
        request.started.wait_for(left).map_err(of_bucket)?;
        Request::finish(store, &request.slices)?;
    }
    Ok(())
}

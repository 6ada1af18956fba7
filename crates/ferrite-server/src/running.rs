//! Engines that are served together, from their start to their stop.
//!
//! Contents: [`Running`], with the thread that keeps house for them. A server has one for the engines that it has as
//! long as it runs, and one for each movable volume that it owns now.
//!
//! Invariant: once a stop has returned, nothing here changes the state in the pool, which may be that of the next
//! server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_vfs::Result;
use ferrite_vfs::volume::Ownership;

use super::common::Common;
use super::{Inner, Opened, cannot_start};

/// How long a stop waits for sessions to end whose clients have left: an engine may be stuck.
const ENDS_WAIT: Duration = Duration::from_secs(10);
/// How long the threads of the reactor may take to drop closed connections.
const CONNECTIONS_WAIT: Duration = Duration::from_secs(1);
const CONNECTIONS_LOOK: Duration = Duration::from_millis(1);

/// How long clients may take to return leases before a stop. The next server waits for those that are left, until their
/// terms end.
const LEASES_WAIT: Duration = Duration::from_millis(500);
const LEASES_LOOK: Duration = Duration::from_millis(2);

/// Asks clients for their leases before a stop, and waits a moment. Connections are still served.
pub(super) fn withdraw_leases(inner: &Inner) {
    let until = Instant::now() + LEASES_WAIT;
    let some = inner.stores.iter().filter(|store| store.leases.withdraw());
    for store in some.collect::<Vec<_>>() {
        while store.leases.has_any() && Instant::now() < until {
            std::thread::sleep(LEASES_LOOK);
        }
    }
}

/// See the head of this module.
pub(super) struct Running {
    pub(super) inner: Arc<Inner>,
    reaper: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts the threads that work for engines.
    pub(super) fn start(
        opened: Opened,
        common: &Arc<Common>,
        ownership: Option<Arc<dyn Ownership>>,
    ) -> Result<Running> {
        let inner = Arc::new(Inner::new(opened, common, ownership)?);
        let reaper = inner.start_reaper().map_err(cannot_start)?;
        Ok(Running {
            inner,
            reaper: Some(reaper),
        })
    }

    /// Announces the stop, closes connections, and stops the reaper. False if that was done before. Nothing is written
    /// to engines that are lost.
    fn halt(&mut self, is_lost: bool) -> bool {
        let Some(reaper) = self.reaper.take() else {
            return false;
        };
        let inner = &self.inner;
        inner.stop.store(true, Ordering::Release);
        let sessions: Vec<_> = inner.sessions.lock().values().cloned().collect();
        for session in sessions {
            // Outside of the lock: the reactor takes it, too.
            let link = session.recipient.link.lock().clone();
            if let Some(link) = link {
                link.close();
            }
        }
        let stores = inner.stores.iter();
        stores.for_each(|store| store.leases.stop((!is_lost).then_some(&*store.fs)));
        reaper.thread().unpark();
        // A panic of it was reported when it happened.
        let _ = reaper.join();
        true
    }

    /// Stops serving. Sessions are not ended; those whose clients have left end before it returns, in the pool too.
    /// Blocks for that, up to ten seconds.
    pub(super) fn stop(&mut self) {
        if !self.halt(false) {
            return;
        }
        let inner = &self.inner;
        let left = inner.session_ends.wait_for_all_until(Instant::now() + ENDS_WAIT);
        if left > 0 {
            tracing::warn!(
                "{left} sessions have not ended {} s after their clients left, because the engine does not answer; the \
                 next server will wait a lease for them",
                ENDS_WAIT.as_secs()
            );
        }
        inner.note_session_ends();
        inner.stores.iter().for_each(|store| store.state.note_stop(&*store.fs));
    }

    /// Stops serving engines that are another server's by now, and changes nothing of their state.
    pub(super) fn abandon(&mut self) {
        self.inner.stores.iter().for_each(|store| store.state.note_loss());
        self.halt(true);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        // An engine that outlives this has no use for its sessions' resources.
        let sessions = std::mem::take(&mut *self.inner.sessions.lock());
        sessions.into_values().for_each(|session| self.inner.close(&session));
        // Else a thread of the reactor drops the last reference with its connection, and waits for workers.
        let ends = Instant::now() + CONNECTIONS_WAIT;
        while Arc::strong_count(&self.inner) > 1 && Instant::now() < ends {
            std::thread::sleep(CONNECTIONS_LOOK);
        }
    }
}

//! Housekeeping: ends sessions whose clients are gone, and grace periods.
//!
//! Invariant: no session ends for silence while bytes of its client lie unread, because the server was busy. One with a
//! connection ends only when the connection was found drained after the lease had run out ([`Link::drain`]). One
//! without is excused while a thread is busy for long: its client may wait to be accepted, or to set up a session.
//!
//! Invariant: a session loses the locks of an earlier run that it did not claim in time, in the pool too, before others
//! get them.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ferrite_transport::reactor::Link;
use ferrite_vfs::{FileSystem, SYSTEM};
use rustc_hash::FxHashMap;

use super::Inner;
use super::close_barrier::PendingClose;
use super::export::Store;
use super::session::Session;

/// Connections that are being drained before their sessions end, by session, with the number of the drain.
type Drained = FxHashMap<(usize, u64), (Link, u64)>;

/// How often the reaper checks for expired terms while changes wait for them, or for drained connections.
const TERM_TICK: Duration = Duration::from_millis(10);
/// After so many ticks without a turn of the reaper, of at least ten in a lease, the process has stood still, or the
/// reaper has worked long, which does no harm. Clients send a sign of life twice in a lease, so that this much of it
/// can be missed.
const TICKS_MAX: u32 = 3;

impl Inner {
    /// Ends sessions whose clients are gone, and grace periods.
    pub(super) fn reap(self: &Arc<Inner>) {
        let tick = (self.lease / 10).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let mut turn = Instant::now();
        let mut drained = Drained::default();
        while !self.stop.load(Ordering::Acquire) {
            let waits = self.stores.iter().any(|store| store.leases.has_waiting());
            let waits = waits || !drained.is_empty();
            std::thread::park_timeout(if waits { TERM_TICK } else { tick });
            for store in &self.stores {
                let due = store.leases.due(&*store.fs);
                due.into_iter().for_each(|work| self.go_on(work));
            }
            let last = std::mem::replace(&mut turn, Instant::now());
            let now_ms = self.now_ms();
            self.excuse_unheard(turn - last > tick * TICKS_MAX, now_ms);
            if self.common.turns.busy_for() > tick * TICKS_MAX {
                self.excuse_unconnected(now_ms);
            }
            let gone = self.take_gone(now_ms, &mut drained);
            for session in gone {
                if let Some(more) = self.end_log.admit() {
                    let session = session.resume_token.session;
                    tracing::info!("session {session} has ended, and {more} before it: its client is gone");
                }
                match self.has_keys(&session) {
                    true => {
                        let (inner, pending) = (Arc::clone(self), PendingClose::begin(&self.session_ends));
                        self.go_on(Box::new(move || {
                            inner.let_go(&session);
                            drop(pending);
                        }));
                    }
                    false => self.let_go(&session),
                }
            }
            self.common.pending_connections.close_older(self.lease);
            self.note_session_ends();
            for store in self.stores.iter().filter(|store| self.grace(store).is_over()) {
                self.end_grace(store);
            }
        }
    }

    /// Excuses sessions whose silence the server itself causes: it does not read from clients with so many requests in
    /// its queues. And if the whole process stood still, signs of life may wait in every socket.
    fn excuse_unheard(&self, stood_still: bool, now_ms: u64) {
        let excused: Vec<Arc<Session>> = {
            let sessions = self.sessions.lock();
            let excused = sessions.values().filter(|session| stood_still || session.is_busy());
            excused.cloned().collect()
        };
        for session in excused {
            // A client that is certainly gone is not excused.
            if stood_still || session.is_connected() {
                session.seen(now_ms);
            }
        }
    }

    /// Excuses sessions without a connection: their signs of life may wait in a socket that no thread has read.
    fn excuse_unconnected(&self, now_ms: u64) {
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let unconnected = sessions.iter().filter(|session| !session.is_connected());
        unconnected.for_each(|session| session.seen(now_ms));
    }

    /// Removes sessions from the list whose clients are gone, and drains the connections of those that may be gone.
    fn take_gone(&self, now_ms: u64, drained: &mut Drained) -> Vec<Arc<Session>> {
        let lease_ms = self.lease.as_millis() as u64;
        let is_silent = |session: &Session| now_ms.saturating_sub(session.last_seen_ms()) > lease_ms;
        let silent: Vec<((usize, u64), Arc<Session>)> = {
            let sessions = self.sessions.lock();
            let silent = sessions.iter().filter(|(_, session)| is_silent(session));
            silent.map(|(&key, session)| (key, Arc::clone(session))).collect()
        };
        let mut draining = Drained::default();
        let mut gone = Vec::new();
        for (key, session) in silent {
            let link = session.recipient.link.lock().clone().filter(|link| !link.is_closed());
            let before = drained.get(&key);
            match (link, before) {
                (None, _) => gone.push(key),
                (Some(link), Some((of, number))) if of.is_same(&link) => match link.is_drained(*number) {
                    true => gone.push(key),
                    false => {
                        link.drain();
                        draining.insert(key, (link, *number));
                    }
                },
                (Some(link), _) => {
                    let number = link.drain();
                    draining.insert(key, (link, number));
                }
            }
        }
        *drained = draining;
        let mut sessions = self.sessions.lock();
        let mut ended = Vec::new();
        for key in gone {
            // Bytes that came before the connection was drained were a sign of life.
            if let Entry::Occupied(place) = sessions.entry(key)
                && is_silent(place.get())
            {
                place.get().expire();
                ended.push(place.remove());
            }
        }
        ended
    }

    fn end_grace(&self, store: &Store) {
        // A session that is still reclaiming has had its time for locks. When it comes back it must reclaim again, for
        // its client does not know yet what it has lost.
        let late = self.grace(store).refuse_claims();
        // Before other sessions get their locks.
        store.state.free_inherited(&*store.fs, &late);
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let is_late = |session: &&Arc<Session>| {
            session.export.store.number == store.number && late.contains(&session.resume_token.session)
        };
        sessions
            .iter()
            .filter(is_late)
            .for_each(|session| session.is_no_locker());
        drop_orphans(&*store.fs);
        let deferred = self.grace(store).end();
        store.state.note_end(&*store.fs);
        deferred.into_iter().for_each(|work| self.work(store, work));
    }
}

/// Frees files without names that were kept for clients which do not come back.
pub(super) fn drop_orphans(fs: &dyn FileSystem) {
    if let Err(error) = fs.drop_orphans(SYSTEM) {
        tracing::warn!("files without names that nobody has open could not be freed: {error}");
    }
}

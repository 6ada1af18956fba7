//! How sessions begin, are found again, and end; and how the server revokes their unused slots.
//!
//! Invariants: a session is found from when it begins until it ends, by one connection at a time. One without state
//! that its client would miss ends with its connection: a client that connects, sets up a session and leaves costs
//! nothing afterwards.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_vfs::Result;

use super::Inner;
use super::admission::Account;
use super::export::{Export, Store};
use super::session::Session;
use ferrite_proto::{ResumeToken, SessionState};

/// The shortest time between two searches for unused slots.
const SLOTS_CHECK_MS: u64 = 100;

impl Inner {
    /// The session that a resume token is for, or a new one.
    ///
    /// # Errors
    /// If the limit is reached.
    pub(super) fn session(
        &self,
        export: &Arc<Export>,
        account: Account,
        resume: Option<ResumeToken>,
    ) -> Result<(Arc<Session>, SessionState)> {
        if let Some(resume_token) = resume
            && export.authenticator.resume_token(resume_token.session) == resume_token
            && let Some(session) = self.find(export, account, resume_token)?
        {
            let state = match session.is_reclaiming() {
                true => SessionState::ToReclaim,
                false => SessionState::Alive,
            };
            return Ok((session, state));
        }
        let place = self.common.admission.admit(&export.attendance, account)?;
        let store = &export.store;
        let number = store.state.new_session(&*store.fs);
        let session = Arc::new(Session::new(export, number, false, place, self.now_ms()));
        self.sessions
            .lock()
            .insert((store.number, number), Arc::clone(&session));
        Ok((session, SessionState::New))
    }

    /// The session of a valid resume token. In the grace period one of an earlier run begins again.
    fn find(&self, export: &Arc<Export>, account: Account, resume_token: ResumeToken) -> Result<Option<Arc<Session>>> {
        let store = &export.store;
        let is_in_grace = self.grace(store).is_on();
        if is_in_grace {
            // Before it can be found, and end.
            store.state.session_is_back(&*store.fs);
        }
        let found = {
            let mut sessions = self.sessions.lock();
            match sessions.entry((store.number, resume_token.session)) {
                Entry::Occupied(entry) => {
                    // Under the lock, or it might be taken for gone at this moment.
                    entry.get().seen(self.now_ms());
                    entry.get().detach();
                    Ok((Some(Arc::clone(entry.get())), false))
                }
                Entry::Vacant(entry) if is_in_grace => {
                    self.common.admission.admit(&export.attendance, account).map(|place| {
                        let session = Session::new(export, resume_token.session, true, place, self.now_ms());
                        if self.grace(store).takes_claims_of(resume_token.session) {
                            session.was_locker();
                        }
                        (Some(Arc::clone(entry.insert(Arc::new(session)))), true)
                    })
                }
                Entry::Vacant(_) => Ok((None, false)),
            }
        };
        let is_new = found.as_ref().is_ok_and(|(_, is_new)| *is_new);
        if is_in_grace && !is_new {
            store.state.session_was_there();
        }
        found.map(|(session, _)| session)
    }

    /// Handles the loss of a session's connection. If that was its last, and the session has no state, the session
    /// ends.
    pub(super) fn end_if_idle(&self, session: &Arc<Session>, attachment: u64) {
        let store = &session.export.store;
        // Clients come back to a server that starts again, which knows them by the records of this one.
        if self.stop.load(Ordering::Acquire) || self.grace(store).is_on() {
            return;
        }
        let is_idle = || session.is_attached(attachment) && session.has_nothing() && !self.has_keys(session);
        // Most sessions have state, and need not take the lock.
        if !is_idle() {
            return;
        }
        let was_there = {
            let mut sessions = self.sessions.lock();
            // Under the lock, as its client may be coming back.
            if !is_idle() {
                return;
            }
            session.leave_counts();
            sessions.remove(&(store.number, session.resume_token.session))
        };
        if was_there.is_some() {
            self.let_go(session);
        }
    }

    /// Takes a session that is about to end off the list, so that no connection resumes it meanwhile. False if it was
    /// not there: another thread ends it.
    pub(super) fn take_off(&self, session: &Session) -> bool {
        let mut sessions = self.sessions.lock();
        session.leave_counts();
        let key = (session.export.store.number, session.resume_token.session);
        sessions.remove(&key).is_some()
    }

    /// Ends a session that is no longer in the list.
    pub(super) fn let_go(&self, session: &Arc<Session>) {
        let store = &session.export.store;
        // First: a request that is about to get a lock sees that the session has ended, or the pool forgets both.
        session.begin_to_end();
        // Before another session gets its locks: it must not come back for them.
        store.state.session_ends(&*store.fs, session.resume_token.session);
        self.close(session);
        store.leases.is_over(&*session.recipient);
        self.locks_are_back(session);
    }

    /// Records in the pools that a restart has no sessions to wait for, where that is so.
    pub(super) fn note_session_ends(&self) {
        for store in self.stores.iter().filter(|store| !self.grace(store).is_on()) {
            store.state.note_end(&*store.fs);
        }
    }

    /// Whether ending a session may take long, because it has keys or queue pairs.
    pub(super) fn has_keys(&self, session: &Session) -> bool {
        self.verbs.as_ref().is_some_and(|verbs| verbs.knows(session))
    }

    /// Releases everything a session has. Keys and queue pairs before locks, when it can get no more of them: the next
    /// owner of a lock meets no write of this session.
    pub(super) fn close(&self, session: &Session) {
        session.begin_to_end();
        if let Some(verbs) = &self.verbs {
            verbs.end_session(session);
        }
        session.end();
    }

    /// Slots for a session; if no slot is free, those that other sessions have not used for a lease.
    pub(super) fn slots(&self, session: &Session, count: usize) -> (u64, Vec<u32>) {
        let (number, slots) = session.slots(count);
        if !slots.is_empty() || count == 0 || !self.take_idle_slots(&session.export.store) {
            return (number, slots);
        }
        session.slots(count)
    }

    /// Revokes idle slots. False if there were none, or the last search was a moment ago.
    ///
    /// A crash between the steps leaves slots with a session that has lost them here: after the restart it has them
    /// again, or no session has. The pool has forgotten a session's slots before another gets them.
    fn take_idle_slots(&self, store: &Store) -> bool {
        let (now_ms, idle_ms) = (self.now_ms(), self.lease.as_millis() as u64);
        let last_ms = self.slots_taken_ms.load(Ordering::Relaxed);
        let taken_now = &self.slots_taken_ms;
        if now_ms.saturating_sub(last_ms) < SLOTS_CHECK_MS
            || taken_now
                .compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return false;
        }
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let of_store = sessions
            .iter()
            .filter(|session| session.export.store.number == store.number);
        let numbers: Vec<u64> = of_store
            .filter_map(|session| session.take_idle_slots(now_ms, idle_ms))
            .collect();
        if numbers.is_empty() {
            return false;
        }
        store.state.free_slots(&*store.fs, &numbers);
        true
    }
}

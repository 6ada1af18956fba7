//! Requests that the receiving thread handles: about the connection, and what the session waits for.
//!
//! Work on an engine that may wait goes to a worker, except the record that a session has its locks, which comes before
//! the reply. A request for a lock is a completion for the engine, which replies over whatever connection the client
//! has then.

use std::sync::Arc;

use ferrite_transport::reactor::Close;
use ferrite_transport::send_queue::SendQueue;
use ferrite_vfs::{FsError, Result};

use super::Inner;
use super::close_barrier::PendingClose;
use super::grace::Deferred;
use super::lock;
use super::reply::put;
use super::session::Session;
use ferrite_proto::{Head, ImmediateRequest};

impl Inner {
    /// Handles a request at once; `Close` ends the connection.
    pub(super) fn handle(
        self: &Arc<Self>,
        session: &Arc<Session>,
        head: Head,
        request: ImmediateRequest<'_>,
        out: &mut SendQueue,
    ) -> std::result::Result<(), Close> {
        let id = head.id;
        match request {
            ImmediateRequest::Hello { .. } => return Err(Close),
            ImmediateRequest::Goodbye {} => {
                self.goodbye(session);
                return Err(Close);
            }
            ImmediateRequest::Ping {} => {
                session.settled(head.settled_below);
                put(out, id, Ok(()));
            }
            ImmediateRequest::Reclaimed {} => {
                session.has_reclaimed(id);
                session.keeps_its_locks();
                self.locks_are_back(session);
                put(out, id, Ok(()));
            }
            ImmediateRequest::Lock {
                node,
                client,
                lock,
                may_wait,
                is_claim,
            } => {
                let mut caller = session.export.ctx(head.caller, head.check, false);
                caller.check &= !is_claim;
                let wanted = lock::Wanted {
                    node,
                    lock,
                    may_wait,
                    caller,
                };
                if let Err(error) = self.begin_lock(session, (id, client), wanted, is_claim) {
                    put::<()>(out, id, Err(error));
                }
            }
            ImmediateRequest::CancelLock { request } => {
                lock::cancel(session, request);
                put(out, id, Ok(()));
            }
            ImmediateRequest::Recalled { recalls } => {
                put(out, id, Ok(()));
                let ready = session.export.store.leases.recalled(&*session.recipient, &recalls);
                ready.into_iter().for_each(|work| self.go_on(work));
            }
        }
        Ok(())
    }

    fn goodbye(self: &Arc<Self>, session: &Arc<Session>) {
        let store = &session.export.store;
        let ready = store.leases.end(&*session.recipient);
        ready.into_iter().for_each(|work| self.go_on(work));
        // Before the connection is closed: the client takes that for the reply. Its session is over then, and the
        // server may be stopped.
        if !self.take_off(session) {
            return;
        }
        let pending = PendingClose::begin(&self.session_ends);
        let may_work = store.limits.may_block && !self.has_keys(session);
        let (inner, ended) = (Arc::clone(self), Arc::clone(session));
        let end = move || {
            inner.let_go(&ended);
            drop(pending);
        };
        match may_work {
            true => self.work(store, end),
            false => self.go_on(Box::new(end)),
        }
    }

    /// Passes the request `id` for a lock to the engine, now or when the grace period ends; the reply comes when it is
    /// settled.
    ///
    /// # Errors
    /// `Stale` for a claim that comes too late: locks that others may have got since no longer belong to the session.
    fn begin_lock(
        &self,
        session: &Arc<Session>,
        (id, client): (u64, u64),
        wanted: lock::Wanted,
        is_claim: bool,
    ) -> Result<()> {
        let store = &session.export.store;
        let grace = self.grace(store);
        if is_claim && !(session.is_reclaiming() && grace.takes_claims_of(session.resume_token.session)) {
            return Err(FsError::Stale);
        }
        let is_deferred = !is_claim && grace.awaits_locks();
        if !lock::begin(session, id, client, is_deferred) {
            return Ok(());
        }
        let work: Deferred = {
            let session = Arc::clone(session);
            Box::new(move || lock::lock(&session, id, &wanted))
        };
        let work = match is_deferred {
            true => grace.put_off(work),
            false => Some(work),
        };
        if let Some(work) = work {
            self.ask_for_lock(store, work);
        }
        Ok(())
    }
}

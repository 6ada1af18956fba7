//! Locks of a session's clients. A request that waits is answered when it is settled, by whatever connection the client
//! has then.

use std::sync::Arc;

use ferrite_vfs::locks::{LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{ClientId, Ctx, FsError, Result, SYSTEM};

use super::answer::put;
use super::session::{Cancelled, Session};
use crate::wire::Node;

/// Someone who holds no lock, unless the session knows better.
fn ctx(session: &Session, client: u64) -> Ctx {
    SYSTEM
        .clone()
        .of_client(session.known_client(client).unwrap_or_else(ClientId::fresh))
}

/// Begins a request for a lock; false if there is nothing to do. A request that is repeated while it waits has no
/// effect; one that is repeated later is granted what its owner has.
pub(super) fn begin(session: &Session, id: u64, client: u64, is_deferred: bool) -> bool {
    match session.begin_wait(id, client, is_deferred) {
        Ok(is_new) => is_new,
        Err(error) => {
            session.send(|out| put::<()>(out, id, Err(error)));
            false
        }
    }
}

/// Asks for a lock, and answers the request `id`, which has begun, when that is settled.
pub(super) fn lock(session: &Arc<Session>, id: u64, node: Node, lock: &LockRequest, may_wait: bool) {
    let client = match session.resume_wait(id) {
        Ok(Some(client)) => client,
        // It was cancelled, or the session has ended.
        Ok(None) => return,
        Err(error) => return session.send(|out| put::<()>(out, id, Err(error))),
    };
    let held = match session.hold(node) {
        Ok(held) => held,
        Err(error) => {
            session.end_wait(id);
            return session.send(|out| put::<()>(out, id, Err(error)));
        }
    };
    let ctx = SYSTEM.clone().of_client(client);
    let done = {
        let session = Arc::clone(session);
        Box::new(move |result: Result<()>| {
            session.end_wait(id);
            session.send(|out| put(out, id, result));
        })
    };
    if let Some(ticket) = session.export.fs().lock(&ctx, held.ino, lock, may_wait, done)
        && session.waits(id, ticket)
    {
        session.export.fs().cancel_lock(&ctx, ticket);
    }
    if session.has_let_go(client) {
        // It ended meanwhile, and may have missed this lock. While it is only about to, it still has its other locks.
        session.export.fs().release_client(&ctx);
    }
}

/// Releases a lock.
pub(super) fn unlock(session: &Session, node: Node, client: u64, owner: LockOwner, what: Unlock) -> Result<()> {
    let held = session.hold(node)?;
    session.export.fs().unlock(&ctx(session, client), held.ino, owner, what)
}

/// A lock that is in the way.
pub(super) fn conflicting(session: &Session, node: Node, client: u64, lock: &RecordLock) -> Result<Option<RecordLock>> {
    let held = session.hold(node)?;
    session
        .export
        .fs()
        .conflicting_lock(&ctx(session, client), held.ino, lock)
}

/// Ends the wait of a request.
pub(super) fn cancel(session: &Session, request: u64) {
    match session.cancel_wait(request) {
        Cancelled::Nothing => {}
        Cancelled::Deferred => session.send(|out| put::<()>(out, request, Err(FsError::Interrupted))),
        Cancelled::Waiting(client, ticket) => {
            let ctx = SYSTEM.clone().of_client(client);
            session.export.fs().cancel_lock(&ctx, ticket);
        }
    }
}

/// Nobody waits for the answer to a request any more, whatever it was for: one for a lock may wait for the time of
/// grace to end, though its client wanted no wait.
pub(super) fn abandon(session: &Session, request: u64, file: u64) {
    cancel(session, request);
    session.abandon(request, file);
}

/// Releases all locks of one whom the client serves.
pub(super) fn release_client(session: &Session, client: u64) -> Result<()> {
    match session.forget_client(client) {
        Some(client) => {
            session.export.fs().release_client(&SYSTEM.clone().of_client(client));
            Ok(())
        }
        None => Err(FsError::NotFound),
    }
}

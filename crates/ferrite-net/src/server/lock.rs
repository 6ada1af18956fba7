//! Locks of a session's clients. A request that waits is answered when it is settled, by whatever connection the client
//! has then.

use std::sync::Arc;

use ferrite_vfs::locks::{LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{Ctx, FsError, Result, SYSTEM};

use super::answer::put;
use super::session::Session;
use crate::wire::Node;

fn ctx(session: &Session, client: u64) -> Ctx {
    SYSTEM.clone().of_client(session.client(client))
}

/// Asks for a lock, and answers the request `id` when that is settled. A request that is repeated while it waits has no
/// effect; one that is repeated later is granted what its owner has.
pub(super) fn lock(session: &Arc<Session>, id: u64, node: Node, client: u64, lock: &LockRequest, may_wait: bool) {
    let held = match session.hold(node) {
        Ok(held) => held,
        Err(error) => return session.send(|out| put::<()>(out, id, Err(error))),
    };
    let ctx = ctx(session, client);
    if !session.begin_wait(id, ctx.client) {
        return;
    }
    let done = {
        let session = Arc::clone(session);
        Box::new(move |result: Result<()>| {
            session.end_wait(id);
            session.send(|out| put(out, id, result));
        })
    };
    if let Some(ticket) = session.export.fs().lock(&ctx, held.ino, lock, may_wait, done) {
        session.waits(id, ticket);
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
pub(super) fn cancel(session: &Session, request: u64) -> Result<()> {
    if let Some((client, ticket)) = session.waiting(request) {
        let ctx = SYSTEM.clone().of_client(client);
        session.export.fs().cancel_lock(&ctx, ticket);
    }
    Ok(())
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

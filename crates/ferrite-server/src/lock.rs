//! Locks of a session's clients. A waiting request is answered when it is settled, over whatever connection the client
//! has then.
//!
//! A lock needs a right to the file, as NFS demands it: an exclusive one that the session has the file open for
//! writing, or that the caller may write it; a shared one that the session has it open, or that the caller may read it.
//! The client's kernel has checked the descriptor of a lock.
//!
//! A claim was granted before the restart; clients that are trusted with permissions are trusted with locks. Through a
//! read-only export there are no exclusive locks: they would keep out clients that may write.

use std::sync::Arc;

use ferrite_transport::send_queue::SendQueue;
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{ClientId, Ctx, FsError, Ino, Result, SYSTEM, posix, walk};

use super::reply::put;
use super::session::{Cancelled, Session};
use ferrite_proto::{Head, LockingRequest, Node};

/// The context of a client without locks, unless the session knows it.
fn ctx(session: &Session, client: u64) -> Ctx {
    SYSTEM
        .clone()
        .of_client(session.known_client(client).unwrap_or_else(ClientId::fresh))
}

/// Refuses a lock to which `caller` has no right. See the head of this module.
fn permit(session: &Session, caller: &Ctx, ino: Ino, kind: LockKind) -> Result<()> {
    if kind == LockKind::Exclusive && session.export.options.read_only {
        return Err(FsError::ReadOnly);
    }
    if !caller.check || session.may_lock(ino, kind) {
        return Ok(());
    }
    let attr = session.export.fs().getattr(SYSTEM, ino)?;
    let wanted = match kind {
        LockKind::Shared => posix::Access::READ,
        LockKind::Exclusive => posix::Access::WRITE,
    };
    // As on NFS: programs that use `flock` open the file anew for it.
    let guarded = walk::guarded(session.export.fs(), attr, &caller.cred)?;
    posix::may_access(&guarded, &caller.cred, wanted).map_err(|_| FsError::BadHandle)
}

/// Answers a request that does not wait.
pub(super) fn reply(session: &Session, head: Head, request: LockingRequest, out: &mut SendQueue) {
    let id = head.id;
    match request {
        LockingRequest::Unlock {
            node,
            client,
            owner,
            what,
        } => put(out, id, unlock(session, node, client, owner, what)),
        LockingRequest::ConflictingLock { node, client, lock } => {
            let caller = session.export.ctx(head.caller, head.check, false);
            put(out, id, conflicting(session, &caller, (node, client), &lock));
        }
        LockingRequest::ReleaseClient { client } => put(out, id, release_client(session, client)),
    }
}

/// Begins a request for a lock; false if there is nothing to do. A request that is repeated while it waits has no
/// effect; one that is repeated later is granted the lock that its owner has.
pub(super) fn begin(session: &Session, id: u64, client: u64, is_deferred: bool) -> bool {
    match session.begin_wait(id, client, is_deferred) {
        Ok(is_new) => is_new,
        Err(error) => {
            session.send(|out| put::<()>(out, id, Err(error)));
            false
        }
    }
}

/// A requested lock, and its caller.
pub(super) struct Wanted {
    pub(super) node: Node,
    pub(super) lock: LockRequest,
    pub(super) may_wait: bool,
    /// A claim is not checked.
    pub(super) caller: Ctx,
}

/// Asks for a lock, and answers the request `id`, which has begun, once it is settled.
pub(super) fn lock(session: &Arc<Session>, id: u64, wanted: &Wanted) {
    let party = match session.resume_wait(id) {
        Ok(Some(party)) => party,
        // It was cancelled, or the session has ended.
        Ok(None) => return,
        Err(error) => return session.send(|out| put::<()>(out, id, Err(error))),
    };
    let (LockRequest::Flock(_, kind) | LockRequest::Record(RecordLock { kind, .. })) = wanted.lock;
    let held = session.hold(wanted.node).and_then(|held| {
        permit(session, &wanted.caller, held.ino, kind)?;
        Ok(held)
    });
    let held = match held {
        Ok(held) => held,
        Err(error) => {
            session.end_wait(id);
            return session.send(|out| put::<()>(out, id, Err(error)));
        }
    };
    let ctx = SYSTEM.clone().of_client(party.client);
    let done = {
        let session = Arc::clone(session);
        Box::new(move |result: Result<()>| {
            session.end_wait(id);
            session.send(|out| put(out, id, result));
        })
    };
    if let Some(ticket) = session
        .export
        .fs()
        .lock(&ctx, held.ino, &wanted.lock, wanted.may_wait, done)
        && session.waits(id, ticket)
    {
        session.export.fs().cancel_lock(&ctx, ticket);
    }
    if session.has_let_go(party) {
        // The session or the party ended meanwhile, and that may have missed this lock, which no one could release
        // later. A session that is only about to end still has its other locks.
        session.export.fs().release_client(&ctx);
    }
}

/// Releases a lock.
fn unlock(session: &Session, node: Node, client: u64, owner: LockOwner, what: Unlock) -> Result<()> {
    let held = session.hold(node)?;
    session.export.fs().unlock(&ctx(session, client), held.ino, owner, what)
}

/// A conflicting lock. Asking needs the right to the weaker lock.
fn conflicting(
    session: &Session,
    caller: &Ctx,
    (node, client): (Node, u64),
    lock: &RecordLock,
) -> Result<Option<RecordLock>> {
    let held = session.hold(node)?;
    permit(session, caller, held.ino, LockKind::Shared)
        .or_else(|_| permit(session, caller, held.ino, LockKind::Exclusive))?;
    session
        .export
        .fs()
        .conflicting_lock(&ctx(session, client), held.ino, lock)
}

/// Cancels a waiting request.
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

/// No client waits for the reply to a request any more, whatever it was for: a request for a lock may be deferred by
/// the grace period, though its client wanted no wait.
pub(super) fn abandon(session: &Session, request: u64, file: u64) {
    cancel(session, request);
    session.abandon(request, file);
}

/// Releases all locks of one party that the client serves.
fn release_client(session: &Session, client: u64) -> Result<()> {
    match session.forget_client(client) {
        Some(client) => {
            session.export.fs().release_client(&SYSTEM.clone().of_client(client));
            Ok(())
        }
        None => Err(FsError::NotFound),
    }
}

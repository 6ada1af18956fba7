//! Locks: requests whose reply may come at any time.

use std::sync::Arc;

use ferrite_vfs::locks::{LockDone, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::{Ctx, FsError, Ino, Result, SYSTEM};

use super::link::Link;
use super::protocol::Repeats;
use super::reclaim_state::{LockKey, LockStep};
use ferrite_proto::{ImmediateRequest, LockingRequest, Request};

fn owner(request: &LockRequest) -> LockOwner {
    match request {
        LockRequest::Flock(owner, _) => *owner,
        LockRequest::Record(lock) => lock.owner,
    }
}

/// See [`ferrite_vfs::FileSystem::lock`].
pub(super) fn lock(
    link: &Arc<Link>,
    ctx: &Ctx,
    ino: Ino,
    lock: &LockRequest,
    may_wait: bool,
    done: LockDone,
) -> Option<LockTicket> {
    let node = match link.session.reclaim_state.node(ino) {
        Ok(node) => node,
        Err(error) => {
            done(Err(error));
            return None;
        }
    };
    let (lock, client) = (*lock, ctx.client.0);
    let key = LockKey {
        client,
        ino,
        owner: owner(&lock),
    };
    let request = Request::from(ImmediateRequest::Lock {
        node,
        client,
        lock,
        may_wait,
        is_claim: false,
    });
    if !may_wait {
        let reply = link.call(ctx, &request, Repeats::Yes, &[], &mut []);
        let result = reply.and_then(|reply| reply.result::<()>());
        if result.is_ok() {
            link.session.reclaim_state.locked(key, node, LockStep::Locked(lock));
        }
        done(result);
        return None;
    }
    let number = {
        let weak = Arc::downgrade(link);
        link.call_deferred(
            ctx,
            &request,
            Box::new(move |reply, _| {
                let result = reply.and_then(|reply| reply.result::<()>());
                if let Some(link) = weak.upgrade()
                    && result.is_ok()
                {
                    link.session.reclaim_state.locked(key, node, LockStep::Locked(lock));
                }
                done(result);
            }),
        )
    };
    Some(LockTicket(number))
}

/// See [`ferrite_vfs::FileSystem::unlock`]. A caller that does not wait for the reply has unlocked all the same.
pub(super) fn unlock(link: &Link, ctx: &Ctx, ino: Ino, owner: LockOwner, what: Unlock) -> Result<()> {
    let (node, client) = (link.session.reclaim_state.node(ino)?, ctx.client.0);
    let request = Request::from(LockingRequest::Unlock {
        node,
        client,
        owner,
        what,
    });
    match link.call(&of_itself(ctx), &request, Repeats::Yes, &[], &mut []) {
        // It reaches the server after a reconnect, or its session ends, and the locks with it.
        Err(FsError::TimedOut | FsError::Interrupted) => link.post(request),
        reply => reply?.result::<()>()?,
    }
    let key = LockKey { client, ino, owner };
    link.session.reclaim_state.locked(key, node, LockStep::Unlocked(what));
    Ok(())
}

/// The context of a request by the client itself, which waits no longer than its caller does.
fn of_itself(ctx: &Ctx) -> Ctx {
    SYSTEM.clone().waiting(ctx.waits)
}

/// See [`ferrite_vfs::FileSystem::conflicting_lock`].
pub(super) fn conflicting(link: &Link, ctx: &Ctx, ino: Ino, lock: &RecordLock) -> Result<Option<RecordLock>> {
    let request = Request::from(LockingRequest::ConflictingLock {
        node: link.session.reclaim_state.node(ino)?,
        client: ctx.client.0,
        lock: *lock,
    });
    link.call(&of_itself(ctx), &request, Repeats::Yes, &[], &mut [])?
        .result()
}

/// See [`ferrite_vfs::FileSystem::cancel_lock`].
pub(super) fn cancel(link: &Link, ticket: LockTicket) {
    link.cancel_deferred(ticket.0);
}

/// See [`ferrite_vfs::FileSystem::release_client`].
pub(super) fn release_client(link: &Link, ctx: &Ctx) {
    let client = ctx.client.0;
    link.session.reclaim_state.client_released(client);
    // Errors are not reported: without a connection the lease ends the locks.
    let request = Request::from(LockingRequest::ReleaseClient { client });
    let _ = link.call(&of_itself(ctx), &request, Repeats::Yes, &[], &mut []);
}

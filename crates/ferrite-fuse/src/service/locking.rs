//! Calls about locks that the engine keeps ([`crate::locks`]).

use ferrite_vfs::locks::LockDone;
use ferrite_vfs::{Ctx, Ino};
use fuser::Errno;

use super::{Response, Service, to_response};
use crate::locks::{Requester, Wire};

impl Service {
    pub(crate) fn flush(&self, ctx: &Ctx, ino: Ino, fh: u64, owner: u64) -> Response<()> {
        match &self.locks {
            Some(locks) => to_response(locks.flush(ctx, ino, fh, owner)),
            // Nothing to do. After `ENOSYS` the kernel would send no more, and reply itself when the daemon is gone.
            None => Ok(()),
        }
    }

    pub(crate) fn getlk(&self, ctx: &Ctx, ino: Ino, owner: u64, wanted: Wire) -> Response<Wire> {
        let locks = self.locks.as_ref().ok_or(Errno::ENOLCK)?;
        to_response(locks.get(ctx, ino, owner, wanted))
    }

    /// Locks or unlocks. Another thread may call `done` later. Locks change nothing on the medium, so no freeze defers
    /// them.
    pub(crate) fn setlk(
        &self,
        file: (Ino, u64),
        owner: u64,
        wanted: Wire,
        requester: Requester,
        done: impl FnOnce(Response<()>) + Send + 'static,
    ) {
        let Some(locks) = &self.locks else {
            return done(Err(Errno::ENOLCK.into()));
        };
        let done: LockDone = Box::new(move |outcome| done(to_response(outcome)));
        locks.set(file, owner, wanted, requester, done);
    }

    /// The caller of another request has a signal to handle. One that waits for a lock gets its reply; of the others,
    /// the calls themselves look for signals ([`crate::interrupts`]).
    pub(crate) fn interrupt(&self, unique: u64) {
        if let Some(locks) = &self.locks {
            locks.interrupt(unique);
        }
    }

    /// Before [`Self::release`]: ends the locks of a handle, which no freeze defers.
    pub(crate) fn release_locks(&self, ino: Ino, fh: u64) {
        if let Some(locks) = &self.locks {
            locks.release(ino, fh);
        }
    }
}

//! Changes that the server has answered and may yet lose in a power failure.
//!
//! A server whose operations are not durable when they return forgets unsynced changes if its machine goes down. Open
//! files are stale then, and report it. But nobody has a handle of a file that was renamed or closed: the next sync
//! would find nothing to do, and succeed. So the first sync after a loss fails, as Linux reports a lost write to the
//! next caller of fsync.
//!
//! Invariant: a change counts from before its reply reaches the caller until a sync that began later, in the same
//! session, has succeeded. With [`ferrite_vfs::OpenFile::fsync`] of one file all changes have: engines that are not
//! durable at once promise that.

use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::{FsError, Result};

use crate::lock_order;
use ferrite_proto::SessionState;

/// The server's run, as far as the client noticed changes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(u64);

#[derive(Debug, Default)]
struct State {
    /// The last run of the server that the client met.
    instance: Option<u64>,
    changes: u64,
    /// How many changes are durable, or lost.
    settled: u64,
    has_lost: bool,
}

/// See the head of this module.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// Written only under the lock.
    epoch: AtomicU64,
    state: Mutex<lock_order::Unsynced, State>,
}

impl Unsynced {
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// Counts an answered change of a server that may lose it; the request was sent in this epoch or later.
    pub(super) fn changed(&self, epoch: Epoch) {
        let mut state = self.state.lock();
        match self.epoch() == epoch {
            true => state.changes += 1,
            // The server that answered is probably gone.
            false => state.has_lost = true,
        }
    }

    /// Notes a connection. A new run that knows nothing of the session follows a loss of power, or comes so late that
    /// the client cannot tell.
    pub(super) fn session_set_up(&self, instance: u64, session: SessionState) {
        let mut state = self.state.lock();
        let before = state.instance.replace(instance);
        if session == SessionState::New && before.is_some_and(|before| before != instance) {
            state.has_lost |= state.changes > state.settled;
            state.settled = state.changes;
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether every change is durable, and no loss is to be reported.
    pub(super) fn is_settled(&self) -> bool {
        let state = self.state.lock();
        !state.has_lost && state.changes == state.settled
    }

    /// Runs `sync`, which makes everything answered before durable.
    ///
    /// # Errors
    /// Those of `sync`; once, if the server may have lost changes that it had answered.
    pub(super) fn sync(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let (epoch, changes) = {
            let mut state = self.state.lock();
            refuse_once(&mut state)?;
            (self.epoch(), state.changes)
        };
        sync()?;
        let mut state = self.state.lock();
        refuse_once(&mut state)?;
        if self.epoch() == epoch {
            state.settled = state.settled.max(changes);
        }
        Ok(())
    }
}

fn refuse_once(state: &mut State) -> Result<()> {
    match std::mem::take(&mut state.has_lost) {
        false => Ok(()),
        true => Err(FsError::Io(
            "the server went down before it had synced all that it had answered; look what is missing".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn syncs(unsynced: &Unsynced) -> bool {
        unsynced.sync(|| Ok(())).is_ok()
    }

    #[test]
    fn a_loss_is_reported_once_and_only_of_what_was_not_synced() {
        let unsynced = Unsynced::default();
        unsynced.session_set_up(1, SessionState::New);
        unsynced.changed(unsynced.epoch());
        assert!(syncs(&unsynced) && unsynced.is_settled());
        unsynced.session_set_up(2, SessionState::New);
        assert!(syncs(&unsynced), "nothing was lost");
        unsynced.changed(unsynced.epoch());
        unsynced.session_set_up(2, SessionState::New);
        assert!(syncs(&unsynced), "the same run of the server has it still");
        unsynced.changed(unsynced.epoch());
        unsynced.session_set_up(3, SessionState::ToReclaim);
        assert!(
            !unsynced.is_settled(),
            "the kernel of the server has it still, and nothing was synced"
        );
        unsynced.session_set_up(4, SessionState::New);
        assert!(!syncs(&unsynced));
        assert!(syncs(&unsynced));
    }

    #[test]
    fn a_sync_settles_what_was_replied_before_it_in_the_same_session() {
        let unsynced = Unsynced::default();
        unsynced.session_set_up(1, SessionState::New);
        unsynced.changed(unsynced.epoch());
        let synced = unsynced.sync(|| {
            unsynced.changed(unsynced.epoch());
            Ok(())
        });
        assert!(synced.is_ok() && !unsynced.is_settled(), "one came meanwhile");
        assert!(unsynced.sync(|| Err(FsError::Disconnected)).is_err() && !unsynced.is_settled());
        let synced = unsynced.sync(|| {
            unsynced.session_set_up(2, SessionState::New);
            Ok(())
        });
        assert!(synced.is_err(), "the one that synced knew nothing of the changes");
        let before = unsynced.epoch();
        unsynced.session_set_up(3, SessionState::New);
        unsynced.changed(before);
        assert!(!syncs(&unsynced), "the one that answered is gone");
    }
}

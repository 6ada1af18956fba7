//! Lock requests of a session's clients, and the pool's record that it has locks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_vfs::locks::LockTicket;
use ferrite_vfs::{ClientId, FsError, Result, SpaceOf};

use super::{Resource, Session};
use crate::export::Store;

/// Most lock owners that one client serves.
const CLIENTS_MAX: usize = 1 << 16;
/// Most waiting lock requests of a session, behind others or in the grace period.
const WAITING_MAX: usize = 4096;

/// A party that a session's client serves, and for which it requests locks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Party {
    /// The client's number for it, which the client may use again for another.
    number: u64,
    /// The engine's name for it, which nothing else ever has.
    pub(crate) client: ClientId,
}

/// A request for a lock that is not settled.
pub(super) struct Waiting {
    party: Party,
    ticket: Option<LockTicket>,
    /// The engine does not have the request yet.
    pub(super) is_deferred: bool,
    /// The client has given up.
    is_cancelled: bool,
    _unsettled: Unsettled,
}

/// Counts an unsettled request of its store, as long as it lives.
struct Unsettled(Arc<Store>);

impl Unsettled {
    fn new(store: &Arc<Store>) -> Self {
        store.unsettled_locks.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(store))
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.0.unsettled_locks.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of a request for a lock when its client gave up.
pub(crate) enum Cancelled {
    /// It was settled, or about to be.
    Nothing,
    /// It waited for the grace period to end, and does not any more.
    Deferred,
    /// It waits in the engine.
    Waiting(ClientId, LockTicket),
}

impl Session {
    /// The engine's name for a party that the client serves, if that has requested a lock.
    pub(crate) fn known_client(&self, client: u64) -> Option<ClientId> {
        self.kept.lock().clients.get(&client).copied()
    }

    pub(crate) fn forget_client(&self, client: u64) -> Option<ClientId> {
        let forgotten = self.kept.lock().clients.remove(&client);
        if forgotten.is_some() {
            self.budget.give_back(Resource::LockOwners, 1);
        }
        forgotten
    }

    /// Records in the pool that it is about to have a lock. Everything that can fail is done when it returns.
    ///
    /// # Errors
    /// If the pool cannot record it, or the session has ended: the pool must not record a session after its end.
    fn note_locker(&self) -> Result<()> {
        if self.kept.lock().is_locker {
            return Ok(());
        }
        self.export
            .store
            .state
            .add_locker(self.export.fs(), self.resume_token.session, self.account)?;
        {
            let mut kept = self.kept.lock();
            kept.is_locker = !kept.is_over;
            if kept.is_locker {
                return Ok(());
            }
        }
        // It ended meanwhile, and the pool recorded that end before or after this.
        let state = &self.export.store.state;
        state.forget_locker(self.export.fs(), self.resume_token.session);
        Err(FsError::Disconnected)
    }

    /// Notes that it had locks in an earlier run, which the pool still knows.
    pub(crate) fn was_locker(&self) {
        self.kept.lock().is_locker = true;
    }

    /// Keeps the locks that it has claimed. If the time for claims ended in the middle of them, the pool may have
    /// forgotten that it had locks: then this records it again, before the client hears that it has its locks.
    pub(crate) fn keeps_its_locks(&self) {
        let has_clients = !self.kept.lock().clients.is_empty();
        if has_clients && let Err(error) = self.note_locker() {
            tracing::warn!(%error, "a client may lose its locks with the next restart");
        }
    }

    /// Whether it has released the locks of this party, at the party's end or its own.
    pub(crate) fn has_let_go(&self, party: Party) -> bool {
        self.kept.lock().clients.get(&party.number) != Some(&party.client)
    }

    /// Notes that the pool has forgotten its locks.
    pub(crate) fn is_no_locker(&self) {
        self.kept.lock().is_locker = false;
    }

    /// Begins a request for a lock. False if it waits already: the client repeats it.
    pub(crate) fn begin_wait(&self, request: u64, client: u64, is_deferred: bool) -> Result<bool> {
        let mut kept = self.kept.lock();
        if kept.is_over || kept.waiting.contains_key(&request) {
            return Ok(false);
        }
        if kept.waiting.len() >= WAITING_MAX {
            return Err(FsError::NoSpace(SpaceOf::RecordLocks));
        }
        let is_new = !kept.clients.contains_key(&client);
        if is_new && (kept.clients.len() >= CLIENTS_MAX || !self.budget.take(Resource::LockOwners)) {
            return Err(FsError::NoSpace(SpaceOf::RecordLocks));
        }
        let party = Party {
            number: client,
            client: *kept.clients.entry(client).or_insert_with(ClientId::fresh),
        };
        let waiting = Waiting {
            party,
            ticket: None,
            is_deferred,
            is_cancelled: false,
            _unsettled: Unsettled::new(&self.export.store),
        };
        kept.waiting.insert(request, waiting);
        Ok(true)
    }

    /// Resumes a request that now goes to the engine, for the returned party; `None` if the request has ended.
    ///
    /// # Errors
    /// If the client has given up, or the pool cannot note that the session has locks.
    pub(crate) fn resume_wait(&self, request: u64) -> Result<Option<Party>> {
        {
            let kept = self.kept.lock();
            // The pool must not record a session after its end.
            if kept.is_over || !kept.waiting.contains_key(&request) {
                return Ok(None);
            }
        }
        let noted = self.note_locker();
        let mut kept = self.kept.lock();
        let Some(waiting) = kept.waiting.get_mut(&request) else {
            return Ok(None);
        };
        let failed = match noted {
            Ok(()) if waiting.is_cancelled => Some(FsError::Interrupted),
            Ok(()) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            kept.waiting.remove(&request);
            return Err(error);
        }
        waiting.is_deferred = false;
        Ok(Some(waiting.party))
    }

    /// Cancels a client's request for a lock.
    pub(crate) fn cancel_wait(&self, request: u64) -> Cancelled {
        let mut kept = self.kept.lock();
        match kept.waiting.get_mut(&request) {
            None => Cancelled::Nothing,
            Some(waiting) if waiting.is_deferred => {
                kept.waiting.remove(&request);
                Cancelled::Deferred
            }
            Some(waiting) => {
                waiting.is_cancelled = true;
                match waiting.ticket {
                    Some(ticket) => Cancelled::Waiting(waiting.party.client, ticket),
                    None => Cancelled::Nothing,
                }
            }
        }
    }

    /// Notes that the request waits in the engine. True if the client has given up meanwhile, so that the caller must
    /// cancel it.
    pub(crate) fn waits(&self, request: u64, ticket: LockTicket) -> bool {
        match self.kept.lock().waiting.get_mut(&request) {
            Some(waiting) => {
                waiting.ticket = Some(ticket);
                waiting.is_cancelled
            }
            None => false,
        }
    }

    pub(crate) fn end_wait(&self, request: u64) {
        self.kept.lock().waiting.remove(&request);
    }
}

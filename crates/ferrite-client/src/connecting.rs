//! The threads' way to the connection: the driver of [`Protocol`] for making one and for losing it.
//!
//! Contents: the part of [`Link`] that connects when a caller needs it, repeats on a new connection everything that no
//! thread waits for, and drops a connection that broke.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ferrite_checks::ranked::MutexGuard;
use ferrite_transport::FabricError;
use ferrite_vfs::{FsError, Result};

use super::ConnectError;
use super::deadline::Deadline;
use super::link::Link;
use super::protocol::{AfterFailure, Attempt, Failure, Protocol, Repeated, Seek, Stagger};
use super::session_setup::SessionSetup;
use super::up::Up;

type Guard<'l> = MutexGuard<'l, Protocol<Arc<Up>>>;

impl Link {
    /// The connection; makes it, or waits until it is made. A caller that may give up leaves that to the watcher.
    pub(super) fn up(&self, limit: &Deadline) -> Result<Arc<Up>> {
        let mut protocol = self.protocol.lock();
        let seeker = protocol.seeker(!limit.is_short());
        loop {
            match protocol.seek(&seeker) {
                Seek::Found(up) => return Ok(up),
                Seek::Fail(why) => return Err(why),
                Seek::Connect => {
                    protocol = self.connect_again(protocol, limit.deadline())?;
                    continue;
                }
                Seek::Wait { wakes_watcher: true } => self.watcher.wake.ring(),
                Seek::Wait { wakes_watcher: false } => {}
            }
            match limit.next_check() {
                None => self.changed.wait(&mut protocol),
                Some(at) => drop(self.changed.wait_until(&mut protocol, at)),
            }
            limit.check()?;
        }
    }

    /// Connects for all threads that wait, on behalf of a caller that gives up at its deadline.
    fn connect_again<'l>(&'l self, mut protocol: Guard<'l>, deadline: Option<Instant>) -> Result<Guard<'l>> {
        let mut at = protocol.begin_attempts(Instant::now());
        let made = loop {
            // A client that is closed meanwhile makes no attempt.
            while !protocol.is_over() && Instant::now() < at {
                self.changed.wait_until(&mut protocol, at);
            }
            let Some(attempt) = protocol.attempt() else {
                break Err(FsError::Disconnected);
            };
            drop(protocol);
            let made = self.set_up_session(&attempt).map(|up| self.take_up(Arc::new(up)));
            let failure = made.map_err(|error| failure(error, attempt.is_first));
            protocol = self.protocol.lock();
            let Err(failure) = failure else {
                break Ok(());
            };
            match protocol.attempt_failed(failure, deadline, Instant::now(), stagger()) {
                AfterFailure::RetryAt(next) => at = next,
                AfterFailure::GiveUp(why) => break Err(why),
            }
        };
        self.changed.notify_all();
        made.map(|()| protocol)
    }

    /// Connects, and begins a session or resumes the one that the attempt names.
    pub(super) fn set_up_session(&self, attempt: &Attempt) -> std::result::Result<Up, ConnectError> {
        let setup = SessionSetup {
            attempt,
            options: &self.options,
            session: &self.session,
            wants_leases: self.leases.cache.is_some(),
            are_leases_relied_on: self.leases.recall_queue.is_on(),
            next_id: self.requests.ids(),
        };
        let (connection, receiver, welcome, term) = setup.set_up_session()?;
        if let Some(cache) = &self.leases.cache {
            cache.connected(term);
        }
        self.protocol.lock().welcomed(&welcome);
        Ok(Up::new(Arc::clone(&attempt.address), connection, receiver))
    }

    /// Sends unanswered requests that no thread waits for, and then opens the connection to all. Requests noted
    /// meanwhile are sent as well, so that nothing is forgotten, nothing is sent twice, and nothing overtakes another.
    fn take_up(&self, up: Arc<Up>) {
        let mut repeated = Repeated::default();
        loop {
            let mut protocol = self.protocol.lock();
            // Changes of an ended session may have taken effect. Under the lock, because `send_deferred` compares new
            // ones with the session's slots under it. The requests to abandon some are among the unsent.
            drop(self.requests.expire(Instant::now(), Some(&*self.session.slots)));
            let unsent = self.requests.to_repeat(&mut repeated);
            if unsent.is_empty() {
                return protocol.established(up);
            }
            drop(protocol);
            for request in unsent {
                // If it fails, the next user of the connection finds out.
                let _ = up.connection.send(&request.body, &request.data);
            }
        }
    }

    /// Drops the broken connection `up`: all threads that wait for its replies retry.
    pub(super) fn lost(&self, up: &Arc<Up>) {
        up.close_broken();
        {
            let mut protocol = self.protocol.lock();
            if protocol.lost(up)
                && let Some(cache) = &self.leases.cache
            {
                cache.disconnected();
            }
        }
        self.requests.break_off();
        self.watcher.wake.ring();
    }
}

/// The machine's view of an error.
fn failure(error: ConnectError, is_first: bool) -> Failure {
    match &error {
        ConnectError::Fabric(FabricError::Handshake { .. }) if is_first => {
            tracing::warn!("connecting again: {error}");
        }
        error => tracing::debug!("connecting again: {error}"),
    }
    match error {
        ConnectError::Refused { why, .. } => Failure::Refused(why),
        _ => Failure::Transient,
    }
}

/// A number that differs from client to client.
fn stagger() -> Stagger {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    Stagger::of(time.map_or(0, |time| time.subsec_micros()))
}

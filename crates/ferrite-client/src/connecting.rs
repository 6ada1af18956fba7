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
use super::protocol::{AfterFailure, Attempt, Failure, Loss, Protocol, Repeated, Seek, Stagger};
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
            let failure = made.map_err(|error| self.failure(&error, &attempt, "connecting again"));
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

    /// The machine's view of an error.
    fn failure(&self, error: &ConnectError, attempt: &Attempt, doing: &str) -> Failure {
        match error {
            ConnectError::Fabric(FabricError::Handshake { .. }) if attempt.is_first => {
                tracing::warn!("{doing}: {error}");
            }
            error => tracing::debug!("{doing}: {error}"),
        }
        match error {
            ConnectError::Refused { why, .. } => match why {
                FsError::NotOwner { address } => {
                    if attempt.is_first && !address.is_empty() && !self.protocol.lock().has_server(address) {
                        tracing::warn!(
                            "{}: the owner of the volume is {address}, and this client's address does not name that \
                             server, so it is not used; if it is right, add it to the address",
                            attempt.address
                        );
                    }
                    Failure::NotOwner(address.clone())
                }
                why => Failure::Refused(why.clone()),
            },
            _ => Failure::Transient,
        }
    }

    /// Connects for the first time, to any of the servers.
    pub(super) fn connect_first(&self) -> std::result::Result<Up, ConnectError> {
        let deadline = Instant::now() + self.options.connect;
        let mut at = self.protocol.lock().begin_attempts(Instant::now());
        let mut causes = Causes::default();
        loop {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            let left = deadline.saturating_duration_since(Instant::now());
            // The thread may have slept for longer.
            if left.is_zero() && causes.has_some() {
                return Err(causes.into_error());
            }
            let attempt = self.protocol.lock().first_attempt(left);
            let error = match self.set_up_session(&attempt) {
                Ok(up) => return Ok(up),
                Err(error) => error,
            };
            let failure = self.failure(&error, &attempt, "connecting");
            causes.note(&attempt.address, error);
            let mut protocol = self.protocol.lock();
            match protocol.first_failed(&failure, deadline, Instant::now(), stagger()) {
                Some(next) => at = next,
                None => return Err(causes.into_error()),
            }
        }
    }

    /// Drops the broken connection `up`: all threads that wait for its replies retry.
    pub(super) fn lost(&self, up: &Arc<Up>) {
        self.lost_by(up, Loss::Broken);
    }

    /// The same, for a connection that a cause of its own has ended.
    pub(super) fn lost_by(&self, up: &Arc<Up>, loss: Loss) {
        up.close_broken();
        {
            let mut protocol = self.protocol.lock();
            if protocol.lost(up, &loss)
                && let Some(cache) = &self.leases.cache
            {
                cache.disconnected();
            }
        }
        self.requests.break_off();
        self.watcher.wake.ring();
    }
}

/// The last failure of each server that was tried.
#[derive(Default)]
struct Causes(Vec<(Arc<str>, ConnectError)>);

impl Causes {
    fn note(&mut self, address: &Arc<str>, error: ConnectError) {
        match self.0.iter_mut().find(|(tried, _)| tried == address) {
            Some((_, cause)) => *cause = error,
            None => self.0.push((Arc::clone(address), error)),
        }
    }

    fn has_some(&self) -> bool {
        !self.0.is_empty()
    }

    fn into_error(mut self) -> ConnectError {
        match self.0.len() {
            1 => self.0.remove(0).1,
            _ => ConnectError::NoServer(
                self.0
                    .into_iter()
                    .map(|(tried, cause)| (tried.to_string(), cause))
                    .collect(),
            ),
        }
    }
}

/// A number that differs from client to client.
fn stagger() -> Stagger {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    Stagger::of(time.map_or(0, |time| time.subsec_micros()))
}

//! Waiting for replies, and receiving them.
//!
//! There is no dedicated receiving thread, because handing a reply over costs more than most requests: one of the
//! threads that wait for a reply receives for all, until it has its own, and then passes that duty on. The watcher
//! ([`super::watcher`]) does it when only locks are waited for.
//!
//! Contents: the part of [`Link`] that does so, and that calls completions.

use std::sync::Arc;
use std::time::Duration;

use ferrite_transport::connection::Receiver;
use ferrite_vfs::Result;

use super::deadline::Deadline;
use super::link::Link;
use super::message::{ReceiveError, Reply, State, Waiter};
use super::protocol::Health;
use super::requests::Completion;
use super::up::Up;
use ferrite_proto::RECALL_ID;

/// How long a waiting thread sleeps before it checks whether it should receive.
const LOOK_UP: Duration = Duration::from_millis(200);

impl Link {
    /// Waits for the reply to the request `id`; `None` if the connection broke.
    pub(super) fn wait(
        &self,
        up: &Arc<Up>,
        waiter: &Waiter,
        id: u64,
        limit: &Deadline,
        into: &mut [u8],
    ) -> Result<Option<Reply>> {
        loop {
            match waiter.take() {
                State::Replied(reply) => return Ok(Some(reply.with_data(into))),
                State::Broken => return Ok(None),
                State::Waiting | State::Called => {}
            }
            if let Some(mut receiver) = up.receiver.try_lock() {
                // It may have been answered before the receiver was free.
                let state = waiter.take();
                let received = match state {
                    State::Replied(reply) => Ok(Some(reply.with_data(into))),
                    State::Broken => Ok(None),
                    _ => self.receive(up, &mut receiver, Some((id, &mut *into)), limit),
                };
                drop(receiver);
                self.call_another(id);
                self.complete(up);
                match received {
                    Ok(None) if !up.is_broken() => {}
                    Ok(None) => return Ok(None),
                    other => return other,
                }
            } else {
                waiter.sleep(LOOK_UP);
            }
            limit.check()?;
        }
    }

    /// Receives for all waiting threads, until the reply to the request `mine` is there. `None` if the connection
    /// broke, or nothing came for a while and no thread waits here, or completions are to be called.
    pub(super) fn receive(
        &self,
        up: &Arc<Up>,
        receiver: &mut Receiver,
        mut mine: Option<(u64, &mut [u8])>,
        limit: &Deadline,
    ) -> Result<Option<Reply>> {
        let mut has_completions = false;
        loop {
            if up.is_broken() || has_completions && !receiver.has_frame() {
                return Ok(None);
            }
            let received = match Reply::receive(receiver) {
                Ok(Some((mut reply, data_bytes))) => match &mut mine {
                    Some((id, into)) if *id == reply.id() => {
                        let taken = reply.take_data(receiver, data_bytes, into);
                        taken.map(|()| Some(reply)).map_err(ReceiveError::Broken)
                    }
                    _ if reply.id() == RECALL_ID => {
                        has_completions = true;
                        self.note_recall(&reply).map(|()| None).map_err(ReceiveError::Broken)
                    }
                    _ => match self.requests.deliver(reply, receiver, data_bytes) {
                        Ok(is_deferred) => {
                            has_completions |= is_deferred;
                            Ok(None)
                        }
                        Err(error) => Err(ReceiveError::Broken(error)),
                    },
                },
                Ok(None) => match mine {
                    Some(_) => {
                        limit.check()?;
                        let lease = self.protocol.lock().lease();
                        match self.check_health(up, lease) {
                            Health::Heard | Health::Silent => continue,
                            Health::Gone => return Ok(None),
                        }
                    }
                    None => return Ok(None),
                },
                Err(error) => Err(error),
            };
            match received {
                Ok(reply) => {
                    up.note_heard();
                    if reply.is_some() {
                        return Ok(reply);
                    }
                }
                Err(error) => {
                    tracing::debug!("{}: {error}", up.address);
                    self.lost_by(up, error.into());
                    return Ok(None);
                }
            }
        }
    }

    /// Calls the completions whose replies have come, and sends their new requests. The caller does not hold the
    /// receiver.
    pub(super) fn complete(&self, up: &Arc<Up>) {
        self.reply_to_recalls();
        let completed = self.requests.completed();
        if completed.is_empty() {
            return;
        }
        up.outgoing.hold();
        completed.into_iter().for_each(|completion| self.finish(completion));
        self.flush_deferred_sends();
        if up.outgoing.release(&up.connection).is_err() {
            self.lost(up);
        }
    }

    pub(super) fn call_completions(&self) {
        let completed = self.requests.completed();
        completed.into_iter().for_each(|completion| self.finish(completion));
    }

    fn finish(&self, completion: Completion) {
        if let Some(token) = completion.token {
            self.session.slots.free(token);
        }
        if let Some(len_bytes) = completion.expected_bytes() {
            self.deferred_sends.landed(len_bytes);
        }
        completion.call();
    }

    /// Makes another waiting thread receive, if there is one.
    pub(super) fn call_another(&self, but: u64) {
        if !self.requests.call_another(but) && self.requests.awaits_deferred() {
            self.watcher.wake.ring();
        }
    }
}

//! Requests whose callers do not wait, as the connection handles them.
//!
//! Contents: the part of [`Link`] that makes such requests: for locks, and for submitted reads and writes
//! ([`super::submit`] decides when to send those).

use std::sync::Arc;
use std::time::Instant;

use ferrite_buffers::Buffer;
use ferrite_vfs::{Ctx, FsError, Result, SYSTEM};

use super::deferred_sends::DeferredSend;
use super::link::Link;
use super::message::{Reply, encode};
use super::protocol::{Recipient as _, Tokens as _};
use super::requests::{Callback, Deferred, Then};
use super::untrusted::SlotsReply;
use super::{head, own_head};
use ferrite_proto::{Head, ImmediateRequest, Request, SessionRequest};

impl Link {
    /// Makes a request and passes its reply to `then`, at any time, on any thread. Returns its number.
    pub(super) fn call_deferred(&self, ctx: &Ctx, request: &Request<'_>, then: Then) -> u64 {
        let deferred = |body| Deferred {
            body,
            token: None,
            deadline: None,
            recipient: Callback {
                buffer: None,
                buffer_is_sent: false,
                then,
            },
        };
        self.send_deferred(head(ctx, &self.groups), request, deferred)
    }

    /// Reads or writes; `then` gets the reply and the buffer, at any time, on any thread. Waits only for space in the
    /// socket.
    pub(super) fn submit(&self, ctx: &Ctx, request: Request<'static>, buffer: Buffer, then: Then) {
        if let Err(error) = self.options.permit(&request) {
            return then(Err(error), Some(buffer));
        }
        self.deferred_sends.push(DeferredSend {
            head: head(ctx, &self.groups),
            request,
            buffer,
            deadline: self.options.timeout.map(|timeout| Instant::now() + timeout),
            then,
        });
        self.flush_deferred_sends();
    }

    /// Sends deferred requests that may be sent now.
    pub(super) fn flush_deferred_sends(&self) {
        let has_slots = self.promises().has_slots;
        let mut wants_slots = false;
        while let Some((mut unsent, token)) = self.deferred_sends.pop(|unsent| {
            if !unsent.is_change() || !has_slots {
                return Some(None);
            }
            wants_slots = self.session.slots.are_wanted();
            match self.session.slots.try_take() {
                Some(token) => Some(Some(token)),
                None if wants_slots || self.session.slots.has_any() => None,
                None => Some(None),
            }
        }) {
            unsent.head.token = token;
            let is_change = unsent.is_change();
            let deferred = |body| Deferred {
                body,
                token,
                deadline: unsent.deadline,
                recipient: Callback {
                    buffer: Some(unsent.buffer),
                    buffer_is_sent: is_change,
                    then: unsent.then,
                },
            };
            self.send_deferred(unsent.head, &unsent.request, deferred);
        }
        if wants_slots {
            self.ask_for_deferred_slots();
        }
    }

    /// Asks for slots without waiting for them: this may be the receiving thread, or the watcher. Deferred changes are
    /// sent when they come.
    fn ask_for_deferred_slots(&self) {
        if !self.session.slots.begin_asking() {
            return;
        }
        let session = self.protocol.lock().session();
        let (slots, count) = (Arc::clone(&self.session.slots), self.options.slots);
        let then = move |reply: Result<Reply>, _: Option<Buffer>| {
            let given = reply.and_then(|reply| {
                let SlotsReply((number, mut given)) = reply.result()?;
                given.truncate(count as usize);
                Ok((number, given))
            });
            slots.asked(session, given);
        };
        self.call_deferred(SYSTEM, &Request::from(SessionRequest::Slots { count }), Box::new(then));
    }

    fn send_deferred(&self, mut head: Head, request: &Request<'_>, deferred: impl FnOnce(Vec<u8>) -> Deferred) -> u64 {
        let (mut body, mut data) = (Vec::new(), Vec::new());
        let (up, is_first) = {
            let protocol = self.protocol.lock();
            // The token may belong to a session that has been replaced since.
            let is_void = head.token.is_some_and(|token| !self.session.slots.has(token));
            if protocol.is_over() || is_void {
                drop(protocol);
                let Callback { then, buffer, .. } = deferred(body).recipient;
                then(Err(FsError::Disconnected), buffer);
                return 0;
            }
            let is_first = self.requests.enter_deferred(&mut head, |head| {
                body = encode(head, request);
                let deferred = deferred(body.clone());
                data.extend_from_slice(deferred.recipient.data());
                deferred
            });
            (protocol.connection().cloned(), is_first)
        };
        if let Some(up) = up
            && up.outgoing.send(&up.connection, &body, &data).is_err()
        {
            self.lost(&up);
        }
        if is_first {
            self.watcher.wake.ring();
        }
        head.id
    }

    /// Cancels a waiting request for a lock: its reply comes soon.
    pub(super) fn cancel_deferred(&self, number: u64) {
        let (mut head, mut body) = (own_head(0), Vec::new());
        let up = {
            // As in `post`.
            let protocol = self.protocol.lock();
            let waits = self.requests.enter_cancel(&mut head, number, |head| {
                body = encode(head, &ImmediateRequest::CancelLock { request: number });
                body.clone()
            });
            protocol.connection().cloned().filter(|_| waits)
        };
        if let Some(up) = up
            && up.connection.send(&body, &[]).is_err()
        {
            self.lost(&up);
        }
    }

    /// The watcher acts here on behalf of submitters: when deadlines pass, and when it is time to ask for slots again.
    /// It waits for nothing, for it also finds a server that is gone.
    pub(super) fn look_after_submitted(&self) {
        if self.options.timeout.is_some() {
            let now = Instant::now();
            self.expire_deferred(now);
            for unsent in self.deferred_sends.take(Some(now)) {
                unsent.fail(FsError::TimedOut);
            }
        }
        if self.deferred_sends.has_some() {
            self.flush_deferred_sends();
        }
        self.call_completions();
    }

    /// Fails requests whose deadline is past, and tells the server.
    fn expire_deferred(&self, now: Instant) {
        let (up, abandons) = {
            // As in `post`.
            let protocol = self.protocol.lock();
            let abandons = self.requests.expire(now, None);
            (protocol.connection().cloned(), abandons)
        };
        let Some(up) = up else { return };
        for abandon in abandons {
            if up.connection.send(&abandon.body, &abandon.data).is_err() {
                return self.lost(&up);
            }
        }
    }
}

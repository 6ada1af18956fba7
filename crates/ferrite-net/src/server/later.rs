//! Requests that are answered later, by a thread that may wait or when the engine calls back.
//!
//! Invariant: a request is with one of them at a time ([`Session::give`]); what comes again meanwhile gets that answer.

use std::sync::Arc;

use ferrite_fabric::frame::{DATA_BYTES_MAX, INLINE_BYTES_MAX};
use ferrite_fabric::outbox::Outbox;
use ferrite_fabric::reactor::{Data, Served};
use ferrite_vfs::workers::Workers;

use super::answer::put;
use super::ends::End;
use super::leases::Passing;
use super::meter::Received;
use super::session::Session;
use super::{BUFFER_WAIT, Inner};
use crate::wire::{AnswerHead, Head, Reader, Request, Wire};

impl Inner {
    /// Has a read done by an engine that calls back. `false`: somebody has to wait for it, or to refuse it.
    pub(super) fn submit(
        self: &Arc<Self>,
        session: &Arc<Session>,
        head: &Head,
        request: &Request<'_>,
        received: &Received<'_>,
    ) -> bool {
        let Request::Read {
            file,
            offset,
            len_bytes,
        } = *request
        else {
            return false;
        };
        let len = len_bytes as usize;
        if len == 0 || len > DATA_BYTES_MAX {
            return false;
        }
        let (Ok(file), Some(buffer)) = (session.file(file), self.pool.take(len)) else {
            return false;
        };
        let id = head.id;
        session.repeats(id, head.settled_below);
        if !session.give(id) {
            return true;
        }
        let is_leased = session.lease(file.ino());
        let ctx = session.export.ctx(head.caller.clone(), head.check, head.pins);
        let (inner, session, asked) = (Arc::downgrade(self), Arc::clone(session), received.asked);
        let done = move |mut buffer: ferrite_buffers::Buffer, read: ferrite_vfs::Result<usize>| {
            let (mut out, asked) = (Outbox::default(), asked.on_this_thread());
            match read {
                Ok(count) => {
                    buffer.set_len(count);
                    let mut frame = out.frame();
                    AnswerHead {
                        is_leased,
                        ..AnswerHead::ok(id)
                    }
                    .put(frame.body());
                    match count <= INLINE_BYTES_MAX {
                        true => frame.finish_with(count, |room| {
                            room.copy_from_slice(&buffer);
                            count
                        }),
                        false => frame.finish_from(buffer),
                    }
                }
                Err(error) => put::<()>(&mut out, id, Err(error)),
            }
            session.taken_back(id);
            asked.count_if_answered(&session.meter, &out);
            session.send(|to| to.append(&mut out));
            // The last to know of a session closes its files, which may wait. This thread must not.
            if Arc::strong_count(&session) == 1
                && let Some(workers) = inner.upgrade().as_ref().and_then(|inner| inner.workers.as_ref())
            {
                workers.add(move || drop(session));
            }
        };
        file.submit_read(&ctx, offset, buffer, Box::new(done));
        true
    }

    /// Has a request answered by a worker, unless one is about it already. What comes after one that `is_end` finds
    /// that done.
    pub(super) fn give(
        self: &Arc<Self>,
        workers: &Workers,
        session: &Arc<Session>,
        id: u64,
        received: Received<'_>,
        passing: Option<Passing>,
        is_end: bool,
    ) {
        enum Owned {
            Bytes(Vec<u8>),
            Buffer(ferrite_buffers::Buffer),
        }
        if !session.give(id) {
            return;
        }
        let (inner, session, body) = (Arc::clone(self), Arc::clone(session), received.body.to_vec());
        let before = session.ends.latest().filter(|_| !is_end);
        let end = is_end.then(|| End::begin(&session.ends));
        let asked = received.asked;
        let data = match received.data {
            Data::Inline(bytes) => Owned::Bytes(bytes.to_vec()),
            Data::Buffer(buffer) => Owned::Buffer(buffer),
        };
        workers.give(move || {
            let data: &[u8] = match &data {
                Owned::Bytes(bytes) => bytes,
                Owned::Buffer(buffer) => buffer,
            };
            if let Some(before) = before {
                session.ends.wait_for(before);
            }
            let (mut out, asked) = (Outbox::default(), asked.on_this_thread());
            while let Ok((head, request)) = Reader::new(&body).last::<(Head, Request<'_>)>()
                && inner.answer(&session, head, request, data, &mut out) == Served::Starved
                && !session.is_over()
            {
                std::thread::sleep(BUFFER_WAIT);
            }
            drop((passing, end));
            session.taken_back(id);
            asked.count_if_answered(&session.meter, &out);
            session.send(|to| to.append(&mut out));
        });
    }
}

//! Deferred replies, by a thread that may wait or when the engine calls back.
//!
//! Invariants: one of them at a time has a request ([`Session::give`]); a repetition of it meanwhile gets that answer.
//! No worker waits for a buffer: requests that have one may wait for a worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_transport::frame::{DATA_BYTES_MAX, INLINE_BYTES_MAX};
use ferrite_transport::reactor::{Data, Served};
use ferrite_transport::send_queue::SendQueue;

use super::Inner;
use super::close_barrier::PendingClose;
use super::lane::Holds;
use super::meter::{Measured, Received};
use super::reply::{begin_reply, put};
use super::session::Session;
use ferrite_proto::{Call, FileRequest, Head, Reader};

/// How often a request that found no buffer is retried.
const BUFFER_WAIT: Duration = Duration::from_millis(1);

impl Inner {
    /// Submits a read to an engine that calls back. `false`: the caller has to wait for it, or to refuse it.
    pub(super) fn submit(
        self: &Arc<Self>,
        session: &Arc<Session>,
        head: &Head,
        request: &Call<'_>,
        received: &Received<'_>,
    ) -> bool {
        let &Call::File(FileRequest::Read {
            file,
            offset,
            len_bytes,
        }) = request
        else {
            return false;
        };
        let len = len_bytes as usize;
        if len == 0 || len > DATA_BYTES_MAX {
            return false;
        }
        let (Ok(file), Some(buffer)) = (session.file(file), self.common.pool.take(len)) else {
            return false;
        };
        let id = head.id;
        session.repeats(id, head.settled_below);
        if !session.give(id) {
            return true;
        }
        let is_leased = session.lease(file.ino());
        let ctx = session.export.ctx(head.caller.clone(), head.check, head.pins);
        let (inner, session, measured) = (Arc::downgrade(self), Arc::clone(session), received.measured);
        let done = move |mut buffer: ferrite_buffers::Buffer, read: ferrite_vfs::Result<usize>| {
            let (mut out, measured) = (SendQueue::default(), measured.on_this_thread());
            match read {
                Ok(count) => {
                    buffer.set_len(count);
                    let frame = begin_reply(&mut out, id, is_leased);
                    match count <= INLINE_BYTES_MAX {
                        true => frame.finish_with(count, |buf| {
                            buf.copy_from_slice(&buffer);
                            count
                        }),
                        false => frame.finish_from(buffer),
                    }
                }
                Err(error) => put::<()>(&mut out, id, Err(error)),
            }
            session.worker_done(id);
            measured.count_if_replied(&session.meter, &out);
            session.send(|to| to.append(&mut out));
            // Dropping the last reference to a session closes its files, which may wait. This thread must not.
            if Arc::strong_count(&session) == 1
                && let Some(workers) = inner.upgrade().as_ref().and_then(|inner| inner.workers.as_ref())
            {
                workers.add(move || drop(session));
            }
        };
        file.submit_read(&ctx, offset, buffer, Box::new(done));
        true
    }

    /// Hands a request to a worker, unless one has it already. Later requests find one that `is_end` done.
    pub(super) fn give(
        self: &Arc<Self>,
        session: &Arc<Session>,
        id: u64,
        received: Received<'_>,
        holds: Holds,
        is_end: bool,
    ) {
        if !session.give(id) {
            return;
        }
        let given = Given {
            before: session.close_barrier.latest().filter(|_| !is_end),
            end: is_end.then(|| PendingClose::begin(&session.close_barrier)),
            inner: Arc::clone(self),
            session: Arc::clone(session),
            id,
            body: received.body.to_vec(),
            measured: received.measured,
            data: received.data.into(),
            holds,
            starved: None,
        };
        self.workers_of(&session.export.store).give(move || given.reply());
    }
}

/// The data of a request, kept for later.
pub(super) enum Owned {
    Bytes(Vec<u8>),
    Buffer(ferrite_buffers::Buffer),
}

impl From<Data<'_>> for Owned {
    fn from(data: Data<'_>) -> Owned {
        match data {
            Data::Inline(bytes) => Owned::Bytes(bytes.to_vec()),
            Data::Buffer(buffer) => Owned::Buffer(buffer),
        }
    }
}

impl Owned {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Owned::Bytes(bytes) => bytes,
            Owned::Buffer(buffer) => buffer,
        }
    }
}

/// A request that a worker has, or that waits for one.
struct Given {
    inner: Arc<Inner>,
    session: Arc<Session>,
    id: u64,
    body: Vec<u8>,
    data: Owned,
    measured: Measured,
    /// The last pending end when it came.
    before: Option<u64>,
    end: Option<PendingClose>,
    holds: Holds,
    /// When it last found no buffer for its reply.
    starved: Option<Instant>,
}

impl Given {
    fn reply(mut self) {
        if let Some(before) = self.before.take() {
            self.session.close_barrier.wait_for(before);
        }
        if let Some(starved) = self.starved {
            std::thread::sleep(BUFFER_WAIT.saturating_sub(starved.elapsed()));
        }
        let (inner, session) = (Arc::clone(&self.inner), Arc::clone(&self.session));
        let (mut out, measured) = (SendQueue::default(), self.measured.on_this_thread());
        let data = self.data.bytes();
        let served = match Reader::new(&self.body).last::<(Head, Call<'_>)>() {
            Ok((head, request)) => inner.reply(&session, head, request, data, &mut out),
            Err(_) => Served::Yes,
        };
        if served == Served::Starved && !session.is_over() {
            // At the end of the queue: others may have the buffers, and free them when a worker gets to them.
            self.starved = Some(Instant::now());
            return inner.workers_of(&session.export.store).add(move || self.reply());
        }
        drop((self.holds, self.end));
        session.worker_done(self.id);
        measured.count_if_replied(&session.meter, &out);
        session.send(|to| to.append(&mut out));
    }
}

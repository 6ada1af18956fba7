//! The classic transport: threads read requests from `/dev/fuse`, and write the replies there.
//!
//! Contents: [`Readers`], which serve a mount until it ends; [`Message`], a request in memory.
//!
//! With rings only `FORGET`, `INTERRUPT` and requests from before the rings arrive here; the kernel never says which
//! transport a request will take, so all are understood.
//!
//! Decisions, with reasons:
//! * All threads read the same descriptor. With a clone for each, requests could be stuck behind a sleeping thread.
//! * A reader owns the memory of one request of any length. A request that has to wait moves to memory of its own
//!   length, and is answered by whoever ends its wait.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use fuser::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::busy_poll::{BusyPoll, Pace};
use crate::message::abi::{InHeader, OutHeader};
use crate::message::{Exchange, MAX_WRITE_BYTES, Parts, kind, opcode};
use crate::serve::serve;
use crate::service::{Response, Service};
use crate::spare::{Busy, Spare};

/// Bytes of the longest request but for its data: `struct fuse_in_header` and `struct fuse_write_in`.
const HEADERS_BYTES: usize = 80;
/// Space for the longest request, and the longest reply: data of a write or a read, or an extended attribute and its
/// name.
const MESSAGE_BYTES: usize = HEADERS_BYTES + MAX_WRITE_BYTES as usize + 4096;
/// Data of a read begins on such a boundary.
const LINE_BYTES: usize = 64;
/// A reader's memory of which at most so much was used is not worth a copy of what is in it.
const LITTLE_BYTES: usize = 64 << 10;
/// Pause after an error of the device, or without memory, before the next try.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// A request, and then its reply.
pub(crate) struct Message {
    device: Arc<OwnedFd>,
    memory: Vec<u8>,
    /// Where the request begins in the memory.
    start: usize,
    /// Bytes of the request.
    len_bytes: usize,
    /// Most bytes of the memory that any request or reply has used.
    touched_bytes: usize,
    /// Of the reply: how long its payload is.
    outcome: Result<usize, Errno>,
}

impl Message {
    /// Memory for `len_bytes`, allocated as it is used.
    fn new(device: &Arc<OwnedFd>, len_bytes: usize) -> Message {
        let memory = vec![0; len_bytes + 2 * LINE_BYTES];
        // So that the data behind the headers begins with a line of the memory.
        let to_line = memory.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES);
        Message {
            device: Arc::clone(device),
            start: to_line + LINE_BYTES - HEADERS_BYTES % LINE_BYTES,
            memory,
            len_bytes: 0,
            touched_bytes: 0,
            outcome: Err(Errno::EIO),
        }
    }

    /// Whether a request is there.
    fn is_pending(&self) -> bool {
        let mut polled = [PollFd::new(&*self.device, PollFlags::IN)];
        // Also at the end of the mount, which the read then reports.
        !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
    }

    /// Waits for a request.
    fn receive(&mut self) -> io::Result<()> {
        self.len_bytes = rustix::io::read(&*self.device, &mut self.memory[self.start..])?;
        self.touched_bytes = self.touched_bytes.max(self.len_bytes);
        Ok(())
    }

    /// Whether it can be answered at all.
    fn is_whole(&self) -> bool {
        self.len_bytes >= size_of::<InHeader>() && self.request().len_bytes as usize == self.len_bytes
    }

    /// Where the payload begins.
    fn payload_at(&self) -> usize {
        let headers = size_of::<InHeader>() + kind::op_bytes(self.request().opcode);
        self.start + headers.min(self.len_bytes)
    }

    /// Writes the reply, if there is any.
    fn send(self) -> Message {
        let requested = self.request();
        if !kind::has_reply(requested.opcode) {
            return self;
        }
        let header = OutHeader::new(requested.unique, self.outcome);
        let at = self.payload_at();
        let payload = &self.memory[at..at + self.outcome.unwrap_or(0)];
        let parts = [header.as_bytes(), payload].map(io::IoSlice::new);
        match rustix::io::writev(&*self.device, &parts) {
            // The caller was killed, or the mount has ended.
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => {}
            Err(error) => tracing::debug!(%error, "a reply of the mount"),
        }
        self
    }
}

impl Exchange for Message {
    fn request(&self) -> InHeader {
        InHeader::read_from_prefix(&self.memory[self.start..])
            .map_or_else(|_| InHeader::new_zeroed(), |(header, _)| header)
    }

    fn parts(&mut self) -> Parts<'_> {
        let (op_at, payload_at) = (self.start + size_of::<InHeader>(), self.payload_at());
        let used = self.start + self.len_bytes - payload_at;
        let (head, payload) = self.memory.split_at_mut(payload_at);
        Parts {
            op: head.get(op_at..).unwrap_or_default(),
            payload,
            used,
        }
    }

    fn respond(&mut self, outcome: Response<usize>) {
        let space = self.memory.len() - self.payload_at();
        self.outcome = outcome.map(|len| len.min(space)).map_err(|refused| refused.errno);
        self.touched_bytes = self.touched_bytes.max(HEADERS_BYTES + self.outcome.unwrap_or(0));
    }

    fn set_aside(mut self) -> Message {
        let reply_bytes = kind::reply_bytes_max(self.request().opcode, self.parts().op).min(MAX_WRITE_BYTES as usize);
        let needed = self.len_bytes.max(HEADERS_BYTES + reply_bytes) + HEADERS_BYTES;
        if needed >= LITTLE_BYTES && needed * 2 > self.touched_bytes {
            return self;
        }
        let mut aside = Message::new(&self.device, needed);
        let request = &self.memory[self.start..self.start + self.len_bytes];
        aside.memory[aside.start..aside.start + self.len_bytes].copy_from_slice(request);
        aside.len_bytes = self.len_bytes;
        aside.touched_bytes = needed;
        aside
    }
}

/// The threads that serve a mount over `/dev/fuse`.
#[derive(Clone)]
pub(crate) struct Readers {
    service: Arc<Service>,
    device: Arc<OwnedFd>,
    /// The only user allowed to send requests, if restricted.
    only: Option<u32>,
    polling: Arc<BusyPoll>,
}

impl Readers {
    /// For a mount that has rings as well, or not.
    pub(crate) fn new(service: Arc<Service>, device: OwnedFd, only: Option<u32>, has_rings: bool) -> Readers {
        let polling = BusyPoll::new(!has_rings && !service.may_block());
        Readers {
            service,
            device: Arc::new(device),
            only,
            polling: Arc::new(polling),
        }
    }

    /// Serves requests on `count` threads, until the kernel has ended the connection and all are answered.
    pub(crate) fn run(&self, count: usize) -> io::Result<()> {
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let reader = self.clone();
            let named = std::thread::Builder::new().name(format!("ferrite-fuse-{number}"));
            match named.spawn(move || reader.read()) {
                Ok(thread) => threads.push(thread),
                // Fewer threads serve the mount, too.
                Err(error) if threads.is_empty() => return Err(error),
                Err(error) => tracing::warn!(%error, "a thread of the mount cannot start"),
            }
        }
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(_) => Err(io::Error::other("a thread of the mount ended")),
        });
        ended.fold(Ok(()), Result::and)
    }

    /// A thread: reads requests, and serves them.
    fn read(&self) -> io::Result<()> {
        let mut pace = Pace::default();
        let ended = self.read_all(&mut pace);
        self.polling.stop(&mut pace);
        ended
    }

    fn read_all(&self, pace: &mut Pace) -> io::Result<()> {
        let mut message = Message::new(&self.device, MESSAGE_BYTES);
        loop {
            self.polling.wait(pace, || message.is_pending());
            if let Err(error) = message.receive() {
                match error.raw_os_error().unwrap_or_default() {
                    libc::ENODEV | libc::ECONNABORTED => return Ok(()),
                    // The caller gave up before its request was read; or a signal.
                    libc::ENOENT | libc::EINTR | libc::EAGAIN => {}
                    // Others may go on.
                    libc::ENOMEM => std::thread::sleep(RETRY_AFTER),
                    _ => return Err(error),
                }
                continue;
            }
            match message.len_bytes {
                // The kernel never says so; the other end of a socket does.
                0 => return Ok(()),
                _ if !message.is_whole() => continue,
                _ => {}
            }
            if self.may_take_long(&mut message) {
                self.polling.stop(pace);
            }
            message = self
                .take(message)
                .unwrap_or_else(|| Message::new(&self.device, MESSAGE_BYTES));
        }
    }

    /// Whether serving a request may take longer than waking another thread.
    fn may_take_long(&self, message: &mut Message) -> bool {
        let InHeader { opcode, ino, .. } = message.request();
        let Parts { op, used, .. } = message.parts();
        let is_large = used + kind::reply_bytes_max(opcode, op) > LITTLE_BYTES;
        let is_snapshot = || matches!(opcode, opcode::MKDIR | opcode::RMDIR) && self.service.takes_snapshots(ino);
        is_large || kind::may_take_long(opcode) || is_snapshot()
    }

    /// Serves a request; `None` if it has to wait, and took the memory along.
    fn take(&self, mut message: Message) -> Option<Message> {
        let requested = message.request();
        if self.only.is_some_and(|only| only != requested.uid) && kind::is_users(requested.opcode) {
            message.respond(Err(Errno::EACCES.into()));
            return Some(message.send());
        }
        let later = |message: Message| drop(message.send());
        // The reply to these comes soon, whatever the engine does.
        let is_at_hand = kind::is_answered_in_any_case(&requested) || !kind::asks_engine(requested.opcode);
        let busy = self.service.spare().filter(|_| !is_at_hand).map(Spare::enter);
        if let Some(spare) = self.service.spare()
            && busy.as_ref().is_some_and(Busy::is_last)
        {
            let (service, message) = (Arc::clone(&self.service), message.set_aside());
            spare.pass_on(move || serve(&service, message, later).into_iter().for_each(later));
            return None;
        }
        serve(&self.service, message, later).map(Message::send)
    }
}

#[cfg(test)]
mod tests;

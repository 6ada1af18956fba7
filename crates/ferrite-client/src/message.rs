//! The client's requests and replies, and a thread that waits for a reply.

use std::time::Duration;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;
use ferrite_transport::FabricError;
use ferrite_transport::connection::Receiver;
use ferrite_transport::frame::BODY_BYTES_MAX;
use ferrite_vfs::{FsError, Result};
use thiserror::Error;

use super::protocol::Loss;
use super::untrusted::{ReplyBody, refused};
use crate::lock_order;
use ferrite_proto::{Call, Encode, FsRequest, Head, Malformed, Reader, ReplyHead, Request};

/// Why a connection has no reply to give any more.
#[derive(Debug, Error)]
pub(super) enum ReceiveError {
    /// The connection broke, or the peer is no server.
    #[error(transparent)]
    Broken(#[from] FabricError),
    /// The server does not own the volume any more. Its reply is no reply: the owner answers the repeated request.
    #[error("the server no longer owns the volume; the owner is {}", owner(.0))]
    NotOwner(String),
}

impl From<ReceiveError> for Loss {
    fn from(error: ReceiveError) -> Loss {
        match error {
            ReceiveError::Broken(_) => Loss::Broken,
            ReceiveError::NotOwner(owner) => Loss::NotOwner(owner),
        }
    }
}

/// An owner as a server names it, for a message.
fn owner(address: &str) -> &str {
    match address {
        "" => "not known yet",
        address => address,
    }
}

/// Length of a reply's head.
const REPLY_HEAD_BYTES: usize = 9;

/// Encodes a request.
pub(super) fn encode(head: &Head, request: &impl Encode) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    head.put(&mut body);
    request.put(&mut body);
    body
}

/// Refuses requests that the server would take for garbage. Only values, and names that no engine accepts, are so long.
pub(super) fn check_length(body: &[u8], request: &Request<'_>) -> Result<()> {
    match request {
        _ if body.len() <= BODY_BYTES_MAX => Ok(()),
        Request::Call(Call::Fs(FsRequest::Setxattr { .. })) => Err(FsError::ValueTooLong),
        _ => Err(FsError::NameTooLong),
    }
}

/// A reply.
#[derive(Debug, Default)]
pub(super) struct Reply {
    id: u64,
    is_ok: bool,
    is_leased: bool,
    /// The part after its head.
    body: Vec<u8>,
    /// Data that did not fit into the caller's buffer.
    data: Vec<u8>,
    /// How much data went into the caller's buffer.
    taken_bytes: usize,
}

impl Reply {
    /// Takes a reply off a connection, and returns how much data it has, which the caller takes or leaves. `None` if
    /// nothing came for a while.
    ///
    /// # Errors
    /// As for a broken connection also for a reply that the server does not own the volume, whatever it replies to. All
    /// replies come this way, so that no caller sees one of these.
    pub(super) fn receive(receiver: &mut Receiver) -> std::result::Result<Option<(Reply, usize)>, ReceiveError> {
        let Some((body, data_bytes)) = receiver.receive()? else {
            return Ok(None);
        };
        let malformed = |_: Malformed| FabricError::Foreign;
        let head: ReplyHead = Reader::new(body).get().map_err(malformed)?;
        let reply = Reply {
            id: head.id,
            is_ok: head.is_ok,
            is_leased: head.is_leased,
            body: body[REPLY_HEAD_BYTES..].to_vec(),
            ..Reply::default()
        };
        if !reply.is_ok
            && let Err(FsError::NotOwner { address }) = reply.result::<()>()
        {
            return Err(ReceiveError::NotOwner(address));
        }
        Ok(Some((reply, data_bytes)))
    }

    /// Takes its data off the connection, as much as `into` holds.
    pub(super) fn take_data(
        &mut self,
        receiver: &mut Receiver,
        data_bytes: usize,
        into: &mut [u8],
    ) -> std::result::Result<(), FabricError> {
        self.taken_bytes = data_bytes.min(into.len());
        receiver.take_data(&mut into[..self.taken_bytes])
    }

    /// Takes its data off the connection for a thread that takes it later.
    pub(super) fn keep_data(
        &mut self,
        receiver: &mut Receiver,
        data_bytes: usize,
    ) -> std::result::Result<(), FabricError> {
        self.data.resize(data_bytes, 0);
        receiver.take_data(&mut self.data)
    }

    /// The number of the request that it answers.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Whether the request succeeded.
    pub(super) fn is_ok(&self) -> bool {
        self.is_ok
    }

    /// Whether there is a lease on the inodes it describes.
    pub(super) fn is_leased(&self) -> bool {
        self.is_leased
    }

    /// Moves data that another thread received to its place.
    pub(super) fn with_data(mut self, into: &mut [u8]) -> Reply {
        if !self.data.is_empty() {
            let count = self.data.len().min(into.len());
            into[..count].copy_from_slice(&self.data[..count]);
            self.taken_bytes = count;
        }
        self
    }

    /// The result that it carries, checked.
    pub(super) fn result<'a, T: ReplyBody<'a>>(&'a self) -> Result<T> {
        let reader = Reader::new(&self.body);
        if !self.is_ok {
            return Err(reader.last::<FsError>().unwrap_or_else(refused));
        }
        let reply: T = reader.last().map_err(refused)?;
        reply.check().map_err(refused)?;
        Ok(reply)
    }

    /// The body, or the error.
    pub(super) fn body(&self) -> Result<&[u8]> {
        match self.is_ok {
            true => Ok(&self.body),
            false => Err(self.result::<()>().err().unwrap_or(FsError::Disconnected)),
        }
    }

    /// How much data went into the caller's buffer.
    pub(super) fn taken_bytes(&self) -> usize {
        self.taken_bytes
    }
}

/// The state of a waiting thread.
pub(super) enum State {
    Waiting,
    /// It should receive.
    Called,
    Replied(Reply),
    Broken,
}

/// A thread that waits.
pub(super) struct Waiter {
    state: Mutex<lock_order::Reply, State>,
    changed: Condvar,
}

impl Waiter {
    pub(super) fn new() -> Waiter {
        Waiter {
            state: Mutex::new(State::Waiting),
            changed: Condvar::new(),
        }
    }

    /// A thread that works before it waits, so that no other asks it to receive.
    pub(super) fn deferred() -> Waiter {
        Waiter {
            state: Mutex::new(State::Called),
            changed: Condvar::new(),
        }
    }

    /// Waits a while, unless something has happened.
    pub(super) fn sleep(&self, limit: Duration) {
        let mut state = self.state.lock();
        if matches!(*state, State::Waiting) {
            self.changed.wait_for(&mut state, limit);
        }
    }

    /// Asks it to receive, if it waits.
    pub(super) fn call(&self) -> bool {
        let mut state = self.state.lock();
        let waits = matches!(*state, State::Waiting);
        if waits {
            *state = State::Called;
            self.changed.notify_one();
        }
        waits
    }

    pub(super) fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_one();
    }

    pub(super) fn break_off(&self) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Replied(_)) {
            *state = State::Broken;
            self.changed.notify_one();
        }
    }

    pub(super) fn take(&self) -> State {
        let mut state = self.state.lock();
        match *state {
            State::Replied(_) | State::Broken => std::mem::replace(&mut *state, State::Waiting),
            _ => {
                *state = State::Waiting;
                State::Waiting
            }
        }
    }
}

//! The client's end of a connection over a fabric.
//!
//! Contents: [`FabricConnection`], which many threads send through, and [`FabricReader`], by which one receives. There
//! is no extra thread: a waiting thread polls for messages itself, continuously at first, then with naps between, then
//! asleep until the server rings or is gone.
//!
//! Data of a write goes into the pool, whose registration is all a server needs to fetch it; data of a read comes into
//! a buffer there that the request names. The request owns both until it is answered or the connection is dropped.
//! Without a free buffer data travels in the stream, so that no thread ever waits for one that waits itself.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferrite_buffers::{Buffer, Pool};
use ferrite_checks::ranked::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::channel::{Channel, channel_of};
use super::{Descriptor, RECEIVE_DEPTH, RINGS_AFTER, message_bytes, pause, prefix};
use crate::FabricError;
use crate::frame::{INLINE_BYTES_MAX, Lengths};
use crate::lock_order;
use crate::ofi::{Completion, Endpoint, Kind, PeerLocks, Provider, Reach, Remote};

/// Polls between two reads of the clock.
const POLLS: u32 = 16;
/// How long bulk data of one request at a time may wait for a buffer.
const BUFFER_WAIT: Duration = Duration::from_millis(2);

/// Holding the state takes no longer, unless the machine is busy, or the server was killed.
const TAKES_NO_LONGER: Duration = Duration::from_millis(50);

/// How long closing a connection waits for the server to notice.
const LETS_GO_WITHIN: Duration = Duration::from_millis(500);

struct State {
    endpoint: Endpoint,
    channel: Option<Channel>,
    done: Vec<Completion>,
    /// Unread pieces of the stream; the client returns their messages to the server only afterwards.
    inbox: VecDeque<Vec<u8>>,
    /// By request: the memory that the server reads or writes.
    exposed: HashMap<u64, Buffer>,
    /// Buffers for messages that a busy provider has not taken yet.
    unposted: Vec<Buffer>,
    /// When this side last sent something.
    sent: Instant,
}

/// See the head of this module.
pub(crate) struct FabricConnection {
    state: Mutex<lock_order::FabricConnection, State>,
    pool: Pool,
    stream: TcpStream,
    busy_poll: Duration,
    is_closed: AtomicBool,
    locks: OnceLock<PeerLocks>,
}

impl FabricConnection {
    /// Opens an endpoint of this side. `stream` is the connection that introduces it to the server.
    pub(crate) fn open(
        provider: Provider,
        stream: TcpStream,
        pool_bytes: usize,
        busy_poll: Duration,
    ) -> Result<FabricConnection, FabricError> {
        let no_memory = || FabricError::Io(io::ErrorKind::OutOfMemory.into());
        let pool = Pool::new(pool_bytes).ok_or_else(no_memory)?;
        let node = stream.local_addr()?.ip().to_string();
        let mut endpoint = Endpoint::open(provider, Some(&node), 2 * RECEIVE_DEPTH, &pool, Reach::Remote)?;
        for _ in 0..RECEIVE_DEPTH {
            let buffer = pool
                .take(message_bytes(endpoint.inject_bytes()))
                .ok_or_else(no_memory)?;
            endpoint.receive(buffer)?;
        }
        Ok(FabricConnection {
            state: Mutex::new(State {
                endpoint,
                channel: None,
                done: Vec::new(),
                inbox: VecDeque::new(),
                exposed: HashMap::new(),
                unposted: Vec::new(),
                sent: Instant::now(),
            }),
            pool,
            stream,
            busy_poll,
            is_closed: AtomicBool::new(false),
            locks: OnceLock::new(),
        })
    }

    /// Locks the state. Its holder may wait for a lock of a killed server; this call then frees that lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        loop {
            if let Some(state) = self.state.try_lock_for(TAKES_NO_LONGER) {
                return state;
            }
            if let Some(locks) = self.locks.get() {
                locks.free_if_stale();
            }
        }
    }

    /// The server's view of this side: the endpoint's name, where the pool is, and how long.
    pub(crate) fn introduction(&self) -> Result<(Vec<u8>, Remote, u64), FabricError> {
        let state = self.lock();
        Ok((
            state.endpoint.name()?,
            state.endpoint.region(),
            self.pool.len_bytes() as u64,
        ))
    }

    /// The server has accepted the connection.
    pub(crate) fn begin(&self, name: &[u8], number: u64) -> Result<(), FabricError> {
        let mut state = self.lock();
        let peer = state.endpoint.insert(name)?;
        if state.endpoint.provider() == Provider::Shm
            && let Some(locks) = PeerLocks::of(&state.endpoint.name()?, name)
        {
            // A connection begins only once.
            let _ = self.locks.set(locks);
        }
        state.channel = Some(Channel::new(peer, number));
        Ok(())
    }

    /// Ends the connection: senders and receivers get errors, and the server is notified. Nothing is sent after that,
    /// because the server forgets this endpoint then, and a provider (shm) may trip over messages of one it does not
    /// know.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.lock().channel = None;
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Sends a frame, whose reply may have up to `reply_bytes` of data. The caller keeps other threads from sending
    /// meanwhile.
    pub(crate) fn send(
        &self,
        body: &[u8],
        data: &[u8],
        reply_bytes: usize,
        limit: Duration,
    ) -> Result<(), FabricError> {
        let bulk_bytes = data.len().max(reply_bytes);
        let exposed = match body.first_chunk() {
            Some(&id) if bulk_bytes > INLINE_BYTES_MAX => self
                .pool
                .get(bulk_bytes, BUFFER_WAIT)
                .map(|buffer| (u64::from_le_bytes(id), buffer)),
            _ => None,
        };
        let lengths = Lengths {
            body_bytes: body.len(),
            data_bytes: data.len(),
        };
        let head = prefix(lengths, exposed.is_some());
        let mut descriptor = Vec::new();
        let mut pieces = [&head[..], body, data];
        if let Some((id, mut buffer)) = exposed {
            if !data.is_empty() {
                buffer.copy_from_slice(data);
            }
            let place = Descriptor {
                offset: buffer.offset() as u64,
                len_bytes: buffer.len() as u32,
            };
            descriptor.extend(place.encode());
            pieces[2] = &descriptor;
            self.lock().exposed.insert(id, buffer);
        }
        self.send_pieces(pieces, limit)
    }

    fn send_pieces(&self, mut pieces: [&[u8]; 3], limit: Duration) -> Result<(), FabricError> {
        let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut began = None;
        loop {
            {
                let mut state = self.lock();
                while left > 0 {
                    let sent = state.send(&self.pool, &pieces)?;
                    if sent == 0 {
                        state.poll(&self.pool)?;
                        break;
                    }
                    left -= sent;
                    skip(&mut pieces, sent);
                }
                if left == 0 {
                    let silence = std::mem::replace(&mut state.sent, Instant::now()).elapsed();
                    drop(state);
                    if silence >= RINGS_AFTER {
                        self.ring();
                    }
                    return Ok(());
                }
            }
            let began = *began.get_or_insert_with(Instant::now);
            if began.elapsed() >= limit {
                return Err(FabricError::Stuck(limit));
            }
            // In its turn to poll, the server may be asleep behind what was sent first.
            self.rest(began.elapsed(), limit - began.elapsed().min(limit))?;
        }
    }

    fn ring(&self) {
        // The end of the connection is noticed elsewhere.
        let _ = io::Write::write(&mut &self.stream, &[0]);
    }

    /// Waits as long as suits such a silence, and `limit` at most. Fails if the connection is closed.
    fn rest(&self, silence: Duration, limit: Duration) -> Result<(), FabricError> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(FabricError::Closed);
        }
        let pause = pause(silence, self.busy_poll).min(limit);
        if pause.is_zero() {
            std::thread::yield_now();
            return Ok(());
        }
        let timeout = Timespec {
            tv_sec: pause.as_secs() as _,
            tv_nsec: pause.subsec_nanos() as _,
        };
        let mut waited = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::RDHUP)];
        // An interruption is as good as a bell.
        let _ = poll(&mut waited, Some(&timeout));
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        let found = waited[0].revents();
        if found.intersects(ends) {
            return Err(FabricError::Closed);
        }
        if found.contains(PollFlags::IN) {
            let mut bells = [0; 64];
            match rustix::net::recv(self.stream.as_fd(), &mut bells, rustix::net::RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(FabricError::Closed),
                Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(_) => return Err(FabricError::Closed),
            }
        }
        Ok(())
    }

    /// The memory that this side exposed to the server for a request, now that it is answered.
    pub(crate) fn take_buffer(&self, id: u64) -> Option<Buffer> {
        self.lock().exposed.remove(&id)
    }
}

impl Drop for FabricConnection {
    /// Waits a while until the server has forgotten this endpoint: a provider may still reach into the memory of an
    /// endpoint that it knows (shm does, if both are in one process).
    fn drop(&mut self) {
        self.close();
        let ends = Instant::now() + LETS_GO_WITHIN;
        // The server can only send bells from here on.
        let _ = self.stream.set_read_timeout(Some(LETS_GO_WITHIN));
        while Instant::now() < ends && matches!((&self.stream).read(&mut [0; 64]), Ok(1..)) {}
    }
}

fn skip(pieces: &mut [&[u8]; 3], mut count: usize) {
    for piece in pieces {
        let skipped = piece.len().min(count);
        *piece = &piece[skipped..];
        count -= skipped;
    }
}

impl State {
    fn send(&mut self, pool: &Pool, pieces: &[&[u8]]) -> Result<usize, FabricError> {
        match &mut self.channel {
            Some(channel) => channel.send(&mut self.endpoint, pool, pieces),
            None => Err(FabricError::Closed),
        }
    }

    /// Drives the provider, and takes the arrivals.
    fn poll(&mut self, pool: &Pool) -> Result<(), FabricError> {
        while let Some(buffer) = self.unposted.pop() {
            if let Some(buffer) = self.endpoint.receive(buffer)? {
                self.unposted.push(buffer);
                break;
            }
        }
        self.endpoint.poll(&mut self.done)?;
        for completion in std::mem::take(&mut self.done) {
            match completion.kind {
                Kind::Received if completion.is_ok => self.came(completion.buffer)?,
                _ if completion.is_ok => {}
                _ => return Err(FabricError::Closed),
            }
        }
        if let Some(channel) = &mut self.channel {
            channel.return_credit(&mut self.endpoint, pool)?;
        }
        Ok(())
    }

    fn came(&mut self, message: Buffer) -> Result<(), FabricError> {
        let (endpoint, inbox) = (&mut self.endpoint, &mut self.inbox);
        let receive_bytes = message_bytes(endpoint.inject_bytes());
        let (mut result, unposted) = (Ok(()), &mut self.unposted);
        let mut free = |mut buffer: Buffer| {
            buffer.set_len(receive_bytes);
            match endpoint.receive(buffer) {
                Ok(None) => {}
                Ok(Some(buffer)) => unposted.push(buffer),
                Err(error) => result = Err(error),
            }
        };
        match &mut self.channel {
            Some(channel) if channel_of(&message) == Some(channel.number()) => {
                channel.accept(message, |piece| inbox.push_back(piece.to_vec()), &mut free)?;
            }
            // From an earlier connection, or from a peer that guesses.
            _ => free(message),
        }
        result
    }
}

/// The receiving half of a [`FabricConnection`].
pub(crate) struct FabricReader {
    fabric_connection: Arc<FabricConnection>,
    piece: Vec<u8>,
    read: usize,
    /// How long a read waits.
    tick: Duration,
    /// When this side last received something.
    heard: Instant,
}

impl FabricReader {
    pub(crate) fn new(fabric_connection: Arc<FabricConnection>, tick: Duration) -> FabricReader {
        FabricReader {
            fabric_connection,
            piece: Vec::new(),
            read: 0,
            tick,
            heard: Instant::now(),
        }
    }

    pub(crate) fn fabric_connection(&self) -> &FabricConnection {
        &self.fabric_connection
    }

    fn next_piece(&mut self) -> io::Result<bool> {
        let failed = |error| match error {
            FabricError::Io(error) => error,
            FabricError::Closed => io::ErrorKind::ConnectionReset.into(),
            error => io::Error::other(error),
        };
        let mut began = None;
        loop {
            for _ in 0..POLLS {
                let mut state = self.fabric_connection.lock();
                state.poll(&self.fabric_connection.pool).map_err(failed)?;
                if let Some(piece) = state.inbox.pop_front() {
                    let State { channel, .. } = &mut *state;
                    if let Some(channel) = channel {
                        channel.took(1);
                    }
                    (self.piece, self.read, self.heard) = (piece, 0, Instant::now());
                    return Ok(true);
                }
                drop(state);
                std::thread::yield_now();
            }
            let waited = began.get_or_insert_with(Instant::now).elapsed();
            if waited >= self.tick {
                return Ok(false);
            }
            let requested = self.fabric_connection.lock().sent.elapsed();
            let silence = requested.min(self.heard.elapsed());
            self.fabric_connection
                .rest(silence, self.tick - waited)
                .map_err(failed)?;
        }
    }
}

impl Read for FabricReader {
    /// Blocks until data arrives; fails with `WouldBlock` if none arrives for a while.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.read == self.piece.len() {
            if !self.next_piece()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        let count = buf.len().min(self.piece.len() - self.read);
        buf[..count].copy_from_slice(&self.piece[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }
}

impl std::fmt::Debug for FabricConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FabricConnection({})", self.lock().endpoint.provider().name())
    }
}

impl std::fmt::Debug for FabricReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FabricReader({:?})", self.fabric_connection)
    }
}

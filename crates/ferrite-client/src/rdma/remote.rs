//! A file of a server, written and read by one-sided verbs if the server has them, and by requests otherwise.
//!
//! Invariants:
//! * A change by verbs is durable at the server when its call returns; by requests the engine's promise holds.
//! * A write or read whose connection broke is repeated, on a new queue pair and with a new key: repeating it does no
//!   harm. **An append is not repeated**: [`RemoteFile::append`] reports that its outcome is unknown.
//!   [`RemoteFile::append_once`] reserves space and writes there, which may be repeated; if the reply to the
//!   reservation is lost, the reserved space stays, as zeros.
//! * The file's size is at least the last one reported. A read at its end, and a write behind it, asks the server.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_rnic::{Error as VerbError, Initiator, InitiatorCounters, InitiatorOptions, QueuePair};
use ferrite_roce::wire::Psn;
use ferrite_roce::wire::cm::Mtu;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{
    Ctx, FallocateMode, FileSystem, FsError, Ino, Limits, OpenFile, OpenMode, Position, SetAttr, WriteMode,
};
use parking_lot::Mutex;

use crate::Client;
use ferrite_proto::{QueuePairInfo, UdpPlace};

/// How often, in a row, the file requests a new key for a refused one.
const KEYS: u32 = 3;
/// Tries of the first packet before UDP counts as blocked.
const PROBES: u32 = 4;
/// Bytes that one message appends at most: longer appends are for [`RemoteFile::append_once`].
const APPEND_BYTES_MAX: usize = 8 << 20;

/// How a remote file is opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// Also write, not only read.
    pub writable: bool,
    /// First make the file's pages contiguous.
    pub defragment: bool,
    /// Each message is one step, as a local write is.
    pub atomic: bool,
    /// Never use verbs.
    pub only_requests: bool,
    /// How long a call may take while the connection breaks.
    pub timeout: Duration,
    /// Options of queue pairs.
    pub initiator: InitiatorOptions,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions {
            writable: true,
            defragment: false,
            atomic: false,
            only_requests: false,
            timeout: Duration::from_secs(60),
            initiator: InitiatorOptions::default(),
        }
    }
}

impl RemoteOptions {
    /// Sets [`Self::writable`].
    #[must_use]
    pub fn writable(self, writable: bool) -> Self {
        RemoteOptions { writable, ..self }
    }

    /// Sets [`Self::defragment`].
    #[must_use]
    pub fn defragment(self, defragment: bool) -> Self {
        RemoteOptions { defragment, ..self }
    }

    /// Sets [`Self::atomic`].
    #[must_use]
    pub fn atomic(self, atomic: bool) -> Self {
        RemoteOptions { atomic, ..self }
    }

    /// Sets [`Self::only_requests`].
    #[must_use]
    pub fn only_requests(self, only_requests: bool) -> Self {
        RemoteOptions { only_requests, ..self }
    }

    /// Sets [`Self::timeout`].
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        RemoteOptions { timeout, ..self }
    }

    /// Sets [`Self::initiator`].
    #[must_use]
    pub fn initiator(self, initiator: InitiatorOptions) -> Self {
        RemoteOptions { initiator, ..self }
    }
}

/// The way to a remote file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// By one-sided verbs.
    Verbs {
        /// The payload of full packets.
        mtu_bytes: usize,
    },
    /// By requests.
    Requests {
        /// Why not by verbs.
        why: String,
    },
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Verbs { mtu_bytes } => write!(f, "by verbs, {mtu_bytes} bytes a packet"),
            How::Requests { why } => write!(f, "by requests: {why}"),
        }
    }
}

/// Traffic by verbs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets, of all queue pairs so far.
    pub packets: InitiatorCounters,
    /// Queue pairs that were opened because one broke.
    pub reconnects: u64,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The engine, or the connection to the server.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A verb.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// The connection broke before an append was acknowledged.
    #[error(
        "the connection broke before the append was acknowledged, so it may be there, whole or in part: look at the end \
         of the file before appending again, or append by reserving space first"
    )]
    Unacknowledged,
    /// The data exceeds the maximum of an append.
    #[error(
        "an append is one message of at most {APPEND_BYTES_MAX} bytes; append in parts, or by reserving space first"
    )]
    AppendTooLong,
    /// It was opened for reading.
    #[error("the file was opened for reading only")]
    ReadOnly,
}

type Result<T> = std::result::Result<T, RemoteError>;

/// A queue pair that datagrams reach.
struct Connected {
    initiator: Initiator,
    qpn: u32,
}

/// A queue pair and a key for it.
struct Bound {
    initiator: Initiator,
    qpn: u32,
    key: u32,
    /// Maximum of a message.
    write_bytes_max: usize,
}

struct State {
    bound: Option<Bound>,
    /// Why there is no connection.
    why: String,
    size: u64,
    traffic: Traffic,
}

/// See the head of this module. One call at a time; other callers wait.
pub struct RemoteFile {
    client: Arc<Client>,
    ctx: Ctx,
    ino: Ino,
    options: RemoteOptions,
    file: Arc<dyn OpenFile>,
    state: Mutex<State>,
}

fn add(to: &mut InitiatorCounters, of: InitiatorCounters) {
    to.sent += of.sent;
    to.received += of.received;
    to.sent_again += of.sent_again;
    to.timeouts += of.timeouts;
    to.not_ready += of.not_ready;
}

/// The outcome of an attempt to connect by verbs.
enum Attempt {
    Bound(Box<Bound>, u64),
    /// Verbs are unavailable for good.
    Not(String),
}

impl RemoteFile {
    /// Opens a regular file, with the rights of `ctx`, and binds it if the server has RDMA and can. Blocks, also while
    /// its pages are moved if that is requested.
    ///
    /// # Errors
    /// If it cannot be opened; if the file may not be bound by this caller.
    pub fn open(client: &Arc<Client>, ctx: &Ctx, ino: Ino, options: RemoteOptions) -> Result<RemoteFile> {
        let mode = OpenMode {
            read: true,
            write: options.writable,
            ..OpenMode::default()
        };
        let file = client.open(ctx, ino, mode)?;
        let remote = RemoteFile {
            client: Arc::clone(client),
            ctx: ctx.clone(),
            ino,
            options,
            file,
            state: Mutex::new(State {
                bound: None,
                why: String::new(),
                size: 0,
                traffic: Traffic::default(),
            }),
        };
        remote.connect(&mut remote.state.lock(), true)?;
        Ok(remote)
    }

    /// The current way to it.
    pub fn how(&self) -> How {
        let state = self.state.lock();
        match &state.bound {
            Some(bound) => How::Verbs {
                mtu_bytes: bound.initiator.mtu().bytes(),
            },
            None => How::Requests { why: state.why.clone() },
        }
    }

    /// The traffic by verbs so far.
    pub fn traffic(&self) -> Traffic {
        let state = self.state.lock();
        let mut traffic = state.traffic;
        if let Some(bound) = &state.bound {
            add(&mut traffic.packets, bound.initiator.counters());
        }
        traffic
    }

    /// Its size, from the server. Blocks.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn size(&self) -> Result<u64> {
        let size = self.file.getattr(&self.ctx)?.size;
        self.state.lock().size = size;
        Ok(size)
    }

    /// Writes at `offset`. Behind the end the file grows first, so that other clients may see zeros there, which stay
    /// if the write fails or the client ends in between. However many clients write, the file is no longer than the
    /// furthest of their writes.
    ///
    /// # Errors
    /// See [`RemoteError`]. A part may have been written.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.may_write()?;
        let end = offset.checked_add(data.len() as u64).ok_or(FsError::FileTooBig)?;
        let mut state = self.state.lock();
        self.run(
            &mut state,
            |bound, size| {
                // Others may move the end meanwhile, and the reply may be lost: this never moves it beyond `end`.
                while *size < end {
                    let was = bound.initiator.extend(bound.key, *size, end)?;
                    *size = if was == *size { end } else { was };
                }
                bound
                    .initiator
                    .write_in_pieces(bound.key, offset, data, bound.write_bytes_max)
            },
            || self.write_by_requests(Some(offset), data).map(drop),
        )
    }

    /// Reads at `offset`; fewer bytes than `into` holds only at the end of the file.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut state = self.state.lock();
        if state.bound.is_some() && offset.saturating_add(into.len() as u64) > state.size {
            state.size = self.file.getattr(&self.ctx)?.size;
        }
        let into = std::cell::RefCell::new(into);
        self.run(
            &mut state,
            |bound, size| {
                let into = &mut **into.borrow_mut();
                let len = size.saturating_sub(offset).min(into.len() as u64) as usize;
                bound.initiator.read(bound.key, offset, &mut into[..len])?;
                Ok(len)
            },
            || self.read_by_requests(offset, &mut into.borrow_mut()),
        )
    }

    /// Appends as one message, behind concurrent appends by others.
    ///
    /// # Errors
    /// See [`RemoteError`]; `Unacknowledged` if the outcome is unknown.
    pub fn append(&self, data: &[u8]) -> Result<()> {
        self.may_write()?;
        if data.is_empty() {
            return Ok(());
        }
        if data.len() > APPEND_BYTES_MAX {
            return Err(RemoteError::AppendTooLong);
        }
        let mut state = self.state.lock();
        self.connect_again(&mut state)?;
        let Some(bound) = &mut state.bound else {
            return self.write_by_requests(None, data).map(drop);
        };
        // An append refused in its first packet has not begun; of a longer one the beginning may be there.
        let is_one_packet = data.len() <= bound.initiator.mtu().bytes();
        match bound.initiator.append(bound.key, data) {
            Ok(()) => {
                state.size += data.len() as u64;
                Ok(())
            }
            Err(error @ VerbError::Access) => {
                self.disconnect(&mut state);
                // The next one may succeed; this one was not done, or not whole.
                self.connect_again(&mut state)?;
                Err(match is_one_packet {
                    true => error.into(),
                    false => RemoteError::Unacknowledged,
                })
            }
            Err(error) if error.is_of_connection() => {
                self.disconnect(&mut state);
                Err(RemoteError::Unacknowledged)
            }
            Err(error) => {
                self.disconnect(&mut state);
                Err(error.into())
            }
        }
    }

    /// Appends once, even if the connection breaks, and returns the offset: it reserves space, and writes there. Others
    /// may see zeros meanwhile; they stay if the reply to the reservation is lost, and the data is behind them.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn append_once(&self, data: &[u8]) -> Result<u64> {
        self.may_write()?;
        let has_verbs = {
            let mut state = self.state.lock();
            self.connect_again(&mut state)?;
            state.bound.is_some()
        };
        if !has_verbs {
            return self.write_by_requests(None, data);
        }
        let offset = self.reserve(data.len() as u64)?;
        self.write(offset, data)?;
        Ok(offset)
    }

    /// Moves the end by `len_bytes`, and returns the old one. If the connection breaks meanwhile, it may move twice.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn reserve(&self, len_bytes: u64) -> Result<u64> {
        self.may_write()?;
        let mut state = self.state.lock();
        self.run(
            &mut state,
            |bound, size| {
                let offset = bound.initiator.reserve(bound.key, len_bytes)?;
                *size = (*size).max(offset + len_bytes);
                Ok(offset)
            },
            || {
                let zeros = vec![0; usize::try_from(len_bytes).map_err(|_| FsError::FileTooBig)?];
                self.write_by_requests(None, &zeros)
            },
        )
    }

    /// Punches a hole: the range reads as zeros, and the size stays. By a request.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn free(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.may_write()?;
        let mode = FallocateMode::PunchHole;
        Ok(self.file.fallocate(&self.ctx, mode, offset, len_bytes)?)
    }

    /// Truncates the file, or extends it with zeros. By a request.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn set_size(&self, size: u64) -> Result<()> {
        self.may_write()?;
        let mut state = self.state.lock();
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.file.setattr(&self.ctx, &set)?;
        state.size = size;
        Ok(())
    }

    /// The promises of the server's engine.
    pub fn limits(&self) -> Limits {
        self.client.limits()
    }

    /// The connection to the server.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The context that opened it.
    pub fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    /// Its inode.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Makes writes durable. By verbs they already are.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn flush(&self) -> Result<()> {
        let has_verbs = self.state.lock().bound.is_some();
        if !has_verbs {
            self.file.fsync(&self.ctx)?;
        }
        Ok(())
    }

    /// Makes changes by requests durable, whatever way writes take.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn sync(&self) -> Result<()> {
        Ok(self.file.fsync(&self.ctx)?)
    }

    /// Returns key and queue pair. Dropping it does that, too, without reporting whether the server received it.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub fn close(self) -> Result<()> {
        let bound = self.state.lock().bound.take();
        if let Some(bound) = bound {
            self.client.release_key(bound.key)?;
            self.client.close_queue_pair(bound.qpn)?;
        }
        Ok(())
    }

    fn may_write(&self) -> Result<()> {
        match self.options.writable {
            true => Ok(()),
            false => Err(RemoteError::ReadOnly),
        }
    }

    /// Runs an operation by verbs until it is done, or by requests.
    fn run<T>(
        &self,
        state: &mut State,
        mut by_verbs: impl FnMut(&mut Bound, &mut u64) -> std::result::Result<T, VerbError>,
        by_requests: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let mut refused = 0;
        loop {
            self.connect_again(state)?;
            let Some(bound) = &mut state.bound else {
                return by_requests();
            };
            match by_verbs(bound, &mut state.size) {
                Ok(value) => return Ok(value),
                Err(error) => {
                    self.disconnect(state);
                    refused += u32::from(matches!(error, VerbError::Access));
                    let may_go_on = error.is_of_connection() || matches!(error, VerbError::Access);
                    if !may_go_on || refused > KEYS || began.elapsed() > self.options.timeout {
                        return Err(error.into());
                    }
                    tracing::info!(%error, "a queue pair broke; opening another");
                }
            }
        }
    }

    /// Drops a broken queue pair.
    fn disconnect(&self, state: &mut State) {
        if let Some(bound) = state.bound.take() {
            add(&mut state.traffic.packets, bound.initiator.counters());
            self.client.forget_verbs(bound.key, bound.qpn);
        }
        state.why.clear();
    }

    /// Opens another queue pair if the last one broke.
    fn connect_again(&self, state: &mut State) -> Result<()> {
        if state.bound.is_none() && state.why.is_empty() {
            self.connect(state, false)?;
            state.traffic.reconnects += 1;
        }
        Ok(())
    }

    /// Opens a queue pair and gets a key, or notes why that fails.
    fn connect(&self, state: &mut State, is_first: bool) -> Result<()> {
        match self.attempt(is_first)? {
            Attempt::Bound(bound, size) => {
                state.size = size;
                state.bound = Some(*bound);
            }
            Attempt::Not(why) => state.why = why,
        }
        Ok(())
    }

    fn attempt(&self, is_first: bool) -> Result<Attempt> {
        let not = |why: &dyn fmt::Display| Ok(Attempt::Not(why.to_string()));
        if !is_first {
            // Stale if the session has ended, and locks of the file with it: others may have written it since.
            self.file.getattr(&self.ctx)?;
        }
        if self.options.only_requests {
            return not(&"verbs were not wanted");
        }
        let Some(&place) = self.client.rdma_places()?.first() else {
            return not(&"the server offers no RDMA (serve --rdma)");
        };
        let connected = match self.open_queue_pair(place, is_first)? {
            Ok(connected) => connected,
            Err(why) => return not(&why),
        };
        let binding = Binding {
            writable: self.options.writable,
            defragment: self.options.defragment && is_first,
            whole: false,
        };
        match self.client.bind(&self.ctx, self.ino, binding, self.options.atomic) {
            Ok(granted) => Ok(Attempt::Bound(
                Box::new(Bound {
                    initiator: connected.initiator,
                    qpn: connected.qpn,
                    key: granted.key,
                    write_bytes_max: match self.options.atomic {
                        true => usize::try_from(granted.atomic_bytes_max).unwrap_or(usize::MAX),
                        false => usize::MAX,
                    },
                }),
                granted.size,
            )),
            Err(error) => {
                drop(self.client.close_queue_pair(connected.qpn));
                match error {
                    FsError::NotSupported(_) | FsError::Busy => not(&error),
                    error => Err(error.into()),
                }
            }
        }
    }

    /// Opens a queue pair to the server's `place`, and tests whether datagrams pass both ways. The inner error says why
    /// verbs are unavailable. An outer error means that the session may be over.
    fn open_queue_pair(&self, place: SocketAddr, is_first: bool) -> Result<std::result::Result<Connected, String>> {
        let not = |why: &dyn fmt::Display| Ok(Err(why.to_string()));
        let mut options = self.options.initiator.clone();
        let retries = options.retries;
        if is_first {
            options.retries = options.retries.min(PROBES);
        }
        let mut initiator = match Initiator::new(place, options) {
            Ok(initiator) => initiator,
            Err(error) => return not(&error),
        };
        let offer = initiator.offer();
        let ours = QueuePairInfo {
            place: UdpPlace(offer.address),
            qpn: offer.qpn,
            psn: offer.psn.value(),
            mtu: offer.mtu.code(),
        };
        let theirs = match self.client.open_queue_pair(&ours) {
            Ok(theirs) => theirs,
            Err(error @ (FsError::TimedOut | FsError::Disconnected)) => return Err(error.into()),
            Err(error) => return not(&error),
        };
        let give_back = || drop(self.client.close_queue_pair(theirs.qpn));
        let Some(mtu) = Mtu::from_code(theirs.mtu) else {
            give_back();
            return not(&"the server answered with a path MTU that there is not");
        };
        initiator.connect(&QueuePair {
            address: theirs.place.0,
            qpn: theirs.qpn,
            psn: Psn::new(theirs.psn),
            mtu,
        });
        // It needs no key, and reaches no file.
        if let Err(error) = initiator.probe() {
            give_back();
            return not(&error);
        }
        initiator.set_retries(retries);
        Ok(Ok(Connected {
            initiator,
            qpn: theirs.qpn,
        }))
    }

    /// Returns the offset of the first byte.
    fn write_by_requests(&self, offset: Option<u64>, data: &[u8]) -> Result<u64> {
        let (mut first, mut done) = (None, 0);
        while done < data.len() {
            // Others may append between the parts of a long one.
            let position = offset.map_or(Position::End, |offset| Position::At(offset + done as u64));
            let mode = WriteMode::from(position);
            let written = self.file.write(&self.ctx, mode, &data[done..])?;
            first = first.or(Some(written.offset));
            if written.len_bytes == 0 {
                return Err(FsError::Io("the server wrote nothing".into()).into());
            }
            done += written.len_bytes;
        }
        Ok(first.or(offset).unwrap_or_default())
    }

    fn read_by_requests(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&self.ctx, offset + done as u64, &mut into[done..])? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        self.disconnect(&mut self.state.lock());
    }
}

//! The client's end of a connection: threads that send, and one at a time that receives.
//!
//! What lives here: [`Connection`], which any thread sends through, and [`Receiver`], its other half, which belongs to
//! one thread at a time. Both block. If both ends encrypt, each half has what its direction needs. A connection begins
//! as TCP, and may go on over a fabric ([`Fabric`]) if it is not encrypted.

use std::cell::RefCell;
#[cfg(feature = "fabric")]
use std::io::Read;
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

#[cfg(feature = "fabric")]
use std::{net::IpAddr, sync::Arc};

#[cfg(feature = "fabric")]
use ferrite_buffers::Buffer;
use parking_lot::Mutex;
use rustix::net::{self, RecvFlags};

use crate::frame::{BODY_BYTES_MAX, Lengths, PREFIX_BYTES};
use crate::secure::record::{CONTENT_BYTES_MAX, Opener, RECORD_BYTES_MAX, Sealer, first_record};
use crate::secure::{Credentials, Encrypt, handshake};
use crate::spin::Spin;
use crate::{FabricError, HandshakeError, socket};
#[cfg(feature = "fabric")]
use crate::{
    Provider,
    fabric::{
        self, Introduction, Reply,
        line::{Line, LineReader},
    },
};

/// Bytes received at once.
const RECEIVED_BYTES: usize = BODY_BYTES_MAX + (64 << 10);
/// A frame with so much data is long.
const LONG_BYTES: usize = 128 << 10;
/// A frame with such a body and no data is sent in one piece.
const SHORT_BYTES: usize = 256;
/// Bytes received at once behind a long one.
const ALONG_BYTES: usize = 4 << 10;
/// How long a peer may take nothing.
const SEND_LIMIT: Duration = Duration::from_secs(20);
/// How often a receiver that waits looks up.
const RECEIVE_TICK: Duration = Duration::from_millis(250);
/// How long a receiver looks before it sleeps, unless told otherwise.
pub const SPIN: Duration = Duration::from_micros(200);
/// Encrypted bytes that are sent at once.
const SEALED_BYTES: usize = 4 * RECORD_BYTES_MAX;

/// How a client uses a fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// Name of the provider: `shm`, `verbs` or `tcp`. `None`: the best that both ends have.
    pub provider: Option<String>,
    /// Memory for bulk data on its way.
    pub buffers_bytes: usize,
    /// How long who waits for an answer looks for it again and again before it sleeps.
    pub spin: Duration,
}

impl Default for Fabric {
    fn default() -> Fabric {
        Fabric {
            provider: None,
            buffers_bytes: 32 << 20,
            spin: Duration::from_micros(200),
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Held while a frame is sent.
    sends: Mutex<Option<Box<Sending>>>,
    is_encrypted: bool,
    #[cfg(feature = "fabric")]
    line: Option<Arc<Line>>,
}

/// What it takes to send encrypted.
#[derive(Debug)]
struct Sending {
    sealer: Sealer,
    /// The content of a record that comes from several places.
    content: Vec<u8>,
    sealed: Vec<u8>,
}

impl Connection {
    /// Connects to `HOST:PORT`, trying each address that the name has for at most `limit`, and opens the connection
    /// with what the client brings. Blocks.
    pub fn open(
        address: &str,
        credentials: &Credentials,
        limit: Duration,
    ) -> Result<(Connection, Receiver), FabricError> {
        let refused = |why| FabricError::Handshake {
            address: address.to_owned(),
            why,
        };
        if credentials.key.is_none() && credentials.encrypt == Encrypt::On {
            return Err(refused(HandshakeError::NothingToEncryptWith));
        }
        let bad = |source| FabricError::BadAddress {
            address: address.to_owned(),
            source,
        };
        let mut last = bad(io::ErrorKind::NotFound.into());
        for candidate in address.to_socket_addrs().map_err(bad)? {
            match TcpStream::connect_timeout(&candidate, limit) {
                // Without a listener on a port that the system also gives to clients, a connection may meet itself.
                Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                    last = FabricError::Unreachable {
                        address: address.to_owned(),
                        source: io::ErrorKind::ConnectionRefused.into(),
                    };
                }
                Ok(stream) => return Connection::on(stream, credentials, limit).map_err(refused),
                Err(source) => {
                    last = FabricError::Unreachable {
                        address: address.to_owned(),
                        source,
                    };
                }
            }
        }
        Err(last)
    }

    fn on(
        stream: TcpStream,
        credentials: &Credentials,
        limit: Duration,
    ) -> Result<(Connection, Receiver), HandshakeError> {
        socket::prepare(&stream)?;
        stream.set_write_timeout(Some(SEND_LIMIT))?;
        stream.set_read_timeout(Some(RECEIVE_TICK))?;
        let records = handshake::introduce(&stream, credentials, Instant::now() + limit)?;
        let (sealer, opener) = records.unzip();
        let receiver = Receiver {
            source: Source {
                stream: stream.try_clone()?,
                opening: opener.map(|opener| Box::new(Opening::new(opener))),
                #[cfg(feature = "fabric")]
                line: None,
            },
            received: Vec::new(),
            from: 0,
            end: 0,
            data_left: 0,
            was_long: false,
            spin: Spin::new(SPIN),
            #[cfg(feature = "fabric")]
            landed: None,
        };
        let sending = sealer.map(|sealer| {
            Box::new(Sending {
                sealer,
                content: Vec::new(),
                sealed: Vec::new(),
            })
        });
        let connection = Connection {
            stream,
            is_encrypted: sending.is_some(),
            sends: Mutex::new(sending),
            #[cfg(feature = "fabric")]
            line: None,
        };
        Ok((connection, receiver))
    }

    /// Whether what travels is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether the other end puts an answer's data straight where it belongs, so that its length does not matter.
    pub fn places_data(&self) -> bool {
        #[cfg(feature = "fabric")]
        return self.line.is_some();
        #[cfg(not(feature = "fabric"))]
        false
    }

    /// Sends a frame. Blocks while the peer takes nothing; after an error the connection is of no more use, because
    /// part of the frame may have been sent.
    pub fn send(&self, body: &[u8], data: &[u8]) -> Result<(), FabricError> {
        self.ask(body, data, 0)
    }

    /// The same for a request whose answer may have up to `answer_bytes` of data, which then can come by the shortest
    /// way. The first eight bytes of the body are in the answer's, too, and in no other's that is under way.
    pub fn ask(&self, body: &[u8], data: &[u8], answer_bytes: usize) -> Result<(), FabricError> {
        #[cfg(feature = "fabric")]
        if let Some(line) = &self.line {
            let _turn = self.sends.lock();
            return line.send(body, data, answer_bytes, SEND_LIMIT);
        }
        let _ = answer_bytes;
        let prefix = Lengths {
            body_bytes: body.len(),
            data_bytes: data.len(),
        }
        .encode();
        let mut sends = self.sends.lock();
        match &mut *sends {
            // The system takes one piece in less time than several.
            None if data.is_empty() && body.len() <= SHORT_BYTES => {
                let mut frame = [0; PREFIX_BYTES + SHORT_BYTES];
                let frame = &mut frame[..PREFIX_BYTES + body.len()];
                frame[..PREFIX_BYTES].copy_from_slice(&prefix);
                frame[PREFIX_BYTES..].copy_from_slice(body);
                self.write([IoSlice::new(frame)])
            }
            None => self.write([IoSlice::new(&prefix), IoSlice::new(body), IoSlice::new(data)]),
            Some(sending) => self.send_sealed(sending, [&prefix, body, data]),
        }
    }

    /// Sends whole frames that lie behind each other. Otherwise as [`Self::send`].
    pub fn send_frames(&self, frames: &[u8]) -> Result<(), FabricError> {
        let mut sends = self.sends.lock();
        #[cfg(feature = "fabric")]
        if let Some(line) = &self.line {
            let mut rest = frames;
            while let Some(lengths) = Lengths::decode(rest)? {
                let whole = rest.split_at_checked(PREFIX_BYTES + lengths.body_bytes + lengths.data_bytes);
                let (frame, after) = whole.ok_or(FabricError::Foreign)?;
                let (body, data) = frame[PREFIX_BYTES..].split_at(lengths.body_bytes);
                line.send(body, data, 0, SEND_LIMIT)?;
                rest = after;
            }
            return Ok(());
        }
        match &mut *sends {
            None => self.write([IoSlice::new(frames), IoSlice::new(&[]), IoSlice::new(&[])]),
            Some(sending) => self.send_sealed(sending, [frames, &[], &[]]),
        }
    }

    /// Records are made and sent under one lock, so that they arrive in order.
    fn send_sealed(&self, sending: &mut Sending, parts: [&[u8]; 3]) -> Result<(), FabricError> {
        let Sending {
            sealer,
            content,
            sealed,
        } = sending;
        for mut part in parts {
            while !part.is_empty() {
                if content.is_empty() && part.len() >= CONTENT_BYTES_MAX {
                    let whole;
                    (whole, part) = part.split_at(CONTENT_BYTES_MAX);
                    sealer.seal(whole, sealed)?;
                } else {
                    let taken;
                    (taken, part) = part.split_at(part.len().min(CONTENT_BYTES_MAX - content.len()));
                    content.extend_from_slice(taken);
                    if content.len() == CONTENT_BYTES_MAX {
                        sealer.seal(content, sealed)?;
                        content.clear();
                    }
                }
                if sealed.len() >= SEALED_BYTES {
                    self.write([IoSlice::new(sealed)])?;
                    sealed.clear();
                }
            }
        }
        if !content.is_empty() {
            sealer.seal(content, sealed)?;
            content.clear();
        }
        self.write([IoSlice::new(sealed)])?;
        sealed.clear();
        Ok(())
    }

    fn write<const N: usize>(&self, mut parts: [IoSlice<'_>; N]) -> Result<(), FabricError> {
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            let written = match &*parts {
                [part] => (&self.stream).write(part),
                parts => (&self.stream).write_vectored(parts),
            };
            match written {
                Ok(0) if parts.iter().all(|part| part.is_empty()) => break,
                Ok(0) => return Err(FabricError::Closed),
                Ok(sent) => IoSlice::advance_slices(&mut parts, sent),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err(FabricError::Stuck(SEND_LIMIT)),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => return Err(FabricError::Closed),
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(())
    }

    /// Ends it: the receiver and all that send get errors.
    pub fn close(&self) {
        #[cfg(feature = "fabric")]
        if let Some(line) = &self.line {
            return line.close();
        }
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// To be called before a connection is opened that is to go on over a fabric: what libfabric does once in a process
/// takes longer than some servers wait. Blocks for tenths of a second, at most once.
pub fn begin_fabrics() {
    #[cfg(feature = "fabric")]
    crate::ofi::begin();
}

/// Goes on over a fabric with a connection that has just been opened. Tries all providers that are there, if none was
/// asked for. Blocks, up to about `limit`.
#[cfg(feature = "fabric")]
pub fn upgrade(
    (mut connection, mut receiver): (Connection, Receiver),
    address: &str,
    fabric: &Fabric,
    limit: Duration,
) -> Result<(Connection, Receiver), FabricError> {
    let wanted = match &fabric.provider {
        Some(name) => vec![Provider::named(name).ok_or_else(|| FabricError::UnknownProvider(name.clone()))?],
        None => candidates(
            connection.stream.local_addr()?.ip(),
            connection.stream.peer_addr()?.ip(),
        ),
    };
    let mut last = FabricError::UnknownProvider("auto".into());
    for provider in wanted {
        let line = match Line::open(
            provider,
            connection.stream.try_clone()?,
            fabric.buffers_bytes,
            fabric.spin,
        ) {
            Ok(line) => line,
            Err(error) => {
                last = error;
                continue;
            }
        };
        let (name, region, region_bytes) = line.introduction()?;
        let introduction = Introduction {
            provider,
            region,
            region_bytes,
            name,
        };
        connection.send(&introduction.encode(), &[])?;
        // From here on it is the server that is waited for, and not a busy machine of our own.
        let ends = Instant::now() + limit;
        let refused = |why: &str| FabricError::NoFabric {
            address: address.to_owned(),
            why: why.to_owned(),
        };
        let reply = loop {
            match receiver.receive() {
                Ok(Some((body, _))) => break Reply::decode(body)?,
                Ok(None) if Instant::now() < ends => {}
                Ok(None) => return Err(refused("it does not answer")),
                // One that knows nothing of all this takes it for garbage.
                Err(FabricError::Closed) => return Err(refused("it closed the connection")),
                Err(error) => return Err(error),
            }
        };
        match reply {
            Reply::Refused(why) => last = refused(&why),
            Reply::Welcome { number, name } => {
                line.begin(&name, number)?;
                let line = Arc::new(line);
                receiver.source.line = Some(LineReader::new(Arc::clone(&line), RECEIVE_TICK));
                connection.line = Some(line);
                return Ok((connection, receiver));
            }
        }
    }
    Err(last)
}

/// The same for a build without any.
#[cfg(not(feature = "fabric"))]
pub fn upgrade(
    _: (Connection, Receiver),
    _: &str,
    _: &Fabric,
    _: Duration,
) -> Result<(Connection, Receiver), FabricError> {
    Err(FabricError::NotBuilt)
}

/// The providers to try, the best first. TCP through libfabric is slower than without: it is for who asks for it.
#[cfg(feature = "fabric")]
fn candidates(here: IpAddr, there: IpAddr) -> Vec<Provider> {
    let is_one_host = here == there || there.is_loopback();
    let is_candidate = |provider: &Provider| match provider {
        Provider::Shm => is_one_host,
        Provider::Verbs => provider.is_there(),
        Provider::Tcp => false,
    };
    let mut wanted: Vec<Provider> = Provider::ALL.into_iter().filter(is_candidate).collect();
    if wanted.is_empty() {
        // Its error says what is missing.
        wanted.push(Provider::Verbs);
    }
    wanted
}

/// What to wait for ([`crate::watch`]).
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Where a receiver's bytes come from.
#[derive(Debug)]
struct Source {
    stream: TcpStream,
    opening: Option<Box<Opening>>,
    #[cfg(feature = "fabric")]
    line: Option<LineReader>,
}

/// What it takes to receive encrypted.
#[derive(Debug)]
struct Opening {
    opener: Opener,
    /// Received records; those from `from` to `end` are not opened.
    sealed: Vec<u8>,
    from: usize,
    end: usize,
    /// The content of a record for which its reader had no room. What is behind `given` was not read.
    content: Vec<u8>,
    content_bytes: usize,
    given: usize,
}

impl Source {
    /// Whether bytes go straight from the socket to where they are read to.
    fn reads_from_socket(&self) -> bool {
        #[cfg(feature = "fabric")]
        if self.line.is_some() {
            return false;
        }
        self.opening.is_none()
    }

    /// Looks again and again for what comes before it sleeps.
    fn read(&mut self, spin: &mut Spin, room: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "fabric")]
        if let Some(line) = &mut self.line {
            return line.read(room);
        }
        let both = RefCell::new((self, room));
        let read_as = |flags| {
            let (source, room) = &mut *both.borrow_mut();
            source.read_as(flags, room)
        };
        let look = || match read_as(RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            other => Some(other),
        };
        spin.wait(look, || {
            let read = read_as(RecvFlags::empty());
            let has_come = read.is_ok();
            (read, has_come)
        })
    }

    fn read_as(&mut self, flags: RecvFlags, room: &mut [u8]) -> io::Result<usize> {
        let stream = &self.stream;
        let receive = |room: &mut [u8]| Ok(net::recv(stream, room, flags)?.1);
        match &mut self.opening {
            None => receive(room),
            Some(opening) => opening.read(receive, room),
        }
    }
}

impl Opening {
    fn new(opener: Opener) -> Opening {
        Opening {
            opener,
            sealed: vec![0; SEALED_BYTES],
            from: 0,
            end: 0,
            content: Vec::new(),
            content_bytes: 0,
            given: 0,
        }
    }

    fn read(&mut self, receive: impl Fn(&mut [u8]) -> io::Result<usize>, room: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.given < self.content_bytes {
                let count = room.len().min(self.content_bytes - self.given);
                room[..count].copy_from_slice(&self.content[self.given..self.given + count]);
                self.given += count;
                return Ok(count);
            }
            let sealed = &self.sealed[self.from..self.end];
            let (read, opened) = self.opener.open(sealed, room)?;
            self.from += read;
            if opened > 0 {
                return Ok(opened);
            }
            if first_record(sealed).is_some() {
                self.content.resize(CONTENT_BYTES_MAX, 0);
                let (read, opened) = self.opener.open_next(sealed, &mut self.content)?;
                self.from += read;
                (self.given, self.content_bytes) = (0, opened);
                continue;
            }
            self.sealed.copy_within(self.from..self.end, 0);
            (self.from, self.end) = (0, self.end - self.from);
            match receive(&mut self.sealed[self.end..])? {
                0 => return Ok(0),
                count => self.end += count,
            }
        }
    }
}

/// The receiving half of a [`Connection`].
#[derive(Debug)]
pub struct Receiver {
    source: Source,
    /// Bytes received, of which those from `from` to `end` are not consumed.
    received: Vec<u8>,
    from: usize,
    end: usize,
    /// Data of the last frame that is still to be taken.
    data_left: usize,
    /// The last frame had much data, so most likely the next one has.
    was_long: bool,
    spin: Spin,
    /// The data, if it came by itself, and how much of it is taken.
    #[cfg(feature = "fabric")]
    landed: Option<(Buffer, usize)>,
}

impl Receiver {
    /// Sets how long at most it looks for what comes again and again before it sleeps. It does so where that pays:
    /// after short sleeps, and while nobody else wants the core. Zero: it sleeps at once.
    pub fn set_spin(&mut self, most: Duration) {
        self.spin = Spin::new(most);
    }

    /// The next frame: its body, and how much data follows, which the caller then takes or leaves. `None` if nothing
    /// came for a while. Blocks.
    pub fn receive(&mut self) -> Result<Option<(&[u8], usize)>, FabricError> {
        self.leave_data()?;
        if !self.fill(PREFIX_BYTES, true)? {
            return Ok(None);
        }
        let Some((lengths, is_apart)) = self.lengths(&self.received[self.from..self.end])? else {
            return Ok(None);
        };
        self.fill(PREFIX_BYTES + lengths.body_bytes, false)?;
        self.land(lengths, is_apart)?;
        let body = self.from + PREFIX_BYTES;
        self.from = body + lengths.body_bytes;
        self.data_left = lengths.data_bytes;
        self.was_long = lengths.data_bytes >= LONG_BYTES;
        Ok(Some((&self.received[body..self.from], lengths.data_bytes)))
    }

    /// Whether a whole frame has been received, so that [`Self::receive`] does not block. Call it when the data of the
    /// last frame is taken.
    pub fn has_frame(&self) -> bool {
        let received = &self.received[self.from..self.end];
        let whole = |(lengths, is_apart): (Lengths, bool)| {
            let data_bytes = if is_apart { 0 } else { lengths.data_bytes };
            PREFIX_BYTES + lengths.body_bytes + data_bytes
        };
        let lengths = self.lengths(received).ok().flatten();
        self.data_left == 0 && lengths.is_some_and(|lengths| whole(lengths) <= received.len())
    }

    /// The lengths of a frame, and whether its data came by itself.
    fn lengths(&self, bytes: &[u8]) -> Result<Option<(Lengths, bool)>, FabricError> {
        #[cfg(feature = "fabric")]
        if self.source.line.is_some() {
            return fabric::lengths(bytes);
        }
        Ok(Lengths::decode(bytes)?.map(|lengths| (lengths, false)))
    }

    /// Finds the data of a frame whose body is there, if it came by itself.
    #[cfg(feature = "fabric")]
    fn land(&mut self, lengths: Lengths, is_apart: bool) -> Result<(), FabricError> {
        self.landed = None;
        let Some(reader) = &self.source.line else {
            return Ok(());
        };
        let body = &self.received[self.from + PREFIX_BYTES..][..lengths.body_bytes];
        // Whatever the request had lent is its own again.
        let lent = body
            .first_chunk()
            .and_then(|id| reader.line().take_back(u64::from_le_bytes(*id)));
        if !is_apart {
            return Ok(());
        }
        let landed = lent.filter(|buffer| buffer.len() >= lengths.data_bytes);
        self.landed = Some((landed.ok_or(FabricError::Foreign)?, 0));
        Ok(())
    }

    #[cfg(not(feature = "fabric"))]
    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "with the feature it fails")]
    fn land(&mut self, _: Lengths, _: bool) -> Result<(), FabricError> {
        Ok(())
    }

    /// Takes data of the last frame, as much as `buf` holds. Blocks.
    ///
    /// # Panics
    /// If there is not as much.
    pub fn take_data(&mut self, buf: &mut [u8]) -> Result<(), FabricError> {
        assert!(buf.len() <= self.data_left, "more data than the frame has");
        self.data_left -= buf.len();
        #[cfg(feature = "fabric")]
        if let Some((landed, taken)) = &mut self.landed {
            buf.copy_from_slice(&landed[*taken..*taken + buf.len()]);
            *taken += buf.len();
            return Ok(());
        }
        let here = buf.len().min(self.end - self.from);
        let (first, mut rest) = buf.split_at_mut(here);
        first.copy_from_slice(&self.received[self.from..self.from + here]);
        self.from += here;
        while !rest.is_empty() {
            let count = read_some(&mut self.source, &mut self.spin, rest)?;
            rest = &mut rest[count..];
        }
        Ok(())
    }

    fn leave_data(&mut self) -> Result<(), FabricError> {
        while self.data_left > 0 {
            let mut left = [0; 4096];
            let count = self.data_left.min(left.len());
            self.take_data(&mut left[..count])?;
        }
        Ok(())
    }

    /// Receives until `count` bytes are there. False if `may_give_up` and none of them came for a while.
    fn fill(&mut self, count: usize, may_give_up: bool) -> Result<bool, FabricError> {
        if self.received.is_empty() {
            self.received.resize(RECEIVED_BYTES, 0);
        }
        if self.from == self.end {
            (self.from, self.end) = (0, 0);
        } else if self.from + count > self.received.len() {
            self.received.copy_within(self.from..self.end, 0);
            (self.from, self.end) = (0, self.end - self.from);
        }
        // What is taken along of a frame's data is copied once more.
        let most = match self.was_long && self.source.reads_from_socket() {
            true => (self.from + count).max(self.end + ALONG_BYTES).min(self.received.len()),
            false => self.received.len(),
        };
        while self.end - self.from < count {
            let end = self.end;
            if may_give_up && self.from == end {
                match self.source.read(&mut self.spin, &mut self.received[end..most]) {
                    Ok(0) => return Err(FabricError::Closed),
                    Ok(read) => self.end += read,
                    Err(error) if is_tick(&error) => return Ok(false),
                    Err(error) => return Err(lost(error)),
                }
                continue;
            }
            self.end += read_some(&mut self.source, &mut self.spin, &mut self.received[end..most])?;
        }
        Ok(true)
    }
}

/// Reads something. A peer that stops in the middle of a frame is given up after a while.
fn read_some(source: &mut Source, spin: &mut Spin, room: &mut [u8]) -> Result<usize, FabricError> {
    let mut silent_since = None;
    loop {
        match source.read(spin, room) {
            Ok(0) => return Err(FabricError::Closed),
            Ok(count) => return Ok(count),
            Err(error) if is_tick(&error) => {
                let since = *silent_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= SEND_LIMIT {
                    return Err(FabricError::Stuck(SEND_LIMIT));
                }
            }
            Err(error) => return Err(lost(error)),
        }
    }
}

fn is_tick(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn lost(error: io::Error) -> FabricError {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => FabricError::Closed,
        _ => FabricError::Io(error),
    }
}

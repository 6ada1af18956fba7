//! The client's end of a connection: threads that send, and one at a time that receives.
//!
//! What lives here: [`Connection`], which any thread sends through, and [`Receiver`], its other half, which belongs to
//! one thread at a time. Both block. If both ends encrypt, each half has what its direction needs.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::frame::{BODY_BYTES_MAX, Lengths, PREFIX_BYTES};
use crate::secure::record::{CONTENT_BYTES_MAX, Opener, RECORD_BYTES_MAX, Sealer, first_record};
use crate::secure::{Credentials, Encrypt, handshake};
use crate::{FabricError, HandshakeError};

/// Bytes received at once.
const RECEIVED_BYTES: usize = BODY_BYTES_MAX + (64 << 10);
/// How long a peer may take nothing.
const SEND_LIMIT: Duration = Duration::from_secs(20);
/// How often a receiver that waits looks up.
const RECEIVE_TICK: Duration = Duration::from_millis(250);
/// Encrypted bytes that are sent at once.
const SEALED_BYTES: usize = 4 * RECORD_BYTES_MAX;

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Held while a frame is sent.
    sends: Mutex<Option<Box<Sending>>>,
    is_encrypted: bool,
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
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SEND_LIMIT))?;
        stream.set_read_timeout(Some(RECEIVE_TICK))?;
        let records = handshake::introduce(&stream, credentials, Instant::now() + limit)?;
        let (sealer, opener) = records.unzip();
        let receiver = Receiver {
            source: Source {
                stream: stream.try_clone()?,
                opening: opener.map(|opener| Box::new(Opening::new(opener))),
            },
            received: Vec::new(),
            from: 0,
            end: 0,
            data_left: 0,
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
        };
        Ok((connection, receiver))
    }

    /// Whether what travels is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Sends a frame. Blocks while the peer takes nothing; after an error the connection is of no more use, because
    /// part of the frame may have been sent.
    pub fn send(&self, body: &[u8], data: &[u8]) -> Result<(), FabricError> {
        let prefix = Lengths {
            body_bytes: body.len(),
            data_bytes: data.len(),
        }
        .encode();
        let mut sends = self.sends.lock();
        match &mut *sends {
            None => self.write([IoSlice::new(&prefix), IoSlice::new(body), IoSlice::new(data)]),
            Some(sending) => self.send_sealed(sending, [&prefix, body, data]),
        }
    }

    /// Sends whole frames that lie behind each other. Otherwise as [`Self::send`].
    pub fn send_frames(&self, frames: &[u8]) -> Result<(), FabricError> {
        let mut sends = self.sends.lock();
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
            match (&self.stream).write_vectored(parts) {
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
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
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
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match &mut self.opening {
            None => self.stream.read(room),
            Some(opening) => opening.read(&self.stream, room),
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

    fn read(&mut self, mut stream: &TcpStream, room: &mut [u8]) -> io::Result<usize> {
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
            match stream.read(&mut self.sealed[self.end..])? {
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
}

impl Receiver {
    /// The next frame: its body, and how much data follows, which the caller then takes or leaves. `None` if nothing
    /// came for a while. Blocks.
    pub fn receive(&mut self) -> Result<Option<(&[u8], usize)>, FabricError> {
        self.leave_data()?;
        if !self.fill(PREFIX_BYTES, true)? {
            return Ok(None);
        }
        let Some(lengths) = Lengths::decode(&self.received[self.from..self.end])? else {
            return Ok(None);
        };
        self.fill(PREFIX_BYTES + lengths.body_bytes, false)?;
        let body = self.from + PREFIX_BYTES;
        self.from = body + lengths.body_bytes;
        self.data_left = lengths.data_bytes;
        Ok(Some((&self.received[body..self.from], lengths.data_bytes)))
    }

    /// Whether a whole frame has been received, so that [`Self::receive`] does not block. Call it when the data of the
    /// last frame is taken.
    pub fn has_frame(&self) -> bool {
        let received = &self.received[self.from..self.end];
        let whole = |lengths: Lengths| PREFIX_BYTES + lengths.body_bytes + lengths.data_bytes;
        let lengths = Lengths::decode(received).ok().flatten();
        self.data_left == 0 && lengths.is_some_and(|lengths| whole(lengths) <= received.len())
    }

    /// Takes data of the last frame, as much as `buf` holds. Blocks.
    ///
    /// # Panics
    /// If there is not as much.
    pub fn take_data(&mut self, buf: &mut [u8]) -> Result<(), FabricError> {
        assert!(buf.len() <= self.data_left, "more data than the frame has");
        self.data_left -= buf.len();
        let here = buf.len().min(self.end - self.from);
        let (first, mut rest) = buf.split_at_mut(here);
        first.copy_from_slice(&self.received[self.from..self.from + here]);
        self.from += here;
        while !rest.is_empty() {
            let count = read_some(&mut self.source, rest)?;
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
        while self.end - self.from < count {
            let end = self.end;
            if may_give_up && self.from == end {
                match self.source.read(&mut self.received[end..]) {
                    Ok(0) => return Err(FabricError::Closed),
                    Ok(read) => self.end += read,
                    Err(error) if is_tick(&error) => return Ok(false),
                    Err(error) => return Err(lost(error)),
                }
                continue;
            }
            self.end += read_some(&mut self.source, &mut self.received[end..])?;
        }
        Ok(true)
    }
}

/// Reads something. A peer that stops in the middle of a frame is given up after a while.
fn read_some(source: &mut Source, room: &mut [u8]) -> Result<usize, FabricError> {
    let mut silent_since = None;
    loop {
        match source.read(room) {
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

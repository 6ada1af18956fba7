//! The client's end of a connection: threads that send, and one at a time that receives.
//!
//! What lives here: [`Connection`], which any thread sends through, and [`Receiver`], its other half, which belongs to
//! one thread at a time. Both block.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use parking_lot::Mutex;

use crate::FabricError;
use crate::frame::{BODY_BYTES_MAX, Lengths, PREFIX_BYTES};

/// Bytes received at once.
const RECEIVED_BYTES: usize = BODY_BYTES_MAX + (64 << 10);
/// How long a peer may take nothing.
const SEND_LIMIT: Duration = Duration::from_secs(20);
/// How often a receiver that waits looks up.
const RECEIVE_TICK: Duration = Duration::from_millis(250);

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    sends: Mutex<()>,
}

impl Connection {
    /// Connects to `HOST:PORT`, trying each address that the name has for at most `limit`. Blocks.
    pub fn open(address: &str, limit: Duration) -> Result<(Connection, Receiver), FabricError> {
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
                Ok(stream) => return Connection::on(stream).map_err(FabricError::Io),
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

    fn on(stream: TcpStream) -> io::Result<(Connection, Receiver)> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SEND_LIMIT))?;
        stream.set_read_timeout(Some(RECEIVE_TICK))?;
        let receiver = Receiver {
            stream: stream.try_clone()?,
            received: Vec::new(),
            from: 0,
            end: 0,
            data_left: 0,
        };
        let connection = Connection {
            stream,
            sends: Mutex::new(()),
        };
        Ok((connection, receiver))
    }

    /// Sends a frame. Blocks while the peer takes nothing; after an error the connection is of no more use, because
    /// part of the frame may have been sent.
    pub fn send(&self, body: &[u8], data: &[u8]) -> Result<(), FabricError> {
        let prefix = Lengths {
            body_bytes: body.len(),
            data_bytes: data.len(),
        }
        .encode();
        let mut parts = [IoSlice::new(&prefix), IoSlice::new(body), IoSlice::new(data)];
        let mut parts = &mut parts[..];
        let _turn = self.sends.lock();
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

/// The receiving half of a [`Connection`].
#[derive(Debug)]
pub struct Receiver {
    stream: TcpStream,
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
            let count = self.read(|stream| stream.read(rest))?;
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
                match (&self.stream).read(&mut self.received[end..]) {
                    Ok(0) => return Err(FabricError::Closed),
                    Ok(read) => self.end += read,
                    Err(error) if is_tick(&error) => return Ok(false),
                    Err(error) => return Err(lost(error)),
                }
                continue;
            }
            let mut received = std::mem::take(&mut self.received);
            let read = self.read(|stream| stream.read(&mut received[end..]));
            self.received = received;
            self.end += read?;
        }
        Ok(true)
    }

    /// Reads something. A peer that stops in the middle of a frame is given up after a while.
    fn read(&self, mut read: impl FnMut(&mut &TcpStream) -> io::Result<usize>) -> Result<usize, FabricError> {
        let mut ticks = 0;
        loop {
            match read(&mut &self.stream) {
                Ok(0) => return Err(FabricError::Closed),
                Ok(count) => return Ok(count),
                Err(error) if is_tick(&error) => {
                    ticks += 1;
                    if RECEIVE_TICK * ticks >= SEND_LIMIT {
                        return Err(FabricError::Stuck(SEND_LIMIT));
                    }
                }
                Err(error) => return Err(lost(error)),
            }
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

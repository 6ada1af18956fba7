//! The client's end of a connection: the receiving thread.
//!
//! Contents: [`Receiver`], the other half of a connection, and the sources of its bytes: a socket, records, or a
//! fabric.
//!
//! Invariant: a receive takes no more than its reader needs next along with a frame, if the excess would be copied once
//! more.

use std::cell::RefCell;
use std::io;
#[cfg(feature = "fabric")]
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[cfg(feature = "fabric")]
use ferrite_buffers::Buffer;
use rustix::net::{self, RecvFlags};

use crate::FabricError;
use crate::busy_poll::{BUSY_POLL, BusyPoll};
#[cfg(feature = "fabric")]
use crate::fabric::{self, connection::FabricReader};
use crate::frame::{BODY_BYTES_MAX, Lengths, PREFIX_BYTES};
use crate::secure::record::{CONTENT_BYTES_MAX, Opener, RECORD_BYTES_MAX, first_record};

/// How long a peer may take nothing, or be silent in the middle of a frame.
pub(crate) const SEND_LIMIT: Duration = Duration::from_secs(20);
/// Encrypted bytes that are sent or received at once.
pub(crate) const SEALED_BYTES: usize = 4 * RECORD_BYTES_MAX;
/// Bytes received at once.
const RECEIVED_BYTES: usize = BODY_BYTES_MAX + (64 << 10);
/// A frame with so much data is long.
const LONG_BYTES: usize = 128 << 10;
/// Bytes received along with a long frame.
const ALONG_BYTES: usize = 4 << 10;

/// The source of a receiver's bytes.
#[derive(Debug)]
struct Source {
    stream: TcpStream,
    opening: Option<Box<Opening>>,
    #[cfg(feature = "fabric")]
    fabric_connection: Option<FabricReader>,
}

/// The state that encrypted receiving needs.
#[derive(Debug)]
struct Opening {
    opener: Opener,
    /// Received records; those from `from` to `end` are not opened.
    sealed: Vec<u8>,
    from: usize,
    end: usize,
    /// The content of a record that did not fit into its reader's buffer. The bytes from `given` on are unread.
    content: Vec<u8>,
    content_bytes: usize,
    given: usize,
}

impl Source {
    /// Whether bytes go directly from the socket to the reader's memory.
    fn reads_from_socket(&self) -> bool {
        #[cfg(feature = "fabric")]
        if self.fabric_connection.is_some() {
            return false;
        }
        self.opening.is_none()
    }

    /// Polls for data before it sleeps.
    fn read(&mut self, busy_poll: &mut BusyPoll, buf: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "fabric")]
        if let Some(fabric_connection) = &mut self.fabric_connection {
            return fabric_connection.read(buf);
        }
        let both = RefCell::new((self, buf));
        let read_as = |flags| {
            let (source, buf) = &mut *both.borrow_mut();
            source.read_as(flags, buf)
        };
        let poll_once = || match read_as(RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            other => Some(other),
        };
        busy_poll.wait(poll_once, || {
            let read = read_as(RecvFlags::empty());
            let has_come = read.is_ok();
            (read, has_come)
        })
    }

    fn read_as(&mut self, flags: RecvFlags, buf: &mut [u8]) -> io::Result<usize> {
        let stream = &self.stream;
        let receive = |buf: &mut [u8]| Ok(net::recv(stream, buf, flags)?.1);
        match &mut self.opening {
            None => receive(buf),
            Some(opening) => opening.read(receive, buf),
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

    fn read(&mut self, receive: impl Fn(&mut [u8]) -> io::Result<usize>, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.given < self.content_bytes {
                let count = buf.len().min(self.content_bytes - self.given);
                buf[..count].copy_from_slice(&self.content[self.given..self.given + count]);
                self.given += count;
                return Ok(count);
            }
            let sealed = &self.sealed[self.from..self.end];
            let (read, opened) = self.opener.open(sealed, buf)?;
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

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Receiver {
    source: Source,
    /// Bytes received, of which those from `from` to `end` are not consumed.
    received: Vec<u8>,
    from: usize,
    end: usize,
    /// Data of the last frame that the caller has not taken yet.
    data_left: usize,
    /// The last frame had much data, so the next one probably has, too.
    was_long: bool,
    busy_poll: BusyPoll,
    /// The data, if it came apart from the frame, and how much of it is taken.
    #[cfg(feature = "fabric")]
    landed: Option<(Buffer, usize)>,
}

impl Receiver {
    /// A receiver that has received nothing yet.
    pub(crate) fn new(stream: TcpStream, opener: Option<Opener>) -> Receiver {
        Receiver {
            source: Source {
                stream,
                opening: opener.map(|opener| Box::new(Opening::new(opener))),
                #[cfg(feature = "fabric")]
                fabric_connection: None,
            },
            received: Vec::new(),
            from: 0,
            end: 0,
            data_left: 0,
            was_long: false,
            busy_poll: BusyPoll::new(BUSY_POLL),
            #[cfg(feature = "fabric")]
            landed: None,
        }
    }

    /// Receives over a fabric from now on.
    #[cfg(feature = "fabric")]
    pub(crate) fn goes_on_over(&mut self, fabric_connection: FabricReader) {
        self.source.fabric_connection = Some(fabric_connection);
    }

    /// Sets how long it polls before it sleeps, at most. It does so where that pays: after short sleeps, and while no
    /// other thread wants the core. Zero: it sleeps at once.
    pub fn set_busy_poll(&mut self, most: Duration) {
        self.busy_poll = BusyPoll::new(most);
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

    /// Whether a whole frame has been received, so that [`Self::receive`] does not block. Call it once the data of the
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

    /// The lengths of a frame, and whether its data came apart from it.
    fn lengths(&self, bytes: &[u8]) -> Result<Option<(Lengths, bool)>, FabricError> {
        #[cfg(feature = "fabric")]
        if self.source.fabric_connection.is_some() {
            return fabric::lengths(bytes);
        }
        Ok(Lengths::decode(bytes)?.map(|lengths| (lengths, false)))
    }

    /// Finds the data of a frame whose body is there, if the data came apart from it.
    #[cfg(feature = "fabric")]
    fn land(&mut self, lengths: Lengths, is_apart: bool) -> Result<(), FabricError> {
        self.landed = None;
        let Some(reader) = &self.source.fabric_connection else {
            return Ok(());
        };
        let body = &self.received[self.from + PREFIX_BYTES..][..lengths.body_bytes];
        // The server uses the memory of the request no longer.
        let exposed = body
            .first_chunk()
            .and_then(|id| reader.fabric_connection().take_buffer(u64::from_le_bytes(*id)));
        if !is_apart {
            return Ok(());
        }
        let landed = exposed.filter(|buffer| buffer.len() >= lengths.data_bytes);
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
    /// If there is less data.
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
            let count = read_some(&mut self.source, &mut self.busy_poll, rest)?;
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
        // The part of a frame's data that this receives along is copied once more.
        let most = match self.was_long && self.source.reads_from_socket() {
            true => (self.from + count).max(self.end + ALONG_BYTES).min(self.received.len()),
            false => self.received.len(),
        };
        while self.end - self.from < count {
            let end = self.end;
            if may_give_up && self.from == end {
                match self.source.read(&mut self.busy_poll, &mut self.received[end..most]) {
                    Ok(0) => return Err(FabricError::Closed),
                    Ok(read) => self.end += read,
                    Err(error) if is_tick(&error) => return Ok(false),
                    Err(error) => return Err(lost(error)),
                }
                continue;
            }
            self.end += read_some(&mut self.source, &mut self.busy_poll, &mut self.received[end..most])?;
        }
        Ok(true)
    }
}

/// Reads something. Gives up on a peer that stops in the middle of a frame for a while.
fn read_some(source: &mut Source, busy_poll: &mut BusyPoll, buf: &mut [u8]) -> Result<usize, FabricError> {
    let mut silent_since = None;
    loop {
        match source.read(busy_poll, buf) {
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

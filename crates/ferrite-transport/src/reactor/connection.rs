//! A served connection: its received messages, and its send queue.
//!
//! Contents: [`Connection`], which belongs to one thread. An unencrypted one receives bytes into their final place and
//! sends them in place; an encrypted one has records in between.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_buffers::borrowed::{self, Sent};
use ferrite_buffers::{Buffer, Pool};
use rustix::event::epoll::EventFlags;

use super::on_fabric::OnFabric;
use super::turns::TurnEnd;
use super::{Close, Data, Link, QUEUED_BYTES_MAX, STALLED, Served, Service};
use crate::frame::{INLINE_BYTES_MAX, Lengths, OWN_ID, PREFIX_BYTES};
use crate::secure::record::{CONTENT_BYTES_MAX, Opener, Sealer};
use crate::send_queue::{SendQueue, Sink};

/// Encrypted bytes that are made at once.
const SEALED_BYTES: usize = 128 << 10;
/// A connection with nothing to send keeps no more memory for records than this.
const KEPT_BYTES: usize = 16 << 10;

/// While others need its buffer, a client must send at least so much a second.
const SLOWEST_BYTES_PER_S: usize = 256 << 10;

/// Data that is arriving in a buffer.
struct Arriving {
    body: Vec<u8>,
    buffer: Buffer,
    filled: usize,
    began: Instant,
    /// When data last arrived.
    heard: Instant,
}

impl Arriving {
    /// Whether it is too slow while others wait for buffers.
    fn is_slow(&self) -> bool {
        let most = STALLED + Duration::from_secs_f64(self.filled as f64 / SLOWEST_BYTES_PER_S as f64);
        self.heard.elapsed() >= STALLED || self.began.elapsed() >= most
    }
}

pub(super) struct Connection<P> {
    pub(super) stream: Arc<TcpStream>,
    pub(super) link: Link,
    pub(super) peer: P,
    /// Received and not yet served.
    pub(super) received: Vec<u8>,
    arriving: Option<Arriving>,
    pub(super) out: SendQueue,
    /// The events that the system watches for.
    pub(super) interest: EventFlags,
    /// It found no buffer.
    pub(super) is_starved: bool,
    /// Its turn ended before all that came was served.
    pub(super) is_cut_short: bool,
    /// How much its client had taken at the last check for [`Link::drain`].
    drained_at: u64,
    /// The service accepts nothing from it now.
    pub(super) is_held: bool,
    /// When its client last took data that was sent to it.
    pub(super) took: Instant,
    /// How much it had taken by then.
    taken_bytes: u64,
    /// If both ends encrypt.
    sealed: Option<Box<Sealed>>,
    /// The client's request to move to a fabric.
    pub(super) introduction: Option<Vec<u8>>,
    /// Its state on a fabric.
    pub(super) on_fabric: Option<Box<OnFabric>>,
}

/// The additional state of an encrypted connection.
struct Sealed {
    sealer: Sealer,
    opener: Opener,
    /// The beginning of a record.
    received: Vec<u8>,
    /// Records, not sent from `sent` onwards.
    out: Vec<u8>,
    sent: usize,
}

enum Step {
    /// Everything that came is served.
    Idle,
    /// It waits for a buffer, or until its client takes the data sent to it.
    Held,
}

impl<P> Connection<P> {
    pub(super) fn new(stream: TcpStream, link: Link, peer: P, records: Option<(Sealer, Opener)>) -> Connection<P> {
        let stream = Arc::new(stream);
        let sealed = |(sealer, opener)| {
            Box::new(Sealed {
                sealer,
                opener,
                received: Vec::new(),
                out: Vec::new(),
                sent: 0,
            })
        };
        Connection {
            link,
            peer,
            received: Vec::new(),
            arriving: None,
            // Encrypted data is copied anyway.
            out: match &records {
                None => SendQueue::zero_copy(&stream),
                Some(_) => SendQueue::default(),
            },
            stream,
            interest: EventFlags::IN,
            is_starved: false,
            is_cut_short: false,
            drained_at: 0,
            is_held: false,
            took: Instant::now(),
            taken_bytes: 0,
            sealed: records.map(sealed),
            introduction: None,
            on_fabric: None,
        }
    }

    /// Whether the traffic is encrypted.
    #[cfg(feature = "fabric")]
    pub(super) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Whether it has a buffer that its client leaves waiting.
    pub(super) fn is_stalled(&self) -> bool {
        let takes_nothing = self.out.has_buffers() && self.took.elapsed() >= STALLED;
        let moves_nothing = self
            .on_fabric
            .as_ref()
            .is_some_and(|on_fabric| on_fabric.is_stalled(STALLED));
        takes_nothing || moves_nothing || self.arriving.as_ref().is_some_and(Arriving::is_slow)
    }

    /// Whether its client has blocked data that the provider of a fabric holds, for so long that the connection is of
    /// no use.
    pub(super) fn is_stuck(&self) -> bool {
        self.on_fabric.as_ref().is_some_and(|on_fabric| on_fabric.is_stuck())
    }

    /// Whether the thread may receive more from it now.
    pub(super) fn takes_more(&self) -> bool {
        !self.is_crowded() && !self.is_starved && !self.is_held && !self.is_cut_short
    }

    /// Whether it needs another turn even if nothing arrives.
    pub(super) fn waits_for_turn(&self) -> bool {
        self.is_starved || self.is_cut_short
    }

    /// Whether nothing that its client has sent waits for the server; the connection has just had a turn. If a client
    /// takes none of its replies, the server stops reading from it, which is the client's own doing.
    pub(super) fn is_drained(&mut self) -> bool {
        if self.is_starved || self.is_held || self.is_cut_short {
            return false;
        }
        if self.is_crowded() || self.on_fabric.as_ref().is_some_and(|on_fabric| !on_fabric.takes_bulk()) {
            let taken = self.out.gone_bytes();
            return std::mem::replace(&mut self.drained_at, taken) == taken;
        }
        self.on_fabric.is_some() || rustix::io::ioctl_fionread(&*self.stream).is_ok_and(|unread| unread == 0)
    }

    /// Whether something waits to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        let sealed = self.sealed.as_ref();
        self.out.queued_bytes() > 0 || sealed.is_some_and(|sealed| sealed.sent < sealed.out.len())
    }

    /// Sends as much as the socket takes. True if nothing is left.
    pub(super) fn send(&mut self) -> io::Result<bool> {
        let stream = &self.stream;
        let is_all_sent = match &mut self.sealed {
            None => self.out.send(&mut &**stream)?,
            Some(sealed) => {
                let mut sealing = Sealing { sealed, stream };
                self.out.send(&mut sealing)? && sealing.pass_on()?
            }
        };
        if self.out.gone_bytes() > self.taken_bytes {
            self.taken_bytes = self.out.gone_bytes();
            if self.out.has_buffers() {
                self.took = Instant::now();
            }
        }
        Ok(is_all_sent)
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.out.queued_bytes() > QUEUED_BYTES_MAX
    }

    /// Serves the complete messages in `bytes`; returns how many bytes those were.
    fn serve<S: Service<Peer = P>>(&mut self, service: &S, pool: &Pool, bytes: &[u8]) -> Result<(usize, Step), Close> {
        let (mut at, end) = (0, TurnEnd::new());
        loop {
            if self.is_crowded() {
                return Ok((at, Step::Held));
            }
            if at > 0 && end.has_come() && at < bytes.len() {
                self.is_cut_short = true;
                return Ok((at, Step::Held));
            }
            if !service.is_ready(&self.peer) {
                self.is_held = true;
                return Ok((at, Step::Held));
            }
            let rest = &bytes[at..];
            let Some(lengths) = Lengths::decode(rest).map_err(|_| Close)? else {
                return Ok((at, Step::Idle));
            };
            if lengths.data_bytes > service.data_bytes_max(&self.peer) {
                return Err(Close);
            }
            let Some(rest) = rest[PREFIX_BYTES..].split_at_checked(lengths.body_bytes) else {
                return Ok((at, Step::Idle));
            };
            let (body, data) = rest;
            if lengths.data_bytes > INLINE_BYTES_MAX {
                let Some(mut buffer) = pool.take(lengths.data_bytes) else {
                    self.is_starved = true;
                    return Ok((at, Step::Held));
                };
                let filled = data.len().min(lengths.data_bytes);
                buffer[..filled].copy_from_slice(&data[..filled]);
                at += PREFIX_BYTES + lengths.body_bytes + filled;
                if filled < lengths.data_bytes {
                    self.arriving = Some(Arriving {
                        body: body.to_vec(),
                        buffer,
                        filled,
                        began: Instant::now(),
                        heard: Instant::now(),
                    });
                    return Ok((at, Step::Idle));
                }
                service.message(&mut self.peer, body, Data::Buffer(buffer), &mut self.out)?;
                continue;
            }
            let Some(data) = data.get(..lengths.data_bytes) else {
                return Ok((at, Step::Idle));
            };
            if body.starts_with(&OWN_ID) {
                self.out.stop_zero_copy();
                self.introduction = Some(body.to_vec());
                return Ok((at + PREFIX_BYTES + lengths.body_bytes + lengths.data_bytes, Step::Held));
            }
            if service.message(&mut self.peer, body, Data::Inline(data), &mut self.out)? == Served::Starved {
                self.is_starved = true;
                return Ok((at, Step::Held));
            }
            at += PREFIX_BYTES + lengths.body_bytes + lengths.data_bytes;
        }
    }

    /// Serves the messages that have already arrived.
    pub(super) fn serve_received<S: Service<Peer = P>>(&mut self, service: &S, pool: &Pool) -> Result<(), Close> {
        self.is_starved = false;
        self.is_held = false;
        self.is_cut_short = false;
        if self.received.is_empty() || self.arriving.is_some() {
            return Ok(());
        }
        let mut received = std::mem::take(&mut self.received);
        let (served, _) = self.serve(service, pool, &received)?;
        if served < received.len() {
            received.drain(..served);
            self.received = received;
        }
        Ok(())
    }

    /// One turn: receives once, and serves what has come. `buf` is for received bytes, `sealed_buf` for encrypted
    /// ones as they arrive.
    pub(super) fn turn<S: Service<Peer = P>>(
        &mut self,
        service: &S,
        pool: &Pool,
        buf: &mut [u8],
        sealed_buf: &mut [u8],
    ) -> Result<(), Close> {
        if let Some(sealed) = &mut self.sealed {
            return match sealed.receive(&self.stream, buf, sealed_buf)? {
                0 => Ok(()),
                count => self.serve_opened(service, pool, &buf[..count]),
            };
        }
        if let Some(arriving) = &mut self.arriving {
            match (&*self.stream).read(&mut arriving.buffer[arriving.filled..]) {
                Ok(0) => return Err(Close),
                Ok(count) => {
                    arriving.filled += count;
                    arriving.heard = Instant::now();
                }
                Err(error) => return passing(&error),
            }
            if arriving.filled == arriving.buffer.len()
                && let Some(Arriving { body, buffer, .. }) = self.arriving.take()
            {
                service.message(&mut self.peer, &body, Data::Buffer(buffer), &mut self.out)?;
            }
            return Ok(());
        }
        let count = match (&*self.stream).read(buf) {
            Ok(0) => return Err(Close),
            Ok(count) => count,
            Err(error) => return passing(&error),
        };
        if !self.received.is_empty() {
            self.received.extend_from_slice(&buf[..count]);
            return self.serve_received(service, pool);
        }
        let (served, _) = self.serve(service, pool, &buf[..count])?;
        self.received.extend_from_slice(&buf[served..count]);
        Ok(())
    }

    /// Serves the content of opened records.
    fn serve_opened<S: Service<Peer = P>>(&mut self, service: &S, pool: &Pool, mut opened: &[u8]) -> Result<(), Close> {
        if let Some(arriving) = &mut self.arriving {
            let missing = &mut arriving.buffer[arriving.filled..];
            let (data, rest) = opened.split_at(opened.len().min(missing.len()));
            missing[..data.len()].copy_from_slice(data);
            arriving.filled += data.len();
            arriving.heard = Instant::now();
            opened = rest;
            if arriving.filled == arriving.buffer.len()
                && let Some(Arriving { body, buffer, .. }) = self.arriving.take()
            {
                service.message(&mut self.peer, &body, Data::Buffer(buffer), &mut self.out)?;
            }
        }
        if !self.received.is_empty() {
            self.received.extend_from_slice(opened);
            return self.serve_received(service, pool);
        }
        let (served, _) = self.serve(service, pool, opened)?;
        self.received.extend_from_slice(&opened[served..]);
        Ok(())
    }
}

impl Sealed {
    /// Receives once. Returns how much of `buf` the content of complete records fills.
    fn receive(&mut self, mut stream: &TcpStream, buf: &mut [u8], sealed_buf: &mut [u8]) -> Result<usize, Close> {
        let before = self.received.len();
        let count = match stream.read(&mut sealed_buf[before..]) {
            Ok(0) => return Err(Close),
            Ok(count) => count,
            Err(error) => return passing(&error).map(|()| 0),
        };
        sealed_buf[..before].copy_from_slice(&self.received);
        let received = &sealed_buf[..before + count];
        // All complete records fit: their content is shorter than they are.
        let (read, opened) = self.opener.open(received, buf).map_err(|_| Close)?;
        self.received.clear();
        match &received[read..] {
            // Idle clients cost no memory.
            [] => self.received = Vec::new(),
            rest => self.received.extend_from_slice(rest),
        }
        Ok(opened)
    }
}

/// Takes bytes, and sends records.
struct Sealing<'s> {
    sealed: &'s mut Sealed,
    stream: &'s TcpStream,
}

impl Sealing<'_> {
    /// Sends finished records. True if none is left.
    fn pass_on(&mut self) -> io::Result<bool> {
        let Sealed { out, sent, .. } = &mut *self.sealed;
        while *sent < out.len() {
            match self.stream.write(&out[*sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        *sent = 0;
        match out.capacity() > KEPT_BYTES {
            true => *out = Vec::new(),
            false => out.clear(),
        }
        Ok(true)
    }
}

impl Sink for &TcpStream {
    fn send(&mut self, parts: &[Sent<'_>]) -> io::Result<usize> {
        borrowed::send(self.as_fd(), parts)
    }
}

impl Sink for Sealing<'_> {
    /// Makes records of some of the parts, once the earlier ones are sent.
    fn send(&mut self, parts: &[Sent<'_>]) -> io::Result<usize> {
        if !self.pass_on()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut taken = 0;
        for part in parts {
            // This cannot read borrowed data: such a queue gets none.
            let Sent::Bytes(part) = part else {
                return Err(io::ErrorKind::Unsupported.into());
            };
            for content in part.chunks(CONTENT_BYTES_MAX) {
                self.sealed.sealer.seal(content, &mut self.sealed.out)?;
                taken += content.len();
                if self.sealed.out.len() >= SEALED_BYTES {
                    return self.pass_on().map(|_| taken);
                }
            }
        }
        self.pass_on().map(|_| taken)
    }
}

fn passing(error: &io::Error) -> Result<(), Close> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(Close),
    }
}

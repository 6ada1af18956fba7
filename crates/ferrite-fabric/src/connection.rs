//! The client's end of a connection: threads that send, and one at a time that receives.
//!
//! Contents: [`Connection`], which any thread sends through. Its other half, [`Receiver`], belongs to one thread
//! at a time. Both block. If both ends encrypt, each half has what its direction needs. A connection begins as TCP, and
//! may go on over a fabric ([`Fabric`]) if it is not encrypted.

use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

#[cfg(feature = "fabric")]
use std::{net::IpAddr, sync::Arc};

use parking_lot::Mutex;

use crate::frame::{Lengths, PREFIX_BYTES};
use crate::receiver::{SEALED_BYTES, SEND_LIMIT};
use crate::secure::record::{CONTENT_BYTES_MAX, Sealer};
use crate::secure::{Credentials, Encrypt, handshake};
use crate::{FabricError, HandshakeError, socket};
#[cfg(feature = "fabric")]
use crate::{
    Provider,
    fabric::{
        Introduction, Reply,
        line::{Line, LineReader},
    },
};

pub use crate::receiver::Receiver;
pub use crate::spin::SPIN;

/// A frame with such a body and no data is sent in one piece.
const SHORT_BYTES: usize = 256;
/// How often a receiver that waits looks up.
const RECEIVE_TICK: Duration = Duration::from_millis(250);

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
        let receiver = Receiver::new(stream.try_clone()?, opener);
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

    /// Where the server is.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
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
                receiver.goes_on_over(LineReader::new(Arc::clone(&line), RECEIVE_TICK));
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

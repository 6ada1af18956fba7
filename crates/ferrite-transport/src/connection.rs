//! The client's end of a connection: any number of threads send, one at a time receives.
//!
//! Contents: [`Connection`], which any thread sends through. Its other half, [`Receiver`], belongs to one thread at a
//! time. Both block. If both ends encrypt, each half has the state of its direction. A connection begins as TCP, and
//! may move to a fabric ([`Fabric`]) if it is not encrypted.

use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

#[cfg(feature = "fabric")]
use std::{net::IpAddr, sync::Arc};

use ferrite_checks::ranked::Mutex;

use crate::frame::{Lengths, PREFIX_BYTES};
use crate::lock_order;
use crate::receiver::{SEALED_BYTES, SEND_LIMIT};
use crate::secure::record::{CONTENT_BYTES_MAX, Sealer};
use crate::secure::{Credentials, Encrypt, handshake};
use crate::{FabricError, HandshakeError, socket};
#[cfg(feature = "fabric")]
use crate::{
    Provider,
    fabric::{
        Introduction, Reply,
        connection::{FabricConnection, FabricReader},
    },
};

pub use crate::busy_poll::BUSY_POLL;
pub use crate::receiver::Receiver;

/// A frame without data and with a body up to this length is sent in one piece.
const SHORT_BYTES: usize = 256;
/// How often a waiting receiver wakes up to check.
const RECEIVE_TICK: Duration = Duration::from_millis(250);

/// How a client uses a fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// Name of the provider: `shm`, `verbs` or `tcp`. `None`: the best that both ends have.
    pub provider: Option<String>,
    /// Memory for bulk data in flight.
    pub buffers_bytes: usize,
    /// How long a waiting thread polls for a reply before it sleeps.
    pub busy_poll: Duration,
}

impl Default for Fabric {
    fn default() -> Fabric {
        Fabric {
            provider: None,
            buffers_bytes: 32 << 20,
            busy_poll: Duration::from_micros(200),
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Held while a frame is sent.
    sends: Mutex<lock_order::Sends, Option<Box<Sending>>>,
    is_encrypted: bool,
    #[cfg(feature = "fabric")]
    fabric_connection: Option<Arc<FabricConnection>>,
}

/// The state that encrypted sending needs.
#[derive(Debug)]
struct Sending {
    sealer: Sealer,
    /// The content of a record, gathered from several places.
    content: Vec<u8>,
    sealed: Vec<u8>,
}

impl Connection {
    /// Connects to `HOST:PORT`, trying each address of the name for at most `limit`, and opens the connection with the
    /// client's credentials. Blocks.
    pub fn open(
        address: &str,
        credentials: &Credentials,
        limit: Duration,
    ) -> Result<(Connection, Receiver), FabricError> {
        Connection::open_within(address, credentials, limit, limit)
    }

    /// The same with a limit of its own for the part until the peer's machine answers, for each address of the name.
    pub fn open_within(
        address: &str,
        credentials: &Credentials,
        connect: Duration,
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
            match TcpStream::connect_timeout(&candidate, connect) {
                // Without a listener on a port of the ephemeral range, a connection may connect to itself.
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
            fabric_connection: None,
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

    /// Whether the traffic is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether the other end places a reply's data directly at its destination, so that its length does not matter.
    pub fn places_data(&self) -> bool {
        #[cfg(feature = "fabric")]
        return self.fabric_connection.is_some();
        #[cfg(not(feature = "fabric"))]
        false
    }

    /// Sends a frame. Blocks while the peer takes nothing. After an error the connection is unusable, because part of
    /// the frame may have been sent.
    pub fn send(&self, body: &[u8], data: &[u8]) -> Result<(), FabricError> {
        self.ask(body, data, 0)
    }

    /// The same for a request whose reply may have up to `reply_bytes` of data, which can then take the shortest way.
    /// The reply repeats the first eight bytes of the body; no other request in flight has the same.
    pub fn ask(&self, body: &[u8], data: &[u8], reply_bytes: usize) -> Result<(), FabricError> {
        #[cfg(feature = "fabric")]
        if let Some(fabric_connection) = &self.fabric_connection {
            let _turn = self.sends.lock();
            return fabric_connection.send(body, data, reply_bytes, SEND_LIMIT);
        }
        let _ = reply_bytes;
        let prefix = Lengths {
            body_bytes: body.len(),
            data_bytes: data.len(),
        }
        .encode();
        let mut sends = self.sends.lock();
        match &mut *sends {
            // One piece costs the system less time than several.
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

    /// Sends whole, contiguous frames. Otherwise as [`Self::send`].
    pub fn send_frames(&self, frames: &[u8]) -> Result<(), FabricError> {
        let mut sends = self.sends.lock();
        #[cfg(feature = "fabric")]
        if let Some(fabric_connection) = &self.fabric_connection {
            let mut rest = frames;
            while let Some(lengths) = Lengths::decode(rest)? {
                let whole = rest.split_at_checked(PREFIX_BYTES + lengths.body_bytes + lengths.data_bytes);
                let (frame, after) = whole.ok_or(FabricError::Foreign)?;
                let (body, data) = frame[PREFIX_BYTES..].split_at(lengths.body_bytes);
                fabric_connection.send(body, data, 0, SEND_LIMIT)?;
                rest = after;
            }
            return Ok(());
        }
        match &mut *sends {
            None => self.write([IoSlice::new(frames), IoSlice::new(&[]), IoSlice::new(&[])]),
            Some(sending) => self.send_sealed(sending, [frames, &[], &[]]),
        }
    }

    /// One lock covers making and sending records, so that they arrive in order.
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

    /// Ends the connection: the receiver and all senders get errors.
    pub fn close(&self) {
        #[cfg(feature = "fabric")]
        if let Some(fabric_connection) = &self.fabric_connection {
            return fabric_connection.close();
        }
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Initializes libfabric, once in a process. Call it before opening a connection that is to move to a fabric: it takes
/// longer than some servers wait. Blocks for tenths of a second, at most once.
pub fn begin_fabrics() {
    #[cfg(feature = "fabric")]
    crate::ofi::begin();
}

/// Moves a connection that has just been opened to a fabric. Tries all available providers if the caller names none.
/// Blocks, up to about `limit`.
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
        let fabric_connection = match FabricConnection::open(
            provider,
            connection.stream.try_clone()?,
            fabric.buffers_bytes,
            fabric.busy_poll,
        ) {
            Ok(fabric_connection) => fabric_connection,
            Err(error) => {
                last = error;
                continue;
            }
        };
        let (name, region, region_bytes) = fabric_connection.introduction()?;
        let introduction = Introduction {
            provider,
            region,
            region_bytes,
            name,
        };
        connection.send(&introduction.encode(), &[])?;
        // From here on the client waits for the server, no longer for a busy machine of its own.
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
                // A server that does not know this request takes it for garbage.
                Err(FabricError::Closed) => return Err(refused("it closed the connection")),
                Err(error) => return Err(error),
            }
        };
        match reply {
            Reply::Refused(why) => last = refused(&why),
            Reply::Welcome { number, name } => {
                fabric_connection.begin(&name, number)?;
                let fabric_connection = Arc::new(fabric_connection);
                receiver.goes_on_over(FabricReader::new(Arc::clone(&fabric_connection), RECEIVE_TICK));
                connection.fabric_connection = Some(fabric_connection);
                return Ok((connection, receiver));
            }
        }
    }
    Err(last)
}

/// The same for a build without any fabric.
#[cfg(not(feature = "fabric"))]
pub fn upgrade(
    _: (Connection, Receiver),
    _: &str,
    _: &Fabric,
    _: Duration,
) -> Result<(Connection, Receiver), FabricError> {
    Err(FabricError::NotBuilt)
}

/// The providers to try, the best first. TCP through libfabric is slower than without, so only an explicit request
/// selects it.
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
        // The error of this provider names what is missing.
        wanted.push(Provider::Verbs);
    }
    wanted
}

/// The descriptor to wait for ([`crate::watch`]).
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

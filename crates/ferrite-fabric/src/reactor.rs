//! The server's end: many connections, served by few threads.
//!
//! What lives here: [`Reactors`], threads that each wait for the sockets they own and call a [`Service`] for every
//! message. Other threads answer later, through a [`Link`].
//!
//! A message is served on the thread that received it: handing it to another costs more than most operations. What is
//! answered later goes through the connection's mailbox.
//!
//! Invariants: a connection belongs to one thread. A connection whose answers its client does not take is not read
//! from, so a client cannot make the server keep more than [`QUEUED_BYTES_MAX`] and one answer for it. A connection has
//! at most one turn before all others that are ready have had one. When buffers are scarce, a connection that has one
//! and does not fill it is closed.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_buffers::{Buffer, Pool};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::FabricError;
use crate::frame::{DATA_BYTES_MAX, INLINE_BYTES_MAX, Lengths, PREFIX_BYTES};
use crate::link::{Inbox, Waker};
use crate::outbox::Outbox;

pub use crate::link::Link;

/// With as many bytes to send, a connection is not read from.
pub const QUEUED_BYTES_MAX: usize = 1 << 20;
/// Bytes received in one turn of a connection.
const TURN_BYTES: usize = 256 << 10;
/// Events taken from the system at once.
const EVENTS: usize = 128;
/// How soon a connection that found no buffer looks again.
const STARVED: Duration = Duration::from_millis(1);
/// With a buffer that others need, a client may pause for so long.
const STALLED: Duration = Duration::from_secs(1);
/// With a buffer that others need, a client must send at least so much a second.
const SLOWEST_BYTES_PER_S: usize = 256 << 10;
/// For so long nothing is accepted after the system had nothing left for another connection.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// How often a thread with nothing to do looks up.
const IDLE: Duration = Duration::from_secs(1);

/// Number of the event of the waker.
const WAKER: u64 = u64::MAX;
/// Numbers of listeners' events, from here on.
const LISTENERS: u64 = u64::MAX - 1024;

/// Data of a message.
pub enum Data<'m> {
    /// As it was received with the body; none if empty.
    Inline(&'m [u8]),
    /// In a buffer of the pool.
    Buffer(Buffer),
}

impl Data<'_> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Data::Inline(bytes) => bytes,
            Data::Buffer(buffer) => buffer,
        }
    }
}

/// The connection is to be closed: what came over it made no sense, or is not welcome.
#[derive(Debug)]
pub struct Close;

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Served {
    /// It is answered, or will be.
    Yes,
    /// There is no buffer for its answer. It had no effect, and is to be brought again. Only for messages whose data is
    /// inline.
    Starved,
}

/// What serves connections.
pub trait Service: Send + Sync + 'static {
    /// What it keeps of a connection.
    type Peer: Send;

    /// A client has connected.
    fn connected(&self, link: Link, address: SocketAddr) -> Self::Peer;

    /// Most data that a message of this client may have now.
    fn data_bytes_max(&self, _: &Self::Peer) -> usize {
        DATA_BYTES_MAX
    }

    /// Whether another message of this client may come now. One that says no must ring the client's link
    /// ([`Link::send`]) when that changes.
    fn is_ready(&self, _: &Self::Peer) -> bool {
        true
    }

    /// A message came. Answers go to `out`, now, or to the link, later. Must not block for long: the other connections
    /// of this thread wait.
    fn message(&self, peer: &mut Self::Peer, body: &[u8], data: Data<'_>, out: &mut Outbox) -> Result<Served, Close>;

    /// The connection is gone.
    fn disconnected(&self, peer: Self::Peer);
}

/// How to run a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads.
    pub threads: usize,
    /// How long a thread looks for work again and again before it sleeps. Zero: it sleeps at once.
    pub busy: Duration,
    /// Most connections.
    pub connections_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            threads: 1,
            busy: Duration::ZERO,
            connections_max: 16_384,
        }
    }
}

struct Shared {
    wakers: Vec<Arc<Waker>>,
    next: AtomicUsize,
    connections: AtomicUsize,
    connections_max: usize,
    busy: Duration,
    stop: AtomicBool,
    pool: Pool,
}

/// Running threads that serve connections.
pub struct Reactors {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Reactors {
    /// Starts threads that serve what connects to `listeners`, with buffers from `pool`.
    pub fn start<S: Service>(
        listeners: Vec<TcpListener>,
        service: &Arc<S>,
        pool: &Pool,
        options: &Options,
    ) -> Result<Reactors, FabricError> {
        let wakers = (0..options.threads.max(1))
            .map(|_| Waker::new().map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            wakers,
            next: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            connections_max: options.connections_max,
            busy: options.busy,
            stop: AtomicBool::new(false),
            pool: pool.clone(),
        });
        let mut listeners = Some(listeners);
        let mut running = Reactors {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        for (index, waker) in shared.wakers.iter().enumerate() {
            let reactor = Reactor::new(
                Arc::clone(service),
                Arc::clone(&shared),
                Arc::clone(waker),
                listeners.take().unwrap_or_default(),
            )?;
            let thread = std::thread::Builder::new().name(format!("ferrite-net-{index}"));
            running.threads.push(thread.spawn(move || reactor.run())?);
        }
        Ok(running)
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Reactors {
    /// Closes all connections, and waits for the threads.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for waker in &self.shared.wakers {
            waker.ring();
        }
        for thread in self.threads.drain(..) {
            // A panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Data that is on its way into a buffer.
struct Arriving {
    body: Vec<u8>,
    buffer: Buffer,
    filled: usize,
    began: Instant,
    /// When something came last.
    heard: Instant,
}

impl Arriving {
    /// Whether it is too slow for a time when others wait for buffers.
    fn is_slow(&self) -> bool {
        let most = STALLED + Duration::from_secs_f64(self.filled as f64 / SLOWEST_BYTES_PER_S as f64);
        self.heard.elapsed() >= STALLED || self.began.elapsed() >= most
    }
}

struct Connection<P> {
    stream: TcpStream,
    link: Link,
    peer: P,
    /// Received and not served.
    received: Vec<u8>,
    arriving: Option<Arriving>,
    out: Outbox,
    /// What the system watches for.
    interest: EventFlags,
    /// It found no buffer.
    is_starved: bool,
    /// The service takes nothing from it now.
    is_held: bool,
    /// When its client last took something of what it was sent.
    took: Instant,
}

enum Step {
    /// All that came is served.
    Idle,
    /// It waits for a buffer, or until its client takes what it was sent.
    Held,
}

impl<P> Connection<P> {
    fn is_crowded(&self) -> bool {
        self.out.queued_bytes() > QUEUED_BYTES_MAX
    }

    /// Whether more is to be received from it now.
    fn takes_more(&self) -> bool {
        !self.is_crowded() && !self.is_starved && !self.is_held
    }

    /// Serves the complete messages in `bytes`; returns how many bytes those were.
    fn serve<S: Service<Peer = P>>(&mut self, service: &S, pool: &Pool, bytes: &[u8]) -> Result<(usize, Step), Close> {
        let mut at = 0;
        loop {
            if self.is_crowded() {
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
            if service.message(&mut self.peer, body, Data::Inline(data), &mut self.out)? == Served::Starved {
                self.is_starved = true;
                return Ok((at, Step::Held));
            }
            at += PREFIX_BYTES + lengths.body_bytes + lengths.data_bytes;
        }
    }

    /// Serves what is there already.
    fn serve_received<S: Service<Peer = P>>(&mut self, service: &S, pool: &Pool) -> Result<(), Close> {
        self.is_starved = false;
        self.is_held = false;
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

    /// One turn: receives once, and serves what has come.
    fn turn<S: Service<Peer = P>>(&mut self, service: &S, pool: &Pool, room: &mut [u8]) -> Result<(), Close> {
        if let Some(arriving) = &mut self.arriving {
            match (&self.stream).read(&mut arriving.buffer[arriving.filled..]) {
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
        let count = match (&self.stream).read(room) {
            Ok(0) => return Err(Close),
            Ok(count) => count,
            Err(error) => return passing(&error),
        };
        if !self.received.is_empty() {
            self.received.extend_from_slice(&room[..count]);
            return self.serve_received(service, pool);
        }
        let (served, _) = self.serve(service, pool, &room[..count])?;
        self.received.extend_from_slice(&room[served..count]);
        Ok(())
    }
}

fn passing(error: &io::Error) -> Result<(), Close> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(Close),
    }
}

struct Reactor<S: Service> {
    service: Arc<S>,
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    connections: HashMap<u64, Connection<S::Peer>>,
    next_number: u64,
    room: Vec<u8>,
    /// Nothing is accepted before that.
    rests_until: Option<Instant>,
}

impl<S: Service> Reactor<S> {
    fn new(
        service: Arc<S>,
        shared: Arc<Shared>,
        waker: Arc<Waker>,
        listeners: Vec<TcpListener>,
    ) -> io::Result<Reactor<S>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, waker.event(), EventData::new_u64(WAKER), EventFlags::IN)?;
        for (index, listener) in listeners.iter().enumerate() {
            listener.set_nonblocking(true)?;
            let number = EventData::new_u64(LISTENERS + index as u64);
            epoll::add(&epoll, listener, number, EventFlags::IN)?;
        }
        Ok(Reactor {
            service,
            shared,
            waker,
            epoll,
            listeners,
            connections: HashMap::new(),
            next_number: 0,
            room: vec![0; TURN_BYTES],
            rests_until: None,
        })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut last_work = Instant::now();
        let mut last_look = last_work;
        let mut has_starved = false;
        while !self.shared.stop.load(Ordering::Acquire) {
            let wait = match () {
                () if !self.shared.busy.is_zero() && last_work.elapsed() < self.shared.busy => Duration::ZERO,
                () if has_starved => STARVED,
                () if self.rests_until.is_some() => ACCEPT_REST,
                () => IDLE,
            };
            events.clear();
            let timeout = Timespec {
                tv_sec: wait.as_secs() as _,
                tv_nsec: wait.subsec_nanos() as _,
            };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("waiting for sockets failed: {error}; this server stops");
                    break;
                }
            }
            if !events.is_empty() && !self.shared.busy.is_zero() {
                last_work = Instant::now();
            }
            for event in &events {
                let (number, flags) = (event.data.u64(), event.flags);
                match number {
                    WAKER => self.read_inbox(),
                    LISTENERS.. => self.accept((number - LISTENERS) as usize),
                    _ => self.serve(number, flags),
                }
            }
            if has_starved {
                let starved: Vec<u64> = self.starved().collect();
                starved
                    .into_iter()
                    .for_each(|number| self.serve(number, EventFlags::empty()));
            }
            has_starved = self.starved().next().is_some();
            if self.rests_until.is_some_and(|until| Instant::now() >= until) {
                self.rest(None);
            }
            if self.shared.pool.free_bytes() < DATA_BYTES_MAX && last_look.elapsed() >= STALLED / 4 {
                last_look = Instant::now();
                self.drop_stalled();
            }
        }
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.drop_connection(number));
    }

    fn starved(&self) -> impl Iterator<Item = u64> {
        let starved = self.connections.iter().filter(|(_, connection)| connection.is_starved);
        starved.map(|(&number, _)| number)
    }

    /// Closes connections that keep a buffer and send nothing, or do not take what is in it.
    fn drop_stalled(&mut self) {
        let is_stalled = |connection: &Connection<S::Peer>| {
            let arriving = connection.arriving.as_ref();
            let takes_nothing = connection.out.has_buffers() && connection.took.elapsed() >= STALLED;
            takes_nothing || arriving.is_some_and(Arriving::is_slow)
        };
        let stalled = self.connections.iter().filter(|(_, connection)| is_stalled(connection));
        let stalled: Vec<u64> = stalled.map(|(&number, _)| number).collect();
        stalled.into_iter().for_each(|number| self.drop_connection(number));
    }

    fn accept(&mut self, listener: usize) {
        loop {
            match self.listeners[listener].accept() {
                Ok((stream, address)) => {
                    let shared = &self.shared;
                    if shared.connections.fetch_add(1, Ordering::Relaxed) >= shared.connections_max {
                        shared.connections.fetch_sub(1, Ordering::Relaxed);
                        tracing::warn!(
                            "{address} was refused: there are {} connections",
                            shared.connections_max
                        );
                        continue;
                    }
                    let waker = &shared.wakers[shared.next.fetch_add(1, Ordering::Relaxed) % shared.wakers.len()];
                    if Arc::ptr_eq(waker, &self.waker) {
                        self.adopt(stream, address);
                    } else {
                        waker.hand_over(stream, address);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // A client that went away at once, or nothing left for another: those that are connected go on.
                    tracing::warn!("a connection could not be accepted: {error}");
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        self.rest(Some(Instant::now() + ACCEPT_REST));
                    }
                    return;
                }
            }
        }
    }

    /// Stops accepting until then, or begins again: a listener whose connections cannot be taken is ready all the time.
    fn rest(&mut self, until: Option<Instant>) {
        self.rests_until = until;
        let interest = if until.is_some() {
            EventFlags::empty()
        } else {
            EventFlags::IN
        };
        for (index, listener) in self.listeners.iter().enumerate() {
            let number = EventData::new_u64(LISTENERS + index as u64);
            if let Err(error) = epoll::modify(&self.epoll, listener, number, interest) {
                tracing::error!("a listener cannot be watched any more: {error}");
            }
        }
    }

    fn adopt(&mut self, stream: TcpStream, address: SocketAddr) {
        let number = self.next_number;
        self.next_number += 1;
        let interest = EventFlags::IN;
        let ready = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| {
                Ok(epoll::add(
                    &self.epoll,
                    stream.as_fd(),
                    EventData::new_u64(number),
                    interest,
                )?)
            });
        if let Err(error) = ready {
            tracing::warn!("{address} could not be served: {error}");
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let link = Link::new(number, &self.waker);
        let peer = self.service.connected(link.clone(), address);
        let connection = Connection {
            stream,
            link,
            peer,
            received: Vec::new(),
            arriving: None,
            out: Outbox::default(),
            interest,
            is_starved: false,
            is_held: false,
            took: Instant::now(),
        };
        self.connections.insert(number, connection);
    }

    fn read_inbox(&mut self) {
        let Inbox { accepted, mail } = self.waker.take();
        accepted
            .into_iter()
            .for_each(|(stream, address)| self.adopt(stream, address));
        mail.into_iter()
            .for_each(|number| self.serve(number, EventFlags::empty()));
    }

    /// A turn of a connection: takes its mail, receives if there is something, serves, sends.
    fn serve(&mut self, number: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let mut served = if connection.link.is_closed() {
            Err(Close)
        } else {
            connection.link.take_mail(&mut connection.out);
            let pool = &self.shared.pool;
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                connection.turn(&*self.service, pool, &mut self.room)
            } else {
                connection.serve_received(&*self.service, pool)
            }
        };
        while served.is_ok() {
            let was_crowded = connection.is_crowded();
            let queued_bytes = connection.out.queued_bytes();
            match connection.out.send(&mut &connection.stream) {
                Err(_) => served = Err(Close),
                // What it was held back from can be served now.
                Ok(true) if was_crowded => served = connection.serve_received(&*self.service, &self.shared.pool),
                Ok(_) => {
                    if connection.out.queued_bytes() < queued_bytes && connection.out.has_buffers() {
                        connection.took = Instant::now();
                    }
                    break;
                }
            }
        }
        if served.is_err() || connection.link.is_closed() {
            return self.drop_connection(number);
        }
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, connection.takes_more());
        interest.set(EventFlags::OUT, connection.out.queued_bytes() > 0);
        if interest != connection.interest {
            connection.interest = interest;
            let data = EventData::new_u64(number);
            if epoll::modify(&self.epoll, connection.stream.as_fd(), data, interest).is_err() {
                self.drop_connection(number);
            }
        }
    }

    fn drop_connection(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        connection.link.mark_closed();
        // Closing the socket ends the system's interest in it.
        drop(connection.stream);
        self.service.disconnected(connection.peer);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

//! The server's end: many connections, served by few threads.
//!
//! Contents: [`Reactors`], threads that each wait for the sockets they own and call a [`Service`] for every message.
//! Other threads answer later, through a [`Link`]. A connection is first unauthenticated (`unauthenticated`), until it
//! passes the handshake, and then a served one (`connection`).
//!
//! The thread that received a message serves it: handing it to another costs more than most operations. Deferred
//! replies go through the connection's link.
//!
//! Invariants: a connection belongs to one thread. The server does not read from a connection whose client takes no
//! replies, so a client cannot make the server keep more than [`QUEUED_BYTES_MAX`] and one reply for it. A connection
//! has at most one turn before all others that are ready have had one. When buffers are scarce, a connection that has
//! one and does not fill it is closed.

mod connection;
#[cfg(not(feature = "fabric"))]
#[path = "without_fabric.rs"]
mod on_fabric;
#[cfg(feature = "fabric")]
mod on_fabric;
mod turns;
mod unauthenticated;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
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
use crate::busy_poll::{BUSY_POLL, BusyPoll};
use crate::frame::DATA_BYTES_MAX;
use crate::link::{Inbox, Waker};
use crate::secure::handshake::Admitted;
use crate::secure::{AdmissionPolicy, KeyId};
use crate::send_queue::SendQueue;
use crate::socket;
use crate::source::{BoundedPeers, Source, Throttle};

use connection::Connection;
use turns::Clock;
use unauthenticated::{Turn, Unauthenticated};

use on_fabric::Fabrics;

pub use crate::link::Link;
pub use turns::{LONG, TurnCounts, Turns};

/// With as many bytes to send, the server does not read from a connection.
pub const QUEUED_BYTES_MAX: usize = 1 << 20;
/// Bytes received in one turn of a connection.
const TURN_BYTES: usize = 256 << 10;
/// Events taken from the system at once.
const EVENTS: usize = 128;
/// How soon a connection that found no buffer tries again.
const STARVED: Duration = Duration::from_millis(1);
/// How long a client may pause while others need its buffer.
const STALLED: Duration = Duration::from_secs(1);
/// How long a thread accepts no connections after the system had no resources for one.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// How often an idle thread wakes up to check.
const IDLE: Duration = Duration::from_secs(1);
/// Unauthenticated connections of a thread ([`BoundedPeers`]).
const UNAUTHENTICATED_MAX: usize = 1024;
/// Those that come from one source.
const UNAUTHENTICATED_OF_SOURCE_MAX: usize = 256;

/// Event number of the waker.
const WAKER: u64 = u64::MAX;
/// Event numbers of listeners, from here on.
const LISTENERS: u64 = u64::MAX - 1024;

/// The clients that may move to a fabric (`fabric://`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricOptions {
    /// Providers by name: `shm`, `verbs`, `tcp`.
    pub providers: Vec<String>,
    /// How long a thread polls for messages before it sleeps.
    pub busy_poll: Duration,
}

impl Default for FabricOptions {
    fn default() -> Self {
        FabricOptions {
            providers: ["shm", "verbs", "tcp"].map(str::to_owned).to_vec(),
            busy_poll: Duration::from_micros(200),
        }
    }
}

/// Data of a message.
pub enum Data<'m> {
    /// As received with the body; empty if there is no data.
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

/// Closes the connection: the peer's bytes were invalid, or are unwelcome.
#[derive(Debug)]
pub struct Close;

/// The outcome of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Served {
    /// It is answered, or will be.
    Yes,
    /// There is no buffer for its reply. It had no effect, and must be presented again. Only for messages whose data
    /// is inline.
    Starved,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The client's address.
    pub address: SocketAddr,
    /// The key that it has proved to have; `None` if it has none.
    pub key: Option<KeyId>,
}

/// A server's logic behind its connections.
pub trait Service: Send + Sync + 'static {
    /// Its state of a connection.
    type Peer: Send;

    /// A client has connected, and the policy has admitted it.
    fn connected(&self, link: Link, origin: Origin) -> Self::Peer;

    /// Most data that a message of this client may carry now.
    fn data_bytes_max(&self, _: &Self::Peer) -> usize {
        DATA_BYTES_MAX
    }

    /// Whether the service accepts another message of this client now. If not, it must ring the client's link
    /// ([`Link::send`]) when that changes.
    fn is_ready(&self, _: &Self::Peer) -> bool {
        true
    }

    /// Handles a message. Replies go to `out`, now, or to the link, later. Must not block for long: the other
    /// connections of this thread wait.
    fn message(&self, peer: &mut Self::Peer, body: &[u8], data: Data<'_>, out: &mut SendQueue)
    -> Result<Served, Close>;

    /// The connection is gone.
    fn disconnected(&self, peer: Self::Peer);
}

/// How to run a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads.
    pub threads: usize,
    /// How long a thread polls for work before it sleeps, at most. It does so where that pays: after short sleeps, and
    /// while no other thread wants the core. Zero: it sleeps at once.
    pub busy_poll: Duration,
    /// Most connections.
    pub connections_max: usize,
    /// Admission rules for clients.
    pub policy: Arc<AdmissionPolicy>,
    /// Lets clients move to a fabric.
    pub fabric: Option<FabricOptions>,
    /// Where threads record how long they work.
    pub turns: Arc<Turns>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            threads: 1,
            busy_poll: BUSY_POLL,
            connections_max: 16_384,
            policy: Arc::new(AdmissionPolicy::new(true)),
            fabric: None,
            turns: Arc::default(),
        }
    }
}

struct Shared {
    wakers: Vec<Arc<Waker>>,
    next: AtomicUsize,
    connections: AtomicUsize,
    connections_max: usize,
    policy: Arc<AdmissionPolicy>,
    busy_poll: Duration,
    stop: AtomicBool,
    pool: Pool,
    turns: Arc<Turns>,
    /// Throttles log lines about connections that were not accepted.
    refusals: Throttle,
}

/// Running threads that serve connections.
pub struct Reactors {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Reactors {
    /// Starts threads that serve the clients of `listeners`, with buffers from `pool`.
    pub fn start<S: Service>(
        listeners: Vec<TcpListener>,
        service: &Arc<S>,
        pool: &Pool,
        options: &Options,
    ) -> Result<Reactors, FabricError> {
        if options.fabric.is_some() {
            crate::connection::begin_fabrics();
        }
        let wakers = (0..options.threads.max(1))
            .map(|_| Waker::new().map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            wakers,
            next: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            connections_max: options.connections_max,
            policy: Arc::clone(&options.policy),
            busy_poll: options.busy_poll,
            stop: AtomicBool::new(false),
            pool: pool.clone(),
            turns: Arc::clone(&options.turns),
            refusals: Throttle::new(),
        });
        let mut listeners = Some(listeners);
        let mut running = Reactors {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        for (index, waker) in shared.wakers.iter().enumerate() {
            let reactor = Reactor::new(
                options.fabric.clone(),
                Arc::clone(service),
                Arc::clone(&shared),
                Arc::clone(waker),
                listeners.take().unwrap_or_default(),
            )?;
            let thread = std::thread::Builder::new().name(format!("ferrite-io-{index}"));
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

struct Reactor<S: Service> {
    service: Arc<S>,
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    connections: HashMap<u64, Connection<S::Peer>>,
    unauthenticated: BoundedPeers<Unauthenticated>,
    next_id: u64,
    /// Connections that wait for a buffer, or whose turn was cut short.
    waiting: Vec<u64>,
    buf: Vec<u8>,
    /// Until then the thread accepts nothing.
    rests_until: Option<Instant>,
    /// Where encrypted bytes are received.
    sealed_buf: Vec<u8>,
    fabrics: Fabrics,
}

impl<S: Service> Reactor<S> {
    fn new(
        fabric: Option<FabricOptions>,
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
            fabrics: Fabrics::new(fabric, &shared.pool),
            service,
            shared,
            waker,
            epoll,
            listeners,
            connections: HashMap::new(),
            unauthenticated: BoundedPeers::new(UNAUTHENTICATED_MAX, UNAUTHENTICATED_OF_SOURCE_MAX),
            next_id: 0,
            waiting: Vec::new(),
            buf: vec![0; TURN_BYTES],
            rests_until: None,
            sealed_buf: Vec::new(),
        })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut busy_poll = BusyPoll::new(self.shared.busy_poll);
        let mut last_poll = Instant::now();
        let mut clock = self.shared.turns.clock();
        while !self.shared.stop.load(Ordering::Acquire) {
            self.poll();
            let pause = self.fabrics.pause();
            if pause != Duration::MAX {
                clock.turn(None);
            }
            let waiting = std::mem::take(&mut self.waiting);
            let wait = self.wait_for(&waiting);
            // Fabrics need polling, too, and say how often.
            let busy_poll = if pause == Duration::MAX {
                Some(&mut busy_poll)
            } else {
                None
            };
            let wait = wait.min(pause);
            clock.end();
            if let Err(error) = self.await_events(&mut events, wait, busy_poll) {
                tracing::error!("waiting for sockets failed: {error}; this server stops");
                break;
            }
            clock.begin();
            for event in &events {
                let (number, flags) = (event.data.u64(), event.flags);
                match number {
                    WAKER => self.read_inbox(&mut clock),
                    LISTENERS.. => self.accept((number - LISTENERS) as usize),
                    _ => self.serve(number, flags),
                }
                clock.turn(Some(number));
            }
            for number in waiting {
                self.serve(number, EventFlags::empty());
                clock.turn(Some(number));
            }
            if self.rests_until.is_some_and(|until| Instant::now() >= until) {
                self.rest(None);
            }
            if last_poll.elapsed() >= STALLED / 4 {
                last_poll = Instant::now();
                match self.shared.pool.free_bytes() < DATA_BYTES_MAX {
                    // They keep a buffer and send nothing, or do not take its content.
                    true => self.drop_which(Connection::is_stalled),
                    false => self.drop_which(Connection::is_stuck),
                }
            }
            self.drop_late_unauthenticated();
        }
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.drop_connection(number));
        while let Some((oldest, _)) = self.unauthenticated.oldest() {
            self.drop_unauthenticated(oldest);
        }
    }

    /// How long to wait for events, at most, while these connections wait for another turn.
    fn wait_for(&self, waiting: &[u64]) -> Duration {
        let is_cut_short = |number| self.connections.get(number).is_some_and(|it| it.is_cut_short);
        match () {
            () if waiting.iter().any(is_cut_short) => Duration::ZERO,
            () if !waiting.is_empty() => STARVED,
            () if self.rests_until.is_some() => ACCEPT_REST,
            () => IDLE,
        }
    }

    /// Waits until there are events, for `wait` at most.
    fn await_events(
        &self,
        events: &mut Vec<epoll::Event>,
        wait: Duration,
        busy_poll: Option<&mut BusyPoll>,
    ) -> io::Result<()> {
        let events = RefCell::new(events);
        let within = |wait: Duration| {
            let events = &mut *events.borrow_mut();
            let timeout = Timespec {
                tv_sec: wait.as_secs() as _,
                tv_nsec: wait.subsec_nanos() as _,
            };
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
                Err(error) if error != rustix::io::Errno::INTR => Err(error),
                _ => Ok(events.is_empty()),
            }
        };
        let Some(busy_poll) = busy_poll else {
            return Ok(within(wait).map(drop)?);
        };
        let poll_once = || match within(Duration::ZERO) {
            Ok(true) => None,
            other => Some(other),
        };
        let waited = busy_poll.wait(poll_once, || {
            let waited = within(wait);
            let has_come = matches!(waited, Ok(false));
            (waited, has_come)
        });
        Ok(waited.map(drop)?)
    }

    fn drop_which(&mut self, is_one: impl Fn(&Connection<S::Peer>) -> bool) {
        let which = self.connections.iter().filter(|(_, connection)| is_one(connection));
        let which: Vec<u64> = which.map(|(&number, _)| number).collect();
        which.into_iter().for_each(|number| self.drop_connection(number));
    }

    fn accept(&mut self, listener: usize) {
        loop {
            match self.listeners[listener].accept() {
                Ok((stream, address)) => {
                    let shared = &self.shared;
                    let is_full = shared.connections.fetch_add(1, Ordering::Relaxed) >= shared.connections_max;
                    // An unauthenticated connection that has said nothing yet gives up its place.
                    let is_refused = is_full && self.unauthenticated.remove_of_largest().is_none();
                    if is_full {
                        shared.connections.fetch_sub(1, Ordering::Relaxed);
                    }
                    if is_refused {
                        unauthenticated::refuse_full(&stream);
                        if let Some(more) = shared.refusals.admit() {
                            tracing::warn!(
                                "{address} was refused, and {more} others before it: there are {} connections",
                                shared.connections_max
                            );
                        }
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
                    // The client left at once, or the system has no resources for another: existing connections
                    // continue.
                    if let Some(more) = self.shared.refusals.admit() {
                        tracing::warn!("a connection could not be accepted, and {more} before it: {error}");
                    }
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        self.rest(Some(Instant::now() + ACCEPT_REST));
                    }
                    return;
                }
            }
        }
    }

    /// Stops accepting until then, or resumes: a listener whose connections cannot be accepted is ready all the time.
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
        let number = self.next_id;
        self.next_id += 1;
        let interest = EventFlags::IN;
        let ready = stream
            .set_nonblocking(true)
            .and_then(|()| socket::prepare(&stream))
            .and_then(|()| {
                Ok(epoll::add(
                    &self.epoll,
                    stream.as_fd(),
                    EventData::new_u64(number),
                    interest,
                )?)
            });
        if let Err(error) = ready {
            if let Some(more) = self.shared.refusals.admit() {
                tracing::warn!("{address} could not be served, and {more} others before it: {error}");
            }
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let unauthenticated = Unauthenticated::new(stream, address);
        if self
            .unauthenticated
            .insert(number, Source::of(address.ip()), unauthenticated)
            .is_some()
        {
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A turn of an unauthenticated connection: takes the next part of the handshake, and answers.
    fn meet(&mut self, number: u64) {
        let Some(unauthenticated) = self.unauthenticated.get_mut(number) else {
            return;
        };
        match unauthenticated.turn(&self.shared.policy) {
            Turn::More => {}
            Turn::Over => self.drop_unauthenticated(number),
            Turn::Admitted(admitted) => {
                if let Some(unauthenticated) = self.unauthenticated.remove(number) {
                    self.welcome(number, unauthenticated, *admitted);
                }
            }
        }
    }

    fn welcome(&mut self, number: u64, unauthenticated: Unauthenticated, admitted: Admitted) {
        let link = Link::new(number, &self.waker);
        let origin = Origin {
            address: unauthenticated.address,
            key: admitted.key,
        };
        let peer = self.service.connected(link.clone(), origin);
        if admitted.records.is_some() {
            self.sealed_buf.resize(TURN_BYTES, 0);
        }
        let connection = Connection::new(unauthenticated.stream, link, peer, admitted.records);
        self.connections.insert(number, connection);
    }

    fn drop_unauthenticated(&mut self, number: u64) {
        if self.unauthenticated.remove(number).is_some() {
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn drop_late_unauthenticated(&mut self) {
        while let Some((oldest, unauthenticated)) = self.unauthenticated.oldest()
            && unauthenticated.is_late()
        {
            self.drop_unauthenticated(oldest);
        }
    }

    fn read_inbox(&mut self, clock: &mut Clock) {
        let Inbox { accepted, pending } = self.waker.take();
        accepted
            .into_iter()
            .for_each(|(stream, address)| self.adopt(stream, address));
        for number in pending {
            self.serve(number, EventFlags::empty());
            self.drain(number);
            clock.turn(Some(number));
        }
    }

    /// Reads the arrivals of a connection, if a caller wants to know whether that was all.
    fn drain(&mut self, number: u64) {
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        let Some(requested) = connection.link.is_to_drain() else {
            return;
        };
        let has_all_come = match connection.on_fabric.is_some() {
            true => self.poll(),
            false => {
                let reads = connection.takes_more();
                let flags = if reads { EventFlags::IN } else { EventFlags::empty() };
                self.serve(number, flags);
                true
            }
        };
        if let Some(connection) = self.connections.get_mut(&number)
            && has_all_come
            && connection.is_drained()
        {
            connection.link.mark_drained(requested);
        }
    }

    /// A turn of a connection: takes what other threads send, receives if there is data, serves, sends.
    fn serve(&mut self, number: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return self.meet(number);
        };
        if connection.on_fabric.is_some() {
            return self.serve_wired(number, flags);
        }
        let mut served = if connection.link.is_closed() {
            Err(Close)
        } else {
            connection.link.take_pending(&mut connection.out);
            let pool = &self.shared.pool;
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                connection.turn(&*self.service, pool, &mut self.buf, &mut self.sealed_buf)
            } else {
                connection.serve_received(&*self.service, pool)
            }
        };
        if served.is_ok() && connection.introduction.is_some() {
            return self.introduce(number);
        }
        while served.is_ok() {
            let was_crowded = connection.is_crowded();
            match connection.send() {
                Err(_) => served = Err(Close),
                // The messages that the full queue held back can be served now.
                Ok(true) if was_crowded => served = connection.serve_received(&*self.service, &self.shared.pool),
                Ok(_) => break,
            }
        }
        if served.is_err() || connection.link.is_closed() {
            return self.drop_connection(number);
        }
        if connection.waits_for_turn() {
            self.waiting.push(number);
        }
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, connection.takes_more());
        interest.set(EventFlags::OUT, connection.has_unsent());
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
        if let Some(on_fabric) = connection.on_fabric {
            self.fabrics.forget(number, *on_fabric);
        }
        // Closing the socket ends the system's interest in it.
        drop((connection.out, connection.stream));
        self.service.disconnected(connection.peer);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

//! The requesting end: one queue pair with verbs, for hosts without RDMA hardware.
//!
//! Contents: the queue pair, its socket, and waiting (this file); blocking verbs (`verbs`).
//!
//! An initiator has no thread. Its caller drives it: during a call, packets come and go, and its timers advance. That
//! is enough, since no peer sends it requests, and saves two thread switches for each verb.
//!
//! Invariants: its socket talks to the server alone, from a port of its own, so server and client may share a host.
//! Work completes in the order in which it was posted. After a failure all further work fails, and a new initiator is
//! needed.

mod verbs;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_roce::endpoint::{Connection, Endpoint, Taken};
use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part, Received};
use ferrite_roce::requester::{self, Failure, Outcome, PostError, Request};
use ferrite_roce::responder;
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::Ids;
use ferrite_roce::wire::{Psn, Qpn};
use ferrite_transport::busy_poll::{BUSY_POLL, BusyPoll};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags};

use crate::clock::Clock;
use crate::error::Error;
use crate::path;
use crate::port::{self, Port};
use crate::qpn::{random, random_psn};
use crate::service::{Peer, QueuePair};

/// How often in a row the kernel reports that no process listens before the initiator believes it.
const REFUSALS: u32 = 3;

/// Options of an initiator.
#[derive(Debug, Clone)]
pub struct Options {
    /// The largest payload; by default the largest that the path takes.
    pub mtu: Option<Mtu>,
    /// Packets under way at a time.
    pub window_packets: u32,
    /// The time without a response after which packets are resent.
    pub retry_after: Duration,
    /// How often in a row that may happen.
    pub retries: u32,
    /// How long a blocking call may take.
    pub deadline: Duration,
    /// How long to poll for responses before sleeping.
    pub busy_poll: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mtu: None,
            window_packets: 128,
            retry_after: Duration::from_millis(67),
            retries: 7,
            deadline: Duration::from_secs(30),
            busy_poll: BUSY_POLL,
        }
    }
}

/// Counters of an initiator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets resent.
    pub sent_again: u64,
    /// Timeouts without a response.
    pub timeouts: u64,
    /// Times that the server was not ready (RNR).
    pub not_ready: u64,
}

/// Identifies posted work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Peers may send no requests.
struct NoMemory;

impl Memory for NoMemory {
    fn begin(&mut self, _message: &Message) -> Result<Delivery, Fault> {
        Err(Fault::Access)
    }

    fn write(&mut self, _message: &Message, _part: &Part<'_>) -> Result<(), Fault> {
        Err(Fault::Access)
    }

    fn write_whole(&mut self, _message: &Message, _data: &[u8], _immediate: Option<u32>) -> Result<(), Fault> {
        Err(Fault::Access)
    }

    fn abandon(&mut self, _message: &Message, _arrived_bytes: u32) {}

    fn may_read(&mut self, _message: &Message) -> Result<(), Fault> {
        Err(Fault::Access)
    }

    fn read(&mut self, _message: &Message, _offset_bytes: u32, _into: &mut [u8]) -> Result<(), Fault> {
        Err(Fault::Access)
    }

    fn fetch_add(&mut self, _qpn: Qpn, _key: u32, _at: u64, _add: u64) -> Result<u64, Fault> {
        Err(Fault::Access)
    }

    fn compare_swap(&mut self, _qpn: Qpn, _key: u32, _at: u64, _compare: u64, _swap: u64) -> Result<u64, Fault> {
        Err(Fault::Access)
    }

    fn receive(&mut self, _qpn: Qpn, _received: &Received<'_>) -> Result<(), Fault> {
        Err(Fault::Access)
    }
}

/// A queue pair that sends requests.
pub struct Initiator {
    server: SocketAddr,
    options: Options,
    port: Port,
    socket: Arc<OwnedFd>,
    endpoint: Endpoint,
    qpn: Qpn,
    psn: Psn,
    mtu: Mtu,
    clock: Clock,
    busy_poll: BusyPoll,
    next: u64,
    done: FxHashMap<u64, Result<Outcome, Failure>>,
    datagram: Vec<u8>,
}

impl std::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Initiator")
            .field("server", &self.server)
            .field("qpn", &self.qpn)
            .field("mtu", &self.mtu)
            .finish_non_exhaustive()
    }
}

impl Initiator {
    /// An initiator for an adapter at this address, not yet connected. It sends nothing.
    ///
    /// # Errors
    /// `Socket` if no route exists, or no socket is available.
    pub fn new(server: SocketAddr, options: Options) -> Result<Initiator, Error> {
        let failed = |source| Error::Socket { peer: server, source };
        let path = path::to(server).map_err(failed)?;
        let mut local = SocketAddr::new(path.local, 0);
        if let (SocketAddr::V6(local), SocketAddr::V6(server)) = (&mut local, &server) {
            local.set_scope_id(server.scope_id());
        }
        let port = Port::to(local, server).map_err(failed)?;
        let mut endpoint = Endpoint::new(Ids::Zero, random());
        Ok(Initiator {
            server,
            socket: port.socket(),
            port,
            qpn: endpoint.allocate(),
            endpoint,
            psn: random_psn(),
            mtu: options.mtu.unwrap_or(path.mtu).min(path.mtu),
            clock: Clock::new(),
            busy_poll: BusyPoll::new(options.busy_poll),
            options,
            next: 0,
            done: FxHashMap::default(),
            datagram: Vec::new(),
        })
    }

    /// Its side of the connection, for the adapter.
    pub fn offer(&self) -> Peer {
        Peer {
            address: self.port.local(),
            qpn: self.qpn,
            psn: self.psn,
            mtu: self.mtu,
            ids: Ids::Zero,
            local: Some(self.server.ip()),
        }
    }

    /// Connects it to the adapter's reply to [`Initiator::offer`]. Verbs may be posted from then on.
    pub fn connect(&mut self, queue_pair: &QueuePair) {
        self.mtu = self.mtu.min(queue_pair.mtu);
        let mut requester = requester::Config::new(queue_pair.qpn, self.mtu, self.psn);
        requester.window_packets = self.options.window_packets.max(1);
        requester.timeout_ns = self.options.retry_after.as_nanos().max(1) as u64;
        requester.retry_count = self.options.retries;
        let responder = responder::Config::new(self.qpn, queue_pair.qpn, self.mtu, queue_pair.psn);
        // A second call has no effect.
        let _ = self.endpoint.connect(Connection {
            local: self.port.local(),
            peer: self.server,
            ids: Ids::Zero,
            requester,
            responder,
        });
    }

    /// How often packets are resent from now on, without a response.
    pub fn set_retries(&mut self, retries: u32) {
        self.options.retries = retries;
        self.endpoint.set_retry_count(self.qpn, retries);
    }

    /// The adapter's address.
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// The payload of full packets.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Whether it accepts no more work.
    pub fn is_broken(&self) -> bool {
        self.endpoint
            .get(self.qpn)
            .is_none_or(|(requester, _)| requester.is_broken())
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        let counters = self.endpoint.get(self.qpn).map(|(requester, _)| requester.counters());
        let counters = counters.unwrap_or_default();
        Counters {
            sent: counters.sent,
            received: self.port.counters().received,
            sent_again: counters.sent_again,
            timeouts: counters.timeouts,
            not_ready: counters.not_ready,
        }
    }

    /// Accepts work, and sends as much of it as may be under way. Its outcome is kept until [`Initiator::poll`] or
    /// [`Initiator::wait`] takes it.
    ///
    /// # Errors
    /// `TooLong`; `Ended` if it accepts no more work. Blocks while too much is queued.
    pub fn post(&mut self, request: Request) -> Result<Ticket, Error> {
        let id = self.next;
        let deadline = Instant::now() + self.options.deadline;
        while self.endpoint.may_post(self.qpn, &request) == Err(PostError::Full) {
            self.turn(Some(deadline))?;
        }
        self.endpoint.post(self.qpn, id, request).map_err(|error| match error {
            PostError::Broken => self.why_broken(),
            error => Error::of_post(error),
        })?;
        self.next += 1;
        self.transmit();
        Ok(Ticket(id))
    }

    /// The outcome of work, if it is finished. Does not wait.
    pub fn poll(&mut self, ticket: Ticket) -> Option<Result<Outcome, Error>> {
        if !self.done.contains_key(&ticket.0) {
            self.receive();
            self.pass_time();
            self.transmit();
        }
        let result = self.done.remove(&ticket.0)?;
        Some(result.map_err(|failure| self.error(failure)))
    }

    /// Waits for work.
    ///
    /// # Errors
    /// The error of the work. After `Deadline` the queue pair is closed, since the outcome of the work would stay
    /// unknown.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Outcome, Error> {
        let deadline = Instant::now() + self.options.deadline;
        loop {
            if let Some(result) = self.done.remove(&ticket.0) {
                return result.map_err(|failure| self.error(failure));
            }
            if ticket.0 >= self.next {
                return Err(Error::Ended);
            }
            self.turn(Some(deadline))?;
        }
    }

    /// Makes progress, and sleeps if there is nothing to do.
    fn turn(&mut self, deadline: Option<Instant>) -> Result<(), Error> {
        self.pass_time();
        self.transmit();
        if self.receive() {
            self.transmit();
            return Ok(());
        }
        if self.is_broken() {
            self.collect();
            return Ok(());
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            self.close();
            return Err(Error::Deadline);
        }
        self.sleep(deadline);
        if self.port.refusals() >= REFUSALS {
            self.close();
        } else if self.port.has_arrived() && self.receive() {
            // A caller waiting for this need not wait another turn.
            self.transmit();
        }
        Ok(())
    }

    fn sleep(&mut self, deadline: Option<Instant>) {
        let timeout_ns = self.endpoint.poll_timeout_ns();
        let clock = self.clock;
        let wanted = match self.port.is_blocked() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let (port, socket) = (&mut self.port, &self.socket);
        self.busy_poll.wait(
            || {
                let is_due = timeout_ns.is_some_and(|at_ns| clock.now_ns() >= at_ns);
                (port.poll_a_while() || is_due).then_some(())
            },
            || {
                let until_timer = timeout_ns.map(|at_ns| at_ns.saturating_sub(clock.now_ns()));
                let until_end = deadline.map(|at| at.saturating_duration_since(Instant::now()).as_nanos() as u64);
                let most_ns = until_timer.into_iter().chain(until_end).min();
                let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), wanted)];
                ((), port::sleep(&mut fds, most_ns))
            },
        );
    }

    /// Processes received packets; returns whether there were any.
    fn receive(&mut self) -> bool {
        if !self.port.poll() {
            return false;
        }
        let now_ns = self.clock.now_ns();
        self.port.take(|flow, datagram| {
            let taken = self.endpoint.receive(now_ns, flow, datagram, &mut NoMemory);
            debug_assert!(!matches!(taken, Ok(Taken::Management { .. })) || datagram.len() > 256);
        });
        self.collect();
        true
    }

    fn pass_time(&mut self) {
        if self.endpoint.poll_timeout_ns().is_some() {
            self.endpoint.handle_timeout(self.clock.now_ns());
            self.collect();
        }
    }

    fn collect(&mut self) {
        while let Some(completion) = self.endpoint.poll_completion(self.qpn) {
            self.done.insert(completion.id, completion.result);
        }
    }

    fn transmit(&mut self) {
        self.port.flush();
        let now_ns = self.clock.now_ns();
        while !self.port.is_blocked() {
            while self.port.has_space() {
                match self.endpoint.poll_transmit(now_ns, &mut NoMemory, &mut self.datagram) {
                    Some(flow) => self.port.push(flow, &mut self.datagram),
                    None => return self.port.flush(),
                }
            }
            self.port.flush();
        }
    }

    /// Ends the queue pair here: unacknowledged work fails.
    fn close(&mut self) {
        for completion in self.endpoint.remove(self.qpn, &mut NoMemory) {
            self.done.insert(completion.id, completion.result);
        }
    }

    fn why_broken(&self) -> Error {
        match self.port.refusals() >= REFUSALS {
            true => Error::Refused { peer: self.server },
            false => Error::Ended,
        }
    }

    fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Flushed => self.why_broken(),
            failure => Error::of(failure, self.server),
        }
    }
}

//! Connections by rdma_cm: requests, acceptance, and how both ends learn of the end.
//!
//! Contents: the state of each connection, the program's calls, and timers (this file); incoming messages (`hear`).
//! Management datagrams go in and out; [`crate::endpoint`] carries them.
//!
//! ```text
//!  active    REQ --> ... <-- REP    RTU --> established    DREQ --> <-- DREP
//!  passive   --> REQ   REP -->     --> RTU  established    --> DREQ   DREP -->
//! ```
//!
//! Invariants:
//!
//! * A message that expects a reply is resent until the reply comes, or until the retries run out. A reply is kept for
//!   a while after the end, and sent again if the request comes again.
//! * A retransmitted REQ never makes a second connection.
//! * There are at most [`Config::connections_max`] connections, ended ones that are still remembered included.

mod receive;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use crate::wire::cm::{Mtu, Names, REP_PRIVATE_BYTES, REQ_PRIVATE_BYTES, Reason, Rej, Rep, Repr, Req};
use crate::wire::{DEFAULT_PARTITION, Error, Psn, Qpn, mad, private};

/// Private data that a program may have in a REQ.
pub const PRIVATE_BYTES_MAX: usize = REQ_PRIVATE_BYTES - private::BYTES;

/// Datagrams queued for sending.
const OUTGOING_MAX: usize = 1_024;

/// How connections are managed.
#[derive(Debug, Clone)]
pub struct Config {
    /// Identifies this host. Any number that no other host has.
    pub guid: u64,
    /// The first name of a connection: one that differs after each start.
    pub seed: u32,
    /// How long a reply may take.
    pub response_timeout_ns: u64,
    /// How often a message is resent.
    pub retries: u32,
    /// How long a program may take to accept.
    pub accept_timeout_ns: u64,
    /// How long an ended connection is remembered.
    pub time_wait_ns: u64,
    /// The most connections.
    pub connections_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            guid: 0,
            seed: 1,
            response_timeout_ns: 500_000_000,
            retries: 10,
            accept_timeout_ns: 10_000_000_000,
            time_wait_ns: 10_000_000_000,
            connections_max: 4_096,
        }
    }
}

/// This end's name for a connection.
pub type Id = u32;

/// A program's offer for its queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer<'d> {
    /// The queue pair.
    pub qpn: Qpn,
    /// Number of the first packet that it expects, at which the other end shall begin.
    pub psn: Psn,
    /// READs and atomics that it answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that it has under way at a time.
    pub initiator_depth: u8,
    /// How many RNR NAKs in a row the other end accepts: 7 for any number.
    pub rnr_retry_count: u8,
    /// For the other program.
    pub private: &'d [u8],
}

/// The target of a connection request, and its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// The peer's port, as in [`private::service_of_port`].
    pub port: u16,
    /// The path MTU.
    pub mtu: Mtu,
    /// How often the other end resends a packet.
    pub retry_count: u8,
    /// Code of the time after which it does so: 4.096 µs · 2^code.
    pub ack_timeout: u8,
}

/// An event of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer requests one: [`Manager::accept`] or [`Manager::reject`].
    Requested {
        /// The connection.
        id: Id,
        /// The peer.
        peer: IpAddr,
        /// The REQ; its path MTU is a valid one.
        request: Box<Req>,
    },
    /// The other end accepted; the queue pair may be used.
    Connected {
        /// The connection.
        id: Id,
        /// The REP.
        reply: Box<Rep>,
    },
    /// The other end knows of the acceptance.
    Established {
        /// The connection.
        id: Id,
    },
    /// The other end refused, or gave up waiting.
    Rejected {
        /// The connection, which is no more.
        id: Id,
        /// The REJ.
        rejection: Box<Rej>,
    },
    /// The other end did not reply, or the program took too long.
    TimedOut {
        /// The connection, which is no more.
        id: Id,
    },
    /// It was ended by either end. The queue pair is to be removed.
    Closed {
        /// The connection.
        id: Id,
    },
}

/// Why a program cannot do this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// No such connection, or not in the state for this.
    #[error("the connection is not in a state for this")]
    State,
    /// Too many connections.
    #[error("too many connections")]
    Full,
    /// Too much private data.
    #[error("the private data are too long")]
    TooLong,
}

/// Why a datagram was ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// Not a message.
    #[error("not a message: {0}")]
    Malformed(Error),
    /// Of an unknown connection, or of one with another peer.
    #[error("no such connection")]
    Unknown,
    /// Out of turn.
    #[error("out of turn")]
    State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    RequestSent,
    RequestReceived,
    ReplySent,
    Established,
    DisconnectSent,
    Ended,
}

#[derive(Debug)]
struct Connection {
    state: State,
    local: SocketAddr,
    peer: IpAddr,
    remote: u32,
    remote_qpn: Qpn,
    transaction: u64,
    /// The message to resend: at the deadline, or as the reply to a retransmitted request.
    message: Option<[u8; mad::BYTES]>,
    retries: u32,
    deadline_ns: Option<u64>,
}

/// All connections of a host.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    services: HashSet<u64>,
    connections: HashMap<Id, Connection>,
    /// By the name that the other end gave.
    by_remote: HashMap<(IpAddr, u32), Id>,
    timers: BTreeSet<(u64, Id)>,
    next_id: Id,
    outgoing: VecDeque<(SocketAddr, IpAddr, [u8; mad::BYTES])>,
    events: VecDeque<Event>,
}

/// An address in InfiniBand's form.
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The code of a time: the smallest that is long enough.
fn timeout_code(wait_ns: u64) -> u8 {
    (0..31).find(|code| timeout_ns(*code) >= wait_ns).unwrap_or(31)
}

/// 4.096 µs · 2^code.
fn timeout_ns(code: u8) -> u64 {
    4_096 << (code & 31)
}

/// `data`, padded with zeros.
fn padded<const N: usize>(data: &[u8]) -> Result<[u8; N], CmError> {
    let mut bytes = [0; N];
    bytes
        .get_mut(..data.len())
        .ok_or(CmError::TooLong)?
        .copy_from_slice(data);
    Ok(bytes)
}

impl Manager {
    /// No connections.
    pub fn new(config: Config) -> Manager {
        Manager {
            next_id: config.seed.max(1),
            config,
            services: HashSet::new(),
            connections: HashMap::new(),
            by_remote: HashMap::new(),
            timers: BTreeSet::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Accepts requests for this port as events; those for others are refused.
    pub fn listen(&mut self, port: u16) {
        self.services.insert(private::service_of_port(port));
    }

    /// Requests a connection. [`Event::Connected`], `Rejected` or `TimedOut` follows.
    ///
    /// # Errors
    /// `Full`, `TooLong`.
    pub fn connect(&mut self, now_ns: u64, target: &Target, offer: &Offer<'_>) -> Result<Id, CmError> {
        let mut private_data = [0; REQ_PRIVATE_BYTES];
        let (header, data) = private_data.split_at_mut(private::BYTES);
        data.copy_from_slice(&padded::<PRIVATE_BYTES_MAX>(offer.private)?);
        if let Some(header) = header.first_chunk_mut() {
            let addresses = private::Repr {
                source_port: target.local.port(),
                source: target.local.ip(),
                destination: target.peer,
            };
            addresses.emit(header);
        }
        let id = self
            .add(State::RequestSent, target.local, target.peer)
            .ok_or(CmError::Full)?;
        let code = timeout_code(self.config.response_timeout_ns);
        let request = Repr::Req(Box::new(Req {
            local: id,
            service: private::service_of_port(target.port),
            guid: self.config.guid,
            qpn: offer.qpn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            remote_timeout: code,
            transport: 0,
            flow_control: false,
            psn: offer.psn,
            local_timeout: code,
            retry_count: target.retry_count,
            partition: DEFAULT_PARTITION,
            mtu: target.mtu.code(),
            rnr_retry_count: offer.rnr_retry_count,
            cm_retries: self.config.retries.min(15) as u8,
            local_gid: gid(target.local.ip()),
            remote_gid: gid(target.peer),
            hop_limit: 64,
            ack_timeout: target.ack_timeout,
            private: private_data,
        }));
        // The names of one end distinguish its transactions.
        let transaction = u64::from(id);
        self.say(id, &request, transaction, now_ns);
        Ok(id)
    }

    /// Accepts a request. The queue pair must exist already: packets may come before [`Event::Established`] does.
    ///
    /// # Errors
    /// `State`, `TooLong`.
    pub fn accept(&mut self, now_ns: u64, id: Id, offer: &Offer<'_>) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::RequestReceived])?;
        let reply = Repr::Rep(Box::new(Rep {
            local: id,
            remote: connection.remote,
            qpn: offer.qpn,
            psn: offer.psn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            ack_delay: 15,
            flow_control: false,
            rnr_retry_count: offer.rnr_retry_count,
            guid: self.config.guid,
            private: padded::<REP_PRIVATE_BYTES>(offer.private)?,
        }));
        self.enter(id, State::ReplySent);
        self.answer_and_wait(id, &reply, now_ns);
        Ok(())
    }

    /// Refuses a request.
    ///
    /// # Errors
    /// `State`, `TooLong`.
    pub fn reject(&mut self, now_ns: u64, id: Id, reason: Reason, data: &[u8]) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::RequestReceived])?;
        let rejection = Repr::Rej(Box::new(Rej {
            local: id,
            remote: connection.remote,
            refused: 0,
            reason,
            guid: None,
            private: padded(data)?,
        }));
        self.end_with(id, &rejection, now_ns);
        Ok(())
    }

    /// Ends a connection. [`Event::Closed`] follows, whether the other end replies or not.
    ///
    /// # Errors
    /// `State`.
    pub fn disconnect(&mut self, now_ns: u64, id: Id) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::Established, State::ReplySent])?;
        let farewell = Repr::Dreq {
            names: Names {
                local: id,
                remote: connection.remote,
            },
            remote_qpn: connection.remote_qpn,
        };
        // Not one of this end's earlier transactions.
        let transaction = u64::from(id) | 1 << 32;
        self.enter(id, State::DisconnectSent);
        self.say(id, &farewell, transaction, now_ns);
        Ok(())
    }

    /// The first packet of the connection arrived: the other end has the REP, though its RTU was lost.
    pub fn data_arrived(&mut self, id: Id) {
        if self.in_state(id, &[State::ReplySent]).is_ok() {
            self.established(id);
            self.events.push_back(Event::Established { id });
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next datagram to be sent: its source and its destination.
    pub fn poll_transmit(&mut self) -> Option<(SocketAddr, IpAddr, [u8; mad::BYTES])> {
        self.outgoing.pop_front()
    }

    /// When to call [`Manager::handle_timeout`].
    pub fn poll_timeout_ns(&self) -> Option<u64> {
        self.timers.first().map(|(at_ns, _)| *at_ns)
    }

    /// Connections, remembered ones included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether no connection exists.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some(&(at_ns, id)) = self.timers.first()
            && at_ns <= now_ns
        {
            self.timers.pop_first();
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            connection.deadline_ns = None;
            let state = connection.state;
            match state {
                State::RequestSent | State::ReplySent | State::DisconnectSent
                    if connection.retries < self.config.retries =>
                {
                    connection.retries += 1;
                    self.repeat(id);
                    self.wait_until(id, now_ns.saturating_add(self.config.response_timeout_ns));
                }
                State::DisconnectSent => {
                    self.events.push_back(Event::Closed { id });
                    self.end(id, now_ns);
                }
                State::RequestSent | State::RequestReceived | State::ReplySent => {
                    self.events.push_back(Event::TimedOut { id });
                    let rejection = Repr::Rej(Box::new(Rej {
                        local: id,
                        remote: connection.remote,
                        refused: u8::from(state == State::ReplySent),
                        reason: Reason::TIMEOUT,
                        guid: Some(self.config.guid),
                        private: [0; crate::wire::cm::REJ_PRIVATE_BYTES],
                    }));
                    self.end_with(id, &rejection, now_ns);
                }
                State::Established => {}
                State::Ended => self.forget(id),
            }
        }
    }

    fn in_state(&self, id: Id, states: &[State]) -> Result<&Connection, CmError> {
        let connection = self.connections.get(&id).ok_or(CmError::State)?;
        states
            .contains(&connection.state)
            .then_some(connection)
            .ok_or(CmError::State)
    }

    /// A new connection, if the limit allows.
    fn add(&mut self, state: State, local: SocketAddr, peer: IpAddr) -> Option<Id> {
        if self.connections.len() >= self.config.connections_max {
            return None;
        }
        while self.next_id == 0 || self.connections.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let connection = Connection {
            state,
            local,
            peer,
            remote: 0,
            remote_qpn: 0,
            transaction: 0,
            message: None,
            retries: 0,
            deadline_ns: None,
        };
        self.connections.insert(id, connection);
        Some(id)
    }

    fn enter(&mut self, id: Id, state: State) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = state;
            connection.retries = 0;
        }
    }

    /// Only the end remains to wait for. The last message is kept: the third of the handshake may get lost.
    fn established(&mut self, id: Id) {
        self.enter(id, State::Established);
        self.stop_waiting(id);
    }

    /// Sends a message that expects a reply.
    fn say(&mut self, id: Id, message: &Repr, transaction: u64, now_ns: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.transaction = transaction;
        }
        self.answer_and_wait(id, message, now_ns);
    }

    /// Sends a message of the connection's transaction that expects a reply.
    fn answer_and_wait(&mut self, id: Id, message: &Repr, now_ns: u64) {
        self.answer(id, message);
        self.wait_until(id, now_ns.saturating_add(self.config.response_timeout_ns));
    }

    /// Sends a message of the connection's transaction, and keeps it.
    fn answer(&mut self, id: Id, message: &Repr) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.message = Some(message.emit(connection.transaction));
            self.repeat(id);
        }
    }

    /// Queues a datagram. If too many are queued it is dropped, as the network may drop any.
    fn send(&mut self, local: SocketAddr, peer: IpAddr, datagram: [u8; mad::BYTES]) {
        if self.outgoing.len() < OUTGOING_MAX {
            self.outgoing.push_back((local, peer, datagram));
        }
    }

    /// Resends the kept message.
    fn repeat(&mut self, id: Id) {
        if let Some(connection) = self.connections.get(&id)
            && let Some(message) = connection.message
        {
            self.send(connection.local, connection.peer, message);
        }
    }

    /// The last message of a connection.
    fn end_with(&mut self, id: Id, message: &Repr, now_ns: u64) {
        self.answer(id, message);
        self.end(id, now_ns);
    }

    /// Ends the connection, and remembers it for a while.
    fn end(&mut self, id: Id, now_ns: u64) {
        self.enter(id, State::Ended);
        self.wait_until(id, now_ns.saturating_add(self.config.time_wait_ns));
    }

    fn forget(&mut self, id: Id) {
        self.stop_waiting(id);
        if let Some(connection) = self.connections.remove(&id) {
            let name = (connection.peer, connection.remote);
            if self.by_remote.get(&name) == Some(&id) {
                self.by_remote.remove(&name);
            }
        }
    }

    fn stop_waiting(&mut self, id: Id) {
        if let Some(connection) = self.connections.get_mut(&id)
            && let Some(at_ns) = connection.deadline_ns.take()
        {
            self.timers.remove(&(at_ns, id));
        }
    }

    fn wait_until(&mut self, id: Id, at_ns: u64) {
        self.stop_waiting(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.deadline_ns = Some(at_ns);
            self.timers.insert((at_ns, id));
        }
    }
}

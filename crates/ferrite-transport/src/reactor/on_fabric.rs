//! Connections on a fabric, as the thread that owns them sees them.
//!
//! Contents: [`Fabrics`], the endpoints of a thread; [`OnFabric`], the additional state of a connection; in [`turn`]
//! the thread's work with them. Data of large writes is fetched from the client's memory into a buffer, and served on
//! arrival; data of large reads is written to the place that the client names, and the reply follows once it has
//! arrived.
//!
//! Invariants: memory that a client names lies in the region that it introduced. A buffer in a provider's use belongs
//! to the endpoint, also after its connection is gone. A client has at most [`BULK_MAX`] pieces of bulk data in flight.

mod turn;

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ferrite_buffers::{BUFFER_BYTES_MAX, Buffer, Pool};

use super::turns::TurnEnd;
use super::{Close, Data, FabricOptions, QUEUED_BYTES_MAX, Served, Service};
use crate::FabricError;
use crate::fabric::channel::{Channel, channel_of};
use crate::fabric::{
    DESCRIPTOR_BYTES, Descriptor, Introduction, NAP, RECEIVE_DEPTH, RINGS_AFTER, Reply, lengths, message_bytes, pause,
    random,
};
use crate::frame::PREFIX_BYTES;
use crate::ofi::{Completion, Endpoint, Guard, Kind, Provider, Reach, Remote};
use crate::send_queue::{Next, SendQueue};

/// Clients of one endpoint.
const CLIENTS_MAX: usize = 256;
/// Pieces of bulk data in flight for one client.
const BULK_MAX: usize = 8;
/// Requests of one client that have named a place for data of their replies. Beyond it, data of the oldest travels as
/// small data does. Requests that were answered without using their place are forgotten in this way.
const LANDINGS_MAX: usize = 64;
/// Less data of a reply travels with it: mostly the end of a file. (shm never reports that it has written zero
/// bytes.)
const APART_BYTES_MIN: usize = 2 << 10;
/// Polls of the providers that find nothing before the thread looks at sockets, and polls in all.
const POLLS: u32 = 16;
/// See [`POLLS`].
const POLLS_MAX: u32 = 256;
/// How long a provider may be busy, or connecting to a client, when it should move bulk data, and how long a client may
/// take to let it move. Over shm no error reports that the client does not have the memory that it has named, or is
/// gone.
const UNMOVED_MAX: Duration = Duration::from_secs(10);
/// A connection with nothing to serve keeps no more memory than this.
const KEPT_BYTES: usize = 16 << 10;
/// The share of the pool for clients' messages at one endpoint: 1 / so much.
const SHARE: usize = 2;
/// Buffers for messages are taken in blocks: 1 / so much of the pool.
const BLOCKS: usize = 4;

/// The state of a connection on a fabric.
pub(super) struct OnFabric {
    end: usize,
    channel: Channel,
    region: Remote,
    region_bytes: u64,
    /// The places for data of replies, by request.
    landings: VecDeque<([u8; 8], Descriptor)>,
    /// Pieces of bulk data in flight.
    bulk: usize,
    /// A reply whose data the provider has not taken yet.
    unput: Option<(Descriptor, Vec<u8>, Buffer)>,
    /// When a piece of bulk data last began or ended.
    moved: Instant,
    /// Since when the provider takes no bulk data from or to this client.
    unmoved: Option<Instant>,
    /// Messages that were received and not served.
    unserved: u32,
    heard: Instant,
}

impl OnFabric {
    /// Remembers the place for data of a request's reply; if there are too many, forgets the oldest.
    fn note_landing(&mut self, id: [u8; 8], place: Descriptor) {
        if self.landings.len() >= LANDINGS_MAX {
            self.landings.pop_front();
        }
        self.landings.push_back((id, place));
    }

    pub(super) fn takes_bulk(&self) -> bool {
        self.bulk < BULK_MAX
    }

    fn begins_bulk(&mut self) {
        (self.bulk, self.moved, self.unmoved) = (self.bulk + 1, Instant::now(), None);
    }

    fn ends_bulk(&mut self) {
        (self.bulk, self.moved) = (self.bulk - 1, Instant::now());
    }

    /// Whether it has bulk data in flight that has not moved for so long.
    pub(super) fn is_stalled(&self, limit: Duration) -> bool {
        self.bulk > 0 && self.moved.elapsed() >= limit
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.is_stalled(UNMOVED_MAX)
    }

    /// Notes that the provider is busy, so that bulk data must be retried later.
    fn is_busy(&mut self) -> Result<(), Close> {
        match self.unmoved.get_or_insert_with(Instant::now).elapsed() < UNMOVED_MAX {
            true => Ok(()),
            false => Err(Close),
        }
    }

    /// Parses the first frame of a stream. `None` if it is not complete.
    fn frame<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<Frame<'b>>, Close> {
        let Some((lengths, is_apart)) = lengths(bytes).map_err(|_| Close)? else {
            return Ok(None);
        };
        let tail = match is_apart {
            true => DESCRIPTOR_BYTES,
            false => lengths.data_bytes,
        };
        let len = PREFIX_BYTES + lengths.body_bytes + tail;
        let Some(bytes) = bytes.get(PREFIX_BYTES..len) else {
            return Ok(None);
        };
        let (body, tail) = bytes.split_at(lengths.body_bytes);
        let apart = match is_apart {
            true => Some(Descriptor::decode(tail, self.region_bytes).ok_or(Close)?),
            false => None,
        };
        if apart.is_some_and(|place| lengths.data_bytes > 0 && place.len_bytes as usize != lengths.data_bytes) {
            return Err(Close);
        }
        Ok(Some(Frame {
            len,
            body,
            data_bytes: lengths.data_bytes,
            data: if is_apart { &[] } else { tail },
            apart,
        }))
    }

    /// The place for the data of this reply, if its request named one.
    fn landing(&mut self, frame: &[u8]) -> Option<Descriptor> {
        let id = frame.get(PREFIX_BYTES..)?.first_chunk()?;
        let index = self.landings.iter().position(|(landing, _)| landing == id)?;
        self.landings.remove(index).map(|(_, place)| place)
    }

    fn at(&self, place: Descriptor) -> Remote {
        Remote {
            address: self.region.address.wrapping_add(place.offset),
            key: self.region.key,
        }
    }
}

struct Frame<'b> {
    len: usize,
    body: &'b [u8],
    data_bytes: usize,
    data: &'b [u8],
    apart: Option<Descriptor>,
}

/// Bulk data in flight.
enum Pending {
    /// Of a request with this body.
    Fetched(Vec<u8>),
    /// Of a reply with this beginning: prefix and body.
    Put(Vec<u8>),
}

struct End {
    endpoint: Endpoint,
    /// Over shm.
    guard: Option<Guard>,
    clients: usize,
    /// Buffers for messages. They are kept, and taken in blocks: scattered ones would keep the pool from having large
    /// buffers as long as there are clients.
    receive_buffers: usize,
    /// Those posted to the provider.
    posted: usize,
    /// Unused ones.
    spare: Vec<Buffer>,
    done: Vec<Completion>,
}

impl End {
    /// Whether a client has died in it, so that it must not be used any more.
    fn is_spoilt(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_spoilt)
    }

    fn receive_bytes(&self) -> usize {
        message_bytes(self.endpoint.inject_bytes())
    }

    /// Takes buffers for the messages of so many clients. False if the pool has none now, or they exceed their share.
    fn reserve(&mut self, clients: usize, pool: &Pool) -> bool {
        let receive_bytes = self.receive_bytes();
        let block_bytes = (pool.len_bytes() / BLOCKS).clamp(RECEIVE_DEPTH * receive_bytes, BUFFER_BYTES_MAX);
        let block_bytes = 1 << block_bytes.ilog2();
        while self.receive_buffers < clients * RECEIVE_DEPTH {
            if self.receive_buffers * receive_bytes + block_bytes > pool.len_bytes() / SHARE {
                return false;
            }
            let Some(block) = pool.take(block_bytes) else {
                return false;
            };
            let parts = block.split(receive_bytes);
            self.receive_buffers += parts.len();
            self.spare.extend(parts);
        }
        true
    }

    /// Gives the provider as many buffers for messages as all clients together may need.
    fn refill(&mut self) -> Result<(), FabricError> {
        let receive_bytes = self.receive_bytes();
        while self.posted < self.clients * RECEIVE_DEPTH {
            let Some(mut buffer) = self.spare.pop() else {
                return Ok(());
            };
            buffer.set_len(receive_bytes);
            if let Some(buffer) = self.endpoint.receive(buffer)? {
                self.spare.push(buffer);
                return Ok(());
            }
            self.posted += 1;
        }
        Ok(())
    }
}

/// See the head of this module.
pub(super) struct Fabrics {
    options: Option<FabricOptions>,
    pool: Pool,
    /// Connections whose data could not be sent yet.
    blocked: Vec<u64>,
    ends: Vec<End>,
    /// Bulk data in flight, by tag, each with its connection.
    pending: HashMap<u64, (u64, Pending)>,
    next_tag: u64,
    /// Connections by the number in their messages, each with its endpoint.
    by_channel: HashMap<u64, (u64, usize)>,
    heard: Instant,
}

/// Something for a connection to do.
pub(super) enum Event {
    /// A message has come to an endpoint.
    Message {
        connection: u64,
        end: usize,
        message: Buffer,
    },
    /// A request's data has arrived.
    Fetched {
        connection: u64,
        body: Vec<u8>,
        data: Buffer,
    },
    /// A reply's data has arrived at its place.
    Put { connection: u64, head: Vec<u8> },
    /// The bulk data of this connection cannot be moved.
    Failed { connection: u64 },
}

impl Fabrics {
    pub(super) fn new(options: Option<FabricOptions>, pool: &Pool) -> Fabrics {
        Fabrics {
            options,
            pool: pool.clone(),
            blocked: Vec::new(),
            ends: Vec::new(),
            pending: HashMap::new(),
            next_tag: 0,
            by_channel: HashMap::new(),
            heard: Instant::now(),
        }
    }

    fn is_used(&self) -> bool {
        !self.by_channel.is_empty() || !self.pending.is_empty()
    }

    /// How long to sleep before the next poll.
    pub(super) fn pause(&self) -> Duration {
        let Some(options) = self.options.as_ref().filter(|_| self.is_used()) else {
            return Duration::MAX;
        };
        let pause = pause(self.heard.elapsed(), options.busy_poll);
        match self.pending.is_empty() && self.blocked.is_empty() {
            true => pause,
            // Providers that move data themselves need their turns for it.
            false => pause.min(NAP),
        }
    }

    /// Handles a client's request to move to a fabric.
    pub(super) fn introduce(
        &mut self,
        connection: u64,
        stream: &TcpStream,
        body: &[u8],
    ) -> (Reply, Option<Box<OnFabric>>) {
        match self.admit(connection, stream, body) {
            Ok((reply, on_fabric)) => (reply, Some(Box::new(on_fabric))),
            Err(why) => (Reply::Refused(why), None),
        }
    }

    fn admit(&mut self, connection: u64, stream: &TcpStream, body: &[u8]) -> Result<(Reply, OnFabric), String> {
        let said = Introduction::decode(body)?;
        let options = self.options.as_ref().ok_or("it is not configured to")?;
        if !options.providers.iter().any(|name| name == said.provider.name()) {
            return Err(format!(
                "it does not serve provider `{}`, only {}",
                said.provider.name(),
                options.providers.join(", ")
            ));
        }
        let text = |error: FabricError| error.to_string();
        let index = self.end(said.provider, stream).map_err(text)?;
        let end = &mut self.ends[index];
        if end.clients >= CLIENTS_MAX {
            return Err(format!(
                "it has {} clients on this provider already, as many as it takes",
                end.clients
            ));
        }
        if !end.reserve(end.clients + 1, &self.pool) {
            return Err(format!(
                "it has {} clients on this provider, and no memory for another now",
                end.clients
            ));
        }
        let number = random()?;
        let name = end.endpoint.name().map_err(text)?;
        let peer = end.endpoint.insert(&said.name).map_err(text)?;
        end.clients += 1;
        if let Err(error) = end.refill() {
            end.clients -= 1;
            end.endpoint.remove(peer);
            return Err(error.to_string());
        }
        if let Some(guard) = &end.guard {
            guard.add(peer, &said.name);
        }
        self.by_channel.insert(number, (connection, index));
        self.heard = Instant::now();
        let on_fabric = OnFabric {
            end: index,
            channel: Channel::new(peer, number),
            region: said.region,
            region_bytes: said.region_bytes,
            landings: VecDeque::new(),
            bulk: 0,
            unput: None,
            moved: Instant::now(),
            unmoved: None,
            unserved: 0,
            heard: Instant::now(),
        };
        Ok((Reply::Welcome { number, name }, on_fabric))
    }

    fn end(&mut self, provider: Provider, stream: &TcpStream) -> Result<usize, FabricError> {
        let is_one = |end: &End| end.endpoint.provider() == provider && !end.is_spoilt();
        if let Some(index) = self.ends.iter().position(is_one) {
            return Ok(index);
        }
        let node = stream.local_addr()?.ip().to_string();
        let depth = CLIENTS_MAX * RECEIVE_DEPTH / 8;
        let endpoint = Endpoint::open(provider, Some(&node), depth, &self.pool, Reach::Local)?;
        let guard = match provider {
            Provider::Shm => Guard::of(&endpoint.name()?),
            _ => None,
        };
        let end = End {
            endpoint,
            guard,
            clients: 0,
            receive_buffers: 0,
            posted: 0,
            spare: Vec::new(),
            done: Vec::new(),
        };
        // An unused one makes space.
        match self
            .ends
            .iter()
            .position(|end| end.is_spoilt() && end.clients == 0 && end.endpoint.busy() == 0)
        {
            Some(index) => {
                self.ends[index] = end;
                Ok(index)
            }
            None => {
                self.ends.push(end);
                Ok(self.ends.len() - 1)
            }
        }
    }

    /// Takes bells off the connection beside the fabric.
    fn hear_bell(&mut self, mut stream: &TcpStream) -> Result<(), Close> {
        self.heard = Instant::now();
        match stream.read(&mut [0; 256]) {
            Ok(0) => Err(Close),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(Close),
        }
    }

    /// Forgets a connection that is gone.
    pub(super) fn forget(&mut self, connection: u64, mut on_fabric: OnFabric) {
        self.by_channel.remove(&on_fabric.channel.number());
        let end = &mut self.ends[on_fabric.end];
        end.spare.extend(on_fabric.channel.take_early());
        end.clients -= 1;
        end.endpoint.remove(on_fabric.channel.peer());
        if let Some(guard) = &end.guard {
            guard.remove(on_fabric.channel.peer());
        }
        self.pending
            .retain(|&tag, (of, _)| *of != connection || !end.endpoint.let_go(tag));
    }

    /// Reposts the buffer of a message that belongs to no connection.
    fn unused(&mut self, end: usize, message: Buffer) {
        self.ends[end].spare.push(message);
    }

    /// Drives the providers. True if anything was done; appends events of connections to `events`.
    pub(super) fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let mut has_worked = false;
        for index in 0..self.ends.len() {
            let end = &mut self.ends[index];
            if end.is_spoilt() {
                let its = self.by_channel.values().filter(|(_, of)| *of == index);
                events.extend(its.map(|&(connection, _)| Event::Failed { connection }));
                continue;
            }
            match end.endpoint.poll(&mut end.done) {
                Ok(worked) => has_worked |= worked,
                Err(error) => tracing::error!("{error}"),
            }
            for completion in std::mem::take(&mut end.done) {
                let Completion {
                    kind,
                    tag,
                    buffer,
                    is_ok,
                } = completion;
                match kind {
                    Kind::Received => {
                        let end = &mut self.ends[index];
                        end.posted -= 1;
                        let connection = channel_of(&buffer)
                            .and_then(|number| self.by_channel.get(&number))
                            .copied();
                        match connection {
                            Some((connection, _)) if is_ok => {
                                self.heard = Instant::now();
                                events.push(Event::Message {
                                    connection,
                                    end: index,
                                    message: buffer,
                                });
                            }
                            // Of a connection that is gone, or from a peer that guesses.
                            _ => end.spare.push(buffer),
                        }
                    }
                    Kind::Sent if is_ok => {}
                    Kind::Sent => {
                        if let Some(&(connection, _)) = self.by_channel.get(&tag) {
                            events.push(Event::Failed { connection });
                        }
                    }
                    Kind::Read | Kind::Written => {
                        let Some((connection, pending)) = self.pending.remove(&tag) else {
                            continue;
                        };
                        events.push(match pending {
                            _ if !is_ok => Event::Failed { connection },
                            Pending::Fetched(body) => Event::Fetched {
                                connection,
                                body,
                                data: buffer,
                            },
                            Pending::Put(head) => Event::Put { connection, head },
                        });
                    }
                }
            }
            if let Err(error) = self.ends[index].refill() {
                tracing::error!("{error}");
            }
        }
        has_worked
    }

    /// Accepts a message of this connection: appends the pieces of the stream whose turn it is to `received`.
    pub(super) fn accept(
        &mut self,
        on_fabric: &mut OnFabric,
        message: Buffer,
        received: &mut Vec<u8>,
    ) -> Result<(), Close> {
        on_fabric.heard = self.heard;
        let spare = &mut self.ends[on_fabric.end].spare;
        let unserved = &mut on_fabric.unserved;
        let accepted = on_fabric.channel.accept(
            message,
            |piece| {
                *unserved += 1;
                received.extend_from_slice(piece);
            },
            |buffer| spare.push(buffer),
        );
        accepted.map_err(|_| Close)
    }

    /// Serves the received frames, as far as they may be served now. Returns how many bytes that was, and whether there
    /// is no buffer for more.
    pub(super) fn serve<S: Service>(
        &mut self,
        connection: u64,
        on_fabric: &mut OnFabric,
        (service, peer): (&S, &mut S::Peer),
        bytes: &[u8],
        out: &mut SendQueue,
    ) -> Result<(usize, Held), Close> {
        let (mut at, end) = (0, TurnEnd::new());
        let held = loop {
            if at > 0 && at < bytes.len() && end.has_come() {
                break Held::CutShort;
            }
            if out.queued_bytes() > QUEUED_BYTES_MAX || !on_fabric.takes_bulk() {
                break Held::Crowded;
            }
            if !service.is_ready(peer) {
                break Held::ByService;
            }
            let Some(frame) = on_fabric.frame(&bytes[at..])? else {
                break Held::No;
            };
            if frame.data_bytes > service.data_bytes_max(peer) {
                return Err(Close);
            }
            match frame.apart {
                Some(place) if frame.data_bytes > 0 => {
                    let from = on_fabric.at(place);
                    let Some(buf) = self.pool.take(frame.data_bytes) else {
                        break Held::Starved;
                    };
                    self.next_tag += 1;
                    let tag = self.next_tag;
                    let endpoint = &mut self.ends[on_fabric.end].endpoint;
                    match endpoint.read(on_fabric.channel.peer(), buf, from, tag) {
                        Ok(None) => on_fabric.begins_bulk(),
                        Ok(Some(_)) => {
                            on_fabric.is_busy()?;
                            break Held::Starved;
                        }
                        Err(_) => return Err(Close),
                    }
                    self.pending
                        .insert(tag, (connection, Pending::Fetched(frame.body.to_vec())));
                }
                place => {
                    if let (Some(place), Some(&id)) = (place, frame.body.first_chunk()) {
                        on_fabric.note_landing(id, place);
                    }
                    if service.message(peer, frame.body, Data::Inline(frame.data), out)? == Served::Starved {
                        break Held::Starved;
                    }
                }
            }
            at += frame.len;
        };
        if held == Held::No {
            // The client may send more in their place.
            on_fabric.channel.took(std::mem::take(&mut on_fabric.unserved));
            let endpoint = &mut self.ends[on_fabric.end].endpoint;
            let is_sent = on_fabric.channel.return_credit(endpoint, &self.pool);
            if !is_sent.map_err(|_| Close)? {
                // Its client may send nothing until then.
                self.blocked.push(connection);
            }
        }
        Ok((at, held))
    }

    /// Sends as much as possible. True if nothing is left.
    pub(super) fn send(
        &mut self,
        connection: u64,
        on_fabric: &mut OnFabric,
        stream: &TcpStream,
        out: &mut SendQueue,
    ) -> Result<bool, Close> {
        let mut has_sent = false;
        let is_empty = loop {
            if !self.put(connection, on_fabric)? {
                break false;
            }
            match out.next() {
                Next::Nothing => break true,
                Next::Bytes(bytes) => {
                    let endpoint = &mut self.ends[on_fabric.end].endpoint;
                    let sent = on_fabric.channel.send(endpoint, &self.pool, &[bytes]);
                    match sent.map_err(|_| Close)? {
                        0 => break false,
                        sent => {
                            out.sent(sent);
                            has_sent = true;
                        }
                    }
                }
                Next::Bulk(frame, data) => {
                    if !on_fabric.takes_bulk() {
                        break false;
                    }
                    let place = on_fabric.landing(frame);
                    let suits =
                        |place: &Descriptor| data.len() >= APART_BYTES_MIN && place.len_bytes as usize >= data.len();
                    let Some(place) = place.filter(suits) else {
                        out.stream_bulk();
                        continue;
                    };
                    let Some((head, data)) = out.take_bulk() else {
                        continue;
                    };
                    on_fabric.unput = Some((place, head, data));
                }
            }
        };
        if has_sent && on_fabric.heard.elapsed() >= RINGS_AFTER {
            // If it fails, the connection is ending.
            let _ = (&*stream).write(&[0]);
        }
        Ok(is_empty)
    }

    /// Writes the next bulk data to its place. False if the provider is busy: its queue is full, or it is still
    /// connecting, without a bound on the time.
    fn put(&mut self, connection: u64, on_fabric: &mut OnFabric) -> Result<bool, Close> {
        let Some((place, head, data)) = on_fabric.unput.take() else {
            return Ok(true);
        };
        self.next_tag += 1;
        let tag = self.next_tag;
        let to = on_fabric.at(place);
        let endpoint = &mut self.ends[on_fabric.end].endpoint;
        match endpoint.write(on_fabric.channel.peer(), data, to, tag) {
            Ok(None) => {
                on_fabric.begins_bulk();
                self.pending.insert(tag, (connection, Pending::Put(head)));
                Ok(true)
            }
            Ok(Some(data)) => {
                on_fabric.is_busy()?;
                on_fabric.unput = Some((place, head, data));
                Ok(false)
            }
            Err(_) => Err(Close),
        }
    }
}

/// Why the thread serves no more of a connection now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    No,
    /// Its client has not taken enough of the data sent to it.
    Crowded,
    /// The service accepts nothing from it.
    ByService,
    /// There is no buffer.
    Starved,
    /// The turn took long enough.
    CutShort,
}

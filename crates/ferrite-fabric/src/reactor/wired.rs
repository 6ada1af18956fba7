//! Connections that go on over a fabric, as the thread that owns them sees them.
//!
//! What lives here: [`Fabrics`], the endpoints of a thread; [`Wired`], what a connection has besides. Data of large
//! writes is fetched from the client's memory into a buffer, and served when it is there; data of large reads is put
//! where the client wants it, and the answer follows when it has arrived.
//!
//! Invariants: what a client says is memory of its own lies in the region that it introduced. A buffer that a provider
//! works with belongs to the endpoint, also after its connection is gone. A client has at most [`BULK_MAX`] pieces of
//! bulk data under way.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ferrite_buffers::{Buffer, Pool};
use rustix::event::epoll::EventFlags;

use super::{Close, Connection, Data, FabricOptions, QUEUED_BYTES_MAX, Reactor, Served, Service};
use crate::FabricError;
use crate::fabric::channel::{Channel, number_of};
use crate::fabric::{
    DESCRIPTOR_BYTES, Descriptor, Introduction, NAP, RINGS_AFTER, Reply, SLOTS, lengths, message_bytes, pause, prefix,
    random,
};
use crate::frame::PREFIX_BYTES;
use crate::ofi::{Completion, Endpoint, Kind, Provider, Reach, Remote};
use crate::outbox::{Next, Outbox};

/// Clients of one endpoint.
const CLIENTS_MAX: usize = 256;
/// Pieces of bulk data of one client under way.
const BULK_MAX: usize = 8;
/// Requests of one client that have said where data of their answers may go. With more, data of the oldest goes the way
/// of small data. Those that were answered without are forgotten in this way.
const LANDINGS_MAX: usize = 64;
/// Looks at the providers without finding anything before the thread looks at sockets, and looks at all.
const LOOKS: u32 = 16;
/// See [`LOOKS`].
const LOOKS_MAX: u32 = 256;
/// A connection with nothing to serve keeps no more memory than this.
const KEPT_BYTES: usize = 16 << 10;
/// What of the pool clients' messages may take: 1 / so much.
const SHARE: usize = 2;

/// What a connection over a fabric has.
pub(super) struct Wired {
    end: usize,
    channel: Channel,
    region: Remote,
    region_bytes: u64,
    /// Where data of answers goes, by request.
    landings: VecDeque<([u8; 8], Descriptor)>,
    /// Pieces of bulk data under way.
    bulk: usize,
    /// Messages that were received and not served.
    unserved: u32,
    heard: Instant,
}

impl Wired {
    pub(super) fn takes_bulk(&self) -> bool {
        self.bulk < BULK_MAX
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

    /// Where the data of this answer goes, if its request said so.
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

/// Bulk data under way.
enum Pending {
    /// Of a request with this body.
    Fetched(Vec<u8>),
    /// Of an answer with this beginning: prefix and body.
    Put(Vec<u8>),
}

struct End {
    endpoint: Endpoint,
    clients: usize,
    /// Buffers that wait for messages.
    posted: usize,
    spare: Vec<Buffer>,
    done: Vec<Completion>,
}

impl End {
    /// Gives the provider as many buffers for messages as all clients together may need.
    fn refill(&mut self, pool: &Pool) -> Result<(), FabricError> {
        let slot_bytes = message_bytes(self.endpoint.inject_bytes());
        while self.posted < self.clients * SLOTS {
            let Some(mut slot) = self.spare.pop().or_else(|| pool.take(slot_bytes)) else {
                return Ok(());
            };
            slot.set_len(slot_bytes);
            if let Some(slot) = self.endpoint.receive(slot)? {
                self.spare.push(slot);
                return Ok(());
            }
            self.posted += 1;
        }
        self.spare.clear();
        Ok(())
    }
}

/// See the head of this module.
pub(super) struct Fabrics {
    options: Option<FabricOptions>,
    pool: Pool,
    /// Connections with something to send that could not be sent yet.
    blocked: Vec<u64>,
    ends: Vec<End>,
    /// Bulk data under way, by tag, each with its connection.
    pending: HashMap<u64, (u64, Pending)>,
    next_tag: u64,
    /// Connections by the number in their messages.
    numbers: HashMap<u64, u64>,
    heard: Instant,
}

/// Something for a connection to do.
pub(super) enum Event {
    /// A message has come.
    Message { connection: u64, message: Buffer },
    /// A request's data is there.
    Fetched {
        connection: u64,
        body: Vec<u8>,
        data: Buffer,
    },
    /// An answer's data is where it should be.
    Put { connection: u64, head: Vec<u8> },
    /// Its bulk data cannot be moved.
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
            numbers: HashMap::new(),
            heard: Instant::now(),
        }
    }

    fn is_used(&self) -> bool {
        !self.numbers.is_empty() || !self.pending.is_empty()
    }

    /// How long to sleep before the next look.
    pub(super) fn pause(&self) -> Duration {
        let Some(options) = self.options.as_ref().filter(|_| self.is_used()) else {
            return Duration::MAX;
        };
        let pause = pause(self.heard.elapsed(), options.spin);
        match self.pending.is_empty() && self.blocked.is_empty() {
            true => pause,
            // Providers that move data themselves need their turns for it.
            false => pause.min(NAP),
        }
    }

    /// A client wants to go on over a fabric.
    pub(super) fn introduce(
        &mut self,
        connection: u64,
        stream: &TcpStream,
        body: &[u8],
    ) -> (Reply, Option<Box<Wired>>) {
        match self.admit(connection, stream, body) {
            Ok((reply, wired)) => (reply, Some(Box::new(wired))),
            Err(why) => (Reply::Refused(why), None),
        }
    }

    fn admit(&mut self, connection: u64, stream: &TcpStream, body: &[u8]) -> Result<(Reply, Wired), String> {
        let said = Introduction::decode(body)?;
        let options = self.options.as_ref().ok_or("it was not told to")?;
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
        let slots_bytes = (end.clients + 1) * SLOTS * message_bytes(end.endpoint.inject_bytes());
        if end.clients >= CLIENTS_MAX || slots_bytes > self.pool.len_bytes() / SHARE {
            return Err(format!(
                "it has {} clients on this provider already, as many as it takes",
                end.clients
            ));
        }
        let number = random()?;
        let name = end.endpoint.name().map_err(text)?;
        let peer = end.endpoint.insert(&said.name).map_err(text)?;
        end.clients += 1;
        let refilled = end.refill(&self.pool);
        if end.posted < end.clients * SLOTS || refilled.is_err() {
            end.clients -= 1;
            end.endpoint.remove(peer);
            return Err("it has no memory for another client".into());
        }
        self.numbers.insert(number, connection);
        self.heard = Instant::now();
        let wired = Wired {
            end: index,
            channel: Channel::new(peer, number),
            region: said.region,
            region_bytes: said.region_bytes,
            landings: VecDeque::new(),
            bulk: 0,
            unserved: 0,
            heard: Instant::now(),
        };
        Ok((Reply::Welcome { number, name }, wired))
    }

    fn end(&mut self, provider: Provider, stream: &TcpStream) -> Result<usize, FabricError> {
        if let Some(index) = self.ends.iter().position(|end| end.endpoint.provider() == provider) {
            return Ok(index);
        }
        let node = stream.local_addr()?.ip().to_string();
        let depth = CLIENTS_MAX * SLOTS / 8;
        self.ends.push(End {
            endpoint: Endpoint::open(provider, Some(&node), depth, &self.pool, Reach::Local)?,
            clients: 0,
            posted: 0,
            spare: Vec::new(),
            done: Vec::new(),
        });
        Ok(self.ends.len() - 1)
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

    /// A connection is gone.
    pub(super) fn forget(&mut self, wired: Wired) {
        self.numbers.remove(&wired.channel.number());
        let end = &mut self.ends[wired.end];
        end.clients -= 1;
        end.endpoint.remove(wired.channel.peer());
    }

    /// Drives the providers. True if anything was done; what is for connections is appended to `events`.
    pub(super) fn look(&mut self, events: &mut Vec<Event>) -> bool {
        let mut has_worked = false;
        for index in 0..self.ends.len() {
            let end = &mut self.ends[index];
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
                        let connection = number_of(&buffer).and_then(|number| self.numbers.get(&number));
                        match connection {
                            Some(&connection) if is_ok => {
                                self.heard = Instant::now();
                                events.push(Event::Message {
                                    connection,
                                    message: buffer,
                                });
                            }
                            // Of a connection that is gone, or of somebody who guesses.
                            _ => end.spare.push(buffer),
                        }
                    }
                    Kind::Sent if is_ok => {}
                    Kind::Sent => {
                        if let Some(&connection) = self.numbers.get(&tag) {
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
            if let Err(error) = self.ends[index].refill(&self.pool) {
                tracing::error!("{error}");
            }
        }
        has_worked
    }

    /// A message of this connection has come: the pieces of the stream whose turn it is are appended to `received`.
    pub(super) fn accept(&mut self, wired: &mut Wired, message: Buffer, received: &mut Vec<u8>) -> Result<(), Close> {
        wired.heard = self.heard;
        let spare = &mut self.ends[wired.end].spare;
        let unserved = &mut wired.unserved;
        let accepted = wired.channel.accept(
            message,
            |piece| {
                *unserved += 1;
                received.extend_from_slice(piece);
            },
            |buffer| spare.push(buffer),
        );
        accepted.map_err(|_| Close)
    }

    /// Serves what has come, as far as it is to be served now. Returns how many bytes that was, and whether there is no
    /// buffer for more.
    pub(super) fn serve<S: Service>(
        &mut self,
        connection: u64,
        wired: &mut Wired,
        (service, peer): (&S, &mut S::Peer),
        bytes: &[u8],
        out: &mut Outbox,
    ) -> Result<(usize, Held), Close> {
        let mut at = 0;
        let held = loop {
            if out.queued_bytes() > QUEUED_BYTES_MAX || !wired.takes_bulk() {
                break Held::Crowded;
            }
            if !service.is_ready(peer) {
                break Held::ByService;
            }
            let Some(frame) = wired.frame(&bytes[at..])? else {
                break Held::No;
            };
            if frame.data_bytes > service.data_bytes_max(peer) {
                return Err(Close);
            }
            match frame.apart {
                Some(place) if frame.data_bytes > 0 => {
                    let from = wired.at(place);
                    let Some(room) = self.pool.take(frame.data_bytes) else {
                        break Held::Starved;
                    };
                    self.next_tag += 1;
                    let tag = self.next_tag;
                    let endpoint = &mut self.ends[wired.end].endpoint;
                    match endpoint.read(wired.channel.peer(), room, from, tag) {
                        Ok(None) => {}
                        Ok(Some(_)) => break Held::Starved,
                        Err(_) => return Err(Close),
                    }
                    self.pending
                        .insert(tag, (connection, Pending::Fetched(frame.body.to_vec())));
                    wired.bulk += 1;
                }
                place => {
                    if let (Some(place), Some(&id)) = (place, frame.body.first_chunk()) {
                        if wired.landings.len() >= LANDINGS_MAX {
                            wired.landings.pop_front();
                        }
                        wired.landings.push_back((id, place));
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
            wired.channel.took(std::mem::take(&mut wired.unserved));
            let endpoint = &mut self.ends[wired.end].endpoint;
            wired.channel.return_credit(endpoint, &self.pool).map_err(|_| Close)?;
        }
        Ok((at, held))
    }

    /// Sends as much as can be. True if nothing is left.
    pub(super) fn send(
        &mut self,
        connection: u64,
        wired: &mut Wired,
        stream: &TcpStream,
        out: &mut Outbox,
    ) -> Result<bool, Close> {
        let mut has_sent = false;
        let is_empty = loop {
            match out.next() {
                Next::Nothing => break true,
                Next::Bytes(bytes) => {
                    let endpoint = &mut self.ends[wired.end].endpoint;
                    let sent = wired.channel.send(endpoint, &self.pool, &[bytes]);
                    match sent.map_err(|_| Close)? {
                        0 => break false,
                        sent => {
                            out.sent(sent);
                            has_sent = true;
                        }
                    }
                }
                Next::Bulk(frame, data) => {
                    if !wired.takes_bulk() {
                        break false;
                    }
                    let place = wired.landing(frame);
                    let Some(place) = place.filter(|place| place.len_bytes as usize >= data.len()) else {
                        out.stream_bulk();
                        continue;
                    };
                    let Some((head, data)) = out.take_bulk() else {
                        continue;
                    };
                    self.put(connection, wired, place, head, data)?;
                }
            }
        };
        if has_sent && wired.heard.elapsed() >= RINGS_AFTER {
            // If it fails, the connection is at its end.
            let _ = (&*stream).write(&[0]);
        }
        Ok(is_empty)
    }

    fn put(
        &mut self,
        connection: u64,
        wired: &mut Wired,
        place: Descriptor,
        head: Vec<u8>,
        data: Buffer,
    ) -> Result<(), Close> {
        self.next_tag += 1;
        let tag = self.next_tag;
        let to = wired.at(place);
        let began = Instant::now();
        let mut data = data;
        loop {
            let End { endpoint, done, .. } = &mut self.ends[wired.end];
            match endpoint.write(wired.channel.peer(), data, to, tag).map_err(|_| Close)? {
                None => break,
                // The provider's queue is full: it needs its turns, in which nothing is lost.
                Some(back) if began.elapsed() < RINGS_AFTER => {
                    data = back;
                    endpoint.poll(done).map_err(|_| Close)?;
                }
                Some(_) => return Err(Close),
            }
        }
        wired.bulk += 1;
        self.pending.insert(tag, (connection, Pending::Put(head)));
        Ok(())
    }
}

/// Why no more of what came is served now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    No,
    /// Its client has not taken enough of what it was sent.
    Crowded,
    /// The service takes nothing from it.
    ByService,
    /// There is no buffer.
    Starved,
}

/// The beginning of an answer whose data has arrived: as it was, but for the mark that says so.
fn mark_apart(head: &mut [u8]) {
    if let Ok(Some((lengths, _))) = lengths(head) {
        head[..PREFIX_BYTES].copy_from_slice(&prefix(lengths, true));
    }
}

impl<S: Service> Reactor<S> {
    /// Looks for what came over fabrics, a number of times if anybody uses them, and serves it.
    pub(super) fn look(&mut self) {
        if !self.fabrics.is_used() {
            return;
        }
        let mut idle = 0;
        for _ in 0..LOOKS_MAX {
            let mut events = Vec::new();
            let has_worked = self.fabrics.look(&mut events);
            let mut touched = std::mem::take(&mut self.fabrics.blocked);
            for event in events {
                self.handle(event, &mut touched);
            }
            touched.sort_unstable();
            touched.dedup();
            for number in touched {
                self.serve(number, EventFlags::empty());
            }
            idle = if has_worked { 0 } else { idle + 1 };
            if idle >= LOOKS {
                return;
            }
            if !has_worked {
                // The client that is to send something may need this very core.
                std::thread::yield_now();
            }
        }
    }

    fn handle(&mut self, event: Event, touched: &mut Vec<u64>) {
        let number = match event {
            Event::Message { connection, .. }
            | Event::Fetched { connection, .. }
            | Event::Put { connection, .. }
            | Event::Failed { connection } => connection,
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let Some(wired) = &mut connection.wired else {
            return;
        };
        let handled = match event {
            Event::Message { message, .. } => self.fabrics.accept(wired, message, &mut connection.received),
            Event::Fetched { body, data, .. } => {
                wired.bulk -= 1;
                let served = self
                    .service
                    .message(&mut connection.peer, &body, Data::Buffer(data), &mut connection.out);
                served.map(drop)
            }
            Event::Put { mut head, .. } => {
                wired.bulk -= 1;
                mark_apart(&mut head);
                connection.out.push(&head);
                Ok(())
            }
            Event::Failed { .. } => Err(Close),
        };
        match handled {
            Ok(()) => touched.push(number),
            Err(Close) => self.drop_connection(number),
        }
    }

    /// A client has introduced itself, and goes on over a fabric if that is possible.
    pub(super) fn introduce(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let body = connection.introduction.take().unwrap_or_default();
        let (reply, wired) = match connection.is_sealed() {
            // What goes over a fabric is not encrypted, and this client or the export wants that it is.
            true => (
                Reply::Refused("this connection is encrypted, and fabrics are not".into()),
                None,
            ),
            false => self.fabrics.introduce(number, &connection.stream, &body),
        };
        let mut frame = connection.out.frame();
        frame.body().extend(reply.encode());
        frame.finish();
        // Nothing else is under way, so the socket has room for this.
        let is_told = matches!(connection.send(), Ok(true));
        connection.wired = wired;
        if !is_told {
            self.drop_connection(number);
        }
    }

    /// A turn of a connection that goes on over a fabric.
    pub(super) fn serve_wired(&mut self, number: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let mut served = match connection.link.is_closed() {
            true => Err(Close),
            false if flags.is_empty() => Ok(()),
            false => self.fabrics.hear_bell(&connection.stream),
        };
        connection.link.take_mail(&mut connection.out);
        while served.is_ok() {
            served = serve_stream(&*self.service, number, connection, &mut self.fabrics);
            let Some(wired) = &mut connection.wired else {
                return;
            };
            let was_crowded = connection.out.queued_bytes() > QUEUED_BYTES_MAX;
            if served.is_err() {
                break;
            }
            match self
                .fabrics
                .send(number, wired, &connection.stream, &mut connection.out)
            {
                Err(Close) => served = Err(Close),
                // What it was held back from can be served now.
                Ok(true) if was_crowded => {}
                Ok(true) => break,
                Ok(false) => {
                    self.fabrics.blocked.push(number);
                    break;
                }
            }
        }
        if served.is_err() || connection.link.is_closed() {
            self.drop_connection(number);
        }
    }
}

fn serve_stream<S: Service>(
    service: &S,
    number: u64,
    connection: &mut Connection<S::Peer>,
    fabrics: &mut Fabrics,
) -> Result<(), Close> {
    let Some(wired) = &mut connection.wired else {
        return Ok(());
    };
    let mut received = std::mem::take(&mut connection.received);
    let peer = (service, &mut connection.peer);
    let (at, held) = fabrics.serve(number, wired, peer, &received, &mut connection.out)?;
    received.drain(..at);
    if !received.is_empty() || received.capacity() <= KEPT_BYTES {
        connection.received = received;
    }
    connection.is_starved = held == Held::Starved;
    connection.is_held = held == Held::ByService;
    Ok(())
}

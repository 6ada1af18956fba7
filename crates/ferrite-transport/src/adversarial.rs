//! Adversarial clients over fabrics, against a server that has others: each costs itself its connection at most.
//!
//! Contents: tests alone. They are in the crate because they need what no regular client offers: an endpoint that sends
//! arbitrary bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use ferrite_buffers::Pool;
use rustix::process::{Pid, getpid};

use crate::FabricError;
use crate::connection::{Connection, Fabric, Receiver, upgrade};
use crate::fabric::channel::HEAD_BYTES;
use crate::fabric::{Descriptor, Introduction, RECEIVE_DEPTH, Reply, message_bytes, prefix};
use crate::frame::{BODY_BYTES_MAX, DATA_BYTES_MAX, Lengths, OWN_ID, PREFIX_BYTES};
use crate::ofi::{Endpoint, Page, PeerId, Provider, Reach, Remote};
use crate::reactor::{Close, Data, FabricOptions, Link, Options, Origin, Reactors, Served, Service};
use crate::secure::Credentials;
use crate::secure::handshake;
use crate::send_queue::SendQueue;

const LIMIT: Duration = Duration::from_secs(20);
const REGION_BYTES: u64 = 4 << 20;

/// Answers each message with its body and its data; the body [`MUCH`], with much data of no content.
struct Echo(Pool);

/// The body that asks for much data.
const MUCH: &[u8] = b"12345678much";
const MUCH_BYTES: usize = 1 << 20;

impl Service for Echo {
    type Peer = ();

    fn connected(&self, _: Link, _: Origin) {}

    fn message(&self, (): &mut (), body: &[u8], data: Data<'_>, out: &mut SendQueue) -> Result<Served, Close> {
        let mut frame = out.frame();
        frame.body().extend(body);
        match data {
            Data::Inline(_) if body == MUCH => match self.0.take(MUCH_BYTES) {
                Some(buffer) => frame.finish_from(buffer),
                None => return Ok(Served::Starved),
            },
            Data::Buffer(buffer) => frame.finish_from(buffer),
            Data::Inline(bytes) => frame.finish_with(bytes.len(), |buf| {
                buf.copy_from_slice(bytes);
                bytes.len()
            }),
        }
        Ok(Served::Yes)
    }

    fn disconnected(&self, (): ()) {}
}

struct Site {
    _reactors: Reactors,
    pool: Pool,
    address: String,
    provider: Provider,
}

impl Site {
    fn new(provider: Provider) -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let options = Options {
            fabric: Some(FabricOptions::default()),
            ..Options::default()
        };
        let pool = Pool::new(32 << 20).expect("memory");
        let reactors = Reactors::start(vec![listener], &Arc::new(Echo(pool.clone())), &pool, &options);
        Site {
            _reactors: reactors.expect("started"),
            pool,
            address,
            provider,
        }
    }

    fn open(&self) -> (Connection, Receiver) {
        self.try_open().expect("opened")
    }

    fn try_open(&self) -> Result<(Connection, Receiver), FabricError> {
        let fabric = Fabric {
            provider: Some(self.provider.name().into()),
            buffers_bytes: 4 << 20,
            ..Fabric::default()
        };
        let opened = Connection::open(&self.address, &Credentials::default(), LIMIT)?;
        upgrade(opened, &self.address, &fabric, LIMIT)
    }

    /// Whether the server answers a client that comes now.
    fn serves(&self) -> bool {
        let Ok((connection, mut receiver)) = self.try_open() else {
            return false;
        };
        let began = Instant::now();
        let mut reply = connection.ask(b"12345678", &[], 0).map(|()| None);
        while matches!(reply, Ok(None)) && began.elapsed() < LIMIT {
            reply = receiver.receive().map(|came| came.map(|(body, _)| body.to_vec()));
        }
        matches!(reply, Ok(Some(body)) if body == b"12345678")
    }
}

/// A client that does nothing wrong, and must not notice anything.
struct Bystander(Connection, Receiver);

impl Bystander {
    fn goes_on(&mut self) {
        for size in [0, 100, 100_000] {
            let data = vec![size as u8; size];
            self.0.ask(b"12345678", &data, 0).expect("sent");
            let began = Instant::now();
            let data_bytes = loop {
                match self.1.receive().expect("received") {
                    Some((body, data_bytes)) => {
                        assert_eq!(body, b"12345678");
                        break data_bytes;
                    }
                    None => assert!(began.elapsed() < LIMIT, "no reply to {size} bytes over {:?}", self.0),
                }
            };
            let mut back = vec![0; data_bytes];
            self.1.take_data(&mut back).expect("received");
            assert!(back == data);
        }
    }
}

/// An admitted client, with an endpoint of its own.
struct Attacker {
    stream: TcpStream,
    endpoint: Endpoint,
    pool: Pool,
    server: PeerId,
    number: u64,
    next: u32,
    /// The names of its own endpoint, and of the server's.
    names: [Vec<u8>; 2],
}

fn plain(site: &Site) -> TcpStream {
    let stream = TcpStream::connect(&site.address).expect("connected");
    stream.set_read_timeout(Some(LIMIT)).expect("set");
    let opened = handshake::introduce(&stream, &Credentials::default(), Instant::now() + LIMIT);
    assert!(opened.is_ok(), "it was not let in");
    stream
}

/// Sends a frame over TCP; returns the reply, if any.
fn exchange(mut stream: &TcpStream, body: &[u8]) -> Option<Vec<u8>> {
    let lengths = Lengths {
        body_bytes: body.len(),
        data_bytes: 0,
    };
    stream.write_all(&[&lengths.encode()[..], body].concat()).ok()?;
    let mut head = [0; PREFIX_BYTES];
    stream.read_exact(&mut head).ok()?;
    let lengths = Lengths::decode(&head).ok()??;
    let mut body = vec![0; lengths.body_bytes];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

impl Attacker {
    /// `region` is the memory that it claims as its own; its real one if `None`.
    fn new(site: &Site, region: Option<Remote>) -> Attacker {
        let stream = plain(site);
        let pool = Pool::new(REGION_BYTES as usize).expect("memory");
        let node = "127.0.0.1";
        let mut endpoint = Endpoint::open(site.provider, Some(node), 64, &pool, Reach::Remote).expect("opened");
        for _ in 0..RECEIVE_DEPTH {
            let buffer = pool.take(message_bytes(endpoint.inject_bytes())).expect("a buffer");
            endpoint.receive(buffer).expect("posted");
        }
        let introduction = Introduction {
            provider: site.provider,
            region: region.unwrap_or_else(|| endpoint.region()),
            region_bytes: REGION_BYTES,
            name: endpoint.name().expect("a name"),
        };
        let own = introduction.name.clone();
        let body = exchange(&stream, &introduction.encode()).expect("a reply");
        let Reply::Welcome { number, name } = Reply::decode(&body).expect("a reply") else {
            panic!("{}", String::from_utf8_lossy(&body));
        };
        let server = endpoint.insert(&name).expect("known");
        Attacker {
            stream,
            endpoint,
            pool,
            server,
            number,
            next: 0,
            names: [own, name],
        }
    }

    /// Sends arbitrary bytes as one message.
    fn send(&mut self, bytes: &[u8]) {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let sent = match bytes.len() <= self.endpoint.inject_bytes() {
                true => self.endpoint.inject(self.server, bytes).expect("sent"),
                false => match self.pool.take(bytes.len()) {
                    Some(mut buffer) => {
                        buffer.copy_from_slice(bytes);
                        self.endpoint.send(self.server, buffer, 0).expect("sent").is_none()
                    }
                    None => false,
                },
            };
            self.endpoint.poll(&mut Vec::new()).expect("polled");
            if sent {
                return;
            }
            std::thread::yield_now();
        }
        panic!("the provider takes nothing");
    }

    fn head(&self, number: u64, sequence: u32, taken: u16, kind: u16) -> Vec<u8> {
        let mut head = number.to_le_bytes().to_vec();
        head.extend(sequence.to_le_bytes());
        head.extend(taken.to_le_bytes());
        head.extend(kind.to_le_bytes());
        assert_eq!(head.len(), HEAD_BYTES);
        head
    }

    /// Sends a piece of the stream, in its turn.
    fn stream(&mut self, piece: &[u8]) {
        let head = self.head(self.number, self.next, 0, 0);
        self.next += 1;
        self.send(&[&head, piece].concat());
        // This wakes a server that sleeps.
        let _ = (&self.stream).write(&[0]);
    }

    /// Waits until the server has closed the connection.
    fn is_closed(&mut self) -> bool {
        let began = Instant::now();
        self.stream
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("set");
        while began.elapsed() < LIMIT {
            // Only bells come here.
            match (&self.stream).read(&mut [0; 64]) {
                Ok(0) => return true,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return true,
                _ => {}
            }
            self.endpoint.poll(&mut Vec::new()).expect("polled");
        }
        false
    }
}

fn sites() -> impl Iterator<Item = Site> {
    let there = [Provider::Shm, Provider::Tcp].into_iter().filter(|provider| {
        if !provider.is_there() {
            eprintln!("skipped: libfabric has no provider {} here", provider.name());
        }
        provider.is_there()
    });
    there.map(Site::new)
}

#[test]
fn introductions_that_make_no_sense_are_refused() {
    for site in sites() {
        let (connection, receiver) = site.open();
        let mut bystander = Bystander(connection, receiver);
        let introduction = |provider: &str, name: &[u8]| {
            let mut body = OWN_ID.to_vec();
            body.push(1);
            body.extend([0; 24]);
            body.push(provider.len() as u8);
            body.extend(provider.as_bytes());
            body.extend(name);
            body
        };
        let own = site.provider.name();
        for (body, is_replied) in [
            (OWN_ID.to_vec(), true),
            ([&OWN_ID[..], &[9; 40]].concat(), true),
            (introduction("carrier-pigeon", b"x"), true),
            (introduction(own, &[b'x'; 257]), true),
            (introduction(own, &[0xff; 4000]), true),
            (vec![0xff; BODY_BYTES_MAX], true),
        ] {
            let stream = plain(&site);
            let reply = exchange(&stream, &body);
            let refused = reply.map(|reply| matches!(Reply::decode(&reply), Ok(Reply::Refused(_))));
            assert!(refused == Some(true) || !is_replied && refused.is_none(), "{refused:?}");
            bystander.goes_on();
        }
        // Names that no endpoint has are refused, or useless.
        for name in [&b""[..], b"x", b"fi_shm://", b"fi_shm://../../etc/passwd", &[0xff; 256]] {
            let stream = plain(&site);
            if let Some(reply) = exchange(&stream, &introduction(own, name)) {
                assert!(Reply::decode(&reply).is_ok());
            }
            bystander.goes_on();
            drop(stream);
            bystander.goes_on();
        }
    }
}

#[test]
fn messages_that_make_no_sense_cost_their_sender_the_connection() {
    for site in sites() {
        let (connection, receiver) = site.open();
        let mut bystander = Bystander(connection, receiver);
        let mut attacker = Attacker::new(&site, None);
        send_for_no_connection(&mut attacker, &mut bystander);
        drop(attacker);
        bystander.goes_on();
        for (turn, attack) in MALFORMED.iter().enumerate() {
            let mut attacker = Attacker::new(&site, None);
            attack(&mut attacker);
            let _ = (&attacker.stream).write(&[0]);
            assert!(attacker.is_closed(), "{:?}: attack {turn} is tolerated", site.provider);
            bystander.goes_on();
        }
        // Half a frame, and nothing more.
        let mut attacker = Attacker::new(&site, None);
        attacker.stream(&announced(1000, 0));
        bystander.goes_on();
        drop(attacker);
        bystander.goes_on();
    }
}

/// Messages for no connection are dropped, and their sender stays connected.
fn send_for_no_connection(attacker: &mut Attacker, bystander: &mut Bystander) {
    let number = attacker.number;
    for message in [
        vec![1; 3],
        vec![0xff; 4000],
        attacker.head(number.wrapping_add(1), 0, 0, 0),
        attacker.head(0, 0, 0, 0),
    ] {
        attacker.send(&message);
    }
    bystander.goes_on();
    // More of one kind than a connection may have in flight: this uses up no other client's buffers.
    for _ in 0..200 {
        attacker.send(&attacker.head(number ^ 1, 0, 0, 0));
    }
    bystander.goes_on();
}

/// Malformed messages of the sender's own connection.
const MALFORMED: [fn(&mut Attacker); 9] = [
    |it| it.send(&number_only(it)),
    |it| it.send(&it.head(it.number, 0, 0, 7)),
    |it| it.send(&it.head(it.number, 1000, 0, 0)),
    |it| it.send(&it.head(it.number, 0, u16::MAX, 1)),
    |it| {
        // The same number twice, before its turn.
        it.send(&it.head(it.number, 5, 0, 0));
        it.send(&it.head(it.number, 5, 0, 0));
    },
    |it| it.stream(&announced(BODY_BYTES_MAX + 1, 0)),
    |it| it.stream(&announced(8, DATA_BYTES_MAX + 1)),
    |it| {
        it.stream(&data_elsewhere(Descriptor {
            offset: REGION_BYTES - 10,
            len_bytes: 100_000,
        }))
    },
    |it| {
        it.stream(&data_elsewhere(Descriptor {
            offset: 0,
            len_bytes: 77,
        }))
    },
];

/// The prefix of a frame with a body and data of these lengths.
fn announced(body_bytes: usize, data_bytes: usize) -> [u8; PREFIX_BYTES] {
    prefix(Lengths { body_bytes, data_bytes }, false)
}

/// A frame whose 100,000 bytes of data are said to be at `place`.
fn data_elsewhere(place: Descriptor) -> Vec<u8> {
    let lengths = Lengths {
        body_bytes: 8,
        data_bytes: 100_000,
    };
    let mut frame = prefix(lengths, true).to_vec();
    frame.extend(b"12345678");
    frame.extend(place.encode());
    frame
}

fn number_only(it: &Attacker) -> Vec<u8> {
    it.number.to_le_bytes().to_vec()
}

/// A client names memory that is not its own, or does not exist: a failed fetch costs it the connection.
#[test]
fn memory_that_is_not_there_costs_its_client_the_connection() {
    for site in sites() {
        let (connection, receiver) = site.open();
        let mut bystander = Bystander(connection, receiver);
        for region in [
            Remote { address: 0, key: 0 },
            Remote {
                address: 0x10,
                key: u64::MAX,
            },
            Remote {
                address: u64::MAX - 4095,
                key: 0xdead_beef,
            },
        ] {
            // Data to fetch from there, and data to put there.
            let ways = [(&MUCH[..8], MUCH_BYTES), (MUCH, 0)];
            // Over shm it takes long to notice the latter.
            for (body, data_bytes) in ways.into_iter().take(if region.key == 0 { 2 } else { 1 }) {
                let mut attacker = Attacker::new(&site, Some(region));
                let lengths = Lengths {
                    body_bytes: body.len(),
                    data_bytes,
                };
                let place = Descriptor {
                    offset: 0,
                    len_bytes: MUCH_BYTES as u32,
                };
                attacker.stream(&[&prefix(lengths, true)[..], body, &place.encode()].concat());
                bystander.goes_on();
                let is_closed = attacker.is_closed();
                assert!(is_closed, "{:?}: {region:?}, {data_bytes} is tolerated", site.provider);
                bystander.goes_on();
            }
        }
    }
}

/// A client asks for much, takes nothing, and leaves: the server frees the data in flight to it.
#[test]
fn who_leaves_with_data_on_its_way_keeps_nothing() {
    for site in sites() {
        let (connection, receiver) = site.open();
        let mut bystander = Bystander(connection, receiver);
        bystander.goes_on();
        let mut gone = Vec::new();
        for turn in 0..8 {
            let mut attacker = Attacker::new(&site, None);
            let place = Descriptor {
                offset: 0,
                len_bytes: MUCH_BYTES as u32,
            };
            // Data to put there, or to fetch from there.
            let (body, data_bytes) = if turn % 2 == 0 {
                (MUCH, 0)
            } else {
                (&MUCH[..8], MUCH_BYTES)
            };
            let lengths = Lengths {
                body_bytes: body.len(),
                data_bytes,
            };
            for _ in 0..8 {
                attacker.stream(&[&prefix(lengths, true)[..], body, &place.encode()].concat());
            }
            bystander.goes_on();
            // As if its process had died: its endpoint neither answers nor announces its end.
            attacker.stream.shutdown(Shutdown::Both).expect("shut");
            gone.push(attacker);
            bystander.goes_on();
        }
        let began = Instant::now();
        while site.pool.free_bytes() < site.pool.len_bytes() / 2 {
            assert!(
                began.elapsed() < LIMIT,
                "{:?}: only {} bytes are free",
                site.provider,
                site.pool.free_bytes()
            );
            bystander.goes_on();
        }
    }
}

/// For the process that dies: the server's address, the server's process, and the owner of the lock it takes.
const DIES: &str = "FERRITE_TEST_DIES_WITH";

/// Not a test: a client that takes a lock over shm, and is killed holding it.
#[test]
fn who_dies() {
    let Ok(what) = std::env::var(DIES) else {
        return;
    };
    let mut words = what.split(' ');
    let mut word = || words.next().expect("a word");
    let mut site = Site::new(Provider::Shm);
    site.address = word().to_owned();
    let server = Pid::from_raw(word().parse().expect("a process")).expect("a process");
    let takes_own = word() == "own";
    let mut it = Attacker::new(&site, None);
    let frame = |body: &[u8]| {
        let lengths = Lengths {
            body_bytes: body.len(),
            data_bytes: 0,
        };
        [&prefix(lengths, false), body].concat()
    };
    it.stream(&frame(b"12345678"));
    let page = match takes_own {
        true => Page::of(&it.names[0], getpid()),
        false => Page::of(&it.names[1], server),
    };
    let page = page.expect("its memory");
    while !page.try_lock() {
        std::thread::yield_now();
    }
    if takes_own {
        // The reply to this makes the server take the lock.
        let message = [&it.head(it.number, it.next, 0, 0)[..], &frame(b"12345678")].concat();
        assert!(it.endpoint.inject(it.server, &message).expect("sent"));
    }
    let _ = (&it.stream).write(&[0]);
    println!("it has it");
    std::thread::sleep(LIMIT * 10);
}

/// Killed at the wrong moment, a client leaves the server's lock locked, or its own, on which the server's thread
/// blocks with all its other work. The server soon serves the other clients again.
#[test]
fn who_dies_with_a_lock_does_not_keep_the_server() {
    if !Provider::Shm.is_there() || crate::ofi::library_version() != (1, 17) {
        eprintln!("skipped: libfabric has no provider shm here, or is of another version");
        return;
    }
    for whose in ["server", "own"] {
        let site = Site::new(Provider::Shm);
        let (connection, receiver) = site.open();
        let mut bystander = Bystander(connection, receiver);
        bystander.goes_on();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["adversarial::who_dies", "--exact", "--nocapture"])
            .env(DIES, format!("{} {} {whose}", site.address, getpid().as_raw_nonzero()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("it has it"))));
        child.kill().expect("killed");
        child.wait().expect("ended");
        let (done, ends) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if whose == "own" {
                    // This bystander does not even notice.
                    bystander.goes_on();
                } else {
                    // Its connection ends with the endpoint.
                    drop(bystander);
                }
                // A client that comes while the server waits may be admitted to the endpoint that is closed then.
                // Clients that lose a connection reconnect.
                while !site.serves() {
                    std::thread::yield_now();
                }
                let (connection, receiver) = site.open();
                Bystander(connection, receiver).goes_on();
                done.send(()).expect("awaited");
            });
            if ends.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                // A thread that waits in libfabric cannot be made to fail in another way, so the test reports it.
                let _ = writeln!(
                    std::io::stderr(),
                    "the server waits for a lock that a dead client has ({whose})"
                );
                std::process::abort();
            }
        });
    }
}

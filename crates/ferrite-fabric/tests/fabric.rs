//! The echo of `echo.rs` behind fabrics: what is sent comes back whole, by message and by bulk data, and clients that
//! die or send garbage harm nobody else. A provider that is not there is skipped.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_buffers::Pool;
use ferrite_fabric::connection::{Connection, Fabric, Receiver, upgrade};
use ferrite_fabric::outbox::Outbox;
use ferrite_fabric::reactor::{Close, Data, FabricOptions, Link, Options, Origin, Reactors, Served, Service};
use ferrite_fabric::secure::Credentials;
use ferrite_fabric::{FabricError, Provider};

const LIMIT: Duration = Duration::from_secs(10);

/// Answers each message with its first eight bytes and its data.
struct Echo(Pool);

impl Service for Echo {
    type Peer = Link;

    fn connected(&self, link: Link, _: Origin) -> Link {
        link
    }

    /// The body is a number, how much data the answer should have if the message has none, and anything.
    fn message(&self, _: &mut Link, body: &[u8], data: Data<'_>, out: &mut Outbox) -> Result<Served, Close> {
        let (id, rest) = body.split_first_chunk::<8>().ok_or(Close)?;
        let (wanted, rest) = rest.split_first_chunk::<8>().ok_or(Close)?;
        let wanted = u64::from_le_bytes(*wanted) as usize;
        let mut frame = out.frame();
        frame.body().extend(id);
        frame.body().extend(rest);
        match data {
            Data::Buffer(buffer) => frame.finish_from(buffer),
            Data::Inline(bytes) if !bytes.is_empty() => frame.finish_with(bytes.len(), |room| {
                room.copy_from_slice(bytes);
                bytes.len()
            }),
            Data::Inline(_) if wanted > 32 << 10 => {
                let Some(mut buffer) = self.0.take(wanted) else {
                    return Ok(Served::Starved);
                };
                fill(&mut buffer, id[0]);
                frame.finish_from(buffer);
            }
            Data::Inline(_) => frame.finish_with(wanted, |room| {
                fill(room, id[0]);
                room.len()
            }),
        }
        Ok(Served::Yes)
    }

    fn disconnected(&self, _: Link) {}
}

fn fill(room: &mut [u8], salt: u8) {
    for (at, byte) in room.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ salt;
    }
}

fn filled(len: usize, salt: u8) -> Vec<u8> {
    let mut data = vec![0; len];
    fill(&mut data, salt);
    data
}

fn serve(pool: &Pool) -> (Reactors, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = Options {
        fabric: Some(FabricOptions::default()),
        ..Options::default()
    };
    let service = Arc::new(Echo(pool.clone()));
    (
        Reactors::start(vec![listener], &service, pool, &options).unwrap(),
        address,
    )
}

fn try_open(address: &str, provider: &str, buffers_bytes: usize) -> Result<(Connection, Receiver), FabricError> {
    let fabric = Fabric {
        provider: Some(provider.into()),
        buffers_bytes,
        ..Fabric::default()
    };
    upgrade(
        Connection::open(address, &Credentials::default(), LIMIT)?,
        address,
        &fabric,
        LIMIT,
    )
}

fn open(address: &str, provider: &str) -> (Connection, Receiver) {
    try_open(address, provider, 16 << 20).unwrap()
}

/// Providers that can be tested here.
fn providers() -> Vec<&'static str> {
    let wanted = [Provider::Shm, Provider::Tcp];
    let (there, missing): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|provider| provider.is_there());
    for provider in missing {
        eprintln!("skipped: libfabric has no provider {} here", provider.name());
    }
    there.into_iter().map(Provider::name).collect()
}

fn body(id: u64, wanted: usize, tail: usize) -> Vec<u8> {
    let mut body = id.to_le_bytes().to_vec();
    body.extend((wanted as u64).to_le_bytes());
    body.extend(vec![5; tail]);
    body
}

fn receive(receiver: &mut Receiver) -> (u64, usize, Vec<u8>) {
    let began = Instant::now();
    while began.elapsed() < LIMIT * 2 {
        if let Some((body, data_bytes)) = receiver.receive().unwrap() {
            let id = u64::from_le_bytes(*body.first_chunk().unwrap());
            assert!(body[8..].iter().all(|&byte| byte == 5), "another body");
            let (tail, mut data) = (body.len() - 8, vec![0; data_bytes]);
            receiver.take_data(&mut data).unwrap();
            return (id, tail, data);
        }
    }
    panic!("no answer");
}

/// One there and one back.
fn echo(connection: &Connection, receiver: &mut Receiver, id: u64, size: usize) {
    let salt = id as u8;
    connection.ask(&body(id, 0, 3), &filled(size, salt), 0).unwrap();
    let (came, tail, data) = receive(receiver);
    assert_eq!((came, tail), (id, 3));
    assert!(data == filled(size, salt), "{size} bytes were changed on their way");
}

#[test]
fn data_of_all_sizes_goes_there_and_comes_back() {
    for provider in providers() {
        let pool = Pool::new(32 << 20).unwrap();
        let (reactors, address) = serve(&pool);
        let (connection, mut receiver) = open(&address, provider);
        let sizes = [
            0,
            1,
            100,
            4000,
            4096,
            8191,
            32 << 10,
            (32 << 10) + 1,
            100_001,
            1 << 20,
            (4 << 20) - 1,
            4 << 20,
        ];
        for (id, size) in sizes.into_iter().enumerate() {
            echo(&connection, &mut receiver, id as u64, size);
            // The other way alone, with a place for it, without, and with one that is too small.
            for (turn, room) in [size, 0, size / 2].into_iter().enumerate() {
                let id = (turn as u64 + 1) * 1000 + id as u64;
                connection.ask(&body(id, size, 0), &[], room).unwrap();
                let (came, _, data) = receive(&mut receiver);
                assert_eq!(came, id);
                assert!(data == filled(size, id as u8), "{size} bytes, room for {room}");
            }
        }
        for tail in [5000, 48 << 10, (128 << 10) - 16] {
            connection.ask(&body(1, 0, tail), &[], 0).unwrap();
            assert_eq!(receive(&mut receiver), (1, tail, Vec::new()));
        }
        connection.close();
        drop((connection, receiver, reactors));
        assert_eq!(pool.free_bytes(), pool.len_bytes(), "{provider}: buffers were lost");
    }
}

#[test]
fn many_clients_and_threads_share_a_server_with_few_buffers() {
    for provider in providers() {
        let pool = Pool::new(12 << 20).unwrap();
        let (reactors, address) = serve(&pool);
        std::thread::scope(|scope| {
            for client in 0..4 {
                let address = &address;
                scope.spawn(move || {
                    // So small that most data finds no buffer, and goes in the stream.
                    let (connection, mut receiver) = try_open(address, provider, 4 << 20).unwrap();
                    let connection = &connection;
                    std::thread::scope(|scope| {
                        for thread in 0..2 {
                            scope.spawn(move || {
                                for turn in 0..20 {
                                    let id = thread * 1000 + turn;
                                    let size = (turn as usize * 7919 * (client + 1)) % (1 << 20);
                                    connection.ask(&body(id, 0, 0), &filled(size, id as u8), 0).unwrap();
                                }
                            });
                        }
                        for _ in 0..40 {
                            let (id, _, data) = receive(&mut receiver);
                            assert!(data == filled(data.len(), id as u8));
                        }
                    });
                });
            }
        });
        drop(reactors);
        assert_eq!(pool.free_bytes(), pool.len_bytes());
    }
}

/// A client that is silent for long is answered though the server sleeps, and the end of either is noticed.
#[test]
fn silence_and_the_end_of_either_side_are_noticed() {
    for provider in providers() {
        let pool = Pool::new(16 << 20).unwrap();
        let (reactors, address) = serve(&pool);
        let (connection, mut receiver) = open(&address, provider);
        echo(&connection, &mut receiver, 1, 10);
        std::thread::sleep(Duration::from_millis(200));
        echo(&connection, &mut receiver, 2, 10);
        drop((connection, receiver));
        let began = Instant::now();
        while reactors.connections() > 0 {
            assert!(began.elapsed() < LIMIT, "the server has not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (_connection, mut receiver) = open(&address, provider);
        drop(reactors);
        let began = Instant::now();
        while receiver.receive().is_ok() {
            assert!(began.elapsed() < LIMIT, "the client has not noticed");
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let pool = Pool::new(16 << 20).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = Arc::new(Echo(pool.clone()));
    let reactors = Reactors::start(vec![listener], &service, &pool, &Options::default()).unwrap();
    for provider in providers() {
        let refused = try_open(&address, provider, 1 << 20).unwrap_err().to_string();
        assert!(
            refused.contains("it was not told to") && refused.contains("--listen fabric://"),
            "{refused}"
        );
    }
    let unknown = try_open(&address, "carrier-pigeon", 1 << 20).unwrap_err().to_string();
    assert!(unknown.contains("`carrier-pigeon` is no provider"), "{unknown}");
    if !Provider::Verbs.is_there() {
        let absent = try_open(&address, "verbs", 1 << 20).unwrap_err().to_string();
        assert!(absent.contains("?provider=shm"), "{absent}");
    }
    drop(reactors);
}

const CHILD: &str = "FERRITE_TEST_FABRIC_CHILD";

/// Not a test: a client that works until it is killed.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (provider, address) = what.split_once('|').unwrap();
    let (connection, mut receiver) = open(address, provider);
    for id in 0.. {
        echo(&connection, &mut receiver, id, 3 << 20);
        if id == 3 {
            println!("it works");
        }
    }
}

/// Killed in the middle of bulk transfers, clients leave no buffer behind, and others do not notice.
#[test]
fn killed_clients_leave_nothing_behind() {
    for provider in providers() {
        let pool = Pool::new(64 << 20).unwrap();
        let (reactors, address) = serve(&pool);
        for turn in 0..3 {
            let mut killed = Command::new(std::env::current_exe().unwrap())
                .args(["child", "--exact", "--nocapture"])
                .env(CHILD, format!("{provider}|{address}"))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
            while !lines.next().unwrap().unwrap().contains("it works") {}
            std::thread::sleep(Duration::from_millis(3 * turn));
            killed.kill().unwrap();
            killed.wait().unwrap();
            let (connection, mut receiver) = open(&address, provider);
            echo(&connection, &mut receiver, 1, 2 << 20);
        }
        let began = Instant::now();
        while reactors.connections() > 0 {
            assert!(began.elapsed() < LIMIT, "the server has not noticed");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(reactors);
        assert_eq!(pool.free_bytes(), pool.len_bytes(), "{provider}: buffers were lost");
    }
}

//! The echo of `echo.rs` behind fabrics: messages and bulk data come back whole, and clients that die or send garbage
//! harm no other client. An absent provider is skipped.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_buffers::Pool;
use ferrite_transport::connection::{Connection, Fabric, Receiver, upgrade};
use ferrite_transport::reactor::{Close, Data, FabricOptions, Link, Options, Origin, Reactors, Served, Service};
use ferrite_transport::secure::{AdmissionPolicy, Credentials, Encrypt, Encryption, Key};
use ferrite_transport::send_queue::SendQueue;
use ferrite_transport::{FabricError, Provider};

const LIMIT: Duration = Duration::from_secs(10);

/// Messages with such numbers are answered from a buffer, however little data they want.
const FROM_BUFFER: u64 = 1 << 32;

/// Answers each message with its first eight bytes and its data.
struct Echo(Pool);

impl Service for Echo {
    type Peer = Link;

    fn connected(&self, link: Link, _: Origin) -> Link {
        link
    }

    /// The body is a number, how much data the reply should have if the message has none, and anything.
    fn message(&self, _: &mut Link, body: &[u8], data: Data<'_>, out: &mut SendQueue) -> Result<Served, Close> {
        let (id, rest) = body.split_first_chunk::<8>().ok_or(Close)?;
        let (wanted, rest) = rest.split_first_chunk::<8>().ok_or(Close)?;
        let wanted = u64::from_le_bytes(*wanted) as usize;
        let mut frame = out.frame();
        frame.body().extend(id);
        frame.body().extend(rest);
        match data {
            Data::Buffer(buffer) => frame.finish_from(buffer),
            Data::Inline(bytes) if !bytes.is_empty() => frame.finish_with(bytes.len(), |buf| {
                buf.copy_from_slice(bytes);
                bytes.len()
            }),
            Data::Inline(_) if wanted > 32 << 10 || u64::from_le_bytes(*id) >= FROM_BUFFER => {
                let Some(mut buffer) = self.0.take(wanted) else {
                    return Ok(Served::Starved);
                };
                fill(&mut buffer, id[0]);
                frame.finish_from(buffer);
            }
            Data::Inline(_) => frame.finish_with(wanted, |buf| {
                fill(buf, id[0]);
                buf.len()
            }),
        }
        Ok(Served::Yes)
    }

    fn disconnected(&self, _: Link) {}
}

fn fill(buf: &mut [u8], salt: u8) {
    for (at, byte) in buf.iter_mut().enumerate() {
        *byte = (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ salt;
    }
}

fn filled(len: usize, salt: u8) -> Vec<u8> {
    let mut data = vec![0; len];
    fill(&mut data, salt);
    data
}

/// A client at an adapter's address needs a key. All processes of a test have this one.
fn key() -> Key {
    Key::parse(&format!("ferrite-key-1:{}", "5a".repeat(32))).unwrap()
}

fn options(fabric: Option<FabricOptions>) -> Options {
    let mut policy = AdmissionPolicy::new(true);
    policy.admit(&key(), Encryption::Offered);
    Options {
        policy: Arc::new(policy),
        fabric,
        ..Options::default()
    }
}

fn serve(pool: &Pool) -> (Reactors, String) {
    let listener = TcpListener::bind((host(), 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = options(Some(FabricOptions::default()));
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
    let credentials = Credentials {
        key: Some(key()),
        encrypt: Encrypt::Off,
    };
    upgrade(Connection::open(address, &credentials, LIMIT)?, address, &fabric, LIMIT)
}

fn open(address: &str, provider: &str) -> (Connection, Receiver) {
    try_open(address, provider, 16 << 20).unwrap()
}

/// Where servers listen: `verbs` needs an address of an adapter.
fn host() -> String {
    std::env::var("FERRITE_FABRIC_HOST").unwrap_or_else(|_| "127.0.0.1".into())
}

/// Providers that can be tested here; an explicitly requested one must be present.
fn providers() -> Vec<&'static str> {
    if let Ok(name) = std::env::var("FERRITE_FABRIC_PROVIDER") {
        let provider = Provider::named(&name).expect("FERRITE_FABRIC_PROVIDER is a provider");
        assert!(provider.is_there(), "libfabric has no provider {name} here");
        return vec![provider.name()];
    }
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
    panic!("no reply");
}

/// One message each way.
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
            // Only back, with a place for it, without, and with one that is too small.
            for (turn, space) in [size, 0, size / 2].into_iter().enumerate() {
                let id = (turn as u64 + 1) * 1000 + id as u64;
                connection.ask(&body(id, size, 0), &[], space).unwrap();
                let (came, _, data) = receive(&mut receiver);
                assert_eq!(came, id);
                assert!(data == filled(size, id as u8), "{size} bytes, space for {space}");
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

/// Two threads request data of many sizes, while this one receives it.
fn ask_and_receive(connection: &Connection, receiver: &mut Receiver, client: usize) {
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
            let (id, _, data) = receive(receiver);
            assert!(data == filled(data.len(), id as u8));
        }
    });
}

/// A request for the end of a file names a place for much data, and little or none comes.
#[test]
fn answers_with_less_data_than_there_is_space_for_arrive() {
    for provider in providers() {
        let pool = Pool::new(16 << 20).unwrap();
        let (reactors, address) = serve(&pool);
        let (connection, mut receiver) = open(&address, provider);
        for (id, size) in [0, 1, 4096, 4097, 33_000].into_iter().enumerate() {
            let id = id as u64 + FROM_BUFFER;
            connection.ask(&body(id, size, 0), &[], 1 << 20).unwrap();
            let (came, _, data) = receive(&mut receiver);
            assert!(came == id && data == filled(size, id as u8), "{provider}: {size} bytes");
        }
        drop((connection, receiver, reactors));
        assert_eq!(pool.free_bytes(), pool.len_bytes());
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
                    // Longer than a client that takes nothing may keep scarce buffers.
                    let began = Instant::now();
                    while began.elapsed() < Duration::from_millis(2500) {
                        ask_and_receive(connection, &mut receiver, client);
                    }
                });
            }
        });
        drop(reactors);
        assert_eq!(pool.free_bytes(), pool.len_bytes());
    }
}

/// Buffers for a client's messages are kept as long as there are clients. Once they came from any free place, and a
/// request too large for the gaps between them waited for ever.
#[test]
fn who_connects_to_a_busy_server_keeps_nobody_from_large_buffers() {
    for provider in providers() {
        let pool = Pool::new(12 << 20).unwrap();
        let (reactors, address) = serve(&pool);
        // As large data in flight may leave it: a little is free in every part.
        let pages: Vec<_> = std::iter::from_fn(|| pool.take(1)).collect();
        let busy: Vec<_> = pages
            .into_iter()
            .filter(|page| (page.offset() >> 12) % 90 != 0)
            .collect();
        assert!(pool.free_bytes() > 128 << 10, "enough for the messages of one");
        let tried = try_open(&address, provider, 16 << 20);
        drop(busy);
        let (connection, mut receiver) = tried.unwrap_or_else(|error| {
            assert!(error.to_string().contains("no memory for another now"), "{error}");
            open(&address, provider)
        });
        for id in 0..4 {
            echo(&connection, &mut receiver, id, 4 << 20);
        }
        drop((connection, receiver, reactors));
        assert_eq!(pool.free_bytes(), pool.len_bytes());
    }
}

/// A client that is silent for long is answered though the server sleeps, and each side notices the other's end.
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

/// Clients, and then the server, leave while messages to them are in flight. With MALLOC_PERTURB_=1 in the environment
/// a provider that uses freed memory crashes.
#[test]
fn who_leaves_with_messages_under_way_harms_nobody() {
    for provider in providers() {
        let pool = Pool::new(32 << 20).unwrap();
        let (reactors, address) = serve(&pool);
        for turn in 0..10 {
            let (connection, mut receiver) = open(&address, provider);
            echo(&connection, &mut receiver, 0, 10);
            for id in 1..10 {
                connection.ask(&body(id, 100, 0), &[], 0).unwrap();
            }
            std::thread::sleep(Duration::from_micros(300 * turn));
            drop((connection, receiver));
        }
        let (connection, mut receiver) = open(&address, provider);
        echo(&connection, &mut receiver, 0, 10);
        for id in 1..10 {
            connection.ask(&body(id, 100, 0), &[], 0).unwrap();
        }
        drop(reactors);
        // A client's knowledge of a server in this process stays as long as the client.
        drop((connection, receiver));
        assert_eq!(pool.free_bytes(), pool.len_bytes(), "{provider}: buffers were lost");
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let pool = Pool::new(16 << 20).unwrap();
    let listener = TcpListener::bind((host(), 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = Arc::new(Echo(pool.clone()));
    let reactors = Reactors::start(vec![listener], &service, &pool, &options(None)).unwrap();
    for provider in providers() {
        let refused = try_open(&address, provider, 1 << 20).unwrap_err().to_string();
        assert!(
            refused.contains("it is not configured to") && refused.contains("--listen fabric://"),
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

/// A process that works as a client.
fn start_child(provider: &str, address: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, format!("{provider}|{address}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("it works") {}
    child
}

/// The files in /dev/shm that are a process's endpoints.
fn endpoints_of(process: u32) -> usize {
    let of_process = format!("-{process}:");
    let names = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name.starts_with("ferrite-") && name.contains(&of_process))
        .count()
}

/// Each endpoint over shm is 16 MiB of memory, which a killed process leaves behind. The next process removes it.
#[test]
fn memory_of_killed_processes_is_removed() {
    if !providers().contains(&"shm") {
        return;
    }
    let pool = Pool::new(64 << 20).unwrap();
    let (_reactors, address) = serve(&pool);
    let mut children: Vec<_> = (0..2).map(|_| start_child("shm", &address)).collect();
    let mut last = children.pop().unwrap();
    let process = children[0].id();
    assert!(endpoints_of(process) > 0, "a live process has none");
    children[0].kill().unwrap();
    children[0].wait().unwrap();
    let mut next = start_child("shm", &address);
    assert_eq!(endpoints_of(process), 0);
    assert!(endpoints_of(last.id()) > 0, "a live process lost its own");
    for child in [&mut last, &mut next] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Killed in the middle of bulk transfers, clients leave no buffer behind, and others do not notice.
#[test]
fn killed_clients_leave_nothing_behind() {
    for provider in providers() {
        let pool = Pool::new(64 << 20).unwrap();
        let (reactors, address) = serve(&pool);
        for turn in 0..3 {
            let mut killed = start_child(provider, &address);
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

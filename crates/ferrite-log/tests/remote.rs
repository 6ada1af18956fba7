//! Logs in files of servers: over a network that loses, repeats and reorders datagrams, with servers that go down and
//! come back, in one file and in three replicas of one.
//!
//! Protects: a walk returns appended data, once, each appender's in its order, even if no client learned of its
//! completion; and all replicas of a log are equal.

#[path = "../../ferrite-server/tests/common/double.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod double;
#[path = "../../ferrite-server/tests/common/lossy_network.rs"]
mod lossy_network;

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use double::Double;
use ferrite_client::rdma::{
    Extent, RemoteError, RemoteFile, RemoteOptions, ReplicatedFile, ReplicatedOptions, Source, Standing,
};
use ferrite_client::{Client, ClientOptions};
use ferrite_log::{Log, LogOptions, RemoteStore, Store};
use ferrite_rnic::{InitiatorOptions, Options};
use ferrite_server::rdma::Adapter;
use ferrite_server::{ExportOptions, Rdma, Server, ServerOptions};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, FsError, NewFile, OpenMode, ROOT_INO, SYSTEM};
use lossy_network::LossyNetwork;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A server with a file.
struct Host {
    fs: Arc<MemFs>,
    address: String,
    server: Option<Server>,
    seed: u64,
}

impl Host {
    fn new(seed: u64) -> Host {
        let fs = Arc::new(MemFs::new());
        let new = NewFile {
            mode: 0o600,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        fs.create(SYSTEM, ROOT_INO, b"log", &new).unwrap();
        let mut host = Host {
            fs,
            address: "127.0.0.1:0".into(),
            server: None,
            seed,
        };
        host.start();
        host
    }

    fn start(&mut self) {
        let options = Options {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            ..Options::default()
        };
        let adapter = Adapter::start(&options, Arc::new(Double::default())).unwrap();
        let lossy_network = LossyNetwork::over(Arc::new(adapter), 3, self.seed);
        let options = ServerOptions::default()
            .rdma(Some(Arc::new(lossy_network) as Arc<dyn Rdma>))
            .lease(Duration::from_millis(500));
        let began = Instant::now();
        let listener = loop {
            match TcpListener::bind(&self.address) {
                Ok(listener) => break listener,
                Err(error) => assert!(began.elapsed() < TIMEOUT, "{error}"),
            }
        };
        self.address = listener.local_addr().unwrap().to_string();
        let export = ExportOptions::new("").root_squash(false);
        let exported = vec![(Arc::clone(&self.fs) as Arc<dyn FileSystem>, vec![export])];
        self.server = Some(Server::start(vec![listener], exported, &options).unwrap());
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }

    fn content(&self) -> Vec<u8> {
        let ino = self.fs.lookup(SYSTEM, ROOT_INO, b"log").unwrap().ino;
        let file = self.fs.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
        let mut bytes = vec![0; file.getattr(SYSTEM).unwrap().size as usize];
        assert_eq!(file.read_at(SYSTEM, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }
}

fn remote(address: &str, timeout: Duration) -> Result<RemoteFile, RemoteError> {
    let options = ClientOptions::default().timeout(Some(timeout));
    let client = Client::connect(address, "", &options).map_err(|error| FsError::Io(error.to_string()))?;
    let client = Arc::new(client);
    let ino = client.lookup(SYSTEM, ROOT_INO, b"log")?.ino;
    let options = RemoteOptions::default().initiator(InitiatorOptions {
        retry_after: Duration::from_millis(8),
        retries: 40,
        ..InitiatorOptions::default()
    });
    RemoteFile::open(&client, SYSTEM, ino, options)
}

fn open<S: Store>(store: S) -> Log<S> {
    Log::open(store, &LogOptions::default().create(true)).unwrap()
}

/// An append that names its appender and its number.
fn entry(who: u32, number: u32, random: &mut Rng) -> Vec<u8> {
    let mut data = pattern(number, 8 + random.below(9_000) as usize);
    data[..4].copy_from_slice(&who.to_le_bytes());
    data[4..8].copy_from_slice(&number.to_le_bytes());
    data
}

/// All entries, if each appender's are there from the first on, once and in order; returns their numbers.
fn check<S: Store>(log: &Log<S>) -> HashMap<u32, u32> {
    let mut next: HashMap<u32, u32> = HashMap::new();
    log.walk_appends(|data| {
        let [who, number] = [0, 4].map(|at| u32::from_le_bytes(data[at..at + 4].try_into().unwrap()));
        let next = next.entry(who).or_default();
        assert_eq!(*next, number, "of {who}");
        assert!(
            data[8..] == pattern(number, data.len())[8..],
            "{number} of {who} is torn"
        );
        *next += 1;
        true
    })
    .unwrap();
    next
}

/// Appends until `is_over` is set; returns the number of appends.
fn busy<S: Store>(log: &Log<S>, who: u32, seed: u64, is_over: &AtomicBool) -> u32 {
    let mut random = Rng::new(seed * 100 + u64::from(who));
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        log.append(&entry(who, number, &mut random)).unwrap();
        number += 1;
        if random.chance(5) {
            assert_eq!(check(log)[&who], number, "what has returned is there");
        }
    }
    number
}

#[test]
fn appends_happen_once_on_a_lossy_network_and_over_restarts() {
    let seed = seed_from_env().unwrap_or(1);
    println!("FERRITE_SEED={seed}");
    let mut host = Host::new(seed);
    let address = host.address.clone();
    let store = || RemoteStore::new(remote(&address, TIMEOUT).unwrap(), TIMEOUT);
    let is_over = AtomicBool::new(false);
    let by_verbs = AtomicU64::new(0);
    let appended = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|who| {
                scope.spawn({
                    let (store, is_over, by_verbs) = (&store, &is_over, &by_verbs);
                    move || {
                        let log = open(store());
                        let appended = busy(&log, who, seed, is_over);
                        by_verbs.fetch_add(log.store().file().traffic().packets.sent, Ordering::Relaxed);
                        appended
                    }
                })
            })
            .collect();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(400));
            host.stop();
            host.start();
        }
        std::thread::sleep(Duration::from_millis(400));
        is_over.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<u32>>()
    });
    assert!(appended.iter().all(|count| *count > 5), "{appended:?}");
    let log = open(store());
    let found = check(&log);
    assert!(
        (0..3).all(|who| found[&who] == appended[who as usize]),
        "{found:?}, {appended:?}"
    );
    assert!(by_verbs.load(Ordering::Relaxed) > 100, "verbs were hardly used");
    let used = log.tell().unwrap();
    log.rewind().unwrap();
    assert_eq!((log.tell().unwrap(), check(&log).len()), (0, 0));
    log.append(&entry(9, 0, &mut Rng::new(1))).unwrap();
    assert_eq!(check(&open(store())), HashMap::from([(9, 1)]));
    println!("{appended:?} appends, {used} bytes");
}

#[test]
fn a_log_with_replicas_goes_on_while_servers_are_away() {
    let seed = seed_from_env().unwrap_or(1);
    println!("FERRITE_SEED={seed}");
    let mut hosts: Vec<Host> = (0..3).map(|index| Host::new(seed + 1_000 * index)).collect();
    let source = |host: &Host| {
        let address = host.address.clone();
        Source::new(address.clone(), move || remote(&address, Duration::from_millis(700)))
    };
    let replicas = ReplicatedFile::open(hosts.iter().map(source).collect(), ReplicatedOptions::default()).unwrap();
    let replicas = Arc::new(replicas);
    let log = open(Arc::clone(&replicas));
    let is_over = AtomicBool::new(false);
    let appended = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|who| {
                scope.spawn({
                    let (replicas, log, is_over) = (&replicas, &log, &is_over);
                    move || match who {
                        0 => busy(log, who, seed, is_over),
                        _ => busy(&open(Arc::clone(replicas)), who, seed, is_over),
                    }
                })
            })
            .collect();
        for away in [1, 0] {
            std::thread::sleep(Duration::from_millis(300));
            hosts[away].stop();
            std::thread::sleep(Duration::from_millis(1_200));
            hosts[away].start();
            let began = Instant::now();
            while replicas
                .status()
                .iter()
                .any(|replica| replica.standing != Standing::Current)
            {
                assert!(began.elapsed() < TIMEOUT, "{:?}", replicas.status());
                replicas.resync(Extent::Known).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<u32>>()
    });
    assert!(appended.iter().all(|count| *count > 5), "{appended:?}");
    drop(log);
    Arc::into_inner(replicas).unwrap().close().unwrap();
    let contents: Vec<Vec<u8>> = hosts.iter().map(Host::content).collect();
    assert!(contents[0] == contents[1] && contents[0] == contents[2]);
    // Each is the log, on its own.
    let one = open(RemoteStore::new(remote(&hosts[2].address, TIMEOUT).unwrap(), TIMEOUT));
    let found = check(&one);
    assert!(
        (0..3).all(|who| found[&who] == appended[who as usize]),
        "{found:?}, {appended:?}"
    );
}

#[test]
fn a_rewind_frees_the_space_of_all_replicas() {
    let seed = seed_from_env().unwrap_or(1);
    println!("FERRITE_SEED={seed}");
    let hosts: Vec<Host> = (0..3).map(|index| Host::new(seed + 1_000 * index)).collect();
    let source = |host: &Host| {
        let address = host.address.clone();
        Source::new(address.clone(), move || remote(&address, TIMEOUT))
    };
    let replicas = ReplicatedFile::open(hosts.iter().map(source).collect(), ReplicatedOptions::default()).unwrap();
    let log = open(replicas);
    let blocks = || {
        let of = |host: &Host| {
            let ino = host.fs.lookup(SYSTEM, ROOT_INO, b"log").unwrap().ino;
            host.fs.getattr(SYSTEM, ino).unwrap().blocks
        };
        hosts.iter().map(of).collect::<Vec<u64>>()
    };
    let empty = blocks();
    for round in 0..3 {
        (0..20).for_each(|_| log.append(&[round; 50_000]).unwrap());
        let full = blocks();
        log.rewind().unwrap();
        assert_eq!(log.tell().unwrap(), 0);
        log.append(b"after").unwrap();
        for (index, now) in blocks().into_iter().enumerate() {
            // The pages that hold the end of the old ones and the new one.
            let page = 4096 / 512;
            assert!(
                now <= empty[index] + 3 * page && now < full[index],
                "{now} of {}",
                full[index]
            );
        }
        let mut found = Vec::new();
        log.walk(0, |data| {
            found.extend_from_slice(data);
            true
        })
        .unwrap();
        assert_eq!(found, b"after");
        log.rewind().unwrap();
    }
    log.into_store().close().unwrap();
    let contents: Vec<Vec<u8>> = hosts.iter().map(Host::content).collect();
    assert!(contents[0] == contents[1] && contents[0] == contents[2]);
}

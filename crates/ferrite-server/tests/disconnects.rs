//! A network that cuts, delays and fragments: clients see nothing of it, and their resources do not leak.
//!
//! Clients are on TCP, whatever others use: the network breaks their sockets' bytes. Cuts beside a fabric are in
//! `fabric.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::proxy::{NetworkFaults, Proxy};
use crate::common::{connect, export, make_pool, mount, serve};
use ferrite_client::{Client, ClientOptions};
use ferrite_fs::Engine;
use ferrite_server::{Server, ServerOptions};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::{TestEngine, linear, seed_from_env};
use ferrite_transport::secure::{Encryption, Key};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, FsError, NewFile, OpenMode, ROOT_INO, SYSTEM, StatFs};
use tempfile::TempPath;

const BAD: NetworkFaults = NetworkFaults {
    cuts: 15,
    delays: 5,
    crumbs: 30,
};
/// For tests of many thousands of requests.
const POOR: NetworkFaults = NetworkFaults {
    cuts: 1,
    delays: 1,
    crumbs: 5,
};

fn seed() -> u64 {
    let seed = seed_from_env().unwrap_or_else(|| u64::from(std::process::id()));
    println!("FERRITE_SEED={seed}");
    seed
}

fn runs() -> u64 {
    match (std::env::var_os("FERRITE_SHORT"), std::env::var_os("FERRITE_SOAK")) {
        (Some(_), _) => 1,
        (None, Some(_)) => 100,
        (None, None) => 3,
    }
}

/// A pool behind a server behind a bad network.
struct Shaky {
    // Dropped in this order.
    client: Option<Client>,
    network: Proxy,
    _server: Server,
    engine: Engine,
    _path: TempPath,
    before: StatFs,
    key: Option<Key>,
}

impl Shaky {
    fn new(network_faults: NetworkFaults, seed: u64, threads: usize) -> Shaky {
        Shaky::with_key(network_faults, seed, threads, None)
    }

    /// With a key all traffic is encrypted.
    fn with_key(network_faults: NetworkFaults, seed: u64, threads: usize, key: Option<Key>) -> Shaky {
        let path = make_pool(64 << 20, 8000);
        let engine = mount(&path);
        let options = ServerOptions::default().threads(threads);
        let export = export("")
            .keys(key.iter().cloned().collect())
            .encryption(Encryption::Always);
        let (server, address) = serve(Arc::new(engine.clone()), vec![export], &options);
        let network = Proxy::new(&address, network_faults, seed);
        let client = connect_through(&network, key.as_ref());
        Shaky {
            before: engine.statfs(SYSTEM).unwrap(),
            client: Some(client),
            network,
            _server: server,
            engine,
            _path: path,
            key,
        }
    }
}

/// The client does not retry its first connection on its own.
fn connect_through(network: &Proxy, key: Option<&Key>) -> Client {
    let options = ClientOptions::default().timeout(Some(Duration::from_secs(60)));
    let options = options.key(key.cloned());
    for _ in 0..20 {
        if let Ok(client) = Client::connect(&network.address, "", &options) {
            assert_eq!(client.is_encrypted(), Some(key.is_some()));
            return client;
        }
    }
    panic!("no connection in 20 tries");
}

impl TestEngine for Shaky {
    fn fs(&self) -> &dyn FileSystem {
        self.client.as_ref().expect("connected")
    }

    fn remount(&mut self) {
        self.client = None;
        self.client = Some(connect_through(&self.network, self.key.as_ref()));
    }

    fn check(&self) {
        let report = self.engine.scrub(None).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

impl Drop for Shaky {
    /// All resources of the client are released when its session has ended.
    fn drop(&mut self) {
        self.network.turn(NetworkFaults::default());
        self.client = None;
        if std::thread::panicking() {
            return;
        }
        let began = Instant::now();
        while self.engine.info().orphans > 0 {
            assert!(began.elapsed() < Duration::from_secs(40), "files without names stay");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn new_key() -> Option<Key> {
    Some(Key::generate().unwrap())
}

#[test]
fn random_operations_see_nothing() {
    let seed = seed();
    for profile in Profile::ALL {
        for run in 0..runs() {
            let make = || Box::new(Shaky::new(BAD, seed + run, 1)) as Box<dyn TestEngine>;
            check_against_reference(make, profile, seed + run, 150);
            let make = || Box::new(Shaky::with_key(BAD, seed + run, 1, new_key())) as Box<dyn TestEngine>;
            check_against_reference(make, profile, seed + run, 150);
        }
    }
}

#[test]
fn concurrent_histories_see_nothing() {
    let seed = seed();
    // With several threads a request may still be in progress when its repetition comes.
    let threads: &[usize] = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => &[1, 2, 3],
        None => &[3],
    };
    for &threads in threads {
        linear::run_all(|| Box::new(Shaky::new(POOR, seed, threads)), seed);
    }
}

/// Long data is cut in its middle, both ways.
#[test]
fn long_reads_and_writes_arrive_whole() {
    for key in [None, new_key()] {
        long_reads_and_writes(key);
    }
}

fn long_reads_and_writes(key: Option<Key>) {
    let seed = seed();
    let network_faults = NetworkFaults { cuts: 25, ..BAD };
    let site = Shaky::with_key(network_faults, seed, 2, key);
    let mut random = Rng::new(seed);
    let file = site
        .fs()
        .create(
            SYSTEM,
            ROOT_INO,
            b"file",
            &NewFile {
                mode: 0o644,
                open: OpenMode::read_write(),
                exclusive: true,
            },
        )
        .unwrap()
        .file;
    let mut expected = vec![0; 6 << 20];
    let write_all = |at: usize, data: &[u8]| {
        let mut done = 0;
        while done < data.len() {
            done += file.write_at(SYSTEM, (at + done) as u64, &data[done..]).unwrap();
        }
    };
    write_all(0, &expected);
    for round in 0..60 * runs() {
        let len = 1 + random.below(if round % 4 == 0 { 5 << 20 } else { 200 << 10 }) as usize;
        let at = random.below((expected.len() - len) as u64) as usize;
        let data = ferrite_testkit::rng::pattern(round as u32 + 1, len);
        write_all(at, &data);
        expected[at..at + len].copy_from_slice(&data);
        let at = random.below(expected.len() as u64) as usize;
        let mut back = vec![0; 1 + random.below(5 << 20) as usize];
        let count = file.read_at(SYSTEM, at as u64, &mut back).unwrap();
        assert_eq!(count, back.len().min(expected.len() - at));
        assert!(back[..count] == expected[at..at + count], "round {round}");
    }
    assert!(site.network.cuts() > 0);
}

/// Files are opened, pinned, listed and removed by several threads while the network breaks; once everything is closed,
/// removed files are free, though the client lives on.
#[test]
fn pins_and_open_files_do_not_leak() {
    let seed = seed();
    for threads in [1, 3] {
        let site = Shaky::new(BAD, seed, threads);
        let client = site.client.as_ref().unwrap();
        let pinning = &SYSTEM.clone().pinning();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let dir = client
                        .mkdir(SYSTEM, ROOT_INO, format!("dir{thread}").as_bytes(), 0o755)
                        .unwrap();
                    for round in 0..60 * runs() {
                        let name = format!("file{round}");
                        let name = name.as_bytes();
                        let new = NewFile {
                            mode: 0o644,
                            open: OpenMode::read_write(),
                            exclusive: true,
                        };
                        let opened = client.create(pinning, dir.ino, name, &new).unwrap();
                        opened.file.write_at(SYSTEM, 0, &[7; 10_000]).unwrap();
                        let found = client.lookup(pinning, dir.ino, name).unwrap();
                        assert_eq!(found.ino, opened.attr.ino);
                        let again = client.open(SYSTEM, found.ino, OpenMode::read_only()).unwrap();
                        let mut seen = 0;
                        let mut take = |_: &ferrite_vfs::DirEntry<'_>, attr: ferrite_vfs::Result<ferrite_vfs::Attr>| {
                            assert_eq!(attr.unwrap().ino, found.ino);
                            seen += 1;
                            true
                        };
                        client.readdir_plus(pinning, dir.ino, 0, &mut take).unwrap();
                        assert_eq!(seen, 1);
                        client.unlink(SYSTEM, dir.ino, name).unwrap();
                        assert_eq!(client.getattr(SYSTEM, found.ino).unwrap().nlink, 0);
                        drop(again);
                        client.unpin(SYSTEM, found.ino, 2);
                        assert_eq!(client.getattr(SYSTEM, found.ino).unwrap().generation, found.generation);
                        client.unpin(SYSTEM, found.ino, 1);
                        assert_eq!(opened.file.getattr(SYSTEM).unwrap().nlink, 0);
                    }
                    client
                        .rmdir(SYSTEM, ROOT_INO, format!("dir{thread}").as_bytes())
                        .unwrap();
                });
            }
        });
        assert!(site.network.cuts() > 0);
        let began = Instant::now();
        loop {
            let after = client.statfs(SYSTEM).unwrap();
            if after.inodes_free == site.before.inodes_free {
                break;
            }
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "{threads} threads: {} inodes are kept, {} without a name",
                site.before.inodes_free - after.inodes_free,
                site.engine.info().orphans
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// With a timeout a call fails in time, and the client works again with the network.
#[test]
fn calls_with_a_timeout_fail_in_time() {
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    let network = Proxy::new(&address, NetworkFaults::default(), 1);
    let options = ClientOptions::default().timeout(Some(Duration::from_millis(300)));
    let client = Client::connect(&network.address, "", &options).unwrap();
    client.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
    network.silence(true);
    for _ in 0..2 {
        let began = Instant::now();
        assert_eq!(
            client.getattr(SYSTEM, ROOT_INO).map(|attr| attr.ino),
            Err(FsError::TimedOut)
        );
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
    network.silence(false);
    let began = Instant::now();
    while client.getattr(SYSTEM, ROOT_INO).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10));
    }
    client.rmdir(SYSTEM, ROOT_INO, b"dir").unwrap();
    drop(connect(&address));
}

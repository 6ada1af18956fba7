//! One file as three, on three servers.
//!
//! Protected properties: an acknowledged write is on as many replicas as requested, at the same place; a replica that
//! was away is never read or trusted before it has caught up, whoever opens the set; and after a resync all are equal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::proxy::Proxy;
use crate::common::{export, serve, serve_at};
use crate::double::Double;
use crate::lossy_network::LossyNetwork;
use ferrite_client::rdma::{
    Acknowledge, Extent, Held, How, RemoteError, RemoteFile, RemoteOptions, ReplicatedError, ReplicatedFile,
    ReplicatedOptions, Resynced, Source, Standing,
};
use ferrite_client::{Client, ClientOptions};
use ferrite_rnic::{InitiatorOptions, Options};
use ferrite_server::rdma::Adapter;
use ferrite_server::{Rdma, Server, ServerOptions};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, FsError, NewFile, OpenMode, Position, ROOT_INO, SYSTEM};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A server with a file.
struct Host {
    fs: Arc<MemFs>,
    address: String,
    server: Option<Server>,
    /// The percentage of datagrams that are lost, repeated and late, each.
    percent: u64,
    seed: u64,
    lease: Duration,
    /// How many opens here use verbs.
    by_verbs: Arc<AtomicU64>,
}

impl Host {
    fn new(percent: u64, seed: u64) -> Host {
        let fs = Arc::new(MemFs::new());
        let new = NewFile {
            mode: 0o600,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        fs.create(SYSTEM, ROOT_INO, b"file", &new).unwrap();
        let mut host = Host {
            fs,
            address: String::new(),
            server: None,
            percent,
            seed,
            lease: Duration::from_millis(500),
            by_verbs: Arc::default(),
        };
        let (server, address) = serve(Arc::clone(&host.fs) as _, vec![export("")], &host.options());
        (host.server, host.address) = (Some(server), address);
        host
    }

    fn options(&self) -> ServerOptions {
        let options = Options {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            ..Options::default()
        };
        let adapter = Adapter::start(&options, Arc::new(Double::default())).unwrap();
        let lossy_network = LossyNetwork::over(Arc::new(adapter), self.percent, self.seed);
        ServerOptions::default()
            .rdma(Some(Arc::new(lossy_network) as Arc<dyn Rdma>))
            .lease(self.lease)
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }

    fn start(&mut self) {
        self.server = Some(serve_at(&self.address, Arc::clone(&self.fs) as _, &self.options()));
    }

    /// The content as programs on the host see it.
    fn content(&self) -> Vec<u8> {
        let ino = self.fs.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
        let file = self.fs.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
        let mut bytes = vec![0; file.getattr(SYSTEM).unwrap().size as usize];
        assert_eq!(file.read_at(SYSTEM, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    /// Leaves bytes here, and not elsewhere, as a writer that died may have.
    fn put(&self, position: Position, data: &[u8]) {
        let ino = self.fs.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
        let file = self.fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.write(SYSTEM, position.into(), data).unwrap();
    }

    fn source(&self) -> Source {
        self.source_at(self.address.clone())
    }

    /// The same, at another address.
    fn source_at(&self, address: String) -> Source {
        let by_verbs = Arc::clone(&self.by_verbs);
        Source::new(address.clone(), move || {
            let options = ClientOptions::default().timeout(Some(Duration::from_millis(700)));
            let failed = |error: &dyn std::fmt::Display| RemoteError::Fs(FsError::Io(error.to_string()));
            let client = Client::connect(&address, "", &options).map_err(|error| failed(&error))?;
            let client = Arc::new(client);
            let ino = client.lookup(SYSTEM, ROOT_INO, b"file")?.ino;
            let options = RemoteOptions::default().initiator(InitiatorOptions {
                retry_after: Duration::from_millis(10),
                retries: 30,
                ..InitiatorOptions::default()
            });
            let file = RemoteFile::open(&client, SYSTEM, ino, options)?;
            let is_by_verbs = matches!(file.how(), How::Verbs { .. });
            by_verbs.fetch_add(is_by_verbs.into(), Ordering::Relaxed);
            Ok(file)
        })
    }
}

fn hosts(percent: u64, seed: u64) -> Vec<Host> {
    (0..3).map(|index| Host::new(percent, seed + 1_000 * index)).collect()
}

fn open_as(hosts: &[Host], options: ReplicatedOptions) -> Result<ReplicatedFile, ReplicatedError> {
    ReplicatedFile::open(hosts.iter().map(Host::source).collect(), options)
}

/// A restarted server grants no locks before sessions that had locks may have claimed them.
fn open(hosts: &[Host]) -> ReplicatedFile {
    let began = Instant::now();
    loop {
        match open_as(hosts, ReplicatedOptions::default()) {
            Ok(file) => return file,
            Err(error) => assert!(began.elapsed() < TIMEOUT, "{error}"),
        }
    }
}

fn standings(file: &ReplicatedFile) -> Vec<Standing> {
    file.status().iter().map(|replica| replica.standing).collect()
}

fn read_all(file: &ReplicatedFile) -> Vec<u8> {
    let mut bytes = vec![0; file.size().unwrap() as usize];
    assert_eq!(file.read(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Resyncs until these replicas are current.
fn resync_some(file: &ReplicatedFile, which: &[usize]) -> Vec<Resynced> {
    let began = Instant::now();
    loop {
        let done = file.resync(Extent::Known).unwrap();
        let is_current = |index: &usize| standings(file)[*index] == Standing::Current;
        if which.iter().all(is_current) {
            assert!(which.iter().all(|index| done[*index].why.is_none()), "{done:?}");
            return done;
        }
        assert!(began.elapsed() < TIMEOUT, "{done:?}");
    }
}

fn resync(file: &ReplicatedFile) -> Vec<Resynced> {
    resync_some(file, &[0, 1, 2])
}

/// Writes until all replicas acknowledge it. On a busy machine, one whose server has just come back may need longer to
/// connect than a client waits for an answer.
fn write_to_all(file: &ReplicatedFile, offset: u64, data: &[u8]) {
    let began = Instant::now();
    while let Err(error) = file.write(offset, data) {
        assert!(matches!(error, ReplicatedError::TooFew { .. }), "{error}");
        assert!(began.elapsed() < TIMEOUT, "{error}");
        resync(file);
    }
}

fn equal(hosts: &[Host], content: &[u8]) {
    let by_verbs = |host: &Host| host.by_verbs.load(Ordering::Relaxed) > 0;
    assert!(hosts.iter().all(by_verbs), "verbs were not used");
    for (index, host) in hosts.iter().enumerate() {
        let found = host.content();
        let first = found.iter().zip(content).position(|(a, b)| a != b);
        assert!(
            found == content,
            "replica {index}: {} bytes of {}, the first difference at {first:?}",
            found.len(),
            content.len()
        );
    }
}

#[test]
fn all_replicas_hold_what_is_written_and_one_that_was_away_catches_up() {
    let mut hosts = hosts(0, 1);
    let file = open(&hosts);
    assert_eq!(standings(&file), [Standing::Current; 3]);
    let mut model = pattern(1, 100_000);
    let outcome = file.write(0, &model).unwrap();
    assert_eq!(outcome.replicas, [Held::Yes, Held::Yes, Held::Yes]);
    assert_eq!(file.append(b"appended").unwrap().offset, 100_000);
    model.extend(b"appended");
    equal(&hosts, &model);
    hosts[1].stop();
    let outcome = file.append(b"without").unwrap();
    model.extend(b"without");
    assert_eq!((outcome.holders(), outcome.offset), (2, 100_008));
    assert!(matches!(outcome.replicas[1], Held::Unknown { .. }), "{outcome:?}");
    // It is not written any more, and known to lack the writes that it missed.
    let outcome = file.write(50, &[7; 1_000]).unwrap();
    model[50..1_050].fill(7);
    assert!(matches!(outcome.replicas[1], Held::No { .. }), "{outcome:?}");
    let status = &file.status()[1];
    assert_eq!((status.standing, status.lacks_bytes), (Standing::Behind, 1_007));
    for _ in 0..3 {
        assert!(read_all(&file) == model);
    }
    let done = file.resync(Extent::Known).unwrap();
    assert!(done[1].why.is_some() && done[0].why.is_none(), "{done:?}");
    hosts[1].start();
    // Its server is back, and it is not.
    assert_eq!(file.write(0, b"x").unwrap().holders(), 2);
    model[0] = b'x';
    let done = resync(&file);
    assert_eq!((done[1].compared_bytes, done[0].compared_bytes), (1_008, 0));
    equal(&hosts, &model);
    assert_eq!(file.append(b"!").unwrap().holders(), 3);
    model.extend(b"!");
    file.close().unwrap();
    equal(&hosts, &model);
    // No replica is in doubt then.
    let file = open(&hosts);
    assert_eq!(standings(&file), [Standing::Current; 3]);
    let done = file.resync(Extent::Everything).unwrap();
    assert_eq!((done[2].compared_bytes, done[2].written_bytes), (model.len() as u64, 0));
}

#[test]
fn who_asks_for_all_replicas_hears_of_each_that_is_missing() {
    let mut hosts = hosts(0, 1);
    let options = ReplicatedOptions::default().acknowledge(Acknowledge::All);
    let file = open_as(&hosts, options).unwrap();
    file.append(b"all").unwrap();
    hosts[0].stop();
    match file.append(b"two") {
        Err(ReplicatedError::TooFew { outcome, needed: 3 }) => {
            assert_eq!((outcome.holders(), outcome.offset), (2, 3));
        }
        other => panic!("{other:?}"),
    }
    hosts[0].start();
    resync(&file);
    equal(&hosts, b"alltwo");
    // Without any server.
    // The client's session must outlive the restarts, however busy the machine is.
    for host in &mut hosts {
        host.lease = Duration::from_secs(10);
        host.stop();
        host.start();
    }
    resync(&file);
    hosts.iter_mut().for_each(Host::stop);
    assert!(matches!(file.append(b"none"), Err(ReplicatedError::TooFew { outcome, .. }) if outcome.holders() == 0));
    hosts.iter_mut().for_each(Host::start);
    write_to_all(&file, 0, b"A");
    resync(&file);
    let content = hosts[0].content();
    assert!(content == b"Alltwonone" || content == b"Alltwo\0\0\0\0", "{content:?}");
    equal(&hosts, &content);
}

/// The first replica is the one that was away, and the client that knew it is gone.
#[test]
fn a_replica_that_lacks_something_is_known_to_who_comes_later() {
    let mut hosts = hosts(0, 1);
    let file = open(&hosts);
    file.write(0, b"old old old").unwrap();
    hosts[0].stop();
    file.write(4, b"new").unwrap();
    file.close().unwrap();
    hosts[0].start();
    let reader = open_as(&hosts, ReplicatedOptions::default().writable(false)).unwrap();
    assert_eq!(
        standings(&reader),
        [Standing::Behind, Standing::Current, Standing::Current]
    );
    for _ in 0..3 {
        assert_eq!(read_all(&reader), b"old new old");
    }
    assert!(matches!(reader.write(0, b"x"), Err(ReplicatedError::ReadOnly)));
    // A majority of which only one has the record is enough to know it.
    hosts[1].stop();
    let file = open(&hosts);
    assert_eq!(read_all(&file), b"old new old");
    // Nothing can be acknowledged with one replica.
    assert!(matches!(file.write(0, b"x"), Err(ReplicatedError::TooFew { .. })));
    let done = resync_some(&file, &[0]);
    assert!(done[1].why.is_some(), "{done:?}");
    file.write(0, b"two").unwrap();
    drop(file);
    hosts[1].start();
    // The second replica has no say about the writes that it was left out of.
    let file = open(&hosts);
    assert_eq!(
        standings(&file),
        [Standing::Current, Standing::Behind, Standing::InDoubt]
    );
    resync(&file);
    equal(&hosts, b"two new old");
}

/// A writer that reached one replica alone must not make that one look newer than others' later writes.
#[test]
fn what_only_a_minority_has_is_not_believed() {
    let mut hosts = hosts(0, 1);
    let file = open(&hosts);
    file.write(0, b"base").unwrap();
    // The third is away when the first writer ends, and so is the second when the next one comes.
    hosts[2].stop();
    file.write(0, b"Base").unwrap();
    drop(file);
    hosts[2].start();
    hosts[1].stop();
    let file = open(&hosts);
    assert!(matches!(file.write(0, b"lost"), Err(ReplicatedError::TooFew { .. })));
    drop(file);
    hosts[1].start();
    hosts[0].stop();
    let file = open(&hosts);
    assert_eq!(read_all(&file), b"Base");
    resync_some(&file, &[1, 2]);
    file.write(0, b"true").unwrap();
    file.close().unwrap();
    hosts[0].start();
    let file = open(&hosts);
    assert_eq!(
        standings(&file),
        [Standing::Behind, Standing::Current, Standing::Current]
    );
    resync(&file);
    equal(&hosts, b"true");
}

/// The remains of a writer that dies in an append: bytes on some replicas, zeros or nothing on others.
#[test]
fn what_a_dead_writer_left_is_in_doubt_until_it_is_mended() {
    let hosts = hosts(0, 1);
    let file = open(&hosts);
    let mut model = pattern(1, 3_000_000);
    file.append(&model).unwrap();
    drop(file);
    hosts[0].put(Position::End, b"half of it");
    hosts[1].put(Position::End, &[0; 20]);
    hosts[2].put(Position::At(5), b"x");
    model.extend(b"half of it");
    let file = open(&hosts);
    assert_eq!(
        standings(&file),
        [Standing::Current, Standing::InDoubt, Standing::InDoubt]
    );
    for _ in 0..3 {
        assert!(read_all(&file) == model, "one says what is there");
    }
    // They count meanwhile: they hold everything acknowledged.
    assert_eq!(file.append(b"next").unwrap().holders(), 3);
    model.extend(b"next");
    let done = resync(&file);
    assert!(
        done[2].written_bytes > 0 && done[2].written_bytes <= 2 << 20,
        "{done:?}"
    );
    equal(&hosts, &model);
}

/// The remains of a dead writer behind the end are gone from every replica once a client writes further behind, even
/// while a replica is only half caught up.
#[test]
fn a_gap_that_is_written_during_a_resync_is_zeros_everywhere() {
    let hosts = hosts(0, 1);
    let file = open(&hosts);
    let size = 24 << 20;
    let mut model = pattern(1, size);
    for part in model.chunks(1 << 20) {
        file.append(part).unwrap();
    }
    drop(file);
    hosts[1].put(Position::End, &[0xee; 2 << 20]);
    let file = open(&hosts);
    // The first defines the content.
    assert_eq!(standings(&file)[1], Standing::InDoubt);
    std::thread::scope(|scope| {
        let resync = scope.spawn(|| resync(&file));
        let began = Instant::now();
        while file.status()[1].lacks_bytes == size as u64 {
            assert!(began.elapsed() < TIMEOUT);
        }
        file.write(size as u64 + (1 << 20), b"behind a gap").unwrap();
        resync.join().unwrap();
    });
    model.resize(size + (1 << 20), 0);
    model.extend(b"behind a gap");
    equal(&hosts, &model);
}

#[test]
fn one_writes_at_a_time_and_sets_are_not_mixed() {
    let hosts = hosts(0, 1);
    let file = open(&hosts);
    assert!(matches!(
        open_as(&hosts, ReplicatedOptions::default()),
        Err(ReplicatedError::Locked { .. })
    ));
    file.append(b"first").unwrap();
    file.close().unwrap();
    let file = open(&hosts);
    file.append(b"second").unwrap();
    file.close().unwrap();
    equal(&hosts, b"firstsecond");
    let wrong = open_as(&hosts[..2], ReplicatedOptions::default());
    assert!(matches!(
        wrong,
        Err(ReplicatedError::OtherCount { of: 3, given: 2, .. })
    ));
    let others = self::hosts(0, 2);
    open(&others).close().unwrap();
    let mixed = [&hosts[0], &hosts[1], &others[2]].map(Host::source).into();
    let mixed = ReplicatedFile::open(mixed, ReplicatedOptions::default());
    assert!(matches!(mixed, Err(ReplicatedError::OtherSet { .. })));
    // The content of the first is that of a new set.
    let new = self::hosts(0, 3);
    new[0].put(Position::End, b"mine");
    new[1].put(Position::End, b"yours, and longer");
    let file = open(&new);
    assert_eq!(read_all(&file), b"mine");
    resync(&file);
    equal(&new, b"mine");
}

/// The lock is lost with the session, and with it the right to write, also by verbs, which the network lets through.
#[test]
fn who_was_cut_off_writes_nothing_more() {
    let hosts = hosts(0, 1);
    let proxy = |host: &Host| Proxy::new(&host.address, Default::default(), 1);
    let proxies: Vec<Proxy> = hosts.iter().map(proxy).collect();
    let ways = hosts.iter().zip(&proxies);
    let sources = ways.map(|(host, proxy)| host.source_at(proxy.address.clone()));
    let first = ReplicatedFile::open(sources.collect(), ReplicatedOptions::default()).unwrap();
    first.write(0, b"first").unwrap();
    equal(&hosts, b"first");
    proxies.iter().for_each(|proxy| proxy.silence(true));
    // When the lease is over.
    let second = open(&hosts);
    second.write(0, b"other").unwrap();
    // The first had it open, so its last writes were in doubt.
    resync(&second);
    let fails = || match first.write(0, b"wrong") {
        Err(ReplicatedError::TooFew { outcome, .. }) => assert_eq!(outcome.holders(), 0, "{outcome:?}"),
        Err(ReplicatedError::Superseded { .. }) => {}
        other => panic!("{other:?}"),
    };
    fails();
    proxies.iter().for_each(|proxy| proxy.silence(false));
    // As soon as a replica is reachable again it reports why.
    let began = Instant::now();
    while !matches!(first.write(0, b"wrong"), Err(ReplicatedError::Superseded { .. })) {
        fails();
        assert!(began.elapsed() < TIMEOUT, "nobody says that there is another writer");
        std::thread::sleep(Duration::from_millis(10));
    }
    equal(&hosts, b"other");
    second.close().unwrap();
    for _ in 0..3 {
        let refused = first.append(b"wrong").unwrap_err();
        assert!(matches!(refused, ReplicatedError::Superseded { .. }), "{refused}");
    }
    assert!(matches!(
        first.resync(Extent::Known),
        Err(ReplicatedError::Superseded { .. })
    ));
    assert!(matches!(first.close(), Err(ReplicatedError::Superseded { .. })));
    equal(&hosts, b"other");
    let third = open(&hosts);
    assert_eq!(standings(&third), [Standing::Current; 3], "the first has noted nothing");
}

#[test]
fn what_is_freed_is_free_on_all_replicas_also_where_that_was_missed() {
    let mut hosts = hosts(0, 1);
    let file = open(&hosts);
    let mut model = pattern(1, 6 << 20);
    file.append(&model).unwrap();
    let blocks = |host: &Host| {
        let ino = host.fs.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
        host.fs.getattr(SYSTEM, ino).unwrap().blocks
    };
    let before = blocks(&hosts[0]);
    assert_eq!(file.free(0, 2 << 20).unwrap().holders(), 3);
    model[..2 << 20].fill(0);
    assert!(read_all(&file) == model);
    assert!(hosts.iter().all(|host| blocks(host) <= before * 2 / 3), "{before}");
    hosts[2].stop();
    assert_eq!(file.free(2 << 20, 2 << 20).unwrap().holders(), 2);
    model[..4 << 20].fill(0);
    hosts[2].start();
    let done = resync_some(&file, &[2]);
    assert_eq!(done[2].written_bytes, 2 << 20);
    assert!(hosts.iter().all(|host| blocks(host) <= before / 3), "{before}");
    // Behind the end there is nothing to free, and the file does not grow.
    assert_eq!(file.free(5 << 20, 9 << 20).unwrap().holders(), 3);
    model[5 << 20..].fill(0);
    assert!(file.free(0, 0).is_err());
    assert_eq!(standings(&file), [Standing::Current; 3]);
    equal(&hosts, &model);
}

/// Threads append and write while the network is bad, servers go and come back, and replicas catch up.
#[test]
fn replicas_are_equal_after_a_storm() {
    let first = seed_from_env().unwrap_or(1);
    let rounds = if std::env::var_os("FERRITE_SOAK").is_some() {
        20
    } else {
        2
    };
    for seed in first..first + rounds {
        println!("FERRITE_SEED={seed}");
        let mut hosts = hosts(2, seed);
        let file = open(&hosts);
        // Each thread has a part of its own that it writes in place.
        file.write(0, &vec![0; 40_000]).unwrap();
        let is_over = AtomicBool::new(false);
        let mut random = Rng::new(seed);
        let (appended, mut content) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u32)
                .map(|thread| {
                    scope.spawn({
                        let (file, is_over) = (&file, &is_over);
                        move || busy(file, thread, seed, is_over)
                    })
                })
                .collect();
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(300));
                let away = random.below(3) as usize;
                hosts[away].stop();
                std::thread::sleep(Duration::from_millis(1_500));
                hosts[away].start();
                let began = Instant::now();
                while standings(&file) != [Standing::Current; 3] {
                    assert!(began.elapsed() < TIMEOUT, "{:?}", file.status());
                    let done = file.resync(Extent::Known).unwrap();
                    done.iter()
                        .flat_map(|replica| &replica.why)
                        .for_each(|why| println!("{why}"));
                }
            }
            is_over.store(true, Ordering::Relaxed);
            let mut content = vec![0; 40_000];
            let mut appended = Vec::new();
            for (thread, done) in threads.into_iter().enumerate() {
                let (own, places) = done.join().unwrap();
                content[thread * 10_000..][..10_000].copy_from_slice(&own);
                appended.extend(places);
            }
            (appended, content)
        });
        assert!(appended.len() > 30, "only {} appends", appended.len());
        let size = file.size().unwrap() as usize;
        content.resize(size, 0);
        let mut taken = vec![false; size];
        for (offset, data) in &appended {
            let at = *offset as usize..*offset as usize + data.len();
            assert!(taken[at.clone()].iter().all(|taken| !taken), "two appends at {offset}");
            taken[at.clone()].fill(true);
            content[at].copy_from_slice(data);
        }
        // All of it was acknowledged.
        assert!(taken[40_000..].iter().all(|taken| *taken));
        file.close().unwrap();
        equal(&hosts, &content);
    }
}

/// Returns the thread's part, and the offsets and data of its appends.
fn busy(file: &ReplicatedFile, thread: u32, seed: u64, is_over: &AtomicBool) -> (Vec<u8>, Vec<(u64, Vec<u8>)>) {
    let mut random = Rng::new(seed * 100 + u64::from(thread));
    let (mut own, mut appended) = (vec![0; 10_000], Vec::new());
    let start = u64::from(thread) * 10_000;
    while !is_over.load(Ordering::Relaxed) {
        let data = pattern(random.below(1 << 30) as u32, 1 + random.below(6_000) as usize);
        match random.below(3) {
            0 => {
                let at = random.below(10_000 - data.len() as u64);
                file.write(start + at, &data).unwrap();
                own[at as usize..][..data.len()].copy_from_slice(&data);
            }
            1 => {
                let mut read = vec![1; 10_000];
                assert_eq!(file.read(start, &mut read).unwrap(), read.len());
                assert!(read == own, "thread {thread} reads what it has not written");
            }
            _ => appended.push((file.append(&data).unwrap().offset, data)),
        }
    }
    (own, appended)
}

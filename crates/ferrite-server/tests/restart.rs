//! Servers that are killed while clients work: every acknowledged change has happened, once; clients keep their open
//! files, pins and locks. Clients notice nothing but the wait.
//!
//! The server is a process, which the test kills at a random instruction, repeatedly ([`common::child`]). The times
//! between come from a seed, which is printed; `FERRITE_SEED` replays them.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::child::{Site, serve_if_child};
use common::{connect, export, make_pool, mount, serve};
use ferrite_client::{Client, ClientOptions};
use ferrite_fs::fsck;
use ferrite_pm::{Image, Region};
use ferrite_server::ServerOptions;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;
use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, LockRequest, RecordLock, Unlock, Wait, wait_for};
use ferrite_vfs::{
    ClientId, Ctx, FileKind, FileSystem, FsError, Ino, NewFile, OpenMode, ROOT_INO, RenameMode, Result, SYSTEM, Written,
};

/// Not a test: the work of the killed process.
#[test]
fn child() {
    serve_if_child();
}

const LEASE: Duration = Duration::from_secs(2);

fn kills() -> u64 {
    match (std::env::var_os("FERRITE_SHORT"), std::env::var_os("FERRITE_SOAK")) {
        (Some(_), _) => 4,
        (None, Some(_)) => 300,
        (None, None) => 15,
    }
}

fn seed() -> u64 {
    let seed = seed_from_env().unwrap_or_else(|| u64::from(std::process::id()));
    println!("FERRITE_SEED={seed}");
    seed
}

fn new_file(exclusive: bool) -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive,
    }
}

/// Works until the test signals the end.
type Worker<'w> = Box<dyn Fn(&AtomicBool) + Send + Sync + 'w>;

/// Kills and restarts the server at random times while `workers` run, which end when the test signals it.
fn with_kills(site: &mut Site, seed: u64, workers: Vec<Worker<'_>>) {
    let is_over = &AtomicBool::new(false);
    let (workers, mut random) = (&workers, Rng::new(seed));
    std::thread::scope(|scope| {
        // Also if a restart fails, or they would work for ever.
        let _end = Ends(is_over);
        let running: Vec<_> = workers.iter().map(|work| scope.spawn(|| work(is_over))).collect();
        for _ in 0..kills() {
            std::thread::sleep(Duration::from_millis(20 + random.below(400)));
            site.kill();
            std::thread::sleep(Duration::from_millis(random.below(100)));
            site.start();
            if running.iter().any(|worker| worker.is_finished()) {
                break;
            }
        }
    });
}

struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn goes_on(is_over: &AtomicBool) -> bool {
    !is_over.load(Ordering::Acquire)
}

/// Stops the server and checks that the pool is consistent, without remains of files without names.
fn is_in_order(mut site: Site, path: &std::path::Path) {
    site.stop();
    let image = Image::read(path).unwrap();
    let report = fsck(Region::of_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.orphans, 0);
}

#[test]
fn records_that_were_acknowledged_are_there_once() {
    let seed = seed();
    let path = make_pool(64 << 20, 1000);
    let mut site = Site::new(&path, LEASE, 1);
    let clients = [connect(&site.address), connect(&site.address)];
    drop(clients[0].create(SYSTEM, ROOT_INO, b"log", &new_file(true)).unwrap());
    let acknowledged: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    let append = |thread: usize| {
        let (client, acknowledged) = (&clients[thread % 2], &acknowledged[thread]);
        Box::new(move |is_over: &AtomicBool| {
            let ino = client.lookup(SYSTEM, ROOT_INO, b"log").unwrap().ino;
            let file = client.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            while goes_on(is_over) {
                let number = acknowledged.load(Ordering::Relaxed);
                let record = [thread as u64, number].map(u64::to_le_bytes).concat();
                let Written { offset, len_bytes } = file.append(SYSTEM, &record).unwrap();
                assert_eq!((offset % 16, len_bytes), (0, 16));
                let mut back = [0; 16];
                assert_eq!(file.read_at(SYSTEM, offset, &mut back).unwrap(), 16);
                assert_eq!(back[..], record[..], "what was written is where the answer says");
                acknowledged.store(number + 1, Ordering::Relaxed);
            }
        }) as Worker<'_>
    };
    with_kills(&mut site, seed, (0..4).map(append).collect());
    let ino = clients[0].lookup(SYSTEM, ROOT_INO, b"log").unwrap().ino;
    let file = clients[0].open(SYSTEM, ino, OpenMode::read_only()).unwrap();
    let mut content = vec![0; file.getattr(SYSTEM).unwrap().size as usize];
    assert_eq!(file.read_at(SYSTEM, 0, &mut content).unwrap(), content.len());
    let mut next: HashMap<u64, u64> = HashMap::new();
    for record in content.chunks(16) {
        let [thread, number] = [0, 8].map(|at| u64::from_le_bytes(record[at..at + 8].try_into().unwrap()));
        let next = next.entry(thread).or_default();
        assert_eq!(number, *next, "thread {thread}: a record is lost or there twice");
        *next += 1;
    }
    for (thread, acknowledged) in acknowledged.iter().enumerate() {
        let acknowledged = acknowledged.load(Ordering::Relaxed);
        assert!(acknowledged > 0);
        assert_eq!(next.get(&(thread as u64)), Some(&acknowledged), "thread {thread}");
    }
    assert!(clients.iter().all(|client| client.reconnects() > 0));
    drop((file, clients));
    is_in_order(site, &path);
}

/// Each change of a name succeeds: a second execution of the first, or of the one before, would not.
fn names(client: &Client, thread: usize, is_over: &AtomicBool) {
    let name = |what: &str| format!("{what}{thread}").into_bytes();
    let (ping, pong, dir, file, link) = (name("ping"), name("pong"), name("dir"), name("file"), name("link"));
    drop(client.create(SYSTEM, ROOT_INO, &ping, &new_file(true)).unwrap());
    while goes_on(is_over) {
        let rename = |from, to| client.rename(SYSTEM, ROOT_INO, from, ROOT_INO, to, RenameMode::NoReplace);
        rename(&ping, &pong).unwrap();
        assert_eq!(
            client.lookup(SYSTEM, ROOT_INO, &ping).map(|attr| attr.ino),
            Err(FsError::NotFound)
        );
        rename(&pong, &ping).unwrap();
        assert_eq!(rename(&pong, &ping), Err(FsError::NotFound));
        let made = client.mkdir(SYSTEM, ROOT_INO, &dir, 0o755).unwrap();
        let again = client.mkdir(SYSTEM, ROOT_INO, &dir, 0o755).map(|attr| attr.ino);
        assert_eq!(again, Err(FsError::Exists));
        assert_eq!(client.lookup(SYSTEM, ROOT_INO, &dir).unwrap().ino, made.ino);
        client.rmdir(SYSTEM, ROOT_INO, &dir).unwrap();
        let opened = client.create(SYSTEM, ROOT_INO, &file, &new_file(true)).unwrap();
        assert!(opened.created);
        opened.file.write_at(SYSTEM, 0, b"content").unwrap();
        client.link(SYSTEM, opened.attr.ino, ROOT_INO, &link).unwrap();
        assert_eq!(opened.file.getattr(SYSTEM).unwrap().nlink, 2);
        client.unlink(SYSTEM, ROOT_INO, &file).unwrap();
        client
            .rename(SYSTEM, ROOT_INO, &link, ROOT_INO, &file, RenameMode::Replace)
            .unwrap();
        client.unlink(SYSTEM, ROOT_INO, &file).unwrap();
        let mut content = [0; 7];
        assert_eq!(opened.file.read_at(SYSTEM, 0, &mut content), Ok(7));
        assert_eq!(&content, b"content");
    }
}

#[test]
fn changes_of_names_have_the_result_of_the_first_try() {
    let seed = seed();
    let path = make_pool(64 << 20, 1000);
    let mut site = Site::new(&path, LEASE, 2);
    let clients = [connect(&site.address), connect(&site.address)];
    let before = clients[0].statfs(SYSTEM).unwrap();
    // Of two exclusive creations one succeeds; the winner removes the file. `held` says that there is a winner.
    let (held, wins) = (AtomicBool::new(false), AtomicU64::new(0));
    let compete = |client: &Client, is_over: &AtomicBool| {
        while goes_on(is_over) {
            match client.create(SYSTEM, ROOT_INO, b"flag", &new_file(true)) {
                Ok(_) => {
                    assert!(!held.swap(true, Ordering::AcqRel), "both have created it");
                    wins.fetch_add(1, Ordering::Relaxed);
                    held.store(false, Ordering::Release);
                    client.unlink(SYSTEM, ROOT_INO, b"flag").unwrap();
                }
                Err(error) => assert_eq!(error, FsError::Exists),
            }
        }
    };
    let [a, b] = &clients;
    let compete = &compete;
    with_kills(
        &mut site,
        seed,
        vec![
            Box::new(|is_over| names(a, 0, is_over)),
            Box::new(|is_over| names(a, 1, is_over)),
            Box::new(|is_over| names(b, 2, is_over)),
            Box::new(move |is_over| compete(a, is_over)),
            Box::new(move |is_over| compete(b, is_over)),
        ],
    );
    assert!(wins.load(Ordering::Relaxed) > 0);
    for thread in 0..3 {
        clients[0]
            .unlink(SYSTEM, ROOT_INO, format!("ping{thread}").as_bytes())
            .unwrap();
    }
    drop(clients);
    // Files that were open when the server was killed stay until the grace period is over.
    let last = connect(&site.address);
    assert_comes_back(&last, before.inodes_free);
    drop(last);
    is_in_order(site, &path);
}

fn record(owner: u64, range: (u64, u64), kind: LockKind) -> LockRequest {
    LockRequest::Record(RecordLock {
        owner: LockOwner(owner),
        pid: 1,
        kind,
        range: ByteRange::new(range.0, range.1).unwrap(),
    })
}

fn lock(client: &Client, ctx: &Ctx, ino: Ino, request: &LockRequest, wait: Wait) -> Result<()> {
    wait_for(
        wait,
        |may_wait, done| client.lock(ctx, ino, request, may_wait, done),
        |ticket| client.cancel_lock(ctx, ticket),
    )
}

#[test]
fn files_without_names_pins_and_locks_stay() {
    let seed = seed();
    let path = make_pool(64 << 20, 1000);
    let mut site = Site::new(&path, LEASE, 1);
    let (holder, other) = (connect(&site.address), connect(&site.address));
    let before = holder.statfs(SYSTEM).unwrap();
    let make = |name: &[u8]| holder.create(SYSTEM, ROOT_INO, name, &new_file(true)).unwrap();
    let nameless = make(b"nameless");
    let locked = make(b"locked");
    // Nothing but the open file keeps it when its lock is claimed.
    let alone = LockRequest::Flock(LockOwner(3), LockKind::Exclusive);
    lock(&holder, SYSTEM, nameless.attr.ino, &alone, Wait::No).unwrap();
    let pinned = holder
        .mkdir(&SYSTEM.clone().pinning(), ROOT_INO, b"pinned", 0o700)
        .unwrap();
    holder.unlink(SYSTEM, ROOT_INO, b"nameless").unwrap();
    other.rmdir(SYSTEM, ROOT_INO, b"pinned").unwrap();
    let ino = locked.attr.ino;
    let theirs = other.lookup(SYSTEM, ROOT_INO, b"locked").unwrap().ino;
    let ctx = &SYSTEM.clone().of_client(ClientId::fresh());
    lock(
        &holder,
        ctx,
        ino,
        &LockRequest::Flock(LockOwner(1), LockKind::Exclusive),
        Wait::No,
    )
    .unwrap();
    // A lock with a hole in it, which the client reclaims step by step.
    lock(&holder, ctx, ino, &record(1, (0, 1000), LockKind::Exclusive), Wait::No).unwrap();
    let hole = ByteRange::new(100, 100).unwrap();
    holder.unlock(ctx, ino, LockOwner(1), Unlock::Range(hole)).unwrap();
    let tries = AtomicU64::new(0);
    with_kills(
        &mut site,
        seed,
        vec![
            Box::new(|is_over| {
                let mut number = 0u64;
                while goes_on(is_over) {
                    let at = number % 100 * 8;
                    nameless.file.write_at(SYSTEM, at, &number.to_le_bytes()).unwrap();
                    let mut back = [0; 8];
                    assert_eq!(nameless.file.read_at(SYSTEM, at, &mut back), Ok(8));
                    assert_eq!(u64::from_le_bytes(back), number);
                    number += 1;
                }
            }),
            Box::new(|is_over| {
                while goes_on(is_over) {
                    let attr = holder.getattr(SYSTEM, pinned.ino).unwrap();
                    assert_eq!(
                        (attr.generation, attr.nlink, attr.kind),
                        (pinned.generation, 0, FileKind::Directory)
                    );
                }
            }),
            Box::new(|is_over| {
                let flock = LockRequest::Flock(LockOwner(2), LockKind::Shared);
                while goes_on(is_over) {
                    let refused = Err(FsError::WouldBlock);
                    assert_eq!(lock(&other, SYSTEM, theirs, &flock, Wait::No), refused);
                    let outside = record(2, (99, 1), LockKind::Shared);
                    assert_eq!(lock(&other, SYSTEM, theirs, &outside, Wait::No), refused);
                    let behind = record(2, (200, 0), LockKind::Shared);
                    assert_eq!(
                        lock(&other, SYSTEM, theirs, &behind, Wait::AtMost(Duration::from_millis(20))),
                        refused
                    );
                    let inside = record(2, (100, 100), LockKind::Exclusive);
                    lock(&other, SYSTEM, theirs, &inside, Wait::No).unwrap();
                    tries.fetch_add(1, Ordering::Relaxed);
                }
            }),
        ],
    );
    assert!(tries.load(Ordering::Relaxed) > 0);
    holder.unlock(ctx, ino, LockOwner(1), Unlock::All).unwrap();
    lock(
        &other,
        SYSTEM,
        theirs,
        &record(2, (0, 0), LockKind::Exclusive),
        Wait::No,
    )
    .unwrap();
    holder.unpin(SYSTEM, pinned.ino, 1);
    drop((nameless, locked));
    other.unlink(SYSTEM, ROOT_INO, b"locked").unwrap();
    assert_comes_back(&holder, before.inodes_free);
    drop((holder, other));
    is_in_order(site, &path);
}

/// Waits until as many inodes are free: a client's posted requests arrive after its calls.
fn assert_comes_back(client: &Client, inodes_free: u64) {
    let began = Instant::now();
    while client.statfs(SYSTEM).unwrap().inodes_free != inodes_free {
        assert!(began.elapsed() < Duration::from_secs(10), "inodes are missing");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The lock's holder is alone, even over restarts: no increment of a number that each reads and writes is lost.
#[test]
fn locks_exclude_over_restarts() {
    let seed = seed();
    let path = make_pool(64 << 20, 1000);
    let mut site = Site::new(&path, LEASE, 1);
    let clients = [connect(&site.address), connect(&site.address)];
    let file = clients[0]
        .create(SYSTEM, ROOT_INO, b"number", &new_file(true))
        .unwrap()
        .file;
    file.write_at(SYSTEM, 0, &0u64.to_le_bytes()).unwrap();
    let increments = AtomicU64::new(0);
    let count = |owner: u64, request: LockRequest| {
        let (client, increments) = (&clients[owner as usize % 2], &increments);
        Box::new(move |is_over: &AtomicBool| {
            let ino = client.lookup(SYSTEM, ROOT_INO, b"number").unwrap().ino;
            let file = client.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            while goes_on(is_over) {
                lock(client, SYSTEM, ino, &request, Wait::Forever).unwrap();
                let mut number = [0; 8];
                assert_eq!(file.read_at(SYSTEM, 0, &mut number), Ok(8));
                let next = u64::from_le_bytes(number) + 1;
                file.write_at(SYSTEM, 0, &next.to_le_bytes()).unwrap();
                increments.fetch_add(1, Ordering::Relaxed);
                client.unlock(SYSTEM, ino, LockOwner(owner), Unlock::All).unwrap();
            }
        }) as Worker<'_>
    };
    for kind in ["flock", "record"] {
        let request = |owner| match kind {
            "flock" => LockRequest::Flock(LockOwner(owner), LockKind::Exclusive),
            _ => record(owner, (0, 8), LockKind::Exclusive),
        };
        let workers = (1..=4).map(|owner| count(owner, request(owner))).collect();
        with_kills(&mut site, seed, workers);
        let mut number = [0; 8];
        assert_eq!(file.read_at(SYSTEM, 0, &mut number), Ok(8));
        assert_eq!(u64::from_le_bytes(number), increments.load(Ordering::Relaxed), "{kind}");
    }
    assert!(increments.load(Ordering::Relaxed) > 0);
}

/// A client that does not come back after a restart: a lease later it has left nothing behind.
#[test]
fn who_does_not_come_back_leaves_nothing() {
    let lease = Duration::from_millis(700);
    let path = make_pool(16 << 20, 1000);
    let mut site = Site::new(&path, lease, 1);
    let stays = connect(&site.address);
    let network = common::proxy::Proxy::new(&site.address, common::proxy::NetworkFaults::default(), 1);
    let options = ClientOptions::default().timeout(Some(Duration::from_millis(100)));
    let goes = Client::connect(&network.address, "", &options).unwrap();
    let before = stays.statfs(SYSTEM).unwrap();
    let file = goes.create(SYSTEM, ROOT_INO, b"file", &new_file(true)).unwrap();
    let nameless = goes.create(SYSTEM, ROOT_INO, b"nameless", &new_file(true)).unwrap();
    nameless.file.write_at(SYSTEM, 0, &[1; 9000]).unwrap();
    goes.unlink(SYSTEM, ROOT_INO, b"nameless").unwrap();
    let flock = |owner| LockRequest::Flock(LockOwner(owner), LockKind::Exclusive);
    lock(&goes, SYSTEM, file.attr.ino, &flock(1), Wait::No).unwrap();
    network.silence(true);
    site.kill();
    site.start();
    let ino = stays.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
    assert_eq!(stays.statfs(SYSTEM).unwrap().inodes_free, before.inodes_free - 2);
    let began = Instant::now();
    lock(&stays, SYSTEM, ino, &flock(1), Wait::Forever).unwrap();
    assert!(began.elapsed() < lease * 3, "{:?}", began.elapsed());
    stays.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
    assert_comes_back(&stays, before.inodes_free);
    drop((file, nameless));
    drop(goes);
    drop(stays);
    is_in_order(site, &path);
}

/// A server that stood still has not heard of its clients, which is not their fault.
#[test]
fn clients_of_a_server_that_stood_still_keep_their_sessions() {
    // Eight clients of a fabric are an emulated machine's work for more than a second.
    let is_fabric = std::env::var_os("FERRITE_FABRIC_HOST").is_some();
    let lease = Duration::from_secs(if is_fabric { 4 } else { 1 });
    let path = make_pool(16 << 20, 1000);
    let site = Site::new(&path, lease, 1);
    let clients: Vec<Client> = (0..8).map(|_| connect(&site.address)).collect();
    for _ in 0..2 {
        site.freeze(lease * 3 / 2);
        std::thread::sleep(lease / 2);
        for client in &clients {
            assert_eq!(client.activity().unwrap().sessions_expired, 0);
        }
    }
}

/// A session that gets its slots late gets those of sessions that began after it, whose tokens had larger numbers.
#[test]
fn slots_of_a_later_session_serve_an_earlier_one() {
    let path = make_pool(16 << 20, 1000);
    let (_server, address) = serve(
        std::sync::Arc::new(mount(&path)),
        vec![export("")],
        &ServerOptions::default(),
    );
    let early = connect(&address);
    for round in 0..3 {
        let late = connect(&address);
        late.mkdir(SYSTEM, ROOT_INO, format!("late{round}").as_bytes(), 0o755)
            .unwrap();
    }
    early.mkdir(SYSTEM, ROOT_INO, b"early", 0o755).unwrap();
    early.rmdir(SYSTEM, ROOT_INO, b"early").unwrap();
}

/// Slots circulate: sessions that end, or are lost with their server, leave them to others.
#[test]
fn slots_are_free_again() {
    let lease = Duration::from_millis(400);
    // 64 slots.
    let path = make_pool(16 << 20, 1000);
    let mut site = Site::new(&path, lease, 1);
    let mut lost = Vec::new();
    for round in 0..6 {
        let network = common::proxy::Proxy::new(&site.address, common::proxy::NetworkFaults::default(), 1);
        let options = ClientOptions::default().timeout(Some(Duration::from_millis(100)));
        let client = Client::connect(&network.address, "", &options).unwrap();
        let name = format!("dir{round}");
        for _ in 0..20 {
            client.mkdir(SYSTEM, ROOT_INO, name.as_bytes(), 0o755).unwrap();
            client.rmdir(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
        }
        network.silence(true);
        // Dropped in this order: a client without a reachable server takes its time to end.
        lost.push((network, client));
        site.kill();
        site.start();
        std::thread::sleep(lease * 2);
    }
    let client = connect(&site.address);
    client.mkdir(SYSTEM, ROOT_INO, b"first", 0o755).unwrap();
    site.kill();
    site.start();
    // With a token, so no caller notices.
    client.mkdir(SYSTEM, ROOT_INO, b"second", 0o755).unwrap();
    drop(lost);
}

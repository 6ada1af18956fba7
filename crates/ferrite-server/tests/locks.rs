//! Locks between two clients: a waiting client gets the lock when it is released, however that happens; a client that
//! must not have it does not get it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::common::proxy::{NetworkFaults, Proxy};
use crate::common::raw::Raw;
use crate::common::{connect, connect_tcp, export, make_pool, mount, serve, serve_at};
use ferrite_client::{Client, ClientOptions};
use ferrite_proto::{FsRequest, ImmediateRequest, SessionRequest};
use ferrite_server::{Server, ServerOptions};
use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, LockRequest, LockTicket, RecordLock, Unlock};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{ClientId, Ctx, FileKind, FileSystem, FsError, Ino, NewNode, ROOT_INO, Result, SYSTEM};

const LEASE: Duration = Duration::from_millis(600);
/// Longer than anything here takes that happens at all.
const LONG: Duration = Duration::from_secs(15);
/// Long enough for a reply that must not come.
const SHORT: Duration = Duration::from_millis(100);

use LockKind::{Exclusive, Shared};

fn server() -> (Server, String) {
    let options = ServerOptions::default().lease(LEASE);
    serve(Arc::new(MemFs::new()), vec![export("")], &options)
}

fn file(client: &Client, name: &[u8]) -> Ino {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o666,
        rdev: 0,
    };
    match client.lookup(SYSTEM, ROOT_INO, name) {
        Ok(attr) => attr.ino,
        Err(_) => client.mknod(SYSTEM, ROOT_INO, name, &node).unwrap().ino,
    }
}

fn flock(owner: u64, kind: LockKind) -> LockRequest {
    LockRequest::Flock(LockOwner(owner), kind)
}

fn range(start: u64, len_bytes: u64) -> ByteRange {
    ByteRange::new(start, len_bytes).unwrap()
}

fn record(owner: u64, start: u64, len_bytes: u64, kind: LockKind) -> LockRequest {
    LockRequest::Record(RecordLock {
        owner: LockOwner(owner),
        pid: 100 + owner as u32,
        kind,
        range: range(start, len_bytes),
    })
}

/// A request for a lock that may have to wait.
struct Wanted {
    ticket: Option<LockTicket>,
    outcome: Receiver<Result<()>>,
}

impl Wanted {
    fn of(client: &Client, ctx: &Ctx, ino: Ino, request: &LockRequest, may_wait: bool) -> Wanted {
        let (done, outcome) = channel();
        let done = Box::new(move |result| done.send(result).unwrap_or_default());
        let ticket = client.lock(ctx, ino, request, may_wait, done);
        Wanted { ticket, outcome }
    }

    fn settled(&self) -> Result<()> {
        let result = self.outcome.recv_timeout(LONG).expect("the request is settled");
        assert!(
            matches!(self.outcome.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected)),
            "a completion is called once"
        );
        result
    }

    fn waits(&self) {
        let result = self.outcome.recv_timeout(SHORT);
        assert_eq!(result, Err(RecvTimeoutError::Timeout), "it must wait");
    }
}

fn wait(client: &Client, ino: Ino, request: &LockRequest) -> Wanted {
    Wanted::of(client, SYSTEM, ino, request, true)
}

fn try_lock(client: &Client, ino: Ino, request: &LockRequest) -> Result<()> {
    Wanted::of(client, SYSTEM, ino, request, false).settled()
}

const NO: Result<()> = Err(FsError::WouldBlock);

#[test]
fn readers_share_and_writers_exclude() {
    let (_server, address) = server();
    let (a, b) = (connect(&address), connect(&address));
    let ino = file(&a, b"file");
    assert_eq!(file(&b, b"file"), ino);
    try_lock(&a, ino, &flock(1, Shared)).unwrap();
    // The same owner number at another client is another owner.
    try_lock(&b, ino, &flock(1, Shared)).unwrap();
    assert_eq!(try_lock(&a, ino, &flock(1, Exclusive)), NO);
    assert_eq!(try_lock(&b, ino, &flock(2, Exclusive)), NO);
    // A conversion that failed has kept the old lock.
    b.unlock(SYSTEM, ino, LockOwner(1), Unlock::Flock).unwrap();
    assert_eq!(try_lock(&b, ino, &flock(1, Exclusive)), NO);
    try_lock(&a, ino, &flock(1, Exclusive)).unwrap();
    assert_eq!(try_lock(&b, ino, &flock(1, Shared)), NO);
    // The two kinds do not see each other.
    try_lock(&b, ino, &record(1, 0, 10, Exclusive)).unwrap();
    assert_eq!(try_lock(&a, ino, &record(1, 9, 0, Shared)), NO);
    try_lock(&a, ino, &record(1, 10, 0, Exclusive)).unwrap();
    assert_eq!(try_lock(&b, ino, &record(1, 0, 11, Exclusive)), NO);
    // Parties that a client serves are as distinct as clients.
    let other = &SYSTEM.clone().of_client(ClientId::fresh());
    assert_eq!(
        Wanted::of(&b, other, ino, &record(1, 0, 1, Shared), false).settled(),
        NO
    );
}

#[test]
fn who_is_in_the_way_is_reported() {
    let (_server, address) = server();
    let (a, b) = (connect(&address), connect(&address));
    let ino = file(&a, b"file");
    file(&b, b"file");
    try_lock(&a, ino, &record(7, 100, 50, Shared)).unwrap();
    let ask = |client: &Client, owner, kind| {
        let LockRequest::Record(lock) = record(owner, 0, 0, kind) else {
            unreachable!("a record lock was asked for")
        };
        client.conflicting_lock(SYSTEM, ino, &lock).unwrap()
    };
    assert_eq!(ask(&b, 7, Shared), None);
    assert_eq!(ask(&a, 7, Exclusive), None, "one's own");
    let found = ask(&b, 7, Exclusive).unwrap();
    assert_eq!((found.pid, found.kind, found.range), (107, Shared, range(100, 50)));
    a.unlock(SYSTEM, ino, LockOwner(7), Unlock::Range(range(100, 49)))
        .unwrap();
    assert_eq!(ask(&b, 7, Exclusive).unwrap().range, range(149, 1));
    a.unlock(SYSTEM, ino, LockOwner(7), Unlock::All).unwrap();
    assert_eq!(ask(&b, 7, Exclusive), None);
}

#[test]
fn waits_end_when_the_lock_is_released() {
    let (_server, address) = server();
    let (a, b) = (connect(&address), connect(&address));
    let ino = file(&a, b"file");
    file(&b, b"file");
    for (hold, want, unlock) in [
        (flock(1, Exclusive), flock(1, Exclusive), Unlock::Flock),
        (flock(1, Exclusive), flock(1, Shared), Unlock::All),
        (
            record(1, 0, 100, Exclusive),
            record(1, 50, 100, Shared),
            Unlock::Range(range(50, 50)),
        ),
        (record(1, 0, 100, Shared), record(1, 99, 1, Exclusive), Unlock::All),
    ] {
        try_lock(&a, ino, &hold).unwrap();
        let wanted = wait(&b, ino, &want);
        wanted.waits();
        // Other calls continue meanwhile.
        b.getattr(SYSTEM, ino).unwrap();
        a.unlock(SYSTEM, ino, LockOwner(1), unlock).unwrap();
        assert_eq!(wanted.settled(), Ok(()));
        for client in [&a, &b] {
            client.unlock(SYSTEM, ino, LockOwner(1), Unlock::All).unwrap();
        }
        // A process of the other client that ends, with several waiting requests.
        let process = &SYSTEM.clone().of_client(ClientId::fresh());
        Wanted::of(&a, process, ino, &hold, false).settled().unwrap();
        let wanted = wait(&b, ino, &want);
        wanted.waits();
        a.release_client(process);
        assert_eq!(wanted.settled(), Ok(()));
        b.unlock(SYSTEM, ino, LockOwner(1), Unlock::All).unwrap();
    }
}

#[test]
fn a_client_that_closes_or_vanishes_lets_go() {
    let (server, address) = server();
    let b = connect(&address);
    let ino = file(&b, b"file");
    for vanishes in [false, true] {
        let network = Proxy::new(&address, NetworkFaults::default(), 1);
        let options = ClientOptions::default().timeout(Some(SHORT));
        let a = Client::connect(&network.address, "", &options).unwrap();
        file(&a, b"file");
        try_lock(&a, ino, &flock(1, Exclusive)).unwrap();
        try_lock(&a, ino, &record(1, 0, 1, Exclusive)).unwrap();
        let (first, second) = (
            wait(&b, ino, &flock(2, Exclusive)),
            wait(&b, ino, &record(2, 0, 0, Shared)),
        );
        first.waits();
        let began = Instant::now();
        if vanishes {
            network.silence(true);
            first.waits();
        } else {
            drop(a);
        }
        assert_eq!(first.settled(), Ok(()));
        assert_eq!(second.settled(), Ok(()));
        let limit = if vanishes { LEASE * 4 } else { LEASE / 2 };
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
        b.unlock(SYSTEM, ino, LockOwner(2), Unlock::All).unwrap();
        assert_eq!(server.sessions(), 1);
    }
    // A client that vanishes while it waits does not get the lock later.
    let network = Proxy::new(&address, NetworkFaults::default(), 1);
    let options = ClientOptions::default().timeout(Some(SHORT));
    let a = Client::connect(&network.address, "", &options).unwrap();
    file(&a, b"file");
    try_lock(&b, ino, &flock(2, Exclusive)).unwrap();
    let wanted = wait(&a, ino, &flock(1, Exclusive));
    wanted.waits();
    network.silence(true);
    std::thread::sleep(LEASE * 2);
    assert_eq!(server.sessions(), 1);
    b.unlock(SYSTEM, ino, LockOwner(2), Unlock::All).unwrap();
    try_lock(&b, ino, &flock(3, Exclusive)).unwrap();
    drop(network);
    drop(a);
    assert!(wanted.settled().is_err());
}

#[test]
fn a_wait_can_be_cancelled() {
    let (_server, address) = server();
    let network = Proxy::new(&address, NetworkFaults::default(), 1);
    let (a, b) = (connect(&address), connect(&network.address));
    let ino = file(&a, b"file");
    file(&b, b"file");
    for request in [flock(1, Exclusive), record(1, 0, 0, Exclusive)] {
        try_lock(&a, ino, &request).unwrap();
        for is_cut in [false, true] {
            let wanted = wait(&b, ino, &request);
            wanted.waits();
            if is_cut {
                network.cut();
            }
            b.cancel_lock(SYSTEM, wanted.ticket.unwrap());
            assert_eq!(wanted.settled(), Err(FsError::Interrupted));
        }
        a.unlock(SYSTEM, ino, LockOwner(1), Unlock::All).unwrap();
        // The cancelled waits leave nothing behind.
        try_lock(&a, ino, &request).unwrap();
        a.unlock(SYSTEM, ino, LockOwner(1), Unlock::All).unwrap();
    }
}

#[test]
fn deadlocks_are_seen_across_clients() {
    let (_server, address) = server();
    let (a, b) = (connect(&address), connect(&address));
    let inos = [file(&a, b"one"), file(&a, b"two")];
    for name in [b"one", b"two"] {
        file(&b, name);
    }
    try_lock(&a, inos[0], &record(1, 0, 1, Exclusive)).unwrap();
    try_lock(&b, inos[1], &record(1, 0, 1, Exclusive)).unwrap();
    let waits = wait(&a, inos[1], &record(1, 0, 1, Exclusive));
    waits.waits();
    assert_eq!(
        wait(&b, inos[0], &record(1, 0, 1, Exclusive)).settled(),
        Err(FsError::Deadlock)
    );
    // The refused owner keeps its locks.
    waits.waits();
    b.unlock(SYSTEM, inos[1], LockOwner(1), Unlock::All).unwrap();
    assert_eq!(waits.settled(), Ok(()));
}

/// Waits survive cuts: each is settled once, and one owner at a time holds the lock.
#[test]
fn waits_survive_cuts() {
    let (_server, address) = server();
    let network_faults = NetworkFaults {
        cuts: 60,
        delays: 50,
        crumbs: 50,
    };
    let seed = ferrite_testkit::seed_from_env().unwrap_or_else(|| u64::from(std::process::id()));
    println!("FERRITE_SEED={seed}");
    // On TCP: only bells of a fabric would pass this network.
    let network = Proxy::new(&address, NetworkFaults::default(), seed);
    let clients = [connect_tcp(&network.address), connect_tcp(&network.address)];
    network.turn(network_faults);
    let inos = clients.each_ref().map(|client| file(client, b"file"));
    let holders = std::sync::atomic::AtomicU32::new(0);
    let rounds = if std::env::var_os("FERRITE_SHORT").is_some() {
        40
    } else {
        200
    };
    std::thread::scope(|scope| {
        for owner in 1..=4u64 {
            let (client, ino, holders) = (&clients[owner as usize % 2], inos[owner as usize % 2], &holders);
            scope.spawn(move || {
                for round in 0..rounds {
                    let request = match round % 2 {
                        0 => flock(owner, Exclusive),
                        _ => record(owner, 0, 10, Exclusive),
                    };
                    let turn = 1 << (round % 2 * 8);
                    assert_eq!(wait(client, ino, &request).settled(), Ok(()));
                    let others = holders.fetch_add(turn, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(others / turn % 256, 0, "two hold it");
                    holders.fetch_sub(turn, std::sync::atomic::Ordering::SeqCst);
                    client.unlock(SYSTEM, ino, LockOwner(owner), Unlock::All).unwrap();
                }
            });
        }
    });
    assert!(network.cuts() > 0);
}

/// After a restart, requests of new sessions wait until earlier sessions have reclaimed their locks.
#[test]
fn what_waits_for_the_end_of_grace_can_be_given_up() {
    let path = make_pool(16 << 20, 1000);
    let grace = Duration::from_millis(1500);
    let options = ServerOptions::default().lease(grace);
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options);
    let holder = connect(&address);
    let ino = file(&holder, b"file");
    try_lock(&holder, ino, &flock(1, Exclusive)).unwrap();
    // A client that has a lock, and does not come back for it.
    let (mut gone, welcome) = Raw::with_session(&address, "");
    let mine: ferrite_proto::NodeAttr = gone.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    gone.done::<()>(&ImmediateRequest::Lock {
        node: mine.node(),
        client: 1,
        lock: record(1, 0, 1, Exclusive),
        may_wait: false,
        is_claim: false,
    });
    server.stop();
    drop(server);
    let server = serve_at(&address, Arc::new(engine.clone()), &options);
    let began = Instant::now();
    let (cancels, goes) = (connect(&address), connect(&address));
    for client in [&cancels, &goes] {
        file(client, b"file");
    }
    let other = file(&goes, b"other");
    // Cancelled while it is deferred. Once that had no effect, and it waited on.
    let wanted = wait(&cancels, ino, &flock(1, Exclusive));
    wanted.waits();
    cancels.cancel_lock(SYSTEM, wanted.ticket.unwrap());
    assert_eq!(wanted.settled(), Err(FsError::Interrupted));
    assert!(
        began.elapsed() < grace,
        "too late to mean anything: {:?}",
        began.elapsed()
    );
    // Once this one was granted to no owner, for good.
    let nobodys = wait(&goes, other, &flock(1, Exclusive));
    nobodys.waits();
    drop(goes);
    assert!(
        began.elapsed() < grace,
        "too late to mean anything: {:?}",
        began.elapsed()
    );
    // A request that wanted no wait, and whose client has timed out. Once this one was granted to no owner, too.
    let third = file(&cancels, b"third");
    let (mut expired, welcome) = Raw::with_session(&address, "");
    let theirs: ferrite_proto::NodeAttr = expired.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"third",
    });
    let body = expired.body(&ImmediateRequest::Lock {
        node: theirs.node(),
        client: 1,
        lock: flock(1, Exclusive),
        may_wait: false,
        is_claim: false,
    });
    let request = expired.number();
    assert!(expired.send(&body, &[]));
    expired.done::<()>(&SessionRequest::Abandon { request, file: 0 });
    assert!(
        began.elapsed() < grace,
        "too late to mean anything: {:?}",
        began.elapsed()
    );
    file(&cancels, b"other");
    assert_eq!(wait(&cancels, other, &flock(1, Exclusive)).settled(), Ok(()));
    assert!(began.elapsed() > grace / 2);
    assert_eq!(try_lock(&cancels, ino, &flock(1, Exclusive)), NO);
    expired.done::<()>(&ImmediateRequest::Ping {});
    assert_eq!(try_lock(&cancels, third, &flock(1, Exclusive)), Ok(()));
    drop(server);
}

/// A client repeats the same request with the same number, and then leaves.
#[test]
fn requests_that_come_twice_are_answered_once() {
    let (server, address) = server();
    let a = connect(&address);
    let ino = file(&a, b"file");
    try_lock(&a, ino, &flock(1, Exclusive)).unwrap();
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let node_attr: ferrite_proto::NodeAttr = raw.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    let body = raw.body(&ImmediateRequest::Lock {
        node: node_attr.node(),
        client: 5,
        lock: flock(9, Exclusive),
        may_wait: true,
        is_claim: false,
    });
    for _ in 0..10 {
        assert!(raw.send(&body, &[]));
    }
    raw.done::<()>(&ImmediateRequest::Ping {});
    a.unlock(SYSTEM, ino, LockOwner(1), Unlock::All).unwrap();
    assert_eq!(raw.receive().unwrap().1, Ok((Vec::new(), Vec::new())));
    raw.done::<()>(&ImmediateRequest::Ping {});
    assert_eq!(try_lock(&a, ino, &flock(1, Exclusive)), NO);
    drop(raw);
    // Its session ends with the lease.
    assert_eq!(wait(&a, ino, &flock(1, Exclusive)).settled(), Ok(()));
    assert_eq!(server.sessions(), 1);
}

//! Everything that clients can make the server keep: each item has a bound, a client that meets it learns why, and no
//! other client notices.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::bystander::{Bystander, new_file};
use crate::common::proxy::{NetworkFaults, Proxy};
use crate::common::raw::Raw;
use crate::common::{connect, export, make_pool, mount, serve};
use ferrite_client::secure::Key;
use ferrite_client::{Client, ClientOptions, ConnectError};
use ferrite_proto::{
    BoundFileInfo, FileRequest, FsRequest, GrantedKey, ImmediateRequest, Node, NodeAttr, OpenedFile, QueuePairInfo,
    RdmaCounters, RdmaRequest, Request, SessionRequest, SessionState, UdpPlace,
};
use ferrite_server::{Bounds, KeyWanted, Keys, Rdma, Resource, ServerOptions};
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    DedupToken, FileSystem, FsError, Ino, OpenMode, ROOT_INO, Result, SYSTEM, SessionsOf, SpaceOf, Unsupported,
};

const LIMIT: Duration = Duration::from_secs(20);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn bounds(change: impl FnOnce(&mut Bounds)) -> ServerOptions {
    let mut bounds = Bounds::default();
    change(&mut bounds);
    ServerOptions::default().bounds(bounds)
}

fn create(parent: Node) -> FsRequest<'static> {
    FsRequest::Create {
        parent,
        name: b"file",
        new: new_file(false),
        file: 1,
    }
}

/// Once each left 1.4 KB for a lease, and one thread began 5,600 a second.
#[test]
fn a_session_that_is_set_up_and_left_leaves_nothing() {
    let (server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    for round in 0..300 {
        let (mut raw, welcome) = Raw::with_session(&address, "");
        match round % 3 {
            0 => {}
            1 => raw.done::<()>(&ImmediateRequest::Ping {}),
            _ => drop(raw.ask(&FsRequest::Getattr { node: welcome.root })),
        }
    }
    until("sessions that had nothing are gone", || server.sessions() == 0);
    // A session that its client would miss stays.
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let _: OpenedFile = raw.done(&create(welcome.root));
    drop(raw);
    let mut raw = Raw::connect(&address);
    let again = raw.set_up_session("", Some(welcome.resume_token)).unwrap();
    assert_eq!(
        (again.state, again.resume_token),
        (SessionState::Alive, welcome.resume_token)
    );
    raw.done::<()>(&FileRequest::Close { files: vec![1] });
    drop(raw);
    until("it has closed its file", || server.sessions() == 0);
    let mut raw = Raw::connect(&address);
    assert_eq!(
        raw.set_up_session("", Some(welcome.resume_token)).unwrap().state,
        SessionState::New
    );
}

/// The server reports to a client that exceeds a limit why, and accepts it later; others keep their sessions.
#[test]
fn sessions_of_an_export_a_key_and_an_address_have_bounds() {
    let key = Key::generate().unwrap();
    let serve_with = |exports_max: usize, options: &ServerOptions| {
        let open = export("").sessions_max(exports_max);
        let keyed = export("keyed").keys(vec![key.clone()]);
        serve(Arc::new(MemFs::new()), vec![open, keyed], options)
    };
    let by_address = bounds(|bounds| bounds.sessions_per_address = 5);
    for (exports_max, options, of) in [
        (5, ServerOptions::default(), SessionsOf::Export),
        (100, by_address, SessionsOf::Address),
    ] {
        let (server, address) = serve_with(exports_max, &options);
        let bystander = Bystander::at(&address, "");
        let mut others: Vec<(Raw, _)> = (0..4).map(|_| Raw::with_session(&address, "")).collect();
        let mut late = Raw::connect(&address);
        for _ in 0..3 {
            assert_eq!(late.set_up_session("", None).unwrap_err(), FsError::TooManySessions(of));
        }
        // A client that has a session comes back to it.
        let (mut back, welcome) = others.pop().unwrap();
        let _: OpenedFile = back.done(&create(welcome.root));
        drop(back);
        let mut back = Raw::connect(&address);
        assert_eq!(
            back.set_up_session("", Some(welcome.resume_token)).unwrap().state,
            SessionState::Alive
        );
        bystander.goes_on();
        assert!(late.set_up_session("", None).is_err());
        drop(others.pop());
        let began = Instant::now();
        while late.set_up_session("", None).is_err() {
            assert!(began.elapsed() < LIMIT, "it stays out");
        }
        bystander.goes_on();
        assert_eq!(server.sessions(), 5);
        let refused = server.observer().look().unwrap().sessions_refused;
        assert!(refused.iter().any(|(name, refused)| name.is_empty() && *refused >= 4));
    }
    let (server, address) = serve_with(100, &bounds(|bounds| bounds.sessions_per_key = 3));
    let options = ClientOptions::default().key(Some(key.clone()));
    let open = || Client::connect(&address, "keyed", &options);
    let mut clients: Vec<Client> = (0..3).map(|_| open().unwrap()).collect();
    match open() {
        Err(ConnectError::Refused { why, .. }) => {
            assert_eq!(why, FsError::TooManySessions(SessionsOf::Key));
            assert!(why.to_string().contains("try again later"), "{why}");
        }
        other => panic!("{:?}", other.map(drop)),
    }
    // Other clients are not affected.
    assert_eq!(Raw::with_session(&address, "").1.state, SessionState::New);
    drop(clients.pop());
    until("one has left", || open().map(|client| clients.push(client)).is_ok());
    assert!(server.sessions() >= 3);
}

/// A client whose session has ended meanwhile waits for a place as for an unreachable server.
#[test]
fn a_client_that_comes_back_waits_for_a_place() {
    let options = bounds(|bounds| bounds.sessions_per_address = 1).lease(Duration::from_millis(300));
    let (server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options);
    let network = Proxy::new(&address, NetworkFaults::default(), 1);
    let timeout = ClientOptions::default().timeout(Some(LIMIT));
    let client = Client::connect(&network.address, "", &timeout).unwrap();
    network.silence(true);
    until("its session has ended", || server.sessions() == 0);
    let (mut other, _) = Raw::with_session(&address, "");
    network.silence(false);
    network.cut();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.statfs(SYSTEM).map(drop));
        let began = Instant::now();
        while server.observer().look().unwrap().sessions_refused[0].1 < 3 {
            other.done::<()>(&ImmediateRequest::Ping {});
            assert!(began.elapsed() < LIMIT, "it does not try");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!waits.is_finished());
        drop(other);
        assert_eq!(waits.join().unwrap(), Ok(()));
    });
}

/// A client that goes through the handshake and never sets up a session loses its own oldest connections.
#[test]
fn connections_without_a_session_have_a_bound() {
    let (server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    let bystander = Bystander::at(&address, "");
    let mut pending: Vec<Raw> = (0..300).map(|_| Raw::connect(&address)).collect();
    until("the bound holds", || {
        server.observer().look().unwrap().pending_connections <= 256
    });
    for pending_one in &mut pending[..44] {
        assert!(
            !matches!(pending_one.stream.read(&mut [0]), Ok(1..)),
            "the oldest are closed"
        );
    }
    assert_eq!(pending[299].set_up_session("", None).unwrap().state, SessionState::New);
    assert_eq!(pending[200].set_up_session("", None).unwrap().state, SessionState::New);
    bystander.goes_on();
}

/// An adapter that grants every request.
#[derive(Default)]
struct Generous(AtomicU32);

impl Keys for Generous {
    fn release(&self, _: u64, _: u32) {}

    fn end_session(&self, _: u64) {}

    fn unbind(&self, _: &Arc<dyn FileSystem>, _: Ino) -> Result<()> {
        Ok(())
    }

    fn files(&self, _: &Arc<dyn FileSystem>) -> Vec<BoundFileInfo> {
        Vec::new()
    }
}

impl Rdma for Generous {
    fn places(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    fn open(&self, _: u64, client: &QueuePairInfo) -> Result<QueuePairInfo> {
        Ok(QueuePairInfo {
            qpn: self.0.fetch_add(1, Ordering::Relaxed),
            ..*client
        })
    }

    fn close(&self, _: u64, _: u32) {}

    fn bind(&self, _: &KeyWanted<'_>) -> Result<GrantedKey> {
        Ok(GrantedKey {
            key: self.0.fetch_add(1, Ordering::Relaxed),
            size: 0,
            append_at: 0,
            reserve_at: 0,
            atomic_bytes_max: 0,
            pass: [0; 16],
        })
    }

    fn counters(&self) -> RdmaCounters {
        RdmaCounters::default()
    }
}

/// Requests the `n`-th of a resource; returns whether the session has it.
fn ask_for(raw: &mut Raw, resource: Resource, root: Node, n: u64) -> bool {
    let name = format!("file{n}");
    raw.pins = false;
    let node_attr: NodeAttr = raw.done(&FsRequest::Lookup {
        parent: root,
        name: name.as_bytes(),
    });
    let node = node_attr.node();
    let (request, refusal): (Request<'_>, FsError) = match resource {
        Resource::OpenFiles => {
            let mode = OpenMode::read_only();
            (FsRequest::Open { node, mode, file: n }.into(), FsError::TooManyOpen)
        }
        Resource::PinnedInodes => {
            raw.pins = true;
            let node_attr: NodeAttr = raw.done(&FsRequest::Lookup {
                parent: root,
                name: name.as_bytes(),
            });
            raw.pins = false;
            if node_attr.is_pinned {
                return true;
            }
            // By now an earlier session may have returned one.
            (FsRequest::Pin { node }.into(), FsError::TooManyOpen)
        }
        Resource::LockOwners => {
            let lock = ImmediateRequest::Lock {
                node,
                client: n,
                lock: LockRequest::Flock(LockOwner(n), LockKind::Shared),
                may_wait: false,
                is_claim: false,
            };
            (lock.into(), FsError::NoSpace(SpaceOf::RecordLocks))
        }
        Resource::QueuePairs => {
            let client = QueuePairInfo {
                place: UdpPlace("127.0.0.1:4791".parse().unwrap()),
                qpn: n as u32,
                psn: 0,
                mtu: 3,
            };
            (RdmaRequest::OpenQueuePair { client }.into(), FsError::TooManyOpen)
        }
        Resource::Keys => {
            let bind = RdmaRequest::Bind {
                node,
                writable: false,
                defragment: false,
                atomic: false,
            };
            (bind.into(), FsError::NoSpace(SpaceOf::MapEntries))
        }
    };
    match raw.ask(&request).expect("a reply") {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, refusal, "{resource:?}");
            false
        }
    }
}

/// Everything that a client can make the server keep: two sessions of one client together get the limit, and when they
/// end another gets as much.
#[test]
fn all_that_a_client_makes_the_server_keep_has_a_bound() {
    let adapter: Arc<dyn Rdma> = Arc::new(Generous::default());
    let options = bounds(|bounds| bounds.resources = Resource::ALL.map(|_| 5)).rdma(Some(adapter));
    let fs = Arc::new(MemFs::new());
    for n in 0..10 {
        let name = format!("file{n}");
        fs.create(SYSTEM, ROOT_INO, name.as_bytes(), &new_file(true)).unwrap();
    }
    let (server, address) = serve(fs, vec![export("")], &options);
    for resource in Resource::ALL {
        for round in 0..3 {
            let (mut one, welcome) = Raw::with_session(&address, "");
            let (mut two, _) = Raw::with_session(&address, "");
            let root = welcome.root;
            // Earlier sessions return their resources a moment after they have left.
            for n in 0..3 {
                until("one gets its share", || ask_for(&mut one, resource, root, n));
            }
            for n in 3..5 {
                until("two gets its share", || ask_for(&mut two, resource, root, n));
            }
            assert!(!ask_for(&mut two, resource, root, 5), "{resource:?}");
            assert!(!ask_for(&mut one, resource, root, 6), "{resource:?}");
            // Refused requests cost nothing, and the sessions continue.
            one.done::<()>(&ImmediateRequest::Ping {});
            assert!(two.ask(&ImmediateRequest::Goodbye {}).is_none());
            for n in 7..9 {
                until("what the other had is there again", || {
                    ask_for(&mut one, resource, root, n)
                });
            }
            assert!(!ask_for(&mut one, resource, root, 9), "{resource:?}, round {round}");
            assert!(one.ask(&ImmediateRequest::Goodbye {}).is_none());
            until("both have left", || server.sessions() == 0);
        }
    }
}

fn mkdir<'n>(parent: Node, name: &'n str) -> FsRequest<'n> {
    FsRequest::Mkdir {
        parent,
        name: name.as_bytes(),
        mode: 0o755,
    }
}

/// Once 36 sessions took all slots, and the changes of later ones failed when their replies were lost.
#[test]
fn unused_slots_are_recalled() {
    // 64 slots.
    let path = make_pool(16 << 20, 1000);
    let lease = Duration::from_secs(2);
    let first = Instant::now();
    let options = ServerOptions::default().lease(lease);
    let (_server, address) = serve(Arc::new(mount(&path)), vec![export("")], &options);
    let client = connect(&address);
    client.mkdir(SYSTEM, ROOT_INO, b"first", 0o755).unwrap();
    let slots_of = |raw: &mut Raw| raw.done::<(u64, Vec<u32>)>(&SessionRequest::Slots { count: 64 });
    let mut idle = Vec::new();
    loop {
        let (mut raw, welcome) = Raw::with_session(&address, "");
        let (number, slots) = slots_of(&mut raw);
        if slots.is_empty() {
            break;
        }
        idle.push((raw, welcome, number, slots));
        assert!(idle.len() < 64);
    }
    assert!(idle.len() >= 20, "{} sessions had slots", idle.len());
    // One has made a change, and has not confirmed the reply.
    let (raw, welcome, number, slots) = &mut idle[0];
    raw.token = Some(DedupToken {
        slot: slots[0],
        seq: *number << 32 | 1,
    });
    let _: NodeAttr = raw.done(&mkdir(welcome.root, "unsettled"));
    let (mut late, _) = Raw::with_session(&address, "");
    let began = Instant::now();
    let (_, got) = loop {
        for (raw, ..) in &mut idle {
            raw.done::<()>(&ImmediateRequest::Ping {});
        }
        let got = slots_of(&mut late);
        if !got.1.is_empty() {
            break got;
        }
        assert!(began.elapsed() < LIMIT, "nothing is recalled");
        std::thread::sleep(lease / 20);
    };
    assert!(first.elapsed() >= lease, "they were not idle for long");
    let kept = idle[0].3.clone();
    assert!(got.iter().all(|slot| !kept.contains(slot)), "a change may come again");
    let (raw, welcome, number, slots) = &mut idle[1];
    raw.token = Some(DedupToken {
        slot: slots[0],
        seq: *number << 32 | 1,
    });
    let refused = raw.refused(&mkdir(welcome.root, "late"));
    assert_eq!(refused, FsError::NotSupported(Unsupported::DedupSlot));
    raw.token = None;
    let (fresh, again) = slots_of(raw);
    assert!(!again.is_empty() && fresh > *number);
    raw.token = Some(DedupToken {
        slot: again[0],
        seq: fresh << 32 | 1,
    });
    let _: NodeAttr = raw.done(&mkdir(welcome.root, "late"));
    // A client that lost its slots asks again, and its callers do not notice.
    client.mkdir(SYSTEM, ROOT_INO, b"second", 0o755).unwrap();
    client.rmdir(SYSTEM, ROOT_INO, b"second").unwrap();
}

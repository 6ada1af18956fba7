//! Many clients at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::bystander::{Bystander, new_file};
use crate::common::raw::Raw;
use crate::common::{connect, export, make_pool, mount, serve};
use ferrite_checks::condvar::Condvar;
use ferrite_proto::{
    BoundFileInfo, FsRequest, GrantedKey, ImmediateRequest, Node, NodeAttr, QueuePairInfo, RdmaCounters, RdmaRequest,
};
use ferrite_server::{KeyWanted, Keys, Rdma, ServerOptions};
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, FsError, Ino, ROOT_INO, Result, SYSTEM, SpaceOf};
use parking_lot::Mutex;

#[test]
fn a_thousand_idle_sessions() {
    let fs = Arc::new(MemFs::new());
    let (server, address) = serve(fs, vec![export("")], &ServerOptions::default());
    let bystander = Bystander::at(&address, "");
    let mut idle: Vec<Raw> = (0..1000).map(|_| Raw::with_session(&address, "").0).collect();
    assert_eq!(server.sessions(), 1001);
    bystander.goes_on();
    for raw in &mut idle {
        raw.done::<()>(&ImmediateRequest::Ping {});
    }
    drop(idle);
    bystander.goes_on();
}

/// An adapter that binds slowly, until the test releases it; or that revokes keys slowly.
#[derive(Default)]
struct Slow {
    gives_keys: bool,
    is_at_it: AtomicBool,
    may_go: Mutex<bool>,
    changed: Condvar,
}

impl Slow {
    fn takes_its_time(&self) {
        self.is_at_it.store(true, Ordering::Release);
        let mut may_go = self.may_go.lock();
        let ends = Instant::now() + Duration::from_secs(10);
        while !*may_go && !self.changed.wait_until(&mut may_go, ends).timed_out() {}
    }

    fn wait_until_it_is_at_it(&self) {
        while !self.is_at_it.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn goes_on(&self) {
        *self.may_go.lock() = true;
        self.changed.notify_all();
    }
}

impl Keys for Slow {
    fn release(&self, _: u64, _: u32) {
        self.takes_its_time();
    }

    fn end_session(&self, _: u64) {
        self.takes_its_time();
    }

    /// Its keys have ended, and it cannot be sealed.
    fn unbind(&self, _: &Arc<dyn FileSystem>, _: Ino) -> Result<()> {
        Err(FsError::NoSpace(SpaceOf::Blocks))
    }

    fn files(&self, _: &Arc<dyn FileSystem>) -> Vec<BoundFileInfo> {
        Vec::new()
    }
}

impl Rdma for Slow {
    fn places(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    fn open(&self, _: u64, _: &QueuePairInfo) -> Result<QueuePairInfo> {
        Err(FsError::TooManyOpen)
    }

    fn close(&self, _: u64, _: u32) {}

    fn bind(&self, _: &KeyWanted<'_>) -> Result<GrantedKey> {
        if self.gives_keys {
            return Ok(GrantedKey {
                key: 7,
                size: 0,
                append_at: 0,
                reserve_at: 0,
                atomic_bytes_max: 0,
                pass: [0; 16],
            });
        }
        self.takes_its_time();
        Err(FsError::TooManyOpen)
    }

    fn counters(&self) -> RdmaCounters {
        RdmaCounters::default()
    }
}

/// Moving a file's pages may take any time. Once every client waited for it as soon as any left.
#[test]
fn nobody_who_leaves_waits_for_a_file_to_be_bound() {
    let (fs, slow) = (Arc::new(MemFs::new()), Arc::new(Slow::default()));
    drop(fs.create(SYSTEM, ROOT_INO, b"file", &new_file(true)).unwrap());
    let options = ServerOptions::default().rdma(Some(slow.clone()));
    let (_server, address) = serve(fs, vec![export("")], &options);
    let (mut binds, welcome) = Raw::with_session(&address, "");
    let node_attr: NodeAttr = binds.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    let (mut leaves, mut stays) = (Raw::with_session(&address, "").0, Raw::with_session(&address, "").0);
    let bind = binds.body(&RdmaRequest::Bind {
        node: node_attr.node(),
        writable: false,
        defragment: false,
        atomic: false,
    });
    assert!(binds.send(&bind, &[]));
    slow.wait_until_it_is_at_it();
    let began = Instant::now();
    assert!(leaves.ask(&ImmediateRequest::Goodbye {}).is_none());
    stays.done::<()>(&ImmediateRequest::Ping {});
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    slow.goes_on();
    assert_eq!(binds.receive().unwrap().1, Err(FsError::TooManyOpen));
}

fn bind(node: Node) -> RdmaRequest {
    RdmaRequest::Bind {
        node,
        writable: true,
        defragment: false,
        atomic: false,
    }
}

fn exclusive(node: Node) -> ImmediateRequest<'static> {
    ImmediateRequest::Lock {
        node,
        client: 1,
        lock: LockRequest::Flock(LockOwner(1), LockKind::Exclusive),
        may_wait: false,
        is_claim: false,
    }
}

/// The leaving client has a key and a lock. While the key is being revoked, which takes long, writes with it may still
/// arrive: no other client gets the lock. And no other client waits, for this or for the return of a key.
#[test]
fn a_lock_is_anothers_only_when_keys_are_revoked() {
    for leaves in [true, false] {
        let fs = Arc::new(MemFs::new());
        drop(fs.create(SYSTEM, ROOT_INO, b"file", &new_file(true)).unwrap());
        let slow = Arc::new(Slow {
            gives_keys: true,
            ..Slow::default()
        });
        let lease = Duration::from_secs(2);
        let options = ServerOptions::default().lease(lease).rdma(Some(slow.clone()));
        let (_server, address) = serve(fs, vec![export("")], &options);
        let (mut first, welcome) = Raw::with_session(&address, "");
        let node_attr: NodeAttr = first.done(&FsRequest::Lookup {
            parent: welcome.root,
            name: b"file",
        });
        let node = node_attr.node();
        first.done::<GrantedKey>(&bind(node));
        first.done::<()>(&exclusive(node));
        match leaves {
            true => assert!(first.ask(&ImmediateRequest::Goodbye {}).is_none()),
            // Its client is gone, and the server finds out.
            false => drop(first),
        }
        slow.wait_until_it_is_at_it();
        let (mut second, _) = Raw::with_session(&address, "");
        let began = Instant::now();
        assert_eq!(
            second.refused(&exclusive(node)),
            FsError::WouldBlock,
            "leaves: {leaves}"
        );
        second.done::<()>(&ImmediateRequest::Ping {});
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        slow.goes_on();
        let began = Instant::now();
        while second.ask(&exclusive(node)).unwrap().is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "it stays locked");
            std::thread::sleep(Duration::from_millis(5));
            second.done::<()>(&ImmediateRequest::Ping {});
        }
    }
}

/// Sealing the file of a returned key takes long, and only the client that returned it waits.
#[test]
fn nobody_waits_for_a_key_that_another_gives_back() {
    let fs = Arc::new(MemFs::new());
    drop(fs.create(SYSTEM, ROOT_INO, b"file", &new_file(true)).unwrap());
    let slow = Arc::new(Slow {
        gives_keys: true,
        ..Slow::default()
    });
    let options = ServerOptions::default().rdma(Some(slow.clone()));
    let (_server, address) = serve(fs, vec![export("")], &options);
    let (mut first, welcome) = Raw::with_session(&address, "");
    let node_attr: NodeAttr = first.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    let key = first.done::<GrantedKey>(&bind(node_attr.node())).key;
    let release = first.body(&RdmaRequest::ReleaseKey { key });
    assert!(first.send(&release, &[]));
    slow.wait_until_it_is_at_it();
    let (mut second, _) = Raw::with_session(&address, "");
    let began = Instant::now();
    second.done::<()>(&ImmediateRequest::Ping {});
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    slow.goes_on();
    assert!(first.receive().unwrap().1.is_ok());
    // Keys that an unbind has ended are invalid, though the file could not be sealed.
    let key = first.done::<GrantedKey>(&bind(node_attr.node())).key;
    slow.is_at_it.store(false, Ordering::Release);
    let unbind = RdmaRequest::Unbind { node: node_attr.node() };
    assert_eq!(first.refused(&unbind), FsError::NoSpace(SpaceOf::Blocks));
    first.done::<()>(&RdmaRequest::ReleaseKey { key });
    assert!(!slow.is_at_it.load(Ordering::Acquire), "it was the session's still");
}

#[test]
fn sixty_four_clients_at_once() {
    let path = make_pool(64 << 20, 4000);
    let engine = mount(&path);
    let (server, address) = serve(
        Arc::new(engine.clone()),
        vec![export("")],
        &ServerOptions::default().threads(2),
    );
    let free = engine.statfs(SYSTEM).unwrap().inodes_free;
    // Over a fabric each thread of the server opens its endpoint for its first client. Endpoints of one process are
    // opened one at a time, and all clients of this test are in this process, unlike a real server's.
    drop([connect(&address), connect(&address)]);
    std::thread::scope(|scope| {
        for number in 0..64 {
            let address = &address;
            scope.spawn(move || {
                let client = connect(address);
                let dir = client
                    .mkdir(SYSTEM, ROOT_INO, format!("{number}").as_bytes(), 0o755)
                    .unwrap();
                for round in 0..20u8 {
                    let file = client.create(SYSTEM, dir.ino, b"file", &new_file(true)).unwrap().file;
                    file.write_at(SYSTEM, 0, &[round; 5000]).unwrap();
                    let mut back = [0; 5000];
                    assert_eq!(file.read_at(SYSTEM, 0, &mut back), Ok(5000));
                    assert_eq!(back, [round; 5000]);
                    client.unlink(SYSTEM, dir.ino, b"file").unwrap();
                }
                client.rmdir(SYSTEM, ROOT_INO, format!("{number}").as_bytes()).unwrap();
            });
        }
    });
    let began = Instant::now();
    while server.sessions() > 0 {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(engine.statfs(SYSTEM).unwrap().inodes_free, free);
}

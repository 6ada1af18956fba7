//! The state that a server leaves in the pool when it stops: sessions whose clients have left have ended, and the next
//! server finds what it has written itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::raw::Raw;
use crate::common::{connect_leased_tcp, export, serve, serve_at};
use ferrite_checks::condvar::Condvar;
use ferrite_proto::{FsRequest, ImmediateRequest, NodeAttr};
use ferrite_server::ServerOptions;
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Ctx, FileSystem, Layer, NewFile, OpenMode, ROOT_INO, SYSTEM};
use parking_lot::Mutex;

/// An engine that takes its time to release a client's locks, until the test permits it.
#[derive(Default)]
struct Slow {
    below: MemFs,
    is_at_it: AtomicBool,
    may_go: Mutex<bool>,
    changed: Condvar,
}

impl Slow {
    fn go(&self) {
        *self.may_go.lock() = true;
        self.changed.notify_all();
    }
}

impl Layer for Slow {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn release_client(&self, ctx: &Ctx) {
        self.is_at_it.store(true, Ordering::SeqCst);
        let mut may_go = self.may_go.lock();
        while !*may_go {
            self.changed.wait(&mut may_go);
        }
        drop(may_go);
        self.below.release_client(ctx);
    }
}

fn new_file() -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    }
}

/// A session with a lock on the file of this name.
fn locker(address: &str, name: &[u8]) -> Raw {
    let (mut raw, welcome) = Raw::with_session(address, "");
    let parent = welcome.root;
    let node_attr: NodeAttr = raw.done(&FsRequest::Lookup { parent, name });
    raw.done::<()>(&ImmediateRequest::Lock {
        node: node_attr.node(),
        client: 1,
        lock: LockRequest::Flock(LockOwner(7), LockKind::Exclusive),
        may_wait: false,
        is_claim: false,
    });
    raw
}

/// Once the server stopped before the thread that ends sessions got to them, and the next one waited a whole lease for
/// clients that had said goodbye.
#[test]
fn sessions_whose_clients_have_left_end_before_the_server_stops() {
    let engine = Arc::new(Slow::default());
    for name in [b"one", b"two"] {
        drop(engine.below.create(SYSTEM, ROOT_INO, name, &new_file()).unwrap());
    }
    let options = ServerOptions::default().lease(Duration::from_secs(60));
    let (mut server, address) = serve(engine.clone(), vec![export("")], &options);
    let (mut one, mut two) = (locker(&address, b"one"), locker(&address, b"two"));
    assert!(one.ask(&ImmediateRequest::Goodbye {}).is_none());
    let began = Instant::now();
    while !engine.is_at_it.load(Ordering::SeqCst) {
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "the first session does not end"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    // It waits for the first to end.
    assert!(two.ask(&ImmediateRequest::Goodbye {}).is_none());
    let left = server.sessions();
    let next = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            engine.go();
        });
        server.stop();
        serve_at(&address, engine.clone(), &options)
    });
    assert_eq!(left, 0, "those that wait for their end still counted");
    assert!(!next.observer().look().unwrap().exports[0].1.is_in_grace);
    locker(&address, b"two");
}

/// A value that keeps the files of a stopped server open is dropped when the next server has given leases. Once it
/// removed the record of those, and a crash would have hidden them from the server after that.
#[test]
fn a_server_that_has_stopped_leaves_the_pool_to_the_next() {
    let term = Duration::from_millis(300);
    let engine = Arc::new(MemFs::new());
    let options = ServerOptions::default().cache_term(term);
    let (mut old, address) = serve(engine.clone(), vec![export("")], &options);
    let client = connect_leased_tcp(&address, 1 << 20);
    let record = || engine.getxattr(SYSTEM, ROOT_INO, b"trusted.ferrite.leases");
    client.getattr(SYSTEM, ROOT_INO).unwrap();
    assert!(record().is_ok());
    old.stop();
    assert!(record().is_err(), "the client has returned its lease");
    let _server = serve_at(&address, engine.clone(), &options);
    client.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
    client.getattr(SYSTEM, ROOT_INO).unwrap();
    assert!(record().is_ok());
    std::thread::sleep(2 * term);
    drop(old);
    assert!(record().is_ok(), "the record is the next server's");
}

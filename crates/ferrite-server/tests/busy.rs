//! A server that is busy for longer than the lease: no client loses a session whose signs of life lie unread meanwhile,
//! and dead clients are still detected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::raw::Raw;
use crate::common::{export, serve};
use ferrite_proto::{FileRequest, FsRequest, ImmediateRequest, OpenedFile, SessionState};
use ferrite_server::{Server, ServerOptions};
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Ctx, FileSystem, Layer, NewFile, OpenMode, Position, Result, StatFs};

const LEASE: Duration = Duration::from_millis(500);
/// How long one request takes.
const BUSY: Duration = Duration::from_millis(2500);
const LONG: Duration = Duration::from_secs(20);

/// An engine that works long for one kind of request, on the thread that received it.
struct Slow {
    below: MemFs,
    ms: AtomicU64,
}

impl Layer for Slow {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn statfs(&self, ctx: &Ctx) -> Result<StatFs> {
        std::thread::sleep(Duration::from_millis(self.ms.load(Ordering::Relaxed)));
        self.below.statfs(ctx)
    }
}

fn server() -> (Server, String, Arc<Slow>) {
    let slow = Arc::new(Slow {
        below: MemFs::new(),
        ms: AtomicU64::new(0),
    });
    let options = ServerOptions::default().lease(LEASE);
    let (server, address) = serve(Arc::clone(&slow) as _, vec![export("")], &options);
    (server, address, slow)
}

/// A client with an open file and a lock on it.
fn client(address: &str, name: &[u8]) -> (Raw, ferrite_proto::Welcome) {
    let (mut raw, welcome) = Raw::with_session(address, "");
    let created: OpenedFile = raw.done(&FsRequest::Create {
        parent: welcome.root,
        name,
        new: NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: true,
        },
        file: 1,
    });
    raw.done::<()>(&ImmediateRequest::Lock {
        node: created.node_attr.node(),
        client: 1,
        lock: LockRequest::Flock(LockOwner(1), LockKind::Exclusive),
        may_wait: false,
        is_claim: false,
    });
    (raw, welcome)
}

fn still_has_its_file(raw: &mut Raw) {
    raw.done::<ferrite_vfs::Attr>(&FileRequest::FileGetattr { file: 1 });
}

/// The server has one thread.
#[test]
fn signs_of_life_that_lie_unread_count() {
    let (server, address, slow) = server();
    let (mut honest, _) = client(&address, b"honest");
    let (away, welcome) = client(&address, b"away");
    let (mut other, _) = Raw::with_session(&address, "");
    slow.ms.store(BUSY.as_millis() as u64, Ordering::Relaxed);
    let request = other.body(&FsRequest::Statfs {});
    let began = Instant::now();
    assert!(other.send(&request, &[]));
    // One keeps sending signs of life; one loses its connection and is back at once, to be heard later.
    std::thread::sleep(LEASE / 5);
    let back = {
        let address = address.clone();
        std::thread::spawn(move || {
            let mut back = Raw::connect(&address);
            let welcome = back.set_up_session("", Some(welcome.resume_token)).unwrap();
            (back, welcome)
        })
    };
    away.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let mut sent = 0;
    while began.elapsed() < BUSY {
        let ping = honest.body(&ImmediateRequest::Ping {});
        assert!(honest.send(&ping, &[]), "its connection was closed");
        sent += 1;
        std::thread::sleep(LEASE / 5);
    }
    for _ in 0..sent {
        honest.receive().expect("its session lives").1.unwrap();
    }
    still_has_its_file(&mut honest);
    let (mut back, welcome) = back.join().unwrap();
    assert_eq!(welcome.state, SessionState::Alive);
    still_has_its_file(&mut back);
    let turns = server.observer().look().unwrap().turns;
    assert!(turns.longest >= BUSY && turns.long >= 1, "{turns:?}");
}

/// Silent clients are gone after their lease, with a connection and without, even while others keep the server busy; so
/// is one that takes no replies, from which the server stops reading.
#[test]
fn those_that_are_silent_are_gone() {
    let (server, address, slow) = server();
    slow.ms.store(20, Ordering::Relaxed);
    let (silent, _) = client(&address, b"silent");
    let (closed, _) = client(&address, b"closed");
    drop(closed);
    let (mut deaf, _) = client(&address, b"deaf");
    let write = FileRequest::Write {
        file: 1,
        mode: Position::At(0).into(),
    };
    deaf.ask_with(&write, &vec![7; 64 << 10]).unwrap().unwrap();
    // More than sockets hold; the rest stays unread.
    let read = FileRequest::Read {
        file: 1,
        offset: 0,
        len_bytes: 64 << 10,
    };
    for _ in 0..500 {
        let body = deaf.body(&read);
        assert!(deaf.send(&body, &[]));
    }
    let (mut busy, _) = client(&address, b"busy");
    assert_eq!(server.sessions(), 4);
    let began = Instant::now();
    while server.sessions() > 1 {
        assert!(began.elapsed() < LONG, "{} sessions are left", server.sessions());
        busy.done::<StatFs>(&FsRequest::Statfs {});
    }
    assert!(began.elapsed() >= LEASE / 2);
    still_has_its_file(&mut busy);
    drop((silent, deaf));
}

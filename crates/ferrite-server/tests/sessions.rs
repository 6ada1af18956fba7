//! The state of a session, exactly: which sessions get locks and slots back after a restart, and what happens to
//! requests whose client has given up, and to those that come twice while an engine is slow.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::proxy::{NetworkFaults, Proxy};
use crate::common::raw::{Raw, prefix};
use crate::common::{connect, connect_tcp, export, make_pool, mount, serve, serve_at};
use ferrite_checks::condvar::Condvar;
use ferrite_client::{Client, ClientOptions};
use ferrite_proto::{
    FileRequest, FsRequest, ImmediateRequest, NodeAttr, OpenedFile, Reader, SessionRequest, SessionState,
};
use ferrite_server::{Server, ServerOptions};
use ferrite_transport::frame::DATA_BYTES_MAX;
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest, Unlock, Wait, wait_for};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, Ctx, DedupToken, FileSystem, FsError, Ino, Layer, Limits, NewFile, OpenFile, OpenFlags, OpenMode, Opened,
    Position, ROOT_INO, RenameMode, Result, SYSTEM,
};
use parking_lot::Mutex;

fn new_file() -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    }
}

fn exclusive(owner: u64) -> LockRequest {
    LockRequest::Flock(LockOwner(owner), LockKind::Exclusive)
}

fn lock(client: &Client, ino: Ino, owner: u64, wait: Wait) -> Result<()> {
    wait_for(
        wait,
        |may_wait, done| client.lock(SYSTEM, ino, &exclusive(owner), may_wait, done),
        |ticket| client.cancel_lock(SYSTEM, ticket),
    )
}

/// Other sessions wait for those that had locks, and no longer.
#[test]
fn grace_ends_when_all_who_had_locks_are_back() {
    let path = make_pool(16 << 20, 1000);
    let lease = Duration::from_secs(30);
    let options = ServerOptions::default().lease(lease);
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options);
    let began = Instant::now();
    let (holder, other) = (connect(&address), connect(&address));
    let file = holder.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap();
    let ino = other.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
    for restart in 0..3 {
        if restart == 1 {
            lock(&holder, ino, 1, Wait::No).unwrap();
        }
        server.stop();
        drop(server);
        server = serve_at(&address, Arc::new(engine.clone()), &options);
        let locked = lock(&other, ino, 2, Wait::No);
        match restart {
            0 => {
                locked.unwrap();
                other.unlock(SYSTEM, ino, LockOwner(2), Unlock::All).unwrap();
            }
            _ => assert_eq!(locked, Err(FsError::WouldBlock), "the first has it"),
        }
    }
    holder.unlock(SYSTEM, ino, LockOwner(1), Unlock::All).unwrap();
    lock(&other, ino, 2, Wait::Forever).unwrap();
    assert!(began.elapsed() < lease / 2, "{:?}", began.elapsed());
    drop((file, server));
}

/// The resources of an ended session belong to others by now.
#[test]
fn a_session_that_has_ended_claims_nothing() {
    let path = make_pool(64 << 20, 1000);
    let options = ServerOptions::default().lease(Duration::from_secs(30));
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options);
    let (mut ended, welcome) = Raw::with_session(&address, "");
    let holder = connect(&address);
    let file = holder.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap();
    let node_attr: NodeAttr = ended.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    let claim = |is_claim| ImmediateRequest::Lock {
        node: node_attr.node(),
        client: 1,
        lock: exclusive(7),
        may_wait: false,
        is_claim,
    };
    assert_eq!(ended.refused(&claim(true)), FsError::Stale, "nothing was lost");
    ended.done::<()>(&claim(false));
    let (_, slots): (u64, Vec<u32>) = ended.done(&SessionRequest::Slots { count: 4 });
    assert_eq!(slots.len(), 4);
    assert!(ended.ask(&ImmediateRequest::Goodbye {}).is_none());
    lock(&holder, file.attr.ino, 1, Wait::Forever).unwrap();
    server.stop();
    drop(server);
    let _server = serve_at(&address, Arc::new(engine.clone()), &options);
    let mut ended = Raw::connect(&address);
    // The resume token is valid, and the server does not know that the session has ended: only its rights matter.
    let again = ended.set_up_session("", Some(welcome.resume_token)).unwrap();
    assert_eq!(again.state, SessionState::ToReclaim);
    assert_eq!(ended.refused(&claim(true)), FsError::Stale);
    assert_eq!(
        ended.done::<(u64, Vec<u32>)>(&SessionRequest::ReclaimSlots {}),
        (0, vec![])
    );
    holder.getattr(SYSTEM, ROOT_INO).unwrap();
    assert_eq!(ended.refused(&claim(false)), FsError::WouldBlock);
}

/// The connection breaks while the client reclaims, and the grace period ends before it is back. Once the server
/// answered that it had everything: the client kept locks that it had lost, and could change nothing without its slots.
#[test]
fn who_was_interrupted_while_reclaiming_reclaims_again() {
    let lease = Duration::from_secs(1);
    let path = make_pool(64 << 20, 1000);
    let options = ServerOptions::default().lease(lease);
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options);
    let (mut raw, welcome) = Raw::with_session(&address, "");
    engine.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap();
    let node_attr: NodeAttr = raw.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    let lock = |is_claim| ImmediateRequest::Lock {
        node: node_attr.node(),
        client: 1,
        lock: exclusive(7),
        may_wait: false,
        is_claim,
    };
    raw.done::<()>(&lock(false));
    let (old, slots): (u64, Vec<u32>) = raw.done(&SessionRequest::Slots { count: 4 });
    assert_eq!(slots.len(), 4);
    let restart = |server: &mut Server| {
        server.stop();
        *server = serve_at(&address, Arc::new(engine.clone()), &options);
    };
    let back = || {
        let mut raw = Raw::connect(&address);
        let welcome = raw.set_up_session("", Some(welcome.resume_token)).unwrap();
        assert_eq!(welcome.state, SessionState::ToReclaim);
        raw
    };
    restart(&mut server);
    std::thread::sleep(lease / 2);
    drop(back());
    let observer = server.observer();
    until("grace ends", || !observer.look().unwrap().exports[0].1.is_in_grace);
    let mut raw = back();
    assert_eq!(raw.refused(&lock(true)), FsError::Stale);
    assert_eq!(
        raw.done::<(u64, Vec<u32>)>(&SessionRequest::ReclaimSlots {}),
        (0, vec![])
    );
    raw.done::<()>(&ImmediateRequest::Reclaimed {});
    let (new, slots): (u64, Vec<u32>) = raw.done(&SessionRequest::Slots { count: 4 });
    assert!(new > old && slots.len() == 4);
    raw.token = Some(DedupToken {
        slot: slots[0],
        seq: new << 32 | 1,
    });
    raw.done::<NodeAttr>(&FsRequest::Mkdir {
        parent: welcome.root,
        name: b"dir",
        mode: 0o755,
    });
    raw.token = None;
    // A lock that was lost stays lost over the next restart.
    restart(&mut server);
    let mut raw = back();
    assert_eq!(raw.refused(&lock(true)), FsError::Stale);
    raw.done::<()>(&ImmediateRequest::Reclaimed {});
    // A lock claimed in time stays the session's over the restart after that, although the time was over before it had
    // reclaimed everything.
    raw.done::<()>(&lock(false));
    restart(&mut server);
    let mut raw = back();
    raw.done::<()>(&lock(true));
    let observer = server.observer();
    while observer.look().unwrap().exports[0].1.is_in_grace {
        raw.done::<()>(&ImmediateRequest::Ping {});
        std::thread::sleep(lease / 20);
    }
    raw.done::<()>(&ImmediateRequest::Reclaimed {});
    restart(&mut server);
    back().done::<()>(&lock(true));
}

/// A client whose connection broke while it reclaimed claims its pins again. Once each time gave it one more pin of the
/// server, of which it knew nothing.
#[test]
fn what_is_claimed_twice_is_pinned_once() {
    let path = make_pool(16 << 20, 1000);
    let options = ServerOptions::default().lease(Duration::from_secs(30));
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options);
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let before = engine.statfs(SYSTEM).unwrap().inodes_free;
    drop(engine.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap());
    raw.pins = true;
    let node_attr: NodeAttr = raw.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    server.stop();
    drop(server);
    let _server = serve_at(&address, Arc::new(engine.clone()), &options);
    for round in 1..4 {
        raw = Raw::connect(&address);
        raw.next_is(1000 * round);
        let again = raw.set_up_session("", Some(welcome.resume_token)).unwrap();
        assert_eq!(again.state, SessionState::ToReclaim);
        raw.done::<()>(&FsRequest::Pin { node: node_attr.node() });
    }
    raw.done::<()>(&ImmediateRequest::Reclaimed {});
    engine.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
    assert_eq!(engine.statfs(SYSTEM).unwrap().inodes_free, before - 1);
    raw.done::<()>(&FsRequest::Release {
        pins: vec![(node_attr.node().ino, 1)],
    });
    assert_eq!(engine.statfs(SYSTEM).unwrap().inodes_free, before);
}

/// A client requests a lock while others may still claim theirs, and leaves before its turn. Once the pool took it for
/// a lock holder from then on, and all waited for it after the next restart.
#[test]
fn who_leaves_before_it_gets_a_lock_is_not_waited_for() {
    let path = make_pool(16 << 20, 1000);
    let options = ServerOptions::default().lease(Duration::from_secs(60));
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options);
    let (mut holder, welcome) = Raw::with_session(&address, "");
    drop(engine.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap());
    let node_attr: NodeAttr = holder.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    let lock = |is_claim| ImmediateRequest::Lock {
        node: node_attr.node(),
        client: 1,
        lock: exclusive(7),
        may_wait: false,
        is_claim,
    };
    holder.done::<()>(&lock(false));
    server.stop();
    drop(server);
    let mut server = serve_at(&address, Arc::new(engine.clone()), &options);
    let (mut leaves, _) = Raw::with_session(&address, "");
    let body = leaves.body(&lock(false));
    assert!(leaves.send(&body, &[]));
    assert!(leaves.ask(&ImmediateRequest::Goodbye {}).is_none());
    holder = Raw::connect(&address);
    holder.set_up_session("", Some(welcome.resume_token)).unwrap();
    holder.done::<()>(&lock(true));
    holder.done::<()>(&ImmediateRequest::Reclaimed {});
    assert!(holder.ask(&ImmediateRequest::Goodbye {}).is_none());
    server.stop();
    drop(server);
    let _server = serve_at(&address, Arc::new(engine.clone()), &options);
    // Waits no longer than for a reply, which is less than the grace period.
    Raw::with_session(&address, "").0.done::<()>(&lock(false));
}

/// A client that was away for longer than its lease had a lock, and another has changed the file since.
#[test]
fn files_whose_locks_are_lost_are_stale() {
    let lease = Duration::from_millis(400);
    let (engine, options) = (Arc::new(MemFs::new()), ServerOptions::default().lease(lease));
    let (mut server, address) = serve(engine.clone(), vec![export("")], &options);
    let network = Proxy::new(&address, NetworkFaults::default(), 1);
    // Only TCP traffic passes through this network.
    let (away, stays) = (connect_tcp(&network.address), connect(&address));
    let locked = away.create(SYSTEM, ROOT_INO, b"locked", &new_file()).unwrap();
    let plain = away.create(SYSTEM, ROOT_INO, b"plain", &new_file()).unwrap();
    let ino = stays.lookup(SYSTEM, ROOT_INO, b"locked").unwrap().ino;
    lock(&away, ino, 1, Wait::No).unwrap();
    network.silence(true);
    lock(&stays, ino, 1, Wait::Forever).unwrap();
    network.silence(false);
    network.cut();
    let mut byte = [0];
    assert_eq!(plain.file.read_at(SYSTEM, 0, &mut byte), Ok(0));
    assert_eq!(locked.file.read_at(SYSTEM, 0, &mut byte), Err(FsError::Stale));
    assert_eq!(locked.file.write_at(SYSTEM, 0, b"x"), Err(FsError::Stale));
    assert_eq!(lock(&away, ino, 1, Wait::No), Err(FsError::WouldBlock));
    let again = away.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    assert_eq!(again.read_at(SYSTEM, 0, &mut byte), Ok(0));
    // A restart, after which all files are opened again, does not revive it.
    server.stop();
    drop(server);
    let _server = serve_at(&address, engine, &options);
    assert_eq!(again.read_at(SYSTEM, 0, &mut byte), Ok(0));
    assert_eq!(plain.file.read_at(SYSTEM, 0, &mut byte), Ok(0));
    assert_eq!(locked.file.write_at(SYSTEM, 0, b"x"), Err(FsError::Stale));
}

/// The first call of a client after its session has ended may be a change that was in flight then: on a file whose lock
/// is lost, or that is gone, it is as stale as all that follow. On other files its outcome is unknown.
#[test]
fn the_first_change_of_a_file_whose_lock_is_lost_is_stale() {
    let lease = Duration::from_millis(400);
    let path = make_pool(16 << 20, 1000);
    let engine = Arc::new(mount(&path));
    let inodes_free = || engine.statfs(SYSTEM).unwrap().inodes_free;
    let options = ServerOptions::default().lease(lease);
    let (_server, address) = serve(engine.clone(), vec![export("")], &options);
    for (submits, what) in [(false, "locked"), (true, "locked"), (false, "gone"), (false, "plain")] {
        let network = Proxy::new(&address, NetworkFaults::default(), 1);
        let (away, stays) = (connect_tcp(&network.address), connect(&address));
        let free_before = inodes_free();
        let file = away.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap().file;
        file.write_at(SYSTEM, 0, b"before").unwrap();
        let ino = file.ino();
        match what {
            "locked" => lock(&away, ino, 1, Wait::No).unwrap(),
            "gone" => away.unlink(SYSTEM, ROOT_INO, b"file").unwrap(),
            _ => {}
        }
        network.silence(true);
        let _ = stays.lookup(SYSTEM, ROOT_INO, b"file");
        // Its session has ended when another gets its lock, or when nothing keeps the file without a name.
        match what {
            "locked" => lock(&stays, ino, 2, Wait::Forever).unwrap(),
            "gone" => until("the file is freed", || inodes_free() == free_before),
            // No outside effect shows it, and either outcome is right.
            _ => std::thread::sleep(4 * lease),
        }
        network.silence(false);
        network.cut();
        let first = match submits {
            false => file.write_at(SYSTEM, 0, b"x").map(drop),
            true => submitted(&file),
        };
        // It may have been sent after the client had noticed, too.
        let is_right = match what {
            "plain" => matches!(first, Ok(()) | Err(FsError::Disconnected)),
            _ => first == Err(FsError::Stale),
        };
        assert!(is_right, "{what}, submitted {submits}: {first:?}");
        let second = file.write_at(SYSTEM, 0, b"x").map(drop);
        assert_eq!(second.is_ok(), what == "plain", "{what}: {second:?}");
        drop((file, away));
        if what != "gone" {
            stays.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
        }
    }
}

/// The outcome of a submitted write.
fn submitted(file: &Arc<dyn OpenFile>) -> Result<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let pool = ferrite_vfs::buffers::Pool::new(1 << 20).unwrap();
    let buffer = pool.take(4).unwrap();
    let done = move |_, written: Result<ferrite_vfs::Written>| drop(sender.send(written.map(drop)));
    file.submit_write(SYSTEM, Position::At(0).into(), buffer, Box::new(done));
    receiver.recv_timeout(Duration::from_secs(20)).unwrap()
}

/// Files without names that a server kept for sessions which have all ended are freed by the next.
#[test]
fn nothing_is_kept_for_nobody() {
    let path = make_pool(16 << 20, 1000);
    let engine = mount(&path);
    let before = engine.statfs(SYSTEM).unwrap().inodes_free;
    let opened = engine.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap();
    engine.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
    // The image that a killed server process leaves.
    let image = std::fs::read(&path).unwrap();
    drop(opened);
    engine.unmount().unwrap();
    drop(engine);
    std::fs::write(&path, image).unwrap();
    let engine = mount(&path);
    assert_eq!(engine.statfs(SYSTEM).unwrap().inodes_free, before - 1);
    let (_server, _) = serve(Arc::new(engine.clone()), vec![export("")], &ServerOptions::default());
    assert_eq!(engine.statfs(SYSTEM).unwrap().inodes_free, before);
}

/// An engine that waits for a device: creation takes until the test permits it.
struct Slow {
    below: MemFs,
    may_go: Mutex<bool>,
    changed: Condvar,
    at_work: AtomicU32,
    most_at_work: AtomicU32,
    creations: AtomicU64,
    /// Pins that calls gave, less the released ones.
    pins: AtomicU64,
}

impl Slow {
    fn new() -> Arc<Slow> {
        Arc::new(Slow {
            below: MemFs::new(),
            may_go: Mutex::new(false),
            changed: Condvar::new(),
            at_work: AtomicU32::new(0),
            most_at_work: AtomicU32::new(0),
            creations: AtomicU64::new(0),
            pins: AtomicU64::new(0),
        })
    }

    fn go(&self) {
        *self.may_go.lock() = true;
        self.changed.notify_all();
    }
}

impl Layer for Slow {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn limits(&self) -> Limits {
        let mut limits = self.below.limits();
        limits.may_block = true;
        limits
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        self.creations.fetch_add(1, Ordering::SeqCst);
        let at_work = self.at_work.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_work.fetch_max(at_work, Ordering::SeqCst);
        let mut may_go = self.may_go.lock();
        while !*may_go {
            self.changed.wait(&mut may_go);
        }
        drop(may_go);
        let created = self.below.create(ctx, parent, name, new);
        self.at_work.fetch_sub(1, Ordering::SeqCst);
        if created.is_ok() && ctx.pins {
            self.pins.fetch_add(1, Ordering::SeqCst);
        }
        created
    }

    fn forget(&self, ctx: &Ctx, ino: Ino, count: u64) {
        self.pins.fetch_sub(count, Ordering::SeqCst);
        self.below.forget(ctx, ino, count);
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(15), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The client repeats a request while the engine is still at the first: it is executed once, and answered.
#[test]
fn what_comes_again_meanwhile_is_not_done_twice() {
    let engine = Slow::new();
    let (_server, address) = serve(engine.clone(), vec![export("")], &ServerOptions::default());
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let body = raw.body(&FsRequest::Create {
        parent: welcome.root,
        name: b"file",
        new: new_file(),
        file: 9,
    });
    let number = raw.number();
    assert!(raw.send(&body, &[]));
    until("the engine is asked", || engine.at_work.load(Ordering::SeqCst) == 1);
    for round in 1..4 {
        raw = Raw::connect(&address);
        raw.next_is(number + 1000 * round);
        raw.set_up_session("", Some(welcome.resume_token)).unwrap();
        assert!(raw.send(&body, &[]));
        raw.done::<()>(&ImmediateRequest::Ping {});
    }
    engine.go();
    let (replied, came) = raw.receive().unwrap();
    assert_eq!(replied, number);
    came.unwrap();
    assert_eq!(engine.most_at_work.load(Ordering::SeqCst), 1);
    assert_eq!(engine.creations.load(Ordering::SeqCst), 1);
}

/// The reply to an open by path was lost, and the path leads to another file when the request is repeated: the reply
/// describes the file that the client has open. Once it described the one, and the client had the other.
#[test]
fn a_path_that_is_opened_again_is_opened_where_it_leads_now() {
    let engine = Arc::new(MemFs::new());
    for name in [b"old", b"new"] {
        engine.create(SYSTEM, ROOT_INO, name, &new_file()).unwrap();
    }
    let (_server, address) = serve(engine.clone(), vec![export("")], &ServerOptions::default());
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let open = raw.body(&FsRequest::OpenPath {
        root: welcome.root,
        base: welcome.root,
        path: b"old",
        flags: OpenFlags {
            write: true,
            ..OpenFlags::default()
        },
        file: 7,
    });
    let mut opened = || {
        assert!(raw.send(&open, &[]));
        let (body, _) = raw.receive().unwrap().1.unwrap();
        let opened: OpenedFile = Reader::new(&body).last().unwrap();
        let attr: Attr = raw.done(&FileRequest::FileGetattr { file: 7 });
        assert_eq!(attr.ino, opened.node_attr.attr.ino);
        attr.ino
    };
    let old = opened();
    assert_eq!(opened(), old);
    engine
        .rename(SYSTEM, ROOT_INO, b"new", ROOT_INO, b"old", RenameMode::Replace)
        .unwrap();
    assert_ne!(opened(), old);
}

/// The client has given up; then the engine is done. Neither pin nor open file stays.
#[test]
fn who_gives_up_leaves_nothing_behind() {
    let engine = Slow::new();
    let (_server, address) = serve(engine.clone(), vec![export("")], &ServerOptions::default());
    let options = ClientOptions::default().timeout(Some(Duration::from_millis(200)));
    let client = Client::connect(&address, "", &options).unwrap();
    let ctx = &SYSTEM.clone().pinning();
    let given_up = client.create(ctx, ROOT_INO, b"file", &new_file()).map(drop);
    assert_eq!(given_up, Err(FsError::TimedOut));
    assert_eq!(engine.at_work.load(Ordering::SeqCst), 1);
    // The server knows before the engine is done.
    client.statfs(SYSTEM).unwrap();
    engine.go();
    until("it is created", || engine.at_work.load(Ordering::SeqCst) == 0);
    until("the pin is given back", || engine.pins.load(Ordering::SeqCst) == 0);
    assert_eq!(engine.creations.load(Ordering::SeqCst), 1);
    assert!(client.lookup(SYSTEM, ROOT_INO, b"file").is_ok(), "the change was made");
}

/// Reads that wait for a buffer leave the workers to the write that has it. Once they blocked them for ever.
#[test]
fn who_waits_for_a_buffer_keeps_no_worker() {
    let engine = Slow::new();
    engine.below.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap();
    let mut options = ServerOptions::default();
    // The size of one write.
    (options.workers, options.buffers_bytes) = (1, DATA_BYTES_MAX);
    let (_server, address) = serve(engine, vec![export("")], &options);
    let open = || {
        let (mut raw, welcome) = Raw::with_session(&address, "");
        let path = FsRequest::Lookup {
            parent: welcome.root,
            name: b"file",
        };
        let node_attr: NodeAttr = raw.done(&path);
        raw.done::<u64>(&FsRequest::Open {
            node: node_attr.node(),
            mode: OpenMode::read_write(),
            file: 1,
        });
        raw
    };
    let (mut writer, mut reader) = (open(), open());
    let write = writer.body(&FileRequest::Write {
        file: 1,
        mode: Position::At(0).into(),
    });
    let data = vec![7; DATA_BYTES_MAX];
    let mut frame = prefix(write.len(), data.len()).to_vec();
    frame.extend_from_slice(&write);
    let (first, rest) = data.split_at(data.len() / 2);
    frame.extend_from_slice(first);
    writer.stream.write_all(&frame).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..3 {
        let read = reader.body(&FileRequest::Read {
            file: 1,
            offset: 0,
            len_bytes: 64 << 10,
        });
        assert!(reader.send(&read, &[]));
    }
    std::thread::sleep(Duration::from_millis(100));
    writer.stream.write_all(rest).unwrap();
    let (number, came) = writer.receive().unwrap();
    assert_eq!(number, writer.number());
    came.unwrap();
    for _ in 0..3 {
        let (_, came) = reader.receive().unwrap();
        assert!(came.unwrap().1.iter().all(|&byte| byte == 7));
    }
}

/// With so many requests of a client at a stalled engine the server does not read its signs of life. Once it took that
/// for silence, and gave its locks to others.
#[test]
fn a_client_that_the_server_does_not_read_keeps_its_session() {
    let engine = Slow::new();
    drop(engine.below.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap());
    let lease = Duration::from_secs(2);
    let (server, address) = serve(engine.clone(), vec![export("")], &ServerOptions::default().lease(lease));
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let node_attr: NodeAttr = raw.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    raw.done::<()>(&ImmediateRequest::Lock {
        node: node_attr.node(),
        client: 1,
        lock: exclusive(7),
        may_wait: false,
        is_claim: false,
    });
    let other = connect(&address);
    for number in 0..64 {
        let body = raw.body(&FsRequest::Create {
            parent: welcome.root,
            name: format!("{number}").as_bytes(),
            new: new_file(),
            file: number,
        });
        assert!(raw.send(&body, &[]));
    }
    let began = Instant::now();
    while began.elapsed() < lease * 2 {
        let ping = raw.body(&ImmediateRequest::Ping {});
        assert!(raw.send(&ping, &[]));
        std::thread::sleep(lease / 10);
    }
    engine.go();
    raw.done::<()>(&ImmediateRequest::Ping {});
    let ino = other.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
    assert_eq!(lock(&other, ino, 1, Wait::No), Err(FsError::WouldBlock));
    // The server waits for a vanished client no longer than for others.
    until("the session ends", || server.sessions() == 1);
    lock(&other, ino, 1, Wait::Forever).unwrap();
}

/// The server pins the root of an export for itself, and counts no pins of clients on it.
#[test]
fn the_root_of_a_subtree_is_not_pinned_for_clients() {
    let fs = Arc::new(MemFs::new());
    fs.mkdir(SYSTEM, ROOT_INO, b"sub", 0o755).unwrap();
    let (_server, address) = serve(fs, vec![export("sub").path("/sub")], &ServerOptions::default());
    let (mut raw, welcome) = Raw::with_session(&address, "sub");
    raw.pins = true;
    let node_attr: NodeAttr = raw.done(&FsRequest::Resolve {
        root: welcome.root,
        base: welcome.root,
        path: b"/",
        follow: true,
    });
    assert_eq!((node_attr.node(), node_attr.is_pinned), (welcome.root, false));
    let node_attr: NodeAttr = raw.done(&FsRequest::Mkdir {
        parent: welcome.root,
        name: b"dir",
        mode: 0o755,
    });
    assert!(node_attr.is_pinned);
}

//! Volumes that servers hand to each other, as a server serves them.
//!
//! Protects: a client learns where the owner is; a session continues when the volume comes back; no answer leaves
//! after the right to answer has ended; the end of one volume closes no connection of another.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrite_client::{Client, ClientOptions, ConnectError};
use ferrite_server::{ExportOptions, Movable, Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::volume::{Ownership, TenureReport};
use ferrite_vfs::{Attr, Ctx, FileSystem, FsError, Ino, Layer, Limits, ROOT_INO, SYSTEM, SetAttr};

/// A server with a volume that stays, `own`, and one that moves, `moving`.
struct Moving {
    server: Server,
    movable: Movable,
    address: String,
    volume: Arc<MemFs>,
    may_answer: Arc<AtomicBool>,
}

/// The right to answer, as the test has it.
struct Switch {
    may_answer: Arc<AtomicBool>,
    left: Duration,
}

/// How long the right is.
const LENGTH: Duration = Duration::from_secs(6);

impl Ownership for Switch {
    fn may_answer(&self) -> bool {
        self.may_answer.load(Ordering::Acquire)
    }

    fn left(&self) -> Duration {
        self.left
    }

    fn length(&self) -> Duration {
        LENGTH
    }

    fn abandon(&self) {}

    fn lost(&self) -> Option<String> {
        None
    }

    fn report(&self) -> TenureReport {
        TenureReport {
            epoch: 7,
            left: Duration::from_millis(1500),
            batches: 4,
            commits: 6,
            commit_time: Duration::from_millis(2),
            ..TenureReport::default()
        }
    }
}

/// Administrators see the tenure of a volume that moves, and none of one that stays.
#[test]
fn a_report_of_activity_has_the_tenure() {
    let moving = Moving::new();
    moving.serve();
    let seen = moving.connect("moving").unwrap().activity().unwrap().tenure;
    let seen = seen.unwrap();
    assert_eq!((seen.epoch, seen.left_ms, seen.batches), (7, 1500, 4));
    assert_eq!((seen.commits, seen.commit_us), (6, 2000));
    let stays = moving.connect("own").unwrap();
    assert_eq!(stays.activity().unwrap().tenure, None);
}

impl Moving {
    fn new() -> Moving {
        Moving::with_leases(Duration::ZERO)
    }

    /// A server whose clients may cache for that long.
    fn with_leases(term: Duration) -> Moving {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let export = |name: &str| ExportOptions::new(name).root_squash(false);
        let own: Arc<dyn FileSystem> = Arc::new(MemFs::new());
        let options = ServerOptions::default().cache_term(term);
        let (server, movable) = Server::start_with_movable(
            vec![listener],
            vec![(own, vec![export("own")])],
            vec![vec![export("moving")]],
            &options,
        )
        .unwrap();
        Moving {
            server,
            movable: movable.into_iter().next().unwrap(),
            address,
            volume: Arc::new(MemFs::new()),
            may_answer: Arc::new(AtomicBool::new(true)),
        }
    }

    fn serve(&self) {
        self.serve_for(LENGTH);
    }

    /// With a right that lasts for that long.
    fn serve_for(&self, left: Duration) {
        self.serve_engine(Arc::clone(&self.volume) as Arc<dyn FileSystem>, left);
    }

    fn serve_engine(&self, engine: Arc<dyn FileSystem>, left: Duration) {
        let ownership = Arc::new(Switch {
            may_answer: Arc::clone(&self.may_answer),
            left,
        });
        self.movable.serve(engine, ownership).unwrap();
    }

    fn connect(&self, export: &str) -> Result<Client, ConnectError> {
        let mut options = ClientOptions::default().timeout(Some(Duration::from_secs(20)));
        options.connect = Duration::from_millis(500);
        Client::connect(&self.address, export, &options)
    }
}

#[test]
fn a_client_learns_where_the_owner_is() {
    let moving = Moving::new();
    moving.movable.is_at("b.example:7447");
    let refused = moving.connect("moving").err().unwrap().to_string();
    assert!(refused.contains("b.example:7447"), "{refused}");
    moving.serve();
    moving.connect("moving").unwrap();
    assert!(moving.connect("nothing").is_err());
}

#[test]
fn a_session_waits_for_a_volume_that_comes_back_and_others_are_not_disturbed() {
    let moving = Moving::new();
    moving.serve();
    let (client, other) = (moving.connect("moving").unwrap(), moving.connect("own").unwrap());
    let dir = client.mkdir(SYSTEM, ROOT_INO, b"d", 0o755).unwrap();
    assert_eq!(moving.server.sessions(), 2);
    // The engine lives on, so its open files do.
    let stopped = moving.movable.stop().unwrap();
    assert!(moving.movable.stop().is_none());
    assert_eq!(moving.server.sessions(), 1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.getattr(SYSTEM, dir.ino));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished(), "the volume is nowhere, and a call has returned");
        other.getattr(SYSTEM, ROOT_INO).unwrap();
        moving.serve();
        assert_eq!(waiting.join().unwrap().unwrap().ino, dir.ino);
    });
    drop(stopped);
    assert_eq!(other.reconnects(), 0);
    assert!(client.reconnects() > 0);
    client.rmdir(SYSTEM, ROOT_INO, b"d").unwrap();
}

#[test]
fn no_answer_leaves_once_the_right_to_answer_has_ended() {
    let moving = Moving::new();
    moving.serve();
    let client = moving.connect("moving").unwrap();
    client.mkdir(SYSTEM, ROOT_INO, b"d", 0o755).unwrap();
    moving.may_answer.store(false, Ordering::Release);
    // The engine would answer.
    moving.volume.lookup(SYSTEM, ROOT_INO, b"d").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.lookup(SYSTEM, ROOT_INO, b"d"));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished(), "an answer left");
        let refused = moving.connect("moving").err().unwrap().to_string();
        assert!(refused.contains("another server serves this volume"), "{refused}");
        moving.may_answer.store(true, Ordering::Release);
        waiting.join().unwrap().unwrap();
    });
    // A lost volume is not written to any more, and its next opening finds the session.
    let before = moving
        .volume
        .getxattr(SYSTEM, ROOT_INO, b"trusted.ferrite.server")
        .unwrap();
    drop(moving.movable.abandon().unwrap());
    let after = moving
        .volume
        .getxattr(SYSTEM, ROOT_INO, b"trusted.ferrite.server")
        .unwrap();
    assert_eq!(before, after);
    moving.serve();
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(error) = client.lookup(SYSTEM, ROOT_INO, b"d") {
        assert!(error != FsError::NotFound && Instant::now() < until, "{error}");
    }
}

/// An engine that waits, so that workers answer for it. A change that finds it at the end of the right fails.
struct Losing {
    volume: Arc<MemFs>,
    may_answer: Arc<AtomicBool>,
    ends: AtomicBool,
}

impl Layer for Losing {
    fn below(&self) -> &dyn FileSystem {
        &*self.volume
    }

    fn limits(&self) -> Limits {
        let mut limits = self.volume.limits();
        limits.may_block = true;
        limits
    }

    fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> ferrite_vfs::Result<Attr> {
        if self.ends.swap(false, Ordering::AcqRel) {
            self.may_answer.store(false, Ordering::Release);
            return Err(FsError::Io("the outcome is unknown".into()));
        }
        self.volume.mkdir(ctx, parent, name, mode)
    }
}

/// The error of a change whose outcome the owner does not learn any more is no answer: the client asks the next owner.
#[test]
fn an_error_at_the_end_of_the_right_does_not_leave_either() {
    let moving = Moving::new();
    let engine = Arc::new(Losing {
        volume: Arc::clone(&moving.volume),
        may_answer: Arc::clone(&moving.may_answer),
        ends: AtomicBool::new(true),
    });
    moving.serve_engine(engine, LENGTH);
    let client = moving.connect("moving").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mkdir(SYSTEM, ROOT_INO, b"d", 0o755));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished(), "an answer left");
        moving.may_answer.store(true, Ordering::Release);
        waiting.join().unwrap().unwrap();
    });
}

/// A client that may cache, and another.
fn caching(moving: &Moving) -> (Client, Client) {
    let mut options = ClientOptions::default().timeout(Some(Duration::from_secs(20)));
    options.connect = Duration::from_millis(500);
    options.cache_bytes = Some(1 << 20);
    let holder = Client::connect(&moving.address, "moving", &options).unwrap();
    (holder, moving.connect("moving").unwrap())
}

/// How long the holder may cache the attributes of the root.
fn cached(holder: &Client) -> Duration {
    let attr = holder.getattr(SYSTEM, ROOT_INO).unwrap();
    holder.cache_leases().unwrap().attr(&attr)
}

fn time_of_change(client: &Client) -> Duration {
    let since = Instant::now();
    let set = SetAttr {
        mode: Some(0o750),
        ..SetAttr::default()
    };
    client.setattr(SYSTEM, ROOT_INO, &set).unwrap();
    since.elapsed()
}

/// An owner that leaves in order takes leases back first, so that its successor need not wait for them.
#[test]
fn leases_are_returned_before_a_volume_moves() {
    let moving = Moving::with_leases(LENGTH);
    moving.serve();
    let (holder, other) = caching(&moving);
    holder.cache_leases().unwrap().watch(Box::new(|_| true));
    assert!(cached(&holder) > Duration::ZERO);
    let since = Instant::now();
    drop(moving.movable.stop());
    let stop = since.elapsed();
    moving.serve();
    // The client connects anew first, which takes it up to a second.
    other.getattr(SYSTEM, ROOT_INO).unwrap();
    let change = time_of_change(&other);
    assert!(stop < LENGTH / 4 && change < LENGTH / 6, "{stop:?}, {change:?}");
}

/// A client that does not answer delays a change at the next owner, but not the owner that leaves.
#[test]
fn leases_that_are_not_returned_are_waited_for_by_the_next_owner() {
    let moving = Moving::with_leases(LENGTH);
    moving.serve();
    let (holder, other) = caching(&moving);
    holder.cache_leases().unwrap().watch(Box::new(|_| {
        std::thread::sleep(2 * LENGTH);
        true
    }));
    assert!(cached(&holder) > Duration::ZERO);
    let granted = Instant::now();
    drop(moving.movable.stop());
    let stop = granted.elapsed();
    moving.serve();
    other.getattr(SYSTEM, ROOT_INO).unwrap();
    time_of_change(&other);
    let term = LENGTH / 3;
    assert!(
        stop < term && granted.elapsed() >= term - Duration::from_millis(100),
        "{stop:?}, {:?}",
        granted.elapsed()
    );
}

/// Leases end with their owner's right to answer: none is granted that lasts longer, and a successor waits for none.
#[test]
fn no_lease_outlives_the_right_of_its_owner() {
    let moving = Moving::with_leases(LENGTH);
    moving.serve_for(LENGTH / 3 - Duration::from_millis(1));
    let (holder, other) = caching(&moving);
    holder.cache_leases().unwrap().watch(Box::new(|_| false));
    assert_eq!(cached(&holder), Duration::ZERO);
    drop(moving.movable.abandon());
    moving.serve();
    // The client may have to connect anew first.
    let since = Instant::now();
    while cached(&holder).is_zero() {
        assert!(since.elapsed() < LENGTH, "there is no lease under a right that lasts");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(moving.movable.abandon());
    // Another server has it only after that.
    moving.serve();
    other.getattr(SYSTEM, ROOT_INO).unwrap();
    let change = time_of_change(&other);
    assert!(change < LENGTH / 6, "{change:?}");
}

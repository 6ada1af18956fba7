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
use ferrite_vfs::{FileSystem, FsError, ROOT_INO, SYSTEM};

/// A server with a volume that stays, `own`, and one that moves, `moving`.
struct Moving {
    server: Server,
    movable: Movable,
    address: String,
    volume: Arc<MemFs>,
    may_answer: Arc<AtomicBool>,
}

/// The right to answer, as the test has it.
struct Switch(Arc<AtomicBool>);

impl Ownership for Switch {
    fn may_answer(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let export = |name: &str| ExportOptions::new(name).root_squash(false);
        let own: Arc<dyn FileSystem> = Arc::new(MemFs::new());
        let options = ServerOptions::default().cache_term(Duration::ZERO);
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
        let ownership = Arc::new(Switch(Arc::clone(&self.may_answer)));
        self.movable
            .serve(Arc::clone(&self.volume) as Arc<dyn FileSystem>, ownership)
            .unwrap();
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

//! Clients of a volume that several servers may own: they find the owner, and continue there.
//!
//! Contents: real servers, one after the other on one pool; and, behind a proxy, servers that say that they do not
//! own the volume ([`Standby`]). The order of attempts and their times are tested in virtual time, in the client.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::common::bystander::new_file;
use crate::common::{connect, connect_leased, export, host, make_pool, mount, serve, serve_on};
use crate::replies::{Frame, HEAD_BYTES, Liar};
use crate::submitted::write_and_read;
use ferrite_client::{Client, ClientOptions, ConnectError};
use ferrite_proto::Encode;
use ferrite_server::{Server, ServerOptions};
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest, Unlock, Wait, wait_for};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, FsError, Ino, ROOT_INO, Result, SYSTEM};

const LONG: Duration = Duration::from_secs(30);
/// The longest time for which a client is away from its server once the next serves.
const FOUND_WITHIN: Duration = Duration::from_secs(2);

fn flock(client: &Client, ino: Ino, owner: u64, wait: Wait) -> Result<()> {
    let request = LockRequest::Flock(LockOwner(owner), LockKind::Exclusive);
    wait_for(
        wait,
        |may_wait, done| client.lock(SYSTEM, ino, &request, may_wait, done),
        |ticket| client.cancel_lock(SYSTEM, ticket),
    )
}

/// Ends a thread, also if the test fails.
struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Open files, one of them without a name, locks and content continue on the next server, and back on the first.
#[test]
fn a_client_continues_on_the_next_server() {
    for is_leased in [false, true] {
        let path = make_pool(64 << 20, 1000);
        let engine = mount(&path);
        // Changes wait until the leases that an earlier owner gave are over.
        let term = Duration::from_millis(500);
        let options = ServerOptions::default().lease(Duration::from_secs(5)).cache_term(term);
        let listen = |address: &str| TcpListener::bind(address).expect("the port is free");
        let (server, a) = serve(Arc::new(engine.clone()), vec![export("")], &options);
        let mut owner = Some((server, engine));
        // Nothing listens there until that server takes over.
        let b = listen(&format!("{}:0", host())).local_addr().unwrap().to_string();
        let both = format!("{a},{b}");
        let open = || match is_leased {
            true => connect_leased(&both, 1 << 20),
            false => connect(&both),
        };
        let (holder, other) = (open(), open());
        let make = |name: &[u8]| holder.create(SYSTEM, ROOT_INO, name, &new_file(true)).unwrap();
        let (log, nameless) = (make(b"log"), make(b"nameless"));
        holder.unlink(SYSTEM, ROOT_INO, b"nameless").unwrap();
        nameless.file.write_at(SYSTEM, 0, b"kept").unwrap();
        let ino = other.lookup(SYSTEM, ROOT_INO, b"log").unwrap().ino;
        flock(&holder, ino, 1, Wait::No).unwrap();
        let (is_over, appended) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _end = Ends(&is_over);
            let writer = scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let number = appended.load(Ordering::Relaxed);
                    log.file.append(SYSTEM, &number.to_le_bytes()).unwrap();
                    appended.store(number + 1, Ordering::Release);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            for address in [&b, &a, &b] {
                let (mut server, engine) = owner.take().expect("one serves");
                server.stop();
                engine.unmount().unwrap();
                drop((engine, server));
                std::thread::sleep(Duration::from_millis(300));
                let engine = mount(&path);
                let server = serve_on(listen(address), Arc::new(engine.clone()), &options);
                owner = Some((server, engine));
                let (before, began) = (appended.load(Ordering::Acquire), Instant::now());
                while appended.load(Ordering::Acquire) < before + 10 {
                    assert!(
                        !writer.is_finished() && began.elapsed() < FOUND_WITHIN,
                        "it does not continue"
                    );
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(flock(&other, ino, 2, Wait::No), Err(FsError::WouldBlock));
                let mut back = [0; 5];
                assert_eq!(nameless.file.read_at(SYSTEM, 0, &mut back), Ok(4));
                assert_eq!(&back[..4], b"kept");
            }
        });
        let expected: Vec<u8> = (0..appended.into_inner()).flat_map(usize::to_le_bytes).collect();
        let mut content = vec![0; expected.len() + 1];
        let theirs = other.open(SYSTEM, ino, ferrite_vfs::OpenMode::read_only()).unwrap();
        assert_eq!(theirs.read_at(SYSTEM, 0, &mut content), Ok(expected.len()));
        assert!(content[..expected.len()] == expected, "a record is lost or there twice");
        assert_eq!((holder.reconnects(), other.reconnects()), (3, 3));
        assert_eq!(holder.server().as_deref(), Some(&*b));
        holder.unlock(SYSTEM, ino, LockOwner(1), Unlock::Flock).unwrap();
        flock(&other, ino, 2, Wait::No).unwrap();
    }
}

/// A server that does not own the volume, or no longer: whatever it is asked, it names the owner. Behind it is the
/// owner, so that a request may have been carried out though its reply says otherwise.
struct Standby {
    liar: Liar,
    /// It owns the volume now.
    owns: Arc<AtomicBool>,
    /// How often it has said that it does not.
    said: Arc<AtomicUsize>,
    named: Arc<Mutex<String>>,
}

impl Standby {
    fn of(server: &str, owns: bool) -> Standby {
        let (owns, said) = (Arc::new(AtomicBool::new(owns)), Arc::new(AtomicUsize::new(0)));
        let named = Arc::new(Mutex::new(String::new()));
        let (is_owner, count, name) = (Arc::clone(&owns), Arc::clone(&said), Arc::clone(&named));
        let liar = Liar::new(server, move |_, mut frame: Frame| {
            if !is_owner.load(Ordering::Acquire) {
                count.fetch_add(1, Ordering::Relaxed);
                frame.data.clear();
                frame.body.truncate(HEAD_BYTES);
                frame.body[HEAD_BYTES - 1] = 0;
                let address = name.lock().unwrap().clone();
                FsError::NotOwner { address }.put(&mut frame.body);
            }
            vec![frame]
        });
        Standby {
            liar,
            owns,
            said,
            named,
        }
    }

    fn names(&self, owner: &str) {
        owner.clone_into(&mut self.named.lock().unwrap());
    }

    fn set_owner(&self, owns: bool) {
        self.owns.store(owns, Ordering::Release);
    }
}

/// An owner, and a proxy before it that owns the volume at first; a client has both addresses.
fn behind_a_standby(options: &ServerOptions) -> (Client, Standby, Server) {
    let path = make_pool(64 << 20, 1000);
    let (server, owner) = serve(Arc::new(mount(&path)), vec![export("")], options);
    let standby = Standby::of(&owner, true);
    standby.names(&owner);
    let client = connect(&format!("{},{owner}", standby.liar.address));
    (client, standby, server)
}

/// All kinds of requests: none fails, each change happens once, and the client moves to the owner.
#[test]
fn no_caller_sees_that_a_server_is_not_the_owner() {
    type Action = fn(&Client);
    let actions: [(&str, Action); 5] = [
        ("a call", |client| {
            client.lookup(SYSTEM, ROOT_INO, b"file").unwrap();
        }),
        ("a change", |client| {
            client.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
        }),
        ("a listing", |client| {
            let mut count = 0;
            let mut take = |_: &ferrite_vfs::DirEntry<'_>| {
                count += 1;
                true
            };
            client.readdir(SYSTEM, ROOT_INO, 0, &mut take).unwrap();
            assert!(count > 0);
        }),
        ("submitted", |client| {
            let new = new_file(true);
            write_and_read(&client.create(SYSTEM, ROOT_INO, b"submitted", &new).unwrap().file, 64);
        }),
        ("a ping", |client| {
            let began = Instant::now();
            while client.reconnects() == 0 {
                assert!(began.elapsed() < LONG, "an idle client does not move");
                std::thread::sleep(Duration::from_millis(5));
            }
        }),
    ];
    let options = ServerOptions::default().lease(Duration::from_secs(1));
    for (what, act) in actions {
        let (client, standby, _server) = behind_a_standby(&options);
        let made = client.create(SYSTEM, ROOT_INO, b"file", &new_file(true)).unwrap();
        standby.set_owner(false);
        let began = Instant::now();
        act(&client);
        assert!(
            standby.said.load(Ordering::Relaxed) > 0 && client.reconnects() == 1,
            "{what}"
        );
        assert!(began.elapsed() < FOUND_WITHIN, "{what}: {:?}", began.elapsed());
        made.file.append(SYSTEM, b"once").unwrap();
        assert_eq!(made.file.getattr(SYSTEM).unwrap().size, 4, "{what}");
    }
}

/// The grant of a lock, for which no thread waits.
#[test]
fn a_wait_for_a_lock_moves_to_the_owner() {
    let (client, standby, _server) = behind_a_standby(&ServerOptions::default());
    let ino = client
        .create(SYSTEM, ROOT_INO, b"file", &new_file(true))
        .unwrap()
        .attr
        .ino;
    flock(&client, ino, 1, Wait::No).unwrap();
    let request = LockRequest::Flock(LockOwner(2), LockKind::Exclusive);
    let (sender, granted) = mpsc::channel();
    let done = Box::new(move |result: Result<()>| drop(sender.send(result)));
    client.lock(SYSTEM, ino, &request, true, done);
    assert!(granted.recv_timeout(Duration::from_millis(200)).is_err(), "it waits");
    standby.set_owner(false);
    client.unlock(SYSTEM, ino, LockOwner(1), Unlock::Flock).unwrap();
    assert_eq!(granted.recv_timeout(LONG), Ok(Ok(())));
    assert_eq!(flock(&client, ino, 3, Wait::No), Err(FsError::WouldBlock));
    assert_eq!(client.reconnects(), 1);
}

/// A client that connects while there is no owner waits for one, as long as it may.
#[test]
fn the_first_connection_waits_for_an_owner() {
    let (_server, owner) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    let standby = Standby::of(&owner, false);
    let address = &standby.liar.address;
    let dead = TcpListener::bind((host(), 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    for addresses in [address.clone(), format!("{dead},{address}")] {
        standby.set_owner(false);
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| drop(connect(&addresses)));
            std::thread::sleep(Duration::from_millis(500));
            assert!(!connecting.is_finished(), "{addresses}");
            standby.set_owner(true);
            let began = Instant::now();
            connecting.join().unwrap();
            assert!(began.elapsed() < FOUND_WITHIN, "{addresses}");
        });
    }
}

/// The client connects to no server that its address does not name, and says which one another has named.
#[test]
fn a_server_cannot_send_clients_elsewhere() {
    let (_server, owner) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    let (one, other) = (Standby::of(&owner, false), Standby::of(&owner, false));
    let dead = TcpListener::bind((host(), 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    one.names(&owner);
    other.names("");
    let mut options = ClientOptions::default();
    options.connect = Duration::from_secs(2);
    let addresses = format!("{},{dead},{}", one.liar.address, other.liar.address);
    let began = Instant::now();
    let Err(error) = Client::connect(&addresses, "", &options) else {
        panic!("it connects to a server that it has no address of");
    };
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let text = error.to_string();
    for part in [&owner, &one.liar.address, &other.liar.address, &dead, "ask there"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert!(matches!(error, ConnectError::NoServer(causes) if causes.len() == 3));
    // Each answers one request a connection: the back-off grows to a second.
    assert!(
        (2..=20).contains(&one.said.load(Ordering::Relaxed)),
        "{}",
        one.said.load(Ordering::Relaxed)
    );
    let error = Client::connect(&one.liar.address, "", &options)
        .err()
        .expect("it is not the owner");
    assert!(error.to_string().contains(&owner), "{error}");
}

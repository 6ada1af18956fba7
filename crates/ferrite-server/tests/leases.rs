//! Leased caches: one client's cache never hides another's changes, and no client delays others for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::proxy::{NetworkFaults, Proxy};
use crate::common::raw::Raw;
use crate::common::{connect, connect_leased, connect_leased_tcp, export, make_pool, mount, serve, serve_at};
use ferrite_client::Client;
use ferrite_proto::{FsRequest, ImmediateRequest, NodeAttr, SessionRequest};
use ferrite_server::ServerOptions;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, FileSystem, FsError, NewFile, OpenFile, OpenMode, Position, ROOT_INO, RenameMode, SYSTEM, SetAttr, XattrMode,
};

const CACHE_BYTES: usize = 1 << 20;
const TERM: Duration = Duration::from_millis(600);
/// The delay that a loaded machine may add.
const SLACK: Duration = Duration::from_secs(5);
const CALM: NetworkFaults = NetworkFaults {
    cuts: 0,
    delays: 0,
    crumbs: 0,
};

fn options() -> ServerOptions {
    ServerOptions::default().cache_term(TERM)
}

fn new_file() -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: false,
    }
}

fn make(client: &Client, name: &[u8]) -> (Attr, Arc<dyn OpenFile>) {
    let opened = client.create(SYSTEM, ROOT_INO, name, &new_file()).unwrap();
    (opened.attr, opened.file)
}

fn look(client: &Client, name: &[u8]) -> Result<Attr, FsError> {
    client.lookup(SYSTEM, ROOT_INO, name)
}

fn hits(client: &Client) -> u64 {
    client.cache_activity().unwrap().hits
}

/// The same call twice: the second reply is the cache's.
fn twice<T: PartialEq + std::fmt::Debug>(client: &Client, ask: impl Fn() -> T) -> T {
    let first = ask();
    let before = hits(client);
    assert_eq!(ask(), first);
    assert!(hits(client) > before, "nothing was kept of {first:?}");
    first
}

fn mode_of(attr: &Attr) -> u32 {
    attr.mode & 0o777
}

#[test]
fn what_one_client_changes_another_sees_at_once_though_it_keeps_what_it_knows() {
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    let (holder, other) = (
        connect_leased(&address, CACHE_BYTES),
        connect_leased(&address, CACHE_BYTES),
    );
    assert_eq!(
        twice(&holder, || look(&holder, b"file").map(drop)),
        Err(FsError::NotFound)
    );
    let (attr, file) = make(&other, b"file");
    let ino = twice(&holder, || look(&holder, b"file").unwrap().ino);
    assert_eq!(ino, attr.ino);
    let mine = holder.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    let content = || {
        let mut buf = [0; 100];
        let count = mine.read_at(SYSTEM, 0, &mut buf).unwrap();
        buf[..count].to_vec()
    };
    assert_eq!(twice(&holder, content), b"");
    for text in ["one", "another"] {
        file.write(SYSTEM, Position::At(0).into(), text.as_bytes()).unwrap();
        assert_eq!(twice(&holder, content), text.as_bytes());
        assert_eq!(twice(&holder, || mine.getattr(SYSTEM).unwrap().size), text.len() as u64);
        assert_eq!(
            twice(&holder, || look(&holder, b"file").unwrap().size),
            text.len() as u64
        );
    }
    let mode = |mode: u32| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    other.setattr(SYSTEM, ino, &mode(0o600)).unwrap();
    assert_eq!(mode_of(&twice(&holder, || holder.getattr(SYSTEM, ino).unwrap())), 0o600);
    // Its own changes are not recalled, and still seen.
    holder.setattr(SYSTEM, ino, &mode(0o640)).unwrap();
    assert_eq!(mode_of(&twice(&holder, || holder.getattr(SYSTEM, ino).unwrap())), 0o640);
    mine.write(SYSTEM, Position::At(0).into(), b"mine").unwrap();
    assert_eq!(&twice(&holder, content)[..4], b"mine");
    let before = twice(&holder, || holder.getattr(SYSTEM, ino).unwrap().change);
    other.setxattr(SYSTEM, ino, b"user.a", b"1", XattrMode::Any).unwrap();
    assert_ne!(twice(&holder, || holder.getattr(SYSTEM, ino).unwrap().change), before);
    other.link(SYSTEM, ino, ROOT_INO, b"second").unwrap();
    assert_eq!(twice(&holder, || look(&holder, b"second").unwrap().nlink), 2);
    other
        .rename(SYSTEM, ROOT_INO, b"file", ROOT_INO, b"third", RenameMode::Replace)
        .unwrap();
    assert_eq!(
        twice(&holder, || look(&holder, b"file").map(drop)),
        Err(FsError::NotFound)
    );
    assert_eq!(twice(&holder, || look(&holder, b"third").unwrap().ino), ino);
    other.unlink(SYSTEM, ROOT_INO, b"second").unwrap();
    assert_eq!(twice(&holder, || holder.getattr(SYSTEM, ino).unwrap().nlink), 1);
    let entries = |client: &Client| client.getattr(SYSTEM, ROOT_INO).unwrap().nlink;
    let before = twice(&holder, || entries(&holder));
    other.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
    assert_eq!(twice(&holder, || entries(&holder)), before + 1);
    other.rmdir(SYSTEM, ROOT_INO, b"dir").unwrap();
    assert_eq!(twice(&holder, || entries(&holder)), before);
    assert!(holder.cache_activity().unwrap().recalls > 0);
}

/// Readers of a number that a writer increments: each sees at least the value written when it began, and no more than
/// the one being written when it ended. Through data, an attribute and a name, each from two clients.
fn register_is_linear(address: &str, cache_bytes: usize, writes: u64) {
    let clients = [
        connect_leased(address, cache_bytes),
        connect_leased(address, cache_bytes),
    ];
    let (attr, _) = make(&clients[0], b"register");
    look(&clients[1], b"register").unwrap();
    clients[0].mkdir(SYSTEM, ROOT_INO, b"names", 0o755).unwrap();
    let dir = look(&clients[0], b"names").unwrap().ino;
    look(&clients[1], b"names").unwrap();
    clients[0].mknod_file(dir, b"0");
    let files: Vec<_> = clients
        .iter()
        .map(|client| client.open(SYSTEM, attr.ino, OpenMode::read_write()).unwrap())
        .collect();
    files[0]
        .write(SYSTEM, Position::At(0).into(), &0u64.to_le_bytes())
        .unwrap();
    let (begun, ended, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (client, file) in clients.iter().zip(&files).chain(clients.iter().zip(&files)) {
            let (begun, ended, is_over) = (&begun, &ended, &is_over);
            scope.spawn(move || {
                let check = |what: &str, read: &dyn Fn(u64) -> u64| {
                    let least = ended.load(Ordering::SeqCst);
                    let seen = read(least);
                    let most = begun.load(Ordering::SeqCst);
                    assert!(
                        (least..=most).contains(&seen),
                        "{what}: {seen} is not in {least}..={most}"
                    );
                };
                while !is_over.load(Ordering::Acquire) {
                    check("data", &|_| {
                        let mut number = [0; 8];
                        // More than the file holds, so that the end is known.
                        let mut buf = [0; 64];
                        assert_eq!(file.read_at(SYSTEM, 0, &mut buf).unwrap(), 8);
                        number.copy_from_slice(&buf[..8]);
                        u64::from_le_bytes(number)
                    });
                    check("attribute", &|_| {
                        u64::from(client.getattr(SYSTEM, attr.ino).unwrap().uid)
                    });
                    // The name is moved last, from one number to the next.
                    check("name", &|least| {
                        (least..least + 1000)
                            .find(|number| client.lookup(SYSTEM, dir, number.to_string().as_bytes()).is_ok())
                            .unwrap()
                    });
                }
            });
        }
        for number in 1..=writes {
            let at = number as usize % 2;
            begun.store(number, Ordering::SeqCst);
            let owner = SetAttr {
                uid: Some(number as u32),
                ..SetAttr::default()
            };
            files[at]
                .write(SYSTEM, Position::At(0).into(), &number.to_le_bytes())
                .unwrap();
            clients[at].setattr(SYSTEM, attr.ino, &owner).unwrap();
            let (old, new) = ((number - 1).to_string(), number.to_string());
            clients[at]
                .rename(SYSTEM, dir, old.as_bytes(), dir, new.as_bytes(), RenameMode::Replace)
                .unwrap();
            ended.store(number, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(number % 7 * 300));
        }
        is_over.store(true, Ordering::Release);
    });
    let hits: u64 = clients.iter().map(hits).sum();
    assert!(hits > writes, "the caches were hardly used: {hits}");
}

trait MakeFile {
    fn mknod_file(&self, dir: u64, name: &[u8]);
}

impl MakeFile for Client {
    fn mknod_file(&self, dir: u64, name: &[u8]) {
        self.create(SYSTEM, dir, name, &new_file()).unwrap();
    }
}

#[test]
fn a_register_of_two_clients_is_linear() {
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    register_is_linear(&address, CACHE_BYTES, 400);
}

#[test]
fn a_register_is_linear_while_terms_end_all_the_time() {
    let path = make_pool(32 << 20, 4_000);
    let options = ServerOptions::default().cache_term(Duration::from_millis(3)).threads(2);
    let (_server, address) = serve(Arc::new(mount(&path)), vec![export("")], &options);
    register_is_linear(&address, CACHE_BYTES, 400);
}

#[test]
fn a_client_that_answers_no_recall_holds_up_a_change_for_a_term_at_most() {
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options());
    let other = connect(&address);
    let (attr, file) = make(&other, b"file");
    let (mut mute, welcome) = Raw::with_session(&address, "");
    assert_eq!(
        mute.done::<u32>(&SessionRequest::Leases { relied_on: false }),
        TERM.as_millis() as u32
    );
    let node_attr: NodeAttr = mute.done(&FsRequest::Lookup {
        parent: welcome.root,
        name: b"file",
    });
    assert_eq!(node_attr.attr.ino, attr.ino);
    // The other client's own work continues meanwhile, and so does everything else.
    let began = Instant::now();
    std::thread::scope(|scope| {
        let change = scope.spawn(|| {
            file.write(SYSTEM, Position::At(0).into(), b"x").unwrap();
            began.elapsed()
        });
        std::thread::sleep(TERM / 4);
        let reads = Instant::now();
        other.statfs(SYSTEM).unwrap();
        assert_eq!(
            other.getattr(SYSTEM, attr.ino).unwrap().size,
            0,
            "it was changed under a lease"
        );
        assert!(reads.elapsed() < TERM / 2, "{:?}", reads.elapsed());
        let took = change.join().unwrap();
        assert!(took >= TERM * 3 / 4 && took < TERM + SLACK, "{took:?}");
    });
    let again = Instant::now();
    file.write(SYSTEM, Position::At(0).into(), b"y").unwrap();
    assert!(again.elapsed() < TERM, "it has no lease any more");
    // A reply to recalls that it never got has no effect, either.
    mute.done::<()>(&ImmediateRequest::Recalled {
        recalls: (0..1000).collect(),
    });
}

#[test]
fn a_client_that_is_closed_holds_up_nothing() {
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default());
    let (gone, other) = (connect_leased(&address, CACHE_BYTES), connect(&address));
    let (attr, file) = make(&other, b"file");
    twice(&gone, || look(&gone, b"file").unwrap().size);
    gone.close();
    let began = Instant::now();
    file.write(SYSTEM, Position::At(0).into(), b"x").unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(gone.getattr(SYSTEM, attr.ino), Err(FsError::Disconnected));
}

#[test]
fn a_client_that_vanishes_knows_nothing_when_others_go_on() {
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options());
    let network = Proxy::new(&address, CALM, 1);
    let (gone, other) = (connect_leased_tcp(&network.address, CACHE_BYTES), connect(&address));
    let (attr, file) = make(&other, b"file");
    assert_eq!(twice(&gone, || look(&gone, b"file").unwrap().size), 0);
    network.silence(true);
    std::thread::scope(|scope| {
        let began = Instant::now();
        let written = scope.spawn(|| {
            file.write(SYSTEM, Position::At(0).into(), b"x").unwrap();
            Instant::now()
        });
        // Its reads return the old size, and the change has not been made.
        while began.elapsed() < TERM / 3 {
            let cached = hits(&gone);
            assert_eq!(gone.getattr(SYSTEM, attr.ino).unwrap().size, 0);
            assert!(hits(&gone) > cached && !written.is_finished());
        }
        let took = written.join().unwrap() - began;
        assert!(took >= TERM / 2 && took < TERM + SLACK, "{took:?}");
    });
    let before = hits(&gone);
    network.silence(false);
    assert_eq!(gone.getattr(SYSTEM, attr.ino).unwrap().size, 1);
    assert_eq!(hits(&gone), before, "the lease was over");
}

#[test]
fn a_restarted_server_changes_nothing_before_earlier_leases_are_over() {
    let path = make_pool(32 << 20, 4_000);
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options());
    let network = Proxy::new(&address, CALM, 1);
    let holder = connect_leased_tcp(&network.address, CACHE_BYTES);
    let attr = make(&connect(&address), b"file").0;
    assert_eq!(twice(&holder, || look(&holder, b"file").unwrap().nlink), 1);
    network.silence(true);
    let given = Instant::now();
    server.stop();
    drop(server);
    let server = serve_at(&address, Arc::new(engine.clone()), &options());
    let other = connect(&address);
    look(&other, b"file").unwrap();
    other.link(SYSTEM, attr.ino, ROOT_INO, b"second").unwrap();
    let took = given.elapsed();
    assert!(took >= TERM * 3 / 4 && took < TERM + SLACK, "{took:?}");
    network.silence(false);
    network.cut();
    // Requested over the old connection, so it is not cached.
    assert_eq!(look(&holder, b"file").unwrap().nlink, 2);
    assert_eq!(twice(&holder, || look(&holder, b"file").unwrap().nlink), 2);
    // A run after one without leases does not wait.
    drop((holder, other, server));
    drop(serve_at(&address, Arc::new(engine.clone()), &options()));
    std::thread::sleep(TERM);
    let server = serve_at(&address, Arc::new(engine.clone()), &options());
    std::thread::sleep(TERM * 2);
    drop(server);
    let server = serve_at(&address, Arc::new(engine), &options());
    let began = Instant::now();
    connect(&address).mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
    assert!(began.elapsed() < TERM, "{:?}", began.elapsed());
    drop(server);
}

/// Clients that have said goodbye rely on nothing, so a server that is restarted after that does not wait.
#[test]
fn a_server_that_stops_when_no_lease_lasts_leaves_no_term_behind() {
    let path = make_pool(32 << 20, 4_000);
    let engine = mount(&path);
    let (mut server, address) = serve(Arc::new(engine.clone()), vec![export("")], &ServerOptions::default());
    let holder = connect_leased_tcp(&address, CACHE_BYTES);
    make(&holder, b"file");
    assert_eq!(twice(&holder, || look(&holder, b"file").unwrap().nlink), 1);
    drop(holder);
    server.stop();
    drop(server);
    let server = serve_at(&address, Arc::new(engine), &ServerOptions::default());
    let began = Instant::now();
    connect(&address).mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drop(server);
}

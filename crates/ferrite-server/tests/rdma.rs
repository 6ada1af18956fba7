//! Files of a server by one-sided verbs: rights to queue pairs and keys, what ends them, and a client's reaction to
//! their end.
//!
//! Protected properties: no client reaches by RDMA what it may not reach by requests, or not any more; acknowledged
//! data is there; without RDMA the same calls work by requests, and report it.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{connect, connect_leased, export, serve, serve_at};
use crate::double::Double;
use ferrite_client::Client;
use ferrite_client::rdma::{How, RemoteError, RemoteFile, RemoteOptions};
use ferrite_proto::{QueuePairInfo, UdpPlace};
use ferrite_rnic::{Initiator, InitiatorOptions, Options};
use ferrite_server::rdma::{Adapter, BoundFiles};
use ferrite_server::{ExportOptions, KeyWanted, Keys, Rdma, Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{
    Cred, Ctx, FileSystem, FsError, Ino, NewFile, OpenMode, Position, ROOT_INO, SYSTEM, SetAttr, Unsupported,
};

const WRITABLE: Binding = Binding {
    writable: true,
    defragment: false,
    whole: false,
};
const READABLE: Binding = Binding {
    writable: false,
    defragment: false,
    whole: false,
};

struct Place {
    fs: Arc<MemFs>,
    files: Arc<Double>,
    address: String,
    server: Option<Server>,
}

fn adapter(files: &Arc<Double>) -> Arc<dyn Rdma> {
    let options = Options {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 2,
        ..Options::default()
    };
    Arc::new(Adapter::start(&options, Arc::clone(files)).unwrap())
}

impl Place {
    fn with(files: Double, exports: Vec<ExportOptions>, options: ServerOptions) -> Place {
        let (fs, files) = (Arc::new(MemFs::new()), Arc::new(files));
        for name in [b"file", b"mine"] {
            let new = NewFile {
                mode: 0o600,
                open: OpenMode::read_write(),
                exclusive: true,
            };
            fs.create(SYSTEM, ROOT_INO, name, &new).unwrap();
        }
        fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
        let options = options.rdma(Some(adapter(&files)));
        let (server, address) = serve(Arc::clone(&fs) as _, exports, &options);
        Place {
            fs,
            files,
            address,
            server: Some(server),
        }
    }

    fn new() -> Place {
        Place::with(Double::default(), vec![export("")], ServerOptions::default())
    }

    fn client(&self) -> Arc<Client> {
        Arc::new(connect(&self.address))
    }

    fn ino(&self, name: &[u8]) -> Ino {
        self.fs.lookup(SYSTEM, ROOT_INO, name).unwrap().ino
    }

    /// The file as programs on the server's host see it.
    fn local(&self, name: &[u8]) -> Vec<u8> {
        let ino = self.ino(name);
        let file = self.fs.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
        let mut bytes = vec![0; file.getattr(SYSTEM).unwrap().size as usize];
        assert_eq!(file.read_at(SYSTEM, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    /// Another server in its place, as after a crash: sessions are known, keys and queue pairs are not.
    fn restart(&mut self) {
        self.server.take().unwrap().stop();
        self.files = Arc::new(Double::default());
        let options = ServerOptions::default().rdma(Some(adapter(&self.files)));
        self.server = Some(serve_at(&self.address, Arc::clone(&self.fs) as _, &options));
    }
}

/// The same on real pools: pages are found, and written data is there after the pool was closed.
#[test]
fn pages_of_a_pool_are_written_in_place() {
    let pool = common::make_pool(64 << 20, 1_000);
    let engine = Arc::new(common::mount(&pool));
    let fs: Arc<dyn FileSystem> = Arc::clone(&engine) as _;
    let options = Options {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        ..Options::default()
    };
    let adapter = Adapter::start(&options, Arc::new(BoundFiles::new().unwrap())).unwrap();
    let served = ServerOptions::default().rdma(Some(Arc::new(adapter)));
    let (server, address) = serve(Arc::clone(&fs), vec![export("")], &served);
    let client = Arc::new(connect(&address));
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let made = client.create(SYSTEM, ROOT_INO, b"file", &new).unwrap();
    let file = RemoteFile::open(&client, SYSTEM, made.attr.ino, self::options()).unwrap();
    assert!(by_verbs(&file), "{}", file.how());
    let data: Vec<u8> = (0..100_000_u32).map(|index| (index * 7) as u8).collect();
    file.write(10_000, &data).unwrap();
    file.append(b"appended").unwrap();
    assert_eq!(file.append_once(b"once").unwrap(), 110_008);
    let mut read = vec![1; 110_012];
    assert_eq!(file.read(0, &mut read).unwrap(), read.len());
    assert!(read[..10_000].iter().all(|byte| *byte == 0) && read[10_000..110_000] == data[..]);
    // Programs on the server's host see it, change it and truncate it, and verbs continue.
    let local = fs.open(SYSTEM, made.attr.ino, OpenMode::read_write()).unwrap();
    let mut seen = vec![0; 200_000];
    assert_eq!(local.read_at(SYSTEM, 0, &mut seen).unwrap(), 110_012);
    assert!(seen[..110_012] == read[..]);
    local.write(SYSTEM, Position::At(20_000).into(), &[9; 5_000]).unwrap();
    let mut part = vec![0; 5_002];
    assert_eq!(file.read(19_999, &mut part).unwrap(), 5_002);
    assert!(part[1..5_001].iter().all(|byte| *byte == 9) && part[0] == data[9_999]);
    file.write(22_000, &[5; 100]).unwrap();
    assert_eq!(local.read_at(SYSTEM, 21_999, &mut seen[..102]).unwrap(), 102);
    assert!(seen[0] == 9 && seen[1..101] == [5; 100] && seen[101] == 9);
    assert!(client.rdma_activity().unwrap().files[0].lookups > 25);
    assert_eq!(file.traffic().reconnects, 0);
    let short = SetAttr {
        size: Some(30_000),
        ..SetAttr::default()
    };
    fs.setattr(SYSTEM, made.attr.ino, &short).unwrap();
    assert_eq!(file.read(29_000, &mut part).unwrap(), 1_000);
    file.append(b"end").unwrap();
    let reported = client.rdma_activity().unwrap().files;
    assert_eq!((reported.len(), reported[0].keys, reported[0].size), (1, 1, 30_003));
    assert!(reported[0].entries > 0 && reported[0].writable);
    // A READ behind the new end cost a queue pair, unnoticed.
    assert_eq!(file.traffic().reconnects, 1);
    file.close().unwrap();
    assert_eq!(client.rdma_activity().unwrap().files, []);
    drop((local, made, client, server, fs));
    ferrite_vfs::volume::Volume::close(&*engine).unwrap();
    drop(engine);
    let again = common::mount(&pool);
    let ino = again.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
    let file = again.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
    assert_eq!(file.read_at(SYSTEM, 0, &mut seen).unwrap(), 30_003);
    assert_eq!(seen[29_999..30_003], [data[19_999], b'e', b'n', b'd']);
}

/// An append to a frozen pool completes when it is thawed; until then its adapter's only thread serves others.
#[test]
fn a_frozen_pool_keeps_no_other_queue_pair_waiting() {
    let pool = common::make_pool(64 << 20, 1_000);
    let engine = Arc::new(common::mount(&pool));
    let options = Options {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 1,
        ..Options::default()
    };
    let adapter = Adapter::start(&options, Arc::new(BoundFiles::new().unwrap())).unwrap();
    let served = ServerOptions::default().rdma(Some(Arc::new(adapter)));
    let (_server, address) = serve(Arc::clone(&engine) as _, vec![export("")], &served);
    let client = Arc::new(connect(&address));
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let ino = client.create(SYSTEM, ROOT_INO, b"file", &new).unwrap().attr.ino;
    let key = client.bind(SYSTEM, ino, WRITABLE, false).unwrap().key;
    let (mut one, mut other) = (queue_pair(&client), queue_pair(&client));
    engine.freeze().unwrap();
    let appending = std::thread::spawn(move || one.append(key, b"later"));
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        other.probe().unwrap();
    }
    assert!(!appending.is_finished());
    engine.thaw().unwrap();
    appending.join().unwrap().unwrap();
    assert_eq!(engine.getattr(SYSTEM, ino).unwrap().size, 5);
}

/// A change of permissions ends the keys of users who may not use the file any more, at once, and no other's.
#[test]
fn permissions_that_are_taken_away_end_keys() {
    let pool = common::make_pool(64 << 20, 1_000);
    let fs: Arc<dyn FileSystem> = Arc::new(common::mount(&pool));
    let options = Options {
        listen: vec!["[::1]:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()],
        ..Options::default()
    };
    let adapter = Adapter::start(&options, Arc::new(BoundFiles::new().unwrap())).unwrap();
    let served = ServerOptions::default().rdma(Some(Arc::new(adapter)));
    let (_server, address) = serve(Arc::clone(&fs), vec![export("")], &served);
    let client = Arc::new(connect(&address));
    let new = NewFile {
        mode: 0o666,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let ino = client.create(SYSTEM, ROOT_INO, b"file", &new).unwrap().attr.ino;
    let user = Ctx::checked(Cred::new(1_000, 1_000));
    let ours = client.bind(SYSTEM, ino, WRITABLE, false).unwrap();
    let his = client.bind(&user, ino, WRITABLE, false).unwrap();
    let (mut one, mut two) = (queue_pair(&client), queue_pair(&client));
    two.append(his.key, b"his").unwrap();
    let private = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    fs.setattr(SYSTEM, ino, &private).unwrap();
    assert!(matches!(two.append(his.key, b"no"), Err(ferrite_rnic::Error::Access)));
    one.append(ours.key, b"ours").unwrap();
    assert!(matches!(
        client.bind(&user, ino, READABLE, false),
        Err(FsError::AccessDenied)
    ));
    let mut bytes = [0; 9];
    let file = fs.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
    assert_eq!(file.read_at(SYSTEM, 0, &mut bytes).unwrap(), 7);
    assert_eq!(bytes[..7], *b"hisours");
    // 8 bytes in one step.
    one.reserve(ours.key, 9).unwrap();
    assert_eq!(one.fetch_add(ours.key, 8, 5).unwrap(), 0);
    assert_eq!(one.compare_swap(ours.key, 8, 5, 6).unwrap(), 5);
    assert_eq!(file.read_at(SYSTEM, 8, &mut bytes[..1]).unwrap(), 1);
    assert_eq!(bytes[0], 6);
}

fn look(client: &Client, name: &[u8]) -> Ino {
    client.lookup(SYSTEM, ROOT_INO, name).unwrap().ino
}

fn open(client: &Arc<Client>, name: &[u8]) -> RemoteFile {
    RemoteFile::open(client, SYSTEM, look(client, name), options()).unwrap()
}

/// A client notices soon that a server is gone.
fn options() -> RemoteOptions {
    RemoteOptions::default().initiator(InitiatorOptions {
        retry_after: Duration::from_millis(100),
        retries: 10,
        ..InitiatorOptions::default()
    })
}

fn by_verbs(file: &RemoteFile) -> bool {
    matches!(file.how(), How::Verbs { mtu_bytes: 4096 })
}

#[test]
fn what_is_written_by_verbs_is_read_locally_and_back() {
    let place = Place::new();
    let client = place.client();
    let file = open(&client, b"file");
    assert!(by_verbs(&file), "{}", file.how());
    let before = client.requests();
    let data: Vec<u8> = (0..300_000_u32).map(|index| (index * 7) as u8).collect();
    file.write(5, &data).unwrap();
    file.append(b"appended").unwrap();
    assert_eq!(file.append_once(b"once").unwrap(), 5 + 300_000 + 8);
    let mut read = vec![0; data.len()];
    assert_eq!(file.read(5, &mut read).unwrap(), data.len());
    assert!(read == data);
    assert_eq!(client.requests(), before, "the server's requests were used");
    let local = place.local(b"file");
    assert!(local[..5] == [0; 5] && local[5..][..data.len()] == data[..]);
    assert_eq!(local[300_005..], *b"appendedonce");
    // Behind the end there is nothing, and at the end all data before it.
    let mut buf = [1; 10];
    assert_eq!(file.read(local.len() as u64 - 4, &mut buf).unwrap(), 4);
    assert_eq!(buf[..4], *b"once");
    assert_eq!(file.read(local.len() as u64 + 7, &mut buf).unwrap(), 0);
    // Appends by programs there are visible.
    let there = place
        .fs
        .open(SYSTEM, place.ino(b"file"), OpenMode::read_write())
        .unwrap();
    there.write(SYSTEM, Position::End.into(), b"!").unwrap();
    assert_eq!(file.read(local.len() as u64, &mut buf).unwrap(), 1);
    assert!(file.traffic().packets.sent > 70);
    let activity = client.rdma_activity().unwrap();
    assert_eq!((activity.files.len(), activity.counters.queue_pairs), (1, 1));
    assert!(activity.counters.executed > 70 && activity.files[0].ino == look(&client, b"file"));
    file.close().unwrap();
    assert_eq!((place.files.keys(), place.files.queue_pairs()), (0, 0));
}

/// Clients that do not know others' writes make a file as long as the furthest of their writes, no longer.
#[test]
fn a_file_ends_where_the_furthest_write_ended() {
    let place = Place::new();
    let clients = [place.client(), place.client()];
    let files = clients.each_ref().map(|client| open(client, b"file"));
    files[0].write(90, &[1; 10]).unwrap();
    // The second one takes the file to be empty.
    files[1].write(40, &[2; 10]).unwrap();
    assert_eq!(place.local(b"file").len(), 100);
    files[1].write(95, &[3; 10]).unwrap();
    assert_eq!(place.local(b"file").len(), 105);
    let all = [&[0; 40][..], &[2; 10], &[0; 40], &[1; 5], &[3; 10]].concat();
    assert_eq!(place.local(b"file"), all);
    // One that takes it to be longer than it is.
    let short = SetAttr {
        size: Some(3),
        ..SetAttr::default()
    };
    place.fs.setattr(SYSTEM, place.ino(b"file"), &short).unwrap();
    files[0].write(20, &[4; 10]).unwrap();
    assert_eq!(place.local(b"file"), [&[0; 20][..], &[4; 10]].concat());
    // All at once, in steps of different lengths.
    std::thread::scope(|scope| {
        for (file, step) in files.iter().zip([70_u64, 110]) {
            scope.spawn(move || (0..200).for_each(|n| file.write(n * step, &[5; 60]).unwrap()));
        }
    });
    assert_eq!(place.local(b"file").len(), 199 * 110 + 60);
    assert!(files.iter().all(by_verbs));
}

#[test]
fn keys_and_queue_pairs_end_with_their_session() {
    let place = Place::with(
        Double::default(),
        vec![export("")],
        ServerOptions::default().lease(Duration::from_millis(500)),
    );
    let (first, second) = (place.client(), place.client());
    let (_one, two) = (open(&first, b"file"), open(&second, b"mine"));
    assert_eq!((place.files.keys(), place.files.queue_pairs()), (2, 2));
    first.close();
    await_counts(&place, 1);
    two.write(0, b"still").unwrap();
    // Without notice.
    drop(place.server);
    assert_eq!((place.files.keys(), place.files.queue_pairs()), (0, 0));
}

fn await_counts(place: &Place, count: usize) {
    let began = Instant::now();
    while (place.files.keys(), place.files.queue_pairs()) != (count, count) {
        assert!(began.elapsed() < Duration::from_secs(20), "keys or queue pairs stay");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_key_is_good_for_its_session_and_while_it_lasts() {
    let place = Place::new();
    let (first, second) = (place.client(), place.client());
    let ino = look(&first, b"file");
    let granted = first.bind(SYSTEM, ino, WRITABLE, false).unwrap();
    assert_eq!(
        (granted.append_at, granted.reserve_at, granted.size),
        (1 << 63, 1 << 62, 0)
    );
    let mut own = queue_pair(&first);
    own.append(granted.key, b"mine").unwrap();
    let mut foreign = queue_pair(&second);
    let refused = |result: Result<(), ferrite_rnic::Error>| matches!(result, Err(ferrite_rnic::Error::Access));
    assert!(refused(foreign.append(granted.key, b"evil")));
    // One key is released, one reads, one is of a file that was unbound.
    first.release_key(granted.key).unwrap();
    assert!(refused(own.append(granted.key, b"late")));
    let readable = first.bind(SYSTEM, ino, READABLE, false).unwrap();
    assert!(refused(queue_pair(&first).append(readable.key, b"evil")));
    let again = first.bind(SYSTEM, ino, WRITABLE, false).unwrap();
    second.unbind(SYSTEM, look(&second, b"file")).unwrap();
    assert!(refused(queue_pair(&first).append(again.key, b"late")));
    assert_eq!(place.local(b"file"), b"mine");
}

fn queue_pair(client: &Client) -> Initiator {
    let place = client.rdma_places().unwrap()[0];
    let mut initiator = Initiator::new(place, InitiatorOptions::default()).unwrap();
    let offer = initiator.offer();
    let ours = QueuePairInfo {
        place: UdpPlace(offer.address),
        qpn: offer.qpn,
        psn: offer.psn.value(),
        mtu: offer.mtu.code(),
    };
    let theirs = client.open_queue_pair(&ours).unwrap();
    // A queue pair requested again, as after a broken connection, is the same.
    assert_eq!(client.open_queue_pair(&ours).unwrap(), theirs);
    initiator.connect(&ferrite_rnic::QueuePair {
        address: theirs.place.0,
        qpn: theirs.qpn,
        psn: ferrite_roce::wire::Psn::new(theirs.psn),
        mtu: ferrite_roce::wire::cm::Mtu::from_code(theirs.mtu).unwrap(),
    });
    initiator
}

/// Permissions, exports and addresses hold for RDMA, too.
#[test]
fn nobody_gets_a_key_for_what_is_not_his() {
    let exports = vec![
        export("all"),
        export("read").read_only(true),
        ExportOptions::new("squashed"),
        export("dir").path("/dir"),
    ];
    let place = Place::with(Double::default(), exports, ServerOptions::default());
    let connect = |name: &str| common::connect_export(&place.address, name);
    let other_user = Ctx::checked(Cred::new(1_000, 1_000));
    let all = connect("all");
    let ino = look(&all, b"file");
    assert!(matches!(
        all.bind(&other_user, ino, READABLE, false),
        Err(FsError::AccessDenied)
    ));
    assert!(matches!(all.unbind(&other_user, ino), Err(FsError::AccessDenied)));
    let read = connect("read");
    let there = look(&read, b"file");
    assert!(matches!(
        read.bind(SYSTEM, there, WRITABLE, false),
        Err(FsError::ReadOnly)
    ));
    assert!(matches!(read.unbind(SYSTEM, there), Err(FsError::ReadOnly)));
    read.bind(SYSTEM, there, READABLE, false).unwrap();
    let squashed = connect("squashed");
    let there = look(&squashed, b"file");
    assert!(matches!(
        squashed.bind(SYSTEM, there, READABLE, false),
        Err(FsError::AccessDenied)
    ));
    // A client of a subtree does not see files bound elsewhere.
    assert_eq!(all.rdma_activity().unwrap().files.len(), 1);
    assert_eq!(connect("dir").rdma_activity().unwrap().files, []);
    // A queue pair at an address that is not the client's would make the server send there.
    let elsewhere = QueuePairInfo {
        place: UdpPlace("127.0.0.2:5000".parse().unwrap()),
        qpn: 20,
        psn: 1,
        mtu: 3,
    };
    let refused = all.open_queue_pair(&elsewhere).unwrap_err().to_string();
    assert!(refused.contains("address that the client connects from"), "{refused}");
    let mtu = QueuePairInfo {
        place: UdpPlace("127.0.0.1:5000".parse().unwrap()),
        mtu: 9,
        ..elsewhere
    };
    assert!(all.open_queue_pair(&mtu).is_err());
    assert_eq!(place.files.queue_pairs(), 0);
}

/// A client requests a revoked key again; it gets no key that it may not have any more.
#[test]
fn a_revoked_key_is_asked_for_again_and_permission_is_checked_then() {
    let place = Place::new();
    let client = place.client();
    let ino = place.ino(b"mine");
    let owner = SetAttr {
        uid: Some(1_000),
        ..SetAttr::default()
    };
    place.fs.setattr(SYSTEM, ino, &owner).unwrap();
    let user = Ctx::checked(Cred::new(1_000, 1_000));
    let file = RemoteFile::open(&client, &user, look(&client, b"mine"), options()).unwrap();
    file.write(0, b"one").unwrap();
    place.files.revoke_all();
    file.write(3, b"two").unwrap();
    assert!(by_verbs(&file) && file.traffic().reconnects == 1);
    let other = SetAttr {
        uid: Some(2_000),
        ..SetAttr::default()
    };
    place.fs.setattr(SYSTEM, ino, &other).unwrap();
    place.files.revoke_all();
    assert!(matches!(
        file.write(0, b"bad"),
        Err(RemoteError::Fs(FsError::AccessDenied))
    ));
    assert!(matches!(
        file.append(b"bad"),
        Err(RemoteError::Fs(FsError::AccessDenied))
    ));
    assert_eq!(place.local(b"mine"), b"onetwo");
}

#[test]
fn a_client_goes_on_after_a_restart_of_the_server() {
    let mut place = Place::new();
    let client = place.client();
    let file = open(&client, b"file");
    file.write(0, b"before").unwrap();
    place.restart();
    file.write(6, b" after").unwrap();
    assert!(by_verbs(&file), "{}", file.how());
    assert_eq!(file.traffic().reconnects, 1);
    place.restart();
    let mut read = [0; 12];
    assert_eq!(file.read(0, &mut read).unwrap(), 12);
    assert_eq!(read, *b"before after");
    // An unacknowledged append is reported, and the next one succeeds.
    place.restart();
    assert!(matches!(file.append(b"?"), Err(RemoteError::Unacknowledged)));
    file.append(b"!")
        .unwrap_or_else(|_| file.append_once(b"!").map(drop).unwrap());
    place.restart();
    let offset = file.append_once(b"once").unwrap();
    let local = place.local(b"file");
    assert_eq!(local[..12], *b"before after");
    assert_eq!(local[offset as usize..], *b"once");
    assert_eq!(local.iter().filter(|byte| **byte == b'?').count(), 0);
}

#[test]
fn without_rdma_the_same_calls_are_requests_and_say_why() {
    let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
    let cases: [(&str, Option<Double>, RemoteOptions); 3] = [
        ("offers no RDMA", None, options()),
        (
            "writable memory regions on a pool in a disk file",
            Some(Double::refusing(Unsupported::WritableRegion)),
            options(),
        ),
        (
            "verbs were not wanted",
            Some(Double::default()),
            options().only_requests(true),
        ),
    ];
    for (why, files, options) in cases {
        let place = match files {
            Some(files) => Place::with(files, vec![export("")], ServerOptions::default()),
            None => {
                let mut place = Place::new();
                place.server.take().unwrap().stop();
                place.server = Some(serve_at(
                    &place.address,
                    Arc::clone(&place.fs) as _,
                    &ServerOptions::default(),
                ));
                place
            }
        };
        let client = place.client();
        let ino = look(&client, b"file");
        works_by_requests(&place, &RemoteFile::open(&client, SYSTEM, ino, options).unwrap(), why);
        assert_eq!((place.files.keys(), place.files.queue_pairs()), (0, 0));
    }
    // A place that never answers, as behind a firewall.
    let place = Place::with_adapter(Arc::new(Mute(mute.local_addr().unwrap())));
    let client = place.client();
    let hurried = options().initiator(InitiatorOptions {
        retry_after: Duration::from_millis(5),
        ..InitiatorOptions::default()
    });
    let file = RemoteFile::open(&client, SYSTEM, look(&client, b"file"), hurried).unwrap();
    works_by_requests(&place, &file, "no reply from UDP");
}

fn works_by_requests(place: &Place, file: &RemoteFile, why: &str) {
    match file.how() {
        How::Requests { why: said } => assert!(said.contains(why), "{said}"),
        other => panic!("{other}"),
    }
    file.write(0, b"0123456789").unwrap();
    file.append(b"ab").unwrap();
    assert_eq!(file.append_once(b"cd").unwrap(), 12);
    assert_eq!(file.reserve(2).unwrap(), 14);
    let mut read = [0; 32];
    assert_eq!(file.read(8, &mut read).unwrap(), 8);
    assert_eq!(read[..8], *b"89abcd\0\0");
    file.flush().unwrap();
    assert_eq!(place.local(b"file"), b"0123456789abcd\0\0");
    assert_eq!(file.traffic(), Default::default());
}

/// An adapter whose datagrams never arrive.
struct Mute(SocketAddr);

impl Keys for Mute {
    fn release(&self, _: u64, _: u32) {}

    fn end_session(&self, _: u64) {}

    fn unbind(&self, _: &Arc<dyn FileSystem>, _: Ino) -> ferrite_vfs::Result<()> {
        Ok(())
    }

    fn files(&self, _: &Arc<dyn FileSystem>) -> Vec<ferrite_proto::BoundFileInfo> {
        Vec::new()
    }
}

impl Rdma for Mute {
    fn places(&self) -> Vec<SocketAddr> {
        vec![self.0]
    }

    fn open(&self, _: u64, client: &QueuePairInfo) -> ferrite_vfs::Result<QueuePairInfo> {
        Ok(QueuePairInfo {
            place: UdpPlace(self.0),
            ..*client
        })
    }

    fn close(&self, _: u64, _: u32) {}

    fn bind(&self, _: &KeyWanted<'_>) -> ferrite_vfs::Result<ferrite_proto::GrantedKey> {
        panic!("no key is wanted of whom nobody reaches");
    }

    fn counters(&self) -> ferrite_proto::RdmaCounters {
        Default::default()
    }
}

impl Place {
    fn with_adapter(adapter: Arc<dyn Rdma>) -> Place {
        let mut place = Place::new();
        place.server.take().unwrap().stop();
        let options = ServerOptions::default().rdma(Some(adapter));
        place.server = Some(serve_at(&place.address, Arc::clone(&place.fs) as _, &options));
        place
    }
}

/// Writes by verbs bypass the server, so no client may cache a file that they may write.
#[test]
fn nobody_has_a_lease_on_a_file_that_is_written_by_verbs() {
    let place = Place::new();
    let cached = connect_leased(&place.address, 1 << 20);
    let reader = cached
        .open(SYSTEM, look(&cached, b"file"), OpenMode::read_only())
        .unwrap();
    let read = || {
        let mut buf = [0; 16];
        let count = reader.read_at(SYSTEM, 0, &mut buf).unwrap();
        buf[..count].to_vec()
    };
    let hits = |what: &dyn Fn()| {
        let before = cached.cache_activity().unwrap().hits;
        what();
        what();
        cached.cache_activity().unwrap().hits - before
    };
    let client = place.client();
    client
        .open(SYSTEM, look(&client, b"file"), OpenMode::read_write())
        .unwrap()
        .write(SYSTEM, Position::End.into(), b"first")
        .unwrap();
    assert!(
        hits(&|| assert_eq!(read(), b"first")) > 0,
        "the test sees no cache at work"
    );
    // Binding for reading recalls nothing.
    let readable = RemoteFile::open(&client, SYSTEM, look(&client, b"file"), options().writable(false)).unwrap();
    assert!(hits(&|| assert_eq!(read(), b"first")) > 0);
    assert!(matches!(readable.write(0, b"x"), Err(RemoteError::ReadOnly)));
    let file = open(&client, b"file");
    for word in [b"alpha", b"bravo"] {
        file.write(0, word).unwrap();
        assert_eq!(read(), word);
        assert_eq!(cached.getattr(SYSTEM, reader.ino()).unwrap().size, 5);
    }
    assert_eq!(hits(&|| assert_eq!(read(), b"bravo")), 0);
    file.close().unwrap();
    assert!(hits(&|| assert_eq!(read(), b"bravo")) > 0, "leases are not given again");
}

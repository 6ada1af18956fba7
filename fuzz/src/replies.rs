//! Attacks on the client of the network service: a server that says whatever a fuzzer, or a test, wants.
//!
//! Contents: [`Liar`], which stands between clients and an honest server and changes answers; and the target
//! [`client_replies`], used by the libFuzzer program in `fuzz_targets/` and by the test that replays the corpus on a
//! stable compiler (`crates/ferrite-server/tests/fuzz_corpus.rs`).
//!
//! Whatever a server says, no call of a client panics, waits for longer than it may, or never ends; and a
//! client gives nothing to its users that is no name, no target of a link, or outside what was asked for.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ferrite_client::{Client, ClientOptions};
use ferrite_proto::{Head, Reader, Request};
use ferrite_server::{ExportOptions, Server, ServerOptions};
use ferrite_transport::frame::{Lengths, PREFIX_BYTES};
use ferrite_transport::secure::handshake::{PREAMBLE_BYTES, VERDICT_BYTES};
use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, RecordLock};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    DirEntry, FileKind, FileSystem, Ino, NewFile, NewNode, OpenFlags, OpenMode, ROOT_INO, SYSTEM, SetAttr, Start,
    XattrMode, posix,
};

/// One reply as it travels: head and content, and data.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frame {
    pub(crate) body: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// What the head of a reply takes.
pub(crate) const HEAD_BYTES: usize = 9;

/// What becomes of the reply to a request with this number.
type Lie = dyn Fn(u16, Frame) -> Vec<Frame> + Send + Sync;

/// A server that lies: an honest one behind a proxy on a loopback address.
pub(crate) struct Liar {
    pub(crate) address: String,
    is_over: Arc<AtomicBool>,
}

impl Liar {
    pub(crate) fn new(target: &str, lie: impl Fn(u16, Frame) -> Vec<Frame> + Send + Sync + 'static) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let is_over = Arc::new(AtomicBool::new(false));
        let (target, ends, lie): (_, _, Arc<Lie>) = (target.to_owned(), Arc::clone(&is_over), Arc::new(lie));
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                let (target, lie) = (target.clone(), Arc::clone(&lie));
                std::thread::spawn(move || {
                    let _ = between(&client, &target, &*lie);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Liar { address, is_over }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // So that it looks.
        let _ = TcpStream::connect(&self.address);
    }
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream, count: usize) -> std::io::Result<()> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes)?;
    to.write_all(&bytes)
}

fn receive(mut from: &TcpStream) -> std::io::Result<Frame> {
    let mut prefix = [0; PREFIX_BYTES];
    from.read_exact(&mut prefix)?;
    let lengths = Lengths::decode(&prefix)
        .ok()
        .flatten()
        .expect("ends that keep to the protocol");
    let mut frame = Frame {
        body: vec![0; lengths.body_bytes],
        data: vec![0; lengths.data_bytes],
    };
    from.read_exact(&mut frame.body)?;
    from.read_exact(&mut frame.data)?;
    Ok(frame)
}

fn send(mut to: &TcpStream, frame: &Frame) -> std::io::Result<()> {
    let lengths = Lengths {
        body_bytes: frame.body.len(),
        data_bytes: frame.data.len(),
    };
    to.write_all(&[&lengths.encode()[..], &frame.body, &frame.data].concat())
}

/// Serves one connection.
fn between(client: &TcpStream, target: &str, lie: &Lie) -> std::io::Result<()> {
    let server = TcpStream::connect(target)?;
    for stream in [client, &server] {
        stream.set_nodelay(true)?;
    }
    pass_on(client, &server, PREAMBLE_BYTES)?;
    pass_on(&server, client, VERDICT_BYTES)?;
    let numbers = Mutex::new(std::collections::HashMap::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok(frame) = receive(client) {
                let mut reader = Reader::new(&frame.body);
                if let (Ok(head), Ok(number)) = (reader.get::<Head>(), reader.get::<u16>()) {
                    numbers.lock().expect("no panic").insert(head.id, number);
                }
                if send(&server, &frame).is_err() {
                    break;
                }
            }
            let _ = server.shutdown(Shutdown::Both);
        });
        while let Ok(frame) = receive(&server) {
            let id = Reader::new(&frame.body).get::<u64>().unwrap_or_default();
            let number = numbers.lock().expect("no panic").get(&id).copied().unwrap_or_default();
            if lie(number, frame).iter().any(|frame| send(client, frame).is_err()) {
                break;
            }
        }
        // Both ends, so that the other thread ends as well.
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
    Ok(())
}

/// Length of the file that clients read, which has a hole.
const FILE_BYTES: u64 = 700 << 10;

/// A little of everything.
fn fill(fs: &dyn FileSystem) -> ferrite_vfs::Result<()> {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let ino = fs.mknod(SYSTEM, ROOT_INO, b"file", &node)?.ino;
    let file = fs.open(SYSTEM, ino, OpenMode::read_write())?;
    file.write_at(SYSTEM, 0, &[1; 5000])?;
    file.write_at(SYSTEM, FILE_BYTES - 1, &[2])?;
    fs.setxattr(SYSTEM, ino, b"user.name", b"value", XattrMode::Any)?;
    let dir = fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755)?.ino;
    for n in 0..40 {
        fs.mknod(SYSTEM, dir, format!("name-{n}").as_bytes(), &node)?;
    }
    fs.symlink(SYSTEM, ROOT_INO, b"link", b"dir/name-1").map(drop)
}

/// The honest server behind all liars.
pub(crate) fn honest() -> &'static str {
    static STARTED: OnceLock<(Server, String)> = OnceLock::new();
    let (_, address) = STARTED.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let fs = MemFs::new();
        fill(&fs).expect("space for a few files");
        let exports = vec![ExportOptions::new("").root_squash(false)];
        let server = Server::start(vec![listener], vec![(Arc::new(fs), exports)], &ServerOptions::default());
        (server.expect("a server"), address)
    });
    address
}

/// Entries that are taken of a listing, which may have no end.
const ENTRIES_MAX: usize = 3000;

fn list(client: &Client, dir: Ino) {
    let mut count = 0;
    let mut is_wanted = |entry: &DirEntry<'_>| {
        posix::check_name(entry.name).expect("only names that entries can have");
        count += 1;
        count < ENTRIES_MAX
    };
    let _ = client.readdir(SYSTEM, dir, 0, &mut is_wanted);
    let _ = client.readdir_plus(SYSTEM, dir, 0, &mut |entry, _| is_wanted(entry));
}

fn use_names(client: &Client) {
    let _ = client.statfs(SYSTEM);
    let _ = client.getattr(SYSTEM, ROOT_INO);
    list(client, ROOT_INO);
    for name in [&b"file"[..], b"dir", b"link", b"none"] {
        let Ok(found) = client.lookup(SYSTEM, ROOT_INO, name) else {
            continue;
        };
        assert!(found.ino != 0 && found.size <= i64::MAX as u64);
        list(client, found.ino);
        let _ = client.parent(SYSTEM, found.ino);
        if let Ok(target) = client.readlink(SYSTEM, found.ino) {
            assert!(!target.is_empty() && !target.contains(&0), "no target of a link");
        }
        for name in client.listxattr(SYSTEM, found.ino).unwrap_or_default() {
            assert!(!name.is_empty() && !name.contains(&0), "no name of an attribute");
            let _ = client.getxattr(SYSTEM, found.ino, &name);
        }
        use_file(client, found.ino);
    }
    let _ = client.resolve(SYSTEM, &Start::default(), b"dir/name-2", true);
    let flags = OpenFlags {
        read: true,
        ..OpenFlags::default()
    };
    let _ = client.open_path(SYSTEM, &Start::default(), b"link", &flags);
}

fn use_file(client: &Client, ino: Ino) {
    let Ok(file) = client.open(SYSTEM, ino, OpenMode::read_write()) else {
        return;
    };
    let _ = file.getattr(SYSTEM);
    for len in [100, FILE_BYTES as usize] {
        let mut into = vec![0; len];
        assert!(file.read_at(SYSTEM, 0, &mut into).unwrap_or_default() <= len);
    }
    // As a copy finds what a sparse file holds: each step leads on.
    let mut at = 0;
    for _ in 0..8 {
        let Ok(data) = file.seek_data(SYSTEM, at) else { break };
        let Ok(hole) = file.seek_hole(SYSTEM, data) else { break };
        assert!(data >= at && hole >= data, "a search that goes back");
        at = hole;
    }
    if let Ok(written) = file.write_at(SYSTEM, 3, b"some text") {
        assert!(written <= 9, "more than there was");
    }
    let _ = file.fsync(SYSTEM);
    let lock = RecordLock {
        owner: LockOwner(1),
        pid: 1,
        kind: LockKind::Shared,
        range: ByteRange::ALL,
    };
    let _ = client.conflicting_lock(SYSTEM, ino, &lock);
}

fn change_names(client: &Client) {
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: false,
    };
    let name = format!("new-{}", std::process::id());
    if let Ok(opened) = client.create(SYSTEM, ROOT_INO, name.as_bytes(), &new) {
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        let _ = client.setattr(SYSTEM, opened.attr.ino, &set);
    }
    let _ = client.unlink(SYSTEM, ROOT_INO, name.as_bytes());
    let _ = client.sync(SYSTEM);
}

/// Replies to one input that are changed.
const CHANGES_MAX: usize = 16;
/// Answers from the first on that a change can meet.
const REPLIES: usize = 64;

/// What happens to one reply.
struct Change<'d> {
    to: usize,
    way: u8,
    bytes: &'d [u8],
}

fn changes(mut rest: &[u8]) -> Vec<Change<'_>> {
    let mut changes = Vec::new();
    while let Some((&[to, way, len], behind)) = rest.split_first_chunk::<3>() {
        let (bytes, behind) = behind.split_at(usize::from(len).min(behind.len()));
        rest = behind;
        let to = usize::from(to) % REPLIES;
        changes.push(Change { to, way, bytes });
        if changes.len() == CHANGES_MAX {
            break;
        }
    }
    changes
}

/// Numbers with which sums, differences and sizes go wrong.
const EXTREMES: [u64; 8] = [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, u32::MAX as u64, 1 << 32, 4096];

/// Ways: flip a bit behind the head, put bytes there, put an extreme number there, replace all behind the head, cut
/// the end off, append, repeat the reply, replace all of it.
fn apply(change: &Change<'_>, frame: Frame) -> Vec<Frame> {
    let Frame { mut body, mut data } = frame;
    let first = change.bytes.first().copied().unwrap_or_default();
    let content = body.len().saturating_sub(HEAD_BYTES);
    let at = HEAD_BYTES + usize::from(first) % content.max(1);
    let rest = change.bytes.get(1..).unwrap_or_default();
    let put = |body: &mut Vec<u8>, bytes: &[u8]| {
        let len = body.len().saturating_sub(at).min(bytes.len());
        if len > 0 {
            body[at..at + len].copy_from_slice(&bytes[..len]);
        }
    };
    match change.way % 8 {
        0 if at < body.len() => body[at] ^= 1 << (rest.first().copied().unwrap_or_default() % 8),
        0 => {}
        1 => put(&mut body, rest),
        2 => put(
            &mut body,
            &EXTREMES[usize::from(rest.first().copied().unwrap_or_default()) % EXTREMES.len()].to_le_bytes(),
        ),
        3 => {
            body.truncate(HEAD_BYTES);
            body.extend(change.bytes);
        }
        4 => body.truncate(body.len().saturating_sub(usize::from(first))),
        5 => {
            body.extend(rest);
            data.extend(vec![first; usize::from(change.way) * 100]);
        }
        6 => {
            let frame = Frame { body, data };
            return vec![frame; usize::from(first) % 4 + 1];
        }
        _ => body = change.bytes.to_vec(),
    }
    vec![Frame { body, data }]
}

/// The first byte says whether the client keeps what it is told; then changes of replies: which one, way, length,
/// bytes.
pub(crate) fn client_replies(data: &[u8]) {
    let Some((&manners, changed)) = data.split_first() else {
        return;
    };
    let (changed, came) = (changed.to_vec(), AtomicUsize::new(0));
    let liar = Liar::new(honest(), move |_, frame| {
        let number = came.fetch_add(1, Ordering::Relaxed);
        let mut frames = vec![frame];
        for change in changes(&changed).iter().filter(|change| change.to == number) {
            frames = frames
                .into_iter()
                .flat_map(|frame| apply(change, frame))
                .take(8)
                .collect();
        }
        frames
    });
    let began = Instant::now();
    let mut options = ClientOptions::default()
        .timeout(Some(Duration::from_millis(200)))
        .cache_bytes((manners & 1 == 1).then_some(1 << 20));
    options.connect = Duration::from_millis(500);
    if let Ok(client) = Client::connect(&liar.address, "", &options) {
        use_names(&client);
        change_names(&client);
        let _ = client.activity().map(|reported| {
            reported
                .clients
                .iter()
                .map(|client| client.total())
                .max_by_key(|c| c.requests)
        });
        let _ = client.rdma_places();
        let _ = client.rdma_activity();
        let _ = client.cache_activity();
    }
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "a client that is kept busy for ever"
    );
}

/// What a name of a request is, for those who lie about one kind alone.
#[allow(dead_code, reason = "for the tests only")]
pub(crate) fn opcode_of(name: &str) -> u16 {
    (0..u16::MAX)
        .find(|&number| Request::name_of(number) == Some(name))
        .expect("a request has this name")
}

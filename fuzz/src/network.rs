//! Attacks on the network service: bytes from a fuzzer as messages, and as what a client sends to a server.
//!
//! Contents: one function a target ([`TARGETS`]), used by the libFuzzer programs in `fuzz_targets/` and by the
//! test that replays the corpora on a stable compiler (`crates/ferrite-server/tests/fuzz_corpus.rs`).
//!
//! A message must be refused or mean one thing: what is read and written again is the same bytes. A server must go on to
//! serve others, whatever one client sends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferrite_client::{Client, ClientOptions};
use ferrite_proto::{
    Activity, Encode, Entry, Head, ImmediateRequest, MAGIC, NodeAttr, OpenedFile, Reader, ReplyHead, Request, VERSION,
    Welcome, Wire,
};
use ferrite_server::{ExportOptions, Server, ServerOptions};
use ferrite_transport::frame::{Lengths, PREFIX_BYTES};
use ferrite_transport::secure::{Credentials, handshake};
use ferrite_vfs::locks::RecordLock;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, FsError, SYSTEM, StatFs};

/// A target: its name, and what it does with the fuzzer's bytes.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const TARGETS: [Target; 2] = [("wire_message", wire_message), ("server_session", server_session)];

/// Reads one value that is all of `bytes`. If there is one, it is written as it was read.
fn there_and_back<'m, T: Wire<'m>>(bytes: &'m [u8]) {
    if let Ok(value) = Reader::new(bytes).last::<T>() {
        let mut again = Vec::new();
        value.put(&mut again);
        assert_eq!(again, bytes, "a message that can be written in two ways");
    }
}

/// The same for what may hold an error: one that the reader does not know becomes another that says so.
fn understood_again<'m, T: Wire<'m> + PartialEq + std::fmt::Debug>(bytes: &'m [u8], again: &'m mut Vec<u8>) {
    if let Ok(value) = Reader::new(bytes).last::<T>() {
        value.put(again);
        assert_eq!(
            Reader::new(again).last::<T>(),
            Ok(value),
            "a message that means two things"
        );
    }
}

/// The first byte says what the others are.
pub(crate) fn wire_message(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    let mut again = Vec::new();
    match kind % 12 {
        0 => there_and_back::<Welcome>(bytes),
        1 => there_and_back::<NodeAttr>(bytes),
        2 => there_and_back::<OpenedFile>(bytes),
        3 => understood_again::<Entry<'_>>(bytes, &mut again),
        4 => there_and_back::<StatFs>(bytes),
        5 => there_and_back::<Option<RecordLock>>(bytes),
        6 => understood_again::<FsError>(bytes, &mut again),
        7 => there_and_back::<ReplyHead>(bytes),
        8 => there_and_back::<Activity>(bytes),
        9 => there_and_back::<Request<'_>>(bytes),
        _ => there_and_back::<(Head, Request<'_>)>(bytes),
    }
}

/// A server for all inputs; it must survive them all.
fn server() -> &'static str {
    static STARTED: OnceLock<(Server, String)> = OnceLock::new();
    let (_, address) = STARTED.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let export = ExportOptions::new("").root_squash(false);
        let engines: Vec<(Arc<dyn FileSystem>, _)> = vec![(Arc::new(MemFs::new()), vec![export])];
        let server = Server::start(vec![listener], engines, &ServerOptions::default()).expect("a server");
        (server, address)
    });
    address
}

/// What a client says first.
fn hello() -> Vec<u8> {
    let mut body = head(1);
    let request = ImmediateRequest::Hello {
        magic: MAGIC,
        version: VERSION,
        export: b"",
        resume: None,
    };
    request.put(&mut body);
    framed(&body, 0)
}

fn head(id: u64) -> Vec<u8> {
    let mut body = Vec::new();
    Head {
        id,
        settled_below: 0,
        pins: false,
        check: true,
        token: None,
        caller: Default::default(),
    }
    .put(&mut body);
    body
}

/// The last `data_bytes` of the bytes are the frame's data.
fn framed(bytes: &[u8], data_bytes: usize) -> Vec<u8> {
    let lengths = Lengths {
        body_bytes: bytes.len() - data_bytes,
        data_bytes,
    };
    [&lengths.encode()[..], bytes].concat()
}

/// The reply to the hello: the root of the export, behind the head of the reply, has MACs that requests need.
fn root(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix).ok()?;
    let lengths = Lengths::decode(&prefix).ok()??;
    let mut body = vec![0; lengths.body_bytes];
    stream.read_exact(&mut body).ok()?;
    let mut reader = Reader::new(&body);
    reader.get::<ReplyHead>().ok()?;
    let welcome: Welcome = reader.last().ok()?;
    let mut node = Vec::new();
    welcome.root.put(&mut node);
    Some(node)
}

/// Pieces of up to 255 bytes: length, way, bytes. By the way a piece is sent as it is, as a frame, behind a head, or
/// behind a head with the root of the export as the first field of a request. An odd way repeats the number before.
pub(crate) fn server_session(data: &[u8]) {
    let mut stream = TcpStream::connect(server()).expect("the server takes connections");
    let timeout = Some(Duration::from_secs(20));
    stream.set_read_timeout(timeout).expect("a timeout");
    stream.set_write_timeout(timeout).expect("a timeout");
    let Some((&manners, mut rest)) = data.split_first() else {
        return;
    };
    if manners & 2 == 0 {
        // As who has no key.
        let deadline = Instant::now() + Duration::from_secs(20);
        handshake::introduce(&stream, &Credentials::default(), deadline).expect("a server that answers");
    }
    let mut node = Vec::new();
    if manners & 3 == 0 {
        let _ = stream.write_all(&hello());
        node = root(&mut stream).expect("a client with manners is welcome");
    }
    let mut number = 2;
    while let Some((&[len, way], behind)) = rest.split_first_chunk::<2>() {
        let (bytes, behind) = behind.split_at(usize::from(len).min(behind.len()));
        rest = behind;
        number += u64::from(way & 1 == 0);
        let piece = match way >> 1 & 3 {
            0 => bytes.to_vec(),
            1 => framed(bytes, bytes.len() / 4 * usize::from(way >> 3 & 1)),
            2 => framed(&[&head(number), bytes].concat(), 0),
            _ => {
                let (kind, fields) = bytes.split_at(2.min(bytes.len()));
                let data_bytes = fields.len() / 2 * usize::from(way >> 3 & 1);
                framed(&[&head(number), kind, &node, fields].concat(), data_bytes)
            }
        };
        // The server may have closed the connection, and well so.
        if stream.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    // Whatever it answers, it comes to an end.
    match std::io::copy(&mut stream, &mut std::io::sink()) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("the server neither answers nor closes the connection")
        }
        _ => {}
    }
    let options = ClientOptions::default().timeout(Some(Duration::from_secs(20)));
    let other = Client::connect(server(), "", &options).expect("others are welcome");
    other.statfs(SYSTEM).expect("others are served");
}

/// Whether the root of the server has an entry of this name.
#[allow(dead_code, reason = "for the test only")]
pub(crate) fn is_there(name: &[u8]) -> bool {
    let client = Client::connect(server(), "", &ClientOptions::default()).expect("others are welcome");
    client.lookup(SYSTEM, ferrite_vfs::ROOT_INO, name).is_ok()
}

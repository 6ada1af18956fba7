//! Adversarial or broken clients: each gets an error or a closed connection, and no other client notices.
//!
//! Meanwhile another client works ([`common::bystander`]): its reads are right, and it waits for no other.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::bystander::{Bystander, new_file, node};
use common::raw::{Raw, clone_tree, hello, prefix, root_without_mac};
use common::{connect, export, make_pool, mount, serve};
use ferrite_proto::{
    FileRequest, FsRequest, ImmediateRequest, LockingRequest, MAGIC, Node, NodeAttr, OpenedFile, Reader, Request,
    SessionRequest, SessionState, VERSION,
};
use ferrite_server::{Server, ServerOptions};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;
use ferrite_transport::frame::{BODY_BYTES_MAX, DATA_BYTES_MAX};
use ferrite_vfs::locks::{LockKind, LockOwner, LockRequest};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    FileKind, FileSystem, FsError, NO_NAME, OpenFlags, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, XattrMode,
};

fn start() -> (Server, String) {
    serve(Arc::new(MemFs::new()), vec![export("")], &ServerOptions::default())
}

/// Whether the server has closed the connection, or closes it now.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn garbage_and_lengths_that_no_frame_has() {
    let (server, address) = start();
    let bystander = Bystander::at(&address, "");
    let seed = seed_from_env().unwrap_or_else(|| u64::from(std::process::id()));
    println!("FERRITE_SEED={seed}");
    let mut random = Rng::new(seed);
    for (body_bytes, data_bytes) in [
        (BODY_BYTES_MAX + 1, 0),
        (0, DATA_BYTES_MAX + 1),
        (u32::MAX as usize, u32::MAX as usize),
        (1 << 31, 0),
        (0, 1 << 31),
        (0, 0),
        (1, 0),
    ] {
        let mut raw = Raw::connect(&address);
        raw.stream.write_all(&prefix(body_bytes, data_bytes)).unwrap();
        let _ = raw.stream.write_all(&[0]);
        assert!(is_closed(&mut raw.stream), "{body_bytes} + {data_bytes}");
    }
    for _ in 0..200 {
        let mut raw = Raw::connect(&address);
        let len = random.below(3000) as usize;
        let garbage: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        // The server may close before all is sent.
        let _ = match random.chance(50) {
            true => raw.stream.write_all(&garbage),
            false => raw.send_whole(&garbage),
        };
        let _ = raw.stream.shutdown(std::net::Shutdown::Write);
        assert!(is_closed(&mut raw.stream));
    }
    bystander.goes_on();
    drop(bystander);
    assert_eq!(server.sessions(), 0);
}

/// Clients that stop in the middle of a frame take nothing from others. Once sixteen of them, without sessions, held
/// all buffers, and no client could write more than a few KiB.
#[test]
fn frames_that_never_end_hold_nobody_up() {
    let options = ServerOptions::default().lease(Duration::from_secs(6));
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options);
    let bystander = Bystander::at(&address, "");
    let mut pending = Vec::new();
    for _ in 0..40 {
        let mut raw = Raw::connect(&address);
        raw.stream.write_all(&prefix(10, DATA_BYTES_MAX)).unwrap();
        // The connection may be closed already.
        let _ = raw.stream.write_all(&[0; 20]);
        pending.push(raw);
    }
    for count in [1, 7, 8, 100] {
        let mut raw = Raw::connect(&address);
        raw.stream.write_all(&prefix(1000, 0)[..count.min(8)]).unwrap();
        raw.stream.write_all(&vec![0; count.saturating_sub(8)]).unwrap();
        pending.push(raw);
    }
    bystander.goes_on();
    // Clients that have a session lose it with their lease.
    for _ in 0..40 {
        let (mut raw, _) = Raw::with_session(&address, "");
        let body = raw.body(&FileRequest::Write {
            file: 1,
            mode: ferrite_vfs::WriteMode {
                position: ferrite_vfs::Position::End,
                kill_priv: false,
            },
        });
        raw.stream.write_all(&prefix(body.len(), DATA_BYTES_MAX)).unwrap();
        raw.stream.write_all(&body).unwrap();
        pending.push(raw);
    }
    bystander.goes_on();
    for mut raw in pending {
        assert!(is_closed(&mut raw.stream), "a connection that says nothing is kept");
    }
}

#[test]
fn hellos_that_are_none() {
    let (_server, address) = start();
    let bystander = Bystander::at(&address, "");
    let mut raw = Raw::connect(&address);
    // Before hello.
    for request in [
        Request::from(ImmediateRequest::Ping {}),
        FsRequest::Statfs {}.into(),
        FsRequest::Getattr {
            node: root_without_mac(),
        }
        .into(),
    ] {
        assert!(matches!(raw.refused(&request), FsError::Io(_)));
    }
    for (magic, version, name) in [
        (*b"FERRITE!", VERSION, ""),
        (MAGIC, VERSION + 1, ""),
        (MAGIC, VERSION, "none"),
    ] {
        let request = ImmediateRequest::Hello {
            magic,
            version,
            export: name.as_bytes(),
            resume: None,
        };
        assert!(matches!(raw.refused(&request), FsError::Io(_)));
    }
    let long = "x".repeat(100_000);
    assert!(matches!(raw.refused(&hello(&long, None)), FsError::Io(_)));
    let welcome = raw.set_up_session("", None).unwrap();
    assert_eq!(welcome.state, SessionState::New);
    // A second hello.
    assert!(raw.ask(&hello("", None)).is_none());
    assert!(is_closed(&mut raw.stream));
    bystander.goes_on();
}

#[test]
fn arguments_that_no_client_of_ours_sends() {
    let path = make_pool(16 << 20, 1000);
    let engine = mount(&path);
    let engines: [Arc<dyn FileSystem>; 2] = [Arc::new(MemFs::new()), Arc::new(engine.clone())];
    for fs in engines {
        let (_server, address) = serve(fs, vec![export("")], &ServerOptions::default());
        let bystander = Bystander::at(&address, "");
        let (mut raw, welcome) = Raw::with_session(&address, "");
        let root = welcome.root;
        let made: OpenedFile = raw.done(&FsRequest::Create {
            parent: root,
            name: b"file",
            new: new_file(true),
            file: 1,
        });
        let file = made.node_attr.node();
        let long = [b'x'; 300];
        let names: [&[u8]; 9] = [b"", b".", b"..", b"a/b", b"/", b"../x", b"a\0b", b"\0", &long];
        for name in names {
            for request in [
                FsRequest::Lookup { parent: root, name },
                FsRequest::Mknod {
                    parent: root,
                    name,
                    new: node(FileKind::File, 0o644),
                },
                FsRequest::Mkdir {
                    parent: root,
                    name,
                    mode: 0o755,
                },
                FsRequest::Symlink {
                    parent: root,
                    name,
                    target: b"x",
                },
                FsRequest::Link {
                    node: file,
                    parent: root,
                    name,
                },
                clone_tree(file, root, name),
                FsRequest::Unlink { parent: root, name },
                FsRequest::Rmdir { parent: root, name },
                FsRequest::Create {
                    parent: root,
                    // No name at all stands for a file without one.
                    name: if name == NO_NAME { b"." } else { name },
                    new: new_file(false),
                    file: 9,
                },
                FsRequest::Rename {
                    parent: root,
                    name: b"file",
                    new_parent: root,
                    new_name: name,
                    mode: RenameMode::Replace,
                },
                FsRequest::Rename {
                    parent: root,
                    name,
                    new_parent: root,
                    new_name: b"new",
                    mode: RenameMode::Replace,
                },
                FsRequest::Rename {
                    parent: root,
                    name,
                    new_parent: root,
                    new_name: b"file",
                    mode: RenameMode::Exchange,
                },
            ] {
                let error = raw.refused(&request);
                assert!(
                    matches!(error, FsError::Invalid(_) | FsError::NameTooLong | FsError::NotFound),
                    "{request:?}: {error}"
                );
            }
        }
        // Reads of 4 GiB, at offsets that no file has.
        for (offset, len_bytes) in [(0, u32::MAX), (0, DATA_BYTES_MAX as u32 + 1), (u64::MAX, u32::MAX)] {
            raw.refused(&FileRequest::Read {
                file: 1,
                offset,
                len_bytes,
            });
        }
        for offset in [u64::MAX, 1 << 63, i64::MAX as u64] {
            // Either there is no data, or it is refused.
            if let Ok((_, data)) = raw
                .ask(&FileRequest::Read {
                    file: 1,
                    offset,
                    len_bytes: 1 << 20,
                })
                .unwrap()
            {
                assert!(data.is_empty());
            }
            let mode = ferrite_vfs::WriteMode {
                position: ferrite_vfs::Position::At(offset),
                kill_priv: true,
            };
            assert!(
                raw.ask_with(&FileRequest::Write { file: 1, mode }, &[1; 100])
                    .unwrap()
                    .is_err()
            );
            let mode = ferrite_vfs::FallocateMode::Allocate { keep_size: false };
            raw.refused(&FileRequest::Fallocate {
                file: 1,
                mode,
                offset,
                len_bytes: u64::MAX,
            });
            raw.refused(&FileRequest::SeekData { file: 1, offset });
            raw.refused(&FileRequest::SeekHole { file: 1, offset });
        }
        let set = SetAttr {
            size: Some(u64::MAX),
            ..SetAttr::default()
        };
        raw.refused(&FileRequest::FileSetattr { file: 1, set });
        // Cookies that the server never gave.
        for cookie in [1, 77, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32] {
            for with_attributes in [false, true] {
                raw.ask(&FsRequest::Readdir {
                    dir: root,
                    cookie,
                    with_attributes,
                    reply_bytes: u32::MAX,
                })
                .expect("a reply")
                .unwrap_or_default();
            }
        }
        raw.refused(&FsRequest::Readdir {
            dir: file,
            cookie: 0,
            with_attributes: false,
            reply_bytes: 0,
        });
        // Endless paths, and links to themselves.
        let _: NodeAttr = raw.done(&FsRequest::Symlink {
            parent: root,
            name: b"self",
            target: b"self/self",
        });
        for path in [&b"self"[..], b"", &[b'/'; 5000], b"a\0b", &b"a/".repeat(30_000)] {
            raw.refused(&FsRequest::Resolve {
                root,
                base: root,
                path,
                follow: true,
            });
        }
        raw.refused(&FsRequest::Symlink {
            parent: root,
            name: b"l",
            target: &[b'x'; 70_000],
        });
        // The server's private attributes.
        for name in [
            &b"trusted.ferrite.server"[..],
            b"trusted.ferrite.",
            b"trusted.ferrite.x",
        ] {
            raw.refused(&FsRequest::Getxattr { node: root, name });
            raw.refused(&FsRequest::Setxattr {
                node: root,
                name,
                value: b"x",
                mode: XattrMode::Any,
            });
            raw.refused(&FsRequest::Removexattr { node: root, name });
        }
        let (listed, _) = raw.ask(&FsRequest::Listxattr { node: root }).unwrap().unwrap();
        assert_eq!(Reader::new(&listed).last::<Vec<&[u8]>>().unwrap(), Vec::<&[u8]>::new());
        bystander.goes_on();
        drop(bystander);
    }
    let report = engine.scrub(None).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// Requests of every kind with bits flipped, truncated or extended.
#[test]
fn requests_with_wrong_bytes() {
    let seed = seed_from_env().unwrap_or_else(|| u64::from(std::process::id()));
    println!("FERRITE_SEED={seed}");
    let mut random = Rng::new(seed);
    let path = make_pool(16 << 20, 1000);
    let engine = mount(&path);
    let (_server, address) = serve(Arc::new(engine.clone()), vec![export("")], &ServerOptions::default());
    let bystander = Bystander::at(&address, "");
    let rounds = match (std::env::var_os("FERRITE_SHORT"), std::env::var_os("FERRITE_SOAK")) {
        (Some(_), _) => 300,
        (None, Some(_)) => 200_000,
        (None, None) => 3000,
    };
    let mut connected = None;
    for _ in 0..rounds {
        let (raw, root) = connected.get_or_insert_with(|| {
            let (raw, welcome) = Raw::with_session(&address, "");
            (raw, welcome.root)
        });
        raw.pins = random.chance(50);
        let request = any_request(&mut random, *root);
        let mut body = raw.body(&request);
        for _ in 0..random.below(3) {
            let at = random.below(body.len() as u64) as usize;
            match random.below(4) {
                0 => body.truncate(at),
                1 => body.extend_from_slice(&random.next_u64().to_le_bytes()),
                _ => body[at] ^= 1 << random.below(8),
            }
            if body.is_empty() {
                break;
            }
        }
        // Malformed requests close the connection, and so do goodbye and a hello. A reply may have any number.
        let data = vec![0; random.below(3) as usize * 100];
        let is_lost = !raw.send(&body, &data) || !raw.send_ping();
        if is_lost || !raw.comes_back() {
            connected = None;
        }
    }
    bystander.goes_on();
    drop(bystander);
    let report = engine.scrub(None).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// The number of the requests that [`Raw::send_ping`] makes.
const PING: u64 = u64::MAX - 1;

fn any_request(random: &mut Rng, root: Node) -> Request<'static> {
    let names: [&[u8]; 3] = [b"a", b"b", b"c"];
    let (name, other) = (*random.pick(&names), *random.pick(&names));
    let file = random.below(4);
    let offset = random.below(20_000);
    match random.below(34) {
        0 => match random.below(2) {
            0 => ImmediateRequest::Ping {}.into(),
            _ => SessionRequest::Activity {}.into(),
        },
        1 => SessionRequest::Slots { count: 3 }.into(),
        2 => ImmediateRequest::Reclaimed {}.into(),
        3 if random.below(2) == 0 => SessionRequest::ReclaimSlots {}.into(),
        3 => SessionRequest::Abandon {
            request: offset % 50,
            file,
        }
        .into(),
        4 => FsRequest::Statfs {}.into(),
        5 => FsRequest::Lookup { parent: root, name }.into(),
        6 => FsRequest::Parent { dir: root }.into(),
        7 => FsRequest::Getattr { node: root }.into(),
        8 => FsRequest::Setattr {
            node: root,
            set: SetAttr {
                mtime: Some(ferrite_vfs::SetTime::Now),
                ..SetAttr::default()
            },
        }
        .into(),
        9 => FsRequest::Pin { node: root }.into(),
        10 => FsRequest::Release {
            pins: vec![(offset, 2), (1, 1)],
        }
        .into(),
        11 => FsRequest::Readlink { node: root }.into(),
        12 => FsRequest::Mknod {
            parent: root,
            name,
            new: node(FileKind::Fifo, 0o600),
        }
        .into(),
        13 => FsRequest::Mkdir {
            parent: root,
            name,
            mode: 0o700,
        }
        .into(),
        14 => FsRequest::Symlink {
            parent: root,
            name,
            target: b"target",
        }
        .into(),
        15 => FsRequest::Link {
            node: root,
            parent: root,
            name,
        }
        .into(),
        16 => FsRequest::Unlink { parent: root, name }.into(),
        17 => FsRequest::Rmdir { parent: root, name }.into(),
        18 => FsRequest::Rename {
            parent: root,
            name,
            new_parent: root,
            new_name: other,
            mode: RenameMode::Replace,
        }
        .into(),
        19 => FsRequest::Readdir {
            dir: root,
            cookie: 0,
            with_attributes: random.chance(50),
            reply_bytes: random.below(100) as u32,
        }
        .into(),
        20 => FsRequest::Open {
            node: root,
            mode: OpenMode::read_only(),
            file,
        }
        .into(),
        21 | 22 => FsRequest::Create {
            parent: root,
            name,
            new: new_file(false),
            file,
        }
        .into(),
        23 => FsRequest::Resolve {
            root,
            base: root,
            path: b"a/../b",
            follow: true,
        }
        .into(),
        24 => FsRequest::OpenPath {
            root,
            base: root,
            path: name,
            flags: OpenFlags {
                read: true,
                ..OpenFlags::default()
            },
            file,
        }
        .into(),
        25 => FsRequest::Setxattr {
            node: root,
            name: b"user.x",
            value: b"value",
            mode: XattrMode::Any,
        }
        .into(),
        26 => ImmediateRequest::Lock {
            node: root,
            client: 1,
            lock: LockRequest::Flock(LockOwner(offset), LockKind::Exclusive),
            may_wait: true,
            is_claim: offset.is_multiple_of(2),
        }
        .into(),
        27 => ImmediateRequest::CancelLock { request: offset % 50 }.into(),
        28 => LockingRequest::ReleaseClient { client: 1 }.into(),
        29 => FileRequest::Read {
            file,
            offset,
            len_bytes: 40_000,
        }
        .into(),
        30 => FileRequest::FileGetattr { file }.into(),
        31 => FileRequest::SeekHole { file, offset }.into(),
        32 => FileRequest::Close { files: vec![file] }.into(),
        _ => FileRequest::Fsync { file }.into(),
    }
}

impl Raw {
    fn send_whole(&mut self, body: &[u8]) -> std::io::Result<()> {
        let frame = [&prefix(body.len(), 0)[..], body].concat();
        self.stream.write_all(&frame)
    }

    fn send_ping(&mut self) -> bool {
        // The transport owns the largest number.
        self.next_is(PING - 1);
        let body = self.body(&ImmediateRequest::Ping {});
        self.next_is(1);
        self.send(&body, &[])
    }

    /// Whether the reply to [`Self::send_ping`] comes; others come before.
    fn comes_back(&mut self) -> bool {
        loop {
            match self.receive() {
                None => return false,
                Some((PING, _)) => return true,
                Some(_) => {}
            }
        }
    }
}

/// A client that takes no replies costs a bounded amount of memory, and delays no other.
#[test]
fn who_never_reads_is_not_read_from() {
    let options = ServerOptions::default().lease(Duration::from_secs(3));
    let (server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options);
    let bystander = Bystander::at(&address, "");
    let writer = connect(&address);
    let file = writer.create(SYSTEM, ROOT_INO, b"big", &new_file(true)).unwrap().file;
    for part in 0..4 {
        file.write_at(SYSTEM, part << 20, &[1; 1 << 20]).unwrap();
    }
    bystander.goes_on();
    let before = resident_bytes();
    let mut greedy = Vec::new();
    for _ in 0..4 {
        let (mut raw, welcome) = Raw::with_session(&address, "");
        let flags = OpenFlags {
            read: true,
            ..OpenFlags::default()
        };
        let root = welcome.root;
        raw.done::<OpenedFile>(&FsRequest::OpenPath {
            root,
            base: root,
            path: b"big",
            flags,
            file: 1,
        });
        let body = raw.body(&FileRequest::Read {
            file: 1,
            offset: 0,
            len_bytes: 4 << 20,
        });
        let frame = [&prefix(body.len(), 0)[..], &body].concat();
        raw.stream.set_nonblocking(true).unwrap();
        // As many as the socket takes.
        for _ in 0..20_000 {
            if raw.stream.write_all(&frame).is_err() {
                break;
            }
        }
        greedy.push(raw);
    }
    bystander.goes_on();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 200 << 20, "{} MiB", grown >> 20);
    let began = Instant::now();
    // The server hears nothing from them, so their sessions end.
    while server.sessions() > 2 {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    bystander.goes_on();
}

/// One session that requests everything a session can have.
#[test]
fn what_a_session_keeps_is_bounded() {
    let (_server, address) = start();
    let bystander = Bystander::at(&address, "");
    let (mut raw, welcome) = Raw::with_session(&address, "");
    let root = welcome.root;
    let made: OpenedFile = raw.done(&FsRequest::Create {
        parent: root,
        name: b"file",
        new: new_file(true),
        file: 0,
    });
    let before = resident_bytes();
    raw.pins = true;
    // It never confirms any of its requests.
    let rounds = match std::env::var_os("FERRITE_SHORT") {
        Some(_) => 100,
        None => 200,
    };
    for _ in 0..rounds {
        let mut sent = Vec::new();
        for client in 0..1000u64 {
            let lookup = raw.body(&FsRequest::Lookup {
                parent: root,
                name: b"file",
            });
            let unlock = raw.body(&LockingRequest::Unlock {
                node: made.node_attr.node(),
                client: client << 20 | raw.number(),
                owner: LockOwner(1),
                what: ferrite_vfs::locks::Unlock::All,
            });
            for body in [lookup, unlock] {
                sent.extend_from_slice(&prefix(body.len(), 0));
                sent.extend_from_slice(&body);
            }
        }
        raw.stream.write_all(&sent).unwrap();
        for _ in 0..2000 {
            raw.receive().unwrap().1.unwrap();
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{} MiB", grown >> 20);
    let mut last = Ok(());
    for file in 0..70_000 {
        let mode = OpenMode::read_only();
        last = raw
            .ask(&FsRequest::Open {
                node: made.node_attr.node(),
                mode,
                file,
            })
            .unwrap()
            .map(drop);
        if last.is_err() {
            break;
        }
    }
    assert_eq!(last, Err(FsError::TooManyOpen));
    bystander.goes_on();
}

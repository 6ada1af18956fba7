//! No kind of request holds the thread that received it for 10 ms.
//!
//! The test walks the numbers of requests, makes the slowest request of each kind that it knows on a pool with large
//! files, large directories and many locks, and asks the server how long its threads were at work. A new kind fails it
//! until it is added here, and to the table in docs/engines.md.

use std::sync::Arc;

use crate::common;
use crate::common::raw::Raw;
use crate::common::{export, make_pool, mount, serve};
use ferrite_proto::{
    Call, FileRequest, FsRequest, ImmediateRequest, LockingRequest, Node, NodeAttr, OPCODES_MAX, QueuePairInfo,
    RdmaRequest, Request, SessionRequest, UdpPlace,
};
use ferrite_server::{Server, ServerOptions};
use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{
    FallocateMode, FileKind, FileSystem, FsError, NewFile, NewNode, OpenFlags, OpenMode, Position, ROOT_INO,
    RenameMode, SYSTEM, SetAttr, XattrMode,
};

const DOCS: &str = include_str!("../../../docs/engines.md");
const LARGE_BYTES: u64 = 256 << 20;
const DATA_BYTES: usize = 1 << 20;
/// A thread may lose its core, which the measurement counts: so often a kind may be measured.
const TRIES: usize = 20;

struct World {
    fs: Arc<dyn FileSystem>,
    server: Server,
    address: String,
    raw: Raw,
    root: Node,
    next: u64,
    /// With many names in it.
    crowd: Node,
    /// At the end of a long chain, with links that climb and descend.
    deep: Node,
    /// A large file that stays, open under this number.
    large: (Node, u64),
    /// A file with many locks.
    locked: Node,
}

fn file_node() -> NewNode {
    NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    }
}

fn record(owner: u64, kind: LockKind, start: u64, len_bytes: u64) -> RecordLock {
    RecordLock {
        owner: LockOwner(owner),
        pid: 1,
        kind,
        range: ByteRange::new(start, len_bytes).unwrap(),
    }
}

impl World {
    fn new(pool: &std::path::Path) -> World {
        let fs: Arc<dyn FileSystem> = Arc::new(mount(pool));
        let crowd = fs.mkdir(SYSTEM, ROOT_INO, b"crowd", 0o755).unwrap().ino;
        for number in 0..20_000 {
            let name = format!("a name of usual length {number}");
            fs.mknod(SYSTEM, crowd, name.as_bytes(), &file_node()).unwrap();
        }
        let mut chain = vec![ROOT_INO];
        for _ in 0..2000 {
            let below = fs.mkdir(SYSTEM, *chain.last().unwrap(), b"a", 0o755).unwrap().ino;
            chain.push(below);
        }
        let end = *chain.last().unwrap();
        fs.symlink(SYSTEM, end, b"up", "../".repeat(1300).as_bytes()).unwrap();
        let down = "a/".repeat(1300);
        fs.symlink(SYSTEM, chain[chain.len() - 1301], b"down", down.as_bytes())
            .unwrap();
        let (server, address) = serve(Arc::clone(&fs), vec![export("")], &ServerOptions::default());
        let (raw, welcome) = Raw::with_session(&address, "");
        let mut world = World {
            fs,
            server,
            address,
            raw,
            root: welcome.root,
            next: 0,
            crowd: welcome.root,
            deep: welcome.root,
            large: (welcome.root, 0),
            locked: welcome.root,
        };
        world.crowd = world.node(b"crowd");
        world.deep = world.walk_down(2000);
        let (name, _) = world.large_file();
        world.large = world.opened(&name);
        world.locked = world.crowded_by_locks();
        world
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The server's name of the inode with this name in the root.
    fn node(&mut self, name: &[u8]) -> Node {
        let parent = self.root;
        self.raw.done::<NodeAttr>(&FsRequest::Lookup { parent, name }).node()
    }

    fn walk_down(&mut self, depth: usize) -> Node {
        let mut at = self.root;
        for _ in 0..depth {
            at = self
                .raw
                .done::<NodeAttr>(&FsRequest::Lookup { parent: at, name: b"a" })
                .node();
        }
        at
    }

    /// All of its pages are there.
    fn large_file(&mut self) -> (Vec<u8>, Node) {
        let name = format!("large {}", self.fresh()).into_bytes();
        let new = NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        let opened = self.fs.create(SYSTEM, ROOT_INO, &name, &new).unwrap();
        let mode = FallocateMode::Allocate { keep_size: false };
        opened.file.fallocate(SYSTEM, mode, 0, LARGE_BYTES).unwrap();
        drop(opened);
        let node = self.node(&name);
        (name, node)
    }

    fn opened(&mut self, name: &[u8]) -> (Node, u64) {
        let (node, file) = (self.node(name), self.fresh());
        self.raw.done::<u64>(&FsRequest::Open {
            node,
            mode: OpenMode::read_write(),
            file,
        });
        (node, file)
    }

    fn small_file(&mut self) -> (Vec<u8>, Node) {
        let name = format!("small {}", self.fresh()).into_bytes();
        self.fs.mknod(SYSTEM, ROOT_INO, &name, &file_node()).unwrap();
        let node = self.node(&name);
        (name, node)
    }

    /// A large open file without a name.
    fn nameless(&mut self) -> u64 {
        let (name, _) = self.large_file();
        let (_, file) = self.opened(&name);
        self.fs.unlink(SYSTEM, ROOT_INO, &name).unwrap();
        file
    }

    fn lock(&mut self, node: Node, client: u64, lock: LockRequest) -> Result<(), FsError> {
        let request = ImmediateRequest::Lock {
            node,
            client,
            lock,
            may_wait: false,
            is_claim: false,
        };
        self.raw.ask(&request).expect("a reply").map(drop)
    }

    fn crowded_by_locks(&mut self) -> Node {
        let (_, node) = self.small_file();
        for owner in 0..10_000 {
            let lock = LockRequest::Record(record(owner, LockKind::Shared, owner, 1000));
            self.lock(node, 1, lock).unwrap();
        }
        node
    }

    /// A file on which one owner keeps many waiting.
    fn waited_for(&mut self) -> Node {
        let (_, node) = self.small_file();
        let whole = record(1, LockKind::Exclusive, 0, 0);
        self.lock(node, 2, LockRequest::Record(whole)).unwrap();
        let (mut others, _) = Raw::with_session(&self.address, "");
        for owner in 0..4000 {
            let body = others.body(&ImmediateRequest::Lock {
                node,
                client: 3,
                lock: LockRequest::Record(record(owner, LockKind::Shared, owner, 0)),
                may_wait: true,
                is_claim: false,
            });
            assert!(others.send(&body, &[]));
        }
        others.done::<()>(&ImmediateRequest::Ping {});
        // They are served while their client is there.
        std::mem::forget(others);
        node
    }
}

/// Makes one request, and measures it.
type Measured<'m> = &'m mut dyn FnMut(&mut Raw, Request<'_>);

/// Kinds whose slowest request is refused, or has no reply.
const REFUSED: [&str; 10] = [
    "Goodbye",
    "Resolve",
    "OpenPath",
    "Lock",
    "OpenQueuePair",
    "Bind",
    "ReleaseKey",
    "CloseQueuePair",
    "Unbind",
    "SeekData",
];

/// Opens and truncates a file.
const CUT: OpenMode = OpenMode {
    truncate: true,
    ..OpenMode::read_write()
};

fn of_session(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    match kind {
        "Hello" => {
            let mut raw = Raw::connect(&world.address);
            measured(&mut raw, common::raw::hello("", None).into());
        }
        "Goodbye" => {
            let (mut raw, _) = Raw::with_session(&world.address, "");
            for file in 0..5000 {
                let (node, mode) = (world.large.0, OpenMode::read_only());
                raw.done::<u64>(&FsRequest::Open { node, mode, file });
            }
            measured(&mut raw, ImmediateRequest::Goodbye {}.into());
        }
        "Ping" => measured(&mut world.raw, ImmediateRequest::Ping {}.into()),
        "Slots" => measured(&mut world.raw, SessionRequest::Slots { count: u32::MAX }.into()),
        "Reclaimed" => measured(&mut world.raw, ImmediateRequest::Reclaimed {}.into()),
        "ReclaimSlots" => measured(&mut world.raw, SessionRequest::ReclaimSlots {}.into()),
        "Abandon" => {
            let file = world.nameless();
            measured(&mut world.raw, SessionRequest::Abandon { request: 1, file }.into());
        }
        "Activity" => measured(&mut world.raw, SessionRequest::Activity {}.into()),
        "Statfs" => measured(&mut world.raw, FsRequest::Statfs {}.into()),
        "Sync" => measured(&mut world.raw, FsRequest::Sync {}.into()),
        "Leases" => measured(&mut world.raw, SessionRequest::Leases { relied_on: false }.into()),
        "Recalled" => {
            let recalls = (0..8000).collect();
            measured(&mut world.raw, ImmediateRequest::Recalled { recalls }.into());
        }
        "Rdma" => measured(&mut world.raw, RdmaRequest::Rdma {}.into()),
        "OpenQueuePair" => {
            let client = QueuePairInfo {
                place: UdpPlace("127.0.0.1:9".parse().unwrap()),
                qpn: 1,
                psn: 0,
                mtu: 3,
            };
            measured(&mut world.raw, RdmaRequest::OpenQueuePair { client }.into());
        }
        "CloseQueuePair" => measured(&mut world.raw, RdmaRequest::CloseQueuePair { qpn: 1 }.into()),
        "Bind" => {
            let request = RdmaRequest::Bind {
                node: world.large.0,
                writable: true,
                defragment: true,
                atomic: true,
            };
            measured(&mut world.raw, request.into());
        }
        "ReleaseKey" => measured(&mut world.raw, RdmaRequest::ReleaseKey { key: 1 }.into()),
        "Unbind" => {
            let node = world.large.0;
            measured(&mut world.raw, RdmaRequest::Unbind { node }.into());
        }
        "RdmaActivity" => measured(&mut world.raw, RdmaRequest::RdmaActivity {}.into()),
        _ => return false,
    }
    true
}

fn of_new_names(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    let (parent, name) = (world.crowd, format!("new {}", world.fresh()).into_bytes());
    let name = &name[..];
    let request = match kind {
        "Mknod" => FsRequest::Mknod {
            parent,
            name,
            new: file_node(),
        },
        "Mkdir" => FsRequest::Mkdir {
            parent,
            name,
            mode: 0o755,
        },
        "Symlink" => FsRequest::Symlink {
            parent,
            name,
            target: &[b't'; 4095],
        },
        "Link" => FsRequest::Link {
            node: world.large.0,
            parent,
            name,
        },
        "CloneTree" => FsRequest::CloneTree {
            node: world.large.0,
            parent,
            name,
        },
        "Create" => {
            let (name, file) = (world.large_file().0, world.fresh());
            let new = NewFile {
                mode: 0o644,
                open: CUT,
                exclusive: false,
            };
            let (parent, name) = (world.root, &name[..]);
            let request = FsRequest::Create {
                parent,
                name,
                new,
                file,
            };
            measured(&mut world.raw, request.into());
            return true;
        }
        _ => return false,
    };
    measured(&mut world.raw, request.into());
    true
}

fn of_old_names(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    let parent = world.root;
    match kind {
        "Lookup" => {
            let (parent, name) = (world.crowd, b"a name of usual length 19999");
            measured(&mut world.raw, FsRequest::Lookup { parent, name }.into());
        }
        "Unlink" => {
            let (name, _) = world.large_file();
            let name = &name[..];
            measured(&mut world.raw, FsRequest::Unlink { parent, name }.into());
        }
        "Rmdir" => {
            let name = format!("dir {}", world.fresh()).into_bytes();
            world.fs.mkdir(SYSTEM, ROOT_INO, &name, 0o755).unwrap();
            let name = &name[..];
            measured(&mut world.raw, FsRequest::Rmdir { parent, name }.into());
        }
        "Rename" => {
            let ((old, _), (new, _)) = (world.small_file(), world.large_file());
            let request = FsRequest::Rename {
                parent,
                name: &old,
                new_parent: parent,
                new_name: &new,
                mode: RenameMode::Replace,
            };
            measured(&mut world.raw, request.into());
        }
        "Readdir" => {
            for with_attributes in [false, true] {
                world.raw.pins = with_attributes;
                let request = FsRequest::Readdir {
                    dir: world.crowd,
                    cookie: 0,
                    with_attributes,
                    reply_bytes: u32::MAX,
                };
                measured(&mut world.raw, request.into());
            }
            world.raw.pins = false;
        }
        _ => return false,
    }
    true
}

fn of_paths(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    let (root, base) = (world.root, world.deep);
    let path = format!("up{}", "/down/up".repeat(19)).into_bytes();
    match kind {
        "Parent" => measured(&mut world.raw, FsRequest::Parent { dir: base }.into()),
        "Readlink" => {
            let (parent, name) = (base, &b"up"[..]);
            let node = world.raw.done::<NodeAttr>(&FsRequest::Lookup { parent, name }).node();
            measured(&mut world.raw, FsRequest::Readlink { node }.into());
        }
        "Resolve" => {
            let (path, follow) = (&path[..], true);
            let request = FsRequest::Resolve {
                root,
                base,
                path,
                follow,
            };
            measured(&mut world.raw, request.into());
        }
        "OpenPath" => {
            let (name, _) = world.large_file();
            for (base, path, truncate) in [(base, &path[..], false), (root, &name[..], true)] {
                let flags = OpenFlags {
                    write: true,
                    truncate,
                    ..OpenFlags::default()
                };
                let file = world.fresh();
                let request = FsRequest::OpenPath {
                    root,
                    base,
                    path,
                    flags,
                    file,
                };
                measured(&mut world.raw, request.into());
            }
        }
        _ => return false,
    }
    true
}

fn of_inodes(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    let (node, file) = (world.large.0, world.fresh());
    match kind {
        "Getattr" => measured(&mut world.raw, FsRequest::Getattr { node }.into()),
        "Setattr" | "FileSetattr" => {
            let (name, node) = world.large_file();
            let (_, file) = world.opened(&name);
            let set = SetAttr {
                size: Some(1),
                ..SetAttr::default()
            };
            match kind {
                "Setattr" => measured(&mut world.raw, FsRequest::Setattr { node, set }.into()),
                _ => measured(&mut world.raw, FileRequest::FileSetattr { file, set }.into()),
            }
        }
        "Pin" => measured(&mut world.raw, FsRequest::Pin { node }.into()),
        "Release" => {
            let (name, node) = world.large_file();
            world.raw.done::<()>(&FsRequest::Pin { node });
            world.fs.unlink(SYSTEM, ROOT_INO, &name).unwrap();
            let pins = vec![(node.ino, 1)];
            measured(&mut world.raw, FsRequest::Release { pins }.into());
            let pins = (1 << 30..(1 << 30) + 4000).map(|ino| (ino, 1)).collect();
            measured(&mut world.raw, FsRequest::Release { pins }.into());
        }
        "Open" => {
            let (_, node) = world.large_file();
            measured(&mut world.raw, FsRequest::Open { node, mode: CUT, file }.into());
        }
        "Reopen" => {
            let mode = OpenMode::read_only();
            let mac = world.raw.done::<u64>(&FsRequest::Open { node, mode, file });
            let file = world.fresh();
            let request = FsRequest::Reopen { node, mode, mac, file };
            measured(&mut world.raw, request.into());
        }
        _ => return false,
    }
    true
}

fn of_attributes(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    let (_, node) = world.small_file();
    let (name, value) = (&b"user.long"[..], &[7; 3000][..]);
    let mode = XattrMode::Any;
    let set = FsRequest::Setxattr {
        node,
        name,
        value,
        mode,
    };
    let request = match kind {
        "Setxattr" => set.clone(),
        "Getxattr" => FsRequest::Getxattr { node, name },
        "Listxattr" => FsRequest::Listxattr { node },
        "Removexattr" => FsRequest::Removexattr { node, name },
        _ => return false,
    };
    if kind != "Setxattr" {
        world.raw.done::<()>(&set);
    }
    measured(&mut world.raw, request.into());
    true
}

fn of_locks(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    let (node, client, whole) = (world.locked, 9, record(1, LockKind::Exclusive, 0, 0));
    let lock = |may_wait| ImmediateRequest::Lock {
        node,
        client,
        lock: LockRequest::Record(whole),
        may_wait,
        is_claim: false,
    };
    match kind {
        "Lock" => measured(&mut world.raw, lock(false).into()),
        "CancelLock" => {
            let body = world.raw.body(&lock(true));
            assert!(world.raw.send(&body, &[]));
            let request = world.raw.number();
            measured(&mut world.raw, ImmediateRequest::CancelLock { request }.into());
        }
        "Unlock" => {
            let (node, client) = (world.waited_for(), 2);
            let (owner, what) = (LockOwner(1), Unlock::All);
            let request = LockingRequest::Unlock {
                node,
                client,
                owner,
                what,
            };
            measured(&mut world.raw, request.into());
        }
        "ConflictingLock" => {
            let request = LockingRequest::ConflictingLock {
                node,
                client,
                lock: whole,
            };
            measured(&mut world.raw, request.into());
        }
        "ReleaseClient" => {
            let (_, node) = world.small_file();
            for owner in 0..10_000 {
                let lock = LockRequest::Record(record(owner, LockKind::Shared, owner, 1000));
                world.lock(node, 7, lock).unwrap();
            }
            measured(&mut world.raw, LockingRequest::ReleaseClient { client: 7 }.into());
        }
        _ => return false,
    }
    true
}

fn of_data(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    let (file, offset, len_bytes) = (world.large.1, 0, DATA_BYTES as u32);
    let read = FileRequest::Read {
        file,
        offset,
        len_bytes,
    };
    let piece = FileRequest::ReadPiece {
        file,
        offset,
        len_bytes,
    };
    let mode = Position::At(0).into();
    match kind {
        "FileGetattr" => measured(&mut world.raw, FileRequest::FileGetattr { file }.into()),
        "Read" => measured(&mut world.raw, read.into()),
        "ReadPiece" => measured(&mut world.raw, piece.into()),
        "Write" => measured(&mut world.raw, FileRequest::Write { file, mode }.into()),
        "Fallocate" => {
            for mode in [
                FallocateMode::PunchHole,
                FallocateMode::Allocate { keep_size: true },
                FallocateMode::ZeroRange { keep_size: true },
            ] {
                let len_bytes = LARGE_BYTES;
                let request = FileRequest::Fallocate {
                    file,
                    mode,
                    offset,
                    len_bytes,
                };
                measured(&mut world.raw, request.into());
            }
        }
        "CloneRange" => {
            let (name, _) = world.small_file();
            let (_, clone) = world.opened(&name);
            let request = FileRequest::CloneRange {
                file: clone,
                source: file,
                source_offset: 0,
                offset: 0,
                len_bytes: LARGE_BYTES,
            };
            measured(&mut world.raw, request.into());
        }
        "SeekData" => measured(&mut world.raw, FileRequest::SeekData { file, offset }.into()),
        "SeekHole" => measured(&mut world.raw, FileRequest::SeekHole { file, offset }.into()),
        "Fsync" => measured(&mut world.raw, FileRequest::Fsync { file }.into()),
        "Close" => {
            let files = vec![world.nameless()];
            measured(&mut world.raw, FileRequest::Close { files }.into());
            let files = (1 << 40..(1 << 40) + 5000).collect();
            measured(&mut world.raw, FileRequest::Close { files }.into());
        }
        _ => return false,
    }
    true
}

/// Makes the slowest requests of a kind. False for an unknown kind.
fn slowest(world: &mut World, kind: &str, measured: Measured<'_>) -> bool {
    let groups: [fn(&mut World, &str, Measured<'_>) -> bool; 8] = [
        of_session,
        of_old_names,
        of_paths,
        of_inodes,
        of_locks,
        of_data,
        of_new_names,
        of_attributes,
    ];
    groups.iter().any(|group| group(world, kind, &mut *measured))
}

#[test]
fn no_request_holds_the_thread_that_received_it() {
    let pool = make_pool(2 << 30, 60_000);
    let mut world = World::new(&pool);
    let observer = world.server.observer();
    let turns = || observer.look().expect("it runs").turns;
    let (mut pinger, _) = Raw::with_session(&world.address, "");
    let mut late = Vec::new();
    for kind in (0..OPCODES_MAX as u16).filter_map(Request::name_of) {
        assert!(
            DOCS.contains(&format!("| {kind} |")),
            "docs/engines.md has no bound of {kind}"
        );
        let mut worst = Vec::new();
        for _ in 0..TRIES {
            let mut long = 0;
            let is_known = slowest(&mut world, kind, &mut |raw, request| {
                pinger.done::<()>(&ImmediateRequest::Ping {});
                let before = turns().long;
                let data = match &request {
                    Request::Call(Call::File(FileRequest::Write { .. })) => vec![1; DATA_BYTES],
                    _ => Vec::new(),
                };
                let came = raw.ask_with(&request, &data);
                let is_done = matches!(came, Some(Ok(_)));
                assert!(is_done || REFUSED.contains(&kind), "{kind}: {came:?}");
                // Its turn is over when the next one has begun.
                pinger.done::<()>(&ImmediateRequest::Ping {});
                long += turns().long - before;
            });
            assert!(is_known, "{kind} is new: measure its slowest request here");
            worst.push(long);
            if long == 0 {
                break;
            }
        }
        if worst.iter().all(|&long| long > 0) {
            late.push(kind);
        }
    }
    assert!(late.is_empty(), "a thread was held for 10 ms or more by: {late:?}");
}

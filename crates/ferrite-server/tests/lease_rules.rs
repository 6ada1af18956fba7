//! Which leases a change recalls, which clients get leases, and how long a client that does not answer recalls gets
//! none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::raw::{Came, Raw};
use crate::common::{connect_leased_tcp, connect_tcp, export, serve};
use ferrite_client::Client;
use ferrite_proto::{FileRequest, FsRequest, ImmediateRequest, Node, NodeAttr, RECALL_ID, Reader, SessionRequest};
use ferrite_server::{ExportOptions, ServerOptions};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, FallocateMode, FileSystem, Ino, NewFile, OpenFile, OpenMode, Position, ROOT_INO, RenameMode, SYSTEM, SetAttr,
    WriteMode, XattrMode,
};

const CACHE_BYTES: usize = 1 << 20;
/// Longer than any test waits for a recall.
const LONG_TERM: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(20);

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

/// A client with leases that does what a test directs.
struct Holder {
    raw: Raw,
    root: Node,
}

impl Holder {
    /// One that has no leases yet.
    fn new(address: &str, export: &str) -> Holder {
        let (raw, welcome) = Raw::with_session(address, export);
        let root = welcome.root;
        Holder { raw, root }
    }

    /// Asks for leases; returns their term.
    fn wants_leases(&mut self) -> Duration {
        let term_ms: u32 = self.raw.done(&SessionRequest::Leases { relied_on: false });
        Duration::from_millis(u64::from(term_ms))
    }

    fn node(&mut self, name: &[u8]) -> Node {
        let parent = self.root;
        self.raw.done::<NodeAttr>(&FsRequest::Lookup { parent, name }).node()
    }

    /// Asks for attributes; returns whether they come with a lease.
    fn looks(&mut self, node: Node) -> bool {
        self.raw.done::<Attr>(&FsRequest::Getattr { node });
        self.raw.was_leased
    }

    /// The number of a recall and its inode, if the message is one.
    fn recalled((id, came): (u64, Came)) -> Option<(u64, Ino)> {
        let body = came.ok().filter(|_| id == RECALL_ID)?.0;
        Some(Reader::new(&body).last().unwrap())
    }

    /// Waits for a recall, which must come.
    fn recall(&mut self) -> (u64, Ino) {
        let end = Instant::now() + LONGEST;
        loop {
            assert!(Instant::now() < end, "no recall came");
            let message = self.raw.receive().expect("a connection");
            if let Some(recall) = Holder::recalled(message) {
                return recall;
            }
        }
    }

    /// Answers recalls: the inodes are no longer cached.
    fn reply(&mut self, recalls: Vec<u64>) {
        self.raw.done::<()>(&ImmediateRequest::Recalled { recalls });
    }
}

/// The place that a change may use.
struct Place<'c> {
    client: &'c Client,
    ino: Ino,
    file: Arc<dyn OpenFile>,
}

type Change = fn(&Place<'_>);

/// All changes of the file whose names are `file` and `twin`, or of its attributes. `other` is another file.
const CHANGES: [(&str, Change); 17] = [
    ("setattr", |at| {
        let mode = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        at.client.setattr(SYSTEM, at.ino, &mode).map(drop).unwrap();
    }),
    ("setattr of an open file", |at| {
        let size = SetAttr {
            size: Some(7),
            ..SetAttr::default()
        };
        at.file.setattr(SYSTEM, &size).map(drop).unwrap();
    }),
    ("setxattr", |at| {
        at.client
            .setxattr(SYSTEM, at.ino, b"user.a", b"1", XattrMode::Any)
            .unwrap()
    }),
    ("removexattr", |at| {
        at.client.removexattr(SYSTEM, at.ino, b"user.there").unwrap()
    }),
    ("write", |at| {
        at.file.write(SYSTEM, Position::At(0).into(), b"x").map(drop).unwrap()
    }),
    ("append", |at| {
        at.file.write(SYSTEM, Position::End.into(), b"x").map(drop).unwrap()
    }),
    ("fallocate", |at| {
        let mode = FallocateMode::Allocate { keep_size: false };
        at.file.fallocate(SYSTEM, mode, 0, 5000).unwrap();
    }),
    ("open that truncates", |at| {
        let mode = OpenMode {
            truncate: true,
            ..OpenMode::read_write()
        };
        drop(at.client.open(SYSTEM, at.ino, mode).unwrap());
    }),
    ("create of what is there", |at| {
        let open = OpenMode {
            truncate: true,
            ..OpenMode::read_write()
        };
        let new = NewFile { open, ..new_file() };
        drop(at.client.create(SYSTEM, ROOT_INO, b"file", &new).unwrap());
    }),
    ("link", |at| {
        at.client.link(SYSTEM, at.ino, ROOT_INO, b"second").map(drop).unwrap()
    }),
    ("link in another directory", |at| {
        let dir = at.client.lookup(SYSTEM, ROOT_INO, b"dir").unwrap().ino;
        at.client.link(SYSTEM, at.ino, dir, b"second").map(drop).unwrap();
    }),
    ("unlink", |at| at.client.unlink(SYSTEM, ROOT_INO, b"file").unwrap()),
    ("unlink of one of two names", |at| {
        at.client.unlink(SYSTEM, ROOT_INO, b"twin").unwrap()
    }),
    ("rename", |at| {
        rename(at, (ROOT_INO, b"file"), (ROOT_INO, b"moved"), RenameMode::Replace)
    }),
    ("rename over it", |at| {
        rename(at, (ROOT_INO, b"other"), (ROOT_INO, b"file"), RenameMode::Replace)
    }),
    ("exchange", |at| {
        rename(at, (ROOT_INO, b"file"), (ROOT_INO, b"other"), RenameMode::Exchange)
    }),
    ("exchange the other way", |at| {
        rename(at, (ROOT_INO, b"other"), (ROOT_INO, b"file"), RenameMode::Exchange)
    }),
];

fn rename(at: &Place<'_>, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) {
    at.client.rename(SYSTEM, from.0, from.1, to.0, to.1, mode).unwrap();
}

#[test]
fn whatever_changes_a_file_recalls_the_leases_on_it_first() {
    for (what, change) in CHANGES {
        let options = ServerOptions::default().cache_term(LONG_TERM);
        let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options);
        let client = connect_tcp(&address);
        let (attr, file) = make(&client, b"file");
        make(&client, b"other");
        client.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
        client.link(SYSTEM, attr.ino, ROOT_INO, b"twin").unwrap();
        client
            .setxattr(SYSTEM, attr.ino, b"user.there", b"1", XattrMode::Any)
            .unwrap();
        let mut holder = Holder::new(&address, "");
        // Without a lease on the directory, which most of these change, too.
        let node = holder.node(b"file");
        holder.wants_leases();
        assert!(holder.looks(node), "{what}");
        let is_made = AtomicBool::new(false);
        let place = Place {
            client: &client,
            ino: attr.ino,
            file,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                change(&place);
                is_made.store(true, Ordering::SeqCst);
            });
            let (recall, ino) = holder.recall();
            assert_eq!(ino, attr.ino, "{what}");
            assert!(!is_made.load(Ordering::SeqCst), "{what}");
            holder.reply(vec![recall]);
        });
    }
}

/// A client writes by the number of an open file, and reassigns the number while its change waits for the leases on the
/// first file.
#[test]
fn a_change_recalls_what_its_number_means_when_it_is_made() {
    let options = ServerOptions::default().cache_term(LONG_TERM);
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options);
    let maker = connect_tcp(&address);
    make(&maker, b"a");
    make(&maker, b"b")
        .1
        .write(SYSTEM, Position::At(0).into(), b"old")
        .unwrap();
    let honest = connect_leased_tcp(&address, CACHE_BYTES);
    let ino = honest.lookup(SYSTEM, ROOT_INO, b"b").unwrap().ino;
    let reader = honest.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
    let read = || {
        let mut buf = [0; 16];
        let count = reader.read_at(SYSTEM, 0, &mut buf).unwrap();
        buf[..count].to_vec()
    };
    let (mut accomplice, mut mutator) = (Holder::new(&address, ""), Holder::new(&address, ""));
    let (a, b) = (accomplice.node(b"a"), mutator.node(b"b"));
    accomplice.wants_leases();
    assert!(accomplice.looks(a));
    let raw = &mut mutator.raw;
    let mode = OpenMode::read_write();
    raw.ask(&FsRequest::Open { node: a, mode, file: 7 }).unwrap().unwrap();
    let body = raw.body(&FileRequest::Write {
        file: 7,
        mode: WriteMode::from(Position::At(0)),
    });
    let write = raw.number();
    assert!(raw.send(&body, b"NEWER"));
    let (recall, _) = accomplice.recall();
    raw.done::<()>(&FileRequest::Close { files: vec![7] });
    raw.ask(&FsRequest::Open { node: b, mode, file: 7 }).unwrap().unwrap();
    assert_eq!((read(), read()), (b"old".to_vec(), b"old".to_vec()), "it keeps that");
    assert!(honest.cache_activity().unwrap().hits > 0);
    accomplice.reply(vec![recall]);
    let end = Instant::now() + LONGEST;
    loop {
        assert!(Instant::now() < end);
        let (id, came) = raw.receive().expect("a connection");
        if id == write {
            came.unwrap();
            break;
        }
    }
    assert_eq!(read(), b"NEWER", "written without a recall of the leases on it");
    assert_eq!(honest.getattr(SYSTEM, ino).unwrap().size, 5);
}

/// Reads a file repeatedly until stopped, and answers no recall; returns how many came.
fn hog(mut holder: Holder, node: Node, stop: &AtomicBool) -> usize {
    let mut recalls = 0;
    while !stop.load(Ordering::SeqCst) {
        let body = holder.raw.body(&FsRequest::Getattr { node });
        let requested = holder.raw.number();
        assert!(holder.raw.send(&body, &[]));
        loop {
            let (id, came) = holder.raw.receive().expect("a connection");
            recalls += usize::from(id == RECALL_ID);
            if id == requested {
                came.unwrap();
                break;
            }
        }
    }
    recalls
}

/// Its recalls expire, and each time it has to wait longer for another lease.
#[test]
fn a_client_that_never_answers_a_recall_holds_up_others_ever_less_often() {
    const TERM: Duration = Duration::from_millis(100);
    let options = ServerOptions::default().cache_term(TERM);
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options);
    let writer = connect_tcp(&address);
    let (_, file) = make(&writer, b"file");
    let honest = connect_leased_tcp(&address, CACHE_BYTES);
    let ino = honest.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
    let mut holder = Holder::new(&address, "");
    let node = holder.node(b"file");
    assert_eq!(holder.wants_leases(), TERM);
    assert!(holder.looks(node));
    let stop = AtomicBool::new(false);
    let recalls = std::thread::scope(|scope| {
        let hog = scope.spawn(|| hog(holder, node, &stop));
        let end = Instant::now() + 40 * TERM;
        let mut size = 0;
        while Instant::now() < end {
            size += file.write(SYSTEM, Position::End.into(), b"x").unwrap().len_bytes as u64;
            assert_eq!(honest.getattr(SYSTEM, ino).unwrap().size, size);
        }
        stop.store(true, Ordering::SeqCst);
        hog.join().unwrap()
    });
    // Waits of 2, 4, 8, 16 and 32 terms lie between them; without, there would be one in about each term.
    assert!((1..=5).contains(&recalls), "{recalls} recalls ran out in 40 terms");
    // A client that answers has leases all the time.
    let end = Instant::now() + LONGEST;
    let hits = honest.cache_activity().unwrap().hits;
    while honest.cache_activity().unwrap().hits == hits {
        assert!(Instant::now() < end, "a client that answers recalls gets no leases");
        honest.getattr(SYSTEM, ino).unwrap();
    }
}

/// Where a client may only read, its cache is worth less than others' ability to change files at once.
#[test]
fn an_export_gives_leases_unless_it_is_read_only_or_set_otherwise() {
    let exports: [(ExportOptions, bool); 6] = [
        (export("a"), true),
        (export("b").leases(Some(false)), false),
        (export("c").leases(Some(true)), true),
        (export("d").read_only(true), false),
        (export("e").read_only(true).leases(Some(true)), true),
        (export("f").leases(Some(true)).read_only(true), true),
    ];
    let fs = Arc::new(MemFs::new());
    fs.create(SYSTEM, ROOT_INO, b"file", &new_file()).unwrap();
    let given = exports.iter().map(|(export, _)| export.clone()).collect();
    let options = ServerOptions::default().cache_term(LONG_TERM);
    let (_server, address) = serve(fs, given, &options);
    for (export, gives) in exports {
        let mut holder = Holder::new(&address, &export.name);
        let node = holder.node(b"file");
        let term = if gives { LONG_TERM } else { Duration::ZERO };
        assert_eq!(holder.wants_leases(), term, "{}", export.name);
        assert_eq!(holder.looks(node), gives, "{}", export.name);
    }
}

/// Such a file is freed when its last user closes it, which is no client's change that could recall leases.
#[test]
fn nobody_has_a_lease_on_the_attributes_of_a_file_without_a_name() {
    let options = ServerOptions::default().cache_term(LONG_TERM);
    let (_server, address) = serve(Arc::new(MemFs::new()), vec![export("")], &options);
    let client = connect_tcp(&address);
    let (attr, _file) = make(&client, b"file");
    let mut holder = Holder::new(&address, "");
    let node = holder.node(b"file");
    let mode = OpenMode::read_only();
    holder
        .raw
        .ask(&FsRequest::Open { node, mode, file: 1 })
        .unwrap()
        .unwrap();
    holder.wants_leases();
    holder.raw.done::<Attr>(&FileRequest::FileGetattr { file: 1 });
    assert!(holder.raw.was_leased && holder.looks(node), "it has a name");
    std::thread::scope(|scope| {
        let unlink = scope.spawn(|| client.unlink(SYSTEM, ROOT_INO, b"file").unwrap());
        let (recall, ino) = holder.recall();
        assert_eq!(ino, attr.ino);
        holder.reply(vec![recall]);
        unlink.join().unwrap();
    });
    let attr: Attr = holder.raw.done(&FileRequest::FileGetattr { file: 1 });
    assert_eq!((attr.nlink, holder.raw.was_leased), (0, false));
    assert!(!holder.looks(node));
}

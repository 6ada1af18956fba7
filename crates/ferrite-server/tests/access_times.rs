//! A read-only export moves no access time, whoever reads and however, on each engine. The same reads through a
//! writable export do, so that this test can fail.

use std::sync::Arc;

use crate::common::{connect_export, export, make_pool, serve};
use ferrite_blob::device::uring::{Options as Opening, Reactor, Uring, Waiting};
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_client::Client;
use ferrite_fs::{AtimePolicy, Engine, MountOptions};
use ferrite_meta::MemoryStore;
use ferrite_nvme::{assemble, format};
use ferrite_pm::{Access, Region};
use ferrite_server::ServerOptions;
use ferrite_vfs::buffers::Pool;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, Cred, Ctx, DirEntry, FileSystem, Ino, NewFile, OpenMode, ROOT_INO, Result, SYSTEM, SetAttr, SetTime,
    Timestamp,
};

const OWNER: u32 = 1000;
/// Inline in the inode, in a message, in a buffer, in pieces.
const LENGTHS: [(&str, usize); 4] = [("tiny", 10), ("small", 5000), ("large", 100_000), ("long", 2 << 20)];
/// Before everything that happens later, so that a read is due to move it.
const LONG_AGO: Timestamp = Timestamp(1_000_000_000);

struct Tree {
    fs: Arc<dyn FileSystem>,
    dir: Ino,
    link: Ino,
    files: Vec<Ino>,
}

impl Tree {
    fn make(fs: Arc<dyn FileSystem>) -> Tree {
        let dir = fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap().ino;
        let new = NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        let make = |&(name, len): &(&str, usize)| {
            let opened = fs.create(SYSTEM, dir, name.as_bytes(), &new).unwrap();
            opened.file.write_at(SYSTEM, 0, &vec![7; len]).unwrap();
            opened.attr.ino
        };
        let files: Vec<Ino> = LENGTHS.iter().map(make).collect();
        let link = fs.symlink(SYSTEM, dir, b"link", b"tiny").unwrap().ino;
        let tree = Tree { fs, dir, link, files };
        for ino in tree.all() {
            let set = SetAttr {
                uid: Some(OWNER),
                atime: Some(SetTime::To(LONG_AGO)),
                ..SetAttr::default()
            };
            tree.fs.setattr(SYSTEM, ino, &set).unwrap();
        }
        tree
    }

    fn all(&self) -> Vec<Ino> {
        let mut all = vec![self.dir, self.link];
        all.extend(&self.files);
        all
    }

    /// Inodes whose access time has changed.
    fn moved(&self) -> Vec<Ino> {
        let has_moved = |ino: &Ino| self.fs.getattr(SYSTEM, *ino).unwrap().atime != LONG_AGO;
        self.all().into_iter().filter(has_moved).collect()
    }
}

/// Reads everything in every possible way.
fn read_all(client: &Client, ctx: &Ctx) {
    let dir = client.lookup(ctx, ROOT_INO, b"dir").unwrap().ino;
    let (mut names, mut more) = (0, 0);
    let mut count = |_: &DirEntry<'_>| {
        names += 1;
        true
    };
    client.readdir(ctx, dir, 0, &mut count).unwrap();
    let mut count = |_: &DirEntry<'_>, _: Result<Attr>| {
        more += 1;
        true
    };
    client.readdir_plus(ctx, dir, 0, &mut count).unwrap();
    assert_eq!((names, more), (LENGTHS.len() + 1, LENGTHS.len() + 1));
    let link = client.lookup(ctx, dir, b"link").unwrap().ino;
    assert_eq!(client.readlink(ctx, link).unwrap(), b"tiny");
    let pool = Pool::new(8 << 20).unwrap();
    for (name, len) in LENGTHS {
        let ino = client.lookup(ctx, dir, name.as_bytes()).unwrap().ino;
        let file = client.open(ctx, ino, OpenMode::read_only()).unwrap();
        let mut buf = vec![0; len + 1];
        for _ in 0..2 {
            assert_eq!(file.read_at(ctx, 0, &mut buf).unwrap(), len);
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = Box::new(move |_, read: Result<usize>| sender.send(read).unwrap());
        file.submit_read(ctx, 0, pool.take(len).unwrap(), done);
        assert_eq!(receiver.recv().unwrap(), Ok(len));
        assert_eq!(file.seek_data(ctx, 0).unwrap(), 0);
    }
}

/// `moves`: the inodes whose access times a read of everything moves on this engine.
fn check(fs: Arc<dyn FileSystem>, moves: impl Fn(&Tree) -> Vec<Ino>) {
    let tree = Tree::make(Arc::clone(&fs));
    let exports = vec![export("rw"), export("ro").read_only(true)];
    let (_server, address) = serve(fs, exports, &ServerOptions::default());
    let callers = [
        SYSTEM.clone(),
        Ctx::checked(Cred::root()),
        Ctx::checked(Cred::new(OWNER, OWNER)),
        Ctx::checked(Cred::new(2000, 2000)),
    ];
    let client = connect_export(&address, "ro");
    for ctx in &callers {
        read_all(&client, ctx);
        assert!(tree.moved().is_empty(), "{:?} by {ctx:?}", tree.moved());
    }
    let client = connect_export(&address, "rw");
    read_all(&client, &callers[3]);
    let (mut moved, mut expected) = (tree.moved(), moves(&tree));
    moved.sort_unstable();
    expected.sort_unstable();
    assert_eq!(moved, expected);
}

#[test]
fn on_the_reference_engine() {
    check(Arc::new(MemFs::new()), |tree| tree.files.clone());
}

#[test]
fn on_a_pool() {
    for policy in [AtimePolicy::Relative, AtimePolicy::Strict] {
        let path = make_pool(32 << 20, 1000);
        let region = Region::open(&path, Access::ReadWrite).unwrap();
        let engine = Engine::mount(region, &MountOptions::default().atime(policy)).unwrap();
        let moves = |tree: &Tree| [&[tree.dir][..], &tree.files].concat();
        check(Arc::new(engine.clone()), moves);
        engine.unmount().unwrap();
    }
}

#[test]
fn on_devices() {
    let dir = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let path = dir.path().join("device");
    Uring::create(&path, 160 << 20).unwrap();
    let meta = MemoryStore::new();
    format(&meta, [7; 16], [9; 16], 1).unwrap();
    let device = || Uring::open(&path, &Reactor::start(Waiting::Sleeping).unwrap(), &Opening::default()).unwrap();
    let identity = FormatOptions {
        store: [1; 16],
        pool: [7; 16],
        index: 0,
        checksums: false,
        shares_clusters: true,
    };
    BlobStore::format(&device(), &identity).unwrap();
    let store = BlobStore::open(Box::new(device()), false).unwrap();
    let engine = assemble(Box::new(meta), vec![Some(store)], ferrite_nvme::Options::default()).unwrap();
    let engine = Arc::new(engine);
    check(Arc::clone(&engine) as _, |tree| tree.files.clone());
    engine.close().unwrap();
}

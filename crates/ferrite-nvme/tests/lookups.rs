//! How often operations read the metadata store: what a transaction reads under its locks need not be read before, and
//! the directories of a path are in memory if they were a moment ago.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_blob::BlobStore;
use ferrite_meta::{MemoryStore, MetaStore, Transaction};
use ferrite_nvme::{NvmeFs, Options, assemble, format};
use ferrite_vfs::{FileSystem, FsError, Ino, NewFile, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, Start};

/// Counts reads of names and nodes outside of transactions.
struct Counting {
    store: MemoryStore,
    names_requested: Arc<AtomicU64>,
    nodes_requested: Arc<AtomicU64>,
}

impl MetaStore for Counting {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        self.store.begin()
    }

    fn get(&self, key: &[u8]) -> ferrite_meta::Result<Option<Vec<u8>>> {
        if matches!(key.first(), Some(b'E' | b'C')) {
            self.names_requested.fetch_add(1, Ordering::Relaxed);
        }
        if key.first() == Some(&b'N') {
            self.nodes_requested.fetch_add(1, Ordering::Relaxed);
        }
        self.store.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> ferrite_meta::Result<()> {
        self.store.scan(from, to, visit)
    }

    fn sync(&self) -> ferrite_meta::Result<()> {
        self.store.sync()
    }
}

/// A pool, and how often it read names and nodes.
fn pool() -> (NvmeFs, [Arc<AtomicU64>; 2]) {
    let [names_requested, nodes_requested] = [0, 0].map(|requested| Arc::new(AtomicU64::new(requested)));
    let meta = Counting {
        store: MemoryStore::new(),
        names_requested: Arc::clone(&names_requested),
        nodes_requested: Arc::clone(&nodes_requested),
    };
    format(&meta, [7; 16], [9; 16], 1).unwrap();
    let fs = assemble(Box::new(meta), vec![Some(BlobStore::memory(8))], Options::default()).unwrap();
    (fs, [names_requested, nodes_requested])
}

fn new_file(exclusive: bool) -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive,
    }
}

#[test]
fn an_exclusive_create_asks_for_its_name_under_its_lock_only() {
    let (fs, [names_requested, _]) = pool();
    let requested = |work: &dyn Fn()| {
        let before = names_requested.load(Ordering::Relaxed);
        work();
        names_requested.load(Ordering::Relaxed) - before
    };
    let create = |exclusive| fs.create(SYSTEM, ROOT_INO, b"file", &new_file(exclusive));
    assert_eq!(requested(&|| assert!(create(true).unwrap().created)), 0);
    assert_eq!(requested(&|| assert!(matches!(create(true), Err(FsError::Exists)))), 0);
    // A call that may find a file opens that one without a lock.
    assert_eq!(requested(&|| assert!(!create(false).unwrap().created)), 1);
    fs.close().unwrap();
}

#[test]
fn directories_of_a_path_are_read_once() {
    let (fs, requested) = pool();
    let requested = || requested.each_ref().map(|requested| requested.load(Ordering::Relaxed));
    let start = Start {
        root: ROOT_INO,
        base: ROOT_INO,
    };
    let mut dir = ROOT_INO;
    for name in [&b"a"[..], b"b", b"c"] {
        dir = fs.mkdir(SYSTEM, dir, name, 0o755).unwrap().ino;
    }
    fs.create(SYSTEM, dir, b"file", &new_file(true)).unwrap();
    let resolve = || fs.resolve(SYSTEM, &start, b"/a/b/c/file", true);
    resolve().unwrap();
    let before = requested();
    resolve().unwrap();
    let after = requested();
    // Four names, and the file's own node.
    assert_eq!([after[0] - before[0], after[1] - before[1]], [4, 1]);

    // A change of an unpinned directory is seen, and a removed directory is not.
    let set = SetAttr {
        mode: Some(0o700),
        ..SetAttr::default()
    };
    fs.setattr(SYSTEM, dir, &set).unwrap();
    assert_eq!(
        fs.resolve(SYSTEM, &start, b"/a/b/c", true).unwrap().mode & 0o7777,
        0o700
    );
    fs.unlink(SYSTEM, dir, b"file").unwrap();
    fs.rename(SYSTEM, dir - 1, b"c", ROOT_INO, b"d", RenameMode::Replace)
        .unwrap();
    assert_eq!(fs.resolve(SYSTEM, &start, b"/d", true).unwrap().ino, dir);
    fs.rmdir(SYSTEM, ROOT_INO, b"d").unwrap();
    assert!(fs.getattr(SYSTEM, dir).is_err());
    fs.close().unwrap();
}

#[test]
fn directories_that_rest_are_bounded() {
    let (fs, requested) = pool();
    let dirs: Vec<Ino> = (0..6000)
        .map(|number| {
            fs.mkdir(SYSTEM, ROOT_INO, format!("dir-{number}").as_bytes(), 0o755)
                .unwrap()
                .ino
        })
        .collect();
    let before = requested[1].load(Ordering::Relaxed);
    for &dir in &dirs {
        assert_eq!(fs.getattr(SYSTEM, dir).unwrap().ino, dir);
    }
    let read_again = requested[1].load(Ordering::Relaxed) - before;
    assert!(read_again > 1000, "{read_again} of 6000 directories were forgotten");
    fs.close().unwrap();
}

//! How often changes of names ask the metadata store: what a transaction asks under its locks need not be asked before.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_blob::BlobStore;
use ferrite_meta::{MemoryStore, MetaStore, Transaction};
use ferrite_nvme::{NvmeFs, Options, assemble, format};
use ferrite_vfs::{FileSystem, FsError, NewFile, OpenMode, ROOT_INO, SYSTEM};

/// Counts what is asked about names outside of transactions.
struct Counting {
    store: MemoryStore,
    names_asked: Arc<AtomicU64>,
}

impl MetaStore for Counting {
    fn begin(&self) -> Box<dyn Transaction + '_> {
        self.store.begin()
    }

    fn get(&self, key: &[u8]) -> ferrite_meta::Result<Option<Vec<u8>>> {
        if matches!(key.first(), Some(b'E' | b'C')) {
            self.names_asked.fetch_add(1, Ordering::Relaxed);
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

fn pool() -> (NvmeFs, Arc<AtomicU64>) {
    let names_asked = Arc::new(AtomicU64::new(0));
    let meta = Counting {
        store: MemoryStore::new(),
        names_asked: Arc::clone(&names_asked),
    };
    format(&meta, [7; 16], [9; 16], 1).unwrap();
    let fs = assemble(Box::new(meta), vec![Some(BlobStore::memory(8))], Options::default()).unwrap();
    (fs, names_asked)
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
    let (fs, names_asked) = pool();
    let asked = |work: &dyn Fn()| {
        let before = names_asked.load(Ordering::Relaxed);
        work();
        names_asked.load(Ordering::Relaxed) - before
    };
    let create = |exclusive| fs.create(SYSTEM, ROOT_INO, b"file", &new_file(exclusive));
    assert_eq!(asked(&|| assert!(create(true).unwrap().created)), 0);
    assert_eq!(asked(&|| assert!(matches!(create(true), Err(FsError::Exists)))), 0);
    // One that may find a file opens that one without a lock.
    assert_eq!(asked(&|| assert!(!create(false).unwrap().created)), 1);
    fs.close().unwrap();
}

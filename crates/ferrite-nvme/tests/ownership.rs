//! A volume that another server takes over: the old one answers nothing that the new one could contradict, from its
//! memory as little as from the database, and changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Shared, shared_with};
use ferrite_blob::device::Memory as MemoryDevice;
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::{MemoryRemote, Owned, OwnedOptions, Owner};
use ferrite_nvme::{Answering, NvmeFs, Options};
use ferrite_vfs::{Cred, FileSystem, FsError, OpenFlags, ROOT_INO, RenameMode, SYSTEM, Vfs};

const TTL: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);

/// A database and a clock that the test moves.
struct World {
    database: Arc<MemoryRemote>,
    now_ms: Arc<AtomicU64>,
}

impl World {
    fn new() -> World {
        World {
            database: Arc::new(MemoryRemote::with_manual_clock()),
            now_ms: Arc::default(),
        }
    }

    fn advance(&self, by: Duration) {
        self.now_ms.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
        self.database.advance(by);
    }

    fn store(&self, name: &str) -> Arc<Owned<Arc<MemoryRemote>>> {
        let now_ms = Arc::clone(&self.now_ms);
        let owner = Owner {
            name: name.into(),
            address: String::new(),
        };
        let mut options = OwnedOptions::default();
        options.ttl = TTL;
        options.renews = false;
        options.clock = Box::new(move || Duration::from_millis(1_000_000 + now_ms.load(Ordering::SeqCst)));
        Arc::new(Owned::open(Arc::clone(&self.database), 1, &owner, options).unwrap())
    }
}

/// A device of the pool. Files of the tests are so short that they lie in their nodes, so each server has its own.
fn device() -> BlobStore {
    let device = MemoryDevice::new(64 << 20);
    let options = FormatOptions {
        store: [1; 16],
        pool: [7; 16],
        index: 0,
        checksums: false,
        shares_clusters: true,
    };
    BlobStore::format(&device, &options).unwrap();
    BlobStore::open(Box::new(device), false).unwrap()
}

fn serve(store: &Shared) -> NvmeFs {
    ferrite_nvme::assemble(Box::new(store.clone()), vec![Some(device())], Options::default()).unwrap()
}

fn flags() -> OpenFlags {
    OpenFlags {
        read: true,
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    }
}

#[test]
fn a_server_that_slept_through_a_takeover_answers_nothing_and_changes_nothing() {
    let world = World::new();
    let old_store = shared_with(world.store("old"));
    ferrite_nvme::format(&old_store, [7; 16], [9; 16], 1).unwrap();
    let old: Arc<dyn FileSystem> = Arc::new(Answering::new(serve(&old_store)));
    let vfs = Vfs::new(Arc::clone(&old), Cred::root());
    let file = vfs.open(b"/file", &flags()).unwrap();
    file.write_at(SYSTEM, 0, b"old").unwrap();
    let attr = old.lookup(SYSTEM, ROOT_INO, b"file").unwrap();
    old.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();

    world.advance(HOUR);
    let new_store = shared_with(world.store("new"));
    let new = serve(&new_store);
    new.rename(SYSTEM, ROOT_INO, b"file", ROOT_INO, b"renamed", RenameMode::Replace)
        .unwrap();

    let refused = |what: &str, answer: Result<(), FsError>| {
        assert!(matches!(answer, Err(FsError::NotOwner { .. })), "{what}: {answer:?}");
    };
    let mut buffer = [0; 3];
    refused("read", file.read_at(SYSTEM, 0, &mut buffer).map(drop));
    refused("write", file.write_at(SYSTEM, 0, b"zombie").map(drop));
    refused("fsync", file.fsync(SYSTEM));
    refused("attributes", old.getattr(SYSTEM, attr.ino).map(drop));
    refused("lookup", old.lookup(SYSTEM, ROOT_INO, b"file").map(drop));
    refused(
        "a name that is not there",
        old.lookup(SYSTEM, ROOT_INO, b"renamed").map(drop),
    );
    refused("listing", old.readdir(SYSTEM, ROOT_INO, 0, &mut |_| true));
    refused("space", old.statfs(SYSTEM).map(drop));
    refused("mkdir", old.mkdir(SYSTEM, ROOT_INO, b"zombie", 0o755).map(drop));
    refused("unlink", old.unlink(SYSTEM, ROOT_INO, b"file"));
    refused("open", vfs.open(b"/file", &flags()).map(drop));
    refused("sync", old.sync(SYSTEM));
    drop((file, vfs, old));

    assert_eq!(new.lookup(SYSTEM, ROOT_INO, b"file").unwrap_err(), FsError::NotFound);
    assert_eq!(new.lookup(SYSTEM, ROOT_INO, b"zombie").unwrap_err(), FsError::NotFound);
    let vfs = Vfs::new(Arc::new(new.clone()), Cred::root());
    let file = vfs.open(b"/renamed", &flags()).unwrap();
    assert_eq!(file.read_at(SYSTEM, 0, &mut buffer), Ok(3));
    assert_eq!(&buffer, b"old");
    drop((file, vfs));
    let report = new.check().unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    new.close().unwrap();
}

#[test]
fn a_server_whose_lease_has_ended_answers_again_if_nobody_took_the_volume() {
    let world = World::new();
    let owned = world.store("only");
    let store = shared_with(owned.clone());
    ferrite_nvme::format(&store, [7; 16], [9; 16], 1).unwrap();
    let fs = Answering::new(serve(&store));
    let ino = fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap().ino;
    world.advance(TTL);
    assert!(matches!(
        fs.lookup(SYSTEM, ROOT_INO, b"dir"),
        Err(FsError::NotOwner { .. })
    ));
    // Nor does a caller without an answer have a pin, which would keep the inode for ever.
    assert!((0..100).all(|_| fs.pin(SYSTEM, ino, 1).is_err()));
    owned.renew().unwrap();
    fs.lookup(SYSTEM, ROOT_INO, b"dir").unwrap();
    fs.rmdir(SYSTEM, ROOT_INO, b"dir").unwrap();
    assert_eq!(fs.getattr(SYSTEM, ino), Err(FsError::Stale));
}

/// A pool that is closed can be opened at once, by whichever server.
#[test]
fn a_pool_that_is_closed_is_given_up() {
    let world = World::new();
    let store = shared_with(world.store("first"));
    ferrite_nvme::format(&store, [7; 16], [9; 16], 1).unwrap();
    serve(&store).close().unwrap();
    // The store is still there: closing the pool has given the volume up.
    let next = shared_with(world.store("second"));
    serve(&next).close().unwrap();
    drop(store);
}

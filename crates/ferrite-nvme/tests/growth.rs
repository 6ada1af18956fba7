//! The resources of a pool do not grow by being opened, closed, cut off or left alone: files and records of its
//! metadata, space of its devices, descriptors, threads and memory of the process.
#![cfg(feature = "rocksdb")]

mod common;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::{BACKENDS, Backend, Memory};
use ferrite_blob::device::Memory as Device;
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::{MetaStore, RocksStore};
use ferrite_testkit::TestEngine;
use ferrite_testkit::growth::{Taken, files_in};
use ferrite_vfs::{FileKind, FileSystem, NewNode, OpenMode, ROOT_INO, SYSTEM};

/// Held by each test: they measure the whole process.
static ALONE: Mutex<()> = Mutex::new(());

const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

/// The work of a short program in each session: a small file anew, one with a blob, one that comes and goes.
fn work(fs: &dyn FileSystem, cycle: u64) {
    for (name, len) in [("small", 28_000), ("blob", 50_000), ("gone", 40_000)] {
        let found = fs.lookup(SYSTEM, ROOT_INO, name.as_bytes());
        let attr = found.or_else(|_| fs.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &FILE));
        let file = fs.open(SYSTEM, attr.unwrap().ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, &vec![cycle as u8; len]).unwrap();
    }
    fs.unlink(SYSTEM, ROOT_INO, b"gone").unwrap();
}

fn records(meta: &dyn MetaStore) -> usize {
    let mut count = 0;
    let each = &mut |_: &[u8], _: &[u8]| {
        count += 1;
        ControlFlow::Continue(())
    };
    meta.scan(b"", b"\xff", each).unwrap();
    count
}

/// Records, free space and, if the metadata is in a directory, its files and bytes.
fn taken_by(pool: &Memory) -> (usize, u64, (usize, u64)) {
    let free = pool.fs().statfs(SYSTEM).unwrap().blocks_free;
    let files = pool.meta_dir().map_or((0, 0), |dir| files_in(&dir));
    (records(pool.meta()), free, files)
}

fn opened_and_closed(backend: Backend, cycles: u64) {
    let mut pool = Memory::at(backend, 1, 20, 62);
    let (mut before, mut process) = (taken_by(&pool), Taken::now());
    for cycle in 0..cycles {
        work(pool.fs(), cycle);
        // A crash, for the engine: nothing is stored, and the next opening recovers.
        match cycle % 50 {
            49 => pool.crash(),
            _ => pool.remount(),
        }
        if cycle == 100 {
            (before, process) = (taken_by(&pool), Taken::now());
        }
        let (records, free, (files, bytes)) = taken_by(&pool);
        let what = format!("{backend:?}, cycle {cycle}");
        // Sixteen blobs are made in advance, each with a record; a file that went there may have one, too.
        assert!(
            records <= before.0 + 40,
            "{what}: {records} records, before {}",
            before.0
        );
        assert!(
            free + 1 >= before.1 || cycle < 100,
            "{what}: {free} blocks free, before {}",
            before.1
        );
        assert!(files <= 20 && bytes <= 16 << 20, "{what}: {files} files, {bytes} bytes");
    }
    Taken::now().is_no_more_than(process, &format!("{backend:?}"));
    pool.check();
    pool.close();
}

#[test]
fn a_pool_that_is_opened_and_closed_for_ever_takes_no_more() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for &backend in BACKENDS {
        // `ferrite-meta/tests/growth.rs` opens the stores more often.
        let is_long = backend == Backend::Memory || std::env::var_os("FERRITE_SOAK").is_some();
        opened_and_closed(backend, if is_long { 500 } else { 200 });
    }
}

/// An idle pool stores what is pending, and then nothing.
#[test]
fn a_pool_that_idles_writes_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for &backend in BACKENDS {
        let pool = Memory::at(backend, 1, 20, 62);
        work(pool.fs(), 1);
        pool.fs().sync(SYSTEM).unwrap();
        std::thread::sleep(Duration::from_millis(1200));
        let written = || (pool.meta().statistics().log_bytes, pool.device(0).image());
        let (log_bytes, image) = written();
        std::thread::sleep(Duration::from_millis(1500));
        let (now, image_now) = written();
        assert_eq!(now, log_bytes, "{backend:?}: bytes of the log");
        assert!(image_now == image, "{backend:?}: the device has changed");
    }
}

fn open_meta(device: &Arc<Device>, create: bool) -> RocksStore {
    let options = ferrite_meta::Options {
        create,
        ..ferrite_meta::Options::default()
    };
    let blobs = ferrite_nvme::MetaBlobs::open(Box::new(Arc::clone(device))).unwrap();
    RocksStore::open(ferrite_meta::Backend::Blobs(Arc::new(blobs)), &options).unwrap()
}

/// The smallest devices for metadata: each file takes a cluster, so that a few leaked ones fill them.
#[test]
fn sessions_do_not_fill_a_small_metadata_device() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (mib, cycles, crashes) in [(24, 150, false), (64, 60, false), (24, 80, true)] {
        let mut device = Arc::new(Device::new(mib << 20));
        let options = FormatOptions {
            store: [99; 16],
            pool: [7; 16],
            index: u16::MAX,
            checksums: false,
            shares_clusters: false,
        };
        BlobStore::format(&*device, &options).unwrap();
        for cycle in 0..cycles {
            let store = open_meta(&device, cycle == 0);
            for number in 0..3_u8 {
                let mut txn = store.begin();
                txn.put(&[number], &[cycle as u8; 200]).unwrap();
                let committed = txn.commit();
                committed.unwrap_or_else(|error| panic!("{mib} MiB, crashes {crashes}, session {cycle}: {error}"));
            }
            if crashes {
                let left = device.image();
                drop(store);
                device = Arc::new(Device::of(left));
            } else {
                store.close().unwrap();
            }
        }
        let store = open_meta(&device, false);
        assert_eq!(store.get(&[1]).unwrap(), Some(vec![(cycles - 1) as u8; 200]));
        store.close().unwrap();
    }
}

//! The resources of a store on RocksDB do not grow by being opened, closed, cut off or used for long.
#![cfg(feature = "rocksdb")]

mod common;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use common::{change, in_directory, on_blobs, small};
use ferrite_meta::{Backend, Blobs, MemoryBlobs, MetaStore, Options, RocksStore};

const CYCLES: usize = 500;
/// More than a manifest, a log, a table of each level and RocksDB's two files of options take here.
const BYTES_MAX: u64 = 3 << 20;
const FILES_MAX: usize = 16;

/// Files and bytes of a directory.
fn of_directory(path: &Path) -> (usize, u64) {
    let sizes: Vec<u64> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    (sizes.len(), sizes.iter().sum())
}

fn of_blobs(blobs: &MemoryBlobs) -> (usize, u64) {
    let used = blobs.size_bytes().unwrap() - blobs.free_bytes().unwrap();
    (blobs.ids().unwrap().len(), used)
}

/// Descriptors and threads of this process.
fn of_process() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// The writes of a short session of a small pool: the same keys each time.
fn work(store: &RocksStore, cycle: usize) {
    for number in 0..3_u8 {
        let value = [&cycle.to_be_bytes()[..], &[number; 3000]].concat();
        change(store, |txn| txn.put(&[number], &value)).unwrap();
    }
}

fn verify(store: &RocksStore, cycle: usize) {
    for number in 0..3_u8 {
        let value = store.get(&[number]).unwrap().unwrap();
        assert_eq!(value[..8], cycle.to_be_bytes());
    }
}

fn is_bounded((files, bytes): (usize, u64), what: &str) {
    assert!(
        files <= FILES_MAX && bytes <= BYTES_MAX,
        "{what}: {files} files, {bytes} bytes"
    );
}

/// Copies a directory as a process that is killed now leaves it.
fn cut_off(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        // RocksDB's threads remove files meanwhile.
        let _ = std::fs::copy(entry.path(), to.join(entry.file_name()));
    }
}

#[test]
fn a_store_that_is_opened_and_closed_for_ever_stays_as_small() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("meta");
    let blobs = Arc::new(MemoryBlobs::new(64 << 20, false));
    for backend in [
        Backend::Directory(path.clone()),
        Backend::Blobs(Arc::clone(&blobs) as _),
    ] {
        let mut before = (0, 0);
        for cycle in 0..CYCLES {
            let opened = match &backend {
                Backend::Directory(_) => in_directory(dir.path()),
                _ => on_blobs(&blobs),
            };
            let store = opened.unwrap();
            if cycle > 0 {
                verify(&store, cycle - 1);
            }
            work(&store, cycle);
            // Dropping it is another way to close it.
            if cycle % 2 == 0 {
                store.close().unwrap();
            } else {
                drop(store);
            }
            if cycle == 10 {
                before = of_process();
            }
            match &backend {
                Backend::Directory(path) => is_bounded(of_directory(path), &format!("cycle {cycle}, directory")),
                _ => is_bounded(of_blobs(&blobs), &format!("cycle {cycle}, blobs")),
            }
        }
        let (descriptors, threads) = of_process();
        // Other tests of this program run meanwhile.
        assert!(
            descriptors < before.0 + 100 && threads < before.1 + 50,
            "{descriptors} descriptors and {threads} threads, not {before:?}"
        );
    }
}

#[test]
fn a_store_that_is_never_closed_stays_as_small() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let places = [dir.path().join("a"), dir.path().join("b")];
    std::fs::create_dir(&places[0]).unwrap();
    let mut blobs = Arc::new(MemoryBlobs::new(64 << 20, false));
    for cycle in 0..CYCLES / 2 {
        let (from, to) = (&places[cycle % 2], &places[(cycle + 1) % 2]);
        let store = RocksStore::open(Backend::Directory(from.clone()), &small()).unwrap();
        work(&store, cycle);
        cut_off(from, to);
        drop(store);
        is_bounded(of_directory(to), &format!("cycle {cycle}, directory"));

        let store = on_blobs(&blobs).unwrap();
        work(&store, cycle);
        let left = Arc::new(blobs.copy(64 << 20));
        drop(store);
        is_bounded(of_blobs(&left), &format!("cycle {cycle}, blobs"));
        blobs = left;
    }
}

/// Flushes and merges add to the manifest; RocksDB starts a new one before it outgrows a small device.
#[test]
fn a_manifest_does_not_grow_for_ever() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("meta");
    let options = Options {
        create: true,
        write_buffer_bytes: 64 << 10,
        reserve_bytes: 0,
        ..Options::default()
    };
    let store = RocksStore::open(Backend::Directory(path.clone()), &options).unwrap();
    // Long keys make long entries: a table's entry has its first and its last key.
    let key = |number: u32| [vec![b'k'; 30_000], number.to_be_bytes().to_vec()].concat();
    let (mut longest, mut names) = (0, HashSet::new());
    for round in 0..60_u32 {
        for number in 0..4 {
            change(&store, |txn| txn.put(&key(number), &round.to_be_bytes())).unwrap();
        }
        store.compact().unwrap();
        let files = std::fs::read_dir(&path).unwrap().map(Result::unwrap);
        let manifests = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("MANIFEST"));
        let mut bytes = 0;
        for manifest in manifests {
            bytes += manifest.metadata().map_or(0, |found| found.len());
            names.insert(manifest.file_name());
        }
        longest = longest.max(bytes);
    }
    assert!(longest < 3 << 20, "{longest} bytes");
    // Without a second one they would not have outgrown the bound.
    assert!(names.len() > 1, "{names:?} with {longest} bytes");
    store.close().unwrap();
}

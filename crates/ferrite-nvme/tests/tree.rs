//! A source tree takes little more space than its files have bytes.
use std::path::Path;

use ferrite_blob::device::uring::{Options as Opening, Reactor, Uring, Waiting};
use ferrite_blob::{BlobStore, CLUSTER_BYTES, FormatOptions};
use ferrite_meta::{Backend, RocksStore};
use ferrite_nvme::{NvmeFs, Options, assemble, format};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_vfs::{FileSystem, NewFile, OpenMode, ROOT_INO, SYSTEM};

const FILES: u64 = 1000;
const FILES_A_DIR: u64 = 25;
/// The length of an archiver's writes.
const RECORD_BYTES: usize = 10 << 10;
const DEVICE_BYTES: u64 = 256 << 20;
/// RocksDB's log reaches this length before RocksDB begins another.
const WRITE_BUFFER_BYTES: usize = 4 << 20;
/// Logs, manifests and options of RocksDB, whatever they hold.
const FIXED_BYTES: u64 = WRITE_BUFFER_BYTES as u64;

struct Pool {
    fs: NvmeFs,
    store: BlobStore,
}

impl Pool {
    fn open(dir: &Path, create: bool) -> Pool {
        let options = ferrite_meta::Options {
            create,
            write_buffer_bytes: WRITE_BUFFER_BYTES,
            ..ferrite_meta::Options::default()
        };
        let meta = RocksStore::open(Backend::Directory(dir.join("meta")), &options).unwrap();
        let device = dir.join("device");
        let reactor = Reactor::start(Waiting::Sleeping).unwrap();
        let uring = || Uring::open(&device, &reactor, &Opening::default()).unwrap();
        if create {
            Uring::create(&device, DEVICE_BYTES).unwrap();
            format(&meta, [7; 16], [9; 16], 1).unwrap();
            let identity = FormatOptions {
                store: [1; 16],
                pool: [7; 16],
                index: 0,
                checksums: false,
                shares_clusters: true,
            };
            BlobStore::format(&uring(), &identity).unwrap();
        }
        let store = BlobStore::open(Box::new(uring()), false).unwrap();
        let fs = assemble(Box::new(meta), vec![Some(store.clone())], Options::default()).unwrap();
        Pool { fs, store }
    }
}

/// Lengths as in trees of sources: most have some KiB, some have hundreds.
fn length(rng: &mut Rng) -> usize {
    // Twelve evenly distributed numbers are one that is normally distributed.
    let normal = (0..12)
        .map(|_| rng.below(1 << 20) as f64 / f64::from(1 << 20))
        .sum::<f64>()
        - 6.0;
    (8.3 + 1.5 * normal).exp().min(2e6) as usize
}

fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    entries.map(|entry| entry.metadata().unwrap().len()).sum()
}

#[test]
fn a_tree_of_sources_takes_half_as_much_again_as_its_bytes_at_most() {
    let dir = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let pool = Pool::open(dir.path(), true);
    let empty = pool.store.space();
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let mut rng = Rng::new(20);
    let lengths: Vec<usize> = (0..FILES).map(|_| length(&mut rng)).collect();
    let mut files = Vec::new();
    for (number, &len) in (0..).zip(&lengths) {
        if number % FILES_A_DIR == 0 {
            let name = format!("d{}", number / FILES_A_DIR);
            files.push(pool.fs.mkdir(SYSTEM, ROOT_INO, name.as_bytes(), 0o755).unwrap().ino);
        }
        let name = format!("source-file-{number}.rs");
        let opened = pool
            .fs
            .create(SYSTEM, *files.last().unwrap(), name.as_bytes(), &new)
            .unwrap();
        for record in pattern(number as u32, len).chunks(RECORD_BYTES) {
            opened.file.append(SYSTEM, record).unwrap();
        }
    }
    let content: u64 = lengths.iter().map(|&len| len as u64).sum();
    let statfs = pool.fs.statfs(SYSTEM).unwrap();
    pool.fs.close().unwrap();
    let used = empty.free_bytes - pool.store.space().free_bytes;
    assert!(statfs.blocks - statfs.blocks_free >= used / CLUSTER_BYTES);
    drop(pool);
    let metadata = bytes_in(&dir.path().join("meta"));
    let long = lengths.iter().filter(|&&len| len > 32 << 10).count();
    println!("{FILES} files with {content} bytes, {long} of them long: {used} of data, {metadata} of metadata");
    assert!(long > 20 && long < 200, "realistic");
    let allowed = content * 3 / 2 + FIXED_BYTES;
    assert!(used + metadata <= allowed, "{} of {allowed}", used + metadata);

    let pool = Pool::open(dir.path(), false);
    for (number, &len) in (0..).zip(&lengths) {
        let (parent, name) = (
            files[(number / FILES_A_DIR) as usize],
            format!("source-file-{number}.rs"),
        );
        let attr = pool.fs.lookup(SYSTEM, parent, name.as_bytes()).unwrap();
        let file = pool.fs.open(SYSTEM, attr.ino, OpenMode::read_only()).unwrap();
        let mut found = vec![0; len + 1];
        assert_eq!(file.read_at(SYSTEM, 0, &mut found).unwrap(), len);
        assert!(found[..len] == pattern(number as u32, len), "{name}");
    }
    assert!(pool.fs.check().unwrap().findings.is_empty());
    pool.fs.close().unwrap();
}

//! Many files: an opening after a crash takes seconds, and a file that is not in use takes next to no memory.
//!
//! 20,000 files; a million with `FERRITE_SOAK`, or as many as `FERRITE_FILES` says.
#![cfg(feature = "rocksdb")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_blob::device::uring::{Options as Opening, Reactor, Uring, Waiting};
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::{Backend, RocksStore};
use ferrite_nvme::{NvmeFs, Options, assemble, format};
use ferrite_vfs::{FileSystem, NewFile, OpenMode, ROOT_INO, SYSTEM};

const FILES_A_DIR: u64 = 1000;
/// Files that are longer than their nodes, open, and behind their blobs at the crash; every second has no name.
const OPEN: u64 = 64;
const DEVICE_BYTES: u64 = 128 << 20;
const CACHE_BYTES: usize = 16 << 20;
const WRITE_BUFFER_BYTES: usize = 8 << 20;
/// The time that an opening may take.
const OPENS_WITHIN: Duration = Duration::from_secs(5);
const BYTES_A_FILE: u64 = 64;
/// Where the process that is killed finds the pool.
const POOL: &str = "FERRITE_TEST_POOL";

fn files() -> u64 {
    let told = std::env::var("FERRITE_FILES").ok().and_then(|text| text.parse().ok());
    told.unwrap_or(match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 1_000_000,
        None => 20_000,
    })
}

fn open(dir: &Path, create: bool) -> NvmeFs {
    let options = ferrite_meta::Options {
        create,
        block_cache_bytes: CACHE_BYTES,
        write_buffer_bytes: WRITE_BUFFER_BYTES,
        reserve_bytes: 0,
        ..ferrite_meta::Options::default()
    };
    let meta = RocksStore::open(Backend::Directory(dir.join("meta")), &options).unwrap();
    let device = dir.join("device");
    let mut opening = Opening::default();
    opening.whole_pages = Some(true);
    let reactor = Reactor::start(Waiting::Sleeping).unwrap();
    let open = || Uring::open(&device, &reactor, &opening).unwrap();
    if create {
        format(&meta, [7; 16], [9; 16], 1).unwrap();
        let identity = FormatOptions {
            store: [1; 16],
            pool: [7; 16],
            index: 0,
            checksums: false,
            shares_clusters: true,
        };
        BlobStore::format(&open(), &identity).unwrap();
    }
    let store = BlobStore::open(Box::new(open()), false).unwrap();
    let mut options = Options::default();
    options.small_bytes_max = 2048;
    assemble(Box::new(meta), vec![Some(store)], options).unwrap()
}

fn new_file() -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    }
}

/// The process that makes the files, and is killed. Does nothing as a test.
#[test]
fn fill() {
    let Some(dir) = std::env::var_os(POOL).map(PathBuf::from) else {
        return;
    };
    let fs = Arc::new(open(&dir, true));
    let dirs = files().div_ceil(FILES_A_DIR);
    let threads = 4;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let fs = &fs;
            scope.spawn(move || {
                for dir in (thread..dirs).step_by(threads as usize) {
                    let name = format!("d{dir}");
                    let ino = fs.mkdir(SYSTEM, ROOT_INO, name.as_bytes(), 0o755).unwrap().ino;
                    for file in 0..FILES_A_DIR.min(files() - dir * FILES_A_DIR) {
                        let name = format!("file-{file}");
                        fs.create(SYSTEM, ino, name.as_bytes(), &new_file()).unwrap();
                    }
                }
            });
        }
    });
    let mut held = Vec::new();
    for number in 0..OPEN {
        let name = format!("open-{number}");
        let file = fs.create(SYSTEM, ROOT_INO, name.as_bytes(), &new_file()).unwrap().file;
        file.append(SYSTEM, &[number as u8 + 1; 3000]).unwrap();
        file.append(SYSTEM, &[number as u8 + 1; 3000]).unwrap();
        if number % 2 == 1 {
            fs.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
        }
        held.push(file);
    }
    std::process::abort();
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn an_opening_after_a_crash_is_quick_and_small() {
    let dir = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    Uring::create(&dir.path().join("device"), DEVICE_BYTES).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["fill", "--exact", "--test-threads", "1"])
        .env(POOL, dir.path())
        .status()
        .unwrap();
    assert!(!status.success(), "it was to be killed");
    let before = resident_bytes();
    let began = Instant::now();
    let fs = open(dir.path(), false);
    let took = began.elapsed();
    let grown = resident_bytes().saturating_sub(before);
    let count = files();
    println!(
        "{count} files: opened within {took:?}, memory has grown by {grown} bytes, {:.1} a file",
        grown as f64 / count as f64
    );
    assert!(took < OPENS_WITHIN, "{took:?}");
    // RocksDB's caches, its write buffers, and the buffer that its log is read into.
    let configured = CACHE_BYTES as u64 + 4 * WRITE_BUFFER_BYTES as u64 + (16 << 20);
    assert!(grown < configured + BYTES_A_FILE * count, "{grown} bytes");
    let space = fs.statfs(SYSTEM).unwrap();
    let dirs = count.div_ceil(FILES_A_DIR);
    assert_eq!(space.inodes - space.inodes_free, 1 + dirs + count + OPEN / 2);
    for number in (0..OPEN).step_by(2) {
        let name = format!("open-{number}");
        let attr = fs.lookup(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
        assert_eq!(attr.size, 6000, "{name}");
        let file = fs.open(SYSTEM, attr.ino, OpenMode::read_only()).unwrap();
        let mut found = vec![0; 6000];
        file.read_at(SYSTEM, 0, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == number as u8 + 1), "{name}");
    }
    fs.close().unwrap();
}

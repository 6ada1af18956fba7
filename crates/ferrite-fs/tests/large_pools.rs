//! Pools of terabytes, sparse: words that are divided elsewhere than in the middle, larger units of logs, numbers
//! beyond 32 bits, and tables that must not be read or written whole.
//!
//! The pools are sparse files in DRAM, of which only the written parts take memory. Each test says how much that may
//! be.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, create, fsck, mkfs, number_thread};
use ferrite_pm::{Access, Region};
use ferrite_vfs::{FileSystem, OpenFile, OpenMode, ROOT_INO, SYSTEM};
use tempfile::TempDir;

use crate::common::make;

const TIB: u64 = 1 << 40;
const PAGE: usize = 4096;
/// Memory that a sparse pool may take in these tests: rings, outcomes and what is written.
const RESIDENT_BYTES_MAX: u64 = 256 << 20;
/// For any step. Most take a fraction of a second.
const STEP_MAX: Duration = Duration::from_secs(20);

fn dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn timed<T>(what: &str, step: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = step();
    let took = began.elapsed();
    println!("  {what}: {took:?}");
    assert!(took < STEP_MAX, "{what} took {took:?}");
    done
}

fn make_pool(path: &Path, size_bytes: u64, mapping: Mapping) {
    let options = MkfsOptions::default().mapping(mapping).sparse(true).seed(7);
    drop(timed("mkfs", || create(path, size_bytes, &options).unwrap()));
}

fn mount(path: &Path) -> Engine {
    let options = MountOptions::default().cleaner(false).merge_read_entries(0);
    timed("mount", || {
        Engine::mount(Region::open(path, Access::ReadWrite).unwrap(), &options).unwrap()
    })
}

fn check(path: &Path) {
    let report = timed("fsck", || {
        fsck(Region::open(path, Access::ReadOnlyPrivate).unwrap(), &mut |_, _, _| {}).unwrap()
    });
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let resident_bytes = std::fs::metadata(path).unwrap().blocks() * 512;
    assert!(resident_bytes < RESIDENT_BYTES_MAX, "{resident_bytes} bytes of memory");
}

/// The content of a file: whole pages, and over some of them small writes, which go to logs.
struct Content(Vec<u8>);

impl Content {
    fn write(file: &Arc<dyn OpenFile>, seed: u8) -> Content {
        let mut bytes: Vec<u8> = (0..16 * PAGE).map(|at| (at / 7) as u8 ^ seed).collect();
        file.write_at(SYSTEM, 0, &bytes).unwrap();
        for round in 0..40 {
            let at = (round * 1237 + 100) % (15 * PAGE);
            let part = [round as u8 ^ seed; 90];
            file.write_at(SYSTEM, at as u64, &part).unwrap();
            bytes[at..at + part.len()].copy_from_slice(&part);
        }
        Content(bytes)
    }

    fn check(&self, file: &Arc<dyn OpenFile>) {
        let mut found = vec![0; self.0.len()];
        assert_eq!(file.read_at(SYSTEM, 0, &mut found).unwrap(), found.len());
        assert!(found == self.0, "wrong content");
    }
}

fn open(engine: &Engine, name: &[u8]) -> Arc<dyn OpenFile> {
    let ino = engine.lookup(SYSTEM, ROOT_INO, name).unwrap().ino;
    engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap()
}

/// Writes files from several threads, each of which allocates in another part of the pool, and finds them again after a
/// crash.
fn use_all_of(path: &Path, has_logs: bool) {
    let engine = mount(path);
    let names: Vec<String> = (0..200).map(|number| format!("file-{number}")).collect();
    let write = |(name, seed): (&String, u8)| {
        let ino = make(&engine, ROOT_INO, name);
        Content::write(&engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap(), seed)
    };
    let mut contents = Vec::new();
    for (number, part) in names.chunks(25).enumerate() {
        let written = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                // The number says where in the pool it begins; other tests take numbers meanwhile.
                number_thread(number as u64);
                part.iter().zip(0..).map(write).collect::<Vec<_>>()
            });
            thread.join().unwrap()
        });
        contents.extend(written);
    }
    let check_all = |engine: &Engine| {
        for (name, content) in names.iter().zip(&contents) {
            content.check(&open(engine, name.as_bytes()));
        }
    };
    timed("read", || check_all(&engine));
    let info = timed("info", || engine.info());
    // One file of each thread: some mappings walk the whole table for each.
    let pages = names.iter().step_by(25).flat_map(|name| {
        let ino = engine.lookup(SYSTEM, ROOT_INO, name.as_bytes()).unwrap().ino;
        timed("dump", || engine.dump(ino).unwrap())
    });
    let blocks: Vec<u64> = pages.map(|page| u64::from(page.block)).collect();
    let quarter = info.size_bytes / PAGE as u64 / 4;
    let (first, last) = (*blocks.iter().min().unwrap(), *blocks.iter().max().unwrap());
    assert!(first < quarter && last > 3 * quarter, "blocks {first} to {last}");
    assert_eq!(info.logged_pages > 0, has_logs, "{} pages have logs", info.logged_pages);
    // As if killed: the journal is replayed.
    drop(engine);
    check(path);
    let engine = mount(path);
    assert!(engine.damage().is_empty(), "{:#?}", engine.damage());
    check_all(&engine);
    for name in &names {
        engine.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
    }
    timed("unmount", || engine.unmount().unwrap());
    drop(engine);
    check(path);
}

/// All sizes at which words are divided differently; every mapping at the largest that all of them allow.
#[test]
fn pools_of_terabytes_are_made_mounted_used_and_checked_in_seconds() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    for tib in [1, 2, 3, 8] {
        let mappings = Mapping::ALL.iter().copied();
        for mapping in mappings.filter(|&mapping| soak || tib == 8 || mapping == Mapping::default()) {
            println!("{tib} TiB, {mapping}");
            let dir = dir();
            let path = dir.path().join("pool");
            make_pool(&path, tib * TIB, mapping);
            use_all_of(&path, true);
        }
    }
}

/// Above 8 TiB a block cannot hold a log whose units words could number, so pages are copied.
#[test]
fn the_largest_pool_has_no_logs() {
    let dir = dir();
    let path = dir.path().join("pool");
    make_pool(&path, 16 * TIB - 4096, Mapping::Extent);
    use_all_of(&path, false);
}

/// Memory that is reserved without use, as a server in DRAM has it.
#[test]
fn a_pool_in_reserved_memory_takes_only_what_is_used() {
    let region = Region::anonymous(8 * TIB).unwrap();
    timed("mkfs", || mkfs(&region, &MkfsOptions::default()).unwrap());
    let options = MountOptions::default().cleaner(false);
    let engine = timed("mount", || Engine::mount(region, &options).unwrap());
    let ino = make(&engine, ROOT_INO, "file");
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    Content::write(&file, 1).check(&file);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident_bytes = statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE as u64;
    assert!(resident_bytes < 1 << 30, "{resident_bytes} bytes of memory");
}

#[test]
fn pools_that_no_mapping_could_number_are_refused() {
    let refused = |size_bytes: u64, options: MkfsOptions, what: &str| {
        let dir = dir();
        let path = dir.path().join("pool");
        let error = create(&path, size_bytes, &options.sparse(true))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(what), "{error}");
        assert!(!path.exists());
    };
    let with = |mapping| MkfsOptions::default().mapping(mapping);
    refused(17 * TIB, with(Mapping::Extent), "at most 16 TiB");
    refused(9 * TIB, with(Mapping::Cuckoo), "--mapping extent");
    refused(15 * TIB, with(Mapping::Hashfs), "--mapping extent");
    let units = |bytes| MkfsOptions::default().log_unit_bytes(bytes);
    refused(3 * TIB, units(64), "at least 256");
    refused(64 << 20, units(96), "64, 128, 256, 512, 1024 or 4096");
}

//! Content that is kept on a disk of this machine.
//!
//! Protected: a slice that is there is not read from the bucket; damage there is not read at all; what is removed from
//! the pool goes there, too; nothing there is clear if the bucket has it encrypted.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_testkit::TestEngine;
use ferrite_testkit::rng::pattern;
use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

use super::bucket::{Fate, Request};
use super::{InS3, quick};
use crate::faults::pool::{put, read};

/// Counts the slices that are read from the bucket from now on.
fn count_reads(pool: &InS3) -> Arc<AtomicU64> {
    let reads = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reads);
    pool.bucket.plan(move |request| {
        counter.fetch_add(u64::from(request == Request::Get), Ordering::Relaxed);
        Fate::Done
    });
    reads
}

fn files(pool: &InS3) -> Vec<PathBuf> {
    let dir = pool.disk.as_ref().unwrap().path();
    let folders = std::fs::read_dir(dir).unwrap().map(|folder| folder.unwrap().path());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_none()).collect()
}

fn wait_for_files(pool: &InS3, count: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    while files(pool).len() != count {
        assert!(Instant::now() < until, "{:?}", files(pool));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Files are written, and listed, in the background.
fn wait_until_found(pool: &InS3) {
    let until = Instant::now() + Duration::from_secs(20);
    while pool.view().usage().disk_cached_bytes == 0 {
        assert!(Instant::now() < until, "nothing is found");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn content_that_was_read_is_on_the_disk() {
    let mut pool = InS3::logged(quick());
    let content = pattern(1, 300_000);
    put(pool.engine(), "f", 0, &content).unwrap();
    let check = |pool: &InS3, wanted: u64| {
        let reads = count_reads(pool);
        assert!(read(pool.engine(), "f").unwrap() == content);
        // One that takes long is sent twice.
        assert_eq!(reads.load(Ordering::Relaxed).min(1), wanted);
    };
    pool.remount();
    check(&pool, 1);
    wait_until_found(&pool);
    assert_eq!(pool.view().usage().disk_hits, 0);
    pool.remount();
    wait_until_found(&pool);
    check(&pool, 0);
    assert_eq!(pool.view().usage().disk_hits, 1);
    // Damage is not read, and the next reader finds the object again.
    let file = files(&pool).pop().unwrap();
    let mut object = std::fs::read(&file).unwrap();
    assert!(!object.windows(16).any(|part| part == &content[..16]), "it is clear");
    let at = object.len() / 2;
    object[at] ^= 1;
    std::fs::write(&file, &object).unwrap();
    pool.remount();
    wait_until_found(&pool);
    check(&pool, 1);
    wait_for_files(&pool, 1);
    object[at] ^= 1;
    assert!(std::fs::read(files(&pool).pop().unwrap()).unwrap() == object);
    // It goes with its slice.
    pool.engine().unlink(SYSTEM, ROOT_INO, b"f").unwrap();
    pool.engine().sync(SYSTEM).unwrap();
    wait_for_files(&pool, 0);
}

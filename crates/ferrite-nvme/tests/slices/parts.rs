//! Reads of little, and readers who share little memory: they get parts of slices.
//!
//! Protected: the bucket gets few requests for few bytes; every byte is verified; objects of another form are read as
//! before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_testkit::TestEngine;
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_vfs::{FsError, OpenFile, OpenMode, SYSTEM};

use super::bucket::{Fate, Request};
use super::{InS3, quick};
use crate::faults::pool::{open, put};

const SLICE: usize = 4 << 20;
const PART: u64 = 64 << 10;

fn read_at(file: &dyn OpenFile, offset: usize, len: usize) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0; len];
    let read = file.read_at(SYSTEM, offset as u64, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn opened(pool: &InS3, name: &str) -> Arc<dyn OpenFile> {
    let mode = OpenMode {
        read: true,
        ..OpenMode::default()
    };
    open(pool.engine(), name, mode).unwrap()
}

/// Requests to read, and the bytes that they brought, since the pool was opened.
fn received(pool: &InS3) -> (u64, u64) {
    let requests = pool.view().usage().requests;
    (requests.gets, requests.received_bytes)
}

/// A pool with one file, opened anew.
fn with_file(encrypts: bool, content: &[u8]) -> InS3 {
    let mut pool = match encrypts {
        true => InS3::encrypted(quick()),
        false => InS3::new(quick()),
    };
    put(pool.engine(), "f", 0, content).unwrap();
    pool.remount();
    pool
}

#[test]
fn reads_here_and_there_fetch_little() {
    for encrypts in [false, true] {
        let content = pattern(7, 8 * SLICE);
        let pool = with_file(encrypts, &content);
        let file = opened(&pool, "f");
        let mut rng = Rng::new(31);
        let (gets, bytes) = received(&pool);
        let reads = 40;
        for _ in 0..reads {
            let at = 1 + rng.below((content.len() - 4097) as u64) as usize;
            assert!(read_at(&*file, at, 4096).unwrap() == content[at..at + 4096], "{at}");
        }
        let (gets, bytes) = (received(&pool).0 - gets, received(&pool).1 - bytes);
        assert!(gets <= reads * 5 / 4, "{gets} requests");
        assert!(bytes <= reads * 2 * (PART + 100), "{bytes} bytes");
    }
}

/// Protects hot places: what is read again and again is fetched once, as a whole.
#[test]
fn a_slice_that_is_read_much_is_fetched_whole() {
    let content = pattern(8, SLICE);
    let pool = with_file(false, &content);
    let file = opened(&pool, "f");
    let mut rng = Rng::new(32);
    let before = received(&pool).0;
    for _ in 0..400 {
        let at = 1 + rng.below((content.len() - 1001) as u64) as usize;
        assert!(read_at(&*file, at, 1000).unwrap() == content[at..at + 1000], "{at}");
    }
    let gets = received(&pool).0 - before;
    assert!((2..=14).contains(&gets), "{gets}");
}

/// Protects the bucket: 32 readers in turn, for whom there are 32 MiB, get every byte about once.
#[test]
fn many_readers_in_order_share_little_memory() {
    const READERS: usize = 32;
    const READ: usize = 128 << 10;
    let mut pool = InS3::new(quick());
    let content = pattern(9, SLICE + SLICE / 2);
    let names: Vec<String> = (0..READERS).map(|reader| format!("f{reader}")).collect();
    for name in &names {
        put(pool.engine(), name, 0, &content).unwrap();
    }
    pool.remount();
    let files: Vec<_> = names.iter().map(|name| opened(&pool, name)).collect();
    let before = received(&pool).1;
    for at in (0..content.len()).step_by(READ) {
        for file in &files {
            assert!(read_at(&**file, at, READ).unwrap() == content[at..at + READ], "{at}");
        }
    }
    let bytes = received(&pool).1 - before;
    let all = (READERS * content.len()) as u64;
    // The first readers do not know of the others.
    assert!(bytes <= all + all / 2, "{bytes} bytes for {all}");
}

#[test]
fn readers_of_one_part_wait_for_one_request() {
    let content = pattern(10, SLICE);
    let pool = with_file(false, &content);
    let file = opened(&pool, "f");
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    pool.bucket.plan(move |request| {
        counter.fetch_add(u64::from(request == Request::Get), Ordering::Relaxed);
        Fate::Held
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (file, content) = (&*file, &content);
            scope.spawn(move || {
                let at = SLICE / 2 + 1000;
                assert!(read_at(file, at, 9000).unwrap() == content[at..at + 9000]);
            });
        }
        // Held as long as others come; one that takes long is sent twice.
        std::thread::sleep(Duration::from_millis(50));
        pool.bucket.mend();
    });
    assert!((1..=2).contains(&asked.load(Ordering::Relaxed)));
}

#[test]
fn a_damaged_part_harms_no_other() {
    let content = pattern(11, SLICE);
    let pool = with_file(false, &content);
    let (name, mut object) = pool
        .bucket
        .objects()
        .into_iter()
        .find(|object| object.1.len() > SLICE)
        .unwrap();
    let at = 20 * (PART as usize + 4) + 1000;
    object[at] ^= 1;
    pool.bucket.replace(&name, Some(object));
    let file = opened(&pool, "f");
    let part = PART as usize;
    for wanted in [1, 19 * part, 21 * part + 5] {
        assert!(read_at(&*file, wanted, 1000).unwrap() == content[wanted..wanted + 1000]);
    }
    assert!(read_at(&*file, 20 * part + 1, 1000).is_err());
    assert!(read_at(&*file, 0, SLICE).is_err());
    pool.bucket.replace(&name, None);
    assert!(read_at(&*file, 40 * part, 1000).is_err(), "a missing one");
    assert!(read_at(&*file, 1, 1000).unwrap() == content[1..1001], "what is here");
}

/// Protects pools that were compressed once: the request for a part finds another form, and reads all of it.
#[test]
fn objects_of_another_form_are_read_whole() {
    let mut content = pattern(12, SLICE);
    content[SLICE / 4..].fill(3);
    for is_short in [false, true] {
        if is_short {
            content.fill(4);
        }
        let mut pool = InS3::new(quick());
        pool.set_compression(true);
        pool.remount();
        put(pool.engine(), "f", 0, &content).unwrap();
        pool.set_compression(false);
        pool.remount();
        let file = opened(&pool, "f");
        for at in [3 * SLICE / 4, 1, SLICE - 1000] {
            assert!(read_at(&*file, at, 1000).unwrap() == content[at..at + 1000], "{at}");
        }
    }
}

/// Protects readers that come out of a hole: content behind it is on its way before they are there.
#[test]
fn content_behind_a_hole_is_fetched_ahead() {
    let mut pool = InS3::new(quick());
    let content = pattern(13, 2 * SLICE);
    put(pool.engine(), "f", 4 * SLICE as u64, &content).unwrap();
    pool.remount();
    let file = opened(&pool, "f");
    for at in (0..4 * SLICE).step_by(SLICE / 4) {
        assert!(read_at(&*file, at, SLICE / 4).unwrap().iter().all(|byte| *byte == 0));
    }
    let until = Instant::now() + Duration::from_secs(20);
    while pool.view().usage().cached_bytes < 2 * SLICE as u64 {
        assert!(Instant::now() < until, "nothing is fetched");
        std::thread::sleep(Duration::from_millis(2));
    }
    let gets = received(&pool).0;
    assert!(read_at(&*file, 4 * SLICE, 2 * SLICE).unwrap() == content);
    assert_eq!(received(&pool).0, gets);
}

/// Protects readers of many files, one after the other: they do not share the memory with themselves.
#[test]
fn a_reader_of_many_files_gets_whole_slices() {
    const FILES: usize = 24;
    let mut pool = InS3::new(quick());
    let content = pattern(14, SLICE);
    for number in 0..FILES {
        put(pool.engine(), &format!("f{number}"), 0, &content).unwrap();
    }
    pool.remount();
    let before = received(&pool).0;
    for number in 0..FILES {
        let file = opened(&pool, &format!("f{number}"));
        for at in (0..SLICE).step_by(SLICE / 32) {
            assert!(read_at(&*file, at, SLICE / 32).unwrap() == content[at..at + SLICE / 32]);
        }
    }
    let gets = received(&pool).0 - before;
    assert!(gets <= FILES as u64 * 5 / 4, "{gets} requests");
}

/// Protects near content: little reads fill the disk, and come from there.
#[test]
fn small_reads_come_from_the_disk_once_a_slice_is_there() {
    let mut pool = InS3::near(quick());
    let content = pattern(15, 2 * SLICE);
    put(pool.engine(), "f", 0, &content).unwrap();
    pool.remount();
    let check = |pool: &InS3| {
        let file = opened(pool, "f");
        let before = received(pool).0;
        for at in [SLICE / 2 + 1, SLICE + SLICE / 2 + 1] {
            assert!(read_at(&*file, at, 1000).unwrap() == content[at..at + 1000], "{at}");
        }
        received(pool).0 - before
    };
    assert!(check(&pool) >= 2);
    let until = Instant::now() + Duration::from_secs(20);
    while pool.view().usage().disk_cached_bytes < 2 * SLICE as u64 {
        assert!(Instant::now() < until, "nothing is kept");
        std::thread::sleep(Duration::from_millis(2));
    }
    pool.remount();
    while pool.view().usage().disk_cached_bytes < 2 * SLICE as u64 {
        assert!(Instant::now() < until, "nothing is found");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(check(&pool), 0);
    assert!(pool.view().usage().cached_bytes < SLICE as u64, "parts alone are read");
}

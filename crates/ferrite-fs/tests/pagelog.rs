//! Page logs from outside: the cost of unaligned writes, the results of reads and merges, and all of it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common;
use crate::common::make;
use ferrite_fs::{AtimePolicy, Engine, MountOptions, fsck, mkfs};
use ferrite_pm::{Medium, Recorder, Region};
use ferrite_vfs::{FileSystem, OpenFile, OpenMode, ROOT_INO, SYSTEM};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

const PAGE: usize = 4096;

fn seed() -> u64 {
    let seed = std::env::var("FERRITE_SEED").map_or_else(|_| rand::rng().next_u64(), |seed| seed.parse().unwrap());
    eprintln!("FERRITE_SEED={seed}");
    seed
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).merge_read_entries(0)
}

fn engine(options: &MountOptions) -> Engine {
    let region = Region::anonymous(64 << 20).unwrap();
    mkfs(&region, &common::options()).unwrap();
    Engine::mount(region, options).unwrap()
}

fn file(engine: &Engine, pages: usize) -> Arc<dyn OpenFile> {
    let file = engine
        .open(SYSTEM, make(engine, ROOT_INO, "file"), OpenMode::read_write())
        .unwrap();
    file.write_at(SYSTEM, 0, &vec![0xaa; pages * PAGE]).unwrap();
    file
}

/// A file that leaves nothing free but the reserve, and its size.
fn file_that_fills(engine: &Engine) -> (Arc<dyn OpenFile>, u64) {
    let file = file(engine, 1);
    let mut end = PAGE as u64;
    while file.write_at(SYSTEM, end, &[1; PAGE]).is_ok() {
        end += PAGE as u64;
    }
    (file, end)
}

#[test]
fn a_small_overwrite_costs_one_fence_and_a_few_lines() {
    let engine = engine(&quiet());
    let file = file(&engine, 64);
    file.write_at(SYSTEM, 100, b"warm").unwrap();
    let before = engine.counters();
    for n in 0..32 {
        file.write_at(SYSTEM, n * 4096 + 8 * n, &[1; 8]).unwrap();
    }
    let cost = engine.counters() - before;
    assert_eq!(cost.fences, 32, "one fence each");
    // A first entry comes with its segment's header: two lines, and a record of two or three.
    assert!(
        cost.bytes_streamed <= 32 * 5 * 64,
        "{} bytes streamed",
        cost.bytes_streamed
    );
}

#[test]
fn logs_grow_chain_and_are_merged() {
    let engine = engine(&quiet());
    let file = file(&engine, 2);
    let mut expected = vec![0xaa; 2 * PAGE];
    let mut rng = StdRng::seed_from_u64(seed());
    for n in 0..200_u64 {
        let len = rng.random_range(1..120);
        let at = rng.random_range(0..2 * PAGE - len);
        file.write_at(SYSTEM, at as u64, &vec![n as u8; len]).unwrap();
        expected[at..at + len].fill(n as u8);
        let mut found = vec![0; 2 * PAGE];
        file.read_at(SYSTEM, 0, &mut found).unwrap();
        assert_eq!(found, expected, "after write {n}");
    }
    // The last write may have merged both.
    file.write_at(SYSTEM, 0, &[1; 8]).unwrap();
    expected[..8].fill(1);
    let info = engine.info();
    assert!(
        info.logged_pages > 0 && info.log_bytes > 0 && info.merges.write > 0,
        "{info:?}"
    );
    let dump = engine.dump(file.ino()).unwrap();
    assert_eq!(dump.len(), 2);
    assert!(dump.iter().any(|page| !page.entries.is_empty()));
    engine.clean(100).unwrap();
    let info = engine.info();
    assert_eq!((info.logged_pages, info.log_bytes, info.log_blocks), (0, 0, 0));
    assert_eq!(info.space_amplification, 1.0);
    let mut found = vec![0; 2 * PAGE];
    file.read_at(SYSTEM, 0, &mut found).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn a_read_that_walked_far_merges_the_page() {
    let options = quiet().merge_read_entries(3);
    let engine = engine(&options);
    let file = file(&engine, 4);
    for n in 0..3 {
        file.write_at(SYSTEM, 8192 + n * 100, &[7; 10]).unwrap();
    }
    file.write_at(SYSTEM, 100, &[7; 10]).unwrap();
    let mut page = vec![0; 3 * PAGE];
    file.read_at(SYSTEM, 0, &mut page).unwrap();
    let info = engine.info();
    assert_eq!((info.merges.read, info.logged_pages), (1, 1));
    assert_eq!(page[8192 + 205], 7);
}

/// A read that finds many long logs merges them with one fence; in an ordinary file each merge has a record, and none
/// waits for a sync. The next read finds nothing to do.
#[test]
fn the_merges_of_a_read_share_a_fence() {
    const LOGGED: usize = 12;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let region = Region::create(&dir.path().join("pool"), 32 << 20).unwrap();
    mkfs(&region, &common::options()).unwrap();
    let is_on_disk = region.medium() == Medium::File;
    let options = quiet().merge_read_entries(3).atime(AtimePolicy::Never);
    let engine = Engine::mount(region, &options).unwrap();
    let file = file(&engine, LOGGED);
    for page in 0..LOGGED as u64 {
        for n in 0..3 {
            file.write_at(SYSTEM, page * PAGE as u64 + n * 100, &[n as u8 + 1; 10])
                .unwrap();
        }
    }
    let mut found = vec![0; LOGGED * PAGE];
    let mut cost = || {
        let before = engine.counters();
        file.read_at(SYSTEM, 0, &mut found).unwrap();
        let after = engine.counters();
        (after.fences - before.fences, after.file_syncs - before.file_syncs)
    };
    let first = cost();
    assert!(
        (is_on_disk || first.0 == 1) && first.1 == 0,
        "{first:?} fences and syncs"
    );
    assert_eq!(cost(), (0, 0));
    let info = engine.info();
    assert_eq!((info.merges.read, info.logged_pages), (LOGGED as u64, 0));
    assert!(
        found
            .chunks(PAGE)
            .all(|page| page[205] == 3 && page[105] == 2 && page[5] == 1)
    );
}

#[test]
fn without_logs_every_write_copies_and_reads_the_same() {
    let options = quiet().cow_only(true);
    let engine = engine(&options);
    let file = file(&engine, 2);
    file.write_at(SYSTEM, 4000, &[1; 200]).unwrap();
    assert_eq!(engine.info().logged_pages, 0);
    let mut found = [0; 200];
    file.read_at(SYSTEM, 4000, &mut found).unwrap();
    assert_eq!(found, [1; 200]);
}

/// Writers of distinct stripes, readers of all, and a thread that merges without a pause: every write is seen whole and
/// none is lost.
#[test]
fn readers_writers_and_merges_at_once() {
    const WRITERS: usize = 2;
    const PAGES: usize = 8;
    const STRIPE: usize = 64;
    let rounds: u64 = if std::env::var_os("FERRITE_SOAK").is_some() {
        200_000
    } else {
        10_000
    };
    let options = quiet().merge_read_entries(6);
    let region = Region::anonymous(64 << 20).unwrap();
    mkfs(&region, &common::options()).unwrap();
    let engine = Engine::mount(region, &options).unwrap();
    let file = file(&engine, PAGES);
    file.write_at(SYSTEM, 0, &vec![0; PAGES * PAGE]).unwrap();
    let (done, merges, seed) = (AtomicBool::new(false), AtomicU64::new(0), seed());
    let stripes = PAGES * PAGE / STRIPE;
    // The last write of each stripe's only writer; a reader may see that or something newer.
    let written: Vec<AtomicU64> = (0..stripes).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let (file, written, done, merges, engine) = (&file, &written, &done, &merges, &engine);
        let writers: Vec<_> = (0..WRITERS)
            .map(|me| {
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(seed ^ me as u64);
                    // A machine that has no core to spare for the merges gets more rounds.
                    for round in 1..=100 * rounds {
                        if round > rounds && merges.load(Ordering::Relaxed) > 0 {
                            return;
                        }
                        let stripe = rng.random_range(0..stripes / WRITERS) * WRITERS + me;
                        let bytes = round.to_le_bytes().repeat(STRIPE / 8);
                        file.write_at(SYSTEM, (stripe * STRIPE) as u64, &bytes).unwrap();
                        written[stripe].store(round, Ordering::Release);
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            let mut rng = StdRng::seed_from_u64(seed ^ 99);
            while !done.load(Ordering::Relaxed) {
                let page = rng.random_range(0..PAGES);
                let least: Vec<u64> = (0..PAGE / STRIPE)
                    .map(|n| written[page * PAGE / STRIPE + n].load(Ordering::Acquire))
                    .collect();
                let mut found = vec![0; PAGE];
                file.read_at(SYSTEM, (page * PAGE) as u64, &mut found).unwrap();
                for (stripe, least) in found.chunks(STRIPE).zip(least) {
                    let words: Vec<_> = stripe
                        .chunks(8)
                        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                        .collect();
                    assert!(words.iter().all(|&word| word == words[0]), "a torn write: {words:?}");
                    assert!(words[0] >= least, "a lost write: {} after {least}", words[0]);
                }
            }
        });
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                merges.fetch_add(engine.clean(1000).unwrap() as u64, Ordering::Relaxed);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert!(merges.into_inner() > 0, "no merge took part");
    for (stripe, last) in written.iter().enumerate() {
        let mut found = [0; 8];
        file.read_at(SYSTEM, (stripe * STRIPE) as u64, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), last.load(Ordering::Relaxed));
    }
}

/// On a pool with no free block but the reserve, small overwrites continue, by copies.
#[test]
fn a_full_pool_takes_small_overwrites() {
    let region = Region::anonymous(16 << 20).unwrap();
    mkfs(&region, &common::options()).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    let (file, end) = file_that_fills(&engine);
    let mut rng = StdRng::seed_from_u64(seed());
    for n in 0..20_000_u64 {
        file.write_at(SYSTEM, rng.random_range(0..end - 8), &n.to_le_bytes())
            .unwrap_or_else(|error| panic!("overwrite {n}: {error}"));
    }
}

/// Threads that overwrite whole pages and parts of pages of a full pool never run out of space: they wait for blocks
/// that one of them is just freeing.
#[test]
fn threads_on_a_full_pool_find_space() {
    let region = Region::anonymous(24 << 20).unwrap();
    mkfs(&region, &common::options()).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    let (file, end) = file_that_fills(&engine);
    let seed = seed();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let file = &file;
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed ^ thread);
                for n in 0..20_000 {
                    let page = rng.random_range(0..end / PAGE as u64) * PAGE as u64;
                    let len = if n % 3 == 0 { 20 } else { PAGE };
                    file.write_at(SYSTEM, page, &[n as u8; PAGE][..len])
                        .unwrap_or_else(|error| panic!("overwrite {n} of thread {thread}: {error}"));
                }
            });
        }
    });
}

/// Fsck sees a broken entry, a broken header and a broken link.
#[test]
fn fsck_names_what_is_wrong_with_a_log() {
    let blank = Region::anonymous(16 << 20).unwrap();
    mkfs(&blank, &common::options()).unwrap();
    let mut image = vec![0; 16 << 20];
    blank.read(0, &mut image);
    let recorder = Recorder::new(image.clone());
    let mut region = Region::from_image(&image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let file = file(&engine, 1);
    for n in 0..8 {
        file.write_at(SYSTEM, n * 64, &[3; 40]).unwrap();
    }
    let entries = engine.dump(file.ino()).unwrap().remove(0).entries;
    engine.unmount().unwrap();
    let sound = recorder.log().final_image();
    let check = |image: &[u8]| {
        fsck(Region::from_image(image).unwrap(), &mut |_, _, _| {})
            .unwrap()
            .findings
    };
    assert!(check(&sound).is_empty());
    let newest = &entries[0];
    let flips = [
        (newest.unit * 64 + 20, "wrong checksum"),
        (newest.segment * 64 + 16, "another page's"),
        (newest.segment * 64 + 1, "is followed by"),
    ];
    for (offset, expected) in flips {
        let mut image = sound.clone();
        image[offset as usize] ^= 1;
        let findings = check(&image);
        assert!(
            findings.iter().any(|finding| finding.what.contains(expected)),
            "byte {offset}: {findings:?}"
        );
    }
}

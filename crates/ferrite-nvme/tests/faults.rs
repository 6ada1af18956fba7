//! Devices and stores that fail, lie, stall, vanish and run full under a whole pool.
//!
//! In all cases: an error and no hang; what was acknowledged is there after opening again; files of other devices keep
//! working; the check finds the pool sound, or names the damage, and a repair mends it.

pub(crate) mod pool;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_blob::device::{Fault, Target};
use ferrite_nvme::NvmeFs;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;
use ferrite_vfs::{FsError, OpenMode, RenameMode, SYSTEM};
use pool::{Files, Pool, content, put, read, within};

const MIB: u64 = 1 << 20;
const EIO: i32 = 5;

/// Reads or writes of some bytes of a device, from the first on.
fn all_of(reads: bool, writes: bool, range: std::ops::Range<u64>) -> Target {
    Target {
        reads,
        writes,
        range,
        after: 0,
        count: u64::MAX,
    }
}

/// Random work while one fault of some kind, in some area of one device, comes after some time.
fn work_with_a_fault(seed: u64) {
    let mut rng = Rng::new(seed);
    let tears = rng.below(2) == 0;
    let pool = Pool::with(2, 24, tears, seed % 4 < 2);
    let fs = pool.open().unwrap();
    let mut files = Files::new(seed);
    let what = |step: u64| format!("FERRITE_SEED={seed}, step {step}");
    for step in 0..25 {
        files
            .step(&fs, &what(step))
            .unwrap_or_else(|error| panic!("{}: {error}", what(step)));
    }
    let areas = pool.areas();
    let range = match rng.below(6) {
        0 => areas.slots,
        1 => areas.ring,
        2 => areas.data,
        4 => areas.sums,
        3 => 0..areas.slots.start,
        _ => 0..u64::MAX,
    };
    let fault = [Fault::Error, Fault::Short, Fault::Late, Fault::Gone][rng.below(4) as usize];
    let target = Target {
        reads: rng.below(3) == 0,
        writes: true,
        range,
        after: rng.below(20),
        count: if rng.below(2) == 0 { 1 } else { u64::MAX },
    };
    let device = &pool.devices[0];
    device.plan(fault, target.clone());
    let mut failures = 0;
    for step in 25..75 {
        if step == 60 && rng.below(2) == 0 {
            device.mend();
        }
        failures += u64::from(files.step(&fs, &what(step)).is_err());
    }
    let what = format!("FERRITE_SEED={seed}: {fault:?} of {target:?}, {failures} failures");
    if rng.below(2) == 0 {
        // It may report that it could not reach a device; it ends.
        let _ = fs.close();
    }
    drop(fs);
    device.mend();
    let fs = pool.open().unwrap_or_else(|error| panic!("{what}: {error}"));
    pool::sound(&fs, &what);
    files.verify(&fs, &what);
    for step in 75..90 {
        let done = files.step(&fs, &format!("{what}, step {step}, opened again"));
        done.unwrap_or_else(|error| panic!("{what}: opened again, step {step}: {error}"));
    }
    pool::sound(&fs, &what);
    fs.close().unwrap();
    let fs = pool.open().unwrap();
    files.verify(&fs, &what);
    pool::sound(&fs, &what);
}

#[test]
fn nothing_acknowledged_is_lost_whatever_fails() {
    let seeds = match (seed_from_env(), std::env::var_os("FERRITE_SOAK")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(_)) => 0..5000,
        (None, None) => 0..150,
    };
    let limit = 300 + seeds.clone().count() as u64;
    within(Duration::from_secs(limit), move || seeds.for_each(work_with_a_fault));
}

#[test]
fn reads_that_fail_are_errors_of_their_files_only() {
    within(Duration::from_secs(60), || {
        let pool = Pool::new(2, 24, false);
        let fs = pool.open().unwrap();
        for file in 0..8 {
            put(&fs, &format!("f{file}"), 0, &content(file, 9000)).unwrap();
        }
        fs.close().unwrap();
        let areas = pool.areas();
        for range in [areas.data, areas.slots] {
            let fs = pool.open().unwrap();
            pool.devices[0].plan(Fault::Error, all_of(true, false, range));
            let mut failed = 0;
            for file in 0..8 {
                match read(&fs, &format!("f{file}")) {
                    Ok(found) => assert!(found == content(file, 9000)),
                    Err(FsError::Io(text)) => {
                        assert!(text.contains("a read failed"), "{text}");
                        failed += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(failed, 4, "half of the files are on the other device");
            pool.devices[0].mend();
            for file in 0..8 {
                assert!(read(&fs, &format!("f{file}")).unwrap() == content(file, 9000));
            }
            fs.close().unwrap();
        }
    });
}

#[test]
fn one_superblock_that_can_be_read_is_enough() {
    let pool = Pool::new(1, 24, false);
    let fs = pool.open().unwrap();
    put(&fs, "f", 0, &content(1, 9000)).unwrap();
    fs.close().unwrap();
    let end = pool.image_bytes(0);
    for range in [0..4096, end - 4096..end] {
        pool.devices[0].plan(Fault::Error, all_of(true, false, range));
        let fs = pool.open().unwrap();
        assert!(read(&fs, "f").unwrap() == content(1, 9000));
        fs.close().unwrap();
    }
}

/// A pool of which a write to file `a` has hit file `b`.
fn misdirected(checksums: bool) -> (Pool, NvmeFs) {
    let pool = Pool::with(1, 24, false, checksums);
    let fs = pool.open().unwrap();
    for (file, name) in ["a", "b"].into_iter().enumerate() {
        put(&fs, name, 0, &content(file as u64, 9000)).unwrap();
    }
    let target = Target {
        count: 1,
        ..all_of(false, true, pool.areas().data)
    };
    // Where the blobs share clusters, the next one begins 16 KiB behind.
    let distance = if checksums { MIB } else { 16 << 10 };
    pool.devices[0].plan(Fault::Misdirected(distance), target);
    put(&fs, "a", 0, &content(5, 4096)).unwrap();
    (pool, fs)
}

/// A write of data that goes elsewhere damages two files: their pages are errors, also after the next opening, and a
/// repair gives both names that say so.
#[test]
fn misdirected_data_is_found_where_data_has_checksums() {
    for closes in [false, true] {
        let (pool, fs) = misdirected(true);
        let fs = match closes {
            false => fs,
            true => {
                fs.close().unwrap();
                drop(fs);
                pool.open().unwrap()
            }
        };
        for name in ["a", "b"] {
            let error = read(&fs, name).unwrap_err();
            let said = error.to_string();
            let wanted = format!("inode {}, bytes 0 to 4095", pool::ino_of(&fs, name));
            assert!(said.contains(&wanted) && error.errno() == EIO, "{said}");
        }
        pool::sound(&fs, "structures are");
        let report = fs.check_with_data(None, &mut |_, _| {}).unwrap();
        assert_eq!((report.findings.len(), report.data_findings, report.pages), (2, 2, 6));
        // Rewritten data is right again.
        put(&fs, "b", 0, &content(1, 4096)).unwrap();
        assert!(read(&fs, "b").unwrap()[..4096] == content(1, 4096));
        let repaired = fs.repair_with_data(&mut |_, _| {}).unwrap();
        assert!(
            repaired.after.findings.is_empty() && repaired.mended.len() == 1,
            "{repaired:?}"
        );
        assert!(repaired.mended[0].loses);
        let names = pool::names_in(&fs, "lost+found");
        assert_eq!(names.len(), 1);
        assert!(names[0].starts_with("damaged-"), "{names:?}");
        assert!(read(&fs, &format!("lost+found/{}", names[0])).unwrap() == content(0, 9000));
        pool::sound(&fs, "repaired");
        fs.close().unwrap();
    }
}

/// Without checksums the check does not find it. The write hits the victim's bytes, and the intended bytes stay as they
/// were.
#[test]
fn misdirected_data_is_not_found_without_checksums() {
    let (_pool, fs) = misdirected(false);
    assert!(read(&fs, "a").unwrap() == content(0, 9000), "the old content");
    assert!(read(&fs, "b").unwrap()[..4096] == content(5, 4096), "the wrong file");
    pool::sound(&fs, "nothing tells");
    fs.close().unwrap();
}

/// Metadata of a blob that goes elsewhere damages another's: that is found when the pool is opened, the file is named,
/// and a repair leaves the others as they are.
#[test]
fn misdirected_metadata_is_found_and_mended() {
    for by in [4096, 2 * 4096, 4 * 4096, 3 * 4096] {
        let pool = Pool::new(1, 24, false);
        let fs = pool.open().unwrap();
        for file in 0..6 {
            put(&fs, &format!("f{file}"), 0, &content(file, 9000)).unwrap();
        }
        let target = Target {
            count: 1,
            ..all_of(false, true, pool.areas().slots)
        };
        pool.devices[0].plan(Fault::Misdirected(by), target);
        put(&fs, "f0", 9000, &content(0, 5000)).unwrap();
        fs.close().unwrap();
        let fs = pool.open().unwrap();
        let report = fs.check().unwrap();
        let what = format!("misdirected by {by}");
        let others: Vec<u64> = (1..6)
            .filter(|&file| read(&fs, &format!("f{file}")).ok() != Some(content(file, 9000)))
            .collect();
        let is_first_whole = read(&fs, "f0").is_ok_and(|found| found == [content(0, 9000), content(0, 5000)].concat());
        if !others.is_empty() || !is_first_whole {
            assert!(
                !report.findings.is_empty(),
                "{what}: {others:?} are wrong, and nothing is found"
            );
        }
        fs.repair().unwrap();
        fs.close().unwrap();
        let fs = pool.open().unwrap();
        pool::sound(&fs, &what);
        for file in (1..6).filter(|file| !others.contains(file)) {
            assert!(
                read(&fs, &format!("f{file}")).unwrap() == content(file, 9000),
                "{what}: f{file}"
            );
        }
        files_can_be_made(&fs, &what);
        fs.close().unwrap();
    }
}

fn files_can_be_made(fs: &ferrite_nvme::NvmeFs, what: &str) {
    for file in 20..24 {
        put(fs, &format!("new{file}"), 0, &content(file, 7000)).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    for file in 20..24 {
        assert!(
            read(fs, &format!("new{file}")).unwrap() == content(file, 7000),
            "{what}"
        );
    }
}

fn stall(time: Duration) {
    within(time * 20 + Duration::from_secs(60), move || {
        let pool = Pool::new(2, 24, false);
        let fs = pool.open().unwrap();
        for file in 0..4 {
            put(&fs, &format!("f{file}"), 0, &content(file, 9000)).unwrap();
        }
        let target = Target {
            count: 1,
            ..all_of(true, true, 0..u64::MAX)
        };
        pool.devices[0].plan(Fault::Stall(time), target);
        let start = Instant::now();
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for file in 0..4 {
                let (fs, done) = (&fs, &done);
                scope.spawn(move || {
                    put(fs, &format!("f{file}"), 9000, &content(file, 5000)).unwrap();
                    if start.elapsed() < time {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(start.elapsed() >= time, "one has waited");
        assert!(done.load(Ordering::Relaxed) >= 2, "the other device's files have not");
        for file in 0..4 {
            let want = [content(file, 9000), content(file, 5000)].concat();
            assert!(read(&fs, &format!("f{file}")).unwrap() == want);
        }
        pool::sound(&fs, "after a stall");
        fs.close().unwrap();
    });
}

#[test]
fn a_device_that_stalls_delays_its_own_files() {
    stall(Duration::from_millis(1500));
    if std::env::var_os("FERRITE_SOAK").is_some() {
        stall(Duration::from_secs(10));
    }
}

#[test]
fn a_device_that_vanishes_under_load_takes_only_its_files() {
    within(Duration::from_secs(120), || {
        let pool = Pool::new(2, 100, false);
        let fs = pool.open().unwrap();
        // Some are on each, however soon it vanishes.
        let before: Vec<u64> = (80_000..80_004).collect();
        for &number in &before {
            put(&fs, &format!("n{number}"), 0, &content(number, 6000)).unwrap();
        }
        let target = Target {
            after: 60,
            ..all_of(true, true, 0..u64::MAX)
        };
        pool.devices[0].plan(Fault::Gone, target);
        // Of each thread: the files that were acknowledged.
        let acknowledged: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let work = |thread: u64| {
                let fs = &fs;
                move || {
                    let numbers = thread * 100..thread * 100 + 18;
                    let is_done = |number: &u64| put(fs, &format!("n{number}"), 0, &content(*number, 6000)).is_ok();
                    numbers.filter(is_done).collect::<Vec<u64>>()
                }
            };
            let workers: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        // New files go where they can be stored.
        let after: Vec<u64> = (90_000..90_010).collect();
        let mut refused = 0;
        for &number in &after {
            refused += u64::from(put(&fs, &format!("n{number}"), 0, &content(number, 6000)).is_err());
        }
        assert_eq!(refused, 0, "new files do not go to a device that fails");
        let numbers: Vec<u64> = [before, acknowledged.concat(), after].concat();
        let count = |fs: &ferrite_nvme::NvmeFs| {
            let mut failed = 0;
            for &number in &numbers {
                match read(fs, &format!("n{number}")) {
                    Ok(found) => assert!(found == content(number, 6000), "n{number}"),
                    Err(FsError::Io(_)) => failed += 1,
                    Err(error) => panic!("n{number}: {error}"),
                }
            }
            failed
        };
        let gone = count(&fs);
        assert!(gone > 0, "some are on the device that vanished");
        assert!(gone < numbers.len() - 10, "the other device's files are there");
        // It ends, and reports that it could not reach the device.
        let _ = fs.close();
        drop(fs);
        let fs = pool.open_without(0).unwrap();
        assert_eq!(count(&fs), gone, "without the device");
        let report = fs.check().unwrap();
        assert!(
            report
                .findings
                .iter()
                .any(|finding| finding.what.contains("not available")),
            "{report:#?}"
        );
        put(&fs, "meanwhile", 0, &content(1, 6000)).unwrap();
        fs.close().unwrap();
        pool.devices[0].mend();
        let fs = pool.open().unwrap();
        assert_eq!(count(&fs), 0, "whole again");
        assert!(read(&fs, "meanwhile").unwrap() == content(1, 6000));
        pool::sound(&fs, "whole again");
        fs.close().unwrap();
    });
}

#[test]
fn a_full_data_store_says_so_and_gives_everything_back() {
    within(Duration::from_secs(120), || {
        for round in 0..3 {
            let pool = Pool::new(2, 12, false);
            let fs = pool.open().unwrap();
            let free = |fs: &ferrite_nvme::NvmeFs| ferrite_vfs::FileSystem::statfs(fs, SYSTEM).unwrap().blocks_free;
            let before = free(&fs);
            let mut made = Vec::new();
            let error = loop {
                let number = made.len() as u64;
                match put(&fs, &format!("f{number}"), 0, &content(number, 300_000)) {
                    Ok(()) => made.push(number),
                    Err(error) => break error,
                }
                assert!(made.len() < 100);
            };
            assert!(matches!(error, FsError::NoSpace(_)), "{error}");
            assert_eq!(free(&fs), 0, "not before the last cluster");
            // Making one longer fails as well, and changes nothing; overwriting existing content works.
            let error = put(&fs, "f0", 300_000, &content(0, 2 * MIB as usize)).unwrap_err();
            assert!(matches!(error, FsError::NoSpace(_)), "{error}");
            put(&fs, "f1", 0, &content(1, 300_000)).unwrap();
            pool::sound(&fs, "full");
            let fs = match round {
                0 => fs,
                1 => {
                    fs.close().unwrap();
                    pool.open().unwrap()
                }
                _ => {
                    drop(fs);
                    pool.open().unwrap()
                }
            };
            pool::sound(&fs, "full, opened again");
            for &number in &made {
                assert!(
                    read(&fs, &format!("f{number}")).unwrap() == content(number, 300_000),
                    "f{number}"
                );
                pool::unlink(&fs, &format!("f{number}")).unwrap();
            }
            let _ = pool::unlink(&fs, &format!("f{}", made.len()));
            ferrite_vfs::FileSystem::sync(&fs, SYSTEM).unwrap();
            assert_eq!(free(&fs), before, "everything is back");
            pool::sound(&fs, "empty");
            files_can_be_made(&fs, "empty");
            fs.close().unwrap();
        }
    });
}

/// A commit whose outcome is unknown: changes stop, reading continues, and the next opening shows the outcome.
#[test]
fn a_store_of_metadata_that_fails_stops_changes_and_loses_nothing() {
    within(Duration::from_secs(60), || {
        for is_late in [false, true] {
            let pool = Pool::new(1, 24, false);
            let fs = pool.open().unwrap();
            put(&fs, "a", 0, &content(1, 9000)).unwrap();
            pool.meta.fail(is_late);
            let error = pool::rename(&fs, "a", "b", RenameMode::Replace).unwrap_err();
            assert!(matches!(error, FsError::Io(_)), "{error}");
            pool.meta.mend();
            let error = put(&fs, "c", 0, b"more").unwrap_err();
            assert!(error.to_string().contains("changes have stopped"), "{error}");
            let _ = fs.close();
            drop(fs);
            let fs = pool.open().unwrap();
            pool::sound(&fs, "opened again");
            let (now, gone) = if is_late { ("b", "a") } else { ("a", "b") };
            assert!(read(&fs, now).unwrap() == content(1, 9000));
            assert!(matches!(read(&fs, gone), Err(FsError::NotFound)));
            fs.close().unwrap();
        }
    });
}

/// If a file was growing at a crash, its device knows more than the metadata store. If the device is missing at the
/// next opening, nothing may make the store's older state the right one.
#[test]
fn what_only_a_missing_device_knows_waits_for_it() {
    within(Duration::from_secs(60), || {
        let pool = Pool::new(1, 24, false);
        let fs = pool.open().unwrap();
        put(&fs, "f", 0, &content(1, 9000)).unwrap();
        fs.close().unwrap();
        let fs = pool.open().unwrap();
        put(&fs, "f", 9000, &content(2, 5000)).unwrap();
        drop(fs);
        let fs = pool.open_without(0).unwrap();
        pool::chmod(&fs, "f", 0o600).unwrap_err();
        pool::unlink(&fs, "f").unwrap_err();
        pool::rename(&fs, "f", "g", RenameMode::Replace).unwrap_err();
        put(&fs, "small", 0, b"small").unwrap();
        fs.close().unwrap();
        let fs = pool.open().unwrap();
        assert!(read(&fs, "f").unwrap() == [content(1, 9000), content(2, 5000)].concat());
        assert!(read(&fs, "small").unwrap() == b"small");
        pool::sound(&fs, "opened again");
        pool::chmod(&fs, "f", 0o600).unwrap();
        fs.close().unwrap();
    });
}

/// A file that is open while its device goes: each call fails, and closing the handle and the pool returns.
#[test]
fn an_open_file_of_a_lost_device_can_be_closed() {
    within(Duration::from_secs(60), || {
        let pool = Pool::new(1, 24, false);
        let fs = pool.open().unwrap();
        put(&fs, "f", 0, &content(1, 9000)).unwrap();
        let file = pool::open(
            &fs,
            "f",
            OpenMode {
                read: true,
                write: true,
                ..OpenMode::default()
            },
        )
        .unwrap();
        pool::unlink(&fs, "f").unwrap();
        pool.devices[0].plan(Fault::Gone, all_of(true, true, 0..u64::MAX));
        assert!(file.read_at(SYSTEM, 0, &mut [0; 100]).is_err());
        assert!(file.write_at(SYSTEM, 0, &[1; 100]).is_err());
        drop(file);
        let _ = fs.close();
        drop(fs);
        pool.devices[0].mend();
        let fs = pool.open().unwrap();
        pool::sound(&fs, "opened again");
        assert_eq!(fs.check().unwrap().blobs, 0, "the blob is deleted");
        fs.close().unwrap();
    });
}

#[cfg(feature = "rocksdb")]
mod full_metadata {
    use std::sync::Arc;

    use super::*;
    use ferrite_blob::device::Memory;
    use ferrite_blob::{BlobStore, FormatOptions};
    use ferrite_meta::{Backend, Options, RocksStore};

    /// Fills the metadata of a pool until it refuses, opens it again, and empties it.
    fn fill(pool: &Pool, mut open_meta: impl FnMut(bool) -> RocksStore, what: &str) {
        let store = open_meta(true);
        ferrite_nvme::format(&store, [7; 16], [9; 16], 1).unwrap();
        store.close().unwrap();
        let mut open = || pool.open_with(Box::new(open_meta(false)));
        let fs = open().unwrap();
        let mut made = 0;
        let error = loop {
            match put(&fs, &format!("f{made}"), 0, &content(made, 1500)) {
                Ok(()) => made += 1,
                Err(error) => break error,
            }
            assert!(made < 200_000, "{what}: it never fills");
        };
        assert!(matches!(error, FsError::NoSpace(_)), "{what}: {error}");
        assert!(made > 100, "{what}: {made}");
        // Changes that take no space work, and the pool closes and opens though it is full.
        pool::unlink(&fs, "f0").unwrap_or_else(|error| panic!("{what}: a full pool lets nothing be removed: {error}"));
        fs.close()
            .unwrap_or_else(|error| panic!("{what}: a full pool cannot be closed: {error}"));
        drop(fs);
        let fs = open().unwrap_or_else(|error| panic!("{what}: a full pool cannot be opened: {error}"));
        pool::sound(&fs, what);
        for number in 1..made {
            assert!(
                read(&fs, &format!("f{number}")).unwrap() == content(number, 1500),
                "{what}: f{number}"
            );
            pool::unlink(&fs, &format!("f{number}")).unwrap_or_else(|error| panic!("{what}: f{number}: {error}"));
        }
        let _ = pool::unlink(&fs, &format!("f{made}"));
        for number in 0..made / 2 {
            // On a busy machine the merges that free space may take a moment.
            let until = Instant::now() + Duration::from_secs(10);
            let again = || put(&fs, &format!("again{number}"), 0, &content(number, 1500));
            while let Err(error) = again() {
                assert!(
                    matches!(error, FsError::NoSpace(_)) && Instant::now() < until,
                    "{what}: {number} of {made} again: {error}"
                );
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        pool::sound(&fs, what);
        fs.close().unwrap();
    }

    fn options(create: bool) -> Options {
        Options {
            create,
            ..Options::default()
        }
    }

    #[test]
    fn on_blobs() {
        within(Duration::from_secs(300), || {
            let device = Arc::new(Memory::new(64 << 20));
            let identity = FormatOptions {
                store: [99; 16],
                pool: [7; 16],
                index: u16::MAX,
                checksums: false,
                shares_clusters: false,
            };
            BlobStore::format(&*device, &identity).unwrap();
            let open = |create| {
                let blobs = ferrite_nvme::MetaBlobs::open(Box::new(Arc::clone(&device))).unwrap();
                RocksStore::open(Backend::Blobs(Arc::new(blobs)), &options(create)).unwrap()
            };
            fill(&Pool::new(1, 24, false), open, "metadata on blobs");
        });
    }

    /// Unmounts a file system of memory.
    struct Mounted(tempfile::TempDir);

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0.path()).status();
        }
    }

    #[test]
    fn in_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "ferrite-test"])
            .arg(dir.path())
            .output();
        if !mounted.is_ok_and(|done| done.status.success()) {
            eprintln!("skipped: only root may mount a small file system");
            return;
        }
        let mounted = Mounted(dir);
        within(Duration::from_secs(300), move || {
            let place = mounted.0.path().join("meta");
            let open = |create| RocksStore::open(Backend::Directory(place.clone()), &options(create)).unwrap();
            fill(&Pool::new(1, 24, false), open, "metadata in a directory");
        });
    }
}

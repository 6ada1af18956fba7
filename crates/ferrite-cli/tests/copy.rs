//! Copies of pools: `ferrite copy` makes sound ones while programs write, and fsck and mount recognise other copies.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{TestPool, fails, ferrite, has_fuse, ok, text};

const MAYBE_COPIED: &str = "may be a copy that was taken while the original was mounted";

/// Writes files whose content is their number, over and over, until `stop` is set; records each number once its write
/// has returned.
fn write_on(dir: &Path, acknowledged: &AtomicU64, stop: &AtomicBool) {
    let last = fs::File::create(dir.join("last")).unwrap();
    last.write_all_at(&[0; 8], 0).unwrap();
    for n in 1u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let file = dir.join(format!("f{}", n % 16));
        let _ = fs::remove_file(&file);
        fs::write(&file, n.to_le_bytes().repeat(10_000)).unwrap();
        last.write_all_at(&n.to_le_bytes(), 0).unwrap();
        acknowledged.store(n, Ordering::SeqCst);
    }
}

/// Ends the writers, also when the test fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks that a copy is clean and sound, and holds all writes up to `acknowledged` as they were.
fn check_copy(copy: &Path, acknowledged: u64) {
    let said = ok(ferrite().arg("fsck").arg(copy));
    assert!(
        said.contains(": sound") && said.contains(" 0 records replayed"),
        "{said}"
    );
    let pool = ferrite::Fs::open(copy).unwrap();
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let last = word(&pool.read("/last").unwrap());
    assert!(last >= acknowledged, "{last} instead of {acknowledged}");
    for n in last.saturating_sub(15).max(1)..=last {
        let found = pool.read(format!("/f{}", n % 16)).unwrap_or_default();
        // The one after the last may be under way: removed, made, or written.
        if n + 15 == last && (found.is_empty() || word(&found) == last + 1) {
            continue;
        }
        assert!(found == n.to_le_bytes().repeat(10_000), "f{} is not {n}", n % 16);
    }
    assert!(pool.info().unwrap().was_clean);
    pool.close().unwrap();
}

#[test]
fn copies_of_a_busy_mount_are_sound_and_hold_what_returned() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let copy = test.scratch().join("copy");
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| write_on(&test.dir, &acknowledged, &stop));
        let mut before = 0;
        for round in 0..20 {
            // Writers continued after the previous copy.
            let start = Instant::now();
            while acknowledged.load(Ordering::SeqCst) < before + 20 {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody writes any more");
                std::thread::sleep(Duration::from_millis(5));
            }
            before = acknowledged.load(Ordering::SeqCst);
            // By the directory, and by the pool.
            let source = if round % 2 == 0 { &test.dir } else { &test.pool };
            let said = ok(ferrite().arg("copy").arg(source).arg(&copy).args(["--force", "--json"]));
            let report: serde_json::Value = serde_json::from_str(&said).unwrap();
            assert!(report["frozen_ms"].is_u64(), "{report}");
            check_copy(&copy, before);
        }
    });
    let uuid = |path: &Path| ok(ferrite().arg("info").arg(path)).lines().next().map(str::to_owned);
    assert_eq!(uuid(&copy), uuid(&test.pool));
    assert_eq!(
        fs::read_dir(test.scratch()).unwrap().count(),
        1,
        "something was left behind"
    );
    test.finish();
}

/// The same with cp: the result is not sound, or only by luck, and either way fsck and mount say what it may be.
#[test]
fn a_plain_copy_of_a_mounted_pool_is_recognised() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let copy = test.scratch().join("copy");
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| write_on(&test.dir, &acknowledged, &stop));
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(50));
            fs::copy(&test.pool, &copy).unwrap();
            let said = fails(ferrite().arg("fsck").arg(&copy), 4);
            assert!(said.contains(MAYBE_COPIED) && said.contains("ferrite copy"), "{said}");
        }
    });
    let dir = test.scratch().join("mnt");
    fs::create_dir(&dir).unwrap();
    let mount = ferrite().arg("mount").arg(&copy).arg(&dir).output().unwrap();
    assert!(text(&mount).contains(MAYBE_COPIED), "{}", text(&mount));
    // It cannot be mounted if the copy has a root that was being written.
    if mount.status.success() {
        let info = ok(ferrite().arg("info").arg(&dir));
        assert!(info.contains(MAYBE_COPIED), "{info}");
        ok(ferrite().arg("umount").arg(&dir));
    }
    // A repair accepts it, too, and then the pool is clean.
    fs::copy(&test.pool, &copy).unwrap();
    fails(ferrite().args(["fsck", "--repair"]).arg(&copy), 1);
    assert!(!ok(ferrite().arg("fsck").arg(&copy)).contains(MAYBE_COPIED));
    test.finish();
}

/// Normal events in the life of a pool: a crash, a move, a copy of a pool that is not in use.
#[test]
fn no_crash_and_no_move_looks_like_a_copy() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("16M", &[]);
    let says_nothing = |pool: &Path| {
        let fsck = ferrite().arg("fsck").arg(pool).output().unwrap();
        assert_eq!(fsck.status.code(), Some(0), "{}", text(&fsck));
        let mount = ferrite().arg("mount").arg(pool).arg(&test.dir).output().unwrap();
        assert!(mount.status.success() && text(&mount).is_empty(), "{}", text(&mount));
    };
    fs::write(test.path("f"), "content").unwrap();
    test.kill();
    says_nothing(&test.pool);
    test.kill();
    let moved = test.scratch().join("moved");
    fs::rename(&test.pool, &moved).unwrap();
    says_nothing(&moved);
    ok(ferrite().arg("umount").arg(&test.dir));
    let copy = test.scratch().join("copy");
    fs::copy(&moved, &copy).unwrap();
    says_nothing(&copy);
    ok(ferrite().arg("umount").arg(&test.dir));
    // For a crashed pool fsck cannot know; that is why it words this with care. `ferrite copy` does know.
    fs::rename(&moved, &test.pool).unwrap();
    test.mount(&[]);
    fs::write(test.path("f"), "other content").unwrap();
    test.kill();
    fs::copy(&test.pool, &copy).unwrap();
    assert!(fails(ferrite().arg("fsck").arg(&copy), 4).contains("only copied or moved after a crash"));
    let before = fs::read(&test.pool).unwrap();
    let said = ok(ferrite().arg("copy").arg(&test.pool).arg(&copy).arg("--force"));
    assert!(said.contains("records replayed"), "{said}");
    assert!(fs::read(&test.pool).unwrap() == before, "the original was changed");
    let pool = ferrite::Fs::open(&copy).unwrap();
    assert!(pool.info().unwrap().was_clean && !pool.info().unwrap().may_be_live_copy);
    assert_eq!(pool.read("/f").unwrap(), b"other content");
    pool.close().unwrap();
    test.mount(&[]);
    test.finish();
}

/// All threads of the mount are needed for reads while many wait to change something.
#[test]
fn a_frozen_mount_is_read_and_its_file_may_be_copied() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new_in(Path::new("/dev/shm"), "16M", &[], &["-o", "threads=2"]);
    fs::create_dir(test.path("d")).unwrap();
    fs::write(test.path("d/f"), "content").unwrap();
    // The kernel locks the directory of a new name until the request is answered, so the readers use other directories.
    fs::create_dir(test.path("new")).unwrap();
    ok(ferrite().arg("freeze").arg(&test.dir));
    let waits = |seconds: u64, what: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !what() {
            assert!(start.elapsed() < Duration::from_secs(seconds), "that took too long");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (dir, done) = (&test.dir, &done);
            scope.spawn(move || {
                fs::write(dir.join(format!("new/{n}")), n.to_string()).unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        // Not from the kernel's cache.
        let _ = fs::write("/proc/sys/vm/drop_caches", "2");
        assert_eq!(fs::read(test.path("d/f")).unwrap(), b"content");
        assert_eq!(fs::read_dir(test.path("d")).unwrap().count(), 1);
        assert_eq!(done.load(Ordering::SeqCst), 0, "a change went through a frozen mount");
        let info = test.info();
        assert_eq!(info["frozen"], true);
        let copy = test.scratch().join("copy");
        fs::copy(&test.pool, &copy).unwrap();
        let said = ok(ferrite().arg("fsck").arg(&copy));
        assert!(
            said.contains(": sound") && said.contains(" 0 records replayed"),
            "{said}"
        );
        assert!(fails(ferrite().arg("freeze").arg(&test.dir), 1).contains("frozen already"));
        let again = ferrite()
            .arg("copy")
            .arg(&test.dir)
            .arg(&copy)
            .arg("-f")
            .output()
            .unwrap();
        assert!(text(&again).contains("frozen already"), "{}", text(&again));
        ok(ferrite().arg("thaw").arg(&test.dir));
        waits(20, &|| done.load(Ordering::SeqCst) == 8);
    });
    assert!(fails(ferrite().arg("thaw").arg(&test.dir), 1).contains("not frozen"));
    // Without a thaw.
    ok(ferrite().arg("freeze").arg(&test.dir).args(["--timeout", "1"]));
    let start = Instant::now();
    fs::write(test.path("late"), "x").unwrap();
    let waited = start.elapsed();
    assert!(
        waited > Duration::from_millis(500) && waited < Duration::from_secs(20),
        "{waited:?}"
    );
    // A daemon that receives a signal to end first completes the waiting requests.
    ok(ferrite().arg("freeze").arg(&test.dir));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs::write(test.path("last"), "x"));
        std::thread::sleep(Duration::from_millis(200));
        let daemon = rustix::process::Pid::from_raw(test.daemon()).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
        writer.join().unwrap().unwrap();
    });
    waits(20, &|| {
        ferrite().arg("fsck").arg(&test.pool).output().unwrap().status.success()
    });
    test.mount(&[]);
    assert!(test.path("last").exists());
    test.finish();
}

#[test]
fn what_cannot_be_copied_is_refused_and_nothing_is_left_behind() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let other = TestPool::new("16M", &[]);
    let scratch = test.scratch();
    let copy = |from: &Path, to: &Path, words: &[&str]| {
        let mut command = ferrite();
        command.arg("copy").arg(from).arg(to).args(words);
        command
    };
    let to = scratch.join("copy");
    fs::write(&to, "something").unwrap();
    assert!(fails(&mut copy(&test.dir, &to, &[]), 1).contains("--force"));
    assert_eq!(fs::read(&to).unwrap(), b"something");
    for (to, why) in [
        (test.pool.as_path(), "is the pool itself"),
        (other.pool.as_path(), "in use by"),
        (&test.path("copy"), "is inside the pool to be copied"),
        (Path::new("/dev/null"), "is not a regular file"),
        (Path::new("/no/such/directory/copy"), "No such file"),
    ] {
        let said = fails(&mut copy(&test.dir, to, &["--force"]), 1);
        assert!(said.contains(why), "{said}");
    }
    assert!(fails(&mut copy(&scratch, &to, &["--force"]), 1).contains("no pool is mounted there"));
    assert!(fails(&mut copy(&to, &scratch.join("of-none"), &[]), 1).contains("not a Ferrite pool"));
    assert!(fails(&mut copy(&test.dir, &scratch.join("shared"), &["--reflink"]), 1).contains("--reflink"));
    // Interrupted, cleanly or not: no name is left, and the mount still works.
    fs::write(test.path("f"), vec![7; 40 << 20]).unwrap();
    for (round, signal) in ["INT", "KILL", "TERM", "KILL", "INT"].into_iter().enumerate() {
        let mut running = copy(&test.dir, &scratch.join("new"), &[]);
        let mut running = running.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(10 * round as u64));
        let _ = std::process::Command::new("kill")
            .args(["-s", signal, &running.id().to_string()])
            .status();
        let whole = running.wait().unwrap().success();
        let names = fs::read_dir(&scratch).unwrap().count();
        assert_eq!(names, 1 + usize::from(whole), "something was left behind by {signal}");
        let _ = fs::remove_file(scratch.join("new"));
        fs::write(test.path("g"), "goes on").unwrap();
    }
    // A copy omits zeros, even where the pool has allocated space for them.
    ok(&mut copy(&other.dir, &scratch.join("sparse"), &[]));
    let bytes = |path: &Path| fs::metadata(path).unwrap().blocks() * 512;
    assert!(bytes(&other.pool) >= 16 << 20 && bytes(&scratch.join("sparse")) < 4 << 20);
    // A directory takes the pool's name.
    ok(&mut copy(&test.dir, &scratch, &[]));
    ok(ferrite().arg("fsck").arg(scratch.join("pool")));
    test.finish();
    other.finish();
}

//! Errors on a mounted pool are reported: in the log, in syslog, by `ferrite info`.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{PAGE, TestPool, damage_block, fails, ferrite, has_fuse, ok, sh, unlike_pages};

/// Waits until a log contains a text.
fn says(log: &Path, what: &str) -> String {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        if text.contains(what) {
            return text;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "`{what}` missing in: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An unmounted pool with one damaged page of file `f`: bytes 8192 to 12287.
fn damaged_pool() -> TestPool {
    let test = TestPool::new("64M", &["--data-checksum"]);
    fs::write(test.path("f"), unlike_pages(4)).unwrap();
    test.umount();
    damage_block(&test.pool, &unlike_pages(4)[2 * PAGE..][..PAGE]);
    test
}

/// Reads the damaged page, past the kernel's cache.
fn meet_damage(test: &TestPool) {
    let file = File::open(test.path("f")).unwrap();
    let error = file.read_exact_at(&mut [0; PAGE], 2 * PAGE as u64).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
}

#[test]
fn info_shows_what_was_met_and_the_last_scrub() {
    if !has_fuse() {
        return;
    }
    let test = damaged_pool();
    test.mount(&[]);
    let info = test.info();
    assert_eq!(info["runtime_findings_total"], 0);
    assert!(info["last_scrub"].is_null() && info["failed"].is_null());
    assert!(ok(ferrite().arg("info").arg(&test.dir)).contains("none since the mount"));
    meet_damage(&test);
    let found = &test.info()["runtime_findings"][0];
    assert!(
        found["what"].as_str().unwrap().contains("bytes 8192 to 12287"),
        "{found}"
    );
    assert!(found["count"].as_u64() >= Some(1) && found["last_s"].as_i64() > Some(1_600_000_000));
    fails(ferrite().arg("scrub").arg(&test.dir), 4);
    let info = test.info();
    assert_eq!(info["last_scrub"]["findings"], 1, "{info}");
    assert_eq!(info["last_scrub"]["pages"], 4);
    assert_eq!(info["runtime_findings"].as_array().unwrap().len(), 1, "the same damage");
    assert!(info["runtime_findings_total"].as_u64() >= Some(2));
    let said = ok(ferrite().arg("info").arg(&test.dir));
    for word in ["FOUND SINCE", "bytes 8192 to 12287", "4 pages of data", "1 damaged"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    test.finish();
}

#[test]
fn a_log_has_times_and_no_colours_and_as_much_as_was_asked_for() {
    if !has_fuse() {
        return;
    }
    let test = damaged_pool();
    let log = test.scratch().join("log");
    let option = format!("scrub=1000,log={}", log.display());
    test.mount(&["-v", "-o", &option]);
    let text = says(&log, "scrub done");
    assert!(text.contains("bytes 8192 to 12287"), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    for line in text.lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        let is_time = time.len() > 20 && time.starts_with("20") && time.contains('T') && time.ends_with('Z');
        assert!(is_time && rest.trim_start().starts_with(char::is_uppercase), "{line:?}");
    }
    test.umount();
    // By the other name, after the earlier content, and without messages about normal events.
    let before = fs::read_to_string(&log).unwrap();
    test.mount(&["-o", "scrub=1000", "--log", log.to_str().unwrap()]);
    let start = Instant::now();
    while test.info()["last_scrub"].is_null() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = fs::read_to_string(&log).unwrap();
    let new = text.strip_prefix(&before).expect("a log is added to");
    assert!(new.contains("bytes 8192 to 12287") && !new.contains("INFO"), "{new}");
    test.finish();
}

#[test]
fn a_log_that_cannot_be_written_is_told_before_the_mount() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, log) = (dir.path().join("pool"), dir.path().join("nowhere/log"));
    common::mkfs(&pool, &["--size", "16M"]);
    let option = format!("log={}", log.display());
    let said = fails(
        ferrite().arg("mount").arg(&pool).arg(dir.path()).args(["-o", &option]),
        1,
    );
    assert!(said.contains("nowhere/log") && said.contains("No such file"), "{said}");
}

#[test]
fn without_a_log_syslog_is_told() {
    if !has_fuse() {
        return;
    }
    let test = damaged_pool();
    let path = test.scratch().join("syslog");
    let syslog = UnixDatagram::bind(&path).unwrap();
    syslog.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    ok(ferrite()
        .arg("mount")
        .arg(&test.pool)
        .arg(&test.dir)
        .env("FERRITE_SYSLOG", &path));
    meet_damage(&test);
    let mut packet = [0; 4096];
    let len = syslog.recv(&mut packet).unwrap();
    let text = String::from_utf8_lossy(&packet[..len]);
    let head = format!("<27>ferrite[{}]: {}: ERROR", test.daemon(), test.pool.display());
    assert!(
        text.starts_with(&head) && text.contains("bytes 8192 to 12287"),
        "{text}"
    );
    // The mount keeps working without its syslog.
    drop(syslog);
    fs::remove_file(&path).unwrap();
    fails(ferrite().arg("scrub").arg(&test.dir), 4);
    test.finish();
}

#[test]
fn a_pool_cut_short_under_a_mount_says_so() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    fs::write(test.path("f"), vec![1; 40 << 20]).unwrap();
    test.umount();
    let log = test.scratch().join("log");
    test.mount(&["--log", log.to_str().unwrap()]);
    let (daemon, open) = (
        test.daemon(),
        OpenOptions::new().read(true).write(true).open(test.path("f")).unwrap(),
    );
    let pool = OpenOptions::new().write(true).open(&test.pool).unwrap();
    pool.set_len(24 << 20).unwrap();
    let error = fs::read(test.path("f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    // Data in memory could be changed, but its durability would be unknown.
    let error = open.write_all_at(b"x", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
    assert_eq!(test.daemon(), daemon, "the daemon lives");
    let said = ok(ferrite().arg("info").arg(&test.dir));
    let line = said
        .lines()
        .find(|line| line.starts_with("READ-ONLY"))
        .unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("part of the mapping is gone"), "{line}");
    assert!(!test.info()["failed"].is_null());
    let text = says(&log, "the pool turned read-only");
    assert_eq!(text.matches("turned read-only").count(), 1, "{text}");
    drop(open);
    test.umount();
    assert!(
        sh(Path::new("/"), "cat /proc/self/mounts")
            .lines()
            .all(|line| !line.contains(test.dir.to_str().unwrap()))
    );
}

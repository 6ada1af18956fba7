//! Mounts of one server whose kernels cache its replies (`-o cache=leased`): each sees a change of the other as soon as
//! that has returned.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{TestPool, ferrite, has_fuse, ok};

const LEASED: [&str; 2] = ["-o", "cache=leased"];

/// Two mounts of a server; the second is removed when this is dropped.
struct Two {
    pool: Option<TestPool>,
    other: PathBuf,
}

impl Two {
    fn new() -> Two {
        let pool = TestPool::served("64M");
        pool.umount();
        pool.mount(&LEASED);
        let other = pool.scratch().join("other");
        fs::create_dir(&other).unwrap();
        pool.mount_on(&other, &LEASED);
        Two {
            pool: Some(pool),
            other,
        }
    }

    fn one(&self) -> &Path {
        &self.pool.as_ref().unwrap().dir
    }

    fn finish(mut self) {
        ok(ferrite().arg("umount").arg(&self.other));
        self.pool.take().unwrap().finish();
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        if self.pool.is_some() {
            let _ = ferrite().arg("umount").arg(&self.other).output();
        }
    }
}

fn is_missing(path: &Path) -> bool {
    matches!(fs::symlink_metadata(path), Err(error) if error.kind() == ErrorKind::NotFound)
}

/// Changes on one mount, and looks on the other that its kernel answered from its cache before.
#[test]
fn what_one_mount_changes_the_other_sees_at_once() {
    if !has_fuse() {
        return;
    }
    let two = Two::new();
    for (round, (here, there)) in [(two.one(), &*two.other), (&*two.other, two.one())]
        .into_iter()
        .enumerate()
    {
        let file = |base: &Path| base.join(format!("file{round}"));
        let moved = |base: &Path| base.join(format!("moved{round}"));
        // Twice each, so that the second look comes from the cache.
        let looks = |path: &Path| {
            let _ = fs::symlink_metadata(path);
            fs::symlink_metadata(path)
        };
        for turn in 0..20u32 {
            assert!(looks(&file(there)).is_err());
            fs::write(file(here), "1").unwrap();
            assert_eq!(looks(&file(there)).unwrap().len(), 1, "turn {turn}: a new file");
            fs::write(file(here), "twenty characters...").unwrap();
            assert_eq!(looks(&file(there)).unwrap().len(), 20);
            assert_eq!(fs::read(file(there)).unwrap(), b"twenty characters...");
            let opened = File::open(file(there)).unwrap();
            assert_eq!(opened.metadata().unwrap().len(), 20);
            fs::set_permissions(file(here), Permissions::from_mode(0o600 + turn % 8)).unwrap();
            assert_eq!(opened.metadata().unwrap().mode() & 0o777, 0o600 + turn % 8);
            assert_eq!(looks(&file(there)).unwrap().mode() & 0o777, 0o600 + turn % 8);
            assert!(looks(&moved(there)).is_err());
            fs::rename(file(here), moved(here)).unwrap();
            assert!(
                is_missing(&file(there)) && looks(&moved(there)).is_ok(),
                "turn {turn}: moved"
            );
            fs::hard_link(moved(here), file(here)).unwrap();
            assert_eq!(looks(&moved(there)).unwrap().nlink(), 2);
            fs::remove_file(moved(here)).unwrap();
            assert!(is_missing(&moved(there)));
            assert_eq!(looks(&file(there)).unwrap().nlink(), 1);
            fs::remove_file(file(here)).unwrap();
            assert_eq!(opened.metadata().unwrap().nlink(), 0, "turn {turn}: held open");
            fs::create_dir(file(here)).unwrap();
            assert!(looks(&file(there)).unwrap().is_dir());
            fs::write(file(here).join("inside"), "").unwrap();
            assert!(looks(&file(there).join("inside")).is_ok());
            fs::remove_file(file(here).join("inside")).unwrap();
            fs::remove_dir(file(here)).unwrap();
            assert!(is_missing(&file(there)));
        }
    }
    two.finish();
}

/// A kernel caches no names of a directory for a while after other clients changed something in it. So each case has a
/// directory of its own, whose names the kernel caches when they change.
#[test]
fn names_that_a_kernel_keeps_are_recalled() {
    if !has_fuse() {
        return;
    }
    let two = Two::new();
    let (here, there) = (two.one(), &*two.other);
    for turn in 0..20 {
        let new = |name: &str| {
            let path = format!("{name}{turn}");
            fs::create_dir(there.join(&path)).unwrap();
            for name in ["a", "b"] {
                fs::write(there.join(&path).join(name), name).unwrap();
            }
            move |base: &Path, name: &str| base.join(&path).join(name)
        };
        let look = |path: &Path| {
            let looked = fs::symlink_metadata(path).unwrap();
            assert_eq!(fs::symlink_metadata(path).unwrap().ino(), looked.ino());
            looked.ino()
        };
        let at = new("missing");
        assert!(is_missing(&at(here, "x")) && is_missing(&at(here, "x")));
        fs::write(at(there, "x"), "").unwrap();
        look(&at(here, "x"));

        let at = new("moved");
        look(&at(here, "a"));
        fs::rename(at(there, "a"), at(there, "x")).unwrap();
        assert!(is_missing(&at(here, "a")), "turn {turn}");

        let at = new("replaced");
        let (a, b) = (look(&at(here, "a")), look(&at(here, "b")));
        fs::rename(at(there, "b"), at(there, "a")).unwrap();
        assert!(a != b && look(&at(here, "a")) == b, "turn {turn}");

        // A move by the mount itself takes along the cached entries below.
        let at = new("own");
        look(&at(here, "a"));
        fs::rename(at(here, "a"), at(here, "x")).unwrap();
        fs::rename(at(there, "x"), at(there, "y")).unwrap();
        assert!(is_missing(&at(here, "x")), "turn {turn}: moved within a directory");

        let (from, to) = (new("from"), new("to"));
        look(&from(here, "a"));
        look(&to(here, "b"));
        fs::rename(from(here, "a"), to(here, "x")).unwrap();
        fs::rename(to(there, "x"), to(there, "y")).unwrap();
        assert!(is_missing(&to(here, "x")), "turn {turn}: moved to another directory");
    }
    two.finish();
}

/// Looking at an unchanged file costs the server nothing.
#[test]
fn what_is_kept_is_not_asked_for() {
    if !has_fuse() {
        return;
    }
    let two = Two::new();
    let dir = two.one().join("a/b/c");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    let path = two.other.join("a/b/c/file");
    let requests = || {
        let address = &two.pool.as_ref().unwrap().server.as_ref().unwrap().address;
        let said = ok(ferrite().args(["top", "--once", "--json"]).arg(address));
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let rows = said["operations"].as_array().unwrap();
        let counts = rows.iter().map(|row| row["requests"].as_u64().unwrap());
        counts.sum::<u64>()
    };
    let look = || {
        assert_eq!(fs::metadata(&path).unwrap().len(), 7);
        assert_eq!(fs::read(&path).unwrap(), b"content");
    };
    look();
    let before = requests();
    for _ in 0..2_000 {
        assert_eq!(fs::metadata(&path).unwrap().len(), 7);
    }
    let asked = requests() - before;
    assert!(asked < 200, "{asked} requests for 2,000 looks at one file");
    two.finish();
}

/// Both make files in one directory: the server must report each change to the other's kernel, which may itself be in
/// the middle of a change. That must not stall.
#[test]
fn two_mounts_fill_one_directory() {
    if !has_fuse() {
        return;
    }
    const EACH: usize = 300;
    let two = Two::new();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (name, base) in [("one", two.one()), ("other", &two.other)] {
            scope.spawn(move || {
                for n in 0..EACH {
                    let path = base.join(format!("{name}{n}"));
                    fs::write(&path, name).unwrap();
                    assert_eq!(fs::metadata(&path).unwrap().len() as usize, name.len());
                }
            });
        }
    });
    let took = began.elapsed();
    for base in [two.one(), &two.other] {
        let names = fs::read_dir(base).unwrap().count();
        assert_eq!(names, 2 * EACH);
    }
    assert!(took < Duration::from_secs(40), "{took:?}");
    two.finish();
}

/// After a kill and restart of the server, everything that a kernel still relies on holds.
#[test]
fn what_is_kept_holds_over_a_restart_of_the_server() {
    if !has_fuse() {
        return;
    }
    let mut two = Two::new();
    fs::write(two.one().join("file"), "1").unwrap();
    for round in 2..5u64 {
        let there = two.other.join("file");
        assert_eq!(fs::metadata(&there).unwrap().len(), round - 1);
        assert_eq!(fs::metadata(&there).unwrap().len(), round - 1);
        let server = two.pool.as_mut().unwrap().server.as_mut().unwrap();
        server.kill();
        server.start();
        fs::write(two.one().join("file"), "x".repeat(round as usize)).unwrap();
        assert_eq!(fs::metadata(&there).unwrap().len(), round, "after the server's restart");
    }
    two.finish();
}

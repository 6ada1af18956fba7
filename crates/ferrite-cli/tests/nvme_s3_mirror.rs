//! Pools in S3 whose log is on this machine and, through a mount, on another server: the loss of either, while the
//! bucket takes nothing.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{TestPool, fails, ferrite, has_fuse, ok, sh};
use crate::nvme_s3::Pool;
use ferrite_test_clusters::{S3Fault, S3Request, pause};

/// Nothing goes to the bucket before somebody asks for it.
fn tier(words: &str) -> String {
    format!("keep_s = 0\n[tier]\nsize = '64M'\nage_s = 3600\n{words}")
}

/// A pool, and another server with the second copy of its log.
struct Mirrored {
    pool: Pool,
    peer: TestPool,
}

impl Mirrored {
    fn new() -> Mirrored {
        let mirrored = Mirrored {
            pool: Pool::new(),
            peer: TestPool::served("256M"),
        };
        mirrored.describe_both();
        ok(&mut mirrored.pool.mkfs("pool.toml", &["--force"]));
        mirrored
    }

    fn describe(&self, words: &str) {
        self.pool.describe("pool.toml", "s3://bucket/pools/one", &tier(words));
    }

    fn describe_both(&self) {
        self.describe(&format!("device = 'tier'\nmirror = '{}'\n", self.copy().display()));
    }

    fn copy(&self) -> PathBuf {
        self.peer.path("home.log")
    }

    fn set_bucket(&self, takes: bool) {
        let refuses = |request: &S3Request| (request.method == "PUT").then_some(S3Fault::Refused(503, "SlowDown"));
        match takes {
            true => self.pool.service.plan(|_| None),
            false => self.pool.service.plan(refuses),
        }
    }

    fn info(&self) -> String {
        ok(ferrite().arg("info").arg(self.pool.path("mnt")))
    }

    /// Writes a file of some lines, and waits until it is durable.
    fn put(&self, name: &str, lines: u32) {
        let done = sh(
            &self.pool.path("mnt"),
            &format!("seq {lines} > {name} && sync {name} && echo synced"),
        );
        assert_eq!(done.trim(), "synced");
    }

    fn check(&self, name: &str, lines: u32) {
        sh(&self.pool.path("mnt"), &format!("cmp {name} <(seq {lines})"));
    }
}

#[test]
fn either_machine_may_be_lost() {
    if !has_fuse() {
        return;
    }
    let mirrored = Mirrored::new();
    let pool = &mirrored.pool;
    pool.mount();
    mirrored.set_bucket(false);
    mirrored.put("f", 200_000);
    let info = mirrored.info();
    assert!(info.contains("mode mirror") && info.contains("both devices"), "{info}");
    pool.kill();
    // This machine's device is lost, and nobody takes a copy for the newer one that is not.
    std::fs::rename(pool.path("tier"), pool.path("lost")).unwrap();
    mirrored.describe(&format!("device = '{}'\nmode = 'back'\n", mirrored.copy().display()));
    pool.mount();
    mirrored.check("f", 200_000);
    mirrored.put("g", 100_000);
    pool.kill();
    mirrored.describe("device = 'lost'\nmode = 'back'\n");
    let stale = fails(ferrite().arg("mount").arg(pool.address()).arg(pool.path("mnt")), 1);
    assert!(stale.contains("older copy of the log"), "{stale}");
    // A new device gets everything; then the other machine is lost.
    mirrored.describe_both();
    pool.mount();
    mirrored.put("h", 50_000);
    pool.kill();
    mirrored.describe("device = 'tier'\nmode = 'back'\n");
    pool.mount();
    for (name, lines) in [("f", 200_000), ("g", 100_000), ("h", 50_000)] {
        mirrored.check(name, lines);
    }
    mirrored.set_bucket(true);
    ok(ferrite().arg("flush").arg(pool.path("mnt")));
    pool.umount();
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
}

/// A server with the second copy that does not answer costs no writer more than ten seconds, once; what is synced then
/// is in the bucket. When it is back, the log is used again.
#[test]
fn a_silent_machine_is_passed_by_and_comes_back() {
    if !has_fuse() {
        return;
    }
    let mirrored = Mirrored::new();
    let pool = &mirrored.pool;
    pool.mount();
    mirrored.put("f", 200_000);
    assert!(pool.objects().is_empty());
    let server = mirrored.peer.server.as_ref().unwrap().id();
    // Until no thread of it runs, it may still have a copy.
    pause(server);
    let start = Instant::now();
    mirrored.put("g", 100_000);
    mirrored.put("g2", 100_000);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert!(!pool.objects().is_empty(), "nobody else has it");
    let info = mirrored.info();
    assert!(info.contains("NOT USED"), "{info}");
    pool.kill();
    // The pool can be used without it.
    pool.mount();
    assert!(mirrored.info().contains("NOT USED"));
    for (name, lines) in [("f", 200_000), ("g", 100_000), ("g2", 100_000)] {
        mirrored.check(name, lines);
    }
    ok(Command::new("kill").args(["-CONT", &server.to_string()]));
    let until = Instant::now() + Duration::from_secs(120);
    while mirrored.info().contains("NOT USED") {
        assert!(Instant::now() < until, "it stays away");
        std::thread::sleep(Duration::from_millis(300));
    }
    mirrored.set_bucket(false);
    mirrored.put("h", 50_000);
    pool.kill();
    std::fs::remove_file(pool.path("tier")).unwrap();
    mirrored.describe(&format!("device = '{}'\nmode = 'back'\n", mirrored.copy().display()));
    pool.mount();
    mirrored.check("h", 50_000);
    mirrored.set_bucket(true);
    pool.umount();
}

#[test]
fn words_that_make_no_mirror_are_refused() {
    let pool = Pool::new();
    let refuse = |words: &str, said: &str| {
        pool.describe("pool.toml", "s3://bucket/pools/one", &tier(words));
        let refused = fails(ferrite().args(["ls", &format!("{}:/", pool.address())]), 1);
        assert!(refused.contains(said), "{refused}");
    };
    refuse("device = 'tier'\nmirror = 'tier'\n", "no second device");
    refuse("device = 'tier'\nmode = 'mirror'\n", "needs `mirror = ");
    refuse(
        "device = 'tier'\nmirror = 'm'\nmode = 'back'\n",
        "no meaning in mode `back`",
    );
    assert!(!pool.path("tier").exists());
}

//! Pools whose metadata is in PostgreSQL: made, mounted, looked at and mended by the program, killed and taken over by
//! another process, and refused where the database would not do.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{fails, ferrite, has_fuse, ok, programs, sh, umount};
use ferrite_test_clusters::{Postgres, PostgresOptions, or_skip};
use tempfile::TempDir;

/// Seconds after which another process may take the pool of a killed one.
const LEASE_S: u64 = 2;

/// A database, and a pool of one file with its metadata there.
struct Pool {
    dir: TempDir,
    database: Postgres,
}

impl Pool {
    fn new() -> Option<Pool> {
        let database = or_skip(Postgres::start(&PostgresOptions::default()))?;
        let dir = tempfile::tempdir().unwrap();
        for mount in ["mnt", "other"] {
            std::fs::create_dir(dir.path().join(mount)).unwrap();
        }
        let pool = Pool { dir, database };
        pool.describe("pool.toml", "");
        ok(&mut pool.mkfs(&["--size", "64M"]));
        Some(pool)
    }

    fn describe(&self, name: &str, more: &str) {
        let connection = self.database.connection();
        let text = format!(
            "[metadata]\npostgres = '{connection}'\nvolume = 'home'\nlease_s = {LEASE_S}\n{more}\n\
             [[data]]\ndevice = 'a.data'\n"
        );
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn address(&self) -> String {
        format!("nvme:{}", self.path("pool.toml").display())
    }

    fn mkfs(&self, words: &[&str]) -> Command {
        let mut command = ferrite();
        command.args(["mkfs", &self.address()]).args(words);
        command
    }

    fn mount(&self, words: &[&str]) {
        ok(ferrite()
            .arg("mount")
            .args(words)
            .arg(self.address())
            .arg(self.path("mnt")));
    }

    /// Ends the process that serves the mount without a word.
    fn kill(&self) {
        let refused = fails(ferrite().args(["fsck", "-n", &self.address()]), 8);
        let (_, rest) = refused.split_once("process ").expect(&refused);
        let process: String = rest.chars().take_while(char::is_ascii_digit).collect();
        ok(Command::new("kill").args(["-9", &process]));
        umount(&self.path("mnt"));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for mount in ["mnt", "other"] {
            let _ = Command::new("umount").arg("-l").arg(self.path(mount)).output();
        }
    }
}

#[test]
fn a_pool_is_made_used_and_looked_at_like_any_other() {
    let Some(pool) = Pool::new() else { return };
    let again = fails(&mut pool.mkfs(&[]), 1);
    assert!(again.contains("already"), "{again}");
    let address = pool.address();
    let info = ok(ferrite().args(["info", &address]));
    assert!(info.contains("PostgreSQL, volume home"), "{info}");
    assert!(ok(ferrite().args(["fsck", &address])).contains("sound"));
    if !has_fuse() {
        return;
    }
    pool.mount(&[]);
    programs(&pool.path("mnt"), "wal");
    sh(
        &pool.path("mnt"),
        "mkdir -p d/e; seq 10000 > d/e/file; ln d/e/file d/link; mv d/e/file d/file",
    );
    ok(ferrite().arg("umount").arg(pool.path("mnt")));
    let sum = |name: &str| ok(ferrite().args(["cat", &format!("{address}:{name}")]));
    assert_eq!(sum("/d/file"), sum("/d/link"));
    for words in [
        &["df", &address][..],
        &["scrub", &address],
        &["ls", "-l", &format!("{address}:/d")],
    ] {
        ok(ferrite().args(words));
    }
    assert!(ok(ferrite().args(["fsck", &address])).contains("sound"));
    // All of it is in the database.
    let keys = pool.database.sql("select count(*) > 10 from home.pairs").unwrap();
    assert_eq!(keys, "t\n");
}

#[test]
fn a_killed_owner_keeps_the_pool_for_its_lease_and_the_next_finds_everything() {
    let Some(pool) = Pool::new() else { return };
    if !has_fuse() {
        return;
    }
    pool.mount(&[]);
    sh(
        &pool.path("mnt"),
        "mkdir d; for i in $(seq 300); do echo $i > d/$i; done; sync",
    );
    pool.kill();
    let start = Instant::now();
    let until = start + Duration::from_secs(LEASE_S + 20);
    let mut refused = 0;
    loop {
        let output = ferrite()
            .arg("mount")
            .arg(pool.address())
            .arg(pool.path("mnt"))
            .output()
            .unwrap();
        if output.status.success() {
            break;
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("owns this volume") || text.contains("in use"), "{text}");
        assert!(Instant::now() < until, "{text}");
        refused += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("taken over after {:?}, {refused} refusals", start.elapsed());
    assert_eq!(
        sh(&pool.path("mnt"), "cat d/* | sort -n | md5sum"),
        sh(&pool.path("other"), "seq 300 | md5sum")
    );
    ok(ferrite().arg("umount").arg(pool.path("mnt")));
    assert!(ok(ferrite().args(["fsck", &pool.address()])).contains("sound"));
}

#[test]
fn a_database_that_will_not_do_is_named_with_its_mend() {
    let Some(pool) = Pool::new() else { return };
    let refusals = [
        ("volume = 'home'", "volume = 'elsewhere'", "no such volume"),
        ("volume = 'home'", "volume = 'Not A Name'", "lowercase"),
        ("dbname=postgres", "dbname=nowhere", "nowhere"),
        ("user=ferrite", "user=ferrite password=hunter2", "password"),
        ("lease_s = 2", "lease_s = 0", "lease_s"),
    ];
    let text = std::fs::read_to_string(pool.path("pool.toml")).unwrap();
    for (from, to, said) in refusals {
        assert!(text.contains(from), "{text}");
        std::fs::write(pool.path("pool.toml"), text.replace(from, to)).unwrap();
        let refused = fails(ferrite().args(["info", &pool.address()]), 1);
        assert!(refused.contains(said), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
    std::fs::write(pool.path("password"), "secret\n").unwrap();
    pool.describe("pool.toml", "password_file = 'password'");
    sh(pool.dir.path(), "chmod 644 password");
    let refused = fails(ferrite().args(["info", &pool.address()]), 1);
    assert!(
        refused.contains("chmod 600") && !refused.contains("secret"),
        "{refused}"
    );
    sh(pool.dir.path(), "chmod 600 password");
    let info = ok(ferrite().args(["info", &pool.address()]));
    assert!(!info.contains("secret"), "{info}");
    pool.database.primary().stop();
    let away = fails(ferrite().args(["info", &pool.address()]), 1);
    assert!(away.contains("cannot be reached"), "{away}");
    // A pool is replaced only if nobody owns it.
    pool.database.primary().start().unwrap();
    pool.describe("pool.toml", "");
    ok(&mut pool.mkfs(&["--force"]));
    assert!(ok(ferrite().args(["fsck", &pool.address()])).contains("1 inodes"));
}

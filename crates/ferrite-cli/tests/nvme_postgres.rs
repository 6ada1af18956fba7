//! Pools whose metadata is in PostgreSQL: made, mounted, looked at and mended by the program, killed and taken over by
//! another process, and refused where the database would not do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
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
        let seen = ok(ferrite().args(["fsck", "-n", &self.address()]));
        let (_, rest) = seen.split_once("process ").expect(&seen);
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
fn a_pool_in_use_is_looked_at_from_outside_and_its_owner_does_not_notice() {
    let Some(pool) = Pool::new() else { return };
    if !has_fuse() {
        return;
    }
    let address = pool.address();
    // Another machine has a file of its own that describes the same pool, and no way to the daemon.
    std::fs::copy(pool.path("pool.toml"), pool.path("elsewhere.toml")).unwrap();
    let elsewhere = format!("nvme:{}", pool.path("elsewhere.toml").display());
    let unowned = ok(ferrite().args(["info", &elsewhere]));
    assert!(unowned.contains("none; 2 openings so far"), "{unowned}");
    pool.mount(&[]);
    sh(
        &pool.path("mnt"),
        "mkdir d; for i in $(seq 50); do echo $i > d/$i; done; sync",
    );
    let epoch = || pool.database.sql("select epoch from home.owners").unwrap();
    let before = epoch();
    for address in [&address, &elsewhere] {
        let info = ok(ferrite().args(["info", address]));
        assert!(info.contains("process ") && info.contains("s more unless"), "{info}");
    }
    let here: serde_json::Value = serde_json::from_str(&ok(ferrite().args(["info", "--json", &address]))).unwrap();
    assert!(here["ownership"]["here"]["commits"].as_u64().unwrap() >= 50, "{here}");
    let there: serde_json::Value = serde_json::from_str(&ok(ferrite().args(["info", "--json", &elsewhere]))).unwrap();
    assert_eq!(there["ownership"]["epoch"], here["ownership"]["epoch"]);
    assert_eq!(there["ownership"]["here"], serde_json::Value::Null);
    assert!(
        there["ownership"]["lease_left_ms"].as_u64().unwrap() <= 1000 * LEASE_S,
        "{there}"
    );
    // The record of the pool has the counts of the last close; the database has those of now.
    assert_eq!(
        (&there["inodes"], &there["free_bytes"]),
        (&52.into(), &serde_json::Value::Null)
    );
    let df = ok(ferrite().args(["df", &elsewhere]));
    assert!(df.contains("elsewhere") && df.contains(" - "), "{df}");
    for name in [&address, &elsewhere] {
        let checked = ok(ferrite().args(["fsck", "-n", name]));
        assert!(
            checked.contains("in use by") && checked.contains("sound; 52 inodes"),
            "{checked}"
        );
    }
    let refused = fails(ferrite().args(["fsck", "--repair", &elsewhere]), 8);
    assert!(refused.contains("owns this volume"), "{refused}");
    assert_eq!(epoch(), before, "a look took the pool");
    // A look at a changing pool names nothing that is merely newer. The loop ends in order: the children of a killed
    // shell could still change the pool.
    let more = pool.path("more");
    std::fs::write(&more, "").unwrap();
    let mut busy = Command::new("sh")
        .args(["-c", "while [ -e ../more ]; do mkdir x x/y; mv x z; rmdir z/y z; done"])
        .current_dir(pool.path("mnt"))
        .spawn()
        .unwrap();
    for _ in 0..5 {
        let checked = ok(ferrite().args(["fsck", "-n", &elsewhere]));
        assert!(checked.contains("sound"), "{checked}");
    }
    std::fs::remove_file(&more).unwrap();
    busy.wait().unwrap();
    // Damage is named while the pool is in use: the newest file that is left lost its node.
    let node = "select key from home.pairs where get_byte(key, 0) = 78 order by key desc limit 1";
    pool.database
        .sql(&format!("delete from home.pairs where key = ({node})"))
        .unwrap();
    let found = fails(ferrite().args(["fsck", "-n", &elsewhere]), 4);
    assert!(!found.contains("sound"), "{found}");
    ok(ferrite().arg("umount").arg(pool.path("mnt")));
}

/// Snapshots have the rules of any other pool, and copies share what they can.
#[test]
fn snapshots_and_copies_are_those_of_other_pools() {
    let Some(pool) = Pool::new() else { return };
    if !has_fuse() {
        return;
    }
    pool.mount(&[]);
    let mnt = pool.path("mnt");
    sh(&mnt, "head -c 5M /dev/urandom > large; cp large copy; cmp large copy");
    let shared = "select count(*) from home.pairs where get_byte(key, 0) = 82";
    assert_eq!(pool.database.sql(shared).unwrap(), "1\n", "files that share a blob");
    sh(
        &mnt,
        "mkdir d; mv copy d; mkdir -p d/.snapshots/s; echo x >> d/copy; cmp large d/.snapshots/s/copy
         ! rm d/.snapshots/s/copy 2> /dev/null; rmdir d/.snapshots/s d/.snapshots; cmp -n 5242880 large d/copy",
    );
    if rustix::process::geteuid().is_root() {
        sh(
            &mnt,
            "chmod 755 .; mkdir -m 777 own; chown nobody own
             setpriv --reuid nobody --clear-groups mkdir -p own/.snapshots/s; chmod 777 own/.snapshots
             ! setpriv --reuid daemon --clear-groups mkdir own/.snapshots/t 2> /dev/null
             ! setpriv --reuid daemon --clear-groups rmdir own/.snapshots/s 2> /dev/null
             echo secret > own/of-root; chmod 600 own/of-root
             ! setpriv --reuid nobody --clear-groups mkdir own/.snapshots/t 2> /dev/null
             setpriv --reuid nobody --clear-groups rmdir own/.snapshots/s",
        );
    }
    ok(ferrite().arg("umount").arg(&mnt));
    assert!(ok(ferrite().args(["fsck", &pool.address()])).contains("sound"));
}

#[test]
fn a_server_reports_its_pools_in_a_database_to_prometheus() {
    let Some(pool) = Pool::new() else { return };
    let mut server = ferrite()
        .args([
            "serve",
            &pool.address(),
            "--listen",
            "tcp://127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap());
    let place = loop {
        let mut line = String::new();
        assert!(said.read_line(&mut line).unwrap() > 0, "the server says of no metrics");
        if let Some(place) = line.trim().strip_prefix("metrics at http://") {
            break place.strip_suffix("/metrics").unwrap().to_owned();
        }
    };
    let mut stream = TcpStream::connect(place).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let value = |name: &str| -> f64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}{{pool=")))
            .expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("ferrite_metadata_epoch"), 3.0);
    assert!(value("ferrite_metadata_batches_total") >= 1.0);
    assert!(value("ferrite_metadata_commits_total") >= value("ferrite_metadata_batches_total"));
    let (all, longest) = (
        "ferrite_metadata_commit_seconds_total",
        "ferrite_metadata_longest_commit_seconds",
    );
    assert!(value(all) >= value(longest) && value(longest) > 0.0);
    let left = value("ferrite_metadata_lease_left_seconds");
    assert!(left > 0.0 && left <= LEASE_S as f64, "{left}");
    assert_eq!(value("ferrite_metadata_renewals_failed_total"), 0.0);
    assert!(value("ferrite_metadata_cache_bytes") <= value("ferrite_metadata_cache_limit_bytes"));
    assert!(!text.contains("user=") && !text.contains("dbname"), "{text}");
    ok(Command::new("kill").arg(server.id().to_string()));
    server.wait().unwrap();
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

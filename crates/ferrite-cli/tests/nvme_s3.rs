//! Pools whose content is in S3: made, mounted, served, looked at and mended by the program, killed and taken over by
//! another process, restored from a copy of the metadata, and refused where the service would not do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{fails, ferrite, has_fuse, ok, programs, sh, umount};
use ferrite_test_clusters::{Postgres, PostgresOptions, S3, S3Fault, S3Request, or_skip};
use serde_json::Value;
use tempfile::TempDir;

/// Seconds after which another process may take the pool of a killed one.
const LEASE_S: u64 = 2;

/// A service with a bucket, and a pool with its content there.
pub(crate) struct Pool {
    dir: TempDir,
    pub(crate) service: S3,
    database: Option<Postgres>,
}

impl Pool {
    /// With the metadata in a directory.
    pub(crate) fn new() -> Pool {
        Pool::with(None)
    }

    fn with(database: Option<Postgres>) -> Pool {
        let pool = Pool {
            dir: tempfile::tempdir().unwrap(),
            service: S3::start("bucket").unwrap(),
            database,
        };
        for mount in ["mnt", "other"] {
            std::fs::create_dir(pool.path(mount)).unwrap();
        }
        std::fs::write(pool.path("keys"), pool.service.keys()).unwrap();
        pool.describe("pool.toml", "s3://bucket/pools/one", "keep_s = 0\n");
        ok(&mut pool.mkfs("pool.toml", &[]));
        pool
    }

    pub(crate) fn describe(&self, name: &str, address: &str, more: &str) {
        let metadata = match &self.database {
            None => format!("directory = '{name}.meta'\n"),
            Some(database) => {
                let connection = database.connection();
                format!("postgres = '{connection}'\nvolume = 'home'\nlease_s = {LEASE_S}\n")
            }
        };
        let endpoint = self.service.endpoint();
        let text = format!(
            "[metadata]\n{metadata}small_files = '4K'\n\n[data]\ns3 = '{address}'\nendpoint = '{endpoint}'\n\
             region = 'us-east-1'\ncredentials = 'keys'\n{more}"
        );
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn address(&self) -> String {
        format!("nvme:{}", self.path("pool.toml").display())
    }

    pub(crate) fn mkfs(&self, name: &str, words: &[&str]) -> Command {
        let mut command = ferrite();
        command
            .arg("mkfs")
            .arg(format!("nvme:{}", self.path(name).display()))
            .args(words);
        command
    }

    pub(crate) fn mount(&self) {
        ok(ferrite().arg("mount").arg(self.address()).arg(self.path("mnt")));
    }

    pub(crate) fn umount(&self) {
        ok(ferrite().arg("umount").arg(self.path("mnt")));
    }

    /// Ends the process that serves the mount without a word.
    pub(crate) fn kill(&self) {
        let mount = self.path("mnt").display().to_string();
        ok(Command::new("pkill").args(["-9", "-f", &mount]));
        umount(&self.path("mnt"));
    }

    fn info(&self) -> Value {
        let text = ok(ferrite().args(["info", "--json", &self.address()]));
        serde_json::from_str(&text).unwrap()
    }

    /// The objects of slices.
    pub(crate) fn objects(&self) -> Vec<PathBuf> {
        fn walk(dir: &Path, into: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => walk(&entry.path(), into),
                    false => into.push(entry.path()),
                }
            }
        }
        let mut objects = Vec::new();
        walk(&self.service.folder().join("bucket/pools/one/slices"), &mut objects);
        objects.retain(|path| path.file_name().is_some_and(|name| name.len() == 16));
        objects
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
    let pool = Pool::new();
    let address = pool.address();
    let again = fails(&mut pool.mkfs("pool.toml", &[]), 1);
    assert!(again.contains("already belongs to a pool"), "{again}");
    let info = ok(ferrite().args(["info", &address]));
    assert!(info.contains("s3://bucket/pools/one"), "{info}");
    assert!(ok(ferrite().args(["doctor", &address])).contains("answers"));
    if !has_fuse() {
        return;
    }
    pool.mount();
    programs(&pool.path("mnt"), "wal");
    sh(
        &pool.path("mnt"),
        "mkdir -p d/e; seq 1000000 > d/e/file; ln d/e/file d/link; mv d/e/file d/file; cp -a d copy; rm -r copy; sync",
    );
    pool.umount();
    let cat = |name: &str| ok(ferrite().args(["cat", &format!("{address}:{name}")]));
    assert_eq!(cat("/d/file"), cat("/d/link"));
    assert_eq!(cat("/d/file").lines().count(), 1_000_000);
    for words in [
        &["df", &address][..],
        &["scrub", &address],
        &["fsck", "--data", &address],
    ] {
        ok(ferrite().args(words));
    }
    assert!(!pool.objects().is_empty());
    assert_eq!(pool.info()["s3"]["address"], "s3://bucket/pools/one");
}

#[test]
fn what_was_synced_survives_the_end_of_the_daemon() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new();
    pool.mount();
    sh(
        &pool.path("mnt"),
        "seq 2000000 > synced; sync synced; seq 3000000 > not_synced; seq 100000 >> synced",
    );
    pool.kill();
    pool.mount();
    let first = sh(
        &pool.path("mnt"),
        "head -n 2000000 synced | cmp - <(seq 2000000) && echo same",
    );
    assert_eq!(first.trim(), "same");
    // A file that was not synced has the beginning of the bytes that were written, or all of them.
    sh(
        &pool.path("mnt"),
        "size=$(stat -c %s not_synced); cmp -n $size not_synced <(seq 3000000 | head -c $size)",
    );
    sh(&pool.path("mnt"), "rm not_synced; seq 10 > synced; sync");
    pool.umount();
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
}

/// Objects of removed files go, also those that a killed process had sent and never published.
#[test]
fn nothing_is_left_in_the_bucket() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new();
    pool.mount();
    sh(
        &pool.path("mnt"),
        "for i in 1 2 3; do seq 300000 > $i; done; sync; rm 1 2; sync",
    );
    let until = Instant::now() + Duration::from_secs(60);
    while pool.objects().len() > 3 {
        assert!(Instant::now() < until, "{:?}", pool.objects());
        std::thread::sleep(Duration::from_millis(100));
    }
    pool.umount();
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
    // A stray object is found, and removed.
    let object = pool.objects().pop().unwrap();
    let stray = object
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join(format!("{:016x}", 0))
        .join(format!("{:016x}", 9));
    std::fs::create_dir_all(stray.parent().unwrap()).unwrap();
    std::fs::copy(&object, &stray).unwrap();
    let found = fails(ferrite().args(["fsck", "-n", "--data", &pool.address()]), 4);
    assert!(
        found.contains("1 objects") && found.contains("belong to nothing"),
        "{found}"
    );
    let _ = ferrite().args(["fsck", "--repair", "--data", &pool.address()]).output();
    assert!(!stray.exists());
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
}

/// Damage is an error that names the object, never other bytes.
#[test]
fn a_damaged_object_is_reported_by_readers_and_by_fsck() {
    let pool = Pool::new();
    let address = pool.address();
    let text: String = (0..100_000).map(|line| format!("{line}\n")).collect();
    std::fs::write(pool.path("text"), &text).unwrap();
    let to = format!("{address}:/f");
    ok(ferrite().arg("cp").arg(pool.path("text")).arg(&to));
    assert_eq!(ok(ferrite().args(["cat", &to])), text);
    let object = pool.objects().pop().unwrap();
    let mut bytes = std::fs::read(&object).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&object, &bytes).unwrap();
    fails(ferrite().args(["cat", &to]), 1);
    let found = fails(ferrite().args(["fsck", "-n", "--data", &address]), 4);
    assert!(found.contains("checksum"), "{found}");
    bytes[at] ^= 1;
    std::fs::write(&object, &bytes).unwrap();
    assert_eq!(ok(ferrite().args(["cat", &to])), text);
    std::fs::remove_file(&object).unwrap();
    fails(ferrite().args(["cat", &to]), 1);
    let found = fails(ferrite().args(["fsck", "-n", "--data", &address]), 4);
    assert!(found.contains("checksum"), "{found}");
}

#[test]
fn places_that_will_not_do_are_refused() {
    let pool = Pool::new();
    let refuse = |address: &str, more: &str, said: &str| {
        pool.describe("other.toml", address, more);
        let refused = fails(&mut pool.mkfs("other.toml", &[]), 1);
        assert!(refused.contains(said), "{refused}");
    };
    refuse("s3://missing/x", "", "no such bucket");
    refuse("s3://bucket/pools/one", "", "already belongs to a pool");
    refuse("s3://bucket/pools", "", "another program");
    refuse(
        "s3://bucket/x",
        "profile = 'nobody'\n",
        "no keys of the profile `nobody`",
    );
    refuse("bucket", "", "s3://BUCKET/PREFIX");
    // Another pool's prefix is not taken for this one's.
    pool.describe("second.toml", "s3://bucket/pools/two", "");
    ok(&mut pool.mkfs("second.toml", &[]));
    pool.describe("pool.toml", "s3://bucket/pools/two", "");
    let other = fails(ferrite().args(["fsck", &pool.address()]), 8);
    assert!(other.contains("belongs to another pool"), "{other}");
    pool.describe("pool.toml", "s3://bucket/pools/three", "");
    let nothing = fails(ferrite().args(["fsck", &pool.address()]), 8);
    assert!(nothing.contains("holds no content"), "{nothing}");
    let added = fails(
        ferrite().args(["mkfs", "--add", "x.data", "--size", "64M", &pool.address()]),
        1,
    );
    assert!(added.contains("no device can be added"), "{added}");
}

/// Protects what users keep secret: the service sees none of it, and nobody reads it without the key's file.
#[test]
fn encrypted_content_needs_its_key() {
    let pool = Pool::new();
    let file = |name: &str| pool.path(name).display().to_string();
    for key in ["key", "second"] {
        ok(ferrite().args(["key", &file(key)]));
    }
    let with = |key: &str| format!("compression = 'zstd'\n{key}keep_s = 0\n");
    let describe = |key: &str| pool.describe("pool.toml", "s3://bucket/pools/one", &with(key));
    describe("encryption_key = 'key'\n");
    let refused = fails(ferrite().args(["ls", &format!("{}:/", pool.address())]), 1);
    assert!(refused.contains("is not encrypted"), "{refused}");
    ok(&mut pool.mkfs("pool.toml", &["--force"]));
    let text: String = (0..100_000).map(|line| format!("confidential {line}\n")).collect();
    std::fs::write(pool.path("text"), &text).unwrap();
    let to = format!("{}:/f", pool.address());
    ok(ferrite().arg("cp").arg(pool.path("text")).arg(&to));
    let stored: Vec<u8> = pool
        .objects()
        .iter()
        .flat_map(|object| std::fs::read(object).unwrap())
        .collect();
    assert!(stored.len() < text.len() / 2, "{} of {}", stored.len(), text.len());
    assert!(!stored.windows(8).any(|part| part == b"confiden"));
    assert!(ok(ferrite().args(["cat", &to])) == text);
    assert!(ok(ferrite().args(["doctor", &pool.address()])).contains(", encrypted"));
    assert!(ok(ferrite().args(["info", &pool.address()])).contains("compressed and encrypted"));
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
    for (key, said) in [
        ("", "name the file with its key"),
        ("encryption_key = 'second'\n", "is encrypted with another key"),
        ("encryption_key = 'none'\n", "No such file"),
    ] {
        describe(key);
        let refused = fails(ferrite().args(["cat", &to]), 1);
        assert!(refused.contains(said), "{refused}");
        assert!(fails(ferrite().args(["doctor", &pool.address()]), 1).contains(said));
    }
    // The form of new content may change.
    pool.describe("pool.toml", "s3://bucket/pools/one", "encryption_key = 'key'\n");
    assert!(ok(ferrite().args(["cat", &to])) == text);
}

/// A file is written while the service refuses: `fsync` says so and loses nothing, and the file is whole afterwards.
#[test]
fn a_service_that_fails_is_waited_for() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new();
    pool.mount();
    sh(&pool.path("mnt"), "seq 100000 > f; sync f");
    pool.service
        .plan(|request| (request.method == "PUT").then_some(S3Fault::Refused(403, "ExpiredToken")));
    let failed = sh(
        &pool.path("mnt"),
        "seq 200000 | dd of=g bs=1M iflag=fullblock status=none; sync g && echo synced || echo failed",
    );
    assert!(failed.contains("failed"), "{failed}");
    assert_eq!(sh(&pool.path("mnt"), "tail -n 1 g").trim(), "200000");
    let info = ok(ferrite().arg("info").arg(pool.path("mnt")));
    assert!(info.contains("have expired"), "{info}");
    pool.service.plan(|_| None);
    let until = Instant::now() + Duration::from_secs(60);
    while sh(&pool.path("mnt"), "sync g && echo synced || echo failed").contains("failed") {
        assert!(Instant::now() < until, "it stays failed");
    }
    pool.kill();
    pool.mount();
    assert_eq!(sh(&pool.path("mnt"), "tail -n 1 g").trim(), "200000");
    pool.umount();
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
}

/// Metadata that is restored from a copy finds its content, and new content does not meet objects of the lost time.
#[test]
fn metadata_is_restored_from_a_copy() {
    let pool = Pool::new();
    pool.describe("pool.toml", "s3://bucket/pools/one", "keep_s = 3600\n");
    let address = pool.address();
    let put = |name: &str, lines: u32| {
        let text: String = (0..lines).map(|line| format!("{name} {line}\n")).collect();
        std::fs::write(pool.path("text"), &text).unwrap();
        let to = format!("{address}:/{name}");
        let _ = ferrite().args(["rm", &to]).output();
        ok(ferrite().arg("cp").arg(pool.path("text")).arg(to));
        text
    };
    let first = put("f", 50_000);
    ok(ferrite().args(["dump-meta", &address]).arg(pool.path("copy")));
    put("f", 60_000);
    put("g", 70_000);
    fails(ferrite().args(["restore-meta", &address]).arg(pool.path("copy")), 1);
    assert_eq!(ok(ferrite().args(["cat", &format!("{address}:/f")])), first);
    let second = put("h", 80_000);
    assert_eq!(ok(ferrite().args(["cat", &format!("{address}:/h")])), second);
    let _ = ferrite().args(["fsck", "--repair", "--data", &address]).output();
    ok(ferrite().args(["fsck", "--data", &address]));
    assert_eq!(ok(ferrite().args(["cat", &format!("{address}:/f")])), first);
}

/// Another process takes over the pool of a killed one, in PostgreSQL, and finds all that was synced.
#[test]
fn another_process_takes_over() {
    let Some(database) = or_skip(Postgres::start(&PostgresOptions::default())) else {
        return;
    };
    if !has_fuse() {
        return;
    }
    let pool = Pool::with(Some(database));
    pool.mount();
    sh(
        &pool.path("mnt"),
        "mkdir d; seq 500000 > d/f; sync d/f; seq 100000 > d/g",
    );
    let in_use = fails(ferrite().arg("mount").arg(pool.address()).arg(pool.path("other")), 1);
    assert!(in_use.contains("in use") || in_use.contains("owns"), "{in_use}");
    pool.kill();
    let until = Instant::now() + Duration::from_secs(30);
    let mount = || {
        ferrite()
            .arg("mount")
            .arg(pool.address())
            .arg(pool.path("other"))
            .output()
            .unwrap()
    };
    while !mount().status.success() {
        assert!(Instant::now() < until, "it is not taken over");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(sh(&pool.path("other"), "tail -n 1 d/f").trim(), "500000");
    sh(&pool.path("other"), "seq 400000 > d/f; sync");
    ok(ferrite().arg("umount").arg(pool.path("other")));
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
    ok(&mut pool.mkfs("pool.toml", &["--force"]));
    assert!(pool.objects().is_empty());
}

/// A log in a file; nothing goes to the bucket before somebody asks for it.
const TIER: &str = "keep_s = 0\n[tier]\ndevice = 'tier'\nsize = '64M'\nmode = 'back'\nage_s = 3600\n";

/// A pool with a log, and a killed daemon that has synced a file which the bucket would not take.
fn killed_with_staged_content() -> Pool {
    let pool = Pool::new();
    pool.describe("pool.toml", "s3://bucket/pools/one", TIER);
    ok(&mut pool.mkfs("pool.toml", &["--force"]));
    pool.mount();
    sh(&pool.path("mnt"), "seq 100000 > stored; seq 10000 > staged");
    ok(ferrite().arg("flush").arg(pool.path("mnt")));
    assert!(!pool.objects().is_empty());
    pool.service
        .plan(|request| (request.method == "PUT").then_some(S3Fault::Refused(403, "ExpiredToken")));
    let done = sh(
        &pool.path("mnt"),
        "seq 10001 200000 >> staged && seq 50000 > fresh && sync staged fresh && echo synced",
    );
    assert_eq!(done.trim(), "synced");
    pool.kill();
    pool
}

#[test]
fn what_a_log_has_needs_no_bucket() {
    if !has_fuse() {
        return;
    }
    let pool = killed_with_staged_content();
    assert!(ok(ferrite().args(["fsck", "--data", &pool.address()])).contains("sound"));
    pool.mount();
    assert_eq!(sh(&pool.path("mnt"), "tail -n 1 staged").trim(), "200000");
    let info = ok(ferrite().arg("info").arg(pool.path("mnt")));
    assert!(info.contains("mode back") && info.contains("staged"), "{info}");
    let staged = |info: &Value| info["s3"]["tier"]["staged_bytes"].as_u64().unwrap();
    let json = ok(ferrite().args(["info", "--json"]).arg(pool.path("mnt")));
    assert!(staged(&serde_json::from_str(&json).unwrap()) > 1_000_000, "{json}");
    pool.service.plan(|_| None);
    ok(ferrite().arg("flush").arg(pool.path("mnt")));
    pool.umount();
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
    // The log has nothing that the bucket lacks.
    pool.describe("pool.toml", "s3://bucket/pools/one", "keep_s = 0\n");
    let text = ok(ferrite().args(["cat", &format!("{}:/staged", pool.address())]));
    assert_eq!(text.lines().last(), Some("200000"));
}

/// Protects users of a server who do not know what is behind it: they see what `fsync` waits for, and the state of the
/// bucket.
#[test]
fn clients_see_the_state_of_the_bucket() {
    let pool = Pool::new();
    pool.describe("pool.toml", "s3://bucket/pools/one", TIER);
    ok(&mut pool.mkfs("pool.toml", &["--force"]));
    let mut server = Server::serving(&pool.address(), &["--no-root-squash"]);
    let top = |words: &[&str]| ok(ferrite().args(["top", "--once"]).args(words).arg(&server.address));
    assert!(top(&[]).contains("bucket: has everything"), "{}", top(&[]));
    let info = ok(ferrite().args(["info", &server.address]));
    assert!(
        info.contains("fsync waits for a log, which is lost with its device"),
        "{info}"
    );
    let content = pool.path("content");
    std::fs::write(&content, vec![7; 3_000_000]).unwrap();
    ok(ferrite().arg("cp").arg(&content).arg(server.at("/f")));
    let json: Value = serde_json::from_str(&top(&["--json"])).unwrap();
    assert_eq!(json["backlog"]["failing"], Value::Bool(false), "{json}");
    server.stop();
    assert!(!pool.objects().is_empty(), "an end publishes everything");
}

/// Protects users of a server, and of a mount of it, while the bucket answers nothing: whatever memory and the log
/// can do ends, and new clients are let in. Once each record of a session waited for the bucket, and everybody with it.
#[test]
fn users_of_a_server_work_while_the_bucket_is_silent() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new();
    pool.describe("pool.toml", "s3://bucket/pools/one", TIER);
    ok(&mut pool.mkfs("pool.toml", &["--force"]));
    let mut server = Server::serving(&pool.address(), &["--no-root-squash"]);
    let content = pool.path("content");
    std::fs::write(&content, vec![7; 3_000_000]).unwrap();
    let mnt = pool.path("mnt");
    ok(ferrite().arg("mount").arg(&server.address).arg(&mnt));
    sh(&mnt, "cp ../content stored");
    ok(ferrite().arg("flush").arg(&mnt));
    let stored = pool.objects().len();
    assert!(stored > 0);

    let deletes = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&deletes);
    pool.service.plan(move |request| {
        let is_delete = request.method == "POST" || request.method == "DELETE";
        seen.fetch_add(u32::from(is_delete), Ordering::Relaxed);
        Some(S3Fault::Silent)
    });
    let commands = [
        "cp ../content f; cmp ../content f; sync f",
        "mkdir d; mv f d/f; ln d/f d/g; chmod 600 d/g; rm d/f; truncate -s 100 d/g; sync d",
        "seq 300000 > log; sync log; rm log stored; ls -l . d; df .; stat -f .",
    ];
    for command in commands {
        sh(&mnt, command);
    }
    for _ in 0..3 {
        ok(ferrite()
            .arg("cp")
            .arg(&content)
            .arg(server.at("/d/copy"))
            .arg("--force"));
        let top = ok(ferrite().args(["top", "--once", &server.address]));
        assert!(top.contains("not there yet"), "{top}");
        ok(ferrite().arg("ls").arg(server.at("/d")));
        ok(ferrite().arg("info").arg(&server.address));
    }
    assert_eq!(pool.objects().len(), stored, "everything was done without the bucket");

    // The object of `stored` is to be deleted, and that request gets no answer either.
    let until = Instant::now() + Duration::from_secs(30);
    while deletes.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < until, "no object is deleted");
        std::thread::sleep(Duration::from_millis(50));
    }
    pool.service.plan(|_| None);
    let began = Instant::now();
    umount(&mnt);
    server.stop();
    assert!(
        began.elapsed() < Duration::from_secs(40),
        "an end waits for an unanswered request"
    );
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
}

/// Protects writers while the bucket is away: the log takes many times what memory has room for, and a killed daemon's
/// successor has all of it.
#[test]
fn the_log_has_room_for_more_than_memory() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new();
    let mnt = pool.path("mnt");
    pool.describe(
        "pool.toml",
        "s3://bucket/pools/one",
        &format!("buffer = '16M'\n{}", TIER.replace("64M", "400M")),
    );
    pool.mount();
    let refuses = |request: &S3Request| (request.method == "PUT").then_some(S3Fault::Refused(503, "SlowDown"));
    pool.service.plan(refuses);
    sh(&mnt, "seq 18000000 > f; sync f; cmp f <(seq 18000000)");
    let df = ok(ferrite().arg("df").arg(&mnt));
    assert!(df.contains("are not in the bucket yet"), "{df}");
    let placed = ok(ferrite().args(["info", "--json"]).arg(mnt.join("f")));
    let placed: Value = serde_json::from_str(&placed).unwrap();
    let bytes = |name: &str| placed["placement"][name].as_u64().unwrap();
    assert!(
        bytes("log_bytes") > 100_000_000 && bytes("stored_bytes") == 0,
        "{placed}"
    );
    pool.kill();
    pool.mount();
    sh(&mnt, "cmp f <(seq 18000000); echo more >> f; sync f");
    pool.service.plan(|_| None);
    ok(ferrite().arg("flush").arg(&mnt));
    assert!(!ok(ferrite().arg("df").arg(&mnt)).contains("not in the bucket yet"));
    pool.umount();
    ok(ferrite().args(["fsck", "--data", &pool.address()]));
}

#[test]
fn a_log_that_is_lost_is_named_and_given_up() {
    if !has_fuse() {
        return;
    }
    let pool = killed_with_staged_content();
    pool.service.plan(|_| None);
    // The server that takes over has a log of its own.
    pool.describe(
        "pool.toml",
        "s3://bucket/pools/one",
        &TIER.replace("tier'", "other.log'"),
    );
    let address = pool.address();
    let found = fails(ferrite().args(["fsck", "-n", "--data", &address]), 4);
    for said in ["entry `staged`", "entry `fresh`", "staged on", "--forget-staged"] {
        assert!(found.contains(said), "{found}");
    }
    pool.mount();
    let tried = "tail -n 1 stored; cat staged > /dev/null || echo unreadable; echo x >> staged || echo unchanged";
    let seen = sh(&pool.path("mnt"), tried);
    assert_eq!(seen, "100000\nunreadable\nunchanged\n");
    pool.umount();
    fails(ferrite().args(["fsck", "--repair", &address]), 4);
    let given_up = ok(ferrite().args(["fsck", "--forget-staged", &address]));
    assert!(given_up.contains("2 files have lost changes"), "{given_up}");
    assert_eq!(ok(ferrite().args(["cat", &format!("{address}:/fresh")])), "");
    assert_eq!(
        ok(ferrite().args(["cat", &format!("{address}:/staged")]))
            .lines()
            .last(),
        Some("10000")
    );
    // The log comes back, and is of the past.
    pool.describe("pool.toml", "s3://bucket/pools/one", TIER);
    assert_eq!(
        ok(ferrite().args(["cat", &format!("{address}:/staged")]))
            .lines()
            .last(),
        Some("10000")
    );
    ok(ferrite().args(["fsck", "--data", &address]));
    let again = fails(&mut pool.mkfs("pool.toml", &[]), 1);
    assert!(again.contains("tier") && again.contains("--force"), "{again}");
}

//! Pools whose metadata is in PostgreSQL and whose content is in Ceph: made, mounted, served, looked at and mended by
//! the program, killed and taken over by another process, restored from a backup of the database, and refused where the
//! cluster would not do.
//!
//! The tests share the two servers; each has a volume, and so a namespace, of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common::{fails, ferrite, has_fuse, ok, programs, sh, umount};
use ferrite_test_clusters::{Ceph, CephOptions, Postgres, PostgresOptions, or_skip};
use serde_json::Value;
use tempfile::TempDir;

/// Seconds after which another process may take the pool of a killed one.
const LEASE_S: u64 = 2;

struct Servers {
    database: Postgres,
    ceph: Ceph,
}

/// The servers, or `None` on machines without them. They end with this process.
fn servers() -> Option<&'static Servers> {
    static SERVERS: OnceLock<Option<Servers>> = OnceLock::new();
    let start = || {
        Some(Servers {
            database: or_skip(Postgres::start(&PostgresOptions::default()))?,
            ceph: or_skip(Ceph::start(&CephOptions {
                has_keys: true,
                ..CephOptions::default()
            }))?,
        })
    };
    SERVERS.get_or_init(start).as_ref()
}

/// A pool, and two directories to mount it on.
struct Pool {
    dir: TempDir,
    servers: &'static Servers,
}

impl Pool {
    fn new(volume: &str) -> Option<Pool> {
        let pool = Pool {
            dir: tempfile::tempdir().unwrap(),
            servers: servers()?,
        };
        for mount in ["mnt", "other"] {
            std::fs::create_dir(pool.path(mount)).unwrap();
        }
        pool.give_key(volume, r#"allow r, allow command "osd blocklist""#);
        pool.describe(volume, None);
        ok(&mut pool.mkfs(&[]));
        Some(pool)
    }

    /// Makes the client of a volume, with what the documentation says that it needs.
    fn give_key(&self, volume: &str, on_monitors: &str) {
        let ceph = &self.servers.ceph;
        let (client, on_osds) = (
            format!("client.{volume}"),
            format!("allow rwx pool={} namespace={volume}", ceph.pool()),
        );
        let words = ["auth", "get-or-create", &client, "mon", on_monitors, "osd", &on_osds];
        std::fs::write(self.path(&format!("{volume}.keyring")), ceph.command(&words).unwrap()).unwrap();
    }

    /// Writes the pool's file, with the client of the volume; or in another namespace, as the administrator.
    fn describe(&self, volume: &str, namespace: Option<&str>) {
        let (connection, ceph) = (self.servers.database.connection(), &self.servers.ceph);
        let client = match namespace {
            None => format!("client = 'client.{volume}', keyring = '{volume}.keyring'"),
            Some(namespace) => format!("client = 'client.admin', namespace = '{namespace}'"),
        };
        let text = format!(
            "[metadata]\npostgres = '{connection}'\nvolume = '{volume}'\nlease_s = {LEASE_S}\nsmall_files = '2K'\n\n\
             [data]\nrados = {{ pool = '{}', conf = '{}', {client} }}\n",
            ceph.pool(),
            ceph.conf().display()
        );
        std::fs::write(self.path("pool.toml"), text).unwrap();
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

    fn run(&self, command: &str, words: &[&str]) -> String {
        ok(ferrite().arg(command).args(words).arg(self.address()))
    }

    fn mount(&self) {
        ok(ferrite().arg("mount").arg(self.address()).arg(self.path("mnt")));
    }

    /// Mounts it as soon as the lease of a killed owner has ended.
    fn take_over(&self) {
        if let Some(refusal) = self.mount_after_the_lease() {
            panic!("{refusal}");
        }
    }

    fn is_refused_after_the_lease(&self) -> String {
        self.mount_after_the_lease().expect("it is mounted")
    }

    /// Mounts it when the lease of a killed owner has ended; returns why not.
    fn mount_after_the_lease(&self) -> Option<String> {
        let until = Instant::now() + Duration::from_secs(LEASE_S + 20);
        loop {
            let mut mount = ferrite();
            let output = mount
                .arg("mount")
                .arg(self.address())
                .arg(self.path("mnt"))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_owned = text.contains("owns this volume") || text.contains("in use");
            if output.status.success() {
                return None;
            }
            if !is_owned || Instant::now() > until {
                return Some(text);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends the process that serves the mount without a word.
    fn kill(&self) {
        // A look takes the pool from nobody, and leaves its content alone.
        let seen = ok(ferrite().args(["fsck", "-n", &self.address()]));
        assert!(seen.contains("in use by") && seen.contains("sound"), "{seen}");
        let (_, rest) = seen.split_once("process ").expect(&seen);
        let process: String = rest.chars().take_while(char::is_ascii_digit).collect();
        ok(Command::new("kill").args(["-9", &process]));
        umount(&self.path("mnt"));
    }

    fn fsck(&self) -> String {
        let said = self.run("fsck", &[]);
        assert!(said.contains("sound"), "{said}");
        said
    }

    /// The objects of a namespace, by a tool that knows nothing of Ferrite.
    fn rados(&self, namespace: &str, words: &[&str]) -> String {
        let ceph = &self.servers.ceph;
        let mut rados = Command::new("rados");
        rados
            .arg("-c")
            .arg(ceph.conf())
            .args(["-p", ceph.pool(), "-N", namespace]);
        ok(rados.args(words))
    }

    fn info(&self) -> Value {
        serde_json::from_str(&self.run("info", &["--json"])).unwrap()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for mount in ["mnt", "other"] {
            let _ = Command::new("umount").arg("-l").arg(self.path(mount)).output();
        }
    }
}

/// Files of all lengths: in the node, in one object, in several.
fn write_files(dir: &Path) {
    sh(
        dir,
        "mkdir d; for i in $(seq 40); do seq $((i * 500)) > d/$i; done
         head -c 21000000 /dev/urandom > long; cp long copy; truncate -s 9000000 copy; sync",
    );
}

/// The checksum of all files.
fn sums(dir: &Path) -> String {
    sh(dir, "find . -type f | sort | xargs md5sum")
}

#[test]
fn a_pool_is_made_used_and_looked_at_like_any_other() {
    let Some(pool) = Pool::new("whole") else { return };
    let again = fails(&mut pool.mkfs(&[]), 1);
    assert!(again.contains("already belongs to a pool"), "{again}");
    let info = pool.run("info", &[]);
    for said in [
        "Ceph pool ferrite, namespace whole",
        "PostgreSQL, volume whole",
        "client.whole",
    ] {
        assert!(info.contains(said), "{info}");
    }
    let info = pool.info();
    assert_eq!(info["ceph"]["namespace"], "whole", "{info}");
    pool.fsck();
    if !has_fuse() {
        return;
    }
    pool.mount();
    programs(&pool.path("mnt"), "wal");
    write_files(&pool.path("mnt"));
    let before = sums(&pool.path("mnt"));
    ok(ferrite().arg("umount").arg(pool.path("mnt")));
    for words in [&["df"][..], &["scrub"], &["fsck"]] {
        pool.run(words[0], &words[1..]);
    }
    let dump = ok(ferrite().args(["dump", &pool.address(), "/long"]));
    assert!(
        dump.contains("objects 0.") && dump.contains("21000000 bytes valid"),
        "{dump}"
    );
    assert!(pool.rados("whole", &["ls"]).lines().count() > 10);
    // Another process, hence another client of Ceph.
    let mut serve = ferrite();
    serve.args([
        "serve",
        &pool.address(),
        "--listen",
        "tcp://127.0.0.1:0",
        "--no-root-squash",
    ]);
    let mut served = serve.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(served.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let address = line.rsplit(' ').next().unwrap().trim().to_owned();
    ok(ferrite().arg("mount").arg(&address).arg(pool.path("other")));
    assert_eq!(sums(&pool.path("other")), before);
    ok(ferrite().arg("umount").arg(pool.path("other")));
    ok(Command::new("kill").arg(served.id().to_string()));
    assert!(served.wait().unwrap().success());
    pool.fsck();
}

#[test]
fn a_killed_owner_is_fenced_and_the_next_finds_everything() {
    let Some(pool) = Pool::new("killed") else { return };
    if !has_fuse() {
        return;
    }
    pool.mount();
    write_files(&pool.path("mnt"));
    let before = sums(&pool.path("mnt"));
    // A part of this is on its way, and nobody was promised any of it.
    let dir = pool.path("mnt");
    let mut busy = Command::new("bash");
    busy.args(["-c", "while head -c 9000000 /dev/zero > busy; do rm busy; done"])
        .current_dir(&dir);
    let mut busy = busy.stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    pool.kill();
    let _ = (busy.kill(), busy.wait());
    let entries = |servers: &Servers| {
        servers
            .ceph
            .command(&["osd", "blocklist", "ls"])
            .unwrap()
            .lines()
            .count()
    };
    let blocked = entries(pool.servers);
    let start = Instant::now();
    pool.take_over();
    println!("taken over after {:?}", start.elapsed());
    assert!(entries(pool.servers) > blocked, "the killed owner is fenced");
    sh(
        &dir,
        "rm -f busy; echo more > d/more; cp long again; cmp long again; rm d/more again",
    );
    assert_eq!(sums(&dir), before);
    ok(ferrite().arg("umount").arg(&dir));
    pool.fsck();
    assert_eq!(pool.info()["failed"], Value::Null);
}

/// A database that was restored does not know the last owners' epochs, and Ceph has content that it does not know.
#[test]
fn an_older_database_is_opened_and_what_it_lacks_is_found() {
    let Some(pool) = Pool::new("restored") else { return };
    if !has_fuse() {
        return;
    }
    pool.mount();
    write_files(&pool.path("mnt"));
    let before = sums(&pool.path("mnt"));
    ok(ferrite().arg("umount").arg(pool.path("mnt")));
    let backup = pool.path("backup.sql");
    let connection = pool.servers.database.connection();
    let connection = connection.split(" connect_timeout").next().unwrap();
    let mut dump = Command::new("pg_dump");
    ok(dump.args([connection, "--schema", "restored", "--file"]).arg(&backup));
    for round in 0..3 {
        pool.mount();
        sh(&pool.path("mnt"), &format!("head -c 5000000 /dev/zero > new{round}"));
        ok(ferrite().arg("umount").arg(pool.path("mnt")));
    }
    pool.servers.database.sql("DROP SCHEMA restored CASCADE").unwrap();
    ok(Command::new("psql").args(["-q", connection, "--file"]).arg(&backup));
    let found = fails(ferrite().args(["fsck", "-n", &pool.address()]), 4);
    assert!(found.contains("nothing names blob"), "{found}");
    pool.mount();
    assert_eq!(sums(&pool.path("mnt")), before);
    // Ids of new blobs are none of those that the database has forgotten.
    sh(
        &pool.path("mnt"),
        "for i in $(seq 20); do head -c 100000 /dev/zero > fresh$i; done; rm fresh*",
    );
    ok(ferrite().arg("umount").arg(pool.path("mnt")));
    fails(ferrite().args(["fsck", "--repair", &pool.address()]), 1);
    pool.fsck();
    let kept = ok(ferrite().args(["ls", "-l", &format!("{}:/lost+found", pool.address())]));
    assert_eq!(kept.matches("5000000").count(), 3, "{kept}");
}

#[test]
fn a_cluster_that_will_not_do_is_named_with_its_mend() {
    let Some(pool) = Pool::new("refused") else { return };
    let text = std::fs::read_to_string(pool.path("pool.toml")).unwrap();
    let refuses = |from: &str, to: &str, said: &str| {
        assert!(text.contains(from), "{text}");
        std::fs::write(pool.path("pool.toml"), text.replace(from, to)).unwrap();
        let refused = fails(ferrite().args(["info", &pool.address()]), 1);
        assert!(refused.contains(said), "{refused}");
    };
    refuses("pool = 'ferrite'", "pool = 'absent'", "Ceph pool absent does not exist");
    refuses("conf = '", "conf = '/nowhere", "does not exist");
    let own = "client = 'client.refused', keyring = 'refused.keyring'";
    refuses(
        own,
        "client = 'client.admin', namespace = 'empty'",
        "holds no content of Ferrite",
    );
    refuses("keyring =", "keys =", "unknown field `keys`");
    refuses(
        "refused.keyring",
        "absent.keyring",
        "no key of client.refused was found",
    );
    refuses("volume = 'refused'", "volume = 'absent'", "no such volume");
    let Some(other) = Pool::new("refused2") else { return };
    refuses(
        own,
        "client = 'client.admin', namespace = 'refused2'",
        "it belongs to another pool",
    );
    // A pool is made where nothing is.
    pool.describe("refused3", Some("refused2"));
    let refused = fails(&mut pool.mkfs(&[]), 1);
    assert!(refused.contains("already belongs to a pool"), "{refused}");
    other.fsck();
    pool.rados("foreign", &["create", "a.file"]);
    pool.describe("refused3", Some("foreign"));
    let refused = fails(&mut pool.mkfs(&["--force"]), 1);
    assert!(
        refused.contains("objects of another program, such as a.file"),
        "{refused}"
    );
    for (words, said) in [
        (["--size", "1G"], "quota"),
        (["--force", "--data-checksum"], "checksums of their own"),
        (["--add", "more.data"], "grows by OSDs"),
    ] {
        pool.describe("refused3", None);
        let refused = fails(&mut pool.mkfs(&words), 1);
        assert!(refused.contains(said), "{refused}");
    }
}

/// Replacing a pool removes its objects, and no others; one that is in use, or was, is not replaced by mistake.
#[test]
fn a_pool_is_replaced_only_if_it_is_asked_for_and_nobody_has_it() {
    let (Some(pool), Some(other)) = (Pool::new("replaced"), Pool::new("kept")) else {
        return;
    };
    if !has_fuse() {
        return;
    }
    other.mount();
    write_files(&other.path("mnt"));
    pool.mount();
    write_files(&pool.path("mnt"));
    // As from another machine, where no lock of the file shows it.
    std::fs::copy(pool.path("pool.toml"), pool.path("copy.toml")).unwrap();
    let copy = format!("nvme:{}", pool.path("copy.toml").display());
    let refused = fails(ferrite().args(["mkfs", "--force", &copy]), 1);
    assert!(refused.contains("owns this volume"), "{refused}");
    pool.kill();
    // The database knows no owner of this volume, but the one of `kept` works in the namespace.
    pool.describe("another", Some("kept"));
    let refused = fails(&mut pool.mkfs(&["--force"]), 1);
    assert!(refused.contains("a server of another pool has it open"), "{refused}");
    pool.describe("replaced", None);
    std::thread::sleep(Duration::from_secs(LEASE_S));
    ok(&mut pool.mkfs(&["--force"]));
    assert!(pool.fsck().contains("1 inodes"), "it is empty");
    let objects = pool.rados("replaced", &["ls"]);
    let mut objects: Vec<&str> = objects.lines().collect();
    objects.sort_unstable();
    assert_eq!(objects, ["owner.0", "pool"]);
    let sum = sums(&other.path("mnt"));
    assert_eq!(sum.lines().count(), 42);
    ok(ferrite().arg("umount").arg(other.path("mnt")));
    other.fsck();
}

/// It asks, and takes nothing: also while a pool is in use.
#[test]
fn the_doctor_looks_at_the_servers_of_a_pool() {
    let Some(pool) = Pool::new("examined") else { return };
    let check = |code: i32| {
        let output = ferrite().args(["doctor", "--json", &pool.address()]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let checks: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        move |name: &str, said: &str| {
            let mut about = checks.iter().filter(|check| check["name"] == name);
            let found = about.find(|check| check["found"].as_str().unwrap().contains(said));
            let found = found.unwrap_or_else(|| panic!("{name}: nothing about {said}: {checks:?}"));
            (
                found["state"].as_str().unwrap().to_owned(),
                found["mend"].as_str().unwrap_or_default().to_owned(),
            )
        }
    };
    let is_mounted = has_fuse();
    if is_mounted {
        pool.mount();
    }
    let found = check(0);
    let state = |name: &str, said: &str| found(name, said).0;
    assert_eq!(state("PostgreSQL", "127.0.0.1"), "good");
    assert_eq!(state("commits", "fsync = on"), "good");
    assert_eq!(state("standbys", "none"), "missing");
    assert_eq!(state("connection", "not encrypted"), "missing");
    assert_eq!(
        state("volume", if is_mounted { "owns it for" } else { "nobody owns it" }),
        "good"
    );
    assert_eq!(state("Ceph", "client.examined"), "good");
    assert_eq!(
        found("Ceph pool", "has size 1"),
        ("missing".into(), "`ceph osd pool set ferrite size 3`".into())
    );
    assert_eq!(state("Ceph pool", "has min_size 1"), "missing");
    assert_eq!(state("fencing", "may put"), "good");
    assert_eq!(state("namespace", "examined holds a pool"), "good");
    if is_mounted {
        sh(&pool.path("mnt"), "echo still > there");
        ok(ferrite().arg("umount").arg(pool.path("mnt")));
    }
    let ceph = &pool.servers.ceph;
    let on_osds = "allow rwx pool=ferrite namespace=examined";
    ceph.command(&["auth", "caps", "client.examined", "mon", "allow r", "osd", on_osds])
        .unwrap();
    let (state, mend) = check(1)("fencing", "no server can take the pool over");
    assert_eq!(state, "bad");
    if is_mounted {
        pool.mount();
        pool.kill();
        let refused = pool.is_refused_after_the_lease();
        assert!(refused.contains("allow command \"osd blocklist\""), "{refused}");
    }
    let mend = mend
        .trim_matches('`')
        .replacen("ceph ", &format!("ceph -c {} ", ceph.conf().display()), 1);
    sh(pool.dir.path(), &mend);
    assert_eq!(check(0)("fencing", "may put").0, "good");
    if is_mounted {
        pool.take_over();
        assert_eq!(sh(&pool.path("mnt"), "cat there"), "still\n");
        ok(ferrite().arg("umount").arg(pool.path("mnt")));
    }
    let text = std::fs::read_to_string(pool.path("pool.toml")).unwrap();
    std::fs::write(
        pool.path("pool.toml"),
        text.replace("pool = 'ferrite'", "pool = 'absent'"),
    )
    .unwrap();
    assert_eq!(check(1)("Ceph pool", "absent does not exist").0, "bad");
    let nowhere = text
        .replace("127.0.0.1", "127.0.0.9")
        .replace("conf = '", "conf = '/nowhere");
    std::fs::write(pool.path("pool.toml"), nowhere).unwrap();
    let found = check(1);
    assert_eq!(
        (found("PostgreSQL", "").0, found("Ceph", "does not exist").0),
        ("bad".into(), "bad".into())
    );
}

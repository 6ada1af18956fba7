//! Mounts and servers leave nothing behind, however often and however they end: sockets, temporary files, state in the
//! pool, descriptors, threads and memory of a server.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{fails, ferrite, has_fuse, mkfs, ok, sh};
use serde_json::Value;

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The socket of a pool's daemon, for root (`control.rs`).
fn socket_of(pool: &Path) -> PathBuf {
    let found = std::fs::metadata(pool).unwrap();
    PathBuf::from(format!("/run/ferrite/pool-{:x}-{:x}.sock", found.dev(), found.ino()))
}

/// Kills a mount's daemon, and removes the mount.
fn kill_mount(pool: &str, mnt: &Path) {
    let refusal = fails(ferrite().args(["fsck", "-n", pool]), 8);
    let (_, rest) = refusal.split_once("process ").expect(&refusal);
    let process: String = rest.chars().take_while(char::is_ascii_digit).collect();
    ok(Command::new("kill").args(["-9", &process]));
    ok(Command::new("umount").arg("-l").arg(mnt));
    let until = Instant::now() + Duration::from_secs(20);
    while Path::new(&format!("/proc/{process}/fd")).exists() {
        assert!(Instant::now() < until, "the daemon does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Mounts a pool again and again; `own` reports the pool's own files, without those of users.
fn mounted_for_ever(base: &Path, address: &str, file: &Path, own: impl Fn() -> (usize, u64)) {
    let (mnt, scratch) = (base.join("mnt"), base.join("scratch"));
    for dir in [&mnt, &scratch] {
        std::fs::create_dir(dir).unwrap();
    }
    let mut before = (0, 0);
    for cycle in 0..12 {
        ok(ferrite().env("TMPDIR", &scratch).arg("mount").arg(address).arg(&mnt));
        sh(&mnt, "seq 9000 > a; seq 10 > b; rm -f c; cp a c; rm c");
        match cycle % 4 {
            3 => kill_mount(address, &mnt),
            _ => drop(ok(ferrite().arg("umount").arg(&mnt))),
        }
        if cycle == 4 {
            before = own();
        }
        let now = own();
        let is_bounded = cycle < 4 || now.0 <= before.0 + 4 && now.1 <= before.1 + (8 << 20);
        assert!(is_bounded, "{address}, cycle {cycle}: {now:?}, before {before:?}");
    }
    ok(ferrite().arg("mount").arg(address).arg(&mnt));
    assert!(socket_of(file).exists(), "the test knows where sockets are");
    ok(ferrite().arg("umount").arg(&mnt));
    let until = Instant::now() + Duration::from_secs(10);
    while socket_of(file).exists() {
        assert!(Instant::now() < until, "{address}: the socket stays");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        names_in(&scratch),
        [""; 0],
        "{address}: left in the directory for temporary files"
    );
    assert!(ok(ferrite().args(["fsck", address])).contains("sound"));
}

#[test]
fn mounts_leave_nothing_behind() {
    if !has_fuse() {
        return;
    }
    let base = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = base.path().join("pool");
    mkfs(&pool, &["--size", "32M"]);
    mounted_for_ever(base.path(), &pool.display().to_string(), &pool, || (1, 0));
    assert_eq!(names_in(base.path()), ["mnt", "pool", "scratch"]);
}

#[cfg(feature = "nvme")]
#[test]
fn mounts_of_pools_on_devices_leave_nothing_behind() {
    if !has_fuse() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let description = base.path().join("pool.toml");
    let text = "[metadata]\ndirectory = 'meta'\n[[data]]\ndevice = 'a.data'\n";
    std::fs::write(&description, text).unwrap();
    let address = format!("nvme:{}", description.display());
    ok(ferrite().args(["mkfs", "--size", "64M", &address]));
    let meta = base.path().join("meta");
    let own = || {
        let sizes = names_in(&meta).into_iter();
        let sizes = sizes.map(|name| std::fs::metadata(meta.join(name)).map_or(0, |found| found.len()));
        sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
    };
    mounted_for_ever(base.path(), &address, &description, own);
    assert_eq!(names_in(base.path()), ["a.data", "meta", "mnt", "pool.toml", "scratch"]);
}

fn number(info: &Value, name: &str) -> i64 {
    info[name].as_i64().unwrap_or_else(|| panic!("{name} in: {info}"))
}

/// Descriptors, threads and KiB of memory of a process.
fn taken_by(process: u32) -> (usize, usize, u64) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{process}/{what}")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib = line.trim().trim_end_matches("kB").trim().parse().unwrap();
    (count("fd"), count("task"), kib)
}

/// Clients that end their session, and some that are killed while they work.
fn visit(server: &Server, clients: usize) {
    for client in 0..clients {
        ok(ferrite().arg("ls").arg(server.at("/")));
        if client % 5 == 0 {
            let mut killed: Child = ferrite()
                .arg("cp")
                .arg("/dev/zero")
                .arg(server.at("/zeros"))
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(30));
            killed.kill().unwrap();
            killed.wait().unwrap();
            // A copy has a temporary name until it is whole; a killed one leaves it.
            for name in ok(ferrite().arg("ls").arg("-a").arg(server.at("/"))).lines() {
                if name.starts_with(".ferrite-cp-") {
                    ok(ferrite().arg("rm").arg(server.at(&format!("/{name}"))));
                }
            }
        }
    }
}

#[test]
fn a_server_forgets_its_clients() {
    let mut server = Server::new("64M", &["--no-root-squash"]);
    // On a busy machine a copy may be killed before it has made its file.
    ok(ferrite().arg("cp").arg("/dev/null").arg(server.at("/zeros")));
    visit(&server, 10);
    let before = taken_by(server.id());
    visit(&server, 60);
    let now = taken_by(server.id());
    let is_bounded = now.0 <= before.0 + 12 && now.1 <= before.1 + 4 && now.2 <= before.2 + (16 << 10);
    assert!(is_bounded, "{now:?}, before {before:?}");
    // Nor do its restarts leave anything in the pool. A killed client's file stays for the lease of its session, though
    // it has no name any more: an orderly stop ends no session.
    let mut free = None;
    for cycle in 0..10_i64 {
        match cycle % 2 {
            0 => server.kill(),
            _ => server.stop(),
        }
        let info: Value = serde_json::from_str(&ok(ferrite().args(["info", "--json"]).arg(&server.pool))).unwrap();
        let now = number(&info, "inodes_free");
        assert!(
            free.is_none_or(|free| now + cycle >= free),
            "cycle {cycle}: {now} inodes free, before {free:?}"
        );
        free = free.or(Some(now));
        server.start();
        visit(&server, 3);
    }
    server.stop();
    assert!(ok(ferrite().arg("fsck").arg(&server.pool)).contains("sound"));
    // An opening without a server before it frees them.
    drop(ferrite::Fs::open(&server.pool).unwrap());
    let info: Value = serde_json::from_str(&ok(ferrite().args(["info", "--json"]).arg(&server.pool))).unwrap();
    assert!(Some(number(&info, "inodes_free")) >= free, "before {free:?}: {info}");
    let base = server.pool.parent().unwrap();
    assert_eq!(names_in(base), ["pool"]);
}

//! Pools on devices, which are files here: made, mounted, killed, served, checked; refusals, and their messages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{fails, ferrite, has_fuse, ok, sh};
use tempfile::TempDir;

/// A pool of two devices, and a directory to mount it on.
struct Pool {
    dir: TempDir,
}

impl Pool {
    fn new(size: &str) -> Pool {
        Pool::with(size, &[])
    }

    fn with(size: &str, more: &[&str]) -> Pool {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        let pool = Pool { dir };
        let args = [
            "mkfs",
            "nvme:pool.toml",
            "--meta",
            "meta",
            "--data",
            "a.data",
            "--data",
            "b.data",
        ];
        ok(ferrite()
            .current_dir(pool.dir.path())
            .args(args)
            .args(["--size", size])
            .args(more));
        pool
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn address(&self) -> String {
        format!("nvme:{}", self.path("pool.toml").display())
    }

    fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    fn mount(&self) {
        ok(ferrite().arg("mount").arg(self.address()).arg(self.mnt()));
    }

    fn umount(&self) {
        ok(ferrite().arg("umount").arg(self.mnt()));
    }

    fn fsck(&self) -> String {
        ok(ferrite().args(["fsck", &self.address()]))
    }

    /// Kills the mount's daemon, and removes the dead mount.
    fn kill(&self) {
        let daemon = daemon_of(&self.mnt());
        ok(Command::new("kill").args(["-9", &daemon.to_string()]));
        ok(Command::new("umount").arg("-l").arg(self.mnt()));
        // Its locks end with it, which takes moments.
        let start = Instant::now();
        while Path::new(&format!("/proc/{daemon}/fd")).exists() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.mnt()).output();
    }
}

/// The process that serves a mount.
fn daemon_of(dir: &Path) -> u32 {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(words) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let mut words = words.split(|&byte| byte == 0);
        let dir = dir.as_os_str().as_encoded_bytes();
        if words.clone().any(|word| word == b"mount") && words.any(|word| word == dir) {
            return entry.file_name().to_str().unwrap().parse().unwrap();
        }
    }
    panic!("nobody serves {}", dir.display());
}

#[test]
fn files_are_there_after_a_mount_and_another() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new("192M");
    pool.mount();
    sh(
        &pool.mnt(),
        "mkdir -p a/b; seq 100000 > a/numbers; printf small > a/b/small; ln a/numbers hard; ln -s a/numbers soft
         truncate -s 3G sparse; printf end | dd of=sparse bs=1 seek=3000000000 conv=notrunc status=none
         setfattr -n user.k -v v a/numbers; mkfifo pipe; md5sum a/numbers > sums",
    );
    assert!(ok(ferrite().arg("df").arg(pool.mnt())).contains("ok"));
    let live = fails(ferrite().args(["fsck", &pool.address()]), 8);
    assert!(live.contains("in use by process"), "{live}");
    pool.umount();
    assert!(pool.fsck().contains("sound"));
    pool.mount();
    let said = sh(
        &pool.mnt(),
        "md5sum -c sums; cat a/b/small; stat -c %h hard; readlink soft
         dd if=sparse bs=1 skip=3000000000 count=3 status=none; getfattr -n user.k --only-values a/numbers; du -k sparse",
    );
    for part in ["a/numbers: OK", "small2\na/numbers\nendv"] {
        assert!(said.contains(part), "{part} in: {said}");
    }
    assert!(ok(ferrite().arg("scrub").arg(pool.mnt())).contains("sound"));
    pool.umount();
}

/// Real programs, as people use them.
#[test]
fn git_sqlite_tar_and_rsync_work() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new("512M");
    pool.mount();
    common::programs(&pool.mnt(), "wal");
    pool.umount();
    assert!(pool.fsck().contains("sound"));
}

/// Appends numbers to a file, and reports each once it is there; moves another one back and forth.
const WRITER: &str = r#"
i=$(wc -l < "$0" 2>/dev/null || echo 0)
while true; do
    i=$((i + 1))
    echo $i >> "$0" || exit
    echo $i
    mv -f "$0.a" "$0.b" 2>/dev/null || touch "$0.a" || exit
done"#;

/// Data written before a kill of the daemon is there, whole; after any number of kills.
#[test]
fn nothing_is_lost_when_the_daemon_is_killed() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new("256M");
    let rounds = if common::soak() { 200 } else { 6 };
    for round in 0..rounds {
        pool.mount();
        let writer = pool.mnt().join("log");
        // In the mount: the directory below would take its writes once the mount is gone.
        let mut child = Command::new("bash")
            .args(["-c", WRITER, "log"])
            .current_dir(pool.mnt())
            .stdout(std::fs::File::create(pool.path("told")).unwrap())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(150 + 37 * (round % 7)));
        pool.kill();
        let _ = child.wait();
        assert!(pool.fsck().contains("sound"), "round {round}");
        let told = std::fs::read_to_string(pool.path("told")).unwrap();
        let last: u64 = told.lines().last().map_or(0, |line| line.parse().unwrap());
        pool.mount();
        let log = std::fs::read_to_string(&writer).unwrap();
        for (number, line) in (1_u64..).zip(log.lines()) {
            assert_eq!(line, number.to_string(), "round {round}");
        }
        let count = log.lines().count() as u64;
        assert!(
            last == 0 || count == last || count == last + 1,
            "round {round}: {last} told, {count} there"
        );
        pool.umount();
        assert!(pool.fsck().contains("sound"), "round {round}");
    }
}

#[test]
fn devices_that_do_not_belong_here_are_refused_by_name() {
    let (one, other) = (Pool::new("32M"), Pool::new("32M"));
    let text = std::fs::read_to_string(one.path("pool.toml")).unwrap();
    let with = |changed: String| std::fs::write(one.path("pool.toml"), changed).unwrap();
    let said = || fails(ferrite().args(["info", &one.address()]), 1);
    let (a, b) = (one.path("a.data"), one.path("b.data"));
    let (a, b) = (a.display().to_string(), b.display().to_string());
    // Of another pool.
    with(text.replace(&a, &other.path("a.data").display().to_string()));
    assert!(said().contains("belongs to another pool"));
    // Swapped.
    with(text.replace(&a, "=one=").replace(&b, &a).replace("=one=", &b));
    assert!(
        said().contains("data device number 2, and named as number 1"),
        "{}",
        said()
    );
    // Missing, and then left out.
    with(text.replace(&b, "/nowhere/b.data"));
    assert!(said().contains("/nowhere/b.data: the device is missing"));
    with(format!("degraded = true\n{}", text.replace(&b, "/nowhere/b.data")));
    let info = ok(ferrite().args(["info", &one.address()]));
    assert!(info.contains("/nowhere/b.data: not available"), "{info}");
    // Smaller than before.
    with(text.clone());
    std::fs::File::options()
        .write(true)
        .open(&b)
        .unwrap()
        .set_len(20 << 20)
        .unwrap();
    assert!(said().contains("was made for"));
    // Another file altogether.
    std::fs::write(&b, vec![7; 32 << 20]).unwrap();
    assert!(said().contains("holds no data of Ferrite"));
    with(format!("{text}\nspeed = 7\n"));
    assert!(said().contains("speed"));
}

#[test]
fn damaged_content_is_an_error_that_names_the_file() {
    let pool = Pool::with("64M", &["--data-checksum"]);
    let address = pool.address();
    ok(ferrite()
        .args(["mkfs", &address, "--size", "64M", "--add"])
        .arg(pool.path("c.data")));
    assert!(ok(ferrite().args(["info", &address])).contains("data checksums"));
    let contents: Vec<Vec<u8>> = (0..3)
        .map(|file| (0..50_000_u32).map(|at| (at / 7 + at % 251) as u8 ^ file).collect())
        .collect();
    let sources: Vec<PathBuf> = (0..3).map(|file| pool.path(&format!("source{file}"))).collect();
    for (file, source) in sources.iter().enumerate() {
        std::fs::write(source, &contents[file]).unwrap();
        ok(ferrite().arg("cp").arg(source).arg(format!("{address}:/f{file}")));
    }
    assert!(ok(ferrite().args(["fsck", "--data", &address])).contains("sound"));
    assert!(ok(ferrite().args(["scrub", &address])).contains("39 pages of data"));
    // A byte in the second page of each, wherever that lies.
    let mut count = 0;
    for device in ["a.data", "b.data", "c.data"] {
        let mut image = std::fs::read(pool.path(device)).unwrap();
        for page in image.chunks_mut(4096) {
            if contents.iter().any(|content| *page == content[4096..8192]) {
                page[1000] ^= 4;
                count += 1;
            }
        }
        std::fs::write(pool.path(device), image).unwrap();
    }
    assert_eq!(count, 3);
    for file in 0..3 {
        let said = fails(ferrite().arg("cat").arg(format!("{address}:/f{file}")), 1);
        assert!(said.contains(&format!("/f{file}: Input/output error")), "{said}");
    }
    assert!(pool.fsck().contains("sound"), "structures are");
    let said = fails(ferrite().args(["scrub", &address]), 4);
    assert!(said.contains("bytes 4096 to 8191: the wrong checksum"), "{said}");
    fails(ferrite().args(["fsck", "--data", &address]), 4);
    let said = fails(ferrite().args(["fsck", "--data", "--repair", &address]), 1);
    assert!(said.contains("moved to lost+found as it is"), "{said}");
    let names = ok(ferrite().arg("ls").arg(format!("{address}:/lost+found")));
    let damaged: Vec<&str> = names
        .split_whitespace()
        .filter(|name| name.starts_with("damaged-"))
        .collect();
    assert_eq!(damaged.len(), 3, "{names}");
    let to = pool.path("copy");
    for name in damaged {
        ok(ferrite()
            .arg("cp")
            .arg("--force")
            .arg(format!("{address}:/lost+found/{name}"))
            .arg(&to));
        let found = std::fs::read(&to).unwrap();
        let differ = |content: &Vec<u8>| content.iter().zip(&found).filter(|(one, other)| one != other).count();
        assert!(
            found.len() == 50_000 && contents.iter().any(|content| differ(content) == 1),
            "{name}"
        );
    }
    assert!(ok(ferrite().args(["fsck", "--data", &address])).contains("sound"));
}

#[test]
fn mkfs_destroys_nothing_by_accident_and_adds_devices() {
    let pool = Pool::new("32M");
    let dir = pool.dir.path();
    let mkfs = |words: &[&str]| {
        let mut command = ferrite();
        command.current_dir(dir).arg("mkfs").args(words);
        command
    };
    let again = ["nvme:pool.toml", "--meta", "meta2", "--data", "c.data", "--size", "32M"];
    assert!(fails(&mut mkfs(&again), 1).contains("pool.toml: it exists"));
    let taken = ["nvme:q.toml", "--meta", "m2", "--data", "a.data"];
    assert!(fails(&mut mkfs(&taken), 1).contains("a.data"));
    assert!(
        !dir.join("q.toml").exists(),
        "what describes no pool is not left behind"
    );
    let no_size = ["nvme:q.toml", "--meta", "m2", "--data", "new.data"];
    assert!(fails(&mut mkfs(&no_size), 1).contains("--size"));
    assert!(fails(&mut mkfs(&["nvme:q.toml", "--meta", "m2"]), 2).contains("--data"));
    // Files without a name belong to a user, too; so do directories.
    std::fs::write(dir.join("notes"), vec![7; 32 << 20]).unwrap();
    let notes = ["nvme:q.toml", "--meta", "m2", "--data", "notes"];
    assert!(fails(&mut mkfs(&notes), 1).contains("not empty"));
    std::fs::create_dir_all(dir.join("home/photos")).unwrap();
    let home = [
        "nvme:q.toml",
        "--meta",
        "home",
        "--data",
        "d.data",
        "--size",
        "32M",
        "--force",
    ];
    assert!(fails(&mut mkfs(&home), 1).contains("something else"));
    assert!(dir.join("home/photos").is_dir() && !dir.join("q.toml").exists());
    // Nor does a failed `mkfs` overwrite the description of an existing pool.
    let described = std::fs::read(dir.join("pool.toml")).unwrap();
    let instead = [
        "nvme:pool.toml",
        "--meta",
        "home",
        "--data",
        "e.data",
        "--size",
        "32M",
        "--force",
    ];
    fails(&mut mkfs(&instead), 1);
    assert_eq!(std::fs::read(dir.join("pool.toml")).unwrap(), described);
    ok(&mut mkfs(&["nvme:pool.toml", "--add", "c.data", "--size", "64M"]));
    let info = ok(ferrite().args(["info", &pool.address()]));
    assert!(
        info.contains("c.data") && info.matches("data device").count() == 3,
        "{info}"
    );
    assert!(pool.fsck().contains("sound"));
    ok(&mut mkfs(&["nvme:pool.toml", "--force"]));
    assert!(pool.fsck().contains("1 inodes"));
}

/// A program that cannot reach Ceph says which feature it lacks, before it takes anything.
#[test]
#[cfg(not(feature = "rados"))]
fn a_program_without_ceph_names_its_feature() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[metadata]\npostgres = 'host=127.0.0.9'\n[data]\nrados = { pool = 'p' }\n";
    std::fs::write(dir.path().join("pool.toml"), text).unwrap();
    let address = format!("nvme:{}", dir.path().join("pool.toml").display());
    for command in ["mkfs", "info", "fsck"] {
        let output = ferrite().args([command, &address]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("the feature `rados`"),
            "{command}: {said}"
        );
    }
}

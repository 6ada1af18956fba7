//! Administration of pools on devices: the state after a crash in the middle of it, and that a look writes nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{fails, ferrite, has_fuse, ok, sh};
use tempfile::TempDir;

/// A pool of one device, and a directory to mount it on.
struct Pool {
    dir: TempDir,
}

impl Pool {
    /// With the metadata in a directory, or on a device of its own.
    fn new(metadata: &str) -> Pool {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        let pool = Pool { dir };
        let text = format!("# ours\n[metadata]\n{metadata}\n[[data]]\ndevice = 'a.data'");
        std::fs::write(pool.path("pool.toml"), text).unwrap();
        ok(&mut pool.mkfs(&["--size", "64M"]));
        pool
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn address(&self) -> String {
        format!("nvme:{}", self.path("pool.toml").display())
    }

    fn mkfs(&self, words: &[&str]) -> Command {
        let mut command = ferrite();
        let words = words.iter();
        command
            .current_dir(self.dir.path())
            .args(["mkfs", "nvme:pool.toml"])
            .args(words);
        command
    }

    fn mount(&self) {
        ok(ferrite().arg("mount").arg(self.address()).arg(self.path("mnt")));
    }

    fn umount(&self) {
        ok(ferrite().arg("umount").arg(self.path("mnt")));
    }

    fn devices(&self) -> usize {
        ok(ferrite().args(["info", &self.address()]))
            .matches("data device")
            .count()
    }

    /// Checksums of all files of the pool, and their names.
    fn bytes(&self) -> String {
        sh(
            self.dir.path(),
            "find . -path ./mnt -prune -o -type f -exec md5sum {} + | sort -k 2",
        )
    }

    /// Every way to look at the pool while it is not mounted.
    fn look(&self) {
        let address = self.address();
        let file = format!("{address}:/dir/file");
        for words in [
            &["info", &address][..],
            &["df", &address],
            &["fsck", "-n", &address],
            &["scrub", &address],
            &["stat", &file],
            &["ls", "-l", &format!("{address}:/")],
        ] {
            ok(ferrite().args(words));
        }
        assert!(ok(ferrite().args(["cat", &file])).starts_with("1\n2\n"));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path("mnt")).output();
    }
}

fn kill(process: &str) {
    ok(Command::new("kill").args(["-9", process]));
    let start = Instant::now();
    while Path::new(&format!("/proc/{process}/fd")).exists() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The process that has a pool open, as a refusal names it.
fn process_of(refusal: &str) -> String {
    let (_, rest) = refusal.split_once("process ").expect(refusal);
    rest.chars().take_while(char::is_ascii_digit).collect()
}

const HOMES: [&str; 2] = ["directory = 'meta'", "device = 'meta.data'"];

/// A look at a pool that was closed, at one whose daemon was killed, and at one that is mounted.
#[test]
fn an_inspection_writes_nothing() {
    if !has_fuse() {
        return;
    }
    for home in HOMES {
        let pool = Pool::new(home);
        pool.mount();
        sh(&pool.path("mnt"), "mkdir dir; seq 10000 > dir/file; printf small > s");
        pool.umount();
        let before = pool.bytes();
        assert!(before.contains("a.data") && before.contains("meta"), "{before}");
        pool.look();
        assert_eq!(pool.bytes(), before, "{home}: after a close");

        pool.mount();
        sh(
            &pool.path("mnt"),
            "for i in $(seq 100); do echo $i > dir/$i; done; rm dir/5?; seq 9 >> dir/file; printf x | dd of=dir/file \
             bs=1 seek=5000 conv=notrunc status=none",
        );
        let refusal = fails(ferrite().args(["fsck", "-n", &pool.address()]), 8);
        kill(&process_of(&refusal));
        ok(Command::new("umount").arg("-l").arg(pool.path("mnt")));
        let before = pool.bytes();
        pool.look();
        assert_eq!(pool.bytes(), before, "{home}: after a kill");
        // Nor do two looks at a time.
        let mut other = ferrite().args(["scrub", &pool.address()]).spawn().unwrap();
        pool.look();
        assert!(other.wait().unwrap().success());
        assert_eq!(pool.bytes(), before, "{home}: two at a time");
        pool.mount();
        assert_eq!(sh(&pool.path("mnt"), "ls dir | wc -l").trim(), "91");
        pool.umount();
        assert!(ok(ferrite().args(["fsck", &pool.address()])).contains("sound"));
    }
}

/// Commands query the daemon of a mounted pool; requests that it does not support are refused with its name, as for
/// pools in memory.
#[test]
fn a_mounted_pool_is_inspected_through_its_daemon() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new(HOMES[0]);
    pool.mount();
    sh(&pool.path("mnt"), "seq 1000 > file; sync");
    let address = pool.address();
    assert_eq!(pool.devices(), 1);
    assert!(ok(ferrite().args(["df", &address])).contains("ok"));
    assert!(ok(ferrite().args(["scrub", &address])).contains("sound"));
    for (words, code) in [
        (vec!["fsck".into(), "-n".into(), address.clone()], 8),
        (vec!["stat".into(), format!("{address}:/file")], 1),
        (
            vec![
                "mkfs".into(),
                address.clone(),
                "--add".into(),
                "x".into(),
                "--size=32M".into(),
            ],
            1,
        ),
    ] {
        let said = fails(ferrite().args(&words), code);
        let tells = said.contains("in use by process") || said.contains("is mounted on");
        assert!(tells, "{words:?}: {said}");
    }
    assert_eq!(sh(&pool.path("mnt"), "wc -l < file").trim(), "1000");
    pool.umount();
}

/// At every step of adding a device, the pool is the old one or the new one, and the device can be added again.
#[test]
fn an_addition_that_was_cut_off_can_be_made_again() {
    for home in HOMES {
        let pool = Pool::new(home);
        let add = ["--add", "b.data", "--size", "32M"];
        let old = std::fs::read(pool.path("pool.toml")).unwrap();
        ok(&mut pool.mkfs(&add));
        let new = std::fs::read(pool.path("pool.toml")).unwrap();
        assert!(new.starts_with(&old), "what people wrote stays");
        // The device is ready, and the description is written in part, or not in place.
        std::fs::write(pool.path("pool.toml"), &old).unwrap();
        std::fs::write(pool.path(".pool.toml.new"), &new[..new.len() - 3]).unwrap();
        assert_eq!(pool.devices(), 1);
        ok(&mut pool.mkfs(&add));
        assert_eq!(std::fs::read(pool.path("pool.toml")).unwrap(), new);
        assert!(!pool.path(".pool.toml.new").exists());
        // The pool was only looked at, and never open for changes.
        assert_eq!(pool.devices(), 2);
        ok(&mut pool.mkfs(&["--add", "c.data", "--size", "32M"]));
        assert_eq!(pool.devices(), 3);
        // Once the pool was opened it needs all of them.
        let text = format!("{}:/text", pool.address());
        std::fs::write(pool.path("text"), "some text").unwrap();
        ok(ferrite().arg("cp").arg(pool.path("text")).arg(&text));
        assert!(fails(&mut pool.mkfs(&["--add", "c.data", "--force"]), 1).contains("of this pool already"));
        std::fs::write(pool.path("pool.toml"), &old).unwrap();
        let said = fails(ferrite().args(["info", &pool.address()]), 1);
        assert!(said.contains("3 data devices, the file names 1"), "{said}");
        assert!(fails(&mut pool.mkfs(&add), 1).contains("3 data devices"));
    }
}

/// The same at random moments.
#[test]
fn an_addition_may_be_killed_at_any_moment() {
    let pool = Pool::new(HOMES[0]);
    let mut had = 1;
    for round in 0..12_u64 {
        let mut child = pool.mkfs(&["--add", "b.data", "--size", "32M"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(4 * round * round));
        let _ = child.kill();
        child.wait().unwrap();
        let devices = pool.devices();
        assert!(devices == had || devices == 2, "round {round}: {devices}");
        had = devices;
    }
    if had == 1 {
        ok(&mut pool.mkfs(&["--add", "b.data", "--size", "32M"]));
    }
    assert_eq!(pool.devices(), 2);
    assert!(ok(ferrite().args(["fsck", &pool.address()])).contains("sound"));
}

/// A copy is one file, and such a pool is not. The message names other ways to keep it.
/// Files of every kind, with several names, holes, clones and a snapshot; returns their listing, with checksums.
fn fill(pool: &Pool) -> String {
    sh(
        &pool.path("mnt"),
        "mkdir -p dir/sub; seq 100000 > dir/file
         for n in $(seq 40); do head -c ${n}0000 /dev/urandom > dir/sub/$n; done
         ln dir/file dir/linked; ln -s file dir/symlink; truncate -s 20M dir/holes
         printf far | dd of=dir/holes bs=1 seek=15000000 conv=notrunc status=none; cp dir/sub/40 dir/copy
         mkdir dir/.snapshots dir/.snapshots/s; printf changed | dd of=dir/sub/39 bs=1 seek=5 conv=notrunc status=none",
    );
    ok(ferrite()
        .args(["clone"])
        .arg(pool.path("mnt/dir"))
        .arg(pool.path("mnt/clone")));
    sh(&pool.path("mnt"), "echo more >> clone/sub/38; rm clone/sub/37");
    listing(pool)
}

/// Names, attributes and checksums of all files, also of the snapshot.
fn listing(pool: &Pool) -> String {
    sh(
        &pool.path("mnt"),
        "find . dir/.snapshots/s -printf '%p %y %m %n %s %l\n' | sort
         find . dir/.snapshots/s -type f -exec md5sum {} + | sort -k 2",
    )
}

fn resize(pool: &Pool, words: &[&str]) -> Command {
    let mut command = ferrite();
    command
        .current_dir(pool.dir.path())
        .args(["resize", "nvme:pool.toml"])
        .args(words);
    command
}

/// Compares the files with what they were, and checks the pool.
fn holds(pool: &Pool, before: &str, devices: usize) {
    ok(ferrite().args(["fsck", "-n", &pool.address()]));
    assert_eq!(pool.devices(), devices);
    pool.mount();
    assert_eq!(listing(pool), before);
    sh(
        &pool.path("mnt"),
        "echo new > new; head -c 300000 /dev/urandom > large; rm new large",
    );
    pool.umount();
    ok(ferrite().args(["fsck", "-n", &pool.address()]));
}

#[test]
fn a_device_leaves_a_pool() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new(HOMES[0]);
    let refused = fails(&mut resize(&pool, &["--remove", "a.data"]), 1);
    assert!(refused.contains("last data device"), "{refused}");
    for name in ["b.data", "c.data"] {
        ok(&mut pool.mkfs(&["--add", name, "--size", "64M"]));
    }
    pool.mount();
    let before = fill(&pool);
    let refused = fails(&mut resize(&pool, &["--remove", "b.data"]), 1);
    assert!(refused.contains("in use by"), "{refused}");
    pool.umount();
    let refused = fails(&mut resize(&pool, &["--remove", "d.data"]), 1);
    assert!(refused.contains("no data device of this pool"), "{refused}");
    let said = ok(&mut resize(&pool, &["--remove", "b.data"]));
    assert!(
        said.contains("b.data removed, ") && !said.contains(" 0 files"),
        "{said}"
    );
    let text = std::fs::read_to_string(pool.path("pool.toml")).unwrap();
    assert!(text.starts_with("# ours\n") && text.contains("removed = true") && !text.contains("b.data"));
    std::fs::remove_file(pool.path("b.data")).unwrap();
    holds(&pool, &before, 2);
    // A file from before the removal brings nothing back.
    std::fs::write(
        pool.path("pool.toml"),
        text.replace("removed = true", "device = 'b.data'"),
    )
    .unwrap();
    holds(&pool, &before, 2);
    ok(&mut resize(&pool, &["--remove", "b.data"]));
    let refused = fails(
        &mut resize(&pool, &["--remove", "x.data", "--with", "d.data", "--size", "64M"]),
        1,
    );
    assert!(
        refused.contains("no data device of this pool") && !pool.path("d.data").exists(),
        "{refused}"
    );
    // Another comes, and the first one leaves.
    ok(&mut resize(
        &pool,
        &["--remove", "a.data", "--with", "d.data", "--size", "64M"],
    ));
    let text = std::fs::read_to_string(pool.path("pool.toml")).unwrap();
    assert!(!text.contains("a.data") && text.contains("d.data"), "{text}");
    let c_data = format!("device = \"{}\"", pool.path("c.data").display());
    assert!(text.contains(&c_data), "{text}");
    std::fs::write(pool.path("other.toml"), text.replace(&c_data, "removed = true")).unwrap();
    let refused = fails(
        ferrite()
            .arg("info")
            .arg(format!("nvme:{}", pool.path("other.toml").display())),
        1,
    );
    assert!(refused.contains("the pool still has it"), "{refused}");
    std::fs::remove_file(pool.path("a.data")).unwrap();
    holds(&pool, &before, 2);
    // The others have too little space.
    pool.mount();
    // More than half of each: new files go to both in turn.
    let fill = "mkdir many; for n in $(seq 80); do head -c 1M /dev/urandom > many/$n; done";
    sh(&pool.path("mnt"), fill);
    pool.umount();
    for name in ["c.data", "d.data"] {
        let refused = fails(&mut resize(&pool, &["--remove", name]), 1);
        assert!(refused.contains("have no space"), "{refused}");
    }
    ok(ferrite().args(["rm", "-r", &format!("{}:/many", pool.address())]));
    ok(&mut resize(&pool, &["--remove", "c.data"]));
    std::fs::remove_file(pool.path("c.data")).unwrap();
    holds(&pool, &before, 1);
}

#[test]
fn a_removal_may_be_killed_at_any_moment() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new(HOMES[0]);
    ok(&mut pool.mkfs(&["--add", "b.data", "--size", "64M"]));
    pool.mount();
    let before = fill(&pool);
    pool.umount();
    let mut cut_off = 0;
    for delay_ms in (0..400).step_by(15) {
        let mut removal = resize(&pool, &["--remove", "b.data"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        removal.kill().unwrap();
        let is_done = removal.wait().unwrap().success();
        if is_done
            || !std::fs::read_to_string(pool.path("pool.toml"))
                .unwrap()
                .contains("b.data")
        {
            break;
        }
        cut_off += 1;
        ok(ferrite().args(["fsck", &pool.address()]));
    }
    println!("{cut_off} removals were cut off");
    let text = std::fs::read_to_string(pool.path("pool.toml")).unwrap();
    if text.contains("b.data") {
        ok(&mut resize(&pool, &["--remove", "b.data"]));
    }
    std::fs::remove_file(pool.path("b.data")).unwrap();
    holds(&pool, &before, 1);
}

#[test]
fn a_copy_is_refused_with_what_to_do_instead() {
    let pool = Pool::new(HOMES[0]);
    let to = pool.path("copy");
    let refused = |of: &str| {
        let said = fails(ferrite().args(["copy", of]).arg(&to), 1);
        for part in ["pool.toml: is a pool on several devices", "cp -a", "ferrite freeze"] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!to.exists());
    };
    refused(&pool.address());
    if has_fuse() {
        pool.mount();
        refused(&pool.path("mnt").display().to_string());
        pool.umount();
    }
}

/// `--force` is for foreign data, and says so.
#[test]
fn the_device_of_another_pool_is_not_added() {
    let (pool, other) = (Pool::new(HOMES[0]), Pool::new(HOMES[0]));
    let device = other.path("a.data");
    let said = fails(pool.mkfs(&["--add"]).arg(&device), 1);
    assert!(
        said.contains("already belongs to a pool of Ferrite; give --force"),
        "{said}"
    );
    assert_eq!(other.devices(), 1);
}

/// A pool that could not be made leaves no description, and the next attempt succeeds.
#[test]
fn a_description_comes_when_the_pool_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mkfs = |more: &[&str]| {
        let mut command = ferrite();
        let words = ["mkfs", "nvme:p.toml", "--meta", "m", "--data", "d.data"];
        command.current_dir(dir.path()).args(words).args(more);
        command
    };
    let described = || dir.path().join("p.toml").exists();
    for round in 0..8_u64 {
        let mut child = mkfs(&["--size", "64M", "--force"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 * round * round));
        let _ = child.kill();
        child.wait().unwrap();
        if described() {
            ok(ferrite().current_dir(dir.path()).args(["info", "nvme:p.toml"]));
            // A later one that is killed would leave this description, and no pool.
            break;
        }
    }
    ok(&mut mkfs(&["--size", "64M", "--force"]));
    assert!(described());
    let names = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 3, "nothing is left beside it");
}

/// An option without effect is refused, before anything is made.
#[test]
fn options_of_other_pools_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for option in [&["--inodes", "1000"][..], &["--mapping", "leaf"], &["--write-zeros"]] {
        let mut command = ferrite();
        let words = [
            "mkfs",
            "nvme:p.toml",
            "--meta",
            "m",
            "--data",
            "d.data",
            "--size",
            "64M",
        ];
        let said = fails(command.current_dir(dir.path()).args(words).args(option), 2);
        assert!(said.contains(option[0]) && said.contains("omit it"), "{said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

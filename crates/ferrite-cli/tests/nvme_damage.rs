//! Damage of pools on devices, as a user meets it: commands name it, and keep whatever can be kept.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{fails, ferrite, has_fuse, ok, sh};
use tempfile::TempDir;

/// A pool of one data device, and a directory to mount it on.
struct Pool {
    dir: TempDir,
}

const IN_DIRECTORY: &str = "directory = 'meta'";
const ON_DEVICE: &str = "device = 'meta.data'";

impl Pool {
    fn new(metadata: &str, words: &[&str]) -> Pool {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        let pool = Pool { dir };
        let text = format!("[metadata]\n{metadata}\n[[data]]\ndevice = 'a.data'\n");
        std::fs::write(pool.path("pool.toml"), text).unwrap();
        let mut mkfs = ferrite();
        mkfs.current_dir(pool.dir.path());
        ok(mkfs.args(["mkfs", "nvme:pool.toml", "--size", "64M"]).args(words));
        pool
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    fn address(&self) -> String {
        format!("nvme:{}", self.path("pool.toml").display())
    }

    fn mount(&self) {
        ok(ferrite().arg("mount").arg(self.address()).arg(self.mnt()));
    }

    fn umount(&self) {
        ok(ferrite().arg("umount").arg(self.mnt()));
    }

    fn fsck(&self, words: &[&str]) -> Command {
        let mut command = ferrite();
        command.arg("fsck").args(words).arg(self.address());
        command
    }

    /// Makes files whose content identifies them, then kills the daemon.
    fn fill_and_kill(&self, count: usize, len_bytes: usize) {
        self.mount();
        for number in 0..count {
            std::fs::write(self.mnt().join(format!("f{number}")), content(number, len_bytes)).unwrap();
        }
        sh(&self.mnt(), "sync -f .");
        self.kill();
    }

    fn kill(&self) {
        let refusal = fails(&mut self.fsck(&["-n"]), 8);
        let (_, rest) = refusal.split_once("process ").expect(&refusal);
        let daemon: String = rest.chars().take_while(char::is_ascii_digit).collect();
        ok(Command::new("kill").args(["-9", &daemon]));
        ok(Command::new("umount").arg("-l").arg(self.mnt()));
        let start = Instant::now();
        while Path::new(&format!("/proc/{daemon}/fd")).exists() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The largest file of RocksDB with this ending.
    fn largest(&self, ending: &str) -> PathBuf {
        let files = std::fs::read_dir(self.path("meta")).unwrap().flatten();
        let files = files.map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|has| has == ending));
        files.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
    }

    /// Contents that files of the pool have now, wherever they are.
    fn contents(&self) -> Vec<Vec<u8>> {
        self.mount();
        let mut found = Vec::new();
        for dir in [self.mnt(), self.mnt().join("lost+found")] {
            let Ok(entries) = std::fs::read_dir(dir) else { continue };
            let files = entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.is_file());
            found.extend(files.map(|path| std::fs::read(path).unwrap()));
        }
        self.umount();
        found
    }

    /// How many of these files have their content somewhere.
    fn kept(&self, count: usize, len_bytes: usize) -> usize {
        let contents = self.contents();
        let has = |number: &usize| contents.contains(&content(*number, len_bytes));
        (0..count).filter(has).count()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.mnt()).output();
    }
}

fn content(number: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at / 13 + number * 7) as u8).collect()
}

/// Changes some bytes of a file, at a share of what it holds.
fn flip(path: &Path, share: (usize, usize)) {
    let mut bytes = std::fs::read(path).unwrap();
    let len = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    let at = len * share.0 / share.1;
    bytes[at..at + 16].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(path, bytes).unwrap();
}

/// Damage in the middle of the log does not pass for its end: no mount drops acknowledged changes behind it.
#[test]
fn damage_in_the_middle_of_the_log_is_named_and_the_rest_is_kept() {
    if !has_fuse() {
        return;
    }
    const COUNT: usize = 40;
    const LEN: usize = 20_000;
    let pool = Pool::new(IN_DIRECTORY, &[]);
    pool.fill_and_kill(COUNT, LEN);
    flip(&pool.largest("log"), (1, 2));
    let said = fails(&mut pool.fsck(&[]), 4);
    assert!(said.contains(".log cannot be read from byte"), "{said}");
    let said = fails(ferrite().arg("mount").arg(pool.address()).arg(pool.mnt()), 1);
    assert!(said.contains("fsck --repair"), "{said}");
    // At boot fsck makes no repair that loses data.
    fails(&mut pool.fsck(&["-p"]), 4);
    let said = fails(&mut pool.fsck(&["--repair"]), 1);
    assert!(said.contains("sound after"), "{said}");
    assert!(ok(&mut pool.fsck(&[])).contains("sound"));
    // The record with the damage is lost, and its content: at most two small files.
    let kept = pool.kept(COUNT, LEN);
    assert!(kept >= COUNT - 2, "{kept} of {COUNT}");
    // The earlier metadata is kept beside it.
    assert!(pool.path("meta.old-1").exists());
}

/// The log that was closed ends where the close says.
#[test]
fn a_log_that_was_closed_has_no_torn_tail() {
    let pool = Pool::new(IN_DIRECTORY, &[]);
    let source = pool.path("source");
    std::fs::write(&source, content(1, 20_000)).unwrap();
    ok(ferrite().arg("cp").arg(&source).arg(format!("{}:/f", pool.address())));
    let logs = sh(&pool.path("meta"), "ls -S *.log CLOSED MANIFEST-*");
    for name in logs.split_whitespace() {
        let path = pool.path("meta").join(name);
        let whole = std::fs::read(&path).unwrap();
        if whole.is_empty() || name == "CLOSED" {
            continue;
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let said = fails(&mut pool.fsck(&[]), 4);
        assert!(said.contains(name), "{said}");
        std::fs::write(&path, &whole).unwrap();
    }
    assert!(ok(&mut pool.fsck(&[])).contains("sound"));
}

/// Content that lost its names with the log is in blobs, and a repair keeps it.
#[test]
fn a_repair_keeps_content_that_has_lost_its_name() {
    if !has_fuse() {
        return;
    }
    const COUNT: usize = 20;
    const LEN: usize = 200_000;
    for share in [(1, 3), (1, 20)] {
        let pool = Pool::new(IN_DIRECTORY, &[]);
        pool.fill_and_kill(COUNT, LEN);
        // Everything after it is lost: the log could as well be damaged to the end.
        let log = pool.largest("log");
        let mut bytes = std::fs::read(&log).unwrap();
        let len = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        let (from, to) = (len * share.0 / share.1, len * 9 / 10);
        bytes[from..to].fill(0x55);
        std::fs::write(&log, bytes).unwrap();
        fails(&mut pool.fsck(&[]), 4);
        let said = fails(&mut pool.fsck(&["--repair"]), 1);
        assert!(said.contains("it becomes a file in lost+found"), "{said}");
        assert_eq!(pool.kept(COUNT, LEN), COUNT, "{share:?}");
        assert!(ok(&mut pool.fsck(&[])).contains("sound"));
    }
}

/// A block of one of RocksDB's tables, or its end, or the list of tables.
#[test]
fn damaged_tables_leave_a_way_out() {
    if !has_fuse() {
        return;
    }
    const COUNT: usize = 60;
    const LEN: usize = 40_000;
    for what in ["a block", "the end", "the list"] {
        let pool = Pool::new(IN_DIRECTORY, &[]);
        // A dump and its restoration turn the whole log into tables.
        pool.mount();
        for number in 0..COUNT {
            std::fs::write(pool.mnt().join(format!("f{number}")), content(number, LEN)).unwrap();
        }
        pool.umount();
        pool.mount();
        pool.umount();
        match what {
            "a block" => flip(&pool.largest("sst"), (1, 4)),
            "the end" => {
                let path = pool.largest("sst");
                let mut bytes = std::fs::read(&path).unwrap();
                let len = bytes.len();
                bytes[len - 60..].fill(0);
                std::fs::write(&path, bytes).unwrap();
            }
            _ => {
                let list = sh(&pool.path("meta"), "ls MANIFEST-*");
                flip(&pool.path("meta").join(list.trim()), (1, 2));
            }
        }
        let said = fails(&mut pool.fsck(&[]), 4);
        assert!(said.contains("damaged") || said.contains("orruption"), "{what}: {said}");
        let said = fails(&mut pool.fsck(&["--repair"]), 1);
        assert!(said.contains("sound after"), "{what}: {said}");
        assert_eq!(pool.kept(COUNT, LEN), COUNT, "{what}: {said}");
        assert!(ok(&mut pool.fsck(&[])).contains("sound"), "{what}");
    }
}

/// A dump of a mounted pool can be restored, and files made since then are in lost+found.
#[test]
fn metadata_is_dumped_while_mounted_and_restored() {
    if !has_fuse() {
        return;
    }
    const LEN: usize = 100_000;
    for home in [IN_DIRECTORY, ON_DEVICE] {
        let pool = Pool::new(home, &[]);
        pool.mount();
        sh(&pool.mnt(), "mkdir -p a/b; printf small > a/b/small; ln a/b/small hard");
        std::fs::write(pool.mnt().join("a/f0"), content(0, LEN)).unwrap();
        let dump = pool.path("dump");
        assert!(ok(ferrite().arg("dump-meta").arg(pool.mnt()).arg(&dump)).contains("keys"));
        fails(ferrite().arg("dump-meta").arg(pool.mnt()).arg(&dump), 1);
        std::fs::write(pool.mnt().join("f1"), content(1, LEN)).unwrap();
        pool.umount();
        match home {
            IN_DIRECTORY => std::fs::remove_dir_all(pool.path("meta")).unwrap(),
            _ => flip(&pool.path("meta.data"), (1, 2)),
        }
        let said = fails(ferrite().arg("restore-meta").arg(pool.address()).arg(&dump), 1);
        assert!(said.contains("sound after"), "{home}: {said}");
        assert!(ok(&mut pool.fsck(&[])).contains("sound"), "{home}");
        pool.mount();
        assert_eq!(
            sh(&pool.mnt(), "cat a/b/small hard; stat -c %h hard"),
            "smallsmall2\n",
            "{home}"
        );
        assert!(
            std::fs::read(pool.mnt().join("a/f0")).unwrap() == content(0, LEN),
            "{home}"
        );
        pool.umount();
        assert!(pool.contents().contains(&content(1, LEN)), "{home}");
        // Neither of another pool nor of nothing.
        let other = Pool::new(IN_DIRECTORY, &[]);
        let said = fails(ferrite().arg("restore-meta").arg(other.address()).arg(&dump), 8);
        assert!(said.contains("another pool"), "{said}");
        assert!(ok(&mut other.fsck(&[])).contains("sound"));
        fails(ferrite().arg("restore-meta").arg(other.address()).arg(other.mnt()), 8);
    }
}

/// A slot's newer page is damaged after a close: fsck names the file, which does not read as zeros.
#[test]
fn an_older_state_of_a_file_does_not_pass_for_sound() {
    if !has_fuse() {
        return;
    }
    for words in [&[][..], &["--data-checksum"]] {
        let pool = Pool::new(IN_DIRECTORY, words);
        pool.mount();
        sh(
            &pool.mnt(),
            "head -c 100000 /dev/zero | tr '\\0' a > f; head -c 1000000 /dev/zero | tr '\\0' b >> f; sync f",
        );
        pool.umount();
        let mut image = std::fs::read(pool.path("a.data")).unwrap();
        let field = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        let heads = image.chunks(4096).enumerate();
        let newest = heads
            .filter(|(_, page)| page[..4] == *b"BlHd" && page[12] == 1 && field(page, 32) > 0)
            .max_by_key(|(_, page)| field(page, 24));
        let at = newest.unwrap().0 * 4096;
        image[at + 3000] ^= 1;
        std::fs::write(pool.path("a.data"), image).unwrap();
        let said = fails(&mut pool.fsck(&[]), 4);
        assert!(said.contains("inode") && said.contains("lost"), "{said}");
        fails(ferrite().args(["scrub", &pool.address()]), 4);
        pool.mount();
        assert!(
            std::fs::read(pool.mnt().join("f")).is_err(),
            "no zeros for what was written"
        );
        pool.umount();
        let said = fails(&mut pool.fsck(&["--repair"]), 1);
        assert!(said.contains("lost+found"), "{said}");
        assert!(ok(&mut pool.fsck(&["--data"])).contains("sound"));
    }
}

/// The file of a data device is truncated under its daemon.
#[test]
fn a_device_cut_off_under_its_daemon_is_named() {
    if !has_fuse() {
        return;
    }
    let pool = Pool::new(IN_DIRECTORY, &[]);
    pool.mount();
    std::fs::write(pool.mnt().join("f"), content(0, 200_000)).unwrap();
    let file = std::fs::File::options().write(true).open(pool.path("a.data")).unwrap();
    file.set_len(20 << 20).unwrap();
    let _ = ferrite().arg("umount").arg(pool.mnt()).output();
    let start = Instant::now();
    let mut said = String::new();
    while start.elapsed() < Duration::from_secs(10) {
        let output = pool.fsck(&[]).output().unwrap();
        said = common::text(&output);
        assert!(!output.status.success(), "{said}");
        if !said.contains("in use") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(said.contains("was made for"), "{said}");
}

/// A file with holes fails when its file system is full: the metadata's file gets all of its space, and a warning names
/// the others.
#[test]
fn sparse_files_are_told_of_and_the_metadata_has_its_space() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let text = format!("[metadata]\n{ON_DEVICE}\n[[data]]\ndevice = 'a.data'\n");
    std::fs::write(dir.path().join("pool.toml"), text).unwrap();
    for name in ["meta.data", "a.data"] {
        std::fs::File::create(dir.path().join(name))
            .unwrap()
            .set_len(64 << 20)
            .unwrap();
    }
    let output = ferrite()
        .current_dir(dir.path())
        .args(["mkfs", "nvme:pool.toml"])
        .output()
        .unwrap();
    let said = common::text(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("a.data: the file is sparse") && !said.contains("meta.data: the file"),
        "{said}"
    );
    let found = std::fs::metadata(dir.path().join("meta.data")).unwrap();
    assert!(found.blocks() * 512 >= found.len(), "{} blocks", found.blocks());
}

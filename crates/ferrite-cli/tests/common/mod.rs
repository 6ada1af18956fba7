//! A pool on a real mount, for the tests that need one; removed when dropped, whatever happened.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod fabric;
pub(crate) mod server;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use server::Server;
use tempfile::TempDir;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// The program under test: `FERRITE_BIN`, or the one cargo built for these tests.
pub(crate) fn ferrite() -> Command {
    let program = std::env::var_os("FERRITE_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_ferrite").into());
    Command::new(program)
}

/// Runs a command; panics with its output unless it succeeds.
pub(crate) fn ok(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; is its package installed?"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        text(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail with this exit code; returns its output.
pub(crate) fn fails(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", text(&output));
    text(&output)
}

pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs a shell script in `dir`.
pub(crate) fn sh(dir: &Path, script: &str) -> String {
    ok(Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir))
}

/// Programs that know nothing of Ferrite, as people use them: git, SQLite with this journal, tar, rsync.
pub(crate) fn programs(dir: &Path, journal: &str) {
    let script = format!(
        "git init -q repo; cd repo; git config user.email a@b; git config user.name n
         for i in $(seq 20); do seq $i $((i * 500)) > f$i; git add .; git commit -qm $i; done
         git gc -q; git fsck --strict; git clone -q . ../clone; cd ..; diff -r --exclude=.git repo clone
         sqlite3 db 'pragma journal_mode={journal}; create table t(a integer primary key, b text);'
         for i in $(seq 30); do sqlite3 db \"insert into t(b) values (hex(randomblob(500)));\"; done
         test $(sqlite3 db 'select count(*) from t; pragma integrity_check;' | tr '\\n' ' ' | tr -d ' ') = 30ok
         tar cf t.tar repo; mkdir x; tar xf t.tar -C x; diff -r repo x/repo
         rsync -a repo/ copy/; diff -r repo copy; rm -rf repo clone x copy"
    );
    sh(dir, &script);
}

/// Whether tests on a mount can run; without FUSE they fail, unless the environment asks to skip them.
pub(crate) fn has_fuse() -> bool {
    if std::env::var_os("FERRITE_SKIP_FUSE").is_some() {
        eprintln!("skipped: FERRITE_SKIP_FUSE is set");
        return false;
    }
    assert!(
        Path::new("/dev/fuse").exists(),
        "no /dev/fuse: run `modprobe fuse`, or set FERRITE_SKIP_FUSE=1"
    );
    true
}

/// Whether mounts can have rings, if necessary after root has switched them on. Otherwise their tests are skipped, with
/// a message.
pub(crate) fn has_rings() -> bool {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    if !has_fuse() {
        return false;
    }
    if std::env::var("FERRITE_RINGS").is_ok_and(|way| way == "off") {
        eprintln!("skipped: FERRITE_RINGS=off");
        return false;
    }
    if ferrite_fuse::rings_offered().is_err() {
        let _ = std::fs::write(SWITCH, "1");
    }
    match ferrite_fuse::rings_offered() {
        Ok(()) => true,
        Err((why, mend)) => {
            eprintln!("skipped: no rings: {why}; {mend}");
            false
        }
    }
}

/// The kinds of mount that an important test should use: both, or the one that `FERRITE_RINGS` names.
pub(crate) fn ways() -> Vec<&'static str> {
    match std::env::var("FERRITE_RINGS").as_deref() {
        Ok("off") => vec!["rings=off"],
        Ok("on") => vec!["rings=on"],
        _ if has_rings() => vec!["rings=off", "rings=on"],
        _ => vec!["rings=off"],
    }
}

/// Whether the environment asks for the long version of a test.
pub(crate) fn soak() -> bool {
    std::env::var_os("FERRITE_SOAK").is_some()
}

/// Makes a pool, with further words for mkfs. Any test can run on any mapping: `FERRITE_MAPPING` names it.
pub(crate) fn mkfs(pool: &Path, words: &[&str]) {
    let mapping = std::env::var("FERRITE_MAPPING").unwrap_or_else(|_| ferrite_fs::Mapping::default().to_string());
    ok(ferrite()
        .arg("mkfs")
        .arg(pool)
        .args(["--mapping", &mapping])
        .args(words));
}

/// Makes a pool and opens it by the library.
pub(crate) fn create(pool: &Path, size_bytes: u64) -> ferrite::Fs {
    mkfs(pool, &["--size", &size_bytes.to_string()]);
    ferrite::Fs::open(pool).unwrap()
}

/// Pages that occur nowhere else in a pool.
pub(crate) fn unlike_pages(pages: usize) -> Vec<u8> {
    (0..(pages * PAGE) as u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect()
}

/// Changes one byte of the block that holds `page`, where it lies in the pool.
pub(crate) fn damage_block(pool: &Path, page: &[u8]) {
    let image = std::fs::read(pool).unwrap();
    let found: Vec<_> = image
        .chunks(PAGE)
        .enumerate()
        .filter(|(_, block)| *block == page)
        .collect();
    assert_eq!(found.len(), 1, "the page lies in one block");
    let file = OpenOptions::new().write(true).open(pool).unwrap();
    let at = found[0].0 * PAGE + 100;
    file.write_all_at(&[image[at] ^ 1], at as u64).unwrap();
}

/// Unmounts a directory. A process that another test has just forked holds all files of this one, until it runs its
/// program; and a close takes as long as a restarted server needs to answer.
pub(crate) fn umount(dir: &Path) {
    let start = Instant::now();
    loop {
        let output = ferrite().arg("umount").arg(dir).output().unwrap();
        if output.status.success() {
            return;
        }
        let (said, late) = (text(&output), start.elapsed().as_secs() >= 5);
        assert!(said.contains("busy") && !late, "{}: {said}", dir.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A private pool and a directory to mount it on.
pub(crate) struct TestPool {
    base: TempDir,
    pub(crate) pool: PathBuf,
    pub(crate) dir: PathBuf,
    /// The server whose export is mounted, if any.
    pub(crate) server: Option<Server>,
}

impl TestPool {
    /// Makes and mounts a pool in DRAM, with further words for mkfs.
    pub(crate) fn new(size: &str, mkfs: &[&str]) -> TestPool {
        TestPool::new_in(Path::new("/dev/shm"), size, mkfs, &[])
    }

    /// The same on any file system, with further words for mount.
    pub(crate) fn new_in(place: &Path, size: &str, mkfs: &[&str], mount: &[&str]) -> TestPool {
        let base = tempfile::Builder::new()
            .prefix("ferrite-test-")
            .tempdir_in(place)
            .unwrap();
        let (pool, dir) = (base.path().join("pool"), base.path().join("mnt"));
        std::fs::create_dir(&dir).unwrap();
        self::mkfs(&pool, &[&["--size", size], mkfs].concat());
        let test = TestPool {
            base,
            pool,
            dir,
            server: None,
        };
        test.mount(mount);
        test
    }

    /// The same in DRAM, with these options of the mount.
    pub(crate) fn with(size: &str, options: &str) -> TestPool {
        TestPool::new_in(Path::new("/dev/shm"), size, &[], &["-o", options])
    }

    /// A pool in DRAM that is served on a loopback address, and a mount of that.
    pub(crate) fn served(size: &str) -> TestPool {
        TestPool::of(Server::new(size, &["--no-root-squash"]))
    }

    /// An export over libfabric, through one of its providers, on a mount.
    pub(crate) fn served_on_fabric(size: &str, provider: &str) -> TestPool {
        TestPool::of(Server::on_fabric(size, provider, &["--no-root-squash"]))
    }

    /// A pool on devices, which are files.
    #[cfg(feature = "nvme")]
    pub(crate) fn on_devices(size: &str) -> TestPool {
        let base = tempfile::Builder::new().prefix("ferrite-test-").tempdir().unwrap();
        let dir = base.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let address = format!("nvme:{}", base.path().join("pool.toml").display());
        let stores = ["--meta", "meta", "--data", "a.data", "--data", "b.data"];
        let mut mkfs = ferrite();
        mkfs.current_dir(base.path()).args(["mkfs", &address, "--size", size]);
        ok(mkfs.args(stores));
        let test = TestPool {
            base,
            pool: address.into(),
            dir,
            server: None,
        };
        test.mount(&[]);
        test
    }

    fn of(server: Server) -> TestPool {
        let base = tempfile::Builder::new()
            .prefix("ferrite-test-")
            .tempdir_in("/dev/shm")
            .unwrap();
        let dir = base.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        let test = TestPool {
            base,
            pool: server.pool.clone(),
            dir,
            server: Some(server),
        };
        test.mount(&[]);
        test
    }

    pub(crate) fn mount(&self, words: &[&str]) {
        self.mount_on(&self.dir, words);
    }

    /// Mounts it on a second directory, which a server allows.
    pub(crate) fn mount_on(&self, dir: &Path, words: &[&str]) {
        let source = match &self.server {
            Some(server) => Path::new(&server.address),
            None => &self.pool,
        };
        ok(ferrite().arg("mount").arg(source).arg(dir).args(words));
    }

    /// Unmounts, as [`umount`].
    pub(crate) fn umount(&self) {
        umount(&self.dir);
    }

    pub(crate) fn remount(&self) {
        self.umount();
        self.mount(&[]);
    }

    /// A path on the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A scratch directory off the mount.
    pub(crate) fn scratch(&self) -> PathBuf {
        let path = self.base.path().join("scratch");
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Process number of the daemon, which holds the pool's lock.
    pub(crate) fn daemon(&self) -> i32 {
        let output = ferrite().arg("fsck").arg(&self.pool).output().unwrap();
        let said = text(&output);
        let pid = said.split("process ").nth(1).and_then(|rest| rest.split(' ').next());
        pid.and_then(|pid| pid.parse().ok())
            .unwrap_or_else(|| panic!("no daemon named in: {said}"))
    }

    /// Kills the daemon as a crash would, and unmounts what it leaves.
    pub(crate) fn kill(&self) {
        ok(Command::new("kill").args(["-9", &self.daemon().to_string()]));
        let start = Instant::now();
        while !Command::new("umount").arg(&self.dir).output().unwrap().status.success() {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the dead mount cannot be unmounted"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn fsck(&self) {
        ok(ferrite().arg("fsck").arg(&self.pool));
    }

    pub(crate) fn info(&self) -> serde_json::Value {
        serde_json::from_str(&ok(ferrite().arg("info").arg(&self.pool).arg("--json"))).unwrap()
    }

    /// Unmounts in order and checks the pool.
    pub(crate) fn finish(mut self) {
        self.umount();
        if let Some(server) = &mut self.server {
            server.kill();
        }
        self.fsck();
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.dir).output();
    }
}

//! `ferrite serve` and mounts of its exports, with real processes: each mount reads what the other wrote, and a server
//! that is killed and restarted has lost nothing and done nothing twice.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{fails, ferrite, has_fuse, mkfs, ok, sh, soak};
use tempfile::TempDir;

/// Starts servers and kills them, by commands on its standard input. A separate process: a child of this process closes
/// the files that are open here before it becomes the server. If such a file is on a mount of the server, its close
/// would wait for that server, which is not up yet.
const SUPERVISOR: &str = r#"
while read -r verb listen; do
    case "$verb" in
    start)
        "$FERRITE" serve "$POOL" --listen "$listen" --lease 4 $WORDS > "$SAID" &
        server=$!
        until [ -s "$SAID" ] || ! kill -0 "$server" 2> /dev/null; do sleep 0.01; done
        head -n 1 "$SAID"
        rm "$SAID" ;;
    kill) kill -9 "$server"; wait "$server" 2> /dev/null; echo killed ;;
    stop) kill "$server"; wait "$server"; echo "ended $?" ;;
    esac
done
kill -9 "$server" 2> /dev/null
"#;

/// A pool that is served, and directories to mount it on. Dropping this removes everything.
struct Served {
    base: TempDir,
    pool: PathBuf,
    address: String,
    key: Option<PathBuf>,
    supervisor: Child,
    said: BufReader<ChildStdout>,
}

fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempdir_in("/dev/shm")
        .unwrap()
}

impl Served {
    fn new() -> Served {
        Served::in_memory(false)
    }

    /// With a key, which encrypts everything.
    fn with_key() -> Served {
        Served::in_memory(true)
    }

    fn in_memory(has_key: bool) -> Served {
        let base = scratch();
        let pool = base.path().join("pool");
        mkfs(&pool, &["--size", "256M"]);
        Served::start_with(base, pool, has_key)
    }

    /// A pool on two devices, with its metadata where these words of its description put it.
    #[cfg(feature = "nvme")]
    fn on_devices(metadata: &str) -> Served {
        let base = scratch();
        let text = format!("[metadata]\n{metadata}\n[[data]]\ndevice = 'a.data'\n[[data]]\ndevice = 'b.data'\n");
        std::fs::write(base.path().join("pool.toml"), text).unwrap();
        ok(ferrite()
            .current_dir(base.path())
            .args(["mkfs", "nvme:pool.toml", "--size", "256M"]));
        let pool = format!("nvme:{}", base.path().join("pool.toml").display());
        Served::start_with(base, pool.into(), false)
    }

    fn start_with(base: TempDir, pool: PathBuf, has_key: bool) -> Served {
        let key = has_key.then(|| base.path().join("key"));
        let mut words = "--no-root-squash".to_owned();
        if let Some(key) = &key {
            ok(ferrite().arg("key").arg(key));
            words = format!("{words} --key {} --encryption always", key.display());
        }
        Served::start_saying(base, pool, key, &words)
    }

    /// With the defaults of `serve`: root squashed; and with a directory `all` for everybody.
    fn squashing() -> Served {
        let base = scratch();
        // Other users come here, too.
        std::fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
        let (pool, dir) = (base.path().join("pool"), base.path().join("before"));
        mkfs(&pool, &["--size", "256M"]);
        std::fs::create_dir(&dir).unwrap();
        ok(ferrite().arg("mount").arg(&pool).arg(&dir));
        sh(&dir, "mkdir -m 1777 all");
        ok(ferrite().arg("umount").arg(&dir));
        Served::start_saying(base, pool, None, "")
    }

    fn start_saying(base: TempDir, pool: PathBuf, key: Option<PathBuf>, words: &str) -> Served {
        let mut supervisor = Command::new("bash")
            .args(["-c", SUPERVISOR])
            .env("FERRITE", ferrite().get_program())
            .env("POOL", &pool)
            .env("SAID", base.path().join("said"))
            .env("WORDS", words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(supervisor.stdout.take().unwrap());
        let mut served = Served {
            base,
            pool,
            address: String::new(),
            key,
            supervisor,
            said,
        };
        served.start("tcp://127.0.0.1:0");
        served
    }

    /// Sends the supervisor a command; returns its reply when that is done.
    fn tell(&mut self, words: &str) -> String {
        writeln!(self.supervisor.stdin.as_mut().unwrap(), "{words}").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn start(&mut self, listen: &str) {
        let line = self.tell(&format!("start {listen}"));
        let address = line.rsplit(' ').next().unwrap().trim_end_matches('/');
        assert!(address.starts_with("tcp://"), "it says where it serves: {line}");
        self.address = address.to_owned();
    }

    fn mount(&self, name: &str) -> PathBuf {
        self.mount_at(&self.address, name)
    }

    fn mount_at(&self, address: &str, name: &str) -> PathBuf {
        let dir = self.base.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let mut mount = ferrite();
        mount.arg("mount").arg(address).arg(&dir);
        if let Some(key) = &self.key {
            mount.arg("-o").arg(format!("key={}", key.display()));
        }
        ok(&mut mount);
        dir
    }

    /// Kills the server without warning, and starts it again.
    fn restart(&mut self) {
        assert_eq!(self.tell("kill"), "killed");
        self.start(&self.address.clone());
    }

    /// Ends the server as an administrator does.
    fn stop(&mut self) {
        assert_eq!(self.tell("stop"), "ended 0");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.base.path()).into_iter().flatten().flatten() {
            // Whatever is mounted there; the test may have failed anywhere.
            let _ = Command::new("umount").arg("-l").arg(entry.path()).output();
        }
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

#[test]
fn two_mounts_of_one_export_show_the_same() {
    if !has_fuse() {
        return;
    }
    let mut served = Served::new();
    let (one, two) = (served.mount("one"), served.mount("two"));
    sh(
        &one,
        "cp -r /etc/default tree; ln -s tree link; echo first > file; echo second >> file; mv file tree/moved",
    );
    sh(
        &two,
        "diff -r /etc/default tree --exclude moved | (! grep .); test \"$(cat link/moved)\" = $'first\\nsecond'",
    );
    // Each read goes to the server, also for an open file.
    let mut open = File::open(two.join("tree/moved")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    std::fs::write(one.join("tree/moved"), "third").unwrap();
    open.rewind().unwrap();
    text.clear();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "third");
    drop(open);
    ok(ferrite().arg("umount").arg(&one));
    ok(ferrite().arg("umount").arg(&two));
    assert!(ok(ferrite().arg("info").arg(&served.address)).contains("server"));
    served.stop();
    ok(ferrite().arg("fsck").arg(&served.pool));
}

/// Runs a script in a directory as this user, in the group of the same number.
/// The commas of the address stay in the table of mounts, and no command takes them for its own.
#[test]
fn a_mount_may_name_several_servers() {
    if !has_fuse() {
        return;
    }
    let mut served = Served::new();
    let server = served.address.trim_start_matches("tcp://").to_owned();
    // Nothing listens at the first.
    let address = format!("tcp://127.0.0.1:1,{server}");
    let dir = served.mount_at(&address, "dir");
    sh(&dir, "echo text > file; test \"$(cat file)\" = text");
    for name in [address.as_ref(), dir.as_os_str()] {
        let said = ok(ferrite().arg("info").arg(name));
        assert!(said.contains(&address), "{said}");
        let is_connected = |line: &str| line.starts_with("connected to") && line.ends_with(&server);
        assert!(said.lines().any(is_connected), "{said}");
    }
    let said = ok(ferrite().arg("df").arg(&dir));
    assert!(said.contains(&address), "{said}");
    let mut cat = ferrite();
    assert_eq!(ok(cat.arg("cp").arg(format!("{address}:/file")).arg("-")), "text\n");
    let said = fails(
        ferrite().args(["mount", &format!("tcp://{server},{server}")]).arg(&dir),
        2,
    );
    assert!(said.contains(&server) && said.contains("once"), "{said}");
    ok(ferrite().arg("umount").arg(&dir));
    served.stop();
    let said = fails(ferrite().arg("mount").arg(&address).arg(&dir), 1);
    assert!(
        said.contains("cannot reach 127.0.0.1:1: ") && said.contains(&format!("cannot reach {server}: ")),
        "{said}"
    );
    ok(ferrite().arg("mount").arg(&address).arg(&dir).args(["-o", "nofail"]));
}

fn sh_as(uid: u32, dir: &Path, script: &str) {
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", script]).current_dir(dir);
    ok(shell.uid(uid).gid(uid));
}

/// A server that squashes root checks again what the mount's kernel has allowed, and both must agree.
#[test]
fn what_a_kernel_allows_is_done_where_root_is_squashed() {
    if !has_fuse() {
        return;
    }
    let mut served = Served::squashing();
    let all = served.mount("mnt").join("all");
    // This includes handles open for writing, of a file that may not be written any more.
    let script = r#"
install -m 711 /bin/true program; ./program
echo text > drop; chmod 200 drop; echo more > drop; echo more >> drop; test $(stat -c %s drop) = 10
mkdir -m 700 own; touch own/secret; mkdir -m 744 names; touch names/known
python3 -c '
import os
fd = os.open("new", os.O_CREAT | os.O_RDWR, 0o444)
for mode, size in [(0o444, 100), (0, 50)]:
    os.chmod("new", mode)
    os.ftruncate(fd, size)
    assert os.fstat(fd).st_size == size
fd = os.open("drop", os.O_WRONLY)
assert os.lseek(fd, 0, os.SEEK_DATA) == 0
os.ftruncate(fd, 3)'"#;
    sh_as(1000, &all, script);
    sh_as(
        1001,
        &all,
        "./program; (! cat program); (! echo x > program); (! echo x > drop); test $(stat -c %s drop) = 3
         (! ls own); test $(ls names) = known; (! stat names/known)",
    );
    // Root is nobody.
    sh(
        &all,
        "./program; (! ls own); (! cat own/secret); test $(ls names) = known; (! stat names/known); (! cat drop)",
    );
    ok(ferrite().arg("umount").arg(all.parent().unwrap()));
    served.stop();
    ok(ferrite().arg("fsck").arg(&served.pool));
}

/// Listing all mounts overlaps with mounts and unmounts, so a dead mount must not spoil it.
#[test]
fn a_dead_mount_of_a_server_is_listed_as_such() {
    if !has_fuse() {
        return;
    }
    let mut served = Served::new();
    let dir = served.mount("dead").display().to_string();
    // The list also has the mounts that other tests make and kill meanwhile.
    let line = || {
        let all = String::from_utf8(ferrite().arg("df").output().unwrap().stdout).unwrap();
        all.lines().find(|line| line.ends_with(&dir)).unwrap().to_owned()
    };
    assert!(line().contains(" ok "), "{}", line());
    let daemon = format!("ferrite mount {} {dir}", served.address);
    ok(Command::new("pkill").args(["-9", "-f", &daemon]));
    let start = Instant::now();
    while !line().contains(" DEAD ") {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", line());
    }
    let row = ok(ferrite().args(["df", &dir, "--json"]));
    let row: serde_json::Value = serde_json::from_str(&row).unwrap();
    assert_eq!((&row["state"], row.get("size_bytes")), (&"dead".into(), None));
    served.stop();
}

/// Takes an exclusive lock on a byte, of the kind that programs take with `lockf`. False if another process has one.
fn try_lock(dir: &Path) -> bool {
    let script = "import fcntl,sys; f=open('lock','r+b');\ntry: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,1)\n\
                  except OSError: sys.exit(1)";
    let status = Command::new("python3").args(["-c", script]).current_dir(dir).status();
    status.unwrap().success()
}

/// Ends the threads of a test, whatever happens to it: a call on a mount waits as long as its server is away, so after
/// a failed check this kills the mounts' daemons.
struct Ending<'t> {
    is_over: &'t AtomicBool,
    address: String,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            let daemons = format!("ferrite mount {}", self.address);
            let _ = Command::new("pkill").args(["-9", "-f", &daemons]).status();
        }
    }
}

/// Appends to a counter, renames a file back and forth, checking that each change happened once; an open file without a
/// name; a lock. Meanwhile the server is killed again and again.
#[test]
fn a_server_that_is_killed_loses_nothing_and_does_nothing_twice() {
    if !has_fuse() {
        return;
    }
    for served in [Served::new, Served::with_key] {
        killed_again_and_again(served());
    }
}

/// The homes of metadata of pools on devices.
#[cfg(feature = "nvme")]
const HOMES: [&str; 2] = ["directory = 'meta'", "device = 'meta.data'"];

#[cfg(feature = "nvme")]
#[test]
fn a_killed_server_of_devices_loses_nothing_and_does_nothing_twice() {
    if !has_fuse() {
        return;
    }
    for home in HOMES {
        killed_again_and_again(Served::on_devices(home));
    }
}

/// Real programs on a mount of a server of devices.
#[cfg(feature = "nvme")]
#[test]
fn programs_work_on_a_server_of_devices() {
    if !has_fuse() {
        return;
    }
    for home in HOMES {
        let mut served = Served::on_devices(home);
        let dir = served.mount("mnt");
        common::programs(&dir, "delete");
        ok(ferrite().arg("umount").arg(&dir));
        served.stop();
        assert!(ok(ferrite().arg("fsck").arg(&served.pool)).contains("sound"));
    }
}

/// Whether `is_so` becomes true within this time.
fn becomes_so(within: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < within {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Otherwise a machine could not be shut down while the server is away: calls wait for it without a limit.
#[test]
fn sigterm_ends_a_busy_daemon_whose_server_is_away() {
    if !has_fuse() {
        return;
    }
    for is_unmounted in [false, true] {
        let mut served = Served::new();
        let dir = served.mount("mnt");
        std::fs::write(dir.join("file"), "text").unwrap();
        // A separate process: a child of this process would close it first, by a call that waits for the server.
        let hold = "import sys\nf = open('file', 'rb', 0); print('open', flush=True); sys.stdin.read()\n\
                    try: f.read(1)\nexcept OSError: sys.exit(0)\nsys.exit(1)";
        let mut holder = Command::new("python3")
            .args(["-c", hold])
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line.trim(), "open");
        let command = format!("mount {} {}", served.address, dir.display());
        let daemon = ok(Command::new("pgrep").args(["-f", &command]));
        let process = Path::new("/proc").join(daemon.trim());
        let _end = Ending {
            is_over: &AtomicBool::new(false),
            address: served.address.clone(),
        };
        assert_eq!(served.tell("kill"), "killed");
        let mut waits = Command::new("stat").arg(dir.join("other")).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(waits.try_wait().unwrap().is_none(), "it waits for the server");
        if is_unmounted {
            ok(Command::new("umount").args(["-f", "-l"]).arg(&dir));
        }
        ok(Command::new("kill").arg(daemon.trim()));
        // Three seconds of grace, and moments.
        assert!(
            becomes_so(Duration::from_secs(8), || !process.exists()),
            "the daemon is there, unmounted by force: {is_unmounted}"
        );
        assert!(becomes_so(Duration::from_secs(2), || waits
            .try_wait()
            .unwrap()
            .is_some()));
        assert!(!waits.wait().unwrap().success());
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success(), "what was open fails from then on");
        served.start(&served.address.clone());
        served.stop();
    }
}

fn killed_again_and_again(mut served: Served) {
    let (one, two) = (served.mount("one"), served.mount("two"));
    std::fs::write(one.join("lock"), "x").unwrap();
    std::fs::write(one.join("ping"), "ball").unwrap();
    let mut nameless = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(one.join("nameless"))
        .unwrap();
    nameless.write_all(b"still here").unwrap();
    std::fs::remove_file(one.join("nameless")).unwrap();
    let hold = "import fcntl,sys; f=open('lock','r+b'); fcntl.lockf(f,fcntl.LOCK_EX,1); print('locked',flush=True); \
                sys.stdin.read()";
    let mut holder = Command::new("python3")
        .args(["-c", hold])
        .current_dir(&one)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line.trim(), "locked");

    let is_over = AtomicBool::new(false);
    let rounds = if soak() { 50 } else { 5 };
    let (counted, played) = std::thread::scope(|scope| {
        let counter = scope.spawn(|| {
            let mut file = OpenOptions::new()
                .append(true)
                .create(true)
                .open(one.join("counter"))
                .unwrap();
            let mut count = 0u32;
            while !is_over.load(Ordering::Relaxed) {
                file.write_all(format!("{count:09}\n").as_bytes()).unwrap();
                count += 1;
            }
            count
        });
        let player = scope.spawn(|| {
            let mut turns = 0u32;
            while !is_over.load(Ordering::Relaxed) {
                // Each would fail if done twice: the name is gone after the first time.
                std::fs::rename(two.join("ping"), two.join("pong")).unwrap();
                std::fs::rename(two.join("pong"), two.join("ping")).unwrap();
                turns += 1;
            }
            turns
        });
        // Also when a check fails, or the scope would wait for ever.
        let _end = Ending {
            is_over: &is_over,
            address: served.address.clone(),
        };
        for round in 0..rounds {
            std::thread::sleep(Duration::from_millis(200));
            served.restart();
            assert!(!try_lock(&two), "round {round}: the lock is held");
        }
        is_over.store(true, Ordering::Relaxed);
        (counter.join().unwrap(), player.join().unwrap())
    });
    assert!(counted > 10 && played > 10, "{counted} appends, {played} renames");
    let text = std::fs::read_to_string(two.join("counter")).unwrap();
    let lines: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(lines, (0..counted).collect::<Vec<_>>(), "each append once, in order");
    assert_eq!(std::fs::read_to_string(two.join("ping")).unwrap(), "ball");
    nameless.rewind().unwrap();
    let mut text = String::new();
    nameless.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    drop(nameless);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert!(try_lock(&two), "who held it is gone");
    common::umount(&one);
    common::umount(&two);
    served.stop();
    ok(ferrite().arg("fsck").arg(&served.pool));
}

#[test]
fn wrong_words_are_refused_before_anything_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    for (listen, said) in [
        ("tcp://0.0.0.0:0", "can be reached from other machines"),
        ("127.0.0.1:1", "begins with tcp://"),
        ("tcp://127.0.0.1", "tcp://HOST:PORT"),
    ] {
        let text = fails(ferrite().arg("serve").arg(&pool).args(["--listen", listen]), 2);
        assert!(text.contains(said) && text.contains(listen), "{text}");
    }
    let text = fails(
        ferrite()
            .arg("serve")
            .arg(&pool)
            .args(["--listen", "tcp://127.0.0.1:0"]),
        1,
    );
    assert!(text.contains("No such file"), "{text}");
    mkfs(&pool, &["--size", "16M"]);
    let text = fails(
        ferrite()
            .arg("serve")
            .arg(&pool)
            .args(["--listen", "tcp://127.0.0.1:0", "--path", "/missing"]),
        1,
    );
    assert!(text.contains("/missing"), "{text}");
}

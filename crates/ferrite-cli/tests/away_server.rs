//! A mount whose server is away: processes that look at it, that wait for it and give up, and the end of the mount.
//!
//! The server may be gone, or stopped with the connections open: then clients have sent requests, which may be carried
//! out.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{TestPool, fails, ferrite, has_fuse, ok, text};

/// Enough for a loaded machine; a hang takes longer.
const SOON: Duration = Duration::from_secs(20);

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

/// A mount with a file, and a server whose process is known.
fn served() -> TestPool {
    let test = TestPool::served("64M");
    std::fs::write(test.path("file"), "text").unwrap();
    test
}

/// The port of its server.
fn port(test: &TestPool) -> String {
    let address = &test.server.as_ref().unwrap().address;
    address.rsplit(':').next().unwrap().to_owned()
}

/// The processes of `ferrite` with this command and the port in their arguments. A server's arguments lack its port, so
/// it is found by its pool.
fn processes(command: &str, mark: &str) -> Vec<String> {
    let pattern = format!("ferrite {command} .*{mark}");
    let found = Command::new("pgrep").args(["-f", &pattern]).output().unwrap();
    text(&found).split_whitespace().map(str::to_owned).collect()
}

fn server_of(test: &TestPool) -> String {
    processes("serve", test.pool.to_str().unwrap()).pop().unwrap()
}

fn daemon_of(test: &TestPool) -> String {
    processes("mount", &port(test)).pop().unwrap()
}

fn signal(process: &str, signal: &str) {
    ok(Command::new("kill").args([signal, process]));
}

/// A process on the mount that makes one call and waits for the server.
fn waiting(dir: &Path, script: &str) -> Child {
    // A shell has its background jobs ignore SIGINT, and these tests may be part of one.
    let heard = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)\n";
    Command::new("python3")
        .args(["-c", &format!("{heard}{script}")])
        .current_dir("/")
        .env("DIR", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    line.trim().to_owned()
}

fn ends(child: &mut Child) -> bool {
    let has_ended = becomes_so(SOON, || child.try_wait().unwrap().is_some());
    if !has_ended {
        // Reading these takes no lock that a waiting process may hold.
        let show = |path: String| eprintln!("{path}:\n{}", std::fs::read_to_string(&path).unwrap_or_default());
        show(format!("/proc/{}/status", child.id()));
        show(format!("/proc/{}/wchan", child.id()));
        for task in std::fs::read_dir(format!("/proc/{}/task", child.id()))
            .into_iter()
            .flatten()
            .flatten()
        {
            show(format!("{}/syscall", task.path().display()));
        }
    }
    has_ended
}

/// Ends the processes that wait for the server at this port, if a test has failed.
struct Ending(String);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for daemon in processes("mount", &self.0) {
                let _ = Command::new("kill").args(["-9", &daemon]).output();
            }
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(&format!(" {} ", dir.display()))
}

#[test]
fn an_idle_mount_is_unmounted() {
    if !has_fuse() {
        return;
    }
    let mut test = served();
    let daemon = daemon_of(&test);
    test.server.as_mut().unwrap().kill();
    let start = Instant::now();
    ok(ferrite().arg("umount").arg(&test.dir));
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
    assert!(!is_mounted(&test.dir));
    // It has ended; its parent learns of that a moment later.
    let process = Path::new("/proc").join(daemon);
    assert!(becomes_so(SOON, || !process.exists()));
}

/// More processes wait than the mount has threads to read requests.
#[test]
fn who_looks_at_all_mounts_gets_an_answer_and_who_waits_can_give_up() {
    if !has_fuse() {
        return;
    }
    for stop in [false, true] {
        let mut test = served();
        let _ending = Ending(port(&test));
        let dir = test.dir.clone();
        let server = server_of(&test);
        match stop {
            true => signal(&server, "-STOP"),
            false => drop(ok(Command::new("kill").args(["-9", &server]))),
        }
        let script = "import os, sys; print('runs', flush=True); os.stat(os.environ['DIR'] + '/file')";
        let mut waiters: Vec<Child> = (0..20).map(|_| waiting(&dir, script)).collect();
        for waiter in &mut waiters {
            assert_eq!(line(waiter), "runs");
        }
        std::thread::sleep(Duration::from_millis(500));
        for words in [&["-f", "."][..], &["."]] {
            let mut look = Command::new("stat")
                .stdout(Stdio::null())
                .args(words)
                .current_dir("/")
                .arg(&dir)
                .spawn()
                .unwrap();
            assert!(ends(&mut look), "stat {words:?}, the server stands still: {stop}");
        }
        let mut df = Command::new("df").stdout(Stdio::null()).spawn().unwrap();
        assert!(ends(&mut df), "df, the server stands still: {stop}");
        for (turn, waiter) in waiters.iter_mut().enumerate() {
            assert!(waiter.try_wait().unwrap().is_none(), "it waits for the server");
            signal(&waiter.id().to_string(), ["-INT", "-TERM", "-KILL"][turn % 3]);
        }
        for waiter in &mut waiters {
            assert!(ends(waiter), "the server stands still: {stop}");
        }
        match stop {
            true => signal(&server, "-CONT"),
            false => {
                let _ = Command::new("kill").args(["-9", &server]).output();
            }
        }
        if !stop {
            test.server.as_mut().unwrap().kill();
            test.server.as_mut().unwrap().start();
        }
        assert_eq!(std::fs::read(test.path("file")).unwrap(), b"text");
        test.finish();
    }
}

/// A change that was sent may be carried out, but never twice; and the changes after it are carried out.
#[test]
fn a_change_whose_caller_gave_up_happens_once_at_most() {
    if !has_fuse() {
        return;
    }
    let test = served();
    let _ending = Ending(port(&test));
    let server = server_of(&test);
    for turn in 0..5 {
        let script = format!(
            "import os; f = os.open(os.environ['DIR'] + '/log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
             print('opened', flush=True); input(); print('runs', flush=True); os.write(f, b'{turn}\\n')"
        );
        let mut appends = waiting(&test.dir, &script);
        // It is opened while the server answers. An interpreter that still starts could lose the signal below.
        assert_eq!(line(&mut appends), "opened");
        signal(&server, "-STOP");
        writeln!(appends.stdin.as_mut().unwrap()).unwrap();
        assert_eq!(line(&mut appends), "runs");
        std::thread::sleep(Duration::from_millis(100));
        signal(&appends.id().to_string(), "-INT");
        assert!(ends(&mut appends));
        signal(&server, "-CONT");
        ok(Command::new("bash")
            .args(["-c", "echo after >> log"])
            .current_dir(&test.dir));
    }
    let log = std::fs::read_to_string(test.path("log")).unwrap();
    for turn in 0..5 {
        let count = log.lines().filter(|line| *line == turn.to_string()).count();
        assert!(count <= 1, "{log}");
    }
    assert_eq!(log.lines().filter(|line| *line == "after").count(), 5, "{log}");
    test.finish();
}

/// The close of a killed process waits for no server, and its lock ends.
#[test]
fn a_killed_process_ends_and_its_lock_with_it() {
    if !has_fuse() {
        return;
    }
    let test = served();
    let _ending = Ending(port(&test));
    let server = server_of(&test);
    let lock = "import fcntl, os, sys; f = open(os.environ['DIR'] + '/file', 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX)\n\
                print('locked', flush=True); sys.stdin.read()";
    let mut holder = waiting(&test.dir, lock);
    assert_eq!(line(&mut holder), "locked");
    signal(&server, "-STOP");
    signal(&holder.id().to_string(), "-KILL");
    assert!(ends(&mut holder), "it closes its file");
    signal(&server, "-CONT");
    let mut next = waiting(&test.dir, lock);
    assert_eq!(line(&mut next), "locked");
    drop(next.stdin.take());
    assert!(ends(&mut next));
    test.finish();
}

/// By `umount --force`, by the kernel's way, and by SIGTERM.
#[test]
fn a_busy_mount_is_taken_away() {
    if !has_fuse() {
        return;
    }
    for way in ["--force", "-f -l", "SIGTERM"] {
        let mut test = served();
        let _ending = Ending(port(&test));
        let dir = test.dir.clone();
        let daemon = daemon_of(&test);
        let hold = "import os, sys; f = open(os.environ['DIR'] + '/file', 'rb', 0); print('open', flush=True)\n\
                    sys.stdin.readline(); f.read(1)";
        let mut holder = waiting(&dir, hold);
        assert_eq!(line(&mut holder), "open");
        let server = server_of(&test);
        signal(&server, "-KILL");
        writeln!(holder.stdin.as_mut().unwrap()).unwrap();
        let said = match way {
            "--force" => String::new(),
            _ => fails(ferrite().arg("umount").arg(&dir), 1),
        };
        assert!(way == "--force" || said.contains("busy"), "{said}");
        let start = Instant::now();
        match way {
            "--force" => drop(ok(ferrite().args(["umount", "--force"]).arg(&dir))),
            "SIGTERM" => signal(&daemon, "-TERM"),
            words => drop(ok(Command::new("umount").args(words.split(' ')).arg(&dir))),
        }
        let process = Path::new("/proc").join(&daemon);
        assert!(becomes_so(SOON, || !process.exists()), "{way}: the daemon lives on");
        // Three seconds of grace, and moments.
        assert!(start.elapsed() < Duration::from_secs(8), "{way}: {:?}", start.elapsed());
        assert!(!is_mounted(&dir), "{way}");
        assert!(ends(&mut holder), "{way}: what was open fails");
        test.server.as_mut().unwrap().kill();
    }
}

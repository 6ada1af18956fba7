//! Locks between processes on a mount: they work alike whether the kernel or the engine keeps those of `fcntl`, except
//! for who else sees them.

use std::io::{BufRead, BufReader, Write};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::{TestPool, ferrite, has_fuse, ok, ways};
use ferrite::{Fs, LockKind, OpenOptions, Wait};
use ferrite_fuse::FuseOptions;
use ferrite_vfs::memfs::MemFs;

/// A reply that takes longer never comes.
const LONG: Duration = Duration::from_secs(20);
/// A reply that takes longer is waiting.
const SHORT: Duration = Duration::from_millis(150);

/// Carries out the commands on its standard input, line by line, and answers each line.
const LOCKER: &str = r#"
import errno, fcntl, os, signal, struct, sys
def stop(*_): raise InterruptedError(errno.EINTR, "told")
signal.signal(signal.SIGUSR1, stop)
KINDS = {"sh": fcntl.LOCK_SH, "ex": fcntl.LOCK_EX}
TYPES = {"sh": fcntl.F_RDLCK, "ex": fcntl.F_WRLCK, "un": fcntl.F_UNLCK}
GETLK, OFD_SETLK = fcntl.F_GETLK, 37
# Two names of one number; errno.errorcode has the other.
NAMES = errno.errorcode | {errno.EDEADLK: "EDEADLK"}
fds = {}
def flock_words(kind, start, length):
    return struct.pack("hhqqi4x", TYPES[kind], 0, int(start), int(length), 0)
def run(op, name, *words):
    if op == "open":
        fds[name] = os.open(words[0], os.O_RDWR | os.O_CREAT)
        return "ok"
    fd = fds[name]
    if op == "close":
        os.close(fds.pop(name))
    elif op == "flock":
        fcntl.flock(fd, KINDS[words[0]] | fcntl.LOCK_NB)
    elif op == "flockw":
        fcntl.flock(fd, KINDS[words[0]])
    elif op == "funlock":
        fcntl.flock(fd, fcntl.LOCK_UN)
    elif op == "lock":
        fcntl.lockf(fd, KINDS[words[0]] | fcntl.LOCK_NB, int(words[2]), int(words[1]))
    elif op == "lockw":
        fcntl.lockf(fd, KINDS[words[0]], int(words[2]), int(words[1]))
    elif op == "unlock":
        fcntl.lockf(fd, fcntl.LOCK_UN, int(words[1]), int(words[0]))
    elif op == "ofd":
        fcntl.fcntl(fd, OFD_SETLK, flock_words(*words))
    elif op == "get":
        kind, _, start, length, pid = struct.unpack("hhqqi4x", fcntl.fcntl(fd, GETLK, flock_words(*words)))
        return "free" if kind == fcntl.F_UNLCK else f"{kind == fcntl.F_WRLCK} {start} {length} {pid}"
    return "ok"
for line in sys.stdin:
    try:
        answer = run(*line.split())
    except OSError as error:
        answer = NAMES.get(error.errno, str(error.errno))
    print(answer, flush=True)
"#;

/// A process that locks files in a directory.
struct Locker {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Locker {
    fn new(dir: &Path) -> Locker {
        let mut child = Command::new("python3")
            .args(["-c", LOCKER])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let orders = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Locker { child, orders, answers }
    }

    /// A process that has `f` open as `f`.
    fn with_f(dir: &Path) -> Locker {
        let mut locker = Locker::new(dir);
        assert_eq!(locker.ask("open f f"), "ok");
        locker
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(LONG).expect("an answer")
    }

    fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    fn waits(&self) {
        let answer = self.answers.recv_timeout(SHORT);
        assert!(answer.is_err(), "did not wait: {answer:?}");
    }

    fn signal(&self, signal: &str) {
        ok(Command::new("kill").args([signal, &self.child.id().to_string()]));
    }

    /// Kills it; it must be gone soon, whatever it waits for.
    fn kill(mut self) {
        self.child.kill().unwrap();
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < LONG, "cannot be killed");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Not for ever: a process that cannot be killed must not hide why a test failed.
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs `test` with two names of a directory: on one mount, with each lock manager, and on two mounts of a server;
/// on classic mounts and on rings.
fn with_all(test: impl Fn(&Path, &Path)) {
    if !has_fuse() {
        return;
    }
    for way in ways() {
        for lock_manager in ["locks=kernel", "locks=engine"] {
            println!("{lock_manager}, {way}");
            let options = format!("{lock_manager},{way}");
            let pool = TestPool::new_in(Path::new("/dev/shm"), "32M", &[], &["-o", &options]);
            test(&pool.dir, &pool.dir);
            pool.finish();
        }
        println!("two mounts of a server, {way}");
        let pool = TestPool::served("32M");
        pool.umount();
        pool.mount(&["-o", way]);
        let other = Second(pool.scratch());
        pool.mount_on(&other.0, &["-o", way]);
        test(&pool.dir, &other.0);
        ok(ferrite().arg("umount").arg(&other.0));
        pool.finish();
    }
}

/// Another mount; removed when dropped, whatever happened.
struct Second(PathBuf);

impl Drop for Second {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn processes_keep_each_other_out() {
    with_all(|dir, other| {
        let (mut one, mut two) = (Locker::with_f(dir), Locker::with_f(other));
        assert_eq!(one.ask("lock f ex 0 10"), "ok");
        assert_eq!(two.ask("lock f sh 9 1"), "EAGAIN");
        assert_eq!(two.ask("lock f ex 10 5"), "ok");
        let mine = format!("True 0 10 {}", one.child.id());
        assert_eq!(two.ask("get f ex 0 0"), mine, "who holds what");
        assert_eq!(two.ask("get f sh 10 0"), "free");
        // One part is unlocked, another part made weaker.
        assert_eq!(one.ask("unlock f 0 5"), "ok");
        assert_eq!(two.ask("lock f ex 0 5"), "ok");
        assert_eq!(one.ask("lock f sh 5 5"), "ok");
        assert_eq!(two.ask("lock f sh 5 5"), "ok");
        // Locks on whole files are independent, even if a record lock covers all bytes.
        assert_eq!(one.ask("flock f ex"), "ok");
        assert_eq!(two.ask("flock f sh"), "EAGAIN");
        assert_eq!(two.ask("lock f sh 20 0"), "ok");
        assert_eq!(one.ask("funlock f"), "ok");
        assert_eq!(two.ask("flock f ex"), "ok");
        assert_eq!(one.ask("get f ex 15 0"), format!("False 20 0 {}", two.child.id()));
    });
}

#[test]
fn who_waits_gets_its_turn_when_the_holder_unlocks_closes_or_dies() {
    with_all(|dir, other| {
        for end in ["unlock", "close", "kill"] {
            let (mut one, mut two) = (Locker::with_f(dir), Locker::with_f(other));
            assert_eq!(one.ask("lock f ex 0 0"), "ok");
            two.tell("lockw f ex 5 1");
            two.waits();
            match end {
                "unlock" => assert_eq!(one.ask("unlock f 0 0"), "ok"),
                "close" => assert_eq!(one.ask("close f"), "ok"),
                _ => one.kill(),
            }
            assert_eq!(two.answer(), "ok", "after {end}");
        }
        for end in ["funlock", "close", "kill"] {
            let (mut one, mut two) = (Locker::with_f(dir), Locker::with_f(other));
            assert_eq!(one.ask("flock f ex"), "ok");
            two.tell("flockw f ex");
            two.waits();
            match end {
                "kill" => one.kill(),
                _ => assert_eq!(one.ask(&format!("{end} f")), "ok"),
            }
            assert_eq!(two.answer(), "ok", "after {end}");
        }
    });
}

/// They belong to the open file: they end with its last descriptor, can be exchanged for others, and no one else shares
/// them, not even another open file of the same process.
#[test]
fn locks_on_whole_files_belong_to_open_files() {
    with_all(|dir, other| {
        let (mut one, mut two) = (Locker::with_f(dir), Locker::with_f(other));
        assert_eq!(one.ask("open g f"), "ok");
        assert_eq!(one.ask("flock f sh"), "ok");
        assert_eq!(one.ask("flock g sh"), "ok");
        assert_eq!(one.ask("close g"), "ok");
        assert_eq!(two.ask("flock f sh"), "ok");
        // A process that waits for another lock gives up its previous one.
        two.tell("flockw f ex");
        two.waits();
        // A record lock on all bytes is not a lock on the file, and its end does not end the other.
        assert_eq!(one.ask("lock f ex 0 0"), "ok");
        assert_eq!(one.ask("unlock f 0 0"), "ok");
        two.waits();
        assert_eq!(one.ask("flock f ex"), "ok", "nobody else has any");
        assert_eq!(one.ask("funlock f"), "ok");
        assert_eq!(two.answer(), "ok");
        assert_eq!(one.ask("flock f sh"), "EAGAIN");
        two.kill();
        one.tell("flockw f sh");
        assert_eq!(one.answer(), "ok");
    });
}

/// At least as many wait as the mount has threads: none of them may occupy a thread.
#[test]
fn waiting_takes_no_thread_of_the_mount() {
    with_all(|dir, other| {
        let mut holder = Locker::with_f(dir);
        assert_eq!(holder.ask("lock f ex 0 0"), "ok");
        let mut waiters: Vec<_> = (0..12).map(|_| Locker::with_f(other)).collect();
        for waiter in &mut waiters {
            waiter.tell("lockw f sh 0 0");
        }
        waiters.iter().for_each(Locker::waits);
        std::fs::write(dir.join("other"), "the mount answers").unwrap();
        assert_eq!(holder.ask("unlock f 0 0"), "ok");
        for waiter in waiters {
            assert_eq!(waiter.answer(), "ok");
        }
    });
}

#[test]
fn a_signal_ends_the_waiting() {
    with_all(|dir, other| {
        let (mut one, mut two, mut three) = (Locker::with_f(dir), Locker::with_f(other), Locker::with_f(other));
        assert_eq!(one.ask("lock f ex 0 10"), "ok");
        for _ in 0..2 {
            two.tell("lockw f ex 0 1");
            two.waits();
            two.signal("-USR1");
            assert_eq!(two.answer(), "EINTR");
        }
        two.tell("lockw f ex 0 1");
        three.tell("lockw f ex 1 1");
        two.waits();
        three.waits();
        two.kill();
        assert_eq!(one.ask("unlock f 0 10"), "ok");
        assert_eq!(three.answer(), "ok");
        let held = format!("True 1 1 {}", three.child.id());
        assert_eq!(one.ask("get f sh 0 0"), held, "the dead one's request is gone");
    });
}

/// POSIX: closing any descriptor of a file ends all record locks of the process on it.
#[test]
fn closing_any_descriptor_ends_the_locks_of_the_process() {
    with_all(|dir, other| {
        let (mut one, mut two) = (Locker::with_f(dir), Locker::with_f(other));
        assert_eq!(one.ask("open g f"), "ok");
        assert_eq!(one.ask("lock f ex 0 0"), "ok");
        assert_eq!(two.ask("lock f ex 0 0"), "EAGAIN");
        assert_eq!(two.ask("open h f"), "ok");
        assert_eq!(two.ask("close h"), "ok", "another process's close is nothing to them");
        assert_eq!(two.ask("lock f ex 0 0"), "EAGAIN");
        assert_eq!(one.ask("close g"), "ok");
        assert_eq!(two.ask("lock f ex 0 0"), "ok");
    });
}

/// Locks of an open file end with it, and with nothing else.
#[test]
fn locks_of_open_files_end_with_them() {
    with_all(|dir, other| {
        let (mut one, mut two) = (Locker::with_f(dir), Locker::with_f(other));
        assert_eq!(one.ask("open g f"), "ok");
        assert_eq!(one.ask("ofd f ex 0 0"), "ok");
        assert_eq!(one.ask("ofd g ex 0 0"), "EAGAIN");
        assert_eq!(one.ask("close g"), "ok");
        assert_eq!(two.ask("lock f sh 0 1"), "EAGAIN");
        assert_eq!(one.ask("close f"), "ok");
        // The kernel notifies a mount of the last close after that has returned.
        two.tell("lockw f sh 0 1");
        assert_eq!(two.answer(), "ok");
    });
}

#[test]
fn two_who_would_wait_for_each_other_are_told() {
    with_all(|dir, other| {
        let (mut one, mut two) = (Locker::with_f(dir), Locker::with_f(other));
        assert_eq!(one.ask("lock f ex 0 1"), "ok");
        assert_eq!(two.ask("lock f ex 1 1"), "ok");
        one.tell("lockw f ex 1 1");
        one.waits();
        assert_eq!(two.ask("lockw f ex 0 1"), "EDEADLK");
        assert_eq!(two.ask("close f"), "ok");
        assert_eq!(one.answer(), "ok");
    });
}

/// The purpose of the option: locks against other users of the engine.
#[test]
fn the_library_and_a_mount_of_one_engine_keep_each_other_out() {
    if !has_fuse() {
        return;
    }
    let engine = Arc::new(MemFs::new());
    let library = Fs::over(engine.clone());
    let dir = tempfile::tempdir().unwrap();
    let options = FuseOptions {
        engine_locks: true,
        ..FuseOptions::default()
    };
    let mut mounted = ferrite_fuse::mount(engine, dir.path(), &options).unwrap();
    let unmounter = mounted.unmounter();
    let served = std::thread::spawn(move || mounted.serve());
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut process = Locker::with_f(dir.path());
        assert_eq!(process.ask("lock f ex 0 10"), "ok");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(&library, "/f").unwrap();
        let found = file.conflicting_lock(.., LockKind::Shared).unwrap().unwrap();
        assert_eq!((found.pid, found.range.len_bytes()), (process.child.id(), 10));
        file.lock_range(20..30, LockKind::Exclusive, Wait::No).unwrap();
        process.tell("lockw f sh 20 1");
        process.waits();
        drop(file);
        assert_eq!(process.answer(), "ok");
    }));
    let start = Instant::now();
    while let Err(error) = unmounter.unmount() {
        assert!(start.elapsed() < LONG, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    served.join().unwrap().unwrap();
    result.unwrap();
}

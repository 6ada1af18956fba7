//! A mount on rings under events that could make a request wait for good: a thaw, locks, a dead or leaving daemon, CPUs
//! that go offline. Each test ends within a time limit; a hang fails it.

mod common;

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{TestPool, fails, ferrite, has_rings, ok, sh, soak};

/// An event that takes longer never happens.
const LONG: Duration = Duration::from_secs(30);
/// More than the initial slots of a queue, on any test machine.
const MANY: usize = 64;

fn on_rings(words: &[&str]) -> TestPool {
    let option = [&["rings=on"], words].concat().join(",");
    TestPool::new_in(Path::new("/dev/shm"), "64M", &[], &["-o", &option])
}

/// Waits until `is_so`, or panics.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `work` on a thread, and panics if it takes too long.
fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = channel();
    std::thread::spawn(move || send.send(work()));
    receive
        .recv_timeout(LONG)
        .unwrap_or_else(|_| panic!("{what}: it hangs, or has panicked"))
}

/// Looks at names that the kernel does not know, on each CPU.
fn asks_on_each_cpu(test: &TestPool, round: &str) {
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    for cpu in (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)) {
        let path = test.path(&format!("absent-{round}-{cpu}"));
        within("a request on a CPU whose other requests wait", move || {
            let mut one = rustix::thread::CpuSet::new();
            one.set(cpu);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            assert!(!path.exists());
        });
    }
}

/// Threads that use a mount in every way, until it is gone.
struct Load {
    threads: Vec<JoinHandle<()>>,
    done: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Load {
    fn start(dir: &Path) -> Load {
        let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let threads = (0..MANY).map(|number| {
            let (dir, done, stop) = (dir.join(format!("load{number}")), Arc::clone(&done), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) && turn(&dir, number).is_ok() {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        let load = Load { threads, done, stop };
        load.goes_on();
        load
    }

    /// Each thread has had a turn, more or less.
    fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        until("the load goes on", || {
            self.done.load(Ordering::Relaxed) > before + 2 * MANY
        });
    }

    /// Ends all threads. A thread that returns after the mount is gone would continue in the directory below.
    fn ends(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            within("a thread of the load", move || thread.join().unwrap());
        }
    }
}

fn turn(dir: &Path, number: usize) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let path = dir.join("file");
    let content = vec![number as u8; 5000];
    std::fs::write(&path, &content)?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    file.write_all_at(b"x", 100)?;
    file.sync_all()?;
    let mut back = Vec::new();
    (&file).read_to_end(&mut back)?;
    assert!(back.len() == 5000 && back[101..] == content[101..] && back[100] == b'x');
    std::fs::rename(&path, dir.join("other"))?;
    let names = std::fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    assert_eq!(names.len(), 1);
    std::fs::remove_file(dir.join("other"))
}

#[test]
fn a_mount_says_which_way_it_takes() {
    if !has_rings() {
        return;
    }
    let test = on_rings(&[]);
    let way = test.info()["requests"].as_str().unwrap().to_owned();
    assert!(way.starts_with("rings (io_uring), "), "{way}");
    assert!(ok(ferrite().arg("info").arg(&test.dir)).contains(&way));
    assert!(ok(ferrite().arg("doctor")).contains("fuse.enable_uring is on"));
    common::programs(&test.dir, "delete");
    test.umount();
    test.mount(&["-o", "rings=off"]);
    assert_eq!(test.info()["requests"], "classic (/dev/fuse): rings=off");
    if std::env::var_os("FERRITE_RINGS").is_none() {
        test.umount();
        test.mount(&[]);
        assert_eq!(test.info()["requests"], way, "the default takes what the kernel offers");
    }
    test.finish();
}

/// The switch is the whole machine's; a mount namespace can have its own view of it.
#[test]
fn without_the_switch_a_mount_falls_back_or_is_refused() {
    if !has_rings() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    test.umount();
    let off = test.scratch().join("off");
    std::fs::write(&off, "N\n").unwrap();
    let script = format!(
        "mount --bind {off} /sys/module/fuse/parameters/enable_uring; F={ferrite}
         $F doctor | grep -A1 'FUSE over io_uring' | grep -q 'enable_uring'
         $F mount {pool} {dir} -o rings=on && exit 9; echo \"code $?\"
         $F mount {pool} {dir} -o rings=auto; $F info {dir} | grep requests; echo x > {dir}/x; $F umount {dir}",
        off = off.display(),
        ferrite = ferrite().get_program().display(),
        pool = test.pool.display(),
        dir = test.dir.display(),
    );
    let said = fails(
        Command::new("unshare").args(["-m", "bash", "-uc", &format!("exec 2>&1; {script}; exit 7")]),
        7,
    );
    assert!(
        said.contains("`rings=on`") && said.contains("fuse.enable_uring is off"),
        "{said}"
    );
    assert!(
        said.contains("echo 1 > /sys/module/fuse/parameters/enable_uring"),
        "{said}"
    );
    assert!(said.contains("code 1"), "{said}");
    assert!(said.contains("classic (/dev/fuse): the module parameter"), "{said}");
    test.mount(&[]);
    assert!(test.path("x").exists());
    test.finish();
}

#[test]
fn changes_that_a_freeze_holds_back_leave_the_cpus_others_alone() {
    if !has_rings() {
        return;
    }
    let test = on_rings(&[]);
    std::fs::write(test.path("there"), "content").unwrap();
    // Made before: the kernel locks a directory as long as a new name waits in it.
    let files: Vec<_> = (0..MANY)
        .map(|number| File::create(test.path(&format!("new{number}"))).unwrap())
        .collect();
    ok(ferrite().arg("freeze").arg(&test.dir));
    let done = Arc::new(AtomicUsize::new(0));
    let writers: Vec<_> = (files.into_iter().enumerate())
        .map(|(number, file)| {
            let done = Arc::clone(&done);
            std::thread::spawn(move || {
                file.write_all_at(&vec![number as u8; 300_000], 0).unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    asks_on_each_cpu(&test, "frozen");
    let file = File::open(test.path("there")).unwrap();
    let mut content = [0; 7];
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!((&content, done.load(Ordering::Relaxed)), (b"content", 0));
    drop(file);
    ok(ferrite().arg("thaw").arg(&test.dir));
    for (number, writer) in writers.into_iter().enumerate() {
        within("a write after the thaw", move || writer.join().unwrap());
        let content = std::fs::read(test.path(&format!("new{number}"))).unwrap();
        assert_eq!(content, vec![number as u8; 300_000]);
    }
    test.finish();
}

/// A process that waits for the lock of a file, and says `got` when it has it.
fn waiter(path: &Path) -> Child {
    let script = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, 1); print('got')";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(path).stdout(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn locks_that_wait_leave_the_cpus_others_alone_and_can_be_interrupted() {
    if !has_rings() {
        return;
    }
    let log = tempfile::NamedTempFile::new().unwrap();
    let test = on_rings(&["locks=engine", &format!("log={}", log.path().display())]);
    let path = test.path("locked");
    std::fs::write(&path, "x").unwrap();
    let holder = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, 1); print('got', \
        flush=True); sys.stdin.read()";
    let mut command = Command::new("python3");
    command
        .args(["-c", holder])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut holder = command.spawn().unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    let mut waiters: Vec<_> = (0..MANY / 2).map(|_| waiter(&path)).collect();
    // In the request for the lock.
    let asleep = |child: &Child| {
        let text = std::fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
        text.contains("request_wait") || text.contains("fuse")
    };
    until("all wait", || waiters.iter().all(asleep));
    asks_on_each_cpu(&test, "locked");
    let mut killed = waiters.remove(0);
    killed.kill().unwrap();
    within("a killed waiter", move || killed.wait().unwrap());
    drop(holder.stdin.take());
    for mut waiter in waiters {
        let said = within("the others get it in turn", move || {
            let mut said = String::new();
            waiter.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            waiter.wait().unwrap();
            said
        });
        assert_eq!(said, "got\n");
    }
    holder.wait().unwrap();
    test.finish();
    // An interrupt comes another way than the request it is about.
    assert_eq!(std::fs::read_to_string(log.path()).unwrap(), "");
}

#[test]
fn no_client_hangs_when_the_daemon_is_killed() {
    if !has_rings() {
        return;
    }
    let test = on_rings(&[]);
    let load = Load::start(&test.dir);
    ok(Command::new("kill").args(["-9", &test.daemon().to_string()]));
    load.ends();
    until("it can be unmounted", || {
        Command::new("umount").arg(&test.dir).output().unwrap().status.success()
    });
    test.mount(&["-o", "rings=on"]);
    asks_on_each_cpu(&test, "again");
    test.finish();
}

#[test]
fn no_client_hangs_when_a_mount_is_cut_off() {
    if !has_rings() {
        return;
    }
    for words in [&["-f", "-l"][..], &["-f"]] {
        let test = on_rings(&[]);
        let load = Load::start(&test.dir);
        let daemon = test.daemon();
        // Without -l it reports that it is busy, but the requests have ended by then.
        let _ = Command::new("umount").args(words).arg(&test.dir).output().unwrap();
        load.ends();
        let _ = Command::new("umount").arg("-l").arg(&test.dir).output().unwrap();
        until("the daemon ends", || {
            !Path::new(&format!("/proc/{daemon}/task")).exists()
        });
        test.fsck();
    }
}

#[test]
fn a_mount_can_be_unmounted_in_order_after_a_load() {
    if !has_rings() {
        return;
    }
    let test = on_rings(&[]);
    let load = Load::start(&test.dir);
    fails(ferrite().arg("umount").arg(&test.dir), 1);
    load.ends();
    test.finish();
}

/// Lets the threads of the daemon that read `/dev/fuse`, from which the kernel reports forgotten inodes, run only when
/// no other thread wants a CPU.
fn starve_the_forgetting(test: &TestPool) {
    let daemon = test.daemon();
    for task in std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten() {
        if std::fs::read_to_string(task.path().join("comm"))
            .unwrap()
            .contains("ring")
        {
            continue;
        }
        let thread = task.file_name().into_string().unwrap();
        ok(Command::new("chrt").args(["--idle", "--pid", "0", &thread]));
    }
}

/// On rings, removals may be faster than the requests that free their space.
#[test]
fn removals_faster_than_the_kernel_forgets_find_space() {
    if !has_rings() {
        return;
    }
    let test = on_rings(&[]);
    starve_the_forgetting(&test);
    let stop = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| while !stopped() {});
        }
        // Twice the pool.
        let rewritten = (0..1600).try_for_each(|round| {
            let path = test.path(&format!("file{}", round % 16));
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, vec![round as u8; 80_000])
        });
        stop.store(true, Ordering::Relaxed);
        rewritten.unwrap();
    });
    test.finish();
}

/// Every request waits for the server, so that workers carry them out.
#[test]
fn a_mount_of_a_server_works_on_rings() {
    if !has_rings() {
        return;
    }
    let test = TestPool::served("128M");
    if std::env::var_os("FERRITE_RINGS").is_none() {
        let said = ok(ferrite().arg("info").arg(&test.dir));
        assert!(said.contains("classic (/dev/fuse): requests wait"), "{said}");
    }
    test.umount();
    test.mount(&["-o", "rings=on"]);
    let said = ok(ferrite().arg("info").arg(&test.dir));
    assert!(said.contains("rings (io_uring)"), "{said}");
    let load = Load::start(&test.dir);
    asks_on_each_cpu(&test, "loaded");
    load.ends();
    sh(
        &test.dir,
        "seq 1 200000 > a; cp a b; cmp a b; mkdir d; mv a d; ls d; rm -r d b",
    );
    test.finish();
}

/// Takes a CPU of the machine offline for a moment, so it runs only on request.
#[test]
fn cpus_may_come_and_go() {
    const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";
    if !soak() {
        return eprintln!("skipped: it takes a CPU away for a moment; set FERRITE_SOAK=1");
    }
    if !has_rings() {
        return;
    }
    if std::fs::write(SWITCH, "1").is_err() {
        return eprintln!("skipped: {SWITCH} cannot be written");
    }
    let test = on_rings(&[]);
    let load = Load::start(&test.dir);
    for _ in 0..3 {
        std::fs::write(SWITCH, "0").unwrap();
        load.goes_on();
        std::fs::write(SWITCH, "1").unwrap();
        load.goes_on();
    }
    let daemon = test.daemon();
    let is_back = || {
        let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
        tasks.flatten().any(|task| {
            let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = read("status");
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            read("comm").trim() == "ferrite-ring-1" && list.is_some_and(|list| list.trim() == "1")
        })
    };
    until("the thread of the CPU is back on it", is_back);
    load.ends();
    test.finish();
}

//! A mount behaves like a file system, mounts and unmounts cleanly, and survives its daemon.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{TestPool, fails, ferrite, has_fuse, ok, sh, ways};

#[test]
fn content_and_attributes_outlive_the_mount() {
    if has_fuse() {
        content_and_attributes(TestPool::new("64M", &[]));
        content_and_attributes(TestPool::served("64M"));
    }
}

fn content_and_attributes(test: TestPool) {
    fs::write(test.path("f"), vec![7; 100_000]).unwrap();
    fs::create_dir(test.path("d")).unwrap();
    fs::hard_link(test.path("f"), test.path("d/g")).unwrap();
    symlink("d/g", test.path("l")).unwrap();
    fs::set_permissions(test.path("f"), fs::Permissions::from_mode(0o4751)).unwrap();
    sh(
        &test.dir,
        "touch -d '2001-02-03 04:05:06.123456789' f; mkfifo p; mknod n c 1 3; setfattr -n user.k -v v f",
    );
    let before = fs::metadata(test.path("f")).unwrap();
    test.remount();
    let after = fs::metadata(test.path("l")).unwrap();
    assert_eq!(fs::read(test.path("l")).unwrap(), vec![7; 100_000]);
    assert_eq!(
        (after.ino(), after.nlink(), after.mode()),
        (before.ino(), 2, before.mode())
    );
    assert_eq!((after.mtime(), after.mtime_nsec()), (981_173_106, 123_456_789));
    sh(
        &test.dir,
        "test -p p; test -c n; test \"$(getfattr --only-values -n user.k f)\" = v",
    );
    test.finish();
}

#[test]
fn open_flags_holes_and_shared_mappings() {
    if has_fuse() {
        open_flags_holes(TestPool::new("64M", &[]));
        open_flags_holes(TestPool::served("64M"));
        open_flags_holes(TestPool::with("64M", "direct_io"));
    }
}

fn open_flags_holes(test: TestPool) {
    let path = test.path("f");
    fs::write(&path, "one").unwrap();
    OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"two")
        .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"onetwo");
    assert!(OpenOptions::new().write(true).create_new(true).open(&path).is_err());
    // Not for reading: a mapping could store in the holes, unknown to the engine.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"x", 100_000).unwrap();
    // SAFETY: plain system calls on an open descriptor.
    let (hole, data) = unsafe {
        (
            libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE),
            libc::lseek(file.as_raw_fd(), 4096, libc::SEEK_DATA),
        )
    };
    assert_eq!((hole, data), (4096, 98_304));
    sh(
        &test.dir,
        "fallocate -p -o 0 -l 50000 f; fallocate -l 200000 f; fallocate -z -o 98304 -l 4096 f",
    );
    assert_eq!(file.metadata().unwrap().len(), 200_000);
    assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
    let python = "import \
    mmap\nf=open('f','r+b')\nm=mmap.mmap(f.fileno(),200000)\nm[150000:150004]=b'mmap'\nm.flush()\nm[0:2]=b'hi'\n";
    ok(Command::new("python3").args(["-c", python]).current_dir(&test.dir));
    // An unlinked file lives until it is closed.
    let mut open = File::open(&path).unwrap();
    fs::hard_link(&path, test.path("kept")).unwrap();
    fs::write(test.path("gone"), "still here").unwrap();
    let mut gone = File::open(test.path("gone")).unwrap();
    fs::remove_file(test.path("gone")).unwrap();
    let mut text = String::new();
    gone.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), gone.metadata().unwrap().nlink()), ("still here", 0));
    open.seek(SeekFrom::Start(150_000)).unwrap();
    drop((open, gone, file));
    test.remount();
    let content = fs::read(test.path("kept")).unwrap();
    assert_eq!((&content[..2], &content[150_000..150_004]), (&b"hi"[..], &b"mmap"[..]));
    test.finish();
}

/// The number of pages of a file in the kernel's cache; `None` if this kernel (before 6.5) does not report it.
fn cached_pages(file: &File) -> Option<u64> {
    let (whole, mut counts) = ([0u64; 2], [0u64; 5]);
    // SAFETY: cachestat(2) reads one pair and fills one array of the sizes that it has by its definition.
    let done = unsafe { libc::syscall(451, file.as_raw_fd(), &raw const whole, &raw mut counts, 0) };
    (done == 0).then_some(counts[0])
}

/// No copy in the kernel, and all data of several concurrent writers of one file.
#[test]
fn with_direct_io_the_kernel_keeps_no_data() {
    if !has_fuse() {
        return;
    }
    const LEN: usize = 1 << 20;
    for (options, kept) in ways()
        .into_iter()
        .flat_map(|way| [(way.to_owned(), true), (format!("{way},direct_io"), false)])
    {
        let test = TestPool::with("64M", &options);
        let opened = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(test.path("f"))
            .unwrap();
        let (file, mut all) = (&opened, vec![0; LEN]);
        file.set_len(LEN as u64).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                scope.spawn(move || {
                    // Neighbours share pages, and none of their writes is aligned.
                    for piece in (usize::from(writer)..LEN / 1000).step_by(4) {
                        file.write_all_at(&[writer + 1; 1000], piece as u64 * 1000).unwrap();
                    }
                });
            }
        });
        for _ in 0..2 {
            file.read_exact_at(&mut all, 0).unwrap();
            for (piece, bytes) in all.chunks_exact(1000).enumerate() {
                assert!(
                    bytes.iter().all(|&byte| usize::from(byte) == piece % 4 + 1),
                    "{options}: piece {piece}"
                );
            }
        }
        if let Some(pages) = cached_pages(file) {
            assert_eq!(pages > 0, kept, "{options}: {pages} pages");
        }
        drop(opened);
        test.finish();
    }
}

#[test]
fn every_way_to_unmount_ends_the_daemon_in_order() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let dir = test.dir.display().to_string();
    for (round, way) in ["umount DIR", "fusermount3 -u DIR", "kill -TERM PID"]
        .iter()
        .enumerate()
    {
        fs::write(test.path(&format!("f{round}")), "x").unwrap();
        let daemon = test.daemon().to_string();
        sh(&test.scratch(), &way.replace("DIR", &dir).replace("PID", &daemon));
        sh(
            &test.scratch(),
            &format!("for i in $(seq 500); do kill -0 {daemon} 2>/dev/null || exit 0; sleep 0.02; done; exit 1"),
        );
        assert_eq!(test.info()["was_clean"], true, "{way}");
        test.mount(&[]);
        assert!(test.path(&format!("f{round}")).exists());
    }
    test.finish();
}

#[test]
fn a_killed_daemon_leaves_nothing_that_hangs_and_nothing_lost() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    fs::write(test.path("f"), "returned").unwrap();
    test.kill();
    assert_eq!(test.info()["was_clean"], false);
    test.mount(&[]);
    assert_eq!(fs::read(test.path("f")).unwrap(), b"returned");
    test.finish();
}

#[test]
fn a_dead_mount_is_taken_over() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    fs::write(test.path("f"), "returned").unwrap();
    // A process still has it open, so it cannot just be unmounted.
    let held = File::open(test.path("f")).unwrap();
    ok(Command::new("kill").args(["-9", &test.daemon().to_string()]));
    test.mount(&[]);
    assert_eq!(fs::read(test.path("f")).unwrap(), b"returned");
    drop(held);
    test.umount();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(test.dir.to_str().unwrap()), "nothing is below it");
    test.mount(&[]);
    test.finish();
}

/// A daemon that has not ended yet: on a busy machine it takes its time, here a process has a file open.
#[test]
fn a_pool_that_was_unmounted_is_opened_at_once() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let dir = test.dir.display().to_string();
    let pool = test.pool.display().to_string();
    for words in [
        &["mount", &pool, &dir][..],
        &["fsck", &pool],
        &["mount", "-o", "ro", &pool, &dir],
    ] {
        let file = File::create(test.path("f")).unwrap();
        ok(Command::new("umount").args(["-l", &dir]));
        let mut command = ferrite().args(words).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let early = command.try_wait().unwrap();
        drop(file);
        assert_eq!(early, None, "{words:?}: it did not wait");
        assert!(command.wait().unwrap().success(), "{words:?}");
        if words[0] != "mount" {
            test.mount(&[]);
        }
    }
    test.finish();
}

#[test]
fn a_pool_that_is_in_use_is_refused_at_once() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let new = test.scratch().join("new name");
    let start = Instant::now();
    fs::rename(&test.pool, &new).unwrap();
    assert!(fails(ferrite().arg("fsck").arg(&new), 8).contains("in use by process"));
    fs::rename(&new, &test.pool).unwrap();
    test.umount();
    let owner = ferrite::Fs::open(&test.pool).unwrap();
    assert!(fails(ferrite().arg("fsck").arg(&test.pool), 8).contains("in use by process"));
    assert!(start.elapsed() < Duration::from_secs(10), "it waited");
    owner.close().unwrap();
    test.mount(&[]);
    test.finish();
}

#[test]
fn a_signal_ends_the_daemon_of_a_busy_mount_in_order() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let file = File::create(test.path("f")).unwrap();
    file.write_all_at(b"returned", 0).unwrap();
    // Its stores to memory are written out when its mount is removed.
    let python = "import mmap,os,sys,time\nf=open('m','w+b')\nf.truncate(4096)\nm=mmap.mmap(f.fileno(),4096)\n\
                  m[:6]=b'mapped'\nprint('ready',flush=True)\ntime.sleep(60)\n";
    let mut mapper = Command::new("python3")
        .args(["-c", python])
        .current_dir(&test.dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 5];
    let mut stdout = mapper.stdout.take().unwrap();
    stdout.read_exact(&mut ready).unwrap();
    let daemon = test.daemon().to_string();
    ok(Command::new("kill").args(["-TERM", &daemon]));
    sh(
        &test.scratch(),
        &format!("for i in $(seq 500); do kill -0 {daemon} 2>/dev/null || exit 0; sleep 0.02; done; exit 1"),
    );
    assert!(file.write_all_at(b"too late", 0).is_err());
    assert_eq!(test.info()["was_clean"], true);
    test.mount(&[]);
    assert_eq!(fs::read(test.path("f")).unwrap(), b"returned");
    assert_eq!(&fs::read(test.path("m")).unwrap()[..6], b"mapped");
    drop(file);
    mapper.kill().unwrap();
    mapper.wait().unwrap();
    test.finish();
}

#[test]
fn a_read_only_mount_writes_nothing_even_after_a_crash() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    fs::write(test.path("f"), "content").unwrap();
    test.kill();
    let before = fs::read(&test.pool).unwrap();
    test.mount(&["-o", "ro"]);
    assert_eq!(fs::read(test.path("f")).unwrap(), b"content");
    let error = fs::write(test.path("g"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    test.umount();
    assert!(fs::read(&test.pool).unwrap() == before, "the pool changed");
    test.mount(&[]);
    test.finish();
}

#[test]
fn a_pool_in_use_is_named_with_its_owner() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    let dir = test.dir.display().to_string();
    let said = fails(ferrite().arg("mount").arg(&test.pool).arg(test.scratch()), 1);
    assert!(said.contains("process ") && said.contains(&dir), "{said}");
    let said = fails(ferrite().arg("fsck").arg(&test.pool), 8);
    assert!(said.contains("process ") && said.contains(&dir), "{said}");
    let said = fails(
        ferrite().arg("mkfs").arg(&test.pool).args(["--size", "64M", "--force"]),
        1,
    );
    assert!(said.contains("in use"), "{said}");
    assert!(ok(ferrite().arg("df")).contains(&dir));
    let info = ok(ferrite().arg("info").arg(&test.dir));
    assert!(info.contains("fences"), "the daemon answers: {info}");
    test.finish();
}

/// Small writes go to logs, which `info` counts and `dump` shows, by the daemon and without it.
#[test]
fn page_logs_show_while_mounted_and_after() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    test.umount();
    test.mount(&["-o", "cleaner=off,merge_reads=0"]);
    std::fs::write(test.path("file"), [1; 20_000]).unwrap();
    let file = std::fs::File::options().write(true).open(test.path("file")).unwrap();
    file.write_all_at(b"hello", 5000).unwrap();
    file.write_all_at(b"again", 5003).unwrap();
    drop(file);
    assert_eq!(test.info()["logged_pages"], 1);
    let dump = || ok(ferrite().arg("dump").arg(&test.pool).arg("/file"));
    let live = dump();
    assert!(
        live.contains("2 log entries") && live.contains("5 bytes at 904"),
        "{live}"
    );
    let scrubbed = ok(ferrite().arg("scrub").arg(&test.dir));
    assert!(
        scrubbed.contains("sound; 2 inodes, 1 names, 2 log entries"),
        "{scrubbed}"
    );
    let error = fails(ferrite().arg("dump").arg(&test.dir).arg("nothing"), 1);
    assert!(error.contains("nothing"), "{error}");
    test.umount();
    assert_eq!(dump(), live, "the pool says what its daemon said");
    let error = fails(
        ferrite()
            .arg("mount")
            .arg(&test.pool)
            .arg(&test.dir)
            .args(["-o", "clean_low=x"]),
        2,
    );
    assert!(error.contains("clean_low=x"), "{error}");
    test.mount(&[]);
    let bytes = std::fs::read(test.path("file")).unwrap();
    assert_eq!(&bytes[5000..5008], b"helagain");
    test.finish();
}

/// Pools on a disk's file system, in both modes: changes that returned are there after the daemon is killed.
#[test]
fn pools_on_a_disk_survive_a_killed_daemon() {
    if !has_fuse() {
        return;
    }
    for mode in ["durability=strict", "durability=process", "durability=fsync"] {
        let test = TestPool::new_in(Path::new("/var/tmp"), "64M", &[], &["-o", mode]);
        let info = test.info();
        for n in 0..50_u8 {
            std::fs::write(test.path(&format!("file{n}")), [n; 5000]).unwrap();
        }
        let file = std::fs::File::options().write(true).open(test.path("file7")).unwrap();
        file.write_all_at(b"part of a page", 3).unwrap();
        drop(file);
        test.kill();
        test.mount(&["-o", mode]);
        for n in 0..50_u8 {
            let mut expected = [n; 5000];
            if n == 7 {
                expected[3..17].copy_from_slice(b"part of a page");
            }
            assert_eq!(
                std::fs::read(test.path(&format!("file{n}"))).unwrap(),
                expected,
                "{mode}, {info}"
            );
        }
        test.finish();
    }
}

/// An unmount reports that everything is durable. If closing the pool fails, it must not.
#[test]
fn an_unmount_tells_that_the_pool_could_not_be_closed() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new_in(Path::new("/var/tmp"), "64M", &[], &["-o", "durability=fsync"]);
    std::fs::write(test.path("file"), "not durable yet").unwrap();
    let daemon = test.daemon();
    // It may write nothing more, and ends when it tries to.
    ok(Command::new("prlimit").args(["--pid", &daemon.to_string(), "--core=0", "--fsize=0"]));
    let said = fails(ferrite().arg("umount").arg(&test.dir), 1);
    assert!(said.contains("could not close the pool"), "{said}");
    // The journal's contents are not lost.
    test.mount(&[]);
    test.finish();
}

/// Whether or not the kernel caches the data, a write with O_DSYNC is durable when it returns, and no other waits.
#[test]
fn writes_with_o_dsync_are_durable() {
    if !has_fuse() {
        return;
    }
    for options in ["durability=fsync", "durability=fsync,direct_io"] {
        let test = TestPool::new_in(Path::new("/var/tmp"), "64M", &[], &["-o", options]);
        let syncs = || {
            let said = ok(ferrite().arg("info").arg(&test.dir));
            let line = said.lines().find(|line| line.contains("syncs of the file")).unwrap();
            let before = line.split(" syncs of the file").next().unwrap();
            before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let written = |flags: i32| {
            let before = syncs();
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(flags)
                .open(test.path("f"))
                .unwrap();
            (0..40).for_each(|n| file.write_all_at(b"a few bytes", n * 100).unwrap());
            syncs() - before
        };
        // The thread in the background syncs now and then.
        assert!(written(0) < 10, "{options}");
        for flags in [libc::O_DSYNC, libc::O_SYNC] {
            assert!(written(flags) >= 40, "{options}, {flags:o}");
        }
        test.finish();
    }
}

/// When the daemon has ended, the trace has the writes of programs on the mount, as they made them.
#[test]
fn a_trace_tells_what_was_written() {
    use ferrite_vfs::trace::{Event, parse};
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("64M", &[]);
    fs::write(test.path("old"), [1; 5000]).unwrap();
    let [old, new] = ["old", "new"].map(|name| test.path(name));
    test.umount();
    let trace = test.scratch().join("trace");
    let option = format!("trace={}", trace.display());
    test.mount(&["-o", &option]);
    let file = OpenOptions::new().append(true).read(true).open(&old).unwrap();
    (&file).write_all(b"more").unwrap();
    assert_eq!(fs::read(&old).unwrap().len(), 5004);
    let ino = file.metadata().unwrap().ino();
    drop(file);
    fs::write(&new, vec![2; 3 << 20]).unwrap();
    let made = fs::metadata(&new).unwrap().ino();
    File::create(&old).unwrap().write_all_at(b"short", 10_000).unwrap();
    test.umount();
    let events = parse(&fs::read_to_string(&trace).unwrap()).unwrap();
    let file = |ino, len_bytes| Event::File { ino, len_bytes };
    let write = |ino, offset_bytes, len_bytes| Event::Write {
        ino,
        offset_bytes,
        len_bytes,
    };
    let (front, rest) = events.split_at(3);
    assert_eq!(front, [file(ino, 5000), write(ino, 5000, 4), file(made, 0)]);
    // A long write comes in pieces, in order, split where pages end.
    let (pieces, back) = rest.split_at(rest.len() - 2);
    let mut end = 0;
    for piece in pieces {
        let Event::Write { len_bytes, .. } = *piece else {
            panic!("{events:?}");
        };
        assert_eq!(*piece, write(made, end, len_bytes));
        end += len_bytes;
        assert_eq!(end % 4096, 0);
    }
    assert_eq!(end, 3 << 20);
    assert_eq!(back, [Event::Truncate { ino, len_bytes: 0 }, write(ino, 10_000, 5)]);
    let said = fails(
        ferrite()
            .args(["mount", "-o", &format!("trace={}", test.pool.display())])
            .args([&test.pool, &test.dir]),
        1,
    );
    assert!(said.contains("holds no trace"), "{said}");
    test.mount(&[]);
    test.finish();
}

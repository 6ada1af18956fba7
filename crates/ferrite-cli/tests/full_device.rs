//! Full pools and huge files: `ENOSPC` in time, nothing damaged, `df` correct, and calls that free space always work.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{TestPool, has_fuse, ok, sh};

fn free_bytes(test: &TestPool) -> u64 {
    let stat = rustix::fs::statvfs(&test.dir).unwrap();
    stat.f_bfree * stat.f_frsize
}

/// Waits until `expected` bytes are free: the kernel tells the daemon a moment later that it has forgotten a removed
/// file.
fn frees_up_to(test: &TestPool, expected: u64) {
    let start = Instant::now();
    while free_bytes(test) != expected {
        let free = free_bytes(test);
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{free} bytes free instead of {expected}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index ^ index >> 8 ^ seed).to_le_bytes()[0])
        .collect()
}

/// Writes files of many sizes until the pool is full; records those that were written whole.
fn fill(test: &TestPool, round: usize, files: &mut BTreeMap<String, usize>) {
    const SIZES: [usize; 7] = [10, 300, 5_000, 60_000, 400_000, 2_000_000, 9_000_000];
    let mut failures = 0;
    for n in 0.. {
        let (name, len) = (format!("f{round}-{n}"), SIZES[n % SIZES.len()]);
        match fs::write(test.path(&name), content(len, len)) {
            Ok(()) => {
                files.insert(name, len);
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{name}: {error}");
                // The part that was written takes space that others could use.
                fs::remove_file(test.path(&name)).unwrap();
                failures += 1;
                if failures == SIZES.len() {
                    return;
                }
            }
        }
    }
}

fn verify(test: &TestPool, files: &BTreeMap<String, usize>) {
    for (name, &len) in files {
        assert!(
            fs::read(test.path(name)).unwrap() == content(len, len),
            "{name} is damaged"
        );
    }
}

#[test]
fn filling_and_emptying_ten_times() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("96M", &[]);
    let empty = free_bytes(&test);
    let mut files = BTreeMap::new();
    for round in 0..10 {
        fill(&test, round, &mut files);
        assert!(
            free_bytes(&test) < empty / 10,
            "round {round}: full, but {} bytes free",
            free_bytes(&test)
        );
        let half: Vec<String> = files.keys().step_by(2).cloned().collect();
        for name in half {
            files.remove(&name);
            fs::remove_file(test.path(&name)).unwrap();
        }
        if round % 3 == 0 {
            verify(&test, &files);
        }
    }
    verify(&test, &files);
    test.remount();
    verify(&test, &files);
    for name in files.keys() {
        fs::remove_file(test.path(name)).unwrap();
    }
    frees_up_to(&test, empty);
    test.finish();
}

#[test]
fn a_full_pool_takes_deletes_overwrites_and_database_commits() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("96M", &[]);
    let db = "
import sqlite3, sys
db = sqlite3.connect('db')
db.execute('pragma journal_mode=off') if sys.argv[1] == 'make' else None
db.execute('create table if not exists t (n integer primary key, text)')
if sys.argv[1] == 'make':
    db.executemany('insert into t values (?, ?)', [(n, 'x' * 500) for n in range(2000)])
else:
    db.execute('pragma journal_mode=memory')
    db.execute(\"update t set text = replace(text, 'x', 'y')\")
db.commit()
assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
";
    let run = |word: &str| ok(Command::new("python3").args(["-c", db, word]).current_dir(&test.dir));
    run("make");
    fs::write(test.path("mapped"), vec![0; 1 << 20]).unwrap();
    let mut files = BTreeMap::new();
    fill(&test, 0, &mut files);
    for (name, &len) in &files {
        let file = OpenOptions::new().write(true).open(test.path(name)).unwrap();
        file.write_all_at(&content(len, len), 0)
            .unwrap_or_else(|error| panic!("overwrite of {name}: {error}"));
    }
    verify(&test, &files);
    run("update");
    let python = "import mmap\nf=open('mapped','r+b')\nm=mmap.mmap(f.fileno(),0)\nm[:]=b'm'*len(m)\nm.flush()\n";
    ok(Command::new("python3").args(["-c", python]).current_dir(&test.dir));
    test.remount();
    assert!(fs::read(test.path("mapped")).unwrap().iter().all(|&byte| byte == b'm'));
    sh(&test.dir, "rm -rf f0-*");
    fs::write(test.path("space again"), vec![1; 10 << 20]).unwrap();
    test.finish();
}

#[test]
fn overwriting_everything_at_half_full_leaves_the_other_half() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("128M", &[]);
    let total = free_bytes(&test);
    let half = (total / 2) as usize;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(test.path("f"))
        .unwrap();
    file.write_all_at(&vec![1; half], 0).unwrap();
    for page in 0..half / 4096 {
        file.write_all_at(&[2; 4096], (page * 4096) as u64).unwrap();
    }
    let filler = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(test.path("g"))
        .unwrap();
    let mut at = 0;
    while filler.write_all_at(&[3; 65_536], at).is_ok() {
        at += 65_536;
    }
    drop((file, filler));
    let used = total - free_bytes(&test);
    assert!(used * 100 >= total * 95, "only {} % could be used", used * 100 / total);
    test.finish();
}

#[test]
fn out_of_inodes_and_out_of_names() {
    if !has_fuse() {
        return;
    }
    for words in [["--inodes", "200"], ["--names", "512"]] {
        let test = TestPool::new("64M", &words);
        let mut made = 0;
        let error = loop {
            match fs::File::create(test.path(&format!("f{made}"))) {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert!((190..600).contains(&made), "{made} files with {words:?}");
        for n in 0..made / 2 {
            fs::remove_file(test.path(&format!("f{n}"))).unwrap();
        }
        for n in 0..made / 2 {
            fs::File::create(test.path(&format!("again{n}"))).unwrap();
        }
        test.finish();
    }
}

#[test]
fn a_huge_sparse_file_is_handled_by_what_is_in_it() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("256M", &[]);
    let quick = |what: &str, f: &dyn Fn()| {
        let start = Instant::now();
        f();
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{what} took {:?}",
            start.elapsed()
        );
    };
    // So that the root directory has its block already.
    fs::write(test.path("other"), "").unwrap();
    let free = free_bytes(&test);
    let make = || {
        // Not for reading: while a mapping can store in a file, no part of it is called a hole.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(test.path("sparse"))
            .unwrap();
        for offset in [0, 1 << 39, (1 << 40) - 4096] {
            file.write_all_at(&[1; 4096], offset).unwrap();
        }
        file
    };
    let file = make();
    quick("seeking", &|| {
        let found = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4096)).unwrap();
        assert_eq!(found, 1 << 39);
    });
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    quick("punching", &|| {
        rustix::fs::fallocate(&file, punch, 0, (1 << 40) - 4096).unwrap()
    });
    // The page that is left, and the nodes that lead to it.
    let nodes = match std::env::var("FERRITE_MAPPING").as_deref() {
        Ok("radix") => 4,
        Ok("extent") => 1,
        _ => 0,
    };
    assert_eq!(free - free_bytes(&test), 4096 * (1 + nodes));
    drop(file);
    make();
    quick("removing", &|| fs::remove_file(test.path("sparse")).unwrap());
    fs::write(test.path("big"), vec![5; 150 << 20]).unwrap();
    quick("removing 150 MiB", &|| fs::remove_file(test.path("big")).unwrap());
    frees_up_to(&test, free);
    test.finish();
}

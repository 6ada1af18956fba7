//! Concurrent reads, writes and appends whose results can be checked directly.

use std::sync::atomic::{AtomicBool, Ordering};

use ferrite_vfs::{FileKind, FileSystem, Ino, NewNode, OpenMode, ROOT_INO, SYSTEM, SetAttr, Written};

use super::{Check, together};
use crate::rng::{Rng, pattern};

pub(super) fn checks() -> [Check; 4] {
    [
        Check {
            name: "linear/threads on distinct files",
            run: distinct_files,
        },
        Check {
            name: "linear/a read never sees half of a write",
            run: whole_writes,
        },
        Check {
            name: "linear/appends neither overlap nor tear",
            run: appends,
        },
        Check {
            name: "linear/truncates and reads",
            run: truncates,
        },
    ]
}

pub(super) fn make_file(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    fs.mknod(SYSTEM, dir, name.as_bytes(), &node)
        .unwrap_or_else(|error| panic!("mknod {name}: {error}"))
        .ino
}

/// The result of a thread's work in its own file must be as if it were alone.
fn distinct_files(fs: &dyn FileSystem, seed: u64) {
    together(4, |thread| {
        let mut rng = Rng::new(seed + thread as u64);
        let name = format!("own {thread}");
        let dir = fs.mkdir(SYSTEM, ROOT_INO, name.as_bytes(), 0o755).expect("mkdir").ino;
        for round in 0..12 {
            let ino = make_file(fs, dir, &format!("f{round}"));
            let file = fs.open(SYSTEM, ino, OpenMode::read_write()).expect("open");
            let mut expected = Vec::new();
            for step in 0..60u32 {
                let offset = rng.below(30_000) as usize;
                let data = pattern((thread as u32) << 16 | (step + 1), rng.below(9000) as usize + 1);
                match rng.below(6) {
                    0 => {
                        fs.setattr(
                            SYSTEM,
                            ino,
                            &SetAttr {
                                size: Some(offset as u64),
                                ..SetAttr::default()
                            },
                        )
                        .expect("truncate");
                        expected.resize(offset, 0);
                    }
                    1 => {
                        assert_eq!(
                            file.append(SYSTEM, &data),
                            Ok(Written::new(expected.len() as u64, data.len()))
                        );
                        expected.extend_from_slice(&data);
                    }
                    2 | 3 => {
                        let mut buffer = vec![0; data.len()];
                        let count = file.read_at(SYSTEM, offset as u64, &mut buffer).expect("read");
                        let end = (offset + data.len()).min(expected.len());
                        assert!(
                            buffer[..count] == expected[offset.min(end)..end],
                            "thread {thread}, step {step}"
                        );
                    }
                    _ => {
                        assert_eq!(file.write_at(SYSTEM, offset as u64, &data), Ok(data.len()));
                        expected.resize(expected.len().max(offset + data.len()), 0);
                        expected[offset..offset + data.len()].copy_from_slice(&data);
                    }
                }
            }
            let mut buffer = vec![0; expected.len() + 1];
            assert_eq!(file.read_at(SYSTEM, 0, &mut buffer), Ok(expected.len()));
            assert!(buffer[..expected.len()] == expected, "thread {thread}, file {round}");
            if round % 3 == 2 {
                fs.unlink(SYSTEM, dir, format!("f{round}").as_bytes()).expect("unlink");
            }
        }
    });
}

/// Each writer covers a range with one byte value; a reader that finds two values in it saw a torn write.
fn whole_writes(fs: &dyn FileSystem, _seed: u64) {
    // Inline, within a page, across pages off their edges, whole pages, the promised bound.
    for (offset, len, rounds) in [
        (0, 100, 3000),
        (10, 3000, 2000),
        (4000, 5000, 1500),
        (0, 65_536, 500),
        (777, 300_000, 100),
        (0, 2 << 20, 16),
    ] {
        let ino = make_file(fs, ROOT_INO, "shared");
        let file = fs.open(SYSTEM, ino, OpenMode::read_write()).expect("open");
        assert_eq!(file.write_at(SYSTEM, offset, &vec![1; len]), Ok(len));
        let stop = AtomicBool::new(false);
        together(4, |thread| {
            // Two handles, so that state kept per handle cannot hide anything.
            let file = fs.open(SYSTEM, ino, OpenMode::read_write()).expect("open");
            if thread < 2 {
                for round in 0..rounds {
                    let data = vec![(round % 100) as u8 * 2 + thread as u8 + 1; len];
                    assert_eq!(file.write_at(SYSTEM, offset, &data), Ok(len));
                }
                stop.store(true, Ordering::Release);
                return;
            }
            let mut buffer = vec![0; len];
            while !stop.load(Ordering::Acquire) {
                assert_eq!(file.read_at(SYSTEM, offset, &mut buffer), Ok(len));
                let odd = buffer.iter().position(|&byte| byte != buffer[0]);
                assert!(
                    odd.is_none(),
                    "a read of {len} bytes at {offset} saw two writes, first at byte {odd:?}"
                );
            }
        });
        drop(file);
        fs.unlink(SYSTEM, ROOT_INO, b"shared").expect("unlink");
    }
}

/// Each record is {thread, number, length, bytes}; the file must consist of these records, whole, each thread's in
/// order.
fn appends(fs: &dyn FileSystem, seed: u64) {
    const THREADS: usize = 4;
    const EACH: u32 = 250;
    let record = |thread: usize, number: u32, len: usize| {
        let mut bytes = vec![thread as u8 + 1];
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        bytes.extend_from_slice(&pattern((thread as u32) << 20 | (number + 1), len));
        bytes
    };
    let ino = make_file(fs, ROOT_INO, "log");
    together(THREADS, |thread| {
        let mut rng = Rng::new(seed + thread as u64);
        let file = fs.open(SYSTEM, ino, OpenMode::read_write()).expect("open");
        for number in 0..EACH {
            let max = if number % 10 == 0 { 20_000 } else { 300 };
            let bytes = record(thread, number, rng.below(max) as usize);
            let Written { offset, len_bytes } = file.append(SYSTEM, &bytes).expect("append");
            assert_eq!(len_bytes, bytes.len());
            let mut back = vec![0; bytes.len()];
            assert_eq!(file.read_at(SYSTEM, offset, &mut back), Ok(bytes.len()));
            assert!(
                back == bytes,
                "record {number} of thread {thread} is not where append said"
            );
        }
    });
    let file = fs.open(SYSTEM, ino, OpenMode::read_only()).expect("open");
    let mut log = vec![0; file.getattr(SYSTEM).expect("getattr").size as usize];
    assert_eq!(file.read_at(SYSTEM, 0, &mut log), Ok(log.len()));
    let mut next = [0; THREADS];
    let mut at = 0;
    while at < log.len() {
        let thread = usize::from(log[at]) - 1;
        let field = |from: usize| u32::from_le_bytes(log[from..from + 4].try_into().expect("four bytes"));
        let (number, len) = (field(at + 1), field(at + 5) as usize);
        let bytes = record(thread, number, len);
        assert!(log[at..].starts_with(&bytes), "the record at {at} is torn");
        assert_eq!(
            number, next[thread],
            "a record of thread {thread} is lost or out of order"
        );
        next[thread] += 1;
        at += bytes.len();
    }
    assert_eq!(next, [EACH; THREADS]);
}

/// One thread truncates to nothing or to one page and refills; readers see sizes and bytes of one state.
fn truncates(fs: &dyn FileSystem, _seed: u64) {
    const FULL: usize = 20_000;
    let ino = make_file(fs, ROOT_INO, "cut");
    let stop = AtomicBool::new(false);
    together(3, |thread| {
        let file = fs.open(SYSTEM, ino, OpenMode::read_write()).expect("open");
        if thread == 0 {
            for round in 0..600u64 {
                assert_eq!(file.write_at(SYSTEM, 0, &[round as u8 | 1; FULL]), Ok(FULL));
                let size = round % 3 * 4096;
                fs.setattr(
                    SYSTEM,
                    ino,
                    &SetAttr {
                        size: Some(size),
                        ..SetAttr::default()
                    },
                )
                .expect("truncate");
            }
            stop.store(true, Ordering::Release);
            return;
        }
        let mut buffer = vec![0; FULL + 1];
        while !stop.load(Ordering::Acquire) {
            let count = file.read_at(SYSTEM, 0, &mut buffer).expect("read");
            assert!(
                [0, 4096, 8192, FULL].contains(&count),
                "a read gave {count} bytes: a state that never was"
            );
            if let Some(first) = buffer[..count].first() {
                assert!(
                    *first != 0 && buffer[..count].iter().all(|byte| byte == first),
                    "bytes of two states"
                );
            }
            let size = file.getattr(SYSTEM).expect("getattr").size as usize;
            assert!(
                [0, 4096, 8192, FULL].contains(&size),
                "getattr gave size {size}: a state that never was"
            );
        }
    });
}

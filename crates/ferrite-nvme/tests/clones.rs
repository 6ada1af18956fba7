//! Clones in pools on devices: files share a blob until one of them changes, then the space of all that is unchanged,
//! and the last one gives it back; a pool that is full refuses a clone or a change whole; clones are one state while
//! others write, and a check counts the files of each blob. That a clone is equal and apart is a part of the POSIX
//! suite; crashes are in `crash.rs`.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{BACKENDS, Backend, Memory};
use ferrite_testkit::TestEngine;
use ferrite_testkit::rng::pattern;
use ferrite_testkit::snapshot::Snapshot;
use ferrite_vfs::{
    CloneRange, Ctx, DedupToken, FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, RenameMode,
    SNAPSHOTS_NAME, SYSTEM, SetAttr, Unsupported,
};

const MIB: usize = 1 << 20;

fn make(pool: &Memory, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let ino = pool.fs().mknod(SYSTEM, dir, name.as_bytes(), &node).unwrap().ino;
    write(pool, ino, 0, content).unwrap();
    ino
}

fn write(pool: &Memory, ino: Ino, at: u64, data: &[u8]) -> ferrite_vfs::Result<()> {
    let file = pool.fs().open(SYSTEM, ino, OpenMode::read_write())?;
    assert_eq!(file.write_at(SYSTEM, at, data)?, data.len());
    Ok(())
}

fn read(pool: &Memory, ino: Ino) -> Vec<u8> {
    let file = pool.fs().open(SYSTEM, ino, OpenMode::read_only()).unwrap();
    let mut content = vec![0; file.getattr(SYSTEM).unwrap().size as usize];
    assert_eq!(file.read_at(SYSTEM, 0, &mut content).unwrap(), content.len());
    content
}

fn size(bytes: u64) -> SetAttr {
    SetAttr {
        size: Some(bytes),
        ..SetAttr::default()
    }
}

fn mkdir(pool: &Memory, dir: Ino, name: &[u8]) -> Ino {
    pool.fs().mkdir(SYSTEM, dir, name, 0o755).unwrap().ino
}

fn clone(pool: &Memory, source: Ino, name: &str) -> Ino {
    let cloned = pool.fs().clone_tree(SYSTEM, source, ROOT_INO, name.as_bytes());
    cloned.unwrap().ino
}

/// Free space in MiB, without blobs that wait to be deleted.
fn free(pool: &Memory) -> u64 {
    let space = pool.fs().statfs(SYSTEM).unwrap();
    space.blocks_free * u64::from(space.block_bytes) / MIB as u64
}

/// The records of this kind in the metadata.
fn records(pool: &Memory, kind: u8) -> usize {
    let mut count = 0;
    let mut visit = |_: &[u8], _: &[u8]| {
        count += 1;
        ControlFlow::Continue(())
    };
    pool.meta().scan(&[kind], &[kind + 1], &mut visit).unwrap();
    count
}

#[test]
fn files_share_a_blob_until_one_changes() {
    for &backend in BACKENDS {
        let mut pool = Memory::at(backend, 2, 64, 62);
        let content = pattern(1, 8 * MIB);
        let file = make(&pool, ROOT_INO, "file", &content);
        let before = free(&pool);
        let copies: Vec<Ino> = (0..5).map(|n| clone(&pool, file, &format!("clone{n}"))).collect();
        assert_eq!(free(&pool), before, "{backend:?}: a clone takes space");
        assert_eq!(records(&pool, b'R'), 1);
        pool.check();
        // A change costs a copy of what is around it, once. The system tells free space in MiB.
        for at in [0, 1, 3, 4, 6] {
            write(&pool, copies[0], (at * MIB) as u64 + 5000, b"changed").unwrap();
            write(&pool, copies[0], (at * MIB) as u64 + 5010, b"changed").unwrap();
        }
        let around = if backend.shares_clusters() { 1 } else { 5 };
        assert_eq!(free(&pool), before - around, "{backend:?}");
        pool.close();
        pool.open();
        for &copy in &copies[1..] {
            assert!(read(&pool, copy) == content, "{backend:?}: a clone sees a change");
        }
        let fs = pool.fs();
        fs.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
        for n in 0..4 {
            fs.unlink(SYSTEM, ROOT_INO, format!("clone{n}").as_bytes()).unwrap();
        }
        assert_eq!(free(&pool), before, "{backend:?}: what has gone takes space");
        // The last one need not copy.
        write(&pool, copies[4], 0, b"changed").unwrap();
        assert_eq!(records(&pool, b'R'), 0);
        assert_eq!(free(&pool), before, "{backend:?}: a copy of what no other file has");
        assert_eq!(read(&pool, copies[4])[7..], content[7..]);
        pool.fs().unlink(SYSTEM, ROOT_INO, b"clone4").unwrap();
        assert_eq!(free(&pool), before + 8);
        pool.check();
    }
}

/// A copy of a whole file onto a new, a shorter or an equal one shares its blob; others are left to the caller.
#[test]
fn copies_of_whole_files_share_their_blob() {
    for &backend in BACKENDS {
        let mut pool = Memory::at(backend, 2, 64, 62);
        let content = pattern(1, 8 * MIB + 77);
        let source = make(&pool, ROOT_INO, "source", &content);
        let short = make(&pool, ROOT_INO, "short", &pattern(2, 3 * MIB));
        let small = make(&pool, ROOT_INO, "small", b"few");
        let long = make(&pool, ROOT_INO, "long", &pattern(3, 9 * MIB));
        let before = free(&pool);
        let copy = |pool: &Memory, to: Ino, offset: u64, len_bytes: u64| {
            let open = |ino, mode| pool.fs().open(SYSTEM, ino, mode).unwrap();
            let (from, file) = (open(source, OpenMode::read_only()), open(to, OpenMode::read_write()));
            let range = CloneRange {
                source: from.id(),
                source_offset: offset,
                offset,
                len_bytes,
            };
            file.clone_range(SYSTEM, &range).map(|written| written.len_bytes)
        };
        for ino in [small, short, short] {
            assert_eq!(copy(&pool, ino, 0, u64::MAX / 2), Ok(content.len()), "{backend:?}");
        }
        assert_eq!(
            free(&pool),
            before + 3,
            "{backend:?}: a copy takes space, or keeps what it had"
        );
        let refused = Err(FsError::NotSupported(Unsupported::Clone));
        assert_eq!(copy(&pool, long, 0, u64::MAX / 2).map_err(|_| ()), Err(()));
        // Whole units, and yet not all of the longer file.
        pool.fs().setattr(SYSTEM, source, &size(8 * MIB as u64)).unwrap();
        assert_eq!(copy(&pool, long, 0, u64::MAX / 2), refused);
        assert_eq!(read(&pool, long).len(), 9 * MIB);
        pool.fs().setattr(SYSTEM, source, &size(content.len() as u64)).unwrap();
        assert_eq!(copy(&pool, short, 0, MIB as u64), refused);
        assert_eq!(copy(&pool, short, MIB as u64, MIB as u64), refused);
        pool.close();
        pool.open();
        write(&pool, source, 0, b"changed").unwrap();
        assert!(read(&pool, short) == content && read(&pool, small) == content);
        write(&pool, small, 100, b"changed").unwrap();
        assert!(read(&pool, short) == content, "{backend:?}");
        pool.fs().unlink(SYSTEM, ROOT_INO, b"source").unwrap();
        write(&pool, short, 0, b"changed").unwrap();
        assert_eq!(
            (records(&pool, b'R'), read(&pool, short)[7..] == content[7..]),
            (0, true)
        );
        pool.check();
    }
}

/// A pool that is too full for a copy refuses the change, and the file is as before; emptying and removing take none.
#[test]
fn a_full_pool_refuses_the_change_of_a_shared_file() {
    let pool = Memory::new(1, 24, 62);
    let content = pattern(1, 10 * MIB);
    let file = make(&pool, ROOT_INO, "file", &content);
    let copy = clone(&pool, file, "clone");
    let filler = make(&pool, ROOT_INO, "filler", b"x");
    let mut size = 0;
    while write(&pool, filler, size, &pattern(2, MIB)).is_ok() {
        size += MIB as u64;
    }
    // There may be space for some changes still.
    let (mut changed, mut at) = (content.clone(), 0);
    let error = loop {
        match write(&pool, copy, at as u64, b"changed") {
            Ok(()) => changed[at..at + 7].copy_from_slice(b"changed"),
            Err(error) => break error,
        }
        at += 16 << 10;
        assert!(at < MIB, "it has space without end");
    };
    assert!(matches!(error, FsError::NoSpace(_)), "{error}");
    assert!(read(&pool, copy) == changed && read(&pool, file) == content);
    pool.check();
    let mode = OpenMode {
        truncate: true,
        ..OpenMode::read_write()
    };
    pool.fs().open(SYSTEM, copy, mode).unwrap();
    assert!(read(&pool, file) == content && read(&pool, copy).is_empty());
    // It is the only one now, and changes in place.
    write(&pool, file, 0, b"changed").unwrap();
    pool.check();
}

/// Snapshots that are taken and removed for ever leave nothing, and so do clones that are refused half way.
#[test]
fn removed_snapshots_and_refused_clones_leave_nothing() {
    let rounds = if std::env::var_os("FERRITE_SOAK").is_some() {
        1000
    } else {
        25
    };
    let mut pool = Memory::at(Backend::Database, 2, 64, 62);
    let top = mkdir(&pool, ROOT_INO, b"top");
    let mut dirs = vec![top];
    for name in [b"a", b"b"] {
        dirs.push(mkdir(&pool, dirs[dirs.len() - 1], name));
    }
    for n in 0..200 {
        make(&pool, dirs[n % 3], &format!("file{n}"), &pattern(n as u32, n * 300));
    }
    pool.fs()
        .link(SYSTEM, make(&pool, top, "linked", &[1; 40_000]), dirs[2], b"link")
        .unwrap();
    let snapshots = mkdir(&pool, top, SNAPSHOTS_NAME);
    let (before, space, kinds) = (Snapshot::capture(pool.fs()).unwrap(), free(&pool), *b"NEASO");
    let counts = |pool: &Memory| kinds.map(|kind| records(pool, kind));
    let found = counts(&pool);
    for round in 0..rounds {
        let name = format!("s{round}");
        pool.fs().mkdir(SYSTEM, snapshots, name.as_bytes(), 0o755).unwrap();
        write(
            &pool,
            pool.fs().lookup(SYSTEM, top, b"linked").unwrap().ino,
            round,
            b"changed",
        )
        .unwrap();
        pool.fs().rmdir(SYSTEM, snapshots, name.as_bytes()).unwrap();
        let user = Ctx::checked(ferrite_vfs::Cred::new(9, 9));
        let refused = pool.fs().clone_tree(&user, top, ROOT_INO, b"clone").unwrap_err();
        assert_eq!(refused, FsError::NotPermitted);
    }
    pool.close();
    pool.open();
    let after = Snapshot::capture(pool.fs()).unwrap();
    assert_eq!(before.0.keys().collect::<Vec<_>>(), after.0.keys().collect::<Vec<_>>());
    assert_eq!((counts(&pool), free(&pool)), (found, space), "{kinds:?}");
    let mut visit = |_: &[u8], value: &[u8]| {
        assert_eq!(value, 1_u64.to_le_bytes(), "a blob has another file");
        ControlFlow::Continue(())
    };
    pool.meta().scan(b"R", b"S", &mut visit).unwrap();
    pool.check();
}

/// A database takes some thousand changes at once; what a snapshot alone has had is deleted by several steps, also by
/// the start after a crash.
#[test]
fn a_snapshot_with_many_blobs_of_its_own_is_removed() {
    const FILES: usize = 4_500;
    let mut pool = Memory::at(Backend::Database, 1, 400, 62).with_small_files(2048);
    let top = mkdir(&pool, ROOT_INO, b"top");
    let files: Vec<Ino> = (0..FILES)
        .map(|n| make(&pool, top, &format!("{n}"), &[1; 3000]))
        .collect();
    let snapshots = mkdir(&pool, top, SNAPSHOTS_NAME);
    pool.fs().mkdir(SYSTEM, snapshots, b"s", 0o755).unwrap();
    for &file in &files {
        write(&pool, file, 0, b"changed").unwrap();
    }
    pool.fs().rmdir(SYSTEM, snapshots, b"s").unwrap();
    pool.crash();
    pool.check();
    pool.fs().mkdir(SYSTEM, snapshots, b"s", 0o755).unwrap();
    files
        .iter()
        .for_each(|&file| write(&pool, file, 0, b"changed").unwrap());
    pool.fs().rmdir(SYSTEM, snapshots, b"s").unwrap();
    pool.close();
    pool.open();
    assert_eq!(records(&pool, b'N'), FILES + 3);
    pool.check();
}

/// Of two files that are written one after the other the second never has more, and a file that moves between two
/// directories is in one of them.
#[test]
fn a_clone_is_one_state_while_others_write() {
    for &backend in BACKENDS {
        let pool = Memory::at(backend, 2, 64, 62);
        let top = mkdir(&pool, ROOT_INO, b"top");
        let dirs = [b"a", b"b"].map(|name| mkdir(&pool, top, name));
        let files = ["first", "second"].map(|name| make(&pool, top, name, &[0; 40_000]));
        make(&pool, dirs[0], "moving", b"");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0_usize.. {
                    let (from, to) = (dirs[round % 2], dirs[(round + 1) % 2]);
                    let mode = RenameMode::NoReplace;
                    pool.fs().rename(SYSTEM, from, b"moving", to, b"moving", mode).unwrap();
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                for number in 1_u64.. {
                    for file in files {
                        write(&pool, file, 0, &number.to_le_bytes()).unwrap();
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for round in 0..20 {
                let clone = clone(&pool, top, &format!("clone{round}"));
                let number = |name: &[u8]| {
                    let ino = pool.fs().lookup(SYSTEM, clone, name).unwrap().ino;
                    u64::from_le_bytes(read(&pool, ino)[..8].try_into().unwrap())
                };
                let (first, second) = (number(b"first"), number(b"second"));
                assert!(first == second || first == second + 1, "{backend:?}: {first}, {second}");
                let has = [b"a", b"b"].map(|name| {
                    let dir = pool.fs().lookup(SYSTEM, clone, name).unwrap().ino;
                    pool.fs().lookup(SYSTEM, dir, b"moving").is_ok()
                });
                assert!(has[0] != has[1], "{backend:?}, round {round}: {has:?}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        pool.check();
    }
}

/// A repeated request finds the clone, or the snapshot, that the first has made.
#[test]
fn requests_are_executed_once() {
    let mut pool = Memory::at(Backend::Database, 1, 32, 62);
    let ctx = |seq| Ctx {
        token: Some(DedupToken { slot: 1, seq }),
        ..SYSTEM.clone()
    };
    let dir = mkdir(&pool, ROOT_INO, b"dir");
    let first = pool.fs().clone_tree(&ctx(5), dir, ROOT_INO, b"clone").unwrap();
    make(&pool, dir, "later", b"");
    pool.crash();
    let again = pool.fs().clone_tree(&ctx(5), dir, ROOT_INO, b"clone").unwrap();
    assert_eq!(again.ino, first.ino);
    let found = pool.fs().lookup(SYSTEM, first.ino, b"later").unwrap_err();
    assert_eq!(found, FsError::NotFound);
    let snapshots = mkdir(&pool, dir, SNAPSHOTS_NAME);
    let taken = pool.fs().mkdir(&ctx(6), snapshots, b"s", 0o755).unwrap();
    pool.crash();
    assert_eq!(pool.fs().mkdir(&ctx(6), snapshots, b"s", 0o755).unwrap().ino, taken.ino);
    pool.fs().rmdir(&ctx(7), snapshots, b"s").unwrap();
    pool.crash();
    pool.fs().rmdir(&ctx(7), snapshots, b"s").unwrap();
    let refused = pool.fs().clone_tree(&ctx(8), dir, ROOT_INO, b"clone");
    assert_eq!(refused.map(drop).unwrap_err(), FsError::Exists);
    pool.check();
}

/// A part of a snapshot that lost its name becomes an ordinary file, or directory, in lost+found.
#[test]
fn parts_of_damaged_snapshots_are_freed_by_a_repair() {
    let mut pool = Memory::new(1, 32, 62);
    let dir = mkdir(&pool, ROOT_INO, b"dir");
    let sub = mkdir(&pool, dir, b"sub");
    make(&pool, sub, "file", &pattern(1, MIB));
    let snapshots = mkdir(&pool, dir, SNAPSHOTS_NAME);
    let taken = pool.fs().mkdir(SYSTEM, snapshots, b"s", 0o755).unwrap().ino;
    let lost = pool.fs().lookup(SYSTEM, taken, b"sub").unwrap().ino;
    pool.close();
    // The only name in the directory.
    let mut key = Vec::new();
    let from = [&b"E"[..], &taken.to_be_bytes()].concat();
    let to = [&b"E"[..], &(taken + 1).to_be_bytes()].concat();
    let mut visit = |found: &[u8], _: &[u8]| {
        key = found.to_vec();
        ControlFlow::Continue(())
    };
    pool.meta().scan(&from, &to, &mut visit).unwrap();
    let mut txn = pool.meta().begin();
    txn.delete(&key).unwrap();
    txn.commit().unwrap();
    pool.open();
    let repaired = pool.engine().repair().unwrap();
    assert!(repaired.after.findings.is_empty(), "{:?}", repaired.after.findings);
    pool.crash();
    let fs = pool.fs();
    let found = fs.lookup(SYSTEM, ROOT_INO, b"lost+found").unwrap().ino;
    let name = format!("#{lost}");
    assert_eq!(fs.lookup(SYSTEM, found, name.as_bytes()).unwrap().ino, lost);
    fs.unlink(SYSTEM, lost, b"file").unwrap();
    fs.rmdir(SYSTEM, found, name.as_bytes()).unwrap();
    // The rest of the snapshot is one.
    let refused = fs.mkdir(SYSTEM, taken, b"new", 0o755).map(drop);
    assert_eq!(refused, Err(FsError::ReadOnly));
    fs.rmdir(SYSTEM, snapshots, b"s").unwrap();
    pool.check();
}

/// A wrong number of files with a blob is found and mended; so is a file that says that the blob is its alone.
#[test]
fn a_check_counts_the_files_of_each_blob() {
    let key = |pool: &Memory| {
        let mut key = Vec::new();
        let mut visit = |found: &[u8], _: &[u8]| {
            key = found.to_vec();
            ControlFlow::Break(())
        };
        pool.meta().scan(b"R", b"S", &mut visit).unwrap();
        key
    };
    let change = |pool: &Memory, key: &[u8], value: Option<&[u8]>| {
        let mut txn = pool.meta().begin();
        match value {
            Some(value) => txn.put(key, value).unwrap(),
            None => txn.delete(key).unwrap(),
        }
        txn.commit().unwrap();
    };
    for (value, finding) in [
        (Some(&1_u64.to_le_bytes()[..]), "3 files share"),
        (Some(b"damaged"), "3 files share"),
        (None, "no record has their number"),
    ] {
        let mut pool = Memory::new(1, 32, 62);
        let content = pattern(1, 3 * MIB);
        let file = make(&pool, ROOT_INO, "file", &content);
        let copies = [clone(&pool, file, "one"), clone(&pool, file, "two")];
        change(&pool, &key(&pool), value);
        let found = pool.engine().check().unwrap().findings;
        assert!(found.len() == 1 && found[0].what.contains(finding), "{found:?}");
        let repaired = pool.engine().repair().unwrap();
        assert!(repaired.after.findings.is_empty(), "{:?}", repaired.after);
        pool.crash();
        pool.fs().unlink(SYSTEM, ROOT_INO, b"one").unwrap();
        pool.fs().unlink(SYSTEM, ROOT_INO, b"file").unwrap();
        assert!(read(&pool, copies[1]) == content);
        pool.check();
        // The record of a blob that no file shares.
        let key = key(&pool);
        pool.fs().unlink(SYSTEM, ROOT_INO, b"two").unwrap();
        pool.engine().sync(SYSTEM).unwrap();
        change(&pool, &key, Some(&2_u64.to_le_bytes()));
        let found = pool.engine().check().unwrap().findings;
        assert!(
            found.len() == 1 && found[0].what.contains("no file shares"),
            "{found:?}"
        );
        assert!(pool.engine().repair().unwrap().after.findings.is_empty());
    }
}

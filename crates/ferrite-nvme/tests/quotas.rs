//! Quotas in pools on devices: what they count is what a check counts, after every operation, a close and a crash; the
//! limits hold for threads at once; and a change that is refused leaves nothing. Their meaning is a part of the POSIX
//! suite; crashes while one is set are in `crash.rs`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{BACKENDS, Backend, Memory};
use ferrite_testkit::TestEngine;
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;
use ferrite_vfs::{
    CloneRange, FallocateMode, FileKind, FsError, Ino, NewFile, NewNode, OpenMode, QUOTA_XATTR, Quota, QuotaAttribute,
    QuotaLimits, ROOT_INO, RenameMode, SYSTEM, SetAttr, Unsupported, UserQuota, XattrMode,
};

const PAGE: u64 = 4096;

fn set(pool: &Memory, dir: Ino, bytes: u64, inodes: u64) {
    let limits = QuotaLimits { bytes, inodes }.to_string();
    let set = pool
        .fs()
        .setxattr(SYSTEM, dir, QUOTA_XATTR, limits.as_bytes(), XattrMode::Any);
    set.unwrap();
}

fn get(pool: &Memory, ino: Ino) -> Quota {
    let text = pool.fs().getxattr(SYSTEM, ino, QUOTA_XATTR).unwrap();
    Quota::parse(&text).unwrap()
}

fn set_user(pool: &Memory, uid: u32, bytes: u64, inodes: u64) {
    let limits = QuotaLimits { bytes, inodes }.to_string();
    let name = QuotaAttribute::User(uid).name();
    let set = pool
        .fs()
        .setxattr(SYSTEM, ROOT_INO, &name, limits.as_bytes(), XattrMode::Any);
    set.unwrap();
}

fn get_user(pool: &Memory, uid: u32) -> UserQuota {
    let text = pool.fs().getxattr(SYSTEM, ROOT_INO, &QuotaAttribute::User(uid).name());
    UserQuota::parse(&text.unwrap()).unwrap()
}

fn mkdir(pool: &Memory, dir: Ino, name: &[u8]) -> Ino {
    pool.fs().mkdir(SYSTEM, dir, name, 0o755).unwrap().ino
}

fn make(pool: &Memory, dir: Ino, name: &[u8], len: usize) -> Ino {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let ino = pool.fs().mknod(SYSTEM, dir, name, &node).unwrap().ino;
    if len > 0 {
        let file = pool.fs().open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, &pattern(1, len)).unwrap();
    }
    ino
}

fn size(bytes: u64) -> SetAttr {
    SetAttr {
        size: Some(bytes),
        ..SetAttr::default()
    }
}

/// A random operation in one of the directories. Refusals are as good as successes.
fn change(pool: &Memory, rng: &mut Rng, dirs: &[Ino]) {
    let fs = pool.fs();
    let (dir, to) = (*rng.pick(dirs), *rng.pick(dirs));
    let (name, other) = ([b'a' + rng.below(6) as u8], [b'a' + rng.below(6) as u8]);
    let found = fs.lookup(SYSTEM, dir, &name).ok();
    let at = rng.below(40) * 1000;
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let owner = |uid: u32, size: Option<u64>| SetAttr {
        uid: Some(uid),
        size,
        ..SetAttr::default()
    };
    let _ = match (rng.below(16), found) {
        (0 | 1, None) => fs.create(SYSTEM, dir, &name, &new).map(drop),
        (2, None) => fs.mkdir(SYSTEM, dir, &name, 0o755).map(drop),
        (3, None) => fs.symlink(SYSTEM, dir, &name, &[b'x'; 200]).map(drop),
        (4, Some(found)) => fs.clone_tree(SYSTEM, found.ino, to, &other).map(drop),
        (5 | 6, Some(found)) if found.kind == FileKind::File => {
            let open = fs.open(SYSTEM, found.ino, OpenMode::read_write()).unwrap();
            open.write_at(SYSTEM, at, &pattern(5, at as usize + 1)).map(drop)
        }
        (7, Some(found)) if found.kind == FileKind::File => {
            let open = fs.open(SYSTEM, found.ino, OpenMode::read_write()).unwrap();
            let mode = match rng.below(3) {
                0 => FallocateMode::Allocate { keep_size: false },
                1 => FallocateMode::PunchHole,
                _ => FallocateMode::ZeroRange { keep_size: false },
            };
            open.fallocate(SYSTEM, mode, at, 1 + rng.below(90_000))
        }
        (8, Some(found)) if found.kind == FileKind::File => fs.setattr(SYSTEM, found.ino, &size(at * 4)).map(drop),
        (9, Some(found)) => {
            let value = vec![7; 1 + rng.below(9000) as usize];
            fs.setxattr(SYSTEM, found.ino, b"user.x", &value, XattrMode::Any)
        }
        (10, Some(found)) => fs.removexattr(SYSTEM, found.ino, b"user.x"),
        (11, Some(_)) => fs.rename(
            SYSTEM,
            dir,
            &name,
            to,
            &other,
            *rng.pick(&[RenameMode::Replace, RenameMode::Exchange, RenameMode::Whiteout]),
        ),
        (12, Some(found)) if found.kind == FileKind::Directory => fs.rmdir(SYSTEM, dir, &name),
        (12, Some(_)) => fs.unlink(SYSTEM, dir, &name),
        (13, Some(found)) if found.kind == FileKind::File => {
            let set = owner(*rng.pick(&[0, 5, 6, 7]), Some(at * 2));
            fs.setattr(SYSTEM, found.ino, &set).map(drop)
        }
        (14 | 15, Some(found)) => {
            let set = owner(*rng.pick(&[0, 5, 6, 7]), None);
            fs.setattr(SYSTEM, found.ino, &set).map(drop)
        }
        _ => Ok(()),
    };
}

/// Whatever is done in and beside trees, their counts are those of a check, which counts anew.
#[test]
fn random_operations_are_counted() {
    let seed = seed_from_env().unwrap_or(1);
    println!("FERRITE_SEED={seed}");
    for &backend in BACKENDS {
        let mut rng = Rng::new(seed);
        let mut pool = Memory::at(backend, 2, 64, 62);
        let (outer, beside) = (mkdir(&pool, ROOT_INO, b"outer"), mkdir(&pool, ROOT_INO, b"beside"));
        let inner = mkdir(&pool, outer, b"inner");
        let all = [outer, inner, beside];
        all.iter().for_each(|&dir| set(&pool, dir, 300 * PAGE, 60));
        let users = [5, 6];
        users.iter().for_each(|&uid| set_user(&pool, uid, 100 * PAGE, 25));
        for round in 0..6 {
            for _ in 0..150 {
                change(&pool, &mut rng, &[outer, inner, beside, ROOT_INO]);
            }
            pool.check();
            let before = all.map(|dir| get(&pool, dir));
            for quota in before {
                let is_within = quota.used_inodes <= 60 && quota.used_bytes <= 300 * PAGE;
                assert!(is_within, "{backend:?}, round {round}: {quota}");
            }
            assert!(before[0].used_inodes >= before[1].used_inodes);
            let of_users = users.map(|uid| get_user(&pool, uid));
            for quota in of_users {
                let is_within = quota.used_inodes <= 25 && quota.used_bytes <= 100 * PAGE;
                assert!(is_within, "{backend:?}, round {round}: {quota}");
            }
            match round % 2 {
                0 => {
                    pool.close();
                    pool.open();
                }
                _ => pool.crash(),
            }
            assert_eq!(all.map(|dir| get(&pool, dir)), before, "{backend:?}, round {round}");
            assert_eq!(
                users.map(|uid| get_user(&pool, uid)),
                of_users,
                "{backend:?}, round {round}"
            );
            pool.check();
        }
    }
}

/// Threads that create and grow files at once get exactly what the limits let them have.
#[test]
fn limits_hold_for_threads_at_once() {
    let pool = Memory::new(2, 256, 62);
    let dir = mkdir(&pool, ROOT_INO, b"dir");
    set(&pool, dir, 301 * PAGE, 101);
    let (made, pages) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (pool, made, pages) = (&pool, &made, &pages);
            threads.spawn(move || {
                for n in 0..60 {
                    let name = format!("{thread}-{n}");
                    let node = NewNode {
                        kind: FileKind::File,
                        mode: 0o644,
                        rdev: 0,
                    };
                    let Ok(attr) = pool.fs().mknod(SYSTEM, dir, name.as_bytes(), &node) else {
                        continue;
                    };
                    made.fetch_add(1, Ordering::Relaxed);
                    let file = pool.fs().open(SYSTEM, attr.ino, OpenMode::read_write()).unwrap();
                    for _ in 0..20 {
                        match file.append(SYSTEM, &pattern(1, PAGE as usize)) {
                            Ok(_) => pages.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                assert_eq!(error, FsError::OverQuota);
                                break;
                            }
                        };
                    }
                }
            });
        }
    });
    assert_eq!((made.into_inner(), pages.into_inner()), (100, 301));
    let quota = get(&pool, dir);
    assert_eq!((quota.used_inodes, quota.used_bytes), (101, 301 * PAGE));
    pool.check();
}

/// Sizes count, also of holes and of copies that share a blob; space that no size tells of is not reserved.
#[test]
fn sizes_are_counted() {
    let mut pool = Memory::new(2, 256, 62);
    let dir = mkdir(&pool, ROOT_INO, b"dir");
    let file = make(&pool, dir, b"file", 70_000);
    let source = make(&pool, ROOT_INO, b"source", 90_000);
    set(&pool, dir, 64 * PAGE, 0);
    assert_eq!(get(&pool, dir).used_bytes, 18 * PAGE);
    let grow = |bytes| pool.fs().setattr(SYSTEM, file, &size(bytes)).map(drop);
    assert_eq!(grow(64 * PAGE + 1), Err(FsError::OverQuota));
    assert_eq!(grow(64 * PAGE), Ok(()));
    assert_eq!(get(&pool, dir).used_bytes, 64 * PAGE);
    assert_eq!(grow(5000), Ok(()));
    let open = pool.fs().open(SYSTEM, file, OpenMode::read_write()).unwrap();
    for mode in [
        FallocateMode::Allocate { keep_size: true },
        FallocateMode::ZeroRange { keep_size: true },
    ] {
        assert_eq!(
            open.fallocate(SYSTEM, mode, 0, 1 << 20),
            Err(FsError::NotSupported(Unsupported::ReservedSpace))
        );
        assert_eq!(open.fallocate(SYSTEM, mode, 0, 5000), Ok(()));
    }
    let from = pool.fs().open(SYSTEM, source, OpenMode::read_only()).unwrap();
    let range = CloneRange {
        source: from.id(),
        source_offset: 0,
        offset: 0,
        len_bytes: 90_000,
    };
    set(&pool, dir, 10 * PAGE, 0);
    assert_eq!(open.clone_range(SYSTEM, &range).map(drop), Err(FsError::OverQuota));
    assert_eq!(get(&pool, dir).used_bytes, 2 * PAGE);
    set(&pool, dir, 22 * PAGE, 0);
    assert_eq!(open.clone_range(SYSTEM, &range).map(|done| done.len_bytes), Ok(90_000));
    drop((open, from));
    assert_eq!(get(&pool, dir).used_bytes, 22 * PAGE);
    // The first change of a shared blob copies it, and takes no more.
    let open = pool.fs().open(SYSTEM, file, OpenMode::read_write()).unwrap();
    assert_eq!(open.write_at(SYSTEM, 7, b"changed"), Ok(7));
    drop(open);
    pool.check();
    pool.remount();
    assert_eq!(get(&pool, dir).used_bytes, 22 * PAGE);
}

/// A file whose size only its blob knows when power is lost counts with that size.
#[test]
fn what_only_a_blob_knows_counts_after_a_crash() {
    for backend in [Backend::Memory, Backend::Database] {
        let mut pool = Memory::at(backend, 2, 256, 62);
        let dir = mkdir(&pool, ROOT_INO, b"dir");
        set(&pool, dir, 0, 0);
        let file = make(&pool, dir, b"file", 100_000);
        let open = pool.fs().open(SYSTEM, file, OpenMode::read_write()).unwrap();
        for _ in 0..10 {
            open.append(SYSTEM, &pattern(2, 100_000)).unwrap();
        }
        drop(open);
        let before = get(&pool, dir);
        assert_eq!(before.used_bytes, 1_100_000u64.next_multiple_of(PAGE));
        pool.crash();
        assert_eq!(get(&pool, dir), before, "{backend:?}");
        pool.check();
    }
}

/// Inodes that name a quota when it is removed count right when the directory has one again: files that are open
/// without a name, as long as they are, and files that have a name elsewhere.
#[test]
fn what_an_earlier_quota_left_is_counted() {
    for &backend in BACKENDS {
        let mut pool = Memory::at(backend, 2, 256, 62);
        let (dir, other) = (mkdir(&pool, ROOT_INO, b"dir"), mkdir(&pool, ROOT_INO, b"other"));
        let linked = make(&pool, other, b"linked", 50_000);
        pool.fs().link(SYSTEM, linked, dir, b"linked").unwrap();
        set(&pool, ROOT_INO, 0, 0);
        set(&pool, dir, 0, 0);
        assert_eq!(get(&pool, dir).used_inodes, 2);
        let file = make(&pool, dir, b"open", 70_000);
        let open = pool.fs().open(SYSTEM, file, OpenMode::read_write()).unwrap();
        pool.fs().unlink(SYSTEM, dir, b"open").unwrap();
        pool.fs().unlink(SYSTEM, dir, b"linked").unwrap();
        pool.fs().removexattr(SYSTEM, dir, QUOTA_XATTR).unwrap();
        // The one with a name counts where it is now.
        let around = get(&pool, ROOT_INO);
        assert_eq!((around.used_inodes, around.used_bytes), (4, 13 * PAGE), "{backend:?}");
        // Only the blob knows of this.
        open.append(SYSTEM, &pattern(2, 300_000)).unwrap();
        pool.check();
        set(&pool, dir, 0, 0);
        let again = get(&pool, dir);
        let bytes = 370_000u64.next_multiple_of(PAGE);
        assert_eq!((again.used_inodes, again.used_bytes), (2, bytes), "{backend:?}");
        drop(open);
        assert_eq!((get(&pool, dir).used_inodes, get(&pool, dir).used_bytes), (1, 0));
        pool.fs().unlink(SYSTEM, other, b"linked").unwrap();
        assert_eq!(
            (get(&pool, ROOT_INO).used_inodes, get(&pool, ROOT_INO).used_bytes),
            (3, 0)
        );
        pool.check();
        pool.remount();
        pool.check();
    }
}

/// A count that a close has kept is not trusted if the opening finds files without names.
#[test]
fn open_files_at_a_close_are_counted_anew() {
    let mut pool = Memory::new(2, 64, 62);
    let outer = mkdir(&pool, ROOT_INO, b"outer");
    let between = mkdir(&pool, outer, b"between");
    let inner = mkdir(&pool, between, b"inner");
    set(&pool, outer, 0, 0);
    set(&pool, inner, 0, 0);
    let file = make(&pool, inner, b"file", 90_000);
    let fs = pool.shared();
    let pinning = ferrite_vfs::Ctx::trusted(ferrite_vfs::Cred::root()).pinning();
    fs.lookup(&pinning, between, b"inner").unwrap();
    fs.lookup(&pinning, inner, b"file").unwrap();
    fs.unlink(SYSTEM, inner, b"file").unwrap();
    fs.rmdir(SYSTEM, between, b"inner").unwrap();
    fs.rmdir(SYSTEM, outer, b"between").unwrap();
    assert_eq!(
        get(&pool, outer).used_inodes,
        3,
        "inode {file} and its directory are pinned"
    );
    drop(fs);
    pool.close();
    pool.open();
    assert_eq!((get(&pool, outer).used_inodes, get(&pool, outer).used_bytes), (1, 0));
    pool.check();
}

/// Users without a quota reserve space behind the end of their files, whoever else has one.
#[test]
fn only_files_that_count_reserve_nothing_behind_their_end() {
    let pool = Memory::new(2, 64, 62);
    set_user(&pool, 5, 100 * PAGE, 0);
    for (name, uid, is_refused) in [(b"a", 5, true), (b"b", 5 + 64, false), (b"c", 0, false)] {
        let ino = make(&pool, ROOT_INO, name, PAGE as usize * 20);
        let owner = SetAttr {
            uid: Some(uid),
            ..SetAttr::default()
        };
        pool.fs().setattr(SYSTEM, ino, &owner).unwrap();
        let file = pool.fs().open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        let mode = FallocateMode::Allocate { keep_size: true };
        let reserved = file.fallocate(SYSTEM, mode, 20 * PAGE, 9 * PAGE);
        assert_eq!(reserved.is_err(), is_refused, "user {uid}: {reserved:?}");
    }
}

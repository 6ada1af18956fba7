//! Quotas of directory trees: what they count is what is there, after every operation and every crash, on every
//! mapping. Their meaning is a part of the POSIX suite.

use std::collections::HashSet;

use crate::clone_trees::{mkdir, roomy};
use crate::common::bound::{again, pool, reopened, seed};
use crate::common::{check, make, pattern, write};
use ferrite_fs::{Engine, Mapping};
use ferrite_pm::Choice;
use ferrite_testkit::rng::Rng;
use ferrite_vfs::{
    FileKind, FileSystem, FsError, Ino, OpenMode, QUOTA_XATTR, Quota, QuotaLimits, ROOT_INO, RenameMode, Result,
    SYSTEM, XattrMode,
};

const PAGE: u64 = 4096;

fn set(engine: &Engine, dir: Ino, bytes: u64, inodes: u64) -> Result<()> {
    let limits = QuotaLimits { bytes, inodes }.to_string();
    engine.setxattr(SYSTEM, dir, QUOTA_XATTR, limits.as_bytes(), XattrMode::Any)
}

fn get(engine: &Engine, ino: Ino) -> Option<Quota> {
    match engine.getxattr(SYSTEM, ino, QUOTA_XATTR) {
        Ok(text) => Some(Quota::parse(&text).unwrap()),
        Err(FsError::NoAttribute) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Pages and inodes of a tree, without snapshots, as its attributes tell.
fn counted(engine: &Engine, top: Ino) -> (u64, u64) {
    let (mut dirs, mut seen) = (vec![top], HashSet::new());
    let mut pages = 0;
    let mut count = |ino: Ino| {
        let is_new = seen.insert(ino);
        if is_new {
            // Of 512 bytes; a block of attributes is among them or not.
            pages += engine.getattr(SYSTEM, ino).unwrap().blocks / 8;
        }
        is_new
    };
    count(top);
    while let Some(dir) = dirs.pop() {
        let mut entries = Vec::new();
        let mut push = |entry: &ferrite_vfs::DirEntry<'_>| {
            entries.push((entry.ino, entry.kind));
            true
        };
        engine.readdir(SYSTEM, dir, 0, &mut push).unwrap();
        for (ino, kind) in entries {
            if count(ino) && kind == FileKind::Directory {
                dirs.push(ino);
            }
        }
    }
    (pages, seen.len() as u64)
}

/// The quota of a directory says what is there.
fn check_count(engine: &Engine, dir: Ino, when: &str) {
    let quota = get(engine, dir).unwrap();
    let (pages, inodes) = counted(engine, dir);
    assert_eq!(quota.used_inodes, inodes, "{when}: inodes");
    // Attributes of `blocks` leave the blocks of extended attributes out.
    let used = quota.used_bytes / PAGE;
    assert!(
        used >= pages && used <= pages + inodes,
        "{when}: {used} pages, {pages} seen"
    );
}

/// Whatever is done in and beside trees, their counts are those that a mount finds.
#[test]
fn random_operations_are_counted() {
    let mut rng = Rng::new(seed());
    for &mapping in Mapping::ALL {
        let (mut engine, mut recorder) = pool(&roomy(mapping, false).inodes(2047));
        let (outer, beside) = (mkdir(&engine, "outer"), mkdir(&engine, "beside"));
        let inner = engine.mkdir(SYSTEM, outer, b"inner", 0o755).unwrap().ino;
        for dir in [outer, inner, beside] {
            set(&engine, dir, 300 * PAGE, 60).unwrap();
        }
        for round in 0..4 {
            for _ in 0..150 {
                let dirs = [outer, inner, beside, ROOT_INO];
                let (dir, to) = (*rng.pick(&dirs), *rng.pick(&dirs));
                let (name, other) = ([b'a' + rng.below(6) as u8], [b'a' + rng.below(6) as u8]);
                let found = engine.lookup(SYSTEM, dir, &name).ok();
                let size = rng.below(40) * 1000;
                // Refusals are as good as successes.
                let _ = match (rng.below(9), found) {
                    (0 | 1, None) => engine
                        .create(
                            SYSTEM,
                            dir,
                            &name,
                            &ferrite_vfs::NewFile {
                                mode: 0o644,
                                open: OpenMode::read_write(),
                                exclusive: true,
                            },
                        )
                        .map(drop),
                    (2, None) => engine.mkdir(SYSTEM, dir, &name, 0o755).map(drop),
                    (3, None) => engine.symlink(SYSTEM, dir, &name, &[b'x'; 200]).map(drop),
                    (4, Some(found)) => engine.clone_tree(SYSTEM, found.ino, to, &other).map(drop),
                    (5, Some(found)) if found.kind == FileKind::File => {
                        let open = engine.open(SYSTEM, found.ino, OpenMode::read_write()).unwrap();
                        open.write_at(SYSTEM, size, &pattern(size as usize + 1, 5)).map(drop)
                    }
                    (6, Some(found)) => {
                        let value = vec![7; 1 + rng.below(6000) as usize];
                        engine.setxattr(SYSTEM, found.ino, b"user.x", &value, XattrMode::Any)
                    }
                    (7, Some(_)) => engine.rename(SYSTEM, dir, &name, to, &other, RenameMode::Replace),
                    (8, Some(found)) if found.kind == FileKind::Directory => engine.rmdir(SYSTEM, dir, &name),
                    (8, Some(_)) => engine.unlink(SYSTEM, dir, &name),
                    _ => Ok(()),
                };
            }
            let before = [outer, inner, beside].map(|dir| get(&engine, dir).unwrap());
            for (dir, quota) in [outer, inner, beside].into_iter().zip(before) {
                check_count(&engine, dir, &format!("{mapping}, round {round}"));
                assert!(
                    quota.used_inodes <= 60 && quota.used_bytes <= 300 * PAGE,
                    "{mapping}: {quota}"
                );
            }
            (engine, recorder) = again(engine, &recorder);
            assert_eq!(
                [outer, inner, beside].map(|dir| get(&engine, dir).unwrap()),
                before,
                "{mapping}"
            );
        }
    }
}

/// A crash at any fence while a quota is set or removed: what encloses it still counts all, and the work can be done
/// again.
#[test]
fn a_crash_leaves_counts_right() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let outer = mkdir(&engine, "outer");
        let between = engine.mkdir(SYSTEM, outer, b"between", 0o755).unwrap().ino;
        let dir = engine.mkdir(SYSTEM, between, b"dir", 0o755).unwrap().ino;
        for name in ["a", "b", "c"] {
            write(&engine, make(&engine, dir, name), 0, &pattern(5000, 1));
        }
        engine.mkdir(SYSTEM, dir, b"d", 0o755).unwrap();
        set(&engine, outer, 0, 0).unwrap();
        engine.unmount().unwrap();
        let (engine, recorder) = reopened(&recorder.log().final_image());
        let whole = get(&engine, outer).unwrap();
        set(&engine, dir, 1 << 20, 0).unwrap();
        engine.removexattr(SYSTEM, dir, QUOTA_XATTR).unwrap();
        let log = recorder.log();
        let mut cursor = log.cursor();
        let mut roots = HashSet::new();
        loop {
            let point = cursor.point();
            for choice in [Choice::None, Choice::Random(point as u64)] {
                cursor.with_image(choice, |image| {
                    check(image);
                    let (engine, recorder) = reopened(image);
                    let (of_outer, of_dir) = (get(&engine, outer).unwrap(), get(&engine, dir).unwrap());
                    assert_eq!(
                        (of_outer.used_inodes, of_outer.used_bytes),
                        (whole.used_inodes, whole.used_bytes)
                    );
                    roots.insert(of_dir.root);
                    assert!(of_dir.root == outer || of_dir.root == dir, "{mapping}");
                    if point % 2 == 1 {
                        // Another one comes in between, and finds the work half done.
                        set(&engine, between, 1 << 20, 0).unwrap();
                    }
                    set(&engine, dir, 1 << 20, 0).unwrap();
                    check_count(&engine, dir, "set again");
                    let (engine, _) = again(engine, &recorder);
                    check_count(&engine, dir, "and mounted");
                    if point % 2 == 1 {
                        check_count(&engine, between, "and mounted");
                    }
                    assert_eq!(get(&engine, outer).unwrap().used_inodes, whole.used_inodes);
                });
            }
            if (0..3).take_while(|_| cursor.advance()).count() == 0 {
                break;
            }
        }
        assert_eq!(roots.len(), 2, "{mapping}");
    }
}

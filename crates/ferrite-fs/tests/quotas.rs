//! Quotas of directory trees: what they count is what is there, after every operation and every crash; what would
//! exceed a limit changes nothing; nothing crosses a border but copies. On every mapping.

use std::collections::HashSet;

use crate::clone_trees::{kinds, mkdir, roomy, tree_of_all_kinds};
use crate::common::bound::{again, pool, reopened, seed, truncate};
use crate::common::{check, make, pattern, write};
use ferrite_fs::{Engine, Mapping};
use ferrite_pm::Choice;
use ferrite_testkit::rng::Rng;
use ferrite_vfs::{
    BadArgument, Cred, Ctx, FileKind, FileSystem, FsError, Ino, NO_NAME, NewFile, OpenMode, QUOTA_XATTR, Quota,
    QuotaLimits, ROOT_INO, RenameMode, Result, SNAPSHOTS_NAME, SYSTEM, XattrMode,
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

#[test]
fn limits_hold_and_a_refusal_changes_nothing() {
    for (mapping, sums) in kinds() {
        let (engine, recorder) = pool(&roomy(mapping, sums).inodes(1023));
        let dir = mkdir(&engine, "dir");
        assert_eq!(get(&engine, dir), None);
        set(&engine, dir, 20 * PAGE, 5).unwrap();
        let file = make(&engine, dir, "file");
        let base = get(&engine, dir).unwrap().used_bytes / PAGE;
        write(&engine, file, 0, &pattern(4096 * (20 - base as usize), 1));
        assert_eq!(get(&engine, dir).unwrap().used_bytes, 20 * PAGE, "{mapping}");
        let open = engine.open(SYSTEM, file, OpenMode::read_write()).unwrap();
        let before = (engine.getattr(SYSTEM, file).unwrap(), get(&engine, dir));
        let refused = open.write_at(SYSTEM, 20 * PAGE, &pattern(4096, 2));
        assert_eq!(refused, Err(FsError::OverQuota), "{mapping}");
        assert_eq!(
            (engine.getattr(SYSTEM, file).unwrap(), get(&engine, dir)),
            before,
            "{mapping}"
        );
        // Overwrites need nothing more.
        assert_eq!(open.write_at(SYSTEM, 0, &pattern(8192, 3)), Ok(8192), "{mapping}");
        drop(open);
        truncate(&engine, file, 3 * PAGE);
        write(&engine, file, 20 * PAGE, &pattern(4096, 2));
        for name in ["a", "b", "c"] {
            make(&engine, dir, name);
        }
        let refused = engine.mkdir(SYSTEM, dir, b"d", 0o755).unwrap_err();
        assert_eq!(refused, FsError::OverQuota, "{mapping}");
        let refused = engine.symlink(SYSTEM, dir, b"d", b"target").unwrap_err();
        assert_eq!(refused, FsError::OverQuota, "{mapping}");
        assert_eq!(engine.lookup(SYSTEM, dir, b"d").unwrap_err(), FsError::NotFound);
        engine.unlink(SYSTEM, dir, b"a").unwrap();
        engine.mkdir(SYSTEM, dir, b"d", 0o755).unwrap();
        check_count(&engine, dir, &mapping.to_string());
        let before = get(&engine, dir);
        let (engine, _) = again(engine, &recorder);
        assert_eq!(get(&engine, dir), before, "{mapping}: after a mount");
        // Elsewhere there is no limit, and with the directory the quota is gone.
        make(&engine, ROOT_INO, "elsewhere");
        assert_eq!(get(&engine, ROOT_INO), None);
    }
}

#[test]
fn names_do_not_cross_the_border() {
    let (engine, _) = pool(&roomy(Mapping::default(), false).inodes(1023));
    let (dir, other) = (mkdir(&engine, "dir"), mkdir(&engine, "other"));
    set(&engine, dir, 0, 0).unwrap();
    let file = make(&engine, dir, "file");
    let sub = engine.mkdir(SYSTEM, dir, b"sub", 0o755).unwrap().ino;
    let outside = make(&engine, other, "outside");
    let rename =
        |from: Ino, name: &[u8], to: Ino, mode: RenameMode| engine.rename(SYSTEM, from, name, to, b"new", mode);
    for (from, name, to) in [
        (dir, &b"file"[..], other),
        (dir, b"sub", other),
        (other, b"outside", dir),
    ] {
        assert_eq!(rename(from, name, to, RenameMode::Replace), Err(FsError::CrossDevice));
    }
    assert_eq!(
        engine.link(SYSTEM, file, other, b"linked").unwrap_err(),
        FsError::CrossDevice
    );
    assert_eq!(
        engine.link(SYSTEM, outside, sub, b"linked").unwrap_err(),
        FsError::CrossDevice
    );
    let exchanged = engine.rename(SYSTEM, dir, b"file", other, b"outside", RenameMode::Exchange);
    assert_eq!(exchanged, Err(FsError::CrossDevice));
    rename(dir, b"file", sub, RenameMode::Replace).unwrap();
    engine.link(SYSTEM, file, dir, b"linked").unwrap();
    // The directory itself may be moved, with its quota.
    engine
        .rename(SYSTEM, ROOT_INO, b"dir", other, b"moved", RenameMode::Replace)
        .unwrap();
    assert_eq!(get(&engine, file).unwrap().root, dir);
    check_count(&engine, dir, "moved");
}

/// A quota counts what was there before; one within another counts for both; a removed one for nothing.
#[test]
fn quotas_come_and_go() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(2047));
        let top = tree_of_all_kinds(&engine);
        let inner = engine.mkdir(SYSTEM, top, b"inner", 0o755).unwrap().ino;
        let deep = engine.mkdir(SYSTEM, inner, b"deep", 0o755).unwrap().ino;
        write(&engine, make(&engine, deep, "file"), 0, &pattern(9 * 4096, 4));
        set(&engine, inner, 0, 50).unwrap();
        check_count(&engine, inner, "inner alone");
        set(&engine, top, 0, 0).unwrap();
        let snapshots = engine.mkdir(SYSTEM, top, SNAPSHOTS_NAME, 0o755).unwrap().ino;
        engine.mkdir(SYSTEM, snapshots, b"s", 0o755).unwrap();
        let quotas = |engine: &Engine| [top, inner, deep].map(|dir| get(engine, dir));
        let before = quotas(&engine);
        let (engine, recorder) = again(engine, &recorder);
        assert_eq!(quotas(&engine), before, "{mapping}: snapshots count for nothing");
        assert_eq!(before[1], before[2]);
        engine.rmdir(SYSTEM, snapshots, b"s").unwrap();
        engine.rmdir(SYSTEM, top, SNAPSHOTS_NAME).unwrap();
        check_count(&engine, inner, "inner in top");
        check_count(&engine, top, "top");
        // A clone counts, unless it is too much, and then nothing is left of it.
        engine.clone_tree(SYSTEM, deep, inner, b"clone").unwrap();
        set(&engine, inner, 0, get(&engine, inner).unwrap().used_inodes + 1).unwrap();
        let before = quotas(&engine);
        let refused = engine.clone_tree(SYSTEM, deep, inner, b"another").unwrap_err();
        assert_eq!(refused, FsError::OverQuota, "{mapping}");
        assert_eq!(quotas(&engine), before, "{mapping}");
        // Both limits hold.
        set(&engine, top, 0, get(&engine, top).unwrap().used_inodes).unwrap();
        let refused = engine.mkdir(SYSTEM, inner, b"x", 0o755).unwrap_err();
        assert_eq!(refused, FsError::OverQuota, "{mapping}");
        set(&engine, top, 0, 0).unwrap();
        engine.removexattr(SYSTEM, top, QUOTA_XATTR).unwrap();
        assert_eq!(get(&engine, top), None);
        check_count(&engine, inner, "inner alone again");
        set(&engine, top, 0, 0).unwrap();
        engine.removexattr(SYSTEM, inner, QUOTA_XATTR).unwrap();
        assert_eq!(get(&engine, deep).unwrap().root, top);
        check_count(&engine, top, "top alone");
        let before = quotas(&engine);
        let (engine, _) = again(engine, &recorder);
        assert_eq!(quotas(&engine), before, "{mapping}: after a mount");
        assert_eq!(
            engine.removexattr(SYSTEM, inner, QUOTA_XATTR).unwrap_err(),
            FsError::NoAttribute
        );
    }
}

#[test]
fn only_root_sets_quotas_of_directories() {
    let (engine, _) = pool(&roomy(Mapping::default(), false));
    let (dir, file) = (mkdir(&engine, "dir"), make(&engine, ROOT_INO, "file"));
    let user = Ctx::checked(Cred::new(7, 7));
    let set_as = |ino: Ino, text: &[u8]| engine.setxattr(&user, ino, QUOTA_XATTR, text, XattrMode::Any);
    assert_eq!(set_as(dir, b"limit_bytes=1"), Err(FsError::NotPermitted));
    assert_eq!(engine.removexattr(&user, dir, QUOTA_XATTR), Err(FsError::NotPermitted));
    let place = Err(FsError::Invalid(BadArgument::QuotaPlace));
    assert_eq!(set(&engine, file, 1, 1), place);
    let text = engine.setxattr(SYSTEM, dir, QUOTA_XATTR, b"10G", XattrMode::Any);
    assert_eq!(text, Err(FsError::Invalid(BadArgument::QuotaText)));
    set(&engine, dir, 1 << 20, 0).unwrap();
    assert!(engine.getxattr(&user, dir, QUOTA_XATTR).is_ok());
    assert!(engine.listxattr(SYSTEM, dir).unwrap().is_empty(), "it is listed");
    // As many within each other as there may be.
    let mut at = dir;
    for level in 1.. {
        at = engine.mkdir(SYSTEM, at, b"d", 0o755).unwrap().ino;
        match set(&engine, at, 0, 0) {
            Ok(()) => {}
            refused => {
                assert_eq!((refused, level), (place, 64));
                break;
            }
        }
    }
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

/// Files that are open without a name when their quota ends count for none from then on, not for the one around it.
#[test]
fn a_quota_ends_under_open_files() {
    for by_rmdir in [false, true] {
        let (engine, recorder) = pool(&roomy(Mapping::default(), false));
        let outer = mkdir(&engine, "outer");
        set(&engine, outer, 0, 0).unwrap();
        let inner = engine.mkdir(SYSTEM, outer, b"inner", 0o755).unwrap().ino;
        set(&engine, inner, 0, 0).unwrap();
        let ino = make(&engine, inner, "file");
        write(&engine, ino, 0, &pattern(5 * 4096, 1));
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        engine.unlink(SYSTEM, inner, b"file").unwrap();
        assert_eq!(get(&engine, outer).unwrap().used_inodes, 3, "it still counts");
        match by_rmdir {
            true => engine.rmdir(SYSTEM, outer, b"inner").unwrap(),
            false => engine.removexattr(SYSTEM, inner, QUOTA_XATTR).unwrap(),
        }
        check_count(&engine, outer, "ended");
        file.append(SYSTEM, &pattern(7 * 4096, 2)).unwrap();
        check_count(&engine, outer, "it grew");
        if !by_rmdir {
            // The same directory again: what it has left counts until it is closed.
            set(&engine, inner, 0, 0).unwrap();
            assert_eq!(get(&engine, inner).unwrap().used_inodes, 2);
            assert_eq!(get(&engine, outer).unwrap().used_inodes, 3);
            drop(file);
            check_count(&engine, inner, "set again");
            check_count(&engine, outer, "set again");
            continue;
        }
        let before = get(&engine, outer);
        drop(file);
        assert_eq!(get(&engine, outer), before, "it is closed");
        let (engine, _) = again(engine, &recorder);
        assert_eq!(get(&engine, outer), before, "mounted again");
    }
}

/// A file without a name counts where it was made, and gets its name there.
#[test]
fn files_without_a_name_count() {
    let (engine, _) = pool(&roomy(Mapping::default(), false));
    let (dir, other) = (mkdir(&engine, "dir"), mkdir(&engine, "other"));
    set(&engine, dir, 4 * PAGE, 3).unwrap();
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: false,
    };
    let nameless = || engine.create(SYSTEM, dir, NO_NAME, &new);
    let (first, second) = (nameless().unwrap(), nameless().unwrap());
    assert_eq!(nameless().err(), Some(FsError::OverQuota));
    first.file.append(SYSTEM, &pattern(2 * 4096, 1)).unwrap();
    assert!(first.file.append(SYSTEM, &pattern(9 * 4096, 1)).is_err());
    let link = |to| engine.link(SYSTEM, first.attr.ino, to, b"f").map(|attr| attr.nlink);
    assert_eq!(link(other), Err(FsError::CrossDevice));
    assert_eq!(link(dir), Ok(1));
    drop((first.file, second.file));
    assert_eq!(get(&engine, dir).unwrap().used_inodes, 2);
    check_count(&engine, dir, "one got a name, the other is gone");
}

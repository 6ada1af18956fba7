//! Quotas of directory trees: what they count is what is there, after every operation and every crash, on every
//! mapping. Their meaning is a part of the POSIX suite.

use std::collections::HashSet;
use std::sync::Arc;

use crate::clone_trees::{mkdir, roomy};
use crate::common::bound::{again, pool, reopened, seed};
use crate::common::remote::{Checked, WRITABLE};
use crate::common::{check, make, pattern, write};
use ferrite_fs::{Engine, Mapping};
use ferrite_pm::Choice;
use ferrite_testkit::rng::Rng;
use ferrite_vfs::regions::{Adapter, Regions};
use ferrite_vfs::{
    FileKind, FileSystem, FsError, Ino, OpenMode, QUOTA_XATTR, Quota, QuotaAttribute, QuotaLimits, ROOT_INO,
    RenameMode, Result, SYSTEM, SetAttr, UserQuota, XattrMode,
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

/// The users with quotas.
const USERS: [u32; 2] = [5, 6];

fn set_user(engine: &Engine, uid: u32, bytes: u64, inodes: u64) -> Result<()> {
    let limits = QuotaLimits { bytes, inodes }.to_string();
    let name = QuotaAttribute::User(uid).name();
    engine.setxattr(SYSTEM, ROOT_INO, &name, limits.as_bytes(), XattrMode::Any)
}

fn get_user(engine: &Engine, uid: u32) -> Option<UserQuota> {
    match engine.getxattr(SYSTEM, ROOT_INO, &QuotaAttribute::User(uid).name()) {
        Ok(text) => Some(UserQuota::parse(&text).unwrap()),
        Err(FsError::NoAttribute) => None,
        Err(error) => panic!("{error}"),
    }
}

fn give(engine: &Engine, ino: Ino, uid: u32) -> Result<()> {
    let set = SetAttr {
        uid: Some(uid),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, ino, &set).map(drop)
}

/// Pages and inodes of a tree, without snapshots, as its attributes tell; of a user, or of all.
fn counted(engine: &Engine, top: Ino, uid: Option<u32>) -> (u64, u64) {
    let (mut dirs, mut seen) = (vec![top], HashSet::new());
    let (mut pages, mut inodes) = (0, 0);
    let mut count = |ino: Ino| {
        let is_new = seen.insert(ino);
        let attr = engine.getattr(SYSTEM, ino).unwrap();
        if is_new && uid.is_none_or(|uid| uid == attr.uid) {
            // Of 512 bytes; a block of attributes is among them or not.
            pages += attr.blocks / 8;
            inodes += 1;
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
    (pages, inodes)
}

fn check_used((used_bytes, used_inodes): (u64, u64), (pages, inodes): (u64, u64), when: &str) {
    assert_eq!(used_inodes, inodes, "{when}: inodes");
    // Attributes of `blocks` leave the blocks of extended attributes out.
    let used = used_bytes / PAGE;
    assert!(
        used >= pages && used <= pages + inodes,
        "{when}: {used} pages, {pages} seen"
    );
}

/// The quota of a user says what is there.
fn check_user(engine: &Engine, uid: u32, when: &str) {
    let quota = get_user(engine, uid).unwrap();
    let seen = counted(engine, ROOT_INO, Some(uid));
    check_used(
        (quota.used_bytes, quota.used_inodes),
        seen,
        &format!("{when}, user {uid}"),
    );
}

/// The quota of a directory says what is there.
fn check_count(engine: &Engine, dir: Ino, when: &str) {
    let quota = get(engine, dir).unwrap();
    check_used((quota.used_bytes, quota.used_inodes), counted(engine, dir, None), when);
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
        for uid in USERS {
            set_user(&engine, uid, 100 * PAGE, 25).unwrap();
        }
        let mut owned = 0;
        for round in 0..4 {
            for _ in 0..150 {
                let dirs = [outer, inner, beside, ROOT_INO];
                let (dir, to) = (*rng.pick(&dirs), *rng.pick(&dirs));
                let (name, other) = ([b'a' + rng.below(6) as u8], [b'a' + rng.below(6) as u8]);
                let found = engine.lookup(SYSTEM, dir, &name).ok();
                let size = rng.below(40) * 1000;
                // Refusals are as good as successes.
                let _ = match (rng.below(11), found) {
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
                    (9 | 10, Some(found)) => give(&engine, found.ino, *rng.pick(&[0, 5, 6, 7])),
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
            let of_users = USERS.map(|uid| get_user(&engine, uid).unwrap());
            for quota in of_users {
                check_user(&engine, quota.uid, &format!("{mapping}, round {round}"));
                let is_within = quota.used_inodes <= 25 && quota.used_bytes <= 100 * PAGE;
                assert!(is_within, "{mapping}: {quota}");
                owned += quota.used_inodes;
            }
            (engine, recorder) = again(engine, &recorder);
            assert_eq!(
                [outer, inner, beside].map(|dir| get(&engine, dir).unwrap()),
                before,
                "{mapping}"
            );
            assert_eq!(USERS.map(|uid| get_user(&engine, uid).unwrap()), of_users, "{mapping}");
        }
        assert!(owned > 0, "{mapping}: users own nothing");
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

/// A crash at any fence while users get quotas and lose them: all quotas of before are there or all of after, and they
/// count what is there.
#[test]
fn a_crash_leaves_quotas_of_users_whole() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let dir = mkdir(&engine, "dir");
        for (name, uid) in [("a", 5), ("b", 6), ("c", 5)] {
            let ino = make(&engine, dir, name);
            write(&engine, ino, 0, &pattern(9000, 1));
            give(&engine, ino, uid).unwrap();
        }
        engine.unmount().unwrap();
        let (engine, recorder) = reopened(&recorder.log().final_image());
        set_user(&engine, 5, 1 << 20, 0).unwrap();
        set_user(&engine, 6, 0, 7).unwrap();
        engine
            .removexattr(SYSTEM, ROOT_INO, &QuotaAttribute::User(5).name())
            .unwrap();
        write(&engine, make(&engine, dir, "d"), 0, &pattern(5000, 1));
        let log = recorder.log();
        let mut cursor = log.cursor();
        let mut seen = HashSet::new();
        loop {
            let point = cursor.point();
            for choice in [Choice::None, Choice::Random(point as u64)] {
                cursor.with_image(choice, |image| {
                    check(image);
                    let (engine, _) = reopened(image);
                    let found = USERS.map(|uid| get_user(&engine, uid));
                    seen.insert(found.map(|quota| quota.is_some()));
                    for quota in found.into_iter().flatten() {
                        check_user(&engine, quota.uid, &format!("{mapping}, point {point}"));
                        let limits = (quota.limit_bytes, quota.limit_inodes);
                        assert_eq!(limits, if quota.uid == 5 { (1 << 20, 0) } else { (0, 7) });
                    }
                });
            }
            if (0..2).take_while(|_| cursor.advance()).count() == 0 {
                break;
            }
        }
        let states = [[false, false], [true, false], [true, true], [false, true]];
        assert_eq!(seen, HashSet::from(states), "{mapping}");
    }
}

/// A snapshot counts for nobody, also while the files in it that are bound are copied.
#[test]
fn snapshots_of_bound_files_count_for_nobody() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let dir = mkdir(&engine, "dir");
        let file = make(&engine, dir, "bound");
        write(&engine, file, 0, &pattern(80_000, 1));
        give(&engine, file, 5).unwrap();
        set_user(&engine, 5, 30 * PAGE, 0).unwrap();
        let used = get_user(&engine, 5).unwrap();
        let adapter: Arc<dyn Adapter> = Arc::new(Checked::default());
        let region = engine.bind(SYSTEM, file, WRITABLE, adapter).unwrap();
        let snapshots = engine.mkdir(SYSTEM, dir, b".snapshots", 0o755).unwrap().ino;
        let top = engine.mkdir(SYSTEM, snapshots, b"one", 0o755).unwrap().ino;
        let copy = engine.lookup(SYSTEM, top, b"bound").unwrap();
        assert_eq!((copy.uid, copy.size), (5, 80_000), "{mapping}");
        assert_eq!(get_user(&engine, 5).unwrap(), used, "{mapping}");
        region.unbind().unwrap();
        let (engine, _) = again(engine, &recorder);
        assert_eq!(get_user(&engine, 5).unwrap(), used, "{mapping}, mounted again");
    }
}

//! Snapshots: each holds one state of its directory, whatever becomes of that, and no call changes a thing in it;
//! removing one removes all of it, also if a crash comes in between. On every mapping.

use std::sync::Arc;

use crate::clone_trees::{below, free, kinds, mkdir, mode, roomy, tree_of_all_kinds};
use crate::common::bound::{again, pool, read, reopened};
use crate::common::remote::{Checked, WRITABLE};
use crate::common::{check, make, pattern, write};
use ferrite_fs::{Engine, Mapping};
use ferrite_pm::{Choice, Recorder};
use ferrite_testkit::snapshot::Snapshot;
use ferrite_vfs::regions::{Binding, Regions};
use ferrite_vfs::{
    Attr, Cred, Ctx, DedupToken, DirEntry, FileKind, FileSystem, FsError, Ino, NewFile, NewNode, OpenMode, ROOT_INO,
    RenameMode, Result, SNAPSHOTS_NAME, SYSTEM, SetAttr, SetTime, Timestamp, XattrMode,
};

fn snapshots_of(engine: &Engine, dir: Ino) -> Ino {
    match engine.lookup(SYSTEM, dir, SNAPSHOTS_NAME) {
        Ok(found) => found.ino,
        Err(_) => engine.mkdir(SYSTEM, dir, SNAPSHOTS_NAME, 0o755).unwrap().ino,
    }
}

fn take(engine: &Engine, dir: Ino, name: &str) -> Attr {
    let snapshots = snapshots_of(engine, dir);
    engine.mkdir(SYSTEM, snapshots, name.as_bytes(), 0o700).unwrap()
}

/// The names that a plain listing has, and one with attributes.
fn listed(engine: &Engine, dir: Ino) -> Vec<Vec<u8>> {
    let (mut plain, mut with_attributes) = (Vec::new(), Vec::new());
    let mut push = |entry: &DirEntry<'_>| {
        plain.push(entry.name.to_vec());
        true
    };
    engine.readdir(SYSTEM, dir, 0, &mut push).unwrap();
    let mut push = |entry: &DirEntry<'_>, _: Result<Attr>| {
        with_attributes.push(entry.name.to_vec());
        true
    };
    engine.readdir_plus(SYSTEM, dir, 0, &mut push).unwrap();
    assert_eq!(plain, with_attributes);
    plain
}

/// A snapshot is equal to what it was taken of, whose later changes it does not see; nor do clones of it change it.
#[test]
fn a_snapshot_stays_as_it_was_taken() {
    for (mapping, sums) in kinds() {
        let (engine, recorder) = pool(&roomy(mapping, sums).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        let before = below(&engine, "top");
        let names = listed(&engine, top);
        let attr = take(&engine, top, "first");
        assert_eq!((attr.kind, attr.mode), (FileKind::Directory, 0o755), "{mapping}");
        let same = |engine: &Engine, name: &str, when: &str| {
            let (left, right) = (Snapshot(before.clone()), Snapshot(below(engine, name)));
            let difference = left.difference(&right, ["before", name]);
            assert!(difference.is_none(), "{mapping}, {when}: {}", difference.unwrap());
        };
        same(&engine, "top/.snapshots/first", "at once");
        assert_eq!(
            listed(&engine, top),
            names,
            "{mapping}: the directory of snapshots is listed"
        );
        let (engine, recorder) = again(engine, &recorder);
        let file = engine.lookup(SYSTEM, top, b"pages").unwrap().ino;
        write(&engine, file, 0, &pattern(31 * 4096, 99));
        engine.unlink(SYSTEM, top, b"inline").unwrap();
        engine.setattr(SYSTEM, top, &mode(0o700)).unwrap();
        make(&engine, top, "later");
        same(&engine, "top/.snapshots/first", "with another original");
        // Of the second, and of one of the whole pool, the first is no part.
        take(&engine, top, "second");
        take(&engine, ROOT_INO, "pool");
        let all = Snapshot::capture(&engine).unwrap();
        let is_nested = |path: &Vec<u8>| path.windows(10).filter(|part| part == b".snapshots").count() > 1;
        assert!(!all.0.keys().any(is_nested), "{mapping}: a snapshot has snapshots");
        assert!(all.0.contains_key(&b"/.snapshots/pool/top/later"[..]), "{mapping}");
        // A tree restored from it is an ordinary one.
        let first = engine.lookup(SYSTEM, snapshots_of(&engine, top), b"first").unwrap().ino;
        let restored = engine.clone_tree(SYSTEM, first, ROOT_INO, b"restored").unwrap().ino;
        same(&engine, "restored", "restored");
        let copy = engine.lookup(SYSTEM, restored, b"pages").unwrap().ino;
        write(&engine, copy, 0, &pattern(4096, 1));
        engine.unlink(SYSTEM, restored, b"empty").unwrap();
        same(&engine, "top/.snapshots/first", "after a change of what was restored");
        let (engine, _) = again(engine, &recorder);
        same(&engine, "top/.snapshots/first", "at last");
    }
}

/// Every call that changes something, on every inode of a snapshot, through its number or through a name.
#[test]
fn nothing_in_a_snapshot_changes() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        let outside = make(&engine, ROOT_INO, "outside");
        mkdir(&engine, "empty");
        take(&engine, top, "s");
        let snapshots = snapshots_of(&engine, top);
        let (before, space) = (Snapshot::capture(&engine).unwrap(), free(&engine));
        let mut tree = vec![(top, SNAPSHOTS_NAME.to_vec(), snapshots, FileKind::Directory)];
        let mut at = 0;
        while let Some(&(_, _, dir, kind)) = tree.get(at) {
            at += 1;
            if kind == FileKind::Directory {
                let mut push = |entry: &DirEntry<'_>| {
                    tree.push((dir, entry.name.to_vec(), entry.ino, entry.kind));
                    true
                };
                engine.readdir(SYSTEM, dir, 0, &mut push).unwrap();
            }
        }
        assert!(tree.len() > 160);
        for (dir, name, ino, kind) in tree {
            let what = format!("{mapping}: {} ({kind:?})", name.escape_ascii());
            let refused = |call: &str, result: Result<()>| {
                assert_eq!(result, Err(FsError::ReadOnly), "{what}: {call}");
            };
            if ino != snapshots {
                of_inode(&engine, ino, kind, refused);
            }
            of_entry(&engine, (dir, &name, kind), refused);
            if kind == FileKind::Directory {
                of_directory(&engine, ino, ino == snapshots, outside, refused);
            } else {
                refused("link out", engine.link(SYSTEM, ino, ROOT_INO, b"linked").map(drop));
            }
        }
        assert!(
            Snapshot::capture(&engine).unwrap() == before,
            "{mapping}: something changed"
        );
        assert_eq!(free(&engine), space, "{mapping}: something was taken");
        let (engine, _) = again(engine, &recorder);
        assert!(
            Snapshot::capture(&engine).unwrap() == before,
            "{mapping}: something changed"
        );
    }
}

fn of_inode(engine: &Engine, ino: Ino, kind: FileKind, refused: impl Fn(&str, Result<()>)) {
    let time = SetAttr {
        mtime: Some(SetTime::To(Timestamp(5))),
        ..SetAttr::default()
    };
    let owner = SetAttr {
        uid: Some(77),
        ..SetAttr::default()
    };
    for (call, set) in [("chmod", mode(0o123)), ("utimes", time), ("chown", owner)] {
        refused(call, engine.setattr(SYSTEM, ino, &set).map(drop));
    }
    let set = engine.setxattr(SYSTEM, ino, b"trusted.note", b"x", XattrMode::Any);
    refused("setxattr", set);
    if engine.getxattr(SYSTEM, ino, b"user.note").is_ok() {
        refused("removexattr", engine.removexattr(SYSTEM, ino, b"user.note"));
    }
    if kind != FileKind::File {
        return;
    }
    let size = SetAttr {
        size: Some(1),
        ..SetAttr::default()
    };
    refused("truncate", engine.setattr(SYSTEM, ino, &size).map(drop));
    refused("open", engine.open(SYSTEM, ino, OpenMode::read_write()).map(drop));
    let truncating = OpenMode {
        truncate: true,
        ..OpenMode::read_only()
    };
    refused("open to truncate", engine.open(SYSTEM, ino, truncating).map(drop));
    let adapter = Arc::new(Checked::default());
    refused("bind", engine.bind(SYSTEM, ino, WRITABLE, adapter).map(drop));
    // A read leaves no access time.
    read(engine, ino);
}

fn of_entry(engine: &Engine, (dir, name, kind): (Ino, &[u8], FileKind), refused: impl Fn(&str, Result<()>)) {
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Whiteout] {
        refused("rename out", engine.rename(SYSTEM, dir, name, ROOT_INO, b"moved", mode));
        refused("rename", engine.rename(SYSTEM, dir, name, dir, b"moved", mode));
    }
    let exchanged = engine.rename(SYSTEM, dir, name, ROOT_INO, b"outside", RenameMode::Exchange);
    refused("exchange", exchanged);
    match kind {
        FileKind::Directory => {
            let onto = engine.rename(SYSTEM, ROOT_INO, b"empty", dir, name, RenameMode::Replace);
            assert!(matches!(onto, Err(FsError::ReadOnly | FsError::NotEmpty)), "{onto:?}");
        }
        _ => {
            refused("unlink", engine.unlink(SYSTEM, dir, name));
            let onto = engine.rename(SYSTEM, ROOT_INO, b"outside", dir, name, RenameMode::Replace);
            refused("rename onto", onto);
        }
    }
}

fn of_directory(engine: &Engine, dir: Ino, takes: bool, outside: Ino, refused: impl Fn(&str, Result<()>)) {
    let node = NewNode {
        kind: FileKind::Fifo,
        mode: 0o600,
        rdev: 0,
    };
    let new = NewFile {
        mode: 0o600,
        exclusive: false,
        open: OpenMode::read_write(),
    };
    refused("mknod", engine.mknod(SYSTEM, dir, b"new", &node).map(drop));
    refused("create", engine.create(SYSTEM, dir, b"new", &new).map(drop));
    refused("symlink", engine.symlink(SYSTEM, dir, b"new", b"target").map(drop));
    refused("link in", engine.link(SYSTEM, outside, dir, b"new").map(drop));
    refused("clone in", engine.clone_tree(SYSTEM, outside, dir, b"new").map(drop));
    let moved = engine.rename(SYSTEM, ROOT_INO, b"outside", dir, b"new", RenameMode::Replace);
    refused("rename in", moved);
    if !takes {
        refused("mkdir", engine.mkdir(SYSTEM, dir, b"new", 0o700).map(drop));
        refused("mkdir", engine.mkdir(SYSTEM, dir, SNAPSHOTS_NAME, 0o700).map(drop));
    }
}

/// Snapshots give back all that they had, also those that a program has open, and so does a pool that made many.
#[test]
fn removed_snapshots_leave_nothing() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        let (engine, recorder) = again(engine, &recorder);
        let (before, space) = (Snapshot::capture(&engine).unwrap(), free(&engine));
        let rounds = match std::env::var_os("FERRITE_SOAK") {
            Some(_) => 1000,
            None => 20,
        };
        for round in 0..rounds {
            let attr = take(&engine, top, &format!("s{round}"));
            let snapshots = snapshots_of(&engine, top);
            let file = engine.lookup(SYSTEM, attr.ino, b"pages").unwrap();
            let open = engine.open(SYSTEM, file.ino, OpenMode::read_only()).unwrap();
            let content = read(&engine, file.ino);
            let name = format!("s{round}");
            assert_eq!(engine.rmdir(SYSTEM, top, SNAPSHOTS_NAME), Err(FsError::NotEmpty));
            assert_eq!(
                engine.unlink(SYSTEM, snapshots, name.as_bytes()),
                Err(FsError::IsDirectory)
            );
            engine.rmdir(SYSTEM, snapshots, name.as_bytes()).unwrap();
            assert_eq!(engine.rmdir(SYSTEM, snapshots, name.as_bytes()), Err(FsError::NotFound));
            let mut kept = vec![0; content.len()];
            assert_eq!(open.read_at(SYSTEM, 0, &mut kept).unwrap(), content.len());
            assert!(kept == content, "{mapping}: an open file of a removed snapshot");
            drop(open);
            engine.rmdir(SYSTEM, top, SNAPSHOTS_NAME).unwrap();
        }
        assert_eq!(engine.info().blocks_saved, 0, "{mapping}");
        let (engine, _) = again(engine, &recorder);
        let (blocks, inodes) = free(&engine);
        assert!(blocks >= space.0 && inodes == space.1, "{mapping}: space is lost");
        let mut after = Snapshot::capture(&engine).unwrap();
        // Its times and its blocks are those of a directory that had another entry.
        after.0.insert(b"/top".to_vec(), before.0[&b"/top"[..]].clone());
        let difference = before.difference(&after, ["before", "after"]);
        assert!(difference.is_none(), "{mapping}: {}", difference.unwrap());
    }
}

/// A file in a snapshot may be bound to be read.
#[test]
fn files_in_snapshots_are_bound_for_readers() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        let attr = take(&engine, top, "s");
        let file = engine.lookup(SYSTEM, attr.ino, b"pages").unwrap().ino;
        let content = read(&engine, file);
        let adapter = Arc::new(Checked::default());
        let how = Binding {
            writable: false,
            ..WRITABLE
        };
        let region = engine.bind(SYSTEM, file, how, adapter).unwrap();
        assert!(read(&engine, file) == content, "{mapping}");
        region.unbind().unwrap();
        let (engine, _) = again(engine, &recorder);
        assert!(read(&engine, file) == content, "{mapping}");
    }
}

#[test]
fn owners_and_root_take_snapshots() {
    let (engine, _recorder) = pool(&roomy(Mapping::default(), false).inodes(1023));
    let [owner, other] = [1, 2].map(|id| Ctx::checked(Cred::new(id, id)));
    let dir = mkdir(&engine, "dir");
    let own = SetAttr {
        uid: Some(1),
        gid: Some(1),
        mode: Some(0o777),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, dir, &own).unwrap();
    let refused = engine.mkdir(&other, dir, SNAPSHOTS_NAME, 0o777);
    assert_eq!(refused.unwrap_err(), FsError::NotPermitted);
    // Made by root, it belongs to the owner all the same.
    let snapshots = engine.mkdir(SYSTEM, dir, SNAPSHOTS_NAME, 0o755).unwrap();
    assert_eq!((snapshots.uid, snapshots.gid), (1, 1));
    let refused = engine.mkdir(&other, snapshots.ino, b"s", 0o755).unwrap_err();
    assert_eq!(refused, FsError::NotPermitted);
    engine.mkdir(&owner, snapshots.ino, b"s", 0o755).unwrap();
    let refused = engine.rmdir(&other, snapshots.ino, b"s").unwrap_err();
    assert_eq!(refused, FsError::AccessDenied);
    // The right to write it is not enough. It takes another mode, and follows to another owner.
    engine.setattr(SYSTEM, snapshots.ino, &mode(0o777)).unwrap();
    let refused = engine.rmdir(&other, snapshots.ino, b"s").unwrap_err();
    assert_eq!(refused, FsError::NotPermitted);
    engine.rmdir(&owner, snapshots.ino, b"s").unwrap();
    // Not of what belongs to others.
    make(&engine, dir, "file of root");
    let refused = engine.mkdir(&owner, snapshots.ino, b"s", 0o755).unwrap_err();
    assert_eq!(refused, FsError::NotPermitted);
    engine.rmdir(&owner, dir, SNAPSHOTS_NAME).unwrap();
}

/// Repeated requests find the snapshot that the first has taken, and that it is gone.
#[test]
fn requests_for_snapshots_are_executed_once() {
    let (engine, recorder) = pool(&roomy(Mapping::default(), false).inodes(1023));
    let dir = mkdir(&engine, "dir");
    let snapshots = snapshots_of(&engine, dir);
    let ctx = |seq: u64| Ctx {
        token: Some(DedupToken { slot: 1, seq }),
        ..SYSTEM.clone()
    };
    let first = engine.mkdir(&ctx(5), snapshots, b"s", 0o755).unwrap();
    make(&engine, dir, "later");
    let (engine, recorder) = again(engine, &recorder);
    assert_eq!(engine.mkdir(&ctx(5), snapshots, b"s", 0o755).unwrap().ino, first.ino);
    engine.rmdir(&ctx(6), snapshots, b"s").unwrap();
    let (engine, _) = again(engine, &recorder);
    engine.rmdir(&ctx(6), snapshots, b"s").unwrap();
}

/// A crash at any fence while a snapshot is taken or removed leaves all of it or nothing.
#[test]
fn a_snapshot_is_there_whole_or_not_at_all() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        let snapshots = snapshots_of(&engine, top);
        engine.unmount().unwrap();
        let (engine, recorder) = reopened(&recorder.log().final_image());
        let without = Snapshot::capture(&engine).unwrap();
        let first = recorder.log().crash_points();
        engine.mkdir(SYSTEM, snapshots, b"s", 0o755).unwrap();
        let with = Snapshot::capture(&engine).unwrap();
        let taken = recorder.log().crash_points();
        whole_or_nothing(mapping, &recorder, first, [&without, &with]);
        engine.rmdir(SYSTEM, snapshots, b"s").unwrap();
        let removed = Snapshot::capture(&engine).unwrap();
        whole_or_nothing(mapping, &recorder, taken, [&with, &removed]);
    }
}

/// All images from a crash point on have one of two states, before and after mount's own work is cut.
fn whole_or_nothing(mapping: Mapping, recorder: &Recorder, first: usize, states: [&Snapshot; 2]) {
    let log = recorder.log();
    let mut cursor = log.cursor();
    let step = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 1,
        None => 5,
    };
    // The last of the points that came before: nothing of what followed is durable there.
    while cursor.point() < first - 1 {
        cursor.advance();
    }
    let mut seen = [0, 0];
    loop {
        let point = cursor.point();
        // Nothing that is in flight, and some of it.
        for choice in [Choice::None, Choice::Random(point as u64)] {
            cursor.with_image(choice, |image| {
                check(image);
                let (engine, recorder) = reopened(image);
                let found = Snapshot::capture(&engine).unwrap();
                let state = states.iter().position(|state| **state == found);
                seen[state.unwrap_or_else(|| panic!("{mapping}: a part is there at {point}"))] += 1;
                // A crash of that mount.
                let log = recorder.log();
                let mut cursor = log.cursor();
                for _ in 0..log.crash_points() / 2 {
                    cursor.advance();
                }
                cursor.with_image(Choice::Random(7), |image| check(image));
                drop(log);
                again(engine, &recorder);
            });
        }
        // The last one, too.
        if (0..step).take_while(|_| cursor.advance()).count() == 0 {
            break;
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{mapping}: {seen:?}");
}

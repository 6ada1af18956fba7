//! Snapshots: each holds one state of its directory, whatever becomes of that; removing one removes all of it, also if
//! a crash comes in between. On every mapping. That no call changes a thing in one is a part of the POSIX suite.

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
    Attr, Ctx, DedupToken, DirEntry, FileKind, FileSystem, FsError, Ino, OpenMode, ROOT_INO, Result, SNAPSHOTS_NAME,
    SYSTEM,
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

/// A file in a snapshot may be bound to be read, and not to be written.
#[test]
fn files_in_snapshots_are_bound_for_readers() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        let attr = take(&engine, top, "s");
        let file = engine.lookup(SYSTEM, attr.ino, b"pages").unwrap().ino;
        let content = read(&engine, file);
        let adapter = Arc::new(Checked::default());
        let refused = engine.bind(SYSTEM, file, WRITABLE, adapter.clone());
        assert_eq!(refused.map(drop).unwrap_err(), FsError::ReadOnly, "{mapping}");
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

//! Clones of trees: what a clone holds is one state of the original, and neither sees changes of the other; on every
//! mapping, with and without checksums of data. A clone that is not complete leaves nothing. Crashes: also `whole.rs`
//! and the explorer. Snapshots, which are clones too, have their tests in `snapshots.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::bound::{again, fallocate, options, pool, quiet, read, reopened};
use crate::common::remote::{Checked, WRITABLE};
use crate::common::{check, empty_pool, make, pattern, write};
use ferrite_fs::{Durability, Engine, Mapping, MkfsOptions, number_thread};
use ferrite_pm::{Choice, Recorder, Region};
use ferrite_testkit::snapshot::{Node, Snapshot};
use ferrite_vfs::regions::{Adapter, Regions};
use ferrite_vfs::{
    Attr, Cred, Ctx, DedupToken, FallocateMode, FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO,
    RenameMode, SYSTEM, SetAttr, XattrMode,
};

const PAGE: u64 = 4096;

pub(crate) fn kinds() -> impl Iterator<Item = (Mapping, bool)> {
    Mapping::ALL
        .iter()
        .flat_map(|&mapping| [(mapping, false), (mapping, true)])
}

pub(crate) fn roomy(mapping: Mapping, sums: bool) -> MkfsOptions {
    options(mapping, sums).pages_per_block(4)
}

pub(crate) fn mkdir(engine: &Engine, name: &str) -> Ino {
    engine.mkdir(SYSTEM, ROOT_INO, name.as_bytes(), 0o755).unwrap().ino
}

/// All that a pool can hold, below one directory.
pub(crate) fn tree_of_all_kinds(engine: &Engine) -> Ino {
    let top = mkdir(engine, "top");
    let file = make(engine, top, "pages");
    write(engine, file, 0, &pattern(30 * 4096 + 77, 1));
    for page in 0..20 {
        write(engine, file, page * PAGE + 9, &[page as u8; 60]);
    }
    fallocate(engine, file, FallocateMode::PunchHole, 4 * PAGE, 3 * PAGE);
    fallocate(
        engine,
        file,
        FallocateMode::ZeroRange { keep_size: true },
        9 * PAGE,
        PAGE,
    );
    let keep = FallocateMode::Allocate { keep_size: true };
    fallocate(engine, file, keep, 40 * PAGE, 5 * PAGE);
    write(engine, make(engine, top, "inline"), 0, b"few bytes");
    make(engine, top, "empty");
    let sparse = make(engine, top, "sparse");
    write(engine, sparse, 5000 * PAGE, b"far away");
    engine.symlink(SYSTEM, top, b"short", b"target").unwrap();
    engine.symlink(SYSTEM, top, b"long", &[b'x'; 900]).unwrap();
    for (name, kind) in [("fifo", FileKind::Fifo), ("device", FileKind::CharDevice)] {
        let node = NewNode {
            kind,
            mode: 0o640,
            rdev: 0x0103,
        };
        engine.mknod(SYSTEM, top, name.as_bytes(), &node).unwrap();
    }
    let below = engine.mkdir(SYSTEM, top, b"below", 0o2750).unwrap().ino;
    let deep = engine.mkdir(SYSTEM, below, b"deep", 0o700).unwrap().ino;
    engine.link(SYSTEM, file, below, b"other name").unwrap();
    engine.link(SYSTEM, file, deep, b"third name").unwrap();
    for (ino, len) in [(file, 40), (below, 3000), (top, 9000)] {
        let value = pattern(len, 7);
        engine
            .setxattr(SYSTEM, ino, b"user.note", &value, XattrMode::Any)
            .unwrap();
    }
    for n in 0..150 {
        let ino = make(engine, deep, &format!("many-{n:03}-{}", "n".repeat(n % 40)));
        let set = SetAttr {
            uid: Some(n as u32 % 3),
            mode: Some(0o4600 + n as u32 % 8),
            ..SetAttr::default()
        };
        engine.setattr(SYSTEM, ino, &set).unwrap();
        if n % 3 == 0 {
            write(engine, ino, 0, &pattern(n * 50, n as u8));
        }
    }
    top
}

/// The nodes below a directory of the root, by their paths there, without what a clone has of its own.
pub(crate) fn below(engine: &Engine, name: &str) -> BTreeMap<Vec<u8>, Node> {
    Snapshot::below(engine, name).unwrap().0
}

fn clone(engine: &Engine, source: Ino, name: &str) -> Attr {
    engine.clone_tree(SYSTEM, source, ROOT_INO, name.as_bytes()).unwrap()
}

pub(crate) fn free(engine: &Engine) -> (u64, u64) {
    let space = engine.statfs(SYSTEM).unwrap();
    (space.blocks_free, space.inodes_free)
}

fn remove(engine: &Engine, parent: Ino, name: &[u8]) {
    let ino = engine.lookup(SYSTEM, parent, name).unwrap();
    if ino.kind != FileKind::Directory {
        return engine.unlink(SYSTEM, parent, name).unwrap();
    }
    let mut names = Vec::new();
    let all = &mut |entry: &ferrite_vfs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    engine.readdir(SYSTEM, ino.ino, 0, all).unwrap();
    names.iter().for_each(|name| remove(engine, ino.ino, name));
    engine.rmdir(SYSTEM, parent, name).unwrap();
}

#[test]
fn a_clone_of_a_tree_is_equal_and_apart() {
    for (mapping, sums) in kinds() {
        let (engine, recorder) = pool(&roomy(mapping, sums).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        let before = below(&engine, "top");
        let attr = clone(&engine, top, "clone");
        assert_eq!(engine.lookup(SYSTEM, ROOT_INO, b"clone").unwrap(), attr, "{mapping}");
        let same = |engine: &Engine, name: &str, when: &str| {
            let (left, right) = (Snapshot(before.clone()), Snapshot(below(engine, name)));
            let difference = left.difference(&right, ["before", name]);
            assert!(difference.is_none(), "{mapping}, {when}: {}", difference.unwrap());
        };
        same(&engine, "clone", "at once");
        same(&engine, "top", "at once");
        assert!(
            engine.info().blocks_saved >= 24,
            "{mapping}: {}",
            engine.info().blocks_saved
        );
        let (engine, recorder) = again(engine, &recorder);
        same(&engine, "clone", "later");
        // A clone of the clone, into itself, and of one file.
        let cloned = engine.lookup(SYSTEM, ROOT_INO, b"clone").unwrap().ino;
        let inner = engine.clone_tree(SYSTEM, cloned, cloned, b"inner").unwrap().ino;
        assert_eq!(engine.parent(SYSTEM, inner).unwrap(), cloned);
        remove(&engine, cloned, b"inner");
        let file = engine.lookup(SYSTEM, top, b"pages").unwrap();
        let single = clone(&engine, file.ino, "single");
        assert_eq!((single.nlink, single.size, single.mtime), (1, file.size, file.mtime));
        assert_eq!(read(&engine, single.ino), read(&engine, file.ino));
        // Changes on either side stay there.
        write(&engine, file.ino, 2 * PAGE, &pattern(3 * 4096, 99));
        write(&engine, file.ino, 100, b"in a page");
        remove(&engine, top, b"below");
        let source = below(&engine, "top");
        same(&engine, "clone", "with another original");
        let (engine, recorder) = again(engine, &recorder);
        let file = engine.lookup(SYSTEM, cloned, b"pages").unwrap().ino;
        write(&engine, file, 0, &pattern(31 * 4096, 55));
        assert_eq!(below(&engine, "top"), source, "{mapping}: the original sees a change");
        for name in [&b"single"[..], b"clone", b"top"] {
            remove(&engine, ROOT_INO, name);
        }
        assert_eq!(engine.info().blocks_saved, 0, "{mapping}");
        let (engine, recorder) = again(engine, &recorder);
        let (_, inodes) = free(&engine);
        assert_eq!(inodes, 1022, "{mapping}: inodes are lost");
        again(engine, &recorder);
    }
}

/// More pages than a record maps.
#[test]
fn large_files_are_cloned_whole() {
    for &mapping in Mapping::ALL {
        let region = Region::anonymous(64 << 20).unwrap();
        ferrite_fs::mkfs(
            &region,
            &MkfsOptions::default().mapping(mapping).pages_per_block(4).inodes(127),
        )
        .unwrap();
        let engine = Engine::mount(region, &quiet()).unwrap();
        let file = make(&engine, ROOT_INO, "large");
        let content = pattern(5000 * 4096 + 1, 3);
        write(&engine, file, 0, &content);
        for page in (0..5000).step_by(7) {
            write(&engine, file, page * PAGE + 1, &[1; 10]);
        }
        let before = engine.statfs(SYSTEM).unwrap().blocks_free;
        let cloned = clone(&engine, file, "clone");
        let taken = before.saturating_sub(engine.statfs(SYSTEM).unwrap().blocks_free);
        assert!(taken < 60, "{mapping}: {taken} blocks");
        assert!(read(&engine, cloned.ino) == read(&engine, file), "{mapping}");
        write(&engine, file, 0, &pattern(5000 * 4096, 9));
        let mut expected = content;
        (0..5000)
            .step_by(7)
            .for_each(|page| expected[page * 4096 + 1..][..10].fill(1));
        assert!(read(&engine, cloned.ino) == expected, "{mapping}: it sees a change");
        engine.unmount().unwrap();
    }
}

#[test]
fn bound_files_are_copied() {
    for (mapping, sums) in kinds() {
        let (engine, recorder) = pool(&roomy(mapping, sums));
        let dir = mkdir(&engine, "dir");
        let file = make(&engine, dir, "bound");
        write(&engine, file, 0, &pattern(10 * 4096, 1));
        write(&engine, file, 300 * PAGE, &pattern(700, 2));
        engine.link(SYSTEM, file, dir, b"link").unwrap();
        let adapter: Arc<dyn Adapter> = Arc::new(Checked::default());
        let region = engine.bind(SYSTEM, file, WRITABLE, adapter).unwrap();
        let content = read(&engine, file);
        let clone = clone(&engine, dir, "clone").ino;
        let copy = engine.lookup(SYSTEM, clone, b"bound").unwrap();
        assert_eq!(copy.mtime, engine.getattr(SYSTEM, file).unwrap().mtime, "{mapping}");
        let link = engine.lookup(SYSTEM, clone, b"link").unwrap();
        assert_eq!((copy.nlink, link.ino), (2, copy.ino), "{mapping}");
        assert!(read(&engine, copy.ino) == content, "{mapping}");
        assert_eq!(engine.info().blocks_saved, 0, "{mapping}: a bound file shares blocks");
        region.unbind().unwrap();
        again(engine, &recorder);
    }
}

#[test]
fn what_cannot_be_cloned_changes_nothing() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(255));
        let top = tree_of_all_kinds(&engine);
        let state = || (Snapshot::capture(&engine).unwrap(), engine.info().blocks_saved);
        let (before, space) = (state(), free(&engine));
        let refused = |ctx: &Ctx, source, parent, name: &[u8]| {
            let error = engine.clone_tree(ctx, source, parent, name).unwrap_err();
            assert!(state() == before, "{mapping}: {error} changed something");
            // Merging logs may have freed some.
            let (blocks, inodes) = free(&engine);
            assert!(
                blocks >= space.0 && inodes == space.1,
                "{mapping}: {error} took something"
            );
            error
        };
        let file = engine.lookup(SYSTEM, top, b"pages").unwrap().ino;
        assert_eq!(refused(SYSTEM, top, ROOT_INO, b"top"), FsError::Exists);
        assert_eq!(refused(SYSTEM, top, file, b"new"), FsError::NotDirectory);
        assert_eq!(refused(SYSTEM, 100_000, ROOT_INO, b"new"), FsError::NotFound);
        assert!(matches!(
            refused(SYSTEM, top, ROOT_INO, &[b'n'; 256]),
            FsError::NameTooLong
        ));
        // The names have 168 inodes, which the pool does not have once more.
        assert!(matches!(refused(SYSTEM, top, ROOT_INO, b"new"), FsError::NoSpace(_)));
        let user = Ctx::checked(Cred::new(1, 1));
        assert_eq!(refused(&user, file, ROOT_INO, b"new"), FsError::NotPermitted);
        engine.setattr(SYSTEM, ROOT_INO, &mode(0o777)).unwrap();
        let own = SetAttr {
            uid: Some(1),
            ..SetAttr::default()
        };
        engine.setattr(SYSTEM, file, &own).unwrap();
        let cloned = engine.clone_tree(&user, file, ROOT_INO, b"new").unwrap();
        assert_eq!((cloned.uid, cloned.nlink), (1, 1));
        again(engine, &recorder);
    }
}

pub(crate) fn mode(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    }
}

/// A pool without space for the clone's own blocks is as before, and without marks that would stay.
#[test]
fn a_full_pool_refuses_a_clone_whole() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        let filler = make(&engine, ROOT_INO, "filler");
        let file = engine.open(SYSTEM, filler, OpenMode::read_write()).unwrap();
        let mut at = 0;
        while file.write_at(SYSTEM, at, &pattern(4096, 3)).is_ok() {
            at += PAGE;
        }
        let before = below(&engine, "top");
        let error = engine.clone_tree(SYSTEM, top, ROOT_INO, b"clone").unwrap_err();
        assert!(matches!(error, FsError::NoSpace(_)), "{mapping}: {error}");
        assert_eq!(
            engine.lookup(SYSTEM, ROOT_INO, b"clone").unwrap_err(),
            FsError::NotFound
        );
        assert_eq!(engine.info().orphans, 0, "{mapping}");
        drop(file);
        let (engine, _) = again(engine, &recorder);
        assert_eq!(below(&engine, "top"), before, "{mapping}");
        engine.unlink(SYSTEM, ROOT_INO, b"filler").unwrap();
        clone(&engine, top, "clone");
    }
}

/// Mount removes a clone that a crash cut, however far it was, and if that is cut again.
#[test]
fn a_clone_that_a_crash_cuts_is_gone() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let top = tree_of_all_kinds(&engine);
        engine.unmount().unwrap();
        let (engine, recorder) = {
            let image = recorder.log().final_image();
            reopened(&image)
        };
        let (before, space) = (Snapshot::capture(&engine).unwrap(), free(&engine));
        let first = recorder.log().crash_points();
        clone(&engine, top, "clone");
        let after = Snapshot::capture(&engine).unwrap();
        let log = recorder.log();
        let last = log.crash_points();
        assert!(last - first > 4, "{mapping}: few records");
        let mut cursor = log.cursor();
        let (mut cut, mut complete) = (0, 0);
        while cursor.point() < first {
            cursor.advance();
        }
        loop {
            let choice = Choice::Random(cursor.point() as u64);
            cursor.with_image(choice, |image| {
                check(image);
                let (engine, recorder) = reopened(image);
                let found = Snapshot::capture(&engine).unwrap();
                if found == before {
                    // Merging logs may have freed some.
                    let (blocks, inodes) = free(&engine);
                    assert!(blocks >= space.0 && inodes == space.1, "{mapping}: something is left");
                    cut += 1;
                } else {
                    assert!(found == after, "{mapping}: a part of the clone is there");
                    complete += 1;
                }
                cut_again(mapping, &recorder, &before, &after);
                again(engine, &recorder);
            });
            if !cursor.advance() {
                break;
            }
        }
        assert!(cut > 0 && complete > 0, "{mapping}: {cut} cut, {complete} complete");
    }
}

/// A crash of the recovery.
fn cut_again(mapping: Mapping, recorder: &Recorder, before: &Snapshot, after: &Snapshot) {
    let log = recorder.log();
    let mut cursor = log.cursor();
    for _ in 0..log.crash_points() / 2 {
        cursor.advance();
    }
    cursor.with_image(Choice::Random(7), |image| {
        check(image);
        let (engine, recorder) = reopened(image);
        let found = Snapshot::capture(&engine).unwrap();
        assert!(
            found == *before || found == *after,
            "{mapping}: recovery was cut, and a part is left"
        );
        again(engine, &recorder);
    });
}

/// Names that move between directories are in one of them, and of two files that are written one after the other the
/// second never has more.
#[test]
fn a_clone_is_one_state_while_others_write() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, false).inodes(1023));
        let top = mkdir(&engine, "top");
        let dirs = [b"a", b"b"].map(|name| engine.mkdir(SYSTEM, top, name, 0o755).unwrap().ino);
        let files = ["first", "second"].map(|name| make(&engine, top, name));
        for file in files {
            write(&engine, file, 0, &[0; 8]);
        }
        for n in 0..40 {
            make(&engine, dirs[n % 2], &format!("other{n}"));
        }
        make(&engine, dirs[0], "moving");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0.. {
                    let (from, to) = (dirs[round % 2], dirs[(round + 1) % 2]);
                    engine
                        .rename(SYSTEM, from, b"moving", to, b"moving", RenameMode::NoReplace)
                        .unwrap();
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                for number in 1_u64.. {
                    for file in files {
                        write(&engine, file, 0, &number.to_le_bytes());
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for round in 0..40 {
                let clone = clone(&engine, top, "clone").ino;
                let number = |name: &[u8]| {
                    let ino = engine.lookup(SYSTEM, clone, name).unwrap().ino;
                    u64::from_le_bytes(read(&engine, ino)[..8].try_into().unwrap())
                };
                let (first, second) = (number(b"first"), number(b"second"));
                assert!(
                    first == second || first == second + 1,
                    "{mapping}: {first}, then {second}"
                );
                let moving = [b"a", b"b"].map(|name| {
                    let dir = engine.lookup(SYSTEM, clone, name).unwrap().ino;
                    engine.lookup(SYSTEM, dir, b"moving").is_ok()
                });
                assert!(moving[0] != moving[1], "{mapping}, round {round}: {moving:?}");
                remove(&engine, ROOT_INO, b"clone");
            }
            stop.store(true, Ordering::Relaxed);
        });
        again(engine, &recorder);
    }
}

/// A repeated request finds the clone that the first has made.
#[test]
fn a_clone_with_a_token_is_made_once() {
    let (engine, recorder) = pool(&roomy(Mapping::default(), false));
    let dir = mkdir(&engine, "dir");
    make(&engine, dir, "file");
    let ctx = Ctx {
        token: Some(DedupToken { slot: 1, seq: 5 }),
        ..SYSTEM.clone()
    };
    let first = engine.clone_tree(&ctx, dir, ROOT_INO, b"clone").unwrap();
    make(&engine, dir, "later");
    let (engine, _) = again(engine, &recorder);
    assert_eq!(engine.clone_tree(&ctx, dir, ROOT_INO, b"clone").unwrap().ino, first.ino);
    assert_eq!(
        engine.lookup(SYSTEM, first.ino, b"later").unwrap_err(),
        FsError::NotFound
    );
}

/// The records of a clone set checksums that records of its originals have set, in other rings.
#[test]
fn clones_come_after_the_records_of_their_originals() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&roomy(mapping, true));
        let dir = mkdir(&engine, "dir");
        let file = make(&engine, dir, "file");
        let on_ring = |ring: u64, work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    number_thread(ring);
                    work();
                });
            });
        };
        on_ring(1, &|| {
            make(&engine, ROOT_INO, "first");
        });
        on_ring(0, &|| {
            for page in 0..100 {
                write(&engine, file, page * PAGE, &pattern(4096, page as u8));
            }
        });
        let content = read(&engine, file);
        on_ring(1, &|| {
            clone(&engine, dir, "clone");
        });
        drop(engine);
        // Nothing was retired, so the mount replays all records.
        let (engine, recorder) = reopened(&recorder.log().final_image());
        let copy = engine.lookup(SYSTEM, ROOT_INO, b"clone").unwrap().ino;
        let copy = engine.lookup(SYSTEM, copy, b"file").unwrap().ino;
        assert!(
            read(&engine, copy) == content && read(&engine, file) == content,
            "{mapping}"
        );
        again(engine, &recorder);
    }
}

/// Where write-back is deferred, records have the new nodes of trees, of which each of these pages needs one.
#[test]
fn records_with_nodes_have_space_for_clones() {
    for &mapping in Mapping::ALL {
        let image = empty_pool(8 << 20, &roomy(mapping, false).inodes(511));
        let region = Region::from_image(&image).unwrap();
        let engine = Engine::mount(region, &quiet().durability(Durability::OnSync)).unwrap();
        let dir = mkdir(&engine, "dir");
        for n in 0..100 {
            write(&engine, make(&engine, dir, &format!("file{n}")), 0, &pattern(4096, n));
        }
        let sparse = make(&engine, dir, "sparse");
        for n in 0..100 {
            write(&engine, sparse, n * 600 * PAGE, &pattern(300, n as u8));
        }
        for n in 0..4 {
            let ino = make(&engine, dir, &format!("noted{n}"));
            for part in 0..4 {
                let name = format!("user.part{part}");
                let value = pattern(60_000, part);
                engine
                    .setxattr(SYSTEM, ino, name.as_bytes(), &value, XattrMode::Any)
                    .unwrap();
            }
        }
        let before = below(&engine, "dir");
        clone(&engine, dir, "clone");
        assert!(below(&engine, "clone") == before, "{mapping}");
        engine.unmount().unwrap();
    }
}

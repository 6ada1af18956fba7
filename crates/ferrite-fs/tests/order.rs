//! Rules of the journal (docs/crash-consistency.md) that a simple workload does not meet: resources reused in another
//! ring, dead records, moves followed by other records. Each test fails if one line of the engine is left out.

use std::sync::Arc;

use crate::common::{Tree, capture, empty_pool, fixed, make, on_ring, pattern, write};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, fsck};
use ferrite_pm::{Choice, Log, Recorder, Region};
use ferrite_vfs::{FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, SYSTEM, SetAttr, SpaceOf};

const POOL_BYTES: u64 = 4 << 20;
const PAGE: u64 = 4096;

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).merge_read_entries(0)
}

fn options() -> MkfsOptions {
    fixed().inodes(127).rings(2)
}

/// A pool after `setup`, unmounted.
fn prepared(options: &MkfsOptions, setup: impl FnOnce(&Engine)) -> Vec<u8> {
    let empty = empty_pool(POOL_BYTES, options);
    let recorder = Recorder::new(empty.clone());
    let mut region = Region::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    setup(&engine);
    engine.unmount().unwrap();
    recorder.log().final_image()
}

/// The recording of `work` on the pool in `image`, which it leaves mounted, and its result.
fn recorded<T>(image: &[u8], work: impl FnOnce(&Engine, &Recorder) -> T) -> (Log, T) {
    let recorder = Recorder::new(image.to_vec());
    let mut region = Region::from_image(image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let result = work(&engine, &recorder);
    (recorder.log(), result)
}

/// The durable image at the end of `log`.
fn durable(log: &Log) -> Vec<u8> {
    let mut cursor = log.cursor();
    while cursor.advance() {}
    cursor.with_image(Choice::None, |image| image.to_vec())
}

/// Mounts the image of a crash, in which nothing may look damaged.
fn recover(image: &[u8], what: &str) -> (Engine, Tree) {
    let report = fsck(Region::from_image(image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{what}: fsck: {:#?}", report.findings);
    let engine = Engine::mount(Region::from_image(image).unwrap(), &quiet()).unwrap();
    assert!(engine.damage().is_empty(), "{what}: {:?}", engine.damage());
    let tree = capture(&engine);
    (engine, tree)
}

/// A crash at the end of `log` leaves `tree`.
fn leaves(log: &Log, tree: &Tree, what: &str) {
    let found = recover(&durable(log), what).1;
    assert!(
        found == *tree,
        "{what}: found {:?}, expected {:?}",
        found.keys(),
        tree.keys()
    );
}

fn mkdir(engine: &Engine, name: &str) -> Ino {
    engine.mkdir(SYSTEM, ROOT_INO, name.as_bytes(), 0o755).unwrap().ino
}

/// Many records that change nothing but an inode: the numbers of this ring go ahead of the other's.
fn hurry(engine: &Engine, ino: Ino) {
    for mode in 0..40 {
        let set = SetAttr {
            mode: Some(0o700 + mode % 8),
            ..SetAttr::default()
        };
        engine.setattr(SYSTEM, ino, &set).unwrap();
    }
}

/// A slot of the name table that one ring's record cleared is set by one of the other ring, which comes after it.
#[test]
fn name_slots_are_used_again_in_order() {
    const NAMES: usize = 50;
    let mut dirs = [0; 2];
    let image = prepared(&options(), |engine| {
        dirs = ["one", "two"].map(|name| mkdir(engine, name));
        for n in 0..NAMES {
            make(engine, dirs[0], &format!("old{n}"));
        }
    });
    let (log, tree) = recorded(&image, |engine, _| {
        on_ring(0, || {
            hurry(engine, dirs[0]);
            (0..NAMES).for_each(|n| engine.unlink(SYSTEM, dirs[0], format!("old{n}").as_bytes()).unwrap());
        });
        on_ring(1, || {
            for n in 0..NAMES {
                make(engine, dirs[1], &format!("new{n}"));
            }
        });
        capture(engine)
    });
    leaves(&log, &tree, "names");
}

/// An inode number that one ring's record freed is used by one of the other ring, which comes after it.
#[test]
fn inode_numbers_are_used_again_in_order() {
    let names = ["a", "b", "c"];
    let mut dirs = [0; 2];
    let image = prepared(&options(), |engine| {
        dirs = ["one", "two"].map(|name| mkdir(engine, name));
        for name in names {
            make(engine, dirs[0], name);
        }
        let fill = mkdir(engine, "fill");
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o600,
            rdev: 0,
        };
        // So that no other numbers are left.
        let full = (0..).find_map(|n: u32| {
            let made = engine.mknod(SYSTEM, fill, n.to_string().as_bytes(), &node);
            made.err()
        });
        assert_eq!(full, Some(FsError::NoSpace(SpaceOf::Inodes)));
    });
    let (log, tree) = recorded(&image, |engine, _| {
        on_ring(0, || {
            hurry(engine, dirs[0]);
            for name in names {
                engine.unlink(SYSTEM, dirs[0], name.as_bytes()).unwrap();
            }
        });
        on_ring(1, || {
            for name in names {
                make(engine, dirs[1], name);
            }
        });
        capture(engine)
    });
    leaves(&log, &tree, "inodes");
}

/// A record that a crash left without the data it carries a checksum of stays dead: a later write of the same bytes to
/// that block does not revive it.
#[test]
fn a_dead_record_does_not_come_back_with_its_data() {
    let page = pattern(PAGE as usize, 7);
    let mut dir = 0;
    let image = prepared(&options(), |engine| {
        dir = mkdir(engine, "dir");
        let ino = make(engine, ROOT_INO, "file");
        write(engine, ino, 0, &pattern(2 * PAGE as usize, 1));
        let filler = make(engine, ROOT_INO, "filler");
        let mut at = 0;
        while engine.statfs(SYSTEM).unwrap().blocks_available > 8 {
            write(engine, filler, at, &[9; PAGE as usize]);
            at += PAGE;
        }
    });
    let (log, ()) = recorded(&image, |engine, _| {
        let ino = engine.lookup(SYSTEM, ROOT_INO, b"file").unwrap().ino;
        on_ring(0, || {
            hurry(engine, dir);
            write(engine, ino, 0, &page);
        });
    });
    let mut cursor = log.cursor();
    let points = log.crash_points();
    while cursor.point() + 2 < points {
        cursor.advance();
    }
    let lines = cursor.lines_in_flight();
    assert!(lines > 60, "not the fence of a page: {lines} lines in flight");
    let mut revived = 0;
    for line in 0..lines {
        cursor.with_image(Choice::AllButLine(line), |image| {
            let what = format!("without line {line}");
            let (log, tree) = recorded(image, |engine, _| {
                // In the other ring, so that the dead record is not written over.
                on_ring(1, || {
                    let ino = make(engine, ROOT_INO, "echo");
                    let pages = engine.statfs(SYSTEM).unwrap().blocks_available;
                    for n in 0..pages {
                        write(engine, ino, n * PAGE, &page);
                    }
                    revived += pages;
                });
                capture(engine)
            });
            leaves(&log, &tree, &what);
        });
    }
    assert!(revived > 0, "the same bytes were written nowhere");
}

/// A write over the border of two pages makes an entry in the log of each, and one record carries the checksums of
/// both.
#[test]
fn everything_that_a_record_covers_is_checked() {
    let mut ino = 0;
    let image = prepared(&options(), |engine| {
        ino = make(engine, ROOT_INO, "file");
        write(engine, ino, 0, &pattern(2 * PAGE as usize, 1));
    });
    let (log, states) = recorded(&image, |engine, recorder| {
        let mut states = vec![capture(engine)];
        for turn in 0..4u8 {
            write(engine, ino, PAGE - 150, &pattern(300, turn));
            recorder.mark(states.len() as u64);
            states.push(capture(engine));
        }
        states
    });
    let mut cursor = log.cursor();
    let mut images = 0;
    loop {
        let returned = cursor.marks().last().map_or(0, |&mark| mark as usize);
        for line in 0..cursor.lines_in_flight() {
            cursor.with_image(Choice::AllButLine(line), |image| {
                let what = format!("{returned} writes returned, without line {line}");
                let tree = recover(image, &what).1;
                assert!(states[returned..].iter().take(2).any(|state| *state == tree), "{what}");
                images += 1;
            });
        }
        if !cursor.advance() {
            break;
        }
    }
    assert!(images > 20, "{images} images");
}

/// A change right after a move of entries, in another ring and to an idle file, is ordered after the move.
#[test]
fn changes_after_a_move_come_after_it() {
    const PLACES: u64 = 40;
    for mapping in [Mapping::Leaf, Mapping::Cuckoo] {
        let options_of_pool = options().mapping(mapping);
        let mut files = [0; 2];
        let image = prepared(&options_of_pool, |engine| {
            files = ["busy", "at-rest"].map(|name| make(engine, ROOT_INO, name));
            (0..PLACES).for_each(|n| write(engine, files[1], n * 8 * PAGE, &pattern(PAGE as usize, n as u8)));
        });
        let mut moves = 0;
        let mut checked = 0;
        let recorder = Recorder::new(image.clone());
        let mut region = Region::from_image(&image).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        let engine = Engine::mount(region, &quiet()).unwrap();
        for n in 0..400 {
            let added = on_ring(0, || {
                let file = engine.open(SYSTEM, files[0], OpenMode::read_write()).unwrap();
                file.write_at(SYSTEM, n * 9 * PAGE, &pattern(PAGE as usize, n as u8))
            });
            if matches!(added, Err(FsError::NoSpace(_))) {
                break;
            }
            if engine.map_moves() == moves || checked == 6 {
                continue;
            }
            moves = engine.map_moves();
            checked += 1;
            on_ring(1, || {
                for place in 0..PLACES {
                    write(
                        &engine,
                        files[1],
                        place * 8 * PAGE,
                        &pattern(PAGE as usize, (n + place) as u8),
                    );
                }
            });
            leaves(
                &recorder.log(),
                &capture(&engine),
                &format!("{mapping}, after {moves} moves"),
            );
        }
        println!("{mapping}: {moves} moves, {checked} times looked at");
        assert!(checked > 0 || mapping == Mapping::Cuckoo, "{mapping}: nothing moved");
    }
}

//! Files that lose their last name: the last of remover and holders frees them, and `info` and fsck count those in
//! between.

use std::sync::{Arc, Barrier};

use crate::common::bound::{again, options as recorded_options, pool, read, reopened};
use crate::common::{check, empty_pool, image_of, make, options, pattern};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_pm::{Access, Choice, Recorder, Region};
use ferrite_vfs::{FileSystem, FsError, Ino, NO_NAME, NewFile, OpenMode, ROOT_INO, RenameMode, SYSTEM};

const POOL_BYTES: u64 = 16 << 20;

fn small() -> MkfsOptions {
    options().inodes(255)
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

/// On a disk a record takes as long as a sync: long enough to close the file meanwhile.
fn pool_on_disk() -> (tempfile::TempPath, Engine) {
    let dir = std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
    let path = tempfile::NamedTempFile::new_in(dir).unwrap().into_temp_path();
    let region = Region::create(&path, POOL_BYTES).unwrap();
    mkfs(&region, &small()).unwrap();
    (path, Engine::mount(region, &quiet()).unwrap())
}

fn pool_in_memory() -> Engine {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    mkfs(&region, &small()).unwrap();
    Engine::mount(region, &quiet()).unwrap()
}

/// Files without a name: as `info` finds them, and as the engine counts them, which has to be the same.
fn orphans(engine: &Engine) -> u64 {
    let found = engine.info().orphans;
    assert_eq!(engine.unnamed_files(), Some(found));
    found
}

/// Has `remove` remove the last name of a file while another thread closes it, this many times, with one of the two
/// slightly delayed. Nothing of the files may be left.
fn closed_while_it_loses_its_name(engine: &Engine, rounds: usize, remove: impl Fn(&Engine, Ino) + Sync) {
    let barrier = &Barrier::new(2);
    let before = engine.statfs(SYSTEM).unwrap();
    for round in 0..rounds {
        let ino = make(engine, ROOT_INO, "file");
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, &[1; 9000]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                (0..round % 64 * 200).for_each(|_| std::hint::spin_loop());
                drop(file);
            });
            barrier.wait();
            remove(engine, ino);
        });
        assert_eq!(orphans(engine), 0, "round {round}");
        let after = engine.statfs(SYSTEM).unwrap();
        assert_eq!(
            (after.inodes_free, after.blocks_free),
            (before.inodes_free, before.blocks_free),
            "round {round}"
        );
    }
}

fn unlink(engine: &Engine, _ino: Ino) {
    engine.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
}

/// A regression: 33 to 47 of 100 such files stayed until the next mount, because the remover saw a holder and the
/// holder a name.
#[test]
fn a_file_closed_while_it_is_unlinked_is_freed() {
    let (_path, engine) = pool_on_disk();
    closed_while_it_loses_its_name(&engine, 60, unlink);
    closed_while_it_loses_its_name(&pool_in_memory(), 2000, unlink);
}

#[test]
fn a_file_closed_while_it_is_replaced_is_freed() {
    let (_path, engine) = pool_on_disk();
    let replace = |engine: &Engine, _ino: Ino| {
        make(engine, ROOT_INO, "other");
        engine
            .rename(SYSTEM, ROOT_INO, b"other", ROOT_INO, b"file", RenameMode::Replace)
            .unwrap();
        engine.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
    };
    closed_while_it_loses_its_name(&engine, 60, replace);
}

#[test]
fn who_is_open_and_has_no_name_is_counted_until_it_is_closed() {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    mkfs(&region, &small()).unwrap();
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    std::fs::write(&path, image_of(&region)).unwrap();
    let engine = Engine::mount(Region::open(&path, Access::ReadWrite).unwrap(), &quiet()).unwrap();
    let ino = make(&engine, ROOT_INO, "file");
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    assert_eq!(orphans(&engine), 0);
    engine.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
    assert_eq!(orphans(&engine), 1);
    // A copy of the mounted pool.
    let copy = std::fs::read(&path).unwrap();
    let report = fsck(Region::from_image(&copy).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.orphans, 1);
    drop(file);
    assert_eq!(orphans(&engine), 0);
    engine.unmount().unwrap();
}

/// A restarted server gives its clients time to reclaim the files that they had open; then the rest are freed.
#[test]
fn files_without_names_stay_over_a_restart_until_they_are_dropped() {
    let empty = empty_pool(POOL_BYTES, &small());
    let recorder = Recorder::new(empty.clone());
    let mut region = Region::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let keeping = quiet().keep_orphans(true);
    let engine = Engine::mount(region, &keeping).unwrap();
    let before = engine.statfs(SYSTEM).unwrap().inodes_free;
    let files = ["wanted", "forgotten"].map(|name| {
        let ino = make(&engine, ROOT_INO, name);
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, name.as_bytes()).unwrap();
        engine.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
        let generation = file.getattr(SYSTEM).unwrap().generation;
        (ino, generation, file)
    });
    let image = recorder.log().final_image();
    let mount = || Engine::mount(Region::from_image(&image).unwrap(), &keeping).unwrap();
    // Two crashes before any client came back.
    drop(mount());
    let again = mount();
    assert_eq!(orphans(&again), 2);
    let (ino, generation, _) = &files[0];
    again.pin(SYSTEM, *ino, *generation).unwrap();
    let file = again.open(SYSTEM, *ino, OpenMode::read_only()).unwrap();
    again.drop_orphans(SYSTEM).unwrap();
    assert_eq!(orphans(&again), 1);
    assert_eq!(again.getattr(SYSTEM, files[1].0), Err(FsError::Stale));
    let mut content = [0; 6];
    assert_eq!(file.read_at(SYSTEM, 0, &mut content), Ok(6));
    assert_eq!(&content, b"wanted");
    drop(file);
    again.unpin(SYSTEM, *ino, 1);
    assert_eq!(
        (orphans(&again), again.statfs(SYSTEM).unwrap().inodes_free),
        (0, before)
    );
    // Without the option, a mount frees them.
    let plain = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
    assert_eq!(orphans(&plain), 0);
}

/// After a crash at any fence, a file that was created without a name has got it with all of its content, or is gone.
#[test]
fn a_file_has_its_first_name_or_is_gone() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&recorded_options(mapping, false));
        engine.mkdir(SYSTEM, ROOT_INO, b"warm", 0o755).unwrap();
        engine.rmdir(SYSTEM, ROOT_INO, b"warm").unwrap();
        engine.unmount().unwrap();
        let (engine, recorder) = reopened(&recorder.log().final_image());
        let free = engine.statfs(SYSTEM).unwrap().inodes_free;
        let content = pattern(20_000, 3);
        let new = NewFile {
            mode: 0o600,
            open: OpenMode::read_write(),
            exclusive: false,
        };
        let create = || engine.create(SYSTEM, ROOT_INO, NO_NAME, &new).unwrap();
        let (named, other) = (create(), create());
        named.file.write_at(SYSTEM, 0, &content).unwrap();
        other.file.write_at(SYSTEM, 0, &content[..9000]).unwrap();
        engine.link(SYSTEM, named.attr.ino, ROOT_INO, b"f").unwrap();
        drop(other);
        let log = recorder.log();
        let mut cursor = log.cursor();
        let mut outcomes = [0; 2];
        loop {
            for choice in [Choice::None, Choice::Random(cursor.point() as u64)] {
                cursor.with_image(choice, |image| {
                    check(image);
                    let (engine, recorder) = reopened(image);
                    assert_eq!(orphans(&engine), 0, "{mapping}: a mount frees them");
                    let found = engine.lookup(SYSTEM, ROOT_INO, b"f");
                    outcomes[usize::from(found.is_ok())] += 1;
                    match &found {
                        Ok(attr) => {
                            assert_eq!(attr.nlink, 1);
                            assert_eq!(read(&engine, attr.ino), content, "{mapping}");
                        }
                        Err(error) => assert_eq!(*error, FsError::NotFound),
                    }
                    let inodes_free = engine.statfs(SYSTEM).unwrap().inodes_free;
                    assert_eq!(inodes_free, free - u64::from(found.is_ok()), "{mapping}");
                    again(engine, &recorder);
                });
            }
            if !cursor.advance() {
                break;
            }
        }
        assert!(outcomes.iter().all(|&count| count > 0), "{mapping}: {outcomes:?}");
    }
}

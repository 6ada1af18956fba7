//! Media that fail under a mounted pool: an error instead of wrong data or a dead process, no change after it, nothing
//! lost that returned before it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common;
use crate::common::{capture, check, empty_pool, fixed, make, mount, pattern};
use ferrite_fs::{AtimePolicy, Engine, EngineError, MountOptions, fsck, mkfs, repair};
use ferrite_map::Inum;
use ferrite_pm::{Access, Choice, Recorder, Region};
use ferrite_vfs::{FileSystem, FsError, OpenMode, ROOT_INO, RenameMode, SYSTEM};

/// Only the operations of the test store anything.
fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).atime(AtimePolicy::Never)
}

/// Some of everything, until something fails; returns how many operations returned.
fn work(engine: &Engine, mut returned: impl FnMut(&Engine)) -> Result<(), FsError> {
    for turn in 0..3u8 {
        let dir = engine
            .mkdir(SYSTEM, ROOT_INO, format!("dir{turn}").as_bytes(), 0o755)?
            .ino;
        returned(engine);
        let node = ferrite_vfs::NewNode {
            kind: ferrite_vfs::FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        let ino = engine.mknod(SYSTEM, dir, b"file", &node)?.ino;
        returned(engine);
        let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
        for (offset, len) in [(0, 50), (0, 9000), (100, 10), (4096, 4096), (8000, 30_000)] {
            file.write_at(SYSTEM, offset, &pattern(len, turn))?;
            returned(engine);
        }
        drop(file);
        engine.rename(
            SYSTEM,
            dir,
            b"file",
            ROOT_INO,
            format!("moved{turn}").as_bytes(),
            RenameMode::Replace,
        )?;
        returned(engine);
        engine.rmdir(SYSTEM, ROOT_INO, format!("dir{turn}").as_bytes())?;
        returned(engine);
    }
    Ok(())
}

/// Each fence fails once: as a sync that reports an error does.
#[test]
fn after_a_failed_fence_nothing_changes_and_nothing_is_lost() {
    let options = fixed().inodes(127).rings(2);
    let empty = empty_pool(4 << 20, &options);
    let mut failed = 0;
    for fences in 0.. {
        let recorder = Recorder::new(empty.clone());
        let mut region = Region::from_image(&empty).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        let engine = Engine::mount(region, &quiet()).unwrap();
        recorder.fail_fences_after(fences);
        let mut states = vec![capture(&engine)];
        let Err(error) = work(&engine, |engine| states.push(capture(engine))) else {
            break;
        };
        failed += 1;
        assert!(matches!(error, FsError::Io(_)), "fence {fences}: {error}");
        let told = engine.failed().expect("the engine says that it stopped");
        assert!(told.contains("a fence failed"), "{told}");
        let before = capture(&engine);
        let refused = engine.mkdir(SYSTEM, ROOT_INO, b"later", 0o755);
        assert!(matches!(refused, Err(FsError::ReadOnly)), "fence {fences}: {refused:?}");
        assert!(engine.sync(SYSTEM).is_err(), "fence {fences}: a sync must not lie");
        assert!(
            capture(&engine) == before,
            "fence {fences}: reads go on, and nothing changes"
        );
        assert!(
            engine.unmount().is_err(),
            "fence {fences}: an unmount must not call the pool clean"
        );
        let log = recorder.log();
        let mut cursor = log.cursor();
        while cursor.advance() {}
        // The operation that failed may be there or not.
        let whole = {
            let engine = Engine::mount(Region::from_image(&empty).unwrap(), &quiet()).unwrap();
            let mut all = Vec::new();
            work(&engine, |engine| all.push(capture(engine))).unwrap();
            all
        };
        for choice in [
            Choice::None,
            Choice::All,
            Choice::Random(fences),
            Choice::Random(fences + 1000),
        ] {
            cursor.with_image(choice, |image| {
                check(image);
                let found = capture(&mount(image));
                let last = states.last().unwrap();
                let next = whole.get(states.len() - 1);
                assert!(found == *last || Some(&found) == next, "fence {fences}, {choice:?}");
            });
        }
    }
    assert!(failed > 20, "only {failed} fences were tried");
}

/// A pool file that is cut short, or whose disk vanished: the mapping faults.
#[test]
fn a_pool_cut_short_while_mounted_gives_errors_and_no_wrong_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let region = Region::create(&path, 16 << 20).unwrap();
    mkfs(&region, &common::options()).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    let ino = make(&engine, ROOT_INO, "file");
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    let data = pattern(4 << 20, 3);
    for (index, chunk) in data.chunks(1 << 20).enumerate() {
        file.write_at(SYSTEM, (index << 20) as u64, chunk).unwrap();
    }
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(2 << 20)
        .unwrap();
    let mut buffer = vec![0; 4096];
    let mut errors = 0;
    for page in 0..1024u64 {
        match file.read_at(SYSTEM, page * 4096, &mut buffer) {
            Ok(len) => assert!(
                buffer[..len] == data[page as usize * 4096..][..len],
                "wrong data in page {page}"
            ),
            Err(FsError::Damaged(_) | FsError::Io(_)) => errors += 1,
            Err(other) => panic!("page {page}: {other}"),
        }
    }
    assert!(errors > 0, "the lost part cannot be read");
    let told = engine.failed().expect("the engine says that it stopped");
    assert!(told.contains("part of the mapping is gone"), "{told}");
    assert_eq!(engine.info().failed, Some(told));
    assert!(engine.is_read_only());
    assert!(matches!(file.write_at(SYSTEM, 0, b"x"), Err(FsError::ReadOnly)));
    assert!(engine.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).is_err());
    drop((file, engine));
    // The other pools of the process live.
    let other = Region::anonymous(16 << 20).unwrap();
    mkfs(&other, &common::options()).unwrap();
    make(&Engine::mount(other, &quiet()).unwrap(), ROOT_INO, "works");
}

/// Unreadable parts of a pool look like zeros, but do not count as damage: neither check nor repair nor mount
/// completes, and nothing is stored.
#[test]
fn what_cannot_be_read_is_not_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let region = Region::create(&path, 16 << 20).unwrap();
    mkfs(&region, &common::options()).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    for name in ["one", "two", "three"] {
        let ino = make(&engine, ROOT_INO, name);
        common::write(&engine, ino, 0, &pattern(3 << 20, 1));
    }
    engine.unmount().unwrap();
    drop(engine);
    let whole = fs::read(&path).unwrap();
    let superblock = ferrite_fs::identify(&Region::from_image(&whole).unwrap()).unwrap();
    // Nothing, the control block, a journal ring, tables, most data, the second superblock.
    for len in [
        0,
        4096,
        superblock.journal_offset + 4096,
        superblock.inode_offset,
        superblock.name_offset,
        superblock.map_offset,
        superblock.first_block * 4096,
        (16 << 20) - 4096,
    ] {
        let open = |access| {
            fs::write(&path, &whole).unwrap();
            let region = Region::open(&path, access).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(len).unwrap();
            region
        };
        let failed = |what: &str, error: Option<EngineError>| {
            let error = error.unwrap_or_else(|| panic!("cut to {len}: {what} takes zeros for the pool"));
            assert!(matches!(error, EngineError::Medium(_)), "cut to {len}: {what}: {error}");
            let told = error.to_string();
            assert!(told.contains("the medium failed") && !told.contains("fsck"), "{told}");
            assert!(
                fs::read(&path).unwrap() == whole[..len as usize],
                "{what} changed the pool"
            );
        };
        let private = || open(Access::ReadOnlyPrivate);
        failed("fsck", fsck(private(), &mut |_, _, _| {}).err());
        failed("repair", repair(private(), &mut |_, _, _| {}).err());
        // A mount whose first superblock is sound does not read the last block.
        if len < (16 << 20) - 4096 && len != superblock.first_block * 4096 {
            failed("a mount", Engine::mount(private(), &quiet()).err());
        }
    }
    // A repair that was computed while everything could be read.
    let mut hit = whole.clone();
    hit[superblock.inode_offset(Inum::new(1)) as usize + 100] ^= 1;
    let (report, rewrite) = repair(Region::from_image(&hit).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(!report.mended.is_empty());
    fs::write(&path, &hit).unwrap();
    let region = Region::open(&path, Access::ReadWrite).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    let error = rewrite.apply(&region).unwrap_err();
    assert!(matches!(error, EngineError::Medium(_)), "{error}");
    assert!(fs::read(&path).unwrap() == hit[..4096]);
}

/// A pool copied sparsely to a disk that is too small for it: a store finds no block.
#[test]
fn a_sparse_pool_on_a_full_disk_gives_errors_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
        .arg(&small)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: mounting a small tmpfs takes root");
        return;
    }
    let result = std::panic::catch_unwind(|| on_a_full_disk(&small));
    let _ = Command::new("umount").arg("-l").arg(&small).status();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

fn on_a_full_disk(small: &Path) {
    let image = empty_pool(32 << 20, &fixed());
    let path = small.join("pool");
    fs::File::create(&path).unwrap().set_len(image.len() as u64).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for (index, page) in image.chunks(4096).enumerate() {
        if page.iter().any(|&byte| byte != 0) {
            std::os::unix::fs::FileExt::write_all_at(&file, page, index as u64 * 4096).unwrap();
        }
    }
    drop(file);
    let mut returned = Vec::new();
    {
        let engine = Engine::mount(Region::open(&path, Access::ReadWrite).unwrap(), &quiet()).unwrap();
        let error = (0..2000u32).find_map(|n| {
            let made = engine.mknod(
                SYSTEM,
                ROOT_INO,
                format!("file{n}").as_bytes(),
                &ferrite_vfs::NewNode {
                    kind: ferrite_vfs::FileKind::File,
                    mode: 0o644,
                    rdev: 0,
                },
            );
            let written = made.and_then(|attr| {
                let data = pattern(20_000, n as u8);
                engine
                    .open(SYSTEM, attr.ino, OpenMode::read_write())?
                    .write_at(SYSTEM, 0, &data)
            });
            match written {
                Ok(_) => {
                    returned.push(n);
                    None
                }
                Err(error) => Some(error),
            }
        });
        let error = error.expect("the disk is full before the pool is");
        assert!(matches!(error, FsError::Io(_)), "{error}");
        assert!(engine.mkdir(SYSTEM, ROOT_INO, b"later", 0o755).is_err());
    }
    assert!(returned.len() > 20, "only {} files", returned.len());
    // With space again, everything that returned is there.
    let copy = fs::read(&path).unwrap();
    check(&copy);
    let engine = mount(&copy);
    for n in returned {
        let ino = engine
            .lookup(SYSTEM, ROOT_INO, format!("file{n}").as_bytes())
            .unwrap()
            .ino;
        let mut found = vec![0; 20_000];
        engine
            .open(SYSTEM, ino, OpenMode::read_only())
            .unwrap()
            .read_at(SYSTEM, 0, &mut found)
            .unwrap();
        assert!(found == pattern(20_000, n as u8), "file{n}");
    }
}

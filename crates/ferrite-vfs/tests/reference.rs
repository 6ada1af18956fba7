//! Features of the reference engine alone: its clock, its snapshots, and its bounds. The suites of `ferrite-testkit`,
//! which run on it too, cover the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ferrite_vfs::memfs::{MAX_FILE_BYTES, MemFs};
use ferrite_vfs::{
    Attr, FallocateMode, FileKind, FileSystem, FsError, NewNode, OpenMode, ROOT_INO, SYSTEM, SetAttr, Timestamp,
};

fn file(fs: &MemFs, name: &[u8]) -> Attr {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    fs.mknod(SYSTEM, ROOT_INO, name, &node).unwrap()
}

#[test]
fn times_come_from_the_clock_and_never_go_back() {
    const DAY: i64 = 86_400_000_000_000;
    let clock = Arc::new(AtomicI64::new(100));
    let source = Arc::clone(&clock);
    let fs = MemFs::with_clock(move || Timestamp(source.load(Ordering::SeqCst)));
    let ino = file(&fs, b"f").ino;
    let times = || {
        let attr = fs.getattr(SYSTEM, ino).unwrap();
        [attr.atime.0, attr.mtime.0, attr.ctime.0, attr.btime.0]
    };
    assert_eq!(times(), [100; 4]);
    let handle = fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    clock.store(200, Ordering::SeqCst);
    handle.write_at(SYSTEM, 0, b"").unwrap();
    assert_eq!(times(), [100; 4], "nothing written, nothing changed");
    handle.write_at(SYSTEM, 0, b"x").unwrap();
    assert_eq!(times(), [100, 200, 200, 100]);
    let read = || handle.read_at(SYSTEM, 0, &mut [0; 1]).unwrap();
    clock.store(300, Ordering::SeqCst);
    read();
    assert_eq!(times(), [300, 200, 200, 100], "first read after a change");
    clock.store(400, Ordering::SeqCst);
    read();
    assert_eq!(times()[0], 300, "relatime");
    clock.store(300 + DAY, Ordering::SeqCst);
    read();
    assert_eq!(times()[0], 300 + DAY, "a day later");
    clock.store(50, Ordering::SeqCst);
    fs.setattr(
        SYSTEM,
        ino,
        &SetAttr {
            size: Some(1),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert_eq!(
        times()[1..3],
        [300 + DAY; 2],
        "a size that was that already moves the times"
    );
}

#[test]
fn a_snapshot_goes_its_own_way() {
    let fs = MemFs::new();
    let ino = file(&fs, b"f").ino;
    let handle = fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    handle.write_at(SYSTEM, 0, b"before").unwrap();
    let copy = fs.snapshot();
    handle.write_at(SYSTEM, 0, b"behind").unwrap();
    fs.unlink(SYSTEM, ROOT_INO, b"f").unwrap();
    copy.mkdir(SYSTEM, ROOT_INO, b"d", 0o755).unwrap();
    let mut content = [0; 6];
    copy.open(SYSTEM, ino, OpenMode::read_only())
        .unwrap()
        .read_at(SYSTEM, 0, &mut content)
        .unwrap();
    assert_eq!(&content, b"before");
    assert_eq!(fs.lookup(SYSTEM, ROOT_INO, b"d"), Err(FsError::NotFound));
    assert!(copy.lookup(SYSTEM, ROOT_INO, b"f").is_ok());
}

/// Reserving costs memory here, so a caller must not be able to reserve more than any machine has; a hole of any size
/// is free.
#[test]
fn reservations_are_bounded_and_holes_are_not() {
    let fs = MemFs::new();
    let handle = fs.open(SYSTEM, file(&fs, b"f").ino, OpenMode::read_write()).unwrap();
    for mode in [
        FallocateMode::Allocate { keep_size: true },
        FallocateMode::ZeroRange { keep_size: false },
    ] {
        assert_eq!(
            handle.fallocate(SYSTEM, mode, 0, MAX_FILE_BYTES),
            Err(FsError::NoSpace(ferrite_vfs::SpaceOf::Blocks))
        );
    }
    assert_eq!(handle.getattr(SYSTEM).unwrap().size, 0, "what fails changes nothing");
    assert_eq!(
        handle.write_at(SYSTEM, MAX_FILE_BYTES - 1, b"xy"),
        Err(FsError::FileTooBig)
    );
    assert_eq!(handle.write_at(SYSTEM, MAX_FILE_BYTES - 1, b"x"), Ok(1));
    assert_eq!(handle.seek_data(SYSTEM, 0), Ok((MAX_FILE_BYTES - 1) / 4096 * 4096));
    assert_eq!(
        handle.fallocate(SYSTEM, FallocateMode::PunchHole, 0, MAX_FILE_BYTES),
        Ok(())
    );
    assert_eq!(handle.seek_data(SYSTEM, 0), Err(FsError::NoSuchAddress));
    assert_eq!(handle.getattr(SYSTEM).unwrap().blocks, 0);
    assert_eq!(
        fs.statfs(SYSTEM).unwrap().blocks_free,
        fs.statfs(SYSTEM).unwrap().blocks
    );
}

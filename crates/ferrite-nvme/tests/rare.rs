//! Rare coincidences and long runs in a whole pool: changes in the moment of another, stores that stay full or fail
//! while a program retries, times of tomorrow, many devices.

use std::sync::Arc;
use std::time::Duration;

use crate::faults::pool::{Pool, chmod, content, ino_of, open, put, read, rename, sound, unlink};
use ferrite_vfs::{
    FallocateMode, FileSystem, NewFile, OpenFile, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, SetTime, Timestamp,
};

const MIB: u64 = 1 << 20;

fn create(fs: &dyn FileSystem, name: &str) -> Arc<dyn OpenFile> {
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    fs.create(SYSTEM, ROOT_INO, name.as_bytes(), &new).unwrap().file
}

/// A program keeps trying to write what the full metadata store refuses. The data stores lose no space by that.
#[test]
fn a_full_store_of_metadata_costs_no_space_for_data() {
    let pool = Pool::with(2, 24, true, true);
    let fs = pool.open().unwrap();
    put(&fs, "small", 0, b"small").unwrap();
    let free = fs.statfs(SYSTEM).unwrap().blocks_free;
    pool.meta.fill();
    let data = content(1, 40 << 10);
    for _ in 0..400 {
        put(&fs, "small", 0, &data).unwrap_err();
    }
    pool.meta.mend();
    assert_eq!(fs.statfs(SYSTEM).unwrap().blocks_free, free);
    put(&fs, "small", 0, &data).unwrap();
    assert!(read(&fs, "small").unwrap() == data);
    sound(&fs, "after all");
    fs.close().unwrap();
}

/// A name is visible before the call that makes it returns, and another call removes it in that moment.
#[test]
fn a_file_that_is_removed_while_it_is_made_does_not_come_back() {
    let pool = Pool::new(1, 24, false);
    let fs = pool.open().unwrap();
    // Inode numbers come in lots, and a new lot is a commit of its own.
    put(&fs, "first", 0, b"x").unwrap();
    let (other, (ended, ends)) = (fs.clone(), std::sync::mpsc::channel());
    pool.meta.after_next_commit(move || {
        std::thread::spawn(move || {
            unlink(&other, "a").unwrap();
            ended.send(()).unwrap();
        });
        // It may have to wait for the call that makes the file.
        std::thread::sleep(Duration::from_millis(300));
    });
    let file = create(&fs, "a");
    ends.recv_timeout(Duration::from_secs(30)).unwrap();
    file.write_at(SYSTEM, 0, b"late").unwrap();
    assert_eq!(file.getattr(SYSTEM).unwrap().nlink, 0);
    drop(file);
    sound(&fs, "removed while it was made");
    fs.close().unwrap();
    let fs = pool.open().unwrap();
    sound(&fs, "opened again");
}

/// Space behind the end of a file survives a crash, also if its node was the last to change.
#[test]
fn reserved_space_outlives_a_crash() {
    let pool = Pool::new(1, 40, false);
    let fs = pool.open().unwrap();
    put(&fs, "tmp", 0, &content(2, 100 << 10)).unwrap();
    let file = open(&fs, "tmp", OpenMode::read_write()).unwrap();
    file.fallocate(SYSTEM, FallocateMode::Allocate { keep_size: true }, 0, 16 * MIB)
        .unwrap();
    rename(&fs, "tmp", "final", RenameMode::Replace).unwrap();
    chmod(&fs, "final", 0o600).unwrap();
    let reserved = file.getattr(SYSTEM).unwrap().blocks;
    assert!(reserved >= 16 * MIB / 512);
    // As after a crash: nothing more arrives.
    let fs = pool.open().unwrap();
    let attr = fs.getattr(SYSTEM, ino_of(&fs, "final")).unwrap();
    assert_eq!((attr.size, attr.blocks), (100 << 10, reserved));
    assert!(read(&fs, "final").unwrap() == content(2, 100 << 10));
    sound(&fs, "after the crash");
}

/// A program set a time that is still to come. The next change is now, and stays so.
#[test]
fn a_change_is_now_whatever_time_was_set() {
    let pool = Pool::new(1, 24, false);
    let fs = pool.open().unwrap();
    let root = fs.getattr(SYSTEM, ROOT_INO).unwrap();
    let tomorrow = Timestamp(root.ctime.0 + 86_400 * 1_000_000_000);
    let set = SetAttr {
        mtime: Some(SetTime::To(tomorrow)),
        ..SetAttr::default()
    };
    put(&fs, "f", 0, &content(3, 100 << 10)).unwrap();
    let file = open(&fs, "f", OpenMode::read_write()).unwrap();
    file.write_at(SYSTEM, 0, b"ahead").unwrap();
    fs.setattr(SYSTEM, ROOT_INO, &set).unwrap();
    file.setattr(SYSTEM, &set).unwrap();
    assert_eq!(file.getattr(SYSTEM).unwrap().mtime, tomorrow);
    // The first after a change of attributes takes the file alone, the others share it.
    for _ in 0..3 {
        file.setattr(SYSTEM, &set).unwrap();
        file.write_at(SYSTEM, 10, b"one").unwrap();
        assert!(file.getattr(SYSTEM).unwrap().mtime < tomorrow);
        file.write_at(SYSTEM, 20, b"two").unwrap();
        assert!(file.getattr(SYSTEM).unwrap().mtime < tomorrow);
    }
    put(&fs, "other", 0, b"x").unwrap();
    let changed = fs.getattr(SYSTEM, ROOT_INO).unwrap();
    assert!(changed.mtime < tomorrow, "a new name is a change of the directory");
    drop(file);
    fs.close().unwrap();
    let fs = pool.open().unwrap();
    assert_eq!(fs.getattr(SYSTEM, ROOT_INO).unwrap().mtime, changed.mtime);
}

/// A file that is extended gets its space in one store, if one has so much; otherwise it is sparse.
#[test]
fn a_file_longer_than_a_device_can_be_made_on_many_devices() {
    let pool = Pool::new(12, 24, false);
    let fs = pool.open().unwrap();
    put(&fs, "f", 0, b"small").unwrap();
    let set = SetAttr {
        size: Some(25 * MIB),
        ..SetAttr::default()
    };
    fs.setattr(SYSTEM, ino_of(&fs, "f"), &set).unwrap();
    put(&fs, "f", 25 * MIB - 4, b"last").unwrap();
    assert_eq!(fs.getattr(SYSTEM, ino_of(&fs, "f")).unwrap().size, 25 * MIB);
    sound(&fs, "a sparse file");
}

//! A pool's use of resources does not grow by mounts, unmounts, kills or idling: its file, free blocks and inodes,
//! descriptors, threads and memory of the process.

use std::path::Path;
use std::time::Duration;

use crate::common::{check, options};
use ferrite_fs::{Engine, MountOptions, mkfs};
use ferrite_pm::{Access, Region};
use ferrite_testkit::growth::{Taken, files_in};
use ferrite_vfs::{FileKind, FileSystem, NewNode, OpenMode, ROOT_INO, SYSTEM};

const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

/// The work of a short program in each session: a small file rewritten, a longer one with a log, one that is created
/// and removed.
fn work(engine: &Engine, cycle: u64) {
    for (name, len) in [("small", 100), ("long", 50_000), ("gone", 20_000)] {
        let found = engine.lookup(SYSTEM, ROOT_INO, name.as_bytes());
        let attr = found.or_else(|_| engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &FILE));
        let file = engine.open(SYSTEM, attr.unwrap().ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, &vec![cycle as u8; len]).unwrap();
        file.write_at(SYSTEM, 7, &[cycle as u8; 30]).unwrap();
    }
    engine.unlink(SYSTEM, ROOT_INO, b"gone").unwrap();
}

fn mount(path: &Path) -> Engine {
    Engine::mount(Region::open(path, Access::ReadWrite).unwrap(), &MountOptions::default()).unwrap()
}

fn mounted_and_unmounted(dir: &Path, cycles: u64) {
    let path = dir.join("pool");
    let region = Region::create(&path, 8 << 20).unwrap();
    mkfs(&region, &options().inodes(255).rings(2)).unwrap();
    drop(region);
    let (mut before, mut process) = (None, Taken::now());
    for cycle in 0..cycles {
        let engine = mount(&path);
        let space = engine.statfs(SYSTEM).unwrap();
        work(&engine, cycle);
        // Dropping it without an unmount leaves the state of a killed process.
        if cycle % 3 != 0 {
            engine.unmount().unwrap();
        }
        drop(engine);
        if cycle == 30 {
            (before, process) = (Some((space.blocks_free, space.inodes_free)), Taken::now());
        }
        if let Some((blocks, inodes)) = before {
            // A page's log is longer or shorter, depending on merges.
            let is_as_before = space.blocks_free + 8 >= blocks && space.inodes_free >= inodes;
            assert!(
                is_as_before,
                "cycle {cycle}: {space:?}, and before {blocks} blocks, {inodes} inodes"
            );
        }
        assert_eq!(files_in(dir), (1, 8 << 20), "cycle {cycle}");
    }
    Taken::now().is_no_more_than(process, &dir.display().to_string());
    check(&std::fs::read(&path).unwrap());
}

#[test]
fn a_pool_in_memory_that_is_mounted_for_ever_takes_no_more() {
    mounted_and_unmounted(tempfile::tempdir_in("/dev/shm").unwrap().path(), 500);
}

#[test]
fn a_pool_on_a_disk_that_is_mounted_for_ever_takes_no_more() {
    mounted_and_unmounted(tempfile::tempdir().unwrap().path(), 100);
}

/// An idle pool merges its logs, and then stores nothing.
#[test]
fn a_pool_that_idles_stores_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let region = Region::create(&path, 8 << 20).unwrap();
    mkfs(&region, &options().inodes(255).rings(2)).unwrap();
    drop(region);
    let engine = mount(&path);
    work(&engine, 1);
    std::thread::sleep(Duration::from_millis(1500));
    let image = std::fs::read(&path).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(std::fs::read(&path).unwrap() == image, "the pool has changed");
    engine.unmount().unwrap();
}

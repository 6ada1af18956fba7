//! What `durability=process` promises on an ordinary file: operations pay for no sync, and what tells of a power loss
//! is safe from one.

mod common;

use std::path::Path;

use common::{make, write};
use ferrite_fs::{Engine, MountOptions, mkfs};
use ferrite_pm::{Access, Medium, Region};
use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

fn mount(pool: &Path) -> Engine {
    let options = MountOptions::default().process_durability(true);
    Engine::mount(Region::open(pool, Access::ReadWrite).unwrap(), &options).unwrap()
}

/// The mount syncs the word that says which boot the pool is in use in, before anything a power loss may take; a mount
/// behind a kill syncs what that left to the kernel before it changes that word; an unmount syncs all before it calls
/// the pool clean, and that as well.
#[test]
fn syncs_come_with_mount_and_unmount_and_no_operation_pays_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let region = Region::create(&pool, 64 << 20).unwrap();
    if region.medium() != Medium::File {
        println!("SKIPPED: {} is not on a disk", pool.display());
        return;
    }
    mkfs(&region, &common::options()).unwrap();
    drop(region);
    let engine = mount(&pool);
    let syncs = |engine: &Engine| engine.counters().file_syncs;
    let mounted = syncs(&engine);
    assert!(mounted >= 1, "a mount that did not sync the boot's word");
    for n in 0..100 {
        let ino = make(&engine, ROOT_INO, &format!("file{n}"));
        write(&engine, ino, 0, &[7; 5000]);
    }
    assert_eq!(syncs(&engine), mounted, "an operation paid for a sync");
    // As after a kill: the pool stays in use.
    drop(engine);
    let engine = mount(&pool);
    assert!(syncs(&engine) > mounted, "what the killed one left was not synced");
    let before = syncs(&engine);
    engine.unmount().unwrap();
    assert!(syncs(&engine) >= before + 2, "all there is, and then the clean mark");
    drop(engine);
    let engine = mount(&pool);
    assert_eq!(engine.lookup(SYSTEM, ROOT_INO, b"file99").unwrap().size, 5000);
    engine.unmount().unwrap();
}

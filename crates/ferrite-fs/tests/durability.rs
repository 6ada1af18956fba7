//! The guarantees of `durability=process` and `durability=fsync` on an ordinary file: operations pay for no sync; the
//! word that reveals a power loss survives one; and callers of fsync get durability, with one sync for all that wait.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{make, write};
use ferrite_fs::{Durability, Engine, MountOptions, mkfs};
use ferrite_pm::{Access, Medium, Region};
use ferrite_vfs::{FileSystem, OpenMode, ROOT_INO, SYSTEM};

fn mount(pool: &Path) -> Engine {
    let options = MountOptions::default().process_durability(true);
    Engine::mount(Region::open(pool, Access::ReadWrite).unwrap(), &options).unwrap()
}

/// The mount syncs the word that names the boot that uses the pool, before anything a power loss may take; a mount
/// after a kill syncs the pages left to the kernel before it changes that word; an unmount syncs all before it marks
/// the pool clean, and then the mark as well.
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

fn on_sync(pool: &Path) -> Option<Engine> {
    let region = Region::create(pool, 64 << 20).unwrap();
    if region.medium() != Medium::File {
        println!("SKIPPED: {} is not on a disk", pool.display());
        return None;
    }
    mkfs(&region, &common::options()).unwrap();
    drop(region);
    let options = MountOptions::default().durability(Durability::OnSync);
    Some(Engine::mount(Region::open(pool, Access::ReadWrite).unwrap(), &options).unwrap())
}

/// No operation pays for a sync, and each request makes one; with nothing to make durable it makes none.
#[test]
fn a_sync_is_paid_by_who_asks_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = on_sync(&dir.path().join("pool")) else {
        return;
    };
    let syncs = || engine.counters().file_syncs;
    let ino = make(&engine, ROOT_INO, "file");
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    let before = syncs();
    for n in 0..200 {
        write(&engine, ino, n * 700, &[n as u8; 5000]);
        file.fsync(SYSTEM).unwrap();
        file.fsync(SYSTEM).unwrap();
    }
    let paid = syncs() - before;
    // The thread in the background may add some, more on a busy machine: three for each time that it finds the ring
    // half full, and one in two seconds. If writes or the second of two requests paid, there would be 400.
    assert!((200..=300).contains(&paid), "{paid} syncs for 200 that were needed");
    let started = Instant::now();
    let before = syncs();
    write(&engine, ino, 0, b"nobody asks for this one");
    while syncs() == before {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "it was not made durable in time"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A kill loses no operation that returned: the file has all of them, whichever mode the next mount uses.
#[test]
fn a_kill_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let Some(engine) = on_sync(&pool) else { return };
    let ino = make(&engine, ROOT_INO, "file");
    for n in 0..3_000u64 {
        write(&engine, ino, n * 997 % 100_000, &n.to_le_bytes());
        if n.is_multiple_of(100) {
            make(&engine, ROOT_INO, &format!("more{n}"));
        }
    }
    let expected = common::capture(&engine);
    let copy = dir.path().join("copy");
    std::fs::copy(&pool, &copy).unwrap();
    for durability in [
        Durability::Strict,
        Durability::OnSync,
        Durability::Process,
        Durability::Strict,
    ] {
        let options = MountOptions::default().durability(durability);
        let next = Engine::mount(Region::open(&copy, Access::ReadWrite).unwrap(), &options).unwrap();
        assert!(next.damage().is_empty(), "{:?}", next.damage());
        assert!(common::capture(&next) == expected, "{durability:?}");
        write(&next, ino, 0, b"changed");
        write(&next, ino, 0, &expected["/file"].content[..7]);
        // As after a kill, each time.
        drop(next);
    }
    let report = ferrite_fs::fsck(Region::open(&copy, Access::ReadOnlyPrivate).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// A frozen pool's file is a cleanly unmounted pool, though the write-back of much of it was deferred before.
#[test]
fn a_frozen_pool_can_be_copied() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let Some(engine) = on_sync(&pool) else { return };
    let ino = make(&engine, ROOT_INO, "file");
    for round in 0..3u8 {
        for n in 0..500u64 {
            write(&engine, ino, n * 1_013 % 90_000, &[round; 300]);
        }
        engine.freeze().unwrap();
        let copy = dir.path().join(format!("copy{round}"));
        std::fs::copy(&pool, &copy).unwrap();
        let expected = common::capture(&engine);
        engine.thaw().unwrap();
        let region = Region::open(&copy, Access::ReadOnlyPrivate).unwrap();
        assert!(ferrite_fs::is_clean(&region));
        let engine = Engine::mount(region, &MountOptions::default().read_only(true)).unwrap();
        assert_eq!(engine.info().replayed_records, 0);
        assert!(common::capture(&engine) == expected, "round {round}");
    }
    engine.unmount().unwrap();
    drop(engine);
    assert!(ferrite_fs::is_clean(
        &Region::open(&pool, Access::ReadOnlyPrivate).unwrap()
    ));
}

/// Tables that are changed all over take no more memory than the bound, and nothing is lost by releasing it.
#[test]
fn deferred_pages_are_given_back() {
    const FILES: u32 = 48_000;
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let region = Region::create(&pool, 512 << 20).unwrap();
    if region.medium() != Medium::File {
        println!("SKIPPED: {} is not on a disk", pool.display());
        return;
    }
    mkfs(&region, &common::options().inodes(150_000).names(300_000)).unwrap();
    drop(region);
    let options = MountOptions::default().durability(Durability::OnSync);
    let mount = || Engine::mount(Region::open(&pool, Access::ReadWrite).unwrap(), &options).unwrap();
    let engine = mount();
    let mut most = 0;
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let engine = &engine;
            scope.spawn(move || {
                let dir = engine.mkdir(SYSTEM, ROOT_INO, &[b'a' + thread], 0o755).unwrap().ino;
                for n in 0..FILES {
                    let ino = make(engine, dir, &n.to_string());
                    if n.is_multiple_of(16) {
                        write(engine, ino, 0, &n.to_le_bytes().repeat(300));
                        write(engine, ino, 100, &[thread; 30]);
                    }
                }
            });
        }
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(50));
            most = most.max(engine.info().dram.deferred_pages);
        }
    });
    most = most.max(engine.info().dram.deferred_pages);
    println!("at most {} MiB were deferred", most >> 20);
    drop(engine);
    let engine = mount();
    assert!(engine.damage().is_empty(), "{:?}", engine.damage());
    for (thread, dir) in [b"a", b"b"].into_iter().enumerate() {
        let dir = engine.lookup(SYSTEM, ROOT_INO, dir).unwrap().ino;
        for n in (0..FILES).step_by(16) {
            let ino = engine.lookup(SYSTEM, dir, n.to_string().as_bytes()).unwrap().ino;
            let mut expected = n.to_le_bytes().repeat(300);
            expected[100..130].fill(thread as u8);
            let mut found = vec![0; 2000];
            let file = engine.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
            let len = file.read_at(SYSTEM, 0, &mut found).unwrap();
            assert!(found[..len] == expected, "{n}");
        }
    }
    engine.unmount().unwrap();
    // The inodes alone are 24 MiB, and half a ring of records changes some more until the checkpoint moves.
    assert!(most < 22 << 20, "{} MiB", most >> 20);
}

//! Files as memory regions: remote clients write to a bound file in place while programs keep using it.
//!
//! Guarantees: no writer loses a byte, with local and remote changes in any order; the adapter never keeps a place that
//! a page has left; and the file is an ordinary one again in the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common;
use crate::common::bound::{POOL_BYTES, fallocate, options, pool, quiet, read, reopened, soak, truncate};
use crate::common::remote::{Remote, WRITABLE};
use crate::common::{check, image_of, make, mount, pattern, write};
use ferrite_fs::{Engine, Mapping, MountOptions, create, fsck, mkfs};
use ferrite_pm::{Access as Opening, Region as Pool};
use ferrite_vfs::regions::{Access, Adapter, Binding, PageRun, Regions};
use ferrite_vfs::{
    Attr, BadArgument, Cred, Ctx, FallocateMode, FileSystem, FsError, Ino, OpenMode, Position, ROOT_INO, SYSTEM,
    SetAttr, SpaceOf, Unsupported,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Several threads at once, local and remote. Each has bytes of its own, so that its last write must be there; all
/// share the pages.
#[test]
fn threads_keep_what_is_theirs() {
    const THREADS: usize = 4;
    const CELLS: u64 = 300;
    const CELL: u64 = 96;
    let rounds = if soak() { 20 } else { 1 };
    for (n, &mapping) in Mapping::ALL
        .iter()
        .cycle()
        .take(Mapping::ALL.len() * rounds)
        .enumerate()
    {
        let (engine, recorder) = pool(&options(mapping, n % 2 == 0));
        let ino = make(&engine, ROOT_INO, "shared");
        truncate(&engine, ino, CELLS * CELL);
        let remote = Remote::bind(&engine, ino);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|me| {
                    let (engine, remote) = (engine.clone(), remote.clone());
                    scope.spawn(move || {
                        let mut random = StdRng::seed_from_u64((n * THREADS + me) as u64);
                        for step in 0..400 {
                            let cell = random.random_range(0..CELLS / THREADS as u64) * THREADS as u64 + me as u64;
                            let data = [random.random::<u8>(); CELL as usize];
                            match me % 2 {
                                0 => write(&engine, ino, cell * CELL, &data),
                                _ => remote.write(cell * CELL, &data).unwrap(),
                            }
                            let mut found = [0; CELL as usize];
                            let file = engine.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
                            file.read_at(SYSTEM, cell * CELL, &mut found).unwrap();
                            assert_eq!(found, data, "{mapping:?}, thread {me}, step {step}, read here");
                            let found = remote.read(cell * CELL, CELL as usize).unwrap();
                            assert_eq!(found, data, "{mapping:?}, thread {me}, step {step}, read elsewhere");
                        }
                    })
                })
                .collect();
            // After all of that the file grows, shrinks, and is frozen.
            let (engine, remote, stop) = (&engine, &remote, &stop);
            let other = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    remote.region.append(&[&pattern(3000, 1), &pattern(5000, 2)]).unwrap();
                    fallocate(engine, ino, FallocateMode::PunchHole, CELLS * CELL, 1 << 20);
                    truncate(engine, ino, CELLS * CELL);
                    remote.region.attr().unwrap();
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            other.join().unwrap();
        });
        remote.adapter.check(&format!("{mapping:?}"));
        engine.unmount().unwrap();
        check(&recorder.log().final_image());
    }
}

#[test]
fn appends_from_many_threads_are_whole_and_in_some_order() {
    for &mapping in Mapping::ALL {
        let (engine, _) = pool(&options(mapping, true));
        let ino = make(&engine, ROOT_INO, "log");
        write(&engine, ino, 0, b"head....");
        let remote = Remote::bind(&engine, ino);
        std::thread::scope(|scope| {
            for me in 0..4u8 {
                let remote = remote.clone();
                scope.spawn(move || {
                    for n in 0..50u8 {
                        let entry = [me, n, !n, me, n, n, n, n];
                        let at = remote.region.append(&[&entry[..3], &entry[3..]]).unwrap();
                        assert_eq!(remote.read(at, 8).unwrap(), entry);
                    }
                });
            }
        });
        let content = read(&engine, ino);
        assert_eq!(content.len(), 8 + 4 * 50 * 8);
        let mut next = [0; 4];
        for entry in content[8..].chunks(8) {
            let (me, n) = (entry[0], next[entry[0] as usize]);
            assert_eq!(entry, [me, n, !n, me, n, n, n, n]);
            next[me as usize] += 1;
        }
        remote.adapter.check("appends");
    }
}

#[test]
fn an_append_on_a_full_pool_leaves_nothing_and_space_is_found_later() {
    for &mapping in Mapping::ALL {
        let options = options(mapping, true);
        let (engine, recorder) = pool(&options);
        let ino = make(&engine, ROOT_INO, "log");
        let remote = Remote::bind(&engine, ino);
        remote.region.append(&[&pattern(5000, 1)]).unwrap();
        let ballast = make(&engine, ROOT_INO, "ballast");
        let file = engine.open(SYSTEM, ballast, OpenMode::read_write()).unwrap();
        let mut filled = 0;
        while let Ok(count) = file.write_at(SYSTEM, filled, &[1; 4096]) {
            filled += count as u64;
        }
        // Pages reserved ahead are used up first.
        let mut content = pattern(5000, 1);
        let failed = loop {
            match remote.region.append(&[&pattern(3000, 2)]) {
                Ok(at) => assert_eq!(at, content.len() as u64),
                Err(error) => break error,
            }
            content.extend(pattern(3000, 2));
        };
        assert!(
            matches!(failed, FsError::NoSpace(SpaceOf::Blocks | SpaceOf::MapEntries)),
            "{failed}"
        );
        assert_eq!(remote.adapter.size(), content.len() as u64);
        assert!(read(&engine, ino) == content, "{mapping:?}");
        // Space for the size alone is not needed.
        let at = remote.region.reserve(100).unwrap();
        assert_eq!(at, content.len() as u64);
        content.resize(content.len() + 100, 0);
        assert!(
            remote.read_all() == content,
            "{mapping:?}: what is reserved reads as zeros"
        );
        engine.unlink(SYSTEM, ROOT_INO, b"ballast").unwrap();
        drop(file);
        remote.region.append(&[&pattern(3000, 3)]).unwrap();
        content.extend(pattern(3000, 3));
        assert!(remote.read_all() == content);
        remote.adapter.check("full pool");
        engine.unmount().unwrap();
        let image = recorder.log().final_image();
        check(&image);
        assert!(read(&mount(&image), ino) == content);
    }
}

/// Pages that a program has reserved beyond the end stay reserved, whether an append would have reserved them or not.
#[test]
fn pages_that_a_program_has_reserved_stay_when_the_binding_ends() {
    for &mapping in Mapping::ALL {
        for later in [
            FallocateMode::Allocate { keep_size: true },
            FallocateMode::ZeroRange { keep_size: true },
        ] {
            let (engine, recorder) = pool(&options(mapping, true));
            let keep = FallocateMode::Allocate { keep_size: true };
            let ino = make(&engine, ROOT_INO, "log");
            let blocks = || engine.getattr(SYSTEM, ino).unwrap().blocks;
            write(&engine, ino, 0, &pattern(5000, 1));
            let before = blocks();
            fallocate(&engine, ino, keep, 5 * 4096, 2 * 4096);
            let per_page = (blocks() - before) / 2;
            assert!(per_page > 0);
            let remote = Remote::bind(&engine, ino);
            remote.region.append(&[&pattern(5000, 2)]).unwrap();
            let with_window = blocks();
            assert!(with_window > before + 3 * per_page, "an append reserves ahead");
            // Two of the window's own, which the program wants as well.
            fallocate(&engine, ino, later, 8 * 4096, 2 * 4096);
            assert_eq!(blocks(), with_window, "they have blocks already");
            // And two that it frees and reserves again.
            fallocate(&engine, ino, FallocateMode::PunchHole, 11 * 4096, 2 * 4096);
            fallocate(&engine, ino, keep, 11 * 4096, 4096);
            remote.region.unbind().unwrap();
            // The append ends in the third page.
            assert_eq!(blocks(), before + (1 + 2 + 2 + 1) * per_page, "{mapping:?}, {later:?}");
            for page in [5, 6, 8, 9, 11] {
                write(&engine, ino, page * 4096, &pattern(4096, 3));
            }
            assert_eq!(blocks(), before + 6 * per_page);
            remote.adapter.check("reserved");
            engine.unmount().unwrap();
            check(&recorder.log().final_image());
        }
    }
}

#[test]
fn times_and_permissions_are_told() {
    let (engine, _) = pool(&options(Mapping::default(), false));
    let ino = make(&engine, ROOT_INO, "file");
    write(&engine, ino, 0, &[1; 5000]);
    let remote = Remote::bind(&engine, ino);
    let before = engine.getattr(SYSTEM, ino).unwrap();
    assert_eq!(remote.region.attr().unwrap(), before, "nothing was stored");
    for n in 0..3 {
        let before = engine.getattr(SYSTEM, ino).unwrap();
        remote.write(100, &[n; 10]).unwrap();
        let after = match n {
            0 => engine.getattr(SYSTEM, ino).unwrap(),
            1 => remote.region.attr().unwrap(),
            _ => engine.lookup(SYSTEM, ROOT_INO, b"file").unwrap(),
        };
        assert!(
            after.mtime > before.mtime && after.ctime > before.ctime && after.change > before.change,
            "{n}"
        );
        assert_eq!(engine.getattr(SYSTEM, ino).unwrap(), after, "once");
    }
    assert!(remote.adapter.take_attributes().is_empty());
    let set = SetAttr {
        mode: Some(0o600),
        uid: Some(7),
        ..SetAttr::default()
    };
    let attr = engine.setattr(SYSTEM, ino, &set).unwrap();
    assert_eq!(remote.adapter.take_attributes(), [attr]);
    remote.adapter.check("attributes");
}

#[test]
fn who_may_not_use_a_file_binds_none() {
    let (engine, _) = pool(&options(Mapping::default(), false));
    let ino = make(&engine, ROOT_INO, "file");
    let bind = |ctx: &Ctx, ino: Ino, how: Binding| {
        let adapter = Arc::<common::remote::Checked>::default();
        engine.bind(ctx, ino, how, adapter).map(drop)
    };
    let other = Ctx {
        check: true,
        cred: Cred {
            uid: 7,
            gid: 7,
            ..Cred::root()
        },
        ..SYSTEM.clone()
    };
    assert_eq!(bind(&other, ino, WRITABLE), Err(FsError::AccessDenied));
    assert_eq!(bind(SYSTEM, ROOT_INO, WRITABLE), Err(FsError::IsDirectory));
    let link = engine.symlink(SYSTEM, ROOT_INO, b"link", b"file").unwrap().ino;
    assert_eq!(
        bind(SYSTEM, link, WRITABLE),
        Err(FsError::Invalid(BadArgument::RegionKind))
    );
    let remote = Remote::bind_as(&engine, ino, Binding::default()).unwrap();
    assert_eq!(bind(SYSTEM, ino, WRITABLE), Err(FsError::Busy));
    assert_eq!(engine.finalize(SYSTEM, ino), Err(FsError::Busy));
    assert_eq!(
        remote.region.append(&[b"x"]),
        Err(FsError::BadHandle),
        "it is bound for reading"
    );
    assert_eq!(remote.region.write_atomic(0, b"x"), Err(FsError::BadHandle));
    remote.region.unbind().unwrap();
    remote.region.unbind().unwrap();
    let remote = Remote::bind(&engine, ino);
    assert_eq!(
        remote.region.write_atomic(0, b"x"),
        Err(FsError::Invalid(BadArgument::RegionGrows))
    );
    let bound = engine.bound();
    assert_eq!((bound.len(), bound[0].ino, bound[0].is_attached), (1, ino, true));
    // A buggy adapter harms no other client, and gets an error.
    for (page, within) in [(0, 0), (1, 0), (u32::MAX, 0)] {
        remote.region.store(page, within, b"superblock");
    }
    assert_eq!(remote.region.fence(), Err(FsError::Invalid(BadArgument::RegionPage)));
}

/// A torn sector could hit acknowledged bytes.
#[test]
fn a_pool_in_a_disk_file_is_bound_for_reading_only() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = folder.path().join("pool");
    create(&path, POOL_BYTES, &options(Mapping::default(), true)).unwrap();
    for durability in [ferrite_fs::Durability::Process, ferrite_fs::Durability::OnSync] {
        let pool = Pool::open(&path, Opening::ReadWrite).unwrap();
        if pool.medium() != ferrite_pm::Medium::File {
            println!("not on a disk here");
            return;
        }
        let engine = Engine::mount(pool, &quiet().durability(durability)).unwrap();
        let ino = make(&engine, ROOT_INO, &format!("{durability:?}"));
        write(&engine, ino, 0, &pattern(9000, 1));
        let refused = Remote::bind_as(&engine, ino, WRITABLE).map(drop);
        assert_eq!(refused, Err(FsError::NotSupported(Unsupported::WritableRegion)));
        let remote = Remote::bind_as(&engine, ino, Binding::default()).unwrap();
        write(&engine, ino, 4000, &pattern(200, 2));
        truncate(&engine, ino, 8000);
        assert!(remote.read_all() == read(&engine, ino));
        remote.adapter.check("disk");
        engine.unmount().unwrap();
        drop((engine, remote));
        let report = fsck(Pool::open(&path, Opening::ReadWrite).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

#[test]
fn a_bound_file_without_a_name_lives_until_it_is_unbound() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&options(mapping, true));
        let empty = engine.statfs(SYSTEM).unwrap();
        let ino = make(&engine, ROOT_INO, "file");
        write(&engine, ino, 0, &pattern(300_000, 1));
        let remote = Remote::bind(&engine, ino);
        engine.unlink(SYSTEM, ROOT_INO, b"file").unwrap();
        // Others take free blocks, and none of its own.
        let other = make(&engine, ROOT_INO, "other");
        write(&engine, other, 0, &pattern(500_000, 2));
        remote.write(1000, &pattern(5000, 3)).unwrap();
        remote.region.append(&[&pattern(5000, 4)]).unwrap();
        assert_eq!(remote.read(1000, 5000).unwrap(), pattern(5000, 3));
        assert!(read(&engine, other) == pattern(500_000, 2));
        // A crash forgets it.
        let image = recorder.log().final_image();
        let crashed = mount(&image);
        assert!(crashed.bound().is_empty());
        remote.region.unbind().unwrap();
        remote.adapter.check("unlinked");
        engine.unlink(SYSTEM, ROOT_INO, b"other").unwrap();
        let left = engine.statfs(SYSTEM).unwrap();
        assert_eq!(
            (left.blocks_free, left.inodes_free),
            (empty.blocks_free, empty.inodes_free),
            "{mapping:?}"
        );
    }
}

#[test]
fn a_file_stays_bound_over_a_crash_and_is_finalized_when_nothing_goes_on() {
    let (engine, recorder) = pool(&options(Mapping::default(), true));
    let ino = make(&engine, ROOT_INO, "file");
    write(&engine, ino, 0, &pattern(20_000, 1));
    let remote = Remote::bind(&engine, ino);
    remote.write(5000, &pattern(3000, 2)).unwrap();
    let mut content = pattern(20_000, 1);
    content[5000..8000].copy_from_slice(&pattern(3000, 2));
    let image = recorder.log().final_image();
    check(&image);
    // Without its adapter it works as any other.
    let (after, recorder) = reopened(&image);
    let bound = after.bound();
    assert_eq!((bound.len(), bound[0].ino, bound[0].is_attached), (1, ino, false));
    assert!(
        read(&after, ino) == content,
        "checksums of bound files count for identity only"
    );
    assert!(after.scrub(None).unwrap().findings.is_empty());
    write(&after, ino, 100, b"logged");
    content[100..106].copy_from_slice(b"logged");
    assert!(
        after.dump(ino).unwrap().iter().all(|page| page.entries.is_empty()),
        "no logs"
    );
    assert!(read(&after, ino) == content);
    drop(after);
    let image = recorder.log().final_image();
    check(&image);
    // A pool that is not changed is not finalized, and can be read.
    let inspecting = Engine::mount(Pool::from_image(&image).unwrap(), &MountOptions::inspect()).unwrap();
    assert_eq!(inspecting.bound().len(), 1);
    assert!(read(&inspecting, ino) == content);
    let idle = Engine::mount(Pool::from_image(&image).unwrap(), &MountOptions::default()).unwrap();
    for _ in 0..400 {
        if idle.bound().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    assert!(idle.bound().is_empty(), "finalized by itself");
    assert!(read(&idle, ino) == content);
    assert!(idle.scrub(None).unwrap().findings.is_empty());
}

/// A frozen pool is a cleanly unmounted one, and stays so.
#[test]
fn a_frozen_pool_does_not_change() {
    let (engine, recorder) = pool(&options(Mapping::default(), true));
    let ino = make(&engine, ROOT_INO, "file");
    write(&engine, ino, 0, &pattern(20_000, 1));
    let remote = Remote::bind(&engine, ino);
    engine.freeze().unwrap();
    let image = recorder.log().final_image();
    // A caller that serves other clients too does not wait.
    let (answers, answered) = std::sync::mpsc::channel();
    let elsewhere = remote.clone();
    let asking = std::thread::spawn(move || {
        let region = &elsewhere.region;
        answers.send(("append", region.append(&[b"later"]).err())).unwrap();
        answers.send(("reserve", region.reserve(5).err())).unwrap();
        answers.send(("extend", region.extend(20_000, 30_000).err())).unwrap();
        answers.send(("write", region.write_atomic(0, b"later").err())).unwrap();
        answers.send(("store", elsewhere.write(0, b"now").err())).unwrap();
    });
    for call in ["append", "reserve", "extend", "write", "store"] {
        let answer = answered.recv_timeout(Duration::from_secs(20));
        assert_eq!(answer, Ok((call, Some(FsError::Busy))), "{call} waits for the thaw");
    }
    asking.join().unwrap();
    let before = remote.region.attr().unwrap();
    assert_eq!(engine.getattr(SYSTEM, ino).unwrap(), before);
    assert!(recorder.log().final_image() == image, "something was stored");
    check(&image);
    assert!(read(&mount(&image), ino) == pattern(20_000, 1));
    engine.thaw().unwrap();
    assert_eq!(remote.region.append(&[b"later"]), Ok(20_000));
    remote.write(0, b"now").unwrap();
    assert_eq!(&remote.read_all()[..3], b"now");
    // An unmount of a frozen pool cannot finalize.
    engine.freeze().unwrap();
    engine.unmount().unwrap();
    assert!(remote.adapter.is_unbound());
    assert_eq!(mount(&recorder.log().final_image()).bound().len(), 1);
    remote.adapter.check("frozen");
}

/// Adapters have space for runs.
#[test]
fn a_scattered_file_is_defragmented_if_that_is_asked_for() {
    for &mapping in Mapping::ALL {
        let (engine, recorder) = pool(&options(mapping, true));
        let (ino, other) = (make(&engine, ROOT_INO, "file"), make(&engine, ROOT_INO, "other"));
        let content = pattern(100 * 4096, 1);
        for n in 0..100u64 {
            // Every page in a turn of its own, and something else between two.
            let at = n * 37 % 100 * 4096;
            write(&engine, ino, at, &content[at as usize..][..4096]);
            write(&engine, other, n * 4096, &[2; 4096]);
        }
        truncate(&engine, ino, 200 * 4096);
        let bind = |defragment: bool| {
            let how = Binding { defragment, ..WRITABLE };
            let remote = Remote::bind_as(&engine, ino, how).unwrap();
            assert_eq!(remote.read(0, content.len()).unwrap(), content);
            let runs = engine.bound()[0].runs;
            remote.region.unbind().unwrap();
            remote.adapter.check("defragmented");
            runs
        };
        let (before, after) = (bind(false), bind(true));
        println!("{mapping:?}: {before} runs become {after}");
        assert!(before > 50 && after <= 4, "{mapping:?}: {before} runs become {after}");
        assert!(bind(true) <= after, "it does not get worse");
        engine.unmount().unwrap();
        check(&recorder.log().final_image());
    }
}

/// Damage is found when a file is bound: afterwards no read would notice it.
#[test]
fn a_damaged_file_is_not_bound() {
    let options = options(Mapping::default(), true);
    let (engine, recorder) = pool(&options);
    let ino = make(&engine, ROOT_INO, "file");
    write(&engine, ino, 0, &[0xa7; 4096]);
    engine.unmount().unwrap();
    let mut image = recorder.log().final_image();
    let at = image.windows(64).position(|window| window == [0xa7; 64]).unwrap();
    image[at + 10] ^= 1;
    let engine = mount(&image);
    let refused = Remote::bind_as(&engine, ino, WRITABLE).map(drop);
    assert!(matches!(refused, Err(FsError::Damaged(_))), "{refused:?}");
    assert!(engine.bound().is_empty());
}

/// Data that a service sends or caches must not change under it.
#[test]
fn pages_of_a_bound_file_are_not_borrowed_and_its_reads_have_no_version() {
    let (engine, _) = pool(&options(Mapping::default(), false));
    let ino = make(&engine, ROOT_INO, "file");
    write(&engine, ino, 0, &pattern(9000, 1));
    let mode = OpenMode {
        no_atime: true,
        ..OpenMode::read_only()
    };
    let file = engine.open(SYSTEM, ino, mode).unwrap();
    let has_version = || file.read_versioned(SYSTEM, 0, &mut [0; 9000]).unwrap().1.is_some();
    let is_borrowed = || file.read_borrowed(SYSTEM, 0, 9000, &mut |_, _| {}).unwrap();
    assert!(has_version() && is_borrowed());
    let remote = Remote::bind(&engine, ino);
    assert!(!has_version() && !is_borrowed());
    remote.region.unbind().unwrap();
    assert!(has_version() && is_borrowed());
    assert!(engine.regions().is_some());
}

/// A local append through a handle, and a remote one, meet at the end.
#[test]
fn both_sides_append() {
    let (engine, _) = pool(&options(Mapping::default(), false));
    let ino = make(&engine, ROOT_INO, "file");
    let remote = Remote::bind(&engine, ino);
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    let mut content = Vec::new();
    for n in 0..200u8 {
        let data = pattern(usize::from(n) * 3 + 1, n);
        match n % 3 {
            0 => drop(file.write(SYSTEM, Position::End.into(), &data).unwrap()),
            _ => assert_eq!(remote.region.append(&[&data]).unwrap(), content.len() as u64),
        }
        content.extend(data);
    }
    assert!(read(&engine, ino) == content && remote.read_all() == content);
    remote.adapter.check("both append");
}

/// A request sized for an older or smaller pool: the engine sets the largest step.
#[test]
fn a_step_that_is_too_large_is_refused_whole() {
    let region = Pool::anonymous(64 << 20).unwrap();
    mkfs(&region, &options(Mapping::default(), false)).unwrap();
    let engine = Engine::mount(Pool::from_image(&image_of(&region)).unwrap(), &quiet()).unwrap();
    let ino = make(&engine, ROOT_INO, "file");
    let remote = Remote::bind(&engine, ino);
    let most = pattern(engine.atomic_write_bytes(), 1);
    assert_eq!(remote.region.append(&[&most]).unwrap(), 0);
    let refused = remote.region.append(&[&most, b"x"]);
    assert_eq!(refused, Err(FsError::NotSupported(Unsupported::StepSize)));
    remote.region.write_atomic(0, &most).unwrap();
    assert!(read(&engine, ino) == most);
}

/// The places of pages, as far as they were published.
#[derive(Default)]
struct Told(Mutex<BTreeMap<u32, Option<u32>>>);

impl Adapter for Told {
    fn revoke(&self, first: u32, end: u32) {
        self.0.lock().retain(|&at, _| at < first || at >= end);
    }

    fn publish(&self, runs: &[PageRun]) {
        let mut told = self.0.lock();
        for run in runs {
            told.extend((0..run.pages).map(|n| (run.at + n, run.page.map(|page| page + n))));
        }
    }

    fn resize(&self, _size: u64) {}

    fn attributes_changed(&self, _attr: &Attr) {}

    fn unbound(&self) {}
}

/// Finding all pages of a large file may take long. Pages that a binding leaves out are published on a fault, and by
/// then logs are merged into their pages.
#[test]
fn of_a_large_file_a_binding_tells_the_first_part() {
    const WRITTEN: usize = 10_000;
    const PAGES: u32 = 12_000;
    for &mapping in Mapping::ALL {
        let pool = Pool::anonymous(128 << 20).unwrap();
        mkfs(&pool, &options(mapping, false)).unwrap();
        let engine = Engine::mount(pool, &quiet().merge_read_entries(0)).unwrap();
        let ino = make(&engine, ROOT_INO, "file");
        let mut content = pattern(WRITTEN * 4096, 1);
        for (n, part) in content.chunks(1 << 20).enumerate() {
            write(&engine, ino, (n << 20) as u64, part);
        }
        fallocate(
            &engine,
            ino,
            FallocateMode::Allocate { keep_size: false },
            0,
            u64::from(PAGES) * 4096,
        );
        content.resize(PAGES as usize * 4096, 0);
        for page in [3, WRITTEN - 1] {
            let at = page * 4096 + 100;
            write(&engine, ino, at as u64, b"logged");
            content[at..at + 6].copy_from_slice(b"logged");
        }
        let bind = |whole| {
            let told = Arc::<Told>::default();
            let how = Binding { whole, ..WRITABLE };
            let region = engine.bind(SYSTEM, ino, how, Arc::clone(&told) as _).unwrap();
            (told, region)
        };
        let (told, region) = bind(false);
        assert_eq!(engine.info().merges.idle, 2, "{mapping:?}");
        let is_right = |page: u32| {
            let mut found = [0; 4096];
            if let Some(place) = told.0.lock()[&page] {
                region.load(place, 0, &mut found);
            }
            found == content[page as usize * 4096..][..4096]
        };
        let first = told.0.lock().len() as u32;
        assert!(first >= 1024, "{mapping:?} told {first} pages");
        assert_eq!(
            first == PAGES,
            mapping == Mapping::Radix,
            "{mapping:?} told {first} pages"
        );
        assert!((0..first).all(is_right));
        for page in [WRITTEN as u32 - 1, PAGES - 1] {
            region.fault(page, 1, Access::Read).unwrap();
            assert!(is_right(page), "{mapping:?}: page {page}");
        }
        region.fault(0, PAGES + 5, Access::Read).unwrap();
        assert!((0..PAGES).all(is_right), "{mapping:?}");
        assert_eq!(told.0.lock().len() as u32, PAGES);
        region.unbind().unwrap();
        let (told, region) = bind(true);
        assert_eq!(told.0.lock().len() as u32, PAGES, "{mapping:?}");
        region.unbind().unwrap();
        assert!(read(&engine, ino) == content);
    }
}

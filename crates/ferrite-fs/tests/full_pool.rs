//! Freeing space on a full pool: it must not fail for lack of space, nor stop half-way and lose later writes.
//!
//! Filling pools and continuing to use them is in `suites.rs` and, on a mount, in `ferrite-cli/tests/full_device.rs`.

use std::sync::Arc;

use crate::common::{fixed, image_of, make, options};
use ferrite_fs::{Engine, Mapping, MountOptions, fsck, mkfs};
use ferrite_pm::{Recorder, Region};
use ferrite_vfs::{
    FallocateMode, FileSystem, FsError, OpenFile, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, SpaceOf, XattrMode,
};

const PAGE: u64 = 4096;
/// Where the long stretch of the victim begins, in pages.
const STRETCH: u64 = 100_000;
const STRETCH_PAGES: u64 = 800;
/// Pages of the stretch that stay before the truncated part, which is more than one record's worth.
const KEPT: u64 = 50;
const HOLE_PAGES: u64 = 700;

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).merge_read_entries(0)
}

fn mounted(image: &[u8]) -> Engine {
    Engine::mount(Region::from_image(image).unwrap(), &quiet()).expect("a pool that was never damaged")
}

fn first_byte(file: &Arc<dyn OpenFile>, page: u64) -> u8 {
    let mut byte = [0xaa];
    assert_eq!(file.read_at(SYSTEM, page * PAGE, &mut byte).unwrap(), 1, "page {page}");
    byte[0]
}

/// Takes a long stretch out of a file of `lone` lone pages besides, on a pool without a free block. In the extent tree
/// the first removed page splits the stretch's extent, which, where the leaf is full, takes a node.
fn truncate_when_full(mapping: Mapping, lone: u64, punch: bool) {
    let what = format!("{mapping:?}, {lone} lone pages, punch {punch}");
    let blank = Region::anonymous(14 << 20).unwrap();
    let options = fixed().mapping(mapping).inodes(255).rings(1);
    mkfs(&blank, &options).unwrap();
    let image = image_of(&blank);
    let recorder = Recorder::new(image.clone());
    let mut region = Region::from_image(&image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let victim = make(&engine, ROOT_INO, "victim");
    let file = engine.open(SYSTEM, victim, OpenMode::read_write()).unwrap();
    for n in 0..lone {
        file.write_at(SYSTEM, n * 2 * PAGE, &[7; PAGE as usize]).unwrap();
    }
    for at in (0..STRETCH_PAGES).step_by(200) {
        file.write_at(SYSTEM, (STRETCH + at) * PAGE, &vec![1; 200 * PAGE as usize])
            .unwrap();
    }
    let filler = make(&engine, ROOT_INO, "filler");
    let fill = engine.open(SYSTEM, filler, OpenMode::read_write()).unwrap();
    let mut at = 0;
    while fill.write_at(SYSTEM, at * PAGE, &[9; PAGE as usize]).is_ok() {
        at += 1;
    }
    let set_size = |ino, pages| {
        let size = SetAttr {
            size: Some(pages * PAGE),
            ..SetAttr::default()
        };
        engine.setattr(SYSTEM, ino, &size)
    };
    let expected = if punch {
        file.fallocate(
            SYSTEM,
            FallocateMode::PunchHole,
            (STRETCH + KEPT) * PAGE,
            HOLE_PAGES * PAGE,
        )
        .unwrap_or_else(|error| panic!("{what}: {error}"));
        lone + STRETCH_PAGES - HOLE_PAGES
    } else {
        set_size(victim, STRETCH + KEPT).unwrap_or_else(|error| panic!("{what}: {error}"));
        lone + KEPT
    };
    assert_eq!(engine.getattr(SYSTEM, victim).unwrap().blocks / 8, expected, "{what}");
    mounted(&recorder.log().final_image());
    set_size(filler, 0).unwrap();
    set_size(victim, STRETCH + STRETCH_PAGES).unwrap();
    assert_eq!(first_byte(&file, STRETCH + KEPT - 1), 1, "{what}");
    assert_eq!(
        first_byte(&file, STRETCH + 100),
        0,
        "{what}: what was removed came back"
    );
    file.write_at(SYSTEM, (STRETCH + 300) * PAGE, &[5]).unwrap();
    drop((file, fill));
    engine.unmount().unwrap();
    let image = recorder.log().final_image();
    let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
    let file = mounted(&image).open(SYSTEM, victim, OpenMode::read_write()).unwrap();
    assert_eq!(first_byte(&file, STRETCH + 300), 5, "{what}: a write was lost");
}

#[test]
fn truncating_a_long_stretch_takes_no_free_block() {
    for punch in [false, true] {
        for &mapping in Mapping::ALL {
            truncate_when_full(mapping, 30, punch);
        }
        // A leaf of the extent tree has 240 entries.
        for lone in 234..=242 {
            truncate_when_full(Mapping::Extent, lone, punch);
        }
    }
}

/// One operation can allocate all free space: on a small pool such a step takes a cuckoo table from empty to full, and
/// moves most of its entries on the way.
#[test]
fn all_that_is_free_can_be_reserved_at_once() {
    for &mapping in Mapping::ALL {
        for seed in 1..=30 {
            for mib in [4, 9] {
                let blank = Region::anonymous(mib << 20).unwrap();
                let options = fixed().mapping(mapping).inodes(255).rings(2).seed(seed);
                mkfs(&blank, &options).unwrap();
                let engine = mounted(&image_of(&blank));
                let file = engine
                    .open(SYSTEM, make(&engine, ROOT_INO, "file"), OpenMode::read_write())
                    .unwrap();
                let before = engine.statfs(SYSTEM).unwrap().blocks_available;
                // Trees need nodes besides.
                let wanted = match mapping {
                    Mapping::Hashfs | Mapping::Cuckoo | Mapping::Leaf => before,
                    Mapping::Radix | Mapping::Extent => before - before / 64 - 8,
                };
                let mode = FallocateMode::Allocate { keep_size: false };
                let reserved = file.fallocate(SYSTEM, mode, 0, wanted * PAGE);
                assert!(reserved.is_ok(), "{mapping}, {mib} MiB, seed {seed}: {reserved:?}");
                assert_eq!(
                    file.getattr(SYSTEM).unwrap().blocks / 8,
                    wanted,
                    "{mapping}, {mib} MiB, seed {seed}"
                );
            }
        }
    }
}

/// A user who may change only their own files must not be able to drain the reserve, a few blocks at a time, until
/// deletes and overwrites of other users fail.
fn nobody_takes_the_reserve(mapping: Mapping) {
    let blank = Region::anonymous(14 << 20).unwrap();
    let options = fixed().mapping(mapping).inodes(2000).rings(1);
    mkfs(&blank, &options).unwrap();
    let engine = mounted(&image_of(&blank));
    let set_size = |ino, size| {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        engine.setattr(SYSTEM, ino, &set).map(|_| ())
    };
    // Short files, and directories that hold one long name each, whose block has no space for another.
    let mut short = Vec::new();
    let mut dirs = Vec::new();
    for n in 0..400 {
        let ino = make(&engine, ROOT_INO, &format!("short{n}"));
        engine
            .open(SYSTEM, ino, OpenMode::read_write())
            .unwrap()
            .write_at(SYSTEM, 0, b"inline")
            .unwrap();
        short.push(ino);
        let dir = engine
            .mkdir(SYSTEM, ROOT_INO, format!("dir{n}").as_bytes(), 0o755)
            .unwrap();
        dirs.push(dir.ino);
    }
    let victim = make(&engine, ROOT_INO, "victim");
    let file = engine.open(SYSTEM, victim, OpenMode::read_write()).unwrap();
    file.write_at(SYSTEM, 0, &vec![1; 600 * PAGE as usize]).unwrap();
    let filler = make(&engine, ROOT_INO, "filler");
    let fill = engine.open(SYSTEM, filler, OpenMode::read_write()).unwrap();
    let mut at = 0;
    while fill.write_at(SYSTEM, at * PAGE, &[9; PAGE as usize]).is_ok() {
        at += 1;
    }
    let free = engine.statfs(SYSTEM).unwrap().blocks_free;
    for (n, (&ino, &dir)) in short.iter().zip(&dirs).enumerate() {
        let refused = set_size(ino, 2 * PAGE);
        assert!(matches!(refused, Err(FsError::NoSpace(_))), "{mapping:?}: {refused:?}");
        let name = format!("short{n}");
        let refused = engine.rename(SYSTEM, ROOT_INO, name.as_bytes(), dir, b"moved", RenameMode::Replace);
        assert!(matches!(refused, Err(FsError::NoSpace(_))), "{mapping:?}: {refused:?}");
    }
    assert_eq!(engine.statfs(SYSTEM).unwrap().blocks_free, free, "{mapping:?}");
    for page in (0..600).step_by(7) {
        file.write_at(SYSTEM, page * PAGE, &[2; PAGE as usize]).unwrap();
        file.write_at(SYSTEM, page * PAGE + 9, &[3; 100]).unwrap();
    }
    file.fallocate(SYSTEM, FallocateMode::PunchHole, 10 * PAGE, 520 * PAGE)
        .unwrap();
    set_size(victim, 3 * PAGE + 1).unwrap();
    assert!(!engine.is_read_only());
}

#[test]
fn what_takes_space_takes_none_of_the_reserve() {
    Mapping::ALL
        .iter()
        .for_each(|&mapping| nobody_takes_the_reserve(mapping));
}

/// A full pool: its filler, and a file of `logged` pages that have logs.
fn full_with_logs(logged: u64) -> (Engine, Arc<dyn OpenFile>, Arc<dyn OpenFile>) {
    let blank = Region::anonymous(32 << 20).unwrap();
    let options = fixed().inodes(1000).rings(2);
    mkfs(&blank, &options).unwrap();
    let engine = mounted(&image_of(&blank));
    let open = |name| {
        engine
            .open(SYSTEM, make(&engine, ROOT_INO, name), OpenMode::read_write())
            .unwrap()
    };
    let (others, filler) = (open("others"), open("filler"));
    others
        .write_at(SYSTEM, 0, &vec![1; (1 + logged) as usize * PAGE as usize])
        .unwrap();
    let mut at = 0;
    let fill = |at: &mut u64| {
        while filler.write_at(SYSTEM, *at * PAGE, &[9; PAGE as usize]).is_ok() {
            *at += 1;
        }
    };
    fill(&mut at);
    // Space for the logs.
    let set = SetAttr {
        size: Some((at - logged / 4) * PAGE),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, filler.ino(), &set).unwrap();
    for n in 0..logged {
        others.write_at(SYSTEM, n * PAGE + 3, b"logged").unwrap();
    }
    (engine, filler, others)
}

fn merges(engine: &Engine) -> u64 {
    let merges = engine.info().merges;
    merges.write + merges.read + merges.low_space + merges.idle
}

/// A request that nothing could satisfy is refused at once, whatever waits for the checkpoint, and whatever logs hold.
#[test]
fn what_can_never_fit_costs_nobody_anything() {
    let (engine, filler, others) = full_with_logs(2000);
    let cheap = |what: &str, refused: &mut dyn FnMut() -> bool| {
        for _ in 0..20 {
            others.write_at(SYSTEM, 2000 * PAGE, &[7; PAGE as usize]).unwrap();
            let before = (engine.counters().fences, merges(&engine));
            assert!(refused(), "{what}: was not refused for want of space");
            assert_eq!((engine.counters().fences, merges(&engine)), before, "{what}");
        }
    };
    let value = vec![1; 4000];
    cheap("a setxattr of a value that is too long", &mut || {
        let set = engine.setxattr(SYSTEM, filler.ino(), b"user.a", &vec![1; 70_000], XattrMode::Any);
        matches!(set, Err(FsError::ValueTooLong))
    });
    let pages = engine.statfs(SYSTEM).unwrap().blocks;
    cheap("fallocate", &mut || {
        let mode = FallocateMode::Allocate { keep_size: true };
        filler.fallocate(SYSTEM, mode, 0, pages * PAGE) == Err(FsError::NoSpace(SpaceOf::Blocks))
    });
    let mut made = 0;
    let mut exhaust = || loop {
        match engine.symlink(SYSTEM, ROOT_INO, format!("s{made}").as_bytes(), b"t") {
            Ok(_) => made += 1,
            Err(error) => return error,
        }
    };
    let error = exhaust();
    if error == FsError::NoSpace(SpaceOf::Inodes) {
        cheap("symlink", &mut || {
            engine.symlink(SYSTEM, ROOT_INO, b"another", &value[..5]) == Err(FsError::NoSpace(SpaceOf::Inodes))
        });
    } else {
        panic!("the inodes were to be out first: {error}");
    }
}

/// A writer that keeps writing to a full pool merges each log at most once, and then costs others nothing.
#[test]
fn who_hammers_a_full_pool_pays_for_it_himself() {
    let logged = 1000;
    let (engine, filler, others) = full_with_logs(logged);
    let at = engine.getattr(SYSTEM, filler.ino()).unwrap().size / PAGE;
    let mut written = 0;
    while filler
        .write_at(SYSTEM, (at + written) * PAGE, &[8; PAGE as usize])
        .is_ok()
    {
        written += 1;
    }
    assert!(
        written >= logged / 20,
        "the logs' space was to be had: {written} blocks"
    );
    assert!(merges(&engine) <= logged + 1, "{} merges", merges(&engine));
    let mut fences = 0;
    let before = merges(&engine);
    for n in 0..500 {
        // Another writer continues: whole pages, and parts.
        others.write_at(SYSTEM, n * PAGE, &[7; PAGE as usize]).unwrap();
        others.write_at(SYSTEM, n * PAGE + 100, b"part").unwrap();
        let from = engine.counters().fences;
        let refused = filler.write_at(SYSTEM, (at + written) * PAGE, &[8; PAGE as usize]);
        assert_eq!(refused, Err(FsError::NoSpace(SpaceOf::Blocks)));
        fences += engine.counters().fences - from;
    }
    let merges = merges(&engine) - before;
    assert!(
        fences < 100,
        "{fences} fences and {merges} merges in 500 writes that came to nothing"
    );
    assert!(!engine.is_read_only());
}

/// Many threads fill a young table, which grows meanwhile: places left behind by its own moves wait for the checkpoint,
/// one thread's moves leave another nothing to move, and none of that is a reason to fail.
#[test]
fn threads_that_fill_a_young_table_together_find_space() {
    const THREADS: u64 = 4;
    const PIECE: u64 = 256 * PAGE;
    const PIECES_EACH: u64 = 5;
    for (mapping, round) in Mapping::ALL
        .iter()
        .flat_map(|&mapping| (0..8).map(move |round| (mapping, round)))
    {
        let region = Region::anonymous(64 << 20).unwrap();
        mkfs(&region, &options().seed(round).mapping(mapping).data_checksum(true)).unwrap();
        let engine = Engine::mount(region, &quiet()).unwrap();
        let ino = make(&engine, ROOT_INO, "file");
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let file = &file;
                scope.spawn(move || {
                    for piece in 0..PIECES_EACH {
                        let at = (piece * THREADS + thread) * PIECE;
                        let written = file.write_at(SYSTEM, at, &[7; PIECE as usize]);
                        written.unwrap_or_else(|error| panic!("{mapping:?}, seed {round}, at {at}: {error}"));
                    }
                });
            }
        });
    }
}

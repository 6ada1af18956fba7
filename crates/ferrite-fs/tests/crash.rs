//! Crashes at any moment (docs/design.md, "Proof"): each operation is there entirely or not at all, and every operation
//! that returned is there.
//!
//! A workload runs on a recorded engine. For each fence of the recording, images are built of what the medium may hold:
//! nothing unfenced, everything, some lines alone missing, 64 random subsets torn at words. Each image must mount, pass
//! fsck, and hold the tree after the last operation that returned, or after the one in progress. Some are crashed again
//! while they recover.

use std::collections::HashSet;
use std::sync::Arc;

use crate::common::{Tree, capture, check_image, empty_pool, fixed, make, mount_image, pattern, write};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_pm::{Choice, Image, ImageCursor, Log, Recorder, Region};
use ferrite_vfs::{
    Cred, Ctx, FallocateMode, FileSystem, Ino, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr, XattrMode,
};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

const POOL_BYTES: u64 = 4 << 20;
const RANDOM_SUBSETS: u64 = 64;

type Step = Box<dyn Fn(&Engine)>;

fn options() -> MkfsOptions {
    fixed().inodes(127).rings(2)
}

fn with_data_checksums() -> MkfsOptions {
    options().data_checksum(true)
}

fn soak() -> bool {
    std::env::var_os("FERRITE_SOAK").is_some()
}

/// A recording, and the trees before the first step and after each.
struct Recorded {
    log: Log,
    states: Vec<Tree>,
}

/// Nothing runs in the background, so that a recording is always the same.
fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

/// Runs `steps` on a new pool, after `setup`, which is not recorded.
fn record(setup: &[Step], steps: &[Step]) -> Recorded {
    record_with(&quiet(), setup, steps)
}

fn record_with(options_of_mount: &MountOptions, setup: &[Step], steps: &[Step]) -> Recorded {
    record_on(&options(), options_of_mount, setup, steps)
}

fn record_on(
    options_of_pool: &MkfsOptions,
    options_of_mount: &MountOptions,
    setup: &[Step],
    steps: &[Step],
) -> Recorded {
    let empty = empty_pool(POOL_BYTES, options_of_pool);
    let mut region = Region::from_image(&empty).unwrap();
    let recorder = Recorder::new(empty);
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, options_of_mount).unwrap();
    setup.iter().for_each(|step| step(&engine));
    engine.unmount().unwrap();
    let before = recorder.log().final_image();
    let recorder = Recorder::new(before.clone());
    let mut region = Region::from_image(&before).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, options_of_mount).unwrap();
    let mut states = vec![capture(&engine)];
    for (index, step) in steps.iter().enumerate() {
        step(&engine);
        recorder.mark(index as u64 + 1);
        states.push(capture(&engine));
    }
    engine.unmount().unwrap();
    Recorded {
        log: recorder.log(),
        states,
    }
}

#[derive(Default)]
struct Seen {
    images: HashSet<u64>,
    points: usize,
}

/// Explores all crash points; returns how many distinct images were tried.
fn explore(recorded: &Recorded, seed: u64, subsets: u64) -> usize {
    let mut seen = Seen::default();
    let mut cursor = recorded.log.cursor();
    loop {
        at_point(&mut cursor, recorded, (seed, subsets), &mut seen);
        seen.points += 1;
        if !cursor.advance() {
            break;
        }
    }
    seen.images.len()
}

fn at_point(cursor: &mut ImageCursor<'_>, recorded: &Recorded, (seed, subsets): (u64, u64), seen: &mut Seen) {
    let returned = cursor.marks().last().map_or(0, |&mark| mark as usize);
    let point = cursor.point() as u64;
    let choices = [Choice::None, Choice::All].into_iter();
    let random = (0..subsets).map(|n| Choice::Random(seed ^ point << 16 ^ n));
    // A random subset seldom has a whole record: a missing predecessor shows only in an image that lacks nothing else.
    let alone = subsets.div_ceil(4).min(cursor.lines_in_flight() as u64);
    let missing = (0..alone).map(|n| Choice::AllButLine((n * cursor.lines_in_flight() as u64 / alone) as usize));
    for choice in choices.chain(random).chain(missing.collect::<Vec<_>>()) {
        if !seen.images.insert(cursor.fingerprint(choice)) {
            continue;
        }
        cursor.with_image(choice, |image| {
            let at = format!("seed {seed}, crash point {point}, {choice:?}, {returned} operations returned");
            let twice = seen.images.len().is_multiple_of(40);
            verify(image, &recorded.states, returned, &at, twice);
        });
    }
}

/// Mounts an image and compares; with `twice`, crashes the recovery too.
fn verify(image: &Image, states: &[Tree], returned: usize, at: &str, twice: bool) {
    check_image(image);
    let mut region = Region::of_image(image).unwrap();
    let recorder = Recorder::new(image.clone());
    if twice {
        region.attach_recorder(Arc::clone(&recorder));
    }
    let engine = Engine::mount(region, &quiet()).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert!(engine.damage().is_empty(), "{at}: {:?}", engine.damage());
    let tree = capture(&engine);
    let allowed = &states[returned..states.len().min(returned + 2)];
    if !allowed.contains(&tree) {
        let names = |tree: &Tree| {
            format!(
                "{:?}",
                tree.iter()
                    .map(|(p, n)| (p, n.nlink, n.content.len()))
                    .collect::<Vec<_>>()
            )
        };
        let expected: Vec<_> = allowed.iter().map(names).collect();
        panic!("{at}: found {}\nallowed {expected:#?}", names(&tree));
    }
    // The recovered pool must keep working.
    let probe = make(&engine, ROOT_INO, "probe-after-crash");
    write(&engine, probe, 0, &pattern(5000, 9));
    engine
        .unlink(SYSTEM, ROOT_INO, b"probe-after-crash")
        .unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!(capture(&engine), tree, "{at}: the probe left something behind");
    engine.unmount().unwrap();
    if twice {
        let log = recorder.log();
        let mut cursor = log.cursor();
        // The first fences are recovery's own.
        for _ in 0..6 {
            for choice in [Choice::None, Choice::All, Choice::Random(7), Choice::Random(8)] {
                cursor.with_image(choice, |image| {
                    let engine = mount_image(image);
                    let mut again = capture(&engine);
                    again.remove("/probe-after-crash");
                    assert!(
                        allowed.contains(&again),
                        "{at}: crashed again while recovering, {choice:?}"
                    );
                });
            }
            if !cursor.advance() {
                break;
            }
        }
    }
}

fn lookup(fs: &dyn FileSystem, path: &str) -> Ino {
    path.split('/')
        .filter(|part| !part.is_empty())
        .fold(ROOT_INO, |dir, part| {
            fs.lookup(SYSTEM, dir, part.as_bytes()).unwrap().ino
        })
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap()
}

fn touch(path: &'static str) -> Step {
    Box::new(move |fs| {
        make(fs, lookup(fs, split(path).0), split(path).1);
    })
}

fn put(path: &'static str, offset: u64, len: usize, version: u8) -> Step {
    Box::new(move |fs| write(fs, lookup(fs, path), offset, &pattern(len, version)))
}

fn dir(path: &'static str) -> Step {
    Box::new(move |fs| {
        fs.mkdir(SYSTEM, lookup(fs, split(path).0), split(path).1.as_bytes(), 0o755)
            .unwrap();
    })
}

fn rename(from: &'static str, to: &'static str, mode: RenameMode) -> Step {
    Box::new(move |fs| {
        let ((a, b), (c, d)) = (split(from), split(to));
        fs.rename(SYSTEM, lookup(fs, a), b.as_bytes(), lookup(fs, c), d.as_bytes(), mode)
            .unwrap();
    })
}

fn unlink(path: &'static str) -> Step {
    Box::new(move |fs| {
        fs.unlink(SYSTEM, lookup(fs, split(path).0), split(path).1.as_bytes())
            .unwrap()
    })
}

fn rmdir(path: &'static str) -> Step {
    Box::new(move |fs| {
        fs.rmdir(SYSTEM, lookup(fs, split(path).0), split(path).1.as_bytes())
            .unwrap()
    })
}

fn truncate(path: &'static str, size: u64) -> Step {
    Box::new(move |fs| {
        fs.setattr(
            SYSTEM,
            lookup(fs, path),
            &SetAttr {
                size: Some(size),
                ..SetAttr::default()
            },
        )
        .unwrap();
    })
}

fn allocate(path: &'static str, mode: FallocateMode, offset: u64, len: u64) -> Step {
    Box::new(move |fs| {
        fs.open(SYSTEM, lookup(fs, path), OpenMode::read_write())
            .unwrap()
            .fallocate(SYSTEM, mode, offset, len)
            .unwrap()
    })
}

fn run(setup: Vec<Step>, steps: Vec<Step>) {
    let images = explore(&record(&setup, &steps), 1, RANDOM_SUBSETS);
    println!("{images} images");
    assert!(images > steps.len(), "too few images to mean anything");
}

#[test]
fn creating_linking_and_removing() {
    run(
        vec![dir("/d"), touch("/old"), put("/old", 0, 9000, 1)],
        vec![
            touch("/a"),
            dir("/d/e"),
            Box::new(|fs| {
                fs.link(SYSTEM, lookup(fs, "/old"), lookup(fs, "/d"), b"other").unwrap();
            }),
            Box::new(|fs| {
                fs.symlink(SYSTEM, ROOT_INO, b"short", b"target").unwrap();
            }),
            Box::new(|fs| {
                fs.symlink(SYSTEM, ROOT_INO, b"long", &[b'x'; 3000]).unwrap();
            }),
            unlink("/old"),
            unlink("/d/other"),
            unlink("/long"),
            rmdir("/d/e"),
            unlink("/a"),
        ],
    );
}

#[test]
fn renaming_in_all_ways() {
    run(
        vec![
            dir("/d"),
            dir("/d/sub"),
            dir("/e"),
            touch("/a"),
            put("/a", 0, 5000, 1),
            touch("/b"),
            put("/b", 0, 60, 2),
        ],
        vec![
            rename("/a", "/c", RenameMode::Replace),
            rename("/c", "/d/c", RenameMode::NoReplace),
            rename("/d/c", "/b", RenameMode::Replace),
            rename("/d/sub", "/e/sub", RenameMode::Replace),
            rename("/b", "/e/sub", RenameMode::Exchange),
            rename("/d", "/e/d", RenameMode::Replace),
            rename("/b", "/e/d", RenameMode::Replace),
        ],
    );
}

#[test]
fn freezing_and_thawing() {
    let freeze = || -> Step { Box::new(|fs| fs.freeze().unwrap()) };
    let thaw = || -> Step { Box::new(|fs| fs.thaw().unwrap()) };
    run(
        vec![touch("/f")],
        vec![
            put("/f", 0, 9000, 1),
            freeze(),
            thaw(),
            put("/f", 100, 50, 2),
            freeze(),
            thaw(),
            unlink("/f"),
        ],
    );
}

#[test]
fn writing_every_kind_of_page() {
    run(
        vec![touch("/f"), touch("/g"), put("/g", 0, 20_000, 1)],
        vec![
            put("/f", 0, 100, 1),
            put("/f", 50, 60, 2),
            put("/f", 100, 5000, 3),
            put("/g", 4096, 8192, 2),
            put("/g", 100, 3, 3),
            put("/g", 30_000, 10, 4),
            put("/g", 0, 200_000, 5),
            Box::new(|fs| {
                fs.open(SYSTEM, lookup(fs, "/g"), OpenMode::read_write())
                    .unwrap()
                    .append(SYSTEM, &pattern(777, 6))
                    .unwrap();
            }),
        ],
    );
}

/// Page logs: entries, chained segments, truncations and holes in logged pages, aligned writes that drop a log, writes
/// over several pages with logged ends; and the merges that reading after each step causes, from never to at once.
#[test]
fn writing_parts_of_pages() {
    parts_of_pages(&options(), &[0, 1, 3]);
}

/// The same where data carries checksums: after every crash all data verifies on read.
#[test]
fn checksums_of_data_survive_with_what_they_cover() {
    parts_of_pages(&with_data_checksums(), &[1]);
}

fn parts_of_pages(options_of_pool: &MkfsOptions, merges: &[u32]) {
    let small = |n: u64| put("/f", n * 37 % 4000, 1 + (n as usize * 29) % 90, n as u8);
    for &merge_read_entries in merges {
        let mut steps: Vec<Step> = (0..12).map(small).collect();
        steps.extend([
            put("/f", 4096 + 100, 700, 30),
            put("/f", 4096 + 300, 2000, 31),
            put("/f", 3000, 9000, 32),
            truncate("/f", 6000),
            put("/f", 5990, 3, 33),
            truncate("/f", 20_000),
            allocate("/f", FallocateMode::PunchHole, 100, 3000),
            put("/f", 200, 10, 34),
            put("/f", 0, 4096, 35),
            put("/f", 4000, 200, 36),
            allocate("/f", FallocateMode::ZeroRange { keep_size: true }, 4000, 8000),
            put("/f", 4090, 10, 37),
            unlink("/g"),
            put("/f", 8190, 4, 38),
        ]);
        let setup = [
            touch("/f"),
            put("/f", 0, 16_384, 1),
            touch("/g"),
            put("/g", 0, 8192, 1),
            put("/g", 50, 60, 2),
            put("/g", 4000, 200, 2),
        ];
        let options = quiet().merge_read_entries(merge_read_entries);
        let recorded = record_on(options_of_pool, &options, &setup, &steps);
        let images = explore(&recorded, 2, RANDOM_SUBSETS);
        println!("{images} images");
        assert!(images > 1000, "too few images to mean anything");
    }
}

/// With few free blocks, space that a merge frees is written again as soon as the rules allow: if too early, a crash
/// that restores the old word finds other data there.
fn merging_on_a_nearly_full_pool(options_of_pool: &MkfsOptions, merge_read_entries: u32, steps: &[Step]) {
    let fill: Step = Box::new(|fs| {
        let file = fs
            .open(SYSTEM, make(fs, ROOT_INO, "filler"), OpenMode::read_write())
            .unwrap();
        let mut end = 0;
        while fs.statfs(SYSTEM).unwrap().blocks_available > 6 {
            file.write_at(SYSTEM, end, &[1; 4096]).unwrap();
            end += 4096;
        }
    });
    let setup = [touch("/f"), put("/f", 0, 40 * 4096, 1), fill];
    let options = quiet().merge_read_entries(merge_read_entries);
    let recorded = record_on(options_of_pool, &options, &setup, steps);
    let images = explore(&recorded, 3, RANDOM_SUBSETS);
    println!("{images} images");
    assert!(images > 200, "too few images to mean anything");
}

/// Parts of three pages.
fn small(round: u64) -> impl Iterator<Item = Step> {
    (0..3).map(move |n| put("/f", n * 4096 + 50 * round, 30, (10 * round + n) as u8))
}

/// Enough whole pages to use up what is free, move the checkpoint, and write to the freed blocks.
fn churn(version: u64, times: u64) -> impl Iterator<Item = Step> {
    (0..times).map(move |n| put("/f", 8 * 4096, 24 * 4096, (version + n) as u8))
}

/// Finds merges whose space is reused before the checkpoint has passed them.
#[test]
fn space_of_merges_waits_for_the_checkpoint() {
    // Read by the test after each step, and so merged.
    let rounds = (0..4).flat_map(|round| small(round).chain(churn(100 + 10 * round, 1)));
    let rounds: Vec<_> = rounds.collect();
    merging_on_a_nearly_full_pool(&options(), 1, &rounds);
    // And no checksum of an earlier use comes back with an older record.
    merging_on_a_nearly_full_pool(&with_data_checksums(), 1, &rounds);
}

/// Finds merges whose words are not durable when their space is reused.
#[test]
fn words_of_merges_are_durable_before_their_space_is_reused() {
    let clean = || -> Step {
        Box::new(|engine| {
            engine.clean(100).unwrap();
        })
    };
    let round = |round: u64| {
        // The words are durable with their logs before the merges set them: nothing but a merge's own care makes them
        // so again.
        let logged = small(round).chain(churn(100 + 10 * round, 3));
        logged.chain([clean()]).chain(churn(200 + 10 * round, 3))
    };
    merging_on_a_nearly_full_pool(&options(), 0, &(0..2).flat_map(round).collect::<Vec<_>>());
}

#[test]
fn truncating_punching_and_reserving() {
    run(
        vec![
            touch("/f"),
            put("/f", 0, 50_000, 1),
            touch("/small"),
            put("/small", 0, 100, 1),
        ],
        vec![
            truncate("/f", 30_001),
            truncate("/f", 60_000),
            allocate("/f", FallocateMode::PunchHole, 5000, 10_000),
            allocate("/f", FallocateMode::ZeroRange { keep_size: false }, 20_000, 50_000),
            allocate("/small", FallocateMode::Allocate { keep_size: false }, 0, 20_000),
            put("/small", 8192, 4096, 2),
            truncate("/small", 10),
            truncate("/f", 0),
        ],
    );
}

#[test]
fn attributes_and_extended_attributes() {
    let set = |name: &'static [u8], len: usize| -> Step {
        Box::new(move |fs| {
            fs.setxattr(SYSTEM, lookup(fs, "/f"), name, &pattern(len, 1), XattrMode::Any)
                .unwrap()
        })
    };
    run(
        vec![touch("/f")],
        vec![
            set(b"user.a", 10),
            set(b"user.b", 2000),
            set(b"user.a", 100),
            Box::new(|fs| fs.removexattr(SYSTEM, lookup(fs, "/f"), b"user.b").unwrap()),
            Box::new(|fs| {
                let set = SetAttr {
                    mode: Some(0o4711),
                    uid: Some(7),
                    gid: Some(8),
                    ..SetAttr::default()
                };
                fs.setattr(SYSTEM, lookup(fs, "/f"), &set).unwrap();
            }),
            Box::new(|fs| fs.removexattr(SYSTEM, lookup(fs, "/f"), b"user.a").unwrap()),
            unlink("/f"),
        ],
    );
}

/// A block whose checksum a record carries is zeroed, stays with its page, and is filled again in place: that must not
/// void the record, which did more than fill the block (here it cleared the setuid bit).
#[test]
fn a_zeroed_page_is_written_again() {
    let set_mode: Step = Box::new(|fs| {
        let set = SetAttr {
            mode: Some(0o4755),
            ..SetAttr::default()
        };
        fs.setattr(SYSTEM, lookup(fs, "/f"), &set).unwrap();
    });
    let overwrite: Step = Box::new(|fs| {
        let file = fs.open(SYSTEM, lookup(fs, "/f"), OpenMode::read_write()).unwrap();
        let unprivileged = Ctx::checked(Cred::new(1, 1));
        file.write_at(&unprivileged, 4096, &pattern(4096, 2)).unwrap();
    });
    run(
        vec![touch("/f"), put("/f", 0, 16_384, 1), set_mode],
        vec![
            overwrite,
            allocate("/f", FallocateMode::ZeroRange { keep_size: true }, 4096, 4096),
            put("/f", 4100, 100, 3),
        ],
    );
}

/// More pages than one record unmaps, so that intents are written and crashed in between.
#[test]
fn truncating_more_than_one_record_holds() {
    let big = |version| put("/big", 0, 600 * 4096, version);
    run(vec![touch("/big"), big(1)], vec![truncate("/big", 5000)]);
    run(vec![touch("/big"), big(1)], vec![unlink("/big")]);
    run(
        vec![touch("/big"), big(1)],
        vec![allocate("/big", FallocateMode::PunchHole, 1000, 590 * 4096)],
    );
    let zero = FallocateMode::ZeroRange { keep_size: false };
    run(
        vec![touch("/big"), big(1)],
        vec![allocate("/big", zero, 1000, 599 * 4096)],
    );
}

/// Nodes of trees are created, split and freed: their initial content is in no record, so nothing may name them before
/// it is durable.
#[test]
fn nodes_of_trees_split_and_go() {
    const PAGE_BYTES: u64 = 4096;
    /// More extents than a leaf of an extent tree has space for, which leave the first leaf full.
    const PIECES: u64 = 250;
    for &mapping in Mapping::ALL {
        let options_of_pool = options().mapping(mapping);
        let pieces: Step = Box::new(|fs| {
            let ino = make(fs, ROOT_INO, "pieces");
            for piece in 0..PIECES {
                write(fs, ino, piece * 2 * PAGE_BYTES, &pattern(4096, piece as u8));
            }
        });
        let reserve = FallocateMode::Allocate { keep_size: false };
        let steps = vec![
            // Between the pieces of the full leaf, which splits: by a change of the mapping alone, which has no data to
            // fence for.
            allocate("/pieces", reserve, 101 * PAGE_BYTES, PAGE_BYTES),
            put("/pieces", 103 * PAGE_BYTES, 3000, 2),
            // After everything.
            put("/pieces", (2 * PIECES + 9) * PAGE_BYTES, 4096, 3),
            // A radix tree of two levels, and one of one level again, whose leaf is new.
            allocate("/pieces", reserve, 600 * PAGE_BYTES, PAGE_BYTES),
            truncate("/pieces", 300 * PAGE_BYTES),
            truncate("/pieces", 0),
            put("/pieces", 700 * PAGE_BYTES, 100, 5),
            unlink("/pieces"),
        ];
        let recorded = record_on(&options_of_pool, &quiet(), &[pieces], &steps);
        let images = explore(&recorded, 45, if soak() { RANDOM_SUBSETS } else { 8 });
        assert!(images > 40, "{mapping}: {images} images only");
    }
}

/// Enough records that the ring wraps and the checkpoint advances several times, and enough overwrites that freed
/// blocks are used again: the words that retirement wrote back must be there, and stale records must stay dead.
#[test]
fn rings_wrap_and_freed_blocks_come_back() {
    let mut steps: Vec<Step> = Vec::new();
    for turn in 0..160u8 {
        steps.push(match turn % 8 {
            3 => touch("/new"),
            5 => unlink("/new"),
            _ => put("/f", u64::from(turn % 3) * 4096, 90_000, turn),
        });
    }
    let recorded = record(&[touch("/f"), put("/f", 0, 110_000, 255)], &steps);
    let checkpoint = |image: &Image| u64::from_le_bytes(image[4096..4104].try_into().unwrap());
    let mut checkpoints = HashSet::new();
    let mut cursor = recorded.log.cursor();
    while cursor.advance() {
        checkpoints.insert(cursor.with_image(Choice::None, checkpoint));
    }
    assert!(
        checkpoints.len() >= 3,
        "the checkpoint moved only to {checkpoints:?}: the workload is too short to test it"
    );
    let images = explore(&recorded, 3, 6);
    println!("{images} images");
    assert!(images > 1000);
}

#[test]
fn long_random_workloads() {
    let seeds = match std::env::var("FERRITE_SEED") {
        Ok(seed) => vec![seed.parse().expect("FERRITE_SEED is a number")],
        Err(_) if soak() => (0..40).collect(),
        Err(_) => vec![1, 2],
    };
    for seed in seeds {
        println!("seed {seed}; replay with FERRITE_SEED={seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let steps: Vec<Step> = (0..30).map(|_| random_step(rng.next_u64())).collect();
        let recorded = record(&[dir("/d"), touch("/f0"), put("/f0", 0, 10_000, 1)], &steps);
        let images = explore(&recorded, seed, RANDOM_SUBSETS);
        println!("{images} images");
    }
}

/// One operation, possibly refused; it depends on `seed` and the tree alone.
fn random_step(seed: u64) -> Step {
    Box::new(move |fs| {
        let mut rng = StdRng::seed_from_u64(seed);
        let home = |rng: &mut StdRng| {
            if rng.random_bool(0.5) {
                ROOT_INO
            } else {
                lookup(fs, "/d")
            }
        };
        let (dir, name) = (home(&mut rng), format!("f{}", rng.random_range(0..4)));
        let file = fs.lookup(SYSTEM, dir, name.as_bytes()).ok();
        match (rng.random_range(0..7), file) {
            (0, Some(_)) => fs.unlink(SYSTEM, dir, name.as_bytes()).unwrap(),
            (1, Some(_)) => {
                let (dir2, name2) = (home(&mut rng), format!("f{}", rng.random_range(0..4)));
                fs.rename(
                    SYSTEM,
                    dir,
                    name.as_bytes(),
                    dir2,
                    name2.as_bytes(),
                    RenameMode::Replace,
                )
                .unwrap();
            }
            (2, Some(attr)) => {
                let size = Some(rng.random_range(0..40_000));
                fs.setattr(
                    SYSTEM,
                    attr.ino,
                    &SetAttr {
                        size,
                        ..SetAttr::default()
                    },
                )
                .unwrap();
            }
            (_, Some(attr)) => {
                let len = *[10usize, 100, 4096, 9000, 30_000].get(rng.random_range(0..5)).unwrap();
                let offset = if rng.random_bool(0.5) {
                    rng.random_range(0..9) * 4096
                } else {
                    rng.random_range(0..30_000)
                };
                write(fs, attr.ino, offset, &pattern(len, seed as u8));
            }
            (_, None) => {
                make(fs, dir, &name);
            }
        }
    })
}

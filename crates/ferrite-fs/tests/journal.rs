//! Damage to the journal of a pool that crashed: operations that returned are there, or the mount and fsck report a
//! loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Tree, capture, empty_pool, fixed, make, on_ring, pattern, write};
use ferrite_fs::layout::{CONTROL_CHECKPOINT, encode_checkpoint};
use ferrite_fs::{Durability, Engine, MkfsOptions, MountOptions, Superblock, fsck, identify, repair};
use ferrite_pm::{Choice, Recorder, Region};
use ferrite_testkit::two_at_a_time;
use ferrite_vfs::{FileSystem, FsError, OpenMode, ROOT_INO, SYSTEM, SetAttr};

const POOL_BYTES: u64 = 4 << 20;
/// A cache line, in which records start.
const LINE: usize = 64;

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

fn options() -> MkfsOptions {
    fixed().inodes(127).rings(2)
}

/// The durable image of a pool when the machine stops after `work`.
fn crashed(image: &[u8], work: impl FnOnce(&Engine)) -> Vec<u8> {
    crashed_in(&quiet(), image, work)
}

fn crashed_in(options: &MountOptions, image: &[u8], work: impl FnOnce(&Engine)) -> Vec<u8> {
    let recorder = Recorder::new(image.to_vec());
    let mut region = Region::from_image(image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, options).unwrap();
    work(&engine);
    let log = recorder.log();
    let mut cursor = log.cursor();
    while cursor.advance() {}
    cursor.with_image(Choice::None, |image| image.to_vec())
}

fn mounted(image: &[u8]) -> Engine {
    Engine::mount(Region::from_image(image).unwrap(), &quiet()).unwrap()
}

fn findings(image: &[u8]) -> Vec<String> {
    let report = fsck(Region::from_image(image).unwrap(), &mut |_, _, _| {}).unwrap();
    report.findings.iter().map(|finding| finding.what.clone()).collect()
}

fn chmod(engine: &Engine, name: &str, mode: u16) {
    let ino = engine.lookup(SYSTEM, ROOT_INO, name.as_bytes()).unwrap().ino;
    let set = SetAttr {
        mode: Some(mode.into()),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, ino, &set).unwrap();
}

fn word(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
}

/// A record: its place in the image and its length, both in bytes.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: usize,
    len: usize,
}

/// The records above the checkpoint of each ring: since a mount they follow each other from its start.
fn records(image: &[u8], superblock: &Superblock) -> Vec<Vec<Place>> {
    let checkpoint = word(image, CONTROL_CHECKPOINT as usize) & ((1 << 48) - 1);
    let of_ring = |ring| {
        let start = (superblock.journal_offset + ring * superblock.ring_bytes) as usize;
        let (mut at, mut found) = (start, Vec::new());
        while word(image, at + 8) & ((1 << 48) - 1) > checkpoint {
            let len = (word(image, at) >> 32) as u16 as usize * 8;
            found.push(Place { at, len });
            at += len.next_multiple_of(LINE);
        }
        found
    };
    (0..superblock.rings.into()).map(of_ring).collect()
}

/// A pool that crashed with operations of two rings that had returned and are in the journal alone, and its tree.
fn sample() -> (Vec<u8>, Superblock, Tree) {
    let empty = empty_pool(POOL_BYTES, &options());
    let superblock = identify(&Region::from_image(&empty).unwrap()).unwrap();
    let image = crashed(&empty, |engine| {
        // Some records change the root directory, some do not.
        on_ring(0, || {
            let ino = make(engine, ROOT_INO, "a");
            write(engine, ino, 0, &pattern(4096, 1));
            write(engine, ino, 0, &pattern(4096, 2));
        });
        on_ring(1, || {
            make(engine, ROOT_INO, "b");
            chmod(engine, "b", 0o600);
        });
        on_ring(0, || {
            let ino = engine.lookup(SYSTEM, ROOT_INO, b"a").unwrap().ino;
            write(engine, ino, 100, b"a part");
            write(engine, ino, 4000, &pattern(200, 3));
            engine.unlink(SYSTEM, ROOT_INO, b"b").unwrap();
        });
        on_ring(1, || {
            make(engine, ROOT_INO, "c");
        });
    });
    let tree = capture(&mounted(&image));
    assert_eq!(tree.len(), 3, "{:?}", tree.keys());
    assert_eq!(findings(&image), Vec::<String>::new());
    (image, superblock, tree)
}

#[test]
fn no_flipped_bit_of_the_journal_loses_what_had_returned_in_silence() {
    let (image, superblock, tree) = sample();
    let mut flips = Vec::new();
    for ring in records(&image, &superblock) {
        assert!(ring.len() >= 3, "{ring:?}: too few records to mean anything");
        // A crash may have torn the newest of each ring, so its damage is undetectable.
        for place in &ring[..ring.len() - 1] {
            flips.extend((place.at * 8..(place.at + place.len) * 8).map(|bit| (bit / 8, bit % 8)));
        }
    }
    // A mount of each; fsck of some.
    let told = AtomicU64::new(0);
    two_at_a_time(&flips, |&(at, bit)| {
        let mut image = image.clone();
        image[at] ^= 1 << bit;
        let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet());
        // A pool whose root directory is among the losses is refused.
        let is_told = match &engine {
            Ok(engine) => {
                let found = engine.damage();
                assert_eq!(
                    !found.is_empty(),
                    engine.is_read_only(),
                    "byte {at}, bit {bit}: {found:?}"
                );
                engine.is_read_only()
            }
            Err(error) => error.to_string().contains("journal: record"),
        };
        let is_sampled = at % 37 == 0;
        if is_sampled {
            let found = findings(&image);
            assert_eq!(is_told, !found.is_empty(), "byte {at}, bit {bit}: fsck says {found:?}");
        }
        if !is_told {
            let engine = engine.unwrap();
            assert!(
                capture(&engine) == tree,
                "byte {at}, bit {bit}: something is lost in silence"
            );
        }
        told.fetch_add(is_told.into(), Ordering::Relaxed);
    });
    let told = told.into_inner();
    println!("{told} of {} flips are told", flips.len());
    assert_eq!(told, flips.len() as u64, "every bit of a record is under its checksum");
}

#[test]
fn a_lost_record_is_told_until_a_repair_accepts_it() {
    let (image, superblock, _) = sample();
    let first = records(&image, &superblock)[0][1];
    let recorder = {
        let mut image = image.clone();
        image[first.at + 20] ^= 4;
        Recorder::new(image)
    };
    let region = |image: &[u8]| {
        let mut region = Region::from_image(image).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        region
    };
    for _ in 0..3 {
        // A mount changes nothing that could mislead the next.
        let image = recorder.log().final_image();
        let engine = Engine::mount(region(&image), &quiet()).unwrap();
        let told = engine.damage().join("; ");
        assert!(told.contains("ring 0") && told.contains("lost"), "{told}");
        let refused = engine.mkdir(SYSTEM, ROOT_INO, b"new", 0o755);
        assert!(matches!(refused, Err(FsError::ReadOnly)), "{refused:?}");
        engine.unmount().unwrap();
        let image = recorder.log().final_image();
        assert!(findings(&image).iter().any(|what| what.contains("ring 0")));
    }
    let damaged = recorder.log().final_image();
    let (report, rewrite) = repair(Region::from_image(&damaged).unwrap(), &mut |_, _, _| {}).unwrap();
    let accepted = report.mended.iter().find(|mended| mended.phase == "journal").unwrap();
    assert!(accepted.loss && accepted.what.contains("lost"), "{accepted:?}");
    assert!(report.after.findings.is_empty(), "{:?}", report.after.findings);
    rewrite.apply(&region(&damaged)).unwrap();
    let repaired = recorder.log().final_image();
    assert_eq!(
        findings(&repaired),
        Vec::<String>::new(),
        "a second repair finds nothing"
    );
    let engine = mounted(&repaired);
    assert!(engine.damage().is_empty() && !engine.is_read_only());
    make(&engine, ROOT_INO, "new");
}

/// A record counts only with the data whose checksum it carries. Where a later one shows that it was durable, the data
/// is damaged.
#[test]
fn damaged_data_of_a_durable_record_is_told() {
    let empty = empty_pool(POOL_BYTES, &options());
    let mut at = 0;
    let image = crashed(&empty, |engine| {
        let ino = make(engine, ROOT_INO, "file");
        write(engine, ino, 0, &pattern(8192, 1));
        // One page shares the fence of its record.
        write(engine, ino, 0, &pattern(4096, 2));
        at = engine.dump(ino).unwrap()[0].block as usize * 4096;
        make(engine, ROOT_INO, "later");
    });
    assert_eq!(image[at..at + 4096], pattern(4096, 2));
    let mut damaged = image.clone();
    damaged[at + 1000] ^= 1;
    let engine = mounted(&damaged);
    assert!(
        engine.is_read_only() && engine.damage()[0].contains("covers"),
        "{:?}",
        engine.damage()
    );
    assert!(findings(&damaged)[0].contains("covers"));
    assert!(mounted(&image).damage().is_empty());
}

/// A ring that was idle while others advanced does not name a record that far back, and recovery does not ask for it.
#[test]
fn a_ring_that_rested_for_long_misses_nothing() {
    let empty = empty_pool(POOL_BYTES, &options());
    let image = crashed(&empty, |engine| {
        on_ring(0, || make(engine, ROOT_INO, "a"));
        on_ring(1, || {
            make(engine, ROOT_INO, "b");
            (0..70_000u32).for_each(|n| chmod(engine, "b", (n % 512) as u16));
        });
        on_ring(0, || make(engine, ROOT_INO, "c"));
        on_ring(0, || make(engine, ROOT_INO, "d"));
    });
    assert_eq!(findings(&image), Vec::<String>::new());
    let engine = mounted(&image);
    assert!(engine.damage().is_empty(), "{:?}", engine.damage());
    assert_eq!(capture(&engine).len(), 5);
}

/// Numbers end at the checkpoint's largest value: changes stop before that, with an error text, and nothing is lost.
#[test]
fn changes_stop_when_all_sequence_numbers_are_used_up() {
    const LAST: u64 = (1 << 48) - 1;
    let mut image = empty_pool(POOL_BYTES, &options());
    let checkpoint = encode_checkpoint(LAST - 10).to_le_bytes();
    image[CONTROL_CHECKPOINT as usize..][..8].copy_from_slice(&checkpoint);
    let mut made = 0;
    let image = crashed(&image, |engine| {
        let error = loop {
            let node = ferrite_vfs::NewNode {
                kind: ferrite_vfs::FileKind::File,
                mode: 0o644,
                rdev: 0,
            };
            let name = format!("file{made}");
            match engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node) {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("sequence numbers"), "{error}");
        assert!(engine.failed().unwrap().contains("sequence numbers"));
        let later = engine.mkdir(SYSTEM, ROOT_INO, b"later", 0o755);
        assert!(matches!(later, Err(FsError::ReadOnly)), "{later:?}");
        assert_eq!(capture(engine).len(), made + 1, "reads go on");
        assert!(engine.unmount().is_err(), "the pool is not said to be clean");
    });
    assert_eq!(made, 10);
    assert_eq!(findings(&image), Vec::<String>::new());
    let engine = mounted(&image);
    assert_eq!(capture(&engine).len(), made + 1);
    let file = engine.lookup(SYSTEM, ROOT_INO, b"file3").unwrap().ino;
    let refused = engine.open(SYSTEM, file, OpenMode::read_write()).err();
    assert_eq!(refused, Some(FsError::ReadOnly), "not one number is left");
}

/// With deferred write-back, a crash may leave any of the records since a sync. Later records distinguish one that a
/// sync had made durable from those.
#[test]
fn a_damaged_record_of_a_pool_with_deferred_write_back_is_told_from_one_that_a_crash_took() {
    let image = empty_pool(POOL_BYTES, &options());
    let deferred = quiet().durability(Durability::OnSync);
    let work = |syncs: &'static [usize]| {
        move |engine: &Engine| {
            for n in 0..6 {
                make(engine, ROOT_INO, &format!("file{n}"));
                if syncs.contains(&n) {
                    engine.sync(SYSTEM).unwrap();
                }
            }
        }
    };
    // All of them are in the file: a kill of the process takes nothing.
    let killed = |syncs| {
        let recorder = Recorder::new(image.clone());
        let mut region = Region::from_image(&image).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        let engine = Engine::mount(region, &deferred).unwrap();
        work(syncs)(&engine);
        recorder.log().final_image()
    };
    let damaged = |image: &[u8], nth: usize| {
        let superblock = identify(&Region::from_image(image).unwrap()).unwrap();
        let places = &records(image, &superblock)[0];
        assert!(places.len() >= 6, "{} records", places.len());
        let mut image = image.to_vec();
        image[places[nth].at + 20] ^= 1;
        image
    };
    let synced = killed(&[1, 3]);
    assert_eq!(findings(&synced), [""; 0]);
    for (nth, is_told) in [(0, true), (3, true), (4, false), (5, false)] {
        let image = damaged(&synced, nth);
        let found = findings(&image);
        assert_eq!(
            found.iter().any(|what| what.contains("were durable")),
            is_told,
            "record {nth}: {found:?}"
        );
        let engine = mounted(&image);
        for n in 0..6 {
            let there = engine.lookup(SYSTEM, ROOT_INO, format!("file{n}").as_bytes()).is_ok();
            assert_eq!(there, n < nth, "file {n} with record {nth} damaged");
        }
        assert_eq!(engine.info().damage.is_empty(), !is_told, "{:?}", engine.info().damage);
    }
    // The next mount, in any mode, finds the same.
    let recorder = Recorder::new(damaged(&synced, 0));
    for _ in 0..2 {
        let mut region = Region::from_image(&recorder.log().final_image()).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        drop(Engine::mount(region, &quiet()).unwrap());
        let found = findings(&recorder.log().final_image());
        assert!(found.iter().any(|what| what.contains("were durable")), "{found:?}");
    }
    // No sync was requested, so no lost operation was promised.
    let unsynced = killed(&[]);
    for nth in 0..6 {
        assert_eq!(findings(&damaged(&unsynced, nth)), [""; 0], "record {nth}");
    }
    // The crash may take anything after the last sync, and that is no damage.
    assert_eq!(findings(&crashed_in(&deferred, &image, work(&[2]))), [""; 0]);
}

//! Growth keeps everything, gives the space, and is one step for a crash.

use std::sync::Arc;

use ferrite_measure::Rng;
use ferrite_pm::{Choice, Event, Image, Log, Recorder, Region, Step};
use ferrite_vfs::{FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, SYSTEM, XattrMode};

use super::*;
use crate::{Finding, MkfsOptions, fsck, mkfs};

const MIB: u64 = 1 << 20;
const SMALL_BYTES: u64 = 8 * MIB;
const GROWN_BYTES: u64 = 24 * MIB;
const PAGE: usize = 4096;

/// A file of the pool: its directory, name and content.
struct Known {
    dir: Ino,
    name: String,
    content: Vec<u8>,
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).merge_read_entries(0)
}

fn make(engine: &Engine, dir: Ino, name: &str) -> Ino {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    engine.mknod(SYSTEM, dir, name.as_bytes(), &node).unwrap().ino
}

/// Files in directories, some with logs, holes, attributes, or only a few bytes.
fn fill(engine: &Engine) -> Vec<Known> {
    let mut rng = Rng::new(17);
    let mut known = Vec::new();
    for number in 0..6 {
        let dir = engine
            .mkdir(SYSTEM, ROOT_INO, format!("dir-{number}").as_bytes(), 0o755)
            .unwrap()
            .ino;
        for number in 0..12u64 {
            let name = format!("file-{number}");
            let ino = make(engine, dir, &name);
            let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            let mut content: Vec<u8> = (0..rng.below(8 * PAGE as u64)).map(|_| rng.below(256) as u8).collect();
            file.write_at(SYSTEM, 0, &content).unwrap();
            if content.len() > PAGE {
                let at = rng.below(content.len() as u64 - 100) as usize;
                file.write_at(SYSTEM, at as u64, &[number as u8; 90]).unwrap();
                content[at..at + 90].fill(number as u8);
            }
            if number == 3 {
                let end = 40 * PAGE;
                file.write_at(SYSTEM, end as u64, b"behind a hole").unwrap();
                content.resize(end, 0);
                content.extend(b"behind a hole");
            }
            if number == 4 {
                engine
                    .setxattr(SYSTEM, ino, b"user.key", b"value", XattrMode::Any)
                    .unwrap();
            }
            known.push(Known { dir, name, content });
        }
    }
    known
}

fn check_files(engine: &Engine, known: &[Known]) {
    for Known { dir, name, content } in known {
        let ino = engine.lookup(SYSTEM, *dir, name.as_bytes()).unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
        let mut found = vec![0; content.len() + 1];
        assert_eq!(file.read_at(SYSTEM, 0, &mut found).unwrap(), content.len(), "{name}");
        assert!(found[..content.len()] == content[..], "{name}");
        if name == "file-4" {
            assert_eq!(engine.getxattr(SYSTEM, ino, b"user.key").unwrap(), b"value");
        }
    }
}

fn check_pool(region: Region) {
    let report = fsck(region, &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// The bytes of a small pool with files, and what they are; the file that holds it is `bytes` long.
fn small_pool(mapping: Mapping, data_checksum: bool, bytes: u64) -> (Vec<u8>, Vec<Known>) {
    let region = Region::anonymous(SMALL_BYTES).unwrap();
    let options = MkfsOptions::default()
        .mapping(mapping)
        .data_checksum(data_checksum)
        .seed(5)
        .rings(2);
    mkfs(&region, &options).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    let known = fill(&engine);
    engine.unmount().unwrap();
    let mut image = vec![0; SMALL_BYTES as usize];
    engine.core().region.read(0, &mut image);
    // A device may hold anything there.
    image.resize(bytes as usize, 0xa5);
    (image, known)
}

fn grow_image(image: &[u8], size_bytes: u64) -> (Vec<u8>, Superblock) {
    let mut longer = image.to_vec();
    longer.resize(size_bytes as usize, 0xa5);
    let image = &longer;
    let region = Arc::new(Region::from_image(image).unwrap());
    let new = grow_in(&region, size_bytes, &mut |_, _, _| {}).unwrap();
    let mut grown = vec![0; image.len()];
    region.read(0, &mut grown);
    (grown, new)
}

fn variants() -> impl Iterator<Item = (Mapping, bool)> {
    Mapping::ALL
        .iter()
        .flat_map(|&mapping| [(mapping, false), (mapping, true)])
}

/// Twice, so that the tables of a grown pool grow as well.
#[test]
fn a_pool_that_grows_keeps_all_files_and_has_more_space() {
    for (mapping, data_checksum) in variants() {
        let (mut image, known) = small_pool(mapping, data_checksum, SMALL_BYTES);
        let before = Superblock::find(&Region::from_image(&image).unwrap()).unwrap();
        for size_bytes in [GROWN_BYTES, 3 * GROWN_BYTES] {
            let (grown, new) = grow_image(&image, size_bytes);
            assert_eq!(
                (new.size_bytes, new.first_block, new.uuid),
                (size_bytes, before.first_block, before.uuid)
            );
            assert!(new.inodes >= before.inodes * size_bytes / SMALL_BYTES, "{mapping}");
            assert!(
                new.blocks * 4096 > size_bytes * 8 / 10,
                "{mapping}: {} blocks",
                new.blocks
            );
            check_pool(Region::from_image(&grown).unwrap());
            let engine = Engine::mount(Region::from_image(&grown).unwrap(), &quiet()).unwrap();
            assert!(engine.damage().is_empty(), "{:#?}", engine.damage());
            check_files(&engine, &known);
            // All of the new space can be used, and all of it comes back.
            let ino = make(&engine, ROOT_INO, "large");
            let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            let mut at = 0;
            while file.write_at(SYSTEM, at, &[7; 64 * PAGE]).is_ok() {
                at += 64 * PAGE as u64;
            }
            assert!(at > size_bytes * 6 / 10, "{mapping}: only {at} bytes");
            check_files(&engine, &known);
            drop(file);
            engine.unlink(SYSTEM, ROOT_INO, b"large").unwrap();
            engine.unmount().unwrap();
            image = vec![0; size_bytes as usize];
            engine.core().region.read(0, &mut image);
            check_pool(Region::from_image(&image).unwrap());
        }
    }
}

/// Crashes at each fence, with any of the stores in flight, in pools that grow for the first and for the second time:
/// what is left is the old pool or the new one, with all files.
#[test]
fn growth_is_one_step_for_a_crash() {
    for (mapping, data_checksum) in variants() {
        for grown_before in [false, true] {
            let (mut image, known) = small_pool(mapping, data_checksum, SMALL_BYTES);
            let mut size_bytes = GROWN_BYTES;
            if grown_before {
                image = grow_image(&image, size_bytes).0;
                size_bytes *= 2;
            }
            image.resize(size_bytes as usize, 0xa5);
            let recorder = Recorder::new(image.clone());
            let mut region = Region::from_image(&image).unwrap();
            region.attach_recorder(Arc::clone(&recorder));
            grow_in(&Arc::new(region), size_bytes, &mut |_, _, _| {}).unwrap();
            let log = recorder.log();
            let (mut cursor, mut sizes) = (log.cursor(), Vec::new());
            loop {
                let choices = [Choice::None, Choice::All]
                    .into_iter()
                    .chain((0..3).map(Choice::Random));
                let point = cursor.point();
                for choice in choices {
                    sizes.push(cursor.with_image(choice, |image| {
                        if point > 0 && matches!(choice, Choice::None | Choice::All) {
                            check_without_first(image, &known);
                        }
                        check_crashed(image, &known)
                    }));
                }
                if !cursor.advance() {
                    break;
                }
            }
            assert!(sizes.is_sorted(), "the larger pool became smaller again: {sizes:?}");
            assert_eq!(sizes.last(), Some(&size_bytes));
            assert_ne!(sizes.first(), Some(&size_bytes));
        }
    }
}

/// A growth that forgets its fences, or to write its words back, loses a pool, and the check above sees that. (One
/// forgotten fence alone does harm only if the first superblock is lost as well.)
#[test]
fn growth_with_a_mistake_is_found() {
    let forgets_fences = |step: &Step<'_>| matches!(step.event(), Event::Fence);
    let forgets_words = |step: &Step<'_>| matches!(step.event(), Event::WriteBack { .. });
    for mapping in [Mapping::Hashfs, Mapping::Radix] {
        let (image, known) = small_pool(mapping, false, GROWN_BYTES);
        let recorder = Recorder::new(image.clone());
        let mut region = Region::from_image(&image).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        grow_in(&Arc::new(region), GROWN_BYTES, &mut |_, _, _| {}).unwrap();
        let log = recorder.log();
        assert!(!is_harmed(&log, &known), "{mapping}: without a mistake");
        assert!(is_harmed(&log.without(forgets_fences), &known), "{mapping}: fences");
        assert!(is_harmed(&log.without(forgets_words), &known), "{mapping}: write-backs");
    }
}

/// Whether a crash can leave an unsound pool, or one without a file.
fn is_harmed(log: &Log, known: &[Known]) -> bool {
    let mut cursor = log.cursor();
    loop {
        let choices = [Choice::None, Choice::All]
            .into_iter()
            .chain((0..8).map(Choice::Random));
        for choice in choices {
            if cursor.with_image(choice, |image| sound_size(image, known)).is_err() {
                return true;
            }
        }
        if !cursor.advance() {
            return false;
        }
    }
}

/// Returns the size of the pool that a crash has left, which is sound.
fn check_crashed(image: &Image, known: &[Known]) -> u64 {
    sound_size(image, known).unwrap()
}

/// The same, or the damage.
fn sound_size(image: &Image, known: &[Known]) -> Result<u64, String> {
    let region = Region::of_image(image).map_err(|error| error.to_string())?;
    let size_bytes = Superblock::find(&region).map_err(|error| error.to_string())?.size_bytes;
    let report = fsck(region, &mut |_, _, _| {}).map_err(|error| error.to_string())?;
    let is_torn = |what: &str| what.contains("superblock");
    let is_harm = |finding: &&Finding| !is_torn(&finding.what) && finding.phase != "superblock";
    if let Some(finding) = report.findings.iter().find(is_harm) {
        return Err(finding.what.clone());
    }
    let engine = Engine::mount(Region::of_image(image).unwrap(), &quiet()).map_err(|error| error.to_string())?;
    check_files(&engine, known);
    Ok(size_bytes)
}

/// The same pool is found by the last block of the region if the first is damaged.
fn check_without_first(image: &Image, known: &[Known]) {
    let mut damaged = image.to_vec();
    damaged[..PAGE].fill(0);
    let engine = Engine::mount(Region::from_image(&damaged).unwrap(), &quiet()).unwrap();
    check_files(&engine, known);
}

#[test]
fn growth_that_cannot_be_is_refused_before_anything_changes() {
    let (image, _) = small_pool(Mapping::Hashfs, false, GROWN_BYTES);
    let refused = |size_bytes: u64, what: &str| {
        let region = Arc::new(Region::from_image(&image).unwrap());
        let error = grow_in(&region, size_bytes, &mut |_, _, _| {}).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        let mut after = vec![0; image.len()];
        region.read(0, &mut after);
        assert!(after == image, "something changed");
    };
    refused(4 * MIB, "cannot become smaller");
    refused(SMALL_BYTES, "already has");
    refused(SMALL_BYTES + 8192, "give it at least");
    refused(300 << 30, "--log-unit 64");
    refused(20 << 40, "at most 16 TiB");
    // Its second superblock would not be found.
    refused(GROWN_BYTES - 2 * MIB, "uses all of it");
    let region = Region::from_image(&image).unwrap();
    let mounted = Engine::mount(region, &quiet()).unwrap();
    let region = Arc::clone(&mounted.core().region);
    let error = grow_in(&region, GROWN_BYTES, &mut |_, _, _| {}).unwrap_err();
    assert!(error.to_string().contains("mounted"), "{error}");
    assert!(matches!(
        mounted.lookup(SYSTEM, ROOT_INO, b"none"),
        Err(FsError::NotFound)
    ));
}

//! Thousands of damaged pools: nothing panics, a repaired pool is sound, and no file that was not hit is harmed.
//!
//! `FERRITE_SEED` replays one image; `FERRITE_SOAK=1` tries ten thousand.

mod crafted;
mod far_keys;
mod lost_names;
mod wiped;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ferrite_pm::{Choice, Image, Recorder, Region};
use ferrite_vfs::{FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, SYSTEM, XattrMode};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::format::dentry;
use crate::format::inode::{Inode, ROOT};
use crate::format::layout::{BLOCK_BYTES, INODE_BYTES, Superblock};
use crate::page::scan;
use crate::space::names::NameTable;
use crate::{Engine, MkfsOptions, MountOptions, fsck, mkfs, repair};
use ferrite_map::PageId;
use ferrite_map::{BlockNo, Inum, MapEntry, Mapping};

const POOL_BYTES: u64 = 8 << 20;
/// The content of files that are made in a damaged pool; no other file has this many such bytes in a row.
const NEW: u8 = 0xee;

fn image_of(region: &Region) -> Vec<u8> {
    let mut image = vec![0; region.len() as usize];
    region.read(0, &mut image);
    image
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).merge_read_entries(0)
}

/// Which pool is damaged.
#[derive(Debug, Clone, Copy)]
struct Variant {
    mapping: Mapping,
    data_checksum: bool,
}

const PLAIN: [Variant; Mapping::ALL.len()] = variants(false);
const SUMMED: [Variant; Mapping::ALL.len()] = variants(true);

const fn variants(data_checksum: bool) -> [Variant; Mapping::ALL.len()] {
    let mapping = Mapping::ALL[0];
    let mut variants = [Variant { mapping, data_checksum }; Mapping::ALL.len()];
    let mut index = 0;
    while index < Mapping::ALL.len() {
        variants[index].mapping = Mapping::ALL[index];
        index += 1;
    }
    variants
}

/// A pool with some of everything.
fn sample(variant: Variant) -> Vec<u8> {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let options = MkfsOptions::default()
        .mapping(variant.mapping)
        .data_checksum(variant.data_checksum)
        .inodes(255)
        .rings(2)
        .seed(7);
    mkfs(&region, &options).unwrap();
    let initial = image_of(&region);
    let recorder = Recorder::new(initial.clone());
    let mut region = Region::from_image(&initial).unwrap();
    region.attach_recorder(std::sync::Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let mut dirs = vec![ROOT_INO];
    for n in 0..8u64 {
        let parent = dirs[(n / 2) as usize];
        dirs.push(
            engine
                .mkdir(SYSTEM, parent, format!("dir{n}").as_bytes(), 0o755)
                .unwrap()
                .ino,
        );
    }
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    for n in 0..60u64 {
        let dir = dirs[n as usize % dirs.len()];
        let name = format!("file-{n}-{}", "x".repeat(n as usize % 40));
        let ino = engine.mknod(SYSTEM, dir, name.as_bytes(), &node).unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        let len = match n % 5 {
            0 => 40,
            1 => 5000,
            2 => 20_000,
            3 => 4096 * 7,
            _ => 12_345,
        };
        let data: Vec<u8> = (0..len).map(|at: u64| (at * 7 + at / 251 + n * 13) as u8).collect();
        file.write_at(SYSTEM, 0, &data).unwrap();
        if n % 5 > 0 && n % 2 == 0 {
            for part in 0..n % 7 {
                file.write_at(SYSTEM, 100 + part * 611, format!("part {part} of {n}").as_bytes())
                    .unwrap();
            }
        }
        if n % 6 == 0 {
            engine
                .setxattr(SYSTEM, ino, b"user.test", &data[..30], XattrMode::Any)
                .unwrap();
        }
        if n % 9 == 0 {
            engine
                .link(SYSTEM, ino, ROOT_INO, format!("other-name-{n}").as_bytes())
                .unwrap();
        }
    }
    engine.symlink(SYSTEM, ROOT_INO, b"short", b"dir0/dir2").unwrap();
    engine.symlink(SYSTEM, ROOT_INO, b"long", &[b'l'; 2000]).unwrap();
    engine.unmount().unwrap();
    recorder.log().final_image()
}

/// The ranges that a file depends on, and its content.
struct Known {
    path: String,
    content: Vec<u8>,
    /// Inode, keys, words, logs and data.
    own: Vec<Range<u64>>,
    /// Entries and slots of this name, and everything that the directories above need.
    names: Vec<Range<u64>>,
}

/// Where the pool keeps its structures, by kind, so that damage meets all of them.
struct Anatomy {
    files: Vec<Known>,
    metadata: Vec<Vec<Range<u64>>>,
    /// The inode table.
    inodes: Range<u64>,
}

/// Where a mapping keeps a page, within its own area.
fn places(superblock: &Superblock, entry: &MapEntry) -> Vec<Range<u64>> {
    let (area, slot) = (superblock.map_offset, u64::from(entry.slot));
    let within = |start: u64, len: u64| start..start + len;
    match superblock.mapping {
        Mapping::Hashfs => {
            let key = area + slot / 8 * 128 + slot % 8 * 8;
            vec![within(key, 8), within(key + 64, 8)]
        }
        // Key, word and range in a bucket of 128 bytes; a line after the control block; the root of the file's tree.
        Mapping::Cuckoo => {
            let key = area + slot / 8 * 128 + slot % 8 * 8;
            vec![within(key, 8), within(key + 40, 8), within(key + 80, 8)]
        }
        Mapping::Leaf => vec![within(area + 4096 + slot / 8 * 64, 64)],
        Mapping::Radix | Mapping::Extent => vec![within(area + u64::from(entry.ino) * 8, 8)],
    }
}

fn anatomy(image: &[u8]) -> Anatomy {
    let region = std::sync::Arc::new(Region::from_image(image).unwrap());
    let superblock = Superblock::find(&region).unwrap();
    let map = superblock
        .mapping
        .open(std::sync::Arc::clone(&region), superblock.map_geometry());
    map.load(1, &|_| {}).unwrap();
    let names = NameTable::new(std::sync::Arc::clone(&region), &superblock);
    names.load();
    let mut slots = BTreeMap::new();
    names.for_each(&mut |slot, target| {
        slots.insert(target.unwrap(), superblock.name_offset + u64::from(slot) * 8);
    });
    let engine = Engine::mount(Region::from_image(image).unwrap(), &quiet()).unwrap();
    let mut own: BTreeMap<Inum, Vec<Range<u64>>> = BTreeMap::new();
    let (mut logs, mut dir_blocks, mut xattrs) = (Vec::new(), Vec::new(), Vec::new());
    for ino in superblock.all_inums() {
        let offset = superblock.inode_offset(ino);
        let inode = Inode::load(&region, offset);
        if inode.in_use() {
            own.entry(ino).or_default().push(offset..offset + INODE_BYTES);
            if inode.xattr_block() != BlockNo::NONE {
                let at = superblock.block_offset(inode.xattr_block());
                xattrs.push(at..at + 256);
            }
        }
    }
    let mut nodes = Vec::new();
    map.for_each_node(&mut |node, ino| {
        let block = superblock.block_offset(node);
        nodes.push(block..block + BLOCK_BYTES);
        own.get_mut(&ino).unwrap().push(block..block + BLOCK_BYTES);
    });
    map.for_each(&mut |entry| {
        let ranges = own.get_mut(&entry.ino).unwrap();
        ranges.extend(places(&superblock, &entry));
        let block = superblock.block_offset(superblock.page(entry.word));
        ranges.push(block..block + BLOCK_BYTES);
        ranges.extend(
            superblock
                .sum_word_offset(superblock.page(entry.word))
                .map(|at| at..at + 8),
        );
        if Inode::load(&region, superblock.inode_offset(entry.ino)).is_dir() {
            dir_blocks.push(block..block + BLOCK_BYTES);
        }
        if entry.word.has_log() {
            let page = PageId::new(entry.ino, entry.lblk);
            scan::entries((&region, &superblock), page, entry.word, &mut |found| {
                let unit = found.segment().header.offset();
                let segment = unit..unit + u64::from(found.segment().units) * superblock.unit_size.bytes();
                if !logs.contains(&segment) {
                    logs.push(segment.clone());
                    ranges.push(segment);
                }
                Ok(true)
            })
            .unwrap();
        }
        true
    });
    let mut files = Vec::new();
    let mut pending = vec![(ROOT_INO, String::new(), own[&ROOT].clone())];
    while let Some((dir, path, above)) = pending.pop() {
        let mut children = Vec::new();
        engine
            .readdir(SYSTEM, dir, 0, &mut |entry| {
                children.push((entry.name.to_vec(), entry.ino, entry.kind));
                true
            })
            .unwrap();
        for (name, ino, kind) in children {
            let found = names.find(&names.key(Inum::new(dir as u32), &name)).unwrap().unwrap();
            let mut chain = above.clone();
            chain.push(found.entry_offset..found.entry_offset + dentry::entry_bytes(&name));
            chain.push(slots[&found.entry_offset]..slots[&found.entry_offset] + 8);
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            match kind {
                FileKind::Directory => {
                    chain.extend(own[&Inum::new(ino as u32)].iter().cloned());
                    pending.push((ino, path, chain));
                }
                FileKind::File => files.push(Known {
                    path,
                    content: read(&engine, ino).unwrap(),
                    own: own[&Inum::new(ino as u32)].clone(),
                    names: chain,
                }),
                _ => {}
            }
        }
    }
    let area = |from: u64, to: u64| std::iter::once(from..to).collect::<Vec<_>>();
    let journal = superblock.journal_offset;
    let map_end = match superblock.sum_offset {
        0 => superblock.first_block * BLOCK_BYTES,
        sums => sums,
    };
    let mut metadata = vec![
        area(0, 256),
        area(4096, 4096 + 256),
        area(journal, journal + 8192),
        own.values().map(|ranges| ranges[0].clone()).collect(),
        area(superblock.inode_offset, superblock.name_offset),
        slots.values().map(|&at| at..at + 8).collect(),
        area(superblock.name_offset, superblock.map_offset),
        area(superblock.map_offset, map_end),
        area(superblock.map_offset, map_end),
        dir_blocks,
        logs,
        xattrs,
    ];
    if !nodes.is_empty() {
        metadata.extend([nodes.clone(), nodes]);
    }
    if superblock.has_data_checksums() {
        metadata.push(area(superblock.sum_offset, superblock.first_block * BLOCK_BYTES));
    }
    Anatomy {
        files,
        metadata,
        inodes: superblock.inode_offset..superblock.name_offset,
    }
}

fn read(engine: &Engine, ino: Ino) -> ferrite_vfs::Result<Vec<u8>> {
    let mut content = vec![0; engine.getattr(SYSTEM, ino)?.size.min(1 << 20) as usize];
    let mode = OpenMode {
        no_atime: true,
        ..OpenMode::read_only()
    };
    let len = engine.open(SYSTEM, ino, mode)?.read_at(SYSTEM, 0, &mut content)?;
    content.truncate(len);
    Ok(content)
}

/// Changes 1 to 64 bytes, words, lines or whole inodes; returns what was hit.
fn damage(image: &mut [u8], anatomy: &Anatomy, rng: &mut StdRng) -> Vec<Range<u64>> {
    let metadata = &anatomy.metadata;
    let times = if rng.random_bool(0.5) {
        1
    } else {
        rng.random_range(1..=64)
    };
    let mut hit = Vec::new();
    for _ in 0..times {
        let kind = &metadata[rng.random_range(0..metadata.len())];
        let range = &kind[rng.random_range(0..kind.len())];
        let at = rng.random_range(range.clone());
        let target = match rng.random_range(0..5) {
            4 if anatomy.inodes.contains(&at) => at / INODE_BYTES * INODE_BYTES..(at / INODE_BYTES + 1) * INODE_BYTES,
            0 => at / 64 * 64..at / 64 * 64 + 64,
            1 => at / 8 * 8..at / 8 * 8 + 8,
            _ => at..at + 1,
        };
        let how = rng.random_range(0..3);
        for byte in &mut image[target.start as usize..target.end as usize] {
            match how {
                0 => *byte = 0,
                1 => *byte ^= 1 << rng.random_range(0..8),
                _ => *byte = rng.next_u64() as u8,
            }
        }
        hit.push(target);
    }
    hit
}

fn overlaps(hit: &[Range<u64>], ranges: &[Range<u64>]) -> bool {
    hit.iter().any(|hit| {
        ranges
            .iter()
            .any(|range| hit.start < range.end && range.start < hit.end)
    })
}

type Contents = (BTreeMap<String, Vec<u8>>, BTreeSet<Vec<u8>>);

/// Contents of all regular files of a tree: by path, and all of them. Where data carries checksums a file may be
/// unreadable, and is left out.
fn walk(engine: &Engine) -> ferrite_vfs::Result<Contents> {
    let (mut paths, mut contents) = (BTreeMap::new(), BTreeSet::new());
    let mut pending = vec![(ROOT_INO, String::new())];
    let summed = engine.core().superblock.has_data_checksums();
    while let Some((dir, path)) = pending.pop() {
        let mut children = Vec::new();
        engine.readdir(SYSTEM, dir, 0, &mut |entry| {
            children.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        })?;
        for (name, ino, kind) in children {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            engine.lookup(SYSTEM, dir, &name)?;
            match kind {
                FileKind::Directory => pending.push((ino, path)),
                FileKind::File => {
                    let content = match read(engine, ino) {
                        Err(FsError::Damaged(_)) if summed => continue,
                        other => other?,
                    };
                    contents.insert(content.clone());
                    paths.insert(path, content);
                }
                FileKind::Symlink => match engine.readlink(SYSTEM, ino) {
                    Err(FsError::Damaged(_)) if summed => {}
                    other => drop(other?),
                },
                _ => {}
            }
        }
    }
    Ok((paths, contents))
}

fn by_path(engine: &Engine, path: &str) -> ferrite_vfs::Result<Vec<u8>> {
    let names = path.split('/').skip(1);
    let ino = names.into_iter().try_fold(ROOT_INO, |dir, name| {
        engine.lookup(SYSTEM, dir, name.as_bytes()).map(|attr| attr.ino)
    });
    read(engine, ino?)
}

/// The content, by path, of each file that was not hit, nor its names; `None` for those whose reads fail.
fn unhit<'a>(engine: &Engine, anatomy: &'a Anatomy, hit: &[Range<u64>]) -> Result<Vec<Option<&'a Known>>, String> {
    let mut files = Vec::new();
    for file in &anatomy.files {
        if overlaps(hit, &file.own) || overlaps(hit, &file.names) {
            continue;
        }
        files.push(match by_path(engine, &file.path) {
            Ok(content) if content != file.content => return Err(format!("{} is not what it was", file.path)),
            Ok(_) => Some(file),
            Err(FsError::Damaged(_)) => None,
            Err(error) => return Err(format!("{}: {error}", file.path)),
        });
    }
    Ok(files)
}

/// Mounts a damaged image without repair: no file that was not hit is wrong, none is harmed by writes meanwhile, and no
/// name, hit or not, leads to a file that was made meanwhile.
fn mounted(image: &Image, anatomy: &Anatomy, hit: &[Range<u64>]) -> Result<(), String> {
    let recorder = Recorder::new(image.clone());
    let mut region = Region::of_image(image).unwrap();
    region.attach_recorder(std::sync::Arc::clone(&recorder));
    let options = quiet()
        // A damaged mark of the boot must not stop the test.
        .accept_power_loss(true);
    let Ok(engine) = Engine::mount(region, &options) else {
        return Ok(());
    };
    let _ = walk(&engine);
    let before = unhit(&engine, anatomy, hit)?;
    if engine.is_read_only() {
        return Ok(());
    }
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    for n in 0..100 {
        let made = engine.mknod(SYSTEM, ROOT_INO, format!("new-{n}").as_bytes(), &node);
        let written = made.and_then(|attr| {
            let file = engine.open(SYSTEM, attr.ino, OpenMode::read_write())?;
            file.write_at(SYSTEM, 0, &[NEW; 40_000])?;
            file.write_at(SYSTEM, 77, &[0xdd; 100])
        });
        if written.is_err() {
            break;
        }
    }
    let _ = engine.unmount();
    let after = Region::from_image(&recorder.log().final_image()).unwrap();
    let engine = Engine::mount(after, &options).map_err(|error| format!("not a second time: {error}"))?;
    for Known { path, .. } in &anatomy.files {
        if by_path(&engine, path).is_ok_and(|content| content.starts_with(&[NEW; 64])) {
            return Err(format!("{path} leads to a new file"));
        }
    }
    let after = unhit(&engine, anatomy, hit)?;
    let lost = before
        .iter()
        .zip(&after)
        .find(|(before, after)| before.is_some() && after.is_none());
    match lost {
        Some((Some(file), _)) => Err(format!("{} was lost by writing elsewhere", file.path)),
        _ => Ok(()),
    }
}

/// Repairs a damaged image and checks the result.
fn try_one(image: &Image, anatomy: &Anatomy, hit: &[Range<u64>], crash: bool) -> Result<(), String> {
    let open = |image: &Image| Region::of_image(image).unwrap();
    // Whatever it finds, it must return.
    let _ = fsck(open(image), &mut |_, _, _| {});
    mounted(image, anatomy, hit).map_err(|what| format!("mounted as it is: {what}"))?;
    let (report, rewrite) = match repair(open(image), &mut |_, _, _| {}) {
        Ok(repaired) => repaired,
        Err(error) => {
            // Both copies of the superblock were hit: a repair has nothing to start from.
            let lost = Superblock::find(&open(image)).is_err();
            return if lost {
                Ok(())
            } else {
                Err(format!("repair gave up: {error}"))
            };
        }
    };
    if !report.after.findings.is_empty() {
        return Err(format!("left: {:?}\ndone: {:#?}", report.after.findings, report.mended));
    }
    let recorder = Recorder::new(image.clone());
    let mut region = open(image);
    region.attach_recorder(std::sync::Arc::clone(&recorder));
    rewrite.apply(&region).map_err(|error| format!("applying: {error}"))?;
    let log = recorder.log();
    let repaired = log.final_image().into();
    sound(&repaired, anatomy, hit).map_err(|what| format!("{what}\ndone: {:#?}", report.mended))?;
    if crash {
        let mut cursor = log.cursor();
        loop {
            for choice in [Choice::None, Choice::All, Choice::Random(1), Choice::Random(2)] {
                cursor.with_image(choice, |image| -> Result<(), String> {
                    let (report, rewrite) =
                        repair(open(image), &mut |_, _, _| {}).map_err(|error| error.to_string())?;
                    if !report.after.findings.is_empty() {
                        return Err(format!("crashed while it repaired; left: {:?}", report.after.findings));
                    }
                    let region = open(image);
                    rewrite.apply(&region).map_err(|error| error.to_string())?;
                    sound(&image_of(&region).into(), anatomy, hit)
                        .map_err(|what| format!("crashed while it repaired: {what}"))
                })?;
            }
            if !cursor.advance() {
                break;
            }
        }
    }
    Ok(())
}

/// A repaired image: sound, idempotent, and with all files that were not hit.
fn sound(image: &Image, anatomy: &Anatomy, hit: &[Range<u64>]) -> Result<(), String> {
    let open = |image: &Image| Region::of_image(image).unwrap();
    let report = fsck(open(image), &mut |_, _, _| {}).map_err(|error| error.to_string())?;
    if !report.findings.is_empty() {
        return Err(format!("not sound: {:?}", report.findings));
    }
    let (again, _) = repair(open(image), &mut |_, _, _| {}).map_err(|error| error.to_string())?;
    if !again.mended.is_empty() {
        return Err(format!("a second repair does something: {:?}", again.mended));
    }
    let engine = Engine::mount(open(image), &quiet()).map_err(|error| format!("does not mount: {error}"))?;
    let (paths, contents) = walk(&engine).map_err(|error| format!("cannot be read: {error}"))?;
    for file in &anatomy.files {
        if overlaps(hit, &file.own) {
            continue;
        }
        if !contents.contains(&file.content) {
            return Err(format!("{} was not hit, and is not whole anywhere", file.path));
        }
        if !overlaps(hit, &file.names) && paths.get(&file.path) != Some(&file.content) {
            return Err(format!(
                "{} was not hit, nor its names, and is not in its place",
                file.path
            ));
        }
    }
    Ok(())
}

#[test]
fn damaged_pools_are_repaired_and_nothing_else_is_harmed() {
    for variant in PLAIN {
        repair_damaged_pools(variant, Tries::new(1_000, 200), Tries::new(10_000, 3_000));
    }
}

/// The same where data carries checksums: reads verify data, so a mistake of the repair shows as an error.
#[test]
fn damaged_pools_with_data_checksums_are_repaired_and_nothing_else_is_harmed() {
    for variant in SUMMED {
        repair_damaged_pools(variant, Tries::new(200, 60), Tries::new(3_000, 1_000));
    }
}

/// One try takes a fraction of a second, or a few seconds where it is crashed at each fence.
const HANGS: Duration = Duration::from_secs(300);

/// The reports of the trying threads: a seed was begun, or ended.
type Told = (u64, Option<Result<(), String>>);

/// Numbers of images to try.
#[derive(Clone, Copy)]
struct Tries {
    /// Of pools with HashFS.
    hashfs: u64,
    /// Of pools with another mapping.
    other: u64,
}

impl Tries {
    fn new(hashfs: u64, other: u64) -> Tries {
        Tries { hashfs, other }
    }
}

/// Tries the number of images in `quick`, or in `soak`.
fn repair_damaged_pools(variant: Variant, quick: Tries, soak: Tries) {
    let started = Instant::now();
    let image = sample(variant);
    let anatomy = anatomy(&image);
    sound(&Image::from(&image[..]), &anatomy, &[]).unwrap();
    let is_set = |name| std::env::var_os(name).is_some();
    let count = match () {
        () if is_set("FERRITE_SOAK") => soak,
        () if is_set("FERRITE_SHORT") => Tries::new(quick.hashfs / 10, quick.other / 10),
        () => quick,
    };
    let seeds: Vec<u64> = match std::env::var("FERRITE_SEED") {
        Ok(seed) => vec![seed.parse().expect("FERRITE_SEED is a number")],
        Err(_) if variant.mapping == Mapping::default() => (0..count.hashfs).collect(),
        Err(_) => (0..count.other).collect(),
    };
    let shared = Arc::new((image, anatomy, seeds, AtomicUsize::new(0)));
    let (tell, told) = mpsc::channel::<Told>();
    let threads = [tell.clone(), tell].map(|tell| {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || {
            let (image, anatomy, seeds, next) = &*shared;
            while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                let _ = tell.send((seed, None));
                let mut rng = StdRng::seed_from_u64(seed);
                let mut image = image.clone();
                let hit = damage(&mut image, anatomy, &mut rng);
                let tried = try_one(&image.into(), anatomy, &hit, seed % 50 == 0);
                let _ = tell.send((seed, Some(tried.map_err(|what| format!("hit {hit:?}:\n{what}")))));
            }
        })
    });
    let mut running = BTreeSet::new();
    loop {
        match told.recv_timeout(HANGS) {
            Ok((seed, None)) => drop(running.insert(seed)),
            Ok((seed, Some(Ok(())))) => drop(running.remove(&seed)),
            Ok((seed, Some(Err(what)))) => panic!("{variant:?}: replay with FERRITE_SEED={seed}; {what}"),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!(
                    "{variant:?}: no end after {} s: FERRITE_SEED of {running:?}",
                    HANGS.as_secs()
                )
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    assert!(running.is_empty(), "{variant:?}: a panic: FERRITE_SEED of {running:?}");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    println!("{variant:?}: {:.1} s", started.elapsed().as_secs_f64());
}

/// Only the files of a directory are left: each gets a name again, and the time grows only with their number.
#[test]
fn the_files_of_a_ruined_directory_are_all_found() {
    const FILES: usize = 20_000;
    let region = Region::anonymous(64 << 20).unwrap();
    let options = MkfsOptions::default().inodes(FILES as u64 + 100);
    mkfs(&region, &options).unwrap();
    let superblock = Superblock::find(&region).unwrap();
    let initial = image_of(&region);
    let recorder = Recorder::new(initial.clone());
    let mut region = Region::from_image(&initial).unwrap();
    region.attach_recorder(std::sync::Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let dir = engine.mkdir(SYSTEM, ROOT_INO, b"big", 0o755).unwrap().ino;
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    for n in 0..FILES {
        let ino = engine.mknod(SYSTEM, dir, format!("{n}").as_bytes(), &node).unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, format!("content of {n}").as_bytes()).unwrap();
    }
    engine.unmount().unwrap();
    let mut image = recorder.log().final_image();
    let region = std::sync::Arc::new(Region::from_image(&image).unwrap());
    let map = superblock
        .mapping
        .open(std::sync::Arc::clone(&region), superblock.map_geometry());
    map.load(1, &|_| {}).unwrap();
    map.for_each(&mut |entry| {
        if u64::from(entry.ino) == dir {
            let at = superblock.block_offset(superblock.page(entry.word)) as usize;
            image[at..at + BLOCK_BYTES as usize].fill(0xa5);
        }
        true
    });
    let (report, rewrite) = repair(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.after.findings.is_empty(), "{:?}", report.after.findings);
    let region = Region::from_image(&image).unwrap();
    rewrite.apply(&region).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    let (paths, contents) = walk(&engine).unwrap();
    assert!(paths.keys().all(|path| path.starts_with("/lost+found/#")));
    assert_eq!(
        contents.len(),
        FILES,
        "every file has its own content, and all are there"
    );
}

//! Names that are gone, and names that only the mapping has lost: those a repair reports, and those it restores.

use ferrite_map::{Inum, PageWord};
use ferrite_vfs::{DirEntry, SNAPSHOTS_NAME, SetAttr};

use super::wiped::{number, repaired, tree};
use super::*;
use crate::RepairReport;

/// Bits of a word that names a block: flipped, it leads to a neighbour, a farther block, an impossible block, another
/// log or height.
const BITS: [u32; 6] = [0, 1, 6, 10, 31, 33];

/// An inode, and the count to change in it.
type Recount = (Ino, fn(&mut Inode));

fn set(image: &mut [u8], offset: u64, value: u64) {
    image[offset as usize..offset as usize + 8].copy_from_slice(&value.to_le_bytes());
}

fn word(image: &[u8], offset: u64) -> u64 {
    u64::from_le_bytes(image[offset as usize..offset as usize + 8].try_into().unwrap())
}

fn loses(report: &RepairReport) -> bool {
    report.mended.iter().any(|mended| mended.loss)
}

/// Applies changes to a pool with the engine; the image is that of a crash if it is not unmounted.
fn changed(image: &[u8], unmount: bool, change: impl Fn(&Engine)) -> Vec<u8> {
    let recorder = Recorder::new(image.to_vec());
    let mut region = Region::from_image(image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    change(&engine);
    if unmount {
        engine.unmount().unwrap();
        return recorder.log().final_image();
    }
    let image = recorder.log().final_image();
    drop(engine);
    image
}

/// The sample, and a directory of several blocks.
fn crowded(variant: Variant) -> Vec<u8> {
    changed(&sample(variant), true, |engine| {
        let crowd = engine.mkdir(SYSTEM, ROOT_INO, b"crowd", 0o755).unwrap().ino;
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        for n in 0..100 {
            let name = format!("{n:0100}");
            let ino = engine.mknod(SYSTEM, crowd, name.as_bytes(), &node).unwrap().ino;
            let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            file.write_at(SYSTEM, 0, name.as_bytes()).unwrap();
        }
    })
}

/// Turns an entry into free space; with `with_slot`, its name slot too.
fn erase(image: &mut [u8], path: &str, with_slot: bool) {
    let region = Arc::new(Region::from_image(image).unwrap());
    let superblock = Superblock::find(&region).unwrap();
    let (parent, name) = path.rsplit_once('/').unwrap();
    let names = NameTable::new(region, &superblock);
    names.load();
    let key = names.key(Inum::new(number(image, parent) as u32), name.as_bytes());
    let found = names.find(&key).unwrap().unwrap();
    let len = dentry::entry_bytes(name.as_bytes());
    set(image, found.entry_offset, dentry::free_word(len));
    if with_slot {
        set(image, superblock.name_offset + u64::from(found.slot) * 8, 0);
    }
}

/// Stores another count in an inode.
fn recount(image: &mut [u8], ino: Ino, change: impl Fn(&mut Inode)) {
    let region = Region::from_image(image).unwrap();
    let offset = Superblock::find(&region).unwrap().inode_offset(Inum::new(ino as u32));
    let mut inode = Inode::load(&region, offset);
    change(&mut inode);
    inode.set_crc(inode.checksum(Inum::new(ino as u32)));
    for (index, &word) in inode.words.iter().enumerate() {
        set(image, offset + index as u64 * 8, word);
    }
}

#[test]
fn a_name_that_is_gone_is_a_loss() {
    for variant in PLAIN {
        let sound = sample(variant);
        // One of two names, an only name, a directory.
        for path in ["/other-name-9", "/short", "/dir1", "/dir0/dir2"] {
            for with_slot in [false, true] {
                let mut image = sound.clone();
                erase(&mut image, path, with_slot);
                let (_, report) = repaired(&image);
                assert!(loses(&report), "{variant:?}, {path}, {with_slot}: {:#?}", report.mended);
            }
        }
    }
}

#[test]
fn what_costs_no_name_is_no_loss() {
    let sound = sample(PLAIN[0]);
    let before = tree(&sound);
    let twice = number(&sound, "/other-name-9");
    let counts: [Recount; 3] = [
        (twice, |inode| inode.set_nlink(1)),
        (ROOT_INO, |inode| inode.set_nlink(2)),
        (ROOT_INO, |inode| inode.set_entries(1)),
    ];
    for (ino, change) in counts {
        let mut image = sound.clone();
        recount(&mut image, ino, change);
        let (image, report) = repaired(&image);
        assert!(!report.mended.is_empty() && !loses(&report), "{:#?}", report.mended);
        assert!(tree(&image) == before);
    }
    // More was counted than is there: that may have been names.
    let counts: [Recount; 2] = [
        (twice, |inode| inode.set_nlink(3)),
        (ROOT_INO, |inode| inode.set_entries(99)),
    ];
    for (ino, change) in counts {
        let mut image = sound.clone();
        recount(&mut image, ino, change);
        assert!(loses(&repaired(&image).1));
    }
}

/// A snapshot, a part of one, and a directory of snapshots that have lost their names can be removed from `lost+found`;
/// a snapshot in its place stays as it is.
#[test]
fn parts_of_snapshots_that_lost_their_place_take_changes() {
    for variant in PLAIN {
        let sound = changed(&sample(variant), true, |engine| {
            for name in [b"one", b"two"] {
                let dir = engine.mkdir(SYSTEM, ROOT_INO, name, 0o755).unwrap().ino;
                let node = NewNode {
                    kind: FileKind::File,
                    mode: 0o644,
                    rdev: 0,
                };
                let sub = engine.mkdir(SYSTEM, dir, b"sub", 0o755).unwrap().ino;
                engine.mknod(SYSTEM, sub, b"file", &node).unwrap();
                let snapshots = engine.mkdir(SYSTEM, dir, SNAPSHOTS_NAME, 0o755).unwrap().ino;
                engine.mkdir(SYSTEM, snapshots, b"s", 0o755).unwrap();
            }
        });
        for lost in ["/one/.snapshots", "/one/.snapshots/s", "/one/.snapshots/s/sub"] {
            let mut image = sound.clone();
            let ino = number(&image, lost);
            erase(&mut image, lost, true);
            let (image, _) = repaired(&image);
            let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
            let found = engine.lookup(SYSTEM, ROOT_INO, b"lost+found").unwrap().ino;
            let name = format!("#{ino}");
            assert_eq!(
                engine.lookup(SYSTEM, found, name.as_bytes()).unwrap().ino,
                ino,
                "{lost}"
            );
            remove_all(&engine, found, name.as_bytes());
            let kept = number(&image, "/two/.snapshots/s/sub/file");
            let refused = engine.setattr(SYSTEM, kept, &SetAttr::default());
            assert_eq!(refused.unwrap_err(), FsError::ReadOnly, "{variant:?}, {lost}");
        }
    }
}

fn remove_all(engine: &Engine, dir: Ino, name: &[u8]) {
    let found = engine.lookup(SYSTEM, dir, name).unwrap();
    if found.kind != FileKind::Directory {
        return engine.unlink(SYSTEM, dir, name).unwrap();
    }
    let mut names = Vec::new();
    let mut push = |entry: &DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    engine.readdir(SYSTEM, found.ino, 0, &mut push).unwrap();
    names.iter().for_each(|name| remove_all(engine, found.ino, name));
    engine.rmdir(SYSTEM, dir, name).unwrap();
}

/// A crash leaves a file that was open when it lost its name; mount frees it, and there is nothing to repair.
#[test]
fn what_a_crash_leaves_without_a_name_needs_no_repair() {
    for variant in PLAIN {
        let image = changed(&sample(variant), false, |engine| {
            let made = engine.mkdir(SYSTEM, ROOT_INO, b"open", 0o755).unwrap();
            engine.pin(SYSTEM, made.ino, made.generation).unwrap();
            engine.symlink(SYSTEM, made.ino, b"inside", b"target").unwrap();
            engine.unlink(SYSTEM, made.ino, b"inside").unwrap();
            engine.rmdir(SYSTEM, ROOT_INO, b"open").unwrap();
        });
        let (report, _) = repair(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(report.mended.is_empty(), "{variant:?}: {:#?}", report.mended);
    }
}

/// Words of the mapping that a page of a directory depends on, and that a flipped bit leads elsewhere.
fn ways_to(image: &[u8], dir: Ino) -> Vec<u64> {
    let region = Arc::new(Region::from_image(image).unwrap());
    let superblock = Superblock::find(&region).unwrap();
    let map = superblock.mapping.open(Arc::clone(&region), superblock.map_geometry());
    map.load(1, &|_| {}).unwrap();
    let map_end = match superblock.sum_offset {
        0 => superblock.first_block * BLOCK_BYTES,
        sums => sums,
    };
    let mut areas: Vec<_> = std::iter::once(superblock.map_offset..map_end).collect();
    map.for_each_node(&mut |node, _| {
        let at = superblock.block_offset(node);
        areas.push(at..at + BLOCK_BYTES);
    });
    let mut words = Vec::new();
    if matches!(superblock.mapping, Mapping::Radix | Mapping::Extent) {
        words.push(superblock.map_offset + dir * 8);
    }
    map.for_each(&mut |entry| {
        if u64::from(entry.ino) == dir {
            let places = areas.iter().flat_map(|area| area.clone().step_by(8));
            words.extend(places.filter(|&at| region.load(at) == PageWord::of_block(superblock.page(entry.word)).0));
        }
        true
    });
    words
}

#[test]
fn names_come_back_when_only_the_way_to_them_was_hit() {
    for variant in PLAIN {
        let sound = crowded(variant);
        let before = tree(&sound);
        for path in ["", "/dir0", "/crowd"] {
            let ways = ways_to(&sound, number(&sound, path));
            assert!(!ways.is_empty(), "{variant:?}, {path:?}");
            for at in ways {
                for bit in BITS {
                    let mut image = sound.clone();
                    set(&mut image, at, word(&sound, at) ^ 1 << bit);
                    let (image, report) = repaired(&image);
                    let hit = format!("{variant:?}, {path:?}, bit {bit} at {at}");
                    assert!(tree(&image) == before, "{hit}: {:#?}", report.mended);
                }
            }
        }
    }
}

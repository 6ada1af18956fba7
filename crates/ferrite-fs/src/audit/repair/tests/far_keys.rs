//! Pools of older programs, which let keys of HashFS go any distance from their homes: a file rewritten 1,500 times
//! between two moves of the checkpoint had its page there. A repair dropped such pages, and reads failed with `EIO`,
//! because a key so far away was taken for damage.

use super::wiped::{number, repaired, tree};
use super::*;
use crate::format::layout::FEATURE_KEYS_IN_REACH;
use ferrite_map::hashfs::HashFs;
use ferrite_map::{Inum, PageId, SlotNo};

/// Of a pool large enough for a key to be out of reach.
const LARGE_BYTES: u64 = 24 << 20;
const CONTENT: [u8; 3 * BLOCK_BYTES as usize] = [0x5a; 3 * BLOCK_BYTES as usize];

/// A pool in which the second page of file `far` has its key out of reach, the slots on the way being free again.
/// `old`: made by a program without the feature.
fn pool_with_far_key(old: bool, data_checksum: bool) -> Vec<u8> {
    let region = Region::anonymous(LARGE_BYTES).unwrap();
    let options = MkfsOptions::default()
        .inodes(255)
        .rings(1)
        .seed(7)
        .data_checksum(data_checksum);
    mkfs(&region, &options).unwrap();
    let superblock = Superblock::find(&region).unwrap();
    let engine = Engine::mount(Region::from_image(&image_of(&region)).unwrap(), &quiet()).unwrap();
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    for name in ["near", "far"] {
        let ino = engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node).unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, &CONTENT).unwrap();
    }
    let ino = engine.lookup(SYSTEM, ROOT_INO, b"far").unwrap().ino as u32;
    let map = engine.core().map.hashed_keys().unwrap();
    let slot = map.slot_of(PageId::from_raw(ino, 1)).unwrap();
    let moved = (0..superblock.map_slots)
        .find(|&slot| {
            let is_free = engine.core().region.load(map.offsets(SlotNo::new(slot as u32)).key) == 0;
            is_free && map.distance(PageId::from_raw(ino, 1), SlotNo::new(slot as u32)) == HashFs::DISTANCE_MAX + 3
        })
        .unwrap();
    let (from, to) = (map.offsets(slot), map.offsets(SlotNo::new(moved as u32)));
    engine.unmount().unwrap();
    let mut image = image_of(&engine.core().region);
    let mut put = |offset: u64, bytes: &[u8]| image[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    let load = |offset: u64| engine.core().region.load(offset).to_le_bytes();
    put(to.key, &load(from.key));
    put(to.word, &load(from.word));
    put(from.key, &[0; 8]);
    put(from.word, &[0; 8]);
    if old {
        let mut superblock = superblock.clone();
        superblock.features_ro_compat &= !FEATURE_KEYS_IN_REACH;
        let block = superblock.encode();
        put(0, &block);
        put(superblock.second_copy_offset(), &block);
    }
    image
}

#[test]
fn an_old_pool_with_a_far_key_mounts_reads_and_repairs_without_loss() {
    for data_checksum in [false, true] {
        let image = pool_with_far_key(true, data_checksum);
        let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let region = Region::from_image(&image).unwrap();
        let engine = Engine::mount(region, &quiet()).unwrap();
        assert!(
            engine.damage().is_empty() && !engine.is_read_only(),
            "{:?}",
            engine.damage()
        );
        assert!(engine.scrub(None).unwrap().findings.is_empty());
        // Its page can be replaced, unmapped and mapped anew; then it is near its home.
        let ino = engine.lookup(SYSTEM, ROOT_INO, b"far").unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        let mut content = CONTENT;
        file.read_at(SYSTEM, 0, &mut content).unwrap();
        assert_eq!(content, CONTENT);
        file.write_at(SYSTEM, BLOCK_BYTES, &[1; BLOCK_BYTES as usize]).unwrap();
        engine.unmount().unwrap();
        let report = fsck(
            Region::from_image(&image_of(&engine.core().region)).unwrap(),
            &mut |_, _, _| {},
        );
        assert!(report.unwrap().findings.is_empty());

        // Something else is damaged: the repair leaves the far key alone.
        let mut harmed = image.clone();
        let superblock = Superblock::find(&Region::from_image(&image).unwrap()).unwrap();
        harmed[superblock.inode_offset(Inum::new(number(&image, "/near") as u32)) as usize + 24] ^= 1;
        let (mended, report) = repaired(&harmed);
        assert!(report.quarantined.len() == 1, "{report:?}");
        assert_eq!(tree(&mended)["/far"], CONTENT);
    }
}

/// Where no program puts a key so far, it was damaged; the control of the test above.
#[test]
fn a_far_key_of_a_pool_that_promises_none_is_damage() {
    let image = pool_with_far_key(false, false);
    let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(
        report
            .findings
            .iter()
            .any(|finding| finding.what.contains("cannot be there")),
        "{:?}",
        report.findings
    );
    let engine = Engine::mount(Region::from_image(&image).unwrap(), &quiet()).unwrap();
    assert!(!engine.damage().is_empty() && engine.is_read_only());
    repaired(&image);
}

//! Giving space back on a full pool: it must not fail for want of space, nor stop half-way and let what is written later be lost.
//!
//! Filling pools and going on with them is in `suites.rs` and, on a mount, in `ferrite/tests/full_device.rs`.

mod common;

use std::sync::Arc;

use common::{fixed, image_of, make};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_pm::{Recorder, Region};
use ferrite_vfs::{FallocateMode, FileSystem, OpenFile, OpenMode, ROOT_INO, SetAttr};

const PAGE: u64 = 4096;
/// Where the long stretch of the victim begins, in pages.
const STRETCH: u64 = 100_000;
const STRETCH_PAGES: u64 = 800;
/// Pages of the stretch that stay in front of what is cut: more than one record's worth goes.
const KEPT: u64 = 50;
const CUT_PAGES: u64 = 700;

fn quiet() -> MountOptions {
    MountOptions {
        cleaner: false,
        fold_read_entries: 0,
        ..MountOptions::default()
    }
}

fn mounted(image: &[u8]) -> Engine {
    Engine::mount(Region::from_image(image).unwrap(), &quiet()).expect("a pool that was never damaged")
}

fn first_byte(file: &Arc<dyn OpenFile>, page: u64) -> u8 {
    let mut byte = [0xaa];
    assert_eq!(file.read_at(page * PAGE, &mut byte).unwrap(), 1, "page {page}");
    byte[0]
}

/// Cuts a long stretch out of a file of `lone` lone pages besides, on a pool without a free block. In the extent tree the first page that
/// goes splits the stretch's extent, which, where the leaf is full, takes a node.
fn cut_when_full(mapping: Mapping, lone: u64, punch: bool) {
    let what = format!("{mapping:?}, {lone} lone pages, punch {punch}");
    let blank = Region::anonymous(14 << 20).unwrap();
    let options = MkfsOptions {
        mapping,
        inodes: Some(255),
        rings: Some(1),
        ..fixed()
    };
    mkfs(&blank, &options).unwrap();
    let image = image_of(&blank);
    let recorder = Recorder::new(image.clone());
    let mut region = Region::from_image(&image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let victim = make(&engine, ROOT_INO, "victim");
    let file = engine.open(victim, OpenMode::read_write()).unwrap();
    for n in 0..lone {
        file.write_at(n * 2 * PAGE, &[7; PAGE as usize]).unwrap();
    }
    for at in (0..STRETCH_PAGES).step_by(200) {
        file.write_at((STRETCH + at) * PAGE, &vec![1; 200 * PAGE as usize])
            .unwrap();
    }
    let filler = make(&engine, ROOT_INO, "filler");
    let fill = engine.open(filler, OpenMode::read_write()).unwrap();
    let mut at = 0;
    while fill.write_at(at * PAGE, &[9; PAGE as usize]).is_ok() {
        at += 1;
    }
    let set_size = |ino, pages| {
        let size = SetAttr {
            size: Some(pages * PAGE),
            ..SetAttr::default()
        };
        engine.setattr(ino, &size)
    };
    let expected = if punch {
        file.fallocate(FallocateMode::PunchHole, (STRETCH + KEPT) * PAGE, CUT_PAGES * PAGE)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        lone + STRETCH_PAGES - CUT_PAGES
    } else {
        set_size(victim, STRETCH + KEPT).unwrap_or_else(|error| panic!("{what}: {error}"));
        lone + KEPT
    };
    assert_eq!(engine.getattr(victim).unwrap().blocks / 8, expected, "{what}");
    mounted(&recorder.log().final_image());
    set_size(filler, 0).unwrap();
    set_size(victim, STRETCH + STRETCH_PAGES).unwrap();
    assert_eq!(first_byte(&file, STRETCH + KEPT - 1), 1, "{what}");
    assert_eq!(first_byte(&file, STRETCH + 100), 0, "{what}: what was cut came back");
    file.write_at((STRETCH + 300) * PAGE, &[5]).unwrap();
    drop((file, fill));
    engine.unmount().unwrap();
    let image = recorder.log().final_image();
    let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
    let file = mounted(&image).open(victim, OpenMode::read_write()).unwrap();
    assert_eq!(first_byte(&file, STRETCH + 300), 5, "{what}: a write was lost");
}

#[test]
fn cutting_a_long_stretch_takes_no_free_block() {
    for punch in [false, true] {
        for &mapping in Mapping::ALL {
            cut_when_full(mapping, 30, punch);
        }
        // A leaf of the extent tree has 240 entries.
        for lone in 234..=242 {
            cut_when_full(Mapping::Extent, lone, punch);
        }
    }
}

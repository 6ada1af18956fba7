//! Rights that a file gives to those who run it end with its content: in the same record as the change, so that no
//! crash leaves new content with old rights; and before an adapter may store in place.
//!
//! Each step is crashed at each fence, as in `crash.rs`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::common;
use crate::common::remote::{Remote, WRITABLE};
use crate::common::{Tree, capture, check_image, empty_pool, fixed, make, mount, mount_image, pattern, write};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_pm::{Choice, Recorder, Region};
use ferrite_vfs::regions::{Adapter, Binding, Regions};
use ferrite_vfs::{
    Cred, Ctx, FallocateMode, FileSystem, FsError, Ino, OpenMode, ROOT_INO, SYSTEM, SetAttr, XattrMode, posix,
};

const POOL_BYTES: u64 = 4 << 20;
const SUBSETS: u64 = 24;
const VALUE: &[u8] = b"\x01\0\0\x02\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

fn give(engine: &Engine, ino: Ino) {
    engine
        .setxattr(SYSTEM, ino, posix::CAPABILITY, VALUE, XattrMode::Any)
        .unwrap();
}

fn has(engine: &Engine, ino: Ino) -> bool {
    match engine.getxattr(SYSTEM, ino, posix::CAPABILITY) {
        Ok(_) => true,
        Err(FsError::NoAttribute) => false,
        Err(error) => panic!("{error}"),
    }
}

fn fallocate(engine: &Engine, ino: Ino, mode: FallocateMode, offset: u64, len: u64) {
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    file.fallocate(SYSTEM, mode, offset, len).unwrap();
}

fn set(engine: &Engine, ino: Ino, set: SetAttr) {
    engine.setattr(SYSTEM, ino, &set).unwrap();
}

type Step = fn(&Engine, Ino);

/// Changes that take a capability, of a short file first, then of pages, of parts of pages, and of many pages.
const STEPS: [Step; 13] = [
    |fs, ino| write(fs, ino, 3, &pattern(20, 1)),
    |fs, ino| write(fs, ino, 100, &pattern(9000, 2)),
    |fs, ino| write(fs, ino, 4096, &pattern(4096, 3)),
    |fs, ino| write(fs, ino, 5000, &pattern(64, 4)),
    |fs, ino| write(fs, ino, 5300, &pattern(64, 5)),
    |fs, ino| write(fs, ino, 4000, &pattern(5000, 6)),
    |fs, ino| write(fs, ino, 9100, &pattern(10, 7)),
    |fs, ino| fallocate(fs, ino, FallocateMode::Allocate { keep_size: false }, 0, 40_000),
    |fs, ino| fallocate(fs, ino, FallocateMode::PunchHole, 1000, 9000),
    |fs, ino| fallocate(fs, ino, FallocateMode::ZeroRange { keep_size: false }, 3000, 60_000),
    |fs, ino| {
        set(
            fs,
            ino,
            SetAttr {
                size: Some(5000),
                ..SetAttr::default()
            },
        )
    },
    |fs, ino| {
        set(
            fs,
            ino,
            SetAttr {
                uid: Some(0),
                ..SetAttr::default()
            },
        )
    },
    |fs, ino| {
        set(
            fs,
            ino,
            SetAttr {
                size: Some(0),
                ..SetAttr::default()
            },
        )
    },
];

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

fn options(mapping: Mapping, data_checksum: bool) -> MkfsOptions {
    fixed()
        .mapping(mapping)
        .inodes(127)
        .rings(2)
        .data_checksum(data_checksum)
}

/// Crashes all steps at each fence; how many images were different. `has_others`: the file has other attributes.
fn explore(options: &MkfsOptions, has_others: bool) -> usize {
    let empty = empty_pool(POOL_BYTES, options);
    let mut region = Region::from_image(&empty).unwrap();
    let recorder = Recorder::new(empty);
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    let ino = make(&engine, ROOT_INO, "f");
    let mut states = vec![Tree::new(), capture(&engine)];
    recorder.mark(1);
    let mut done = |step: &dyn Fn()| {
        step();
        states.push(capture(&engine));
        recorder.mark(states.len() as u64 - 1);
    };
    if has_others {
        done(&|| {
            engine
                .setxattr(SYSTEM, ino, b"user.other", b"stays", XattrMode::Any)
                .unwrap()
        });
    }
    for step in STEPS {
        done(&|| give(&engine, ino));
        assert!(has(&engine, ino));
        done(&|| step(&engine, ino));
        assert!(!has(&engine, ino));
        assert_eq!(engine.listxattr(SYSTEM, ino).unwrap().len(), usize::from(has_others));
    }
    engine.unmount().unwrap();
    let log = recorder.log();
    let (mut cursor, mut seen) = (log.cursor(), HashSet::new());
    loop {
        let returned = cursor.marks().last().map_or(0, |&mark| mark as usize);
        let point = cursor.point() as u64;
        let random = (0..SUBSETS).map(|n| Choice::Random(point << 16 ^ n));
        for choice in [Choice::None, Choice::All].into_iter().chain(random) {
            if returned == 0 || !seen.insert(cursor.fingerprint(choice)) {
                continue;
            }
            cursor.with_image(choice, |image| {
                check_image(image);
                let tree = capture(&mount_image(image));
                let allowed = &states[returned..states.len().min(returned + 2)];
                assert!(
                    allowed.contains(&tree),
                    "point {point}, {choice:?}, {returned} returned: {tree:?}"
                );
            });
        }
        if !cursor.advance() {
            return seen.len();
        }
    }
}

#[test]
fn a_crash_leaves_no_content_with_the_capability_of_what_was_there_before() {
    for (mapping, data_checksum) in [
        (Mapping::Hashfs, false),
        (Mapping::Hashfs, true),
        (Mapping::Extent, false),
    ] {
        for has_others in [false, true] {
            let images = explore(&options(mapping, data_checksum), has_others);
            println!("{mapping}, data checksums {data_checksum}, other attributes {has_others}: {images} images");
            assert!(images > 2 * STEPS.len(), "too few images to mean anything");
        }
    }
}

/// Stores in place remove no rights, so the binding removes them, and none are given while it lasts.
#[test]
fn a_file_that_others_may_store_into_gives_no_rights() {
    let engine = mount(&empty_pool(POOL_BYTES, &options(Mapping::default(), true)));
    let ino = make(&engine, ROOT_INO, "f");
    write(&engine, ino, 0, &pattern(9000, 1));
    let give_all = || {
        set(
            &engine,
            ino,
            SetAttr {
                mode: Some(0o6777),
                ..SetAttr::default()
            },
        );
        give(&engine, ino);
    };
    give_all();
    let readable = Binding {
        writable: false,
        ..WRITABLE
    };
    let remote = Remote::bind_as(&engine, ino, readable).unwrap();
    assert!(has(&engine, ino), "nobody stores there");
    remote.region.unbind().unwrap();
    let change = engine.getattr(SYSTEM, ino).unwrap().change;
    let adapter = Arc::<common::remote::Checked>::default();
    let other_user = &Ctx::checked(Cred::new(1000, 1000));
    let bound = engine
        .bind(other_user, ino, WRITABLE, adapter as Arc<dyn Adapter>)
        .unwrap();
    let attr = engine.getattr(SYSTEM, ino).unwrap();
    assert_eq!((attr.mode, has(&engine, ino)), (0o777, false));
    assert_ne!(attr.change, change, "caches have to know");
    let again = engine.setxattr(SYSTEM, ino, posix::CAPABILITY, VALUE, XattrMode::Any);
    assert_eq!(again, Err(FsError::Busy));
    let mode = |mode| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    for rights in [0o4755, 0o2755] {
        assert_eq!(engine.setattr(SYSTEM, ino, &mode(rights)).map(drop), Err(FsError::Busy));
    }
    engine.setattr(SYSTEM, ino, &mode(0o755)).unwrap();
    engine
        .setxattr(SYSTEM, ino, b"user.other", b"1", XattrMode::Any)
        .unwrap();
    bound.unbind().unwrap();
    give_all();
    assert!(has(&engine, ino));
    // As root's write would: setuid stays, the capability goes.
    let remote = Remote::bind(&engine, ino);
    assert_eq!(
        (engine.getattr(SYSTEM, ino).unwrap().mode, has(&engine, ino)),
        (0o6777, false)
    );
    remote.region.unbind().unwrap();
}

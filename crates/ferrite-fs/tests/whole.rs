//! Every call of more than one step fails whole: with each fence of the medium failing, and with no, one, two ...
//! blocks free, until it succeeds.

use std::sync::Arc;

use crate::common;
use crate::common::{check, empty_pool, fixed, make};
use ferrite_fs::{AtimePolicy, Engine, Mapping, MountOptions};
use ferrite_pm::{Choice, Recorder, Region};
use ferrite_testkit::two_at_a_time;
use ferrite_testkit::whole::{Call, FILLER, State, calls, scene};
use ferrite_vfs::{Ctx, DedupToken, FileSystem, FsError, OpenMode, ROOT_INO, SYSTEM};

const PAGE: u64 = 4096;
const POOL_BYTES: u64 = 8 << 20;

fn quiet() -> MountOptions {
    MountOptions::default()
        .cleaner(false)
        .merge_read_entries(0)
        .atime(AtimePolicy::Never)
}

fn mounted(image: &[u8]) -> Engine {
    Engine::mount(Region::from_image(image).unwrap(), &quiet()).unwrap()
}

/// A pool with the scene, closed.
fn with_scene(mapping: Mapping) -> Vec<u8> {
    let empty = empty_pool(POOL_BYTES, &fixed().mapping(mapping).inodes(127).rings(1));
    let mut region = Region::from_image(&empty).unwrap();
    let recorder = Recorder::new(empty);
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &quiet()).unwrap();
    scene(&engine);
    engine.unmount().unwrap();
    let image = recorder.log().final_image();
    check(&image);
    image
}

fn ctx(with_token: bool, seq: u64) -> Ctx {
    let token = with_token.then_some(DedupToken { slot: 0, seq });
    Ctx {
        token,
        ..SYSTEM.clone()
    }
}

fn outcome(image: &[u8], call: &Call) -> State {
    let engine = mounted(image);
    call.run(&engine, SYSTEM)
        .unwrap_or_else(|error| panic!("{}: {error}", call.name));
    State::of(&engine)
}

/// Makes one call with no, one, two ... blocks free.
fn each_block(image: &[u8], call: &Call, with_token: bool, what: &str) {
    let after = outcome(image, call);
    let region = Region::from_image(image).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    let dir = engine.mkdir(SYSTEM, ROOT_INO, FILLER.as_bytes(), 0o755).unwrap().ino;
    let filler = engine
        .open(SYSTEM, make(&engine, dir, FILLER), OpenMode::read_write())
        .unwrap();
    let mut pages = 0;
    while filler.write_at(SYSTEM, pages * PAGE, &[9; PAGE as usize]).is_ok() {
        pages += 1;
    }
    for free in 0..=pages {
        let what = format!("{what}, {}, token {with_token}: {free} blocks free", call.name);
        let before = State::of(&engine);
        let space = engine.statfs(SYSTEM).unwrap().blocks_free;
        match call.run(&engine, &ctx(with_token, free + 1)) {
            Ok(()) => {
                engine.unlink(SYSTEM, dir, FILLER.as_bytes()).unwrap();
                engine.rmdir(SYSTEM, ROOT_INO, FILLER.as_bytes()).unwrap();
                assert!(
                    State::of(&engine).is_alike(&after),
                    "{what}: another state than with space"
                );
                return;
            }
            Err(FsError::NoSpace(_)) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        if let Some(how) = State::of(&engine).differs(&before, None) {
            panic!("{what}: a call that failed has changed something: {how}");
        }
        assert_eq!(engine.statfs(SYSTEM).unwrap().blocks_free, space, "{what}: free blocks");
        let size = ferrite_vfs::SetAttr {
            size: Some((pages - free - 1) * PAGE),
            ..Default::default()
        };
        filler.setattr(SYSTEM, &size).unwrap();
    }
    panic!("{what}, {}: it fails with all blocks free", call.name);
}

#[test]
fn with_every_number_of_blocks_free() {
    for &mapping in Mapping::ALL {
        let image = with_scene(mapping);
        two_at_a_time(&calls(), |call| {
            for with_token in [false, true] {
                each_block(&image, call, with_token, &format!("{mapping:?}"));
            }
        });
    }
}

/// Makes one call with each of its fences failing, as a sync that reports an error does.
fn each_fence(image: &[u8], call: &Call, with_token: bool) {
    let after = outcome(image, call);
    for fences in 0.. {
        let what = format!("{}, token {with_token}: fence {fences}", call.name);
        let recorder = Recorder::new(image.to_vec());
        let mut region = Region::from_image(image).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        let engine = Engine::mount(region, &quiet()).unwrap();
        let before = State::of(&engine);
        recorder.fail_fences_after(fences);
        match call.run(&engine, &ctx(with_token, 1)) {
            Ok(()) if engine.failed().is_none() => return,
            // It failed when the call had been done.
            Ok(()) => {}
            Err(FsError::Io(_)) => assert!(engine.failed().is_some(), "{what}: the pool takes changes"),
            Err(error) => panic!("{what}: {error}"),
        }
        let refused = engine.mkdir(SYSTEM, ROOT_INO, b"later", 0o755);
        assert!(matches!(refused, Err(FsError::ReadOnly)), "{what}: {refused:?}");
        drop(engine);
        let log = recorder.log();
        let mut cursor = log.cursor();
        while cursor.advance() {}
        for choice in [Choice::None, Choice::All, Choice::Random(fences)] {
            cursor.with_image(choice, |image| {
                check(image);
                let now = State::of(&mounted(image));
                // Unused reserved pages may be left; they are visible only in `st_blocks`.
                let is_whole = now.is_alike(&before) || now.is_alike(&after);
                assert!(
                    is_whole,
                    "{what}, {choice:?}: neither old nor new: {:?}",
                    now.differs(&before, None)
                );
            });
        }
    }
}

#[test]
fn with_each_fence_failing() {
    let image = with_scene(common::mapping());
    two_at_a_time(&calls(), |call| {
        for with_token in [false, true] {
            each_fence(&image, call, with_token);
        }
    });
}

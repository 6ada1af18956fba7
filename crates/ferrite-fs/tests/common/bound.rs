//! Helpers of the tests of bound files: recorded pools, and calls by number.

use std::sync::Arc;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_pm::{Recorder, Region as Pool};
use ferrite_vfs::{FallocateMode, FileSystem, Ino, OpenMode, SYSTEM, SetAttr};
use rand::Rng;

use super::{check, empty_pool, fixed};

pub(crate) const POOL_BYTES: u64 = 8 << 20;

pub(crate) fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false)
}

pub(crate) fn options(mapping: Mapping, data_checksum: bool) -> MkfsOptions {
    fixed()
        .mapping(mapping)
        .inodes(127)
        .rings(2)
        .data_checksum(data_checksum)
}

/// A new pool in memory, recorded, so that a test can get its bytes at any time.
pub(crate) fn pool(options: &MkfsOptions) -> (Engine, Arc<Recorder>) {
    reopened(&empty_pool(POOL_BYTES, options))
}

pub(crate) fn reopened(image: &[u8]) -> (Engine, Arc<Recorder>) {
    let recorder = Recorder::new(image.to_vec());
    let mut region = Pool::from_image(image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    (Engine::mount(region, &quiet()).unwrap(), recorder)
}

/// Unmounts, checks the pool, and mounts it again.
pub(crate) fn again(engine: Engine, recorder: &Recorder) -> (Engine, Arc<Recorder>) {
    engine.unmount().unwrap();
    drop(engine);
    let image = recorder.log().final_image();
    check(&image);
    reopened(&image)
}

pub(crate) fn read(engine: &Engine, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; engine.getattr(SYSTEM, ino).unwrap().size as usize];
    let mode = OpenMode {
        no_atime: true,
        ..OpenMode::read_only()
    };
    let file = engine.open(SYSTEM, ino, mode).unwrap();
    assert_eq!(file.read_at(SYSTEM, 0, &mut content).unwrap(), content.len());
    content
}

pub(crate) fn truncate(engine: &Engine, ino: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, ino, &set).unwrap();
}

pub(crate) fn fallocate(engine: &Engine, ino: Ino, mode: FallocateMode, offset: u64, len: u64) {
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    file.fallocate(SYSTEM, mode, offset, len).unwrap();
}

pub(crate) fn seed() -> u64 {
    let seed = std::env::var("FERRITE_SEED").map_or_else(|_| rand::rng().next_u64(), |seed| seed.parse().unwrap());
    println!("FERRITE_SEED={seed}");
    seed
}

pub(crate) fn soak() -> bool {
    std::env::var_os("FERRITE_SOAK").is_some()
}

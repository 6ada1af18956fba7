//! What checks take for granted, and the engine must therefore never pass: the limits of docs/limits.md, pressed by doing one simple thing
//! for very long between two moves of the journal's mark.
//!
//! Rewriting one file 1,500 times once left a pool of 1 GiB damaged: each freed slot of the table waits for the mark, so the file's key
//! walked away from its home, farther than mount, check and repair believe of a sound pool.

mod common;

use common::{make, options};
use ferrite_fs::{Engine, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_pm::{Access, Region};
use ferrite_vfs::{FileSystem, Ino, OpenMode, ROOT_INO, SetAttr};
use tempfile::TempPath;

const PAGE: usize = 4096;
/// Rings are longest from this size on, so the mark rests longest.
const POOL_BYTES: u64 = 1 << 30;
/// More than the 1,050 or so after which a key came out of reach.
const ROUNDS: usize = 1500;

fn pool_file() -> TempPath {
    let dir = std::path::Path::new("/dev/shm");
    let builder = || tempfile::Builder::new();
    let made = if dir.is_dir() {
        builder().tempfile_in(dir)
    } else {
        builder().tempfile()
    };
    made.unwrap().into_temp_path()
}

fn new_pool(options: &MkfsOptions) -> (TempPath, Engine) {
    let path = pool_file();
    let region = Region::create(&path, POOL_BYTES).unwrap();
    mkfs(&region, options).unwrap();
    (path, Engine::mount(region, &quiet()).unwrap())
}

fn quiet() -> MountOptions {
    MountOptions {
        cleaner: false,
        ..MountOptions::default()
    }
}

/// The pool as it was left, by a crash, say: sound, and mounted again with nothing to say about it.
fn check(path: &TempPath) {
    let region = Region::open(path, Access::ReadOnlyPrivate).unwrap();
    let report = fsck(region, &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let region = Region::open(path, Access::ReadOnlyPrivate).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    assert!(engine.damage().is_empty(), "{:#?}", engine.damage());
}

fn truncate(engine: &Engine, ino: Ino) {
    let size = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    engine.setattr(ino, &size).unwrap();
}

#[test]
fn one_file_rewritten_for_long_leaves_a_sound_pool() {
    let (path, engine) = new_pool(&options());
    let ino = make(&engine, ROOT_INO, "state");
    for round in 0..ROUNDS {
        truncate(&engine, ino);
        let file = engine.open(ino, OpenMode::read_write()).unwrap();
        file.write_at(0, &[round as u8; 1500]).unwrap();
    }
    // Without an unmount, as if killed.
    drop(engine);
    check(&path);
    let engine = Engine::mount(Region::open(&path, Access::ReadWrite).unwrap(), &quiet()).unwrap();
    let mut content = [0; PAGE];
    let file = engine.open(ino, OpenMode::read_write()).unwrap();
    assert_eq!(file.read_at(0, &mut content).unwrap(), 1500);
    assert!(content[..1500].iter().all(|&byte| byte == (ROUNDS - 1) as u8));
    drop(file);
    engine.unmount().unwrap();
    drop(engine);
    check(&path);
}

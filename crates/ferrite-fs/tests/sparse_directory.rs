//! A directory that is mostly holes, after most of its names have gone.

use crate::common::{fixed, make};
use ferrite_fs::{Engine, Mapping, MountOptions, mkfs};
use ferrite_pm::{Access, Region};
use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

/// More blocks than are tried one by one.
const BLOCKS: u64 = 4300;
/// Names that stay in the first block; one stays in the last.
const KEPT: usize = 3;

fn blocks(engine: &Engine) -> u64 {
    engine.getattr(SYSTEM, ROOT_INO).unwrap().blocks / 8
}

/// After a mount, the DRAM state of a directory is rebuilt: an insert finds a block with space, although thousands of
/// holes follow it.
#[test]
fn a_directory_of_holes_fills_the_blocks_it_has() {
    for mapping in [Mapping::Hashfs, Mapping::Extent] {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let region = Region::create(&path, 96 << 20).unwrap();
        let options = fixed().mapping(mapping).inodes(40_000);
        mkfs(&region, &options).unwrap();
        drop(region);
        let mount = || {
            let mut region = Region::open(&path, Access::ReadWrite).unwrap();
            region.set_durability(ferrite_pm::Durability::Process).unwrap();
            let options = MountOptions::default().process_durability(true);
            Engine::mount(region, &options).unwrap()
        };
        let engine = mount();
        let ino = make(&engine, ROOT_INO, "file");
        let name = |n: usize| format!("{n:0250}");
        let mut made = 0;
        while engine.getattr(SYSTEM, ROOT_INO).unwrap().size < BLOCKS * 4096 {
            engine.link(SYSTEM, ino, ROOT_INO, name(made).as_bytes()).unwrap();
            made += 1;
        }
        for n in KEPT..made - 1 {
            engine.unlink(SYSTEM, ROOT_INO, name(n).as_bytes()).unwrap();
        }
        assert_eq!(blocks(&engine), 2);
        engine.unmount().unwrap();
        drop(engine);
        let engine = mount();
        make(&engine, ROOT_INO, "new");
        assert_eq!(blocks(&engine), 2, "{mapping}: a new block, although others have space");
    }
}

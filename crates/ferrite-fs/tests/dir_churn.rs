//! Names that come and go in a large directory leave it as large as it was.

use std::collections::HashSet;

use crate::common::{fixed, image_of, make, mount};
use ferrite_fs::mkfs;
use ferrite_pm::Region;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;
use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

const NAMES: u64 = 20_000;
const ROUNDS: u64 = 8;

/// Long enough that the directory has more blocks than it remembers: 15 names a block.
fn name(n: u64) -> String {
    format!("{n:0250}")
}

#[test]
fn a_directory_that_churns_does_not_grow() {
    let seed = seed_from_env().unwrap_or(1);
    let region = Region::anonymous(64 << 20).unwrap();
    let options = fixed().inodes(NAMES + 1000);
    mkfs(&region, &options).unwrap();
    let engine = mount(&image_of(&region));
    let dir = engine.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap().ino;
    let mut there: Vec<u64> = (0..NAMES).collect();
    for &n in &there {
        make(&engine, dir, &name(n));
    }
    let full = engine.getattr(SYSTEM, dir).unwrap();
    let free = engine.statfs(SYSTEM).unwrap().blocks_free;
    let mut rng = Rng::new(seed);
    let mut next = NAMES;
    for round in 0..ROUNDS {
        // A few at a time, or half of all.
        let batch = if round % 2 == 0 { NAMES / 2 } else { 50 };
        for _ in 0..NAMES / 2 / batch {
            for _ in 0..batch {
                let at = rng.below(there.len() as u64) as usize;
                engine
                    .unlink(SYSTEM, dir, name(there.swap_remove(at)).as_bytes())
                    .unwrap();
            }
            for _ in 0..batch {
                make(&engine, dir, &name(next));
                there.push(next);
                next += 1;
            }
        }
        let now = engine.getattr(SYSTEM, dir).unwrap();
        let what = format!("round {round}, FERRITE_SEED={seed}");
        assert!(
            now.blocks <= full.blocks * 105 / 100,
            "{what}: {} units of {}",
            now.blocks,
            full.blocks
        );
        assert!(
            now.size <= full.size * 105 / 100,
            "{what}: {} bytes of {}",
            now.size,
            full.size
        );
        let left = engine.statfs(SYSTEM).unwrap().blocks_free;
        assert!(
            left + full.blocks / 8 / 20 >= free,
            "{what}: {left} blocks free of {free}"
        );
    }
    let mut listed = HashSet::new();
    engine
        .readdir(SYSTEM, dir, 0, &mut |entry| listed.insert(entry.name.to_vec()))
        .unwrap();
    assert_eq!(listed, there.iter().map(|&n| name(n).into_bytes()).collect());
}

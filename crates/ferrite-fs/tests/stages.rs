//! The probes of the engine: that stages add up, and that they are where the counters are. Only with the feature
//! `stages`.
#![cfg(feature = "stages")]

use std::time::Instant;

use ferrite_fs::{Engine, MkfsOptions, MountOptions, mkfs};
use ferrite_pm::Region;
use ferrite_pm::stage::{self, Stage};
use ferrite_vfs::{FileKind, FileSystem, NewNode, OpenMode, ROOT_INO, SYSTEM};

const TURNS: u64 = 2000;

/// The sum of all stages is the whole, tick by tick; in nanoseconds it matches a clock around it, and each fence is
/// visited as often as it is counted.
#[test]
fn stages_add_up_to_the_whole() {
    let region = Region::anonymous(64 << 20).unwrap();
    mkfs(&region, &MkfsOptions::default()).unwrap();
    let engine = Engine::mount(region, &MountOptions::default().cleaner(false)).unwrap();
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let ino = engine.mknod(SYSTEM, ROOT_INO, b"file", &node).unwrap().ino;
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    file.write_at(SYSTEM, 0, &[1; 64 * 4096]).unwrap();
    let clock = stage::calibrate();
    let before = engine.counters();
    let start = Instant::now();
    stage::begin();
    for turn in 0..TURNS {
        file.write_at(SYSTEM, turn % 64 * 4096, &[2; 4096]).unwrap();
    }
    let profile = stage::end();
    let elapsed_ns = start.elapsed().as_nanos() as f64;
    let counted = engine.counters() - before;
    let sum: u64 = Stage::ALL.iter().map(|&stage| profile.ticks(stage)).sum();
    assert_eq!(sum, profile.whole_ticks, "every tick is in one stage");
    let whole_ns = profile.whole_ticks as f64 * clock.ns_per_tick;
    assert!(
        (0.5..1.1).contains(&(whole_ns / elapsed_ns)),
        "{whole_ns} of {elapsed_ns}"
    );
    assert_eq!(profile.visits(Stage::Fence), counted.fences);
    assert!(
        profile.visits(Stage::Checksum) >= TURNS,
        "of each page, and of the inode when its times change"
    );
    for stage in [
        Stage::Lookup,
        Stage::Lock,
        Stage::Claim,
        Stage::Stream,
        Stage::Record,
        Stage::Books,
    ] {
        assert!(profile.visits(stage) >= TURNS, "{stage:?}: {}", profile.visits(stage));
    }
    assert_eq!(profile.visits(Stage::Copy), 0, "nothing is read");
    let stages_ns: f64 = Stage::ALL.iter().map(|&stage| profile.ns(stage, clock)).sum();
    assert!(
        stages_ns > 0.0 && stages_ns < whole_ns,
        "{stages_ns} of {whole_ns}: the probes are subtracted"
    );
}

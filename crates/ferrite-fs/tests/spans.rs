//! The probes of the engine: that spans add up, and that they are where the counters are. Only with the feature
//! `spans`.
#![cfg(feature = "spans")]

use std::time::Instant;

use ferrite_fs::{Engine, MkfsOptions, MountOptions, mkfs};
use ferrite_pm::Region;
use ferrite_pm::profile::{self, ProfileSpan};
use ferrite_vfs::{FileKind, FileSystem, NewNode, OpenMode, ROOT_INO, SYSTEM};

const TURNS: u64 = 2000;

/// The sum of all spans is the whole, tick by tick; in nanoseconds it matches a clock around it, and each fence is
/// visited as often as it is counted.
#[test]
fn spans_add_up_to_the_whole() {
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
    let clock = profile::calibrate();
    let before = engine.counters();
    let start = Instant::now();
    profile::begin();
    for turn in 0..TURNS {
        file.write_at(SYSTEM, turn % 64 * 4096, &[2; 4096]).unwrap();
    }
    let profile = profile::end();
    let elapsed_ns = start.elapsed().as_nanos() as f64;
    let counted = engine.counters() - before;
    let sum: u64 = ProfileSpan::ALL.iter().map(|&span| profile.ticks(span)).sum();
    assert_eq!(sum, profile.whole_ticks, "every tick is in one span");
    let whole_ns = profile.whole_ticks as f64 * clock.ns_per_tick;
    assert!(
        (0.5..1.1).contains(&(whole_ns / elapsed_ns)),
        "{whole_ns} of {elapsed_ns}"
    );
    assert_eq!(profile.visits(ProfileSpan::Fence), counted.fences);
    assert!(
        profile.visits(ProfileSpan::Checksum) >= TURNS,
        "of each page, and of the inode when its times change"
    );
    for span in [
        ProfileSpan::Lookup,
        ProfileSpan::Lock,
        ProfileSpan::Claim,
        ProfileSpan::Stream,
        ProfileSpan::Record,
        ProfileSpan::Books,
    ] {
        assert!(profile.visits(span) >= TURNS, "{span:?}: {}", profile.visits(span));
    }
    assert_eq!(profile.visits(ProfileSpan::Copy), 0, "nothing is read");
    let spans_ns: f64 = ProfileSpan::ALL.iter().map(|&span| profile.ns(span, clock)).sum();
    assert!(
        spans_ns > 0.0 && spans_ns < whole_ns,
        "{spans_ns} of {whole_ns}: the probes are subtracted"
    );
}

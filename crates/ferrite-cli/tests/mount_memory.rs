//! The memory of a mount's daemon. A program of its own: it makes the kernel drop its caches of all mounts, and other
//! tests of a program would do the same to it, or keep files open in the children that they start.

mod common;

use std::fs::{self, File};
use std::time::{Duration, Instant};

use common::{TestPool, has_fuse};

/// The daemon drops its data about files when the kernel forgets them, and most of the memory with it.
#[test]
fn inodes_that_the_kernel_forgot_are_forgotten() {
    const FILES: u64 = 50_000;
    const REMOVED: u64 = 35_000;
    /// Directories, files that other processes look at meanwhile, and the kernel's inodes that are in use somewhere.
    const REST: u64 = 300;
    /// Bytes of a known inode according to docs/mounting.md.
    const BYTES_EACH: std::ops::RangeInclusive<u64> = 96..=140;
    /// Bytes of those that are returned. Memory on a page with something in use stays: the more threads have worked,
    /// the more.
    const BYTES_BACK: u64 = 75;
    if !has_fuse() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can make the kernel forget");
        return;
    }
    let test = TestPool::new("512M", &["--inodes", "60000"]);
    let dram = |what: &str| test.info()["dram"][what].as_u64().unwrap();
    let known = || dram("cached_inodes");
    let resident_empty = resident_bytes(test.daemon());
    fs::create_dir(test.path("d")).unwrap();
    for n in 0..FILES {
        File::create(test.path(&format!("d/{n}"))).unwrap();
    }
    assert_eq!(fs::read_dir(test.path("d")).unwrap().count() as u64, FILES);
    let each = dram("bytes_per_cached_inode") + dram("inode_tables") / known().max(1);
    let (full, resident_full) = (dram("total"), resident_bytes(test.daemon()));
    // Check this last: a process that drops caches on this machine drops those of all mounts.
    if known() < FILES {
        eprintln!("skipped: the kernel forgot some of {FILES} files before it was asked to");
        return;
    }
    assert!(BYTES_EACH.contains(&each), "{each} bytes each");
    assert!(
        resident_full - resident_empty < FILES * BYTES_EACH.end() * 3 / 2,
        "{resident_empty} bytes of memory, then {resident_full}"
    );
    let soon = || Instant::now() + Duration::from_secs(30);
    let wait_for_memory = |forgotten: u64| {
        let end = soon();
        while resident_bytes(test.daemon()) + forgotten * BYTES_BACK > resident_full {
            assert!(
                Instant::now() < end,
                "{resident_full} bytes of memory, and no fewer since {forgotten} were forgotten"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    // The daemon forgets most at once, and the rest a while later.
    for n in 0..REMOVED {
        fs::remove_file(test.path(&format!("d/{n}"))).unwrap();
    }
    wait_for_memory(REMOVED);
    let end = soon();
    while known() > REST {
        assert!(Instant::now() < end, "{} inodes are known still", known());
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(full - dram("total") > FILES * 90, "the tables are as long as before");
    wait_for_memory(FILES);
    // A forgotten file can be found again.
    assert_eq!(fs::metadata(test.path(&format!("d/{REMOVED}"))).unwrap().len(), 0);
    test.finish();
}

/// Private memory of a process; the pool is not counted.
fn resident_bytes(process: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

//! Pools for the tests of the library.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod changes;

use std::path::Path;

use ferrite::{Fs, Mapping, MkfsOptions};
use ferrite_pm::{Access, Region};

/// The mapping for new pools: the one in `FERRITE_MAPPING`, else the default. So every test can run on each.
pub(crate) fn mapping() -> Mapping {
    std::env::var("FERRITE_MAPPING").map_or(Mapping::default(), |name| {
        Mapping::from_name(&name).unwrap_or_else(|| panic!("FERRITE_MAPPING: no mapping is called {name}"))
    })
}

/// Makes a pool and opens it.
pub(crate) fn create(pool: &Path, size_bytes: u64) -> Fs {
    let options = MkfsOptions::default().mapping(mapping());
    Fs::create_with(pool, size_bytes, &options).unwrap()
}

/// Runs `test` on a pool, which must be sound afterwards, and on the reference engine.
pub(crate) fn on_both(test: impl Fn(&Fs)) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let pool = create(&path, 64 << 20);
    test(&pool);
    pool.close().unwrap();
    fsck(&path);
    test(&Fs::memory());
}

/// Checks a pool that is closed.
pub(crate) fn fsck(pool: &Path) {
    let region = Region::open(pool, Access::ReadOnlyPrivate).unwrap();
    let report = ferrite_fs::fsck(region, &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

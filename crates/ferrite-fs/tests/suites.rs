//! The suites that every engine must pass (ferrite-testkit), on the PM engine: POSIX rules, random operations
//! compared with the reference engine, and concurrent histories.

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_pm::{Access, Region};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};
use ferrite_vfs::FileSystem;
use tempfile::TempPath;

const POOL_BYTES: u64 = 64 << 20;

/// A mounted pool in a file of its own.
struct PmEngine {
    engine: Engine,
    path: TempPath,
}

fn mount(path: &TempPath) -> Engine {
    let region = Region::open(path, Access::ReadWrite).unwrap();
    Engine::mount(region, &MountOptions::default()).unwrap()
}

fn make_pool(mapping: Mapping, size_bytes: u64) -> Box<dyn TestEngine> {
    make_pool_with(mapping, size_bytes, false)
}

fn make_pool_with(mapping: Mapping, size_bytes: u64, data_checksum: bool) -> Box<dyn TestEngine> {
    let shm = std::path::Path::new("/dev/shm");
    let dir = if shm.is_dir() {
        shm.to_path_buf()
    } else {
        std::env::temp_dir()
    };
    let path = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempfile_in(dir)
        .unwrap()
        .into_temp_path();
    let options = MkfsOptions {
        mapping,
        inodes: Some(40_000),
        data_checksum,
        ..MkfsOptions::default()
    };
    mkfs(&Region::create(&path, size_bytes).unwrap(), &options).unwrap();
    Box::new(PmEngine {
        engine: mount(&path),
        path,
    })
}

impl TestEngine for PmEngine {
    fn fs(&self) -> &dyn FileSystem {
        &self.engine
    }

    fn remount(&mut self) {
        self.engine.unmount().unwrap();
        // The region goes, and with it the lock, when the last clone does.
        self.engine = {
            let region = Region::anonymous(8 << 20).unwrap();
            mkfs(&region, &MkfsOptions::default()).unwrap();
            Engine::mount(region, &MountOptions::default()).unwrap()
        };
        self.engine = mount(&self.path);
    }

    fn check(&self) {
        // The mounted pool as a crash would leave it now.
        let image = Region::from_image(&std::fs::read(&self.path).unwrap()).unwrap();
        let report = fsck(image, &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        let report = self.engine.scrub(None).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

#[test]
fn posix_rules() {
    for &mapping in Mapping::ALL {
        println!("{mapping}");
        posix::run_all(|| make_pool(mapping, POOL_BYTES));
    }
}

#[test]
fn concurrent_histories() {
    for &mapping in Mapping::ALL {
        println!("{mapping}");
        linear::run_all(|| make_pool(mapping, POOL_BYTES), 1);
    }
}

/// Over 1,200 random sequences, with remounts in the middle, against the reference engine; most of them on the default mapping.
#[test]
fn random_operations() {
    for &mapping in Mapping::ALL {
        let seeds = match (std::env::var_os("FERRITE_SOAK"), mapping == Mapping::default()) {
            (Some(_), _) => 1000,
            (None, true) => 140,
            (None, false) => 12,
        };
        println!("{mapping}");
        for profile in Profile::ALL {
            for seed in 0..seeds {
                check_against_reference(|| make_pool(mapping, 64 << 20), profile, seed, 200);
            }
        }
    }
}

/// The same where data carries checksums, each of which must be right in the end.
#[test]
fn suites_with_data_checksums() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    for &mapping in Mapping::ALL {
        let is_default = mapping == Mapping::default();
        let seeds = match (soak, is_default) {
            (true, _) => 300,
            (false, true) => 30,
            (false, false) => 5,
        };
        println!("{mapping}");
        for profile in Profile::ALL {
            for seed in 0..seeds {
                check_against_reference(|| make_pool_with(mapping, 64 << 20, true), profile, 10_000 + seed, 200);
            }
        }
        if soak || is_default {
            posix::run_all(|| make_pool_with(mapping, POOL_BYTES, true));
            linear::run_all(|| make_pool_with(mapping, POOL_BYTES, true), 1);
        }
    }
}

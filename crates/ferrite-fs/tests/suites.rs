//! The suites that every engine must pass (ferrite-testkit), on the PM engine: POSIX rules, random operations
//! compared with the reference engine, and concurrent histories.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ferrite_fs::{Durability, Engine, Mapping, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_pm::{Access, Image, Region};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::network::{Conditions, Remote};
use ferrite_testkit::posix::Case;
use ferrite_testkit::{TestEngine, linear, posix, two_at_a_time};
use ferrite_vfs::FileSystem;
use rustix::fs::SeekFrom;
use tempfile::TempPath;

/// The size of a suite's pool.
struct Size {
    bytes: u64,
    inodes: u64,
}

/// For cases that make thousands of files.
const LARGE: Size = Size {
    bytes: 64 << 20,
    inodes: 40_000,
};
/// For a case that does not.
const MEDIUM: Size = Size {
    bytes: 64 << 20,
    inodes: 4_000,
};
/// For some hundred operations: a pool is zeroed, scanned and read whole for them.
const SMALL: Size = Size {
    bytes: 32 << 20,
    inodes: 4_000,
};

/// For a case of the POSIX suite.
fn size_for(case: &Case) -> &'static Size {
    if case.is_large() { &LARGE } else { &MEDIUM }
}

/// Sizes that units of page logs may have, each for the mapping of that number: pools with them have words that are
/// divided elsewhere than in the middle.
const LOG_UNITS_BYTES: [u32; Mapping::ALL.len()] = [64, 128, 256, 512, 1024];

/// A mounted pool in its own file.
struct PmEngine {
    /// `None` only during a remount.
    engine: Option<Engine>,
    path: TempPath,
    options: MountOptions,
}

fn mount(path: &TempPath, options: &MountOptions) -> Engine {
    let region = Region::open(path, Access::ReadWrite).unwrap();
    Engine::mount(region, options).unwrap()
}

fn make_pool(mapping: Mapping, size: &Size) -> Box<dyn TestEngine> {
    make_pool_with(mapping, size, false)
}

fn make_pool_with(mapping: Mapping, size: &Size, data_checksum: bool) -> Box<dyn TestEngine> {
    Box::new(make_engine(mapping, size, data_checksum))
}

/// Behind a network that delays, reorders and repeats.
fn make_remote(size: &Size, data_checksum: bool, seed: u64) -> Box<dyn TestEngine> {
    let engine = make_engine(Mapping::default(), size, data_checksum);
    Box::new(Remote::new(engine, Conditions::rough(seed)))
}

fn make_engine(mapping: Mapping, size: &Size, data_checksum: bool) -> PmEngine {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() {
        shm.to_path_buf()
    } else {
        std::env::temp_dir()
    };
    make_engine_in(&dir, mapping, size, data_checksum, MountOptions::default())
}

/// In a file on a disk, durable at `fsync` or at once.
fn make_deferred(durability: Durability, mapping: Mapping, size: &Size, data_checksum: bool) -> Box<dyn TestEngine> {
    let options = MountOptions::default().durability(durability);
    let engine = make_engine_in(&std::env::temp_dir(), mapping, size, data_checksum, options);
    let waits = engine.fs().limits().is_durable_at_once();
    assert_eq!(
        waits,
        durability == Durability::Strict,
        "the directory for temporary files is not on a disk"
    );
    assert!(engine.fs().limits().may_block);
    Box::new(engine)
}

fn make_engine_in(
    dir: &Path,
    mapping: Mapping,
    size: &Size,
    data_checksum: bool,
    mount_options: MountOptions,
) -> PmEngine {
    let path = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempfile_in(dir)
        .unwrap()
        .into_temp_path();
    let options = MkfsOptions::default()
        .mapping(mapping)
        .inodes(size.inodes)
        .data_checksum(data_checksum)
        .log_unit_bytes(data_checksum.then(|| LOG_UNITS_BYTES[mapping as usize]));
    let region = if dir.starts_with("/dev/shm") {
        // A file with holes: memory for all of it would be found and freed for each case.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(size.bytes).unwrap();
        Region::open(&path, Access::ReadWrite).unwrap()
    } else {
        Region::create(&path, size.bytes).unwrap()
    };
    mkfs(&region, &options).unwrap();
    drop(region);
    PmEngine {
        engine: Some(mount(&path, &mount_options)),
        path,
        options: mount_options,
    }
}

/// All bytes of a mounted pool as they were at one moment. A single read takes a while, in which the cleaner may move a
/// page: the copy has the word of its new block, but the checksum of the old content. Bytes that two reads find equal
/// were there between them.
fn at_one_moment(path: &TempPath) -> Image {
    let file = File::open(path).unwrap();
    let mut image = Image::read(path).unwrap();
    for _ in 0..100 {
        if !read_again(&file, &mut image) {
            return image;
        }
    }
    panic!("nobody uses the pool, and still it changes");
}

/// Returns whether the file differs from `image`, and updates `image`. Holes are not read: they are zeros in both.
fn read_again(file: &File, image: &mut Image) -> bool {
    let mut found = [0; 64 << 10];
    let mut differs = false;
    let mut end = 0;
    while let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(end)) {
        end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap();
        for at in (start..end).step_by(found.len()) {
            let found = &mut found[..(end - at).min(64 << 10) as usize];
            file.read_exact_at(found, at).unwrap();
            let seen = at as usize..at as usize + found.len();
            if image[seen.clone()] != *found {
                image[seen].copy_from_slice(found);
                differs = true;
            }
        }
    }
    differs
}

impl PmEngine {
    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("mounted")
    }
}

impl TestEngine for PmEngine {
    fn fs(&self) -> &dyn FileSystem {
        self.engine()
    }

    fn remount(&mut self) {
        self.engine().unmount().unwrap();
        // Dropping the last clone drops the region, and with it the lock.
        self.engine = None;
        self.engine = Some(mount(&self.path, &self.options));
    }

    fn check(&self) {
        // The mounted pool as a crash would leave it now.
        let image = Region::of_image(&at_one_moment(&self.path)).unwrap();
        let report = fsck(image, &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        let report = self.engine().scrub(None).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

/// All of them; one where `FERRITE_SHORT` is set.
fn mappings() -> &'static [Mapping] {
    match std::env::var_os("FERRITE_SHORT") {
        Some(_) => &Mapping::ALL[..1],
        None => Mapping::ALL,
    }
}

#[test]
fn posix_rules() {
    for &mapping in mappings() {
        println!("{mapping}");
        posix::run_all_on(|case| make_pool(mapping, size_for(case)));
    }
}

#[test]
fn what_is_opened_read_only_refuses_the_open() {
    for &mapping in mappings() {
        println!("{mapping}");
        let mut pool = make_engine(mapping, &SMALL, false);
        posix::read_only::prepare(pool.fs());
        pool.options = MountOptions::default().read_only(true);
        pool.remount();
        posix::read_only::check(pool.fs());
        pool.options = MountOptions::default();
        pool.remount();
        pool.check();
    }
}

#[test]
fn concurrent_histories() {
    for &mapping in mappings() {
        println!("{mapping}");
        linear::run_all(|| make_pool(mapping, &LARGE), 1);
    }
}

/// Over 1,200 random sequences, with remounts in the middle, against the reference engine; most of them on the default
/// mapping.
#[test]
fn random_operations() {
    two_at_a_time(mappings(), |&mapping| {
        println!("{mapping}");
        let seeds = match (std::env::var_os("FERRITE_SOAK"), mapping == Mapping::default()) {
            _ if mappings().len() == 1 => 20,
            (Some(_), _) => 1000,
            (None, true) => 140,
            (None, false) => 12,
        };
        for profile in Profile::ALL {
            for seed in 0..seeds {
                check_against_reference(|| make_pool(mapping, &SMALL), profile, seed, 200);
            }
        }
    });
}

/// The same where data carries checksums, each of which must be right in the end, and with the log units of larger
/// pools.
#[test]
fn suites_with_data_checksums() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    for &mapping in mappings() {
        let is_default = mapping == Mapping::default();
        let seeds = match (soak, is_default) {
            (true, _) => 300,
            (false, true) => 30,
            (false, false) => 5,
        };
        println!("{mapping}");
        for profile in Profile::ALL {
            for seed in 0..seeds {
                check_against_reference(|| make_pool_with(mapping, &SMALL, true), profile, 10_000 + seed, 200);
            }
        }
        if soak || is_default {
            posix::run_all_on(|case| make_pool_with(mapping, size_for(case), true));
            linear::run_all(|| make_pool_with(mapping, &LARGE, true), 1);
        }
    }
}

/// The same on a disk file with operations that are durable at `fsync`; each check examines the state that a kill would
/// leave.
#[test]
fn suites_with_deferred_write_back() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    for &mapping in mappings() {
        let is_default = mapping == Mapping::default();
        println!("{mapping}");
        let seeds = match (soak, is_default) {
            (true, _) => 100,
            (false, true) => 4,
            (false, false) => 1,
        };
        for profile in Profile::ALL {
            for seed in 0..seeds {
                let durability = [Durability::OnSync, Durability::Strict][usize::from(seed % 4 == 2)];
                let make = || make_deferred(durability, mapping, &SMALL, seed % 2 == 1);
                check_against_reference(make, profile, 40_000 + seed, 200);
            }
        }
        if soak {
            linear::run_all(|| make_deferred(Durability::Strict, mapping, &LARGE, false), 1);
        }
    }
    if soak || mappings().len() > 1 {
        posix::run_all_on(|case| make_deferred(Durability::OnSync, Mapping::default(), size_for(case), false));
    }
}

/// The same over a network, whose delays and repetitions must not show.
#[test]
fn suites_over_a_network() {
    let is_short = mappings().len() == 1;
    for profile in Profile::ALL {
        for seed in 0..if is_short { 2 } else { 6 } {
            check_against_reference(|| make_remote(&SMALL, false, seed), profile, 20_000 + seed, 200);
        }
    }
    linear::run_all(|| make_remote(&LARGE, false, 1), 1);
    if !is_short {
        posix::run_all_on(|case| make_remote(size_for(case), false, 2));
    }
}

/// A few of them where data carries checksums as well.
#[test]
fn suites_over_a_network_with_data_checksums() {
    for profile in Profile::ALL {
        check_against_reference(|| make_remote(&SMALL, true, 3), profile, 30_000, 200);
    }
    linear::run_all(|| make_remote(&LARGE, true, 4), 1);
    if std::env::var_os("FERRITE_SOAK").is_some() {
        posix::run_all_on(|case| make_remote(size_for(case), true, 5));
    }
}

//! The suites that every engine must pass (ferrite-testkit), on the NVMe engine with its stores in memory.

use crate::common::{BACKENDS, Backend, Memory};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};

/// Data stores of a pool.
const STORES: usize = 2;
/// Clusters of each.
const CLUSTERS: u64 = 128;
/// Bits of the hash of names.
const HASH_BITS: u32 = 62;

/// The length from which files have blobs: as soon as they can, in between, and as late as possible.
const SMALL_BYTES_MAX: [u64; 3] = [2048, 6000, 32 << 10];

/// Backends of metadata, each with another length of small files, and the quickest with all.
fn kinds() -> impl Iterator<Item = (Backend, u64)> {
    let others = BACKENDS[1..].iter().zip([6000, 32 << 10, 2048]);
    let others = others.map(|(&backend, small_bytes_max)| (backend, small_bytes_max));
    SMALL_BYTES_MAX
        .into_iter()
        .map(|bytes| (Backend::Memory, bytes))
        .chain(others)
}

fn make((backend, small_bytes_max): (Backend, u64)) -> Box<dyn TestEngine> {
    Box::new(Memory::at(backend, STORES, CLUSTERS, HASH_BITS).with_small_files(small_bytes_max))
}

#[test]
fn posix_rules() {
    for kind in kinds() {
        println!("{kind:?}");
        posix::run_all(|| make(kind));
    }
}

#[test]
fn what_is_opened_read_only_refuses_the_open() {
    let mut pool = Memory::at(Backend::Memory, STORES, CLUSTERS, HASH_BITS);
    posix::read_only::prepare(pool.engine());
    pool.close();
    pool.open_read_only();
    posix::read_only::check(pool.engine());
    pool.close();
    pool.open();
    pool.check();
}

#[test]
fn concurrent_histories() {
    for kind in kinds() {
        println!("{kind:?}");
        linear::run_all(|| make(kind), 1);
    }
}

#[test]
fn random_operations() {
    let seeds = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 500,
        None => 40,
    };
    for kind in kinds() {
        println!("{kind:?}");
        let seeds = if kind.0 == Backend::Memory { seeds } else { seeds / 5 };
        for profile in Profile::ALL {
            for seed in 0..seeds {
                check_against_reference(|| make(kind), profile, seed, 200);
            }
        }
    }
}

/// Names whose hashes collide again and again.
#[test]
fn random_operations_with_colliding_names() {
    for profile in Profile::ALL {
        for seed in 0..30 {
            check_against_reference(
                || Box::new(Memory::new(STORES, CLUSTERS, 4)),
                profile,
                5_000 + seed,
                200,
            );
        }
    }
}

/// Files that are replaced faster than the housekeeper runs take no more space than there is.
#[test]
fn replaced_files_give_their_space_back_in_time() {
    use ferrite_vfs::{Cred, OpenFlags, SYSTEM, Vfs};
    let pool = Memory::new(STORES, 24, HASH_BITS).with_small_files(2048);
    let vfs = Vfs::new(pool.shared(), Cred::root());
    let flags = OpenFlags {
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    for round in 0..2000 {
        let file = vfs.open(b"/new", &flags).unwrap();
        file.write_at(SYSTEM, 0, &[1; 6000])
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        drop(file);
        vfs.rename(b"/new", b"/old", ferrite_vfs::RenameMode::Replace).unwrap();
    }
    pool.check();
}

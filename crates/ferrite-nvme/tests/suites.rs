//! The suites that every engine must pass (ferrite-testkit), on the NVMe engine with its stores in memory.

mod common;

use common::{HOMES, Home, Memory};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};

/// Data stores of a pool.
const STORES: usize = 2;
/// Clusters of each.
const CLUSTERS: u64 = 128;
/// Bits of the hash of names.
const HASH_BITS: u32 = 62;

fn make(home: Home) -> Box<dyn TestEngine> {
    Box::new(Memory::at(home, STORES, CLUSTERS, HASH_BITS))
}

#[test]
fn posix_rules() {
    for &home in HOMES {
        println!("{home:?}");
        posix::run_all(|| make(home));
    }
}

#[test]
fn concurrent_histories() {
    for &home in HOMES {
        println!("{home:?}");
        linear::run_all(|| make(home), 1);
    }
}

#[test]
fn random_operations() {
    let seeds = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 500,
        None => 40,
    };
    for &home in HOMES {
        println!("{home:?}");
        let seeds = if home == Home::Memory { seeds } else { seeds / 5 };
        for profile in Profile::ALL {
            for seed in 0..seeds {
                check_against_reference(|| make(home), profile, seed, 200);
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

/// Files that are replaced faster than the housekeeper comes round take no more room than there is.
#[test]
fn replaced_files_give_their_room_back_in_time() {
    use ferrite_vfs::{Cred, OpenFlags, SYSTEM, Vfs};
    let pool = Memory::new(STORES, 24, HASH_BITS);
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

//! The suites that every engine must pass, over a real connection: on the reference engine and on a pool.

use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::posix::Case;
use ferrite_testkit::{TestEngine, linear, posix};
use ferrite_transport::secure::Key;

use crate::common::{RemotePool, RemoteReference};

fn reference() -> Box<dyn TestEngine> {
    Box::new(RemoteReference::new())
}

/// Of a pool for a case of the POSIX suite.
fn inodes_for(case: &Case) -> u64 {
    if case.is_large() { 40_000 } else { 4_000 }
}

fn pool() -> Box<dyn TestEngine> {
    Box::new(RemotePool::new(64 << 20, 40_000))
}

fn encrypted_pool() -> Box<dyn TestEngine> {
    let key = Key::generate().unwrap();
    Box::new(RemotePool::with_key(64 << 20, 40_000, Some(key)))
}

fn leased_reference() -> Box<dyn TestEngine> {
    Box::new(RemoteReference::leased(1 << 20))
}

fn leased_pool() -> Box<dyn TestEngine> {
    Box::new(RemotePool::leased(64 << 20, 40_000, 8 << 20))
}

/// So small that the cache evicts all the time.
fn leased_small_pool() -> Box<dyn TestEngine> {
    Box::new(RemotePool::leased(32 << 20, 4_000, 16 << 10))
}

fn small_pool() -> Box<dyn TestEngine> {
    Box::new(RemotePool::new(32 << 20, 4_000))
}

fn seeds() -> u64 {
    match (std::env::var_os("FERRITE_SHORT"), std::env::var_os("FERRITE_SOAK")) {
        (Some(_), _) => 2,
        (None, Some(_)) => 200,
        (None, None) => 10,
    }
}

#[test]
fn posix_rules_on_the_reference() {
    posix::run_all(reference);
}

#[test]
fn posix_rules_on_a_pool() {
    posix::run_all_on(|case| Box::new(RemotePool::new(64 << 20, inodes_for(case))));
}

#[test]
fn posix_rules_on_a_pool_with_encryption() {
    let key = Key::generate().unwrap();
    posix::run_all_on(|case| {
        let key = Some(key.clone());
        Box::new(RemotePool::with_key(64 << 20, inodes_for(case), key))
    });
}

#[test]
fn concurrent_histories_on_a_pool_with_encryption() {
    linear::run_all(encrypted_pool, 1);
}

#[test]
fn concurrent_histories_on_the_reference() {
    linear::run_all(reference, 1);
}

#[test]
fn concurrent_histories_on_a_pool() {
    linear::run_all(pool, 1);
}

#[test]
fn posix_rules_with_leased_caches() {
    posix::run_all(leased_reference);
    posix::run_all_on(|case| Box::new(RemotePool::leased(64 << 20, inodes_for(case), 8 << 20)));
}

#[test]
fn concurrent_histories_with_leased_caches() {
    linear::run_all(leased_reference, 1);
    linear::run_all(leased_pool, 1);
}

#[test]
fn random_operations_with_leased_caches() {
    for profile in Profile::ALL {
        for seed in 0..seeds() {
            check_against_reference(leased_reference, profile, seed, 200);
            check_against_reference(leased_small_pool, profile, seed, 200);
        }
    }
}

#[test]
fn random_operations() {
    for profile in Profile::ALL {
        for seed in 0..seeds() {
            check_against_reference(reference, profile, seed, 200);
            check_against_reference(small_pool, profile, seed, 200);
        }
    }
}

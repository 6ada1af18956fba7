//! The suites on pools whose metadata is in a real PostgreSQL, each in a volume of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::common::Memory;
use ferrite_meta::{PostgresOptions, PostgresRemote};
use ferrite_test_clusters::{Postgres, PostgresOptions as Cluster, or_skip};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};

/// The shard that these pools use.
const SHARD: u64 = 1;

/// The server that all tests share.
fn server() -> Option<&'static Postgres> {
    static SERVER: OnceLock<Option<Postgres>> = OnceLock::new();
    SERVER
        .get_or_init(|| or_skip(Postgres::start(&Cluster::default())))
        .as_ref()
}

fn make(server: &Postgres) -> Box<dyn TestEngine> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let volume = format!("v{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let remote = PostgresRemote::new(&PostgresOptions::new(&server.connection(), &volume)).unwrap();
    remote.create(SHARD).unwrap();
    Box::new(Memory::on_database(Arc::new(remote), 2, 128, 62).with_small_files(2048))
}

/// `FERRITE_SOAK` adds the cases that make thousands of names, one after the other, each with a commit of its own.
#[test]
fn posix_rules() {
    let Some(server) = server() else { return };
    match std::env::var_os("FERRITE_SOAK") {
        Some(_) => posix::run_all(|| make(server)),
        None => posix::run_small(|| make(server)),
    }
}

#[test]
fn concurrent_histories() {
    let Some(server) = server() else { return };
    linear::run_all(|| make(server), 1);
}

#[test]
fn random_operations() {
    let Some(server) = server() else { return };
    for profile in Profile::ALL {
        for seed in 0..2 {
            check_against_reference(|| make(server), profile, 9_000 + seed, 120);
        }
    }
}

//! The suites that every engine must pass, over fabrics: the same as over TCP (`suites.rs`), in smaller doses.

mod common;

use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};
use ferrite_vfs::{NewFile, OpenMode, ROOT_INO, SYSTEM};

use common::{RemotePool, RemoteReference};

/// Whether the machine has a provider. Says so if not.
fn has(provider: &str) -> bool {
    let is_there = ferrite_fabric::Provider::named(provider).is_some_and(ferrite_fabric::Provider::is_there);
    if !is_there {
        eprintln!("skipped: libfabric has no provider {provider} here");
    }
    is_there
}

/// The long ones open hundreds of endpoints, which takes minutes.
fn is_long_run() -> bool {
    let is_long = std::env::var_os("FERRITE_SOAK").is_some();
    if !is_long {
        eprintln!("skipped: set FERRITE_SOAK to run all cases");
    }
    is_long
}

fn shm() -> Box<dyn TestEngine> {
    Box::new(RemotePool::over(Some("shm"), 64 << 20, 40_000))
}

fn shm_reference() -> Box<dyn TestEngine> {
    Box::new(RemoteReference::over(Some("shm")))
}

fn tcp_reference() -> Box<dyn TestEngine> {
    Box::new(RemoteReference::over(Some("tcp")))
}

fn tcp() -> Box<dyn TestEngine> {
    Box::new(RemotePool::over(Some("tcp"), 64 << 20, 40_000))
}

#[test]
fn posix_rules_over_shm() {
    if has("shm") && is_long_run() {
        posix::run_all(shm_reference);
    }
}

#[test]
fn posix_rules_over_tcp() {
    if has("tcp") && is_long_run() {
        posix::run_all(tcp_reference);
    }
}

#[test]
fn concurrent_histories() {
    if has("shm") {
        linear::run_all(shm_reference, 1);
    }
}

#[test]
fn random_operations() {
    for (provider, make) in [
        ("shm", shm_reference as fn() -> Box<dyn TestEngine>),
        ("tcp", tcp_reference),
    ] {
        if has(provider) {
            check_against_reference(make, Profile::ALL[0], 1, 100);
            for profile in Profile::ALL.into_iter().filter(|_| is_long_run()) {
                check_against_reference(make, profile, 2, 200);
            }
        }
    }
}

/// Reads and writes of many sizes and offsets, by several threads at a time.
#[test]
fn files_hold_what_was_written() {
    for (provider, make) in [("shm", shm as fn() -> Box<dyn TestEngine>), ("tcp", tcp)] {
        if !has(provider) {
            continue;
        }
        let engine = make();
        let fs = engine.fs();
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                scope.spawn(move || {
                    let name = [b'f', b'0' + thread];
                    let new = NewFile {
                        mode: 0o644,
                        open: OpenMode::read_write(),
                        exclusive: true,
                    };
                    let file = fs.create(SYSTEM, ROOT_INO, &name, &new).unwrap().file;
                    let mut offset = 0;
                    for (turn, size) in [1, 4096, 33_000, 1 << 20, 2 << 20, 70_001].into_iter().enumerate() {
                        let data: Vec<u8> = (0..size).map(|at| (at * 7 + turn) as u8 ^ thread).collect();
                        assert_eq!(file.write_at(SYSTEM, offset, &data).unwrap(), size);
                        let mut back = vec![0; size + 100];
                        assert_eq!(file.read_at(SYSTEM, offset, &mut back).unwrap(), size);
                        assert!(back[..size] == data, "{provider}: {size} bytes came back otherwise");
                        offset += size as u64;
                    }
                });
            }
        });
    }
}

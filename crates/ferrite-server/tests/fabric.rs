//! The suites that every engine must pass, over fabrics: the same as over TCP (`suites.rs`), in smaller doses.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};
use ferrite_vfs::{FileSystem, NewFile, OpenMode, Position, ROOT_INO, SYSTEM};

use common::proxy::{NetworkFaults, Proxy};
use common::{RemotePool, RemoteReference, connect_over, export, make_pool, mount, options_for, serve};

/// Whether to test with a provider. Reports it if not. An explicitly requested one must be present.
fn has(name: &str) -> bool {
    let is_there = ferrite_transport::Provider::named(name).is_some_and(ferrite_transport::Provider::is_there);
    match std::env::var("FERRITE_FABRIC_PROVIDER") {
        Ok(wanted) if wanted == name => assert!(is_there, "libfabric has no provider {name} here"),
        Ok(_) => return false,
        Err(_) if name == "verbs" => return false,
        Err(_) if !is_there => eprintln!("skipped: libfabric has no provider {name} here"),
        Err(_) => {}
    }
    is_there
}

/// Whether to run tests of ten seconds, or only those of one.
fn is_long_run() -> bool {
    let is_long = std::env::var_os("FERRITE_SHORT").is_none();
    if !is_long {
        eprintln!("skipped: unset FERRITE_SHORT to run all cases");
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

fn verbs() -> Box<dyn TestEngine> {
    Box::new(RemotePool::over(Some("verbs"), 64 << 20, 40_000))
}

fn verbs_reference() -> Box<dyn TestEngine> {
    Box::new(RemoteReference::over(Some("verbs")))
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
fn posix_rules_over_verbs() {
    if has("verbs") && is_long_run() {
        posix::run_all(verbs_reference);
    }
}

#[test]
fn concurrent_histories() {
    for (provider, make) in [
        ("shm", shm_reference as fn() -> Box<dyn TestEngine>),
        ("tcp", tcp_reference),
        ("verbs", verbs_reference),
    ] {
        if has(provider) {
            linear::run_all(make, 1);
        }
    }
}

#[test]
fn random_operations() {
    for (provider, make) in [
        ("shm", shm_reference as fn() -> Box<dyn TestEngine>),
        ("tcp", tcp_reference),
        ("verbs", verbs_reference),
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
    for (provider, make) in [
        ("shm", shm as fn() -> Box<dyn TestEngine>),
        ("tcp", tcp),
        ("verbs", verbs),
    ] {
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
                        // Long reads for which little or no data is there.
                        for there in [0, 1, 5000] {
                            let from = offset + (size as u64).saturating_sub(there);
                            let count = (offset + size as u64 - from) as usize;
                            assert_eq!(
                                file.read_at(SYSTEM, from, &mut back[..size.min(70_000)]),
                                Ok(count.min(size.min(70_000)))
                            );
                        }
                        offset += size as u64;
                    }
                });
            }
        });
    }
}

/// Several pieces of bulk data at a time, of sizes that no page divides, and longer than one message carries.
#[test]
fn long_reads_and_writes_come_whole() {
    for (provider, make) in [
        ("shm", shm as fn() -> Box<dyn TestEngine>),
        ("tcp", tcp),
        ("verbs", verbs),
    ] {
        if !has(provider) {
            continue;
        }
        let engine = make();
        let fs = engine.fs();
        let new = NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        let file = fs.create(SYSTEM, ROOT_INO, b"f", &new).unwrap().file;
        for (turn, offset) in [0, 77, 4096].into_iter().enumerate() {
            let data: Vec<u8> = (0..5 << 20).map(|at| (at * 7 + (at >> 9) + turn) as u8).collect();
            let mut done = 0;
            while done < data.len() {
                done += file.write_at(SYSTEM, offset + done as u64, &data[done..]).unwrap();
            }
            for from in [0, 1 << 20, 3_000_001] {
                let mut back = vec![0; data.len()];
                let count = file.read_at(SYSTEM, offset + from as u64, &mut back).unwrap();
                assert!(back[..count] == data[from..], "{provider}: {count} bytes at {from}");
            }
        }
    }
}

/// The connection beside the fabric is cut repeatedly, with messages and bulk data in flight: acknowledged data is
/// there, once, and no caller notices.
#[test]
fn what_is_cut_beside_a_fabric_is_not_noticed() {
    const RECORD_BYTES: usize = 9000;
    for provider in ["shm", "tcp", "verbs"] {
        if !has(provider) {
            continue;
        }
        let path = make_pool(64 << 20, 1000);
        let engine = mount(&path);
        let options = options_for(Some(provider)).threads(2);
        let (_server, address) = serve(Arc::new(engine.clone()), vec![export("")], &options);
        let network = Proxy::new(&address, NetworkFaults::default(), 1);
        let client = connect_over(Some(provider), &network.address);
        let new = NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        let file = client.create(SYSTEM, ROOT_INO, b"log", &new).unwrap().file;
        let is_over = AtomicBool::new(false);
        let record = |thread: u8, number: u32| {
            let mut record = vec![thread; RECORD_BYTES];
            record[..4].copy_from_slice(&number.to_le_bytes());
            record
        };
        let written: Vec<u32> = std::thread::scope(|scope| {
            let (file, client, is_over, record) = (&file, &client, &is_over, &record);
            let writers: Vec<_> = (0..3u8)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut number = 0;
                        while !is_over.load(Ordering::Acquire) && number < 500 {
                            let data = record(thread, number);
                            let written = file.write(SYSTEM, Position::End.into(), &data).unwrap();
                            assert_eq!(written.len_bytes, RECORD_BYTES);
                            let mut back = vec![0; RECORD_BYTES];
                            assert_eq!(file.read_at(SYSTEM, written.offset, &mut back), Ok(RECORD_BYTES));
                            assert!(back == data, "{provider}: what came back is another's");
                            let name = [b'd', b'0' + thread];
                            client.mkdir(SYSTEM, ROOT_INO, &name, 0o755).unwrap();
                            client.rmdir(SYSTEM, ROOT_INO, &name).unwrap();
                            number += 1;
                        }
                        number
                    })
                })
                .collect();
            for _ in 0..12 {
                std::thread::sleep(Duration::from_millis(60));
                network.cut();
            }
            is_over.store(true, Ordering::Release);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert!(client.reconnects() > 0);
        let mut content = vec![0; written.iter().sum::<u32>() as usize * RECORD_BYTES];
        let mut done = 0;
        while done < content.len() {
            let count = file.read_at(SYSTEM, done as u64, &mut content[done..]).unwrap();
            assert!(count > 0, "{provider}: {done} bytes are there, not {}", content.len());
            done += count;
        }
        let mut next = [0; 3];
        for found in content.chunks_exact(RECORD_BYTES) {
            let thread = found[RECORD_BYTES - 1];
            assert!(
                *found == record(thread, next[usize::from(thread)]),
                "lost, torn or there twice"
            );
            next[usize::from(thread)] += 1;
        }
        assert_eq!(next.to_vec(), written);
    }
}

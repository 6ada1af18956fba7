//! The data that RocksDB's store keeps over closing, killing and power failures, and its errors about damage and lack
//! of space.
#![cfg(feature = "rocksdb")]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{change, in_directory, on_blobs, small};
use ferrite_measure::Rng;
use ferrite_meta::{Backend, BlobError, Blobs, Error, Lock, MemoryBlobs, MetaStore, Options, RocksStore};

fn backends(dir: &Path) -> [Backend; 2] {
    [
        Backend::Directory(dir.join("meta")),
        Backend::Blobs(Arc::new(MemoryBlobs::new(512 << 20, false))),
    ]
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

fn value(number: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(number << 32 | version);
    let mut value = version.to_be_bytes().to_vec();
    value.extend((0..rng.below(300)).map(|_| rng.next_u64() as u8));
    value
}

#[test]
fn what_is_committed_is_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    for backend in backends(dir.path()) {
        // Tables, their merges, and several logs.
        for round in 0..4_u64 {
            let store = RocksStore::open(backend.clone(), &small()).unwrap();
            for number in 0..2000 {
                if round > 0 && number % 7 == round {
                    assert_eq!(store.get(&key(number)).unwrap(), Some(value(number, round - 1)));
                }
                change(&store, |txn| txn.put(&key(number), &value(number, round))).unwrap();
            }
            if round == 2 {
                store.compact().unwrap();
            }
            // Closing reports errors, dropping does the same work.
            if round % 2 == 0 {
                store.close().unwrap();
            }
        }
        let store = RocksStore::open(backend, &small()).unwrap();
        let mut count = 0;
        let all = &mut |at: &[u8], there: &[u8]| {
            assert_eq!((at, there), (&*key(count), &*value(count, 3)));
            count += 1;
            ControlFlow::Continue(())
        };
        store.scan(b"", b"\xff", all).unwrap();
        assert_eq!(count, 2000);
    }
}

/// Without it, a prefix's filter would never be consulted: recent writes are not in tables.
#[test]
fn scans_of_tables_within_a_prefix_see_all_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    for backend in backends(dir.path()) {
        let store = RocksStore::open(backend, &small()).unwrap();
        for parent in 0..300_u32 {
            change(&store, |txn| {
                (0..parent % 4)
                    .try_for_each(|child| txn.put(&[&parent.to_be_bytes()[..], &[child as u8]].concat(), b"x"))
            })
            .unwrap();
        }
        change(&store, |txn| txn.put(b"\0\0\0", b"shorter than a prefix")).unwrap();
        store.compact().unwrap();
        let count = |from: &[u8], to: &[u8]| {
            let mut count = 0;
            let visit = &mut |_: &[u8], _: &[u8]| {
                count += 1;
                ControlFlow::Continue(())
            };
            store.scan(from, to, visit).unwrap();
            count
        };
        for parent in 0..300_u32 {
            let (from, to) = (parent.to_be_bytes(), (parent + 1).to_be_bytes());
            assert_eq!(count(&from, &to), parent % 4, "below {parent}");
            assert_eq!(count(&from, &[&from[..], &[1]].concat()), (parent % 4).min(1));
            assert_eq!(
                count(&from[..3], &to),
                (0..=parent % 256)
                    .map(|low| (parent / 256 * 256 + low) % 4)
                    .sum::<u32>()
                    + u32::from(parent < 256)
            );
        }
        assert_eq!(count(b"", b"\xff"), 75 * 6 + 1);
        assert_eq!(count(b"\0\0\0", b"\0\0\0\0"), 1);
    }
}

#[test]
fn a_store_is_created_only_when_asked_and_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    for backend in backends(dir.path()) {
        let careful = Options {
            create: false,
            ..small()
        };
        let open = |options: &Options| RocksStore::open(backend.clone(), options);
        assert!(matches!(open(&careful), Err(Error::Missing(_))), "{backend}");
        drop(open(&small()).unwrap());
        let first = open(&careful).unwrap();
        if let Backend::Directory(_) = &backend {
            let error = open(&careful).err().unwrap();
            assert!(matches!(error, Error::InUse(_)), "{error}");
        }
        first.close().unwrap();
        open(&careful).unwrap();
    }
}

/// A device that is slow to write, and may have space for all but RocksDB's merges.
struct Odd {
    blobs: MemoryBlobs,
    write_takes: Duration,
    has_no_space_to_merge: AtomicBool,
}

impl Blobs for Odd {
    fn create(&self, metadata: &[u8]) -> Result<u64, BlobError> {
        self.blobs.create(metadata)
    }
    fn delete(&self, id: u64) -> Result<(), BlobError> {
        self.blobs.delete(id)
    }
    fn ids(&self) -> Result<Vec<u64>, BlobError> {
        self.blobs.ids()
    }
    fn metadata(&self, id: u64) -> Result<Vec<u8>, BlobError> {
        self.blobs.metadata(id)
    }
    fn read_at(&self, id: u64, into: &mut [u8], offset: u64) -> Result<(), BlobError> {
        self.blobs.read_at(id, into, offset)
    }
    fn write_at(&self, id: u64, data: &[u8], offset: u64, metadata: Option<&[u8]>) -> Result<(), BlobError> {
        thread::sleep(self.write_takes);
        self.blobs.write_at(id, data, offset, metadata)
    }
    fn size_bytes(&self) -> Result<u64, BlobError> {
        self.blobs.size_bytes()
    }
    fn free_bytes(&self) -> Result<u64, BlobError> {
        let is_merging = || std::fs::read("/proc/thread-self/comm").unwrap() == b"rocksdb:low\n";
        match self.has_no_space_to_merge.load(Ordering::Relaxed) && is_merging() {
            true => Ok(0),
            false => self.blobs.free_bytes(),
        }
    }
}

/// While one sync is on its way, others wait, and the next one is for all of them: 16 threads make at most a sync for
/// four commits. They are faster than one for it, by how much is left open: a busy machine has its share in that.
#[test]
fn threads_that_commit_at_a_time_share_syncs() {
    let device = Odd {
        blobs: MemoryBlobs::new(512 << 20, false),
        write_takes: Duration::from_millis(5),
        has_no_space_to_merge: AtomicBool::new(false),
    };
    let options = Options {
        write_buffer_bytes: 8 << 20,
        ..small()
    };
    let store = RocksStore::open(Backend::Blobs(Arc::new(device)), &options).unwrap();
    let rate = |threads: u64, each: u64| {
        let start = Instant::now();
        thread::scope(|scope| {
            for thread in 0..threads {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..each {
                        change(store, |txn| txn.put(&key(thread * each + number), b"value")).unwrap();
                    }
                });
            }
        });
        (threads * each) as f64 / start.elapsed().as_secs_f64()
    };
    let one = rate(1, 200);
    let before = store.statistics().log_syncs;
    let many = rate(16, 100);
    let counted = store.statistics();
    let syncs = counted.log_syncs - before;
    assert!(syncs >= 100, "{syncs} syncs: commits are synchronous");
    assert!(syncs < 1600 / 4, "{syncs} syncs for 1600 commits");
    assert!(
        many > 2.0 * one,
        "{many:.0} commits a second by 16 threads, {one:.0} by one"
    );
    assert!(counted.log_bytes > 0 && counted.memory_bytes > 0);
}

/// Transactions that only read or lock cost no sync.
#[test]
fn a_transaction_that_changes_nothing_writes_nothing() {
    let store = on_blobs(&Arc::new(MemoryBlobs::new(64 << 20, false))).unwrap();
    change(&store, |txn| txn.put(b"k", b"1")).unwrap();
    let before = store.statistics();
    for _ in 0..10 {
        change(&store, |txn| {
            txn.get_for_update(b"k", Lock::Exclusive)?;
            txn.savepoint();
            txn.put(b"k", b"2")?;
            txn.rollback_to_savepoint()
        })
        .unwrap();
    }
    assert_eq!(store.statistics().log_syncs, before.log_syncs);
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"1"[..]));
}

const CHILD: &str = "FERRITE_META_CHILD";
const CHILD_THREADS: u64 = 4;

/// Commits, and reports each commit, until it is killed.
#[test]
#[ignore = "the process that the next test kills"]
fn child_that_commits() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let store = in_directory(Path::new(&dir)).unwrap();
    thread::scope(|scope| {
        for thread in 0..CHILD_THREADS {
            let store = &store;
            scope.spawn(move || {
                for number in 0.. {
                    change(store, |txn| {
                        txn.put(&key(thread * 1_000_000 + number), &value(number, thread))?;
                        txn.put(&key(thread * 1_000_000), &value(number, thread))
                    })
                    .unwrap();
                    // One write, so that lines of threads do not mix.
                    println!("done {thread} {number}.");
                }
            });
        }
    });
}

#[test]
fn what_a_killed_process_acknowledged_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = vec![None; CHILD_THREADS as usize];
    for round in 0..4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_commits", "--ignored", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut seen = 0;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            let Some(done) = line.strip_prefix("done ").and_then(|rest| rest.strip_suffix('.')) else {
                continue;
            };
            let (thread, number) = done.split_once(' ').unwrap();
            let at = &mut acknowledged[thread.parse::<usize>().unwrap()];
            *at = (*at).max(number.parse::<u64>().ok());
            seen += 1;
            if seen == 100 + 137 * round {
                child.kill().unwrap();
            }
        }
        assert!(!child.wait().unwrap().success(), "it was killed");
        assert!(seen >= 100 + 137 * round, "{seen} lines only");
        let store = in_directory(dir.path()).unwrap();
        for (thread, most) in (0_u64..).zip(&acknowledged) {
            for number in 1..=most.unwrap() {
                let there = store.get(&key(thread * 1_000_000 + number)).unwrap();
                assert_eq!(there, Some(value(number, thread)), "thread {thread}, {number}");
            }
        }
    }
}

fn seed() -> u64 {
    let given = std::env::var("FERRITE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()) * 1_000_003);
    eprintln!("FERRITE_SEED={seed}");
    seed
}

/// The device loses power after any of its writes, or within one. Commits acknowledged before are there; of the others
/// all or nothing; and the store keeps working. Tables are written and merged, logs end and begin meanwhile.
#[test]
fn what_was_acknowledged_before_a_power_failure_is_there() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let images = if std::env::var_os("FERRITE_SOAK").is_some() {
        2000
    } else {
        60
    };
    let blobs = Arc::new(MemoryBlobs::new(512 << 20, true));
    // Of each thread: changes of the device before each commit began, and after it was acknowledged.
    let commits = Mutex::new(vec![Vec::new(); 3]);
    {
        let store = on_blobs(&blobs).unwrap();
        thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (store, blobs, commits) = (&store, &blobs, &commits);
                scope.spawn(move || {
                    for version in 1..400 {
                        let began = blobs.changes();
                        change(store, |txn| {
                            for number in 0..4 {
                                txn.put(&key(thread * 100 + number), &value(number, version))?;
                            }
                            txn.put(&key(1_000_000 + thread * 100_000 + version), &[7; 200])
                        })
                        .unwrap();
                        commits.lock().unwrap()[thread as usize].push((began, blobs.changes()));
                    }
                });
            }
        });
        store.compact().unwrap();
        store.close().unwrap();
    }
    assert!(blobs.changes() > 400, "{} changes", blobs.changes());
    let commits = commits.into_inner().unwrap();
    for image in 0..images {
        let at = rng.below(blobs.changes() as u64 + 1) as usize;
        let sectors = rng.below(300) as usize;
        let what = format!("seed {seed}, image {image}: {at} changes and {sectors} sectors");
        let left = Arc::new(blobs.image(at, sectors));
        let store = match on_blobs(&left) {
            Ok(store) => store,
            Err(error) => panic!("{what}: {error}"),
        };
        for (thread, commits) in (0_u64..).zip(&commits) {
            let done = commits.iter().filter(|(_, acknowledged)| *acknowledged <= at).count() as u64;
            let begun = commits.iter().filter(|(began, _)| *began <= at).count() as u64;
            let there = store.get(&key(thread * 100)).unwrap();
            let version = there.map_or(0, |there| u64::from_be_bytes(there[..8].try_into().unwrap()));
            assert!(
                (done..=begun).contains(&version),
                "{what}: {version}, not {done} to {begun}"
            );
            for number in 0..4 {
                let wanted = (version > 0).then(|| value(number, version));
                assert_eq!(
                    store.get(&key(thread * 100 + number)).unwrap(),
                    wanted,
                    "{what}: a torn transaction"
                );
            }
            for version in 1..=400 {
                let there = store
                    .get(&key(1_000_000 + thread * 100_000 + version))
                    .unwrap()
                    .is_some();
                assert!(there || version > done, "{what}: {version} of {done} is missing");
            }
        }
        change(&store, |txn| txn.put(b"afterwards", b"it goes on")).unwrap();
        store.close().unwrap();
        let store = on_blobs(&left).unwrap();
        assert!(store.get(b"afterwards").unwrap().is_some(), "{what}");
    }
}

/// Space for metadata runs out: changes are refused before they have any effect, deletions still succeed for a while,
/// and the store is sound.
#[test]
fn a_full_store_refuses_and_goes_on() {
    let blobs = Arc::new(MemoryBlobs::new(64 << 20, false));
    let options = Options {
        reserve_bytes: u64::MAX,
        ..small()
    };
    let backend = Backend::Blobs(Arc::clone(&blobs) as _);
    let store = RocksStore::open(backend.clone(), &options).unwrap();
    let mut rng = Rng::new(1);
    let mut put = |number: u64| {
        let noise: Vec<u8> = (0..4000).map(|_| rng.next_u64() as u8).collect();
        change(&store, |txn| txn.put(&key(number), &noise))
    };
    let (count, error) = (0..)
        .find_map(|number| put(number).err().map(|error| (number, error)))
        .unwrap();
    assert!(matches!(error, Error::NoSpace(_)) && !error.is_fatal(), "{error}");
    assert!(count > 500, "{count}");
    assert_eq!(store.get(&key(count)).unwrap(), None);
    assert!(store.get(&key(count - 1)).unwrap().is_some());
    for number in 0..count {
        change(&store, |txn| {
            txn.delete(&key(number))?;
            txn.put(b"deleted", &number.to_be_bytes())
        })
        .unwrap();
    }
    // The space comes back unasked.
    for number in 0..count / 2 {
        put(number).unwrap();
    }
    change(&store, |txn| txn.put(b"space", b"again")).unwrap();
    store.health().unwrap();
    store.close().unwrap();
    let store = RocksStore::open(backend, &options).unwrap();
    assert!(store.get(b"space").unwrap().is_some() && store.get(&key(count - 1)).unwrap().is_none());
}

/// The same with a single transaction that deletes all, for which RocksDB merges nothing unless it is asked.
#[test]
fn a_full_store_that_is_emptied_at_once_takes_changes() {
    let blobs = Arc::new(MemoryBlobs::new(32 << 20, false));
    let options = Options {
        create: true,
        ..Options::default()
    };
    let store = RocksStore::open(Backend::Blobs(Arc::clone(&blobs) as _), &options).unwrap();
    let mut rng = Rng::new(2);
    let mut put = |number: u64| {
        let noise: Vec<u8> = (0..4000).map(|_| rng.next_u64() as u8).collect();
        change(&store, |txn| txn.put(&key(number), &noise))
    };
    let count = (0..).find(|&number| put(number).is_err()).unwrap();
    assert!(count > 500, "{count}");
    change(&store, |txn| (0..count).try_for_each(|number| txn.delete(&key(number)))).unwrap();
    (0..count / 2).for_each(|number| put(number).unwrap());
}

/// At the edge of its space for long, with merges all the time, the store refuses what does not fit, and never stops.
#[test]
fn a_store_that_stays_full_does_not_stop() {
    stays_full(8_000, u64::MAX);
}

/// The same with so small a reserve that there is no space to merge.
#[test]
fn a_store_without_space_for_merges_does_not_stop() {
    stays_full(4_000, 3 << 20);
}

fn stays_full(changes: usize, reserve_bytes: u64) {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let blobs = Arc::new(MemoryBlobs::new(32 << 20, false));
    let options = Options {
        reserve_bytes,
        ..small()
    };
    let backend = Backend::Blobs(Arc::clone(&blobs) as _);
    let store = RocksStore::open(backend.clone(), &options).unwrap();
    let mut model = BTreeMap::new();
    let (mut made, mut refused, mut refused_deletes) = (0, 0, 0);
    // On a machine that merges as fast as this writes, the edge is reached later.
    while made < changes || refused == 0 && made < 10 * changes {
        made += 1;
        let at = key(rng.below(16_000));
        let noise: Vec<u8> = (0..rng.below(16_000)).map(|_| rng.next_u64() as u8).collect();
        let deletes = rng.below(10) < if refused > 0 { 5 } else { 1 };
        let result = change(
            &store,
            |txn| if deletes { txn.delete(&at) } else { txn.put(&at, &noise) },
        );
        match result {
            Ok(()) if deletes => drop(model.remove(&at)),
            Ok(()) => drop(model.insert(at, noise)),
            Err(error) => {
                assert!(matches!(error, Error::NoSpace(_)), "seed {seed}: {error}");
                *(if deletes { &mut refused_deletes } else { &mut refused }) += 1;
            }
        }
    }
    assert!(refused > 0, "{refused} refused, {refused_deletes} of them deletes");
    store.health().unwrap();
    store.close().unwrap();
    let store = RocksStore::open(backend, &options).unwrap();
    let mut there = BTreeMap::new();
    let all = &mut |key: &[u8], value: &[u8]| {
        there.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    store.scan(b"", b"\xff", all).unwrap();
    assert!(
        there == model,
        "seed {seed}: {} there, {} wanted",
        there.len(),
        model.len()
    );
}

/// Unmerged tables make RocksDB's writers wait from some number on, for ever: before that, all are refused.
#[test]
fn who_deletes_does_not_wait_for_merges_that_lack_space() {
    let device = Arc::new(Odd {
        blobs: MemoryBlobs::new(64 << 20, false),
        write_takes: Duration::ZERO,
        has_no_space_to_merge: AtomicBool::new(true),
    });
    let options = Options {
        reserve_bytes: 4 << 20,
        ..small()
    };
    let backend = Backend::Blobs(Arc::clone(&device) as _);
    let store = RocksStore::open(backend, &options).unwrap();
    let mut rng = Rng::new(1);
    let mut put = || {
        let noise: Vec<u8> = (0..2000).map(|_| rng.next_u64() as u8).collect();
        // Out of order, because tables that do not overlap are moved, not merged.
        let at = key(rng.below(16_000));
        change(&store, |txn| txn.put(&at, &noise))
    };
    let refused = (0..8_000).find_map(|_| put().err());
    assert!(matches!(refused, Some(Error::NoSpace(_))), "{refused:?}");
    // All the while puts are refused, and ask for a merge of what was deleted.
    let mut delete = |number: u64| {
        assert!(matches!(put(), Err(Error::NoSpace(_))), "{number} deleted");
        change(&store, |txn| txn.delete(&key(number % 16_000)))
    };
    let (count, error) = (0..)
        .find_map(|number| delete(number).err().map(|error| (number, error)))
        .unwrap();
    assert!(matches!(error, Error::NoSpace(_)) && count >= 64, "{count}: {error}");
    store.health().unwrap();
    device.has_no_space_to_merge.store(false, Ordering::Relaxed);
    let start = Instant::now();
    while put().is_err() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "nobody merges, though there is space"
        );
        thread::sleep(Duration::from_millis(10));
    }
    (0..16_000)
        .try_for_each(|number| change(&store, |txn| txn.delete(&key(number))))
        .unwrap();
    store.close().unwrap();
}

/// A device that is really full, without a reserve: the store stops and reports that, and acknowledged commits are
/// there.
#[test]
fn a_device_that_is_full_stops_the_store_and_loses_nothing() {
    let blobs = Arc::new(MemoryBlobs::new(8 << 20, false));
    let store = on_blobs(&blobs).unwrap();
    let mut rng = Rng::new(1);
    let mut noise = || (0..4000).map(|_| rng.next_u64() as u8).collect::<Vec<u8>>();
    let (count, error) = (0..)
        .find_map(|number| {
            let refused = change(&store, |txn| txn.put(&key(number), &noise())).err();
            refused.map(|error| (number, error))
        })
        .unwrap();
    assert!(error.is_fatal(), "{error}");
    assert!(matches!(store.health(), Err(error) if error.is_fatal()));
    // Nothing makes RocksDB touch a log that has failed: it would end the process.
    assert!(store.sync().is_err() && store.compact().is_err());
    assert!(store.close().is_err());
    // Without more space it need not open; with more it must.
    let larger = Arc::new(blobs.copy(64 << 20));
    let store = on_blobs(&larger).unwrap();
    for number in 0..count {
        assert!(store.get(&key(number)).unwrap().is_some(), "{number} of {count}");
    }
}

#[test]
fn damage_is_told_and_fatal() {
    let dir = tempfile::tempdir().unwrap();
    let store = in_directory(dir.path()).unwrap();
    for number in 0..500 {
        change(&store, |txn| txn.put(&key(number), &value(number, 1))).unwrap();
    }
    store.compact().unwrap();
    store.close().unwrap();
    let mut damaged = 0;
    for entry in std::fs::read_dir(dir.path().join("meta")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sst") {
            let mut bytes = std::fs::read(&path).unwrap();
            let end = bytes.len() / 2;
            bytes[100..end].iter_mut().for_each(|byte| *byte ^= 0x55);
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    let error = in_directory(dir.path()).and_then(|store| {
        (0..500).try_for_each(|number| store.get(&key(number)).map(drop))?;
        Ok(())
    });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Corruption(_)) && error.is_fatal(), "{error}");
}

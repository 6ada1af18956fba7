//! The guarantees of the traits, on every implementation: who sees what, who waits for whom, what a rollback undoes.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use common::change;
#[cfg(feature = "rocksdb")]
use common::{in_directory, on_blobs};
use ferrite_measure::Rng;
#[cfg(feature = "rocksdb")]
use ferrite_meta::MemoryBlobs;
use ferrite_meta::{Error, Lock, MemoryRemote, MemoryStore, MetaStore, Owned, OwnedOptions, Owner, Transaction};

/// A store to be tested, in a directory that it may use.
type Store = Arc<dyn MetaStore>;

/// Opens a store that does not exist yet.
type Open = fn(&Path) -> Store;

/// Pairs that a scan of any store shows as of one moment; stores over a database promise it for no more.
const PAIRS_OF_ONE_MOMENT: u32 = 256;

/// A store over a database in memory, whose cache is so small that most reads miss it, or is never full.
fn owned(cache_bytes: usize) -> Store {
    let owner = Owner {
        name: "test".into(),
        address: String::new(),
    };
    let mut options = OwnedOptions::default();
    options.cache_bytes = cache_bytes;
    Arc::new(Owned::open(MemoryRemote::new(), 7, &owner, options).unwrap())
}

/// Each implementation, with its name.
fn all() -> Vec<(&'static str, Open)> {
    vec![
        ("memory", |_| Arc::new(MemoryStore::new())),
        ("a database", |_| owned(64 << 20)),
        ("a database, with hardly a cache", |_| owned(1000)),
        #[cfg(feature = "rocksdb")]
        ("rocksdb in a directory", |path| Arc::new(in_directory(path).unwrap())),
        #[cfg(feature = "rocksdb")]
        ("rocksdb on blobs", |_| {
            Arc::new(on_blobs(&Arc::new(MemoryBlobs::new(256 << 20, false))).unwrap())
        }),
    ]
}

/// Runs a test on each implementation, and prints which.
fn on_each(test: impl Fn(&Store)) {
    on_each_with(|store, _| test(store));
}

/// The same, with the number of pairs that a scan shows as of one moment.
fn on_each_with(test: impl Fn(&Store, u32)) {
    for (name, open) in all() {
        let dir = tempfile::tempdir().unwrap();
        eprintln!("on {name}");
        let pairs = if name.contains("database") {
            PAIRS_OF_ONE_MOMENT
        } else {
            502
        };
        test(&open(dir.path()), pairs);
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn all_of(scan: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> ferrite_meta::Result<()>) -> Pairs {
    let mut pairs = Pairs::new();
    scan(&mut |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    pairs
}

fn keys(pairs: &Pairs) -> Vec<&str> {
    pairs.iter().map(|(key, _)| str::from_utf8(key).unwrap()).collect()
}

#[test]
fn nobody_sees_a_transaction_before_it_commits() {
    on_each(|store| {
        change(&**store, |txn| txn.put(b"a", b"old")).unwrap();
        let mut txn = store.begin();
        txn.put(b"a", b"new").unwrap();
        txn.put(b"b", b"new").unwrap();
        assert_eq!(txn.get(b"a").unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(store.get(b"a").unwrap().as_deref(), Some(&b"old"[..]));
        assert_eq!(store.get(b"b").unwrap(), None);
        assert_eq!(store.begin().get(b"b").unwrap(), None);
        assert_eq!(keys(&all_of(|visit| store.scan(b"", b"z", visit))), ["a"]);
        txn.commit().unwrap();
        assert_eq!(store.get(b"a").unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(keys(&all_of(|visit| store.scan(b"", b"z", visit))), ["a", "b"]);
    });
}

#[test]
fn what_is_dropped_has_not_happened_and_lets_go_of_its_locks() {
    on_each(|store| {
        let mut txn = store.begin();
        txn.put(b"a", b"1").unwrap();
        txn.get_for_update(b"b", Lock::Exclusive).unwrap();
        drop(txn);
        assert_eq!(store.get(b"a").unwrap(), None);
        change(&**store, |txn| {
            txn.put(b"a", b"2")?;
            txn.put(b"b", b"2")
        })
        .unwrap();
    });
}

#[test]
fn values_may_be_empty_and_keys_and_values_any_bytes() {
    on_each(|store| {
        let long = vec![0xff; 70_000];
        change(&**store, |txn| {
            txn.put(b"\0", b"")?;
            txn.put(b"\xff\xff", &long)
        })
        .unwrap();
        assert_eq!(store.get(b"\0").unwrap(), Some(Vec::new()));
        assert_eq!(store.get(b"\xff\xff").unwrap(), Some(long));
        assert_eq!(all_of(|visit| store.scan(b"", b"\xff\xff\xff", visit)).len(), 2);
        // A reversed range is empty, not an error.
        assert!(all_of(|visit| store.scan(b"b", b"a", visit)).is_empty());
        assert!(all_of(|visit| store.begin().scan(b"b", b"a", visit)).is_empty());
    });
}

#[test]
fn a_scan_has_its_first_key_and_not_its_last_and_ends_when_told() {
    on_each(|store| {
        change(&**store, |txn| {
            ["a", "b", "c", "d"]
                .iter()
                .try_for_each(|key| txn.put(key.as_bytes(), b""))
        })
        .unwrap();
        assert_eq!(keys(&all_of(|visit| store.scan(b"b", b"d", visit))), ["b", "c"]);
        let mut seen = 0;
        let visit = &mut |_: &[u8], _: &[u8]| {
            seen += 1;
            ControlFlow::Break(())
        };
        store.scan(b"a", b"z", visit).unwrap();
        store.begin().scan(b"a", b"z", visit).unwrap();
        assert_eq!(seen, 2);
    });
}

#[test]
fn a_scan_in_a_transaction_sees_its_own_changes() {
    on_each(|store| {
        change(&**store, |txn| {
            ["a", "b", "d", "e"]
                .iter()
                .try_for_each(|key| txn.put(key.as_bytes(), b"old"))
        })
        .unwrap();
        let mut txn = store.begin();
        txn.delete(b"a").unwrap();
        txn.put(b"b", b"new").unwrap();
        txn.put(b"c", b"new").unwrap();
        txn.delete(b"e").unwrap();
        txn.put(b"f", b"new").unwrap();
        txn.delete(b"f").unwrap();
        let pairs = all_of(|visit| txn.scan(b"", b"z", visit));
        assert_eq!(keys(&pairs), ["b", "c", "d"]);
        assert_eq!(pairs[0].1, b"new");
        assert_eq!(pairs[2].1, b"old");
        assert_eq!(keys(&all_of(|visit| txn.scan(b"c", b"d", visit))), ["c"]);
    });
}

/// The stores of these tests have filters for prefixes of four bytes.
#[test]
fn scans_within_a_prefix_and_beyond_it_see_all_that_is_there() {
    on_each(|store| {
        for parent in 0..50_u32 {
            change(&**store, |txn| {
                (0..parent % 5)
                    .try_for_each(|child| txn.put(&[&parent.to_be_bytes()[..], &[child as u8]].concat(), b"x"))
            })
            .unwrap();
        }
        change(&**store, |txn| txn.put(b"\0\0", b"shorter than a prefix")).unwrap();
        for parent in 0..50_u32 {
            let (from, to) = (parent.to_be_bytes(), (parent + 1).to_be_bytes());
            let children = all_of(|visit| store.scan(&from, &to, visit));
            assert_eq!(children.len() as u32, parent % 5, "below {parent}");
            assert_eq!(all_of(|visit| store.begin().scan(&from, &to, visit)), children);
            let rest = all_of(|visit| store.scan(&from, &[0xff; 5], visit));
            assert_eq!(rest.len() as u32, (parent..50).map(|parent| parent % 5).sum::<u32>());
        }
        assert_eq!(all_of(|visit| store.scan(b"", b"\xff", visit)).len(), 101);
    });
}

#[test]
fn a_scan_is_of_one_moment_while_others_commit() {
    on_each_with(|store, many| {
        let pair = |number: u64| {
            change(&**store, |txn| {
                // Far apart, with others in between.
                txn.put(b"first", &number.to_be_bytes())?;
                txn.put(b"last", &number.to_be_bytes())
            })
            .unwrap();
        };
        change(&**store, |txn| {
            (0..many - 2).try_for_each(|number| txn.put(format!("key{number}").as_bytes(), &[7; 100]))
        })
        .unwrap();
        pair(0);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                (1..200).for_each(pair);
                done.store(true, Ordering::Release);
            });
            let mut scans = 0;
            while !done.load(Ordering::Acquire) || scans == 0 {
                let pairs = if scans % 2 == 0 {
                    all_of(|visit| store.scan(b"", b"z", visit))
                } else {
                    all_of(|visit| store.begin().scan(b"", b"z", visit))
                };
                assert_eq!(pairs.len(), many as usize);
                assert_eq!(pairs[0].1, pairs[pairs.len() - 1].1, "two halves of a transaction");
                scans += 1;
            }
        });
    });
}

#[test]
fn who_scans_may_use_the_store() {
    on_each_with(|store, many| {
        let many = many.min(300);
        change(&**store, |txn| {
            (0..many).try_for_each(|number| txn.put(&number.to_be_bytes(), b"x"))
        })
        .unwrap();
        let mut seen = 0;
        store
            .scan(b"", b"\xff", &mut |key, _| {
                seen += 1;
                change(&**store, |txn| {
                    txn.delete(key)?;
                    txn.put(&[b"\x01", key].concat(), b"behind")
                })
                .unwrap();
                assert_eq!(store.get(key).unwrap(), None);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, many);
        assert_eq!(all_of(|visit| store.scan(b"\x01", b"\x02", visit)).len(), many as usize);
    });
}

#[test]
fn get_for_update_waits_until_the_other_one_ends() {
    on_each(|store| {
        // The key does not exist: locks cover names.
        let mut first = store.begin();
        assert_eq!(first.get_for_update(b"k", Lock::Exclusive).unwrap(), None);
        let (sent, got) = channel();
        thread::scope(|scope| {
            for lock in [Lock::Shared, Lock::Exclusive] {
                let sent = sent.clone();
                scope.spawn(move || {
                    let mut second = store.begin();
                    let value = second.get_for_update(b"k", lock).unwrap();
                    sent.send(value).unwrap();
                    second.commit().unwrap();
                });
            }
            assert!(got.recv_timeout(Duration::from_millis(100)).is_err(), "nobody waited");
            // Plain reads do not wait.
            assert_eq!(store.get(b"k").unwrap(), None);
            first.put(b"k", b"value").unwrap();
            first.commit().unwrap();
            for _ in 0..2 {
                let value = got.recv_timeout(Duration::from_secs(4)).unwrap();
                assert_eq!(value.as_deref(), Some(&b"value"[..]), "what the other one committed");
            }
        });
    });
}

#[test]
fn shared_locks_are_shared_and_keep_changes_out() {
    on_each(|store| {
        let (mut first, mut second) = (store.begin(), store.begin());
        first.get_for_update(b"k", Lock::Shared).unwrap();
        second.get_for_update(b"k", Lock::Shared).unwrap();
        let (sent, got) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                change(&**store, |txn| txn.put(b"k", b"1")).unwrap();
                sent.send(()).unwrap();
            });
            assert!(got.recv_timeout(Duration::from_millis(50)).is_err());
            drop(first);
            assert!(got.recv_timeout(Duration::from_millis(50)).is_err(), "one has it still");
            second.commit().unwrap();
            got.recv_timeout(Duration::from_secs(4)).unwrap();
        });
        assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"1"[..]));
    });
}

#[test]
fn one_who_has_a_key_may_lock_it_again_and_alone_also_more_strongly() {
    on_each(|store| {
        let mut txn = store.begin();
        txn.get_for_update(b"k", Lock::Shared).unwrap();
        txn.get_for_update(b"k", Lock::Shared).unwrap();
        txn.get_for_update(b"k", Lock::Exclusive).unwrap();
        txn.get_for_update(b"k", Lock::Shared).unwrap();
        txn.put(b"k", b"1").unwrap();
        txn.delete(b"k").unwrap();
        txn.commit().unwrap();
    });
}

#[test]
fn a_circle_ends_as_a_deadlock_and_leaves_the_others() {
    on_each(|store| {
        let both = Barrier::new(2);
        let results = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (mine, yours) in [(b"a", b"b"), (b"b", b"a")] {
                let (both, results) = (&both, &results);
                scope.spawn(move || {
                    let mut txn = store.begin();
                    txn.put(mine, mine).unwrap();
                    both.wait();
                    let result = txn.put(yours, mine).and_then(|()| txn.commit());
                    results.lock().unwrap().push(result);
                });
            }
        });
        let mut results = results.into_inner().unwrap();
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(()), Err(Error::Deadlock)]);
        assert!(!Error::Deadlock.is_fatal());
        assert_eq!(store.get(b"a").unwrap(), store.get(b"b").unwrap());
        change(&**store, |txn| txn.put(b"a", b"afterwards")).unwrap();
    });
}

/// Why the rules forbid it: two transactions share a key, and both want it exclusively. RocksDB may abort both: each
/// counts as waiting for the other shared holder.
#[test]
fn two_upgrades_of_one_key_are_a_deadlock() {
    on_each(|store| {
        let both = Barrier::new(2);
        let lost = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut txn = store.begin();
                    txn.get_for_update(b"k", Lock::Shared).unwrap();
                    both.wait();
                    match txn.get_for_update(b"k", Lock::Exclusive) {
                        Ok(_) => txn.commit().unwrap(),
                        Err(error) => {
                            assert_eq!(error, Error::Deadlock);
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let lost = lost.into_inner();
        assert!((1..=2).contains(&lost), "{lost} lost");
    });
}

#[test]
fn a_lock_that_is_kept_for_too_long_is_busy() {
    let store = MemoryStore::new().lock_timeout(Duration::from_millis(20));
    let mut first = store.begin();
    first.put(b"k", b"1").unwrap();
    assert_eq!(store.begin().put(b"k", b"2"), Err(Error::Busy));
    first.commit().unwrap();
    assert_eq!(store.locked_keys(), 0);
    #[cfg(feature = "rocksdb")]
    {
        let dir = tempfile::tempdir().unwrap();
        let options = ferrite_meta::Options {
            lock_timeout: Duration::from_millis(20),
            ..common::small()
        };
        let backend = ferrite_meta::Backend::Directory(dir.path().join("meta"));
        let store = ferrite_meta::RocksStore::open(backend, &options).unwrap();
        let mut first = store.begin();
        first.put(b"k", b"1").unwrap();
        assert_eq!(store.begin().put(b"k", b"2"), Err(Error::Busy));
        first.commit().unwrap();
        assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"1"[..]));
    }
}

#[test]
fn a_rollback_undoes_changes_and_locks_since_the_savepoint() {
    on_each(|store| {
        change(&**store, |txn| txn.put(b"a", b"0")).unwrap();
        let mut txn = store.begin();
        txn.put(b"a", b"1").unwrap();
        txn.savepoint();
        txn.delete(b"a").unwrap();
        txn.put(b"b", b"1").unwrap();
        txn.savepoint();
        txn.put(b"c", b"1").unwrap();
        txn.rollback_to_savepoint().unwrap();
        assert_eq!(keys(&all_of(|visit| txn.scan(b"", b"z", visit))), ["b"]);
        // Keys that were first locked since the savepoint are free; the rest is not.
        change(&**store, |other| other.put(b"c", b"other")).unwrap();
        txn.rollback_to_savepoint().unwrap();
        assert_eq!(keys(&all_of(|visit| txn.scan(b"", b"z", visit))), ["a", "c"]);
        assert_eq!(txn.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        assert!(matches!(txn.rollback_to_savepoint(), Err(Error::Invalid(_))));
        change(&**store, |other| other.put(b"b", b"other")).unwrap();
        txn.commit().unwrap();
        assert_eq!(store.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(store.get(b"b").unwrap().as_deref(), Some(&b"other"[..]));
    });
}

fn counter(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
}

#[test]
fn no_update_is_lost() {
    const THREADS: u64 = 8;
    const EACH: u64 = 60;
    on_each(|store| {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for _ in 0..EACH {
                        let mut two = [rng.below(4), rng.below(4)];
                        two.sort_unstable();
                        change(&**store, |txn| {
                            for number in two {
                                let value = counter(txn.get_for_update(&number.to_be_bytes(), Lock::Exclusive)?);
                                txn.put(&number.to_be_bytes(), &(value + 1).to_be_bytes())?;
                            }
                            Ok(())
                        })
                        .unwrap();
                    }
                });
            }
        });
        let sum: u64 = (0..4_u64)
            .map(|number| counter(store.get(&number.to_be_bytes()).unwrap()))
            .sum();
        assert_eq!(sum, 2 * THREADS * EACH);
    });
}

/// The engine's kind of load: a lock before all others for moves of directories, parents shared or exclusive before
/// children, unrelated nodes by number. No transaction may get a deadlock, or have to wait for long.
#[test]
fn there_is_no_deadlock_under_the_lock_order() {
    const THREADS: u64 = 8;
    let seed = seed();
    on_each(|store| {
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let done = &done;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed ^ thread);
                    for _ in 0..150 {
                        one_of_the_engines(&**store, &mut rng).unwrap();
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), THREADS * 150);
    });
}

fn one_of_the_engines(store: &dyn MetaStore, rng: &mut Rng) -> ferrite_meta::Result<()> {
    let node = |number: u64| [b"N", &number.to_be_bytes()[..]].concat();
    let edge = |number: u64, name: u64| [b"E", &number.to_be_bytes()[..], &[name as u8]].concat();
    let mut txn = store.begin();
    match rng.below(4) {
        // A move between directories.
        0 => {
            txn.get_for_update(b"0 moves", Lock::Exclusive)?;
            let mut two = [rng.below(5), rng.below(5)];
            two.sort_unstable();
            for number in two {
                txn.get_for_update(&node(number), Lock::Exclusive)?;
            }
            txn.delete(&edge(two[0], 1))?;
            txn.put(&edge(two[1], 2), b"moved")?;
        }
        // A new entry in a directory, which stays.
        1 | 2 => {
            let (parent, child) = (rng.below(5), 5 + rng.below(5));
            txn.get_for_update(&node(parent), Lock::Shared)?;
            txn.get_for_update(&node(child), Lock::Exclusive)?;
            txn.savepoint();
            txn.put(&edge(child, rng.below(3)), b"made")?;
            if rng.chance(30) {
                txn.rollback_to_savepoint()?;
            }
            txn.put(&node(child), b"child")?;
        }
        // A directory that is removed: its parent stays, nothing is added to it.
        _ => {
            let parent = rng.below(5);
            txn.get_for_update(&node(parent), Lock::Shared)?;
            let child = node(5 + rng.below(5));
            txn.get_for_update(&child, Lock::Exclusive)?;
            txn.scan(b"E", b"F", &mut |_, _| ControlFlow::Continue(()))?;
            txn.delete(&child)?;
        }
    }
    txn.commit()
}

fn seed() -> u64 {
    let given = std::env::var("FERRITE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()) * 1_000_003);
    eprintln!("FERRITE_SEED={seed}");
    seed
}

/// Random transactions, with rollbacks and scans, against a map.
#[test]
fn random_transactions_do_what_a_map_does() {
    let seed = seed();
    on_each(|store| {
        let mut rng = Rng::new(seed);
        let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        for round in 0..400 {
            let mut txn = store.begin();
            let mut own = model.clone();
            let mut savepoints = Vec::new();
            for _ in 0..rng.below(12) {
                step(txn.as_mut(), &mut own, &mut savepoints, &mut rng);
            }
            if rng.chance(70) {
                txn.commit().unwrap();
                model = own;
            } else {
                drop(txn);
            }
            if round % 20 == 0 {
                let there = all_of(|visit| store.scan(b"", b"\xff\xff\xff", visit));
                assert!(
                    there == model.clone().into_iter().collect::<Pairs>(),
                    "seed {seed}, round {round}"
                );
            }
        }
    });
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn step(txn: &mut dyn Transaction, own: &mut Model, savepoints: &mut Vec<Model>, rng: &mut Rng) {
    let key = |rng: &mut Rng| vec![rng.below(256) as u8; 1 + rng.below(2) as usize];
    match rng.below(8) {
        0..3 => {
            let (key, value) = (key(rng), vec![rng.below(256) as u8; rng.below(600) as usize]);
            txn.put(&key, &value).unwrap();
            own.insert(key, value);
        }
        3 => {
            let key = key(rng);
            txn.delete(&key).unwrap();
            own.remove(&key);
        }
        4 => {
            txn.savepoint();
            savepoints.push(own.clone());
        }
        5 => match savepoints.pop() {
            Some(before) => {
                txn.rollback_to_savepoint().unwrap();
                *own = before;
            }
            None => assert!(matches!(txn.rollback_to_savepoint(), Err(Error::Invalid(_)))),
        },
        6 => {
            let (from, to) = (key(rng), key(rng));
            let seen = all_of(|visit| txn.scan(&from, &to, visit));
            let wanted = own.iter().filter(|(key, _)| (&from..&to).contains(key));
            assert!(seen.iter().map(|(key, value)| (key, value)).eq(wanted), "a scan");
        }
        _ => {
            let key = key(rng);
            assert_eq!(txn.get(&key).unwrap().as_ref(), own.get(&key));
            assert_eq!(txn.get_for_update(&key, Lock::Shared).unwrap().as_ref(), own.get(&key));
        }
    }
}

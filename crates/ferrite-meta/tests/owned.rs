//! A shard of a database and its owner: what the cache may know, when the owner stops to answer, and what is true after
//! a network that fails.
//!
//! With the feature `seeded-bugs`, the same test must find each mistake of the crate's list.

#[path = "common/remote.rs"]
mod remote;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ferrite_checks::fault_injection;
use ferrite_measure::Rng;
use ferrite_meta::{
    Error, Fault, FaultyRemote, Lock, MemoryRemote, MetaStore, Owned, OwnedOptions, Remote, RemoteCall, Viewed,
};
use remote::{SHARD, conforms, owner};

const TTL: Duration = Duration::from_secs(10);

/// A clock that the test moves.
#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }

    fn options(&self, cache_bytes: usize) -> OwnedOptions {
        let time = self.0.clone();
        let mut options = OwnedOptions::default();
        options.ttl = TTL;
        options.cache_bytes = cache_bytes;
        options.commit_timeout = Duration::from_millis(20);
        options.retry_after = Duration::from_micros(50);
        options.renews = false;
        options.clock = Box::new(move || Duration::from_millis(1_000_000 + time.load(Ordering::SeqCst)));
        options
    }
}

fn put<R: Remote>(store: &Owned<R>, key: &[u8], value: &[u8]) -> ferrite_meta::Result<()> {
    let mut txn = store.begin();
    txn.put(key, value)?;
    txn.commit()
}

fn pairs(store: &dyn MetaStore) -> ferrite_meta::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut pairs = BTreeMap::new();
    store.scan(b"", b"\xff\xff", &mut |key, value| {
        pairs.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(pairs)
}

#[test]
fn a_database_in_memory_does_what_a_database_must() {
    if !fault_injection::IS_COMPILED {
        conforms(MemoryRemote::new);
    }
}

#[test]
fn an_owner_whose_lease_has_ended_answers_nothing_until_it_is_prolonged() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let time = Time::default();
    let store = Owned::open(Arc::clone(&database), SHARD, &owner("a"), time.options(1 << 20)).unwrap();
    put(&store, b"k", b"v").unwrap();
    // The margin comes first: the database would not give the shard away yet.
    time.advance(TTL - TTL / 10);
    let expired = |answer: Result<(), Error>| assert!(matches!(answer, Err(Error::Expired(_))), "{answer:?}");
    expired(store.get(b"k").map(drop));
    expired(store.begin().get(b"k").map(drop));
    expired(store.begin().get_for_update(b"k", Lock::Shared).map(drop));
    expired(pairs(&store).map(drop));
    expired(put(&store, b"k", b"w"));
    expired(store.may_answer());
    assert!(matches!(
        database.take(SHARD, &owner("b"), TTL),
        Err(Error::Owned { .. })
    ));
    // Nobody took it meanwhile, so what it knows is still true.
    store.renew().unwrap();
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(store.status().lease_left, TTL - TTL / 10);
}

#[test]
fn a_process_that_slept_through_a_takeover_harms_nothing_and_answers_nothing() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let time = Time::default();
    let old = Owned::open(Arc::clone(&database), SHARD, &owner("a"), time.options(1 << 20)).unwrap();
    put(&old, b"k", b"old").unwrap();
    let mut unfinished = old.begin();
    unfinished.put(b"k", b"zombie").unwrap();
    time.advance(Duration::from_secs(3600));
    database.advance(Duration::from_secs(3600));
    let new = Owned::open(Arc::clone(&database), SHARD, &owner("b"), time.options(1 << 20)).unwrap();
    put(&new, b"k", b"new").unwrap();
    assert!(unfinished.commit().is_err());
    assert!(old.get(b"k").is_err());
    assert!(matches!(old.renew(), Err(Error::Lost { .. })));
    assert!(matches!(old.get(b"k"), Err(Error::Lost { .. })));
    assert!(matches!(old.health(), Err(Error::Lost { .. })));
    drop(old);
    assert_eq!(new.get(b"k").unwrap().as_deref(), Some(&b"new"[..]));
    assert!(matches!(
        database.take(SHARD, &owner("c"), TTL),
        Err(Error::Owned { .. })
    ));
}

#[test]
fn a_store_that_is_dropped_gives_its_shard_up() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let time = Time::default();
    drop(Owned::open(Arc::clone(&database), SHARD, &owner("a"), time.options(1 << 20)).unwrap());
    Owned::open(database, SHARD, &owner("b"), time.options(1 << 20)).unwrap();
}

#[test]
fn the_lease_is_prolonged_as_long_as_the_store_lives() {
    let database = Arc::new(MemoryRemote::new());
    let mut options = OwnedOptions::default();
    options.ttl = Duration::from_millis(300);
    let store = Owned::open(Arc::clone(&database), SHARD, &owner("a"), options).unwrap();
    for _ in 0..12 {
        thread::sleep(Duration::from_millis(60));
        assert!(matches!(
            database.take(SHARD, &owner("b"), TTL),
            Err(Error::Owned { .. })
        ));
    }
    put(&store, b"k", b"v").unwrap();
    database.move_epoch(SHARD);
    for _ in 0..100 {
        if store.health().is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("it did not notice that another server has taken the shard");
}

/// How many requests of each kind were made.
type Counts = Arc<Mutex<BTreeMap<&'static str, u64>>>;

/// A remote that counts requests.
fn counted(database: &Arc<MemoryRemote>) -> (FaultyRemote<Arc<MemoryRemote>>, Counts) {
    let counts = Counts::default();
    let seen = Arc::clone(&counts);
    let plan = Box::new(move |call| {
        let name = match call {
            RemoteCall::Apply => "apply",
            RemoteCall::Read => "read",
            RemoteCall::Take | RemoteCall::Renew => "tenure",
        };
        *seen.lock().unwrap().entry(name).or_default() += 1;
        // Long enough for others to queue up behind it.
        match call {
            RemoteCall::Apply => Fault::Slow(Duration::from_millis(2)),
            _ => Fault::Nothing,
        }
    });
    (FaultyRemote::new(Arc::clone(database), plan), counts)
}

#[test]
fn commits_that_wait_at_the_same_time_share_a_request() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let (remote, counts) = counted(&database);
    let store = Owned::open(remote, SHARD, &owner("a"), Time::default().options(1 << 20)).unwrap();
    thread::scope(|scope| {
        for thread in 0..8_u8 {
            let store = &store;
            scope.spawn(move || (0..50).for_each(|number| put(store, &[thread, number], b"v").unwrap()));
        }
    });
    let requests = counts.lock().unwrap()["apply"];
    assert!(requests < 200, "{requests} requests for 400 commits of 8 threads");
    let status = store.status();
    assert_eq!((status.commits, status.batches, status.seq), (400, requests, requests));
    assert_eq!(pairs(&store).unwrap().len(), 400);
}

#[test]
fn what_is_known_to_be_new_or_was_read_is_not_asked_for() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let (remote, counts) = counted(&database);
    let store = Owned::open(remote, SHARD, &owner("a"), Time::default().options(1 << 20)).unwrap();
    let reads = || counts.lock().unwrap().get("read").copied().unwrap_or(0);
    store.know_empty(b"E1", b"E2");
    for number in 0..300_u32 {
        let key = [b"E1".as_slice(), &number.to_be_bytes()].concat();
        let mut txn = store.begin();
        assert_eq!(txn.get_for_update(&key, Lock::Exclusive).unwrap(), None);
        txn.put(&key, b"v").unwrap();
        txn.commit().unwrap();
        assert!(store.get(&key).unwrap().is_some());
    }
    let mut found = 0;
    store
        .scan(b"E1", b"E2", &mut |_, _| {
            found += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((found, reads()), (300, 0));
    // A name that is not there is asked for once.
    assert_eq!(store.get(b"F1").unwrap(), None);
    assert_eq!(store.get(b"F1").unwrap(), None);
    assert_eq!(store.get(b"F2").unwrap(), None);
    assert_eq!(reads(), 1);
}

#[test]
fn the_cache_keeps_its_limit_and_forgets_nothing_that_is_stored() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let limit = 64 << 10;
    let store = Owned::open(database, SHARD, &owner("a"), Time::default().options(limit)).unwrap();
    let key = |number: u64| [b"N".as_slice(), &number.to_be_bytes()].concat();
    for number in 0..20_000 {
        put(&store, &key(number), &number.to_le_bytes()).unwrap();
        assert!(store.status().cache_bytes <= limit as u64 + (32 << 10));
    }
    for number in (0..20_000).step_by(7) {
        assert_eq!(
            store.get(&key(number)).unwrap().as_deref(),
            Some(&number.to_le_bytes()[..])
        );
    }
    assert_eq!(pairs(&store).unwrap().len(), 20_000);
    assert!(store.status().cache_bytes <= limit as u64 + (32 << 10));
}

#[test]
fn a_transaction_beyond_the_limits_is_refused_whole() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let store = Owned::open(database, SHARD, &owner("a"), Time::default().options(1 << 20)).unwrap();
    let mut txn = store.begin();
    for number in 0..5_u8 {
        txn.put(&[number], &vec![0; 1 << 20]).unwrap();
    }
    assert!(matches!(txn.commit(), Err(Error::Invalid(_))));
    assert_eq!(pairs(&store).unwrap().len(), 0);
    put(&store, b"k", b"v").unwrap();
}

/// The values that may be in the database: those of commits whose outcome nobody learned, beside the last one
/// that was acknowledged.
#[derive(Default, Clone)]
struct Allowed {
    sure: BTreeMap<Vec<u8>, u64>,
    /// Changes of one commit, all or none of which are there.
    in_doubt: Option<Vec<(Vec<u8>, Option<u64>)>>,
}

impl Allowed {
    fn apply(&mut self, changes: &[(Vec<u8>, Option<u64>)]) {
        for (key, value) in changes {
            match value {
                Some(value) => drop(self.sure.insert(key.clone(), *value)),
                None => drop(self.sure.remove(key)),
            }
        }
    }

    /// Takes over what a new owner finds; panics if it cannot be.
    fn settle(&mut self, found: &BTreeMap<Vec<u8>, Vec<u8>>) {
        let found: BTreeMap<Vec<u8>, u64> = found
            .iter()
            .map(|(key, value)| (key.clone(), u64::from_le_bytes(value[..8].try_into().unwrap())))
            .collect();
        let doubt = self.in_doubt.take();
        if found != self.sure {
            self.apply(&doubt.unwrap_or_default());
            assert_eq!(
                found, self.sure,
                "neither the state before the last commit nor the one after it"
            );
        }
    }
}

/// Owners one after the other on one database, over a network that loses, delays and repeats; each does transactions
/// until it is lost, or is left for another that takes the shard. Everything acknowledged is there, nothing is there
/// twice or late, and no owner answers once another may.
fn owners_one_after_the_other(seed: u64, cache_bytes: usize) {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let time = Time::default();
    let mut rng = Rng::new(seed);
    let mut allowed = Allowed::default();
    let mut value = 0;
    let mut retired: Vec<Owned<FaultyRemote<Arc<MemoryRemote>>>> = Vec::new();
    for round in 0..12 {
        let mut faults = Rng::new(rng.next_u64());
        let mut is_calm = round % 4 == 3;
        let other = Arc::clone(&database);
        let plan = Box::new(move |call| match (call, faults.below(100)) {
            (RemoteCall::Apply, 0) if !is_calm => {
                is_calm = true;
                other.move_epoch(SHARD);
                Fault::Nothing
            }
            (RemoteCall::Apply, 1..5) => Fault::LoseAnswer,
            (RemoteCall::Apply, 5..9) => Fault::LoseRequest,
            (RemoteCall::Apply, 9..13) => Fault::Late(1 + faults.below(4) as u32),
            (RemoteCall::Apply, 13..20) => Fault::Twice(1 + faults.below(12) as u32),
            (RemoteCall::Apply | RemoteCall::Read, 20..23) => Fault::Unreachable,
            _ => Fault::Nothing,
        });
        let name = format!("server {round}");
        let store = Owned::open(
            FaultyRemote::new(Arc::clone(&database), plan),
            SHARD,
            &owner(&name),
            time.options(cache_bytes),
        )
        .unwrap();
        // The first look tells what became of the last commit of the owner before.
        let found = (0..50)
            .find_map(|_| pairs(&store).ok())
            .expect("50 reads in a row failed");
        allowed.settle(&found);
        for old in &retired {
            assert!(
                put(old, b"K zombie", b"12345678").is_err(),
                "an earlier owner changes something"
            );
        }
        for _ in 0..60 {
            if work(&store, &mut rng, &mut allowed, &mut value).is_err() {
                break;
            }
        }
        if rng.chance(50) {
            // Its end is not noticed: the next owner waits until its time is over.
            time.advance(TTL);
        }
        database.advance(2 * TTL);
        retired.push(store);
        for old in &retired {
            if old.status().lease_left.is_zero() {
                assert!(
                    old.get(b"K").is_err() && pairs(old).is_err(),
                    "an owner without lease answers"
                );
            }
            if rng.chance(30) {
                old.remote().deliver_all();
            }
        }
    }
}

/// One transaction, and reads that must agree with what was acknowledged. An error means that this owner is done.
fn work(store: &dyn MetaStore, rng: &mut Rng, allowed: &mut Allowed, value: &mut u64) -> Result<(), Error> {
    let mut changes: Vec<(Vec<u8>, Option<u64>)> = Vec::new();
    let mut txn = store.begin();
    for _ in 0..=rng.below(4) {
        let key = vec![b'K' + rng.below(3) as u8, rng.below(40) as u8];
        *value += 1;
        let change = (!rng.chance(25)).then_some(*value);
        let done = match change {
            Some(value) => txn.put(&key, &value.to_le_bytes()),
            None => txn.delete(&key),
        };
        done.unwrap();
        changes.push((key, change));
    }
    match txn.commit() {
        Ok(()) => allowed.apply(&changes),
        Err(Error::Unreachable(_)) => {}
        Err(Error::Unknown(why)) => {
            allowed.in_doubt = Some(changes);
            return Err(Error::Unknown(why));
        }
        Err(error) => return Err(error),
    }
    let key = vec![b'K' + rng.below(3) as u8, rng.below(40) as u8];
    match store.get(&key) {
        Ok(found) => {
            let found = found.map(|value| u64::from_le_bytes(value[..8].try_into().unwrap()));
            assert_eq!(found, allowed.sure.get(&key).copied(), "{key:?}");
        }
        Err(Error::Unreachable(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Threads that each change two keys together, and others that read them, most of the time past the cache: no read sees
/// one key of a batch without the other, or an older pair than one that was acknowledged before.
fn reads_beside_commits(seed: u64) {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let faults = Mutex::new(Rng::new(seed));
    let plan = Box::new(move |call| {
        let mut rng = faults.lock().unwrap();
        match (call, rng.below(10)) {
            (RemoteCall::Read, 0..4) => Fault::Slow(Duration::from_micros(rng.below(300))),
            _ => Fault::Nothing,
        }
    });
    let remote = FaultyRemote::new(database, plan);
    let store = Owned::open(remote, SHARD, &owner("a"), Time::default().options(2_000)).unwrap();
    let acknowledged = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=300_u64 {
                let mut txn = store.begin();
                txn.put(b"A first", &number.to_le_bytes()).unwrap();
                txn.put(b"C last", &number.to_le_bytes()).unwrap();
                txn.commit().unwrap();
                acknowledged.store(number, Ordering::SeqCst);
            }
        });
        for reader in 0..2_u8 {
            let (store, acknowledged) = (&store, &acknowledged);
            scope.spawn(move || {
                let mut step = 0;
                while acknowledged.load(Ordering::SeqCst) < 300 {
                    step += 1_u32;
                    // Something else, which takes the place of those in the cache.
                    put(store, &[b'B', reader, step as u8], &[reader; 700]).unwrap();
                    let before = acknowledged.load(Ordering::SeqCst);
                    let number = |value: Option<Vec<u8>>| {
                        value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
                    };
                    let first = number(store.get(b"A first").unwrap());
                    let last = number(store.get(b"C last").unwrap());
                    assert!(first >= before, "{first} was read, {before} was acknowledged before");
                    assert!(last >= first, "half of a transaction: {first} and then {last}");
                }
            });
        }
    });
}

/// Everything random that this file has, with one seed.
fn all_with(seed: u64) {
    owners_one_after_the_other(seed, 1 << 20);
    owners_one_after_the_other(seed, 1500);
    reads_beside_commits(seed);
}

fn first_seed() -> u64 {
    let seed = std::env::var("FERRITE_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("FERRITE_SEED={seed}");
    seed
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_comes_twice_over_a_bad_network() {
    if fault_injection::IS_COMPILED {
        return;
    }
    let rounds = if std::env::var_os("FERRITE_SOAK").is_some() {
        500
    } else {
        12
    };
    let first = first_seed();
    for seed in first..first + rounds {
        println!("seed {seed}");
        all_with(seed);
    }
}

#[test]
#[cfg(feature = "seeded-bugs")]
fn the_mistakes_are_found() {
    use ferrite_checks::fault_injection::Bug;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    let first = first_seed();
    for bug in Bug::of("ferrite-meta") {
        fault_injection::seed(Some(bug));
        let found = (first..first + 60).find(|&seed| catch_unwind(AssertUnwindSafe(|| all_with(seed))).is_err());
        fault_injection::seed(None);
        println!("{bug:?}: found with seed {found:?}");
        assert!(found.is_some(), "{bug:?} was not noticed");
    }
}

#[test]
fn a_look_reads_what_an_owner_has_without_disturbing_it_and_follows_the_next_owner() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let time = Time::default();
    let store = Owned::open(Arc::clone(&database), SHARD, &owner("a"), time.options(1 << 20)).unwrap();
    for number in 0..1000u64 {
        put(&store, &number.to_be_bytes(), b"v").unwrap();
    }
    let look = Viewed::open(Arc::clone(&database), SHARD).unwrap();
    assert_eq!(pairs(&look).unwrap(), pairs(&store).unwrap());
    assert_eq!(look.tally(b"", b"\xff").unwrap(), Some((1000, 1000)));
    assert_eq!(look.get(&7u64.to_be_bytes()).unwrap().as_deref(), Some(&b"v"[..]));
    let seen = look.statistics().shard.unwrap();
    assert_eq!((seen.owner, seen.seq), (Some(owner("a")), store.status().seq));
    assert!(look.statistics().owned.is_none());
    // It changes nothing, and the owner works on.
    let mut txn = look.begin();
    txn.put(b"k", b"v").unwrap();
    assert!(matches!(txn.commit(), Err(Error::Invalid(_))));
    assert_eq!(store.get(b"k").unwrap(), None);
    put(&store, b"k", b"new").unwrap();
    assert_eq!(look.get(b"k").unwrap().as_deref(), Some(&b"new"[..]));
    // Another server takes over.
    drop(store);
    let next = Owned::open(Arc::clone(&database), SHARD, &owner("b"), time.options(1 << 20)).unwrap();
    put(&next, b"k", b"newer").unwrap();
    assert_eq!(look.get(b"k").unwrap().as_deref(), Some(&b"newer"[..]));
    assert_eq!(look.statistics().shard.unwrap().owner, Some(owner("b")));
}

#[test]
fn an_owner_reports_its_lease_batches_and_failed_renewals() {
    let database = Arc::new(MemoryRemote::with_manual_clock());
    let time = Time::default();
    let is_away = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let plan = Box::new(move |call| match (call, away.load(Ordering::SeqCst)) {
        (RemoteCall::Renew, true) => Fault::Unreachable,
        _ => Fault::Nothing,
    });
    let remote = FaultyRemote::new(Arc::clone(&database), plan);
    let store = Owned::open(remote, SHARD, &owner("a"), time.options(1 << 20)).unwrap();
    put(&store, b"k", b"v").unwrap();
    store.get(b"k").unwrap();
    let statistics = store.statistics();
    let (shard, owned) = (statistics.shard.unwrap(), statistics.owned.unwrap());
    assert_eq!(
        (shard.owner, shard.seq, shard.epoch),
        (Some(owner("a")), 1, owned.epoch)
    );
    assert_eq!(shard.lease_left, TTL - TTL / 10);
    assert_eq!((owned.commits, owned.batches, owned.renewals_failed), (1, 1, 0));
    assert!(owned.commit_us_max <= owned.commit_us && owned.cache_bytes_max == 1 << 20);
    is_away.store(true, Ordering::SeqCst);
    assert!(store.renew().is_err() && store.renew().is_err());
    assert_eq!(store.statistics().owned.unwrap().renewals_failed, 2);
    // It counts pairs where they are.
    put(&store, b"l", b"four").unwrap();
    assert_eq!(store.tally(b"k", b"z").unwrap(), Some((2, 5)));
    // An owner whose lease has ended counts nothing.
    time.advance(TTL);
    assert!(matches!(store.tally(b"k", b"z"), Err(Error::Expired(_))));
}

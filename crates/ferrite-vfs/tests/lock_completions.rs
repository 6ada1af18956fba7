//! Lock requests that wait without a thread: each completion is called once, with the right outcome, in the right
//! order, and with the table open for further calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread;

use ferrite_measure::Rng;
use ferrite_vfs::locks::{
    ByteRange, LockDone, LockKind, LockOwner, LockRequest, LockTable, LockTicket, RecordLock, Unlock,
};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{ClientId, Cred, Ctx, FileSystem, FsError, ROOT_INO, Result, SYSTEM};
use parking_lot::Mutex;

use LockKind::{Exclusive, Shared};

const FILE: u64 = 7;
const OTHER: u64 = 8;
const A: LockOwner = LockOwner(1);
const B: LockOwner = LockOwner(2);
const C: LockOwner = LockOwner(3);

fn record(owner: LockOwner, kind: LockKind, start: u64, len_bytes: u64) -> LockRequest {
    LockRequest::Record(RecordLock {
        owner,
        pid: 1,
        kind,
        range: ByteRange::new(start, len_bytes).unwrap(),
    })
}

fn client(number: u64) -> Ctx {
    Ctx::trusted(Cred::root()).of_client(ClientId(number))
}

type Named = (&'static str, Result<()>);

/// Outcomes in the order in which they came, under the names of the requests.
#[derive(Default, Clone)]
struct Outcomes(Arc<Mutex<Vec<Named>>>);

impl Outcomes {
    fn of(&self, name: &'static str) -> LockDone {
        let outcomes = Arc::clone(&self.0);
        Box::new(move |outcome| outcomes.lock().push((name, outcome)))
    }

    fn take(&self) -> Vec<Named> {
        std::mem::take(&mut self.0.lock())
    }
}

#[test]
fn what_does_not_wait_is_settled_when_the_call_returns() {
    let (table, seen) = (LockTable::new(), Outcomes::default());
    let all = record(A, Exclusive, 0, 0);
    assert_eq!(table.lock(SYSTEM, FILE, &all, true, seen.of("granted")), None);
    assert_eq!(seen.take(), [("granted", Ok(()))]);
    let byte = record(B, Shared, 0, 1);
    assert_eq!(table.lock(SYSTEM, FILE, &byte, false, seen.of("refused")), None);
    assert_eq!(seen.take(), [("refused", Err(FsError::WouldBlock))]);
    assert!(table.lock(SYSTEM, FILE, &byte, true, seen.of("waits")).is_some());
    assert_eq!(seen.take(), []);
    table.unlock(SYSTEM, FILE, A, Unlock::All).unwrap();
    assert_eq!(seen.take(), [("waits", Ok(()))]);
    table.unlock(SYSTEM, FILE, B, Unlock::All).unwrap();
    assert!(table.is_empty());
    assert_eq!(seen.take(), []);
}

#[test]
fn requests_get_their_turn_in_order() {
    let (table, seen) = (LockTable::new(), Outcomes::default());
    let flock = |owner, kind, name| table.lock(SYSTEM, FILE, &LockRequest::Flock(owner, kind), true, seen.of(name));
    flock(A, Exclusive, "a");
    flock(B, Exclusive, "b");
    flock(C, Shared, "c");
    flock(LockOwner(4), Shared, "d");
    assert_eq!(seen.take(), [("a", Ok(()))]);
    table.unlock(SYSTEM, FILE, A, Unlock::Flock).unwrap();
    assert_eq!(seen.take(), [("b", Ok(()))]);
    table.unlock(SYSTEM, FILE, B, Unlock::Flock).unwrap();
    assert_eq!(seen.take(), [("c", Ok(())), ("d", Ok(()))]);
}

#[test]
fn a_cancelled_request_is_interrupted_and_gets_nothing() {
    let (table, seen) = (LockTable::new(), Outcomes::default());
    table.lock(SYSTEM, FILE, &record(A, Exclusive, 0, 10), false, seen.of("a"));
    let b = table.lock(SYSTEM, FILE, &record(B, Exclusive, 0, 1), true, seen.of("b"));
    let c = table.lock(SYSTEM, FILE, &record(C, Exclusive, 1, 1), true, seen.of("c"));
    let (b, c) = (b.unwrap(), c.unwrap());
    assert_ne!(b, c);
    assert_eq!(seen.take(), [("a", Ok(()))]);
    table.cancel(&client(5), b);
    assert_eq!(seen.take(), [], "it is not that client's");
    table.cancel(SYSTEM, b);
    table.cancel(SYSTEM, b);
    assert_eq!(seen.take(), [("b", Err(FsError::Interrupted))]);
    table.unlock(SYSTEM, FILE, A, Unlock::All).unwrap();
    assert_eq!(seen.take(), [("c", Ok(()))]);
    table.cancel(SYSTEM, c);
    table.cancel(SYSTEM, LockTicket(1 << 40));
    assert_eq!(seen.take(), [], "a granted lock is not taken away");
    assert_eq!(table.records(FILE).len(), 1);
    table.unlock(SYSTEM, FILE, C, Unlock::All).unwrap();
    assert!(table.is_empty());
}

/// A client that leaves drops all its locks, and touches no other client's, even under the same numbers.
#[test]
fn a_client_that_goes_leaves_nothing_behind() {
    let (table, seen) = (LockTable::new(), Outcomes::default());
    let (one, two) = (client(1), client(2));
    table.lock(&one, FILE, &LockRequest::Flock(A, Exclusive), false, seen.of("flock"));
    table.lock(&one, OTHER, &record(A, Exclusive, 0, 0), false, seen.of("record"));
    table.lock(&two, FILE, &record(A, Exclusive, 0, 0), false, seen.of("not its own"));
    assert_eq!(seen.take().len(), 3);
    table.lock(&one, FILE, &record(B, Shared, 0, 1), true, seen.of("stuck"));
    table.lock(&two, OTHER, &record(A, Shared, 0, 1), true, seen.of("next"));
    table.lock(&two, FILE, &LockRequest::Flock(A, Shared), true, seen.of("reader"));
    assert_eq!(seen.take(), []);
    table.release_client(&one);
    let mut outcomes = seen.take();
    outcomes.sort_by_key(|(name, _)| *name);
    let lost = Err(FsError::Disconnected);
    assert_eq!(outcomes, [("next", Ok(())), ("reader", Ok(())), ("stuck", lost)]);
    let kept = table.records(FILE);
    assert_eq!(kept.len(), 1, "the other client's");
    table.release_client(&two);
    assert!(table.is_empty());
    assert_eq!(seen.take(), []);
}

/// Owners of two clients are distinct, also in the search for deadlocks.
#[test]
fn a_ring_across_clients_is_refused() {
    let (table, seen) = (LockTable::new(), Outcomes::default());
    let (one, two) = (client(1), client(2));
    table.lock(&one, FILE, &record(A, Exclusive, 0, 1), false, seen.of("1"));
    table.lock(&two, FILE, &record(A, Exclusive, 1, 1), false, seen.of("2"));
    seen.take();
    table.lock(&one, FILE, &record(A, Exclusive, 1, 1), true, seen.of("waits"));
    table.lock(&two, FILE, &record(A, Exclusive, 0, 1), true, seen.of("ring"));
    assert_eq!(seen.take(), [("ring", Err(FsError::Deadlock))]);
    table.release_client(&two);
    assert_eq!(seen.take(), [("waits", Ok(()))]);
}

/// An owner that waits with one thread takes, with another, part of the range that its holder waits for.
#[test]
fn a_ring_that_a_later_grant_closes_is_refused() {
    let (table, seen) = (LockTable::new(), Outcomes::default());
    let lock = |request: LockRequest, name| table.lock(SYSTEM, FILE, &request, true, seen.of(name));
    lock(record(C, Exclusive, 20, 1), "c has 20");
    lock(record(B, Exclusive, 30, 1), "b has 30");
    lock(record(A, Exclusive, 20, 1), "a wants 20");
    lock(record(C, Exclusive, 30, 2), "c wants 30 and 31");
    assert_eq!(seen.take(), [("c has 20", Ok(())), ("b has 30", Ok(()))]);
    lock(record(A, Exclusive, 31, 1), "a has 31");
    let refused = Err(FsError::Deadlock);
    // One of the two is enough: the older.
    assert_eq!(seen.take(), [("a has 31", Ok(())), ("a wants 20", refused)]);
    table.unlock(SYSTEM, FILE, A, Unlock::All).unwrap();
    table.unlock(SYSTEM, FILE, B, Unlock::All).unwrap();
    assert_eq!(seen.take(), [("c wants 30 and 31", Ok(()))]);
}

/// Each completion unlocks, and so settles the next request: a chain this long must not be a deep stack. A completion
/// that ran with the table locked would hang here.
#[test]
fn a_long_row_of_completions_runs_one_after_the_other() {
    const ROW: u64 = 5_000;
    let table = Arc::new(LockTable::new());
    let (turn, depth) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU32::new(0)));
    for number in 0..ROW {
        let (turn, depth, again) = (Arc::clone(&turn), Arc::clone(&depth), Arc::clone(&table));
        let owner = LockOwner(number);
        let done = Box::new(move |outcome: Result<()>| {
            outcome.unwrap();
            if number == 0 {
                return;
            }
            assert_eq!(depth.fetch_add(1, Ordering::SeqCst), 0, "within another completion");
            assert_eq!(turn.fetch_add(1, Ordering::SeqCst) + 1, number);
            again.unlock(SYSTEM, FILE, owner, Unlock::Flock).unwrap();
            depth.fetch_sub(1, Ordering::SeqCst);
        });
        table.lock(SYSTEM, FILE, &LockRequest::Flock(owner, Exclusive), true, done);
    }
    table.unlock(SYSTEM, FILE, LockOwner(0), Unlock::Flock).unwrap();
    assert_eq!(turn.load(Ordering::SeqCst), ROW - 1);
    assert!(table.is_empty());
}

/// Threads that lock, unlock, cancel and leave, without ever waiting. Completions count themselves and the holders of
/// exclusive locks.
#[test]
fn many_threads_get_one_outcome_for_each_request() {
    const THREADS: u64 = 4;
    const REQUESTS: u64 = 4_000;
    const FILES: u64 = 3;
    let seed = std::env::var("FERRITE_SEED").map_or(20_261_122, |seed| {
        seed.parse::<u64>().expect("FERRITE_SEED is a number")
    });
    println!("replay with FERRITE_SEED={seed}");
    let table = Arc::new(LockTable::new());
    let holders: Arc<Vec<AtomicI64>> = Arc::new((0..FILES).map(|_| AtomicI64::new(0)).collect());
    let granted = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (table, holders, granted) = (Arc::clone(&table), Arc::clone(&holders), Arc::clone(&granted));
            thread::spawn(move || {
                let mut rng = Rng::new(seed + number);
                let ctx = client(number);
                let mut pending: BTreeMap<LockTicket, usize> = BTreeMap::new();
                let calls: Arc<Vec<AtomicU32>> = Arc::new((0..REQUESTS).map(|_| AtomicU32::new(0)).collect());
                for index in 0..REQUESTS as usize {
                    // Each request has an owner of its own, which unlocks at once when its turn comes.
                    let owner = LockOwner(index as u64);
                    let ino = rng.next_u64() % FILES;
                    let as_flock = rng.next_u64().is_multiple_of(2);
                    let request = match as_flock {
                        true => LockRequest::Flock(owner, Exclusive),
                        false => record(owner, [Shared, Exclusive][index % 2], rng.next_u64() % 4, 2),
                    };
                    let done = {
                        let (table, ctx, calls) = (Arc::clone(&table), ctx.clone(), Arc::clone(&calls));
                        let (holders, granted) = (Arc::clone(&holders), Arc::clone(&granted));
                        Box::new(move |outcome: Result<()>| {
                            calls[index].fetch_add(1, Ordering::SeqCst);
                            match outcome {
                                Ok(()) => {
                                    granted.fetch_add(1, Ordering::SeqCst);
                                    if as_flock {
                                        assert_eq!(holders[ino as usize].fetch_add(1, Ordering::SeqCst), 0);
                                        thread::yield_now();
                                        assert_eq!(holders[ino as usize].fetch_sub(1, Ordering::SeqCst), 1);
                                    }
                                    table.unlock(&ctx, ino, owner, Unlock::All).unwrap();
                                }
                                Err(FsError::Interrupted | FsError::WouldBlock) => {}
                                Err(error) => panic!("{error}"),
                            }
                        })
                    };
                    if let Some(ticket) = table.lock(&ctx, ino, &request, !rng.next_u64().is_multiple_of(8), done) {
                        pending.insert(ticket, index);
                    }
                    if rng.next_u64().is_multiple_of(3)
                        && let Some((ticket, _)) = pending.pop_first()
                    {
                        table.cancel(&ctx, ticket);
                    }
                }
                calls
            })
        })
        .collect();
    let calls: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    // Each granted owner unlocks, on one of the threads that have ended: nothing waits any more.
    assert!(table.is_empty(), "{table:?}");
    for calls in calls {
        assert!(calls.iter().all(|calls| calls.load(Ordering::SeqCst) == 1));
    }
    let granted = granted.load(Ordering::SeqCst);
    assert!(granted > THREADS * REQUESTS / 10, "only {granted} were granted");
}

/// The calls of the trait reach the table of the engine, which its clones share.
#[test]
fn an_engine_has_one_table() {
    let fs = MemFs::new();
    let (clone, seen) = (fs.clone(), Outcomes::default());
    let all = RecordLock {
        owner: A,
        pid: 77,
        kind: Exclusive,
        range: ByteRange::ALL,
    };
    let lock = |fs: &MemFs, owner, name| {
        let request = LockRequest::Record(RecordLock { owner, ..all });
        FileSystem::lock(fs, SYSTEM, ROOT_INO, &request, true, seen.of(name))
    };
    assert_eq!(lock(&fs, A, "a"), None);
    let b = lock(&clone, B, "b").unwrap();
    lock(&clone, C, "c").unwrap();
    let found = clone.conflicting_lock(SYSTEM, ROOT_INO, &RecordLock { owner: B, ..all });
    assert_eq!(found, Ok(Some(all)));
    fs.cancel_lock(SYSTEM, b);
    fs.unlock(SYSTEM, ROOT_INO, A, Unlock::All).unwrap();
    let outcomes = seen.take();
    assert_eq!(
        outcomes,
        [("a", Ok(())), ("b", Err(FsError::Interrupted)), ("c", Ok(()))]
    );
    fs.release_client(SYSTEM);
    assert_eq!(lock(&clone, A, "again"), None);
    assert_eq!(seen.take(), [("again", Ok(()))]);
    let apart = fs.snapshot();
    assert_eq!(lock(&apart, B, "another file system"), None);
}

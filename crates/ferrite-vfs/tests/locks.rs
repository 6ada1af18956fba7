//! Advisory locks: which requests are granted, which wait, and which fail because waiting is pointless.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use ferrite_measure::Rng;
use ferrite_vfs::locks::{ByteRange, LockKind, LockOwner, LockRequest, LockTable, RecordLock, Unlock, Wait, wait_for};
use ferrite_vfs::{FsError, Result, SYSTEM};

use LockKind::{Exclusive, Shared};

const FILE: u64 = 7;
const OTHER: u64 = 8;
const A: LockOwner = LockOwner(1);
const B: LockOwner = LockOwner(2);
const C: LockOwner = LockOwner(3);
/// A result that has not come by then does not come.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A table as seen by a caller that has threads to park.
struct Table(LockTable);

impl Table {
    fn new() -> Table {
        Table(LockTable::new())
    }

    fn acquire(&self, ino: u64, request: &LockRequest, wait: Wait) -> Result<()> {
        wait_for(
            wait,
            |may_wait, done| self.0.lock(SYSTEM, ino, request, may_wait, done),
            |ticket| self.0.cancel(SYSTEM, ticket),
        )
    }

    fn flock(&self, ino: u64, owner: LockOwner, kind: LockKind, wait: Wait) -> Result<()> {
        self.acquire(ino, &LockRequest::Flock(owner, kind), wait)
    }

    fn lock(&self, ino: u64, lock: &RecordLock, wait: Wait) -> Result<()> {
        self.acquire(ino, &LockRequest::Record(*lock), wait)
    }

    fn funlock(&self, ino: u64, owner: LockOwner) {
        self.0.unlock(SYSTEM, ino, owner, Unlock::Flock).unwrap();
    }

    fn unlock(&self, ino: u64, owner: LockOwner, range: ByteRange) {
        self.0.unlock(SYSTEM, ino, owner, Unlock::Range(range)).unwrap();
    }

    fn release_file(&self, ino: u64, owner: LockOwner) {
        self.0.unlock(SYSTEM, ino, owner, Unlock::All).unwrap();
    }

    fn conflict(&self, ino: u64, lock: &RecordLock) -> Option<RecordLock> {
        self.0.conflict(SYSTEM, ino, lock)
    }

    fn records(&self, ino: u64) -> Vec<RecordLock> {
        self.0.records(ino)
    }

    fn waiters(&self, ino: u64) -> usize {
        self.0.waiters(ino)
    }
}

fn range(start: u64, len_bytes: u64) -> ByteRange {
    ByteRange::new(start, len_bytes).unwrap()
}

fn record(owner: LockOwner, kind: LockKind, start: u64, len_bytes: u64) -> RecordLock {
    RecordLock {
        owner,
        pid: owner.0 as u32,
        kind,
        range: range(start, len_bytes),
    }
}

/// The locks of an owner, as (kind, start, length).
fn held(table: &Table, owner: LockOwner) -> Vec<(LockKind, u64, u64)> {
    let records = table.records(FILE).into_iter().filter(|lock| lock.owner == owner);
    records
        .map(|lock| (lock.kind, lock.range.start(), lock.range.len_bytes()))
        .collect()
}

/// Runs `f` in its own thread; its result comes through the channel.
fn in_thread(f: impl FnOnce() -> Result<()> + Send + 'static) -> Receiver<Result<()>> {
    let (send, receive) = channel();
    thread::spawn(move || send.send(f()));
    receive
}

fn record_in_thread(table: &Arc<Table>, ino: u64, lock: RecordLock) -> Receiver<Result<()>> {
    let table = Arc::clone(table);
    in_thread(move || table.lock(ino, &lock, Wait::Forever))
}

/// Returns when `count` requests sleep on a file, so that no test depends on how fast its threads start.
fn until_waiting(table: &Table, ino: u64, count: usize) {
    let start = Instant::now();
    while table.waiters(ino) != count {
        assert!(start.elapsed() < TIMEOUT, "{} wait, not {count}", table.waiters(ino));
        thread::sleep(Duration::from_millis(1));
    }
}

/// A request woken without need sleeps again: gives it the time to show that it does not.
fn still_waits(result: &Receiver<Result<()>>) {
    assert!(result.recv_timeout(Duration::from_millis(20)).is_err(), "did not wait");
}

fn outcome(result: &Receiver<Result<()>>) -> Result<()> {
    result.recv_timeout(TIMEOUT).expect("was never woken")
}

#[test]
fn flock_lets_many_read_or_one_write() {
    let refused = Err(FsError::WouldBlock);
    for (first, second, expected) in [
        (Shared, Shared, Ok(())),
        (Shared, Exclusive, refused.clone()),
        (Exclusive, Shared, refused.clone()),
        (Exclusive, Exclusive, refused),
    ] {
        let table = Table::new();
        table.flock(FILE, A, first, Wait::No).unwrap();
        assert_eq!(
            table.flock(FILE, B, second, Wait::No),
            expected,
            "{second:?} over {first:?}"
        );
        assert_eq!(
            table.flock(OTHER, B, Exclusive, Wait::No),
            Ok(()),
            "files are apart from each other"
        );
        assert_eq!(
            table.lock(FILE, &record(B, Exclusive, 0, 0), Wait::No),
            Ok(()),
            "flock and fcntl do not see each other"
        );
        table.funlock(FILE, A);
        assert_eq!(table.flock(FILE, B, Exclusive, Wait::No), Ok(()));
    }
}

#[test]
fn flock_converts() {
    let table = Table::new();
    table.flock(FILE, A, Shared, Wait::No).unwrap();
    table.flock(FILE, A, Exclusive, Wait::No).unwrap();
    assert_eq!(table.flock(FILE, B, Shared, Wait::No), Err(FsError::WouldBlock));
    table.flock(FILE, A, Shared, Wait::No).unwrap();
    assert_eq!(table.flock(FILE, B, Shared, Wait::No), Ok(()));
    assert_eq!(table.flock(FILE, A, Exclusive, Wait::No), Err(FsError::WouldBlock));
    assert_eq!(
        table.flock(FILE, C, Exclusive, Wait::No),
        Err(FsError::WouldBlock),
        "a refused conversion keeps what it had"
    );
    table.funlock(FILE, B);
    assert_eq!(
        table.flock(FILE, C, Exclusive, Wait::No),
        Err(FsError::WouldBlock),
        "A still reads"
    );
}

#[test]
fn flock_waits_for_its_turn_and_no_longer_than_told() {
    let table = Arc::new(Table::new());
    table.flock(FILE, A, Exclusive, Wait::No).unwrap();
    let soon = Wait::AtMost(Duration::from_millis(5));
    assert_eq!(table.flock(FILE, B, Shared, soon), Err(FsError::WouldBlock));
    let waiter = |owner, kind| {
        let table = Arc::clone(&table);
        in_thread(move || table.flock(FILE, owner, kind, Wait::Forever))
    };
    let (b, c) = (waiter(B, Shared), waiter(C, Shared));
    until_waiting(&table, FILE, 2);
    table.flock(FILE, A, Shared, Wait::No).unwrap();
    assert_eq!(
        (outcome(&b), outcome(&c)),
        (Ok(()), Ok(())),
        "a weaker lock lets readers in"
    );
    let d = waiter(LockOwner(4), Exclusive);
    until_waiting(&table, FILE, 1);
    for owner in [A, B, C] {
        still_waits(&d);
        table.funlock(FILE, owner);
    }
    assert_eq!(outcome(&d), Ok(()));
}

/// Two readers that both want to write would wait for ever if each kept its shared lock meanwhile.
#[test]
fn two_flock_upgrades_do_not_hang() {
    let table = Arc::new(Table::new());
    for owner in [A, B] {
        table.flock(FILE, owner, Shared, Wait::No).unwrap();
    }
    let upgrade = |owner| {
        let table = Arc::clone(&table);
        in_thread(move || table.flock(FILE, owner, Exclusive, Wait::Forever))
    };
    let a = upgrade(A);
    until_waiting(&table, FILE, 1);
    // A gave its shared lock up when it began to wait, so B has the file; then A's turn comes.
    let b = upgrade(B);
    assert_eq!(outcome(&b), Ok(()));
    still_waits(&a);
    table.funlock(FILE, B);
    assert_eq!(outcome(&a), Ok(()));
}

#[test]
fn ranges_end_where_files_can() {
    const LAST: u64 = (1 << 63) - 1;
    assert!(ByteRange::new(LAST, 1).is_ok());
    assert!(ByteRange::new(LAST, 0).is_ok());
    assert!(ByteRange::new(0, LAST + 1).is_ok());
    for (start, len_bytes) in [
        (LAST, 2),
        (LAST + 1, 0),
        (LAST + 1, 1),
        (1, LAST + 1),
        (u64::MAX, u64::MAX),
    ] {
        assert!(
            matches!(ByteRange::new(start, len_bytes), Err(FsError::Invalid(_))),
            "{start}+{len_bytes}"
        );
    }
    for (start, len_bytes) in [(0, 0), (5, 0), (5, 1), (0, LAST + 1)] {
        let range = range(start, len_bytes);
        assert_eq!((range.start(), range.len_bytes()), (start, len_bytes));
    }
}

#[test]
fn records_split_and_merge() {
    let table = Table::new();
    let lock = |kind, start, len| table.lock(FILE, &record(A, kind, start, len), Wait::No).unwrap();
    lock(Exclusive, 0, 100);
    table.unlock(FILE, A, range(40, 20));
    assert_eq!(held(&table, A), [(Exclusive, 0, 40), (Exclusive, 60, 40)]);
    lock(Exclusive, 40, 20);
    assert_eq!(held(&table, A), [(Exclusive, 0, 100)], "neighbours grow together");
    lock(Shared, 40, 20);
    assert_eq!(
        held(&table, A),
        [(Exclusive, 0, 40), (Shared, 40, 20), (Exclusive, 60, 40)]
    );
    lock(Shared, 30, 0);
    assert_eq!(held(&table, A), [(Exclusive, 0, 30), (Shared, 30, 0)], "to the end");
    table.unlock(FILE, A, range(1000, 1));
    assert_eq!(
        held(&table, A),
        [(Exclusive, 0, 30), (Shared, 30, 970), (Shared, 1001, 0)]
    );
    table.unlock(FILE, A, ByteRange::ALL);
    assert_eq!(held(&table, A), []);
}

#[test]
fn getlk_names_the_first_that_stands_against_it() {
    let table = Table::new();
    table.lock(FILE, &record(A, Shared, 50, 10), Wait::No).unwrap();
    table.lock(FILE, &record(B, Shared, 10, 10), Wait::No).unwrap();
    let conflict = |owner, kind, start, len| {
        let found = table.conflict(FILE, &record(owner, kind, start, len));
        found.map(|lock| (lock.owner, lock.pid, lock.range.start()))
    };
    assert_eq!(conflict(C, Exclusive, 0, 0), Some((B, 2, 10)));
    assert_eq!(conflict(C, Exclusive, 20, 0), Some((A, 1, 50)));
    assert_eq!(conflict(C, Shared, 0, 0), None);
    assert_eq!(
        conflict(B, Exclusive, 0, 20),
        None,
        "one's own locks stand against nothing"
    );
    assert_eq!(conflict(C, Exclusive, 20, 30), None, "between the two");
}

/// Every byte of a small file with its lock: the model that random requests are compared with.
#[test]
fn random_requests_agree_with_a_model_of_bytes() {
    const BYTES: usize = 48;
    const OWNERS: usize = 3;
    let seed = std::env::var("FERRITE_SEED").map_or(20_261_121, |seed| {
        seed.parse::<u64>().expect("FERRITE_SEED is a number")
    });
    println!("replay with FERRITE_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut below = |limit: u64| rng.next_u64() % limit;
    for round in 0..200 {
        let table = Table::new();
        // The last byte of the model stands for all after it.
        let mut model = [[None; BYTES]; OWNERS];
        let (mut granted, mut refused) = (0, 0);
        for step in 0..200 {
            let at = || format!("seed {seed}, round {round}, step {step}");
            let owner = below(OWNERS as u64) as usize;
            let start = below(BYTES as u64);
            let len_bytes = below(BYTES as u64 - start);
            let bytes = match len_bytes {
                0 => start as usize..BYTES,
                _ => start as usize..(start + len_bytes) as usize,
            };
            let kind = match below(5) {
                0 | 1 => Some(Shared),
                2 => Some(Exclusive),
                _ => None,
            };
            match kind {
                None => table.unlock(FILE, LockOwner(owner as u64), range(start, len_bytes)),
                Some(kind) => {
                    let free = (0..OWNERS).filter(|&other| other != owner).all(|other| {
                        model[other][bytes.clone()].iter().all(|held| match held {
                            None => true,
                            Some(held) => kind == Shared && *held == Shared,
                        })
                    });
                    let request = record(LockOwner(owner as u64), kind, start, len_bytes);
                    assert_eq!(table.conflict(FILE, &request).is_none(), free, "{}", at());
                    let expected = if free { Ok(()) } else { Err(FsError::WouldBlock) };
                    assert_eq!(table.lock(FILE, &request, Wait::No), expected, "{}", at());
                    if !free {
                        refused += 1;
                        continue;
                    }
                    granted += 1;
                }
            }
            model[owner][bytes].fill(kind);
            for (index, bytes) in model.iter().enumerate() {
                assert_eq!(
                    held(&table, LockOwner(index as u64)),
                    runs(bytes),
                    "{}, owner {index}",
                    at()
                );
            }
        }
        assert!(
            granted > 10 && refused > 10,
            "the requests test nothing: {granted} granted, {refused} refused"
        );
    }
}

/// The fewest ranges that describe the bytes.
fn runs(bytes: &[Option<LockKind>]) -> Vec<(LockKind, u64, u64)> {
    let mut runs = Vec::new();
    let mut start = 0;
    for chunk in bytes.chunk_by(|a, b| a == b) {
        let end = start + chunk.len();
        let len_bytes = if end == bytes.len() { 0 } else { chunk.len() };
        if let Some(kind) = chunk[0] {
            runs.push((kind, start as u64, len_bytes as u64));
        }
        start = end;
    }
    runs
}

#[test]
fn a_record_lock_waits_for_the_bytes_it_needs() {
    let table = Arc::new(Table::new());
    table.lock(FILE, &record(A, Exclusive, 0, 100), Wait::No).unwrap();
    let soon = Wait::AtMost(Duration::from_millis(5));
    assert_eq!(
        table.lock(FILE, &record(B, Shared, 50, 1), soon),
        Err(FsError::WouldBlock)
    );
    let b = record_in_thread(&table, FILE, record(B, Shared, 50, 10));
    until_waiting(&table, FILE, 1);
    table.unlock(FILE, A, range(0, 55));
    still_waits(&b);
    table.lock(FILE, &record(A, Shared, 55, 45), Wait::No).unwrap();
    assert_eq!(outcome(&b), Ok(()), "a weaker lock lets a reader in");
}

#[test]
fn a_ring_of_waiters_is_refused() {
    let table = Arc::new(Table::new());
    table.lock(FILE, &record(A, Exclusive, 0, 1), Wait::No).unwrap();
    table.lock(FILE, &record(B, Exclusive, 1, 1), Wait::No).unwrap();
    table.lock(OTHER, &record(C, Exclusive, 0, 0), Wait::No).unwrap();
    let a = record_in_thread(&table, FILE, record(A, Exclusive, 1, 1));
    until_waiting(&table, FILE, 1);
    let b = record_in_thread(&table, OTHER, record(B, Shared, 5, 1));
    until_waiting(&table, OTHER, 1);
    assert_eq!(
        table.lock(FILE, &record(C, Shared, 0, 1), Wait::Forever),
        Err(FsError::Deadlock),
        "C would wait for A, A for B, B for C"
    );
    assert_eq!(
        table.lock(FILE, &record(C, Shared, 0, 1), Wait::No),
        Err(FsError::WouldBlock),
        "who does not wait cannot be stuck"
    );
    table.release_file(OTHER, C);
    assert_eq!(outcome(&b), Ok(()));
    table.release_file(FILE, B);
    assert_eq!(outcome(&a), Ok(()));
}

#[test]
fn a_chain_of_waiters_is_none() {
    let table = Arc::new(Table::new());
    table.lock(FILE, &record(A, Exclusive, 0, 1), Wait::No).unwrap();
    table.lock(FILE, &record(B, Exclusive, 1, 1), Wait::No).unwrap();
    let b = record_in_thread(&table, FILE, record(B, Exclusive, 0, 1));
    until_waiting(&table, FILE, 1);
    let c = record_in_thread(&table, FILE, record(C, Exclusive, 1, 1));
    until_waiting(&table, FILE, 2);
    table.release_file(FILE, A);
    assert_eq!(outcome(&b), Ok(()));
    table.release_file(FILE, B);
    assert_eq!(outcome(&c), Ok(()));
}

#[test]
fn two_record_upgrades_cannot_both_wait() {
    let table = Arc::new(Table::new());
    for owner in [A, B] {
        table.lock(FILE, &record(owner, Shared, 0, 10), Wait::No).unwrap();
    }
    let a = record_in_thread(&table, FILE, record(A, Exclusive, 0, 10));
    until_waiting(&table, FILE, 1);
    assert_eq!(
        table.lock(FILE, &record(B, Exclusive, 0, 10), Wait::Forever),
        Err(FsError::Deadlock)
    );
    assert_eq!(held(&table, B), [(Shared, 0, 10)], "who is refused keeps what he had");
    table.release_file(FILE, B);
    assert_eq!(outcome(&a), Ok(()));
}

/// A server runs for months; files without locks must not pile up in its table, however their locks ended.
#[test]
fn a_table_without_locks_holds_nothing() {
    let table = Table::new();
    table.flock(1, A, Exclusive, Wait::No).unwrap();
    table.flock(1, B, Shared, Wait::No).unwrap_err();
    let soon = Wait::AtMost(Duration::from_millis(1));
    table.flock(1, B, Shared, soon).unwrap_err();
    table.funlock(1, A);
    table.lock(2, &record(A, Exclusive, 0, 100), Wait::No).unwrap();
    table.lock(2, &record(B, Exclusive, 0, 1), Wait::No).unwrap_err();
    table.unlock(2, A, range(10, 10));
    table.unlock(2, A, ByteRange::ALL);
    table.lock(3, &record(A, Exclusive, 0, 0), Wait::No).unwrap();
    table.flock(3, A, Shared, Wait::No).unwrap();
    table.release_file(3, A);
    table.unlock(6, A, ByteRange::ALL);
    assert_eq!(table.conflict(7, &record(A, Shared, 0, 1)), None);
    assert!(table.0.is_empty(), "left: {:?}", table.0);
    table.lock(4, &record(B, Exclusive, 0, 0), Wait::No).unwrap();
    table.flock(5, B, Shared, Wait::No).unwrap();
    assert!(!table.0.is_empty());
    table.0.release_client(SYSTEM);
    assert!(table.0.is_empty(), "left: {:?}", table.0);
}

/// Mutual exclusion itself, under contention.
#[test]
fn an_exclusive_lock_is_held_by_one() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let table = Arc::new(Table::new());
    let inside = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let (table, inside) = (Arc::clone(&table), Arc::clone(&inside));
            thread::spawn(move || {
                let owner = LockOwner(10 + number);
                for turn in 0..500 {
                    let as_flock = turn % 2 == 0;
                    if as_flock {
                        table.flock(FILE, owner, Exclusive, Wait::Forever).unwrap();
                    }
                    table
                        .lock(FILE, &record(owner, Exclusive, 0, 0), Wait::Forever)
                        .unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::yield_now();
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    table.release_file(FILE, owner);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(table.records(FILE), []);
}

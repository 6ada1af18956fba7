//! Many locks and many waiting requests: their bounds, the cost of a call, and that no request is forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_vfs::locks::{
    ByteRange, FILE_LOCKS_MAX, FILE_WAITING_MAX, LockDone, LockKind, LockOwner, LockRequest, LockTable, LockTicket,
    RecordLock, Unlock, WAITING_MAX,
};
use ferrite_vfs::{ClientId, Ctx, FsError, Result, SYSTEM, SpaceOf};
use parking_lot::Mutex;

use LockKind::{Exclusive, Shared};

const FULL: FsError = FsError::NoSpace(SpaceOf::RecordLocks);
/// No call may take as long, however many wait; calls take less than a tenth of it on an idle machine.
const LONG: Duration = Duration::from_millis(500);

fn client(number: u64) -> Ctx {
    SYSTEM.clone().of_client(ClientId(number))
}

fn record(owner: u64, kind: LockKind, start: u64, len_bytes: u64) -> LockRequest {
    LockRequest::Record(RecordLock {
        owner: LockOwner(owner),
        pid: 1,
        kind,
        range: ByteRange::new(start, len_bytes).unwrap(),
    })
}

fn flock(owner: u64, kind: LockKind) -> LockRequest {
    LockRequest::Flock(LockOwner(owner), kind)
}

/// A request's number, and its outcome.
type Outcome = (u64, Result<()>);
/// Makes a request of a kind for an owner.
type Make = fn(u64, LockKind) -> LockRequest;

/// Outcomes by the number that the request was given.
#[derive(Clone, Default)]
struct Outcomes(Arc<Mutex<Vec<Outcome>>>);

impl Outcomes {
    fn of(&self, number: u64) -> LockDone {
        let outcomes = Arc::clone(&self.0);
        Box::new(move |outcome| outcomes.lock().push((number, outcome)))
    }

    fn take(&self) -> Vec<(u64, Result<()>)> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Makes calls, and notes which took longest.
#[derive(Default)]
struct Clock(Duration);

impl Clock {
    fn of<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = call();
        self.0 = self.0.max(began.elapsed());
        result
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        assert!(self.0 < LONG || std::thread::panicking(), "a call took {:?}", self.0);
    }
}

/// Requests that wait for one lock have a bound for a file and one for all, whatever they are; the one too many is
/// refused, and costs no more than the first. One release grants all requests that can be granted.
#[test]
fn requests_that_wait_have_a_bound_and_cost_the_same() {
    let kinds: [(Make, LockKind); 4] = [
        (flock, Exclusive),
        (flock, Shared),
        (|owner, kind| record(owner, kind, 0, 0), Exclusive),
        (|owner, kind| record(owner, kind, owner % 100, 7), Shared),
    ];
    for (request, kind) in kinds {
        let (table, seen, mut clock) = (LockTable::new(), Outcomes::default(), Clock::default());
        let whole = |ino| [flock(0, Exclusive), record(0, Exclusive, 0, 0)].map(|request| (ino, request));
        for (ino, request) in (0..9).flat_map(whole) {
            table.lock(&client(1), ino, &request, false, seen.of(0));
        }
        assert!(seen.take().iter().all(|(_, outcome)| outcome.is_ok()));
        for number in 1..=WAITING_MAX as u64 {
            let ino = (number - 1) / FILE_WAITING_MAX as u64;
            let request = request(number, kind);
            clock.of(|| table.lock(&client(2), ino, &request, true, seen.of(number)));
            if number % FILE_WAITING_MAX as u64 == 0 {
                table.lock(&client(2), ino, &request, true, seen.of(number));
                assert_eq!(seen.take(), [(number, Err(FULL))], "one too many for the file");
            }
        }
        table.lock(&client(3), 8, &request(1, kind), true, seen.of(1));
        assert_eq!(seen.take(), [(1, Err(FULL))], "one too many for the table");
        clock
            .of(|| table.unlock(&client(1), 0, LockOwner(0), Unlock::All))
            .unwrap();
        let granted = seen.take();
        assert!(granted.iter().all(|(_, outcome)| outcome.is_ok()));
        let expected = if kind == Shared { FILE_WAITING_MAX } else { 1 };
        assert_eq!(granted.len(), expected);
        assert!(granted.is_sorted_by_key(|(number, _)| *number), "in order");
        let began = Instant::now();
        table.release_client(&client(2));
        assert!(
            began.elapsed() < 10 * LONG,
            "a client that goes took {:?}",
            began.elapsed()
        );
        table.release_client(&client(1));
        assert!(table.is_empty());
    }
}

/// Each granted request unblocks others, and all others wait for the same bytes: the cost of one release is bounded,
/// and each request is settled or waits for a holder.
#[test]
fn rows_of_requests_that_free_each_other_have_a_budget() {
    let (table, seen, mut clock) = (LockTable::new(), Outcomes::default(), Clock::default());
    let half = FILE_WAITING_MAX as u64 / 2;
    for owner in 0..=half {
        table.lock(SYSTEM, 1, &record(owner, Exclusive, owner, 1), false, seen.of(0));
    }
    // Owner n gives up its byte for others to read when it gets the one before.
    for owner in 1..half {
        table.lock(SYSTEM, 1, &record(owner, Shared, owner - 1, 2), true, seen.of(owner));
    }
    for owner in half + 1..=2 * half {
        clock.of(|| table.lock(SYSTEM, 1, &record(owner, Exclusive, 0, 0), true, seen.of(owner)));
    }
    seen.take();
    clock.of(|| table.unlock(SYSTEM, 1, LockOwner(0), Unlock::All)).unwrap();
    let outcomes = seen.take();
    assert!(
        outcomes
            .iter()
            .all(|(_, outcome)| *outcome == Ok(()) || *outcome == Err(FULL))
    );
    assert!(outcomes.iter().any(|(number, outcome)| *number == 1 && outcome.is_ok()));
    assert!(outcomes.len() + table.waiters(1) == 2 * half as usize - 1);
}

/// The owner of many small locks may ask for all of them at once, again and again.
#[test]
fn locks_on_a_file_have_a_bound_and_an_unlock_that_splits_one_too() {
    let (table, seen, mut clock) = (LockTable::new(), Outcomes::default(), Clock::default());
    table.lock(SYSTEM, 1, &record(1, Exclusive, 0, 1 << 20), false, seen.of(0));
    let mut splits = 0;
    while table.unlock(
        SYSTEM,
        1,
        LockOwner(1),
        Unlock::Range(ByteRange::new(2 * splits + 1, 1).unwrap()),
    ) == Ok(())
    {
        splits += 1;
        assert!(splits < FILE_LOCKS_MAX as u64, "locks without a bound");
    }
    assert!(splits > FILE_LOCKS_MAX as u64 - 4);
    let before = table.records(1);
    let more = Unlock::Range(ByteRange::new(2 * splits + 1, 1).unwrap());
    assert_eq!(table.unlock(SYSTEM, 1, LockOwner(1), more), Err(FULL));
    assert_eq!(table.records(1), before, "a call that fails changes nothing");
    // A release that leaves no more locks than before succeeds.
    let end = Unlock::Range(ByteRange::new(1 << 19, 1 << 19).unwrap());
    assert_eq!(table.unlock(SYSTEM, 1, LockOwner(1), end), Ok(()));
    let refused = record(2, Exclusive, 1 << 21, 1);
    table.lock(SYSTEM, 1, &refused, true, seen.of(2));
    assert_eq!(seen.take()[1..], [(2, Err(FULL))]);
    for owner in 0..FILE_LOCKS_MAX as u64 {
        clock.of(|| table.lock(SYSTEM, 2, &flock(owner, Shared), false, seen.of(owner)));
    }
    let outcomes = seen.take();
    assert_eq!(outcomes.last(), Some(&(FILE_LOCKS_MAX as u64 - 1, Err(FULL))));
    clock.of(|| table.unlock(SYSTEM, 1, LockOwner(1), Unlock::All)).unwrap();
    assert_eq!(table.records(1), []);
}

/// The expected content of a table, found by a full search each time.
#[derive(Default)]
struct Model {
    flocks: BTreeMap<(u64, u64), LockKind>,
    waiting: BTreeMap<u64, (u64, LockRequest, Option<LockTicket>)>,
}

fn conflict(a: LockKind, b: LockKind) -> bool {
    a == Exclusive || b == Exclusive
}

impl Model {
    fn granted(&mut self, ino: u64, request: &LockRequest) {
        if let LockRequest::Flock(owner, kind) = request {
            self.flocks.insert((ino, owner.0), *kind);
        }
    }

    fn settled(&mut self, outcomes: Vec<(u64, Result<()>)>) {
        for (number, outcome) in outcomes {
            let (ino, request, _) = self.waiting.remove(&number).expect("one outcome for each request");
            match outcome {
                Ok(()) => self.granted(ino, &request),
                Err(error) => assert!(
                    matches!(error, FsError::Deadlock | FsError::Interrupted | FsError::Disconnected),
                    "{error}"
                ),
            }
        }
    }

    /// No two owners hold conflicting locks, and no request waits without a conflict.
    fn check(&self, table: &LockTable, ino: u64) {
        let records = table.records(ino);
        for (n, a) in records.iter().enumerate() {
            for b in &records[n + 1..] {
                let both = a.owner != b.owner && conflict(a.kind, b.kind) && a.range.overlaps(&b.range);
                assert!(!both, "{a:?} and {b:?}");
            }
        }
        let flocks: Vec<(u64, LockKind)> = self
            .flocks
            .range((ino, 0)..=(ino, u64::MAX))
            .map(|(&(_, owner), &kind)| (owner, kind))
            .collect();
        assert!(
            flocks.len() < 2 || flocks.iter().all(|(_, kind)| *kind == Shared),
            "{flocks:?}"
        );
        for (at, request, _) in self.waiting.values().filter(|(at, ..)| *at == ino) {
            let waits = match request {
                LockRequest::Flock(owner, kind) => flocks
                    .iter()
                    .any(|&(other, held)| other != owner.0 && conflict(*kind, held)),
                LockRequest::Record(lock) => records.iter().any(|held| {
                    held.owner != lock.owner && conflict(held.kind, lock.kind) && held.range.overlaps(&lock.range)
                }),
            };
            assert!(waits, "{request:?} waits for nothing on {at}");
        }
    }
}

#[test]
fn nobody_waits_for_nothing() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (table, seen, mut model) = (LockTable::new(), Outcomes::default(), Model::default());
    for number in 0..60_000 {
        // Each owner belongs to one client.
        let (ino, owner) = (random(2), random(9));
        let ctx = client(owner / 3);
        let kind = if random(3) == 0 { Exclusive } else { Shared };
        let len = random(3) * random(30);
        let range = ByteRange::new(random(60), len).unwrap();
        match random(12) {
            0..6 => {
                let request = match random(3) {
                    0 => flock(owner, kind),
                    _ => record(owner, kind, range.start(), len),
                };
                let may_wait = random(4) > 0;
                model.waiting.insert(number, (ino, request, None));
                let ticket = table.lock(&ctx, ino, &request, may_wait, seen.of(number));
                let mut outcomes = seen.take();
                if let Some(at) = outcomes
                    .iter()
                    .position(|(of, outcome)| *of == number && *outcome == Err(FsError::WouldBlock))
                {
                    assert!(!may_wait);
                    drop(outcomes.remove(at));
                    model.waiting.remove(&number);
                } else if ticket.is_some() && matches!(request, LockRequest::Flock(..)) {
                    // A conversion that waits releases the old lock.
                    model.flocks.remove(&(ino, owner));
                }
                model.settled(outcomes);
                if let Some(waiting) = model.waiting.get_mut(&number) {
                    waiting.2 = ticket;
                    assert!(ticket.is_some());
                }
            }
            6 => table.unlock(&ctx, ino, LockOwner(owner), Unlock::Range(range)).unwrap(),
            7 => {
                model.flocks.remove(&(ino, owner));
                table.unlock(&ctx, ino, LockOwner(owner), Unlock::Flock).unwrap();
            }
            8 | 9 => {
                model.flocks.remove(&(ino, owner));
                table.unlock(&ctx, ino, LockOwner(owner), Unlock::All).unwrap();
            }
            10 if !model.waiting.is_empty() => {
                let at = random(model.waiting.len() as u64) as usize;
                let (_, request, ticket) = model.waiting.values().nth(at).unwrap();
                let owner = match request {
                    LockRequest::Flock(owner, _) => owner.0,
                    LockRequest::Record(lock) => lock.owner.0,
                };
                table.cancel(&client(owner / 3), ticket.unwrap());
            }
            11 if random(8) == 0 => {
                model.flocks.retain(|&(_, of), _| of / 3 != owner / 3);
                table.release_client(&ctx);
            }
            _ => {}
        }
        model.settled(seen.take());
        (0..2).for_each(|ino| model.check(&table, ino));
        let waiting = (0..2).map(|ino| table.waiters(ino)).sum::<usize>();
        assert_eq!(waiting, model.waiting.len());
    }
    (0..3).for_each(|number| table.release_client(&client(number)));
    assert!(table.is_empty());
}

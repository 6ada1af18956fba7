//! The requests in flight, the slots, and the limits of calls.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ferrite_vfs::{DedupToken, FsError, WaitingCaller, Waits};

use super::super::call_limit::CHECK_EVERY;
use super::super::in_flight::POSTED_BYTES_MAX;
use super::{CallLimit, Deferred, Has, InFlight, MS, Pending, Recipient, Repeated, SlotTable, TOKEN, Tokens};

/// A recipient with data to send.
#[derive(Debug)]
struct Data(&'static [u8]);

impl Recipient for Data {
    fn data(&self) -> &[u8] {
        self.0
    }
}

type Table = InFlight<u64, Data>;

fn deferred(body: &str, token: Option<DedupToken>, deadline: Option<Instant>) -> Pending<u64, Data> {
    Pending::Deferred(Box::new(Deferred {
        body: body.into(),
        token,
        deadline,
        recipient: Data(b"data"),
    }))
}

/// The bodies that a new connection sends.
fn bodies(table: &Table) -> Vec<String> {
    let repeated = table.to_repeat(&mut Repeated::default());
    let text = |body: Vec<u8>| String::from_utf8(body).unwrap();
    repeated.into_iter().map(|request| text(request.body)).collect()
}

#[test]
fn a_new_connection_repeats_what_no_thread_waits_for() {
    let now = Instant::now();
    let lost = DedupToken { slot: 9, ..TOKEN };
    let mut table = Table::default();
    table.insert(1, Pending::Thread(1));
    table.insert(2, Pending::Posted(b"posted".to_vec()));
    table.insert(3, deferred("read", None, Some(now + MS)));
    table.insert(4, deferred("late", None, Some(now)));
    table.insert(5, deferred("write", Some(TOKEN), None));
    table.insert(6, deferred("lost", Some(lost), None));
    table.insert(7, deferred("late and lost", Some(lost), Some(now)));
    assert!(table.insert_cancel(8, 3, b"cancel".to_vec()));
    let abandon = |_: &Table, id: u64| (10 + id, format!("abandon {id}").into_bytes());
    let expired = table.expire(now, Some(&Has(vec![TOKEN])), abandon);
    let ended: Vec<(&[u8], FsError)> = expired
        .iter()
        .map(|it| (&*it.deferred.body, it.error.clone()))
        .collect();
    let (late, unknown) = (FsError::TimedOut, FsError::Disconnected);
    assert_eq!(
        ended,
        [
            (&b"late"[..], late.clone()),
            (b"lost", unknown),
            (b"late and lost", late)
        ]
    );
    let abandons: Vec<Option<u64>> = expired.iter().map(|it| it.abandon.as_ref().map(|it| it.id)).collect();
    assert_eq!(abandons, [Some(14), None, Some(17)], "the server may have those");
    let mut repeated = Repeated::default();
    let first = table.to_repeat(&mut repeated);
    let ids: Vec<u64> = first.iter().map(|request| request.id).collect();
    assert_eq!(ids, [2, 3, 5, 8, 14, 17], "in order");
    assert_eq!(first[4].body, b"abandon 4");
    assert!(first[1].data == b"data" && first[0].data.is_empty());
    table.insert(18, Pending::Posted(b"meanwhile".to_vec()));
    let second = table.to_repeat(&mut repeated);
    assert!(second.len() == 1 && second[0].id == 18, "each once: {second:?}");
    assert!(table.to_repeat(&mut repeated).is_empty());
}

#[test]
fn a_request_is_answered_once() {
    let mut table = Table::default();
    table.insert(1, Pending::Posted(Vec::new()));
    table.insert(2, deferred("read", None, None));
    table.insert(3, Pending::Thread(30));
    assert_eq!(table.settled_below(4), 1);
    assert!(table.answered(1).is_some() && table.answered(1).is_none());
    assert_eq!(table.settled_below(4), 3, "the read is not counted");
    assert!(table.answered(2).is_some() && table.answered(2).is_none());
    let Some(Pending::Thread(30)) = table.answered(3) else {
        panic!("a thread waits");
    };
    assert_eq!(
        table.waiters().collect::<Vec<_>>(),
        [(3, &30)],
        "it leaves by its own step"
    );
    assert!(table.remove(3).is_some() && table.answered(3).is_none());
    assert_eq!(table.settled_below(4), 4);
    assert!(table.answered(77).is_none(), "no request had this number");
}

/// A server that never answers requests without a waiter costs a bounded amount of memory.
#[test]
fn posted_requests_are_forgotten_in_the_end() {
    let mut table = Table::default();
    let body = vec![b'x'; 1 << 20];
    (1..=100).for_each(|id| table.insert(id, Pending::Posted(body.clone())));
    let kept = table.to_repeat(&mut Repeated::default());
    assert!((50..=POSTED_BYTES_MAX >> 20).contains(&kept.len()), "{}", kept.len());
    assert_eq!(kept.last().map(|request| request.id), Some(100), "the latest stay");
    kept.iter().for_each(|request| drop(table.answered(request.id)));
    (101..=150).for_each(|id| table.insert(id, Pending::Posted(body.clone())));
    assert_eq!(bodies(&table).len(), 50, "the memory of answered ones is free");
}

/// The server has received a cancellation, and is killed before it reports how the wait ended. Its successor gets the
/// request for the lock again, and must learn that it is cancelled, or the canceller waits as long as the lock is
/// another's.
#[test]
fn the_end_of_a_wait_is_said_again_with_the_wait() {
    let mut table = Table::default();
    table.insert(1, deferred("lock", None, None));
    assert!(table.insert_cancel(2, 1, b"cancel".to_vec()));
    assert!(table.answered(2).is_none(), "nobody waits for this");
    assert_eq!(bodies(&table), ["lock", "cancel"]);
    assert!(matches!(table.answered(1), Some(Pending::Deferred(_))));
    assert!(bodies(&table).is_empty(), "nothing is left to end");
    assert!(!table.insert_cancel(3, 1, b"cancel".to_vec()));
    assert!(bodies(&table).is_empty());
}

#[test]
fn numbers_ascend_within_a_slot_and_from_session_to_session() {
    let now = Instant::now();
    let mut slots = SlotTable::default();
    slots.begin(3);
    assert!(slots.take(now).is_none(), "none are known");
    slots.fill(3, 3, vec![8], now);
    let mut last = 0;
    for _ in 0..3 {
        let token = slots.take(now).unwrap();
        assert!(token.slot == 8 && token.seq > last);
        last = token.seq;
        assert!(slots.free(token));
    }
    let old = slots.take(now).unwrap();
    slots.begin(4);
    assert!(!slots.has(old), "it was of a session that is over");
    assert!(!slots.fill(3, 5, vec![1], now));
    slots.fill(4, 6, vec![8], now);
    assert!(!slots.free(old));
    let new = slots.take(now).unwrap();
    assert!(new.slot == 8 && new.seq > last + 1);
    slots.free(new);
    assert!(slots.has_any() && slots.take(now).is_some());
}

#[test]
fn slots_that_the_server_does_not_give_back_are_void() {
    let now = Instant::now();
    let mut slots = SlotTable::default();
    slots.begin(1);
    slots.fill(1, 3, vec![5, 6], now);
    let (one, other) = (slots.take(now).unwrap(), slots.take(now).unwrap());
    slots.reclaimed(3, vec![6], now);
    assert!(!slots.has(one) && slots.has(other));
    assert!(!slots.free(one) && slots.free(other));
    assert_eq!(slots.free_count(), 1);
    slots.reclaimed(0, vec![], now);
    assert!(!slots.has_any() && slots.are_wanted(now) && slots.take(now).is_none());
    slots.fill(1, 0, vec![], now);
    assert!(!slots.are_wanted(now), "there were none a moment ago");
    assert!(slots.are_wanted(now + Duration::from_secs(5)));
}

/// The server gives slots that lie unused for a lease to other sessions.
#[test]
fn slots_that_lay_unused_are_asked_for_before_they_are_used() {
    let mut now = Instant::now();
    let mut slots = SlotTable::default();
    slots.begin(1);
    slots.fill(1, 3, vec![0], now);
    slots.set_lease(4000 * MS);
    let first = slots.try_take(now).unwrap();
    slots.free(first);
    now += 2000 * MS - MS;
    assert!(!slots.are_wanted(now));
    now += MS;
    assert!(slots.are_wanted(now) && slots.try_take(now).is_none() && slots.has_any());
    // The session still has them: numbers continue.
    slots.fill(1, 3, vec![0], now);
    assert!(!slots.are_wanted(now));
    let second = slots.try_take(now).unwrap();
    assert_eq!((second.slot, second.seq), (0, first.seq + 1));
    slots.free(second);
    // It has others.
    slots.fill(1, 9, vec![5], now);
    assert!(!slots.has(second));
    let third = slots.try_take(now).unwrap();
    assert_eq!((third.slot, third.seq), (5, 9 << 32 | 1));
    slots.free(second);
    assert!(slots.try_take(now).is_none(), "another's number is not free here");
    slots.fill(1, 0, vec![], now);
    assert!(
        !slots.has_any() && !slots.are_wanted(now),
        "there were none a moment ago"
    );
}

/// No thread waits for the reply, so requests in between must not ask again, nor must a refusal be asked about at once.
#[test]
fn slots_are_asked_for_once_at_a_time_for_requests_that_no_thread_waits_for() {
    let mut now = Instant::now();
    let mut slots = SlotTable::default();
    slots.begin(1);
    assert!(slots.begin_asking(now) && !slots.begin_asking(now));
    assert!(slots.are_wanted(now), "a thread that waits asks for itself");
    // The session ends meanwhile, and the request is repeated in the next.
    slots.begin(2);
    assert!(!slots.begin_asking(now));
    assert!(!slots.asked(1, Ok((1, vec![7])), now));
    assert!(!slots.has_any() && slots.begin_asking(now), "it asks again");
    assert!(slots.asked(2, Ok((2, vec![8])), now));
    assert_eq!(slots.try_take(now).unwrap().slot, 8);
    assert!(!slots.begin_asking(now));
    slots.begin(3);
    assert!(slots.begin_asking(now));
    assert!(!slots.asked(3, Err(FsError::Disconnected), now));
    assert!(
        !slots.are_wanted(now) && !slots.begin_asking(now),
        "it was refused a moment ago"
    );
    now += Duration::from_secs(5);
    assert!(slots.begin_asking(now) && slots.asked(3, Ok((3, vec![9])), now));
    slots.begin(4);
    assert!(slots.begin_asking(now) && !slots.asked(4, Err(FsError::Disconnected), now));
    slots.begin(5);
    assert!(slots.begin_asking(now), "another session refused it");
}

#[test]
fn the_shorter_limit_counts() {
    let now = Instant::now();
    let (short, long) = (10 * MS, Duration::from_secs(1000));
    for (timeout, within) in [
        (Some(short), Some(long)),
        (Some(long), Some(short)),
        (None, Some(short)),
        (Some(short), None),
    ] {
        let limit = CallLimit::of(timeout, &Waits { within, caller: None }, || now);
        assert_eq!(limit.check(now + short - MS), Ok(()));
        assert_eq!(limit.check(now + short), Err(FsError::TimedOut));
        assert_eq!(limit.is_short(), within.is_some());
    }
    let endless = CallLimit::of(None, &Waits::FOREVER, || panic!("the clock is read"));
    assert!(endless.is_endless() && endless.next_check(|| panic!("the clock is read")).is_none());
}

#[test]
fn a_caller_is_checked_twice_and_not_at_once() {
    static CHECKS: AtomicU32 = AtomicU32::new(0);
    let caller = WaitingCaller {
        id: 7,
        gives_up: |id| {
            CHECKS.fetch_add(1, Ordering::Relaxed);
            id == 7
        },
    };
    let waits = Waits {
        within: None,
        caller: Some(caller),
    };
    let start = Instant::now();
    let mut now = start;
    let limit = CallLimit::of(None, &waits, || now);
    assert!(limit.is_short() && !limit.is_endless());
    assert!(limit.check(now).is_ok() && CHECKS.load(Ordering::Relaxed) == 0);
    while limit.check(now).is_ok() {
        assert!(now - start < Duration::from_secs(20));
        now = limit.next_check(|| now).unwrap();
    }
    assert_eq!(CHECKS.load(Ordering::Relaxed), 2);
    assert_eq!(now - start, 2 * CHECK_EVERY);
    assert_eq!(
        limit.check(now),
        Err(FsError::Interrupted),
        "a call that gave up continues"
    );
}

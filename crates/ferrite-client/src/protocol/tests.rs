//! The state machine in virtual time: no test sleeps, and none opens a socket.
//!
//! Contents: what each event leads to. Random sequences of events are in [`random`], the tables in [`tables`], several
//! servers in [`failover`].

mod failover;
mod random;
mod server;
mod tables;

use std::time::{Duration, Instant};

use ferrite_proto::{Node, Promises, ResumeToken, SessionState, Welcome};
use ferrite_vfs::{DedupToken, Durability, FsError, ROOT_INO, SessionsOf, SyncMode};

use super::*;

const MS: Duration = Duration::from_millis(1);
/// The places of a client in the stagger: the shortest delays, and the longest.
const EARLIEST: Stagger = Stagger::of(0);
const LATEST: Stagger = Stagger::of(511);

/// The addresses of servers.
fn list(text: &str) -> Addresses {
    text.parse().expect("a list of servers")
}

/// A server's welcome to a session.
fn welcome(session: u64, state: SessionState, lease_ms: u32) -> Welcome {
    Welcome {
        version: 1,
        instance: 1,
        resume_token: ResumeToken { session, mac: session },
        state,
        lease_ms,
        root: Node {
            ino: ROOT_INO,
            generation: 0,
            mac: 0,
        },
        promises: Promises {
            atomic_write_bytes: 0,
            whole_write_bytes: 0,
            file_bytes_max: 0,
            durability: Durability::None,
            is_durable_at_once: false,
            has_slots: true,
            sync_mode: SyncMode::Through,
        },
    }
}

/// A client whose first connection is 1, of session 7.
fn connected() -> Protocol<u64> {
    let mut protocol = Protocol::new(list("server:1"), Instant::now());
    let first = protocol.first_attempt(MS);
    assert!(first.resume_token.is_none() && &*first.address == "server:1");
    protocol.welcomed(&welcome(7, SessionState::New, 4000));
    protocol.established(1);
    protocol
}

/// The same after its connection broke, while a caller connects; with the time of the first attempt.
fn connecting(now: Instant) -> (Protocol<u64>, Instant) {
    let mut protocol = connected();
    assert!(protocol.lost(&1, &Loss::Broken));
    let seeker = protocol.seeker(true);
    assert_eq!(protocol.seek(&seeker), Seek::Connect);
    let at = protocol.begin_attempts(now);
    (protocol, at)
}

fn fails(protocol: &mut Protocol<u64>, now: Instant, stagger: Stagger) -> AfterFailure {
    protocol.attempt_failed(Failure::Transient, None, now, stagger)
}

#[test]
fn delays_double_up_to_a_second() {
    for (stagger, least, most) in [(EARLIEST, 500, 500), (LATEST, 998, 1000)] {
        let start = Instant::now();
        let (mut protocol, mut now) = connecting(start);
        let mut delays = Vec::new();
        for _ in 0..12 {
            let AfterFailure::RetryAt(at) = fails(&mut protocol, now, stagger) else {
                panic!("it gives up");
            };
            delays.push(at - now);
            now = at;
        }
        for (before, after) in delays.iter().zip(&delays[1..8]) {
            assert!(after.abs_diff(*before * 2) < Duration::from_micros(1), "{delays:?}");
        }
        assert!(
            delays[0] >= 5 * MS / 2 && delays[0] <= 5 * MS,
            "all wait at least half of a delay: {delays:?}"
        );
        assert!(
            delays[8..]
                .iter()
                .all(|&delay| delay >= least * MS && delay <= most * MS)
        );
    }
}

/// A server that accepts each connection and then breaks it.
#[test]
fn series_of_attempts_keep_their_distance() {
    let start = Instant::now();
    let (mut protocol, mut at) = connecting(start);
    assert_eq!(at, start, "the first begins at once");
    for connection in 2..52 {
        assert!(protocol.attempt().unwrap().is_first);
        protocol.welcomed(&welcome(7, SessionState::Alive, 4000));
        protocol.established(connection);
        assert!(protocol.lost(&connection, &Loss::Broken));
        let seeker = protocol.seeker(true);
        assert_eq!(protocol.seek(&seeker), Seek::Connect);
        at = protocol.begin_attempts(at);
    }
    assert_eq!(at - start, 50 * 20 * MS);
    assert_eq!(protocol.reconnects(), 50);
    let later = at + 30 * MS;
    assert_eq!(protocol.begin_attempts(later), later, "that one lasted");
}

#[test]
fn a_series_begins_with_the_shortest_delay_again() {
    let (mut protocol, mut now) = connecting(Instant::now());
    for _ in 0..10 {
        if let AfterFailure::RetryAt(at) = fails(&mut protocol, now, EARLIEST) {
            now = at;
        }
    }
    assert!(!protocol.attempt().unwrap().is_first);
    protocol.established(2);
    assert!(protocol.lost(&2, &Loss::Broken));
    now = protocol.begin_attempts(now + 1000 * MS);
    let AfterFailure::RetryAt(at) = fails(&mut protocol, now, LATEST) else {
        panic!("it gives up");
    };
    assert!(at - now <= 5 * MS);
}

#[test]
fn a_caller_stops_connecting_before_its_deadline_and_another_continues() {
    let (mut protocol, now) = connecting(Instant::now());
    let other = protocol.seeker(true);
    assert_eq!(protocol.seek(&other), Seek::Wait { wakes_watcher: false });
    let end = protocol.attempt_failed(Failure::Transient, Some(now + 5 * MS), now, EARLIEST);
    assert_eq!(end, AfterFailure::GiveUp(FsError::TimedOut));
    assert_eq!(
        protocol.seek(&other),
        Seek::Connect,
        "one caller's limit concerns no other"
    );
}

/// A caller that may give up does not connect: it could not while an attempt takes long.
#[test]
fn callers_that_may_give_up_leave_connecting_to_the_watcher() {
    let mut protocol = connected();
    let caller = protocol.seeker(false);
    assert_eq!(protocol.seek(&caller), Seek::Found(1));
    assert!(protocol.lost(&1, &Loss::Broken));
    assert_eq!(protocol.seek(&caller), Seek::Wait { wakes_watcher: true });
    let Turn::Connect { .. } = protocol.turn() else {
        panic!("the watcher connects");
    };
    let watcher = protocol.seeker(true);
    assert_eq!(protocol.seek(&watcher), Seek::Connect);
    assert_eq!(protocol.seek(&caller), Seek::Wait { wakes_watcher: false });
}

#[test]
fn a_server_is_pinged_within_its_lease_and_gone_after_it() {
    for (lease_ms, tick, gone_after) in [
        (4000, 1000 * MS, 4000 * MS),
        (100, 25 * MS, 100 * MS),
        // A lease of nothing.
        (0, 10 * MS, 20 * MS),
        // The watcher looks every ten seconds at least, and after an hour no promise counts.
        (60_000, 10_000 * MS, 60_000 * MS),
        (u32::MAX, 10_000 * MS, 3_600_000 * MS),
    ] {
        let mut protocol = Protocol::new(list("server:1"), Instant::now());
        protocol.welcomed(&welcome(7, SessionState::New, lease_ms));
        protocol.established(1u64);
        let Turn::Watch(1, lease) = protocol.turn() else {
            panic!("there is a connection to watch");
        };
        assert_eq!(lease.tick(), tick);
        assert_eq!(lease.health(tick - MS), Health::Heard);
        assert_eq!(lease.health(tick), Health::Silent);
        assert_eq!(lease.health(gone_after), Health::Silent);
        assert_eq!(lease.health(gone_after + MS), Health::Gone);
    }
}

/// The watcher's turns over an hour: the server hears a ping before its lease is over.
#[test]
fn pings_keep_a_session() {
    let mut protocol = connected();
    let Turn::Watch(_, lease) = protocol.turn() else {
        panic!("there is a connection to watch");
    };
    let (mut heard, mut now, mut pings) = (Duration::ZERO, Duration::ZERO, 0);
    while now < 3_600_000 * MS {
        now += lease.tick();
        match lease.health(now - heard) {
            Health::Heard => {}
            Health::Silent => {
                assert!(now - heard <= 2000 * MS, "half of a lease");
                pings += 1;
                heard = now + 3 * MS;
            }
            Health::Gone => panic!("the server answers"),
        }
    }
    assert!((1800..=3600).contains(&pings), "{pings}");
    // It answers no more.
    let mut lasted = Duration::ZERO;
    while lease.health(now - heard) != Health::Gone {
        now += lease.tick();
        lasted += lease.tick();
        assert!(lasted <= 6000 * MS);
    }
    assert!(protocol.lost(&1, &Loss::Broken) && !protocol.lost(&1, &Loss::Broken));
}

#[test]
fn the_session_of_the_last_welcome_is_resumed() {
    let (mut protocol, _) = connecting(Instant::now());
    let attempt = protocol.attempt().unwrap();
    assert_eq!(attempt.resume_token.map(|token| token.session), Some(7));
    assert_eq!(attempt.restoration(SessionState::Alive), Restoration::Nothing);
    assert_eq!(attempt.restoration(SessionState::ToReclaim), Restoration::Reclaim);
    let anew = Restoration::BeginAnew { had_session: true };
    assert_eq!(attempt.restoration(SessionState::New), anew);
    protocol.welcomed(&welcome(9, SessionState::New, 4000));
    // This connection breaks before any caller has seen it.
    let seeker = protocol.seeker(true);
    assert_eq!(protocol.seek(&seeker), Seek::Wait { wakes_watcher: false });
    assert!(!protocol.lost(&2, &Loss::Broken));
    let AfterFailure::RetryAt(_) = fails(&mut protocol, Instant::now(), EARLIEST) else {
        panic!("it gives up");
    };
    assert_eq!(protocol.attempt().unwrap().resume_token.unwrap().session, 9);
    assert_eq!(protocol.session(), 9);
}

#[test]
fn a_refusal_ends_the_calls_that_wait_and_no_later_one() {
    let (mut protocol, now) = connecting(Instant::now());
    let waits = protocol.seeker(false);
    assert_eq!(protocol.seek(&waits), Seek::Wait { wakes_watcher: false });
    let full = Failure::Refused(FsError::TooManySessions(SessionsOf::Export));
    let AfterFailure::RetryAt(now) = protocol.attempt_failed(full, None, now, EARLIEST) else {
        panic!("sessions end");
    };
    let refused = Failure::Refused(FsError::AccessDenied);
    let end = protocol.attempt_failed(refused, None, now, EARLIEST);
    assert_eq!(end, AfterFailure::GiveUp(FsError::AccessDenied));
    assert_eq!(protocol.seek(&waits), Seek::Fail(FsError::AccessDenied));
    let later = protocol.seeker(true);
    assert_eq!(protocol.seek(&later), Seek::Connect, "the server may have been mended");
}

#[test]
fn a_client_that_is_closed_stays_closed() {
    let mut protocol = connected();
    assert_eq!(protocol.close(), Some(1), "on which it says goodbye");
    assert_eq!(protocol.close(), None);
    let seeker = protocol.seeker(true);
    assert_eq!(protocol.seek(&seeker), Seek::Fail(FsError::Disconnected));
    assert_eq!(protocol.turn(), Turn::End);
}

/// The connecting thread learns of it at its next step, whichever that is.
#[test]
fn a_close_ends_connecting() {
    let now = Instant::now();
    let over = AfterFailure::GiveUp(FsError::Disconnected);
    let (mut protocol, _) = connecting(now);
    let waits = protocol.seeker(false);
    assert_eq!(protocol.close(), None);
    assert!(protocol.attempt().is_none());
    assert_eq!(protocol.seek(&waits), Seek::Fail(FsError::Disconnected));
    assert_eq!(fails(&mut protocol, now, EARLIEST), over);
    let refused = Failure::Refused(FsError::AccessDenied);
    protocol.attempt_failed(refused, None, now, EARLIEST);
    assert!(protocol.is_over(), "a refusal opens nothing");
    protocol.welcomed(&welcome(8, SessionState::New, 4000));
    protocol.established(2);
    assert!(protocol.is_over() && protocol.connection().is_none());
    assert!(!protocol.lost(&2, &Loss::Broken) && protocol.is_over());
}

/// The tokens of a session that has these.
struct Has(Vec<DedupToken>);

impl Tokens for Has {
    fn has(&self, token: DedupToken) -> bool {
        self.0.contains(&token)
    }

    fn has_any(&self) -> bool {
        !self.0.is_empty()
    }
}

const TOKEN: DedupToken = DedupToken { slot: 3, seq: 1 << 32 };

#[test]
fn a_request_is_repeated_if_that_does_no_harm() {
    let (lives, over) = (Has(vec![TOKEN]), Has(vec![]));
    let unknown = Next::Fail(FsError::Disconnected);
    for (repeats, token, session, expected) in [
        (Repeats::Yes, None, &lives, Next::Repeat),
        (Repeats::Yes, None, &over, Next::Repeat),
        (Repeats::WithToken, Some(TOKEN), &lives, Next::Repeat),
        (Repeats::WithToken, Some(TOKEN), &over, unknown.clone()),
        (Repeats::WithToken, None, &over, unknown.clone()),
        (Repeats::WithToken, None, &lives, unknown),
    ] {
        let mut call = Call::new(repeats);
        call.set_token(token);
        let at_first = if token.is_some() { &lives } else { &over };
        assert_eq!(call.connected(at_first), Next::Send);
        assert!(!call.is_to_prepare(), "it stays as it was sent");
        assert_eq!(call.connected(session), expected);
    }
}

#[test]
fn a_change_that_was_not_sent_takes_a_token_of_the_new_session() {
    let mut call = Call::new(Repeats::WithToken);
    call.set_token(Some(TOKEN));
    assert_eq!(call.connected(&Has(vec![])), Next::Prepare);
    assert!(call.is_to_prepare() && !call.is_abandoned::<()>(&Err(FsError::TimedOut)));
    call.set_token(None);
    assert_eq!(
        call.connected(&Has(vec![TOKEN])),
        Next::Prepare,
        "the server has slots now"
    );
    call.set_token(Some(TOKEN));
    assert_eq!(call.connected(&Has(vec![TOKEN])), Next::Send);
    assert!(call.is_abandoned::<()>(&Err(FsError::TimedOut)));
    assert!(call.is_abandoned::<()>(&Err(FsError::Interrupted)));
    assert!(!call.is_abandoned::<()>(&Err(FsError::Disconnected)) && !call.is_abandoned(&Ok(())));
}

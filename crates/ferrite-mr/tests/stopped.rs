//! Packets that are stopped halfway, while another thread revokes what they use; and accesses that a key must not
//! allow.
//!
//! Guarantees under test: a thread that revokes a page or a key waits for the packet that uses it, from its first store
//! until its fence is over; a change of permissions reaches a key that is just being granted.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ferrite_mr::{Options, Rights, SessionId};
use ferrite_roce::memory::{APPEND_AT, Fault, Memory};
use ferrite_testkit::rng::pattern;
use ferrite_vfs::regions::{Binding, Region};
use ferrite_vfs::{Cred, Ctx, SYSTEM};

use crate::double::{Fixture, SESSION, WRITABLE, fixture, message, read, retry_while_deferred, write};

const SIZE: u64 = 20_000;
/// Actions that need not wait have long been done by then.
const LONG: Duration = Duration::from_millis(20);

type Taker = (&'static str, fn(&Fixture, u32));

/// Every operation that revokes something from packets.
const TAKERS: [Taker; 6] = [
    ("a local write", |fixture, _| fixture.file.write(4_000, &[3; 200])),
    ("a truncation", |fixture, _| fixture.file.truncate(4_100)),
    ("permissions", |fixture, _| fixture.file.chmod(0o600)),
    ("a release", |fixture, key| {
        fixture.registrar.release(SESSION, key).unwrap()
    }),
    ("the end of a session", |fixture, _| {
        fixture.registrar.end_session(SESSION).unwrap()
    }),
    ("the engine", |fixture, _| fixture.file.unbind().unwrap()),
];

/// A file with pages, and a key of a user that has no more than permissions.
fn prepared() -> (Arc<Fixture>, u32) {
    let fixture = fixture(SIZE, Options::default());
    fixture.file.write(0, &pattern(1, SIZE as usize));
    let other_user = Ctx::checked(Cred::new(5, 5));
    let granted = fixture
        .registrar
        .bind(&fixture.shared, &other_user, 10, WRITABLE, SESSION, Rights::ALL)
        .unwrap();
    (Arc::new(fixture), granted.key)
}

/// The revocation in the middle of a call.
struct Revoked {
    thread: JoinHandle<()>,
    /// Before the call continued.
    is_early: bool,
}

type Told = Arc<Mutex<Option<Revoked>>>;

/// Stops the next `call` and starts a revocation there.
fn revoke_at(call: &'static str, fixture: &Arc<Fixture>, key: u32, taker: Taker) -> Told {
    let told = Told::default();
    let (tells, acting) = (Arc::clone(&told), Arc::clone(fixture));
    fixture.file.stop_at(call, move || {
        let is_back = Arc::new(AtomicBool::new(false));
        let says = Arc::clone(&is_back);
        let thread = std::thread::spawn(move || {
            (taker.1)(&acting, key);
            says.store(true, SeqCst);
        });
        std::thread::sleep(LONG);
        let is_early = is_back.load(SeqCst);
        *tells.lock().unwrap() = Some(Revoked { thread, is_early });
    });
    told
}

/// The revocation came after the call, and is done by now.
fn waited(told: &Told, what: &str) {
    let taken = told.lock().unwrap().take().expect("the call was made");
    taken.thread.join().unwrap();
    assert!(!taken.is_early, "{what}: nobody was waited for");
}

#[test]
fn who_takes_something_back_waits_for_the_packet_that_uses_it() {
    for taker in TAKERS {
        for call in ["store", "fence"] {
            let (fixture, key) = prepared();
            let told = revoke_at(call, &fixture, key, taker);
            // In two pages, one of which the local calls replace.
            assert_eq!(write(&mut fixture.registrar.memory(), 1, key, 4_090, &[9; 8]), Ok(()));
            waited(&told, taker.0);
            assert_eq!(
                fixture.file.read(4_090, 8)[..6],
                if taker.0 == "a local write" { [3; 6] } else { [9; 6] }
            );
        }
        for call in ["load", "fence"] {
            let (fixture, key) = prepared();
            let told = revoke_at(call, &fixture, key, taker);
            assert_eq!(
                read(&mut fixture.registrar.memory(), 1, key, 100, 8),
                Ok(pattern(1, 108)[100..].to_vec())
            );
            waited(&told, taker.0);
        }
    }
}

#[test]
fn who_takes_a_key_back_waits_for_the_append_under_way() {
    for taker in TAKERS
        .into_iter()
        .filter(|(name, _)| ["a release", "the end of a session"].contains(name))
    {
        let (fixture, key) = prepared();
        let told = revoke_at("append", &fixture, key, taker);
        let memory = &mut fixture.registrar.memory();
        // It was allowed when it began.
        assert_eq!(write(memory, 1, key, APPEND_AT, &[7; 100]), Ok(()));
        waited(&told, taker.0);
        assert_eq!(write(memory, 1, key, APPEND_AT, &[7; 100]), Err(Fault::Access));
        assert_eq!(fixture.file.size(), SIZE + 100);
    }
}

/// Permissions change after they were read, and before the requester has the key.
#[test]
fn permissions_that_go_while_a_key_is_given_take_it_along() {
    let (fixture, _) = prepared();
    let file = Arc::clone(&fixture.file);
    fixture.file.stop_at("attr", move || file.chmod(0o600));
    let other_user = Ctx::checked(Cred::new(5, 5));
    let given = fixture.registrar.bind(
        &fixture.shared,
        &other_user,
        10,
        Binding::default(),
        SESSION,
        Rights::READ,
    );
    if let Ok(granted) = given {
        assert_eq!(
            read(&mut fixture.registrar.memory(), 1, granted.key, 0, 1),
            Err(Fault::Access)
        );
    }
}

#[test]
fn a_message_that_ends_past_the_end_does_nothing() {
    let (fixture, key) = prepared();
    let memory = &mut fixture.registrar.memory();
    // Its first packets would fit.
    let at = SIZE - 5_000;
    assert_eq!(write(memory, 1, key, at, &[9; 5_001]), Err(Fault::Access));
    assert_eq!(memory.may_read(&message(1, key, at, 5_001)), Err(Fault::Access));
    assert_eq!(fixture.file.read(0, SIZE as usize), pattern(1, SIZE as usize));
}

/// An atomic returns the previous value.
#[test]
fn atomics_need_both_rights() {
    let (fixture, _) = prepared();
    let memory = &mut fixture.registrar.memory();
    let keys = [(true, false), (false, true)].map(|(reads, writes)| {
        let rights = Rights {
            read: reads,
            write: writes,
            append: true,
            atomic_writes: false,
        };
        let bind = fixture
            .registrar
            .bind(&fixture.shared, SYSTEM, 10, WRITABLE, SESSION, rights);
        bind.unwrap().key
    });
    for key in keys {
        assert_eq!(memory.fetch_add(1, key, 0, 1), Err(Fault::Access));
        assert_eq!(memory.compare_swap(1, key, 0, 0, 1), Err(Fault::Access));
    }
    assert_eq!(read(memory, 1, keys[1], 0, 8), Err(Fault::Access));
    assert_eq!(write(memory, 1, keys[1], 0, &[1]), Ok(()));
}

/// A number that is given to a queue pair of another session, without a detach of the first.
#[test]
fn a_queue_pair_that_changes_hands_forgets_what_it_could() {
    let (fixture, key) = prepared();
    let memory = &mut fixture.registrar.memory();
    assert!(read(memory, 1, key, 0, 8).is_ok());
    fixture.registrar.attach(SessionId(2), 1);
    assert_eq!(read(memory, 1, key, 0, 8), Err(Fault::Access));
    assert_eq!(write(memory, 1, key, 0, &[1]), Err(Fault::Access));
    fixture.registrar.attach(SESSION, 1);
    assert!(read(memory, 1, key, 0, 8).is_ok());
}

/// A hole that a local write fills is unknown afterwards, also before it is published.
#[test]
fn a_hole_that_is_filled_is_no_hole() {
    let fixture = fixture(SIZE, Options::default());
    let memory = &mut fixture.registrar.memory();
    assert_eq!(read(memory, 1, fixture.key, 0, 9_000), Ok(vec![0; 9_000]));
    fixture.file.publishes.store(false, SeqCst);
    fixture.file.write(5_000, &[8; 10]);
    assert_eq!(
        retry_while_deferred(|| memory.fetch_add(1, fixture.key, 4_096, 0)),
        Ok(0)
    );
    fixture.file.write(0, &[6; 10]);
    assert_eq!(read(memory, 1, fixture.key, 0, 10), Ok(vec![6; 10]));
    assert_eq!(read(memory, 1, fixture.key, 5_000, 10), Ok(vec![8; 10]));
}

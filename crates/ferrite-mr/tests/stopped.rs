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

use crate::double::{SESSION, Stage, WRITABLE, message, patiently, read, stage, write};

const SIZE: u64 = 20_000;
/// Actions that need not wait have long been done by then.
const LONG: Duration = Duration::from_millis(20);

type Taker = (&'static str, fn(&Stage, u32));

/// Every operation that revokes something from packets.
const TAKERS: [Taker; 6] = [
    ("a local write", |stage, _| stage.file.write(4_000, &[3; 200])),
    ("a truncation", |stage, _| stage.file.truncate(4_100)),
    ("permissions", |stage, _| stage.file.chmod(0o600)),
    ("a release", |stage, key| stage.binder.release(SESSION, key).unwrap()),
    ("the end of a session", |stage, _| {
        stage.binder.end_session(SESSION).unwrap()
    }),
    ("the engine", |stage, _| stage.file.unbind().unwrap()),
];

/// A file with pages, and a key of a user that has no more than permissions.
fn prepared() -> (Arc<Stage>, u32) {
    let stage = stage(SIZE, Options::default());
    stage.file.write(0, &pattern(1, SIZE as usize));
    let stranger = Ctx::checked(Cred::new(5, 5));
    let granted = stage
        .binder
        .bind(&stage.shared, &stranger, 10, WRITABLE, SESSION, Rights::ALL)
        .unwrap();
    (Arc::new(stage), granted.key)
}

/// The revocation in the middle of a call.
struct TakenBack {
    thread: JoinHandle<()>,
    /// Before the call continued.
    is_early: bool,
}

type Told = Arc<Mutex<Option<TakenBack>>>;

/// Stops the next `call` and starts a revocation there.
fn take_back_at(call: &'static str, stage: &Arc<Stage>, key: u32, taker: Taker) -> Told {
    let told = Told::default();
    let (tells, acting) = (Arc::clone(&told), Arc::clone(stage));
    stage.file.stop_at(call, move || {
        let is_back = Arc::new(AtomicBool::new(false));
        let says = Arc::clone(&is_back);
        let thread = std::thread::spawn(move || {
            (taker.1)(&acting, key);
            says.store(true, SeqCst);
        });
        std::thread::sleep(LONG);
        let is_early = is_back.load(SeqCst);
        *tells.lock().unwrap() = Some(TakenBack { thread, is_early });
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
            let (stage, key) = prepared();
            let told = take_back_at(call, &stage, key, taker);
            // In two pages, one of which the local calls replace.
            assert_eq!(write(&mut stage.binder.memory(), 1, key, 4_090, &[9; 8]), Ok(()));
            waited(&told, taker.0);
            assert_eq!(
                stage.file.read(4_090, 8)[..6],
                if taker.0 == "a local write" { [3; 6] } else { [9; 6] }
            );
        }
        for call in ["load", "fence"] {
            let (stage, key) = prepared();
            let told = take_back_at(call, &stage, key, taker);
            assert_eq!(
                read(&mut stage.binder.memory(), 1, key, 100, 8),
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
        let (stage, key) = prepared();
        let told = take_back_at("append", &stage, key, taker);
        let memory = &mut stage.binder.memory();
        // It was allowed when it began.
        assert_eq!(write(memory, 1, key, APPEND_AT, &[7; 100]), Ok(()));
        waited(&told, taker.0);
        assert_eq!(write(memory, 1, key, APPEND_AT, &[7; 100]), Err(Fault::Access));
        assert_eq!(stage.file.size(), SIZE + 100);
    }
}

/// Permissions change after they were read, and before the requester has the key.
#[test]
fn permissions_that_go_while_a_key_is_given_take_it_along() {
    let (stage, _) = prepared();
    let file = Arc::clone(&stage.file);
    stage.file.stop_at("attr", move || file.chmod(0o600));
    let stranger = Ctx::checked(Cred::new(5, 5));
    let given = stage
        .binder
        .bind(&stage.shared, &stranger, 10, Binding::default(), SESSION, Rights::READ);
    if let Ok(granted) = given {
        assert_eq!(
            read(&mut stage.binder.memory(), 1, granted.key, 0, 1),
            Err(Fault::Access)
        );
    }
}

#[test]
fn a_message_that_ends_past_the_end_does_nothing() {
    let (stage, key) = prepared();
    let memory = &mut stage.binder.memory();
    // Its first packets would fit.
    let at = SIZE - 5_000;
    assert_eq!(write(memory, 1, key, at, &[9; 5_001]), Err(Fault::Access));
    assert_eq!(memory.may_read(&message(1, key, at, 5_001)), Err(Fault::Access));
    assert_eq!(stage.file.read(0, SIZE as usize), pattern(1, SIZE as usize));
}

/// An atomic returns the previous value.
#[test]
fn atomics_need_both_rights() {
    let (stage, _) = prepared();
    let memory = &mut stage.binder.memory();
    let keys = [(true, false), (false, true)].map(|(reads, writes)| {
        let rights = Rights {
            read: reads,
            write: writes,
            append: true,
            atomic_writes: false,
        };
        let bind = stage.binder.bind(&stage.shared, SYSTEM, 10, WRITABLE, SESSION, rights);
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
    let (stage, key) = prepared();
    let memory = &mut stage.binder.memory();
    assert!(read(memory, 1, key, 0, 8).is_ok());
    stage.binder.attach(SessionId(2), 1);
    assert_eq!(read(memory, 1, key, 0, 8), Err(Fault::Access));
    assert_eq!(write(memory, 1, key, 0, &[1]), Err(Fault::Access));
    stage.binder.attach(SESSION, 1);
    assert!(read(memory, 1, key, 0, 8).is_ok());
}

/// A hole that a local write fills is unknown afterwards, also before it is published.
#[test]
fn a_hole_that_is_filled_is_no_hole() {
    let stage = stage(SIZE, Options::default());
    let memory = &mut stage.binder.memory();
    assert_eq!(read(memory, 1, stage.key, 0, 9_000), Ok(vec![0; 9_000]));
    stage.file.publishes.store(false, SeqCst);
    stage.file.write(5_000, &[8; 10]);
    assert_eq!(patiently(|| memory.fetch_add(1, stage.key, 4_096, 0)), Ok(0));
    stage.file.write(0, &[6; 10]);
    assert_eq!(read(memory, 1, stage.key, 0, 10), Ok(vec![6; 10]));
    assert_eq!(read(memory, 1, stage.key, 5_000, 10), Ok(vec![8; 10]));
}

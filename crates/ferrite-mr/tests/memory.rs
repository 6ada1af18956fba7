//! One thread's memory over bound files, call by call as a responder makes them.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use ferrite_mr::{Options, Rights, SessionId};
use ferrite_roce::memory::{APPEND_AT, Delivery, Fault, Memory, Message, RESERVE_AT};
use ferrite_testkit::rng::pattern;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{Cred, Ctx, FsError, SYSTEM};

use crate::double::{PAGE, SESSION, WRITABLE, fixture, message, read, retry_while_deferred, write};

const MIB: u64 = 1 << 20;

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_written_is_read_here_and_there() {
    let fixture = fixture(MIB, Options::default());
    let (memory, key) = (&mut fixture.registrar.memory(), fixture.key);
    let data = pattern(1, 10_000);
    write(memory, 1, key, 5_000, &data).unwrap();
    assert_eq!(fixture.file.read(5_000, data.len()), data);
    assert!(fixture.file.faults.load(SeqCst) >= 1, "holes were written");
    assert_eq!(read(memory, 2, key, 5_000, data.len()), Ok(data.clone()));
    // Pages are elsewhere now.
    let local = pattern(2, 6_000);
    fixture.file.write(6_000, &local);
    let both = read(memory, 1, key, 5_000, data.len()).unwrap();
    assert_eq!(both, [&data[..1_000], &local, &data[7_000..]].concat());
    // And unknown.
    fixture.file.forget();
    assert_eq!(read(memory, 1, key, 5_000, data.len()).unwrap(), both);
    let counts = fixture.registrar.list()[0].status.total;
    assert_eq!((counts.bytes_written, counts.packets_written), (10_000, 10));
    assert_eq!(counts.bytes_read, 30_000);
    assert!(counts.faults > 0 && counts.hit_rate() > 0.0);
}

#[test]
fn holes_read_as_zeros_and_stay_holes() {
    let fixture = fixture(MIB, Options::default());
    let free = fixture.engine.arena.free_pages();
    let memory = &mut fixture.registrar.memory();
    assert_eq!(read(memory, 1, fixture.key, 3, 50_000), Ok(vec![0; 50_000]));
    assert_eq!(fixture.file.faults.load(SeqCst), 0, "holes were told when it was bound");
    fixture.file.forget();
    assert_eq!(read(memory, 1, fixture.key, 3, 50_000), Ok(vec![0; 50_000]));
    assert_eq!(
        fixture.file.faults.load(SeqCst),
        1,
        "all pages of a message are asked for at once"
    );
    assert_eq!(fixture.engine.arena.free_pages(), free);
}

/// Pages left out when a file is bound arrive in the background, so that few packets have to wait for them.
#[test]
fn an_engine_may_tell_the_rest_of_a_file_later() {
    const PAGES: u64 = 10_000;
    let fixture = fixture(MIB, Options::default());
    let [large, frozen] = [20, 21].map(|ino| {
        let file = fixture.engine.file(ino, PAGES * PAGE as u64);
        file.write(9_999 * PAGE as u64, &pattern(1, 100));
        file.told_first.store(100, SeqCst);
        file
    });
    frozen.is_frozen.store(true, SeqCst);
    let [_, key] = [20, 21].map(|ino| {
        let bind = |session| {
            fixture
                .registrar
                .bind(&fixture.shared, SYSTEM, ino, WRITABLE, session, Rights::ALL)
        };
        bind(SESSION).unwrap().key
    });
    let known = |index: usize| {
        let status = &fixture.registrar.list()[1 + index].status;
        (status.ranges, status.holes)
    };
    wait_until("all is known", || known(0) == (1, 1));
    assert_eq!(large.faults.load(SeqCst), 3, "a part at a time");
    // After a failed request, packets request it again.
    wait_until("it was asked", || frozen.faults.load(SeqCst) == 1);
    assert_eq!(known(1), (0, 1));
    frozen.is_frozen.store(false, SeqCst);
    let memory = &mut fixture.registrar.memory();
    let read = read(memory, 1, key, 9_999 * PAGE as u64, 100);
    assert_eq!(read, Ok(pattern(1, 100)));
    assert_eq!((known(1), frozen.faults.load(SeqCst)), ((1, 2), 2));
    // The neighbours came with it.
    assert!(memory.may_read(&message(1, key, 9_990 * PAGE as u64, PAGE)).is_ok());
    // The binding ends during a request to the engine.
    fixture.registrar.unbind_all().unwrap();
    for _ in 0..50 {
        let session = SessionId(2);
        let bound = fixture
            .registrar
            .bind(&fixture.shared, SYSTEM, 20, WRITABLE, session, Rights::ALL);
        fixture.registrar.release(session, bound.unwrap().key).unwrap();
    }
}

#[test]
fn nothing_beyond_the_end_is_touched() {
    let fixture = fixture(10_000, Options::default());
    let (memory, key) = (&mut fixture.registrar.memory(), fixture.key);
    write(memory, 1, key, 9_000, &pattern(1, 1_000)).unwrap();
    for (at, len) in [
        (9_000, 1_001),
        (10_000, 1),
        (12_287, 2),
        (u64::MAX - 4, 4),
        (1 << 44, 8),
        (1 << 61, 1),
    ] {
        assert_eq!(write(memory, 1, key, at, &pattern(1, len)), Err(Fault::Access), "{at}");
        assert_eq!(read(memory, 1, key, at, len), Err(Fault::Access), "{at}");
    }
    for at in [9_996, 10_000, u64::MAX - 7, 1 << 60, 4] {
        let result = memory.fetch_add(1, key, at, 1);
        assert_eq!(result, Err(Fault::Access), "{at}");
        assert_eq!(memory.compare_swap(1, key, at, 0, 1), Err(Fault::Access), "{at}");
    }
    // A message that leaves the file only with its last packet.
    let leaving = message(1, key, 9_000, 1_001);
    let first = ferrite_roce::memory::Part {
        offset_bytes: 0,
        data: &[9; 256],
        is_last: false,
        immediate: None,
    };
    assert_eq!(memory.begin(&leaving), Ok(Delivery::Parts));
    assert_eq!(memory.write(&leaving, &first), Err(Fault::Access));
    assert_eq!(fixture.file.read(9_000, 1_000), pattern(1, 1_000));
    // The end moves in the middle of a message, both ways.
    let begun = message(1, key, 0, 9_999);
    memory.may_read(&begun).unwrap();
    fixture.file.truncate(5_000);
    let mut bytes = [0; 1_024];
    assert_eq!(memory.read(&begun, 0, &mut bytes), Ok(()));
    assert_eq!(memory.read(&begun, 4_096, &mut bytes), Err(Fault::Access));
    fixture.file.truncate(9_999);
    assert_eq!(read(memory, 1, key, 5_000, 4_999), Ok(vec![0; 4_999]));
    assert!(fixture.registrar.list()[0].status.total.refused >= 20);
}

#[test]
fn keys_are_good_on_queue_pairs_of_their_session_and_for_what_they_allow() {
    let fixture = fixture(MIB, Options::default());
    let memory = &mut fixture.registrar.memory();
    let other = SessionId(2);
    let bind = |session, rights| {
        fixture
            .registrar
            .bind(&fixture.shared, SYSTEM, 10, WRITABLE, session, rights)
            .unwrap()
            .key
    };
    fixture.registrar.attach(other, 20);
    let reads = bind(other, Rights::READ);
    let appends = bind(
        other,
        Rights {
            append: true,
            ..Rights::default()
        },
    );
    for (qpn, key) in [
        (20, fixture.key),
        (1, reads),
        (30, fixture.key),
        (20, 0),
        (20, reads ^ 1),
    ] {
        assert_eq!(read(memory, qpn, key, 0, 8), Err(Fault::Access));
        assert_eq!(write(memory, qpn, key, 0, &[1]), Err(Fault::Access));
        assert_eq!(memory.fetch_add(qpn, key, RESERVE_AT, 1), Err(Fault::Access));
    }
    assert_eq!(read(memory, 20, reads, 0, 8), Ok(vec![0; 8]));
    assert_eq!(write(memory, 20, reads, 0, &[1]), Err(Fault::Access));
    assert_eq!(write(memory, 20, reads, APPEND_AT, &[1]), Err(Fault::Access));
    assert_eq!(memory.fetch_add(20, reads, 0, 1), Err(Fault::Access));
    assert_eq!(memory.fetch_add(20, reads, RESERVE_AT, 1), Err(Fault::Access));
    assert_eq!(
        memory.compare_swap(20, reads, RESERVE_AT, MIB, MIB + 1),
        Err(Fault::Access)
    );
    assert_eq!(write(memory, 20, appends, APPEND_AT, &[1]), Ok(()));
    assert_eq!(memory.fetch_add(20, appends, RESERVE_AT, 7), Ok(MIB + 1));
    assert_eq!(read(memory, 20, appends, 0, 8), Err(Fault::Access));
    assert_eq!(write(memory, 20, appends, 0, &[1]), Err(Fault::Access));
    // Remembered keys do not outlive a queue pair or a key.
    fixture.registrar.detach(20);
    assert_eq!(read(memory, 20, reads, 0, 8), Err(Fault::Access));
    fixture.registrar.attach(SESSION, 20);
    assert_eq!(read(memory, 20, reads, 0, 8), Err(Fault::Access));
    assert_eq!(read(memory, 20, fixture.key, 0, 8), Ok(vec![0; 8]));
    assert!(matches!(
        fixture.registrar.release(other, fixture.key),
        Err(FsError::NotFound)
    ));
    fixture.registrar.release(SESSION, fixture.key).unwrap();
    assert_eq!(read(memory, 20, fixture.key, 0, 8), Err(Fault::Access));
}

#[test]
fn a_file_is_bound_once_and_unbound_with_its_last_key() {
    let fixture = fixture(MIB, Options::default());
    let registrar = &fixture.registrar;
    let bind = |session, rights| registrar.bind(&fixture.shared, SYSTEM, 10, WRITABLE, session, rights);
    let second = bind(SessionId(2), Rights::READ).unwrap().key;
    let third = bind(SessionId(2), Rights::ALL).unwrap().key;
    assert!(second != third && second != fixture.key);
    assert_eq!(
        (
            registrar.list().len(),
            registrar.list()[0].holders.len(),
            registrar.keys()
        ),
        (1, 3, 3)
    );
    registrar.release(SESSION, fixture.key).unwrap();
    registrar.release(SessionId(2), second).unwrap();
    assert!(fixture.file.is_bound());
    registrar.end_session(SessionId(2)).unwrap();
    assert!(!fixture.file.is_bound() && registrar.list().is_empty() && registrar.keys() == 0);
    // And again, for reading.
    let reading = Binding::default();
    let key = registrar
        .bind(&fixture.shared, SYSTEM, 10, reading, SESSION, Rights::READ)
        .unwrap()
        .key;
    assert!(matches!(bind(SessionId(3), Rights::ALL), Err(FsError::Busy)));
    let refused = registrar.bind(&fixture.shared, SYSTEM, 10, reading, SESSION, Rights::ALL);
    assert!(matches!(refused, Err(FsError::Invalid(_))));
    registrar.unbind_file(&fixture.shared, 10).unwrap();
    assert_eq!(read(&mut registrar.memory(), 1, key, 0, 8), Err(Fault::Access));
    assert!(matches!(
        registrar.unbind_file(&fixture.shared, 10),
        Err(FsError::NotFound)
    ));
    assert!(matches!(bind(SESSION, Rights::ALL), Ok(granted) if granted.size == MIB));
    assert!(matches!(
        registrar.bind(&fixture.shared, SYSTEM, 11, WRITABLE, SESSION, Rights::ALL),
        Err(FsError::NotFound)
    ));
    drop(fixture.registrar);
    assert!(!fixture.file.is_bound(), "who goes unbinds");
}

#[test]
fn permissions_that_go_take_keys_along() {
    let fixture = fixture(MIB, Options::default());
    let (registrar, memory) = (&fixture.registrar, &mut fixture.registrar.memory());
    let other_user = Ctx::checked(Cred::new(5, 5));
    let bind = |rights, writable| {
        let binding = Binding {
            writable,
            defragment: false,
            whole: false,
        };
        registrar
            .bind(&fixture.shared, &other_user, 10, binding, SESSION, rights)
            .map(|granted| granted.key)
    };
    let (reads, writes) = (bind(Rights::READ, false).unwrap(), bind(Rights::ALL, true).unwrap());
    write(memory, 1, writes, 0, &[1]).unwrap();
    fixture.file.chmod(0o644);
    assert_eq!(write(memory, 1, writes, 0, &[2]), Err(Fault::Access));
    assert_eq!(read(memory, 1, reads, 0, 1), Ok(vec![1]));
    assert!(matches!(bind(Rights::ALL, true), Err(FsError::AccessDenied)));
    assert!(bind(Rights::READ, false).is_ok());
    fixture.file.chmod(0o600);
    assert_eq!(read(memory, 1, reads, 0, 1), Err(Fault::Access));
    // The program's own key stands for no user.
    assert_eq!(read(memory, 1, fixture.key, 0, 1), Ok(vec![1]));
    registrar.sweep().unwrap();
    assert_eq!(registrar.keys(), 1);
}

/// A file lost its last key with a change of permissions, and cannot be finalized. The caller that binds another gets
/// no error.
#[test]
fn a_file_that_cannot_be_finalized_is_nothing_to_another() {
    let fixture = fixture(MIB, Options::default());
    fixture.registrar.release(SESSION, fixture.key).unwrap();
    let other_user = Ctx::checked(Cred::new(5, 5));
    let bind = |ino| {
        fixture
            .registrar
            .bind(&fixture.shared, &other_user, ino, WRITABLE, SESSION, Rights::ALL)
    };
    bind(10).unwrap();
    let other = fixture.engine.file(11, MIB);
    fixture.file.cannot_finalize.store(true, SeqCst);
    fixture.file.chmod(0o600);
    bind(11).unwrap();
    assert!(other.is_bound());
}

#[test]
fn faults_that_fail_are_told_and_asked_for_again() {
    let fixture = fixture(MIB, Options::default());
    let memory = &mut fixture.registrar.memory();
    fixture.file.is_full.store(true, SeqCst);
    assert_eq!(write(memory, 1, fixture.key, 0, &[1]), Err(Fault::Operational));
    assert_eq!(
        memory.fetch_add(1, fixture.key, RESERVE_AT, 1 << 50),
        Err(Fault::Access)
    );
    fixture.file.is_full.store(false, SeqCst);
    assert_eq!(write(memory, 1, fixture.key, 0, &[1]), Ok(()));
    assert_eq!(fixture.registrar.list()[0].status.total.failed, 1);
}

/// Packets wait for the thaw, and their connections survive.
#[test]
fn a_frozen_engine_puts_packets_off() {
    let fixture = fixture(MIB, Options::default());
    let memory = &mut fixture.registrar.memory();
    let served = || fixture.file.faults.load(SeqCst);
    fixture.file.forget();
    fixture.file.is_frozen.store(true, SeqCst);
    let begun = message(1, fixture.key, 0, 2 * PAGE);
    while served() < 5 {
        assert!(matches!(memory.begin(&begun), Err(Fault::NotReady { .. })));
        assert!(matches!(memory.may_read(&begun), Err(Fault::NotReady { .. })));
    }
    fixture.file.is_frozen.store(false, SeqCst);
    assert_eq!(write(memory, 1, fixture.key, 0, &[1; 8]), Ok(()));
    assert_eq!(read(memory, 1, fixture.key, 0, 8), Ok(vec![1; 8]));
    assert_eq!(fixture.registrar.list()[0].status.total.failed, 0);
}

#[test]
fn a_packet_that_is_put_off_has_done_nothing() {
    let fixture = fixture(MIB, Options::default());
    let memory = &mut fixture.registrar.memory();
    // The first page is there, the second is a hole; a packet covers both.
    write(memory, 1, fixture.key, 0, &pattern(1, PAGE)).unwrap();
    fixture.file.forget();
    let before = read(memory, 1, fixture.key, 0, PAGE).unwrap();
    let begun = message(1, fixture.key, PAGE as u64 - 8, PAGE + 16);
    let served = fixture.file.faults.load(SeqCst);
    assert_eq!(memory.begin(&begun), Ok(Delivery::Parts));
    // The second page was requested ahead.
    while fixture.file.faults.load(SeqCst) == served {
        std::thread::yield_now();
    }
    fixture.file.truncate(PAGE as u64);
    fixture.file.truncate(MIB);
    let _ = read(memory, 1, fixture.key, 0, PAGE);
    let part = ferrite_roce::memory::Part {
        offset_bytes: 0,
        data: &[9; 16],
        is_last: true,
        immediate: None,
    };
    assert!(matches!(memory.write(&begun, &part), Err(Fault::NotReady { .. })));
    assert_eq!(fixture.file.read(0, PAGE), before);
    retry_while_deferred(|| memory.write(&begun, &part)).unwrap();
    assert_eq!(fixture.file.read(PAGE as u64 - 8, 16), [9; 16]);
}

#[test]
fn atomics_change_eight_bytes() {
    let fixture = fixture(MIB, Options::default());
    let (memory, key) = (&mut fixture.registrar.memory(), fixture.key);
    assert_eq!(retry_while_deferred(|| memory.fetch_add(1, key, 4_096, 7)), Ok(0));
    assert_eq!(memory.fetch_add(1, key, 4_096, u64::MAX), Ok(7));
    assert_eq!(memory.compare_swap(1, key, 4_096, 5, 1), Ok(6));
    assert_eq!(memory.compare_swap(1, key, 4_096, 6, 1), Ok(6));
    assert_eq!(fixture.file.read(4_096, 8), 1u64.to_le_bytes());
    assert_eq!(fixture.registrar.list()[0].status.total.atomics, 4);
}

#[test]
fn appends_are_whole_and_what_is_assembled_has_a_bound() {
    let options = Options {
        assembled_bytes_max: 10_000,
        ..Options::default()
    };
    let fixture = fixture(5, options);
    let (memory, other) = (&mut fixture.registrar.memory(), &mut fixture.registrar.memory());
    let key = fixture.key;
    let first = message(1, key, APPEND_AT, 6_000);
    let second = message(2, key, APPEND_AT, 6_000);
    assert_eq!(memory.begin(&first), Ok(Delivery::Whole));
    assert!(matches!(other.begin(&second), Err(Fault::NotReady { .. })));
    assert_eq!(other.begin(&message(2, key, APPEND_AT, 10_001)), Err(Fault::Access));
    memory.abandon(&first, 100);
    assert_eq!(other.begin(&second), Ok(Delivery::Whole));
    other.write_whole(&second, &pattern(2, 6_000), None).unwrap();
    assert_eq!(
        (fixture.file.size(), fixture.file.read(5, 6_000)),
        (6_005, pattern(2, 6_000))
    );
    assert_eq!(memory.begin(&message(1, key, APPEND_AT, 9_000)), Ok(Delivery::Whole));
    assert_eq!(fixture.registrar.assembled_bytes(), 9_000);
    let gone = std::mem::replace(memory, fixture.registrar.memory());
    drop(gone);
    assert_eq!(fixture.registrar.assembled_bytes(), 0);
    // Bytes behind the end are writable once they are reserved.
    assert_eq!(memory.fetch_add(1, key, RESERVE_AT, 100), Ok(6_005));
    write(memory, 1, key, 6_055, &[7; 50]).unwrap();
    assert_eq!(fixture.file.read(6_005, 100), [[0; 50], [7; 50]].concat());
    // The end moves from where its writer expects it, and from nowhere else; never back.
    for (from, to, was) in [(6_105, 6_205, 6_105), (6_105, 6_305, 6_205), (6_205, 6_205, 6_205)] {
        assert_eq!(memory.compare_swap(1, key, RESERVE_AT, from, to), Ok(was));
    }
    assert_eq!(fixture.file.size(), 6_205);
    assert_eq!(
        memory.compare_swap(1, key, RESERVE_AT, 6_205, 6_204),
        Err(Fault::Access)
    );
    let total = fixture.registrar.list()[0].status.total;
    assert_eq!(
        (total.appends, total.bytes_appended, total.reservations, total.put_off),
        (1, 6_000, 3, 1)
    );
}

/// The thread of an adapter has other queue pairs to serve.
#[test]
fn while_the_engine_is_frozen_changes_are_put_off_and_others_go_on() {
    let fixture = fixture(MIB, Options::default());
    let memory = &mut fixture.registrar.memory();
    let other = fixture.engine.file(11, 10);
    let rights = Rights {
        atomic_writes: true,
        ..Rights::ALL
    };
    let bind = |ino, rights| {
        fixture
            .registrar
            .bind(&fixture.shared, SYSTEM, ino, WRITABLE, SESSION, rights)
    };
    let atomic = bind(10, rights).unwrap().key;
    let free = bind(11, Rights::ALL).unwrap().key;
    fixture.file.is_frozen.store(true, SeqCst);
    let message = |number, key, at| Message {
        qpn: 1,
        number,
        key,
        at,
        len_bytes: 5,
    };
    let changes = [message(1, fixture.key, APPEND_AT), message(2, atomic, 7)];
    for round in 0..3 {
        for change in &changes {
            assert_eq!(memory.begin(change), Ok(Delivery::Whole));
            let put_off = memory.write_whole(change, b"later", None);
            assert!(matches!(put_off, Err(Fault::NotReady { .. })), "{round}: {put_off:?}");
            memory.abandon(change, 0);
        }
        for put_off in [
            memory.fetch_add(1, fixture.key, RESERVE_AT, 5),
            memory.compare_swap(1, fixture.key, RESERVE_AT, MIB, MIB + 5),
        ] {
            assert!(matches!(put_off, Err(Fault::NotReady { .. })), "{round}: {put_off:?}");
        }
        assert_eq!(write(memory, 1, free, APPEND_AT, b"now"), Ok(()));
    }
    assert_eq!((fixture.registrar.assembled_bytes(), other.size()), (0, 19));
    assert_eq!(fixture.file.size(), MIB);
    fixture.file.is_frozen.store(false, SeqCst);
    for change in &changes {
        assert_eq!(memory.begin(change), Ok(Delivery::Whole));
        assert_eq!(memory.write_whole(change, b"later", None), Ok(()));
    }
    assert_eq!(fixture.file.read(7, 5), b"later");
    assert_eq!(fixture.file.read(MIB, 5), b"later");
}

#[test]
fn atomic_writes_are_the_engines() {
    let fixture = fixture(MIB, Options::default());
    let memory = &mut fixture.registrar.memory();
    let rights = Rights {
        atomic_writes: true,
        ..Rights::ALL
    };
    let granted = fixture
        .registrar
        .bind(&fixture.shared, SYSTEM, 10, WRITABLE, SESSION, rights)
        .unwrap();
    assert_eq!(granted.atomic_bytes_max, 64 << 10);
    let data = pattern(3, 64 << 10);
    write(memory, 1, granted.key, 77, &data).unwrap();
    assert_eq!(fixture.file.atomic_writes.load(SeqCst), 1);
    assert_eq!(read(memory, 1, granted.key, 77, data.len()), Ok(data));
    assert_eq!(
        write(memory, 1, granted.key, 0, &pattern(3, (64 << 10) + 1)),
        Err(Fault::Access)
    );
    assert_eq!(write(memory, 1, granted.key, MIB - 1, &[1, 2]), Err(Fault::Access));
    assert_eq!(fixture.registrar.assembled_bytes(), 0);
    assert_eq!(fixture.registrar.list()[0].status.total.atomic_writes, 1);
}

#[test]
fn an_engine_that_unbinds_by_itself_leaves_nothing() {
    let fixture = fixture(MIB, Options::default());
    let memory = &mut fixture.registrar.memory();
    write(memory, 1, fixture.key, 0, &[1]).unwrap();
    ferrite_vfs::regions::Region::unbind(&*fixture.file).unwrap();
    assert_eq!(write(memory, 1, fixture.key, 0, &[1]), Err(Fault::Access));
    assert_eq!(write(memory, 1, fixture.key, APPEND_AT, &[1]), Err(Fault::Access));
    assert!(fixture.registrar.list().is_empty());
    let again = fixture
        .registrar
        .bind(&fixture.shared, SYSTEM, 10, WRITABLE, SESSION, Rights::ALL)
        .unwrap();
    assert_eq!(read(memory, 1, again.key, 0, 1), Ok(vec![1]));
    assert_eq!(fixture.registrar.keys(), 1);
    assert!(Arc::strong_count(&fixture.file) > 1);
}

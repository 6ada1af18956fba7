//! The binding against a real cluster, which all tests of this program share: each has a namespace of its own, and
//! those that stop daemons run alone.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use ferrite_rados::{Client, Compare, Error, OPERATION_BYTES_MAX, Options, Pool, ReadOp, WriteOp, XATTR_BYTES_MAX};
use ferrite_test_clusters::{Ceph, CephOptions, or_skip};

const EPOCH: &str = "epoch";
const YEAR: Duration = Duration::from_secs(365 * 86400);

/// Held for writing by tests that stop daemons.
static DAEMONS: RwLock<()> = RwLock::new(());

/// The cluster, or `None` on machines without Ceph. It ends with this process.
fn ceph() -> Option<&'static Ceph> {
    static CEPH: OnceLock<Option<Ceph>> = OnceLock::new();
    let start = || {
        let options = CephOptions {
            osds: 2,
            ..CephOptions::default()
        };
        let ceph = or_skip(Ceph::start(&options))?;
        eprintln!("Ceph with two OSDs started in {:.1} s", ceph.start_time().as_secs_f64());
        Some(ceph)
    };
    CEPH.get_or_init(start).as_ref()
}

fn connect(ceph: &Ceph, timeout_s: u64) -> Client {
    let timeout = Duration::from_secs(timeout_s);
    let options = Options {
        object_timeout: timeout,
        monitor_timeout: timeout,
        connect_timeout: Duration::from_secs(60),
    };
    Client::connect(&ceph.conf(), "client.admin", options).unwrap()
}

/// The cluster while all daemons run.
fn shared(namespace: &str) -> Option<(Pool, RwLockReadGuard<'static, ()>)> {
    let ceph = ceph()?;
    let guard = DAEMONS.read().unwrap_or_else(PoisonError::into_inner);
    let pool = connect(ceph, 60).pool_in(ceph.pool(), namespace).unwrap();
    Some((pool, guard))
}

/// The cluster for a test that stops daemons.
fn alone() -> Option<(&'static Ceph, RwLockWriteGuard<'static, ()>)> {
    let ceph = ceph()?;
    Some((ceph, DAEMONS.write().unwrap_or_else(PoisonError::into_inner)))
}

/// The content of an object.
fn content(pool: &Pool, object: &str) -> Result<Vec<u8>, Error> {
    let mut buffer = vec![0xee; 5 << 20];
    let reply = pool.read(object, &ReadOp::new().read(0).stat(), &mut buffer)?;
    assert_eq!(reply.size, Some(reply.len as u64));
    buffer.truncate(reply.len);
    Ok(buffer)
}

fn is_not_found<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::NotFound(_)))
}

#[test]
fn each_step_does_what_it_says() {
    let Some((pool, _guard)) = shared("steps") else { return };
    assert!(is_not_found(content(&pool, "a")));
    pool.write("a", &WriteOp::new().create_exclusive()).unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"");
    let again = pool
        .write("a", &WriteOp::new().create_exclusive().write(0, b"x"))
        .unwrap_err();
    assert!(matches!(again, Error::Exists(_)), "{again}");
    assert_eq!(
        again.to_string(),
        "object a in namespace steps of Ceph pool ferrite exists already"
    );
    pool.write("a", &WriteOp::new().create()).unwrap();
    pool.write("a", &WriteOp::new().write(4, b"efgh")).unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"\0\0\0\0efgh");
    pool.write("a", &WriteOp::new().write(2, b"cdE")).unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"\0\0cdEfgh");
    pool.write("a", &WriteOp::new().zero(3, 2)).unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"\0\0c\0\0fgh");
    pool.write("a", &WriteOp::new().zero(9, 1000)).unwrap();
    assert_eq!(
        content(&pool, "a").unwrap().len(),
        8,
        "beyond the end there is nothing to zero"
    );
    pool.write("a", &WriteOp::new().zero(6, 2).truncate(8)).unwrap();
    assert_eq!(
        content(&pool, "a").unwrap(),
        b"\0\0c\0\0f\0\0",
        "a truncation keeps the size"
    );
    pool.write("a", &WriteOp::new().zero(6, 1000)).unwrap();
    assert_eq!(content(&pool, "a").unwrap().len(), 6, "alone, it cuts");
    pool.write("a", &WriteOp::new().truncate(3)).unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"\0\0c");
    pool.write("a", &WriteOp::new().truncate(5)).unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"\0\0c\0\0");
    pool.write("a", &WriteOp::new().set_xattr("x", b"1").set_xattr("empty", b""))
        .unwrap();
    pool.write("a", &WriteOp::new().write_full(b"whole")).unwrap();
    let mut two = [0; 2];
    let op = ReadOp::new().read(3).stat().xattr("x").xattr("empty").xattr("none");
    let reply = pool.read("a", &op, &mut two).unwrap();
    assert_eq!((reply.len, &two, reply.size), (2, b"le", Some(5)));
    assert_eq!(
        (reply.xattr("x"), reply.xattr("empty"), reply.xattr("none")),
        (Some(&b"1"[..]), Some(&b""[..]), None)
    );
    assert!(reply.modified.unwrap().elapsed().unwrap_or_default() < Duration::from_secs(600));
    let beyond = pool.read("a", &ReadOp::new().read(9), &mut two).unwrap();
    assert_eq!((beyond.len, beyond.size, beyond.modified), (0, None, None));
    // The steps of one operation take effect in order.
    pool.write("a", &WriteOp::new().write_full(b"abc").truncate(1).write(1, b"z"))
        .unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"az");
    pool.write("a", &WriteOp::new().remove()).unwrap();
    assert!(is_not_found(content(&pool, "a")));
    assert!(is_not_found(pool.write("a", &WriteOp::new().remove())));
    assert!(is_not_found(
        pool.write("a", &WriteOp::new().assert_exists().write(0, b"x"))
    ));
    assert!(
        is_not_found(pool.read("a", &ReadOp::new(), &mut [])),
        "the failed write created nothing"
    );
}

#[test]
fn an_operation_that_fails_changes_nothing() {
    let Some((pool, _guard)) = shared("atomic") else { return };
    let made = WriteOp::new()
        .create_exclusive()
        .write(0, b"old")
        .set_xattr("owner", b"A");
    pool.write("a", &made).unwrap();
    let changes = |op: WriteOp<'static>| op.write(0, b"new").set_xattr("mark", b"new").truncate(1);
    let failing = [
        WriteOp::new().compare("owner", Compare::Equal, b"B"),
        WriteOp::new().compare("owner", Compare::Equal, b"AA"),
        WriteOp::new().compare("owner", Compare::AtMost, b"@"),
        WriteOp::new().compare("none", Compare::Equal, b"A"),
        WriteOp::new()
            .compare("owner", Compare::Equal, b"A")
            .compare("owner", Compare::Equal, b"B"),
    ];
    for op in failing {
        // Whether the condition comes first or last.
        let last = changes(WriteOp::new()).compare("owner", Compare::Equal, b"B");
        for op in [changes(op), last] {
            let error = pool.write("a", &op).unwrap_err();
            assert!(matches!(error, Error::Fenced(_)), "{error}");
            let error = pool.submit_write("a", &op).unwrap().wait().unwrap_err();
            assert!(matches!(error, Error::Fenced(_)), "{error}");
            let mut buffer = [0; 9];
            let reply = pool
                .read("a", &ReadOp::new().read(0).xattr("mark"), &mut buffer)
                .unwrap();
            assert_eq!((&buffer[..reply.len], reply.xattr("mark")), (&b"old"[..], None));
        }
    }
    let exclusive = changes(WriteOp::new()).create_exclusive();
    assert!(matches!(pool.write("a", &exclusive), Err(Error::Exists(_))));
    assert_eq!(content(&pool, "a").unwrap(), b"old");
    let op = changes(WriteOp::new().compare("owner", Compare::Equal, b"A"));
    pool.write("a", &op).unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"n");
    // Neither does a condition create an object.
    let op = WriteOp::new().compare_epoch(EPOCH, 1).write(0, b"x");
    assert!(is_not_found(pool.write("b", &op)));
    assert!(is_not_found(content(&pool, "b")));
    // An xattr that is missing counts as empty.
    pool.write("a", &WriteOp::new().compare("none", Compare::Equal, b"").write(0, b"m"))
        .unwrap();
    pool.write(
        "a",
        &WriteOp::new().compare("none", Compare::AtMost, b"1").write(0, b"p"),
    )
    .unwrap();
    assert_eq!(content(&pool, "a").unwrap(), b"p");
}

#[test]
fn a_lower_epoch_is_fenced() {
    let Some((pool, _guard)) = shared("epochs") else { return };
    let epochs = [
        0,
        1,
        254,
        255,
        256,
        257,
        65_536,
        u64::from(u32::MAX),
        1 << 32,
        u64::MAX - 1,
        u64::MAX,
    ];
    pool.write("a", &WriteOp::new().create_exclusive().set_epoch(EPOCH, 0))
        .unwrap();
    for (at, &stored) in epochs.iter().enumerate() {
        pool.write(
            "a",
            &WriteOp::new().compare_epoch(EPOCH, stored).set_epoch(EPOCH, stored),
        )
        .unwrap();
        let reply = pool.read("a", &ReadOp::new().xattr(EPOCH), &mut []).unwrap();
        assert_eq!(reply.epoch(EPOCH), Some(stored));
        for (other_at, &epoch) in epochs.iter().enumerate() {
            let wrote = pool.write("a", &WriteOp::new().compare_epoch(EPOCH, epoch).write_full(b"x"));
            let read = pool.read("a", &ReadOp::new().compare_epoch(EPOCH, epoch), &mut []);
            if other_at < at {
                assert!(matches!(wrote, Err(Error::Fenced(_))), "{epoch} wrote over {stored}");
                assert!(matches!(read, Err(Error::Fenced(_))), "{epoch} read {stored}");
            } else {
                assert!(
                    wrote.is_ok() && read.is_ok(),
                    "{epoch} and {stored}: {wrote:?}, {read:?}"
                );
            }
        }
    }
    let read = pool.read("a", &ReadOp::new().compare(EPOCH, Compare::Equal, b"12345678"), &mut []);
    assert!(matches!(read, Err(Error::Fenced(_))));
}

#[test]
fn a_client_on_the_blocklist_changes_and_sees_nothing() {
    let Some((pool, _guard)) = shared("blocklist") else {
        return;
    };
    let ceph = ceph().unwrap();
    let (old, new, bystander) = (connect(ceph, 20), connect(ceph, 20), connect(ceph, 20));
    assert!(old.id() != new.id() && old.instance() != new.instance());
    let [old_pool, new_pool, third_pool] =
        [&old, &new, &bystander].map(|client| client.pool_in(ceph.pool(), "blocklist").unwrap());
    old_pool.write("a", &WriteOp::new().write_full(b"old")).unwrap();
    let instance = old.instance().to_string().parse().unwrap();
    new.blocklist(&instance, YEAR).unwrap();
    // The new owner uses the object first: then its OSD knows of the blocklist.
    assert_eq!(content(&new_pool, "a").unwrap(), b"old");
    let wrote = old_pool.write("a", &WriteOp::new().write_full(b"zombie")).unwrap_err();
    assert!(matches!(wrote, Error::Blocklisted(_)), "{wrote}");
    let pending = old_pool.submit_write("a", &WriteOp::new().remove());
    let removed = pending.and_then(|pending| pending.wait()).unwrap_err();
    assert!(matches!(removed, Error::Blocklisted(_)), "{removed}");
    let read = content(&old_pool, "a").unwrap_err();
    assert!(matches!(read, Error::Blocklisted(_)), "{read}");
    for pool in [&pool, &new_pool, &third_pool] {
        assert_eq!(content(pool, "a").unwrap(), b"old");
    }
    third_pool.write("a", &WriteOp::new().write_full(b"new")).unwrap();
    // Another connection of the same process is another instance.
    let again = connect(ceph, 20).pool_in(ceph.pool(), "blocklist").unwrap();
    assert_eq!(content(&again, "a").unwrap(), b"new");
    for expires in [Duration::ZERO, 20 * YEAR] {
        assert!(matches!(new.blocklist(&instance, expires), Err(Error::Invalid { .. })));
    }
}

/// Bytes that differ between objects and between offsets.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8).flat_map(|at| (seed << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.collect()
}

#[test]
fn sixteen_large_objects_are_in_progress_at_once() {
    let Some((pool, _guard)) = shared("depth") else { return };
    const LEN: usize = 4 << 20;
    let mut writes = Vec::new();
    for n in 0..16 {
        let mut data = pattern(n, LEN);
        let op = WriteOp::new().write_full(&data).set_epoch(EPOCH, n);
        writes.push(pool.submit_write(&format!("large{n}"), &op).unwrap());
        // The buffer is the caller's again.
        data.fill(0xff);
    }
    writes.into_iter().for_each(|write| write.wait().unwrap());
    let read = |n: u64| {
        let op = ReadOp::new().read(0).stat().xattr(EPOCH);
        pool.submit_read(&format!("large{n}"), &op, vec![0; LEN + 1]).unwrap()
    };
    let reads: Vec<_> = (0..16).map(read).collect();
    // Dropped in progress: its buffer lives until it ends.
    drop(read(3));
    for (n, read) in (0..).zip(reads) {
        let (mut buffer, reply) = read.wait();
        let reply = reply.unwrap();
        assert_eq!(
            (reply.len, reply.size, reply.epoch(EPOCH)),
            (LEN, Some(LEN as u64), Some(n))
        );
        buffer.truncate(LEN);
        assert!(buffer == pattern(n, LEN), "object {n} has other bytes");
    }
    let (buffer, reply) = pool
        .submit_read("none", &ReadOp::new().read(0), vec![7; 3])
        .unwrap()
        .wait();
    assert!(is_not_found(reply) && buffer.len() == 3);
    // Writes to one object take effect in the order in which they were submitted.
    let writes: Vec<_> = (0..64u8)
        .map(|n| pool.submit_write("order", &WriteOp::new().write(0, &[n])).unwrap())
        .collect();
    let last = writes
        .into_iter()
        .map(|write| write.wait())
        .collect::<Result<Vec<_>, _>>();
    last.unwrap();
    assert_eq!(content(&pool, "order").unwrap(), [63]);
    let write = pool.submit_write("order", &WriteOp::new().write(0, b"x")).unwrap();
    while !write.is_complete() {
        thread::yield_now();
    }
    write.wait().unwrap();
}

#[test]
fn threads_share_a_pool() {
    let Some((pool, _guard)) = shared("threads") else {
        return;
    };
    thread::scope(|scope| {
        for thread in 0..8u64 {
            let pool = &pool;
            scope.spawn(move || {
                let name = format!("of{thread}");
                for round in 0..20 {
                    let data = pattern(thread << 8 | round, 4096);
                    pool.write(&name, &WriteOp::new().write(4096 * round, &data)).unwrap();
                    let mut buffer = vec![0; 4096];
                    pool.read(&name, &ReadOp::new().read(4096 * round), &mut buffer)
                        .unwrap();
                    assert!(buffer == data);
                }
            });
        }
    });
}

#[test]
fn names_are_listed_in_pages() {
    let Some((pool, _guard)) = shared("names") else { return };
    let (client, ceph) = (connect(ceph().unwrap(), 60), ceph().unwrap());
    let names: BTreeSet<String> = (0..70).map(|n| format!("näme {n}")).collect();
    let writes: Vec<_> = names
        .iter()
        .map(|name| pool.submit_write(name, &WriteOp::new().create()).unwrap())
        .collect();
    writes.into_iter().for_each(|write| write.wait().unwrap());
    let elsewhere = client.pool_in(ceph.pool(), "other names").unwrap();
    elsewhere.write("elsewhere", &WriteOp::new().create()).unwrap();
    let all = |pool: &Pool, count: usize| {
        let (mut found, mut pages, mut next) = (Vec::new(), 0, None);
        loop {
            let page = pool.list(next.as_ref(), count).unwrap();
            assert!(page.objects.len() <= count && page.foreign == 0);
            assert!(page.objects.iter().all(|listed| listed.namespace == pool.namespace()));
            found.extend(page.objects.into_iter().map(|listed| listed.object));
            pages += 1;
            match page.next {
                Some(cursor) => next = Some(cursor),
                None => return (found, pages),
            }
        }
    };
    for count in [1, 7, 1024] {
        let (found, pages) = all(&pool, count);
        assert_eq!(found.len(), names.len(), "each once");
        assert_eq!(BTreeSet::from_iter(found), names);
        assert!(pages >= names.len() / count);
    }
    assert_eq!(all(&elsewhere, 10).0, ["elsewhere"]);
    let empty = client.pool_in(ceph.pool(), "nothing here").unwrap();
    assert_eq!(all(&empty, 10).0, [""; 0]);
}

#[test]
fn nonsense_is_refused_before_it_is_sent() {
    let Some((pool, _guard)) = shared("nonsense") else {
        return;
    };
    let (client, ceph) = (connect(ceph().unwrap(), 60), ceph().unwrap());
    let long = vec![0; XATTR_BYTES_MAX + 1];
    let huge = vec![0; OPERATION_BYTES_MAX + 1];
    let name = "n".repeat(101);
    let half = &huge[..OPERATION_BYTES_MAX / 2 + 1];
    let ops = [
        WriteOp::new().set_xattr("x", &long),
        WriteOp::new().set_xattr("", b"1"),
        WriteOp::new().set_xattr("a\0b", b"1"),
        WriteOp::new().compare(&name, Compare::Equal, b"1").write(0, b"x"),
        WriteOp::new().write_full(&huge),
        WriteOp::new().write(0, half).write(0, half),
        WriteOp::new().write(u64::MAX, b"x"),
        WriteOp::new().write(1 << 40, b"x"),
        WriteOp::new().truncate(1 << 40),
        WriteOp::new().zero(u64::MAX, u64::MAX),
        (0..2000).fold(WriteOp::new(), |op, _| op.create()),
    ];
    for op in ops {
        assert!(matches!(pool.write("a", &op), Err(Error::Invalid { .. })));
        assert!(matches!(pool.submit_write("a", &op), Err(Error::Invalid { .. })));
    }
    for name in ["", "a\0b", &"n".repeat(256)] {
        assert!(
            matches!(pool.write(name, &WriteOp::new().create()), Err(Error::Invalid { .. })),
            "{name}"
        );
        assert!(matches!(client.pool(name), Err(Error::Invalid { .. })), "{name}");
    }
    assert!(matches!(
        client.pool_in(ceph.pool(), "\u{1}"),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        pool.read("a", &ReadOp::new().read(u64::MAX), &mut [0]),
        Err(Error::Invalid { .. })
    ));
    assert!(is_not_found(content(&pool, "a")), "none of them created it");
    assert!(is_not_found(client.pool("no such pool")));
    let refused = Client::connect(&PathBuf::from("/nowhere/ceph.conf"), "client.admin", Options::default());
    assert!(is_not_found(refused));
    let options = Options {
        object_timeout: Duration::ZERO,
        ..Options::default()
    };
    let refused = Client::connect(&ceph.conf(), "client.admin", options);
    assert!(matches!(refused, Err(Error::Invalid { .. })));
}

#[test]
fn monitors_answer_commands() {
    let (Some(ceph), Some((_, _guard))) = (ceph(), shared("commands")) else {
        return;
    };
    let client = connect(ceph, 60);
    let answer = client
        .monitor_command(r#"{"prefix": "version", "format": "json"}"#)
        .unwrap();
    assert!(String::from_utf8(answer).unwrap().contains("ceph version"));
    for nonsense in ["", "{}", r#"{"prefix": "no such command"}"#] {
        let refused = client.monitor_command(nonsense).unwrap_err();
        assert!(
            matches!(refused, Error::Refused { .. }) && !refused.is_denied(),
            "{refused}"
        );
    }
    let absent = r#"{"prefix": "osd pool get", "pool": "absent", "var": "size"}"#;
    assert!(is_not_found(client.monitor_command(absent)));
}

#[test]
fn one_replica_serves_while_the_other_is_dead() {
    let Some((ceph, _guard)) = alone() else { return };
    let pool = connect(ceph, 60).pool_in(ceph.pool(), "replicas").unwrap();
    let name = |n: u64| format!("of{n}");
    for n in 0..16 {
        pool.write(&name(n), &WriteOp::new().write_full(b"before")).unwrap();
    }
    ceph.kill_osd(0);
    for n in 0..16 {
        assert_eq!(content(&pool, &name(n)).unwrap(), b"before");
        pool.write(&name(n), &WriteOp::new().write_full(b"between")).unwrap();
    }
    ceph.start_osd(0).unwrap();
    // The one that was away has to catch up before it may serve alone.
    ceph.wait_clean().unwrap();
    ceph.kill_osd(1);
    for n in 0..16 {
        assert_eq!(content(&pool, &name(n)).unwrap(), b"between");
    }
    ceph.start_osd(1).unwrap();
}

#[test]
fn reads_that_come_after_writes_see_them() {
    let Some((pool, _guard)) = shared("after writes") else {
        return;
    };
    for n in 0..20u8 {
        let write = pool.submit_write("a", &WriteOp::new().write_full(&[n])).unwrap();
        let read = pool
            .submit_read("a", &ReadOp::new().after_writes().read(0), vec![0xee])
            .unwrap();
        write.wait().unwrap();
        let (buffer, reply) = read.wait();
        assert_eq!((reply.unwrap().len, buffer), (1, vec![n]));
    }
}

#[test]
fn a_manager_counts_space() {
    if let Some((pool, _guard)) = shared("no manager") {
        let client = connect(ceph().unwrap(), 60);
        client.wait_for_latest_map().unwrap();
        assert_eq!(client.space().unwrap().bytes, 0, "nobody counts");
        assert_eq!(pool.usage().unwrap().copies, 0);
    }
    let options = CephOptions {
        has_manager: true,
        ..CephOptions::default()
    };
    let Some(ceph) = or_skip(Ceph::start(&options)) else {
        return;
    };
    let client = connect(&ceph, 60);
    let pool = client.pool_in(ceph.pool(), "counted").unwrap();
    for n in 0..10 {
        let op = WriteOp::new().write_full(&[1; 50_000]);
        pool.write(&n.to_string(), &op).unwrap();
    }
    let began = Instant::now();
    loop {
        let (space, usage) = (client.space().unwrap(), pool.usage().unwrap());
        if space.bytes > 0 && usage.objects == 10 {
            assert!(
                (1 << 29..=2 << 30).contains(&space.bytes) && space.free_bytes < space.bytes,
                "{space:?}"
            );
            // Whole blocks of the OSD.
            assert!(
                (500_000..700_000).contains(&usage.bytes) && usage.copies == 10,
                "{usage:?}"
            );
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{space:?}, {usage:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn nothing_waits_for_ever_without_osds() {
    let Some((ceph, _guard)) = alone() else { return };
    let [pool, patient] = [1, 60].map(|timeout_s| connect(ceph, timeout_s).pool_in(ceph.pool(), "outage").unwrap());
    patient.write("a", &WriteOp::new().write_full(b"before")).unwrap();
    (0..ceph.osds()).for_each(|osd| ceph.kill_osd(osd));
    let began = Instant::now();
    let error = pool.write("a", &WriteOp::new().write_full(b"x")).unwrap_err();
    assert!(
        matches!(error, Error::TimedOut { .. }) && error.is_outcome_unknown(),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .starts_with("object a in namespace outage of Ceph pool ferrite: no reply in 1 s")
    );
    let pending: Vec<_> = (0..4)
        .map(|_| pool.submit_write("a", &WriteOp::new().remove()).unwrap())
        .collect();
    let read = pool.submit_read("a", &ReadOp::new().read(0), vec![0; 9]).unwrap();
    let error = content(&pool, "a").unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    for write in pending {
        assert!(matches!(write.wait(), Err(Error::TimedOut { .. })));
    }
    assert!(matches!(read.wait().1, Err(Error::TimedOut { .. })));
    drop(pool.submit_write("a", &WriteOp::new().create()).unwrap());
    assert!(matches!(pool.list(None, 10), Err(Error::TimedOut { .. })));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    thread::scope(|scope| {
        (0..ceph.osds()).for_each(|osd| drop(scope.spawn(move || ceph.start_osd(osd).unwrap())));
    });
    // The same connection works again, once placement groups have agreed on their history.
    let began = Instant::now();
    while pool.write("a", &WriteOp::new().write_full(b"after")).is_err() {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    // A new one need not find out first that its OSD's old address is dead.
    let late = connect(ceph, 60).pool_in(ceph.pool(), "outage").unwrap();
    assert_eq!(content(&late, "a").unwrap(), b"after");
}

#[test]
fn nothing_waits_for_ever_without_monitors() {
    let Some((ceph, _guard)) = alone() else { return };
    let client = connect(ceph, 2);
    let pool = client.pool_in(ceph.pool(), "silence").unwrap();
    let victim = connect(ceph, 2);
    let paused = ceph.pause_monitor();
    let began = Instant::now();
    let blocked = client.blocklist(victim.instance(), YEAR).unwrap_err();
    let unknown = client.pool("no such pool").unwrap_err();
    let options = Options {
        connect_timeout: Duration::from_secs(2),
        ..Options::default()
    };
    let connected = Client::connect(&ceph.conf(), "client.admin", options).map(drop);
    let elapsed = began.elapsed();
    // OSDs need no monitor to serve.
    let written = pool.write("a", &WriteOp::new().write_full(b"x"));
    drop(paused);
    written.unwrap();
    assert!(matches!(blocked, Error::TimedOut { .. }), "{blocked}");
    assert!(matches!(unknown, Error::TimedOut { .. }), "{unknown}");
    assert!(matches!(connected, Err(Error::TimedOut { .. })), "{connected:?}");
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    client.blocklist(victim.instance(), YEAR).unwrap();
}

#[test]
fn a_full_cluster_says_so_and_lets_objects_go() {
    let Some((ceph, _guard)) = alone() else { return };
    let pool = connect(ceph, 60).pool_in(ceph.pool(), "full").unwrap();
    pool.write("a", &WriteOp::new().write_full(b"old")).unwrap();
    // Ceph keeps them in this order.
    let set = |ratios: [&str; 3]| {
        for (which, ratio) in ["nearfull", "backfillfull", "full"].iter().zip(ratios) {
            ceph.command(&["osd", &format!("set-{which}-ratio"), ratio]).unwrap();
        }
    };
    set(["0.0001"; 3]);
    let began = Instant::now();
    let mut end = 0;
    let error = loop {
        // An overwrite takes no space, so it would succeed.
        end += 4096;
        match pool.write("a", &WriteOp::new().write(end, &[1; 4096])) {
            Err(error) => break error,
            Ok(()) => assert!(began.elapsed() < Duration::from_secs(60), "it never became full"),
        }
        thread::sleep(Duration::from_millis(100));
    };
    let removed = pool.write("a", &WriteOp::new().remove());
    set(["0.85", "0.90", "0.95"]);
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    removed.unwrap();
    while pool.write("b", &WriteOp::new().write_full(&[1; 4096])).is_err() {
        assert!(began.elapsed() < Duration::from_secs(120), "it never became empty");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Prints medians for the head of the crate; run it alone, with `--ignored --nocapture`.
#[test]
#[ignore = "prints latencies, and asserts nothing"]
fn cost_of_fencing() {
    let options = CephOptions::default();
    let Some(ceph) = or_skip(Ceph::start(&options)) else {
        return;
    };
    let pool = connect(&ceph, 60).pool_in(ceph.pool(), "cost").unwrap();
    let (data, tail) = (pattern(1, 4096), [7; 64]);
    let first = pattern(0, 4 << 20);
    let create = WriteOp::new()
        .write_full(&first)
        .set_epoch(EPOCH, 1)
        .set_xattr("tail", &tail);
    pool.write("a", &create).unwrap();
    let mut times = [const { Vec::new() }; 3];
    for round in 0..1500u64 {
        let at = round * 7919 % 1024 * 4096;
        let plain = WriteOp::new().write(at, &data);
        let compared = WriteOp::new().compare_epoch(EPOCH, 1).write(at, &data);
        let stored = compared.clone().set_xattr("tail", &tail);
        // In turns, so that a busy machine slows all three.
        for (op, times) in [plain, compared, stored].iter().zip(&mut times) {
            let began = Instant::now();
            pool.write("a", op).unwrap();
            times.push(began.elapsed());
        }
    }
    let medians = times.map(|mut times| {
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1e6
    });
    let [plain, compared, stored] = medians;
    println!("a durable write of 4 KiB: {plain:.0} us");
    println!(
        "with a compared epoch: {compared:.0} us, {:.2} times as long",
        compared / plain
    );
    println!(
        "with a stored xattr, too: {stored:.0} us, {:.2} times as long",
        stored / plain
    );
}

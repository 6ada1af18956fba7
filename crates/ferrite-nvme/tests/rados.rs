//! Content in a Ceph cluster, a real one: what the trait promises, the suites, an owner that is taken over with writes
//! under way, OSDs that are killed, and all of them stopped.
//!
//! The tests share a cluster; each has namespaces of its own, and those that disturb OSDs run alone.

#[path = "rados/blobs.rs"]
mod blobs;
mod common;
#[path = "faults/pool.rs"]
mod pool;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use common::{Shared, shared};
use ferrite_meta::MemoryStore;
use ferrite_nvme::content_store::{Blob, ContentStore, Error, Guard, Place, RadosContent, RadosOptions, UniqueIds};
use ferrite_nvme::{NvmeFs, Options};
use ferrite_rados::Client;
use ferrite_test_clusters::{Ceph, CephOptions, or_skip};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::{TestEngine, linear, posix};
use ferrite_vfs::{FileSystem, FsError, SYSTEM};
use pool::{content, put, read};

/// Held for writing by tests that disturb OSDs.
static OSDS: RwLock<()> = RwLock::new(());

/// The cluster, or `None` on machines without Ceph. It ends with this process.
fn ceph() -> Option<&'static Ceph> {
    static CEPH: OnceLock<Option<Ceph>> = OnceLock::new();
    let start = || {
        let options = CephOptions {
            osds: 2,
            ..CephOptions::default()
        };
        or_skip(Ceph::start(&options))
    };
    CEPH.get_or_init(start).as_ref()
}

/// The cluster while all OSDs run.
fn together() -> Option<(&'static Ceph, RwLockReadGuard<'static, ()>)> {
    let ceph = ceph()?;
    Some((ceph, OSDS.read().unwrap_or_else(PoisonError::into_inner)))
}

/// The cluster for a test that disturbs OSDs.
fn alone() -> Option<(&'static Ceph, RwLockWriteGuard<'static, ()>)> {
    let ceph = ceph()?;
    Some((ceph, OSDS.write().unwrap_or_else(PoisonError::into_inner)))
}

/// Options for a namespace that nothing has used.
fn options(ceph: &Ceph, object_bytes: u64, timeout_s: u64) -> RadosOptions {
    static NAMESPACES: AtomicU64 = AtomicU64::new(0);
    let namespace = format!("volume{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
    let mut options = RadosOptions::new(ceph.conf(), ceph.pool(), &namespace);
    options.object_bytes = object_bytes;
    options.timeouts.object_timeout = Duration::from_secs(timeout_s);
    options.timeouts.monitor_timeout = Duration::from_secs(60);
    options.timeouts.connect_timeout = Duration::from_secs(60);
    options
}

fn guard(epoch: u64) -> Guard {
    Guard { shard: 0, epoch }
}

/// An owner, and ids for its blobs.
fn owner(options: &RadosOptions, epoch: u64) -> (RadosContent, UniqueIds) {
    let content = RadosContent::connect(options).unwrap();
    content.take_over(guard(epoch)).unwrap();
    (content, UniqueIds::new(guard(epoch)))
}

fn blob(content: &RadosContent, ids: &UniqueIds) -> (Place, Arc<dyn Blob>) {
    let place = content.reserve(0, 1, ids).unwrap()[0];
    (place, content.create(place).unwrap())
}

fn bytes_of(blob: &dyn Blob, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    blob.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// The names of all objects in a namespace.
fn objects(options: &RadosOptions) -> Vec<String> {
    let client = Client::connect(&options.conf, &options.client, options.timeouts).unwrap();
    let pool = client.pool_in(&options.pool, &options.namespace).unwrap();
    let page = pool.list(None, 1024).unwrap();
    assert!(page.next.is_none());
    let mut names: Vec<String> = page.objects.into_iter().map(|listed| listed.object).collect();
    names.sort();
    names
}

/// A pool whose metadata and content outlive the engine.
struct InCeph {
    /// Opens the metadata.
    meta: Box<dyn Fn() -> Shared>,
    options: RadosOptions,
    small_bytes_max: u64,
    engine: Option<NvmeFs>,
}

impl InCeph {
    fn new(ceph: &Ceph, object_bytes: u64, timeout_s: u64) -> InCeph {
        let meta = shared(MemoryStore::new());
        InCeph::with_metadata(Box::new(move || meta.clone()), ceph, object_bytes, timeout_s)
    }

    fn with_metadata(meta: Box<dyn Fn() -> Shared>, ceph: &Ceph, object_bytes: u64, timeout_s: u64) -> InCeph {
        let options = options(ceph, object_bytes, timeout_s);
        let content = RadosContent::connect(&options).unwrap();
        ferrite_nvme::format_with(&meta(), [7; 16], [9; 16], &content).unwrap();
        InCeph {
            meta,
            options,
            small_bytes_max: 2048,
            engine: None,
        }
    }

    fn mounted(ceph: &Ceph, object_bytes: u64, small_bytes_max: u64) -> Box<dyn TestEngine> {
        let mut pool = InCeph::new(ceph, object_bytes, 60);
        pool.small_bytes_max = small_bytes_max;
        pool.engine = Some(pool.open());
        Box::new(pool)
    }

    fn try_open(&self, guard: Option<Guard>) -> Result<NvmeFs, FsError> {
        let mut options = Options::default();
        options.small_bytes_max = self.small_bytes_max;
        options.guard = guard;
        let content = RadosContent::connect(&self.options).unwrap();
        ferrite_nvme::assemble_with(Box::new((self.meta)()), Box::new(content), options)
    }

    /// The next owner of the pool. The one before it may still be there.
    fn open(&self) -> NvmeFs {
        self.try_open(None).unwrap()
    }
}

impl TestEngine for InCeph {
    fn fs(&self) -> &dyn FileSystem {
        self.engine.as_ref().expect("open")
    }

    fn remount(&mut self) {
        self.engine.take().expect("open").close().unwrap();
        self.engine = Some(self.open());
    }

    fn check(&self) {
        pool::sound(self.engine.as_ref().expect("open"), "content in Ceph");
    }
}

/// The cases that take long with metadata in a database; `FERRITE_SOAK` adds those that run there.
#[test]
fn posix_rules() {
    let Some((ceph, _osds)) = together() else { return };
    let make = || InCeph::mounted(ceph, 64 << 10, 6000);
    match std::env::var_os("FERRITE_SOAK") {
        Some(_) => posix::run_all(make),
        None => posix::run_large(make),
    }
}

/// The suites on pools as servers hand them to each other: metadata in PostgreSQL, content in Ceph.
#[cfg(feature = "postgres")]
mod on_postgres {
    use ferrite_meta::{Owned, OwnedOptions, Owner, PostgresOptions, PostgresRemote};
    use ferrite_test_clusters::{Postgres, PostgresOptions as Cluster};

    use super::*;

    const SHARD: u64 = 1;

    fn server() -> Option<&'static Postgres> {
        static SERVER: OnceLock<Option<Postgres>> = OnceLock::new();
        SERVER
            .get_or_init(|| or_skip(Postgres::start(&Cluster::default())))
            .as_ref()
    }

    fn mounted(server: &Postgres, ceph: &Ceph, object_bytes: u64) -> Box<dyn TestEngine> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let volume = format!("v{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let remote = PostgresRemote::new(&PostgresOptions::new(&server.connection(), &volume)).unwrap();
        remote.create(SHARD).unwrap();
        let owner = Owner {
            name: "test".into(),
            address: String::new(),
        };
        let remote = Arc::new(remote);
        let open = move || shared(Owned::open(Arc::clone(&remote), SHARD, &owner, OwnedOptions::default()).unwrap());
        let mut pool = InCeph::with_metadata(Box::new(open), ceph, object_bytes, 60);
        pool.engine = Some(pool.open());
        Box::new(pool)
    }

    #[test]
    fn posix_rules() {
        let Some((ceph, _osds)) = together() else { return };
        let Some(server) = server() else { return };
        posix::run_small(|| mounted(server, ceph, 64 << 10));
    }

    #[test]
    fn random_operations() {
        let Some((ceph, _osds)) = together() else { return };
        let Some(server) = server() else { return };
        for profile in Profile::ALL {
            check_against_reference(|| mounted(server, ceph, 4096), profile, 9_200, 100);
        }
    }
}

/// It takes a minute and a half.
#[test]
fn concurrent_histories() {
    if std::env::var_os("FERRITE_SOAK").is_none() {
        println!("skipped without FERRITE_SOAK");
        return;
    }
    let Some((ceph, _osds)) = together() else { return };
    linear::run_all(|| InCeph::mounted(ceph, 4096, 2048), 1);
}

#[test]
fn random_operations() {
    let Some((ceph, _osds)) = together() else { return };
    let seeds = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 30,
        // Others are made on PostgreSQL.
        None => 2,
    };
    for profile in Profile::ALL {
        for seed in 0..seeds {
            check_against_reference(|| InCeph::mounted(ceph, 4096, 2048), profile, 9_100 + seed, 100);
        }
    }
}

/// Epochs only rise; an owner that closed is not fenced, one that did not is, and two at once have one winner.
#[test]
fn one_owner_at_a_time() {
    let Some((ceph, _osds)) = together() else { return };
    let options = options(ceph, 4096, 60);
    let blocked = || ceph.command(&["osd", "blocklist", "ls"]).unwrap().lines().count();
    let (first, ids) = owner(&options, 3);
    let (place, blob) = blob(&first, &ids);
    blob.write_at(b"first", 0, None).unwrap();
    for epoch in [0, 3] {
        let other = RadosContent::connect(&options).unwrap();
        assert_eq!(
            other.take_over(guard(epoch)),
            Err(Error::Fenced { epoch: 3 }),
            "{epoch}"
        );
    }
    assert!(matches!(first.take_over(guard(4)), Err(Error::Failed(_))), "once");
    first.close().unwrap();
    let before = blocked();
    let (second, _) = owner(&options, 5);
    assert_eq!(blocked(), before, "an owner that closed need not be fenced");
    assert_eq!(second.health(), Ok(()));
    // Another shard of the volume has another owner.
    let other = RadosContent::connect(&options).unwrap();
    other.take_over(Guard { shard: 1, epoch: 1 }).unwrap();
    let taken = thread::scope(|scope| {
        let options = &options;
        let takers: Vec<_> = [6, 7, 8]
            .map(|epoch| {
                scope.spawn(move || {
                    let content = RadosContent::connect(options).unwrap();
                    let taken = content.take_over(guard(epoch));
                    (epoch, taken.map(|()| content))
                })
            })
            .into();
        takers
            .into_iter()
            .map(|taker| taker.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert!(blocked() > before, "one that did not close is fenced");
    let mut change = 0;
    for (epoch, content) in taken {
        // The last one always wins; an earlier one may have won before it.
        match content {
            Ok(content) => {
                let changed = content.open(place).and_then(|blob| blob.set_tail(b"mine"));
                change += u64::from(changed.is_ok());
                assert_eq!(changed.is_ok(), epoch == 8, "{epoch}");
            }
            Err(error) => assert!(epoch < 8, "{epoch}: {error}"),
        }
    }
    assert_eq!(change, 1);
    let error = second
        .open(place)
        .and_then(|blob| blob.write_at(b"late", 0, None))
        .unwrap_err();
    assert_eq!(error, Error::Fenced { epoch: 6 });
    assert_eq!(second.health(), Err(error));
    other.open(place).unwrap().set_tail(b"of the other shard").unwrap();
}

/// Has OSDs hold back what clients that connect from now on send them.
fn delay_new_clients(ceph: &Ceph, is_on: bool) {
    let kinds = if is_on { "client" } else { "" };
    set(ceph, "ms_inject_delay_type", kinds);
}

/// Has OSDs hold back what such clients send from now on, up to so many seconds each.
fn delay(ceph: &Ceph, max_s: u64) {
    set(ceph, "ms_inject_delay_max", &max_s.to_string());
    set(ceph, "ms_inject_delay_probability", if max_s > 0 { "1" } else { "0" });
}

fn set(ceph: &Ceph, option: &str, value: &str) {
    for osd in 0..ceph.osds() {
        ceph.command(&["daemon", &format!("osd.{osd}"), "config", "set", option, value])
            .unwrap();
    }
}

const CHUNKS: u64 = 12;

/// An owner whose operations will be held back, and a blob whose chunks are all there.
fn delayed_owner(ceph: &Ceph, options: &RadosOptions) -> (RadosContent, UniqueIds, Place) {
    delay_new_clients(ceph, true);
    let (store, ids) = owner(options, 1);
    let (place, blob) = blob(&store, &ids);
    blob.write_at(&[1; 4096 * CHUNKS as usize], 0, None).unwrap();
    delay_new_clients(ceph, false);
    (store, ids, place)
}

/// Overwrites that an OSD gets from the old owner after another one has taken over change nothing; neither is anything
/// created. Without a takeover they arrive.
#[test]
fn a_late_write_of_an_earlier_owner_changes_nothing() {
    let Some((ceph, _osds)) = alone() else { return };
    for is_taken_over in [false, true] {
        let options = options(ceph, 4096, 60);
        let (old, ids, place) = delayed_owner(ceph, &options);
        let old_blob = old.open(place).unwrap();
        delay(ceph, if is_taken_over { 8 } else { 2 });
        let new = RadosContent::connect(&options).unwrap();
        thread::scope(|scope| {
            let (old, old_blob) = (&old, &old_blob);
            let writes: Vec<_> = (0..CHUNKS)
                .map(|chunk| scope.spawn(move || old_blob.overwrite_at(&[2; 4096], chunk * 4096, &mut || {})))
                .collect();
            let made = old.reserve(0, 1, &ids).unwrap()[0];
            let creation = scope.spawn(move || old.create(made).map(drop));
            // All are under way.
            thread::sleep(Duration::from_millis(100));
            let mut before = vec![1; 4096 * CHUNKS as usize];
            if is_taken_over {
                new.take_over(guard(2)).unwrap();
                // As the engine does with a blob that only a record names.
                let deleted = new.delete(made);
                assert!(deleted == Ok(()) || deleted == Err(Error::NotFound));
                before = bytes_of(&*new.open(place).unwrap(), before.len());
            }
            let done: Vec<_> = writes.into_iter().map(|write| write.join().unwrap()).collect();
            let created = creation.join().unwrap();
            let after = bytes_of(&*new.open(place).unwrap(), before.len());
            match is_taken_over {
                true => {
                    assert!(after == before, "a late write took effect");
                    assert!(before.contains(&1), "no write was late");
                    assert!(done.contains(&Err(Error::Fenced { epoch: 2 })), "{done:?}");
                    assert_eq!(new.open(made).map(drop), Err(Error::NotFound), "{created:?}");
                }
                false => {
                    assert!(done.iter().all(|done| *done == Ok(true)), "{done:?}");
                    assert!(after == [2; 4096 * CHUNKS as usize]);
                    assert!(created.is_ok() && new.open(made).is_ok());
                }
            }
        });
        delay(ceph, 0);
    }
}

/// The whole engine is taken over while an operation of it is under way.
#[test]
fn an_engine_is_taken_over_with_a_write_under_way() {
    let Some((ceph, _osds)) = alone() else { return };
    delay_new_clients(ceph, true);
    let pool = InCeph::new(ceph, 8192, 60);
    let old = pool.open();
    put(&old, "f", 0, &content(1, 60_000)).unwrap();
    old.sync(SYSTEM).unwrap();
    delay_new_clients(ceph, false);
    delay(ceph, 6);
    let (before, late) = thread::scope(|scope| {
        let old = &old;
        let late = scope.spawn(move || put(old, "f", 0, &content(2, 60_000)));
        thread::sleep(Duration::from_millis(100));
        let new = pool.open();
        let before = read(&new, "f").unwrap();
        assert_eq!(before.len(), 60_000);
        let late = late.join().unwrap();
        assert!(read(&new, "f").unwrap() == before, "a late write took effect");
        put(&new, "f", 100, &content(3, 3000)).unwrap();
        put(&new, "g", 0, &content(4, 30_000)).unwrap();
        pool::sound(&new, "taken over");
        (before, late)
    });
    delay(ceph, 0);
    let error = late.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("another server has owned the content since epoch"),
        "{error}"
    );
    assert!(before.contains(&content(1, 60_000)[59_999]));
    let error = pool::chmod(&old, "f", 0o600).unwrap_err();
    assert!(error.to_string().contains("changes have stopped"), "{error}");
}

/// A write that timed out arrives before anything that its owner does later.
#[test]
fn later_calls_come_after_a_write_of_unknown_outcome() {
    let Some((ceph, _osds)) = alone() else { return };
    let options = options(ceph, 4096, 1);
    let (store, _, place) = delayed_owner(ceph, &options);
    let blob = store.open(place).unwrap();
    let mut unknown = None;
    // A delay is anything up to the longest.
    for round in 0..20 {
        delay(ceph, 4);
        match blob.write_at(&[5 + round; 5000], 4096 * 3, Some(b"late")) {
            Err(Error::Unknown(text)) => unknown = Some((round, text)),
            done => assert_eq!(done, Ok(())),
        }
        delay(ceph, 0);
        if unknown.is_some() {
            break;
        }
    }
    let (round, text) = unknown.expect("one of 20 writes is late");
    assert!(text.contains("no reply in 1 s"), "{text}");
    let began = Instant::now();
    let read = |bytes: &mut [u8]| loop {
        match blob.read_at(bytes, 4096 * 3) {
            Ok(()) => break,
            Err(Error::Unknown(_)) => assert!(began.elapsed() < Duration::from_secs(30)),
            Err(error) => panic!("{error}"),
        }
    };
    let (mut first, mut second) = (vec![0; 5000], vec![0; 5000]);
    read(&mut first);
    thread::sleep(Duration::from_secs(4).saturating_sub(began.elapsed()));
    read(&mut second);
    assert!(first == second, "the write came after a later read");
    assert!(first.contains(&(5 + round)), "it arrives");
    blob.write_at(&[99; 5000], 4096 * 3, Some(b"new")).unwrap();
    thread::sleep(Duration::from_secs(1));
    read(&mut first);
    assert!(first == [99; 5000] && blob.tail().unwrap() == b"new");
    // It does not take itself out of the record, so the next owner fences it.
    store.close().unwrap();
    let (_next, _) = owner(&options, 2);
    assert!(matches!(blob.set_tail(b"x"), Err(Error::Fenced { .. })));
}

/// A server that died between the data of a longer file and its size leaves bytes behind the end: nobody sees them.
#[test]
fn bytes_behind_the_end_are_cut() {
    let Some((ceph, _osds)) = together() else { return };
    let pool = InCeph::new(ceph, 8192, 60);
    let fs = pool.open();
    put(&fs, "f", 0, &content(1, 20_000)).unwrap();
    // As by a crash.
    drop(fs);
    let (store, _) = owner(&pool.options, 9);
    let blobs = store.survey(0).unwrap().blobs.unwrap();
    let of_f = |place: &&Place| store.open(**place).unwrap().valid_len() == 20_000;
    let place = *blobs.iter().find(of_f).expect("the file has a blob");
    let blob = store.open(place).unwrap();
    blob.write_at(&content(2, 50_000), 20_000, None).unwrap();
    let fs = pool.try_open(Some(guard(10))).unwrap();
    pool::sound(&fs, "after the crash");
    assert!(read(&fs, "f").unwrap() == content(1, 20_000));
    put(&fs, "f", 90_000, &[7; 10]).unwrap();
    let found = read(&fs, "f").unwrap();
    assert!(found[..20_000] == content(1, 20_000) && found[20_000..90_000].iter().all(|&byte| byte == 0));
    pool::sound(&fs, "longer");
}

/// OSDs are killed and started again while files are written: what was acknowledged is there.
#[test]
fn nothing_acknowledged_is_lost_when_osds_die() {
    let Some((ceph, _osds)) = alone() else { return };
    let pool = InCeph::new(ceph, 16 << 10, 60);
    let fs = pool.open();
    let is_over = AtomicU64::new(0);
    let written = thread::scope(|scope| {
        let (fs, is_over) = (&fs, &is_over);
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                scope.spawn(move || {
                    let mut round = 0;
                    while is_over.load(Ordering::Relaxed) == 0 {
                        let (name, number) = (format!("f{thread}.{}", round % 4), thread * 1000 + round);
                        put(fs, &name, 0, &content(number, 50_000)).unwrap();
                        round += 1;
                    }
                    round
                })
            })
            .collect();
        for osd in 0..ceph.osds() {
            thread::sleep(Duration::from_millis(500));
            ceph.kill_osd(osd);
            thread::sleep(Duration::from_millis(500));
            ceph.start_osd(osd).unwrap();
            ceph.wait_clean().unwrap();
        }
        is_over.store(1, Ordering::Relaxed);
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect::<Vec<u64>>()
    });
    // As by a crash of the server.
    drop(fs);
    let fs = pool.open();
    for (thread, rounds) in (0..).zip(written) {
        assert!(rounds > 4, "{rounds} writes of thread {thread}");
        for round in rounds - 4..rounds {
            let found = read(&fs, &format!("f{thread}.{}", round % 4)).unwrap();
            assert!(
                found == content(thread * 1000 + round, 50_000),
                "thread {thread}, round {round}"
            );
        }
    }
    pool::sound(&fs, "OSDs died");
}

/// Without OSDs calls fail after the timeout, and the same engine works again when they are back.
#[test]
fn no_call_waits_for_ever_without_osds() {
    let Some((ceph, _osds)) = alone() else { return };
    let pool = InCeph::new(ceph, 16 << 10, 2);
    let fs = pool.open();
    put(&fs, "f", 0, &content(1, 60_000)).unwrap();
    (0..ceph.osds()).for_each(|osd| ceph.kill_osd(osd));
    let began = Instant::now();
    let error = put(&fs, "f", 0, &content(2, 60_000)).unwrap_err();
    assert!(error.to_string().contains("the outcome is unknown"), "{error}");
    let error = read(&fs, "f").unwrap_err();
    assert!(error.to_string().contains("no reply in 2 s"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    thread::scope(|scope| {
        (0..ceph.osds()).for_each(|osd| drop(scope.spawn(move || ceph.start_osd(osd).unwrap())));
    });
    let began = Instant::now();
    while let Err(error) = put(&fs, "f", 0, &content(3, 60_000)) {
        assert!(began.elapsed() < Duration::from_secs(60), "{error}");
    }
    assert!(read(&fs, "f").unwrap() == content(3, 60_000));
    pool::sound(&fs, "OSDs are back");
    fs.close().unwrap();
    let fs = pool.open();
    assert!(read(&fs, "f").unwrap() == content(3, 60_000));
    pool::sound(&fs, "opened again");
}

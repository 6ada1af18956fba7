//! Content that is elsewhere: the suites, and a server that loses requests and replies, delays and refuses operations,
//! gets another owner, and crashes. The server is in memory ([`MemoryServer`]).
//!
//! In all cases: acknowledged content is there after opening again, an operation of an earlier owner has no effect, and
//! the check finds nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Shared, shared};
use crate::faults::pool::{self, Files, content, put, read};
use ferrite_blob::BlobStore;
use ferrite_meta::MemoryStore;
use ferrite_nvme::content_store::{
    ContentStore, Effect, Guard, Kind, MemoryContent, MemoryServer, Operation, UniqueIds,
};
use ferrite_nvme::{NvmeFs, Options};
use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::{TestEngine, linear, posix, seed_from_env};
use ferrite_vfs::{FileSystem, FsError, OpenMode, SYSTEM, Unsynced};

const CAPACITY_BYTES: u64 = 128 << 20;

/// A pool whose metadata and content outlive the engine.
struct Elsewhere {
    meta: Shared,
    server: Arc<MemoryServer>,
    small_bytes_max: u64,
    engine: Option<NvmeFs>,
}

impl Elsewhere {
    fn new(chunk_bytes: u64, needs_sync: bool) -> Elsewhere {
        let meta = shared(MemoryStore::new());
        let server = MemoryServer::new(chunk_bytes, CAPACITY_BYTES, needs_sync);
        ferrite_nvme::format_with(&meta, [7; 16], [9; 16], &MemoryContent::new(&server)).unwrap();
        Elsewhere {
            meta,
            server,
            small_bytes_max: 2048,
            engine: None,
        }
    }

    fn mounted(chunk_bytes: u64, small_bytes_max: u64) -> Box<dyn TestEngine> {
        let mut pool = Elsewhere::new(chunk_bytes, false);
        pool.small_bytes_max = small_bytes_max;
        pool.engine = Some(pool.open());
        Box::new(pool)
    }

    fn try_open(&self, guard: Option<Guard>) -> Result<NvmeFs, FsError> {
        let mut options = Options::default();
        options.small_bytes_max = self.small_bytes_max;
        options.guard = guard;
        let content = MemoryContent::new(&self.server);
        ferrite_nvme::assemble_with(Box::new(self.meta.clone()), Box::new(content), options)
    }

    /// The next owner of the pool. The one before it may still be there.
    fn open(&self) -> NvmeFs {
        self.try_open(None).unwrap()
    }

    /// One operation that concerns content has this effect, after so many others that `concerns` accepts.
    fn plan(&self, effect: Effect, after: u64, concerns: impl Fn(Operation) -> bool + Send + 'static) {
        let mut left = Some(after);
        self.server.intercept(move |operation| match left {
            Some(0) if concerns(operation) => {
                left = None;
                effect
            }
            Some(count) if concerns(operation) => {
                left = Some(count - 1);
                Effect::Done
            }
            _ => Effect::Done,
        });
    }
}

impl TestEngine for Elsewhere {
    fn fs(&self) -> &dyn FileSystem {
        self.engine.as_ref().expect("open")
    }

    fn remount(&mut self) {
        self.engine.take().expect("open").close().unwrap();
        self.engine = Some(self.open());
    }

    fn check(&self) {
        pool::sound(self.engine.as_ref().expect("open"), "content elsewhere");
    }
}

/// Length of a chunk, and from which length on files have blobs.
const KINDS: [(u64, u64); 2] = [(4096, 2048), (64 << 10, 6000)];

#[test]
fn posix_rules() {
    let (chunk_bytes, small_bytes_max) = KINDS[1];
    posix::run_all(|| Elsewhere::mounted(chunk_bytes, small_bytes_max));
}

#[test]
fn concurrent_histories() {
    let (chunk_bytes, small_bytes_max) = KINDS[0];
    linear::run_all(|| Elsewhere::mounted(chunk_bytes, small_bytes_max), 1);
}

#[test]
fn random_operations() {
    let seeds = match std::env::var_os("FERRITE_SOAK") {
        Some(_) => 300,
        None => 12,
    };
    for (chunk_bytes, small_bytes_max) in KINDS {
        for profile in Profile::ALL {
            for seed in 0..seeds {
                let make = || Elsewhere::mounted(chunk_bytes, small_bytes_max);
                check_against_reference(make, profile, 9_000 + seed, 200);
            }
        }
    }
}

const FAULTS: [Effect; 4] = [Effect::RequestLost, Effect::ReplyLost, Effect::Delayed, Effect::Refused];

/// Random work while operations have one of these effects.
fn work_with_a_fault(seed: u64) {
    let mut rng = Rng::new(seed);
    let pool = Elsewhere::new(8192, false);
    let fs = pool.open();
    let mut files = Files::new(seed);
    let effect = FAULTS[rng.below(4) as usize];
    let (after, is_once) = (rng.below(25), rng.below(2) == 0);
    let what = format!("FERRITE_SEED={seed}: {effect:?} after {after}, once: {is_once}");
    for step in 0..25 {
        let done = files.step(&fs, &what);
        done.unwrap_or_else(|error| panic!("{what}: step {step}: {error}"));
    }
    let met = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&met);
    pool.server.intercept(move |_| {
        let count = counter.fetch_add(1, Ordering::Relaxed);
        match count == after || count > after && !is_once && count.is_multiple_of(3) {
            true => effect,
            false => Effect::Done,
        }
    });
    let mut failures = 0;
    for step in 25..75 {
        if step == 60 && rng.below(2) == 0 {
            pool.server.mend();
        }
        failures += u64::from(files.step(&fs, &format!("{what}, step {step}")).is_err());
    }
    assert!(met.load(Ordering::Relaxed) > after, "{what}: there is nothing to fail");
    let what = format!("{what}, {failures} failures");
    if rng.below(2) == 0 {
        // It may report that the server did not answer.
        let _ = fs.close();
    }
    drop(fs);
    pool.server.mend();
    let fs = pool.open();
    pool::sound(&fs, &what);
    files.verify(&fs, &what);
    for step in 75..90 {
        let done = files.step(&fs, &format!("{what}, step {step}, opened again"));
        done.unwrap_or_else(|error| panic!("{what}: opened again, step {step}: {error}"));
    }
    pool::sound(&fs, &what);
    fs.close().unwrap();
    let fs = pool.open();
    files.verify(&fs, &what);
    pool::sound(&fs, &what);
}

#[test]
fn nothing_acknowledged_is_lost_whatever_becomes_of_operations() {
    let seeds = match (seed_from_env(), std::env::var_os("FERRITE_SOAK")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(_)) => 0..5000,
        (None, None) => 0..150,
    };
    seeds.for_each(work_with_a_fault);
}

/// The error of the first change that is refused, of a pool whose owner has lost it.
fn says_who_has_it(error: &FsError) -> bool {
    matches!(error, FsError::Io(text) if text.contains("another server has owned the content since epoch"))
}

/// A file that has a blob, with everything stored.
fn pool_with_a_file() -> (Elsewhere, NvmeFs) {
    let pool = Elsewhere::new(8192, false);
    let fs = pool.open();
    put(&fs, "f", 0, &content(1, 20_000)).unwrap();
    fs.sync(SYSTEM).unwrap();
    (pool, fs)
}

/// After another owner has taken over, each kind of change is refused and has no effect, and the engine stops changes.
#[test]
fn an_owner_that_lost_its_content_changes_nothing() {
    type Change = fn(&NvmeFs) -> Result<(), FsError>;
    let changes: [(&str, Change); 4] = [
        ("overwrite", |fs| put(fs, "f", 100, &content(2, 3000))),
        ("append", |fs| put(fs, "f", 20_000, &content(2, 9000))),
        ("new", |fs| put(fs, "g", 0, &content(2, 9000))),
        ("punch", |fs| {
            let file = pool::open(fs, "f", OpenMode::read_write())?;
            file.fallocate(SYSTEM, ferrite_vfs::FallocateMode::PunchHole, 0, 9000)
        }),
    ];
    for (what, change) in changes {
        let (pool, old) = pool_with_a_file();
        if what == "new" {
            // All blobs that were made in advance have a name.
            (0..15).for_each(|number| put(&old, &format!("made{number}"), 0, &content(3, 9000)).unwrap());
            old.sync(SYSTEM).unwrap();
        }
        // The new owner has the content, and nothing else yet.
        let taken = Guard { shard: 0, epoch: 9 };
        MemoryContent::new(&pool.server).take_over(taken).unwrap();
        let error = change(&old).unwrap_err();
        assert!(says_who_has_it(&error), "{what}: {error}");
        let error = pool::chmod(&old, "f", 0o600).unwrap_err();
        assert!(error.to_string().contains("changes have stopped"), "{what}: {error}");
        assert!(read(&old, "f").unwrap() == content(1, 20_000), "{what}");
        drop(old);
        let error = pool.try_open(None).unwrap_err();
        assert!(says_who_has_it(&error), "{what}: {error}");
        let new = pool.try_open(Some(Guard { shard: 0, epoch: 10 })).unwrap();
        assert!(read(&new, "f").unwrap() == content(1, 20_000), "{what}");
        pool::sound(&new, what);
    }
}

/// Another owner takes over at any operation of a change: it is refused from there on, and the new owner finds the pool
/// sound, with the old content or a part of the new.
#[test]
fn an_owner_may_lose_its_content_at_any_operation() {
    for after in 0..6 {
        let (pool, old) = pool_with_a_file();
        pool.plan(Effect::TakenOver, after, |operation| operation.kind == Kind::Write);
        let (first, second) = (content(2, 20_000), content(3, 20_000));
        // Three chunks, each an operation, and all again.
        let done = put(&old, "f", 0, &first).and_then(|()| put(&old, "f", 0, &second));
        assert!(says_who_has_it(&done.unwrap_err()), "{after}");
        assert!(put(&old, "f", 0, &first).is_err(), "{after}");
        drop(old);
        pool.server.mend();
        let new = pool.open();
        let found = read(&new, "f").unwrap();
        let (old, new_content) = match after < 3 {
            true => (content(1, 20_000), first),
            false => (first, second),
        };
        let changed = 8192 * (after % 3) as usize;
        assert!(found[..changed] == new_content[..changed], "{after}");
        assert!(found[changed..] == old[changed..], "{after}");
        pool::sound(&new, &format!("taken over after {after}"));
    }
}

/// A delayed operation arrives, unless another owner takes over first.
#[test]
fn a_delayed_operation_of_an_earlier_owner_never_arrives() {
    for is_taken_over in [false, true] {
        let (pool, old) = pool_with_a_file();
        pool.plan(Effect::Delayed, 0, |operation| operation.kind == Kind::Write);
        let error = put(&old, "f", 0, &content(2, 4000)).unwrap_err();
        assert!(error.to_string().contains("the outcome is unknown"), "{error}");
        let reader = match is_taken_over {
            true => pool.open(),
            false => old,
        };
        let first = if is_taken_over { 1 } else { 2 };
        let found = read(&reader, "f").unwrap();
        assert!(found[..4000] == content(first, 20_000)[..4000], "{is_taken_over}");
        assert!(found[4000..] == content(1, 20_000)[4000..], "{is_taken_over}");
    }
}

/// A change whose reply is lost fails; neither a new opening nor the same one takes it for a state of the file that it
/// knows, and a check finds nothing.
#[test]
fn a_lost_reply_leaves_the_old_size() {
    for closes in [false, true] {
        let (pool, fs) = pool_with_a_file();
        std::thread::sleep(std::time::Duration::from_millis(6));
        pool.plan(Effect::ReplyLost, 0, |operation| operation.kind == Kind::Write);
        put(&fs, "f", 20_000, &content(2, 900)).unwrap_err();
        assert_eq!(read(&fs, "f").unwrap().len(), 20_000);
        fs.sync(SYSTEM).unwrap();
        pool::sound(&fs, "the reply is lost");
        let fs = match closes {
            true => {
                fs.close().unwrap();
                pool.open()
            }
            false => fs,
        };
        // A file that grows does not show it.
        put(&fs, "f", 20_500, &[9; 100]).unwrap();
        let found = read(&fs, "f").unwrap();
        assert!(found[..20_000] == content(1, 20_000) && found[20_000..20_500] == [0; 500]);
        pool::sound(&fs, "longer");
    }
}

/// A server whose changes are not durable at once: what a sync acknowledged is there after it has crashed.
#[test]
fn a_sync_is_enough_where_changes_are_not_durable_at_once() {
    for way in 0..3 {
        let pool = Elsewhere::new(8192, true);
        let fs = pool.open();
        assert_eq!(fs.limits().unsynced, Unsynced::Content);
        put(&fs, "f", 0, &content(1, 20_000)).unwrap();
        put(&fs, "f", 20_000, &content(2, 8000)).unwrap();
        put(&fs, "f", 100, &content(3, 3000)).unwrap();
        let mut want = [content(1, 20_000), content(2, 8000)].concat();
        match way {
            0 => pool::open(&fs, "f", OpenMode::read_write())
                .unwrap()
                .fsync(SYSTEM)
                .unwrap(),
            1 => fs.sync(SYSTEM).unwrap(),
            _ => {}
        }
        if way < 2 {
            want[100..3100].copy_from_slice(&content(3, 3000));
        }
        drop(fs);
        pool.server.crash();
        let fs = pool.open();
        pool::sound(&fs, &format!("way {way}"));
        let found = read(&fs, "f").unwrap();
        match way {
            0 | 1 => assert!(found == want, "way {way}"),
            // The file may be empty, as it was when it got a blob; bytes that it has are those that were written.
            _ => assert!(want.starts_with(&found), "{} bytes", found.len()),
        }
    }
}

/// Each opening gives other ids, whichever blobs are gone, and no other store takes a pool's content for its own.
#[test]
fn ids_and_content_belong_to_one_pool() {
    let ids = [1, 2].map(|epoch| UniqueIds::new(Guard { shard: 3, epoch }));
    let all: std::collections::HashSet<_> = ids.iter().flat_map(|ids| [ids.take(), ids.take()]).collect();
    assert_eq!(all.len(), 4);
    let (pool, fs) = pool_with_a_file();
    fs.close().unwrap();
    let open_local = || {
        let stores = vec![Some(BlobStore::memory(8))];
        ferrite_nvme::assemble(Box::new(pool.meta.clone()), stores, Options::default())
    };
    assert!(matches!(open_local(), Err(FsError::Damaged(_))));
    for epoch in [0, 1, 1 << 24] {
        let opened = pool.try_open(Some(Guard { shard: 0, epoch }));
        assert!(matches!(opened, Err(FsError::Damaged(_))), "{epoch}");
    }
    let meta = shared(MemoryStore::new());
    ferrite_nvme::format(&meta, [7; 16], [9; 16], 1).unwrap();
    let content = MemoryContent::new(&pool.server);
    let opened = ferrite_nvme::assemble_with(Box::new(meta), Box::new(content), Options::default());
    assert!(matches!(opened, Err(FsError::Damaged(_))));
    let fs = pool.open();
    assert!(read(&fs, "f").unwrap() == content_of_f());
    pool::sound(&fs, "its own");
}

fn content_of_f() -> Vec<u8> {
    content(1, 20_000)
}

/// Removed files give their space back, and a full server refuses what does not fit without harm.
#[test]
fn space_is_given_back_and_runs_out() {
    let (pool, fs) = pool_with_a_file();
    let used = pool.server.used_bytes();
    put(&fs, "g", 0, &content(2, 30_000)).unwrap();
    assert_eq!(pool.server.used_bytes(), used + 30_000);
    pool::unlink(&fs, "g").unwrap();
    fs.sync(SYSTEM).unwrap();
    assert_eq!(pool.server.used_bytes(), used);
    let mut at = 0;
    let error = loop {
        match put(&fs, "g", at, &content(3, 32 << 20)) {
            Ok(()) => at += 32 << 20,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, FsError::NoSpace(_)), "{error}");
    assert_eq!(read(&fs, "g").unwrap().len() as u64, at);
    pool::sound(&fs, "full");
    assert!(read(&fs, "f").unwrap() == content_of_f());
}

//! Faults of content that is elsewhere, each at every operation of every call, and two mistakes about fences.
//!
//! In all cases: a call that succeeded is there; one that failed is there or not, and says so if its outcome is
//! unknown; and after the next opening the check finds nothing, a blob without a node included.

mod common;
#[path = "faults/pool.rs"]
mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Shared, shared};
use ferrite_meta::MemoryStore;
use ferrite_nvme::content_store::{Effect, Kind, MemoryContent, MemoryServer};
use ferrite_nvme::{NvmeFs, Options};
use ferrite_testkit::whole::{Call, State, calls, scene};
use ferrite_vfs::{FileSystem, FsError, OpenMode, SYSTEM};
use pool::{content, open, put, read};

const CAPACITY_BYTES: u64 = 128 << 20;
/// So short that most calls concern several chunks.
const CHUNK_BYTES: u64 = 8192;
/// More operations than any call makes.
const OPERATIONS_MAX: u64 = 400;

/// Every way in which an operation fails, or happens again.
const EFFECTS: [Effect; 5] = [
    Effect::RequestLost,
    Effect::ReplyLost,
    Effect::Delayed,
    Effect::Refused,
    Effect::Repeated,
];

/// A pool whose metadata and content outlive the engine.
struct Elsewhere {
    meta: Shared,
    server: Arc<MemoryServer>,
}

impl Elsewhere {
    fn new() -> Elsewhere {
        let meta = shared(MemoryStore::new());
        let server = MemoryServer::new(CHUNK_BYTES, CAPACITY_BYTES, false);
        ferrite_nvme::format_with(&meta, [7; 16], [9; 16], &MemoryContent::new(&server)).unwrap();
        Elsewhere { meta, server }
    }

    /// The next owner of the pool. The one before it may still be there.
    fn open(&self) -> NvmeFs {
        let mut options = Options::default();
        options.small_bytes_max = 2048;
        let content = MemoryContent::new(&self.server);
        ferrite_nvme::assemble_with(Box::new(self.meta.clone()), Box::new(content), options).unwrap()
    }

    /// One operation has this effect, after so many others. Returns a counter of operations.
    fn plan(&self, effect: Effect, after: u64) -> Arc<AtomicU64> {
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        self.server
            .intercept(move |_| match counter.fetch_add(1, Ordering::Relaxed) == after {
                true => effect,
                false => Effect::Done,
            });
        count
    }
}

fn with_scene() -> (Elsewhere, NvmeFs) {
    let pool = Elsewhere::new();
    let fs = pool.open();
    scene(&fs);
    fs.sync(SYSTEM).unwrap();
    (pool, fs)
}

/// A call that succeeded is there. One that failed is there or not, and may have left space reserved: chunks get theirs
/// one by one. If it changes existing bytes, those of each page are old or new.
fn check(call: &Call, now: &State, [before, after]: [&State; 2], done: &Result<(), FsError>, what: &str) {
    if now.is_alike(after) {
        return;
    }
    assert!(done.is_err(), "{what}: it has succeeded, and is not done");
    let differs = now.with_space_of(before).differs(before, Some(after));
    let is_old = now.is_alike(before) || call.in_place && differs.is_none();
    assert!(is_old, "{what}: {done:?}, and has changed something: {differs:?}");
}

/// Makes one call with the nth operation of content going wrong, for n from 0 on, until the call makes fewer.
fn each_operation(call: &Call, effect: Effect) {
    let after = {
        let (_pool, fs) = with_scene();
        call.run(&fs, SYSTEM).unwrap();
        State::of(&fs)
    };
    for nth in 0..OPERATIONS_MAX {
        let what = format!("{}: {effect:?} after {nth}", call.name);
        let (pool, fs) = with_scene();
        let before = State::of(&fs);
        let count = pool.plan(effect, nth);
        let done = call.run(&fs, SYSTEM);
        pool.server.mend();
        let has_happened = count.load(Ordering::Relaxed) > nth;
        check(call, &State::of(&fs), [&before, &after], &done, &what);
        if let Err(error) = &done {
            assert!(has_happened, "{what}: {error}, and nothing has gone wrong");
            let is_unknown = error.to_string().contains("the outcome is unknown");
            assert_eq!(is_unknown, effect != Effect::Refused, "{what}: {error}");
        }
        // As after a crash, or an orderly end.
        if nth % 2 == 0 {
            let _ = fs.close();
        }
        drop(fs);
        let fs = pool.open();
        pool::sound(&fs, &what);
        check(
            call,
            &State::of(&fs),
            [&before, &after],
            &done,
            &format!("{what}, opened again"),
        );
        fs.close().unwrap();
        if !has_happened {
            return;
        }
    }
    panic!("{}: more than {OPERATIONS_MAX} operations", call.name);
}

#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn with_each_operation_of_content_going_wrong() {
    let cases: Vec<(Call, Effect)> = EFFECTS
        .into_iter()
        .flat_map(|effect| calls().into_iter().map(move |call| (call, effect)))
        .collect();
    ferrite_testkit::two_at_a_time(&cases, |(call, effect)| each_operation(call, *effect));
}

/// An owner whose write is still on its way when another takes over, and which then sends more. Neither arrives.
fn takeover_with_a_write_on_its_way() {
    let pool = Elsewhere::new();
    let old = pool.open();
    put(&old, "f", 0, &content(1, 20_000)).unwrap();
    old.sync(SYSTEM).unwrap();
    let mut is_first = true;
    pool.server.intercept(move |operation| {
        let is_delayed = operation.kind == Kind::Write && std::mem::take(&mut is_first);
        if is_delayed { Effect::Delayed } else { Effect::Done }
    });
    // A recovery looks at a file that is growing, as long as it is open: then its record stays.
    let growing = open(&old, "f", OpenMode::read_write()).unwrap();
    let error = growing.write_at(SYSTEM, 20_000, &content(2, 900)).unwrap_err();
    assert!(error.to_string().contains("the outcome is unknown"), "{error}");
    let new = pool.open();
    assert!(
        read(&new, "f").unwrap() == content(1, 20_000),
        "the delayed write arrived"
    );
    let error = growing.write_at(SYSTEM, 9000, &content(3, 3000)).unwrap_err();
    assert!(error.to_string().contains("another server has owned"), "{error}");
    assert!(read(&new, "f").unwrap() == content(1, 20_000), "a later write arrived");
    pool::sound(&new, "taken over");
}

#[test]
#[cfg_attr(feature = "seeded-bugs", ignore = "seeded bugs are the whole process's")]
fn nothing_of_an_earlier_owner_arrives() {
    takeover_with_a_write_on_its_way();
}

#[cfg(feature = "seeded-bugs")]
#[test]
fn mistakes_about_fences_are_found() {
    use ferrite_checks::fault_injection::{Bug, seed};
    takeover_with_a_write_on_its_way();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::of("ferrite-nvme, fences") {
        seed(Some(bug));
        if std::panic::catch_unwind(takeover_with_a_write_on_its_way).is_ok() {
            missed.push(bug);
        }
    }
    seed(None);
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "not found: {missed:?}");
}

//! Every call of more than one step succeeds or fails as a whole: with each request of the data device failing, each
//! commit of the metadata refused or failing, and no, one, two ... units of space free, until it succeeds.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::faults::pool;
use crate::faults::pool::Pool;
use ferrite_blob::device::{Fault, Target};
use ferrite_nvme::NvmeFs;
use ferrite_testkit::whole::{Call, FILLER, State, calls, scene};
use ferrite_vfs::{Ctx, DedupToken, FileKind, FileSystem, FsError, NewNode, OpenMode, ROOT_INO, SYSTEM, SpaceOf};

/// More requests than any call makes.
const REQUESTS_MAX: u64 = 600;

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A request of the data device.
    Device(Fault),
    /// A commit, for lack of space.
    Full,
    /// A commit.
    Metadata,
}

/// A call with its context: each has a token of its own, or none.
struct Caller {
    with_token: bool,
    next: AtomicU64,
}

impl Caller {
    fn run(&self, call: &Call, fs: &NvmeFs) -> Result<(), FsError> {
        let token = self.with_token.then(|| DedupToken {
            slot: 3,
            seq: self.next.fetch_add(1, Ordering::Relaxed),
        });
        let ctx = Ctx {
            token,
            ..SYSTEM.clone()
        };
        call.run(fs, &ctx)
    }
}

fn callers() -> [Caller; 2] {
    [false, true].map(|with_token| Caller {
        with_token,
        next: AtomicU64::new(1),
    })
}

/// A pool with the scene, all of which is stored.
fn with_scene(tears: bool, checksums: bool) -> (Pool, NvmeFs) {
    let pool = Pool::with(1, 16, tears, checksums);
    let fs = pool.open().unwrap();
    scene(&fs);
    fs.mknod(SYSTEM, ROOT_INO, PROBE, &FILE).unwrap();
    fs.sync(SYSTEM).unwrap();
    (pool, fs)
}

/// The state after the call.
fn outcome(call: &Call, caller: &Caller, tears: bool, checksums: bool) -> State {
    let (_pool, fs) = with_scene(tears, checksums);
    caller
        .run(call, &fs)
        .unwrap_or_else(|error| panic!("{}: {error}", call.name));
    State::of(&fs)
}

impl Kind {
    fn plan(self, pool: &Pool, after: u64) {
        match self {
            Kind::Device(fault) => {
                let target = Target {
                    reads: true,
                    writes: true,
                    range: 0..u64::MAX,
                    after,
                    count: 1,
                };
                pool.devices[0].plan(fault, target);
            }
            Kind::Full => pool.meta.refuse_one(after),
            Kind::Metadata => pool.meta.fail_one(after),
        }
    }

    /// Whether it has gone wrong. From now on everything works.
    fn has_happened(self, pool: &Pool) -> bool {
        let has = match self {
            Kind::Device(_) => pool.devices[0].is_spent(),
            Kind::Full | Kind::Metadata => pool.meta.is_spent(),
        };
        pool.devices[0].mend();
        pool.meta.mend();
        has
    }
}

/// Makes one call with the nth of these failing, for n from 0 on, until nothing is left to fail.
fn each_request(call: &Call, caller: &Caller, kind: Kind, tears: bool, checksums: bool) {
    let after = outcome(call, caller, tears, checksums);
    // A page that a device refuses to overwrite in place has unknown content. With a token content comes before its
    // node, and a metadata store that fails then stops all changes.
    let may_mix = match kind {
        Kind::Device(_) => call.in_place,
        Kind::Full => false,
        Kind::Metadata => caller.with_token,
    };
    let mixed = may_mix.then_some(&after);
    let (mut pool, mut fs) = with_scene(tears, checksums);
    for request in 0..REQUESTS_MAX {
        let token = if caller.with_token { ", with a token" } else { "" };
        let what = format!("{}{token}: {kind:?} after {request}, {tears}, {checksums}", call.name);
        let before = State::of(&fs);
        kind.plan(&pool, request);
        let done = caller.run(call, &fs);
        let has_happened = kind.has_happened(&pool);
        if !has_happened {
            done.unwrap_or_else(|error| panic!("{what}: {error}, and nothing has gone wrong"));
            assert!(
                State::of(&fs).is_alike(&after),
                "{what}: another state than without faults"
            );
            fs.close().unwrap();
            return;
        }
        if done.is_ok() {
            // The failed part was optional, or could be done later.
            assert!(
                State::of(&fs).is_alike(&after),
                "{what}: it has succeeded, and is not done"
            );
            drop(fs);
            (pool, fs) = with_scene(tears, checksums);
            continue;
        }
        match kind {
            Kind::Full => assert!(
                matches!(done, Err(FsError::NoSpace(SpaceOf::Blocks))),
                "{what}: {done:?}"
            ),
            _ => assert!(matches!(done, Err(FsError::Io(_))), "{what}: {done:?}"),
        }
        if let Some(how) = State::of(&fs).differs(&before, mixed) {
            panic!("{what}: a call that failed has changed something: {how}");
        }
        // A store that has failed to write its metadata takes no more changes until it is opened again.
        let has_stopped = match kind {
            Kind::Device(_) => !takes_changes(&fs, request),
            Kind::Full => false,
            Kind::Metadata => true,
        };
        if has_stopped {
            is_whole_when_opened_again(&pool, &fs, [&before, &after], mixed, &what);
            drop(fs);
            (pool, fs) = with_scene(tears, checksums);
        } else {
            pool::sound(&fs, &what);
            if mixed.is_some() {
                drop(fs);
                (pool, fs) = with_scene(tears, checksums);
            }
        }
    }
    panic!("{}: more than {REQUESTS_MAX} requests", call.name);
}

/// Reopens a pool that has stopped: the call has been made, or it has not.
fn is_whole_when_opened_again(
    pool: &Pool,
    stopped: &NvmeFs,
    [before, after]: [&State; 2],
    mixed: Option<&State>,
    what: &str,
) {
    let _ = stopped.close();
    let fs = pool.open().unwrap();
    pool::sound(&fs, what);
    let now = State::of(&fs);
    let is_whole = now.differs(before, mixed).is_none() || now.is_alike(after);
    assert!(is_whole, "{what}: opened again: {:?}", now.differs(before, mixed));
}

const FILE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

/// A file that is not part of the scene.
const PROBE: &[u8] = b"filler-probe";

/// Whether the data store takes changes: a file with a blob can be extended.
fn takes_changes(fs: &NvmeFs, request: u64) -> bool {
    let ino = fs.lookup(SYSTEM, ROOT_INO, PROBE).unwrap().ino;
    let file = fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    file.write_at(SYSTEM, request * 5000, &[1; 5000]).is_ok()
}

#[test]
fn with_each_request_of_the_data_device_failing() {
    ferrite_testkit::two_at_a_time(&calls(), |call| {
        for caller in &callers() {
            each_request(call, caller, Kind::Device(Fault::Error), false, false);
            each_request(call, caller, Kind::Device(Fault::Error), true, true);
        }
    });
}

#[test]
fn with_each_commit_refused_or_failing() {
    ferrite_testkit::two_at_a_time(&calls(), |call| {
        for caller in &callers() {
            each_request(call, caller, Kind::Full, false, false);
            each_request(call, caller, Kind::Metadata, false, false);
        }
    });
}

/// Fills the data store with files of one unit each; returns how many.
fn fill(fs: &NvmeFs, dir: u64) -> u64 {
    for number in 0.. {
        let ino = fs
            .mknod(SYSTEM, dir, format!("{number}").as_bytes(), &FILE)
            .unwrap()
            .ino;
        let file = fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        if file.write_at(SYSTEM, 0, &[7; 3000]).is_err() {
            return number;
        }
    }
    0
}

/// Makes one call with no, one, two ... units free.
fn each_unit(call: &Call, caller: &Caller, tears: bool, checksums: bool) {
    let after = outcome(call, caller, tears, checksums);
    let (_pool, fs) = with_scene(tears, checksums);
    let dir = fs.mkdir(SYSTEM, ROOT_INO, FILLER.as_bytes(), 0o755).unwrap().ino;
    let fillers = fill(&fs, dir);
    for free in 0..=fillers {
        fs.sync(SYSTEM).unwrap();
        let token = if caller.with_token { ", with a token" } else { "" };
        let what = format!("{}{token}: {free} units free, {tears}, {checksums}", call.name);
        let before = State::of(&fs);
        match caller.run(call, &fs) {
            Ok(()) => {
                fs.unlink(SYSTEM, dir, format!("{fillers}").as_bytes()).unwrap();
                for number in free..fillers {
                    fs.unlink(SYSTEM, dir, format!("{number}").as_bytes()).unwrap();
                }
                fs.rmdir(SYSTEM, ROOT_INO, FILLER.as_bytes()).unwrap();
                assert!(State::of(&fs).is_alike(&after), "{what}: another state than with space");
                pool::sound(&fs, &what);
                fs.close().unwrap();
                return;
            }
            Err(FsError::NoSpace(SpaceOf::Blocks)) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        if let Some(how) = State::of(&fs).differs(&before, None) {
            panic!("{what}: a call that failed has changed something: {how}");
        }
        pool::sound(&fs, &what);
        fs.unlink(SYSTEM, dir, format!("{free}").as_bytes()).unwrap();
    }
    panic!("{}: it fails with all units free", call.name);
}

#[test]
fn with_every_number_of_units_free() {
    ferrite_testkit::two_at_a_time(&calls(), |call| {
        for caller in &callers() {
            each_unit(call, caller, false, false);
            each_unit(call, caller, false, true);
        }
    });
}

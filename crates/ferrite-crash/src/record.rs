//! A workload run on a recorded engine, and the reference engine's result.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ferrite_fs::{AtimePolicy, Durability, Engine, MkfsOptions, MountOptions, Superblock, mkfs, number_thread};
use ferrite_pm::{Image, Log, Recorder, Region};
use ferrite_testkit::apply::{CanonAttr, ErrorKind, Outcome, Runner, Stamp};
use ferrite_testkit::ops::{Op, Target};
use ferrite_testkit::rng::pattern;
use ferrite_testkit::snapshot::{Node, Snapshot};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FallocateMode, FileKind, FileSystem, NewNode, SYSTEM};
use parking_lot::Mutex;

use crate::Variant;
use crate::session::{Sent, Session};
use crate::source::{Workload, filler};

/// Size of the pools: the smallest possible.
const POOL_BYTES: u64 = 4 << 20;
/// The smallest pool that keeps outcomes.
const OUTCOMES_POOL_BYTES: u64 = 8 << 20;
/// More blocks than the nodes of a file that fills a pool take.
const NODES_MAX: u64 = 64;
const ENOSPC: i32 = 28;
const PAGE: u64 = 4096;

/// A tree, without the attributes that a crash or a read may change: access times, and the root's modification time.
pub type Tree = std::collections::BTreeMap<Vec<u8>, Node>;

/// A recorded workload.
pub struct Recorded {
    /// All stores, write-backs and fences; marks are `thread << 32 | operations returned`.
    pub log: Log,
    /// For each thread: the tree before its first operation and after each.
    pub states: Vec<Vec<Tree>>,
    /// For each thread, by the number of its operations that have returned: how many of them are certainly durable.
    pub durable: Vec<Vec<usize>>,
    /// For each thread and operation: its data, if that is exactly one whole page.
    pub pages: Vec<Vec<Option<Vec<u8>>>>,
    /// For each thread and operation: whether the runner follows it with a call that sets attributes that the contract
    /// leaves open, so that a crash may come between the two.
    pub settled: Vec<Vec<bool>>,
    /// For each thread and operation: the change sent with a token.
    pub sent: Vec<Vec<Option<Sent>>>,
    /// The mount options.
    pub mount: MountOptions,
    /// Records by which the mapping moved entries.
    pub moves: u64,
}

/// `tree` without the attributes that the runner's follow-up call sets.
pub fn unsettled(mut tree: Tree) -> Tree {
    for node in tree.values_mut() {
        node.attr.mode &= 0o777;
        node.attr.mtime = Stamp::Clock;
    }
    tree
}

fn options(variant: Variant, workload: &Workload) -> MkfsOptions {
    MkfsOptions::default()
        .mapping(variant.mapping)
        .data_checksum(variant.data_checksum)
        .log_unit_bytes(variant.log_unit_bytes)
        .inodes(workload.inodes)
        .pages_per_block(workload.pages_per_block)
        .rings(2)
        .seed(42)
}

/// Mount options of workloads: no background work, so that a recording is always the same.
pub fn mount_options(variant: Variant, workload: &Workload) -> MountOptions {
    let durability = match variant.deferred {
        true => Durability::OnSync,
        false => Durability::Strict,
    };
    quiet_mount()
        .merge_read_entries(workload.merge_read_entries)
        .durability(durability)
}

/// With deferred write-back, operations between two syncs that the recording itself makes.
const SYNC_EVERY: usize = 7;

/// Whether everything is made durable after this operation.
fn is_synced(variant: Variant, index: usize) -> bool {
    variant.deferred && index % SYNC_EVERY == SYNC_EVERY - 1
}

/// See [`Recorded::durable`].
fn durable(variant: Variant, ops: &[Op]) -> Vec<usize> {
    let mut last = 0;
    let mut all = vec![0];
    for (index, op) in ops.iter().enumerate() {
        if !variant.deferred || is_synced(variant, index) || matches!(op, Op::Sync) {
            last = index + 1;
        }
        all.push(last);
    }
    all
}

/// A mount without background work.
pub fn quiet_mount() -> MountOptions {
    MountOptions::default().cleaner(false).atime(AtimePolicy::Never)
}

/// Reads a tree.
///
/// # Errors
/// An error of the engine, as text.
pub fn capture(fs: &dyn FileSystem) -> Result<Tree, String> {
    let mut tree = Snapshot::capture(fs)
        .map_err(|error| format!("reading the tree: {error}"))?
        .0;
    for node in tree.values_mut() {
        node.attr.atime = None;
    }
    if let Some(root) = tree.get_mut(&b"/"[..]) {
        root.attr = CanonAttr {
            mtime: Stamp::Clock,
            ..root.attr.clone()
        };
    }
    Ok(tree)
}

/// The part of `tree` that a thread works on.
pub fn share(tree: &Tree, thread: usize, threads: usize) -> Tree {
    if threads == 1 {
        return tree.clone();
    }
    let own = [b'/', b'a' + thread as u8];
    let belongs = |path: &&Vec<u8>| path.starts_with(&own) && (path.len() == 2 || path[2] == b'/');
    tree.iter()
        .filter(|(path, _)| belongs(path))
        .map(|(path, node)| (path.clone(), node.clone()))
        .collect()
}

fn image_of(region: &Region) -> Vec<u8> {
    let mut image = vec![0; region.len() as usize];
    region.read(0, &mut image);
    image
}

/// A pool after a workload's setup, and the operations of the setup. Most workloads share it.
struct Ready {
    image: Image,
    superblock: Superblock,
    done: Vec<Op>,
}

fn ready(variant: Variant, workload: &Workload) -> Result<Arc<Ready>, String> {
    static MADE: OnceLock<Mutex<HashMap<String, Arc<Ready>>>> = OnceLock::new();
    let bytes = match workload.tokens.is_empty() {
        true => POOL_BYTES,
        false => OUTCOMES_POOL_BYTES,
    };
    let key = format!(
        "{variant:?} {bytes} {} {} {:?} {:?}",
        workload.inodes, workload.pages_per_block, workload.blocks_left, workload.setup
    );
    let made = MADE.get_or_init(Mutex::default);
    if let Some(ready) = made.lock().get(&key) {
        return Ok(Arc::clone(ready));
    }
    let region = Region::anonymous(bytes).map_err(|error| error.to_string())?;
    mkfs(&region, &options(variant, workload)).map_err(|error| error.to_string())?;
    let superblock = Superblock::find(&region).map_err(|error| error.to_string())?;
    let initial = image_of(&region);
    let recorder = Recorder::new(initial.clone());
    let mut region = Region::from_image(&initial).map_err(|error| error.to_string())?;
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &mount_options(variant, workload)).map_err(|error| error.to_string())?;
    let mut done = workload.setup.clone();
    {
        let mut runner = Runner::new(&engine);
        runner.settle_root();
        for op in &done {
            let outcome = runner.apply(op).map_err(|violation| violation.0)?;
            if let Outcome::Error(error) = outcome {
                return Err(format!("setup: {op:?}: {error:?}"));
            }
        }
        if let Some(left) = workload.blocks_left {
            let free = engine
                .statfs(SYSTEM)
                .map_err(|error| error.to_string())?
                .blocks_available;
            let make = Op::Mknod {
                path: filler(),
                node: NewNode {
                    kind: FileKind::File,
                    mode: 0o600,
                    rdev: 0,
                },
                user: 0,
            };
            runner.apply(&make).map_err(|violation| violation.0)?;
            done.push(make);
            // For a large file, the nodes of a tree take blocks too.
            let fits = (0..NODES_MAX).find_map(|nodes| {
                let fill = Op::Fallocate {
                    on: Target::At(filler()),
                    mode: FallocateMode::Allocate { keep_size: false },
                    offset: 0,
                    len: free.saturating_sub(left + nodes) * 4096,
                };
                match runner.apply(&fill) {
                    Ok(outcome) if refused(&outcome) => None,
                    Ok(Outcome::Error(error)) => Some(Err(format!("setup: {fill:?}: {error:?}"))),
                    Ok(_) => Some(Ok(fill)),
                    Err(violation) => Some(Err(violation.0)),
                }
            });
            done.push(fits.ok_or("setup: the pool cannot be filled")??);
        }
    }
    engine.unmount().map_err(|error| error.to_string())?;
    let ready = Arc::new(Ready {
        image: recorder.log().final_image().into(),
        superblock,
        done,
    });
    made.lock().insert(key, Arc::clone(&ready));
    Ok(ready)
}

/// Whether the engine ran out of space for an operation, so that the reference must skip it.
fn refused(outcome: &Outcome) -> bool {
    *outcome == Outcome::Error(ErrorKind(ENOSPC))
}

/// Ids of the threads that carry out the recorded operations: each has a separate ring, and the same one each time.
pub(crate) const HERE: u64 = 0;
pub(crate) const ELSEWHERE: u64 = 1;

/// Runs `work` on another thread, in the ring of number `thread`.
pub(crate) fn elsewhere<T: Send>(thread: u64, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    let numbered = || {
        number_thread(thread);
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(numbered).join());
    done.map_err(|_| "the engine panicked in another thread".into())
}

/// The results of a thread's operations.
#[derive(Default)]
struct Ran {
    /// Whether the reference must skip it.
    skipped: Vec<bool>,
    sent: Vec<Option<Sent>>,
}

/// Runs a workload.
///
/// # Errors
/// As text: the engine made a mistake without any crash.
pub fn record(variant: Variant, workload: &Workload) -> Result<Recorded, String> {
    number_thread(HERE);
    let ready = ready(variant, workload)?;
    let mount = mount_options(variant, workload);
    let recorder = Recorder::new(ready.image.clone());
    let mut region = Region::of_image(&ready.image).map_err(|error| error.to_string())?;
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &mount).map_err(|error| format!("the pool does not mount: {error}"))?;
    let run = |thread: usize, ops: &[Op]| -> Result<Ran, String> {
        let session = Session::new(&engine);
        let mut runner = Runner::new(&session);
        let mut ran = Ran::default();
        for (index, op) in ops.iter().enumerate() {
            session.arm(workload.token(thread, index));
            let applied = match workload.turns.is_elsewhere(index) {
                true => elsewhere(ELSEWHERE, || runner.apply(op))?,
                false => runner.apply(op),
            };
            let outcome = applied.map_err(|violation| format!("{op:?}: {}", violation.0))?;
            if is_synced(variant, index) {
                engine.sync(SYSTEM).map_err(|error| error.to_string())?;
            }
            ran.skipped.push(refused(&outcome));
            ran.sent.push(session.disarm());
            recorder.mark((thread as u64) << 32 | (index as u64 + 1));
        }
        Ok(ran)
    };
    let ran: Vec<Ran> = if let [ops] = &workload.threads[..] {
        vec![run(0, ops)?]
    } else {
        std::thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> = workload
                .threads
                .iter()
                .enumerate()
                .map(|(thread, ops)| {
                    scope.spawn(move || {
                        number_thread(thread as u64);
                        run(thread, ops)
                    })
                })
                .collect();
            let joined = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => Err("the engine panicked in a thread".into()),
            });
            joined.collect::<Result<_, _>>()
        })?
    };
    let moves = engine.map_moves();
    engine.unmount().map_err(|error| error.to_string())?;
    let threads = workload.threads.len();
    let expected = |(thread, ops): (usize, &Vec<Op>)| -> Result<Vec<Tree>, String> {
        let reference = MemFs::new();
        let mut runner = Runner::new(&reference);
        runner.settle_root();
        for op in &ready.done {
            runner.apply(op).map_err(|violation| violation.0)?;
        }
        let mut states = vec![share(&capture(&reference)?, thread, threads)];
        for (op, &skipped) in ops.iter().zip(&ran[thread].skipped) {
            if skipped {
                states.push(states[states.len() - 1].clone());
                continue;
            }
            runner
                .apply(op)
                .map_err(|violation| format!("reference: {op:?}: {}", violation.0))?;
            states.push(share(&capture(&reference)?, thread, threads));
        }
        Ok(states)
    };
    let page = |op: &Op| match *op {
        Op::Write { offset, len, fill, .. } if offset % PAGE == 0 && len as u64 == PAGE => Some(pattern(fill, len)),
        _ => None,
    };
    let settled = |ops: &Vec<Op>| ops.iter().map(|op| matches!(op, Op::Fallocate { .. })).collect();
    let states = workload.threads.iter().enumerate().map(expected);
    let log = recorder.log();
    Ok(Recorded {
        log: match variant.omission {
            None => log,
            Some(omission) => omission.leave_out(&log, &ready.superblock),
        },
        states: states.collect::<Result<_, _>>()?,
        durable: workload.threads.iter().map(|ops| durable(variant, ops)).collect(),
        pages: workload
            .threads
            .iter()
            .map(|ops| ops.iter().map(page).collect())
            .collect(),
        settled: workload.threads.iter().map(settled).collect(),
        sent: ran.into_iter().map(|ran| ran.sent).collect(),
        mount,
        moves,
    })
}

//! A workload run on a recorded engine, and the result that the reference engine gives.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use ferrite_fs::{AtimePolicy, Engine, MkfsOptions, MountOptions, mkfs, number_thread};
use ferrite_pm::{Log, Recorder, Region};
use ferrite_testkit::apply::{CanonAttr, ErrorKind, Outcome, Runner, Stamp};
use ferrite_testkit::ops::{Op, Target};
use ferrite_testkit::rng::pattern;
use ferrite_testkit::snapshot::{Node, Snapshot};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FallocateMode, FileKind, FileSystem, NewNode, SYSTEM};
use parking_lot::Mutex;

use crate::Variant;
use crate::source::{Name, Workload, filler};

/// Size of the pools: the smallest there are.
const POOL_BYTES: u64 = 4 << 20;
const ENOSPC: i32 = 28;
const PAGE: u64 = 4096;

/// A tree, without what a crash or a read of it may change: access times, and the root's modification time.
pub type Tree = std::collections::BTreeMap<Vec<u8>, Node>;

/// A recorded workload.
pub struct Recorded {
    /// All stores, write-backs and fences; marks are `thread << 32 | operations returned`.
    pub log: Log,
    /// For each thread: the tree before its first operation and after each.
    pub states: Vec<Vec<Tree>>,
    /// For each thread and operation: what it writes, if that is exactly one whole page.
    pub pages: Vec<Vec<Option<Vec<u8>>>>,
    /// For each thread and operation: whether the runner follows it with a call that sets what the contract leaves
    /// open, so that a crash may come between the two.
    pub settled: Vec<Vec<bool>>,
    /// How it was mounted.
    pub mount: MountOptions,
    /// Records by which the mapping moved entries.
    pub moves: u64,
}

/// `tree` without what the runner's follow-up call sets.
pub fn unsettled(mut tree: Tree) -> Tree {
    for node in tree.values_mut() {
        node.attr.mode &= 0o777;
        node.attr.mtime = Stamp::Clock;
    }
    tree
}

impl Name {
    /// The workload, with what shrinking left of it.
    pub fn workload(&self) -> Workload {
        let mut workload = self.source.workload();
        if let Some(kept) = &self.kept {
            workload.turns.keep(kept);
            let mut index = 0;
            for ops in &mut workload.threads {
                ops.retain(|_| {
                    index += 1;
                    kept.contains(&(index - 1))
                });
            }
        }
        workload
    }
}

fn options(variant: Variant, workload: &Workload) -> MkfsOptions {
    MkfsOptions::default()
        .mapping(variant.mapping)
        .data_checksum(variant.data_checksum)
        .inodes(workload.inodes)
        .rings(2)
        .seed(42)
}

/// Mount options of workloads: no background work, so that a recording is always the same.
pub fn mount_options(workload: &Workload) -> MountOptions {
    quiet_mount().fold_read_entries(workload.fold_read_entries)
}

/// A mount without background work.
pub fn quiet_mount() -> MountOptions {
    MountOptions::default().cleaner(false).atime(AtimePolicy::Never)
}

/// Reads a tree.
///
/// # Errors
/// The engine's, as text.
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

/// A pool after a workload's setup, and what was done to get there. Most workloads share it.
struct Ready {
    image: Vec<u8>,
    done: Vec<Op>,
}

fn ready(variant: Variant, workload: &Workload) -> Result<Arc<Ready>, String> {
    static MADE: OnceLock<Mutex<HashMap<String, Arc<Ready>>>> = OnceLock::new();
    let key = format!(
        "{variant:?} {} {:?} {:?}",
        workload.inodes, workload.blocks_left, workload.setup
    );
    let made = MADE.get_or_init(Mutex::default);
    if let Some(ready) = made.lock().get(&key) {
        return Ok(Arc::clone(ready));
    }
    let region = Region::anonymous(POOL_BYTES).map_err(|error| error.to_string())?;
    mkfs(&region, &options(variant, workload)).map_err(|error| error.to_string())?;
    let initial = image_of(&region);
    let recorder = Recorder::new(initial.clone());
    let mut region = Region::from_image(&initial).map_err(|error| error.to_string())?;
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &mount_options(workload)).map_err(|error| error.to_string())?;
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
            let fill = [
                Op::Mknod {
                    path: filler(),
                    node: NewNode {
                        kind: FileKind::File,
                        mode: 0o600,
                        rdev: 0,
                    },
                    user: 0,
                },
                Op::Fallocate {
                    on: Target::At(filler()),
                    mode: FallocateMode::Allocate { keep_size: false },
                    offset: 0,
                    len: free.saturating_sub(left) * 4096,
                },
            ];
            for op in fill {
                match runner.apply(&op).map_err(|violation| violation.0)? {
                    Outcome::Error(error) => return Err(format!("setup: {op:?}: {error:?}")),
                    _ => done.push(op),
                }
            }
        }
    }
    engine.unmount().map_err(|error| error.to_string())?;
    let ready = Arc::new(Ready {
        image: recorder.log().final_image(),
        done,
    });
    made.lock().insert(key, Arc::clone(&ready));
    Ok(ready)
}

/// Whether the engine ran out of space for an operation, so that the reference must skip it.
fn refused(outcome: &Outcome) -> bool {
    *outcome == Outcome::Error(ErrorKind(ENOSPC))
}

/// The numbers of the threads that do what is recorded: each has a separate ring, and the same one each time.
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

/// Runs a workload.
///
/// # Errors
/// As text: the engine did something wrong without any crash.
pub fn record(variant: Variant, workload: &Workload) -> Result<Recorded, String> {
    number_thread(HERE);
    let ready = ready(variant, workload)?;
    let mount = mount_options(workload);
    let recorder = Recorder::new(ready.image.clone());
    let mut region = Region::from_image(&ready.image).map_err(|error| error.to_string())?;
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &mount).map_err(|error| format!("the pool does not mount: {error}"))?;
    let run = |thread: usize, ops: &[Op]| -> Result<Vec<bool>, String> {
        let mut runner = Runner::new(&engine);
        let mut skipped = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let applied = match workload.turns.is_elsewhere(index) {
                true => elsewhere(ELSEWHERE, || runner.apply(op))?,
                false => runner.apply(op),
            };
            let outcome = applied.map_err(|violation| format!("{op:?}: {}", violation.0))?;
            skipped.push(refused(&outcome));
            recorder.mark((thread as u64) << 32 | (index as u64 + 1));
        }
        Ok(skipped)
    };
    let skipped: Vec<Vec<bool>> = if let [ops] = &workload.threads[..] {
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
        for (op, &skipped) in ops.iter().zip(&skipped[thread]) {
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
    Ok(Recorded {
        log: recorder.log(),
        pages: workload
            .threads
            .iter()
            .map(|ops| ops.iter().map(page).collect())
            .collect(),
        settled: workload.threads.iter().map(settled).collect(),
        states: workload
            .threads
            .iter()
            .enumerate()
            .map(expected)
            .collect::<Result<_, _>>()?,
        mount,
        moves,
    })
}

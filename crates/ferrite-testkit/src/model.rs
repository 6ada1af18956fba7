//! The comparison of an engine with the in-memory reference, step by step; failing sequences are shrunk.
//!
//! Invariants: the engine runs each operation first. If it returns `ENOSPC` (which the reference never does), the
//! reference skips the operation, because an operation that failed has changed nothing; so it does with clones of trees
//! on an engine without them. Everything else must be equal,
//! except for the pairs of errors in `either_error` and the holes in `seek_agrees`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use ferrite_vfs::FileSystem;
use ferrite_vfs::memfs::MemFs;

use crate::apply::{ErrorKind, Outcome, Runner};
use crate::generate::{OpGenerator, Profile};
use crate::loops::LoopEngine;
use crate::ops::{Op, SNAPSHOTS};
use crate::snapshot::Snapshot;
use crate::{TestEngine, seed_from_env};

/// Whole trees are compared after this many operations.
const TREE_EVERY: usize = 100;
/// Longest time spent on shrinking one failure.
const SHRINK_LIMIT: Duration = Duration::from_secs(30);

/// The point where an engine and the reference diverged.
#[derive(Debug, Clone)]
pub struct Divergence {
    /// Index of the operation.
    pub step: usize,
    /// The difference.
    pub what: String,
}

/// The reference as an engine: runs the suites on itself.
pub struct ReferenceEngine(MemFs);

impl ReferenceEngine {
    /// An empty one.
    pub fn new() -> Self {
        ReferenceEngine(MemFs::new())
    }
}

impl Default for ReferenceEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl TestEngine for ReferenceEngine {
    fn fs(&self) -> &dyn FileSystem {
        &self.0
    }

    fn remount(&mut self) {}

    fn check(&self) {}
}

impl LoopEngine for ReferenceEngine {
    fn crash(&mut self) {}
}

/// Runs `steps` operations of (`profile`, `seed`) on a fresh engine and on the reference, with a remount in the
/// middle and the engine's own check at the end. `FERRITE_SEED` overrides the seed.
///
/// # Panics
/// On the first difference, with the seed and the shortest sequence found that still fails.
pub fn check_against_reference(
    make_engine: impl Fn() -> Box<dyn TestEngine>,
    profile: Profile,
    seed: u64,
    steps: usize,
) {
    let seed = seed_from_env().unwrap_or(seed);
    let ops = OpGenerator::new(profile, seed).take(steps);
    if let Err(first) = run(&make_engine, &ops) {
        let (shrunk, last) = shrink(&make_engine, &ops, first.clone());
        let listing: String = shrunk
            .iter()
            .enumerate()
            .map(|(index, op)| format!("  {index:3} {op:?}\n"))
            .collect();
        panic!(
            "engine and reference differ ({profile:?}, {steps} steps; replay with FERRITE_SEED={seed})\n\
             at step {}: {}\nshrunk to {} operations (a remount follows the middle one):\n{listing}which fail at step \
             {}: {}",
            first.step,
            first.what,
            shrunk.len(),
            last.step,
            last.what,
        );
    }
}

/// Runs a given sequence, as [`check_against_reference`] does with a generated one.
///
/// # Errors
/// The first difference, or the first panic of the engine.
pub fn run(make_engine: &impl Fn() -> Box<dyn TestEngine>, ops: &[Op]) -> Result<(), Divergence> {
    let mut step = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| run_steps(make_engine, ops, &mut step)));
    let what = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no text");
            format!("the engine panicked: {text}")
        }
    };
    Err(Divergence { step, what })
}

fn run_steps(make_engine: &impl Fn() -> Box<dyn TestEngine>, ops: &[Op], step: &mut usize) -> Result<(), String> {
    let mut engine = make_engine();
    let reference = ReferenceEngine::new();
    Runner::new(engine.fs()).settle_root();
    Runner::new(reference.fs()).settle_root();
    // The remount also comes in the middle of a shrunk sequence, so it need not be an operation.
    let middle = ops.len() / 2;
    for (start, part) in [(0, &ops[..middle]), (middle, &ops[middle..])] {
        {
            let mut subject = Runner::new(engine.fs());
            let mut oracle = Runner::new(reference.fs());
            for (index, op) in part.iter().enumerate() {
                *step = start + index;
                compare_step(&mut subject, &mut oracle, op)?;
                if (index + 1) % TREE_EVERY == 0 {
                    compare_trees(engine.fs(), reference.fs())?;
                }
            }
        }
        compare_trees(engine.fs(), reference.fs())?;
        engine.remount();
        compare_trees(engine.fs(), reference.fs()).map_err(|what| format!("after a remount: {what}"))?;
    }
    engine.check();
    Ok(())
}

fn compare_step(subject: &mut Runner<'_>, oracle: &mut Runner<'_>, op: &Op) -> Result<(), String> {
    let outcome = subject
        .apply(op)
        .map_err(|violation| format!("{op:?}: {}", violation.0))?;
    if is_skipped(op, &outcome) {
        oracle.skip(op);
        return Ok(());
    }
    let expected = oracle
        .apply(op)
        .map_err(|violation| format!("REFERENCE: {op:?}: {}", violation.0))?;
    if outcome == expected || either_error(op, &outcome, &expected) || seek_agrees(oracle, op, &outcome) {
        return Ok(());
    }
    Err(format!(
        "{op:?}: engine {}, reference {}",
        brief(&outcome),
        brief(&expected)
    ))
}

const EPERM: i32 = 1;
const ENXIO: i32 = 6;
const EBADF: i32 = 9;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

/// Whether the reference skips an operation with which the engine has met this: it lacks space, or clones no trees.
pub fn is_skipped(op: &Op, outcome: &Outcome) -> bool {
    let clones = match op {
        Op::CloneTree { .. } => true,
        Op::Mkdir { path, .. } => path.0.ends_with(&[SNAPSHOTS]),
        _ => false,
    };
    *outcome == Outcome::Error(ErrorKind(ENOSPC)) || clones && *outcome == Outcome::Error(ErrorKind(EOPNOTSUPP))
}

/// If an operation has two reasons to fail, POSIX leaves open which error is returned.
fn either_error(op: &Op, a: &Outcome, b: &Outcome) -> bool {
    let (Outcome::Error(a), Outcome::Error(b)) = (a, b) else {
        return false;
    };
    let one_is = |errno: i32| a.0 == errno || b.0 == errno;
    match op {
        // Below itself, and onto a name that is taken, of the wrong kind or not empty.
        Op::Rename { .. } => one_is(EINVAL) || one_is(EEXIST),
        // A directory, onto a name that is taken.
        Op::Link { .. } | Op::LinkOpen { .. } => one_is(EPERM),
        // Length 0, on a handle that may not write.
        Op::Fallocate { .. } => one_is(EINVAL) && one_is(EBADF),
        // On a handle that may not write.
        Op::Clone { .. } => one_is(EBADF),
        // A size for an inode that has none, together with other faults.
        Op::Setattr { .. } => one_is(EINVAL),
        _ => false,
    }
}

/// `SEEK_DATA` and `SEEK_HOLE` may take a hole for data (inline files, parts of pages, reserved ranges), but never data
/// for a hole. The POSIX suite states the offsets that they must find.
fn seek_agrees(oracle: &Runner<'_>, op: &Op, outcome: &Outcome) -> bool {
    match (op, outcome) {
        (Op::SeekData { on, offset }, Outcome::Offset(found)) => {
            let Some((size, nonzero)) = oracle.first_nonzero(on, *offset) else {
                return false;
            };
            found >= offset && *found < size && nonzero.is_none_or(|first| *found <= first)
        }
        (Op::SeekData { on, offset }, Outcome::Error(ErrorKind(ENXIO))) => {
            matches!(oracle.first_nonzero(on, *offset), Some((_, None)))
        }
        (Op::SeekHole { on, offset }, Outcome::Offset(found)) => {
            let Some((size, _)) = oracle.first_nonzero(on, *offset) else {
                return false;
            };
            *offset < size && found >= offset && (*found == size || oracle.byte_at(on, *found) == Some(0))
        }
        _ => false,
    }
}

fn compare_trees(subject: &dyn FileSystem, reference: &dyn FileSystem) -> Result<(), String> {
    let ours = Snapshot::capture(subject).map_err(|error| format!("walking the engine's tree: {error}"))?;
    let theirs = Snapshot::capture(reference).map_err(|error| format!("walking the reference's tree: {error}"))?;
    ours.difference(&theirs, ["engine", "reference"]).map_or(Ok(()), Err)
}

/// A short form of an outcome: data is shown by its length and first bytes.
fn brief(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Bytes(bytes) => {
            let nonzero = bytes.iter().position(|&byte| byte != 0);
            format!(
                "{} bytes (first not zero: {nonzero:?}, start {:02x?})",
                bytes.len(),
                &bytes[..bytes.len().min(16)]
            )
        }
        other => format!("{other:?}"),
    }
}

/// Drops ever smaller parts of a failing sequence as long as it still fails (delta debugging).
fn shrink(make_engine: &impl Fn() -> Box<dyn TestEngine>, ops: &[Op], first: Divergence) -> (Vec<Op>, Divergence) {
    let started = Instant::now();
    // Steps after the failing one usually play no part; but dropping them moves the remount, so verify that.
    let cut = &ops[..(first.step + 1).min(ops.len())];
    let (mut best, mut failure) = match run(make_engine, cut) {
        Err(failure) => (cut.to_vec(), failure),
        Ok(()) => (ops.to_vec(), first),
    };
    let mut chunk = best.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        let mut dropped = false;
        while at < best.len() && started.elapsed() < SHRINK_LIMIT {
            let mut candidate = best.clone();
            candidate.drain(at..(at + chunk).min(best.len()));
            match run(make_engine, &candidate) {
                Err(next) => {
                    best = candidate;
                    failure = next;
                    dropped = true;
                }
                Ok(()) => at += chunk,
            }
        }
        if started.elapsed() >= SHRINK_LIMIT {
            break;
        }
        chunk = if dropped && chunk == 1 { 1 } else { chunk / 2 };
    }
    (best, failure)
}

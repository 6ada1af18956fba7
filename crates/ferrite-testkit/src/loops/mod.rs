//! Long, simple loops: each does one simple thing thousands of times, and nothing else, between two moments at which an
//! engine could clean up.
//!
//! Contents: [`Loop`]s as data ([`all`]), [`LoopEngine`], their requirements on an engine, and [`run`]. Random
//! operations and crash images test short histories. Resources that an engine frees late (slots that wait for a
//! journal's checkpoint, for example) pile up only if the same file, name or slot is used again and again meanwhile. At
//! that peak, limits that a check assumes may be exceeded.
//!
//! *Architecture invariant:* a loop knows no engine. An engine reports by [`LoopEngine::checkpoint`] when it can reuse
//! freed resources, and the numbers of turns follow from that.

mod data;
mod mixtures;
mod names;
mod pair;
mod space;
mod threads;

pub use pair::{OpenPair, Pair};

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{Ino, ROOT_INO, SYSTEM};

use crate::TestEngine;

/// One simple thing, done again and again.
pub struct Loop {
    /// Its name in `FERRITE_LOOP`.
    pub name: &'static str,
    /// The limit that it presses: the resource that runs out, wraps or drifts away if it is not released in time.
    pub presses: &'static str,
    /// Number of threads that run it at once.
    pub threads: u64,
    /// Weight of a turn: its time in units of a simple loop's turn; divides the number of turns.
    pub weight: u64,
    /// Creates the files for the turns.
    pub prepare: fn(&mut Pair<'_>),
    /// Turn number `n`.
    pub turn: fn(&mut Pair<'_>, u64),
}

/// An engine that loops run on.
pub trait LoopEngine: TestEngine {
    /// Ends the mounted engine as a crash would, checks the remains, and mounts it. Panics on findings. An engine that
    /// keeps nothing does nothing.
    fn crash(&mut self);

    /// Changes whenever resources freed before may be reused; constant if they may be at once.
    fn checkpoint(&self) -> u64 {
        0
    }

    /// Amounts of free resources, by name: the same before anything was created and after everything is removed.
    fn free(&self) -> Vec<(&'static str, u64)> {
        let stat = self.fs().statfs(SYSTEM).expect("statfs");
        vec![("blocks", stat.blocks_free), ("inodes", stat.inodes_free)]
    }

    /// Numbers of pages that the engine holds close together if they belong to this file; the engine decides which.
    fn neighbours(&self, _ino: Ino) -> Vec<u32> {
        pages_far_apart()
    }
}

/// Numbers of pages that are unrelated.
pub fn pages_far_apart() -> Vec<u32> {
    (0..64).map(|n| n << 18).collect()
}

/// The file whose pages are [`Pair::neighbour`]s.
const NEIGHBOURS: &str = "neighbours";

/// The length of loops.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The first part ends when the checkpoint has moved this many times...
    pub moves: u64,
    /// ...and at least this many turns were made.
    pub turns_min: u64,
    /// But at most this many turns, wherever the checkpoint is.
    pub turns_max: u64,
}

/// The state of a loop, for reports of its failure.
#[derive(Debug, Default)]
pub struct Progress {
    turn: AtomicU64,
    phase: Mutex<&'static str>,
}

impl Progress {
    fn enter(&self, phase: &'static str) {
        *self.phase.lock().expect("never poisoned") = phase;
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = *self.phase.lock().expect("never poisoned");
        write!(f, "{phase}, after {} turns", self.turn.load(Ordering::Relaxed))
    }
}

/// All loops, grouped by the limits that they press.
pub fn all() -> impl Iterator<Item = &'static Loop> {
    [data::LOOPS, space::LOOPS, names::LOOPS, threads::LOOPS, mixtures::LOOPS]
        .into_iter()
        .flatten()
}

/// A loop in progress.
struct Run<'a> {
    engine: &'a mut dyn LoopEngine,
    oracle: MemFs,
    of: &'static Loop,
    seed: u64,
    effort: Effort,
    neighbours: Vec<u32>,
    /// Turns made so far.
    turns: u64,
    progress: &'a Progress,
}

/// Runs one loop on an empty engine, which is empty again afterwards.
///
/// First it runs over several moves of the checkpoint. Then, after a crash, it runs as far as it can before the
/// checkpoint moves, and checks the engine once more there, at the peak of unreleased resources. Each time it compares
/// the content and checks the engine: mounted as it is, after a crash and after a clean unmount. Last, everything is
/// removed, and as much must be free as at the beginning.
///
/// # Panics
/// On the first difference.
pub fn run(engine: &mut dyn LoopEngine, of: &'static Loop, seed: u64, effort: Effort, progress: &Progress) {
    progress.enter("in the beginning");
    engine.remount();
    let empty = engine.free();
    let mut run = Run {
        engine,
        oracle: MemFs::new(),
        of,
        seed,
        effort,
        neighbours: Vec::new(),
        turns: 0,
        progress,
    };
    (of.prepare)(&mut run.pair(0));
    if let Ok(attr) = run.engine.fs().lookup(SYSTEM, ROOT_INO, NEIGHBOURS.as_bytes()) {
        run.neighbours = run.engine.neighbours(attr.ino);
    }

    progress.enter("while the checkpoint moves");
    let first_move = run.turn_until_moved();
    run.look();
    progress.enter("after a crash");
    run.crash();

    progress.enter("at the peak, before the checkpoint moves");
    // A little less than the first time: the mount may have left other things in the journal than mkfs.
    run.turn_in_all(first_move - first_move / 16);
    run.look();
    progress.enter("after a crash at the peak");
    run.crash();

    progress.enter("after an orderly end");
    run.turn_in_all(first_move / 3);
    run.engine.remount();
    run.look();

    progress.enter("when all is removed");
    run.pair(0).clear();
    let at_once = run.engine.free();
    assert_eq!(at_once, empty, "free now, and when it was empty");
    run.look();
    run.engine.remount();
    assert_eq!(run.engine.free(), empty, "free after a mount, and when it was empty");
}

impl Run<'_> {
    fn pair(&self, thread: u64) -> Pair<'_> {
        Pair::new(
            [self.engine.fs(), &self.oracle],
            thread,
            self.next_seed(),
            &self.neighbours,
        )
    }

    /// A new seed whenever turns start again; otherwise they would repeat the earlier ones.
    fn next_seed(&self) -> u64 {
        self.seed.wrapping_add(self.turns << 8)
    }

    /// The effort's number of turns, divided by the weight of this loop.
    fn fewer(&self, turns: u64) -> u64 {
        (turns / self.of.weight).max(64)
    }

    /// Makes turns until the checkpoint has moved often enough; returns the number of turns until the first move.
    fn turn_until_moved(&mut self) -> u64 {
        let (turns_min, turns_max) = (self.fewer(self.effort.turns_min), self.fewer(self.effort.turns_max));
        if self.of.threads > 1 {
            // Each thread has a separate part of the journal, so the turn at which the checkpoint moves is unknown.
            self.turn_in_all(turns_min);
            return turns_min;
        }
        let (mut checkpoint, mut moves, mut first_move) = (self.engine.checkpoint(), 0, None);
        let mut pair = self.pair(0);
        let mut n = 0;
        while n < turns_max && (n < turns_min || moves < self.effort.moves) {
            (self.of.turn)(&mut pair, n);
            n += 1;
            self.progress.turn.store(n, Ordering::Relaxed);
            let now = self.engine.checkpoint();
            if now != checkpoint {
                moves += 1;
                first_move.get_or_insert(n);
            }
            checkpoint = now;
        }
        self.turns += n;
        first_move.unwrap_or(n)
    }

    /// Makes this many turns in each thread.
    fn turn_in_all(&mut self, turns: u64) {
        let (of, progress, numbers) = (self.of, self.progress, self.turns..self.turns + turns);
        let (fs, seed, neighbours) = ([self.engine.fs(), &self.oracle], self.next_seed(), &self.neighbours);
        let work = |thread| {
            let mut pair = Pair::new(fs, thread, seed, neighbours);
            for n in numbers.clone() {
                (of.turn)(&mut pair, n);
                progress.turn.store(n + 1, Ordering::Relaxed);
            }
        };
        if of.threads == 1 {
            // In the same thread, and so with the same part of the journal, as before.
            work(0);
        } else {
            std::thread::scope(|scope| {
                let work = &work;
                let threads: Vec<_> = (0..of.threads)
                    .map(|thread| scope.spawn(move || work(thread)))
                    .collect();
                for thread in threads {
                    if let Err(panic) = thread.join() {
                        std::panic::resume_unwind(panic);
                    }
                }
            });
        }
        self.turns += turns;
    }

    fn look(&self) {
        self.engine.check();
        self.pair(0).compare();
    }

    fn crash(&mut self) {
        self.engine.crash();
        self.pair(0).compare();
    }
}

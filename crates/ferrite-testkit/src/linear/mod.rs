//! Concurrent behaviour: several threads on distinct and on the same files and directories.
//!
//! Contents: the checks whose invariants can be tested without a search (this file and [`names`], [`data`],
//! [`sticky`]), and small random histories searched for a sequential order that explains them ([`history`]).
//!
//! Invariant: timing affects only how sharp a check is, never whether it holds; a sound engine passes on any machine.

mod data;
pub mod history;
mod names;
mod sticky;

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use ferrite_vfs::FileSystem;

use crate::TestEngine;
use crate::snapshot::Snapshot;

/// One concurrent check on a fresh engine; `seed` fixes what its threads do, not how they interleave.
pub struct Check {
    /// The property that it protects.
    pub name: &'static str,
    /// Runs it; panics when the engine breaks the rule.
    pub run: fn(&dyn FileSystem, seed: u64),
}

/// Every check.
pub fn checks() -> Vec<Check> {
    let mut checks = vec![Check {
        name: "linear/histories",
        run: history::histories,
    }];
    checks.extend(data::checks());
    checks.extend(names::checks());
    checks.extend(sticky::checks());
    checks
}

/// Runs every check, each on a separate engine; afterwards the tree must survive a remount and the engine's own check.
/// `FERRITE_SEED` overrides the seed.
///
/// # Panics
/// In the first check that fails, with its seed. A check that hangs (a deadlock) ends the process after two minutes.
pub fn run_all(make: impl Fn() -> Box<dyn TestEngine>, seed: u64) {
    let seed = crate::seed_from_env().unwrap_or(seed);
    for check in checks() {
        println!("{} (FERRITE_SEED={seed})", check.name);
        let mut engine = make();
        guarded(check.name, || (check.run)(engine.fs(), seed));
        let before = Snapshot::capture(engine.fs()).expect("the tree can be walked");
        engine.remount();
        let after = Snapshot::capture(engine.fs()).expect("the tree can be walked after a remount");
        if let Some(difference) = before.difference(&after, ["before the remount", "after"]) {
            panic!("{}: {difference}", check.name);
        }
        engine.check();
    }
}

/// Runs `body`; ends the process if it takes so long that it must have deadlocked: a thread that waits forever cannot
/// be made to fail otherwise.
fn guarded(name: &str, body: impl FnOnce()) {
    let (done, wait) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(Duration::from_secs(120)) {
                let _ = writeln!(std::io::stderr(), "{name}: no end after two minutes: a deadlock?");
                std::process::abort();
            }
        });
        // Dropped when `body` returns or panics, which ends the wait.
        let _done = done;
        body();
    });
}

/// Runs `body(thread)` on `count` threads that start together; a panic in one is passed on to the caller.
fn together(count: usize, body: impl Fn(usize) + Sync) {
    let start = std::sync::Barrier::new(count);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|thread| {
                let (start, body) = (&start, &body);
                scope.spawn(move || {
                    start.wait();
                    body(thread);
                })
            })
            .collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

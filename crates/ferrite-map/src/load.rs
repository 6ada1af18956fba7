//! Reading a whole structure at mount, on several threads.
//!
//! Contents: [`each`], which the structures' `load` calls, and any other code that reads a large table once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs `work` for each of `units` units, `chunk` of them at a time on up to `threads` threads, the caller's included.
/// Continues after errors and returns the last one.
pub fn each<E: Send>(
    threads: usize,
    units: u64,
    chunk: u64,
    work: impl Fn(u64) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicU64::new(0);
    let damage = Mutex::new(Ok(()));
    let run = || {
        loop {
            let first = next.fetch_add(chunk, Ordering::Relaxed);
            if first >= units {
                return;
            }
            for unit in first..(first + chunk).min(units) {
                if let Err(error) = work(unit) {
                    *damage.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
                }
            }
        }
    };
    // A small structure is read before a thread has started.
    let threads = (threads as u64).min(units.div_ceil(chunk));
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    damage.into_inner().unwrap_or_else(PoisonError::into_inner)
}

//! Reading a whole structure at mount, on several threads.
//!
//! Contents: [`each_written`], which the structures' `load` calls, and any other code that reads a large table once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ferrite_pm::Region;

/// A table of a pool: its place, and the bytes of a unit.
#[derive(Clone, Copy)]
pub struct Table<'r> {
    region: &'r Region,
    offset: u64,
    unit_bytes: u64,
}

impl<'r> Table<'r> {
    /// The table at `offset`.
    pub fn of(region: &'r Region, offset: u64, unit_bytes: u64) -> Self {
        Table {
            region,
            offset,
            unit_bytes,
        }
    }
}

/// Runs `work` for each of the table's `units` units, except in parts of a sparse pool where nothing was ever stored:
/// `chunk` of them at a time on up to `threads` threads, the caller's included. Continues after errors and returns the
/// last one.
pub fn each_written<E: Send>(
    threads: usize,
    table: Table<'_>,
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
            let part = first..(first + chunk).min(units);
            for unit in table.region.written_entries(table.offset, part, table.unit_bytes) {
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

//! Which cache lines an operation writes that other threads can write as well.
//!
//! Contents: notes, which all crates of the engine make where they store to such a line ([`line()`]), and their
//! evaluation by a test (`begin`, `end`). Without the feature `spans` a note is empty and costs nothing.
//!
//! A line that two cores write in turn travels between them, some 50 to 100 ns each way. On a machine with few cores
//! that cannot be timed, but it can be counted: threads run one after the other, and a line counts as shared if another
//! thread's operations write it, too. Data under a lock counts with the lock; data that only one thread can reach (a
//! file handle's memory, thread locals) is not noted.

/// A line that was written: in which structure, and its address or number in units of lines.
pub type TracedLine = (&'static str, u64);

#[cfg(feature = "spans")]
mod notes {
    use std::cell::RefCell;

    use super::TracedLine;
    use crate::LINE_BYTES;

    thread_local!(static NOTES: RefCell<Option<Vec<TracedLine>>> = const { RefCell::new(None) });

    /// Notes a store to the line of `at`.
    pub fn line<T>(structure: &'static str, at: &T) {
        number(structure, std::ptr::from_ref(at).addr() as u64 / LINE_BYTES);
    }

    /// Notes a store to line `number` of a structure whose lines have no addresses here.
    pub fn number(structure: &'static str, number: u64) {
        // While a thread ends there is nothing to note in.
        let _ = NOTES.try_with(|notes| {
            if let Some(notes) = &mut *notes.borrow_mut() {
                notes.push((structure, number));
            }
        });
    }

    /// Notes this thread's writes from here on.
    pub fn begin() {
        NOTES.set(Some(Vec::new()));
    }

    /// The lines it has written since [`begin`], in order.
    pub fn end() -> Vec<TracedLine> {
        NOTES.take().unwrap_or_default()
    }
}

#[cfg(feature = "spans")]
pub use notes::{begin, end, line, number};

/// Nothing.
#[cfg(not(feature = "spans"))]
#[inline(always)]
pub fn line<T>(_: &'static str, _: &T) {}

/// Nothing.
#[cfg(not(feature = "spans"))]
#[inline(always)]
pub fn number(_: &'static str, _: u64) {}

//! Ranges of a blob that reads share and an overwrite has exclusively, so that a read sees an overwrite of several
//! objects whole or not at all.
//!
//! Contents: [`ByteRanges`] and the guard of one.
//!
//! Invariant: overlapping ranges are used in the order in which threads asked for them, unless all of them are for
//! reads. A thread uses one range of a blob at a time.

use std::ops::Range;

use ferrite_checks::condvar::Condvar;
use ferrite_checks::ranked::Mutex;

use super::lock_order;

/// Ranges that are in use or waited for.
#[derive(Default)]
pub(super) struct ByteRanges {
    state: Mutex<lock_order::ByteRanges, State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    /// How many ranges there were.
    tickets: u64,
    ranges: Vec<Ranged>,
}

struct Ranged {
    ticket: u64,
    bytes: Range<u64>,
    is_exclusive: bool,
}

/// A range in use, until it is dropped.
pub(super) struct RangeGuard<'r> {
    of: &'r ByteRanges,
    ticket: u64,
}

impl ByteRanges {
    /// Waits for a range that others may read, too.
    pub(super) fn share(&self, bytes: Range<u64>) -> RangeGuard<'_> {
        self.take(bytes, false)
    }

    /// Waits for a range that nobody else uses.
    pub(super) fn exclude(&self, bytes: Range<u64>) -> RangeGuard<'_> {
        self.take(bytes, true)
    }

    fn take(&self, bytes: Range<u64>, is_exclusive: bool) -> RangeGuard<'_> {
        let mut state = self.state.lock();
        let ticket = state.tickets;
        state.tickets += 1;
        let excludes = |other: &Ranged| {
            let overlaps = other.bytes.start < bytes.end && bytes.start < other.bytes.end;
            other.ticket < ticket && overlaps && (other.is_exclusive || is_exclusive)
        };
        state.ranges.push(Ranged {
            ticket,
            bytes: bytes.clone(),
            is_exclusive,
        });
        while state.ranges.iter().any(excludes) {
            self.released.wait(&mut state);
        }
        RangeGuard { of: self, ticket }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.of.state.lock().ranges.retain(|range| range.ticket != self.ticket);
        self.of.released.notify_all();
    }
}

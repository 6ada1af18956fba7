//! Slices that have arrived, until they were read to their end.
//!
//! A cache that keeps what is used often may drop a new slice before a reader in order has finished it, and drops what
//! was fetched ahead first of all. Here slices stay in the order of their arrival; those that were finished go first.
//! The distance by which readers are served ahead follows from it: it halves when a slice that was fetched ahead has
//! to go unread, and grows slowly as long as none has.
//!
//! Invariant: no more than `bytes_max`, except one slice.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ferrite_checks::ranked::Mutex;

use crate::slice::{BLOCK_BYTES, SliceId};

mod lock_order {
    ferrite_checks::ranks! {
        "ferrite-slices arrivals":
        /// The slices. Nothing is locked under it.
        Arrivals = 10;
    }
}

/// Blocks that a reader in order is served ahead.
const AHEAD_MIN: u64 = 1;
const AHEAD_MAX: u64 = 8;
const AHEAD_FIRST: u64 = 4;
/// Slices that are finished before readers are served another block ahead.
const STEADY: u32 = 32;
/// A reader that has not come for so long has stopped.
const STOPPED: Duration = Duration::from_secs(5);
/// Memory that a slice takes besides its bytes.
const OVERHEAD_BYTES: u64 = 200;

/// Slices that have arrived.
#[derive(Debug)]
pub(crate) struct Arrivals {
    inner: Mutex<lock_order::Arrivals, Inner>,
    bytes_max: u64,
}

#[derive(Debug)]
struct Inner {
    slices: HashMap<SliceId, Arrived>,
    /// By the order of arrival.
    unread: BTreeMap<u64, SliceId>,
    finished: BTreeMap<u64, SliceId>,
    next: u64,
    bytes: u64,
    ahead: u64,
    steady: u32,
}

#[derive(Debug)]
struct Arrived {
    slice: Bytes,
    number: u64,
    since: Instant,
    is_ahead: bool,
}

impl Arrivals {
    pub(crate) fn new(bytes_max: u64) -> Arrivals {
        let inner = Inner {
            slices: HashMap::new(),
            unread: BTreeMap::new(),
            finished: BTreeMap::new(),
            next: 0,
            bytes: 0,
            ahead: AHEAD_FIRST,
            steady: 0,
        };
        Arrivals {
            inner: Mutex::new(inner),
            bytes_max,
        }
    }

    pub(crate) fn get(&self, id: SliceId) -> Option<Bytes> {
        self.inner.lock().slices.get(&id).map(|arrived| arrived.slice.clone())
    }

    pub(crate) fn contains(&self, id: SliceId) -> bool {
        self.inner.lock().slices.contains_key(&id)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// By how many bytes a reader in order should be served ahead.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.inner.lock().ahead * BLOCK_BYTES
    }

    /// A slice has arrived. `is_ahead`: no reader waits for it.
    pub(crate) fn insert(&self, id: SliceId, slice: &Bytes, is_ahead: bool) {
        let more = slice.len() as u64 + OVERHEAD_BYTES;
        let mut inner = self.inner.lock();
        if inner.slices.contains_key(&id) {
            return;
        }
        while inner.bytes > 0 && inner.bytes + more > self.bytes_max {
            inner.drop_one();
        }
        let number = inner.next;
        inner.next += 1;
        inner.bytes += more;
        inner.unread.insert(number, id);
        let arrived = Arrived {
            slice: slice.clone(),
            number,
            since: Instant::now(),
            is_ahead,
        };
        inner.slices.insert(id, arrived);
    }

    /// A reader has come to the end of a slice.
    pub(crate) fn finish(&self, id: SliceId) {
        let mut inner = self.inner.lock();
        let Some(number) = inner.slices.get(&id).map(|arrived| arrived.number) else {
            return;
        };
        if inner.unread.remove(&number).is_none() {
            return;
        }
        inner.finished.insert(number, id);
        inner.steady += 1;
        if inner.steady >= STEADY {
            inner.steady = 0;
            inner.ahead = (inner.ahead + 1).min(AHEAD_MAX);
        }
    }
}

impl Inner {
    fn drop_one(&mut self) {
        let (id, is_unread) = match self.finished.pop_first() {
            Some((_, id)) => (id, false),
            None => match self.unread.pop_first() {
                Some((_, id)) => (id, true),
                None => return,
            },
        };
        let Some(gone) = self.slices.remove(&id) else { return };
        self.bytes -= gone.slice.len() as u64 + OVERHEAD_BYTES;
        if is_unread && gone.is_ahead && gone.since.elapsed() < STOPPED {
            self.ahead = (self.ahead / 2).max(AHEAD_MIN);
            self.steady = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> SliceId {
        SliceId { epoch: 1, number }
    }

    fn block() -> Bytes {
        Bytes::from(vec![0; BLOCK_BYTES as usize])
    }

    /// Protects readers in order: a slice goes only after those that were read to their end.
    #[test]
    fn slices_stay_until_they_were_read() {
        let arrivals = Arrivals::new(4 * BLOCK_BYTES + 4 * OVERHEAD_BYTES);
        (0..4).for_each(|number| arrivals.insert(id(number), &block(), false));
        arrivals.finish(id(2));
        arrivals.insert(id(4), &block(), true);
        let left: Vec<bool> = (0..5).map(|number| arrivals.contains(id(number))).collect();
        assert_eq!(left, [true, true, false, true, true]);
        arrivals.insert(id(5), &block(), true);
        assert!(!arrivals.contains(id(0)), "the oldest goes, if none is finished");
        assert_eq!(arrivals.bytes(), 4 * (BLOCK_BYTES + OVERHEAD_BYTES));
        assert_eq!(arrivals.get(id(5)), Some(block()));
    }

    /// Protects the bucket: what is dropped unread is fetched twice.
    #[test]
    fn readers_are_served_as_far_ahead_as_there_is_memory() {
        let arrivals = Arrivals::new(4 * BLOCK_BYTES);
        let first = arrivals.ahead_bytes();
        (0..4).for_each(|number| arrivals.insert(id(number), &block(), true));
        assert!(arrivals.ahead_bytes() < first);
        (4..100).for_each(|number| arrivals.insert(id(number), &block(), true));
        assert_eq!(arrivals.ahead_bytes(), BLOCK_BYTES);
        for number in 100..1000 {
            arrivals.insert(id(number), &block(), true);
            arrivals.finish(id(number));
        }
        assert_eq!(arrivals.ahead_bytes(), AHEAD_MAX * BLOCK_BYTES);
        // A slice that is longer than all of it passes through.
        let small = Arrivals::new(1000);
        (0..3).for_each(|number| small.insert(id(number), &block(), false));
        assert!(small.contains(id(2)) && !small.contains(id(1)));
    }
}

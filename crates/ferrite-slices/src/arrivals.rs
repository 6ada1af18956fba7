//! Pieces of slices that have arrived, until they were read to their end.
//!
//! A cache that keeps what is used often may drop a new piece before a reader in order has finished it, and drops what
//! was fetched ahead first of all. Here pieces stay in the order of their arrival; those that were finished go first.
//!
//! Each reader in order has the same share of the memory: as long as it is two blocks or more, whole slices are fetched
//! for it and some ahead, and parts of them if there are more readers.
//!
//! Invariant: no more than `bytes_max` of pieces, except one piece.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ferrite_checks::ranked::Mutex;

use crate::piece::Piece;
use crate::slice::{BLOCK_BYTES, PART_BYTES};

mod lock_order {
    ferrite_checks::ranks! {
        "ferrite-slices arrivals":
        /// The pieces and the readers. Nothing is locked under it.
        Arrivals = 20;
    }
}

/// Blocks that a reader in order is served ahead, at most.
const AHEAD_MAX: u64 = 8;
/// A reader that has not come for so long has stopped; one of which only one read is known, as of those who look at the
/// beginnings of many files, earlier. Those who have stopped are looked for from time to time.
const STOPPED: Duration = Duration::from_secs(2);
const STOPPED_EARLY: Duration = Duration::from_millis(500);
const LOOKED_AFTER: Duration = Duration::from_millis(50);
/// Readers that are counted; with more, shares are as small as they can be.
const READERS_MAX: usize = 1024;
/// Memory that a piece takes besides its bytes; and the part of all memory that this is, at most, so that the shares of
/// readers have room for whole pieces.
const OVERHEAD_BYTES: u64 = 200;
const OVERHEAD: u64 = PART_BYTES as u64 / OVERHEAD_BYTES;

/// How a reader in order is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readahead {
    /// The bytes that are fetched at once: those of a block, or fewer.
    pub unit_bytes: u64,
    /// By how many bytes it is served ahead.
    pub ahead_bytes: u64,
}

/// Pieces that have arrived.
#[derive(Debug)]
pub(crate) struct Arrivals {
    inner: Mutex<lock_order::Arrivals, Inner>,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Inner {
    pieces: HashMap<Piece, Arrived>,
    /// By the order of arrival.
    unread: BTreeMap<u64, Piece>,
    finished: BTreeMap<u64, Piece>,
    next: u64,
    bytes: u64,
    /// Until when each reader in order counts.
    readers: HashMap<u64, Instant>,
    /// When those that have stopped were looked for.
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Arrived {
    bytes: Bytes,
    number: u64,
}

impl Arrivals {
    pub(crate) fn new(bytes_max: u64) -> Arrivals {
        Arrivals {
            inner: Mutex::new(Inner::default()),
            bytes_max,
        }
    }

    pub(crate) fn get(&self, piece: Piece) -> Option<Bytes> {
        self.inner
            .lock()
            .pieces
            .get(&piece)
            .map(|arrived| arrived.bytes.clone())
    }

    pub(crate) fn contains(&self, piece: Piece) -> bool {
        self.inner.lock().pieces.contains_key(&piece)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// A reader has come, which is known to read in order, or (`is_new`) has begun at the beginning of a file.
    pub(crate) fn readahead(&self, reader: u64, is_new: bool) -> Readahead {
        self.readahead_at(reader, is_new, Instant::now())
    }

    /// A reader has come to the end of its file.
    pub(crate) fn forget(&self, reader: u64) {
        self.inner.lock().readers.remove(&reader);
    }

    fn readahead_at(&self, reader: u64, is_new: bool, now: Instant) -> Readahead {
        let mut inner = self.inner.lock();
        if inner.looked.is_none_or(|looked| now - looked > LOOKED_AFTER) {
            inner.looked = Some(now);
            inner.readers.retain(|_, until| *until > now);
        }
        if inner.readers.len() < READERS_MAX || inner.readers.contains_key(&reader) {
            let stays = if is_new { STOPPED_EARLY } else { STOPPED };
            inner.readers.insert(reader, now + stays);
        }
        let readers = inner.readers.len().max(1) as u64;
        drop(inner);
        served(self.bytes_max / readers)
    }

    /// A piece has arrived.
    pub(crate) fn insert(&self, piece: Piece, bytes: &Bytes) {
        let more = bytes.len() as u64 + OVERHEAD_BYTES;
        let mut inner = self.inner.lock();
        if inner.pieces.contains_key(&piece) {
            return;
        }
        while inner.bytes > 0 && inner.bytes + more > self.bytes_max + self.bytes_max / OVERHEAD {
            inner.drop_one();
        }
        let number = inner.next;
        inner.next += 1;
        inner.bytes += more;
        inner.unread.insert(number, piece);
        let arrived = Arrived {
            bytes: bytes.clone(),
            number,
        };
        inner.pieces.insert(piece, arrived);
    }

    /// Readers have come to the end of these pieces.
    pub(crate) fn finish(&self, pieces: impl IntoIterator<Item = Piece>) {
        let mut inner = self.inner.lock();
        for piece in pieces {
            let Some(number) = inner.pieces.get(&piece).map(|arrived| arrived.number) else {
                continue;
            };
            if inner.unread.remove(&number).is_some() {
                inner.finished.insert(number, piece);
            }
        }
    }
}

impl Inner {
    fn drop_one(&mut self) {
        let oldest = self.finished.pop_first().or_else(|| self.unread.pop_first());
        let gone = oldest.and_then(|(_, piece)| self.pieces.remove(&piece));
        if let Some(gone) = gone {
            self.bytes -= gone.bytes.len() as u64 + OVERHEAD_BYTES;
        }
    }
}

/// How a reader is served with this share of the memory: it is in one unit, and others are on their way.
fn served(share_bytes: u64) -> Readahead {
    let part = u64::from(PART_BYTES);
    let blocks = share_bytes / BLOCK_BYTES;
    if blocks >= 3 {
        return Readahead {
            unit_bytes: BLOCK_BYTES,
            ahead_bytes: (blocks - 2).min(AHEAD_MAX) * BLOCK_BYTES,
        };
    }
    // The largest power of two of which three fit: a read may begin in one unit and end in the next.
    let units = share_bytes / part / 3;
    Readahead {
        unit_bytes: part << units.max(1).ilog2(),
        ahead_bytes: if units == 0 { 0 } else { part << units.ilog2() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::SliceId;

    const EACH: u64 = BLOCK_BYTES + OVERHEAD_BYTES;

    fn whole(number: u64) -> Piece {
        Piece::Whole(SliceId { epoch: 1, number })
    }

    fn block() -> Bytes {
        Bytes::from(vec![0; BLOCK_BYTES as usize])
    }

    /// Protects readers in order: a slice goes only after those that were read to their end.
    #[test]
    fn slices_stay_until_they_were_read() {
        let arrivals = Arrivals::new(4 * EACH);
        (0..4).for_each(|number| arrivals.insert(whole(number), &block()));
        arrivals.finish([whole(2)]);
        arrivals.insert(whole(4), &block());
        let left: Vec<bool> = (0..5).map(|number| arrivals.contains(whole(number))).collect();
        assert_eq!(left, [true, true, false, true, true]);
        arrivals.insert(whole(5), &block());
        assert!(!arrivals.contains(whole(0)), "the oldest goes, if all are unread");
        assert_eq!(arrivals.bytes(), 4 * EACH);
        assert_eq!(arrivals.get(whole(5)), Some(block()));
        // A slice that is longer than all of it passes through.
        let small = Arrivals::new(1000);
        (0..3).for_each(|number| small.insert(whole(number), &block()));
        assert!(small.contains(whole(2)) && !small.contains(whole(1)));
    }

    /// All units of all readers are there before any of them is finished.
    fn check_room(arrivals: &Arrivals, readers: u64, how: Readahead) {
        let units = readers * (how.unit_bytes + how.ahead_bytes) / how.unit_bytes;
        let part_bytes = u64::from(PART_BYTES).min(how.unit_bytes);
        let (each, bytes) = match how.unit_bytes {
            BLOCK_BYTES => (1, block()),
            unit => (unit / part_bytes, block().slice(..part_bytes as usize)),
        };
        let piece = |number: u64| Piece::Part(SliceId { epoch: 2, number }, 0);
        (0..units * each).for_each(|number| arrivals.insert(piece(number), &bytes));
        assert!(
            (0..units * each).all(|number| arrivals.contains(piece(number))),
            "{readers} readers: {how:?}"
        );
    }

    /// Protects the bucket: what does not fit is dropped unread, and fetched twice.
    #[test]
    fn readers_are_served_as_far_ahead_as_there_is_memory() {
        for (memory, readers) in [
            (32_u64 << 20, 1),
            (32 << 20, 4),
            (32 << 20, 16),
            (32 << 20, 100),
            (512 << 20, 16),
        ] {
            let arrivals = Arrivals::new(memory);
            let last = (0..readers)
                .map(|reader| arrivals.readahead(reader, false))
                .last()
                .unwrap();
            let needed = readers * (last.unit_bytes + last.ahead_bytes);
            assert!(
                needed <= memory && needed >= memory / 4,
                "{readers} readers in {memory}: {last:?}"
            );
            let again = arrivals.readahead(0, false);
            assert_eq!(again, last, "a reader that comes again is no other one");
            check_room(&arrivals, readers, last);
        }
        let crowd = Arrivals::new(1 << 20);
        let last = (0..5000).map(|reader| crowd.readahead(reader, false)).last().unwrap();
        assert_eq!((last.unit_bytes, last.ahead_bytes), (u64::from(PART_BYTES), 0));
        assert!(crowd.inner.lock().readers.len() <= READERS_MAX);
        // Those that have stopped leave their shares to the others.
        let later = Instant::now() + STOPPED;
        assert_eq!(crowd.readahead_at(7, false, later), served(1 << 20));
        crowd.readahead_at(8, true, later);
        assert_eq!(crowd.readahead_at(7, false, later), served(1 << 19));
        let not_much_later = later + STOPPED_EARLY + LOOKED_AFTER;
        assert_eq!(crowd.readahead_at(7, false, not_much_later), served(1 << 20));
        crowd.readahead_at(9, false, not_much_later);
        crowd.forget(9);
        assert_eq!(crowd.readahead_at(7, false, not_much_later), served(1 << 20));
    }
}

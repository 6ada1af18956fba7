//! Readers in order: which parts of a blob to fetch before somebody asks.
//!
//! Reads of one reader come nearly in order: the kernel sends several at once. Several readers may be at different
//! places of a blob. So there are some *streams*, each with the place that it has reached; a read that begins near
//! this place continues it. Reads at a constant distance are another order.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_slices::{BLOCK_BYTES, Readahead};

/// Readers of a blob that are known, each by its place.
const STREAMS_MAX: usize = 64;
/// A read continues a stream if it begins no further from its place, or from twice its own length.
const NEAR_BYTES: u64 = 1 << 20;
/// Reads after which a stream is in order.
const READS_IN_ORDER: u32 = 2;
/// Nobody is served further ahead than so far, or than it has read.
const AHEAD_FIRST: u64 = 4 * BLOCK_BYTES;
/// Reads at a constant distance for which is fetched ahead.
const STRIDES_AHEAD: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Order {
    streams: Vec<Stream>,
    /// Where the last reads began, the last one first.
    begun: [Option<u64>; 2],
    reads: u64,
}

#[derive(Debug)]
struct Stream {
    /// Its number, of which no other blob has one.
    number: u64,
    /// Where the first of its reads began.
    began: u64,
    /// The place that it has reached.
    until: u64,
    fetched_until: u64,
    reads: u32,
    /// The bytes of all its reads.
    bytes: u64,
    /// The number of its last read.
    used: u64,
}

/// The order that a read is part of.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// How its reader is served, if it reads in order.
    pub(super) order: Option<Readahead>,
    /// The number of this reader.
    pub(super) reader: Option<u64>,
    /// The parts to fetch, of which some may be here.
    pub(super) ahead: Vec<Range<u64>>,
}

impl Order {
    /// Notes a read. `serve` says how the reader in order with this number is served, of which this may be the first
    /// read.
    pub(super) fn note(&mut self, read: &Range<u64>, serve: impl FnOnce(u64, bool) -> Readahead) -> Noted {
        self.reads += 1;
        let near = NEAR_BYTES.max(2 * (read.end - read.start));
        let used = self.reads;
        let earlier = self.begun;
        self.begun = [Some(read.start), earlier[0]];
        // Others that ended there earlier are left alone.
        let found = self
            .streams
            .iter_mut()
            .filter(|stream| stream.until.abs_diff(read.start) <= near)
            .max_by_key(|stream| stream.used);
        let Some(stream) = found else {
            let number = self.begin(read);
            // Somebody who begins at the beginning continues, as a rule.
            let reader = (read.start == 0).then_some(number);
            return Noted {
                order: reader.map(|number| serve(number, true)),
                reader,
                ahead: strides(read, earlier),
            };
        };
        stream.used = used;
        stream.add(read);
        if !stream.is_in_order() {
            return Noted {
                ahead: strides(read, earlier),
                ..Noted::default()
            };
        }
        let order = serve(stream.number, false);
        Noted {
            order: Some(order),
            reader: Some(stream.number),
            ahead: stream.ahead(order).into_iter().collect(),
        }
    }

    /// Begins a stream, and returns its number.
    fn begin(&mut self, read: &Range<u64>) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let stream = Stream {
            number,
            began: read.start,
            until: read.end,
            fetched_until: read.end,
            reads: u32::from(read.start == 0),
            bytes: read.end - read.start,
            used: self.reads,
        };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = stream;
        }
        number
    }
}

impl Stream {
    fn add(&mut self, read: &Range<u64>) {
        self.began = self.began.min(read.start);
        self.bytes = self.bytes.saturating_add(read.end - read.start);
        // One that reads the same again does not read on.
        if read.end > self.until {
            self.reads = self.reads.saturating_add(1);
            self.until = read.end;
        }
    }

    /// Whether it reads on and on. Reads here and there in a small file may come near each other, too, but leave more
    /// out than they read.
    fn is_in_order(&self) -> bool {
        self.reads >= READS_IN_ORDER && self.bytes >= (self.until - self.began) / 2
    }

    /// The part to fetch ahead now, a unit at a time, not for each read.
    fn ahead(&mut self, order: Readahead) -> Option<Range<u64>> {
        let ahead_bytes = order.ahead_bytes.min(AHEAD_FIRST.max(self.until - self.began));
        let until = self.until + ahead_bytes;
        let from = self.fetched_until.max(self.until);
        if until < from + order.unit_bytes {
            return None;
        }
        self.fetched_until = until;
        Some(from..until)
    }
}

/// The next reads of a reader that reads at a constant distance.
fn strides(read: &Range<u64>, earlier: [Option<u64>; 2]) -> Vec<Range<u64>> {
    let [Some(last), Some(before)] = earlier else {
        return Vec::new();
    };
    let stride = read.start.wrapping_sub(last);
    let is_constant = read.start > last && last > before && last - before == stride;
    if !is_constant {
        return Vec::new();
    }
    let next = |count: u64| {
        let start = stride.checked_mul(count)?.checked_add(read.start)?;
        Some(start..start.checked_add(read.end - read.start)?)
    };
    (1..=STRIDES_AHEAD).map_while(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: Readahead = Readahead {
        unit_bytes: BLOCK_BYTES,
        ahead_bytes: 4 * BLOCK_BYTES,
    };
    const AHEAD: u64 = SERVED.ahead_bytes;
    const READ: u64 = 128 << 10;

    /// The parts that are fetched for reads that begin at these offsets.
    fn fetched(order: &mut Order, begins: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let notes = begins
            .into_iter()
            .flat_map(|start| order.note(&(start..start + READ), |_, _| SERVED).ahead);
        notes.collect()
    }

    /// Protects readers: each byte is fetched once, before it is read.
    #[test]
    fn a_reader_in_order_is_served_ahead() {
        let mut order = Order::default();
        let parts = fetched(&mut order, (0..512).map(|read| read * READ));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
        assert!(parts[0].start <= 2 * READ && parts.last().unwrap().end >= 512 * READ + AHEAD - BLOCK_BYTES);
        assert!(parts.len() <= 20, "{}", parts.len());
    }

    /// Protects readers that share little memory: the same, in units that are smaller than a block.
    #[test]
    fn small_units_are_served_one_by_one() {
        let unit_bytes = 4 * READ;
        let small = Readahead {
            unit_bytes,
            ahead_bytes: unit_bytes,
        };
        let mut order = Order::default();
        let noted: Vec<_> = (0..512_u64)
            .map(|read| order.note(&(read * READ..(read + 1) * READ), |_, _| small))
            .collect();
        assert!(noted.iter().all(|noted| noted.order == Some(small)));
        let parts: Vec<_> = noted.into_iter().flat_map(|noted| noted.ahead).collect();
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
        assert!(
            parts
                .iter()
                .all(|part| (unit_bytes..=2 * unit_bytes).contains(&(part.end - part.start)))
        );
    }

    /// Protects the bucket: much is fetched ahead only for somebody who has read much.
    #[test]
    fn who_has_read_little_is_not_served_far_ahead() {
        let far = Readahead {
            unit_bytes: BLOCK_BYTES,
            ahead_bytes: 8 * BLOCK_BYTES,
        };
        let mut order = Order::default();
        let mut until = 0;
        for read in 0..64 * BLOCK_BYTES / READ {
            let noted = order.note(&(read * READ..(read + 1) * READ), |_, _| far);
            until = noted.ahead.last().map_or(until, |part| part.end);
            let has_read = (read + 1) * READ;
            assert!(until <= has_read + AHEAD_FIRST.max(has_read));
        }
        assert!(until >= (64 + 7) * BLOCK_BYTES, "{until}");
    }

    /// Protects a reader's memory from its own past: one that reads a file again and again is one reader at a time.
    #[test]
    fn a_reader_that_begins_anew_leaves_its_last_number() {
        let mut order = Order::default();
        for _ in 0..5 {
            let readers: Vec<_> = (0..64)
                .map(|read| order.note(&(read * READ..(read + 1) * READ), |_, _| SERVED).reader)
                .collect();
            assert!(
                readers[0].is_some() && readers.iter().all(|reader| *reader == readers[0]),
                "{readers:?}"
            );
        }
    }

    #[test]
    fn reads_that_overtake_each_other_and_many_readers_are_in_order_too() {
        let mut order = Order::default();
        // Pairs that have changed places, by eight readers in turn, each in a part of its own.
        let turns = (0..64_u64).flat_map(|read| (30..38).map(move |reader| (1 << reader) + (read ^ 1) * READ));
        let parts = fetched(&mut order, turns);
        for reader in 30..38 {
            let own: Vec<_> = parts.iter().filter(|part| part.start.ilog2() == reader).collect();
            assert!(own.windows(2).all(|pair| pair[0].end == pair[1].start), "{own:?}");
            assert!(own.last().unwrap().end >= (1 << reader) + 64 * READ, "{own:?}");
        }
    }

    #[test]
    fn reads_at_a_constant_distance_are_served_ahead() {
        [512 << 10, 10 << 20].into_iter().for_each(are_served_ahead);
    }

    fn are_served_ahead(stride: u64) {
        let mut order = Order::default();
        let parts = fetched(&mut order, (0..3).map(|read| (1 << 20) + read * stride));
        let next = |count: u64| (1 << 20) + count * stride..(1 << 20) + count * stride + READ;
        assert_eq!(parts, (3..7).map(next).collect::<Vec<_>>());
    }

    /// Protects the bucket: whoever reads here and there gets what was asked for, and no more.
    #[test]
    fn nothing_is_fetched_ahead_for_random_reads() {
        let mut rng = ferrite_testkit::rng::Rng::new(7);
        let mut order = Order::default();
        let parts = fetched(&mut order, (0..1000).map(|_| rng.below(1 << 40)));
        assert!(parts.is_empty(), "{parts:?}");
        let mut small = Order::default();
        let reads = (0..1000).map(|_| {
            let start = 1 + rng.below(32 << 20);
            small.note(&(start..start + 4096), |_, _| SERVED)
        });
        let in_order = reads.filter(|noted| noted.order.is_some()).count();
        assert!(in_order < 20, "{in_order} of random reads in a small file");
        // A hot place, and a reader that goes back.
        let mut hot = Order::default();
        let backwards = (0..100).rev().map(|read| (1 << 40) + read * READ);
        for start in std::iter::repeat_n(5 << 30, 100).chain(backwards) {
            let noted = hot.note(&(start..start + READ), |_, _| SERVED);
            assert!(noted.order.is_none() && noted.ahead.is_empty(), "{start}");
        }
        assert!(order.streams.len() <= STREAMS_MAX);
        // Offsets at the end of what there can be.
        let end = i64::MAX as u64 - READ;
        fetched(&mut order, [end - 2 * (1 << 62) / 4, end - (1 << 60), end]);
    }
}
